"""Modules of routecap and of the packages that stand on it: none imports itself through others, or
what is private in another folder, and none is too long to read."""

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
import routecap

ROOT = Path(__file__).parents[3]
PACKAGES = [
    Path(routecap.__file__).parent,
    *ROOT.glob("*/src/routecap_*"),
    *ROOT.glob("integrations/*/src/routecap_*"),
]
LINES = 700


def modules(*packages: Path) -> dict[str, Path]:
    """Each module by its name; of what SWIG makes, the types."""
    found = {}
    for package in packages:
        for file in [*package.rglob("*.py"), *package.rglob("*.pyi")]:
            parts = file.relative_to(package.parent).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


@cache
def nodes(text: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(text)))


def imports(file: Path) -> Iterator[tuple[ast.Import | ast.ImportFrom, ast.alias]]:
    """Every import of a module: at its top, in a function, and for annotations alone."""
    for node in nodes(file.read_text()):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                yield node, alias


def imported(name: str, names: dict[str, Path]) -> set[str]:
    """The modules of `names` that a module imports."""
    found: set[str] = set()
    package = name if names[name].stem == "__init__" else name.rpartition(".")[0]
    for node, alias in imports(names[name]):
        if isinstance(node, ast.Import):
            found.add(alias.name)
            continue
        base = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
        source = ".".join([*base, *([node.module] if node.module else [])])
        part = f"{source}.{alias.name}"
        found.add(part if part in names else source)
    return {each for each in found if each in names and each != name}


def circle(*packages: Path) -> list[str]:
    """Modules that import each other in a circle; none where there is no circle."""
    names = modules(*packages)
    try:
        TopologicalSorter({name: imported(name, names) for name in names}).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert len(PACKAGES) > 1 and circle(*PACKAGES) == []


# A reader who follows types goes round a circle that runs no code. Six were hidden so, one of eight
# modules.
@pytest.mark.parametrize(
    "text",
    [
        "from .b import f",
        "def g():\n    from . import b",
        "import package.b",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .b import f",
    ],
)
def test_a_circle_is_found_wherever_its_imports_stand(text: str, tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "a.py").write_text(text)
    (package / "b.py").write_text("import os")
    assert circle(package) == []
    (package / "b.py").write_text("from package import a")
    assert set(circle(package)) == {"package.a", "package.b"}


def private(name: str, names: dict[str, Path]) -> set[str]:
    """What a module uses of another folder that begins with an underscore: what it imports, and
    attributes of modules that it has imported.
    """
    folder = _folder(name, names)
    found, of_modules = set(), {}
    for node, alias in imports(names[name]):
        path = alias.name
        if isinstance(node, ast.ImportFrom):
            base = ".".join(folder.split(".")[: len(folder.split(".")) + 1 - node.level])
            source = [base] if node.level else []
            path = ".".join([*source, *([node.module] if node.module else []), alias.name])
        of_modules[alias.asname or alias.name] = path
        found.add(path)
    for node in nodes(names[name].read_text()):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            path = of_modules.get(node.value.id, "")
            if path in names:
                found.add(f"{path}.{node.attr}")
    own = {each for each in found if each.split(".")[0] in names}
    return {each for each in own if _owner(each, names) not in (None, folder)}


def _folder(name: str, names: dict[str, Path]) -> str:
    return name if names[name].stem == "__init__" else name.rpartition(".")[0]


def _owner(path: str, names: dict[str, Path]) -> str | None:
    """The folder in which what a path names is private; None: it is not."""
    parts = path.split(".")
    for number, part in enumerate(parts):
        if part.startswith("_") and not part.endswith("__"):
            return _folder(".".join(parts[:number]), names)
    return None


# vLLM's adapter called the library's raw functions, and thirty private modules were imported across
# folders: nothing of the package could change without looking into every adapter.
def test_no_folder_uses_what_is_private_in_another() -> None:
    names = modules(*PACKAGES)
    crossing = {name: found for name in names if (found := private(name, names))}
    assert crossing == {}


@pytest.mark.parametrize(
    "text",
    [
        "from .._a import f",
        "from .. import _a",
        "import package._a",
        "from package.other._b import f",
        "from ..other import _f",
        "from .. import other\nother._f()",
        "def g():\n    from ..other._b import f",
    ],
)
def test_what_is_private_in_another_folder_is_found(text: str, tmp_path: Path) -> None:
    package = tmp_path / "package"
    for each in (package, package / "adapter", package / "other"):
        each.mkdir()
        (each / "__init__.py").write_text("from ._own import f")
        (each / "_own.py").write_text("")
    (package / "_a.py").write_text("")
    (package / "other" / "_b.py").write_text("")
    module = package / "adapter" / "_c.py"
    module.write_text("from . import _own\nfrom ..other import f\n_own._g()\n")
    names = modules(package)
    assert not any(private(name, names) for name in names)
    module.write_text(text)
    assert private("package.adapter._c", names)


def test_no_module_is_longer_than_can_be_read_at_once() -> None:
    long = {name: len(file.read_text().splitlines()) for name, file in modules(*PACKAGES).items()}
    assert {name: lines for name, lines in long.items() if lines > LINES} == {}

"""The package's own modules: none imports itself through others, and none is too long to read."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
import routecap

PACKAGE = Path(routecap.__file__).parent
LINES = 700


def modules(package: Path) -> dict[str, Path]:
    """Each module by its name; of what SWIG makes, the types."""
    found = {}
    for file in [*package.rglob("*.py"), *package.rglob("*.pyi")]:
        parts = file.relative_to(package.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def imports(file: Path) -> Iterator[tuple[ast.Import | ast.ImportFrom, ast.alias]]:
    """Every import of a module: at its top, in a function, and for annotations alone."""
    for node in ast.walk(ast.parse(file.read_text())):
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


def circle(package: Path) -> list[str]:
    """Modules that import each other in a circle; none where there is no circle."""
    names = modules(package)
    try:
        TopologicalSorter({name: imported(name, names) for name in names}).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circle(PACKAGE) == []


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


def test_no_module_is_longer_than_can_be_read_at_once() -> None:
    long = {name: len(file.read_text().splitlines()) for name, file in modules(PACKAGE).items()}
    assert {name: lines for name, lines in long.items() if lines > LINES} == {}

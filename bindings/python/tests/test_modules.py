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


def run_imports(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Imports that run, of the module itself or of a function: not those for annotations alone."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            for other in node.orelse:
                yield from run_imports(other)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        else:
            yield from run_imports(node)


def imported(name: str, names: dict[str, Path]) -> set[str]:
    """The modules of `names` that a module imports."""
    found: set[str] = set()
    package = name if names[name].name == "__init__.py" else name.rpartition(".")[0]
    for each in run_imports(ast.parse(names[name].read_text())):
        if isinstance(each, ast.Import):
            found |= {alias.name for alias in each.names}
            continue
        base = package.split(".")[: len(package.split(".")) + 1 - each.level] if each.level else []
        source = ".".join([*base, *([each.module] if each.module else [])])
        for alias in each.names:
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


@pytest.mark.parametrize(
    "text", ["from .b import f", "def g():\n    from . import b", "import package.b"]
)
def test_a_circle_is_found_also_where_a_function_closes_it(text: str, tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "a.py").write_text(text)
    (package / "b.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import package.a"
    )
    assert circle(package) == []
    (package / "b.py").write_text("from package import a")
    assert set(circle(package)) == {"package.a", "package.b"}


def test_no_module_is_longer_than_can_be_read_at_once() -> None:
    long = {name: len(file.read_text().splitlines()) for name, file in modules(PACKAGE).items()}
    assert {name: lines for name, lines in long.items() if lines > LINES} == {}

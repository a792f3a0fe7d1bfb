"""Whether a version of vLLM has the places that a module of ours hooks or reads.

Each module of a version has a table of them, PLACES. A line of it names a module of vLLM, and below
it, further in, stands one place a line:

    WorkerWrapperBase.init_worker(self, all_kwargs)     a method with these parameters, in this order
    OutputProcessor.process_outputs(self, outputs, ...) and perhaps more of them, which are passed on
    SchedulerOutput: finished_req_ids preempted_req_ids a class with these attributes
    CompletionResponse CompletionResponseChoice         names that the module has, or imports

A line may end in "since 0.28" or "until 0.24": the first and the last release that have the place,
or all places of the module.

vLLM's sources are read and not imported: an import takes seconds, and may start a device.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple


class Fit(NamedTuple):
    """A place, as the table has it, and why it does not fit; "" if it does."""

    place: str
    why: str


def look(table: str, folder: Path, release: tuple[int, ...]) -> list[Fit]:
    """Look for the places of a table in the package `vllm`, whose sources are in `folder`."""
    found, module, tree = [], "", None
    for line in filter(str.strip, re.sub(r",\n +", ", ", table).splitlines()):
        line, has = _has(line, release)
        if not line.startswith(" "):
            module, tree = (line, _read(folder, line)) if has else ("", None)
            continue
        if not module or not has:
            continue
        place = line.strip()
        why = "there is no such module" if tree is None else "".join(_differs(place, tree))
        found.append(Fit(f"{module} {place}", why))
    return found


def _has(line: str, release: tuple[int, ...]) -> tuple[str, bool]:
    """A line without its last words, and whether these say that a release has the place."""
    line, *words = re.split(r" (since|until) (?=[\d.]+$)", line)
    if not words:
        return line, True
    end = tuple(map(int, words[1].split(".")))
    return line, release >= end if words[0] == "since" else release[: len(end)] <= end


def _read(folder: Path, module: str) -> ast.Module | None:
    path = folder.joinpath(*module.split(".")[1:])
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.is_file():
            return ast.parse(file.read_text("utf-8"))
    return None


def _differs(place: str, tree: ast.Module) -> Iterator[str]:
    """Say why a place does not fit, if it does not."""
    name, colon, attributes = place.partition(":")
    if colon:
        owner = _defined(tree, name)
        missing = set(attributes.split()) - set(_attributes(owner)) if owner else ()
        if owner is None:
            yield "there is no such class"
        elif missing:
            yield f"it has no {', '.join(sorted(missing))}"
        return
    if "(" not in place:
        missing = set(place.split()) - set(_names(tree))
        if missing:
            yield f"it has no {', '.join(sorted(missing))}"
        return
    name, _, wanted = place.partition("(")
    function: ast.AST | None = tree
    for part in name.split("."):
        function = function and _defined(function, part)
    if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
        yield "there is no such function"
        return
    parameters = ", ".join(_parameters(function.args))
    wanted = wanted.removesuffix(")")
    more = wanted.endswith("...")
    wanted = wanted.removesuffix("...").removesuffix(", ")
    if parameters != wanted and not (more and f"{parameters}, ".startswith(f"{wanted}, ")):
        yield f"it is ({parameters})"


def _defined(owner: ast.AST, name: str) -> ast.AST | None:
    """The class or function of this name in a module or class, also below an `if` there."""
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [each for each in _statements(owner) if isinstance(each, kinds) and each.name == name]
    return found[-1] if found else None


def _statements(owner: ast.AST) -> Iterator[ast.stmt]:
    for each in getattr(owner, "body", ()):
        yield each
        if isinstance(each, (ast.If, ast.Try)):
            yield from _statements(each)


def _names(module: ast.Module) -> Iterator[str]:
    """What a module defines or imports, also below an `if` there."""
    for each in _statements(module):
        if isinstance(each, (ast.Import, ast.ImportFrom)):
            yield from (name.asname or name.name for name in each.names)
        elif isinstance(each, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield each.name
        elif isinstance(each, (ast.Assign, ast.AnnAssign)):
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            yield from (name.id for name in targets if isinstance(name, ast.Name))


def _attributes(owner: ast.AST) -> Iterator[str]:
    """What a class defines: in its body, or of `self` in a method."""
    for each in ast.walk(owner):
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield each.name
        elif isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            yield each.id
        elif isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store):
            yield each.attr


def _parameters(arguments: ast.arguments) -> Iterator[str]:
    for each in arguments.posonlyargs:
        yield each.arg
    if arguments.posonlyargs:
        yield "/"
    for each in arguments.args:
        yield each.arg
    if arguments.vararg:
        yield f"*{arguments.vararg.arg}"
    elif arguments.kwonlyargs:
        yield "*"
    for each in arguments.kwonlyargs:
        yield each.arg
    if arguments.kwarg:
        yield f"**{arguments.kwarg.arg}"


def places_of(*modules: Any) -> str:
    """The tables of modules that several versions share."""
    return "".join(each.PLACES for each in modules)

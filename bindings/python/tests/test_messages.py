"""Messages say what to do: all that this package raises, warns of or logs as a failure are looked
at, not only those that a test happens to provoke."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import routecap

PACKAGE = Path(routecap.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
WHAT_TO_DO = re.compile(
    r"\b(give|make|take|name|open|wait|leave|copy|convert|import|install|write|draw|reshape|record"
    r"|append|begin|count|report|finish|unset|call|bind|attach|detach|look|move|search|serve|set"
    r"|pip install|is expected|is one of|must be|must have|come from|are made by"
    r"|there are|it has)\b",
    re.IGNORECASE,
)


@cache
def messages(path: Path) -> list[tuple[int, str]]:
    return list(messages_of(path))


def messages_of(path: Path) -> Iterator[tuple[int, str]]:
    """The texts of what a module raises, warns of or logs, with `{}` for what is filled in."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        called = getattr(node.func, "id", "") or getattr(node.func, "attr", "")
        if called in ("NotCheckedError", "CannotError"):  # a finding: why a check was not made
            continue
        told = called in ("warn", "warning") or ast.unparse(node.func) == "logger.error"
        if told or called == "error" or called.endswith("Error"):
            text = node.args[0 if told else -1]
            parts = text.values if isinstance(text, ast.JoinedStr) else [text]
            if any(isinstance(part, ast.Constant) for part in parts):
                found = "".join(
                    str(part.value) if isinstance(part, ast.Constant) else "{}" for part in parts
                )
                yield node.lineno, found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_message_says_what_to_do(path: Path) -> None:
    """Those that pass on another's text, of a file for instance, add no more than where it was, and
    end with it."""
    silent = [
        f"{path.name}:{line}: {text}"
        for line, text in messages(path)
        if re.search(r"[a-z]{3}", text)
        and not WHAT_TO_DO.search(text)
        and not text.endswith(": %s")
    ]
    assert not silent


def test_the_messages_are_found() -> None:
    assert sum(len(messages(path)) for path in MODULES) > 100

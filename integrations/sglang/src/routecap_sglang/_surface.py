"""What of SGLang a design is written for. A name that is not found is refused, and nothing else is
taken in its place."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Iterator, Mapping
from typing import Any

Names = Mapping[str, tuple[str, ...]]


def check(functions: Names, fields: Names) -> None:
    """See `misfits`.

    Raises:
        LookupError: One does not fit.
    """
    for misfit in _functions(functions):
        raise LookupError(misfit)
    for misfit in _fields(fields):
        raise LookupError(misfit)


def misfits(functions: Names, fields: Names) -> list[str]:
    """What is not there, or has others, with what there is.

    Args:
        functions: By their whole names, and with what parameters each begins.
        fields: Classes by their whole names, and fields that each declares.
    """
    return [*_functions(functions), *_fields(fields)]


def _functions(known: Names) -> Iterator[str]:
    for name, parameters in known.items():
        try:
            function = _find(name)
        except LookupError as error:
            yield str(error)
            continue
        found = [each for each in inspect.signature(function).parameters if each != "self"]
        if tuple(found[: len(parameters)]) != parameters:
            yield (
                f"{name} has the parameters {_list(found)}, the first of which must be"
                f" {_list(parameters)}"
            )


def _fields(known: Names) -> Iterator[str]:
    for name, fields in known.items():
        try:
            owner = _find(name)
        except LookupError as error:
            yield str(error)
            continue
        found = {key for each in owner.__mro__ for key in each.__dict__.get("__annotations__", ())}
        if missing := [each for each in fields if each not in found]:
            yield f"{name} must have {_list(missing)}, and has {_list(sorted(found))}"


def _find(name: str) -> Any:
    owner, _, last = name.rpartition(".")
    try:
        return getattr(pkgutil.resolve_name(owner), last)
    except (ImportError, AttributeError) as error:
        raise LookupError(f"there must be {name}: {error}") from error


def _list(names: Any) -> str:
    return ", ".join(names) or "nothing"

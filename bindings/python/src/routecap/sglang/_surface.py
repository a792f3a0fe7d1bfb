"""What of SGLang a face is written for. A name that is not found is refused, and nothing else is
taken in its place."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Mapping
from typing import Any


def check_functions(known: Mapping[str, tuple[str, ...]]) -> None:
    """known: functions by their whole names, and with what parameters each begins.

    Raises:
        LookupError: One is not there, or has others; the text names it, and what it has.
    """
    for name, parameters in known.items():
        function = _find(name)
        found = [each for each in inspect.signature(function).parameters if each != "self"]
        if tuple(found[: len(parameters)]) != parameters:
            raise LookupError(
                f"{name} has the parameters {_list(found)}, the first of which must be"
                f" {_list(parameters)}"
            )


def check_fields(known: Mapping[str, tuple[str, ...]]) -> None:
    """known: classes by their whole names, and fields that each declares.

    Raises:
        LookupError: A class or a field is not there; the text names it, and what there is.
    """
    for name, fields in known.items():
        found = {
            key for each in _find(name).__mro__ for key in each.__dict__.get("__annotations__", ())
        }
        if missing := [each for each in fields if each not in found]:
            raise LookupError(f"{name} must have {_list(missing)}, and has {_list(sorted(found))}")


def _find(name: str) -> Any:
    owner, _, last = name.rpartition(".")
    try:
        return getattr(pkgutil.resolve_name(owner), last)
    except (ImportError, AttributeError) as error:
        raise LookupError(f"there must be {name}: {error}") from error


def _list(names: Any) -> str:
    return ", ".join(names) or "nothing"

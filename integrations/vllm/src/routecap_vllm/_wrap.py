"""Replacing a function or method of an engine by one that calls it, once."""

from __future__ import annotations

import functools
from typing import Any


def once(owner: object, name: str) -> Any:
    """A function or method of the engine that is to be wrapped; None if it is already."""
    function = getattr(owner, name)
    return None if getattr(function, "_routecap", False) else function


def replace(owner: object, name: str, function: Any, replacement: Any) -> None:
    functools.update_wrapper(replacement, function)
    replacement._routecap = True
    setattr(owner, name, replacement)

"""The text of routecap.h in the documentation of what calls it."""

import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar

from ._library import raw

_Function = TypeVar("_Function", bound=Callable[..., Any])


def documented(*names: str) -> Callable[[_Function], _Function]:
    """Append what the header says of the C functions `names` to a function's docstring: shapes,
    units, threads and every status.
    """

    def append(function: _Function) -> _Function:
        parts = [inspect.cleandoc(function.__doc__ or "")]
        for name in names:
            text = inspect.cleandoc(getattr(raw, name).__doc__ or "")
            text = re.sub(r"^:r?type.*\n?", "", text, flags=re.MULTILINE).strip()
            parts.append(f"In C, {name}:\n\n{text}")
        function.__doc__ = "\n\n".join(parts)
        return function

    return append

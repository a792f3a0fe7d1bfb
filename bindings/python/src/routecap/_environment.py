"""Options of an adapter in the environment of an engine's processes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

_FLAGS = {"1": True, "true": True, "yes": True, "on": True}
_FLAGS |= {"0": False, "false": False, "no": False, "off": False}


def option_values(options: type, prefix: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a dataclass that the environment has, under the prefix and the field's name in
    capitals. A field whose default is neither a flag, a number nor a text is not looked for.

    Raises:
        ValueError: A text is not of its field's type.
    """
    found: dict[str, Any] = {}
    for field in dataclasses.fields(options):
        name, kind = f"{prefix}{field.name.upper()}", type(field.default)
        if name not in environment or kind not in (bool, int, str):
            continue
        text = environment[name]
        try:
            found[field.name] = (
                _FLAGS[text.lower()] if kind is bool else int(text, 0) if kind is int else text
            )
        except (KeyError, ValueError):
            wanted = "1 or 0" if kind is bool else "a number"
            raise ValueError(f"{name} is {text!r}: it must be {wanted}") from None
    return found


def expect_port(port: int) -> None:
    """Raises: ValueError: It is neither a port nor 0."""
    if not 0 <= port <= 65535:
        raise ValueError(f"metrics_port is {port}: it must be a port, or 0 for none")

"""What another project calls things. A name that is not found is refused: it may be called otherwise
now, and what it says must not be taken for unsaid."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

_IN_LAYER = re.compile(r"^(.*?\.)?layers\.(\d+)\.")


def expect(thing: object, what: str, names: Sequence[str], known: str) -> None:
    """Raises:
    ValueError: A thing lacks an attribute; the text says which, and what versions are known.
    """
    if missing := [name for name in names if not hasattr(thing, name)]:
        raise ValueError(
            f"{what} ({type(thing).__name__}) has no {', '.join(missing)}: routecap knows {known}."
            " Install that, or report this version"
        )


def expect_parameters(function: Callable[..., Any], names: Sequence[str], known: str) -> None:
    """Raises:
    ValueError: A function does not begin with these parameters; the text says what it has.
    """
    found = [each for each in inspect.signature(function).parameters if each != "self"]
    if found[: len(names)] != list(names):
        raise ValueError(
            f"{function.__qualname__}({', '.join(found)}) does not begin with {', '.join(names)}:"
            f" routecap knows {known}. Install that, or report this version"
        )


def layers_of(names: Sequence[str]) -> list[int]:
    """The decoder's layers in which modules of one model are: 3 of "model.layers.3.mlp.gate".

    Raises:
        ValueError: One is in no numbered layer, two are in one, or they are in several lists of
            layers, of which one alone can be the decoder's.
    """
    found: dict[int, str] = {}
    stem: str | None = ""
    for name in names:
        match = _IN_LAYER.match(name)
        if match is None:
            raise ValueError(f"{name} is in none of a decoder's layers.N: report the model")
        if not found:
            stem = match[1]
        elif stem != match[1]:
            raise ValueError(
                f"{names[0]} and {name} are in different lists of layers, of which one alone is the"
                " decoder's: report the model"
            )
        if int(match[2]) in found:
            raise ValueError(
                f"{found[int(match[2])]} and {name} are in one layer: report the model"
            )
        found[int(match[2])] = name
    return list(found)

"""The names by which transformers' functions have what a capture reads of them.

A name that is not found is no answer: it may have been renamed, as `past_key_values` was. What reads
an argument by its name asks the function's signature first, and says so where it has none of the
names that are known.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from torch import nn

from ._versions import KNOWN

CACHE = ("cache", "past_key_values", "cache_params")
"""Of a model's cache: from transformers 5.24 on, before that, and before that in models with a state
alone. Where a function has several, the first is the one that it reads.
"""
TOKENS = ("input_ids", "inputs_embeds")
_PLACES = ("attention_mask", "position_ids")
"""By which padding is known, and where packed sequences begin."""


class Unread(ValueError):
    """A call does not say what is read of it."""


def parameters_of(module: nn.Module) -> Mapping[str, inspect.Parameter]:
    """Those of a module's forward, in their order."""
    module = getattr(module, "_orig_mod", module)  # what torch.compile returned passes all on
    own = vars(module).get("forward")
    return _of_method(type(module).forward) if own is None else inspect.signature(own).parameters


@cache
def _of_method(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    _, *names = inspect.signature(function).parameters.values()
    return {each.name: each for each in names}


def cache_in(arguments: Mapping[str, Any], names: Mapping[str, Any] | None = None) -> Any:
    """The cache among the arguments of a function; None if it was given none.

    names: The function's parameters. One that has the newest name takes the others for it; one that
    has not ignores what it does not know, and computes without that cache.
    """
    known = CACHE if names is None or CACHE[0] in names else [n for n in CACHE if n in names]
    return next((arguments[name] for name in known if arguments.get(name) is not None), None)


def call_of(owner: object, names: Mapping[str, Any], function: str = "forward") -> str:
    """A function as a message shows it: "Qwen3MoeModel.forward(input_ids, attention_mask)"."""
    return f"{type(owner).__name__}.{function}({', '.join(names)})"


def lacking(module: nn.Module, names: Mapping[str, Any]) -> str:
    """What a module's forward has no parameter for, as a message says it; empty if it has all."""
    if missing := [name for name in _PLACES if name not in names]:
        return f"{call_of(module, names)} has no parameter {missing[0]}"
    if not names.keys() & set(CACHE):
        return f"{call_of(module, names)} has none of {', '.join(CACHE)}"
    return ""


def tokens_in(module: nn.Module, names: Mapping[str, Any], arguments: Mapping[str, Any]) -> Any:
    """The tokens or embeddings that a module's forward is given."""
    tokens = next((arguments[name] for name in TOKENS if arguments.get(name) is not None), None)
    if tokens is None:
        raise Unread(
            f"{call_of(module, names)} is given none of {', '.join(TOKENS)}, but"
            f" {', '.join(arguments) or 'nothing'}: nothing says which rows it has. Give it tokens or"
            " embeddings by these names"
        )
    return tokens


def expect_known_caches(
    module: nn.Module, names: Mapping[str, Any], arguments: Mapping[str, Any]
) -> None:
    """No argument of another name may be a cache."""
    for name, value in arguments.items():
        if name not in CACHE and hasattr(value, "get_seq_length"):
            raise ValueError(
                f"{call_of(module, names)} is given a cache as {name}: known are"
                f" {', '.join(CACHE)}. Give it by one of these names"
            )


def expect(owner: object, what: Iterable[str]) -> None:
    """An object of transformers has these attributes."""
    for name in what:
        if not hasattr(owner, name):
            kind = getattr(owner, "__name__", type(owner).__name__)
            raise ValueError(
                f"{kind} has no {name}: this version of transformers calls it otherwise, and what"
                " routecap would capture could be of other tokens. Give a model of a version that"
                f" it knows ({KNOWN})"
            )


def expect_parameters(
    function: Callable[..., Any], each: Iterable[str], any_of: Sequence[str] = ()
) -> None:
    """A function of transformers has these parameters."""
    names = inspect.signature(function).parameters
    missing = [name for name in each if name not in names]
    if any_of and not names.keys() & set(any_of):
        missing.append(", nor ".join(any_of))
    if missing:
        raise ValueError(
            f"{function.__qualname__}({', '.join(names)}) has no parameter {missing[0]}: this"
            " version of transformers calls it otherwise. Give a model of a version that routecap"
            f" knows ({KNOWN})"
        )


def of_transformers(module: nn.Module) -> bool:
    """Whether a module is of transformers, or of a class that descends from one of its modules."""
    modules = [each for each in type(module).__mro__ if issubclass(each, nn.Module)]
    return any(each.__module__.partition(".")[0] == "transformers" for each in modules)

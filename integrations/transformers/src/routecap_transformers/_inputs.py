"""What a call of a model or of its decoder says of the sequences whose rows it computes."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from ._names import (
    Unread,
    cache_in,
    call_of,
    expect,
    expect_known_caches,
    lacking,
    parameters_of,
    tokens_in,
)


class Inputs(NamedTuple):
    """What a model's forward is given that says whose its rows are."""

    batch: int
    length: int
    mask: Any
    position_ids: torch.Tensor | None
    starts: torch.Tensor | None
    """[sequences + 1] where each sequence of a packed batch begins, and the end of the last."""
    cache: Any
    paged: bool
    """Whether it is a step of continuous batching."""
    device: torch.device
    lacking: str
    """What the function has no parameter for, as a message says it; empty if it has all."""

    @property
    def rows(self) -> int:
        return self.batch * self.length


def inputs_of(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Inputs | None:
    """Of a call of a model or decoder; None if it is no call that the function takes.

    Raises:
        Unread: It has neither tokens nor embeddings, or the signature does not say which arguments
            are these.
        ValueError: An argument is a cache, and not by its name.
    """
    names = parameters_of(module)
    if args:
        try:
            given = inspect.Signature(list(names.values())).bind_partial(*args, **kwargs)
        except TypeError:  # as the call itself will say
            return None
        kwargs = {}
        for name, value in given.arguments.items():
            kind = names[name].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                raise Unread(f"{call_of(module, names)} does not say what its arguments are")
            kwargs.update(value if kind is inspect.Parameter.VAR_KEYWORD else {name: value})
    tokens = tokens_in(module, names, kwargs)
    expect_known_caches(module, names, kwargs)
    position_ids = kwargs.get("position_ids")
    if position_ids is not None and position_ids.ndim != 2:  # one for each axis of an image
        # The first of four is the text's, by which a model tells packed sequences apart.
        text = position_ids.ndim == 3 and len(position_ids) == 4
        position_ids = position_ids[0] if text else None
    batch, length = tokens.shape[:2]
    return Inputs(
        batch,
        length,
        kwargs.get("attention_mask"),
        position_ids,
        kwargs.get("cu_seq_lens_q"),
        cache_in(kwargs, names),
        kwargs.get("read_index") is not None,
        tokens.device,
        lacking(module, names),
    )


def cached_columns(cache: Any) -> int | None:
    """How many columns a cache says it has; None if it cannot tell. May wait for the device."""
    expect(cache, ("get_seq_length",))
    try:
        return int(cache.get_seq_length())
    except (AttributeError, ValueError):  # nothing but layers with a state of constant size
        return None


def runs_of(inputs: Inputs) -> list[tuple[int, int]] | None:
    """(first row, rows) of each sequence of a packed batch; None if it is not packed.

    Waits for the device if that has the numbers.
    """
    if inputs.starts is not None and inputs.batch == 1:
        starts: list[int] = inputs.starts.tolist()
        return [(begin, end - begin) for begin, end in zip(starts, starts[1:]) if end > begin]
    if inputs.mask is not None or inputs.position_ids is None or inputs.length < 2:
        return None
    jumps = (inputs.position_ids.diff(dim=1) != 1).expand(inputs.batch, -1).cpu().numpy()
    if not jumps.any():
        return None
    begins = np.flatnonzero(np.hstack([np.ones((inputs.batch, 1), bool), jumps]))
    return list(zip(begins.tolist(), np.diff(begins, append=inputs.rows).tolist()))

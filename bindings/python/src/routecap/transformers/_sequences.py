"""Whose the rows of a forward pass are: from a model's inputs to spans.

A sequence is a row of a batch, or a run of a packed one. The position of a token in its sequence is
the number of tokens before it that are not padding, whatever position_ids say. Where an attention
mask says which these are, positions are computed on its device and read there by the library:
nothing waits for it.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

import routecap

Spans = NDArray[np.void]


class Plan(NamedTuple):
    """What is to be said of a forward pass once it has run."""

    rows: int | None
    """Of the forward pass; None if it may have more than are known."""
    spans: Spans
    positions: torch.Tensor | None
    begun: Batch | None = None
    """Whose sequences begin with it: they are none if it fails."""


class Batch:
    """Sequences that are computed together, one for each row."""

    def __init__(self, requests: NDArray[np.uint64], name: str | None = None) -> None:
        self.requests = requests
        self.name = name
        """Of a request of continuous batching, which is a batch of its own."""
        self.columns = 0
        """Of each row, that were forwarded or cached, padding included."""
        self.mask: torch.Tensor | None = None
        """[rows, columns or more] as the last forward pass had it; None: there is no padding."""
        self.last: torch.Tensor | None = None
        """[rows, 1] the position of the last token of each that is no padding, where a mask told
        positions.
        """
        self.cache: weakref.ref[Any] | None = None
        self.lengths: Callable[[], list[int]] | None = None
        """How many rows each sequence has, where that is known otherwise than by what was
        forwarded.
        """
        self._spans: Spans | None = None

    def plan(
        self, length: int, past: int, mask: torch.Tensor | None, *, one_more: bool = False
    ) -> Plan:
        """For a forward pass of `length` columns after `past` of them.

        mask: [rows, past + length or more], as the model had it or None. one_more: it has one
        column more than the last time, and that is no padding.
        """
        spans = self._filled(length)
        if mask is None:
            spans["position"], spans["position_end"], spans["flags"] = past, 0, 0
            positions = None
        else:
            if mask.shape[0] != len(self.requests) or mask.shape[1] < past + length:
                raise ValueError(
                    f"attention_mask has shape {tuple(mask.shape)},"
                    f" {(len(self.requests), past + length)} is expected: a column for each token,"
                    " those of the cache too"
                )
            if one_more and self.last is not None:
                positions = self.last = self.last + 1
            else:
                live = mask[:, : past + length] != 0
                counts = live.cumsum(1) - 1
                positions, self.last = counts.where(live, -1)[:, past:].contiguous(), counts[:, -1:]
            spans["position"], spans["position_end"], spans["flags"] = (
                0,
                past + length,
                routecap.SpanFlag.DEVICE_POSITIONS,
            )
        self.columns, self.mask = past + length, mask
        return Plan(len(spans) * length, spans, positions)

    def placed(self, positions: torch.Tensor) -> Plan:
        """For a forward pass whose positions [rows, length] are given, negative for rows that are
        nobody's.
        """
        if positions.ndim != 2 or positions.shape[0] != len(self.requests):
            raise ValueError(
                f"positions has shape {tuple(positions.shape)}, [{len(self.requests)}, length] is"
                " expected: a row for each sequence"
            )
        spans = self._filled(positions.shape[1])
        spans["position"], spans["position_end"], spans["flags"] = (
            0,
            routecap.MAX_POSITION,
            routecap.SpanFlag.DEVICE_POSITIONS,
        )
        self.columns, self.mask, self.last = -1, None, None
        return Plan(positions.numel(), spans, positions)

    def _filled(self, length: int) -> Spans:
        spans = self._spans
        if spans is None or len(spans) != len(self.requests):
            spans = self._spans = routecap.spans(len(self.requests))
        spans["request"], spans["rows"] = self.requests, length
        spans["sink_row"] = np.arange(len(self.requests)) * length
        return spans

    def live(self, columns: int) -> list[int]:
        """How many of each row's first columns are no padding."""
        return live(self.mask, columns, len(self.requests))


def live(mask: torch.Tensor | None, columns: int, rows: int) -> list[int]:
    """How many of each row's first columns are no padding.

    Waits for the device if there is a mask.
    """
    if mask is None:
        return [columns] * rows
    counts: list[int] = (mask[:, :columns] != 0).sum(1).tolist()
    return counts


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

    @property
    def rows(self) -> int:
        return self.batch * self.length


def inputs_of(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Inputs | None:
    """Of a call of a model or decoder; None if it has neither tokens nor embeddings."""
    if args:
        names = [
            name
            for name, each in inspect.signature(module.forward).parameters.items()
            if each.kind is each.POSITIONAL_OR_KEYWORD
        ]
        kwargs = {**dict(zip(names, args)), **kwargs}
    tokens = kwargs.get("input_ids")
    if tokens is None:
        tokens = kwargs.get("inputs_embeds")
    if tokens is None:
        return None
    cache = kwargs.get("past_key_values")
    if cache is None:
        cache = kwargs.get("cache_params")
    position_ids = kwargs.get("position_ids")
    if (
        position_ids is not None and position_ids.ndim != 2
    ):  # a position for each of several axes of an image
        position_ids = None
    batch, length = tokens.shape[:2]
    return Inputs(
        batch,
        length,
        kwargs.get("attention_mask"),
        position_ids,
        kwargs.get("cu_seq_lens_q"),
        cache,
        "read_index" in kwargs,
    )


def cached_columns(cache: Any, tracked: int | None = None) -> int | None:
    """How many columns a cache has; `tracked` if it cannot tell, or only by waiting for the device,
    which is not done where that is given.
    """
    try:
        columns = cache.get_seq_length()
    except (AttributeError, ValueError):  # nothing but layers with a state of constant size
        return tracked
    if isinstance(columns, torch.Tensor) and columns.is_cuda and tracked is not None:  # StaticCache
        return tracked
    return int(columns)


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


def plan_of_runs(
    requests: NDArray[np.uint64],
    runs: Sequence[tuple[int, int]],
    positions: Sequence[int] | int,
    rows: int | None,
) -> Plan:
    """For a packed batch: a request for each run, and the position of its first row."""
    spans = routecap.spans(len(runs))
    spans["request"] = requests
    spans["sink_row"], spans["rows"] = np.array(runs, np.int64).reshape(-1, 2).T
    spans["position"] = positions
    return Plan(rows, spans, None)

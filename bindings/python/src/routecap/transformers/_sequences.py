"""Whose the rows of a forward pass are: from a model's inputs to spans.

A sequence is a row of a batch, or a run of a packed one. The position of a token in its sequence is
the number of tokens before it that are not padding, whatever position_ids say. Where an attention
mask says which these are, positions are computed on its device and read there by the library:
nothing waits for it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

import routecap

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

if TYPE_CHECKING:
    from ._ledger import Ledger
    from ._prefixes import Published

Spans = NDArray[np.void]

_ALL = routecap.MAX_POSITION
"""Rows that are kept where all are."""


@dataclass(eq=False)
class Plan:
    """What is to be said of a forward pass once it has run."""

    rows: int | None
    """Of the forward pass; None if it may have more than are known."""
    spans: Spans
    positions: torch.Tensor | None
    batch: Batch | None = None
    """Which has so many columns then, of which the cache had `past` before."""
    columns: int = 0
    past: int = 0
    cache: Any = None
    begun: Batch | None = None
    """Whose sequences begin with it: they are none if it fails."""


class Line:
    """Columns of a batch, from its beginning on. It only grows: where a batch is cut or its rows
    are reordered, it goes on in a new one.
    """

    def __init__(self, columns: int = 0) -> None:
        self.columns = columns
        """Of each row, that were forwarded or cached, padding included."""
        self.published: Published | None = None


class Batch:
    """Sequences that are computed together, one for each row."""

    def __init__(self, requests: NDArray[np.uint64], name: str | None = None) -> None:
        self.requests = requests
        self.name = name
        """Of a request of continuous batching, which is a batch of its own."""
        self.state: Any = None
        """Of that request, in transformers."""
        self.line: Line | None = Line()
        """None: positions are said otherwise than by columns."""
        self.ledgers: list[Ledger] = []
        """Of the cache that it goes on with."""
        self.reach = 0
        """Columns up to the last one that was captured."""
        self.lengths: Callable[[], Sequence[int]] | None = None
        """How many rows each sequence has, where that is known otherwise than by what was
        forwarded.
        """
        self._places: torch.Tensor | None = None
        """[rows, columns] the position of the token in each of the first columns, -1 of padding;
        behind them is none. None: there is no padding at all.
        """
        self._unknown = 0
        """Columns of a cache that others filled, at its beginning: which of them are padding was
        not seen.
        """
        self._kept: torch.Tensor | None = None
        """[rows] how many rows of each are at their position still. A mask that hides or shows
        tokens before others moves these, and what was captured of them stays where it was."""
        self._spans: Spans | None = None

    def begin(self, columns: int, places: torch.Tensor | None = None, known: bool = False) -> None:
        """It begins, or begins again, with so many columns of a cache, whose places may be known."""
        self.line, self.reach = Line(columns), 0
        self._places, self._unknown = places, 0 if known else columns
        self._kept = None

    def plan(self, length: int, mask: torch.Tensor | None) -> Plan:
        """For a forward pass of `length` columns more.

        mask: [rows, columns or more], as the model had it or None.
        """
        assert self.line is not None
        past = self.line.columns
        columns = past + length
        spans = self._filled(length)
        if mask is None and self._places is None and self._kept is None:
            spans["position"], spans["position_end"], spans["flags"] = past, 0, 0
            positions = None
        else:
            if mask is not None and (
                mask.shape[0] != len(self.requests) or mask.shape[1] < columns
            ):
                raise ValueError(
                    f"attention_mask has shape {tuple(mask.shape)},"
                    f" {(len(self.requests), columns)} is expected: a column for each token, those"
                    " of the cache too"
                )
            positions = self._told(mask, past, columns)
            if self._kept is not None:
                positions = positions.where((self._kept == _ALL)[:, None], -1)
            spans["position"], spans["position_end"], spans["flags"] = (
                0,
                columns,
                routecap.SpanFlag.DEVICE_POSITIONS,
            )
        return Plan(len(spans) * length, spans, positions, self, columns, past)

    def _told(self, mask: torch.Tensor | None, past: int, columns: int) -> torch.Tensor:
        """Positions [rows, columns - past] as a mask of all columns has them. Rows before that are
        elsewhere then are no longer kept.
        """
        seen = mask
        if seen is None:
            device = next(each.device for each in (self._places, self._kept) if each is not None)
            seen = torch.ones(len(self.requests), columns, dtype=torch.bool, device=device)
        live = seen[:, :columns] != 0
        places = (live.cumsum(1) - 1).where(live, -1)
        if past > self._unknown:
            now = places[:, self._unknown : past]
            before = self._places_of(past, seen.device).to(seen.device)[:, self._unknown :]
            # Where a token moved to, and from: what stands there now may be of the unknown ones.
            least = now.minimum(before.where(before >= 0, _ALL))
            first = least.where((now >= 0) & (now != before), _ALL).amin(1)
            self._kept = first if self._kept is None else first.minimum(self._kept.to(first.device))
        self._places = places
        return places[:, past:].contiguous()

    def _places_of(self, columns: int, device: torch.device) -> torch.Tensor:
        """[rows, columns] of the first columns."""
        rows, places = len(self.requests), self._places
        known = 0 if places is None else min(places.shape[1], columns)
        if places is not None and known == columns:
            return places[:, :columns]
        more = torch.arange(columns - known, device=device).expand(rows, -1)
        if places is None:
            return more
        places = places[:, :known]
        begin = (places >= 0).sum(1, keepdim=True)
        return torch.cat([places, begin + more], 1)

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
        self.line, self._places, self._kept = None, None, None
        for ledger in self.ledgers:  # a graph's replay has changed the cache, and nothing tells it
            ledger.content = None
        return Plan(positions.numel(), spans, positions)

    def _filled(self, length: int) -> Spans:
        spans = self._spans
        if spans is None or len(spans) != len(self.requests):
            spans = self._spans = routecap.spans(len(self.requests))
        spans["request"], spans["rows"] = self.requests, length
        spans["sink_row"] = np.arange(len(self.requests)) * length
        return spans

    def cut(self, columns: int) -> list[int]:
        """Only its first columns are left; how many rows each sequence has then."""
        rows = self.rows(columns)
        self.line, self.reach = Line(columns), min(self.reach, columns)
        if self._places is not None:
            self._places = self._places[:, :columns]
        self._unknown = min(self._unknown, columns)
        if (lengths := self.lengths) is not None:
            self.lengths = lambda: [min(each) for each in zip(lengths(), rows)]
        return rows

    def select(self, rows: list[int], requests: NDArray[np.uint64]) -> None:
        """Its rows are others now: row i is what row rows[i] was."""
        self.requests = requests
        if self.line is not None:
            self.line = Line(self.line.columns)
        self._places, self._kept = (
            None if each is None else each[rows] for each in (self._places, self._kept)
        )
        if (lengths := self.lengths) is not None:
            self.lengths = lambda: [lengths()[row] for row in rows]

    def rows(self, columns: int) -> list[int]:
        """How many of each row's first columns are no padding. Waits for the device if a mask told
        that.
        """
        if self._places is None:
            return [columns] * len(self.requests)
        counts: list[int] = (self._places_of(columns, self._places.device) >= 0).sum(1).tolist()
        return counts

    def counted(self, columns: int) -> Callable[[], list[int]]:
        """`rows` of these columns, as a mask tells them now."""
        if self._places is None:
            return lambda: [columns] * len(self.requests)
        places = self._places_of(columns, self._places.device)
        return lambda: (places >= 0).sum(1).tolist()

    @property
    def places(self) -> torch.Tensor | None:
        """[rows, columns] of all columns; None if there is no padding."""
        if self._places is None or self.line is None:
            return None
        return self._places_of(self.line.columns, self._places.device)

    @property
    def kept(self) -> list[int] | None:
        """How many rows of each are at their position still; None: all. Waits for the device."""
        kept: list[int] | None = None if self._kept is None else self._kept.tolist()
        return None if kept is None or min(kept, default=_ALL) == _ALL else kept


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

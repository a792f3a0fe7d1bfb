"""Whose the rows of a forward pass are: from a model's inputs to spans.

A sequence is a row of a batch, or a run of a packed one. The position of a token in its sequence is
the number of tokens before it that are not padding, whatever position_ids say. Where an attention
mask says which these are, positions are computed on its device and read there by the library:
nothing waits for it.

A ledger lies in each layer of a cache that the captured model was given: it says whose columns these
are, and by which tensors that is known again.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

import routecap

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


class Published(NamedTuple):
    """What a store has of a line."""

    keys: list[NDArray[np.uint8]]
    """Of each row of the batch, those of its blocks."""
    columns: int
    places: torch.Tensor | None
    """[rows, columns] the position of each column's token, -1 of padding; None: there is none."""


class Line:
    """Columns of a batch, from its beginning on. It only grows: where a batch is cut or its rows
    are reordered, it goes on in a new one.
    """

    def __init__(self, columns: int = 0) -> None:
        self.columns = columns
        """Of each row, that were forwarded or cached, padding included."""
        self.published: Published | None = None


class Content(NamedTuple):
    """The first columns of a line, of some of its rows."""

    line: Line
    columns: int
    rows: tuple[int, ...]


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


# ---- What a layer of a cache holds

LEDGER = "_routecap_ledger"
ROWS = ("reorder_cache", "batch_select_indices", "batch_repeat_interleave")


class Owner:
    """Of ledgers: as much of a capture as they know."""

    def __init__(self) -> None:
        self._generation: Any = None
        """The call of `generate` that runs."""
        self._ledgers: weakref.WeakSet[Ledger] = weakref.WeakSet()

    def _new_ledger(self, layer: object, index: int) -> Ledger:
        ledger = Ledger(weakref.ref(self), layer, index)
        self._ledgers.add(ledger)
        return ledger

    def _copied(self, batch: Batch | None) -> None:
        """A cache is copied that a batch goes on with."""
        raise NotImplementedError


class Ledger:
    """Of one layer, for one capture."""

    def __init__(self, capture: weakref.ref[Owner], layer: object, index: int) -> None:
        self.capture, self.index = capture, index
        self.layer = weakref.ref(layer)
        self.batch: Batch | None = None
        self.content: Content | None = None
        """None: it is not known."""
        self.empty = False
        """The layer has no tensors of its own: it uses another's, or needs none."""
        self.pass_: object = None
        """The forward pass that goes on with the layer, if nothing else has changed it since."""
        self._moving = False
        self._tensors: list[tuple[weakref.ref[torch.Tensor], int | None]] = []
        self._generation: object = None
        """The call of `generate` in which the layer was looked at."""
        self._updates = self._updates_seen = 0

    def look(self) -> None:
        """The layer as it is now has the content."""
        capture = self.capture()
        self._generation = None if capture is None else capture._generation
        self._tensors = [_seen(tensor) for tensor in tensors_of(self.layer())]
        self._updates_seen = self._updates

    @property
    def holds(self) -> bool:
        """Whether the content is known, and the layer's still."""
        return not self.unversioned and self._is_same

    @property
    def unversioned(self) -> bool:
        """Whether the layer has tensors of inference mode, of which nothing tells that they were
        written to. Between the steps of a call of `generate` its own loop alone has them.
        """
        capture = self.capture()
        if self._generation is not None and capture is not None:
            if self._generation is capture._generation:
                return False
        return any(version is None for _, version in self._tensors)

    @property
    def _is_same(self) -> bool:
        if self.content is None or self._updates != self._updates_seen:
            return False
        layer = self.layer()
        if layer is None:  # nobody changes it any more
            return True
        return _are(tensors_of(layer), self._tensors)

    def through(
        self, name: str, method: Callable[..., Any], *args: object, **kwargs: object
    ) -> Any:
        """Call an operation of the layer, and follow what it does."""
        layer = self.layer()
        content, before = self.content if self.holds else None, length_of(layer)
        tensors = [_seen(tensor) for tensor in tensors_of(layer)]
        self.content, self.pass_, self._moving = None, None, True
        try:
            result = method(layer, *args, **kwargs)
        finally:
            self._moving = False
        if content is not None:
            change = next(iter((*args, *kwargs.values())), None)
            moved = not _are(tensors_of(layer), tensors)
            self.content = _after(content, name, change, before, length_of(layer), moved)
            self.look()
        else:  # its rows may be others now, and as many as nobody knows
            self.batch = None
            if name == "reset":  # but nothing stays
                take_out(self)
        return result

    def __deepcopy__(self, memo: dict[int, Any]) -> Ledger | None:
        import copy

        layer, capture = memo.get(id(self.layer())), self.capture()
        if layer is None or capture is None or not self.holds:
            return None
        capture._copied(self.batch)
        ledger = capture._new_ledger(layer, self.index)
        ledger.content, ledger.empty = self.content, self.empty
        ledger._tensors = [_seen(copy.deepcopy(each, memo)) for each in tensors_of(self.layer())]
        return ledger

    def __reduce__(self) -> Any:
        return type(None), ()


def length_of(layer: Any) -> int | None:
    """How many columns a layer says it has, where it can and nothing waits for the device."""
    try:
        columns = layer.get_seq_length()
    except (AttributeError, ValueError):
        return None
    if isinstance(columns, torch.Tensor) and columns.is_cuda:
        return None
    return int(columns)


def take_out(ledger: Ledger) -> None:
    """Leave a layer as if it had never been followed."""
    layer = ledger.layer()
    if layer is not None and vars(layer).get(LEDGER) is ledger:
        del vars(layer)[LEDGER]


def _after(
    content: Content,
    name: str,
    change: Any,
    before: int | None,
    after: int | None,
    moved: bool,
) -> Content | None:
    """What a layer holds after an operation; None if it is not known.

    moved: Whether its tensors are others.
    """
    if name == "reset":  # before 5.18 a layer that grows keeps its columns, with zeros in them
        return content._replace(columns=0) if after in (None, 0) else None
    if name == "crop":
        if before is not None and after is not None:
            removed = before - after
        elif not moved:  # before 5.14 a state is not cropped
            removed = 0
        elif int(change) <= 0:
            removed = -int(change)
        else:
            return None
        columns = content.columns - removed
        return content._replace(columns=columns) if 0 <= columns <= content.columns else None
    if name in ROWS:
        rows = _rows_after(name, change, len(content.rows))
        return content._replace(rows=tuple(content.rows[row] for row in rows))
    return content


def _rows_after(name: str, change: object, rows: int) -> list[int]:
    """Which rows of a layer those are that it has after an operation."""
    device = change.device if isinstance(change, torch.Tensor) else None
    before = torch.arange(rows, device=device)
    if name == "batch_repeat_interleave":
        after = before.repeat_interleave(change)
    else:
        after = before.index_select(0, change) if name == "reorder_cache" else before[change]
    found: list[int] = after.tolist()
    return found


def tensors_of(value: object) -> Iterator[torch.Tensor]:
    """Those of a layer, in their order."""
    for each in vars(value).values() if hasattr(value, "__dict__") else ():
        if isinstance(each, torch.Tensor):
            yield each
        elif isinstance(each, (list, tuple, dict)):
            for item in each.values() if isinstance(each, dict) else each:
                if isinstance(item, torch.Tensor):
                    yield item


def _seen(tensor: torch.Tensor) -> tuple[weakref.ref[torch.Tensor], int | None]:
    return weakref.ref(tensor), _version(tensor)


def _are(tensors: Iterable[torch.Tensor], seen: list[tuple[Any, int | None]]) -> bool:
    """Whether tensors are those that were seen, of the same versions."""
    now = list(tensors)
    return len(now) == len(seen) and all(
        which() is tensor and version == _version(tensor)
        for tensor, (which, version) in zip(now, seen)
    )


def _version(tensor: torch.Tensor) -> int | None:
    """How often a tensor was written to; None of those made in inference mode, of which nothing
    says that.
    """
    return None if tensor.is_inference() else tensor._version

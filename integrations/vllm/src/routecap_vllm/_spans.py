"""Make spans of what an engine says about a batch: names, counts and positions, one column each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

import routecap


class BatchSpans:
    """Spans of batches whose positions only the device knows, in [0, limit).

    Most batches are decode batches that equal the last one. So there is one array, and only what
    differs is written again.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._names: list[str] | None = None
        self._count: Callable[[Mapping[str, int]], tuple[int, ...]] = lambda counts: ()
        self._handles: NDArray[np.uint64] | None = None
        self._counts: tuple[int, ...] = ()
        self.several = False  # whether a request of the batch that was filled last has several rows
        self._reserve(256)

    def _reserve(self, count: int) -> None:
        self._spans = routecap.spans(
            count, flags=routecap.SpanFlag.DEVICE_POSITIONS, position_end=self._limit
        )
        self._request, self._rows, self._sink_row = (
            self._spans[name] for name in ("request", "rows", "sink_row")
        )

    def count(self, names: Sequence[str], counts: Mapping[str, int]) -> tuple[int, ...]:
        """Return how many rows each request of a batch has. Raises KeyError for a request without a
        count.
        """
        if names != self._names:
            self._names = own = list(names)
            self._count = (
                itemgetter(*own)
                if len(own) > 1
                else lambda counts: tuple(counts[name] for name in own)
            )
        return self._count(counts)

    def fill(self, handles: NDArray[np.uint64], counts: tuple[int, ...]) -> NDArray[np.void]:
        """Return a span for each request that has a handle.

        The rows of the requests lie one after another. The result is valid until the next call. The
        caller passes the same array of handles for the same batch, and a new one otherwise.
        """
        n = len(counts)
        if handles is not self._handles:
            if n > len(self._spans):
                self._reserve(2 * n)
            self._request[:n] = handles
            self._handles, self._counts = handles, ()
        if counts != self._counts:
            rows = np.array(counts, np.uint32)
            self._rows[:n] = rows
            ends = rows.cumsum(dtype=np.uint32)
            self._sink_row[:n] = ends - rows
            self._counts, self.several = counts, bool(ends[-1] > n)
        return self._spans[:n] if handles.all() else self._spans[:n][handles != 0]


def bounds(
    rows: Sequence[int], positions: NDArray[np.integer[Any]], limit: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the lowest position of each request and one past its highest, of those in [0, limit).
    A request without such a position gets limit and 0.
    """
    counts = np.asarray(rows)
    first = counts.cumsum() - counts
    positions = positions[: counts.sum()].astype(np.int64, copy=False)
    inside = (positions >= 0) & (positions < limit)
    lowest = np.minimum.reduceat(np.where(inside, positions, limit), first)
    return lowest, np.maximum.reduceat(np.where(inside, positions, -1), first) + 1


def runs(
    handles: NDArray[np.uint64],
    rows: NDArray[np.uint32],
    positions: NDArray[np.integer[Any]],
    limit: int,
) -> NDArray[np.void]:
    """Return spans for rows whose positions the host knows: one for each run of consecutive
    positions, which is nearly always one for each request.

    Rows outside [0, limit) belong to no request. If a batch has a position twice, the last row
    counts.
    """
    total = int(rows.sum())
    if len(positions) < total:
        raise ValueError(
            f"the batch has {total} rows, but {len(positions)} positions: give one for each row"
        )
    positions = positions[:total].astype(np.int64, copy=False)
    if total == len(rows) and (positions >= 0).all() and (positions < limit).all():
        return routecap.spans(
            request=handles, position=positions, sink_row=np.arange(len(rows), dtype=np.uint32)
        )  # a row for each: decoding

    owner = np.repeat(np.arange(len(rows)), rows)
    sink_row = np.arange(len(owner))
    keep = (positions >= 0) & (positions < limit)
    owner, sink_row, positions = owner[keep], sink_row[keep], positions[keep]

    ascending = (positions[1:] > positions[:-1]) | (owner[1:] != owner[:-1])
    if not ascending.all():  # perhaps one position twice
        place = owner[::-1] * limit + positions[::-1]
        last = np.sort(len(place) - 1 - np.unique(place, return_index=True)[1])
        owner, sink_row, positions = owner[last], sink_row[last], positions[last]

    broken = (np.diff(positions) != 1) | (np.diff(sink_row) != 1) | (np.diff(owner) != 0)
    first = np.concatenate(([0], np.flatnonzero(broken) + 1))[: len(positions)]
    return routecap.spans(
        request=handles[owner[first]],
        position=positions[first],
        sink_row=sink_row[first],
        rows=np.diff(first, append=len(positions)),
    )

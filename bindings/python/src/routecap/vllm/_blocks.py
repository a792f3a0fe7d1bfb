"""Rows of what an engine has in its cache of keys and values, by its blocks.

A request whose first tokens come out of the cache does not compute them. Their rows are those of
whoever wrote the blocks: they are published in a store when a block is full, and adopted by the
requests that find it. The keys are the numbers of blocks. A block that is written anew has no rows
until it is full: what the store had under its number goes when its first row is computed, also
where nobody captures.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

import routecap

from .. import _structs as structs
from .._library import raw


class CacheBlocks:
    """On the engine's thread. All numbers of a step come as arrays, an element for each request."""

    def __init__(self, capturer: routecap.Capturer, block_rows: int, budget_bytes: int) -> None:
        self._capturer = capturer
        self._rows = block_rows
        self.store = routecap.Store(
            capturer,
            block_rows=block_rows,
            key_bytes=8,
            budget_bytes=budget_bytes,
            slot_keys=True,
        )

    def advance(self, version: int) -> None:
        """Weights of a later version: what was computed with others is stale from now on."""
        if version > self.store.generation:
            self.store.advance(version)

    def computed(
        self,
        handles: NDArray[np.uint64],
        begins: NDArray[Any],
        ends: NDArray[Any],
        settled: NDArray[Any],
        certain: NDArray[Any],
        table: NDArray[Any],
    ) -> None:
        """A step was issued.

        Args:
            handles: Of the requests; 0 for those that are not captured.
            begins, ends: The rows that each had computed, [begin, end).
            settled: Blocks that end here or before were published in earlier steps.
            certain: Rows before this one are of known tokens, others of drafts.
            table: [requests, blocks] the numbers of their blocks.
        """
        more = self._rows - 1
        owners, blocks = _ranges((begins + more) // self._rows, (ends + more) // self._rows)
        if len(owners):
            self.store.evict(table[owners, blocks].astype(np.uint64))
        owners, blocks = _ranges(settled // self._rows, certain // self._rows)
        if len(owners):
            self._publish(handles[owners], blocks, table[owners, blocks].astype(np.uint64))

    def quiet_steps(self, ends: NDArray[Any]) -> int:
        """In how many steps, of one more row for each of these requests, no block begins or ends."""
        within = ends % self._rows
        return int(np.where(within, self._rows - 1 - within, 0).min())

    def _publish(
        self, handles: NDArray[np.uint64], blocks: NDArray[Any], keys: NDArray[np.uint64]
    ) -> None:
        captured = handles != 0
        if not captured.all():
            handles, blocks, keys = handles[captured], blocks[captured], keys[captured]
        publish_blocks(self._capturer, self.store, handles, blocks * self._rows, keys)

    def found(self, handle: int, rows: int, table: NDArray[Any]) -> None:
        """A request whose step was issued has its first rows out of the cache.

        Args:
            table: [blocks] the numbers of its blocks.
        """
        keys = table[: rows // self._rows].astype(np.uint64)
        if len(keys) and handle:
            self._capturer.adopt(int(handle), self.store, 0, keys)


def publish_blocks(
    capturer: routecap.Capturer,
    store: routecap.Store,
    handles: NDArray[np.uint64],
    firsts: NDArray[Any],
    keys: NDArray[Any],
) -> None:
    """One block of each request, [blocks], from its position in `firsts` on, under its key, dense
    in the first dimension."""
    if not len(handles):
        return
    items = np.zeros(len(handles), structs.publish_dtype)
    items["request"], items["first"], items["count"] = handles, firsts, 1
    items["keys"] = keys.ctypes.data + keys.strides[0] * np.arange(len(keys), dtype=np.uint64)
    raw.routecap_request_publish_batch(capturer._handle, store._handle, items, store.generation)


def _ranges(first: NDArray[Any], end: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Each number of the ranges [first, end), behind which of them it is of."""
    owners = np.flatnonzero(end > first)
    if not len(owners):
        return owners, owners
    first = first[owners]
    counts = end[owners] - first
    total = int(counts.sum())
    if total == len(owners):
        return owners, first
    within = np.arange(total) - np.repeat(counts.cumsum() - counts, counts)
    return np.repeat(owners, counts), np.repeat(first, counts) + within

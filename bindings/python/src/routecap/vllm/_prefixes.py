"""Rows of prefixes that an engine takes from its cache: out of a store, by the engine's own keys.

The scheduler says which blocks of its cache a step fills and which it hits; both are done when the
step is issued, first what is filled, as requests of one step may share a block. On the engine's
thread, which pays for blocks that fill or are hit, and for nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

import routecap

from .. import _structs as structs
from .._library import raw
from ._requests import RequestState

logger = logging.getLogger(__name__)


class _Blocks(NamedTuple):
    """Blocks of one request, one after another."""

    name: str
    first: int  # row
    keys: Sequence[bytes]
    hit: bool


class Prefixes:
    """Publishes and adopts blocks of the requests of a capturer.

    Attributes:
        block_rows: of the engine's blocks.
        store: None until the first key is known.
        waiting: what the next step that is issued fills and hits.
    """

    def __init__(
        self,
        capturer: routecap.Capturer,
        requests: Mapping[str, RequestState],
        block_rows: int,
        store: routecap.Store | int,
    ) -> None:
        """
        Args:
            requests: those that are live, by name.
            store: or how many bytes one of its own may have.

        Raises:
            ValueError: the store has other blocks.
        """
        self._capturer, self._requests, self.block_rows = capturer, requests, block_rows
        self._budget = store if isinstance(store, int) else 0
        self.store = None if isinstance(store, int) else store
        if self.store is not None and self.store.block_rows != block_rows:
            raise ValueError(
                f"the store has blocks of {self.store.block_rows} rows, the engine of {block_rows}: make it with block_rows={block_rows}"
            )
        self.waiting: list[_Blocks] = []
        self._broken = False

    # ---- The scheduler's

    def fills(self, name: str, first_row: int, keys: Sequence[bytes]) -> None:
        """The step that is scheduled, or one before it, computes the rows of these blocks, of which
        there is one at least."""
        self.waiting.append(_Blocks(name, first_row, keys, hit=False))

    def hits(self, name: str, keys: Sequence[bytes]) -> None:
        """A request begins, or goes on, behind these blocks, which are its first."""
        self.waiting.append(_Blocks(name, 0, keys, hit=True))

    def drop(self, keys: Sequence[bytes]) -> None:
        """What was computed of these blocks is wrong."""
        if self.store is not None and keys:
            self.store.evict(list(keys))

    # ---- The capturer's

    def settle(self, generation: int) -> None:
        """A step was issued, under these weights."""
        blocks = self.waiting.copy()
        self.waiting.clear()  # which the capturer looks at
        if self._broken:
            return
        try:
            store = self._store_for(blocks[0].keys[0])
            if generation > store.generation:
                store.advance(generation)
            for hit, call, dtype in (
                (False, raw.routecap_request_publish_batch, structs.publish_dtype),
                (True, raw.routecap_request_adopt_batch, structs.adopt_dtype),
            ):
                found = [each for each in blocks if each.hit is hit]
                self._call(store, call, dtype, found, generation)
        except (routecap.Error, ValueError) as error:
            self._broken = True
            logger.error("routed experts: rows of cached prefixes will be missing: %s", error)

    def _store_for(self, key: bytes) -> routecap.Store:
        if self.store is None:
            self.store = routecap.Store(
                self._capturer,
                block_rows=self.block_rows,
                key_bytes=len(key),
                budget_bytes=self._budget,
            )
        if self.store.key_bytes != len(key):
            raise ValueError(
                f"the store has keys of {self.store.key_bytes} bytes, the engine of {len(key)}: make it with key_bytes={len(key)}"
            )
        return self.store

    def _call(
        self,
        store: routecap.Store,
        call: Callable[..., Any],
        dtype: Any,
        blocks: Sequence[_Blocks],
        generation: int,
    ) -> None:
        """Those of requests that are captured. What was not issued is nobody's, and skipped."""
        found = [
            (state.handle, each.first, each.keys)
            for each in blocks
            if (state := self._requests.get(each.name)) is not None and state.handle
        ]
        if not found:
            return
        handles, firsts, keys = zip(*found, strict=True)
        data = np.frombuffer(b"".join(key for each in keys for key in each), np.uint8)
        counts = [len(each) for each in keys]
        offsets = list(accumulate(counts, initial=0))[:-1]
        items: Any = np.zeros(len(found), dtype)
        items["request"], items["first"], items["count"] = handles, firsts, counts
        items["keys"] = data.ctypes.data + np.array(offsets, np.uint64) * store.key_bytes
        call(self._capturer._handle, store._handle, items, generation)

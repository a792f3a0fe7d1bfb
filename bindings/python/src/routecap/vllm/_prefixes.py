"""Rows of prefixes that an engine takes from its cache: out of a store, by the engine's own keys.

The scheduler says which blocks of its cache a step fills and which it hits; both are done when the
step is issued, first what is filled, as requests of one step may share a block. On the engine's
thread, which pays for blocks that fill or are hit, and for nothing else. A scheduler whose workers
are in processes of their own says it with the step.
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
from . import _store_file
from ._options import Options
from ._requests import RequestState

logger = logging.getLogger(__name__)


class _Blocks(NamedTuple):
    """Blocks of one request, one after another."""

    name: str
    first: int  # row
    keys: Sequence[bytes]
    hit: bool


class Told:
    """What a scheduler says of blocks.

    Attributes:
        block_rows: of the engine's blocks.
        waiting: what the next step fills and hits.
    """

    def __init__(self, block_rows: int) -> None:
        self.block_rows = block_rows
        self.waiting: list[_Blocks] = []

    def fills(self, name: str, first_row: int, keys: Sequence[bytes]) -> None:
        """The step that is scheduled, or one before it, computes the rows of these blocks, of which
        there is one at least."""
        self.waiting.append(_Blocks(name, first_row, keys, hit=False))

    def hits(self, name: str, keys: Sequence[bytes]) -> None:
        """A request begins, or goes on, behind these blocks, which are its first."""
        self.waiting.append(_Blocks(name, 0, keys, hit=True))

    def send(self, output: Any) -> None:
        """A step was scheduled: what waits goes with it, if a capturer in another process has it to
        do."""

    def drop(self, keys: Sequence[bytes]) -> None:
        """What was computed of these blocks is wrong."""
        raise NotImplementedError


class Prefixes(Told):
    """Publishes and adopts blocks of the requests of a capturer."""

    def __init__(
        self,
        capturer: routecap.Capturer,
        requests: Mapping[str, RequestState],
        block_rows: int,
        key_bytes: int,
        options: Options,
    ) -> None:
        """
        Args:
            requests: those that are live, by name.
            key_bytes: of a block's hash.
            options: which store it is.

        Raises:
            ValueError: the program's store has other blocks.
            OSError, routecap.Error: there can be no such file, or it is of another model.
        """
        super().__init__(block_rows)
        self._capturer, self._requests = capturer, requests
        if options.store is not None:
            self.store = options.store
        elif options.store_file:
            self.store = _store_file.make(
                options.store_file,
                capturer,
                block_rows=block_rows,
                key_bytes=key_bytes,
                budget_bytes=options.store_bytes,
            )
        else:
            self.store = routecap.Store(
                capturer,
                block_rows=block_rows,
                key_bytes=key_bytes,
                budget_bytes=options.store_bytes,
            )
        if (self.store.block_rows, self.store.key_bytes) != (block_rows, key_bytes):
            raise ValueError(
                f"the store has blocks of {self.store.block_rows} rows and keys of"
                f" {self.store.key_bytes} bytes, the engine of {block_rows} and {key_bytes}: make"
                f" it with block_rows={block_rows}, key_bytes={key_bytes}"
            )
        self._broken = False

    def drop(self, keys: Sequence[bytes]) -> None:
        if keys:
            self.store.evict(list(keys))

    def advance(self, generation: int) -> None:
        """Weights of this version are used from the next step on."""
        if generation > self.store.generation:
            self.store.advance(generation)

    def settle(self, generation: int) -> None:
        """A step was issued, under these weights."""
        blocks = self.waiting.copy()
        self.waiting.clear()  # which the capturer looks at
        if self._broken:
            return
        try:
            for hit, call, dtype in (
                (False, raw.routecap_request_publish_batch, structs.publish_dtype),
                (True, raw.routecap_request_adopt_batch, structs.adopt_dtype),
            ):
                found = [each for each in blocks if each.hit is hit]
                self._call(call, dtype, found, generation)
        except (routecap.Error, ValueError) as error:
            self._broken = True
            logger.error("routed experts: rows of cached prefixes will be missing: %s", error)

    def _call(
        self,
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
        items["keys"] = data.ctypes.data + np.array(offsets, np.uint64) * self.store.key_bytes
        call(self._capturer._handle, self.store._handle, items, generation)

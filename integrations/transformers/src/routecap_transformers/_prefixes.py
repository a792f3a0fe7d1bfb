"""Rows of caches that are used again: of a prompt that was forwarded once, whose cache is copied for
every question that begins with it.

What a cache holds is known by its ledgers, not by its tokens: the rows of a line are published
under keys of its own when its sequences are taken or its cache is copied, and adopted by whoever
goes on with the line.
"""

from __future__ import annotations

import os

import numpy as np

import routecap

from ._sequences import Batch, Content, Published

_KEY_BYTES = 16


class Prefixes:
    """Of one capture."""

    def __init__(self, capturer: routecap.Capturer, store: routecap.Store | int) -> None:
        """
        Args:
            store: or how many bytes one of its own may have.
        """
        self.store = (
            routecap.Store(capturer, block_rows=1, key_bytes=_KEY_BYTES, budget_bytes=store)
            if isinstance(store, int)
            else store
        )
        self._capturer = capturer

    def keep(self, batch: Batch, generation: int) -> None:
        """Publish what the cache of a batch in progress has."""
        line = batch.line
        if line is None or not line.columns:
            return
        if line.published is not None and line.published.columns == line.columns:
            return
        counts, kept, keys = batch.rows(batch.reach), batch.kept, []
        for i, handle in enumerate(batch.requests.tolist()):
            rows = counts[i] if kept is None else min(counts[i], kept[i])
            tokens = np.arange(rows, dtype=np.int32)
            keys.append(self.store.keys(tokens, seed=os.urandom(_KEY_BYTES)))
            self._capturer.request(handle).publish(self.store, 0, keys[-1], generation=generation)
        line.published = Published(keys, line.columns, batch.places)

    def adopt(self, content: Content, batch: Batch, generation: int) -> None:
        """Sequences begin with what a cache holds, whose rows they get."""
        published = content.line.published
        if published is None:
            batch.begin(content.columns)
            return
        rows, columns = list(content.rows), min(content.columns, published.columns)
        self._begin(batch, content)
        counts = batch.rows(columns)
        for handle, row, count in zip(batch.requests.tolist(), rows, counts):
            keys = published.keys[row][: count // self.store.block_rows]
            self._capturer.request(handle).adopt(self.store, 0, keys, generation=generation)

    def left(self, content: Content) -> Batch:
        """A batch that has no requests, for a cache that goes on uncaptured: of its columns those
        that it has now stay in the store.
        """
        batch = Batch(np.zeros(len(content.rows), np.uint64))
        published = content.line.published
        if published is None:
            batch.begin(content.columns)
            return batch
        self._begin(batch, content)
        assert batch.line is not None
        batch.line.published = Published(
            [published.keys[row] for row in content.rows],
            min(content.columns, published.columns),
            batch.places,
        )
        return batch

    @staticmethod
    def _begin(batch: Batch, content: Content) -> None:
        published = content.line.published
        places = None if published is None else published.places
        if places is not None:
            places = places[list(content.rows)][:, : content.columns]
        batch.begin(content.columns, places, known=True)

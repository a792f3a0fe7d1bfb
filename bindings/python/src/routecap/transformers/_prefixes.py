"""Rows of caches that are used again: of a prompt that was forwarded once, whose cache is copied for
every question that begins with it.

A cache is known by itself, not by its tokens: its rows are published under keys of its own when
its sequences are taken or it is copied, and adopted by whoever goes on with it or with a copy.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

import routecap

from ._sequences import Batch, cached_columns, live

if TYPE_CHECKING:
    from ._capture import Capture

_KEY_BYTES = 16


@dataclass
class Prefix:
    """What a store has of a cache."""

    keys: list[NDArray[np.uint8]]
    """Of each row of the batch, those of its blocks."""
    columns: int
    mask: torch.Tensor | None
    """[rows, columns or more]; None: there is no padding."""


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
        self._of_cache: weakref.WeakKeyDictionary[Any, Prefix] = weakref.WeakKeyDictionary()

    def keep(self, cache: Any, batch: Batch) -> None:
        """Publish what the cache of a batch in progress has."""
        if batch.columns <= 0:  # it is not known which
            return
        known = self._of_cache.get(cache)
        if known is not None and known.columns == batch.columns:
            return
        keys = []
        for request, rows in zip(batch.requests.tolist(), batch.live(batch.columns)):
            tokens = np.arange(rows, dtype=np.int32)
            keys.append(self.store.keys(tokens, seed=os.urandom(_KEY_BYTES)))
            self._capturer.publish(request, self.store, 0, keys[-1])
        self._of_cache[cache] = Prefix(keys, batch.columns, batch.mask)

    def copied(self, cache: Any, copy: Any) -> None:
        prefix = self._of_cache.get(cache)
        if prefix is not None:
            self._of_cache[copy] = Prefix(list(prefix.keys), prefix.columns, prefix.mask)

    def adopt(self, cache: Any, batch: Batch, columns: int) -> None:
        """Sequences begin with the first columns of a cache, whose rows they get."""
        prefix = self._of_cache.pop(cache, None)
        if prefix is None or len(prefix.keys) != len(batch.requests):
            return
        rows = live(prefix.mask, min(columns, prefix.columns), len(prefix.keys))
        for request, keys, count in zip(batch.requests.tolist(), prefix.keys, rows):
            self._capturer.adopt(request, self.store, 0, keys[: count // self.store.block_rows])

    # ---- What is done to a cache that nobody goes on with yet

    def reorder(self, cache: Any, rows_after: Callable[[int], Sequence[int]]) -> None:
        prefix = self._of_cache.get(cache)
        if prefix is not None:
            indices = rows_after(len(prefix.keys))
            prefix.keys = [prefix.keys[index] for index in indices]
            prefix.mask = None if prefix.mask is None else prefix.mask[list(indices)]

    def cut(self, cache: Any, columns: int) -> None:
        prefix = self._of_cache.get(cache)
        if prefix is not None:
            prefix.columns = min(prefix.columns, columns)


class Followed:
    """A method of a cache that changes it, of which the capture is told before. A copy of the cache
    has one of its own.
    """

    def __init__(self, capture: weakref.ref[Capture], cache: Any, name: str) -> None:
        self._capture, self._cache, self._name = capture, weakref.ref(cache), name
        self._method: Callable[..., Any] = getattr(type(cache), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        capture, cache = self._capture(), self._cache()
        if capture is not None:
            capture._cache_changes(cache, self._name, *args, *kwargs.values())
        return self._method(cache, *args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        capture, cache = self._capture(), self._cache()
        copy = memo[id(cache)]
        if capture is not None:
            capture._cache_copied(cache, copy)
        return Followed(self._capture, copy, self._name)


def rows_after(name: str, change: Any, rows: int) -> list[int]:
    """Which rows of a cache those are that it has after a method of that name."""
    if name == "reorder_cache":
        return list(change.tolist())
    if name == "batch_select_indices":
        return list(torch.arange(rows, device=change.device)[change].tolist())
    return [row for row in range(rows) for _ in range(change)]  # batch_repeat_interleave


def columns_after(cache: Any, name: str, *change: Any) -> int:
    """How many columns a cache has at most after it is cropped or reset."""
    if name == "reset":
        return 0
    wanted = int(change[0])
    return wanted if wanted >= 0 else max(0, (cached_columns(cache) or 0) + wanted)


REORDERS = ("reorder_cache", "batch_select_indices", "batch_repeat_interleave")
CUTS = ("crop", "reset")

"""What the sources of a reader share: the shape of the rows, memory to read into, and the count of
what was read and what is missing."""

import threading
import weakref
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from routecap import Routing

from ._stores import ObjectStore


class Report(NamedTuple):
    """What a reader has read since it was made."""

    calls: int
    """Of a store's read."""
    ranges: int
    """Of rows that were asked for, of whatever bytes each."""
    rows: int
    """That were read."""
    bytes: int
    """That were read, headers included."""
    missing: Mapping[str, int]
    """Rows that were asked for and are missing, by the name of the reason: "evicted" (the object is
    not there, or could not be read), "stale" (its generation is too old), "refused" (it is not what
    the reference says, of another shape, or damaged).
    """


class Account:
    """Any number of threads may use it."""

    def __init__(self, stores: Mapping[str, ObjectStore], like: Routing, pin: bool) -> None:
        """
        Args:
            stores: By their schemes.
            like: A routing of the shape of the rows, without any.
            pin: Page-lock the memory by torch.
        """
        self.like = like
        self.log: list[str] = []
        self._stores = stores
        self._memories = _Memories(stores, pin)
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._missing: Counter[str] = Counter()

    @property
    def report(self) -> Report:
        with self._lock:
            counts = {name: self._counts[name] for name in ("calls", "ranges", "rows", "bytes")}
            return Report(**counts, missing=dict(self._missing))

    def memory(self, size: int) -> memoryview:
        """Registered, for as long as something refers to it."""
        return self._memories.take(size)

    def count(self, **counts: int) -> None:
        with self._lock:
            self._counts.update(counts)

    def lost(self, why: str, rows: int) -> None:
        if rows:
            with self._lock:
                self._missing[why] += rows

    def note(self, text: str) -> None:
        with self._lock:
            self.log[:-99] = []
            self.log.append(text)


class _Memories:
    """Memory that is registered with the stores, used again when no routing lies there any more."""

    def __init__(self, stores: Mapping[str, ObjectStore], pin: bool) -> None:
        self._stores, self._pin = stores, pin
        self._free: list[NDArray[np.uint8]] = []
        self._lock = threading.Lock()

    def take(self, size: int) -> memoryview:
        """So many bytes, for as long as something refers to them."""
        with self._lock:
            fitting = [i for i, each in enumerate(self._free) if each.nbytes >= size]
            memory = self._free.pop(fitting[0]) if fitting else None
            outgrown = [] if fitting else self._free
            self._free = self._free if fitting else []
        del outgrown  # which unregisters it, without the lock
        if memory is None:
            memory = self._make(1 << max(size - 1, 1 << 16).bit_length())
        lease = memory[:]
        weakref.finalize(lease, self._give_back, memory)
        return lease.data[:size]

    def _make(self, size: int) -> NDArray[np.uint8]:
        if self._pin:
            import torch

            memory: NDArray[np.uint8] = torch.empty(
                size, dtype=torch.uint8, pin_memory=True
            ).numpy()
        else:
            memory = np.empty(size, np.uint8)
        address = memory.ctypes.data
        for store in self._stores.values():
            store.register(address, size)
            weakref.finalize(memory, store.unregister, address)
        return memory

    def _give_back(self, memory: NDArray[np.uint8]) -> None:
        with self._lock:
            self._free.append(memory)

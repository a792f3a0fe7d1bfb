"""Rows that vLLM itself wrote: objects of raw ids under the keys of its blocks."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from routecap import Missing, Routing, Status
from routecap.adapter import error

from ._account import Account
from ._reference import check_key
from ._stores import SizedStore


class BlockRows:
    """The rows of ordered keys: a source for Plan.gather (`Reader.blocks`)."""

    def __init__(
        self,
        reader: Account,
        store: SizedStore,
        keys: Sequence[str],
        *,
        rows: int,
        block_rows: int,
        first: int,
        layers: int,
    ) -> None:
        for key in keys:
            check_key(key)
        like = reader.like
        if layers <= int(like.layer_map.max(initial=-1)):
            raise error(
                Status.ERR_SHAPE_MISMATCH,
                f"objects of {layers} layers do not have layer {int(like.layer_map.max())}: give"
                " as layers how many a row of them has",
            )
        if (like.layer_min_k < like.k).any() or like.layer_visit.any():
            raise error(
                Status.ERR_SHAPE_MISMATCH,
                "objects of raw ids cannot say that a cell has fewer than k experts, nor that a layer"
                " ran again: read such rows as vLLM's own capture does not write them, by a reference",
            )
        self.first, self.rows = first, rows
        self._reader, self._store, self._keys = reader, store, list(keys)
        self._most = block_rows
        self._dtype = np.dtype(np.uint8 if like.experts <= 256 else np.uint16)
        self._shape = (layers, like.k)
        self._row_bytes = layers * like.k * self._dtype.itemsize
        self._objects: list[tuple[str, int, int]] | None = None
        self._refused = ""

    def begin(self, first: int, rows: int) -> Callable[[], Routing | None]:
        """What it returns reads them."""
        return lambda: self.read(first, rows)

    def read(self, first: int, rows: int) -> Routing | None:
        """Rows from position `first` on, as far as the keys have any."""
        begin = max(first, self.first)
        count = min(first + rows, self.first + self.rows) - begin
        if count <= 0:
            return None
        memory = self._reader.memory(count * self._row_bytes)
        ids: NDArray[Any] = np.frombuffer(memory, self._dtype).reshape(-1, *self._shape)
        missing = np.full(count, int(Missing.EVICTED), np.uint8)
        parts = []
        for key, at, size in self._places():
            low, high = max(at, begin), min(at + size, begin + count)
            if low < high:
                into = memory[(low - begin) * self._row_bytes : (high - begin) * self._row_bytes]
                parts.append((key, (low - at) * self._row_bytes, into, low - begin, high - begin))
        said = self._store.read([p[0] for p in parts], [p[1] for p in parts], [p[2] for p in parts])
        for (key, _, _, low, high), text in zip(parts, said):
            if text:
                self._reader.note(f"{key}: evicted: {text}")
            else:
                missing[low:high] = 0
        if self._refused:
            missing[:] = int(Missing.LOST)
        self._reader.count(calls=1, ranges=len(parts), bytes=sum(len(p[2]) for p in parts))
        return self._routing(begin, ids, missing)

    def _places(self) -> list[tuple[str, int, int]]:
        """Key, position of the first row, and rows of each object that is there."""
        if self._objects is None:
            sizes = self._store.sizes(self._keys)
            self._reader.count(calls=1)
            whole = [size // self._row_bytes if size >= 0 else self._most for size in sizes]
            fit = len(sizes) == sum(
                size < 0 or (size % self._row_bytes == 0 and size <= self._most * self._row_bytes)
                for size in sizes
            )
            known, gone = len(sizes), [i for i, size in enumerate(sizes) if size < 0]
            # An object that is gone had block_rows rows or fewer. If they add up all had as many;
            # if not, nobody knows where what follows the first of them belongs.
            if not fit or (sum(whole) != self.rows and not gone) or sum(whole) < self.rows:
                self._refused = f"objects of {sizes[:4]}... bytes are not {self.rows} rows"
                self._reader.note(f"{self._keys[:1]}: refused: {self._refused}")
                known = 0
            elif sum(whole) != self.rows:
                known = gone[0]
            starts = (self.first + np.concatenate(([0], np.cumsum(whole)))).tolist()
            self._objects = [
                (key, starts[i], whole[i])
                for i, key in enumerate(self._keys[:known])
                if sizes[i] >= 0
            ]
        return self._objects

    def _routing(self, first: int, ids: NDArray[Any], missing: NDArray[np.uint8]) -> Routing:
        like = self._reader.like
        own = ids[:, like.layer_map]
        # The bytes do not say which cells are there. What no router chooses was not captured.
        chosen = (own < like.layer_experts[:, None]).all(axis=2)
        ordered = np.sort(own, axis=2)
        chosen &= (ordered[:, :, 1:] != ordered[:, :, :-1]).all(axis=2)
        reasons = np.where(missing[:, None] > 0, missing[:, None], 0).repeat(own.shape[1], axis=1)
        reasons[(reasons == 0) & ~chosen] = int(Missing.LOST)
        valid = reasons == 0
        for why, code in (("evicted", Missing.EVICTED), ("refused", Missing.LOST)):
            self._reader.lost(why, int((reasons == int(code)).any(axis=1).sum()))
        self._reader.count(rows=len(own))
        return Routing.from_arrays(
            own.astype(np.uint8 if like.experts <= 256 else np.int16),
            first=first,
            valid=valid,
            reasons=reasons,
            layer_map=like.layer_map,
            layer_experts=like.layer_experts,
            id_space=like.id_space,
            trusted=True,
        )

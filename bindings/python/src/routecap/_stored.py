"""Routings that lie in files in the serialised form, of which a rank reads the rows that it needs.
Those on other machines: routecap.remote.
"""

import functools
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ._constants import SERIALIZED_MIN, Status
from ._errors import Error, error
from ._layers import layers_of
from ._mapped import Member, routings_in
from ._protocols import BytesLike
from ._routing import Routing, merge
from ._serialized import Serialized, serialized_info, slice_pieces
from ._tensors import as_bytes

_AT_ONCE = 4 << 20
"""Bytes of ids that are read before those of some layers are kept."""


class StoredRouting:
    """A serialised routing whose bytes are read only when its rows are: a reader for Plan.gather.

    Args:
        data: The bytes of one serialised routing, such as a mapped file. They are held.
        layers: See `of_layers`.
    """

    def __init__(self, data: BytesLike, layers: Sequence[int] | None = None) -> None:
        self._data = as_bytes(data, "data")
        self._layers = layers
        self.info: Serialized = serialized_info(self._data[:SERIALIZED_MIN])
        if len(self._data) != self.info.bytes:
            raise error(
                Status.ERR_FORMAT,
                f"{len(self._data)} bytes of a routing of {self.info.bytes}: give all of its bytes"
                " and no others",
            )

    @property
    def first(self) -> int:
        """Position of the first row."""
        return self.info.first

    @property
    def rows(self) -> int:
        return self.info.rows

    def read(self, first: int, rows: int) -> Routing:
        """Rows from position `first` on, as far as there are any.

        Only their bytes and the header are read; the ids are checked.
        """
        begin, end = self._within(first, rows)
        columns = self._columns
        if columns is None:
            return Routing.deserialize(self._cut(begin, end - begin))
        at_once = max(_AT_ONCE // (self.info.layers * self.info.k * self.info.dtype.itemsize), 1)
        parts = [
            _of_columns(Routing.deserialize(self._cut(at, min(at_once, end - at))), columns)
            for at in range(begin, max(end, begin + 1), at_once)
        ]
        return parts[0] if len(parts) == 1 else merge(parts)

    def cut(self, first: int, rows: int) -> bytes:
        """The same rows in the serialised form."""
        if self._layers is not None:
            return self.read(first, rows).serialize()
        begin, end = self._within(first, rows)
        return self._cut(begin, end - begin)

    def of_layers(self, layers: Sequence[int]) -> "StoredRouting":
        """A reader of only these decoder layers, for a pipeline stage. If the routing lacks one of
        them, the reader returns all layers.
        """
        return StoredRouting(self._data, layers)

    def _within(self, first: int, rows: int) -> tuple[int, int]:
        """Positions of the first of so many rows, and behind the last, of those that there are."""
        begin = min(max(first, self.first), self.first + self.rows)
        return begin, min(max(first + rows, begin), self.first + self.rows)

    def _cut(self, first: int, rows: int) -> bytes:
        return b"".join(slice_pieces(self._data, first, rows))

    @functools.cached_property
    def _columns(self) -> NDArray[np.intp] | None:
        """Which of its layers are given; None: all."""
        if self._layers is None:
            return None
        has = Routing.deserialize(self._cut(self.first, 0)).layer_map
        columns = np.flatnonzero(np.isin(has, self._layers))  # all visits of each
        return columns if np.isin(self._layers, has).all() and len(columns) < len(has) else None

    def __repr__(self) -> str:
        return (
            f"StoredRouting(rows {self.first} to {self.first + self.rows}, {self.info.layers}"
            " layers)"
        )


def stored(path: str | os.PathLike[str]) -> dict[str, StoredRouting]:
    """The routings of a file .routecap, an archive .tar that is not compressed, or a folder, by the
    names that `load` gives them, without reading them: files are mapped, and must not change
    meanwhile.
    """
    return {each.name: _reader(each) for each in routings_in(Path(path))}


def _reader(found: Member) -> StoredRouting:
    try:
        return StoredRouting(found.data)
    except Error as reason:
        raise error(reason.status, f"{found.source}: {reason}") from None


def _of_columns(routing: Routing, columns: NDArray[np.intp]) -> Routing:
    """The same rows of some layers, with their reasons, tags and weights."""
    layers = {name: array[columns] for name, array in layers_of(routing).items()}
    fewer = ((layers["layer_k"] != routing.k) | (layers["layer_min_k"] != routing.k)).any()
    narrow = int(layers["layer_experts"].max(initial=0)) <= (255 if fewer else 256)
    dtype = np.dtype(np.uint8 if narrow else np.int16)

    def bits(validity: NDArray[np.uint8] | None) -> NDArray[np.uint8] | None:
        if validity is None:
            return None
        cells = np.unpackbits(validity, axis=1, count=routing.layers, bitorder="little")
        return np.packbits(cells[:, columns], axis=1, bitorder="little")

    return Routing.from_segments(
        [
            (
                each
                if each.ids is None
                else each._replace(
                    ids=np.ascontiguousarray(each.ids[:, columns].astype(dtype, copy=False)),
                    validity=bits(each.validity),
                    weights=(
                        None
                        if each.weights is None
                        else np.ascontiguousarray(each.weights[:, columns])
                    ),
                    weights_validity=bits(each.weights_validity),
                )
            )
            for each in routing.segments
        ],
        layers=len(columns),
        k=routing.k,
        rows=routing.rows,
        first=routing.first,
        dtype=dtype,
        layer_provenance=routing.layer_provenance[columns],
        id_space=routing.id_space,
        weights_dtype=routing.weights_dtype,
        trusted=True,  # it was checked as it was read
        **layers,
    )

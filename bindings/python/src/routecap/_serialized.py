"""Serialised routings, cut and joined without reading their ids."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import _structs as structs
from ._constants import ALL, MAX_PIECES, Dtype, IdSpace, Status
from ._docs import documented
from ._errors import Error, error
from ._library import raw
from ._protocols import BytesLike
from ._tensors import as_bytes, numpy_dtype


class Serialized(NamedTuple):
    """What the first SERIALIZED_MIN bytes of a serialised routing say."""

    version: int
    bytes: int
    """Of everything."""
    header_bytes: int
    """Of the header with its tables: as much as `splice_pieces` reads."""
    first: int
    rows: int
    layers: int
    k: int
    dtype: np.dtype[Any]
    id_space: IdSpace
    weights_dtype: Dtype | None
    """Of the weights beside the ids; None: there are none."""


@documented("routecap_serialized_info")
def serialized_info(data: BytesLike) -> Serialized:
    """Read the fixed part of a serialised routing's header: its shape, and how many bytes it has in
    all.
    """
    memory = structs.serialized.empty()
    raw.routecap_serialized_info(data, memory)
    *values, dtype, id_space, weights_dtype, _ = structs.serialized.read(memory)
    return Serialized._make(
        (
            *values,
            numpy_dtype(dtype),
            IdSpace(id_space),
            Dtype(weights_dtype) if weights_dtype else None,
        )
    )


def _pieces(
    call: Callable[[Any, Any, bytearray], Any], sources: list[memoryview], names: str
) -> list[memoryview]:
    """What `call`, given a header, a table of pieces and memory for their sizes, says that a
    serialised routing is made of.
    """
    memory = structs.splice.empty()
    try:
        call(None, None, memory)  # asks for the sizes
    except Error as reason:
        if reason.status != Status.ERR_BUFFER_TOO_SMALL:
            raise
    count, _, header_bytes = structs.splice.read(memory)
    header, table = bytearray(header_bytes), np.zeros(count, structs.piece_dtype)
    call(header, table, memory)
    by_source = [memoryview(header), *sources]
    pieces = []
    for offset, size, source, _ in table.tolist():
        piece = by_source[source][offset : offset + size]
        if len(piece) != size:
            raise error(
                Status.ERR_FORMAT,
                f"{names} is shorter than its header says: give all of its bytes (serialized_info"
                " says how many)",
            )
        pieces.append(piece)
    return pieces


@documented("routecap_serialized_splice")
def splice_pieces(head: BytesLike, tail: BytesLike, row: int) -> list[memoryview]:
    """Splice two serialised routings of one sequence, the rows of `head` before position `row` and
    those of `tail` from it on, without copying them:
    written one after another (os.writev, socket.sendmsg), the pieces are the result.
    """
    sources = [as_bytes(head, "head"), as_bytes(tail, "tail")]
    return _pieces(
        lambda *result: raw.routecap_serialized_splice(*sources, row, *result),
        sources,
        "head or tail",
    )


def splice(head: BytesLike, tail: BytesLike, row: int) -> bytes:
    """The serialised routing of the rows of `head` before position `row` and those of `tail` from
    it on: see `splice_pieces`.
    """
    return b"".join(splice_pieces(head, tail, row))


def slice_table(header: bytes, first: int, rows: int) -> tuple[bytearray, NDArray[np.void], int]:
    """What `slice_pieces` would give, of a serialised routing of which only the header, of
    Serialized.header_bytes, is here: for one that lies elsewhere.

    Returns the header of the slice; what the slice is made of, in its order, an array of one or two
    with `offset`, `size` and `source`: the slice's header (Piece.HEADER), and bytes of the routing,
    from `offset` on; and how many bytes it has in all.
    """
    memory = structs.splice.empty()
    own, table = bytearray(len(header)), np.zeros(MAX_PIECES, structs.piece_dtype)
    raw.routecap_serialized_slice(header, first, rows, own, table, memory)
    count, total, size = structs.splice.read(memory)
    return own[:size], table[:count], total


@documented("routecap_serialized_slice")
def slice_pieces(data: BytesLike, first: int, rows: int | None = None) -> list[memoryview]:
    """Rows of a serialised routing, `rows` from position `first` on, without copying them: written
    one after another, the pieces are a serialised
    routing. No other bytes of `data` are read than its header.
    """
    source = as_bytes(data, "data")
    return _pieces(
        lambda *result: raw.routecap_serialized_slice(
            source, first, ALL if rows is None else rows, *result
        ),
        [source],
        "data",
    )

"""Messages of the wire as arrays of what they really hold.

`routecap.wire_decode` judges every cell and keeps those that are routing. Here it is what else
there is that matters: zeros, copies, ids that are no experts. So bytes are unwrapped and nothing is
judged.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from io import BytesIO
from typing import Any, NamedTuple
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray
from routecap import MAX_POSITION


class Unwrapped(NamedTuple):
    ids: NDArray[Any]
    first: int
    """Position of the first row, if the message says it; otherwise 0."""


class Shape(NamedTuple):
    """What is known of messages beside their bytes; None: nothing."""

    columns: int | None
    """Length of the layer axis."""
    k: int | None
    dtype: str | None


def unwrap(format: str, data: bytes, shape: Shape) -> Unwrapped:
    """The array of a message, by the name of its format.

    Raises:
        ValueError: It is no such message, or does not say its shape; the text says so.
    """
    try:
        return _FORMATS[format](data, shape)
    except ValueError:
        raise
    except Exception as reason:  # NumPy and Python's tokenizer raise many kinds for damaged bytes
        raise ValueError(
            f"this is no message of {format} ({reason!r}): give the file the ending of what it is"
        ) from None


def array_of(data: bytes | memoryview) -> NDArray[Any]:
    """The array of a .npy file, in its bytes. No memory is taken for what its header claims.

    Raises:
        Exception: It is none, or damaged.
    """
    header = BytesIO(data[: npy.MAGIC_LEN + 4 + 10_000])
    version = npy.read_magic(header)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, by_columns, dtype = read(header)
    content = memoryview(data)[header.tell() :]
    if dtype.hasobject:
        raise ValueError("its elements are objects of Python: ids must be integers")
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != len(content):
        raise ValueError(
            f"its header says {shape} {dtype}, and there are {len(content)} bytes: it is cut off"
        )
    array: NDArray[Any] = np.frombuffer(content, dtype) if content else np.empty(0, dtype)
    return array.reshape(shape, order="F" if by_columns else "C")


def arrays_of(path: Any, budget: int) -> list[tuple[str, NDArray[Any]]]:
    """The arrays of a .npz file by their names, which together take at most `budget` bytes: a small
    file can be many GB of zeros.

    Raises:
        Exception: They take more, or it is none, or damaged.
    """
    with ZipFile(path) as archive:
        files = [each for each in archive.infolist() if each.filename.endswith(".npy")]
        if (size := sum(each.file_size for each in files)) > budget:
            raise ValueError(
                f"its arrays take {size} bytes, and {budget} are allowed: allow more (--budget)"
            )
        for each in files:
            if each.compress_type not in (ZIP_STORED, ZIP_DEFLATED) or each.flag_bits & 1:
                raise ValueError(
                    f"{each.filename} is not as numpy.savez writes it: write it by that"
                )
        return [
            (each.filename.removesuffix(".npy"), array_of(archive.read(each))) for each in files
        ]


def _npy(data: bytes, shape: Shape) -> Unwrapped:
    return Unwrapped(array_of(data), 0)


def _npy_base64(data: bytes, shape: Shape) -> Unwrapped:
    return _npy(_binary(data), shape)


def _raw_base64(data: bytes, shape: Shape) -> Unwrapped:
    if shape.columns is None or shape.k is None:
        raise ValueError(
            "the bytes do not say how many columns and k there are (--config, or --columns and --k)"
        )
    return _array(_binary(data), shape.dtype or "int32", (-1, shape.columns, shape.k))


def _object(data: bytes, shape: Shape) -> Unwrapped:
    given = json.loads(data)
    array = _array(_binary(given["data"]), given["dtype"], given["shape"])
    first = int(given.get("start", 0))
    if not 0 <= first < MAX_POSITION:
        raise ValueError(f"its first row has position {first}: give a message as it came")
    return Unwrapped(array.ids, first)


def _nrlre1(data: bytes, shape: Shape) -> Unwrapped:
    name, dtype, sizes, text = data.decode("ascii").split(":")
    if name != "nrlre1":
        raise ValueError("it does not begin with nrlre1: give the file the ending of what it is")
    return _array(_binary(text), dtype, [int(size) for size in sizes.split("x")])


def _lists(data: bytes, shape: Shape) -> Unwrapped:
    given = json.loads(data)
    if isinstance(given, list) and given[:1] == ["ndarray"]:
        given = given[1]["data"]
    return Unwrapped(np.array(given), 0)


_FORMATS: dict[str, Callable[[bytes, Shape], Unwrapped]] = {
    "npy": _npy,
    "npy.base64": _npy_base64,
    "raw.base64": _raw_base64,
    "object": _object,
    "nrlre1": _nrlre1,
    "lists": _lists,
}


def _binary(text: bytes | str) -> bytes:
    return base64.b64decode(text.strip(), validate=True)


def _array(data: bytes, dtype: str, shape: Any) -> Unwrapped:
    kind = np.dtype(dtype)
    if kind.kind not in "iu":
        raise ValueError(f"{dtype} are no integers: ids must be")
    return Unwrapped(np.frombuffer(data, kind).reshape(shape), 0)

"""Messages of the wire as arrays of what they really hold.

`routecap.wire_decode` judges every cell and keeps those that are routing. Here it is what else
there is that matters: zeros, copies, ids that are no experts. So bytes are unwrapped and nothing is
judged.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from io import BytesIO
from tokenize import TokenError
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

DAMAGED = (ValueError, EOFError, KeyError, TokenError, MemoryError)
"""What NumPy raises for a file that is damaged, or claims to be larger than memory."""


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
    except (*DAMAGED, TypeError, AttributeError, RecursionError) as reason:
        raise ValueError(
            f"this is no message of {format} ({reason!r}): give the file the ending of what it is"
        ) from None


def _npy(data: bytes, shape: Shape) -> Unwrapped:
    ids = np.load(BytesIO(data), allow_pickle=False)
    if not isinstance(ids, np.ndarray):
        raise ValueError("this is no array: it must be one of numpy.save")
    return Unwrapped(ids, 0)


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
    return Unwrapped(array.ids, int(given.get("start", 0)))


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

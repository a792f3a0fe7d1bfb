"""The ids of a routing, and its weights, as an array of one's own, at once."""

import functools
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from . import _structs as structs
from ._constants import Dtype
from ._library import raw
from ._reading import NONE, read_flags
from ._routing import Routing
from ._tensors import dtype_of


def to_array(routing: Routing, fill: int, dtype: DTypeLike = np.int16) -> NDArray[Any]:
    """A copy of the ids of a routing that is ready, [rows, layers, k], with `fill` in missing cells,
    and -2 in columns without an expert.

    In an unsigned dtype a negative fill becomes its two's complement: -1 is 255 in uint8.

    Raises:
        Error: Ids do not fit into the dtype, or cells are missing and the fill would look
            like an expert.
    """
    out = np.empty((routing.rows, routing.layers, routing.k), dtype)
    if out.dtype.kind == "u" and routing.complete:
        fill = 0
    # The library refuses a fill that is an expert's id unless a mask tells which cells are missing.
    mask = np.empty(out.shape[:2], np.uint8) if fill >= 0 else None
    # `Routing.copy_to`, without what it asks of an array that is not its own.
    raw.routecap_routing_copy_to(routing._handle, _copy_options(out.dtype, fill), out, mask)
    return out


def to_packed(routing: Routing, fill: int) -> NDArray[np.int32]:
    """As `to_array`, int32 [rows, layers, 2k]: behind the ids of a cell stand the bits of their weights,
    as float32; NaN where a weight is missing.

    Raises:
        Error: As `to_array`; or the routing has no weights.
    """
    rows, layers, k = routing.rows, routing.layers, routing.k
    out = np.empty((rows, layers, 2 * k), np.int32)
    mask = np.empty(out.shape[:2], np.uint8) if fill >= 0 else None
    ids, weights = _packed_options(layers, k, fill)
    raw.routecap_routing_copy_to(routing._handle, ids, out, mask)
    raw.routecap_routing_copy_weights(routing._handle, weights, out.reshape(-1)[k:], None)
    return out


@functools.cache
def _copy_options(dtype: "np.dtype[Any]", fill: int) -> bytes:
    return structs.copy_options(dtype=dtype_of(dtype), fill=fill, none=NONE)


@functools.cache
def _packed_options(layers: int, k: int, fill: int) -> tuple[bytes, bytes]:
    apart = {"row_stride": 2 * k * layers, "layer_stride": 2 * k, "layers": layers}
    return (
        structs.copy_options(dtype=Dtype.I32, fill=fill, none=NONE, **apart),
        structs.copy_options(dtype=Dtype.F32, flags=read_flags(False, True), **apart),
    )

"""The ids of a routing as an array of one's own, at once."""

import functools
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from . import _structs as structs
from ._library import raw
from ._reading import NONE
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


@functools.cache
def _copy_options(dtype: "np.dtype[Any]", fill: int) -> bytes:
    return structs.copy_options(dtype=dtype_of(dtype), fill=fill, none=NONE)

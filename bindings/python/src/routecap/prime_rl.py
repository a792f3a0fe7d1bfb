"""Ids and weights in one array, as prime-rl's draft of replay with weights has them:

    array = routecap.prime_rl.packed(routing)             # int32 [rows, layers, 2 * k]
    routing = routecap.prime_rl.read(array, experts=128)

Of each cell the k ids come first, then the k weights, whose float32 bits stand in the int32. The
array cannot say that a cell is missing, or lacks its weights: such routings are refused. Tags, which
say with which weights of the model a row was computed, stay behind.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._constants import Status
from ._errors import error
from ._routing import Routing
from ._whole import whole_rows

__all__ = ["packed", "read"]


def packed(routing: Routing, *, layers: int | None = None, first: int = 0) -> NDArray[np.int32]:
    """int32 [rows, layers, 2k]: the ids of a cell, then the float32 bits of their weights.

    layers: Of the decoder, where some are dense; the columns of these are zeros. first: The position
    of the first row that is wanted.

    Raises:
        Error: A cell or its weights are missing, or the routing begins elsewhere.
    """
    ids = whole_rows(routing, layers, first, "prime-rl", ("tags", "first", "weights"))
    array = np.zeros((*ids.shape[:2], 2 * routing.k), np.int32)
    array[..., : routing.k] = ids
    weights = routing.weights(strict=True, allow_recomputed=True)
    captured = slice(None) if layers is None else routing.layer_map
    array[:, captured, routing.k :] = weights.view(np.int32)
    return array


def read(
    array: NDArray[Any], *, experts: int, layer_map: ArrayLike | None = None, first: int = 0
) -> Routing:
    """The routing of such an array, with float32 weights.

    layer_map: The decoder's layers that route, whose columns are read; default: all. first: The
    position of the first row.
    """
    if array.dtype != np.int32 or array.ndim != 3 or array.shape[2] % 2 or not array.shape[2]:
        raise error(
            Status.ERR_SHAPE_MISMATCH,
            f"the array is {array.dtype} {list(array.shape)}: int32 [rows, layers, 2 * k] is expected",
        )
    columns = array if layer_map is None else array[:, np.asarray(layer_map)]
    k = array.shape[2] // 2
    return Routing.from_arrays(
        columns[..., :k],
        experts=experts,
        first=first,
        layer_map=layer_map,
        weights=np.ascontiguousarray(columns[..., k:]).view(np.float32),
    )

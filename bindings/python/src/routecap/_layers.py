"""What differs from layer to layer: arrays with an element for each."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._constants import Status
from ._errors import error
from ._tensors import integers

ARRAYS: Mapping[str, type[np.integer[Any]]] = {
    "layer_map": np.int32,
    "layer_experts": np.uint32,
    "layer_k": np.uint32,
    "layer_min_k": np.uint32,
    "layer_visit": np.uint32,
}
"""By their names in routecap_config, and wherever else layers are described."""


def layer_arrays(layers: int, **given: ArrayLike | None) -> dict[str, Any]:
    """Those of ARRAYS that are given, as the structs have them."""
    held: dict[str, Any] = {}
    for name, values in given.items():
        array = integers(values, ARRAYS[name])
        if array is None:
            continue
        held[name] = expect_layers(array, name, layers)
    return held


def expect_layers(array: NDArray[Any], name: str, layers: int) -> NDArray[Any]:
    """An array with an element for each layer. Any other is an error."""
    if array.size != layers:
        raise error(
            Status.ERR_SHAPE_MISMATCH,
            f"{name} has {array.size} elements for {layers} layers: give one for each layer",
        )
    return array


def addresses(held: Mapping[str, NDArray[Any]]) -> dict[str, int]:
    """Of arrays that have elements, for a struct."""
    return {name: array.ctypes.data for name, array in held.items() if array.size}


def layers_of(routing: Any) -> dict[str, Any]:
    """All of ARRAYS of what has attributes of these names."""
    return {name: getattr(routing, name) for name in ARRAYS}


def layer_keys(routing: Any) -> NDArray[np.int64]:
    """[layers] a number for each layer that ascends, and is the same in every routing: of its index
    in the decoder, and of the visit."""
    keys: NDArray[np.int64] = routing.layer_map.astype(np.int64) << 32 | routing.layer_visit
    return keys


def layer_names(layer_map: ArrayLike, layer_visit: ArrayLike | None = None) -> list[str]:
    """Each layer as people read it: "7", or "7, visit 1" where a decoder runs it again."""
    layers: Sequence[int] = np.asarray(layer_map).tolist()
    visits = [0] * len(layers) if layer_visit is None else np.asarray(layer_visit).tolist()
    return [f"{l}, visit {v}" if v else str(l) for l, v in zip(layers, visits, strict=True)]


def experts_per_token(layer_k: NDArray[Any], layer_min_k: NDArray[Any]) -> str:
    """How many experts a token gets: "8", or "4 to 18"."""
    # Without NumPy's own max and min, which import: a capturer that is forgotten says so at exit.
    most = max(layer_k.tolist(), default=0)
    least = min(layer_min_k.tolist(), default=most)
    return str(most) if least == most else f"{least} to {most}"

"""The weights beside ids: their types, and how arrays and tensors have them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._constants import Dtype, Status
from ._errors import error
from ._protocols import Tensor, TensorLike
from ._tensors import describe, expect_device, expect_kind, matrix
from .names import WeightsType

WEIGHTS = Dtype.F32, Dtype.F16, Dtype.BF16
"""The types that weights can have."""

_NAMES = {"float32": Dtype.F32, "float16": Dtype.F16, "bfloat16": Dtype.BF16}

_AS_ARRAYS: dict[int, "np.dtype[Any]"] = {
    Dtype.F32: np.dtype(np.float32),
    Dtype.F16: np.dtype(np.float16),
    Dtype.BF16: np.dtype(np.uint16),
}


def weights_dtype_of(value: object) -> Dtype:
    """A type of weights, of what names it: "bfloat16", "bf16", a Dtype, NumPy's or torch's."""
    known = _NAMES.get(str(value).removeprefix("torch."))
    if known is None and isinstance(value, (Dtype, int)) and value in WEIGHTS:
        known = Dtype(value)
    if known is None and isinstance(value, str) and value.upper() in ("F32", "F16", "BF16"):
        known = Dtype[value.upper()]
    if known is None:
        try:
            kind: Any = value
            known = _NAMES.get(np.dtype(kind).name)
        except TypeError:
            pass
    if known is None:
        raise error(
            Status.ERR_DTYPE,
            f"{value!r} is no type of weights: give float32, float16 or bfloat16",
        )
    return known


def array_dtype(dtype: int) -> "np.dtype[Any]":
    """How NumPy has weights of a type: bfloat16 as uint16, of the same bits."""
    return _AS_ARRAYS[dtype]


def widened(weights: NDArray[Any], dtype: int) -> NDArray[np.float32]:
    """Weights as they lie in memory, as float32."""
    if dtype == Dtype.BF16:
        return (weights.astype(np.uint32) << 16).view(np.float32)
    return weights.astype(np.float32)


def weights_of_source(
    weights: TensorLike,
    dtype: WeightsType | None,
    shape: tuple[int, ...],
    place: int,
    wanted: int,
    name: str,
) -> tuple[Tensor, dict[str, int]]:
    """The fields of routecap_source for a tensor [rows, columns] of weights beside ids of `shape`."""
    tensor = describe(weights, name)
    expect_device(tensor, place, name)
    kind = expect_kind(tensor, None if dtype is None else weights_dtype_of(dtype), WEIGHTS, name)
    if wanted and kind != wanted:
        raise error(
            Status.ERR_DTYPE,
            f"{name} are {kind.name.lower()}, the capturer's {Dtype(wanted).name.lower()}: make it"
            f" with weights={kind.name.lower()!r}, for weights are kept bit for bit",
        )
    _, _, row_stride, column_stride = matrix(tensor, name, "k")
    if tensor.shape != shape or column_stride != 1:
        raise error(
            Status.ERR_SHAPE_MISMATCH,
            f"{name} has shape {tensor.shape} and strides {tensor.strides}, {shape} is expected, as"
            " of the ids, with the columns of a row next to one another",
        )
    if not shape[0]:  # no rows, and no address
        return tensor, {"weights": 0}
    return tensor, {
        "weights": tensor.address,
        "weights_dtype": int(kind),
        "weights_row_stride": row_stride,
        "weights_bytes": ((shape[0] - 1) * row_stride + shape[1]) * tensor.itemsize,
    }


def weights_begin(layers: int, k: int, id_bytes: int, dtype: int) -> int:
    """Where the weights of a record begin, in bytes (docs/format.md)."""
    step = array_dtype(dtype).itemsize
    return -(-(layers * k * id_bytes + 2 * ((layers + 7) // 8)) // step) * step


def weights_of_arrays(
    weights: Any,
    dtype: WeightsType | None,
    shape: tuple[int, ...],
    used: NDArray[np.bool_] | None,
    valid: NDArray[np.bool_] | None,
) -> tuple[Dtype, NDArray[Any], NDArray[np.uint8]]:
    """The type of weights [rows, layers, k], the weights as a segment has them, and their validity.
    `used`: the columns that have an expert, None if all have; `valid`: the cells that have ids.
    """
    given = np.asarray(weights)
    kind = weights_dtype_of(given.dtype if dtype is None else dtype)
    if given.dtype != array_dtype(kind):
        raise error(
            Status.ERR_DTYPE,
            f"weights are {given.dtype}, {array_dtype(kind)} is expected: give that, for weights are"
            " kept bit for bit. bfloat16 comes as uint16 of the same bits, with weights_dtype='bf16'",
        )
    if given.shape != shape:
        raise error(
            Status.ERR_SHAPE_MISMATCH,
            f"weights has shape {given.shape}, {shape} is expected: give one for each id",
        )
    kept = np.ascontiguousarray(given)
    if used is not None:
        kept = np.where(used, kept, np.zeros((), kept.dtype))
    there: NDArray[np.bool_] = np.logical_not(np.isnan(widened(kept, kind)).any(axis=2))
    if valid is not None:
        there &= valid
    return kind, kept, np.packbits(there, axis=1, bitorder="little")

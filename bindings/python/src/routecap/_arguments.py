"""Tensors and numbers that the calls of a forward pass are given, as these calls want them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias, cast

import numpy as np

from ._constants import Dtype, Status
from ._errors import error
from ._protocols import NumberLike, Tensor, TensorLike
from ._tensors import describe, expect_dense, expect_device, expect_dtype

LayersLike: TypeAlias = TensorLike | Sequence[TensorLike] | Mapping[int, TensorLike]
"""Ids of all layers, in one tensor or a list of theirs, or of some by their numbers."""
TablesLike: TypeAlias = LayersLike
"""Tables of the layers, likewise."""


def int32(tensor: TensorLike, device: int, name: str, shape: str) -> Tensor:
    """An int32 tensor that a call reads; `shape` is what it should be, for errors."""
    found = describe(tensor, name)
    expect_device(found, device, name)
    expect_dtype(found, (Dtype.I32,), name)
    expect_dense(found, name)
    if len(found.shape) > 1 and elements(found) != 1:
        raise error(
            Status.ERR_SHAPE_MISMATCH,
            f"{name} has shape {found.shape}, {shape} is expected: give one dimension",
        )
    return found


def one(tensor: NumberLike | None, device: int, name: str) -> int:
    """The address of one int32; 0 for None."""
    if tensor is None:
        return 0
    found = int32(cast(TensorLike, tensor), device, name, "one number")
    if elements(found) != 1:
        raise error(
            Status.ERR_SHAPE_MISMATCH,
            f"{name} has shape {found.shape}, and is one number: give a tensor of one element, such"
            " as the last of a prefix sum, or an int",
        )
    return found.address


def per_row(tensor: TensorLike | None, device: int, name: str, rows: int) -> int:
    """The address of an int32 for each row; 0 for None."""
    if tensor is None:
        return 0
    found = int32(tensor, device, name, f"({rows},)")
    if elements(found) != rows:
        raise error(
            Status.ERR_SHAPE_MISMATCH,
            f"{name} has shape {found.shape}, ({rows},) is expected: give a number for each row",
        )
    return found.address


def host_number(value: NumberLike | None) -> int | None:
    """A number of the host; None of a tensor, whose number is read when the call runs."""
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return int(value)
    return None


def by_layer(given: LayersLike) -> dict[int, TensorLike]:
    return dict(
        given if isinstance(given, Mapping) else enumerate(cast(Iterable[TensorLike], given))
    )


def shape_and_dtype(tensor: Tensor) -> str:
    """A tensor's shape and type, for errors."""
    kind = tensor.dtype.name.lower() if isinstance(tensor.dtype, Dtype) else tensor.dtype
    return f"shape {tensor.shape} and dtype {kind}"


def elements(tensor: Tensor) -> int:
    count = 1
    for size in tensor.shape:
        count *= size
    return count


def expect_no_expert(none: int | None) -> None:
    """A number that says that no expert was chosen, as calls that record take it."""
    if none == 0:
        raise error(
            Status.ERR_ARGUMENT,
            "none is 0, which is an expert: give the number that says that no expert was chosen",
        )

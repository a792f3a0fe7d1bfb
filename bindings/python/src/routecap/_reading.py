"""How rows are read: how long to wait, how many cells are there, and a copy of them."""

from collections.abc import Callable
from time import monotonic
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import _structs as structs
from ._constants import ALL, Order, ReadFlag, Status
from ._errors import error, member
from ._library import raw
from ._tensors import HOST, describe, dtype_of, expect_device, expect_writable
from .names import OrderName

_SLICE_NS = 100_000_000  # waiting is cut into pieces, so that a signal, Ctrl-C for instance, is noticed in between


def wait(call: Callable[[int], Any], pending: Callable[[Any], bool], timeout: float | None) -> Any:
    """Call with nanoseconds to wait until the result is no longer pending, or `timeout` seconds are
    over.
    """
    if timeout is not None and timeout <= 0:
        return call(0)
    end = None if timeout is None else monotonic() + timeout
    while True:
        left = _SLICE_NS if end is None else min(max(int((end - monotonic()) * 1e9), 0), _SLICE_NS)
        result = call(left)
        if not pending(result) or end is not None and monotonic() >= end:
            return result


def _defaults() -> dict[str, int]:
    memory = structs.copy_options.empty()
    raw.routecap_copy_options_init(memory, structs.copy_options.size)
    return dict(zip(structs.copy_options.fields, structs.copy_options.read(memory)))


FILL: int = _defaults()["fill"]
"""What missing cells become in a copy, unless the caller says otherwise: -1, which is no expert."""
NONE: int = _defaults()["none"]
"""Likewise each column of a valid cell that has no expert: -2."""
KEPT = -1
"""What such a column is in memory: every bit is set."""


def rows_of(rows: int | None) -> int:
    return ALL if rows is None else rows


def read_flags(strict: bool, allow_recomputed: bool) -> int:
    return (ReadFlag.STRICT if strict else 0) | (
        ReadFlag.ALLOW_RECOMPUTED if allow_recomputed else 0
    )


class Coverage(NamedTuple):
    """How many cells of a range of rows are there."""

    layers: int
    first: int
    """The range: position of its first row,"""
    rows: int
    """and its rows."""
    length: int
    """One past the last row that exists, of the request or routing."""
    rows_complete: int
    rows_partial: int
    rows_empty: int
    cells_missing: int
    blocks: int
    """How many blocks of missing cells there are."""
    cells_recomputed: int
    """Valid cells of layers whose provenance is RECOMPUTED."""
    cells_weighted: int = 0
    """Cells whose weights are there."""

    @property
    def complete(self) -> bool:
        return self.cells_missing == 0


def read_coverage(call: Callable[[bytearray, NDArray[np.void] | None], Any]) -> Coverage:
    memory = structs.coverage.empty()
    call(memory, None)
    return Coverage._make(structs.coverage.read(memory))


def read_missing(call: Callable[[bytearray, NDArray[np.void] | None], Any]) -> NDArray[np.void]:
    """The blocks of missing cells, however many: a running request may gain some in between."""
    blocks = np.empty(16, structs.missing_dtype)
    while True:
        memory = structs.coverage.empty()
        call(memory, blocks)
        count = Coverage._make(structs.coverage.read(memory)).blocks
        if count <= len(blocks):
            return blocks[:count].copy()
        blocks = np.empty(count, structs.missing_dtype)


def copy_into(
    call: Callable[[bytes, Any, Any], Any],
    out: Any,
    mask: Any,
    count: int | None,
    k: int,
    fill: int,
    none: int,
    order: Order | OrderName,
    first_layer: int,
    layers: int,
    flags: int,
    dtype: int | None = None,
) -> Any:
    """Call with copy options, memory and mask for an array of the caller's, whose rows and layers
    may be any distance apart. `count` rows are copied; None: nobody knows how many. `dtype` is that
    of weights, where they are copied.
    """
    tensor = describe(out, "out")
    expect_device(tensor, HOST, "out")
    expect_writable(tensor, "out")
    dtype = dtype_of(tensor.dtype) if dtype is None else dtype
    if len(tensor.shape) != 3 or tensor.shape[2] != k:
        raise error(
            Status.ERR_SHAPE_MISMATCH,
            f"out has shape {tensor.shape}, three dimensions and {k} columns are expected: give"
            f" [rows, layers, {k}], or [layers, rows, {k}] with order='layer_major'",
        )
    if k > 1 and tensor.strides[2] != 1:
        raise error(
            Status.ERR_ARGUMENT,
            "out: the ids of a cell must be next to one another: give an array whose last dimension"
            " is dense",
        )
    order = member(Order, order)
    rows, layer = (0, 1) if order == Order.ROW_MAJOR else (1, 0)
    if tensor.shape[layer] != layers:
        raise error(
            Status.ERR_SHAPE_MISMATCH,
            f"out has {tensor.shape[layer]} layers, {layers} are copied: give"
            f" layers={tensor.shape[layer]}, or room for all; and see order",
        )
    if count is not None and tensor.shape[rows] > count:
        raise error(
            Status.ERR_SHAPE_MISMATCH,
            f"out has {tensor.shape[rows]} rows, {count} are copied: give room for as many, such as"
            f" out[:{count}]; and see order",
        )
    row_stride, layer_stride = tensor.strides[rows], tensor.strides[layer]
    if row_stride < 0 or layer_stride < 0:
        raise error(
            Status.ERR_ARGUMENT,
            "out: rows and layers must be in ascending order in memory: give an array that is not"
            " turned around",
        )
    if tensor.shape[rows] == 1:
        row_stride = max(row_stride, layers * layer_stride, k)
    if layers == 1:
        layer_stride = max(layer_stride, tensor.shape[rows] * row_stride, k)
    if mask is not None:
        if (
            not isinstance(mask, np.ndarray)
            or mask.shape != tensor.shape[:2]
            or mask.dtype not in (np.dtype(np.bool_), np.dtype(np.uint8))
        ):
            raise error(
                Status.ERR_SHAPE_MISMATCH,
                f"mask must be an array of bool or uint8 of shape {tensor.shape[:2]}:"
                f" np.empty({tensor.shape[:2]}, bool)",
            )
        mask = mask.view(np.uint8)
    elements = 0
    if all(tensor.shape):
        elements = (
            (tensor.shape[rows] - 1) * tensor.strides[rows]
            + (layers - 1) * tensor.strides[layer]
            + k
        )
    options = structs.copy_options(
        dtype=dtype,
        order=order,
        flags=flags,
        first_layer=first_layer,
        layers=layers,
        row_stride=row_stride,
        layer_stride=layer_stride,
        fill=fill,
        none=none,
    )
    memory = raw.memory(tensor.address, elements * tensor.itemsize, 1, tensor.holder)
    return call(options, memory, mask)

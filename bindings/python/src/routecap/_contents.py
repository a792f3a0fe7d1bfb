"""What a routing holds: its shape, its cells, and why some are missing."""

import struct
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple, Self, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

from . import _structs as structs
from ._constants import OF_CELLS, Dtype, IdSpace, Missing, Order, Status
from ._docs import documented
from ._errors import error, member
from ._library import raw
from ._protocols import TensorLike
from ._reading import (
    FILL,
    KEPT,
    NONE,
    Coverage,
    copy_into,
    read_coverage,
    read_flags,
    read_missing,
    wait,
)
from ._tensors import describe, dtype_of, numpy_dtype
from ._weights import array_dtype, weights_dtype_of
from .names import DtypeLike, OrderName, WeightsType

_PENDING = Status.PENDING


class Segment(NamedTuple):
    """Consecutive rows, in place: the arrays are views of the routing, which they keep.

    Each row of them is contiguous, and its ids and its validity lie in one record. So the arrays
    are strided from row to row: `numpy.ascontiguousarray` makes a dense copy where one is needed.
    """

    first: int
    """Position of the first row."""
    rows: int
    ids: NDArray[Any] | None
    """[rows, layers, k]; None: all cells of these rows are missing, for `reason`."""
    validity: NDArray[np.uint8] | None
    """[rows, (layers + 7) // 8]: bit l % 8 of byte l // 8 is set if layer l is valid; None: all
    are.
    """
    tags: NDArray[np.uint64] | None
    """[rows] the tag of each row; None: `tag` is that of all."""
    tag: int
    reason: int = 0
    """Where ids is None: why these rows are not there, one of Missing; otherwise 0.

    Given as 0 it means ABSENT there.
    """
    weights: NDArray[Any] | None = None
    """[rows, layers, k] the weight of each id, float32 or float16, or the bits of bfloat16 as uint16;
    None: there are none.
    """
    weights_validity: NDArray[np.uint8] | None = None
    """[rows, (layers + 7) // 8] as `validity`: the layers whose weights are there."""


class _View:
    """A ready routing's contents, in place."""

    layers: int
    k: int
    experts: int
    validity_bytes: int
    id_space: int
    complete: int
    first: int
    rows: int
    row_stride: int
    segment_count: int
    weights_dtype: int

    def __init__(self, handle: object) -> None:
        memory = structs.view.empty()
        raw.routecap_routing_view(handle, memory)
        (
            dtype,
            self.layers,
            self.k,
            self.experts,
            self.validity_bytes,
            self.id_space,
            self.complete,
            self.first,
            self.rows,
            self.row_stride,
            self._layer_map,
            self._layer_experts,
            self._table,
            self._stride,
            self.segment_count,
            self._layer_provenance,
            self._layer_k,
            self._layer_min_k,
            self._layer_visit,
            self.weights_dtype,
            _,
        ) = structs.view.read(memory)
        self._handle = handle
        self._segments: memoryview | None = None  # their table
        self.dtype = numpy_dtype(dtype)

    def _array(self, address: int, shape: tuple[int, ...], dtype: "np.dtype[Any]") -> NDArray[Any]:
        return np.ndarray(
            shape, dtype, raw.memory(address, prod(shape) * dtype.itemsize, 0, self._handle)
        )

    def _rows(
        self, address: int, rows: int, shape: tuple[int, ...], dtype: "np.dtype[Any]"
    ) -> NDArray[Any]:
        """[rows, *shape]: the part of each row that begins at `address` in the first."""
        of_row = prod(shape) * dtype.itemsize
        within = [prod(shape[i + 1 :]) * dtype.itemsize for i in range(len(shape))]
        return np.ndarray(
            (rows, *shape),
            dtype,
            raw.memory(address, (rows - 1) * self.row_stride + of_row, 0, self._handle),
            strides=(self.row_stride, *within),
        )

    def records(self, segment: Segment) -> NDArray[np.uint8] | None:
        """[rows, row_stride]: what a segment's rows are in memory."""
        if segment.ids is None:
            return None
        address = segment.ids.__array_interface__["data"][0]
        return self._array(address, (segment.rows, self.row_stride), _UINT8)

    def segment(self, index: int) -> Segment:
        if self._segments is None:
            self._segments = raw.memory(
                self._table, self._stride * self.segment_count, 0, self._handle
            )
        return self._segment(*_segment.unpack_from(self._segments, index * self._stride))

    def _segment(
        self,
        first: int,
        rows: int,
        ids: int,
        validity: int,
        tags: int,
        tag: int,
        reason: int,
        weights: int,
        weights_validity: int,
    ) -> Segment:
        return Segment(
            first,
            rows,
            self._rows(ids, rows, (self.layers, self.k), self.dtype) if ids else None,
            self._rows(validity, rows, (self.validity_bytes,), _UINT8) if validity else None,
            self._array(tags, (rows,), _UINT64) if tags else None,
            tag,
            Missing(reason) if reason else 0,
            (
                self._rows(weights, rows, (self.layers, self.k), array_dtype(self.weights_dtype))
                if weights
                else None
            ),
            (
                self._rows(weights_validity, rows, (self.validity_bytes,), _UINT8)
                if weights_validity
                else None
            ),
        )

    @property
    def layer_map(self) -> NDArray[np.int32]:
        return self._array(self._layer_map, (self.layers,), _INT32)

    @property
    def layer_experts(self) -> NDArray[np.uint32]:
        return self._array(self._layer_experts, (self.layers,), _UINT32)

    @property
    def layer_provenance(self) -> NDArray[np.int32]:
        return self._array(self._layer_provenance, (self.layers,), _INT32)

    @property
    def layer_k(self) -> NDArray[np.uint32]:
        return self._array(self._layer_k, (self.layers,), _UINT32)

    @property
    def layer_min_k(self) -> NDArray[np.uint32]:
        return self._array(self._layer_min_k, (self.layers,), _UINT32)

    @property
    def layer_visit(self) -> NDArray[np.uint32]:
        return self._array(self._layer_visit, (self.layers,), _UINT32)


_segment = struct.Struct("@QQQQQQi4xQQ")
_UINT8, _INT32, _UINT32, _UINT64 = (
    np.dtype(np.uint8),
    np.dtype(np.int32),
    np.dtype(np.uint32),
    np.dtype(np.uint64),
)


class _Segments(Sequence[Segment]):
    """The segments of a view, each made when it is asked for."""

    __slots__ = ("_view",)

    def __init__(self, view: _View) -> None:
        self._view = view

    def __len__(self) -> int:
        return self._view.segment_count

    @overload
    def __getitem__(self, index: int) -> Segment: ...
    @overload
    def __getitem__(self, index: slice) -> list[Segment]: ...
    def __getitem__(self, index: int | slice) -> Segment | list[Segment]:
        found = range(self._view.segment_count)[index]
        return (
            self._view.segment(found)
            if isinstance(found, int)
            else [self._view.segment(i) for i in found]
        )


class Contents:
    """Routing, as far as it is read."""

    __slots__ = ("_handle", "_seen", "__weakref__")
    _handle: object
    _seen: _View | None

    # ---- State

    @property
    def status(self) -> Status:
        """OK, INCOMPLETE (cells are missing), NOT_CAPTURED (all are) or PENDING; does not wait
        (routecap_routing_poll).
        """
        status: Status = raw.routecap_routing_poll(self._handle)
        return status

    @property
    def ready(self) -> bool:
        """Whether it can be read."""
        return self.status != _PENDING

    @property
    def complete(self) -> bool:
        """Whether no cell is missing."""
        return self._look().complete == 1

    @documented("routecap_routing_wait")
    def wait(self, timeout: float | None = None) -> Status:
        """Wait until it is ready, for `timeout` seconds at most, None for as long as it takes; then
        return its status, PENDING if it is not ready.
        """
        handle = self._handle
        status: Status = wait(
            lambda ns: raw.routecap_routing_wait(handle, ns),
            lambda status: status == _PENDING,
            timeout,
        )
        return status

    @property
    def freed(self) -> bool:
        return self._handle is None

    def free(self) -> None:
        """Release the routing now; arrays that were taken from it stay valid
        (routecap_routing_free, when the last of them goes).
        """
        self._handle = None
        self._seen = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        self.free()

    # ---- What it is

    def _look(self) -> _View:
        view = self._seen
        if view is None:
            view = self._seen = _View(self._handle)
        return view

    @property
    def first(self) -> int:
        """Position of the first row."""
        return self._look().first

    @property
    def rows(self) -> int:
        return self._look().rows

    @property
    def layers(self) -> int:
        return self._look().layers

    @property
    def k(self) -> int:
        """Experts per token, the most of any layer: columns of a cell."""
        return self._look().k

    @property
    def experts(self) -> int:
        """The most of any layer."""
        return self._look().experts

    @property
    def id_space(self) -> IdSpace:
        return IdSpace(self._look().id_space)

    @property
    def dtype(self) -> "np.dtype[Any]":
        """Of the ids as they are kept (segments, the serialised form): uint8 up to 256 experts,
        or up to 255 where a cell may have fewer than k; else int16.
        """
        return self._look().dtype

    @property
    def layer_map(self) -> NDArray[np.int32]:
        """[layers] the index of each captured layer in the decoder."""
        return self._look().layer_map

    @property
    def layer_experts(self) -> NDArray[np.uint32]:
        """[layers]"""
        return self._look().layer_experts

    @property
    def layer_provenance(self) -> NDArray[np.int32]:
        """[layers] a Provenance each."""
        return self._look().layer_provenance

    @property
    def layer_k(self) -> NDArray[np.uint32]:
        """[layers] the most experts of a token in each layer."""
        return self._look().layer_k

    @property
    def layer_min_k(self) -> NDArray[np.uint32]:
        """[layers] the fewest: the same, unless a router may choose fewer."""
        return self._look().layer_min_k

    @property
    def layer_visit(self) -> NDArray[np.uint32]:
        """[layers] how often a looped decoder ran the layer before."""
        return self._look().layer_visit

    @property
    def segments(self) -> Sequence[Segment]:
        """Its rows in place, as arrays that cannot be written (routecap_routing_view): together
        exactly the rows, in order.
        """
        return _Segments(self._look())

    @property
    def tags(self) -> NDArray[np.uint64]:
        """[rows] the tag of each row's step; 0 for rows that are not there."""
        tags = np.empty(self.rows, np.uint64)
        for segment in self.segments:
            start = segment.first - self.first
            tags[start : start + segment.rows] = (
                segment.tag if segment.tags is None else segment.tags
            )
        if not self.complete:
            tags[~np.isin(self.reasons(), (0, *OF_CELLS)).any(axis=1)] = 0
        return tags

    @documented("routecap_routing_coverage")
    def coverage(self) -> Coverage:
        """How many of its cells are there."""
        return read_coverage(
            lambda memory, blocks: raw.routecap_routing_coverage(self._handle, memory, blocks)
        )

    @property
    def missing(self) -> NDArray[np.void]:
        """Blocks of missing cells (missing_dtype) and why they are: see Missing
        (routecap_routing_coverage).
        """
        return read_missing(
            lambda memory, blocks: raw.routecap_routing_coverage(self._handle, memory, blocks)
        )

    # ---- Ids

    @documented("routecap_routing_copy_to")
    def copy_to(
        self,
        out: TensorLike,
        *,
        mask: NDArray[Any] | None = None,
        fill: int = FILL,
        none: int = NONE,
        order: Order | OrderName = Order.ROW_MAJOR,
        first_layer: int = 0,
        layers: int | None = None,
        strict: bool = False,
        allow_recomputed: bool = False,
    ) -> Status:
        """Copy the ids into `out`, an integer array [rows, layers, k] (or [layers, rows, k], as
        `order` says) in host memory, whose rows and layers
        may have any distance; and into `mask`, bool or uint8 without the last dimension, which
        cells are valid.

        Missing cells become `fill`, and columns of a valid cell that have no expert `none`. If these
        are one number, give a mask. Returns OK, INCOMPLETE or NOT_CAPTURED; with `strict`, missing
        and recomputed cells are errors.
        """
        view = self._look()
        layers = view.layers - first_layer if layers is None else layers
        self._expect_rows(describe(out, "out").shape, member(Order, order))
        status, _ = copy_into(
            lambda options, memory, mask: raw.routecap_routing_copy_to(
                self._handle, options, memory, mask
            ),
            out,
            mask,
            None,
            view.k,
            fill,
            none,
            order,
            first_layer,
            layers,
            read_flags(strict, allow_recomputed),
        )
        return Status(status)

    def _expect_rows(self, shape: tuple[int, ...], order: Order) -> None:
        rows = shape[0 if order == Order.ROW_MAJOR else 1] if len(shape) == 3 else self.rows
        if rows != self.rows:
            raise error(
                Status.ERR_SHAPE_MISMATCH,
                f"out has {rows} rows, the routing {self.rows}: give out that many, or slice the"
                " routing",
            )

    @overload
    def ids(
        self,
        dtype: None = None,
        *,
        fill: int = FILL,
        none: int = NONE,
        order: Order | OrderName = Order.ROW_MAJOR,
        first_layer: int = 0,
        layers: int | None = None,
        strict: bool = False,
        allow_recomputed: bool = False,
    ) -> NDArray[np.int16]: ...

    @overload
    def ids(
        self,
        dtype: DtypeLike,
        *,
        fill: int = FILL,
        none: int = NONE,
        order: Order | OrderName = Order.ROW_MAJOR,
        first_layer: int = 0,
        layers: int | None = None,
        strict: bool = False,
        allow_recomputed: bool = False,
    ) -> NDArray[Any]: ...

    def ids(
        self,
        dtype: DtypeLike | None = None,
        *,
        fill: int = FILL,
        none: int = NONE,
        order: Order | OrderName = Order.ROW_MAJOR,
        first_layer: int = 0,
        layers: int | None = None,
        strict: bool = False,
        allow_recomputed: bool = False,
    ) -> NDArray[Any]:
        """The ids [rows, layers, k] as one array, of int16 unless `dtype` says otherwise. The type
        depends on nothing else: int16 holds the ids of every model, and -1.

        Missing cells have `fill` in every column. A `fill` that is an expert is refused: `masked`
        tells missing cells from others with any. Where a cell has fewer than k experts, the columns
        behind them have `none`.

        The array is a dense copy. `segments` are the ids in place.
        """
        view = self._look()
        kind = np.dtype(np.int16) if dtype is None else numpy_dtype(dtype_of(dtype))
        out, _ = self._room(kind, order, first_layer, layers)
        self.copy_to(
            out,
            fill=0 if view.complete and fill == FILL else fill,
            none=none,
            order=order,
            first_layer=first_layer,
            layers=layers,
            strict=strict or view.complete == 1,
            allow_recomputed=allow_recomputed or not strict,
        )
        return out

    def masked(
        self,
        dtype: DtypeLike | None = None,
        *,
        fill: int = 0,
        none: int = KEPT,
        order: Order | OrderName = Order.ROW_MAJOR,
        first_layer: int = 0,
        layers: int | None = None,
    ) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """The ids as a new array, as they are kept (`Routing.dtype`) unless `dtype` says otherwise,
        with `fill`, which may be any number here, in missing cells; and the mask: True where a cell
        is valid. Columns without an expert have `none`: -1, which is 255 in uint8.
        """
        out, mask = self._room(
            self.dtype if dtype is None else numpy_dtype(dtype_of(dtype)),
            order,
            first_layer,
            layers,
        )
        self.copy_to(
            out,
            mask=mask,
            fill=fill,
            none=none,
            order=order,
            first_layer=first_layer,
            layers=layers,
        )
        return out, mask

    # ---- Weights

    @property
    def weights_dtype(self) -> Dtype | None:
        """Of the weights beside its ids: F32, F16 or BF16; None: it has none."""
        kind = self._look().weights_dtype
        return Dtype(kind) if kind else None

    @documented("routecap_routing_copy_weights")
    def weights(
        self,
        dtype: WeightsType = np.float32,
        *,
        mask: NDArray[Any] | None = None,
        order: Order | OrderName = Order.ROW_MAJOR,
        first_layer: int = 0,
        layers: int | None = None,
        strict: bool = False,
        allow_recomputed: bool = False,
    ) -> NDArray[Any]:
        """The weights [rows, layers, k] as one array: column c is the weight of the expert in column
        c of `ids` with the same arguments.

        They are float32. Other types are those in which they were captured: float16, or "bfloat16",
        whose bits come as uint16. A weight that is missing is NaN, that of a column without an
        expert 0. `mask` receives True for each cell whose weights are there.
        """
        view = self._look()
        kind = weights_dtype_of(dtype)
        out, _ = self._room(array_dtype(kind), order, first_layer, layers)
        copy_into(
            lambda options, memory, mask: raw.routecap_routing_copy_weights(
                self._handle, options, memory, mask
            ),
            out,
            mask,
            None,
            view.k,
            FILL,
            NONE,
            order,
            first_layer,
            view.layers - first_layer if layers is None else layers,
            read_flags(strict, allow_recomputed or not strict),
            kind,
        )
        return out

    def counts(self) -> NDArray[np.uint8]:
        """[rows, layers] how many experts each cell has; 0 also where it is missing (`mask`)."""
        counts: NDArray[np.uint8] = (self.ids(fill=FILL, none=NONE) >= 0).sum(
            axis=2, dtype=np.uint8
        )
        return counts

    def _room(
        self, dtype: np.dtype[Any], order: Order | OrderName, first_layer: int, layers: int | None
    ) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        view = self._look()
        if (
            not 0 <= first_layer <= view.layers
            or layers is not None
            and not 0 <= layers <= view.layers - first_layer
        ):
            raise error(
                Status.ERR_UNKNOWN_LAYER,
                f"first_layer={first_layer} and layers={layers} are not within the routing's"
                f" {view.layers} layers: give layers as captured, from 0 on, and not as in the"
                " decoder (layer_map)",
            )
        shape = view.rows, view.layers - first_layer if layers is None else layers
        if member(Order, order) == Order.LAYER_MAJOR:
            shape = shape[::-1]
        return np.empty((*shape, view.k), dtype), np.empty(shape, np.bool_)

    def mask(self, *, order: Order | OrderName = Order.ROW_MAJOR) -> NDArray[np.bool_]:
        """[rows, layers] (or [layers, rows], as `order` says): True where the cell is valid."""
        view = self._look()
        mask = np.ones((view.rows, view.layers), np.bool_)
        for segment in _Segments(view):
            cells = mask[segment.first - view.first :][: segment.rows]
            if segment.ids is None:
                cells[:] = False
            elif segment.validity is not None:
                cells[:] = np.unpackbits(
                    segment.validity, axis=1, count=view.layers, bitorder="little"
                )
        return mask if member(Order, order) == Order.ROW_MAJOR else np.ascontiguousarray(mask.T)

    def reasons(self) -> NDArray[np.uint8]:
        """[rows, layers]: why a cell is missing, one of Missing; 0 where it is valid."""
        view = self._look()
        reasons = np.zeros((view.rows, view.layers), np.uint8)
        for segment in _Segments(view):
            cells = reasons[segment.first - view.first :][: segment.rows]
            if segment.ids is None:
                cells[:] = segment.reason
            elif segment.validity is not None:
                valid = np.unpackbits(
                    segment.validity, axis=1, count=view.layers, bitorder="little"
                )
                kept = segment.ids[:, :, 0]  # where a cell is not valid its first id says why
                cells[:] = np.where(
                    valid,
                    0,
                    np.where(
                        (kept >= min(Missing)) & (kept <= max(Missing)), kept, Missing.UNWRITTEN
                    ),
                )
        return reasons

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError(
                "these ids cannot be had without a copy: leave copy out, or take"
                " Routing.segments, which are in place"
            )
        return self.ids(None if dtype is None else np.dtype(dtype))

    def __dlpack__(
        self,
        *,
        stream: object = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """The ids, as `ids()` has them, for other frameworks."""
        if dl_device not in (None, self.__dlpack_device__()):
            raise BufferError(
                "routings are in host memory: take it there, and copy it to the device"
            )
        if copy is False:
            raise BufferError(
                "these ids cannot be had without a copy: leave copy out, or take"
                " Routing.segments, which are in place"
            )
        shared = max_version is not None and max_version[0] >= 1
        ids = self.ids()
        return ids.__dlpack__(max_version=max_version) if shared else ids.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

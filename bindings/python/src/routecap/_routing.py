"""Routings: what was read out."""

import pickle
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

from . import _structs as structs
from ._constants import (
    ALL,
    Dtype,
    IdSpace,
    Missing,
    Order,
    Piece,
    Provenance,
    ReadFlag,
    Status,
    TrustFlag,
)
from ._docs import documented
from ._errors import Error, PartialError, error, member
from ._library import raw
from ._tensors import describe, dtype_of, expect_device, expect_writable, numpy_dtype, HOST
from .names import DtypeLike, IdSpaceName, OrderName, WireLike

if TYPE_CHECKING:
    from ._wire import WireHint, WireOptions

_PENDING = Status.PENDING
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


def _default_fill() -> int:
    memory = structs.copy_options.empty()
    raw.routecap_copy_options_init(memory, structs.copy_options.size)
    return int(dict(zip(structs.copy_options.fields, structs.copy_options.read(memory)))["fill"])


FILL = _default_fill()
"""What missing cells become in a copy, unless the caller says otherwise: -1, which is no expert."""


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
    k: int,
    fill: int,
    order: Order | OrderName,
    first_layer: int,
    layers: int,
    flags: int,
) -> Any:
    """Call with copy options, memory and mask for an array of the caller's, whose rows and layers
    may be any distance apart.
    """
    tensor = describe(out, "out")
    expect_device(tensor, HOST, "out")
    expect_writable(tensor, "out")
    dtype = dtype_of(tensor.dtype)
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
    )
    memory = raw.memory(tensor.address, elements * tensor.itemsize, 1, tensor.holder)
    return call(options, memory, mask)


_OF_CELLS = [0, Missing.UNWRITTEN, Missing.OUT_OF_RANGE, Missing.DUPLICATE]
"""What `reasons` says of the cells of a row that is there."""


class Segment(NamedTuple):
    """Consecutive rows whose ids are adjacent in memory.

    The arrays are views of the routing, which they keep.
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
    segment_count: int

    def __init__(self, handle: Any) -> None:
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
            self._layer_map,
            self._layer_experts,
            self._table,
            self._stride,
            self.segment_count,
            self._layer_provenance,
        ) = structs.view.read(memory)
        self._handle = handle
        self._segments: Any = None  # their table
        self.dtype = numpy_dtype(dtype)

    def _array(self, address: int, shape: tuple[int, ...], dtype: "np.dtype[Any]") -> NDArray[Any]:
        return np.ndarray(
            shape, dtype, raw.memory(address, prod(shape) * dtype.itemsize, 0, self._handle)
        )

    def segment(self, index: int) -> Segment:
        if self._segments is None:
            self._segments = raw.memory(
                self._table, self._stride * self.segment_count, 0, self._handle
            )
        return self._segment(*_segment.unpack_from(self._segments, index * self._stride))

    def _segment(
        self, first: int, rows: int, ids: int, validity: int, tags: int, tag: int, reason: int
    ) -> Segment:
        return Segment(
            first,
            rows,
            self._array(ids, (rows, self.layers, self.k), self.dtype) if ids else None,
            self._array(validity, (rows, self.validity_bytes), _UINT8) if validity else None,
            self._array(tags, (rows,), _UINT64) if tags else None,
            tag,
            Missing(reason) if reason else 0,
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


_segment = struct.Struct("@QQQQQQi4x")
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
    def __getitem__(self, index: Any) -> Any:
        found = range(self._view.segment_count)[index]
        return (
            self._view.segment(found)
            if isinstance(found, int)
            else [self._view.segment(i) for i in found]
        )


_Slice = slice  # which means something else within the class


class Routing:
    """Rows that were read: immutable, usable from all threads, valid even after request and
    capturer have ended.

    The routing of a request that was finished is pending until its last step has landed (`wait`,
    `ready`); until then everything else raises NotReadyError. As a sequence it has a row,
    [layers, k], for each of its positions first..first+rows-1; a slice is a routing of its own.

    It frees itself; `free`, or its use as a context manager, does so at once. Arrays that were
    taken from it keep the memory alive.
    """

    __slots__ = ("_handle", "_seen", "__weakref__")
    __hash__ = None  # type: ignore[assignment]
    _handle: Any
    _seen: _View | None

    def __new__(cls) -> "Routing":
        raise TypeError(
            "routings come from Capturer.extract and Capturer.finish, Routing.deserialize and"
            " Routing.from_arrays"
        )

    @classmethod
    def _of(cls, handle: Any) -> "Routing":
        self = object.__new__(cls)
        self._handle = handle
        self._seen = None
        return self

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

    def __enter__(self) -> "Routing":
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
        """Experts per token."""
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
        else int16.
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
            tags[~np.isin(self.reasons(), _OF_CELLS).any(axis=1)] = 0
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
        out: Any,
        *,
        mask: NDArray[Any] | None = None,
        fill: int = FILL,
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

        Missing cells become `fill`. Returns OK, INCOMPLETE or NOT_CAPTURED; with `strict`, missing
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
            view.k,
            fill,
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
        order: Order | OrderName = Order.ROW_MAJOR,
        first_layer: int = 0,
        layers: int | None = None,
        strict: bool = False,
        allow_recomputed: bool = False,
    ) -> NDArray[Any]:
        """The ids [rows, layers, k] as one array, of int16 unless `dtype` says otherwise. The type
        depends on nothing else: int16 holds the ids of every model, and -1.

        Missing cells have `fill` in every column. A `fill` that is an expert is refused: `masked`
        tells missing cells from others with any.

        The array is a view, which cannot be written, where the ids are kept in this form in one
        segment and no cell is missing. Otherwise it is a copy: least often of
        `ids(routing.dtype)`.
        """
        view = self._look()
        kind = np.dtype(np.int16) if dtype is None else numpy_dtype(dtype_of(dtype))
        plain = (
            first_layer == 0
            and layers in (None, view.layers)
            and member(Order, order) == Order.ROW_MAJOR
            and not strict
        )
        if plain and view.complete and view.segment_count == 1 and kind == view.dtype:
            ids = view.segment(0).ids
            assert ids is not None
            return ids
        out, _ = self._room(kind, order, first_layer, layers)
        self.copy_to(
            out,
            fill=0 if view.complete and fill == FILL else fill,
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
        order: Order | OrderName = Order.ROW_MAJOR,
        first_layer: int = 0,
        layers: int | None = None,
    ) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """The ids as a new array, as they are kept (`Routing.dtype`) unless `dtype` says otherwise,
        with `fill`, which may be any number here, in missing cells; and the mask: True where a cell
        is valid.
        """
        out, mask = self._room(
            self.dtype if dtype is None else numpy_dtype(dtype_of(dtype)),
            order,
            first_layer,
            layers,
        )
        self.copy_to(out, mask=mask, fill=fill, order=order, first_layer=first_layer, layers=layers)
        return out, mask

    def _room(
        self, dtype: Any, order: Order | OrderName, first_layer: int, layers: int | None
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
        ids = self.ids(None if dtype is None else np.dtype(dtype))
        if ids.flags.writeable:  # a copy already
            if copy is False:
                raise ValueError(
                    "these ids cannot be had without a copy: leave copy out, or take"
                    " Routing.segments, which are in place"
                )
            return ids
        return ids.copy() if copy else ids

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """The ids, as `ids()` has them, for other frameworks.

        Only those that can be told that memory is read-only (DLPack 1.0) get it without a copy.
        """
        if dl_device not in (None, self.__dlpack_device__()):
            raise BufferError(
                "routings are in host memory: take it there, and copy it to the device"
            )
        ids = self.ids()
        shared = max_version is not None and max_version[0] >= 1
        if copy is False and (ids.flags.writeable or not shared):
            raise BufferError(
                "a copy is needed, unless the ids are kept as int16 in one segment, none is "
                "missing, and DLPack is 1.0, which has a word for read-only. Leave copy out"
            )
        if not ids.flags.writeable and (copy or not shared):
            ids = ids.copy()
        return ids.__dlpack__(max_version=max_version) if shared else ids.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    # ---- Other routings

    @documented("routecap_routing_split")
    def split(
        self, prompt_tokens: int, generated_tokens: int | None = None
    ) -> tuple["Routing", "Routing"]:
        """The rows of the prompt, and those generated after it."""
        _, prompt, generated = raw.routecap_routing_split(
            self._handle, prompt_tokens, rows_of(generated_tokens)
        )
        return Routing._of(prompt), Routing._of(generated)

    @documented("routecap_routing_slice")
    def slice(self, first: int, rows: int | None = None) -> "Routing":
        """The routing of `rows` rows from position `first` on."""
        return Routing._of(raw.routecap_routing_slice(self._handle, first, rows_of(rows))[1])

    def __len__(self) -> int:
        return self.rows

    def __bool__(self) -> bool:
        """True, also without rows and while it is pending: a routing is something."""
        return True

    @overload
    def __getitem__(self, index: int) -> NDArray[Any]: ...

    @overload
    def __getitem__(self, index: _Slice) -> "Routing": ...

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, _Slice):
            start, stop, step = index.indices(self.rows)
            if step != 1:
                raise error(
                    Status.ERR_ARGUMENT, "a routing has consecutive rows: take a slice with step 1"
                )
            return self.slice(self.first + start, max(stop - start, 0))
        number = range(self.rows)[index]  # negative ones from the end, and IndexError
        return self.slice(self.first + number, 1).ids()[0]

    def __iter__(self) -> Iterator[NDArray[Any]]:
        return iter(self.ids())

    def __eq__(self, other: object) -> bool:
        """Whether rows, ids, validity, tags and layers are the same: routings that are equal have
        equal serialised forms.
        """
        if not isinstance(other, Routing):
            return NotImplemented
        return self is other or self.serialize() == other.serialize()

    # ---- The serialised form

    @property
    def serialized_bytes(self) -> int:
        """Size of the serialised form."""
        try:
            needed: int = raw.routecap_routing_serialize(self._handle, 0, None)[1]
        except Error as reason:
            if reason.needed is None:
                raise
            needed = reason.needed
        return needed

    @documented("routecap_routing_serialize")
    def serialize(self) -> bytes:
        """The serialised form: what it is, its ids, validity and tags, in a layout that is the same
        on every machine.
        """
        data: bytes = raw.serialize(self._handle)
        return data

    def serialize_into(self, out: Any) -> int:
        """Write the serialised form to a buffer, shared memory for instance, of `serialized_bytes`
        or more; return how many were written.
        """
        written: int = raw.routecap_routing_serialize(self._handle, 0, out)[1]
        return written

    __bytes__ = serialize

    @staticmethod
    @documented("routecap_routing_deserialize")
    def deserialize(data: Any, *, trusted: bool = False, copy: bool = False) -> "Routing":
        """The routing of a buffer in the serialised form, in place: it holds the buffer, which must
        not change. With `copy` it does not.

        Nothing in the buffer is trusted; `trusted` says that its ids are known to be right, and
        need not be looked at.
        """
        held = as_bytes(data, "data")
        return Routing._of(
            raw.routecap_routing_deserialize(
                held, TrustFlag.TRUSTED if trusted else 0, None if copy else held
            )[1]
        )

    # ---- Arrays of any origin

    @staticmethod
    def from_wire(data: Any, format: WireLike = "any", **hint: "Unpack[WireHint]") -> "Routing":
        """Decode a server's message into a routing: bytes, text, or the result of json.loads.

        `format` is its name or who writes it: "vllm", "sglang", "nemo-rl", "megatron". `hint` is
        what the bytes do not say, `experts` above all: see WireHint. Cells that are not k distinct
        experts are missing; wire_decode gives the report of them, too.
        """
        from ._wire import wire_decode

        return wire_decode(data, format, **hint)[0]

    def to_wire(self, format: WireLike, **options: "Unpack[WireOptions]") -> bytes:
        """Encode the routing in a wire format: see wire_encode.

        What the format cannot say is an error, unless `allow` names it.
        """
        from ._wire import wire_encode

        return wire_encode(self, format, **options)[0]

    @staticmethod
    def from_arrays(
        ids: Any,
        *,
        experts: int | None = None,
        first: int = 0,
        valid: NDArray[Any] | None = None,
        reasons: NDArray[Any] | None = None,
        tags: Any = 0,
        layer_map: Any = None,
        layer_experts: Any = None,
        layer_provenance: Any = None,
        id_space: IdSpace | IdSpaceName = IdSpace.LOGICAL,
        trusted: bool = False,
        copy: bool = False,
    ) -> "Routing":
        """Make a routing from ids [rows, layers, k] that routecap did not capture. `tags` is one
        for all rows, or [rows].

        `valid` [rows, layers] says which cells are there. Without it those are missing that have -1
        in every column, as in what `ids` gives. `reasons` [rows, layers] says why the others are
        not (one of Missing each, as `reasons` gives). Without it rows without any cell become
        ABSENT, other missing cells UNWRITTEN.

        ids of the type that routings have, uint8 up to 256 experts and else int16, C-contiguous and
        complete, are used in place and must not change; others, and all with `copy`, are copied.
        Every valid cell is checked for k distinct experts, unless `trusted`.
        """
        most = experts if layer_experts is None else int(np.max(layer_experts, initial=1))
        if most is None:
            raise error(
                Status.ERR_ARGUMENT,
                "ids do not say how many experts there are: give experts=..., or layer_experts=... "
                "where layers differ",
            )
        given = np.asarray(ids)
        if given.ndim != 3:
            raise error(
                Status.ERR_SHAPE_MISMATCH,
                f"ids has shape {given.shape}, [rows, layers, k] is expected: give an array of"
                " three dimensions",
            )
        if given.dtype.kind not in "iu":
            raise error(
                Status.ERR_DTYPE,
                f"ids has elements of type {given.dtype}, integers are expected: give"
                " ids.astype(np.int32)",
            )
        rows, layers, k = given.shape
        kept = np.ascontiguousarray(given, np.uint8 if most <= 256 else np.int16)
        if valid is None:
            valid = _valid_by_fill(given)
        validity = None
        if valid is not None:
            valid = np.asarray(valid, np.bool_)
            if valid.shape != (rows, layers):
                raise error(
                    Status.ERR_SHAPE_MISMATCH,
                    f"valid has shape {valid.shape}, {(rows, layers)} is expected: True or False"
                    " for each cell",
                )
            validity = np.packbits(valid, axis=1, bitorder="little")
            if not valid.all():  # the first id of a missing cell is why it is
                kept = kept.copy() if np.may_share_memory(kept, given) else kept
                kept[~valid, 0] = (
                    _reasons(valid)[~valid] if reasons is None else np.asarray(reasons)[~valid]
                )
        if kept.dtype != given.dtype:
            wrong: NDArray[np.bool_] = (given < 0) | (given >= most)
            outside = wrong.any(axis=2) if valid is None else wrong.any(axis=2) & valid
            if outside.any():
                raise _wrong_cell(given, outside, f"ids of {most} experts are in [0, {most - 1}]")
        tags = np.asarray(tags, np.uint64)
        if tags.ndim and tags.shape != (rows,):
            raise error(
                Status.ERR_SHAPE_MISMATCH,
                f"tags has shape {tags.shape}, {(rows,)} is expected: give one tag, or one for"
                " each row",
            )
        segment = Segment(
            first,
            rows,
            kept,
            validity,
            np.ascontiguousarray(tags) if tags.ndim else None,
            0 if tags.ndim else int(tags),
        )
        return Routing.from_segments(
            [segment] if rows else [],
            layers=layers,
            k=k,
            rows=rows,
            first=first,
            dtype=kept.dtype,
            experts=experts,
            layer_map=layer_map,
            layer_experts=layer_experts,
            layer_provenance=layer_provenance,
            id_space=id_space,
            trusted=trusted,
            copy=copy,
        )

    @staticmethod
    @documented("routecap_routing_import")
    def from_segments(
        segments: Sequence[Segment],
        *,
        layers: int,
        k: int,
        rows: int,
        first: int = 0,
        dtype: DtypeLike,
        experts: int | None = None,
        layer_map: Any = None,
        layer_experts: Any = None,
        layer_provenance: Any = None,
        id_space: IdSpace | IdSpaceName = IdSpace.LOGICAL,
        trusted: bool = False,
        copy: bool = False,
    ) -> "Routing":
        """A routing of segments in order, in place; rows that no segment has are missing. `dtype`
        is that of their ids.
        """
        dtype = dtype_of(dtype)
        owners: list[Any] = []

        def address(array: Any, shape: tuple[int, ...], kind: Any, name: str) -> int:
            if array is None:
                return 0
            array = np.asarray(array)
            if array.shape != shape or array.dtype != kind or not array.flags.c_contiguous:
                raise error(
                    Status.ERR_SHAPE_MISMATCH,
                    f"{name} must be a C-contiguous array of {np.dtype(kind)} of shape {shape}, not"
                    f" {array.dtype} of {array.shape}",
                )
            owners.append(memoryview(array) if array.size else array)
            return int(describe(array, name).address)

        table = np.zeros(len(segments), structs.segment_dtype)
        for entry, segment in zip(table, segments):
            try:
                entry["first"], entry["rows"], entry["tag"], entry["reason"] = (
                    segment.first,
                    segment.rows,
                    segment.tag,
                    segment.reason,
                )
            except OverflowError as reason:
                raise error(
                    Status.ERR_ARGUMENT,
                    f"a number is out of range: {reason}. Give a Segment whose first, rows and tag"
                    " have 64 bits, and whose reason is a Missing",
                ) from None
            entry["ids"] = address(
                segment.ids, (segment.rows, layers, k), numpy_dtype(dtype), "ids"
            )
            entry["validity"] = address(
                segment.validity, (segment.rows, (layers + 7) // 8), np.uint8, "validity"
            )
            entry["tags"] = address(segment.tags, (segment.rows,), np.uint64, "tags")
        lent = None if copy else tuple(owners)
        view = structs.view(
            dtype=dtype,
            layers=layers,
            k=k,
            experts=experts or 0,
            id_space=member(IdSpace, id_space),
            first=first,
            rows=rows,
            layer_map=address(integers(layer_map, np.int32), (layers,), np.int32, "layer_map"),
            layer_experts=address(
                integers(layer_experts, np.uint32), (layers,), np.uint32, "layer_experts"
            ),
            layer_provenance=address(
                provenances(layer_provenance), (layers,), np.int32, "layer_provenance"
            ),
            segments=describe(table, "segments").address if len(table) else 0,
            segment_size=table.dtype.itemsize,
            segment_count=len(table),
        )
        return Routing._of(
            raw.routecap_routing_import(view, TrustFlag.TRUSTED if trusted else 0, lent)[1]
        )

    # ---- Pickling and copying

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        if protocol < 5:
            return Routing.deserialize, (self.serialize(),)
        view = self._look()

        def out_of_band(array: NDArray[Any] | None) -> Any:
            return (
                None if array is None else pickle.PickleBuffer(array.data.cast("B"))
            )  # flat: some receivers take its length for its size

        segments = [
            (
                s.first,
                s.rows,
                out_of_band(s.ids),
                out_of_band(s.validity),
                out_of_band(s.tags),
                s.tag,
                s.reason,
            )
            for s in _Segments(view)
        ]
        tables = (
            view.layer_map.tobytes(),
            view.layer_experts.tobytes(),
            view.layer_provenance.tobytes(),
        )
        return _rebuild, (
            segments,
            view.layers,
            view.k,
            view.rows,
            view.first,
            view.dtype.str,
            view.id_space,
            *tables,
        )

    def __copy__(self) -> "Routing":
        return self._of(self._handle)

    def __deepcopy__(self, memo: Any) -> "Routing":
        return self._of(self._handle)  # nothing in it can change

    def _repr_html_(self) -> str:
        from . import _html

        return _html.routing(self)

    def __repr__(self) -> str:
        if self.freed:
            return "<routecap.Routing, freed>"
        status = self.status
        if status == _PENDING:
            return "<routecap.Routing, pending>"
        view = self._look()
        return (
            f"<routecap.Routing of rows {view.first}..{view.first + view.rows - 1}, {view.layers}"
            f" layers, k={view.k}, {status.name}>"
        )


def _valid_by_fill(ids: NDArray[Any]) -> NDArray[np.bool_] | None:
    """Which cells have ids, where -1 says that there are none; None if all have."""
    if ids.dtype.kind != "i":
        return None
    filled = ids == -1
    if not filled.any():
        return None
    missing: NDArray[np.bool_] = filled.all(axis=2)
    partly = filled.any(axis=2) & ~missing
    if partly.any():
        raise _wrong_cell(ids, partly, "some of its experts are missing and others are not")
    return ~missing


def _reasons(valid: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Why cells are missing, where nobody knows."""
    reasons = np.full(valid.shape, Missing.UNWRITTEN, np.uint8)
    reasons[~valid.any(axis=1)] = Missing.ABSENT
    return reasons


def _wrong_cell(ids: NDArray[Any], wrong: Any, reason: str) -> Error:
    """The error of the first of some cells."""
    row, layer = np.argwhere(wrong)[0].tolist()
    found = f"ids[{row}, {layer}] is {ids[row, layer].tolist()}, but {reason}"
    return error(
        Status.ERR_FORMAT,
        f"{found}. Give a missing cell False in valid, or without valid -1 in every column",
    )


def _rebuild(
    segments: Any,
    layers: int,
    k: int,
    rows: int,
    first: int,
    dtype: str,
    id_space: int,
    layer_map: bytes,
    experts: bytes,
    provenance: bytes,
) -> Routing:
    """The routing of what Routing.__reduce_ex__ gave, over the buffers that arrived."""
    kind = np.dtype(dtype)
    width = (layers + 7) // 8

    def array(buffer: Any, shape: tuple[int, ...], kind: Any) -> Any:
        return None if buffer is None else np.frombuffer(buffer, kind).reshape(shape)

    return Routing.from_segments(
        [
            Segment(
                start,
                count,
                array(ids, (count, layers, k), kind),
                array(validity, (count, width), np.uint8),
                array(tags, (count,), np.uint64),
                tag,
                reason,
            )
            for start, count, ids, validity, tags, tag, reason in segments
        ],
        layers=layers,
        k=k,
        rows=rows,
        first=first,
        dtype=kind,
        layer_map=np.frombuffer(layer_map, np.int32),
        id_space=IdSpace(id_space),
        layer_experts=np.frombuffer(experts, np.uint32),
        layer_provenance=np.frombuffer(provenance, np.int32),
        trusted=True,
    )


def integers(values: Any, kind: Any) -> NDArray[Any] | None:
    """A dense array of one integer type, of numbers that fit it."""
    if values is None:
        return None
    array = np.asarray(values)
    limits = np.iinfo(kind)
    if (
        array.ndim != 1
        or array.size
        and (array.dtype.kind not in "iu" or array.min() < limits.min or array.max() > limits.max)
    ):
        raise error(
            Status.ERR_ARGUMENT,
            f"{values!r} is not a sequence of integers that fit into {np.dtype(kind)}: give a list"
            " or an array, of one dimension, of such",
        )
    return np.ascontiguousarray(array, kind)


def provenances(values: Any) -> NDArray[Any] | None:
    if values is not None and not isinstance(values, np.ndarray):
        values = [member(Provenance, value) for value in values]
    return integers(values, np.int32)


class Routings(Sequence[Routing]):
    """The routings of a batch.

    They are made into objects only when one is asked for; all are freed with this, or by `free`.
    """

    __slots__ = ("status", "statuses", "_addresses", "_requests")

    def __init__(self, status: Status, items: NDArray[np.void]) -> None:
        """Takes the routings out of the items."""
        self.status = status
        """OK, or PARTIAL: some items were refused."""
        self.statuses: NDArray[np.int32] = items["status"].copy()
        """[n] the status of each item."""
        self._requests: NDArray[np.uint64] = items["request"].copy()
        self._addresses: NDArray[np.uint64] = items["routing"].copy()
        items["routing"] = 0

    def __len__(self) -> int:
        return len(self._addresses)

    @overload
    def __getitem__(self, index: int) -> Routing: ...

    @overload
    def __getitem__(self, index: slice) -> list[Routing]: ...

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        number = range(len(self))[index]
        handle = raw.routing_of(self._addresses, number)
        if handle is not None:
            return Routing._of(handle)
        status = Status(self.statuses[number])
        if status >= 0:
            raise error(
                Status.ERR_STATE,
                "the routing was freed: take it out before free() or the end of the with block",
            )
        raise error(
            status,
            f"item {number} of {len(self)}, request {self._requests[number]:#x}, was refused: "
            f"{status}. Take the others; Routings.statuses has the status of each",
        )

    def __iter__(self) -> Iterator[Routing]:
        for number in range(
            len(self)
        ):  # not by Sequence, for which the IndexError of a refused item is the end
            yield self[number]

    def free(self) -> None:
        """Free all routings now, except those that were taken out as objects."""
        raw.routings_free(self._addresses)

    def __del__(self) -> None:
        self.free()

    def __repr__(self) -> str:
        refused = (
            f": {refusals(self._requests, self.statuses, {})}"
            if self.status == Status.PARTIAL
            else ""
        )
        return f"<routecap.Routings of {len(self)}, {self.status}{refused}>"

    def _repr_html_(self) -> str:
        from . import _html

        rows = [
            (item, f"{request:#x}", str(Status(status)))
            for item, (request, status) in enumerate(
                zip(self._requests.tolist(), self.statuses.tolist())
            )
        ]
        return _html.card(f"{len(self)} routings", _html.table(("item", "request", "status"), rows))

    def __enter__(self) -> "Routings":
        return self

    def __exit__(self, *unused: object) -> None:
        self.free()


_NAMED = 16  # refused items of a batch, in a text


def refusals(
    requests: NDArray[np.uint64], statuses: NDArray[np.int32], ids: Mapping[int, str]
) -> str:
    """Which items of a batch were refused, and how each was."""
    refused = np.flatnonzero(statuses < 0).tolist()
    texts = []
    for item in refused[:_NAMED]:
        handle = int(requests[item])
        name = repr(ids[handle]) if handle in ids else f"request {handle:#x}"
        texts.append(f"{item} ({name}): {Status(statuses[item])}")
    if len(refused) > _NAMED:
        texts.append(f"and {len(refused) - _NAMED} more")
    return f"{len(refused)} of {len(statuses)} items were refused: {', '.join(texts)}"


def check_items(
    requests: NDArray[np.uint64],
    statuses: NDArray[np.int32],
    ids: Mapping[int, str],
    routings: Routings | None = None,
) -> None:
    """Raise PartialError if an item of a batch was refused."""
    if not (statuses < 0).any():
        return
    partial = PartialError(Status.PARTIAL, refusals(requests, statuses, ids))
    partial.statuses = {
        item: Status(statuses[item]) for item in np.flatnonzero(statuses < 0).tolist()
    }
    partial.routings = routings
    raise partial


@documented("routecap_routing_merge")
def merge(routings: Sequence[Routing]) -> Routing:
    """Merge routings of one sequence that have different rows, different layers, or both."""
    return Routing._of(
        raw.routecap_routing_merge(tuple([routing._handle for routing in routings]), 0)[1]
    )


def as_bytes(data: Any, name: str) -> memoryview:
    """A buffer's bytes; it is held as long as they are."""
    try:
        return memoryview(data).cast("B")
    except TypeError as reason:
        raise error(
            Status.ERR_ARGUMENT,
            f"{name} must be a C-contiguous buffer: {reason}. Give bytes, a memoryview or a dense"
            " array",
        ) from None


class Serialized(NamedTuple):
    """What the first 64 bytes of a serialised routing say."""

    version: int
    bytes: int
    """Of everything."""
    header_bytes: int
    """Of the header with its tables: as much as `splice_pieces` reads."""
    first: int
    rows: int
    layers: int
    k: int
    dtype: "np.dtype[Any]"
    id_space: IdSpace


@documented("routecap_serialized_info")
def serialized_info(data: Any) -> Serialized:
    """Read the fixed part of a serialised routing's header: its shape, and how many bytes it has in
    all.
    """
    memory = structs.serialized.empty()
    raw.routecap_serialized_info(data, memory)
    *values, dtype, id_space = structs.serialized.read(memory)
    return Serialized._make((*values, numpy_dtype(dtype), IdSpace(id_space)))


def _pieces(
    call: Callable[[Any, Any, bytearray], Any], sources: list[memoryview], names: str
) -> list[memoryview]:
    """What `call`, given a header, a table of pieces and memory for their sizes, says that a
    serialised routing is made of.
    """
    memory = structs.splice.empty()
    try:
        call(None, None, memory)  # asks for the sizes
    except Error as reason:
        if reason.status != Status.ERR_BUFFER_TOO_SMALL:
            raise
    count, _, header_bytes = structs.splice.read(memory)
    header, table = bytearray(header_bytes), np.zeros(count, structs.piece_dtype)
    call(header, table, memory)
    by_source = [memoryview(header), *sources]
    pieces = []
    for offset, size, source, _ in table.tolist():
        piece = (
            memoryview(bytes(size))
            if source == Piece.ZERO
            else by_source[source][offset : offset + size]
        )
        if len(piece) != size:
            raise error(
                Status.ERR_FORMAT,
                f"{names} is shorter than its header says: give all of its bytes (serialized_info"
                " says how many)",
            )
        pieces.append(piece)
    return pieces


@documented("routecap_serialized_splice")
def splice_pieces(head: Any, tail: Any, row: int) -> list[memoryview]:
    """Splice two serialised routings of one sequence, the rows of `head` before position `row` and
    those of `tail` from it on, without copying them:
    written one after another (os.writev, socket.sendmsg), the pieces are the result.
    """
    sources = [as_bytes(head, "head"), as_bytes(tail, "tail")]
    return _pieces(
        lambda *result: raw.routecap_serialized_splice(*sources, row, *result),
        sources,
        "head or tail",
    )


def splice(head: Any, tail: Any, row: int) -> bytes:
    """The serialised routing of the rows of `head` before position `row` and those of `tail` from
    it on: see `splice_pieces`.
    """
    return b"".join(splice_pieces(head, tail, row))


@documented("routecap_serialized_slice")
def slice_pieces(data: Any, first: int, rows: int | None = None) -> list[memoryview]:
    """Rows of a serialised routing, `rows` from position `first` on, without copying them: written
    one after another, the pieces are a serialised
    routing. No other bytes of `data` are read than its header.
    """
    source = as_bytes(data, "data")
    return _pieces(
        lambda *result: raw.routecap_serialized_slice(
            source, first, ALL if rows is None else rows, *result
        ),
        [source],
        "data",
    )

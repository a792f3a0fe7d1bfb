"""Routings: what was read out."""

import pickle
from collections.abc import Iterator, Sequence
from operator import index as number_of
from typing import Any, SupportsIndex, Unpack, cast, overload

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from . import _structs as structs
from ._constants import IdSpace, Missing, Provenance, Status, TrustFlag
from ._contents import Contents, Segment, _Segments
from ._docs import documented
from ._errors import Error, error, member
from ._layers import ARRAYS, expect_layers, experts_per_token, layer_arrays, layers_of
from ._library import raw
from ._message import WireHint, WireOptions, decode, encode
from ._protocols import BytesLike, MessageLike
from ._reading import FILL, NONE, rows_of
from ._tensors import as_bytes, describe, dtype_of, numpy_dtype, provenances
from ._weights import (
    array_dtype,
    weights_begin,
    weights_dtype_of,
    weights_of_arrays,
)
from .names import DtypeLike, IdSpaceName, ProvenanceName, WeightsType, WireLike

_Slice = slice  # which means something else within the class


class Routing(Contents):
    """Rows that were read: immutable, usable from all threads, valid even after request and
    capturer have ended.

    The routing of a request that was finished is pending until its last step has landed (`wait`,
    `ready`); until then everything else raises NotReadyError. As a sequence it has a row,
    [layers, k], for each of its positions first..first+rows-1; a slice is a routing of its own.

    It frees itself; `free`, or its use as a context manager, does so at once. Arrays that were
    taken from it keep the memory alive.
    """

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def __new__(cls) -> "Routing":
        raise TypeError(
            "routings come from Capturer.extract and Capturer.finish, Routing.deserialize and"
            " Routing.from_arrays"
        )

    @classmethod
    def _of(cls, handle: object) -> "Routing":
        self = object.__new__(cls)
        self._handle = handle
        self._seen = None
        return self

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

    def __getitem__(self, index: int | _Slice) -> "NDArray[Any] | Routing":
        if isinstance(index, _Slice):
            start, stop, step = index.indices(self.rows)
            if step != 1:
                raise error(
                    Status.ERR_ARGUMENT, "a routing has consecutive rows: take a slice with step 1"
                )
            return self.slice(self.first + start, max(stop - start, 0))
        number = range(self.rows)[index]  # negative ones from the end, and IndexError
        row: NDArray[Any] = self.slice(self.first + number, 1).ids()[0]
        return row

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
            needed: int = raw.routecap_routing_serialize(self._handle, None)[1]
        except Error as reason:
            if reason.needed is None:
                raise
            needed = reason.needed
        return needed

    @documented("routecap_routing_serialize")
    def serialize(self) -> bytes:
        """The serialised form: what it is, its ids, validity and tags, in a layout that is the same
        on every machine.

        It has checksums: a reader, also of some rows, notices whether they arrived as they were
        written.
        """
        data: bytes = raw.serialize(self._handle)
        return data

    def serialize_into(self, out: bytearray | memoryview | NDArray[Any]) -> int:
        """Write the serialised form to a buffer, shared memory for instance, of `serialized_bytes`
        or more; return how many were written.
        """
        written: int = raw.routecap_routing_serialize(self._handle, out)[1]
        return written

    def __bytes__(self) -> bytes:
        return self.serialize()

    @staticmethod
    @documented("routecap_routing_deserialize")
    def deserialize(data: BytesLike, *, trusted: bool = False, copy: bool = False) -> "Routing":
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
    def from_wire(
        data: MessageLike, format: WireLike = "any", **hint: "Unpack[WireHint]"
    ) -> "Routing":
        """Decode a server's message into a routing: bytes, text, or the result of json.loads.

        `format` is its name or who writes it: "vllm", "sglang", "nemo-rl", "megatron". `hint` is
        what the bytes do not say, `experts` above all: see WireHint. Cells that are not k distinct
        experts are missing; wire_decode gives the report of them, too.
        """
        return Routing._of(decode(data, format, hint)[0])

    def to_wire(self, format: WireLike, **options: "Unpack[WireOptions]") -> bytes:
        """Encode the routing in a wire format: see wire_encode.

        What the format cannot say is an error, unless `allow` names it.
        """
        return encode(self._handle, format, **options)[0]

    @staticmethod
    def from_arrays(
        ids: ArrayLike,
        *,
        experts: int | None = None,
        first: int = 0,
        valid: NDArray[Any] | None = None,
        reasons: NDArray[Any] | None = None,
        tags: ArrayLike = 0,
        layer_map: ArrayLike | None = None,
        layer_experts: ArrayLike | None = None,
        layer_k: ArrayLike | None = None,
        layer_min_k: ArrayLike | None = None,
        layer_visit: ArrayLike | None = None,
        layer_provenance: Sequence[Provenance | ProvenanceName] | NDArray[Any] | None = None,
        id_space: IdSpace | IdSpaceName = IdSpace.LOGICAL,
        none: int = NONE,
        weights: ArrayLike | None = None,
        weights_dtype: WeightsType | None = None,
        trusted: bool = False,
    ) -> "Routing":
        """Make a routing from ids [rows, layers, k] that routecap did not capture. `tags` is one
        for all rows, or [rows].

        `valid` [rows, layers] says which cells are there. Without it those are missing that have -1
        in every column, as in what `ids` gives. `reasons` [rows, layers] says why the others are
        not (one of Missing each, as `reasons` gives). Without it rows without any cell become
        ABSENT, other missing cells UNWRITTEN.

        Where `layer_k` or `layer_min_k` say that a cell may have fewer than k experts, the columns
        behind them have `none`. If that is -1, give `valid`: a missing cell has that, too.

        `weights` [rows, layers, k], float32 or float16, are the weights of the ids; for bfloat16 give
        uint16 of its bits, and weights_dtype="bf16". A cell with a NaN has none.

        The arrays are copied. Every valid cell is checked for as many distinct experts as its layer
        allows, unless `trusted`.
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
        held = layer_arrays(
            layers,
            layer_map=layer_map,
            layer_experts=layer_experts,
            layer_k=layer_k,
            layer_min_k=layer_min_k,
            layer_visit=layer_visit,
        )
        unused = _unused(given, held.get("layer_k"), held.get("layer_min_k"), none)
        kept = np.ascontiguousarray(
            given, np.uint8 if most <= (256 if unused is None else 255) else np.int16
        )
        if valid is None:
            if unused is not None and none == FILL and unused.any():
                raise error(
                    Status.ERR_ARGUMENT,
                    "none is -1, which also says that a cell is missing: give valid, or another none",
                )
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
        if unused is not None:
            if valid is not None:
                unused &= valid[..., None]
            kept = kept.copy() if np.may_share_memory(kept, given) else kept
            kept.view(f"u{kept.itemsize}")[unused] = np.iinfo(f"u{kept.itemsize}").max
        if kept.dtype != given.dtype or unused is not None:
            wrong: NDArray[np.bool_] = (given < 0) | (given >= most)
            if unused is not None:
                wrong &= ~unused
            outside = np.asarray(wrong.any(axis=2) if valid is None else wrong.any(axis=2) & valid)
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
        kind = None
        if weights is not None:
            kind, kept_weights, there = weights_of_arrays(
                weights, weights_dtype, given.shape, None if unused is None else ~unused, valid
            )
            segment = segment._replace(weights=kept_weights, weights_validity=there)
        return Routing.from_segments(
            [segment] if rows else [],
            layers=layers,
            k=k,
            rows=rows,
            first=first,
            dtype=kept.dtype,
            experts=experts,
            layer_provenance=layer_provenance,
            id_space=id_space,
            weights_dtype=kind,
            trusted=trusted,
            **held,
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
        layer_map: ArrayLike | None = None,
        layer_experts: ArrayLike | None = None,
        layer_k: ArrayLike | None = None,
        layer_min_k: ArrayLike | None = None,
        layer_visit: ArrayLike | None = None,
        layer_provenance: Sequence[Provenance | ProvenanceName] | NDArray[Any] | None = None,
        id_space: IdSpace | IdSpaceName = IdSpace.LOGICAL,
        weights_dtype: WeightsType | None = None,
        trusted: bool = False,
        copy: bool = False,
    ) -> "Routing":
        """A routing of segments in order; rows that no segment has are missing. `dtype` is that of
        their ids, `weights_dtype` that of their weights. Columns of a valid cell that have no expert come last, and have every bit set.

        The rows of an array may lie apart, if those of all arrays lie equally far apart. Arrays
        with validity right behind the ids of each row, as a pickled routing has them, are used in
        place; all others are copied.
        """
        dtype = dtype_of(dtype)
        of_weights = 0 if weights_dtype is None else weights_dtype_of(weights_dtype)
        owners: list[object] = []
        apart: set[int] = set()  # bytes between rows that do not follow one another
        dense: set[int] = set()  # and between those that do

        def address(
            array: NDArray[Any] | None, shape: tuple[int, ...], kind: DTypeLike, name: str
        ) -> int:
            if array is None:
                return 0
            array = np.asarray(array)
            if array.shape != shape or array.dtype != kind or not array.flags.c_contiguous:
                raise error(
                    Status.ERR_SHAPE_MISMATCH,
                    f"{name} must be a C-contiguous array of {np.dtype(kind)} of shape {shape}, not"
                    f" {array.dtype} of {array.shape}",
                )
            owners.append(array.data if array.size else array)
            return int(describe(array, name).address)

        def address_of_rows(
            array: NDArray[Any] | None, shape: tuple[int, ...], kind: DTypeLike, name: str
        ) -> int:
            rows = None if array is None else np.asarray(array)
            if rows is None or rows.ndim != len(shape) or rows.flags.c_contiguous:
                if rows is not None and len(rows) > 1:
                    dense.add(rows.strides[0])
                return address(array, shape, kind, name)
            if rows.shape != shape or rows.dtype != kind or not rows[0].flags.c_contiguous:
                raise error(
                    Status.ERR_SHAPE_MISMATCH,
                    f"{name} must be an array of {np.dtype(kind)} of shape {shape}, of which each"
                    f" row is C-contiguous, not {rows.dtype} of {rows.shape}",
                )
            owners.append(rows)
            apart.add(rows.strides[0])
            return int(describe(rows, name).address)

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
            entry["ids"] = address_of_rows(
                segment.ids, (segment.rows, layers, k), numpy_dtype(dtype), "ids"
            )
            entry["validity"] = address_of_rows(
                segment.validity, (segment.rows, (layers + 7) // 8), np.uint8, "validity"
            )
            entry["tags"] = address(segment.tags, (segment.rows,), np.uint64, "tags")
            if of_weights:
                entry["weights"] = address_of_rows(
                    segment.weights, (segment.rows, layers, k), array_dtype(of_weights), "weights"
                )
                entry["weights_validity"] = address_of_rows(
                    segment.weights_validity,
                    (segment.rows, (layers + 7) // 8),
                    np.uint8,
                    "weights_validity",
                )
        if len(apart | (dense if apart else set())) > 1:
            raise error(
                Status.ERR_SHAPE_MISMATCH,
                f"the rows of the arrays are {sorted(apart | dense)} bytes apart: give"
                " C-contiguous arrays (np.ascontiguousarray), or the same distance for all",
            )
        lent = None if copy else tuple(owners)
        held = layer_arrays(
            layers,
            layer_map=layer_map,
            layer_experts=layer_experts,
            layer_k=layer_k,
            layer_min_k=layer_min_k,
            layer_visit=layer_visit,
        )
        provenance = provenances(layer_provenance)
        if provenance is not None:
            held["layer_provenance"] = expect_layers(provenance, "layer_provenance", layers)
        view = structs.view(
            dtype=dtype,
            layers=layers,
            k=k,
            experts=experts or 0,
            id_space=member(IdSpace, id_space),
            first=first,
            rows=rows,
            row_stride=max(apart, default=0),
            weights_dtype=of_weights,
            **{name: address(array, (layers,), array.dtype, name) for name, array in held.items()},
            segments=describe(table, "segments").address if len(table) else 0,
            segment_size=table.dtype.itemsize,
            segment_count=len(table),
        )
        return Routing._of(
            raw.routecap_routing_import(view, TrustFlag.TRUSTED if trusted else 0, lent)[1]
        )

    # ---- Pickling and copying

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        if number_of(protocol) < 5:
            return Routing.deserialize, (self.serialize(),)
        view = self._look()

        def out_of_band(array: NDArray[Any] | None) -> pickle.PickleBuffer | None:
            return (
                None if array is None else pickle.PickleBuffer(array.data.cast("B"))
            )  # flat: some receivers take its length for its size

        segments = [
            (
                s.first,
                s.rows,
                out_of_band(view.records(s)),
                out_of_band(s.tags),
                s.tag,
                s.reason,
            )
            for s in _Segments(view)
        ]
        tables = {name: array.tobytes() for name, array in layers_of(view).items()}
        return _rebuild, (
            segments,
            view.layers,
            view.k,
            view.rows,
            view.first,
            view.dtype.str,
            view.row_stride,
            view.id_space,
            view.layer_provenance.tobytes(),
            tables,
            view.weights_dtype,
        )

    def __copy__(self) -> "Routing":
        return self._of(self._handle)

    def __deepcopy__(self, memo: object) -> "Routing":
        return self._of(self._handle)  # nothing in it can change

    def __repr__(self) -> str:
        if self.freed:
            return "<routecap.Routing, freed>"
        status = self.status
        if status == Status.PENDING:
            return "<routecap.Routing, pending>"
        view = self._look()
        return (
            f"<routecap.Routing of rows {view.first}..{view.first + view.rows - 1}, {view.layers}"
            f" layers, k={experts_per_token(view.layer_k, view.layer_min_k)}, {status.name}>"
        )


def _unused(
    ids: NDArray[Any], layer_k: NDArray[Any] | None, layer_min_k: NDArray[Any] | None, none: int
) -> NDArray[np.bool_] | None:
    """Which columns of ids [rows, layers, k] have no expert; None if all cells have k."""
    if all(each is None or (each == ids.shape[2]).all() for each in (layer_k, layer_min_k)):
        return None
    unused: NDArray[np.bool_] = ids == np.array(none).astype(ids.dtype)  # -1 is 255 in uint8
    return unused


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


def _wrong_cell(ids: NDArray[Any], wrong: NDArray[np.bool_], reason: str) -> Error:
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
    stride: int,
    id_space: int,
    provenance: bytes,
    tables: dict[str, bytes],
    weights_dtype: int,
) -> Routing:
    """The routing of what Routing.__reduce_ex__ gave, over the buffers that arrived."""
    kind = np.dtype(dtype)
    size, bits = layers * k * kind.itemsize, (layers + 7) // 8

    def segment(
        start: int,
        count: int,
        records: BytesLike | None,
        tags: BytesLike | None,
        tag: int,
        reason: int,
    ) -> Segment:
        if records is None:
            return Segment(start, count, None, None, None, tag, reason)
        rows = np.frombuffer(records, np.uint8).reshape(count, stride)
        found = Segment(
            start,
            count,
            rows[:, :size].view(kind).reshape(count, layers, k),
            rows[:, size : size + bits],
            None if tags is None else np.frombuffer(tags, np.uint64),
            tag,
            reason,
        )
        if not weights_dtype:
            return found
        of_weights = array_dtype(weights_dtype)
        begin = weights_begin(layers, k, kind.itemsize, weights_dtype)
        weights = rows[:, begin : begin + layers * k * of_weights.itemsize]
        return found._replace(
            weights=weights.view(of_weights).reshape(count, layers, k),
            weights_validity=rows[:, size + bits : size + 2 * bits],
        )

    return Routing.from_segments(
        [segment(*each) for each in segments],
        layers=layers,
        k=k,
        rows=rows,
        first=first,
        dtype=kind,
        id_space=IdSpace(id_space),
        layer_provenance=np.frombuffer(provenance, np.int32),
        weights_dtype=weights_dtype or None,
        trusted=True,
        **cast(dict[str, Any], {n: np.frombuffer(tables[n], of) for n, of in ARRAYS.items()}),
    )


@documented("routecap_routing_merge")
def merge(routings: Sequence[Routing]) -> Routing:
    """Merge routings of one sequence that have different rows, different layers, or both."""
    return Routing._of(
        raw.routecap_routing_merge(tuple([routing._handle for routing in routings]), 0)[1]
    )

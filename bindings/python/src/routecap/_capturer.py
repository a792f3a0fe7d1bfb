"""The capturer."""

import json
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from operator import index
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from . import _structs as structs
from ._config import Config, Settings
from ._constants import (
    LOAD_PHASES,
    MAX_LOAD_TAGS,
    MAX_SLOTS,
    Backend,
    Dtype,
    Extract,
    Order,
    Policy,
    ReceivedFlag,
    Role,
    Snapshot,
    SourceFlag,
    Status,
)
from ._docs import documented
from ._counts import Stats
from ._errors import Error, LostStepWarning, error, member
from ._library import raw
from ._load import Load
from ._requests import LayerSources, PreparedIssue, Request, RequestLike, Step
from ._router import FLOATS, Router
from ._routing import (
    FILL,
    Coverage,
    Routing,
    Routings,
    check_items,
    copy_into,
    integers,
    read_coverage,
    read_flags,
    read_missing,
    rows_of,
)
from ._store import Adoption, Keys, Store, checked_keys
from ._tensors import (
    HOST,
    DeviceArray,
    Tensor,
    address_of_alike,
    current_stream,
    describe,
    dtype_of,
    expect_dense,
    expect_device,
    expect_dtype,
    expect_kind,
    expect_writable,
    matrix,
    numpy_dtype,
    stream_of,
)
from .names import (
    DtypeLike,
    ExtractName,
    OrderName,
    PolicyName,
    SnapshotName,
)

_IDS = Dtype.I16, Dtype.I32, Dtype.U32, Dtype.I64


def _one(tensor: Any, device: int, name: str, count: int = 1) -> int:
    """The address of an int32 array of `count` elements or more; 0 for None."""
    if tensor is None:
        return 0
    found = describe(tensor, name)
    expect_device(found, device, name)
    expect_dtype(found, (Dtype.I32,), name)
    expect_dense(found, name)
    if _elements(found) < count:
        raise error(
            Status.ERR_SHAPE_MISMATCH,
            f"{name} has shape {found.shape}, {count} elements are needed: give a larger tensor, or"
            " fewer rows",
        )
    return found.address


def _elements(tensor: Tensor) -> int:
    count = 1
    for size in tensor.shape:
        count *= size
    return count


class Capturer:
    """Captures the routing of a running engine: one per rank and device.

    Settings are named in routecap.Settings:

        with routecap.Capturer(layers=58, k=8, experts=256, rows=8192, backend="cuda", device=0) as capturer:
            request = capturer.open("request-17")
            capturer.begin(tokens)                              # every forward pass; these three may be part of a CUDA graph
            for layer in range(58): capturer.record(layer, topk_ids[layer])
            capturer.snapshot()
            step = capturer.issue(spans)                        # which row was whose
            routing = capturer.finish("request-17", tokens - 1) # the last token was never input
            routing.wait(1.0)
            routing.ids()                                       # NumPy [rows, layers, k]

    Arguments called `request` take a Request, its handle or its string id. Tensors are NumPy arrays
    and other buffers, torch's, and all with DLPack or __cuda_array_interface__, on the capturer's
    device. `stream` is a number or an object of torch, cupy or CUDA Python; None is the setting
    `stream`, or else the current stream of the framework whose tensor is given, or else of torch or
    cupy if one of them is in use.

    The methods that take a stream, `bind` and `sink` are for one thread at a time, and an Error
    (ERR_STATE) for a second; all others for any thread at any time. An engine's tensors must stay
    as they are until its stream has come to the work that reads them, as with any other kernel.
    """

    @documented("routecap_capturer_create")
    def __init__(self, **settings: Unpack[Settings]) -> None:
        """Create a capturer with all the memory that it needs on its device."""
        self._handle: Any = None
        config = self._config = Config(settings)
        self._host = config.backend == Backend.HOST
        self._place = HOST if self._host else config.device
        self._disabled = config.role == Role.DISABLED
        self._stream_setting = settings.get("stream")
        self._names: dict[str, int] = {}
        self._ids: dict[int, str] = {}
        self._warned_of_loss = False
        self._handle = raw.routecap_capturer_create(config.memory)[1]

    def close(self) -> None:
        """Destroy the capturer, after all issued steps have landed and the calls of other threads
        have returned. Routings and arrays of the sink stay valid. Any other call on the capturer or
        its requests raises an Error (routecap_capturer_destroy). Closing a request is none: it does
        nothing.
        """
        handle, self._handle = self._handle, None
        if handle is not None:
            raw.routecap_capturer_destroy(handle)

    def __enter__(self) -> "Capturer":
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            warnings.warn(
                f"unclosed {self!r}: call close(), or make it in a `with`",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )
            self.close()

    # ---- What it is

    @property
    def closed(self) -> bool:
        return self._handle is None

    @property
    def layers(self) -> int:
        """The number of captured (MoE) layers."""
        return self._config.layers

    @property
    def k(self) -> int:
        """The number of experts per token."""
        return self._config.k

    @property
    def experts(self) -> int:
        """The largest number of experts of any layer."""
        return self._config.experts

    @property
    def rows(self) -> int:
        """Sink rows: the most tokens of one forward pass."""
        return self._config.rows

    @property
    def slots(self) -> int:
        """The number of slots; each holds one step in flight."""
        return self._config.slots

    @property
    def backend(self) -> Backend:
        return self._config.backend

    @property
    def device(self) -> int:
        """The ordinal of the device; 0 on the host backend."""
        return self._config.device

    @property
    def role(self) -> Role:
        return self._config.role

    @property
    def layer_map(self) -> NDArray[np.int32]:
        """The index of each captured layer in the decoder, [layers]."""
        given = self._config.layer_map
        return np.arange(self.layers, dtype=np.int32) if given is None else given.copy()

    @property
    def layer_experts(self) -> NDArray[np.uint32]:
        """The number of experts of each layer, [layers]."""
        given = self._config.layer_experts
        return np.full(self.layers, self.experts, np.uint32) if given is None else given.copy()

    def _repr_html_(self) -> str:
        from . import _html

        return (
            _html.card(repr(self)[1:-1])
            if self.closed
            else _html.counters(repr(self)[1:-1], self.stats()._asdict())
        )

    def __repr__(self) -> str:
        config = self._config
        place = "host" if self._host else f"cuda:{config.device}"
        closed = ", closed" if self.closed else ""
        return (
            f"<routecap.Capturer of {config.layers} layers, k={config.k}, {config.experts} experts,"
            f" {config.rows} rows, {place}{closed}>"
        )

    # ---- The forward pass

    def _stream(self, stream: Any, tensor: Any = None) -> int:
        if stream is None:
            stream = self._stream_setting
            if callable(stream):
                stream = stream()
            if stream is None:
                return 0 if self._host or self._disabled else current_stream(tensor, self._place)
        return stream_of(stream)

    @documented("routecap_step_begin")
    def begin(self, rows: int, *, stream: Any = None) -> None:
        """Begin a step of up to `rows` rows, at the start of a forward pass."""
        raw.routecap_step_begin(self._handle, rows, self._stream(stream))

    @documented("routecap_step_snapshot")
    def snapshot(self, *, stream: Any = None) -> None:
        """Take a snapshot of the rows that were begun, after the last write of the forward pass."""
        raw.routecap_step_snapshot(self._handle, self._stream(stream))

    @documented("routecap_step_discard")
    def discard(self, *, stream: Any = None) -> None:
        """Discard the last forward pass, such as a warm-up run."""
        raw.routecap_step_discard(self._handle, self._stream(stream))

    @documented("routecap_step_issue")
    def issue(
        self,
        spans: NDArray[np.void] | None,
        *,
        tag: int = 0,
        positions: Any = None,
        snapshot: Snapshot | SnapshotName = Snapshot.TAKEN,
        status: NDArray[np.int32] | None = None,
        stream: Any = None,
    ) -> Step:
        """Issue the last forward pass, and say which of its rows belong to which request.

        spans: an array of span_dtype (see routecap.spans), C-contiguous; None for none. positions:
        a tensor of int32 or int64 with the position of each sink row, for spans with
        DEVICE_POSITIONS. status: an int32 array that receives each span's.

        Steps that are issued faster than they land use up the slots. The next step is then lost:
        all its rows are missing. Step.lost says so, and a LostStepWarning does the first time. On
        the host backend nothing is lost without the setting `may_lose`.
        """
        if spans is not None:
            structs.expect_array(spans, "spans", "span_dtype")
        if status is not None and (
            getattr(status, "dtype", None) != np.int32
            or status.shape != ((0,) if spans is None else spans.shape)
        ):
            raise error(
                Status.ERR_SHAPE_MISMATCH,
                "status must be an int32 array with an element for each span: np.zeros(len(spans),"
                " np.int32)",
            )
        options = None
        if tag or positions is not None or snapshot is not Snapshot.TAKEN:
            address, dtype = 0, 0
            if positions is not None:
                tensor = describe(positions, "positions")
                expect_device(tensor, self._place, "positions")
                expect_dense(tensor, "positions")
                dtype = expect_dtype(tensor, (Dtype.I32, Dtype.I64), "positions")
                address = tensor.address
                if spans is not None and (count := _elements(tensor)) < self.rows:
                    reading = spans[(spans["flags"] & 2) != 0]
                    if (reading["sink_row"].astype(np.uint64) + reading["rows"]).max(
                        initial=0
                    ) > count:
                        raise error(
                            Status.ERR_SHAPE_MISMATCH,
                            f"positions has {count} elements, and spans name sink rows beyond: give"
                            " a position for each sink row",
                        )
            options = structs.issue_options(
                snapshot=member(Snapshot, snapshot),
                tag=tag,
                positions=address,
                positions_dtype=dtype,
            )
        outcome, ticket = raw.routecap_step_issue(
            self._handle, spans, options, status, self._stream(stream, positions)
        )
        if outcome is Status.LOST and not self._warned_of_loss:
            self._warned_of_loss = True
            more = min(2 * self.slots, MAX_SLOTS)
            warnings.warn(
                f"step {ticket} of {self!r} is lost, and all its rows are missing:"
                f" {raw.routecap_last_error()}. Where slots run out, make the capturer with more"
                f" (it has slots={self.slots}; slots={more}, for instance), or wait for a step with"
                " step.wait() before the next forward begins. Later losses are not warned of:"
                " Step.lost and Capturer.stats().steps_lost tell them.",
                LostStepWarning,
                stacklevel=2,
            )
        return Step(self, ticket, outcome)

    def prepare_issue(
        self,
        names: list[str],
        rows: Sequence[int],
        spans: NDArray[np.void],
        *,
        tag: int = 0,
        positions: Any = None,
        snapshot: Snapshot = Snapshot.TAKEN,
    ) -> "PreparedIssue":
        """What `issue` was just given, for a batch that comes again: `names` of requests with so
        many `rows` each, and the spans of those that are captured.
        """
        address, dtype = 0, 0
        if positions is not None:
            tensor = describe(positions, "positions")
            address, dtype = (
                tensor.address,
                expect_dtype(tensor, (Dtype.I32, Dtype.I64), "positions"),
            )
        options = structs.issue_options(
            snapshot=snapshot, tag=tag, positions=address, positions_dtype=dtype
        )
        handle = raw.issue_prepared(self._handle, names, np.array(rows, np.uint32), spans, options)
        return PreparedIssue(handle, address)

    def step(self, ticket: int) -> Step:
        """The step of a ticket."""
        return Step(self, ticket)

    def _source(
        self,
        name: str,
        ids: Any,
        dtype: DtypeLike | None,
        rows: int | None,
        live_rows: Any,
        row_base: Any,
        row_index: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """What record and record_layers have in common: fields of routecap_source from a tensor
        [rows, k_source] and its companions.
        """
        tensor = describe(ids, name)
        expect_device(tensor, self._place, name)
        kind = expect_kind(tensor, dtype, _IDS, name)
        present, columns, row_stride, column_stride = matrix(tensor, name, "k_source")
        if rows is None:
            rows = present
        elif rows > present:
            raise error(
                Status.ERR_SHAPE_MISMATCH,
                f"{name} has {present} rows, not {rows}: leave rows out, or give as many as"
                " there are",
            )
        fields = {
            "dtype": kind,
            "ids": tensor.address,
            "row_stride": row_stride,
            "column_stride": column_stride,
            "rows": rows,
            "k_source": columns,
        }
        if live_rows is not None or row_base is not None or row_index is not None:
            fields["live_rows"] = _one(live_rows, self._place, "live_rows")
            fields["row_base"] = _one(row_base, self._place, "row_base")
            fields["row_index"] = _one(row_index, self._place, "row_index", rows)
        return tensor, fields

    def _table(self, table: Any, name: str = "table") -> tuple[int, int]:
        if table is None:
            return 0, 0
        tensor = describe(table, name)
        return _one(table, self._place, name), _elements(tensor)

    @documented("routecap_layer_record")
    def record(
        self,
        layer: int,
        ids: Any,
        *,
        dtype: DtypeLike | None = None,
        rows: int | None = None,
        first_row: int = 0,
        live_rows: Any = None,
        row_base: Any = None,
        row_index: Any = None,
        offset: int = 0,
        table: Any = None,
        overlap: bool = False,
        stream: Any = None,
    ) -> None:
        """Copy the ids that a router chose into the sink of one layer.

        ids: a tensor [rows, k_source] of int16, int32, int64 or uint32, of any strides; for packed
        ones say dtype="id16_bf16". live_rows, row_base (one number each), row_index [rows] and
        table are int32 tensors on the same device.
        """
        _, fields = self._source("ids", ids, dtype, rows, live_rows, row_base, row_index)
        address, size = self._table(table)
        source = structs.source(
            **fields,
            first_row=first_row,
            offset=offset,
            table=address,
            table_size=size,
            flags=SourceFlag.OVERLAP if overlap else 0,
        )
        raw.routecap_layer_record(self._handle, layer, source, self._stream(stream, ids))

    @documented("routecap_layers_record")
    def record_layers(
        self,
        ids: Any,
        *,
        tables: Any = None,
        dtype: DtypeLike | None = None,
        rows: int | None = None,
        first_row: int = 0,
        live_rows: Any = None,
        row_base: Any = None,
        row_index: Any = None,
        offset: int = 0,
        overlap: bool = False,
        stream: Any = None,
    ) -> None:
        """Copy the ids of several layers at once, after the last router.

        ids: one tensor [layers, rows, k_source] for layers 0, 1, ..., or {layer: tensor
        [rows, k_source]}, all of one dtype, shape and strides; or what `layer_sources` made of that
        and of the other arguments, which are left out then. tables: None, one tensor
        [layers, table_size], or {layer: tensor [table_size]}. All else as `record` has it.
        """
        sources = ids
        if not isinstance(ids, LayerSources):
            sources = self.layer_sources(
                ids,
                tables=tables,
                dtype=dtype,
                rows=rows,
                first_row=first_row,
                live_rows=live_rows,
                row_base=row_base,
                row_index=row_index,
                offset=offset,
                overlap=overlap,
            )
        if len(sources.layers):
            raw.routecap_layers_record(
                self._handle, sources.source, sources.layers, self._stream(stream, sources.first)
            )

    def layer_sources(
        self,
        ids: Any,
        *,
        tables: Any = None,
        dtype: DtypeLike | None = None,
        rows: int | None = None,
        first_row: int = 0,
        live_rows: Any = None,
        row_base: Any = None,
        row_index: Any = None,
        offset: int = 0,
        overlap: bool = False,
    ) -> "LayerSources":
        """The arguments of `record_layers`, checked once, for memory that is recorded again and
        again. It holds the tensors.
        """
        given = dict(ids if isinstance(ids, Mapping) else enumerate(ids))
        per_layer = (
            tables if tables is None or isinstance(tables, Mapping) else dict(zip(given, tables))
        )
        layers = np.zeros(len(given), structs.layer_source_dtype)
        start = next(iter(given.values()), None)
        described: Tensor | None = None
        first: dict[str, Any] = {}
        addresses, table_addresses = [], []
        for layer, each in given.items():
            name = f"ids of layer {layer}"
            if described is not None and per_layer is None:
                address = address_of_alike(each, start, described)
                if address is not None:
                    addresses.append(address)
                    continue
            tensor, fields = self._source(name, each, dtype, rows, live_rows, row_base, row_index)
            addresses.append(fields.pop("ids"))
            if per_layer is not None:
                if layer not in per_layer:
                    raise error(
                        Status.ERR_ARGUMENT,
                        f"tables has none for layer {layer}: give one for each layer of ids, or"
                        " none at all",
                    )
                table, fields["table_size"] = self._table(
                    per_layer[layer], f"table of layer {layer}"
                )
                table_addresses.append(table)
            if first and fields != first:
                raise error(
                    Status.ERR_SHAPE_MISMATCH,
                    f"{name} differ from those of the first layer in dtype, shape, strides or"
                    " table: record it by itself, with record()",
                )
            first, described = fields, described or tensor
        if given:
            layers["layer"], layers["ids"] = list(given), addresses
            if table_addresses:
                layers["table"] = table_addresses
        flags = SourceFlag.OVERLAP if overlap else 0
        source = structs.source(**first, first_row=first_row, offset=offset, flags=flags)
        return LayerSources(
            source, layers, start, (given, per_layer, live_rows, row_base, row_index)
        )

    @documented("routecap_layer_route")
    def route(
        self,
        layer: int,
        router: Router,
        logits: Any,
        *,
        dtype: DtypeLike | None = None,
        rows: int | None = None,
        first_row: int = 0,
        live_rows: Any = None,
        row_base: Any = None,
        row_index: Any = None,
        tokens: Any = None,
        weights: Any = None,
        stream: Any = None,
    ) -> None:
        """Choose experts from logits [rows, experts] of float32, float16 or bfloat16, into the sink
        of one layer that is declared as recomputed.

        logits: where a framework has no bfloat16, say dtype="bf16" of 16-bit integers.

        tokens: [rows] of int32 or int64, for a router with a hash_table; then logits may be None if
        weights is, and rows is needed. weights: a float32 tensor [rows, k or more] that receives
        the weight of each column.
        """
        fields: dict[str, Any] = {}
        layer_experts = self._config.layer_experts
        experts = (
            self.experts
            if layer_experts is None or not 0 <= layer < len(layer_experts)
            else int(layer_experts[layer])
        )
        if logits is not None:
            tensor = describe(logits, "logits")
            expect_device(tensor, self._place, "logits")
            present, experts, row_stride, column_stride = matrix(tensor, "logits", "experts")
            fields = {
                "dtype": expect_kind(tensor, dtype, FLOATS, "logits"),
                "logits": tensor.address,
                "row_stride": row_stride,
                "column_stride": column_stride,
                "experts": experts,
            }
            rows = present if rows is None else rows
            if rows > present:
                raise error(
                    Status.ERR_SHAPE_MISMATCH,
                    f"logits has {present} rows, not {rows}: leave rows out, or give as many as"
                    " there are",
                )
        elif rows is None:
            raise error(
                Status.ERR_ARGUMENT,
                "rows is needed where there are no logits: give rows=, how many tokens there are",
            )
        else:
            fields["dtype"] = Dtype.F32
        if tokens is not None:
            tensor = describe(tokens, "tokens")
            expect_device(tensor, self._place, "tokens")
            expect_dense(tensor, "tokens")
            if _elements(tensor) < rows:
                raise error(
                    Status.ERR_SHAPE_MISMATCH,
                    f"tokens has shape {tensor.shape}, {rows} elements are needed: give the token"
                    " id of each row",
                )
            fields["tokens"], fields["tokens_dtype"] = (
                tensor.address,
                expect_dtype(tensor, (Dtype.I32, Dtype.I64), "tokens"),
            )
        if weights is not None:
            tensor = describe(weights, "weights")
            expect_device(tensor, self._place, "weights")
            expect_dtype(tensor, (Dtype.F32,), "weights")
            expect_writable(tensor, "weights")
            present, columns, row_stride, column_stride = matrix(tensor, "weights", "k or more")
            if present < rows or columns < self.k or column_stride != 1 or row_stride < self.k:
                raise error(
                    Status.ERR_SHAPE_MISMATCH,
                    f"weights has shape {tensor.shape} and strides {tensor.strides},"
                    f" {(rows, self.k)} is expected, with the columns of a row next to one another",
                )
            fields["weights"], fields["weights_stride"] = tensor.address, row_stride
        memory = structs.logits(
            **fields,
            rows=rows,
            first_row=first_row,
            live_rows=_one(live_rows, self._place, "live_rows"),
            row_base=_one(row_base, self._place, "row_base"),
            row_index=_one(row_index, self._place, "row_index", rows),
        )
        raw.routecap_layer_route(
            self._handle,
            layer,
            router.memory(self._place, experts, self.k),
            memory,
            self._stream(stream, logits),
        )

    @documented("routecap_received_read")
    def read_received(
        self,
        layer: int,
        *,
        ranks: int,
        rank: int,
        tokens_per_rank: int,
        ids: Any = None,
        metadata: Any = None,
        live_rows: Any = None,
        expert_ends: Any = None,
        expert_alignment: int = 0,
        expanded_rows: int = 0,
        experts: int = 0,
        k: int = 0,
        rows: int | None = None,
        expanded: bool = False,
        already_global: bool = False,
        dtype: DtypeLike | None = None,
        global_ids: Any = None,
        executed: Any = None,
        ignored: Any = None,
        stream: Any = None,
    ) -> None:
        """Experimental.

        Read what an expert-parallel dispatch brought to this rank, into `global_ids` and
        `executed`.

        ids [rows, k] of int32 or int64, metadata [rows, 2 + k], live_rows, expert_ends
        [experts / ranks] and executed [ranks, tokens_per_rank, k] of int32, global_ids [rows, k]
        or, expanded, [expanded_rows] of the type of ids, ignored (one number) of int64: all
        C-contiguous.
        """
        k_here = k or self.k
        layer_experts = self._config.layer_experts
        experts_here = experts or (
            self.experts
            if layer_experts is None or not 0 <= layer < len(layer_experts)
            else int(layer_experts[layer])
        )
        addresses: dict[str, int] = {}
        for name, tensor, needed, kinds, written in (
            ("ids", ids, None, (Dtype.I32, Dtype.I64), False),
            ("metadata", metadata, None, (Dtype.I32,), False),
            ("live_rows", live_rows, 1, (Dtype.I32,), False),
            (
                "expert_ends",
                expert_ends,
                experts_here // ranks if ranks else 0,
                (Dtype.I32,),
                False,
            ),
            ("global_ids", global_ids, None, (Dtype.I32, Dtype.I64), True),
            ("executed", executed, ranks * tokens_per_rank * k_here, (Dtype.I32,), True),
            ("ignored", ignored, 1, (Dtype.I64,), True),
        ):
            if tensor is None:
                continue
            found = describe(tensor, name)
            expect_device(found, self._place, name)
            if not (name == "ignored" and found.itemsize == 8):  # uint64 of NumPy, int64 of torch
                kind = expect_dtype(found, kinds, name)
                if name in ("ids", "global_ids"):
                    if dtype is not None and dtype_of(dtype) != kind:
                        raise error(
                            Status.ERR_DTYPE,
                            f"{name} has elements of type {kind.name}, not {dtype_of(dtype).name}:"
                            " ids, global_ids and dtype must be of one type",
                        )
                    dtype = kind
            expect_dense(found, name)
            if written:
                expect_writable(found, name)
            if rows is None and name in ("ids", "metadata"):
                rows = found.shape[0] if found.shape else 0
            if needed is None:
                needed = {"ids": k_here, "metadata": k_here + 2, "global_ids": k_here}[name] * (
                    rows or 0
                )
                if name == "global_ids" and expanded:
                    needed = expanded_rows
            if _elements(found) < needed:
                raise error(
                    Status.ERR_SHAPE_MISMATCH,
                    f"{name} has shape {found.shape}, {needed} elements are needed: give a larger"
                    " tensor",
                )
            addresses[name] = found.address
        flags = (ReceivedFlag.EXPANDED if expanded else 0) | (
            ReceivedFlag.GLOBAL if already_global else 0
        )
        received = structs.received(
            flags=flags,
            ranks=ranks,
            rank=rank,
            experts=experts,
            k=k,
            tokens_per_rank=tokens_per_rank,
            rows=rows or 0,
            expert_alignment=expert_alignment,
            expanded_rows=expanded_rows,
            dtype=Dtype.I32 if dtype is None else dtype_of(dtype),
            **addresses,
        )
        raw.routecap_received_read(self._handle, layer, received, self._stream(stream, metadata))

    @documented("routecap_capturer_probe")
    def probe(
        self, rows: int, layers: int | None = None, *, stream: Any = None
    ) -> NDArray[np.void]:
        """Check what the last forward pass wrote: returns an array [layers] of layer_probe_dtype,
        whose `found` is 0 or a ProbeFlag.
        """
        found = np.zeros(self.layers if layers is None else layers, structs.layer_probe_dtype)
        raw.routecap_capturer_probe(self._handle, rows, found, self._stream(stream))
        return found

    # ---- The sink

    @documented("routecap_sink_bind")
    def bind(self, first_layer: int, tensor: Any) -> None:
        """Use a tensor as the sink of a layer ([rows, k]) or of several ([layers, rows, k]). It has
        int16, int32 or int64, and is kept alive until the capturer is closed.
        """
        found = describe(tensor, "tensor")
        expect_device(found, self._place, "tensor")
        expect_writable(found, "tensor")
        dtype = expect_dtype(found, (Dtype.I16, Dtype.I32, Dtype.I64), "tensor")
        if len(found.shape) not in (2, 3):
            raise error(
                Status.ERR_SHAPE_MISMATCH,
                f"tensor has shape {found.shape}, [rows, k] or [layers, rows, k] is expected: give"
                " a tensor of two or three dimensions",
            )
        *outer, rows, k = found.shape
        row_stride, column_stride = found.strides[-2:]
        if k > 1 and column_stride != 1:
            raise error(
                Status.ERR_ARGUMENT,
                "tensor: the ids of a row must be next to one another: give a tensor whose last"
                " dimension is dense",
            )
        if (
            rows > 1
            and row_stride < k
            or outer
            and outer[0] > 1
            and found.strides[0] < (rows - 1) * row_stride + k
        ):
            raise error(
                Status.ERR_SHAPE_MISMATCH,
                f"tensor has strides {found.strides}: rows or layers overlap. Give one that is not"
                " expanded",
            )
        if found.address % found.itemsize:
            raise error(
                Status.ERR_ARGUMENT,
                "tensor is not aligned to its elements: give one whose address is a multiple of"
                " their size",
            )
        layers = outer[0] if outer else 1
        layer_stride = found.strides[0] if layers > 1 else 0
        sink = structs.sink(
            dtype=dtype,
            ids=found.address,
            rows=rows,
            k=k,
            row_stride=row_stride if rows > 1 else 0,
            layer_stride=layer_stride,
        )
        raw.routecap_sink_bind(self._handle, first_layer, layers, sink)
        raw.keep(self._handle, found.holder)

    @documented("routecap_sink_layer")
    def sink(self, layer: int) -> Any:
        """The sink of a layer, [rows, k]: a NumPy array, or a DeviceArray on CUDA; None if it has
        no memory yet. It stays valid after `close`.
        """
        memory = structs.sink.empty()
        handle = self._handle
        raw.routecap_sink_layer(handle, layer, memory)
        dtype, address, rows, k, row_stride, _ = structs.sink.read(memory)
        if not address:
            return None
        if not self._host:
            return DeviceArray(address, Dtype(dtype), (rows, k), row_stride, self._place, handle)
        kind = numpy_dtype(dtype)
        elements = (rows - 1) * row_stride + k
        view: NDArray[Any] = np.ndarray(
            (rows, k),
            kind,
            raw.memory(address, elements * kind.itemsize, 1, handle),
            strides=(row_stride * kind.itemsize, kind.itemsize),
        )
        return view

    # ---- Requests

    def _resolve(self, request: Any) -> int:
        if type(request) is Request:
            if request.capturer is not self:
                raise error(
                    Status.ERR_UNKNOWN_REQUEST,
                    f"{request!r} belongs to another capturer: give it to that one, or open one"
                    " here",
                )
            return request.handle
        if isinstance(request, str):
            try:
                return self._names[request]
            except KeyError:
                raise error(
                    Status.ERR_UNKNOWN_REQUEST,
                    f"no request {request!r} is open: open() comes first, and finish() and close()"
                    " end it",
                ) from None
        try:
            return index(request)
        except TypeError:
            raise TypeError(
                "a request is a Request, its handle or the string id under which it was opened, "
                f"not {request!r}: give what open() returned"
            ) from None

    def _name(self, handle: int, id: str | None) -> Request:
        if id is not None:
            self._names[id] = handle
            self._ids[handle] = id
        return Request(self, handle, id)

    def _expect_free(self, id: str | None) -> None:
        if id is not None and id in self._names:
            raise error(
                Status.ERR_ARGUMENT,
                f"request {id!r} is open already: finish or close it first, or take another id",
            )

    def _forget(self, handle: int) -> None:
        id = self._ids.pop(handle, None)
        if id is not None:
            self._names.pop(id, None)

    def _ticket(self, step: Any) -> int:
        if type(step) is Step and step.capturer is not self:
            raise error(
                Status.ERR_UNKNOWN_STEP,
                f"{step!r} belongs to another capturer: give it to that one",
            )
        try:
            return index(step)
        except TypeError:
            raise TypeError(
                f"a step is a Step or its ticket, not {step!r}: give what issue() returned"
            ) from None

    @staticmethod
    def _open_options(policy: Policy | PolicyName) -> bytes | None:
        return (
            None if policy is Policy.KEEP else structs.open_options(policy=member(Policy, policy))
        )

    @documented("routecap_request_open")
    def open(self, id: str | None = None, *, policy: Policy | PolicyName = Policy.KEEP) -> Request:
        """Open a request, optionally under a string id. Every method accepts the id until the
        request ends.
        """
        self._expect_free(id)
        handle = bytearray(8)
        raw.routecap_request_open(self._handle, self._open_options(policy), handle)
        return self._name(int.from_bytes(handle, sys.byteorder), id)

    def open_batch(
        self, requests: int | Sequence[str], *, policy: Policy | PolicyName = Policy.KEEP
    ) -> NDArray[np.uint64]:
        """Open many requests in one call: a number of them, or one for each string id.

        Returns their handles.
        """
        ids = None if isinstance(requests, int) else requests
        if ids is not None:
            if len(set(ids)) != len(ids):
                twice = next(id for id in ids if list(ids).count(id) > 1)
                raise error(
                    Status.ERR_ARGUMENT,
                    f"{twice!r} is given twice: give each request an id of its own",
                )
            for id in ids:
                self._expect_free(id)
        handles = np.zeros(requests if isinstance(requests, int) else len(requests), np.uint64)
        raw.routecap_request_open(self._handle, self._open_options(policy), handles)
        if ids is not None:
            for handle, id in zip(handles.tolist(), ids):
                self._name(handle, id)
        return handles

    def request(self, request: RequestLike) -> Request:
        """The Request of a string id or handle."""
        if isinstance(request, Request):
            return request
        handle = self._resolve(request)
        return Request(self, handle, self._ids.get(handle))

    def handles(self, ids: Sequence[RequestLike]) -> NDArray[np.uint64]:
        """The handles of requests, for use in spans and batches."""
        if isinstance(ids, (str, Request, int)):
            raise TypeError(
                f"{ids!r} is one request, where a sequence of them is expected: give [{ids!r}]"
            )
        return np.fromiter((self._resolve(id) for id in ids), np.uint64, len(ids))

    def __contains__(self, id: object) -> bool:
        """Whether a string id is open."""
        return id in self._names

    @documented("routecap_request_accept")
    def accept(
        self, request: RequestLike, step: Step | int, keep: int | Sequence[int] | NDArray[Any]
    ) -> None:
        """Settle the drafts of a request in one step: keep the first `keep` of them, or those with
        the given indices, such as the accepted path of a tree.
        """
        if isinstance(keep, (int, np.integer)):
            rows, count = None, int(keep)
        else:
            rows = integers(keep, np.uint32)
            count = len(rows)  # type: ignore[arg-type]
        raw.routecap_request_accept(
            self._handle, self._resolve(request), self._ticket(step), rows, count
        )

    @documented("routecap_request_accept_batch")
    def accept_batch(
        self,
        items: NDArray[np.void],
        paths: NDArray[np.uint32] | None = None,
        *,
        check: bool = False,
    ) -> Status:
        """Settle the drafts of many requests in one call: an array of accept_dtype, whose `status`
        is filled. Returns OK, or PARTIAL if items were refused: with `check` that is a
        PartialError, which names them.

        Each item keeps its first `count` rows; or, with `paths`, those that `count` indices name:
        all items' indices, one after another.
        """
        self._expect_items(items, "accept_dtype")
        if paths is None:
            items["rows"] = 0
        else:
            paths = integers(paths, np.uint32)
            size = paths.size  # type: ignore[union-attr]
            ends = np.cumsum(items["count"], dtype=np.uint64)
            if (
                items["count"].max(initial=0) > size or len(ends) and int(ends[-1]) != size
            ):  # counts beyond might wrap the sum
                raise error(
                    Status.ERR_SHAPE_MISMATCH,
                    f"paths has {size} indices, the items keep {sum(items['count'].tolist())}: give"
                    " as many as their counts add up to",
                )
            items["rows"] = (ends - items["count"]) * np.uint64(4) + np.uint64(
                describe(paths, "paths").address
            )
        status: Status = raw.routecap_request_accept_batch(self._handle, items)
        if check:
            check_items(items["request"], items["status"], self._ids)
        return status

    @documented("routecap_request_truncate")
    def truncate(self, request: RequestLike, rows: int) -> None:
        """Cut a request: remove all rows from position `rows` on."""
        raw.routecap_request_truncate(self._handle, self._resolve(request), rows)

    @documented("routecap_request_fork")
    def fork(
        self, request: RequestLike, rows: int | None = None, *, id: str | None = None
    ) -> Request:
        """Open a request that begins with the first `rows` rows of another; None: all rows."""
        self._expect_free(id)
        return self._name(
            raw.routecap_request_fork(self._handle, self._resolve(request), rows_of(rows))[1], id
        )

    @documented("routecap_request_attach")
    def attach(self, request: RequestLike, routing: Routing, rows: int | None = None) -> None:
        """Add the rows before position `rows` (None: all rows) of the routing of the request that
        computed them.
        """
        raw.routecap_request_attach(
            self._handle, self._resolve(request), routing._handle, rows_of(rows)
        )

    # ---- Prefixes

    @documented("routecap_request_publish")
    def publish(
        self,
        request: RequestLike,
        store: Store,
        first: int,
        keys: Keys,
        *,
        generation: int | None = None,
    ) -> None:
        """Publish rows of a request from position `first` on: one block for each key. The rows
        may be in flight; the call does not wait for them. `generation` is the store's unless it is
        given.
        """
        data, count = checked_keys(keys, store.key_bytes)
        raw.routecap_request_publish(
            self._handle,
            self._resolve(request),
            store._handle,
            first,
            data,
            count,
            store._generation(generation),
        )

    @documented("routecap_request_adopt")
    def adopt(
        self,
        request: RequestLike,
        store: Store,
        first: int,
        keys: Keys,
        *,
        generation: int | None = None,
    ) -> Adoption:
        """Add rows of a store to a request from position `first` on: one block for each key. Rows
        that the store does not have are missing, with a reason.
        """
        data, count = checked_keys(keys, store.key_bytes)
        memory = structs.adoption.empty()
        raw.routecap_request_adopt(
            self._handle,
            self._resolve(request),
            store._handle,
            first,
            data,
            count,
            store._generation(generation),
            memory,
        )
        return Adoption._make(structs.adoption.read(memory)[1:])

    @documented("routecap_request_publish_batch")
    def publish_batch(
        self,
        store: Store,
        items: Sequence[tuple[RequestLike, int, Keys]],
        *,
        generation: int | None = None,
        check: bool = False,
    ) -> NDArray[np.int32]:
        """Publish rows of many requests in one call: (request, first, keys) for each. Returns the
        status of each; with `check`, a refused item raises a PartialError.
        """
        if not items:
            return np.zeros(0, np.int32)
        return self._prefixes(
            raw.routecap_request_publish_batch,
            structs.publish_dtype,
            store,
            items,
            generation,
            check,
        )["status"]

    @documented("routecap_request_adopt_batch")
    def adopt_batch(
        self,
        store: Store,
        items: Sequence[tuple[RequestLike, int, Keys]],
        *,
        generation: int | None = None,
        check: bool = False,
    ) -> NDArray[np.void]:
        """Add rows of a store to many requests in one call: (request, first, keys) for each.
        Returns an array of adopt_dtype, which says what was found for each; with `check`, a refused
        item raises a PartialError.
        """
        if not items:
            return np.zeros(0, structs.adopt_dtype)
        return self._prefixes(
            raw.routecap_request_adopt_batch, structs.adopt_dtype, store, items, generation, check
        )

    def _prefixes(
        self,
        call: Callable[..., Any],
        dtype: "np.dtype[np.void]",
        store: Store,
        items: Sequence[tuple[RequestLike, int, Keys]],
        generation: int | None,
        check: bool,
    ) -> NDArray[np.void]:
        array = np.zeros(len(items), dtype)
        held = []
        for item, (request, first, keys) in zip(array, items):
            data, count = checked_keys(keys, store.key_bytes)
            keys = np.frombuffer(data, np.uint8) if count else np.zeros(0, np.uint8)
            held.append(keys)
            item["request"], item["first"] = self._resolve(request), first
            item["keys"], item["count"] = keys.ctypes.data if count else 0, count
        call(self._handle, store._handle, array, store._generation(generation))
        array["keys"] = 0  # they are not held from here on
        if check:
            check_items(array["request"], array["status"], self._ids)
        return array

    # ---- Reading

    @documented("routecap_request_coverage")
    def coverage(self, request: RequestLike, first: int = 0, rows: int | None = None) -> Coverage:
        """Count the valid and the missing cells of a range of rows."""
        handle = self._resolve(request)
        return read_coverage(
            lambda memory, blocks: raw.routecap_request_coverage(
                self._handle, handle, first, rows_of(rows), memory, blocks
            )
        )

    def missing(
        self, request: RequestLike, first: int = 0, rows: int | None = None
    ) -> NDArray[np.void]:
        """List the blocks of missing cells in a range of rows: an array of missing_dtype, whose
        `reason` is a Missing (routecap_request_coverage).
        """
        handle = self._resolve(request)
        return read_missing(
            lambda memory, blocks: raw.routecap_request_coverage(
                self._handle, handle, first, rows_of(rows), memory, blocks
            )
        )

    @documented("routecap_request_extract")
    def extract(
        self,
        request: RequestLike,
        first: int = 0,
        rows: int | None = None,
        *,
        mode: Extract | ExtractName = Extract.SHARE,
        strict: bool = False,
        allow_recomputed: bool = False,
    ) -> Routing:
        """Read `rows` rows from position `first` on into a routing. None: up to the end;
        routecap.LANDED: up to the first row in flight.
        """
        mode = mode if mode is Extract.SHARE else member(Extract, mode)
        flags = read_flags(strict, allow_recomputed)
        return Routing._of(
            raw.routecap_request_extract(
                self._handle, self._resolve(request), first, rows_of(rows), mode, flags
            )[1]
        )

    @documented("routecap_request_extract_batch")
    def extract_batch(self, items: NDArray[np.void], *, check: bool = False) -> Routings:
        """Read rows of many requests in one call: an array of extract_dtype, whose `status` is
        filled.

        An item that was refused is an error when its routing is asked for. With `check` the call
        raises a PartialError: it names the items that were refused, and has the other routings.
        """
        self._expect_items(items, "extract_dtype")
        routings = Routings(raw.routecap_request_extract_batch(self._handle, items), items)
        if check:
            check_items(items["request"], routings.statuses, self._ids, routings)
        return routings

    @staticmethod
    def _expect_items(items: NDArray[np.void], form: str) -> None:
        structs.expect_array(items, "items", form)
        if items.ndim != 1:
            raise error(
                Status.ERR_DTYPE,
                f"items has shape {items.shape}, where one dimension is expected: give"
                " items.ravel()",
            )

    @documented("routecap_request_extract_into")
    def extract_into(
        self,
        request: RequestLike,
        out: Any,
        first: int = 0,
        rows: int | None = None,
        *,
        mask: NDArray[Any] | None = None,
        fill: int = FILL,
        order: Order | OrderName = Order.ROW_MAJOR,
        first_layer: int = 0,
        layers: int | None = None,
        strict: bool = False,
        allow_recomputed: bool = False,
    ) -> Status:
        """Copy rows of a request into an array, like Routing.copy_to, but without making a routing.
        If `rows` is not given, it is the number of rows of `out`.
        """
        layers = self.layers - first_layer if layers is None else layers
        if rows is None:
            shape = describe(out, "out").shape
            rows = (
                shape[0 if member(Order, order) == Order.ROW_MAJOR else 1] if len(shape) == 3 else 0
            )
        handle = self._resolve(request)
        status, _ = copy_into(
            lambda options, memory, mask: raw.routecap_request_extract_into(
                self._handle, handle, first, rows, options, memory, mask
            ),
            out,
            mask,
            self.k,
            fill,
            order,
            first_layer,
            layers,
            read_flags(strict, allow_recomputed),
        )
        return Status(status)

    # ---- The end of a request

    @documented("routecap_request_finish")
    def finish(self, request: RequestLike, rows: int | None = None) -> Routing:
        """End a request and get its routing, with exactly `rows` rows: S-1 for a sequence of S
        tokens.

        None: the request's length. The call does not wait: see Routing.wait.
        """
        handle = self._resolve(request)
        routing = Routing._of(raw.routecap_request_finish(self._handle, handle, rows_of(rows))[1])
        self._forget(handle)
        return routing

    @documented("routecap_request_finish_batch")
    def finish_batch(self, items: NDArray[np.void], *, check: bool = False) -> Routings:
        """End many requests in one call: an array of finish_dtype, whose `status` is filled.

        An item that was refused is an error when its routing is asked for. With `check` the call
        raises a PartialError: it names the items that were refused, and has the other routings.
        """
        self._expect_items(items, "finish_dtype")
        routings = Routings(raw.routecap_request_finish_batch(self._handle, items), items)
        if self._ids:
            self._forget_all(items["request"], routings.statuses)
        if check:
            check_items(items["request"], routings.statuses, self._ids, routings)
        return routings

    @documented("routecap_request_close")
    def close_request(self, request: RequestLike) -> None:
        """End a request and drop its rows.

        All requests of a closed capturer have ended. This then does nothing, as finalizers need it.
        """
        if self.closed:
            return
        handle = self._resolve(request)
        try:
            raw.routecap_request_close(self._handle, handle)
        except Error:
            if not self.closed:  # by another thread since then
                raise
        self._forget(handle)

    @documented("routecap_request_close_batch")
    def close_batch(
        self,
        requests: NDArray[np.uint64] | Sequence[RequestLike],
        status: NDArray[np.int32] | None = None,
        *,
        check: bool = False,
    ) -> Status:
        """End many requests and drop their rows; `status`, an int32 array, receives their statuses.
        Returns OK, or PARTIAL if some were unknown: with `check` that is a PartialError, which
        names them.

        All requests of a closed capturer have ended. This then does nothing.
        """
        if self.closed:
            return self._closed_all(status)
        handles = requests if isinstance(requests, np.ndarray) else self.handles(requests)
        if handles.dtype != np.uint64 or handles.ndim != 1:
            raise error(
                Status.ERR_DTYPE,
                f"requests is {structs.what_it_is(handles)} of shape {handles.shape}, where a list "
                "of requests is expected, or an array of handles as Capturer.open_batch gives",
            )
        if status is None:
            status = np.empty(len(handles), np.int32)
        elif status.dtype != np.int32 or status.shape != handles.shape:
            raise error(
                Status.ERR_SHAPE_MISMATCH,
                "status must be an int32 array with an element for each request:"
                " np.zeros(len(requests), np.int32)",
            )
        try:
            outcome: Status = raw.routecap_request_close_batch(
                self._handle, handles, status, len(handles)
            )
        except Error:
            if not self.closed:  # by another thread since then
                raise
            return self._closed_all(status)
        if self._ids:
            self._forget_all(handles, status)
        if check:
            check_items(handles, status, self._ids)
        return outcome

    @staticmethod
    def _closed_all(status: NDArray[np.int32] | None) -> Status:
        if status is not None:
            status[:] = Status.OK
        return Status.OK

    def _forget_all(self, handles: NDArray[np.uint64], statuses: NDArray[np.int32]) -> None:
        for handle, status in zip(handles.tolist(), statuses.tolist()):
            if status == Status.OK:
                self._forget(handle)

    # ---- For operators

    @documented("routecap_capturer_stats")
    def stats(self) -> Stats:
        """Read the counters. Does not wait."""
        memory = structs.stats.empty()
        raw.routecap_capturer_stats(self._handle, memory)
        return Stats._make(structs.stats.read(memory))

    @documented("routecap_capturer_layer_stats")
    def layer_stats(self, layers: int | None = None) -> NDArray[np.void]:
        """Read the counters of every layer: an array of layer_stats_dtype. Does not wait."""
        counters = np.zeros(self.layers if layers is None else layers, structs.layer_stats_dtype)
        raw.routecap_capturer_layer_stats(self._handle, counters)
        return counters

    @documented("routecap_capturer_load")
    def load(self, tag: int | None = None) -> Load:
        """How often each expert was chosen since the capturer was created; with a tag, only in
        steps with this tag. Needs the setting `load`, and with a tag `load_tags`. Two readings make
        a window: capturer.load().since(earlier).
        """
        memory = structs.load.empty()
        raw.routecap_capturer_load(self._handle, tag, memory, bytearray())
        layers, experts, *_ = structs.load.read(memory)
        counts = np.zeros((LOAD_PHASES, layers, experts), np.uint64)
        raw.routecap_capturer_load(self._handle, tag, memory, counts)
        _, _, _, steps, first_step, last_step, rows_prefill, rows_decode = structs.load.read(memory)
        config = self._config
        return Load(
            counts,
            steps,
            first_step,
            last_step,
            rows_prefill,
            rows_decode,
            layer_map=np.arange(layers) if config.layer_map is None else config.layer_map[:layers],
            layer_experts=(
                np.full(layers, experts)
                if config.layer_experts is None
                else config.layer_experts[:layers]
            ),
        )

    @documented("routecap_capturer_load_tags")
    def load_tags(self) -> list[int]:
        """The tags whose load is counted separately, the oldest first. Needs the setting
        `load_tags`.
        """
        tags = np.zeros(MAX_LOAD_TAGS, np.uint64)
        count = raw.routecap_capturer_load_tags(self._handle, tags)[1]
        return [int(tag) for tag in tags[:count]]

    @documented("routecap_capturer_dump")
    def dump(self, requests: int = 100) -> dict[str, Any]:
        """Describe the capturer and at most this many of its requests, for an engine that hangs.
        Returns even if other threads are stuck; docs/diagnostics.md describes the result.
        """
        memory = bytearray()
        while True:
            try:
                _, written = raw.routecap_capturer_dump(self._handle, requests, memory)
                found: dict[str, Any] = json.loads(memory[:written])
                return found
            except Error as small:
                if small.status != Status.ERR_BUFFER_TOO_SMALL or small.needed is None:
                    raise
                memory = bytearray(small.needed)

    @documented("routecap_capturer_progress")
    def progress(self) -> None:
        """File the steps that have landed, on this thread. Needed with manual_progress."""
        raw.routecap_capturer_progress(self._handle)


@documented("routecap_received_merge")
def received_merge(tables: Sequence[NDArray[np.int32]]) -> NDArray[np.int32]:
    """Experimental. Merge the tables `executed` of all ranks, in host memory."""
    arrays = [np.ascontiguousarray(table) for table in tables]
    if not arrays or any(
        array.dtype != np.int32 or array.shape != arrays[0].shape for array in arrays
    ):
        raise error(
            Status.ERR_SHAPE_MISMATCH,
            "tables must be int32 arrays of one shape: give each rank's table `executed` of"
            " Capturer.read_received",
        )
    addresses = np.array([describe(array, "table").address for array in arrays], np.uint64)
    merged = np.empty_like(arrays[0])
    raw.routecap_received_merge(addresses, merged.size, merged)
    return merged

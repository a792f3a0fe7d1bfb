"""The part of a capturer that runs in a forward pass, by one thread at a time."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import _structs as structs
from ._arguments import (
    LayersLike,
    TablesLike,
    by_layer,
    elements,
    expect_no_expert,
    host_number,
    int32,
    one,
    per_row,
    shape_and_dtype,
)
from ._constants import MAX_SLOTS, Dtype, Snapshot, SourceFlag, SpanFlag, Status
from ._docs import documented
from ._errors import LostStepWarning, error, member, warn
from ._library import raw
from ._protocols import NumberLike, StreamLike, Tensor, TensorLike
from ._router import FLOATS, Router
from ._sink_memory import SinkMemory
from ._steps import LayerSources, PreparedIssue, Step
from ._tensors import (
    address_of_alike,
    bytes_at,
    current_stream,
    describe,
    expect_dense,
    expect_device,
    expect_dtype,
    expect_kind,
    expect_writable,
    matrix,
    stream_of,
)
from ._weights import weights_of_source
from .names import DtypeLike, SnapshotName, WeightsType

_IDS = Dtype.I16, Dtype.I32, Dtype.U32, Dtype.I64


class ForwardPath(SinkMemory):
    """Capturer: steps, and what routers chose in them."""

    def _stream(self, stream: StreamLike | None, tensor: object = None) -> int:
        if stream is None:
            setting = self._stream_setting
            stream = setting() if callable(setting) else setting
            if stream is None:
                return 0 if self._host or self._disabled else current_stream(tensor, self._place)
        return stream_of(stream)

    @documented("routecap_step_begin")
    def begin(self, rows: int, *, stream: StreamLike | None = None) -> None:
        """Begin a step of up to `rows` rows, at the start of a forward pass."""
        raw.routecap_step_begin(self._handle, rows, self._stream(stream))

    @documented("routecap_step_snapshot")
    def snapshot(self, *, stream: StreamLike | None = None) -> None:
        """Take a snapshot of the rows that were begun, after the last write of the forward pass."""
        raw.routecap_step_snapshot(self._handle, self._stream(stream))

    @documented("routecap_step_discard")
    def discard(self, *, stream: StreamLike | None = None) -> None:
        """Discard the last forward pass, such as a warm-up run."""
        raw.routecap_step_discard(self._handle, self._stream(stream))

    @documented("routecap_step_issue")
    def issue(
        self,
        spans: NDArray[np.void] | None,
        *,
        tag: int = 0,
        positions: TensorLike | None = None,
        snapshot: Snapshot | SnapshotName = Snapshot.TAKEN,
        status: NDArray[np.int32] | None = None,
        stream: StreamLike | None = None,
    ) -> Step:
        """Issue the last forward pass, and say which of its rows belong to which request.

        spans: an array of span_dtype (see routecap.spans), C-contiguous; None for none. positions:
        a tensor of int32 or int64 with the position of each sink row, for spans with
        DEVICE_POSITIONS; with Snapshot.LATER it is read by `arrive`, and kept alive until then.
        status: an int32 array that receives each span's.

        At most `slots` steps may be in flight. One that is issued beyond them is lost: all its rows
        are missing. Step.lost says so, and a LostStepWarning does the first time. On the host
        backend nothing is lost without the setting `may_lose`.
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
                if spans is not None and (count := elements(tensor)) < self.rows:
                    reading = spans[(spans["flags"] & SpanFlag.DEVICE_POSITIONS) != 0]
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
        if positions is not None and member(Snapshot, snapshot) is Snapshot.LATER:
            self._keep_in_flight(ticket, positions)
        return self._step_of(outcome, ticket)

    def _step_of(self, outcome: Status, ticket: int) -> Step:
        """The step of a call that was made. Warns of the first that is lost."""
        if outcome is Status.LOST and not self._warned_of_loss:
            self._warned_of_loss = True
            more = min(2 * self.slots, MAX_SLOTS)
            warn(
                f"step {ticket} of {self!r} is lost, and all its rows are missing:"
                f" {raw.routecap_last_error()}. If too many were in flight, make the capturer with"
                f" more (it has slots={self.slots}; slots={more}, for instance), or wait for a step with"
                " step.wait() before the next is issued. Later losses are not warned of:"
                " Step.lost and Capturer.stats().steps_lost tell them.",
                LostStepWarning,
            )
        return Step(self, ticket, outcome)

    def prepare_issue(
        self,
        names: list[str],
        rows: Sequence[int],
        spans: NDArray[np.void],
        *,
        tag: int = 0,
        positions: TensorLike | None = None,
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

    def issued(self, ticket: int) -> Step:
        """The step of a ticket."""
        return Step(self, ticket)

    def _k_of(self, layers: Iterable[int]) -> int:
        """The most experts of a token in any of some layers."""
        of = self._config.layer_k
        return max((int(of[each]) for each in layers if 0 <= each < len(of)), default=self.k)

    def _source(
        self,
        name: str,
        k: int,
        ids: TensorLike,
        dtype: DtypeLike | None,
        rows: int | None,
        columns: int | None,
        none: int | None,
        first_row: int,
        live_rows: NumberLike | None,
        row_base: NumberLike | None,
        row_index: TensorLike | None,
    ) -> tuple[Tensor, dict[str, int]]:
        """What record and record_layers have in common: fields of routecap_source from a tensor
        [rows, k], or [rows, columns], and its companions.
        """
        expect_no_expert(none)
        tensor = describe(ids, name)
        expect_device(tensor, self._place, name)
        kind = expect_kind(tensor, dtype, _IDS, name)
        present, there, row_stride, column_stride = matrix(tensor, name, "k")
        wanted = k if columns is None else columns
        if there != wanted and not self._disabled:
            stated = "" if columns is None else f", and columns={columns} was said"
            raise error(
                Status.ERR_SHAPE_MISMATCH,
                f"{name} has {shape_and_dtype(tensor)}, the capturer has k={k}{stated}:"
                f" (rows, {wanted}) is expected. Transpose what is [k, rows]; make the capturer with"
                f" the model's k; or say columns={there} if each row has its {k} experts first"
                " and others behind them, as fused shared experts are",
            )
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
            "ids_bytes": bytes_at(tensor),
            "row_stride": row_stride,
            "column_stride": column_stride,
            "k_source": there,
            "none": none or 0,
            **self._placement(rows, first_row, live_rows, row_base, row_index),
        }
        return tensor, fields

    def _weights(
        self, weights: TensorLike, dtype: WeightsType | None, shape: tuple[int, ...], name: str
    ) -> dict[str, int]:
        wanted = self._config.weights_dtype
        if wanted is None and not self._disabled:
            raise error(
                Status.ERR_ARGUMENT,
                f"{name} is given, and the capturer keeps none: make it with weights=, the type that"
                " they have",
            )
        return weights_of_source(weights, dtype, shape, self._place, wanted or 0, name)[1]

    def _placement(
        self,
        rows: int,
        first_row: int,
        live_rows: NumberLike | None,
        row_base: NumberLike | None,
        row_index: TensorLike | None,
    ) -> dict[str, int]:
        """The fields that say which sink rows the rows are."""
        fields = {"rows": rows, "first_row": first_row}
        if row_index is not None:
            fields["row_index"] = per_row(row_index, self._place, "row_index", rows)
        live, base = host_number(live_rows), host_number(row_base)
        if live is not None and row_index is None:
            fields["rows"] = max(0, min(live, rows))
        elif live is not None:
            raise error(
                Status.ERR_ARGUMENT,
                "live_rows is an int beside a row_index: give a row_index that is negative behind"
                " the live rows, or a tensor of one element",
            )
        elif live_rows is not None:
            fields["live_rows"] = one(live_rows, self._place, "live_rows")
        if base is not None:
            fields["first_row"] = first_row + base
        elif row_base is not None:
            fields["row_base"] = one(row_base, self._place, "row_base")
        return fields

    def _table(self, table: TensorLike | None, name: str = "table") -> tuple[int, int]:
        if table is None:
            return 0, 0
        found = int32(table, self._place, name, "(ids,)")
        if len(found.shape) != 1:
            raise error(
                Status.ERR_SHAPE_MISMATCH,
                f"{name} has shape {found.shape}, (ids,) is expected: give a number for each id",
            )
        return found.address, found.shape[0]

    @documented("routecap_layer_record")
    def record(
        self,
        layer: int,
        ids: TensorLike,
        *,
        dtype: DtypeLike | None = None,
        rows: int | None = None,
        columns: int | None = None,
        first_row: int = 0,
        live_rows: NumberLike | None = None,
        row_base: NumberLike | None = None,
        row_index: TensorLike | None = None,
        offset: int = 0,
        table: TensorLike | None = None,
        none: int | None = None,
        weights: TensorLike | None = None,
        weights_dtype: WeightsType | None = None,
        overlap: bool = False,
        stream: StreamLike | None = None,
    ) -> None:
        """Copy the ids that a router chose into the sink of one layer, whose k may be its own.

        ids: a tensor [rows, k] of int16, int32, int64 or uint32, of any strides; for packed ones say
        dtype="id16_bf16". Where each row has more columns than k, of which the first k are its
        experts, say how many with columns=. row_index [rows] and table are int32 tensors on the same
        device. live_rows and row_base are one number each: an int, or such a tensor of one element,
        which is read when the stream gets there.

        none: where layer_min_k allows fewer experts, the number that the router writes into the
        columns behind them, such as -1 or the number of experts. Without it such cells are missing.

        weights: a tensor of the shape of ids with the weight of each id, of the type that the setting
        `weights` names; where a framework has no bfloat16, say weights_dtype="bf16" of 16-bit
        integers. With the setting "bfloat16", packed ids bring theirs.
        """
        tensor, fields = self._source(
            "ids",
            self._k_of([layer]),
            ids,
            dtype,
            rows,
            columns,
            none,
            first_row,
            live_rows,
            row_base,
            row_index,
        )
        if weights is not None:
            fields.update(self._weights(weights, weights_dtype, tensor.shape, "weights"))
        address, size = self._table(table)
        source = structs.source(
            **fields,
            offset=offset,
            table=address,
            table_size=size,
            flags=SourceFlag.OVERLAP if overlap else 0,
        )
        raw.routecap_layer_record(self._handle, layer, source, self._stream(stream, ids))

    @documented("routecap_layers_record")
    def record_layers(
        self,
        ids: LayersLike | LayerSources,
        *,
        tables: TablesLike | None = None,
        dtype: DtypeLike | None = None,
        rows: int | None = None,
        columns: int | None = None,
        first_row: int = 0,
        live_rows: NumberLike | None = None,
        row_base: NumberLike | None = None,
        row_index: TensorLike | None = None,
        offset: int = 0,
        none: int | None = None,
        weights: LayersLike | None = None,
        weights_dtype: WeightsType | None = None,
        overlap: bool = False,
        whole_step: bool = False,
        stream: StreamLike | None = None,
    ) -> None:
        """Copy the ids of several layers at once, after the last router.

        ids: one tensor [layers, rows, k] of all layers, a list of theirs, or {layer: tensor
        [rows, k]} of some, all of one dtype, shape and strides (k is the largest of these layers: of
        a layer with fewer, the first columns are read); or what `layer_sources` made of that
        and of the other arguments, which are left out then. tables: None, one tensor
        [layers, table_size], or {layer: tensor [table_size]}. weights: None, as the ids, or {layer:
        tensor} of some of their layers. All else as `record` has it.

        whole_step: The call is the whole step: it begins it, with as many rows as the ids have, and
        takes its snapshot. Leave `begin` and `snapshot` out then.
        """
        sources = (
            ids
            if isinstance(ids, LayerSources)
            else self.layer_sources(
                ids,
                tables=tables,
                dtype=dtype,
                rows=rows,
                columns=columns,
                first_row=first_row,
                live_rows=live_rows,
                row_base=row_base,
                row_index=row_index,
                offset=offset,
                none=none,
                weights=weights,
                weights_dtype=weights_dtype,
                overlap=overlap,
                whole_step=whole_step,
            )
        )
        if len(sources.layers) or sources.whole_step:
            raw.routecap_layers_record(
                self._handle, sources.source, sources.layers, self._stream(stream, sources.first)
            )

    def layer_sources(
        self,
        ids: LayersLike,
        *,
        tables: TablesLike | None = None,
        dtype: DtypeLike | None = None,
        rows: int | None = None,
        columns: int | None = None,
        first_row: int = 0,
        live_rows: NumberLike | None = None,
        row_base: NumberLike | None = None,
        row_index: TensorLike | None = None,
        offset: int = 0,
        none: int | None = None,
        weights: LayersLike | None = None,
        weights_dtype: WeightsType | None = None,
        overlap: bool = False,
        whole_step: bool = False,
    ) -> "LayerSources":
        """The arguments of `record_layers`, checked once, for memory that is recorded again and
        again. It holds the tensors.
        """
        given = by_layer(ids)
        if not isinstance(ids, Mapping) and len(given) != self.layers and not self._disabled:
            raise error(
                Status.ERR_SHAPE_MISMATCH,
                f"ids are of {len(given)} layers, the capturer has {self.layers}: give"
                " [layers, rows, k] of all, or {layer: tensor} of some",
            )
        per_layer = None if tables is None else by_layer(tables)
        if per_layer is not None and not isinstance(tables, Mapping):
            if len(per_layer) != len(given):
                raise error(
                    Status.ERR_SHAPE_MISMATCH,
                    f"tables are of {len(per_layer)} layers, ids of {len(given)}: give one for each",
                )
            per_layer = dict(zip(given, per_layer.values()))
        layers = np.zeros(len(given), structs.layer_source_dtype)
        start, k = next(iter(given.values()), None), self._k_of(given)
        described: Tensor | None = None
        first: dict[str, int] = {}
        addresses, table_addresses = [], []
        for layer, each in given.items():
            name = f"ids of layer {layer}"
            if described is not None and per_layer is None:
                address = address_of_alike(each, start, described)
                if address is not None:
                    addresses.append(address)
                    continue
            tensor, fields = self._source(
                name,
                k,
                each,
                dtype,
                rows,
                columns,
                none,
                first_row,
                live_rows,
                row_base,
                row_index,
            )
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
        weighing = None
        if weights is not None:
            shape = described.shape if described is not None else ()
            weighing, of_weights = self._weights_of_layers(weights, weights_dtype, given, shape)
            layers["weights"] = of_weights.pop("addresses")
            first.update(of_weights)
        flags = SourceFlag.OVERLAP * overlap | SourceFlag.WHOLE_STEP * whole_step
        source = structs.source(**first, offset=offset, flags=flags)
        held = given, per_layer, live_rows, row_base, row_index, weighing
        return LayerSources(source, layers, start, held, whole_step)

    def _weights_of_layers(
        self,
        weights: LayersLike,
        dtype: WeightsType | None,
        given: Mapping[int, TensorLike],
        shape: tuple[int, ...],
    ) -> tuple[Mapping[int, TensorLike], dict[str, Any]]:
        """The weights of each layer of `given`, and what routecap_source says of all of them."""
        per_layer = by_layer(weights)
        if not isinstance(weights, Mapping):
            if len(per_layer) != len(given):
                raise error(
                    Status.ERR_SHAPE_MISMATCH,
                    f"weights are of {len(per_layer)} layers, ids of {len(given)}: give one for each",
                )
            per_layer = dict(zip(given, per_layer.values()))
        unknown = set(per_layer) - set(given)
        if unknown:
            raise error(
                Status.ERR_ARGUMENT,
                f"weights has layer {min(unknown)}, and ids has none: give weights of layers that are"
                " recorded",
            )
        common: dict[str, Any] = {}
        addresses = []
        for layer in given:
            if layer not in per_layer:
                addresses.append(0)
                continue
            fields = self._weights(per_layer[layer], dtype, shape, f"weights of layer {layer}")
            addresses.append(fields.pop("weights"))
            if common and fields != common:
                raise error(
                    Status.ERR_SHAPE_MISMATCH,
                    f"weights of layer {layer} differ from those of the first layer in dtype, shape or"
                    " strides: record it by itself, with record()",
                )
            common = fields
        return per_layer, {"addresses": addresses, **common}

    @documented("routecap_layer_route")
    def route(
        self,
        layer: int,
        router: Router,
        logits: TensorLike | None,
        *,
        dtype: DtypeLike | None = None,
        rows: int | None = None,
        experts: int | None = None,
        first_row: int = 0,
        live_rows: NumberLike | None = None,
        row_base: NumberLike | None = None,
        row_index: TensorLike | None = None,
        tokens: TensorLike | None = None,
        weights: TensorLike | None = None,
        stream: StreamLike | None = None,
    ) -> None:
        """Choose experts from logits [rows, experts] of float32, float16 or bfloat16, into the sink
        of one layer that is declared as recomputed.

        logits: where a framework has no bfloat16, say dtype="bf16" of 16-bit integers. Where they
        are of fewer experts than the layer has, say how many with experts=.

        tokens: [rows] of int32 or int64, for a router with a hash_table; then logits may be None if
        weights is, and rows is needed. weights: a float32 tensor [rows, k] that receives the weight
        of each column. All else as `record` has it.
        """
        fields: dict[str, int] = {}
        layer_experts, k = self._config.layer_experts, self._k_of([layer])
        of_layer = int(layer_experts[layer]) if 0 <= layer < len(layer_experts) else self.experts
        wanted = of_layer if experts is None else experts
        if experts is None:
            experts = of_layer
        if logits is not None:
            tensor = describe(logits, "logits")
            expect_device(tensor, self._place, "logits")
            present, experts, row_stride, column_stride = matrix(tensor, "logits", "experts")
            if experts != wanted and not self._disabled and 0 <= layer < self.layers:
                raise error(
                    Status.ERR_SHAPE_MISMATCH,
                    f"logits has {shape_and_dtype(tensor)}, (rows, {wanted}) is expected: give one column for"
                    f" each expert of the layer, or say experts={experts} if they are of fewer",
                )
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
            if tensor.shape != (rows,):
                raise error(
                    Status.ERR_SHAPE_MISMATCH,
                    f"tokens has shape {tensor.shape}, {(rows,)} is expected: give the token id of"
                    " each row",
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
            _, _, row_stride, column_stride = matrix(tensor, "weights", "k")
            if tensor.shape != (rows, k) or column_stride != 1 or row_stride < k:
                raise error(
                    Status.ERR_SHAPE_MISMATCH,
                    f"weights has shape {tensor.shape} and strides {tensor.strides},"
                    f" {(rows, k)} is expected, with the columns of a row next to one another",
                )
            fields["weights"], fields["weights_stride"] = tensor.address, row_stride
        memory = structs.logits(
            **fields,
            **self._placement(rows, first_row, live_rows, row_base, row_index),
        )
        raw.routecap_layer_route(
            self._handle,
            layer,
            router.memory(self._place, experts, k),
            memory,
            self._stream(stream, logits),
        )

    @documented("routecap_capturer_probe")
    def probe(
        self, rows: int, layers: int | None = None, *, stream: StreamLike | None = None
    ) -> NDArray[np.void]:
        """Check what the last forward pass wrote: returns an array [layers] of layer_probe_dtype,
        whose `found` is 0 or a ProbeFlag.
        """
        found = np.zeros(self.layers if layers is None else layers, structs.layer_probe_dtype)
        raw.routecap_capturer_probe(self._handle, rows, found, self._stream(stream))
        return found

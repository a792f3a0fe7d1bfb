"""Capture on any device of PyTorch that has streams and events, without a kernel of this library.

The ids that routers choose stay in one tensor on the device. For each step PyTorch copies them once
to page-locked memory, and a thread hands them to the host backend when they have arrived. On CUDA,
routecap.Capturer costs less.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias, Union, Unpack

import numpy as np
import torch
from numpy.typing import NDArray

from . import _structs as structs
from ._arguments import expect_no_expert
from ._capturer import Capturer as _Capturer
from ._config import Settings
from ._constants import NO_EXPERT, Backend, Role, Snapshot, Status
from ._errors import error
from ._library import raw
from ._protocols import StreamLike, Tensor
from ._steps import LayerSources, PreparedIssue, Step
from ._tensors import dtype_of
from .names import SnapshotName

logger = logging.getLogger(__name__)

_TYPES = torch.int16, torch.int32, torch.int64
_UNWRITTEN = {torch.int16: -0x7F80, torch.int32: -0x7F7F7F80}  # bytes 0x80, as the sink has them
_NO_ID = -1
_Layers: TypeAlias = Union[torch.Tensor, Sequence[torch.Tensor], Mapping[int, torch.Tensor]]


class Capturer(_Capturer):
    """A capturer whose steps are copied to the host by PyTorch.

    `begin` and `record` only launch work of PyTorch on the current stream, so they may be captured
    into a graph. `issue` comes after each forward pass or replay, outside of the graph, on a stream
    that is ordered after it. All else is as in routecap.Capturer: a call on a request may come while
    steps are in flight, and takes effect after the steps that were issued before it.

        with routecap.torch.Capturer(layers=48, k=8, experts=128, rows=8192, device="xpu") as capturer:
            request = capturer.open()
            for position, token in enumerate(tokens):
                capturer.begin(1)
                run_the_model(token)  # calls capturer.record(layer, topk_ids) behind each router
                capturer.issue(routecap.spans(request=request, position=position, rows=1))
            routing = request.finish(len(tokens))
            routing.wait()

    Attributes:
        ids: [rows, layers, k] on the device. Its address never changes. Instead of `record`, a
            router may write its ids into ids[:rows, layer], between `begin` and `issue`.
    """

    def __init__(self, **settings: Unpack[Settings]) -> None:
        """
        Args:
            settings: Of the capturer. `device` is PyTorch's; default: its accelerator, or the host.
        """
        for name in ("backend", "external_sink", "weights"):
            if name in settings:
                raise error(
                    Status.ERR_ARGUMENT,
                    f"{name} cannot be set here: routecap.torch has the host backend, and a buffer"
                    " of its own",
                )
        device = settings.pop("device", None)
        if device is None:
            there = torch.accelerator.is_available()
            device = torch.accelerator.current_accelerator() if there else "cpu"
        self._on = torch.device(device)
        settings["backend"], settings["external_sink"] = Backend.HOST, True
        super().__init__(**settings)
        dtype = torch.int16 if self.experts <= 1 << 15 else torch.int32
        with torch.inference_mode(False):  # so that it may be written outside of that mode, too
            shape = self.rows, self.layers, self.k
            self.ids = torch.full(shape, _UNWRITTEN[dtype], dtype=dtype, device=self._on)
            self._slots = [
                _Slot(self.ids, self._event()) for _ in range(self.slots) if self.role == Role.OWNER
            ]
        self._issued = 0
        self._begun: int | None = None  # rows of the pass that runs
        self._recorded: dict[int, list[tuple[int, int]]] = {}  # first row and end, by layer
        self._arriving: queue.SimpleQueue[tuple[int, _Slot, int] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=_hand_over,
            args=(self._handle, self._arriving),
            name="routecap-torch",
            daemon=True,
        )
        self._thread.start()

    def _event(self) -> torch.Event | None:
        """What tells when a copy has arrived. On the host it has when it was made."""
        return None if self._on.type == "cpu" else torch.Event(self._on)

    def close(self) -> None:
        """Wait until the steps in flight have landed, and end as routecap.Capturer does."""
        if self._handle is not None and hasattr(self, "_thread"):
            self._arriving.put(None)
            self._thread.join()
        super().close()

    def __repr__(self) -> str:
        return (
            super()
            .__repr__()
            .replace("routecap.Capturer", "routecap.torch.Capturer")
            .replace("host", str(self._on))
        )

    # ---- The forward pass

    def bind(self, first_layer: int, tensor: torch.Tensor, weights: object = None) -> None:
        """Use a tensor [layers, rows, k] of int16 or int32 on the device, of all layers, in the
        place of `ids`. A step then costs one kernel more, which brings its rows together.
        """
        if weights is not None:
            raise error(
                Status.ERR_ARGUMENT, "routecap.torch.Capturer captures no weights: leave them out"
            )
        if (
            first_layer
            or tuple(tensor.shape) != (self.layers, self.rows, self.k)
            or tensor.dtype not in _UNWRITTEN
            or torch.iinfo(tensor.dtype).max < self.experts - 1
        ):
            raise error(
                Status.ERR_SHAPE_MISMATCH,
                f"the tensor is {tensor.dtype} {tuple(tensor.shape)}: give all layers,"
                f" [{self.layers}, {self.rows}, {self.k}], of a type with {self.experts} ids",
            )
        with torch.inference_mode(False):
            if tensor.dtype != self.ids.dtype:
                self._slots = [_Slot(tensor.transpose(0, 1), slot.event) for slot in self._slots]
            self.ids = tensor.transpose(0, 1)

    def sink(self, layer: int) -> torch.Tensor:
        """Where a router may write the ids of a layer, [rows, k]; NO_EXPERT where it chose none."""
        return self.ids[:, layer, : self._k_of([layer])]

    def begin(self, rows: int, *, stream: StreamLike | None = None) -> None:
        """Begin a pass of up to `rows` rows: whatever it does not write is missing.

        A pass that was begun before and not issued is discarded.
        """
        if not 0 <= rows <= self.rows:
            raise error(
                Status.ERR_CAPACITY,
                f"the forward pass has {rows} rows, padding included; the capturer has room for"
                f" {self.rows}: make it with rows={rows}",
            )
        self.discard()
        self._begun, self._recorded = rows, {}

    def snapshot(self, *, stream: StreamLike | None = None) -> None:
        """Does nothing: `issue` copies the rows."""

    def discard(self, *, stream: StreamLike | None = None) -> None:
        """Forget the last pass, such as a warm-up: nothing of it can be issued."""
        self.ids.fill_(_UNWRITTEN[self.ids.dtype])  # all, whatever the last pass began
        self._begun = None

    def record(
        self,
        layer: int,
        ids: torch.Tensor,
        *,
        columns: int | None = None,
        first_row: int = 0,
        table: torch.Tensor | None = None,
        none: int | None = None,
        **others: object,
    ) -> None:
        """Copy the ids [rows, k] that a router chose, of int16, int32 or int64. A layer may have a k
        of its own.

        Where each row has more columns than k, of which the first k are its experts, say how many
        with `columns`. With a `table` [ids] of int32 or int64 they are looked up in it. `none` is as
        in routecap.Capturer.record. Each row of a
        layer is recorded once in a pass: for micro-batches, give each its `first_row`.
        """
        _expect_none(others)
        if not 0 <= layer < self.layers:
            raise error(
                Status.ERR_UNKNOWN_LAYER,
                f"layer {layer} is not one of the {self.layers} that are captured: count the MoE"
                " layers from 0",
            )
        k = self._k_of([layer])
        self._expect(ids, f"ids of layer {layer}", k, columns)
        unused = self._unused(ids, (layer,), none)
        if table is not None:
            self._expect_table(table)
            inside = (ids >= 0) & (ids < len(table))
            ids = table[ids.long().where(inside, 0)].where(inside, _NO_ID)
        rows = self._claim((layer,), first_row, len(ids))
        self._write(ids, unused, self.ids[rows, layer, :k])

    def record_layers(
        self,
        ids: _Layers | LayerSources,
        *,
        columns: int | None = None,
        first_row: int = 0,
        none: int | None = None,
        whole_step: bool = False,
        **others: object,
    ) -> None:
        """Copy the ids of several layers at once, behind the last router: a tensor [layers, rows, k]
        or a list of one tensor for each layer, of all layers, or {layer: tensor} of some, of one
        shape and type. `columns` and `none` are as in `record`.

        whole_step: The call also begins the pass, with as many rows as the ids have.
        """
        sources = (
            ids
            if isinstance(ids, LayerSources)
            else self.layer_sources(
                ids, columns=columns, none=none, whole_step=whole_step, **others
            )
        )
        layers, (tensors, none) = sources.layers["layer"].tolist(), sources.held
        if sources.whole_step:
            self.begin(tensors[0].shape[0] if layers else 0)
        if not layers:
            return
        k = self._k_of(layers)
        alike = all(self._k_of([layer]) == k for layer in layers)
        if not alike or layers != list(range(layers[0], layers[0] + len(layers))):
            for layer, each in zip(layers, tensors, strict=True):
                self.record(layer, each, columns=each.shape[1], first_row=first_row, none=none)
            return
        whole = tensors if isinstance(tensors, torch.Tensor) else torch.stack(tensors)
        rows = self._claim(layers, first_row, whole.shape[1])
        unused = self._unused(whole, layers, none)
        self._write(
            whole.transpose(0, 1),
            None if unused is None else unused.transpose(0, 1),
            self.ids[rows, layers[0] : layers[0] + len(layers), :k],
        )

    def layer_sources(
        self,
        ids: _Layers,
        *,
        columns: int | None = None,
        none: int | None = None,
        whole_step: bool = False,
        **others: object,
    ) -> LayerSources:
        """The ids of `record_layers`, checked once, for memory that is recorded again and again."""
        _expect_none(others)
        tensors = list(ids.values()) if isinstance(ids, Mapping) else ids
        k = self._k_of(ids if isinstance(ids, Mapping) else range(self.layers))
        if not isinstance(ids, Mapping) and len(tensors) != self.layers:
            raise error(
                Status.ERR_SHAPE_MISMATCH,
                f"ids are of {len(tensors)} layers, the capturer has {self.layers}: give"
                " [layers, rows, k] of all, or {layer: tensor} of some",
            )
        layers = np.zeros(len(tensors), structs.layer_source_dtype)
        layers["layer"] = list(ids) if isinstance(ids, Mapping) else range(len(tensors))
        if len(layers) and layers["layer"].max() >= self.layers:
            raise error(
                Status.ERR_UNKNOWN_LAYER,
                f"ids of layer {layers['layer'].max()} were given, {self.layers} layers are captured:"
                " count the MoE layers from 0",
            )
        for layer, each in zip(layers["layer"], tensors):
            self._expect(each, f"ids of layer {layer}", k, columns)
            if each.shape != tensors[0].shape or each.dtype != tensors[0].dtype:
                raise error(
                    Status.ERR_SHAPE_MISMATCH,
                    f"ids of layer {layer} differ from those of the first layer in shape or type:"
                    " record them by themselves, with record()",
                )
        return LayerSources(b"", layers, None, (tensors, none), whole_step)

    def _unused(
        self, ids: torch.Tensor, layers: Iterable[int], none: int | None
    ) -> torch.Tensor | None:
        """Which columns say that no expert was chosen."""
        if none is None:
            return None
        expect_no_expert(none)
        named, config = list(layers), self._config
        if all(config.layer_min_k[layer] == config.layer_k[layer] for layer in named):
            raise error(
                Status.ERR_ARGUMENT,
                f"none is {none}, and every token has {config.layer_k[named[0]]} experts in layer"
                f" {named[0]}: make the capturer with layer_min_k, or leave none out",
            )
        return ids == none

    def _write(self, ids: torch.Tensor, unused: torch.Tensor | None, to: torch.Tensor) -> None:
        k = to.shape[-1]
        ids, most = ids[..., :k], torch.iinfo(to.dtype).max
        # In the narrower type no number may wrap around to an id.
        if self.experts <= most:
            ids = ids.clamp(_NO_ID, self.experts)
        else:
            ids = ids.where((ids >= 0) & (ids <= most), _NO_ID)
        to.copy_(ids if unused is None else ids.where(~unused[..., :k], NO_EXPERT))

    def _expect(self, ids: torch.Tensor, name: str, k: int, columns: int | None) -> None:
        _expect_tensor(ids, name, _TYPES)
        wanted = k if columns is None else columns
        if ids.dim() != 2 or ids.shape[1] != wanted or wanted < k:
            stated = "" if columns is None else f", and columns={columns} was said"
            raise error(
                Status.ERR_SHAPE_MISMATCH,
                f"{name} have shape {tuple(ids.shape)} and dtype {ids.dtype}, the capturer has"
                f" k={k}{stated}: (rows, {max(wanted, k)}) is expected. Transpose what is"
                " [k, rows]; make the capturer with the model's k; or say columns= if each row has"
                f" its {k} experts first and others behind them, as fused shared experts are",
            )

    def _expect_table(self, table: torch.Tensor) -> None:
        _expect_tensor(table, "table", (torch.int32, torch.int64))
        if table.dim() != 1:
            raise error(
                Status.ERR_SHAPE_MISMATCH,
                f"table has shape {tuple(table.shape)}, (ids,) is expected: give a number for each"
                " id",
            )

    def _claim(self, layers: Iterable[int], first: int, rows: int) -> slice:
        """The rows that a record writes: begun, and written by no record of this pass so far."""
        end = first + rows
        if self._begun is None:
            raise error(Status.ERR_NOT_BEGUN, "no forward pass is begun: call begin before record")
        if not 0 <= first <= end <= self._begun:
            raise error(
                Status.ERR_CAPACITY,
                f"rows {first} to {end} are recorded, {self._begun} are begun: begin as many as the"
                " forward pass has, padding included",
            )
        for layer in layers:
            for other_first, other_end in self._recorded.get(layer, ()):
                if first < other_end and other_first < end:
                    raise error(
                        Status.ERR_CONFLICT,
                        f"layer {layer} has recorded rows of {first} to {end} in this pass already:"
                        " record each row once, where the router runs",
                    )
        for layer in layers:
            self._recorded.setdefault(layer, []).append((first, end))
        return slice(first, end)

    def issue(
        self,
        spans: NDArray[np.void] | None,
        *,
        tag: int = 0,
        positions: torch.Tensor | Tensor | None = None,
        snapshot: Snapshot | SnapshotName = Snapshot.TAKEN,
        status: NDArray[np.int32] | None = None,
        stream: StreamLike | None = None,
    ) -> Step:
        """The pass is launched: say which of its rows belong to which request.

        Enqueues one copy, of the rows up to the last that a span names, on the current stream. If
        `slots` steps are in flight, waits for the oldest: no step is lost. Rows of a
        pass that was not begun, or was issued before, are missing.

        Args:
            spans: See routecap.spans. They are copied.
            positions: For spans with DEVICE_POSITIONS, the position of each sink row: int32 or
                int64, on the device or the host.
        """
        if self.closed or self.role != Role.OWNER:
            self._begun = None
            return super().issue(spans, tag=tag, status=status)
        if self.is_capturing():
            raise error(
                Status.ERR_CAPTURING,
                "a graph is being captured: call issue after each replay, outside of it",
            )
        rows = 0
        if spans is not None:
            structs.expect_array(spans, "spans", "span_dtype")
            rows = int((spans["sink_row"].astype(np.uint64) + spans["rows"]).max(initial=0))
        if rows > self.rows:
            raise error(
                Status.ERR_CAPACITY,
                f"spans name {rows} sink rows, the capturer has {self.rows}: give each row of the"
                " forward pass its number in it",
            )
        positions = positions.holder if isinstance(positions, Tensor) else positions
        if positions is not None:
            _expect_tensor(positions, "positions", (torch.int32, torch.int64))
            if positions.dim() != 1 or len(positions) < rows:
                raise error(
                    Status.ERR_SHAPE_MISMATCH,
                    f"positions have shape {tuple(positions.shape)}, and spans name {rows} sink"
                    " rows: give a position for each sink row",
                )
        slot = self._slots[self._issued % len(self._slots)]
        if slot.step is not None:
            slot.step.wait()
        slot.copy(self.ids, rows, positions)
        where = None if positions is None else slot.positions[: max(rows, 1)].numpy()
        step = super().issue(
            spans, tag=tag, positions=where, snapshot=Snapshot.LATER, status=status
        )
        self._arriving.put((step.ticket, slot, rows))
        self.ids[:rows].fill_(_UNWRITTEN[self.ids.dtype])  # what is issued again is missing
        slot.step, self._issued, self._begun = step, self._issued + 1, None
        return step

    def prepare_issue(self, *unused: object, **more: object) -> PreparedIssue:
        raise error(Status.ERR_ARGUMENT, "routecap.torch prepares no issue: call issue")

    def is_capturing(self) -> bool:
        """Whether a graph is being captured on the current stream of the device."""
        if self._on.type == "cpu":
            return False
        module = torch.get_device_module(self._on)
        return bool(getattr(module, "is_current_stream_capturing", bool)())

    def drain(self) -> None:
        """Wait until no step is in flight: before a graph is captured, for instance, since some
        devices allow no other thread to ask for an event then.
        """
        for slot in self._slots:
            if slot.step is not None:
                slot.step.wait()


class _Slot:
    """Page-locked memory for the rows of one step in flight."""

    def __init__(self, ids: torch.Tensor, event: torch.Event | None) -> None:
        pinned = ids.device.type != "cpu"
        self.event = event
        self.step: Step | None = None  # the last that had this slot
        self._ids = torch.empty(tuple(ids.shape), dtype=ids.dtype, pin_memory=pinned)
        self.positions = torch.zeros(len(ids), dtype=torch.int64, pin_memory=pinned)

    def copy(self, ids: torch.Tensor, rows: int, positions: torch.Tensor | None) -> None:
        """Enqueue the copy of the first rows, in one piece."""
        if rows:
            self._ids[:rows].copy_(ids[:rows].contiguous(), non_blocking=True)
        if positions is not None:
            self.positions[:rows].copy_(positions[:rows], non_blocking=True)
        if self.event is not None:
            host = ids.device.type == "cpu"
            # Without a stream it would be the current device's, which may be another.
            self.event.record(None if host else torch.accelerator.current_stream(ids.device))

    def wait(self) -> None:
        # Event.synchronize() would keep a core busy for as long as the device computes.
        while self.event is not None and not self.event.query():
            time.sleep(1e-4)

    def rows(self, rows: int) -> bytes:
        """The rows that have arrived, as C's routecap_sink."""
        _, layers, k = self._ids.shape
        memory: bytes = structs.sink(
            dtype=dtype_of(self._ids.numpy().dtype),
            ids=self._ids.data_ptr(),
            ids_bytes=rows * layers * k * self._ids.element_size(),
            rows=rows,
            k=k,
            row_stride=layers * k,
            layer_stride=k,
        )
        return memory


def _hand_over(handle: object, arriving: queue.SimpleQueue[tuple[int, _Slot, int] | None]) -> None:
    """What the thread does: it has no reference to the capturer, which ends it."""
    while (item := arriving.get()) is not None:
        ticket, slot, rows = item
        try:
            slot.wait()
            raw.routecap_step_arrive(handle, ticket, slot.rows(rows))
        except Exception:
            logger.exception("the rows of step %d are lost: PyTorch did not copy them", ticket)
            raw.routecap_step_arrive(handle, ticket, None)


def _expect_tensor(given: object, name: str, types: tuple[torch.dtype, ...]) -> None:
    if not isinstance(given, torch.Tensor):
        raise error(
            Status.ERR_DTYPE,
            f"{name}: a {type(given).__name__} was given, where a torch.Tensor is expected:"
            " torch.as_tensor makes one",
        )
    if given.dtype not in types:
        raise error(
            Status.ERR_DTYPE,
            f"{name} are {given.dtype}: give {' or '.join(str(each) for each in types)} tensors",
        )


def _expect_none(others: Mapping[str, object]) -> None:
    given = [name for name, value in others.items() if value is not None and value is not False]
    if given:
        raise error(
            Status.ERR_ARGUMENT,
            f"routecap.torch records without {', '.join(given)}: give the tensor as it is to be"
            " recorded",
        )

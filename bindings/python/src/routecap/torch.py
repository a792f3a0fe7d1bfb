"""Capture on any device of PyTorch that has streams and events, without a kernel of this library.

The ids that routers choose stay in one tensor on the device. For each step PyTorch copies them once
to page-locked memory, and a thread files them there through the host backend. On CUDA,
routecap.Capturer costs less.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack

import numpy as np
import torch
from numpy.typing import NDArray

from . import _structs as structs
from ._capturer import Capturer
from ._config import Settings
from ._constants import Backend, Status
from ._errors import error
from ._requests import LayerSources, Request, RequestLike, Step
from ._routing import Routing
from ._tensors import dtype_of

P = ParamSpec("P")
T = TypeVar("T")

_ABSENT = -1  # what no router chose: each id of a row that is begun
_HEAD = 8  # elements before the ids; the first four bytes say how many rows are begun
_TYPES = torch.int16, torch.int32, torch.int64


class Capture:
    """Takes the ids of each step off the device, and files them in the order of the calls.

    `begin` and `record` only launch work of PyTorch on the current stream, so they may be captured
    into a graph; `issue` comes after each forward pass or replay, outside of the graph, on a stream
    that is ordered after it. These, and `discard`, are for one thread at a time.

    The calls that change or read a request take effect after the steps issued before them. So they
    return a Future, which is done once those steps have been copied and filed. None of them waits.

        capture = routecap.torch.Capture(layers=48, k=8, experts=128, rows=8192, device="xpu")
        request = capture.open("request-17")
        for position, token in enumerate(tokens):
            capture.begin(1)
            run_the_model(token)  # calls capture.record(layer, topk_ids) behind each router
            capture.issue(routecap.spans(request=request, position=position, rows=1))
        routing = capture.finish("request-17", len(tokens)).result()
        routing.wait()

    Attributes:
        capturer: On the host backend, for its counters. What changes or reads a request through it
            comes before steps that were issued and are not filed: use the methods here, or `after`.
        ids: [rows, layers, k] on the device. Its address never changes. Instead of `record`, a
            router may write its ids into ids[:rows, layer], between `begin` and `issue`.
    """

    def __init__(self, **settings: Unpack[Settings]) -> None:
        """
        Args:
            settings: Of the capturer. `device` is PyTorch's; default: its accelerator, or the host.
                `slots` is how many steps can be copied and not yet filed; default 4.
        """
        for name in ("backend", "external_sink", "role"):
            if name in settings:
                raise error(
                    Status.ERR_ARGUMENT,
                    f"{name} cannot be set here: routecap.torch has the host backend, a buffer of"
                    " its own, and the rank that owns the requests",
                )
        device = settings.pop("device", None)
        if device is None:
            there = torch.accelerator.is_available()
            device = torch.accelerator.current_accelerator() if there else "cpu"
        device = torch.device(device)
        slots = settings.setdefault("slots", 4)
        settings["backend"] = Backend.HOST
        self.capturer = Capturer(**settings)
        shape = self.capturer.rows, self.capturer.layers, self.capturer.k
        # An id that no expert of any layer has, in whose type no id wraps around.
        self._beyond = self.capturer.experts
        dtype = torch.int16 if self._beyond <= torch.iinfo(torch.int16).max else torch.int32
        with torch.inference_mode(False):  # so that it may be written outside of that mode, too
            elements = _HEAD + shape[0] * shape[1] * shape[2]
            self._memory = torch.full((elements,), _ABSENT, dtype=dtype, device=device)
            self._begun = self._memory[:_HEAD].view(torch.int32)[:1].zero_()
            self.ids = self._memory[_HEAD:].view(shape)
            self._free: queue.SimpleQueue[_Slot] = queue.SimpleQueue()
            for _ in range(slots):
                self._free.put(_Slot(self.capturer, self._memory, self._event()))
        self._rows: int | None = None  # begun by the pass that runs
        self._recorded: list[tuple[int, int, int]] = []  # layer, first row and end
        self._failure: BaseException | None = None
        self._closed = False
        self._filer = ThreadPoolExecutor(1, thread_name_prefix="routecap-torch")

    def _event(self) -> Any:
        """What tells when a copy has arrived. On the host it has when it was made."""
        return None if self.ids.device.type == "cpu" else torch.Event(self.ids.device)

    # ---- The forward pass

    def begin(self, rows: int) -> None:
        """Begin a pass of up to `rows` rows: whatever it does not write is missing.

        A pass that was begun before and not issued is discarded.
        """
        if not 0 <= rows <= self.capturer.rows:
            raise error(
                Status.ERR_CAPACITY,
                f"the forward pass has {rows} rows, padding included; the capture has room for"
                f" {self.capturer.rows}: make it with Capture(rows={rows})",
            )
        self._begun.fill_(rows)
        self.ids[:rows].fill_(_ABSENT)
        self._rows, self._recorded = rows, []

    def record(self, layer: int, ids: torch.Tensor, *, first_row: int = 0) -> None:
        """Copy the ids [rows, k or more] that a router chose, of int16, int32 or int64.

        Columns behind the k-th are left out. Each row of a layer is recorded once in a pass: for
        micro-batches, give each its `first_row`.
        """
        if not 0 <= layer < self.capturer.layers:
            raise error(
                Status.ERR_UNKNOWN_LAYER,
                f"layer {layer} is not one of the {self.capturer.layers} that are captured: count"
                " the MoE layers from 0",
            )
        self._expect(ids, 2, f"ids of layer {layer}")
        rows = self._claim(layer, layer + 1, first_row, len(ids))
        self._write(ids, self.ids[rows, layer])

    def record_layers(
        self, ids: torch.Tensor | Sequence[torch.Tensor], *, first_row: int = 0
    ) -> None:
        """Copy the ids of all layers at once, behind the last router: a tensor
        [layers, rows, k or more], or one tensor for each layer, of one shape and type.
        """
        layers = len(ids)
        if layers != self.capturer.layers:
            raise error(
                Status.ERR_SHAPE_MISMATCH,
                f"ids of {layers} layers were given, {self.capturer.layers} are captured: give all"
                " of them, or use record",
            )
        whole = ids if isinstance(ids, torch.Tensor) else torch.stack(list(ids))
        self._expect(whole, 3, "ids")
        rows = self._claim(0, layers, first_row, whole.shape[1])
        self._write(whole.transpose(0, 1), self.ids[rows])

    def _write(self, ids: torch.Tensor, to: torch.Tensor) -> None:
        # First to numbers that do not wrap around in the narrower type.
        to.copy_(ids[..., : self.capturer.k].clamp(_ABSENT, self._beyond))

    def _expect(self, ids: torch.Tensor, dimensions: int, name: str) -> None:
        if ids.dtype not in _TYPES:
            raise error(
                Status.ERR_DTYPE, f"{name} are {ids.dtype}: give int16, int32 or int64 tensors"
            )
        if ids.dim() != dimensions or ids.shape[-1] < self.capturer.k:
            raise error(
                Status.ERR_SHAPE_MISMATCH,
                f"{name} have shape {tuple(ids.shape)}: give {dimensions} dimensions, the last of"
                f" {self.capturer.k} columns or more",
            )

    def _claim(self, layer: int, end_layer: int, first: int, rows: int) -> slice:
        """The rows that a record writes: begun, and written by no record of this pass so far."""
        end = first + rows
        if self._rows is None:
            raise error(Status.ERR_NOT_BEGUN, "no forward pass is begun: call begin before record")
        if not 0 <= first <= end <= self._rows:
            raise error(
                Status.ERR_CAPACITY,
                f"rows {first} to {end} are recorded, {self._rows} are begun: begin as many as the"
                " forward pass has, padding included",
            )
        for other, other_first, other_end in self._recorded:
            if layer <= other < end_layer and first < other_end and other_first < end:
                raise error(
                    Status.ERR_CONFLICT,
                    f"layer {other} has recorded rows of {first} to {end} in this pass already:"
                    " record each row once, where the router runs",
                )
        self._recorded += [(each, first, end) for each in range(layer, end_layer)]
        return slice(first, end)

    def discard(self) -> None:
        """Forget the last pass, such as a warm-up: nothing of it can be issued."""
        self._begun.zero_()
        self._rows = None

    def issue(
        self, spans: NDArray[np.void], *, tag: int = 0, positions: torch.Tensor | None = None
    ) -> Future[Step]:
        """The pass is launched: say which of its rows belong to which request.

        Enqueues one copy, of the rows up to the last that a span names. Rows that no span names are
        dropped. If all slots hold steps that are not filed yet, waits for the oldest: no step is
        lost.

        An Error of a step is in its Future, and the next issue raises it, which then issues
        nothing. Rows of a pass that was not begun, or was issued before, are missing.

        Args:
            spans: See routecap.spans. They are copied.
            positions: For spans with DEVICE_POSITIONS, the position of each sink row: int32 or
                int64, on the device or the host.
        """
        self._expect_open()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        if self.ids.is_cuda and torch.cuda.is_current_stream_capturing():
            raise error(
                Status.ERR_CAPTURING,
                "a graph is being captured: call issue after each replay, outside of it",
            )
        structs.expect_array(spans, "spans", "span_dtype")
        rows = int((spans["sink_row"].astype(np.uint64) + spans["rows"]).max(initial=0))
        if rows > self.capturer.rows:
            raise error(
                Status.ERR_CAPACITY,
                f"spans name {rows} sink rows, the capture has {self.capturer.rows}: give each row"
                " of the forward pass its number in it",
            )
        slot = self._free.get()
        try:
            slot.copy(self._memory, rows, positions)
            self.discard()
            placed = positions is not None
            step = self._filer.submit(self._file, slot, rows, spans.copy(), tag, placed)
        except BaseException:
            self._free.put(slot)
            raise
        step.add_done_callback(lambda _: self._free.put(slot))
        return step

    # ---- Requests, for any thread at any time

    def open(self, id: str | None = None) -> Request:
        """Open a request; see Capturer.open."""
        return self.capturer.open(id)

    def accept(
        self, request: RequestLike, step: Future[Step], keep: int | Sequence[int] | NDArray[Any]
    ) -> Future[None]:
        """Settle the drafts of a request in the step that `issue` returned; see Capturer.accept."""
        request = self.capturer.request(request)
        return self.after(lambda capturer: capturer.accept(request, step.result(), keep))

    def truncate(self, request: RequestLike, rows: int) -> Future[None]:
        """Cut a request: remove all rows from position `rows` on."""
        return self.after(Capturer.truncate, self.capturer.request(request), rows)

    def fork(self, request: RequestLike, rows: int | None = None) -> Future[Request]:
        """Open a request that begins with the first `rows` rows of another; None: all rows."""
        return self.after(Capturer.fork, self.capturer.request(request), rows)

    def finish(self, request: RequestLike, rows: int | None = None) -> Future[Routing]:
        """End a request and return its first `rows` rows; see Capturer.finish."""
        return self.after(Capturer.finish, self.capturer.request(request), rows)

    def after(
        self, call: Callable[Concatenate[Capturer, P], T], *args: P.args, **more: P.kwargs
    ) -> Future[T]:
        """Call `call(capturer, *args, **more)` once the steps issued so far are filed, in the
        thread that files. It must not wait for another Future of this capture.
        """
        self._expect_open()
        return self._filer.submit(call, self.capturer, *args, **more)

    def drain(self) -> None:
        """Wait until the steps issued so far are filed: before a graph is captured, for instance,
        since some devices allow no other thread to ask for an event then.
        """
        self.after(lambda _: None).result()

    def close(self) -> None:
        """File what was issued, end the thread, and give the capturer's memory back. Routings stay
        valid.
        """
        self._closed = True
        self._filer.shutdown()
        self.capturer.close()

    def __enter__(self) -> Capture:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<routecap.torch.Capture on {self.ids.device}, of {self.capturer!r}>"

    # ---- The thread that files

    def _expect_open(self) -> None:
        if self._closed:
            raise error(Status.ERR_STATE, "the capture is closed: make another")

    def _file(
        self, slot: _Slot, rows: int, spans: NDArray[np.void], tag: int, positions: bool
    ) -> Step:
        try:
            begun = slot.wait()
            if begun:
                self.capturer.begin(begun)
                slot.record(self.capturer, min(rows, begun))
                self.capturer.snapshot()
            where = slot.positions[:rows] if positions else None
            return self.capturer.issue(spans, tag=tag, positions=where)
        except BaseException as failure:
            self._failure = failure
            raise


class _Slot:
    """Page-locked memory for the ids of one step, laid out as the capture's on the device."""

    def __init__(self, capturer: Capturer, device: torch.Tensor, event: Any) -> None:
        pinned = device.device.type != "cpu"
        self._event = event
        self._memory = torch.empty(device.shape, dtype=device.dtype, pin_memory=pinned)
        self.positions = torch.zeros(capturer.rows, dtype=torch.int64, pin_memory=pinned)
        self._begun = self._memory[:_HEAD].view(torch.int32).numpy()
        shape = capturer.rows, capturer.layers, capturer.k
        self._ids = self._memory[_HEAD:].view(shape).numpy()
        self._sources = capturer.layer_sources(self._ids.transpose(1, 0, 2))

    def copy(self, device: torch.Tensor, rows: int, positions: torch.Tensor | None) -> None:
        """Enqueue the copy of a step, in one piece."""
        elements = _HEAD + rows * self._ids[0].size
        self._memory[:elements].copy_(device[:elements], non_blocking=True)
        if positions is not None:
            self.positions[:rows].copy_(positions[:rows], non_blocking=True)
        if self._event is not None:
            host = device.device.type == "cpu"
            # Without a stream it would be the current device's, which may be another.
            self._event.record(None if host else torch.accelerator.current_stream(device.device))

    def wait(self) -> int:
        """Wait until the copy has arrived; how many rows the pass began."""
        # Event.synchronize() would keep a core busy for as long as the device computes.
        while self._event is not None and not self._event.query():
            time.sleep(1e-4)
        return int(self._begun[0])

    def record(self, capturer: Capturer, rows: int) -> None:
        """Record what was written in the first rows. A cell that was not stays unwritten."""
        written = self._ids[:rows, :, 0] != _ABSENT
        whole = written.all(0)
        capturer.record_layers(self._of(rows, self._sources.layers[whole]))
        for layer in np.flatnonzero(written.any(0) & ~whole).tolist():
            index = np.where(written[:, layer], np.arange(rows), -1).astype(np.int32)
            capturer.record(layer, self._ids[:rows, layer], row_index=index)

    def _of(self, rows: int, layers: NDArray[np.void]) -> LayerSources:
        stride, k = self._ids[0].size, self._ids.shape[2]
        source = structs.source(
            dtype=dtype_of(self._ids.dtype), row_stride=stride, rows=rows, k_source=k
        )
        return self._sources._replace(source=source, layers=layers)

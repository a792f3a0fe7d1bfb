#!/usr/bin/env python3
"""routecap inside a process that runs PyTorch: its streams, its allocator's memory, its CUDA graphs
and its context.

    python3 torch_process.py path/to/libroutecap.so.1 [name of a test ...]

Every comparison is exact, ids and validity, against tensors that torch kept. Ends with the number
of checks that passed; exit status 77 where torch or a CUDA device is missing.
"""

import contextlib
import ctypes
import gc
import os
import sys
import threading
import time
import unittest
from ctypes import POINTER, byref, c_uint8, c_uint64, c_void_p, sizeof

try:
    import torch
except ImportError as error:
    print(f"torch_process: not run, no torch: {error}")
    sys.exit(77)

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "support"))
from routecap_ctypes import (
    ROWS_ALL as ALL,
    BACKEND_CUDA,
    CONFIG_EXTERNAL_SINK as EXTERNAL_SINK,
    DTYPE_I16 as I16,
    DTYPE_I32 as I32,
    DTYPE_I64 as I64,
    ERR_CAPTURING,
    INCOMPLETE,
    NOT_CAPTURED,
    OK,
    ORDER_LAYER_MAJOR as LAYER_MAJOR,
    ORDER_ROW_MAJOR as ROW_MAJOR,
    PENDING,
    SNAPSHOT_MAKE as MAKE,
    SNAPSHOT_TAKEN as TAKEN,
    Config,
    CopyOptions,
    IssueOptions,
    Library,
    Sink,
    Source,
    Span,
    Stats,
)

lib = Library()
expect = lib.expect  # a status that is as usual, which is not counted as a check of its own
cuda_driver = None  # libcuda.so.1, to look at the current context
checks_passed = 0
WAIT_NS = 60 * 10**9


def checked(condition, message):
    """One check."""
    global checks_passed
    if not condition:
        raise AssertionError(message() if callable(message) else message)
    checks_passed += 1


def expect_status(status, expected, what):
    expect(status, expected, what)
    checked(True, "")


def current_context():
    context = c_void_p()
    result = cuda_driver.cuCtxGetCurrent(byref(context))
    if result != 0:
        raise AssertionError(f"cuCtxGetCurrent returned {result}")
    return context.value


# ---- A capturer, and what its requests must contain -------------------------------------------


class Shape:
    def __init__(self, layers=4, k=8, experts=64, rows=64):
        self.layers, self.k, self.experts, self.rows = layers, k, experts, rows


SMALL = Shape()
DEEPSEEK = Shape(layers=58, k=8, experts=256, rows=256)


class Sequence:
    """A request, and the rows that it must contain: tensors [rows, layers, k], -1 in cells that
    must be missing.
    """

    def __init__(self, handle):
        self.handle, self.length, self.expected = handle, 0, []


class Capturer:
    backend = BACKEND_CUDA

    def __init__(self, shape, device, slots=4, flags=0):
        config = Config()
        expect(lib.config_init(byref(config), sizeof(config)))
        config.backend, config.device, config.slots, config.flags = (
            self.backend,
            device,
            slots,
            flags,
        )
        config.layers, config.k, config.experts, config.rows = (
            shape.layers,
            shape.k,
            shape.experts,
            shape.rows,
        )
        self.handle, self.shape, self.slots, self.last = c_void_p(), shape, slots, 0
        expect(lib.capturer_create(byref(config), byref(self.handle)), what="capturer_create")

    def destroy(self):
        handle, self.handle = self.handle, c_void_p()
        lib.capturer_destroy(handle)

    def bind(self, tensor, dtype):
        """A tensor [layers, rows, k], whose columns are next to one another, as the sink of all
        layers.
        """
        layers, rows, k = tensor.shape
        sink = Sink(
            sizeof(Sink), dtype, tensor.data_ptr(), rows, k, tensor.stride(1), tensor.stride(0)
        )
        expect(lib.sink_bind(self.handle, 0, layers, byref(sink)), what="sink_bind")

    def begin(self, rows, stream):
        expect(lib.step_begin(self.handle, rows, stream), what="step_begin")

    def record(self, layer, ids, stream, first_row=0):
        dtype = {torch.int16: I16, torch.int32: I32, torch.int64: I64}[ids.dtype]
        source = Source(
            struct_size=sizeof(Source),
            dtype=dtype,
            ids=ids.data_ptr(),
            row_stride=ids.stride(0),
            column_stride=ids.stride(1),
            rows=ids.shape[0],
            k_source=ids.shape[1],
            first_row=first_row,
        )
        expect(
            lib.layer_record(self.handle, layer, byref(source), stream),
            what=f"layer_record({layer})",
        )

    def snapshot(self, stream):
        expect(lib.step_snapshot(self.handle, stream), what="step_snapshot")

    def open(self, count):
        handles = (c_uint64 * count)()
        expect(lib.request_open(self.handle, None, handles, count), what="request_open")
        return [Sequence(handle) for handle in handles]

    @staticmethod
    def spans(sequences, rows):
        """The rows dealt out to the sequences in runs of equal length."""
        each = rows // len(sequences)
        spans = (Span * len(sequences))()
        for i, sequence in enumerate(sequences):
            count = each if i + 1 < len(sequences) else rows - each * i
            spans[i] = Span(
                request=sequence.handle, position=sequence.length, sink_row=each * i, rows=count
            )
        return spans

    def issue(self, sequences, reference, stream, snapshot=TAKEN):
        """Issues the last forward; `reference` is [rows, layers, k] of that forward, on any device."""
        if self.last + 1 >= self.slots:
            self.land(self.last + 2 - self.slots)
        spans = self.spans(sequences, reference.shape[0])
        options = IssueOptions(struct_size=sizeof(IssueOptions), snapshot=snapshot, tag=7)
        step = c_uint64()
        status = lib.step_issue(
            self.handle, spans, sizeof(Span), len(spans), byref(options), None, byref(step), stream
        )
        expect(status, OK, "step_issue")
        for span, sequence in zip(spans, sequences, strict=True):
            sequence.expected.append(reference[span.sink_row : span.sink_row + span.rows])
            sequence.length += span.rows
        checked(step.value == self.last + 1, f"ticket {step.value} after {self.last}")
        self.last = step.value
        return step.value

    def land(self, step):
        conflicting = c_uint64(99)
        expect(
            lib.step_finalize(self.handle, step, WAIT_NS, byref(conflicting)),
            OK,
            f"step_finalize({step})",
        )
        if conflicting.value != 0:
            raise AssertionError(f"step {step}: {conflicting.value} cells recorded twice")

    # ---- Comparing

    @staticmethod
    def copy_options(dtype, order):
        options = CopyOptions()
        expect(lib.copy_options_init(byref(options), sizeof(options)))
        options.dtype, options.order = dtype, order
        return options

    @staticmethod
    def status_of(valid):
        return OK if bool(valid.all()) else INCOMPLETE if bool(valid.any()) else NOT_CAPTURED

    @staticmethod
    def same(what, ids, mask, expected, valid):
        def describe():
            wrong = (ids.long() != expected).any(-1) | (mask.bool() != valid)
            first = wrong.nonzero()[0].tolist()
            at = tuple(first)
            return (
                f"{what}: {int(wrong.sum())} of {wrong.numel()} cells differ, the first at {first}:"
                f" {ids[at].tolist()}, mask {int(mask[at])}, instead of {expected[at].tolist()},"
                f" mask {int(valid[at])}"
            )

        checked(
            ids.shape == expected.shape
            and torch.equal(ids.long(), expected)
            and torch.equal(mask, valid.to(torch.uint8)),
            describe,
        )

    def compare(self, sequence):
        """What a running request gives out."""
        self.land(self.last)
        expected = torch.cat([part.cpu() for part in sequence.expected]).long()
        valid = expected[..., 0] >= 0
        ids = torch.full(expected.shape, 777777, dtype=torch.int64)
        mask = torch.full(valid.shape, 9, dtype=torch.uint8)
        needed = c_uint64()
        status = lib.request_extract_into(
            self.handle,
            sequence.handle,
            0,
            ALL,
            byref(self.copy_options(I64, ROW_MAJOR)),
            ids.data_ptr(),
            ids.numel() * 8,
            mask.data_ptr(),
            mask.numel(),
            byref(needed),
        )
        expect_status(status, self.status_of(valid), "request_extract_into")
        checked(needed.value == ids.numel() * 8, f"needed {needed.value} bytes")
        self.same("extract_into", ids, mask, expected, valid)

    def finish(self, sequence):
        """Ends the request and compares its routing."""
        routing = c_void_p()
        expect(
            lib.request_finish(self.handle, sequence.handle, ALL, byref(routing)),
            what="request_finish",
        )
        ready = lib.routing_wait(routing, WAIT_NS)
        torch.cuda.synchronize()  # for the reference
        expected = (
            torch.cat([part.cpu() for part in sequence.expected])
            .long()
            .transpose(0, 1)
            .contiguous()
        )
        valid = expected[..., 0] >= 0
        expect_status(ready, self.status_of(valid), "routing_wait")
        ids = torch.full(expected.shape, 777777, dtype=torch.int32)
        mask = torch.full(valid.shape, 9, dtype=torch.uint8)
        status = lib.routing_copy_to(
            routing,
            byref(self.copy_options(I32, LAYER_MAJOR)),
            ids.data_ptr(),
            ids.numel() * 4,
            mask.data_ptr(),
            mask.numel(),
            None,
        )
        expect_status(status, self.status_of(valid), "routing_copy_to")
        self.same("routing", ids, mask, expected, valid)
        lib.routing_free(routing)

    def stats(self):
        """Once nothing is in flight."""
        stats = Stats(struct_size=sizeof(Stats))
        end = time.monotonic() + 10
        while True:
            expect(lib.capturer_stats(self.handle, byref(stats)))
            if (stats.steps_in_flight, stats.rows_in_flight) == (0, 0) or time.monotonic() > end:
                return stats
            time.sleep(0.001)

    def check_stats(self):
        """That every row that was issued was delivered, and nothing strange was seen."""
        stats = self.stats()
        wanted = {
            "steps_issued": self.last,
            "steps_landed": self.last,
            "steps_lost": 0,
            "rows_lost": 0,
            "rows_missing": 0,
            "rows_dropped": 0,
            "rows_skipped": 0,
            "rows_refused": 0,
            "cells_conflicting": 0,
        }
        got = {name: getattr(stats, name) for name in wanted}
        checked(got == wanted, f"{got} instead of {wanted}")
        checked(
            stats.rows_delivered == stats.rows_issued,
            f"{stats.rows_delivered} of {stats.rows_issued} rows delivered",
        )


# ---- Forward passes ---------------------------------------------------------------------------


def top_ids(shape, rows):
    """What a router chose: int64 [rows, k]."""
    return torch.randn(rows, shape.experts, device="cuda").topk(shape.k, dim=-1).indices


def handle_of(stream):
    return stream.cuda_stream


class Model:
    """A small mixture-of-experts forward pass over static buffers of one batch size, made to be
    captured.
    """

    HIDDEN = 64

    def __init__(self, capturer, rows):
        shape = capturer.shape
        self.capturer, self.rows = capturer, rows
        self.x = torch.randn(rows, self.HIDDEN, device="cuda")
        self.gates = torch.randn(shape.layers, self.HIDDEN, shape.experts, device="cuda")
        self.mixers = torch.randn(shape.layers, self.HIDDEN, self.HIDDEN, device="cuda")
        self.kept = torch.zeros(shape.layers, rows, shape.k, dtype=torch.int64, device="cuda")

    def forward(self):
        """On the current stream, as an engine does it."""
        stream = handle_of(torch.cuda.current_stream())
        self.capturer.begin(self.rows, stream)
        hidden = self.x
        for layer in range(self.capturer.shape.layers):
            ids = (
                torch.matmul(hidden, self.gates[layer]).topk(self.capturer.shape.k, dim=-1).indices
            )
            self.capturer.record(layer, ids, stream)
            self.kept[layer].copy_(ids)
            hidden = torch.tanh(torch.matmul(hidden, self.mixers[layer]))
        self.capturer.snapshot(stream)

    def warm_up(self):
        """As torch recommends it before a capture."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.forward()
        torch.cuda.current_stream().wait_stream(side)

    def capture(self, pool=None, mode="global", before=None, after=None):
        self.warm_up()
        self.graph = torch.cuda.CUDAGraph()
        own = (
            torch.cuda.Stream() if torch.cuda.current_device() != 0 else None
        )  # torch keeps one capture stream, of the first device used
        with torch.cuda.graph(self.graph, pool=pool, stream=own, capture_error_mode=mode):
            if before is not None:
                before()
            self.forward()
            if after is not None:
                after()
        return self.graph

    def feed(self):
        self.x.copy_(torch.randn(self.rows, self.HIDDEN, device="cuda"))

    def reference(self):
        """The ids of the last forward, [rows, layers, k], in the order of the current stream."""
        return self.kept.transpose(0, 1).clone()


class TorchProcess(unittest.TestCase):
    def setUp(self):
        gc.collect()  # graphs of a test before
        torch.manual_seed(20)
        self.device = torch.cuda.current_device()
        self.context = current_context()
        self.capturers = []

    def tearDown(self):
        torch.cuda.synchronize()
        for capturer in self.capturers:
            capturer.destroy()
        torch.cuda.synchronize()
        checked(current_context() == self.context, "the current context changed")
        checked(torch.cuda.current_device() == self.device, "torch's current device changed")

    def make(self, shape, **options):
        capturer = Capturer(shape, self.device, **options)
        self.capturers.append(capturer)
        return capturer

    def eager_step(self, capturer, sequences, rows, stream, snapshot=TAKEN, handle=None):
        """One eager step on a torch stream; routecap is given `handle` instead where that is set."""
        handle = handle_of(stream) if handle is None else handle
        with torch.cuda.stream(stream):
            kept = []
            capturer.begin(rows, handle)
            for layer in range(capturer.shape.layers):
                kept.append(top_ids(capturer.shape, rows))
                capturer.record(layer, kept[-1], handle)
            if snapshot == TAKEN:
                capturer.snapshot(handle)
            capturer.issue(sequences, torch.stack(kept, dim=1), handle, snapshot)

    def compare_and_finish(self, capturer, sequences):
        torch.cuda.synchronize()  # for the references: routecap's work is waited for by its own calls
        for sequence in sequences:
            capturer.compare(sequence)
        for sequence in sequences:
            capturer.finish(sequence)

    # ---- 1: streams

    def run_on_streams(self, shape, steps):
        capturer = self.make(shape)
        sequences = capturer.open(3)
        current, side = torch.cuda.current_stream(), torch.cuda.Stream()
        urgent = torch.cuda.Stream(priority=-1)
        checked(
            handle_of(side) not in (0, handle_of(current)), "the side stream is a stream of its own"
        )
        last = current
        for step in range(steps):
            stream = (current, side, side, urgent)[step % 4]
            if stream != last:
                stream.wait_stream(last)
            last = stream
            self.eager_step(
                capturer, sequences, shape.rows - step % 5, stream, MAKE if step % 3 == 2 else TAKEN
            )
        self.compare_and_finish(capturer, sequences)
        capturer.check_stats()

    def test_1_streams(self):
        self.run_on_streams(SMALL, 24)

    def test_1_streams_deepseek(self):
        self.run_on_streams(DEEPSEEK, 8)

    def test_1_finish_without_waiting(self):
        """A request is ended while its steps are on the device still."""
        capturer = self.make(SMALL, slots=8)
        sequences = capturer.open(2)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(50_000_000)
        for _ in range(4):
            self.eager_step(capturer, sequences, 33, stream)
        for sequence in sequences:
            capturer.finish(sequence)
        capturer.check_stats()

    # ---- 2: element types and strides

    def test_2_dtypes_and_strides(self):
        shape, rows = SMALL, 61
        k = shape.k

        def slice_of_wider(ids):
            wide = torch.full((rows, k + 5), -3, dtype=torch.int32, device="cuda")
            wide[:, 2 : 2 + k] = ids
            return wide[:, 2 : 2 + k]

        def every_other_column(ids):
            wide = torch.full((rows, 2 * k), 1, dtype=torch.int32, device="cuda")
            wide[:, ::2] = ids
            return wide[:, ::2]

        def shared_column(ids):
            return torch.cat([ids, torch.full((rows, 1), shape.experts, device="cuda")], dim=1).to(
                torch.int32
            )

        def every_other_row(ids):
            tall = torch.zeros((2 * rows, k), dtype=torch.int16, device="cuda")
            tall[::2] = ids.to(torch.int16)
            return tall[::2]

        ways = [
            slice_of_wider,
            every_other_column,
            shared_column,
            every_other_row,
            lambda ids: ids.to(torch.int16),
            lambda ids: ids.to(torch.int32).t().contiguous().t(),
            lambda ids: ids.to(torch.int16).t().contiguous().t(),
            lambda ids: ids,
        ]
        capturer = self.make(shape)
        sequences = capturer.open(2)
        stream = torch.cuda.current_stream()
        for step in range(len(ways)):
            kept = []
            capturer.begin(rows, handle_of(stream))
            for layer in range(shape.layers):
                kept.append(top_ids(shape, rows))
                given = ways[(step + layer) % len(ways)](kept[-1])
                if step % 2 == 0:
                    capturer.record(layer, given, handle_of(stream))
                else:  # in chunks
                    capturer.record(layer, given[40:], handle_of(stream), first_row=40)
                    capturer.record(layer, given[:40], handle_of(stream))
            capturer.snapshot(handle_of(stream))
            capturer.issue(sequences, torch.stack(kept, dim=1), handle_of(stream))
        self.compare_and_finish(capturer, sequences)
        capturer.check_stats()

    # ---- 3: memory of torch's allocator as the sink

    def run_bound(self, shape, sink, dtype):
        capturer = self.make(shape, flags=EXTERNAL_SINK)
        capturer.bind(sink, dtype)
        sequences = capturer.open(2)
        stream = handle_of(torch.cuda.current_stream())
        layers, rows = shape.layers, shape.rows - 3
        for step in range(6):
            kept = torch.full((rows, layers, shape.k), -1, dtype=torch.int64, device="cuda")
            capturer.begin(rows, stream)
            for layer in range(layers):
                ids = top_ids(shape, rows)
                if (step + layer) % 3 == 0:  # in another order
                    order = torch.randperm(rows, device="cuda")
                    sink[layer].index_copy_(0, order, ids.to(sink.dtype))
                    kept[order, layer] = ids
                elif (
                    step == 2 and layer == 2
                ):  # some rows only: what the step before left there must not be seen
                    sink[layer, : rows // 2] = ids[: rows // 2].to(sink.dtype)
                    kept[: rows // 2, layer] = ids[: rows // 2]
                elif step == 3 and layer == 1:  # not at all
                    pass
                elif step == 4 and layer == 1:  # ids that are none, and one id twice
                    kept[:, layer] = ids
                    ids = ids.clone()
                    ids[3, 5] = shape.experts
                    ids[4, 0] = -1
                    ids[5, 1] = ids[5, 2]
                    kept[3:6, layer] = -1
                    sink[layer, :rows] = ids.to(sink.dtype)
                else:
                    sink[layer, :rows].copy_(ids)
                    kept[:, layer] = ids
            capturer.snapshot(stream)
            capturer.issue(sequences, kept, stream)
        self.compare_and_finish(capturer, sequences)
        checked(
            all(bool((torch.cat(s.expected) < 0).any()) for s in sequences),
            "the test leaves cells out",
        )
        capturer.check_stats()

    def test_3_bound_sink(self):
        shape = SMALL
        self.run_bound(
            shape,
            torch.empty((shape.layers, shape.rows, shape.k), dtype=torch.int32, device="cuda"),
            I32,
        )

    def test_3_bound_sink_int16_with_strides(self):
        shape = SMALL
        wide = torch.zeros(
            (shape.layers, shape.rows + 2, shape.k + 3), dtype=torch.int16, device="cuda"
        )
        self.run_bound(shape, wide[:, 1 : 1 + shape.rows, 2 : 2 + shape.k], I16)
        checked(
            bool((wide[..., :2] == 0).all())
            and bool((wide[..., 2 + shape.k :] == 0).all())
            and bool((wide[:, 0] == 0).all())
            and bool((wide[:, 1 + shape.rows :] == 0).all()),
            "memory beside the sink was written",
        )

    def test_3_bound_sink_deepseek(self):
        shape = DEEPSEEK
        self.run_bound(
            shape,
            torch.empty((shape.layers, shape.rows, shape.k), dtype=torch.int32, device="cuda"),
            I32,
        )

    def test_3_router_writes_the_sink(self):
        """torch.topk with the sink as its output of indices, eager and in a graph: nothing is
        recorded.
        """
        shape, rows = SMALL, SMALL.rows
        sink = torch.empty((shape.layers, shape.rows, shape.k), dtype=torch.int64, device="cuda")
        values = torch.empty((rows, shape.k), device="cuda")
        logits = torch.randn(shape.layers, rows, shape.experts, device="cuda")
        capturer = self.make(shape, flags=EXTERNAL_SINK)
        capturer.bind(sink, I64)
        sequences = capturer.open(2)

        def forward():
            stream = handle_of(torch.cuda.current_stream())
            capturer.begin(rows, stream)
            for layer in range(shape.layers):
                torch.topk(logits[layer], shape.k, dim=-1, out=(values, sink[layer]))
            capturer.snapshot(stream)

        def issue():
            capturer.issue(
                sequences, sink.transpose(0, 1).clone(), handle_of(torch.cuda.current_stream())
            )

        for _ in range(3):
            logits.copy_(torch.randn(shape.layers, rows, shape.experts, device="cuda"))
            forward()
            issue()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            forward()
        for _ in range(5):
            logits.copy_(torch.randn(shape.layers, rows, shape.experts, device="cuda"))
            graph.replay()
            issue()
        self.compare_and_finish(capturer, sequences)
        capturer.check_stats()

    # ---- 4: graphs

    def run_graphs(self, shape, sizes, rounds):
        capturer = self.make(shape)
        models = [Model(capturer, rows) for rows in sizes]
        pool = None
        for model in models:
            graph = model.capture(pool)
            pool = graph.pool()
        sequences = capturer.open(3)
        stream = handle_of(torch.cuda.current_stream())
        references = []
        for turn in range(rounds):
            model = models[turn % len(models)]
            if turn % 3 == 1:  # replays that nobody issues
                other = models[(turn + 1) % len(models)]
                other.feed()
                other.graph.replay()
                model.graph.replay()
            if turn % 5 == 4:
                expect(lib.step_discard(capturer.handle, stream), what="step_discard")
            model.feed()
            model.graph.replay()
            references.append(model.reference())
            capturer.issue(sequences, references[-1], stream)
        for eager in models:  # and a forward of the same model that is no graph
            eager.feed()
            eager.forward()
            capturer.issue(sequences, eager.reference(), stream)
        same_size = references[:: len(models)]
        checked(
            not torch.equal(same_size[0], same_size[1]), "the inputs change from replay to replay"
        )
        self.compare_and_finish(capturer, sequences)
        capturer.check_stats()

    def test_4_graphs(self):
        self.run_graphs(SMALL, (64, 17), 30)

    def test_4_graphs_deepseek(self):
        self.run_graphs(DEEPSEEK, (256, 8, 100), 12)

    def test_4_graph_replayed_on_another_stream(self):
        capturer = self.make(SMALL)
        model = Model(capturer, 40)
        model.capture()
        sequences = capturer.open(1)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(6):
                model.feed()
                model.graph.replay()
                capturer.issue(sequences, model.reference(), handle_of(side))
        self.compare_and_finish(capturer, sequences)
        capturer.check_stats()

    @contextlib.contextmanager
    def reader(self, capturer, sequence):
        """Another thread that reads a request again and again, through the C API alone."""
        torch.cuda.synchronize()
        capturer.land(capturer.last)
        expected = torch.cat([part.cpu() for part in sequence.expected]).long().contiguous()
        size = expected.numel() * 8
        wanted = ctypes.string_at(expected.data_ptr(), size)
        cells = expected.numel() // capturer.shape.k
        stop, errors, reads = threading.Event(), [], [0]
        options = capturer.copy_options(I64, ROW_MAJOR)

        def read():
            try:
                while not stop.is_set():
                    ids, mask = (c_uint8 * size)(), (c_uint8 * cells)()
                    expect(
                        lib.request_extract_into(
                            capturer.handle,
                            sequence.handle,
                            0,
                            expected.shape[0],
                            byref(options),
                            ids,
                            size,
                            mask,
                            cells,
                            None,
                        ),
                        what="request_extract_into on another thread",
                    )
                    if bytes(ids) != wanted or bytes(mask) != b"\1" * cells:
                        raise AssertionError("another thread read other rows")
                    expect(
                        lib.capturer_stats(capturer.handle, byref(Stats(struct_size=sizeof(Stats))))
                    )
                    reads[0] += 1
            except AssertionError as error:
                errors.append(error)

        thread = threading.Thread(target=read)
        thread.start()
        try:
            while reads[0] == 0 and thread.is_alive():
                time.sleep(0.001)
            yield reads
        finally:
            stop.set()
            thread.join()
        if errors:
            raise errors[0]

    def run_capture_mode(self, mode):
        capturer, busy = self.make(SMALL), self.make(SMALL)
        stream, other = torch.cuda.current_stream(), torch.cuda.Stream()
        sequences, busy_sequences = capturer.open(2), busy.open(1)
        self.eager_step(capturer, sequences, 64, stream)
        model = Model(capturer, 48)
        given = [top_ids(SMALL, 64) for _ in range(SMALL.layers)]
        with torch.cuda.stream(other):
            torch.cuda._sleep(1000)  # loaded now
        reference = torch.stack(given, dim=1)
        torch.cuda.synchronize()
        fixed = Sequence(sequences[0].handle)  # what the reader reads: the rows before the graphs
        fixed.expected, fixed.length = list(sequences[0].expected), sequences[0].length
        in_flight = []

        def step_elsewhere():
            """A step of another capturer is in flight on another stream while this thread captures:
            its worker is looking for it.
            """
            with torch.cuda.stream(other):
                torch.cuda._sleep(400_000_000)
            busy.begin(64, handle_of(other))
            for layer, ids in enumerate(given):
                busy.record(layer, ids, handle_of(other))
            busy.snapshot(handle_of(other))
            in_flight.append(busy.issue(busy_sequences, reference, handle_of(other)))

        def still_in_flight():
            checked(
                lib.step_poll(busy.handle, in_flight[-1]) == PENDING,
                "all of the forward is captured before the other step lands",
            )

        with self.reader(capturer, fixed) as reads:
            for turn in range(4):
                model.capture(mode=mode, before=step_elsewhere, after=still_in_flight)
                before = reads[0]
                model.feed()
                model.graph.replay()
                capturer.issue(sequences, model.reference(), handle_of(stream))
                end = time.monotonic() + 30
                while reads[0] == before and time.monotonic() < end:
                    time.sleep(0.001)
                checked(reads[0] > before, f"the reader goes on after capture {turn}")
                torch.cuda.synchronize()
        self.compare_and_finish(capturer, sequences)
        self.compare_and_finish(busy, busy_sequences)
        capturer.check_stats()
        busy.check_stats()

    def test_4_capture_mode_global(self):
        self.run_capture_mode("global")

    def test_4_capture_mode_thread_local(self):
        self.run_capture_mode("thread_local")

    def test_4_capture_mode_relaxed(self):
        self.run_capture_mode("relaxed")

    # ---- 5: memory and the context

    def test_5_create_and_destroy_leave_torch_alone(self):
        torch.cuda.synchronize()

        def state():
            return (
                torch.cuda.memory_allocated(),
                torch.cuda.memory_reserved(),
                torch.cuda.current_device(),
                current_context(),
                handle_of(torch.cuda.current_stream()),
            )

        before = state()
        Capturer(DEEPSEEK, self.device).destroy()
        torch.cuda.synchronize()
        free = torch.cuda.mem_get_info()[0]
        large = Shape(layers=58, k=8, experts=256, rows=8192)
        for _ in range(20):
            capturer = Capturer(large, self.device)
            checked(state() == before, "create changed what torch sees")
            capturer.destroy()
            checked(state() == before, "destroy changed what torch sees")
        torch.cuda.synchronize()
        kept = free - torch.cuda.mem_get_info()[0]
        checked(kept < 64 << 20, f"{kept} bytes of device memory did not come back")
        x = torch.randn(256, 256, device="cuda")
        y = x.double() @ torch.eye(256, dtype=torch.float64, device="cuda")
        checked(torch.equal(y, x.double()), "torch works on")

    def test_5_thread_without_a_context(self):
        found = []

        def life():
            try:
                found.append(current_context())
                capturer = Capturer(SMALL, self.device)
                found.append(current_context())
                capturer.destroy()
                found.append(current_context())
            except AssertionError as error:
                found.append(error)

        thread = threading.Thread(target=life)
        thread.start()
        thread.join()
        checked(
            len(found) == 3 and found[0] == found[1] == found[2],
            f"the current context of a thread: {found}",
        )

    def test_5_graph_outlives_the_capturer(self):
        capturer = Capturer(SMALL, self.device)
        model = Model(capturer, 64)
        graph = model.capture()
        sequences = capturer.open(1)
        model.feed()
        graph.replay()
        reference = model.reference()
        capturer.issue(sequences, reference, handle_of(torch.cuda.current_stream()))
        self.compare_and_finish(capturer, sequences)
        capturer.destroy()

        for _ in range(5):
            model.kept.zero_()
            graph.replay()
            torch.cuda.synchronize()
            checked(
                torch.equal(model.reference(), reference),
                "a graph computes the same after the capturer's end",
            )
        del graph
        model.graph = None
        gc.collect()
        torch.cuda.synchronize()
        x = torch.arange(1000, device="cuda")
        checked(int(x.sum()) == 499500, "torch works on after the graph's end")

        again = self.make(SMALL)
        sequences = again.open(1)
        self.eager_step(again, sequences, 64, torch.cuda.current_stream())
        self.compare_and_finish(again, sequences)

    def test_5_capturer_outlives_the_graph(self):
        capturer = self.make(SMALL)
        sequences = capturer.open(1)
        for rows in (64, 5, 31):
            model = Model(capturer, rows)
            model.capture()
            model.feed()
            model.graph.replay()
            capturer.issue(sequences, model.reference(), handle_of(torch.cuda.current_stream()))
            torch.cuda.synchronize()
            model.graph.reset()
            del model
            gc.collect()
            self.eager_step(capturer, sequences, rows, torch.cuda.current_stream())
        self.compare_and_finish(capturer, sequences)
        capturer.check_stats()

    # ---- 6: default streams

    def test_6_default_streams(self):
        """0 is the legacy stream, with which 2, the calling thread's own default stream, is in
        order.
        """
        default = torch.cuda.default_stream()
        checked(handle_of(default) == 0, "torch's default stream is handle 0")
        capturer = self.make(SMALL)
        sequences = capturer.open(2)
        for step in range(16):
            self.eager_step(
                capturer,
                sequences,
                64 - step,
                default,
                MAKE if step % 3 == 1 else TAKEN,
                handle=(0, 2, 2, 0)[step % 4],
            )
        self.compare_and_finish(capturer, sequences)
        capturer.check_stats()

    def test_6_replay_on_default_stream(self):
        capturer = self.make(SMALL)
        model = Model(capturer, 29)
        model.capture()
        sequences = capturer.open(1)
        with torch.cuda.stream(torch.cuda.default_stream()):
            for step in range(8):
                model.feed()
                model.graph.replay()
                capturer.issue(sequences, model.reference(), (0, 2)[step % 2])
        self.compare_and_finish(capturer, sequences)
        capturer.check_stats()

    # ---- 7: calls that cannot be captured

    def test_7_issue_while_capturing(self):
        for mode in ("global", "thread_local", "relaxed"):
            capturer = self.make(SMALL)
            model = Model(capturer, 50)
            sequences = capturer.open(2)
            model.warm_up()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode=mode):
                model.forward()
                stream = handle_of(torch.cuda.current_stream())
                spans = capturer.spans(sequences, 50)
                step = c_uint64(99)
                status = lib.step_issue(
                    capturer.handle,
                    spans,
                    sizeof(Span),
                    len(spans),
                    None,
                    None,
                    byref(step),
                    stream,
                )
                expect_status(status, ERR_CAPTURING, "step_issue on a capturing stream")
                checked(step.value == 0, "no ticket")
                expect_status(
                    lib.step_discard(capturer.handle, stream),
                    ERR_CAPTURING,
                    "step_discard on a capturing stream",
                )
            checked(lib.last_error() != b"", "there is a text")
            for _ in range(3):
                model.feed()
                graph.replay()
                capturer.issue(sequences, model.reference(), handle_of(torch.cuda.current_stream()))
            self.compare_and_finish(capturer, sequences)
            capturer.check_stats()

    # ---- 8: several devices

    def test_8_two_devices(self):
        """Two devices in one process, their steps in turn, eager and from graphs; each also while
        the other is torch's current device.
        """
        if torch.cuda.device_count() < 2:
            print("needs two devices", end=" ... ")
            return
        parts = []
        for device in (0, 1):
            with torch.cuda.device(device):
                capturer = Capturer(SMALL, device)
                self.capturers.append(capturer)
                model = Model(capturer, 40)
                model.warm_up()
                parts.append(
                    (device, capturer, capturer.open(2), capturer.open(2), model, model.capture())
                )
        for _ in range(8):
            for device, capturer, eager, captured, model, graph in parts:
                with torch.cuda.device(device):
                    self.eager_step(capturer, eager, 33, torch.cuda.current_stream())
                    model.feed()
                    graph.replay()
                    stream, reference = handle_of(torch.cuda.current_stream()), model.reference()
                with torch.cuda.device(1 - device):
                    capturer.issue(captured, reference, stream)
        for device, capturer, eager, captured, _, _ in parts:
            with torch.cuda.device(device):
                self.compare_and_finish(capturer, eager + captured)
                capturer.check_stats()


def main():
    global cuda_driver
    if len(sys.argv) < 2:
        print("usage: torch_process.py path/to/libroutecap.so.1 [name of a test ...]")
        return 2
    if not torch.cuda.is_available():
        print("torch_process: not run, torch finds no CUDA device")
        return 77
    lib.load(sys.argv[1])
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    cuda_driver = ctypes.CDLL("libcuda.so.1")
    cuda_driver.cuCtxGetCurrent.argtypes = [POINTER(c_void_p)]
    print(
        f"torch {torch.__version__}, CUDA {torch.version.cuda}, {torch.cuda.get_device_name()},"
        f" routecap {lib.version()}",
        flush=True,
    )

    loader = unittest.TestLoader()
    suite = (
        unittest.TestSuite(map(TorchProcess, sys.argv[2:]))
        if sys.argv[2:]
        else loader.loadTestsFromTestCase(TorchProcess)
    )
    result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2).run(suite)
    failed = len(result.failures) + len(result.errors)
    print(
        f"torch_process: {checks_passed} checks passed"
        + (f", {failed} tests failed" if failed else "")
    )
    return 1 if failed or result.testsRun == 0 else 0


if __name__ == "__main__":
    sys.exit(main())

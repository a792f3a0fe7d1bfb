#!/usr/bin/env python3
"""What it costs on one GPU to bring expert ids into the sink, in each way that routecap.h names,
and what choosing them again costs.

    python3 taps.py path/to/libroutecap.so.1 [--json FILE] [--quick] [--only SUBSTRING]...

Two kinds of groups, of which --only takes those whose name contains SUBSTRING:

    step n=N              microseconds that capturing adds to one replayed CUDA graph of 58 layers. Each layer is a kernel that reads memory, a
                          router that writes int32 ids, and a consumer of these ids that reads memory, 55 us of reading in all, and 165 us for
                          8192 rows. "overlapped": all three are launched with programmatic dependent launch, and each waits for the one before
                          it; otherwise the same kernels are launched in order.
    route E=E k=K n=N     device time of one routecap_layer_route, beside the same routing in PyTorch and in a plain Triton kernel

It needs PyTorch and a CUDA device. The kernels of the steps are compiled by nvcc when it runs, and
Triton is used where it is there: the output says which of the two is missing. What is captured is
compared with what the routers chose before anything is timed. A cost of a step is a difference, as
in bench_cuda: each run with capture is held against the mean of the runs without before and after
it. Everything is repeated 30 times (5 with --quick). A group that fails does not end the others;
the exit status is 1 then.
"""

import argparse
import contextlib
import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import traceback
from ctypes import byref, c_int32, c_int64, c_uint8, c_uint32, c_uint64, c_void_p, sizeof

import torch

from interval import estimate
from machine import commit, processor

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "support"))
import routecap_ctypes as rc

try:
    import triton
    import triton.language as tl
except ImportError as no_triton:
    triton, why_no_triton = None, str(no_triton)

WAIT_NS = 60 * 10**9
ROWS = 8192  # of every sink

lib = rc.Library()

# ---- Results ----------------------------------------------------------------------------------


def command():
    words = [os.path.basename(sys.argv[0])]
    for before, word in zip(sys.argv, sys.argv[1:]):
        words.append("FILE" if before == "--json" else os.path.basename(word))
    return " ".join(words)


class Report:
    """A table on the standard output, and the same as JSON."""

    def __init__(self, title, compiler):
        self.title, self.compiler, self.group = title, compiler, None
        self.lines, self.not_measured, self.failed = [], [], []
        print(f"{title}\n{processor()}, {commit()}", flush=True)

    def add(self, group, name, parameters, unit, samples, comment=""):
        if group != self.group:
            print(f"\n{group}")
        self.group = group
        median, low, high = estimate(samples)
        print(
            f"  {name:<46} {median:10.2f} {unit:<8} [{low:.2f}, {high:.2f}]  {comment}", flush=True
        )
        self.lines.append(
            {
                "group": group,
                "name": name,
                **parameters,
                "unit": unit,
                "median": round(median, 4),
                "low": round(low, 4),
                "high": round(high, 4),
            }
        )

    def leave_out(self, text):
        """Something that this machine does not have."""
        if text not in self.not_measured:
            self.not_measured.append(text)
            print(f"\nNot measured: {text}", flush=True)

    def write_json(self, path):
        head = {
            "title": self.title,
            "command": command(),
            "commit": commit(),
            "processor": processor(),
            "compiler": self.compiler,
            "interval": "95 % of the median",
        }
        if self.not_measured:
            head["not_measured"] = self.not_measured
        if self.failed:
            head["failed"] = self.failed
        if any(line["group"].startswith("Routing") for line in self.lines):
            head["orientation"] = ORIENTATION
        with open(path, "w", encoding="utf-8") as out:
            out.write("{\n")
            for name, value in head.items():
                out.write(f"  {json.dumps(name)}: {json.dumps(value)},\n")
            out.write('  "results": [')
            out.write(",".join("\n    " + json.dumps(line) for line in self.lines))
            out.write("\n  ]\n}\n")


# Device times that others published for kernels of theirs, on their machines: no results of this
# program.
ORIENTATION = [
    (
        "SGLang #25835, Triton sigmoid gate, H200, n=1: E=128 1.83, E=256 2.36, E=384 3.07, E=512"
        " 2.90 us"
    ),
    (
        "SGLang #25835, Triton sigmoid gate, H200, n=64: E=128 2.16, E=256 2.51, E=384 3.22, E=512"
        " 3.09 us; CUDA 3.9 to 15 us, PyTorch 11 to 17 us"
    ),
    "SGLang #29771, H100, n=8192: E=256 k=8 13.9, E=512 20.7 us",
    (
        "FreeToken #319, H100, n=1 to 16384: E=128 k=8 2.2 to 12.4, E=256 k=8 2.2 to 22.5, E=512"
        " k=10 3.6 to 50.6 us"
    ),
    "TokenSpeed #1291, n=64: E=896 k=16 3.67 us, 3.27 us with programmatic dependent launch",
]

# ---- Graphs and their time --------------------------------------------------------------------


def stream_handle():
    return torch.cuda.current_stream().cuda_stream


def capture(body):
    """A CUDA graph of what body does on the current stream."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(
        graph, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"
    ):
        body()
    return graph


class Clock:
    def __init__(self):
        self.start, self.end = (
            torch.cuda.Event(enable_timing=True),
            torch.cuda.Event(enable_timing=True),
        )

    def run(self, graph, replays):
        """Microseconds of one replay, of so many back to back.

        All are queued before the first that counts runs.
        """
        graph.replay()
        torch.cuda._sleep(20_000 * replays)
        self.start.record()
        for _ in range(replays):
            graph.replay()
        self.end.record()
        self.end.synchronize()
        return self.start.elapsed_time(self.end) * 1e3 / replays

    def compare(self, base, graphs, replays, repetitions):
        """Times of base, and for each of the graphs what it takes more than the mean of base before
        and after it.
        """
        for graph in graphs.values():
            self.run(graph, replays)
        bases, added = [], {name: [] for name in graphs}
        before = self.run(base, replays)
        for _ in range(repetitions):
            for name, graph in graphs.items():
                taken = self.run(graph, replays)
                after = self.run(base, replays)
                bases.append(after)
                added[name].append(taken - (before + after) / 2)
                before = after
        return bases, added

    def each(self, graphs, calls, repetitions):
        """Microseconds of each of `calls` in every one of the graphs, which take turns."""
        replays = {
            name: int(min(max(1500 / self.run(graph, 3), 3), 60)) for name, graph in graphs.items()
        }
        times = {name: [] for name in graphs}
        for _ in range(repetitions):
            for name, graph in graphs.items():
                times[name].append(self.run(graph, replays[name]) / calls)
        return times


# ---- A capturer -------------------------------------------------------------------------------

DTYPES = {
    torch.int16: rc.DTYPE_I16,
    torch.int32: rc.DTYPE_I32,
    torch.int64: rc.DTYPE_I64,
    torch.float32: rc.DTYPE_F32,
    torch.bfloat16: rc.DTYPE_BF16,
}
NAMES = {
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.float32: "float32",
    torch.bfloat16: "bfloat16",
}


class Capturer:
    """Calls on the current stream, except where a stream is given."""

    def __init__(self, layers, k, experts, dtype=rc.DTYPE_I16, flags=0, provenance=None):
        self.layers, self.k = layers, k
        config = lib.config(
            backend=rc.BACKEND_CUDA,
            device=torch.cuda.current_device(),
            layers=layers,
            k=k,
            experts=experts,
            rows=ROWS,
            sink_dtype=dtype,
            flags=flags,
        )
        if provenance is not None:
            config.layer_provenance = (c_int32 * layers)(*[provenance] * layers)
        self.handle = c_void_p()
        lib.expect(lib.capturer_create(byref(config), byref(self.handle)), what="capturer_create")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        lib.capturer_destroy(self.handle)

    def bind(self):
        """A tensor [layers, rows, k] as the sink of all layers."""
        ids = torch.full((self.layers, ROWS, self.k), -1, dtype=torch.int16, device="cuda")
        torch.cuda.synchronize()
        sink = rc.Sink(
            sizeof(rc.Sink), rc.DTYPE_I16, ids.data_ptr(), ROWS, self.k, self.k, ROWS * self.k
        )
        lib.expect(lib.sink_bind(self.handle, 0, self.layers, byref(sink)), what="sink_bind")
        return ids

    def sink(self, layer):
        """Address and row stride of a layer of the library's own sink, of int32."""
        sink = rc.Sink(struct_size=sizeof(rc.Sink))
        lib.expect(lib.sink_layer(self.handle, layer, byref(sink)), what="sink_layer")
        if sink.dtype != rc.DTYPE_I32 or not sink.ids:
            raise AssertionError(f"the sink of layer {layer} has the dtype {sink.dtype}")
        return sink.ids, sink.row_stride or sink.k

    def begin(self, rows):
        lib.expect(lib.step_begin(self.handle, rows, stream_handle()), what="step_begin")

    @staticmethod
    def source(dtype, rows, k, ids=None, table=None, flags=0):
        source = rc.Source(
            struct_size=sizeof(rc.Source),
            dtype=dtype,
            ids=ids,
            rows=rows,
            k_source=k,
            row_stride=k,
            flags=flags,
        )
        if table is not None:
            source.table, source.table_size = table.data_ptr(), table.numel()
        return source

    def record(self, layer, source, stream=None):
        stream = stream_handle() if stream is None else stream.cuda_stream
        lib.expect(
            lib.layer_record(self.handle, layer, byref(source), stream),
            what=f"layer_record({layer})",
        )

    def record_all(self, source, addresses, stream=None):
        stream = stream_handle() if stream is None else stream.cuda_stream
        layers = (rc.LayerSource * len(addresses))()
        for layer, address in enumerate(addresses):
            layers[layer].layer, layers[layer].ids = layer, address
        lib.expect(
            lib.layers_record(
                self.handle, byref(source), layers, sizeof(rc.LayerSource), len(layers), stream
            ),
            what="layers_record",
        )

    def route(self, layer, router, logits):
        lib.expect(
            lib.layer_route(self.handle, layer, byref(router), byref(logits), stream_handle()),
            what=f"layer_route({layer})",
        )

    def snapshot(self, stream=None):
        stream = stream_handle() if stream is None else stream.cuda_stream
        lib.expect(lib.step_snapshot(self.handle, stream), what="step_snapshot")

    def captured(self, graph, rows):
        """What a forward captured: int32 [rows, layers, k] and whether each cell is valid,
        [rows, layers].
        """
        request, step = c_uint64(), c_uint64()
        lib.expect(lib.request_open(self.handle, None, byref(request), 1), what="request_open")
        graph.replay()
        span = rc.Span(request=request.value, rows=rows)
        lib.expect(
            lib.step_issue(
                self.handle, byref(span), sizeof(span), 1, None, None, byref(step), stream_handle()
            ),
            what="step_issue",
        )
        lib.expect(lib.step_finalize(self.handle, step, WAIT_NS, None), what="step_finalize")
        ids = torch.full((rows, self.layers, self.k), -1, dtype=torch.int32)
        valid = torch.full((rows, self.layers), 9, dtype=torch.uint8)
        options = lib.copy_options(dtype=rc.DTYPE_I32, order=rc.ORDER_ROW_MAJOR)
        status = lib.request_extract_into(
            self.handle,
            request,
            0,
            rows,
            byref(options),
            ids.data_ptr(),
            ids.numel() * 4,
            valid.data_ptr(),
            valid.numel(),
            None,
        )
        lib.expect(lib.request_close(self.handle, request), what="request_close")
        if status not in (rc.OK, rc.INCOMPLETE, rc.NOT_CAPTURED):
            lib.expect(status, what="request_extract_into")
        return ids, valid == 1


# ---- Kernels of the imitated model ------------------------------------------------------------

LAYERS, K, EXPERTS = 58, 8, 256
SOURCE = r"""
// A dependent may start as soon as all blocks of its predecessor have; what it reads is there after wait. Neither does anything in a kernel that
// was launched in order.
__device__ inline void dependents_may_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ inline void wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Reads memory, and ids as a consumer of them does.
extern "C" __global__ void __launch_bounds__(256, 8)
read_memory(const uint4 *from, unsigned long long words, const int *ids, unsigned int count, uint4 *never) {
    dependents_may_start();
    const unsigned long long threads = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
    unsigned long long i = blockIdx.x * static_cast<unsigned long long>(blockDim.x) + threadIdx.x;
    wait();
    uint4 all = make_uint4(0, 0, 0, 0);
    if (count > 0) all.z = static_cast<unsigned int>(ids[blockIdx.x % count]);
    for (; i < words; i += threads) {
        const uint4 v = __ldcs(from + i);
        all.x ^= v.x, all.y ^= v.y, all.z ^= v.z, all.w ^= v.w;
    }
    if (all.x == 0x12345678 && all.y == 0x9ABCDEF0 && all.z == 0x0FEDCBA9) *never = all;
}

// A warp chooses 8 of 256 logits of a row one after another, as routers do, and writes other ids, which the host can compute.
extern "C" __global__ void __launch_bounds__(128)
choose(const float *logits, int *ids, long long row_stride, unsigned int rows, unsigned int layer) {
    dependents_may_start();
    const unsigned int row = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
    wait();
    if (row >= rows) return;
    float mine[8], last = 0;
    for (int i = 0; i < 8; i++) mine[i] = logits[row * 256ull + i * 32 + lane];
    for (int round = 0; round < 8; round++) {
        float best = mine[0];
        for (int i = 1; i < 8; i++) best = fmaxf(best, mine[i]);
        for (int distance = 16; distance > 0; distance /= 2) best = fmaxf(best, __shfl_xor_sync(0xFFFFFFFFu, best, distance));
        for (int i = 0; i < 8; i++) mine[i] = mine[i] == best ? -1e30f : mine[i];
        last = best;
    }
    unsigned int h = row * 0x9E3779B1u + layer * 0x85EBCA77u;
    h ^= h >> 15;
    if (lane < 8) ids[row * row_stride + lane] = last > 1e20f ? -1 : static_cast<int>((h % 256 + lane * 5) % 256);
}
"""


def chosen_ids(rows):
    """What the routers of a step choose: int32 [rows, layers, k]."""
    row, layer = torch.arange(rows).view(-1, 1, 1), torch.arange(LAYERS).view(1, -1, 1)
    h = (row * 0x9E3779B1 + layer * 0x85EBCA77) & 0xFFFFFFFF
    h = h ^ (h >> 15)
    return ((h % EXPERTS + torch.arange(K).view(1, 1, -1) * 5) % EXPERTS).int()


class LaunchAttribute(ctypes.Structure):  # CUlaunchAttribute, whose value is a union of 64 bytes
    _fields_ = [("id", c_int32), ("pad", c_uint8 * 4), ("value", c_int32), ("rest", c_uint8 * 60)]


class LaunchConfig(ctypes.Structure):  # CUlaunchConfig
    _fields_ = [
        ("grid", c_uint32 * 3),
        ("block", c_uint32 * 3),
        ("shared_bytes", c_uint32),
        ("stream", c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("attribute_count", c_uint32),
    ]


PROGRAMMATIC_STREAM_SERIALIZATION = 6  # CU_LAUNCH_ATTRIBUTE_*


def find_nvcc():
    """The path of nvcc, or None."""
    found = shutil.which("nvcc")
    if found:
        return found
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")]
    try:
        from torch.utils.cpp_extension import CUDA_HOME

        homes.append(CUDA_HOME)
    except ImportError:
        pass
    return next(
        (
            path
            for path in (os.path.join(home, "bin", "nvcc") for home in homes if home)
            if os.access(path, os.X_OK)
        ),
        None,
    )


class Kernels:
    """The kernels of SOURCE, compiled for this device and launched through the driver."""

    def __init__(self, nvcc):
        major, minor = torch.cuda.get_device_capability()
        with tempfile.TemporaryDirectory() as folder:
            source, cubin = (
                os.path.join(folder, "kernels.cu"),
                os.path.join(folder, "kernels.cubin"),
            )
            with open(source, "w", encoding="utf-8") as file:
                file.write(SOURCE)
            done = subprocess.run(
                [nvcc, "-cubin", f"-arch=sm_{major}{minor}", "-O3", "-o", cubin, source],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode != 0:
                raise RuntimeError(f"nvcc: {done.stdout}{done.stderr}")
            with open(cubin, "rb") as file:
                image = file.read()
        self.driver = ctypes.CDLL("libcuda.so.1")
        for name, arguments in (
            ("cuGetErrorName", [c_int32, ctypes.POINTER(ctypes.c_char_p)]),
            ("cuModuleLoadData", [ctypes.POINTER(c_void_p), ctypes.c_char_p]),
            ("cuModuleGetFunction", [ctypes.POINTER(c_void_p), c_void_p, ctypes.c_char_p]),
            (
                "cuLaunchKernelEx",
                [ctypes.POINTER(LaunchConfig), c_void_p, ctypes.POINTER(c_void_p), c_void_p],
            ),
        ):
            function = getattr(self.driver, name)
            function.argtypes, function.restype = arguments, c_int32
        module = c_void_p()
        self.check(self.driver.cuModuleLoadData(byref(module), image), "cuModuleLoadData")
        self.functions = {}
        for name in ("read_memory", "choose"):
            self.functions[name] = c_void_p()
            self.check(
                self.driver.cuModuleGetFunction(byref(self.functions[name]), module, name.encode()),
                f"cuModuleGetFunction({name})",
            )

    def check(self, result, what):
        if result != 0:
            name = ctypes.c_char_p()
            self.driver.cuGetErrorName(result, byref(name))
            raise RuntimeError(f"{what}: {(name.value or b'unknown error').decode()} ({result})")

    def launch(self, name, blocks, threads, overlap, *arguments):
        config = LaunchConfig(grid=(blocks, 1, 1), block=(threads, 1, 1), stream=stream_handle())
        if overlap:
            attribute = LaunchAttribute(id=PROGRAMMATIC_STREAM_SERIALIZATION, value=1)
            config.attributes, config.attribute_count = ctypes.pointer(attribute), 1
        parameters = (c_void_p * len(arguments))(
            *[ctypes.addressof(argument) for argument in arguments]
        )
        self.check(
            self.driver.cuLaunchKernelEx(byref(config), self.functions[name], parameters, None),
            f"launch of {name}",
        )


class Model:
    """Kernels that take a given time on this GPU, and the layers that are made of them."""

    def __init__(self, kernels):
        self.kernels = kernels
        self.blocks = (
            torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count * 8
        )
        size = min(4 << 30, torch.cuda.mem_get_info()[0] // 4) // 256 * 256
        self.weights = torch.empty(size // 8, dtype=torch.int64, device="cuda").random_()
        self.words = size // 16
        self.never = torch.zeros(4, dtype=torch.int32, device="cuda")
        self.logits = torch.randn(ROWS, EXPERTS, device="cuda")
        self.ids = torch.zeros(
            LAYERS, ROWS, K, dtype=torch.int32, device="cuda"
        )  # memory of each router's own
        self.choose(1, self.ids.data_ptr(), K, 0, False)
        self.words_per_us = self.calibrate()

    def read_words(self, index, words, ids, count, overlap):
        """The index-th so many words: far more than a cache holds lie between two reads of one
        word.
        """
        words = min(words, self.words // 2)
        start = self.weights.data_ptr() + 16 * (index * words % (self.words - words))
        self.kernels.launch(
            "read_memory",
            self.blocks,
            256,
            overlap,
            c_uint64(start),
            c_uint64(words),
            c_uint64(ids),
            c_uint32(count),
            c_uint64(self.never.data_ptr()),
        )

    def read(self, index, us, overlap, ids=0, count=0):
        self.read_words(index, int(us * self.words_per_us), ids, count, overlap)

    def choose(self, rows, ids, row_stride, layer, overlap):
        self.kernels.launch(
            "choose",
            (rows + 3) // 4,
            128,
            overlap,
            c_uint64(self.logits.data_ptr()),
            c_uint64(ids),
            c_int64(row_stride),
            c_uint32(rows),
            c_uint32(layer),
        )

    def calibrate(self):
        """Words that are read in a microsecond."""
        words, launches = 14_000_000, 20
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        for i in range(-50, launches):
            if i == 0:
                start.record()
            self.read_words(i + 50, words, 0, 0, False)
        end.record()
        end.synchronize()
        return min(words, self.words // 2) * launches / (start.elapsed_time(end) * 1e3)

    def forward(self, rows, work, overlapped, ids_of, tap):
        """A forward pass on the current stream; tap(layer) comes behind each router.

        The first kernel and those behind the last router are launched in order whatever is asked
        for, so that a graph has the same ones with capture and without.
        """
        before, behind, tail = work
        for layer in range(LAYERS):
            self.read(2 * layer, before, overlapped and layer > 0)
            ids, row_stride = ids_of(layer)
            self.choose(rows, ids, row_stride, layer, overlapped)
            tap(layer)
            self.read(2 * layer + 1, behind, overlapped and layer + 1 < LAYERS, ids, rows * K)
        for i in range(3):
            self.read(2 * LAYERS + i, tail, False)


# ---- step: what capturing adds to a forward pass ----------------------------------------------

# Microseconds that are read in each layer before its router, in each behind it, and in each of
# three kernels behind all.
DECODE, LARGE = (22, 33, 110), (66, 99, 110)

# How ids come into the sink: the router writes them there; or a copy behind each router, in line or
# on a forked stream that is joined before the snapshot; or one copy behind the last router. Begin
# and snapshot are part of all of them.
BOUND, IN_LINE, OVERLAP, FORKED = (
    "bound",
    "each layer in line",
    "each layer in line, OVERLAP",
    "each layer forked",
)
ALL_IN_LINE, ALL_FORKED = "all layers at once, in line", "all layers at once, forked"
MODES = (BOUND, IN_LINE, OVERLAP, FORKED, ALL_IN_LINE, ALL_FORKED)


def step_graph(model, mode, rows, work, overlapped, capturer, branch):
    """The graph of a forward pass whose ids are captured in that mode, or not at all if it is None.

    The branch is a stream for what is forked.
    """
    addresses = [model.ids.data_ptr() + layer * ROWS * K * 4 for layer in range(LAYERS)]

    def source(ids=None, flags=0):
        return capturer.source(rc.DTYPE_I32, rows, K, ids, flags=flags)

    def ids_of(layer):
        return capturer.sink(layer) if mode == BOUND else (addresses[layer], K)

    def tap(layer):
        main = torch.cuda.current_stream()
        last = layer + 1 == LAYERS
        if mode in (IN_LINE, OVERLAP):
            capturer.record(
                layer, source(addresses[layer], rc.SOURCE_OVERLAP if mode == OVERLAP else 0)
            )
        elif mode == FORKED:
            branch.wait_stream(main)
            capturer.record(layer, source(addresses[layer]), branch)
            if last:
                main.wait_stream(branch)
        elif mode == ALL_IN_LINE and last:
            capturer.record_all(source(), addresses)
        elif mode == ALL_FORKED and last:
            branch.wait_stream(main)
            capturer.record_all(source(), addresses, branch)
            capturer.snapshot(branch)
        if mode is not None and mode != ALL_FORKED and last:
            capturer.snapshot()

    def body():
        if mode is not None:
            capturer.begin(rows)
        model.forward(rows, work, overlapped, ids_of, tap)
        if mode == ALL_FORKED:
            torch.cuda.current_stream().wait_stream(branch)

    return capture(body)


def step(report, bench, rows, overlapped):
    model = bench.model(report)
    if model is None:
        return
    if overlapped and torch.cuda.get_device_capability()[0] < 9:
        report.leave_out("overlapped steps: this device has no programmatic dependent launch")
        return
    work, replays = (DECODE, 6) if rows <= 256 else (LARGE, 3)
    if bench.quick:
        replays = (replays + 1) // 2
    expected = chosen_ids(rows)
    with (
        Capturer(LAYERS, K, EXPERTS, rc.DTYPE_I32) as bound,
        Capturer(LAYERS, K, EXPERTS) as recorded,
    ):
        base = step_graph(model, None, rows, work, overlapped, None, bench.branch)
        graphs = {}
        for mode in MODES:
            capturer = bound if mode == BOUND else recorded
            graphs[mode] = step_graph(model, mode, rows, work, overlapped, capturer, bench.branch)
            for turn in range(2):
                model.ids.fill_(-1)  # so that ids of the replay before would be found
                ids, valid = capturer.captured(graphs[mode], rows)
                if not bool(valid.all()) or not torch.equal(ids, expected):
                    wrong = (~valid | (ids != expected).any(-1)).nonzero()
                    raise AssertionError(
                        f"{mode}, turn {turn}: {len(wrong)} of {rows * LAYERS} cells differ, the"
                        f" first at row, layer {wrong[0].tolist()}:"
                        f" {ids[tuple(wrong[0])].tolist()}, valid {bool(valid[tuple(wrong[0])])},"
                        f" instead of {expected[tuple(wrong[0])].tolist()}"
                    )
        bases, added = bench.clock.compare(base, graphs, replays, bench.repetitions)
        torch.cuda.synchronize()
        del base, graphs
    launched = "router and consumer overlapped" if overlapped else "router and consumer in order"
    group = (
        f"Device time added to a step, n={rows}, {launched}, L={LAYERS} K={K} E={EXPERTS} N={ROWS}"
    )
    parameters = {
        "rows": rows,
        "layers": LAYERS,
        "k": K,
        "experts": EXPERTS,
        "overlapped": int(overlapped),
    }
    report.add(group, "step without capture", parameters, "us", bases)
    for mode in MODES:
        here = {**parameters, "sink_bits": 32 if mode == BOUND else 16}
        report.add(group, f"{mode}: step", here, "us", added[mode])
        report.add(group, f"{mode}: layer", here, "us", [us / LAYERS for us in added[mode]])
        if mode != BOUND:
            report.add(
                group,
                f"{mode}: layer, over bound",
                here,
                "us",
                [(us - b) / LAYERS for us, b in zip(added[mode], added[BOUND])],
            )


# ---- route: choosing experts from logits ------------------------------------------------------


class Routing:
    def __init__(
        self, name, experts, k, method, groups=1, kept=1, scale=1.0, bias=False, softmax=False
    ):
        self.name, self.experts, self.k, self.method, self.groups, self.kept = (
            name,
            experts,
            k,
            method,
            groups,
            kept,
        )
        self.scale, self.bias, self.softmax = scale, bias, softmax


ROUTINGS = (
    Routing(
        "DeepSeek-V3: sigmoid, bias, 4 of 8 groups",
        256,
        8,
        rc.METHOD_DEEPSEEK_V3,
        groups=8,
        kept=4,
        scale=2.5,
        bias=True,
    ),
    Routing("softmax, renormalized", 128, 8, rc.METHOD_SOFTMAX_RENORMALIZE, softmax=True),
    Routing("softmax, renormalized", 512, 10, rc.METHOD_SOFTMAX_RENORMALIZE, softmax=True),
    Routing("sigmoid, bias", 896, 16, rc.METHOD_SIGMOID_RENORMALIZE, bias=True),
)
ROUTE_CALLS = LAYERS  # and the one begin that they need, of which each has its share


def torch_route(routing, logits, bias):
    """As in transformers. Ids and weights [rows, k], and what ranks the experts [rows, experts]."""
    if routing.softmax:
        scores = torch.nn.functional.softmax(logits, dim=-1, dtype=torch.float32)
        weights, ids = torch.topk(scores, routing.k, dim=-1)
        return ids, weights / weights.sum(dim=-1, keepdim=True), scores
    scores = logits.float().sigmoid()
    keys = scores + bias.unsqueeze(0)
    if routing.groups > 1:
        each = routing.experts // routing.groups
        group_scores = keys.view(-1, routing.groups, each).topk(2, dim=-1)[0].sum(dim=-1)
        group_ids = torch.topk(group_scores, k=routing.kept, dim=-1, sorted=False)[1]
        group_mask = torch.zeros_like(group_scores)
        group_mask.scatter_(1, group_ids, 1)
        mask = (
            group_mask.unsqueeze(-1).expand(-1, routing.groups, each).reshape(-1, routing.experts)
        )
        keys = keys.masked_fill(~mask.bool(), float("-inf"))
    ids = torch.topk(keys, k=routing.k, dim=-1, sorted=False)[1]
    weights = scores.gather(1, ids)
    weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
    return ids, weights * routing.scale, keys


if triton is not None:

    @triton.jit
    def triton_gate(
        logits,
        bias,
        ids,
        weights,
        scale,
        E: tl.constexpr,
        BLOCK: tl.constexpr,
        K: tl.constexpr,
        K2: tl.constexpr,
        SOFTMAX: tl.constexpr,
        GROUPS: tl.constexpr,
        KEPT: tl.constexpr,
    ):
        """One program per row: k times the largest of its keys."""
        row = tl.program_id(0)
        column = tl.arange(0, BLOCK)
        inside = column < E
        x = tl.load(logits + row * E + column, mask=inside, other=float("-inf")).to(tl.float32)
        if SOFTMAX:
            score = tl.exp(x - tl.max(x, axis=0))
            score = score / tl.sum(score, axis=0)
            key = score
        else:
            score = 1.0 / (1.0 + tl.exp(-x))
            key = score + tl.load(bias + column, mask=inside, other=0.0)
        key = tl.where(inside, key, float("-inf"))
        if GROUPS > 1:
            table = tl.reshape(key, (GROUPS, BLOCK // GROUPS))
            member = tl.arange(0, BLOCK // GROUPS)
            first = tl.argmax(table, axis=1)
            rest = tl.where(member[None, :] == first[:, None], float("-inf"), table)
            group_score = tl.max(table, axis=1) + tl.max(rest, axis=1)
            group = tl.arange(0, GROUPS)
            kept = group < 0
            for _ in tl.static_range(KEPT):
                best = tl.argmax(group_score, axis=0)
                kept = kept | (group == best)
                group_score = tl.where(group == best, float("-inf"), group_score)
            key = tl.reshape(tl.where(kept[:, None], table, float("-inf")), (BLOCK,))
        slot = tl.arange(0, K2)
        chosen = tl.zeros((K2,), dtype=tl.int32)
        weight = tl.zeros((K2,), dtype=tl.float32)
        for j in tl.static_range(K):
            best = tl.argmax(key, axis=0)
            weight = tl.where(
                slot == j, tl.sum(tl.where(column == best, score, 0.0), axis=0), weight
            )
            chosen = tl.where(slot == j, best, chosen)
            key = tl.where(column == best, float("-inf"), key)
        weight = weight / (tl.sum(weight, axis=0) + 1e-20) * scale
        tl.store(ids + row * K + slot, chosen, mask=slot < K)
        tl.store(weights + row * K + slot, weight, mask=slot < K)


def triton_route(routing, logits, bias, ids, weights):
    block = triton.next_power_of_2(routing.experts)
    triton_gate[(logits.shape[0],)](
        logits,
        logits if bias is None else bias,
        ids,
        weights,
        routing.scale,
        E=routing.experts,
        BLOCK=block,
        K=routing.k,
        K2=triton.next_power_of_2(routing.k),
        SOFTMAX=routing.softmax,
        GROUPS=routing.groups,
        KEPT=routing.kept,
        num_warps=max(1, block // 256),
    )


def differing(who, ids, weights, right_ids, right_weights, keys):
    """The share of rows, in percent, in which another set of experts was chosen than in right_ids.

    In all but one in a thousand of them that must be for keys that are equal, or nearly so; where
    the sets are equal, the weights must be, too.
    """
    ids, order = ids.long().sort(dim=-1)
    right, right_order = right_ids.long().sort(dim=-1)
    if (
        int(ids.min()) < 0
        or int(ids.max()) >= keys.shape[1]
        or bool((ids[:, 1:] == ids[:, :-1]).any())
    ):
        raise AssertionError(f"{who}: ids out of range, or one twice in a row")
    other = (ids != right).any(dim=-1)
    near = torch.isclose(
        keys.gather(1, ids).sort(dim=-1)[0],
        keys.gather(1, right).sort(dim=-1)[0],
        rtol=0,
        atol=1e-6,
    ).all(dim=-1)
    wrong = other & ~near
    if int(wrong.sum()) > ids.shape[0] / 1000:
        at = int(wrong.nonzero()[0])
        raise AssertionError(
            f"{who}: {int(wrong.sum())} of {ids.shape[0]} rows are wrong, the first of them {at}:"
            f" {ids[at].tolist()} instead of {right[at].tolist()}"
        )
    if weights is not None:
        error = (weights.gather(1, order) - right_weights.gather(1, right_order)).abs()[~other]
        if error.numel() > 0 and not float(error.max()) < 1e-4:
            raise AssertionError(f"{who}: weights differ by {float(error.max())}")
    return 100 * float(other.float().mean())


def route(report, bench, routing, rows):
    group = (
        f"Routing, device time of a call, E={routing.experts} k={routing.k} n={rows},"
        f" {routing.name}"
    )
    torch.manual_seed(20)
    bias = 0.1 * torch.randn(routing.experts, device="cuda") if routing.bias else None
    logits_f32 = torch.randn(rows, routing.experts, device="cuda")
    flags = rc.CONFIG_EXTERNAL_SINK
    with Capturer(
        ROUTE_CALLS, routing.k, routing.experts, flags=flags, provenance=rc.PROVENANCE_RECOMPUTED
    ) as capturer:
        sink = capturer.bind()
        for dtype in (torch.float32, torch.bfloat16):
            logits = logits_f32.to(dtype)
            parameters = {
                "rows": rows,
                "k": routing.k,
                "experts": routing.experts,
                "groups": routing.groups,
                "logits": NAMES[dtype],
            }
            right_ids, right_weights, keys = torch_route(routing, logits, bias)
            weights = torch.full((rows, routing.k), -1.0, device="cuda")

            router = rc.Router()
            lib.expect(
                lib.router_init(byref(router), sizeof(router), routing.method), what="router_init"
            )
            if routing.groups > 1:
                router.groups, router.groups_kept = routing.groups, routing.kept
            router.scale = routing.scale
            if bias is not None:
                router.bias, router.bias_dtype = bias.data_ptr(), rc.DTYPE_F32

            def ours(weights_address):
                given = rc.Logits(
                    struct_size=sizeof(rc.Logits),
                    dtype=DTYPES[dtype],
                    logits=logits.data_ptr(),
                    rows=rows,
                    experts=routing.experts,
                    weights=weights_address,
                )

                def body():
                    capturer.begin(rows)
                    for layer in range(ROUTE_CALLS):
                        capturer.route(layer, router, given)

                return capture(body)

            graphs, share = {}, {}
            for name, address in (
                ("routecap, ids", None),
                ("routecap, ids and weights", weights.data_ptr()),
            ):
                graphs[name] = ours(address)
                sink.fill_(-1)
                graphs[name].replay()
                torch.cuda.synchronize()
                for layer in (0, ROUTE_CALLS - 1):
                    share["routecap"] = differing(
                        f"{name}, {parameters}",
                        sink[layer, :rows],
                        None if address is None else weights,
                        right_ids,
                        right_weights,
                        keys,
                    )

            def by_torch():
                for _ in range(ROUTE_CALLS):
                    torch_route(routing, logits, bias)

            by_torch()
            torch.cuda.synchronize()
            graphs["PyTorch"] = capture(by_torch)

            if bench.triton(report):
                ids2, weights2 = (
                    torch.full((rows, routing.k), -1, dtype=torch.int32, device="cuda"),
                    torch.full_like(weights, -1),
                )
                try:
                    triton_route(routing, logits, bias, ids2, weights2)
                    torch.cuda.synchronize()
                except Exception as error:  # whatever a compiler throws
                    report.leave_out(
                        f"Triton, E={routing.experts} k={routing.k}, {NAMES[dtype]}:"
                        f" {type(error).__name__}: {error}"
                    )
                else:
                    share["Triton"] = differing(
                        f"Triton, {parameters}", ids2, weights2, right_ids, right_weights, keys
                    )

                    def by_triton():
                        for _ in range(ROUTE_CALLS):
                            triton_route(routing, logits, bias, ids2, weights2)

                    graphs["Triton"] = capture(by_triton)

            times = bench.clock.each(graphs, ROUTE_CALLS, bench.repetitions)
            for name, samples in times.items():
                report.add(group, f"{NAMES[dtype]}, {name}", parameters, "us", samples)
            for name, percent in share.items():
                report.add(
                    group,
                    f"{NAMES[dtype]}, {name}: other ids than PyTorch's",
                    parameters,
                    "% of rows",
                    [percent],
                )
            torch.cuda.synchronize()
            del graphs


# ---- Everything -------------------------------------------------------------------------------


class Bench:
    """What the groups share. Steps wait for their kernels until one is measured."""

    def __init__(self, quick):
        self.quick, self.repetitions, self.clock = quick, 5 if quick else 30, Clock()
        self.made, self.nvcc = None, find_nvcc()
        self.branch = torch.cuda.Stream()
        if self.branch.cuda_stream == stream_handle():
            raise RuntimeError("PyTorch gave one stream twice")

    def model(self, report):
        if self.nvcc is None:
            report.leave_out("steps: no nvcc in PATH, nor in CUDA_HOME")
            return None
        if self.made is None:
            self.made = Model(Kernels(self.nvcc))
        return self.made

    def triton(self, report):
        if triton is None:
            report.leave_out(f"Triton: {why_no_triton}")
        return triton is not None


def groups():
    """Name and function of every group."""
    found = []
    for rows in (1, 64, 256, 8192):
        for overlapped in (False, True):
            name = f"step n={rows}" + (" overlapped" if overlapped else "")
            found.append(
                (name, lambda report, bench, n=rows, o=overlapped: step(report, bench, n, o))
            )
    for routing in ROUTINGS:
        for rows in (1, 64, 8192):
            found.append(
                (
                    f"route E={routing.experts} k={routing.k} n={rows}",
                    lambda report, bench, r=routing, n=rows: route(report, bench, r, n),
                )
            )
    return found


def driver_version():
    version = c_int32()
    cuda = ctypes.CDLL("libcuda.so.1")
    if cuda.cuDriverGetVersion(byref(version)) != 0:
        raise RuntimeError("cuDriverGetVersion failed")
    supported = f"CUDA {version.value // 1000}.{version.value % 1000 // 10}"
    with (
        contextlib.suppress(OSError),
        open("/proc/driver/nvidia/version", encoding="utf-8") as file,
    ):
        number = re.search(r"\s(\d+\.\d+[\d.]*)\s", file.readline())
        if number:
            return f"driver {number.group(1)}, {supported}"
    return f"driver of {supported}"


def nvcc_version(nvcc):
    if nvcc is None:
        return "no nvcc"
    text = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    release = re.search(r"release ([\d.]+)", text)
    return f"nvcc {release.group(1) if release else 'of unknown version'}"


def main():
    parser = argparse.ArgumentParser(
        description="What bringing expert ids into the sink costs on one GPU."
    )
    parser.add_argument("library", help="libroutecap.so.1")
    parser.add_argument("--json", metavar="FILE", help="write the results there, too")
    parser.add_argument("--quick", action="store_true", help="5 repetitions instead of 30")
    parser.add_argument(
        "--only", metavar="SUBSTRING", action="append", help="groups whose name contains it"
    )
    options = parser.parse_args()
    chosen = [
        (name, measure)
        for name, measure in groups()
        if options.only is None or any(part in name for part in options.only)
    ]
    if not chosen:
        sys.exit("no group has such a name; there are: " + ", ".join(name for name, _ in groups()))

    lib.load(options.library)
    if not torch.cuda.is_available():
        sys.exit("PyTorch finds no CUDA device")
    backend = rc.Backend(struct_size=sizeof(rc.Backend))
    lib.expect(lib.backend_info(rc.BACKEND_CUDA, byref(backend)), what="backend_info")
    if backend.available == 0:
        sys.exit(f"no CUDA backend: {backend.detail.decode()}")
    torch.zeros(1, device="cuda")
    torch.cuda.set_stream(torch.cuda.Stream())  # of everything that follows
    bench = Bench(options.quick)
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    report = Report(
        f"routecap {lib.version()}, CUDA backend, {properties.name},"
        f" {properties.multi_processor_count} SMs, {driver_version()}, PyTorch {torch.__version__},"
        f" {'no Triton' if triton is None else 'Triton ' + triton.__version__}",
        nvcc_version(bench.nvcc),
    )
    for name, measure in chosen:
        try:
            measure(report, bench)
        except (
            Exception
        ) as error:  # the other groups are measured all the same; the exit status tells
            traceback.print_exc(file=sys.stdout)
            report.failed.append(f"{name}: {type(error).__name__}: {error}")
            print(f"\nFAILED {report.failed[-1]}", flush=True)
    if options.json:
        report.write_json(options.json)
    if report.failed:
        print(f"\n{len(report.failed)} of {len(chosen)} groups FAILED:")
        for text in report.failed:
            print("  " + text.splitlines()[0])
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

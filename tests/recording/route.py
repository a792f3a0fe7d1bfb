#!/usr/bin/env python3
"""routecap_layer_route against the reference of reference.py: random and adversarial logits, every
method, layout and placement of rows.

    python3 tests/recording/route.py path/to/libroutecap.so.1 [--backend host|cuda] [--quick]

Ids must be those of the reference, in their order. A difference is allowed only where keys are so
close (reference.ULPS) that an arithmetic that rounds differently may rank them either way, and
never in cases whose keys every float32 arithmetic gets alike; such rows are counted. Needs NumPy,
and torch for device memory with --backend cuda. Ends with the numbers of checks; exit status 77
where something is missing.
"""

import argparse
import ctypes
import dataclasses
import itertools
import os
import sys
from ctypes import byref, c_int32, c_uint32, c_uint64, c_void_p, sizeof
from dataclasses import dataclass, field

try:
    import numpy as np
except ImportError as error:
    print(f"route: not run, no numpy: {error}")
    sys.exit(77)

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, os.pardir, "support")]
import reference as ref  # noqa: E402
import routecap_ctypes as rc  # noqa: E402

WAIT_NS = 60 * 10**9
GUARD = 64  # elements on each side of a buffer that the library writes
UNWRITTEN = 12345.5  # what such a buffer holds before


class Checks:
    """Counts, and goes on after a failure."""

    def __init__(self):
        self.passed = self.failed = self.rows = self.near_ties = 0

    def check(self, condition, message):
        if condition:
            self.passed += 1
            return True
        self.failed += 1
        if self.failed <= 40:
            print("FAILED:", message() if callable(message) else message, flush=True)
        return False

    def status(self, lib, status, expected, what):
        """That a call returned one of the expected statuses, and left a text with an error."""
        expected = expected if isinstance(expected, tuple) else (expected,)
        names = " or ".join(lib.name_of(s) for s in expected)
        self.check(
            status in expected,
            lambda: (
                f"{what}: {lib.name_of(status)} instead of {names}; last error:"
                f" {lib.last_error().decode()!r}"
            ),
        )
        if status < 0:
            self.check(lib.last_error() != b"", f"{what}: no text")

    def close(self):
        print(
            f"near ties: {self.near_ties} of {self.rows} rows were ranked otherwise than by the"
            " reference"
        )
        print(f"{self.passed} checks passed, {self.failed} failed")
        return 1 if self.failed or not self.passed else 0


# ---- Memory -----------------------------------------------------------------------------------


class HostMemory:
    backend, stream, device = rc.BACKEND_HOST, None, 0

    @staticmethod
    def put(array):
        return np.ascontiguousarray(array)

    @staticmethod
    def pointer(buffer, element=0):
        return buffer.ctypes.data + element * buffer.itemsize

    @staticmethod
    def get(buffer):
        return buffer


class CudaMemory:
    """NumPy arrays in torch's device memory, on torch's current stream."""

    backend = rc.BACKEND_CUDA

    def __init__(self):
        import torch

        self.torch = torch
        self.device = torch.cuda.current_device()

    @property
    def stream(self):
        return self.torch.cuda.current_stream().cuda_stream

    def put(self, array):
        array = np.ascontiguousarray(array)
        tensor = self.torch.from_numpy(array.reshape(-1).view(np.uint8)).cuda()
        tensor.numpy_type, tensor.numpy_shape = array.dtype, array.shape
        return tensor

    def pointer(self, buffer, element=0):
        return buffer.data_ptr() + element * buffer.numpy_type.itemsize

    def get(self, buffer):
        self.torch.cuda.synchronize()
        return buffer.cpu().numpy().view(buffer.numpy_type).reshape(buffer.numpy_shape)


def memory_of(backend):
    """The memory of a backend, or why there is none."""
    if backend == "host":
        return HostMemory(), ""
    try:
        memory = CudaMemory()
    except ImportError as error:
        return None, f"no torch: {error}"
    except (AssertionError, RuntimeError) as error:
        return None, f"torch finds no CUDA device: {error}"
    return memory, ""


# ---- Element types ----------------------------------------------------------------------------

F32, F16, BF16 = rc.DTYPE_F32, rc.DTYPE_F16, rc.DTYPE_BF16
DTYPES = (F32, F16, BF16)
NAMES = {F32: "f32", F16: "f16", BF16: "bf16"}


def stored(values, dtype):
    """Float32 values as elements of a dtype, and the float32 values that these are."""
    values = np.asarray(values, dtype=np.float32)
    if dtype == F32:
        return values, values
    if dtype == F16:
        with np.errstate(over="ignore"):
            half = values.astype(np.float16)
        return half, half.astype(np.float32)
    bits = values.view(np.uint32)
    upper = ((bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    upper = np.where(np.isnan(values), (bits >> 16).astype(np.uint16) | np.uint16(0x40), upper)
    return upper, (upper.astype(np.uint32) << 16).view(np.float32)


# ---- Methods ----------------------------------------------------------------------------------

RANK, NORM, FMAX, TANH, ZERO = (
    ref.RANK_LOGITS,
    ref.RENORMALIZE,
    ref.FLOOR_MAX,
    ref.SIGMOID_TANH,
    ref.GROUPS_ZERO,
)
METHODS = {  # as the table of methods in the header describes them
    rc.METHOD_SOFTMAX: ref.Router(ref.SOFTMAX),
    rc.METHOD_SOFTMAX_RENORMALIZE: ref.Router(ref.SOFTMAX, NORM),
    rc.METHOD_TOPK_SOFTMAX: ref.Router(ref.SOFTMAX, RANK | NORM),
    rc.METHOD_TOPK: ref.Router(ref.LOGIT),
    rc.METHOD_TOPK_SIGMOID: ref.Router(ref.SIGMOID, RANK),
    rc.METHOD_SIGMOID: ref.Router(ref.SIGMOID),
    rc.METHOD_SIGMOID_RENORMALIZE: ref.Router(ref.SIGMOID, NORM, floor=1e-20),
    rc.METHOD_DEEPSEEK_V2: ref.Router(ref.SOFTMAX, group_score=ref.MAX),
    rc.METHOD_DEEPSEEK_V3: ref.Router(ref.SIGMOID, NORM, group_score=ref.TOP2, floor=1e-20),
    rc.METHOD_DEEPSEEK_V4: ref.Router(ref.SQRT_SOFTPLUS, NORM, floor=1e-20),
    rc.METHOD_ERNIE: ref.Router(ref.SOFTMAX, NORM | FMAX),
}
BIASED = (
    rc.METHOD_SIGMOID,
    rc.METHOD_SIGMOID_RENORMALIZE,
    rc.METHOD_DEEPSEEK_V3,
    rc.METHOD_DEEPSEEK_V4,
    rc.METHOD_ERNIE,
)
GROUPED = (rc.METHOD_DEEPSEEK_V2, rc.METHOD_DEEPSEEK_V3)
GROUPS = ((8, 3), (8, 4), (4, 1), (32, 5), (32, 32), (1, 1))

OTHERS = (  # what no method in use does, each flag where it shows
    ref.Router(ref.SOFTMAX, NORM, floor=0.25, scale=2.5),
    ref.Router(ref.SIGMOID, NORM | FMAX, floor=9.5, scale=0.5),
    ref.Router(ref.SIGMOID, TANH),
    ref.Router(ref.SIGMOID, TANH | NORM, group_score=ref.TOP2),
    ref.Router(ref.SIGMOID, NORM, group_score=ref.TOP2_DISTINCT),
    ref.Router(ref.LOGIT, RANK, group_score=ref.TOP2_DISTINCT),
    ref.Router(ref.LOGIT, group_score=ref.TOP2, scale=-1.5),
    ref.Router(ref.LOGIT, NORM, group_score=ref.MAX, floor=1.0),
    ref.Router(ref.SQRT_SOFTPLUS, RANK, group_score=ref.TOP2),
    ref.Router(ref.SIGMOID, RANK | ZERO, group_score=ref.TOP2),
    ref.Router(ref.SIGMOID, ZERO | NORM, group_score=ref.TOP2, floor=1e-20),
    ref.Router(ref.SQRT_SOFTPLUS, NORM, group_score=ref.MAX, scale=1.5),
)

ROUTERS = [(router, method) for method, router in METHODS.items()] + [(r, 0) for r in OTHERS]


def groups_for(experts, k, rng):
    """Groups that a layer of so many experts can have."""
    fitting = [
        (n, kept)
        for n, kept in GROUPS
        if experts % n == 0 and experts // n >= 2 and kept * (experts // n) >= k
    ]
    return fitting[rng.integers(len(fitting))]


# ---- Logits -----------------------------------------------------------------------------------


def signed_nan(rng, shape):
    """NaNs of both signs, quiet ones with all kinds of payloads."""
    sign, payload = (
        rng.integers(0, 2, shape, dtype=np.uint32),
        rng.integers(0, 1 << 22, shape, dtype=np.uint32),
    )
    return (sign << 31 | np.uint32(0x7FC00000) | payload).view(np.float32)


def some(rng, values, fraction, replacement):
    """Values, some of which are replaced; in a few rows nearly all of them."""
    rows = values.shape[0]
    share = np.where(np.arange(rows) % 5 == 4, 0.97, fraction)[:, None]
    return np.where(rng.random(values.shape) < share, replacement, values).astype(np.float32)


def infinities(rng, shape):
    values = some(
        rng, rng.normal(0, 2, shape), 0.1, np.where(rng.random(shape) < 0.5, np.inf, -np.inf)
    )
    values[::7] = np.where(np.isposinf(values[::7]), 1, values[::7])  # none of them positive
    values[3::7] = -np.inf
    return values


def zeros(rng, shape):
    values = np.where(rng.random(shape) < 0.5, np.float32(0.0), np.float32(-0.0))
    return np.where(rng.random(shape) < 0.02, rng.choice([-1.0, 1.0], shape), values)


def denormals(rng, shape):
    bits = rng.integers(0, 1 << 8, shape, dtype=np.uint32) << rng.choice(
        np.array([0, 15], dtype=np.uint32), shape
    )
    return (bits | rng.integers(0, 2, shape, dtype=np.uint32) << 31).view(np.float32)


LOGITS = {
    "normal": lambda rng, shape: rng.normal(0, 1, shape),
    "narrow": lambda rng, shape: rng.normal(0, 0.05, shape),
    "wide": lambda rng, shape: rng.normal(0, 30, shape),
    "underflowing": lambda rng, shape: rng.uniform(-20 * shape[1], 0, shape),
    "ties": lambda rng, shape: rng.choice([-3.0, -1.0, 0.0, 2.0, 5.0], shape),
    "equal": lambda rng, shape: np.broadcast_to(rng.normal(0, 1, (shape[0], 1)), shape),
    "saturated": lambda rng, shape: rng.uniform(20, 60, shape),
    "nearly saturated": lambda rng, shape: rng.uniform(14, 19, shape),
    "NaN": lambda rng, shape: some(rng, rng.normal(0, 1, shape), 0.2, signed_nan(rng, shape)),
    "infinite": infinities,
    "NaN and infinite": lambda rng, shape: some(
        rng, infinities(rng, shape), 0.2, signed_nan(rng, shape)
    ),
    "denormal": denormals,
    "zeros of both signs": zeros,
    "large": lambda rng, shape: rng.normal(0, 1, shape) * 3e37,
    "rising": lambda rng, shape: np.broadcast_to(np.arange(shape[1]), shape),
    "falling": lambda rng, shape: np.broadcast_to(-np.arange(shape[1]), shape),
}


def is_exact(name, router):
    """Whether every float32 arithmetic finds the same keys."""
    if router.score == ref.LOGIT or router.flags & RANK or name == "equal" and router.bias is None:
        return True
    return (
        name == "ties"
        and router.bias is None
        or name == "saturated"
        and router.score == ref.SIGMOID
    )


# ---- How logits lie in memory, and where rows go ----------------------------------------------


@dataclass
class Layout:
    """Elements before the first, from row to row and from column to column; 0 strides are the
    defaults.
    """

    first: int = 0
    row_stride: int = 0
    column_stride: int = 0

    def lay(self, elements):
        """Elements [rows, experts] in one array, between large numbers that would win if they were
        read.
        """
        rows, experts = elements.shape
        row_stride, column_stride = self.row_stride or experts, self.column_stride or 1
        flat = stored(
            np.full(self.first + (rows - 1) * row_stride + (experts - 1) * column_stride + 9, 6e4),
            {np.dtype(np.float32): F32, np.dtype(np.float16): F16}.get(elements.dtype, BF16),
        )[0].copy()
        at = self.first + np.arange(rows)[:, None] * row_stride + np.arange(experts) * column_stride
        flat[at] = elements
        return flat


def layouts(rows, experts):
    return {
        "dense": Layout(),
        "dense, said so": Layout(0, experts, 1),
        "odd rows": Layout(0, experts + 5, 1),
        "behind one element": Layout(1, experts + 3, 1),
        "behind three": Layout(3),
        "transposed": Layout(0, 1, rows),
        "transposed, padded": Layout(1, 1, rows + 3),
        "every third column": Layout(2, 3 * experts + 1, 3),
    }


@dataclass
class Placement:
    """The sink row of each row of logits: first_row, and what the device says."""

    rows: int
    first_row: int = 0
    row_base: int | None = None
    row_index: np.ndarray | None = None
    live_rows: int | None = None

    def live(self):
        return self.rows if self.live_rows is None else min(max(self.live_rows, 0), self.rows)

    def targets(self):
        """[rows] the sink row of each, -1 for none."""
        base = (
            np.arange(self.rows) + self.first_row + (self.row_base or 0)
            if self.row_index is None
            else self.row_index
        )
        return np.where(np.arange(self.rows) < self.live(), base, -1)


def placements(rows, sink_rows, rng):
    index = rng.permutation(sink_rows)[:rows].astype(np.int32)
    index[rng.random(rows) < 0.3] = -1
    index[0] = -(2**31)
    return {
        "in order": Placement(rows),
        "behind others": Placement(rows, first_row=3),
        "behind a base": Placement(rows, first_row=1, row_base=2),
        "before by a base": Placement(rows, first_row=4, row_base=-4),
        "some live": Placement(rows, live_rows=rows // 2),
        "none live": Placement(rows, live_rows=0),
        "fewer than none live": Placement(rows, live_rows=-3),
        "more live than there are": Placement(rows, live_rows=rows + 100),
        "indexed": Placement(rows, row_index=index),
        "indexed, some live": Placement(rows, row_index=index, live_rows=rows - 3, first_row=2),
        "based, some live": Placement(rows, first_row=1, row_base=1, live_rows=5),
    }


# ---- Cases ------------------------------------------------------------------------------------


@dataclass
class Case:
    """One call of routecap_layer_route, and what it must do."""

    label: str
    router: ref.Router
    values: np.ndarray  # float32 [rows, experts]: the logits as they are stored
    elements: np.ndarray
    dtype: int = F32
    method: int = 0  # routecap_router_init fills the router where this is set
    bias_dtype: int = F32
    bias: np.ndarray | None = None  # elements
    layout: Layout = field(default_factory=Layout)
    placement: Placement | None = None
    tokens: np.ndarray | None = None
    weights: bool = True
    weights_stride: int = 0
    no_logits: bool = False
    exact: bool = False
    experts: int = 0  # as the field of routecap_logits


def make_case(
    rng,
    router,
    name,
    dtype,
    rows,
    experts,
    k,
    method=0,
    bias_dtype=None,
    groups=None,
    layout=None,
    placement=None,
):
    """A case of random logits with a router that has what its method takes from the model."""
    elements, values = stored(LOGITS[name](rng, (rows, experts)), dtype)
    router = dataclasses.replace(router)
    label = f"{name} {NAMES[dtype]}, {experts} experts, k {k}, " + (
        f"method {method}" if method else f"router {OTHERS.index(router)}"
    )
    case = Case(
        label,
        router,
        values,
        elements,
        dtype,
        method,
        layout=layout or Layout(),
        placement=placement,
    )
    grouped = method in GROUPED if method else router.group_score != ref.MAX or router.flags & ZERO
    if grouped:
        router.groups, router.groups_kept = (
            groups if groups is not None else groups_for(experts, k, rng)
        )
        case.label += f", {router.groups_kept} of {router.groups} groups"
    if bias_dtype is not None and (method in BIASED or not method):
        spread = 0.1 if router.score != ref.LOGIT else 1.0
        case.bias, router.bias = stored(rng.normal(0, spread, experts), bias_dtype)
        case.bias_dtype = bias_dtype
        case.label += f", bias {NAMES[bias_dtype]}"
    if method in (rc.METHOD_DEEPSEEK_V2, rc.METHOD_DEEPSEEK_V3, rc.METHOD_DEEPSEEK_V4):
        router.scale = 2.5
    if method == rc.METHOD_ERNIE:
        router.floor = float(np.float32(0.4))
    case.exact = is_exact(name, router)
    case.weights_stride = int(rng.choice([0, k, k + 3]))
    return case


# ---- A capturer to route into -----------------------------------------------------------------


class Bench:
    """A capturer whose layers are routed, one case in each."""

    def __init__(
        self,
        lib,
        memory,
        checks,
        layers,
        k,
        experts,
        sink_rows,
        **fields,
    ):
        self.lib, self.memory, self.checks = lib, memory, checks
        self.layers, self.k, self.sink_rows = layers, k, sink_rows
        self.experts = [experts] * layers if isinstance(experts, int) else list(experts)
        config = lib.config(
            backend=memory.backend,
            device=memory.device,
            layers=layers,
            k=k,
            experts=max(self.experts),
            rows=sink_rows,
            layer_experts=(c_uint32 * layers)(*self.experts),
            layer_provenance=(c_int32 * layers)(*[rc.PROVENANCE_RECOMPUTED] * layers),
            **fields,
        )
        self.handle = c_void_p()
        lib.expect(lib.capturer_create(config, byref(self.handle)), what="capturer_create")
        self.kept = []  # what the device reads until the step has landed

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.lib.capturer_destroy(self.handle)

    # ---- Calls

    def put(self, array, element=0):
        """The address of an array in the memory of the backend."""
        buffer = self.memory.put(array)
        self.kept.append(buffer)
        return self.memory.pointer(buffer, element)

    def router(self, case):
        """The router of a case."""
        r = case.router
        router = rc.Router(
            struct_size=sizeof(rc.Router),
            score=r.score,
            group_score=r.group_score,
            flags=r.flags,
            floor=r.floor,
        )
        if case.method:
            self.lib.expect(
                self.lib.router_init(router, sizeof(rc.Router), case.method), what="router_init"
            )
            if case.method == rc.METHOD_ERNIE:
                router.floor = r.floor
        router.groups, router.groups_kept = (r.groups, r.groups_kept) if r.groups > 1 else (0, 0)
        router.scale = 0 if r.scale == 1 else r.scale
        if case.bias is not None:
            router.bias, router.bias_dtype = self.put(case.bias), case.bias_dtype
        if r.hash_table is not None:
            around = np.concatenate(
                [r.hash_table] * 3
            )  # ids that would pass for those of a token outside the table
            router.hash_table, router.hash_tokens = (
                self.put(around, r.hash_table.size),
                len(r.hash_table),
            )
        return router

    def logits(self, case, weights):
        """The logits of a case, with weights written behind the guard in front of that array."""
        place = case.placement or Placement(len(case.values))
        logits = rc.Logits(
            struct_size=sizeof(rc.Logits),
            dtype=case.dtype,
            rows=place.rows,
            first_row=place.first_row,
            experts=case.experts,
            row_stride=case.layout.row_stride,
            column_stride=case.layout.column_stride,
        )
        if not case.no_logits:
            logits.logits = self.put(case.layout.lay(case.elements), case.layout.first)
        if place.live_rows is not None:
            logits.live_rows = self.put(np.array([place.live_rows], dtype=np.int32))
        if place.row_base is not None:
            logits.row_base = self.put(np.array([place.row_base], dtype=np.int32))
        if place.row_index is not None:
            logits.row_index = self.put(place.row_index)
        if case.tokens is not None:
            logits.tokens = self.put(case.tokens)
            logits.tokens_dtype = {4: rc.DTYPE_I32, 8: rc.DTYPE_I64}[case.tokens.itemsize]
        if weights is not None:
            logits.weights, logits.weights_stride = (
                self.memory.pointer(weights, GUARD),
                case.weights_stride,
            )
        return logits

    def route(self, layer, case, router=None, logits=None):
        return self.lib.layer_route(
            self.handle,
            layer,
            router or self.router(case),
            logits or self.logits(case, None),
            self.memory.stream,
        )

    def begin(self):
        self.lib.expect(
            self.lib.step_begin(self.handle, self.sink_rows, self.memory.stream), what="step_begin"
        )

    def snapshot(self):
        self.lib.expect(
            self.lib.step_snapshot(self.handle, self.memory.stream), what="step_snapshot"
        )

    def file(self):
        """Issues what the last forward left in its snapshot for a new request, and waits: the
        request, and how many cells were recorded twice.
        """
        request = c_uint64()
        self.lib.expect(
            self.lib.request_open(self.handle, None, byref(request), 1), what="request_open"
        )
        span = rc.Span(request=request.value, rows=self.sink_rows)
        step, conflicting = c_uint64(), c_uint64()
        self.lib.expect(
            self.lib.step_issue(
                self.handle, span, sizeof(rc.Span), 1, None, None, byref(step), self.memory.stream
            ),
            what="step_issue",
        )
        self.lib.expect(
            self.lib.step_finalize(self.handle, step, WAIT_NS, byref(conflicting)),
            what="step_finalize",
        )
        self.kept.clear()
        return request, conflicting.value

    def read(self, request):
        """Ids [sink rows, layers, k], -7 where missing, and the reason of each missing cell
        [sink rows, layers], 0 where there is none.
        """
        lib, rows = self.lib, self.sink_rows
        ids = np.zeros((rows, self.layers, self.k), dtype=np.int32)
        options = lib.copy_options(dtype=rc.DTYPE_I32, order=rc.ORDER_ROW_MAJOR, fill=-7)
        status = lib.request_extract_into(
            self.handle, request, 0, rows, options, ids.ctypes.data, ids.nbytes, None, 0, None
        )
        if status < 0:
            lib.expect(status, what="request_extract_into")
        coverage, blocks = (
            rc.Coverage(struct_size=sizeof(rc.Coverage)),
            (rc.Missing * (rows * self.layers))(),
        )
        status = lib.request_coverage(
            self.handle, request, 0, rows, coverage, blocks, sizeof(rc.Missing), len(blocks)
        )
        if status not in (rc.OK, rc.INCOMPLETE):
            lib.expect(status, what="request_coverage")
        reasons = np.zeros((rows, self.layers), dtype=np.int32)
        for block in blocks[: coverage.blocks]:
            reasons[
                block.first : block.first + block.rows,
                block.first_layer : block.first_layer + block.layers,
            ] = block.reason
        return ids, reasons

    # ---- A step of cases

    def run(self, cases):
        """Routes one case per layer in one forward pass and compares all of it.

        Returns the ids [sink rows, k] and the weights of each.
        """
        weights = []
        self.begin()
        for layer, case in enumerate(cases):
            stride = case.weights_stride or self.k
            size = 2 * GUARD + len(case.values) * stride
            weights.append(
                self.memory.put(np.full(size, UNWRITTEN, dtype=np.float32))
                if case.weights
                else None
            )
            self.lib.expect(
                self.route(layer, case, logits=self.logits(case, weights[-1])), what=case.label
            )
        self.snapshot()
        request, conflicting = self.file()
        self.checks.check(conflicting == 0, f"{conflicting} cells recorded twice")
        ids, reasons = self.read(request)
        self.lib.expect(self.lib.request_close(self.handle, request), what="request_close")
        weights = [None if buffer is None else self.memory.get(buffer) for buffer in weights]
        for layer, case in enumerate(cases):
            self.compare(case, ids[:, layer], reasons[:, layer], weights[layer])
        return [(ids[:, layer], weights[layer]) for layer in range(len(cases))]

    def compare(self, case, ids, reasons, weights):
        """One layer: ids [sink rows, k], reasons [sink rows], and the weights between their guards."""
        check, rows = self.checks.check, len(case.values)
        place = case.placement or Placement(rows)
        targets, live = place.targets(), np.arange(rows) < place.live()
        want = ref.route(case.values, case.router, self.k, case.tokens)
        wanted = np.zeros(self.sink_rows, dtype=bool)
        wanted[targets[targets >= 0]] = True
        # Rows of no cell at all are not kept.
        check(
            np.isin(reasons[~wanted], (rc.MISSING_UNWRITTEN, rc.MISSING_ABSENT)).all(),
            f"{case.label}: rows that were not routed are there",
        )
        experts = case.values.shape[1]
        good = np.array(
            [
                0 <= row.min() and row.max() < experts and len(set(row.tolist())) == len(row)
                for row in want.ids
            ]
        )
        for row in np.flatnonzero((targets >= 0) & ~good):
            reason = (
                rc.MISSING_OUT_OF_RANGE
                if want.ids[row].min() < 0 or want.ids[row].max() >= experts
                else rc.MISSING_DUPLICATE
            )
            check(
                reasons[targets[row]] == reason,
                f"{case.label}: row {row} is missing for reason {reasons[targets[row]]} instead of"
                f" {reason}",
            )

        placed = np.flatnonzero((targets >= 0) & good)
        wrong = []
        for row in placed:
            sink = targets[row]
            if reasons[sink] != 0:
                wrong.append((row, f"missing for reason {reasons[sink]}"))
            elif not np.array_equal(ids[sink], want.ids[row]):
                text = ref.judge(want, row, ids[sink], case.exact)
                if text is None:
                    self.checks.near_ties += 1
                else:
                    wrong.append((row, text))
        self.checks.rows += len(placed)
        check(
            not wrong,
            lambda: (
                f"{case.label}: {len(wrong)} of {len(placed)} rows, the first row {wrong[0][0]}:"
                f" {wrong[0][1]}"
            ),
        )
        if weights is None:
            return

        stride = case.weights_stride or self.k
        check(
            (weights[:GUARD] == UNWRITTEN).all() and (weights[-GUARD:] == UNWRITTEN).all(),
            f"{case.label}: weights written beside their buffer",
        )
        weights = weights[GUARD:-GUARD].reshape(rows, stride)
        check(
            (weights[:, self.k :] == UNWRITTEN).all(), f"{case.label}: weights written between rows"
        )
        check(
            (weights[~live] == UNWRITTEN).all(), f"{case.label}: weights of rows that are not live"
        )
        chosen = (
            want.ids.copy()
        )  # where there is no cell to read the ids from, those of the reference
        for row in placed:
            if reasons[targets[row]] == 0:
                chosen[row] = ids[targets[row]]
        compared = live & good
        with np.errstate(all="ignore"):
            expected = ref.weights_of(want.scores, np.clip(chosen, 0, experts - 1), case.router)
            errors = ref.weight_errors(
                want.scores, np.clip(chosen, 0, experts - 1), expected, case.router
            )
            near = (
                (np.abs(weights[:, : self.k] - expected) <= errors)
                | (weights[:, : self.k] == expected)
                | np.isnan(expected)
            )
        wrong = np.flatnonzero(compared & ~near.all(axis=1))
        if len(wrong) and not case.exact:  # a near tie in a row that goes nowhere
            wrong = wrong[targets[wrong] >= 0]
        check(
            len(wrong) == 0,
            lambda: (
                f"{case.label}: weights of {len(wrong)} rows, the first row {wrong[0]}:"
                f" {weights[wrong[0], : self.k]} instead of {expected[wrong[0]]} of ids"
                f" {chosen[wrong[0]]}"
            ),
        )


# ---- Tests ------------------------------------------------------------------------------------

ALL_EXPERTS = (8, 16, 32, 60, 64, 96, 128, 160, 256, 384, 512, 896, 1000, 1024)
ALL_K = (1, 2, 3, 4, 6, 8, 10, 16, 22, 32)
FEW_SHAPES = ((8, 2), (60, 4), (160, 6), (256, 8), (512, 22), (896, 16), (1024, 32), (1000, 3))


class Tests:
    def __init__(self, lib, memory, checks, quick):
        self.lib, self.memory, self.checks, self.quick = lib, memory, checks, quick

    def rng(self, *seed):
        return np.random.default_rng([20261121, *seed])

    def bench(self, layers, k, experts, sink_rows, **fields):
        return Bench(self.lib, self.memory, self.checks, layers, k, experts, sink_rows, **fields)

    def run_cases(self, cases, k, experts, sink_rows, **fields):
        """Cases of one shape, up to 64 in a step."""
        layers = min(64, len(cases))
        with self.bench(layers, k, experts, sink_rows, **fields) as bench:
            for at in range(0, len(cases), layers):
                bench.run(cases[at : at + layers])

    def test_init_fills_what_the_header_says(self):
        for method, want in METHODS.items():
            router = rc.Router()
            ctypes.memset(byref(router), 0xAB, sizeof(router))
            self.checks.status(
                self.lib,
                self.lib.router_init(router, sizeof(router), method),
                rc.OK,
                f"router_init of method {method}",
            )
            wanted = {
                "struct_size": sizeof(router),
                "score": want.score,
                "groups": 0,
                "bias": None,
                "hash_tokens": 0,
                "hash_table": None,
            }
            if method in GROUPED:
                wanted["group_score"] = want.group_score
            got = {name: getattr(router, name) for name in wanted}
            self.checks.check(got == wanted, f"method {method}: {got} instead of {wanted}")
            either = RANK if want.score == ref.LOGIT else 0  # logits are ranked in either case
            either |= (
                ZERO if method == rc.METHOD_DEEPSEEK_V2 else 0
            )  # probabilities are not below 0
            self.checks.check(
                router.flags | either == want.flags | either,
                f"method {method}: flags {router.flags} instead of {want.flags}",
            )
            self.checks.check(router.scale in (0, 1), f"method {method}: scale {router.scale}")
            self.checks.check(
                0 <= router.floor <= (1 if method == rc.METHOD_ERNIE else 1e-19),
                f"method {method}: floor {router.floor}",
            )
        # A method that is not among them would not be compared.
        status = self.lib.router_init(rc.Router(), sizeof(rc.Router), max(METHODS) + 1)
        self.checks.status(self.lib, status, rc.ERR_ARGUMENT, "router_init of one method more")

    def test_every_number_of_experts_and_k(self):
        """Each shape with all methods and all other routers; logits, dtypes, biases, layouts,
        placements, sinks, and whether there are weights, in turn.
        """
        names = list(LOGITS)
        for experts, k in itertools.product(ALL_EXPERTS, ALL_K):
            if k > experts or self.quick and (experts + k) % 3:
                continue
            rng = self.rng(1, experts, k)

            def any_of(values):
                return values[rng.integers(len(values))]

            rows = any_of((1, 6)) if self.quick else any_of((1, 17, 17, 21))
            places = placements(rows, rows + 5, rng)
            cases = []
            for router, method in ROUTERS:
                name = any_of(list(places))
                case = make_case(
                    rng,
                    router,
                    any_of(names),
                    any_of(DTYPES),
                    rows,
                    experts,
                    k,
                    method,
                    any_of((None, *DTYPES)),
                    layout=any_of(list(layouts(rows, experts).values())),
                    placement=places[name],
                )
                case.weights = rng.integers(4) > 0
                case.label += (
                    f", {name}, strides {case.layout.row_stride}, {case.layout.column_stride}"
                )
                cases.append(case)
            sink = any_of((rc.DTYPE_I16, rc.DTYPE_I32, rc.DTYPE_I64))
            self.run_cases(cases, k, experts, rows + 5, sink_dtype=sink)

    def test_every_method_with_all_logits(self):
        rows = 5 if self.quick else 15
        for experts, k in FEW_SHAPES[:3] if self.quick else FEW_SHAPES:
            rng = self.rng(2, experts, k)
            cases = [
                make_case(rng, router, name, dtype, rows, experts, k, method, bias)
                for name, (router, method), dtype in itertools.product(LOGITS, ROUTERS, DTYPES)
                for bias in ((None, dtype) if method in BIASED or not method else (None,))
            ]
            self.run_cases(cases, k, experts, rows)

    def test_many_rows(self):
        rng = self.rng(6)
        for experts, k, rows in (
            ((8, 2, 5003), (256, 8, 3001), (1024, 32, 700)) if not self.quick else ((64, 6, 1001),)
        ):
            methods = (rc.METHOD_SOFTMAX, rc.METHOD_DEEPSEEK_V3, rc.METHOD_TOPK_SOFTMAX)
            self.run_cases(
                [
                    make_case(rng, METHODS[m], "normal", d, rows, experts, k, m, F32)
                    for m, d in zip(methods, DTYPES)
                ],
                k,
                experts,
                rows,
            )

    def test_hash_tables(self):
        """Ids by token: in the table's order, with weights or without logits; what is no id makes
        its cell missing.
        """
        rng, experts, k, rows, tokens = self.rng(10), 64, 6, 23, 50
        table = np.argsort(rng.random((tokens, experts)), axis=1)[:, :k].astype(np.int32)
        odd = table.copy()
        odd[3, 2], odd[4, 0], odd[5, 1], odd[6, 5], odd[7, 3] = (
            experts,
            -1,
            odd[5, 4],
            70000,
            -(2**31),
        )
        cases = []
        for kind, use, dtype, no_logits in itertools.product(
            (np.int32, np.int64), (table, odd), DTYPES, (False, True)
        ):
            drawn = rng.integers(0, tokens, rows).astype(kind)
            drawn[:5] = (3, 4, 5, 6, 7)
            outside = [-1, tokens, -(2**31), 2**31 - 1] + (
                [2**32, 2**40 + 1, -(2**63), 2**63 - 1] if kind is np.int64 else []
            )
            drawn[5 : 5 + len(outside)] = outside
            case = make_case(
                rng,
                METHODS[rc.METHOD_DEEPSEEK_V4],
                "normal",
                dtype,
                rows,
                experts,
                k,
                rc.METHOD_DEEPSEEK_V4,
            )
            case.router.hash_table, case.tokens, case.no_logits, case.weights = (
                use,
                drawn,
                no_logits,
                not no_logits,
            )
            case.label += f", hash table, tokens of {kind.__name__}"
            cases.append(case)
        for method, weights in itertools.product(METHODS, (False, True)):
            case = make_case(
                rng, METHODS[method], "normal", F32, rows, experts, k, method, F32, groups=(8, 2)
            )
            case.router.hash_table, case.tokens, case.no_logits, case.weights = (
                table,
                rng.integers(0, tokens, rows),
                not weights,
                weights,
            )
            case.label += ", hash table"
            cases.append(case)
        for name, placement in placements(rows, rows + 5, rng).items():
            case = make_case(
                rng,
                METHODS[rc.METHOD_DEEPSEEK_V4],
                "normal",
                F32,
                rows,
                experts,
                k,
                rc.METHOD_DEEPSEEK_V4,
                placement=placement,
            )
            case.router.hash_table, case.tokens = table, rng.integers(0, tokens, rows)
            case.label += f", hash table, {name}"
            cases.append(case)
        self.run_cases(cases, k, experts, rows + 5)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("--backend", choices=("host", "cuda"), default="host")
    parser.add_argument("--quick", action="store_true", help="fewer shapes and rows")
    parser.add_argument("tests", nargs="*", help="names of tests; all of them by default")
    arguments = parser.parse_intermixed_args()
    memory, missing = memory_of(arguments.backend)
    if memory is None:
        print(f"route: not run, {missing}")
        return 77
    checks, lib = Checks(), rc.Library(arguments.library)
    tests = Tests(lib, memory, checks, arguments.quick)
    for name in arguments.tests or [name for name in dir(tests) if name.startswith("test_")]:
        passed, failed = checks.passed, checks.failed
        try:
            getattr(tests, name)()
        except AssertionError as error:
            checks.check(False, f"{name}: {error}")
        print(
            f"{name}: {checks.passed - passed} checks"
            + (f", {checks.failed - failed} failed" if checks.failed > failed else ""),
            flush=True,
        )
    return checks.close()


if __name__ == "__main__":
    sys.exit(main())

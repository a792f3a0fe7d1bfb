"""What a call costs from Python: one JSON object per line, {"name": ..., "ns": median}. tests/bench has the same operations in C.

Host backend, 58 layers of 256 experts, 8 each, 1024 rows. Only the calls that an operation names are timed; whatever has to land before it has.
"""

import json
import statistics
import time
from collections.abc import Callable

import numpy as np
import routecap

LAYERS, K, EXPERTS, ROWS, REQUESTS = 58, 8, 256, 1024, 256
REPETITIONS, WARM_UP = 300, 30

now = time.perf_counter_ns
capturer = routecap.Capturer(layers=LAYERS, k=K, experts=EXPERTS, rows=ROWS)
ids = np.random.default_rng(1).permuted(np.tile(np.arange(EXPERTS, dtype=np.int16), (ROWS, 1)), axis=1)[:, :K].copy()
every_layer = dict.fromkeys(range(LAYERS), ids)


def measure(name: str, operation: Callable[[], int]) -> None:
    """`operation` returns the nanoseconds of its timed part."""
    times = [operation() for _ in range(WARM_UP + REPETITIONS)][WARM_UP:]
    print(json.dumps({"name": name, "ns": statistics.median(times)}), flush=True)


def forward(rows: int) -> None:
    capturer.begin(rows)
    capturer.record_layers(every_layer, rows=rows)
    capturer.snapshot()


# ---- A request of 1024 rows that has landed

long = capturer.open()
forward(ROWS)
step = capturer.issue(routecap.spans(1, request=long.handle, rows=ROWS))
step.wait()
routing = long.extract(mode="copy")
out = np.empty((ROWS, LAYERS, K), np.int32)
retained = [long.extract(mode="copy") for _ in range(WARM_UP + REPETITIONS)]  # `view` looks at each of them for the first time


def poll() -> int:
    start = now()
    step.poll()
    return now() - start


def open_close() -> int:
    start = now()
    request = capturer.open()
    request.close()
    return now() - start


def open_close_256() -> int:
    start = now()
    requests = capturer.open_batch(REQUESTS)
    capturer.close_batch(requests)
    return now() - start


def extract_share() -> int:
    start = now()
    taken = long.extract()
    taken.free()
    return now() - start


def view() -> int:
    looked_at = retained.pop()
    start = now()
    looked_at.segments[0].ids
    return now() - start


def copy_to() -> int:
    start = now()
    routing.copy_to(out)
    return now() - start


def serialize() -> int:
    start = now()
    data = routing.serialize()
    elapsed = now() - start
    del data
    return elapsed


# ---- Steps of 256 requests

spans = routecap.spans(REQUESTS, sink_row=np.arange(REQUESTS))
drafts = routecap.spans(REQUESTS, sink_row=np.arange(REQUESTS), flags=routecap.SpanFlag.SPECULATIVE)
accepts = np.zeros(REQUESTS, routecap.accept_dtype)
accepts["count"] = 1
ends = np.zeros(REQUESTS, routecap.finish_dtype)
ends["rows"] = 1


def issue_256() -> int:
    requests = capturer.open_batch(REQUESTS)
    spans["request"] = requests
    forward(REQUESTS)
    start = now()
    issued = capturer.issue(spans)
    elapsed = now() - start
    issued.wait()
    capturer.close_batch(requests)
    return elapsed


def issue_accept_finish_256() -> int:
    requests = capturer.open_batch(REQUESTS)
    for array in (drafts, accepts, ends):
        array["request"] = requests
    forward(REQUESTS)
    start = now()
    issued = capturer.issue(drafts)
    accepts["step"] = issued.ticket
    capturer.accept_batch(accepts)
    routings = capturer.finish_batch(ends)
    elapsed = now() - start
    issued.wait()
    routings.free()
    return elapsed


for operation in (poll, open_close, open_close_256, issue_256, issue_accept_finish_256, extract_share, view, copy_to, serialize):
    measure(operation.__name__, operation)
capturer.close()

"""What a call costs from Python: one JSON object per line, {"name": ..., "ns": median}.

Host backend, 58 layers of 256 experts, 8 each, 1024 rows. Only the calls that an operation names
are timed; whatever has to land before it has.
"""

import copy
import json
import statistics
import time
from collections.abc import Callable

import numpy as np
import routecap

LAYERS, K, EXPERTS, ROWS, REQUESTS = 58, 8, 256, 1024, 256
REPETITIONS, WARM_UP = 300, 30
MANY = 100  # of a short operation, in one repetition

now = time.perf_counter_ns
capturer = routecap.Capturer(layers=LAYERS, k=K, experts=EXPERTS, rows=ROWS)
row, column = np.ogrid[:ROWS, :K]
ids = ((row * 7 + column * 31) % EXPERTS).astype(np.int32)
every_layer = dict.fromkeys(range(LAYERS), ids)


def measure(name: str, operation: Callable[[], float]) -> None:
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
routing = long.extract()
out = np.empty((ROWS, LAYERS, K), np.int32)


def poll() -> float:
    start = now()
    for _ in range(MANY):
        step.poll()
    return (now() - start) / MANY


def open_close() -> float:
    start = now()
    for _ in range(MANY):
        request = capturer.open()
        request.close()
    return (now() - start) / MANY


def open_close_256() -> float:
    start = now()
    requests = capturer.open_batch(REQUESTS)
    capturer.close_batch(requests)
    return now() - start


def extract_share() -> float:
    start = now()
    taken = long.extract()
    taken.free()
    return now() - start


def view() -> float:
    fresh = [
        copy.copy(routing) for _ in range(MANY)
    ]  # what was seen is kept, so that each looks once
    start = now()
    for each in fresh:
        each.segments[0].ids
    return (now() - start) / MANY


def copy_to() -> float:
    start = now()
    routing.copy_to(out)
    return now() - start


def serialize() -> float:
    start = now()
    data = routing.serialize()
    elapsed = now() - start
    del data
    return elapsed


# ---- Steps of 256 requests

spans = routecap.spans(REQUESTS, sink_row=np.arange(REQUESTS))
spans["request"] = lasting = capturer.open_batch(REQUESTS)
drafts = routecap.spans(REQUESTS, sink_row=np.arange(REQUESTS), flags=routecap.SpanFlag.SPECULATIVE)
accepts = np.zeros(REQUESTS, routecap.accept_dtype)
accepts["count"] = 1
ends = np.zeros(REQUESTS, routecap.finish_dtype)
ends["rows"] = 1


def issue_256() -> float:
    forward(REQUESTS)
    start = now()
    issued = capturer.issue(spans)
    elapsed = now() - start
    issued.wait()
    spans["position"] += 1
    return elapsed


def issue_accept_finish_256() -> float:
    requests = capturer.open_batch(REQUESTS)
    forward(REQUESTS)
    drafts["request"] = requests
    start = now()
    issued = capturer.issue(drafts)
    accepts["request"] = requests
    accepts["step"] = issued.ticket
    capturer.accept_batch(accepts)
    ends["request"] = requests
    routings = capturer.finish_batch(ends)
    elapsed = now() - start
    issued.wait()
    routings.free()
    return elapsed


for operation in (
    poll,
    open_close,
    open_close_256,
    issue_256,
    issue_accept_finish_256,
    extract_share,
    view,
    copy_to,
    serialize,
):
    measure(operation.__name__, operation)
capturer.close()

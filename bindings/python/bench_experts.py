"""What the figures of experts cost: one JSON object per line, {"name": ..., "seconds": best of
three, "megabytes": most that was allocated beside the rows and the weights}.

100,000 rows of 48 layers, 8 of 128 experts each, chosen at random.
"""

import json
import time
import tracemalloc
from collections.abc import Callable

import numpy as np
from routecap import Routing, experts

ROWS, LAYERS, K, EXPERTS = 100_000, 48, 8, 128

random = np.random.default_rng(0)
ids = np.empty((ROWS, LAYERS, K), np.uint8)
for part in np.split(ids, 50):
    part[:] = random.random((*part.shape[:2], EXPERTS), np.float32).argpartition(K)[..., :K]
routing = Routing.from_arrays(ids, experts=EXPERTS)
weights = [random.random(ids.shape, np.float32)]


def measure(name: str, operation: Callable[[], object]) -> None:
    times = []
    for _ in range(3):
        start = time.perf_counter()
        operation()
        times.append(time.perf_counter() - start)
    tracemalloc.start()
    operation()
    megabytes = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    found = {"name": name, "seconds": round(min(times), 2), "megabytes": round(megabytes)}
    print(json.dumps(found), flush=True)


measure("usage", lambda: experts.usage(routing))
measure("coactivation", lambda: experts.coactivation(routing))
measure("coactivation, weighted", lambda: experts.coactivation([routing], weights))
measure("importance", lambda: experts.importance([routing], weights, weights))

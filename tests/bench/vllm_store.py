"""The store beside that of vLLM 0.33, in one run and one process.

    python3 tests/bench/vllm_store.py SOURCES

SOURCES is a folder with vllm/distributed/aux_output_connector/store.py of the wheel of vLLM 0.33,
which is loaded alone. It needs the package routecap. 48 layers, 8 of 128 experts, keys of 32 bytes.
Rows are published 4,096 at a time and read back 32,768 at a time. Both sides are measured without a
thread of their own, so that what the engine's thread does and what the worker does are told apart.
Microseconds: the median, and its 95 % interval.
"""

import hashlib
import importlib.util
import logging
import sys
import time
from pathlib import Path
from types import ModuleType

import numpy as np

import routecap
from interval import estimate
from machine import commit, processor

LAYERS, K, EXPERTS, PASS, ROWS = 48, 8, 128, 4096, 32768
REPETITIONS = 15


def load(sources):
    """Its module, which needs nothing of vLLM but a logger."""
    vllm, logger = ModuleType("vllm"), ModuleType("vllm.logger")
    logger.init_logger = logging.getLogger
    sys.modules |= {"vllm": vllm, "vllm.logger": logger}
    path = Path(sources) / "vllm" / "distributed" / "aux_output_connector" / "store.py"
    spec = importlib.util.spec_from_file_location("vllm_store", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["vllm_store"] = module
    spec.loader.exec_module(module)
    return module


class Figures:
    def __init__(self):
        self.samples = {}

    def add(self, name, work):
        start = time.perf_counter()
        result = work()
        self.samples.setdefault(name, []).append(1e6 * (time.perf_counter() - start))
        return result

    def show(self):
        for name, samples in self.samples.items():
            median, low, high = estimate(samples)
            print(f"  {name:48} {median:10.1f} us  [{low:.1f}, {high:.1f}]")


def keys(block_rows, repetition):
    """Of all blocks: 32 bytes each, and as vLLM has them."""
    made = [
        hashlib.sha256(f"{repetition} {i}".encode()).digest() for i in range(ROWS // block_rows)
    ]
    return made, [key.hex() for key in made]


def theirs(module, figures, rows, block_rows, names):
    size = block_rows * LAYERS * K
    store = module.BlockObjectStore(max_bytes=2 * ROWS * LAYERS * K, object_nbytes=size)
    per_pass = PASS // block_rows
    for first in range(0, len(names), per_pass):

        def objects(first=first):
            return [
                module.BlockObject(names[i], rows[i * block_rows : (i + 1) * block_rows].tobytes())
                for i in range(first, first + per_pass)
            ]

        made = figures.add(f"vLLM: objects of {per_pass} blocks", objects)
        figures.add(f"vLLM: put {per_pass} blocks", lambda made=made: store.put(made))
    got = figures.add(f"vLLM: get {len(names)} blocks", lambda: store.get_concatenated(names))
    assert got == rows.tobytes()
    store.close()


def ours(figures, rows, block_rows, digests):
    per_pass = PASS // block_rows
    with routecap.Capturer(
        layers=LAYERS, k=K, experts=EXPERTS, rows=PASS, backend="host", manual_progress=True
    ) as capturer:
        store = routecap.Store(capturer, block_rows=block_rows, key_bytes=32)
        a, b = capturer.open(), capturer.open()
        for position in range(0, ROWS, PASS):
            capturer.begin(PASS)
            for layer in range(LAYERS):
                capturer.record(layer, rows[position : position + PASS, layer].astype(np.int32))
            capturer.snapshot()
            capturer.issue(routecap.spans(request=a, position=position, rows=PASS))
            capturer.progress()
            some = digests[position // block_rows :][:per_pass]
            figures.add(
                f"routecap: publish {per_pass} blocks, the call",
                lambda position=position, some=some: capturer.publish(a, store, position, some),
            )
            figures.add(f"routecap: publish {per_pass} blocks, the worker", capturer.progress)
        adopted = figures.add(
            f"routecap: adopt {len(digests)} blocks, the call",
            lambda: capturer.adopt(b, store, 0, digests),
        )
        figures.add(f"routecap: adopt {len(digests)} blocks, the worker", capturer.progress)
        assert adopted.found == len(digests)
        routing = capturer.finish(b, ROWS)
        routing.wait()
        ids = figures.add(f"routecap: {ROWS} rows as one array", routing.ids)
        assert np.array_equal(ids, rows)


def main():
    module = load(sys.argv[1])
    print(f"the store beside that of vLLM 0.33\n{processor()}, {commit()}")
    random = np.random.default_rng(1)
    rows = random.permuted(np.tile(np.arange(EXPERTS, dtype=np.uint8), (ROWS * LAYERS, 1)), axis=1)
    rows = np.ascontiguousarray(rows[:, :K].reshape(ROWS, LAYERS, K))
    for block_rows in (16, 1):
        figures = Figures()
        for repetition in range(REPETITIONS):
            digests, names = keys(block_rows, repetition)
            ours(figures, rows, block_rows, digests)
            theirs(module, figures, rows, block_rows, names)
        print(f"\nblocks of {block_rows} rows" if block_rows > 1 else "\nblocks of one row")
        figures.show()


if __name__ == "__main__":
    main()

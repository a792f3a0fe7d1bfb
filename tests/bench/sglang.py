"""What the adapter for SGLang costs the device and the scheduler's thread, in a loop of its calls.

    python3 tests/bench/sglang.py [cpu|cuda] [--json FILE]

48 layers, 8 of 128 experts. A decode step is one CUDA graph: in each layer a read of 40 MB and a
router's top-k. Graphs without capture, with what SGLang's own capturer launches (a copy for each
layer, two clones and a copy to the host) and with routecap take turns; figures are medians of
paired differences, with their middle half. Then what the scheduler's thread spends: in a decode
step, for each chunk of a prompt of 32,768 tokens that the engine's cache takes, at the end of such
a request, and in a prefill that takes its tokens from the cache.

It needs the package routecap and torch, and no SGLang.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from array import array
from collections import deque
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from machine import commit, processor

from routecap.sglang._capturer import Batch, Capturer, Place
from routecap.sglang._options import Options

LAYERS, K, EXPERTS, ROWS, CACHED = 48, 8, 128, 8192, 32_768
CONFIG = {
    "model_type": "qwen3_moe",
    "num_hidden_layers": LAYERS,
    "num_experts": EXPERTS,
    "num_experts_per_tok": K,
    "mlp_only_layers": [],
    "decoder_sparse_step": 1,
}
PAIRS = 40


class Model(torch.nn.Module):
    """capture: what its routers call."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        on_gpu = device.type == "cuda"
        self.weights = torch.ones(
            (20 << 20) if on_gpu else 1024, dtype=torch.bfloat16, device=device
        )
        self.logits = torch.randn(LAYERS, ROWS, EXPERTS, device=device)
        self.capture: Callable[[int, torch.Tensor], None] = lambda layer, ids: None

    def forward(self, input_ids: Any, positions: torch.Tensor, batch: Any) -> None:
        for layer in range(LAYERS):
            self.weights.sum()
            ids = self.logits[layer, : len(positions)].topk(K, -1).indices.to(torch.int32)
            self.capture(layer, ids)


class Own:
    """The launches of SGLang's own capturer, as its source has them."""

    def __init__(self, device: torch.device) -> None:
        self.buffer = torch.zeros(ROWS, LAYERS, K, dtype=torch.int32, device=device)
        self.host = torch.zeros(1 << 16, LAYERS, K, dtype=torch.int32)

    def capture(self, layer: int, ids: torch.Tensor) -> None:
        self.buffer[: len(ids), layer, :] = ids

    def end(self, slots: torch.Tensor) -> Callable[[], None]:
        rows, where = self.buffer[: len(slots)].clone(), slots.clone()
        rows, where = rows.to("cpu", non_blocking=True), where.to("cpu", non_blocking=True)

        def finalize() -> None:
            self.host[where] = rows

        return finalize


def request(tokens: int) -> SimpleNamespace:
    ids = array("q", np.random.default_rng(tokens).integers(0, 1000, tokens).tolist())
    return SimpleNamespace(
        rid="r",
        origin_input_ids=ids,
        output_ids_through_stop=array("q", [1]),
        full_untruncated_fill_ids=ids,
        retraction_count=0,
        return_routed_experts=True,
        routed_experts_start_len=0,
        sampling_params=SimpleNamespace(custom_params=None),
        extra_key=None,
        cache_salt=None,
        session=None,
    )


def spent(call: Callable[[], object]) -> float:
    begun = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - begun) / 1e3


def middle(values: list[float]) -> list[float]:
    """Median, and the middle half."""
    quarter = sorted(values)
    n = len(quarter)
    found = (statistics.median(values), quarter[n // 4], quarter[3 * n // 4])
    return [round(each, 2) for each in found]


class Bench:
    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.model = Model(device)
        self.plain = self.model.forward
        self.capturer = Capturer(
            self.model,
            CONFIG,
            rows=ROWS,
            cached_tokens=1 << 20,
            max_requests=512,
            max_tokens=1 << 20,
            device=device,
            place=Place(),
            options=Options(budget_bytes=4 << 30),
        )
        self.own = Own(device)

    def forward(self, kind: str, rows: int) -> None:
        captures = {"off": lambda layer, ids: None, "own": self.own.capture}
        self.model.capture = captures.get(kind, self.capturer.route)
        positions = self.positions[:rows]
        (self.model.forward if kind == "routecap" else self.plain)(None, positions, None)

    positions = torch.zeros(ROWS)

    def graphs(self, rows: int) -> dict[str, torch.cuda.CUDAGraph]:
        found = {}
        for kind in ("off", "own", "routecap"):
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for _ in range(2):  # the first proves that ids stay
                    self.forward(kind, rows)
                    if kind == "routecap":
                        self.capturer.capturer.discard()
            torch.cuda.synchronize()
            found[kind] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(found[kind], stream=stream):
                self.forward(kind, rows)
        return found

    def steps(self, rows: int) -> dict[str, list[float]]:
        """Of the device, us of a step more than without capture; of the thread, us of a step."""
        requests = [request(8) for _ in range(rows)]
        slots = torch.arange(rows, device=self.device)
        graphs = self.graphs(rows)
        self.forward("routecap", rows)
        self.capturer.issue(Batch("prefill", requests, 0, [0] * rows, [1] * rows))
        position, steps = 0, 20
        thread: dict[str, list[float]] = {"own": [], "routecap": []}

        def loop(kind: str) -> float:
            nonlocal position
            pending: list[Callable[[], None]] = []
            running: deque[torch.cuda.Event] = deque()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            begin.record()
            for _ in range(steps):
                if len(running) > 1:  # as with overlap scheduling
                    running.popleft().synchronize()
                graphs[kind].replay()
                running.append(torch.cuda.Event())
                running[-1].record()
                position += 1
                if kind == "routecap":
                    batch = Batch("decode", requests, 0, np.full(rows, position))
                    thread[kind].append(spent(lambda: self.capturer.issue(batch)))
                elif kind == "own":
                    thread[kind].append(spent(lambda: pending.append(self.own.end(slots))))
            end.record()
            torch.cuda.synchronize()
            for finalize in pending:
                thread["own"].append(spent(finalize))
            return float(begin.elapsed_time(end)) * 1e3 / steps

        times: dict[str, list[float]] = {"off": [], "own": [], "routecap": []}
        for _ in range(PAIRS):
            for kind in times:
                times[kind].append(loop(kind))
        found = {"off, device": middle(times["off"])}
        for kind in ("own", "routecap"):
            more = [with_it - off for with_it, off in zip(times[kind], times["off"], strict=True)]
            found[f"{kind}, device, more"] = middle(more)
            found[f"{kind}, thread"] = middle(thread[kind])
        lost = self.capturer.capturer.stats().steps_lost
        return found | {"steps lost": [lost]}

    def decode_thread(self, rows: int) -> list[float]:
        requests = [request(8) for _ in range(rows)]
        self.forward("routecap", rows)
        self.capturer.issue(Batch("prefill", requests, 0, [0] * rows, [1] * rows))
        times = []
        for position in range(1, 100):
            self.forward("routecap", rows)
            self.synchronize()
            batch = Batch("decode", requests, 0, np.full(rows, position))
            times.append(spent(lambda: self.capturer.issue(batch)))
        return middle(times)

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def ends(self) -> dict[str, list[float]]:
        """us of the scheduler's thread for requests of 32,768 tokens."""
        found: dict[str, list[float]] = {}

        def note(name: str, call: Callable[[], object]) -> None:
            found.setdefault(name, []).append(spent(call))

        for _ in range(5):
            first, second = request(CACHED), request(CACHED)
            second.full_untruncated_fill_ids = first.origin_input_ids + array("q", [1, 2, 3])
            second.origin_input_ids = second.full_untruncated_fill_ids
            tokens = np.frombuffer(first.origin_input_ids, np.int64)
            answered = np.append(tokens, np.arange(100))
            self.capturer.prefixes.clear()
            for begin in range(0, CACHED, ROWS):
                self.forward("routecap", ROWS)
                self.capturer.issue(Batch("prefill", [first], 0, [begin], [ROWS]))
                self.synchronize()
                chunk = tokens[: begin + ROWS]
                note("the cache took a chunk of 8,192", partial(self.cached, first, chunk, begin))
            note("a request of 32,768 tokens ended", lambda: self.capturer.finish(first))
            note("and the cache took 100 more", lambda: self.cached(first, answered, CACHED))
            self.forward("routecap", 3)
            hit = Batch("prefill", [second], 0, [CACHED], [3])
            note("a prefill took 32,768 tokens from the cache", lambda: self.capturer.issue(hit))
            note("and its request ended", lambda: self.capturer.finish(second))
        return {name: middle(times) for name, times in found.items()}

    def cached(self, owner: Any, tokens: Any, first: int) -> None:
        self.capturer.cached(owner, (None, None), tokens, first)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("device", nargs="?", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    bench = Bench(torch.device(arguments.device))
    found: dict[str, Any] = {}
    for rows in (1, 64, 256):
        if arguments.device == "cuda":
            found[f"decode {rows}"] = bench.steps(rows)
        found[f"decode {rows}, thread alone"] = bench.decode_thread(rows)
    found |= bench.ends()
    for name, figures in found.items():
        print(f"{name}: {figures}", flush=True)
    bench.capturer.close()
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(
                {
                    "title": "SGLang's adapter alone, microseconds",
                    "commit": commit(),
                    "processor": processor(),
                    "results": found,
                },
                file,
                indent=1,
            )


if __name__ == "__main__":
    main()

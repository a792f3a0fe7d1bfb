"""What the drop-in module for vLLM costs the engine's thread, beside figures of the module that it
replaces.

    python3 tests/bench/vllm.py [cpu|cuda] [--json FILE]

58 layers, 8 of 256 experts, 8192 rows. A step is a decode batch: one row for each request.
Microseconds, medians and the middle half. It needs the package routecap and torch.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from machine import commit, processor
from routecap.vllm import routed_experts_capturer as module
from routecap.vllm.routed_experts_capturer import Options

LAYERS, K, EXPERTS, ROWS, LENGTH = 58, 8, 256, 8192, 1 << 20
STEPS, WARM_UP = 400, 50
EXTRACTED = 32_768
CONFIG = SimpleNamespace(
    hf_text_config=SimpleNamespace(
        num_hidden_layers=61,
        first_k_dense_replace=3,
        moe_layer_freq=1,
        n_routed_experts=EXPERTS,
        num_experts_per_tok=K,
    )
)
# The released module on an H200, microseconds (medians of three machines): the lowest and the
# highest.
RELEASED = {
    "step, 1 request": (97, 122),
    "step, 64 requests": (209, 262),
    "step, 256 requests": (650, 1068),
    "step, 1024 requests": (2141, 2596),
}
RELEASED |= {"extract 32768 rows": (1800, 6000)}


class Bench:
    def __init__(self, device: str) -> None:
        self.device = device
        self.capturer: Any = None
        self.figures: dict[str, np.ndarray] = {}
        self.ids = (
            ((torch.arange(ROWS)[:, None] * 3 + torch.arange(K)) % EXPERTS)
            .to(torch.int16)
            .to(device)
        )
        self.names = [f"cmpl-{i:032x}-0" for i in range(4096)]  # as long as those of a server

    def start(self, **options: Any) -> None:
        module.set_options(Options(**options))
        module.init_routed_experts_capturer_with_shared_cache(
            True, CONFIG, 0, ROWS, LENGTH, self.device
        )
        self.capturer = module.get_global_experts_capturer()

    def forward(self, rows: int) -> None:
        """Kernels that write into the bound buffer, as one copy."""
        module.begin_forward(rows)
        self.capturer.get_device_cache().buffer[:, :rows] = self.ids[:rows]
        module.end_forward()

    def captured_forward(self, rows: int) -> Callable[[], None]:
        """The same as a CUDA graph, where there are any."""
        if self.device == "cpu":
            return lambda: self.forward(rows)
        self.forward(rows)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.forward(rows)
        return graph.replay

    def measure(
        self,
        name: str,
        prepare: Callable[[int], Any],
        run: Callable[[Any], Any],
        after: Callable[[], Any],
        steps: int = STEPS,
    ) -> None:
        """Time `run` of what `prepare` made; neither that nor `after` is timed."""
        times = []
        for step in range(WARM_UP + steps):
            prepared = prepare(step)
            begun = time.perf_counter_ns()
            run(prepared)
            times.append(time.perf_counter_ns() - begun)
            after()
        self.figures[name] = np.array(times[WARM_UP:]) / 1000

    def land(self) -> None:
        """The rest of an iteration passes: what was issued lands meanwhile."""
        if ticket := self.capturer._requests.last_ticket:
            self.capturer.capturer.step(ticket).wait()

    def steps(self, requests: int, changing: bool) -> None:
        self.start()
        forward = self.captured_forward(requests)
        positions, on_host = (
            torch.zeros(ROWS, dtype=torch.int64, device=self.device),
            torch.zeros(ROWS, dtype=torch.int64),
        )

        def prepare(step: int) -> Any:
            first = step if changing else 0
            batch = self.names[first : first + requests]
            if changing and step > 0:
                module.free_routing_buffers({self.names[step - 1]})
            forward()
            positions.fill_(step)
            return batch, dict.fromkeys(reversed(batch), 1)

        def run(prepared: Any) -> None:
            batch, counts = prepared
            self.capturer.finalize_pending_copy()
            module.issue_routing_d2h_copy(batch, counts, positions, on_host)

        plural = "" if requests == 1 else "s"
        self.measure(
            f"step, {requests} request{plural}" + (", one of them new" if changing else ""),
            prepare,
            run,
            self.land,
        )

    def begin_and_snapshot(self) -> None:
        self.start()

        def run(_: Any) -> None:
            module.begin_forward(256)
            module.end_forward()

        self.measure(
            "begin and snapshot outside a graph, 256 rows", lambda step: None, run, self.synchronize
        )

    def synchronize(self) -> None:
        if self.device != "cpu":
            torch.cuda.synchronize()

    def fill(self, name: str, rows: int = EXTRACTED) -> None:
        for first in range(0, rows, ROWS):
            self.forward(ROWS)
            positions = torch.arange(first, first + ROWS, device=self.device)
            module.issue_routing_d2h_copy([name], {name: ROWS}, positions, positions)
            self.land()

    def extraction(self) -> None:
        self.start()
        self.fill("a")
        self.measure(
            f"extract {EXTRACTED} rows",
            lambda step: None,
            lambda _: self.capturer.get_routed_experts("a", free_slot=False),
            lambda: None,
            30,
        )

    def ending(self, lazy: bool) -> None:
        """One of 256 requests ends: the last rows are in flight when it is extracted."""
        self.start(lazy=lazy)
        rule = SimpleNamespace(min_tokens=0, max_tokens=2, stop_token_ids=None, eos_token_id=None)
        going = SimpleNamespace(
            min_tokens=0, max_tokens=1 << 30, stop_token_ids=None, eos_token_id=None
        )
        forward = self.captured_forward(256)
        positions = torch.zeros(ROWS, dtype=torch.int64, device=self.device)
        outputs: list[int] = []
        requests = {
            name: SimpleNamespace(
                num_prompt_tokens=8, output_token_ids=outputs, sampling_params=going
            )
            for name in self.names[:255]
        }

        def prepare(step: int) -> Any:
            last = self.names[256 + step]
            batch = [*self.names[:255], last]
            outputs.append(7)
            requests[last] = SimpleNamespace(
                num_prompt_tokens=0, output_token_ids=[7, 7], sampling_params=rule
            )
            forward()
            positions.fill_(step)
            positions[255] = 0
            module.issue_routing_d2h_copy(batch, dict.fromkeys(batch, 1), positions, positions)
            return last, batch, {name: i for i, name in enumerate(batch)}

        def run(prepared: Any) -> None:
            last, batch, index = prepared
            module.extract_routed_experts_for_current_batch(
                batch, requests, index, np.empty(0), LENGTH
            )
            module.free_routing_buffers({last})

        self.measure(
            "one of 256 requests ends" + (", lazily" if lazy else ""), prepare, run, self.land
        )

    def report(self, path: str | None) -> None:
        device = torch.cuda.get_device_name() if self.device != "cpu" else "host backend"
        title = (
            f"the drop-in module for vLLM, {device}, torch {torch.__version__}: the engine's"
            f" thread, L={LAYERS} K={K} E={EXPERTS}"
        )
        print(f"{title}\n{processor()}, {commit()}; microseconds\n")
        print(f"{'':50}{'median':>10}{'middle half':>20}{'released module, H200':>25}")
        results = []
        for name, times in self.figures.items():
            low, median, high = (round(each, 1) for each in np.percentile(times, [25, 50, 75]))
            released = RELEASED.get(name)
            print(
                f"{name:50}{median:10.1f}{f'{low:.1f} .. {high:.1f}':>20}{f'{released[0]} .. {released[1]}' if released else '':>25}"
            )
            results.append(
                {
                    "name": name,
                    "unit": "us",
                    "median": median,
                    "middle_half": [low, high],
                    "released_module": released,
                }
            )
        if path:
            with open(path, "w") as file:
                command = f"vllm.py {self.device} --json FILE"
                json.dump(
                    {
                        "title": title,
                        "command": command,
                        "commit": commit(),
                        "processor": processor(),
                        "results": results,
                    },
                    file,
                    indent=1,
                )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("device", nargs="?", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    bench = Bench(arguments.device)
    for requests in (1, 64, 256, 1024):
        bench.steps(requests, changing=False)
    for requests in (64, 256):
        bench.steps(requests, changing=True)
    bench.begin_and_snapshot()
    bench.extraction()
    bench.ending(lazy=False)
    bench.ending(lazy=True)
    bench.report(arguments.json)


if __name__ == "__main__":
    main()

"""What capture adds to a decode step of transformers, in which each sequence of a batch gets a
token.

    python3 integrations/transformers/tests/bench.py [cpu|cuda] [--experts NAME] [--json FILE]

cpu: a small model, decoded eagerly by `generate`. cuda: a model of 1.2 billion parameters in
bfloat16 with a static cache, its decode step a CUDA graph: one was captured with the hooks
attached, the other without. Blocks of steps with and without capture alternate, 30 of each, and are
compared in pairs: medians and their 95 % intervals, by the host's clock until all work is done, and
on a device also between two of its events. What is captured is compared with what the routers chose
before anything is timed, and has to be complete afterwards.

--experts: how transformers computes the experts; not every implementation can be captured into a
graph. It needs the package routecap, torch and transformers.
"""

from __future__ import annotations

import argparse
import inspect
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

# This file's folder comes first in the path, and holds a module of the name transformers: itself.
_FOLDER = sys.path.pop(0)
os.environ.setdefault("HF_HUB_OFFLINE", "1")
import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM, Qwen3MoeConfig, StaticCache
from transformers.generation.streamers import BaseStreamer

sys.path.append(_FOLDER)
from interval import estimate
from machine import commit, processor, save

from routecap import Routing
from routecap_transformers import attach, find

SIZES = {
    "cpu": {
        "hidden_size": 256,
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 32,
    },
    "cuda": {
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 64,
    },
}
BATCHES = {"cpu": (1, 4), "cuda": (1, 4, 32)}
STEPS = {"cpu": 8, "cuda": 32}  # of a block
BLOCKS, WARM_UP = 30, 2
PROMPT, VOCABULARY = 16, 4096

Block = Callable[
    [bool], dict[str, float]
]  # with capture or without it -> seconds per step by each clock


def make(device: str, experts: str) -> Any:
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=VOCABULARY,
        intermediate_size=512,
        moe_intermediate_size=256,
        num_experts=64,
        num_experts_per_tok=8,
        norm_topk_prob=True,
        eos_token_id=None,
        **SIZES[device],
    )
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.float32 if device == "cpu" else torch.bfloat16
        ).eval()
    model.set_experts_implementation(experts)
    return model


@contextmanager
def watched(model: Any) -> Iterator[list[torch.Tensor]]:
    """The ids of each router that runs, layer after layer.

    They are the routers' own tensors: those of a graph have its last replay's.
    """
    chosen: list[torch.Tensor] = []
    hooks = [
        tap.gate.register_forward_hook(lambda module, args, output: chosen.append(output[2]))
        for tap in find(model)
        if tap.gate is not None
    ]
    try:
        yield chosen
    finally:
        for hook in hooks:
            hook.remove()


def expect(routings: Sequence[Routing], passes: Sequence[torch.Tensor]) -> None:
    """The rows behind the prompt are what the routers chose in these forward passes, each
    [sequences, layers, k].
    """
    for routing, rows in zip(routings, torch.stack(list(passes), 1).cpu().numpy(), strict=True):
        if not routing.complete or not np.array_equal(routing.ids()[PROMPT:], rows):
            raise RuntimeError("what was captured is not what the routers chose")


def expect_all(routings: Sequence[Routing], batch: int, steps: int) -> None:
    if [routing.rows for routing in routings if routing.complete] != [PROMPT + steps] * batch:
        raise RuntimeError(
            f"not everything was captured: {[routing.coverage() for routing in routings]}"
        )


class Clock(BaseStreamer):
    """Notes when `generate` gives out the prompt, the first token, and each of the others, for
    which it made a decode step.
    """

    def __init__(self) -> None:
        self.moments: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        self.moments.append(time.perf_counter())

    def end(self) -> None:
        pass


@contextmanager
def eager(model: Any, batch: int) -> Iterator[Block]:
    """Blocks of `generate`. Its first forward pass, attaching and taking are not timed."""
    tokens, steps = torch.randint(VOCABULARY, (batch, PROMPT)), STEPS["cpu"]
    options = {
        "attention_mask": torch.ones_like(tokens),
        "do_sample": False,
        "pad_token_id": 0,
        "max_new_tokens": steps + 1,
    }
    with watched(model) as chosen, attach(model) as capture:
        model.generate(input_ids=tokens, **options)
        layers = len(capture.taps)
        expect(
            capture.take(),
            [torch.stack(chosen[at : at + layers], 1) for at in range(layers, len(chosen), layers)],
        )

    def block(captured: bool) -> dict[str, float]:
        clock = Clock()
        with attach(model) if captured else nullcontext() as capture:
            model.generate(input_ids=tokens, streamer=clock, **options)
            if capture is not None:
                expect_all(capture.take(), batch, steps)
        _, first, *_, last = clock.moments
        return {"wall": (last - first) / steps}

    yield block


@contextmanager
def graphs(model: Any, batch: int) -> Iterator[Block]:
    """Blocks of replays of the decode step. The prefill and taking are not timed."""
    decoder, steps = Decoder(model, batch), STEPS["cuda"]
    plain = decoder.captured()
    with attach(model) as capture:
        with watched(model) as chosen:
            tapped = decoder.captured()
        capture.discard()
        layers = chosen[-len(capture.taps) :]  # of the graph, which ran last

        def step(captured: bool) -> None:
            if captured:
                tapped.replay()
                capture.issue(decoder.positions)
            else:
                plain.replay()

        passes: list[torch.Tensor] = []
        decoder.prefill()
        for _ in range(steps):
            step(True)
            passes.append(torch.stack(layers, 1))
        expect(capture.take(), passes)

        def block(captured: bool) -> dict[str, float]:
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            with nullcontext() if captured else capture.paused():
                decoder.prefill()
            torch.cuda.synchronize()
            begun = time.perf_counter()
            first.record()
            for _ in range(steps):
                step(captured)
            last.record()
            torch.cuda.synchronize()
            ended = time.perf_counter()
            if captured:
                expect_all(capture.take(), batch, steps)
            return {
                "device": first.elapsed_time(last) / 1e3 / steps,
                "wall": (ended - begun) / steps,
            }

        yield block


class Decoder:
    """A batch with a static cache. What a step changes are tensors that stay where they are."""

    def __init__(self, model: Any, batch: int) -> None:
        length = PROMPT + STEPS["cuda"]
        self.model = model
        names = inspect.signature(model.forward).parameters  # renamed in transformers 5.24
        self.cache_name = "cache" if "cache" in names else "past_key_values"
        self.cache = StaticCache(config=model.config, max_cache_len=length)
        self.prompt = torch.randint(VOCABULARY, (batch, PROMPT), device="cuda")
        self.tokens, self.positions = (
            torch.zeros(batch, 1, dtype=torch.long, device="cuda") for _ in range(2)
        )
        self.mask = torch.zeros(batch, length, dtype=torch.long, device="cuda")

    def prefill(self) -> None:
        self.cache.reset()
        self.positions.fill_(PROMPT - 1)
        self.mask.zero_()
        self.mask[:, :PROMPT] = 1
        output = self.model(
            input_ids=self.prompt,
            attention_mask=self.mask[:, :PROMPT],
            **{self.cache_name: self.cache},
        )
        self.tokens.copy_(output.logits[:, -1:].argmax(-1))

    def step(self) -> None:
        self.positions += 1
        self.mask.scatter_(1, self.positions, 1)
        output = self.model(
            input_ids=self.tokens,
            attention_mask=self.mask,
            position_ids=self.positions,
            **{self.cache_name: self.cache},
        )
        self.tokens.copy_(output.logits[:, -1:].argmax(-1))

    def captured(self) -> torch.cuda.CUDAGraph:
        """A step, as a graph."""
        self.prefill()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                self.step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        return graph


def measure(block: Block) -> dict[str, np.ndarray]:
    """By clock: [block, without capture or with it] seconds per step."""
    times = []
    for number in range(-WARM_UP, BLOCKS):
        found = {
            captured: block(captured)
            for captured in ((False, True) if number % 2 else (True, False))
        }
        if number >= 0:
            times.append((found[False], found[True]))
    return {
        clock: np.array([[arm[clock] for arm in pair] for pair in times]) for clock in times[0][0]
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("device", nargs="?", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument(
        "--experts", default="grouped_mm", metavar="NAME"
    )  # which does not ask the device what was chosen
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    device: str = arguments.device
    model = make(device, arguments.experts)
    config = model.config
    name = torch.cuda.get_device_name() if device == "cuda" else "host backend"
    how = "a CUDA graph, static cache, bfloat16" if device == "cuda" else "eager generate, float32"
    shape = f"L={config.num_hidden_layers} K={config.num_experts_per_tok} E={config.num_experts}"
    title = (
        f"capture in transformers {transformers.__version__}, {name}, torch {torch.__version__}:"
        f" {how}, {arguments.experts}, {shape}"
    )
    print(
        f"{title}\n{processor()}, {commit()}; medians of {BLOCKS} blocks and their 95 % intervals\n"
    )
    results = []
    for batch in BATCHES[device]:
        with torch.no_grad(), (graphs if device == "cuda" else eager)(model, batch) as block:
            found = measure(block)
        for clock, times in found.items():
            without, captured = times.T
            lines = {
                "without capture": ("ms", without * 1e3),
                "with capture": ("ms", captured * 1e3),
                "added": ("us", (captured - without) * 1e6),
                "added, share": ("%", (captured / without - 1) * 100),
            }
            print(f"decode step, {batch} sequence{'' if batch == 1 else 's'}, {clock} time")
            for line, (unit, samples) in lines.items():
                median, low, high = (round(float(each), 4) for each in estimate(samples))
                print(f"  {line:<20}{median:12.3f} {unit:<4}[{low:.3f}, {high:.3f}]", flush=True)
                results.append(
                    {
                        "sequences": batch,
                        "clock": clock,
                        "name": line,
                        "unit": unit,
                        "median": median,
                        "low": low,
                        "high": high,
                    }
                )
    if arguments.json:
        command = f"transformers.py {device} --experts {arguments.experts} --json FILE"
        interval = "95 % of the median"
        save(arguments.json, title=title, command=command, interval=interval, results=results)


if __name__ == "__main__":
    main()

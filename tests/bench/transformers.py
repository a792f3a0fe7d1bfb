"""What capture costs a token that transformers decodes.

    python3 tests/bench/transformers.py [cpu|cuda] [--json FILE]

cpu: a small model, decoded eagerly token by token by `generate`. cuda: a model of about a billion parameters in bfloat16 with a static cache, its
decode step a CUDA graph; one graph was captured with the hooks attached, the other without, and replays are timed to the end of the device's work.
Blocks with and without capture alternate, and each is compared with its neighbour: medians and the middle half of milliseconds per step, and of the
differences. It needs the package routecap, torch and transformers.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

# This file's folder comes first in the path, and holds a module of the name transformers: itself.
_FOLDER = sys.path.pop(0)
os.environ.setdefault("HF_HUB_OFFLINE", "1")
import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM, Qwen3MoeConfig, StaticCache

sys.path.append(_FOLDER)
from machine import commit, processor

from routecap.transformers import attach

SIZES = {
    "cpu": {"hidden_size": 256, "num_hidden_layers": 12, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 32},
    "cuda": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 64},
}
BATCHES = {"cpu": (1, 8), "cuda": (1, 16, 64)}
PROMPT = 32
BLOCKS = {"cpu": 12, "cuda": 40}
STEPS = {"cpu": 16, "cuda": 64}  # of a block


def make(device: str) -> Any:
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=4096,
        intermediate_size=512,
        moe_intermediate_size=256,
        num_experts=64,
        num_experts_per_tok=8,
        norm_topk_prob=True,
        eos_token_id=None,
        **SIZES[device],
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32 if device == "cpu" else torch.bfloat16).to(device).eval()
    model.set_experts_implementation("grouped_mm")  # which does not ask the device what was chosen
    return model


def eager(model: Any, batch: int) -> tuple[Callable[[], float], Callable[[], float]]:
    """Blocks without and with capture: seconds per decoded step, attaching and taking not counted."""
    tokens = torch.randint(3, 4096, (batch, PROMPT))
    options = {"attention_mask": torch.ones_like(tokens), "do_sample": False, "pad_token_id": 0, "max_new_tokens": STEPS["cpu"]}

    def block(captured: bool) -> float:
        with attach(model) if captured else nullcontext() as capture:
            begun = time.perf_counter()
            model.generate(input_ids=tokens, **options)
            ended = time.perf_counter()
            if captured:
                rows = sum(routing.rows for routing in capture.take() if routing.complete)
                assert rows == batch * (PROMPT + STEPS["cpu"] - 1), "not everything was captured"
        return (ended - begun) / STEPS["cpu"]

    return lambda: block(False), lambda: block(True)


def graphs(model: Any, batch: int) -> tuple[Callable[[], float], Callable[[], float]]:
    """The same for replayed graphs."""
    device, length = "cuda", PROMPT + STEPS["cuda"]
    cache = StaticCache(config=model.config, max_cache_len=length)
    prompt = torch.randint(3, 4096, (batch, PROMPT), device=device)
    tokens = torch.zeros(batch, 1, dtype=torch.long, device=device)
    positions = torch.zeros(batch, 1, dtype=torch.long, device=device)

    def forward() -> None:
        output = model(input_ids=tokens, position_ids=positions, past_key_values=cache)
        tokens.copy_(output.logits[:, -1:].argmax(-1))
        positions.add_(1)

    def prefill() -> None:
        cache.reset()
        tokens.copy_(model(input_ids=prompt, past_key_values=cache).logits[:, -1:].argmax(-1))
        positions.fill_(PROMPT)

    def captured_graph() -> torch.cuda.CUDAGraph:
        prefill()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                forward()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            forward()
        return graph

    def steps(after: Callable[[], object], graph: torch.cuda.CUDAGraph) -> float:
        prefill()
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(STEPS["cuda"]):
            after()
            graph.replay()
        torch.cuda.synchronize()
        return (time.perf_counter() - begun) / STEPS["cuda"]

    with torch.no_grad():
        plain = captured_graph()
        capture = attach(model)
        tapped = captured_graph()
        capture.discard()

    def without() -> float:
        with torch.no_grad(), capture.paused():
            return steps(lambda: None, plain)

    def with_capture() -> float:
        where = torch.empty_like(positions)
        first = True

        def issue_last() -> None:  # where the rows of the replay before are: the graph counts positions on
            nonlocal first
            if not first:
                capture.issue(where)
            where.copy_(positions)
            first = False

        with torch.no_grad():
            seconds = steps(issue_last, tapped)
            capture.issue(where)
        rows = sum(routing.rows for routing in capture.take() if routing.complete)
        assert rows == batch * (PROMPT + STEPS["cuda"]), "not everything was captured"
        return seconds

    return without, with_capture


def measure(arms: tuple[Callable[[], float], Callable[[], float]], blocks: int) -> np.ndarray:
    """[blocks, 2] milliseconds per step, without and with capture."""
    for arm in arms:
        arm()
    times = np.empty((blocks, 2))
    for block in range(blocks):
        for arm in (0, 1) if block % 2 else (1, 0):
            times[block, arm] = arms[arm]() * 1e3
    return times


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("device", nargs="?", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    device: str = arguments.device
    model = make(device)
    layers = model.config.num_hidden_layers
    name = torch.cuda.get_device_name() if device == "cuda" else "host backend"
    how = "a CUDA graph, static cache" if device == "cuda" else "eager generate"
    title = f"capture in transformers {transformers.__version__}, {name}, torch {torch.__version__}: {how}, L={layers} K=8 E=64"
    print(f"{title}\n{processor()}, {commit()}; milliseconds per decode step\n")
    print(f"{'batch':>8}{'without':>12}{'with':>12}{'difference':>12}{'middle half':>22}{'share':>9}")
    results = []
    for batch in BATCHES[device]:
        times = measure((graphs if device == "cuda" else eager)(model, batch), BLOCKS[device])
        without, captured = np.median(times, 0)
        low, difference, high = np.percentile(times[:, 1] - times[:, 0], [25, 50, 75])
        ratio = float(np.median(times[:, 1] / times[:, 0]) - 1)
        print(f"{batch:8}{without:12.4f}{captured:12.4f}{difference:12.4f}{f'{low:.4f} .. {high:.4f}':>22}{ratio:9.2%}")
        figures = {"without": without, "with": captured, "difference": difference, "middle_half": [low, high], "share": ratio}
        rounded = {key: [round(each, 5) for each in value] if isinstance(value, list) else round(value, 5) for key, value in figures.items()}
        results.append({"name": f"decode step, batch {batch}", "unit": "ms", **rounded})
    if arguments.json:
        with open(arguments.json, "w") as file:
            command = f"transformers.py {device} --json FILE"
            json.dump({"title": title, "command": command, "commit": commit(), "processor": processor(), "results": results}, file, indent=1)


if __name__ == "__main__":
    main()

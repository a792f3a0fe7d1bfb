"""Capture on a GPU: families eager and in CUDA graphs with a static cache, loops and banks of
experts, generate compiled around one, continuous batching, training.

    PYTHONPATH=FOLDER_OF_THE_UNPACKED_WHEEL python3 integrations/transformers/tests/device.py [cuda]

with torch, transformers and pytest. Every id is compared with what plain hooks copy from the routers, in
the same forward pass or, where a hook would change what is compiled, in one over the finished
sequence. Ends with "N checks passed, M failed" and exit status 0 if none failed. With "cpu" it runs
without graphs, to check the program itself.
"""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import routecap
import torch
import transformers
from families import (
    CACHE,
    EXPERTS,
    FAMILIES,
    HAS_LOOPS,
    PAD,
    VOCABULARY,
    K,
    Witness,
    checkpoint,
    make,
    make_banked,
    make_looped,
    rows_of,
)
from routecap_transformers import attach
from test_banks import Routers, banks_of
from test_visits import LAYERS, VISITS, Runs, is_told, of_sequence
from transformers import ContinuousBatchingConfig, GenerationConfig, StaticCache

DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cuda"
ON_GPU = DEVICE != "cpu"
# Whose experts can be computed without asking the device, and so be captured into a graph. Not
# gpt_oss, which has no attention but the eager one, whose mask comes in part from the host.
IN_GRAPHS = [
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
    "olmoe",
    "deepseek_v3",
    "glm4_moe",
    "minimax_m2",
    "granitemoe",
    "ernie4_5_moe",
    "llama4_text",
]
SEQUENCES, PROMPT, STEPS = 5, 9, 24

checks: list[tuple[str, Callable[[], Any]]] = []
cells = 0


def check(function: Callable[[], Any]) -> Callable[[], Any]:
    """The docstring names what holds."""
    checks.append((function.__doc__ or function.__name__, function))
    return function


def prompts(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Left-padded, and their mask."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(3, VOCABULARY, (SEQUENCES, PROMPT), generator=generator)
    mask = (torch.arange(PROMPT) >= torch.arange(SEQUENCES)[:, None] * 2 % PROMPT).long()
    return (tokens * mask).to(DEVICE), mask.to(DEVICE)


def expect(routings: list[routecap.Routing], rows: list[Any]) -> None:
    """Each routing is complete, and its rows are these [tokens, layers, k] of sorted ids, or the
    first of them.
    """
    global cells
    assert len(routings) == len(rows)
    for routing, wanted in zip(routings, rows):
        assert routing.complete, routing.missing
        found = np.sort(routing.ids().astype(np.int64), -1)
        wanted = np.asarray(wanted)[: len(found)]
        assert found.shape == wanted.shape, (found.shape, wanted.shape)
        assert (found == wanted).all(), (
            f"{(found != wanted).any(-1).sum()} of {found.shape[0] * found.shape[1]} cells differ"
        )
        cells += found.shape[0] * found.shape[1]


def generate(model: Any, tokens: torch.Tensor, mask: torch.Tensor, **more: Any) -> None:
    model.generate(
        input_ids=tokens,
        attention_mask=mask,
        max_new_tokens=STEPS,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=PAD,
        **more,
    )


def expect_weighted(
    routings: list[routecap.Routing], hooks: Runs | Routers, mask: torch.Tensor
) -> None:
    """Each routing of a generation is complete, and has the ids and weights that hooks saw."""
    global cells
    masks = [mask.cpu()] + [torch.ones(SEQUENCES, 1)] * (STEPS - 1)
    assert [routing.rows for routing in routings] == (mask.sum(1) + STEPS - 1).tolist()
    for number, routing in enumerate(routings):
        ids, weights = (of_sequence(each, masks, number) for each in (hooks.ids, hooks.weights))
        assert is_told(routing, ids, weights)
        cells += routing.rows * routing.layers


def alone(model: Any, tokens: list[int], k: int = K) -> torch.Tensor:
    inputs = torch.tensor([tokens], device=DEVICE)
    with Witness(model, k) as witness, torch.no_grad():
        model(input_ids=inputs, use_cache=False)
    return rows_of(witness.passes, [torch.ones_like(inputs)], 1)[0]


def k_of(family: str) -> int:
    return 1 if family == "llama4_text" else K


# ---- Every family, eager


for _family in FAMILIES:

    def _eager(family: str = _family) -> None:
        for dtype in (torch.float32, torch.bfloat16) if family in IN_GRAPHS else (torch.float32,):
            model = make(family).to(DEVICE, dtype)
            tokens, mask = prompts(1)
            with attach(model) as capture, Witness(model, k_of(family)) as witness:
                generate(model, tokens, mask)
                routings = capture.take()
            masks = [mask.cpu()] + [torch.ones(SEQUENCES, 1)] * (len(witness.passes) - 1)
            expect(routings, rows_of(witness.passes, masks, SEQUENCES))
            assert [routing.rows for routing in routings] == (mask.sum(1) + STEPS - 1).tolist()

    _eager.__doc__ = f"{_family}: a left-padded generation, eager"
    check(_eager)


@check
def _() -> None:
    """inkling2_loop, whose layers run in a loop: a left-padded generation, eager, with weights"""
    if not HAS_LOOPS:
        return
    model = make_looped().to(DEVICE)
    tokens, mask = prompts(1)
    with attach(model, weights="float32") as capture, Runs(model) as runs:
        generate(model, tokens, mask)
        routings = capture.take()
    assert [(tap.layer, tap.visit) for tap in capture.taps] == list(zip(LAYERS, VISITS))
    expect_weighted(routings, runs, mask)


@check
def _() -> None:
    """ernie4_5_vl_moe, with two banks of experts: a left-padded generation, eager, with weights"""
    model = make_banked().to(DEVICE)
    tokens, mask = prompts(1)
    images = (tokens % 3 == 0).int() * mask.int()
    with attach(model, weights="float32") as capture, Routers(model) as routers:
        generate(model, tokens, mask, moe_mm_token_type_ids=images)
        routings = capture.take()
    assert all(routing.layer_experts.tolist() == [2 * EXPERTS] * 2 for routing in routings)
    expect_weighted(routings, routers, mask)
    shown = np.concatenate(
        [banks_of(routing)[: int(keep.sum())] for routing, keep in zip(routings, mask)]
    )
    assert shown.any() and (shown == images[mask.bool()].cpu().numpy()).all()


# ---- CUDA graphs with a static cache


class GraphWitness(Witness):
    """Hooks that may be captured: each copies its ids to memory of its own, one for each number of
    rows, where `seen` reads them after a replay.
    """

    def __init__(self, model: Any, k: int) -> None:
        self._ids: dict[tuple[int, int], torch.Tensor] = {}
        super().__init__(model, k)

    def _see(self, layer: int, output: Any) -> None:
        tensors = [
            each
            for each in (output if isinstance(output, tuple) else (output,))
            if isinstance(each, torch.Tensor)
        ]
        ids = [each for each in tensors if not each.is_floating_point() and each.ndim == 2]
        chosen = ids[0] if ids else tensors[-1].float().topk(self._k, -1).indices
        key = layer, len(chosen)
        if key not in self._ids:  # in the warm-up
            self._ids[key] = torch.empty_like(chosen)
        self._ids[key].copy_(chosen)

    def seen(self, rows: int) -> dict[int, torch.Tensor]:
        return {
            layer: ids.sort(-1).values.cpu()
            for (layer, count), ids in self._ids.items()
            if count == rows
        }


class Decoder:
    """The decode step of a batch as a graph, with a static cache; without a GPU, as it is."""

    def __init__(self, model: Any, capture: Any, length: int) -> None:
        self.model, self.capture = model, capture
        self.cache = StaticCache(config=model.config, max_cache_len=length)
        self.tokens = torch.zeros(SEQUENCES, 1, dtype=torch.long, device=DEVICE)
        self.positions = torch.zeros(SEQUENCES, 1, dtype=torch.long, device=DEVICE)
        self.mask = torch.zeros(SEQUENCES, length, dtype=torch.long, device=DEVICE)
        self.next = torch.zeros(SEQUENCES, 1, dtype=torch.long, device=DEVICE)

    def forward(self) -> None:
        output = self.model(
            input_ids=self.tokens,
            attention_mask=self.mask,
            position_ids=self.positions,
            **{CACHE: self.cache},
        )
        self.next.copy_(output.logits[:, -1:].argmax(-1))

    def prefill(self, tokens: torch.Tensor, mask: torch.Tensor) -> None:
        self.cache.reset()
        self.mask.zero_()
        self.mask[:, :PROMPT] = mask
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        output = self.model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=positions,
            **{CACHE: self.cache},
        )
        self.tokens.copy_(output.logits[:, -1:].argmax(-1))
        self.positions.copy_(positions[:, -1:] + 1)

    def record(self) -> Callable[[], Any]:
        """Warm up, capture, and forget what the warm-up routed."""
        self.prefill(*prompts(0))
        self.mask[:, PROMPT] = 1
        if not ON_GPU:
            self.capture.discard()
            return self.forward
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                self.forward()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.forward()
        self.capture.discard()
        return graph.replay


for _family in IN_GRAPHS:

    def _graph(family: str = _family) -> None:
        model = make(family).to(DEVICE)
        model.set_attn_implementation("sdpa")
        if hasattr(model, "set_experts_implementation"):
            model.set_experts_implementation("batched_mm")
        with (
            attach(model) as capture,
            GraphWitness(model, k_of(family)) as witness,
            torch.no_grad(),
        ):
            decoder = Decoder(model, capture, PROMPT + STEPS)
            replay = decoder.record()
            for seed in (1, 2):
                tokens, mask = prompts(seed)
                decoder.prefill(tokens, mask)
                passes, masks = [witness.seen(SEQUENCES * PROMPT)], [mask.cpu()]
                for step in range(STEPS):
                    decoder.mask[:, PROMPT + step] = 1
                    replay()
                    if ON_GPU:
                        capture.issue(decoder.positions)
                    passes.append(witness.seen(SEQUENCES))
                    masks.append(torch.ones(SEQUENCES, 1))
                    decoder.tokens.copy_(decoder.next)
                    decoder.positions += 1
                routings = capture.take()
                expect(routings, rows_of(passes, masks, SEQUENCES))
                assert [routing.rows for routing in routings] == (mask.sum(1) + STEPS).tolist()
            assert capture.capturer.stats().steps_lost == 0

    _graph.__doc__ = (
        f"{_family}: a decode step in a CUDA graph with a static cache, replayed for two batches"
    )
    check(_graph)


@check
def _() -> None:
    """a graph that is replayed many times without waiting for the device loses nothing"""
    if not ON_GPU:
        return
    model = make("qwen3_moe").to(DEVICE)
    model.set_attn_implementation("sdpa")
    model.set_experts_implementation("batched_mm")
    with attach(model) as capture, torch.no_grad():
        decoder = Decoder(model, capture, 600)
        replay = decoder.record()
        tokens, mask = prompts(1)
        decoder.prefill(tokens, mask)
        history = [decoder.tokens.clone()]
        for step in range(500):
            decoder.mask[:, PROMPT + step] = 1
            replay()
            capture.issue(decoder.positions)
            decoder.tokens.copy_(decoder.next)
            decoder.positions += 1
            history.append(decoder.tokens.clone())
        routings = capture.take()
        assert capture.capturer.stats().steps_lost == 0
    generated = torch.cat(history, 1)
    with torch.no_grad():
        wanted = [
            alone(model, row[keep.bool()].tolist() + more)
            for row, keep, more in zip(tokens, mask, generated.tolist())
        ]
    expect(routings, wanted)


# ---- What transformers compiles and captures itself


def _compiled(family: str) -> None:
    torch.compiler.reset()
    model = make(family).to(DEVICE)
    tokens, mask = prompts(3)
    options: dict[str, Any] = {
        "max_new_tokens": STEPS,
        "do_sample": False,
        "eos_token_id": None,
        "pad_token_id": PAD,
    }
    with attach(model) as capture:
        for _ in range(2):  # the second time on graphs that are there
            out = model.generate(
                input_ids=tokens, attention_mask=mask, cache_implementation="static", **options
            )
        assert hasattr(model, "_compiled_call") or not ON_GPU, "nothing was compiled"
        routings = capture.take()
        assert capture.capturer.stats().steps_lost == 0
    torch.compiler.reset()
    rows = [alone(model, row[PROMPT - int(keep.sum()) :].tolist()) for row, keep in zip(out, mask)]
    assert [routing.rows for routing in routings] == (mask.sum(1) + STEPS - 1).tolist() * 2
    expect(routings, rows + rows)


@check
def _() -> None:
    """qwen3_moe: generate with a static cache, which compiles the decode step into CUDA graphs"""
    _compiled("qwen3_moe")


@check
def _() -> None:
    """mixtral: generate with a static cache, which compiles the decode step into CUDA graphs"""
    _compiled("mixtral")


@check
def _() -> None:
    """a model compiled with mode reduce-overhead"""
    torch.compiler.reset()
    model = make("qwen3_moe").to(DEVICE)
    model.set_experts_implementation("batched_mm")
    compiled = torch.compile(
        model, mode="reduce-overhead" if ON_GPU else None, backend="inductor" if ON_GPU else "eager"
    )
    inputs = [torch.randint(3, VOCABULARY, (4, 16), device=DEVICE) for _ in range(6)]
    with attach(compiled) as capture, torch.no_grad():
        for tokens in inputs:
            compiled(input_ids=tokens, use_cache=False)
        routings = capture.take()
    torch.compiler.reset()
    expect(routings, [alone(model, row) for tokens in inputs for row in tokens.tolist()])


@check
def _() -> None:
    """continuous batching"""
    model = make("qwen3_moe").to(DEVICE)
    generator = torch.Generator().manual_seed(5)
    requests = [
        torch.randint(3, VOCABULARY, (3 + 5 * i,), generator=generator).tolist() for i in range(9)
    ]
    config = GenerationConfig(
        max_new_tokens=STEPS, do_sample=False, eos_token_id=2, pad_token_id=PAD
    )
    memory = ContinuousBatchingConfig(num_blocks=64, max_batch_tokens=64)
    with attach(model) as capture:
        results = model.generate_batch(
            inputs=requests, generation_config=config, continuous_batching_config=memory
        )
        assert len(results) == len(requests)
        routings = capture.take(requests=results)
        assert capture.capturer.stats().steps_lost == 0
    tokens = [[*result.prompt_ids, *result.generated_tokens] for result in results.values()]
    assert [routing.rows for routing in routings] == [len(each) - 1 for each in tokens]
    expect(routings, [alone(model, each) for each in tokens])


@check
def _() -> None:
    """training with gradient checkpointing, whose backward runs the routers again"""
    model = make("qwen3_moe").to(DEVICE).train()
    checkpoint(model, use_reentrant=False)
    tokens = torch.randint(3, VOCABULARY, (4, 32), device=DEVICE)
    with attach(model) as capture:
        for each in tokens.split(2):
            model(input_ids=each, labels=each).loss.backward()
        routings = capture.take()
        assert capture.capturer.stats().cells_conflicting == 0
    model.eval()
    expect(routings, [alone(model, row) for row in tokens.tolist()])


@check
def _() -> None:
    """a stream of the user's own is followed"""
    model = make("qwen3_moe").to(DEVICE)
    tokens, mask = prompts(7)
    stream = torch.cuda.Stream() if ON_GPU else None
    if stream is not None:
        stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), attach(model) as capture, Witness(model) as witness:
        generate(model, tokens, mask)
        routings = capture.take()
    expect(
        routings,
        rows_of(witness.passes, [mask.cpu()] + [torch.ones(SEQUENCES, 1)] * (STEPS - 1), SEQUENCES),
    )


@check
def _() -> None:
    """a model that was moved to another device after attaching is refused"""
    if not ON_GPU:
        return
    model = make("qwen3_moe")
    with attach(model) as capture:
        model.to(DEVICE)
        try:
            model(input_ids=torch.ones(1, 3, dtype=torch.long, device=DEVICE))
        except RuntimeError as error:
            assert "was on cpu when the capture was attached, and is on cuda" in str(error), error
        else:
            raise AssertionError("it was not refused")
        assert capture.take() == []


def main() -> int:
    warnings.simplefilter("ignore", FutureWarning)
    transformers.logging.set_verbosity_error()
    torch.backends.cuda.matmul.allow_tf32 = False
    failed = 0
    for name, function in checks:
        try:
            function()
            print(f"passed  {name}", flush=True)
        except Exception:
            failed += 1
            print(f"FAILED  {name}", flush=True)
            traceback.print_exc()
    device = torch.cuda.get_device_name() if ON_GPU else "without a GPU"
    print(
        f"routecap {routecap.__version__}, torch {torch.__version__}, transformers"
        f" {transformers.__version__}, {device}; {cells} cells compared"
    )
    print(f"{len(checks) - failed} checks passed, {failed} failed")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())

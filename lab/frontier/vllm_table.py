"""The static table with a real engine: answers of vLLM on the base of a block, and how far the
trainer is from them with live routers, with the engine's, and with these shifted by one row.

    python3 -m frontier.vllm_table FORMAT --block 3 --folder build/frontier

FORMAT is what the engine computes in, one of `FORMATS`. Rows come by routecap's plugin, as bytes.
The trainer is that of the experiment, BF16 in transformers, in the same process.
"""

from __future__ import annotations

import argparse
import base64
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # its engine is in this process

import numpy as np
import routecap
import routecap.models
import routecap_replay.transformers
import torch

from .base import held_out
from .countdown import ANSWER, VOCABULARY
from .grid import ARMS, TINY, Setting
from .log import Log
from .rig import Trainer, model_of
from .rollouts import Batch, examine, rewards_of
from .static import row_of

_ROUTER = "re:.*mlp[.]gate$"
FORMATS: dict[str, dict[str, Any]] = {
    "bf16": {},
    "fp8": {"quantization": "fp8"},  # what a user of vLLM types; it takes the router along
    "fp8_blocks": {  # as the experiment's own: by blocks, and the router in BF16
        "quantization": "fp8_per_block",
        "quantization_config": {"ignore": [_ROUTER]},
    },
}
ROWS = (("live", "b"), ("replayed", "d"), ("shifted", "f"))


@dataclass
class Side:
    """A trainer with the weights of a base, as `rollouts` and `static` take it."""

    setting: Setting
    device: str
    trainer: Trainer
    taps: dict[str, Any]
    replay: Any


def side_of(setting: Setting, base: Path, device: str) -> Side:
    trainer = Trainer(setting, device, torch.bfloat16)
    trainer.load(torch.load(base, map_location=device), weights_alone=True)
    described = routecap.models.describe(trainer.model.config).settings()
    taps = {name: described[name] for name in ("layer_map", "layer_experts", "k")}
    replay = routecap_replay.transformers.attach(trainer.model)
    return Side(setting, device, trainer, taps, replay)


def export(setting: Setting, base: Path, folder: Path) -> None:
    """The BF16 weights of a base as a checkpoint of transformers, for any engine."""
    model = model_of(setting, "cpu", torch.bfloat16)
    exact = torch.load(base, map_location="cpu")["exact"]
    with torch.no_grad():
        for weight, value in zip(model.parameters(), exact, strict=True):
            weight.copy_(value)
    model.save_pretrained(folder)


def ask(setting: Setting, block: int, model: Path, seed: int, options: dict[str, Any]) -> list[Any]:
    """vLLM's outputs for the held-out problems of a block, one sampled answer to each."""
    import routecap_vllm

    routecap_vllm.install()
    from vllm import LLM, SamplingParams

    task, count = setting.task, setting.held_out
    given = dict(
        model=str(model), dtype="bfloat16", skip_tokenizer_init=True, seed=seed,
        enable_return_routed_experts=True, enable_prefix_caching=False, max_logprobs=-1,
        max_model_len=task.prompt + task.answer, max_num_seqs=count, disable_log_stats=True,
        kv_cache_memory_bytes=2 << 30, gpu_memory_utilization=0.02,
        compilation_config={"cudagraph_capture_sizes": [count // 8, count // 4, count // 2, count]},
    )  # fmt: skip
    llm = LLM(**given | options)
    prompts = held_out(setting, block).prompts().astype(int).tolist()
    sampling = SamplingParams(
        temperature=1, max_tokens=task.answer, stop_token_ids=[ANSWER], ignore_eos=True,
        detokenize=False, logprobs=VOCABULARY, flat_logprobs=True,
        extra_args={"routed_experts_format": "routecap.base64"},
    )  # fmt: skip
    return llm.generate([{"prompt_token_ids": each} for each in prompts], sampling, use_tqdm=False)


def batch_of(side: Side, block: int, outputs: list[Any]) -> tuple[Batch, torch.Tensor]:
    """The engine's answers as a batch of the experiment, and its log-probabilities of all tokens,
    [answers, tokens, vocabulary].
    """
    task = side.setting.task
    tokens = np.zeros((len(outputs), task.prompt + task.answer), np.int64)
    found = np.full((len(outputs), task.answer, VOCABULARY), -np.log(VOCABULARY), np.float32)
    sequences, logs, size = [], [], 0
    for row, output in enumerate(outputs):
        answer = output.outputs[0]
        ids = np.array([*output.prompt_token_ids, *answer.token_ids])
        tokens[row, : len(ids)] = ids
        for at, (start, end) in enumerate(
            zip(answer.logprobs.start_indices, answer.logprobs.end_indices, strict=True)
        ):
            found[row, at, answer.logprobs.token_ids[start:end]] = answer.logprobs.logprobs[
                start:end
            ]
        logs.append(found[row, np.arange(len(answer.token_ids)), answer.token_ids])
        message = base64.b64decode(answer.routed_experts)
        size += len(message)
        sequence = routecap.Sequence(len(side.taps["layer_map"]), **side.taps)
        routing = routecap.Routing.deserialize(message)
        sequence.append(ids.astype(np.int32), routing, prompt_tokens=task.prompt)
        sequences.append(sequence)
    lengths = [len(each) for each in sequences]
    rewards = rewards_of(held_out(side.setting, block), tokens, lengths, task.prompt)
    batch = Batch(sequences, task.prompt, logs, rewards, np.zeros_like(rewards), size)
    return batch, torch.from_numpy(found).to(side.device)


def compare(side: Side, block: int, outputs: list[Any], log: Log, **about: Any) -> None:
    """A line of the log for each of `ROWS`."""
    batch, logits = batch_of(side, block, outputs)
    reports = [each.report() for each in batch.sequences]
    seen = examine(side, batch, len(outputs))
    for name, letter in ROWS:
        line = row_of(side, batch, logits, ARMS[letter])
        log.write(
            kind="engine", block=block, row=name, **about, reward=float(batch.rewards.mean()),
            answers=len(outputs), answer_tokens=batch.answer_tokens,
            complete=sum(each.complete for each in reports), findings=seen["findings"],
            controls_missed=seen["controls_missed"],
            cells_differ=seen["cells_differ"] if name == "live" else None,
            tokens_differ=seen["tokens_differ"] if name == "live" else None, **line,
        )  # fmt: skip
        print(f"{about}: {name}: KL {line['kl']:.2e}, k3 {line['k3']:.2e}", flush=True)


def main(more: dict[str, Any] | None = None) -> int:
    """more: options of vLLM, of a test."""
    parser = argparse.ArgumentParser(
        prog="frontier.vllm_table", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("format", choices=FORMATS)
    parser.add_argument("--block", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("build/frontier"))
    parser.add_argument("--log", type=Path, help="where lines are added; default: in the folder")
    parser.add_argument("--seed", type=int, default=0, help="of the engine's sampling")
    parser.add_argument("--attention", help="a backend of vLLM, if not the one that it takes")
    parser.add_argument("--tiny", action="store_true")
    arguments = parser.parse_args()
    setting = TINY if arguments.tiny else Setting()
    folder = arguments.folder / f"block{arguments.block}"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    begun = time.monotonic()

    def said(what: str) -> None:
        print(f"{arguments.format}: {what} after {time.monotonic() - begun:.0f} s", flush=True)

    model = folder / f"checkpoint-{arguments.format}"
    export(setting, folder / "base.pt", model)
    said("checkpoint")
    options = FORMATS[arguments.format] | (more or {})
    if arguments.attention:
        options["attention_backend"] = arguments.attention
    outputs = ask(setting, arguments.block, model, arguments.seed, options)
    said(f"{len(outputs)} answers")
    import vllm

    log = Log(arguments.log or folder / f"vllm-{arguments.format}.jsonl")
    side = side_of(setting, folder / "base.pt", device)
    compare(
        side, arguments.block, outputs, log, engine=f"vLLM {vllm.__version__}",
        format=arguments.format, seed=arguments.seed,
    )  # fmt: skip
    said("compared")
    return 0


if __name__ == "__main__":
    sys.exit(main())

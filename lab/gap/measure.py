#!/usr/bin/env python3
"""How far a trainer's forward is from the generation that it learns from: without replay, with it,
and with the wrong rows replayed.

    measure.py FOLDER [--device cuda] [--json FILE] [--markdown FILE]       # FOLDER: a model over bytes, tests/model/weights for one

The model generates in bfloat16, in one left-padded batch with a cache, and its routing is captured.
The same sequences then go through forwards as a trainer runs them: float32, and bfloat16 in batches
of another size and padding. Each runs three times: with its own routing (as it is without replay),
with the captured one, and, as a control, with the captured one shifted by a row: as many cells
forced, and as valid to look at, but the rows are wrong. It exits with 1 unless replay brings every
forward closer to the generation and the control drives it away.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import routecap
import routecap_replay.transformers
import routecap_transformers
import torch
import transformers

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests/model"))
from texts import texts

PROMPT_BYTES = (24, 96)  # the shortest and the longest
NONE, CAPTURED, SHIFTED = "none", "captured", "shifted by one"


@dataclass
class Generation:
    tokens: list[torch.Tensor]  # of each sequence, without padding
    prompts: list[int]  # tokens that were given
    logs: list[
        torch.Tensor
    ]  # [generated, vocabulary] log-probabilities that the rest was sampled from
    routings: list[routecap.Routing]  # [tokens - 1, layers, k]


@dataclass
class Gap:
    """A forward compared with the generation; over generated tokens, but for the cells."""

    forward: str
    replayed: str
    cells_differing: float  # share of cells, prompts' too, in which the forward ran another set of experts than the generation
    kl: float  # of the generation's distribution from the forward's, mean of the tokens
    log_probability_gap: float  # of the sampled token: mean absolute difference
    log_probability_gap_p99: float


def prompts_of(count: int, seed: int) -> list[torch.Tensor]:
    """Pieces of text on which the model was not trained."""
    random = np.random.default_rng(seed)
    text = np.frombuffer(b"".join(source.held_out for source in texts()), np.uint8)
    lengths = random.integers(*PROMPT_BYTES, count, endpoint=True)
    firsts = random.integers(len(text) - PROMPT_BYTES[1], size=count)
    return [
        torch.from_numpy(text[first : first + length].astype(np.int64))
        for first, length in zip(firsts, lengths)
    ]


def padded(
    sequences: Sequence[torch.Tensor], side: str, device: torch.device
) -> dict[str, torch.Tensor]:
    ids = torch.nn.utils.rnn.pad_sequence(list(sequences), batch_first=True, padding_side=side)
    mask = torch.nn.utils.rnn.pad_sequence(
        [torch.ones_like(each) for each in sequences], batch_first=True, padding_side=side
    )
    return {"input_ids": ids.to(device), "attention_mask": mask.to(device)}


@torch.no_grad()
def generate(model: Any, prompts: list[torch.Tensor], new_tokens: int, seed: int) -> Generation:
    """Sample from the model's own distribution, and capture its routing."""
    torch.manual_seed(seed)
    inputs = padded(prompts, "left", model.device)
    with routecap_transformers.attach(model) as capture:
        out = model.generate(
            **inputs,
            min_new_tokens=new_tokens,
            max_new_tokens=new_tokens,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        routings = capture.take()
    logs = torch.stack(out.logits, 1).float().log_softmax(-1)
    tokens = [
        row[mask.bool()]
        for row, mask in zip(
            out.sequences,
            torch.nn.functional.pad(inputs["attention_mask"], (0, new_tokens), value=1),
        )
    ]
    return Generation(tokens, [len(prompt) for prompt in prompts], list(logs), routings)


def shifted(routing: routecap.Routing) -> routecap.Routing:
    """Each row with the experts of the row before it; the first keeps its own."""
    ids = routing.ids()
    rows = np.maximum(np.arange(len(ids)) - 1, 0)
    return routecap.Routing.from_arrays(
        ids[rows],
        valid=routing.mask()[rows],
        layer_map=routing.layer_map,
        layer_experts=routing.layer_experts,
    )


@torch.no_grad()
def compare(model: Any, generation: Generation, replayed: str, name: str, batch: int) -> Gap:
    """A forward of a trainer over whole sequences, padded on the right, `batch` of them at a time."""
    forced = {
        NONE: None,
        CAPTURED: generation.routings,
        SHIFTED: [shifted(routing) for routing in generation.routings],
    }[replayed]
    executed, kl, gap = [], [], []
    with (
        routecap_replay.transformers.attach(model) as replay,
        routecap_transformers.attach(model) as capture,
    ):
        for first in range(0, len(generation.tokens), batch):
            part = slice(first, first + batch)
            with replay(forced[part]) if forced else nullcontext():
                logits = model(
                    **padded(generation.tokens[part], "right", model.device), use_cache=False
                ).logits
            executed += capture.take()
            for row, tokens, prompt, logs in zip(
                logits, generation.tokens[part], generation.prompts[part], generation.logs[part]
            ):
                # The logits of a token's row are those of the next token.
                found = row[prompt - 1 : len(tokens) - 1].float().log_softmax(-1)
                kl.append((logs.exp() * (logs - found)).sum(-1))
                sampled = tokens[prompt:, None].to(logs.device)
                gap.append((found - logs).gather(-1, sampled).abs()[:, 0])
    differing = cells = 0
    for ours, theirs in zip(executed, generation.routings):
        both = ours.mask()[: theirs.rows] & theirs.mask()
        differ = (np.sort(ours.ids()[: theirs.rows], -1) != np.sort(theirs.ids(), -1)).any(-1)
        differing, cells = differing + int((differ & both).sum()), cells + int(both.sum())
    gaps = torch.cat(gap)
    return Gap(
        name,
        replayed,
        differing / cells,
        torch.cat(kl).mean().item(),
        gaps.mean().item(),
        gaps.quantile(0.99).item(),
    )


@torch.no_grad()
def decisiveness(model: Any, generation: Generation) -> dict[str, float]:
    """How sure the routers are.

    If they were even, the chosen experts would have k / experts of the probability, the next one as
    much as the last.
    """
    logits, hooks = [], []
    taps = routecap_transformers.find(model)
    for tap in taps:
        hooks.append(
            tap.gate.register_forward_hook(
                lambda module, args, output: logits.append(output[0].float())
            )
        )
    for tokens in generation.tokens[:8]:
        model(input_ids=tokens[None].to(model.device), use_cache=False)
    for hook in hooks:
        hook.remove()
    ranked = torch.cat(logits).softmax(-1).sort(-1, descending=True).values
    k, experts = taps[0].k, taps[0].experts
    ratio = (ranked[:, k - 1] / ranked[:, k]).median()
    return {
        "chosen_probability": ranked[:, :k].sum(-1).mean().item(),
        "even_probability": k / experts,
        "last_chosen_over_next": ratio.item(),
    }


def measure(
    generator: Any, trainer: Any, sequences: int, new_tokens: int, seed: int = 0
) -> dict[str, Any]:
    """The generator is the trainer in bfloat16.

    Returns the setting, and three gaps for each forward.
    """
    generation = generate(generator, prompts_of(sequences, seed), new_tokens, seed)
    logs = torch.cat(generation.logs)
    taps = routecap_transformers.find(trainer)
    gaps = []
    for model, name, batch in (
        (trainer, "float32, batches of 4", 4),
        (generator, "bfloat16, batches of 3", 3),
    ):
        gaps += [
            asdict(compare(model, generation, replayed, name, batch))
            for replayed in (NONE, CAPTURED, SHIFTED)
        ]
    return {
        "model": (
            f"{type(trainer).__name__}, {sum(p.numel() for p in trainer.parameters()) / 1e6:,.1f}"
            f" million parameters, {len(taps)} layers, {taps[0].k} of {taps[0].experts} experts"
        ),
        "machine": torch.cuda.get_device_name() if trainer.device.type == "cuda" else "CPU",
        "versions": (
            f"torch {torch.__version__}, transformers {transformers.__version__}, routecap"
            f" {routecap.__version__}"
        ),
        "sequences": sequences,
        "generated_tokens": new_tokens,
        "next_token_entropy_bits": -(logs.exp() * logs).sum(-1).mean().item() / np.log(2),
        "cells_captured": sum(int(routing.mask().sum()) for routing in generation.routings),
        "cells_missing": sum(routing.coverage().cells_missing for routing in generation.routings),
        **decisiveness(trainer, generation),
        "gaps": gaps,
    }


def markdown(result: dict[str, Any]) -> str:
    lines = [
        f"{result['model']}. {result['machine']}, {result['versions']}"
        + (f", commit {result['commit']}." if "commit" in result else "."),
        (
            f"{result['sequences']} sequences of {result['generated_tokens']} generated tokens,"
            f" {result['next_token_entropy_bits']:.2f} bits of entropy;"
            f" {result['cells_captured']:,} cells captured, {result['cells_missing']:,} missing."
        ),
        (
            f"The chosen experts have {result['chosen_probability']:.0%} of the routers'"
            f" probability (even routers: {result['even_probability']:.0%}); the last chosen is"
            f" {result['last_chosen_over_next']:.2f} times as likely as the next (median)."
        ),
        (
            f"Trained: {result['training']}; {result['held_out_bits_per_byte']:.2f} bits per byte"
            " of held-out text.\n"
            if "training" in result
            else ""
        ),
        (
            "| forward | replayed | cells that differ | KL, nats per token | gap of"
            " log-probability, mean | 99 % of tokens below |"
        ),
        "|---|---|---|---|---|---|",
    ]
    for gap in result["gaps"]:
        lines.append(
            f"| {gap['forward']} | {gap['replayed']} | {gap['cells_differing']:.2%} |"
            f" {gap['kl']:.2e} | {gap['log_probability_gap']:.2e} |"
            f" {gap['log_probability_gap_p99']:.2e} |"
        )
    return "\n".join(lines) + "\n"


def failures(result: dict[str, Any]) -> list[str]:
    """What does not hold of: routing differs without replay, never with it; replay narrows both
    gaps; the control widens them.
    """
    found = [] if result["cells_missing"] == 0 else ["cells are missing"]
    gaps = {(gap["forward"], gap["replayed"]): gap for gap in result["gaps"]}
    for forward in dict.fromkeys(forward for forward, _ in gaps):
        without, replayed, control = (gaps[forward, name] for name in (NONE, CAPTURED, SHIFTED))
        if (
            not replayed["cells_differing"]
            == 0
            < without["cells_differing"]
            < control["cells_differing"]
        ):
            found.append(
                f"{forward}: cells that differ are not 0 with replay and most in the control"
            )
        for figure in ("kl", "log_probability_gap"):
            if not replayed[figure] < without[figure] < control[figure]:
                found.append(
                    f"{forward}: {figure} is not least with replay and most in the control"
                )
    return found


def report(result: dict[str, Any], arguments: argparse.Namespace) -> int:
    """Print and write a result; return the exit status."""
    if arguments.commit:
        result = {"commit": arguments.commit} | result
    print(markdown(result))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    if arguments.markdown:
        arguments.markdown.write_text(markdown(result))
    for failure in failures(result):
        print(f"does not hold: {failure}")
    return bool(failures(result))


def arguments_of(
    parser: argparse.ArgumentParser, sequences: int = 24, new_tokens: int = 96
) -> argparse.Namespace:
    parser.add_argument("--sequences", type=int, default=sequences)
    parser.add_argument("--new-tokens", type=int, default=new_tokens)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--commit", help="of the library, to be kept with the result")
    return parser.parse_args()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder")
    arguments = arguments_of(parser)
    if arguments.device == "cpu":
        torch.set_num_threads(1)  # the shipped model is too small for more
    transformers.utils.logging.disable_progress_bar()
    trainer, generator = (
        transformers.AutoModelForCausalLM.from_pretrained(arguments.folder, dtype=dtype)
        .to(arguments.device)
        .eval()
        for dtype in (torch.float32, torch.bfloat16)
    )
    result = measure(generator, trainer, arguments.sequences, arguments.new_tokens, arguments.seed)
    return report(result, arguments)


if __name__ == "__main__":
    sys.exit(main())

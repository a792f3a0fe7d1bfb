"""The trainer: a model of transformers in float32 with activation checkpointing, in micro-batches
of four, on the device of the engine.
"""

from __future__ import annotations

import argparse
from typing import Any

import measure
import numpy as np
import routecap
import routecap_replay.transformers
import routecap_transformers
import torch
import transformers
from rollouts import Padded, Rollout, Step, roll_out, take_step

MICRO_BATCH = 4


def models_of(
    folder: str | None, device: str, count: int, seed: int
) -> tuple[Any, Any, list[torch.Tensor]]:
    """The trainer, the engine with its weights in bfloat16, and prompts.

    Without a folder: 560 million random weights, with routers that decide.
    """
    if folder:
        load = transformers.AutoModelForCausalLM.from_pretrained
        trainer, engine = (
            load(folder, dtype=dtype).to(device).eval() for dtype in (torch.float32, torch.bfloat16)
        )
        return trainer, engine, measure.prompts_of(count, seed)
    torch.manual_seed(seed)
    config = transformers.Qwen3MoeConfig(
        vocab_size=32000, hidden_size=1024, num_hidden_layers=12, num_attention_heads=16, num_key_value_heads=4, head_dim=64, num_experts=32,
        num_experts_per_tok=4, moe_intermediate_size=384, norm_topk_prob=True, max_position_embeddings=1024, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    trainer = transformers.Qwen3MoeForCausalLM(config).eval()
    for tap in routecap_transformers.find(trainer):
        torch.nn.init.normal_(tap.gate.weight, std=0.1)
        torch.nn.init.normal_(
            tap.module.down_proj, std=0.1
        )  # what experts add is what a trained model's do, not next to nothing
    engine = transformers.Qwen3MoeForCausalLM(config).eval().to(torch.bfloat16)
    engine.load_state_dict(trainer.state_dict())
    prompts = [torch.randint(32000, (40 + 8 * number,)) for number in range(count)]
    return trainer.to(device), engine.to(device), prompts


def run(arguments: argparse.Namespace) -> tuple[list[Rollout], dict[str, Step], float]:
    """Returns the rollouts, the steps that were tried, and the objective after the one that was
    taken.
    """
    trainer, engine, prompts = models_of(
        arguments.folder, arguments.device, arguments.prompts, arguments.seed
    )
    rollouts = roll_out(engine, prompts, arguments.group, arguments.new_tokens)
    del engine
    checkpoint = (
        getattr(trainer, "activation_checkpointing_enable", None)
        or trainer.gradient_checkpointing_enable
    )  # before transformers 5.23
    checkpoint({"use_reentrant": False})
    trainer.train()
    routings = [rollout.routing() for rollout in rollouts]
    given = {
        measure.NONE: None,
        measure.SHIFTED: [measure.shifted(each) for each in routings],
        measure.CAPTURED: routings,
    }
    with routecap_replay.transformers.attach(trainer, agreement=True) as replay:
        steps = {
            name: step_of(name, trainer, replay, rollouts, sources)
            for name, sources in given.items()
        }
        take_step(trainer, steps[measure.CAPTURED].gradient)  # the last one's gradients are there
        after = step_of("after the step", trainer, replay, rollouts, routings)
    return rollouts, steps, after.objective


def step_of(
    name: str,
    model: Any,
    replay: Any,
    rollouts: list[Rollout],
    routings: list[routecap.Routing] | None,
) -> Step:
    """Forward of all micro-batches, and then their backward, the last one first."""
    model.zero_grad()
    objectives, gaps = [], []
    answers = sum(len(rollout.log_probabilities) for rollout in rollouts)
    for first in range(0, len(rollouts), MICRO_BATCH):
        part = slice(first, first + MICRO_BATCH)
        batch = Padded(
            rollouts[part], max(len(rollout.tokens) for rollout in rollouts[part]), model.device
        )
        inputs = {"input_ids": batch.tokens, "attention_mask": batch.mask, "use_cache": False}
        if routings is None:
            logits = model(**inputs).logits
        else:
            with replay(routings[part]):
                logits = model(**inputs).logits
        logs = logits.float().log_softmax(-1).gather(-1, batch.labels[..., None])[..., 0]
        objectives.append(batch.objective(logs) / answers)
        gaps.append(batch.gaps(logs))
    total = sum(objective.item() for objective in objectives)
    while objectives:
        objectives.pop().backward()
    gradient = (
        torch.stack(
            [
                parameter.grad.norm()
                for parameter in model.parameters()
                if parameter.grad is not None
            ]
        )
        .norm()
        .item()
    )
    return Step(
        name,
        np.concatenate(gaps),
        total,
        gradient,
        replay.report(reset=True) if routings is not None else None,
    )

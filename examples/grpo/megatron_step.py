"""The trainer: two ranks of released Megatron-Core on CPUs, tensor parallel with sequence parallel,
the experts divided between them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))
import megatron_on_cpu  # before anything imports megatron
import measure
import routecap
import routecap.replay.megatron
import torch
from rollouts import Padded, Rollout, Step, take_step

RANKS = 2


def train(
    rank: int,
    store: str,
    rollouts: list[Rollout],
    weights: dict[str, torch.Tensor],
    hf: Any,
    taps: dict[str, Any],
) -> tuple[dict[str, Step], float]:
    """What one rank does.

    Returns the steps that it tried, by what was replayed, and the objective after the one that it
    took.
    """
    torch.set_num_threads(1)
    parallel = {
        "tensor_model_parallel_size": RANKS,
        "expert_model_parallel_size": RANKS,
        "expert_tensor_parallel_size": 1,
    }
    megatron_on_cpu.start(rank, RANKS, torch.distributed.FileStore(store, RANKS), **parallel)
    from qwen3 import config_of, model_of, take_weights

    model = model_of(config_of(hf, sequence_parallel=True, **parallel), hf)
    take_weights(model, weights, hf)
    replay = routecap.replay.megatron.attach(model, agreement=True)

    # A rank's plan: which token each of its rows is. Megatron has rows [width, samples], of which
    # it gives each rank an interval of columns.
    plan = routecap.Plan(
        [len(rollout.tokens) for rollout in rollouts], layers=taps["layer_map"], k=taps["k"], experts=max(taps["layer_experts"]),
        layout="padded_right", sequence_first=True, sequence_parallel=True, tensor_size=RANKS, tensor_rank=rank, expert_parallel=RANKS, dtype="uint8",
        lost="error",
    )  # fmt: skip
    batch = Padded(rollouts, plan.width * RANKS)
    routings = [rollout.routing() for rollout in rollouts]
    given = {
        measure.NONE: None,
        measure.SHIFTED: [measure.shifted(each) for each in routings],
        measure.CAPTURED: routings,
    }
    steps = {
        name: step_of(name, model, replay, plan, batch, sources) for name, sources in given.items()
    }
    take_step(model, steps[measure.CAPTURED].gradient)  # the last one's gradients are there
    after = step_of("after the step", model, replay, plan, batch, routings)
    megatron_on_cpu.stop()
    return steps, after.objective


def step_of(
    name: str,
    model: Any,
    replay: Any,
    plan: Any,
    batch: Padded,
    routings: list[routecap.Routing] | None,
) -> Step:
    """Forward and backward of one micro-batch, with full recompute."""
    model.zero_grad()
    if routings is not None:
        ids = torch.from_numpy(plan.gather(routings).ids)  # [layers, rows, k]
        replay.load(ids, layers=[router.layer for router in replay.routers])
    width = batch.tokens.shape[1]
    causal = torch.triu(torch.ones(1, 1, width, width), 1).bool()
    losses = model(
        batch.tokens, torch.arange(width)[None].expand_as(batch.tokens), causal, labels=batch.labels
    )
    objective = batch.objective(-losses) / batch.answers.sum()
    objective.backward()
    squares = torch.zeros(2)  # of weights that ranks share, and of those that they divide
    for parameter in model.parameters():
        divided = getattr(parameter, "tensor_model_parallel", False) or not getattr(
            parameter, "allreduce", True
        )
        if not divided:
            if getattr(parameter, "sequence_parallel", False):  # each rank has seen its rows alone
                torch.distributed.all_reduce(parameter.grad)
        squares[int(divided)] += parameter.grad.square().sum()
    torch.distributed.all_reduce(squares[1:])
    report = replay.report(reset=True) if routings is not None else None
    return Step(name, batch.gaps(-losses), objective.item(), squares.sum().sqrt().item(), report)

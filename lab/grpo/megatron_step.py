"""The trainer: ranks of released Megatron-Core, tensor parallel with sequence parallel, the experts
divided between them: on CPUs, or each on a GPU of its own.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

LAB = Path(__file__).resolve().parents[1]
sys.path += [str(LAB / "gap"), str(LAB.parent / "integrations/replay/examples")]
import measure
import routecap
import routecap_replay.megatron
import torch
from rollouts import Padded, Rollout, Step, take_step


def join(device: str, rank: int, ranks: int, store: str, **parallel: int) -> None:
    """Meet the other ranks: on CPUs with what stands in for a GPU, on GPUs as Megatron-Core is."""
    met = torch.distributed.FileStore(store, ranks)
    if device == "cpu":
        import megatron_on_cpu  # before anything imports megatron

        torch.set_num_threads(1)
        megatron_on_cpu.start(rank, ranks, met, **parallel)
        return
    torch.cuda.set_device(rank)
    torch.distributed.init_process_group("nccl", store=met, rank=rank, world_size=ranks)
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    parallel_state.initialize_model_parallel(**parallel)
    model_parallel_cuda_manual_seed(0)


def leave() -> None:
    from megatron.core import parallel_state

    parallel_state.destroy_model_parallel()
    torch.distributed.destroy_process_group()


def train(
    rank: int,
    store: str,
    rollouts: list[Rollout],
    weights: dict[str, torch.Tensor],
    hf: Any,
    taps: dict[str, Any],
    ranks: int = 2,
    device: str = "cpu",
) -> tuple[dict[str, Step], float]:
    """What one rank does.

    Returns the steps that it tried, by what was replayed, and the objective after the one that it
    took.
    """
    parallel = {
        "tensor_model_parallel_size": ranks,
        "expert_model_parallel_size": ranks,
        "expert_tensor_parallel_size": 1,
    }
    join(device, rank, ranks, store, **parallel)
    from qwen3 import config_of, model_of, take_weights

    divided = ranks > 1
    model = model_of(config_of(hf, sequence_parallel=divided, **parallel), hf)
    take_weights(model, weights, hf)
    model.to(device)
    replay = routecap_replay.megatron.attach(model, agreement=True)

    # A rank's plan: which token each of its rows is. Megatron has rows [width, samples], of which
    # it gives each rank an interval of columns.
    plan = routecap.Plan(
        [len(rollout.tokens) for rollout in rollouts], layers=taps["layer_map"], k=taps["k"], experts=max(taps["layer_experts"]),
        layout="padded_right", sequence_first=True, sequence_parallel=divided, tensor_size=ranks, tensor_rank=rank, expert_parallel=ranks, dtype="uint8",
        lost="error",
    )  # fmt: skip
    batch = Padded(rollouts, plan.width * ranks, device)
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
    leave()
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
    device = batch.tokens.device
    if routings is not None:
        ids = torch.empty(plan.shape, dtype=torch.uint8, device=device)  # [layers, rows, k]
        plan.gather(routings, out=ids)
        replay.load(ids, layers=[router.layer for router in replay.routers])
    width = batch.tokens.shape[1]
    causal = torch.ones(1, 1, width, width, dtype=torch.bool, device=device).triu(1)
    positions = torch.arange(width, device=device)[None].expand_as(batch.tokens)
    losses = model(batch.tokens, positions, causal, labels=batch.labels)
    objective = batch.objective(-losses) / batch.answers.sum()
    objective.backward()
    # Of weights that ranks share, and of those that they divide.
    squares = torch.zeros(2, device=device)
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

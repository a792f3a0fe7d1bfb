"""A cell: its batches one after another, from where its checkpoint is."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .base import accuracy, held_out
from .grid import ARMS, Cell, Setting, described
from .grpo import train
from .log import Log
from .rig import Rig, save
from .rollouts import examine, problems_of, roll_out


def noise_of(cell: Cell, step: int) -> int:
    """The seed of sampling: the same in all arms of a block and seed."""
    return (cell.block * 1009 + cell.seed) * 100_003 + step


def run(
    setting: Setting,
    cell: Cell,
    rig: Rig,
    folder: Path,
    steps: int,
    deadline: float,
    told: Callable[[int, str], None],
) -> int:
    """Some steps of a cell, at most until the deadline. Returns how many it has made in all."""
    log = Log(folder / f"{cell.name}.jsonl")
    checkpoint = folder / f"{cell.name}.pt"
    if checkpoint.exists():
        state = torch.load(checkpoint, map_location=rig.device)
        rig.trainer.load(state)
        step = state["step"]
    else:
        rig.trainer.load(
            torch.load(folder / "base.pt", map_location=rig.device), weights_alone=True
        )
        step = 0
        log.write(kind="cell", name=cell.name, **described(cell))
    rig.trainer.skipped = 0
    problems, end, longest, saving = held_out(setting, cell.block), step + steps, 0.0, 5.0
    if step == 0:
        evaluate(cell, rig, problems, log, 0)
    while step < min(end, cell.steps) and time.monotonic() + 1.5 * longest + saving < deadline:
        begun = time.monotonic()
        line = one_step(setting, cell, rig, step)
        step += 1
        finite = rig.trainer.is_finite()
        seconds = time.monotonic() - begun
        longest = max(longest, seconds)
        log.write(
            kind="step", name=cell.name, step=step, finite=finite, seconds=seconds,
            skipped=rig.trainer.skipped, **line,
        )  # fmt: skip
        if not finite:
            step = cell.steps
        elif step % setting.every == 0:
            evaluate(cell, rig, problems, log, step)
        told(step, f"reward {line['reward']:.2f} k3 {line['k3']:.1e}")
    save(rig.trainer.state() | {"step": step}, checkpoint)
    log.write(kind="saved", name=cell.name, step=step)
    return step


def one_step(setting: Setting, cell: Cell, rig: Rig, step: int) -> dict[str, Any]:
    """A batch: weights to the engine, answers, the doctor, all updates. Returns what is logged."""
    rig.send_weights()
    batch, _ = roll_out(rig, problems_of(rig, cell.block, cell.seed, step), noise_of(cell, step))
    seen = examine(rig, batch, setting.examined)
    rate = cell.rate * min((step + 1) / setting.warm_up, 1.0)
    trained = train(rig, batch, ARMS[cell.arm], cell.updates, rate)
    return {
        "reward": float(batch.rewards.mean()),
        "length": batch.answer_tokens / len(batch.sequences),
        "routing_bytes": batch.routing_bytes,
        **seen,
        **trained,
    }


def evaluate(cell: Cell, rig: Rig, problems: Any, log: Log, step: int) -> None:
    found = accuracy(rig.evaluator, problems, cell.block)
    log.write(kind="evaluation", name=cell.name, step=step, accuracy=found)

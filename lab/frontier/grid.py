"""What is run: sizes, arms, and the cells of a block. README.md says why."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from .countdown import Task


@dataclass(frozen=True)
class Setting:
    """Sizes, of all cells alike."""

    task: Task = field(default_factory=Task)
    hidden: int = 512
    layers: int = 12
    experts: int = 64
    k: int = 8
    width: int = 128  # of an expert
    prompts: int = 64  # of a batch
    group: int = 8  # answers to each
    held_out: int = 512
    every: int = 10  # steps between evaluations
    slice: int = 20  # steps of a cell before a worker looks for one that is further back
    micro: int = 64  # sequences of one forward and backward
    examined: int = 16  # answers of each batch that the doctor looks at
    warm_up: int = 5  # batches in which the rate rises
    base_batch: int = 512
    base_rate: float = 6e-4
    base_balance: float = 0.003
    base_goal: float = 0.4
    base_seconds: float = 240.0
    base_every: int = 100

    @property
    def answers(self) -> int:
        return self.prompts * self.group


TINY = Setting(
    task=Task(numbers=2, most=12, attempts=2),
    hidden=64, layers=2, experts=8, k=2, width=32, prompts=4, group=4, held_out=16, every=2,
    slice=2, micro=8, examined=4, warm_up=1, base_batch=32, base_rate=5e-3,
    base_seconds=1e9, base_every=20,
)  # fmt: skip
TINY_BASE_STEPS = 60


@dataclass(frozen=True)
class Arm:
    letter: str
    what: str
    fp8: bool = True  # rollouts; otherwise in the trainer's precision
    dtype: str = "bfloat16"
    tis: bool = False
    replay: bool = False
    shifted: bool = False


ARMS = {
    arm.letter: arm
    for arm in (
        Arm("a", "BF16 rollouts", fp8=False),
        Arm("b", "FP8 rollouts, live routers"),
        Arm("c", "FP8 rollouts, TIS", tis=True),
        Arm("d", "FP8 rollouts, replay", replay=True),
        Arm("e", "FP8 rollouts, replay and TIS", replay=True, tis=True),
        Arm("f", "FP8 rollouts, shifted replay", replay=True, shifted=True),
        Arm("g", "FP16 on both sides", fp8=False, dtype="float16"),
    )
}


@dataclass(frozen=True)
class Cell:
    block: int
    arm: str
    point: str  # P, L, O, or the pilot's
    updates: int  # of a batch
    rate: float
    seed: int
    steps: int

    @property
    def name(self) -> str:
        return f"{self.block}-{self.point}-{self.arm}-{self.seed}"


PILOT_RATES = (3e-5, 1e-4, 3e-4)
PILOT_STEPS = 40


def cells_of(block: int, high: float, steps: int, *, with_o: bool = True) -> list[Cell]:
    """The cells of a block in the order in which ties are resolved; block 0 is the pilot."""
    if block == 0:
        return [
            Cell(0, "a", f"pilot{rate:g}", 8, rate, 1, min(steps, PILOT_STEPS))
            for rate in PILOT_RATES
        ]
    cells = [
        *(Cell(block, arm, "P", 8, high, seed, steps) for arm in "bcde" for seed in (1, 2)),
        *(Cell(block, arm, "P", 8, high, 1, steps) for arm in "afg"),
        *(Cell(block, arm, "L", 8, high / 4, 1, steps) for arm in "bd"),
        *(Cell(block, arm, "O", 1, high, 1, steps) for arm in "bd" if with_o),
    ]
    order = np.random.default_rng([block, 15]).permutation(len(cells))
    return [cells[index] for index in order]


def tiny_cells(block: int) -> list[Cell]:
    """Of each arm one at P, and what else there is, for three steps."""
    cells = cells_of(block, 1e-3, 3)
    return [replace(each, updates=min(each.updates, 2)) for each in cells if each.seed == 1]


def described(thing: Any) -> dict[str, Any]:
    return asdict(thing)

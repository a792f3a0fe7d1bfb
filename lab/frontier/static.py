"""The static table: how far the trainer is from the engine on the base, without training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from .cell import noise_of
from .grid import ARMS, Cell, Setting
from .grpo import gap, logs_of
from .log import Log
from .rig import Rig
from .rollouts import Piece, examine, problems_of, roll_out

ROWS = (
    ("BF16 rollouts, live", "a"),
    ("FP8 rollouts, live", "b"),
    ("FP8 rollouts, replayed", "d"),
    ("FP8 rollouts, shifted", "f"),
    ("FP16 on both sides, live", "g"),
)


def table(setting: Setting, block: int, folder: Path, log: Log, device: str, how: str) -> None:
    """One line of the log for each row of the table."""
    rig: Rig | None = None
    made: Any = None
    for name, letter in ROWS:
        arm = ARMS[letter]
        if rig is None or not rig.serves(arm):
            if rig is not None:
                rig.close()
            rig, made = None, None
            rig = Rig(setting, arm, device, how)
            rig.trainer.load(
                torch.load(folder / "base.pt", map_location=device), weights_alone=True
            )
            rig.send_weights()
            cell = Cell(block, letter, "static", 1, 0.0, 0, 1)
            batch, answers = roll_out(
                rig, problems_of(rig, block, 0, 0), noise_of(cell, 0), keep_logits=True
            )
            made = batch, answers, examine(rig, batch, setting.answers)
        batch, answers, seen = made
        line = row_of(rig, batch, answers.logits, replace(arm, tis=False))
        differ = seen["cells_differ"], seen["tokens_differ"]
        if letter == "d":  # every row is forced
            differ = 0.0, 0.0
        log.write(
            kind="static", block=block, row=name, reward=float(batch.rewards.mean()),
            findings=seen["findings"], controls_missed=seen["controls_missed"],
            cells_differ=None if letter == "f" else differ[0],
            tokens_differ=None if letter == "f" else differ[1], **line,
        )  # fmt: skip
        print(f"static {block}: {name}: KL {line['kl']:.2e}, k3 {line['k3']:.2e}", flush=True)
    if rig is not None:
        rig.close()


@torch.no_grad()
def row_of(rig: Rig, batch: Any, logits: torch.Tensor, arm: Any) -> dict[str, float]:
    """A row of the table; logits: the engine's log-probabilities of all tokens."""
    gaps, kls, count = [], [], rig.setting.micro
    for first in range(0, len(batch.sequences), count):
        some = slice(first, min(first + count, len(batch.sequences)))
        piece = Piece(rig, batch, some, shift=arm.shifted)
        logs, found = logs_of(rig, piece, arm)
        gaps.append((logs - piece.behind)[piece.answers])
        width = min(found.shape[1] - batch.prompt + 1, logits.shape[1])
        at = slice(batch.prompt - 1, batch.prompt - 1 + width)
        engine = logits[some, :width]
        kl = (engine.exp() * (engine - found[:, at])).sum(-1)
        kls.append(kl[piece.answers[:, at]])
    return {"kl": torch.cat(kls).double().mean().item(), **gap(torch.cat(gaps))}

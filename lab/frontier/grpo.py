"""GRPO: the objective, and the updates that one batch of answers serves."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import torch

from .grid import Arm
from .rig import Rig
from .rollouts import Batch, Piece

CLIP, TRUNCATE = 0.2, 2.0


def logs_of(rig: Rig, piece: Piece, arm: Arm) -> tuple[torch.Tensor, torch.Tensor]:
    """The trainer's log-probabilities of the labels, [samples, width], and its distributions."""
    with rig.replay(piece.routings) if arm.replay else nullcontext():
        logits = rig.trainer.model(
            input_ids=piece.tokens, attention_mask=piece.mask, use_cache=False
        ).logits
    found = logits.float().log_softmax(-1)
    return found.gather(-1, piece.labels[..., None])[..., 0], found


def objective(
    logs: torch.Tensor,
    old: torch.Tensor,
    behind: torch.Tensor,
    advantages: torch.Tensor,
    answers: torch.Tensor,
    *,
    tis: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """To be maximised, summed over the tokens of answers; and how many of these are clipped.

    logs: of the trainer now. old: of the trainer before the batch's first update; the clipped
    ratio is to these. behind: with which the engine sampled.
    """
    ratio = torch.exp(torch.where(answers, logs - old, 0))
    plain, clipped = ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages
    gain = torch.minimum(plain, clipped)
    if tis:
        gain = gain * torch.exp(torch.where(answers, old - behind, 0)).clamp(max=TRUNCATE)
    return torch.where(answers, gain, 0).sum(), (answers & (clipped < plain)).sum()


def pieces_of(rig: Rig, batch: Batch, arm: Arm, updates: int) -> list[list[Piece]]:
    """The batch in as many parts as there are updates, each in pieces of one forward."""
    count = len(batch.sequences)
    part = count // updates
    size = min(part, rig.setting.micro)
    return [
        [
            Piece(rig, batch, slice(at, min(at + size, first + part)), shift=arm.shifted)
            for at in range(first, first + part, size)
        ]
        for first in range(0, part * updates, part)
    ]


def train(rig: Rig, batch: Batch, arm: Arm, updates: int, rate: float) -> dict[str, Any]:
    """All updates of a batch. Returns what is logged of them."""
    parts = pieces_of(rig, batch, arm, updates)
    rig.replay.report(reset=True)
    gaps, entropies = [], []
    with torch.no_grad():
        for piece in (piece for part in parts for piece in part):
            piece.old, found = logs_of(rig, piece, arm)
            gaps.append((piece.old - piece.behind)[piece.answers])
            entropies.append(-(found.exp() * found).sum(-1)[piece.answers])
    clipped, norms, trained = torch.zeros((), device=rig.device), [], 0
    for part in parts:
        count = int(sum(piece.answers.sum() for piece in part))
        for piece in part:
            logs, _ = logs_of(rig, piece, arm)
            gain, cut = objective(
                logs, piece.old, piece.behind, piece.advantages, piece.answers, tis=arm.tis
            )
            (-gain / count * rig.trainer.scale).backward()
            clipped += cut
        norms.append(rig.trainer.update(rate))
        trained += count
    report = rig.replay.report() if arm.replay else None
    return {
        **gap(torch.cat(gaps)),
        "entropy": torch.cat(entropies).mean().item(),
        "clipped": clipped.item() / max(trained, 1),
        "gradient": float(np.mean(norms)),
        "plan_lost": sum(piece.report.rows_lost for part in parts for piece in part),
        "replayed": report.replayed if report else 0,
        "lost": report.lost if report else 0,
        "invalid": report.invalid if report else 0,
    }


def gap(gaps: torch.Tensor) -> dict[str, float]:
    """Of log-probabilities of sampled tokens, the trainer's less the engine's."""
    gaps = gaps.double()
    return {
        "k3": (gaps.exp() - 1 - gaps).mean().item(),
        "f2": (gaps.abs() > np.log(2)).double().mean().item(),
        "f5": (gaps.abs() > np.log(5)).double().mean().item(),
    }

"""Rollouts of an engine with their routing, as a trainer gets them, and the objective of a
GRPO-like step.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import routecap
import routecap.models
import routecap_replay
import torch

sys.path.append(str(Path(__file__).resolve().parents[1] / "gap"))
import measure

WIRE = "vllm"  # the format in which the engine sends routing: .npy in base64
CLIP = 0.2
GAIN = 0.02  # what a step is to add to the objective, to first order: it is so large for any model


def take_step(model: torch.nn.Module, gradient: float) -> None:
    """Follow the gradients of the objective, of this norm."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter += GAIN / gradient**2 * parameter.grad


@dataclass
class Rollout:
    """What travels from the engine to the trainer."""

    sequence: routecap.Sequence  # its S tokens, and the routing of all but the last
    prompt: int  # tokens that were given
    log_probabilities: np.ndarray  # float32 [S - prompt], with which the engine sampled
    advantage: float  # of its reward among those of its prompt
    wire_bytes: int  # of the messages in which the routing came

    @property
    def tokens(self) -> np.ndarray:
        """int64 [S]"""
        return self.sequence.tokens.astype(np.int64)

    def routing(self) -> routecap.Routing:
        """With a row for each token but the last."""
        return self.sequence.routing()


def taps_of(model: Any) -> dict[str, Any]:
    """What messages do not say: the layers that route, and their experts."""
    described = routecap.models.describe(model.config).settings()
    return {name: described[name] for name in ("layer_map", "layer_experts", "k")}


def reward(tokens: np.ndarray) -> float:
    """How many of the generated tokens are small letters or spaces, if they are bytes.

    Something that a small model can learn.
    """
    return float(
        np.isin(tokens % 256, np.frombuffer(b" abcdefghijklmnopqrstuvwxyz", np.uint8)).mean()
    )


def roll_out(
    model: Any, prompts: Sequence[torch.Tensor], group: int, new_tokens: int, seed: int = 0
) -> list[Rollout]:
    """Sample `group` answers to each prompt, in one batch.

    They are made in two calls, as where rollouts are interrupted for new weights: the second one is
    given the first one's tokens. The server encodes each call's routing; here the sequence of an
    answer decides which rows count.
    """
    taps = taps_of(model)
    texts = [prompt for prompt in prompts for _ in range(group)]
    lengths = [len(text) for text in texts]
    sequences = [routecap.Sequence(len(taps["layer_map"]), **taps) for _ in texts]
    log_probabilities: list[list[np.ndarray]] = [[] for _ in texts]
    wire_bytes = [0] * len(texts)
    for call, count in enumerate((new_tokens - new_tokens // 2, new_tokens // 2), 1):
        generation = measure.generate(model, texts, count, seed + call)
        texts = generation.tokens
        for each, (tokens, prompt, logs, routing) in enumerate(
            zip(texts, generation.prompts, generation.logs, generation.routings)
        ):
            message, _ = routecap.wire_encode(routing, WIRE)
            wire_bytes[each] += len(message)
            rows, _ = routecap.wire_decode(message, WIRE, rows=len(tokens) - 1, **taps)
            sequences[each].append(tokens.cpu().numpy(), rows, prompt_tokens=prompt, call=call)
            log_probabilities[each].append(
                logs.gather(-1, tokens[prompt:, None].to(logs.device))[:, 0].cpu().numpy()
            )
    rewards = np.array(
        [reward(tokens[length:].cpu().numpy()) for tokens, length in zip(texts, lengths)]
    ).reshape(-1, group)
    advantages = (rewards - rewards.mean(1, keepdims=True)) / (rewards.std(1, keepdims=True) + 1e-6)
    return [
        Rollout(sequence, length, np.concatenate(logs), float(advantage), size)
        for sequence, length, logs, advantage, size in zip(
            sequences, lengths, log_probabilities, advantages.ravel(), wire_bytes
        )
    ]


class Padded:
    """A micro-batch [samples, width], padded on the right: what is aligned with the log-probability
    of the *next* token.
    """

    def __init__(self, rollouts: Sequence[Rollout], width: int, device: Any = "cpu") -> None:
        shape = len(rollouts), width
        self.tokens = torch.zeros(shape, dtype=torch.long)
        self.mask = torch.zeros(shape, dtype=torch.long)
        self.labels = torch.zeros(shape, dtype=torch.long)
        self.answers = torch.zeros(shape, dtype=torch.bool)
        self.behind = torch.zeros(shape)  # log-probabilities with which the labels were sampled
        self.advantages = torch.tensor([rollout.advantage for rollout in rollouts])[:, None]
        for row, rollout in enumerate(rollouts):
            tokens = rollout.tokens
            length = len(tokens)
            self.tokens[row, :length] = torch.from_numpy(tokens)
            self.mask[row, :length] = 1
            self.labels[row, : length - 1] = self.tokens[row, 1:length]
            self.answers[row, rollout.prompt - 1 : length - 1] = True
            self.behind[row, rollout.prompt - 1 : length - 1] = torch.from_numpy(
                rollout.log_probabilities
            )
        for name in ("tokens", "mask", "labels", "answers", "behind", "advantages"):
            setattr(self, name, getattr(self, name).to(device))

    def objective(self, logs: torch.Tensor) -> torch.Tensor:
        """To be maximised: the clipped ratio to the engine's probability, times the advantage;
        summed. logs: [samples, width].
        """
        ratio = torch.exp(logs - self.behind)
        clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
        return torch.where(
            self.answers, torch.minimum(ratio * self.advantages, clipped * self.advantages), 0
        ).sum()

    def gaps(self, logs: torch.Tensor) -> np.ndarray:
        """How far log-probabilities are from the engine's, for each generated token."""
        return (logs.detach() - self.behind)[self.answers].abs().cpu().numpy()


@dataclass
class Step:
    """A training step, or what one would have been."""

    replayed: str
    gaps: np.ndarray  # of each generated token
    objective: float  # mean of the generated tokens
    gradient: float  # its norm
    report: routecap_replay.Report | None

    def line(self) -> str:
        of_rows = ""
        if self.report:
            agreement = [
                layer.agreement for layer in self.report.layers if layer.agreement is not None
            ]
            of_rows = (
                f"{self.report.replayed:,} | {self.report.lost:,} | {self.report.invalid:,} |"
                f" {min(agreement):.1%}"
            )
        else:
            of_rows = "0 | | |"
        clipped = (np.exp(self.gaps) > 1 + CLIP).mean()
        return (
            f"| {self.replayed} | {self.gaps.mean():.2e} | {np.quantile(self.gaps, 0.99):.2e} |"
            f" {clipped:.2%} | {self.objective:+.4f} | {self.gradient:.3f} | {of_rows} |"
        )


HEAD = """| replayed | gap of log-probability, mean | 99 % of tokens below | ratio beyond 1.2 | objective | gradient | rows x layers | lost | invalid | \
least agreement of a layer |
|---|---|---|---|---|---|---|---|---|---|"""


def failures(steps: dict[str, Step]) -> list[str]:
    """What does not hold: replay narrows the gap, wrong rows widen it, and every row came through."""
    found = []
    without, replayed, shifted = (
        steps[name] for name in (measure.NONE, measure.CAPTURED, measure.SHIFTED)
    )
    if not replayed.gaps.mean() < without.gaps.mean() < shifted.gaps.mean():
        found.append("the gap is not least with replay and most with shifted rows")
    if replayed.report is None or replayed.report.lost or replayed.report.invalid:
        found.append("rows were lost or invalid")
    return found


def routed_otherwise(rollouts: Sequence[Rollout], ranks: Sequence[tuple[Any, Any]]) -> int:
    """Cells that were not routed as the engine routed them, or not by exactly one rank. ranks: see
    context_step.route.
    """
    cells = 0
    chosen, places = (
        np.concatenate([rank[index] for rank in ranks], 1 - index) for index in range(2)
    )
    for number, rollout in enumerate(rollouts):
        ids = rollout.routing().ids()
        expected = np.zeros((*ids.shape[:2], chosen.shape[-1]), bool)
        np.put_along_axis(expected, ids.astype(np.int64), True, -1)
        mine = places[:, 0] == number
        at = np.argsort(places[mine, 1])[: len(ids)]
        assert (places[mine, 1][at] == np.arange(len(ids))).all()
        cells += int((chosen[:, mine][:, at].swapaxes(0, 1) != expected).any(-1).sum())
    return cells

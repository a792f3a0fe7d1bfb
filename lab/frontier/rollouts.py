"""A batch of answers with their routing, the way that it takes to a trainer elsewhere: captured, as
bytes, in a sequence, in a plan; and the doctor's look at it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import routecap
import routecap_transformers
import torch
from numpy.typing import NDArray
from routecap_tools import doctor

from .countdown import Problems, draw, solved
from .rig import Rig


@dataclass
class Batch:
    sequences: list[routecap.Sequence]  # of S tokens and S - 1 rows each
    prompt: int  # tokens of each that were given
    logs: list[NDArray[np.float32]]  # [S - prompt] with which the engine sampled
    rewards: NDArray[np.float32]
    advantages: NDArray[np.float32]
    routing_bytes: int  # of the messages

    @property
    def answer_tokens(self) -> int:
        return sum(map(len, self.logs))


def problems_of(rig: Rig, block: int, seed: int, step: int) -> Problems:
    """Of one step of training: the same in every arm."""
    random = np.random.default_rng([block, seed, step])
    return draw(rig.setting.task, rig.setting.prompts, random)[0]


def roll_out(
    rig: Rig, problems: Problems, noise: int, *, keep_logits: bool = False
) -> tuple[Batch, Any]:
    """Answers of the engine to each problem, and what the decode loop says of them."""
    group, prompt = rig.setting.group, rig.setting.task.prompt
    each = problems[np.repeat(np.arange(len(problems.targets)), group)]
    prompts = torch.from_numpy(each.prompts().astype(np.int64)).to(rig.device)
    answers = rig.decoder(prompts, noise, keep_logits=keep_logits)
    routings = rig.capture.take([length - 1 for length in answers.lengths])
    messages = [routing.serialize() for routing in routings]  # what a server would send

    tokens, logs = answers.tokens.cpu().numpy(), answers.logs.cpu().numpy()
    sequences, kept = [], []
    for row, (length, message) in enumerate(zip(answers.lengths, messages)):
        sequence = routecap.Sequence(len(rig.taps["layer_map"]), **rig.taps)
        sequence.append(
            tokens[row, :length], routecap.Routing.deserialize(message), prompt_tokens=prompt
        )
        sequences.append(sequence)
        kept.append(logs[row, : length - prompt])
    rewards = rewards_of(each, tokens, answers.lengths, prompt)
    grouped = rewards.reshape(-1, group)
    advantages = (grouped - grouped.mean(1, keepdims=True)) / (grouped.std(1, keepdims=True) + 1e-6)
    batch = Batch(sequences, prompt, kept, rewards, advantages.ravel(), sum(map(len, messages)))
    return batch, answers


def rewards_of(
    problems: Problems, tokens: NDArray[Any], lengths: Sequence[int], prompt: int
) -> NDArray[np.float32]:
    return np.array(
        [
            solved(numbers, target, tokens[row, prompt:length].astype(np.uint8).tobytes())
            for row, (numbers, target, length) in enumerate(
                zip(problems.numbers.tolist(), problems.targets.tolist(), lengths)
            )
        ],
        np.float32,
    )


def shifted(routing: routecap.Routing) -> routecap.Routing:
    """Each row with the experts of the row before it; the first keeps its own."""
    rows = np.maximum(np.arange(routing.rows) - 1, 0)
    return routecap.Routing.from_arrays(
        routing.ids()[rows],
        valid=routing.mask()[rows],
        layer_map=routing.layer_map,
        layer_experts=routing.layer_experts,
    )


class Piece:
    """Some answers of a batch in a trainer's layout, padded on the right, by a plan: what is
    aligned with the log-probability of the *next* token.
    """

    def __init__(self, rig: Rig, batch: Batch, some: slice, *, shift: bool = False) -> None:
        sequences = batch.sequences[some]
        lengths = [len(each) for each in sequences]
        plan = routecap.Plan(
            lengths,
            layers=rig.taps["layer_map"],
            k=rig.taps["k"],
            layer_experts=rig.taps["layer_experts"],
            layout="padded_right",
            dtype="int16",
        )
        self.shape = len(sequences), plan.width
        sources = [each.routing() for each in sequences]
        gathered = plan.gather([shifted(each) for each in sources] if shift else sources)
        self.report = gathered.report
        # The adapter of transformers takes a routing for each sequence, so the plan's rows become
        # routings again. The last token has no row, and none to lose.
        self.routings = [
            routing[: length - 1]
            for routing, length in zip(plan.scatter(gathered.ids, gathered.classes), lengths)
        ]

        def laid_out(values: list[NDArray[Any]], fill: Any) -> torch.Tensor:
            rows = plan.gather_values(values, fill=fill).reshape(self.shape)
            return torch.from_numpy(rows).to(rig.device)

        def of_labels(values: Sequence[NDArray[Any]], fill: Any) -> list[NDArray[Any]]:
            """Values of answers' tokens, each at the token before it."""
            before = np.full(batch.prompt - 1, fill, values[0].dtype)
            after = np.full(1, fill, values[0].dtype)
            return [np.concatenate([before, each, after]) for each in values]

        tokens = [each.tokens.astype(np.int64) for each in sequences]
        self.tokens = laid_out(tokens, 0)
        self.labels = laid_out([np.append(each[1:], 0) for each in tokens], 0)
        self.mask = laid_out([np.ones(length, np.int64) for length in lengths], 0)
        logs = batch.logs[some]
        self.behind = laid_out(of_labels(logs, np.float32(0)), np.float32(0))
        marks = [np.ones(len(each), bool) for each in logs]
        self.answers = laid_out(of_labels(marks, False), False)
        self.advantages = torch.from_numpy(batch.advantages[some])[:, None].to(rig.device)
        self.old: torch.Tensor | None = None  # the trainer's, before the batch's first update


def _case(name: str, routing: routecap.Routing) -> doctor.Case:
    return doctor.Case(
        name,
        *routing.masked(),
        first=routing.first,
        layer_map=tuple(routing.layer_map.tolist()),
        experts=routing.layer_experts.astype(np.int64),
        reasons=routing.reasons(),
    )


@torch.no_grad()
def examine(rig: Rig, batch: Batch, most: int) -> dict[str, Any]:
    """What the doctor finds in some answers, `most` of them, and whether it finds that rows are
    shifted; and how the trainer's live routers differ from the engine's.
    """
    count = len(batch.sequences)
    some = np.unique(np.linspace(0, count - 1, most).astype(int)).tolist()
    sequences = [batch.sequences[index] for index in some]
    tokens = [torch.from_numpy(each.tokens.astype(np.int64)) for each in sequences]
    ids = torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence(
        [torch.ones_like(each) for each in tokens], batch_first=True
    )
    with routecap_transformers.attach(rig.trainer.model, rows=ids.numel()) as capture:
        rig.trainer.model(
            input_ids=ids.to(rig.device), attention_mask=mask.to(rig.device), use_cache=False
        )
        live = capture.take([len(each) - 1 for each in tokens])
    capture.close()

    engines = [each.routing() for each in sequences]
    names = [f"answer {index}" for index in some]
    cases = {name: _case(name, routing) for name, routing in zip(names, engines)}
    against = {name: _case(name, routing) for name, routing in zip(names, live)}
    texts = {name: each.numpy() for name, each in zip(names, tokens)}
    found = doctor.examine(cases, tokens=texts, against=against).findings
    controls = {name: _case(name, shifted(each)) for name, each in zip(names[:4], engines)}
    noticed = {each.name for each in doctor.examine(controls, against=against).findings}
    cells, rows, of = 0, 0, [0, 0]
    for ours, theirs in zip(engines, live):
        differ = (np.sort(ours.ids(), -1) != np.sort(theirs.ids(), -1)).any(-1)
        cells, rows = cells + int(differ.sum()), rows + int(differ.any(-1).sum())
        of = [of[0] + differ.size, of[1] + len(differ)]
    return {
        "findings": [f"{each.check}: {each.what}" for each in found],
        "controls_missed": len(controls) - len(noticed),
        "cells_differ": cells / of[0],
        "tokens_differ": rows / of[1],
    }

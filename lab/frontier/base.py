"""The base of a block: a model trained on demonstrations until it solves its share of problems."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import routecap_transformers
import torch
import torch.nn.functional as F

from . import decode
from .countdown import Problems, demonstrations, draw
from .grid import TINY_BASE_STEPS, Setting
from .log import Log
from .rig import Trainer, parameters, save
from .rollouts import rewards_of

_SAVED = 60.0  # seconds between two states that a killed run goes on from


def balance(logits: torch.Tensor, k: int) -> torch.Tensor:
    """1 where every expert of a layer is chosen equally often, more where a few are."""
    probabilities = logits.float().softmax(-1)
    experts = probabilities.shape[-1]
    chosen = probabilities.topk(k).indices.flatten()
    load = torch.zeros(experts, device=logits.device).scatter_add_(
        0, chosen, torch.ones_like(chosen, dtype=torch.float)
    )
    return experts * (load / len(chosen) * probabilities.mean(0)).sum()


def held_out(setting: Setting, block: int) -> Problems:
    random = np.random.default_rng([block, 1 << 20])
    return draw(setting.task, setting.held_out, random, held_out=True)[0]


def accuracy(decoder: decode.Decoder, problems: Problems, block: int) -> float:
    """Of one sampled answer to each held-out problem; the same random numbers each time."""
    prompts = torch.from_numpy(problems.prompts().astype(np.int64)).to(decoder.device)
    answers = decoder(prompts, seed=block * 1_000_003 + 17)
    tokens = answers.tokens.cpu().numpy()
    return float(rewards_of(problems, tokens, answers.lengths, decoder.prompt).mean())


def train_base(
    setting: Setting, block: int, folder: Path, log: Log, device: str, how: str, deadline: float
) -> bool:
    """Make base.pt in the folder. False: the deadline came first, and the next call goes on."""
    torch.manual_seed(block)
    trainer = Trainer(setting, device, torch.bfloat16)
    model, task = trainer.model, setting.task
    begun = folder / "base-begun.pt"
    step, before = 0, 0.0
    if begun.exists():
        state = torch.load(begun, map_location=device)
        trainer.load(state)
        step, before = state["step"], state["seconds"]
    evaluator = decode.decoder(model, setting.held_out, task.prompt, task.answer, how, None)
    problems = held_out(setting, block)
    routed: list[torch.Tensor] = []
    hooks = [
        tap.gate.register_forward_hook(lambda module, args, output: routed.append(output[0]))
        for tap in routecap_transformers.find(model)
    ]
    start = time.monotonic()

    def seconds() -> float:
        return before + time.monotonic() - start

    def keep() -> None:
        save(trainer.state() | {"step": step, "seconds": seconds()}, begun)

    found, saved, loss = 0.0, time.monotonic(), torch.zeros(())
    while True:
        if step % setting.base_every == 0 and step:
            found = accuracy(evaluator, problems, block)
            routed.clear()
            log.write(
                kind="base", block=block, step=step, seconds=seconds(), accuracy=found,
                loss=loss.item(), parameters=parameters(model),
            )  # fmt: skip
            print(
                f"base {block}: step {step}, {seconds():.0f} s, loss {loss.item():.3f},"
                f" solves {found:.1%}",
                flush=True,
            )
        tiny_done = setting.hidden < 128 and step >= TINY_BASE_STEPS
        if found >= setting.base_goal or seconds() > setting.base_seconds or tiny_done:
            break
        if time.monotonic() > deadline:
            keep()
            return False
        if time.monotonic() - saved > _SAVED:
            keep()
            saved = time.monotonic()
        loss = _step(setting, trainer, block, step, routed)
        trainer.update(setting.base_rate * min((step + 1) / 100, 1.0))
        step += 1
    for hook in hooks:
        hook.remove()
    found = accuracy(evaluator, problems, block)
    log.write(
        kind="base_done", block=block, step=step, seconds=seconds(), accuracy=found,
        taken=0.15 <= found <= 0.65,
    )  # fmt: skip
    save({"exact": trainer.state()["exact"], "accuracy": found}, folder / "base.pt")
    begun.unlink(missing_ok=True)
    return True


def _step(
    setting: Setting, trainer: Trainer, block: int, step: int, routed: list[Any]
) -> torch.Tensor:
    """Backward of one batch of demonstrations; the loss is of what follows the prompt."""
    random = np.random.default_rng([block, 1 << 21, step])
    texts, lengths = demonstrations(setting.task, setting.base_batch, random)
    device = trainer.model.device
    tokens = torch.from_numpy(texts.astype(np.int64)).to(device)
    labels = tokens[:, 1:].clone()
    columns = torch.arange(1, tokens.shape[1], device=device)
    ends = torch.from_numpy(lengths).to(device)[:, None]
    labels[(columns < setting.task.prompt) | (columns >= ends)] = -100
    mask = (torch.arange(tokens.shape[1], device=device) < ends).long()
    total, count = torch.zeros((), device=device), (labels != -100).sum()
    size = 4 * setting.micro
    for some in (slice(at, at + size) for at in range(0, len(tokens), size)):
        routed.clear()
        logits = trainer.model(
            input_ids=tokens[some], attention_mask=mask[some], use_cache=False
        ).logits
        loss = (
            F.cross_entropy(
                logits[:, :-1].flatten(0, 1).float(), labels[some].flatten(), reduction="sum"
            )
            / count
        )
        unbalance = torch.stack([balance(each, setting.k) for each in routed]).mean()
        share = len(tokens[some]) / len(tokens)
        (loss + setting.base_balance * share * unbalance).backward()
        total += loss.detach()
    routed.clear()
    return total

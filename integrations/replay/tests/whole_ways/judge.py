"""A trainer of released Megatron-Core on the CPU, with an engine's weights and full recompute, and
what is compared in one step of it:

- live: what the trainer's own routers choose, against the rows of the rollouts. Both compute in
  float32, so nearly all are the same, and rows that are shifted by a token are not.
- replay: what the routers chose in the forward pass, and again in recompute, against the rows.
- The gap between the engine's log-probabilities and the trainer's, also with shifted rows.
"""

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))
import megatron_on_cpu  # before anything imports megatron
import torch
from transformers import AutoModelForCausalLM


def trainer_of(folder: Path) -> tuple[torch.nn.Module, Any]:
    """The model of a folder as one of Megatron-Core, and its configuration."""
    megatron_on_cpu.start()
    from qwen3 import config_of, model_of, take_weights

    engine = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    config = config_of(engine.config)
    config.enable_routing_replay = config.moe_enable_routing_replay = True
    model = model_of(config, engine.config)
    take_weights(model, engine.state_dict(), engine.config)
    return model, config


class Chosen:
    """What each router chose: [tokens, experts] by layer, in the forward pass and in recompute."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.forward: dict[int, torch.Tensor] = {}
        self.again: dict[int, torch.Tensor] = {}
        for module in model.modules():
            if type(module).__name__ == "TopKRouter":
                module.register_forward_hook(self._see)

    def _see(self, router: Any, inputs: Any, output: Any) -> None:
        in_backward = torch._C._current_graph_task_id() != -1
        (self.again if in_backward else self.forward)[router.layer_number - 1] = output[1].bool()


def same(chosen: dict[int, torch.Tensor], rows: torch.Tensor, given: torch.Tensor) -> int:
    """How many cells, of the tokens that have rows, have the experts of the rows [T, layers, k]."""
    count = 0
    for layer, experts in chosen.items():
        want = torch.zeros_like(experts).scatter(1, rows[:, layer].long().clamp(min=0), True)
        count += int((experts == want).all(-1)[given].sum())
    return count


def judge(
    folder: Path,
    trainer: str,
    model: torch.nn.Module,
    tokens: Sequence[torch.Tensor],
    rows: torch.Tensor,
    gap: Callable[[torch.Tensor], float],
    loss: Callable[[torch.Tensor], torch.Tensor],
    replayed: Callable[[torch.Tensor], AbstractContextManager[None]],
    report: Callable[[], Any],
    replayed_at_the_end: int,
) -> int:
    """Make the step, print what was compared, write it to FOLDER/result.json for ../../trainers.py,
    and return 1 if something is not as it has to be.

    trainer: The package. tokens: Of each sequence. rows: [tokens, layers, k] of all of them, without meaning for the last
    token of each, which nobody fed. gap, loss: Of the log-probabilities [tokens] with which the
    model has the token behind each. replayed: Within it the model replays such rows. report: Of
    routecap. replayed_at_the_end: How many of the last tokens the trainer gives rows for.
    """
    failed = False

    def expect(right: bool, what: str) -> None:
        nonlocal failed
        failed |= not right
        print(f"{'ok     ' if right else 'FAILED '} {what}")

    lengths = torch.tensor([len(each) for each in tokens])
    flat = torch.cat(list(tokens))[None]
    given = torch.ones(len(rows), dtype=torch.bool)
    given[lengths.cumsum(0) - 1] = False
    count = int(given.sum())
    routes = [layer for layer, each in enumerate(model.config.moe_layer_freq) if each]
    layers = len(routes)
    cells = count * layers
    ids = rows[given][:, routes].sort(-1).values
    whole = (ids.diff(dim=-1) > 0).all() and (ids >= 0).all()
    expect(bool(whole), f"all {count} rows of {len(lengths)} sequences are there")

    sequence = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    past = torch.ones(len(rows), len(rows), dtype=torch.bool).tril()
    hidden = ~(past & (sequence[:, None] == sequence[None, :]))[None, None]
    chosen = Chosen(model)

    def logs() -> torch.Tensor:
        return -model(flat, torch.arange(len(rows))[None], hidden, labels=flat.roll(-1, 1))[0]

    with torch.no_grad():
        live = gap(logs())
    agree, others = same(chosen.forward, rows, given), same(chosen.forward, rows.roll(1, 0), given)
    expect(agree >= 0.99 * cells, f"live: {agree} of {cells} cells are those of the rows")
    expect(others < 0.7 * cells, f"live: {others} are those of the rows before")

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with replayed(rows):
        new = logs()
    loss(new).backward()
    for what, maps in (("the forward pass", chosen.forward), ("recompute", chosen.again)):
        found = same(maps, rows, given)
        expect(found == cells, f"replay: {found} of {cells} cells of {what} are those of the rows")
    found = report()
    expect(
        (found.replayed, found.lost, found.invalid) == (cells + replayed_at_the_end * layers, 0, 0),
        f"routecap: {found.replayed} replayed, {found.lost} lost, {found.invalid} invalid",
    )
    near = gap(new.detach())
    expect(
        near < 1e-3,
        f"log-probabilities differ from the engine's by {near:.1e} at most with replay, by"
        f" {live:.1e} without",
    )
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    optimizer.step()
    routers = [name for name in before if name.endswith("router.weight")]
    moved = sum(bool((before[each] != model.get_parameter(each)).any()) for each in routers)
    expect(moved == len(routers) == layers, f"the step moved {moved} of {layers} routers")

    model.load_state_dict(before, strict=False)
    with torch.no_grad(), replayed(rows.roll(1, 0)):
        far = gap(logs())
    expect(far > 100 * near, f"with rows that are shifted by a token they differ by {far:.1e}")
    result = {"trainer": trainer, "version": version(trainer), "engine": "vLLM"}
    result |= {"engine_version": version("vllm").partition("+")[0], "passed": not failed}
    result |= {"rows": count, "cells": cells, "wrong": cells - agree, "missing": found.lost}
    (folder / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    return int(failed)

"""One rank of two whose model has a part of the experts each; test_distributed.py runs it.

Usage: distributed_rank.py FOLDER SETTINGS..., in the environment that torchrun makes. Prints a JSON
object for each settings: how many cells of every layer were compared with what the layer's router
chose, and how many differ; or what the capture was refused with.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import routecap_transformers
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM
from transformers.distributed import DistributedConfig


def run(folder: str, settings: dict[str, Any]) -> dict[str, Any]:
    rank = dist.get_rank()
    options = {"distributed_config": DistributedConfig(**settings)}
    model = AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32, **options
    ).eval()
    experts = [each for name, each in model.named_modules() if name.endswith("mlp.experts")]
    said: dict[str, Any] = {"rank": rank, "own": [each.num_experts for each in experts]}
    try:
        capture = routecap_transformers.attach(model)
    except ValueError as refusal:
        return said | {"refused": str(refusal)}
    seen: list[dict[int, np.ndarray]] = []
    for layer, block in enumerate(model.model.layers):
        block.mlp.gate.register_forward_hook(
            lambda module, args, output, layer=layer: see(seen, layer, output)
        )
    shared = settings.get("tp_size", 1) > 1  # then the ranks have the same tokens
    draw = torch.Generator().manual_seed(7 if shared else 7 + rank)
    tokens = torch.randint(3, 128, (3, 9), generator=draw)
    mask = torch.ones_like(tokens)
    mask[1, :4] = 0
    with torch.no_grad():
        out = model.generate(
            tokens, attention_mask=mask, max_new_tokens=6, do_sample=False, eos_token_id=None
        )
        routings = capture.take()
        expected = rows_of(seen, mask)
        seen.clear()
        model(input_ids=out, use_cache=False)
        routings += capture.take()
        expected += rows_of(seen, torch.ones_like(out))
    cells, wrong = np.zeros((2, len(experts)), int)
    for routing, rows in zip(routings, expected, strict=True):
        assert routing.complete and routing.rows == len(rows)
        differs = (np.sort(routing.ids().astype(np.int64), -1) != rows).any(-1)
        cells, wrong = cells + len(rows), wrong + differs.sum(0)
    ids = np.concatenate([routing.ids().reshape(-1) for routing in routings])
    said["experts"] = sorted(set(ids.tolist()))
    return said | {"cells": cells.tolist(), "wrong": wrong.tolist()}


def see(seen: list[dict[int, np.ndarray]], layer: int, output: Any) -> None:
    if layer == 0:
        seen.append({})
    [ids] = [each for each in output if not each.is_floating_point()]
    seen[-1][layer] = ids.sort(-1).values.numpy()


def rows_of(passes: list[dict[int, np.ndarray]], mask: torch.Tensor) -> list[np.ndarray]:
    """[tokens, layers, k] for each sequence; the first pass has the mask."""
    rows: list[list[np.ndarray]] = [[] for _ in mask]
    for number, layers in enumerate(passes):
        ids = np.stack([layers[layer] for layer in sorted(layers)], 1)
        ids = ids.reshape(len(mask), -1, *ids.shape[1:])
        for row, columns in enumerate(ids):
            rows[row] += list(columns if number else columns[mask[row].numpy() != 0])
    return [np.stack(each) for each in rows]


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for settings in sys.argv[2:]:
        print(json.dumps(run(sys.argv[1], json.loads(settings))), flush=True)
    dist.destroy_process_group()

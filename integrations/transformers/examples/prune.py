#!/usr/bin/env python3
"""Prunes the experts of a small model by what they add (REAP), and measures what that costs.

usage: prune.py [MODEL] [--keep N]

Calibration texts go through the model in padded batches. routecap has the experts of every token and
the routers' weights, hooks have the norms of what the experts return, and `experts.from_batch`
brings the two together. The experts that add least leave each layer; as many that are drawn leave
it for comparison.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM

from routecap import experts
from routecap_transformers import attach

ROOT = Path(__file__).resolve().parents[3]


def texts(folder, count, width):
    """Pieces of the documentation, as bytes; each begins with a zero, and their lengths differ."""
    text = b"".join(file.read_bytes() for file in sorted(folder.glob("*.md")))
    pieces = [text[start : start + width] for start in range(0, len(text), width)][:count]
    return [
        [0, *piece[: width // 2 + number * 37 % (width // 2)]]
        for number, piece in enumerate(pieces)
    ]


def padded(batch):
    """Token ids [texts, longest], padded on the right, and the mask."""
    width = max(map(len, batch))
    tokens = torch.tensor([text + [0] * (width - len(text)) for text in batch])
    return tokens, torch.tensor([[1] * len(text) + [0] * (width - len(text)) for text in batch])


class Hooks:
    """What the experts' modules get, and the norm of what each chosen expert returns: arrays
    [texts * columns, k] for each layer of a pass.
    """

    def __init__(self, model):
        self.ids, self.weights, self.norms = [], [], []
        for layer in model.model.layers:
            layer.mlp.experts.register_forward_pre_hook(self.before, with_kwargs=True)

    def before(self, module, arguments, named):
        states, ids, weights = (*arguments, *named.values())
        norms = torch.zeros(ids.shape, dtype=torch.float64)
        for expert in ids.unique():
            rows, columns = torch.where(ids == expert)
            gate, up = F.linear(states[rows], module.gate_up_proj[expert]).chunk(2, dim=-1)
            out = F.linear(module.act_fn(gate) * up, module.down_proj[expert])
            norms[rows, columns] = out.double().norm(dim=-1)
        self.ids.append(ids)
        self.weights.append(weights.double())
        self.norms.append(norms)

    def take(self):
        """[tokens, layers, k] of the last pass: ids, weights and norms."""
        found = [torch.stack(each, dim=1).numpy() for each in (self.ids, self.weights, self.norms)]
        self.ids, self.weights, self.norms = [], [], []
        return found


def measured(model, calibration):
    """The importance of each expert by routecap, the same by hooks alone, and the routings."""
    hooks, batches = Hooks(model), [calibration[i : i + 8] for i in range(0, len(calibration), 8)]
    layers, count = len(model.model.layers), model.config.num_experts
    total, tokens = np.zeros((layers, count)), np.zeros((layers, count))
    routings, weights, norms = [], [], []
    with attach(model, weights="float32") as capture:
        for batch in batches:
            ids, mask = padded(batch)
            model(input_ids=ids, attention_mask=mask, use_cache=False)
            mine = capture.take()
            seen, weight, norm = hooks.take()
            [found] = experts.from_batch(mine, mask, seen, norm)
            norms += found
            weights += [each.weights() for each in mine]
            routings += mine
            for layer in range(layers):  # the same by hooks alone
                kept = mask.flatten().bool().numpy()
                place = seen[kept, layer].ravel()
                added = (weight * norm)[kept, layer].ravel()
                total[layer] += np.bincount(place, added, minlength=count)
                tokens[layer] += np.bincount(place, minlength=count)
    with np.errstate(invalid="ignore"):
        return experts.importance(routings, weights, norms), total / tokens, routings


def loss(model, held_out):
    """Mean loss of a byte, padding left out."""
    ids, mask = padded(held_out)
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :-1]
    wanted = torch.where(mask[:, 1:].bool(), ids[:, 1:], -100)
    return F.cross_entropy(logits.flatten(0, 1), wanted.flatten()).item()


def pruned(name, keep):
    """The model with these experts of each layer alone: keep is [layers, n], ascending."""
    model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32).eval()
    for layer, ids in zip(model.model.layers, keep):
        for module, weight in (
            (layer.mlp.gate, "weight"),
            (layer.mlp.experts, "gate_up_proj"),
            (layer.mlp.experts, "down_proj"),
        ):
            setattr(module, weight, torch.nn.Parameter(getattr(module, weight)[ids]))
            module.num_experts = len(ids)
    return model


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default=ROOT / "tests/model/weights")
    parser.add_argument("--keep", type=int, default=12)
    arguments = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32).eval()
    every = texts(ROOT / "docs", 96, 256)
    ours, hooks, routings = measured(model, every[:64])
    used = experts.usage(routings)
    print(f"{used.texts} texts; experts with at most 100 tokens: {used.at_most(100).sum()}")
    print(f"importance differs from that of hooks alone by {np.nanmax(abs(ours - hooks)):.1e}")
    random = np.random.default_rng(0)
    drawn = [random.choice(model.config.num_experts, arguments.keep, replace=False) for _ in ours]
    for name, keep in (
        ("all experts", np.tile(np.arange(model.config.num_experts), (len(ours), 1))),
        ("those that add most", np.sort(np.argsort(-np.nan_to_num(ours))[:, : arguments.keep])),
        ("as many, drawn", np.sort(drawn)),
    ):
        print(f"loss of {name}: {loss(pruned(arguments.model, keep), every[64:]):.4f}")
    return int(not np.allclose(ours, hooks, atol=1e-6, equal_nan=True))


if __name__ == "__main__":
    sys.exit(main())

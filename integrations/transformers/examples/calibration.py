#!/usr/bin/env python3
"""Says whether a calibration set reaches every expert of a small model, and which experts go
together.

usage: calibration.py [MODEL] [--texts N] [--tokens N] [--save FOLDER]

Texts go through the model in padded batches; routecap has the experts of every token, without the
padding. The counts are compared with those of plain hooks on the routers. With --save each text's
routing is a file: `routecap coverage FOLDER --png picture.png` draws what this prints.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

import routecap
from routecap import experts
from routecap_transformers import attach

ROOT = Path(__file__).resolve().parents[3]


def texts(folder, count, width):
    """Pieces of the documentation, as bytes; each begins with a zero, and their lengths differ."""
    text = b"".join(file.read_bytes() for file in sorted(folder.glob("*.md")))
    pieces = [text[start : start + width] for start in range(0, len(text), width)][:count]
    return [[0, *piece[: width - number * 37 % width]] for number, piece in enumerate(pieces)]


def padded(batch):
    """Token ids [texts, longest], padded on the right, and the mask."""
    width = max(map(len, batch))
    tokens = torch.tensor([text + [0] * (width - len(text)) for text in batch])
    return tokens, torch.tensor([[1] * len(text) + [0] * (width - len(text)) for text in batch])


class Hooks:
    """Tokens of each expert and layer, by hooks on the routers of a Qwen3-MoE."""

    def __init__(self, model):
        self.tokens = torch.zeros(len(model.model.layers), model.config.num_experts, dtype=int)
        self.keep = None  # which tokens of the batch are no padding
        for layer, module in enumerate(model.model.layers):
            module.mlp.gate.register_forward_hook(
                lambda module, args, output, layer=layer: self.count(layer, output[2])
            )

    def count(self, layer, ids):
        chosen = ids[self.keep].flatten()
        self.tokens[layer] += torch.bincount(chosen, minlength=self.tokens.shape[1])


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default=ROOT / "tests/model/weights")
    parser.add_argument("--texts", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=500, help="that each expert should have")
    parser.add_argument("--save", metavar="FOLDER")
    arguments = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32).eval()
    every = texts(ROOT / "docs", arguments.texts, 256)
    hooks, routings = Hooks(model), []

    with attach(model) as capture:
        for start in range(0, len(every), 8):
            tokens, mask = padded(every[start : start + 8])
            hooks.keep = mask.flatten().bool()
            model(input_ids=tokens, attention_mask=mask, use_cache=False)
            routings += capture.take()  # one for each text

    # Coverage: experts with few tokens, and how many more texts it takes.
    used = experts.usage(routings)
    more = used.more_texts(arguments.tokens).max(axis=1)
    for number, layer in enumerate(used.layer_map):
        few = [int(used.at_most(level)[number].sum()) for level in (0, 10, 100)]
        fewest = used.tokens[number].argmin()
        print(
            f"layer {layer}: experts with 0, at most 10, at most 100 tokens: {few};"
            f" fewest: expert {fewest}, {used.tokens[number, fewest]};"
            f" more texts until all have {arguments.tokens}: {more[number]:.0f}"
        )

    # Co-activation, beside what independent choices of the same load would give.
    for layer, pairs in zip(used.layer_map, experts.coactivation(routings).astype(float)):
        load = pairs.diagonal().copy()
        np.fill_diagonal(pairs, 0)
        chance = np.outer(load, load)
        np.fill_diagonal(chance, 0)
        often = pairs / np.maximum(chance * pairs.sum() / chance.sum(), 1)
        one, other = np.unravel_index(often.argmax(), often.shape)
        print(f"layer {layer}: {one} and {other} go together {often.max():.1f} times as often")

    if arguments.save:
        routecap.save(arguments.save, {f"text-{i:03}": each for i, each in enumerate(routings)})
    wrong = int((used.tokens != hooks.tokens.numpy()).sum())
    print(f"{used.tokens.sum()} choices; {wrong} counts differ from those of hooks on the routers")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())

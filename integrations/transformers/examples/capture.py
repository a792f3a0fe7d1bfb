#!/usr/bin/env python3
"""Captures the routing of a transformers model: of what it generates for a batch of prompts, and of
a packed batch as trainers have them.

usage: capture.py MODEL [--tokens N] [--save FOLDER] PROMPT...

MODEL is a folder or a name that transformers loads; tests/model/weights, whose tokens are bytes,
needs no tokenizer. The rows that come out are compared with what plain hooks saw of the model's
routers.
"""

import argparse
import sys

import numpy as np
import torch
from transformers import AutoModelForCausalLM

import routecap
from routecap_transformers import attach

PAD = 0


def left_padded(prompts):
    """Token ids [prompts, longest] of texts as bytes, and the mask that says which are no padding."""
    width = max(map(len, prompts))
    tokens = torch.tensor([[PAD] * (width - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    return tokens, mask


def describe(name, text, routing):
    """Prints a routing: the first rows, and which experts of each layer were busiest."""
    coverage = routing.coverage()
    print(
        f"{name}: {routing.rows} rows x {routing.layers} layers x {routing.k} experts,"
        f" {coverage.rows_complete} complete"
    )
    ids = routing.ids()
    for row in range(4):
        print(
            f"  row {row} {bytes(text[row : row + 1])!r:>6}:"
            f" {' '.join(str(cell.tolist()) for cell in ids[row])}"
        )
    for index, layer in enumerate(routing.layer_map):
        load = np.bincount(ids[:, index].ravel(), minlength=routing.layer_experts[index])
        print(
            f"  layer {layer}: busiest expert {load.argmax()}, {load.max() / load.mean():.1f} times"
            " the mean"
        )


class Hooks:
    """What the routers of a Qwen3-MoE or Mixtral return, forward pass after forward pass: sorted
    ids [rows, layers, k].
    """

    def __init__(self, model):
        self.calls = []
        gates = [module for name, module in model.named_modules() if name.endswith("mlp.gate")]
        self.layers = len(gates)
        self.handles = [
            gate.register_forward_hook(lambda module, args, output: self.calls.append(output[2]))
            for gate in gates
        ]

    def passes(self):
        calls, self.calls = self.calls, []
        return [
            torch.stack(calls[i : i + self.layers], 1).sort(-1).values
            for i in range(0, len(calls), self.layers)
        ]


def differences(routing, rows):
    """How many cells of a routing are not those of [rows, layers, k]."""
    if not routing.complete or routing.rows != len(rows):
        return rows.shape[0] * rows.shape[1]
    return int((np.sort(routing.ids().astype(np.int64), -1) != rows.numpy()).any(-1).sum())


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("prompts", nargs="+")
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--save", metavar="FOLDER")
    arguments = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32).eval()
    tokens, mask = left_padded([prompt.encode() for prompt in arguments.prompts])
    hooks = Hooks(model)
    wrong = cells = 0

    with attach(model) as capture:
        # Generation: a routing for each row; the last token was never routed, padding has none.
        out = model.generate(
            input_ids=tokens,
            attention_mask=mask,
            max_new_tokens=arguments.tokens,
            do_sample=False,
            pad_token_id=PAD,
        )
        routings = capture.take()

        first, *steps = hooks.passes()
        texts = [row[int(keep.argmax()) :].tolist() for row, keep in zip(out, mask)]
        for row, (text, routing) in enumerate(zip(texts, routings)):
            describe(f"sequence {row}, {bytes(text)!r}", text, routing)
            prompt = first.unflatten(0, mask.shape)[row][mask[row].bool()]
            seen = torch.cat([prompt, *(step[row : row + 1] for step in steps)])
            wrong += differences(routing, seen[: routing.rows])
            cells += routing.rows * routing.layers

        # Training: the same sequences packed. Where position_ids begin again, a sequence begins.
        packed = torch.tensor([sum(texts, [])])
        positions = torch.cat([torch.arange(len(text)) for text in texts])[None]
        model.train()
        model(
            input_ids=packed, position_ids=positions, labels=packed, use_cache=False
        ).loss.backward()
        trained = capture.take()

        (seen,) = hooks.passes()
        for routing, rows in zip(trained, seen.split([len(text) for text in texts])):
            wrong += differences(routing, rows)
            cells += routing.rows * routing.layers
    changed = 0
    for routing, again in zip(routings, trained):
        ids = np.sort(again.ids()[: routing.rows].astype(np.int64), -1)
        changed += differences(routing, torch.from_numpy(ids))
    print(
        f"{len(trained)} packed sequences of {[routing.rows for routing in trained]} rows;"
        f" {changed} cells differ from those of the generation"
    )
    print(f"{cells} cells, {wrong} of them differ from what hooks on the routers saw")

    if arguments.save:
        samples = {}
        for row, (text, routing) in enumerate(zip(texts, routings)):
            letters = [bytes([token]).decode("utf-8", "surrogateescape") for token in text]
            samples[f"sequence-{row}"] = routecap.Sample(
                routing, {"tokens": letters, "prompt_tokens": int(mask[row].sum())}
            )
        routecap.save(arguments.save, samples)
    return wrong != 0


if __name__ == "__main__":
    sys.exit(main())

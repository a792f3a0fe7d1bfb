#!/usr/bin/env python3
"""Says what caches of experts would do while a small model generates for several prompts at once.

usage: caches.py [MODEL] [--tokens N] [--save FOLDER] [--out FILE.csv]

Each forward pass is a step of the engine: it needs the experts that any of its tokens chose. With
attach(steps=True) routecap keeps its number with every row. What each step needs is compared with
what plain hooks on the routers saw. With --save each request is a file:
`routecap trace FOLDER --png rates.png` draws the hit rates over the size of the cache. --out writes
all rows as one table.
"""

import argparse
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

import routecap
from routecap import experts
from routecap_tools import traces
from routecap_transformers import attach

ROOT = Path(__file__).resolve().parents[3]
PROMPTS = [b"int main(", b"import numpy as np\n", b"# Experts\n", b"def read(file):\n    "]
SLOTS = (4, 8, 12)


def left_padded(prompts):
    width = max(map(len, prompts))
    tokens = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    return tokens, mask


class Hooks:
    """The experts that each forward pass needs in each layer, by hooks on the routers of a
    Qwen3-MoE. Of the first pass padding is left out.
    """

    def __init__(self, model, mask):
        self.steps, self.mask = [], mask.flatten().bool()
        model.register_forward_pre_hook(lambda *given: self.steps.append([]))
        for layer in model.model.layers:
            layer.mlp.gate.register_forward_hook(lambda module, args, output: self.see(output[2]))

    def see(self, ids):
        kept = ids[self.mask] if len(self.steps) == 1 else ids
        self.steps[-1].append(set(kept.flatten().tolist()))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default=ROOT / "tests/model/weights")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--save", metavar="FOLDER")
    parser.add_argument("--out", metavar="FILE.csv", help="or .jsonl, .parquet")
    arguments = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32).eval()
    tokens, mask = left_padded(PROMPTS)
    hooks = Hooks(model, mask)

    with attach(model, steps=True) as capture:
        model.generate(
            input_ids=tokens, attention_mask=mask, max_new_tokens=arguments.tokens, do_sample=False,
            pad_token_id=0,
        )  # fmt: skip
        routings = capture.take()

    samples = {
        f"request-{number}": routecap.Sample(
            routing, {"prompt_tokens": len(prompt), "steps": steps.tolist()}
        )
        for number, (routing, steps, prompt) in enumerate(zip(routings, capture.steps, PROMPTS))
    }
    table = traces.trace(samples)
    print(f"{table.rows.rows} rows of {len(samples)} requests in {len(hooks.steps)} steps")
    print("hit rates of LRU / at best, by slots of a layer")
    same = True
    for layer in table.rows.layer_map.tolist():
        steps = table.needed(layer)
        rates = experts.hit_rates(steps, SLOTS)
        figures = [f"{n}: {l:.2f} / {o:.2f}" for n, l, o in zip(SLOTS, rates.lru, rates.optimal)]
        needs = rates.needs / len(steps)
        print(f"layer {layer}: a step needs {needs:.1f} experts; " + "; ".join(figures))
        same &= [set(each.tolist()) for each in steps] == [step[layer] for step in hooks.steps]

    if arguments.save:
        routecap.save(arguments.save, samples)
    if arguments.out:
        print(f"{arguments.out}: {traces.write(arguments.out, table)} lines")
    print("as hooks on the routers saw" if same else "NOT as hooks on the routers saw")
    return int(not same)


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Says whether an engine and a trainer choose alike: the question before replay.

usage: drift.py [MODEL] [--tokens N] [--png FILE]

The engine is the small model in bfloat16, which generates. The trainer has the same weights in
float32, and runs the sequences that came out. Then its weights change by one step, the engine goes
on with the old ones for a batch, as in asynchronous training, and gets the new ones after that. The
tag of each of the engine's rows is the version of its weights, so the drift is told apart by it.
The exit status is 1 if an engine that is a step behind does not drift more.
"""

import argparse
import copy
import sys
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from routecap import analysis
from routecap_transformers import attach

ROOT = Path(__file__).resolve().parents[3]
PROMPTS = [b"int main(", b"import numpy as np\n", b"# Experts\n", b"def read(file):\n    "]


def left_padded(prompts):
    width = max(map(len, prompts))
    tokens = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    return tokens, mask


def sequences(engine, rollouts, version, tokens):
    """Generates; returns the sequences with their mask, and the engine's routings."""
    rollouts.tag = version
    ids, mask = left_padded(PROMPTS)
    out = engine.generate(
        input_ids=ids, attention_mask=mask, max_new_tokens=tokens, do_sample=True,
        eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    mask = torch.cat([mask, torch.ones(len(out), out.shape[1] - mask.shape[1], dtype=int)], 1)
    return out, mask, rollouts.take()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default=ROOT / "tests/model/weights")
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--png", metavar="FILE", help="needs matplotlib")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    trainer = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32)
    engine = copy.deepcopy(trainer).to(torch.bfloat16).eval()
    optimizer = torch.optim.SGD(trainer.parameters(), lr=0.05)

    of_engine, of_trainer = [], []
    with attach(engine) as rollouts, attach(trainer) as own:
        for batch in range(3):
            version = 0 if batch < 2 else 1  # of the engine's weights
            if batch == 2:
                engine.load_state_dict(trainer.state_dict())
            out, mask, routings = sequences(engine, rollouts, version, arguments.tokens)
            logits = trainer(input_ids=out, attention_mask=mask, use_cache=False).logits
            of_engine += routings
            of_trainer += own.take()  # before any replay: what the trainer chooses by itself
            if batch == 0:
                wanted = torch.where(mask[:, 1:].bool(), out[:, 1:], -100)
                torch.nn.functional.cross_entropy(
                    logits[:, :-1].flatten(0, 1), wanted.flatten()
                ).backward()
                optimizer.step()

    # Batch by batch: the same weights; the engine a step behind; the same weights again.
    size = len(PROMPTS)
    shares = []
    for batch, name in enumerate(("same weights", "engine a step behind", "same weights again")):
        part = slice(batch * size, (batch + 1) * size)
        found = analysis.drift(of_engine[part], of_trainer[part])
        shares.append(found.differs.sum() / found.both.sum())
        print(f"{name}: {100 * shares[-1]:.2f} % of {found.both.sum()} cells differ")
    found = analysis.drift(of_engine, of_trainer)
    print("by layer:", np.round(found.by_layer(), 4).tolist())
    by_position = list(found.by_position().values())
    half = len(by_position) // 2
    print(
        f"by position: {np.mean(by_position[:half]):.4f} in the first half,"
        f" {np.mean(by_position[half:]):.4f} in the second"
    )
    print("by version of the engine's weights:", found.by_tag())
    if arguments.png:
        from matplotlib.figure import Figure

        from routecap_tools import plot

        figure = Figure(figsize=(9, 2.6), layout="constrained")
        plot.drift(figure.subplots(), found)
        figure.savefig(arguments.png)
    return int(not shares[1] > max(shares[0], shares[2]))


if __name__ == "__main__":
    sys.exit(main())

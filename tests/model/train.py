#!/usr/bin/env python3
"""Trains the byte-level mixture-of-experts model and writes it: model.safetensors and config.json.

Needs PyTorch and NumPy; no network.

The model's matrices are always on the grid that the 8-bit files can hold, so that what is trained
is what is shipped; the optimizer moves exact copies of them. The learning rate follows the steps,
or the minutes if these would run out first.
"""

import argparse
import math
import time
from pathlib import Path

import torch
import torch.nn.functional as F

import formats
from model import Config, Model, load, on_grid
from report import entropy, measure, report
from texts import texts

PROJECT_SHARE = 0.25  # of the pieces in a batch: the rest is the far larger standard library
WARM_UP = 0.02  # of the training


def balance(probabilities, ids):
    """1 where every expert of a layer is chosen equally often, up to the number of experts where
    one takes all; mean of the layers.
    """
    experts = probabilities.shape[-1]
    load = F.one_hot(ids, experts).float().mean((1, 2, 3))
    return experts * (load * probabilities.mean((1, 2))).sum(-1).mean()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="folder for the model")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=8000)
    parser.add_argument(
        "--minutes",
        type=float,
        default=math.inf,
        help="end early, with the learning rate at zero all the same",
    )
    parser.add_argument("--batch", type=int, default=128, help="pieces in a step")
    parser.add_argument("--context", type=int, default=1024, help="bytes in a piece")
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument(
        "--balance",
        type=float,
        default=0.003,
        help="weight of the load-balancing loss; small, so that experts may specialise",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compile", action="store_true", help="use torch.compile")
    arguments = parser.parse_args()

    torch.manual_seed(arguments.seed)
    device = torch.device(arguments.device)
    sources = texts()
    held_out = b"".join(source.held_out[: 8 * arguments.context] for source in sources)
    data = [
        torch.frombuffer(bytearray(source.training), dtype=torch.uint8).to(device)
        for source in sources
    ]
    for source in sources:
        print(
            f"{source.name}: {len(source.training):,} bytes, {len(source.held_out):,} held out",
            flush=True,
        )

    def pieces(text, count):
        first = torch.randint(len(text) - arguments.context, (count, 1), device=device)
        return text[first + torch.arange(arguments.context + 1, device=device)].long()

    def loss_of(tokens):
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            logits, probabilities, ids = model(tokens[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()), balance(
            probabilities, ids
        )

    model = Model(Config(max_position_embeddings=arguments.context)).to(device)
    losses = torch.compile(loss_of) if arguments.compile else loss_of
    weights = dict(model.named_parameters())
    exact = {name: p.detach().clone().requires_grad_() for name, p in weights.items()}
    optimizer = torch.optim.AdamW(
        exact.values(), lr=arguments.rate, betas=(0.9, 0.95), weight_decay=0.01
    )

    @torch.no_grad()
    def settle():
        for name, p in weights.items():
            if formats.is_eight_bit(name):
                exact[name].clamp_(-formats.LIMIT, formats.LIMIT)
                p.copy_(on_grid(exact[name]))
            else:
                p.copy_(exact[name])

    settle()
    from_project = round(arguments.batch * PROJECT_SHARE)
    step, begin = 0, time.monotonic()
    while True:
        minutes = (time.monotonic() - begin) / 60
        progress = max(step / arguments.steps, minutes / arguments.minutes)
        if step % max(arguments.steps // 20, 1) == 0 or progress >= 1:
            bits, met = measure(model, held_out)
            entropies = " ".join(f"{e:.2f}" for e in entropy(met.sum(-1)))
            latest = f"loss {loss.item():.3f} balance {unbalance.item():.2f}, " if step else ""
            print(
                f"step {step}, {minutes:.1f} min: {latest}held out {bits:.3f} bits per byte, load"
                f" entropy {entropies}",
                flush=True,
            )
        if progress >= 1:
            break
        rate = arguments.rate * min(progress / WARM_UP, 0.5 + 0.5 * math.cos(math.pi * progress))
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss, unbalance = losses(
            torch.cat(
                (pieces(data[0], from_project), pieces(data[1], arguments.batch - from_project))
            )
        )
        (loss + arguments.balance * unbalance).backward()
        for name, p in weights.items():
            exact[name].grad, p.grad = p.grad, None
        torch.nn.utils.clip_grad_norm_(exact.values(), 1.0)
        optimizer.step()
        settle()
        step += 1

    machine = torch.cuda.get_device_name(device) if device.type == "cuda" else "a CPU"
    model.save(
        arguments.out,
        {
            "training": (
                f"{step:,} steps of {arguments.batch * arguments.context:,} bytes, {minutes:.1f}"
                f" minutes on {machine}, PyTorch {torch.__version__}, seed {arguments.seed}"
            )
        },
    )
    model, metadata = load(arguments.out)
    text = report(model.to(device), metadata, sources)
    (arguments.out / "report.md").write_text(
        "# Figures of these weights\n\nWritten by `train.py`; `report.py` measures them"
        f" again.\n\n{text}"
    )
    print(text)


if __name__ == "__main__":
    main()

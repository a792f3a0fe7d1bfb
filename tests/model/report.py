#!/usr/bin/env python3
"""Prints what the model of a folder learned: its prediction of held-out text, the load of its
experts and what each of them is chosen for.

usage: report.py FOLDER
"""

import lzma
import math
import sys

import torch
import torch.nn.functional as F

from model import load
from texts import texts

# Kinds of bytes and their members; of letters the neighbour before decides, and "other" are those
# left.
CLASSES = {
    "newline": "\n\r",
    "blank": " \t",
    "word start": "",
    "inside a word": "",
    "digit": "0123456789",
    "underscore": "_",
    "bracket": "()[]{}<>",
    "quote": "'\"`",
    "stop": ".,;:",
    "sign": "!#$%&*+-/=?@\\^|~",
    "other": "",
}


def _byte_class():
    names, table = list(CLASSES), torch.full((256,), len(CLASSES) - 1)
    for index, members in enumerate(CLASSES.values()):
        table[[ord(c) for c in members]] = index
    for c in range(256):
        if chr(c).isascii() and chr(c).isalpha():
            table[c] = names.index("inside a word")
    return table


BYTE_CLASS = _byte_class()


def classes(tokens):
    """The index in CLASSES of each byte of [batch, rows]."""
    table = BYTE_CLASS.to(tokens.device)
    kind, inside = table[tokens], list(CLASSES).index("inside a word")
    start = (kind == inside) & (F.pad(kind, (1, 0), value=-1)[:, :-1] != inside)
    return kind.masked_fill(start, list(CLASSES).index("word start"))


def measure(model, data):
    """Bits per byte of data, in pieces of the model's context, and how often
    [layers, experts, classes] met.
    """
    device, c = next(model.parameters()).device, model.c
    count = len(data) // c.max_position_embeddings
    tokens = torch.tensor(list(data[: count * c.max_position_embeddings]), device=device).view(
        count, -1
    )
    met = torch.zeros(c.num_hidden_layers, c.num_experts * len(CLASSES), device=device)
    bits = 0.0
    with torch.no_grad():
        for batch in tokens.split(8):
            logits, _, ids = model(batch)
            bits += F.cross_entropy(
                logits[:, :-1].flatten(0, 1), batch[:, 1:].flatten(), reduction="sum"
            ).item() / math.log(2)
            cell = ids * len(CLASSES) + classes(batch)[None, ..., None]
            met.scatter_add_(1, cell.flatten(1), torch.ones_like(cell.flatten(1), dtype=met.dtype))
    return (
        bits / (tokens.numel() - count),
        met.view(c.num_hidden_layers, c.num_experts, -1).double().cpu(),
    )


def entropy(counts):
    """Bits of the distribution along the last dimension."""
    p = counts / counts.sum(-1, keepdim=True).clamp_min(1)
    return -(p * p.clamp_min(1e-12).log2()).sum(-1)


def report(model, metadata, sources):
    """The report as Markdown."""
    c, lines = model.c, []
    parameters = sum(p.numel() for p in model.parameters())
    lines += [
        (
            f"{parameters:,} parameters: {c.num_hidden_layers} layers of {c.num_experts} experts,"
            f" {c.num_experts_per_tok} for each byte. Training: {metadata['training']}."
        ),
        "",
    ]
    lines += [
        "| text | bytes of training | bytes held out | xz, bits per byte | model, bits per byte |",
        "|---|---|---|---|---|",
    ]
    met = 0
    for source in sources:
        bits, met_here = measure(model, source.held_out)
        met = met + met_here
        xz = 8 * len(lzma.compress(source.held_out)) / len(source.held_out)
        lines.append(
            f"| {source.name} | {len(source.training):,} | {len(source.held_out):,} | {xz:.2f} |"
            f" {bits:.2f} |"
        )

    load, kinds = met.sum(-1), entropy(met.sum((0, 1)))
    told = kinds - (entropy(met) * load / load.sum(-1, keepdim=True)).sum(-1)
    lines += [
        "",
        (
            "On the held-out text, of each layer: the entropy of the load (all experts alike would"
            f" be {math.log2(c.num_experts):.0f} bits),"
        ),
        (
            "the busiest and the least busy expert's share of the mean, and how much one chosen"
            f" expert tells about the kind of byte (of {kinds:.2f} bits)."
        ),
        "",
        "| layer | entropy | busiest | least busy | told |",
        "|---|---|---|---|---|",
    ]
    for layer in range(c.num_hidden_layers):
        share = load[layer] / load[layer].mean()
        lines.append(
            f"| {layer} | {entropy(load[layer]):.2f} | {share.max():.2f} | {share.min():.2f} |"
            f" {told[layer]:.2f} |"
        )

    usual = met.sum((0, 1)) / met.sum()
    lines += [
        "",
        (
            "What each expert is chosen for: its share of the layer's load, then the kind of byte"
            " that is most over-represented among its"
        ),
        "rows and that kind's share of them.",
        "",
        "| expert |" + "".join(f" layer {layer} |" for layer in range(c.num_hidden_layers)),
        "|---|" + "---|" * c.num_hidden_layers,
    ]
    for expert in range(c.num_experts):
        line = f"| {expert} |"
        for layer in range(c.num_hidden_layers):
            rows = met[layer, expert]
            shares = rows / rows.sum().clamp_min(1)
            kind = int((shares - usual).argmax())
            line += (
                f" {rows.sum() / load[layer].sum():.0%} {list(CLASSES)[kind]} {shares[kind]:.0%} |"
                if rows.sum() > 0
                else " never |"
            )
        lines.append(line)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print(report(*load(sys.argv[1]), texts()), end="")

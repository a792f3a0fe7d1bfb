#!/usr/bin/env python3
"""Writes gathers.json: what small plans with holes gather, cell by cell.

README.md says what is in it.

gathers.py           writes it
gathers.py --check   says whether it is what would be written

The model makes the whole micro-batch row by row and cuts it up as lists: it shares nothing with the
library, and nothing with the model in tests/plan/plan.cc but the words of routecap/plan.h.
"""

import json
import random
import sys
from pathlib import Path

TARGET = Path(__file__).with_name("gathers.json")
LAYERS = 5  # of the decoder, all captured
VALID, PADDING, NOT_NEEDED, LOST = range(4)


def routed(sample, token, layer, column, experts):
    return (977 * sample + 31 * token + 7 * layer + column) % experts


def padded(case):
    """The rows of each sequence with its padding: a token's number, or None."""
    align = case["align"]
    width = max(-(-n // align) * align for n in case["lengths"])
    for sample, n in enumerate(case["lengths"]):
        rows = width if case["layout"] == "padded_right" else -(-n // align) * align
        yield [(sample, t if t < n else None) for t in range(rows)]


def divided(rows, case, context_rank):
    """A context rank's part of one sequence, or, packed and contiguous, of the whole."""
    size = case["context_size"]
    if case["context"] == "none":
        return rows
    if case["context"] == "contiguous":
        part = len(rows) // size
        return rows[part * context_rank : part * (context_rank + 1)]
    part = len(rows) // (2 * size)  # zigzag: one chunk from the front, and its counterpart
    behind = 2 * size - 1 - context_rank
    return rows[part * context_rank :][:part] + rows[part * behind :][:part]


def ranks(case):
    """The rows of each rank, with the ordinal of those that are filled."""
    sequences, ordinal = [], 0
    for rows in padded(case):
        sequences.append([])
        for sample, token in rows:
            filled = token is None or token >= case["needed"][sample]
            sequences[-1].append((sample, token, ordinal if filled else None))
            ordinal += filled
    if case["layout"] == "packed" and case["context"] == "contiguous":
        sequences = [[row for sequence in sequences for row in sequence]]
    for context_rank in range(case["context_size"]):
        rows = [row for sequence in sequences for row in divided(sequence, case, context_rank)]
        size = case["tensor_size"] if case["sequence_parallel"] else 1
        part = len(rows) // size
        assert part * size == len(rows)
        for tensor_rank in range(size):
            yield rows[part * tensor_rank : part * (tensor_rank + 1)]


def balanced(case, ordinal, layer, column):
    k, experts, shared = case["k"], case["experts"], case["expert_parallel"]
    a = ordinal * k + column + layer * shared * k
    if experts % shared:
        return a % experts
    return a % shared * (experts // shared) + a // shared % (experts // shared)


def cell(case, row, layer):
    """The class of a cell, and its ids."""
    sample, token, ordinal = row
    columns = range(case["k"])
    if ordinal is not None:
        kind = PADDING if token is None else NOT_NEEDED
        if case["fill"] is not None:
            return kind, [case["fill"] for _ in columns]
        return kind, [balanced(case, ordinal, layer, column) for column in columns]
    if not case["valid"][sample][token] >> layer & 1:
        return LOST, [case["lost"] for _ in columns]
    return VALID, [routed(sample, token, layer, column, case["experts"]) for column in columns]


def gathered(case):
    for rows in ranks(case):
        order = [(row, layer) for row in rows for layer in case["layers"]]
        if case["order"] == "layer_major":
            order = [(row, layer) for layer in case["layers"] for row in rows]
        cells = [cell(case, row, layer) for row, layer in order]
        yield {
            "ids": [number for _, ids in cells for number in ids],
            "classes": [kind for kind, _ in cells],
            "cells_lost": sum(kind == LOST for kind, _ in cells),
        }


def cases():
    plain = {
        "lengths": [7, 1, 4], "layers": [1, 3], "k": 2, "experts": 12, "expert_parallel": 1, "layout": "packed", "context": "none",
        "context_size": 1, "tensor_size": 1, "sequence_parallel": False, "align": 1, "order": "layer_major", "fill": None, "lost": -1,
    }  # fmt: skip
    changes = [
        {},
        {"align": 4, "order": "row_major", "expert_parallel": 4},
        {"align": 4, "expert_parallel": 5, "layers": [0, 2, 4]},  # which do not divide the experts
        {"align": 4, "context": "zigzag", "context_size": 2, "fill": -3, "lost": -7},
        {"align": 4, "context": "contiguous", "context_size": 2, "needed": [3, 0, 2]},
        {
            "align": 8,
            "context": "zigzag",
            "context_size": 2,
            "tensor_size": 2,
            "sequence_parallel": True,
            "needed": [6, 0, 1],
            "expert_parallel": 3,
        },
        {"layout": "padded_right", "align": 4, "order": "row_major", "k": 3, "expert_parallel": 6},
        {"layout": "padded_right", "align": 4, "context": "zigzag", "context_size": 2, "fill": 0},
        {"layout": "padded_right", "align": 4, "context": "contiguous", "context_size": 2},
        {
            "lengths": [2, 9],
            "experts": 200,
            "k": 4,
            "layers": [4],
            "align": 3,
            "expert_parallel": 8,
            "tensor_size": 3,
            "sequence_parallel": True,
        },
    ]
    draw = random.Random(1)
    for change in changes:
        case = plain | change
        case.setdefault("needed", [n - 1 for n in case["lengths"]])
        whole = (1 << LAYERS) - 1
        case["valid"] = [
            [draw.choice([whole, whole, whole, whole ^ 2, whole ^ 24, 0]) for _ in range(n - 1)]
            for n in case["lengths"]
        ]
        yield case | {"ranks": list(gathered(case))}


def main(arguments):
    text = "[\n" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases()) + "\n]\n"
    if arguments == ["--check"]:
        return int(TARGET.read_text() != text)
    TARGET.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

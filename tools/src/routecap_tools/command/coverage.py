"""Say which experts a calibration set leaves out: their tokens, layer by layer.

FILE is as in `routecap show`; each routing is one text. For every layer the table has how many
experts got no token, at most 10 and at most 100, the fewest tokens of an expert, and how many more
texts like these until each expert has --tokens.

The exit status is 1 if an expert has fewer than --tokens.
"""

import argparse
import json

import numpy as np
from routecap import experts
from routecap.adapter import alike, layer_names

from .show import read
from .terminal import Terminal
from .wire import add_hints, hint_of

_LEVELS = (0, 10, 100)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", metavar="FILE", nargs="+", help="routings; see above")
    parser.add_argument(
        "--tokens",
        type=int,
        default=1,
        metavar="N",
        help="how many tokens each expert should have; default %(default)s",
    )
    parser.add_argument(
        "--json", action="store_true", help="print everything as one JSON object instead"
    )
    parser.add_argument(
        "--png", metavar="OUT", help="write a picture: .png, .svg or .pdf (needs matplotlib)"
    )
    add_hints(parser)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    samples = read(arguments.files, terminal, hint_of(arguments))
    found = [
        experts.usage([sample.routing for sample in group.values()]) for group in alike(samples)
    ]
    if arguments.png:
        from matplotlib.figure import Figure

        from ..plot import usage

        figure = Figure(figsize=(7, 2 + 2.5 * len(found)), layout="constrained")
        for axes, used in zip(figure.subplots(len(found), squeeze=False)[:, 0], found):
            usage(axes, used, _LEVELS)
        figure.savefig(arguments.png)
    if arguments.json:
        print(json.dumps([_described(used, arguments.tokens) for used in found]))
    else:
        for used in found:
            _show(used, arguments.tokens, terminal)
    return int(any(bool(used.at_most(arguments.tokens - 1).any()) for used in found))


def _described(used: experts.Usage, tokens: int) -> dict[str, object]:
    more = used.more_texts(tokens)
    return {
        "texts": used.texts,
        "missing_cells": used.missing,
        "layers": used.layer_map.tolist(),
        "visits": used.layer_visit.tolist(),
        "tokens": [
            row[:count].tolist() for row, count in zip(used.tokens, used.layer_experts.tolist())
        ],
        "at_most": {level: used.at_most(level).sum(axis=1).tolist() for level in _LEVELS},
        "more_texts": [_number(np.nanmax(row)) for row in more],
    }


def _number(value: float) -> int | None:
    return int(value) if np.isfinite(value) else None


def _show(used: experts.Usage, tokens: int, terminal: Terminal) -> None:
    terminal.title(
        f"{used.texts} texts, {int(used.tokens.sum()):,} choices of experts"
        + (f", {used.missing:,} missing cells counted nowhere" if used.missing else "")
    )
    below = [used.at_most(level).sum(axis=1) for level in _LEVELS]
    fewest = np.where(used.exists, used.tokens, np.iinfo(np.int64).max).min(axis=1)
    more = np.nanmax(used.more_texts(tokens), axis=1)
    names = layer_names(used.layer_map, used.layer_visit)
    columns = ("layer", "experts", "no token", "at most 10", "at most 100", "fewest")
    rows = [
        (
            layer,
            str(used.layer_experts[number]),
            *(str(level[number]) for level in below),
            str(fewest[number]),
            f"{int(more[number])}" if np.isfinite(more[number]) else "unknown",
        )
        for number, layer in enumerate(names)
    ]
    terminal.table((*columns, f"more texts for {tokens}"), rows)
    silent = used.at_most(0)
    for number in np.flatnonzero(silent.any(axis=1))[:8]:
        ids = np.flatnonzero(silent[number])
        shown = ", ".join(map(str, ids[:16])) + (f" and {len(ids) - 16} more" * (len(ids) > 16))
        terminal.line(f"  layer {names[number]}, no token: expert {shown}", "yellow")

"""Say what a cache of experts would do for these requests, and export them as one table.

FILE is as in `routecap show`. An engine that keeps most experts in slower memory loads those that a
step needs. For every layer the table has how many experts a step needs on average, and the share of
these that a cache of so many slots has: with LRU, and at best (Belady).

Which step computed a row is read from FILE.json ("steps", by position), or from the rows' tags with
--steps tags. A single request without either is taken as generated alone: each row is a step.
"""

import argparse

import numpy as np
from numpy.typing import NDArray
from routecap import ArgumentError, Status, experts

from ..traces import ENDINGS, trace, write
from .show import read
from .terminal import Terminal
from .wire import add_hints, hint_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", metavar="FILE", nargs="+", help="routings; see above")
    parser.add_argument(
        "--slots",
        type=int,
        nargs="+",
        default=(4, 8, 12),
        metavar="N",
        help="sizes of the cache: experts of each layer that it holds; default 4 8 12",
    )
    parser.add_argument(
        "--steps", choices=["tags"], help="the tag of each row is the step that computed it"
    )
    parser.add_argument(
        "--out",
        metavar="OUT",
        help=f"write all rows as a table, {' or '.join(ENDINGS)}: a line for each cell, with its"
        " request, position, phase, step, tag, layer and experts",
    )
    parser.add_argument(
        "--png", metavar="PNG", help="write a picture: .png, .svg or .pdf (needs matplotlib)"
    )
    add_hints(parser)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    samples = read(arguments.files, terminal, hint_of(arguments))
    table = trace(samples, arguments.steps)
    if arguments.out:
        count = write(arguments.out, table, progress=terminal.track)
        terminal.line(f"wrote {arguments.out}: {count:,} lines")
    if min(arguments.slots) < 1:
        raise ArgumentError(
            Status.ERR_ARGUMENT, f"slots is {min(arguments.slots)}: give sizes of 1 and more"
        )
    known = np.unique(table.step[table.step >= 0])
    terminal.title(
        f"{len(samples)} requests, {table.rows.rows:,} rows, "
        + (f"{len(known):,} steps" if len(known) else "each a step of its own")
    )
    layers = table.rows.layer_map.tolist()
    needed = {layer: table.needed(layer) for layer in layers}
    columns = ["layer", "experts", "a step needs"]
    columns += [f"{kind} {size}" for size in arguments.slots for kind in ("LRU", "best")]
    terminal.table(
        columns,
        [
            (str(layer), str(count), *_line(needed[layer], arguments.slots))
            for layer, count in zip(layers, table.rows.layer_experts.tolist())
        ],
    )
    if arguments.png:
        from matplotlib.figure import Figure

        from ..plot import caches

        high = -(-len(layers) // 3)
        figure = Figure(figsize=(12, 3 * high), layout="constrained")
        for axes in figure.subplots(high, min(len(layers), 3), squeeze=False).ravel():
            if not layers:
                axes.set_axis_off()
                continue
            layer = layers.pop(0)
            caches(axes, needed[layer], int(table.rows.experts))
            axes.set_title(f"layer {layer}", fontsize=9)
        figure.savefig(arguments.png)
    return 0


def _line(needed: list[NDArray[np.int64]], slots: list[int]) -> list[str]:
    rates = experts.hit_rates(needed, slots)
    mean = rates.needs / len(needed) if needed else np.nan
    pairs = zip(rates.lru.tolist(), rates.optimal.tolist())
    return [f"{mean:.1f}", *(f"{100 * each:.1f} %" for pair in pairs for each in pair)]

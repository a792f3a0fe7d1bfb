"""Show routings: their rows, missing cells, and the load of the experts.

FILE is FILE.routecap, a folder of such files, FILE.tar, FILE.safetensors, or a message as a server
sent it (such as FILE.npy, with --experts). More than four routings are listed in a table, one line
each.

If there is a FILE.json beside FILE, it says more about the request, above all the text of its
tokens: {"tokens": ["The", " cat", ...], "prompt_tokens": 7}.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from routecap import ArgumentError, Missing, Provenance, Routing, Sample, Status, load
from routecap.adapter import alike, experts_per_token, layer_names, layer_of, token_texts
from routecap.analysis import Balance, balance, expert_load, facts, reason_words, there

from .terminal import Terminal, printable
from .wire import add_hints, hint_of

_MANY = 4  # routings: more are listed in a table, a line each
_BLOCKS = 8  # of missing cells that are named, unless all are asked for


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", metavar="FILE", nargs="+", help="routings; see above")
    parser.add_argument(
        "--layer",
        type=int,
        metavar="L",
        help="show the experts of this layer, token by token; L counts all layers of the model",
    )
    parser.add_argument(
        "--missing",
        action="store_true",
        help=f"list all blocks of missing cells, not only the first {_BLOCKS}",
    )
    parser.add_argument(
        "--json", action="store_true", help="print everything as one JSON object instead"
    )
    parser.add_argument(
        "--png",
        metavar="OUT",
        help="write a picture: .png, .svg or .pdf (needs matplotlib)",
    )
    parser.add_argument("--html", metavar="OUT", help="write a page for any browser, in one file")
    add_hints(parser)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    samples = read(arguments.files, terminal, hint_of(arguments))
    if arguments.png:
        from ..plot import overview

        overview(samples, arguments.layer).savefig(arguments.png)
    if arguments.html:
        from ..page import page

        Path(arguments.html).write_text(
            page(samples, arguments.layer, progress=terminal.track), encoding="utf-8"
        )
    if arguments.json:
        print(json.dumps({name: _described(sample.routing) for name, sample in samples.items()}))
    else:
        if len(samples) > _MANY:
            _list(samples, terminal)
        for name, sample in samples.items():
            if len(samples) <= _MANY or arguments.missing and not sample.routing.complete:
                _show(name, sample.routing, arguments.missing, terminal)
        for group in alike(samples):
            _show_load([sample.routing for sample in group.values()], terminal)
        if arguments.layer is not None:
            for name, sample in samples.items():
                _show_tokens(name, sample, arguments.layer, terminal)
    for path, what in ((arguments.png, "a picture"), (arguments.html, "a page for any browser")):
        if path:
            count = f"{len(samples)} routing{'s' * (len(samples) != 1)}"
            said = printable(f"wrote {path}: {what} of {count}, {os.path.getsize(path):,} bytes")
            print(said, file=sys.stderr if arguments.json else sys.stdout)
    return 0


def read(files: list[str], terminal: Terminal, wire: Any = None) -> dict[str, Sample]:
    """The samples of all files, each under its own name, or with that of its file where two have
    the same.
    """
    samples: dict[str, Sample] = {}
    for file in terminal.track(files):
        for name, sample in load(file, wire=wire).items():
            samples[f"{file}:{name}" if name in samples else name] = sample
    if not samples:
        raise ArgumentError(
            Status.ERR_ARGUMENT,
            f"no routing in {', '.join(files)}: name files, folders or archives that have"
            " NAME.routecap in them",
        )
    return samples


def _layers(routing: Routing, first: int, count: int) -> str:
    numbers = layer_names(routing.layer_map, routing.layer_visit)[first : first + count]
    return f"layer {numbers[0]}" if count == 1 else f"layers {numbers[0]} to {numbers[-1]}"


def _list(samples: dict[str, Sample], terminal: Terminal) -> None:
    """A line for each routing, and one for all."""
    rows = [(name, *_line(sample.routing)) for name, sample in samples.items()]
    columns = ("<request", "first", "rows", "layers", "experts", "there", "tags", "<missing cells")
    terminal.table(columns, rows)
    routings = [sample.routing for sample in samples.values()]
    complete = sum(routing.complete for routing in routings)
    terminal.line()
    terminal.line(
        f"{len(routings)} routings of {sum(routing.rows for routing in routings)} rows, {complete}"
        " of them complete",
        "" if complete == len(routings) else "yellow",
    )


def _line(routing: Routing) -> tuple[str, ...]:
    tags = np.unique(routing.tags)
    cells: dict[str, int] = {}
    for block in routing.missing:
        reason = reason_words(block["reason"])
        cells[reason] = cells.get(reason, 0) + int(block["rows"]) * int(block["layers"])
    return (
        str(routing.first),
        str(routing.rows),
        str(routing.layers),
        f"{experts_per_token(routing.layer_k, routing.layer_min_k)} of {routing.experts}",
        there(routing) if routing.rows else "-",
        "-".join(map(str, dict.fromkeys(tags[[0, -1]].tolist()))) if tags.any() else "-",
        ", ".join(f"{count} {reason}" for reason, count in cells.items()),
    )


def _show(name: str, routing: Routing, every_block: bool, terminal: Terminal) -> None:
    terminal.title(name)
    terminal.line("  " + ", ".join(facts(routing)))
    blocks = routing.missing
    for block in blocks if every_block else blocks[:_BLOCKS]:
        first, last = int(block["first"]), int(block["first"]) + int(block["rows"]) - 1
        where = _layers(routing, int(block["first_layer"]), int(block["layers"]))
        terminal.line(
            f"  missing: rows {first} to {last} of {where}: {reason_words(block['reason'])}",
            "yellow",
        )
    if len(blocks) > _BLOCKS and not every_block:
        terminal.line(f"  and {len(blocks) - _BLOCKS} more (--missing names them)", "yellow")


def _show_load(routings: list[Routing], terminal: Terminal) -> None:
    like, load = routings[0], expert_load(routings)
    labels = layer_names(like.layer_map, like.layer_visit)
    figures = balance(load, like.layer_experts)
    terminal.line()
    terminal.title(
        "Load of the experts"
        + (f", {len(routings)} routings together" if len(routings) > 1 else "")
    )
    tokens = sum(each.mask().sum(axis=0) for each in routings)
    rows = []
    for layer, (active, busiest, *numbers) in enumerate(zip(*figures)):
        counts = labels[layer], str(tokens[layer]), f"{active} of {like.layer_experts[layer]}"
        rows.append(
            (
                *counts,
                str(busiest) if tokens[layer] else "-",
                *(f"{number:.3f}" if tokens[layer] else "-" for number in numbers),
            )
        )
    terminal.table(
        ("layer", "tokens", "active", "busiest", "entropy", "max/mean", "variation", "gini"), rows
    )
    terminal.line()
    terminal.heat(labels, load)


def _show_tokens(name: str, sample: Sample, decoder_layer: int, terminal: Terminal) -> None:
    """The tokens, each on the colour of its first expert; where there are no colours, with the ids
    of all its experts.
    """
    layer = layer_of(sample.routing, decoder_layer)
    ids, valid = sample.routing.masked(np.int16, fill=-1, first_layer=layer, layers=1)
    cells = [row[0][row[0] >= 0].tolist() for row in ids]
    texts = token_texts(sample)
    terminal.line()
    terminal.title(f"{name}, layer {decoder_layer}")
    if terminal.colours:
        shown = texts or [
            f" {experts[0]} " if experts else " - " if present else " . "
            for experts, present in zip(cells, valid)
        ]
        first = [experts[0] if experts else -1 for experts in cells]
        terminal.tokens(shown, [each if there else None for each, there in zip(first, valid[:, 0])])
        return
    rows = []
    for row, (experts, present) in enumerate(zip(cells, valid)):
        chosen = (" ".join(map(str, experts)) or "none") if present else "-"
        rows.append(
            (
                str(sample.routing.first + row),
                chosen,
                *([json.dumps(texts[row], ensure_ascii=False)] if texts else []),
            )
        )
    terminal.table(("row", "<experts", *(["<token"] if texts else [])), rows)


def _described(routing: Routing) -> dict[str, Any]:
    load = expert_load(routing)
    return {
        "first": routing.first,
        "rows": routing.rows,
        "k": routing.k,
        "id_space": routing.id_space.name.lower(),
        "coverage": routing.coverage()._asdict(),
        "missing": [
            {name: int(block[name]) for name in ("first", "rows", "first_layer", "layers")}
            | {"reason": Missing(block["reason"]).name.lower()}
            for block in routing.missing
        ],
        "layers": [
            {
                "layer": int(routing.layer_map[layer]),
                "visit": int(routing.layer_visit[layer]),
                "k": int(routing.layer_k[layer]),
                "min_k": int(routing.layer_min_k[layer]),
                "experts": int(routing.layer_experts[layer]),
                "provenance": Provenance(routing.layer_provenance[layer]).name.lower(),
                **{
                    name: None if value != value else value
                    for name, value in zip(Balance._fields, figures)
                },
                "load": load[layer, : routing.layer_experts[layer]].tolist(),
            }
            for layer, figures in enumerate(
                zip(*(column.tolist() for column in balance(load, routing.layer_experts)))
            )
        ],
    }

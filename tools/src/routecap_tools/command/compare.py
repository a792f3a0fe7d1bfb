"""Compare routings cell by cell.

A and B are each FILE.routecap, a folder of such files, FILE.tar or FILE.safetensors. If A and B are
files of one routing each, these two are compared. Otherwise routings with the same name are.

Two routings are the same if they have the same rows and layers, and in each cell the same set of
experts or both none. With --ordered the experts must also be in the same order.

Exit status: 0 if all are the same; 1 if some differ; 2 for an error.
"""

import argparse
import json
from typing import Any

import numpy as np
from routecap import Routing, load
from routecap.adapter import layer_names
from routecap.analysis import Difference, difference

from .terminal import Terminal
from .wire import add_hints, hint_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("first", metavar="A", help="first file or folder")
    parser.add_argument("second", metavar="B", help="second file or folder")
    parser.add_argument(
        "--ordered", action="store_true", help="also compare the order of the experts in each cell"
    )
    parser.add_argument(
        "--json", action="store_true", help="print everything as one JSON object instead"
    )
    add_hints(parser)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    first = {
        name: sample.routing
        for name, sample in load(
            arguments.first, progress=terminal.track, wire=hint_of(arguments)
        ).items()
    }
    second = {
        name: sample.routing
        for name, sample in load(
            arguments.second, progress=terminal.track, wire=hint_of(arguments)
        ).items()
    }
    if len(first) == 1 and len(second) == 1:
        [name] = first
        second = {name: each for each in second.values()}
    alone = {
        path: sorted(set(ours) - set(theirs))
        for path, ours, theirs in (
            (arguments.first, first, second),
            (arguments.second, second, first),
        )
    }
    found = {
        name: _compare(routing, second[name], arguments.ordered)
        for name, routing in first.items()
        if name in second
    }
    same = not any(alone.values()) and all(each["same"] for each in found.values())
    if arguments.json:
        print(json.dumps({"same": same, "only_in": alone, "routings": found}))
        return 0 if same else 1
    for path, names in alone.items():
        for name in names:
            terminal.line(f"only in {path}: {name}", "yellow")
    for name, each in found.items():
        _print(name, each, terminal)
    return 0 if same else 1


def _compare(first: Routing, second: Routing, ordered: bool) -> dict[str, Any]:
    shapes = {
        what: (ours, theirs)
        for what, ours, theirs in (
            (
                "positions",
                [first.first, first.first + first.rows],
                [second.first, second.first + second.rows],
            ),
            ("layers", _names(first), _names(second)),
            ("experts", first.layer_experts.tolist(), second.layer_experts.tolist()),
            ("k", _per_token(first), _per_token(second)),
            ("id_space", first.id_space.name.lower(), second.id_space.name.lower()),
        )
        if ours != theirs
    }
    cells = difference(first, second) if first.k == second.k else None
    layers = (
        []
        if cells is None
        else [
            dict(zip(Difference._fields, layer))
            for layer in zip(*(column.tolist() for column in cells))
        ]
    )
    counted = ("sets", "only_first", "only_second", *(["ordered"] if ordered else []))
    return {
        "same": not shapes and not any(layer[count] for layer in layers for count in counted),
        "shapes": shapes,
        "layers": layers,
    }


def _names(routing: Routing) -> list[str]:
    return layer_names(routing.layer_map, routing.layer_visit)


def _per_token(routing: Routing) -> int | list[list[int]]:
    """How many experts a token gets: k, or of each layer the fewest and the most."""
    if (routing.layer_min_k == routing.k).all():
        return routing.k
    each: list[list[int]] = np.stack([routing.layer_min_k, routing.layer_k], axis=1).tolist()
    return each


def _print(name: str, found: dict[str, Any], terminal: Terminal) -> None:
    differ = sum(layer["sets"] for layer in found["layers"])
    cells = sum(layer["cells"] for layer in found["layers"])
    terminal.title(f"{name}: {'the same' if found['same'] else 'different'}")
    for what, (ours, theirs) in found["shapes"].items():
        terminal.line(f"  {what}: {ours} and {theirs}", "yellow")
    if not found["layers"]:
        return
    terminal.line(f"  {_share(differ, cells)} of {cells} cells that both have differ as sets")
    rows = []
    for layer in found["layers"]:
        overlap = f"{layer['common'] / layer['ids']:.4f}" if layer["ids"] else "-"
        counts = (str(layer[count]) for count in ("only_first", "only_second"))
        of = layer["cells"]
        rows.append(
            (
                *layer_names([layer["layer_map"]], [layer["layer_visit"]]),
                str(of),
                _share(layer["ordered"], of),
                _share(layer["sets"], of),
                overlap,
                *counts,
            )
        )
    terminal.table(
        ("layer", "cells", "ids differ", "sets differ", "ids in common", "only A", "only B"), rows
    )


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.3g} %" if whole else "-"

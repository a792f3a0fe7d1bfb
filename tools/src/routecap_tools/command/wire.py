"""What a command line says of files whose format does not say it: messages of the wire."""

import argparse
import re
from typing import Any

from routecap import WireFact, WireOptions
from routecap.adapter import wire_fact

_HINTS = {
    "experts": "experts of a layer (ids are below this number); required",
    "layers": "captured layers, if the file does not say how many, or has other layers too",
    "columns": "length of the layer axis, if the file does not say it",
    "k": "experts per token, if the file does not say it",
    "first": "position of the first row",
    "rows": "how many rows there must be: S-1 for S tokens",
}


_UNJUDGED = ("experts", "columns", "k", "first")
"""Hints about the array of ids itself. The others say which of its cells are routing."""


def add_hints(parser: argparse.ArgumentParser, judged: bool = True) -> None:
    group = parser.add_argument_group(
        "wire formats",
        "FILE.npy, .npy.b64 (vLLM), .b64 (SGLang), .routes.json, .nrlre1 (NeMo-RL), .lists.json"
        " (Megatron)",
    )
    for name in _HINTS if judged else _UNJUDGED:
        text = _HINTS[name] if judged else _HINTS[name].removesuffix("; required")
        group.add_argument(f"--{name}", dest=f"wire_{name}", type=int, metavar="N", help=text)
    group.add_argument(
        "--dtype",
        dest="wire_dtype",
        metavar="TYPE",
        help="type of the ids, if the file does not say it, such as int32",
    )
    group.add_argument(
        "--budget",
        dest="wire_budget_bytes",
        type=int,
        metavar="BYTES",
        help="the most memory that decoding a file may take"
        if judged
        else "the most memory for the arrays of a .npz; default 1 GiB",
    )
    if not judged:
        return
    group.add_argument(
        "--layer-map",
        dest="wire_layer_map",
        metavar="LIST",
        type=_layers,
        help="which layers of the model are captured: 1-60, or 1,3,5",
    )


def hint_of(arguments: argparse.Namespace) -> Any:
    given = {
        name: getattr(arguments, f"wire_{name}", None)
        for name in (*_HINTS, "dtype", "layer_map", "budget_bytes")
    }
    return {name: value for name, value in given.items() if value is not None}


def in_options(text: str) -> str:
    """A text of the library, which speaks of a message's hint, in the words of a command line."""
    text = text.replace("hint.budget_bytes", "--budget").replace("hint.layer_map", "--layer-map")
    text = text.replace("hint.experts is 0, not in", "--experts is not given: give one in")
    text = re.sub(rf"\bhint\.({'|'.join(_HINTS)}|dtype)\b", r"--\1", text)
    text = text.replace("do not say k; the hint must", "do not say k: give --k")
    text = text.replace("there are; the hint must", "there are: give --columns or --layers")
    text = re.sub(r"(\w+) (\d+), the hint (\d+)$", r"\1 \2, and --\1 is \3", text)
    text = re.sub(r"columns, the hint (\d+) layers", r"columns, and --layers is \1", text)
    return text.replace("than the hint", "than the options say")


def add_options(parser: argparse.ArgumentParser) -> None:
    facts = ", ".join(fact.name.lower() for fact in WireFact if fact.name)
    parser.add_argument(
        "--allow",
        metavar="FACTS",
        default="",
        help=f"what may be lost in OUT, separated by commas: {facts}",
    )
    parser.add_argument(
        "--out-dtype",
        metavar="TYPE",
        help="type of the ids in OUT, if OUT is in a format of servers",
    )
    parser.add_argument(
        "--out-columns",
        type=int,
        metavar="N",
        help="write all N layers of the model to OUT; layers that were not captured are zeros",
    )


def options_of(arguments: argparse.Namespace) -> WireOptions:
    allow = [wire_fact(fact) for fact in arguments.allow.split(",") if fact]
    return {"allow": allow, "dtype": arguments.out_dtype, "columns": arguments.out_columns}


_MOST_LAYERS = 65536  # of a model's decoder: a number above is a slip, and would be memory


def _layers(text: str) -> list[int]:
    layers: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        several = range(int(first), int(last or first) + 1)
        if several.stop > _MOST_LAYERS:
            raise argparse.ArgumentTypeError(f"{text!r}: give layers below {_MOST_LAYERS}")
        layers += several
    return layers

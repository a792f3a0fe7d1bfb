"""What notebooks show of each of the package's objects: `shown`.

One card of its own colours, which is read on any theme, with figures and, of routings, the load of
the experts as a picture.
"""

import zlib
from base64 import b64encode
from collections.abc import Iterable, Sequence
from functools import singledispatch
from html import escape
from struct import pack
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import colours
from ._capturer import Capturer
from ._constants import Status
from ._counts import Stats, StoreStats
from ._layers import layer_names
from ._load import Load
from ._message import WireReport
from ._plan import Plan
from ._routing import Routing
from ._routings import Routings
from ._samples import Sample
from ._sequence import Sequence as Conversation
from .analysis import balance, expert_load, facts, reason_words

_ROWS = 16384  # of which the load is counted: more would keep a notebook waiting
_SHOWN = 8  # lines of a table
_CARD = (
    "display:inline-block;max-width:100%;box-sizing:border-box;padding:10px 14px;margin:2px 0;"
    "border:1px solid #e4e1d9;border-radius:8px;background:#fffefb;color:#23222b;"
    "font:13px/1.45 system-ui,sans-serif"
)
_SOFT = "color:#6d6b78"
_CELL = "padding:1px 14px 1px 0;background:#fffefb;color:#23222b;border:0"


@singledispatch
def shown(of: object) -> str:
    """The HTML of an object. Each class that has some is registered below."""
    raise NotImplementedError(type(of))


def card(title: str, *parts: str) -> str:
    """A card: `title` is text, the parts are HTML."""
    inner = "".join(f'<div style="margin-top:6px">{part}</div>' for part in parts if part)
    return f'<div style="{_CARD}"><b>{escape(title)}</b>{inner}</div>'


def line(texts: Iterable[str]) -> str:
    return " · ".join(escape(text) for text in texts)


def table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], count: int | None = None
) -> str:
    """The first of `count` rows, or of all given; the last line says how many more there are."""
    head = "".join(
        f'<th style="{_CELL};{_SOFT};text-align:left;font-weight:400">{escape(name)}</th>'
        for name in columns
    )
    body = "".join("<tr>" + "".join(_cell(each) for each in row) + "</tr>" for row in rows[:_SHOWN])
    more = (len(rows) if count is None else count) - _SHOWN
    rest = f'<div style="{_SOFT}">and {more:,} more</div>' if more > 0 else ""
    return (
        "<table"
        f' style="border-collapse:collapse;margin:0;font:inherit"><tr>{head}</tr>{body}</table>{rest}'
    )


def _cell(value: object) -> str:
    number = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    text = f"{value:,d}" if number else str(value)
    return f'<td style="{_CELL};text-align:{"right" if number else "left"}">{escape(text)}</td>'


def counters(title: str, values: dict[str, Any]) -> str:
    """Those that are not 0, by their names."""
    rows = [(name.replace("_", " "), value) for name, value in values.items() if value]
    shown = [rows[start : start + _SHOWN] for start in range(0, len(rows), _SHOWN)]
    tables = "".join(
        f'<div style="display:inline-block;vertical-align:top">{table(("", ""), part)}</div>'
        for part in shown
    )
    zeros = len(values) - len(rows)
    return card(title, tables, f'<span style="{_SOFT}">{zeros} more are 0</span>' if zeros else "")


@shown.register
def _(of: Capturer) -> str:
    title = repr(of)[1:-1]
    return card(title) if of.closed else counters(title, of.stats()._asdict())


@shown.register
def _(of: Stats) -> str:
    return counters("Counters of a capturer", of._asdict())


@shown.register
def _(of: StoreStats) -> str:
    return counters("Counters of a store", of._asdict())


@shown.register
def _(of: WireReport) -> str:
    return counters("Report of a message", of._asdict())


@shown.register
def _(of: Plan) -> str:
    names = "rows", "rows_needed", "rows_not_needed", "rows_padding", "ids_bytes", "packed_bytes"
    return counters(repr(of), {name: of._shape[name] for name in names})


@shown.register
def _(of: Load) -> str:
    rows = f"{of.rows_prefill:,} rows of prefill", f"{of.rows_decode:,} of decode"
    names = layer_names(of.layer_map, of.layer_visit)
    image = picture(of.total, names, of.layer_experts)
    return card(f"Load of {of.steps:,} steps", line(rows), image)


@shown.register
def _(of: Routings) -> str:
    requests, statuses = of._requests.tolist(), of.statuses.tolist()
    rows = [
        (item, f"{request:#x}", str(Status(status)))
        for item, (request, status) in enumerate(zip(requests, statuses))
    ]
    return card(f"{len(of)} routings", table(("item", "request", "status"), rows))


@shown.register
def _(of: Sample) -> str:
    return routing(of.routing, f"Sample: routing, {', '.join(of.info) or 'no info'}")


@shown.register
def routing(of: Routing, title: str = "Routing") -> str:
    """What is there, what is missing, and the load of the experts in each layer."""
    if of.freed:
        return card(title, "freed")
    if not of.ready:
        return card(title, "pending: its last step has not landed; <code>wait()</code> for it")
    return card(title, line(facts(of)), _missing(of), _load(of))


def _missing(of: Routing) -> str:
    if of.complete:
        return ""
    blocks, rows, names = of.missing, [], layer_names(of.layer_map, of.layer_visit)
    for block in blocks[:_SHOWN]:
        first, first_layer = int(block["first"]), int(block["first_layer"])
        last, last_layer = first + int(block["rows"]) - 1, first_layer + int(block["layers"]) - 1
        layers = names[first_layer], names[last_layer]
        why = reason_words(block["reason"])
        rows.append((f"{first} to {last}", f"{layers[0]} to {layers[1]}", why))
    return table(("rows missing", "in layers", "because"), rows, len(blocks))


def _load(of: Routing) -> str:
    counted = of[:_ROWS]
    some = f", of the first {_ROWS:,} rows" if counted.rows < of.rows else ""
    names = layer_names(of.layer_map, of.layer_visit)
    return picture(expert_load(counted), names, of.layer_experts, some)


def picture(load: Any, names: Sequence[str], layer_experts: ArrayLike, of: str = "") -> str:
    """The load [layers, experts], and who is the busiest. names: of the layers. of: what it is the
    load of, in words.
    """
    if not load.any():
        return ""
    layers, experts = load.shape
    figures = balance(load, layer_experts)
    worst = int(np.nanargmax(figures.peak))
    about = [
        f"load of {experts} experts in {layers} layers{of}",
        (
            f"busiest: {figures.peak[worst]:.2f} means, expert {figures.busiest[worst]} in layer "
            f"{names[worst]}"
        ),
        f"entropy {np.nanmean(figures.entropy):.3f}",
    ]
    wide, high = max(1, 560 // experts), min(10, max(3, 240 // layers))
    data = b64encode(_png(load)).decode()
    return (
        f'<img alt="{escape(about[0])}" src="data:image/png;base64,{data}" style="display:block;'
        f"image-rendering:pixelated;width:{wide * experts}px;max-width:100%;"
        f'height:{high * layers}px;border:1px solid #e4e1d9"><span style="{_SOFT}">'
        f"{line(about)}</span>"
    )


def _png(load: NDArray[np.int64]) -> bytes:
    """A picture with one pixel for each layer and expert, as deep as the load in means is high.

    Written here: the package needs NumPy alone, and a library of pictures is larger than all of it.
    """
    means = load / np.maximum(load.mean(axis=1, keepdims=True), 1e-9)
    ramp = colours.ramp(False)
    most = float(means.max(initial=1))
    places = ((means / most) ** colours.exponent(most) * (len(ramp) - 1)).astype(np.uint8)
    lines = np.pad(places, ((0, 0), (1, 0)))  # each line begins with its filter: 0, none
    height, width = load.shape

    def chunk(name: bytes, data: bytes) -> bytes:
        return pack(">I", len(data)) + name + data + pack(">I", zlib.crc32(name + data))

    header = pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)  # 8 bits, by a palette
    palette = b"".join(bytes(step) for step in ramp)
    parts = [(b"IHDR", header), (b"PLTE", palette), (b"IDAT", zlib.compress(lines.tobytes()))]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in [*parts, (b"IEND", b"")])


@shown.register
def _(of: Conversation) -> str:
    """Its routing, and which rows came from which call."""
    report = of.report()
    title = f"Sequence of {report.tokens:,} tokens"
    rows = [
        (span.call, f"{span.first} to {span.first + span.rows - 1}", span.tag, span.origin)
        for span in of.spans()
    ]
    calls = table(("call", "rows", "tag", "origin"), rows) if rows else ""
    with of.routing() as whole:
        return card(title, line(facts(whole)), calls, _missing(whole), _load(whole))

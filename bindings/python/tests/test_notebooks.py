"""What notebooks show: HTML that is well-formed, says what is there, and lets no text break out."""

import re
import zlib
from base64 import b64decode
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
import routecap
from routecap_testing.helpers import EXPERTS, K, LAYERS, expected_ids
from routecap import analysis


class Text(HTMLParser):
    """The text of HTML, whose elements must be closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[str] = []
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag != "img":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.found.append(data)


def text_of(shown: Any) -> str:
    html: str = shown._repr_html_()
    assert "<script" not in html and not re.search(r"https?://|url\(", html)
    return " ".join(Text(html).found)


def test_a_routing_shows_what_is_there_and_why_the_rest_is_not(holey: routecap.Routing) -> None:
    holey.wait()
    text = text_of(holey)
    for fact in analysis.facts(holey):
        assert fact in text
    for block in holey.missing:
        last = block["first"] + block["rows"] - 1
        assert f"{block['first']} to {last}" in text
    assert "absent" in text and "unwritten" in text


def test_of_many_blocks_of_missing_cells_the_first_are_shown_and_all_are_counted() -> None:
    valid = np.ones((60, LAYERS), bool)
    valid[::2, 1] = False
    text = text_of(routecap.Routing.from_arrays(expected_ids(1, 60), experts=EXPERTS, valid=valid))
    assert text.count("unwritten") == 8 and "and 22 more" in text


def test_the_picture_is_the_load(routing: routecap.Routing) -> None:
    [data] = re.findall(r'src="data:image/png;base64,([^"]+)"', routing._repr_html_())
    png = b64decode(data)
    width, height = (int.from_bytes(png[start : start + 4], "big") for start in (16, 20))
    assert (height, width) == (LAYERS, EXPERTS)
    at, pixels = 8, b""
    while at < len(png):
        size, name = int.from_bytes(png[at : at + 4], "big"), png[at + 4 : at + 8]
        body = png[at + 4 : at + 8 + size]
        assert zlib.crc32(body) == int.from_bytes(png[at + 8 + size : at + 12 + size], "big")
        pixels += body[4:] if name == b"IDAT" else b""
        at += 12 + size
    found = np.frombuffer(zlib.decompress(pixels), np.uint8).reshape(LAYERS, EXPERTS + 1)
    load = analysis.expert_load(routing)
    means = load / load.mean(axis=1, keepdims=True)
    assert not found[:, 0].any() and found.max() == 63
    order = np.argsort(means, axis=None)
    assert (np.diff(found[:, 1:].ravel()[order].astype(int)) >= 0).all()


def test_of_a_long_routing_the_load_is_that_of_its_beginning(
    routing: routecap.Routing, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "of the first" not in text_of(routing)
    monkeypatch.setattr("routecap._html._ROWS", 8)
    assert "of the first 8 rows" in text_of(routing)


def test_states_without_rows_are_shown(make: Any) -> None:
    empty = routecap.Routing.from_arrays(np.zeros((0, 2, 2), np.uint8), experts=4)
    assert "0 rows" in text_of(empty)
    lost = routecap.Routing.from_arrays(np.full((3, 2, 2), -1, np.int16), experts=4)
    assert "absent" in text_of(lost) and "img" not in lost._repr_html_()
    empty.free()
    assert "freed" in text_of(empty)
    capturer = make(manual_progress=True)
    request = capturer.open()
    capturer.begin(1)
    capturer.snapshot()
    capturer.issue(routecap.spans(request=request))
    pending = request.finish()
    assert "pending" in text_of(pending)


def test_names_of_a_user_are_text_and_not_elements(routing: routecap.Routing) -> None:
    sample = routecap.Sample(routing, {"<img src=x onerror=alert(1)>": 1})
    assert "<img src=x" in text_of(sample) and "<img src=x" not in sample._repr_html_()


def test_sequences_plans_capturers_and_counters_are_shown(
    capturer: routecap.Capturer, routing: routecap.Routing
) -> None:
    sequence = routecap.Sequence.like(routing)
    sequence.append(range(21), routing, call=7, tag=5)
    assert "21 tokens" in repr(sequence) and "Sequence of 21 tokens" in text_of(sequence)
    assert re.search(r"\b7 \s*0 to 19 \s*5\b", text_of(sequence))
    plan = routecap.Plan([4], layers=LAYERS, k=K, experts=EXPERTS)
    assert "rows needed 3" in text_of(plan)
    load = routecap.Load(
        np.stack([analysis.expert_load(routing), np.zeros((LAYERS, EXPERTS))]).astype(np.uint64),
        *(3, 1, 3, 20, 0),
        routing.layer_map,
        routing.layer_experts,
        routing.layer_visit,
    )
    counted, own = text_of(load), text_of(routing)
    assert "Load of 3 steps" in counted and "20 rows of prefill" in counted
    assert counted[counted.index("load of") :] == own[own.index("load of") :]
    stats = capturer.stats()
    shown = text_of(stats)
    assert f"bytes budget {stats.bytes_budget:,}" in shown and "more are 0" in shown
    assert repr(capturer)[1:-1] in text_of(capturer)
    capturer.close()
    assert "closed" in text_of(capturer)
    items = np.zeros(2, routecap.finish_dtype)
    with routecap.Capturer(layers=LAYERS, k=K, experts=EXPERTS, rows=4) as other:
        items["request"] = [other.open().handle, 999]
        assert "ERR_UNKNOWN_REQUEST" in text_of(other.finish_batch(items))

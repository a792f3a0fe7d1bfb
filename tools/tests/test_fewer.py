"""Routings whose cells have fewer experts than k, and layers that run again, in every tool."""

import csv
import json
import re
import zlib
from base64 import b64decode
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import routecap
from routecap import Sample
from routecap_tools import traces
from routecap_tools.command import main
from routecap_tools.page import page

Capture = pytest.CaptureFixture[str]
CELLS: list[list[list[int] | None]] = [[[3], [1, 2], [0]], [[], None, [5]], [[4, 0], [7], [6]]]
RULES: dict[str, Any] = {
    "layer_map": [2, 5, 5],
    "layer_visit": [0, 0, 1],
    "layer_k": [2, 2, 1],
    "layer_min_k": [0, 1, 1],
}


@pytest.fixture
def sample() -> Sample:
    ids = [
        [[-1, -1] if c is None else c + [routecap.NO_EXPERT] * (2 - len(c)) for c in row]
        for row in CELLS
    ]
    return Sample(routecap.Routing.from_arrays(ids, experts=8, **RULES), {"steps": [0, 1, 2]})


@pytest.fixture
def path(sample: Sample, tmp_path: Path) -> str:
    routecap.save(tmp_path / "a.routecap", sample)
    return str(tmp_path / "a.routecap")


LINES = [
    (r, l, cell) for r, row in enumerate(CELLS) for l, cell in enumerate(row) if cell is not None
]


def test_a_trace_has_the_experts_of_each_cell_and_its_visit(sample: Sample, tmp_path: Path) -> None:
    table = traces.trace({"a": sample})
    assert (table.rows.ids() == sample.routing.ids()).all()
    assert [each.tolist() for each in table.needed(2)] == [[3], [0, 4]]
    assert traces.write(tmp_path / "a.csv", table) == traces.write(tmp_path / "a.jsonl", table) == 8
    with (tmp_path / "a.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(r["position"], r["layer"], r["visit"], r["expert_0"], r["expert_1"]) for r in rows] == [
        (str(r), str(RULES["layer_map"][l]), str(RULES["layer_visit"][l]), *[str(e) for e in c], *[""] * (2 - len(c)))
        for r, l, c in LINES
    ]  # fmt: skip
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [each["experts"] for each in lines] == [c for _, _, c in LINES]
    assert [each["visit"] for each in lines] == [RULES["layer_visit"][l] for _, l, _ in LINES]


@pytest.mark.slow  # pyarrow has 170 MB
def test_a_trace_in_parquet_is_null_where_there_is_no_expert(
    sample: Sample, tmp_path: Path
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    traces.write(tmp_path / "a.parquet", traces.trace({"a": sample}))
    found = parquet.read_table(tmp_path / "a.parquet").to_pydict()["experts"]
    assert found == [c + [None] * (2 - len(c)) for _, _, c in LINES]


def test_the_page_counts_tokens_by_cells_and_marks_columns_without_an_expert(
    sample: Sample,
) -> None:
    [text] = re.findall(
        r'<script type="application/json" id="data">(.*?)</script>', page({"a": sample})
    )
    data = json.loads(text)
    [group], [shown] = data["groups"], data["samples"]
    assert group["layers"] == ["2", "5", "5, visit 1"] and group["per_token"] == "0 to 2"
    assert group["load"]["tokens"] == shown["load"]["tokens"] == [3, 2, 3]
    ids = np.frombuffer(zlib.decompress(b64decode(shown["ids"])), "<u2").reshape(3, 3, 2)
    missing = 65535 - int(routecap.Missing.UNWRITTEN)
    assert ids.tolist() == [
        [[missing] * 2 if c is None else c + [65535] * (2 - len(c)) for c in row] for row in CELLS
    ]


def test_the_commands_name_visits_and_count_what_was_chosen(path: str, capsys: Capture) -> None:
    assert main(["show", path, "--layer", "2"]) == 0
    said = capsys.readouterr().out
    assert "0 to 2 of 8 experts" in said and "5, visit 1" in said
    assert re.search(r"^ *0 +3 *$", said, re.MULTILINE) and re.search(
        r"^ *1 +none *$", said, re.MULTILINE
    )
    assert main(["show", path, "--json"]) == 0
    layers = json.loads(capsys.readouterr().out)["a"]["layers"]
    for name, of in (("visit", "layer_visit"), ("k", "layer_k"), ("min_k", "layer_min_k")):
        assert [each[name] for each in layers] == RULES[of]
    assert layers[0]["load"] == [1, 0, 0, 1, 1, 0, 0, 0]
    assert main(["coverage", path]) == 1
    assert "9 choices of experts" in (said := capsys.readouterr().out) and "5, visit 1" in said


def test_routings_whose_layers_have_other_rules_are_told_apart(
    path: str, sample: Sample, tmp_path: Path, capsys: Capture
) -> None:
    routing = sample.routing
    other = routecap.Routing.from_arrays(
        routing.ids(), experts=8, **{**RULES, "layer_min_k": [0, 0, 1]}
    )
    routecap.save(tmp_path / "b.routecap", other)
    assert main(["compare", path, path]) == 0
    assert "the same" in capsys.readouterr().out
    assert main(["compare", path, str(tmp_path / "b.routecap")]) == 1
    assert "k: [[0, 2], [1, 2], [1, 1]] and [[0, 2], [0, 2], [1, 1]]" in capsys.readouterr().out


def test_a_picture_is_drawn_and_the_doctor_refuses_by_name(
    path: str, tmp_path: Path, capsys: Capture
) -> None:
    pytest.importorskip("matplotlib")
    assert main(["show", path, "--png", str(tmp_path / "a.png")]) == 0
    capsys.readouterr()
    assert main(["doctor", path]) != 0
    out = capsys.readouterr()
    assert "fewer than 2 experts" in out.out + out.err

"""Traces: the table of all rows, its files, and what the command says of it."""

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import routecap
from routecap import Sample, experts
from routecap_testing.helpers import random_routing
from routecap_tools import traces
from routecap_tools.command import main

Capture = pytest.CaptureFixture[str]


class Request(NamedTuple):
    sample: Sample
    ids: Any
    valid: Any


@pytest.fixture
def requests() -> dict[str, Request]:
    """Three requests that share steps, with cells that are missing. Row r of the second is at
    position 4 + r.
    """
    made = {}
    for number, (name, first) in enumerate({"a": 0, "b, the second": 4, "c": 0}.items()):
        routing, ids, valid = random_routing(number, 10 + number, first=first)
        rows = routing.rows
        # A prefill in one step, then a row a step; requests begin one step apart.
        steps = [None] * first + [number] * 5 + list(range(number + 1, number + 1 + rows - 5))
        sample = Sample(routing, {"prompt_tokens": first + 5, "steps": steps})
        made[name] = Request(sample, ids, valid)
    return made


def samples_of(requests: dict[str, Request]) -> dict[str, Sample]:
    return {name: each.sample for name, each in requests.items()}


def lines_of(requests: dict[str, Request]) -> list[dict[str, Any]]:
    """What a file has to hold, cell by cell."""
    found = []
    for name, (sample, ids, valid) in requests.items():
        for row in range(sample.routing.rows):
            position = sample.routing.first + row
            for layer in range(sample.routing.layers):
                if valid[row, layer]:
                    line = {
                        "request": name,
                        "position": position,
                        "phase": ("prefill", "decode")[position >= sample.info["prompt_tokens"]],
                        "step": sample.info["steps"][position],
                        "tag": 0,
                        "layer": layer,
                        "visit": 0,
                        "experts": ids[row, layer].tolist(),
                    }
                    found.append(line)
    names = list(requests)
    return sorted(
        found,
        key=lambda line: (
            line["step"], names.index(line["request"]), line["position"], line["layer"],
        ),
    )  # fmt: skip


@pytest.mark.parametrize("at_a_time", [3, 1 << 16])
def test_files_have_a_line_for_each_cell_that_is_there(
    requests: dict[str, Request],
    tmp_path: Path,
    at_a_time: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(traces, "_CELLS", at_a_time)
    table = traces.trace(samples_of(requests))
    wanted = lines_of(requests)
    for ending in set(traces.ENDINGS) - {".parquet"}:
        assert traces.write(tmp_path / f"t{ending}", table) == len(wanted)
    with (tmp_path / "t.jsonl").open() as file:
        assert [json.loads(line) for line in file] == wanted
    with (tmp_path / "t.csv").open(newline="") as file:
        for line, cell in zip(csv.DictReader(file), wanted, strict=True):
            chosen = [int(line.pop(f"expert_{i}")) for i in range(table.rows.k)]
            assert {**line, "experts": chosen} == {
                name: value if name == "experts" else str(value) for name, value in cell.items()
            }
    assert [each.suffix for each in tmp_path.iterdir() if each.suffix == ".part"] == []


@pytest.mark.slow  # pyarrow has 170 MB
@pytest.mark.parametrize("at_a_time", [3, 1 << 16])
def test_parquet_has_a_line_for_each_cell_that_is_there(
    requests: dict[str, Request],
    tmp_path: Path,
    at_a_time: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import pyarrow.parquet

    monkeypatch.setattr(traces, "_CELLS", at_a_time)
    wanted, path = lines_of(requests), tmp_path / "t.parquet"
    assert traces.write(path, traces.trace(samples_of(requests))) == len(wanted)
    assert pyarrow.parquet.read_table(path).to_pylist() == wanted
    assert [each.suffix for each in tmp_path.iterdir()] == [".parquet"]


def test_a_step_needs_the_experts_of_all_its_requests(requests: dict[str, Request]) -> None:
    table = traces.trace(samples_of(requests))
    for layer in range(table.rows.layers):
        union: dict[int, set[int]] = {}
        for line in lines_of(requests):
            if line["layer"] == layer:
                union.setdefault(line["step"], set()).update(line["experts"])
        found = [set(each.tolist()) for each in table.needed(layer)]
        assert found == [union[step] for step in sorted(union)]


def test_rows_that_no_step_computed_are_in_the_table_and_need_nothing() -> None:
    ids = np.array([[[0, 1]], [[2, 3]], [[4, 5]]])
    routing = routecap.Routing.from_arrays(ids, experts=6)
    table = traces.trace({"a": Sample(routing, {"steps": [None, 7, 8]})})
    assert table.step.tolist() == [-1, 7, 8] and table.phase.tolist() == [-1] * 3
    assert [each.tolist() for each in table.needed(0)] == [[2, 3], [4, 5]]


def test_steps_may_be_tags_or_given() -> None:
    ids = np.array([[[0, 1]], [[2, 3]]])
    one = routecap.Routing.from_arrays(ids, experts=6, tags=np.array([1, 3], np.uint64))
    two = routecap.Routing.from_arrays(ids, experts=6, tags=np.array([2, 3], np.uint64))
    both = {"one": one, "two": two}
    for steps in ("tags", {"one": [1, 3], "two": [2, 3]}):
        table = traces.trace(both, steps)
        assert table.step.tolist() == [1, 2, 3, 3] and table.request.tolist() == [0, 1, 0, 1]
        assert table.rows.tags.tolist() == [1, 2, 3, 3]
        assert len(table.needed(0)) == 3


def test_steps_that_nobody_knows_are_not_made_up() -> None:
    routing = routecap.Routing.from_arrays(np.array([[[0, 1]], [[2, 3]]]), experts=6)
    alone = traces.trace({"one": routing})
    assert [each.tolist() for each in alone.needed(0)] == [[0, 1], [2, 3]]
    with pytest.raises(ValueError, match="nobody knows the steps"):
        traces.trace({"one": routing, "two": routing}).needed(0)
    with pytest.raises(ValueError, match="two has no steps, and others have"):
        traces.trace({"one": Sample(routing, {"steps": [0, 1]}), "two": routing})
    with pytest.raises(ValueError, match="steps has none of one"):
        traces.trace({"one": routing}, {"two": [0, 1]})
    with pytest.raises(ValueError, match=r"shape \(3,\)"):
        traces.trace({"one": routing}, {"one": [0, 1, 2]})
    with pytest.raises(ValueError, match="a step of one is -2"):
        traces.trace({"one": routing}, {"one": [0, -2]})
    far = routecap.Routing.from_arrays(np.array([[[0, 1]]]), experts=6, tags=2**63)
    with pytest.raises(ValueError, match="a tag of one is 9223372036854775808"):
        traces.trace({"one": far}, "tags")
    with pytest.raises(ValueError, match='steps is "version"|steps is .version.'):
        traces.trace({"one": routing}, "version")
    for wrong in ("1 2", [0], [0, -2], [0, True], [0, 1.5]):
        with pytest.raises(ValueError, match='"steps"'):
            traces.trace({"one": Sample(routing, {"steps": wrong})})


def test_requests_of_two_models_are_no_trace() -> None:
    one, _, _ = random_routing(1, 5)
    two, _, _ = random_routing(1, 5, experts=13)
    with pytest.raises(ValueError, match="2 requests are of 2 models"):
        traces.trace({"one": one, "two": two})


def test_the_command_says_what_caches_do_and_exports(
    requests: dict[str, Request], tmp_path: Path, capsys: Capture
) -> None:
    file = str(tmp_path / "run.tar")
    routecap.save(file, samples_of(requests))
    out = str(tmp_path / "t.csv")
    picture = tmp_path / "rates.svg"
    arguments = ["trace", file, "--slots", "3", "9", "--out", out, "--png", str(picture)]
    assert main(arguments) == 0
    said = capsys.readouterr().out.splitlines()
    table = traces.trace(samples_of(requests))
    steps = len({line["step"] for line in lines_of(requests)})
    assert f"wrote {out}: {len(lines_of(requests)):,} lines" in said
    assert f"3 requests, {table.rows.rows} rows, {steps} steps" in said
    for layer, line in enumerate(said[-table.rows.layers :]):
        rates = experts.hit_rates(table.needed(layer), (3, 9))
        wanted = [rates.lru[0], rates.optimal[0], rates.lru[1], rates.optimal[1]]
        assert line.split()[3::2] == [f"{100 * rate:.1f}" for rate in wanted]
    assert picture.stat().st_size > 5000
    for arguments in (["trace", file, "--slots", "0"], ["trace", file, "--out", "t.xls"]):
        assert main(arguments) == 2
    assert "ends in '.xls'" in capsys.readouterr().err


def test_without_pyarrow_parquet_says_what_to_install(
    requests: dict[str, Request], tmp_path: Path
) -> None:
    routecap.save(tmp_path / "run.tar", samples_of(requests))
    program = (
        "import sys; sys.modules['pyarrow'] = None;"
        "from routecap_tools.command import main; sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "trace", "run.tar", "--out", "t.parquet"],
        check=False,
        text=True,
        capture_output=True,
        cwd=tmp_path,
    )
    assert done.returncode == 2 and "pip install 'routecap-tools[parquet]'" in done.stderr
    assert not list(tmp_path.glob("t.parquet*"))

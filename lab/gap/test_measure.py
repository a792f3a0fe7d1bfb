"""lab/gap: the measurement's control and its verdict. A figure that does not hold is named."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import routecap

from measure import CAPTURED, NONE, SHIFTED, failures, shifted


def test_a_shifted_routing_has_each_row_with_the_experts_of_the_row_before():
    ids = np.random.default_rng(0).permuted(
        np.tile(np.arange(8, dtype=np.uint8), (5, 3, 1)), axis=-1
    )[..., :2]
    valid = np.ones((5, 3), bool)
    valid[2, 1] = False
    after = shifted(routecap.Routing.from_arrays(ids, experts=8, valid=valid, layer_map=[1, 2, 5]))
    expected = np.concatenate([ids[:1], ids[:-1]]).astype(int)
    expected[3, 1] = -1
    assert np.array_equal(after.ids(), expected)
    assert after.layer_map.tolist() == [1, 2, 5]


def result():
    figures = {NONE: (0.01, 2e-3, 2e-2), CAPTURED: (0.0, 1e-3, 1e-2), SHIFTED: (0.8, 4.0, 4.0)}
    gaps = [
        dict(forward="float32", replayed=name, cells_differing=c, kl=k, log_probability_gap=g)
        for name, (c, k, g) in figures.items()
    ]
    return {"cells_missing": 0, "gaps": gaps}


def test_orderings_that_hold_are_no_failures():
    assert failures(result()) == []


@pytest.mark.parametrize(
    ("replayed", "figure", "value", "named"),
    [
        (NONE, "cells_differing", 0.0, "cells that differ"),
        (CAPTURED, "cells_differing", 0.001, "cells that differ"),
        (SHIFTED, "cells_differing", 0.005, "cells that differ"),
        (CAPTURED, "kl", 2e-3, "kl"),
        (SHIFTED, "kl", 2e-3, "kl"),
        (CAPTURED, "log_probability_gap", float("nan"), "log_probability_gap"),
        (NONE, "log_probability_gap", 5.0, "log_probability_gap"),
    ],
)
def test_one_that_does_not_hold_is_a_failure(replayed, figure, value, named):
    changed = result()
    next(gap for gap in changed["gaps"] if gap["replayed"] == replayed)[figure] = value
    found = failures(changed)
    assert len(found) == 1 and named in found[0] and "float32" in found[0]


def test_missing_cells_are_a_failure():
    assert failures(result() | {"cells_missing": 3}) == ["cells are missing"]


def test_the_larger_model_is_trained_before_it_is_measured(tmp_path):
    """At its smallest, for a few steps: whether the orderings hold is not asked."""
    sizes = (
        "--hidden 256 --layers 2 --experts 8 --k 2 --width 32 --steps 12 --batch 1 --sequences 4"
        " --new-tokens 16".split()
    )
    files = ["--json", str(tmp_path / "result.json"), "--markdown", str(tmp_path / "result.md")]
    program = Path(__file__).with_name("larger.py")
    run = subprocess.run(
        [sys.executable, program, "--device", "cpu", *sizes, *files], capture_output=True, text=True
    )
    assert (tmp_path / "result.json").exists(), run.stderr
    found = json.loads((tmp_path / "result.json").read_text())
    assert run.returncode == bool(failures(found))
    assert (
        found["held_out_bits_per_byte"] < 7.5
        and found["cells_missing"] == 0
        and "2 of 8 experts" in found["model"]
    )
    assert [gap["replayed"] for gap in found["gaps"]] == 2 * [NONE, CAPTURED, SHIFTED]
    assert [gap["cells_differing"] for gap in found["gaps"] if gap["replayed"] == CAPTURED] == [
        0,
        0,
    ]
    assert (tmp_path / "result.md").read_text().count("| shifted by one |") == 2

"""What the command says of experts, and how they are drawn."""

import json
from typing import Any

import numpy as np
import pytest
import routecap
from numpy.typing import NDArray
from routecap import analysis, experts
from routecap_testing.helpers import random_routing
from routecap_tools.command import main

LAYERS, EXPERTS = 4, 12


def test_the_command_names_experts_without_tokens(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    ids: NDArray[Any] = np.array([[[0, 1], [2, 3]], [[0, 2], [2, 3]]])
    routing = routecap.Routing.from_arrays(ids, experts=4, layer_map=[3, 7])
    file = str(tmp_path / "a.routecap")
    routecap.save(file, routing)
    assert main(["coverage", file]) == 1
    said = capsys.readouterr().out
    assert "layer 3, no token: expert 3" in said
    assert "layer 7, no token: expert 0, 1" in said
    assert main(["coverage", "--json", file]) == 1
    (found,) = json.loads(capsys.readouterr().out)
    assert found["tokens"] == [[2, 1, 1, 0], [0, 0, 2, 2]]
    assert found["more_texts"] == [None, None]
    full = routecap.Routing.from_arrays(np.array([[[0, 1]]]), experts=2)
    routecap.save(file, full)
    assert main(["coverage", file]) == 0
    assert main(["coverage", "--tokens", "2", file]) == 1


def test_pictures_are_drawn(tmp_path: Any) -> None:
    from matplotlib.figure import Figure
    from routecap_tools import plot

    routings = [random_routing(seed, 20 + seed)[0] for seed in range(3)]
    figure = Figure(layout="constrained")
    first, second, third, fourth = figure.subplots(4)
    plot.usage(first, experts.usage(routings))
    plot.pairs(second, experts.coactivation(routings)[0])
    plot.caches(third, experts.needed(routings, 0), EXPERTS)
    found = analysis.drift(routings[:2], routings[1:])
    plot.drift(fourth, found)
    drawn = fourth.images[0].get_array()
    assert drawn.shape[:2] == (LAYERS, 21)
    colours: dict[float, set[tuple[int, ...]]] = {}
    for layer, position in np.ndindex(LAYERS, 21):
        here = found.positions == position
        compared = found.both[here, layer].sum()
        share = found.differs[here, layer].sum() / compared if compared else -1
        colours.setdefault(share, set()).add(tuple(drawn[layer, position]))
    assert {-1, 0.5, 1} <= set(colours)
    assert all(len(each) == 1 for each in colours.values())  # one colour for a share, and another
    assert len(set.union(*colours.values())) == len(colours)
    assert [bar.get_width() for bar in first.patches[:LAYERS]] == experts.usage(routings).at_most(
        0
    ).sum(axis=1).tolist()
    assert (third.lines[0].get_ydata() >= third.lines[1].get_ydata()).all()
    figure.savefig(tmp_path / "experts.png")

"""The figures of load, balance and difference, against sums over single cells."""

from math import log

import numpy as np
import pytest
import routecap
from routecap import analysis
from routecap_testing.helpers import random_routing


def test_load_counts_the_tokens_of_each_expert() -> None:
    routing, ids, valid = random_routing(1, 50)
    counted = np.zeros((4, 12), int)
    for row, layer in np.argwhere(valid):
        for expert in ids[row, layer]:
            counted[layer, expert] += 1
    assert (analysis.expert_load(routing) == counted).all()
    assert (analysis.expert_load([routing, routing]) == 2 * counted).all()
    assert (analysis.expert_load(routing[:0]) == 0).all()


def test_a_routing_of_more_rows_than_are_looked_at_in_one_go_is_counted_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    routing, _, _ = random_routing(2, 101)
    other, _, _ = random_routing(3, 101)
    load, difference = analysis.expert_load(routing), analysis.difference(routing, other)
    monkeypatch.setattr(analysis, "_CELLS", 40)
    assert (analysis.expert_load(routing) == load).all()
    assert all(
        (ours == theirs).all()
        for ours, theirs in zip(analysis.difference(routing, other), difference)
    )


def test_balance_has_the_extremes_that_its_figures_promise() -> None:
    load = np.array([[5, 5, 5, 5], [20, 0, 0, 0], [0, 0, 0, 0], [0, 10, 10, 0]])
    found = analysis.balance(load)
    assert found.active.tolist() == [4, 1, 0, 2] and found.busiest.tolist()[:2] == [0, 0]
    assert found.entropy.tolist()[:2] == [1, 0] and found.entropy[3] == pytest.approx(0.5)
    assert found.peak.tolist()[:2] == [1, 4] and found.peak[3] == 2
    assert found.gini.tolist()[:2] == [0, 0.75] and found.gini[3] == 0.5
    assert found.variation.tolist()[:2] == pytest.approx([0, 3**0.5]) and found.variation[3] == 1
    assert np.isnan([column[2] for column in found[2:]]).all()


def test_balance_is_as_its_definitions_have_it() -> None:
    load = np.random.default_rng(4).integers(0, 50, (3, 7))
    found = analysis.balance(load)
    for layer, counts in enumerate(load.tolist()):
        mean, total = sum(counts) / 7, sum(counts)
        assert found.entropy[layer] == pytest.approx(
            -sum(n / total * log(n / total) for n in counts if n) / log(7)
        )
        assert found.peak[layer] == pytest.approx(max(counts) / mean)
        assert found.variation[layer] == pytest.approx(
            (sum((n - mean) ** 2 for n in counts) / 7) ** 0.5 / mean
        )
        assert found.gini[layer] == pytest.approx(
            sum(abs(a - b) for a in counts for b in counts) / (2 * 7 * total)
        )


def test_experts_that_a_layer_does_not_have_do_not_count_as_idle() -> None:
    routing = routecap.Routing.from_arrays([[[0], [0]], [[1], [1]]], layer_experts=[2, 8])
    found = analysis.balance(analysis.expert_load(routing), routing.layer_experts)
    assert found.entropy[0] == 1 and found.entropy[1] == pytest.approx(1 / 3)
    assert analysis.balance(np.array([[7]])).entropy.tolist() == [1]


def test_difference_counts_cells_by_order_and_as_sets() -> None:
    first, ids, valid = random_routing(5, 60)
    changed, present = ids.copy(), valid.copy()
    changed[3] = changed[3, :, ::-1]
    changed[7, 2, 0] = next(expert for expert in range(12) if expert not in ids[7, 2])
    present[10:40] ^= True
    second = routecap.Routing.from_arrays(changed, experts=12, valid=present)
    found = analysis.difference(first, second)
    for layer in range(4):
        both = [row for row in range(60) if valid[row, layer] and present[row, layer]]
        assert found.cells[layer] == len(both)
        assert found.ordered[layer] == sum(
            ids[row, layer].tolist() != changed[row, layer].tolist() for row in both
        )
        assert found.sets[layer] == sum(
            set(ids[row, layer]) != set(changed[row, layer]) for row in both
        )
        assert found.common[layer] == sum(
            len(set(ids[row, layer]) & set(changed[row, layer])) for row in both
        )
        assert found.only_first[layer] == (valid & ~present)[:, layer].sum() > 0
        assert found.only_second[layer] == (present & ~valid)[:, layer].sum() > 0
    assert found.sets.sum() == 1 and found.ordered.sum() > 1


def test_difference_is_of_what_both_have() -> None:
    first, ids, valid = random_routing(6, 30, layer_map=[1, 2, 4, 8])
    second = routecap.Routing.from_arrays(
        ids[10:, 1:][:, [0, 1]], experts=12, valid=valid[10:, 1:3], first=10, layer_map=[2, 4]
    )
    found = analysis.difference(first, second)
    assert (
        found.layer_map.tolist() == [2, 4]
        and found.cells.tolist() == valid[10:, 1:3].sum(axis=0).tolist()
    )
    assert (
        not found.ordered.any()
        and (found.common == 3 * found.cells).all()
        and not found.only_first.any()
        and not found.only_second.any()
    )
    assert not analysis.difference(first[:5], second).cells.any()


def test_what_cannot_be_taken_together_is_refused() -> None:
    routing, ids, _ = random_routing(7, 5)
    for other in (
        random_routing(7, 5, experts=13)[0],
        random_routing(7, 5, layer_map=[0, 1, 2, 4])[0],
    ):
        with pytest.raises(ValueError, match="same layers"):
            analysis.expert_load([routing, other])
    with pytest.raises(ValueError, match="k is 3 and 2"):
        analysis.difference(routing, routecap.Routing.from_arrays(ids[..., :2], experts=12))
    with pytest.raises(ValueError, match="no routing"):
        analysis.expert_load([])


def test_drift_says_where_two_routings_differ() -> None:
    first, ids, valid = random_routing(7, 40, first=3)
    second, others, present = random_routing(8, 30, first=10, layer_map=[0, 1, 3, 9])
    others[:, :3] = ids[7:37][:, [0, 1, 3]]  # the same sets, in other orders, but for some
    changed = np.random.default_rng(9).random((30, 3)) < 0.2
    others[:, :3][changed] = (others[:, :3][changed] + 1) % 12
    second = routecap.Routing.from_arrays(
        others[..., ::-1], experts=12, valid=present, first=10, layer_map=[0, 1, 3, 9]
    )
    found = analysis.drift(first, second)
    assert found.layer_map.tolist() == [0, 1, 3]
    assert found.positions.tolist() == list(range(10, 40))
    cells = differ = 0
    for row in range(30):
        for column, layer in enumerate((0, 1, 3)):
            mine, theirs = set(ids[row + 7, layer]), set(others[row, column])
            compared = valid[row + 7, layer] and present[row, column]
            assert found.both[row, column] == compared
            assert found.differs[row, column] == (compared and mine != theirs)
            cells += compared
            differ += compared and mine != theirs
    assert 0 < differ < cells
    assert found.by_tag() == {0: pytest.approx(differ / cells)}
    by_layer = [found.differs[:, i].sum() / found.both[:, i].sum() for i in range(3)]
    assert found.by_layer().tolist() == pytest.approx(by_layer)
    by_position = found.by_position()
    assert list(by_position) == found.positions.tolist()
    for position, share in by_position.items():
        row = position - 10
        wanted = found.differs[row].sum() / found.both[row].sum() if found.both[row].any() else None
        assert share == wanted if wanted is not None else np.isnan(share)


def test_drift_is_told_apart_by_tag() -> None:
    ids = np.array([[[0, 1]], [[0, 1]], [[2, 3]]])
    old = routecap.Routing.from_arrays(ids, experts=4, tags=np.array([1, 1, 2], np.uint64))
    new = routecap.Routing.from_arrays(np.array([[[1, 0]], [[0, 2]], [[3, 2]]]), experts=4)
    assert analysis.drift(old, new).by_tag() == {1: 0.5, 2: 0.0}


def test_drift_of_several_sequences_is_that_of_all_their_cells() -> None:
    firsts = [random_routing(seed, 20 + seed, first=seed)[0] for seed in range(3)]
    seconds = [random_routing(9 + seed, 20)[0] for seed in range(3)]
    found = analysis.drift(firsts, seconds)
    each = [analysis.drift(one, other) for one, other in zip(firsts, seconds)]
    cells = sum(one.both.sum(axis=0) for one in each)
    assert found.by_layer().tolist() == pytest.approx(
        (sum(one.differs.sum(axis=0) for one in each) / cells).tolist()
    )
    for position, share in found.by_position().items():
        here = [one.positions == position for one in each]
        both = sum(int(one.both[at].sum()) for one, at in zip(each, here))
        differ = sum(int(one.differs[at].sum()) for one, at in zip(each, here))
        assert share == pytest.approx(differ / both)
    with pytest.raises(ValueError, match="3 routings and 2: give two of each sequence"):
        analysis.drift(firsts, seconds[:2])


def test_routings_without_a_common_position_have_no_drift() -> None:
    first, _, _ = random_routing(1, 5)
    second, _, _ = random_routing(2, 5, first=20)
    found = analysis.drift(first, second)
    assert found.both.shape == (0, 4)
    assert np.isnan(found.by_layer()).all()

"""Figures of experts, each against a count over single cells that is written apart."""

import itertools
from typing import Any

import numpy as np
import pytest
import routecap
from routecap import analysis, experts
from routecap_testing.helpers import random_routing

LAYERS, K, EXPERTS = 4, 3, 12


def many(count: int = 3, **more: Any) -> list[Any]:
    return [random_routing(seed, 20 + seed, **more) for seed in range(count)]


def cells(routings: list[Any]) -> Any:
    """(routing, row, layer, ids) of each cell that is there."""
    for number, (_, ids, valid) in enumerate(routings):
        for row, layer in np.argwhere(valid):
            yield number, row, layer, ids[row, layer]


def test_usage_counts_the_valid_cells_of_all_texts() -> None:
    given = many()
    used = experts.usage([routing for routing, _, _ in given])
    counted = np.zeros((LAYERS, EXPERTS), int)
    for _, _, layer, chosen in cells(given):
        counted[layer, chosen] += 1
    assert (used.tokens == counted).all()
    assert used.texts == 3
    assert used.missing == sum(int((~valid).sum()) for _, _, valid in given)
    for level in (0, 10, 15):
        assert (used.at_most(level) == (counted <= level)).all()


def test_more_texts_are_what_the_rate_so_far_says() -> None:
    ids = np.array([[[0, 1]], [[0, 2]], [[0, 1]], [[0, 1]]])
    used = experts.usage([routecap.Routing.from_arrays(ids, experts=4)] * 2)
    assert used.tokens.tolist() == [[8, 6, 2, 0]]
    # Of expert 1 three tokens a text come, of expert 2 one; nobody knows when expert 3 comes.
    assert used.more_texts(8).tolist() == [[0, 1, 6, np.inf]]
    assert used.more_texts(0).tolist() == [[0, 0, 0, 0]]


def test_experts_that_a_layer_does_not_have_are_not_missed() -> None:
    ids = np.array([[[0, 1], [0, 1]], [[0, 2], [0, 1]]])
    routing = routecap.Routing.from_arrays(ids, layer_experts=[4, 2])
    used = experts.usage(routing)
    assert used.at_most(0).tolist() == [[False, False, False, True], [False] * 4]
    assert np.isnan(used.more_texts(1)[1, 2:]).all()


def test_coactivation_counts_pairs() -> None:
    given = many()
    found = experts.coactivation([routing for routing, _, _ in given])
    counted = np.zeros((LAYERS, EXPERTS, EXPERTS), int)
    for _, _, layer, chosen in cells(given):
        for one, other in itertools.product(chosen, chosen):
            counted[layer, one, other] += 1
    assert found.dtype == np.int64
    assert (found == counted).all()
    load = experts.usage([routing for routing, _, _ in given]).tokens
    assert (found.diagonal(axis1=1, axis2=2) == load).all()
    tokens = np.array([load[layer].sum() // K for layer in range(LAYERS)])
    assert (found.sum(axis=(1, 2)) == tokens * K * K).all()


def test_coactivation_is_weighted_by_both_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    given = many()
    random = np.random.default_rng(1)
    weights = [random.random(ids.shape) for _, ids, _ in given]
    counted = np.zeros((LAYERS, EXPERTS, EXPERTS))
    for number, row, layer, chosen in cells(given):
        weight = weights[number][row, layer]
        for one, other in itertools.product(range(K), range(K)):
            counted[layer, chosen[one], chosen[other]] += weight[one] * weight[other]
    routings = [routing for routing, _, _ in given]
    np.testing.assert_allclose(experts.coactivation(routings, weights), counted, atol=1e-12)
    monkeypatch.setattr(analysis, "_CELLS", 40)  # a long routing is looked at in parts
    np.testing.assert_allclose(experts.coactivation(routings, weights), counted, atol=1e-12)


def test_importance_is_the_mean_of_weight_times_norm() -> None:
    given = many()
    random = np.random.default_rng(2)
    weights = [random.random(ids.shape) for _, ids, _ in given]
    norms = [random.random(ids.shape) * 9 for _, ids, _ in given]
    sums: dict[tuple[int, int], list[float]] = {}
    for number, row, layer, chosen in cells(given):
        for column, expert in enumerate(chosen):
            added = weights[number][row, layer, column] * norms[number][row, layer, column]
            sums.setdefault((int(layer), int(expert)), []).append(added)
    found = experts.importance([routing for routing, _, _ in given], weights, norms)
    for (layer, expert), added in sums.items():
        assert found[layer, expert] == pytest.approx(np.mean(added))
    ids = np.array([[[0, 1]]])
    alone = experts.importance(
        routecap.Routing.from_arrays(ids, experts=3), [np.ones((1, 1, 2))], [np.ones((1, 1, 2))]
    )
    assert np.isnan(alone[0, 2])  # no token, and so nothing that it adds


def test_weights_of_another_shape_are_refused_with_both_shapes() -> None:
    routing, ids, _ = random_routing(1, 5)
    with pytest.raises(ValueError, match=r"\(4, 5, 3\).*\(5, 4, 3\)"):
        experts.coactivation([routing], [ids.transpose(1, 0, 2)])


def weighted(lacking: int = -1) -> routecap.Routing:
    """Three rows of two layers, of which one cell is missing; `lacking`: of this row one cell has
    ids alone."""
    ids = np.array([[[0, 1], [2, 3]], [[1, 2], [3, 0]], [[2, 0], [0, 1]]])
    weights = np.arange(12, dtype=np.float32).reshape(ids.shape) / 8
    weights[lacking if lacking >= 0 else 1, 0, 1] = np.nan
    valid = np.ones(ids.shape[:2], bool)
    valid[1, 0] = False
    return routecap.Routing.from_arrays(ids, experts=4, valid=valid, weights=weights)


def test_weights_of_a_routing_are_taken_as_they_are_and_missing_cells_have_none() -> None:
    routing = weighted()
    norms = np.full((3, 2, 2), 2.0)
    found = experts.importance(routing, [routing.weights()], [norms])
    nothing = float("nan")
    assert found[0].tolist() == pytest.approx([(0 + 9) / 8, 2 / 8, 16 / 8, nothing], nan_ok=True)
    pairs = experts.coactivation(routing, [routing.weights()])
    assert pairs[0, 0].tolist() == pytest.approx([81 / 64, 0, 72 / 64, 0])


def test_an_expert_whose_weight_is_missing_is_refused_and_counts_nowhere_else() -> None:
    routing, norms = weighted(lacking=2), np.ones((3, 2, 2))
    said = r"routing 1 has experts of which 2 weights or norms are missing \(NaN\)"
    with pytest.raises(ValueError, match=said):
        experts.importance(
            [weighted(), routing], [weighted().weights(), routing.weights()], [norms] * 2
        )
    with pytest.raises(ValueError, match=r"routing 0 has experts of which 3 weights are missing"):
        experts.coactivation(routing, [routing.weights()])
    rest = routing.slice(0, 2)
    assert np.isfinite(experts.coactivation(rest, [rest.weights()])).all()


@pytest.mark.parametrize("side", ["left", "right"])
def test_routings_of_a_padded_batch_come_into_its_order(side: str) -> None:
    given = many(3)
    width = 30
    mask = np.zeros((3, width), bool)
    wanted = np.full((3, width, LAYERS, K), -1)
    there = np.zeros((3, width, LAYERS), bool)
    for number, (routing, ids, valid) in enumerate(given):
        tokens = routing.rows + 1  # the last token was never an input
        begin = width - tokens if side == "left" else 0
        mask[number, begin : begin + tokens] = True
        wanted[number, begin : begin + routing.rows] = np.where(valid[..., None], ids, -1)
        there[number, begin : begin + routing.rows] = valid
    found, valid = experts.in_batch([routing for routing, _, _ in given], mask)
    assert (found == wanted.reshape(-1, LAYERS, K)).all()
    assert (valid == there.reshape(-1, LAYERS)).all()


def test_a_mask_of_another_batch_is_refused() -> None:
    routing, _, _ = random_routing(1, 5)
    with pytest.raises(ValueError, match="rows up to position 4"):
        experts.in_batch([routing], np.ones((1, 4)))
    with pytest.raises(ValueError, match="1 routings: give a routing for each"):
        experts.in_batch([routing], np.ones((2, 5)))
    with pytest.raises(ValueError, match="mask and positions have shapes"):
        experts.in_batch([routing], np.ones((1, 5)), positions=np.zeros((1, 6)))
    with pytest.raises(ValueError, match="does not begin with position 0"):
        experts.in_batch([routing], positions=np.arange(3, 9)[None])


def test_routings_of_a_packed_batch_come_into_its_order() -> None:
    given = many(3)
    texts = [routing.rows + 1 for routing, _, _ in given]
    for lines in ([[0, 1, 2]], [[0, 1], [2]]):  # which texts are in each line
        width = max(sum(texts[text] for text in line) for line in lines) + 3
        positions, mask = np.zeros((2, len(lines), width), int)
        wanted = np.full((len(lines), width, LAYERS, K), -1)
        for number, line in enumerate(lines):
            column = 0
            for text in line:
                routing, ids, valid = given[text]
                positions[number, column : column + texts[text]] = range(texts[text])
                mask[number, column : column + texts[text]] = 1
                wanted[number, column : column + routing.rows] = np.where(valid[..., None], ids, -1)
                column += texts[text]
        found, _ = experts.in_batch([routing for routing, _, _ in given], mask, positions=positions)
        assert (found == wanted.reshape(-1, LAYERS, K)).all()


def test_what_hooks_saw_comes_into_rows_and_columns_of_routings() -> None:
    given = many(3)
    routings = [routing for routing, _, _ in given]
    random = np.random.default_rng(11)
    mask = np.zeros((3, 30), bool)
    for number, routing in enumerate(routings):
        mask[number, 29 - routing.rows :] = True
    chosen, valid = experts.in_batch(routings, mask)
    seen = np.argsort(random.random((len(chosen), LAYERS, EXPERTS)), -1)[..., :K]
    seen[valid] = random.permuted(chosen[valid], axis=-1)  # hooks have them in another order
    weight = random.random(seen.shape)
    worth = {
        (token, layer, expert): weight[token, layer, column]
        for (token, layer, column), expert in np.ndenumerate(seen)
    }
    for shape in ((-1, LAYERS, K), (3, 30, LAYERS, K)):
        [weights, numbers] = experts.from_batch(
            routings,
            mask,
            seen.reshape(shape),
            weight.reshape(shape),
            np.arange(seen.size).reshape(shape),
        )
        assert numbers[0].dtype.kind == "i"
        for number, (routing, ids, there) in enumerate(given):
            first = number * 30 + 29 - routing.rows
            for row, layer in np.ndindex(there.shape):
                mine = weights[number][row, layer].tolist()
                assert mine == [
                    worth[first + row, layer, expert] if there[row, layer] else 0
                    for expert in ids[row, layer]
                ]


def test_a_routing_that_begins_later_lies_behind_its_first_tokens() -> None:
    routing, ids, valid = random_routing(6, 4, first=3)
    mask = np.array([[0, 0, 1, 1, 1, 1, 1, 1, 1, 1]])  # row 3 is of the fourth token
    found, there = experts.in_batch([routing], mask)
    assert (there[5:9] == valid).all() and not there[:5].any() and not there[9].any()
    assert (found[5:9][valid] == ids[valid]).all()
    [[back]] = experts.from_batch([routing], mask, found, found)
    assert (back[valid] == ids[valid]).all()


# A mask or a list of routings in another order gives plausible numbers, of other tokens.
def test_hooks_of_another_batch_are_refused_by_a_cell() -> None:
    routing, ids, valid = random_routing(1, 5)
    seen = ids.astype(np.int64)
    row, layer = np.argwhere(valid)[0]
    seen[row, layer, 0] = next(each for each in range(EXPERTS) if each not in ids[row, layer])
    with pytest.raises(ValueError, match=f"at position {row} of layer {layer}, and the hooks saw"):
        experts.from_batch([routing], np.ones((1, 5)), seen)
    with pytest.raises(ValueError, match=r"\[5, 4, 3\] is expected"):
        experts.from_batch([routing], np.ones((1, 5)), ids[1:])


def test_what_each_step_needs_is_a_union_over_its_requests() -> None:
    given = many(3)
    random = np.random.default_rng(3)
    steps = [np.sort(random.integers(0, 15, routing.rows)) for routing, _, _ in given]
    layer = 2
    counted: dict[int, set[int]] = {}
    for number, row, at, chosen in cells(given):
        if at == layer:
            counted.setdefault(int(steps[number][row]), set()).update(chosen.tolist())
    found = experts.needed([routing for routing, _, _ in given], layer, steps)
    assert [each.tolist() for each in found] == [sorted(counted[step]) for step in sorted(counted)]


def test_without_steps_each_row_is_one() -> None:
    routing, ids, valid = random_routing(5, 9)
    found = experts.needed(routing, 1)
    assert [each.tolist() for each in found] == [
        sorted(ids[row, 1].tolist()) for row in range(9) if valid[row, 1]
    ]
    assert experts.needed(routing[:0], 1) == []


def lru(asked: list[int], slots: int) -> int:
    """The hits of an LRU cache, by what it holds."""
    held: list[int] = []
    hits = 0
    for expert in asked:
        if expert in held:
            hits += 1
            held.remove(expert)
        elif len(held) == slots:
            held.pop(0)
        held.append(expert)
    return hits


def best(asked: list[int], slots: int) -> int:
    """The most hits that any choice of what to drop gives, by trying them all."""

    def tried(place: int, held: frozenset[int]) -> int:
        if place == len(asked):
            return 0
        expert = asked[place]
        if expert in held:
            return 1 + tried(place + 1, held)
        if len(held) < slots:
            return tried(place + 1, held | {expert})
        return max(tried(place + 1, held - {each} | {expert}) for each in held)

    return tried(0, frozenset())


def test_hit_rates_are_those_of_caches_that_were_run() -> None:
    random = np.random.default_rng(4)
    for _ in range(20):
        steps = [random.choice(5, 2, replace=False) for _ in range(6)]
        asked = [expert for step in steps for expert in sorted(step.tolist())]
        rates = experts.hit_rates(steps, (1, 2, 3, 5))
        assert rates.needs == len(asked)
        for number, slots in enumerate((1, 2, 3, 5)):
            assert rates.lru[number] == lru(asked, slots) / len(asked)
            assert rates.optimal[number] == best(asked, slots) / len(asked)


def test_reuse_distances_count_the_experts_between() -> None:
    assert experts.distances([[0], [1], [0], [0, 2], [1]]).tolist() == [-1, -1, 1, 0, -1, 2]

"""Cells with fewer experts than k, layers with a k of their own, and visits of a layer: each against
a plain computation in NumPy over lists of experts.
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import routecap
from routecap import NO_EXPERT, Error, Missing, Routing, Segment, Sequence, analysis, experts
from routecap._html import shown
from routecap.adapter import experts_per_token, layer_names, to_array

EXPERTS, K = 12, 4
RULES: dict[str, Any] = {
    "layer_map": [2, 5, 5, 9],
    "layer_visit": [0, 0, 1, 0],
    "layer_k": [4, 3, 3, 1],
    "layer_min_k": [0, 1, 3, 1],
}
LAYERS = len(RULES["layer_map"])

Cell = list[int] | None
"""The experts of a cell; None: it is missing."""


def cells(rows: int, seed: int = 0, missing: float = 0.2) -> list[list[Cell]]:
    """[rows][layers]"""
    draw = np.random.default_rng(seed)

    def cell(least: int, most: int) -> Cell:
        chosen = draw.permutation(EXPERTS)[: draw.integers(least, most + 1)]
        return None if draw.random() < missing else chosen.tolist()

    rules = list(zip(RULES["layer_min_k"], RULES["layer_k"], strict=True))
    return [[cell(least, most) for least, most in rules] for _ in range(rows)]


def padded(rows: list[list[Cell]], fill: int = -1, none: int = NO_EXPERT) -> np.ndarray:
    """[rows, layers, k] as `ids` gives them."""
    return np.array(
        [[[fill] * K if c is None else c + [none] * (K - len(c)) for c in row] for row in rows],
        np.int64,
    ).reshape(-1, LAYERS, K)


def valid(rows: list[list[Cell]]) -> np.ndarray:
    return np.array([[cell is not None for cell in row] for row in rows]).reshape(-1, LAYERS)


def make(rows: list[list[Cell]], **more: Any) -> Routing:
    return Routing.from_arrays(padded(rows), experts=EXPERTS, **RULES, **more)


def load_of(rows: list[list[Cell]]) -> np.ndarray:
    load = np.zeros((LAYERS, EXPERTS), np.int64)
    for row in rows:
        for layer, cell in enumerate(row):
            for expert in cell or ():
                load[layer, expert] += 1
    return load


# ---- What a routing says


def test_a_routing_says_the_rules_of_its_layers_and_how_many_experts_each_cell_has() -> None:
    rows = cells(40)
    routing = make(rows)
    for name, expected in RULES.items():
        assert getattr(routing, name).tolist() == expected
    assert (routing.k, routing.dtype) == (K, np.dtype(np.uint8))
    assert "k=0 to 4" in repr(routing) and "0 to 4 of 12 experts" in analysis.facts(routing)
    assert routing.counts().dtype == np.uint8
    assert routing.counts().tolist() == [[len(cell or ()) for cell in row] for row in rows]
    assert (routing.mask() == valid(rows)).all()
    assert (routing.ids() == padded(rows)).all()
    assert [each.tolist() for each in routing[3:5]] == padded(rows)[3:5].tolist()
    assert (to_array(routing, -1) == padded(rows)).all()


def test_each_copy_has_its_numbers_for_missing_cells_and_for_no_expert() -> None:
    rows = cells(9)
    routing = make(rows)
    for fill, none in ((-1, -2), (-7, 99), (12, 13)):
        out = np.empty((9, LAYERS, K), np.int32)
        routing.copy_to(out, fill=fill, none=none, mask=np.empty((9, LAYERS), bool))
        assert (out == padded(rows, fill, none)).all()
    ids, mask = routing.masked()
    assert (ids == padded(rows, 0, 255)).all() and (mask == valid(rows)).all()
    assert (routing.masked(np.int64, fill=5, none=-1)[0] == padded(rows, 5, -1)).all()
    with pytest.raises(Error, match="fill and none are both -1"):
        routing.ids(none=-1)
    with pytest.raises(Error, match="would look like expert 3"):
        routing.ids(none=3)
    assert (routing.ids(order="layer_major") == padded(rows).transpose(1, 0, 2)).all()


def test_segments_have_unused_columns_with_every_bit_set_and_make_the_same_routing() -> None:
    rows = cells(6, missing=0)
    routing = make(rows)
    [segment] = routing.segments
    assert segment.ids is not None and (segment.ids == padded(rows, none=255)).all()
    again = Routing.from_segments(
        [segment], layers=LAYERS, k=K, rows=6, dtype=np.uint8, experts=EXPERTS, **RULES
    )
    assert again == routing


def test_256_experts_take_two_bytes_where_a_cell_may_have_fewer() -> None:
    ids = np.array([[[255, NO_EXPERT]], [[0, 255]]])
    routing = Routing.from_arrays(ids, experts=256, layer_min_k=[1])
    assert routing.dtype == np.int16 and (routing.ids() == ids).all()
    [segment] = routing.segments
    assert segment.ids is not None and segment.ids[0, 0].tolist() == [255, -1]
    narrow = Routing.from_arrays(np.array([[[254, NO_EXPERT]]]), experts=255, layer_min_k=[1])
    assert narrow.dtype == np.uint8 and narrow.counts().tolist() == [[1]]
    assert narrow.masked()[0].tolist() == [[[254, 255]]]
    assert Routing.from_arrays(np.array([[[255, 0]]]), experts=256).dtype == np.uint8


@pytest.mark.parametrize(
    "cell, said",
    [
        ([1, -2, 2, -2], "row 0, layer 0"),
        ([1, 1, -2, -2], "row 0, layer 0"),
        ([1, 12, -2, -2], r"ids\[0, 0\]"),
        ([1, -3, -2, -2], r"ids\[0, 0\]"),
        ([-2, -2, -2, 3], "row 0, layer 0"),
    ],
)
def test_a_cell_that_its_rule_does_not_allow_is_refused(cell: list[int], said: str) -> None:
    with pytest.raises(Error, match=said):
        Routing.from_arrays([[cell]], experts=EXPERTS, layer_min_k=[0], valid=np.array([[True]]))


def test_more_or_fewer_than_a_layer_allows_are_refused_and_rules_that_make_no_sense() -> None:
    with pytest.raises(Error, match="2 to 2 distinct experts"):
        Routing.from_arrays([[[1, 2, 3]]], experts=EXPERTS, layer_k=[2])
    with pytest.raises(Error, match="2 to 3 distinct experts"):
        Routing.from_arrays([[[1, -2, -2]]], experts=EXPERTS, layer_min_k=[2])
    for more in ({"layer_k": [4]}, {"layer_min_k": [4]}, {"layer_k": [0]}):
        with pytest.raises(Error, match=f"{next(iter(more))} is"):
            Routing.from_arrays([[[1, 2, 3]]], experts=EXPERTS, **more)
    for name in RULES:
        with pytest.raises(Error, match=f"{name} has 3 elements for 1 layers"):
            Routing.from_arrays([[[1, 2, 3]]], experts=EXPERTS, **{name: [0, 1, 2]})
    with pytest.raises(Error, match="5 in visit 0"):
        Routing.from_arrays([[[1], [2]]], experts=EXPERTS, layer_map=[5, 5])


def test_minus_one_is_missing_and_never_no_expert_unless_valid_says_which() -> None:
    ids = np.array([[[3, -1]], [[-1, -1]]])
    with pytest.raises(Error, match="some of its experts are missing"):
        Routing.from_arrays(ids, experts=EXPERTS, layer_min_k=[0])
    with pytest.raises(Error, match="none is -1, which also says that a cell is missing"):
        Routing.from_arrays(ids, experts=EXPERTS, layer_min_k=[0], none=-1)
    made = Routing.from_arrays(
        ids, experts=EXPERTS, layer_min_k=[0], none=-1, valid=np.array([[True], [True]])
    )
    assert made.counts().tolist() == [[1], [0]] and made.complete
    kept = Routing.from_arrays(
        made.masked()[0], experts=EXPERTS, layer_min_k=[0], none=-1, valid=made.mask()
    )
    assert kept == made


# ---- Round trips


def test_files_bytes_pickles_and_slices_keep_rules_and_cells(tmp_path: Path) -> None:
    routing = make(cells(30), first=3, tags=np.arange(30))
    assert Routing.deserialize(routing.serialize()) == routing
    for protocol in (4, 5):
        assert pickle.loads(pickle.dumps(routing, protocol)) == routing
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(routing, 5, buffer_callback=buffers.append)
    assert buffers and pickle.loads(data, buffers=buffers) == routing
    assert routing[5:9] == routing.slice(8, 4)
    assert routecap.merge([routing[:10], routing[10:]]) == routing
    for name in ("a.routecap", "b.tar", "c.safetensors"):
        if name.endswith("safetensors"):
            pytest.importorskip("safetensors")
        routecap.save(tmp_path / name, routing)
        [sample] = routecap.load(tmp_path / name).values()
        assert sample.routing == routing


def test_a_stored_routing_gives_all_visits_of_the_layers_that_are_asked_for() -> None:
    rows = cells(20)
    stored = routecap.StoredRouting(make(rows).serialize())
    part = stored.of_layers([5, 9]).read(4, 6)
    assert part.layer_map.tolist() == [5, 5, 9] and part.layer_visit.tolist() == [0, 1, 0]
    assert part.layer_min_k.tolist() == [1, 3, 1]
    assert (part.ids() == padded(rows)[4:10, 1:]).all()


def test_formats_of_the_wire_that_cannot_say_it_refuse_by_name() -> None:
    routing = make(cells(3, missing=0))
    for name in ("raw", "npy", "lists"):
        with pytest.raises(Error, match="fewer than 4 experts") as refused:
            routing.to_wire(name, dtype=None if name == "lists" else "int32")
        assert refused.value.status is routecap.Status.ERR_LOSSY
    assert (
        Routing.from_wire(routing.to_wire("serialized"), "serialized", experts=EXPERTS) == routing
    )


def test_layers_with_rules_of_their_own_are_merged_by_index_and_visit() -> None:
    rows = cells(8)
    whole = make(rows)

    def part(columns: list[int]) -> Routing:
        return Routing.from_arrays(
            padded(rows)[:, columns],
            experts=EXPERTS,
            **{name: np.array(values)[columns] for name, values in RULES.items()},
        )

    merged = routecap.merge([part([2, 3]), part([0, 1])])
    assert (merged.ids() == whole.ids()).all()
    for name, expected in RULES.items():
        assert getattr(merged, name).tolist() == expected
    other = Routing.from_arrays(
        np.zeros((8, 1, K), int) + np.arange(K), experts=EXPERTS, layer_map=[2], layer_min_k=[1]
    )
    with pytest.raises(Error) as refused:
        routecap.merge([whole, other])
    assert refused.value.status is routecap.Status.ERR_SHAPE_MISMATCH


# ---- Capturing


def capturer(**more: Any) -> routecap.Capturer:
    return routecap.Capturer(
        layers=LAYERS, k=K, experts=EXPERTS, rows=64, manual_progress=True, **RULES, **more
    )


def captured(taken: routecap.Capturer, rows: list[list[Cell]], record: Any, **more: Any) -> Routing:
    request = taken.open()
    taken.begin(len(rows))
    record()
    taken.snapshot()
    taken.issue(routecap.spans(1, request=int(request), rows=len(rows)), **more)
    taken.progress()
    routing = request.finish()
    routing.wait()
    return routing


def test_a_capturer_says_its_rules() -> None:
    with capturer() as taken:
        for name, expected in RULES.items():
            assert getattr(taken, name).tolist() == expected
        assert "k=0 to 4" in repr(taken)
    for name in RULES:
        with pytest.raises(Error, match=f"{name} has 2 elements for 4 layers"):
            routecap.Capturer(layers=4, k=4, experts=12, rows=8, **{name: [1, 2]})


@pytest.mark.parametrize("none", [-1, EXPERTS, 255])
def test_what_a_router_records_is_read(none: int) -> None:
    rows = cells(30, missing=0)
    ids = padded(rows, none=none)
    with capturer() as taken:

        def record() -> None:
            for layer, k in enumerate(RULES["layer_k"]):
                fewer = RULES["layer_min_k"][layer] < k
                own = np.ascontiguousarray(ids[:, layer, :k]).astype(np.int32)
                taken.record(layer, own, none=none if fewer else None)

        assert (captured(taken, rows, record).ids() == padded(rows)).all()


def test_a_source_of_several_layers_has_the_columns_of_the_widest() -> None:
    rows = cells(10, missing=0)
    ids = np.ascontiguousarray(padded(rows, none=-1).transpose(1, 0, 2))
    with capturer() as taken:

        def record() -> None:
            taken.record_layers({layer: ids[layer] for layer in (0, 1)}, none=-1)
            taken.record_layers({2: ids[2, :, :3].copy()})
            taken.record_layers({3: ids[3]}, columns=4)

        assert (captured(taken, rows, record).ids() == padded(rows)).all()
        taken.begin(10)
        with pytest.raises(Error, match=r"has k=3: \(rows, 3\) is expected"):
            taken.record(1, ids[1])


def test_a_number_for_no_expert_is_refused_where_all_tokens_have_k_and_if_it_is_0() -> None:
    with capturer() as taken:
        taken.begin(1)
        with pytest.raises(Error, match="every token has 3 experts in layer 5 in visit 1|layer 2"):
            taken.record(2, np.array([[1, 2, 3]]), none=-1)
        with pytest.raises(Error, match="none is 0, which is an expert"):
            taken.record(0, np.array([[1, 2, 3, 4]]), none=0)


def test_without_a_stated_number_minus_one_is_out_of_range() -> None:
    with routecap.Capturer(
        layers=1, k=2, experts=8, rows=4, layer_min_k=[0], manual_progress=True
    ) as taken:
        routing = captured(taken, [[None]], lambda: taken.record(0, np.array([[3, -1]])))
        assert routing.reasons().tolist() == [[Missing.OUT_OF_RANGE]]


def test_a_router_writes_no_expert_into_the_sink() -> None:
    rows = cells(12, missing=0)
    with capturer() as taken:

        def record() -> None:
            for layer, k in enumerate(RULES["layer_k"]):
                sink = taken.sink(layer)
                assert isinstance(sink, np.ndarray) and sink.shape[1] == k
                sink[:12] = padded(rows)[:, layer, :k]

        assert (captured(taken, rows, record).ids() == padded(rows)).all()


def test_extracting_into_an_array_takes_both_numbers() -> None:
    rows = cells(5, missing=0)
    ids = padded(rows)
    with capturer() as taken:
        request = taken.open()
        taken.begin(5)
        for layer, k in enumerate(RULES["layer_k"]):
            sink = taken.sink(layer)
            assert isinstance(sink, np.ndarray)
            sink[:5] = ids[:, layer, :k]
        taken.snapshot()
        taken.issue(routecap.spans(1, request=int(request), rows=5))
        taken.progress()
        out = np.empty((5, LAYERS, K), np.int16)
        request.extract_into(out, none=77)
        assert (out == padded(rows, none=77)).all()


def test_the_load_leaves_unused_columns_out() -> None:
    rows = cells(20, missing=0)
    with capturer(load=True) as taken:

        def record() -> None:
            for layer, k in enumerate(RULES["layer_k"]):
                sink = taken.sink(layer)
                assert isinstance(sink, np.ndarray)
                sink[:20] = padded(rows)[:, layer, :k]

        captured(taken, rows, record)
        load = taken.load()
        assert (load.total == load_of(rows)).all()
        both = load_of(rows)
        logical = load.logical_count()
        assert (logical[5] == both[1] + both[2]).all() and (logical[9] == both[3]).all()
        assert load.layer_visit.tolist() == RULES["layer_visit"]


def test_a_store_and_a_sequence_take_rows_with_the_same_rules_alone() -> None:
    rows = cells(8)
    routing = make(rows)
    sequence = Sequence.like(routing)
    sequence.append(list(range(9)), routing)
    assert sequence.routing() == routing
    assert pickle.loads(pickle.dumps(sequence)).routing() == routing
    other = Sequence(LAYERS, K, EXPERTS, **{**RULES, "layer_min_k": [1, 1, 3, 1]})
    with pytest.raises(Error) as refused:
        other.append(list(range(9)), routing)
    assert refused.value.status is routecap.Status.ERR_SHAPE_MISMATCH
    with capturer() as taken, routecap.Store(taken, block_rows=4) as store:
        request = taken.open()
        request.attach(routing)
        keys = routecap.key_chain(range(8), 4)
        request.publish(store, 0, keys)
        taken.progress()
        again = taken.open()
        found = again.adopt(store, 0, keys)
        taken.progress()
        assert found.rows in (4, 8) or not valid(rows).all()
        with routecap.Store(layers=LAYERS, k=K, experts=EXPERTS, block_rows=4) as plain:
            with pytest.raises(Error):
                again.adopt(plain, 0, keys)


# ---- Plans

GOLDEN = Path(__file__).parents[3] / "tests" / "plan" / "golden" / "fewer.json"


@pytest.mark.parametrize("case", json.loads(GOLDEN.read_text()), ids=lambda case: case["order"])
def test_the_golden_cells_with_fewer_experts_are_gathered_and_scattered(case: Any) -> None:
    rules = {name: case[name] for name in ("layer_k", "layer_min_k")}
    rules["layer_visit"] = case["visits"]
    routings = [
        Routing.from_arrays(
            np.array(
                [
                    [
                        (c or []) + [-2 if c is not None else -1] * (case["k"] - len(c or []))
                        for c in row
                    ]
                    for row in rows
                ],
                np.int64,
            ).reshape(len(rows), len(case["layers"]), case["k"]),
            experts=case["experts"],
            layer_map=case["layers"],
            **rules,
        )
        for rows in case["cells"]
    ]
    plan = routecap.Plan(
        case["lengths"],
        layers=case["layers"],
        k=case["k"],
        experts=case["experts"],
        order=case["order"],
        fill="balanced" if case["fill"] is None else case["fill"],
        lost=case["lost"],
        none=case["none"],
        **rules,
    )
    gathered = plan.gather(routings)
    assert gathered.ids.ravel().tolist() == case["ids"]
    assert gathered.classes.ravel().tolist() == case["classes"]
    assert gathered.report.cells_lost == case["cells_lost"]
    packed, out = np.zeros(plan.packed_bytes, np.uint8), np.empty(plan.shape, plan.dtype)
    plan.pack(routings, packed)
    plan.unpack(packed, out)
    assert (out == gathered.ids).all()
    for routing, back in zip(routings, plan.scatter(out, gathered.classes), strict=True):
        assert (back.ids()[: routing.rows] == routing.ids()).all()


def test_a_plan_lays_out_fewer_experts_with_its_number_and_reads_them_back() -> None:
    rows = [cells(5, 1), cells(3, 2)]
    routings = [make(each) for each in rows]
    for none, order in ((NO_EXPERT, "row_major"), (99, "layer_major")):
        plan = routecap.Plan(
            [6, 4],
            layers=RULES["layer_map"],
            k=K,
            experts=EXPERTS,
            fill=-5,
            lost=-1,
            none=none,
            order=order,
            **{name: RULES[name] for name in ("layer_k", "layer_min_k", "layer_visit")},
        )
        expected = np.full((10, LAYERS, K), -5, np.int64)
        expected[:5], expected[6:9] = padded(rows[0], -1, none), padded(rows[1], -1, none)
        by_row = (lambda ids: ids) if order == "row_major" else (lambda ids: ids.transpose(1, 0, 2))
        gathered = plan.gather(routings)
        assert (by_row(gathered.ids) == expected).all()
        packed = np.zeros(plan.packed_bytes, np.uint8)
        plan.pack(routings, packed)
        out = np.empty(plan.shape, plan.dtype)
        plan.unpack(packed, out)
        assert (by_row(out) == expected).all()
        for routing, back in zip(routings, plan.scatter(gathered.ids, gathered.classes)):
            assert (back.ids()[: routing.rows] == routing.ids()).all()
            assert back.layer_min_k.tolist() == RULES["layer_min_k"]


def test_balanced_filling_gives_each_layer_its_k() -> None:
    plan = routecap.Plan(
        [5],
        layers=RULES["layer_map"],
        k=K,
        experts=EXPERTS,
        order="row_major",
        **{name: RULES[name] for name in ("layer_k", "layer_min_k", "layer_visit")},
    )
    ids = plan.gather([make(cells(0))[:0]]).ids[-1]
    for layer, k in enumerate(RULES["layer_k"]):
        assert (ids[layer, :k] >= 0).all() and (ids[layer, k:] == NO_EXPERT).all()
        assert len(set(ids[layer, :k].tolist())) == k


def test_a_plan_refuses_a_number_that_is_an_expert_and_routings_of_other_rules() -> None:
    with pytest.raises(Error, match="would look like expert 3"):
        routecap.Plan([4], layers=1, k=2, experts=8, layer_min_k=[0], none=3)
    plan = routecap.Plan([4], layers=1, k=2, experts=8, layer_min_k=[0])
    with pytest.raises(Error, match="layer 0 has 2 to 2 of 8 experts .*, 0 to 2 of 8 in the plan"):
        plan.gather([Routing.from_arrays(np.zeros((3, 1, 2), int) + [0, 1], experts=8)])


# ---- Figures


def test_load_balance_and_calibration_count_experts_and_no_unused_column() -> None:
    rows = cells(60)
    routing = make(rows)
    assert (analysis.expert_load(routing) == load_of(rows)).all()
    used = experts.usage([routing, routing])
    assert (used.tokens == 2 * load_of(rows)).all()
    assert used.layer_visit.tolist() == RULES["layer_visit"]
    assert analysis.balance(load_of(rows)).active.tolist() == (load_of(rows) > 0).sum(1).tolist()


def test_pairs_and_importance_are_of_experts_that_were_chosen() -> None:
    rows = cells(40)
    routing = make(rows)
    draw = np.random.default_rng(3)
    weights, norms = draw.random((40, LAYERS, K)), draw.random((40, LAYERS, K))
    pairs = np.zeros((LAYERS, EXPERTS, EXPERTS), np.int64)
    weighed = np.zeros((LAYERS, EXPERTS, EXPERTS))
    added = np.zeros((LAYERS, EXPERTS))
    for r, row in enumerate(rows):
        for l, cell in enumerate(row):
            for i, a in enumerate(cell or ()):
                added[l, a] += weights[r, l, i] * norms[r, l, i]
                for j, b in enumerate(cell or ()):
                    pairs[l, a, b] += 1
                    weighed[l, a, b] += weights[r, l, i] * weights[r, l, j]
    assert (experts.coactivation(routing) == pairs).all()
    np.testing.assert_allclose(experts.coactivation(routing, [weights]), weighed)
    with np.errstate(invalid="ignore"):
        mean = added / np.where(load_of(rows) > 0, load_of(rows), np.nan)
    np.testing.assert_allclose(experts.importance(routing, [weights], [norms]), mean)


def test_what_a_step_needs_is_what_its_cells_chose() -> None:
    rows = cells(15)
    steps = [sorted(set(row[1] or ())) for row in rows]
    found = experts.needed(make(rows), 5)
    assert [each.tolist() for each in found] == [each for each in steps if each]


def test_hooks_of_a_batch_find_the_columns_of_each_expert() -> None:
    rows = cells(7)
    routing, mask = make(rows), np.ones((1, 8), int)
    ids, there = experts.in_batch([routing], mask)
    assert (ids[:7] == padded(rows)).all() and (there[:7] == valid(rows)).all()
    draw = np.random.default_rng(4)
    seen = experts.in_batch([routing], mask, none=-9)[0]
    turned = np.argsort(draw.random(seen.shape), -1)
    mine = draw.random(seen.shape)
    [[back]] = experts.from_batch(
        [routing],
        mask,
        np.take_along_axis(seen, turned, -1),
        np.take_along_axis(mine, turned, -1),
        none=-9,
    )
    chosen = padded(rows) >= 0
    assert (back[chosen] == mine[:7][chosen]).all() and not back[~chosen].any()


def test_two_routings_differ_where_their_sets_of_experts_do() -> None:
    ours, theirs = cells(50, 5), cells(50, 6)
    for row in range(0, 50, 3):
        theirs[row] = [None if c is None else c[::-1] for c in ours[row]]
    theirs[1][0], ours[1][0] = [4], [4, 7]
    both = [[(a, b) for a, b in zip(*each)] for each in zip(ours, theirs)]

    def total(figure: Any) -> list[int]:
        return [
            sum(figure(a, b) for a, b in (row[layer] for row in both)) for layer in range(LAYERS)
        ]

    def of_both(figure: Any) -> Any:
        return lambda a, b: 0 if a is None or b is None else int(figure(a, b))

    found = analysis.difference(make(ours), make(theirs))
    assert found.layer_map.tolist() == RULES["layer_map"]
    assert found.layer_visit.tolist() == RULES["layer_visit"]
    assert found.cells.tolist() == total(of_both(lambda a, b: True))
    assert found.ordered.tolist() == total(of_both(lambda a, b: a != b))
    assert found.sets.tolist() == total(of_both(lambda a, b: set(a) != set(b)))
    assert found.ids.tolist() == total(of_both(lambda a, b: max(len(a), len(b))))
    assert found.common.tolist() == total(of_both(lambda a, b: len(set(a) & set(b))))
    drift = analysis.drift(make(ours), make(theirs))
    assert drift.differs.sum(axis=0).tolist() == found.sets.tolist()
    assert drift.layer_visit.tolist() == RULES["layer_visit"]


def test_layers_are_named_by_their_visit_and_tokens_by_how_many_experts_they_get() -> None:
    assert layer_names([2, 5, 5], [0, 0, 1]) == ["2", "5", "5, visit 1"]
    assert layer_names([2, 5]) == ["2", "5"]
    assert experts_per_token(np.array([4, 4]), np.array([4, 4])) == "4"
    assert experts_per_token(np.array([4, 2]), np.array([4, 1])) == "1 to 4"
    page = shown(make(cells(20)))
    assert "0 to 4 of 12 experts" in page


def test_rows_of_another_shape_are_named_segment_by_segment() -> None:
    with pytest.raises(
        Error, match=r"ids must be a C-contiguous array of uint8 of shape \(1, 1, 2\)"
    ):
        Routing.from_segments(
            [Segment(0, 1, np.zeros((1, 1, 3), np.uint8), None, None, 0)],
            layers=1,
            k=2,
            rows=1,
            dtype=np.uint8,
            experts=8,
            layer_min_k=[0],
        )

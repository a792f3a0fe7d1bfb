"""Ids that are held until the last router has run: as right as those that are recorded one by one,
also where an engine writes over them."""

import numpy as np
import pytest
import torch
from engine import Model, Router

import routecap
from routecap_vllm import _forward
from routecap_vllm import routed_experts_capturer as module


class OverwritingRouter(Router):
    """Its kernels put something else where its ids were."""

    def select_experts(self, tokens, positions):
        weights, ids = super().select_experts(tokens, positions)
        chosen = ids.clone()
        ids.zero_()
        return weights, chosen


class SharingRouter(Router):
    """All of its layers leave their ids in one buffer."""

    buffer = torch.zeros(64, 4, dtype=torch.int32)

    def _compute_routing(self, tokens, positions):
        weights, ids = super()._compute_routing(tokens, positions)
        self.buffer[: len(ids)] = ids
        return weights, self.buffer[: len(ids)]


@pytest.fixture
def calls(monkeypatch):
    """The layers of each call that recorded any, since the list was emptied."""
    found = []
    record, record_layers = routecap.Capturer.record, routecap.Capturer.record_layers

    def one(self, layer, *args, **kwargs):
        found.append([layer])
        record(self, layer, *args, **kwargs)

    def several(self, sources, **kwargs):
        found.append(sources.layers["layer"].tolist())
        record_layers(self, sources, **kwargs)

    monkeypatch.setattr(routecap.Capturer, "record", one)
    monkeypatch.setattr(routecap.Capturer, "record_layers", several)
    return found


def step(model, name, first, tokens):
    positions = torch.arange(first, first + len(tokens))
    model(torch.tensor(tokens), positions)
    module.issue_routing_d2h_copy([name], {name: len(tokens)}, positions, positions)


@pytest.mark.parametrize(
    ("router", "together"),
    [(Router, True), (OverwritingRouter, False), (SharingRouter, False)],
    ids=["ids that stay", "ids that are written over", "ids in one buffer"],
)
def test_layers_are_recorded_at_once_where_a_pass_has_proven_that_ids_stay(
    start, calls, router, together
):
    model = Model(router=router)
    start(model)
    step(model, "a", 0, [10, 11, 12])
    assert calls == [[0], [1], [2], [3]]  # the pass that proves
    for position in (3, 4):
        calls.clear()
        step(model, "a", position, [20 + position])
        assert calls == ([[0, 1, 2, 3]] if together else [[0], [1], [2], [3]])
    rows = module.get_global_experts_capturer().get_routed_experts("a")
    np.testing.assert_array_equal(rows, model.expected([10, 11, 12, 23, 24]))


def test_a_layer_that_does_not_route_in_a_pass_is_missing_there_and_not_the_last_pass_s(
    start, calls
):
    model = Model()
    start(model)
    for position in range(3):
        model.moe[3].skip = position == 2
        step(model, "a", position, [10 + position])
    assert calls[-1] == [0, 2, 3]
    expected = model.expected([10, 11, 12])
    expected[2, 1] = -1
    np.testing.assert_array_equal(
        module.get_global_experts_capturer().get_routed_experts("a"), expected
    )


def test_graphs_of_parts_leave_their_ids_in_memory_that_is_recorded_after_each_replay(
    start, calls, monkeypatch
):
    """Captured once for each of two batch sizes; later passes call no router, as replays."""
    capturing, replayed = [False], [None]
    model = Model()
    start(model)
    forward = module.get_global_experts_capturer().forward
    monkeypatch.setattr(forward, "_is_capturing", lambda: capturing[0])
    monkeypatch.setattr(_forward, "_pieces", lambda: replayed[0])
    step(model, "warm-up", 0, [5])
    kept = {}

    def one(size):
        """A pass of which every layer is in a graph."""
        replayed[0] = size
        forward.begin(size)
        if size not in kept:
            capturing[0] = True
            kept[size] = [torch.zeros(size, 4, dtype=torch.int32) for _ in range(4)]
            for layer, ids in enumerate(kept[size]):
                forward.route(layer, ids)
            capturing[0] = False

    def replay(size, tokens, first):
        one(size)
        positions = torch.arange(first, first + len(tokens))
        for ids, moe in zip(kept[size], filter(None, model.moe), strict=True):
            chosen = moe.router._compute_routing(torch.tensor(tokens), positions)[1]
            ids[: len(tokens)] = chosen
        forward.end()
        replayed[0] = None
        module.issue_routing_d2h_copy(["a"], {"a": len(tokens)}, positions, positions)

    for size in (4, 8):
        one(size)
        forward.end()
        replayed[0] = None
    calls.clear()
    replay(4, [10, 11, 12], 0)
    replay(8, [13, 14, 15, 16, 17], 3)
    replay(4, [18], 8)
    assert calls == [[0, 1, 2, 3]] * 3
    step(model, "a", 9, [19])  # an eager pass between them
    expected = model.expected(range(10, 20))
    np.testing.assert_array_equal(
        module.get_global_experts_capturer().get_routed_experts("a"), expected
    )
    for moe in filter(None, model.moe):
        moe.skip = True
    step(model, "b", 0, [30])  # nothing ran: no graph's old ids pass for it
    rows = module.get_global_experts_capturer().get_routed_experts("b")
    assert rows is None or (rows == -1).all()

"""Cells with fewer experts, and layers with a k of their own, recorded by PyTorch alone and held."""

from typing import Any

import numpy as np
import pytest
import routecap
import routecap.torch
import torch
from routecap.adapter import HeldIds

RULES: dict[str, Any] = {
    "layers": 3,
    "k": 3,
    "experts": 8,
    "layer_k": [3, 2, 1],
    "layer_min_k": [0, 2, 1],
}
CHOSEN = [[[5], [4, 0], [7]], [[], [1, 2], [6]], [[1, 2, 3], [7, 3], [0]]]
IDS = np.array([[cell + [routecap.NO_EXPERT] * (3 - len(cell)) for cell in row] for row in CHOSEN])


def sources(none: int) -> dict[int, torch.Tensor]:
    ids = torch.from_numpy(np.where(IDS == routecap.NO_EXPERT, none, IDS)).to(torch.int32)
    return {layer: ids[:, layer, :k].contiguous() for layer, k in enumerate(RULES["layer_k"])}


def routing_of(capturer: routecap.Capturer, rows: int) -> routecap.Routing:
    request = capturer.open()
    capturer.issue(routecap.spans(1, request=int(request), rows=rows)).wait()
    routing = request.finish()
    routing.wait()
    return routing


def rows_of(capturer: routecap.Capturer) -> Any:
    return routing_of(capturer, 3).ids()


@pytest.mark.parametrize("none", [-1, 8])
@pytest.mark.parametrize("at_once", [False, True])
def test_pytorch_records_fewer_experts(none: int, at_once: bool) -> None:
    with routecap.torch.Capturer(**RULES, rows=8, device="cpu") as capturer:
        assert [capturer.sink(layer).shape[1] for layer in range(3)] == [3, 2, 1]
        capturer.begin(3)
        ids = sources(none)
        if at_once:
            capturer.record_layers({0: ids[0]}, none=none)
            capturer.record_layers({1: ids[1], 2: ids[1]}, columns=2)
            expected = IDS.copy()
            expected[:, 2, 0] = IDS[:, 1, 0]
        else:
            for layer, each in ids.items():
                capturer.record(layer, each, none=none if layer == 0 else None)
            expected = IDS
        assert (rows_of(capturer) == expected).all()


def test_pytorch_takes_minus_two_for_no_expert_only_where_it_is_said() -> None:
    for experts in (8, 1 << 15):
        with routecap.torch.Capturer(
            layers=1, k=2, experts=experts, layer_min_k=[0], rows=4, device="cpu"
        ) as capturer:
            capturer.begin(3)
            capturer.record(0, torch.tensor([[3, -2], [-2, -2], [3, 4]], dtype=torch.int16))
            assert rows_of(capturer)[:, 0].tolist() == [[-1, -1], [-1, -1], [3, 4]]


def test_a_number_for_no_expert_is_refused_where_every_token_has_k() -> None:
    with routecap.torch.Capturer(**RULES, rows=8, device="cpu") as capturer:
        capturer.begin(3)
        with pytest.raises(routecap.Error, match="every token has 2 experts in layer 1"):
            capturer.record(1, sources(-1)[1], none=-1)
        with pytest.raises(routecap.Error, match="none is 0"):
            capturer.record(0, sources(-1)[0], none=0)
        with pytest.raises(routecap.Error, match=r"k=2: \(rows, 2\) is expected"):
            capturer.record(1, sources(-1)[0])


def test_ids_that_are_held_have_their_number_in_layers_that_allow_fewer() -> None:
    with routecap.Capturer(**RULES, rows=8) as capturer:
        held = HeldIds(capturer, none=-1)
        for _ in range(2):  # one pass proves, the next is recorded at once
            held.begin()
            ids = sources(-1)
            capturer.begin(3)
            for layer, each in ids.items():
                if not held.hold(layer, each, capturing=False):
                    capturer.record(layer, each, none=-1 if layer == 0 else None)
            held.record()
            capturer.snapshot()
            assert (rows_of(capturer) == IDS).all()
        assert held.recorded == 3


LAYERS, K, EXPERTS, ROWS = 3, 2, 8, 4


def weighed(draw: np.random.Generator) -> tuple[Any, Any, Any]:
    """The ids of each layer and their weights, and these as [rows, layers, k]."""
    ids = np.stack([[draw.permutation(EXPERTS)[:K] for _ in range(ROWS)] for _ in range(LAYERS)])
    weights = draw.random(ids.shape, np.float32)
    return (
        [torch.from_numpy(each) for each in ids],
        [torch.from_numpy(each.copy()) for each in weights],
        weights.swapaxes(0, 1),
    )


# A layer with weights was recorded where its router ran: a kernel for each, 0.17 ms of a step of 48.
def test_weights_are_held_with_their_ids_and_are_the_whole_step() -> None:
    draw = np.random.default_rng(0)
    shape: dict[str, Any] = {"layers": LAYERS, "k": K, "experts": EXPERTS, "weights": "float32"}
    with routecap.Capturer(**shape, rows=ROWS) as capturer:
        held = HeldIds(capturer)
        for turn in range(4):
            ids, weights, expected = weighed(draw)
            held.begin()
            if not held.proven:
                capturer.begin(ROWS)
            for layer in range(LAYERS):
                if not held.hold(layer, ids[layer], False, weights[layer]):
                    capturer.record(layer, ids[layer], weights=weights[layer])
            at_once = held.proven
            held.end_step(held.settle(ROWS if at_once else -1), lambda: None)
            assert at_once == (turn > 0)
            assert held.recorded == (LAYERS if at_once else 0)
            routing = routing_of(capturer, ROWS)
            assert (routing.ids() == np.stack(ids, 1)).all()
            assert (routing.weights() == expected).all()


@pytest.mark.parametrize("seen", ["in the first pass", "later"])
def test_a_model_that_writes_over_weights_has_each_layer_recorded(
    seen: str, caplog: pytest.LogCaptureFixture
) -> None:
    draw = np.random.default_rng(1)
    shape: dict[str, Any] = {"layers": LAYERS, "k": K, "experts": EXPERTS, "weights": "float32"}
    with routecap.Capturer(**shape, rows=ROWS) as capturer:
        held = HeldIds(capturer)
        for turn in range(3):
            ids, weights, expected = weighed(draw)
            held.begin()
            capturer.begin(ROWS)
            for layer in range(LAYERS):
                if not held.hold(layer, ids[layer], False, weights[layer]):
                    capturer.record(layer, ids[layer], weights=weights[layer])
            spoilt = turn == (0 if seen == "in the first pass" else 1)
            if spoilt:
                weights[1].mul_(2)
            held.end_step(held.settle(), lambda: None)
            routing = routing_of(capturer, ROWS)
            valid = (routing.ids() >= 0).all(2)
            assert valid[:, 1].all() == (not spoilt or turn == 0) and valid[:, (0, 2)].all()
            assert (routing.weights()[valid] == expected[valid]).all()
        assert not held.proven and "writes over what its routers choose" in caplog.text

"""The weights beside ids, against plain NumPy."""

import pickle
from typing import Any

import numpy as np
import pytest

import routecap
from routecap.adapter import describe, to_packed

KINDS = ["float32", "float16", "bf16"]
LAYERS, K, EXPERTS, ROWS = 5, 3, 20, 16


def chosen(rng: np.random.Generator) -> np.ndarray[Any, Any]:
    return np.array([rng.permutation(EXPERTS)[:K] for _ in range(LAYERS * ROWS)], np.int32).reshape(
        LAYERS, ROWS, K
    )


def weighed(rng: np.random.Generator, kind: str) -> tuple[Any, Any]:
    """Weights as an engine has them, and the same as float32."""
    weights = rng.normal(size=(LAYERS, ROWS, K)).astype(np.float32)
    if kind != "bf16":
        given = weights.astype(kind)
        return given, given.astype(np.float32)
    bits = (weights.view(np.uint32) >> 16).astype(np.uint16)
    return bits, (bits.astype(np.uint32) << 16).view(np.float32)


def of_rows(array: Any) -> Any:
    return np.ascontiguousarray(array.transpose(1, 0, 2))


def capture(kind: str, rng: np.random.Generator, way: str) -> tuple[routecap.Routing, Any, Any]:
    ids, (given, wide) = chosen(rng), weighed(rng, kind)
    dtype = {"weights_dtype": "bf16"} if kind == "bf16" else {}
    with routecap.Capturer(
        layers=LAYERS, k=K, experts=EXPERTS, rows=ROWS, weights=kind, sink_dtype=np.int32
    ) as capturer:
        request = capturer.open()
        if way == "whole":
            capturer.record_layers(ids, weights=given, whole_step=True, **dtype)
        else:
            capturer.begin(ROWS)
            for layer in range(LAYERS):
                if way == "sink":
                    capturer.sink(layer)[:] = ids[layer]
                    capturer.weights_sink(layer)[:] = given[layer]
                else:
                    capturer.record(layer, ids[layer], weights=given[layer], **dtype)
            capturer.snapshot()
        capturer.issue(routecap.spans(request=request, position=0, rows=ROWS)).wait()
        return request.extract(), of_rows(ids), of_rows(wide)


@pytest.mark.parametrize("way", ["each", "whole", "sink"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_routing_has_the_weights_that_were_recorded(kind: str, way: str) -> None:
    routing, ids, wide = capture(kind, np.random.default_rng(1), way)
    assert (
        routing.weights_dtype
        == routecap.Dtype[{"float32": "F32", "float16": "F16"}.get(kind, "BF16")]
    )
    assert np.array_equal(routing.ids(), ids)
    mask = np.zeros((ROWS, LAYERS), bool)
    weights = routing.weights(mask=mask)
    assert weights.dtype == np.float32 and mask.all()
    assert np.array_equal(weights, wide)
    assert np.array_equal(
        routing.weights(order="layer_major", first_layer=2, layers=2),
        wide[:, 2:4].transpose(1, 0, 2),
    )
    assert routing.coverage().cells_weighted == ROWS * LAYERS
    again = routecap.Routing.deserialize(routing.serialize())
    for other in (again, pickle.loads(pickle.dumps(routing, 5)), routing.slice(0)):
        assert np.array_equal(other.weights(), wide)
        assert other == routing
    assert routecap.serialized_info(routing.serialize()).weights_dtype == routing.weights_dtype


def nowhere(kind: str) -> Any:
    """An array without rows, and without an address, as one of torch."""
    return describe(np.empty((0, K), kind), "array")._replace(address=0)


# An array without rows may have no address, which was taken for weights that were left out.
@pytest.mark.parametrize("way", ["each", "several", "whole"])
def test_a_pass_without_rows_has_no_weights_either(way: str) -> None:
    ids, weights = nowhere("int32"), nowhere("float32")
    with routecap.Capturer(layers=2, k=K, experts=EXPERTS, rows=ROWS, weights="f32") as capturer:
        if way != "whole":
            capturer.begin(0)
        if way == "each":
            for layer in range(2):
                capturer.record(layer, ids, weights=weights)
        else:
            both = {0: ids, 1: ids}, {0: weights, 1: weights}
            capturer.record_layers(both[0], weights=both[1], whole_step=way == "whole")
        if way != "whole":
            capturer.snapshot()
        capturer.issue(routecap.spans(0)).wait()
        assert capturer.stats().steps_lost == 0


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_bring_weights_and_a_NaN_is_none(kind: str) -> None:
    rng = np.random.default_rng(2)
    ids, (given, wide) = of_rows(chosen(rng)), [of_rows(each) for each in weighed(rng, kind)]
    nan = np.array(0x7FC0, np.uint16) if kind == "bf16" else np.array(np.nan, kind)
    given[3, 1, 0] = nan
    valid = rng.random((ROWS, LAYERS)) < 0.8
    valid[3, 1] = True
    routing = routecap.Routing.from_arrays(
        ids, experts=EXPERTS, valid=valid, weights=given, weights_dtype=kind
    )
    there = valid.copy()
    there[3, 1] = False
    mask = np.zeros((ROWS, LAYERS), bool)
    weights = routing.weights(mask=mask)
    assert np.array_equal(mask, there)
    assert np.array_equal(weights[there], wide[there]) and np.isnan(weights[~there]).all()
    kept = routing.weights(kind)
    assert kept.dtype == (np.uint16 if kind == "bf16" else np.dtype(kind))
    assert np.array_equal(kept[there], given[there])
    with pytest.raises(routecap.Error):
        routing.weights(strict=True)


def test_columns_without_an_expert_have_the_weight_0() -> None:
    ids = np.array([[[3, 1, -2], [5, -2, -2]]])
    weights = np.array([[[0.5, 0.25, np.nan], [1, np.nan, 7]]], np.float32)
    routing = routecap.Routing.from_arrays(
        ids, experts=8, layer_min_k=[1, 1], weights=weights, layer_k=[3, 3]
    )
    assert np.array_equal(routing.weights(), [[[0.5, 0.25, 0], [1, 0, 0]]])


def test_a_sequence_and_a_plan_have_the_weights_of_their_rows() -> None:
    routing, ids, wide = capture("bf16", np.random.default_rng(3), "each")
    sequence = routecap.Sequence.like(routing)
    sequence.append(list(range(ROWS + 1)), routing)
    assert np.array_equal(sequence.routing().weights(), wide)
    plan = routecap.Plan(
        [ROWS + 1], layers=LAYERS, k=K, experts=EXPERTS, dtype=np.int32, align=4, order="row_major"
    )
    gathered = plan.gather({0: routing})
    weights = plan.gather_weights({0: routing})
    needed = gathered.classes == 0
    assert needed.any() and not needed.all()
    assert np.array_equal(weights[needed].reshape(-1, K), wide.reshape(-1, K))
    assert not weights[~needed].any()
    missing = routing.slice(2)
    weights = plan.gather_weights({0: missing}, missing=-1.0)
    assert (weights[:2] == -1).all() and np.array_equal(weights[2:ROWS], wide[2:])


def test_what_weights_are_not() -> None:
    ids = np.array([[0, 1], [2, 3]], np.int32)
    with routecap.Capturer(layers=1, k=2, experts=4, rows=2, weights="float16") as capturer:
        capturer.begin(2)
        with pytest.raises(routecap.DtypeError, match="weights=|f16"):
            capturer.record(0, ids, weights=np.zeros((2, 2), np.float32))
        with pytest.raises(routecap.Error, match="shape"):
            capturer.record(0, ids, weights=np.zeros((2, 1), np.float16))
    with routecap.Capturer(layers=1, k=2, experts=4, rows=2) as plain:
        plain.begin(2)
        with pytest.raises(routecap.Error, match="keeps none"):
            plain.record(0, ids, weights=np.zeros((2, 2), np.float16))
    with pytest.raises(routecap.DtypeError, match="no type of weights"):
        routecap.Capturer(layers=1, k=2, experts=4, rows=2, weights="int8")
    routing = routecap.Routing.from_arrays(np.array([[[0, 1]]]), experts=4)
    assert routing.weights_dtype is None
    with pytest.raises(routecap.DtypeError, match="no weights"):
        routing.weights()


def test_ids_and_weights_are_packed_as_they_are_one_by_one() -> None:
    with routecap.Capturer(
        layers=3, k=2, experts=300, rows=8, layer_min_k=[2, 0, 2], weights="float32"
    ) as capturer:
        draw = np.random.default_rng(5)
        ids = np.stack([[draw.permutation(300)[:2] for _ in range(3)] for _ in range(5)])
        ids[2, 1], ids[3, 1, 1] = routecap.NO_EXPERT, routecap.NO_EXPERT
        weights = draw.random(ids.shape, np.float32)
        weights[4, 2, 0] = np.nan
        capturer.begin(6)
        for layer in range(3):
            capturer.record(
                layer,
                ids[:, layer].copy(),
                none=-2 if layer == 1 else None,
                weights=weights[:, layer].copy(),
            )
        capturer.snapshot()
        request = capturer.open()
        capturer.issue(routecap.spans(1, request=int(request), rows=6)).wait()
        routing = request.finish()
        routing.wait()
        packed = to_packed(routing, -1)
        assert packed.dtype == np.int32 and (packed[5, :, :2] == -1).all()
        assert (packed[..., :2] == routing.ids()).all()
        found = np.ascontiguousarray(packed[..., 2:]).view(np.float32)
        assert (found.view(np.int32) == routing.weights().view(np.int32)).all()

"""Ids and weights in one int32 array, against plain NumPy."""

from typing import Any

import numpy as np
import pytest

import routecap

ROWS, LAYERS, K, EXPERTS = 6, 3, 2, 300


def arrays() -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    ids = np.array([rng.permutation(EXPERTS)[:K] for _ in range(ROWS * LAYERS)], np.int32)
    weights = rng.normal(size=(ROWS, LAYERS, K)).astype(np.float32)
    weights[0, 0] = [0.0, -0.0]
    return ids.reshape(ROWS, LAYERS, K), weights


def test_the_ids_come_first_and_then_the_bits_of_the_weights() -> None:
    ids, weights = arrays()
    routing = routecap.Routing.from_arrays(ids, experts=EXPERTS, weights=weights)
    array = routecap.prime_rl.packed(routing)
    assert array.dtype == np.int32
    assert np.array_equal(array, np.concatenate([ids, weights.view(np.int32)], -1))
    again = routecap.prime_rl.read(array, experts=EXPERTS)
    assert again == routing
    assert again.weights().tobytes() == weights.tobytes()


def test_dense_layers_have_columns_of_zeros_and_rows_begin_where_they_are_wanted() -> None:
    ids, weights = arrays()
    layer_map = [1, 3, 4]
    routing = routecap.Routing.from_arrays(
        ids, experts=EXPERTS, weights=weights, layer_map=layer_map, first=7
    )
    array = routecap.prime_rl.packed(routing, layers=6, first=7)
    assert array.shape == (ROWS, 6, 2 * K) and not array[:, [0, 2, 5]].any()
    assert np.array_equal(array[:, layer_map, K:], weights.view(np.int32))
    again = routecap.prime_rl.read(array, experts=EXPERTS, layer_map=layer_map, first=7)
    assert again == routing and np.array_equal(again.weights(), weights)


def test_narrow_weights_are_widened() -> None:
    ids, weights = arrays()
    half = weights.astype(np.float16)
    routing = routecap.Routing.from_arrays(ids, experts=EXPERTS, weights=half)
    array = routecap.prime_rl.packed(routing)
    assert np.array_equal(array[..., K:], half.astype(np.float32).view(np.int32))


def test_what_the_array_cannot_say_is_refused() -> None:
    ids, weights = arrays()
    with pytest.raises(routecap.DtypeError, match="no weights"):
        routecap.prime_rl.packed(routecap.Routing.from_arrays(ids, experts=EXPERTS))
    lacking = weights.copy()
    lacking[2, 1, 0] = np.nan
    with pytest.raises(routecap.Error):
        routecap.prime_rl.packed(
            routecap.Routing.from_arrays(ids, experts=EXPERTS, weights=lacking)
        )
    valid = np.ones((ROWS, LAYERS), bool)
    valid[3, 2] = False
    with pytest.raises(routecap.Error, match="cannot say that a cell is missing"):
        routecap.prime_rl.packed(
            routecap.Routing.from_arrays(ids, experts=EXPERTS, weights=weights, valid=valid)
        )
    for wrong in (np.zeros((2, 1, 3), np.int32), np.zeros((2, 1, 4), np.int64)):
        with pytest.raises(routecap.Error, match="2 \\* k"):
            routecap.prime_rl.read(wrong, experts=EXPERTS)

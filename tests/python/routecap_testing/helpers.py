"""Steps whose ids are known, and routings with holes."""

from typing import Any

import numpy as np
import routecap
from numpy.typing import NDArray

LAYERS, K, EXPERTS, ROWS = 5, 4, 64, 64


def expected_ids(
    seed: int, rows: int, *, layers: int = LAYERS, k: int = K, experts: int = EXPERTS
) -> NDArray[np.int32]:
    """[rows, layers, k] ids, distinct in each cell, that a model of this seed would choose."""
    row, layer, column = np.ogrid[:rows, :layers, :k]
    return ((seed * 7 + row * 13 + layer * 29 + column * 5) % experts).astype(np.int32)


def forward(capturer: routecap.Capturer, ids: Any) -> None:
    """One forward pass, whose routers choose ids [rows, layers, k]."""
    capturer.begin(len(ids))
    for layer in range(capturer.layers):
        capturer.record(layer, ids[:, layer])
    capturer.snapshot()


def run(
    capturer: routecap.Capturer,
    request: routecap.Request,
    ids: Any,
    *,
    position: int = 0,
    **options: Any,
) -> routecap.Step:
    """A step of one request that has landed."""
    forward(capturer, ids)
    step = capturer.issue(
        routecap.spans(1, request=request, position=position, rows=len(ids)),
        **options,
    )
    step.wait(10)
    return step


def a_row_of_each_reason(tag: int = 0) -> routecap.Routing:
    """As many rows as there are reasons, in their order: all cells of a row are missing for it."""
    rows = len(routecap.Missing)
    ids = np.zeros((rows, LAYERS, K), np.uint8)
    ids[:, :, 0] = np.array(list(routecap.Missing))[:, None]  # a cell's first id is its reason
    validity = np.zeros((rows, -(-LAYERS // 8)), np.uint8)
    return routecap.Routing.from_segments(
        [routecap.Segment(0, rows, ids, validity, None, tag)],
        layers=LAYERS,
        k=K,
        rows=rows,
        dtype="u8",
        experts=EXPERTS,
    )


def random_routing(
    seed: int,
    rows: int,
    *,
    layers: int = 4,
    k: int = 3,
    experts: int = 12,
    first: int = 0,
    layer_map: Any = None,
) -> tuple[routecap.Routing, NDArray[np.int64], NDArray[np.bool_]]:
    """A routing with holes, its ids and its validity."""
    random = np.random.default_rng(seed)
    ids = np.argsort(random.random((rows, layers, experts)), axis=2)[..., :k]
    valid = random.random((rows, layers)) < 0.8
    return (
        routecap.Routing.from_arrays(
            ids, experts=experts, valid=valid, first=first, layer_map=layer_map
        ),
        ids,
        valid,
    )

"""Steps of random traffic, and what brute force counts of them."""

from typing import Any

import numpy as np
import routecap

LAYERS, K, EXPERTS, ROWS = 5, 3, 12, 16


def capturer(**settings: Any) -> routecap.Capturer:
    shape = {"layers": LAYERS, "k": K, "experts": EXPERTS, "rows": ROWS, "load": True}
    return routecap.Capturer(**{**shape, **settings})


def step(
    capturer: routecap.Capturer,
    ids: np.ndarray,
    spans: Any,
    **options: Any,
) -> routecap.Step:
    """A forward pass of ids [rows, layers, k]."""
    capturer.begin(len(ids))
    for layer in range(ids.shape[1]):
        capturer.record(layer, ids[:, layer].astype(np.int32))
    capturer.snapshot()
    issued = capturer.issue(spans, **options)
    issued.wait()
    return issued


def drawn(random: np.random.Generator, rows: int) -> np.ndarray:
    return np.argsort(random.random((rows, LAYERS, EXPERTS)), axis=2)[..., :K]


def counted(ids: np.ndarray) -> np.ndarray:
    """[layers, experts]"""
    counts = np.zeros((LAYERS, EXPERTS), np.uint64)
    for layer in range(LAYERS):
        np.add.at(counts[layer], ids[:, layer].ravel(), 1)
    return counts

"""A rollout process: captures, writes what it captured as objects, and answers with references.

It stands in for an engine: the rows are computed from a number, so that a rank can say of each row
whether it is right."""

from typing import Any

import numpy as np
import routecap
import servers
from routecap import remote


def routing_of(shape: dict[str, int], seed: int, rows: int) -> routecap.Routing:
    """Rows that anyone can make again."""
    start = np.random.default_rng(seed).integers(
        0, shape["experts"], (rows, shape["layers"], 1), np.uint8
    )
    ids = (start.astype(np.int16) + np.arange(shape["k"]) * 5) % shape["experts"]
    return routecap.Routing.from_arrays(ids.astype(np.uint8), experts=shape["experts"], tags=seed)


class Rollout:
    def __init__(self, url: str, settings: dict[str, Any], shape: dict[str, int]) -> None:
        self._store, self._shape = servers.connect(url, settings), shape

    def generate(self, seeds: list[int], lengths: list[int]) -> list[Any]:
        """References to the rows of sequences of these lengths."""
        written = [
            remote.write(self._store, routing_of(self._shape, seed, length - 1), generation=seed)
            for seed, length in zip(seeds, lengths)
        ]
        return written if self._store.scheme == "ray" else [each.to_dict() for each in written]

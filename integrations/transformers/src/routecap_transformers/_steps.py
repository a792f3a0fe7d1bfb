"""Which forward pass computed each row."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import routecap
from routecap.adapter import layers_of

Numbers = NDArray[np.int64]
"""[rows] of forward passes, from 0 on; -1: none."""


class Steps:
    """Numbers of forward passes. Rows carry them in the place of their tag until they are taken."""

    def __init__(self) -> None:
        self._tags: list[int] = [0]  # by mark; that of rows that are not there is 0

    def mark(self, tag: int) -> int:
        """For the rows of the next forward pass, which are to have this tag."""
        self._tags.append(tag)
        return len(self._tags) - 1

    def taken(
        self, routings: list[routecap.Routing]
    ) -> tuple[list[routecap.Routing], list[Numbers]]:
        """The routings with their own tags; and of each, which forward pass computed each row."""
        tags, marks = np.array(self._tags, np.uint64), [each.tags for each in routings]
        told = [_with_tags(each, tags[mine]) for each, mine in zip(routings, marks)]
        return told, [mine.astype(np.int64) - 1 for mine in marks]


def _with_tags(routing: routecap.Routing, tags: NDArray[np.uint64]) -> routecap.Routing:
    segments = []
    for each in routing.segments:
        start = each.first - routing.first
        mine = None if each.ids is None else tags[start : start + each.rows]
        segments.append(each._replace(tags=mine, tag=0))
    return routecap.Routing.from_segments(
        segments,
        layers=routing.layers,
        k=routing.k,
        rows=routing.rows,
        first=routing.first,
        dtype=routing.dtype,
        weights_dtype=routing.weights_dtype,
        layer_provenance=routing.layer_provenance,
        id_space=routing.id_space,
        trusted=True,
        **layers_of(routing),
    )

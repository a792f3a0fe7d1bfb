"""A case with what is known of it, as the checks see it; and words for where something is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from routecap import Routing
from routecap.models import Description

from ._case import Case

CELLS = 1 << 20  # looked at in one go: bounds the memory that a long routing takes

ALIKE = 0.8
"""Share of the ids that two captures of one text have in common, at least. Other kernels, batches
and precisions change up to a tenth of the choices; one row further a fraction is the same."""

_NO_EXPERT = 1 << 31
"""An id from here on is none, but may be in a file."""

Bools = NDArray[np.bool_]


class NotCheckedError(Exception):
    """A check could not be made, for the reason in the text."""


class Found(NamedTuple):
    """Something wrong that a check has found."""

    what: str
    meaning: str
    like: str
    """The number of a published failure."""


@dataclass(eq=False)
class Subject:
    case: Case
    tokens: NDArray[np.int64] | None
    """By position. Only the model needs the ids; other checks only compare tokens."""
    are_ids: bool
    """Whether they are token ids; otherwise texts of tokens, numbered."""
    against: Case | None
    model: Description | None
    live: Callable[[NDArray[np.int64]], Routing] | None
    control: bool
    alike: float = ALIKE
    others: list[Subject] = field(default_factory=list)
    """The other cases that are examined."""
    notes: list[str] = field(default_factory=list)

    @property
    def ids(self) -> NDArray[Any]:
        return self.case.ids

    @cached_property
    def is_routing(self) -> bool:
        """Whether there are rows, layers and columns."""
        return self.ids.ndim == 3 and self.ids.dtype.kind in "iu" and 0 not in self.ids.shape

    @cached_property
    def has_every_layer(self) -> bool:
        """Whether its layers are all those of the decoder, dense ones too."""
        model, layers = self.model, self.ids.shape[1]
        return (
            model is not None
            and model.layer_map is not None
            and model.decoder_layers == layers != model.layers
        )

    @cached_property
    def dense(self) -> Bools:
        """[layers] True for layers that do not route."""
        layers = np.array(self.case.layer_map or range(self.ids.shape[1]))
        if (
            self.model is None
            or self.model.layer_map is None
            or not (self.case.layer_map or self.has_every_layer)
        ):
            return np.zeros(len(layers), bool)
        return ~np.isin(layers, self.model.layer_map)

    @cached_property
    def numbers(self) -> NDArray[Any]:
        """`ids`, or smaller numbers, equal for equal ids, where some are so large that one more
        overflows.
        """
        if not self.ids.size or -_NO_EXPERT < self.ids.min() and self.ids.max() < _NO_EXPERT:
            return self.ids
        return np.unique(self.ids, return_inverse=True)[1].reshape(self.ids.shape)

    @cached_property
    def filled(self) -> Bools:
        """[rows, layers] cells that are not marked as missing, and have the largest number of an
        unsigned type, which was -1 once, in every column.
        """
        if self.ids.dtype.kind != "u" or self.ids.shape[2] < 2:
            return np.zeros(self.ids.shape[:2], bool)
        filled: Bools = (self.ids == np.iinfo(self.ids.dtype).max).all(axis=2)
        return filled & self.case.valid

    @cached_property
    def valid(self) -> Bools:
        """[rows, layers] cells that should have experts."""
        return self.case.valid & ~self.dense & ~self.filled

    @cached_property
    def experts(self) -> NDArray[np.int64] | None:
        """[layers] how many experts each layer has, if that is known."""
        if self.case.experts is not None or self.model is None:
            return self.case.experts
        layers = self.ids.shape[1]
        if self.model.layer_experts is not None and self.model.layers == layers:
            return np.array(self.model.layer_experts)
        return None if self.model.experts is None else np.full(layers, self.model.experts)

    @cached_property
    def bits(self) -> float:
        """How many bits of information a row can have. If it is not known how many experts there
        are, the largest id counts.
        """
        k = self.ids.shape[2]
        seen = min(int(self.ids[self.valid].max(initial=0)), _NO_EXPERT) + 1
        experts = self.experts if self.experts is not None else np.full(self.ids.shape[1], seen)
        per_layer = sum(np.log2(np.maximum(experts - column, 1)) for column in range(k)) - sum(
            np.log2(range(1, k + 1))
        )
        return float(np.maximum(per_layer, 0)[~self.dense].sum())

    @cached_property
    def row_digests(self) -> NDArray[np.uint64]:
        """[rows] equal numbers for equal rows, in all cases of this shape; 0 for rows that are
        incomplete or have expert 0 alone.
        """
        rows = self.ids[:, ~self.dense].reshape(len(self.ids), -1)
        weights = np.random.default_rng(1).integers(1, 1 << 63, rows.shape[1], np.uint64)
        step = max(CELLS // max(rows.shape[1], 1), 1)
        digests = [
            rows[first : first + step].astype(np.uint64) @ weights
            for first in range(0, len(rows), step)
        ]
        return np.where(
            self.valid[:, ~self.dense].all(axis=1), np.concatenate(digests), np.uint64(0)
        )

    @cached_property
    def _by_digest(self) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """`row_digests` in ascending order, and the row of each."""
        order = np.argsort(self.row_digests, kind="stable")
        return self.row_digests[order], order

    def rows_of(self, digests: NDArray[np.uint64]) -> NDArray[np.int64]:
        """For each digest a row that has it, or -1. No row has digest 0."""
        known, row = self._by_digest
        place = np.minimum(np.searchsorted(known, digests), len(known) - 1)
        return np.where((known[place] == digests) & (digests != 0), row[place], -1)

    @cached_property
    def row_tokens(self) -> NDArray[np.int64] | None:
        """[rows] the token of each row, -1 after the last token."""
        if self.tokens is None:
            return None
        positions = self.case.first + np.arange(len(self.ids))
        known = positions < len(self.tokens)
        return np.where(
            known, self.tokens[np.where(known, positions, 0)] if len(self.tokens) else -1, -1
        )

    # ---- Words

    def layer(self, index: Any) -> int:
        """The number of a layer in the decoder, or in the file if that is not known."""
        return self.case.layer_map[index] if self.case.layer_map else int(index)

    def rows(self, first: int, end: int) -> str:
        first, end = first + self.case.first, end + self.case.first
        return f"row {first}" if end - first == 1 else f"rows {first} to {end - 1}"

    def layers(self, chosen: Bools) -> str:
        """Names the chosen ones of [layers]: "layers 0 to 2, 5"."""
        parts = [
            str(self.layer(first))
            if end - first == 1
            else f"{self.layer(first)} to {self.layer(end - 1)}"
            for first, end in runs(chosen)
        ]
        return ("layer " if chosen.sum() == 1 else "layers ") + ", ".join(parts)

    def cells(self, chosen: Bools) -> str:
        """Says where the chosen ones of [rows, layers] are."""
        rows, layers = np.nonzero(chosen)
        first = f"row {rows[0] + self.case.first} of layer {self.layer(layers[0])}"
        return first if len(rows) == 1 else f"{len(rows)} cells, the first in {first}"


def away(shift: int) -> str:
    return f"{abs(shift)} {'later' if shift > 0 else 'earlier'}"


def runs(flags: Bools) -> list[tuple[int, int]]:
    """(first, end) of each run of consecutive true flags."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist()))

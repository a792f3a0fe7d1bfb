"""How alike two answers are where their tokens are the same, and whether that is noise.

A batch of another size rounds otherwise, so that experts that are nearly tied change places: a few
ids of a row. The row of another token, request or position has hardly more ids in common with the
right one than any two rows have. So a row counts as another one where it is nearer to that.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..doctor._case import Case
from ..doctor._subject import Found, away, runs
from ._engines import Answer, CannotError

FEW = 0.005
"""Share of the rows of a check that may be other ones: see docs/conform.md, "Noise"."""
IN_PART = 1 / 8
"""Other rows for each row that differs in part, of which noise has fewer: it changes few ids of
many rows, and many of few. What is wrong with an engine changes whole rows."""
IN_A_ROW = 3
"""Other rows one behind the other in one answer, of which noise has fewer."""
_TELLS = 0.75
"""How alike a row and its neighbour may be, so that rows can be told apart."""
_SHIFTED = 0.9
"""Of the ids, if a shift explains what differs."""
_SHIFTS = (-1, 1, -2, 2, -3, 3)

Shares = NDArray[np.float64]


def shares(one: Case, other: Case, shift: int = 0) -> Shares:
    """[positions, layers] of the ids of `one`, how many `other` has, `shift` positions later. NaN:
    one of the two has no such cell.

    Raises:
        CannotError: They have different layers.
    """
    if one.ids.shape[1:] != other.ids.shape[1:]:
        raise CannotError(f"rows have the shapes {one.ids.shape} and {other.ids.shape}")
    found = np.full((one.first + len(one.ids), one.ids.shape[1]), np.nan)
    at = np.arange(one.first, len(found)) + shift - other.first
    rows = np.flatnonzero((at >= 0) & (at < len(other.ids)))
    at = at[rows]
    same = one.ids[rows][..., :, None] == other.ids[at][..., None, :]
    both = one.valid[rows] & other.valid[at]
    found[one.first + rows] = np.where(both, same.any(axis=3).mean(axis=2), np.nan)
    return found


def mean(values: Any, axis: int | None = None) -> Any:
    """The mean of what is no NaN; NaN if nothing is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.nanmean(values, axis=axis)


def in_common(one: Answer, other: Answer) -> int:
    """How many rows of two answers have to be equal: those of the tokens with which both begin. The
    last token of an answer has no row."""
    both = min(len(one.tokens), len(other.tokens))
    different = np.array(one.tokens[:both]) != np.array(other.tokens[:both])
    return int(different.argmax()) if different.any() else both - 1


@dataclass
class Tally:
    """What a check compared."""

    rows: int = 0
    cells: int = 0
    cells_different: int = 0
    cells_missing: int = 0
    rows_in_part: int = 0
    """Differ and are no other ones."""
    rows_other: int = 0

    @property
    def noisy(self) -> bool:
        """Most rows differ in part, so that some other ones say nothing."""
        return self.rows_in_part > self.rows / 2

    def add(self, more: Tally) -> None:
        for name, value in vars(more).items():
            setattr(self, name, getattr(self, name) + value)


def limit_of(case: Case) -> float:
    """Below this share of ids a row is nearer to its neighbours' than to its own.

    Raises:
        CannotError: The rows say too little, or neighbours are too much alike.
    """
    neighbours = float(mean(shares(case, case, 1)))
    if not neighbours < _TELLS:
        raise CannotError(
            f"a row and the next have {neighbours:.0%} of their ids in common: they cannot be told "
            "apart"
        )
    return (1 + neighbours) / 2


def compare(one: Answer, other: Answer, what: str, like: str, tally: Tally) -> Iterator[Found]:
    """Rows of tokens that both answers have in common have to be the same. What is compared is
    added to the tally."""
    if one.case is None or other.case is None:
        raise CannotError("an answer has no rows")
    end = in_common(one, other)
    limit = limit_of(one.case)
    found = shares(one.case, other.case)[:end]
    by_row, there = mean(found, axis=1), np.isfinite(found)
    others = by_row < limit
    by_layer = mean(found[~others], axis=0)
    own = Tally(
        rows=int(np.isfinite(by_row).sum()),
        cells=int(there.sum()),
        cells_different=int((found < 1).sum()),
        cells_missing=int((~there).sum()),
        rows_in_part=int((by_row[~others] < 1).sum()),
        rows_other=int(others.sum()),
    )
    tally.add(own)
    if not own.rows:
        return
    longest = max(runs(others), key=lambda run: run[1] - run[0], default=(0, 0))
    if longest[1] - longest[0] >= IN_A_ROW and not own.noisy:
        yield Found(
            f"rows {longest[0]} to {longest[1] - 1} differ in {what}: "
            f"{mean(by_row[slice(*longest)]):.0%} of the ids are the same",
            _explained(one.case, other.case, longest),
            like,
        )
    for layer in np.flatnonzero(by_layer < limit):
        yield Found(
            f"layer {layer} differs in {what}: {by_layer[layer]:.0%} of the ids are the same",
            "Something else wrote this layer.",
            "F17",
        )


def _explained(one: Case, other: Case, where: tuple[int, int]) -> str:
    """What rows are that should be the same and are not."""
    for case in (one, other):
        rows = case.ids[max(where[0] - case.first, 0) : max(where[1] - case.first, 0)]
        if len(rows) and not rows.any():
            return "They are zeros in one of the two: rows that nobody captured."
    for shift in _SHIFTS:
        if mean(mean(shares(one, other, shift), axis=1)[slice(*where)]) > _SHIFTED:
            return f"They are those of the tokens {away(-shift)} in one of the two."
    return "In one of the two they are of other tokens, of another request or of other weights."

"""How alike two answers are where their tokens are the same, and whether that is noise.

A batch of another size rounds otherwise, so that experts that are nearly tied change places: a few
ids of a row. The row of another token, request or position has hardly more ids in common with the
right one than any two rows have. So a row counts as another one where it is nearer to that.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..doctor.adapter import Case, Found, away, runs
from ._engines import Answer, CannotError

IN_PART = 1 / 8
"""Other rows for each row that differs in part, of which noise has fewer: it changes few ids of
many rows, and many of few. What is wrong with an engine changes whole rows."""
FAR = 1 / 32
"""Of these, how many may have no more in common than any two rows."""
IN_A_ROW = 3
"""Other rows one behind the other in one answer, of which noise has fewer."""
_QUIET = 1 / 20
"""Of the rows, how many may differ in part where the last row of an answer is held to be no noise."""
_RANDOM = 1 / 4
"""Of the cells of two equal batches, how many may differ."""
_IN_LAYER = 1 / 4
"""Of the cells of a layer, how many may differ where those beside it hardly do,"""
_BESIDE = 1 / 8
"""which is this much less: rounding that changes a layer changes the next as well."""
HIDES = "this noise hides faults"
_NOISY = 2 / 5
"""Of the rows of equal tokens in different batches, how many may differ in part. Beyond, noise makes
other rows as well, one behind the other."""
_SOME = 4
"""Rows of a request, at least, for it to show how much noise there is."""
_FAR = 8
"""Rows one behind the other that noise leaves nearer to the right ones than to those of others, on
average, by as much again."""
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
    rows_hidden: int = 0
    """Of comparisons in which the engine's noise hides faults. They are counted in nothing below."""
    rows_in_part: int = 0
    """Differ and are no other ones."""
    rows_other: int = 0
    rows_far: int = 0
    """Of these: have no more in common than any two rows."""
    ends_other: int = 0
    """Of the other ones: the last row of an answer, where hardly a row differs in part."""

    @property
    def noisy(self) -> bool:
        """Most rows differ in part, or may, so that some other ones say nothing."""
        return self.rows_in_part + self.rows_hidden > self.rows / 2

    @property
    def more_than_noise(self) -> bool:
        """More rows are other ones than noise makes, or further off."""
        other, far = (max(share * self.rows_in_part, 1) for share in (IN_PART, FAR))
        return self.rows_other > other or self.rows_far > far

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


def chance_of(limit: float) -> float:
    """How far rows are at most, as a share of ids, that have no more in common than any two: half
    as far from the limit as rows that are equal."""
    return limit - (1 - limit) / 2


@dataclass(frozen=True)
class Noise:
    """How rows of equal tokens differ in different batches of an engine."""

    in_part: float = 0.0
    """Of the rows that are no other ones, how many differ."""
    same: float = 1.0
    """Of their ids, how many do not."""
    limit: float = 1.0
    """As of `limit_of`."""

    @property
    def hides(self) -> bool:
        """So much of it is there that a fault of a few rows could be noise."""
        return self.in_part > _NOISY

    def __str__(self) -> str:
        return (
            f"{self.in_part:.0%} of the rows of equal tokens differ in another batch, and have "
            f"{self.same:.0%} of their ids in common, those of other tokens {2 * self.limit - 1:.0%}"
        )


def noise_of(pairs: Iterable[tuple[Answer, Answer]]) -> Noise:
    """Of requests, each computed in two batches. Rows count from the first that differs on: those
    before may be out of a cache. Other rows are left out and the median of the requests is taken, so
    that a fault in some of the rows, or of the requests, is no noise."""
    found = []
    for one, other in pairs:
        try:
            ours = rows_of(one)
            limit = limit_of(ours)
            by_row = mean(shares(ours, rows_of(other))[: in_common(one, other)], axis=1)
        except CannotError:
            continue
        own = by_row[by_row >= limit]
        if (own < 1).any():
            own = own[int((own < 1).argmax()) :]
        if len(own) >= _SOME:
            found.append((float((own < 1).mean()), float(own.mean()), limit))
    return Noise(*np.median(found, axis=0).tolist()) if found else Noise()


@dataclass
class Layers:
    """How many cells of each layer a check compared, and how many differ, in rows that are no other
    ones."""

    cells: NDArray[np.int64] | None = None
    different: NDArray[np.int64] | None = None
    case: Case | None = None
    """Whose layers these are."""

    def add(self, found: Shares, case: Case) -> None:
        self.case = case
        cells, different = np.isfinite(found).sum(axis=0), (found < 1).sum(axis=0)
        if self.cells is None or self.different is None or self.cells.shape != cells.shape:
            self.cells, self.different = cells, different
        else:
            self.cells, self.different = self.cells + cells, self.different + different

    def alone(self) -> Iterator[Found]:
        """Layers that differ in part while those beside them do not."""
        if self.case is None or self.cells is None or self.different is None:
            return
        if len(self.cells) < 2:
            return
        share = self.different / np.maximum(self.cells, 1)
        beside = np.maximum(np.append(share[1:], 0), np.insert(share[:-1], 0, 0))
        for layer in np.flatnonzero((share > _IN_LAYER) & (beside < share * _BESIDE)):
            if self.different[layer] >= IN_A_ROW:
                yield Found(
                    f"layer {layer_name(self.case, layer)} differs in part in {share[layer]:.0%} "
                    f"of its cells, and those beside it in at most {beside[layer]:.0%}",
                    "Rounding would change the next layer as well: these ids are changed, or drawn "
                    "at random.",
                    "F17",
                )


def layer_name(case: Case, layer: Any) -> str:
    """Of the decoder, if that is known, with the captured one where it is another number."""
    number = case.layer_map[layer] if case.layer_map else layer
    return f"{number}" if number == layer else f"{number} (captured layer {layer})"


def rows_of(answer: Answer) -> Case:
    """The rows of an answer.

    Raises:
        CannotError: There are none.
    """
    case = answer.case
    if case is None:
        raise CannotError("an answer has no rows")
    if case.ids.ndim != 3 or case.ids.dtype.kind not in "iu" or 0 in case.ids.shape:
        raise CannotError(f"an answer has no rows of ids, but {case.ids.shape} {case.ids.dtype}")
    return case


def compare(
    one: Answer,
    other: Answer,
    what: str,
    like: str,
    tally: Tally,
    layers: Layers,
    noise: Callable[[], Noise],
    equal: bool = False,
) -> Iterator[Found]:
    """Rows of tokens that both answers have in common have to be the same. What is compared is
    added to the tally.

    noise: of the engine, which is asked for where rows differ in part.
    equal: the engine computed the same both times, and nothing else, so that nothing rounds
        otherwise.
    """
    ours, theirs = rows_of(one), rows_of(other)
    if ours.ids.shape[1:] != theirs.ids.shape[1:]:
        shapes = " and ".join("x".join(map(str, each.ids.shape[1:])) for each in (ours, theirs))
        yield Found(f"rows have {shapes} ids in {what}", "Its reader has to guess.", "F21")
        return
    end = in_common(one, other)
    limit = limit_of(ours)
    found = shares(ours, theirs)[:end]
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
        rows_far=int((by_row < chance_of(limit)).sum()),
    )
    quiet = own.rows_in_part <= own.rows * _QUIET
    to_end = others.any() and not (by_row[others.argmax() :] == 1).any()  # as noise, once it began
    hidden = not equal and bool(to_end or not quiet) and noise().hides
    if hidden:
        own.rows_hidden, own.rows_in_part, own.rows_other, own.rows_far = own.rows, 0, 0, 0
    if quiet:
        ends = {each.first + len(each.ids) - 1 for each in (ours, theirs)}
        own.ends_other = sum(bool(others[row]) for row in ends if row < len(others))
    tally.add(own)
    layers = Layers() if equal else layers  # noise of other batches hides nothing here
    layers.add(found[~others], ours)
    if not own.rows:
        return
    if hidden:
        limit = chance_of(limit)
        longest = _farthest(by_row, limit)
    else:
        longest = max(runs(others), key=lambda run: run[1] - run[0], default=(0, 0))
    if longest[1] - longest[0] >= IN_A_ROW and (hidden or equal or not own.noisy):
        yield Found(
            f"rows {longest[0]} to {longest[1] - 1} differ in {what}: "
            f"{mean(by_row[slice(*longest)]):.0%} of the ids are the same",
            _explained(ours, theirs, longest),
            like,
        )
    for layer in np.flatnonzero(by_layer < limit):
        yield Found(
            f"layer {layer_name(ours, layer)} differs in {what}: {by_layer[layer]:.0%} of the ids "
            "are the same",
            "Something else wrote this layer.",
            "F17",
        )
    if equal:
        yield from layers.alone()
    if equal and own.more_than_noise:
        yield many(own, like)
    if equal and own.cells_different > _RANDOM * own.cells:
        yield Found(
            f"{own.cells_different} of {own.cells} cells differ in {what}",
            "The engine computed the same both times: these ids are changed, or drawn at random.",
            like,
        )


def _farthest(by_row: NDArray[np.float64], limit: float) -> tuple[int, int]:
    """Of the rows one behind the other those that have least in common, if that is below the limit."""
    if len(by_row) < _FAR:
        return 0, 0
    windows = mean(np.lib.stride_tricks.sliding_window_view(by_row, _FAR), axis=1)
    at = int(np.where(np.isnan(windows), 1, windows).argmin())
    return (at, at + _FAR) if windows[at] < limit else (0, 0)


def many(tally: Tally, like: str) -> Found:
    return Found(
        f"{tally.rows_other} of {tally.rows} rows are nearer to those of other tokens than to the "
        f"ones that they are compared with, and {tally.rows_far} are as far off as any two",
        "So many are no noise.",
        like,
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

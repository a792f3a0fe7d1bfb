"""Checks that compare a file with another capture of the same text, or with the model itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from routecap import Sample

from ._case import of_sample
from ._subject import Found, NotCheckedError, Subject, away, runs

SHIFTS = range(-8, 9)
_STALE = 8
"""Rows one behind the other, of which less than half is alike."""
_SAMPLED = 4096
"""Rows that are looked at, where a shift is tried."""


class Overlap(NamedTuple):
    """How alike two captures are, in the cells that both have."""

    rows: int
    share: float
    """Of the ids, how many both have."""
    same: float
    """Of the cells, how many have the same experts."""
    by_row: NDArray[np.float64]
    """Share of the ids, for each row of the first; NaN where nothing is compared."""


def overlap(
    subject: Subject,
    other: Subject,
    shift: int = 0,
    layer_shift: int = 0,
    end: int | None = None,
    most: int | None = None,
) -> Overlap:
    """Compare each position p of one capture with position p + shift of another.

    Args:
        layer_shift: How far the layers are shifted, counted in the layers that both have.
        end: Compare only positions below this one.
        most: Compare at most this many rows, evenly spread.
    """
    ours, theirs = _layers(subject, other, layer_shift)
    rows = np.arange(len(subject.ids))
    at = rows + subject.case.first + shift - other.case.first
    chosen = np.flatnonzero(
        (at >= 0)
        & (at < len(other.ids))
        & (rows + subject.case.first < (end if end is not None else 1 << 62))
    )
    if most is not None and len(chosen) > most:
        chosen = chosen[np.linspace(0, len(chosen) - 1, most).astype(np.int64)]
    k = subject.ids.shape[2]
    shares = np.full(len(rows), np.nan)
    cells = common = same = 0
    for row in np.array_split(chosen, max(len(chosen) * len(ours) * k * k // (1 << 22), 1)):
        there = subject.valid[row][:, ours] & other.valid[at[row]][:, theirs]
        found = (
            (subject.ids[row][:, ours, :, None] == other.ids[at[row]][:, theirs, None, :])
            .any(axis=3)
            .sum(axis=2)
        )
        with np.errstate(invalid="ignore"):
            shares[row] = np.where(there, found, 0).sum(axis=1) / (k * there.sum(axis=1))
        cells, common, same = (
            cells + there.sum(),
            common + found[there].sum(),
            same + (found[there] == k).sum(),
        )
    return Overlap(
        int(np.isfinite(shares).sum()),
        common / (k * cells) if cells else 0.0,
        same / cells if cells else 0.0,
        shares,
    )


def _layers(
    subject: Subject, other: Subject, shift: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the indices of the layers that both captures have: in the first, and in the second.

    Raises:
        NotCheckedError: It is not known which layers correspond.
    """
    ours, theirs = (_numbers(each) for each in (subject, other))
    if ours is None or theirs is None:
        if subject.ids.shape[1] != other.ids.shape[1]:
            raise NotCheckedError(
                f"{subject.ids.shape[1]} layers and {other.ids.shape[1]}: "
                "which is which is not known (--config)"
            )
        ours = theirs = np.arange(subject.ids.shape[1])
    _, first, second = np.intersect1d(ours, theirs, return_indices=True)
    return (
        (first[: max(len(first) - shift, 0)], second[shift:])
        if shift >= 0
        else (first[-shift:], second[:shift])
    )


def _numbers(subject: Subject) -> NDArray[np.int64] | None:
    """Return the index of each layer in the decoder, int64 [layers]; None if it is not known."""
    if subject.case.layer_map is not None:
        return np.array(subject.case.layer_map)
    layers, model = subject.ids.shape[1], subject.model
    if model is None or model.layer_map is None:
        return None
    return (
        np.arange(layers)
        if subject.has_every_layer
        else np.array(model.layer_map)
        if model.layers == layers
        else None
    )


def against(subject: Subject) -> Iterator[Found]:
    """The other capture of the text has the same ids."""
    if subject.against is None:
        raise NotCheckedError("there is nothing to compare it with (--against)")
    other = Subject(subject.against, None, False, None, subject.model, None, False)
    yield from _compare(subject, other, "the other")


def model(subject: Subject) -> Iterator[Found]:
    """The model, given the tokens, chooses the same."""
    if subject.live is None:
        raise NotCheckedError("there is no model to ask (--model)")
    if subject.tokens is None or not subject.are_ids:
        raise NotCheckedError("the ids of the tokens are not known (--tokens)")
    with subject.live(subject.tokens) as routing:
        yield from _compare(
            subject,
            Subject(of_sample("the model", Sample(routing)), None, False, None, None, None, False),
            "the model",
        )


def _compare(subject: Subject, other: Subject, name: str) -> Iterator[Found]:
    """Report where two captures differ, and the shift of rows or layers that explains it. `name` is
    what messages call the other.
    """
    if not other.is_routing:
        raise NotCheckedError(f"{name} has no rows, layers and columns")
    compared = overlap(subject, other)
    if not compared.rows:
        raise NotCheckedError(f"{name} has no cell in common with it")
    if (
        subject.control
        and (shifted := overlap(subject, other, 1, most=_SAMPLED).share) >= subject.alike
    ):
        raise NotCheckedError(
            f"the control failed: shifted by one row it is {shifted:.0%} like {name}, too"
        )
    subject.notes.append(
        f"{compared.share:.1%} of the ids are those of {name}, "
        f"and {compared.same:.1%} of the cells, in {compared.rows} rows"
    )
    if compared.share >= subject.alike:
        with np.errstate(invalid="ignore"):
            stale = [run for run in runs(compared.by_row < 0.5) if run[1] - run[0] >= _STALE]
        for first, end in stale:
            yield Found(
                f"{subject.rows(first, end)} are not those of {name}: "
                f"{np.nanmean(compared.by_row[first:end]):.0%} of the ids are",
                "These rows are another text's, or of other weights.",
                "F05",
            )
        return
    shifts = {shift: overlap(subject, other, shift, most=_SAMPLED).share for shift in SHIFTS}
    best = max(shifts, key=lambda shift: (shifts[shift], -abs(shift)))
    by_layer = {
        shift: overlap(subject, other, 0, shift, most=_SAMPLED).share
        for shift in range(-4, 5)
        if abs(shift) < subject.ids.shape[1]
    }
    layer = max(by_layer, key=lambda shift: (by_layer[shift], -abs(shift)))
    if best and shifts[best] >= max(subject.alike, by_layer[layer]):
        yield Found(
            f"row p is row p{best:+} of {name}: {shifts[best]:.0%} of the ids there, "
            f"{compared.share:.0%} at the same position",
            f"Every row is the routing of the token {away(best)}.",
            "F07",
        )
    elif layer and by_layer[layer] >= subject.alike:
        yield Found(
            f"each layer is the one {away(layer)} of {name}: {by_layer[layer]:.0%} of the ids "
            f"there, {compared.share:.0%} in the same",
            "The layer axis is shifted: dense layers are counted in one and not in the other.",
            "F18",
        )
    else:
        yield Found(
            f"{compared.share:.0%} of the ids are those of {name}, and no shift explains it",
            "It is of another text, other weights, or its ids are not logical ones.",
            "F11",
        )

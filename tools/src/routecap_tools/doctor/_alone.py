"""Checks that need nothing but the file itself."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from routecap import Missing

from ._subject import Bools, Found, NotCheckedError, Subject, runs

CHANCE = 128
"""Bits of information in a row, at least, for two equal rows not to be chance."""
_SILENCE = 32
"""Bits of information in a row, at least, for a row of expert 0 alone not to be chance."""
_ROWS = 8
"""Consecutive rows that repeat others, at least: fewer may be chance."""
_LAYER = 16
"""Rows in which a layer has the same ids, at least: fewer may be chance."""
_SAMPLED = 4096
"""How many rows are searched for different ones."""


def shape(subject: Subject) -> Iterator[Found]:
    """It has rows, layers and columns, and those of the model."""
    ids, model = subject.ids, subject.model
    if not subject.is_routing:
        what = f"{'x'.join(map(str, ids.shape)) or 'one'} {ids.dtype}"
        if 0 in ids.shape:
            yield Found(f"it is empty ({what})", "Nothing was captured.", "F02")
        elif ids.dtype.kind not in "iu":
            yield Found(
                f"it has {what}",
                "Expert ids are integers: this is something else, such as weights or logits.",
                "F18",
            )
        else:
            yield Found(
                f"it has {what}, and not rows x layers x columns",
                "Its reader has to guess the layout.",
                "F21",
            )
        return
    if model is None:
        return
    _, layers, k = ids.shape
    numbers = subject.case.layer_map
    if model.layer_map is not None:
        if numbers is not None and not set(numbers) <= set(
            range(model.decoder_layers or max(numbers) + 1)
        ):
            yield Found(
                f"layer {max(numbers)} is captured, the model has {model.decoder_layers} layers",
                "It is of another model.",
                "F18",
            )
        elif numbers is None and not subject.has_every_layer and layers != model.layers:
            yield Found(
                f"it has {layers} layers; of {model.decoder_layers}, {model.layers} route",
                "It is not known which layers these are: a reader that takes them in order errs.",
                "F18",
            )
    if subject.has_every_layer:
        subject.notes.append(
            f"its layer axis has all {layers} layers of the decoder; {model.layers} route"
        )
    if model.k is not None and k != model.k:
        yield Found(
            f"a token has {k} experts in a layer; the model chooses {model.k}",
            "It has columns of shared experts." if k > model.k else "Columns are missing.",
            "F14",
        )


def dtype(subject: Subject) -> Iterator[Found]:
    """The type of the numbers holds all ids, and -1."""
    kind = subject.ids.dtype
    if subject.filled.any():
        yield Found(
            f"{subject.cells(subject.filled)}: every column is {np.iinfo(kind).max}",
            f"The mark -1 was stored as {kind}, and looks like an expert.",
            "F16",
        )
    if subject.experts is None:
        raise NotCheckedError("the file does not say how many experts there are (--config)")
    experts, room = int(subject.experts.max()), int(np.iinfo(kind).max) + 1
    if experts > room:
        yield Found(
            f"{kind} for {experts} experts",
            f"Ids from {room} on do not fit: they were cut off, or other texts have a wider type.",
            "F16",
        )


def ids(subject: Subject) -> Iterator[Found]:
    """Every id is an expert, and no cell lacks only some of its ids."""
    low = subject.ids < 0 if subject.ids.dtype.kind == "i" else np.zeros(subject.ids.shape, bool)
    some = low.any(axis=2) & subject.valid
    if some.any():
        yield Found(
            f"{subject.cells(some)}: some columns are negative, others not",
            "A reader that looks for rows of -1 takes these cells for routing.",
            "F31",
        )
    reasons = subject.case.reasons
    if reasons is not None and (refused := reasons == Missing.OUT_OF_RANGE).any():
        yield Found(
            f"{subject.cells(refused)}: the engine gave ids that are not experts", *_NO_EXPERT
        )
    if subject.experts is None:
        raise NotCheckedError("the file does not say how many experts there are (--config)")
    high: Bools = (subject.ids >= subject.experts[:, None]) & subject.valid[..., None]
    if not high.any():
        return
    columns: Bools = np.asarray(high.any(axis=(0, 1)))
    largest = int(subject.ids[high].max())
    where, experts = subject.cells(np.asarray(high.any(axis=2))), int(subject.experts.max())
    what = f"{where}: ids up to {largest}, of {experts} experts"
    if columns[-1] and not columns[: -int(columns.sum())].any() and not columns.all():
        yield Found(
            f"{what}, only in the last columns",
            "These columns are shared experts, which every token uses.",
            "F14",
        )
    else:
        yield Found(what, *_NO_EXPERT)


_NO_EXPERT = (
    "They are ids of replicas (after load balancing), of shared experts, or of another model.",
    "F13",
)


def cells(subject: Subject) -> Iterator[Found]:
    """No cell is all expert 0, and none has an expert twice."""
    chosen, valid = subject.ids, subject.valid
    zero = (chosen == 0).all(axis=2) & valid
    if valid.any() and (zero == valid).all():
        yield Found("every id is 0", "Nothing was captured.", "F02")
        return
    if chosen.shape[2] > 1:
        ordered = np.sort(chosen, axis=2)
        twice = (
            (ordered[..., 1:] == ordered[..., :-1]).any(axis=2)
            & (ordered[..., 0] >= 0)
            & valid
            & ~zero
        )
        if twice.any() and ((chosen == 0).sum(axis=2) > 1)[twice].all():
            if zero.sum() < twice.sum():  # where all experts of a cell were zero experts
                twice, zero = twice | zero, np.zeros_like(zero)
            yield Found(
                f"{subject.cells(twice)}: expert 0 is in it twice",
                "Zero experts were overwritten with expert 0.",
                "F15",
            )
        elif twice.any():
            yield Found(
                f"{subject.cells(twice)}: an expert is in it twice",
                "Two writers wrote it, or parts of two rows were joined.",
                "F23",
            )
        reasons = subject.case.reasons
        if reasons is not None and (refused := reasons == Missing.DUPLICATE).any():
            yield Found(
                f"{subject.cells(refused)}: the engine gave an expert twice",
                "Zero experts were overwritten, or unwritten memory was read.",
                "F15",
            )
    elif subject.bits < _SILENCE:
        raise NotCheckedError(
            "with one expert a token, missing routing cannot be told from expert 0"
        )
    yield from _silent(subject, zero)


def _silent(subject: Subject, zero: Bools) -> Iterator[Found]:
    """What cells of expert 0 alone mean: it depends on where they are."""
    valid = subject.valid
    one = subject.ids.shape[2] == 1
    if not zero.any():
        return
    there = valid.any(axis=0)
    layers = there & (zero | ~valid).all(axis=0) & (valid.sum(axis=0) >= (_LAYER if one else 1))
    if layers.any():
        which = np.flatnonzero(layers[there])
        edge = which[-1] == len(which) - 1 or which[0] == int(there.sum()) - len(which)
        yield Found(
            f"{subject.layers(layers)}: every id is 0",
            "Dense layers have columns, or the layer axis is shifted."
            if edge
            else "The routers of these layers were never seen to run.",
            "F18" if edge else "F01",
        )
    rest = valid & ~layers
    rows = rest.any(axis=1) & (zero | ~rest).all(axis=1)
    for first, end in runs(rows):
        if first == 0:
            yield Found(
                f"{subject.rows(first, end)}: every id is 0",
                "A cached prefix was not captured, and looks like expert 0.",
                "F08",
            )
        elif end == len(rows):
            like = "F06" if end - first == 1 else "F03"
            meaning = (
                "The last token was never routed: there is one row too many."
                if like == "F06"
                else "These rows were never copied."
            )
            yield Found(f"{subject.rows(first, end)}: every id is 0", meaning, like)
        else:
            yield Found(
                f"{subject.rows(first, end)}: every id is 0",
                "These rows were skipped, and look like expert 0.",
                "F07",
            )
    if not one and (scattered := zero & rest & ~rows[:, None]).any():
        yield Found(
            f"{subject.cells(scattered)}: every id is 0", "These cells were not written.", "F01"
        )


def filler(subject: Subject) -> Iterator[Found]:
    """No row counts up instead of naming experts."""
    ids, valid = subject.ids, subject.valid
    if subject.bits < _SILENCE:
        raise NotCheckedError("rows have too little information to tell counting from chance")
    flat = ids[:, ~subject.dense].reshape(len(ids), -1).astype(np.int64)
    step = np.diff(flat, axis=1)
    complete = valid[:, ~subject.dense].all(axis=1)
    counts = complete & ((step == 1) | (flat[:, 1:] == 0)).all(axis=1) & (step == 1).any(axis=1)
    from_zero = complete & (ids == np.arange(ids.shape[2])).all(axis=(1, 2)) & (ids.shape[2] > 1)
    for first, end in runs(counts | from_zero):
        if from_zero[first:end].all():
            yield Found(
                f"{subject.rows(first, end)}: the ids are 0 to {ids.shape[2] - 1} in every layer",
                "A buffer was read that no router wrote, or rows were filled up.",
                "F26",
            )
        else:
            yield Found(
                f"{subject.rows(first, end)}: the ids count up",
                "They stand in for missing rows, and are not routing.",
                "F31",
            )


def columns(subject: Subject) -> Iterator[Found]:
    """No column of ids is the same everywhere."""
    ids, valid = subject.ids, subject.valid
    if ids.shape[2] == 1:
        return
    if valid.sum() < _LAYER:
        raise NotCheckedError(f"it has fewer than {_LAYER} cells")
    chosen = ids[valid]
    same = (chosen == chosen[0]).all(axis=0)
    if same.any() and not same.all():
        names = ", ".join(
            f"{column} (always {chosen[0, column]})" for column in np.flatnonzero(same)
        )
        yield Found(f"column {names}", "It is a shared expert, or not from the router.", "F14")


def layers(subject: Subject) -> Iterator[Found]:
    """No layer has the same ids in every row, and no two layers have the same ids."""
    ids, valid = subject.ids, subject.valid
    complete = valid.all(axis=0) & (len(ids) >= _LAYER)
    silent = (ids == 0).all(axis=(0, 2))
    usable = complete & ~silent
    if not usable.any():
        raise NotCheckedError(f"no layer has {_LAYER} rows without a missing cell")
    some = ids[:_SAMPLED, usable].reshape(min(len(ids), _SAMPLED), -1)
    if len(np.unique(some, axis=0)) < _LAYER:
        raise NotCheckedError(f"it has fewer than {_LAYER} different rows")
    constant = usable & (ids == ids[:1]).all(axis=(0, 2))
    if constant.any():
        yield Found(
            f"{subject.layers(constant)}: the same experts in all {len(ids)} rows",
            "All rows have one step's ids: a buffer was not rewritten, or a router collapsed.",
            "F26",
        )
    seen: dict[bytes, int] = {}
    for layer in np.flatnonzero(usable & ~constant):
        content = np.ascontiguousarray(ids[:, layer]).tobytes()
        if content in seen:
            one, other = subject.layer(seen[content]), subject.layer(layer)
            yield Found(
                f"layers {one} and {other} are the same in all {len(ids)} rows",
                "One layer was recorded under two numbers.",
                "F17",
            )
        seen.setdefault(content, int(layer))


def rows(subject: Subject) -> Iterator[Found]:
    """No rows are copies of others."""
    if subject.bits < CHANCE:
        raise NotCheckedError(
            f"rows have too little information to tell copies from chance: {subject.bits:.0f} bits,"
            f" {CHANCE} are needed"
        )
    digests, tokens = subject.row_digests, subject.row_tokens

    def copies(distance: int) -> Bools:
        same: Bools = (digests[distance:] == digests[:-distance]) & (digests[distance:] != 0)
        if tokens is not None:  # equal tokens may be routed equally
            same &= tokens[distance:] != tokens[:-distance]
        return same

    again = runs(copies(1))
    for first, end in again:
        if end == len(digests) - 1 and end - first == 1:
            yield Found(
                f"{subject.rows(end, end + 1)}, the last, repeats the one before it",
                "The last token was never routed: its row is a copy.",
                "F06",
            )
        elif end - first >= 2:
            yield Found(
                f"{subject.rows(first, end + 1)} are one row, {end - first + 1} times",
                "Padding was taken for tokens, or rows are stale"
                + ("." if tokens is not None else ", unless the text repeats one token."),
                "F04",
            )
    for distance in _distances(digests):
        for first, end in runs(copies(distance)):
            if end - first >= _ROWS and not any(
                start < end and first < stop for start, stop in again
            ):
                yield Found(
                    f"{subject.rows(first + distance, end + distance)} repeat "
                    f"{subject.rows(first, end)}",
                    "Overlapping turns were joined, or these are rows of other positions.",
                    "F32",
                )
                return


def _distances(digests: NDArray[np.uint64]) -> list[int]:
    """Distances above 1 between a row and its next repetition, if enough rows have the distance."""
    order = np.argsort(digests, kind="stable")
    same = (digests[order][1:] == digests[order][:-1]) & (digests[order][1:] != 0)
    distances, counts = np.unique(np.diff(order)[same], return_counts=True)
    found: list[int] = distances[(counts >= _ROWS) & (distances > 1)].tolist()
    return found


def dense(subject: Subject) -> Iterator[Found]:
    """Layers that do not route have no ids."""
    if subject.model is None or subject.model.layer_map is None:
        raise NotCheckedError("the file does not say which layers route (--config)")
    written = subject.case.valid & subject.dense & (subject.ids != 0).any(axis=2)
    if written.any():
        yield Found(
            f"{subject.layers(written.any(axis=0))}: ids, where the model has no experts",
            "They are stale, or the layer axis is shifted.",
            "F18",
        )

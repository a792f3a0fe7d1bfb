"""Figures of routings: the load of experts, how even it is, and how two routings differ.

NumPy only; what is missing counts nowhere.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._constants import Missing, Provenance, Status
from ._errors import error
from ._layers import experts_per_token, layer_keys
from ._reading import FILL
from ._routing import Routing

_CELLS = 1 << 17  # looked at in one go: bounds the memory that a long routing takes


def _parts(routing: Routing) -> Iterator[tuple[int, NDArray[Any], NDArray[np.bool_]]]:
    """Its rows, some at a time: the position of the first, ids [rows, layers, k], negative where
    there is no expert, and which cells are valid [rows, layers].
    """
    step = max(_CELLS // max(routing.layers, 1), 1)
    for start in range(0, routing.rows, step):
        part = routing[start : start + step]
        yield part.first, *_ids(part)


def _ids(routing: Routing) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    return routing.masked(np.int16, fill=FILL)


def facts(routing: Routing) -> list[str]:
    """What a routing is, in a few words each: its size, how much of it is there, its tags."""
    cells, tags = routing.rows * routing.layers, np.unique(routing.tags)
    recomputed = int((routing.layer_provenance == Provenance.RECOMPUTED).sum())
    found = [
        _counted(routing.rows, "row")
        + (f" from position {routing.first}" if routing.first else ""),
        _counted(routing.layers, "layer"),
        f"{experts_per_token(routing.layer_k, routing.layer_min_k)} of {routing.experts} experts",
        f"{there(routing)} of the cells" if cells else "no cells",
    ]
    if routing.id_space:
        found.append(f"{routing.id_space.name.lower()} ids")
    if recomputed:
        found.append(f"{_counted(recomputed, 'layer')} recomputed from logits")
    if tags.any():
        found.append(
            f"tag {tags[0]}" if len(tags) == 1 else f"{len(tags)} tags, {tags[0]} to {tags[-1]}"
        )
    return found


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def reason_words(reason: int) -> str:
    """Why a cell is missing, one of Missing, in words."""
    return Missing(reason).name.lower().replace("_", " ")


def there(routing: Routing) -> str:
    """The share of its cells that are there: 100 % only if none is missing."""
    cells, missing = routing.rows * routing.layers, routing.coverage().cells_missing
    share = 100 * (1 - missing / cells) if cells else 100
    return f"{min(float(f'{share:.4g}'), 99.99) if missing else 100:g} %"


def several(routings: Routing | Iterable[Routing]) -> list[Routing]:
    """One routing or several, which must have the same layers, as a list."""
    found = [routings] if isinstance(routings, Routing) else list(routings)
    if not found:
        raise error(Status.ERR_ARGUMENT, "no routing is given: give one at least")
    like = found[0]
    for each in found:
        if not isinstance(each, Routing):
            raise TypeError(
                f"a routecap.Routing is expected, not {type(each).__name__}: of the samples that"
                " routecap.load gives, take sample.routing"
            )
        if not (
            np.array_equal(each.layer_map, like.layer_map)
            and np.array_equal(each.layer_visit, like.layer_visit)
            and np.array_equal(each.layer_experts, like.layer_experts)
        ):
            raise error(
                Status.ERR_SHAPE_MISMATCH,
                "the routings are not of the same layers: give those of one model at a time",
            )
    return found


def expert_load(routings: Routing | Iterable[Routing]) -> NDArray[np.int64]:
    """[layers, experts] how many tokens were sent to each expert, of one routing or of all
    together. Routings must have the same layers.
    """
    routings = several(routings)
    like = routings[0]
    load = np.zeros(like.layers * like.experts, np.int64)
    base = np.arange(like.layers)[:, None] * like.experts
    for each in routings:
        for _, ids, _ in _parts(each):
            load += np.bincount((ids + base)[ids >= 0], minlength=len(load))
    return load.reshape(like.layers, like.experts)


class Balance(NamedTuple):
    """How even the load of each layer is: arrays [layers], NaN where nothing was routed."""

    active: NDArray[np.int64]
    """Experts with at least one token."""
    busiest: NDArray[np.int64]
    """The expert with the most tokens."""
    entropy: NDArray[np.float64]
    """Normalised entropy of the load: 1 if all experts have the same, 0 if one has all."""
    peak: NDArray[np.float64]
    """Load of the busiest expert, in means: 1 if all have the same.

    What an expert-parallel step waits for.
    """
    variation: NDArray[np.float64]
    """Coefficient of variation: standard deviation of the load, in means."""
    gini: NDArray[np.float64]
    """Gini coefficient: 0 if all experts have the same."""


def balance(load: NDArray[np.int64], layer_experts: ArrayLike | None = None) -> Balance:
    """The balance of a load [layers, experts]; `layer_experts` [layers] says how many experts each
    layer has, where that differs.
    """
    layers, most = load.shape
    experts = (
        np.full(layers, most) if layer_experts is None else np.asarray(layer_experts, np.int64)
    )
    figures = [_balance(row[:count]) for row, count in zip(load, experts)]
    return Balance._make(np.array(column) for column in (zip(*figures) if figures else ([],) * 6))


def _balance(load: NDArray[np.int64]) -> tuple[int, int, float, float, float, float]:
    active, busiest, count, total = (
        int((load > 0).sum()),
        int(load.argmax()),
        len(load),
        int(load.sum()),
    )
    if not total:
        return active, busiest, np.nan, np.nan, np.nan, np.nan
    share = np.sort(load) / total
    present = share[share > 0]
    entropy = float(-(present * np.log(present)).sum() / np.log(count)) if count > 1 else 1.0
    gini = float(((2 * np.arange(1, count + 1) - count - 1) * share).sum() / count)
    return (
        active,
        busiest,
        max(entropy, 0.0),
        float(share[-1] * count),
        float(share.std() * count),
        gini,
    )


class Difference(NamedTuple):
    """How the cells of two routings differ: arrays [layers], over the positions that both have."""

    layer_map: NDArray[np.int32]
    """Index of each layer in the decoder: the layers that both have."""
    layer_visit: NDArray[np.uint32]
    """How often a looped decoder ran each of them before."""
    cells: NDArray[np.int64]
    """Cells that are valid in both."""
    ordered: NDArray[np.int64]
    """Of these, those whose ids differ, in order,"""
    sets: NDArray[np.int64]
    """and those whose ids differ as sets."""
    ids: NDArray[np.int64]
    """Ids of these cells: of the two, the one that has more."""
    common: NDArray[np.int64]
    """Of these, those that both have."""
    only_first: NDArray[np.int64]
    """Cells that are valid in the first alone,"""
    only_second: NDArray[np.int64]
    """and in the second alone."""


def _common(first: Routing, second: Routing) -> tuple[Any, Any, int, int]:
    """What two routings of one model both have: where the layers are in each, the first position,
    and how many rows.
    """
    if first.k != second.k:
        raise error(
            Status.ERR_SHAPE_MISMATCH,
            f"k is {first.k} and {second.k}: give two routings of one model",
        )
    _, ours, theirs = np.intersect1d(layer_keys(first), layer_keys(second), return_indices=True)
    start = max(first.first, second.first)
    end = min(first.first + first.rows, second.first + second.rows)
    return ours, theirs, start, max(end - start, 0)


def difference(first: Routing, second: Routing) -> Difference:
    """Compare two routings of one sequence, with the same k.

    Positions and layers that only one of them has are left out.
    """
    ours, theirs, start, rows = _common(first, second)
    counts = np.zeros((7, len(ours)), np.int64)
    if rows and len(ours):
        for position, ids, valid in _parts(first.slice(start, rows)):
            others, present = _ids(second.slice(position, len(ids)))
            ids, valid, others, present = (
                ids[:, ours],
                valid[:, ours],
                others[:, theirs],
                present[:, theirs],
            )
            both = valid & present
            same = (ids == others).all(axis=2)
            equal = (ids[..., :, None] == others[..., None, :]) & (ids >= 0)[..., None]
            shared = equal.any(axis=3).sum(axis=2)
            most = np.maximum((ids >= 0).sum(axis=2), (others >= 0).sum(axis=2))
            counts += [
                cells.sum(axis=0)
                for cells in (
                    both,
                    both & ~same,
                    both & (shared < most),
                    np.where(both, most, 0),
                    np.where(both, shared, 0),
                    valid & ~present,
                    present & ~valid,
                )
            ]
    return Difference(first.layer_map[ours], first.layer_visit[ours], *counts)


class Drift(NamedTuple):
    """Where two routings of each sequence chose other experts: an engine's and a trainer's, say."""

    positions: NDArray[np.int64]
    """[rows] the positions that both have, one sequence after another."""
    layer_map: NDArray[np.int32]
    """[layers] index of each layer in the decoder: the layers that both have."""
    layer_visit: NDArray[np.uint32]
    """[layers] how often a looped decoder ran each of them before."""
    tags: NDArray[np.uint64]
    """[rows] the tags of the first one's rows, such as the version of the weights."""
    both: NDArray[np.bool_]
    """[rows, layers] cells that are valid in both: no other cell can be compared."""
    differs: NDArray[np.bool_]
    """[rows, layers] of these, the cells whose experts differ as sets."""

    def by_layer(self) -> NDArray[np.float64]:
        """[layers] the share of compared cells that differ; NaN where none could be compared."""
        return _share(self.differs.sum(axis=0), self.both.sum(axis=0))

    def by_position(self) -> dict[int, float]:
        """The share of compared cells that differ, for each position, over layers and sequences."""
        return self._by(self.positions)

    def by_tag(self) -> dict[int, float]:
        """The share of compared cells that differ, for each tag."""
        return self._by(self.tags)

    def _by(self, key: NDArray[Any]) -> dict[int, float]:
        found, at = np.unique(key, return_inverse=True)
        differ, compared = (
            np.bincount(at, cells.sum(axis=1), len(found)) for cells in (self.differs, self.both)
        )
        return dict(zip(found.tolist(), _share(differ, compared).tolist()))


def _share(part: ArrayLike, whole: NDArray[Any]) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore"):
        share: NDArray[np.float64] = np.asarray(part, float) / np.where(whole > 0, whole, np.nan)
    return share


def drift(first: Routing | Iterable[Routing], second: Routing | Iterable[Routing]) -> Drift:
    """Compare two routings of one sequence cell by cell: which experts differ, and where. Or of
    several sequences: a list of each, in the same order.

    Give the engine's rows first, and what the trainer chose without replay second. Ask it before
    you switch replay on: where hardly a cell differs, replay has nothing to do. `difference` has
    the sums for each layer.
    """
    firsts, seconds = several(first), several(second)
    if len(firsts) != len(seconds):
        raise error(
            Status.ERR_SHAPE_MISMATCH,
            f"there are {len(firsts)} routings and {len(seconds)}: give two of each sequence",
        )
    found = [_drift(one, other) for one, other in zip(firsts, seconds)]
    return Drift(
        np.concatenate([each.positions for each in found]),
        found[0].layer_map,
        found[0].layer_visit,
        np.concatenate([each.tags for each in found]),
        np.concatenate([each.both for each in found]),
        np.concatenate([each.differs for each in found]),
    )


def _drift(first: Routing, second: Routing) -> Drift:
    ours, theirs, start, rows = _common(first, second)
    both = np.zeros((rows, len(ours)), np.bool_)
    differs = np.zeros_like(both)
    if both.size:
        for position, ids, valid in _parts(first.slice(start, rows)):
            others, present = _ids(second.slice(position, len(ids)))
            part = slice(position - start, position - start + len(ids))
            both[part] = valid[:, ours] & present[:, theirs]
            unequal = (np.sort(ids[:, ours]) != np.sort(others[:, theirs])).any(axis=2)
            differs[part] = both[part] & unequal
    return Drift(
        np.arange(start, start + rows),
        first.layer_map[ours],
        first.layer_visit[ours],
        np.asarray(first.slice(start, rows).tags) if rows else np.zeros(0, np.uint64),
        both,
        differs,
    )

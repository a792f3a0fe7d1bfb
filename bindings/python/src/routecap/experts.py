"""Which experts a set of texts uses, for calibration, pruning, merging and caches of experts.

    from routecap import experts

    routings = [sample.routing for sample in routecap.load("calibration.tar").values()]
    used = experts.usage(routings)
    print(used.tokens)                  # [layers, experts]
    print(used.at_most(100).sum(axis=1))  # experts of each layer with at most 100 tokens

`usage` counts tokens, `coactivation` pairs of experts, and `importance` weighs experts by what they
add. `in_batch` brings routings into the order of a batch, in which hooks see its tokens, and
`from_batch` brings what hooks saw into the rows of routings.
`needed`, `distances` and `hit_rates` say what a cache of experts would do.

NumPy only. Cells that are missing count nowhere, and neither does padding, which has no rows. Of a
cell with fewer than k experts, these count.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import analysis
from ._constants import Status
from ._errors import error
from ._layers import layer_names
from ._reading import FILL, KEPT, NONE
from ._routing import Routing
from ._samples import layer_of
from .analysis import expert_load, several

__all__ = [
    "Usage",
    "coactivation",
    "distances",
    "from_batch",
    "hit_rates",
    "importance",
    "in_batch",
    "needed",
    "usage",
]


def _several(routings: Routing | Iterable[Routing]) -> list[Routing]:
    """One routing or several, of the same layers and k."""
    found = several(routings)
    if any(each.k != found[0].k for each in found):
        raise error(
            Status.ERR_SHAPE_MISMATCH,
            f"k is {sorted({each.k for each in found})}: give routings of one model at a time",
        )
    return found


def _parts(routing: Routing) -> Iterator[tuple[int, NDArray[Any], NDArray[np.bool_]]]:
    """Its rows, some at a time: the index of the first, ids [rows, layers, k], negative where there
    is no expert, and which cells are valid [rows, layers].
    """
    for position, ids, valid in analysis._parts(routing):
        yield position - routing.first, ids, valid


# ---- Calibration


class Usage(NamedTuple):
    """How many tokens of some texts each expert got."""

    layer_map: NDArray[np.int32]
    """[layers] index of each layer in the decoder."""
    layer_visit: NDArray[np.uint32]
    """[layers] how often a looped decoder ran the layer before."""
    layer_experts: NDArray[np.uint32]
    """[layers] how many experts each layer has."""
    tokens: NDArray[np.int64]
    """[layers, experts] tokens that were sent to each expert, in valid cells."""
    texts: int
    """How many routings were counted."""
    missing: int
    """Cells that are missing, and were counted nowhere."""

    @property
    def exists(self) -> NDArray[np.bool_]:
        """[layers, experts] whether the layer has this expert: all do, unless layers differ."""
        most = self.tokens.shape[1]
        exists: NDArray[np.bool_] = np.arange(most) < self.layer_experts[:, None]
        return exists

    def at_most(self, tokens: int) -> NDArray[np.bool_]:
        """[layers, experts] the experts that got at most so many tokens; 0: none."""
        return self.exists & (self.tokens <= tokens)

    def more_texts(self, tokens: int) -> NDArray[np.float64]:
        """[layers, experts] how many more texts like these until each expert has `tokens`.

        It is (tokens - got) / (got per text), rounded up; 0 for experts that have them, infinite
        for those that got none so far, NaN where the layer has no such expert. The largest of all
        is what the set lacks.
        """
        lacking = np.maximum(tokens - self.tokens, 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            more = np.ceil(lacking * self.texts / self.tokens)
        more = np.where(lacking == 0, 0.0, more)
        return np.where(self.exists, more, np.nan)


def usage(routings: Routing | Iterable[Routing]) -> Usage:
    """Count the tokens of each expert over the texts of a calibration set, a routing each."""
    found = _several(routings)
    return Usage(
        found[0].layer_map,
        found[0].layer_visit,
        found[0].layer_experts,
        expert_load(found),
        len(found),
        sum(int(each.coverage().cells_missing) for each in found),
    )


# ---- Pairs


def coactivation(
    routings: Routing | Iterable[Routing], weights: Sequence[Any] | None = None
) -> NDArray[Any]:
    """[layers, experts, experts] how many tokens were sent to both experts of a pair.

    The diagonal is the load, and the sum over a layer is that of the square of each cell's experts:
    its tokens times k times k, where each has k. Counts are int64, and symmetric.

    With `weights`, an array [rows, layers, k] for each routing, a pair counts the product of its
    two weights, in float64: the diagonal is the sum of squares. Of routings that were captured with
    weights give [each.weights() for each in routings].

    Raises:
        ValueError: The arrays have other shapes, or an expert's weight is missing (NaN).
    """
    found = _several(routings)
    layers, experts = found[0].layers, found[0].experts
    given = _per_routing(weights, found, "weights")
    pairs: NDArray[Any] = np.zeros(
        (layers, experts, experts), np.int64 if given is None else np.float64
    )
    one, other = np.triu_indices(found[0].k)
    for number, routing in enumerate(found):
        for start, ids, valid in _parts(routing):
            for layer in range(layers):  # one after the other: what is counted fits into a cache
                wide = ids[:, layer][valid[:, layer]].astype(np.int64)
                both = (wide[:, one] >= 0) & (wide[:, other] >= 0)
                places = (wide[:, one] * experts + wide[:, other])[both]
                by = None
                if given is not None:
                    weight = given[number][start : start + len(ids), layer][valid[:, layer]]
                    by = (weight[:, one].astype(np.float64) * weight[:, other])[both]
                    _expect_numbers(by, number, "weights")
                pairs[layer] += np.bincount(places, by, minlength=experts * experts).reshape(
                    experts, experts
                )
    turned = pairs.transpose(0, 2, 1).copy()
    diagonal = np.arange(experts)
    turned[:, diagonal, diagonal] = 0  # a pair of one expert with itself was counted whole
    pairs += turned
    return pairs


def _per_routing(
    arrays: Sequence[Any] | None, routings: list[Routing], name: str
) -> list[NDArray[Any]] | None:
    """An array [rows, layers, k] for each routing."""
    if arrays is None:
        return None
    given = [np.asarray(each) for each in arrays]
    wanted = [(each.rows, each.layers, each.k) for each in routings]
    if [each.shape for each in given] != wanted:
        raise ValueError(
            f"{name} has arrays of shapes {[each.shape for each in given]}; the routings'"
            f" [rows, layers, k] are {wanted}: give a list with one array for each routing"
        )
    return given


def _expect_numbers(values: NDArray[np.float64], routing: int, name: str) -> None:
    """Each expert has one."""
    if missing := int(np.isnan(values).sum()):
        raise ValueError(
            f"routing {routing} has experts of which {missing} {name} are missing (NaN): leave out"
            " the rows whose weights were not captured"
        )


# ---- What an expert adds


def importance(
    routings: Routing | Iterable[Routing], weights: Sequence[Any], norms: Sequence[Any]
) -> NDArray[np.float64]:
    """[layers, experts] the mean of weight times norm of the output, over the tokens of an expert.

    This is REAP's measure for pruning. NaN where an expert got no token.

    `weights` has the router's weight of each choice, [rows, layers, k] for each routing, in the
    order of its ids: [each.weights() for each in routings], if they were captured. `norms` has the
    Euclidean norm of what the chosen expert returned for that token, before it is multiplied by the
    weight, in the same shapes.

    Raises:
        ValueError: The arrays have other shapes, or an expert's weight or norm is missing (NaN).
    """
    found = _several(routings)
    given = _per_routing(weights, found, "weights")
    lengths = _per_routing(norms, found, "norms")
    assert given is not None and lengths is not None
    layers, experts = found[0].layers, found[0].experts
    total = np.zeros(layers * experts)
    base = np.arange(layers)[:, None] * experts
    for number, routing in enumerate(found):
        for start, ids, _ in _parts(routing):
            part, chosen = slice(start, start + len(ids)), ids >= 0
            added = given[number][part].astype(np.float64) * lengths[number][part]
            _expect_numbers(added[chosen], number, "weights or norms")
            places = (ids.astype(np.int64) + base)[chosen]
            total += np.bincount(places, added[chosen], minlength=len(total))
    tokens = expert_load(found).astype(np.float64)
    with np.errstate(invalid="ignore"):
        return total.reshape(layers, experts) / np.where(tokens > 0, tokens, np.nan)


def in_batch(
    routings: Sequence[Routing],
    mask: ArrayLike | None = None,
    *,
    positions: ArrayLike | None = None,
    fill: int = -1,
    none: int = NONE,
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Bring the routings of a batch into the order in which the model computes its tokens.

    A model flattens a batch [lines, columns] to tokens [lines * columns], padding included, and
    that is what a hook sees. Row p of a routing is of the p-th token of its text.

    `mask` [lines, columns] says which columns are no padding, on whichever side it is (an attention
    mask). Each line is one text, unless `positions` [lines, columns] (position_ids) says that a
    line is packed with several: then a text begins where it is 0. Give at least one of the two.

    Returns ids [lines * columns, layers, k], `fill` where there are none, `none` in columns of a
    cell that have no expert, and which cells are valid, [lines * columns, layers]. A text's last token has no row where it was never an input.

    Of a pass that computes some columns alone, as in a chunked prefill, take these: with the mask
    of the whole batch, ids.reshape(lines, columns, layers, k)[:, start:stop].
    """
    found = _several(routings)
    places, tokens = _places(found, mask, positions)
    layers, k = found[0].layers, found[0].k
    ids = np.full((tokens, layers, k), fill, np.int64)
    valid = np.zeros((tokens, layers), np.bool_)
    for routing, at in zip(found, places):
        rows, there = routing.masked(np.int64, none=none)
        ids[at] = np.where(there[..., None], rows, fill)
        valid[at] = there
    return ids, valid


def from_batch(
    routings: Sequence[Routing],
    mask: ArrayLike | None,
    ids: ArrayLike,
    *values: ArrayLike,
    positions: ArrayLike | None = None,
    none: int = NONE,
) -> list[list[NDArray[Any]]]:
    """Bring what hooks saw of a batch into the rows and columns of its routings: the inverse of
    `in_batch`, for `importance` and `coactivation`.

    `ids` are the experts that the hooks saw, [lines * columns, layers, k] (or [lines, columns,
    layers, k]); each of `values` has a number for each of them, such as the routers' weights or the
    norms of what the experts return. `mask` and `positions` are as in `in_batch`. `none` is what the
    hooks saw in columns without an expert.

    Returns for each of `values` a list with an array [rows, layers, k] for each routing, in the
    order of its ids; 0 in cells that are missing, and in columns without an expert.

    Raises:
        ValueError: The experts of a valid cell are others than the hooks saw there: `mask` or the
            routings are of another batch, or in another order.
    """
    found = _several(routings)
    places, tokens = _places(found, mask, positions)
    layers, k = found[0].layers, found[0].k
    seen, *given = (_flat(each, tokens, layers, k) for each in (ids, *values))
    seen = np.where(seen == none, KEPT, seen.astype(np.int64))
    rows_of: list[list[NDArray[Any]]] = [[] for _ in given]
    for number, (routing, at) in enumerate(zip(found, places)):
        rows, there = routing.masked(np.int64)
        order, sorted_rows = np.argsort(rows, -1), np.sort(rows, -1)
        theirs = np.argsort(seen[at], -1)
        other = (np.take_along_axis(seen[at], theirs, -1) != sorted_rows).any(-1) & there
        if other.any():
            row, layer = np.argwhere(other)[0]
            raise ValueError(
                f"routing {number} has experts {rows[row, layer].tolist()} at position"
                f" {routing.first + row} of layer {_name(routing, layer)}, and the hooks saw"
                f" {seen[at][row, layer].tolist()}: give routings, mask and hooks of one batch"
            )
        # From a column of the routing to its place in the sorted cell, and on to the hooks' column.
        columns = np.take_along_axis(theirs, np.argsort(order, -1), -1)
        for arrays, value in zip(rows_of, given):
            mine = np.take_along_axis(value[at], columns, -1)
            mine[~there] = 0
            mine[rows == KEPT] = 0
            arrays.append(mine)
    return rows_of


def _name(routing: Routing, layer: int) -> str:
    return layer_names(routing.layer_map, routing.layer_visit)[layer]


def _places(
    routings: list[Routing], mask: ArrayLike | None, positions: ArrayLike | None
) -> tuple[list[NDArray[np.int64]], int]:
    """Where each row of each routing is among the tokens of a batch, and how many tokens it has."""
    given = [np.asarray(each) for each in (mask, positions) if each is not None]
    if not given or any(each.ndim != 2 or each.shape != given[0].shape for each in given):
        raise ValueError(
            f"mask and positions have shapes {[each.shape for each in given]}: give the batch's"
            " attention mask, its position_ids, or both, [lines, columns]"
        )
    kept = np.ones(given[0].shape, bool) if mask is None else given[0].astype(bool)
    if positions is None:
        width = kept.shape[1]
        texts = [line * width + np.flatnonzero(kept[line]) for line in range(len(kept))]
    else:
        begins = kept & (given[-1] == 0)
        if (kept & (begins.cumsum(axis=1) == 0)).any():
            raise ValueError(
                "a line of the batch does not begin with position 0: give whole texts, with the"
                " columns of every pass"
            )
        tokens = np.flatnonzero(kept)
        texts = np.split(tokens, np.flatnonzero(begins.ravel()[tokens]))[1:]
    if len(texts) != len(routings):
        raise ValueError(
            f"the batch has {len(texts)} texts, and there are {len(routings)} routings: give a"
            " routing for each, in their order"
        )
    for number, (routing, text) in enumerate(zip(routings, texts)):
        if routing.first + routing.rows > len(text):
            raise ValueError(
                f"routing {number} has rows up to position {routing.first + routing.rows - 1}, and"
                f" text {number} of the batch has {len(text)} tokens: give the mask of this batch"
            )
    rows = [slice(each.first, each.first + each.rows) for each in routings]
    return [text[part] for text, part in zip(texts, rows)], kept.size


def _flat(values: Any, tokens: int, layers: int, k: int) -> NDArray[Any]:
    """[tokens, layers, k] of what hooks saw."""
    array = np.asarray(values)
    if (
        array.ndim not in (3, 4)
        or array.shape[-2:] != (layers, k)
        or array.size != (tokens * layers * k)
    ):
        raise ValueError(
            f"the hooks' arrays have shape {array.shape}; [{tokens}, {layers}, {k}] is expected:"
            " give each token of the batch, padding included"
        )
    return array.reshape(tokens, layers, k)


# ---- Caches of experts


def needed(
    routings: Routing | Iterable[Routing], layer: int, steps: Sequence[Any] | None = None
) -> list[NDArray[np.int64]]:
    """The experts of one layer that each step of an engine needs: for each step the ids in
    ascending order, each once, over all requests of the step.

    `layer` is the index in the decoder, in its first visit where the decoder loops. `steps` says for each routing which step computed each
    row, [rows] of integers in any numbering that ascends with time; a step without an expert is
    left out. Without it each row is a step of its own, one routing after the other: a sequence
    that was generated alone.
    """
    found = _several(routings)
    captured = layer_of(found[0], layer)
    given = None if steps is None else [np.asarray(each) for each in steps]
    if given is not None and [each.shape for each in given] != [(each.rows,) for each in found]:
        raise ValueError(
            f"steps has shapes {[each.shape for each in given]}; the routings have"
            f" {[each.rows for each in found]} rows: give the step of each row, for each routing"
        )
    numbers, chosen, before = [], [], 0
    for number, routing in enumerate(found):
        ids, _ = routing.masked(np.int64, fill=FILL, first_layer=captured, layers=1)
        rows, columns = np.nonzero(ids[:, 0] >= 0)
        step = before + np.arange(routing.rows) if given is None else given[number]
        before += routing.rows
        numbers.append(np.asarray(step, np.int64)[rows])
        chosen.append(ids[rows, 0, columns])
    experts = found[0].experts
    # Each step and expert once, by step and then by expert.
    at, which = np.concatenate(numbers), np.concatenate(chosen)
    order, at = np.unique(at, return_inverse=True)
    pairs = np.unique(at * experts + which)
    ends = np.searchsorted(pairs // experts, np.arange(1, len(order)))
    return [part % experts for part in np.split(pairs, ends)] if len(order) else []


def distances(steps: Iterable[Iterable[int]]) -> NDArray[np.int64]:
    """Reuse distances: how many other experts were needed since an expert was needed last.

    `steps` has the experts of one layer that each step of the engine needs, each once a step. One
    number for each need, in order, experts of a step by their ids; -1 for the first need of an
    expert. An LRU cache of n experts has those whose distance is below n.
    """
    recent: list[int] = []  # the last needed at the end
    found: list[int] = []
    for step in steps:
        for expert in sorted(set(step)):
            if expert in recent:
                found.append(len(recent) - 1 - recent.index(expert))
                recent.remove(expert)
            else:
                found.append(-1)
            recent.append(expert)
    return np.array(found, np.int64)


class HitRates(NamedTuple):
    """Of the experts that the steps of one layer need, the share that a cache has."""

    slots: NDArray[np.int64]
    """[sizes] experts that the cache has room for."""
    lru: NDArray[np.float64]
    """[sizes] if the expert that was needed longest ago makes room."""
    optimal: NDArray[np.float64]
    """[sizes] if the expert that is needed again last makes room (Belady): no cache has more."""
    needs: int
    """How many experts the steps need, each once a step."""


def hit_rates(steps: Sequence[Iterable[int]], slots: Sequence[int] = (4, 8, 12)) -> HitRates:
    """Simulate caches of the experts of one layer over the steps of an engine.

    `steps` is as in `distances`. Experts of a step are asked for by ids, one after the other, and
    each one that the cache lacks is loaded. NaN if nothing is needed.
    """
    asked = [expert for step in steps for expert in sorted(set(step))]
    sizes = np.array(slots, np.int64)
    if len(sizes) and sizes.min() < 1:
        raise ValueError(f"slots is {list(slots)}: give sizes of 1 and more")
    reused = distances(steps)
    total = max(len(asked), 1) if asked else np.nan
    lru = [((reused >= 0) & (reused < size)).sum() / total for size in sizes]
    best = [_belady(asked, int(size)) / total for size in sizes]
    return HitRates(sizes, np.array(lru), np.array(best), len(asked))


def _belady(asked: list[int], slots: int) -> int:
    """The hits of a cache that drops what is needed again last."""
    after: list[int] = [len(asked)] * len(asked)  # where the same expert is asked for again
    last: dict[int, int] = {}
    for place in range(len(asked) - 1, -1, -1):
        after[place] = last.get(asked[place], len(asked))
        last[asked[place]] = place
    cached: dict[int, int] = {}  # expert: where it is asked for again
    hits = 0
    for place, expert in enumerate(asked):
        if expert in cached:
            hits += 1
        elif len(cached) == slots:
            del cached[max(cached, key=cached.__getitem__)]
        cached[expert] = after[place]
    return hits

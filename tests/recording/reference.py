"""How a router chooses experts from logits, in plain NumPy and float32: what routecap_layer_route
must give.

Written from the mathematics of the routers, not from the library. Elementary functions are rounded
correctly (computed in float64), everything else is float32 arithmetic in the order of the formulas.
Besides the choice it returns scores and keys, from which `judge` tells a choice that differs for a
near tie from a wrong one.
"""

from dataclasses import dataclass
from itertools import combinations

import numpy as np

SCORES = LOGIT, SOFTMAX, SIGMOID, SQRT_SOFTPLUS = range(4)
MAX, TOP2, TOP2_DISTINCT = range(3)
RANK_LOGITS, RENORMALIZE, FLOOR_MAX, SIGMOID_TANH, GROUPS_ZERO = 1, 2, 4, 8, 16

ULPS = 4  # keys so close may be ranked either way by an arithmetic that rounds differently
f32 = np.float32
MINUS_INFINITY = f32(-np.inf)


@dataclass
class Router:
    score: int = LOGIT
    flags: int = 0
    group_score: int = MAX
    groups: int = 1
    groups_kept: int = 1
    scale: float = 1.0
    floor: float = 0.0
    bias: np.ndarray | None = None  # float32 [experts]
    hash_table: np.ndarray | None = None  # [tokens, k]


@dataclass
class Routed:
    router: Router
    logits: np.ndarray  # [rows, experts]
    ids: np.ndarray  # [rows, k] in order of falling keys; with a hash table in its order, -1 where it has no such token
    weights: np.ndarray  # [rows, k]
    scores: np.ndarray  # [rows, experts]
    keys: np.ndarray  # [rows, experts], those of groups that are not kept included
    groups: np.ndarray  # [rows, groups] scores of the groups
    size: np.ndarray  # [rows, experts] the largest number that was rounded on the way to a key


def rounded(function, x):
    """An elementary function, rounded to float32."""
    return function(x.astype(np.float64)).astype(f32)


def nan_is_lowest(x):
    return np.where(np.isnan(x), MINUS_INFINITY, x)


def softmax(x):
    top = np.max(x, axis=1, keepdims=True)
    e = np.where(np.isinf(top), (x == top).astype(f32), rounded(np.exp, x - top))
    return e / e.sum(axis=1, keepdims=True, dtype=f32)


def scores_of(x, router):
    """[rows, experts]; a NaN has the score of minus infinity."""
    x = nan_is_lowest(x)
    if router.score == SOFTMAX:
        return softmax(x)
    if router.score == SIGMOID and router.flags & SIGMOID_TANH:
        return f32(0.5) * rounded(np.tanh, f32(0.5) * x) + f32(0.5)
    if router.score == SIGMOID:
        return f32(1) / (f32(1) + rounded(np.exp, -x))
    if router.score == SQRT_SOFTPLUS:
        return np.sqrt(
            np.where(x > 20, x, rounded(np.log1p, rounded(np.exp, np.minimum(x, f32(20)))))
        )
    return x


def group_scores_of(keys, router):
    """[rows, groups]"""
    rows, experts = keys.shape
    falling = -np.sort(-keys.reshape(rows, router.groups, experts // router.groups), axis=2)
    first = falling[:, :, 0]
    if router.group_score == MAX or falling.shape[2] == 1:
        return first
    if router.group_score == TOP2:
        return nan_is_lowest(first + falling[:, :, 1])
    lower = falling < falling[:, :, :1]
    second = np.take_along_axis(falling, lower.argmax(axis=2)[:, :, None], axis=2)[:, :, 0]
    return nan_is_lowest(np.where(lower.any(axis=2), first + second, first))


def admitted(keys, kept, router):
    """Keys, and who may be chosen at all, if `kept` [rows, groups] says which groups are."""
    of_kept = np.repeat(kept, keys.shape[1] // router.groups, axis=1)
    if router.flags & GROUPS_ZERO:
        return np.where(of_kept, keys, f32(0)), np.ones_like(of_kept)
    return keys, of_kept


def kept_groups(groups, router):
    order = np.argsort(-groups, axis=1, kind="stable")[:, : router.groups_kept]
    kept = np.zeros(groups.shape, dtype=bool)
    np.put_along_axis(kept, order, True, axis=1)
    return kept


def weights_of(scores, ids, router):
    """[rows, k], of whichever ids [rows, k] were chosen."""
    w = np.take_along_axis(scores, ids, axis=1)
    if router.flags & RENORMALIZE:
        total = w.sum(axis=1, keepdims=True, dtype=f32)
        w = w / (
            np.maximum(total, f32(router.floor))
            if router.flags & FLOOR_MAX
            else total + f32(router.floor)
        )
    return w * f32(router.scale)


def weight_errors(scores, ids, weights, router):
    """[rows, k] how far off a correct weight may be: a part in 100000, a little for what
    underflows, and what tanh and a sum lose to cancellation.
    """
    error = f32(1e-5) * np.abs(weights) + f32(1e-9)
    lost = f32(0)  # of a score
    if router.score == SIGMOID and router.flags & SIGMOID_TANH:
        lost = ULPS * np.spacing(f32(1))
        error = error + lost * np.abs(f32(router.scale))
    if router.flags & RENORMALIZE:
        chosen = np.take_along_axis(scores, ids, axis=1)
        total = np.abs(chosen.sum(axis=1, keepdims=True) + f32(router.floor))
        of_total = f32(1e-6) * np.abs(chosen).sum(axis=1, keepdims=True) + ids.shape[1] * lost
        error = error + (
            lost * np.abs(f32(router.scale)) + of_total * np.abs(weights)
        ) / np.maximum(total, lost)
    return np.where(np.isnan(error), f32(np.inf), error)


def route(logits, router, k, tokens=None):
    """`logits` is float32 [rows, experts], after the conversion from what the router had."""
    with np.errstate(all="ignore"):
        x = np.asarray(logits, dtype=f32)
        scores = scores_of(x, router)
        base = x if router.flags & RANK_LOGITS else np.where(np.isnan(x), MINUS_INFINITY, scores)
        bias = f32(0) if router.bias is None else router.bias
        keys = nan_is_lowest(base + bias)
        size = np.maximum(np.maximum(np.abs(base), np.abs(bias)), np.abs(keys))
        if (
            router.score == SIGMOID
            and router.flags & SIGMOID_TANH
            and not router.flags & RANK_LOGITS
        ):
            size = np.maximum(size, f32(1))
        groups = group_scores_of(keys, router)
        if router.hash_table is not None:
            inside = (tokens >= 0) & (tokens < len(router.hash_table))
            ids = np.where(
                inside[:, None], router.hash_table[np.where(inside, tokens, 0)], -1
            ).astype(np.int64)
        else:
            ranked, candidates = admitted(keys, kept_groups(groups, router), router)
            ids = np.lexsort((-ranked, ~candidates), axis=1)[:, :k]
        of_experts = np.clip(ids, 0, x.shape[1] - 1)
        return Routed(
            router, x, ids, weights_of(scores, of_experts, router), scores, keys, groups, size
        )


# ---- Judging ----------------------------------------------------------------------------------


def near(a, b, size_a, size_b, ulps=ULPS):
    """Whether two numbers that were computed from numbers of these sizes may be ordered either way."""
    with np.errstate(all="ignore"):
        return (a == b) | (np.abs(a - b) <= ulps * np.spacing(np.maximum(size_a, size_b)))


def choices_of_groups(routed, row):
    """The sets of groups that may be kept, where group scores are near ties."""
    router, scores = routed.router, routed.groups[row]
    kept = kept_groups(scores[None], router)[0]
    if kept.all():
        return [kept]
    sizes = routed.size[row].reshape(router.groups, -1).max(axis=1)
    lowest, highest = np.min(scores[kept]), np.max(scores[~kept])
    at_lowest, at_highest = (
        sizes[kept & (scores == lowest)].max(),
        sizes[~kept & (scores == highest)].max(),
    )
    open_ = np.where(
        kept,
        near(scores, highest, sizes, at_highest, 2 * ULPS),
        near(scores, lowest, sizes, at_lowest, 2 * ULPS),
    )
    choices = [kept]
    if 0 < open_.sum() <= 12:
        for some in combinations(np.flatnonzero(open_), int((kept & open_).sum())):
            other = kept & ~open_
            other[list(some)] = True
            choices.append(other)
    return choices


def level(x, router):
    """[experts] of one row: the scores that are 1 (1) or 0 (2) in every float32 arithmetic, and all
    others (0).
    """
    if router.score == LOGIT or router.flags & RANK_LOGITS:
        return np.zeros(len(x), dtype=int)
    saturated = (x >= 20) & (router.score == SIGMOID)
    return np.where(
        saturated,
        1,
        np.where(x - (nan_is_lowest(x).max() if router.score == SOFTMAX else 0) < -110, 2, 0),
    )


def follows(routed, row, ids, kept, lower_id_wins=True):
    """Whether these ids are the k largest keys in falling order but for near ties, if these groups
    are kept.
    """
    keys, candidates = (
        part[0] for part in admitted(routed.keys[row : row + 1], kept[None], routed.router)
    )
    if not candidates[ids].all():
        return False
    size = routed.size[row]
    bits = routed.logits[row].view(np.uint32)
    bias = np.zeros(len(keys), dtype=f32) if routed.router.bias is None else routed.router.bias
    not_kept = ~np.repeat(kept, len(keys) // len(kept))
    with np.errstate(invalid="ignore"):
        levels = level(routed.logits[row], routed.router)

    def alike(a, b):
        """Experts that every arithmetic must find equal, so that the lower id wins."""
        same_score = (bits[a] == bits[b]) | (levels[a] == levels[b]) & (levels[a] != 0)
        same_input = (
            same_score
            & (bias[a].view(np.uint32) == bias[b].view(np.uint32))
            & (not_kept[a] == not_kept[b])
        )
        return (keys[a] == keys[b]) & (same_input | np.isinf(keys[a]) | not_kept[a] & not_kept[b])

    def before(a, b):
        """Whether a may be ranked before b."""
        close = (keys[a] > keys[b]) | near(keys[a], keys[b], size[a], size[b])
        return np.where(alike(a, b), a < b, close) if lower_id_wins else close

    rest = candidates.copy()
    rest[ids] = False
    rest = np.flatnonzero(rest)
    return bool(
        before(ids[:-1], ids[1:]).all()
        and all(before(np.full_like(rest, i), rest).all() for i in ids)
    )


def judge(routed, row, ids, exact=False, lower_id_wins=True):
    """Of ids [k] that are not those of the reference: None if a near tie explains them, otherwise
    what is wrong. With `exact` nothing does.
    """
    experts = routed.logits.shape[1]
    if ids.min() < 0 or ids.max() >= experts or len(set(ids.tolist())) != len(ids):
        return f"{ids.tolist()} are not {len(ids)} experts"
    exact = exact or routed.router.hash_table is not None
    if not exact and any(
        follows(routed, row, ids, kept, lower_id_wins) for kept in choices_of_groups(routed, row)
    ):
        return None
    want, keys = routed.ids[row], routed.keys[row]
    column = int(np.flatnonzero(ids != want)[0])
    return (
        f"{ids.tolist()} instead of {want.tolist()}; in column {column} expert {ids[column]} (logit"
        f" {routed.logits[row][ids[column]]!r}, key {keys[ids[column]]!r}) instead of"
        f" {want[column]} (logit {routed.logits[row][want[column]]!r}, key {keys[want[column]]!r})"
    )


def same_sets(a, b):
    """[rows] whether two choices [rows, k] are the same but for their order."""
    return (np.sort(a, axis=1) == np.sort(b, axis=1)).all(axis=1)

"""Routing from logits, and what an expert-parallel dispatch brought: arithmetic that needs nothing
of a capturer but its shape.
"""

import math
import struct

from . import routing as r
from .routing import Failure, check

F32, F16, BF16 = 16, 17, 18
LOGIT, SOFTMAX, SIGMOID, SQRT_SOFTPLUS = 0, 1, 2, 3  # ROUTECAP_SCORE_*
GROUP_MAX, GROUP_TOP2, GROUP_TOP2_DISTINCT = 0, 1, 2
RANK_LOGITS, RENORMALIZE, FLOOR_MAX, SIGMOID_TANH, GROUPS_ZERO = 1, 2, 4, 8, 16  # ROUTECAP_ROUTER_*
EXPANDED, GLOBAL = 1, 2  # ROUTECAP_RECEIVED_*

# Method: score, group score (None where it has no groups), flags that the words of the header name.
METHODS = {
    1: (SOFTMAX, None, 0),
    2: (SOFTMAX, None, RENORMALIZE),
    3: (SOFTMAX, None, RANK_LOGITS | RENORMALIZE),
    4: (LOGIT, None, RANK_LOGITS),
    5: (SIGMOID, None, RANK_LOGITS),
    6: (SIGMOID, None, 0),
    7: (SIGMOID, None, RENORMALIZE),
    8: (SOFTMAX, GROUP_MAX, 0),
    9: (SIGMOID, GROUP_TOP2, RENORMALIZE),
    10: (SQRT_SOFTPLUS, None, RENORMALIZE),
    11: (SOFTMAX, None, RENORMALIZE),
}


def number(value, dtype):
    """A logit as the vectors write it."""
    if dtype == F32:
        return float(value)
    return (
        struct.unpack("<e", struct.pack("<H", value))[0]
        if dtype == F16
        else struct.unpack("<f", struct.pack("<I", value << 16))[0]
    )


def scores(logits, score):
    x = [-math.inf if math.isnan(value) else value for value in logits]
    if score == LOGIT:
        return x
    if score == SIGMOID:
        return [0.0 if v == -math.inf else 1 / (1 + math.exp(-v)) for v in x]
    if score == SQRT_SOFTPLUS:
        return [math.sqrt(v) if v > 20 else math.sqrt(math.log1p(math.exp(v))) for v in x]
    top = max(x)
    powers = [float(v == top) for v in x] if math.isinf(top) else [math.exp(v - top) for v in x]
    return [power / sum(powers) for power in powers]


def choose(logits, router, bias, k):
    """Ids and weights of one row."""
    score = scores(logits, router["score"])
    ranked = logits if router["flags"] & RANK_LOGITS else score
    keys = [-math.inf if math.isnan(x) else a + b for x, a, b in zip(logits, ranked, bias)]
    groups = router.get("groups", 0)
    if groups > 1:
        size = len(keys) // groups
        rated = []
        for group in range(groups):
            mine = sorted(keys[group * size : (group + 1) * size], reverse=True)
            if router["group_score"] == GROUP_TOP2_DISTINCT:
                mine = sorted(set(mine), reverse=True)
            rated.append((-sum(mine[: 1 if router["group_score"] == GROUP_MAX else 2]), group))
        kept = {group for _, group in sorted(rated)[: router["groups_kept"]]}
        out = 0.0 if router["flags"] & GROUPS_ZERO else -math.inf
        keys = [key if i // size in kept else out for i, key in enumerate(keys)]
    return sorted(range(len(keys)), key=lambda i: (-keys[i], i))[:k], score


def weigh(ids, score, router):
    weights = [score[i] for i in ids]
    if router["flags"] & RENORMALIZE:
        floor = router.get("floor", 0)
        total = max(sum(weights), floor) if router["flags"] & FLOOR_MAX else sum(weights) + floor
        weights = [weight / total for weight in weights]
    return [weight * (router.get("scale", 0) or 1) for weight in weights]


def prepare(router):
    """A router as it is after router_init, if it has a method."""
    check(router.get("method", 1) in METHODS)
    score, group_score, flags = METHODS[router["method"]] if "method" in router else (0, 0, 0)
    return {"score": score, "group_score": group_score or 0, "flags": flags} | router


def route(layer, k, router, logits):
    """Returns the rows' ids and the weights buffer (None if it is not wanted)."""
    router = prepare(router)
    check(logits["dtype"] in (F32, F16, BF16), "ERR_DTYPE")
    experts = logits.get("experts", 0) or layer.experts
    check(k <= experts <= min(layer.experts, 1024))
    check(
        router["score"] in (0, 1, 2, 3)
        and router["group_score"] in (0, 1, 2)
        and router["flags"] & ~31 == 0
    )
    groups = router.get("groups", 0)
    if groups > 1:
        check(
            groups <= 32 and experts % groups == 0 and 1 <= router.get("groups_kept", 0) <= groups
        )
        check(router["groups_kept"] * (experts // groups) >= k)
    bias = [0.0] * experts
    if router.get("bias") is not None:
        check(router["bias_dtype"] in (F32, F16, BF16), "ERR_DTYPE")
        bias = [number(value, router["bias_dtype"]) for value in router["bias"]]
    table, tokens = router.get("hash_table"), logits.get("tokens")
    if table is not None:
        check(tokens is not None)
        check(logits["tokens_dtype"] in (r.I32, r.I64), "ERR_DTYPE")
    rows, live = logits["rows"], logits.get("live_rows")
    live = rows if live is None else min(max(live, 0), rows)
    stride, column_stride = (
        logits.get("row_stride", 0) or experts,
        logits.get("column_stride", 0) or 1,
    )
    weights_stride = logits.get("weights_stride", 0) or k
    check(weights_stride >= k)
    chosen, weights = [], [77.0] * (rows * weights_stride)
    for row in range(live):
        if table is not None:
            ids = table[tokens[row] * k : (tokens[row] + 1) * k]
        if logits.get("logits") is not None:
            at = logits.get("logits_start", 0) + row * stride
            x = [
                number(logits["logits"][at + e * column_stride], logits["dtype"])
                for e in range(experts)
            ]
            best, score = choose(x, router, bias, k)
            ids = best if table is None else ids
        chosen.append(ids)
        if not logits.get("weights"):
            continue
        weights[row * weights_stride : row * weights_stride + k] = weigh(ids, score, router)
    chosen += [None] * (rows - live)
    return chosen, weights if logits.get("weights") else None


def received(layer, default_k, what):
    """Returns global_ids, executed and ignored, as far as they are wanted."""
    flags, ranks, rank = what.get("flags", 0), what["ranks"], what["rank"]
    experts, k = what.get("experts", 0) or layer.experts, what.get("k", 0) or default_k
    rows, tokens = what["rows"], what["tokens_per_rank"]
    check(
        flags & ~3 == 0
        and flags != EXPANDED | GLOBAL
        and 1 <= ranks <= 1024
        and rank < ranks
        and k <= r.MAX_K
        and experts <= r.MAX_EXPERTS
    )
    check(what["dtype"] in (r.I32, r.I64), "ERR_DTYPE")
    check(experts % ranks == 0 and rows <= ranks * tokens, "ERR_SHAPE_MISMATCH")
    check(rows == 0 or what.get("global_ids") or what.get("executed"))
    local, base = experts // ranks, rank * (experts // ranks)
    live = what.get("live_rows")
    live = rows if live is None else min(max(live, 0), rows)
    expanded = bool(flags & EXPANDED)
    ids, metadata = what.get("ids"), what.get("metadata")
    if expanded:
        row_expert = expert_of_rows(what, local)
        global_ids = [base + e if e is not None else -1 for e, _ in row_expert]
    else:
        global_ids = []
        for at in range(rows * k):
            i = ids[at] if at < live * k else -1
            if flags & GLOBAL:
                global_ids.append(i if base <= i < base + local else -1)
            else:
                global_ids.append(i + base if i >= 0 and i + base < experts else -1)
    executed, ignored = [-1] * (ranks * tokens * k), 0
    for row in range(live if what.get("executed") else 0):
        source = metadata[row * (2 + k)]
        for column in range(k):
            if expanded:
                at = metadata[row * (2 + k) + 2 + column]
                if at < 0:
                    continue
                e, gap = row_expert[at] if at < len(row_expert) else (None, True)
                expert = None if e is None or gap else base + e
            else:
                i = ids[row * k + column]
                if i < 0:
                    continue
                i = i if flags & GLOBAL else i + base
                expert = i if base <= i < base + local else None
            cell = source * k + column
            if expert is None or not 0 <= source < ranks * tokens or executed[cell] != -1:
                ignored += 1
            else:
                executed[cell] = expert
    return {"global_ids": global_ids, "executed": executed, "ignored": ignored}


def expert_of_rows(what, local):
    """Of each expanded row its local expert and whether it lies in the gap behind that expert's
    rows; (None, True) behind all of them.
    """
    unit = what.get("expert_alignment", 0) or 1
    rows = [(None, True)] * what["expanded_rows"]
    start = 0
    for expert, end in enumerate(what["expert_ends"][:local]):
        aligned = (end + unit - 1) // unit * unit
        for row in range(start, min(aligned, len(rows))):
            rows[row] = (expert, row >= end)
        start = aligned
    return rows


def merge_received(tables):
    merged = []
    for cell in zip(*tables):
        known = {i for i in cell if i != -1}
        if len(known) > 1:
            raise Failure("ERR_CONFLICT")
        merged.append(max(cell))
    return merged

"""Routing from logits."""

import struct

from model.routing import ALL, I32, I64
from model.recording import (
    BF16,
    F16,
    F32,
    FLOOR_MAX,
    GROUPS_ZERO,
    RANK_LOGITS,
    RENORMALIZE,
    SIGMOID_TANH,
)
from script import Dice, Topic

topic = Topic("routes")
SPREAD = [
    -2.0,
    1.5,
    0.25,
    3.0,
    -0.5,
    2.25,
    0.75,
    -1.25,
]  # apart enough that no arithmetic confuses their order


def logits(rows, experts=8, seed=1):
    """Rows of logits, each the same numbers in another order."""
    dice = Dice(seed)
    spread = [SPREAD[i % 8] + i // 8 * 0.0625 for i in range(experts)]
    return [spread[i] for _ in range(rows) for i in dice.sample(experts, experts)]


def bits(values, dtype):
    """As the numbers of a 16-bit dtype."""
    if dtype == F16:
        return [struct.unpack("<H", struct.pack("<e", value))[0] for value in values]
    return [struct.unpack("<I", struct.pack("<f", value))[0] >> 16 for value in values]


def routed(v, router, given, config=None, begun=4, expect="OK"):
    """One layer routed from logits; its ids and their weights."""
    c = v.capturer(**({"layers": 1, "experts": 8, "layer_provenance": [1]} | (config or {})))
    request = v.open(c)
    v.step_begin(capturer=c, rows=begun)
    v.layer_route(
        capturer=c,
        layer=0,
        router=router,
        logits={"dtype": F32, "rows": 4, "weights": True} | given,
    )
    v.step_snapshot(capturer=c)
    v.step_issue(capturer=c, spans=[{"request": request, "rows": begun}])
    v.land(c)
    v.expect_rows(c, request, expect=expect)
    v.request_coverage(capturer=c, request=request, first=0, rows=ALL, capacity=4, expect=expect)


BIAS = [0.5, 0.0, -0.25, 0.125, 1.0, -0.5, 0.25, 0.75]
for method, name, router in (
    (1, "softmax", {}),
    (2, "softmax, renormalised", {}),
    (3, "top-k, then softmax", {}),
    (4, "top-k of logits", {}),
    (5, "top-k, then sigmoid", {}),
    (6, "sigmoid", {}),
    (6, "sigmoid with a bias", {"bias": BIAS, "bias_dtype": F32}),
    (7, "sigmoid, renormalised", {}),
    (8, "groups by their maximum, without groups", {"scale": 2.0}),
    (8, "groups by their maximum", {"groups": 4, "groups_kept": 2}),
    (9, "groups by their top two", {"groups": 2, "groups_kept": 1, "scale": 2.5}),
    (
        9,
        "groups by their top two, with a bias",
        {"groups": 4, "groups_kept": 2, "bias": BIAS, "bias_dtype": F32, "scale": 0.5},
    ),
    (10, "square root of softplus with a bias", {"bias": BIAS, "bias_dtype": F32, "scale": 1.5}),
    (11, "softmax with a bias, renormalised", {"bias": [b / 64 for b in BIAS], "bias_dtype": F32}),
):
    topic.vector(
        f"experts are chosen by method {method}: {name}",
        {"method": method} | router,
        {"logits": logits(4)},
    )(routed)

for name, router in (
    ("scores are logits", {"score": 0}),
    (
        "scores are logits, ranked with a bias that does not weigh",
        {"score": 0, "bias": BIAS, "bias_dtype": F32},
    ),
    (
        "keys are logits and bias, weights scores",
        {"score": 2, "flags": RANK_LOGITS, "bias": BIAS, "bias_dtype": F32},
    ),
    (
        "weights are divided by their sum and a floor",
        {"score": 2, "flags": RENORMALIZE, "floor": 0.5},
    ),
    (
        "weights are divided by no less than a floor",
        {"score": 2, "flags": RENORMALIZE | FLOOR_MAX, "floor": 3.0},
    ),
    (
        "a floor below the sum does nothing",
        {"score": 2, "flags": RENORMALIZE | FLOOR_MAX, "floor": 0.0625},
    ),
    ("sigmoid by the hyperbolic tangent", {"score": 2, "flags": SIGMOID_TANH}),
    (
        "groups by their two largest different keys",
        {"score": 0, "group_score": 2, "groups": 2, "groups_kept": 1},
    ),
    ("all groups are kept", {"score": 1, "group_score": 1, "groups": 4, "groups_kept": 4}),
    (
        "experts of other groups have the key 0",
        {"score": 0, "group_score": 0, "groups": 4, "groups_kept": 1, "flags": GROUPS_ZERO},
    ),
):
    topic.vector(f"a router of its own: {name}", router, {"logits": logits(4)})(routed)

for dtype, name in ((F16, "float16"), (BF16, "bfloat16")):
    router = {
        "method": 9,
        "groups": 2,
        "groups_kept": 1,
        "bias": bits(BIAS, dtype),
        "bias_dtype": dtype,
    }
    topic.vector(
        f"logits and bias are {name}", router, {"dtype": dtype, "logits": bits(logits(4), dtype)}
    )(routed)

PLAIN = {"method": 1}
turned = [row for e in range(8) for row in (logits(4)[r * 8 + e] for r in range(4))]
apart = [x for r in range(4) for x in [*logits(4)[r * 8 : r * 8 + 8], 9.0, 9.0]]
topic.vector(
    "logits lie transposed", PLAIN, {"logits": turned, "row_stride": 1, "column_stride": 4}
)(routed)
topic.vector("rows of logits lie apart", PLAIN, {"logits": apart, "row_stride": 10})(routed)
topic.vector("rows of weights lie apart", PLAIN, {"logits": logits(4), "weights_stride": 5})(routed)
topic.vector(
    "only live rows are routed", PLAIN, {"logits": logits(4), "live_rows": 2}, None, 4, "INCOMPLETE"
)(routed)
topic.vector(
    "routed rows go where an index says",
    PLAIN,
    {"logits": logits(4), "row_index": [3, -1, 0, 1]},
    None,
    4,
    "INCOMPLETE",
)(routed)
topic.vector(
    "routed rows go on from a row",
    PLAIN,
    {"logits": logits(2), "rows": 2, "first_row": 1, "row_base": 1},
    None,
    4,
    "INCOMPLETE",
)(routed)
topic.vector(
    "routed rows that are not begun are dropped, their weights are not",
    PLAIN,
    {"logits": logits(4)},
    None,
    2,
)(routed)
topic.vector(
    "fewer logits than the layer's experts",
    PLAIN,
    {"logits": logits(4), "experts": 8},
    {"experts": 12},
)(routed)
topic.vector("without weights", PLAIN, {"logits": logits(4), "weights": None})(routed)
topic.vector(
    "of equal keys the lower id wins",
    {"score": 0},
    {"logits": [1.0, 2.0, 2.0, 1.0, 2.0, 0.0, 0.0, 0.0] * 4},
)(routed)
topic.vector(
    "of equal groups the lower one wins",
    {"score": 0, "groups": 4, "groups_kept": 1},
    {"logits": [1.0, 2.0] * 16},
)(routed)
topic.vector(
    "a logit that is no number is never chosen before one that is",
    {"method": 2},
    {"logits": ["nan", 1.0, "-inf", 0.5, "nan", "nan", -30.0, -40.0] * 4},
)(routed)
topic.vector(
    "infinite logits share the softmax",
    {"method": 1},
    {"logits": [0.0, "inf", 5.0, "inf", 1.0, 2.0, 3.0, 4.0] * 4},
)(routed)
topic.vector(
    "many experts, many chosen", {"method": 2}, {"logits": logits(4, 64)}, {"experts": 64, "k": 8}
)(routed)

TABLE = [i % 8 for i in range(16)]
topic.vector(
    "a table by token chooses experts, logits weigh them",
    {"method": 10, "hash_table": TABLE, "hash_tokens": 8},
    {"logits": logits(4), "tokens": [7, 0, 3, 5], "tokens_dtype": I32},
)(routed)
topic.vector(
    "a table by token needs no logits without weights",
    {"method": 10, "hash_table": TABLE, "hash_tokens": 8},
    {"tokens": [1, 1, 2, 6], "tokens_dtype": I64, "weights": None},
)(routed)


def wrong_route(v, router, given, status, raw):
    c = v.capturer(experts=8, layer_provenance=[1, 0, 1])
    v.step_begin(capturer=c, rows=4)
    given = {"dtype": F32, "rows": 4, "logits": logits(4)} | given
    layer = given.pop("layer", 0)
    v.layer_route(capturer=c, layer=layer, router=router, logits=given, expect=status, raw=raw)


for name, router, given, status, raw in (
    ("a layer that is captured", PLAIN, {"layer": 1}, "ERR_STATE", False),
    ("a layer that does not exist", PLAIN, {"layer": 3}, "ERR_UNKNOWN_LAYER", False),
    ("logits of 32-bit ids", PLAIN, {"dtype": I32, "logits": [0] * 32}, "ERR_DTYPE", True),
    ("a bias of no dtype", {"method": 6, "bias": BIAS, "bias_dtype": 0}, {}, "ERR_DTYPE", True),
    (
        "groups that do not divide the experts",
        {"method": 9, "groups": 3, "groups_kept": 1},
        {},
        "ERR_ARGUMENT",
        False,
    ),
    (
        "groups kept with fewer than k experts",
        {"method": 9, "groups": 8, "groups_kept": 1},
        {},
        "ERR_ARGUMENT",
        False,
    ),
    (
        "more groups kept than there are",
        {"method": 9, "groups": 4, "groups_kept": 5},
        {},
        "ERR_ARGUMENT",
        False,
    ),
    ("no groups kept", {"method": 9, "groups": 4, "groups_kept": 0}, {}, "ERR_ARGUMENT", False),
    (
        "more groups than there may be",
        {"method": 9, "groups": 64, "groups_kept": 64},
        {},
        "ERR_ARGUMENT",
        False,
    ),
    ("fewer logits than are chosen", PLAIN, {"experts": 1}, "ERR_ARGUMENT", False),
    (
        "more logits than the layer has experts",
        PLAIN,
        {"experts": 9, "logits": logits(5)},
        "ERR_ARGUMENT",
        False,
    ),
    ("an unknown score", {"score": 4}, {}, "ERR_ARGUMENT", True),
    ("an unknown score of groups", {"score": 0, "group_score": 3}, {}, "ERR_ARGUMENT", True),
    ("unknown flags", {"score": 0, "flags": 32}, {}, "ERR_ARGUMENT", True),
    (
        "a table without tokens",
        {"method": 10, "hash_table": TABLE, "hash_tokens": 8},
        {},
        "ERR_ARGUMENT",
        False,
    ),
    (
        "tokens of no dtype",
        {"method": 10, "hash_table": TABLE, "hash_tokens": 8},
        {"tokens": [0, 1, 2, 3], "tokens_dtype": 0},
        "ERR_DTYPE",
        True,
    ),
    ("rows outside the sink", PLAIN, {"first_row": 5}, "ERR_CAPACITY", False),
):
    topic.vector(f"nothing is routed: {name}", router, given, status, raw)(wrong_route)


@topic.vector("a row that is routed twice is a conflict")
def _(v):
    c = v.capturer(layers=1, experts=8, layer_provenance=[1])
    v.step_begin(capturer=c, rows=4)
    v.layer_route(
        capturer=c, layer=0, router=PLAIN, logits={"dtype": F32, "rows": 4, "logits": logits(4)}
    )
    v.layer_route(
        capturer=c,
        layer=0,
        router=PLAIN,
        logits={"dtype": F32, "rows": 1, "logits": logits(1), "first_row": 3},
        expect="ERR_CONFLICT",
    )
    v.layer_record(
        capturer=c, layer=0, source={"dtype": I32, "rows": 1, "ids": [1, 2]}, expect="ERR_CONFLICT"
    )


@topic.vector("a layer that may be routed may be recorded too")
def _(v):
    c = v.capturer(layer_provenance=[1, 0, 0])
    request = v.open(c)
    v.step(c, (request, 1, 0, 3))
    v.land(c)
    v.expect_rows(c, request)

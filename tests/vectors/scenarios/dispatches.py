"""What an expert-parallel dispatch brought."""

from model.routing import I32, I64
from model.recording import EXPANDED
from script import Topic

topic = Topic("dispatches")


WANTED = {"global_ids": True, "executed": True, "ignored": True}


def received(v, what, expect="OK", raw=False, config=None):
    c = v.capturer(**({"layers": 1, "experts": 12} | (config or {})))
    v.received_read(capturer=c, layer=what.pop("layer", 0), received=what, expect=expect, raw=raw)


def metadata(sources, columns=((-1, -1),) * 9):
    return [i for source, own in zip(sources, columns) for i in (source, 0, *own)]


DECODE = {
    "ranks": 3,
    "rank": 1,
    "tokens_per_rank": 2,
    "rows": 4,
    "metadata": metadata([5, 0, 2, 3]),
    "ids": [0, 3, -1, 2, 1, -1, 3, 0],
    "dtype": I64,
}
topic.vector("a decode's dispatch: local ids become global, by source token", DECODE | WANTED)(
    received
)
topic.vector("a decode's dispatch of 32-bit ids", DECODE | WANTED | {"dtype": I32})(received)
topic.vector("a decode's dispatch converted in place", DECODE | {"global_ids": "ids"})(received)
topic.vector(
    "a decode's dispatch whose ids are global already",
    DECODE | WANTED | {"flags": 2, "ids": [4, 7, -1, 6, 5, -1, 7, 4]},
)(received)
topic.vector("of a decode's dispatch only live rows count", DECODE | WANTED | {"live_rows": 2})(
    received
)
topic.vector("only what was executed is wanted", DECODE | {"executed": True})(received)
topic.vector("only global ids are wanted", DECODE | {"global_ids": True, "metadata": None})(
    received
)
topic.vector(
    "a dispatch that contradicts itself is counted, not written",
    DECODE | WANTED | {"metadata": metadata([5, 6, 2, 2]), "ids": [0, 3, 1, 2, 1, -1, 3, 0]},
)(received)
topic.vector(
    "a dispatch of a rank with its own number of experts",
    DECODE | WANTED | {"experts": 24, "ids": [7, 3, -1, 2, 1, -1, 3, 6]},
)(received)
topic.vector("a dispatch without rows", DECODE | WANTED | {"rows": 0, "metadata": [], "ids": []})(
    received
)

PREFILL = {
    "flags": EXPANDED,
    "ranks": 3,
    "rank": 2,
    "tokens_per_rank": 2,
    "rows": 3,
    "metadata": metadata([1, 4, 0], ((0, 4), (-1, 5), (8, -1))),
    "expert_ends": [2, 6, 6, 9],
    "expert_alignment": 4,
    "expanded_rows": 14,
    "dtype": I64,
}
topic.vector("a prefill's dispatch: a row for each token and local expert", PREFILL | WANTED)(
    received
)
topic.vector("a prefill's dispatch without alignment", PREFILL | WANTED | {"expert_alignment": 0})(
    received
)
topic.vector(
    "a prefill's row in a gap is ignored",
    PREFILL | WANTED | {"metadata": metadata([1, 4, 0], ((0, 3), (-1, 5), (8, 20)))},
)(received)

for name, change, status, raw in (
    ("a rank that is none", {"rank": 3}, "ERR_ARGUMENT", False),
    ("no ranks", {"ranks": 0, "rank": 0}, "ERR_ARGUMENT", False),
    ("ids of no dtype", {"dtype": 2}, "ERR_DTYPE", True),
    ("experts that the ranks do not divide", {"experts": 13}, "ERR_SHAPE_MISMATCH", False),
    ("more rows than were sent", {"tokens_per_rank": 1, "rows": 4}, "ERR_SHAPE_MISMATCH", False),
    (
        "nothing is wanted",
        {"global_ids": None, "executed": None, "ignored": None},
        "ERR_ARGUMENT",
        True,
    ),
    ("unknown flags", {"flags": 4}, "ERR_ARGUMENT", True),
    ("expanded rows with global ids", {"flags": 3}, "ERR_ARGUMENT", True),
    ("a layer that does not exist", {"layer": 1}, "ERR_UNKNOWN_LAYER", False),
):
    topic.vector(f"a dispatch is refused: {name}", DECODE | WANTED | change, status, raw)(received)


@topic.vector("the tables of all ranks are merged")
def _(v):
    v.received_merge(
        executed=[[1, -1, -1, 5, -1, -1], [-1, 3, -1, -1, -1, 2], [-1, -1, 0, -1, -1, -1]]
    )
    v.received_merge(executed=[[4, -1, 2]])
    v.received_merge(executed=[[4, -1], [4, 1]])
    v.received_merge(executed=[[4, -1], [5, 1]], expect="ERR_CONFLICT")

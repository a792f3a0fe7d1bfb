"""Capturers that capture nothing."""

from model.calls import DISABLED, MIRROR
from model.routing import ALL, I32
from script import SHAPE, Topic

topic = Topic("roles")
STRICT_COPY = {"dtype": I32}


def reading(v, c):
    """Everything that gives out rows."""
    of = {"capturer": c, "request": 0, "expect": "ERR_DISABLED", "raw": True}
    v.request_coverage(first=0, rows=ALL, capacity=0, **of)
    v.request_extract(first=0, rows=ALL, mode=0, flags=0, **of)
    v.request_extract_into(first=0, rows=ALL, options=STRICT_COPY, **of)
    v.request_finish(rows=ALL, **of)
    items = [{"request": 0, "first": 0, "rows": 0, "mode": 0, "flags": 0}]
    v.request_extract_batch(capturer=c, items=items, expect="ERR_DISABLED", raw=True)
    v.request_finish_batch(
        capturer=c, items=[{"request": 0, "rows": 0}], expect="ERR_DISABLED", raw=True
    )


def requests(v, c):
    """Everything else about requests and steps, from issue on."""
    v.request_open(capturer=c, count=2)
    v.step_issue(capturer=c, spans=[{"request": 0, "rows": 2}])
    v.step_poll(capturer=c, step=1)
    v.step_finalize(capturer=c, step=1, timeout_ns=-1)
    v.request_accept(capturer=c, request=0, step=1, count=3, raw=True)
    v.request_accept_batch(capturer=c, items=[{"request": 0, "step": 1, "count": 3}], raw=True)
    v.request_truncate(capturer=c, request=0, rows=0, raw=True)
    v.request_fork(capturer=c, request=0, rows=ALL, raw=True)
    v.request_close(capturer=c, request=0, raw=True)
    v.request_close_batch(capturer=c, requests=[0, 0], raw=True)
    v.capturer_progress(capturer=c)
    v.capturer_stats(capturer=c)


@topic.vector("a disabled capturer needs no configuration and does nothing")
def _(v):
    c = v.capturer_create(config={"role": DISABLED})["capturer"]
    v.step_begin(capturer=c, rows=5)
    v.layer_record(capturer=c, layer=0, source={"dtype": I32, "ids": [1, 2], "rows": 1})
    v.layers_record(
        capturer=c, source={"dtype": I32, "rows": 1}, layers=[{"layer": 0, "ids": [1, 2]}]
    )
    v.step_snapshot(capturer=c)
    v.step_discard(capturer=c)
    requests(v, c)
    reading(v, c)
    v.capturer_destroy(capturer=c)


@topic.vector("a disabled capturer gives no address and no statistics")
def _(v):
    c = v.capturer_create(config={"role": DISABLED, "backend": 1} | SHAPE)["capturer"]
    v.told(
        "sink_layer",
        "OK",
        {"sink": {"dtype": 0, "ids": None, "rows": 0, "k": 0}},
        capturer=c,
        layer=0,
    )
    v.told(
        "capturer_layer_stats",
        "OK",
        {
            "stats": [
                {
                    "rows_written": 0,
                    "unwritten": 0,
                    "out_of_range": 0,
                    "duplicate": 0,
                    "silent_steps": 0,
                }
            ]
            * 2
        },
        capturer=c,
        count=2,
    )
    probe = {
        "found": 0,
        "rows_unwritten": 0,
        "rows_incomplete": 0,
        "rows_written": 0,
        "rows_out_of_range": 0,
        "rows_duplicate": 0,
        "lowest": 0,
        "highest": 0,
    }
    v.told("capturer_probe", "OK", {"layers": [probe] * 2}, capturer=c, rows=1, count=2)


@topic.vector("a mirror works on the forward path as its owner does")
def _(v):
    c = v.capturer(role=MIRROR)
    v.sink_layer(capturer=c, layer=0)
    v.step_begin(capturer=c, rows=9, expect="ERR_CAPACITY")
    v.step_begin(capturer=c, rows=3)
    v.record(c, v.rows(c, 1, 0, 3))
    v.layer_record(
        capturer=c, layer=0, source={"dtype": I32, "ids": [1, 2], "rows": 1}, expect="ERR_CONFLICT"
    )
    v.layer_record(
        capturer=c,
        layer=3,
        source={"dtype": I32, "ids": [1, 2], "rows": 1},
        expect="ERR_UNKNOWN_LAYER",
    )
    v.capturer_probe(capturer=c, rows=3, count=3)
    v.step_snapshot(capturer=c)


@topic.vector("from issue on a mirror is like a disabled capturer")
def _(v):
    c = v.capturer(role=MIRROR)
    v.forward(c, v.rows(c, 1, 0, 3))
    requests(v, c)
    reading(v, c)

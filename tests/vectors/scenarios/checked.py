"""Checked mode: slips of the forward path are errors at their call, which changes nothing.

The model forgives them, so their author tells them.
"""

from model.capturer import CHECKED
from model.routing import I32
from script import Topic

topic = Topic("checked")


def begun(v, rows=4):
    c = v.capturer(flags=CHECKED)
    request = v.open(c)
    v.step_begin(capturer=c, rows=rows)
    v.record(c, v.rows(c, 1, 0, rows))
    return c, request


def issue(v, c, request, rows=4, **more):
    v.step_issue(capturer=c, spans=[{"request": request, "rows": rows}], **more)
    v.land(c)
    v.expect_rows(c, request)
    v.capturer_stats(capturer=c)


def record(layer, first_row=0, rows=1):
    return {
        "layer": layer,
        "source": {"dtype": I32, "ids": [1, 2] * rows, "rows": rows, "first_row": first_row},
    }


@topic.vector("a checked capturer that is used as it should be notices nothing")
def _(v):
    c, request = begun(v)
    v.step_snapshot(capturer=c)
    issue(v, c, request)
    v.forward(c, v.rows(c, 1, 0, 2))
    v.step_discard(capturer=c)
    v.forward(c, v.rows(c, 1, 0, 2))
    v.step(c, (request, 1, 4, 3))
    v.land(c)
    v.expect_rows(c, request)


@topic.vector("a checked capturer refuses what belongs to a forward that was not begun")
def _(v):
    c = v.capturer(flags=CHECKED)
    request = v.open(c)
    spans = [{"request": request, "rows": 1}]
    for _ in range(2):
        v.told("layer_record", "ERR_NOT_BEGUN", capturer=c, **record(0))
        v.told(
            "layers_record",
            "ERR_NOT_BEGUN",
            capturer=c,
            source={"dtype": I32, "rows": 1},
            layers=[{"layer": 1, "ids": [1, 2]}],
        )
        v.told("step_snapshot", "ERR_NOT_BEGUN", capturer=c)
        v.told("step_issue", "ERR_NOT_BEGUN", capturer=c, spans=spans)
        v.step_begin(capturer=c, rows=4)
        v.step_discard(capturer=c)
    v.step(c, (request, 1, 0, 4))
    v.land(c)
    v.told("layer_record", "ERR_NOT_BEGUN", capturer=c, **record(0))
    v.told("step_snapshot", "ERR_NOT_BEGUN", capturer=c)
    v.expect_rows(c, request)
    v.capturer_stats(capturer=c)


@topic.vector(
    "a checked capturer refuses to issue a forward without a snapshot, and issues it once there"
    " is one"
)
def _(v):
    c, request = begun(v)
    v.told("step_issue", "ERR_NOT_SNAPSHOT", capturer=c, spans=[{"request": request, "rows": 4}])
    v.step_snapshot(capturer=c)
    issue(v, c, request)


@topic.vector("a checked capturer refuses a second snapshot, and the first one stays")
def _(v):
    c, request = begun(v)
    v.step_snapshot(capturer=c)
    v.told("step_snapshot", "ERR_SNAPSHOT_TWICE", capturer=c)
    v.told(
        "step_issue",
        "ERR_SNAPSHOT_TWICE",
        capturer=c,
        spans=[{"request": request, "rows": 4}],
        options={"snapshot": 1},
    )
    issue(v, c, request)


@topic.vector("a checked capturer refuses a second issue of one forward")
def _(v):
    c, request = begun(v)
    v.step_snapshot(capturer=c)
    v.step_issue(capturer=c, spans=[{"request": request, "rows": 4}])
    v.told(
        "step_issue",
        "ERR_ISSUED_TWICE",
        capturer=c,
        spans=[{"request": request, "position": 4, "rows": 1}],
    )
    v.land(c)
    v.expect_rows(c, request)
    v.capturer_stats(capturer=c)


@topic.vector("a checked capturer refuses rows that were not begun")
def _(v):
    c, request = begun(v)
    v.step_begin(capturer=c, rows=4)
    v.told("layer_record", "ERR_ROWS_NOT_BEGUN", capturer=c, **record(0, first_row=3, rows=2))
    v.record(c, v.rows(c, 1, 0, 4))
    v.step_snapshot(capturer=c)
    spans = [
        {"request": request, "rows": 3},
        {"request": request, "position": 3, "sink_row": 3, "rows": 2},
    ]
    v.told("step_issue", "ERR_ROWS_NOT_BEGUN", capturer=c, spans=spans)
    issue(v, c, request)

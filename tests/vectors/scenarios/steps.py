"""Begin, write, snapshot, issue; slots, tickets, landing."""

from model.capturer import MAY_LOSE
from model.routing import I32
from script import Topic

topic = Topic("steps")
MAKE = 1


@topic.vector("a step can be polled and its rows read once progress was made")
def _(v):
    c = v.capturer()
    request = v.open(c)
    v.step_poll(capturer=c, step=1, expect="ERR_UNKNOWN_STEP")
    v.step(c, (request, 1, 0, 5), tag=7)
    v.step_poll(capturer=c, step=1, expect="PENDING")
    v.extract(c, request, expect="ERR_NOT_READY")
    v.capturer_stats(capturer=c)
    v.land(c)
    v.step_poll(capturer=c, step=1)
    v.expect_rows(c, request)
    v.capturer_stats(capturer=c)


@topic.vector("finalize lands a step by itself")
def _(v):
    c = v.capturer()
    request = v.open(c)
    step = v.step(c, (request, 1, 0, 3))
    v.step_finalize(capturer=c, step=step, timeout_ns=-1)
    v.expect_rows(c, request)
    v.step_finalize(capturer=c, step=step, timeout_ns=0)
    for unknown in (0, 2, 2**63):
        v.step_finalize(capturer=c, step=unknown, timeout_ns=0, expect="ERR_UNKNOWN_STEP")
        v.step_poll(capturer=c, step=unknown, expect="ERR_UNKNOWN_STEP")


@topic.vector("steps of one request land in the order of issue")
def _(v):
    c = v.capturer()
    request = v.open(c)
    for tag, (first, count) in enumerate([(0, 4), (4, 1), (5, 2)], 1):
        v.step(c, (request, 1, first, count), tag=tag)
    v.land(c)
    v.expect_rows(c, request)


@topic.vector("issue can make the snapshot")
def _(v):
    c = v.capturer()
    request = v.open(c)
    v.step_begin(capturer=c, rows=3)
    v.record(c, v.rows(c, 2, 0, 3))
    v.step_issue(
        capturer=c, spans=[{"request": request, "rows": 3}], options={"snapshot": MAKE, "tag": 5}
    )
    v.land(c)
    v.expect_rows(c, request)


def incomplete_forward(v, begin, snapshots, make, expect):
    c = v.capturer()
    request = v.open(c)
    if begin:
        v.step_begin(capturer=c, rows=3)
    v.record(c, v.rows(c, 2, 0, 3))
    for _ in range(snapshots):
        v.step_snapshot(capturer=c)
    v.step_issue(capturer=c, spans=[{"request": request, "rows": 3}], options={"snapshot": make})
    v.land(c)
    v.expect_rows(c, request, expect=expect)
    v.request_coverage(
        capturer=c, request=request, first=0, rows=3, capacity=4, expect="INCOMPLETE"
    )


for name, begin, snapshots, make in (
    ("without a begin", False, 1, 0),
    ("without a snapshot", True, 0, 0),
    ("with two snapshots", True, 2, 0),
    ("with a snapshot and another made by issue", True, 1, MAKE),
):
    topic.vector(f"rows are missing of a forward {name}", begin, snapshots, make, "NOT_CAPTURED")(
        incomplete_forward
    )


@topic.vector("a forward that was discarded leaves nothing for the next issue")
def _(v):
    c = v.capturer()
    request = v.open(c)
    v.forward(c, v.rows(c, 1, 0, 4))
    v.step_discard(capturer=c)
    v.step_issue(capturer=c, spans=[{"request": request, "rows": 4}])
    v.step(c, (request, 2, 4, 2))
    v.land(c)
    v.expect_rows(c, request, expect="INCOMPLETE")


@topic.vector("a begin after a forward that was not issued discards it")
def _(v):
    c = v.capturer()
    request = v.open(c)
    v.forward(c, v.rows(c, 1, 0, 4))
    v.step(c, (request, 2, 0, 4))
    v.land(c)
    v.expect_rows(c, request)


@topic.vector("a forward is issued once: a second issue finds nothing")
def _(v):
    c = v.capturer()
    request = v.open(c)
    v.step(c, (request, 1, 0, 2))
    v.step_issue(capturer=c, spans=[{"request": request, "position": 2, "rows": 2}])
    v.land(c)
    v.expect_rows(c, request, expect="INCOMPLETE")


@topic.vector("rows beyond those begun are missing")
def _(v):
    c = v.capturer()
    request = v.open(c)
    v.step_begin(capturer=c, rows=2)
    v.record(c, v.rows(c, 1, 0, 2))
    v.step_snapshot(capturer=c)
    v.step_issue(capturer=c, spans=[{"request": request, "rows": 5}])
    v.land(c)
    v.expect_rows(c, request, expect="INCOMPLETE")


@topic.vector("more rows may be begun than the sink's spans name")
def _(v):
    c = v.capturer()
    request = v.open(c)
    v.step_begin(capturer=c, rows=8)
    v.record(c, v.rows(c, 1, 0, 3))
    v.step_snapshot(capturer=c)
    v.step_issue(capturer=c, spans=[{"request": request, "rows": 3}])
    v.land(c)
    v.expect_rows(c, request)
    v.capturer_stats(capturer=c)


@topic.vector("more rows than the sink's are not begun")
def _(v):
    c = v.capturer()
    v.step_begin(capturer=c, rows=9, expect="ERR_CAPACITY")
    v.step_begin(capturer=c, rows=8)


@topic.vector("a step without spans has landed at once")
def _(v):
    c = v.capturer()
    v.forward(c, v.rows(c, 1, 0, 4))
    v.step_issue(capturer=c, spans=[])
    v.step_poll(capturer=c, step=1)
    v.capturer_stats(capturer=c)


@topic.vector("tickets count the steps of each capturer")
def _(v):
    for _ in range(2):
        c = v.capturer()
        request = v.open(c)
        for position in range(3):
            v.step(c, (request, 1, position, 1))


def slots_run_out(v, slots):
    c = v.capturer(slots=slots, flags=MAY_LOSE)
    request = v.open(c)
    for position in range(slots):
        v.step(c, (request, 1, position, 1))
    lost = v.step(c, (request, 1, slots, 1), expect="LOST")
    v.step_poll(capturer=c, step=lost, expect="LOST")
    v.step_finalize(capturer=c, step=lost, timeout_ns=0, expect="LOST")
    v.land(c)
    v.step(c, (request, 1, slots + 1, 1))
    v.land(c)
    v.request_coverage(
        capturer=c, request=request, first=0, rows=slots + 2, capacity=3, expect="INCOMPLETE"
    )
    v.expect_rows(c, request, expect="INCOMPLETE")
    v.capturer_stats(capturer=c)


for slots in (1, 2, 4):
    topic.vector(
        f"of {slots + 1} steps with {slots} slots the last is lost, and its rows are missing", slots
    )(slots_run_out)


def slots_are_freed(v, slots):
    c = v.capturer(slots=slots)
    request = v.open(c)
    for position in range(3 * slots + 1):
        v.step(c, (request, 1, position, 1), tag=position)
    v.step_poll(capturer=c, step=2 * slots + 1)
    v.step_poll(capturer=c, step=2 * slots + 2 if slots > 1 else 4, expect="PENDING")
    v.land(c)
    v.expect_rows(c, request)
    v.capturer_stats(capturer=c)


for slots in (1, 2, 4):
    topic.vector(
        f"on the host nothing is lost: with {slots} slots a begin files the oldest step where none"
        " is free",
        slots,
    )(slots_are_freed)


@topic.vector("with the default slots four steps can be in flight")
def _(v):
    c = v.capturer(slots=0, flags=MAY_LOSE)
    request = v.open(c)
    for position in range(4):
        v.step(c, (request, 1, position, 1))
    v.step(c, (request, 1, 4, 1), expect="LOST")
    v.land(c)
    v.expect_rows(c, request, expect="INCOMPLETE")


@topic.vector("rows that were lost are filled by computing them again")
def _(v):
    c = v.capturer(slots=1, flags=MAY_LOSE)
    request = v.open(c)
    v.step(c, (request, 1, 0, 2), tag=1)
    v.step(c, (request, 1, 2, 2), tag=2, expect="LOST")
    v.land(c)
    v.step(c, (request, 1, 2, 2), tag=3)
    v.land(c)
    v.expect_rows(c, request)


@topic.vector("a slot is chosen when a forward begins, not when it is issued")
def _(v):
    c = v.capturer(slots=1, flags=MAY_LOSE)
    request = v.open(c)
    v.step(c, (request, 1, 0, 2))
    v.forward(c, v.rows(c, 1, 2, 2))
    v.land(c)
    v.step_issue(capturer=c, spans=[{"request": request, "position": 2, "rows": 2}], expect="LOST")
    v.step(c, (request, 1, 4, 2))
    v.land(c)
    v.expect_rows(c, request, expect="INCOMPLETE")


@topic.vector("a lost step skips unknown requests too")
def _(v):
    c = v.capturer(slots=1, flags=MAY_LOSE)
    request, closed = v.open(c, 2)
    v.request_close(capturer=c, request=closed)
    v.step(c, (request, 1, 0, 1))
    v.forward(c, v.rows(c, 1, 1, 2))
    spans = [
        {"request": request, "position": 1, "rows": 1},
        {"request": closed, "sink_row": 1, "rows": 1},
    ]
    v.step_issue(capturer=c, spans=spans, expect="LOST", raw=True)
    v.land(c)
    v.capturer_stats(capturer=c)


@topic.vector("cells recorded twice are reported by finalize, step by step")
def _(v):
    c = v.capturer(layers=2)
    request = v.open(c)
    for position, again in ((0, 0), (4, 3), (8, 1)):
        v.step_begin(capturer=c, rows=4)
        v.record(c, v.rows(c, 1, position, 4))
        if again:
            source = {
                "dtype": I32,
                "ids": [1, 2] * again,
                "rows": again,
                "row_index": list(range(again)),
            }
            v.layer_record(capturer=c, layer=1, source=source)
        v.step_snapshot(capturer=c)
        v.step_issue(capturer=c, spans=[{"request": request, "position": position, "rows": 4}])
    for step in (1, 2, 3):
        v.step_finalize(capturer=c, step=step, timeout_ns=0)
    v.expect_rows(c, request)
    v.capturer_stats(capturer=c)


@topic.vector("each row has the tag of its step")
def _(v):
    c = v.capturer()
    request = v.open(c)
    for position, tag in enumerate((0, 2**53 + 1, 2**64 - 3, 7, 7)):
        v.step(c, (request, 1, position, 1), tag=tag)
        v.land(c)
    v.expect_rows(c, request)

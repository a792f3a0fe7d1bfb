"""Which rows of a step are whose, and where they go."""

from model.capturer import MAY_LOSE
from model.routing import I32, I64
from script import Topic

topic = Topic("spans")


@topic.vector("rows of several requests come from one step")
def _(v):
    c = v.capturer()
    requests = v.open(c, 3)
    v.step(c, (requests[0], 1, 0, 3), (requests[1], 2, 0, 1), (requests[2], 3, 0, 4))
    v.step(c, (requests[2], 3, 4, 1), (requests[0], 1, 3, 1), (requests[1], 2, 1, 1))
    v.land(c)
    for request in requests:
        v.expect_rows(c, request)


@topic.vector("one sink row may be of several requests")
def _(v):
    c = v.capturer()
    requests = v.open(c, 2)
    v.forward(c, v.rows(c, 1, 0, 4))
    spans = [
        {"request": requests[0], "position": 0, "sink_row": 0, "rows": 4},
        {"request": requests[1], "position": 7, "sink_row": 1, "rows": 2},
    ]
    v.step_issue(capturer=c, spans=spans)
    v.land(c)
    v.expect_rows(c, requests[0])
    v.expect_rows(c, requests[1], expect="INCOMPLETE")
    v.capturer_stats(capturer=c)


@topic.vector("one request may have several spans in a step")
def _(v):
    c = v.capturer()
    request = v.open(c)
    v.step(c, (request, 1, 4, 2), (request, 1, 0, 3), (request, 1, 9, 1))
    v.land(c)
    v.expect_rows(c, request, expect="INCOMPLETE")


@topic.vector("sink rows that no span names are forgotten")
def _(v):
    c = v.capturer()
    request = v.open(c)
    v.forward(c, v.rows(c, 1, 0, 6))
    v.step_issue(capturer=c, spans=[{"request": request, "position": 0, "sink_row": 2, "rows": 2}])
    v.land(c)
    v.expect_rows(c, request)


@topic.vector("positions may be near the end of what positions can be")
def _(v):
    c = v.capturer()
    request = v.open(c)
    last = 2**40 - 2
    v.step(c, (request, 1, last, 2))
    v.land(c)
    v.expect_rows(c, request, first=last)
    v.extract(c, request, first=2**40 + 1, rows=0, expect="ERR_OUT_OF_RANGE")


@topic.vector("spans of unknown requests are skipped, the others are filed")
def _(v):
    c = v.capturer()
    one, closed, other = v.open(c, 3)
    v.request_close(capturer=c, request=closed)
    v.step(c, (one, 1, 0, 2), (closed, 2, 0, 3), (0, 2, 0, 1), (other, 3, 0, 2), expect="PARTIAL")
    v.land(c)
    v.expect_rows(c, one)
    v.expect_rows(c, other)
    v.capturer_stats(capturer=c)


@topic.vector("a request of another capturer is unknown")
def _(v):
    a, b = v.capturer(), v.capturer()
    v.open(a)
    request = v.open(a)
    v.step(b, (request, 1, 0, 2), expect="PARTIAL")
    v.request_close(capturer=b, request=request, expect="ERR_UNKNOWN_REQUEST", raw=True)


def refused_issue(v, spans, status, options, raw):
    c = v.capturer()
    request = v.open(c)
    v.forward(c, v.rows(c, 1, 0, 4))
    spans = [{"request": request, "rows": 1} | span for span in spans]
    v.step_issue(
        capturer=c, spans=spans, expect=status, raw=raw, **({"options": options} if options else {})
    )
    v.step_issue(
        capturer=c, spans=[{"request": request, "rows": 4}]
    )  # the step was neither issued nor discarded
    v.land(c)
    v.expect_rows(c, request)
    v.capturer_stats(capturer=c)


for name, spans, status, options, raw in (
    ("a span without rows", [{"rows": 0}], "ERR_ARGUMENT", None, True),
    ("a span of both phases", [{"flags": 12}], "ERR_ARGUMENT", None, True),
    ("a span with unknown flags", [{"flags": 32}], "ERR_ARGUMENT", None, True),
    ("a span with a reserved field", [{"reserved": 1}], "ERR_ARGUMENT", None, True),
    ("a position beyond the limit", [{"position": 2**40}], "ERR_ARGUMENT", None, False),
    (
        "a last position beyond the limit",
        [{"position": 2**40 - 1, "rows": 2}],
        "ERR_ARGUMENT",
        None,
        False,
    ),
    ("the largest position there is", [{"position": 2**64 - 3}], "ERR_ARGUMENT", None, False),
    ("sink rows outside the sink", [{"sink_row": 6, "rows": 3}], "ERR_CAPACITY", None, False),
    ("a sink row far outside the sink", [{"sink_row": 2**32 - 1}], "ERR_CAPACITY", None, False),
    (
        "two spans with one position",
        [{"rows": 3}, {"position": 2, "sink_row": 3}],
        "ERR_OVERLAP",
        None,
        False,
    ),
    ("a good span before a bad one", [{"rows": 2}, {"sink_row": 9}], "ERR_CAPACITY", None, False),
    (
        "device positions without positions",
        [{"flags": 2, "position_end": 4}],
        "ERR_ARGUMENT",
        None,
        True,
    ),
    (
        "empty bounds",
        [{"flags": 2, "position": 4, "position_end": 4}],
        "ERR_ARGUMENT",
        {"positions": [0] * 8, "positions_dtype": I32},
        False,
    ),
    (
        "bounds in the wrong order",
        [{"flags": 2, "position": 4, "position_end": 1}],
        "ERR_ARGUMENT",
        {"positions": [0] * 8, "positions_dtype": I64},
        False,
    ),
    (
        "bounds beyond the limit",
        [{"flags": 2, "position_end": 2**40 + 1}],
        "ERR_ARGUMENT",
        {"positions": [0] * 8, "positions_dtype": I64},
        False,
    ),
    (
        "positions of an unknown dtype",
        [{"flags": 2, "position_end": 4}],
        "ERR_DTYPE",
        {"positions": [0] * 8, "positions_dtype": 2},
        True,
    ),
    ("an unknown way of snapshot", [{}], "ERR_ARGUMENT", {"snapshot": 2}, True),
    ("a reserved option", [{}], "ERR_ARGUMENT", {"reserved": 1}, True),
):
    topic.vector(f"an issue is refused and changes nothing: {name}", spans, status, options, raw)(
        refused_issue
    )


def device_span(request, first, end, sink_row, rows, flags=0):
    return {
        "request": request,
        "position": first,
        "position_end": end,
        "sink_row": sink_row,
        "rows": rows,
        "flags": flags | 2,
    }


def device_positions(v, dtype):
    c = v.capturer()
    requests = v.open(c, 2)
    v.forward(c, v.rows(c, 1, 0, 6))
    options = {"positions": [4, 5, 6, 0, 1, 2], "positions_dtype": dtype, "tag": 3}
    v.step_issue(
        capturer=c,
        spans=[device_span(requests[0], 2, 9, 0, 3), device_span(requests[1], 0, 3, 3, 3)],
        options=options,
    )
    v.request_coverage(
        capturer=c, request=requests[0], first=0, rows=2, capacity=0, expect="INCOMPLETE"
    )
    v.extract(c, requests[0], rows=5, expect="ERR_NOT_READY")
    v.extract(c, requests[0], rows=10, expect="ERR_OUT_OF_RANGE")
    v.land(c)
    v.expect_rows(c, requests[0], expect="INCOMPLETE")
    v.expect_rows(c, requests[1])
    v.extract(c, requests[0], rows=8, expect="ERR_OUT_OF_RANGE")


for dtype, name in ((I32, "int32"), (I64, "int64")):
    topic.vector(f"positions are read from the device as {name}", dtype)(device_positions)


@topic.vector("rows whose position is outside the bounds are dropped and counted")
def _(v):
    c = v.capturer()
    request = v.open(c)
    v.forward(c, v.rows(c, 1, 0, 5))
    options = {"positions": [3, 1, 2, 7, -1], "positions_dtype": I64}
    v.step_issue(capturer=c, spans=[device_span(request, 1, 5, 0, 5)], options=options)
    v.land(c)
    v.expect_rows(c, request, expect="INCOMPLETE")
    v.capturer_stats(capturer=c)


@topic.vector("of two rows with one position from the device the first is kept")
def _(v):
    c = v.capturer()
    request = v.open(c)
    v.forward(c, v.rows(c, 1, 0, 4))
    v.step_issue(
        capturer=c,
        spans=[device_span(request, 0, 4, 0, 4)],
        options={"positions": [0, 2, 2, 1], "positions_dtype": I32},
    )
    v.land(c)
    v.expect_rows(c, request)
    v.capturer_stats(capturer=c)


@topic.vector("known positions and those from the device may be in one step")
def _(v):
    c = v.capturer()
    one, other = v.open(c, 2)
    v.forward(c, v.rows(c, 1, 0, 5))
    spans = [
        {"request": one, "position": 0, "sink_row": 0, "rows": 3},
        device_span(other, 0, 8, 3, 2),
    ]
    v.step_issue(
        capturer=c, spans=spans, options={"positions": [9, 9, 9, 6, 7], "positions_dtype": I32}
    )
    v.land(c)
    v.expect_rows(c, one)
    v.expect_rows(c, other, expect="INCOMPLETE")


@topic.vector("a lost step leaves the upper bound of positions as length")
def _(v):
    c = v.capturer(slots=1, flags=MAY_LOSE)
    one, other = v.open(c, 2)
    v.step(c, (one, 1, 0, 1))
    v.forward(c, v.rows(c, 1, 0, 2))
    options = {"positions": [0, 1], "positions_dtype": I32}
    v.step_issue(capturer=c, spans=[device_span(other, 0, 6, 0, 2)], options=options, expect="LOST")
    v.land(c)
    v.expect_rows(c, other, rows=6, expect="NOT_CAPTURED")
    v.coverage(c, other)
    v.extract(c, other, rows=7, expect="ERR_OUT_OF_RANGE")

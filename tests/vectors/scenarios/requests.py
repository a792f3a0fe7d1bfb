"""Requests: writing a position twice, cutting, and the end."""

from model.capturer import REPLACE, TAKE
from model.routing import ALL, I32
from script import Topic

topic = Topic("requests")


@topic.vector("the first valid value of a cell is final")
def _(v):
    c = v.capturer()
    request = v.open(c)
    v.step(c, (request, 1, 0, 4), tag=1)
    v.step(c, (request, 2, 2, 4), tag=2)
    v.land(c)
    v.expect_rows(c, request)
    v.capturer_stats(capturer=c)


@topic.vector("a missing cell is filled by a later step, the others of its row are kept")
def _(v):
    c = v.capturer()
    request = v.open(c)
    v.step(
        c,
        (request, 1, 0, 3),
        tag=1,
        faults=[(0, 1, [3, 3]), (2, 0, [99, 0]), (2, 1, [4, 4]), (2, 2, [-1, 0])],
    )
    v.step(c, (request, 2, 0, 3), tag=2)
    v.land(c)
    v.expect_rows(c, request)
    v.capturer_stats(capturer=c)


@topic.vector("rows computed again and found equal are overlapped, not mismatched")
def _(v):
    c = v.capturer(flags=1)
    request = v.open(c)
    v.step(c, (request, 1, 0, 4))
    v.step(c, (request, 1, 0, 4))
    v.land(c)
    v.capturer_stats(capturer=c)


@topic.vector("rows computed again and found different are counted if they are compared")
def _(v):
    c = v.capturer(flags=1)
    request = v.open(c)
    v.step(c, (request, 1, 0, 4))
    rows = v.rows(c, 1, 0, 4)
    rows[1][2] = rows[1][2][::-1]  # the same set
    rows[3][0] = [i ^ 1 for i in rows[3][0]]
    rows[2][1] = [5, 5]  # missing now
    v.forward(c, rows)
    v.step_issue(capturer=c, spans=[{"request": request, "rows": 4}])
    v.land(c)
    v.expect_rows(c, request)
    v.capturer_stats(capturer=c)


@topic.vector("with the policy of replacing a later row replaces the whole row")
def _(v):
    c = v.capturer()
    request = v.open(c, policy=REPLACE)
    v.step(c, (request, 1, 0, 4), tag=1)
    v.step(c, (request, 2, 1, 2), tag=2, faults=[(1, 0, [7, 7])])
    v.land(c)
    v.expect_rows(c, request, expect="INCOMPLETE")
    v.coverage(c, request)


@topic.vector("with the policy of replacing a row without a valid cell replaces nothing")
def _(v):
    c = v.capturer()
    request = v.open(c, policy=REPLACE)
    v.step(c, (request, 1, 0, 2), tag=1)
    v.step(c, (request, 2, 1, 1), tag=2, faults=[(0, layer, [7, 7]) for layer in range(3)])
    v.land(c)
    v.expect_rows(c, request)


@topic.vector("an unknown policy is refused")
def _(v):
    c = v.capturer()
    v.request_open(capturer=c, count=1, options={"policy": 2}, expect="ERR_ARGUMENT", raw=True)


@topic.vector("a cut drops what has landed from there on")
def _(v):
    c = v.capturer()
    request = v.open(c)
    v.step(c, (request, 1, 0, 6))
    v.land(c)
    v.request_truncate(capturer=c, request=request, rows=4)
    v.land(c)
    v.expect_rows(c, request)
    v.extract(c, request, rows=5, expect="ERR_OUT_OF_RANGE")


@topic.vector("a cut drops what is in flight from there on, and later steps fill it anew")
def _(v):
    c = v.capturer()
    request = v.open(c)
    v.step(c, (request, 1, 0, 6), tag=1)
    v.request_truncate(capturer=c, request=request, rows=4)
    v.step(c, (request, 2, 4, 3), tag=2)
    v.land(c)
    v.expect_rows(c, request)
    v.capturer_stats(capturer=c)


@topic.vector("a cut to nothing leaves an empty request that may go on")
def _(v):
    c = v.capturer()
    request = v.open(c)
    v.step(c, (request, 1, 0, 4))
    v.land(c)
    v.request_truncate(capturer=c, request=request, rows=0)
    v.land(c)
    v.expect_rows(c, request)
    v.step(c, (request, 2, 0, 3))
    v.land(c)
    v.expect_rows(c, request)


@topic.vector("a cut beyond the end does nothing")
def _(v):
    c = v.capturer()
    request = v.open(c)
    v.step(c, (request, 1, 0, 4))
    v.land(c)
    for rows in (4, 5, 2**40, ALL):
        v.request_truncate(capturer=c, request=request, rows=rows)
    v.land(c)
    v.expect_rows(c, request)


@topic.vector("no more requests are open at a time than there may be, and of many none is opened")
def _(v):
    c = v.capturer(max_requests=3)
    one = v.open(c, 2)[0]
    v.request_open(capturer=c, count=2, expect="ERR_TOO_MANY_REQUESTS")
    v.open(c)
    v.request_fork(capturer=c, request=one, rows=0, expect="ERR_TOO_MANY_REQUESTS")
    v.request_close(capturer=c, request=one)
    v.land(c)
    v.open(c)
    v.capturer_stats(capturer=c)


@topic.vector("no requests may be opened")
def _(v):
    c = v.capturer()
    v.request_open(capturer=c, count=0)
    v.capturer_stats(capturer=c)


@topic.vector("a request without rows has none to read")
def _(v):
    c = v.capturer()
    request = v.open(c)
    v.expect_rows(c, request)
    v.coverage(c, request, expect="OK")
    v.extract(c, request, rows=1, expect="ERR_OUT_OF_RANGE")
    v.extract(c, request, first=1, expect="ERR_OUT_OF_RANGE")


@topic.vector("a handle is stale once its request has ended")
def _(v):
    c = v.capturer()
    closed, finished = v.open(c, 2)
    v.step(c, (closed, 1, 0, 2), (finished, 2, 0, 2))
    v.request_close(capturer=c, request=closed)
    v.request_finish(capturer=c, request=finished, rows=2)
    for request in (closed, finished, 0, 12345):
        stale = {"capturer": c, "request": request, "expect": "ERR_UNKNOWN_REQUEST", "raw": True}
        v.request_truncate(rows=0, **stale)
        v.request_fork(rows=0, **stale)
        v.request_attach(routing="x1", rows=ALL, **stale)
        v.request_accept(step=1, count=0, **stale)
        v.request_coverage(first=0, rows=ALL, capacity=0, **stale)
        v.request_extract(first=0, rows=ALL, mode=0, flags=0, **stale)
        v.request_extract_into(first=0, rows=ALL, options={"dtype": I32}, **stale)
        v.request_finish(rows=0, **stale)
        if request != 0:
            v.request_close(**stale)
    v.request_close(capturer=c, request=0, raw=True)
    v.routing_wait(routing="x1", timeout_ns=-1)
    v.routing_view(routing="x1")


@topic.vector("rows in flight of a request that was closed are late")
def _(v):
    c = v.capturer()
    closed, other = v.open(c, 2)
    v.step(c, (closed, 1, 0, 2), (other, 2, 0, 3))
    v.request_close(capturer=c, request=closed)
    v.land(c)
    v.expect_rows(c, other)
    v.capturer_stats(capturer=c)


@topic.vector("many requests are closed in one call, and the status of each is told")
def _(v):
    c = v.capturer()
    a, b, d = v.open(c, 3)
    v.request_close_batch(capturer=c, requests=[a, 0])
    v.request_close_batch(capturer=c, requests=[b, a, 0, d, 77], expect="PARTIAL", raw=True)
    v.request_close_batch(capturer=c, requests=[])
    v.land(c)
    v.capturer_stats(capturer=c)


def finish(v, rows, expect):
    c = v.capturer()
    request = v.open(c)
    v.step(c, (request, 1, 0, 4), tag=1)
    v.step(c, (request, 1, 4, 2), tag=2)
    routing = v.request_finish(capturer=c, request=request, rows=rows)["routing"]
    v.routing_poll(routing=routing, expect="PENDING")
    v.routing_view(routing=routing, expect="ERR_NOT_READY")
    v.land(c)
    v.routing_poll(routing=routing, expect=expect)
    v.routing_wait(routing=routing, timeout_ns=0, expect=expect)
    v.routing_view(routing=routing)
    v.capturer_stats(capturer=c)


for name, rows, expect in (
    ("its rows", 6, "OK"),
    ("the length as it is", ALL, "OK"),
    ("fewer rows: later ones are cut", 5, "OK"),
    ("fewer rows than the first step's", 2, "OK"),
    ("more rows: those beyond are missing", 8, "INCOMPLETE"),
    ("no rows", 0, "OK"),
):
    topic.vector(f"a request that ends gives {name}", rows, expect)(finish)


@topic.vector("all functions but wait, poll, retain and free refuse a routing that is pending")
def _(v):
    c = v.capturer()
    request, other = v.open(c, 2)
    v.step(c, (request, 1, 0, 4))
    x = v.request_finish(capturer=c, request=request, rows=4)["routing"]
    v.routing_poll(routing=x, expect="PENDING")
    not_ready = {"routing": x, "expect": "ERR_NOT_READY"}
    v.routing_view(**not_ready)
    v.routing_coverage(capacity=0, **not_ready)
    v.routing_split(prompt_tokens=1, generated_tokens=ALL, **not_ready)
    v.routing_slice(first=0, rows=1, **not_ready)
    v.routing_merge(routings=[x], expect="ERR_NOT_READY")
    v.routing_copy_to(options={"dtype": I32}, **not_ready)
    v.routing_serialize(**not_ready)
    v.routing_retain(routing=x)
    v.routing_free(routing=x)
    v.routing_wait(routing="x2", timeout_ns=-1)
    v.routing_view(routing="x2")


@topic.vector("waiting for a routing lands its steps")
def _(v):
    c = v.capturer()
    request = v.open(c)
    v.step(c, (request, 1, 0, 4))
    x = v.request_finish(capturer=c, request=request, rows=ALL)["routing"]
    v.routing_wait(routing=x, timeout_ns=-1)
    v.routing_view(routing=x)
    v.step_poll(capturer=c, step=1)


@topic.vector("a request without rows ends without rows")
def _(v):
    c = v.capturer()
    request = v.open(c)
    x = v.request_finish(capturer=c, request=request, rows=ALL)["routing"]
    v.routing_wait(routing=x, timeout_ns=0)
    v.routing_view(routing=x)
    v.routing_coverage(routing=x, capacity=1)


@topic.vector("a request without rows may end with missing rows")
def _(v):
    c = v.capturer()
    request = v.open(c)
    x = v.request_finish(capturer=c, request=request, rows=3)["routing"]
    v.routing_wait(routing=x, timeout_ns=0, expect="NOT_CAPTURED")
    v.routing_coverage(routing=x, capacity=2, expect="INCOMPLETE")


@topic.vector("rows that were taken before are missing in the routing of the end")
def _(v):
    c = v.capturer()
    request = v.open(c)
    v.step(c, (request, 1, 0, 6))
    v.land(c)
    taken = v.extract(c, request, first=1, rows=2, mode=TAKE)
    x = v.request_finish(capturer=c, request=request, rows=6)["routing"]
    v.routing_wait(routing=x, timeout_ns=0, expect="INCOMPLETE")
    v.routing_view(routing=x)
    v.routing_view(routing=taken)


@topic.vector("more rows than positions there may be are refused")
def _(v):
    c = v.capturer()
    request = v.open(c)
    v.request_finish(capturer=c, request=request, rows=2**40 + 1, expect="ERR_OUT_OF_RANGE")
    v.request_finish(capturer=c, request=request, rows=0)


@topic.vector("many requests end in one call")
def _(v):
    c = v.capturer()
    a, b, d = v.open(c, 3)
    v.step(c, (a, 1, 0, 2), (b, 2, 0, 3), (d, 3, 0, 1))
    v.request_finish_batch(capturer=c, items=[{"request": a, "rows": 2}])
    items = [
        {"request": b, "rows": ALL},
        {"request": a, "rows": 2},
        {"request": d, "rows": 2},
        {"request": 0, "rows": 0},
    ]
    v.request_finish_batch(capturer=c, items=items, expect="PARTIAL", raw=True)
    v.land(c)
    for x in ("x1", "x2", "x3"):
        v.routing_view(routing=x)


@topic.vector("a routing of the end outlives its capturer, and destroying that makes it ready")
def _(v):
    c = v.capturer()
    request = v.open(c)
    v.step(c, (request, 1, 0, 4))
    x = v.request_finish(capturer=c, request=request, rows=4)["routing"]
    v.capturer_destroy(capturer=c)
    v.routing_poll(routing=x)
    v.routing_view(routing=x)
    v.routing_copy_to(routing=x, options={"dtype": I32}, dst_bytes=96)

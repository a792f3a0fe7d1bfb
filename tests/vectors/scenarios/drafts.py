"""Speculative rows, settled by a count or along the path of a tree."""

from model.capturer import MAY_LOSE, SPECULATIVE
from model.routing import ALL, I32
from script import Topic

topic = Topic("drafts")


def drafted(v, first=3, rows=4):
    """A request with three settled rows and four drafts in flight."""
    c = v.capturer()
    request = v.open(c)
    v.step(c, (request, 1, 0, 3))
    v.land(c)
    step = v.step(c, (request, 2, first, rows, SPECULATIVE), tag=9)
    return c, request, step


def accept(v, landed, kept, expected_rows):
    c, request, step = drafted(v)
    if landed:
        v.land(c)
        v.capturer_stats(capturer=c)
    rows = {"rows": kept} if isinstance(kept, list) else {"count": kept}
    v.request_accept(capturer=c, request=request, step=step, **rows)
    v.request_accept(capturer=c, request=request, step=step, count=0, expect="ERR_UNKNOWN_STEP")
    v.land(c)
    v.expect_rows(
        c,
        request,
        rows=expected_rows,
        expect=(
            "OK" if not isinstance(kept, list) or kept == list(range(len(kept))) else "INCOMPLETE"
        ),
    )
    v.extract(c, request, rows=expected_rows + 1, expect="ERR_OUT_OF_RANGE")
    v.capturer_stats(capturer=c)


for landed in (False, True):
    when = "after" if landed else "before"
    for count in (0, 1, 3, 4):
        topic.vector(
            f"of four drafts the first {count} are kept, settled {when} they landed",
            landed,
            count,
            3 + count,
        )(accept)
    for path in ([1], [0, 2], [0, 1, 3]):
        name = " and ".join(map(str, path))
        topic.vector(
            f"of a tree of drafts the path {name} is kept, settled {when} it landed",
            landed,
            path,
            3 + path[-1] + 1,
        )(accept)


@topic.vector("drafts cannot be read before they are settled")
def _(v):
    c, request, step = drafted(v)
    v.expect_rows(c, request, rows=3)
    v.extract(c, request, rows=4, expect="ERR_OUT_OF_RANGE")
    v.land(c)
    v.expect_rows(c, request)
    v.extract(c, request, rows=4, expect="ERR_OUT_OF_RANGE")
    v.coverage(c, request, expect="OK")


@topic.vector("more drafts than there are cannot be kept, and the attempt settles nothing")
def _(v):
    c, request, step = drafted(v)
    v.request_accept(capturer=c, request=request, step=step, count=5, expect="ERR_OUT_OF_RANGE")
    v.request_accept(capturer=c, request=request, step=step, rows=[0, 4], expect="ERR_OUT_OF_RANGE")
    v.request_accept(
        capturer=c, request=request, step=step, rows=[1, 1], expect="ERR_ARGUMENT", raw=True
    )
    v.request_accept(
        capturer=c, request=request, step=step, rows=[2, 1], expect="ERR_ARGUMENT", raw=True
    )
    v.request_accept(capturer=c, request=request, step=step, count=2)
    v.land(c)
    v.expect_rows(c, request)


@topic.vector("only steps with drafts of a request can be settled")
def _(v):
    c, request, step = drafted(v)
    other = v.open(c)
    for unknown in (0, 1, 3, 99):
        v.request_accept(
            capturer=c, request=request, step=unknown, count=0, expect="ERR_UNKNOWN_STEP"
        )
    v.request_accept(capturer=c, request=other, step=step, count=0, expect="ERR_UNKNOWN_STEP")


@topic.vector("drafts in several spans are numbered in the order of the spans")
def _(v):
    c = v.capturer()
    request = v.open(c)
    step = v.step(
        c, (request, 1, 0, 1), (request, 2, 1, 2, SPECULATIVE), (request, 3, 1, 3, SPECULATIVE)
    )
    v.request_accept(capturer=c, request=request, step=step, rows=[2, 3])
    v.land(c)
    v.expect_rows(c, request)
    v.capturer_stats(capturer=c)


@topic.vector("drafts of several steps are settled one by one, in any order")
def _(v):
    c = v.capturer()
    request = v.open(c)
    v.step(c, (request, 1, 0, 1))
    first = v.step(c, (request, 2, 1, 2, SPECULATIVE))
    second = v.step(c, (request, 3, 2, 2, SPECULATIVE))
    v.request_accept(capturer=c, request=request, step=second, count=2)
    v.request_accept(capturer=c, request=request, step=first, count=2)
    v.land(c)
    v.expect_rows(c, request)
    v.capturer_stats(capturer=c)


@topic.vector("a row may be drafted again after its draft was rejected")
def _(v):
    c, request, step = drafted(v)
    v.request_accept(capturer=c, request=request, step=step, count=1)
    again = v.step(c, (request, 5, 4, 3, SPECULATIVE), tag=10)
    v.request_accept(capturer=c, request=request, step=again, count=2)
    v.land(c)
    v.expect_rows(c, request)


@topic.vector("drafts of many requests are settled in one call")
def _(v):
    c = v.capturer()
    a, b, d = v.open(c, 3)
    step = v.step(
        c, (a, 1, 0, 2, SPECULATIVE), (b, 2, 0, 3, SPECULATIVE), (d, 3, 0, 2, SPECULATIVE)
    )
    items = [{"request": a, "step": step, "count": 1}, {"request": b, "step": step, "rows": [0, 1]}]
    v.request_accept_batch(capturer=c, items=items)
    items = [
        {"request": a, "step": step, "count": 1},
        {"request": d, "step": step, "count": 3},
        {"request": d, "step": step, "count": 2},
        {"request": 0, "step": step, "count": 0},
    ]
    v.request_accept_batch(capturer=c, items=items, expect="PARTIAL", raw=True)
    v.land(c)
    for request in (a, b, d):
        v.expect_rows(c, request)


@topic.vector("drafts that were never settled are dropped at the end")
def _(v):
    c, request, step = drafted(v)
    v.land(c)
    x = v.request_finish(capturer=c, request=request, rows=ALL)["routing"]
    v.land(c)
    v.routing_view(routing=x)
    v.capturer_stats(capturer=c)


@topic.vector("drafts of a lost step may be settled, and count for the length")
def _(v):
    c = v.capturer(slots=1, flags=MAY_LOSE)
    request = v.open(c)
    v.step(c, (request, 1, 0, 2))
    step = v.step(c, (request, 2, 2, 3, SPECULATIVE), expect="LOST")
    v.request_accept(capturer=c, request=request, step=step, count=2)
    v.land(c)
    v.expect_rows(c, request, rows=4, expect="INCOMPLETE")
    v.coverage(c, request)
    v.extract(c, request, rows=5, expect="ERR_OUT_OF_RANGE")


@topic.vector("drafts with positions from the device are kept where they landed")
def _(v):
    c = v.capturer()
    request = v.open(c)
    v.forward(c, v.rows(c, 1, 0, 3))
    span = {
        "request": request,
        "position": 0,
        "position_end": 8,
        "sink_row": 0,
        "rows": 3,
        "flags": 3,
    }
    step = v.step_issue(
        capturer=c, spans=[span], options={"positions": [1, 2, 3], "positions_dtype": I32}
    )["step"]
    v.request_accept(capturer=c, request=request, step=step, count=2)
    v.land(c)
    v.expect_rows(c, request, rows=3, expect="INCOMPLETE")
    v.extract(c, request, rows=4, expect="ERR_OUT_OF_RANGE")


@topic.vector("a cut drops drafts beyond it, and keeps those before it")
def _(v):
    c, request, step = drafted(v)
    v.land(c)
    v.request_truncate(capturer=c, request=request, rows=5)
    v.request_accept(capturer=c, request=request, step=step, count=4)
    v.land(c)
    v.expect_rows(c, request, rows=5)
    v.extract(c, request, rows=6, expect="ERR_OUT_OF_RANGE")


def counted(v, landed, cut, kept):
    """Four drafts at positions 3 to 6, landed or not before they are cut, settled or not."""
    c, request, step = drafted(v)
    if landed:
        v.land(c)
    cuts = {
        "truncated": lambda: v.request_truncate(capturer=c, request=request, rows=4),
        "finished": lambda: v.routing_wait(
            routing=v.request_finish(capturer=c, request=request, rows=4)["routing"],
            timeout_ns=-1,
            expect=None,
        ),
        "closed": lambda: v.request_close(capturer=c, request=request),
    }
    if kept is not None:
        v.request_accept(capturer=c, request=request, step=step, count=kept)
    cuts[cut]()
    v.land(c)
    if cut == "truncated":
        v.request_close(capturer=c, request=request)
        v.land(c)
    v.capturer_stats(capturer=c)


for cut in ("truncated", "finished", "closed"):
    for kept in (None, 0, 2, 4):
        for landed in (False, True):
            when = "after" if landed else "before"
            settled = "nobody settled them" if kept is None else f"{kept} of them were kept"
            topic.vector(
                f"each of four drafts is counted once where {settled} and the request was {cut}"
                f" {when} they landed",
                landed,
                cut,
                kept,
            )(counted)


@topic.vector("drafts that were cut in flight are counted when they are settled")
def _(v):
    c, request, step = drafted(v)
    v.request_truncate(capturer=c, request=request, rows=4)
    v.land(c)
    v.request_accept(capturer=c, request=request, step=step, rows=[0, 2])
    v.land(c)
    v.capturer_stats(capturer=c)
    v.expect_rows(c, request)

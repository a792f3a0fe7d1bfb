"""How often each expert was chosen."""

from model.calls import DISABLED, MIRROR
from model.capturer import (
    DEVICE_POSITIONS,
    LOAD,
    LOAD_TAGS,
    MAX_LOAD_TAGS,
    SPAN_DECODE,
    SPAN_PREFILL,
    SPAN_UNCOUNTED,
    SPECULATIVE,
)
from model.routing import ALL, I32
from script import SHAPE, Topic

topic = Topic("load")
REPLACE = {"policy": 1}


def begun(v, flags=LOAD, **options):
    c = v.capturer(flags=flags)
    return c, v.open(c, **options)


def counted(v, c, **tag):
    v.land(c)
    v.capturer_load(capturer=c, **tag)


@topic.vector("a span of many rows is prefill, one of one row is decode")
def _(v):
    c, request = begun(v)
    v.capturer_load(capturer=c)
    v.step(c, (request, 1, 0, 5))
    counted(v, c)
    v.step(c, (request, 1, 5, 1))
    counted(v, c)


@topic.vector("a span says of which phase it is, drafts too")
def _(v):
    c, request = begun(v)
    v.step(c, (request, 1, 0, 2, SPAN_DECODE), (request, 1, 2, 1, SPAN_PREFILL))
    drafts = v.step(c, (request, 1, 3, 2, SPECULATIVE | SPAN_PREFILL))
    v.request_accept(capturer=c, request=request, step=drafts, count=2)
    counted(v, c)


@topic.vector("rows of a span that is said to be uncounted are no load, drafts too")
def _(v):
    c, request = begun(v)
    other = v.open(c)
    v.step(c, (request, 1, 0, 3), (other, 1, 0, 3, SPAN_UNCOUNTED))
    counted(v, c)
    drafts = v.step(c, (request, 1, 3, 2, SPECULATIVE | SPAN_UNCOUNTED))
    v.request_accept(capturer=c, request=request, step=drafts, count=2)
    counted(v, c)
    v.step(c, (other, 1, 3, 2), (request, 1, 5, 1, SPAN_UNCOUNTED))
    counted(v, c)


@topic.vector("drafts count once they are accepted, and rejected ones do not")
def _(v):
    c, request = begun(v)
    drafts = v.step(c, (request, 1, 0, 4, SPECULATIVE))
    counted(v, c)
    v.request_accept(capturer=c, request=request, step=drafts, rows=[0, 2])
    counted(v, c)


@topic.vector("missing cells do not count, and do once they are filled")
def _(v):
    c, request = begun(v)
    v.step(
        c,
        (request, 1, 0, 3),
        faults=[(0, 1, [3, 3]), (1, 0, [99, 1]), (1, 1, [2, 2]), (1, 2, [-1, 4])],
    )
    counted(v, c)
    v.step(c, (request, 2, 0, 3))
    counted(v, c)


@topic.vector("what is replaced is not counted again")
def _(v):
    c, request = begun(v, **REPLACE)
    v.step(c, (request, 1, 0, 3), faults=[(0, 1, [3, 3])])
    v.step(c, (request, 2, 0, 3))
    counted(v, c)


@topic.vector("what is computed again after a truncate counts again")
def _(v):
    c, request = begun(v)
    v.step(c, (request, 1, 0, 4))
    v.land(c)
    v.request_truncate(capturer=c, request=request, rows=2)
    v.land(c)
    v.step(c, (request, 1, 1, 3))
    counted(v, c)


@topic.vector("rows that come late, or nowhere, do not count")
def _(v):
    c, request = begun(v)
    other = v.open(c)
    v.step(c, (request, 1, 0, 3), (other, 2, 0, 2))
    v.request_close(capturer=c, request=request)
    counted(v, c)
    v.forward(c, v.rows(c, 3, 0, 3))
    span = {
        "request": other,
        "position": 2,
        "position_end": 4,
        "rows": 3,
        "flags": DEVICE_POSITIONS,
    }
    v.step_issue(capturer=c, spans=[span], options={"positions": [2, 9, 3], "positions_dtype": I32})
    counted(v, c)


@topic.vector("rows of a prefix count where they were computed")
def _(v):
    c, request = begun(v)
    v.step(c, (request, 1, 0, 4))
    v.land(c)
    child = v.request_fork(capturer=c, request=request, rows=ALL)["child"]
    x = v.extract(c, request)
    third = v.open(c)
    v.request_attach(capturer=c, request=third, routing=x, rows=ALL)
    v.land(c)
    v.step(c, (child, 5, 4, 1), (third, 6, 3, 2))
    counted(v, c)


@topic.vector("a sink row that two spans name counts for each of them")
def _(v):
    c, request = begun(v)
    other = v.open(c)
    v.forward(c, v.rows(c, 3, 0, 2))
    v.step_issue(
        capturer=c,
        spans=[{"request": request, "rows": 2}, {"request": other, "sink_row": 1, "rows": 1}],
    )
    counted(v, c)


@topic.vector("the newest tags are kept apart")
def _(v):
    c, request = begun(v, LOAD | LOAD_TAGS)
    v.capturer_load_tags(capturer=c)
    v.capturer_load(capturer=c, tag=0, expect="ERR_OUT_OF_RANGE")
    for position, tag in enumerate([7, 5, 7] + list(range(20, 20 + MAX_LOAD_TAGS - 2))):
        v.step(c, (request, 1, position, 1), tag=tag)
        v.land(c)
    v.capturer_load_tags(capturer=c)
    v.capturer_load(capturer=c, tag=7)
    v.capturer_load(capturer=c, tag=5)
    v.step(c, (request, 1, 20, 3), tag=2**64 - 1)
    v.land(c)
    v.capturer_load_tags(capturer=c)
    v.capturer_load(capturer=c, tag=2**64 - 1)
    v.capturer_load(capturer=c, tag=7, expect="ERR_OUT_OF_RANGE")
    counted(v, c)
    v.step(c, (request, 1, 30, 1), tag=7)
    v.land(c)
    v.capturer_load(capturer=c, tag=7)
    counted(v, c)


@topic.vector("layers with fewer experts have zeros behind them")
def _(v):
    c = v.capturer(flags=LOAD, layers=2, layer_experts=[4, 9])
    request = v.open(c)
    v.step(c, (request, 1, 0, 6))
    counted(v, c)


@topic.vector("ids of two bytes are counted")
def _(v):
    c = v.capturer(flags=LOAD, layers=1, experts=260)
    request = v.open(c)
    v.step(c, (request, 1, 0, 3), faults=[(0, 0, [256, 1]), (1, 0, [259, 256]), (2, 0, [1, 0])])
    counted(v, c)


@topic.vector("load that is not counted cannot be read")
def _(v):
    plain, apart = v.capturer(), v.capturer(flags=LOAD)
    v.capturer_load(capturer=plain, expect="ERR_ARGUMENT")
    v.capturer_load_tags(capturer=plain, expect="ERR_ARGUMENT")
    v.capturer_load(capturer=apart, tag=0, expect="ERR_ARGUMENT")
    v.capturer_load_tags(capturer=apart, expect="ERR_ARGUMENT")


@topic.vector("who captures nothing counts nothing")
def _(v):
    for role in (DISABLED, MIRROR):
        c = v.capturer(role=role, flags=LOAD | LOAD_TAGS)
        v.capturer_load(capturer=c)
        v.capturer_load(capturer=c, tag=4)
        v.capturer_load_tags(capturer=c)

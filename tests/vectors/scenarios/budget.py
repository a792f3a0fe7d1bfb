"""Memory has an end, and nobody else suffers."""

from model.routing import ALL
from script import Topic

topic = Topic("budget")


@topic.vector("a request whose page exceeds the budget is refused, and nobody else suffers")
def _(v):
    c = v.capturer(budget_pages=2)
    a, b, d = v.open(c, 3)
    v.step(c, (a, 1, 0, 2), (b, 2, 0, 2), (d, 3, 0, 3), expect="PARTIAL")
    v.land(c)
    v.step(c, (a, 1, 2, 2), (d, 3, 3, 1), expect="PARTIAL")
    v.land(c)
    v.expect_rows(c, a)
    v.expect_rows(c, b)
    v.expect_rows(c, d, rows=4, expect="NOT_CAPTURED")
    v.extract(c, d, rows=5, expect="ERR_OUT_OF_RANGE")
    v.capturer_stats(capturer=c)


@topic.vector("memory that was given back can be used again")
def _(v):
    c = v.capturer(budget_pages=1)
    a = v.open(c)
    v.step(c, (a, 1, 0, 2))
    v.land(c)
    b = v.open(c)
    v.step(c, (b, 2, 0, 2), expect="PARTIAL")
    v.land(c)
    v.request_close(capturer=c, request=a)
    v.land(c)
    v.step(c, (b, 2, 0, 3))
    v.land(c)
    v.expect_rows(c, b)


@topic.vector("a routing keeps memory of the budget until it is freed")
def _(v):
    c = v.capturer(budget_pages=1)
    a = v.open(c)
    v.step(c, (a, 1, 0, 4))
    v.land(c)
    x = v.extract(c, a)
    v.request_close(capturer=c, request=a)
    v.land(c)
    b = v.open(c)
    v.step(c, (b, 2, 0, 2), expect="PARTIAL")
    v.land(c)
    v.routing_free(routing=x)
    v.land(c)
    v.step(c, (b, 2, 0, 2))
    v.land(c)
    v.expect_rows(c, b)


@topic.vector("a copy takes memory of the budget, and is refused without it")
def _(v):
    c = v.capturer(budget_pages=1)
    a = v.open(c)
    v.step(c, (a, 1, 0, 4))
    v.land(c)
    v.extract(c, a, mode=2, expect="ERR_NO_MEMORY")
    v.expect_rows(c, a)


@topic.vector("forks share their parent's memory")
def _(v):
    c = v.capturer(budget_pages=1)
    a = v.open(c)
    v.step(c, (a, 1, 0, 4))
    v.land(c)
    for rows in (4, 2):
        child = v.request_fork(capturer=c, request=a, rows=rows)["child"]
        v.land(c)
        v.expect_rows(c, child)


def freed(v, free):
    """A budget of one page: what one request gives up the next can have at once."""
    c = v.capturer(budget_pages=1)
    a = v.open(c)
    v.step(c, (a, 1, 0, 4))
    v.land(c)
    b = free(v, c, a) or v.open(c)
    v.step(c, (b, 2, 0, 3), tag=1)
    v.land(c)
    v.expect_rows(c, b)
    v.capturer_stats(capturer=c)


def by_close(v, c, a):
    v.request_close(capturer=c, request=a)


def by_finish(v, c, a):
    x = v.request_finish(capturer=c, request=a, rows=ALL)["routing"]
    v.routing_free(routing=x)


for name, free in (("close", by_close), ("finish, whose routing is freed,", by_finish)):
    topic.vector(
        f"memory that {name} gave back can be used by the next issue, without progress between",
        free,
    )(freed)

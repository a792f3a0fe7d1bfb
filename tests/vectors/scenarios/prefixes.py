"""Rows of other requests: forks, and prefixes that were not computed."""

from model.capturer import REPLACE, SPECULATIVE, TAKE
from model.routing import ALL
from script import Topic

topic = Topic("prefixes")


@topic.vector("a fork begins with the rows of its parent, and both go on")
def _(v):
    c = v.capturer()
    parent = v.open(c)
    v.step(c, (parent, 1, 0, 4), tag=1)
    v.land(c)
    child = v.request_fork(capturer=c, request=parent, rows=3)["child"]
    v.step(c, (parent, 1, 4, 1), (child, 2, 3, 2), tag=2)
    v.land(c)
    v.expect_rows(c, parent)
    v.expect_rows(c, child)


@topic.vector("a fork has the rows that are in flight, once they land, but no drafts")
def _(v):
    c = v.capturer()
    parent = v.open(c)
    v.step(c, (parent, 1, 0, 4), (parent, 2, 4, 2, SPECULATIVE))
    child = v.request_fork(capturer=c, request=parent, rows=ALL)["child"]
    v.extract(c, child, expect="ERR_NOT_READY")
    v.extract(c, parent, rows=2, mode=TAKE, expect="ERR_NOT_READY")
    v.land(c)
    v.expect_rows(c, child)
    v.extract(c, child, rows=5, expect="ERR_OUT_OF_RANGE")
    v.extract(c, parent, rows=2, mode=TAKE)
    v.expect_rows(c, child)


@topic.vector("a fork of the parent's beginning, and of nothing")
def _(v):
    c = v.capturer()
    parent = v.open(c)
    v.step(c, (parent, 1, 0, 4))
    v.land(c)
    for rows in (0, 1, 4):
        child = v.request_fork(capturer=c, request=parent, rows=rows)["child"]
        v.land(c)
        v.expect_rows(c, child)
    v.request_fork(capturer=c, request=parent, rows=5, expect="ERR_OUT_OF_RANGE")


@topic.vector("a fork outlives its parent, whose hole is filled in neither")
def _(v):
    c = v.capturer()
    parent = v.open(c)
    v.step(c, (parent, 1, 0, 4), faults=[(2, 1, [6, 6])])
    v.land(c)
    child = v.request_fork(capturer=c, request=parent, rows=ALL)["child"]
    v.land(c)
    v.step(c, (parent, 1, 2, 1))
    v.land(c)
    v.expect_rows(c, parent)
    v.request_close(capturer=c, request=parent)
    v.land(c)
    v.expect_rows(c, child, expect="INCOMPLETE")


@topic.vector("a fork of a fork")
def _(v):
    c = v.capturer()
    request = v.open(c)
    for generation in range(3):
        v.step(c, (request, generation, 2 * generation, 2), tag=generation)
        v.land(c)
        request = v.request_fork(capturer=c, request=request, rows=2 * generation + 2)["child"]
    v.land(c)
    v.expect_rows(c, request)


@topic.vector("a fork has its parent's policy")
def _(v):
    c = v.capturer()
    parent = v.open(c, policy=REPLACE)
    v.step(c, (parent, 1, 0, 2), tag=1)
    v.land(c)
    child = v.request_fork(capturer=c, request=parent, rows=ALL)["child"]
    v.land(c)
    v.step(c, (child, 2, 1, 1), tag=2)
    v.land(c)
    v.expect_rows(c, child)
    v.expect_rows(c, parent)


def attach(v, first, count, rows, expect):
    """A request whose first rows come from a prefix cache."""
    c = v.capturer()
    prefix = v.captured(c, seed=1, first=first, count=count, tag=1)
    request = v.open(c)
    v.request_attach(capturer=c, request=request, routing=prefix, rows=rows)
    v.step(c, (request, 2, 5, 2), tag=2)
    v.land(c)
    v.expect_rows(c, request, expect=expect)
    v.coverage(c, request, expect=expect)


for name, first, count, rows, expect in (
    ("all of it", 0, 5, ALL, "OK"),
    ("some of it", 0, 8, 5, "OK"),
    ("less than was not computed", 0, 4, 4, "INCOMPLETE"),
    ("one that overlaps what is computed", 0, 7, ALL, "OK"),
    ("one that does not begin at 0", 2, 3, ALL, "INCOMPLETE"),
    ("rows before its beginning: nothing", 2, 3, 1, "INCOMPLETE"),
):
    topic.vector(
        f"rows from a prefix cache are supplied by a routing, {name}", first, count, rows, expect
    )(attach)


@topic.vector(
    "cells that a request has are kept when a prefix is attached, missing ones are filled"
)
def _(v):
    c = v.capturer()
    prefix = v.captured(c, seed=1, count=4, tag=1)
    for policy in (0, REPLACE):
        request = v.open(c, policy=policy)
        v.step(c, (request, 2, 1, 2), tag=2, faults=[(0, 1, [3, 3])])
        v.land(c)
        v.request_attach(capturer=c, request=request, routing=prefix, rows=ALL)
        v.land(c)
        v.expect_rows(c, request)


@topic.vector("a pending routing of the same capturer can be attached")
def _(v):
    c = v.capturer()
    first, second = v.open(c, 2)
    v.step(c, (first, 1, 0, 4))
    prefix = v.request_finish(capturer=c, request=first, rows=4)["routing"]
    v.request_attach(capturer=c, request=second, routing=prefix, rows=3)
    v.routing_free(routing=prefix)
    v.extract(c, second, expect="ERR_NOT_READY")
    v.land(c)
    v.expect_rows(c, second)


@topic.vector("a routing of another capturer can be attached once it is ready")
def _(v):
    a, b = v.capturer(), v.capturer()
    first, second = v.open(a), v.open(b)
    v.step(a, (first, 1, 0, 4))
    prefix = v.request_finish(capturer=a, request=first, rows=4)["routing"]
    v.request_attach(capturer=b, request=second, routing=prefix, rows=ALL, expect="ERR_NOT_READY")
    v.land(a)
    v.request_attach(capturer=b, request=second, routing=prefix, rows=ALL)
    v.land(b)
    v.expect_rows(b, second)


@topic.vector("no more rows are attached than a routing has")
def _(v):
    c = v.capturer()
    prefix = v.captured(c, count=4)
    request = v.open(c)
    v.request_attach(capturer=c, request=request, routing=prefix, rows=5, expect="ERR_OUT_OF_RANGE")


def attach_other(v, config, expect):
    a, b = v.capturer(**config), v.capturer()
    prefix = v.captured(a)
    request = v.open(b)
    v.request_attach(capturer=b, request=request, routing=prefix, rows=ALL, expect=expect)
    v.land(b)
    v.expect_rows(b, request)


for name, config, expect in (
    ("fewer layers", {"layers": 2}, "ERR_SHAPE_MISMATCH"),
    ("other layers", {"layer_map": [0, 1, 3]}, "ERR_SHAPE_MISMATCH"),
    ("another k", {"k": 3}, "ERR_SHAPE_MISMATCH"),
    ("other experts", {"experts": 17}, "ERR_SHAPE_MISMATCH"),
    ("another id space", {"id_space": 1}, "ERR_SHAPE_MISMATCH"),
    ("recomputed layers", {"layer_provenance": [0, 1, 0]}, "ERR_SHAPE_MISMATCH"),
    ("the same shape", {"rows": 16}, "OK"),
):
    topic.vector(f"a routing of another model is not attached: {name}", config, expect)(
        attach_other
    )


@topic.vector("a captured routing is attached to a request with recomputed layers")
def _(v):
    a, b = v.capturer(), v.capturer(layer_provenance=[1, 1, 0])
    prefix = v.captured(a)
    request = v.open(b)
    v.request_attach(capturer=b, request=request, routing=prefix, rows=ALL)
    v.land(b)
    v.expect_rows(b, request)

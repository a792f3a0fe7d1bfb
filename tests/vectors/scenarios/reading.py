"""Reading a request at any time of its life, and what is said of what is missing."""

from model.capturer import COPY, SHARE, TAKE
from model.routing import ALL, I32, LANDED
from script import Topic

topic = Topic("reading")


@topic.vector("rows are shared, taken and copied")
def _(v):
    c = v.capturer()
    request = v.open(c)
    v.step(c, (request, 1, 0, 8), tag=4)
    v.land(c)
    shared = v.extract(c, request, first=1, rows=6, mode=SHARE)
    copied = v.extract(c, request, first=2, rows=3, mode=COPY)
    taken = v.extract(c, request, first=3, rows=3, mode=TAKE)
    v.coverage(c, request)
    v.extract(c, request, first=3, rows=2, expect="NOT_CAPTURED")
    for x in (shared, copied, taken, "x4"):
        v.routing_view(routing=x)


@topic.vector("all rows are taken piece by piece while a request goes on")
def _(v):
    c = v.capturer()
    request = v.open(c)
    for first in (0, 3, 6):
        v.step(c, (request, 1, first, 3))
        v.land(c)
        x = v.extract(c, request, first=first, rows=LANDED, mode=TAKE)
        v.routing_view(routing=x)
    v.coverage(c, request)


@topic.vector("no rows may be read, in every mode")
def _(v):
    c = v.capturer()
    request = v.open(c)
    v.step(c, (request, 1, 0, 4))
    v.land(c)
    for first, mode in ((0, SHARE), (2, TAKE), (4, COPY)):
        x = v.extract(c, request, first=first, rows=0, mode=mode)
        v.routing_view(routing=x)


@topic.vector("what has landed of a running request is read up to the first row in flight")
def _(v):
    c = v.capturer()
    request = v.open(c)
    v.step(c, (request, 1, 0, 4))
    v.land(c)
    v.step(c, (request, 1, 4, 2))
    v.expect_rows(c, request, rows=LANDED)
    v.expect_rows(c, request, first=2, rows=LANDED)
    v.expect_rows(c, request, first=4, rows=LANDED)
    v.expect_rows(c, request, first=5, rows=LANDED)
    v.request_coverage(capturer=c, request=request, first=0, rows=LANDED, capacity=0)
    v.extract(c, request, rows=5, expect="ERR_NOT_READY")
    v.request_coverage(
        capturer=c, request=request, first=0, rows=ALL, capacity=0, expect="ERR_NOT_READY"
    )
    v.land(c)
    v.expect_rows(c, request, rows=LANDED)


@topic.vector("rows outside a request are refused")
def _(v):
    c = v.capturer()
    request = v.open(c)
    v.step(c, (request, 1, 0, 4))
    v.land(c)
    for first, rows in ((0, 5), (4, 1), (5, 0), (5, ALL), (2**40, ALL), (3, 2**63), (2**63, 2**63)):
        v.extract(c, request, first=first, rows=rows, expect="ERR_OUT_OF_RANGE")
        v.request_coverage(
            capturer=c,
            request=request,
            first=first,
            rows=rows,
            capacity=0,
            expect="ERR_OUT_OF_RANGE",
        )


@topic.vector("strict reading refuses missing cells, and takes nothing")
def _(v):
    c = v.capturer()
    request = v.open(c)
    v.step(c, (request, 1, 0, 4), faults=[(2, 1, [5, 5])])
    v.land(c)
    for mode in (SHARE, TAKE, COPY):
        v.extract(c, request, mode=mode, flags=1, expect="ERR_INCOMPLETE")
    v.extract(c, request, rows=2, flags=1)
    v.extract(c, request, expect="INCOMPLETE")
    v.request_extract_into(
        capturer=c,
        request=request,
        first=0,
        rows=ALL,
        options={"dtype": I32, "flags": 1},
        dst_bytes=96,
        expect="ERR_INCOMPLETE",
    )


@topic.vector("strict reading refuses recomputed cells unless they are allowed")
def _(v):
    c = v.capturer(layer_provenance=[0, 1, 0])
    request = v.open(c)
    v.step(c, (request, 1, 0, 4))
    v.land(c)
    v.extract(c, request, flags=1, expect="ERR_RECOMPUTED")
    v.extract(c, request, flags=3)
    v.extract(c, request, flags=2)
    v.request_coverage(capturer=c, request=request, first=0, rows=ALL, capacity=0)
    into = {"capturer": c, "request": request, "first": 0, "rows": ALL}
    v.request_extract_into(
        options={"dtype": I32, "flags": 1}, dst_bytes=96, expect="ERR_RECOMPUTED", **into
    )
    v.request_extract_into(options={"dtype": I32, "flags": 3}, dst_bytes=96, **into)
    v.routing_copy_to(
        routing="x1", options={"dtype": I32, "flags": 1}, dst_bytes=96, expect="ERR_RECOMPUTED"
    )


@topic.vector("unknown modes and flags are refused")
def _(v):
    c = v.capturer()
    request = v.open(c)
    v.step(c, (request, 1, 0, 1))
    v.land(c)
    for mode, flags in ((3, 0), (-1, 0), (0, 4)):
        v.request_extract(
            capturer=c,
            request=request,
            first=0,
            rows=ALL,
            mode=mode,
            flags=flags,
            expect="ERR_ARGUMENT",
            raw=True,
        )


@topic.vector("rows of many requests are read in one call")
def _(v):
    c = v.capturer()
    a, b, d = v.open(c, 3)
    v.step(c, (a, 1, 0, 2), (b, 2, 0, 3), (d, 3, 0, 2), faults=[(3, 0, [4, 4])])
    v.land(c)
    items = [
        {"request": request, "first": 0, "rows": ALL, "mode": SHARE, "flags": 0}
        for request in (a, d)
    ]
    v.request_extract_batch(capturer=c, items=items)
    items = [
        {"request": a, "first": 1, "rows": 1, "mode": COPY, "flags": 1},
        {"request": b, "first": 0, "rows": ALL, "mode": SHARE, "flags": 0},
        {"request": b, "first": 0, "rows": ALL, "mode": SHARE, "flags": 1},
        {"request": d, "first": 0, "rows": 3, "mode": TAKE, "flags": 0},
        {"request": 0, "first": 0, "rows": 0, "mode": SHARE, "flags": 0},
        {"request": d, "first": 0, "rows": 2, "mode": TAKE, "flags": 0},
    ]
    v.request_extract_batch(capturer=c, items=items, expect="PARTIAL", raw=True)
    for number in range(1, 6):
        v.routing_view(routing=f"x{number}")


def blocks(v, layers, faults, capacity):
    c = v.capturer(layers=layers)
    request = v.open(c)
    v.step(c, (request, 1, 0, 7), faults=faults)
    v.land(c)
    v.coverage(c, request, capacity=capacity)
    v.coverage(c, request, first=1, rows=4, capacity=capacity)
    x = v.extract(c, request, expect="INCOMPLETE")
    v.routing_coverage(routing=x, capacity=capacity, expect="INCOMPLETE")


TWICE, OUTSIDE = [2, 2], [-1, 3]
for name, layers, faults, capacity in (
    ("one cell", 3, [(3, 1, TWICE)], 4),
    (
        "neighbouring layers of one reason are one block",
        5,
        [(2, layer, TWICE) for layer in (1, 2, 3)],
        4,
    ),
    ("neighbouring layers of two reasons are two blocks", 5, [(2, 1, TWICE), (2, 2, OUTSIDE)], 4),
    ("layers apart are two blocks", 5, [(2, 0, TWICE), (2, 4, TWICE)], 4),
    (
        "equal rows that follow one another are one run",
        3,
        [(row, 1, TWICE) for row in (1, 2, 3)],
        4,
    ),
    (
        "rows with different cells begin a new run",
        3,
        [(1, 1, TWICE), (2, 1, TWICE), (2, 2, TWICE), (3, 1, TWICE)],
        8,
    ),
    ("rows with different reasons begin a new run", 3, [(1, 1, TWICE), (2, 1, OUTSIDE)], 8),
    ("whole layers", 4, [(row, layer, OUTSIDE) for row in range(7) for layer in (0, 3)], 8),
    ("more blocks than there is room for", 3, [(row, row % 3, TWICE) for row in range(7)], 2),
    ("no room at all", 3, [(row, row % 3, TWICE) for row in range(7)], 0),
):
    topic.vector(f"coverage names missing cells: {name}", layers, faults, capacity)(blocks)

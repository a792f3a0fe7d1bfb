"""Why rows and cells are missing, and what becomes of the reasons when rows come together."""

from itertools import permutations

from model import routing as r
from model.capturer import COPY, MAY_LOSE, REPLACE, SHARE, SPECULATIVE, TAKE
from model.routing import ALL, I16, U8
from script import Topic

topic = Topic("reasons")
LOSING = {"slots": 1, "flags": MAY_LOSE}
WIDE = {"layers": 2, "k": 2, "experts": 8}


def look(v, routing):
    """At everything that says why cells are missing."""
    v.routing_view(routing=routing)
    v.routing_coverage(routing=routing, capacity=9, expect=None)
    v.routing_serialize(routing=routing)


def lose(v, c, *spans):
    """Two steps in flight at once, of which the second is lost. The first is of another request."""
    v.step(c, (v.open(c), 9, 0, 1))
    return v.step(c, *spans, expect="LOST")


def silent(v, c, request, position, layers):
    """A row of which only some layers are written."""
    v.step_begin(capturer=c, rows=1)
    v.record(c, v.rows(c, 1, position, 1), layers)
    v.step_snapshot(capturer=c)
    v.step_issue(capturer=c, spans=[{"request": request, "position": position, "rows": 1}])
    v.land(c)


# ---- Requests


@topic.vector("rows of a lost step are LOST, in every way of reading them")
def _(v):
    c = v.capturer(**LOSING)
    request = v.open(c)
    v.step(c, (request, 1, 0, 2))
    v.land(c)
    lose(v, c, (request, 1, 2, 3))
    v.land(c)
    v.step(c, (request, 1, 7, 1))
    v.land(c)
    v.coverage(c, request)
    v.coverage(c, request, first=3, rows=3, capacity=1)
    for mode in (SHARE, COPY):
        look(v, v.extract(c, request, mode=mode, expect="INCOMPLETE"))
    options = {"dtype": I16, "fill": -7}
    v.request_extract_into(
        capturer=c,
        request=request,
        first=1,
        rows=4,
        options=options,
        dst_bytes=48,
        mask_bytes=12,
        expect="INCOMPLETE",
    )
    v.extract(c, request, first=2, rows=3, flags=r.STRICT, expect="ERR_INCOMPLETE")
    x = v.request_finish(capturer=c, request=request, rows=9)["routing"]
    v.routing_wait(routing=x, timeout_ns=-1, expect="INCOMPLETE")
    look(v, x)


@topic.vector("a row that was lost and is there later is told by its own cells")
def _(v):
    c = v.capturer(**LOSING)
    request = v.open(c)
    lose(v, c, (request, 1, 0, 3))
    v.land(c)
    v.coverage(c, request)
    v.step(c, (request, 1, 0, 1))
    v.land(c)
    silent(v, c, request, 1, [0])
    silent(v, c, request, 2, [])
    v.coverage(c, request)


@topic.vector("a row that was not begun is still LOST, for it was lost before")
def _(v):
    c = v.capturer(**LOSING)
    request = v.open(c)
    lose(v, c, (request, 1, 0, 2))
    v.land(c)
    v.forward(c, v.rows(c, 1, 0, 1))
    v.step_issue(capturer=c, spans=[{"request": request, "rows": 3}])
    v.land(c)
    v.coverage(c, request)


@topic.vector("a truncate forgets why rows were missing, and what is lost after it is LOST")
def _(v):
    c = v.capturer(**LOSING)
    request = v.open(c)
    lose(v, c, (request, 1, 0, 5))
    v.request_truncate(capturer=c, request=request, rows=2)
    v.land(c)
    lose(v, c, (request, 1, 3, 1))
    v.land(c)
    v.coverage(c, request)
    v.request_truncate(capturer=c, request=request, rows=0)
    v.land(c)
    v.step(c, (request, 1, 3, 1))
    v.land(c)
    v.coverage(c, request)


@topic.vector("drafts of a lost step are LOST if they are kept, and nothing is known of the others")
def _(v):
    c = v.capturer(**LOSING)
    request = v.open(c)
    first = lose(v, c, (request, 1, 1, 4, SPECULATIVE))
    v.land(c)
    second = lose(v, c, (request, 2, 6, 2, SPECULATIVE), (request, 3, 6, 3, SPECULATIVE))
    v.land(c)
    v.request_accept(capturer=c, request=request, step=first, count=2)
    v.coverage(c, request)
    v.request_accept(capturer=c, request=request, step=second, rows=[0, 3])
    v.land(c)
    v.coverage(c, request)


@topic.vector("drafts of a lost step that were cut are not LOST")
def _(v):
    c = v.capturer(**LOSING)
    request = v.open(c)
    step = lose(v, c, (request, 1, 0, 4, SPECULATIVE))
    v.request_truncate(capturer=c, request=request, rows=2)
    v.request_accept(capturer=c, request=request, step=step, count=4)
    v.land(c)
    v.step(c, (request, 1, 3, 1))
    v.land(c)
    v.coverage(c, request)


@topic.vector("rows that the budget refused are REFUSED until they are there")
def _(v):
    c = v.capturer(budget_pages=2)
    holder, other, request = v.open(c, 3)
    v.step(c, (holder, 1, 0, 2), (other, 3, 0, 2), (request, 2, 0, 3), expect="PARTIAL")
    v.land(c)
    v.coverage(c, request)
    draft = v.step(c, (request, 2, 3, 2, SPECULATIVE), expect="PARTIAL")
    v.request_accept(capturer=c, request=request, step=draft, count=1)
    v.land(c)
    v.coverage(c, request)
    v.request_close(capturer=c, request=holder)
    v.request_close(capturer=c, request=other)
    v.land(c)
    v.step(c, (request, 2, 1, 2))
    v.land(c)
    v.coverage(c, request)
    v.step(c, (request, 2, 0, 4))
    v.land(c)
    v.coverage(c, request, expect="OK")


@topic.vector("rows that were taken are TAKEN where there was something of them")
def _(v):
    c = v.capturer(**LOSING)
    request = v.open(c)
    v.step(c, (request, 1, 0, 2))
    v.land(c)
    lose(v, c, (request, 1, 2, 1))
    v.land(c)
    silent(v, c, request, 4, [])
    v.step(c, (request, 1, 5, 2))
    v.land(c)
    look(v, v.extract(c, request, first=1, rows=5, mode=TAKE, expect="INCOMPLETE"))
    v.coverage(c, request)
    look(v, v.extract(c, request, mode=TAKE, expect="INCOMPLETE"))
    v.coverage(c, request)
    v.step(c, (request, 1, 1, 1))
    v.land(c)
    x = v.request_finish(capturer=c, request=request, rows=ALL)["routing"]
    v.routing_wait(routing=x, timeout_ns=-1, expect="INCOMPLETE")
    look(v, x)


@topic.vector("a row that was lost and then taken is TAKEN, and so it stays when it is lost again")
def _(v):
    c = v.capturer(**LOSING)
    request = v.open(c)
    lose(v, c, (request, 1, 0, 2))
    v.land(c)
    v.step(c, (request, 1, 0, 1))
    v.land(c)
    v.extract(c, request, rows=1, mode=TAKE)
    v.coverage(c, request)
    lose(v, c, (request, 1, 0, 2))
    v.land(c)
    v.coverage(c, request)


@topic.vector("a fork knows why rows of its parent were missing until then")
def _(v):
    c = v.capturer(**LOSING)
    parent = v.open(c)
    v.step(c, (parent, 1, 0, 2))
    v.land(c)
    lose(v, c, (parent, 1, 2, 2))
    v.land(c)
    v.extract(c, parent, rows=1, mode=TAKE)
    child = v.request_fork(capturer=c, request=parent, rows=3)["child"]
    v.land(c)
    lose(v, c, (parent, 1, 4, 1))
    v.land(c)
    v.extract(c, parent, first=1, rows=1, mode=TAKE)
    v.step(c, (parent, 1, 2, 1))
    v.land(c)
    v.step(c, (child, 2, 4, 1))
    v.land(c)
    v.coverage(c, parent)
    v.coverage(c, child)


FAULTS = {r.OUT_OF_RANGE: [16, 0], r.DUPLICATE: [3, 3]}


def again(v, policy, reasons):
    """One row, issued twice; in each layer the reasons of the two."""
    c = v.capturer(layers=len(reasons))
    request = v.open(c, policy=policy)
    for which in (0, 1):
        v.step_begin(capturer=c, rows=1)
        for layer, cell in enumerate(reasons):
            if cell[which] != r.UNWRITTEN:
                ids = FAULTS.get(cell[which]) or [layer, layer + 1 + which]
                v.layer_record(
                    capturer=c, layer=layer, source={"dtype": r.I32, "ids": ids, "rows": 1}
                )
        v.step_snapshot(capturer=c)
        v.step_issue(
            capturer=c, spans=[{"request": request, "rows": 1}], options={"tag": 5 + which}
        )
        v.land(c)
    v.coverage(c, request)
    look(v, v.extract(c, request, expect=None))


CELLS = (r.UNWRITTEN, r.OUT_OF_RANGE, r.DUPLICATE)
for policy, name in ((0, "kept"), (REPLACE, "replaced")):
    pairs = [(a, b) for a in CELLS for b in CELLS]
    topic.vector(
        f"of two rows without a valid cell the better reason stands, where rows are {name}",
        policy,
        pairs,
    )(again)
    topic.vector(
        f"a valid cell comes to a row with reasons that are compared, where rows are {name}",
        policy,
        [*pairs, (r.UNWRITTEN, None)],
    )(again)
    topic.vector(
        f"a row with a valid cell meets reasons, where rows are {name}",
        policy,
        [(None, r.DUPLICATE), *pairs],
    )(again)


# ---- Rows of others


def imported(v, rows, first=0, layer_map=None, **change):
    """A routing. rows: of each layer True for ids or a reason, or a reason of the whole row."""
    segments, layers = [], len(layer_map or [0, 1])
    for position, row in enumerate(rows, first):
        segment = {"first": position, "rows": 1}
        if isinstance(row, int):
            segment["reason"] = row
        else:
            segment["ids"] = [
                i for cell in row for i in ([position % 7, 7] if cell is True else [cell, 0])
            ]
            segment["validity"] = [sum((cell is True) << layer for layer, cell in enumerate(row))]
        segments.append(segment)
    view = (
        WIDE
        | {"dtype": U8, "layers": layers, "first": first, "rows": len(rows), "segments": segments}
        | change
    )
    if layer_map:
        view["layer_map"] = layer_map
    return v.routing_import(view=view, flags=0, expect=None)["routing"]


@topic.vector("an attached routing tells why its rows are missing")
def _(v):
    c = v.capturer(**WIDE)
    x = imported(
        v,
        [
            r.LOST,
            (True, True),
            r.TAKEN,
            r.ABSENT,
            (r.UNWRITTEN, True),
            r.EVICTED,
            r.STALE,
            r.NOT_PUBLISHED,
        ],
    )
    request = v.open(c)
    v.request_attach(capturer=c, request=request, routing=x, rows=7)
    v.step(c, (request, 1, 8, 1))
    v.land(c)
    v.coverage(c, request)
    for mode in (SHARE, COPY):
        look(v, v.extract(c, request, mode=mode, expect="INCOMPLETE"))
    silent(v, c, request, 0, [1])
    silent(v, c, request, 2, [])
    v.coverage(c, request)
    child = v.request_fork(capturer=c, request=request, rows=7)["child"]
    v.request_truncate(capturer=c, request=request, rows=6)
    v.land(c)
    v.coverage(c, request)
    v.coverage(c, child)


def attach_both(v, first, second):
    c = v.capturer(**WIDE)
    request = v.open(c)
    for rows in (first, second):
        v.request_attach(capturer=c, request=request, routing=imported(v, rows), rows=ALL)
    v.land(c)
    v.coverage(c, request)
    look(v, v.extract(c, request, expect="INCOMPLETE"))


ONE = [
    r.LOST,
    r.TAKEN,
    (True, r.STALE),
    r.REFUSED,
    (r.LOST, r.LOST),
    (r.TAKEN, r.UNWRITTEN),
    r.ABSENT,
    (True, r.ABSENT),
]
OTHER = [
    (r.UNWRITTEN, True),
    r.LOST,
    r.LOST,
    (r.LOST, r.EVICTED),
    r.TAKEN,
    r.LOST,
    r.NOT_PUBLISHED,
    (r.ABSENT, r.STALE),
]
for name, rows in (
    ("one before the other", (ONE, OTHER)),
    ("the other before the one", (OTHER, ONE)),
):
    topic.vector(f"of two attached routings the better reason of each cell stands: {name}", *rows)(
        attach_both
    )


@topic.vector(
    "what a request lost itself and what is attached are compared where there is nothing of the row"
)
def _(v):
    c = v.capturer(**WIDE, **LOSING)
    request = v.open(c)
    lose(v, c, (request, 1, 0, 5))
    v.request_attach(
        capturer=c,
        request=request,
        routing=imported(
            v, [r.TAKEN, r.REFUSED, r.ABSENT, (True, r.UNWRITTEN), (r.STALE, r.STALE)]
        ),
        rows=ALL,
    )
    v.land(c)
    v.coverage(c, request)


# ---- Merges


def merged(v, parts):
    for order in permutations(parts):
        look(v, v.routing_merge(routings=list(order), expect=None)["merged"])


@topic.vector("a merge of pipeline ranks keeps why cells are missing, in every order")
def _(v):
    a = imported(
        v,
        [(True, True), (r.OUT_OF_RANGE, r.DUPLICATE), r.LOST, r.TAKEN, r.LOST, r.ABSENT],
        layer_map=[0, 1],
    )
    b = imported(
        v,
        [(True, r.UNWRITTEN), (True, True), (r.DUPLICATE, True), r.LOST, r.LOST],
        layer_map=[2, 3],
    )
    merged(v, [a, b])


@topic.vector("a merge of ranks that share a layer keeps the best reason of it, in every order")
def _(v):
    a = imported(v, [r.LOST, (r.UNWRITTEN, True), r.TAKEN, (True, r.STALE)], layer_map=[0, 1])
    b = imported(
        v, [r.REFUSED, r.LOST, (True, r.ABSENT), r.EVICTED, r.STALE], first=1, layer_map=[1, 2]
    )
    d = imported(v, [(r.DUPLICATE, r.OUT_OF_RANGE), r.NOT_PUBLISHED], first=4, layer_map=[0, 2])
    merged(v, [a, b, d])


@topic.vector("a merge of rows of the same layers keeps the best reason, in every order")
def _(v):
    merged(
        v, [imported(v, ONE), imported(v, OTHER, first=1), imported(v, [r.STALE, r.TAKEN], first=7)]
    )


@topic.vector("a merge where nobody has a row keeps one reason of the whole row")
def _(v):
    a, b = (
        imported(v, [r.LOST, r.LOST, r.ABSENT, r.TAKEN]),
        imported(v, [r.LOST, r.TAKEN, r.REFUSED], layer_map=[2, 3]),
    )
    merged(v, [a, b])
    merged(v, [a, imported(v, [r.REFUSED, r.EVICTED], first=2)])


@topic.vector("a merge of captured ranks of which one lost a step")
def _(v):
    ranks = [
        v.capturer(layers=2, layer_map=[0, 1], **LOSING),
        v.capturer(layers=2, layer_map=[2, 3]),
    ]
    parts = []
    for c, loses in zip(ranks, (True, False)):
        request = v.open(c)
        v.step(c, (request, 1, 0, 2), tag=1)
        v.land(c)
        if loses:
            lose(v, c, (request, 1, 2, 2))
        else:
            v.step(c, (request, 1, 2, 2), tag=2, faults=[(1, 0, [4, 4])])
        v.land(c)
        parts.append(v.extract(c, request, expect="INCOMPLETE"))
    merged(v, parts)


@topic.vector(
    "a routing that is divided keeps its reasons in both parts, and united it is what it was"
)
def _(v):
    x = imported(v, ONE)
    look(v, x)
    for at in (0, 1, 2, 7, 8):
        parts = v.routing_split(routing=x, prompt_tokens=at, generated_tokens=ALL)
        for part in parts.values():
            v.routing_coverage(routing=part, capacity=9, expect=None)
        look(
            v,
            v.routing_merge(routings=[parts["generated"], parts["prompt"]], expect="INCOMPLETE")[
                "merged"
            ],
        )


@topic.vector("a splice keeps the reasons of both sides, and knows none of rows between")
def _(v):
    head = v.bytes_of(imported(v, [(True, True), r.LOST, r.LOST, r.TAKEN]))
    for first in (2, 5):
        tail = v.bytes_of(imported(v, [r.LOST, r.LOST, r.REFUSED, (True, r.LOST)], first=first))
        for row in (0, 3, 4, 7):
            look(v, v.serialized_splice(head=head, tail=tail, row=row)["routing"])

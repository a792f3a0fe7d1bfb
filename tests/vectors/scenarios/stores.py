"""Rows that outlive their request: blocks under keys."""

from model.capturer import DEVICE_POSITIONS, REPLACE, SPECULATIVE
from model.routing import ALL, I64
from model.store import SLOT_KEYS
from script import SHAPE, Dice, Topic

topic = Topic("stores")


def keys(*numbers, size=8):
    return b"".join(n.to_bytes(size, "little") for n in numbers)


def store(v, shape=None, **config):
    shape = {"backend": 1} | SHAPE | (shape or {})
    config = {"block_rows": 4, "key_bytes": 8, "budget_bytes": 4 << 20} | config
    return v.store_create(config=config, shape=shape)["store"]


def publish(v, c, request, s, first, *numbers, at=0, expect="OK"):
    v.request_publish(capturer=c, request=request, store=s, first=first, keys=keys(*numbers),
                      generation=at, expect=expect)  # fmt: skip


def adopt(v, c, request, s, first, *numbers, at=0, expect="OK"):
    v.request_adopt(capturer=c, request=request, store=s, first=first, keys=keys(*numbers),
                    generation=at, expect=expect)  # fmt: skip


def contains(v, s, *numbers, at=0, expect="OK"):
    v.store_contains(store=s, keys=keys(*numbers), generation=at, expect=expect)


def read(v, c, request, expect="OK"):
    """What a request has, and why not."""
    v.expect_rows(c, request, expect=expect)
    v.coverage(c, request, expect="OK" if expect == "OK" else "INCOMPLETE")


def begin(v, requests=3, **config):
    """A capturer, a store and requests, of which the first has rows 0..7 of seed 1."""
    c, s = v.capturer(), store(v, **config)
    opened = v.open(c, requests)
    v.step(c, (opened[0], 1, 0, 8), tag=1)
    return c, s, *opened


@topic.vector("a store's configuration begins with these defaults")
def _(v):
    v.store_config_init()


@topic.vector("a prefix that one request computed is there for the next, and so is its tag")
def _(v):
    c, s, a, b, _unused = begin(v)
    v.land(c)
    publish(v, c, a, s, 0, 10, 11)
    v.land(c)
    adopt(v, c, b, s, 0, 10, 11)
    v.step(c, (b, 2, 8, 2), tag=2)
    v.land(c)
    read(v, c, b)
    v.store_stats(store=s)


@topic.vector("a block is there from the publish on, and in flight in whoever adopts it")
def _(v):
    c, s, a, b, _unused = begin(v)
    publish(v, c, a, s, 0, 10, 11)
    contains(v, s, 10, 11, 12)
    v.store_stats(store=s)
    adopt(v, c, b, s, 0, 10, 11)
    v.extract(c, b, expect="ERR_NOT_READY")
    v.land(c)
    read(v, c, b)
    v.store_stats(store=s)


@topic.vector("a block may lie anywhere in its request")
def _(v):
    c, s, a, b, _unused = begin(v)
    v.land(c)
    publish(v, c, a, s, 3, 10)
    adopt(v, c, b, s, 5, 10)
    v.land(c)
    read(v, c, b, "INCOMPLETE")


@topic.vector("blocks that went and that never were are holes that say so")
def _(v):
    c, s, a, b, _unused = begin(v)
    v.land(c)
    publish(v, c, a, s, 0, 10, 11)
    v.land(c)
    v.store_evict(store=s, keys=keys(10, 12))
    adopt(v, c, b, s, 0, 11, 10, 12)
    v.land(c)
    read(v, c, b, "INCOMPLETE")
    contains(v, s, 10, 11, 12)
    v.store_stats(store=s)


@topic.vector("cells that a request has are kept when a block is adopted")
def _(v):
    c, s, a, _unused, _other = begin(v)
    v.land(c)
    publish(v, c, a, s, 0, 10, 11)
    for policy in (0, REPLACE):
        b = v.open(c, policy=policy)
        v.step(c, (b, 2, 2, 3), tag=2, faults=[(1, 1, [7, 7])])
        v.land(c)
        adopt(v, c, b, s, 0, 10, 11)
        v.land(c)
        read(v, c, b)


@topic.vector("a second publish fills what a block lacks, and whoever has the first keeps it")
def _(v):
    c, s, a, b, d = begin(v)
    v.step(c, (b, 1, 0, 4), tag=2, faults=[(1, 0, [3, 3]), (2, 2, [99, 1])])
    v.land(c)
    publish(v, c, b, s, 0, 10)
    adopt(v, c, d, s, 0, 10)
    v.land(c)
    publish(v, c, a, s, 0, 10)
    v.land(c)
    read(v, c, d, "INCOMPLETE")
    adopt(v, c, d, s, 4, 10)
    v.land(c)
    read(v, c, d, "INCOMPLETE")
    v.store_stats(store=s)


@topic.vector("the same again is counted, and other ids under a key are counted and change nothing")
def _(v):
    c, s, a, b, d = begin(v)
    v.step(c, (b, 2, 0, 4), tag=2)
    v.land(c)
    for request in (a, a, b):
        publish(v, c, request, s, 0, 10)
        v.land(c)
    v.store_stats(store=s)
    adopt(v, c, d, s, 0, 10)
    v.land(c)
    read(v, c, d)


@topic.vector("rows without a valid cell leave no block")
def _(v):
    c, s = v.capturer(), store(v)
    a, b = v.open(c, 2)
    v.step_begin(capturer=c, rows=4)
    v.step_snapshot(capturer=c)
    v.step_issue(capturer=c, spans=[{"request": a, "rows": 4}])
    publish(v, c, a, s, 0, 10)
    adopt(v, c, b, s, 0, 10)
    v.land(c)
    contains(v, s, 10)
    v.store_stats(store=s)
    read(v, c, b, "NOT_CAPTURED")


@topic.vector("a block with drafts, and those behind it, are there once the drafts are settled")
def _(v):
    c, s = v.capturer(), store(v)
    a, b = v.open(c, 2)
    v.step(c, (a, 1, 0, 6))
    ticket = v.step(c, (a, 2, 6, 6, SPECULATIVE))
    publish(v, c, a, s, 0, 10, 11, 12)
    contains(v, s, 10, 11, 12)
    v.land(c)
    contains(v, s, 10, 11, 12)
    v.store_stats(store=s)
    v.request_accept(capturer=c, request=a, step=ticket, count=3)
    v.land(c)
    contains(v, s, 10, 11, 12)
    adopt(v, c, b, s, 0, 10, 11, 12)
    v.land(c)
    read(v, c, b, "INCOMPLETE")
    v.store_stats(store=s)


@topic.vector("rejected drafts leave a gap in the block that a later publish fills")
def _(v):
    c, s = v.capturer(), store(v)
    a, b = v.open(c, 2)
    v.step(c, (a, 1, 0, 2))
    ticket = v.step(c, (a, 2, 2, 2, SPECULATIVE))
    publish(v, c, a, s, 0, 10)
    v.request_accept(capturer=c, request=a, step=ticket, rows=[0])
    v.step(c, (a, 3, 3, 1))
    v.land(c)
    adopt(v, c, b, s, 0, 10)
    publish(v, c, a, s, 0, 10)
    adopt(v, c, b, s, 4, 10)
    v.land(c)
    adopt(v, c, b, s, 8, 10)
    v.land(c)
    read(v, c, b, "INCOMPLETE")
    v.store_stats(store=s)


@topic.vector("drafts before a block do not hold it up, those with device positions may")
def _(v):
    c, s = v.capturer(), store(v)
    a, b = v.open(c, 2)
    v.step(c, (a, 1, 0, 4, SPECULATIVE))
    v.step(c, (a, 1, 4, 4))
    publish(v, c, a, s, 4, 11)
    contains(v, s, 11)
    v.land(c)
    v.forward(c, v.rows(c, 2, 8, 2))
    span = {"request": a, "position": 8, "position_end": 14, "rows": 2,
            "flags": SPECULATIVE | DEVICE_POSITIONS}  # fmt: skip
    ticket = v.step_issue(capturer=c, spans=[span], options={
        "positions": [12, 13, 0, 0, 0, 0, 0, 0], "positions_dtype": I64})["step"]  # fmt: skip
    v.step(c, (a, 3, 8, 4))
    publish(v, c, a, s, 8, 12)
    contains(v, s, 12)
    v.land(c)
    contains(v, s, 12)
    v.request_accept(capturer=c, request=a, step=ticket, count=2)
    adopt(v, c, b, s, 0, 11, 12)
    v.land(c)
    read(v, c, b)


@topic.vector("what is cut before its drafts are settled is not published")
def _(v):
    c, s = v.capturer(), store(v)
    a, b = v.open(c, 2)
    v.step(c, (a, 1, 0, 3))
    v.step(c, (a, 2, 3, 5, SPECULATIVE))
    publish(v, c, a, s, 0, 10, 11)
    v.land(c)
    v.request_truncate(capturer=c, request=a, rows=2)
    v.land(c)
    contains(v, s, 10, 11)
    adopt(v, c, b, s, 0, 10)
    v.land(c)
    read(v, c, b, "INCOMPLETE")
    v.store_stats(store=s)


@topic.vector("a request that ends in flight has published, with its settled rows alone")
def _(v):
    c, s = v.capturer(), store(v)
    a, b, d = v.open(c, 3)
    v.step(c, (a, 1, 0, 4), (a, 2, 4, 2, SPECULATIVE), (b, 3, 0, 2))
    publish(v, c, a, s, 0, 10)
    v.step(c, (b, 3, 2, 2))
    publish(v, c, b, s, 0, 20)
    v.request_close(capturer=c, request=b)
    v.routing_free(routing=v.request_finish(capturer=c, request=a, rows=6)["routing"])
    adopt(v, c, d, s, 0, 10, 20)
    v.land(c)
    read(v, c, d)
    v.store_stats(store=s)


@topic.vector("drafts that the request's end rejects are missing in the block")
def _(v):
    c, s = v.capturer(), store(v)
    a, b = v.open(c, 2)
    v.step(c, (a, 1, 0, 3), (a, 2, 3, 1, SPECULATIVE))
    publish(v, c, a, s, 0, 10)
    v.land(c)
    v.request_close(capturer=c, request=a)
    v.land(c)
    adopt(v, c, b, s, 0, 10)
    v.land(c)
    read(v, c, b, "INCOMPLETE")


@topic.vector("a slot is of whoever published it last, also in flight")
def _(v):
    c, s, a, b, d = begin(v, flags=SLOT_KEYS)
    publish(v, c, a, s, 0, 10)
    v.step(c, (b, 2, 0, 4), tag=2)
    publish(v, c, b, s, 0, 10)
    adopt(v, c, d, s, 0, 10)
    v.land(c)
    read(v, c, d)
    publish(v, c, a, s, 4, 10)
    v.land(c)
    adopt(v, c, d, s, 4, 10)
    v.land(c)
    read(v, c, d)
    v.store_stats(store=s)


@topic.vector("slots move all at once, and what was there is evicted")
def _(v):
    c, s, a, b, _unused = begin(v, flags=SLOT_KEYS, block_rows=2)
    publish(v, c, a, s, 0, 10, 11, 12, 13)
    v.land(c)
    v.store_retain(store=s, keys=keys(11))
    v.store_move(store=s, source=keys(10, 11, 20), destination=keys(11, 10, 12))
    contains(v, s, 10, 11, 12, 13, 20)
    adopt(v, c, b, s, 0, 10, 11, 12, 13)
    v.land(c)
    read(v, c, b, "INCOMPLETE")
    v.store_stats(store=s)


@topic.vector("content does not move")
def _(v):
    s = store(v)
    v.store_move(store=s, source=keys(1), destination=keys(2), expect="ERR_STATE")


@topic.vector("weights that change end older blocks for adopters, and never change back")
def _(v):
    c, s, a, b, d = begin(v)
    v.land(c)
    publish(v, c, a, s, 0, 10, 11)
    adopt(v, c, b, s, 0, 10)
    v.land(c)
    v.store_retain(store=s, keys=keys(10))
    v.store_advance(store=s, generation=3)
    v.store_advance(store=s, generation=2)
    contains(v, s, 10, 12, at=3)
    contains(v, s, 10, 12, at=1)
    contains(v, s, 10, at=4, expect="ERR_STATE")
    v.store_retain(store=s, keys=keys(10, 11))
    adopt(v, c, d, s, 0, 10, 12, at=3)
    v.land(c)
    read(v, c, b)
    read(v, c, d, "NOT_CAPTURED")
    publish(v, c, a, s, 0, 13, at=4, expect="ERR_STATE")
    adopt(v, c, a, s, 8, 10, at=4, expect="ERR_STATE")
    publish(v, c, a, s, 0, 13, at=2)
    v.store_evict(store=s, keys=keys(11))
    contains(v, s, 10, 11, 13, at=3)
    v.store_stats(store=s)


@topic.vector("the generation of a row is its tag")
def _(v):
    c, s, a, b, d = begin(v)
    v.land(c)
    v.store_advance(store=s, generation=2)
    v.step(c, (a, 1, 8, 8), tag=3)
    publish(v, c, a, s, 0, 10, 11, 12, 13, at=2)
    publish(v, c, a, s, 6, 20, at=2)
    v.land(c)
    contains(v, s, 10, 11, 12, 13, 20, at=2)
    v.store_stats(store=s)
    child = v.request_fork(capturer=c, request=a, rows=16)["child"]
    publish(v, c, child, s, 4, 21, 22, at=2)
    v.request_truncate(capturer=c, request=a, rows=0)
    v.step(c, (a, 3, 0, 4), tag=2)
    publish(v, c, a, s, 0, 10, at=2)
    adopt(v, c, b, s, 0, 12, 10, at=2)
    publish(v, c, b, s, 0, 23, 24, at=2)
    v.land(c)
    contains(v, s, 10, 21, 22, 23, 24, at=2)
    v.store_advance(store=s, generation=3)
    contains(v, s, 10, 12, 13, 23, 24, at=3)
    publish(v, c, b, s, 0, 25, 26, at=3)
    v.land(c)
    contains(v, s, 25, 26, at=3)
    read(v, c, b)
    v.store_stats(store=s)


@topic.vector("a row is as old as the oldest of its cells")
def _(v):
    c, s, a, b, d = begin(v)
    v.store_advance(store=s, generation=2)
    for request, tags in ((b, (2, 1)), (d, (1, 3))):
        v.step(c, (request, 1, 0, 4), tag=tags[0], faults=[(1, 0, [5, 5])])
        v.land(c)
        v.step(c, (request, 1, 0, 4), tag=tags[1])
        v.land(c)
        read(v, c, request)
        publish(v, c, request, s, 0, 10, at=2)
        v.land(c)
        contains(v, s, 10, at=2)
    replaced = v.open(c, policy=REPLACE)
    for tag in (1, 3):
        v.step(c, (replaced, 1, 0, 4), tag=tag)
    publish(v, c, replaced, s, 0, 10, at=2)
    v.land(c)
    contains(v, s, 10, at=2)
    v.store_stats(store=s)


@topic.vector("rows of a routing are as old as their tags say")
def _(v):
    c, s, a, b, d = begin(v)
    v.step(c, (d, 2, 0, 4), tag=2)
    v.land(c)
    v.store_advance(store=s, generation=2)
    for request in (a, d):
        routing = v.extract(c, request)
        v.request_attach(capturer=c, request=b, routing=routing, rows=4)
        publish(v, c, b, s, 0, 10, at=2)
        v.land(c)
        contains(v, s, 10, at=2)
        v.request_truncate(capturer=c, request=b, rows=0)
    v.store_stats(store=s)


@topic.vector("rows that one store has not ended are old for another that has advanced")
def _(v):
    c, s, a, b, d = begin(v)
    other = store(v)
    v.land(c)
    publish(v, c, a, s, 0, 10, at=0)
    v.store_advance(store=other, generation=2)
    adopt(v, c, b, s, 0, 10, at=0)
    publish(v, c, b, other, 0, 10, at=2)
    adopt(v, c, d, other, 0, 10, at=2)
    v.land(c)
    contains(v, other, 10, at=2)
    contains(v, s, 10, at=0)
    read(v, c, d, "NOT_CAPTURED")
    v.store_stats(store=other)


@topic.vector("what lands after the weights have changed is stale, whatever it is")
def _(v):
    c, s, a, b, d = begin(v)
    drafts = v.step(c, (d, 4, 0, 4, SPECULATIVE))
    publish(v, c, a, s, 0, 10)
    publish(v, c, d, s, 0, 11)
    adopt(v, c, b, s, 0, 10)
    v.store_advance(store=s, generation=2)
    v.land(c)
    read(v, c, b, "NOT_CAPTURED")
    v.step(c, (b, 2, 4, 4), tag=2)
    publish(v, c, b, s, 4, 11, at=2)
    v.land(c)
    v.request_accept(capturer=c, request=d, step=drafts, count=4)
    v.land(c)
    contains(v, s, 10, 11, at=2)
    v.store_stats(store=s)


@topic.vector("whoever adopted the slower of two publishers has its rows")
def _(v):
    c, s, a, b, _unused = begin(v)
    publish(v, c, a, s, 0, 10)
    adopt(v, c, b, s, 0, 10)
    other = v.capturer()
    d = v.open(other)
    v.step(other, (d, 1, 0, 4))
    publish(v, other, d, s, 0, 10)
    v.land(other)
    v.land(c)
    read(v, c, b)
    v.store_stats(store=s)


@topic.vector("for another capturer a block in flight is not there yet")
def _(v):
    c, s, a, _unused, _other = begin(v)
    publish(v, c, a, s, 0, 10)
    other = v.capturer()
    d = v.open(other)
    adopt(v, other, d, s, 0, 10)
    v.land(c)
    adopt(v, other, d, s, 4, 10)
    v.land(other)
    read(v, other, d, "INCOMPLETE")
    v.store_stats(store=s)


@topic.vector("a block is retained as often as it is released, and a later one inherits that")
def _(v):
    c, s, a, b, _unused = begin(v, flags=SLOT_KEYS)
    v.land(c)
    publish(v, c, a, s, 0, 10)
    v.store_retain(store=s, keys=keys(10, 11))
    v.store_retain(store=s, keys=keys(10))
    v.land(c)
    publish(v, c, a, s, 4, 10)
    v.land(c)
    v.store_stats(store=s)
    v.store_release(store=s, keys=keys(10, 11))
    v.store_stats(store=s)
    v.store_release(store=s, keys=keys(10))
    v.store_release(store=s, keys=keys(10))
    v.store_stats(store=s)
    v.store_retain(store=s, keys=keys(10))
    v.store_evict(store=s, keys=keys(10))
    v.store_stats(store=s)


@topic.vector("requests of a step publish and adopt in one call, each with its status")
def _(v):
    c, s, a, b, d = begin(v)
    v.step(c, (b, 2, 0, 4))
    items = [
        {"request": a, "first": 0, "keys": keys(10, 11)},
        {"request": b, "first": 0, "keys": keys(20, 21)},
        {"request": b, "first": 0, "keys": keys(20)},
    ]
    v.request_publish_batch(capturer=c, store=s, items=items, generation=0, expect="PARTIAL")
    items = [
        {"request": d, "first": 0, "keys": keys(20, 11, 30)},
        {"request": b, "first": 4, "keys": keys(10)},
    ]
    v.request_adopt_batch(capturer=c, store=s, items=items, generation=0)
    v.land(c)
    read(v, c, d, "INCOMPLETE")
    read(v, c, b)
    v.store_stats(store=s)


@topic.vector("a store may end before its rows")
def _(v):
    c, s, a, b, _unused = begin(v)
    publish(v, c, a, s, 0, 10, 11)
    adopt(v, c, b, s, 0, 10, 11)
    v.store_free(store=s)
    v.land(c)
    read(v, c, b)


@topic.vector("publishing beyond what was issued, and nothing")
def _(v):
    c, s, a, _unused, _other = begin(v)
    publish(v, c, a, s, 5, 10, expect="ERR_OUT_OF_RANGE")
    publish(v, c, a, s, 100)
    adopt(v, c, a, s, 100)
    adopt(v, c, a, s, 2**40 - 3, 10, expect="ERR_OUT_OF_RANGE")
    v.request_truncate(capturer=c, request=a, rows=4)
    publish(v, c, a, s, 4, 10, expect="ERR_OUT_OF_RANGE")
    v.land(c)
    v.store_stats(store=s)


@topic.vector("a request that ended publishes and adopts nothing")
def _(v):
    c, s, a, _unused, _other = begin(v)
    v.request_close(capturer=c, request=a)
    v.request_publish(capturer=c, request=a, store=s, first=0, keys=keys(10), generation=0,
                      expect="ERR_UNKNOWN_REQUEST")  # fmt: skip
    v.request_adopt(capturer=c, request=a, store=s, first=0, keys=keys(10), generation=0,
                    expect="ERR_UNKNOWN_REQUEST")  # fmt: skip


def other_shape(v, shape, publishes, adopts):
    c, s = v.capturer(), store(v, shape)
    a = v.open(c)
    v.step(c, (a, 1, 0, 4))
    publish(v, c, a, s, 0, 10, expect=publishes)
    adopt(v, c, a, s, 0, 10, expect=adopts)
    v.land(c)


for name, shape, publishes, adopts in (
    ("fewer layers", {"layers": 2}, "ERR_SHAPE_MISMATCH", "ERR_SHAPE_MISMATCH"),
    ("other layers", {"layer_map": [0, 1, 3]}, "ERR_SHAPE_MISMATCH", "ERR_SHAPE_MISMATCH"),
    ("another k", {"k": 3}, "ERR_SHAPE_MISMATCH", "ERR_SHAPE_MISMATCH"),
    ("other experts", {"experts": 17}, "ERR_SHAPE_MISMATCH", "ERR_SHAPE_MISMATCH"),
    ("another id space", {"id_space": 1}, "ERR_SHAPE_MISMATCH", "ERR_SHAPE_MISMATCH"),
    ("recomputed layers", {"layer_provenance": [0, 1, 0]}, "OK", "ERR_SHAPE_MISMATCH"),
):
    topic.vector(f"a store of {name} is another model's", shape, publishes, adopts)(other_shape)


@topic.vector("a disabled capturer publishes and adopts nothing")
def _(v):
    c, s = v.capturer_create(config={"role": 2})["capturer"], store(v)
    v.request_publish(capturer=c, request=0, store=s, first=0, keys=keys(10), generation=0)
    v.request_adopt(capturer=c, request=0, store=s, first=0, keys=keys(10), generation=0)
    v.store_stats(store=s)


@topic.vector("blocks travel as bytes, but for those that are not there")
def _(v):
    c, s, a, b, _unused = begin(v)
    v.step(c, (b, 1, 0, 4), tag=2, faults=[(1, 0, [3, 3])])
    v.land(c)
    publish(v, c, a, s, 0, 10, 11)
    publish(v, c, b, s, 0, 12)
    v.land(c)
    v.store_export(store=s, keys=keys(11), generation=0)
    v.step(c, (a, 1, 8, 4))
    publish(v, c, a, s, 8, 13)
    v.store_export(store=s, keys=keys(12, 13, 14, 11), generation=0, expect="INCOMPLETE")
    v.land(c)
    data = v.store_export(store=s, keys=keys(12, 10), generation=0)["dst"]
    v.store_export(store=s, keys=b"", generation=0)
    v.store_export(store=s, keys=keys(10), generation=1, expect="ERR_STATE")
    other = store(v)
    v.store_import(store=other, data=data)
    v.store_stats(store=other)
    d = v.open(c)
    adopt(v, c, d, other, 0, 10, 12)
    v.land(c)
    read(v, c, d, "INCOMPLETE")
    v.store_advance(store=other, generation=1)
    v.store_import(store=other, data=data)
    v.store_stats(store=other)


@topic.vector("bytes that are no blocks of this store are refused, and nothing is published")
def _(v):
    c, s, a, _unused, _other = begin(v, generation=1)
    v.land(c)
    publish(v, c, a, s, 0, 10, 11, at=1)
    v.land(c)
    data = v.store_export(store=s, keys=keys(10, 11), generation=1)["dst"]
    fresh = store(v, generation=1)
    v.store_import(store=fresh, data=data[:40], expect="ERR_FORMAT")
    v.store_import(store=fresh, data=data[:-1], expect="ERR_FORMAT")
    v.store_import(store=fresh, data=b"X" + data[1:], expect="ERR_FORMAT")
    v.store_import(store=fresh, data=data[:8] + b"\2" + data[9:], expect="ERR_FORMAT")
    v.store_import(store=fresh, data=data[:100] + b"\1" + data[101:], expect="ERR_FORMAT")
    v.store_import(store=fresh, data=data[:-1] + b"\xff", expect="ERR_FORMAT")
    v.store_import(store=store(v), data=data, expect="ERR_STATE")
    for config in ({"block_rows": 2}, {"flags": SLOT_KEYS}, {"key_bytes": 16}):
        v.store_import(store=store(v, **config), data=data, expect="ERR_SHAPE_MISMATCH")
    v.store_import(store=store(v, {"experts": 17}), data=data, expect="ERR_SHAPE_MISMATCH")
    v.store_stats(store=fresh)


@topic.vector("keys of token ids stand for all tokens before them, and go on from the last")
def _(v):
    tokens = [7, 0, -1, 2**31 - 1, 5, 6, 7, 8, 9]
    for seed, key_bytes in ((b"", 8), (b"model", 32), (b"\0" * 100, 64)):
        made = v.key_chain(seed=seed, tokens=tokens, block_rows=4, key_bytes=key_bytes)["keys"]
        assert len(made) == 2 * key_bytes
    first = v.key_chain(seed=b"model", tokens=tokens[:4], block_rows=4, key_bytes=32)["keys"]
    v.key_chain(seed=first, tokens=tokens[4:], block_rows=4, key_bytes=32)
    v.key_chain(seed=b"model", tokens=tokens, block_rows=1, key_bytes=9)
    v.key_chain(seed=b"model", tokens=tokens[:3], block_rows=4, key_bytes=32)


def wrong_config(v, config, expect):
    v.store_create(config=config, shape={"backend": 1} | SHAPE, expect=expect)


for name, config in (
    ("blocks of too many rows", {"block_rows": 4097}),
    ("keys too short", {"key_bytes": 7}),
    ("keys too long", {"key_bytes": 65}),
):
    topic.vector(f"a store is refused that has {name}", config, "ERR_ARGUMENT")(wrong_config)


def history(v, seed):
    """Any calls on a store in any order, by two requests at a time."""
    dice = Dice(seed)
    flags = SLOT_KEYS if seed % 2 else 0
    c, s = v.capturer(), store(v, flags=flags, block_rows=dice.pick([1, 2, 3]))
    rows = v.world.named[s].block_rows
    requests, drafts, generation = list(v.open(c, 3)), [], 0

    def some():
        first = dice.below(6)
        return [first + i for i in range(1 + dice.below(3))]

    for _ in range(40):
        what, request = dice.below(12), dice.pick(requests)
        named = v.world.named[request]
        if what < 3:
            flag = SPECULATIVE if dice.below(3) == 0 else 0
            first, count = dice.pick([named.length(), named.length(), dice.below(4)]), 4
            bad = [(dice.below(4), dice.below(3), [5, 5])] if dice.below(2) else []
            content = dice.below(2)
            step = v.step(
                c,
                (request, content, first, count, flag),
                tag=generation + dice.below(3),
                faults=bad,
            )
            if flag:
                drafts.append((request, step))
        elif what == 3:
            v.land(c)
        elif what < 6:
            first, wanted = dice.below(4), some()
            if first + len(wanted) * rows <= named.issued_end():
                publish(v, c, request, s, first, *wanted, at=generation)
        elif what < 8:
            adopt(v, c, request, s, dice.below(4), *some(), at=generation)
        elif what == 8 and drafts:
            request, step = drafts.pop(dice.below(len(drafts)))
            if request in requests:
                v.request_accept(capturer=c, request=request, step=step, count=dice.below(5))
        elif what == 9:
            v.store_evict(store=s, keys=keys(*some()))
        elif what == 10:
            generation += 1 + dice.below(2)
            v.store_advance(store=s, generation=generation)
        elif dice.below(2):
            v.request_truncate(capturer=c, request=request, rows=dice.below(named.length() + 1))
        else:
            v.request_close(capturer=c, request=request)
            requests[requests.index(request)] = v.open(c)
        v.store_stats(store=s)
        contains(v, s, *range(8), at=generation)
    v.land(c)
    for request in requests:
        v.routing_view(routing=v.extract(c, request, rows=ALL, expect=None))
        v.request_coverage(capturer=c, request=request, first=0, rows=ALL, capacity=64, expect=None)


for seed in range(4):
    topic.vector(f"what a store says and gives in any order of calls, {seed}", seed)(history)

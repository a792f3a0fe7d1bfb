"""The serialised form, byte by byte, and what is not taken for it."""

import struct

from model import routing as r
from model import serialized as form
from model.routing import I32
from model.serialized import TRUSTED
from script import Topic

topic = Topic("serialized")


def again(v, routing):
    """A routing from the bytes of another, which must look the same and give the same bytes."""
    data = v.bytes_of(routing)
    copy = v.routing_deserialize(data=data, flags=0, expect=None)["routing"]
    v.routing_view(routing=copy)
    v.routing_coverage(routing=copy, capacity=8, expect=None)
    v.routing_serialize(routing=copy)
    v.serialized_info(data=data[:64])
    return copy


def one(v, config, first, count, faults):
    c = v.capturer(**config)
    x = v.captured(c, first=first, count=count, tag=5, faults=faults, expect=None)
    again(v, x)


def all_of(row, layers):
    """Faults in every layer of a row."""
    return [(row, layer, [1, 1]) for layer in range(layers)]


for name, config, first, count, faults in (
    ("complete rows", {}, 0, 5, ()),
    ("rows that do not begin at 0", {}, 3, 4, ()),
    ("rows at the end of what positions can be", {}, 2**40 - 2, 2, ()),
    ("one cell of each kind missing", {}, 0, 5, [(1, 0, [3, 3]), (2, 1, [-1, 0]), (3, 2, [99, 4])]),
    ("a row without a valid cell", {}, 0, 5, all_of(2, 3)),
    ("rows without a valid cell at both ends", {}, 0, 4, all_of(0, 3) + all_of(3, 3)),
    ("no row with a valid cell", {}, 0, 2, all_of(0, 3) + all_of(1, 3)),
    ("16-bit ids", {"experts": 300}, 0, 5, [(1, 0, [3, 3])]),
    ("256 experts", {"experts": 256}, 0, 5, ()),
    ("one expert of one", {"layers": 1, "k": 1, "experts": 1}, 0, 3, ()),
    ("eight layers", {"layers": 8}, 0, 4, [(1, 7, [3, 3])]),
    ("nine layers", {"layers": 9}, 0, 4, [(1, 8, [3, 3]), (2, 0, [4, 4])]),
    ("seventeen layers", {"layers": 17}, 0, 3, [(1, 16, [3, 3])]),
    ("a layer map", {"layer_map": [1, 7, 60]}, 0, 3, ()),
    ("different experts", {"layer_experts": [4, 300, 16], "experts": 0}, 0, 3, ()),
    ("recomputed layers", {"layer_provenance": [0, 1, 0]}, 0, 3, ()),
    ("ids of replicas", {"id_space": 1}, 0, 3, ()),
):
    topic.vector(f"the serialised form of {name}", config, first, count, faults)(one)


@topic.vector("the serialised form of no rows")
def _(v):
    c = v.capturer()
    x = v.captured(c, first=2, count=2)
    for first in (2, 4):
        again(v, v.routing_slice(routing=x, first=first, rows=0)["slice"])


@topic.vector("the serialised form of rows with and without tags of their own")
def _(v):
    c = v.capturer()
    request = v.open(c)
    for tag, first, count in ((7, 0, 3), (7, 3, 2), (8, 5, 2), (2**64 - 3, 9, 2)):
        v.step(c, (request, 1, first, count), tag=tag)
        v.land(c)
    x = v.extract(c, request, expect="INCOMPLETE")
    again(v, x)
    again(v, v.routing_slice(routing=x, first=0, rows=5)["slice"])
    again(v, v.routing_slice(routing=x, first=4, rows=2)["slice"])
    again(v, v.routing_slice(routing=x, first=7, rows=2)["slice"])


@topic.vector("the serialised form of rows that alternate between complete, partial and absent")
def _(v):
    c = v.capturer()
    request = v.open(c)
    for tag, first in enumerate((0, 2, 6), 1):
        v.step(c, (request, 1, first, 3), tag=tag, faults=[(1, tag % 3, [5, 5])])
        v.land(c)
    again(v, v.extract(c, request, expect="INCOMPLETE"))


@topic.vector("the serialised form of layers from two pipeline stages")
def _(v):
    first, second = v.capturer(layers=2, layer_map=[0, 3]), v.capturer(layers=1, layer_map=[2])
    a, b = v.captured(first, count=4, tag=1), v.captured(second, first=2, count=4, tag=2)
    again(v, v.routing_merge(routings=[a, b], expect="INCOMPLETE")["merged"])


@topic.vector("equal routings have equal bytes, however they were made")
def _(v):
    c = v.capturer()
    whole = v.captured(c, count=6, tag=1)
    pieces = [v.routing_slice(routing=whole, first=first, rows=2)["slice"] for first in (4, 0, 2)]
    merged = v.routing_merge(routings=pieces)["merged"]
    request = v.open(c)
    for position in range(6):
        v.step(c, (request, 1, position, 1), tag=1)
        v.land(c)
    copied = v.extract(c, request, mode=2)
    for x in (whole, merged, copied):
        v.routing_serialize(routing=x)


@topic.vector("the size is asked for first, and too little room is refused")
def _(v):
    c = v.capturer()
    x = v.captured(c)
    needed = v.routing_serialize(routing=x)["needed"]
    for size in (0, 1, 64, needed - 1):
        v.routing_serialize(routing=x, dst_bytes=size, expect="ERR_BUFFER_TOO_SMALL", raw=True)
    v.routing_serialize(routing=x, dst_bytes=needed)
    v.routing_serialize(routing=x, dst_bytes=needed + 100, raw=True)


@topic.vector("bytes can be lent, and are released when nothing refers to them any more")
def _(v):
    c = v.capturer()
    data = v.bytes_of(v.captured(c, count=6, tag=3, faults=[(2, 1, [3, 3])], expect="INCOMPLETE"))
    x = v.routing_deserialize(data=data, flags=0, lent=1, expect="INCOMPLETE")["routing"]
    piece = v.routing_slice(routing=x, first=1, rows=4)["slice"]
    v.routing_free(routing=x)
    v.routing_view(routing=piece)
    v.routing_serialize(routing=piece)
    v.routing_deserialize(data=data[:-1], flags=0, lent=1, expect="ERR_FORMAT")
    v.routing_deserialize(data=data, flags=TRUSTED, lent=1, expect="INCOMPLETE")
    v.routing_deserialize(data=data, flags=2, lent=1, expect="ERR_ARGUMENT", raw=True)


@topic.vector("a routing from bytes is attached, merged and copied like any other")
def _(v):
    c = v.capturer()
    data = v.bytes_of(v.captured(c, count=4, tag=3))
    v.capturer_destroy(capturer=c)
    x = v.routing_deserialize(data=data, flags=0)["routing"]
    d = v.capturer()
    request = v.open(d)
    v.request_attach(capturer=d, request=request, routing=x, rows=3)
    v.step(d, (request, 1, 3, 3), tag=4)
    v.land(d)
    y = v.extract(d, request)
    v.routing_view(routing=y)
    v.routing_merge(routings=[y, x])
    v.routing_copy_to(routing=x, options={"dtype": I32}, dst_bytes=96)


def good_bytes():
    """Six rows of two layers in three runs: complete, partial with own tags, absent."""
    layers = [form.Layer(0, 8), form.Layer(5, 300, 1)]
    complete = [form.Row(((0, 1), (2, 299)), 4), form.Row(((7, 3), (1, 2)), 4)]
    rows = [*complete, form.Row(((4, 5), 2), 4), form.Row((3, (256, 8)), 9), None, None]
    return form.serialize(form.Routing(layers, 2, 0, 3, rows))


RUN_TABLE = 64 + 24
IDS = 64 + 128


def patched(data, offset, kind, value):
    return (
        data[:offset]
        + struct.pack("<" + kind, value)
        + data[offset + struct.calcsize("<" + kind) :]
    )


@topic.vector("bytes that are right, which others are made from")
def _(v):
    data = good_bytes()
    v.serialized_info(data=data)
    for flags in (0, TRUSTED):
        x = v.routing_deserialize(data=data, flags=flags, expect="INCOMPLETE")["routing"]
        v.routing_view(routing=x)
        v.routing_serialize(routing=x)


def damaged(v, offset, kind, value, in_info):
    data = patched(good_bytes(), offset, kind, value)
    v.routing_deserialize(data=data, flags=0, expect="ERR_FORMAT")
    v.routing_deserialize(data=data, flags=TRUSTED, expect="ERR_FORMAT")
    if in_info:
        v.serialized_info(data=data, expect="ERR_FORMAT")


for name, offset, kind, value, in_info in (
    ("the first letter", 0, "B", ord("r"), True),
    ("the last letter", 7, "B", 0, True),
    ("version 0", 8, "I", 0, True),
    ("version 2", 8, "I", 2, True),
    ("a reserved field", 12, "I", 1, True),
    ("fewer bytes than there are", 16, "Q", 320, False),
    ("more bytes than there are", 16, "Q", 2**40, False),
    ("a first row beyond positions", 24, "Q", 2**40 - 5, True),
    ("first and rows that wrap around", 24, "Q", 2**64 - 3, True),
    ("one row less than the runs have", 32, "Q", 5, False),
    ("one row more than the runs have", 32, "Q", 7, False),
    ("more rows than positions", 32, "Q", 2**63, True),
    ("no runs", 40, "Q", 0, False),
    ("one run more", 40, "Q", 4, False),
    ("runs without end", 40, "Q", 2**61, True),
    ("no layers", 48, "I", 0, True),
    ("more layers than there may be", 48, "I", 1025, True),
    ("another number of layers", 48, "I", 3, False),
    ("no experts per token", 52, "I", 0, True),
    ("more experts per token than there may be", 52, "I", 33, True),
    ("another number of experts per token", 52, "I", 1, False),
    ("8-bit ids of 300 experts", 56, "i", 1, False),
    ("32-bit ids", 56, "i", 4, True),
    ("an unknown id space", 60, "i", 2, True),
    ("layers that do not ascend", 64, "i", 5, False),
    ("a layer below 0", 64, "i", -1, False),
    ("a layer without experts", 68, "I", 0, False),
    ("a layer with fewer experts than are chosen", 68, "I", 1, False),
    ("a layer with too many experts", 80, "I", 32769, False),
    ("a layer with few experts for wide ids", 80, "I", 256, False),
    ("an unknown provenance", 72, "I", 2, False),
    ("a run without rows", RUN_TABLE, "Q", 0, False),
    ("a run of more rows", RUN_TABLE, "Q", 3, False),
    ("runs whose rows wrap around", RUN_TABLE, "Q", 2**64 - 2, False),
    ("an unknown flag of a run", RUN_TABLE + 16, "I", 9, False),
    ("a reason of rows that are there", RUN_TABLE + 20, "i", r.LOST, False),
    ("a reason of one cell for whole rows", RUN_TABLE + 48 + 20, "i", r.UNWRITTEN, False),
    ("ABSENT as a number other than 0", RUN_TABLE + 48 + 20, "i", r.ABSENT, False),
    ("an unknown reason", RUN_TABLE + 48 + 20, "i", max(r.BEST_FIRST) + 1, False),
    ("a reason below 0", RUN_TABLE + 48 + 20, "i", -5, False),
    ("an absent run with validity", RUN_TABLE + 48 + 16, "I", 2, False),
    ("an absent run with tags", RUN_TABLE + 48 + 16, "I", 4, False),
    ("a run with tags and a tag", RUN_TABLE + 24 + 8, "Q", 1, False),
    ("padding of the header", IDS - 1, "B", 1, False),
):
    topic.vector(f"bytes are refused: {name}", offset, kind, value, in_info)(damaged)


@topic.vector("bytes are refused: too few, too many, none")
def _(v):
    data = good_bytes()
    for piece in (data + b"\0", data[:-1], data[:IDS], data[:64]):
        v.routing_deserialize(data=piece, flags=0, expect="ERR_FORMAT")
        v.serialized_info(data=piece)
    for piece in (data[:63], data[:8], b""):
        v.routing_deserialize(data=piece, flags=0, expect="ERR_FORMAT")
        v.serialized_info(data=piece, expect="ERR_BUFFER_TOO_SMALL")


def wrong_id(v, at, value):
    data = patched(good_bytes(), IDS + 2 * at, "H", value)
    v.routing_deserialize(data=data, flags=0, expect="ERR_FORMAT")


for name, at, value in (
    ("out of its layer's range", 0, 8),
    ("out of range, as a negative number would be", 1, 0xFFFF),
    ("out of the wider layer's range", 2, 300),
    ("twice in a cell", 1, 0),
    ("out of range in a row with missing cells", 8, 8),
):
    topic.vector(f"bytes are refused: an id {name}", at, value)(wrong_id)


@topic.vector(
    "rows that are said to be present are looked for where they would be, unless they are trusted"
)
def _(v):
    data = patched(good_bytes(), RUN_TABLE + 48 + 16, "I", 1)  # two rows of zeros
    v.routing_deserialize(data=data, flags=0, expect="ERR_FORMAT")
    v.routing_deserialize(data=data, flags=TRUSTED, expect="INCOMPLETE")


@topic.vector("what a missing cell's ids say beyond its reason does not matter")
def _(v):
    data = good_bytes()
    for value in (1, 3, 4, 0, 5, 10, 11, 299, 0xFFFF):
        x = v.routing_deserialize(
            data=patched(data, IDS + 20, "H", value), flags=0, expect="INCOMPLETE"
        )["routing"]
        v.routing_coverage(routing=x, capacity=9, expect="INCOMPLETE")
        v.routing_serialize(routing=x)


@topic.vector(
    "rows that are not there are runs of one reason each, whether their memory says so or nothing"
    " does"
)
def _(v):
    def row(*cells):
        return form.Row(cells)

    rows = [
        row(r.LOST, r.LOST),
        row(r.LOST, r.LOST),
        row(r.TAKEN, r.TAKEN),
        None,
        row((0, 1), r.LOST),
        row(r.REFUSED, r.LOST),
        row(r.STALE, r.STALE),
    ]
    data = form.serialize(form.Routing([form.Layer(0, 8), form.Layer(5, 300, 1)], 2, 0, 3, rows))
    again(v, v.routing_deserialize(data=data, flags=0, expect="INCOMPLETE")["routing"])
    for run, reason in ((0, r.TAKEN), (0, 0), (2, r.EVICTED), (2, r.NOT_PUBLISHED)):
        again(
            v,
            v.routing_deserialize(
                data=patched(data, RUN_TABLE + 24 * run + 20, "i", reason),
                flags=0,
                expect="INCOMPLETE",
            )["routing"],
        )


@topic.vector("a run may be written where it is shorter than it could be, and is read all the same")
def _(v):
    c = v.capturer()
    rows = v.world.named[v.captured(c, count=4, tag=6)].rows
    routing = form.Routing(v.world.named[c].layers, 2, 0, 0, rows)
    ids = b"".join(bytes(cell) for row in rows for cell in row.cells)
    runs = [(1, 6, 1, 0), (2, 0, 5, 0), (1, 6, 3, 0)]
    head = form.header(routing, runs, 0)
    body = ids.ljust(64, b"\0") + struct.pack("<QQ", 6, 6).ljust(64, b"\0") + b"\7"
    x = v.routing_deserialize(
        data=form.header(routing, runs, len(head) + len(body)) + body, flags=0
    )["routing"]
    v.routing_view(routing=x)
    v.routing_serialize(routing=x)

"""Memory into which routers write: the library's and the engine's own."""

from model.capturer import EXTERNAL_SINK
from model.routing import I16, I32, I64, U8
from script import Topic

topic = Topic("sink")


def write(v, c, seed, count):
    """A forward pass whose routers write the sink themselves."""
    v.step_begin(capturer=c, rows=count)
    rows = v.rows(c, seed, 0, count)
    for layer in range(len(rows[0])):
        v.sink_write(
            capturer=c, layer=layer, first_row=0, ids=[i for row in rows for i in row[layer]]
        )
    v.step_snapshot(capturer=c)


def issue(v, c, count, seed=1):
    request = v.open(c)
    v.step_issue(
        capturer=c, spans=[{"request": request, "position": 0, "sink_row": 0, "rows": count}]
    )
    v.land(c)
    return request


def library_sink(v, dtype):
    c = v.capturer(sink_dtype=dtype)
    v.sink_layer(capturer=c, layer=1)
    write(v, c, 5, 6)
    v.expect_rows(c, issue(v, c, 6))


for dtype, bits in ((I16, 16), (I32, 32), (I64, 64)):
    topic.vector(f"a router writes the library's sink of {bits}-bit ids", dtype)(library_sink)


def bound(v, dtype, row_stride, layers_at_once):
    c = v.capturer()
    stride = row_stride or 2
    for first in range(0, 3, layers_at_once):
        sink = {
            "dtype": dtype,
            "rows": 10,
            "k": 2,
            "row_stride": row_stride,
            "ids": {
                "memory": f"m{first}",
                "elements": 10 * stride * layers_at_once + 3,
                "start": 3,
            },
        }
        v.sink_bind(capturer=c, first_layer=first, layers=layers_at_once, sink=sink)
    for layer in range(3):
        v.sink_layer(capturer=c, layer=layer)
    write(v, c, 6, 8)
    v.expect_rows(c, issue(v, c, 8))


for dtype, bits in ((I16, 16), (I32, 32), (I64, 64)):
    for stride in (0, 5):
        for at_once in (1, 3):
            name = (
                f"bound memory of {bits}-bit ids, {'wide' if stride else 'dense'} rows, {at_once}"
                " layers at a time"
            )
            topic.vector(name, dtype, stride, at_once)(bound)


@topic.vector("layers of bound memory may lie apart")
def _(v):
    c = v.capturer()
    sink = {
        "dtype": I32,
        "rows": 8,
        "k": 2,
        "layer_stride": 100,
        "ids": {"memory": "m", "elements": 300},
    }
    v.sink_bind(capturer=c, first_layer=0, layers=3, sink=sink)
    write(v, c, 7, 8)
    v.expect_rows(c, issue(v, c, 8))


@topic.vector("ids are recorded into bound memory too")
def _(v):
    c = v.capturer()
    sink = {"dtype": I64, "rows": 8, "k": 2, "ids": {"memory": "m", "elements": 48}}
    v.sink_bind(capturer=c, first_layer=0, layers=3, sink=sink)
    request = v.open(c)
    v.step(c, (request, 8, 0, 5))
    v.land(c)
    v.expect_rows(c, request)


@topic.vector("a capturer without a sink of its own records nothing until memory is bound")
def _(v):
    c = v.capturer(flags=EXTERNAL_SINK)
    v.sink_layer(capturer=c, layer=0)
    v.step_begin(capturer=c, rows=2)
    source = {"dtype": I32, "ids": [1, 2, 3, 4], "rows": 2}
    v.layer_record(capturer=c, layer=0, source=source, expect="ERR_STATE")
    v.layers_record(
        capturer=c,
        source={"dtype": I32, "rows": 2},
        layers=[{"layer": 1, "ids": [1, 2, 3, 4]}],
        expect="ERR_STATE",
    )


@topic.vector("layers that are not bound are missing, the others are there")
def _(v):
    c = v.capturer(flags=EXTERNAL_SINK)
    sink = {"dtype": I16, "rows": 8, "k": 2, "ids": {"memory": "m", "elements": 32}}
    v.sink_bind(capturer=c, first_layer=0, layers=2, sink=sink)
    v.step_begin(capturer=c, rows=3)
    rows = v.rows(c, 1, 0, 3)
    for layer in (0, 1):
        v.sink_write(
            capturer=c, layer=layer, first_row=0, ids=[i for row in rows for i in row[layer]]
        )
    v.step_snapshot(capturer=c)
    v.expect_rows(c, issue(v, c, 3), expect="INCOMPLETE")


SINK = {"dtype": I32, "rows": 8, "k": 2, "ids": {"memory": "m", "elements": 48}}


@topic.vector("the address of a layer never changes, but may be given again")
def _(v):
    c = v.capturer()
    v.sink_bind(capturer=c, first_layer=0, layers=3, sink=SINK)
    v.sink_bind(capturer=c, first_layer=0, layers=3, sink=SINK)
    v.sink_bind(
        capturer=c,
        first_layer=1,
        layers=1,
        sink=SINK | {"ids": {"memory": "m", "elements": 48, "start": 16}},
    )
    v.sink_bind(
        capturer=c,
        first_layer=0,
        layers=1,
        sink=SINK | {"ids": {"memory": "n", "elements": 16}},
        expect="ERR_STATE",
    )
    v.sink_layer(capturer=c, layer=2)


@topic.vector("an address that was given out is not replaced")
def _(v):
    c = v.capturer()
    v.sink_layer(capturer=c, layer=1)
    v.sink_bind(capturer=c, first_layer=0, layers=3, sink=SINK, expect="ERR_STATE")
    v.sink_bind(capturer=c, first_layer=0, layers=1, sink=SINK)


@topic.vector("after the first begin no memory is bound any more, but what is bound already")
def _(v):
    c = v.capturer()
    v.sink_bind(capturer=c, first_layer=0, layers=1, sink=SINK)
    v.step_begin(capturer=c, rows=1)
    v.sink_bind(capturer=c, first_layer=0, layers=1, sink=SINK)
    v.sink_bind(
        capturer=c,
        first_layer=1,
        layers=1,
        sink=SINK | {"ids": {"memory": "n", "elements": 16}},
        expect="ERR_STATE",
    )


def wrong(v, status, raw, first, layers, change):
    c = v.capturer()
    v.sink_bind(
        capturer=c, first_layer=first, layers=layers, sink=SINK | change, expect=status, raw=raw
    )


for name, status, raw, first, layers, change in (
    ("beyond the layers", "ERR_UNKNOWN_LAYER", False, 2, 2, {}),
    ("of a layer that does not exist", "ERR_UNKNOWN_LAYER", False, 3, 1, {}),
    ("with fewer rows than the capturer's", "ERR_SHAPE_MISMATCH", False, 0, 1, {"rows": 7}),
    ("with another k", "ERR_SHAPE_MISMATCH", False, 0, 1, {"k": 3}),
    ("with rows that overlap", "ERR_SHAPE_MISMATCH", True, 0, 1, {"row_stride": 1}),
    ("with layers that overlap", "ERR_SHAPE_MISMATCH", True, 0, 2, {"layer_stride": 8}),
    ("of 8-bit ids", "ERR_DTYPE", True, 0, 1, {"dtype": U8}),
    ("of no dtype", "ERR_DTYPE", True, 0, 1, {"dtype": 0}),
    ("without memory", "ERR_ARGUMENT", True, 0, 1, {"ids": None}),
):
    topic.vector(f"memory {name} is not bound", status, raw, first, layers, change)(wrong)


@topic.vector("a layer that does not exist has no address")
def _(v):
    c = v.capturer()
    v.sink_layer(capturer=c, layer=3, expect="ERR_UNKNOWN_LAYER")


@topic.vector("what a router wrote in an earlier step is never taken for this one's")
def _(v):
    c = v.capturer()
    write(v, c, 1, 6)
    v.expect_rows(c, issue(v, c, 6))
    v.step_begin(capturer=c, rows=6)
    v.sink_write(capturer=c, layer=1, first_row=2, ids=[3, 1])
    v.step_snapshot(capturer=c)
    request = v.open(c)
    v.step_issue(capturer=c, spans=[{"request": request, "position": 0, "sink_row": 0, "rows": 6}])
    v.land(c)
    v.expect_rows(c, request, expect="INCOMPLETE")

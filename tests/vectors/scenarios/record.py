"""Recording ids from every kind of source."""

from model.routing import I16, I32, I64, ID16_BF16, U8, U32
from script import Dice, Topic

topic = Topic("record")


def read(v, c, rows, expect="OK", first=0):
    """Issues rows `first` to `first + rows` of the forward, and looks at them and why some are
    missing.
    """
    request = v.open(c)
    v.step_snapshot(capturer=c)
    v.step_issue(
        capturer=c, spans=[{"request": request, "position": 0, "sink_row": first, "rows": rows}]
    )
    v.land(c)
    v.expect_rows(c, request, expect=expect)
    v.request_coverage(
        capturer=c,
        request=request,
        first=0,
        rows=rows,
        capacity=20,
        expect="OK" if expect == "OK" else "INCOMPLETE",
    )
    v.capturer_layer_stats(capturer=c, count=len(v.world.named[c].layers))
    v.capturer_stats(capturer=c)


def one_layer(v, source, begun=8, expect="OK", rows=None, config=None, **record):
    """A capturer of one layer, and one record."""
    c = v.capturer(**({"layers": 1} | (config or {})))
    v.step_begin(capturer=c, rows=begun)
    v.layer_record(capturer=c, layer=0, source=source, **record)
    read(v, c, begun if rows is None else rows, expect)


IDS = [5, 3, 0, 15, 14, 1, 2, 9, 7, 11, 8, 4, 6, 10, 12, 13]  # eight rows of two


def packed(ids):
    return [i << 16 | 0x3F80 + n for n, i in enumerate(ids)]


for dtype, name in ((I16, "int16"), (I32, "int32"), (U32, "uint32"), (I64, "int64")):
    topic.vector(f"ids of {name} are recorded", {"dtype": dtype, "ids": IDS, "rows": 8})(one_layer)
topic.vector(
    "ids packed with weights are recorded", {"dtype": ID16_BF16, "ids": packed(IDS), "rows": 8}
)(one_layer)


def spread(ids, rows, columns, row_stride, column_stride, start=0, size=None):
    """The ids of a matrix in memory, 99 in between."""
    memory = [99] * (size or start + (rows - 1) * row_stride + (columns - 1) * column_stride + 1)
    for row in range(rows):
        for column in range(columns):
            memory[start + row * row_stride + column * column_stride] = ids[row * columns + column]
    return memory


for dtype, name in ((I16, "int16"), (I32, "int32"), (I64, "int64"), (ID16_BF16, "packed ids")):
    make = packed if dtype == ID16_BF16 else list
    wide = {"dtype": dtype, "ids": spread(make(IDS), 8, 2, 5, 1), "rows": 8, "row_stride": 5}
    topic.vector(f"rows of {name} may lie apart", wide)(one_layer)
    turned = {
        "dtype": dtype,
        "ids": spread(make(IDS), 8, 2, 1, 8),
        "rows": 8,
        "row_stride": 1,
        "column_stride": 8,
    }
    topic.vector(f"a transposed matrix of {name} is recorded", turned)(one_layer)

topic.vector(
    "rows may lie in falling order",
    {
        "dtype": I32,
        "ids": spread(IDS, 8, 2, -2, 1, 14, 16),
        "rows": 8,
        "row_stride": -2,
        "ids_start": 14,
    },
)(one_layer)
topic.vector(
    "columns may lie in falling order",
    {
        "dtype": I32,
        "ids": spread(IDS, 8, 2, 2, -1, 1, 16),
        "rows": 8,
        "row_stride": 2,
        "column_stride": -1,
        "ids_start": 1,
    },
)(one_layer)
topic.vector("all rows may be one", {"dtype": I32, "ids": [4, 6], "rows": 1, "row_stride": 0}, 1)(
    one_layer
)
topic.vector(
    "of one row the stride does not matter",
    {"dtype": I32, "ids": [4, 6], "rows": 1, "row_stride": -7},
    1,
)(one_layer)

FUSED = [5, 3, 16, 0, 15, 16, 14, 1, 16, 2, 9, 16]
topic.vector(
    "columns beyond k are dropped", {"dtype": I32, "ids": FUSED, "rows": 4, "k_source": 3}, 4
)(one_layer)
topic.vector(
    "columns beyond k are dropped, rows apart",
    {"dtype": I64, "ids": spread(FUSED, 4, 3, 7, 1), "rows": 4, "k_source": 3, "row_stride": 7},
    4,
)(one_layer)

TABLE = [3, 2, 1, 0, 15, 14, 13, 12]
topic.vector(
    "an offset is added to every id",
    {"dtype": I32, "ids": [i + 100 for i in IDS], "rows": 8, "offset": -100},
)(one_layer)
topic.vector(
    "an offset may make ids of negative numbers",
    {"dtype": I32, "ids": [i - 16 for i in IDS], "rows": 8, "offset": 16},
)(one_layer)
topic.vector(
    "a table replaces ids", {"dtype": I32, "ids": [0, 1, 7, 4, 3, 5], "rows": 3, "table": TABLE}, 3
)(one_layer)
topic.vector(
    "a table comes before the offset",
    {
        "dtype": I16,
        "ids": [0, 1, 7, 4],
        "rows": 2,
        "table": [8, 9, 9, 9, 10, 9, 9, 11],
        "offset": -4,
    },
    2,
)(one_layer)
topic.vector(
    "an id outside the table is missing",
    {"dtype": I32, "ids": [0, 8, 7, -1, 3, 5], "rows": 3, "table": TABLE},
    3,
    "INCOMPLETE",
)(one_layer)
topic.vector(
    "an id outside the table stays missing whatever the offset",
    {"dtype": I32, "ids": [0, 99, 7, 1], "rows": 2, "table": TABLE, "offset": 2},
    2,
    "INCOMPLETE",
)(one_layer)
topic.vector(
    "a table that gives negative ids makes them missing",
    {"dtype": I32, "ids": [0, 1, 2, 3], "rows": 2, "table": [4, -1, 5, 6]},
    2,
    "INCOMPLETE",
)(one_layer)

for name, dtype, ids in (
    ("an id equal to the number of experts is missing", I32, [0, 16, 1, 2]),
    ("a negative id is missing", I32, [0, -1, 1, 2]),
    ("the lowest 16-bit number is missing", I16, [0, -32768, 1, 2]),
    ("the lowest 32-bit number is missing", I32, [0, -(2**31), 1, 2]),
    ("the highest 32-bit number is missing", I32, [0, 2**31 - 1, 1, 2]),
    ("a 64-bit id does not wrap into the range", I64, [0, 2**32 + 3, 1, 2]),
    ("a negative 64-bit id does not wrap into the range", I64, [0, -(2**32) + 3, 1, 2]),
    ("a 64-bit id with its highest bit does not wrap into the range", I64, [0, -(2**63) + 3, 1, 2]),
    ("an unsigned id does not wrap into the range", U32, [0, 2**32 - 1, 1, 2]),
    ("an unsigned id beyond 16 bits does not wrap into the range", U32, [0, 2**16 + 3, 1, 2]),
    ("a packed id out of range is missing", ID16_BF16, [0, 0x0010_3F80, 1 << 16, 2 << 16]),
    ("a packed id with its highest bit is missing", ID16_BF16, [0, 0xFFFF_3F80, 1 << 16, 2 << 16]),
    ("one id twice is missing", I32, [3, 3, 1, 2]),
):
    topic.vector(name, {"dtype": dtype, "ids": ids, "rows": 2}, 2, "INCOMPLETE")(one_layer)

topic.vector(
    "an offset does not wrap a large id into the range",
    {"dtype": I32, "ids": [2**31 - 1, 1, 2, 3], "rows": 2, "offset": 2**31 - 1},
    2,
    "NOT_CAPTURED",
)(one_layer)
topic.vector(
    "with 257 experts the id 256 is one",
    {"dtype": I32, "ids": [256, 0, 257, 1], "rows": 2},
    2,
    "INCOMPLETE",
    None,
    {"experts": 257},
)(one_layer)


@topic.vector("each layer has its own range of ids")
def _(v):
    c = v.capturer(layer_experts=[4, 8, 16])
    v.step_begin(capturer=c, rows=3)
    v.record(c, [[[3, 0]] * 3, [[7, 4]] * 3, [[15, 8]] * 3])
    read(v, c, 3, "INCOMPLETE")


@topic.vector("a row that is missing for each reason says which")
def _(v):
    c = v.capturer(layers=9)
    v.step_begin(capturer=c, rows=4)
    rows = v.rows(c, 2, 0, 4)
    rows[1][3], rows[1][4], rows[2][8], rows[3][0] = [16, 0], [5, 5], [-1, 0], [7, 7]
    v.record(c, rows, layers=[0, 1, 3, 4, 5, 8])
    read(v, c, 4, "INCOMPLETE")


@topic.vector("ids out of range count before ids that are there twice")
def _(v):
    c = v.capturer(k=3, layers=1)
    v.step_begin(capturer=c, rows=1)
    v.record(c, [[[20, 4, 4]]])
    read(v, c, 1, "NOT_CAPTURED")


# ---- Where rows go

topic.vector(
    "rows go to the sink row that is named",
    {"dtype": I32, "ids": IDS[:6], "rows": 3, "first_row": 4},
    8,
    "INCOMPLETE",
)(one_layer)
topic.vector(
    "a base is added to the first row",
    {"dtype": I32, "ids": IDS[:6], "rows": 3, "first_row": 1, "row_base": 2},
    8,
    "INCOMPLETE",
)(one_layer)
topic.vector(
    "a base beyond the rows begun drops rows",
    {"dtype": I32, "ids": IDS[:6], "rows": 3, "first_row": 1, "row_base": 6},
    8,
    "INCOMPLETE",
)(one_layer)
topic.vector(
    "only live rows are recorded",
    {"dtype": I32, "ids": IDS, "rows": 8, "live_rows": 3},
    8,
    "INCOMPLETE",
)(one_layer)
topic.vector(
    "no live rows record nothing",
    {"dtype": I32, "ids": IDS, "rows": 8, "live_rows": 0},
    8,
    "NOT_CAPTURED",
)(one_layer)
topic.vector(
    "a negative number of live rows is none",
    {"dtype": I32, "ids": IDS, "rows": 8, "live_rows": -4},
    8,
    "NOT_CAPTURED",
)(one_layer)
topic.vector(
    "more live rows than rows are all rows", {"dtype": I32, "ids": IDS, "rows": 8, "live_rows": 100}
)(one_layer)
topic.vector(
    "rows go where an index says",
    {"dtype": I32, "ids": IDS[:8], "rows": 4, "row_index": [6, 0, 3, 1]},
    8,
    "INCOMPLETE",
)(one_layer)
topic.vector(
    "rows with a negative index go nowhere",
    {"dtype": I32, "ids": IDS[:8], "rows": 4, "row_index": [-1, 0, -5, 1]},
    8,
    "INCOMPLETE",
)(one_layer)
topic.vector(
    "with an index the first row is not looked at",
    {"dtype": I32, "ids": IDS[:8], "rows": 4, "first_row": 3, "row_index": [0, 1, 2, 3]},
    4,
)(one_layer)
topic.vector(
    "an index and live rows",
    {"dtype": I64, "ids": IDS[:8], "rows": 4, "row_index": [7, 6, 5, 4], "live_rows": 2},
    8,
    "INCOMPLETE",
)(one_layer)
topic.vector(
    "rows beyond those begun are dropped and counted", {"dtype": I32, "ids": IDS, "rows": 8}, 5
)(one_layer)
topic.vector(
    "rows that an index sends beyond those begun are dropped and counted",
    {"dtype": I32, "ids": IDS[:6], "rows": 3, "row_index": [0, 7, 4]},
    4,
    "INCOMPLETE",
)(one_layer)
topic.vector(
    "the flag for overlapping launches changes nothing on the host",
    {"dtype": I32, "ids": IDS, "rows": 8, "flags": 1},
)(one_layer)
topic.vector("no rows may be recorded", {"dtype": I32, "ids": [], "rows": 0}, 3, "NOT_CAPTURED")(
    one_layer
)


@topic.vector("micro-batches record disjoint rows of a layer")
def _(v):
    c = v.capturer(layers=1)
    v.step_begin(capturer=c, rows=8)
    for first, count in ((5, 3), (0, 2), (2, 3)):
        v.layer_record(
            capturer=c,
            layer=0,
            source={
                "dtype": I32,
                "ids": IDS[2 * first : 2 * (first + count)],
                "rows": count,
                "first_row": first,
            },
        )
    read(v, c, 8)


@topic.vector("a row recorded twice is a conflict, and nothing of the second is written")
def _(v):
    c = v.capturer(layers=1)
    v.step_begin(capturer=c, rows=8)
    v.layer_record(capturer=c, layer=0, source={"dtype": I32, "ids": IDS[:8], "rows": 4})
    v.layer_record(
        capturer=c,
        layer=0,
        source={"dtype": I32, "ids": [1, 2] * 4, "rows": 4, "first_row": 3},
        expect="ERR_CONFLICT",
    )
    read(v, c, 8, "INCOMPLETE")


def recorded_again(v, again):
    c = v.capturer(layers=1)
    v.step_begin(capturer=c, rows=6)
    v.layer_record(capturer=c, layer=0, source={"dtype": I32, "ids": IDS[:8], "rows": 4})
    v.layer_record(capturer=c, layer=0, source={"dtype": I32, "ids": [1, 2] * 4, "rows": 4} | again)
    request = v.open(c)
    v.step_snapshot(capturer=c)
    v.step_issue(capturer=c, spans=[{"request": request, "position": 0, "sink_row": 0, "rows": 6}])
    v.step_finalize(capturer=c, step=1, timeout_ns=0)
    v.extract(c, request)
    v.routing_view(routing="x1")
    v.capturer_stats(capturer=c)


for name, again in (
    ("an index", {"row_index": [5, 2, 4, 3]}),
    ("live rows", {"first_row": 2, "live_rows": 4}),
    ("a base", {"row_base": 2}),
):
    topic.vector(
        f"of a row recorded again through {name} the first is kept, and cells are counted", again
    )(recorded_again)


@topic.vector("the first recording is kept even if it is not valid")
def _(v):
    c = v.capturer(layers=1)
    v.step_begin(capturer=c, rows=2)
    v.layer_record(capturer=c, layer=0, source={"dtype": I32, "ids": [3, 3, 1, 99], "rows": 2})
    v.layer_record(
        capturer=c,
        layer=0,
        source={"dtype": I32, "ids": [1, 2, 3, 4], "rows": 2, "row_index": [0, 1]},
    )
    read(v, c, 2, "NOT_CAPTURED")


@topic.vector("after a new begin rows may be recorded again")
def _(v):
    c = v.capturer(layers=1)
    for ids in ([1, 2], [3, 4]):
        v.step_begin(capturer=c, rows=1)
        v.layer_record(capturer=c, layer=0, source={"dtype": I32, "ids": ids, "rows": 1})
    read(v, c, 1)


# ---- Many layers at once


@topic.vector("all layers are recorded in one call, each with its own table")
def _(v):
    c = v.capturer()
    v.step_begin(capturer=c, rows=2)
    layers = [
        {"layer": layer, "ids": [0, 1, 2, 3], "table": [(layer * 5 + i) % 16 for i in range(4)]}
        for layer in (2, 0, 1)
    ]
    v.layers_record(capturer=c, source={"dtype": I16, "rows": 2}, layers=layers)
    read(v, c, 2)


@topic.vector("what layers have in common is said once")
def _(v):
    c = v.capturer()
    v.step_begin(capturer=c, rows=6)
    source = {
        "dtype": I64,
        "rows": 3,
        "row_stride": 4,
        "k_source": 3,
        "offset": 1,
        "first_row": 2,
        "live_rows": 2,
    }
    v.layers_record(
        capturer=c,
        source=source,
        layers=[{"layer": layer, "ids": list(range(layer, layer + 12))} for layer in range(3)],
    )
    read(v, c, 6, "INCOMPLETE")


@topic.vector("a hundred layers are recorded in one call")
def _(v):
    c = v.capturer(layers=100, k=1, experts=128)
    v.step_begin(capturer=c, rows=1)
    v.layers_record(
        capturer=c,
        source={"dtype": I32, "rows": 1},
        layers=[{"layer": layer, "ids": [127 - layer]} for layer in range(100)],
    )
    read(v, c, 1)


@topic.vector("no layers may be recorded at once")
def _(v):
    c = v.capturer()
    v.step_begin(capturer=c, rows=1)
    v.layers_record(capturer=c, source={"dtype": I32, "rows": 1}, layers=[])
    read(v, c, 1, "NOT_CAPTURED")


@topic.vector("if one of several layers is refused none is recorded")
def _(v):
    c = v.capturer()
    v.step_begin(capturer=c, rows=2)
    one = {"ids": [1, 2, 3, 4]}
    v.record(c, [[[5, 6]] * 3], layers=[1])
    source = {"dtype": I32, "rows": 2}
    v.layers_record(
        capturer=c,
        source=source,
        layers=[one | {"layer": 0}, one | {"layer": 3}],
        expect="ERR_UNKNOWN_LAYER",
    )
    v.layers_record(
        capturer=c,
        source=source,
        layers=[one | {"layer": 0}, one | {"layer": 1}],
        expect="ERR_CONFLICT",
    )
    v.layers_record(
        capturer=c,
        source=source,
        layers=[one | {"layer": 0}, one | {"layer": 0}],
        expect="ERR_ARGUMENT",
    )
    read(v, c, 2, "INCOMPLETE")


# ---- Refusals


def wrong(v, source, status, raw, layer):
    c = v.capturer()
    v.step_begin(capturer=c, rows=4)
    v.layer_record(
        capturer=c,
        layer=layer,
        source={"dtype": I32, "ids": IDS, "rows": 4} | source,
        expect=status,
        raw=raw,
    )
    read(v, c, 4, "NOT_CAPTURED")


for name, source, status, raw, layer in (
    ("8-bit ids", {"dtype": U8}, "ERR_DTYPE", True, 0),
    ("16-bit unsigned ids", {"dtype": 3}, "ERR_DTYPE", True, 0),
    ("logits", {"dtype": 16}, "ERR_DTYPE", True, 0),
    ("an unknown dtype", {"dtype": 42}, "ERR_DTYPE", True, 0),
    ("fewer columns than k", {"k_source": 1}, "ERR_SHAPE_MISMATCH", False, 0),
    ("rows outside the sink", {"rows": 4, "first_row": 5}, "ERR_CAPACITY", False, 0),
    ("a first row outside the sink", {"rows": 1, "first_row": 8}, "ERR_CAPACITY", False, 0),
    ("unknown flags", {"flags": 2}, "ERR_ARGUMENT", True, 0),
):
    topic.vector(f"a source is refused: {name}", source, status, raw, layer)(wrong)
topic.vector("a layer that does not exist is not recorded", {}, "ERR_UNKNOWN_LAYER", False, 3)(
    wrong
)


def at_random(v, seed):
    """Sources of any kind, in one capturer."""
    dice = Dice(seed)
    k, experts = 1 + dice.below(4), dice.pick([5, 16, 200, 300])
    c = v.capturer(layers=1, k=k, experts=experts, rows=12)
    for _ in range(4):
        begun = 1 + dice.below(12)
        v.step_begin(capturer=c, rows=begun)
        rows, columns = 1 + dice.below(6), k + dice.below(3)
        dtype = dice.pick([I16, I32, U32, I64, ID16_BF16])
        ids = [i for _ in range(rows) for i in dice.sample(experts, k) + [experts] * (columns - k)]
        if dice.below(3) == 0:
            ids[dice.below(len(ids))] = experts + dice.below(20)
        source = {"dtype": dtype, "rows": rows, "k_source": columns}
        if dice.below(3) == 0:
            source["offset"] = offset = dice.below(9)
            ids = [i + offset for i in ids]
            source["offset"] = -offset
        ids = packed(ids) if dtype == ID16_BF16 else ids
        if dice.below(2):
            stride, between = columns + dice.below(4), 1
        else:
            stride, between = 1, rows + dice.below(3)
        source |= {
            "ids": spread(ids, rows, columns, stride, between),
            "row_stride": stride,
            "column_stride": between,
        }
        match dice.below(4):
            case 0:
                source["first_row"] = dice.below(12 - rows + 1)
            case 1:
                source |= {"first_row": dice.below(12 - rows + 1), "row_base": dice.below(4)}
            case 2:
                source["row_index"] = dice.sample(12, rows)
            case 3:
                source["live_rows"] = dice.below(rows + 2)
        v.layer_record(capturer=c, layer=0, source=source)
        request = v.open(c)
        v.step_snapshot(capturer=c)
        v.step_issue(
            capturer=c, spans=[{"request": request, "position": 0, "sink_row": 0, "rows": 12}]
        )
        v.land(c)
        v.expect_rows(c, request, expect=None)
    v.capturer_stats(capturer=c)


for seed in range(1, 9):
    topic.vector(f"sources of any kind, drawn with seed {seed}", seed)(at_random)

"""Ids in the caller's memory, in any type and layout."""

from model.routing import ALL, I16, I32, I64, U8, U16, U32
from script import Topic

topic = Topic("copying")
FAULTS = [(1, 0, [3, 3]), (1, 1, [3, 3]), (4, 2, [-1, 5])]

SIZES = {U8: 1, I16: 2, U16: 2, I32: 4, U32: 4, I64: 8}
NAMES = {U8: "uint8", I16: "int16", U16: "uint16", I32: "int32", U32: "uint32", I64: "int64"}


def copy(v, options, elements, mask, expect, config=None, faults=None):
    """Copies a routing of five rows and, the same way, the request."""
    c = v.capturer(**(config or {}))
    request = v.open(c)
    v.step(c, (request, 1, 0, 5), faults=FAULTS if faults is None else faults)
    v.land(c)
    buffers = (
        {} if elements is None else {"dst_bytes": elements * SIZES.get(options.get("dtype"), 4)}
    )
    buffers |= {} if mask is None else {"mask_bytes": mask}
    raw = expect in ("ERR_ARGUMENT", "ERR_DTYPE", "ERR_BUFFER_TOO_SMALL")
    v.request_extract_into(
        capturer=c,
        request=request,
        first=0,
        rows=ALL,
        options=options,
        expect=expect,
        raw=raw,
        **buffers,
    )
    v.extract(c, request, expect=None)
    v.routing_copy_to(routing="x1", options=options, expect=expect, raw=raw, **buffers)


for dtype in SIZES:
    for order, name in ((0, "rows"), (1, "layers")):
        topic.vector(
            f"ids are copied as {NAMES[dtype]}, {name} first, with a mask",
            {"dtype": dtype, "order": order},
            30,
            15,
            "INCOMPLETE",
        )(copy)

for name, options, elements, mask, expect in (
    ("without a mask", {"dtype": I32}, 30, None, "INCOMPLETE"),
    ("another fill", {"dtype": I16, "fill": -7}, 30, None, "INCOMPLETE"),
    ("a fill beyond the ids", {"dtype": U8, "fill": 255}, 30, None, "INCOMPLETE"),
    ("a fill that is an id, with a mask", {"dtype": I32, "fill": 5}, 30, 15, "INCOMPLETE"),
    ("the largest fill", {"dtype": I64, "fill": 2**63 - 1}, 30, None, "INCOMPLETE"),
    ("the lowest fill", {"dtype": I64, "fill": -(2**63)}, 30, None, "INCOMPLETE"),
    ("more room than is needed", {"dtype": I32}, 33, 17, "INCOMPLETE"),
    ("one layer", {"dtype": I32, "first_layer": 1, "layers": 1}, 10, 5, "INCOMPLETE"),
    ("the layers from one on", {"dtype": I32, "first_layer": 1}, 20, 10, "INCOMPLETE"),
    (
        "layers without a missing cell, strictly",
        {"dtype": I32, "first_layer": 2, "layers": 1, "flags": 1},
        10,
        5,
        "ERR_INCOMPLETE",
    ),
    ("rows apart", {"dtype": I32, "row_stride": 8}, 40, None, "INCOMPLETE"),
    ("layers apart", {"dtype": I16, "row_stride": 9, "layer_stride": 3}, 45, None, "INCOMPLETE"),
    (
        "rows and layers apart",
        {"dtype": I32, "row_stride": 10, "layer_stride": 3},
        50,
        15,
        "INCOMPLETE",
    ),
    ("layers first, apart", {"dtype": I64, "order": 1, "layer_stride": 12}, 36, 15, "INCOMPLETE"),
    (
        "layers first, rows apart",
        {"dtype": I64, "order": 1, "row_stride": 3, "layer_stride": 15},
        45,
        15,
        "INCOMPLETE",
    ),
    (
        "one layer of an array of all",
        {"dtype": I32, "first_layer": 2, "layers": 1, "row_stride": 6},
        26,
        None,
        "INCOMPLETE",
    ),
    (
        "no fill that fits is needed with strict reading of complete layers",
        {"dtype": U8, "flags": 1, "fill": 0, "first_layer": 2, "layers": 1},
        10,
        None,
        "ERR_INCOMPLETE",
    ),
):
    topic.vector(f"ids are copied: {name}", options, elements, mask, expect)(copy)

for name, options, elements, mask, expect in (
    ("dst is too small", {"dtype": I32}, 29, 15, "ERR_BUFFER_TOO_SMALL"),
    ("the mask is too small", {"dtype": I32}, 30, 14, "ERR_BUFFER_TOO_SMALL"),
    ("only the size is asked for", {"dtype": I64}, None, None, "ERR_BUFFER_TOO_SMALL"),
    ("a fill that is an id needs a mask", {"dtype": I32, "fill": 5}, 30, None, "ERR_ARGUMENT"),
    ("a fill that does not fit", {"dtype": I16, "fill": 40000}, 30, None, "ERR_DTYPE"),
    ("a fill that does not fit into 8 bits", {"dtype": U8, "fill": 256}, 30, 15, "ERR_DTYPE"),
    ("rows that overlap", {"dtype": I32, "row_stride": 5}, 40, None, "ERR_ARGUMENT"),
    ("layers that overlap", {"dtype": I32, "layer_stride": 1}, 40, None, "ERR_ARGUMENT"),
    ("layers apart in dense rows", {"dtype": I32, "layer_stride": 3}, 45, None, "ERR_ARGUMENT"),
    ("an unknown order", {"dtype": I32, "order": 2}, 30, None, "ERR_ARGUMENT"),
    ("no dtype", {"dtype": 0}, 30, None, "ERR_DTYPE"),
    ("a dtype of sources only", {"dtype": 7}, 30, None, "ERR_DTYPE"),
    (
        "layers that do not exist",
        {"dtype": I32, "first_layer": 2, "layers": 2},
        30,
        None,
        "ERR_UNKNOWN_LAYER",
    ),
    (
        "a first layer that does not exist",
        {"dtype": I32, "first_layer": 3},
        30,
        None,
        "ERR_UNKNOWN_LAYER",
    ),
    ("unknown flags", {"dtype": I32, "flags": 4}, 30, None, "ERR_ARGUMENT"),
    ("strict reading of missing cells", {"dtype": I32, "flags": 1}, 30, None, "ERR_INCOMPLETE"),
):
    topic.vector(f"no ids are copied: {name}", options, elements, mask, expect)(copy)

topic.vector(
    "complete rows are copied strictly with any fill",
    {"dtype": U8, "flags": 1, "fill": 0},
    30,
    None,
    "OK",
    None,
    (),
)(copy)
topic.vector(
    "257 experts do not fit into 8 bits", {"dtype": U8}, 30, 15, "ERR_DTYPE", {"experts": 257}, ()
)(copy)
topic.vector(
    "with 256 experts and 8 bits every fill is an id",
    {"dtype": U8},
    30,
    None,
    "ERR_ARGUMENT",
    {"experts": 256},
    (),
)(copy)
topic.vector(
    "256 experts are copied as 8 bits with a mask",
    {"dtype": U8},
    30,
    15,
    "INCOMPLETE",
    {"experts": 256},
)(copy)
topic.vector(
    "300 experts are copied as 16 bits", {"dtype": I16}, 30, None, "INCOMPLETE", {"experts": 300}
)(copy)


@topic.vector("parts of a request are copied, also what has landed only")
def _(v):
    c = v.capturer()
    request = v.open(c)
    v.step(c, (request, 1, 0, 4))
    v.land(c)
    v.step(c, (request, 1, 4, 2))
    into = {"capturer": c, "request": request, "options": {"dtype": I32}}
    v.request_extract_into(first=1, rows=2, dst_bytes=48, **into)
    v.request_extract_into(first=1, rows=2**64 - 2, dst_bytes=72, **into)
    v.request_extract_into(first=4, rows=0, **into)
    v.request_extract_into(first=0, rows=ALL, dst_bytes=144, expect="ERR_NOT_READY", **into)
    v.request_extract_into(first=0, rows=7, dst_bytes=168, expect="ERR_OUT_OF_RANGE", **into)


@topic.vector("missing rows are copied as fill")
def _(v):
    c = v.capturer()
    request = v.open(c)
    v.step(c, (request, 1, 3, 2))
    v.land(c)
    into = {"capturer": c, "request": request, "options": {"dtype": I16}}
    v.request_extract_into(
        first=0, rows=3, dst_bytes=36, mask_bytes=9, expect="NOT_CAPTURED", **into
    )
    v.request_extract_into(
        first=1, rows=4, dst_bytes=48, mask_bytes=12, expect="INCOMPLETE", **into
    )

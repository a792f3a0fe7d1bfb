"""What only C can do: struct sizes, NULL, values of no type.

Only the replayer in C++ runs this file.
"""

from model.routing import ALL, I32
from script import SHAPE, Topic

topic = Topic("abi")
SIZES = {
    "config": 88,
    "memory": 56,
    "stats": 216,
    "backend": 24,
    "sink": 40,
    "source": 88,
    "router": 56,
    "logits": 96,
    "received": 104,
    "issue_options": 32,
    "coverage": 80,
    "copy_options": 48,
    "view": 96,
    "serialized": 56,
    "splice": 24,
}
CONFIG = {"backend": 1, "flags": 4} | SHAPE
SOURCE = {"dtype": I32, "ids": [1, 2], "rows": 1}


def sized(v, call, struct, argument, given, status):
    """A struct that the caller fills: too small, larger with a zero tail, larger with another one."""
    size = SIZES[struct]
    v.told(call, "ERR_STRUCT_SIZE", **given | {argument: given[argument] | {"size": size - 4}})
    v.told(call, "ERR_STRUCT_SIZE", **given | {argument: given[argument] | {"size": 0}})
    v.told(
        call,
        "ERR_STRUCT_SIZE",
        **given | {argument: given[argument] | {"size": size + 8, "tail": 1}},
    )
    v.told(call, status, **given | {argument: given[argument] | {"size": size + 8}})


@topic.vector("a configuration may be newer if what is not known is zero")
def _(v):
    sized(v, "config_memory", "config", "config", {"config": CONFIG}, "OK")
    for change, status in (
        ({"size": 84}, "ERR_STRUCT_SIZE"),
        ({"size": 96, "tail": 1}, "ERR_STRUCT_SIZE"),
    ):
        v.told("capturer_create", status, config=CONFIG | change)
    v.told("capturer_create", "OK", {"capturer": "newer"}, config=CONFIG | {"size": 96})


def begun(v):
    c = v.capturer(layer_provenance=[1, 0, 0])
    request = v.open(c)
    v.step_begin(capturer=c, rows=2)
    return c, request


@topic.vector("structs of the forward path may be newer if what is not known is zero")
def _(v):
    c, request = begun(v)
    sized(
        v, "layer_record", "source", "source", {"capturer": c, "layer": 1, "source": SOURCE}, "OK"
    )
    several = {
        "capturer": c,
        "source": {"dtype": I32, "rows": 1, "first_row": 1},
        "layers": [{"layer": 1, "ids": [1, 2]}],
    }
    sized(v, "layers_record", "source", "source", several, "OK")
    routed = {
        "capturer": c,
        "layer": 0,
        "router": {"score": 0},
        "logits": {"dtype": 16, "rows": 1, "logits": [1.0] * 16},
    }
    sized(v, "layer_route", "router", "router", routed, "OK")
    routed["logits"] = routed["logits"] | {"first_row": 1}
    sized(v, "layer_route", "logits", "logits", routed, "OK")
    dispatched = {"ranks": 1, "rank": 0, "tokens_per_rank": 1, "rows": 0, "dtype": I32}
    sized(
        v,
        "received_read",
        "received",
        "received",
        {"capturer": c, "layer": 0, "received": dispatched},
        "OK",
    )
    issue = {"capturer": c, "spans": [{"request": request, "rows": 1}], "options": {"tag": 1}}
    sized(v, "step_issue", "issue_options", "options", issue, "OK")
    bind = {"dtype": I32, "rows": 8, "k": 2, "ids": {"memory": "m", "elements": 16}}
    for change in ({"size": 36}, {"size": 48, "tail": 1}):
        v.told(
            "sink_bind", "ERR_STRUCT_SIZE", capturer=c, first_layer=2, layers=1, sink=bind | change
        )


@topic.vector("structs of reading may be newer if what is not known is zero")
def _(v):
    c = v.capturer()
    x = v.captured(c)
    request = v.open(c)
    copy = {"dtype": I32}
    sized(
        v,
        "routing_copy_to",
        "copy_options",
        "options",
        {"routing": x, "options": copy, "dst_bytes": 96},
        "OK",
    )
    into = {
        "capturer": c,
        "request": request,
        "first": 0,
        "rows": ALL,
        "options": copy,
        "dst_bytes": 96,
    }
    sized(v, "request_extract_into", "copy_options", "options", into, "OK")
    for change in ({"size": 4}, {"size": 16, "tail": 1}):
        v.told(
            "request_open", "ERR_STRUCT_SIZE", capturer=c, count=1, options={"policy": 1} | change
        )
    view = {
        "dtype": 1,
        "layers": 1,
        "k": 1,
        "experts": 4,
        "rows": 1,
        "segments": [{"rows": 1, "ids": [3]}],
    }
    for change, status in (
        ({"size": 92}, "ERR_STRUCT_SIZE"),
        ({"size": 104, "tail": 1}, "ERR_STRUCT_SIZE"),
    ):
        v.told("routing_import", status, view=view | change, flags=0)
    v.told("routing_import", "OK", {"routing": "newer"}, view=view | {"size": 104}, flags=0)
    v.told("routing_import", "ERR_STRUCT_SIZE", view=view | {"segment_size": 40}, flags=0)


def filled(v, call, struct, argument, given):
    """A struct that the library fills: too small, and larger, whose tail becomes zero."""
    for size in (0, 4, SIZES[struct] - 8):
        v.told(call, "ERR_STRUCT_SIZE", **given | {argument: {"size": size}})
    v.told(call, "OK", **given | {argument: {"size": SIZES[struct] + 24, "tail": 1}})


@topic.vector("structs that the library fills may be newer")
def _(v):
    c = v.capturer()
    x = v.captured(c)
    request = v.open(c)
    data = v.routing_serialize(routing=x)["dst"]
    filled(v, "backend_info", "backend", "info", {"backend": 1})
    filled(v, "config_memory", "memory", "memory", {"config": CONFIG})
    filled(v, "capturer_stats", "stats", "stats", {"capturer": c})
    filled(v, "sink_layer", "sink", "sink", {"capturer": c, "layer": 0})
    filled(v, "routing_view", "view", "view", {"routing": x})
    filled(v, "routing_coverage", "coverage", "coverage", {"routing": x, "capacity": 0})
    filled(
        v,
        "request_coverage",
        "coverage",
        "coverage",
        {"capturer": c, "request": request, "first": 0, "rows": ALL, "capacity": 0},
    )
    filled(v, "serialized_info", "serialized", "info", {"data": data})
    for size in (0, 4, SIZES["splice"] - 8):
        v.told(
            "serialized_splice",
            "ERR_STRUCT_SIZE",
            head=data,
            tail=data,
            row=1,
            capacity=1000,
            splice={"size": size},
        )
    for call, size in (("config_init", 88), ("router_init", 56), ("copy_options_init", 48)):
        method = {"method": 1} if call == "router_init" else {}
        for wrong in (0, 4, size - 8):
            v.told(call, "ERR_STRUCT_SIZE", struct_size=wrong, **method)


@topic.vector("elements of arrays may be newer if what is not known is zero, and are never smaller")
def _(v):
    c, request = begun(v)
    v.step_snapshot(capturer=c)
    spans = [
        {"request": request, "rows": 1},
        {"request": request, "position": 1, "sink_row": 1, "rows": 1},
    ]
    for change in ({"span_size": 32}, {"span_size": 0}, {"span_size": 48, "span_tail": 1}):
        v.told("step_issue", "ERR_STRUCT_SIZE", capturer=c, spans=spans, **change)
    v.told(
        "step_issue",
        "OK",
        {"status": ["ROUTECAP_OK"] * 2, "step": 1},
        capturer=c,
        spans=spans,
        span_size=48,
    )
    v.told("capturer_progress", "OK", capturer=c)
    v.told("capturer_layer_stats", "ERR_STRUCT_SIZE", capturer=c, count=3, stat_size=32)
    v.told("capturer_layer_stats", "OK", capturer=c, count=3, stat_size=64)
    stale = {"request": 99, "step": 1}
    v.told("request_accept_batch", "ERR_STRUCT_SIZE", capturer=c, items=[stale], item_size=32)
    v.told(
        "request_accept_batch",
        "PARTIAL",
        {"status": ["ROUTECAP_ERR_UNKNOWN_REQUEST"] * 2},
        capturer=c,
        items=[stale] * 2,
        item_size=56,
    )
    item = {"request": request, "first": 0, "rows": 1, "mode": 0, "flags": 0}
    v.told("request_extract_batch", "ERR_STRUCT_SIZE", capturer=c, items=[item], item_size=40)
    extracted = {"status": ["ROUTECAP_NOT_CAPTURED"] * 2, "routings": ["one", "two"]}
    v.told(
        "request_extract_batch", "PARTIAL", extracted, capturer=c, items=[item] * 2, item_size=64
    )
    v.told(
        "request_finish_batch",
        "ERR_STRUCT_SIZE",
        capturer=c,
        items=[{"request": request, "rows": 2}],
        item_size=24,
    )
    v.told(
        "request_coverage",
        "ERR_STRUCT_SIZE",
        capturer=c,
        request=request,
        first=0,
        rows=2,
        capacity=2,
        missing_size=24,
    )
    blocks = [{"first": 0, "rows": 2, "first_layer": 0, "layers": 3, "reason": 2, "reserved": 0}]
    v.told(
        "request_coverage",
        "INCOMPLETE",
        {"coverage": {"blocks": 1}, "missing": blocks},
        capturer=c,
        request=request,
        first=0,
        rows=2,
        capacity=2,
        missing_size=48,
    )
    v.told(
        "request_finish_batch",
        "OK",
        {"status": ["ROUTECAP_OK"], "routings": ["three"]},
        capturer=c,
        items=[{"request": request, "rows": 2}],
        item_size=40,
    )


@topic.vector("layers of a record may be newer if what is not known is zero")
def _(v):
    c, _ = begun(v)
    record = {
        "capturer": c,
        "source": {"dtype": I32, "rows": 1},
        "layers": [{"layer": 0, "ids": [1, 2]}, {"layer": 2, "ids": [3, 4]}],
    }
    v.told("layers_record", "ERR_STRUCT_SIZE", layer_size=16, **record)
    v.told("layers_record", "OK", layer_size=40, **record)
    v.told("capturer_probe", "ERR_STRUCT_SIZE", capturer=c, rows=1, count=3, layer_size=24)
    v.told("capturer_probe", "PARTIAL", capturer=c, rows=1, count=3, layer_size=40)


@topic.vector("counts of the load are all there is room for, or none")
def _(v):
    c = v.capturer(flags=32)
    v.told("capturer_load", "ERR_BUFFER_TOO_SMALL", capturer=c, count=95)
    v.told("capturer_load", "ERR_BUFFER_TOO_SMALL", capturer=c, count=97)
    v.told("capturer_load", "OK", {"load": {"layers": 3, "experts": 16}}, capturer=c, count=0)


def null(v, call, names, **given):
    for name in names:
        v.told(call, "ERR_ARGUMENT", null=[name], **given)


@topic.vector("NULL is refused where the library reads or writes")
def _(v):
    c, request = begun(v)
    copy = {"options": {"dtype": I32}}
    null(v, "backend_info", ["info"], backend=1)
    null(v, "config_init", ["config"])
    null(v, "config_memory", ["config", "memory"], config=CONFIG)
    null(v, "capturer_create", ["config", "capturer"], config=CONFIG)
    null(v, "capturer_stats", ["stats"], capturer=c)
    null(v, "capturer_layer_stats", ["stats"], capturer=c, count=1)
    null(v, "capturer_load", ["load", "counts"], capturer=v.capturer(flags=32), count=96)
    null(v, "capturer_load_tags", ["tags", "count"], capturer=v.capturer(flags=96), capacity=1)
    null(v, "sink_bind", ["sink"], capturer=c, first_layer=0, layers=1, sink={})
    null(v, "sink_layer", ["sink"], capturer=c, layer=0)
    null(v, "layer_record", ["source"], capturer=c, layer=0, source=SOURCE)
    null(
        v,
        "layers_record",
        ["source", "layers"],
        capturer=c,
        source={"dtype": I32, "rows": 1},
        layers=[{"layer": 0, "ids": [1, 2]}],
    )
    null(v, "router_init", ["router"], method=1)
    null(
        v,
        "layer_route",
        ["router", "logits"],
        capturer=c,
        layer=0,
        router={},
        logits={"dtype": 16, "rows": 1, "logits": [1.0] * 16},
    )
    null(v, "capturer_probe", ["layers"], capturer=c, rows=1, count=1)
    null(v, "received_read", ["received"], capturer=c, layer=0, received={})
    null(v, "step_issue", ["spans"], capturer=c, spans=[{"request": request, "rows": 1}])
    null(v, "request_open", ["requests"], capturer=c, count=1)
    null(v, "request_accept_batch", ["items"], capturer=c, items=[{"request": request}])
    null(v, "request_fork", ["child"], capturer=c, request=request, rows=0)
    null(
        v,
        "request_coverage",
        ["coverage", "missing"],
        capturer=c,
        request=request,
        first=0,
        rows=0,
        capacity=1,
    )
    null(
        v,
        "request_extract",
        ["routing"],
        capturer=c,
        request=request,
        first=0,
        rows=0,
        mode=0,
        flags=0,
    )
    null(v, "request_extract_batch", ["items"], capturer=c, items=[{"request": request}])
    null(v, "copy_options_init", ["options"])
    null(
        v, "request_extract_into", ["options"], capturer=c, request=request, first=0, rows=0, **copy
    )
    null(v, "request_finish", ["routing"], capturer=c, request=request, rows=0)
    null(v, "request_finish_batch", ["items"], capturer=c, items=[{"request": request}])
    null(v, "request_close_batch", ["requests"], capturer=c, requests=[request])


@topic.vector("NULL is refused in place of a routing, its outputs and its bytes")
def _(v):
    c = v.capturer()
    x = v.captured(c)
    data = v.routing_serialize(routing=x)["dst"]
    for call, given in (
        ("routing_wait", {"timeout_ns": 0}),
        ("routing_poll", {}),
        ("routing_view", {}),
        ("routing_coverage", {"capacity": 0}),
        ("routing_split", {"prompt_tokens": 0, "generated_tokens": 0}),
        ("routing_slice", {"first": 0, "rows": 0}),
        ("routing_copy_to", {"options": {"dtype": I32}}),
        ("routing_retain", {}),
        ("routing_serialize", {"dst_bytes": 8}),
    ):
        v.told(call, "ERR_ARGUMENT", routing=None, **given)
    null(v, "routing_view", ["view"], routing=x)
    null(v, "routing_coverage", ["coverage", "missing"], routing=x, capacity=1)
    null(v, "routing_split", ["prompt"], routing=x, prompt_tokens=0, generated_tokens=0)
    null(v, "routing_slice", ["slice"], routing=x, first=0, rows=0)
    null(v, "routing_merge", ["routings"], routings=[x])
    null(v, "routing_copy_to", ["options"], routing=x, options={"dtype": I32})
    null(v, "routing_deserialize", ["data", "routing"], data=data, flags=0)
    null(v, "routing_import", ["view"], view={"segments": []}, flags=0)
    null(v, "serialized_info", ["data", "info"], data=data)
    v.routing_free(routing=None)


@topic.vector("NULL is refused in place of a capturer, and may be destroyed")
def _(v):
    for call, given in (
        ("capturer_stats", {}),
        ("capturer_layer_stats", {"count": 0}),
        ("capturer_load", {"count": 0}),
        ("capturer_load_tags", {"capacity": 0}),
        ("capturer_progress", {}),
        ("sink_layer", {"layer": 0}),
        ("layer_record", {"layer": 0, "source": SOURCE}),
        ("capturer_probe", {"rows": 0, "count": 0}),
        ("step_begin", {"rows": 0}),
        ("step_snapshot", {}),
        ("step_issue", {"spans": []}),
        ("step_discard", {}),
        ("step_poll", {"step": 1}),
        ("step_finalize", {"step": 1, "timeout_ns": 0}),
        ("request_open", {"count": 1}),
        ("request_accept", {"request": 1, "step": 1, "count": 0}),
        ("request_accept_batch", {"items": []}),
        ("request_truncate", {"request": 1, "rows": 0}),
        ("request_fork", {"request": 1, "rows": 0}),
        ("request_coverage", {"request": 1, "first": 0, "rows": 0, "capacity": 0}),
        ("request_extract", {"request": 1, "first": 0, "rows": 0, "mode": 0, "flags": 0}),
        ("request_extract_batch", {"items": []}),
        ("request_extract_into", {"request": 1, "first": 0, "rows": 0, "options": {"dtype": I32}}),
        ("request_finish", {"request": 1, "rows": 0}),
        ("request_finish_batch", {"items": []}),
        ("request_close", {"request": 1}),
        ("request_close_batch", {"requests": []}),
    ):
        v.told(call, "ERR_ARGUMENT", capturer=None, **given)
    v.capturer_destroy(capturer=None)


@topic.vector("the host backend has no streams")
def _(v):
    c, request = begun(v)
    stream = {"capturer": c, "stream": 1}
    v.told("step_begin", "ERR_ARGUMENT", rows=1, **stream)
    v.told("layer_record", "ERR_ARGUMENT", layer=0, source=SOURCE, **stream)
    v.told(
        "layers_record",
        "ERR_ARGUMENT",
        source={"dtype": I32, "rows": 1},
        layers=[{"layer": 0, "ids": [1, 2]}],
        **stream,
    )
    v.told(
        "layer_route",
        "ERR_ARGUMENT",
        layer=0,
        router={"score": 0},
        logits={"dtype": 16, "rows": 1, "logits": [1.0] * 16},
        **stream,
    )
    v.told("capturer_probe", "ERR_ARGUMENT", rows=1, count=1, **stream)
    v.told("step_snapshot", "ERR_ARGUMENT", **stream)
    v.told("step_issue", "ERR_ARGUMENT", spans=[], **stream)
    v.told("step_discard", "ERR_ARGUMENT", **stream)

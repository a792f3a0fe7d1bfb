"""What a warm-up forward shows of its taps."""

from model.routing import I32
from script import Topic

topic = Topic("probes")


def probe(v, layers, begun, rows, expect, config=None):
    """layers: the ids of each layer's rows, or None if its tap does not fire."""
    c = v.capturer(**({"layers": len(layers)} | (config or {})))
    v.step_begin(capturer=c, rows=begun)
    for layer, ids in enumerate(layers):
        if ids is not None:
            v.layer_record(
                capturer=c, layer=layer, source={"dtype": I32, "ids": ids, "rows": len(ids) // 2}
            )
    v.capturer_probe(capturer=c, rows=rows, count=len(layers), expect=expect)


A, B, C = [3, 1, 0, 7, 5, 2], [6, 4, 2, 9, 7, 0], [1, 0, 15, 3, 4, 8]
for name, layers, begun, rows, expect in (
    ("different tokens show nothing odd", [A, B, C], 3, 3, "OK"),
    ("a layer without ids is silent", [A, None, C], 3, 3, "PARTIAL"),
    ("a layer with some rows is incomplete", [A, B[:4], C], 3, 3, "PARTIAL"),
    ("ids out of range are found", [A, [6, 4, 16, 9, 7, -1], C], 3, 3, "PARTIAL"),
    ("one id twice is found", [A, [6, 6, 2, 9, 7, 7], C], 3, 3, "PARTIAL"),
    ("rows that are all 0, 1 are found", [A, [0, 1] * 3, C], 3, 3, "PARTIAL"),
    ("rows that are all the same are found", [A, [9, 4] * 3, C], 3, 3, "PARTIAL"),
    ("one buffer for two layers is found", [A, A, C], 3, 3, "PARTIAL"),
    ("rows of padding are not looked at", [A, B[:4], C], 3, 2, "OK"),
):
    topic.vector(f"a probe of a warm-up: {name}", layers, begun, rows, expect)(probe)


@topic.vector("a probe changes nothing, and may look at fewer layers")
def _(v):
    c = v.capturer()
    request = v.open(c)
    v.capturer_probe(capturer=c, rows=0, count=3, expect="ERR_STATE")
    v.step_begin(capturer=c, rows=3)
    v.record(c, v.rows(c, 1, 0, 3))
    v.capturer_probe(capturer=c, rows=3, count=2)
    v.capturer_probe(capturer=c, rows=4, count=2, expect="ERR_CAPACITY")
    v.capturer_probe(capturer=c, rows=3, count=4, expect="ERR_UNKNOWN_LAYER")
    v.step_snapshot(capturer=c)
    v.step_issue(capturer=c, spans=[{"request": request, "rows": 3}])
    v.capturer_probe(capturer=c, rows=1, count=3, expect="ERR_STATE")
    v.land(c)
    v.expect_rows(c, request)

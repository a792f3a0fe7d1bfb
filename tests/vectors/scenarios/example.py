"""The vector that README.md points to: most forms of a call, once each."""

from model.routing import ALL, I32, I64
from script import Topic

topic = Topic("example")


@topic.vector("a prompt of three tokens is captured but for one cell, and read in every form")
def _(v):
    c = v.capturer(layers=2, experts=8, rows=4)
    request = v.open(c)
    v.step_begin(capturer=c, rows=3)
    v.layer_record(capturer=c, layer=0, source={"dtype": I32, "ids": [3, 1, 0, 7, 5, 2], "rows": 3})
    v.layer_record(capturer=c, layer=1, source={"dtype": I64, "ids": [6, 4, 2, 8, 7, 0], "rows": 3})
    v.step_snapshot(capturer=c)
    span = {"request": request, "position": 0, "sink_row": 0, "rows": 3}
    v.step_issue(capturer=c, spans=[span], options={"tag": 9})
    v.step_poll(capturer=c, step=1, expect="PENDING")
    v.land(c)
    v.step_poll(capturer=c, step=1)
    v.extract(c, request, flags=1, expect="ERR_INCOMPLETE")
    x = v.extract(c, request, expect="INCOMPLETE")
    v.routing_view(routing=x)
    v.routing_coverage(routing=x, capacity=4, expect="INCOMPLETE")
    v.routing_copy_to(
        routing=x,
        options={"dtype": I32, "order": 1},
        dst_bytes=52,
        mask_bytes=6,
        expect="INCOMPLETE",
    )
    v.routing_copy_to(routing=x, options={"dtype": I32}, dst_bytes=4, expect="ERR_BUFFER_TOO_SMALL")
    v.routing_serialize(routing=x)
    y = v.request_finish(capturer=c, request=request, rows=ALL)["routing"]
    v.request_close(capturer=c, request=request, expect="ERR_UNKNOWN_REQUEST", raw=True)
    v.routing_wait(routing=y, timeout_ns=-1, expect="INCOMPLETE")

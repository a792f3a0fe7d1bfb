"""Two serialised routings put together on their headers."""

from scenarios.serialized import IDS, RUN_TABLE, good_bytes, patched
from script import Topic

topic = Topic("splices")


def splice(v, head, tail, row):
    x = v.serialized_splice(head=head, tail=tail, row=row)["routing"]
    v.routing_view(routing=x)
    v.routing_coverage(routing=x, capacity=9, expect=None)
    v.routing_serialize(routing=x)


def pair(v, head_rows, tail_rows, row, faults=(), config=None):
    c = v.capturer(**(config or {}))
    head = v.bytes_of(
        v.captured(
            c, seed=1, first=head_rows[0], count=head_rows[1], tag=1, faults=faults, expect=None
        )
    )
    tail = v.bytes_of(
        v.captured(
            c, seed=2, first=tail_rows[0], count=tail_rows[1], tag=2, faults=faults, expect=None
        )
    )
    splice(v, head, tail, row)


for name, head, tail, row in (
    ("where the first ends and the second begins", (0, 4), (4, 4), 4),
    ("where both have rows", (0, 6), (2, 6), 4),
    ("with rows between that neither has", (0, 3), (6, 2), 5),
    ("at the first row: only the second is left", (0, 4), (0, 4), 0),
    ("behind the last row: only the first is left", (0, 4), (0, 4), 4),
    ("behind the last row of both", (0, 4), (0, 4), 6),
    ("before the first row of both", (4, 2), (5, 2), 2),
    ("of a first that begins later", (3, 3), (6, 2), 6),
):
    topic.vector(f"two routings are spliced {name}", head, tail, row)(pair)
topic.vector(
    "two routings with missing cells are spliced",
    (0, 4),
    (2, 4),
    3,
    [(1, 0, [3, 3]), (2, 1, [4, 4])],
)(pair)
topic.vector(
    "two routings of nine layers with 16-bit ids are spliced",
    (0, 3),
    (3, 3),
    3,
    [(1, 8, [3, 3])],
    {"layers": 9, "experts": 400},
)(pair)


@topic.vector("a splice of many kinds of rows on both sides")
def _(v):
    c = v.capturer()
    parts = []
    for seed in (1, 2):
        request = v.open(c)
        for tag, first in enumerate((0, 2, 6, 8), 10 * seed):
            v.step(c, (request, seed, first, 2), tag=tag, faults=[(1, tag % 3, [5, 5])])
            v.land(c)
        parts.append(v.bytes_of(v.extract(c, request, expect="INCOMPLETE")))
    for row in range(0, 11):
        splice(v, parts[0], parts[1], row)


@topic.vector("a layer that is recomputed in one half is recomputed in the splice")
def _(v):
    a, b = v.capturer(layer_provenance=[1, 0, 0]), v.capturer(layer_provenance=[0, 0, 1])
    splice(v, v.bytes_of(v.captured(a)), v.bytes_of(v.captured(b)), 2)


def unlike(v, config):
    a, b = v.capturer(), v.capturer(**config)
    head, tail = v.bytes_of(v.captured(a)), v.bytes_of(v.captured(b))
    v.serialized_splice(head=head, tail=tail, row=2, expect="ERR_SHAPE_MISMATCH")


for name, config in (
    ("k", {"k": 3}),
    ("layers", {"layers": 2}),
    ("layer map", {"layer_map": [0, 1, 3]}),
    ("experts", {"experts": 17}),
    ("width of ids", {"experts": 300}),
    ("id space", {"id_space": 1}),
):
    topic.vector(f"routings of another {name} are not spliced", config)(unlike)


@topic.vector("damaged headers are not spliced")
def _(v):
    data = good_bytes()
    for bad in (
        data[:63],
        data[: IDS - 1],
        patched(data, 8, "I", 2),
        patched(data, RUN_TABLE, "Q", 3),
    ):
        v.serialized_splice(head=bad, tail=data, row=4, expect="ERR_FORMAT")
        v.serialized_splice(head=data, tail=bad, row=4, expect="ERR_FORMAT")

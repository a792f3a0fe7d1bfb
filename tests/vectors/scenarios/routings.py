"""Routings: divided, united, kept alive."""

from model.routing import ALL, I32
from script import Topic

topic = Topic("routings")
FAULTS = [(1, 0, [3, 3]), (1, 1, [3, 3]), (4, 2, [-1, 5])]


def view(v, *routings):
    for x in routings:
        v.routing_view(routing=x)


def split(v, first, prompt_tokens, generated_tokens):
    c = v.capturer()
    x = v.captured(c, first=first, count=8, tag=2, faults=FAULTS, expect="INCOMPLETE")
    parts = v.routing_split(
        routing=x, prompt_tokens=prompt_tokens, generated_tokens=generated_tokens
    )
    for part in parts.values():
        v.routing_view(routing=part)
        v.routing_poll(routing=part, expect=None)


for name, first, prompt, generated in (
    ("at the end of the prompt", 0, 3, ALL),
    ("with fewer generated tokens than rows", 0, 3, 2),
    ("without generated tokens", 0, 3, 0),
    ("at its beginning", 0, 0, ALL),
    ("at its end", 0, 8, ALL),
    ("beyond its end", 0, 100, ALL),
    ("before its first row", 5, 2, 3),
    ("within, although it begins later", 5, 9, 3),
):
    topic.vector(f"a routing is split {name}", first, prompt, generated)(split)


@topic.vector("rows of a routing are sliced, and keep their positions")
def _(v):
    c = v.capturer()
    x = v.captured(c, first=3, count=8, faults=FAULTS, expect="INCOMPLETE")
    for first, rows in ((3, 8), (3, ALL), (5, 2), (11, 0), (11, ALL), (10, ALL)):
        piece = v.routing_slice(routing=x, first=first, rows=rows)["slice"]
        view(v, piece)
        v.routing_coverage(routing=piece, capacity=9, expect=None)
    for first, rows in ((2, 1), (3, 9), (12, 0), (0, ALL), (5, 2**63)):
        v.routing_slice(routing=x, first=first, rows=rows, expect="ERR_OUT_OF_RANGE")


@topic.vector("a slice of a slice outlives both, and the capturer")
def _(v):
    c = v.capturer()
    x = v.captured(c, count=8, tag=3)
    piece = v.routing_slice(routing=x, first=2, rows=5)["slice"]
    smaller = v.routing_slice(routing=piece, first=4, rows=2)["slice"]
    v.routing_free(routing=x)
    v.routing_free(routing=piece)
    v.capturer_destroy(capturer=c)
    view(v, smaller)


@topic.vector("a routing lives as long as one of its references")
def _(v):
    c = v.capturer()
    x = v.captured(c)
    y = v.routing_retain(routing=x)["routing"]
    z = v.routing_retain(routing=y)["routing"]
    v.routing_free(routing=x)
    view(v, y)
    v.routing_free(routing=y)
    view(v, z)


def merge(v, *routings, expect="OK"):
    x = v.routing_merge(routings=list(routings), expect=expect).get("merged")
    if x is not None:
        view(v, x)
        v.routing_coverage(routing=x, capacity=9, expect="OK" if expect == "OK" else "INCOMPLETE")
    return x


@topic.vector("pieces of a sequence are united by their positions")
def _(v):
    c = v.capturer()
    pieces = [v.captured(c, first=first, count=3, tag=first) for first in (3, 0, 6)]
    merge(v, *pieces)
    merge(v, pieces[0], pieces[2])
    merge(v, pieces[1], pieces[2], expect="INCOMPLETE")


@topic.vector("one routing merged with nothing is itself")
def _(v):
    c = v.capturer()
    x = v.captured(c, first=2, count=3, tag=8, faults=[(1, 1, [4, 4])], expect="INCOMPLETE")
    merge(v, x, expect="INCOMPLETE")


@topic.vector("layers of pipeline stages are united by the layer map")
def _(v):
    first, second = (
        v.capturer(layers=2, layer_map=[1, 4]),
        v.capturer(layers=3, layer_map=[2, 3, 9]),
    )
    a, b = v.captured(first, seed=1, tag=1), v.captured(second, seed=2, tag=2)
    merge(v, a, b)
    merge(v, b, a)


@topic.vector("stages that hold different rows leave cells missing")
def _(v):
    first, second = v.capturer(layers=2, layer_map=[0, 1]), v.capturer(layers=1, layer_map=[2])
    a, b = v.captured(first, first=0, count=4, tag=1), v.captured(second, first=2, count=4, tag=2)
    merge(v, a, b, expect="INCOMPLETE")


@topic.vector("layers with different numbers of experts keep their own")
def _(v):
    first, second = (
        v.capturer(layers=1, experts=300, layer_map=[5]),
        v.capturer(layers=1, experts=8, layer_map=[2]),
    )
    merge(v, v.captured(first), v.captured(second))


@topic.vector("what one rank misses another has")
def _(v):
    c = v.capturer()
    a = v.captured(c, tag=1, faults=[(0, 0, [3, 3]), (2, 1, [9, 9])], expect="INCOMPLETE")
    b = v.captured(c, tag=2, faults=[(1, 0, [-1, 3]), (2, 2, [9, 9])], expect="INCOMPLETE")
    merge(v, a, b)


@topic.vector("equal sets of ids in another order are no conflict, and the first's order is kept")
def _(v):
    c = v.capturer()
    a = v.captured(c)
    rows = [[cell[::-1] for cell in row] for row in v.rows(c, 1, 0, 4)]
    b = v.captured(
        c, faults=[(row, layer, rows[row][layer]) for row in range(4) for layer in range(3)]
    )
    merge(v, a, b)


@topic.vector("different ids in one cell are a conflict")
def _(v):
    c = v.capturer()
    a, b = v.captured(c), v.captured(c, faults=[(2, 1, [0, 1])])
    v.routing_merge(routings=[a, b], expect="ERR_CONFLICT")


@topic.vector("a layer that is recomputed in one is recomputed in the result")
def _(v):
    first, second = v.capturer(layer_provenance=[0, 1, 0]), v.capturer(layer_provenance=[0, 0, 1])
    x = merge(v, v.captured(first), v.captured(second))
    v.routing_copy_to(
        routing=x, options={"dtype": I32, "flags": 1}, dst_bytes=96, expect="ERR_RECOMPUTED"
    )


@topic.vector("routings without rows take no part in the range")
def _(v):
    c = v.capturer()
    a = v.captured(c, first=2, count=3)
    nothing = v.routing_slice(routing=a, first=5, rows=0)["slice"]
    merge(v, nothing, a)


def mismatch(v, config):
    a, b = v.capturer(), v.capturer(**config)
    v.routing_merge(routings=[v.captured(a), v.captured(b)], expect="ERR_SHAPE_MISMATCH")


for name, config in (
    ("k", {"k": 3}),
    ("id space", {"id_space": 1}),
    ("experts of a layer", {"experts": 17}),
):
    topic.vector(f"routings of another {name} are not merged", config)(mismatch)


@topic.vector("of nothing there is no merge")
def _(v):
    v.told("routing_merge", "ERR_ARGUMENT", raw=True, routings=[])

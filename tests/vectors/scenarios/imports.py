"""Routings from arrays of any origin."""

from model import routing as r
from model.routing import I16, I32, U8
from script import Topic

topic = Topic("imports")
VIEW = {"dtype": U8, "layers": 2, "k": 2, "experts": 8, "first": 3, "rows": 4}
OF_ROWS = (r.LOST, r.REFUSED, r.TAKEN, r.STALE, r.EVICTED, r.NOT_PUBLISHED)
IDS = [0, 1, 2, 3, 7, 6, 5, 4, 1, 3, 5, 7, 2, 0, 6, 1]


def imported(v, change, expect="OK", flags=0, lent=0):
    view = VIEW | {"segments": [{"first": 3, "rows": 4, "ids": IDS, "tag": 5}]} | change
    x = v.routing_import(view=view, flags=flags, lent=lent, expect=expect)["routing"]
    v.routing_view(routing=x)
    v.routing_coverage(routing=x, capacity=8, expect=None)
    v.routing_serialize(routing=x)


def piece(first, rows, **rest):
    """A segment."""
    return {"first": first, "rows": rows, "ids": IDS[: 4 * rows]} | rest


for name, change, expect in (
    ("complete rows", {}, "OK"),
    ("no rows", {"rows": 0, "segments": []}, "OK"),
    ("no segments: all rows are missing", {"segments": []}, "NOT_CAPTURED"),
    (
        "a segment without ids: its rows are missing",
        {"segments": [piece(3, 1), {"first": 4, "rows": 3}]},
        "INCOMPLETE",
    ),
    (
        "a segment without ids and with a reason",
        {"segments": [piece(3, 1), {"first": 4, "rows": 2, "reason": r.LOST}]},
        "INCOMPLETE",
    ),
    (
        "a reason of every row",
        {
            "segments": [
                {"first": 3 + i, "rows": 1, "reason": reason}
                for i, reason in enumerate(OF_ROWS[:4])
            ]
        },
        "NOT_CAPTURED",
    ),
    (
        "rows that are ABSENT, said and unsaid",
        {"segments": [{"first": 3, "rows": 1, "reason": r.ABSENT}, piece(5, 1)]},
        "INCOMPLETE",
    ),
    (
        "segments with a gap between",
        {"segments": [piece(3, 1, tag=2), piece(6, 1, tag=3)]},
        "INCOMPLETE",
    ),
    (
        "segments that follow one another",
        {"segments": [piece(3, 2, tag=1), piece(5, 2, tag=1)]},
        "OK",
    ),
    ("tags of each row", {"segments": [piece(3, 4, tags=[4, 4, 2**64 - 3, 0])]}, "OK"),
    ("missing cells and reasons", {"segments": [piece(3, 4, validity=[3, 1, 0, 2])]}, "INCOMPLETE"),
    (
        "validity bytes that are named",
        {"validity_bytes": 1, "segments": [piece(3, 4, validity=[3, 3, 1, 3])]},
        "INCOMPLETE",
    ),
    ("a layer map", {"layer_map": [5, 9]}, "OK"),
    ("experts of each layer", {"layer_experts": [8, 9], "experts": 0}, "OK"),
    ("recomputed layers", {"layer_provenance": [0, 1]}, "OK"),
    ("ids of replicas", {"id_space": 1}, "OK"),
    ("16-bit ids", {"dtype": I16, "experts": 300}, "OK"),
    ("the widest of the layers decides", {"dtype": I16, "layer_experts": [8, 257]}, "OK"),
):
    topic.vector(f"a routing is made of arrays: {name}", change, expect)(imported)
    topic.vector(f"a routing is made of arrays that are lent: {name}", change, expect, 0, 1)(
        imported
    )

REASONS = [1, 1, 2, 3, 3, 0, 0, 1, 4, 4, 9, 9, 11, 0, 5, 2]
topic.vector(
    "the first id of a missing cell is its reason if it is one",
    {"segments": [{"first": 3, "rows": 4, "ids": REASONS, "validity": [2, 0, 0, 0]}]},
    "INCOMPLETE",
)(imported)
topic.vector(
    "negative 16-bit numbers may stand in missing cells",
    {
        "dtype": I16,
        "experts": 300,
        "rows": 1,
        "segments": [{"first": 3, "rows": 1, "ids": [-1, -1, 2, 3], "validity": [2]}],
    },
    "INCOMPLETE",
)(imported)


def wrong(v, change, status, flags):
    view = VIEW | {"segments": [{"first": 3, "rows": 4, "ids": IDS}]} | change
    v.routing_import(view=view, flags=flags, expect=status, raw=True)
    v.routing_import(view=view, flags=flags, lent=1, expect=status, raw=True)


for name, change, status in (
    ("no layers", {"layers": 0}, "ERR_ARGUMENT"),
    ("no experts per token", {"k": 0}, "ERR_ARGUMENT"),
    ("no experts", {"experts": 0}, "ERR_ARGUMENT"),
    ("fewer experts than are chosen", {"experts": 1}, "ERR_ARGUMENT"),
    ("too many experts", {"experts": 32769, "dtype": I16}, "ERR_ARGUMENT"),
    ("positions beyond the limit", {"first": 2**40 - 3, "segments": []}, "ERR_ARGUMENT"),
    ("positions that wrap around", {"first": 2**64 - 3, "segments": []}, "ERR_ARGUMENT"),
    ("an unknown id space", {"id_space": 2}, "ERR_ARGUMENT"),
    ("a layer map that does not ascend", {"layer_map": [4, 4]}, "ERR_ARGUMENT"),
    ("an unknown provenance", {"layer_provenance": [0, 2]}, "ERR_ARGUMENT"),
    ("16-bit ids of few experts", {"dtype": I16}, "ERR_DTYPE"),
    ("8-bit ids of many experts", {"experts": 257}, "ERR_DTYPE"),
    ("32-bit ids", {"dtype": I32}, "ERR_DTYPE"),
    ("another number of validity bytes", {"validity_bytes": 2}, "ERR_ARGUMENT"),
    ("a segment before the first row", {"segments": [piece(2, 2)]}, "ERR_ARGUMENT"),
    ("a segment beyond the last row", {"segments": [piece(5, 3)]}, "ERR_ARGUMENT"),
    ("segments in the wrong order", {"segments": [piece(5, 1), piece(3, 1)]}, "ERR_ARGUMENT"),
    ("segments that overlap", {"segments": [piece(3, 2), piece(4, 2)]}, "ERR_ARGUMENT"),
    (
        "an id out of range",
        {"segments": [{"first": 3, "rows": 1, "ids": [0, 1, 8, 3]}]},
        "ERR_FORMAT",
    ),
    ("an id twice", {"segments": [{"first": 3, "rows": 1, "ids": [0, 1, 3, 3]}]}, "ERR_FORMAT"),
    ("unknown flags", {"flags": 2}, "ERR_ARGUMENT"),
    ("a reason of rows that are there", {"segments": [piece(3, 1, reason=r.LOST)]}, "ERR_ARGUMENT"),
    (
        "ABSENT as the reason of rows that are there",
        {"segments": [piece(3, 1, reason=r.ABSENT)]},
        "ERR_ARGUMENT",
    ),
    (
        "a reason of one cell for whole rows",
        {"segments": [{"first": 3, "rows": 1, "reason": r.UNWRITTEN}]},
        "ERR_ARGUMENT",
    ),
    (
        "an unknown reason",
        {"segments": [{"first": 3, "rows": 1, "reason": max(r.BEST_FIRST) + 1}]},
        "ERR_ARGUMENT",
    ),
    (
        "a reserved field of a segment that is not 0",
        {"segments": [piece(3, 1, reserved=1)]},
        "ERR_ARGUMENT",
    ),
):
    topic.vector(f"arrays are refused: {name}", change, status, change.pop("flags", 0))(wrong)


@topic.vector("what a view shows is imported again")
def _(v):
    c = v.capturer()
    x = v.captured(c, count=5, tag=6, faults=[(1, 1, [3, 3]), (3, 0, [99, 3])], expect="INCOMPLETE")
    seen = v.routing_view(routing=x)["view"]
    reasons = {(1, 1): 4, (3, 0): 3}
    ids, validity = list(seen["ids"]), [7, 5, 7, 6, 7]
    for (row, layer), reason in reasons.items():
        at = (row * 3 + layer) * 2
        ids[at : at + 2] = [reason, 0]
    view = {
        "dtype": U8,
        "layers": 3,
        "k": 2,
        "experts": 16,
        "rows": 5,
        "segments": [{"first": 0, "rows": 5, "ids": ids, "validity": validity, "tag": 6}],
    }
    y = v.routing_import(view=view, flags=0, expect="INCOMPLETE")["routing"]
    v.routing_view(routing=y)
    v.routing_serialize(routing=x)
    v.routing_serialize(routing=y)
    v.routing_merge(routings=[x, y], expect="INCOMPLETE")

"""The serialised form, and routings from arrays of any origin."""

import struct

from . import routing as r
from .routing import Failure, Layer, Routing, Row, check

PRESENT, VALIDITY, TAGS = 1, 2, 4
TRUSTED = 1
FIXED = struct.Struct("<8sIIQQQQIIii")
LAYER, RUN = struct.Struct("<iIi"), struct.Struct("<QQII")


def up(n, unit):
    return (n + unit - 1) // unit * unit


def kind_of(row):
    """The flags of the run that a row is part of, but for TAGS, and its reason."""
    if row is None or row.reason() is not None:
        return 0, 0 if row is None or row.reason() == r.ABSENT else row.reason()
    return PRESENT if row.complete() else PRESENT | VALIDITY, 0


def header(routing, runs, total):
    """runs: (rows, tag, flags, reason)."""
    tables = b"".join(
        LAYER.pack(layer.index, layer.experts, layer.provenance) for layer in routing.layers
    )
    tables = tables.ljust(up(len(tables), 8), b"\0") + b"".join(RUN.pack(*run) for run in runs)
    size = up(FIXED.size + len(tables), 64)
    fixed = FIXED.pack(b"ROUTECAP", 1, 0, total, routing.first, len(routing.rows), len(runs), len(routing.layers), routing.k, routing.dtype,
                       routing.id_space)  # fmt: skip
    return (fixed + tables).ljust(size, b"\0")


def serialize(routing):
    routing.need_ready()
    runs = []
    for row in routing.rows:
        kind = kind_of(row)
        if not runs or runs[-1][0] != kind:
            runs.append((kind, []))
        runs[-1][1].append(row)
    table, ids, tags, validity = [], b"", b"", b""
    width = 1 if routing.dtype == r.U8 else 2
    for (flags, reason), rows in runs:
        tag = 0
        if flags:
            own = [row.tag for row in rows]
            if len(set(own)) > 1:
                flags |= TAGS
                tags += b"".join(struct.pack("<Q", t) for t in own)
            else:
                tag = own[0]
        table.append((len(rows), tag, flags, reason))
        for row in rows if flags else []:
            bits = 0
            for layer, cell in enumerate(row.cells):
                is_valid = isinstance(cell, tuple)
                bits |= is_valid << layer
                for i in cell if is_valid else (cell,) + (0,) * (routing.k - 1):
                    ids += i.to_bytes(width, "little")
            if flags & VALIDITY:
                validity += bits.to_bytes((len(row.cells) + 7) // 8, "little")
    head = header(routing, table, 0)
    body = b""
    for plane in (ids, tags, validity):
        body = body.ljust(up(len(body), 64), b"\0") + plane
    return header(routing, table, len(head) + len(body)) + body


def info(data):
    if len(data) < FIXED.size:
        raise Failure("ERR_BUFFER_TOO_SMALL")
    magic, version, reserved, size, first, rows, runs, layers, k, dtype, id_space = (
        FIXED.unpack_from(data)
    )
    good = (
        magic == b"ROUTECAP"
        and version == 1
        and reserved == 0
        and 1 <= layers <= r.MAX_LAYERS
        and 1 <= k <= r.MAX_K
    )
    good = (
        good
        and dtype in (r.U8, r.I16)
        and id_space in (0, 1)
        and first + rows <= r.MAX_POSITION
        and runs <= rows
    )
    header_bytes = up(FIXED.size + up(LAYER.size * layers, 8) + RUN.size * runs, 64)
    check(good and size >= header_bytes, "ERR_FORMAT")
    return {"version": version, "bytes": size, "header_bytes": header_bytes, "first": first, "rows": rows, "layers": layers, "k": k,
            "dtype": dtype, "id_space": id_space}  # fmt: skip


def parse_header(data):
    """Returns what info says, the layers and the runs; data is at least the header."""
    check(len(data) >= FIXED.size, "ERR_FORMAT")
    known = info(data)
    check(len(data) >= known["header_bytes"], "ERR_FORMAT")
    layers = [
        Layer(*LAYER.unpack_from(data, FIXED.size + LAYER.size * i)) for i in range(known["layers"])
    ]
    at = FIXED.size + up(LAYER.size * len(layers), 8)
    count = FIXED.unpack_from(data)[6]
    runs = [RUN.unpack_from(data, at + RUN.size * i) for i in range(count)]
    padding = (
        data[FIXED.size + LAYER.size * len(layers) : at]
        + data[at + RUN.size * count : known["header_bytes"]]
    )
    good = not any(padding) and sum(run[0] for run in runs) == known["rows"]
    good = (
        good and all(a.index < b.index for a, b in zip(layers, layers[1:])) and layers[0].index >= 0
    )
    good = good and all(
        known["k"] <= layer.experts <= r.MAX_EXPERTS and layer.provenance in (0, 1)
        for layer in layers
    )
    good = good and known["dtype"] == (
        r.U8 if max(layer.experts for layer in layers) <= 256 else r.I16
    )
    for rows, tag, flags, reason in runs:
        good = (
            good
            and rows > 0
            and flags & ~7 == 0
            and (reason == 0 or (flags == 0 and of_rows(reason) and reason != r.ABSENT))
        )
        good = (
            good and (flags & PRESENT or (flags == 0 and tag == 0)) and not (flags & TAGS and tag)
        )
    check(good, "ERR_FORMAT")
    return known, layers, runs


def of_rows(reason):
    return reason in r.BEST_FIRST and reason not in r.OF_CELLS


def plane_rows(runs, flag):
    return sum(rows for rows, _, flags, _ in runs if flags & flag)


def planes_of(known, runs):
    """Where the three planes begin, and the bytes of everything."""
    width = 1 if known["dtype"] == r.U8 else 2
    row_bytes = {
        PRESENT: known["layers"] * known["k"] * width,
        TAGS: 8,
        VALIDITY: (known["layers"] + 7) // 8,
    }
    starts, end = {}, known["header_bytes"]
    for flag in (PRESENT, TAGS, VALIDITY):
        starts[flag] = up(end, 64)
        end = starts[flag] + plane_rows(runs, flag) * row_bytes[flag]
    return starts, row_bytes, end


def cell_of(ids, claimed, experts, trusted):
    """A cell from outside: k ids and whether it is said to be valid."""
    if not claimed:
        return ids[0] if ids[0] in r.BEST_FIRST else r.UNWRITTEN
    cell = r.judge(ids, experts)
    check(trusted or isinstance(cell, tuple), "ERR_FORMAT")
    return tuple(ids)


def deserialize(data, flags):
    check(flags & ~TRUSTED == 0)
    known, layers, runs = parse_header(data)
    starts, row_bytes, end = planes_of(known, runs)
    check(end == known["bytes"] == len(data), "ERR_FORMAT")
    at, width, k = dict(starts), row_bytes[PRESENT] // known["layers"] // known["k"], known["k"]
    rows = []
    for count, tag, run, reason in runs:
        for _ in range(count):
            if not run & PRESENT:
                rows.append(Row((reason,) * len(layers)) if reason else None)
                continue
            bits = (1 << len(layers)) - 1
            if run & VALIDITY:
                bits = int.from_bytes(
                    data[at[VALIDITY] : at[VALIDITY] + row_bytes[VALIDITY]], "little"
                )
                check(bits < 1 << len(layers), "ERR_FORMAT")
                at[VALIDITY] += row_bytes[VALIDITY]
            if run & TAGS:
                tag = struct.unpack_from("<Q", data, at[TAGS])[0]
                at[TAGS] += 8
            cells = []
            for number, layer in enumerate(layers):
                start = at[PRESENT] + number * k * width
                ids = [
                    int.from_bytes(data[start + i * width : start + (i + 1) * width], "little")
                    for i in range(k)
                ]
                cells.append(cell_of(ids, bits >> number & 1, layer.experts, flags & TRUSTED))
            at[PRESENT] += row_bytes[PRESENT]
            rows.append(Row(tuple(cells), tag))
    gaps = [(starts[PRESENT] + plane_rows(runs, PRESENT) * row_bytes[PRESENT], starts[TAGS]),
            (starts[TAGS] + plane_rows(runs, TAGS) * row_bytes[TAGS], starts[VALIDITY])]  # fmt: skip
    check(not any(any(data[a:b]) for a, b in gaps), "ERR_FORMAT")
    return Routing(layers, k, known["id_space"], known["first"], rows)


def import_view(view, flags):
    """view: as the vectors have it, segments with flat ids and validity bytes, None for NULL."""
    view = {
        "id_space": 0,
        "first": 0,
        "rows": 0,
        "segments": [],
        "layer_map": None,
        "layer_experts": None,
        "layer_provenance": None,
    } | view
    check(flags & ~TRUSTED == 0)
    count, k = view["layers"], view["k"]
    check(1 <= count <= r.MAX_LAYERS and 1 <= k <= r.MAX_K and view["id_space"] in (0, 1))
    experts = view["layer_experts"] or [view.get("experts", 0)] * count
    check(all(k <= e <= r.MAX_EXPERTS for e in experts))
    order = view["layer_map"] or list(range(count))
    check(order[0] >= 0 and all(a < b for a, b in zip(order, order[1:])))
    provenance = view["layer_provenance"] or [0] * count
    check(all(p in (0, 1) for p in provenance))
    layers = [Layer(*layer) for layer in zip(order, experts, provenance)]
    routing = Routing(layers, k, view["id_space"], view["first"], [None] * view["rows"])
    check(view["first"] + view["rows"] <= r.MAX_POSITION)
    check(view["dtype"] == routing.dtype, "ERR_DTYPE")
    check(view.get("validity_bytes", 0) in (0, (count + 7) // 8))
    end = view["first"]
    for segment in view["segments"]:
        segment = {
            "ids": None,
            "validity": None,
            "tags": None,
            "tag": 0,
            "reason": 0,
            "reserved": 0,
        } | segment
        check(end <= segment["first"] and segment["first"] + segment["rows"] <= routing.end)
        check(
            segment["reserved"] == 0
            and (segment["reason"] == 0 or (segment["ids"] is None and of_rows(segment["reason"])))
        )
        end = segment["first"] + segment["rows"]
        for i in range(segment["rows"]):
            if segment["ids"] is None:
                routing.rows[segment["first"] + i - view["first"]] = Row(
                    (segment["reason"] or r.ABSENT,) * count
                )
                continue
            bits, wide = (1 << count) - 1, (count + 7) // 8
            if segment["validity"] is not None:
                bits = int.from_bytes(
                    bytes(segment["validity"][i * wide : (i + 1) * wide]), "little"
                )
            ids = segment["ids"][i * count * k : (i + 1) * count * k]
            cells = [
                cell_of(ids[n * k : (n + 1) * k], bits >> n & 1, experts[n], flags & TRUSTED)
                for n in range(count)
            ]
            tag = segment["tags"][i] if segment["tags"] is not None else segment["tag"]
            routing.rows[segment["first"] + i - view["first"]] = Row(tuple(cells), tag)
    return routing


def splice(head, tail, row):
    """Returns the routing that the result is; of the bytes only it is certain, because no tag is
    read.
    """
    parts = []
    for data in (head, tail):
        known, layers, _ = parse_header(data)
        parts.append((known, layers))
    (a, head_layers), (b, tail_layers) = parts
    check(a["k"] == b["k"] and a["id_space"] == b["id_space"], "ERR_SHAPE_MISMATCH")
    check(
        [(x.index, x.experts) for x in head_layers] == [(x.index, x.experts) for x in tail_layers],
        "ERR_SHAPE_MISMATCH",
    )
    layers = [
        Layer(x.index, x.experts, max(x.provenance, y.provenance))
        for x, y in zip(head_layers, tail_layers)
    ]
    first, end = min(a["first"], row), max(b["first"] + b["rows"], row)
    rows = [None] * (end - first)
    for data, low, high in ((head, 0, row), (tail, row, r.MAX_POSITION)):
        whole = deserialize(data, 0)
        for position, kept in enumerate(whole.rows, whole.first):
            if low <= position < high:
                rows[position - first] = kept
    return Routing(layers, a["k"], a["id_space"], first, rows)

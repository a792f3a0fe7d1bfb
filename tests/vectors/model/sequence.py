"""One conversation out of many calls: tokens, rows by position, and whose they are.

Everything is looked at token by token and cell by cell.
"""

import hashlib
import struct
from dataclasses import dataclass, field, replace

from . import routing as r
from . import serialized
from .routing import Layer, Routing, check, same_ids, unite

KEEP, NEWEST, EQUAL = 0, 1, 2
WITH_TOKENS = 1
BLOCK = 64
FIXED = struct.Struct("<8sIIQQQQQQ")
SPAN = struct.Struct("<QQQQII")
SUMS = (
    "tokens_cut",
    "rows_cut",
    "rows_overlap",
    "rows_differed",
    "rows_taken",
    "rows_boundary",
    "rows_filled",
    "rows_replaced",
    "rows_beyond",
)


def digests(tokens):
    """Of each block of tokens, and all before it."""
    made, digest = [], bytes(16)
    for first in range(0, len(tokens), BLOCK):
        block = tokens[first : first + BLOCK]
        packed = struct.pack(f"<{len(block)}i", *block)
        digest = hashlib.blake2b(digest + packed, digest_size=16).digest()
        made.append(digest)
    return made


@dataclass
class Sequence:
    layers: list
    k: int
    id_space: int
    tokens: list = field(default_factory=list)
    digests: list = None  # of tokens that are not known; `tokens` then are as many of None
    rows: dict = field(
        default_factory=dict
    )  # by position; that of the last token where it was cut there
    owners: dict = field(default_factory=dict)  # (call, tag, origin) of rows that are there
    sums: dict = field(
        default_factory=lambda: (
            {"call": 0, "tokens_common": 0, "first_differed": r.ALL} | dict.fromkeys(SUMS, 0)
        )
    )

    @property
    def seen(self):
        return max(len(self.tokens) - 1, 0)

    def copy(self):
        return replace(
            self,
            tokens=list(self.tokens),
            rows=dict(self.rows),
            owners=dict(self.owners),
            sums=dict(self.sums),
        )

    def routing(self, end=None):
        return Routing(
            self.layers,
            self.k,
            self.id_space,
            0,
            [self.rows.get(p) for p in range(self.seen if end is None else end)],
        )

    def missing(self):
        return sum(row is None or not row.complete() for row in self.routing().rows)

    def now(self):
        return {"tokens": len(self.tokens), "rows_missing": self.missing()}

    def cut(self, tokens):
        check(
            self.digests is None or tokens >= len(self.tokens) or tokens % BLOCK == 0, "ERR_STATE"
        )
        if tokens < len(self.tokens):
            self.drop(tokens)

    def drop(self, tokens):
        del self.tokens[tokens:]
        if self.digests is not None:
            self.digests = self.digests[: (tokens + BLOCK - 1) // BLOCK] or None
        self.rows = {p: row for p, row in self.rows.items() if p < tokens}
        self.owners = {p: owner for p, owner in self.owners.items() if p < tokens}

    def common(self, tokens, start):
        """How far the call's tokens are the sequence's."""
        end = start + len(tokens)
        if self.digests is not None:
            check(start == 0 and end >= len(self.tokens), "ERR_STATE")
            theirs = digests(tokens[: len(self.tokens)])
            same = [a == b for a, b in zip(theirs, self.digests)]
            return len(self.tokens) if all(same) else same.index(False) * BLOCK
        both = min(len(self.tokens), end)
        return next(
            (p for p in range(start, both) if self.tokens[p] != tokens[p - start]), max(both, start)
        )

    def append(self, tokens, start, routing, options):
        """Returns the sequence that it becomes, and the report."""
        get = {"policy": KEEP, "prompt_tokens": 0, "call": 0, "tag": 0, "origin": 0, "flags": 0} | (
            options or {}
        )
        policy, prompt, end = get["policy"], get["prompt_tokens"], start + len(tokens)
        check(policy in (KEEP, NEWEST, EQUAL) and get["flags"] == 0)
        check(
            start <= len(self.tokens) and end <= r.MAX_POSITION and prompt <= end,
            "ERR_OUT_OF_RANGE",
        )
        if routing is not None:
            routing.need_ready()
            shapes = [
                (s.k, s.id_space, [(layer.index, layer.experts) for layer in s.layers])
                for s in (self, routing)
            ]
            check(shapes[0] == shapes[1], "ERR_SHAPE_MISMATCH")
        common = self.common(tokens, start)
        kept = common if common < min(len(self.tokens), end) else len(self.tokens)
        check(kept == len(self.tokens) or policy != EQUAL, "ERR_CONFLICT")

        report = {
            "call": get["call"] or self.sums["call"] + 1,
            "tokens_common": common,
            "first_differed": r.ALL,
        } | dict.fromkeys(SUMS, 0)
        report["tokens_cut"] = len(self.tokens) - kept
        report["rows_cut"] = sum(p >= kept and row.any() for p, row in self.rows.items())
        made = self.copy()
        made.drop(kept)
        if made.digests is not None:
            made.tokens, made.digests = list(tokens[:kept]), None
        made.tokens += tokens[len(made.tokens) - start :] if end > len(made.tokens) else []
        if routing is not None:
            made.layers = [
                Layer(a.index, a.experts, max(a.provenance, b.provenance))
                for a, b in zip(self.layers, routing.layers)
            ]
            for position, row in enumerate(routing.rows, routing.first):
                if position >= max(end - 1, 0):
                    report["rows_beyond"] += 1
                    continue
                own = policy == KEEP and position + 1 == kept < end and 0 < prompt <= kept
                made.take(
                    position,
                    row,
                    policy == NEWEST or own,
                    kept,
                    (report["call"], get["tag"], get["origin"]),
                    report,
                )
        check(policy != EQUAL or report["rows_differed"] == 0, "ERR_CONFLICT")
        made.sums = {name: made.sums[name] + report[name] for name in SUMS} | {
            "call": max(made.sums["call"], report["call"]), "tokens_common": common,
            "first_differed": min(made.sums["first_differed"], report["first_differed"])}  # fmt: skip
        return made, report | made.now()

    def take(self, position, new, preferred, kept, owner, report):
        """A row of a call comes in."""
        old = self.rows.get(position)
        pairs = [(a, b) for a, b in zip(self.routing_cells(old), self.routing_cells(new))]
        both = [(a, b) for a, b in pairs if isinstance(a, tuple) and isinstance(b, tuple)]
        gain = any(isinstance(b, tuple) and not isinstance(a, tuple) for a, b in pairs)
        there = new is not None and new.any()
        report["rows_overlap"] += bool(both)
        if any(not same_ids(a, b) for a, b in both):
            report["rows_differed"] += 1
            report["first_differed"] = min(report["first_differed"], position)
        report["rows_taken"] += gain or (preferred and there)
        report["rows_boundary"] += gain and position + 1 == kept
        report["rows_filled"] += gain and position + 1 < kept
        report["rows_replaced"] += preferred and bool(both)
        row = unite(new, old) if preferred else unite(old, new)
        if row is not None:
            self.rows[position] = row
        if there and (preferred or old is None or not old.any()):
            self.owners[position] = owner

    def routing_cells(self, row):
        return row.cells if row is not None else (r.ABSENT,) * len(self.layers)

    def spans(self, end=None):
        spans = []
        for position in sorted(p for p in self.owners if end is None or p < end):
            owner = self.owners[position]
            if spans and spans[-1][0] + spans[-1][1] == position and spans[-1][2:] == list(owner):
                spans[-1][1] += 1
            else:
                spans.append([position, 1, *owner])
        return spans

    def serialize(self, flags):
        check(flags & ~WITH_TOKENS == 0)
        check(self.digests is None or not flags, "ERR_STATE")
        length = len(self.tokens)
        end = length if length > 0 and self.rows.get(length - 1) is not None else self.seen
        spans = b"".join(SPAN.pack(*span, 0) for span in self.spans())
        tokens = struct.pack(f"<{length}i", *self.tokens) if flags else b""
        tables = (
            spans
            + b"".join(self.digests if self.digests is not None else digests(self.tokens))
            + tokens
        )
        tables = tables.ljust(serialized.up(FIXED.size + len(tables), 64) - FIXED.size, b"\0")
        rows = serialized.serialize(self.routing(end))
        total = FIXED.size + len(tables) + len(rows)
        return (
            FIXED.pack(
                b"ROUTESEQ",
                1,
                flags,
                total,
                length,
                len(spans) // SPAN.size,
                self.sums["call"],
                0,
                0,
            )
            + tables
            + rows
        )


def deserialize(data):
    check(len(data) >= FIXED.size, "ERR_FORMAT")
    magic, version, flags, total, length, count, calls, *reserved = FIXED.unpack_from(data)
    check(
        magic == b"ROUTESEQ"
        and version == 1
        and flags & ~WITH_TOKENS == 0
        and total == len(data)
        and not any(reserved),
        "ERR_FORMAT",
    )
    blocks = (length + BLOCK - 1) // BLOCK
    at = FIXED.size + count * SPAN.size
    end = at + blocks * 16 + (length * 4 if flags else 0)
    check(
        serialized.up(end, 64) <= len(data) and not any(data[end : serialized.up(end, 64)]),
        "ERR_FORMAT",
    )
    spans = [SPAN.unpack_from(data, FIXED.size + i * SPAN.size) for i in range(count)]
    known = [data[at + i * 16 : at + i * 16 + 16] for i in range(blocks)]
    tokens = (
        list(struct.unpack_from(f"<{length}i", data, at + blocks * 16))
        if flags
        else [None] * length
    )
    check(not flags or digests(tokens) == known, "ERR_FORMAT")
    rows = serialized.deserialize(data[serialized.up(end, 64) :], 0)
    check(rows.first == 0 and rows.end in (max(length - 1, 0), length), "ERR_FORMAT")
    made = Sequence(
        rows.layers, rows.k, rows.id_space, tokens, None if flags or not length else known
    )
    made.rows = {p: row for p, row in enumerate(rows.rows) if row is not None}
    position = 0
    for first, n, call, tag, origin, reserved in spans:
        check(first >= position and n > 0 and 0 < call <= calls and reserved == 0, "ERR_FORMAT")
        made.owners |= {p: (call, tag, origin) for p in range(first, min(first + n, len(data)))}
        position = first + n
    check(set(made.owners) == {p for p, row in made.rows.items() if row.any()}, "ERR_FORMAT")
    made.sums["call"] = calls
    return made

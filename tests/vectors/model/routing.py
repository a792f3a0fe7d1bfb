"""Rows that were read out, and all that can be done with them: the part of the contract that needs
no capturer.
"""

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[3] / "include" / "generate"))
from headers import Headers

ALL = 2**64 - 1
LANDED = 2**64 - 2
MAX_POSITION = 2**40
MAX_LAYERS, MAX_K, MAX_EXPERTS = 1024, 32, 32768

# The reasons and the flags of a configuration, by their names in the header.
_HEADERS = Headers()
CONFIG = {
    each.name.removeprefix("ROUTECAP_CONFIG_"): each.value for each in _HEADERS.group("CONFIG_")
}
globals().update(
    {each.name.removeprefix("ROUTECAP_MISSING_"): each.value for each in _HEADERS.group("MISSING_")}
)
BEST_FIRST = tuple(globals()[name] for name in _HEADERS.reasons_best_first)
OF_CELLS = tuple(globals()[name] for name in _HEADERS.reasons_of_cells)  # the others are of rows
RECOMPUTED = 1
STRICT, ALLOW_RECOMPUTED = 1, 2
U8, I16, U16, I32, U32, I64, ID16_BF16 = 1, 2, 3, 4, 5, 6, 7
LAYER_MAJOR = 1
COPY_OPTIONS = {  # as copy_options_init has them
    "dtype": 0,
    "order": 0,
    "flags": 0,
    "first_layer": 0,
    "layers": 0,
    "row_stride": 0,
    "layer_stride": 0,
    "fill": -1,
}


class Failure(Exception):
    """A call that returns an error; `status` is its name without ROUTECAP_, `out` what is delivered
    all the same.
    """

    def __init__(self, status, **out):
        super().__init__(status)
        self.status, self.out = status, out


def check(condition, status="ERR_ARGUMENT"):
    if not condition:
        raise Failure(status)


@dataclass(frozen=True)
class Layer:
    index: int
    experts: int
    provenance: int = 0


@dataclass(frozen=True)
class Row:
    """One kept row: of each layer the ids, or the reason why they are missing (a number)."""

    cells: tuple
    tag: int = 0

    def valid(self):
        return [isinstance(cell, tuple) for cell in self.cells]

    def any(self):
        return any(self.valid())

    def complete(self):
        return all(self.valid())

    def reason(self):
        """Why the row is not there: the reason of all its cells, if it is one of whole rows; None
        if there is something of it.
        """
        first = self.cells[0]
        return (
            None
            if first in OF_CELLS or isinstance(first, tuple) or set(self.cells) != {first}
            else first
        )


def judge(ids, experts):
    """A cell of k ids, None where a column was not written: the ids, or why it is missing."""
    if any(i is None for i in ids):
        return UNWRITTEN
    if any(not 0 <= i < experts for i in ids):
        return OUT_OF_RANGE
    if len(set(ids)) < len(ids):
        return DUPLICATE
    return tuple(ids)


def better(mine, other):
    """Of two cells the valid one, or the first of two valid ones; of two reasons the one that
    stands first in the header's list.
    """
    if isinstance(mine, tuple) or isinstance(other, tuple):
        return mine if isinstance(mine, tuple) else other
    return min(mine, other, key=BEST_FIRST.index)


def unite(first, second):
    """Of two rows of one position, cell by cell. The tag is the least of those of its cells."""
    if first is None or second is None:
        return first or second
    fills = any(new and not old for old, new in zip(first.valid(), second.valid()))
    if first.any():
        tag = min(first.tag, second.tag) if fills else first.tag
    else:
        tag = first.tag if not second.any() and first.reason() is None else second.tag
    return Row(tuple(map(better, first.cells, second.cells)), tag)


def same_ids(a, b):
    return set(a) == set(b)


@dataclass
class Routing:
    layers: list
    k: int
    id_space: int
    first: int
    rows: list = field(default_factory=list)  # Row, or None: no row is kept
    ready: bool = True
    owner: object = None  # the capturer of a routing of finish while it is pending
    one_segment: bool = False  # of extract's copy
    page: object = None  # memory that it keeps

    @property
    def end(self):
        return self.first + len(self.rows)

    @property
    def most_experts(self):
        return max(layer.experts for layer in self.layers)

    @property
    def dtype(self):
        return U8 if self.most_experts <= 256 else I16

    def with_rows(self, first, rows):
        return Routing(self.layers, self.k, self.id_space, first, rows, page=self.page)

    def status(self):
        if all(row is not None and row.complete() for row in self.rows):
            return "OK"
        return (
            "INCOMPLETE"
            if any(row is not None and row.any() for row in self.rows)
            else "NOT_CAPTURED"
        )

    def need_ready(self):
        check(self.ready, "ERR_NOT_READY")

    def cells(self, row):
        return row.cells if row is not None else (ABSENT,) * len(self.layers)

    # ---- Reading

    def view(self):
        self.need_ready()
        ids, valid, tags = [], [], []
        for row in self.rows:
            for cell in self.cells(row):
                is_valid = isinstance(cell, tuple)
                ids += cell if is_valid else (-1,) * self.k
                valid.append(int(is_valid))
            tags.append(row.tag if row is not None and row.any() else 0)
        view = {
            "dtype": self.dtype, "layers": len(self.layers), "k": self.k, "experts": self.most_experts,
            "validity_bytes": (len(self.layers) + 7) // 8, "id_space": self.id_space, "complete": int(self.status() == "OK"),
            "first": self.first, "rows": len(self.rows), "layer_map": [layer.index for layer in self.layers],
            "layer_experts": [layer.experts for layer in self.layers], "layer_provenance": [layer.provenance for layer in self.layers],
            "ids": ids, "valid": valid, "tags": tags,
        }  # fmt: skip
        if self.one_segment:
            view["segment_count"] = 1
        return view

    def coverage(self, length, capacity):
        """Returns the struct and the blocks that fit."""
        self.need_ready()
        blocks = []
        previous, run = None, []
        for position, row in enumerate(self.rows, self.first):
            reasons = tuple(None if isinstance(cell, tuple) else cell for cell in self.cells(row))
            if reasons == previous:
                for block in run:
                    block["rows"] += 1
                continue
            previous, run = reasons, []
            for layer, reason in enumerate(reasons):
                if reason is None:
                    continue
                if layer > 0 and reasons[layer - 1] == reason:
                    run[-1]["layers"] += 1
                else:
                    run.append(
                        {
                            "first": position,
                            "rows": 1,
                            "first_layer": layer,
                            "layers": 1,
                            "reason": reason,
                        }
                    )
            blocks += run
        complete = sum(row is not None and row.complete() for row in self.rows)
        some = sum(row is not None and row.any() for row in self.rows) - complete
        valid = [row.valid() for row in self.rows if row is not None]
        coverage = {
            "layers": len(self.layers), "first": self.first, "rows": len(self.rows), "length": length, "rows_complete": complete,
            "rows_partial": some, "rows_empty": len(self.rows) - complete - some,
            "cells_missing": len(self.rows) * len(self.layers) - sum(map(sum, valid)), "blocks": len(blocks),
            "cells_recomputed": sum(sum(is_valid and layer.provenance == RECOMPUTED for is_valid, layer in zip(row, self.layers)) for row in valid),
        }  # fmt: skip
        return coverage, blocks[:capacity]

    def read_strictly(self, flags):
        """What reading with these flags refuses."""
        check(flags & ~(STRICT | ALLOW_RECOMPUTED) == 0)
        if flags & STRICT:
            coverage, _ = self.coverage(0, 0)
            check(coverage["cells_missing"] == 0, "ERR_INCOMPLETE")
            check(flags & ALLOW_RECOMPUTED or coverage["cells_recomputed"] == 0, "ERR_RECOMPUTED")

    def copy(self, options, dst_bytes, mask_bytes):
        """Returns status, dst, mask and the bytes needed; dst and mask with 77 where nothing is
        written, None for NULL.
        """
        self.need_ready()
        options = COPY_OPTIONS | options
        sizes = {U8: 1, I16: 2, U16: 2, I32: 4, U32: 4, I64: 8}
        check(options["dtype"] in sizes, "ERR_DTYPE")
        check(options["order"] in (0, 1))
        size = sizes[options["dtype"]]
        signed = options["dtype"] in (I16, I32, I64)
        lowest, highest = (
            (-(2 ** (8 * size - 1)), 2 ** (8 * size - 1) - 1)
            if signed
            else (0, 2 ** (8 * size) - 1)
        )
        first_layer, layers, k, n = (
            options["first_layer"],
            options["layers"],
            self.k,
            len(self.rows),
        )
        check(
            first_layer < len(self.layers) and first_layer + layers <= len(self.layers),
            "ERR_UNKNOWN_LAYER",
        )
        chosen = range(first_layer, first_layer + layers if layers else len(self.layers))
        check(self.most_experts - 1 <= highest, "ERR_DTYPE")
        fill = options["fill"]
        if not signed and -(2 ** (8 * size - 1)) <= fill < 0:
            fill += 2 ** (8 * size)  # two's complement
        check(lowest <= fill <= highest, "ERR_DTYPE")
        strict = options["flags"] & STRICT
        check(strict or mask_bytes is not None or not 0 <= fill < self.most_experts)
        dense = (k, n * k) if options["order"] == LAYER_MAJOR else (len(chosen) * k, k)
        row_stride, layer_stride = (
            options["row_stride"] or dense[0],
            options["layer_stride"] or dense[1],
        )
        places = [
            row * row_stride + layer * layer_stride
            for row in range(n)
            for layer in range(len(chosen))
        ]
        used = [place + column for place in places for column in range(k)]
        check(min(row_stride, layer_stride) >= 0)
        check(
            n <= 1
            or len(chosen) <= 1
            or row_stride >= (len(chosen) - 1) * layer_stride + k
            or layer_stride >= (n - 1) * row_stride + k
        )
        check(len(set(used)) == len(used))
        needed = (max(used) + 1) * size if used else 0
        if dst_bytes is None and mask_bytes is None and needed:
            raise Failure("ERR_BUFFER_TOO_SMALL", needed=needed)
        if (dst_bytes or 0) < needed or (mask_bytes is not None and mask_bytes < n * len(chosen)):
            raise Failure("ERR_BUFFER_TOO_SMALL", needed=needed)
        wanted = self.with_rows(
            self.first,
            [
                None if row is None else Row(tuple(row.cells[layer] for layer in chosen), row.tag)
                for row in self.rows
            ],
        )
        wanted.layers = [self.layers[layer] for layer in chosen]
        wanted.read_strictly(options["flags"])
        dst = [77] * ((dst_bytes or 0) // size)
        mask = [77] * (mask_bytes or 0)
        for r, row in enumerate(wanted.rows):
            for c, cell in enumerate(wanted.cells(row)):
                place = r * row_stride + c * layer_stride
                is_valid = isinstance(cell, tuple)
                dst[place : place + k] = cell if is_valid else (fill,) * k
                if mask:
                    mask[c * n + r if options["order"] == LAYER_MAJOR else r * len(chosen) + c] = (
                        int(is_valid)
                    )
        return wanted.status(), dst, mask if mask_bytes is not None else None, needed

    # ---- Making others

    def slice(self, first, rows):
        self.need_ready()
        check(self.first <= first <= self.end, "ERR_OUT_OF_RANGE")
        rows = self.end - first if rows == ALL else rows
        check(first + rows <= self.end, "ERR_OUT_OF_RANGE")
        return self.with_rows(first, self.rows[first - self.first : first - self.first + rows])

    def split(self, prompt_tokens, generated_tokens):
        self.need_ready()
        at = min(max(prompt_tokens, self.first), self.end)
        return self.slice(self.first, at - self.first), self.slice(
            at, min(self.end - at, generated_tokens)
        )


def merge(routings):
    for routing in routings:
        routing.need_ready()
    head = routings[0]
    layers = {}
    for routing in routings:
        check(routing.k == head.k and routing.id_space == head.id_space, "ERR_SHAPE_MISMATCH")
        for layer in routing.layers:
            known = layers.setdefault(layer.index, layer)
            check(known.experts == layer.experts, "ERR_SHAPE_MISMATCH")
            layers[layer.index] = replace(known, provenance=max(known.provenance, layer.provenance))
    layers = [layers[index] for index in sorted(layers)]
    place = {layer.index: i for i, layer in enumerate(layers)}
    filled = [routing for routing in routings if routing.rows]
    first = min((routing.first for routing in filled), default=head.first)
    end = max((routing.end for routing in filled), default=head.first)
    rows = [None] * (end - first)
    for routing in filled:
        for position, row in enumerate(routing.rows, routing.first):
            if row is None:
                continue
            cells = [ABSENT] * len(layers)
            for layer, cell in zip(routing.layers, row.cells):
                cells[place[layer.index]] = cell
            widened, known = Row(tuple(cells), row.tag), rows[position - first]
            if known is not None:
                for mine, other in zip(known.cells, widened.cells):
                    if isinstance(mine, tuple) and isinstance(other, tuple):
                        check(same_ids(mine, other), "ERR_CONFLICT")
            rows[position - first] = unite(known, widened)
    return Routing(layers, head.k, head.id_space, first, rows)

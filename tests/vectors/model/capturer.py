"""A capturer as simple as it can be: dictionaries of rows, and a log of what was called and has not
landed.

It has manual progress and the host backend: everything that is in flight lands, in the order of the
calls, when progress is made.
"""

import math
import weakref

from . import routing as r
from .routing import Routing, Row, better, check, judge, same_ids, unite
from .store import Block

COMPARE, EXTERNAL_SINK = r.CONFIG["COMPARE"], r.CONFIG["EXTERNAL_SINK"]
MAY_LOSE, CHECKED = r.CONFIG["MAY_LOSE"], r.CONFIG["CHECKED"]
LOAD, LOAD_TAGS = r.CONFIG["LOAD"], r.CONFIG["LOAD_TAGS"]
SPECULATIVE, DEVICE_POSITIONS, SPAN_PREFILL, SPAN_DECODE = 1, 2, 4, 8  # ROUTECAP_SPAN_*
SPAN_UNCOUNTED = 16
PHASES = SPAN_PREFILL | SPAN_DECODE | SPAN_UNCOUNTED
PREFILL, DECODE = 0, 1  # ROUTECAP_PHASE_*
MAX_LOAD_TAGS = 8
SILENT, INCOMPLETE, OUT_OF_RANGE, DUPLICATE, SEQUENCE, CONSTANT, REPEATED = (
    1,
    2,
    4,
    8,
    16,
    32,
    64,
)  # ROUTECAP_PROBE_*
LIBRARY = "library"  # in place of memory that was bound: the library's own
REPLACE = 1
SHARE, TAKE, COPY = 0, 1, 2
SOURCE_DTYPES = (r.I16, r.I32, r.U32, r.I64, r.ID16_BF16)
REASON_COUNTERS = {
    r.UNWRITTEN: "unwritten",
    r.OUT_OF_RANGE: "out_of_range",
    r.DUPLICATE: "duplicate",
}
ROW_COUNTERS = (
    "issued in_flight provisional delivered missing lost late rejected unplaced refused skipped"
    " overlapped mismatched dropped".split()
)


class Page:
    """Memory for the first rows of a request or routing.

    The vectors stay within one page of each.
    """


class Filed:
    """One row of a span: where it goes, and what its step holds for it once it has landed."""

    def __init__(self, real, bounds, row, known=True, missing=None, phase=DECODE):
        self.phase = phase
        self.real, self.bounds, self.row = real, bounds, row
        self.position = (
            real if known else None
        )  # None: unknown to the host until the row has landed
        self.cut_at = math.inf  # rows from there on were cut after the row was issued
        self.nowhere = False  # landed, and counted as unplaced or late
        self.missing = missing  # why it will never land: LOST, REFUSED or None

    def end(self):
        """One past the highest position that it may have; 0 if it was cut."""
        if self.nowhere:
            return 0
        if self.position is not None:
            return self.position + 1 if self.position < self.cut_at else 0
        return min(self.bounds[1], self.cut_at) if self.bounds[0] < self.cut_at else 0

    def is_cut(self):
        return self.position >= self.cut_at


class Load:
    """How often each expert was chosen."""

    def __init__(self, layers):
        self.experts = max((layer.experts for layer in layers), default=0)
        self.steps = self.first_step = self.last_step = 0
        self.rows = [0, 0]
        self.counts = [[[0] * self.experts for _ in layers] for _ in self.rows]

    def add_step(self, ticket):
        self.steps += 1
        self.first_step = self.first_step or ticket
        self.last_step = ticket

    def add(self, phase, row, known):
        """The valid cells of a row but for those that are known."""
        self.rows[phase] += row.any() and not (known and known.any())
        for layer, cell in enumerate(row.cells):
            if isinstance(cell, tuple) and not (known and isinstance(known.cells[layer], tuple)):
                for expert in cell:
                    self.counts[phase][layer][expert] += 1


def phase_of(span):
    flags = span.get("flags", 0)
    if flags & SPAN_UNCOUNTED:
        return None
    if flags & PHASES:
        return PREFILL if flags & SPAN_PREFILL else DECODE
    return DECODE if flags & SPECULATIVE or span["rows"] == 1 else PREFILL


class Span:
    def __init__(self, request, rows, speculative):
        self.request, self.rows, self.speculative = request, rows, speculative

    def range(self):
        """The positions that it may fill, or None."""
        first = min(row.bounds[0] for row in self.rows)
        end = max(row.end() for row in self.rows)
        return (first, end) if first < end else None


class Step:
    def __init__(self, ticket, spans, dropped, conflicts, tag):
        self.ticket, self.spans, self.dropped, self.conflicts, self.tag = (
            ticket,
            spans,
            dropped,
            conflicts,
            tag,
        )


class Change:
    """accept, truncate, fork, attach, finish or close, which apply after the steps issued before
    them.
    """

    def __init__(self, request, apply, changed=None):
        self.request, self.apply, self.changed = (
            request,
            apply,
            changed,
        )  # changed: range of rows that cannot be read until then


class Publication:
    """Blocks of one call, one after another in a request; rows from `end` on were cut."""

    def __init__(self, store, first, blocks):
        self.store, self.first, self.blocks = store, first, blocks
        self.end = first + len(blocks) * store.block_rows


class Request:
    def __init__(self, policy=0):
        self.policy = policy
        self.content = {}  # position -> Row
        self.gone = {}  # position -> why its row is missing: it was lost, refused or taken. Told where there is nothing of the row
        self.drafts = {}  # ticket -> rows issued there as speculative
        self.lengths = []  # what determines the length, in the order of the calls: see length()
        self.lending = []  # (Change of a fork, its rows)
        self.page = None
        self.issued = 0  # one past the highest position that was issued and is not cut
        self.provisional = []  # drafts that landed and are neither settled nor cut
        self.publishing = []  # (newest step, end) of publications that are not applied
        self.unsettled = []  # publications of which some rows are drafts

    def length(self):
        n = 0
        for kind, what in self.lengths:
            if kind == "cut":
                n = min(n, what)
            else:
                n = max([n] + [row.end() if kind == "device" else row.position + 1 for row in what])
        return n

    def issued_end(self):
        return max(self.length(), self.issued)

    def miss(self, row, reason):
        """A row will never come.

        Where the device had its position it may be any within its bounds.
        """
        for position in range(row.bounds[0], row.end()):
            self.gone[position] = better(self.gone.get(position, r.ABSENT), reason)

    def row(self, position, layers):
        row = self.content.get(position)
        if position not in self.gone or (row is not None and row.reason() is None):
            return row
        return unite(Row((self.gone[position],) * layers), row)

    def reach(self, end):
        """The length is at least end."""
        if end > 0:
            self.lengths.append(("host", [Filed(end - 1, (0, end), None)]))


class Capturer:
    def __init__(self, config, layers, budget_pages=None):
        self.config, self.layers, self.budget_pages = config, layers, budget_pages
        self.k, self.rows, self.slots = config["k"], config["rows"], config.get("slots", 0) or 4
        self.flags = config.get("flags", 0)
        self.mirror = config.get("role", 0) == 1
        self.bound = [
            None if self.flags & EXTERNAL_SINK else LIBRARY for _ in layers
        ]  # where each layer is written
        self.fixed = [False] * len(layers)  # the address was given out, or bound
        self.written = [
            {} for _ in layers
        ]  # what the sink holds: row -> columns, None where it was not written
        self.known = [[] for _ in layers]  # ranges of rows whose recording the host knows of
        self.begun = None
        self.snapshot = None  # rows taken
        self.dropped = self.conflicts = 0
        self.slot = True  # one was free for the forward that comes next
        self.log = []
        self.all_applied = True  # every change of a request by the last progress
        self.steps = {}  # ticket -> "PENDING", "OK" or "LOST"
        self.step_conflicts = {}
        self.open = set()
        self.pages = weakref.WeakSet()
        self.counters = dict.fromkeys(ROW_COUNTERS, 0)
        self.cells_conflicting = 0
        self.layer_stats = [
            dict.fromkeys(
                ("rows_written", "unwritten", "out_of_range", "duplicate", "silent_steps"), 0
            )
            for _ in layers
        ]
        self.silent_layers = 0
        self.load = Load(layers)
        self.tag_loads = {}  # of the newest tags, the oldest first

    # ---- The sink

    def begin(self, rows):
        check(rows <= self.rows, "ERR_CAPACITY")
        self.forget_forward()
        self.begun = rows
        if not self.flags & MAY_LOSE:
            while self.in_flight() >= self.slots:
                self.file_oldest()
        self.slot = self.in_flight() < self.slots

    def forget_forward(self):
        self.begun = self.snapshot = None
        self.written = [{} for _ in self.layers]
        self.known = [[] for _ in self.layers]
        self.dropped = self.conflicts = 0

    def discard(self):
        self.forget_forward()
        self.slot = self.in_flight() < self.slots

    def write(self, layer, first_row, ids):
        """What a router does."""
        for i in range(len(ids) // self.k):
            self.written[layer][first_row + i] = list(ids[i * self.k : (i + 1) * self.k])

    def places(self, layer, placement):
        """The sink row of each source row that holds ids (None: it goes nowhere), after the checks
        that do not read device memory.
        """
        check(layer < len(self.layers), "ERR_UNKNOWN_LAYER")
        rows, index = placement["rows"], placement.get("row_index")
        first = placement.get("first_row", 0)
        check(index is not None or first + rows <= self.rows, "ERR_CAPACITY")
        live = placement.get("live_rows")
        base = placement.get("row_base")
        if index is None and live is None and base is None and self.begun is not None:
            check(
                not any(a < first + rows and first < b for a, b in self.known[layer]),
                "ERR_CONFLICT",
            )
        live = rows if live is None else min(max(live, 0), rows)
        where = [first + (base or 0) + i if index is None else index[i] for i in range(live)]
        return [row if row >= 0 else None for row in where]

    def put(self, layer, placement, places, cells):
        """Write cells (k ids each) where nothing is written yet."""
        if all(placement.get(name) is None for name in ("row_index", "live_rows", "row_base")):
            self.known[layer].append((places[0], places[-1] + 1) if places else (0, 0))
        for place, cell in zip(places, cells):
            if place is None:
                continue
            if self.begun is None or place >= self.begun:
                self.dropped += 1
            elif place in self.written[layer]:
                self.conflicts += 1
            else:
                self.written[layer][place] = cell

    def ids_of(self, source):
        """Of each source row k ids, as a source says."""
        check(source["dtype"] in SOURCE_DTYPES, "ERR_DTYPE")
        columns = source.get("k_source", 0) or self.k
        check(columns >= self.k, "ERR_SHAPE_MISMATCH")
        row_stride, column_stride = (
            source.get("row_stride", 0) or columns,
            source.get("column_stride", 0) or 1,
        )
        ids, start, table = source["ids"], source.get("ids_start", 0), source.get("table")
        rows = []
        for row in range(source["rows"]):
            cell = []
            for column in range(self.k):
                at = start + row * row_stride + column * column_stride
                i = (
                    ids[at] if 0 <= at < len(ids) else -1
                )  # only rows that do not hold ids may lie outside
                if source["dtype"] == r.ID16_BF16:
                    i >>= 16
                if table is not None:
                    i = table[i] if 0 <= i < len(table) else None
                cell.append(-1 if i is None else i + source.get("offset", 0))
            rows.append(cell)
        return rows

    def record(self, sources):
        """sources: (layer, source). All or none."""
        planned = []
        for layer, source in sources:
            check(layer < len(self.layers), "ERR_UNKNOWN_LAYER")
            cells = self.ids_of(source)
            planned.append((layer, source, self.places(layer, source), cells))
        for layer, source, places, cells in planned:
            self.put(layer, source, places, cells)

    def take_snapshot(self):
        if self.begun is None:
            return
        if self.snapshot is not None:
            self.snapshot = []  # a second one: its rows are missing
            return
        self.snapshot = []
        for row in range(self.begun):
            unwritten = [None] * self.k
            self.snapshot.append(
                [
                    judge(written.get(row, unwritten), layer.experts)
                    for written, layer in zip(self.written, self.layers)
                ]
            )

    def probe(self, rows, count):
        check(self.begun is not None, "ERR_STATE")
        check(rows <= self.begun, "ERR_CAPACITY")
        check(count <= len(self.layers), "ERR_UNKNOWN_LAYER")
        found, before = [], None
        for written, layer in list(zip(self.written, self.layers))[:count]:
            cells = [written.get(row, [None] * self.k) for row in range(rows)]
            present = [cell for cell in cells if any(i is not None for i in cell)]
            whole = [cell for cell in cells if all(i is not None for i in cell)]
            ids = [i for cell in present for i in cell if i is not None]
            inside = [i for i in ids if 0 <= i < layer.experts]
            odd = [
                cell
                for cell in present
                if any(i is not None and not 0 <= i < layer.experts for i in cell)
            ]
            twice = [cell for cell in whole if cell not in odd and len(set(cell)) < self.k]
            several = rows > 1 and len(whole) == rows
            signs = {
                SILENT: not present,
                INCOMPLETE: present and len(whole) < rows,
                OUT_OF_RANGE: odd,
                DUPLICATE: twice,
                SEQUENCE: several and all(cell == list(range(self.k)) for cell in cells),
                CONSTANT: several and all(cell == cells[0] for cell in cells),
                REPEATED: several and cells == before,
            }
            found.append(
                {
                    "found": sum(flag for flag, is_found in signs.items() if is_found),
                    "rows_unwritten": rows - len(present),
                    "rows_incomplete": len(present) - len(whole),
                    "rows_written": len(whole),
                    "rows_out_of_range": len(odd),
                    "rows_duplicate": len(twice),
                    "lowest": min(inside, default=-1),
                    "highest": max(inside, default=-1),
                }
            )
            before = cells
        return found

    # ---- Steps

    def in_flight(self):
        return sum(isinstance(entry, Step) for entry in self.log)

    def rows_of(self, span, options):
        """The rows of a span of the forward that is being issued."""
        taken, rows = self.snapshot or [], []
        first, device = span.get("position", 0), bool(span.get("flags", 0) & DEVICE_POSITIONS)
        for i in range(span["rows"]):
            at = span.get("sink_row", 0) + i
            row = Row(tuple(taken[at]), options.get("tag", 0)) if at < len(taken) else None
            if device:
                rows.append(
                    Filed(
                        options["positions"][at],
                        (first, span["position_end"]),
                        row,
                        known=False,
                        phase=phase_of(span),
                    )
                )
            else:
                rows.append(Filed(first + i, (first + i, first + i + 1), row, phase=phase_of(span)))
        return rows

    def issue(self, spans, options):
        """spans: (Request or None, struct). Returns status, the spans' statuses and the ticket."""
        if options.get("snapshot", 0):
            self.take_snapshot()
        ticket = len(self.steps) + 1
        lost = not self.slot
        statuses, filed = [], []
        for request, span in spans:
            if request is None:
                statuses.append("ERR_UNKNOWN_REQUEST")
                self.counters["skipped"] += span["rows"]
                continue
            rows = self.rows_of(span, options)
            self.counters["issued"] += len(rows)
            speculative = bool(span.get("flags", 0) & SPECULATIVE)
            if (
                not lost
                and request.page is None
                and not (self.new_page(request) or (self.reclaim() and self.new_page(request)))
            ):
                statuses.append("ERR_NO_MEMORY")
                self.counters["refused"] += len(rows)
                missing = r.REFUSED
            else:
                statuses.append("OK")
                self.counters["lost" if lost else "in_flight"] += len(rows)
                missing = r.LOST if lost else None
                if not lost:
                    filed.append(Span(request, rows, speculative))
            request.issued = max([request.issued] + [row.bounds[1] for row in rows])
            for row in rows:
                row.missing = missing
                if missing and not speculative:
                    request.miss(row, missing)
            if speculative:
                request.drafts.setdefault(ticket, []).extend(rows)
            else:
                request.lengths.append(
                    ("device" if span.get("flags", 0) & DEVICE_POSITIONS else "host", rows)
                )
        if lost or not filed:
            self.steps[ticket] = "LOST" if lost else "OK"
        else:
            self.steps[ticket] = "PENDING"
            self.log.append(
                Step(ticket, filed, self.dropped, self.conflicts, options.get("tag", 0))
            )
        self.discard()
        return "LOST" if lost else "OK" if set(statuses) <= {"OK"} else "PARTIAL", statuses, ticket

    def reclaim(self):
        """Where the budget is exhausted issue applies what was called before, as far as no step in
        flight stands before it.
        """
        while self.log and isinstance(self.log[0], Change):
            self.apply_next()
        return True

    def new_page(self, holder):
        if self.budget_pages is not None and len(self.pages) >= self.budget_pages:
            return False
        holder.page = Page()
        self.pages.add(holder.page)
        return True

    def progress(self):
        while self.log:
            self.apply_next()
        self.all_applied = True

    def apply_next(self):
        entry = self.log.pop(0)
        if isinstance(entry, Step):
            self.land(entry)
        else:
            entry.apply()

    def file_oldest(self):
        """What begin does where all slots hold steps.

        Whether it applies what follows the step is its affair: the vectors do not look.
        """
        while not isinstance(self.log[0], Step):
            self.apply_next()
        self.apply_next()

    def land(self, step):
        self.steps[step.ticket] = "OK"
        self.step_conflicts[step.ticket] = step.conflicts
        self.cells_conflicting += step.conflicts
        self.counters["dropped"] += step.dropped
        for load in self.loads(step.tag):
            load.add_step(step.ticket)
        written, valid, counted = [False] * len(self.layers), [False] * len(self.layers), 0
        for span in step.spans:
            for row in span.rows:
                self.counters["in_flight"] -= 1
                row.position = row.real
                if not row.bounds[0] <= row.position < row.bounds[1]:
                    self.counters["unplaced"] += 1
                    row.nowhere = True
                    continue
                if (
                    row.is_cut()
                ):  # a draft waits all the same to be settled, or for the end of its request
                    self.counters["provisional" if span.speculative else "late"] += 1
                    row.nowhere = not span.speculative
                    continue
                self.count_cells(row.row, written, valid)
                counted += 1
                if span.speculative:
                    self.counters["provisional"] += 1
                    span.request.provisional.append(row)
                else:
                    self.file(span.request, row)
        if counted == 0:
            return
        for stats, was_written in zip(self.layer_stats, written):
            stats["silent_steps"] += not was_written
        self.silent_layers = valid.count(False)

    def count_cells(self, row, written, valid):
        for layer, stats in enumerate(self.layer_stats):
            cell = row.cells[layer] if row is not None else r.UNWRITTEN
            written[layer] |= cell != r.UNWRITTEN
            if isinstance(cell, tuple):
                stats["rows_written"] += 1
                valid[layer] = True
            else:
                stats[REASON_COUNTERS[cell]] += 1

    def loads(self, tag):
        """The counts of all steps, and those of a tag, which may be new."""
        if tag not in self.tag_loads:
            while len(self.tag_loads) >= MAX_LOAD_TAGS:
                del self.tag_loads[next(iter(self.tag_loads))]
            self.tag_loads[tag] = Load(self.layers)
        return self.load, self.tag_loads[tag]

    def file(self, request, filed):
        row, mine = filed.row, request.content.get(filed.position)
        for load in self.loads(row.tag) if row is not None and filed.phase is not None else ():
            load.add(filed.phase, row, mine)
        if row is None or not row.any():
            self.counters["missing"] += 1
        else:
            self.counters["delivered"] += 1
            both = [
                (a, b)
                for a, b in zip(row.cells, mine.cells if mine else ())
                if isinstance(a, tuple) and isinstance(b, tuple)
            ]
            self.counters["overlapped"] += bool(both)
            self.counters["mismatched"] += bool(self.flags & COMPARE) and any(
                not same_ids(a, b) for a, b in both
            )
            if request.policy == REPLACE:
                mine = None
        if row is not None:
            request.content[filed.position] = unite(mine, row)

    def poll(self, step):
        check(step in self.steps, "ERR_UNKNOWN_STEP")
        return self.steps[step]

    # ---- Requests

    def change(self, request, apply, changed=None):
        self.log.append(
            Change(request, apply, changed if changed and changed[0] < changed[1] else None)
        )
        self.all_applied = False
        return self.log[-1]

    def open_one(self, policy):
        request = Request(policy)
        self.open.add(request)
        return request

    def spans_in_flight(self, request):
        return [
            span
            for entry in self.log
            if isinstance(entry, Step)
            for span in entry.spans
            if span.request is request
        ]

    def accept(self, request, step, rows, count):
        check(step in request.drafts, "ERR_UNKNOWN_STEP")
        drafts = request.drafts[step]
        kept = list(range(count)) if rows is None else rows
        check(all(a < b for a, b in zip(kept, kept[1:])))
        check(len(kept) <= len(drafts) and all(i < len(drafts) for i in kept), "ERR_OUT_OF_RANGE")
        del request.drafts[step]
        chosen = [drafts[i] for i in kept]
        request.lengths.append(("device", chosen))

        for row in chosen:
            if row.missing:
                request.miss(row, row.missing)

        def apply():
            for i, row in enumerate(drafts):
                if row.missing or row.nowhere:
                    continue
                self.counters["provisional"] -= 1
                if i not in kept:
                    self.counters["rejected"] += 1
                elif row.is_cut():
                    self.counters["late"] += 1
                else:
                    self.file(request, row)
            request.provisional = [row for row in request.provisional if row not in drafts]
            self.publish_settled(request)

        filed = [row for row in chosen if not row.missing and row.end()]
        self.change(
            request,
            apply,
            (
                (min(row.bounds[0] for row in filed), max(row.end() for row in filed))
                if filed
                else None
            ),
        )

    def cut(self, request, end, closes=False):
        for entry in self.log:
            for span in entry.spans if isinstance(entry, Step) else ():
                wanted = [e for step, e in request.publishing if entry.ticket <= step and closes]
                kept = 0 if span.speculative else max(wanted, default=0)
                for row in span.rows if span.request is request else ():
                    row.cut_at = min(row.cut_at, max(end, kept))
        for rows in request.drafts.values():
            for row in rows:
                row.cut_at = min(row.cut_at, end)

    def truncate(self, request, rows):
        self.cut(request, rows)
        request.issued = min(request.issued, rows)
        request.gone = {
            position: reason for position, reason in request.gone.items() if position < rows
        }
        request.lengths.append(("cut", rows))

        def apply():
            request.content = {
                position: row for position, row in request.content.items() if position < rows
            }
            request.provisional = [row for row in request.provisional if row.position < rows]
            for publication in request.unsettled:
                publication.end = min(publication.end, max(rows, publication.first))
            self.publish_settled(request)

        self.change(request, apply)

    def fork(self, request, rows):
        length = request.length()
        rows = length if rows == r.ALL else rows
        check(rows <= length, "ERR_OUT_OF_RANGE")
        child = self.open_one(request.policy)
        child.reach(rows)
        child.page = request.page
        child.gone = {
            position: reason for position, reason in request.gone.items() if position < rows
        }

        def apply():
            child.content = {
                position: row for position, row in request.content.items() if position < rows
            }
            request.lending.remove((change, rows))

        change = self.change(child, apply, (0, rows))
        request.lending.append((change, rows))
        return child

    def attach(self, request, routing, rows):
        check(
            routing.k == self.k and routing.id_space == self.config.get("id_space", 0),
            "ERR_SHAPE_MISMATCH",
        )
        check(
            [(a.index, a.experts) for a in routing.layers]
            == [(a.index, a.experts) for a in self.layers],
            "ERR_SHAPE_MISMATCH",
        )
        check(
            all(
                theirs.provenance <= mine.provenance
                for theirs, mine in zip(routing.layers, self.layers)
            ),
            "ERR_SHAPE_MISMATCH",
        )
        check(routing.ready or routing.owner is self, "ERR_NOT_READY")
        rows = routing.end if rows == r.ALL else rows
        check(rows <= routing.end, "ERR_OUT_OF_RANGE")
        if rows <= routing.first:
            return
        request.reach(rows)

        def apply():
            for position, row in enumerate(routing.rows[: rows - routing.first], routing.first):
                if row is not None:
                    request.content[position] = unite(request.content.get(position), row)

        self.change(request, apply, (routing.first, rows))

    def finish(self, request, rows):
        check(rows == r.ALL or rows <= r.MAX_POSITION, "ERR_OUT_OF_RANGE")
        whole = request.length() if rows == r.ALL else rows
        unsettled = [
            row for drafts in request.drafts.values() for row in drafts
        ]  # are rejected, wherever they are
        if rows != r.ALL:
            for row in (
                row
                for span in self.spans_in_flight(request)
                for row in span.rows
                if row not in unsettled
            ):
                row.cut_at = min(row.cut_at, rows)
        routing = Routing(
            self.layers,
            self.k,
            self.config.get("id_space", 0),
            0,
            [None] * whole,
            ready=False,
            owner=self,
        )
        routing.page = request.page

        def apply():
            self.publish_settled(request, True)
            end = request.length() if rows == r.ALL else rows
            routing.rows = [request.row(position, len(self.layers)) for position in range(end)]
            routing.ready = True
            self.reject_drafts(request)

        self.change(request, apply)
        self.end(request)
        return routing

    def close(self, request):
        self.cut(request, 0, closes=True)

        def apply():
            self.publish_settled(request, True)
            self.reject_drafts(request)

        self.change(request, apply)
        self.end(request)

    def publish(self, request, store, first, keys, generation):
        n = store.block_rows
        end = first + len(keys) * n
        check(not keys or end <= request.issued_end(), "ERR_OUT_OF_RANGE")
        if not keys:
            return
        store.check_generation(generation)
        if generation < store.generation:
            store.counts["stale"] += len(keys)
            return
        # Blocks without drafts, then those with some and what comes after.
        drafts = len(keys)
        for row in (row for rows in request.drafts.values() for row in rows):
            low = max(row.bounds[0], first)
            if not row.missing and low < min(row.bounds[1], row.cut_at, end):
                drafts = min(drafts, (low - first) // n)
        for a, b in ((0, drafts), (drafts, len(keys))):
            if a < b:
                blocks = [Block(key, generation, self, a == drafts) for key in keys[a:b]]
                self.publish_blocks(request, Publication(store, first + a * n, blocks))

    def publish_blocks(self, request, publication):
        for block in publication.blocks:
            publication.store.note(block)
        steps = [
            entry.ticket
            for entry in self.log
            if isinstance(entry, Step) and any(span.request is request for span in entry.spans)
        ]
        wanted = (max(steps, default=0), publication.end)
        request.publishing.append(wanted)

        def apply():
            request.publishing.remove(wanted)
            request.unsettled.append(publication)
            self.publish_settled(request)

        self.change(request, apply)

    def publish_settled(self, request, everything=False):
        """Publications of which no row is a draft any more."""
        waiting = []
        for p in request.unsettled:
            drafts = any(p.first <= row.position < p.end for row in request.provisional)
            if drafts and not everything:
                waiting.append(p)
                continue
            for i, block in enumerate(p.blocks):
                first = p.first + i * p.store.block_rows
                rows = [
                    request.content.get(position) if position < p.end else None
                    for position in range(first, first + p.store.block_rows)
                ]
                p.store.land(block, rows)
        request.unsettled = waiting

    def adopt(self, request, store, first, keys, generation):
        if not keys:
            return dict.fromkeys(("rows", "found", "evicted", "not_published", "stale"), 0)
        blocks, adoption = store.adopt(keys, generation, self)
        n = store.block_rows
        end = first + len(keys) * n
        request.reach(end)

        def apply():
            for i, block in enumerate(blocks):
                reason = block if isinstance(block, int) else r.NOT_PUBLISHED
                if getattr(block, "stale", False):
                    reason = r.STALE
                hole = Row((reason,) * len(self.layers))
                rows = getattr(block, "rows", None) or [hole] * n
                for position, row in enumerate(rows, first + i * n):
                    request.content[position] = unite(request.content.get(position), row)

        self.change(request, apply, (first, end))
        return adoption

    def end(self, request):
        self.open.remove(request)
        request.page = None

    def reject_drafts(self, request):
        for rows in request.drafts.values():
            for row in rows:
                if not row.missing and not row.nowhere:
                    self.counters["provisional"] -= 1
                    self.counters["late" if row.is_cut() else "rejected"] += 1
        request.drafts.clear()

    # ---- Reading

    def in_flight_from(self, request, first, take):
        """The first row from `first` on that cannot be read, or infinity."""
        ranges = [span.range() for span in self.spans_in_flight(request) if not span.speculative]
        ranges += [
            entry.changed
            for entry in self.log
            if isinstance(entry, Change) and entry.request is request
        ]
        if take:
            ranges += [(0, rows) for _, rows in request.lending]
        return min(
            (max(low, first) for low, end in filter(None, ranges) if first < end), default=math.inf
        )

    def read(self, request, first, rows, take=False):
        """The rows as a routing."""
        length = request.length()
        check(first <= length, "ERR_OUT_OF_RANGE")
        limit = self.in_flight_from(request, first, take)
        if rows == r.LANDED:
            rows = min(limit, length) - first
        elif rows == r.ALL:
            rows = length - first
        check(first + rows <= length, "ERR_OUT_OF_RANGE")
        check(rows == 0 or limit >= first + rows, "ERR_NOT_READY")
        routing = Routing(self.layers, self.k, self.config.get("id_space", 0), first)
        routing.rows = [
            request.row(position, len(self.layers)) for position in range(first, first + rows)
        ]
        return routing

    def extract(self, request, first, rows, mode, flags):
        check(mode in (SHARE, TAKE, COPY))
        check(flags & ~(r.STRICT | r.ALLOW_RECOMPUTED) == 0)
        routing = self.read(request, first, rows, take=mode == TAKE)
        routing.read_strictly(flags)
        routing.one_segment = mode == COPY and bool(routing.rows)
        if mode == COPY and any(row is not None for row in routing.rows):
            check(self.new_page(routing), "ERR_NO_MEMORY")
        else:
            routing.page = request.page
        if mode == TAKE:
            for position in range(first, routing.end):
                row = request.content.get(position)
                if row is not None and row.reason() is None:
                    del request.content[position]
                    request.gone[position] = better(request.gone.get(position, r.ABSENT), r.TAKEN)
        return routing

    def stats(self):
        counts = {f"rows_{name}": n for name, n in self.counters.items()}
        cells = {
            f"cells_{name}": sum(stats[name] for stats in self.layer_stats)
            for name in REASON_COUNTERS.values()
        }
        states = list(self.steps.values())
        return {
            "silent_layers": self.silent_layers, "steps_issued": len(states), "steps_landed": sum(s != "PENDING" for s in states),
            "steps_lost": states.count("LOST"), **counts, "cells_conflicting": self.cells_conflicting, **cells,
            "requests_open": len(self.open), "steps_in_flight": self.in_flight(),
        }  # fmt: skip

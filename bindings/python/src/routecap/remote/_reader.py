"""What a trainer's rank reads: the rows that its plan names, out of objects that lie elsewhere."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from routecap import (
    SERIALIZED_MIN,
    Error,
    IdSpace,
    Missing,
    Piece,
    Routing,
    Segment,
    Status,
    serialized_info,
)
from routecap import Sequence as Conversation
from routecap.adapter import error, layers_of, slice_table

from ..names import IdSpaceName, WeightsType
from ._account import Account
from ._blocks import BlockRows
from ._head import CHECK_BYTES, seal, stride_of, tables_bytes, tables_bytes_of, without_checks
from ._reference import Reference, checked, digest_of
from ._stores import ObjectStore

_FIRST_READ = 4096
"""Bytes of a header that are read at once, if it is no longer. Of a longer one the tables are read,
and with each range of rows their checks."""
_RUNS = 8
"""Of an object, as a rule at most. If it has more, its tables are read in a second call."""
_ALIGNMENT = 64


class Reader(Account):
    """Reads rows that references name: what `rows` returns is a source for Plan.gather.

        reader = routecap.remote.Reader(store, layers=48, k=8, experts=128)
        gathered = plan.gather([reader.rows(reference) for reference in references])

    All ranges of a plan are read in one call of each store, after the headers that this reader has
    not seen yet, in another. They land in memory that is registered with the stores, page-locked if
    `pin` says so, and are used there.

    Nothing that comes from a store is trusted. Headers and rows have checksums, and a header is
    held against its reference and the shape given here. A row that cannot be had is missing in the
    routing, as in any other, and `report` counts it; `log` has the last reasons as text. No call
    raises for it. How long a store waits is up to the store's settings.

    Args:
        stores: One for each scheme that references may have.
        layers, k, experts, layer_map, layer_experts, layer_k, layer_min_k, layer_visit, weights,
            id_space: The shape of the rows, as in routecap.Sequence. Objects of another are refused.
        oldest: Rows of a lower generation are stale.
        max_object_bytes: Objects that claim to be larger are refused.
        max_read_bytes: What one call reads at most; a plan that needs more is refused as a whole.
        pin: Page-lock the memory by torch, for uploads to a GPU.

    Any number of threads may use it.
    """

    def __init__(
        self,
        *stores: ObjectStore,
        layers: int,
        k: int,
        experts: int | None = None,
        layer_map: Any = None,
        layer_experts: Any = None,
        layer_k: Any = None,
        layer_min_k: Any = None,
        layer_visit: Any = None,
        weights: WeightsType | None = None,
        id_space: IdSpace | IdSpaceName = IdSpace.LOGICAL,
        oldest: int = 0,
        max_object_bytes: int = 1 << 30,
        max_read_bytes: int = 4 << 30,
        pin: bool = False,
    ) -> None:
        super().__init__(
            {store.scheme: store for store in stores},
            Conversation(
                layers,
                k,
                experts or 0,
                layer_map=layer_map,
                layer_experts=layer_experts,
                layer_k=layer_k,
                layer_min_k=layer_min_k,
                layer_visit=layer_visit,
                weights=weights,
                id_space=id_space,
            ).routing(),
            pin,
        )
        self.oldest = oldest
        self._max_object, self._max_read = max_object_bytes, max_read_bytes
        self._batch = threading.local()

    def rows(
        self, reference: Reference | Mapping[str, Any], first: int = 0, rows: int | None = None
    ) -> "RemoteRows":
        """The rows of a reference, or of these only `rows` from position `first` on. Nothing is
        read yet.
        """
        if not isinstance(reference, Reference):
            reference = Reference.from_dict(reference)
        checked(reference)
        end = reference.first + reference.rows
        begin = min(max(first, reference.first), end)
        return RemoteRows(
            self, reference, begin, end if rows is None else max(begin, min(first + rows, end))
        )

    def blocks(
        self,
        keys: Sequence[str],
        *,
        rows: int,
        block_rows: int,
        first: int = 0,
        layers: int | None = None,
        scheme: str = "mooncake",
    ) -> BlockRows:
        """The rows that vLLM's own capture wrote under these keys, in their order (vLLM 0.33, and
        what its pull request 57968 answers with). Nothing is read yet.

        An object is raw ids [rows, layers, k], uint8 up to 256 experts and else uint16: a block of
        `block_rows` rows, or fewer at its ends. It has no shape, validity or checksum. So give what
        is known otherwise; objects that do not add up to `rows` are refused. A cell of ids that no
        router chooses, as zeros, is missing. A byte that changed to another expert's id is not seen.

        Args:
            rows: All that the keys have: tokens of the answer less one, less `first`.
            first: Position of the first row, as the request's `routed_experts_prompt_start`.
            layers: How many a row has there, dense ones included; by default the reader's.
            scheme: Of the store.
        """
        store: Any = self._stores.get(scheme)
        if not hasattr(store, "sizes"):
            raise error(
                Status.ERR_ARGUMENT,
                f"no store of the reader has objects of {scheme!r} with sizes: make the reader with"
                " one, or give another scheme",
            )
        given = len(self.like.layer_map) if layers is None else layers
        return BlockRows(
            self, store, keys, rows=rows, block_rows=block_rows, first=first, layers=given
        )

    # ---- One batch: what a plan asks for before it waits for the first

    def _ask(self, wanted: "_Wanted") -> Callable[[], Routing]:
        opened = getattr(self._batch, "open", None)
        batch: list[_Wanted] = [] if opened is None else opened
        batch.append(wanted)
        self._batch.open = batch

        def wait() -> Routing:
            if wanted.routing is None:
                if getattr(self._batch, "open", None) is batch:
                    self._batch.open = None
                self._run([each for each in batch if each.routing is None])
            assert wanted.routing is not None
            return wanted.routing

        return wait

    def _run(self, batch: "list[_Wanted]") -> None:
        for each in batch:
            if each.of.reference.generation < self.oldest:
                self._lose(each, "stale", f"generation {each.of.reference.generation}")
        self._read_headers({id(each.of): each.of for each in batch if each.routing is None})
        ready, total = [], 0
        for each in batch:
            if each.routing is not None:
                continue
            if each.of.header is None:
                self._lose(each, each.of.why, each.of.text)
                continue
            try:
                each.slice = _Slice(each.of.header, each.of.apart, each.first, each.rows)
            except Error as reason:
                self._lose(each, "refused", str(reason))
                continue
            each.at = total
            total += -(-each.slice.bytes // _ALIGNMENT) * _ALIGNMENT
            ready.append(each)
        if total > self._max_read:
            raise error(
                Status.ERR_NO_MEMORY,
                f"{total} bytes would be read at once, and max_read_bytes is {self._max_read}:"
                " gather a smaller micro-batch, or give the reader a higher max_read_bytes",
            )
        memory = self._memories.take(total)
        ranges = [part for each in ready for part in each.place(memory)]
        for (wanted, _, _), said in zip(ranges, self._read(ranges)):
            if said and wanted.routing is None:
                self._lose(wanted, "evicted", said)
        for each in ready:
            if each.routing is None:
                self._finish(each, memory)

    def _finish(self, wanted: "_Wanted", memory: memoryview) -> None:
        assert wanted.slice is not None
        own = memory[wanted.at : wanted.at + wanted.slice.bytes]
        try:
            wanted.slice.complete(own)
            routing = Routing.deserialize(own)
            if self.oldest and (routing.tags[routing.mask().any(axis=1)] < self.oldest).any():
                return self._lose(wanted, "stale", "a row's tag is lower than its reference says")
        except Error as reason:
            return self._lose(wanted, "refused", str(reason))
        wanted.routing = routing
        self.count(ranges=1, rows=wanted.rows)

    def _read_headers(self, objects: "Mapping[int, RemoteRows]") -> None:
        new = [each for each in objects.values() if each.header is None and not each.why]
        for each in new:
            if each.reference.bytes > self._max_object:
                each.refuse("refused", f"{each.reference.bytes} bytes are more than are allowed")
            elif each.reference.scheme not in self._stores:
                each.refuse("refused", f"there is no store for {each.reference.scheme!r}")
        new = [each for each in new if not each.why]
        tables = tables_bytes(len(self.like.layer_map), _RUNS)
        whole = {id(each): tables + CHECK_BYTES * each.reference.rows for each in new}
        begun = self._read_parts(
            new, {key: (0, size if size <= _FIRST_READ else tables) for key, size in whole.items()}
        )
        longer = {}
        for each, data in begun:
            try:
                size = serialized_info(data[:SERIALIZED_MIN]).header_bytes
            except Error as reason:
                each.refuse("refused", str(reason))
                continue
            least = tables_bytes_of(data)
            if not least <= size <= each.reference.bytes:
                each.refuse("refused", f"a header of {size} bytes")
            elif least <= len(data):
                self._check_header(each, data[:size])
            else:
                longer[id(each)] = (0, least)
        for each, data in self._read_parts([e for e in new if id(e) in longer], longer):
            self._check_header(each, data)

    def _read_parts(
        self, objects: "list[RemoteRows]", parts: Mapping[int, tuple[int, int]]
    ) -> "list[tuple[RemoteRows, memoryview]]":
        """The parts (offset, size) of these objects that could be read, as far as they go."""
        sizes = [min(parts[id(each)][1], each.reference.bytes) for each in objects]
        memory, at, ranges = self._memories.take(sum(sizes)), 0, []
        for each, size in zip(objects, sizes):
            wanted = _Wanted(each, 0, 0)
            ranges.append((wanted, parts[id(each)][0], memory[at : at + size]))
            at += size
        read = []
        for (wanted, _, part), said in zip(ranges, self._read(ranges)):
            if said:
                wanted.of.refuse("evicted", said)
            else:
                read.append((wanted.of, part))
        return read

    def _check_header(self, rows: "RemoteRows", data: memoryview) -> None:
        said, header = rows.reference, bytes(data)
        try:
            info, tables = serialized_info(header), header[: tables_bytes_of(header)]
            if (info.bytes, info.first, info.rows) != (said.bytes, said.first, said.rows):
                raise ValueError(
                    "its format, size or rows are not what the reference says: write the rows"
                    " again, and send the new reference"
                )
            if digest_of(tables) != said.digest:
                raise ValueError(
                    "its digest is not that of the reference: write the rows again, and send the"
                    " new reference"
                )
            apart = len(header) < info.header_bytes
            if apart:
                header = without_checks(tables, info.header_bytes)
            shape = Routing.deserialize(bytes(_Slice(header, apart, info.first, 0).header))
            for name in ("k", "id_space", "weights_dtype", *layers_of(self.like)):
                if not np.array_equal(getattr(shape, name), getattr(self.like, name)):
                    raise ValueError(
                        f"its {name} is not the reader's: make the reader with the shape of the"
                        " rows that were written"
                    )
        except ValueError as reason:  # of which routecap.Error for a format is one
            rows.refuse("refused", str(reason))
        else:
            rows.header, rows.apart = header, apart

    def _read(self, ranges: "list[tuple[_Wanted, int, memoryview]]") -> list[str]:
        """What each store says of each range."""
        said = [""] * len(ranges)
        for scheme, store in self._stores.items():
            own = [i for i, (each, _, _) in enumerate(ranges) if each.of.reference.scheme == scheme]
            if not own:
                continue
            keys = [ranges[i][0].of.reference.key for i in own]
            into = [ranges[i][2] for i in own]
            answers = store.read(keys, [ranges[i][1] for i in own], into)
            for i, answer in zip(own, answers):
                said[i] = answer
            self.count(calls=1, bytes=sum(map(len, into)))
        return said

    def _lose(self, wanted: "_Wanted", why: str, text: str) -> None:
        reason = {"evicted": Missing.EVICTED, "stale": Missing.STALE, "refused": Missing.LOST}[why]
        lost = Segment(wanted.first, wanted.rows, None, None, None, 0, reason)
        wanted.routing = Routing.from_segments(
            [lost] if wanted.rows else [],
            layers=self.like.layers,
            k=self.like.k,
            rows=wanted.rows,
            first=wanted.first,
            dtype=self.like.dtype,
            id_space=self.like.id_space,
            weights_dtype=self.like.weights_dtype,
            **layers_of(self.like),
        )
        reference = wanted.of.reference
        self.lost(why, wanted.rows)
        self.note(f"{reference.scheme} {reference.key}: {why}: {text}")


class RemoteRows:
    """The rows of a reference: a source for Plan.gather (`Reader.rows`)."""

    def __init__(self, reader: Reader, reference: Reference, first: int, end: int) -> None:
        self.reference, self.first, self.rows = reference, first, end - first
        self._reader = reader
        self.header: bytes | None = None
        self.apart = False  # the checks of rows: the header has zeros in their place
        self.why = self.text = ""

    def refuse(self, why: str, text: str) -> None:
        self.why, self.text = why, text

    def begin(self, first: int, rows: int) -> Callable[[], Routing | None]:
        """Ask for rows; what it returns waits for them, and for all that this thread has asked for
        before. None: the reference has none of them.
        """
        begin, end = max(first, self.first), min(first + rows, self.first + self.rows)
        if begin >= end:
            return lambda: None
        return self._reader._ask(_Wanted(self, begin, end - begin))

    def read(self, first: int, rows: int) -> Routing | None:
        """Rows from position `first` on, as far as the reference has any."""
        return self.begin(first, rows)()


class _Slice:
    """Rows of an object: their own header, and where the rest of their bytes is."""

    def __init__(self, header: bytes, apart: bool, first: int, rows: int) -> None:
        """apart: the header has zeros for the checks of rows, which are read with these."""
        self.header, self._table, self.bytes = slice_table(header, first, rows)
        self._of, self._apart = header, apart

    def place(self, memory: memoryview) -> list[tuple[int, memoryview]]:
        """Write what is known; which part of the object belongs into which part of `memory`."""
        at, parts = 0, []
        for offset, size, source, _ in self._table.tolist():
            if source == Piece.HEADER:
                memory[at : at + size] = self.header
            elif self._apart:
                parts += self._with_checks(offset, size, memory)
            else:
                parts.append((offset, memory[at : at + size]))
            at += size
        return parts

    def _with_checks(
        self, offset: int, size: int, memory: memoryview
    ) -> list[tuple[int, memoryview]]:
        of, begin = self._of, tables_bytes_of(self.header)
        before, rows = (offset - len(of)) // stride_of(of), size // stride_of(of)
        checks = tables_bytes_of(of) + CHECK_BYTES * before
        if self.bytes == serialized_info(of).bytes and (checks, offset) == (
            begin,
            len(self.header),
        ):
            return [
                (checks, memory[begin : offset + size])
            ]  # all rows: their checks are beside them
        end = begin + CHECK_BYTES * rows
        return [(checks, memory[begin:end]), (offset, memory[len(self.header) :])]

    def complete(self, memory: memoryview) -> None:
        """After all parts were read."""
        if self._apart:
            seal(memory[: len(self.header)])


class _Wanted:
    """Rows of one object, until they are a routing."""

    def __init__(self, of: RemoteRows, first: int, rows: int) -> None:
        self.of, self.first, self.rows = of, first, rows
        self.routing: Routing | None = None
        self.slice: _Slice | None = None
        self.at = 0

    def place(self, memory: memoryview) -> "list[tuple[_Wanted, int, memoryview]]":
        assert self.slice is not None
        own = memory[self.at : self.at + self.slice.bytes]
        return [(self, offset, part) for offset, part in self.slice.place(own)]

"""The worker's side of vLLM's connector for auxiliary output: rows of requests, kept in
routecap's store under the numbers of the engine's blocks, and returned with the outputs of a step.

`begin_step` and `prepare_output` run on the engine's thread, `process_output` on the thread that
takes outputs.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

import routecap
from routecap.adapter import KeptSpans, to_array, to_packed

from ._options import get_options
from ._results import spread

_NOWHERE = 2**64 - 1  # the key of no block


class Numbers(NamedTuple):
    """Whose numbers of blocks tell which rows a request takes from the cache.

    Attributes:
        group: One of the engine's groups of layers with caches of their own.
        parts: How many hashes a block of it has.
    """

    group: int = 0
    parts: int = 1


@dataclasses.dataclass(slots=True, eq=False)
class _Request:
    """What is known of one request, from its first step to its end or preemption.

    slot: its place in the connector's `_Slots`.
    hashes: of its blocks, in order, as far as the scheduler has told them.
    numbers: of its blocks in the engine's cache, in order.
    published: how many of the blocks that have hashes are published.
    retained: keys that the store retains for it.
    """

    name: str
    slot: int
    hashes: bytearray = dataclasses.field(default_factory=bytearray)
    numbers: list[int] = dataclasses.field(default_factory=list)
    published: int = 0
    retained: list[NDArray[np.uint8]] = dataclasses.field(default_factory=list)


class _Slots:
    """What every step reads or writes of its requests, in arrays, so that no step looks at each
    request.

    handle: 0 before the first step.
    issued: one past the last row that was issued, as the scheduler counts them.
    emit_cursor: [2, slots]. The first position that the caller does not have yet; and one past the
        last row of an accepted token, or before the first step is taken, a position behind all.
    """

    def __init__(self) -> None:
        self.handle = np.zeros(0, np.uint64)
        self.issued = np.zeros(0, np.int64)
        self.emit_cursor = np.zeros((2, 0), np.int64)
        self._free: list[int] = []

    def take(self, emit: int) -> int:
        if not self._free:
            used, more = len(self.handle), max(256, len(self.handle))
            self.handle = np.append(self.handle, np.zeros(more, np.uint64))
            self.issued = np.append(self.issued, np.zeros(more, np.int64))
            self.emit_cursor = np.append(self.emit_cursor, np.zeros((2, more), np.int64), axis=1)
            self._free = list(range(used, used + more))[::-1]
        slot = self._free.pop()
        self.handle[slot] = self.issued[slot] = 0
        self.emit_cursor[:, slot] = emit, np.iinfo(np.int64).max
        return slot

    def give_back(self, slots: Iterable[int]) -> None:
        self._free += slots


class _Batch:
    """The spans of a batch. Most steps have the batch of the last one: then there is nothing to
    write again but where the step begins.

    The last span is of the request that has the rows of all.
    """

    def __init__(
        self, names: list[str], slots: NDArray[np.intp], handles: NDArray[np.uint64], limit: int
    ) -> None:
        self.names, self.slots = names, slots
        self.spans = routecap.spans(len(names) + 1)
        self.spans["request"] = handles
        self.spans["position_end"][:-1] = limit
        # Each row is a request's and the step's. Each request counts its own.
        self.spans["flags"] = routecap.SpanFlag.SHARED | routecap.SpanFlag.UNCOUNTED
        self._rows, self._sink_row, self._flags, self._position = (
            self.spans[name] for name in ("rows", "sink_row", "flags", "position")
        )
        self._starts = b""
        self._drafts = True

    def fill(self, starts: NDArray[Any], first: int, drafts: NDArray[Any] | None) -> None:
        """
        Args:
            starts: The first row of each request, and one past the last row of all.
            first: The position of the step's first row in the request that has all.
            drafts: How many of each request's rows verify drafts.
        """
        self._position[-1] = first
        if (told := starts.tobytes()) != self._starts:
            self._rows[:-1] = starts[1:] - starts[:-1]
            self._rows[-1] = starts[-1]
            self._sink_row[:-1] = starts[:-1]
            self._starts = told
        if drafts is not None or self._drafts:
            each = routecap.SpanFlag.SHARED | routecap.SpanFlag.DEVICE_POSITIONS
            flags = np.full(len(self.names), each, np.uint32)
            if drafts is not None:
                flags[drafts > 0] |= np.uint32(routecap.SpanFlag.DECODE)
            self._flags[:-1] = flags
            self._drafts = drafts is not None


class StepOutputs(dict[str, Any]):
    """The outputs of a step, by request. Pickled, for an engine in another process, all their rows
    are one array: an array for each request costs the engine's thread 3 to 5 us of every step.
    """

    def __reduce__(self) -> Any:
        if not self:
            return StepOutputs, ()
        outputs = list(self.values())
        firsts = [output.token_start for output in outputs]
        counts = [len(output.rows) for output in outputs]
        rows = np.concatenate([output.rows for output in outputs])
        return _apart, (type(outputs[0]), list(self), firsts, counts, rows)


def _apart(
    output: Callable[[int, NDArray[Any]], Any],
    names: Sequence[str],
    firsts: Sequence[int],
    counts: Sequence[int],
    rows: NDArray[Any],
) -> StepOutputs:
    """What `StepOutputs` was before it was pickled."""
    ends = itertools.accumulate(counts)
    parts = zip(names, firsts, counts, ends, strict=True)
    return StepOutputs(
        (name, output(first, rows[end - count : end])) for name, first, count, end in parts
    )


@dataclasses.dataclass(slots=True, eq=False)
class PendingOutput:
    """A step whose rows are in flight.

    slots: of its requests.
    begins: the position of each request's first row, as the scheduler has it.
    starts: the first row of each in the step, and one past the last of all.
    first: the position of the step's first row in the request that has all.
    """

    _take: Callable[[PendingOutput], StepOutputs]
    names: Sequence[str]
    slots: NDArray[np.intp]
    begins: NDArray[Any]
    starts: NDArray[Any]
    step: routecap.Step
    first: int
    sampled: Any = ()
    rejected: Any = ()

    def enqueue_cpu_copy(self, num_sampled: object, num_rejected: object) -> None:
        """The numbers may still be in flight; `process_output` reads them."""
        self.sampled, self.rejected = num_sampled, num_rejected

    def process_output(self) -> StepOutputs:
        return self._take(self)


class RowsConnector:
    """What the engine's AuxOutputWorkerConnector does, for any number of concurrent steps.

    A step costs Python's time for what begins, fills a block or ends in it, and for each request
    only where its output is made.
    """

    def __init__(
        self,
        capture: Any,
        *,
        block_rows: int,
        numbers: Numbers | None,
        store_bytes: int,
        decoder_layers: int,
        output: Callable[[int, NDArray[Any]], Any],
        exact: bool = True,
        owner: bool = True,
    ) -> None:
        """
        Args:
            capture: A capturer that is bound to the model.
            block_rows: Rows of a block that has a hash of its own.
            numbers: Blocks are kept under their numbers in the engine's cache: the rows are those
                of the keys and values there, whatever the weights were. None: under their hashes,
                for blocks that come from elsewhere with new numbers.
            store_bytes: Upper limit of the memory for rows of blocks.
            output: Makes the output of a request in a step, from its first position and its rows.
            exact: Whether the scheduler tells the hash of a block only when its rows are computed,
                and which blocks of finished requests are to be kept.
            owner: False for ranks that only take part in forward passes: another rank has the rows.
        """
        self.capture = capture
        self._capturer: routecap.Capturer = capture.capturer
        self._decoder_layers = decoder_layers
        self._output = output
        self._exact, self._owner = exact, owner
        self._fill = get_options().fill
        self._weights = self._capturer.weights_dtype is not None
        if self._weights and self._fill == 0:
            raise ValueError(
                "ROUTECAP_VLLM_WEIGHTS is set, and beside weights a missing cell has to be told from"
                " an expert: unset ROUTECAP_VLLM_FILL"
            )
        own_type = np.uint8 if self._capturer.experts <= 256 else np.uint16
        self._dtype: DTypeLike = np.int16 if self._fill < 0 else own_type
        self._lock = threading.Lock()
        self._metadata: Any = None
        self._requests: dict[str, _Request] = {}  # those that have not ended
        self._slots = _Slots()
        self._batch: _Batch | None = None  # of the last step, if its requests are still the same
        self._spans = KeptSpans(self._capturer)
        self._in_flight: dict[int, None] = {}  # steps that are not taken, the oldest first
        self._ended: list[tuple[int, _Request]] = []  # with the last step that may have rows of it
        self._keyed: list[_Request] = []  # with keys that are not published
        self._retained: collections.Counter[bytes] = collections.Counter()
        self._block_rows, self._numbers = block_rows, numbers
        self.told: Any = None  # what the scheduler says of the step that begins
        self._hash_bytes = 0
        # Under numbers: the hash of the block that is kept under each key. The engine's hash of
        # what it takes has to be the same.
        self._kept: dict[int, bytes] = {}
        self._copied: dict[int, int] = {}  # in this step: block -> of which it is a copy
        self._store_bytes = max(store_bytes, capture.store_bytes(0))
        self._generation = 0  # how often the engine's cache was emptied
        self._epoch = 0  # how often it was, or the weights changed
        self._hooks = capture.tag
        # Under hashes: the engine's hash of a block stands for its tokens alone. If the weights
        # change and the cache is not emptied, the cache has blocks of old and new weights, and the
        # hash does not tell which of them a request hits.
        self._mixed = False
        self.store: routecap.Store | None = None
        if owner:
            # A request with the rows of all others, step by step: a step is read by one call.
            self._steps = self._capturer.open()
            self._issued_rows = 0

    # ---- A step

    def begin_step(self, metadata: Any) -> None:
        self._metadata = metadata
        if not self._owner or metadata is None:
            return
        with self._lock:
            changed, emptied = self.capture.tag != self._hooks, False
            if metadata.generation > self._generation:
                self._renew(metadata.generation)
                emptied = True
            if changed or emptied:
                self._hooks, self._mixed = self.capture.tag, not emptied
                self._epoch += 1
                if self.store is not None and self._numbers is None:
                    self.store.advance(self._epoch)
            requests = metadata.requests
            if not requests.keys() <= self._requests.keys():
                self._batch = None
                for name, emit in requests.items():
                    if name not in self._requests:
                        self._requests[name] = _Request(name, self._slots.take(emit))
            for name, hashes in metadata.block_hashes.items():
                request = self._requests.get(name)
                if request is not None:
                    self._make_store(hashes.item_size)
                    request.hashes += hashes.data
                    self._keyed.append(request)
            if any(name not in requests for name in metadata.block_hashes):
                self._publish(issued=False)
            if self._numbers is not None:
                self._number(self._numbers)
            if self._exact:
                self._retain(metadata.retained_block_hashes)
            if metadata.finished_requests:
                self._end(metadata.finished_requests)
            if self._exact:
                self._release(metadata.released_block_hashes)

    def prepare_output(self, input_batch: Any) -> PendingOutput | None:
        """After the forward pass: issue its rows to the requests that they belong to."""
        if not self._owner or self._metadata is None:
            return None
        names = input_batch.req_ids
        starts = np.array(input_batch.query_start_loc_np[: len(names) + 1])
        begins = np.array(input_batch.num_computed_tokens_np[: len(names)])
        drafts = input_batch.num_draft_tokens_per_req
        with self._lock:
            batch = self._batch
            new: list[int] = []
            if batch is None or batch.names != names:
                batch, new = self._make_batch(names)
            first = self._issued_rows
            batch.fill(starts, first, drafts)
            self._issued_rows += int(starts[-1])
            step = self._issue(batch.spans, input_batch.positions, self._issued_rows - first)
            self._slots.issued[batch.slots] = begins + starts[1:] - starts[:-1]
            cached = [int(begins[i]) // self._block_rows for i in new]
            for i, blocks in zip(new, cached, strict=True):
                self._requests[names[i]].published = blocks
            if self._keyed:
                self._publish(issued=True)
            for i, blocks in zip(new, cached, strict=True):
                self._adopt(self._requests[names[i]], blocks)
            self._in_flight[step.ticket] = None
        return PendingOutput(self._take, batch.names, batch.slots, begins, starts, step, first)

    def _make_batch(self, names: Sequence[str]) -> tuple[_Batch, list[int]]:
        """Another batch than the last one, and which of its requests are new."""
        requests = [self._requests[name] for name in names]
        slots = np.fromiter((request.slot for request in requests), np.intp, len(requests))
        handles = self._slots.handle[slots]
        new: list[int] = np.flatnonzero(handles == 0).tolist()
        if new:
            handles[new] = self._capturer.open_batch(len(new), policy="replace")
            self._slots.handle[slots] = handles
        all_handles = np.append(handles, np.uint64(self._steps.handle))
        self._batch = _Batch(list(names), slots, all_handles, self.capture.max_model_len)
        return self._batch, new

    def _issue(self, spans: NDArray[np.void], positions: Any, rows: int) -> routecap.Step:
        forward = self.capture.forward
        snapshot = routecap.Snapshot.TAKEN if forward.delimited else routecap.Snapshot.MAKE
        step = self._spans.issue(spans, rows, positions, self._epoch, snapshot)
        forward.issued()
        self.capture.issued(step)
        self.capture.watch.look(step.ticket)
        return step

    def _take(self, pending: PendingOutput) -> StepOutputs:
        """The outputs of a step. Ends the requests that ended before it was taken."""
        pending.step.wait()
        starts, slots, known = pending.starts, pending.slots, self._slots
        routing = self._steps.extract(pending.first, int(starts[-1]), mode="take")
        rows = self._array(routing)
        sampled, rejected = np.asarray(pending.sampled), np.asarray(pending.rejected)
        if not sampled.shape == rejected.shape == slots.shape:
            raise ValueError(
                f"a step of {len(slots)} requests has numbers of sampled and rejected tokens of the"
                f" shapes {sampled.shape} and {rejected.shape}, where one number of each is expected"
            )
        with self._lock:
            emits, cursors = state = known.emit_cursor[:, slots]
            begins = np.minimum(pending.begins, cursors)  # the scheduler may count on drafts
            firsts = starts[:-1]
            accepted = starts[1:] - firsts - rejected
            np.add(begins, accepted, out=cursors)
            given = (sampled > 0) & (emits <= cursors)
            whole = bool(given.all())
            at = emits + (firsts - begins)  # the row of `emit`, if the step has it
            found = StepOutputs()
            one_each = len(rows) == len(slots) and bool((accepted == 1).all())
            if whole and one_each and (at == firsts).all():
                each = map(self._output, emits.tolist(), rows[:, None])
                found.update(zip(pending.names, each, strict=True))
                emits[:] = cursors
            else:
                for i in np.flatnonzero(given).tolist():
                    emit, first, row = int(emits[i]), firsts[i], at[i]
                    if row >= first:
                        part = rows[row : first + accepted[i]]
                    else:
                        part = self._read(slots[i], emit, cursors[i])
                    found[pending.names[i]] = self._output(emit, part)
                emits[given] = cursors[given]
            known.emit_cursor[:, slots] = state
            self._in_flight.pop(pending.step.ticket, None)
            if self._ended:
                self._close_ended()
        return found

    def _read(self, slot: int, first: int, end: int) -> NDArray[Any]:
        """Rows [first, end) of a request, including adopted ones, which may be in flight."""
        request = self._capturer.request(self._slots.handle[slot])
        routing = request.fork(int(end)).finish(int(end))
        routing.wait()
        return self._array(routing.slice(first, end - first))

    def _array(self, routing: routecap.Routing) -> NDArray[Any]:
        if self._weights:
            rows: NDArray[Any] = to_packed(routing, self._fill)
        else:
            rows = to_array(routing, self._fill, self._dtype)
        if self._decoder_layers == routing.layers:
            return rows
        return spread(rows, self._decoder_layers, routing.layer_map)

    # ---- Blocks

    def _make_store(self, hash_bytes: int) -> None:
        if self.store is None:  # only now the length of the hashes is known
            self._hash_bytes, by_number = hash_bytes, self._numbers is not None
            self.store = routecap.Store(
                self._capturer,
                block_rows=self._block_rows,
                key_bytes=8 if by_number else hash_bytes,
                budget_bytes=self._store_bytes,
                generation=0 if by_number else self._epoch,
                slot_keys=by_number,
            )

    def _number(self, of: Numbers) -> None:
        """Note the numbers of blocks that the step tells. Those that the engine allocates hold
        nothing any more."""
        step, self.told = self.told, None
        if step is None:
            raise RuntimeError(
                "GPUModelRunner.execute_model of vllm.v1.worker.gpu.model_runner did not begin this"
                " step, so the blocks of its requests are not known: unset ROUTECAP_VLLM to let"
                " vLLM capture itself"
            )
        copies = step.kv_cache_block_copies or ()
        self._copied = {each.dst_block_id: each.src_block_id for each in copies}
        allocated: list[int] = []
        for new in step.scheduled_new_reqs:
            numbers = list(new.block_ids[of.group])
            if (request := self._requests.get(new.req_id)) is not None:
                request.numbers = numbers
            allocated += numbers[new.num_computed_tokens // (of.parts * self._block_rows) :]
        cached = step.scheduled_cached_reqs
        for name, blocks in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if blocks is None or not blocks[of.group]:  # nearly all, in a step of decoding
                continue
            if (request := self._requests.get(name)) is not None:
                if name in cached.resumed_req_ids:
                    request.numbers.clear()
                request.numbers += blocks[of.group]
            allocated += blocks[of.group]
        gone = [key for number in allocated for key in self._keys_of_number(number)]
        gone = [key for key in gone if self._kept.pop(key, None) is not None]
        if gone:
            assert self.store is not None
            self.store.evict(np.array(gone, np.uint64))

    def _keys_of_number(self, number: int) -> range:
        assert self._numbers is not None
        return range(number * self._numbers.parts, (number + 1) * self._numbers.parts)

    def _of_hashes(self, data: bytes | bytearray) -> NDArray[np.uint8]:
        return np.frombuffer(bytes(data), np.uint8).reshape(-1, self._hash_bytes)

    def _hash_of(self, request: _Request, block: int) -> bytes:
        return bytes(request.hashes[block * self._hash_bytes : (block + 1) * self._hash_bytes])

    def _key(self, request: _Request, block: int, taken: bool = False) -> int:
        """The key of a block of a request in a store of numbers.

        taken: Of what the request took from the cache. A block of which it took a part is a copy.
        """
        assert self._numbers is not None
        index, part = divmod(block, self._numbers.parts)
        number = request.numbers[index] if index < len(request.numbers) else 0
        if taken:
            number = self._copied.get(number, number)
        return number * self._numbers.parts + part if number else _NOWHERE  # 0 is no block

    def _publish(self, issued: bool) -> None:
        """Publish the blocks whose rows are issued.

        issued: Whether those of the step that begins are, too.
        """
        scheduled = self._metadata.requests
        told, later = [], []
        for request in dict.fromkeys(self._keyed):
            in_step = request.name in scheduled and self._requests.get(request.name) is request
            first, end = request.published, len(request.hashes) // self._hash_bytes
            if in_step and not issued:
                later.append(request)
            elif first < end and self._slots.handle[request.slot]:
                if (known := self._computed(request, in_step) // self._block_rows) < end:
                    later.append(request)
                    end = known
                if first < end:
                    told.append((request, first, end))
                    request.published = end
        self._keyed = later
        if told and self._numbers is not None:
            self._publish_numbers(told)
        elif told and not self._mixed:
            self._publish_hashes(told)

    def _computed(self, request: _Request, in_step: bool) -> int:
        """How many rows of a request are issued and of tokens that have hashes.

        in_step: Whether the last ones are of the step that has just been issued. Otherwise some may
            be of drafts that were rejected.
        """
        if self._exact:
            return len(request.hashes) // self._hash_bytes * self._block_rows
        issued = int(self._slots.issued[request.slot])
        return issued if in_step else min(issued, int(self._slots.emit_cursor[1, request.slot]))

    def _publish_numbers(self, told: Sequence[tuple[_Request, int, int]]) -> None:
        """Publish blocks [first, end) of each of these requests."""
        assert self.store is not None
        items = []
        for request, first, end in told:
            keys = [self._key(request, block) for block in range(first, end)]
            self._kept.update(
                (key, self._hash_of(request, block)) for block, key in enumerate(keys, first)
            )
            rows = self._block_rows * first
            items.append((self._handle(request), rows, np.array(keys, np.uint64)))
        self._kept.pop(_NOWHERE, None)
        self._capturer.publish_batch(self.store, items)

    def _publish_hashes(self, told: Sequence[tuple[_Request, int, int]]) -> None:
        """The store retains them while their request runs."""
        assert self.store is not None
        keys = [self._of_hashes(request.hashes)[first:end] for request, first, end in told]
        items = [
            (self._handle(request), self._block_rows * first, each)
            for (request, first, _), each in zip(told, keys, strict=True)
        ]
        self._capturer.publish_batch(self.store, items, generation=self._epoch)
        self._keep([request for request, _, _ in told], keys)

    def _handle(self, request: _Request) -> int:
        return int(self._slots.handle[request.slot])

    def _adopt(self, request: _Request, blocks: int) -> None:
        """Adopt the first blocks of a new request, which it took from the engine's cache."""
        if not blocks:
            return
        assert self.store is not None  # the scheduler tells the hashes of what it takes
        begun = self._capturer.request(self._handle(request))
        if self._numbers is None:
            keys = self._of_hashes(request.hashes)[:blocks]
            begun.adopt(self.store, 0, keys, generation=self._epoch)
            self._keep([request], [keys])
            return
        found = [self._key(request, block, taken=True) for block in range(blocks)]
        for block, key in enumerate(found):
            if self._kept.get(key) != self._hash_of(request, block):
                found[block] = _NOWHERE
        begun.adopt(self.store, 0, np.array(found, np.uint64))
        if copied := blocks % self._numbers.parts:  # the request goes on in a copy
            self._publish_numbers([(request, blocks - copied, blocks)])

    def _keep(self, requests: Sequence[_Request], keys: Sequence[NDArray[np.uint8]]) -> None:
        """The store retains these keys of each request, as far as it has them."""
        assert self.store is not None
        kept, at = self.store.retain(np.concatenate(keys)) == 0, 0
        whole = bool(kept.all())
        for request, some in zip(requests, keys, strict=True):
            request.retained.append(some if whole else some[kept[at : at + len(some)]])
            at += len(some)

    def _retain(self, hashes: Any) -> None:
        """Retain blocks of finished requests while the engine has their keys and values."""
        if hashes is not None and self.store is not None and self._numbers is None:
            keys = self._of_hashes(hashes.data)
            self._retained.update(map(bytes, keys[self.store.retain(keys) == 0]))

    def _release(self, hashes: Any) -> None:
        if hashes is not None and self.store is not None and self._numbers is None:
            keys = [key for key in map(bytes, self._of_hashes(hashes.data)) if self._retained[key]]
            self._retained.subtract(keys)
            self.store.release(keys)

    # ---- Ends

    def _end(self, names: Iterable[str]) -> None:
        """These requests have no further steps. Those in flight may still have rows of them."""
        self._batch = None
        last = next(reversed(self._in_flight), 0)
        for name in names:
            request = self._requests.pop(name, None)
            if request is not None:
                self._ended.append((last, request))
                if request in self._keyed:
                    self._keyed = [each for each in self._keyed if each is not request]
        self._close_ended()

    def _close_ended(self) -> None:
        """Forget the requests of which no step is in flight."""
        oldest = next(iter(self._in_flight), None)
        over = [request for last, request in self._ended if oldest is None or last < oldest]
        if not over:
            return
        self._ended = [each for each in self._ended if oldest is not None and each[0] >= oldest]
        slots = [request.slot for request in over]
        handles = self._slots.handle[slots]
        self._capturer.close_batch(handles[handles != 0])
        self._slots.give_back(slots)
        for request in over:
            self._let_go(request)

    def _let_go(self, request: _Request) -> None:
        """Release its blocks, the last ones first, which the fewest other requests share."""
        if request.retained:
            assert self.store is not None
            keys = np.concatenate(request.retained)
            self.store.release(np.ascontiguousarray(keys[::-1]))
            request.retained.clear()

    def _renew(self, generation: int) -> None:
        """Forget all requests and keys: the engine has emptied its cache. Steps that are not taken
        yet belong to requests that end with it."""
        for request in self._requests.values():
            self._let_go(request)
        for _, request in self._ended:
            self._let_go(request)
        self._end(list(self._requests))
        self._keyed.clear()
        self._generation = generation
        if self.store is not None:
            self.store.release([key for key in self._retained.elements()])
        self._retained.clear()

    def close(self) -> None:
        with self._lock:
            self._requests.clear()
            self._batch = None
            if self.store is not None:
                self.store.close()
                self.store = None


# ---- The scheduler's side

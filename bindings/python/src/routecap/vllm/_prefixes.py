"""Rows of prefixes that an engine takes from its cache: out of a store, by the engine's own blocks.

A request that hits a block attends to the keys and values in it, and its rows are those of whoever
computed these. So a row is known by what identifies these keys and values:

    numbers   in a store of this process: the number of the block, for as long as it holds them. A
              block that the engine allocates anew has no rows until it is full
    contents  in a store that others use too, or where a connector brings blocks back, numbers mean
              nothing: the engine's hash of the block, which stands for its tokens, and the version
              of the weights under which it and all before it were computed

Both stay right when weights change and the engine keeps its blocks: rows out of them are still
theirs, and say so by their tags. Where it is not known under which weights a block was computed,
its rows are missing.

The scheduler says which blocks of its cache a step allocates, fills and hits, in this order. All
of it is done when the step is issued, as requests of one step may share a block. On the engine's
thread, which pays for blocks that are allocated, fill or are hit, and for nothing else. A scheduler
whose workers are in processes of their own says it with the step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import routecap

from .. import _structs as structs
from .._library import raw
from . import _store_file
from ._options import Options
from ._requests import RequestState

logger = logging.getLogger("vllm.routecap")  # which vLLM shows

_NOWHERE = 2**64 - 1  # as a number: of no block
# A request's name, a first row, and numbers or keys.
_Keyed = tuple[str, int, Sequence[int] | NDArray[np.uint8]]


class BlocksOf(NamedTuple):
    """Blocks of one request, one after another.

    first: Their first row.
    hashes: The engine's, of their tokens, if the store goes by contents: one for each number, or
        several, each of as many rows.
    """

    name: str
    first: int
    numbers: Sequence[int]
    hashes: Sequence[bytes] = ()


class Step:
    """What a scheduler says of blocks with one step.

    Attributes:
        allocated: Numbers of blocks that hold nothing any more.
        fills: The step, or one before it, computes the last of their rows.
        begins: The first blocks of a request that begins behind them, or begins anew.
        emptied: Before it the engine's cache was emptied, and what its connector has.
    """

    __slots__ = ("allocated", "begins", "emptied", "fills")

    def __init__(self) -> None:
        self.allocated: list[int] = []
        self.fills: list[BlocksOf] = []
        self.begins: list[BlocksOf] = []
        self.emptied = False

    def allocates(self, numbers: Sequence[int]) -> None:
        """These blocks hold nothing any more, also what the step was to fill: a request may be
        preempted after it was scheduled, and its blocks go to another in the same step."""
        if self.fills:
            gone = set(numbers)
            self.fills = [each for each in self.fills if gone.isdisjoint(each.numbers)]
        self.allocated += numbers

    def __bool__(self) -> bool:
        return bool(self.allocated or self.fills or self.begins or self.emptied)


class Told:
    """What a scheduler says of blocks.

    Attributes:
        by_contents: Whether hashes are wanted, and every request that begins, whatever it hits.
        step: The one that is being scheduled.
    """

    def __init__(self, by_contents: bool) -> None:
        self.by_contents = by_contents
        self.step = Step()

    def send(self, output: Any) -> None:
        """A step was scheduled."""
        if self.step:
            self._send(output, self.step)
            self.step = Step()

    def _send(self, output: Any, step: Step) -> None:
        raise NotImplementedError

    def drop(self, blocks: BlocksOf) -> None:
        """What was computed of these is wrong."""
        raise NotImplementedError


class Prefixes(Told):
    """Publishes and adopts blocks of the requests of a capturer."""

    def __init__(
        self,
        capturer: routecap.Capturer,
        requests: Mapping[str, RequestState],
        block_rows: int,
        hash_rows: int,
        hash_bytes: int,
        options: Options,
        handed: bool = False,
    ) -> None:
        """
        Args:
            requests: Those that are live, by name.
            block_rows: Of a block that has a number.
            hash_rows, hash_bytes: Of a block that has a hash, and of the hash.
            handed: Blocks may come back from outside of the engine's cache, with other numbers.
            options: Which store it is.

        Raises:
            ValueError: The program's store has other blocks.
            OSError, routecap.Error: There can be no such file, or it is of another model.
        """
        super().__init__(handed or options.store is not None or bool(options.store_file))
        self._capturer, self._requests = capturer, requests
        self.waiting: list[Step] = []  # which the capturer looks at
        self._contents = _Contents(requests) if self.by_contents else None
        rows, key_bytes = (hash_rows, hash_bytes) if self.by_contents else (block_rows, 8)
        if options.store is not None:
            self.store = options.store
        elif options.store_file:
            self.store = _store_file.make(
                options.store_file,
                capturer,
                block_rows=rows,
                key_bytes=key_bytes,
                budget_bytes=options.store_bytes,
            )
        else:
            self.store = routecap.Store(
                capturer,
                block_rows=rows,
                key_bytes=key_bytes,
                budget_bytes=options.store_bytes,
                slot_keys=not self.by_contents,
            )
        if (self.store.block_rows, self.store.key_bytes) != (rows, key_bytes):
            raise ValueError(
                f"the store has blocks of {self.store.block_rows} rows and keys of"
                f" {self.store.key_bytes} bytes, the engine of {rows} and {key_bytes}: make"
                f" it with block_rows={rows}, key_bytes={key_bytes}"
            )
        self._broken = self._older = False

    def _send(self, output: Any, step: Step) -> None:
        self.waiting.append(step)

    def drop(self, blocks: BlocksOf) -> None:
        if not blocks.numbers:
            return
        if self._contents is not None:
            self.store.evict(self._contents.dropped(blocks))
        else:
            self.store.evict(np.array(blocks.numbers, np.uint64))

    def weights_changed(self) -> None:
        """Steps from now on are computed with others."""
        if self._contents is not None:
            self._contents.weights_changed()

    def settle(self, tag: int) -> None:
        """A step was issued, with this tag."""
        steps = self.waiting.copy()
        self.waiting.clear()
        if self._broken:
            return
        if tag < self.store.generation and not self._older:  # of the program's own store
            self._older = True
            logger.warning(
                "routed experts: rows of cached prefixes will be missing: they have tag %d, and the"
                " store is at generation %d. Give the version that the weights have, by set_tag",
                tag,
                self.store.generation,
            )
        try:
            for step in steps:
                self._settle(step, tag)
        except (routecap.Error, ValueError) as error:
            self._broken = True
            logger.error("routed experts: rows of cached prefixes will be missing: %s", error)

    def _settle(self, step: Step, tag: int) -> None:
        if self._contents is not None:
            fills, begins = self._contents.keys_of(step, tag)
        else:
            if step.allocated:
                self.store.evict(np.array(step.allocated, np.uint64))
            fills = [(each.name, *run) for each in step.fills for run in self._runs(each)]
            begins = [(each.name, 0, each.numbers) for each in step.begins]
        self._call(raw.routecap_request_publish_batch, structs.publish_dtype, fills)
        self._call(raw.routecap_request_adopt_batch, structs.adopt_dtype, begins)

    def _runs(self, blocks: BlocksOf) -> Iterator[tuple[int, Sequence[int]]]:
        """First row and numbers of those that are blocks: behind a window there is none."""
        if all(blocks.numbers):
            yield blocks.first, blocks.numbers
            return
        for index, number in enumerate(blocks.numbers):
            if number:
                yield blocks.first + index * self.store.block_rows, [number]

    def _call(self, call: Callable[..., Any], dtype: Any, blocks: Sequence[_Keyed]) -> None:
        """Those of requests that are captured. What was not issued is nobody's, and skipped."""
        found = [
            (state.handle, first, keys)
            for name, first, keys in blocks
            if len(keys) and (state := self._requests.get(name)) is not None and state.handle
        ]
        if not found:
            return
        handles, firsts, keys = zip(*found, strict=True)
        data = (
            _keys_of(chain.from_iterable(keys)) if self._contents is None else np.concatenate(keys)
        )
        counts = [len(each) for each in keys]
        offsets = list(accumulate(counts, initial=0))[:-1]
        items: Any = np.zeros(len(found), dtype)
        items["request"], items["first"], items["count"] = handles, firsts, counts
        items["keys"] = data.ctypes.data + np.array(offsets, np.uint64) * self.store.key_bytes
        # What a key stands for does not change with the weights: nothing here is ever stale.
        call(self._capturer._handle, self.store._handle, items, self.store.generation)


def _keys_of(numbers: Iterable[int]) -> NDArray[np.uint64]:
    """Keys in a store of slots."""
    keys = np.fromiter(numbers, np.uint64)
    keys[keys == 0] = _NOWHERE  # the engine's number of what lies behind a window
    return keys


def content_keys(hashes: Sequence[bytes], versions: Sequence[int]) -> NDArray[np.uint8]:
    """[blocks, bytes of a hash]: keys of blocks that were computed under these versions of the
    weights, as all before them; -1: under several, or it is not known. Such keys nobody has."""
    keys = np.frombuffer(b"".join(hashes), np.uint8).reshape(len(hashes), -1).copy()
    if any(versions):
        numbers = np.array([each % 2**64 for each in versions], np.uint64)
        keys[:, :8] ^= (numbers * np.uint64(0x9E3779B97F4A7C15)).view(np.uint8).reshape(-1, 8)
    return keys


class _Contents:
    """Under which weights the blocks of an engine's cache were computed, and so their keys."""

    def __init__(self, requests: Mapping[str, RequestState]) -> None:
        self._requests = requests
        self._versions: dict[int, int] = {}  # of blocks, by number; -1: of several
        self._handed = True  # what a connector brings was computed under the weights of now

    def weights_changed(self) -> None:
        for state in self._requests.values():
            state.version = -1  # of all rows from now on
        self._handed = False

    def keys_of(self, step: Step, tag: int) -> tuple[list[_Keyed], list[_Keyed]]:
        """Of what a step fills and of what its requests begin with."""
        self._handed |= step.emptied
        for number in step.allocated:
            self._versions.pop(number, None)
        waiting = {each.name: each for each in step.begins}
        fills: list[_Keyed] = []
        begins: list[_Keyed] = []
        for each in step.fills:  # in the order in which requests were scheduled, who may share them
            if (begin := waiting.pop(each.name, None)) is not None:
                begins.append(self._begin(begin, tag))
            state = self._requests.get(each.name)
            version = -1 if state is None else state.version
            self._versions.update(dict.fromkeys(each.numbers, version))
            if version >= 0:
                fills.append((each.name, each.first, self._keys(each)))
        begins += [self._begin(each, tag) for each in waiting.values()]
        return fills, begins

    def _begin(self, blocks: BlocksOf, tag: int) -> _Keyed:
        for number in blocks.numbers:  # of no step: loaded from another engine
            self._versions.setdefault(number, tag if self._handed else -1)
        state = self._requests.get(blocks.name)
        if state is not None:
            same = all(self._versions[number] == tag for number in blocks.numbers)
            state.version = tag if same else -1
        return blocks.name, 0, self._keys(blocks)

    def _keys(self, blocks: BlocksOf) -> NDArray[np.uint8]:
        if not blocks.numbers:
            return np.empty((0, 0), np.uint8)
        several = len(blocks.hashes) // len(blocks.numbers)
        versions = [self._versions.get(each, -1) for each in blocks.numbers for _ in range(several)]
        return content_keys(blocks.hashes, versions)

    def dropped(self, blocks: BlocksOf) -> NDArray[np.uint8]:
        """The keys of blocks that are computed anew."""
        keys = self._keys(blocks)
        self._versions.update(dict.fromkeys(blocks.numbers, -1))
        return keys

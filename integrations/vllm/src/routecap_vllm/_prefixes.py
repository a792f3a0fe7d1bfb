"""Rows of prefixes that an engine takes from its cache come out of a store, block by block.

A request that hits a block attends to the keys and values in it. Its rows are those that were
captured when these keys and values were computed. So the key of a block's rows is what identifies
its keys and values:

    numbers   in a store of this process: the number of the block. When the engine allocates the
              block anew, it has no rows until it is full
    contents  in a store that others use too, or if a connector brings blocks back, where numbers
              mean nothing: the engine's hash of the block, which stands for its tokens, and the
              version of the weights under which this block and all before it were computed

Both keys stay right when the weights change and the engine keeps its blocks: the rows still belong
to these keys and values, and their tags say so. If it is not known under which weights a block was
computed, its rows are missing.

The scheduler says which blocks a step allocates, fills and hits, in this order. All of it is done
when the step is issued, because requests of one step may share a block. It runs on the engine's
thread, and costs time only for blocks that are allocated, filled or hit. If the workers are in
separate processes, the scheduler sends it to them with the step.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import routecap

from ._options import Options
from ._requests import RequestState

logger = logging.getLogger("vllm.routecap")  # which vLLM shows

_NOWHERE = 2**64 - 1  # the number of no block
# A request's name, the first row, and numbers or keys of blocks.
_Keyed = tuple[str, int, Sequence[int] | NDArray[np.uint8]]


class BlocksOf(NamedTuple):
    """Consecutive blocks of one request.

    first: Their first row.
    hashes: The engine's hashes of their tokens, if keys are contents: one for each number, or
        several, each for the same number of rows.
    """

    name: str
    first: int
    numbers: Sequence[int]
    hashes: Sequence[bytes] = ()


@dataclasses.dataclass(slots=True, eq=False)
class Step:
    """What a scheduler says of blocks with one step.

    Attributes:
        allocated: Numbers of blocks that hold nothing any more.
        fills: Blocks whose last row is computed in this step or in one before it.
        begins: For each request that begins, or begins anew, its blocks that are in the cache.
        emptied: Whether the engine's cache, and its connector's, was emptied before the step.
    """

    allocated: list[int] = dataclasses.field(default_factory=list)
    fills: list[BlocksOf] = dataclasses.field(default_factory=list)
    begins: list[BlocksOf] = dataclasses.field(default_factory=list)
    emptied: bool = False

    def allocates(self, numbers: Sequence[int]) -> None:
        """These blocks hold nothing any more. That includes blocks that the step was to fill: a
        request may be preempted after it was scheduled, and another gets its blocks in the same
        step.
        """
        if self.fills:
            gone = set(numbers)
            self.fills = [each for each in self.fills if gone.isdisjoint(each.numbers)]
        self.allocated += numbers

    def __bool__(self) -> bool:
        return bool(self.allocated or self.fills or self.begins or self.emptied)


class Told:
    """What a scheduler says of blocks.

    Attributes:
        by_contents: Whether keys are contents. Then hashes are wanted, and every request that
            begins, even if it hits nothing.
        step: The one that is being scheduled.
    """

    def __init__(self, by_contents: bool) -> None:
        self.by_contents = by_contents
        self.step = Step()

    def send(self, output: object) -> None:
        """A step was scheduled."""
        if self.step:
            self._send(output, self.step)
            self.step = Step()

    def _send(self, output: object, step: Step) -> None:
        raise NotImplementedError

    def drop(self, blocks: BlocksOf) -> None:
        """The rows of these blocks are wrong."""
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
            requests: Running requests by name.
            block_rows: Rows of a block that has a number.
            hash_rows, hash_bytes: Rows that a hash stands for, and bytes of the hash.
            handed: Whether blocks may come back from outside the engine's cache, with new numbers.
            options: They say which store is used.

        Raises:
            ValueError: The blocks of the given store do not match.
        """
        super().__init__(handed or options.store is not None)
        self._capturer, self._requests = capturer, requests
        self.waiting: list[Step] = []  # the capturer calls `settle` if there are any
        self._contents = _Contents(requests) if self.by_contents else None
        rows, key_bytes = (hash_rows, hash_bytes) if self.by_contents else (block_rows, 8)
        if options.store is not None:
            self.store = options.store
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

    def _send(self, output: object, step: Step) -> None:
        self.waiting.append(step)

    def drop(self, blocks: BlocksOf) -> None:
        if not blocks.numbers:
            return
        if self._contents is not None:
            self.store.evict(self._contents.dropped(blocks))
        else:
            self.store.evict(np.array(blocks.numbers, np.uint64))

    def weights_changed(self) -> None:
        """Steps from now on are computed with new weights."""
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
                "routed experts: rows of cached prefixes will be missing, because their tag is %d"
                " and the store is at generation %d: set the version of the weights by set_tag",
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
        # A key stands for the same keys and values whatever the weights are: nothing gets stale.
        self._capturer.publish_batch(self.store, self._keyed(fills))
        self._capturer.adopt_batch(self.store, self._keyed(begins))

    def _runs(self, blocks: BlocksOf) -> Iterator[tuple[int, Sequence[int]]]:
        """First rows and numbers of the blocks. Number 0 is no block: it lies behind a window."""
        if all(blocks.numbers):
            yield blocks.first, blocks.numbers
            return
        for index, number in enumerate(blocks.numbers):
            if number:
                yield blocks.first + index * self.store.block_rows, [number]

    def _keyed(self, blocks: Sequence[_Keyed]) -> list[tuple[int, int, NDArray[Any]]]:
        """Handle, first row and keys of the blocks of requests that are captured. Others are
        skipped.
        """
        return [
            (state.handle, first, _keys_of(keys) if self._contents is None else np.asarray(keys))
            for name, first, keys in blocks
            if len(keys) and (state := self._requests.get(name)) is not None and state.handle
        ]


def _keys_of(numbers: Iterable[int]) -> NDArray[np.uint64]:
    """Keys in a store of slots."""
    keys = np.fromiter(numbers, np.uint64)
    keys[keys == 0] = _NOWHERE  # the engine's number for what lies behind a window
    return keys


def content_keys(hashes: Sequence[bytes], versions: Sequence[int]) -> NDArray[np.uint8]:
    """[blocks, bytes of a hash]: the key of each block, from its hash and the version of the
    weights under which it and all blocks before it were computed. -1: there were several versions,
    or it is not known; the store has no block under such a key.
    """
    keys = np.frombuffer(b"".join(hashes), np.uint8).reshape(len(hashes), -1).copy()
    if any(versions):
        numbers = np.array([each % 2**64 for each in versions], np.uint64)
        keys[:, :8] ^= (numbers * np.uint64(0x9E3779B97F4A7C15)).view(np.uint8).reshape(-1, 8)
    return keys


class _Contents:
    """Knows under which weights each block of the engine's cache was computed, and so its key."""

    def __init__(self, requests: Mapping[str, RequestState]) -> None:
        self._requests = requests
        self._versions: dict[int, int] = {}  # of blocks, by number; -1: of several
        self._handed = True  # what a connector brings was computed under the present weights

    def weights_changed(self) -> None:
        for state in self._requests.values():
            state.version = -1  # of all rows from now on
        self._handed = False

    def keys_of(self, step: Step, tag: int) -> tuple[list[_Keyed], list[_Keyed]]:
        """Keys of the blocks that a step fills, and of those that its requests begin with."""
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
        for number in blocks.numbers:  # blocks of no step were loaded from another engine
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
        """The keys of blocks that will be computed anew."""
        keys = self._keys(blocks)
        self._versions.update(dict.fromkeys(blocks.numbers, -1))
        return keys

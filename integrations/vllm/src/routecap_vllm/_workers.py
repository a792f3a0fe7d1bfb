"""Capturers of workers that are processes of their own: how the scheduler tells them which requests
have ended, and gets their rows.

Of the ranks of a tensor-parallel group, the first has the rows. Each stage of a pipeline has the
rows of its own layers, and the scheduler's process merges them. It is the same with rows of cached
prefixes: each worker has a store, and the scheduler says with each step what happens to its blocks.

    Workers  in the scheduler's process: takes the place of a capturer
    Held     outputs whose rows are on their way, for one step at most
    serve    in a worker's process: what `Workers` calls, and stages that sample no token
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import routecap

from . import routed_experts_capturer
from ._options import get_options
from ._prefixes import BlocksOf, Step, Told
from ._results import PendingRoutedExperts
from ._wrap import once, replace

_BLOCKS = "routecap_blocks"  # of a step that is scheduled

_executor: weakref.ref[Any] | None = None  # the last that was made in this process


def remember_executor(executor_class: object) -> None:
    """Wrap the executor's __init__, so that a scheduler finds the executor of its engine. It is
    made after the executor, in the same process.
    """
    init = once(executor_class, "__init__")
    if init is None:
        return

    def init_and_remember(executor: object, *args: object, **kwargs: object) -> None:
        global _executor
        _executor = weakref.ref(executor)
        init(executor, *args, **kwargs)

    replace(executor_class, "__init__", init, init_and_remember)


def executor_of_this_process() -> Any:
    """Return the executor that was made last in this process, or None."""
    return None if _executor is None else _executor()


class Workers:
    """Does in the scheduler's process what a capturer would do, by calls to the capturers of the
    workers.

    Each call but `end_later` waits until the workers have run the steps in flight. Call it on the
    engine's thread.
    """

    def __init__(self, executor: Any) -> None:
        self._executor = executor
        self._call("routecap_tell_ends")

    def _call(self, name: str, *args: Any) -> list[Any]:
        answers: list[Any] = self._executor.collective_rpc(name, args=args)
        return answers

    def keep_prefixes(
        self, block_rows: int, hash_rows: int, hash_bytes: int, handed: bool
    ) -> BlocksOfWorkers | None:
        """As the same method of a capturer."""
        kept = self._call("routecap_keep_prefixes", block_rows, hash_rows, hash_bytes, handed)
        by_contents = [each for each in kept if each is not None]
        return BlocksOfWorkers(self, any(by_contents)) if by_contents else None

    def drop_blocks(self, blocks: BlocksOf) -> None:
        self._call("routecap_drop_blocks", blocks)

    def end(self, rows: Mapping[str, int]) -> dict[str, PendingRoutedExperts]:
        """As the same method of a capturer. All rows have landed when it returns."""
        return _united(self._call("routecap_end", dict(rows)))

    def end_later(self, rows: Mapping[str, int]) -> Callable[[], dict[str, PendingRoutedExperts]]:
        """Begin `end`, and return a function that waits for its result."""
        answers = self._executor.collective_rpc("routecap_end", args=(dict(rows),), non_block=True)
        return lambda: _united(answers.result())

    def cut(self, rows: Mapping[str, int]) -> None:
        self._call("routecap_cut", dict(rows))

    def weights_changed(self) -> None:
        self._call("routecap_weights_changed")


class BlocksOfWorkers(Told):
    """Sends what happens to blocks along with the step in which it happens. The workers then do
    what a capturer of this process would do.
    """

    def __init__(self, workers: Workers, by_contents: bool) -> None:
        super().__init__(by_contents)
        self._workers = workers

    def _send(self, output: object, step: Step) -> None:
        setattr(output, _BLOCKS, step)

    def drop(self, blocks: BlocksOf) -> None:
        if blocks.numbers:
            self._workers.drop_blocks(blocks)


def _united(answers: list[dict[str, bytes]]) -> dict[str, PendingRoutedExperts]:
    """Merge the rows that the workers have of each request into one result."""
    parts: dict[str, list[routecap.Routing]] = {}
    for answer in answers:
        for name, data in answer.items():
            parts.setdefault(name, []).append(routecap.Routing.deserialize(data))
    ended = {}
    for name, found in parts.items():
        routing = found[0] if len(found) == 1 else routecap.merge(found)
        shape = (routing.rows, routing.layers, routing.k)
        ended[name] = PendingRoutedExperts(routing, shape, get_options().fill)
    return ended


class Held:
    """Outputs of requests that have ended, held back until the workers have sent their rows. The
    rows come after the step in flight, with its outputs.
    """

    def __init__(
        self, outputs: Mapping[int, Any], rows: Mapping[str, int], workers: Workers
    ) -> None:
        self._rows = workers.end_later(rows)
        self._outputs: list[tuple[int, Any]] = []  # and whose client's they are
        for client, each in outputs.items():
            ends = [one for one in each.outputs if one.request_id in rows]
            each.outputs = [one for one in each.outputs if one.request_id not in rows]
            self._outputs += [(client, one) for one in ends]

    def released(self) -> list[tuple[int, Any]]:
        """Return the outputs with their rows, if that step's outputs have come."""
        rows = self._rows()
        for _, output in self._outputs:
            output.routed_experts = rows.get(output.request_id)
        return self._outputs


# ---- In a worker


def serve(worker: Any) -> None:
    """Make a worker answer the calls of `Workers`. Its device must be initialised."""
    for function in _ANSWERED:
        setattr(type(worker), function.__name__, function)
    if not _stage().is_last_rank:
        issue_after_forward(worker.model_runner)


def _stage() -> Any:
    """Return the group of the pipeline's stages, which knows the place of this process."""
    return import_module("vllm.distributed.parallel_state").get_pp_group()


def issue_after_forward(runner: Any) -> None:
    """Make a pipeline stage that samples no token issue its rows when its layers have run."""
    execute = runner.execute_model

    def execute_and_issue(scheduler_output: Any, *args: object, **kwargs: Any) -> Any:
        output = execute(scheduler_output, *args, **kwargs)
        counts = scheduler_output.num_scheduled_tokens
        if runner.routed_experts_initialized and counts:
            names = list(runner.input_batch.req_ids)
            if resumed := scheduler_output.scheduled_cached_reqs.resumed_req_ids:
                _capturer().resume(resumed)
            _capturer().issue(names, counts, runner.positions)
            # which looks at no end, as these are told, but keeps the requests
            _capturer().extract((), runner.requests, {}, None, runner.max_model_len)
        return output

    runner.execute_model = execute_and_issue


def _capturer() -> Any:
    """Return the capturer of this process, or None."""
    return routed_experts_capturer.get_global_experts_capturer()


def _keeps_rows() -> bool:
    """Whether this rank keeps rows. Mirrors do not."""
    return getattr(_capturer(), "host_cache", None) is not None


def routecap_tell_ends(worker: Any) -> None:
    if _keeps_rows():
        _capturer().tell_ends(worker.model_runner.requests)


def routecap_end(worker: object, rows: dict[str, int]) -> dict[str, bytes]:
    """End requests, and return their rows with validity and tags. Waits for rows in flight."""
    ended = _capturer().end(rows) if _keeps_rows() else {}
    return {name: each.part().serialize() for name, each in ended.items()}


def routecap_cut(worker: object, rows: dict[str, int]) -> None:
    if _keeps_rows():
        _capturer().cut(rows)


def routecap_weights_changed(worker: object) -> None:
    _capturer().weights_changed()


def routecap_keep_prefixes(
    worker: Any, block_rows: int, hash_rows: int, hash_bytes: int, handed: bool
) -> bool | None:
    """Create this worker's store. Returns whether its keys stand for content; None if it keeps no
    prefixes.
    """
    if not _keeps_rows():
        return None
    prefixes = _capturer().keep_prefixes(block_rows, hash_rows, hash_bytes, handed)
    if prefixes is None:
        return None
    runner = worker.model_runner
    execute = runner.execute_model

    def take_and_execute(scheduler_output: object, *args: object, **kwargs: object) -> Any:
        if (step := getattr(scheduler_output, _BLOCKS, None)) is not None:
            prefixes.waiting.append(step)
        return execute(scheduler_output, *args, **kwargs)

    runner.execute_model = take_and_execute
    return bool(prefixes.by_contents)


def routecap_drop_blocks(worker: object, blocks: BlocksOf) -> None:
    if _keeps_rows() and _capturer().prefixes is not None:
        _capturer().prefixes.drop(blocks)


_ANSWERED = (
    routecap_tell_ends,
    routecap_end,
    routecap_cut,
    routecap_weights_changed,
    routecap_keep_prefixes,
    routecap_drop_blocks,
)

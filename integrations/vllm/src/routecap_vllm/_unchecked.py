"""A version of vLLM that routecap was not checked with, where all places fit.

No request gets rows until the engine has answered requests of ours, before those of clients, and
`routecap_tools.conform` found nothing wrong with their rows. Every output, and every answer of a server
in a format, says that the version is not checked.

    Withholding   a base of the scheduler's class: rows leave the engine once they are proven
    prove         judges an engine, on its own thread: in the program's process when it is made, in
                  a process of its own when that begins to run
"""

from __future__ import annotations

import functools
import itertools
import logging
import os
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from routecap import models

from routecap_tools import conform
from . import _versions
from ._results import PendingRoutedExperts
from ._weights import unpacked
from ._wrap import once, replace

PLACES = """
vllm.config.scheduler
    SchedulerConfig.get_scheduler_cls(self)
vllm.v1.engine.core
    EngineCore.__init__(self, vllm_config, executor_class, log_stats, ...)
    EngineCore.add_request(self, request, ...)
    EngineCore.abort_requests(self, request_ids)
    EngineCore.post_step(self, model_executed)
    EngineCore: step_fn scheduler request_block_hasher vllm_config
    EngineCoreProc.run_busy_loop(self)
    DPEngineCoreProc.run_busy_loop(self)
vllm.v1.core.sched.scheduler
    Scheduler.update_from_output(self, scheduler_output, model_runner_output)
vllm.v1.core.sched.interface
    SchedulerInterface.has_requests(self)
vllm.v1.request
    Request.__init__(self, request_id, prompt_token_ids, sampling_params, pooling_params, ...)
vllm.v1.engine
    EngineCoreOutput: request_id new_token_ids finish_reason routed_experts
    EngineCoreOutputs: outputs
vllm.outputs
    CompletionOutput: routed_experts
    RequestOutput: outputs
"""  # what this module replaces and reads, besides those of the version's module

logger = logging.getLogger("vllm.routecap")  # which vLLM shows

_CHECKS = ("token", "again", "cached", "prefix", "batch", "one", "stop", "abort", "rows", "each")
_NEEDED = ("token", "again", "prefix", "batch", "one", "rows", "each")
_TOKENS, _GENERATED = 40, 8


def guard(captures: Callable[[Any], bool]) -> None:
    """Withhold the rows of engines until they are proven, and let their outputs say so.

    Args:
        captures: Whether routecap captures in an engine of a configuration.
    """
    core = import_module("vllm.v1.engine.core")
    outputs = import_module("vllm.outputs")
    init = once(core.EngineCore, "__init__")
    if init is None:
        return
    _withhold(import_module("vllm.config.scheduler").SchedulerConfig)

    def init_and_prove(engine: object, *args: object, **kwargs: object) -> None:
        init(engine, *args, **kwargs)
        if type(engine) is core.EngineCore:
            prove(engine, captures)

    replace(core.EngineCore, "__init__", init, init_and_prove)
    for process in (core.EngineCoreProc, core.DPEngineCoreProc):
        _prove_first(process, captures)
    for output in (outputs.RequestOutput, outputs.CompletionOutput):
        output.routed_experts_unchecked = _versions.note


def _prove_first(process_class: Any, captures: Callable[[Any], bool]) -> None:
    run = process_class.run_busy_loop

    def prove_and_run(engine: object) -> Any:
        prove(engine, captures)
        return run(engine)

    replace(process_class, "run_busy_loop", run, prove_and_run)


# ---- Until then


class Withholding:
    """A base of the scheduler's class: outputs have no rows until `routecap_proven` is set."""

    routecap_proven = False

    def update_from_output(self, *args: object, **kwargs: object) -> Any:
        outputs = super().update_from_output(*args, **kwargs)  # type: ignore[misc]
        if not self.routecap_proven:
            for output in itertools.chain.from_iterable(each.outputs for each in outputs.values()):
                output.routed_experts = None
        return outputs


@functools.cache
def _withholding(cls: type) -> type:
    return type(f"Withholding{cls.__name__}", (Withholding, cls), {})


def _withhold(config_class: Any) -> None:
    get_class = config_class.get_scheduler_cls
    replace(
        config_class,
        "get_scheduler_cls",
        get_class,
        lambda config: _withholding(get_class(config)),
    )


# ---- The proof


def prove(engine: Any, captures: Callable[[Any], bool]) -> None:
    """Let the rows of an engine out if conform finds nothing wrong with them. Say so, or why not."""
    config = engine.vllm_config
    if not captures(config) or not isinstance(engine.scheduler, Withholding):
        return  # there are none, or they are vLLM's own
    why = ""
    if config.parallel_config.data_parallel_size > 1:
        why = "engines with data parallelism cannot be checked at their start"
    else:
        engine.scheduler.routecap_proven = True
        try:
            report = _judge(engine)
        except Exception as error:  # whatever it is, the engine goes on without rows
            logger.exception("routed experts: the check at the engine's start failed")
            why = f"the check at the engine's start failed: {error}"
        else:
            bad = [
                f"{each.check} {each.result}: {'; '.join(each.what)}"
                for each in report.verdicts
                if each.result == "fails" or (each.check in _NEEDED and each.result != "passes")
            ]
            why = ". ".join(bad)
    engine.scheduler.routecap_proven = not why
    if why:
        logger.error(
            "routed experts: capture stays off, and no request gets rows. routecap is %s, and did"
            " not pass conform at the engine's start: %s. Install a version of vLLM that routecap"
            " supports, or unset ROUTECAP_VLLM to let vLLM capture itself",
            _versions.note,
            why,
        )
    else:
        logger.warning(
            "routed experts: routecap captures, %s. It passed conform at the engine's start: %s",
            _versions.note,
            ", ".join(each.check for each in report.verdicts if each.result == "passes"),
        )


def _judge(engine: Any) -> conform.Report:
    config = engine.vllm_config.model_config
    longest = min(_TOKENS, (config.max_model_len - 3 * _GENERATED) // 2)
    if longest < 16:
        raise ValueError(f"max_model_len is {config.max_model_len}: give the engine 64 or more")
    return conform.judge(
        _Asked(engine).functions(),
        models.describe(config.hf_text_config),
        vocabulary=config.get_vocab_size(),
        only=_CHECKS,
        tokens=longest,
        generated=_GENERATED,
        requests=4,
    )


class _Asked:
    """Asks an engine for answers, between two steps of its own."""

    def __init__(self, engine: Any) -> None:
        self._engine, self._names = engine, map(str, itertools.count())
        self._request = import_module("vllm.v1.request").Request
        self._sampling = import_module("vllm.sampling_params").SamplingParams

    def functions(self) -> conform.Functions:
        return conform.Functions(
            "vLLM",
            self.generate,
            lambda answer: answer["rows"],
            lambda answer: answer["tokens"],
            can={"stop", "abort"},
            cached=lambda answer: answer["cached"],
        )

    def generate(self, requests: Sequence[conform.Request]) -> list[list[dict[str, Any]]]:
        answers: dict[str, dict[str, Any]] = {}
        left = []
        for request in requests:
            name = f"routecap-{os.getpid()}-{next(self._names)}"
            answers[name] = {"tokens": list(request.prompt), "chunks": [], "cached": None}
            left += [name] if request.abort else []
            stop = [] if request.stop is None else [request.stop]
            sampling = self._sampling(
                temperature=0,
                max_tokens=request.max_tokens,
                stop_token_ids=stop,
                ignore_eos=True,
                detokenize=False,
            )
            hasher = self._engine.request_block_hasher
            prompt = list(request.prompt)
            own = self._request(name, prompt, sampling, None, block_hasher=hasher)
            self._engine.add_request(own)
        running = set(answers)
        for step in itertools.count():
            if step == 2 and left:
                self._engine.abort_requests(left)
                running -= set(left)
            if not running and not self._engine.scheduler.has_requests():
                break
            for output in self._step():
                self._note(output, answers, running)
            if step > 1000:
                raise RuntimeError("the engine answers nothing in 1,000 steps: look at its log")
        for answer in answers.values():
            answer["rows"] = _rows(answer["chunks"])
        return [[each] for each in answers.values()]

    def _step(self) -> list[Any]:
        outputs, executed = self._engine.step_fn()
        self._engine.post_step(executed)
        return [each for client in (outputs or {}).values() for each in client.outputs]

    @staticmethod
    def _note(output: Any, answers: dict[str, dict[str, Any]], running: set[str]) -> None:
        answer = answers.get(output.request_id)
        if answer is None:
            return
        answer["tokens"] += output.new_token_ids
        if output.routed_experts is not None:
            answer["chunks"].append(output.routed_experts)
        stats = getattr(output, "prefill_stats", None) or output
        answer["cached"] = answer["cached"] or getattr(stats, "num_cached_tokens", None)
        if output.finish_reason is not None:
            running.discard(output.request_id)


def _rows(chunks: list[Any]) -> Any:
    """The rows of an answer, without layers that do not route; None if it has none."""
    if not chunks:
        return None
    if isinstance(chunks[0], PendingRoutedExperts):
        return chunks[0].part()
    rows = unpacked(np.concatenate(chunks))[0].astype(np.int32)
    routing = rows[:, (rows != -1).any(axis=(0, 2))]
    return routing if routing.shape[1] else rows

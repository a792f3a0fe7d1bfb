"""What is replaced in vLLM 0.21, whose workers have a cache of rows by request.

    own_module      routecap_vllm.routed_experts_capturer takes the place of vLLM's module that
                    captures
    lift_refusal    vLLM refuses capture together with async scheduling, and with pipeline
                    parallelism. It no longer does, where the scheduler can tell the workers which
                    requests end. The only worker of an engine moves into the engine's process
    answer          a worker issues the rows of a step before it waits for the step's tokens, and
                    answers a scheduler in another process

Other versions replace the rest too: see `_compiled`, `_scheduler`, `_hooks`, `_transport`,
`_front_end` and `_server`. The scheduler runs on the engine's thread, the transport on the thread
that sends outputs, and the front end on the thread of the caller.
"""

from __future__ import annotations

import logging
import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from . import (
    _binding,
    _compiled,
    _front_end,
    _hooks,
    _scheduler,
    _server,
    _transport,
    routed_experts_capturer,
)
from ._compiled import compile_alike, replayed_pieces
from ._forward import say_pieces
from ._front_end import each_processor, make_lazy, say_captures, take_rows
from ._hooks import expect_runner, expect_whole_passes, watch_weights
from ._places import places_of
from ._platform import ONE_PROCESS, expect_cuda
from ._scheduler import tell_ends
from ._server import Tokens, serve
from ._transport import send_bytes
from ._workers import remember_executor
from ._workers import serve as serve_scheduler
from ._wrap import once, replace

RELEASES = ("0.21.0",)

PLACES = f"""{places_of(_hooks, _binding, _compiled, _transport, _scheduler, _front_end, _server)}
vllm.entrypoints.serve.disagg.serving
    ServingTokens.serve_tokens_full_generator(self, request, result_generator, ...)
    ServingTokens.serve_tokens_stream_generator(self, request, result_generator, ...)
    GenerateResponse GenerateResponseChoice
vllm.config.vllm
    VllmConfig._validate_return_routed_experts(self)
vllm.v1.worker.gpu_worker
    Worker: use_v2_model_runner
vllm.v1.executor.abstract
    Executor.__init__(self, vllm_config)
vllm.model_executor.layers.fused_moe.routed_experts_capturer
    get_global_experts_capturer
    issue_routing_d2h_copy(input_batch_req_ids, num_scheduled_tokens, positions, positions_cpu)
"""  # what this module and those replace and read

logger = logging.getLogger("vllm.routecap")  # which vLLM shows

# Each of two micro-batches numbers its rows from 0. The rows of one would be taken for the other's.
TWO_BATCHES = "routed experts are not captured where a step is run as several micro-batches"

_TOKENS = Tokens("vllm.entrypoints.serve.disagg.serving")
MODULE = "vllm.model_executor.layers.fused_moe.routed_experts_capturer"
# Names that modules of vLLM import from it.
_NAMES = (
    "RoutedExpertsCapturer",
    "bind_routing_capture_to_model",
    "extract_routed_experts_for_current_batch",
    "free_routing_buffers",
    "get_global_experts_capturer",
    "init_routed_experts_capturer_with_shared_cache",
    "issue_routing_d2h_copy",
    "set_global_experts_capturer",
    "split_routed_experts",
)


def apply() -> None:
    """Replace all of these, once.

    Raises:
        RuntimeError: The engine's own capturer is in use already.
    """
    own_module(MODULE)
    say_pieces(replayed_pieces)
    lift_refusal(import_module("vllm.config.vllm").VllmConfig)
    compile_alike(import_module("vllm.config.model").ModelConfig)
    tell_ends(import_module("vllm.config.scheduler").SchedulerConfig)
    send_bytes(import_module("vllm.v1.serial_utils").MsgpackEncoder)
    watch_weights(import_module("vllm.v1.worker.worker_base").WorkerWrapperBase, answer)
    remember_executor(import_module("vllm.v1.executor.abstract").Executor)
    look_later(import_module("vllm.outputs"), import_module("vllm.v1.engine.output_processor"))
    inputs = import_module("vllm.v1.engine.input_processor")
    each_processor(inputs.InputProcessor, lambda config: serve(_TOKENS))


def captures(config: Any) -> bool:
    """Whether routecap captures in engines of this configuration."""
    return bool(
        config.model_config is not None and config.model_config.enable_return_routed_experts
    )


# ---- The module that captures


def own_module(name: str) -> ModuleType:
    """Replace a module of the engine by ours, also where it was imported already."""
    module: ModuleType = routed_experts_capturer
    own = sys.modules.get(name, module)
    if own is not module:
        get = getattr(own, "get_global_experts_capturer", None)
        in_use: Any = get() if callable(get) else None
        if in_use is not None and in_use.get_device_cache() is not None:
            raise RuntimeError(
                f"{name} captures already: install routecap before the engine is made"
            )
        functions = {each: getattr(own, each) for each in _NAMES if hasattr(own, each)}
        for user in list(sys.modules.values()):
            has = getattr(user, "__dict__", None)
            if not isinstance(has, dict) or user in (own, module):
                continue
            for each, function in functions.items():
                if has.get(each) is function:
                    setattr(user, each, getattr(module, each))
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], child, module)
    return module


# ---- What the engine refuses


def lift_refusal(config_class: Any) -> None:
    """Allow capture with async scheduling. Refuse it if the library cannot capture."""
    validate = once(config_class, "_validate_return_routed_experts")
    if validate is None:
        return

    def validate_without_async(config: Any) -> None:
        say_captures()
        expect_whole_passes(config)
        expect_cuda()
        scheduling, parallel = config.scheduler_config, config.parallel_config
        if parallel.use_ubatching:
            raise ValueError(TWO_BATCHES)
        ahead, stages = scheduling.async_scheduling, parallel.pipeline_parallel_size
        if ahead:
            put_into_one_process(parallel)
        if workers_can_be_told(parallel):
            scheduling.async_scheduling, parallel.pipeline_parallel_size = False, 1
        try:
            validate(config)
        finally:
            scheduling.async_scheduling, parallel.pipeline_parallel_size = ahead, stages
        for what, there in (("async scheduling", ahead), ("pipeline parallelism", stages > 1)):
            if there:
                logger.info(
                    "routed experts: routecap captures them with %s, which vLLM's own does not",
                    what,
                )

    replace(config_class, "_validate_return_routed_experts", validate, validate_without_async)


def put_into_one_process(parallel: Any) -> None:
    """Run the only worker of an engine in the engine's process.

    With data parallelism vLLM starts a process even for a single worker. In the engine's process
    the scheduler need not wait for the worker when a request ends.
    """
    if parallel.world_size == 1 and parallel.distributed_executor_backend == "mp":
        parallel.distributed_executor_backend = "uni"
        logger.info("routed experts: the worker is in the engine's process, not in one of its own")


def workers_can_be_told(parallel: Any) -> bool:
    """Whether the scheduler can tell the workers which requests end."""
    backend = parallel.distributed_executor_backend
    return backend == "mp" or (parallel.world_size == 1 and backend in ONE_PROCESS)


# ---- The worker


def answer(wrapper: Any) -> None:
    """A worker of an engine that captures answers a scheduler in another process."""
    if wrapper.vllm_config.model_config.enable_return_routed_experts:
        expect_runner(wrapper.worker, v2=False)
        serve_scheduler(wrapper.worker)
        issue_before_tokens(import_module("vllm.v1.worker.gpu_model_runner"))


def issue_before_tokens(runner_module: Any) -> None:
    """Issue the rows of a step while the device still computes it.

    Without async scheduling vLLM waits for the tokens of the step first. The device would be idle
    while the rows are issued.
    """
    runner_class = runner_module.GPUModelRunner
    bookkeep = once(runner_class, "_bookkeeping_sync")
    if bookkeep is None:
        return
    module: Any = routed_experts_capturer

    def issue_and_bookkeep(runner: Any, scheduler_output: Any, *args: object, **kwargs: Any) -> Any:
        if runner.routed_experts_initialized:
            counts = scheduler_output.num_scheduled_tokens
            if resumed := scheduler_output.scheduled_cached_reqs.resumed_req_ids:
                module._method("resume")(resumed)
            module.issue_routing_d2h_copy(
                runner.input_batch.req_ids, counts, runner.positions, None
            )
        return bookkeep(runner, scheduler_output, *args, **kwargs)

    replace(runner_class, "_bookkeeping_sync", bookkeep, issue_and_bookkeep)
    runner_module.issue_routing_d2h_copy = lambda **arguments: None  # vLLM's later call


# ---- The front end


def look_later(outputs: Any, processor: Any) -> None:
    """Outputs hold the rows as they came, and convert them, as each request asked, when somebody
    reads them.
    """
    make_lazy(outputs.CompletionOutput, "routed_experts")
    make_lazy(outputs.RequestOutput, "prompt_routed_experts")
    take_rows(processor.RequestState, processor.OutputProcessor)

"""What is replaced in vLLM 0.22 to 0.30, whose scheduler has a table of rows by slot of the cache.

    prepare_worker    `Capture` takes the place of the capturer of a worker in the engine's process,
                      or `CaptureV2` in model runner V2, which can capture since 0.28. vLLM's own
                      stays off: it clears, copies and sends nothing
    TellingScheduler  as in 0.21, and without the table
    TakingState       as in 0.21; all rows belong to the completion
    refuse            requests that ask for what this engine does not have

Other versions replace the rest too: see `_compiled`, `_scheduler`, `_hooks`, `_transport`,
`_front_end` and `_server`.

Rows are captured by request, in the worker, whose input batch says which request each row belongs
to. If the workers are in separate processes (tensor parallelism), vLLM's own capture stays. Threads
are as in 0.21.
"""

from __future__ import annotations

import functools
import logging
from importlib import import_module
from typing import Any, NamedTuple

from . import (
    _binding,
    _compiled,
    _front_end,
    _hooks,
    _scheduler,
    _server,
    _transport,
    _versions,
    routed_experts_capturer,
)
from ._asked import Asked, asked_by
from ._compiled import compile_alike, replayed_pieces
from ._forward import say_pieces
from ._front_end import captures_here, each_processor, make_lazy, say_captures, take_rows
from ._hooks import expect_python_front_end, expect_whole_passes, take_worker, watch_weights
from ._options import get_options
from ._places import places_of
from ._platform import ONE_PROCESS, expect_cuda
from ._results import PendingRoutedExperts
from ._scheduler import tell_ends
from ._server import Tokens, check, serve
from ._transport import send_bytes

RELEASES = (
    *("0.22.0", "0.22.1", "0.23.0", "0.24.0", "0.25.0", "0.25.1", "0.26.0", "0.27.0", "0.27.1"),
    *("0.28.0", "0.29.0", "0.30.0"),
)

PLACES = f"""{places_of(_hooks, _binding, _compiled, _transport, _scheduler, _front_end, _server)}
vllm.v1.worker.gpu_model_runner
    GPUModelRunner.execute_model(self, scheduler_output, ...)
    GPUModelRunner.init_routed_experts_capturer(self)
vllm.model_executor.layers.fused_moe.modular_kernel since 0.27
    FusedMoEExpertsMonolithic.set_capture_fn(self, capture_fn)
    FusedMoEExpertsMonolithic.supports_routing_replay_capture(self)
vllm.v1.worker.gpu.model_runner since 0.28
    GPUModelRunner.execute_model(self, scheduler_output, ...)
    GPUModelRunner.sample_tokens(self, grammar_output)
    GPUModelRunner.init_routed_experts_capturer(self)
    GPUModelRunner.get_model(self)
    GPUModelRunner: execute_model_state input_buffers req_states model_config scheduler_config
    GPUModelRunner: device max_model_len
    ExecuteModelState: input_batch
vllm.v1.worker.gpu.input_batch since 0.28
    InputBatch: req_ids
    InputBuffers: positions
vllm.v1.worker.gpu.states since 0.28
    RequestState: req_id_to_index num_computed_tokens_np
vllm.config.speculative since 0.28
    SpeculativeConfig: enable_adaptive_verification
vllm.sampling_params
    SamplingParams: routed_experts_prompt_start
vllm.config.vllm
    VllmConfig: use_v2_model_runner speculative_config
vllm.entrypoints.serve.disagg.serving until 0.24
    ServingTokens.serve_tokens_full_generator(self, request, result_generator, ...)
    ServingTokens.serve_tokens_stream_generator(self, request, result_generator, ...)
    GenerateResponse GenerateResponseChoice
vllm.entrypoints.scale_out.token_in_token_out.serving since 0.25
    ServingTokens.serve_tokens_full_generator(self, request, result_generator, ...)
    ServingTokens.serve_tokens_stream_generator(self, request, result_generator, ...)
    GenerateResponse GenerateResponseChoice
"""  # what this module and those replace and read

logger = logging.getLogger("vllm.routecap")  # which vLLM shows


def apply() -> None:
    """Replace all of these, once."""
    say_pieces(replayed_pieces)
    compile_alike(import_module("vllm.config.model").ModelConfig)
    wrapper = import_module("vllm.v1.worker.worker_base").WorkerWrapperBase
    take_worker(wrapper, check_worker, prepare_worker)
    watch_weights(wrapper)
    tell_ends(import_module("vllm.config.scheduler").SchedulerConfig, TellingScheduler)
    send_bytes(import_module("vllm.v1.serial_utils").MsgpackEncoder)
    look_later(
        import_module("vllm.outputs"),
        import_module("vllm.v1.engine.output_processor"),
        import_module("vllm.v1.engine.input_processor"),
    )


def captures(config: Any) -> bool:
    """Whether routecap captures in engines of this configuration."""
    return bool(
        config.model_config is not None
        and config.model_config.enable_return_routed_experts
        and not _why_not(config.parallel_config)
    )


def _why_not(parallel: Any) -> str:
    """Why vLLM's own capture stays in engines of this configuration; "" if routecap captures."""
    if parallel.distributed_executor_backend not in ONE_PROCESS:
        return "the workers are in separate processes"
    return "a step runs as several micro-batches" if parallel.use_ubatching else ""


# ---- The worker


def check_worker(config: Any) -> None:
    """Refuse, or warn, before weights are loaded: the library cannot capture, or vLLM's own capture
    stays.
    """
    if captures(config):
        expect_python_front_end()
        expect_known_drafts(config)
        expect_whole_passes(config)
        expect_cuda()
    elif config.model_config.enable_return_routed_experts:
        if get_options().weights:
            raise ValueError(
                f"ROUTECAP_VLLM_WEIGHTS is set, and {_why_not(config.parallel_config)}, where vLLM"
                " captures itself, ids alone: unset it, or make the engine without that"
            )
        logger.warning(
            "routed experts: vLLM captures them itself, because %s. Make the engine without that "
            "to capture with routecap",
            _why_not(config.parallel_config),
        )


def expect_known_drafts(config: Any) -> None:
    """Raises: ValueError: Only the device knows how many drafts of each request a step verifies."""
    speculative = config.speculative_config
    if config.use_v2_model_runner and speculative and speculative.enable_adaptive_verification:
        raise ValueError(
            "routed experts: with adaptive verification only the device knows whose rows are whose:"
            " set enable_adaptive_verification=false in the speculative config"
        )


def prepare_worker(wrapper: Any) -> None:
    """The runner makes our capturer where it would make its own: when its caches are made."""
    config = wrapper.vllm_config
    if captures(config):
        runner, kind = wrapper.worker.model_runner, capture_of(config)
        runner.init_routed_experts_capturer = functools.partial(kind, runner)


def capture_of(config: Any) -> type[Capture]:
    """By the model runner that the engine has chosen."""
    return CaptureV2 if config.use_v2_model_runner else Capture


class Capture:
    """What a model runner does at each step besides its own work, on the engine's thread."""

    def __init__(self, runner: Any) -> None:
        self.runner = runner
        make: Any = routed_experts_capturer.init_routed_experts_capturer_with_shared_cache
        self.capturer: Any = make(
            enable=True,
            model_config=runner.model_config,
            num_fused_shared_experts=0,
            max_num_batched_tokens=runner.scheduler_config.max_num_batched_tokens,
            max_model_len=runner.max_model_len,
            device=runner.device,
        )
        layers = runner.model_config.get_total_num_hidden_layers()
        if layers != self.capturer.num_hidden_layers:
            self.capturer.decoder_layers = layers
        self.capturer.bind(runner.get_model())
        self._execute, runner.execute_model = runner.execute_model, self.execute_model
        self._watch()

    def _watch(self) -> None:
        """Issue rows, and let the capturer read the runner's requests."""
        runner = self.runner
        self.capturer.extract((), runner.requests, {}, None, 0)
        self._bookkeep, runner._bookkeeping_sync = runner._bookkeeping_sync, self.bookkeep

    def execute_model(self, scheduler_output: Any, *args: Any, **kwargs: object) -> Any:
        self.begin(scheduler_output)
        return self._execute(scheduler_output, *args, **kwargs)

    def bookkeep(self, scheduler_output: object, *args: object, **kwargs: object) -> Any:
        """Issue the rows of the step before vLLM waits for its tokens: they travel meanwhile."""
        self.issue(scheduler_output)
        return self._bookkeep(scheduler_output, *args, **kwargs)

    def begin(self, scheduler_output: Any) -> None:
        over, preempted = scheduler_output.finished_req_ids, scheduler_output.preempted_req_ids
        if over or preempted:
            self.capturer.free(over, preempted)
        if resumed := scheduler_output.scheduled_cached_reqs.resumed_req_ids:
            self.capturer.resume(resumed)
        self.capturer.finalize_pending_copy()

    def issue(self, scheduler_output: Any) -> None:
        runner = self.runner
        self.capturer.issue(
            runner.input_batch.req_ids, scheduler_output.num_scheduled_tokens, runner.positions
        )


class CaptureV2(Capture):
    """The same in model runner V2, which tells every preemption, and keeps requests in arrays."""

    _counts: Any = None  # of the rows of each request in the step that began

    def begin(self, scheduler_output: Any) -> None:
        super().begin(scheduler_output)
        self._counts = scheduler_output.num_scheduled_tokens

    def _watch(self) -> None:
        runner = self.runner
        requests: Any = _RequestsV2(runner.req_states, self.capturer)
        self.capturer.extract((), requests, {}, None, 0)
        self._sample, runner.sample_tokens = runner.sample_tokens, self.sample_tokens

    def sample_tokens(self, grammar_output: Any) -> Any:
        """The step's rows are issued before its tokens are sampled, and drafts made of them."""
        if (state := self.runner.execute_model_state) is not None:
            names, positions = state.input_batch.req_ids, self.runner.input_buffers.positions
            self.capturer.issue(names, self._counts, positions)
        return self._sample(grammar_output)


class _RequestV2(NamedTuple):
    """What the capturer reads of a request: where the step begins, and which tokens are known."""

    num_computed_tokens: int
    num_prompt_tokens: int
    output_token_ids: Any


class _RequestsV2:
    def __init__(self, states: Any, capturer: Any) -> None:
        self._states, self._capturer = states, capturer

    def get(self, name: str) -> _RequestV2 | None:
        index = self._states.req_id_to_index.get(name)
        told = self._capturer.scheduler_requests.get(name)
        if index is None or told is None:
            return None
        computed = int(self._states.num_computed_tokens_np[index])
        return _RequestV2(computed, told.num_prompt_tokens, told.output_token_ids)


# ---- The scheduler


class TellingScheduler(_scheduler.TellingScheduler):
    """A base of the scheduler's class, as in 0.21, without vLLM's table of rows by slot."""

    @staticmethod
    def _is_ours(config: object) -> bool:
        return captures(config)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        config = kwargs["vllm_config"] if "vllm_config" in kwargs else args[0]
        config.model_config.enable_return_routed_experts = False
        try:
            super().__init__(*args, **kwargs)
        finally:
            config.model_config.enable_return_routed_experts = True
        self._find_capturer()

    def _front_end_waits(self, sampling_params: object) -> bool:
        return self._capturer is not None and asked_by(sampling_params).capture


# ---- The front end


def look_later(outputs: Any, processor: Any, inputs: Any) -> None:
    """Outputs hold the rows as they came, and convert them, as each request asked, when somebody
    reads them.
    """
    make_lazy(outputs.CompletionOutput, "routed_experts")
    take_rows(processor.RequestState, processor.OutputProcessor, TakingState)
    each_processor(inputs.InputProcessor, _look)


class TakingState(_front_end.TakingState):
    """A base of the state's class, as in 0.21. All rows belong to the completion."""

    ENDS = frozenset({"stop string", "abort"})
    OWN_START = True

    @staticmethod
    def check(asked: Asked) -> None:
        refuse(asked)

    @staticmethod
    def are_ours(rows: Any) -> bool:
        """vLLM's own are an array [rows, layers, k] for each step."""
        return isinstance(rows, PendingRoutedExperts) or rows.ndim == 1

    def _divide(self, rows: object) -> tuple[Any, Any]:
        return None, rows


def tokens() -> Tokens:
    old = _versions.release() < (0, 25)
    where = "serve.disagg" if old else "scale_out.token_in_token_out"
    return Tokens(f"vllm.entrypoints.{where}.serving")


def refuse(asked: Asked) -> None:
    """Raises: ValueError: This engine, or this version of vLLM, does not have what is asked for."""
    if asked._replace(capture=True) != Asked() and not captures_here():
        raise ValueError(
            "this engine does not capture with routecap, which alone has routed_experts_start, "
            "_dtype, _format and _validity. Make it with one process for the engine and its "
            "worker, or leave them out"
        )
    check(asked)


def _look(config: object) -> None:
    if captures(config):
        say_captures()
        serve(tokens(), refuse)

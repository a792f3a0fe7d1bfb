"""What is replaced in vLLM from 0.31 on: both sides of the connector for auxiliary output.

    put_worker      the worker's side, `RowsConnector`. Rows are captured by request, kept in
                    routecap's store under the numbers of the engine's blocks, and returned with
                    the outputs of a step. The runner's execute_model says which blocks these are
    put_scheduler   the scheduler's side, `TolerantScheduling`. The engine uses a cached prefix even
                    if its rows are gone, and a row that is gone does not stop the engine
    answer_asked    a request that asks for a format is answered in it by AsyncLLM, and so by the
                    HTTP server (`_server`)
    refuse_asked    a request that asks for what these releases do not have is refused

With ROUTECAP_VLLM_WEIGHTS=1 the rows of the engine have weights beside the ids (`to_packed`),
and its front end takes them apart.

A missing row is -1: its keys and values came from another engine, or the store was full. With
ROUTECAP_VLLM_FILL=0 it is 0, and rows have the type that vLLM's own have. Layers of the decoder
that do not route are 0 in either case.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import copy
import logging
import sys
from collections.abc import AsyncGenerator, Iterator, Sequence
from importlib import import_module
from typing import Any

from numpy.typing import NDArray

import routecap

from . import (
    _binding,
    _compiled,
    _hooks,
    _model_config,
    _server,
    _versions,
    routed_experts_capturer,
)
from ._answers import ERROR, ROWS, Answer
from ._asked import Asked, asked_by, without_format
from ._capturer import RoutedExpertsCapturer
from ._compiled import compile_alike, replayed_pieces
from ._connector import Numbers, RowsConnector
from ._forward import say_pieces
from ._front_end import each_processor
from ._hooks import (
    each_scheduler,
    expect_python_front_end,
    expect_runner,
    expect_whole_passes,
    take_worker,
    watch_weights,
)
from ._options import get_options
from ._places import places_of
from ._platform import expect_cuda
from ._results import PendingRoutedExperts
from ._server import Tokens, answered, check, give_out
from ._weights import give_weights
from ._wrap import once, replace

RELEASES = ("0.31.0", "0.32.0", "0.33.0")

PLACES = f"""{places_of(_hooks, _binding, _compiled, _server)}
vllm.config.aux_output
    AuxOutputConfig.compute_hash(self)
    AuxOutputConfig: enable_return_routed_experts
vllm.distributed.parallel_state
    get_tp_group()
vllm.v1.engine.input_processor
    InputProcessor.process_inputs(self, request_id, prompt, params, ...)
vllm.entrypoints.scale_out.token_in_token_out.serving
    ServingTokens.serve_tokens_full_generator(self, request, result_generator, ...)
    ServingTokens.serve_tokens_stream_generator(self, request, result_generator, ...)
    GenerateResponse GenerateResponseChoice until 0.31
    GenerateTokensResponse GenerateTokensChoice GenerateTextResponse GenerateTextChoice since 0.32
    GenerateDerenderResponse GenerateDerenderChoice since 0.33
vllm.sampling_params
    SamplingParams: routed_experts_prompt_start
    RequestOutputKind: DELTA
vllm.config.vllm
    VllmConfig: aux_output_config kv_transfer_config use_v2_model_runner
vllm.v1.core.sched.scheduler
    Scheduler: aux_output_connector
    AuxOutputSchedulerConnector
vllm.v1.core.kv_cache_utils
    resolve_kv_cache_block_sizes(kv_cache_config, vllm_config)
vllm.model_executor.layers.fused_moe.routed_experts_capturer
    bind_routed_experts_capturer(model, capturer)
vllm.v1.worker.gpu.model_runner
    GPUModelRunner.execute_model(self, scheduler_output, ...)
    GPUModelRunner: aux_output_connector
    get_aux_output_connector
vllm.v1.core.sched.output
    NewRequestData: req_id num_computed_tokens block_ids
    CachedRequestData: req_ids new_block_ids resumed_req_ids
    SchedulerOutput: scheduled_new_reqs scheduled_cached_reqs kv_cache_block_copies
vllm.v1.core.kv_cache_utils
    KVCacheBlockCopy: src_block_id dst_block_id
vllm.v1.kv_cache_interface
    FullAttentionSpec:
    UniformTypeKVCacheSpecs: kv_cache_specs
    KVCacheSpec: block_size
    KVCacheGroupSpec: kv_cache_spec
    KVCacheConfig: num_blocks kv_cache_groups
vllm.v1.worker.gpu.input_batch
    InputBatch: req_ids query_start_loc_np num_computed_tokens_np num_draft_tokens_per_req positions
vllm.distributed.aux_output_connector.worker
    get_aux_output_connector(model, vllm_config, kv_cache_config)
    AuxOutputWorkerConnector.begin_step(self, metadata)
    AuxOutputWorkerConnector.prepare_output(self, input_batch)
    PendingAuxOutput.enqueue_cpu_copy(self, num_sampled, num_rejected)
    PendingAuxOutput.process_output(self)
vllm.distributed.aux_output_connector.connector
    PackedBlockHashes: data item_size
    AuxOutputConnectorMetadata: generation requests block_hashes finished_requests
    AuxOutputConnectorMetadata: retained_block_hashes released_block_hashes since 0.33
    AuxRequestOutput: token_start rows
    AuxOutputSchedulerConnector.max_cache_hit(self, request) since 0.33
    AuxOutputSchedulerConnector.cap_external_hit(self, request, num_local, num_external) since 0.33
    AuxOutputSchedulerConnector.take_output(self, request, output)
    AuxOutputSchedulerConnector.__init__(self, kv_cache_manager, kv_connector) since 0.33
    AuxOutputSchedulerConnector._kv_blocks(self, hashes) since 0.33
vllm.v1.core.kv_cache_manager
    KVCacheManager: block_pool kv_cache_config since 0.33
vllm.v1.core.block_pool
    BlockPool: hash_block_size since 0.33
"""  # what this module and those replace and read

logger = logging.getLogger("vllm.routecap")  # which vLLM shows
_PACKAGE = "vllm.distributed.aux_output_connector"
_ENGINE = "vllm.v1.engine.async_llm"
_GENERATE = "vllm.entrypoints.scale_out.token_in_token_out.serving"


def apply() -> None:
    """Replace all of these, once."""
    say_pieces(replayed_pieces)
    compile_alike(import_module("vllm.config.aux_output").AuxOutputConfig)
    wrapper = import_module("vllm.v1.worker.worker_base").WorkerWrapperBase
    take_worker(wrapper, check_worker, prepare_worker)
    watch_weights(wrapper)
    each_scheduler(import_module("vllm.config.scheduler").SchedulerConfig, take_scheduler)
    processor = import_module("vllm.v1.engine.input_processor").InputProcessor
    refuse_asked(processor)
    each_processor(processor, look)


def captures(config: Any) -> bool:
    """Whether routecap captures in engines of this configuration."""
    return bool(config.aux_output_config.enabled)


# ---- The front end


def tokens() -> Tokens:
    """The generate endpoint, and of what kinds its answers are."""
    if (release := _versions.release()) < (0, 32):
        return Tokens(_GENERATE)
    kinds = ("Tokens", "Text", "Derender")[: 2 if release < (0, 33) else 3]
    pairs = tuple((f"Generate{kind}Choice", f"Generate{kind}Response") for kind in kinds)
    return Tokens(_GENERATE, pairs)


def look(config: object) -> None:
    answer_in_formats()
    if captures(config) and get_options().weights:
        give_weights(import_module("vllm.v1.engine.output_processor").RequestState)


def answer_in_formats() -> None:
    """Wrap the AsyncLLM of this process, if it has one. What makes it is imported by now."""
    if _ENGINE in sys.modules:
        answer_asked(sys.modules[_ENGINE].AsyncLLM)


def refuse_asked(processor_class: object) -> None:
    """Requests are refused if they ask for what this release does not have, or reach the engine's front end
    with a format that nobody took off them to answer in it."""
    process = once(processor_class, "process_inputs")
    if process is None:
        return

    def process_inputs(
        processor: object,
        request_id: str,
        prompt: object,
        params: object,
        *args: object,
        **kwargs: object,
    ) -> Any:
        asked = asked_by(params)
        refuse(asked)
        if asked != Asked():
            raise ValueError(
                "from vLLM 0.31 on only AsyncLLM.generate and the HTTP server answer in a"
                " routed_experts_format: generate with them, or leave out routed_experts_format,"
                " _dtype and _validity"
            )
        return process(processor, request_id, prompt, params, *args, **kwargs)

    replace(processor_class, "process_inputs", process, process_inputs)


def refuse(asked: Asked) -> None:
    """Raises: ValueError: This release, or this process, does not have what is asked for."""
    if not asked.capture or asked.start:
        raise ValueError(
            "vLLM has no routed_experts and no routed_experts_start from 0.31 on: leave them out, or"
            " use routed_experts_prompt_start"
        )
    check(asked)


def answer_asked(engine_class: Any) -> None:
    """Wrap AsyncLLM.generate: the last output of a completion has the answer in the format that the
    request asked for."""
    generate = once(engine_class, "generate")
    if generate is None:
        return

    def answering(
        engine: Any, prompt: Any, sampling_params: Any, *args: object, **kwargs: Any
    ) -> Any:
        asked = asked_by(sampling_params)
        refuse(asked)  # before a stream begins
        if asked.format is None:
            return generate(engine, prompt, sampling_params, *args, **kwargs)
        give_out(tokens())
        start = sampling_params.routed_experts_prompt_start
        plain = copy.copy(sampling_params)
        plain.extra_args = without_format(sampling_params.extra_args)
        outputs = generate(engine, prompt, plain, *args, **kwargs)
        return _with_answers(outputs, engine.model_config, asked._replace(start=start), plain)

    replace(engine_class, "generate", generate, answering)


async def _with_answers(
    outputs: Any, model_config: Any, asked: Asked, sampling_params: Any
) -> AsyncGenerator[Any, None]:
    """Yield outputs; where a completion has ended, after its answer was made in a thread."""
    delta = sampling_params.output_kind.name == "DELTA"  # outputs have new tokens alone
    tokens: collections.Counter[int] = collections.Counter()
    async with contextlib.aclosing(outputs):
        async for output in outputs:
            for each in output.outputs:
                tokens[each.index] = len(each.token_ids) + (tokens[each.index] if delta else 0)
                if each.finish_reason is not None and each.routed_experts is not None:
                    whole = len(output.prompt_token_ids) + tokens[each.index] - 1 - asked.start
                    await asyncio.to_thread(_answer, each, model_config, asked, whole)
            yield output


def _answer(completion: Any, model_config: Any, asked: Asked, whole: int) -> None:
    """Put the answer into the place of the array.

    whole: how many rows there are of the tokens, the last of which was never an input.
    """
    rows = completion.routed_experts
    try:
        cut_off = completion.finish_reason in ("abort", "error")
        if len(rows) > whole or (len(rows) < whole and not cut_off):
            raise ValueError(
                f"{len(rows)} rows came for {whole} inputs, so their positions are not certain:"
                " leave routed_experts_format out for sessions"
            )
        weights = vars(completion).get("routed_experts_weights")  # ours, if they are captured
        found = Answer(of_decoder(rows, model_config, asked, weights), asked).for_json()
    except (routecap.Error, ValueError) as error:
        found = {ROWS: None, ERROR: str(error)}
    for name, value in found.items():
        setattr(completion, name, value)
    answered(completion, found)


def of_decoder(
    rows: NDArray[Any], model_config: object, asked: Asked, weights: NDArray[Any] | None = None
) -> PendingRoutedExperts:
    """The rows from position `asked.start` on, from an array [rows, layers of the decoder, k] that
    has -1 in missing cells, and of the same shape the weights of its ids. It has no tags: a
    request's rows come without the version of the model.

    Raises:
        ValueError: The array does not say which cells are missing.
    """
    if rows.dtype.kind != "i":
        raise ValueError(
            f"these rows are {rows.dtype}, in which a missing cell looks like an expert: leave"
            " ROUTECAP_VLLM_FILL out, and let routecap capture"
        )
    config = _model_config.hf_config_of(model_config)
    layers = _model_config.moe_layers(config)
    routing = routecap.Routing.from_arrays(
        rows[:, layers],
        first=asked.start,
        layer_map=layers,
        layer_experts=_model_config.experts_of_layers(config),
        weights=None if weights is None else weights[:, layers],
    )
    count, decoder_layers, k = rows.shape
    return PendingRoutedExperts(
        routing,
        (count, len(layers), k),
        -1,
        first=asked.start,
        dtype=asked.dtype,
        decoder_layers=0 if decoder_layers == len(layers) else decoder_layers,
    )


# ---- The worker's side


def check_worker(config: object) -> None:
    """Refuse, before weights are loaded, if the library cannot capture."""
    if captures(config):
        expect_python_front_end()
        expect_runner(config, v2=True)
        expect_whole_passes(config)
        expect_cuda()


def prepare_worker(wrapper: Any) -> None:
    """Put the worker's side in its place before the runner makes one."""
    if captures(wrapper.vllm_config):
        put_worker(import_module("vllm.v1.worker.gpu.model_runner"))


def put_worker(runner_module: Any) -> None:
    own = once(runner_module, "get_aux_output_connector")
    if own is None:
        return

    def get_aux_output_connector(model: object, vllm_config: Any, kv_cache_config: object) -> Any:
        try:
            return make_connector(model, vllm_config, kv_cache_config)
        except NotImplementedError as error:
            if get_options().weights:
                raise ValueError(
                    f"ROUTECAP_VLLM_WEIGHTS is set, and routecap does not capture here: {error}."
                    " Unset it to have the ids that vLLM captures itself"
                ) from error
            if vllm_config.kv_transfer_config is not None:
                raise ValueError(
                    f"routed experts: routecap does not capture here: {error}. With a KV connector"
                    " vLLM's own capture stops the engine at blocks that came without rows, unless"
                    " vLLM's own scheduler leaves them out: unset ROUTECAP_VLLM"
                ) from error
            logger.warning("routed experts: vLLM's own connector captures: %s", error)
            return own(model, vllm_config, kv_cache_config)

    runner_class = runner_module.GPUModelRunner
    execute = runner_class.execute_model

    def execute_model(runner: Any, scheduler_output: Any, *args: Any, **kwargs: object) -> Any:
        connector = runner.aux_output_connector
        if isinstance(connector, RowsConnector):
            connector.told = scheduler_output
        return execute(runner, scheduler_output, *args, **kwargs)

    replace(runner_module, "get_aux_output_connector", own, get_aux_output_connector)
    replace(runner_class, "execute_model", execute, execute_model)


def make_connector(model: Any, vllm_config: Any, kv_cache_config: Any) -> RowsConnector:
    """Raises: NotImplementedError: The routers may see other rows than the step's own."""
    if vllm_config.parallel_config.use_ubatching:
        raise NotImplementedError("two micro-batches run at once: leave --enable-dbo out")
    config, scheduling = vllm_config.model_config, vllm_config.scheduler_config
    first_rank = import_module("vllm.distributed.parallel_state").get_tp_group().is_first_rank
    resolve = import_module("vllm.v1.core.kv_cache_utils").resolve_kv_cache_block_sizes
    block_rows, hashed_rows = resolve(kv_cache_config, vllm_config)
    capture: Any = RoutedExpertsCapturer.create(
        enable=True,
        model_config=config,
        num_fused_shared_experts=0,
        max_num_batched_tokens=scheduling.max_num_batched_tokens,
        max_model_len=config.max_model_len,
        device=next(model.parameters()).device,
        skip_host_cache=not first_rank,
    )
    bind(model, capture)
    routed_experts_capturer.set_global_experts_capturer(capture)  # which hears of new weights
    store_bytes = vllm_config.aux_output_config.max_bytes
    transfer = vllm_config.kv_transfer_config
    if store_bytes is None:
        rows = kv_cache_config.num_blocks * (block_rows // hashed_rows) * hashed_rows
        store_bytes = capture.store_bytes(kept_rows(rows, transfer))
    return RowsConnector(
        capture,
        block_rows=hashed_rows,
        numbers=None if transfer else numbers_of(kv_cache_config.kv_cache_groups, hashed_rows),
        store_bytes=store_bytes,
        decoder_layers=config.get_total_num_hidden_layers(),
        output=import_module(f"{_PACKAGE}.connector").AuxRequestOutput,
        exact=_versions.release() >= (0, 33),
        owner=first_rank,
    )


def numbers_of(groups: Sequence[Any], hashed_rows: int) -> Numbers | None:
    """None if no group keeps every row: a number then does not stay that of a row.

    The scheduler has the first spec of a group whose layers have one each.
    """
    interface = import_module("vllm.v1.kv_cache_interface")
    for group, each in enumerate(groups):
        spec = each.kv_cache_spec
        if isinstance(spec, interface.UniformTypeKVCacheSpecs):
            spec = next(iter(spec.kv_cache_specs.values()))
        if isinstance(spec, interface.FullAttentionSpec):
            parts, rest = divmod(spec.block_size, hashed_rows)
            return None if rest else Numbers(group, parts)
    return None


def kept_rows(cache_rows: int, transfer: object) -> int:
    """How many rows the store needs room for, so that it has the rows of all of the engine's cache.

    Besides the rows of running requests, the scheduler of 0.33 retains as many rows of finished
    ones as the cache has, or twice as many with a connector.
    """
    return cache_rows * (2 if transfer is None else 3)


def bind(model: Any, capture: Any) -> None:
    """Tap the model's routers as the engine's own connector does, and begin and end its passes.
    Those callbacks give ids alone: with weights our own taps are taken.
    """
    if capture.device_cache.weights is not None:
        capture.bind(model)
        return
    captured = {place: index for index, place in enumerate(capture.layer_map)}
    forward = capture.forward
    first: dict[int | None, _binding.Layer] = {}
    for layer in list(_binding._find_layers(model)):
        _binding._check_layout(layer, int(capture.capturer.layer_experts.max()), placed=False)
        if layer.place is not None:
            _binding.expect_one_router(first.get(layer.place), layer)
            first[layer.place] = layer
        if layer.place in captured:
            if _binding.hides_zero_experts(layer):
                del captured[layer.place]
            elif widths := _binding.widths_of(layer, capture.capturer.k):
                forward.widths[captured[layer.place]] = widths

    class Tap:
        def capture(self, layer_id: int, topk_ids: Any) -> None:
            if layer_id in captured:
                forward.route(captured[layer_id], topk_ids)

    name = "vllm.model_executor.layers.fused_moe.routed_experts_capturer"
    import_module(name).bind_routed_experts_capturer(model, Tap())
    binding = _binding.Binding()
    _binding._delimit(binding, model, capture.device_cache, forward)
    binding.call_after(model, "load_weights", capture.weights_changed)


def take_scheduler(cls: object) -> Any:
    """Schedulers use our side of the connector, whatever class the configuration names."""
    put_scheduler(import_module("vllm.v1.core.sched.scheduler"))
    return cls


def put_scheduler(scheduler_module: Any) -> None:
    own = scheduler_module.AuxOutputSchedulerConnector
    if not issubclass(own, TolerantScheduling):
        bases: tuple[type, ...] = (TolerantScheduling, own)
        if _versions.release() >= (0, 33):
            bases = (RetainedByNumber, *bases)
        scheduler_module.AuxOutputSchedulerConnector = type(f"Routecap{own.__name__}", bases, {})


class TolerantScheduling:
    """A base of the scheduler's side: rows that are gone are missing, and that is all."""

    def max_cache_hit(self, request: Any) -> int:
        super().max_cache_hit(request)  # type: ignore[misc]  # it notes which blocks are used
        tokens: int = request.num_tokens
        return tokens - 1  # as without auxiliary output

    def cap_external_hit(self, request: object, num_local: int, num_external: int) -> int:
        return num_external

    def take_output(self, request: Any, output: Any) -> Any:
        """The rows of the tokens that are known; None if there are none."""
        found = None if output is None else output.get(request.request_id)
        if found is None:
            return None
        rows = request.num_tokens - 1 - found.token_start
        return found.rows[:rows] if rows >= 0 else None


class RetainedByNumber:
    """A base of the scheduler's side of 0.33: blocks of finished requests are not listed for the
    worker that keeps rows under the numbers of blocks. Listing a prompt of 1,024 tokens takes the
    engine's thread 0.3 ms, on an H200's host.
    """

    def __init__(self, kv_cache_manager: Any, kv_connector: object = None) -> None:
        super().__init__(kv_cache_manager, kv_connector)  # type: ignore[call-arg]
        groups = kv_cache_manager.kv_cache_config.kv_cache_groups
        hashed_rows = kv_cache_manager.block_pool.hash_block_size
        self._listed = numbers_of(groups, hashed_rows) is None or kv_connector is not None

    def _kv_blocks(self, hashes: Sequence[object]) -> Iterator[Any]:
        return super()._kv_blocks(hashes) if self._listed else iter(())  # type: ignore[misc]

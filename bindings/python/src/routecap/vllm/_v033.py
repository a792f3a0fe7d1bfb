"""What is replaced in vLLM 0.33: both sides of its connector for auxiliary output.

    put_worker      the worker's side, `RowsConnector`. Rows are captured by request, kept in
                    routecap's store under the numbers of the engine's blocks, and returned with
                    the outputs of a step. The runner's execute_model says which blocks these are
    put_scheduler   the scheduler's side, `TolerantScheduling`. The engine uses a cached prefix even
                    if its rows are gone, and a row that is gone does not stop the engine
    answer_asked    a request that asks for a format is answered in it by AsyncLLM, and so by the
                    HTTP server (`_server`)
    refuse_asked    a request that asks for what 0.33 does not have is refused

A missing row is -1: its keys and values came from another engine, or the store was full. Layers of
the decoder that do not route are -1 too. With ROUTECAP_VLLM_FILL=0 both are 0, and rows have the
type that vLLM's own have.

`begin_step` and `prepare_output` run on the engine's thread, `process_output` on the thread that
takes outputs.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import copy
import dataclasses
import logging
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Container, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

import routecap

from . import _binding, _compiled, _hooks, _model_config, _server, routed_experts_capturer
from ._again import KeptSpans
from ._answers import ERROR, ROWS, Answer
from ._asked import Asked, asked_by, without_format
from ._capturer import RoutedExpertsCapturer
from ._compiled import compile_alike, replayed_pieces
from ._forward import say_pieces
from ._front_end import each_processor
from ._hooks import each_scheduler, expect_runner, take_worker, watch_weights
from ._options import get_options
from ._places import places_of
from ._platform import expect_cuda
from ._results import PendingRoutedExperts, spread, to_array
from ._server import Tokens, answered, check, give_out
from ._wrap import once, replace

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
    GenerateTokensResponse GenerateTokensChoice GenerateTextResponse GenerateTextChoice
    GenerateDerenderResponse GenerateDerenderChoice
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
    AuxOutputConnectorMetadata: retained_block_hashes released_block_hashes
    AuxRequestOutput: token_start rows
    AuxOutputSchedulerConnector.max_cache_hit(self, request)
    AuxOutputSchedulerConnector.cap_external_hit(self, request, num_local, num_external)
    AuxOutputSchedulerConnector.take_output(self, request, output)
"""  # what this module and those replace and read

logger = logging.getLogger("vllm.routecap")  # which vLLM shows
_PACKAGE = "vllm.distributed.aux_output_connector"
_ENGINE = "vllm.v1.engine.async_llm"
_NOWHERE = 2**64 - 1  # the key of no block
_KINDS = ("Tokens", "Text", "Derender")  # of what the generate endpoint answers
_TOKENS = Tokens(
    "vllm.entrypoints.scale_out.token_in_token_out.serving",
    tuple((f"Generate{kind}Choice", f"Generate{kind}Response") for kind in _KINDS),
)


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
    each_processor(processor, lambda config: answer_in_formats())


def captures(config: Any) -> bool:
    """Whether routecap captures in engines of this configuration."""
    return bool(config.aux_output_config.enabled)


# ---- The front end


def answer_in_formats() -> None:
    """Wrap the AsyncLLM of this process, if it has one. What makes it is imported by now."""
    if _ENGINE in sys.modules:
        answer_asked(sys.modules[_ENGINE].AsyncLLM)


def refuse_asked(processor_class: Any) -> None:
    """Requests are refused if they ask for what 0.33 does not have, or reach the engine's front end
    with a format that nobody took off them to answer in it."""
    process = once(processor_class, "process_inputs")
    if process is None:
        return

    def process_inputs(
        processor: Any, request_id: str, prompt: Any, params: Any, *args: Any, **kwargs: Any
    ) -> Any:
        asked = asked_by(params)
        refuse(asked)
        if asked != Asked():
            raise ValueError(
                "in vLLM 0.33 only AsyncLLM.generate and the HTTP server answer in a"
                " routed_experts_format: generate with them, or leave out routed_experts_format,"
                " _dtype and _validity"
            )
        return process(processor, request_id, prompt, params, *args, **kwargs)

    replace(processor_class, "process_inputs", process, process_inputs)


def refuse(asked: Asked) -> None:
    """Raises: ValueError: 0.33, or this process, does not have what is asked for."""
    if not asked.capture or asked.start:
        raise ValueError(
            "vLLM 0.33 has no routed_experts and no routed_experts_start: leave them out, or use"
            " routed_experts_prompt_start"
        )
    if asked.format == "store":
        raise ValueError(
            "routed_experts_format is 'store', which only vLLM 0.21 has: give 'file' or another"
        )
    check(asked)


def answer_asked(engine_class: Any) -> None:
    """Wrap AsyncLLM.generate: the last output of a completion has the answer in the format that the
    request asked for."""
    generate = once(engine_class, "generate")
    if generate is None:
        return

    def answering(engine: Any, prompt: Any, sampling_params: Any, *args: Any, **kwargs: Any) -> Any:
        asked = asked_by(sampling_params)
        refuse(asked)  # before a stream begins
        if asked.format is None:
            return generate(engine, prompt, sampling_params, *args, **kwargs)
        give_out(_TOKENS)
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
        found = Answer(of_decoder(rows, model_config, asked), asked).for_json()
    except (routecap.Error, ValueError) as error:
        found = {ROWS: None, ERROR: str(error)}
    for name, value in found.items():
        setattr(completion, name, value)
    answered(completion, found)


def of_decoder(rows: NDArray[Any], model_config: Any, asked: Asked) -> PendingRoutedExperts:
    """The rows from position `asked.start` on, from an array [rows, layers of the decoder, k] that
    has -1 in missing cells. It has no tags: a request's rows come without the weights' version.

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


def check_worker(config: Any) -> None:
    """Refuse, before weights are loaded, if the library cannot capture."""
    if captures(config):
        expect_runner(config, v2=True)
        expect_cuda()


def prepare_worker(wrapper: Any) -> None:
    """Put the worker's side in its place before the runner makes one."""
    if captures(wrapper.vllm_config):
        put_worker(import_module("vllm.v1.worker.gpu.model_runner"))


def put_worker(runner_module: Any) -> None:
    own = once(runner_module, "get_aux_output_connector")
    if own is None:
        return

    def get_aux_output_connector(model: Any, vllm_config: Any, kv_cache_config: Any) -> Any:
        try:
            return make_connector(model, vllm_config, kv_cache_config)
        except NotImplementedError as error:
            logger.warning("routed experts: vLLM's own connector captures: %s", error)
            return own(model, vllm_config, kv_cache_config)

    runner_class = runner_module.GPUModelRunner
    execute = runner_class.execute_model

    def execute_model(runner: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
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
        owner=first_rank,
    )


class Numbers(NamedTuple):
    """Whose numbers of blocks tell which rows a request takes from the cache.

    Attributes:
        group: One of the engine's groups of layers with caches of their own.
        parts: How many hashes a block of it has.
    """

    group: int = 0
    parts: int = 1


def numbers_of(groups: Sequence[Any], hashed_rows: int) -> Numbers | None:
    """None if no group keeps every row: a number then does not stay that of a row."""
    whole = import_module("vllm.v1.kv_cache_interface").FullAttentionSpec
    for group, each in enumerate(groups):
        if isinstance(each.kv_cache_spec, whole):
            parts, rest = divmod(each.kv_cache_spec.block_size, hashed_rows)
            return None if rest else Numbers(group, parts)
    return None


def kept_rows(cache_rows: int, transfer: Any) -> int:
    """How many rows the store needs room for, so that it has the rows of all of the engine's cache.

    Besides the rows of running requests, the scheduler retains as many rows of finished ones as the
    cache has, or twice as many with a connector.
    """
    return cache_rows * (2 if transfer is None else 3)


def bind(model: Any, capture: Any) -> None:
    """Tap the model's routers as the engine's own connector does, and begin and end its passes."""
    first: dict[int | None, _binding.Layer] = {}
    for layer in _binding._find_layers(model):
        _binding._check_layout(layer, int(capture.capturer.layer_experts.max()), placed=False)
        if layer.place is not None:
            _binding.expect_one_router(first.get(layer.place), layer)
            first[layer.place] = layer
    captured = {place: index for index, place in enumerate(capture.layer_map)}
    forward = capture.forward

    class Tap:
        def capture(self, layer_id: int, topk_ids: Any) -> None:
            if layer_id in captured:
                forward.route(captured[layer_id], topk_ids)

    name = "vllm.model_executor.layers.fused_moe.routed_experts_capturer"
    import_module(name).bind_routed_experts_capturer(model, Tap())
    binding = _binding.Binding()
    _binding._delimit(binding, model, capture.device_cache, forward)
    binding.call_after(model, "load_weights", capture.weights_changed)


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
    emit_cursor: [2, slots]. The first position that the caller does not have yet; and one past the
        last row of an accepted token, or before the first step is taken, a position behind all.
    """

    def __init__(self) -> None:
        self.handle = np.zeros(0, np.uint64)
        self.emit_cursor = np.zeros((2, 0), np.int64)
        self._free: list[int] = []

    def take(self, emit: int) -> int:
        if not self._free:
            used, more = len(self.handle), max(256, len(self.handle))
            self.handle = np.append(self.handle, np.zeros(more, np.uint64))
            self.emit_cursor = np.append(self.emit_cursor, np.zeros((2, more), np.int64), axis=1)
            self._free = list(range(used, used + more))[::-1]
        slot = self._free.pop()
        self.handle[slot] = 0
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


@dataclasses.dataclass(slots=True, eq=False)
class PendingOutput:
    """A step whose rows are in flight.

    slots: of its requests.
    begins: the position of each request's first row, as the scheduler has it.
    starts: the first row of each in the step, and one past the last of all.
    first: the position of the step's first row in the request that has all.
    """

    _take: Callable[[PendingOutput], dict[str, Any]]
    names: Sequence[str]
    slots: NDArray[np.intp]
    begins: NDArray[Any]
    starts: NDArray[Any]
    step: routecap.Step
    first: int
    sampled: Any = ()
    rejected: Any = ()

    def enqueue_cpu_copy(self, num_sampled: Any, num_rejected: Any) -> None:
        """The numbers may still be in flight; `process_output` reads them."""
        self.sampled, self.rejected = num_sampled, num_rejected

    def process_output(self) -> dict[str, Any]:
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
            owner: False for ranks that only take part in forward passes: another rank has the rows.
        """
        self.capture = capture
        self._capturer: routecap.Capturer = capture.capturer
        self._decoder_layers = decoder_layers
        self._output = output
        self._owner = owner
        self._fill = get_options().fill
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
            self._steps = int(self._capturer.open())
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
                self._publish(requests)
            if self._numbers is not None:
                self._number(self._numbers)
            self._retain(metadata.retained_block_hashes)
            if metadata.finished_requests:
                self._end(metadata.finished_requests)
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
            cached = [int(begins[i]) // self._block_rows for i in new]
            for i, blocks in zip(new, cached, strict=True):
                self._requests[names[i]].published = blocks
            if self._keyed:
                self._publish(())
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
        all_handles = np.append(handles, np.uint64(self._steps))
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

    def _take(self, pending: PendingOutput) -> dict[str, Any]:
        """The outputs of a step. Ends the requests that ended before it was taken."""
        pending.step.wait()
        starts, slots, known = pending.starts, pending.slots, self._slots
        routing = self._capturer.extract(self._steps, pending.first, int(starts[-1]), mode="take")
        rows = self._array(routing)
        sampled, rejected = np.asarray(pending.sampled), np.asarray(pending.rejected)
        if not sampled.shape == rejected.shape == slots.shape:
            raise ValueError(
                f"a step of {len(slots)} requests has numbers of sampled and rejected tokens of the"
                f" shapes {sampled.shape} and {rejected.shape}: vLLM differs from 0.33.0"
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
            found: dict[str, Any] = {}
            one_each = len(rows) == len(slots) and bool((accepted == 1).all())
            if whole and one_each and (at == firsts).all():
                each = map(self._output, emits.tolist(), rows[:, None])
                found = dict(zip(pending.names, each, strict=True))
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
        copy = self._capturer.fork(int(self._slots.handle[slot]), int(end))
        routing = self._capturer.finish(copy, int(end))
        routing.wait()
        return self._array(routing.slice(first, end - first))

    def _array(self, routing: routecap.Routing) -> NDArray[Any]:
        rows = to_array(routing, self._fill, self._dtype)
        if self._decoder_layers == routing.layers:
            return rows
        return spread(rows, self._decoder_layers, routing.layer_map, self._fill)

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

    def _publish(self, but: Container[str]) -> None:
        """Publish the blocks whose rows are issued, except those of these requests."""
        ready: dict[_Request, None] = {}
        later = []
        for request in self._keyed:
            if request.name in but and self._requests.get(request.name) is request:
                later.append(request)
            else:
                ready[request] = None
        self._keyed = later
        told = []
        for request in ready:
            first, end = request.published, len(request.hashes) // self._hash_bytes
            if first < end and self._slots.handle[request.slot]:
                told.append((request, first, end))
                request.published = end
        if told and self._numbers is not None:
            self._publish_numbers(told)
        elif told and not self._mixed:
            self._publish_hashes(told)

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
        handle = self._handle(request)
        if self._numbers is None:
            keys = self._of_hashes(request.hashes)[:blocks]
            self._capturer.adopt(handle, self.store, 0, keys, generation=self._epoch)
            self._keep([request], [keys])
            return
        found = [self._key(request, block, taken=True) for block in range(blocks)]
        for block, key in enumerate(found):
            if self._kept.get(key) != self._hash_of(request, block):
                found[block] = _NOWHERE
        self._capturer.adopt(handle, self.store, 0, np.array(found, np.uint64))
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


def take_scheduler(cls: Any) -> Any:
    """Schedulers use our side of the connector, whatever class the configuration names."""
    put_scheduler(import_module("vllm.v1.core.sched.scheduler"))
    return cls


def put_scheduler(scheduler_module: Any) -> None:
    own = scheduler_module.AuxOutputSchedulerConnector
    if not issubclass(own, TolerantScheduling):
        name = f"Routecap{own.__name__}"
        scheduler_module.AuxOutputSchedulerConnector = type(name, (TolerantScheduling, own), {})


class TolerantScheduling:
    """A base of the scheduler's side: rows that are gone are missing, and that is all."""

    def max_cache_hit(self, request: Any) -> int:
        super().max_cache_hit(request)  # type: ignore[misc]  # it notes which blocks are used
        tokens: int = request.num_tokens
        return tokens - 1  # as without auxiliary output

    def cap_external_hit(self, request: Any, num_local: int, num_external: int) -> int:
        return num_external

    def take_output(self, request: Any, output: Any) -> Any:
        """The rows of the tokens that are known; None if there are none."""
        found = None if output is None else output.get(request.request_id)
        if found is None:
            return None
        rows = request.num_tokens - 1 - found.token_start
        return found.rows[:rows] if rows >= 0 else None

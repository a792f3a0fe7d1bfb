"""The face to vLLM 0.21: what of it is replaced, each in one function.

    own_module      its module that captures, by routecap.vllm.routed_experts_capturer, which asks
                    `replayed_pieces` in the forward pass
    refusal         of capture together with async scheduling and with pipeline parallelism: lifted
                    where the scheduler can tell workers who ends. A single worker is put into the
                    engine's process
    compiled        an engine runs what one without capture has compiled
    scheduler       tells the capturer who ended, with how many rows, whatever ended it; and puts
                    the rows on the way to the caller
    worker          says when its weights are changed; takes their version by collective_rpc; has the
                    rows of a step issued before it waits for the step's tokens
    transport       rows go from the engine's process to the front end's as routecap's own bytes
    front_end       rows become arrays when somebody looks at them, as each request asked
    server          answers over HTTP what a request asked for: _v021_server

The scheduler is the only one that knows for certain who ends, also under async scheduling, in which
the worker has begun a further step by then. Threads: the engine's, for the scheduler; the one that
sends outputs, for `transport`; whoever looks at the outputs, for the arrays.
"""

from __future__ import annotations

import functools
import logging
import os
import struct
import sys
from collections.abc import Hashable
from importlib import import_module
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

import routecap

from ._answers import Answer
from ._asked import Asked, asked_by
from ._forward import say_pieces
from ._options import get_options
from ._platform import WITHOUT_CUDA, engine_is_on_cuda, without_cuda
from ._prefixes import BlocksOf, Told
from ._results import Blocks, PendingRoutedExperts, split_routed_experts
from ._v021_server import check, forget, keep, kept, serve
from ._workers import Held, Workers, executor_of_this_process, remember_executor
from ._workers import serve as serve_scheduler
from ._wrap import once, replace

logger = logging.getLogger("vllm.routecap")  # which vLLM shows

# Whether an engine of this process, or one that it has in another, captures.
_captures = False

# Each of two micro-batches sees its rows as the first ones of the step: those of one would pass for
# the other's.
TWO_BATCHES = "routed experts are not captured where a step is run as several micro-batches"
# Executors whose worker is in the process of the scheduler.
ONE_PROCESS = ("uni", "external_launcher")

MODULE = "vllm.model_executor.layers.fused_moe.routed_experts_capturer"
# What others import from it by name.
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
    """Replace all of it. What is replaced already stays.

    Raises:
        RuntimeError: The engine's own capturer is in use already.
    """
    own_module(MODULE)
    say_pieces(replayed_pieces)
    lift_refusal(import_module("vllm.config.vllm").VllmConfig)
    compile_alike(import_module("vllm.config.model").ModelConfig)
    tell_ends(import_module("vllm.config.scheduler").SchedulerConfig)
    send_bytes(import_module("vllm.v1.serial_utils").MsgpackEncoder)
    watch_weights(import_module("vllm.v1.worker.worker_base").WorkerWrapperBase, answers=True)
    remember_executor(import_module("vllm.v1.executor.abstract").Executor)
    look_later(import_module("vllm.outputs"), import_module("vllm.v1.engine.output_processor"))
    serve()


# ---- The module that captures


def own_module(name: str) -> ModuleType:
    """Put ours where the engine's own is imported from, and where it was imported already."""
    module: ModuleType = _module()
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


def replayed_pieces() -> Hashable | None:
    """Which graphs of parts of the model are replayed in this forward pass.

    None: the pass is one graph, or eager.
    """
    module = import_module("vllm.forward_context")
    context = module.get_forward_context() if module.is_forward_context_available() else None
    if context is None or context.cudagraph_runtime_mode.name != "PIECEWISE":
        return None
    descriptor: Hashable = context.batch_descriptor
    return descriptor


# ---- What the engine refuses


def say_captures() -> None:
    """An engine of this process, or one that it has in another, captures."""
    global _captures
    _captures = True


def captures_here() -> bool:
    return _captures


def lift_refusal(config_class: Any) -> None:
    """Capture with async scheduling is no error any more; a library that cannot capture is."""
    validate = once(config_class, "_validate_return_routed_experts")
    if validate is None:
        return

    def validate_without_async(config: Any) -> None:
        say_captures()
        serve()  # its server may have been imported since
        if engine_is_on_cuda() and without_cuda():
            raise ValueError(WITHOUT_CUDA)
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
    """With data parallelism vLLM starts a process for each worker of an engine, also for a single
    one. That has nobody to share work with, and comes into the engine's: there nothing waits for
    it where a request ends.
    """
    if parallel.world_size == 1 and parallel.distributed_executor_backend == "mp":
        parallel.distributed_executor_backend = "uni"
        logger.info("routed experts: the worker is in the engine's process, not in one of its own")


def workers_can_be_told(parallel: Any) -> bool:
    """Whether the scheduler can tell workers who ends."""
    backend = parallel.distributed_executor_backend
    return backend == "mp" or (parallel.world_size == 1 and backend in ONE_PROCESS)


# ---- What is compiled


def compile_alike(config_class: Any) -> None:
    """An engine finds what one without capture has compiled, and the other way round. Capture is
    no part of it: routers run inside an operator that the compiler does not look into.

    vLLM counts the option in the name under which it keeps what is compiled. Compiled apart,
    kernels are chosen by measuring them, anew and otherwise: they round otherwise, and greedy
    tokens differ. So do those of two engines without capture that were compiled apart."""
    compute = once(config_class, "compute_hash")
    if compute is None:
        return

    def compute_hash(config: Any) -> Any:
        captures = config.enable_return_routed_experts
        if not captures or not engine_is_on_cuda():  # elsewhere routers are compiled too
            return compute(config)
        config.enable_return_routed_experts = False
        try:
            return compute(config)
        finally:
            config.enable_return_routed_experts = captures

    replace(config_class, "compute_hash", compute, compute_hash)


# ---- Who ends


def tell_ends(scheduler_config_class: Any, telling: type | None = None) -> None:
    """Schedulers, of whatever class the configuration names, tell the capturer of their process.

    Args:
        telling: What is put before their class; `TellingScheduler` unless given.
    """
    before = telling or TellingScheduler
    get_class = once(scheduler_config_class, "get_scheduler_cls")
    if get_class is None:
        return

    def get_scheduler_cls(config: Any) -> Any:
        cls = get_class(config)
        return (
            cls if issubclass(cls, before) else type(f"Routecap{cls.__name__}", (before, cls), {})
        )

    replace(scheduler_config_class, "get_scheduler_cls", get_class, get_scheduler_cls)


class TellingScheduler:
    """Before a scheduler's class: requests that stop get their rows with the output that says so.

    A request whose stop string the front end finds is aborted here: its rows come in an output of
    their own, for which the front end waits. Of one whose keys and values could not be loaded, rows
    that were computed from them are cut, and missing until they are computed again.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        config = kwargs.get("vllm_config", args[0] if args else None)
        if config is not None and not cls._is_ours(config):
            return cls.__bases__[-1](*args, **kwargs)  # an engine without ours has its own
        return super().__new__(cls)

    @staticmethod
    def _is_ours(config: Any) -> bool:
        """Whether engines of this configuration capture, and by routecap."""
        return bool(config.model_config.enable_return_routed_experts)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._capturer: Any = None
        self._prefixes: Any = None
        if self.vllm_config.model_config.enable_return_routed_experts:  # type: ignore[attr-defined]
            self._find_capturer()
        self._in_flight = 0  # steps that were scheduled, and have no outputs yet
        self._held: Held | None = None
        self._ended: dict[str, int] = {}  # rows
        self._blocks: dict[str, Blocks] = {}  # of requests that have ended, and want a reference
        self._late: list[
            tuple[str, int, PendingRoutedExperts | None]
        ] = []  # and whose client's it is

    def _find_capturer(self) -> None:
        capturer = _module().get_global_experts_capturer()
        if getattr(capturer, "host_cache", None) is not None:
            self._capturer = capturer
            capturer.tell_ends(self.requests)  # type: ignore[attr-defined]
            self._keep_prefixes()
        else:
            self._find_workers()

    def _find_workers(self) -> None:
        """Capturers in other processes, if they can be told. Those that are not see some ends by
        themselves: not that of a stop string, nor under async scheduling that of a stop token."""
        parallel = self.vllm_config.parallel_config  # type: ignore[attr-defined]
        if parallel.distributed_executor_backend == "mp":
            self._capturer = Workers(executor_of_this_process())
            self._keep_prefixes()

    def _front_end_waits(self, sampling_params: Any) -> bool:
        """Whether the front end waits for the rows of a request that it has aborted."""
        return waits_for_rows(sampling_params)

    # Blocks of the engine's cache: of those that a step fills rows are published, of those that it
    # hits they are adopted.

    def _keep_prefixes(self) -> None:
        manager = self.kv_cache_manager  # type: ignore[attr-defined]
        if not manager.enable_caching:
            return
        pool, managers = manager.block_pool, manager.coordinator.single_type_managers
        # Of several caches the one that keeps every row has the rows of all.
        whole = import_module("vllm.v1.kv_cache_interface").FullAttentionSpec
        found = [i for i, each in enumerate(managers) if isinstance(each.kv_cache_spec, whole)]
        self._group = found[0] if found else 0
        algorithm = self.vllm_config.cache_config.prefix_caching_hash_algo  # type: ignore[attr-defined]
        hashing = import_module("vllm.utils.hashing").get_hash_fn_by_name(algorithm)
        self._block_rows, self._hash_rows = managers[self._group].block_size, pool.hash_block_size
        handed = getattr(self, "connector", None) is not None
        self._prefixes = self._capturer.keep_prefixes(
            self._block_rows, self._hash_rows, len(hashing(b"")), handed
        )
        if self._prefixes is not None:
            self._watch_blocks(pool, self._prefixes)

    def _watch_blocks(self, pool: Any, prefixes: Told) -> None:
        allocate, cache = pool.get_new_blocks, pool.cache_full_blocks

        def get_new_blocks(*args: Any, **kwargs: Any) -> Any:
            blocks = allocate(*args, **kwargs)
            prefixes.step.allocates([block.block_id for block in blocks])
            return blocks

        def cache_full_blocks(
            request: Any,
            blocks: Any,
            num_cached_blocks: int,
            num_full_blocks: int,
            block_size: int,
            kv_cache_group_id: int,
            **more: Any,
        ) -> Any:
            if kv_cache_group_id == self._group and num_cached_blocks < num_full_blocks:
                numbers = [each.block_id for each in blocks[num_cached_blocks:num_full_blocks]]
                prefixes.step.fills.append(self._blocks_of(request, num_cached_blocks, numbers))
            return cache(
                request=request,
                blocks=blocks,
                num_cached_blocks=num_cached_blocks,
                num_full_blocks=num_full_blocks,
                block_size=block_size,
                kv_cache_group_id=kv_cache_group_id,
                **more,
            )

        pool.get_new_blocks, pool.cache_full_blocks = get_new_blocks, cache_full_blocks

    def _blocks_of(self, request: Any, first: int, numbers: list[int]) -> BlocksOf:
        """Those of a request from its block `first` on, which have these numbers."""
        row, hashes = first * self._block_rows, ()
        if self._prefixes.by_contents:
            several = self._block_rows // self._hash_rows
            hashes = request.block_hashes[first * several : (first + len(numbers)) * several]
        return BlocksOf(request.request_id, row, numbers, hashes)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        output = super().schedule(*args, **kwargs)  # type: ignore[misc]
        self._in_flight += 1
        if self._prefixes is not None:
            for new in output.scheduled_new_reqs:
                self._tell_begin(new.req_id, new.num_computed_tokens, new.block_ids)
            cached = output.scheduled_cached_reqs
            if cached.resumed_req_ids:
                for name, computed, blocks in zip(
                    cached.req_ids, cached.num_computed_tokens, cached.new_block_ids, strict=True
                ):
                    if name in cached.resumed_req_ids:
                        self._tell_begin(name, computed, blocks)
            self._prefixes.send(output)
        return output

    def _tell_begin(self, name: str, rows: int, blocks: Any) -> None:
        hits = rows // self._block_rows
        if hits or self._prefixes.by_contents:
            request = self.requests[name]  # type: ignore[attr-defined]
            found = self._blocks_of(request, 0, blocks[self._group][:hits])
            self._prefixes.step.begins.append(found)

    def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> Any:
        reset = super().reset_prefix_cache(reset_running_requests, reset_connector)  # type: ignore[misc]
        if self._capturer is not None:
            self._capturer.weights_changed()  # this is what one does then
        if self._prefixes is not None and reset and reset_connector:
            self._prefixes.step.emptied = True
        return reset

    # Requests.

    def _handle_stopped_request(self, request: Any) -> Any:
        self._ended[request.request_id] = request.num_tokens - 1
        self._note_blocks(request)
        return super()._handle_stopped_request(request)  # type: ignore[misc]

    def _handle_invalid_blocks(self, *args: Any, **kwargs: Any) -> Any:
        affected = super()._handle_invalid_blocks(*args, **kwargs)  # type: ignore[misc]
        if self._capturer is not None:
            requests = self.requests  # type: ignore[attr-defined]
            found = {name: requests[name] for name in affected if name in requests}
            self._capturer.cut({name: each.num_computed_tokens for name, each in found.items()})
            if self._prefixes is not None:
                for name, each in found.items():
                    first = each.num_computed_tokens // self._block_rows
                    end = each.num_tokens // self._block_rows
                    numbers = self.kv_cache_manager.get_block_ids(name)[self._group]  # type: ignore[attr-defined]
                    self._prefixes.drop(self._blocks_of(each, first, numbers[first:end]))
        return affected

    def finish_requests(self, request_ids: Any, finished_status: Any) -> Any:
        if request_ids is not None:
            request_ids = [request_ids] if isinstance(request_ids, str) else list(request_ids)
            for request in map(self.requests.get, request_ids):  # type: ignore[attr-defined]
                if (
                    request is not None
                    and self._front_end_waits(request.sampling_params)
                    and not request.is_finished()
                ):
                    self._note_blocks(request)
                    rows = self._end({request.request_id: request.num_tokens - 1})
                    self._late.append(
                        (request.request_id, request.client_index, rows.get(request.request_id))
                    )
        return super().finish_requests(request_ids, finished_status)  # type: ignore[misc]

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        update = super().update_from_output  # type: ignore[misc]
        outputs = update(scheduler_output, model_runner_output)
        self._in_flight -= 1
        if self._ended or self._late or self._held:
            self._attach(outputs)
        return outputs

    def _end(self, rows: dict[str, int]) -> dict[str, PendingRoutedExperts]:
        ended: dict[str, PendingRoutedExperts] = (
            {} if self._capturer is None else self._capturer.end(rows)
        )
        for name, found in ended.items():
            found.blocks = self._blocks.pop(name, None)
        return ended

    def _note_blocks(self, request: Any) -> None:
        if self._prefixes is not None and asked_by(request.sampling_params).format == "store":
            rows = self._hash_rows
            keys = request.block_hashes[: (request.num_tokens - 1) // rows]
            self._blocks[request.request_id] = Blocks(rows, [bytes(key) for key in keys])

    def _attach(self, outputs: dict[int, Any]) -> None:
        held, self._held = self._held, None
        ended, self._ended = self._ended, {}
        if ended and self._in_flight > 0 and isinstance(self._capturer, Workers):
            self._held = Held(outputs, ended, self._capturer)
        elif ended and (rows := self._end(ended)):
            for each in outputs.values():
                for output in each.outputs:
                    if output.request_id in rows:
                        output.routed_experts = rows[output.request_id]
        further = [] if held is None else held.released()
        late, self._late = self._late, []
        if not further and not late:
            return
        engine: Any = import_module("vllm.v1.engine")
        for name, client, found in late:
            output = engine.EngineCoreOutput(
                request_id=name,
                new_token_ids=[],
                finish_reason=engine.FinishReason.ABORT,
                routed_experts=found,
            )
            further.append((client, output))
        for client, output in further:
            if output.routed_experts is not None and output.request_id in self._blocks:
                output.routed_experts.blocks = self._blocks.pop(output.request_id)
            outputs.setdefault(client, engine.EngineCoreOutputs()).outputs.append(output)


@functools.cache  # it looks through all packages that are installed
def on_both_sides() -> bool:
    """Whether processes that the engine starts have this face too: as a plugin that they find."""
    allowed = os.environ.get("VLLM_PLUGINS")
    return bool(entry_points(group="vllm.general_plugins", name="routecap")) and (
        allowed is None or "routecap" in allowed.split(",")
    )


def waits_for_rows(sampling_params: Any) -> bool:
    """Whether the front end may end a request by a stop string, and wants its rows then."""
    return bool(getattr(sampling_params, "stop", None)) and asked_by(sampling_params).capture


# ---- Weights


def watch_weights(wrapper_class: Any, answers: bool = False) -> None:
    """Workers say when they have changed weights. `load_weights` of the model says so itself.

    Args:
        answers: Those of engines that capture answer a scheduler in another process too.
    """
    init_device = once(wrapper_class, "init_device")
    if init_device is None:
        return

    def init_and_watch(wrapper: Any) -> Any:
        worker_class = type(wrapper.worker)
        for name in ("update_weights", "reload_weights"):
            if hasattr(worker_class, name):
                _say_change(worker_class, name)
        worker_class.routecap_set_tag = _set_tag
        config = getattr(wrapper, "vllm_config", None)
        if getattr(config, "lora_config", None) is not None:
            watch_adapters(import_module("vllm.lora.worker_manager").WorkerLoRAManager)
        made = init_device(wrapper)
        if answers and wrapper.vllm_config.model_config.enable_return_routed_experts:
            serve_scheduler(wrapper.worker)
            issue_before_tokens(import_module("vllm.v1.worker.gpu_model_runner"))
        return made

    replace(wrapper_class, "init_device", init_device, init_and_watch)


def watch_adapters(manager_class: Any) -> None:
    """An adapter that is loaded in the place of one changes weights: the name stays."""
    load = once(manager_class, "_load_adapter")
    if load is None:
        return

    def load_adapter(manager: Any, lora_request: Any) -> Any:
        loaded = load(manager, lora_request)
        if getattr(lora_request, "load_inplace", False):
            _module().weights_changed()
        return loaded

    replace(manager_class, "_load_adapter", load, load_adapter)


def issue_before_tokens(runner_module: Any) -> None:
    """Without async scheduling the engine waits for the tokens of a step, and then has its rows
    issued, while the device has nothing to do. Here they are issued while it still computes."""
    runner_class = runner_module.GPUModelRunner
    bookkeep = once(runner_class, "_bookkeeping_sync")
    if bookkeep is None:
        return
    module = _module()

    def issue_and_bookkeep(runner: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        if runner.routed_experts_initialized:
            counts = scheduler_output.num_scheduled_tokens
            if resumed := scheduler_output.scheduled_cached_reqs.resumed_req_ids:
                module._method("resume")(resumed)
            module.issue_routing_d2h_copy(
                runner.input_batch.req_ids, counts, runner.positions, None
            )
        return bookkeep(runner, scheduler_output, *args, **kwargs)

    replace(runner_class, "_bookkeeping_sync", bookkeep, issue_and_bookkeep)
    runner_module.issue_routing_d2h_copy = lambda **arguments: None  # what it calls behind that


def _say_change(worker_class: Any, name: str) -> None:
    change = once(worker_class, name)
    if change is None:
        return

    def changing(worker: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return change(worker, *args, **kwargs)
        finally:
            _module().weights_changed()

    replace(worker_class, name, change, changing)


def _set_tag(worker: Any, tag: int) -> None:
    """collective_rpc("routecap_set_tag", args=(7,)): the version of the weights from now on."""
    _module().set_tag(tag)


def _module() -> Any:
    return import_module("routecap.vllm.routed_experts_capturer")


# ---- From the engine's process to the front end's


def send_bytes(encoder_class: Any) -> None:
    """Rows travel as a one-dimensional array of uint8: routecap's bytes, which say all of them."""
    hook = once(encoder_class, "enc_hook")
    if hook is None:
        return

    def enc_hook(encoder: Any, value: Any) -> Any:
        if isinstance(value, PendingRoutedExperts):
            return encoder._encode_ndarray(to_bytes(value))
        return hook(encoder, value)

    replace(encoder_class, "enc_hook", hook, enc_hook)


_HEAD = struct.Struct("<4I")


def to_bytes(rows: PendingRoutedExperts) -> NDArray[np.uint8]:
    """Layers of the decoder and what is known of blocks, their keys, and the routing. Waits for
    rows in flight."""
    rows.routing.wait()
    blocks = rows.blocks or Blocks(0, [])
    head = _HEAD.pack(rows.decoder_layers, blocks.rows, len(blocks.keys), blocks.key_bytes)
    return np.frombuffer(b"".join((head, *blocks.keys, rows.routing.serialize())), np.uint8)


def from_bytes(data: NDArray[np.uint8], fill: int) -> PendingRoutedExperts:
    decoder_layers, block_rows, count, key_bytes = _HEAD.unpack(data[: _HEAD.size].tobytes())
    end = _HEAD.size + count * key_bytes
    routing = routecap.Routing.deserialize(data[end:])
    rows = PendingRoutedExperts(
        routing,
        (routing.rows, routing.layers, routing.k),
        fill,
        decoder_layers=decoder_layers,
    )
    if block_rows:
        keys = data[_HEAD.size : end].reshape(count, key_bytes)
        rows.blocks = Blocks(block_rows, [key.tobytes() for key in keys])
    return rows


# ---- The front end


class _Rows:
    """An attribute of outputs: where rows were put into one (`put_rows`) their array, or what was
    asked for instead, made when somebody reads it.

    Other outputs have theirs in their dictionary, which is looked at first: they cost nothing.
    """

    def __init__(self, name: str) -> None:
        self._name = f"_{name}"

    def __get__(self, output: Any, owner: Any = None) -> Any:
        if output is None:
            return None  # the default of the field
        if (answer := kept(output)) is not None:
            return answer.value
        rows = self.pending(output)
        return None if rows is None else rows.array()

    def pending(self, output: Any) -> PendingRoutedExperts | None:
        rows: PendingRoutedExperts | None = vars(output).get(self._name)
        return rows


class _Validity:
    """An attribute of an output: [rows, layers], which cells of its rows were captured."""

    def __init__(self, rows: _Rows) -> None:
        self._rows = rows

    def __get__(self, output: Any, owner: Any = None) -> Any:
        rows = None if output is None else kept(output) or self._rows.pending(output)
        return None if rows is None else rows.validity()


def make_lazy(cls: Any, name: str) -> None:
    """Rows that are put into this attribute become an array when it is read; {name}_validity is
    their mask."""
    if not isinstance(vars(cls).get(name), _Rows):
        rows = _Rows(name)
        setattr(cls, name, rows)
        setattr(cls, f"{name}_validity", _Validity(rows))
        cls.__getstate__ = functools.partialmethod(_state, name)


def put_rows(output: Any, name: str, rows: Any) -> None:
    """Into an attribute of an output whose class is lazy: its rows, an array, or None."""
    if isinstance(rows, PendingRoutedExperts):
        vars(output).pop(name, None)
        vars(output)[f"_{name}"] = rows
    else:
        setattr(output, name, rows)


def _state(output: Any, name: str) -> dict[str, Any]:
    """What an output is pickled as: with what was asked for under the engine's own name, for
    processes that know nothing of this."""
    answers = [kept(each) for each in (output, *getattr(output, "outputs", ()))]
    state = {key: value for key, value in vars(output).items() if key != f"_{name}"}
    forget(state)
    # The rows of a prompt are in the answers of the completions.
    state[name] = getattr(output, name) if answers[0] or not any(answers) else None
    return state


def look_later(outputs: Any, processor: Any) -> None:
    """Outputs hold what came, and widen it when it is read; each request gets what it asked for."""
    make_lazy(outputs.CompletionOutput, "routed_experts")
    make_lazy(outputs.RequestOutput, "prompt_routed_experts")
    take_rows(processor.RequestState, processor.OutputProcessor)


class Asking:
    """What a request in the front end asked for.

    ends: Which of the front end's own ends wait for rows: a "stop string", an "abort".
    rows: Its rows, while an output is made that has them.
    output: Of what the output is made that waits for them.
    """

    __slots__ = ("asked", "ends", "output", "rows")

    def __init__(self, asked: Asked, ends: frozenset[str]) -> None:
        self.asked, self.ends = asked, ends
        self.rows: Any = None
        self.output: tuple[Any, ...] | None = None


class TakingState:
    """Before the class of a state in the front end: it puts rows into the outputs that it makes,
    or has an output wait for them.

    A state has it while rows are there or an abort is on its way, and all its life if it may end
    by a stop string. In all other steps no function of ours runs for it.
    """

    ENDS = frozenset({"stop string"})  # of the front end's own, those that wait for rows
    check = staticmethod(check)  # what is asked

    routecap: Asking
    routecap_waiting: dict[str, Any]  # states of requests, whose engine has been told to abort them

    @staticmethod
    def are_ours(rows: Any) -> bool:
        return True  # or an array of workers in processes of their own

    def _divide(self, rows: Any) -> tuple[Any, Any]:
        """Rows that are the request output's, of its prompt, and the completion's; or None."""
        prompt, count = self.prompt_token_ids, self.detokenizer.num_output_tokens()  # type: ignore[attr-defined]
        return split_routed_experts(rows, len(prompt or ()), count)

    def make_request_output(
        self,
        new_token_ids: Any,
        pooling_output: Any,
        finish_reason: Any,
        stop_reason: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        what = (new_token_ids, pooling_output, finish_reason, stop_reason, *args)
        asking = self.routecap
        if finish_reason is not None and asking.rows is None and asking.output is None:
            end = "stop string" if isinstance(stop_reason, str) else str(finish_reason)
            if end in asking.ends:
                asking.output = what, kwargs
                self.routecap_waiting[self.request_id] = self  # type: ignore[attr-defined]
                return None
        return super().make_request_output(*what, **kwargs)  # type: ignore[misc]

    def _new_completion_output(self, *args: Any, **kwargs: Any) -> Any:
        completion = super()._new_completion_output(*args, **kwargs)  # type: ignore[misc]
        asked, rows = self.routecap.asked, self.routecap.rows
        if rows is None:
            return completion
        _, own = self._divide(rows)
        answer = Answer(rows, asked) if asked.format else None
        # An output that nobody has taken yet goes on: this one will be added to it.
        for each in (completion, *getattr(self._untaken(), "outputs", ())):
            if each.index == completion.index:
                put_rows(each, "routed_experts", own)
                keep(each, answer)
        return completion

    def _new_request_output(self, *args: Any, **kwargs: Any) -> Any:
        output = super()._new_request_output(*args, **kwargs)  # type: ignore[misc]
        rows = self.routecap.rows
        prompt = None if rows is None else self._divide(rows)[0]
        if prompt is not None:
            put_rows(self._untaken() or output, "prompt_routed_experts", prompt)
        return output

    def _untaken(self) -> Any:
        """The output that this one will be added to; None if there is none."""
        found = getattr(self.queue, "output", None)  # type: ignore[attr-defined]
        return None if isinstance(found, Exception) else found


def take_rows(state_class: Any, processor_class: Any, before: Any = TakingState) -> None:
    """States of requests in the front end know what was asked for, and get it. An output whose end
    is the front end's, not the engine's, waits for its rows.

    Args:
        before: What is put before the class of a state.
    """
    process = once(processor_class, "process_outputs")
    if process is None:
        return
    waiting: dict[str, Any] = {}
    members = {"routecap_waiting": waiting}
    taking = type(f"Routecap{state_class.__name__}", (before, state_class), members)
    from_request = state_class.from_new_request.__func__
    abort, propagate = processor_class.abort_requests, processor_class.propagate_error
    unfinished = processor_class.has_unfinished_requests
    number = processor_class.get_num_unfinished_requests

    def from_new_request(cls: Any, *args: Any, **kwargs: Any) -> Any:
        sampling = (kwargs["request"] if "request" in kwargs else args[1]).sampling_params
        asked = asked_by(sampling)
        before.check(asked)
        state = from_request(cls, *args, **kwargs)
        start = getattr(sampling, "routed_experts_prompt_start", 0) or 0
        asked = asked._replace(start=max(asked.start, start))
        comes = _captures and asked.capture and on_both_sides()
        state.routecap = Asking(asked, before.ENDS if comes else frozenset())
        if comes and getattr(sampling, "stop", None):
            state.__class__ = taking
        return state

    def process_outputs(processor: Any, engine_core_outputs: Any, *args: Any, **kwargs: Any) -> Any:
        # Of all that is here, this alone looks at each request: 8 ns.
        having = [each for each in engine_core_outputs if each.routed_experts is not None]
        states = []
        for each in having:
            state = processor.request_states.get(each.request_id)
            asking = getattr(state, "routecap", None)
            if asking is not None and before.are_ours(each.routed_experts):
                asking.rows = _as_asked(each.routed_experts, asking.asked)
                states.append((state, type(state)))
                each.routed_experts, state.__class__ = None, taking
        arrived = (
            [each for each in engine_core_outputs if each.request_id in waiting and each.finished]
            if waiting
            else ()
        )
        processed = process(processor, engine_core_outputs, *args, **kwargs)
        for state, own in states:  # which goes on, if it is a session's
            state.routecap.rows, state.__class__ = None, own
        for each in arrived:
            state = waiting.pop(each.request_id)
            asking = state.routecap
            if each.routed_experts is not None:  # the engine may have been ahead
                rows = state.prompt_len + state.detokenizer.num_output_tokens() - 1
                asking.rows = _as_asked(_as_pending(each.routed_experts)[:rows], asking.asked)
            what, named = asking.output
            output = state.make_request_output(*what, **named)
            if output is not None and state.queue is not None:
                state.queue.put(output)
            elif output is not None:
                processed.request_outputs.append(output)
            parent = state.parent_req
            if parent and not parent.child_requests:
                processor.parent_requests.pop(parent.request_id, None)
        return processed

    def abort_requests(processor: Any, request_ids: Any, *args: Any, **kwargs: Any) -> Any:
        request_ids = list(request_ids)
        for name in request_ids:
            for each in (name, *processor.external_req_ids.get(name, ())):
                state = processor.request_states.get(each)
                asking = getattr(state, "routecap", None)
                if asking is not None and "abort" in asking.ends:
                    state.__class__ = taking
                    if state.queue is None:  # in process, where the engine's own makes no output
                        aborted = import_module("vllm.v1.engine").FinishReason.ABORT
                        state.make_request_output([], None, aborted, None)
        return abort(processor, request_ids, *args, **kwargs)

    def propagate_error(processor: Any, error: Exception) -> None:
        for state in waiting.values():
            if state.queue is not None:
                state.queue.put(error)
        waiting.clear()
        propagate(processor, error)

    state_class.from_new_request = classmethod(from_new_request)
    replace(processor_class, "process_outputs", process, process_outputs)
    if "abort" in before.ENDS:
        replace(processor_class, "abort_requests", abort, abort_requests)
    replace(processor_class, "propagate_error", propagate, propagate_error)
    replace(
        processor_class,
        "has_unfinished_requests",
        unfinished,
        lambda self: bool(waiting) or unfinished(self),
    )
    replace(
        processor_class,
        "get_num_unfinished_requests",
        number,
        lambda self: len(waiting) + number(self),
    )


def _as_pending(rows: Any) -> Any:
    """Rows that came from another process as bytes; others as they are."""
    if isinstance(rows, np.ndarray) and rows.ndim == 1:
        return from_bytes(rows, get_options().fill)
    return rows


def _as_asked(rows: Any, asked: Asked) -> Any:
    rows = _as_pending(rows)
    if isinstance(rows, PendingRoutedExperts) and asked.dtype != "int16":
        rows = rows.of(asked.dtype)
    return rows[asked.start :] if asked.start else rows

"""Schedulers of vLLM 0.21 and 0.26 tell the capturer which requests have ended, and with how many
rows. They put the rows into the requests' outputs.

Only the scheduler knows for certain which requests end. With async scheduling the worker has begun
the next step by then. All of this runs on the engine's thread.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from . import routed_experts_capturer
from ._asked import asked_by
from ._hooks import each_scheduler
from ._prefixes import BlocksOf, Told
from ._results import PendingRoutedExperts
from ._workers import Held, Workers, executor_of_this_process

PLACES = """
vllm.v1.core.sched.output
    NewRequestData: req_id num_computed_tokens block_ids
    CachedRequestData: req_ids resumed_req_ids num_computed_tokens new_block_ids
    SchedulerOutput: finished_req_ids preempted_req_ids num_scheduled_tokens scheduled_new_reqs
    SchedulerOutput: scheduled_cached_reqs
vllm.v1.core.sched.scheduler
    Scheduler.__init__(self, vllm_config, ...)
    Scheduler.schedule(self, ...)
    Scheduler.finish_requests(self, request_ids, finished_status)
    Scheduler.update_from_output(self, scheduler_output, model_runner_output)
    Scheduler.reset_prefix_cache(self, reset_running_requests, reset_connector)
    Scheduler._handle_stopped_request(self, request)
    Scheduler._handle_invalid_blocks(self, ...)
    Scheduler: kv_cache_manager requests connector
vllm.v1.core.block_pool
    BlockPool.get_new_blocks(self, ...)
    BlockPool.cache_full_blocks(self, request, blocks, num_cached_blocks, num_full_blocks,
        block_size, kv_cache_group_id, ...)
    BlockPool: hash_block_size
vllm.v1.core.kv_cache_manager
    KVCacheManager.get_block_ids(self, request_id)
    KVCacheManager: enable_caching block_pool coordinator
vllm.v1.kv_cache_interface
    FullAttentionSpec:
vllm.utils.hashing
    get_hash_fn_by_name(hash_fn_name)
vllm.v1.request
    Request.__init__(self, request_id, prompt_token_ids, sampling_params, pooling_params, ...)
    Request: block_hashes num_tokens num_computed_tokens sampling_params client_index
vllm.v1.worker.gpu_input_batch
    CachedRequestState: num_computed_tokens num_prompt_tokens output_token_ids sampling_params
vllm.v1.engine
    EngineCoreOutput: request_id new_token_ids finish_reason routed_experts
    EngineCoreOutputs: outputs
vllm.config.model
    ModelConfig.compute_hash(self)
    ModelConfig: enable_return_routed_experts
vllm.distributed.parallel_state
    get_pp_group()
vllm.v1.worker.gpu_model_runner
    GPUModelRunner._bookkeeping_sync(self, scheduler_output, ...)
    GPUModelRunner.get_model(self)
    GPUModelRunner: input_batch positions requests
"""  # what this module and both that import it replace and read


def tell_ends(scheduler_config_class: object, before: type | None = None) -> None:
    """Schedulers tell the capturer of their process.

    Args:
        before: What is put before their class; `TellingScheduler` unless given.
    """
    own = before or TellingScheduler
    each_scheduler(
        scheduler_config_class,
        lambda cls: (
            cls if issubclass(cls, own) else type(f"Routecap{cls.__name__}", (own, cls), {})
        ),
    )


class TellingScheduler:
    """A base of the scheduler's class: requests that stop get their rows with their last output.

    If the front end finds a stop string, it aborts the request, and waits for an extra output with
    the rows. If keys and values of a request could not be loaded, the rows that were computed from
    them are cut, and are missing until they are computed again.
    """

    def __new__(cls, *args: Any, **kwargs: object) -> Any:
        config = kwargs.get("vllm_config", args[0] if args else None)
        if config is not None and not cls._is_ours(config):
            return cls.__bases__[-1](*args, **kwargs)  # vLLM's own capture stays
        return super().__new__(cls)

    @staticmethod
    def _is_ours(config: Any) -> bool:
        """Whether engines of this configuration capture, and by routecap."""
        return bool(config.model_config.enable_return_routed_experts)

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self._capturer: Any = None
        self._prefixes: Any = None
        if self.vllm_config.model_config.enable_return_routed_experts:  # type: ignore[attr-defined]
            self._find_capturer()
        self._in_flight = 0  # steps that were scheduled, and have no outputs yet
        self._held: Held | None = None
        self._ended: dict[str, int] = {}  # requests, and how many rows each has
        self._late: list[
            tuple[str, int, PendingRoutedExperts | None]
        ] = []  # and whose client's it is

    def _find_capturer(self) -> None:
        capturer: Any = routed_experts_capturer.get_global_experts_capturer()
        if getattr(capturer, "host_cache", None) is not None:
            self._capturer = capturer
            capturer.tell_ends(self.requests)  # type: ignore[attr-defined]
            self._keep_prefixes()
        else:
            self._find_workers()

    def _find_workers(self) -> None:
        """Find the capturers of workers in other processes, if the scheduler can tell them.

        Others see some ends by themselves, but no stop string, and no stop token under async
        scheduling.
        """
        parallel = self.vllm_config.parallel_config  # type: ignore[attr-defined]
        if parallel.distributed_executor_backend == "mp":
            self._capturer = Workers(executor_of_this_process())
            self._keep_prefixes()

    def _front_end_waits(self, sampling_params: object) -> bool:
        """Whether the front end waits for the rows of a request that it has aborted."""
        return waits_for_rows(sampling_params)

    # Blocks of the engine's cache: the rows of blocks that a step fills are published, and those of
    # blocks that it hits are adopted.

    def _keep_prefixes(self) -> None:
        manager = self.kv_cache_manager  # type: ignore[attr-defined]
        if not manager.enable_caching:
            return
        pool, managers = manager.block_pool, manager.coordinator.single_type_managers
        # If there are several caches, one that keeps every row has the rows of the others too.
        whole = import_module("vllm.v1.kv_cache_interface").FullAttentionSpec
        found = [i for i, each in enumerate(managers) if isinstance(each.kv_cache_spec, whole)]
        self._group = found[0] if found else 0
        algorithm = self.vllm_config.cache_config.prefix_caching_hash_algo  # type: ignore[attr-defined]
        hashing = import_module("vllm.utils.hashing").get_hash_fn_by_name(algorithm)
        self._block_rows, self._hash_rows = managers[self._group].block_size, pool.hash_block_size
        handed = self.connector is not None  # type: ignore[attr-defined]
        self._prefixes = self._capturer.keep_prefixes(
            self._block_rows, self._hash_rows, len(hashing(b"")), handed
        )
        if self._prefixes is not None:
            self._watch_blocks(pool, self._prefixes)

    def _watch_blocks(self, pool: Any, prefixes: Told) -> None:
        allocate, cache = pool.get_new_blocks, pool.cache_full_blocks

        def get_new_blocks(*args: object, **kwargs: Any) -> Any:
            blocks = allocate(*args, **kwargs)
            prefixes.step.allocates([block.block_id for block in blocks])
            return blocks

        def cache_full_blocks(
            request: object,
            blocks: Any,
            num_cached_blocks: int,
            num_full_blocks: int,
            block_size: int,
            kv_cache_group_id: int,
            **more: object,
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
        """The blocks of a request from its block `first` on; `numbers` are theirs."""
        row, hashes = first * self._block_rows, ()
        if self._prefixes.by_contents:
            several = self._block_rows // self._hash_rows
            hashes = request.block_hashes[first * several : (first + len(numbers)) * several]
        return BlocksOf(request.request_id, row, numbers, hashes)

    def schedule(self, *args: object, **kwargs: object) -> Any:
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
        if not reset:  # requests hold blocks of it, and it is as it was
            return reset
        if self._capturer is not None:
            self._capturer.weights_changed()  # the cache is emptied when weights change
        if self._prefixes is not None and reset_connector:
            self._prefixes.step.emptied = True
        return reset

    # Requests.

    def _handle_stopped_request(self, request: Any) -> Any:
        self._ended[request.request_id] = request.num_tokens - 1
        return super()._handle_stopped_request(request)  # type: ignore[misc]

    def _handle_invalid_blocks(self, *args: object, **kwargs: object) -> Any:
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

    def finish_requests(self, request_ids: Any, finished_status: object) -> Any:
        if request_ids is not None:
            request_ids = [request_ids] if isinstance(request_ids, str) else list(request_ids)
            for request in map(self.requests.get, request_ids):  # type: ignore[attr-defined]
                if (
                    request is not None
                    and self._front_end_waits(request.sampling_params)
                    and not request.is_finished()
                ):
                    rows = self._end({request.request_id: request.num_tokens - 1})
                    self._late.append(
                        (request.request_id, request.client_index, rows.get(request.request_id))
                    )
        return super().finish_requests(request_ids, finished_status)  # type: ignore[misc]

    def update_from_output(self, scheduler_output: object, model_runner_output: object) -> Any:
        update = super().update_from_output  # type: ignore[misc]
        outputs = update(scheduler_output, model_runner_output)
        self._in_flight -= 1
        if self._ended or self._late or self._held:
            self._attach(outputs)
        return outputs

    def _end(self, rows: dict[str, int]) -> dict[str, PendingRoutedExperts]:
        return {} if self._capturer is None else self._capturer.end(rows)

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
            outputs.setdefault(client, engine.EngineCoreOutputs()).outputs.append(output)


def waits_for_rows(sampling_params: object) -> bool:
    """Whether the front end may end a request by a stop string, and wants its rows then."""
    return bool(getattr(sampling_params, "stop", None)) and asked_by(sampling_params).capture

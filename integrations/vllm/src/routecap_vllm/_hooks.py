"""What several versions put around the engine's workers and schedulers.

take_worker      looks at an engine's configuration before weights are loaded, and at a worker
                 before its caches are made
watch_weights    workers say when their weights are changed, and take the weights' version by
                 collective_rpc
each_scheduler   changes the class of schedulers
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import Any

from . import routed_experts_capturer
from ._wrap import once, replace

PLACES = """
vllm.v1.worker.worker_base
    WorkerWrapperBase.init_device(self)
    WorkerWrapperBase.init_worker(self, all_kwargs)
    WorkerWrapperBase.initialize_from_config(self, kv_cache_configs)
    WorkerWrapperBase: rpc_rank worker vllm_config
vllm.config.vllm
    VllmConfig: model_config scheduler_config parallel_config lora_config cache_config
vllm.config.cache
    CacheConfig: kv_sharing_fast_prefill
vllm.config.parallel
    ParallelConfig: use_ubatching distributed_executor_backend world_size
vllm.platforms.interface
    Platform: device_type
vllm.sampling_params
    SamplingParams: extra_args output_kind stop stop_token_ids min_tokens max_tokens
    SamplingParams: ignore_eos eos_token_id
vllm.v1.worker.gpu_worker
    Worker.update_weights(self, update_info)
    Worker.reload_weights(self, ...)
    Worker: model_runner
vllm.lora.request
    LoRARequest: load_inplace
vllm.lora.worker_manager
    WorkerLoRAManager._load_adapter(self, lora_request)
vllm.config.scheduler
    SchedulerConfig.get_scheduler_cls(self)
"""  # what this module replaces and reads


def take_worker(
    wrapper_class: Any, check: Callable[[Any], None], prepare: Callable[[Any], None]
) -> None:
    """Before a worker of this process is made, `check` its engine's configuration; before its caches
    are, and so before graphs are captured, `prepare` its wrapper."""
    init_worker = once(wrapper_class, "init_worker")
    if init_worker is None:
        return
    initialize = wrapper_class.initialize_from_config

    def init_worker_first(wrapper: Any, all_kwargs: Any) -> Any:
        check(all_kwargs[wrapper.rpc_rank]["vllm_config"])
        return init_worker(wrapper, all_kwargs)

    def initialize_from_config(wrapper: object, kv_cache_configs: Any) -> Any:
        prepare(wrapper)
        return initialize(wrapper, kv_cache_configs)

    replace(wrapper_class, "init_worker", init_worker, init_worker_first)
    replace(wrapper_class, "initialize_from_config", initialize, initialize_from_config)


def expect_whole_passes(config: Any) -> None:
    """Raises: ValueError: Some layers compute a few rows of a prefill, as if they were its first."""
    if config.cache_config.kv_sharing_fast_prefill:
        raise ValueError(
            "routed experts: with --kv-sharing-fast-prefill the layers that share KV route the last"
            " row of each prompt alone, and nothing says so: leave it out"
        )


def expect_python_front_end() -> None:
    """Refuse the front end that makes answers without Python, where nothing of ours runs.

    Raises:
        ValueError: The server has it.
    """
    if os.environ.get("VLLM_USE_RUST_FRONTEND", "0") not in ("", "0"):
        raise ValueError(
            "routed experts: routecap's rows do not pass through vLLM's front end in Rust: unset"
            " VLLM_USE_RUST_FRONTEND, or unset ROUTECAP_VLLM to let vLLM capture itself"
        )


def expect_runner(chosen: Any, v2: bool) -> None:
    """Refuse an engine whose model runner is not the one that is hooked.

    Args:
        chosen: What says which one vLLM has chosen: its configuration, or its worker in 0.21.

    Raises:
        ValueError: It is the other one.
    """
    if bool(chosen.use_v2_model_runner) != v2:
        other = "its model runner V2" if chosen.use_v2_model_runner else "its first model runner"
        raise ValueError(
            f"routed experts: this version of vLLM runs the model in {other}, in which routecap"
            f" hooks nothing: set VLLM_USE_V2_MODEL_RUNNER={int(v2)}, or unset ROUTECAP_VLLM to let"
            " vLLM capture itself"
        )


def each_scheduler(scheduler_config_class: object, change: Callable[[Any], Any]) -> None:
    """Schedulers are of the class that `change` makes of the one that the configuration names."""
    get_class = once(scheduler_config_class, "get_scheduler_cls")
    if get_class is None:
        return
    replace(
        scheduler_config_class,
        "get_scheduler_cls",
        get_class,
        lambda config: change(get_class(config)),
    )


def watch_weights(wrapper_class: Any, made: Callable[[Any], None] | None = None) -> None:
    """Workers say when they have changed weights. `load_weights` of the model says so itself.

    Args:
        made: Called with the wrapper of each worker whose device is initialized.
    """
    init_device = once(wrapper_class, "init_device")
    if init_device is None:
        return

    def init_and_watch(wrapper: Any) -> Any:
        worker_class = type(wrapper.worker)
        for name in ("update_weights", "reload_weights"):
            _say_change(worker_class, name)
        worker_class.routecap_set_tag = _set_tag
        if wrapper.vllm_config.lora_config is not None:
            watch_adapters(import_module("vllm.lora.worker_manager").WorkerLoRAManager)
        found = init_device(wrapper)
        if made is not None:
            made(wrapper)
        return found

    replace(wrapper_class, "init_device", init_device, init_and_watch)


def watch_adapters(manager_class: Any) -> None:
    """An adapter that is loaded in the place of one changes weights: the name stays."""
    load = once(manager_class, "_load_adapter")
    if load is None:
        return

    def load_adapter(manager: object, lora_request: Any) -> Any:
        loaded = load(manager, lora_request)
        if lora_request.load_inplace:
            routed_experts_capturer.weights_changed()
        return loaded

    replace(manager_class, "_load_adapter", load, load_adapter)


def _say_change(worker_class: object, name: str) -> None:
    change = once(worker_class, name)
    if change is None:
        return

    def changing(worker: object, *args: object, **kwargs: object) -> Any:
        try:
            return change(worker, *args, **kwargs)
        finally:
            routed_experts_capturer.weights_changed()

    replace(worker_class, name, change, changing)


def _set_tag(worker: object, tag: int) -> None:
    """collective_rpc("routecap_set_tag", args=(7,)): the version of the weights from now on."""
    routed_experts_capturer.set_tag(tag)

"""Modules that take the place of vLLM's own."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType

__all__ = ["install"]

_NAME = "vllm.model_executor.layers.fused_moe.routed_experts_capturer"
_CAPTURING = {
    "RoutedExpertsCapturer",
    "bind_routing_capture_to_model",
    "extract_routed_experts_for_current_batch",
    "free_routing_buffers",
    "get_global_experts_capturer",
    "init_routed_experts_capturer_with_shared_cache",
    "issue_routing_d2h_copy",
    "set_global_experts_capturer",
}


def install(name: str = _NAME) -> None:
    """Put `routecap.vllm.routed_experts_capturer` where vLLM's own is imported from.

    Call it before the model runner (vllm.v1.worker.gpu_model_runner) is imported, in each process
    that has one. `from vllm import LLM` may come before: it imports a function that divides rows.
    The module says so in the log if the engine runs on CUDA and this library has none.

    Raises:
        RuntimeError: The engine's own is in use already.
    """
    module = import_module(".routed_experts_capturer", __name__)
    own = sys.modules.get(name, module)
    if own is not module and (users := _users(own)):
        by = ", ".join(users)
        raise RuntimeError(f"{name} is imported already, by {by}: call install() before")
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], child, module)


def _users(own: ModuleType) -> list[str]:
    """The modules that have imported from the engine's own what captures."""
    functions = {name: value for name, value in vars(own).items() if name in _CAPTURING}
    users = []
    for name, module in list(sys.modules.items()):
        has = getattr(module, "__dict__", {})
        if module is not own and any(has.get(each) is it for each, it in functions.items()):
            users.append(name)
    return sorted(users)

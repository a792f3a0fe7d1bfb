"""Modules that take the place of vLLM's own."""

from __future__ import annotations

import sys
from importlib import import_module

__all__ = ["install"]

_NAME = "vllm.model_executor.layers.fused_moe.routed_experts_capturer"


def install(name: str = _NAME) -> None:
    """Put `routecap.vllm.routed_experts_capturer` where vLLM's own is imported from. Call it before the engine imports that.

    Raises:
        RuntimeError: The engine's own is in use already.
    """
    module = import_module(".routed_experts_capturer", __name__)
    if sys.modules.get(name, module) is not module:
        raise RuntimeError(f"{name} is imported already")
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], child, module)

"""Compiled models and graphs: which graphs are replayed, and what is compiled with capture on."""

from __future__ import annotations

from collections.abc import Hashable
from importlib import import_module
from typing import Any

from ._platform import engine_is_on_cuda
from ._wrap import once, replace

PLACES = """
vllm.forward_context
    get_forward_context()
    is_forward_context_available()
"""  # what this module reads, beside the class of configurations that a version has


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


def compile_alike(config_class: Any) -> None:
    """An engine finds what one without capture has compiled, and the other way round. Capture is
    no part of it: routers run inside an operator that the compiler does not look into.

    config_class: the one that has the option `enable_return_routed_experts`.

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

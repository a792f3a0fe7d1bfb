"""Takes the weights of each layer where its router leaves them, beside the ids, and brings them to
outputs. For engines with ROUTECAP_VLLM_WEIGHTS=1.

    tap           wraps router._compute_routing, whose ids are those before load balancing
    give_weights  takes apart, in the front end, the one array of ids and weights that the engine,
                  from 0.31 on, sends as rows
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from routecap.adapter import backend_of

from ._wrap import once, replace

PLACES = """
vllm.model_executor.layers.fused_moe.router.base_router
    BaseRouter._compute_routing(self, hidden_states, router_logits, indices_type, ...)
vllm.v1.engine.output_processor
    RequestState._new_completion_output(self, ...)
    RequestState: queue
    RequestOutputCollector: output
vllm.outputs
    CompletionOutput: index routed_experts
"""  # what this module replaces and reads, where weights are captured

if TYPE_CHECKING:
    import torch

    from ._forward import Forward


# ---- At the router


def memory_beside(buffer: torch.Tensor) -> torch.Tensor:
    """Memory for the weights of the ids in a buffer.

    Raises:
        ValueError: On this device there is none.
    """
    import torch

    if backend_of(buffer.device.type) is None:
        raise ValueError(
            f"ROUTECAP_VLLM_WEIGHTS is set, and on {buffer.device} PyTorch copies the ids alone:"
            " unset it to capture these"
        )
    return torch.zeros_like(buffer, dtype=torch.float32)


def tap(
    name: str,
    module: object,
    quant_method: Any,
    captured: int,
    buffer: torch.Tensor,
    forward: Forward,
    set_on: Callable[[object, str, object], None],
) -> str:
    """Record what the router of a layer's module returns, (weights, ids, ...), where it returns it.

    Args:
        buffer: The capturer's, which names it to graphs.
        set_on: Sets an attribute of the router.

    Raises:
        ValueError: Nothing gives the layer's weights.
    """
    router: Any = getattr(module, "router", None)
    if why := _why_not(module, router, quant_method):
        raise ValueError(
            f"ROUTECAP_VLLM_WEIGHTS is set, and the weights of {name} cannot be had: {why}."
            " Unset it to capture ids alone"
        )
    compute: Callable[..., Any] = router._compute_routing

    def compute_and_record(*args: object, **kwargs: object) -> Any:
        import torch

        result = compute(*args, **kwargs)
        weights, ids = result[0], result[1]
        if torch.compiler.is_compiling():
            torch.ops.routecap.capture_weights(buffer, ids, weights, captured)
        else:
            forward.route(captured, ids, weights=weights)
        return result

    set_on(router, "_compute_routing", compute_and_record)
    return "weights"


def _why_not(module: object, router: object, quant_method: Any) -> str:
    """Why the weights of a layer cannot be had; "" if they can."""
    if quant_method is not None and quant_method.is_monolithic is True:
        return f"{type(quant_method).__name__} routes inside a kernel, which keeps them"
    if router is None:
        return f"{type(module).__name__} has no router, and tells ids alone"
    if getattr(router, "zero_expert_type", None) is not None:
        return f"{type(router).__name__} replaces the ids of zero experts before it returns them"
    if not callable(getattr(router, "_compute_routing", None)):
        return f"{type(router).__name__} has no _compute_routing, which returns them"
    return ""


# ---- From the worker to its front end, from 0.31 on


def unpacked(rows: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.float32] | None]:
    """The ids, int16, and the weights of what `to_packed` made: no other rows of these releases are
    int32. Other rows as they are, and None.
    """
    if rows.dtype != np.int32:
        return rows, None
    k = rows.shape[2] // 2
    return rows[..., :k].astype(np.int16), np.ascontiguousarray(rows[..., k:]).view(np.float32)


def give_weights(state_class: Any) -> None:
    """A completion that has ended has its weights in `routed_experts_weights`."""
    make = once(state_class, "_new_completion_output")
    if make is None:
        return
    import_module("vllm.outputs").CompletionOutput.routed_experts_weights = None

    def make_and_unpack(state: Any, *args: object, **kwargs: object) -> Any:
        completion = make(state, *args, **kwargs)
        if completion.routed_experts is None:
            return completion
        completion.routed_experts, weights = unpacked(completion.routed_experts)
        untaken = getattr(state.queue, "output", None)  # into which this one will be merged
        for each in (completion, *getattr(untaken, "outputs", ())):
            if each.index == completion.index:
                each.routed_experts_weights = weights
        return completion

    replace(state_class, "_new_completion_output", make, make_and_unpack)

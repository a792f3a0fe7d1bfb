"""What a router gives to a capturer: ids, and from here the weights beside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from routecap.adapter import kept_weights

if TYPE_CHECKING:
    import torch

# SGLang's function in which every router gives its ids, and what it begins with.
FUNCTION = "layers.moe.topk._post_process_topk_ids"
PARAMETERS = ("topk_ids", "topk_weights")

_weights: Any = None  # of the router whose ids are given now


def around_ids(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The ids that are given inside have these weights."""
    global _weights
    _weights = kwargs.get("topk_weights", args[1] if len(args) > 1 else None)
    try:
        return original(*args, **kwargs)
    finally:
        _weights = None


def weights_given() -> Any:
    """Of the router that gives its ids; None if its weights are not there."""
    return _weights


def kept(layer: int, ids: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    """The weights of these ids, as they are recorded. Behind those of the ids may be shared experts'.

    Raises:
        LookupError: They are not there.
        ValueError: They are not of these ids, or of another type.
    """
    if weights is None:
        raise LookupError(
            f"the router of layer {layer} gave ids outside of SGLang's {FUNCTION}, so that nothing"
            f" has its {PARAMETERS[1]}: leave weights out for this model"
        )
    return kept_weights(
        ids,
        weights[:, : ids.shape[1]] if weights.ndim == 2 else weights,
        router=f"the router of layer {layer}",
        setting="ROUTECAP_SGLANG_WEIGHTS",
    )


def gathered(part: torch.Tensor, size: int) -> torch.Tensor:
    """Ids or weights of the whole pass, of which each rank of an attention group routes a part."""
    import torch
    from sglang.srt.layers.dp_attention import attn_tp_all_gather_into_tensor

    if size == 1:
        return part
    whole = torch.empty((len(part) * size, part.shape[1]), dtype=part.dtype, device=part.device)
    attn_tp_all_gather_into_tensor(whole, part.contiguous())
    return whole

"""The weights of a router beside its ids, as they are captured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._constants import Dtype

if TYPE_CHECKING:
    import torch

_NAMES = {Dtype.F32: "float32", Dtype.F16: "float16", Dtype.BF16: "bfloat16"}  # in torch


def kept_weights(
    ids: torch.Tensor, weights: Any, *, router: str, setting: str, dtype: Dtype = Dtype.F32
) -> torch.Tensor:
    """A router's weights, tensors of torch, as they are captured: bit for bit. Where float32 is
    kept, what is narrower is widened, which keeps its value.

    Args:
        router: What gave them, as a message says it: "the router of layer 3".
        setting: By which weights are captured, as its user knows it: "ROUTECAP_VLLM_WEIGHTS".
        dtype: That is kept.

    Raises:
        ValueError: They are not one for each id, or of a type that is not kept bit for bit.
    """
    import torch

    said = f"{setting} is set, and {router} gave weights of"
    if not isinstance(weights, torch.Tensor) or weights.shape != ids.shape:
        tensor = isinstance(weights, torch.Tensor)
        what = f"shape {tuple(weights.shape)}" if tensor else type(weights).__name__
        raise ValueError(
            f"{said} {what} beside ids {tuple(ids.shape)}, and one for each id is expected: leave it"
            " out to capture ids alone, and report the model"
        )
    wanted = getattr(torch, _NAMES[dtype])
    narrower = torch.bfloat16, torch.float16
    if weights.dtype != wanted and dtype is not Dtype.F32:
        raise ValueError(
            f"{said} {weights.dtype}, which {wanted} does not hold bit for bit: take float32, which"
            " holds every value of the narrower types"
        )
    if weights.dtype != wanted and weights.dtype not in narrower:
        raise ValueError(
            f"{said} {weights.dtype}, which {wanted} does not hold bit for bit: leave it out to"
            " capture ids alone, and report the model"
        )
    on_device = ids.device.type != "cpu"  # the host reads them at once
    return weights.to(ids.device, wanted, non_blocking=on_device).contiguous()

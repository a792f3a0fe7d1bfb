"""FP8 numbers in BF16 kernels: what an engine with W8A8 multiplies, on any device.

A number is rounded to e4m3 times a scale, and that is what the BF16 kernel gets. Scales are powers
of two, so that product is exact in BF16, which has 8 bits for the 4 of e4m3: every operand is what
an FP8 kernel would multiply. What differs from one is the order and the width of its sums.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

GROUP = 128
_MOST = 448.0  # of e4m3
_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj")


def rounded(x: torch.Tensor, block: tuple[int, int] = (1, GROUP)) -> torch.Tensor:
    """A tensor [..., rows, columns] with each block's numbers rounded to e4m3 times its scale.

    The scale is the least power of two with which the block's largest number is below 448.
    """
    rows, columns = (min(size, each) for size, each in zip(block, x.shape[-2:]))
    if x.shape[-2] % rows or x.shape[-1] % columns:
        raise ValueError(f"{tuple(x.shape[-2:])} is not divided evenly into {rows} x {columns}")
    shape = (*x.shape[:-2], x.shape[-2] // rows, rows, x.shape[-1] // columns, columns)
    blocks = x.reshape(shape).float()
    _, exponent = torch.frexp(blocks.abs().amax((-3, -1), keepdim=True) / _MOST)
    # From its bits: what a device computes as a power of two may be off in the last one.
    scale = ((exponent.int() + 127).clamp(1, 254) << 23).view(torch.float32)
    return ((blocks / scale).to(torch.float8_e4m3fn).float() * scale).to(x.dtype).view_as(x)


def is_quantised(name: str) -> bool:
    """Whether an engine has this parameter in FP8: not router, embedding, norms, output layer."""
    return any(part in _PROJECTIONS for part in name.split("."))


def quantise_inputs(model: nn.Module) -> None:
    """From now on the inputs of projections and experts are rounded, in groups of 1 x 128."""

    def round_first(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return rounded(args[0]), *args[1:]

    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and is_quantised(name):
            module.register_forward_pre_hook(round_first)
        elif name.endswith("mlp.experts"):
            module.register_forward_pre_hook(round_first)
            gate = module._apply_gate
            module._apply_gate = lambda both, gate=gate: rounded(gate(both))


@torch.no_grad()
def copy_weights(source: nn.Module, into: nn.Module, *, fp8: bool) -> None:
    """Give an engine the trainer's weights, in place: graphs of it go on."""
    for (name, weight), given in zip(into.named_parameters(), source.parameters(), strict=True):
        weight.copy_(rounded(given, (GROUP, GROUP)) if fp8 and is_quantised(name) else given)

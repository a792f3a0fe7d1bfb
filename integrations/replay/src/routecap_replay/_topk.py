"""Routers that choose by torch.topk: what stands in for it inside one module's forward."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from ._passes import Replay, Router
from ._report import ReplayError


class Choice(TorchFunctionMode):  # type: ignore[misc, unused-ignore]
    """Within it the call of torch.topk that chooses a layer's experts gives those of the replay,
    and their scores."""

    def __init__(self, replay: Replay, router: Router, experts: int, k: int) -> None:
        super().__init__()
        self.replay, self.router, self.experts, self.k = replay, router, experts, k
        self.ids: torch.Tensor | None = None
        """Of the module's forward that is running, as torch.topk would return them, once it has
        chosen and if they are those of the replay."""
        self.live: torch.Tensor | None = None
        """Of that forward, what torch.topk returned last and was let be."""

    def weigh(self, ids: Any, own: Any) -> Any:
        """Of the replay, the weights of the experts that the module has chosen; [..., k] both.

        own: With what the module would multiply their output.

        Raises:
            ReplayError: These ids are not those that the replay gave it, in their order.
        """
        mine, given = local(own), local(ids)
        chosen = given[:0] if self.ids is None else local(self.ids)
        if given.data_ptr() != chosen.data_ptr() or given.numel() != chosen.numel():
            raise ReplayError(
                f"{self.router.name} gives its experts other ids than those that were replayed:"
                " leave the weights out, or report its class"
            )
        if mine.shape != given.shape or not mine.is_floating_point():
            raise ReplayError(
                f"{self.router.name} has no weight for each of its ids: leave the weights out, or"
                " report its class"
            )
        weights = self.replay.weigh(self.router, mine.reshape(-1, self.k))
        return _like(own, weights.view_as(mine))

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func not in (torch.topk, torch.Tensor.topk):
            return result
        scores = args[0] if args else kwargs["input"]
        live = result.indices
        if scores.shape[-1] != self.experts or live.shape[-1] != self.k:
            return result  # of groups, say
        if self.ids is None:  # a block with one group first chooses in it to weigh the group
            mine = local(live)
            chosen = self.replay.choose(self.router, mine.reshape(-1, self.k), self.experts)
            if chosen is None:
                self.live = live
                return result
            self.ids = _like(live, chosen.view_as(mine))
        ids = self.ids.view_as(live) if self.ids.shape != live.shape else self.ids
        return torch.return_types.topk((scores.gather(-1, ids), ids))


def local(tensor: torch.Tensor) -> torch.Tensor:
    """A rank's part of a DTensor; any other tensor is its own."""
    part: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


def _like(tensor: Any, part: torch.Tensor) -> torch.Tensor:
    """A DTensor with this part, laid out as another; if that is none, the part."""
    if not hasattr(tensor, "to_local"):
        return part
    from torch.distributed.tensor import DTensor

    made: torch.Tensor = DTensor.from_local(
        part,
        tensor.device_mesh,
        tensor.placements,
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )
    return made


def replace_forward(block: nn.Module, choice: Choice) -> Callable[[], None]:
    """Let the block's forward run with a choice; returns what undoes it."""
    forward, own = block.forward, "forward" in vars(block)

    def replayed(*args: object, **kwargs: object) -> Any:
        choice.ids = choice.live = None
        with choice:
            return forward(*args, **kwargs)

    block.forward = replayed
    return (
        partial(setattr, block, "forward", forward) if own else partial(delattr, block, "forward")
    )

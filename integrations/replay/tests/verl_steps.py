"""What verl's engine does with its router replay around a forward pass of a micro-batch."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch


def prepare() -> Any:
    """verl's functions, on a CPU, with its routers in the place of Megatron-Core's."""
    import verl.utils.megatron.router_replay_utils as utils
    from verl.utils.megatron.router_replay_patch import apply_router_replay_patch

    utils.device_name = "cpu"
    apply_router_replay_patch()
    return utils


def jagged(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.nested.as_nested_tensor(list(parts), layout=torch.jagged)


@contextmanager
def replayed(
    utils: Any,
    model: torch.nn.Module,
    config: Any,
    tokens: Sequence[torch.Tensor],
    rows: Sequence[torch.Tensor],
) -> Iterator[None]:
    """Within it the forward of a model, or of a virtual stage, gets the rows of its sequences:
    [S - 1, all layers, k] of each.
    """
    from verl.utils.megatron.router_replay_patch import RouterReplayAction

    ids, responses = jagged(tokens), torch.ones(len(tokens), 1)
    aligned = utils.align_r3_router_replay_data(jagged(rows), ids)
    mask = utils.build_r3_replay_mask(ids, responses)
    utils.set_model_router_replay_action(model, RouterReplayAction.REPLAY_FORWARD)
    utils.set_router_replay_data(aligned, None, config, 0, replay_mask=mask, model=model)
    yield
    utils.set_model_router_replay_action(model, RouterReplayAction.REPLAY_BACKWARD)

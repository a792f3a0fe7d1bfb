#!/usr/bin/env python3
"""One training step on the batch of verl_rollouts.py with verl's own replay (R3), whose rows
routecap takes; see judge.py for what is compared.

    ROUTECAP_VERL=1 verl_step.py FOLDER

verl's Megatron engine wants a GPU's libraries. So its functions are called here as its forward step
calls them: left_right_2_no_padding, align_r3_router_replay_data, build_r3_replay_mask,
set_router_replay_data, no_padding_2_padding, and the loss.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import routecap_replay.verl
import torch
import verl  # noqa: F401  loads routecap's plugin, before what it replaces is imported
from judge import judge, trainer_of
from verl.protocol import DataProto
from verl.workers.utils.padding import left_right_2_no_padding, no_padding_2_padding


def main(folder: Path) -> int:
    model, config = trainer_of(folder / "model")
    import verl.utils.megatron.router_replay_utils as utils
    from verl.trainer.ppo.core_algos import compute_policy_loss_vanilla
    from verl.utils.megatron.router_replay_patch import (
        RouterReplay,
        RouterReplayAction,
        apply_router_replay_patch,
    )
    from verl.workers.config import McoreActorConfig

    utils.device_name = "cpu"
    apply_router_replay_patch()
    batch = DataProto.load_from_disk(folder / "batch")
    print(f"verl's batch: turns {batch.non_tensor_batch['__num_turns__'].tolist()}")
    engine, mask = batch.batch["rollout_log_probs"], batch.batch["response_mask"]
    data = left_right_2_no_padding(batch.to_tensordict())
    ids = data["input_ids"]

    def gap(logs: torch.Tensor) -> float:
        return float((no_padding_2_padding(logs, data) - engine)[mask.bool()].abs().max())

    def loss(logs: torch.Tensor) -> torch.Tensor:
        new = no_padding_2_padding(logs, data)
        advantages = torch.linspace(-1, 1, len(mask))[:, None].expand_as(mask)
        settings = McoreActorConfig(
            strategy="megatron",
            ppo_micro_batch_size_per_gpu=1,
            rollout_n=1,
            ppo_mini_batch_size=len(mask),
        )
        return compute_policy_loss_vanilla(engine, new, advantages, mask, "token-mean", settings)[0]

    @contextmanager
    def replayed(rows: torch.Tensor) -> Iterator[None]:
        routes = torch.nested.nested_tensor_from_jagged(rows, offsets=ids.offsets())
        aligned = utils.align_r3_router_replay_data(routes, ids)
        fed = utils.build_r3_replay_mask(ids, data["response_mask"])
        utils.set_model_router_replay_action(model, RouterReplayAction.REPLAY_FORWARD)
        utils.set_router_replay_data(aligned, None, config, 0, replay_mask=fed, model=model)
        yield
        utils.set_model_router_replay_action(model, RouterReplayAction.REPLAY_BACKWARD)

    def report() -> routecap_replay.Report:
        RouterReplay.clear_global_indices()
        RouterReplay.clear_global_router_replay_action()
        [replay] = routecap_replay.verl.replays()
        return replay.report()

    rows = data["routed_experts"].values()
    return judge(folder, "verl", model, ids.unbind(), rows, gap, loss, replayed, report, 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

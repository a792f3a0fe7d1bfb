#!/usr/bin/env python3
"""One training step on the batch of skyrl_rollouts.py with SkyRL's own replay, whose rows routecap
takes; see judge.py for what is compared.

    skyrl_step.py FOLDER

SkyRL's Megatron workers want a GPU's libraries. So its functions are called here as they call them:
convert_prompts_responses_to_batch_tensors, make_router_padding_mask, build_token_metadata_layout,
setup_per_microbatch_replay_forward and _backward, and the loss. SkyRL gives a row for the last
token of each sequence, too: experts 0 to k-1.
"""

import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import routecap_replay.megatron
import torch
from judge import judge, trainer_of


def main(folder: Path) -> int:
    from skyrl.backends.skyrl_train.utils.replay_utils import patch_topk_router_layer_number

    patch_topk_router_layer_number()
    model, config = trainer_of(folder / "model")
    from skyrl.backends.skyrl_train.distributed.megatron.token_metadata import (
        build_token_metadata_layout,
    )
    from skyrl.backends.skyrl_train.utils import replay_utils as skyrl
    from skyrl.backends.skyrl_train.utils.packed_tensor import PackedTensor
    from skyrl.backends.skyrl_train.utils.ppo_utils import PolicyLossRegistry
    from skyrl.train.config import AlgorithmConfig
    from skyrl.train.dataset.preprocess import (
        convert_prompts_responses_to_batch_tensors,
        make_router_padding_mask,
    )

    replay = routecap_replay.megatron.attach(model)
    batch = pickle.loads((folder / "batch").read_bytes())
    captured = batch["rollout_expert_indices"]
    tokens, attention, _, _, mask, engine, rows, _ = convert_prompts_responses_to_batch_tensors(
        0,
        batch["prompt_token_ids"],
        batch["response_ids"],
        batch["rewards"],
        batch["loss_masks"],
        batch["rollout_logprobs"],
        captured,
    )
    print(f"SkyRL's batch: {[sum(each) for each in batch['loss_masks']]} tokens sampled")
    padding = make_router_padding_mask(attention, [len(each) for each in captured])
    layout = build_token_metadata_layout(
        attention, torch.device("cpu"), packed=True, fp8_enabled=False
    )
    sequences = [each[there.bool()] for each, there in zip(tokens, attention)]

    def responses(logs: torch.Tensor) -> torch.Tensor:
        """[sequences, response] of the packed tokens, each of which has that of the next."""
        found = torch.zeros_like(engine)
        ends = attention.sum(1).cumsum(0)
        for number, (end, answer) in enumerate(zip(ends, batch["response_ids"])):
            found[number, -len(answer) :] = logs[end - len(answer) - 1 : end - 1]
        return found

    def gap(logs: torch.Tensor) -> float:
        return float((responses(logs) - engine)[mask.bool()].abs().max())

    def loss(logs: torch.Tensor) -> torch.Tensor:
        advantages = torch.linspace(-1, 1, len(mask))[:, None].expand_as(mask)
        policy = PolicyLossRegistry.get("regular")
        return policy(responses(logs), engine, advantages, AlgorithmConfig(), mask)[0]

    @contextmanager
    def replayed(given: torch.Tensor) -> Iterator[None]:
        skyrl.setup_per_microbatch_replay_forward(
            PackedTensor(given, rows.cu_seqlens),
            padding,
            attention,
            model,
            config,
            layout,
            remove_microbatch_padding=True,
        )
        yield
        skyrl.setup_per_microbatch_replay_backward()

    def report() -> routecap_replay.Report:
        skyrl.clear_router_replay()
        return replay.report()

    return judge(
        folder,
        "skyrl",
        model,
        sequences,
        rows.values,
        gap,
        loss,
        replayed,
        report,
        len(sequences),
    )


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

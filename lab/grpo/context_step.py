"""Context parallelism: two ranks with the model's routers alone, because the attention of
Megatron-Core that needs no GPU refuses to be divided so.

Each rank gets its rows by a plan, and its tokens by Megatron-Core's own function, which knows
nothing of the plan. Every token must be routed as the engine routed it.
"""

from __future__ import annotations

from typing import Any

import routecap
import routecap_replay.megatron
import torch
from megatron_step import join, leave
from rollouts import Padded, Rollout


class Routers(torch.nn.Module):
    """The routers of a model, each with the tokens' embeddings as its input."""

    def __init__(
        self, config: Any, layers: list[int], embeddings: torch.Tensor, weights: list[torch.Tensor]
    ) -> None:
        super().__init__()
        from megatron.core.process_groups_config import ProcessGroupCollection
        from megatron.core.transformer.moe.router import TopKRouter

        groups = ProcessGroupCollection.use_mpu_process_groups()
        self.register_buffer("embeddings", embeddings)
        self.routers = torch.nn.ModuleList(
            TopKRouter(config=config, pg_collection=groups) for _ in layers
        )
        for router, layer, weight in zip(self.routers, layers, weights):
            router.set_layer_number(layer + 1)
            router.weight.data.copy_(weight)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """[layers, tokens, experts] which experts were chosen."""
        hidden = self.embeddings[tokens][:, None]
        return torch.stack([router(hidden)[1].bool() for router in self.routers])


def route(
    rank: int,
    store: str,
    rollouts: list[Rollout],
    weights: dict[str, torch.Tensor],
    hf: Any,
    taps: dict[str, Any],
    ranks: int = 2,
    device: str = "cpu",
) -> tuple[Any, Any]:
    """What one rank's routers chose with the engine's rows replayed: [layers, tokens, experts], and
    of which token: [tokens, (rollout, position)].
    """
    join(device, rank, ranks, store, context_parallel_size=ranks)
    from megatron.core.utils import get_batch_on_this_cp_rank
    from qwen3 import config_of

    layers = list(taps["layer_map"])
    gates = [weights[f"model.layers.{layer}.mlp.gate.weight"] for layer in layers]
    model = Routers(
        config_of(hf, context_parallel_size=ranks),
        layers,
        weights["model.embed_tokens.weight"],
        gates,
    ).to(device)
    replay = routecap_replay.megatron.attach(model)
    plan = routecap.Plan(
        [len(rollout.tokens) for rollout in rollouts], layers=layers, k=taps["k"], experts=max(taps["layer_experts"]), layout="padded_right",
        sequence_first=True, context="zigzag", context_size=ranks, context_rank=rank, dtype="uint8", lost="error",
    )  # fmt: skip
    ids = torch.empty(plan.shape, dtype=torch.uint8, device=device)  # [layers, rows, k]
    plan.gather([rollout.routing() for rollout in rollouts], out=ids)

    width = plan.width * ranks
    batch = {
        "tokens": Padded(rollouts, width).tokens,
        "places": torch.cartesian_prod(torch.arange(len(rollouts)), torch.arange(width)),
    }
    batch["places"] = batch["places"].view(len(rollouts), width, 2)
    batch = {name: tensor.to(device) for name, tensor in batch.items()}
    batch = get_batch_on_this_cp_rank(batch, is_hybrid_cp=False)
    tokens, places = (batch[name].transpose(0, 1).flatten(0, 1) for name in ("tokens", "places"))
    with torch.no_grad(), replay(ids, layers=layers):
        chosen = model(tokens)
    leave()
    return chosen.cpu().numpy(), places.cpu().numpy()

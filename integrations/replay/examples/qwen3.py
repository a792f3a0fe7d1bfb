"""Qwen3-MoE of transformers as a model of Megatron-Core: the same weights, divided among tensor-
and expert-parallel ranks.
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig


class Norm(torch.nn.Module):
    """RMSNorm that may be divided by sequence parallelism.

    Megatron-Core's own that needs no GPU may not.
    """

    def __init__(
        self, config: TransformerConfig, hidden_size: int, eps: float = 1e-6, **unused: Any
    ) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(hidden_size))
        self.weight.sequence_parallel = config.sequence_parallel
        self.eps = eps

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.rms_norm(hidden, (hidden.shape[-1],), self.weight, self.eps)


def config_of(hf: Any, **parallel: Any) -> TransformerConfig:
    tensor = parallel.get("tensor_model_parallel_size", 1)
    return TransformerConfig(
        num_layers=hf.num_hidden_layers, moe_layer_freq=[int(layer not in hf.mlp_only_layers) for layer in range(hf.num_hidden_layers)], hidden_size=hf.hidden_size, num_attention_heads=hf.num_attention_heads, kv_channels=hf.head_dim,
        num_query_groups=max(hf.num_key_value_heads, tensor),  # with fewer, ranks have copies of a group
        ffn_hidden_size=hf.intermediate_size, moe_ffn_hidden_size=hf.moe_intermediate_size, num_moe_experts=hf.num_experts,
        moe_router_topk=hf.num_experts_per_tok, moe_router_load_balancing_type="none", moe_aux_loss_coeff=0.0, moe_router_dtype="fp32",
        moe_token_dispatcher_type="alltoall", normalization="RMSNorm", layernorm_epsilon=hf.rms_norm_eps, qk_layernorm=True,
        gated_linear_unit=True, activation_func=torch.nn.functional.silu, add_bias_linear=False, attention_dropout=0.0, hidden_dropout=0.0,
        bias_activation_fusion=False, bias_dropout_fusion=False, masked_softmax_fusion=False, apply_rope_fusion=False, gradient_accumulation_fusion=False,
        use_cpu_initialization=True, recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1, **parallel,
    )  # fmt: skip


def model_of(config: TransformerConfig, hf: Any) -> GPTModel:
    layers = []
    for routes in config.moe_layer_freq:
        layer = get_gpt_layer_local_spec(
            num_experts=config.num_moe_experts if routes else None,
            moe_grouped_gemm=False,
            qk_layernorm=True,
            normalization="RMSNorm",
        )
        layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = Norm
        attention = layer.submodules.self_attention.submodules
        attention.q_layernorm = attention.k_layernorm = Norm
        layers.append(layer)
    return GPTModel(
        config, TransformerBlockSubmodules(layer_specs=layers, layer_norm=Norm), vocab_size=hf.vocab_size,
        max_sequence_length=hf.max_position_embeddings, position_embedding_type="rope", rotary_base=10000, share_embeddings_and_output_weights=False,
    )  # fmt: skip


@torch.no_grad()
def take_weights(model: GPTModel, weights: dict[str, torch.Tensor], hf: Any) -> None:
    """Copy this rank's part of the weights of transformers."""
    config = model.config
    rank, ranks = (
        parallel_state.get_tensor_model_parallel_rank(),
        parallel_state.get_tensor_model_parallel_world_size(),
    )
    expert_rank, expert_ranks = (
        parallel_state.get_expert_model_parallel_rank(),
        parallel_state.get_expert_model_parallel_world_size(),
    )
    part = lambda weight, dim: weight.chunk(ranks, dim)[rank]

    def attention(prefix: str) -> torch.Tensor:
        """Queries of each group, then its keys and values."""
        q, k, v = (
            weights[f"{prefix}.{name}_proj.weight"].view(-1, hf.head_dim, hf.hidden_size)
            for name in "qkv"
        )
        copies = config.num_query_groups // hf.num_key_value_heads
        k, v = k.repeat_interleave(copies, 0), v.repeat_interleave(copies, 0)
        groups = zip(q.chunk(config.num_query_groups), k, v)
        return torch.cat(
            [torch.cat([queries.flatten(0, 1), key, value]) for queries, key, value in groups]
        )

    taken = {
        "embedding.word_embeddings.weight": part(weights["model.embed_tokens.weight"], 0),
        "output_layer.weight": part(weights["lm_head.weight"], 0),
        "decoder.final_layernorm.weight": weights["model.norm.weight"],
    }
    for layer in range(config.num_layers):
        theirs, ours = f"model.layers.{layer}", f"decoder.layers.{layer}"
        taken |= {
            f"{ours}.input_layernorm.weight": weights[f"{theirs}.input_layernorm.weight"],
            f"{ours}.pre_mlp_layernorm.weight": weights[
                f"{theirs}.post_attention_layernorm.weight"
            ],
            f"{ours}.self_attention.q_layernorm.weight": weights[
                f"{theirs}.self_attn.q_norm.weight"
            ],
            f"{ours}.self_attention.k_layernorm.weight": weights[
                f"{theirs}.self_attn.k_norm.weight"
            ],
            f"{ours}.self_attention.linear_qkv.weight": part(attention(f"{theirs}.self_attn"), 0),
            f"{ours}.self_attention.linear_proj.weight": part(
                weights[f"{theirs}.self_attn.o_proj.weight"], 1
            ),
        }
        if layer in hf.mlp_only_layers:
            gate, up, down = (
                weights[f"{theirs}.mlp.{each}_proj.weight"] for each in ("gate", "up", "down")
            )
            taken[f"{ours}.mlp.linear_fc1.weight"] = torch.cat([part(gate, 0), part(up, 0)])
            taken[f"{ours}.mlp.linear_fc2.weight"] = part(down, 1)
            continue
        taken[f"{ours}.mlp.router.weight"] = weights[f"{theirs}.mlp.gate.weight"]
        for local in range(config.num_moe_experts // expert_ranks):
            expert, mlp = (
                expert_rank * (config.num_moe_experts // expert_ranks) + local,
                f"{ours}.mlp.experts.local_experts.{local}",
            )
            taken[f"{mlp}.linear_fc1.weight"] = weights[f"{theirs}.mlp.experts.gate_up_proj"][
                expert
            ]
            taken[f"{mlp}.linear_fc2.weight"] = weights[f"{theirs}.mlp.experts.down_proj"][expert]
    parameters = dict(model.named_parameters())
    assert parameters.keys() == taken.keys(), parameters.keys() ^ taken.keys()
    for name, weight in taken.items():
        assert parameters[name].shape == weight.shape, (name, parameters[name].shape, weight.shape)
        parameters[name].copy_(weight)

"""Configurations as models publish them, and what they say."""

from __future__ import annotations

from types import SimpleNamespace as Config
from typing import Any


def every(n: int, first: int = 0, step: int = 1) -> list[int]:
    return list(range(first, n, step))


NEMOTRON_NANO = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"

# name: (configuration, layers that route, experts, experts per token)
MODELS: dict[str, tuple[Any, list[int], int | None, int | None]] = {
    "Mixtral-8x7B": (
        Config(num_hidden_layers=32, num_local_experts=8, num_experts_per_tok=2),
        every(32),
        8,
        2,
    ),
    "OLMoE-1B-7B": (
        Config(num_hidden_layers=16, num_experts=64, num_experts_per_tok=8),
        every(16),
        64,
        8,
    ),
    "Qwen2-57B-A14B": (
        Config(
            num_hidden_layers=28,
            num_experts=64,
            num_experts_per_tok=8,
            decoder_sparse_step=1,
            mlp_only_layers=[],
        ),
        every(28),
        64,
        8,
    ),
    "Qwen3-30B-A3B": (
        Config(
            num_hidden_layers=48,
            num_experts=128,
            num_experts_per_tok=8,
            decoder_sparse_step=1,
            mlp_only_layers=[],
        ),
        every(48),
        128,
        8,
    ),
    "Qwen3-Next-80B": (
        Config(
            num_hidden_layers=48,
            num_experts=512,
            num_experts_per_tok=10,
            decoder_sparse_step=1,
            mlp_only_layers=[],
            layer_types=[
                "linear_attention",
                "linear_attention",
                "linear_attention",
                "full_attention",
            ]
            * 12,
        ),
        every(48),
        512,
        10,
    ),
    "Qwen MoE with sparse steps": (
        Config(
            num_hidden_layers=24,
            num_experts=60,
            num_experts_per_tok=4,
            decoder_sparse_step=2,
            mlp_only_layers=[1, 23],
        ),
        [3, 5, 7, 9, 11, 13, 15, 17, 19, 21],
        60,
        4,
    ),
    "DeepSeek-V2": (
        Config(
            num_hidden_layers=60,
            n_routed_experts=160,
            num_experts_per_tok=6,
            first_k_dense_replace=1,
            moe_layer_freq=1,
        ),
        every(60, 1),
        160,
        6,
    ),
    "DeepSeek-V3": (
        Config(
            num_hidden_layers=61,
            n_routed_experts=256,
            num_experts_per_tok=8,
            first_k_dense_replace=3,
            moe_layer_freq=1,
            n_shared_experts=1,
        ),
        every(61, 3),
        256,
        8,
    ),
    "DeepSeek-V4-Flash": (
        Config(num_hidden_layers=43, n_routed_experts=256, num_experts_per_tok=6),
        every(43),
        256,
        6,
    ),
    "DeepSeek style, every second layer": (
        Config(
            num_hidden_layers=10,
            n_routed_experts=16,
            num_experts_per_tok=2,
            first_k_dense_replace=3,
            moe_layer_freq=2,
        ),
        [4, 6, 8],
        16,
        2,
    ),
    "Kimi-K2": (
        Config(
            num_hidden_layers=61,
            n_routed_experts=384,
            num_experts_per_tok=8,
            first_k_dense_replace=1,
            moe_layer_freq=1,
        ),
        every(61, 1),
        384,
        8,
    ),
    "Kimi-Linear-48B": (
        Config(
            num_hidden_layers=27,
            num_experts=256,
            num_experts_per_token=8,
            first_k_dense_replace=1,
            moe_layer_freq=1,
        ),
        every(27, 1),
        256,
        8,
    ),
    "GLM-4.5": (
        Config(
            num_hidden_layers=92,
            n_routed_experts=160,
            num_experts_per_tok=8,
            first_k_dense_replace=3,
        ),
        every(92, 3),
        160,
        8,
    ),
    "GLM-4.5-Air": (
        Config(
            num_hidden_layers=46,
            n_routed_experts=128,
            num_experts_per_tok=8,
            first_k_dense_replace=1,
        ),
        every(46, 1),
        128,
        8,
    ),
    "GLM-4.7-Flash": (
        Config(
            num_hidden_layers=47,
            n_routed_experts=64,
            num_experts_per_tok=4,
            first_k_dense_replace=1,
            mlp_layer_types=["dense"] + ["sparse"] * 46,
        ),
        every(47, 1),
        64,
        4,
    ),
    "gpt-oss-120b": (
        Config(
            num_hidden_layers=36,
            num_local_experts=128,
            num_experts_per_tok=4,
            experts_per_token=4,
            layer_types=["sliding_attention", "full_attention"] * 18,
        ),
        every(36),
        128,
        4,
    ),
    "gpt-oss, older names": (
        Config(num_hidden_layers=24, num_experts=32, experts_per_token=4),
        every(24),
        32,
        4,
    ),
    "Llama-4-Scout": (
        Config(
            text_config=Config(
                num_hidden_layers=48,
                num_local_experts=16,
                num_experts_per_tok=1,
                interleave_moe_layer_step=1,
                moe_layers=every(48),
            )
        ),
        every(48),
        16,
        1,
    ),
    "Llama-4-Maverick": (
        Config(
            text_config=Config(
                num_hidden_layers=48,
                num_local_experts=128,
                num_experts_per_tok=1,
                interleave_moe_layer_step=2,
                moe_layers=every(48, 1, 2),
            )
        ),
        every(48, 1, 2),
        128,
        1,
    ),
    "Llama-4-Maverick without the list": (
        Config(
            text_config={
                "num_hidden_layers": 48,
                "num_local_experts": 128,
                "num_experts_per_tok": 1,
                "interleave_moe_layer_step": 2,
            }
        ),
        every(48, 1, 2),
        128,
        1,
    ),
    "Jamba-1.5": (
        Config(
            num_hidden_layers=32,
            num_experts=16,
            num_experts_per_tok=2,
            expert_layer_period=2,
            expert_layer_offset=1,
            attn_layer_period=8,
            attn_layer_offset=4,
            layers_block_type=[
                "mamba",
                "mamba",
                "mamba",
                "mamba",
                "attention",
                "mamba",
                "mamba",
                "mamba",
            ]
            * 4,
        ),
        every(32, 1, 2),
        16,
        2,
    ),
    "Nemotron-3-Nano": (
        Config(
            num_hidden_layers=52,
            n_routed_experts=128,
            num_experts_per_tok=6,
            hybrid_override_pattern=NEMOTRON_NANO,
        ),
        [i for i, kind in enumerate(NEMOTRON_NANO) if kind == "E"],
        128,
        6,
    ),
    "Nemotron-H with blocks": (
        Config(
            num_hidden_layers=6,
            n_routed_experts=512,
            num_experts_per_tok=22,
            layers_block_type=["mamba", "moe", "mamba", "attention", "mlp", "moe"],
        ),
        [1, 5],
        512,
        22,
    ),
    "Nemotron-H without experts": (
        Config(
            num_hidden_layers=4,
            n_routed_experts=8,
            num_experts_per_tok=2,
            hybrid_override_pattern="M-M*",
        ),
        [],
        8,
        2,
    ),
    "Granite-4.0-H-Small": (
        Config(
            num_hidden_layers=40,
            num_local_experts=72,
            num_experts_per_tok=10,
            layer_types=["mamba"] * 9 + ["attention"] + ["mamba"] * 30,
            layers_block_type=["mamba"] * 9 + ["attention"] + ["mamba"] * 30,
        ),
        every(40),
        72,
        10,
    ),
    "Granite hybrid without experts": (
        Config(
            num_hidden_layers=40,
            num_local_experts=0,
            num_experts_per_tok=0,
            layer_types=["mamba"] * 40,
        ),
        [],
        None,
        None,
    ),
    "MiniMax-M2": (
        Config(
            num_hidden_layers=62,
            num_local_experts=256,
            num_experts_per_tok=8,
            attn_type_list=[1] * 62,
        ),
        every(62),
        256,
        8,
    ),
    "MiniMax-M3": (
        Config(
            text_config=Config(
                num_hidden_layers=60,
                num_local_experts=128,
                num_experts_per_tok=4,
                moe_layer_freq=[0, 0, 0] + [1] * 57,
            )
        ),
        every(60, 3),
        128,
        4,
    ),
    "MiMo-V2-Flash": (
        Config(
            num_hidden_layers=48,
            n_routed_experts=256,
            num_experts_per_tok=8,
            moe_layer_freq=[0] + [1] * 47,
        ),
        every(48, 1),
        256,
        8,
    ),
    "Ernie-4.5-300B": (
        Config(
            num_hidden_layers=54,
            moe_num_experts=64,
            moe_k=8,
            moe_layer_start_index=3,
            moe_layer_end_index=53,
            moe_layer_interval=1,
        ),
        every(54, 3),
        64,
        8,
    ),
    "Ernie-4.5-21B": (
        Config(
            num_hidden_layers=28,
            moe_num_experts=64,
            moe_k=6,
            moe_layer_start_index=1,
            moe_layer_end_index=-1,
            moe_layer_interval=1,
        ),
        every(28, 1),
        64,
        6,
    ),
    "Ernie-4.5-VL": (
        Config(
            num_hidden_layers=28,
            moe_num_experts=[64, 64],
            moe_k=6,
            moe_layer_start_index=[1, 1],
            moe_layer_end_index=[29, 28],
            moe_layer_interval=1,
        ),
        every(28, 1),
        128,
        6,
    ),
    "Step-3": (
        Config(
            text_config=Config(
                num_hidden_layers=61,
                moe_num_experts=48,
                moe_top_k=3,
                moe_layers_enum=",".join(map(str, range(4, 60))),
            )
        ),
        every(60, 4),
        48,
        3,
    ),
    "Step-3.5-Flash": (
        Config(
            num_hidden_layers=45,
            moe_num_experts=288,
            moe_top_k=8,
            moe_layers_enum=tuple(range(3, 45)),
            moe_every_n_layer=1,
        ),
        every(45, 3),
        288,
        8,
    ),
    "Hunyuan-A13B": (
        Config(
            num_hidden_layers=32,
            num_experts=64,
            moe_topk=[8] * 32,
            moe_layer_num_skipped=0,
            num_shared_expert=[1] * 32,
        ),
        every(32),
        64,
        8,
    ),
    "LongCat-Flash": (
        Config(
            num_layers=28,
            num_hidden_layers=56,
            n_routed_experts=512,
            zero_expert_num=256,
            moe_topk=12,
        ),
        every(28),
        768,
        12,
    ),
    "Gemma-4-26B-A4B": (
        Config(
            text_config=Config(
                num_hidden_layers=30, enable_moe_block=True, num_experts=128, top_k_experts=8
            )
        ),
        every(30),
        128,
        8,
    ),
    "LFM2-8B-A1B": (
        Config(
            num_hidden_layers=24,
            num_dense_layers=2,
            num_experts=32,
            num_experts_per_tok=4,
            layer_types=["conv", "full_attention"] * 12,
        ),
        every(24, 2),
        32,
        4,
    ),
    "EXAONE-MoE": (
        Config(
            num_hidden_layers=5,
            num_experts=128,
            num_experts_per_tok=8,
            is_moe_layer=[False, True, True, True, True],
        ),
        every(5, 1),
        128,
        8,
    ),
    "SmallThinker": (
        Config(
            num_hidden_layers=4,
            moe_num_primary_experts=32,
            moe_num_active_primary_experts=4,
            moe_layer_layout=[1, 0, 1, 1],
        ),
        [0, 2, 3],
        32,
        4,
    ),
    "DBRX": (
        Config(n_layers=40, ffn_config=Config(moe_num_experts=16, moe_top_k=4)),
        every(40),
        16,
        4,
    ),
    "Arctic": (
        Config(
            num_hidden_layers=6, num_local_experts=128, num_experts_per_tok=2, moe_layer_frequency=2
        ),
        [1, 3, 5],
        128,
        2,
    ),
    "Grok-1": (
        Config(num_hidden_layers=64, num_local_experts=8, num_selected_experts=2),
        every(64),
        8,
        2,
    ),
    "Qwen3-Omni": (
        Config(
            thinker_config=Config(
                text_config=Config(
                    num_hidden_layers=48,
                    num_experts=128,
                    num_experts_per_tok=8,
                    decoder_sparse_step=1,
                    mlp_only_layers=[],
                )
            )
        ),
        every(48),
        128,
        8,
    ),
    "a dense model": (Config(num_hidden_layers=32, num_experts=1), [], None, None),
}

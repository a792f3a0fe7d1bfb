"""What configurations of models with experts call things: names in use, and those of each family.

Each tuple lists the names of one thing, with models that use the name. A test makes the model of
each family with transformers, and compares it with what is read by these tables.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

NESTED = (  # the part that is the language model
    "text_config",  # most
    "llm_config",  # InternVL
    "language_config",  # DeepSeek-VL2
    "thinker_config",  # Qwen3-Omni: with a text_config of its own
    "vlm_config",
    "decoder",
)
LAYERS = (
    "num_hidden_layers",
    "n_layers",
    "num_layers",
    "n_layer",
    "num_decoder_layers",
    "decoder_layers",
)
EXPERTS = (
    "n_routed_experts",  # DeepSeek, GLM, Kimi K2, Nemotron-H
    "num_local_experts",  # Mixtral, gpt-oss, MiniMax, Llama 4, Granite
    "num_experts",  # Qwen, OLMoE, Jamba, Hunyuan (may be a list: one number per layer)
    "moe_num_experts",  # Ernie 4.5, Step, Aria
    "ffn_config.moe_num_experts",  # DBRX
    "num_routed_experts",  # Pangu
    "moe_num_primary_experts",  # SmallThinker
    "num_moe_experts",
)
CHOSEN = (
    "num_experts_per_tok",  # most
    "num_experts_per_token",  # Kimi Linear
    "experts_per_token",  # gpt-oss
    "top_k_experts",  # Gemma 4
    "moe_topk",  # Hunyuan (may be a list), LongCat-Flash, Aria
    "moe_top_k",  # Step
    "ffn_config.moe_top_k",  # DBRX
    "moe_k",  # Ernie 4.5
    "num_selected_experts",  # Grok
    "moe_num_active_primary_experts",  # SmallThinker
    "moe_router_topk",
)
ZERO = ("zero_expert_num",)  # LongCat-Flash
SHARED = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert")
SHARED_WIDTH = ("shared_expert_intermediate_size", "shared_intermediate_size", "share_expert_dim")
GROUPS = ("n_group", "num_expert_group")  # DeepSeek, Kimi Linear
GROUPS_KEPT = ("topk_group",)
SWITCHES = ("enable_moe_block", "is_moe")  # Gemma 4, Doge: without them the model is dense

# Lists with an entry for each layer: true, or a kind of feed-forward block, in those that route.
FLAGS = (
    "mlp_layer_types",  # most of transformers
    "is_moe_layer",  # EXAONE MoE
    "moe_layer_freq",  # MiMo-V2, MiniMax-M3; elsewhere a number
    "moe_layer_layout",  # SmallThinker
)
INDICES = (  # lists of the layers that route
    "moe_layers",  # Llama 4
    "moe_layers_enum",  # Step (as text: "3,4,5")
    "moe_layer_list",  # Step
)
# A kind of block for each layer, where feed-forward blocks are layers of their own. In other models
# these lists name kinds of attention.
BLOCKS = ("layers_block_type", "block_types", "layer_types")  # Nemotron-H
LETTERS = "hybrid_override_pattern"  # Nemotron-H: a letter per layer, E for experts
SPARSE = ("moe", "sparse", "hash_moe")
DENSE_KINDS = ("dense", "mlp")

# How many layers at the start are dense.
DENSE_FIRST = (
    "first_k_dense_replace",  # DeepSeek, GLM, Kimi
    "num_dense_layers",  # LFM2, AFMoE
    "dense_mlp_idx",  # Inkling
    "n_dense_first_layers",  # Motif
    "moe_layer_num_skipped",  # Hunyuan
    "moe_layer_start_index",  # Ernie 4.5 (may be a list: text, vision)
)
LAST = "moe_layer_end_index"  # Ernie 4.5; -1: the last
DENSE = "mlp_only_layers"  # Qwen: a list of layers
# Every how many layers one routes, and whether layer 0 does, or else the last of each period.
PERIODS = (
    ("decoder_sparse_step", False),  # Qwen2 and Qwen3
    ("moe_layer_interval", False),  # Ernie 4.5
    ("moe_layer_frequency", False),  # Arctic
    ("interleave_moe_layer_step", False),  # Llama 4
    ("moe_layer_freq", True),  # DeepSeek
)
PERIOD, OFFSET = "expert_layer_period", "expert_layer_offset"  # Jamba
SPREAD = "num_sparse_decoder_layers"  # Switch Transformers: how many route, evenly spread
# Inkling 2: how often some of its layers run, the first of them, and the first behind them.
LOOPS = ("loop_num_passes", "loop_config.num_passes")
LOOP_START = ("loop_layer_index_start", "loop_config.core_start")
LOOP_END = ("loop_layer_index_end", "loop_config.core_end")
PER_LAYER = ("per_layer_config", "block_configs")  # what a layer has otherwise, by its index
BLOCK = "block_type"  # of each of block_configs: Nemotron-H Puzzle

RULES = (*INDICES, *DENSE_FIRST, LAST, DENSE, *(name for name, _ in PERIODS), PERIOD, SPREAD)
"""Fields that only models with experts have."""
HINT = re.compile(r"expert|(^|_)moe(_|$)")
"""A field of such a name is of experts, whatever it says."""


# ---- Families


@dataclass(frozen=True, slots=True)
class Family:
    """How the configurations of one family are read."""

    fields: Mapping[str, Any]
    """The fields that say it, and what is taken where one is left out. None: there is no default,
    or it follows from the others."""
    shared_experts: int | None
    """Of each layer that routes, where no field says it; None: a field does."""
    zero_experts: int
    """Beside those that a field names."""
    k: int | None
    """Where no field says it."""
    dense_first: int | None
    """How many layers at the start are dense, if no field says more. None: a list of the layers has
    to be there."""
    elsewhere: tuple[str, ...]
    """What routes beside the layers of the decoder."""
    banks: int
    """Of experts in a layer, each for tokens of another kind."""
    uncaptured: str
    """Why no adapter captures the family; "": some do."""


def _family(
    more: Mapping[str, Any] = MappingProxyType({}),
    /,
    *,
    shared_experts: int | None = None,
    zero_experts: int = 0,
    k: int | None = None,
    dense_first: int | None = 0,
    elsewhere: tuple[str, ...] = (),
    banks: int = 1,
    uncaptured: str = "",
    **fields: object,
) -> Family:
    if not any(name in fields for name in (*SHARED, *SHARED_WIDTH)):
        shared_experts = shared_experts or 0
    fields.update(more)
    return Family(
        MappingProxyType(fields),
        shared_experts,
        zero_experts,
        k,
        dense_first,
        elsewhere,
        banks,
        uncaptured,
    )


def _deepseek(
    experts: int | None,
    k: int | None,
    shared: int | None = 1,
    *,
    n_group: int | None = 1,
    topk_group: int | None = 1,
) -> dict[str, Any]:
    return {
        "n_routed_experts": experts,
        "num_experts_per_tok": k,
        "n_shared_experts": shared,
        "n_group": n_group,
        "topk_group": topk_group,
    }


_LISTED: dict[str, Any] = {"mlp_layer_types": None}
_QWEN: dict[str, Any] = {"decoder_sparse_step": 1, "mlp_only_layers": []}

# fmt: off
FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "afmoe": _family(
            num_hidden_layers=32, num_experts=64, num_experts_per_tok=6, num_shared_experts=2,
            num_dense_layers=1,
        ),
        "aria_text": _family(
            num_hidden_layers=32, moe_num_experts=8, moe_topk=2, moe_num_shared_experts=2,
        ),
        "axk1": _family(
            num_hidden_layers=61, **_deepseek(192, 8, n_group=8, topk_group=4), **_LISTED,
            first_k_dense_replace=1, moe_layer_freq=1,
        ),
        "axk2": _family(
            num_hidden_layers=48, **_deepseek(128, 8, n_group=None, topk_group=None), **_LISTED,
            first_k_dense_replace=1, moe_layer_freq=1,
        ),
        "bailing_hybrid": _family(
            num_hidden_layers=42, num_experts=512, num_experts_per_token=8, num_shared_experts=1,
            num_expert_group=8, topk_group=4, **_LISTED, first_k_dense_replace=2,
        ),
        "beam": _family(
            num_hidden_layers=52, num_experts=256, num_experts_per_tok=8, n_group=8, topk_group=4,
            **_LISTED, dense_first=3,
        ),
        "cohere2_moe": _family(
            num_hidden_layers=40, num_experts=8, num_experts_per_tok=2, num_shared_experts=0,
            **_LISTED, first_k_dense_replace=0,
        ),
        "dbrx": _family({"ffn_config.moe_num_experts": 4, "ffn_config.moe_top_k": 1}, n_layers=24),
        "deepseek_ocr2_text": _family(
            num_hidden_layers=32, **_deepseek(64, None, 2, n_group=None, topk_group=None),
            topk_method="greedy", **_LISTED, dense_first=None,
        ),
        "deepseek_v2": _family(
            num_hidden_layers=32, **_deepseek(64, None, 2, n_group=None, topk_group=None),
            topk_method="greedy", first_k_dense_replace=0,
        ),
        "deepseek_v3": _family(
            num_hidden_layers=61, **_deepseek(256, 8, n_group=8, topk_group=4),
            first_k_dense_replace=3,
        ),
        "deepseek_v32": _family(
            num_hidden_layers=61, **_deepseek(256, 8, n_group=8, topk_group=4), **_LISTED,
            first_k_dense_replace=3,
        ),
        "deepseek_v4": _family(
            num_hidden_layers=43, n_routed_experts=256, num_experts_per_tok=6, n_shared_experts=1,
        ),
        "diffusion_gemma_text": _family(
            num_hidden_layers=30, num_experts=None, top_k_experts=None, shared_experts=1,
            elsewhere=("encoder",),
        ),
        "doge": _family(
            num_hidden_layers=32, num_experts=16384, num_experts_per_tok=64, is_moe=False,
            shared_experts=1, uncaptured="a token gets 64 experts",
        ),
        "dots1": _family(
            num_hidden_layers=62, **_deepseek(None, None, None), first_k_dense_replace=0,
        ),
        "dots3_note_text": _family(
            num_hidden_layers=46, **_deepseek(256, 8), **_LISTED, first_k_dense_replace=1,
            moe_layer_freq=1,
        ),
        "dots3_note_vision_encoder": _family(
            num_hidden_layers=42, num_local_experts=64, num_experts_per_tok=2, **_LISTED,
            dense_first=None,
        ),
        "ernie4_5_moe": _family(
            num_hidden_layers=28, moe_num_experts=64, moe_k=6, moe_num_shared_experts=2,
            moe_layer_start_index=1, moe_layer_end_index=-1, moe_layer_interval=1,
        ),
        "ernie4_5_vl_moe_text": _family(
            num_hidden_layers=28, moe_num_experts=64, moe_k=6, moe_num_shared_experts=2, **_LISTED,
            dense_first=1, banks=2,
        ),
        "exaone_moe": _family(
            num_hidden_layers=32, num_experts=64, num_experts_per_tok=8, num_shared_experts=1,
            n_group=1, topk_group=1, **_LISTED, first_k_dense_replace=1,
        ),
        "flex_olmo": _family(num_hidden_layers=32, num_experts=7, num_experts_per_tok=5),
        "flint": _family(
            num_hidden_layers=49, num_experts=256, num_experts_per_tok=6,
            shared_expert_intermediate_size=1024, decoder_sparse_step=1, mlp_only_layers=[0, 1],
        ),
        "gemma4_text": _family(
            num_hidden_layers=30, num_experts=None, top_k_experts=None, enable_moe_block=False,
            shared_experts=1,
        ),
        "glm4_moe": _family(num_hidden_layers=46, **_deepseek(128, 8), first_k_dense_replace=1),
        "glm4_moe_lite": _family(
            num_hidden_layers=47, **_deepseek(64, 4), **_LISTED, dense_first=1,
        ),
        "glm4v_moe_text": _family(
            num_hidden_layers=46, **_deepseek(128, 8), first_k_dense_replace=1,
        ),
        "glm5_next_text": _family(
            num_hidden_layers=45, **_deepseek(288, 8), **_LISTED, dense_first=3,
        ),
        "glm_moe_dsa": _family(
            num_hidden_layers=78, **_deepseek(256, 8), **_LISTED, first_k_dense_replace=3,
        ),
        "gpt_oss": _family(num_hidden_layers=36, num_local_experts=128, num_experts_per_tok=4),
        "granitemoe": _family(num_hidden_layers=32, num_local_experts=8, num_experts_per_tok=2),
        "granitemoe_swa": _family(
            num_hidden_layers=32, num_local_experts=8, num_experts_per_tok=2,
            shared_intermediate_size=0,
        ),
        "granitemoehybrid": _family(
            num_hidden_layers=32, num_local_experts=8, num_experts_per_tok=2,
            shared_intermediate_size=1024,
        ),
        "granitemoeshared": _family(
            num_hidden_layers=32, num_local_experts=8, num_experts_per_tok=2,
            shared_intermediate_size=0,
        ),
        "hunyuan_v1_moe": _family(
            num_hidden_layers=32, num_experts=1, moe_topk=1, shared_experts=1,
        ),
        "hy_v3": _family(
            num_hidden_layers=80, num_experts=192, num_experts_per_tok=8, num_shared_experts=1,
            **_LISTED, dense_first=1,
        ),
        "hy_v4": _family(num_hidden_layers=34, **_deepseek(256, 8), **_LISTED, dense_first=1),
        "hy_v4_vl_text": _family(
            num_hidden_layers=78, **_deepseek(256, 8), **_LISTED, dense_first=1,
        ),
        "inkling_text": _family(
            num_hidden_layers=66, n_routed_experts=256, num_experts_per_tok=6, n_shared_experts=2,
            **_LISTED, dense_mlp_idx=0,
        ),
        "inkling2_loop_text": _family(
            num_hidden_layers=24, n_routed_experts=128, num_experts_per_tok=8, loop_num_passes=3,
            loop_layer_index_start=6, loop_layer_index_end=18,
        ),
        "inkling2_text": _family(num_hidden_layers=48, n_routed_experts=384, num_experts_per_tok=8),
        "jamba": _family(
            num_hidden_layers=32, num_experts=16, num_experts_per_tok=2, expert_layer_period=2,
            expert_layer_offset=1,
        ),
        "jetmoe": _family(
            num_hidden_layers=12, num_local_experts=8, num_experts_per_tok=2,
            elsewhere=("attention",),
        ),
        "kimi_linear": _family(
            num_hidden_layers=27, num_experts=256, num_experts_per_token=8, num_shared_experts=1,
            num_expert_group=1, topk_group=1, **_LISTED, first_k_dense_replace=1,
        ),
        "kolibri1": _family(
            num_hidden_layers=50, num_local_experts=384, num_experts_per_tok=6,
            shared_expert_intermediate_size=512,
        ),
        "laguna": _family(
            num_hidden_layers=40, num_experts=256, num_experts_per_tok=8,
            shared_expert_intermediate_size=512, **_LISTED, dense_first=1,
        ),
        "lara_mini": _family(
            num_hidden_layers=34, num_experts=128, num_experts_per_tok=4,
            shared_expert_intermediate_size=512,
        ),
        "lfm2_moe": _family(
            num_hidden_layers=32, num_experts=32, num_experts_per_tok=4, num_dense_layers=2,
        ),
        "llama4_text": _family(
            num_hidden_layers=48, num_local_experts=16, num_experts_per_tok=1, shared_experts=1,
            moe_layers=None, interleave_moe_layer_step=1,
        ),
        "longcat_flash": _family(
            num_layers=28, n_routed_experts=512, moe_topk=12, zero_expert_num=256,
        ),
        "mellum": _family(
            num_hidden_layers=28, num_local_experts=64, num_experts_per_tok=8, **_LISTED,
        ),
        "mimo_v2_flash": _family(
            num_hidden_layers=48, n_routed_experts=256, num_experts_per_tok=8, n_group=1,
            topk_group=1, **_LISTED, dense_first=1,
        ),
        "minimax": _family(num_hidden_layers=32, num_local_experts=8, num_experts_per_tok=2),
        "minimax_m2": _family(num_hidden_layers=62, num_local_experts=256, num_experts_per_tok=8),
        "minimax_m3_vl_text": _family(
            num_hidden_layers=60, num_local_experts=128, num_experts_per_tok=4,
            shared_intermediate_size=3072, **_LISTED, moe_layer_freq=None,
        ),
        "mistral4": _family(num_hidden_layers=36, **_deepseek(128, 4), first_k_dense_replace=0),
        "mistral_large4_text": _family(
            num_hidden_layers=72, **_deepseek(128, 4), **_LISTED, first_k_dense_replace=1,
        ),
        "mixtral": _family(num_hidden_layers=32, num_local_experts=8, num_experts_per_tok=2),
        "muse_spark_text": _family(
            num_hidden_layers=62, num_local_experts=256, num_experts_per_tok=8, **_LISTED,
        ),
        "nemotron_h": _family(
            **_deepseek(8, 2), layers_block_type=["linear_attention", "moe", "full_attention",
            "mlp"], hybrid_override_pattern=None,
        ),
        "nllb-moe": _family(
            decoder_layers=12, num_experts=128, k=2, decoder_sparse_step=4, elsewhere=("encoder",),
            uncaptured="an encoder and a decoder route",
        ),
        "olmoe": _family(num_hidden_layers=16, num_experts=64, num_experts_per_tok=8),
        "openai_privacy_filter": _family(
            num_hidden_layers=8, num_local_experts=128, num_experts_per_tok=4,
        ),
        "phimoe": _family(num_hidden_layers=32, num_local_experts=16, num_experts_per_tok=2),
        "qwen2_moe": _family(
            num_hidden_layers=24, num_experts=60, num_experts_per_tok=4,
            shared_expert_intermediate_size=5632, **_QWEN,
        ),
        "qwen3_5_moe_text": _family(
            num_hidden_layers=40, num_experts=256, num_experts_per_tok=8,
            shared_expert_intermediate_size=512,
        ),
        "qwen3_moe": _family(
            num_hidden_layers=24, num_local_experts=128, num_experts_per_tok=8, **_QWEN,
        ),
        "qwen3_next": _family(
            num_hidden_layers=48, num_experts=512, num_experts_per_tok=10,
            shared_expert_intermediate_size=512, **_QWEN,
        ),
        "qwen3_omni_moe_talker_text": _family(
            num_hidden_layers=20, num_local_experts=128, num_experts_per_tok=8, shared_experts=1,
        ),
        "qwen3_omni_moe_text": _family(
            num_hidden_layers=28, num_experts=128, num_experts_per_tok=8, **_QWEN,
        ),
        "qwen3_vl_moe_text": _family(
            num_hidden_layers=24, num_local_experts=60, num_experts_per_tok=4, **_QWEN,
        ),
        "qwen4_exp_text": _family(
            num_hidden_layers=40, num_experts=512, num_experts_per_tok=10,
            shared_expert_intermediate_size=512,
        ),
        "solar_open": _family(num_hidden_layers=48, **_deepseek(128, 8)),
        "step3p5": _family(
            num_hidden_layers=45, n_routed_experts=288, num_experts_per_tok=8,
            share_expert_dim=1280, **_LISTED, moe_layers_enum=None, dense_first=3,
        ),
        "switch_transformers": _family(
            num_decoder_layers=12, num_experts=8, k=1, num_sparse_decoder_layers=3,
            elsewhere=("encoder",), uncaptured="an encoder and a decoder route",
        ),
        "unlimited_ocr_text": _family(
            num_hidden_layers=12, **_deepseek(64, 6, 2), topk_method="greedy", **_LISTED,
            first_k_dense_replace=1,
        ),
        "zaya": _family(
            num_hidden_layers=40, num_experts=16, num_experts_per_tok=1, zero_experts=1,
        ),
    }
)
"""By model_type: of transformers 5.24, every family whose layers route."""
# fmt: on

SAME_AS = {  # model_type: the family as which it is read
    "ernie4_5_moe_vl": "ernie4_5_moe",
    "inkling_mm_model": "inkling_text",
    "kimi_k2": "deepseek_v3",
    "nemo_speechlm": "nemotron_h",
    "qwen3_omni_moe_thinker": "qwen3_omni_moe_text",
    "step3p7": "step3p5",
}

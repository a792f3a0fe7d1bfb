"""A tiny model of every family, with random weights, and the routing that its routers tell a plain
hook.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch
import transformers
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

VERSION = tuple(int(each) for each in transformers.__version__.split(".")[:2])
CACHE = "cache" if VERSION >= (5, 24) else "past_key_values"
"""By which a model is given its cache, and gives it back."""
RESET_EMPTIES = VERSION >= (5, 18)
"""Before, a layer that grows keeps its columns when it is reset, with zeros in them."""
HAS_LOOPS = "inkling2_loop_text" in CONFIG_MAPPING
"""Whether a family of this release has layers that run in a loop."""
EXPERTS, K = 8, 2
PAD, EOS, VOCABULARY = 0, 2, 128

_BASE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "pad_token_id": PAD,
    "bos_token_id": 1,
    "eos_token_id": EOS,
}
_LOCAL = {"num_local_experts": EXPERTS, "num_experts_per_tok": K}
_NUM = {"num_experts": EXPERTS, "num_experts_per_tok": K}
_ROUTED = {"n_routed_experts": EXPERTS, "num_experts_per_tok": K, "moe_intermediate_size": 32}
_MLA = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "head_dim": 8,
    "num_key_value_heads": 4,
    "n_shared_experts": 1,
}
_LINEAR = {
    **_NUM,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "layer_types": ["linear_attention", "linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
_FULL = {"layer_types": ["full_attention"] * 3}

# Beside the configuration: the layers that route.
FAMILIES: dict[str, tuple[dict[str, Any], list[int]]] = {
    "mixtral": (_LOCAL, [0, 1, 2]),
    "qwen2_moe": (
        {**_NUM, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32},
        [0, 1, 2],
    ),
    "qwen3_moe": ({**_NUM, "moe_intermediate_size": 32, "mlp_only_layers": [1]}, [0, 2]),
    "qwen3_next": (_LINEAR, [0, 1, 2]),
    "qwen3_5_moe_text": (_LINEAR, [0, 1, 2]),
    "olmoe": (_NUM, [0, 1, 2]),
    "deepseek_v2": (
        {
            **_ROUTED,
            **_MLA,
            "first_k_dense_replace": 1,
            "n_group": 1,
            "topk_group": 1,
            "topk_method": "greedy",
        },
        [1, 2],
    ),
    "deepseek_v3": (
        {**_ROUTED, **_MLA, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2},
        [1, 2],
    ),
    "gpt_oss": (
        {
            **_LOCAL,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "sliding_window": 8,
        },
        [0, 1, 2],
    ),
    "llama4_text": (
        {
            **_LOCAL,
            "num_experts_per_tok": 1,
            "intermediate_size_mlp": 96,
            "interleave_moe_layer_step": 2,
            "num_hidden_layers": 4,
        },
        [1, 3],
    ),
    "glm4_moe": ({**_ROUTED, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}, [1, 2]),
    "minimax": ({**_LOCAL, "block_size": 4}, [0, 1, 2]),
    "minimax_m2": (_LOCAL, [0, 1, 2]),
    "phimoe": (_LOCAL, [0, 1, 2]),
    "granitemoe": (_LOCAL, [0, 1, 2]),
    "ernie4_5_moe": (
        {
            "moe_num_experts": EXPERTS,
            "moe_k": K,
            "moe_intermediate_size": 32,
            "moe_layer_start_index": 1,
        },
        [1, 2],
    ),
    "hunyuan_v1_moe": ({"num_experts": EXPERTS, "moe_topk": K}, [0, 1, 2]),
    "jamba": (
        {
            **_NUM,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "use_mamba_kernels": False,
            "num_hidden_layers": 4,
        },
        [1, 3],
    ),
    "lfm2_moe": ({**_NUM, **_FULL, "moe_intermediate_size": 32, "num_dense_layers": 1}, [1, 2]),
    "gemma4_text": (
        {
            "num_experts": EXPERTS,
            "top_k_experts": K,
            "moe_intermediate_size": 32,
            "enable_moe_block": True,
            "hidden_size_per_layer_input": 0,
            "global_head_dim": 16,
            **_FULL,
        },
        [0, 1, 2],
    ),
    "afmoe": ({**_NUM, **_FULL, "moe_intermediate_size": 32, "num_dense_layers": 1}, [1, 2]),
    "nemotron_h": ({**_ROUTED, "layers_block_type": ["attention", "moe", "moe"]}, [1, 2]),
    "longcat_flash": (
        {
            **_MLA,
            "n_routed_experts": EXPERTS,
            "zero_expert_num": 2,
            "moe_topk": K,
            "expert_ffn_hidden_size": 32,
            "ffn_hidden_size": 96,
            "num_layers": 2,
            "num_hidden_layers": 4,
        },
        [0, 1],
    ),
    "jetmoe": ({**_LOCAL, "kv_channels": 16, "num_key_value_heads": 4}, [0, 1, 2]),
    "dbrx": (
        {
            "d_model": 64,
            "n_heads": 4,
            "n_layers": 3,
            "max_seq_len": 128,
            "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
            "ffn_config": {
                "ffn_hidden_size": 64,
                "hidden_size": 64,
                "moe_num_experts": EXPERTS,
                "moe_top_k": K,
            },
        },
        [0, 1, 2],
    ),
}


CHOSEN = os.environ.get("ROUTECAP_FAMILIES", "").split(",")
"""The families that are tested; "": all."""
if CHOSEN != [""]:
    FAMILIES = {family: FAMILIES[family] for family in CHOSEN}


def config_of(family: str, **changes: Any) -> Any:
    given = FAMILIES[family][0]
    base = (
        _BASE
        if family != "dbrx"
        else {
            name: _BASE[name]
            for name in ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id")
        }
    )
    return CONFIG_MAPPING[family](**{**base, **given, **changes})


def make(family: str, seed: int = 0, **changes: Any) -> Any:
    if family not in FAMILIES:
        pytest.skip(f"{family} is none of the families that are tested")
    return make_of(config_of(family, **changes), seed)


def make_of(config: Any, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval().float()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    model.generation_config.pad_token_id = PAD
    return model


def make_looped(**changes: Any) -> Any:
    """A model of four layers, of which 1 and 2 run three times."""
    sizes = {
        "vocab_size": VOCABULARY, "unpadded_vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 2, "swa_head_dim": 16, "sliding_window_size": 8, "d_rel": 4, "rel_extent": 16,
        "max_position_embeddings": 128, "moe_intermediate_size": 32, "n_routed_experts": EXPERTS, "num_experts_per_tok": K,
        "layer_types": ["hybrid_sliding", "hybrid"] * 2, "n_layers_per_attn_res_block": 1, "loop_layer_index_start": 1,
        "loop_layer_index_end": 3, "loop_num_passes": 3, "loop_gate_rank": 8, "pad_token_id": PAD, "bos_token_id": 1,
        "eos_token_id": EOS,
    }  # fmt: skip
    return make_of(CONFIG_MAPPING["inkling2_loop_text"](**sizes | changes))


def make_banked() -> Any:
    """A model of text and images, whose layers 1 and 2 have a bank of experts for each."""
    from transformers.models.ernie4_5_vl_moe import modeling_ernie4_5_vl_moe as family

    text = {
        "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "moe_intermediate_size": [32, 16], "moe_num_experts": EXPERTS, "moe_k": K,
        "mlp_layer_types": ["dense", "sparse", "sparse"], "pad_token_id": PAD, "bos_token_id": 1, "eos_token_id": EOS,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e5, "mrope_section": [3, 3, 2]},
    }  # fmt: skip
    images = {"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 32}
    config = CONFIG_MAPPING["ernie4_5_vl_moe"](text_config=text, vision_config=images)
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = family.Ernie4_5_VLMoeForConditionalGeneration(config).eval().float()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    model.generation_config.pad_token_id = PAD
    return model


def checkpoint(model: Any, **options: Any) -> None:
    """Let layers be computed again in backward."""
    enable = getattr(model, "activation_checkpointing_enable", None)  # its newer name
    (enable or model.gradient_checkpointing_enable)(options)


class Witness:
    """Plain hooks on the routers, which tell of each forward pass [rows, k] ids for each layer,
    sorted: `passes` is a list of {layer: ids}. `weights` is the same of the weights that they gave,
    in the order of the sorted ids.
    """

    def __init__(self, model: Any, k: int = K) -> None:
        self.passes: list[dict[int, torch.Tensor]] = []
        self.weights: list[dict[int, torch.Tensor]] = []
        self._k = k
        self._undo: list[Callable[[], object]] = []
        modules = dict(model.named_modules())
        for name, module in modules.items():
            if not re.search(r"(?<!router)\.(gate|router)$", name) or "attention" in name:
                continue
            layer = int(re.search(r"\.(\d+)\.", name).group(1))
            block = modules[name.rpartition(".")[0]]
            if hasattr(block, "route_tokens_to_experts"):  # what chooses by the router's logits
                self._follow(layer, block)
                continue
            self._undo.append(
                module.register_forward_hook(
                    lambda module, args, output, layer=layer: self._see(layer, output)
                ).remove
            )

    def _follow(self, layer: int, block: Any) -> None:
        choose = block.route_tokens_to_experts

        def seen(*args: Any) -> Any:
            output = choose(*args)
            self._see(layer, output)
            return output

        block.route_tokens_to_experts = seen
        self._undo.append(lambda: delattr(block, "route_tokens_to_experts"))

    def _see(self, layer: int, output: Any) -> None:
        tensors = [
            each
            for each in (output if isinstance(output, tuple) else (output,))
            if isinstance(each, torch.Tensor)
        ]
        ids = [each for each in tensors if not each.is_floating_point() and each.ndim == 2]
        if not ids and len(tensors) == 2 and tensors[0].shape == tensors[1].shape:
            scattered = tensors[0].detach().topk(self._k, -1)  # llama4's scores, 0 where not chosen
            tensors, ids = [scattered.values], [scattered.indices]
        if not ids:
            ids = [
                tensors[-1].float().topk(self._k, -1).indices
            ]  # logits are the last or the only ones
        if not self.passes or layer in self.passes[-1]:
            self.passes.append({})
            self.weights.append({})
        ordered = ids[0].sort(-1)
        self.passes[-1][layer] = ordered.values.cpu()
        for each in tensors:
            if each.is_floating_point() and each.shape == ids[0].shape:
                self.weights[-1][layer] = each.detach().gather(-1, ordered.indices).cpu()

    def __enter__(self) -> Witness:
        return self

    def __exit__(self, *unused: object) -> None:
        for undo in self._undo:
            undo()


def rows_of(
    passes: list[dict[int, torch.Tensor]], masks: list[Any], sequences: int
) -> list[torch.Tensor]:
    """[tokens, layers, k] for each sequence, from what was seen in each pass and a
    [sequences, length] mask of it.
    """
    found: list[list[torch.Tensor]] = [[] for _ in range(sequences)]
    for seen, mask in zip(passes, masks, strict=True):
        ids = torch.stack([seen[layer] for layer in sorted(seen)], 1)
        length = mask.shape[1]
        for sequence in range(sequences):
            for column in range(length):
                if mask[sequence, column]:
                    found[sequence].append(ids[sequence * length + column])
    return [torch.stack(rows) for rows in found]

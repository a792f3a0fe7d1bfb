#!/usr/bin/env python3
"""Writes a tiny random Qwen3-MoE over bytes: FOLDER/config.json and FOLDER/model.safetensors, in
float32. Needs NumPy and safetensors.

usage: make_model.py SEED FOLDER

The seed decides the sizes, too. Routers have large weights, so that no choice of experts is a near
tie, which engines may settle differently. tests/model/to_gguf.py makes GGUF of it.
"""

import json
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

seed, folder = int(sys.argv[1]), Path(sys.argv[2])
random = np.random.default_rng(seed)
layers, experts = int(random.integers(2, 5)), int(random.choice([8, 16, 24]))
used, heads = int(random.integers(2, 5)), int(random.choice([2, 4]))
vocabulary, width, head, kv_heads, expert_width = 256, 64, 16, 2, 32

config = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "dtype": "float32",
    "hidden_act": "silu",
    "vocab_size": vocabulary,
    "hidden_size": width,
    "num_hidden_layers": layers,
    "max_position_embeddings": 512,
    "num_attention_heads": heads,
    "num_key_value_heads": kv_heads,
    "head_dim": head,
    "attention_bias": False,
    "num_experts": experts,
    "num_experts_per_tok": used,
    "moe_intermediate_size": expert_width,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "intermediate_size": 96,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "rope_theta": 10000.0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "use_sliding_window": False,
    "sliding_window": None,
    "max_window_layers": layers,
    "bos_token_id": None,
    "eos_token_id": None,
}


def matrix(*shape, scale=0.35):
    return (random.standard_normal(shape) * scale).astype(np.float32)


def ones(size):
    return np.ones(size, np.float32)


tensors = {
    "model.embed_tokens": matrix(vocabulary, width, scale=1.0),
    "model.norm": ones(width),
    "lm_head": matrix(vocabulary, width),
}
for layer in range(layers):
    tensors |= {
        f"model.layers.{layer}.{name}": tensor
        for name, tensor in {
            "input_layernorm": ones(width),
            "post_attention_layernorm": ones(width),
            "self_attn.q_proj": matrix(heads * head, width),
            "self_attn.k_proj": matrix(kv_heads * head, width),
            "self_attn.v_proj": matrix(kv_heads * head, width),
            "self_attn.o_proj": matrix(width, heads * head),
            "self_attn.q_norm": ones(head),
            "self_attn.k_norm": ones(head),
            "mlp.gate": matrix(experts, width, scale=1.0),
            **{f"mlp.experts.{e}.gate_proj": matrix(expert_width, width) for e in range(experts)},
            **{f"mlp.experts.{e}.up_proj": matrix(expert_width, width) for e in range(experts)},
            **{f"mlp.experts.{e}.down_proj": matrix(width, expert_width) for e in range(experts)},
        }.items()
    }

folder.mkdir(parents=True, exist_ok=True)
(folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
save_file(
    {name + ".weight": tensor for name, tensor in tensors.items()},
    folder / "model.safetensors",
    metadata={"format": "pt"},
)

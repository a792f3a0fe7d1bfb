#!/usr/bin/env python3
"""Writes the model of a folder (config.json, model.safetensors) as GGUF, for llama.cpp.

Needs NumPy and gguf.

usage: to_gguf.py FOLDER FILE.gguf [--float32 | --q4_0]

Matrices become Q8_0, the same numbers in the same space. llama.cpp then rounds activations to 8
bits too; with --float32 the file is four times as large and llama.cpp computes, and routes, as
PyTorch does. With --q4_0 they are other numbers, of 4 bits. There is no tokenizer: token ids are
bytes.
"""

import json
import sys
from pathlib import Path

import gguf
import numpy as np

import formats

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate": "ffn_gate_inp",
}

folder, path = Path(sys.argv[1]), sys.argv[2]
kind = {"--float32": "F32", "--q4_0": "Q4_0"}[sys.argv[3]] if sys.argv[3:] else "Q8_0"
config = json.loads((folder / "config.json").read_text())
tensors, _ = formats.read_safetensors(folder / "model.safetensors")

out = gguf.GGUFWriter(path, "qwen3moe")
out.add_name("bytes")
out.add_block_count(config["num_hidden_layers"])
out.add_context_length(config["max_position_embeddings"])
out.add_embedding_length(config["hidden_size"])
out.add_feed_forward_length(config["intermediate_size"])
out.add_head_count(config["num_attention_heads"])
out.add_head_count_kv(config["num_key_value_heads"])
out.add_key_length(config["head_dim"])
out.add_value_length(config["head_dim"])
out.add_rope_dimension_count(config["head_dim"])
out.add_rope_freq_base(config["rope_theta"])
out.add_layer_norm_rms_eps(config["rms_norm_eps"])
out.add_expert_count(config["num_experts"])
out.add_expert_used_count(config["num_experts_per_tok"])
out.add_expert_feed_forward_length(config["moe_intermediate_size"])
out.add_vocab_size(config["vocab_size"])
out.add_tokenizer_model("no_vocab")
out.add_file_type(gguf.LlamaFileType[f"{'ALL' if kind == 'F32' else 'MOSTLY'}_{kind}"])


def add(name, array, eight_bit):
    if eight_bit and kind != "F32":
        to = gguf.GGMLQuantizationType[kind]
        data = formats.q8_0(array) if kind == "Q8_0" else gguf.quantize(array, to)
        out.add_tensor(name, data, raw_dtype=to)
    else:
        out.add_tensor(name, np.ascontiguousarray(array))


def gguf_name(name):
    name = name.removesuffix(".weight")
    if not name.startswith("model.layers."):
        return NAMES[name] + ".weight"
    layer, name = name.removeprefix("model.layers.").split(".", 1)
    return f"blk.{layer}.{NAMES[name]}.weight"


for name, array in tensors.items():
    if ".experts." not in name:
        add(gguf_name(name), array, formats.is_eight_bit(name))
for layer in range(config["num_hidden_layers"]):
    for projection in ("gate", "up", "down"):
        experts = [
            tensors[f"model.layers.{layer}.mlp.experts.{e}.{projection}_proj.weight"]
            for e in range(config["num_experts"])
        ]
        add(f"blk.{layer}.ffn_{projection}_exps.weight", np.stack(experts), True)

out.write_header_to_file()
out.write_kv_data_to_file()
out.write_tensors_to_file()
out.close()

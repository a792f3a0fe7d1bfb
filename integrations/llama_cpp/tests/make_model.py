#!/usr/bin/env python3
"""Write a small random mixture-of-experts model over bytes, as GGUF, for llama.cpp.

usage: make_model.py ARCHITECTURE FILE [--tokenizer]

ARCHITECTURE is qwen3moe (every layer has experts), deepseek2 (a leading dense layer, latent
attention, sigmoid routing in groups with a selection bias, a shared expert), gpt-oss (a sliding
window in every other layer, so two kinds of memory; the last layer runs all rows) or qwen3 (no
experts at all: there is nothing to capture). It has no tokenizer: token ids are bytes. With
--tokenizer each token is two letters, as a server needs text. The weights are random, so the
routing is noise, but it is computed by the engine's real code.
"""

import sys

import gguf
import numpy as np

LAYERS, WIDTH, HEADS, HEAD, BYTES = 6, 64, 4, 16, 256
EXPERTS, USED, EXPERT_WIDTH, DENSE_WIDTH = 32, 4, 32, 96

architecture, path = sys.argv[1:3]
random = np.random.default_rng(7)
out = gguf.GGUFWriter(path, architecture)


def tensor(name, *shape, scale=0.35):
    """A random tensor, in NumPy's order of dimensions (ggml's reversed)."""
    out.add_tensor(name, (random.standard_normal(shape) * scale).astype(np.float32))


def ones(name, *shape):
    out.add_tensor(name, np.ones(shape, np.float32))


def experts(layer):
    tensor(f"blk.{layer}.ffn_gate_inp.weight", EXPERTS, WIDTH, scale=1.0)
    tensor(f"blk.{layer}.ffn_gate_exps.weight", EXPERTS, EXPERT_WIDTH, WIDTH)
    tensor(f"blk.{layer}.ffn_up_exps.weight", EXPERTS, EXPERT_WIDTH, WIDTH)
    tensor(f"blk.{layer}.ffn_down_exps.weight", EXPERTS, WIDTH, EXPERT_WIDTH)


def feed_forward(layer, suffix, width):
    tensor(f"blk.{layer}.ffn_gate{suffix}.weight", width, WIDTH)
    tensor(f"blk.{layer}.ffn_up{suffix}.weight", width, WIDTH)
    tensor(f"blk.{layer}.ffn_down{suffix}.weight", WIDTH, width)


out.add_block_count(LAYERS)
out.add_context_length(2048)
out.add_embedding_length(WIDTH)
out.add_feed_forward_length(DENSE_WIDTH)
out.add_head_count(HEADS)
out.add_layer_norm_rms_eps(1e-5)
out.add_rope_freq_base(10000.0)
out.add_vocab_size(BYTES)
if sys.argv[3:] == ["--tokenizer"]:
    # Two letters a token: a server refuses answers that are no UTF-8.
    letters = [f"{chr(97 + byte // 16)}{chr(97 + byte % 16)}" for byte in range(BYTES)]
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("gpt-2")
    out.add_token_list(letters)
    out.add_token_types([gguf.TokenType.NORMAL] * BYTES)
    out.add_token_merges(["a b"])
    out.add_eos_token_id(0)
    out.add_add_bos_token(False)
else:
    out.add_tokenizer_model("no_vocab")
out.add_file_type(gguf.LlamaFileType.ALL_F32)
if architecture != "qwen3":
    out.add_expert_count(EXPERTS)
    out.add_expert_used_count(USED)
    out.add_expert_feed_forward_length(EXPERT_WIDTH)
tensor("token_embd.weight", BYTES, WIDTH, scale=1.0)
ones("output_norm.weight", WIDTH)
tensor("output.weight", BYTES, WIDTH)

if architecture in ("qwen3moe", "qwen3"):
    out.add_head_count_kv(2)
    out.add_key_length(HEAD)
    out.add_value_length(HEAD)
    out.add_rope_dimension_count(HEAD)
    for i in range(LAYERS):
        ones(f"blk.{i}.attn_norm.weight", WIDTH)
        ones(f"blk.{i}.ffn_norm.weight", WIDTH)
        tensor(f"blk.{i}.attn_q.weight", HEADS * HEAD, WIDTH)
        tensor(f"blk.{i}.attn_k.weight", 2 * HEAD, WIDTH)
        tensor(f"blk.{i}.attn_v.weight", 2 * HEAD, WIDTH)
        tensor(f"blk.{i}.attn_output.weight", WIDTH, HEADS * HEAD)
        ones(f"blk.{i}.attn_q_norm.weight", HEAD)
        ones(f"blk.{i}.attn_k_norm.weight", HEAD)
        if architecture == "qwen3moe":
            experts(i)
        else:
            feed_forward(i, "", DENSE_WIDTH)
elif architecture == "gpt-oss":
    out.add_head_count_kv(2)
    out.add_key_length(HEAD)
    out.add_value_length(HEAD)
    out.add_rope_dimension_count(HEAD)
    out.add_sliding_window(32)
    for i in range(LAYERS):
        ones(f"blk.{i}.attn_norm.weight", WIDTH)
        ones(f"blk.{i}.post_attention_norm.weight", WIDTH)
        tensor(f"blk.{i}.attn_q.weight", HEADS * HEAD, WIDTH)
        tensor(f"blk.{i}.attn_k.weight", 2 * HEAD, WIDTH)
        tensor(f"blk.{i}.attn_v.weight", 2 * HEAD, WIDTH)
        tensor(f"blk.{i}.attn_output.weight", WIDTH, HEADS * HEAD)
        tensor(f"blk.{i}.attn_output.bias", WIDTH)
        tensor(f"blk.{i}.attn_sinks.weight", HEADS)
        experts(i)
        tensor(f"blk.{i}.ffn_gate_inp.bias", EXPERTS)
        tensor(f"blk.{i}.ffn_gate_exps.bias", EXPERTS, EXPERT_WIDTH)
        tensor(f"blk.{i}.ffn_up_exps.bias", EXPERTS, EXPERT_WIDTH)
        tensor(f"blk.{i}.ffn_down_exps.bias", EXPERTS, WIDTH)
elif architecture == "deepseek2":
    no_rope, rope, value, q_rank, kv_rank = 16, 8, 16, 24, 32
    out.add_head_count_kv(1)
    out.add_key_length(kv_rank + rope)
    out.add_value_length(kv_rank)
    out.add_key_length_mla(no_rope + rope)
    out.add_value_length_mla(value)
    out.add_q_lora_rank(q_rank)
    out.add_kv_lora_rank(kv_rank)
    out.add_rope_dimension_count(rope)
    out.add_leading_dense_block_count(1)
    out.add_expert_shared_count(1)
    out.add_expert_weights_scale(2.5)
    out.add_expert_weights_norm(True)
    out.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    out.add_expert_group_count(4)
    out.add_expert_group_used_count(2)
    for i in range(LAYERS):
        ones(f"blk.{i}.attn_norm.weight", WIDTH)
        ones(f"blk.{i}.ffn_norm.weight", WIDTH)
        ones(f"blk.{i}.attn_q_a_norm.weight", q_rank)
        ones(f"blk.{i}.attn_kv_a_norm.weight", kv_rank)
        tensor(f"blk.{i}.attn_q_a.weight", q_rank, WIDTH)
        tensor(f"blk.{i}.attn_q_b.weight", HEADS * (no_rope + rope), q_rank)
        tensor(f"blk.{i}.attn_kv_a_mqa.weight", kv_rank + rope, WIDTH)
        tensor(f"blk.{i}.attn_k_b.weight", HEADS, kv_rank, no_rope)
        tensor(f"blk.{i}.attn_v_b.weight", HEADS, value, kv_rank)
        tensor(f"blk.{i}.attn_output.weight", WIDTH, HEADS * value)
        if i == 0:
            feed_forward(i, "", DENSE_WIDTH)
        else:
            experts(i)
            tensor(f"blk.{i}.exp_probs_b.bias", EXPERTS, scale=0.1)
            feed_forward(i, "_shexp", EXPERT_WIDTH)
else:
    sys.exit(f"unknown architecture {architecture}")

out.write_header_to_file()
out.write_kv_data_to_file()
out.write_tensors_to_file()
out.close()

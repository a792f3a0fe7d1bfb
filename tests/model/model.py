"""A mixture-of-experts language model over bytes, in PyTorch: Qwen3-MoE's architecture in its
smallest form.

RMSNorm, attention with normalised queries and keys and rotary positions, a softmax router whose k
largest weights are renormalised, experts of SwiGLU. It gives the same logits as transformers'
Qwen3MoeForCausalLM and llama.cpp's qwen3moe with the same weights.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import formats


@dataclass(frozen=True)
class Config:
    """Sizes, by the names of transformers' Qwen3MoeConfig."""

    vocab_size: int = 256
    hidden_size: int = 96
    num_hidden_layers: int = 5
    num_attention_heads: int = 4
    num_key_value_heads: int = 1
    head_dim: int = 32
    num_experts: int = 16
    num_experts_per_tok: int = 2
    moe_intermediate_size: int = 32
    intermediate_size: int = 64  # of a dense layer; there is none
    max_position_embeddings: int = 1024
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6


FIXED = dict(
    architectures=["Qwen3MoeForCausalLM"],
    model_type="qwen3_moe",
    norm_topk_prob=True,
    decoder_sparse_step=1,
    mlp_only_layers=[],
    hidden_act="silu",
    attention_bias=False,
    tie_word_embeddings=False,
    use_sliding_window=False,
    sliding_window=None,
    bos_token_id=None,
    eos_token_id=None,
    dtype="float32",
)


def on_grid(weight):
    """The nearest weights that the shipped files can hold."""
    return weight.clamp(-formats.LIMIT, formats.LIMIT).to(torch.float8_e4m3fn).to(weight.dtype)


def linear(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False)


class RMSNorm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        x = x.float()
        return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps))


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.q_proj = linear(c.hidden_size, c.num_attention_heads * c.head_dim)
        self.k_proj = linear(c.hidden_size, c.num_key_value_heads * c.head_dim)
        self.v_proj = linear(c.hidden_size, c.num_key_value_heads * c.head_dim)
        self.o_proj = linear(c.num_attention_heads * c.head_dim, c.hidden_size)
        self.q_norm, self.k_norm = (
            RMSNorm(c.head_dim, c.rms_norm_eps),
            RMSNorm(c.head_dim, c.rms_norm_eps),
        )

    def forward(self, x, cos, sin):
        def heads(y):  # [batch, rows, heads * head_dim] -> [batch, heads, rows, head_dim]
            return y.unflatten(-1, (-1, self.c.head_dim)).transpose(1, 2)

        def rotate(y):
            a, b = y.chunk(2, -1)
            return y * cos + torch.cat((-b, a), -1) * sin

        v = heads(self.v_proj(x))
        q = rotate(self.q_norm(heads(self.q_proj(x)))).to(v.dtype)
        k = rotate(self.k_norm(heads(self.k_proj(x)))).to(v.dtype)
        y = F.scaled_dot_product_attention(q, k.expand_as(q), v.expand_as(q), is_causal=True)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class Experts(nn.Module):
    """All experts as three matrices.

    Every expert is computed for every row: at this size that is quicker than gathering rows.
    """

    def __init__(self, c):
        super().__init__()
        self.c = c
        self.gate_proj = nn.Parameter(
            torch.empty(c.num_experts, c.moe_intermediate_size, c.hidden_size)
        )
        self.up_proj = nn.Parameter(
            torch.empty(c.num_experts, c.moe_intermediate_size, c.hidden_size)
        )
        self.down_proj = nn.Parameter(
            torch.empty(c.num_experts, c.hidden_size, c.moe_intermediate_size)
        )

    def forward(
        self, x, share
    ):  # share: [batch, rows, experts], zero where an expert is not chosen
        hidden = F.silu(F.linear(x, self.gate_proj.flatten(0, 1))) * F.linear(
            x, self.up_proj.flatten(0, 1)
        )
        hidden = hidden * share.to(hidden.dtype).repeat_interleave(self.c.moe_intermediate_size, -1)
        return F.linear(hidden, self.down_proj.transpose(0, 1).flatten(1))


class MoE(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.k = c.num_experts_per_tok
        self.gate = linear(c.hidden_size, c.num_experts)
        self.experts = Experts(c)

    def forward(self, x):
        with torch.autocast(x.device.type, enabled=False):
            probabilities = self.gate(x.float()).softmax(-1)
        weights, ids = probabilities.topk(self.k)
        share = torch.zeros_like(probabilities).scatter(
            -1, ids, weights / weights.sum(-1, keepdim=True)
        )
        return self.experts(x, share), probabilities, ids


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = (
            RMSNorm(c.hidden_size, c.rms_norm_eps),
            RMSNorm(c.hidden_size, c.rms_norm_eps),
        )
        self.self_attn, self.mlp = Attention(c), MoE(c)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        y, probabilities, ids = self.mlp(self.post_attention_layernorm(x))
        return x + y, probabilities, ids


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.num_hidden_layers))
        self.norm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.lm_head = linear(c.hidden_size, c.vocab_size)
        for name, p in self.named_parameters():
            if p.dim() > 1:  # the sums into the residual stream start small
                nn.init.normal_(
                    p, std=0.02 if name.endswith(("o_proj.weight", "down_proj")) else 0.06
                )

    def forward(self, tokens):
        """tokens [batch, rows] -> logits [batch, rows, 256], router probabilities
        [layers, batch, rows, experts], ids [layers, batch, rows, k],
        the largest weight first.
        """
        half = self.c.head_dim // 2
        frequency = self.c.rope_theta ** (-torch.arange(half, device=tokens.device) / half)
        angle = (torch.arange(tokens.shape[1], device=tokens.device)[:, None] * frequency).repeat(
            1, 2
        )
        cos, sin = angle.cos(), angle.sin()
        x, probabilities, ids = self.embed_tokens(tokens), [], []
        for layer in self.layers:
            x, p, i = layer(x, cos, sin)
            probabilities.append(p)
            ids.append(i)
        return self.lm_head(self.norm(x)).float(), torch.stack(probabilities), torch.stack(ids)

    def tensors(self):
        """The weights by the names of transformers' checkpoints: {name: float32 array}."""
        tensors = {}
        for name, p in self.named_parameters():
            name = name if name.startswith("lm_head") else "model." + name
            if ".experts." in name:
                prefix, projection = name.rsplit(".", 1)
                tensors |= {f"{prefix}.{e}.{projection}.weight": p[e] for e in range(len(p))}
            else:
                tensors[name] = p
        return {name: t.detach().cpu().numpy() for name, t in tensors.items()}

    def save(self, folder, metadata):
        """Writes model.safetensors (with this {name: text}) and config.json, for load() and for
        transformers. Matrices must be on the grid.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        formats.write_safetensors(folder / "model.safetensors", self.tensors(), metadata)
        rope = {"rope_parameters": {"rope_type": "default", "rope_theta": self.c.rope_theta}}
        (folder / "config.json").write_text(
            json.dumps(FIXED | asdict(self.c) | rope, indent=1) + "\n"
        )


def load(folder):
    """The model of a folder and its metadata."""
    config = json.loads((Path(folder) / "config.json").read_text())
    model = Model(Config(**{name: config[name] for name in Config.__dataclass_fields__}))
    tensors, metadata = formats.read_safetensors(Path(folder) / "model.safetensors")
    with torch.no_grad():
        for name, p in model.named_parameters():
            name = name if name.startswith("lm_head") else "model." + name
            if ".experts." in name:
                prefix, projection = name.rsplit(".", 1)
                for e in range(len(p)):
                    p[e] = torch.tensor(tensors[f"{prefix}.{e}.{projection}.weight"])
            else:
                p.copy_(torch.tensor(tensors[name]))
    return model.eval(), metadata

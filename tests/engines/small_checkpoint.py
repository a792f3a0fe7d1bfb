"""A small MoE model with random weights, and what its routers choose for given tokens.

The routers' weights are large, so that no choice is a near tie: what SGLang and transformers
compute in float32 differs in the last digits.
"""

import json
import os
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
import numpy as np
import torch

LAYERS, HIDDEN, HEADS, VOCABULARY, EXPERTS, K, WIDTH = 4, 64, 4, 128, 16, 4, 64
CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": 96,
    "moe_intermediate_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "num_experts": EXPERTS,
    "num_experts_per_tok": K,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "torch_dtype": "float32",
    "max_position_embeddings": 2048,
    "attention_bias": False,
    "use_sliding_window": False,
}
ROUTED = list(range(LAYERS))


def make(folder, seed=0, blur=0.0, architecture=None):
    """A checkpoint. blur: how far its weights are from those of the same seed, in their own size.
    architecture: under which an engine loads it."""
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    model = AutoModelForCausalLM.from_config(
        AutoConfig.from_pretrained(folder), dtype=torch.float32
    )
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if "norm" in name:
                parameter.fill_(1)
            else:
                large = "embed_tokens" in name or "mlp.gate.weight" in name
                parameter.normal_(0, 1.0 if large else 0.35, generator=generator)
                if blur:
                    parameter += blur * parameter.std() * torch.randn(parameter.shape)
    model.save_pretrained(folder)
    if architecture is not None:
        content = CONFIG | {"architectures": [architecture]}
        (folder / "config.json").write_text(json.dumps(content))
    return folder


class Teacher:
    """transformers, given all tokens at once."""

    def __init__(self, folder):
        from transformers import AutoModelForCausalLM

        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self._ids, self._weights, self._logits = {}, {}, {}
        for index in ROUTED:
            block = self._model.model.layers[index].mlp
            block.experts.register_forward_pre_hook(self._keep(index))
            block.gate.register_forward_hook(self._keep_logits(index))

    def _keep(self, index):
        def hook(module, arguments):
            _, self._ids[index], self._weights[index] = (each.numpy() for each in arguments)

        return hook

    def _keep_logits(self, index):
        def hook(module, arguments, output):
            logits = output[0] if isinstance(output, tuple) else output
            self._logits[index] = logits.reshape(-1, logits.shape[-1]).float().numpy()

        return hook

    def rows(self, tokens):
        """[tokens, routed layers, k], each cell sorted. Afterwards `margins` says by how much of
        its logit each cell's last expert was chosen before the next, and `weights` those of the
        experts, in the same order."""
        with torch.no_grad():
            self._model(input_ids=torch.tensor([list(tokens)]))
        logits = -np.sort(-np.stack([self._logits[index] for index in ROUTED], 1), -1)
        self.margins = logits[..., K - 1] - logits[..., K]
        ids, weights = (
            np.stack([of[index] for index in ROUTED], 1) for of in (self._ids, self._weights)
        )
        order = np.argsort(ids, -1)
        self.weights = np.take_along_axis(weights, order, -1)
        return np.take_along_axis(ids, order, -1)

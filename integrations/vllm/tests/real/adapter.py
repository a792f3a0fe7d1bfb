"""A LoRA adapter with random weights for the attention of one of the models here."""

import json

import torch
from safetensors.torch import save_file

MODULES = {"q_proj": "qkv_proj", "o_proj": "o_proj"}  # as vLLM calls them


def write(folder, model, rank=8, seed=7):
    """Into a folder, for the model of another one."""
    config = json.loads((model / "config.json").read_text())
    hidden, wide = config["hidden_size"], config["num_attention_heads"] * config["head_dim"]
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for layer in range(config["num_hidden_layers"]):
        for module, (into, out) in {"q_proj": (hidden, wide), "o_proj": (wide, hidden)}.items():
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            weights[f"{name}.lora_A.weight"] = torch.randn((rank, into), generator=generator) * 0.3
            weights[f"{name}.lora_B.weight"] = torch.randn((out, rank), generator=generator) * 0.3
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "adapter_model.safetensors")
    about = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "bias": "none"}
    about |= {"target_modules": list(MODULES), "task_type": "CAUSAL_LM"}
    (folder / "adapter_config.json").write_text(json.dumps(about))

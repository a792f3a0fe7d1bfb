"""The small model of tests/model, of which one layer is made dense, with a tokenizer of bytes that
can chat: as trainers load it.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

WEIGHTS = Path(__file__).resolve().parents[4] / "tests/model/weights"
DENSE = 1  # a layer in the middle: columns of rows are not those of routers
SPECIAL = {"<|im_start|>": 0xF8, "<|im_end|>": 0xF9, "<|endoftext|>": 0xFA}  # bytes no text has
TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def characters() -> list[str]:
    """The character by which a byte-level tokenizer writes each byte."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in plain else next(others)) for byte in range(256)]


def make(folder: Path) -> Path:
    """Write the model into a folder, where it is not yet."""
    if (folder / "tokenizer.json").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads((WEIGHTS / "config.json").read_text()) | {"mlp_only_layers": [DENSE]}
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    mlp = f"model.layers.{DENSE}.mlp."
    weights = load_file(WEIGHTS / "model.safetensors")
    weights = {name: weight for name, weight in weights.items() if not name.startswith(mlp)}
    inner, outer = config["intermediate_size"], config["hidden_size"]
    shapes = {"gate_proj": (inner, outer), "up_proj": (inner, outer), "down_proj": (outer, inner)}
    torch.manual_seed(0)
    for name, shape in shapes.items():
        weights[f"{mlp}{name}.weight"] = torch.randn(shape) * 0.05
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    vocabulary = {character: byte for byte, character in enumerate(characters())}
    for byte in SPECIAL.values():
        del vocabulary[characters()[byte]]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary | SPECIAL, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    chatting = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    chatting.chat_template = TEMPLATE
    chatting.save_pretrained(folder)
    return folder

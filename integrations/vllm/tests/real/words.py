"""A model's folder with a tokenizer that has a word for each id."""

import json
import os
from pathlib import Path

WORDS = 2048
# A GPU's kernels for attention may be those of heads as large as the small model's alone.
LEAST = "tiny" if os.environ.get("VLLM_ENGINE_ON_CPU") == "1" else "small"


def write(folder):
    """The configuration of the engine's least model, and the tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(WORDS)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w2", pad_token="w3").save_pretrained(
        folder
    )
    config = Path(__file__).resolve().parents[4] / "tests/engines/models" / LEAST / "config.json"
    (folder / "config.json").write_text(json.dumps(json.loads(config.read_text())))

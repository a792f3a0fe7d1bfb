#!/usr/bin/env python3
"""Compares the model of a folder in PyTorch with what other engines made of the same bytes.

usage: check.py FOLDER TEXT BYTES FLOAT32 Q8_0

FLOAT32 and Q8_0 are outputs of evaluate.c for the two GGUF files of to_gguf.py. transformers is
compared too, if it is installed.
"""

import sys
from pathlib import Path

import numpy as np
import torch

from model import load

TOLERANCE = 1e-3  # of logits; float32 sums in another order
TIE = 1e-5  # difference of the last chosen and the first other probability under which engines may choose differently

folder, text, rows = sys.argv[1], sys.argv[2], int(sys.argv[3])
model, _ = load(folder)
c = model.c
tokens = torch.tensor(list(Path(text).read_bytes()[:rows]))[None]
with torch.no_grad():
    logits, probabilities, ids = (t.numpy().squeeze(-3) for t in model(tokens))
ranked = np.sort(probabilities, -1)[..., ::-1]
margin = (
    ranked[..., c.num_experts_per_tok - 1] - ranked[..., c.num_experts_per_tok]
)  # [layers, rows]
failures = 0


def report(good, line):
    global failures
    failures += not good
    print(("ok      " if good else "FAILED  ") + line)


def compare(engine, other_logits, other_ids):
    """Logits within the tolerance, the same sets of experts wherever no tie excuses another one."""
    error = np.abs(other_logits - logits).max()
    differs = (np.sort(other_ids, -1) != np.sort(ids, -1)).any(-1)
    report(error < TOLERANCE, f"{engine}: logits differ by {error:.1e} at most")
    report(
        not differs[margin >= TIE].any(),
        f"{engine}: {differs.sum()} of {differs.size} sets of experts differ,"
        f" {differs[margin >= TIE].sum()} of them without a tie",
    )
    return differs


def bits_per_byte(logits):
    logs = logits - np.logaddexp.reduce(logits, -1, keepdims=True)
    return -logs[np.arange(rows - 1), tokens[0, 1:]].mean() / np.log(2)


def read(path):
    data = np.fromfile(path, "<f4")
    split = rows * c.vocab_size
    return data[:split].reshape(rows, -1), data[split:].view("<i4").reshape(
        c.num_hidden_layers, rows, -1
    )


print(f"{rows} bytes of {Path(text).name}, {bits_per_byte(logits):.3f} bits per byte")
compare("llama.cpp, float32 GGUF", *read(sys.argv[4]))

# Q8_0 has the same weights, but llama.cpp rounds the activations: some sets differ, the prediction
# hardly does.
other_logits, other_ids = read(sys.argv[5])
difference = bits_per_byte(other_logits) - bits_per_byte(logits)
share = (np.sort(other_ids, -1) != np.sort(ids, -1)).any(-1).mean()
report(
    abs(difference) < 0.02 and share < 0.1,
    f"llama.cpp, Q8_0 GGUF: {difference:+.4f} bits per byte, {share:.2%} of the sets of experts"
    " differ",
)

try:
    import transformers
except ImportError:
    print("        transformers is not installed here: not compared")
else:
    other = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    chosen = []
    for module in other.modules():
        if hasattr(module, "_is_expert_parallel"):
            module.register_forward_pre_hook(
                lambda module, arguments: chosen.append(arguments[1].numpy())
            )
    with torch.no_grad():
        other_logits = other(tokens).logits[0].numpy()
    compare(f"transformers {transformers.__version__}", other_logits, np.stack(chosen))

print(f"model: {'all comparisons hold' if failures == 0 else f'{failures} comparisons failed'}")
sys.exit(failures > 0)

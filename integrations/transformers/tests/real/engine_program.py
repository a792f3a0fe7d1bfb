#!/usr/bin/env python3
"""transformers among the engines of the oracle: routecap_transformers as it is, over left-padded
generation of all prompts at once.

usage: engine_program.py FOLDER OUT PROMPT...

Tokens are bytes. Each request's routing is written in the serialised form, to
OUT/request-0.routecap and so on. Prints the smallest difference of two logits of a router that
decided which expert comes first, or runs at all: other engines add in another order, and may settle
near ties differently.
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

import routecap_transformers

GENERATE = 8

logging.disable_progress_bar()
folder, out, *prompts = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
length = max(map(len, prompts))
tokens = torch.zeros(len(prompts), length, dtype=torch.long)
attended = torch.zeros_like(tokens)
for row, prompt in enumerate(prompts):
    tokens[row, length - len(prompt) :] = torch.tensor(list(prompt.encode()))
    attended[row, length - len(prompt) :] = 1

margins = []


def watch(gate, arguments, output):
    """The logits that decided, in order: those of the experts that were chosen and the first of the
    others.
    """
    ranked = (
        torch.nn.functional.linear(arguments[0], gate.weight)
        .topk(model.config.num_experts_per_tok + 1)
        .values
    )
    margins.append((ranked[..., :-1] - ranked[..., 1:]).min().item())


for layer in model.model.layers:
    layer.mlp.gate.register_forward_hook(watch)
with routecap_transformers.attach(model) as capture:
    model.generate(
        tokens, attention_mask=attended, max_new_tokens=GENERATE, do_sample=False, pad_token_id=0
    )
    for number, routing in enumerate(capture.take()):
        (Path(out) / f"request-{number}.routecap").write_bytes(routing.serialize())
print(min(margins))

#!/usr/bin/env python3
"""The measurement of measure.py on a model of a few hundred million parameters, which it trains
first, for some minutes on one GPU.

    larger.py --json FILE --markdown FILE [--minutes 5 | --steps N] [--commit ID]

It needs torch, transformers and the package routecap, and no network.

Why it trains: with random weights routers are nearly even and predictions nearly flat, so neither
the sets of experts nor the probabilities would be those of a model that somebody replays. Some
minutes on text give routers that decide; how much they do is printed with the result. It is still a
briefly trained model of bytes: read the orderings and ratios, not the digits.

The weights that the optimizer moves are float32 and the trainer's; the generator has them in
bfloat16, as it has them in training.
"""

import argparse
import math
import sys
import time
from typing import Any

import torch
import torch.nn.functional as F
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

import routecap_transformers
from measure import arguments_of, measure, report
from texts import texts

CONTEXT, RATE, BALANCE, WARM_UP = 1024, 6e-4, 0.003, 0.02


def model_of(arguments: argparse.Namespace, dtype: torch.dtype) -> Qwen3MoeForCausalLM:
    config = Qwen3MoeConfig(
        vocab_size=256,
        hidden_size=arguments.hidden,
        num_hidden_layers=arguments.layers,
        num_attention_heads=arguments.hidden // 64,
        num_key_value_heads=arguments.hidden // 256,
        head_dim=64,
        num_experts=arguments.experts,
        num_experts_per_tok=arguments.k,
        moe_intermediate_size=arguments.width,
        norm_topk_prob=True,
        max_position_embeddings=CONTEXT,
        bos_token_id=None,
        eos_token_id=None,
    )
    return Qwen3MoeForCausalLM(config).to(arguments.device, dtype)


def balance(logits: torch.Tensor, k: int) -> torch.Tensor:
    """1 where every expert of a layer is chosen equally often, up to experts / k where the same k
    take all.
    """
    probabilities = logits.float().softmax(-1)
    experts = probabilities.shape[-1]
    load = torch.bincount(probabilities.topk(k).indices.flatten(), minlength=experts) / (
        len(probabilities) * k
    )
    return experts * (load * probabilities.mean(0)).sum()


def train(
    model: Qwen3MoeForCausalLM, arguments: argparse.Namespace
) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """Train on the text of tests/model.

    Returns the float32 weights, in the order of the parameters, and what to say of the training.
    """
    sources = texts()
    data, held_out = (
        torch.frombuffer(
            bytearray(b"".join(getattr(source, part) for source in sources)), dtype=torch.uint8
        ).to(arguments.device)
        for part in ("training", "held_out")
    )

    def pieces(text: torch.Tensor, count: int) -> torch.Tensor:
        first = torch.randint(len(text) - CONTEXT, (count, 1), device=text.device)
        return text[first + torch.arange(CONTEXT, device=text.device)].long()

    def losses(tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        routed.clear()
        logits = model(input_ids=tokens, use_cache=False).logits
        unbalance = torch.stack([balance(each, arguments.k) for each in routed]).mean()
        return (
            F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten()),
            unbalance,
        )

    routed: list[torch.Tensor] = []  # the router logits of a forward's layers
    hooks = [
        tap.gate.register_forward_hook(lambda module, args, output: routed.append(output[0]))
        for tap in routecap_transformers.find(model)
    ]
    weights = list(model.parameters())
    exact = [weight.detach().float().requires_grad_() for weight in weights]
    optimizer = torch.optim.AdamW(exact, lr=RATE, betas=(0.9, 0.95), weight_decay=0.01)
    step, begin = 0, time.monotonic()

    def progress_now() -> float:
        if arguments.steps:
            return step / arguments.steps
        return (time.monotonic() - begin) / 60 / arguments.minutes

    while (progress := progress_now()) < 1:
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(progress / WARM_UP, 0.5 + 0.5 * math.cos(math.pi * progress))
        loss, unbalance = losses(pieces(data, arguments.batch))
        (loss + BALANCE * unbalance).backward()
        for each, weight in zip(exact, weights):
            each.grad, weight.grad = weight.grad.float(), None
        torch.nn.utils.clip_grad_norm_(exact, 1.0)
        optimizer.step()
        with torch.no_grad():
            for each, weight in zip(exact, weights):
                weight.copy_(each)
        if step % 50 == 0:
            print(
                f"step {step}, {progress:.0%}: loss {loss.item() / math.log(2):.3f} bits per byte,"
                f" balance {unbalance.item():.2f}",
                flush=True,
            )
        step += 1
    seconds = time.monotonic() - begin

    torch.manual_seed(arguments.seed)
    with torch.no_grad():
        loss, unbalance = losses(pieces(held_out, arguments.batch))
    for hook in hooks:
        hook.remove()
    return [each.detach() for each in exact], {
        "training": f"{step:,} steps of {arguments.batch * CONTEXT:,} bytes in {seconds:.0f} s",
        "held_out_bits_per_byte": loss.item() / math.log(2),
        "balance": unbalance.item(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=5, help="of training")
    parser.add_argument("--steps", type=int, help="of training, however long they take")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--experts", type=int, default=64)
    parser.add_argument("--k", type=int, default=8)
    parser.add_argument("--width", type=int, default=192, help="of an expert")
    arguments = arguments_of(parser, sequences=64, new_tokens=192)

    torch.manual_seed(arguments.seed)
    generator = model_of(arguments, torch.bfloat16).train()
    weights, training = train(generator, arguments)
    generator.eval()
    trainer = model_of(arguments, torch.float32).eval()
    # A loop over experts: it is there in float32 on every device.
    trainer.set_experts_implementation("eager")
    with torch.no_grad():
        for parameter, weight in zip(trainer.parameters(), weights):
            parameter.copy_(weight)
    del weights
    result = measure(generator, trainer, arguments.sequences, arguments.new_tokens, arguments.seed)
    return report(result | training, arguments)


if __name__ == "__main__":
    sys.exit(main())

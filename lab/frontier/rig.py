"""The models of one process: the trainer with its FP32 weights and optimizer, and the engine."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import routecap.models
import routecap_replay.transformers
import routecap_transformers
import torch
from torch import nn
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.integrations.moe import _grouped_mm

from . import decode, fp8
from .countdown import VOCABULARY
from .grid import Arm, Setting


def model_of(setting: Setting, device: str, dtype: torch.dtype) -> Any:
    config = Qwen3MoeConfig(
        vocab_size=VOCABULARY,
        hidden_size=setting.hidden,
        num_hidden_layers=setting.layers,
        num_attention_heads=max(setting.hidden // 64, 2),
        num_key_value_heads=max(setting.hidden // 256, 1),
        head_dim=64,
        num_experts=setting.experts,
        num_experts_per_tok=setting.k,
        moe_intermediate_size=setting.width,
        norm_topk_prob=True,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = Qwen3MoeForCausalLM(config).to(device, dtype)
    model.set_experts_implementation("grouped_mm" if _is_grouped(device, dtype) else "eager")
    return model


@cache
def _is_grouped(device: str, dtype: torch.dtype) -> bool:
    """Whether the device multiplies all experts of a layer at once in this precision, and back. In
    FP16 some versions of PyTorch do not; a loop over experts is slower, and no graph.
    """
    x = torch.ones(16, 64, device=device, dtype=dtype, requires_grad=True)
    weight = torch.ones(2, 64, 64, device=device, dtype=dtype, requires_grad=True)
    try:
        product = _grouped_mm(x, weight, torch.tensor([8, 16], dtype=torch.int32, device=device))
        product.square().sum().backward()
    except (RuntimeError, TypeError, NotImplementedError) as reason:
        print(f"a loop over experts in {dtype}: {reason}", flush=True)
        return False
    return bool(x.grad is not None and x.grad.isfinite().all())


@cache
def _goes_into_a_graph(device: str, dtype: torch.dtype) -> bool:
    """Whether that multiplication asks nothing of the host. One that does ends a capture with an
    error, and the process is then in no good state.
    """
    if not _is_grouped(device, dtype):
        return False
    x = torch.ones(16, 64, device=device, dtype=dtype)
    weight = torch.ones(2, 64, 64, device=device, dtype=dtype)
    offsets = torch.tensor([8, 16], dtype=torch.int32, device=device)
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        _grouped_mm(x, weight, offsets)
    except RuntimeError as reason:
        print(f"decoding without a graph in {dtype}: {reason}", flush=True)
        return False
    finally:
        torch.cuda.set_sync_debug_mode(before)
    return True


class Trainer:
    """A model whose weights are copies, in the precision of its kernels, of FP32 ones."""

    def __init__(self, setting: Setting, device: str, dtype: torch.dtype) -> None:
        self.model = model_of(setting, device, dtype).train()
        self.weights = list(self.model.parameters())
        self.exact = [weight.detach().float().requires_grad_() for weight in self.weights]
        self.optimizer = torch.optim.AdamW(
            self.exact, betas=(0.9, 0.95), weight_decay=0.0, fused=device != "cpu"
        )
        self.scale = 2.0**14 if dtype == torch.float16 else 1.0  # of the loss
        self.skipped = 0  # updates whose gradients overflowed

    def update(self, rate: float) -> float:
        """Follow the gradients that backward has left. Returns their norm."""
        for exact, weight in zip(self.exact, self.weights):
            if weight.grad is None:  # nothing of it was in the loss
                exact.grad, weight.grad = torch.zeros_like(exact), None
            else:
                exact.grad, weight.grad = weight.grad.float(), None
        if self.scale != 1:
            torch._foreach_div_([exact.grad for exact in self.exact], self.scale)
        norm = float(torch.nn.utils.clip_grad_norm_(self.exact, 1.0))
        if norm - norm != 0 and self.scale != 1:
            self.scale, self.skipped = self.scale / 2, self.skipped + 1
        else:
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.optimizer.step()
            self.round()
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    @torch.no_grad()
    def round(self) -> None:
        """Give the kernels' copies the exact weights."""
        torch._foreach_copy_(self.weights, self.exact)

    def is_finite(self) -> bool:
        return bool(torch.stack([each.detach().isfinite().all() for each in self.exact]).all())

    def state(self) -> dict[str, Any]:
        return {
            "exact": [each.detach() for each in self.exact],
            "optimizer": self.optimizer.state_dict(),
            "scale": self.scale,
        }

    def load(self, state: dict[str, Any], *, weights_alone: bool = False) -> None:
        with torch.no_grad():
            torch._foreach_copy_(self.exact, [each.to(self.exact[0]) for each in state["exact"]])
        self.round()
        self.optimizer.state.clear()
        if not weights_alone:
            self.optimizer.load_state_dict(state["optimizer"])
            self.scale = state["scale"]
        elif self.scale != 1:
            self.scale = 2.0**14


class Rig:
    """What an arm needs: trainer, engine, capture, replay, and a decode loop for each model."""

    def __init__(self, setting: Setting, arm: Arm, device: str, how: str) -> None:
        self.setting, self.device, self.fp8, self.dtype = setting, device, arm.fp8, arm.dtype
        dtype = getattr(torch, arm.dtype)
        self.trainer = Trainer(setting, device, dtype)
        self.engine = model_of(setting, device, dtype).eval().requires_grad_(False)
        if arm.fp8:
            fp8.quantise_inputs(self.engine)
        task = setting.task
        described = routecap.models.describe(self.engine.config).settings()
        self.taps = {name: described[name] for name in ("layer_map", "layer_experts", "k")}
        self.capture = routecap_transformers.attach(self.engine, rows=setting.answers * task.prompt)
        if device != "cpu" and not _goes_into_a_graph(device, dtype):
            how = "eager" if how == "auto" else how
        self.decoder = decode.decoder(
            self.engine, setting.answers, task.prompt, task.answer, how, self.capture
        )
        self.replay = routecap_replay.transformers.attach(self.trainer.model)
        self.evaluator = decode.decoder(
            self.trainer.model, setting.held_out, task.prompt, task.answer, how, None
        )

    def serves(self, arm: Arm) -> bool:
        return (self.fp8, self.dtype) == (arm.fp8, arm.dtype)

    def send_weights(self) -> None:
        fp8.copy_weights(self.trainer.model, self.engine, fp8=self.fp8)

    def close(self) -> None:
        self.replay.detach()
        self.capture.close()


def save(state: Any, path: Path) -> None:
    """Whole or not at all, also if the process is killed in between."""
    beginning = path.with_suffix(".begun")
    torch.save(state, beginning)
    os.replace(beginning, path)


def parameters(model: nn.Module) -> int:
    return sum(each.numel() for each in model.parameters())

"""A small model of Megatron-Core: four layers, of which the first is dense."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_decoder_block_spec,
    get_gpt_mtp_block_spec,
)
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.transformer_config import TransformerConfig

logging.getLogger("megatron.core").setLevel(
    logging.ERROR
)  # 0.19 says of GPTModel that it has a successor
EXPERTS, K, VOCABULARY, LENGTH = 8, 2, 64, 16


def config_of(layers: int = 4, **changes: Any) -> TransformerConfig:
    settings = dict(
        num_layers=layers, hidden_size=32, num_attention_heads=4, ffn_hidden_size=64, moe_ffn_hidden_size=16, num_moe_experts=EXPERTS,
        moe_router_topk=K, moe_layer_freq=[0] + [1] * (layers - 1), moe_router_load_balancing_type="none", moe_aux_loss_coeff=0.0,
        moe_router_dtype="fp32", moe_token_dispatcher_type="alltoall", use_cpu_initialization=True, add_bias_linear=False,
        bias_dropout_fusion=False, gradient_accumulation_fusion=False, attention_dropout=0.0, hidden_dropout=0.0,
    )  # fmt: skip
    return TransformerConfig(**{**settings, **changes})


def model_of(config: TransformerConfig, vp_stage: int | None = None) -> GPTModel:
    """A model with random weights, or a virtual stage of one."""
    spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False, vp_stage=vp_stage)
    virtual = {"ignore_virtual": False, "vp_stage": vp_stage}
    torch.manual_seed(0)
    model = GPTModel(
        config, spec, vocab_size=VOCABULARY, max_sequence_length=LENGTH, vp_stage=vp_stage, share_embeddings_and_output_weights=False,
        mtp_block_spec=get_gpt_mtp_block_spec(config, spec, use_transformer_engine=False) if config.mtp_num_layers else None,
        pre_process=parallel_state.is_pipeline_first_stage(**virtual), post_process=parallel_state.is_pipeline_last_stage(**virtual),
    )  # fmt: skip
    for name, parameter in model.named_parameters():
        if name.endswith("router.weight"):
            torch.nn.init.normal_(parameter, std=0.5)
    return model


class MicroBatch:
    """A sequence of random tokens, and experts for them that no router has chosen."""

    def __init__(self, seed: int, layers: int = 4) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(0, VOCABULARY, (1, LENGTH), generator=generator)
        self.rows = {
            layer: (
                torch.stack(
                    [torch.randperm(EXPERTS, generator=generator)[:K] for _ in range(LENGTH)]
                ).to(torch.uint8)
            )
            for layer in range(1, layers)
        }
        drawn = torch.rand(layers, LENGTH, K, generator=generator) + 0.5
        self.weights = {layer: drawn[layer] for layer in self.rows}

    def captured(self, layers: int) -> torch.Tensor:
        """The rows as engines capture them: [LENGTH - 1, layers, k], zeros in the dense layer."""
        rows = torch.zeros(LENGTH - 1, layers, K, dtype=torch.int16)
        for layer, ids in self.rows.items():
            rows[:, layer] = ids[:-1]
        return rows

    def through(self, model: GPTModel) -> torch.Tensor:
        """The loss of each token on the last stage, hidden states on others."""
        mask = torch.triu(torch.ones(1, 1, LENGTH, LENGTH), 1).bool()
        output: torch.Tensor = model(
            self.tokens, torch.arange(LENGTH)[None], mask, labels=self.tokens
        )
        return output


def experts_of(rows: torch.Tensor) -> torch.Tensor:
    """[T, experts] which of them a routing map has to have."""
    return torch.zeros(len(rows), EXPERTS, dtype=torch.bool).scatter(1, rows.long(), True)


def weighed(batch: MicroBatch, layer: int) -> torch.Tensor:
    """[T, experts] the probabilities that a router has to put out."""
    ids = batch.rows[layer].long()
    return torch.zeros(len(ids), EXPERTS).scatter(1, ids, batch.weights[layer])


def on_two_ranks(store: Path, *by: str) -> None:
    """Two ranks of a pipeline with two stages each, four micro-batches, through Megatron's
    schedule: stages.py, by whose functions rows are given.
    """
    program = Path(__file__).with_name("stages.py")
    ranks = [
        subprocess.Popen(
            [sys.executable, program, str(rank), str(store), *by],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate()[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(outputs)
    assert "layers [1, 4, 5], 8 passes" in outputs[0]
    assert "layers [2, 3, 6, 7], 8 passes" in outputs[1]


class Seen:
    """What the routers of a model put out: (index in the decoder, whether autograd ran,
    probabilities, map), in order.
    """

    def __init__(self, *models: torch.nn.Module) -> None:
        self.calls: list[tuple[int, bool, torch.Tensor, torch.Tensor]] = []
        for model in models:
            for name, module in model.named_modules():
                if hasattr(module, "router_replay") and "mtp" not in name:
                    module.register_forward_hook(self._see)

    def _see(self, router: Any, args: Any, output: Any) -> None:
        again = torch._C._current_graph_task_id() != -1
        self.calls.append((router.layer_number - 1, again, output[0].detach(), output[1].bool()))

    def maps(self, again: bool = False) -> dict[int, list[torch.Tensor]]:
        """By layer, the maps of each pass."""
        return self._of(again, 3)

    def probabilities(self, again: bool = False) -> dict[int, list[torch.Tensor]]:
        return self._of(again, 2)

    def _of(self, again: bool, column: int) -> dict[int, list[Any]]:
        found: dict[int, list[Any]] = {}
        for call in self.calls:
            if call[1] == again:
                found.setdefault(call[0], []).append(call[column])
        return found

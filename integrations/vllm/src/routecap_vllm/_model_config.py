"""What the capturer needs of a model's configuration, as `routecap.models.describe` reads it.

What a configuration does not tell is an error.
"""

from __future__ import annotations

from typing import Any

from routecap import models
from routecap.adapter import has_experts_field


def moe_layers(config: object) -> list[int]:
    """The indices, in the decoder, of the layers that route.

    A dense model has none. Where a configuration tells nothing but the number of layers, all route.
    """
    said = models.describe(config)
    if said.layer_map is None:
        raise ValueError(
            "the configuration does not tell the number of layers, or which of them route: give one"
            " with num_hidden_layers"
        )
    if any(said.layer_visit or ()):
        looped = said.layer_map[list(said.layer_visit or ()).index(1)]
        raise ValueError(
            f"layer {looped} of the decoder runs several times for a token, and vLLM's adapter"
            " follows one run of a layer: leave capture off for this model"
        )
    if not said.layer_map and said.assumed and not has_experts_field(config):
        return list(range(said.decoder_layers or 0))
    return list(said.layer_map)


def experts_per_token(config: object) -> int:
    """How many experts each token gets: K."""
    said = models.describe(config)
    chosen = set(said.layer_k or ())
    if not chosen:
        raise ValueError(
            "the configuration names no number of experts per token: give one with"
            " num_experts_per_tok"
        )
    if len(chosen) > 1:
        by_layer = dict(zip(said.layer_k or (), said.layer_map or ()))
        named = ", ".join(f"{k} in layer {by_layer[k]}" for k in sorted(chosen))
        raise ValueError(
            f"layers with different numbers of experts per token ({named}) do not fit vLLM's buffer,"
            " which has one k: leave capture off for this model"
        )
    return chosen.pop()


def names_experts(config: object) -> bool:
    """Whether the configuration says how many experts there are."""
    return bool(models.describe(config).layer_experts)


def experts_of_layers(config: object) -> list[int]:
    """How many experts each of `moe_layers` chooses from, zero experts included."""
    experts = models.describe(config).layer_experts
    if not experts:
        raise ValueError("the configuration names no number of experts: give one with num_experts")
    return list(experts)


def hf_config_of(model_config: Any) -> Any:
    """The Hugging Face configuration of the language model."""
    config = getattr(model_config, "hf_text_config", None)
    return model_config.hf_config if config is None else config

"""Which layers of a model route tokens, among how many experts, and how many of these each token gets: read from its Hugging Face configuration.

Configurations agree on none of it. Each of the tables below lists the names in use, with a model that uses the name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

_NESTED = (
    "text_config",  # Llama 4, Qwen3-VL, GLM-4.5V, Gemma 4
    "llm_config",  # InternVL
    "language_config",  # DeepSeek-VL2
    "thinker_config",  # Qwen3-Omni: with a text_config of its own
)
_LAYERS = ("num_hidden_layers", "n_layers", "num_layers", "n_layer")  # everybody, DBRX, LongCat-Flash, GPT-2 style
_EXPERTS = (
    "n_routed_experts",  # DeepSeek, GLM, Kimi K2, Nemotron-H
    "num_local_experts",  # Mixtral, gpt-oss, MiniMax, Llama 4, Granite
    "num_experts",  # Qwen, OLMoE, Jamba, Hunyuan (may be a list: one number per layer)
    "moe_num_experts",  # Ernie 4.5, Step, DBRX, Aria
    "moe_num_primary_experts",  # SmallThinker
    "num_moe_experts",
)
_CHOSEN = (
    "num_experts_per_tok",  # most
    "num_experts_per_token",  # Kimi Linear
    "experts_per_token",  # gpt-oss
    "top_k_experts",  # Gemma 4
    "moe_topk",  # Hunyuan (may be a list), LongCat-Flash, Aria
    "moe_top_k",  # Step, DBRX
    "moe_k",  # Ernie 4.5
    "num_selected_experts",  # Grok
    "moe_num_active_primary_experts",  # SmallThinker
    "moe_router_topk",
)

# Lists with an entry for each layer, which is true or names a kind of feed-forward block in the layers that route.
_FLAGS = (
    "mlp_layer_types",  # "sparse": GLM-4.7-Flash, EXAONE MoE, MiniMax-M3
    "is_moe_layer",  # EXAONE MoE
    "moe_layer_freq",  # MiMo-V2, MiniMax-M3; elsewhere a number
    "moe_layer_layout",  # SmallThinker
)
_INDICES = ("moe_layers", "moe_layers_enum", "moe_layer_list")  # lists of those layers: Llama 4; Step (as text, "3,4,5"); Step
# One kind of block per layer, where feed-forward blocks are layers of their own; in other models these lists name the kinds of attention.
_BLOCKS = ("layers_block_type", "block_types", "layer_types")  # Nemotron-H
_SPARSE = ("moe", "sparse")

# How many layers at the start are dense.
_DENSE_FIRST = (
    "first_k_dense_replace",  # DeepSeek, GLM, Kimi
    "num_dense_layers",  # LFM2, AFMoE
    "n_dense_first_layers",  # Motif
    "moe_layer_num_skipped",  # Hunyuan
    "moe_layer_start_index",  # Ernie 4.5 (may be a list: text, vision)
)
# Every how many layers one routes, and whether the first of these is layer 0 or the last of the first period.
_PERIODS = (
    ("decoder_sparse_step", False),  # Qwen2 and Qwen3
    ("moe_layer_interval", False),  # Ernie 4.5
    ("moe_layer_frequency", False),  # Arctic
    ("interleave_moe_layer_step", False),  # Llama 4
    ("moe_layer_freq", True),  # DeepSeek
)


def text_config(config: Any) -> Any:
    """The part of a configuration that describes the language model: itself, or what it is nested in."""
    if _first(config, _LAYERS) is None:
        for name in _NESTED:
            inner = _get(config, name)
            if inner is not None:
                return text_config(inner)
    return config


def moe_layers(config: Any) -> list[int]:
    """The indices, in the decoder, of the layers that route. None in a dense model."""
    config = text_config(config)
    experts = _numbers(_first(_with_ffn(config), _EXPERTS))
    if experts and max(experts) <= 1:
        return []
    total = _decoder_layers(config)
    inside = range(total) if total is not None else None

    listed = _listed(config)
    if listed is not None:
        return sorted(i for i in listed if inside is None or i in inside)
    if inside is None:
        raise ValueError(f"the configuration names no number of layers (looked for {', '.join(_LAYERS)})")
    routes = _rules(config)
    return [i for i in inside if all(rule(i) for rule in routes)]


def experts_per_token(config: Any) -> int:
    """How many experts each token gets: K."""
    config = text_config(config)
    chosen = _first(_with_ffn(config), _CHOSEN)
    if chosen is None:
        raise ValueError(f"the configuration names no number of experts per token (looked for {', '.join(_CHOSEN)})")
    values = set(_per_layer(chosen, moe_layers(config)))
    if len(values) != 1:
        raise ValueError(f"layers with different numbers of experts per token ({sorted(values)}) cannot be captured together")
    return values.pop()


def names_experts(config: Any) -> bool:
    """Whether the configuration says how many experts there are."""
    return _first(_with_ffn(text_config(config)), _EXPERTS) is not None


def experts_of_layers(config: Any) -> list[int]:
    """How many experts each of `moe_layers` chooses from, zero experts included."""
    config = text_config(config)
    experts = _first(_with_ffn(config), _EXPERTS)
    if experts is None:
        raise ValueError(f"the configuration names no number of experts (looked for {', '.join(_EXPERTS)})")
    zero = _get(config, "zero_expert_num") or 0  # LongCat-Flash: their ids follow those of the real experts
    return [n + zero for n in _per_layer(experts, moe_layers(config))]


def _get(config: Any, name: str) -> Any:
    return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)


def _first(config: Any, names: Iterable[str]) -> Any:
    return next((value for name in names if (value := _get(config, name)) is not None), None)


def _with_ffn(config: Any) -> Any:
    """Where numbers of experts are: DBRX has them in a configuration of the feed-forward block."""
    return _get(config, "ffn_config") or config


def _numbers(value: Any) -> list[int]:
    if value is None:
        return []
    return [int(v) for v in value] if isinstance(value, (list, tuple)) else [int(value)]


def _per_layer(value: Any, layers: list[int]) -> list[int]:
    numbers = _numbers(value)
    if len(numbers) > 1 and layers and len(numbers) > layers[-1]:
        return [numbers[i] for i in layers]
    return [max(numbers)] * len(layers)


def _decoder_layers(config: Any) -> int | None:
    if _get(config, "zero_expert_num") and _get(config, "num_layers"):
        return int(_get(config, "num_layers"))  # LongCat-Flash: two attention blocks, counted as two hidden layers by some, and one router per layer
    total = _first(config, _LAYERS)
    return None if total is None else int(total)


def _listed(config: Any) -> list[int] | None:
    """The layers that route, where the configuration lists them."""
    pattern = _get(config, "hybrid_override_pattern")  # Nemotron-H: a letter per layer, E for experts
    if pattern:
        return [i for i, kind in enumerate(pattern.replace("|", "")) if kind == "E"]
    for name in _INDICES:
        value = _get(config, name)
        if isinstance(value, str) and value.strip():
            return [int(i) for i in value.split(",")]
        if isinstance(value, (list, tuple, set, range)):
            return [int(i) for i in value]
    for name in _FLAGS:
        value = _get(config, name)
        if isinstance(value, (list, tuple)):
            return [i for i, kind in enumerate(value) if (kind in _SPARSE if isinstance(kind, str) else kind)]
    for name in _BLOCKS:
        value = _get(config, name)
        if isinstance(value, (list, tuple)) and ("moe" in value or "mlp" in value):
            return [i for i, kind in enumerate(value) if kind == "moe"]
    return None


def _rules(config: Any) -> list[Callable[[int], bool]]:
    """What must hold for a layer that routes."""
    rules: list[Callable[[int], bool]] = []
    dense = max((min(_numbers(_get(config, name)), default=0) for name in _DENSE_FIRST), default=0)
    rules.append(lambda i: i >= dense)
    last = max(_numbers(_get(config, "moe_layer_end_index")), default=-1)
    if last >= 0:
        rules.append(lambda i: i <= last)
    excluded = set(_get(config, "mlp_only_layers") or ())
    rules.append(lambda i: i not in excluded)
    for name, from_zero in _PERIODS:
        step = _get(config, name)
        if step and step > 1:
            rules.append(lambda i, step=step, from_zero=from_zero: (i if from_zero else i + 1) % step == 0)  # type: ignore[misc]
    period = _get(config, "expert_layer_period")  # Jamba
    if period:
        offset = _get(config, "expert_layer_offset") or 0
        rules.append(lambda i: i % period == offset)
    return rules

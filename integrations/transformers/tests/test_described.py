"""What `routecap.models.describe` says of a configuration is what transformers makes of it.

Models are made on the meta device, in the sizes that configurations have by default. Their routers
are found by walking them, and how many experts a token gets is the width of the ids that come to
the experts in a forward pass.
"""

from __future__ import annotations

import inspect
import pkgutil
import re
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
import routecap_transformers
import torch
import transformers.models
from families import CHOSEN, VERSION
from routecap.models import FAMILIES, Description, describe
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

# What configurations need besides, where the default makes no model, or one without experts.
NEEDED: dict[str, dict[str, Any]] = {
    "dbrx": {"attn_config": {"kv_n_heads": 8, "clip_qkv": 8.0, "rope_theta": 10000.0}},
    "deepseek_ocr2": {
        "text_config": {"num_experts_per_tok": 6, "mlp_layer_types": ["dense"] + ["sparse"] * 31}
    },
    "deepseek_ocr2_text": {
        "num_experts_per_tok": 6,
        "mlp_layer_types": ["dense"] + ["sparse"] * 31,
    },
    "deepseek_v2": {"num_experts_per_tok": 6},
    "diffusion_gemma": {
        "text_config": {"num_experts": 16, "top_k_experts": 4, "moe_intermediate_size": 64}
    },
    "diffusion_gemma_text": {"num_experts": 16, "top_k_experts": 4, "moe_intermediate_size": 64},
    "doge": {"is_moe": True},
    "dots1": {"n_routed_experts": 16, "num_experts_per_tok": 4, "n_shared_experts": 2},
    "gemma4_text": {
        "enable_moe_block": True,
        "num_experts": 16,
        "top_k_experts": 4,
        "moe_intermediate_size": 64,
    },
    "glm4v_moe_text": {"head_dim": 128},
    "hunyuan_v1_moe": {"num_experts": 16, "moe_topk": 4, "head_dim": 128},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 16},
    "qwen3_omni_moe": {"enable_audio_output": False},
    "qwen3_omni_moe_text": {"head_dim": 128},
    "qwen3_omni_moe_thinker": {"text_config": {"head_dim": 128}},
    "qwen3_omni_moe_talker_text": {"shared_expert_intermediate_size": 64},
    "qwen4_exp": {"text_config": {"layer_types": ["linear_attention"] * 40}},
    "qwen4_exp_text": {"layer_types": ["linear_attention"] * 40},
    "step3p5": {"sliding_window": 512},
}

# What routecap_transformers does not capture: experts without a dispatch, two stacks of layers with
# experts.
NOT_CAPTURED = {"doge", "nllb-moe", "switch_transformers"}

# Whose layers run several times, some of them.
LOOPED = {"inkling2_loop", "inkling2_loop_text"}


def config_classes() -> dict[str, type[PreTrainedConfig]]:
    """By model_type, the configurations in packages of transformers whose models have experts."""
    classes: dict[str, type[PreTrainedConfig]] = {}
    for package in pkgutil.iter_modules(transformers.models.__path__, "transformers.models."):
        for source in sorted(
            Path(transformers.models.__path__[0], package.name.rpartition(".")[2]).glob(
                "modeling_*.py"
            )
        ):
            if re.search(r"^class \w*(Experts|Router|MoE|Moe)\b", source.read_text(), re.MULTILINE):
                module = import_module(
                    f"{package.name}.{source.stem.replace('modeling', 'configuration')}"
                )
                for each in vars(module).values():
                    if (
                        isinstance(each, type)
                        and issubclass(each, PreTrainedConfig)
                        and each.__module__ == module.__name__
                        and each.model_type
                    ):
                        classes.setdefault(each.model_type, each)
    return classes


def slow(*values: Any) -> Any:
    """One model more: to import and to make it takes half a second. The configurations that were
    published are the tests' of the Python package.
    """
    return pytest.param(*values, marks=pytest.mark.slow)


CLASSES = config_classes()
if CHOSEN != [""]:
    CLASSES = {name: CLASSES[name] for name in CHOSEN}


def make(config: PreTrainedConfig) -> PreTrainedModel:
    """The model of a configuration, without weights."""
    module = import_module(type(config).__module__.replace("configuration", "modeling"))
    kinds = [
        each
        for each in vars(module).values()
        if isinstance(each, type)
        and issubclass(each, PreTrainedModel)
        and each.config_class is type(config)
        and "PreTrained" not in each.__name__
    ]
    kind = min(
        kinds,
        key=lambda each: (
            "For" in each.__name__,
            not each.__name__.endswith("Model"),
            len(each.__name__),
        ),
    )
    config._attn_implementation = "eager"
    with torch.device("meta"):
        return kind(config)


# ---- What a model has


class Routed(NamedTuple):
    """A layer."""

    experts: int
    """Ids are below."""
    zero: int
    shared: bool


def routed(model: nn.Module) -> dict[str, dict[int, Routed]]:
    """The layers that route, of each stack of them, and of attention apart."""
    modules = dict(model.named_modules())
    stacks: dict[str, dict[int, Routed]] = {}
    for name, module in modules.items():
        experts = experts_of(module)
        if experts is None or "shared" in name:
            continue
        stack, layer = re.fullmatch(r"(.*?)\.?\w+\.(\d+)\..*", name).groups()
        block = modules[name.rpartition(".")[0]] if type(module).__name__ != "DogeCDMoE" else module
        ids = ids_of(block, experts)
        if ids > 1:
            stack += "attention" * ("attention" in name) + "vision" * ("vision_moe" in name)
            owner = modules[name.rpartition(".")[0].rpartition(".")[0]]
            stacks.setdefault(stack, {})[int(layer)] = Routed(
                ids, ids - experts, has_shared(block, owner)
            )
    return stacks


def experts_of(module: nn.Module) -> int | None:
    """How many experts a module holds; None if it is no module of experts."""
    kind = type(module).__name__
    if kind == "DogeCDMoE":
        return module.down_embed.num_embeddings
    if not kind.endswith("Experts"):
        return None
    if kind == "DbrxExperts":
        return module.mlp.moe_num_experts
    if isinstance(module, (nn.ModuleDict, nn.ModuleList)):
        return sum(
            name.startswith("expert") or name.isdigit() for name, _ in module.named_children()
        )
    weights = dict(module.named_parameters(recurse=False))
    return weights.get("down_proj", next(iter(weights.values()))).shape[0]


def ids_of(block: nn.Module, experts: int) -> int:
    """Among how many the router beside the experts chooses."""
    router = next(
        (child for name, child in block.named_children() if name in ("gate", "router")), None
    )
    if router is None:
        return experts  # Doge: by two keys of half the size
    *_, weight = [
        each for name, each in router.named_parameters() if each.ndim == 2 and "bias" not in name
    ]
    return weight.shape[0] - getattr(
        router, "n_shared_experts", 0
    )  # Inkling: shared experts are weighed there


def has_shared(block: nn.Module, owner: nn.Module) -> bool:
    """Whether something is computed of every token beside the experts."""
    if type(block).__name__ == "DogeCDMoE":
        return True
    if hasattr(block, "experts") and hasattr(block, "mlp"):  # Gemma 4
        return True
    beside = (
        child
        for name, child in (*block.named_children(), *owner.named_children())
        if "share" in name
    )
    return any(weight.numel() for child in beside for weight in child.parameters())


def ids_in_a_forward_pass(model: nn.Module) -> int | None:
    """How many ids each token has where they come to the first experts; None if none come there."""

    class Seen(Exception):
        pass

    def see(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        ids = next(
            (kwargs[name] for name in ("top_k_index", "router_indices") if name in kwargs), None
        )
        raise Seen((args[1] if ids is None else ids).shape[-1])

    kinds = {type(module) for module in model.modules()}
    given = {
        kind
        for kind in kinds
        if {"top_k_index", "router_indices"} & set(inspect.signature(kind.forward).parameters)
    }
    for module in model.modules():
        if type(module) in given:
            module.register_forward_pre_hook(see, with_kwargs=True)
    with (
        torch.device("meta"),
        torch.no_grad(),
        mock.patch(
            "transformers.masking_utils.find_packed_sequence_indices", lambda positions: None
        ),
    ):
        try:
            model(input_ids=torch.zeros(1, 5, dtype=torch.long), use_cache=False)
        except Seen as seen:
            return seen.args[0]
    return None


def most_ids(model: nn.Module) -> int:
    """How many experts each token gets, as routers say it: for those that need numbers to run."""
    said: list[int] = []
    for module in model.modules():
        if digits := re.search(
            r"Top(\d+)Router$", type(module).__name__
        ):  # Switch Transformers, NLLB
            said.append(int(digits[1]))
        elif isinstance(getattr(module, "top_k", None), int):
            said.append(module.top_k)
    return max(said)


# ---- What is said of it


def agrees(description: Description, model: nn.Module) -> bool:
    """Whether a description is of the language model's layers, and names others if there are."""
    stacks = routed(model)
    main = next(
        (
            stacks.pop(name)
            for name in sorted(stacks)
            if not re.search("encoder|vision|attention", name)
        ),
        {},
    )
    if description.has_experts is not bool(main):
        return False
    if description.banks > 1:  # the others are of images
        others = [stacks.pop(name) for name in sorted(stacks) if name.endswith("vision")]
        if others != [main] * (description.banks - 1):
            return False
    said = zip(description.layer_map, description.layer_experts, strict=True)
    passes = getattr(model.config.get_text_config(), "loop_num_passes", 1)
    return (
        {
            layer: (
                experts // description.banks,
                description.zero_experts,
                bool(description.shared_experts),
            )
            for layer, experts in said
        }
        == main
        and set(description.layer_visit) <= set(range(passes))
        and bool(description.elsewhere) >= bool(stacks)
    )


@pytest.mark.parametrize(
    "model_type",
    [
        name if number % 16 == 0 or name in LOOPED else slow(name)
        for number, name in enumerate(CLASSES)
    ],
)
def test_layers_and_experts_are_those_that_the_model_has(model_type: str) -> None:
    config = CLASSES[model_type](**NEEDED.get(model_type, {}))
    description = describe(config)
    model = make(config)
    assert agrees(description, model)
    assert describe(config.to_dict()).layer_map == description.layer_map
    assert bool(description.uncaptured) == (model_type in NOT_CAPTURED)
    if model_type in LOOPED:
        config_of_text = config.get_text_config()
        assert len(description.layer_map) == config_of_text.num_hidden_layers + (
            config_of_text.loop_num_passes - 1
        ) * (config_of_text.loop_layer_index_end - config_of_text.loop_layer_index_start)
        assert describe(config.to_dict()) == describe(config.to_diff_dict()) == description
    if description.has_experts:
        assert (
            description.family in FAMILIES and not description.unknown and not description.assumed
        )
        assert describe(config.to_dict()) == describe(config.to_diff_dict()) == description
    if model_type in FAMILIES:
        assert description.family == model_type
        try:
            ids = ids_in_a_forward_pass(model)
        except (
            RuntimeError,
            NotImplementedError,
            TypeError,
            AttributeError,
        ):  # it needs numbers, or more than text
            ids = None
        assert set(description.layer_k) == {ids or most_ids(model)}
        if model_type not in NOT_CAPTURED:
            taps = routecap_transformers.find(model)
            assert [(tap.layer, tap.visit, tap.experts, tap.k) for tap in taps] == list(
                zip(
                    description.layer_map,
                    description.layer_visit,
                    description.layer_experts,
                    description.layer_k,
                    strict=True,
                )
            )
            assert all(tap.weights is not None and tap.router is None for tap in taps)


# ---- Configurations that are changed

# By the name of a field, other values of it.
CHANGES: dict[str, list[Any]] = {
    "num_hidden_layers": [6],
    "n_layers": [6],
    "num_layers": [6],
    "decoder_layers": [6],
    "num_decoder_layers": [6],
    "n_routed_experts": [24],
    "num_local_experts": [24],
    "num_experts": [24],
    "moe_num_experts": [24],
    "ffn_config.moe_num_experts": [24],
    "zero_expert_num": [5, 0],
    "mlp_layer_types": [["sparse", "dense"] * 3],
    "first_k_dense_replace": [2],
    "num_dense_layers": [3, 0],
    "dense_mlp_idx": [2],
    "moe_layer_freq": [2],
    "moe_layers_enum": ["2,4,5"],
    "moe_layers": [[1, 4]],
    "interleave_moe_layer_step": [2],
    "decoder_sparse_step": [2, 4],
    "mlp_only_layers": [[1, 4]],
    "moe_layer_start_index": [3],
    "moe_layer_end_index": [4],
    "moe_layer_interval": [2],
    "expert_layer_period": [3],
    "expert_layer_offset": [0],
    "num_sparse_decoder_layers": [2, 6, 0],
    "layers_block_type": [["moe", "mlp", "linear_attention", "moe"]],
    "hybrid_override_pattern": ["MEM*E-"],
    "is_moe": [False],
    "enable_moe_block": [False],
    "loop_num_passes": [1, 2],
}
CHANGED = [
    (family, field, value)
    for family in FAMILIES
    for field in FAMILIES[family].fields
    for value in CHANGES.get(field, ())
]
CHANGED = [
    each for each in CHANGED if each[0] != "dots3_note_vision_encoder"
]  # each of its layers has another number of experts
CHANGED += [
    ("granitemoeshared", "shared_intermediate_size", 64),
    ("minimax_m3_vl_text", "moe_layer_freq", [0, 1, 0, 1, 1, 1]),
    ("inkling2_loop_text", "loop_config.num_passes", 1),
    ("lara_mini", "shared_expert_intermediate_size", 0),
]
CHANGED += [
    (family, "num_experts", 1) for family in ("jamba", "qwen2_moe", "zaya")
]  # zaya's choice is then of one and none
CHANGED.remove(("minimax_m3_vl_text", "moe_layer_freq", 2))  # a list there
if VERSION < (5, 24):  # of whose families some are not there yet
    CHANGED = [each for each in CHANGED if each[0] in CLASSES]


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")  # of no shared expert
@pytest.mark.parametrize(
    "family, field, value",
    [
        each if each[1:] not in [other[1:] for other in CHANGED[:number]] else slow(*each)
        for number, each in enumerate(CHANGED)
    ],
)
def test_a_field_that_is_changed_changes_what_is_said_as_it_changes_the_model(
    family: str, field: str, value: Any
) -> None:
    layers = next(
        (
            name
            for name in FAMILIES[family].fields
            if name.endswith("layers") and CHANGES.get(name) == [6]
        ),
        "num_hidden_layers",
    )
    given = {
        name: each[:6] if isinstance(each, list) else each
        for name, each in NEEDED.get(family, {}).items()
    }
    given |= {} if family == "nemotron_h" else {layers: 6}
    part, _, name = field.rpartition(".")
    given |= {part: {name: value}} if part else {name: value}
    config = CLASSES[family](**given)
    description = describe(config)
    assert agrees(description, make(config))
    assert describe(config.to_dict()) == describe({"model_type": family, **given}) == description

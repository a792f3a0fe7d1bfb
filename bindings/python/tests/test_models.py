"""What `routecap.models.describe` makes of configurations as models publish them, of models that no
family is known of, and of what is no configuration.

transformers/test_described.py tests it against the models of every family of transformers.
"""

from __future__ import annotations

import dataclasses
import json
import random
import re
from pathlib import Path
from types import SimpleNamespace as Config
from typing import Any

import pytest
import routecap
from routecap_testing.published import MODELS
from routecap.models import FAMILIES, Description, describe


@pytest.mark.parametrize("name", MODELS)
def test_a_published_configuration_without_its_model_type_is_read_by_its_names(name: str) -> None:
    config, layers, experts, k = MODELS[name]
    model = describe(config)
    assert model.family is None and model.layer_map == tuple(layers) and model.layers == len(layers)
    if layers:
        assert model.layer_experts == (experts,) * len(layers) and model.experts == experts
        assert model.layer_k == (k,) * len(layers) and model.k == k
        assert model.has_experts and set(model.unknown) <= {"shared_experts"}
    else:
        assert model.has_experts is False and model.experts == model.k == model.shared_experts == 0


def test_numbers_of_layers_agree_with_the_field_notes() -> None:
    counts = {
        "DeepSeek-V3": 58,
        "GLM-4.5": 89,
        "Nemotron-3-Nano": 23,
        "Ernie-4.5-300B": 51,
        "Step-3.5-Flash": 42,
        "Llama-4-Maverick": 24,
    }
    assert {name: describe(MODELS[name][0]).layers for name in counts} == counts


# ---- Where it is read from

QWEN = {
    "model_type": "qwen3_moe",
    "num_hidden_layers": 48,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "mlp_only_layers": [0],
}


def test_a_mapping_an_object_a_file_and_its_folder_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN))
    model = describe(QWEN)
    assert (
        model.family == "qwen3_moe"
        and model.layer_map == tuple(range(1, 48))
        and not model.assumed
        and not model.unknown
    )
    assert (
        describe(Config(**QWEN))
        == describe(tmp_path)
        == describe(str(tmp_path / "config.json"))
        == model
    )


def test_a_file_that_is_no_configuration_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        describe(tmp_path / "nothing.json")
    for text in ("{", "[1]", "[" * 100_000):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ValueError, match="config.json"):
            describe(tmp_path)


def test_a_configuration_that_leaves_out_what_has_a_default_is_read_with_that() -> None:
    model = describe({"model_type": "deepseek_v3", "num_hidden_layers": 8})
    assert (
        model.layer_map == (3, 4, 5, 6, 7)
        and model.experts == 256
        and model.k == 8
        and (model.groups, model.groups_kept) == (8, 4)
    )
    assert describe({"model_type": "qwen3_vl_moe"}).family == "qwen3_vl_moe_text"


def test_the_language_model_is_described_and_what_else_routes_is_named() -> None:
    part = {"model_type": "qwen3_moe", "num_experts": 16, "num_experts_per_tok": 2}
    model = describe(
        {
            "model_type": "new",
            "llm_config": {"text_config": part},
            "vision_config": {"num_hidden_layers": 3},
            "talker_config": part,
        }
    )
    assert (
        model.family == "qwen3_moe"
        and model.experts == 16
        and model.elsewhere == ("talker_config",)
    )


def test_a_part_that_contains_itself_ends() -> None:
    config = Config()
    config.text_config = config
    assert describe(config).has_experts is False


# ---- What is done with it


def test_it_makes_a_capturer() -> None:
    model = describe(
        {
            "model_type": "longcat_flash",
            "num_layers": 3,
            "n_routed_experts": 16,
            "zero_expert_num": 4,
            "moe_topk": 2,
        }
    )
    assert model.zero_experts == 4
    with routecap.Capturer(**model.settings(), rows=4) as capturer:
        assert (capturer.layers, capturer.k) == (3, 2)


def test_layers_that_differ_in_experts_or_in_k_are_told_apart() -> None:
    model = describe(Config(num_hidden_layers=3, num_experts=[8, 16, 32], num_experts_per_tok=2))
    assert model.layer_experts == (8, 16, 32) and model.experts == 32
    assert model.settings()["layer_experts"] == [8, 16, 32]
    model = describe(Config(num_hidden_layers=2, num_experts=8, moe_topk=[1, 2]))
    assert model.layer_k == (1, 2) and model.settings()["layer_k"] == [1, 2]
    assert "layer_k" not in describe(QWEN).settings()
    with routecap.Capturer(**model.settings(), rows=4) as capturer:
        assert capturer.k == 2 and capturer.layer_k.tolist() == [1, 2]


def test_it_does_not_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        describe(QWEN).k = 3  # type: ignore[misc]
    assert hash(describe(QWEN)) == hash(describe(dict(QWEN)))


# ---- What is not known

UNKNOWN: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "no number of layers": (
        {"num_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 0},
        ("decoder_layers", "layer_map"),
    ),
    "no experts per token": (
        {"num_hidden_layers": 2, "num_experts": 8, "n_shared_experts": 0},
        ("k",),
    ),
    "no experts": (
        {"num_hidden_layers": 2, "num_experts_per_tok": 2, "n_shared_experts": 1},
        ("experts",),
    ),
    "names of experts that nobody uses": (
        {"num_hidden_layers": 2, "expert_count": 8},
        ("layer_map", "experts", "k", "shared_experts"),
    ),
    "kinds of layers that nobody uses": (
        {
            "num_hidden_layers": 2,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "n_shared_experts": 0,
            "mlp_layer_types": ["dense", "mixture"],
        },
        ("layer_map",),
    ),
    "a step that is no number": (
        {
            "num_hidden_layers": 2,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "n_shared_experts": 0,
            "decoder_sparse_step": "two",
        },
        ("layer_map",),
    ),
    "a default that is none": ({"model_type": "deepseek_v2"}, ("k",)),
    "a list that has to be there": (
        {"model_type": "deepseek_ocr2_text", "num_experts_per_tok": 6},
        ("layer_map",),
    ),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_a_configuration_does_not_say_is_named_and_none(name: str) -> None:
    config, unknown = UNKNOWN[name]
    model = describe(config)
    assert model.unknown == unknown
    assert all(getattr(model, each) is None for each in unknown)
    with pytest.raises(ValueError, match="does not tell"):
        model.settings()


def test_layers_are_known_where_nothing_but_they_are_told() -> None:
    told = {
        (0, 3): {"layers_block_type": ["moe", "mlp", "attention", "moe"]},
        (1, 2, 4): {"num_hidden_layers": 5, "mlp_only_layers": [0, 3, 99]},
        (1, 5, 7): {"num_hidden_layers": 8, "decoder_sparse_step": 2, "mlp_only_layers": [3]},
    }
    for layers, config in told.items():
        model = describe(config)
        assert model.layer_map == layers and {"experts", "k"} <= set(model.unknown)


def test_what_follows_from_nothing_but_absence_is_named_where_the_family_is_not_known() -> None:
    config = {
        "num_hidden_layers": 2,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "n_shared_experts": 0,
    }
    assert describe(config).assumed == ("layer_map", "zero_experts", "groups")
    assert describe({**config, "mlp_layer_types": ["dense", "sparse"]}).assumed == (
        "zero_experts",
        "groups",
    )
    assert describe({**config, "model_type": "qwen3_moe"}).assumed == ()


def test_blocks_that_differ_in_experts_and_k_are_described_and_captured_together() -> None:
    """Nemotron-H Puzzle: what a block has is in the block alone. It was taken for a dense model."""
    blocks: list[dict[str, Any]] = [
        {"block_type": "mamba"},
        {"block_type": "moe", "n_routed_experts": 128, "num_experts_per_tok": 4},
        {"block_type": "attention"},
        {"block_type": "moe", "n_routed_experts": 256, "num_experts_per_tok": 18},
        {"block_type": "moe", "n_routed_experts": 256, "num_experts_per_tok": 8},
    ]
    for more in ({}, {"n_routed_experts": 0, "num_experts_per_tok": 2, "n_shared_experts": 1}):
        config = {"model_type": "nemotron_h_puzzle", "block_configs": blocks, **more}
        for each in (config, Config(**config)):
            model = describe(each)
            assert model.has_experts and model.decoder_layers == 5
            assert model.layer_map == (1, 3, 4) and model.layer_experts == (128, 256, 256)
            assert model.layer_k == (4, 18, 8) and (model.experts, model.k) == (256, 18)
            with routecap.Capturer(**model.settings(), rows=4) as capturer:
                assert capturer.layer_k.tolist() == [4, 18, 8] and "k=4 to 18" in repr(capturer)
    same = describe(
        {"block_configs": [blocks[0], blocks[1], {**blocks[1], "n_routed_experts": 64}]}
    )
    assert (
        "layer_k" not in same.settings()
        and same.settings()["layer_map"] == [1, 2]
        and same.settings()["layer_experts"] == [128, 64]
    )
    assert describe({"block_configs": [{"ffn": {}}], "num_hidden_layers": 1}).has_experts is False


def test_layers_that_run_in_a_loop_are_there_once_for_each_visit() -> None:
    """Inkling 2 Loop: layers 6 to 17 run three times. Which route was said to be unknown."""
    model = describe({"model_type": "inkling2_loop_text"})
    looped = [layer for layer in range(6, 18) for _ in range(3)]
    assert model.layer_map == (*range(6), *looped, *range(18, 24)) and model.layers == 48
    assert model.layer_visit == (*[0] * 6, *[0, 1, 2] * 12, *[0] * 6) and not model.unknown
    assert model.decoder_layers == 24 and not model.uncaptured
    with routecap.Capturer(**model.settings(), rows=4) as capturer:
        assert capturer.layer_visit.tolist() == list(model.layer_visit)
    short = describe(
        {
            "model_type": "inkling2_loop_text",
            "num_hidden_layers": 4,
            "loop_config": {"num_passes": 2, "core_start": 1, "core_end": 2},
        }
    )
    assert short.layer_map == (0, 1, 1, 2, 3) and short.layer_visit == (0, 0, 1, 0, 0)
    once = describe({"model_type": "inkling2_loop_text", "loop_num_passes": 1})
    assert once.layers == 24 and not any(once.layer_visit or ())
    assert "layer_visit" not in once.settings()
    unsaid = describe({"num_hidden_layers": 4, "num_experts": 8, "loop_num_passes": 2})
    assert unsaid.layer_map is None and "layer_map" in unsaid.unknown


def test_banks_of_experts_for_other_tokens_have_ids_behind_one_another() -> None:
    """ERNIE-4.5-VL has experts for text and for images in a layer. The second bank was passed over."""
    for config in (
        {"model_type": "ernie4_5_vl_moe_text"},
        {"model_type": "ernie4_5_moe_vl", "moe_num_experts": [64, 64]},
    ):
        model = describe(config)
        assert model.banks == 2 and model.experts == 128 and set(model.layer_experts or ()) == {128}
    assert describe({"model_type": "ernie4_5_moe"}).banks == 1


def test_more_experts_for_a_token_than_can_be_captured_are_refused() -> None:
    with pytest.raises(ValueError, match="gets 64 experts in layer 0, and .* at most 32"):
        describe({"model_type": "doge", "is_moe": True}).settings()


def test_a_model_without_experts_says_so() -> None:
    for config in (
        {"num_hidden_layers": 32},
        {"num_hidden_layers": 4, "num_experts": 1},
        {"model_type": "gemma4_text"},
        {"model_type": "doge"},
    ):
        model = describe(config)
        assert model.has_experts is False and model.layers == 0
        with pytest.raises(ValueError, match="no experts"):
            model.settings()


def test_nothing_that_is_given_is_an_exception() -> None:
    fields = sorted(
        {name for family in FAMILIES.values() for name in family.fields}
        | {"text_config", "per_layer_config", "block_configs", "model_type"}
    )
    values = [
        None,
        True,
        -1,
        0,
        1,
        3,
        2**70,
        2.5,
        "x",
        "1,2",
        "",
        [],
        [1],
        [None],
        ["moe", "mlp"],
        ["sparse"],
        {},
        {"0": {}},
        {"num_experts": 4},
        object,
    ]
    draw = random.Random(5)
    for kind in [None, 7, "new", *FAMILIES] * 20:
        config = {
            "model_type": kind,
            **{name: draw.choice(values) for name in draw.sample(fields, 12)},
        }
        for each in (config, Config(**config)):
            assert isinstance(describe(each), Description)
    for nonsense in (None, 3, [], object(), {}):
        assert describe(nonsense).has_experts is False


# ---- The page


def test_the_families_of_the_page_are_those_of_the_code() -> None:
    text = (Path(__file__).parents[3] / "docs" / "models.md").read_text()
    _, _, families = text.partition("## Families\n\n")
    models = [describe({"model_type": each, "is_moe": True}) for each in FAMILIES]
    captured = [str(each.family) for each in models if not each.uncaptured]
    assert re.findall(r"`([\w-]+)`", families.split("\n\n")[0]) == captured
    refused = {str(each.family): each.uncaptured for each in models if each.uncaptured}
    assert dict(re.findall(r"^\| `([\w-]+)` \| (.*?) \|", families, re.MULTILINE)) == refused

"""Layers, experts and experts per token of models as their configurations publish them.

The released module counted 61 layers for a model of which 58 route, none for hybrids whose patterns
name kinds of attention, and failed for models that call the number of chosen experts something
else.
"""

from types import SimpleNamespace as Config

import pytest
from routecap_testing.published import MODELS

from routecap_vllm import _model_config
from routecap_vllm.routed_experts_capturer import _count_moe_layers


@pytest.mark.parametrize("name", MODELS)
def test_the_layers_that_route_are_those_of_the_model(name):
    config, layers, experts, chosen = MODELS[name]
    assert _model_config.moe_layers(config) == layers
    assert _count_moe_layers(config) == len(layers)
    if layers:
        assert _model_config.experts_of_layers(config) == [experts] * len(layers)
        assert _model_config.experts_per_token(config) == chosen


def test_numbers_of_layers_agree_with_the_field_notes():
    counts = {
        "DeepSeek-V3": 58,
        "GLM-4.5": 89,
        "Nemotron-3-Nano": 23,
        "Ernie-4.5-300B": 51,
        "Step-3.5-Flash": 42,
        "Llama-4-Maverick": 24,
    }
    assert {name: _count_moe_layers(MODELS[name][0]) for name in counts} == counts


def test_configurations_that_only_name_layers_count_as_before():
    assert _count_moe_layers(Config(num_hidden_layers=12)) == 12
    assert _count_moe_layers(Config(num_hidden_layers=12, mlp_only_layers=[0, 3, 99])) == 10
    assert (
        _count_moe_layers(Config(num_hidden_layers=8, decoder_sparse_step=2, mlp_only_layers=[3]))
        == 3
    )
    assert _count_moe_layers(Config(layers_block_type=["mamba", "moe", "attention", "moe"])) == 2


def test_layers_with_different_numbers_of_experts_are_told_apart():
    config = Config(num_hidden_layers=3, num_experts=[8, 16, 32], num_experts_per_tok=2)
    assert _model_config.experts_of_layers(config) == [8, 16, 32]


def test_what_a_configuration_does_not_say_is_an_error_that_names_it():
    with pytest.raises(ValueError, match="number of layers"):
        _model_config.moe_layers(Config(num_experts=8))
    with pytest.raises(ValueError, match="experts per token"):
        _model_config.experts_per_token(Config(num_hidden_layers=2, num_experts=8))
    with pytest.raises(ValueError, match="number of experts"):
        _model_config.experts_of_layers(Config(num_hidden_layers=2))
    with pytest.raises(ValueError, match=r"1 in layer 0, 2 in layer 1\) do not fit"):
        _model_config.experts_per_token(Config(num_hidden_layers=2, num_experts=8, moe_topk=[1, 2]))
    with pytest.raises(ValueError, match="layer 6 of the decoder runs several times"):
        _model_config.moe_layers(Config(model_type="inkling2_loop_text"))

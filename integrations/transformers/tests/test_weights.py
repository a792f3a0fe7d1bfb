"""Weights are captured beside the ids, bit for bit as the routers gave them to plain hooks."""

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import routecap
import torch
from families import CACHE, FAMILIES, K, Witness, checkpoint, make, rows_of
from routecap_transformers import attach
from transformers import DynamicCache

PROMPTS = torch.tensor([[0, 0, 0, 11, 12, 13], [21, 22, 23, 24, 25, 26], [0, 0, 0, 0, 0, 7]])
MASK = (PROMPTS != 0).long()
TOKENS = torch.arange(3, 20)[None]
SORTS_BY_EXPERT = "jetmoe"
WITNESSED = [each for each in FAMILIES if each != SORTS_BY_EXPERT]


def weights_of(routing: routecap.Routing) -> Any:
    """[rows, layers, k] in the order of the sorted ids."""
    assert routing.complete and routing.coverage().cells_weighted == routing.rows * routing.layers
    order = np.argsort(routing.ids(), -1)
    return np.take_along_axis(routing.weights(), order, -1)


def seen(witness: Witness, each: int = 0) -> Any:
    told = witness.weights[each]
    return torch.stack([told[layer] for layer in sorted(told)], 1).float().numpy()


@pytest.mark.parametrize("family", WITNESSED)
def test_each_family_has_the_weights_that_its_routers_gave(family: str) -> None:
    model, k = make(family), 1 if family == "llama4_text" else K
    with attach(model, weights="float32") as capture, Witness(model, k) as witness:
        with torch.no_grad():
            model(input_ids=TOKENS)
        [routing] = capture.take()
    assert list(witness.weights[0]) == FAMILIES[family][1]
    assert np.array_equal(weights_of(routing), seen(witness))


def test_weights_that_a_gate_sorts_by_expert_are_put_back_beside_their_ids() -> None:
    model = make(SORTS_BY_EXPERT)
    expected = np.full((TOKENS.shape[1], 3, 8), np.nan, np.float32)
    for i, layer in enumerate(model.model.layers):

        def tell(module: Any, args: Any, output: Any, i: int = i) -> None:
            _, rows, gates, counts, _ = output
            experts = np.repeat(np.arange(len(counts)), counts)
            expected[rows.numpy(), i, experts] = gates.numpy()

        layer.mlp.router.register_forward_hook(tell)
    with attach(model, weights="float32") as capture, torch.no_grad():
        model(input_ids=TOKENS)
        [routing] = capture.take()
    there = np.take_along_axis(expected, np.sort(routing.ids(), -1).astype(np.int64), -1)
    assert not np.isnan(there).any() and np.array_equal(weights_of(routing), there)


@pytest.mark.parametrize("family", ["mixtral", "deepseek_v3", "gpt_oss"])
def test_a_left_padded_generation_has_the_weights_of_each_token(family: str) -> None:
    model = make(family)
    with attach(model, weights="float32") as capture, Witness(model) as witness:
        model.generate(
            input_ids=PROMPTS,
            attention_mask=MASK,
            max_new_tokens=5,
            do_sample=False,
            eos_token_id=None,
        )
        routings = capture.take()
    expected = rows_of(witness.weights, [MASK] + [torch.ones(3, 1)] * 4, 3)
    for routing, rows in zip(routings, expected, strict=True):
        assert np.array_equal(weights_of(routing), rows.numpy())


@pytest.fixture
def model() -> Any:
    return make("qwen3_moe")


def test_chunks_of_a_prompt_and_copies_of_its_cache_have_their_weights(model: Any) -> None:
    with (
        attach(model, weights="float32", store=1 << 22) as capture,
        Witness(model) as witness,
        torch.no_grad(),
    ):
        cache = DynamicCache(config=model.config)
        model(input_ids=TOKENS[:, :6], **{CACHE: cache})
        model(input_ids=TOKENS[:, 6:9], **{CACHE: cache})
        other = copy.deepcopy(cache)
        model(input_ids=TOKENS[:, 9:], **{CACHE: cache})
        model(input_ids=TOKENS[:, 9:] + 30, **{CACHE: other})
        one, two = capture.take()
    prompt = [seen(witness, 0), seen(witness, 1)]
    assert np.array_equal(weights_of(one), np.concatenate([*prompt, seen(witness, 2)]))
    assert np.array_equal(weights_of(two), np.concatenate([*prompt, seen(witness, 3)]))


@pytest.mark.parametrize("reentrant", [True, False])
def test_layers_that_run_again_in_backward_leave_the_weights_as_they_were(
    model: Any, reentrant: bool
) -> None:
    checkpoint(model, use_reentrant=reentrant)
    model.train()
    with attach(model, weights="float32") as capture, Witness(model) as witness:
        model(input_ids=TOKENS, labels=TOKENS).loss.backward()
        [routing] = capture.take()
    assert np.array_equal(weights_of(routing), seen(witness))


@pytest.fixture
def compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.usefixtures("compiler")
@pytest.mark.slow
def test_a_compiled_model_has_the_weights_of_the_eager_one(model: Any) -> None:
    run = torch.compile(model, backend="aot_eager")
    with torch.no_grad():
        with attach(run, weights="float32") as capture:
            run(input_ids=TOKENS, use_cache=False)
            [routing] = capture.take()
        with Witness(model) as witness:
            model(input_ids=TOKENS, use_cache=False)
    assert np.array_equal(weights_of(routing), seen(witness))


def test_weights_of_another_type_than_is_kept_are_refused_and_named(model: Any) -> None:
    with attach(model, weights="bfloat16") as capture, torch.no_grad():
        with pytest.raises(
            ValueError,
            match=r"attach\(\) is set, and model.layers.0.mlp.experts gave weights of torch.float32,"
            " .* take float32",
        ):
            model(input_ids=TOKENS)
        assert capture.take() == []
        model.bfloat16()
        with Witness(model) as witness:
            model(input_ids=TOKENS)
        [routing] = capture.take()
    assert routing.weights_dtype is routecap.Dtype.BF16
    assert np.array_equal(weights_of(routing), seen(witness))


def test_weights_stay_when_rows_are_told_their_forward_pass(model: Any) -> None:
    with (
        attach(model, weights="float32", steps=True) as capture,
        Witness(model) as witness,
        torch.no_grad(),
    ):
        model(input_ids=TOKENS)
        [routing] = capture.take()
    assert np.array_equal(weights_of(routing), seen(witness))

"""Every family is captured as its routers chose: under generate with left padding, and in a forward
pass over the finished sequences.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import routecap
import routecap_transformers
import torch
from families import EXPERTS, FAMILIES, K, PAD, VOCABULARY, Witness, make, make_of, rows_of
from routecap import Provenance, Router
from transformers import CONFIG_MAPPING

PROMPTS = torch.tensor([[0, 0, 0, 11, 12, 13], [21, 22, 23, 24, 25, 26], [0, 0, 0, 0, 0, 7]])
MASK = (PROMPTS != 0).long()


def sorted_ids(routing: routecap.Routing) -> np.ndarray:
    assert routing.complete
    return np.sort(routing.ids().astype(np.int64), -1)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_row_of_a_left_padded_generation_is_what_the_routers_chose(family: str) -> None:
    model, layers = make(family), FAMILIES[family][1]
    k = 1 if family == "llama4_text" else K
    with routecap_transformers.attach(model) as capture, Witness(model, k) as witness:
        out = model.generate(
            input_ids=PROMPTS,
            attention_mask=MASK,
            max_new_tokens=6,
            do_sample=False,
            eos_token_id=None,
        )
        routings = capture.take()
    assert [tap.layer for tap in capture.taps] == layers == routings[
        0
    ].layer_map.tolist() and routings[0].k == k
    assert routings[0].layer_experts.tolist() == [EXPERTS + 2 * (family == "longcat_flash")] * len(
        layers
    )  # two zero experts
    assert set(routings[0].layer_provenance) == {Provenance.CAPTURED}
    expected = rows_of(witness.passes, [MASK] + [torch.ones(3, 1)] * 5, 3)
    for sequence, (routing, rows) in enumerate(zip(routings, expected, strict=True)):
        assert (
            routing.rows == int(MASK[sequence].sum()) + 5
        )  # six tokens more, the last of which was never routed
        assert (sorted_ids(routing) == rows.numpy()).all()
    with (
        routecap_transformers.attach(model) as capture,
        Witness(model, k) as witness,
        torch.no_grad(),
    ):
        for sequence in range(3):
            model(
                input_ids=out[sequence : sequence + 1, 6 - int(MASK[sequence].sum()) :],
                use_cache=False,
            )
        forced = capture.take()
    for routing, again, seen in zip(routings, forced, witness.passes, strict=True):
        alone = torch.stack([seen[layer] for layer in layers], 1).numpy()
        assert again.rows == routing.rows + 1 and (sorted_ids(again) == alone).all()
        assert (
            sorted_ids(routing) == alone[:-1]
        ).all()  # batched and padded, token by token, and all at once


def test_zero_experts_are_experts() -> None:
    model = make("longcat_flash")
    with routecap_transformers.attach(model) as capture, torch.no_grad():
        model(input_ids=torch.randint(3, 100, (4, 24), generator=torch.Generator().manual_seed(1)))
        ids = np.concatenate([routing.ids() for routing in capture.take()])
    assert ids.max() >= EXPERTS


def test_a_token_that_skips_the_experts_of_zaya_has_an_id_of_its_own() -> None:
    """The router gives the experts id 0 for it, with weight 0: that passed for the first expert."""
    if "zaya" not in CONFIG_MAPPING:
        pytest.skip("this release has no zaya")
    config = CONFIG_MAPPING["zaya"](
        vocab_size=VOCABULARY, hidden_size=64, moe_intermediate_size=32, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        head_dim=16, num_experts=EXPERTS, router_hidden_size=16, pad_token_id=PAD,
    )  # fmt: skip
    model = make_of(config)
    seen: dict[int, torch.Tensor] = {}
    for layer, block in enumerate(model.model.layers):
        gate = block.mlp.gate
        gate.balancing_biases[-1] = 0.0
        gate.register_forward_hook(
            lambda module, args, output, layer=layer: seen.update(
                {layer: output[0].softmax(-1) + module.balancing_biases}
            )
        )
    with routecap_transformers.attach(model) as capture, torch.no_grad():
        model(input_ids=torch.randint(3, 100, (1, 64), generator=torch.Generator().manual_seed(1)))
        [routing] = capture.take()
    assert [tap.experts for tap in capture.taps] == [EXPERTS + 1] * 4
    ids = routing.ids()[:, :, 0]
    assert (ids == torch.stack([seen[layer].argmax(-1) for layer in range(4)], 1).numpy()).all()
    assert (ids == EXPERTS).any() and (ids == 0).any()


# ---- llama4, whose router gives a score for every expert


SCATTERED = "llama4_text"
TOKENS = torch.arange(3, 60)[None]


class Choices:
    """What torch.topk gives the routers of a model, in every layer: ids [tokens, layers, k]."""

    def __init__(self, model: Any) -> None:
        self.layers: list[torch.Tensor] = []
        self._routers = [layer.feed_forward.router for layer in model.model.layers[1::2]]

    def __enter__(self) -> "Choices":
        for router in self._routers:
            run = type(router).forward.__get__(router)

            def seen(states: Any, run: Any = run) -> Any:
                topk = torch.topk

                def tell(*args: Any, **kwargs: Any) -> Any:
                    result = topk(*args, **kwargs)
                    self.layers.append(result.indices.sort(-1).values)
                    return result

                torch.topk = tell
                try:
                    return run(states)
                finally:
                    torch.topk = topk

            router.forward = seen
        return self

    def __exit__(self, *unused: object) -> None:
        for router in self._routers:
            del router.forward

    def ids(self) -> np.ndarray:
        return torch.stack(self.layers, 1).numpy()


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_of_experts_with_equal_logits_llama4_has_those_that_its_router_chose(
    k: int, dtype: torch.dtype
) -> None:
    """They were chosen again from the logits, the lower id first: torch.topk takes any of them."""
    model = make(SCATTERED, num_experts_per_tok=k).to(dtype)
    for layer in model.model.layers[1::2]:
        with torch.no_grad():
            layer.feed_forward.router.weight[4:] = layer.feed_forward.router.weight[:4]
    with routecap_transformers.attach(model) as capture, Choices(model) as seen, torch.no_grad():
        model(input_ids=TOKENS)
        [routing] = capture.take()
    assert (sorted_ids(routing) == seen.ids()).all()
    assert (seen.ids() >= 4).any() and (seen.ids() < 4).any()


def test_an_expert_of_llama4_whose_score_is_rounded_to_zero_is_the_chosen_one() -> None:
    model = make(SCATTERED)
    for layer in model.model.layers[1::2]:
        layer.feed_forward.router.bias = torch.nn.Parameter(torch.full([EXPERTS], -120.0))
    with (
        routecap_transformers.attach(model, weights="float32") as capture,
        Choices(model) as seen,
        torch.no_grad(),
    ):
        model(input_ids=TOKENS)
        [routing] = capture.take()
    assert (sorted_ids(routing) == seen.ids()).all() and len(np.unique(seen.ids())) > 1
    weights = routing.weights()
    assert (weights == 0).any() and (weights >= 0).all()


def test_a_tap_with_a_router_chooses_again_and_has_no_weights() -> None:
    model = make(SCATTERED)
    taps = [
        replace(tap, ids=lambda args, kwargs, output: output[1], router=Router("topk_sigmoid"))
        for tap in routecap_transformers.find(model)
    ]
    with (
        routecap_transformers.attach(model, taps=taps) as capture,
        Choices(model) as seen,
        torch.no_grad(),
    ):
        model(input_ids=TOKENS)
        [routing] = capture.take()
    assert set(routing.layer_provenance) == {Provenance.RECOMPUTED}
    assert (sorted_ids(routing) == seen.ids()).all()
    with pytest.raises(
        ValueError,
        match=r"weights= of attach\(\) is set, and nothing gives those of"
        r" model.layers.1.feed_forward.router \(Llama4Router\), .* whose `ids` are ids and not logits",
    ):
        routecap_transformers.attach(model, taps=taps, weights="float32")


def test_a_router_of_llama4_that_gives_anything_else_is_refused_and_named() -> None:
    model = make(SCATTERED)
    router = model.model.layers[3].feed_forward.router
    run = router.forward
    with routecap_transformers.attach(model) as capture, torch.no_grad():
        router.forward = lambda states: tuple(each[:, :1] for each in run(states))
        with pytest.raises(ValueError, match=r"Llama4Router gives \[57, 1\] and \[57, 1\], and"):
            model(input_ids=TOKENS)
        assert capture.take() == []

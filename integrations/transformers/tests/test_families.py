"""Every family is captured as its routers chose: under generate with left padding, and in a forward
pass over the finished sequences.
"""

import numpy as np
import pytest
import routecap
import routecap_transformers
import torch
from families import EXPERTS, FAMILIES, K, PAD, VOCABULARY, Witness, make, make_of, rows_of
from routecap import Provenance
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
    assert set(routings[0].layer_provenance) == {
        Provenance.RECOMPUTED if family == "llama4_text" else Provenance.CAPTURED
    }
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

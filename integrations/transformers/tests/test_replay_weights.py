"""Captured weights multiply the experts' output where they are replayed, as constants."""

from typing import Any

import numpy as np
import pytest
import routecap
import routecap_replay.transformers
import routecap_transformers
import torch
from families import EXPERTS as E, FAMILIES, K, checkpoint, make as model_of
from routecap_replay import ReplayError
from torch.nn.functional import silu
from transformers import CONFIG_MAPPING, AutoModel, AutoModelForCausalLM

attach = routecap_replay.transformers.attach
WITHOUT = ("jetmoe", "llama4_text")  # a gate that sorts by expert; experts that get none
REPLAYED = [family for family in FAMILIES if family not in (*WITHOUT, "phimoe")]
IDS = torch.tensor([[3, 9, 27, 81, 14, 42], [0, 0, 5, 25, 99, 71], [0, 0, 0, 0, 64, 8]])
MASK = (IDS != 0).long()
GIVEN: dict[str, Any] = dict(input_ids=IDS, attention_mask=MASK, use_cache=False)
WHOLE: dict[str, Any] = dict(input_ids=IDS + 1, use_cache=False)
"""Without padding, which is routed live: it changes with how many rows an expert is multiplied, and
so the last bits of others."""


def captured(model: Any) -> tuple[Any, list[routecap.Routing]]:
    """The logits of a forward pass, and its routings."""
    with routecap_transformers.attach(model, weights="float32") as capture, torch.no_grad():
        return model(**WHOLE).logits, capture.take()


def disturb_routers(model: Any) -> None:
    """Routers choose and weigh otherwise, and nothing else of the model changes."""
    for tap in routecap_transformers.find(model):
        assert tap.gate is not None
        for parameter in tap.gate.parameters():
            parameter.data += torch.randn_like(parameter)


def with_weights(routing: routecap.Routing, weights: Any) -> routecap.Routing:
    return routecap.Routing.from_arrays(
        routing.ids(), experts=E, layer_map=routing.layer_map, weights=weights
    )


def routings_of(model: Any, seed: int, missing: bool = False) -> list[routecap.Routing]:
    """Experts and weights that no router has given; with `missing` every fifth cell has no
    weights."""
    random = np.random.default_rng(seed)
    layers = [tap.layer for tap in routecap_transformers.find(model)]
    made = []
    for length in MASK.sum(1).tolist():
        ids = np.array(
            [[random.permutation(E)[:K] for _ in layers] for _ in range(length)], np.uint8
        )
        weights = random.uniform(0.1, 2, ids.shape).astype(np.float32)
        if missing:
            weights.reshape(-1, K)[::5, 1] = np.nan
        made.append(routecap.Routing.from_arrays(ids, experts=E, layer_map=layers, weights=weights))
    return made


# ---- Forward


@pytest.mark.parametrize("family", REPLAYED)
def test_other_routers_give_the_output_of_the_engine_bit_for_bit(family: str) -> None:
    model = model_of(family)
    engine, routings = captured(model)
    disturb_routers(model)
    with torch.no_grad(), attach(model) as replay:
        live = model(**WHOLE).logits
        with replay(routings):
            ids_alone = model(**WHOLE).logits
        with replay(routings, weights=True):
            both = model(**WHOLE).logits
        report = replay.report()
    assert torch.equal(both, engine)
    assert not torch.equal(ids_alone, engine) and not torch.equal(ids_alone, live)
    assert report.replayed == 2 * IDS.numel() * len(FAMILIES[family][1]) and report.unweighted == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_of_a_narrow_router_come_back_as_they_were(dtype: torch.dtype) -> None:
    model = model_of("mixtral").to(dtype)
    engine, routings = captured(model)
    disturb_routers(model)
    with torch.no_grad(), attach(model) as replay, replay(routings, weights=True):
        assert torch.equal(model(**WHOLE).logits, engine)


def test_a_capture_beside_a_replay_has_what_the_experts_were_given() -> None:
    """It was attached first, and a hook of the replay behind its own changes what it has seen."""
    model = model_of("qwen3_moe")
    routings = routings_of(model, 1)
    with (
        routecap_transformers.attach(model, weights="float32") as capture,
        attach(model) as replay,
        torch.no_grad(),
    ):
        with replay(routings, weights=True):
            model(**GIVEN)
        for seen, given in zip(capture.take(), routings, strict=True):
            assert np.array_equal(seen.ids(), given.ids())
            assert np.array_equal(seen.weights(), given.weights())


def test_weights_that_an_engine_does_not_scale_are_scaled_as_the_model_does() -> None:
    """vLLM multiplies the sum of the experts by routed_scaling_factor; transformers the weights."""
    model = model_of("deepseek_v3", routed_scaling_factor=4.0)
    engine, routings = captured(model)
    unscaled = [with_weights(routing, routing.weights() / 4) for routing in routings]
    disturb_routers(model)
    with torch.no_grad(), attach(model) as replay:
        with replay(unscaled, weights=True, scale=4):
            assert torch.equal(model(**WHOLE).logits, engine)
        with replay(unscaled, weights=True):
            assert not torch.equal(model(**WHOLE).logits, engine)
        scaled, forgotten = replay.report().each
    assert scaled.weight_ratio == pytest.approx(1) and forgotten.weight_ratio == pytest.approx(0.25)


def test_prime_rls_array_of_ids_and_weights_is_replayed() -> None:
    model = model_of("mixtral")
    engine, routings = captured(model)
    arrays = [routecap.prime_rl.packed(routing) for routing in routings]
    disturb_routers(model)
    again = [routecap.prime_rl.read(array, experts=E) for array in arrays]
    with torch.no_grad(), attach(model) as replay, replay(again, weights=True):
        assert torch.equal(model(**WHOLE).logits, engine)


# ---- Backward


def mixtral_weights(logits: Any, ids: Any, gate: Any) -> Any:
    chosen = logits.softmax(-1).gather(1, ids)
    return chosen / chosen.sum(-1, keepdim=True)


def deepseek_weights(logits: Any, ids: Any, gate: Any) -> Any:
    chosen = logits.sigmoid().gather(1, ids)
    return chosen / chosen.sum(-1, keepdim=True) * 2.5


def qwen_weights(logits: Any, ids: Any, gate: Any) -> Any:
    return logits.softmax(-1).gather(1, ids)


def by_hand(block: Any, hidden: Any, ids: Any, weights: Any) -> Any:
    """What a block of experts puts out for [T, hidden], token by token."""
    experts, rows = block.experts, []
    for token, chosen, of_token in zip(hidden, ids, weights, strict=True):
        row = torch.zeros_like(token)
        for expert, weight in zip(chosen, of_token, strict=True):
            gate, up = (experts.gate_up_proj[expert] @ token).chunk(2)
            row = row + weight * (experts.down_proj[expert] @ (silu(gate) * up))
        rows.append(row)
    shared = getattr(block, "shared_experts", None)
    return torch.stack(rows) + (0 if shared is None else shared(hidden))


@pytest.mark.parametrize(
    ("family", "weigh"),
    [
        ("mixtral", mixtral_weights),
        ("qwen3_moe", qwen_weights),
        ("deepseek_v3", deepseek_weights),
    ],
)
@pytest.mark.parametrize("missing", [False, True], ids=["all weights", "some weights"])
def test_gradients_are_those_of_constants_where_there_are_weights(
    family: str, weigh: Any, missing: bool
) -> None:
    """Against autograd of a block written by hand: nothing goes through a captured weight, neither
    to the router nor to its input, and what goes through the others is as without replay."""
    model, seen = model_of(family), []
    layer = FAMILIES[family][1][-1]
    block = model.model.layers[layer].mlp

    def look(module: Any, args: Any, output: Any) -> None:
        hidden = args[0]
        hidden.retain_grad()
        output.retain_grad()
        seen.append((hidden, output))

    block.register_forward_hook(look)
    routings = routings_of(model, 2, missing)
    with attach(model) as replay:
        with replay(routings, weights=True):
            model(**GIVEN).logits[MASK.bool()].square().sum().backward()
        report = replay.report()
    hidden, output = seen[0]
    found = {name: each.grad.clone() for name, each in block.named_parameters()}

    tokens = MASK.flatten().bool()
    width = hidden.shape[-1]
    mine = hidden.detach().reshape(-1, width)[tokens].requires_grad_()
    column = FAMILIES[family][1].index(layer)
    ids = torch.from_numpy(np.concatenate([r.ids()[:, column] for r in routings])).long()
    weights = torch.from_numpy(np.concatenate([r.weights()[:, column] for r in routings]))
    there = ~weights.isnan().any(-1, keepdim=True)
    block.zero_grad()
    own = weigh(mine @ block.gate.weight.T, ids, block.gate)
    expected = by_hand(block, mine, ids, torch.where(there, weights, own))
    assert torch.allclose(output.reshape(-1, width)[tokens], expected, atol=1e-4)
    expected.backward(output.grad.reshape(-1, width)[tokens])
    close = lambda one, two: torch.allclose(one, two, rtol=1e-3, atol=1e-4 * two.abs().max())
    assert close(hidden.grad.reshape(-1, width)[tokens], mine.grad)
    for name, parameter in block.named_parameters():
        wanted = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        assert close(found[name], wanted), name
    assert bool(found["gate.weight"].any()) is missing
    assert (report.layers[column].unweighted == (~there).sum()) and bool((~there).any()) is missing


def test_a_loss_that_balances_the_load_still_teaches_the_router() -> None:
    model = model_of("mixtral", router_aux_loss_coef=0.5, output_router_logits=True)
    with attach(model) as replay, replay(routings_of(model, 3), weights=True):
        model(**GIVEN, labels=IDS).aux_loss.backward()
    assert all(layer.mlp.gate.weight.grad.any() for layer in model.model.layers)


def gradients(model: Any) -> dict[str, Any]:
    return {
        name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None
    }


@pytest.mark.parametrize("reentrant", [True, False])
def test_layers_that_run_again_have_the_weights_of_their_own_pass(reentrant: bool) -> None:
    model = model_of("mixtral")
    batches = [routings_of(model, seed, missing=True) for seed in (4, 5, 6)]
    expected = []
    with attach(model) as replay:
        for routings in batches:
            model.zero_grad()
            with replay(routings, weights=True):
                loss = model(**GIVEN).logits.square().mean()
            loss.backward()
            expected.append(gradients(model))
        with replay(batches[0]):  # ids alone, between the others
            loss = model(**GIVEN).logits.square().mean()
        model.zero_grad()
        loss.backward()
        expected.append(gradients(model))
    checkpoint(model, use_reentrant=reentrant)
    model.enable_input_require_grads()
    model.train()
    with attach(model) as replay:
        losses = []
        for routings in batches:
            with replay(routings, weights=True):
                losses.append(model(**GIVEN).logits.square().mean())
        with replay(batches[0]):
            losses.append(model(**GIVEN).logits.square().mean())
        before = replay.report()
        for number in (2, 0, 3, 1):
            model.zero_grad()
            losses[number].backward()
            for name, gradient in gradients(model).items():
                wanted = expected[number][name]
                assert torch.allclose(gradient, wanted, rtol=1e-4, atol=1e-5 * wanted.abs().max())
        assert replay.report() == before and before.unweighted > 0


# ---- What is counted, and what is refused


def test_rows_that_the_router_weighed_are_counted_in_their_pass() -> None:
    model = model_of("qwen3_moe")
    whole, part = routings_of(model, 7), routings_of(model, 7, missing=True)
    ids, weights = part[0].ids(), part[0].weights()
    valid = np.ones(ids.shape[:2], bool)
    valid[:2] = False  # rows of which one lacks its weights in layer 0, and neither in layer 2
    part[0] = routecap.Routing.from_arrays(
        ids, experts=E, layer_map=[0, 2], weights=weights, valid=valid
    )
    weights[:2] = 0
    without = np.concatenate([weights, *(each.weights() for each in part[1:])])
    expected = np.isnan(without).any(-1).sum(0).tolist()
    with torch.no_grad(), attach(model) as replay:
        for routings in (whole, part):
            with replay(routings, weights=True):
                model(**GIVEN)
        with replay(part):
            model(**GIVEN)
        report = replay.report()
    assert [layer.unweighted for layer in report.each[1].layers] == expected
    assert report.each[0].unweighted == report.each[2].unweighted == 0
    assert report.unweighted == sum(expected) > 0
    assert report.each[1].lost == 4


@pytest.mark.parametrize("family", WITHOUT)
def test_a_family_that_has_no_place_for_weights_is_refused_by_name(family: str) -> None:
    model = model_of(family)
    name = routecap_transformers.find(model)[0].name
    with attach(model) as replay, pytest.raises(ValueError, match=rf"{name} .* has no place for"):
        with replay([], weights=True):
            pass


@pytest.mark.skipif("inkling_text" not in CONFIG_MAPPING, reason="this release has no Inkling")
def test_weights_that_shared_experts_share_a_softmax_with_are_refused_by_name() -> None:
    """Those of the shared experts stayed the router's own, and had its gradient."""
    heads = dict(num_attention_heads=4, num_key_value_heads=2, head_dim=16)
    config = CONFIG_MAPPING["inkling_text"](
        vocab_size=128,
        hidden_size=64,
        num_hidden_layers=2,
        **heads,
        **{f"swa_{name}": value for name, value in heads.items()},
        sliding_window_size=8,
        d_rel=4,
        rel_extent=16,
        intermediate_size=64,
        moe_intermediate_size=32,
        n_routed_experts=E,
        num_experts_per_tok=K,
        n_shared_experts=2,
        pad_token_id=0,
    )
    model = AutoModel.from_config(config).eval()
    name = routecap_transformers.find(model)[0].name
    with attach(model) as replay, pytest.raises(ValueError, match=rf"{name} .* has no place for"):
        with replay([], weights=True):
            pass


def test_what_has_no_weights_is_refused() -> None:
    model = model_of("mixtral")
    routings = routings_of(model, 8)
    routings[1] = routecap.Routing.from_arrays(routings[1].ids(), experts=E)
    with attach(model) as replay:
        with pytest.raises(ValueError, match="routing 1 has no weights"):
            with replay(routings, weights=True):
                pass
        with pytest.raises(ValueError, match="give weights=True"), replay(routings, scale=2.5):
            pass


def test_experts_that_get_other_ids_than_were_replayed_are_named() -> None:
    """Their weights would be those of other experts."""
    model = model_of("mixtral")
    routings, block = routings_of(model, 9), model.model.layers[1].mlp
    choose = block.gate.forward

    def reordered(*args: Any) -> Any:
        logits, weights, ids = choose(*args)
        return logits, weights.flip(-1), ids.flip(-1)

    block.gate.forward = reordered
    with torch.no_grad(), attach(model) as replay:
        with replay(routings):
            model(**GIVEN)
        with pytest.raises(
            ReplayError, match=r"layers\.1\.mlp\.experts gives its experts other ids"
        ):
            with replay(routings, weights=True):
                model(**GIVEN)


def test_experts_that_are_not_called_as_a_module_are_named() -> None:
    """No hook can give them the weights."""
    model = model_of("mixtral")
    routings, block = routings_of(model, 9), model.model.layers[1].mlp
    experts = block.experts
    with torch.no_grad(), attach(model) as replay:
        del block.experts
        block.experts = lambda *args: experts.forward(*args)
        with pytest.raises(ReplayError, match=r"layers\.1\.mlp\.experts did not give its experts"):
            with replay(routings, weights=True):
                model(**GIVEN)

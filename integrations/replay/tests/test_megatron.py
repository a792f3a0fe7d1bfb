"""Routers of released Megatron-Core choose what they are given, in every pass, and say what they
could not.
"""

import sys

import pytest
import routecap
import routecap_replay.megatron
import torch
from megatron.core.transformer.moe.router_replay import RouterReplay
from routecap_replay import ReplayError
from routecap_replay._passes import Router
from routecap_replay._rank import RankReplay

from small import (
    EXPERTS,
    K,
    LENGTH,
    MicroBatch,
    Seen,
    config_of,
    experts_of,
    model_of,
    on_two_ranks,
    weighed,
)

attach = routecap_replay.megatron.attach
REFUSED = (
    "moe_router_fusion",
    "moe_expert_capacity_factor",
    "moe_router_force_load_balancing",
    "moe_router_force_biased",  # not in 0.16
    "overlap_moe_expert_parallel_comm",
    "enable_cuda_graph",
    "external_cuda_graph",
    "cuda_graph_impl",
)
pytestmark = pytest.mark.usefixtures("alone")


def gradients_of(model):
    return {
        name: parameter.grad.clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


# ---- What is forced


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.int64]
)
def test_rows_are_forced_by_layer_whatever_their_type(dtype):
    """The first layer is dense. Megatron's own replay rejects all but int32 and int64."""
    model, batch = model_of(config_of()), MicroBatch(1)
    seen = Seen(model)
    with attach(model) as replay, torch.no_grad():
        batch.through(model)
        with replay({layer: rows.to(dtype) for layer, rows in batch.rows.items()}):
            batch.through(model)
        batch.through(model)
        report = replay.report()
    assert [router.layer for router in replay.routers] == [1, 2, 3]
    for layer, (live, forced, after) in seen.maps().items():
        assert torch.equal(forced, experts_of(batch.rows[layer])) and not torch.equal(live, forced)
        assert torch.equal(after, live)
    assert (
        report.passes == 1 and report.replayed == 3 * LENGTH and report.lost == report.invalid == 0
    )


def test_rows_of_all_layers_may_come_as_one_tensor_with_those_of_dense_layers_in_it():
    model, batch = model_of(config_of()), MicroBatch(1)
    seen = Seen(model)
    stacked = torch.stack(
        [torch.zeros_like(batch.rows[1]), batch.rows[3], batch.rows[1], batch.rows[2]]
    )
    with attach(model) as replay, torch.no_grad(), replay(stacked, layers=[0, 3, 1, 2]):
        batch.through(model)
    for layer, [forced] in seen.maps().items():
        assert torch.equal(forced, experts_of(batch.rows[layer]))


SCORES = {
    "softmax of the chosen": {},
    "softmax of all": {"moe_router_pre_softmax": True},
    "sigmoid": {"moe_router_score_function": "sigmoid", "moe_router_topk_scaling_factor": 2.5},
    "sigmoid with a bias": {
        "moe_router_score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
    },
    "groups": {
        "moe_router_score_function": "sigmoid",
        "moe_router_num_groups": 4,
        "moe_router_group_topk": 2,
    },
}


@pytest.mark.parametrize("scores", SCORES)
def test_probabilities_are_the_live_scores_of_the_given_experts_and_have_gradients(scores):
    model, batch = model_of(config_of(**SCORES[scores])), MicroBatch(1)
    router = model.decoder.layers[2].mlp.router
    if router.expert_bias is not None:
        router.expert_bias.copy_(torch.arange(EXPERTS))
    inputs = []
    router.register_forward_pre_hook(lambda module, args: inputs.append(args[0].detach()))
    seen = Seen(model)
    with attach(model) as replay, replay(batch.rows):
        batch.through(model).sum().backward()
    logits, ids = (inputs[0] @ router.weight.T).view(LENGTH, EXPERTS), batch.rows[2].long()
    if scores == "softmax of the chosen":
        expected = logits.gather(1, ids).softmax(-1)
    elif scores == "softmax of all":
        expected = logits.softmax(-1).gather(1, ids)
    else:
        expected = torch.nn.functional.normalize(logits.sigmoid().gather(1, ids), p=1, dim=-1)
        expected = expected * (2.5 if scores == "sigmoid" else 1)
    [probabilities] = [each for layer, _, each, _ in seen.calls if layer == 2]
    assert torch.allclose(probabilities.gather(1, ids), expected, atol=1e-6)
    assert router.weight.grad.abs().amax(1)[ids.unique()].all()


@pytest.mark.parametrize("scores", SCORES)
def test_weights_of_other_routers_give_their_output_bit_for_bit(scores):
    """They are put behind what the router does: it would norm and scale them once more."""
    config, batch = config_of(**SCORES[scores]), MicroBatch(1)
    engine, model = model_of(config), model_of(config)
    seen = Seen(engine)
    with torch.no_grad():
        expected = batch.through(engine)
    rows, weights = {}, {}
    for layer, [probabilities] in seen.probabilities().items():
        weights[layer], rows[layer] = probabilities.topk(K)
    for layer in model.decoder.layers[1:]:
        layer.mlp.router.weight.data.normal_()
    with attach(model) as replay, torch.no_grad():
        with replay(rows):
            assert not torch.equal(batch.through(model), expected)
        with replay(rows, weights=weights):
            assert torch.equal(batch.through(model), expected)
        assert replay.report().unweighted == 0


@pytest.mark.parametrize("missing", [[], [0, 5, 6]], ids=["all weights", "some weights"])
def test_through_weights_no_gradient_goes_to_the_router(missing):
    """Against autograd of a router written by hand. A loss that balances the load goes on."""
    scaled = config_of(**SCORES["sigmoid"])
    model, batch = model_of(scaled), MicroBatch(1)
    for each in batch.weights.values():
        each[missing, 0] = torch.nan
    router, inputs, given = model.decoder.layers[3].mlp.router, [], []

    def keep(module, args, output):
        inputs.append(args[0].detach())
        output[0].requires_grad_().retain_grad()
        given.append(output[0])

    with attach(model) as replay:
        router.register_forward_hook(keep)
        with replay(batch.rows, weights=batch.weights):
            batch.through(model).sum().backward()
        report = replay.report()
    found = router.weight.grad.clone()
    model.zero_grad()
    ids, weights = batch.rows[3].long(), batch.weights[3]
    chosen = (inputs[0] @ router.weight.T).view(LENGTH, EXPERTS).sigmoid().gather(1, ids)
    own = chosen / chosen.sum(-1, keepdim=True) * 2.5
    there = ~weights.isnan().any(-1, keepdim=True)
    expected = torch.zeros(LENGTH, EXPERTS).scatter(1, ids, torch.where(there, weights, own))
    assert torch.allclose(given[0], expected, atol=1e-6)
    expected.backward(given[0].grad)
    assert torch.allclose(found, router.weight.grad, rtol=1e-4, atol=1e-6)
    assert bool(found.any()) is bool(missing)
    assert [layer.unweighted for layer in report.layers] == [len(missing)] * 3


def test_ids_and_weights_of_a_plan_are_replayed_as_it_lays_them_out():
    model, batch = model_of(config_of()), MicroBatch(1)
    batch.weights[2][4] = torch.nan
    of_rows = [
        torch.stack([each[n][:-1] for n in (1, 2, 3)], 1) for each in (batch.rows, batch.weights)
    ]
    ids, weights = (each.numpy() for each in of_rows)
    routing = routecap.Routing.from_arrays(
        ids, experts=EXPERTS, layer_map=[1, 2, 3], weights=weights
    )
    layers = [1, 2, 3]
    plan = routecap.Plan([LENGTH], layers=layers, k=K, experts=EXPERTS)
    ids, _, _ = plan.gather([routing])
    weights = plan.gather_weights([routing])
    seen = Seen(model)
    with attach(model) as replay, torch.no_grad():
        with replay(torch.from_numpy(ids), layers, weights=torch.from_numpy(weights)):
            batch.through(model)
        report = replay.report()
    for layer, [given] in seen.probabilities().items():
        there = torch.arange(LENGTH - 1) != (4 if layer == 2 else -1)
        assert torch.equal(given[:-1][there], weighed(batch, layer)[:-1][there])
    assert [layer.unweighted for layer in report.layers] == [0, 1, 0]


def test_a_loss_that_balances_the_load_still_teaches_a_router_whose_weights_are_given():
    balanced = {"moe_router_load_balancing_type": "aux_loss", "moe_aux_loss_coeff": 0.1}
    model, batch = model_of(config_of(**balanced)).train(), MicroBatch(1)
    with attach(model) as replay, replay(batch.rows, weights=batch.weights):
        batch.through(model).sum().backward()
    assert all(layer.mlp.router.weight.grad.any() for layer in model.decoder.layers[1:])


def test_rows_that_are_lost_or_no_choice_are_routed_live_and_counted():
    """Rows of zeros pick one expert of two in Megatron's own replay, and its dispatcher counts with
    two.
    """
    model, batch = model_of(config_of(2)), MicroBatch(1, layers=2)
    seen = Seen(model)
    rows = batch.rows[1].to(torch.int16)
    rows[0] = -1  # lost
    rows[1, 1] = -1  # in part, so as a whole
    rows[2] = 0
    rows[3, 0] = EXPERTS
    rows[4] = -2  # wanted live
    valid = torch.ones(LENGTH, dtype=torch.bool)
    valid[5] = False
    with attach(model, agreement=True) as replay, torch.no_grad():
        batch.through(model)
        with replay({1: rows}, valid=valid):
            batch.through(model)
        [layer] = replay.report().layers
    [live, forced] = seen.maps()[1]
    assert torch.equal(forced[:6], live[:6]) and torch.equal(
        forced[6:], experts_of(batch.rows[1])[6:]
    )
    assert (layer.replayed, layer.lost, layer.invalid) == (LENGTH - 6, 3, 2)
    assert layer.agreement == pytest.approx((live & forced)[6:].sum().item() / (K * (LENGTH - 6)))


def test_nothing_waits_for_the_device():
    """Tensors of the device "meta" have no values: whatever asks for one raises."""
    rows = torch.empty(LENGTH, K, dtype=torch.int16, device="meta")
    live = rows.long()
    replay = RankReplay([Router(1, "router")], agreement=True)
    with replay({1: rows}, valid=rows[:, 0] > 0, weights={1: rows.float()}):
        replay.begin(replay.routers)
        chosen = replay.choose(replay.routers[0], live, EXPERTS)
        weights = replay.weigh(replay.routers[0], rows.float())
        replay.end(chosen)
    assert chosen.is_meta and chosen.shape == weights.shape == live.shape
    with pytest.raises((RuntimeError, NotImplementedError)):
        replay.report()  # which has to wait


def test_layers_of_multi_token_prediction_are_left_alone():
    """They count their layers from 1, too, and took the decoder's rows elsewhere (NeMo-RL #3903)."""
    model, batch = model_of(config_of(3, mtp_num_layers=1)), MicroBatch(1, layers=3)
    seen = Seen(model)
    with attach(model) as replay, replay(batch.rows):
        batch.through(model).sum().backward()
    assert len(replay.live) == 1 and replay.live[0].startswith("mtp.")
    assert {layer: len(maps) for layer, maps in seen.maps().items()} == {1: 1, 2: 1}


def test_a_second_model_is_not_touched():
    """Megatron's list of routers is one for the whole process."""
    policy, reference, batch = model_of(config_of()), model_of(config_of()), MicroBatch(1)
    seen = Seen(reference)
    with attach(policy) as replay, torch.no_grad():
        batch.through(reference)
        with replay(batch.rows):
            batch.through(reference)
            batch.through(policy)
    assert all(torch.equal(one, other) for one, other in seen.maps().values())


# ---- Passes

RECOMPUTE = {
    "full": {
        "recompute_granularity": "full",
        "recompute_method": "uniform",
        "recompute_num_layers": 1,
    },
    "full, two layers at once": {
        "recompute_granularity": "full",
        "recompute_method": "uniform",
        "recompute_num_layers": 2,
    },
    "moe": {"recompute_granularity": "selective", "recompute_modules": ["moe"]},
}


@pytest.mark.parametrize("recompute", RECOMPUTE)
def test_recompute_chooses_what_its_own_forward_chose_in_any_order(recompute):
    batches = [MicroBatch(seed) for seed in range(3)]
    batches[1].rows[2] = (
        batches[1].rows[2].to(torch.int8).index_fill(0, torch.arange(4), -1)
    )  # lost rows, too
    batches[1].weights = None
    batches[2].weights[3][:5] = torch.nan
    plain, model = model_of(config_of()), model_of(config_of(**RECOMPUTE[recompute]))
    expected = []
    with attach(plain) as replay:
        for batch in batches:
            plain.zero_grad()
            with replay(batch.rows, weights=batch.weights):
                batch.through(plain).sum().backward()
            expected.append(gradients_of(plain))
    seen = Seen(model)
    with attach(model) as replay:
        losses = []
        for batch in batches:
            with replay(batch.rows, weights=batch.weights):
                losses.append(batch.through(model).sum())
        live = MicroBatch(9).through(model).sum()
        report = replay.report(reset=True)  # counts anew, and forgets nothing else
        for number in (1, 2, 0):
            model.zero_grad()
            losses[number].backward()
            found = gradients_of(model)
            assert found.keys() == expected[number].keys()
            assert all(
                torch.allclose(found[name], each, atol=1e-6)
                for name, each in expected[number].items()
            )
        live.backward()
        assert replay.report().replayed == 0  # what runs again is not counted again
    forward, again = seen.maps(), seen.maps(again=True)
    for layer in (1, 2, 3):
        assert len(again[layer]) == 4
        assert all(
            torch.equal(again[layer][turn], forward[layer][number])
            for turn, number in enumerate((1, 2, 0, 3))
        )
    for layer, given in seen.probabilities(again=True).items():
        assert torch.equal(given[2], weighed(batches[0], layer))
    assert (
        report.unweighted == 5
        and report.replayed + report.lost == 3 * 3 * LENGTH
        and report.lost == 4
    )


def test_megatrons_own_queue_gives_recompute_the_rows_of_another_micro_batch():
    """The control of the test above: what it would find."""
    from megatron.core.transformer.moe.router_replay import RouterReplayAction

    RouterReplay.clear_global_router_replay_instances()
    model = model_of(config_of(moe_enable_routing_replay=True, **RECOMPUTE["full"]))
    batches, seen, losses = [MicroBatch(seed) for seed in range(2)], Seen(model), []
    for batch in batches:
        RouterReplay.set_replay_data([rows.long() for rows in batch.rows.values()])
        RouterReplay.set_global_router_replay_action(RouterReplayAction.REPLAY_FORWARD)
        losses.append(batch.through(model).sum())
    RouterReplay.set_global_router_replay_action(RouterReplayAction.REPLAY_BACKWARD)
    losses[1].backward()
    assert torch.equal(seen.maps(again=True)[2][0], experts_of(batches[0].rows[2]))


def test_rows_given_by_megatrons_own_calls_are_taken_once_each():
    from megatron.core.transformer.moe.router_replay import RouterReplayAction

    RouterReplay.clear_global_router_replay_instances()
    model = model_of(config_of(moe_enable_routing_replay=True, **RECOMPUTE["full"]))
    batches, losses = [MicroBatch(seed) for seed in range(2)], []
    seen = Seen(model)
    with attach(model) as replay:
        for batch in batches:
            RouterReplay.set_replay_data([rows.long() for rows in batch.rows.values()])
            RouterReplay.set_global_router_replay_action(RouterReplayAction.REPLAY_FORWARD)
            losses.append(batch.through(model).sum())
        RouterReplay.set_global_router_replay_action(RouterReplayAction.REPLAY_BACKWARD)
        for loss in reversed(losses):
            loss.backward()
        RouterReplay.set_replay_data([rows.long() for rows in batches[0].rows.values()])
        with pytest.raises(ReplayError, match="decoder.layers.1.mlp.router was given rows twice"):
            RouterReplay.set_replay_data([rows.long() for rows in batches[0].rows.values()])
        RouterReplay.clear_global_indices()
        RouterReplay.set_global_router_replay_action(RouterReplayAction.RECORD)
        batches[0].through(model)
        recorded = RouterReplay.get_recorded_data()
    for layer in (1, 2, 3):
        forward, again = seen.maps()[layer], seen.maps(again=True)[layer]
        assert all(
            torch.equal(each, experts_of(batch.rows[layer]))
            for each, batch in zip(forward, batches)
        )
        assert torch.equal(again[0], forward[1]) and torch.equal(again[1], forward[0])
        assert torch.equal(forward[2], experts_of(recorded[layer - 1]))
    RouterReplay.clear_global_router_replay_instances()


def test_virtual_stages_and_recompute_under_the_interleaved_schedule(tmp_path):
    on_two_ranks(tmp_path / "store")


# ---- A trainer's own choices


def experts_in(rows):
    """[T, experts] of rows that were recorded; no expert twice."""
    found = experts_of(rows)
    assert (found.sum(1) == K).all()
    return found


@pytest.mark.parametrize("recompute", [None, *RECOMPUTE])
@pytest.mark.parametrize("own", [False, True], ids=["", "with RouterReplay"])
def test_what_routers_choose_is_recorded_once_for_each_pass(recompute, own):
    RouterReplay.clear_global_router_replay_instances()
    settings = RECOMPUTE[recompute] if recompute else {}
    model = model_of(config_of(moe_enable_routing_replay=own, **settings))
    batches = [MicroBatch(seed) for seed in range(3)]
    with attach(model) as replay:
        with torch.no_grad():
            MicroBatch(8).through(model)  # evaluation, outside
        seen = Seen(model)
        with replay.record() as found:
            losses = [batch.through(model).sum() for batch in batches]
            losses[1].backward()  # a schedule may do so in between
        model.eval()
        with torch.no_grad():
            MicroBatch(9).through(model)
        for number in (2, 0):
            losses[number].backward()
    assert found.layers == [1, 2, 3] and len(found) == 3
    for layer, maps in seen.maps().items():
        assert len(maps) == 4  # those three, and the evaluation
        for number in range(3):
            assert torch.equal(experts_in(found.rows(number)[layer]), maps[number])
    if recompute:
        assert {len(maps) for maps in seen.maps(again=True).values()} == {3}


def test_a_pass_that_is_replayed_is_recorded_as_it_was_replayed():
    model, batch = model_of(config_of()), MicroBatch(1)
    rows = {layer: ids.to(torch.int16) for layer, ids in batch.rows.items()}
    rows[2][3] = -1  # lost, and so the router's own
    seen = Seen(model)
    with attach(model) as replay, torch.no_grad(), replay.record() as found:
        batch.through(model)
        with replay(rows):
            batch.through(model)
    for layer, (live, forced) in seen.maps().items():
        assert torch.equal(experts_in(found.rows(0)[layer]), live)
        assert torch.equal(experts_in(found.rows(1)[layer]), forced)
    assert torch.equal(found.rows(1)[1], rows[1])


def test_an_engine_and_a_trainer_are_compared_sequence_by_sequence():
    """Two sequences in the columns of a padded batch, and weights that a step has changed."""
    engine, trainer, length = model_of(config_of()), model_of(config_of()), LENGTH - 5
    with torch.no_grad():
        for layer in (1, 2, 3):
            trainer.decoder.layers[layer].mlp.router.weight += 0.05 * torch.randn(EXPERTS, 32)
    tokens = torch.cat([MicroBatch(seed).tokens for seed in (1, 2)])
    mask = torch.triu(torch.ones(1, 1, LENGTH, LENGTH), 1).bool()
    plan = routecap.Plan(
        [LENGTH, length], layers=[1, 2, 3], k=K, experts=EXPERTS, layout="padded_right",
        width=LENGTH, sequence_first=True, needed=[LENGTH, length],
    )  # fmt: skip
    found, maps = [], []
    for model in (engine, trainer):
        seen = Seen(model)
        with attach(model) as replay, torch.no_grad(), replay.record() as recorded:
            model(tokens, torch.arange(LENGTH).expand(2, -1), mask, labels=tokens)
        found.append(plan.scatter(recorded.ids(0)))
        # Megatron's tokens are column by column.
        maps.append(
            {layer: each[0].view(LENGTH, 2, EXPERTS) for layer, each in seen.maps().items()}
        )
    for sample, rows in enumerate((LENGTH, length)):
        drift = routecap.analysis.drift(found[0][sample], found[1][sample])
        assert drift.positions.tolist() == list(range(rows)) and drift.both.all()
        wanted = [
            (maps[0][layer][:rows, sample] != maps[1][layer][:rows, sample]).any(-1)
            for layer in (1, 2, 3)
        ]
        assert drift.differs.tolist() == torch.stack(wanted, 1).tolist()
        assert 0 < drift.differs.sum() < drift.differs.size
    same = routecap.analysis.drift(found[0][0], found[0][0])
    assert same.both.all() and not same.differs.any()


def test_what_cannot_be_recorded_is_refused():
    model, batch = model_of(config_of()), MicroBatch(1)
    with attach(model) as replay, torch.no_grad():
        with pytest.raises(ReplayError, match="no forward pass was recorded"), replay.record():
            pass
        with replay.record() as own:
            with pytest.raises(ReplayError, match="recorded already"), replay.record():
                pass
            batch.through(model)
        with pytest.raises(ReplayError, match="there is no micro-batch 1: record whole steps"):
            own.rows(1)
        with pytest.raises(ReplayError, match="layer 0 does not route on this rank"):
            own.ids(0, layers=[0, 1])
        router = model.decoder.layers[3].mlp.router
        chosen = experts_of(batch.rows[3])
        router.routing = lambda logits, **options: (chosen / K, chosen)
        with (
            pytest.raises(ReplayError, match=r"decoder\.layers\.3\.mlp\.router was not seen"),
            replay.record(),
        ):
            batch.through(model)
        del router.routing
        hook = router.register_forward_hook(lambda module, args, output: module.forward(*args))
        with (
            pytest.raises(ReplayError, match=r"decoder\.layers\.3\.mlp\.router ran twice"),
            replay.record(),
        ):
            batch.through(model)
        hook.remove()
        batch.through(model)  # nothing is left of the errors
        with replay.record() as own:
            batch.through(model)
        assert len(own) == 1


# ---- What is refused


def test_a_router_that_does_not_take_its_rows_exactly_once_is_named():
    model, batch = model_of(config_of()), MicroBatch(1)
    with attach(model) as replay, torch.no_grad():
        with (
            pytest.raises(ReplayError, match=r"no rows for decoder\.layers\.2\.mlp\.router:"),
            replay({1: batch.rows[1], 3: batch.rows[3]}),
        ):
            batch.through(model)
        with pytest.raises(
            ReplayError,
            match=r"layers\.1\.mlp\.router has 16 x 2 tokens and experts, the rows for it 15 x 2",
        ):
            with replay({layer: rows[:-1] for layer, rows in batch.rows.items()}):
                batch.through(model)
        with pytest.raises(ReplayError, match="no forward pass took the rows"), replay(batch.rows):
            pass
        replay.load(batch.rows)
        with pytest.raises(ReplayError, match="were not taken"):
            replay.load(batch.rows)
        batch.through(model)

        router = model.decoder.layers[3].mlp.router
        hook = router.register_forward_hook(lambda module, args, output: module.forward(*args))
        with (
            pytest.raises(ReplayError, match=r"decoder\.layers\.3\.mlp\.router ran twice"),
            replay(batch.rows),
        ):
            batch.through(model)
        hook.remove()
        chosen = experts_of(batch.rows[3])
        router.routing = lambda logits, **options: (chosen / K, chosen)
        with pytest.raises(
            ReplayError,
            match=(
                r"decoder\.layers\.3\.mlp\.router did not run, or chose its experts in another way"
            ),
        ):
            with replay(batch.rows):
                batch.through(model)
        del router.routing
        with replay(batch.rows):  # nothing of the errors is left
            batch.through(model)
    with pytest.raises(ValueError, match="rows of 2 layers need as many layers"):
        replay.load(torch.zeros(2, LENGTH, K), layers=[1])


@pytest.mark.parametrize(
    ("setting", "value"),
    {
        "moe_router_fusion": True,
        "moe_expert_capacity_factor": 1.0,
        "moe_router_force_load_balancing": True,
        "cuda_graph_impl": "local",
        "overlap_moe_expert_parallel_comm": True,
    }.items(),
)
def test_what_would_not_choose_what_it_is_given_is_refused(setting, value):
    model = model_of(config_of())
    setattr(model.config, setting, value)
    with pytest.raises(
        ValueError,
        match=rf"decoder\.layers\.1\.mlp\.router cannot be replayed with {setting}={value!r}",
    ):
        attach(model)


def test_other_ways_to_choose_are_refused():
    with pytest.raises(ValueError, match="sinkhorn chooses by itself"):
        attach(model_of(config_of(moe_router_load_balancing_type="sinkhorn")))
    with pytest.raises(ValueError, match="no routers of Megatron-Core"):
        attach(torch.nn.Linear(1, 1))
    model = model_of(config_of())
    with pytest.raises(ValueError, match="both are layer 1"):
        attach([model, model_of(config_of())])


def test_what_megatron_renamed_is_named(monkeypatch):
    """A setting that was not found stood for its harmless value, and a mark that was not found for
    a router of the decoder."""
    model = model_of(config_of())
    router, kind = model.decoder.layers[1].mlp.router, type(model.config)
    replay = sys.modules[RouterReplay.__module__].RouterReplay
    marks = ("topk", "routing_type", "layer_number", "is_mtp_layer")  # the last since 0.17
    own = [(router, each) for each in marks if hasattr(router, each)]
    own += [(router, "config"), (router, "router_replay")]
    own += [(replay, each) for each in ("get_replay_topk", "set_target_indices", "clear_indices")]
    for thing, name in own:
        with monkeypatch.context() as patch:
            patch.delattr(thing, name)
            with pytest.raises(ValueError, match=rf"\b{name}\b"):
                attach(model)
    settings = [each for each in REFUSED if hasattr(kind, each)]
    assert len(settings) >= 7
    for name in settings:
        with monkeypatch.context() as patch:
            [declares] = [each for each in kind.__mro__ if name in vars(each)]
            patch.delattr(declares, name)
            patch.delitem(vars(model.config), name)
            with pytest.raises(ValueError, match=rf"has no {name}\b"):
                attach(model)
    with monkeypatch.context() as patch:
        patch.setattr(replay, "get_replay_topk", lambda self, topk, scores: None)
        with pytest.raises(ValueError, match="does not begin with scores, topk"):
            attach(model)
    for name in ("routing", "gating"):  # by these a router is known
        with monkeypatch.context() as patch:
            for each in type(router).__mro__:
                if name in vars(each):
                    patch.delattr(each, name)
            with pytest.raises(ValueError, match=rf"{name}\(\)"):
                attach(model)
    attach(model).detach()

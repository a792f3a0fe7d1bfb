"""Gates of released NeMo Automodel choose what they are given, and weigh it as Automodel does."""

import sys

import pytest
import routecap_replay.automodel
import torch
import torch.utils.checkpoint
from nemo_automodel.components.moe.config import MoEConfig
from nemo_automodel.components.moe.layers import Gate
from nemo_automodel.components.moe.router_replay import RouterReplay
from routecap_replay import ReplayError
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B

EXPERTS, K, TOKENS, WIDTH = 8, 2, 12, 16
attach = routecap_replay.automodel.attach


def config_of(**changes):
    settings = dict(
        dim=WIDTH, inter_dim=32, moe_inter_dim=16, n_routed_experts=EXPERTS, n_shared_experts=0, n_activated_experts=K, n_expert_groups=1,
        n_limited_groups=1, train_gate=True, gate_bias_update_factor=0.0, aux_loss_coeff=0.0, score_func="softmax", route_scale=1.0,
        norm_topk_prob=False,
    )  # fmt: skip
    return MoEConfig(**{**settings, **changes})


class Layer(torch.nn.Module):
    """A gate, and as its experts one matrix for each."""

    def __init__(self, config):
        super().__init__()
        self.mlp = torch.nn.Module()
        self.mlp.gate = Gate(config)
        torch.nn.init.normal_(self.mlp.gate.weight)
        self.experts = torch.nn.Parameter(torch.randn(EXPERTS, WIDTH, WIDTH) / 4)

    def forward(self, hidden):
        weights, indices, _ = self.mlp.gate(hidden, torch.ones(len(hidden), dtype=torch.bool), None)
        return hidden + torch.einsum("tk,tkij,tj->ti", weights, self.experts[indices], hidden)


class Model(torch.nn.Module):
    """Four layers, of which the first is dense, and one that predicts ahead."""

    def __init__(self, checkpointed=False, **settings):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleDict(
            {"0": torch.nn.Linear(WIDTH, WIDTH)}
            | {str(layer): Layer(config_of(**settings)) for layer in (1, 2, 3)}
        )
        self.mtp = torch.nn.ModuleDict(
            {"layers": torch.nn.ModuleList([Layer(config_of(**settings))])}
        )
        self.checkpointed = checkpointed

    def forward(self, hidden):
        for layer in self.layers.values():
            hidden = (
                torch.utils.checkpoint.checkpoint(layer, hidden, use_reentrant=False)
                if self.checkpointed
                else layer(hidden)
            )
        return hidden + self.mtp["layers"][0](hidden)


def rows_of(seed):
    generator = torch.Generator().manual_seed(seed)
    return {
        layer: (
            torch.stack(
                [torch.randperm(EXPERTS, generator=generator)[:K] for _ in range(TOKENS)]
            ).to(torch.uint8)
        )
        for layer in (1, 2, 3)
    }


def chosen(model):
    """What the gates put out, by layer."""
    seen = {layer: [] for layer in (1, 2, 3)}
    for layer in seen:
        model.layers[str(layer)].mlp.gate.register_forward_hook(
            lambda gate, args, output, layer=layer: seen[layer].append(output[:2])
        )
    return seen


@pytest.mark.parametrize("enabled", [False, True])
@pytest.mark.parametrize(
    "scores",
    [
        {},
        {"softmax_before_topk": True},
        {
            "score_func": "sigmoid",
            "norm_topk_prob": True,
            "n_expert_groups": 4,
            "n_limited_groups": 2,
        },
    ],
    ids=["softmax of the chosen", "softmax of all", "sigmoid in groups"],
)
def test_rows_are_forced_by_layer_with_live_weights(enabled, scores):
    RouterReplay.clear_registry()
    model, rows = Model(enable_routing_replay=enabled, **scores), rows_of(1)
    hidden = torch.randn(TOKENS, WIDTH)
    seen, inputs = chosen(model), []
    model.layers["1"].mlp.gate.register_forward_pre_hook(lambda gate, args: inputs.append(args[0]))
    with attach(model) as replay:
        model(hidden)
        with replay(rows):
            model(hidden).sum().backward()
        report = replay.report()
    model(hidden)
    assert replay.live == ("mtp.layers.0.mlp.gate",) and [
        router.layer for router in replay.routers
    ] == [1, 2, 3]
    for layer, calls in seen.items():
        live, forced, after = (indices for _, indices in calls)
        assert (
            torch.equal(forced, rows[layer].long())
            and not torch.equal(live, forced)
            and torch.equal(after, live)
        )
        assert (
            model.layers[str(layer)]
            .mlp.gate.weight.grad.abs()
            .amax(1)[rows[layer].long().unique()]
            .all()
        )
    expected = weighed(model.layers["1"].mlp.gate, inputs[1], rows[1], scores)
    assert torch.allclose(seen[1][1][0], expected, atol=1e-6)
    assert report.replayed == 3 * TOKENS


def weighed(gate, hidden, rows, scores):
    """What a gate of these settings puts out beside the experts of each row."""
    logits, ids = hidden @ gate.weight.float().T, rows.long()
    scale = scores.get("route_scale", 1)
    if "softmax_before_topk" in scores:
        return logits.softmax(-1).gather(1, ids) * scale
    if "score_func" in scores:
        return torch.nn.functional.normalize(logits.sigmoid().gather(1, ids), p=1, dim=-1) * scale
    return logits.gather(1, ids).softmax(-1) * scale


SCALED = {"score_func": "sigmoid", "norm_topk_prob": True, "route_scale": 2.5}


@pytest.mark.parametrize("scores", [{}, SCALED], ids=["softmax", "normed and scaled"])
def test_weights_of_other_gates_give_their_output_bit_for_bit(scores):
    """They are put behind what the gate does: it would norm and scale them once more."""
    engine, model = Model(**scores), Model(**scores)
    seen, hidden = chosen(engine), torch.randn(TOKENS, WIDTH)
    with torch.no_grad():
        expected = engine(hidden)
    rows = {layer: ids for layer, [(_, ids)] in seen.items()}
    weights = {layer: each for layer, [(each, _)] in seen.items()}
    for layer in "123":
        model.layers[layer].mlp.gate.weight.data.normal_()
    with attach(model) as replay, torch.no_grad():
        with replay(rows):
            assert not torch.equal(model(hidden), expected)
        with replay(rows, weights=weights):
            assert torch.equal(model(hidden), expected)
        assert replay.report().unweighted == 0


def weights_of(seed, missing=()):
    """Of rows_of; without those of some rows."""
    drawn = torch.rand(4, TOKENS, K, generator=torch.Generator().manual_seed(seed)) + 0.5
    drawn[:, list(missing), 1] = torch.nan
    return dict(enumerate(drawn))


@pytest.mark.parametrize("missing", [(), (0, 3, 4)], ids=["all weights", "some weights"])
def test_through_weights_no_gradient_goes_to_the_gate(missing):
    """Against autograd of a layer written by hand."""
    model, rows, weights = Model(**SCALED), rows_of(1), weights_of(2, missing)
    layer, inputs, outputs = model.layers["3"], [], []
    layer.register_forward_hook(lambda module, args, output: inputs.append(args[0]))
    layer.register_forward_hook(lambda module, args, output: outputs.append(output))
    with attach(model) as replay:
        with replay(rows, weights=weights):
            model(torch.randn(TOKENS, WIDTH)).square().sum()
            inputs[0].retain_grad()
            target = torch.randn(TOKENS, WIDTH)
            (outputs[0] * target).sum().backward()
        report = replay.report()
    found = [layer.mlp.gate.weight.grad.clone(), layer.experts.grad.clone(), inputs[0].grad]
    model.zero_grad()
    hidden = inputs[0].detach().requires_grad_()
    own = weighed(layer.mlp.gate, hidden, rows[3], SCALED)
    there = ~weights[3].isnan().any(-1, keepdim=True)
    given = torch.where(there, weights[3], own)
    each = layer.experts[rows[3].long()]
    ((hidden + torch.einsum("tk,tkij,tj->ti", given, each, hidden)) * target).sum().backward()
    for one, two in zip(found, [layer.mlp.gate.weight.grad, layer.experts.grad, hidden.grad]):
        assert torch.allclose(one, two, rtol=1e-4, atol=1e-5)
    assert bool(found[0].any()) is bool(missing)
    assert [each.unweighted for each in report.layers] == [len(missing)] * 3


def test_a_loss_that_balances_the_load_still_teaches_a_gate_whose_weights_are_given():
    model = Model(aux_loss_coeff=0.1)
    with attach(model) as replay, replay(rows_of(1), weights=weights_of(2)):
        model(torch.randn(TOKENS, WIDTH)).sum().backward()
    assert all(model.layers[layer].mlp.gate.weight.grad.any() for layer in "123")


def test_checkpointing_chooses_what_its_own_forward_chose_in_any_order():
    """Automodel's own replay has to stay open until its backward, and has one set of rows."""
    model, batches = Model(checkpointed=True), [rows_of(seed) for seed in range(3)]
    batches[1][2] = batches[1][2].to(torch.int16).index_fill(0, torch.arange(3), -1)
    hidden, seen = torch.randn(TOKENS, WIDTH, requires_grad=True), chosen(model)
    weights = [weights_of(3, [1]), None, weights_of(4)]
    with attach(model) as replay:
        losses = []
        for rows, of_rows in zip(batches, weights, strict=True):
            with replay(rows, weights=of_rows):
                losses.append(model(hidden).sum())
        for number in (2, 0, 1):
            losses[number].backward()
        report = replay.report()
    for layer, calls in seen.items():
        indices = [each for _, each in calls]
        assert len(indices) == 6 and all(
            torch.equal(indices[3 + turn], indices[number]) for turn, number in enumerate((2, 0, 1))
        )
        assert torch.equal(indices[2], batches[2][layer].long())
        assert all(torch.equal(calls[i][0], weights[2][layer]) for i in (2, 3))
        assert torch.equal(calls[5][0], calls[1][0])
    assert report.unweighted == 3 and report.lost == 3 and report.passes == 3


class Part(Model):
    """Some of the layers of a Model, as a pipeline's stage has them."""

    def __init__(self, layers, **settings):
        super().__init__(**settings)
        for layer in {"0", "1", "2", "3"} - set(layers):
            del self.layers[layer]
        self.last = "3" in layers
        if not self.last:
            del self.mtp

    def forward(self, hidden):
        hidden = hidden.flatten(0, 1)
        for layer in self.layers.values():
            hidden = torch.utils.checkpoint.checkpoint(layer, hidden, use_reentrant=False)
        if self.last:
            hidden = hidden + self.mtp["layers"][0](hidden)
        return hidden.unflatten(0, (1, -1))


def test_virtual_stages_and_recompute_under_the_interleaved_schedule(alone):
    """A rank with two stages, of which the first begins with a dense layer, and four
    micro-batches.
    """
    parts = [Part("01"), Part("23")]
    like = torch.randn(1, TOKENS, WIDTH, requires_grad=True)
    stages = [
        PipelineStage(part, number, 2, like.device, input_args=like, output_args=like)
        for number, part in enumerate(parts)
    ]
    loss = lambda output, target: (output - target).square().mean()
    schedule = ScheduleInterleaved1F1B(stages, 4, loss_fn=loss)
    batches, hidden = [rows_of(seed) for seed in range(4)], torch.randn(4, TOKENS, WIDTH)
    seen, weights = {}, [weights_of(seed) for seed in range(4)]
    for part in parts:
        for name, layer in part.layers.items():
            if name != "0":
                layer.mlp.gate.register_forward_hook(
                    lambda gate, args, output, layer=int(name): seen.setdefault(layer, []).append(
                        (torch._C._current_graph_task_id() != -1, *output[:2])
                    )
                )
    with attach(parts) as replay:
        with replay.schedule(stages, batches, weights=weights):
            schedule.step(hidden, target=torch.randn(4, TOKENS, WIDTH))
        report = replay.report()
        with pytest.raises(ReplayError, match="rows of 3 micro-batches, none of 3"):
            with replay.schedule(stages, batches[:3]):
                schedule.step(hidden, target=hidden)
        with pytest.raises(ReplayError, match="stage 0 of this rank ran micro-batch 0 0 times"):
            with replay.schedule(stages, batches):
                pass
    assert report.passes == 8 and report.replayed == 4 * 3 * TOKENS
    for layer in (1, 2, 3):
        for backward in (False, True):
            chosen = [call[1:] for call in seen[layer] if call[0] == backward][:4]
            assert len(chosen) == 4
            for (given, ids), rows, of_rows in zip(chosen, batches, weights):
                assert torch.equal(ids, rows[layer].long())
                assert torch.equal(given, of_rows[layer])


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("how", ["", "with RouterReplay", "sharded by FSDP2"])
def test_what_gates_choose_is_recorded_once_for_each_pass(checkpointed, how, alone):
    RouterReplay.clear_registry()
    model = Model(checkpointed, enable_routing_replay=how == "with RouterReplay").float()
    if how == "sharded by FSDP2":
        mesh = init_device_mesh("cpu", (1,))
        for layer in model.layers.values():
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    rows = rows_of(1)
    batches = torch.randn(3, TOKENS, WIDTH, requires_grad=True)
    with attach(model) as replay:
        with torch.no_grad():
            model(torch.randn(TOKENS, WIDTH))  # evaluation
        seen = chosen(model)
        with replay.record() as own:
            losses = [model(hidden).sum() for hidden in batches[:2]]
            with replay(rows):
                losses.append(model(batches[2]).sum())
            losses[1].backward()
        for number in (2, 0):
            losses[number].backward()
    assert len(own) == 3
    for layer, calls in seen.items():
        assert len(calls) == 3 + 3 * checkpointed
        for number in range(3):
            assert torch.equal(own.rows(number)[layer].long(), calls[number][1])
        assert torch.equal(own.rows(2)[layer], rows[layer].to(torch.int16))


def test_a_schedule_of_stages_is_recorded_by_micro_batch(alone):
    parts = [Part("01"), Part("23")]
    like = torch.randn(1, TOKENS, WIDTH, requires_grad=True)
    stages = [
        PipelineStage(part, number, 2, like.device, input_args=like, output_args=like)
        for number, part in enumerate(parts)
    ]
    loss = lambda output, target: (output - target).square().mean()
    schedule = ScheduleInterleaved1F1B(stages, 4, loss_fn=loss)
    hidden = torch.randn(4, TOKENS, WIDTH)
    with attach(parts) as replay, replay.record() as own:
        schedule.step(hidden, target=torch.randn(4, TOKENS, WIDTH))
    assert len(own) == 4 and own.ids(0).shape == (3, TOKENS, K)
    for number in range(4):  # each alone, stage by stage
        out = hidden[number : number + 1]
        for part in parts:
            seen = {}
            for name, layer in part.layers.items():
                if name != "0":
                    layer.mlp.gate.register_forward_hook(
                        lambda gate, args, output, name=name, seen=seen: seen.update(
                            {int(name): output[1]}
                        )
                    )
            with torch.no_grad():
                out = part(out)
            for layer, ids in seen.items():
                assert torch.equal(own.rows(number)[layer].long(), ids)


def test_its_own_recording_goes_on():
    RouterReplay.clear_registry()
    model, hidden = Model(enable_routing_replay=True), torch.randn(TOKENS, WIDTH)
    seen = chosen(model)
    with attach(model), RouterReplay.record():
        model(hidden)
        recorded = RouterReplay.collect()
    assert all(torch.equal(recorded[layer - 1], seen[layer][0][1]) for layer in (1, 2, 3))


def test_what_does_not_fit_is_named():
    model, rows = Model(), rows_of(1)
    with attach(model) as replay, torch.no_grad():
        with (
            pytest.raises(ReplayError, match=r"no rows for layers\.2\.mlp\.gate:"),
            replay({1: rows[1], 3: rows[3]}),
        ):
            model(torch.randn(TOKENS, WIDTH))
        with pytest.raises(ReplayError, match=r"layers\.1\.mlp\.gate has 13 x 2"), replay(rows):
            model(torch.randn(TOKENS + 1, WIDTH))
    with pytest.raises(ValueError, match="no gates of Automodel"):
        attach(torch.nn.Linear(1, 1))
    model.layers["1"].mlp.gate.use_routing_core = True
    with pytest.raises(ValueError, match="CUDA graph"):
        attach(model)


def called(kind, name):
    """The same class by another name."""
    own = {key: each for key, each in vars(kind).items() if key not in ("__dict__", "__weakref__")}
    return type(name, kind.__bases__, own)


def test_what_automodel_renamed_is_named(monkeypatch):
    """An attribute that was not found stood for a gate that is none: it was routed live, or in a
    graph."""
    model = Model()
    gate = model.layers["2"].mlp.gate
    for name in ("router_replay", "n_experts", "use_routing_core"):
        with monkeypatch.context() as patch:
            patch.delattr(gate, name)
            with pytest.raises(ValueError, match=rf"layers\.2\.mlp\.gate \(Gate\) has no {name}"):
                attach(model)
    with monkeypatch.context() as patch:  # as Gemma's
        patch.setattr(gate, "__class__", called(Gate, "Renamed"))
        with pytest.raises(ValueError, match=r"layers\.2\.mlp\.gate is a Renamed, and no Gate"):
            attach(model)
    ahead = Model()
    ahead.ahead = ahead.mtp  # whose layers count apart
    del ahead.mtp
    with pytest.raises(ValueError, match=r"ahead\.layers\.0\.mlp\.gate are in different lists"):
        attach(ahead)
    model.blocks = model.layers
    del model.layers
    with pytest.raises(ValueError, match=r"blocks\.1\.mlp\.gate is in none of a decoder's layers"):
        attach(model)


def test_a_gate_that_puts_out_no_weight_of_each_expert_is_named(monkeypatch):
    model, forward = Model(), Gate.forward
    monkeypatch.setattr(Gate, "forward", lambda *args: forward(*args)[1::-1])
    with attach(model) as replay, pytest.raises(ReplayError, match="does not put out a weight"):
        with replay(rows_of(1), weights=weights_of(1)):
            model(torch.randn(TOKENS, WIDTH))


def test_a_gate_that_asks_another_method_does_not_pass_for_replayed(monkeypatch):
    model, rows = Model(), rows_of(1)
    monkeypatch.setattr(
        sys.modules[Gate.__module__], "replay_selection", lambda replay, indices: indices
    )
    with attach(model) as replay, pytest.raises(ReplayError, match="did not run"), replay(rows):
        model(torch.randn(TOKENS, WIDTH))

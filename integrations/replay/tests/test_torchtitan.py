"""Mixtures of experts of released torchtitan choose what they are given, and weigh it as
torchtitan does.

Its attention needs a compiler; so a linear layer stands where that would.
"""

from __future__ import annotations

import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import routecap_replay.torchtitan
import torch
import torch.utils.checkpoint
from routecap_replay import ReplayError
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B

# The only one that wants Triton.
sys.modules["torchtitan.distributed.minimal_async_ep.kernels"] = mock.MagicMock()
from torchtitan.models.common import config_utils as titan
from torchtitan.models.common.moe import TokenChoiceTopKRouter

# The router computes in float32; on a CPU autocast has no such type, and says so.
pytestmark = pytest.mark.filterwarnings("ignore:In CPU autocast")

EXPERTS, K, BATCH, LENGTH, WIDTH = 8, 2, 2, 6, 16
TOKENS = BATCH * LENGTH
attach = routecap_replay.torchtitan.attach


def moe_of(**changes: Any) -> Any:
    random = partial(torch.nn.init.normal_, std=0.3)
    router = {"score_func": "softmax", **changes}
    made = titan.make_moe_config(
        num_experts=EXPERTS,
        router=titan.make_router_config(
            dim=WIDTH, num_experts=EXPERTS, top_k=K, gate_param_init={"weight": random}, **router
        ),
        routed_experts=titan.make_routed_experts_config(
            dim=WIDTH,
            hidden_dim=32,
            num_experts=EXPERTS,
            top_k=K,
            param_init=dict.fromkeys(("w1_EFD", "w2_EDF", "w3_EFD"), random),
            comm_backend="standard",
        ),
    ).build()
    made.init_states()
    return made


class Block(torch.nn.Module):
    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.attention, self.moe = torch.nn.Linear(WIDTH, WIDTH), moe_of(**settings)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden + self.attention(hidden)
        out: torch.Tensor = hidden + self.moe(hidden)
        return out


class Model(torch.nn.Module):
    """Four layers, of which the first is dense, and one that predicts ahead; or some of them."""

    def __init__(self, checkpointed: bool = False, layers: str = "0123", **settings: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        made = {"0": torch.nn.Linear(WIDTH, WIDTH)} | {each: Block(**settings) for each in "123"}
        self.layers = torch.nn.ModuleDict({each: made[each] for each in layers})
        self.mtp_layers = torch.nn.ModuleList([Block(**settings)] if "3" in layers else [])
        self.checkpointed = checkpointed

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for layer in [*self.layers.values(), *self.mtp_layers]:
            hidden = (
                torch.utils.checkpoint.checkpoint(layer, hidden, use_reentrant=False)
                if self.checkpointed
                else layer(hidden)
            )
        return hidden


def rows_of(seed: int) -> dict[int, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    draw = lambda: torch.randperm(EXPERTS, generator=generator)[:K].to(torch.uint8)
    return {layer: torch.stack([draw() for _ in range(TOKENS)]) for layer in (1, 2, 3)}


def seen_in(*models: Model) -> dict[int, list[tuple[bool, Any, Any]]]:
    """What the experts of each layer are given: whether autograd ran, scores and ids."""
    seen: dict[int, list[tuple[bool, Any, Any]]] = {1: [], 2: [], 3: []}
    for model in models:
        for name, layer in model.layers.items():
            if name != "0":

                def hook(module: Any, args: Any, layer: int = int(name)) -> None:
                    again = torch._C._current_graph_task_id() != -1
                    seen[layer].append((again, *(each.reshape(TOKENS, K) for each in args[1:3])))

                layer.moe.routed_experts.register_forward_pre_hook(hook)
    return seen


@pytest.mark.parametrize(
    "scores",
    [
        {"route_norm": True},
        {"score_func": "sigmoid", "route_norm": True, "route_scale": 2.5},
        {"score_func": "sigmoid", "num_expert_groups": 4, "num_limited_groups": 2},
        {"num_expert_groups": 4, "num_limited_groups": 1},
    ],
    ids=["softmax", "sigmoid", "groups", "groups as many as k"],
)
def test_rows_are_forced_by_layer_with_live_weights(scores: dict[str, Any]) -> None:
    model, rows, hidden = Model(**scores), rows_of(1), torch.randn(BATCH, LENGTH, WIDTH)
    for block in list(model.layers.values())[1:]:
        block.moe.expert_bias_E.normal_(std=0.1)
    seen, inputs = seen_in(model), []
    first = model.layers["1"].moe
    first.router.register_forward_pre_hook(lambda module, args: inputs.append(args[0]))
    with attach(model) as replay:
        model(hidden)
        before = first.tokens_per_expert_E.clone()
        with replay(rows):
            model(hidden).sum().backward()
        report = replay.report()
    counted = first.tokens_per_expert_E - before
    model(hidden)
    assert replay.live == ("mtp_layers.0.moe.router",)
    assert [router.layer for router in replay.routers] == [1, 2, 3]
    assert report.replayed == 3 * TOKENS and report.invalid == report.lost == 0
    for layer, calls in seen.items():
        live, forced, after = (ids for _, _, ids in calls)
        given = rows[layer].long()
        assert torch.equal(forced, given) and not torch.equal(live, given)
        assert torch.equal(after, live)
        gradient = model.layers[str(layer)].moe.router.gate.weight.grad
        assert gradient.abs().amax(1)[given.unique()].all()
    assert torch.equal(counted, torch.bincount(rows[1].flatten(), minlength=EXPERTS).float())
    assert torch.allclose(
        seen[1][1][1], weighed(first.router, inputs[1], rows[1], scores), atol=1e-6
    )


def weighed(router: Any, hidden: Any, rows: Any, scores: dict[str, Any]) -> Any:
    """By what a router of these settings multiplies the experts of each row."""
    logits = (hidden @ router.gate.weight.T).reshape(TOKENS, EXPERTS)
    weights = logits.sigmoid() if scores.get("score_func") else logits.softmax(-1)
    weights = weights.gather(1, rows.long())
    if scores.get("route_norm"):
        weights = weights / weights.sum(-1, keepdim=True)
    return weights * scores.get("route_scale", 1.0)


SCALED = {"score_func": "sigmoid", "route_norm": True, "route_scale": 2.5}


@pytest.mark.parametrize("scores", [{}, SCALED], ids=["softmax", "normed and scaled"])
def test_weights_of_another_router_give_its_output_bit_for_bit(scores: dict[str, Any]) -> None:
    """They are put behind what the router does: it would norm and scale them once more."""
    engine, hidden = Model(**scores), torch.randn(BATCH, LENGTH, WIDTH)
    seen = seen_in(engine)
    expected = engine.layers["3"](engine.layers["2"](engine.layers["1"](hidden)))
    rows = {layer: ids for layer, [(_, _, ids)] in seen.items()}
    weights = {layer: each for layer, [(_, each, _)] in seen.items()}
    model = Model(layers="123", **scores)
    model.mtp_layers = torch.nn.ModuleList()
    for layer, block in model.layers.items():
        block.load_state_dict(engine.layers[layer].state_dict())
        block.moe.router.gate.weight.data.normal_()
    with attach(model) as replay, torch.no_grad():
        with replay(rows):
            assert not torch.equal(model(hidden), expected)
        with replay(rows, weights=weights):
            assert torch.equal(model(hidden), expected)
        stacked = [torch.stack([each[layer] for layer in (3, 1, 2)]) for each in (rows, weights)]
        with replay(stacked[0], layers=[3, 1, 2], weights=stacked[1]):
            assert torch.equal(model(hidden), expected)
        assert replay.report().unweighted == 0


def weights_of(seed: int, missing: Any = ()) -> dict[int, torch.Tensor]:
    """Of rows_of; without those of some rows."""
    drawn = torch.rand(4, TOKENS, K, generator=torch.Generator().manual_seed(seed)) + 0.5
    drawn[:, list(missing), 1] = torch.nan
    return dict(enumerate(drawn))


@pytest.mark.parametrize("missing", [(), (0, 3, 4)], ids=["all weights", "some weights"])
@pytest.mark.parametrize("scores", [{}, SCALED], ids=["softmax", "normed and scaled"])
def test_through_weights_no_gradient_goes_to_the_gate(
    scores: dict[str, Any], missing: tuple[int, ...]
) -> None:
    """Against autograd of what the experts are multiplied by, written by hand."""
    model, rows, weights = Model(**scores), rows_of(1), weights_of(2, missing)
    kept = {layer: each.clone() for layer, each in weights.items()}
    rows[3] = rows[3].to(torch.int16).index_fill(0, torch.tensor([4, 5]), -1)
    router, inputs, given = model.layers["2"].moe.router, [], []
    router.register_forward_pre_hook(lambda module, args: inputs.append(args[0].detach()))

    def keep(module: Any, args: Any) -> None:
        args[1].requires_grad_().retain_grad()
        given.append(args[1])

    model.layers["2"].moe.routed_experts.register_forward_pre_hook(keep)
    with attach(model) as replay:
        with replay(rows, weights=weights):
            model(torch.randn(BATCH, LENGTH, WIDTH)).square().sum().backward()
        report = replay.report()
    found = router.gate.weight.grad.clone()
    router.zero_grad()
    there = ~weights[2].isnan().any(-1, keepdim=True)
    own = weighed(router, inputs[0], rows[2], scores)
    expected = torch.where(there, weights[2], own)
    assert torch.allclose(given[0].reshape(TOKENS, K), expected, atol=1e-6)
    expected.backward(given[0].grad.reshape(TOKENS, K))
    assert torch.allclose(found, router.gate.weight.grad, rtol=1e-4, atol=1e-5)
    assert bool(found.any()) is bool(missing)
    assert [each.unweighted for each in report.layers] == [len(missing)] * 2 + [2 * bool(missing)]
    given_and_own = [each.masked_fill(~there, 0).sum().item() for each in (weights[2], own)]
    assert report.layers[1].weight_ratio == pytest.approx(given_and_own[0] / given_and_own[1])
    assert all(torch.equal(kept[n].nan_to_num(), weights[n].nan_to_num()) for n in kept)


def test_rows_that_are_routed_live_have_no_weights_of_other_experts() -> None:
    model, rows, hidden = Model(), rows_of(1), torch.randn(BATCH, LENGTH, WIDTH)
    valid = torch.ones(TOKENS, dtype=torch.bool)
    valid[3] = False
    rows[1] = rows[1].to(torch.int16)
    rows[1][0], rows[1][1], rows[1][2] = -1, 0, -2  # lost, no choice, and wanted live
    seen, weights = seen_in(model), weights_of(5)
    with attach(model) as replay, torch.no_grad():
        model(hidden)
        with replay(rows, valid=valid, weights=weights):
            model(hidden)
        [layer, *_] = replay.report().layers
    (_, live, _), (_, given, _) = seen[1]
    assert torch.equal(given[:4], live[:4]) and torch.equal(given[4:], weights[1][4:])
    assert (layer.lost, layer.invalid, layer.unweighted) == (2, 1, 0)


def test_checkpointing_chooses_what_its_own_forward_chose_in_any_order() -> None:
    model, batches = Model(checkpointed=True), [rows_of(seed) for seed in range(3)]
    batches[1][2] = batches[1][2].to(torch.int16).index_fill(0, torch.arange(3), -1)
    weights = [weights_of(3, [1]), None, weights_of(4)]
    hidden, seen = torch.randn(BATCH, LENGTH, WIDTH, requires_grad=True), seen_in(model)
    with attach(model) as replay:
        losses = []
        for rows, of_rows in zip(batches, weights, strict=True):
            with replay(rows, weights=of_rows):
                losses.append(model(hidden).sum())
        for number in (2, 0, 1):
            losses[number].backward()
        report = replay.report()
    for layer, calls in seen.items():
        assert [again for again, _, _ in calls] == [False] * 3 + [True] * 3
        ids, given = [each for _, _, each in calls], [each for _, each, _ in calls]
        for turn, number in enumerate((2, 0, 1)):
            assert torch.equal(ids[3 + turn], ids[number])
            assert torch.equal(given[3 + turn], given[number])
        assert torch.equal(ids[2], batches[2][layer].long())
        assert torch.equal(given[2], weights[2][layer])
    assert report.lost == 3 and report.passes == 3 and report.unweighted == 3


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize(
    "scores",
    [
        {},
        {"score_func": "sigmoid", "num_expert_groups": 4, "num_limited_groups": 2},
        {"num_expert_groups": 4, "num_limited_groups": 1},
    ],
    ids=["softmax", "groups", "one group"],
)
def test_what_routers_choose_is_recorded_once_for_each_pass(
    checkpointed: bool, scores: dict[str, Any]
) -> None:
    model, rows = Model(checkpointed, **scores), rows_of(1)
    batches = torch.randn(3, BATCH, LENGTH, WIDTH, requires_grad=True)
    with attach(model) as replay:
        with torch.no_grad():
            model(torch.randn(BATCH, LENGTH, WIDTH))  # evaluation
        seen = seen_in(model)
        with replay.record() as own:
            losses = [model(hidden).sum() for hidden in batches[:2]]
            with replay(rows):
                losses.append(model(batches[2]).sum())
            losses[1].backward()
        for number in (2, 0):
            losses[number].backward()
    assert len(own) == 3
    for layer, calls in seen.items():
        forward = [ids for again, _, ids in calls if not again]
        assert len(forward) == 3 and len(calls) == 3 + 3 * checkpointed
        for number, ids in enumerate(forward):
            assert torch.equal(own.rows(number)[layer].long(), ids)
        assert torch.equal(own.rows(2)[layer], rows[layer].to(torch.int16))


def test_virtual_stages_and_recompute_under_the_interleaved_schedule(alone: None) -> None:
    parts = [Model(True, "01"), Model(True, "23")]
    like = torch.randn(BATCH, LENGTH, WIDTH, requires_grad=True)
    stages = [
        PipelineStage(part, number, 2, like.device, input_args=like, output_args=like)
        for number, part in enumerate(parts)
    ]
    schedule = ScheduleInterleaved1F1B(stages, 4, loss_fn=torch.nn.functional.mse_loss)
    batches, hidden = [rows_of(seed) for seed in range(4)], torch.randn(4 * BATCH, LENGTH, WIDTH)
    weights = [weights_of(seed) for seed in range(4)]
    seen = seen_in(*parts)
    with attach(parts) as replay:
        with pytest.raises(ValueError, match="rows of 4 micro-batches, and weights of 3"):
            with replay.schedule(stages, batches, weights=weights[1:]):
                pass
        with replay.record() as recorded, replay.schedule(stages, batches, weights=weights):
            schedule.step(hidden, target=torch.randn_like(hidden))
        report = replay.report()
    for number, rows in enumerate(batches):
        for layer, ids in recorded.rows(number).items():
            assert torch.equal(ids, rows[layer].to(torch.int16))
    assert report.passes == 8 and report.replayed == 4 * 3 * TOKENS
    for layer, calls in seen.items():
        for backward in (False, True):
            chosen = [(scores, ids) for again, scores, ids in calls if again == backward]
            assert len(chosen) == 4
            for (scores, ids), rows, of_rows in zip(chosen, batches, weights):
                assert torch.equal(ids, rows[layer].long())
                assert torch.equal(scores, of_rows[layer])


def test_a_rank_of_a_sharded_sequence_gives_its_own_tokens() -> None:
    """As under tensor parallelism with sequence parallelism, where a router sees a DTensor."""
    result = subprocess.run(
        [sys.executable, Path(__file__).with_name("sharded.py")], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "its own rows, as a DTensor" in result.stdout


class Descendant(TokenChoiceTopKRouter):
    """Chooses as its parent does, and rewrites what it chose."""

    def forward(self, *args: Any) -> Any:
        scores, ids, whole = super().forward(*args)
        return scores, ids.clone(), whole


class Another(TokenChoiceTopKRouter):
    """Puts out what it chose, and no weight of each."""

    def forward(self, *args: Any) -> Any:
        scores, ids, whole = super().forward(*args)
        return scores.sum(-1), ids, whole


def test_what_does_not_fit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows, hidden = Model(), rows_of(1), torch.randn(BATCH, LENGTH, WIDTH)
    router = model.layers["1"].moe.router
    with attach(model) as replay, torch.no_grad():
        with (
            pytest.raises(ReplayError, match=r"no rows for layers\.2\.moe\.router:"),
            replay({1: rows[1], 3: rows[3]}),
        ):
            model(hidden)
        with pytest.raises(ReplayError, match=r"layers\.1\.moe\.router has 10 x 2"), replay(rows):
            model(hidden[:, 1:])
        weights = weights_of(1)
        for wrong, said in {
            "no weights for layers.2.moe.router:": {1: weights[1], 3: weights[3]},
            "layers.1.moe.router are 11 x 2 of": {n: each[1:] for n, each in weights.items()},
            "of torch.int32: give 12 x 2 floats": {n: each.int() for n, each in weights.items()},
        }.items():
            with pytest.raises(ReplayError, match=re.escape(wrong)), replay(rows, weights=said):
                model(hidden)
        router._debug_force_load_balance = True
        with pytest.raises(ReplayError, match="does not put out what it chose"), replay(rows):
            model(hidden)
        compiled = torch.compile(model.layers["2"], backend="eager", fullgraph=True)
        with pytest.raises(Exception, match=r"layers\.2\.moe\.router is compiled"):
            compiled(hidden)
    with pytest.raises(ValueError, match="moe_force_load_balance"):
        attach(model)
    router._debug_force_load_balance = False
    router.__class__ = Descendant
    with attach(model) as replay, pytest.raises(ReplayError, match="report its class"):
        with replay(rows):
            model(hidden)
    router.__class__ = Another
    with attach(model) as replay, pytest.raises(ReplayError, match="has no weight for each"):
        with replay(rows, weights=weights):
            model(hidden)
    router.__class__ = Descendant
    with attach(model) as replay, pytest.raises(ReplayError, match="was not seen to choose"):
        with replay.record():
            model(hidden)
    router.__class__ = TokenChoiceTopKRouter
    hybrid = called("HybridEPTokenDispatcher", non_blocking_capacity_factor=0.5)
    monkeypatch.setattr(model.layers["3"].moe.routed_experts, "token_dispatcher", hybrid)
    with pytest.raises(ValueError, match="capacity 0.5"):
        attach(model)
    monkeypatch.undo()
    model.layers["1"].compile(backend="eager")
    with pytest.raises(ValueError, match=r"layers\.1\.moe\.router is compiled"):
        attach(model)
    with pytest.raises(ValueError, match="no TokenChoiceTopKRouter"):
        attach(torch.nn.Linear(1, 1))


def called(name: str, **content: Any) -> Any:
    """One of a class of this name."""
    return type(name, (), content)()


def test_what_torchtitan_renamed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting that was not found stood for one that is not set: experts dropped tokens that they
    were given."""
    model = Model()
    block = model.layers["2"].moe
    things = dict.fromkeys(("num_experts", "top_k", "_debug_force_load_balance"), block.router)
    things["token_dispatcher"] = block.routed_experts
    for name, thing in things.items():
        with monkeypatch.context() as patch:
            patch.delattr(thing, name)
            with pytest.raises(ValueError, match=rf"layers\.2\.moe\.router.* has no {name}\b"):
                attach(model)
    experts = block.routed_experts
    del block.routed_experts
    with pytest.raises(ValueError, match=r"layers\.2\.moe\.router.* has no routed_experts"):
        attach(model)
    block.routed_experts = experts
    with monkeypatch.context() as patch:
        patch.setattr(experts, "token_dispatcher", called("HybridEPTokenDispatcher"))
        with pytest.raises(ValueError, match="has no non_blocking_capacity_factor"):
            attach(model)
        patch.setattr(experts, "token_dispatcher", called("OtherDispatcher"))
        with pytest.raises(ValueError, match="behind a OtherDispatcher"):
            attach(model)
    model.ahead = torch.nn.ModuleDict({"layers": model.mtp_layers})  # whose layers count apart
    del model.mtp_layers
    with pytest.raises(ValueError, match=r"ahead\.layers\.0\.moe\.router are in different lists"):
        attach(model)
    for layer in "123":
        model.layers[layer].moe.router = torch.nn.Identity()
    del model.ahead
    with pytest.raises(ValueError, match="no TokenChoiceTopKRouter"):
        attach(model)

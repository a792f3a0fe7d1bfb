"""slime and miles: rows come from the queues that they fill, and each is taken once.

Both patch Megatron-Core so that its choice of experts goes through a function of theirs. Here a
router's `router_replay` does that in released Megatron-Core. Where slime or miles cannot be
imported, a module with the same functions stands in for theirs.
"""

import importlib
import os
import sys
from types import ModuleType

import pytest
import routecap
import routecap_replay.slime
import torch
from routecap_replay import ReplayError

from small import K, LENGTH, MicroBatch, Seen, config_of, experts_of, model_of


pytestmark = pytest.mark.usefixtures("alone")


class Queue:
    """What both have at each router."""

    def __init__(self):
        self.top_indices_list, self.forward_index, self.backward_index = [], 0, 0

    def record(self, rows):
        self.top_indices_list.append(rows)

    def pop_forward(self):
        self.forward_index += 1
        return self.top_indices_list[self.forward_index - 1].to(torch.int32)

    def pop_backward(self):
        self.backward_index += 1
        return self.top_indices_list[self.backward_index - 1].to(torch.int32)


def stand_in(name, **content):
    """A module of that name, if there is none."""
    try:
        return importlib.import_module(name)
    except ImportError:
        parts = name.split(".")
        for end in range(1, len(parts)):
            sys.modules.setdefault(
                ".".join(parts[:end]), ModuleType(".".join(parts[:end]))
            ).__path__ = []
        module = sys.modules[name] = ModuleType(name)
        vars(module).update(content)
        return module


class Slime:
    def __init__(self, monkeypatch):
        self.module = stand_in("slime.utils.routing_replay")
        if not hasattr(self.module, "RoutingReplay"):
            self.module.ROUTING_REPLAY = None
            self.module.RoutingReplay = type("RoutingReplay", (Queue,), {"all_routing_replays": []})
            self.module.get_routing_replay_compute_topk = self._compute_topk
        self.queues = self.module.RoutingReplay.all_routing_replays
        self.queues.clear()
        monkeypatch.setenv("ENABLE_ROUTING_REPLAY", "1")
        self.monkeypatch = monkeypatch
        self.stage("fallthrough")

    def _compute_topk(self, old):
        def compute_topk(scores, topk, num_groups=None, group_topk=None):
            enabled = os.environ.get("ENABLE_ROUTING_REPLAY", "0") == "1"
            stage = os.environ["ROUTING_REPLAY_STAGE"]
            if not enabled or stage == "fallthrough":
                return old(scores, topk, num_groups=num_groups, group_topk=group_topk)
            queue = self.module.ROUTING_REPLAY
            ids = queue.pop_forward() if stage == "replay_forward" else queue.pop_backward()
            return scores.gather(1, ids.long()), ids

        return compute_topk

    def stage(self, name):
        self.monkeypatch.setenv("ROUTING_REPLAY_STAGE", name)

    def queue(self):
        queue = self.module.RoutingReplay()
        if queue not in self.queues:
            self.queues.append(queue)
        return queue

    def current(self, queue):
        self.module.ROUTING_REPLAY = queue

    def choice(self, old):
        return self.module.get_routing_replay_compute_topk(old)


class Manager:
    """Of miles."""

    def __init__(self):
        self.replays, self.now = [], None

    def create_replay(self):
        self.replays.append(Queue())
        return self.replays[-1]

    def set_current(self, queue):
        self.now = queue

    def get_current(self):
        return self.now

    def get_topk_fn(self, old, return_probs):
        return old


class Miles:
    def __init__(self, monkeypatch):
        module = stand_in("miles.utils.replay_base")
        if not hasattr(module, "routing_replay_manager"):
            module.routing_replay_manager = Manager()
        self.manager = module.routing_replay_manager
        self.manager.replays.clear()
        self.manager.enabled = True
        self.stage("fallthrough")

    def stage(self, name):
        self.manager.stage = name

    def queue(self):
        return self.manager.create_replay()

    def current(self, queue):
        self.manager.set_current(queue)

    def choice(self, old):
        return self.manager.get_topk_fn(old, True)


@pytest.fixture(params=[Slime, Miles])
def trainer(request, monkeypatch):
    for name in ("miles", "miles.utils", "miles.utils.replay_base"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield request.param(monkeypatch)
    for _, replay in routecap_replay.slime._replays.values():
        replay.detach()
    routecap_replay.slime._replays.clear()


class Patched:
    """In the place of a router's RouterReplay: what their patches of Megatron-Core do."""

    def __init__(self, trainer):
        self.trainer = trainer

    def get_replay_topk(self, scores, topk, num_groups, group_topk, default_compute_topk):
        return self.trainer.choice(default_compute_topk)(scores, topk, num_groups, group_topk)


def queued(trainer, **settings):
    """A model as they make it, and its queues by layer."""
    model, queues = model_of(config_of(**settings)), {}
    for module in model.modules():
        if hasattr(module, "router_replay"):
            module.routing_replay = queues[module.layer_number - 1] = trainer.queue()
            module.register_forward_pre_hook(
                lambda module, args: trainer.current(module.routing_replay)
            )
            module.router_replay = Patched(trainer)
    return model, queues


def fill(queues, batches):
    for batch in batches:
        for layer, queue in queues.items():
            queue.top_indices_list.append(batch.rows[layer].to(torch.int32))


def test_a_step_takes_each_entry_once_and_recompute_none(trainer):
    model, queues = queued(
        trainer, recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1
    )
    batches, seen = [MicroBatch(seed) for seed in range(3)], Seen(model)
    batches[1].rows[2] = batches[1].rows[2].to(torch.int32).index_fill(0, torch.arange(4), -1)
    batches[2].rows[3] = torch.zeros_like(batches[2].rows[3])
    fill(queues, batches)
    routecap_replay.slime.before_log_prob(None, [model], "")
    trainer.stage("replay_forward")
    with torch.no_grad():
        for batch in batches:
            batch.through(model)
    for queue in queues.values():
        assert queue.forward_index == 3
        queue.forward_index = queue.backward_index = 0  # as they do between the two
    routecap_replay.slime.before_train_step(None, 0, 0, [model], None, None)
    losses = []
    for batch in batches:
        losses.append(batch.through(model).sum())
    trainer.stage("replay_backward")
    for number in (1, 0, 2):
        losses[number].backward()
    replay = routecap_replay.slime.replay_of([model])
    forward, again = seen.maps(), seen.maps(again=True)
    for layer, queue in queues.items():
        assert queue.forward_index == queue.backward_index == 3
        for number, batch in enumerate(batches):
            rows = batch.rows[layer]
            good = (rows >= 0).all(-1) & (rows[:, 0] != rows[:, 1])
            for maps in (forward[layer][number], forward[layer][3 + number]):
                assert torch.equal(maps[good], experts_of(rows.clamp(min=0))[good])
                assert (maps.sum(-1) == K).all()
        assert all(
            torch.equal(again[layer][turn], forward[layer][3 + number])
            for turn, number in enumerate((1, 0, 2))
        )
    report = replay.report()
    assert (report.passes, report.lost, report.invalid) == (3, 4, LENGTH)
    trainer.stage("fallthrough")
    batches[0].through(model)
    assert replay.report().passes == 3


def test_queues_that_are_not_those_of_the_model_are_refused(trainer):
    """A decoder that was made anew leaves its first routers' queues behind (miles #2570)."""
    model, _ = queued(trainer)
    trainer.queue() if isinstance(trainer, Slime) else trainer.manager.replays.pop()
    with pytest.raises(ReplayError, match="queues"):
        routecap_replay.slime.before_log_prob(None, [model], "")
    with pytest.raises(ReplayError, match="no queues"):
        routecap_replay.slime.before_log_prob(None, [model_of(config_of())], "")


def renamed(monkeypatch, thing, name):
    """Its attribute has another name now."""
    monkeypatch.setattr(thing, "renamed", getattr(thing, name), raising=False)
    monkeypatch.delattr(thing, name)


def test_what_slime_or_miles_renamed_is_named(trainer, monkeypatch):
    """An attribute that was not found stood for one that is not set: ids went to the computation
    in another order, and their own replay went on beside this one."""
    model, queues = queued(trainer)
    [router, *_] = [each for each in model.modules() if hasattr(each, "routing_replay")]
    if isinstance(trainer, Slime):
        things = dict.fromkeys(
            ("ROUTING_REPLAY", "RoutingReplay", "get_routing_replay_compute_topk"), trainer.module
        )
        things["all_routing_replays"] = trainer.module.RoutingReplay
    else:
        things = dict.fromkeys(("replays", "enabled", "stage"), trainer.manager)
        things |= dict.fromkeys(("get_current", "get_topk_fn"), Manager)
        module = sys.modules["miles.utils.replay_base"]
        things["routing_replay_manager"] = module
    things["pop_forward"] = Queue
    things |= dict.fromkeys(("forward_index", "backward_index"), queues[1])
    things["routing_replay"] = router
    for name, thing in things.items():
        with monkeypatch.context() as patch:
            renamed(patch, thing, name)
            with pytest.raises(ReplayError, match=rf"\b{name}\b"):
                routecap_replay.slime.before_log_prob(None, [model], "")
    trainer.stage("replay_of_forward")
    routecap_replay.slime.before_log_prob(None, [model], "")
    with pytest.raises(ReplayError, match="'replay_of_forward' is no stage"):
        MicroBatch(1).through(model)


@pytest.mark.parametrize("trainer", [Slime], indirect=True)
def test_of_slimes_environment_and_of_its_order_another_name_is_said(trainer, monkeypatch):
    model, _ = queued(trainer)
    own = trainer.module.get_routing_replay_compute_topk

    def of_another_environment(old):
        os.environ.get("ENABLE_REPLAY_OF_ROUTING")
        return own(old)

    with monkeypatch.context() as patch:
        patch.setattr(trainer.module, "get_routing_replay_compute_topk", of_another_environment)
        with pytest.raises(ReplayError, match="ENABLE_ROUTING_REPLAY, ROUTING_REPLAY_STAGE"):
            routecap_replay.slime.before_log_prob(None, [model], "")
    monkeypatch.setattr(trainer.module, "ORDERED_TOPK_ROUTER", None, raising=False)
    with pytest.raises(ReplayError, match="no _capture_ordered_topk"):
        routecap_replay.slime.before_log_prob(None, [model], "")
    seen = []
    monkeypatch.setattr(trainer.module, "_capture_ordered_topk", seen.append, raising=False)
    routecap_replay.slime.before_log_prob(None, [model], "")
    MicroBatch(1).through(model)
    assert len(seen) == 3


def test_rows_that_slime_cannot_say_are_refused():
    """A column without an expert, or a second visit, would be replayed as something else."""
    for rules in ({"layer_min_k": [1, 2]}, {"layer_map": [3, 3], "layer_visit": [0, 1]}):
        routing = routecap.Routing.from_arrays([[[0, 1], [2, 3]]], experts=8, **rules)
        with pytest.raises(routecap.Error, match="cells with fewer, or visits of a layer"):
            routecap_replay.slime.rows(routing, 4)


def test_rows_of_a_routing_are_those_of_all_layers():
    ids = (
        torch.stack([torch.stack([torch.randperm(8)[:K] for _ in range(2)]) for _ in range(5)])
        .to(torch.uint8)
        .numpy()
    )
    valid = torch.ones(5, 2, dtype=torch.bool).numpy()
    valid[3, 1] = False
    routing = routecap.Routing.from_arrays(ids, experts=8, valid=valid, layer_map=[1, 3], first=2)
    rows = routecap_replay.slime.rows(routing, 4)
    assert rows.shape == (7, 4, K) and rows.dtype == "int32"
    assert (rows[:2] == -1).all() and (rows[:, [0, 2]] == -1).all() and (rows[5, 3] == -1).all()
    assert (rows[2:5, [1, 3]] == ids[:3]).all() and (rows[2:, 1] == ids[:, 0]).all()

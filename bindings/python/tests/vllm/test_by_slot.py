"""The face to 0.26, with stand-ins for what it replaces."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from engine import Model

from routecap.vllm import (
    _aux_output,
    _by_slot,
    _compiled,
    _hooks,
    _scheduler,
    _transport,
    routed_experts_capturer,
)
from routecap.vllm._prefixes import BlocksOf

BLOCK = 4


# ---- What is compiled


@pytest.mark.parametrize(("on_cuda", "alike"), [(True, True), (False, False)])
def test_what_is_compiled_has_one_name_with_capture_and_without(monkeypatch, on_cuda, alike):
    monkeypatch.setattr(_compiled, "engine_is_on_cuda", lambda: on_cuda)

    class ModelConfig:
        def __init__(self, captures):
            self.enable_return_routed_experts = captures

        def compute_hash(self):
            return f"all options: {vars(self)}"

    off = ModelConfig(False).compute_hash()
    for _ in range(2):  # the second changes nothing
        _compiled.compile_alike(ModelConfig)
    on = ModelConfig(True)
    assert ModelConfig(False).compute_hash() == off
    assert (on.compute_hash() == off) is alike
    assert on.enable_return_routed_experts


# ---- The worker


def scheduler_output(counts, resumed=(), over=()):
    return SimpleNamespace(
        num_scheduled_tokens=counts,
        scheduled_cached_reqs=SimpleNamespace(resumed_req_ids=set(resumed)),
        finished_req_ids=set(over),
        preempted_req_ids=None,
    )


class Runner:
    """A model runner as 0.26's, as far as the face looks at it."""

    def __init__(self):
        self.model = Model()
        self.model_config = self.model.model_config
        self.model_config.get_total_num_hidden_layers = lambda: len(self.model.moe)
        self.scheduler_config = SimpleNamespace(max_num_batched_tokens=64)
        self.max_model_len, self.device = 256, "cpu"
        self.requests, self.ran = {}, []
        self.positions = torch.zeros(64, dtype=torch.int64)
        self.execute_model = lambda output: self.ran.append("execute")
        self._bookkeeping_sync = lambda output: self.ran.append("bookkeep")

    def get_model(self):
        return self.model

    def step(self, rows, **more):
        """rows: (request, begin, count) each. Tokens are their positions, and 10 more for each
        letter of a request's name."""
        counts = {name: count for name, _, count in rows}
        output = scheduler_output(counts, **more)
        self.execute_model(output)
        self.input_batch = SimpleNamespace(req_ids=list(counts))
        tokens = [[10 * len(name) + p for p in range(b, b + n)] for name, b, n in rows]
        places = torch.tensor([p for _, b, n in rows for p in range(b, b + n)])
        self.positions[: len(places)] = places
        self.model(torch.tensor(sum(tokens, [])), places)
        self._bookkeeping_sync(output)


@pytest.fixture
def make():
    def made():
        runner = Runner()
        return runner, _by_slot.Capture(runner)

    yield made
    routed_experts_capturer.init_routed_experts_capturer_with_shared_cache(
        False, None, 0, 0, 0, "cpu"
    )


def ended(capture, name, rows):
    found = capture.capturer.end({name: rows})[name]
    found.routing.wait()
    return found


def expected(runner, name, rows):
    return runner.model.expected([10 * len(name) + p for p in range(rows)])


def test_rows_out_of_the_prefix_cache_are_those_of_whoever_computed_them(make):
    runner, capture = make()
    prefixes = capture.capturer.keep_prefixes(BLOCK, BLOCK, 32, False)
    runner.step([("a", 0, 10)])
    prefixes.step.fills.append(BlocksOf("a", 0, [5, 7]))
    prefixes.step.begins.append(BlocksOf("b", 0, [5, 7]))
    prefixes.send(None)
    runner.step([("a", 10, 1), ("b", 8, 3)])
    found = ended(capture, "b", 11)
    assert found.routing.complete
    layers = found.routing.layer_map
    np.testing.assert_array_equal(found.array()[:, layers], expected(runner, "a", 11))
    assert runner.ran == ["execute", "bookkeep"] * 2


def test_a_request_that_begins_anew_keeps_no_row(make):
    runner, capture = make()
    for resumed in ((), ["a"]):
        runner.step([("a", 8 if resumed else 0, 10)], resumed=resumed)
    found = ended(capture, "a", 18)
    there = found.validity()[:, found.routing.layer_map].all(axis=1)
    assert there.tolist() == [False] * 8 + [True] * 10


def test_layers_that_do_not_route_are_there_and_missing(make):
    runner, capture = make()
    runner.step([("a", 0, 6)])
    found = ended(capture, "a", 6)
    assert found.shape[1] == len(runner.model.moe) > len(found.routing.layer_map)
    dense = [i for i in range(found.shape[1]) if i not in found.routing.layer_map]
    assert (found.array()[:, dense] == -1).all() and not found.validity()[:, dense].any()
    assert not found.of("uint8").array()[:, dense].any()
    part = found[2:4]
    assert part.shape == (2, *found.shape[1:])
    np.testing.assert_array_equal(part.array(), found.array()[2:4])
    came = _transport.from_bytes(_transport.to_bytes(found), -1)
    np.testing.assert_array_equal(came.array(), found.array())


def test_a_worker_in_the_engine_s_process_gets_ours_before_it_makes_its_own():
    made = []

    class Wrapper:
        def __init__(self, executor):
            parallel = SimpleNamespace(distributed_executor_backend=executor, use_ubatching=False)
            model = SimpleNamespace(enable_return_routed_experts=True)
            self.vllm_config = SimpleNamespace(
                parallel_config=parallel, model_config=model, use_v2_model_runner=False
            )
            self.rpc_rank = 0
            runner = SimpleNamespace(init_routed_experts_capturer=lambda: made.append("own"))
            self.worker = SimpleNamespace(model_runner=runner)

        def init_worker(self, all_kwargs):
            made.append("init")

        def initialize_from_config(self, configs):
            return self.worker.model_runner.init_routed_experts_capturer

    for _ in range(2):  # the second changes nothing
        _hooks.take_worker(Wrapper, _by_slot.check_worker, _by_slot.prepare_worker)
    for executor, ours in (("uni", True), ("mp", False)):
        wrapper = Wrapper(executor)
        wrapper.init_worker([{"vllm_config": wrapper.vllm_config}])
        init = wrapper.initialize_from_config([])
        assert (getattr(init, "func", None) is _by_slot.Capture) is ours
    assert made == ["init", "init"]


# Versions behind 0.26 choose the other model runner by default, and all places fit in them. The
# engine died of "no attribute 'requests'".
@pytest.mark.parametrize(("face", "served"), [(_by_slot, False), (_aux_output, True)])
def test_a_model_runner_that_is_not_hooked_is_refused_by_name(face, served):
    config = configuration()
    config.aux_output_config = SimpleNamespace(enabled=True)
    config.use_v2_model_runner = served
    face.check_worker(config)
    config.use_v2_model_runner = not served
    with pytest.raises(ValueError, match=f"set VLLM_USE_V2_MODEL_RUNNER={int(served)}, or unset"):
        face.check_worker(config)


# ---- The scheduler


class Scheduler:
    def __init__(self, vllm_config):
        self.vllm_config = vllm_config
        self.requests = {}
        self.kv_cache_manager = SimpleNamespace(enable_caching=False)
        self.table = vllm_config.model_config.enable_return_routed_experts

    def finish_requests(self, names, status):
        return []

    def update_from_output(self, scheduler_output, model_runner_output):
        return {}


def configuration(executor="uni", micro_batches=False):
    return SimpleNamespace(
        model_config=SimpleNamespace(enable_return_routed_experts=True),
        parallel_config=SimpleNamespace(
            distributed_executor_backend=executor,
            use_ubatching=micro_batches,
            pipeline_parallel_size=1,
        ),
        scheduler_config=SimpleNamespace(async_scheduling=True),
    )


@pytest.mark.parametrize("face", [_scheduler, _by_slot])
def test_an_engine_that_does_not_capture_has_its_own_scheduler(face):
    class SchedulerConfig:
        def get_scheduler_cls(self):
            return Scheduler

    _scheduler.tell_ends(SchedulerConfig, face.TellingScheduler)
    config = configuration()
    config.model_config.enable_return_routed_experts = False
    for arguments in ({"vllm_config": config}, config):
        made = SchedulerConfig().get_scheduler_cls()
        found = made(**arguments) if isinstance(arguments, dict) else made(arguments)
        assert type(found) is Scheduler and found.vllm_config is config


@pytest.mark.parametrize(
    ("executor", "micro_batches"), [("uni", False), ("mp", False), ("uni", True)]
)
def test_a_scheduler_has_the_engine_s_table_only_where_the_engine_captures(
    make, executor, micro_batches
):
    runner, capture = make()
    ours = executor == "uni" and not micro_batches
    if not ours:
        routed_experts_capturer.set_global_experts_capturer(None)
    scheduler = type("Telling", (_by_slot.TellingScheduler, Scheduler), {})(
        vllm_config=configuration(executor, micro_batches)
    )
    assert scheduler.table is not ours
    assert isinstance(scheduler, _by_slot.TellingScheduler) is ours
    assert scheduler.vllm_config.model_config.enable_return_routed_experts
    if ours:
        assert scheduler._capturer is capture.capturer
        assert scheduler._front_end_waits(SimpleNamespace(extra_args=None))
        assert not scheduler._front_end_waits(SimpleNamespace(extra_args={"routed_experts": False}))

"""The face to releases with a table of rows by slot, with stand-ins for what it replaces."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from engine import Model

from routecap_vllm import (
    _aux_output,
    _by_slot,
    _compiled,
    _hooks,
    _scheduler,
    _transport,
    routed_experts_capturer,
)
from routecap_vllm._prefixes import BlocksOf

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


def scheduler_output(counts, resumed=(), over=(), preempted=()):
    return SimpleNamespace(
        num_scheduled_tokens=counts,
        scheduled_cached_reqs=SimpleNamespace(resumed_req_ids=set(resumed)),
        finished_req_ids=set(over),
        preempted_req_ids=set(preempted) or None,
    )


class Runner:
    """A model runner, as far as the face looks at it."""

    face = _by_slot.Capture

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


class RunnerV2(Runner):
    """The same as model runner V2: it keeps requests in arrays, sorts the batch by its own rules,
    and samples when it is told."""

    face = _by_slot.CaptureV2

    def __init__(self):
        super().__init__()
        del self.requests, self._bookkeeping_sync
        self.input_buffers = SimpleNamespace(positions=self.positions)
        del self.positions
        computed = np.zeros(8, np.int32)
        self.req_states = SimpleNamespace(req_id_to_index={}, num_computed_tokens_np=computed)
        self.execute_model_state = None
        self.sample_tokens = lambda grammar: self.ran.append("sample")

    def step(self, rows, **more):
        rows = rows[::-1]
        counts = {name: count for name, _, count in rows[::-1]}
        self.execute_model(scheduler_output(counts, **more))
        states = self.req_states
        for name, begin, _ in rows:
            index = states.req_id_to_index.setdefault(name, len(states.req_id_to_index))
            states.num_computed_tokens_np[index] = begin
        tokens = [[10 * len(name) + p for p in range(b, b + n)] for name, b, n in rows]
        places = torch.tensor([p for _, b, n in rows for p in range(b, b + n)])
        self.input_buffers.positions[: len(places)] = places
        self.model(torch.tensor(sum(tokens, [])), places)
        batch = SimpleNamespace(req_ids=[name for name, _, _ in rows])
        self.execute_model_state = SimpleNamespace(input_batch=batch)
        self.sample_tokens(None)
        self.execute_model_state = None


@pytest.fixture(params=[Runner, RunnerV2])
def make(request):
    def made():
        runner = request.param()
        return runner, runner.face(runner)

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
    assert runner.ran == ["execute", "bookkeep" if type(runner) is Runner else "sample"] * 2


def test_a_request_that_begins_anew_keeps_no_row(make):
    runner, capture = make()
    runner.step([("a", 0, 10)])
    told = "resumed" if type(runner) is Runner else "preempted"  # V2 tells each preemption
    runner.step([("a", 8, 10)], **{told: ["a"]})
    found = ended(capture, "a", 18)
    there = found.validity()[:, found.routing.layer_map].all(axis=1)
    assert there.tolist() == [False] * 8 + [True] * 10


# The scheduler's table has a rejected draft's row until the slot is written again.
def test_rows_of_rejected_drafts_are_cut_when_the_next_step_begins_before_them(make):
    runner, capture = make()
    tokens = list(range(4))
    request = SimpleNamespace(
        num_prompt_tokens=4, output_token_ids=[9], num_computed_tokens=4, sampling_params=None
    )
    capture.capturer.tell_ends({"a": request})
    if type(runner) is Runner:
        runner.requests["a"] = request
    runner.step([("a", 0, len(tokens))])
    runner.step([("a", 4, 3)])  # two drafts, none of which is right
    request.num_computed_tokens = 5
    runner.step([("a", 5, 1)])
    found = ended(capture, "a", 7)
    there = found.validity()[:, found.routing.layer_map].all(axis=1)
    assert there.tolist() == [True] * 6 + [False]


# One number stood in missing cells and in these columns: who reads no -1 had to take 0 for both.
def test_layers_that_do_not_route_are_zeros_and_only_missing_cells_are_the_fill(make):
    runner, capture = make()
    runner.step([("a", 0, 6)])
    found = ended(capture, "a", 8)
    assert found.shape[1] == len(runner.model.moe) > len(found.routing.layer_map)
    dense = [i for i in range(found.shape[1]) if i not in found.routing.layer_map]
    routed = found.routing.layer_map
    assert not found.array()[:, dense].any() and not found.validity()[:, dense].any()
    assert (found.array()[:6, routed] >= 0).all() and (found.array()[6:, routed] == -1).all()
    assert not found.of("uint8").array()[:, dense].any()
    part = found[2:4]
    assert part.shape == (2, *found.shape[1:])
    np.testing.assert_array_equal(part.array(), found.array()[2:4])
    came = _transport.from_bytes(_transport.to_bytes(found), -1)
    np.testing.assert_array_equal(came.array(), found.array())


@pytest.mark.parametrize("v2", [False, True])
def test_a_worker_in_the_engine_s_process_gets_ours_before_it_makes_its_own(v2):
    made = []

    class Wrapper:
        def __init__(self, executor):
            parallel = SimpleNamespace(distributed_executor_backend=executor, use_ubatching=False)
            model = SimpleNamespace(enable_return_routed_experts=True)
            self.vllm_config = SimpleNamespace(
                parallel_config=parallel,
                model_config=model,
                cache_config=SimpleNamespace(kv_sharing_fast_prefill=False),
                use_v2_model_runner=v2,
                speculative_config=None,
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
        kind = _by_slot.CaptureV2 if v2 else _by_slot.Capture
        assert (getattr(init, "func", None) is kind) is ours
    assert made == ["init", "init"]


@pytest.mark.parametrize("face", [_by_slot, _aux_output])
def test_layers_that_route_a_few_rows_of_a_prefill_are_refused(face):
    config = configuration()
    config.aux_output_config = SimpleNamespace(enabled=True)
    config.use_v2_model_runner = True
    config.cache_config.kv_sharing_fast_prefill = True
    with pytest.raises(ValueError, match="--kv-sharing-fast-prefill"):
        face.check_worker(config)


# vLLM's front end in Rust would take routecap's bytes for an array of vLLM's own.
@pytest.mark.parametrize("face", [_by_slot, _aux_output])
def test_a_front_end_that_runs_no_python_is_refused(monkeypatch, face):
    config = configuration()
    config.aux_output_config = SimpleNamespace(enabled=True)
    config.use_v2_model_runner = True
    for value in (None, "0", "1"):
        if value is not None:
            monkeypatch.setenv("VLLM_USE_RUST_FRONTEND", value)
        if value == "1":
            with pytest.raises(ValueError, match="unset VLLM_USE_RUST_FRONTEND"):
                face.check_worker(config)
        else:
            face.check_worker(config)


@pytest.mark.parametrize("v2", [False, True])
def test_drafts_of_which_only_the_device_knows_the_number_are_refused(v2):
    config = configuration()
    config.use_v2_model_runner = v2
    # which only releases with model runner V2 have
    config.speculative_config = SimpleNamespace(
        **{"enable_adaptive_verification": v2} if v2 else {}
    )
    if not v2:
        _by_slot.check_worker(config)
        return
    with pytest.raises(ValueError, match="enable_adaptive_verification=false"):
        _by_slot.check_worker(config)
    config.speculative_config.enable_adaptive_verification = False
    _by_slot.check_worker(config)


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
        cache_config=SimpleNamespace(kv_sharing_fast_prefill=False),
        speculative_config=None,
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

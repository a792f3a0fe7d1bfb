"""The face to 0.26, with stand-ins for what it replaces."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from engine import Model

from routecap import vllm
from routecap.vllm import _v021, _v026, routed_experts_capturer

BLOCK = 4


# ---- Which face


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """installed(version, {file: text}): a vLLM of which no more is there."""

    def put(version, files):
        folder = tmp_path / "vllm"
        for name, text in {"__init__.py": "", **files}.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setattr(vllm, "version", lambda name: version)

    return put


CAPTURER = "model_executor/layers/fused_moe/routed_experts_capturer.py"
CONNECTOR = "distributed/aux_output_connector/worker.py"


@pytest.mark.parametrize(
    ("version", "file", "text", "module"),
    [
        ("0.21.0", CAPTURER, "def issue_routing_d2h_copy(x): ...", "_v021"),
        ("0.26.0", CAPTURER, "class RoutedExpertsManager:", "_v026"),
        ("0.33.0", CONNECTOR, "def get_aux_output_connector(x): ...", "_v033"),
        ("0.26.1", CAPTURER, "class Other:", None),
        ("0.33.0", CAPTURER, "class RoutedExpertsManager:", None),
        ("0.27.0", CAPTURER, "class RoutedExpertsManager:", None),
    ],
)
def test_a_face_is_chosen_by_version_and_by_what_is_there(installed, version, file, text, module):
    installed(version, {file: text})
    assert getattr(vllm._face(), "module", None) == module


# ---- The worker


def scheduler_output(counts, new=(), resumed=(), over=()):
    return SimpleNamespace(
        num_scheduled_tokens=counts,
        total_num_scheduled_tokens=sum(counts.values()),
        scheduled_new_reqs=[SimpleNamespace(req_id=name) for name in new],
        scheduled_cached_reqs=SimpleNamespace(resumed_req_ids=set(resumed)),
        finished_req_ids=set(over),
        preempted_req_ids=None,
    )


class Batch:
    """The input batch: what each row of requests has computed, and the numbers of its blocks."""

    def __init__(self, rows, drafts=0):
        self.req_ids = [name for name, *_ in rows]
        self.num_reqs = len(rows)
        self.req_id_to_index = {name: i for i, name in enumerate(self.req_ids)}
        self.num_computed_tokens_cpu = np.array([begin for _, begin, _, _ in rows], np.int32)
        table = np.zeros((len(rows), 16), np.int32)
        for i, (_, _, _, blocks) in enumerate(rows):
            table[i, : len(blocks)] = blocks
        counts = np.array([count for _, _, count, _ in rows], np.int32)
        self.num_tokens_no_spec = self.num_computed_tokens_cpu + counts - drafts
        self.block_table = [
            SimpleNamespace(
                block_size=BLOCK, kv_cache_block_size=BLOCK, get_numpy_array=lambda: table
            )
        ]


class Runner:
    """A model runner as 0.26's, as far as the face looks at it."""

    def __init__(self, prefix=True, drafts=0):
        self.model = Model()
        self.model_config = self.model.model_config
        self.model_config.get_total_num_hidden_layers = lambda: len(self.model.moe)
        self.scheduler_config = SimpleNamespace(max_num_batched_tokens=64)
        self.cache_config = SimpleNamespace(enable_prefix_caching=prefix)
        self.kv_cache_config = SimpleNamespace(num_blocks=64)
        self.max_model_len, self.device, self.num_spec_tokens = 256, "cpu", drafts
        self.requests, self.ran = {}, []
        self.positions = torch.zeros(64, dtype=torch.int64)
        self.query_start_loc = SimpleNamespace(np=np.zeros(65, np.int32))
        self.input_batch = Batch([])
        self.execute_model = lambda output: self.ran.append("execute")
        self._bookkeeping_sync = lambda output: self.ran.append("bookkeep")

    def get_model(self):
        return self.model

    def _get_attention_kv_cache_gid(self):
        return 0

    def step(self, rows, drafts=0, **more):
        """rows: (request, begin, count, blocks) each. Tokens are their positions, and 100 more for
        each letter of a request's name."""
        counts = {name: count for name, _, count, _ in rows}
        output = scheduler_output(counts, **more)
        self.execute_model(output)
        self.input_batch = Batch(rows, drafts)
        tokens = [[10 * len(name) + p for p in range(b, b + n)] for name, b, n, _ in rows]
        places = torch.tensor([p for _, b, n, _ in rows for p in range(b, b + n)])
        self.positions[: len(places)] = places
        self.query_start_loc.np[1 : len(rows) + 1] = np.cumsum(list(counts.values()))
        self.model(torch.tensor(sum(tokens, [])), places)
        self._bookkeeping_sync(output)


@pytest.fixture
def make():
    def made(**options):
        runner = Runner(**options)
        return runner, _v026.Capture(runner)

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
    runner.step([("a", 0, 10, [5, 7, 9])], new=["a"])
    runner.step([("a", 10, 1, [5, 7, 9])])
    runner.step([("a", 11, 1, [5, 7, 9]), ("b", 8, 3, [5, 7, 2])], new=["b"])
    runner.step([("c", 12, 2, [5, 7, 9, 3])], new=["c"])
    for name, rows in (("b", 11), ("c", 14)):
        found = ended(capture, name, rows)
        assert found.routing.complete
        layers = found.routing.layer_map
        np.testing.assert_array_equal(found.array()[:, layers], expected(runner, "a", rows))
    assert runner.ran == ["execute", "bookkeep"] * 4


def test_two_requests_of_one_step_share_a_block(make):
    runner, capture = make()
    runner.step([("a", 0, 8, [5, 7]), ("b", 8, 2, [5, 7, 8])], new=["a", "b"])
    assert ended(capture, "b", 10).routing.complete


def test_a_block_that_is_written_anew_has_the_rows_of_its_new_tokens(make):
    runner, capture = make()
    runner.step([("a", 0, 8, [5, 7])], new=["a"])
    runner.step([("long", 0, 4, [5])], new=["long"], over=["a"])
    runner.step([("four", 4, 2, [5, 6])], new=["four"])
    found = ended(capture, "four", 6)
    layers = found.routing.layer_map
    np.testing.assert_array_equal(found.array()[:, layers], expected(runner, "long", 6))


def test_blocks_of_a_request_that_is_off_are_missing_and_never_another_s(make):
    runner, capture = make()
    runner.step([("a", 0, 4, [5])], new=["a"])
    parameters = SimpleNamespace(extra_args={"routed_experts": False})
    capture.capturer.tell_ends({"off": SimpleNamespace(sampling_params=parameters)})
    runner.step([("off", 0, 4, [5])], new=["off"], over=["a"])
    runner.step([("b", 4, 1, [5, 6])], new=["b"])
    found = ended(capture, "b", 5)
    assert found.validity()[:, found.routing.layer_map].all(1).tolist() == [False] * 4 + [True]
    assert (found.array()[:4] == -1).all()


def test_rows_of_drafts_are_published_when_they_are_certain(make):
    runner, capture = make(drafts=3)
    runner.step([("a", 0, 6, [5, 7])], new=["a"])
    runner.step([("a", 6, 4, [5, 7, 9])], drafts=3)  # of which one will be accepted
    assert capture._blocks.store.reasons([5, 7]).astype(bool).tolist() == [False, True]
    runner.step([("a", 8, 1, [5, 7, 9])])
    runner.step([("b", 8, 1, [5, 7, 4])], new=["b"])
    found = ended(capture, "b", 9)
    assert found.routing.complete


def test_blocks_that_fill_one_row_a_step_are_published_when_they_are_full(make):
    runner, capture = make()
    for position in range(13):
        runner.step(
            [("a", position, 1, [5, 7, 9, 11]), ("bb", position, 1, [2, 4, 6, 8])],
            new=["a", "bb"] if position == 0 else (),
        )
        there = capture._blocks.store.reasons([5, 7, 9, 2, 4, 6]) == 0
        assert there.tolist() == 2 * [(position + 1) // BLOCK > block for block in range(3)]
    runner.step([("c", 12, 1, [5, 7, 9, 3]), ("dd", 8, 1, [2, 4, 13])], new=["c", "dd"])
    assert ended(capture, "c", 13).routing.complete and ended(capture, "dd", 9).routing.complete


def test_without_a_prefix_cache_there_is_no_store(make):
    runner, capture = make(prefix=False)
    runner.step([("a", 0, 6, [5, 7])], new=["a"])
    assert capture._blocks is None and ended(capture, "a", 6).routing.complete


def test_layers_that_do_not_route_are_there_and_missing(make):
    runner, capture = make(prefix=False)
    runner.step([("a", 0, 6, [5, 7])], new=["a"])
    found = ended(capture, "a", 6)
    assert found.shape[1] == len(runner.model.moe) > len(found.routing.layer_map)
    dense = [i for i in range(found.shape[1]) if i not in found.routing.layer_map]
    assert (found.array()[:, dense] == -1).all() and not found.validity()[:, dense].any()
    assert not found.of("uint8").array()[:, dense].any()
    part = found[2:4]
    assert part.shape == (2, *found.shape[1:])
    np.testing.assert_array_equal(part.array(), found.array()[2:4])
    came = _v021.from_bytes(_v021.to_bytes(found), -1)
    np.testing.assert_array_equal(came.array(), found.array())


def test_a_worker_in_the_engine_s_process_gets_ours_before_it_makes_its_own():
    made = []

    class Wrapper:
        def __init__(self, executor):
            parallel = SimpleNamespace(distributed_executor_backend=executor, use_ubatching=False)
            model = SimpleNamespace(enable_return_routed_experts=True)
            self.vllm_config = SimpleNamespace(parallel_config=parallel, model_config=model)
            self.rpc_rank = 0
            runner = SimpleNamespace(init_routed_experts_capturer=lambda: made.append("own"))
            self.worker = SimpleNamespace(model_runner=runner)

        def init_worker(self, all_kwargs):
            made.append("init")

        def initialize_from_config(self, configs):
            return self.worker.model_runner.init_routed_experts_capturer

    _v026.take_worker(Wrapper)
    _v026.take_worker(Wrapper)  # changes nothing
    for executor, ours in (("uni", True), ("mp", False)):
        wrapper = Wrapper(executor)
        wrapper.init_worker([{"vllm_config": wrapper.vllm_config}])
        init = wrapper.initialize_from_config([])
        assert (getattr(init, "func", None) is _v026.Capture) is ours
    assert made == ["init", "init"]


# ---- The scheduler


class Scheduler:
    def __init__(self, vllm_config):
        self.vllm_config = vllm_config
        self.requests = {}
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
    scheduler = type("Telling", (_v026.TellingScheduler, Scheduler), {})(
        vllm_config=configuration(executor, micro_batches)
    )
    assert scheduler.table is not ours
    assert ours or scheduler._capturer is None
    assert scheduler.vllm_config.model_config.enable_return_routed_experts
    if ours:
        assert scheduler._capturer is capture.capturer
        assert scheduler._front_end_waits(SimpleNamespace(extra_args=None))
        assert not scheduler._front_end_waits(SimpleNamespace(extra_args={"routed_experts": False}))

"""A scheduler whose workers are in processes of their own: it tells them who ends, and unites what
the stages of a pipeline have. The workers here are several capturers of one process."""

import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from batch import request
from engine import Model

import routecap
from routecap_vllm import _scheduler, _workers
from routecap_vllm import routed_experts_capturer as module
from routecap_vllm._prefixes import BlocksOf

STAGES = ((0, 1, 2, 3), (4, 5))  # layers of the decoder, of which the first two route nothing
TOKENS = {"a": [11, 12, 13], "off": [21, 22, 23], "b": [31, 32, 33]}


class Stage:
    """A worker that has some of the layers."""

    def __init__(self, layers, mirror=False):
        self.layers, self.model = layers, Model()
        for i, layer in enumerate(self.model.layers):
            if i not in layers:
                layer.mlp = torch.nn.Module()
        self.model_runner = SimpleNamespace(
            requests={
                name: request(**({"routed_experts": 0} if name == "off" else {})) for name in TOKENS
            },
            input_batch=SimpleNamespace(req_ids=list(TOKENS)),
            positions=torch.zeros(8, dtype=torch.int64),
            max_model_len=512,
            routed_experts_initialized=True,
            execute_model=self.execute,
        )
        self.capturer = module.RoutedExpertsCapturer.create(
            True, self.model.model_config, 0, 64, 512, "cpu", skip_host_cache=mirror
        )
        self.capturer.bind(self.model)

    def execute(self, scheduler_output):
        step, names = scheduler_output.step, list(scheduler_output.num_scheduled_tokens)
        self.model_runner.input_batch.req_ids = names
        self.model_runner.positions[:] = step
        tokens = torch.tensor([TOKENS[name][step] for name in names])
        self.model(tokens, self.model_runner.positions[: len(names)].clone())
        return "intermediate tensors"


class Executor:
    """Calls each of its workers, and sends what they answer."""

    def __init__(self, *workers):
        self.workers, self.called = workers, []

    def collective_rpc(self, method, args=(), non_block=False):
        self.called.append(method)
        answers = []
        for worker in self.workers:
            with module.use_capturer(worker.capturer):
                answers.append(pickle.loads(pickle.dumps(getattr(worker, method)(*args))))
        return SimpleNamespace(result=lambda: answers) if non_block else answers

    def step(self, step, names=TOKENS, blocks=None):
        output = SimpleNamespace(
            step=step,
            num_scheduled_tokens=dict.fromkeys(names, 1),
            scheduled_cached_reqs=SimpleNamespace(resumed_req_ids=set()),
        )
        if blocks is not None:
            blocks.send(output)
        for worker in self.workers:
            with module.use_capturer(worker.capturer):
                worker.model_runner.execute_model(pickle.loads(pickle.dumps(output)))


@pytest.fixture
def serve(monkeypatch):
    """serve(workers...): an executor of theirs. The last one is the last stage."""

    def begin(*workers):
        stages = len({tuple(worker.layers) for worker in workers})
        names = {"is_last_rank": False, "world_size": stages}
        monkeypatch.setattr(
            _workers,
            "import_module",
            lambda name: (
                SimpleNamespace(get_pp_group=lambda: SimpleNamespace(**names))
                if "parallel_state" in name
                else module
            ),
        )
        for worker in workers:
            _workers.serve(worker)  # the last too: who samples is not what is tested here
        return Executor(*workers)

    yield begin
    module.set_options(None)
    for name in [name for name in vars(Stage) if name.startswith("routecap_")]:
        delattr(Stage, name)


def test_rows_of_two_stages_are_one_routing(serve):
    executor = serve(*(Stage(layers) for layers in STAGES))
    workers = _workers.Workers(executor)
    for step in range(3):
        executor.step(step)
    ended = workers.end({"a": 3, "off": 3, "b": 2, "unknown": 1})
    assert sorted(ended) == ["a", "b"]
    model = executor.workers[0].model
    for name, rows in (("a", 3), ("b", 2)):
        assert ended[name].routing.complete
        np.testing.assert_array_equal(ended[name].array(), model.expected(TOKENS[name][:rows]))


def test_mirrors_answer_nothing_and_a_stage_that_lost_rows_leaves_them_missing(serve):
    first, second, mirror = Stage(STAGES[0]), Stage(STAGES[1]), Stage(STAGES[1], mirror=True)
    executor = serve(first, second, mirror)
    workers = _workers.Workers(executor)
    executor.step(0)
    executor.step(1)
    with module.use_capturer(second.capturer):
        second.routecap_cut({"a": 1})
    [rows] = workers.end({"a": 2}).values()
    expected = first.model.expected(TOKENS["a"][:2])
    np.testing.assert_array_equal(rows.array()[0], expected[0])
    np.testing.assert_array_equal(rows.array()[1, :2], expected[1, :2])
    assert (rows.array()[1, 2:] == -1).all()
    assert rows.validity().tolist() == [[True] * 4, [True, True, False, False]]


def test_cuts_and_new_weights_reach_every_stage(serve):
    executor = serve(*(Stage(layers) for layers in STAGES))
    workers = _workers.Workers(executor)
    executor.step(0)
    workers.weights_changed()
    executor.step(1)
    executor.step(2)
    workers.cut({"a": 2})
    rows = workers.end({"a": 3, "b": 3})
    assert rows["b"].routing.tags.tolist() == [0, 1, 1]
    assert rows["a"].validity().all(axis=1).tolist() == [True, True, False]


@pytest.mark.parametrize("layers", [STAGES, (sum(STAGES, ()),)], ids=["pipeline", "tensor"])
def test_rows_of_cached_prefixes_come_out_of_stores_of_the_workers(serve, layers):
    executor = serve(*map(Stage, layers), Stage(layers[-1], mirror=True))
    workers = _workers.Workers(executor)
    blocks, key = workers.keep_prefixes(2, 2, 8, False), b"two of a"
    assert not blocks.by_contents
    blocks.step.begins.append(BlocksOf("a", 0, []))
    for step in range(3):
        if step == 1:
            blocks.step.fills.append(BlocksOf("a", 0, [6], [key]))
        executor.step(step, ["a"], blocks)
        assert not blocks.step
    blocks.step.begins.append(BlocksOf("b", 0, [6], [key]))
    executor.step(2, ["b"], blocks)
    expected = executor.workers[0].model.expected
    rows = workers.end({"a": 3, "b": 3})
    of_both = [*TOKENS["a"][:2], TOKENS["b"][2]]
    for name, tokens in (("a", TOKENS["a"]), ("b", of_both)):
        np.testing.assert_array_equal(rows[name].array(), expected(tokens))
        assert rows[name].validity().all()
    blocks.drop(BlocksOf("a", 0, [6], [key]))
    for worker in executor.workers[:-1]:
        [reason] = worker.capturer.prefixes.store.reasons([6])
        assert reason == routecap.Missing.EVICTED


def test_workers_without_a_store_keep_no_prefixes(serve):
    module.set_options(module.Options(store_bytes=0))
    assert _workers.Workers(serve(Stage(STAGES[0]))).keep_prefixes(16, 16, 32, False) is None


def test_outputs_of_requests_that_end_come_with_their_rows_a_step_later_if_one_is_in_flight(
    serve, monkeypatch
):
    class Outputs:
        def __init__(self, *names):
            self.outputs = [SimpleNamespace(request_id=name, routed_experts=None) for name in names]

    engine = SimpleNamespace(EngineCoreOutputs=Outputs)
    monkeypatch.setattr(_scheduler, "import_module", lambda name: engine)

    class Own:
        vllm_config = SimpleNamespace(
            model_config=SimpleNamespace(enable_return_routed_experts=False)
        )

        def schedule(self):
            return SimpleNamespace()

        def update_from_output(self, ends, outputs):
            self._ended.update(ends)
            return outputs

    executor = serve(*(Stage(layers) for layers in STAGES))
    scheduler = type("Telling", (_scheduler.TellingScheduler, Own), {})()
    scheduler._capturer = _workers.Workers(executor)
    model = executor.workers[0].model
    executor.step(0), executor.step(1), executor.step(2)

    def names_of(outputs):
        return {
            client: [one.request_id for one in each.outputs] for client, each in outputs.items()
        }

    scheduler.schedule(), scheduler.schedule()
    outputs = scheduler.update_from_output({"a": 3}, {0: Outputs("a", "b"), 1: Outputs("other")})
    assert names_of(outputs) == {0: ["b"], 1: ["other"]}
    outputs = scheduler.update_from_output({"b": 2}, {1: Outputs("other")} | {2: Outputs("b")})
    assert names_of(outputs) == {0: ["a"], 1: ["other"], 2: ["b"]}
    for client, name, rows in ((0, "a", 3), (2, "b", 2)):
        [output] = outputs[client].outputs
        expected = model.expected(TOKENS[name][:rows])
        np.testing.assert_array_equal(output.routed_experts.array(), expected)
    assert scheduler._held is None and executor.called.count("routecap_end") == 2


def test_a_scheduler_whose_workers_are_elsewhere_has_theirs_if_they_can_be_told(monkeypatch):
    def scheduler(backend):
        class Own:
            requests = {}

            def __init__(self):
                self.kv_cache_manager = SimpleNamespace(enable_caching=False)
                self.vllm_config = SimpleNamespace(
                    model_config=SimpleNamespace(enable_return_routed_experts=True),
                    parallel_config=SimpleNamespace(distributed_executor_backend=backend),
                )

        return type("Telling", (_scheduler.TellingScheduler, Own), {})()

    executor = Executor()

    class OwnExecutor:
        def __init__(self, workers):
            self.workers = workers

        def collective_rpc(self, method, args=()):
            return executor.collective_rpc(method, args)

    _workers.remember_executor(OwnExecutor)
    made = OwnExecutor(workers=2)
    assert _workers.executor_of_this_process() is made
    monkeypatch.setattr(module, "_global_capturer", None)
    assert scheduler("ray")._capturer is None
    assert isinstance(scheduler("mp")._capturer, _workers.Workers)
    assert executor.called == ["routecap_tell_ends"]

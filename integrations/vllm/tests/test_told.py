"""An engine whose scheduler tells who ends; what one request asks for; a batch that comes again."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from batch import Batch, request

import routecap
from routecap_vllm import _asked, _by_request, _hooks, _platform, _scheduler, _transport
from routecap_vllm import routed_experts_capturer as module
from routecap_vllm._results import PendingRoutedExperts, split_routed_experts


def test_who_ends_is_told_and_gets_as_many_rows_as_said(start):
    batch = Batch(start, a=request(), b=request(), c=request())
    for _ in range(4):
        batch.step()
    ended = batch.capturer.end({"a": 4, "c": 3, "unknown": 7})  # c's last step was ahead of its end
    assert sorted(ended) == ["a", "c"] and all(
        isinstance(each, PendingRoutedExperts) for each in ended.values()
    )
    np.testing.assert_array_equal(ended["a"].array(), batch.expected("a"))
    np.testing.assert_array_equal(ended["c"].array(), batch.expected("c")[:3])
    batch.names = ["b"]
    batch.step()
    np.testing.assert_array_equal(batch.capturer.end({"b": 5})["b"].array(), batch.expected("b"))
    assert module.extract_routed_experts_for_current_batch(["b"], {}, {}, np.zeros(1), 8) is None


def test_a_batch_that_comes_again_is_issued_by_one_call_and_gives_the_same(start, monkeypatch):
    batch = Batch(start, a=request(), b=request())
    issued = []
    issue = routecap.Capturer.issue
    monkeypatch.setattr(
        routecap.Capturer,
        "issue",
        lambda self, *a, **k: (issued.append(1), issue(self, *a, **k))[1],
    )
    for _ in range(6):
        batch.step()
    assert len(issued) == 2
    batch.capturer.tag = 7
    batch.step()
    assert len(issued) == 3  # another tag
    batch.step()
    batch.step(["b", "a"])
    assert len(issued) == 4  # another order
    for name in ("a", "b"):
        rows = batch.capturer.end({name: 9})[name]
        np.testing.assert_array_equal(rows.array(), batch.expected(name))
        assert rows.routing.tags.tolist() == [0] * 6 + [7] * 3


def test_counts_are_the_same_in_whatever_order_and_objects_they_come(start):
    batch = Batch(start, a=request(), b=request(), c=request())
    for _ in range(3):
        batch.step()
    again, names, tag = batch.capturer._again, batch.names, batch.capturer.tag
    orders = [names, names[::-1], names[::-1], names[1:] + names[:1]]
    alike = [dict.fromkeys(order, 1) for order in orders]
    alike.append({"".join(["", name]): 1 for name in names})
    tickets = []
    for counts in alike:
        for wrong in ({**counts, "b": 2}, {**counts, "b": None}, {"a": 1, "c": 1}):
            if None in wrong.values():
                with pytest.raises(TypeError):
                    again(names, wrong, batch.positions, tag)
            else:
                assert again(names, wrong, batch.positions, tag) is None
        batch.model(torch.tensor([40, 41, 42]), batch.positions[:3].clone())
        tickets.append(again(names, counts, batch.positions, tag))
        batch.capturer.capturer.issued(tickets[-1]).wait()
    assert tickets == list(range(tickets[0], tickets[0] + len(alike)))


def test_rows_of_keys_and_values_that_could_not_be_loaded_are_missing_until_computed_again(start):
    batch = Batch(start, a=request(), b=request())
    for _ in range(4):
        batch.step()

    class Scheduler:
        """vLLM's, as far as it is asked here: a's last two rows are to be computed again."""

        requests = {"a": SimpleNamespace(num_computed_tokens=2)}
        vllm_config = SimpleNamespace(
            model_config=SimpleNamespace(enable_return_routed_experts=False)
        )

        def _handle_invalid_blocks(self, invalid_block_ids, num_scheduled_tokens):
            return {"a", "gone"}

    scheduler = type("Telling", (_scheduler.TellingScheduler, Scheduler), {})()
    scheduler._capturer = batch.capturer
    assert scheduler._handle_invalid_blocks({5}, {"a": 1, "b": 1}) == {"a", "gone"}
    wrong = batch.expected("a")
    batch.tokens["a"] = batch.tokens["a"][:3]  # the step that computes row 2 again was lost
    batch.step()  # row 3
    rows = batch.capturer.end({"a": 4, "b": 5})
    np.testing.assert_array_equal(rows["b"].array(), batch.expected("b"))
    a = rows["a"].array()
    assert (a[2] == -1).all() and not (a[2] == wrong[2]).any()
    np.testing.assert_array_equal(a[[0, 1, 3]], batch.expected("a")[[0, 1, 3]])


def test_a_request_that_is_preempted_may_end_by_a_step_that_was_in_flight(start):
    batch = Batch(start, a=request(), b=request())
    batch.step()
    batch.step()
    module.free_routing_buffers(set(), {"a"})
    np.testing.assert_array_equal(batch.capturer.end({"a": 2})["a"].array(), batch.expected("a"))


@pytest.mark.parametrize("told", [module.free_routing_buffers, None], ids=["told", "not told"])
def test_after_a_preemption_rows_are_those_of_what_was_computed_or_hit_then(start, told):
    batch = Batch(start, a=request(), b=request())
    for _ in range(3):
        batch.step()
    if told:
        told(set(), {"a"})
    batch.capturer.resume({"a", "gone"})
    batch.step()  # goes on behind what the prefix cache has, of which no store is told
    rows = batch.capturer.end({"a": 4, "b": 4})
    assert (rows["a"].array() == -1).all(axis=(1, 2)).tolist() == [True] * 3 + [False]
    np.testing.assert_array_equal(rows["a"].array()[3:], batch.expected("a")[3:])
    np.testing.assert_array_equal(rows["b"].array(), batch.expected("b"))


def test_a_request_that_is_off_costs_nothing_and_changes_nothing_for_others(start):
    batch = Batch(start, a=request(), off=request(routed_experts=0), b=request(routed_experts=True))
    for _ in range(3):
        batch.step()
    assert batch.capturer.capturer.stats().rows_issued == 6
    ended = batch.capturer.end(dict.fromkeys(batch.names, 3))
    assert sorted(ended) == ["a", "b"]
    for name, rows in ended.items():
        np.testing.assert_array_equal(rows.array(), batch.expected(name))
    assert batch.capturer._again is not None  # which is one call into the library
    only = Batch(start, off=request(routed_experts=0))
    only.step()
    assert only.capturer.capturer.stats().steps_issued == 0


def test_more_rows_of_a_request_that_is_off_are_another_batch(start):
    batch = Batch(start, off=request(routed_experts=0), a=request())
    for _ in range(4):
        batch.step()
    assert batch.capturer._again is not None
    batch.tokens["a"].append(40)
    batch.positions[:3] = torch.tensor([4, 5, 4])
    batch.capturer.finalize_pending_copy()
    batch.model(torch.tensor([50, 51, 40]), batch.positions[:3].clone())
    module.issue_routing_d2h_copy(["off", "a"], {"off": 2, "a": 1}, batch.positions, None)
    rows = batch.capturer.end({"a": 5})["a"]
    np.testing.assert_array_equal(rows.array(), batch.expected("a"))


def test_results_are_lazy_narrow_and_cut_as_asked(start):
    batch = Batch(start, a=request())
    for _ in range(6):
        batch.step()
    rows, expected = batch.capturer.end({"a": 6})["a"], batch.expected("a")
    narrow = rows.of("uint8")[2:]
    assert narrow.shape == (4, 4, 4) and narrow.first == 2
    prompt, generated = split_routed_experts(narrow, 3, None)
    assert type(prompt) is PendingRoutedExperts and prompt.shape[0] == 1 and generated.shape[0] == 3
    assert prompt.array().dtype == np.uint8
    np.testing.assert_array_equal(np.concatenate((prompt, generated)), expected[2:])
    assert split_routed_experts(rows[4:], 3, None)[0] is None
    arrived = _transport.from_bytes(_transport.to_bytes(rows), -1)  # through another process
    np.testing.assert_array_equal(arrived.array(), expected)
    assert arrived.validity().all()


def test_a_missing_cell_is_no_id_in_an_unsigned_dtype_either(start):
    for experts in (64, 256):
        batch = Batch(start, experts, a=request())
        batch.model.moe[3].skip = True
        batch.step()
        rows = batch.capturer.end({"a": 1})["a"]
        assert (rows.array()[0, 1] == -1).all() and not rows.validity()[0, 1]
        if experts == 64:
            assert (rows.of("uint8").array()[0, 1] == 255).all()
        else:
            with pytest.raises(routecap.Error, match="would look like expert 255"):
                rows.of("uint8").array()


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"routed_experts": "maybe"}, "routed_experts is 'maybe'"),
        ({"routed_experts_start": -1}, "routed_experts_start is -1"),
        ({"routed_experts_start": 1.5}, "routed_experts_start is 1.5"),
        ({"routed_experts_start": "five"}, "routed_experts_start is 'five': it must be a row's"),
        ({"routed_experts_start": "5"}, "routed_experts_start is '5'"),
        ({"routed_experts_start": None}, "routed_experts_start is None"),
        ({"routed_experts_start": float("inf")}, "routed_experts_start is inf"),
        ({"routed_experts_start": [1]}, "routed_experts_start is"),
        ({"routed_experts_dtype": "float32"}, "routed_experts_dtype is 'float32'"),
    ],
)
def test_what_makes_no_sense_is_refused(extra, said):
    with pytest.raises(ValueError, match=said):
        _asked.asked_by(SimpleNamespace(extra_args=extra))
    assert _asked.asked_by(SimpleNamespace(extra_args={"other": 1})) == _asked.Asked()


def test_a_library_without_cuda_is_refused_with_the_configuration_and_async_scheduling_is_not(
    monkeypatch,
):
    class Config:
        def __init__(self, workers=1, executor="uni"):
            self.scheduler_config = SimpleNamespace(async_scheduling=True)
            self.cache_config = SimpleNamespace(kv_sharing_fast_prefill=False)
            self.parallel_config = SimpleNamespace(
                world_size=workers,
                pipeline_parallel_size=workers,
                distributed_executor_backend=executor,
                use_ubatching=False,
            )

        def _validate_return_routed_experts(self):
            if self.scheduler_config.async_scheduling:
                raise ValueError("not with async scheduling")
            if self.parallel_config.pipeline_parallel_size > 1:
                raise ValueError("not with pipeline parallelism")

    _by_request.lift_refusal(Config)
    monkeypatch.setattr(_platform, "engine_is_on_cuda", lambda: True)
    for without, workers, executor, said in (
        (False, 1, "uni", None),
        (False, 1, "mp", None),  # of a data-parallel rank: it comes into the engine's process
        (False, 2, "mp", None),
        (False, 1, "ray", "not with async"),
        (False, 2, "external_launcher", "not with async"),
        (True, 1, "uni", "built without it"),
    ):
        monkeypatch.setattr(_platform, "without_cuda", lambda without=without: without)
        config = Config(workers, executor)
        if said is None:
            config._validate_return_routed_experts()
        else:
            with pytest.raises(ValueError, match=said):
                config._validate_return_routed_experts()
        assert config.scheduler_config.async_scheduling
        chosen = config.parallel_config.distributed_executor_backend
        assert chosen == ("uni" if workers == 1 and executor == "mp" else executor)
        assert config.parallel_config.pipeline_parallel_size == workers


def test_without_async_scheduling_a_worker_stays_and_micro_batches_are_refused():
    class Config:
        scheduler_config = SimpleNamespace(async_scheduling=False)
        cache_config = SimpleNamespace(kv_sharing_fast_prefill=False)
        parallel_config = SimpleNamespace(
            world_size=1,
            pipeline_parallel_size=1,
            distributed_executor_backend="mp",
            use_ubatching=False,
        )

        def _validate_return_routed_experts(self):
            assert not self.scheduler_config.async_scheduling

    _by_request.lift_refusal(Config)
    Config()._validate_return_routed_experts()
    assert Config.parallel_config.distributed_executor_backend == "mp"
    Config.parallel_config.use_ubatching = True
    with pytest.raises(ValueError, match="several micro-batches"):
        Config()._validate_return_routed_experts()
    Config.cache_config.kv_sharing_fast_prefill = True
    with pytest.raises(ValueError, match="--kv-sharing-fast-prefill"):
        Config()._validate_return_routed_experts()


def test_rows_say_how_often_weights_were_changed_before_them(start):
    batch = Batch(start, a=request())
    model, capturer = batch.model, batch.capturer
    batch.step()
    loaded = []

    def load_weights(weights):
        loaded.append(weights)
        if weights == 3:
            raise OSError

    class Graphs:
        """Around the model, as around one whose passes are graphs."""

        def __getattr__(self, name):
            return getattr(model, name)

        def unwrap(self):
            return model

    model.load_weights = load_weights
    module.bind_routing_capture_to_model(Graphs())
    model.load_weights(1), model.load_weights(2)  # in two parts
    batch.step()
    batch.step()
    with pytest.raises(OSError):
        model.load_weights(3)  # and in part, perhaps
    batch.step()
    module.set_tag(70)
    module.weights_changed()  # whoever says the version says it always
    batch.step()
    rows = capturer.end({"a": 5})["a"]
    np.testing.assert_array_equal(rows.array(), batch.expected("a"))
    assert rows.routing.tags.tolist() == [0, 1, 1, 2, 70] and loaded == [1, 2, 3]


def test_a_worker_says_when_its_weights_are_changed_and_is_told_their_version(start):
    batch = Batch(start, a=request())
    capturer, batch_step = batch.capturer, batch.step

    class Worker:
        def update_weights(self, update_info):
            return update_info

        def reload_weights(self):
            pass

    class Wrapper:
        worker = Worker()
        vllm_config = SimpleNamespace(lora_config=None)

        def init_device(self):
            return "ready"

    _hooks.watch_weights(Wrapper)
    _hooks.watch_weights(Wrapper)  # once
    assert Wrapper().init_device() == "ready" and Wrapper().init_device() == "ready"
    assert Wrapper.worker.update_weights({"names": 1}) == {"names": 1}
    assert capturer.tag == 1
    batch_step()
    Wrapper.worker.reload_weights()
    assert capturer.tag == 2
    Wrapper.worker.routecap_set_tag(12)
    assert capturer.tag == 12


def test_an_adapter_that_is_loaded_in_place_of_one_is_new_weights(start):
    capturer = Batch(start, a=request()).capturer

    class Manager:
        def _load_adapter(self, lora_request):
            return lora_request

    _hooks.watch_adapters(Manager)
    for place, tag in ((False, 0), (True, 1)):
        adapter = SimpleNamespace(load_inplace=place)
        assert Manager()._load_adapter(adapter) is adapter
        assert capturer.tag == tag


def test_rows_are_issued_before_a_steps_tokens_are_waited_for_and_once(start, monkeypatch):
    batch = Batch(start, a=request())
    done = []
    issue = module.issue_routing_d2h_copy
    monkeypatch.setattr(
        module, "issue_routing_d2h_copy", lambda *args: done.append("issue") or issue(*args)
    )

    class Runner:
        routed_experts_initialized = True
        input_batch, positions = SimpleNamespace(req_ids=["a"]), batch.positions

        def _bookkeeping_sync(self, scheduler_output, logits):
            done.append("wait")
            return logits

    engine = SimpleNamespace(GPUModelRunner=Runner, issue_routing_d2h_copy=issue)
    _by_request.issue_before_tokens(engine)
    _by_request.issue_before_tokens(engine)  # once
    batch.model(torch.tensor([10]), batch.positions[:1].clone())
    cached = SimpleNamespace(resumed_req_ids=set())
    output = SimpleNamespace(num_scheduled_tokens={"a": 1}, scheduled_cached_reqs=cached)
    assert Runner()._bookkeeping_sync(output, "logits") == "logits"
    engine.issue_routing_d2h_copy(
        input_batch_req_ids=["a"],
        num_scheduled_tokens={"a": 1},
        positions=batch.positions,
        positions_cpu=None,
    )
    assert done == ["issue", "wait"]
    np.testing.assert_array_equal(
        batch.capturer.end({"a": 1})["a"].array(), batch.model.expected([10])
    )
    off = Runner()
    off.routed_experts_initialized = False
    off._bookkeeping_sync(output, "logits")
    assert done == ["issue", "wait", "wait"]

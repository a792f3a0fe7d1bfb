"""A whole engine drives the module as vLLM's runner does, and compares every id with its own
record.
"""

import random
import time

import numpy as np
import pytest
import torch
from engine import EOS, FusedMoE, Model, Router, RouterThatIsOpaque, RouterWithoutCallback

from routecap_vllm import routed_experts_capturer as module
from routecap_vllm.routed_experts_capturer import Options


def replicas_of(experts, device="cpu"):
    """Two replicas of each expert among twice as many places, in no order that would look like
    logical ids.
    """
    places = torch.randperm(2 * experts, generator=torch.Generator().manual_seed(1)).view(
        experts, 2
    )
    return places.to(device)


def add_mixed(engine, count, seed, **parameters):
    draw = random.Random(seed)
    for i in range(count):
        prompt = [draw.randrange(3, 1000) for _ in range(draw.randint(1, 150))]
        engine.add(f"{seed}-{i}", prompt, max_tokens=draw.randint(1, 40), **parameters)


def stats():
    return module.get_global_experts_capturer().capturer.stats()


def expect_nothing_kept():
    """What is closed is given back by the library's thread."""
    for _ in range(10_000):
        if stats().bytes_in_use == 0:
            break
        time.sleep(0.001)
    assert stats().requests_open == 0 and stats().bytes_in_use == 0


MODELS = {
    "callbacks": {},
    "a router without callback": {"router": RouterWithoutCallback},
    "an opaque router": {"router": RouterThatIsOpaque},
    "int64 ids": {"dtype": torch.int64},
    "int16 ids": {"dtype": torch.int16},
    "a kernel that routes": {"internal": True},
    "fused shared experts": {"shared": 2},
    "replicas": {"replicas": replicas_of(64)},
    "replicas without callback": {"router": RouterWithoutCallback, "replicas": replicas_of(64)},
    "replicas behind an opaque router": {"router": RouterThatIsOpaque, "replicas": replicas_of(64)},
    "512 experts": {"experts": 512, "k": 10},
    "k of 1": {"k": 1, "experts": 16},
    "no dense layers": {"dense": 0},
}


@pytest.mark.parametrize("name", MODELS)
def test_every_id_of_every_request_is_the_router_s(start, name):
    engine = start(Model(**MODELS[name]))
    add_mixed(engine, 12, 1)
    engine.run()
    assert engine.checked["requests"] == 12
    assert stats().cells_unwritten == stats().cells_out_of_range == stats().cells_duplicate == 0


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("asynchronous", [False, True], ids=["synchronous", "asynchronous"])
@pytest.mark.parametrize("drafts", [0, 3], ids=["no drafts", "drafts"])
@pytest.mark.parametrize("kept", ["drop", "keep"])
def test_preemptions_aborts_and_drafts_leave_every_row_right(
    start, seed, asynchronous, drafts, kept
):
    engine = start(
        options=Options(preempted=kept),
        drafts=drafts,
        seed=seed,
        asynchronous=asynchronous,
        keep_preempted=kept == "keep",
        max_tokens=96,
    )
    draw = random.Random(seed)
    add_mixed(engine, 16, seed, stop_token_ids=[5, 6])
    aborted = 0
    for step in range(2000):
        if not engine.requests:
            break
        if step % 5 == 4 and step < 60:  # or the last one would never end
            engine.set_version(step)
            engine.preempt(draw.choice(list(engine.requests)))
        if step % 11 == 10 and len(engine.requests) > 1:
            engine.abort(draw.choice(list(engine.requests)))
            aborted += 1
        engine.step()
    assert not engine.requests
    assert engine.checked["requests"] == 16 - aborted
    assert aborted > 0 and (engine.checked["drafts rejected"] > 0) == (drafts > 0)
    engine.step()  # frees the last ones
    expect_nothing_kept()


def test_the_stop_rules_end_requests_where_the_scheduler_does(start):
    engine = start(drafts=4)
    engine.add("max tokens", [9] * 5, max_tokens=3)
    engine.add("one token", [9] * 5, max_tokens=1)
    engine.add("end of sequence", [9] * 5, script={9: EOS})
    engine.add(
        "ignored end", [9] * 5, script={9: EOS}, ignore_eos=True, eos_token_id=None, max_tokens=20
    )
    engine.add("stop id", [9] * 5, script={11: 77}, stop_token_ids=[50, 77])
    engine.add("too early", [9] * 5, script={7: EOS, 14: EOS}, min_tokens=6)
    engine.add("length", [9] * 500, max_tokens=None or 1 << 30)
    ends = {}
    while engine.requests:
        for req_id, array in engine.step().items():
            ends[req_id] = len(array)
    assert ends == {
        "max tokens": 5 + 3 - 1,
        "one token": 5,
        "end of sequence": 10,
        "ignored end": 5 + 20 - 1,
        "stop id": 12,
        "too early": 15,
        "length": 511,
    }


def test_rows_that_the_prefix_cache_had_are_missing_and_not_expert_0(start):
    engine = start()
    request = engine.add("a", list(range(10, 110)), cached=48, max_tokens=5)
    engine.add("b", list(range(50)), max_tokens=30)
    while "a" in engine.requests:
        engine.step()
    array = engine.arrays["a"]
    assert (array[:48] == -1).all() and (array[48:] >= 0).all() and len(array) == 104
    assert module.validity_of("a").tolist() == [[i >= 48] * 4 for i in range(104)]
    missing = module.routing_of("a").missing
    assert [(m["first"], m["rows"], m["layers"]) for m in missing] == [(0, 48, 4)]
    assert request.record.keys() == set(range(48, 104))


def test_consumers_that_cannot_read_a_fill_of_minus_1_get_zeros_and_the_validity(start):
    engine = start(options=Options(fill=0))
    engine.add("a", list(range(10, 60)), cached=16, max_tokens=1)
    engine.check = lambda *arguments: None  # which expects -1
    array = {}
    while not array:
        array = engine.step()
    assert (array["a"][:16] == 0).all()
    assert module.validity_of("a").sum(0).tolist() == [34] * 4
    np.testing.assert_array_equal(array["a"][16:], engine.model.expected(range(10, 60))[16:])


def test_lazy_results_are_arrays_to_whoever_looks_at_them(start):
    import copy
    import pickle

    engine = start(options=Options(lazy=True))
    engine.add("a", list(range(10, 60)), max_tokens=3)
    engine.add("b", list(range(10, 20)), max_tokens=30)
    result = {}
    while not result:
        result = engine.step()
    pending = result["a"]
    assert (
        pending.shape == (52, 4, 4)
        and len(pending) == 52
        and pending.nbytes == 52 * 16 * 2
        and pending.dtype == np.int16
    )
    array = np.asarray(pending)
    np.testing.assert_array_equal(array[:50], engine.model.expected(range(10, 60)))
    np.testing.assert_array_equal(pending[3:5], array[3:5])
    for same in (pickle.loads(pickle.dumps(pending)), copy.deepcopy(pending)):
        assert type(same) is np.ndarray and (same == array).all()
    assert (
        pending.validity().all()
        and pending.ready
        and np.asarray(pending, np.int32).dtype == np.int32
    )
    prompt, generated = module.split_routed_experts(pending, 50, 3)
    assert len(prompt) == 50 and len(generated) == 2
    assert engine.requests and engine.step() == {}
    assert (np.asarray(pending) == array).all()  # its request is freed


def test_a_request_that_was_thought_to_end_goes_on_without_losing_a_row(start):
    engine = start()
    request = engine.add("a", list(range(10, 40)), max_tokens=4)
    engine.add("b", list(range(10, 20)), max_tokens=40)
    engine.abort, stop = (lambda req_id: None), engine.abort  # the scheduler thinks otherwise
    while "a" not in engine.arrays:
        engine.step()
    request.sampling_params.max_tokens = 20
    module.get_global_experts_capturer()._requests.find("a").rule._maximum = 20
    engine.abort = stop
    engine.run()
    assert len(engine.arrays["a"]) == 30 + 20 - 1


@pytest.mark.parametrize("kept", ["drop", "keep"])
def test_a_request_that_was_thought_to_end_may_be_preempted_instead(start, kept):
    engine = start(options=Options(preempted=kept), keep_preempted=kept == "keep")
    request = engine.add("a", list(range(10, 40)), max_tokens=4)
    engine.abort, stop = (lambda req_id: None), engine.abort
    while "a" not in engine.arrays:
        engine.step()
    request.sampling_params.max_tokens = 20
    module.get_global_experts_capturer()._requests.find("a").rule._maximum = 20
    engine.abort = stop
    engine.set_version(3)
    engine.preempt("a")
    engine.run()
    assert len(engine.arrays["a"]) == 30 + 20 - 1
    assert set(request.record.values()) == ({0, 3} if kept == "keep" else {3})


def test_requests_that_end_unseen_can_still_be_read_if_they_are_kept(start):
    engine = start(options=Options(keep_ended=2))
    for name in "abcd":
        engine.add(name, list(range(10, 40)), max_tokens=100)
    for _ in range(12):
        engine.step()
    ended = {name: engine.requests[name] for name in "abc"}
    for name in "abc":
        engine.abort(name)
        engine.step()
    assert (
        module.get_global_experts_capturer().get_routed_experts("a") is None
    )  # pushed out by the others
    for name in "bc":
        request = ended[name]
        rows = max(request.record) + 1
        assert len(module.routing_of(name)) == rows
        array = module.get_global_experts_capturer().get_routed_experts(name)
        engine.check(request, array, rows)
        assert (
            module.get_global_experts_capturer().get_routed_experts(name) is None
        )  # read once, and freed
    engine.abort("d")
    engine.step()
    assert stats().requests_open == 1


def test_requests_that_end_unseen_are_forgotten_by_default(start):
    engine = start()
    engine.add("a", list(range(10, 40)), max_tokens=100)
    for _ in range(6):
        engine.step()
    engine.abort("a")
    engine.step()
    assert module.routing_of("a") is None and module.validity_of("a") is None
    expect_nothing_kept()


def test_a_preempted_request_s_first_rows_can_be_read_if_they_are_kept(start):
    engine = start(options=Options(preempted="keep"), keep_preempted=True)
    request = engine.add("a", list(range(10, 40)), max_tokens=100)
    engine.add("b", list(range(10, 40)), max_tokens=100)
    while len(request.output_token_ids) < 8:
        engine.step()
    engine.preempt("a")
    engine.set_version(5)
    module.free_routing_buffers(set(), {"a"})
    engine.check(
        request,
        module.get_global_experts_capturer().get_routed_experts("a", free_slot=False),
        len(request.tokens) - 1,
    )
    engine.preempted = set()
    while len(request.output_token_ids) < 20:
        engine.step()
    rows = len(module.routing_of("a"))
    engine.check(
        request, module.get_global_experts_capturer().get_routed_experts("a", free_slot=False), rows
    )
    assert set(request.record.values()) == {0, 5}


def test_a_running_request_can_be_read_at_any_time(start):
    engine = start()
    request = engine.add("a", list(range(10, 200)), max_tokens=40)
    capturer = module.get_global_experts_capturer()
    assert capturer.get_routed_experts("a") is None
    for _ in range(20):
        engine.step()
        rows = max(request.record) + 1
        engine.check(request, capturer.get_routed_experts("a", free_slot=False), rows)
        engine.check(
            request, capturer.get_routed_experts("a", seqlen=7, free_slot=False), min(7, rows)
        )
    assert capturer.get_routed_experts("unknown") is None
    engine.run()


def test_two_models_of_one_process_do_not_disturb_one_another(start):
    FusedMoE.count = 100  # other models were made before
    first = start(Model(layers=6, dense=2), seed=1)
    capturers = [module.get_global_experts_capturer()]
    second = start(Model(layers=9, dense=1, k=2, experts=32), seed=2)
    capturers.append(module.get_global_experts_capturer())
    engines = [first, second]
    for number, engine in enumerate(engines):
        add_mixed(engine, 8, number)
        for request in list(engine.requests.values()):  # the same names in both
            engine.requests[request.req_id[2:]] = engine.requests.pop(request.req_id)
            engine.scripts[request.req_id[2:]] = engine.scripts.pop(request.req_id)
            request.req_id = request.req_id[2:]
        engine.order = list(engine.requests)
    while first.requests or second.requests:
        for engine, capturer in zip(engines, capturers, strict=True):
            with module.use_capturer(capturer):
                assert module.get_global_experts_capturer() is capturer
                engine.step()
    assert first.checked["requests"] == second.checked["requests"] == 8
    assert [c.num_hidden_layers for c in capturers] == [4, 8]


def test_ranks_that_mirror_do_the_same_work_and_keep_nothing(start):
    model = Model()
    module.init_routed_experts_capturer_with_shared_cache(
        True, model.model_config, 0, 64, 512, "cpu", rank=1, world_size=2
    )
    module.bind_routing_capture_to_model(model)
    capturer = module.get_global_experts_capturer()
    assert capturer.get_host_cache() is None and capturer.get_device_cache().buffer.shape == (
        4,
        64,
        4,
    )
    tokens = torch.arange(10, 20)
    model(tokens, torch.arange(10))
    np.testing.assert_array_equal(
        capturer.get_device_cache().buffer[:, :10].transpose(0, 1).numpy(),
        model.expected(range(10, 20)),
    )
    module.issue_routing_d2h_copy(["a"], {"a": 10}, torch.arange(10), torch.arange(10))
    capturer.finalize_pending_copy()
    module.free_routing_buffers({"a"})
    assert module.routing_of("a") is None and capturer.capturer.stats().steps_issued == 0


def test_a_disabled_capturer_does_nothing_at_all():
    capturer = module.init_routed_experts_capturer_with_shared_cache(False, None, 0, 64, 512, "cpu")
    model = Model()
    module.bind_routing_capture_to_model(model)
    assert all(moe.router.capture_fn is None for moe in model.moe if moe)
    module.begin_forward(3)
    module.end_forward()
    capturer.capture(0, torch.zeros(3, 4, dtype=torch.int32))
    module.issue_routing_d2h_copy(
        ["a"], {"a": 1}, torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    )
    capturer.sync_fwd_experts_buffer_DtoH(torch.zeros(1, dtype=torch.int64), {"a": 1})
    capturer.finalize_pending_copy()
    assert (
        module.extract_routed_experts_for_current_batch(["a"], {}, {"a": 0}, np.array([1]), 10)
        is None
    )
    module.free_routing_buffers({"a"}, {"b"})
    assert (
        capturer.get_routed_experts("a") is None
        and capturer.get_host_cache() is None
        and capturer.get_device_cache() is None
    )

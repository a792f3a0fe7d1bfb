"""What the released module got wrong, reproduced in the way in which it was: each test fails with
that behaviour.

The layers, shapes and numbers are those of the reports. What is about counting layers is in
test_model_config.py, stops inside accepted drafts are in test_stops.py.
"""

import functools
import logging
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from engine import EOS, Model, RouterWithoutCallback

import routecap
from routecap_vllm import routed_experts_capturer as module
from routecap_vllm.routed_experts_capturer import Options


def positions_of(*values):
    return torch.tensor(values, dtype=torch.int64)


def forward(model, tokens, positions):
    model(torch.tensor(tokens), positions)


def issue(counts, positions):
    module.issue_routing_d2h_copy(list(counts), counts, positions, torch.zeros_like(positions))


def read(name):
    return module.get_global_experts_capturer().get_routed_experts(name, free_slot=False)


def test_issue_and_finalize_wait_for_no_copy(start, monkeypatch):
    """The asynchronous copy blocked as long as work was queued.

    Here nothing lands before somebody asks for it.
    """
    monkeypatch.setattr(
        "routecap._devices.Capturer", functools.partial(routecap.Capturer, manual_progress=True)
    )
    model = Model()
    start(model, options=Options(slots=6))
    capturer = module.get_global_experts_capturer()
    for step in range(4):
        forward(model, [10 + step], positions_of(step))
        issue({"a": 1}, positions_of(step))
        capturer.finalize_pending_copy()
        stats = capturer.capturer.stats()
        assert (stats.steps_issued, stats.steps_landed) == (step + 1, 0)
    np.testing.assert_array_equal(read("a"), model.expected([10, 11, 12, 13]))  # which waits
    assert capturer.capturer.stats().steps_landed == 4


def test_the_positions_buffer_of_the_host_is_neither_read_nor_written(start):
    model = Model()
    start(model)
    forward(model, [10, 11], positions_of(0, 1))
    stale = positions_of(7, 7)
    module.issue_routing_d2h_copy(["a"], {"a": 2}, positions_of(0, 1), stale)
    assert stale.tolist() == [7, 7]
    np.testing.assert_array_equal(read("a"), model.expected([10, 11]))


def test_physical_ids_are_not_passed_for_logical_ones(start):
    """The copy was made after the mapping to replicas."""
    replicas = torch.randperm(128, generator=torch.Generator().manual_seed(0)).view(64, 2)
    for router in ({}, {"router": RouterWithoutCallback}):
        model = Model(replicas=replicas, **router)
        tokens = list(range(10, 20))
        physical = model.moe[2].router.select_experts(torch.tensor(tokens), torch.arange(10))[1]
        engine = start(model)
        assert not np.array_equal(physical.numpy(), model.expected(tokens)[:, 0])
        engine.add("a", tokens, max_tokens=1)
        engine.run()


def test_a_kernel_that_leaves_its_buffer_alone_is_missing_and_not_zero(start, caplog):
    """apply_monolithic was called without the buffer: all zeros."""
    model = Model(internal=True)
    start(model)
    for moe in filter(None, model.moe):
        moe._routing_replay_out = None
    forward(model, [10, 11, 12], positions_of(0, 1, 2))
    issue({"a": 3}, positions_of(0, 1, 2))
    assert (read("a") == -1).all() and not module.validity_of("a").any()
    with caplog.at_level(logging.ERROR):
        module.get_global_experts_capturer().finalize_pending_copy()
    assert "layers [2, 3, 4, 5] of the decoder have written nothing" in caplog.text
    assert module.get_global_experts_capturer().silent_layers() == [2, 3, 4, 5]


def test_a_layer_that_is_skipped_is_missing_and_not_the_last_batch_s(start):
    model = Model()
    start(model)
    forward(model, [10, 11], positions_of(0, 1))
    issue({"a": 2}, positions_of(0, 1))
    model.moe[3].skip = True
    forward(model, [20, 21], positions_of(0, 1))
    issue({"b": 2}, positions_of(0, 1))
    np.testing.assert_array_equal(read("a"), model.expected([10, 11]))
    got, want = read("b"), model.expected([20, 21])
    assert (got[:, 1] == -1).all()
    np.testing.assert_array_equal(got[:, [0, 2, 3]], want[:, [0, 2, 3]])
    assert module.validity_of("b").tolist() == [[True, False, True, True]] * 2


@pytest.mark.parametrize("bad", [40000, 65541, -7, 64])
def test_ids_out_of_range_are_missing_and_not_wrapped(start, bad):
    """40000 came as -25536 and 65541 as 5."""
    model = Model()
    start(model)
    router, original = model.moe[3].router, model.moe[3].router._compute_routing

    def out_of_range(tokens, positions):
        weights, ids = original(tokens, positions)
        ids[1, 2] = bad
        return weights, ids

    router._compute_routing = out_of_range
    forward(model, [10, 11, 12], positions_of(0, 1, 2))
    issue({"a": 3}, positions_of(0, 1, 2))
    want = model.expected([10, 11, 12])
    want[1, 1] = -1
    np.testing.assert_array_equal(read("a"), want)


def test_through_the_op_ids_out_of_range_are_missing_too(start):
    start(bind=False)
    buffer = module.get_global_experts_capturer().get_device_cache().buffer
    module.begin_forward(2)
    for layer in range(4):
        torch.ops.vllm.capture_routing(
            buffer, torch.tensor([[1, 2, 3, 4], [5, 6, 7, 65541]]), layer, 2
        )
    module.end_forward()
    issue({"a": 2}, positions_of(0, 1))
    assert read("a").tolist() == [[[1, 2, 3, 4]] * 4, [[-1] * 4] * 4]


@pytest.mark.parametrize("bad", [-1, 512, 1 << 40, -(1 << 60)])
def test_one_bad_position_spoils_neither_its_step_nor_later_ones(start, bad):
    """After one, every later step failed for every request."""
    model = Model()
    start(model)
    forward(model, [10, 20, 21], positions_of(bad, 0, 1))
    issue({"a": 1, "b": 2}, positions_of(bad, 0, 1))
    forward(model, [11, 22], positions_of(1, 2))
    issue({"a": 1, "b": 1}, positions_of(1, 2))
    np.testing.assert_array_equal(read("b"), model.expected([20, 21, 22]))
    got = read("a")
    assert (got[0] == -1).all() and (got[1] == model.expected([0, 11])[1]).all() and len(got) == 2
    capturer = module.get_global_experts_capturer()
    forward(model, [10, 23], positions_of(bad, 3))
    capturer.sync_fwd_experts_buffer_DtoH(positions_of(bad, 3), {"a": 1, "b": 1})
    np.testing.assert_array_equal(read("b"), model.expected([20, 21, 22, 23]))


def test_the_caller_may_clear_its_dict_at_once(start):
    model = Model()
    start(model)
    counts = {"a": 2, "b": 1}
    forward(model, [10, 11, 20], positions_of(0, 1, 0))
    module.issue_routing_d2h_copy(
        ["b", "x", "a"], counts, positions_of(0, 0, 1), positions_of(0, 0, 0)
    )
    counts.clear()
    forward(model, [12], positions_of(2))
    module.issue_routing_d2h_copy(["a"], {"a": 1}, positions_of(2), positions_of(0))
    assert len(read("a")) == 3 and len(read("b")) == 1 and read("x") is None


def test_the_caller_may_reuse_its_positions_at_once(start):
    model = Model()
    start(model)
    positions = positions_of(0, 1, 2)
    forward(model, [10, 11, 12], positions)
    issue({"a": 3}, positions)
    positions.fill_(9)
    np.testing.assert_array_equal(read("a"), model.expected([10, 11, 12]))


def test_a_rejected_draft_does_not_survive_in_the_last_row(start):
    """After a partly rejected last verification row P+G-1 held the rejected draft's routing, and
    the clip to G rows let it pass.
    """
    model = Model()
    start(model)
    request = SimpleNamespace(
        num_prompt_tokens=4,
        output_token_ids=[50],
        sampling_params=SimpleNamespace(
            min_tokens=0, max_tokens=4, stop_token_ids=None, eos_token_id=EOS, ignore_eos=False
        ),
    )
    arguments = ({"a": request}, {"a": 0}, np.array([5]), 512)
    forward(model, [10, 11, 12, 13], positions_of(0, 1, 2, 3))
    issue({"a": 4}, positions_of(0, 1, 2, 3))
    assert module.extract_routed_experts_for_current_batch(["a"], *arguments) is None
    forward(
        model, [50, 51, 52, 99, 98], positions_of(4, 5, 6, 7, 8)
    )  # of four drafts, two are accepted
    issue({"a": 5}, positions_of(4, 5, 6, 7, 8))
    request.output_token_ids = [50, 51, 52, 53]
    array = module.extract_routed_experts_for_current_batch(["a"], *arguments)["a"]
    np.testing.assert_array_equal(array, model.expected([10, 11, 12, 13, 50, 51, 52]))
    _, generated = module.split_routed_experts(array, 4, 4)
    np.testing.assert_array_equal(generated, model.expected([10, 11, 12, 13, 50, 51, 52])[4:])


def test_a_draft_that_was_rejected_in_the_middle_is_replaced_by_what_came_instead(start):
    model = Model()
    start(model)
    forward(model, [10, 99, 98], positions_of(0, 1, 2))
    issue({"a": 3}, positions_of(0, 1, 2))
    forward(model, [11, 97], positions_of(1, 2))
    issue({"a": 2}, positions_of(1, 2))
    forward(model, [12], positions_of(2))
    issue({"a": 1}, positions_of(2))
    np.testing.assert_array_equal(read("a"), model.expected([10, 11, 12]))


def test_drafts_beyond_the_model_s_length_are_dropped_and_nothing_fails(start):
    """Growth was limited to max_model_len, and the write of a draft beyond it was an IndexError."""
    model = Model()
    start(model, max_model_len=8)
    tokens, positions = list(range(10, 18)), torch.arange(8)
    forward(model, tokens, positions)
    issue({"a": 8}, positions)
    forward(model, [17, 90, 91], positions_of(7, 8, 9))
    issue({"a": 3}, positions_of(7, 8, 9))
    np.testing.assert_array_equal(read("a"), model.expected(tokens))


def test_a_dummy_forward_pass_leaves_nothing_in_the_next_step(start):
    model = Model()
    start(model)
    forward(model, list(range(40)), torch.arange(40))
    model.moe[2].skip = True
    forward(model, [10, 11], positions_of(0, 1))
    issue({"a": 2}, positions_of(0, 1))
    got = read("a")
    assert (got[:, 0] == -1).all() and (got[:, 1:] == model.expected([10, 11])[:, 1:]).all()


def test_a_layer_that_runs_twice_keeps_the_first_and_says_so(start, caplog):
    """A draft model's layer 0 overwrote the target's; two micro-batches both wrote row 0."""
    model = Model()
    start(model)
    capturer = module.get_global_experts_capturer()
    capturer.forward.begin(2)
    with caplog.at_level(logging.ERROR):
        for tokens in ([10, 11], [90, 91]):
            for moe in filter(None, model.moe):
                moe(torch.tensor(tokens), positions_of(0, 1))
    capturer.forward.end()
    issue({"a": 2}, positions_of(0, 1))
    np.testing.assert_array_equal(read("a"), model.expected([10, 11]))
    assert "recorded twice in one forward pass" in caplog.text


def test_micro_batches_are_whole_where_it_is_said_where_each_begins(start):
    model = Model()
    base = [0]
    start(model, options=Options(place=lambda rows: (0, base[0], rows)))
    capturer = module.get_global_experts_capturer()
    tokens, positions = list(range(10, 20)), torch.arange(10)
    capturer.forward.begin(10)
    for moe in filter(None, model.moe):
        for first, end in ((0, 6), (6, 10)):
            base[0] = first
            moe(torch.tensor(tokens)[first:end], positions[first:end])
    capturer.forward.end()
    issue({"a": 10}, positions)
    np.testing.assert_array_equal(read("a"), model.expected(tokens))


def test_steps_beyond_the_slots_are_not_lost_where_the_engine_finalizes(start):
    model = Model()
    start(model, options=Options(slots=2))
    capturer = module.get_global_experts_capturer()
    for step in range(300):
        capturer.finalize_pending_copy()
        forward(model, [10 + step], positions_of(step))
        issue({"a": 1}, positions_of(step))
    assert capturer.capturer.stats().steps_lost == 0
    np.testing.assert_array_equal(read("a"), model.expected(range(10, 310)))


def test_rows_are_read_from_other_threads_while_the_engine_goes_on(start):
    model = Model()
    start(model, options=Options(lazy=True))
    capturer = module.get_global_experts_capturer()
    wrong, results, stop = [], {}, threading.Event()

    def consume():
        seen = set()
        while not (stop.is_set() and seen == set(results)):
            for name in list(results):
                if name not in seen:
                    seen.add(name)
                    if not np.array_equal(
                        np.asarray(results[name]), model.expected(range(int(name), int(name) + 20))
                    ):
                        wrong.append(name)

    thread = threading.Thread(target=consume)
    thread.start()
    positions = torch.arange(20)
    rule = SimpleNamespace(min_tokens=0, max_tokens=1, stop_token_ids=None, eos_token_id=None)
    for number in range(200):
        name = str(number)
        capturer.finalize_pending_copy()
        forward(model, list(range(number, number + 20)), positions)
        issue({name: 20}, positions)
        request = SimpleNamespace(num_prompt_tokens=20, output_token_ids=[5], sampling_params=rule)
        results.update(
            module.extract_routed_experts_for_current_batch(
                [name], {name: request}, {name: 0}, np.array([21]), 512
            )
        )
        module.free_routing_buffers({name})
    stop.set()
    thread.join(60)
    assert not thread.is_alive() and not wrong and len(results) == 200


def test_rows_from_before_a_preemption_do_not_show_after_it(start):
    """The filled length only grew, so that a request that was aborted while it was computed again
    had rows of its first life.
    """
    model = Model()
    start(model)
    tokens, positions = list(range(10, 50)), torch.arange(40)
    forward(model, tokens, positions)
    issue({"a": 40}, positions)
    assert len(read("a")) == 40
    module.free_routing_buffers(set(), {"a"})
    assert read("a") is None
    model.version.fill_(3)
    forward(model, tokens[:16], positions[:16])
    issue({"a": 16}, positions[:16])
    np.testing.assert_array_equal(read("a"), model.expected(tokens[:16], 3))


def test_a_batch_of_the_same_names_goes_on_after_one_was_thought_to_end(start):
    model = Model()
    start(model)
    rule = SimpleNamespace(min_tokens=0, max_tokens=1, stop_token_ids=None, eos_token_id=None)
    request = SimpleNamespace(num_prompt_tokens=1, output_token_ids=[20], sampling_params=rule)
    for step, token in enumerate((10, 20)):
        forward(model, [token, token + 100], positions_of(step, step))
        issue({"a": 1, "b": 1}, positions_of(step, step))
        if step == 0:
            ended = module.extract_routed_experts_for_current_batch(
                ["a", "b"], {"a": request}, {"a": 0}, np.array([2]), 512
            )
            np.testing.assert_array_equal(ended["a"], model.expected([10]))
    np.testing.assert_array_equal(read("a"), model.expected([10, 20]))
    np.testing.assert_array_equal(read("b"), model.expected([110, 120]))


def test_one_name_again_is_another_request(start):
    model = Model()
    start(model, options=Options(keep_ended=4))
    forward(model, [10, 11, 12], positions_of(0, 1, 2))
    issue({"a": 3}, positions_of(0, 1, 2))
    module.free_routing_buffers({"a"})
    np.testing.assert_array_equal(read("a"), model.expected([10, 11, 12]))
    forward(model, [20], positions_of(0))
    issue({"a": 1}, positions_of(0))
    np.testing.assert_array_equal(read("a"), model.expected([20]))
    module.free_routing_buffers({"a"}, {"a", "unknown"})
    np.testing.assert_array_equal(read("a"), model.expected([20]))

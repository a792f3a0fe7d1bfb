"""Drafts that were rejected. Their rows were replaced by those of the true tokens only where these
had been captured: where no layer was, or the step was lost, a rejected draft's ids came out as the
true token's, marked as valid."""

import functools
import random

import numpy as np
import pytest
import torch
from driver import EVERY, PLACES, PROMPT, Driver
from engine import Hidden

import routecap
from routecap_vllm import routed_experts_capturer as module


@pytest.fixture(params=PLACES)
def drive(request, start, monkeypatch):
    return functools.partial(Driver, monkeypatch, **PLACES[request.param])


@pytest.mark.parametrize("silent", [[2], [0, 1, 2], EVERY], ids=["one", "most", "all"])
def test_a_cell_that_was_not_captured_is_missing_and_not_the_rejected_draft_s(drive, silent):
    driver = drive(max_tokens=3)
    driver.step(0, PROMPT, [20])
    driver.step(3, [20, 99], [20, 30])
    array = driver.step(4, [30], [20, 30, 40], silent)
    np.testing.assert_array_equal(array, driver.expected([*PROMPT, 20, 30], [(4, silent)]))
    assert module.validity_of("a")[4].tolist() == [layer not in silent for layer in range(4)]


def test_a_row_whose_step_was_lost_is_missing_and_not_the_draft_s(drive, monkeypatch):
    by_hand = functools.partial(routecap.Capturer, manual_progress=True, may_lose=True)
    monkeypatch.setattr("routecap._devices.Capturer", by_hand)
    driver = drive(max_tokens=3)
    driver.step(0, PROMPT, [20])
    driver.step(3, [20, 99], [20, 30])
    with pytest.warns(routecap.LostStepWarning):
        for position in range(4):  # nobody finalizes
            driver.issue(position, [50], name="b")
    driver.issue(4, [30])
    assert driver.capturer.capturer.stats().steps_lost > 0
    array = driver.extract([20, 30, 40])
    np.testing.assert_array_equal(array, driver.expected([*PROMPT, 20, 30], [(4, EVERY)]))


def test_a_request_can_be_read_when_the_last_step_was_lost(start, monkeypatch):
    by_hand = functools.partial(routecap.Capturer, manual_progress=True, may_lose=True)
    monkeypatch.setattr("routecap._devices.Capturer", by_hand)
    driver = Driver(monkeypatch)
    driver.issue(0, PROMPT)
    with pytest.warns(routecap.LostStepWarning):
        for position in range(3):
            driver.issue(position, [50], name="b")
    ticket = driver.capturer._requests.last_ticket
    assert driver.capturer.capturer.issued(ticket).poll() is routecap.Status.LOST
    np.testing.assert_array_equal(driver.rows(), driver.expected(PROMPT))


def test_what_was_rejected_is_cut_once_and_where_nothing_was_there_is_no_call(drive):
    driver = drive()
    outputs = [20]
    driver.step(0, PROMPT, outputs)  # a prompt in one step
    for token in (21, 22, 23):  # decoding
        driver.step(2 + len(outputs), outputs[-1:], [*outputs, token])
        outputs.append(token)
    assert driver.cuts == []
    driver.step(6, [23, 24, 25], outputs := [*outputs, 24, 25, 26])  # both drafts are right
    assert driver.cuts == []
    driver.step(9, [26, 90, 91, 92], outputs := [*outputs, 27])  # none is
    assert driver.cuts == [10]
    driver.step(10, [27, 28, 93], outputs := [*outputs, 28, 29])  # one is
    assert driver.cuts == [10, 12]
    driver.step(12, [29], [*outputs, 30])
    assert driver.cuts == [10, 12]
    np.testing.assert_array_equal(driver.rows(), driver.expected([*PROMPT, *outputs]))


def test_a_prompt_in_chunks_is_never_cut(drive):
    driver = drive()
    for first in (0, 1, 2):
        driver.step(first, PROMPT[first : first + 1], [20] if first == 2 else [])
    module.free_routing_buffers(set(), {"a"})  # preempted: everything is computed again, in chunks
    driver.step(0, PROMPT[:2], [20])
    driver.step(2, [12, 20], [20, 21])
    driver.step(4, [21, 22], [20, 21, 22, 23])
    assert driver.cuts == [] or not driver.computed  # then it cuts what is not there
    np.testing.assert_array_equal(driver.rows(), driver.expected([*PROMPT, 20, 21, 22]))


@pytest.mark.parametrize("accepted", [0, 1, 2])
def test_outputs_that_are_not_known_yet_cut_when_the_request_goes_on(start, monkeypatch, accepted):
    """Scheduling ahead: an output is -1 for good, and accepted drafts count a step later."""
    for kind in (torch.Tensor, Hidden):
        driver = Driver(monkeypatch, kind)
        driver.step(0, PROMPT, [-1])
        driver.step(3, [20, *[21, 22][:accepted], *[90, 91][accepted:]], [-1, -1])
        expected = driver.expected([*PROMPT, 20])  # of the others nobody knows
        np.testing.assert_array_equal(driver.rows(), expected)
        tokens = [*PROMPT, 20, 21, 22][: 4 + accepted]
        driver.step(4 + accepted, [40, 92], [-1] * (3 + accepted), silent=[1])
        assert driver.cuts == ([4 + accepted] if accepted < 2 else [])
        driver.step(5 + accepted, [41], [-1] * (4 + accepted), silent=EVERY)
        holes = [(4 + accepted, [1]), (5 + accepted, EVERY)]
        expected = driver.expected([*tokens, 40, 41], holes)
        np.testing.assert_array_equal(driver.rows(), expected[: len(driver.rows())])
        assert driver.cuts[-1] == 5 + accepted
        module.free_routing_buffers({"a"})


def test_a_request_that_is_read_before_its_drafts_are_verified_shows_none(drive):
    driver = drive()
    driver.step(0, PROMPT, [20])
    driver.issue(3, [20, 99, 98])
    np.testing.assert_array_equal(driver.rows(), driver.expected([*PROMPT, 20]))
    driver.extract([20, 30])
    np.testing.assert_array_equal(driver.rows(), driver.expected([*PROMPT, 20]))


def test_a_request_that_is_aborted_before_its_drafts_are_verified_shows_none(start, monkeypatch):
    driver = Driver(monkeypatch, keep_ended=1)
    driver.step(0, PROMPT, [20])
    driver.issue(3, [20, 99, 98])
    module.free_routing_buffers({"a"})
    np.testing.assert_array_equal(driver.rows(), driver.expected([*PROMPT, 20]))


def test_without_outputs_positions_that_are_input_again_are_cut(start, monkeypatch):
    """An engine that hands over positions, and calls nothing that tells outputs."""
    driver = Driver(monkeypatch)
    for first, tokens, silent in ((0, [10, 99, 98], []), (1, [11, 97], [0]), (2, [12], EVERY)):
        driver.capturer.finalize_pending_copy()
        driver.issue(first, tokens, silent)
    assert driver.cuts == [1, 2]
    np.testing.assert_array_equal(driver.rows()[:2], driver.expected([10, 11], [(1, [0])]))
    assert (driver.rows()[2:] == -1).all()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("blind", [False, True], ids=["on the host", "positions on a device"])
@pytest.mark.parametrize("asynchronous", [False, True], ids=["synchronous", "asynchronous"])
def test_no_draft_s_id_is_delivered_whatever_is_not_captured(start, seed, blind, asynchronous):
    engine = start(drafts=3, seed=seed, asynchronous=asynchronous, holes=0.6, blind=blind)
    draw = random.Random(seed)
    for i in range(12):
        prompt = [draw.randrange(3, 1000) for _ in range(draw.randint(1, 100))]
        engine.add(f"{i}", prompt, max_tokens=draw.randint(1, 40))
    for step in range(60):
        if step % 7 == 6 and engine.requests:
            engine.preempt(draw.choice(list(engine.requests)))
        engine.step()
    engine.run()
    assert engine.checked["requests"] == 12 and engine.checked["drafts rejected"] > 50

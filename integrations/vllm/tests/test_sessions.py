"""Requests whose outputs begin again or become fewer. A session's next turn has the same name, a
longer prompt, an empty list of outputs and parameters of its own, and nobody reports the turn
before as finished: it came with the rows of the turn before, or not at all. Where outputs were
taken back (a failed load of the key-value cache), the end went unnoticed."""

import functools

import numpy as np
import pytest
from driver import EVERY, PLACES, PROMPT, Driver, sampling

from routecap_vllm import routed_experts_capturer as module


@pytest.fixture(params=PLACES)
def drive(request, start, monkeypatch):
    return functools.partial(Driver, monkeypatch, **PLACES[request.param])


def next_turn(driver, prompt, parameters=None):
    driver.request.num_prompt_tokens = len(prompt)
    driver.request.output_token_ids.clear()
    if parameters is not None:
        driver.request.sampling_params = parameters


@pytest.mark.parametrize("changed", [False, True], ids=["the same parameters", "other parameters"])
def test_every_turn_of_a_session_comes_with_all_its_rows(drive, changed):
    driver = drive(max_tokens=2)
    tokens = list(PROMPT)
    for turn in range(3):
        first = 0 if turn == 0 else len(tokens) - 4
        assert driver.step(first, tokens[first:], [20 + turn]) is None
        array = driver.step(len(tokens), [20 + turn], [20 + turn, 40])
        tokens.append(20 + turn)
        np.testing.assert_array_equal(array, driver.expected(tokens))
        tokens += [50, 51, 52, 53]  # instead of the last token sampled, which was never input
        next_turn(driver, tokens, sampling(max_tokens=2) if changed else None)
    assert driver.cuts == []


def test_a_turn_that_ends_by_its_own_stop_token_comes(drive):
    driver = drive(max_tokens=5)
    driver.step(0, PROMPT, [20])
    next_turn(driver, [*PROMPT, 30, 31], sampling(max_tokens=5, eos_token_id=7))
    array = driver.step(3, [30, 31], [7])
    np.testing.assert_array_equal(array, driver.expected([*PROMPT, 30, 31]))


def test_a_turn_does_not_show_rows_that_the_turn_before_computed_too_many(drive):
    """Its last step verified drafts that were accepted, beyond what the next turn keeps."""
    driver = drive()
    driver.step(0, PROMPT, [20])
    driver.step(3, [20, 21, 22], [20, 21, 22, 23])
    next_turn(driver, [*PROMPT, 20, 30, 31], sampling(max_tokens=1))
    array = driver.step(4, [30, 31], [40], silent=EVERY)
    if driver.computed:  # where a turn begins is known
        expected = driver.expected([*PROMPT, 20, 30, 31], [(4, EVERY), (5, EVERY)])
        np.testing.assert_array_equal(array, expected)
    assert len(array) == 6


def test_a_prompt_of_the_next_turn_may_come_in_chunks(drive):
    driver = drive(max_tokens=1)
    np.testing.assert_array_equal(driver.step(0, PROMPT, [20]), driver.expected(PROMPT))
    prompt = [*PROMPT, *range(30, 40)]
    next_turn(driver, prompt)
    for first, end in ((3, 7), (7, 8), (8, 12)):
        assert driver.step(first, prompt[first:end], []) is None
    np.testing.assert_array_equal(driver.step(12, prompt[12:], [21]), driver.expected(prompt))


def test_drafts_that_are_rejected_in_a_later_turn_do_not_come_out(drive):
    driver = drive(max_tokens=1)
    driver.step(0, PROMPT, [20])
    next_turn(driver, [*PROMPT, 30], sampling(max_tokens=3))
    driver.step(3, [30], [21])
    driver.step(4, [21, 99], [21, 22])
    array = driver.step(5, [22], [21, 22, 23], silent=EVERY)
    np.testing.assert_array_equal(array, driver.expected([*PROMPT, 30, 21, 22], [(5, EVERY)]))


@pytest.mark.parametrize("left", [1, 2, 3, 4])
@pytest.mark.parametrize("ended", [20, 7], ids=["by its number", "by a stop token"])
def test_an_end_behind_outputs_that_became_fewer_is_found(drive, left, ended):
    driver = drive(max_tokens=6 if ended == 20 else 50, eos_token_id=7)
    outputs = [20, 21, 22, 23, 24]
    driver.step(0, PROMPT, outputs[:1])
    for count in range(1, 5):
        driver.step(2 + count, outputs[count - 1 : count], outputs[: count + 1])
    del outputs[left:]
    tokens = [*PROMPT, *outputs]
    array = driver.step(2, tokens[2:], [*outputs, 7 if ended == 7 else 30])  # from a block's start
    if ended == 20:
        for token in range(30, 35 - left):
            tokens.append(token)
            outputs.append(token)
            array = driver.step(len(tokens) - 1, [token], [*outputs, token + 1])
    np.testing.assert_array_equal(array, driver.expected(tokens))


def test_rows_that_were_computed_again_are_missing_and_not_those_of_before(drive):
    """Computed from a cache that was not loaded, and then again, when layers chose nothing."""
    driver = drive(max_tokens=4)
    driver.model.version.fill_(9)
    driver.step(0, PROMPT, [20])
    driver.step(3, [20], [20, 21])
    driver.model.version.fill_(0)
    driver.step(0, PROMPT[:2], [20], silent=[1])
    driver.step(2, [12, 20], [20, 22], silent=EVERY)
    driver.step(4, [22], [20, 22, 23])
    array = driver.step(5, [23], [20, 22, 23, 24])
    holes = [(0, [1]), (1, [1]), (2, EVERY), (3, EVERY)]
    if driver.computed:
        np.testing.assert_array_equal(array, driver.expected([*PROMPT, 20, 22, 23], holes))
    assert len(array) == 6


def test_a_session_under_scheduling_ahead_comes_with_all_its_rows(drive):
    """Every output is -1, for good; the step behind the end of a turn has run already."""
    driver = drive(max_tokens=2)
    driver.step(0, PROMPT, [-1])
    np.testing.assert_array_equal(driver.step(3, [20], [-1, -1]), driver.expected([*PROMPT, 20]))
    driver.step(4, [21], [-1, -1, -1])
    prompt = [*PROMPT, 20, 30, 31, 32]
    next_turn(driver, prompt, sampling(max_tokens=2))
    driver.step(4, prompt[4:], [-1])
    np.testing.assert_array_equal(driver.step(7, [22], [-1, -1]), driver.expected([*prompt, 22]))
    assert module.validity_of("a").all()


def test_a_request_whose_end_is_told_too_late_can_be_read_if_it_is_kept(drive):
    """Scheduling ahead, the worker learns of a stop token when the request is over, or never."""
    driver = drive(keep_ended=1, eos_token_id=7)
    driver.step(0, PROMPT, [-1])
    driver.step(3, [20], [-1, -1])
    assert driver.step(4, [7], [-1, -1, -1]) is None  # which was the end
    module.free_routing_buffers({"a"})
    np.testing.assert_array_equal(driver.rows(), driver.expected([*PROMPT, 20, 7]))

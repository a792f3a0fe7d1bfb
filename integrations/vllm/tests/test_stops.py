"""The stop rules: the released module looked at the last token only, so a stop in the middle of
accepted drafts, or found later, went unnoticed.
"""

from types import SimpleNamespace

import pytest

from routecap_vllm._stops import StopRule

EOS, STOP = 2, 7


def rule(prompt=5, max_model_len=100, **sampling):
    defaults = {
        "min_tokens": 0,
        "max_tokens": 50,
        "stop_token_ids": None,
        "eos_token_id": EOS,
        "ignore_eos": False,
    }
    return StopRule(SimpleNamespace(**(defaults | sampling)), prompt, max_model_len)


@pytest.mark.parametrize(
    ("sampling", "outputs", "end"),
    [
        ({}, [10, 11], None),
        ({}, [10, EOS], 2),
        ({"ignore_eos": True}, [10, EOS], None),
        ({"eos_token_id": None}, [10, EOS], None),
        ({"stop_token_ids": [STOP]}, [10, STOP], 2),
        ({"stop_token_ids": [STOP]}, [STOP, 10], 1),
        ({"max_tokens": 2}, [10, 11], 2),
        ({"max_tokens": 3}, [10, 11], None),
        ({"max_tokens": None}, [10] * 94, None),
        ({"max_tokens": None}, [10] * 95, 95),
        ({"min_tokens": 3}, [10, EOS], None),
        ({"min_tokens": 3}, [10, 11, EOS], 3),
        ({"min_tokens": 3, "max_tokens": 2}, [10, 11], None),
        ({"min_tokens": 2}, [EOS, EOS], 2),
    ],
    ids=str,
)
def test_a_request_ends_where_the_scheduler_ends_it(sampling, outputs, end):
    assert rule(**sampling).check(outputs, 0)[0] == end


def test_the_length_of_the_model_ends_a_request():
    assert rule(prompt=8, max_model_len=10).check([10], 0) == (None, 1)
    assert rule(prompt=8, max_model_len=10).check([10, 11], 1) == (2, 2)


def test_a_stop_inside_several_accepted_tokens_is_found_where_it_is():
    assert rule().check([10, 11, EOS, 12, 13], 2) == (3, 3)
    assert rule(max_tokens=3).check([10, 11, 12, 13, 14], 1) == (3, 3)


def test_tokens_that_were_seen_are_not_looked_at_again():
    assert rule().check([EOS, 11], 1) == (None, 2)


def test_a_token_that_is_not_known_yet_is_looked_at_later():
    r = rule()
    assert r.check([10, -1], 0) == (None, 1)
    assert r.check([10, EOS, -1], 1) == (2, 2)
    assert r.check([10, 11, -1], 1) == (None, 2)


def test_a_token_that_is_not_known_yet_ends_a_request_by_its_number():
    assert rule(max_tokens=2).check([10, -1], 0) == (2, 2)
    assert rule(max_tokens=3).check([10, -1, -1], 0) == (
        None,
        1,
    )  # the second may be the end of the sequence


def test_tokens_that_stay_unknown_for_a_step_are_passed_over_from_then_on():
    """Scheduling ahead, vLLM's worker appends -1 for each token, and never learns most of them."""
    r = rule(max_tokens=4)
    assert r.check([-1], 0, 0) == (None, 0)
    assert r.check([-1, -1], 0, 1) == (None, 2)
    assert r.check([-1, -1, -1], 2, 2) == (None, 3)
    assert r.check([-1, -1, -1, -1], 3, 3) == (4, 4)
    assert rule(max_tokens=2).check([-1, -1], 0, 1) == (2, 2)


def test_a_token_that_is_told_a_step_later_is_looked_at_then():
    r = rule()
    assert r.check([10, -1], 0, 0) == (None, 1)
    assert r.check([10, 11, -1], 1, 2) == (None, 2)
    assert r.check([10, 11, EOS, -1], 2, 3) == (3, 3)


def test_one_token_that_is_no_end_is_told_at_a_glance():
    r = rule(stop_token_ids=[STOP], max_tokens=3)
    assert r.goes_on(2, 10)
    assert not (r.goes_on(3, 10) or r.goes_on(2, STOP) or r.goes_on(2, EOS) or r.goes_on(2, -1))

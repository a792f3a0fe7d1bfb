"""Conversations out of calls, as a program in Python has them.

The contract itself is in the vectors.
"""

import copy
import pickle
import threading
import zlib
from typing import Any

import numpy as np
import pytest
import routecap
from numpy.typing import NDArray

LAYERS, K, EXPERTS = 3, 2, 16


def computed(tokens: list[int], first: int = 0) -> NDArray[np.uint8]:
    """The rows of a call of an engine: each depends on every token before."""
    rows, before = [], 0
    for position, token in enumerate(tokens[:-1]):
        before = zlib.crc32(token.to_bytes(8, "little"), before)
        if position < first:
            continue
        choose = np.random.default_rng(before)
        rows.append([choose.permutation(EXPERTS)[:K] for _ in range(LAYERS)])
    return np.array(rows, np.uint8).reshape(-1, LAYERS, K)


def routing(tokens: list[int], first: int = 0) -> routecap.Routing:
    return routecap.Routing.from_arrays(computed(tokens, first), experts=EXPERTS, first=first)


def sequence(**settings: Any) -> routecap.Sequence:
    return routecap.Sequence(LAYERS, K, EXPERTS, **settings)


def test_turns_of_a_conversation() -> None:
    one, two = [5, 6, 7], [5, 6, 7, 8, 9]
    conversation = routecap.Sequence.like(routing(one))
    report = conversation.append(one, routing(one), tag=3)
    assert report.complete and report.first_differed is None
    report = conversation.append(np.array(two), routing(two), tag=4, origin=1)
    assert (report.tokens_common, report.rows_overlap, report.rows_boundary) == (3, 2, 1)
    assert len(conversation) == 5 and conversation.tokens.tolist() == two
    np.testing.assert_array_equal(conversation.routing().ids(), computed(two))
    assert conversation.spans() == [(0, 2, 1, 3, 0), (2, 2, 2, 4, 1)]
    assert conversation.report().rows_taken == 4


def test_a_call_without_what_is_known() -> None:
    one, two = [5, 6, 7], [5, 6, 7, 8, 9]
    conversation = sequence()
    conversation.append(one, routing(one))
    conversation.append([8, 9], routing(two, first=2), token_start=3)
    np.testing.assert_array_equal(conversation.routing().ids(), computed(two))


def test_samples_of_one_prompt() -> None:
    prompt = [5, 6, 7]
    parent = sequence()
    parent.append(prompt, routing(prompt))
    for sample in range(3):
        child = parent.fork()
        child.append([*prompt, sample, 9], routing([*prompt, sample, 9]))
        np.testing.assert_array_equal(child.routing().ids(), computed([*prompt, sample, 9]))
    assert len(parent) == 3 and len(parent.fork(2)) == 2
    parent.truncate(1)
    assert len(parent.routing()) == 0


def test_a_conflict_is_an_error_where_that_is_asked_for() -> None:
    conversation = sequence()
    conversation.append([5, 6, 7], routing([5, 6, 7]))
    with pytest.raises(routecap.Error, match="token 1") as caught:
        conversation.append([5, 8], policy="equal")
    assert caught.value.status == routecap.Status.ERR_CONFLICT
    assert len(conversation) == 3


def test_it_goes_to_another_process() -> None:
    tokens = list(range(200))
    conversation = sequence()
    conversation.append(tokens, routing(tokens))
    again = pickle.loads(pickle.dumps(conversation))
    assert again.tokens.tolist() == tokens
    np.testing.assert_array_equal(copy.deepcopy(conversation).routing().ids(), computed(tokens))
    small = conversation.serialize(tokens=False)
    assert len(small) < len(conversation.serialize()) - 700
    told = routecap.Sequence.deserialize(small)
    with pytest.raises(routecap.Error, match="tokens"):
        told.tokens
    assert told.append(tokens).tokens_common == 200
    assert told.tokens.tolist() == tokens
    with pytest.raises(routecap.ArgumentError):
        routecap.Sequence.deserialize(small[:-1])


def test_what_is_no_token() -> None:
    conversation = sequence()
    for wrong in ([1.5], ["a"], [2**31], [[1]], None):
        with pytest.raises(routecap.ArgumentError):
            conversation.append(wrong)
    freed = routing([1, 2])
    freed.free()
    with pytest.raises(routecap.Error, match="freed"):
        conversation.append([1, 2], freed)
    conversation.append([])
    with conversation:
        pass
    with pytest.raises(routecap.Error, match="freed"):
        conversation.append([1])


def test_a_budget() -> None:
    conversation = sequence(budget_bytes=8000)
    conversation.append([1, 2], routing([1, 2]))
    with pytest.raises(MemoryError):
        conversation.append(list(range(2000)))
    assert len(conversation) == 2


def test_one_thread_at_a_time_is_in_a_call() -> None:
    tokens = list(range(3000))
    rows = routing(tokens)
    conversation = sequence()
    refused = []

    def work() -> None:
        for _ in range(20):
            try:
                conversation.append(tokens, rows)
            except routecap.Error as error:
                refused.append(error.status)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(refused) <= {routecap.Status.ERR_STATE}
    np.testing.assert_array_equal(conversation.routing().ids(), computed(tokens))

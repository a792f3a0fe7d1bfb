"""Positions that the host knows become runs, column by column."""

import numpy as np
import pytest

import routecap
from routecap_vllm import _spans

HANDLES = np.array([7, 8, 9], np.uint64)


def runs(rows, positions, limit=1000):
    spans = _spans.runs(
        HANDLES[: len(rows)], np.array(rows, np.uint32), np.array(positions, np.int64), limit
    )
    assert spans.dtype == routecap.span_dtype
    return [
        tuple(int(span[name]) for name in ("request", "position", "sink_row", "rows", "flags"))
        for span in spans
    ]


@pytest.mark.parametrize(
    ("rows", "positions", "expected"),
    [
        ([1, 1, 1], [5, 0, 999], [(7, 5, 0, 1, 0), (8, 0, 1, 1, 0), (9, 999, 2, 1, 0)]),
        ([3, 1], [5, 6, 7, 8], [(7, 5, 0, 3, 0), (8, 8, 3, 1, 0)]),
        ([3], [5, 6, 9], [(7, 5, 0, 2, 0), (7, 9, 2, 1, 0)]),
        ([3], [6, 5, 4], [(7, 6, 0, 1, 0), (7, 5, 1, 1, 0), (7, 4, 2, 1, 0)]),
        ([1, 1], [-1, 3], [(8, 3, 1, 1, 0)]),
        ([1, 1], [1000, 3], [(8, 3, 1, 1, 0)]),
        ([4], [0, -5, 2000, 1], [(7, 0, 0, 1, 0), (7, 1, 3, 1, 0)]),
        ([3, 2], [5, 6, 5, 5, 5], [(7, 6, 1, 1, 0), (7, 5, 2, 1, 0), (8, 5, 4, 1, 0)]),
        ([2], [-1, -1], []),
        ([], [], []),
    ],
    ids=[
        "decoding",
        "a chunk",
        "a gap",
        "falling",
        "negative",
        "beyond the limit",
        "bad ones in the middle",
        "twice",
        "none",
        "empty",
    ],
)
def test_rows_become_runs_of_consecutive_positions(rows, positions, expected):
    assert runs(rows, positions) == expected


def test_fewer_positions_than_rows_are_an_error():
    with pytest.raises(ValueError, match="3 rows, but 2 positions"):
        runs([2, 1], [0, 1])


def columns(spans):
    return [
        tuple(
            int(span[name])
            for name in ("request", "rows", "sink_row", "position", "position_end", "flags")
        )
        for span in spans
    ]


def fill(batch, names, handles, counts):
    return columns(batch.fill(handles, batch.count(names, counts)))


def test_spans_of_a_batch_follow_its_order_and_not_the_dict_s():
    batch = _spans.BatchSpans(1000)
    names, handles = ["a", "b", "c"], HANDLES.copy()
    expected = [(7, 3, 0, 0, 1000, 2), (8, 1, 3, 0, 1000, 2), (9, 2, 4, 0, 1000, 2)]
    assert fill(batch, names, handles, {"c": 2, "x": 9, "a": 3, "b": 1}) == expected
    assert fill(batch, names, handles, {"a": 3, "b": 1, "c": 2}) == expected
    assert fill(batch, names, handles, {"a": 1, "b": 1, "c": 1})[2] == (9, 1, 2, 0, 1000, 2)
    assert fill(batch, ["c"], HANDLES[2:], {"c": 5, "a": 1}) == [(9, 5, 0, 0, 1000, 2)]
    assert fill(batch, ["c", "a"], HANDLES[[2, 0]], {"c": 5, "a": 1}) == [
        (9, 5, 0, 0, 1000, 2),
        (7, 1, 5, 0, 1000, 2),
    ]
    assert fill(batch, names, handles, {"a": 1, "b": 1, "c": 1})[0] == (7, 1, 0, 0, 1000, 2)
    with pytest.raises(KeyError):
        batch.count(names, {"a": 1, "b": 1})
    assert batch.count([], {"a": 1}) == ()


def test_a_batch_that_its_owner_changes_in_place_is_another_batch():
    batch = _spans.BatchSpans(1000)
    names = ["a", "b"]
    assert batch.count(names, {"a": 1, "b": 2, "c": 3}) == (1, 2)
    names[1] = "c"
    assert batch.count(names, {"a": 1, "b": 2, "c": 3}) == (1, 3)
    del names[1]
    assert batch.count(names, {"a": 1}) == (1,)
    names[0] = "b"
    assert batch.count(names, {"b": 2}) == (2,)


def test_batches_may_become_larger_than_any_before():
    batch = _spans.BatchSpans(1000)
    for n in (3, 300, 2000, 5):
        names = [str(i) for i in range(n)]
        handles = np.arange(1, n + 1, dtype=np.uint64)
        spans = batch.fill(handles, batch.count(names, dict.fromkeys(names, 2)))
        assert (spans["request"] == handles).all() and (
            spans["sink_row"] == np.arange(0, 2 * n, 2)
        ).all()
        assert (spans["flags"] == 2).all() and (spans["position_end"] == 1000).all()

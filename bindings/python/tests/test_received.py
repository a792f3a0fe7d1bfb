"""The two calls that check a dispatch, on NumPy stand-ins of what DeepEP v2 gives a rank. With
torch's own, and with two processes: torch_tensors/test_deepep.py.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import routecap
from numpy.typing import NDArray
from routecap import _received as received
from routecap import _structs as structs

RANKS, EXPERTS, K, M = 2, 8, 3, 4
LOCAL = EXPERTS // RANKS
Ids = NDArray[np.int64]


@pytest.fixture
def capturer() -> Iterator[routecap.Capturer]:
    with routecap.Capturer(layers=1, k=1, experts=1, rows=1) as made:
        yield made


class Came(NamedTuple):
    """What a rank has after a dispatch with do_expand=False and do_cpu_sync=False."""

    metadata: NDArray[np.int32]
    live_rows: NDArray[np.int32]
    ids: Ids


def dispatch(sent: list[Ids], rank: int, m: int = M) -> Came:
    """The rows of one rank, the last first. What lies behind them looks like rows."""
    metadata = np.full((RANKS * m, 2 + K), 1, np.int32)
    ids = np.full((RANKS * m, K), 2, np.int64)
    here = [ids_of // LOCAL == rank for ids_of in sent]  # -1 is no rank's
    rows = [(s, t) for s in range(RANKS) for t in range(len(sent[s])) if here[s][t].any()][::-1]
    for row, (source, token) in enumerate(rows):
        metadata[row, 0] = source * m + token
        mine = here[source][token]
        ids[row] = np.where(mine, sent[source][token] - rank * LOCAL, -1)
    return Came(metadata, np.array([len(rows)], np.int32), ids)


def check(
    capturer: routecap.Capturer,
    chosen: list[Ids],
    came: list[Came],
    m: int = M,
    global_ids: bool = False,
) -> list[received.Counts]:
    """A step of all ranks, with a sum for the all-reduce."""
    counts = np.zeros((RANKS, len(received.Counts._fields)), np.int64)
    tables = np.zeros((RANKS, RANKS, m, K), np.int32)
    for rank, each in enumerate(came):
        table = received.Table(tables[rank], counts[rank], RANKS, rank, EXPERTS, m)
        received.read(
            capturer,
            table,
            each.metadata,
            live_rows=each.live_rows,
            ids=each.ids,
            global_ids=global_ids,
        )
    added = tables.sum(0, dtype=np.int32)
    for rank in range(RANKS):
        table = received.Table(added, counts[rank], RANKS, rank, EXPERTS, m)
        received.compare(capturer, table, chosen[rank])
    return [received.Counts(*each) for each in counts.tolist()]


def chosen() -> list[Ids]:
    first = np.array([[0, 4, 1], [5, 2, 7], [3, 6, 0]])
    return [first, (first[:2] + 3) % EXPERTS]


def found(capturer: routecap.Capturer, sent: list[Ids], **options: Any) -> list[received.Counts]:
    came = [dispatch(sent, rank) for rank in range(RANKS)]
    return check(capturer, chosen(), came, **options)


def test_the_counts_have_the_names_and_the_order_of_the_header() -> None:
    assert received.Counts._fields == structs.received_counts_dtype.names


def test_a_right_dispatch_is_equal_in_every_column(capturer: routecap.Capturer) -> None:
    first, second = found(capturer, chosen())
    assert first == (3, 9, 9, 0, 0, 0, 0, 0, 0) and first.right
    assert second == (2, 6, 6, 0, 0, 0, 0, 0, 0) and second.right


@pytest.mark.parametrize(
    ("kind", "token", "ids"),
    [
        ("replaced", 1, [5, 2, 6]),
        ("lost", 1, [5, -1, 7]),
        ("tokens_lost", 1, [-1, -1, -1]),
        ("swapped", 1, [7, 2, 5]),
    ],
)
def test_a_token_that_was_sent_otherwise_is_counted_by_its_kind(
    capturer: routecap.Capturer, kind: str, token: int, ids: list[int]
) -> None:
    sent = chosen()
    sent[0][token] = ids
    first, second = found(capturer, sent)
    off = int((np.array(ids) != chosen()[0][token]).sum())
    assert not first.right and second.right
    assert first.equal == first.columns - off
    assert getattr(first, kind) == (1 if kind == "tokens_lost" else off)
    assert first.replaced + first.swapped + first.lost == off


def test_a_column_that_nobody_chose_is_extra(capturer: routecap.Capturer) -> None:
    asked, sent = chosen(), chosen()
    asked[1][0, 2] = -1
    came = [dispatch(sent, rank) for rank in range(RANKS)]
    _, second = check(capturer, asked, came)
    assert (second.columns, second.equal, second.extra) == (5, 5, 1) and not second.right


# With a larger tokens_per_rank, tokens of rank 1 were taken for tokens of rank 0.
def test_tokens_per_rank_of_another_step_is_found(capturer: routecap.Capturer) -> None:
    came = [dispatch(chosen(), rank) for rank in range(RANKS)]
    first, second = check(capturer, chosen(), came, m=16)
    assert first.ignored + second.ignored == 15 and first.lost == 9 and second.tokens_lost == 2
    with pytest.raises(routecap.Error, match="8 rows of 2 ranks with 3 tokens") as raised:
        check(capturer, chosen(), came, m=3)
    assert raised.value.status == routecap.Status.ERR_SHAPE_MISMATCH


# An engine that does not mask what lies behind the live rows computes rows that nobody sent.
def test_an_unmasked_tail_of_global_ids_is_found(capturer: routecap.Capturer) -> None:
    came = []
    for rank in range(RANKS):
        each = dispatch(chosen(), rank)
        live = np.arange(RANKS * M)[:, None] < each.live_rows
        came.append(
            each._replace(ids=np.where(live & (each.ids >= 0), each.ids + rank * LOCAL, -1))
        )
    assert all(each.right for each in check(capturer, chosen(), came, global_ids=True))
    came[0].ids[-1] = 2
    first, second = check(capturer, chosen(), came, global_ids=True)
    assert first.ignored == K and not first.right and second.right


# The whole prefix sum was taken, and its first number read.
def test_of_a_prefix_sum_the_last_number_is_wanted(capturer: routecap.Capturer) -> None:
    came = dispatch(chosen(), 0)
    whole = came._replace(live_rows=np.array([2, *came.live_rows], np.int32))
    with pytest.raises(ValueError, match="the last number of the prefix sum alone"):
        check(capturer, chosen(), [whole, whole])


def test_tensors_that_do_not_belong_together_are_refused(capturer: routecap.Capturer) -> None:
    came = dispatch(chosen(), 0)
    for wrong in (
        came._replace(ids=came.ids[:, 1:].copy()),
        came._replace(ids=came.ids.astype(np.int16)),
        came._replace(metadata=came.metadata.astype(np.int64)),
        came._replace(metadata=came.metadata[:, 1:]),
    ):
        with pytest.raises(routecap.Error):
            check(capturer, chosen(), [wrong, wrong])
    counts = np.zeros(len(received.Counts._fields), np.int32)
    table = received.Table(np.zeros((RANKS, M, K), np.int32), counts, RANKS, 0, EXPERTS, M)
    with pytest.raises(routecap.DtypeError, match="counts"):
        received.compare(capturer, table, chosen()[0])

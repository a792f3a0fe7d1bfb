"""A slip of shape is an error, never a row of something else."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import routecap

K, MODEL, EXPERTS, ROWS = 6, 8, 32, 4

IDS = np.stack(
    [np.random.default_rng(i).choice(EXPERTS, MODEL, replace=False) for i in range(ROWS)]
).astype(np.int32)
"""What a model of k 8 chose, where the capturer was made with k 6."""


@pytest.fixture
def capturer() -> Iterator[routecap.Capturer]:
    with routecap.Capturer(layers=1, k=K, experts=EXPERTS, rows=8, backend="host") as capturer:
        capturer.begin(ROWS)
        yield capturer


def read(capturer: routecap.Capturer, rows: int = ROWS) -> Any:
    """The ids of the pass, of one request."""
    request = capturer.open()
    capturer.snapshot()
    capturer.issue(routecap.spans(request=request, position=0, rows=rows))
    routing = request.finish(rows)
    routing.wait()
    return routing.ids()[:, 0]


# k came from the array's shape: columns were left out, or rows and columns exchanged, and each row
# was complete.
@pytest.mark.parametrize(
    "ids",
    [
        IDS,
        IDS[:, : K - 1],
        np.ascontiguousarray(IDS[:, :K].T),
        IDS[None, :, :K],
        IDS[0, :K],
        IDS[:, :K].ravel(),
    ],
    ids=["more columns", "fewer columns", "[k, rows]", "[1, rows, k]", "[k]", "[rows * k]"],
)
def test_ids_that_are_not_rows_by_k_are_refused(capturer: routecap.Capturer, ids: Any) -> None:
    with pytest.raises(ValueError, match=r"shape \(") as raised:
        capturer.record(0, ids)
    assert str(ids.shape) in str(raised.value)
    with pytest.raises(ValueError, match=r"shape \("):
        capturer.record_layers({0: ids})
    assert (read(capturer) == -1).all()


def test_the_refusal_names_both_shapes_and_what_to_do(capturer: routecap.Capturer) -> None:
    with pytest.raises(ValueError) as raised:
        capturer.record(0, IDS)
    for part in ("shape (4, 8) and dtype i32", "k=6", "(rows, 6)", "Transpose", "columns=8"):
        assert part in str(raised.value)


def test_columns_that_are_stated_are_what_the_array_has(capturer: routecap.Capturer) -> None:
    with pytest.raises(ValueError, match="columns=7 was said"):
        capturer.record(0, IDS, columns=7)
    with pytest.raises(ValueError):
        capturer.record(0, IDS[:, : K - 1], columns=K - 1)
    capturer.record(0, IDS, columns=MODEL)
    assert (read(capturer) == IDS[:, :K]).all()


# A prefix sum was read as its first number, 0: no row was live, or all rows went to the front.
@pytest.mark.parametrize("name", ["live_rows", "row_base"])
def test_a_whole_prefix_sum_is_not_one_number(capturer: routecap.Capturer, name: str) -> None:
    sums: Any = np.array([0, 2, ROWS], np.int32)
    ids = np.ascontiguousarray(IDS[:2, :K])
    with pytest.raises(ValueError, match=r"\(3,\)"):
        capturer.record(0, ids, **{name: sums})
    for value in (sums[1:2], 2, np.int64(2), np.array(2, np.int32)):
        capturer.begin(ROWS)
        capturer.record(0, ids, **{name: value})
        expected = np.full((ROWS, K), -1)
        first = 2 if name == "row_base" else 0
        expected[first : first + 2] = ids
        assert (read(capturer) == expected).all()


def test_live_rows_of_the_host_are_cut_to_the_rows_that_there_are(
    capturer: routecap.Capturer,
) -> None:
    for live, rows in ((9, ROWS), (0, 0), (-1, 0), (3, 3)):
        capturer.begin(ROWS)
        capturer.record(0, IDS[:, :K], live_rows=live)
        assert ((read(capturer) >= 0).all(1) == (np.arange(ROWS) < rows)).all()


# [rows, layers, k] in the place of [layers, rows, k]: rows were taken for layers.
def test_a_tensor_of_layers_is_of_all_of_them() -> None:
    with routecap.Capturer(layers=3, k=2, experts=8, rows=4, backend="host") as capturer:
        capturer.begin(2)
        ids = np.zeros((2, 3, 2), np.int32)
        ids[..., 1] = 1
        with pytest.raises(ValueError, match="2 layers, the capturer has 3"):
            capturer.record_layers(ids)
        with pytest.raises(ValueError, match="2 layers, the capturer has 3"):
            capturer.record_layers(list(ids))
        with pytest.raises(ValueError, match="tables are of 2 layers, ids of 3"):
            capturer.record_layers(ids.transpose(1, 0, 2), tables=np.zeros((2, 8), np.int32))
        capturer.record_layers(ids.transpose(1, 0, 2))


# Logits of fewer experts than the layer has, or [experts, rows], decided among those that came.
def test_logits_have_a_column_for_each_expert_unless_it_is_said() -> None:
    settings: Any = {"layers": 1, "k": 2, "experts": 8, "rows": 4, "backend": "host"}
    with routecap.Capturer(**settings, layer_provenance=["recomputed"]) as capturer:
        router = routecap.Router("softmax")
        logits = np.random.default_rng(0).random((4, 8)).astype(np.float32)
        capturer.begin(4)
        for wrong in (logits[:, :7], np.ascontiguousarray(logits.T)):
            with pytest.raises(ValueError, match=r"\(rows, 8\) is expected"):
                capturer.route(0, router, wrong)
        for options in (
            {"weights": np.zeros((4, 3), np.float32)},
            {"weights": np.zeros((5, 2), np.float32)},
            {"tokens": np.zeros(5, np.int32)},
            {"tokens": np.zeros((2, 2), np.int32)},
            {"live_rows": np.zeros(2, np.int32)},
        ):
            with pytest.raises(ValueError):
                capturer.route(0, router, logits, **options)
        with pytest.raises(ValueError, match="bias has shape"):
            capturer.route(0, routecap.Router("softmax", bias=np.zeros(9, np.float32)), logits)
        capturer.route(0, router, logits[:, :7], experts=7)
        assert (np.sort(read(capturer)) == np.sort(np.argsort(-logits[:, :7])[:, :2])).all()


# Rows behind those that were copied stayed what the memory had been.
def test_memory_for_a_copy_has_as_many_rows_as_are_copied(capturer: routecap.Capturer) -> None:
    capturer.record(0, IDS[:, :K])
    request = capturer.open()
    capturer.snapshot()
    capturer.issue(routecap.spans(request=request, position=0, rows=ROWS)).wait()
    out = np.zeros((ROWS + 1, 1, K), np.int32)
    with pytest.raises(ValueError, match="5 rows, 4 are copied"):
        request.extract_into(out, rows=ROWS)
    request.extract_into(out[:ROWS], rows=ROWS)
    request.extract_into(out, rows=routecap.LANDED)


class Liar:
    """A buffer that says "32-bit integers" of elements of 8 bytes, as ctypes' long once did."""

    def __init__(self, ids: Any) -> None:
        self.__cuda_array_interface__ = {
            "shape": ids.shape,
            "strides": ids.strides,
            "typestr": "<i8",
            "data": (ids.ctypes.data, False),
            "version": 3,
        }


# 64-bit ids that are said to be of 32 bits give every other cell: the id, and the zeros behind it.
def test_the_type_of_ids_is_that_of_their_array(capturer: routecap.Capturer) -> None:
    wide = IDS[:, :K].astype(np.int64)
    with pytest.raises(TypeError):
        capturer.record(0, wide, dtype="int32")
    with pytest.raises(ValueError):  # twice the columns
        capturer.record(0, wide.view(np.int32))
    with pytest.raises(TypeError):
        capturer.record(0, wide.astype(">i8"))
    with pytest.raises(ValueError):  # memory of a device, for a capturer of the host
        capturer.record(0, Liar(wide))
    capturer.record(0, wide)
    assert (read(capturer) == wide).all()


def test_values_of_a_plan_are_laid_out_in_memory_of_their_type() -> None:
    plan = routecap.Plan(lengths=[3], layers=1, k=2, experts=8)
    values = [np.array([1, 2, 3], np.int32)]
    with pytest.raises(ValueError):
        plan.gather_values(values, out=np.zeros(3, np.float32))
    assert plan.gather_values(values, out=np.zeros(3, np.int32)).tolist() == [1, 2, 3]


# Without sink_row, each call of spans() begins at sink row 0: two requests got one's rows, complete.
def test_a_sink_row_in_two_spans_is_refused_unless_both_say_that_they_share_it(
    capturer: routecap.Capturer,
) -> None:
    one, two = capturer.open(), capturer.open()
    capturer.record(0, IDS[:, :K])
    capturer.snapshot()
    parts = [routecap.spans(request=each, position=0, rows=2) for each in (one, two)]
    with pytest.raises(routecap.Error, match="sink row 0") as raised:
        capturer.issue(np.concatenate(parts))
    assert raised.value.status is routecap.Status.ERR_CONFLICT
    half = routecap.spans(request=two, position=0, rows=2, shared=True)
    with pytest.raises(routecap.Error, match="sink row 0"):
        capturer.issue(np.concatenate([parts[0], half]))
    capturer.issue(routecap.spans(request=[one, two], position=0, rows=2, shared=True)).wait()
    both = np.concatenate(
        [routecap.spans(request=each, position=2, rows=2, shared=True) for each in (one, two)]
    )
    capturer.begin(2)
    capturer.record(0, IDS[2:, :K])
    capturer.snapshot()
    capturer.issue(both).wait()
    ids = [each.extract().ids()[:, 0] for each in (one, two)]
    assert (ids[0] == np.concatenate([IDS[:2, :K], IDS[2:, :K]])).all()
    assert (ids[1] == np.concatenate([IDS[2:, :K], IDS[2:, :K]])).all()
    assert capturer.stats().rows_shared == 4


SLIPS = (
    "another k",
    "turned",
    "flat",
    "layers",
    "sink row",
    "span beyond",
    "prefix sum",
    "row index",
    "type",
    "begun",
    "table",
    "copy",
)


def slipped(draw: np.random.Generator, slip: str) -> str:
    """A pass of two requests with one slip: what became of it."""
    k, rows, more = (int(draw.integers(*limits)) for limits in ((2, 7), (2, 6), (1, 3)))
    true = np.stack([draw.permutation(64)[:k] for _ in range(2 * rows)]).astype(np.int64)
    kind = draw.choice(np.array([np.int16, np.int32, np.int64], object))
    given: Any = true.astype(kind)
    own_k, begun, options = k, 2 * rows, {}
    sink_rows, span_rows = [0, rows], rows
    if slip == "another k":
        own_k = k + more if draw.random() < 0.5 else max(1, k - more)
    elif slip == "turned":
        if 2 * rows == k:
            return "none"
        given = np.ascontiguousarray(given.T)
    elif slip == "flat":
        given = given.ravel() if draw.random() < 0.5 else given[None]
    elif slip == "sink row":
        sink_rows = [0, 0]
    elif slip == "span beyond":
        span_rows = rows + more
    elif slip == "prefix sum":
        name = "live_rows" if draw.random() < 0.5 else "row_base"
        options[name] = np.arange(2 + more, dtype=np.int32)
    elif slip == "row index":
        options["row_index"] = np.arange(2 * rows + more, dtype=np.int32)
    elif slip == "type":
        given = true.view(np.int32)
    elif slip == "begun":
        begun -= more
    elif slip == "table":
        options["table"] = np.arange(32, dtype=np.int32)  # of the 64 that there are
    with routecap.Capturer(layers=2, k=own_k, experts=64, rows=32, backend="host") as capturer:
        requests = [capturer.open() for _ in range(2)]
        capturer.begin(begun)
        try:
            for layer in range(2):
                capturer.record(layer + (slip == "layers"), given, **options)
            capturer.snapshot()
            capturer.issue(
                routecap.spans(request=requests, position=0, rows=span_rows, sink_row=sink_rows)
            )
            routings = [request.finish(span_rows) for request in requests]
            for routing in routings:
                routing.wait()
            if slip == "copy":
                routings[0].copy_to(np.zeros((rows, 2, k + more), np.int32))
        except (routecap.Error, ValueError, TypeError):
            return "refused"
        for number, routing in enumerate(routings):
            wanted = true[number * rows :][:span_rows]
            for got, row in zip(routing.ids(), wanted):
                for cell in got:
                    assert (cell == -1).all() or cell.tolist() == row.tolist(), slip
        assert not all(routing.coverage().complete for routing in routings), slip
        return "missing"


# What a program gets wrong about a shape is refused, or rows are missing: never is there a row that
# no router chose.
def test_of_a_hundred_slips_none_gives_a_row_that_nobody_chose() -> None:
    draw = np.random.default_rng(49)
    became = [(slip, slipped(draw, slip)) for slip in draw.choice(SLIPS, 100)]
    assert {slip for slip, _ in became} == set(SLIPS)
    assert sum(how == "refused" for _, how in became) > 60

"""The forward path, requests, reading and the counters."""

import pickle
import threading
import warnings
from typing import Any

import numpy as np
import pytest
import routecap
from routecap_testing.helpers import EXPERTS, K, LAYERS, ROWS, expected_ids, forward, run
from routecap._library import raw

DRAFT = routecap.SpanFlag.SPECULATIVE


def test_the_version_and_the_backends_are_known() -> None:
    assert routecap.version()[0] == 1 and routecap.__version__ == ".".join(
        map(str, routecap.version())
    )
    found = routecap.backends()
    assert set(found) == {"host", "cuda"} and found["host"].available and found["host"].detail


def test_a_capturer_says_what_it_is() -> None:
    with routecap.Capturer(layers=2, k=2, experts=8, rows=4, layer_map=[3, 7]) as capturer:
        assert (capturer.layers, capturer.k, capturer.experts, capturer.rows, capturer.slots) == (
            2,
            2,
            8,
            4,
            2,
        )
        assert (
            capturer.backend == routecap.Backend.HOST
            and capturer.role == routecap.Role.OWNER
            and not capturer.closed
        )
        assert capturer.layer_map.tolist() == [3, 7] and capturer.layer_experts.tolist() == [8, 8]
        assert repr(capturer) == "<routecap.Capturer of 2 layers, k=2, 8 experts, 4 rows, host>"
    assert capturer.closed and "closed" in repr(capturer)
    capturer.close()


def test_memory_is_known_before_a_capturer_is_created() -> None:
    needs = routecap.memory(layers=58, k=8, experts=256, rows=1024)
    assert (
        needs.device_bytes == 0
        and needs.row_bytes == 58 * 8 + 8
        and needs.page_rows * needs.row_bytes <= needs.page_bytes
    )


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({"layers": 0}, ValueError),
        ({"k": 65}, ValueError),
        ({"experts": 3}, ValueError),
        ({"rows": -1}, ValueError),
        ({"rows": 1 << 40}, ValueError),
        ({"backend": "tpu"}, ValueError),
        ({"backend": 9}, ValueError),
        ({"role": "guest"}, ValueError),
        ({"slots": 65}, ValueError),
        ({"layer_map": [0, 1]}, ValueError),
        ({"layer_map": [4, 3, 2, 1, 0]}, ValueError),
        ({"layer_map": "abcde"}, ValueError),
        ({"layer_experts": [8, 8, 8, 8, -8]}, ValueError),
        ({"layer_provenance": ["guessed"] * 5}, ValueError),
        ({"sink_dtype": np.float32}, TypeError),
        ({"color": "red"}, TypeError),
        ({"budget_bytes": 1}, ValueError),
    ],
)
def test_wrong_settings_are_refused(
    make: Any, settings: dict[str, Any], kind: type[Exception]
) -> None:
    with pytest.raises(kind):
        make(**settings)


def test_rows_come_out_as_they_were_recorded(capturer: routecap.Capturer) -> None:
    request = capturer.open()
    ids = expected_ids(2, 30)
    step = run(capturer, request, ids, tag=11)
    assert (step.ticket, int(step), step.status, step.landed, step.poll(), step.conflicts()) == (
        1,
        1,
        0,
        True,
        0,
        0,
    )
    assert request.length == 30 and request.coverage().complete and len(request.missing()) == 0
    routing = request.finish(29)
    assert routing.wait(10) == routecap.Status.OK and (routing.ids() == ids[:29]).all()


@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.int64, np.uint32])
def test_ids_of_every_type_and_layout_are_recorded(capturer: routecap.Capturer, dtype: Any) -> None:
    request = capturer.open()
    ids = expected_ids(5, 12)
    given = ids.astype(dtype)
    wide = np.full((24, K + 2), 63, dtype)
    wide[::2, :K] = given[:, 1]
    capturer.begin(12)
    capturer.record(0, given[:, 0])  # rows apart
    # rows apart, and columns that are not wanted
    capturer.record(1, wide[::2], columns=wide.shape[1])
    capturer.record(2, np.asfortranarray(given[:, 2]))  # columns apart
    capturer.record(3, memoryview(np.ascontiguousarray(given[:, 3])))
    capturer.record(4, given[::-1, 4][::-1])
    capturer.snapshot()
    capturer.issue(routecap.spans(1, request=int(request), rows=12)).wait(10)
    assert (request.extract().ids() == ids).all()


def test_packed_ids_are_recorded_if_one_says_so(make: Any) -> None:
    capturer = make(layers=1)
    request = capturer.open()
    ids = expected_ids(5, 12, layers=1)
    packed = (ids[:, 0].astype(np.uint32) << 16 | 0x3F80).view(np.int32)
    capturer.begin(12)
    capturer.record(0, packed, dtype="id16_bf16")
    capturer.snapshot()
    capturer.issue(routecap.spans(1, request=int(request), rows=12)).wait(10)
    assert (request.extract().ids() == ids).all()


def test_all_layers_are_recorded_at_once(capturer: routecap.Capturer) -> None:
    ids = expected_ids(6, 8)
    table = np.arange(EXPERTS, dtype=np.int32)[::-1].copy()
    for given, tables in (
        (np.ascontiguousarray(ids.transpose(1, 0, 2)), None),
        ({layer: ids[:, layer].copy() for layer in range(LAYERS)}, None),
        (
            {layer: (EXPERTS - 1 - ids[:, layer]) for layer in range(LAYERS)},
            {layer: table for layer in range(LAYERS)},
        ),
        (EXPERTS - 1 - ids.transpose(1, 0, 2), np.tile(table, (LAYERS, 1))),
    ):
        request = capturer.open()
        capturer.begin(8)
        capturer.record_layers(given, tables=tables)
        capturer.snapshot()
        capturer.issue(routecap.spans(1, request=int(request), rows=8)).wait(10)
        assert (request.extract().ids() == ids).all()
        capturer.record_layers(given, tables=tables, whole_step=True)
        capturer.issue(routecap.spans(1, request=int(request), position=8, rows=8)).wait(10)
        assert (request.extract().ids() == np.concatenate([ids, ids])).all()
    capturer.record_layers({})
    with pytest.raises(routecap.ArgumentError, match="WHOLE_STEP"):
        capturer.record_layers({0: ids[:, 0]}, first_row=1, whole_step=True)
    with pytest.raises(ValueError):
        capturer.record_layers({0: ids[:, 0], 1: ids[:4, 1]})
    with pytest.raises(ValueError):
        capturer.record_layers({0: ids[:, 0], 1: ids[:, 1]}, tables={0: table})


def test_a_part_of_the_rows_is_recorded(make: Any) -> None:
    capturer = make(layers=3)
    request = capturer.open()
    ids = expected_ids(8, 12, layers=3)
    capturer.begin(12)
    order = np.random.default_rng(0).permutation(12)
    capturer.record(0, ids[order, 0], row_index=order.astype(np.int32))
    capturer.record(1, ids[:5, 1])
    capturer.record(1, ids[5:, 1], row_base=np.array([5], np.int32))
    capturer.record(2, ids[:, 2] - 1, offset=1, live_rows=np.array([9], np.int32), rows=12)
    capturer.snapshot()
    capturer.issue(routecap.spans(1, request=int(request), rows=12)).wait(10)
    routing = request.extract()
    assert (
        routing.mask()[:9].all()
        and not routing.mask()[9:, 2].any()
        and (routing.ids()[routing.mask()] == ids[routing.mask()]).all()
    )


class Foreign:
    """A tensor of some other framework."""

    def __init__(self, **faces: Any) -> None:
        for name, value in faces.items():
            setattr(self, name, value)


def test_tensors_of_other_frameworks_come_by_dlpack(capturer: routecap.Capturer) -> None:
    class Exchanged:
        def __init__(self, array: Any) -> None:
            self.array = array

        def __dlpack__(self, **options: Any) -> Any:
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

    class Old(Exchanged):
        def __dlpack__(self) -> Any:
            return self.array.__dlpack__()

    ids = expected_ids(9, 6)
    request = capturer.open()
    capturer.begin(6)
    for layer in range(LAYERS):
        capturer.record(layer, (Exchanged if layer % 2 else Old)(ids[:, layer]))
    capturer.snapshot()
    capturer.issue(routecap.spans(1, request=int(request), rows=6)).wait(10)
    assert (request.extract().ids() == ids).all()


GOOD = expected_ids(1, 4)[:, 0]
DEVICE = {"shape": (4, K), "typestr": "<i4", "data": (4096, False), "version": 3}


@pytest.mark.parametrize(
    ("ids", "kind"),
    [
        (GOOD.astype(np.float32), TypeError),
        (GOOD.astype(np.int8), TypeError),
        (GOOD.astype(">i4"), TypeError),
        (GOOD.astype(np.uint64), TypeError),
        (GOOD.astype(bool), TypeError),
        (GOOD.astype("M8[s]"), ValueError),
        (GOOD[0], ValueError),
        (GOOD[None], ValueError),
        (GOOD[:, :2], ValueError),
        (np.broadcast_to(GOOD[:1], (4, K)), ValueError),
        (np.broadcast_to(GOOD[:, :1], (4, K)), ValueError),
        (GOOD.tolist(), ValueError),
        (None, ValueError),
        (b"", TypeError),
        (np.zeros((ROWS + 1, K), np.int32), IndexError),
        (Foreign(__cuda_array_interface__=DEVICE), ValueError),
        (np.zeros(4, [("a", "i4", K), ("b", "i1")])["a"], ValueError),
        (Foreign(__dlpack_device__=lambda: (4, 0), __dlpack__=lambda **options: 3), ValueError),
        (np.array([[None] * K] * 4), TypeError),
    ],
)
def test_ids_that_cannot_be_recorded_are_refused(
    capturer: routecap.Capturer, ids: Any, kind: type[Exception]
) -> None:
    capturer.begin(4)
    with pytest.raises(kind) as raised:
        capturer.record(0, ids)
    assert (
        isinstance(raised.value, routecap.Error)
        and str(raised.value)
        and "\n" not in str(raised.value)
    )
    capturer.record(0, GOOD)  # nothing was recorded


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"rows": 5}, ValueError),
        ({"rows": -1}, ValueError),
        ({"first_row": ROWS}, IndexError),
        ({"first_row": -1}, ValueError),
        ({"live_rows": np.array([1], np.int64)}, TypeError),
        ({"live_rows": np.array([], np.int32)}, ValueError),
        ({"live_rows": np.array([0, 2, 4], np.int32)}, ValueError),
        ({"row_base": np.array([0, 2], np.int32)}, ValueError),
        ({"live_rows": 3, "row_index": np.zeros(4, np.int32)}, ValueError),
        ({"row_base": -1}, ValueError),
        ({"row_index": np.zeros(5, np.int32)}, ValueError),
        ({"row_index": np.zeros((2, 2), np.int32)}, ValueError),
        ({"table": np.zeros((2, 4), np.int32)}, ValueError),
        ({"row_index": np.zeros(3, np.int32)}, ValueError),
        ({"row_index": np.zeros(8, np.int32)[::2]}, ValueError),
        ({"table": np.zeros(4, np.int16)}, TypeError),
        ({"table": [0, 1]}, ValueError),
        ({"offset": 1 << 31}, ValueError),
        ({"dtype": "int64"}, TypeError),
        ({"dtype": "colour"}, TypeError),
        ({"stream": 1234}, ValueError),
        ({"stream": "main"}, ValueError),
    ],
)
def test_options_of_record_that_do_not_fit_are_refused(
    capturer: routecap.Capturer, options: Any, kind: type[Exception]
) -> None:
    capturer.begin(4)
    with pytest.raises(kind) as raised:
        capturer.record(0, GOOD, **options)
    assert isinstance(raised.value, routecap.Error)


def test_numbers_that_are_none_or_too_large_are_refused(capturer: routecap.Capturer) -> None:
    for rows in (-1, ROWS + 1, 1 << 32, 1 << 70):
        with pytest.raises((ValueError, IndexError)):
            capturer.begin(rows)
    for rows in (1.5, "3", None):
        with pytest.raises(TypeError):
            capturer.begin(rows)  # type: ignore[arg-type]
    with pytest.raises(IndexError):
        capturer.record(LAYERS, GOOD)
    with pytest.raises(ValueError):
        capturer.record(-1, GOOD)


# ---- The sink


@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.int64])
def test_a_router_writes_the_sink_itself(make: Any, dtype: Any) -> None:
    capturer = make(sink_dtype=dtype)
    request = capturer.open()
    ids = expected_ids(4, 9)
    capturer.begin(9)
    for layer in range(LAYERS):
        sink = capturer.sink(layer)
        assert sink.dtype == dtype and sink.shape == (ROWS, K) and sink.flags.writeable
        sink[:9] = ids[:, layer]
    capturer.snapshot()
    capturer.issue(routecap.spans(1, request=int(request), rows=9)).wait(10)
    assert (request.extract().ids() == ids).all()


def test_an_array_is_bound_as_the_sink_and_held(make: Any) -> None:
    capturer = make(external_sink=True)
    assert capturer.sink(0) is None
    ids = expected_ids(4, 9)
    whole = np.zeros((LAYERS - 1, ROWS + 2, K + 1), np.int16)
    capturer.bind(0, whole[:, :, :K])
    capturer.bind(LAYERS - 1, np.zeros((ROWS, K), np.int64))  # held by nobody else
    request = capturer.open()
    capturer.begin(9)
    for layer in range(LAYERS):
        sink = capturer.sink(layer)
        sink[:9] = ids[:, layer]
    assert (whole[:, :9, :K] == ids.transpose(1, 0, 2)[:-1]).all()
    capturer.snapshot()
    capturer.issue(routecap.spans(1, request=int(request), rows=9)).wait(10)
    assert (request.extract().ids() == ids).all()


READONLY = np.zeros((ROWS, K), np.int16)
READONLY.flags.writeable = False


@pytest.mark.parametrize(
    ("tensor", "kind"),
    [
        (np.zeros((ROWS - 1, K), np.int16), ValueError),
        (np.zeros((ROWS, K + 1), np.int16), ValueError),
        (np.zeros((ROWS, K), np.uint8), TypeError),
        (np.zeros((ROWS, K), np.uint16), TypeError),
        (READONLY, ValueError),
        (np.zeros((K, ROWS), np.int16).T, ValueError),
        (np.zeros(ROWS * K, np.int16), ValueError),
        (np.zeros((LAYERS + 1, ROWS, K), np.int16), IndexError),
        (np.zeros((ROWS, K), np.int16)[::-1], ValueError),
        (
            np.frombuffer(bytearray(ROWS * K * 2 + 1), np.int16, offset=1, count=ROWS * K).reshape(
                ROWS, K
            ),
            ValueError,
        ),
        (
            np.zeros((2, ROWS, K), np.int16)[:1].repeat(1, 0)[[0, 0]].strides
            and np.broadcast_to(np.zeros((1, ROWS, K), np.int16), (2, ROWS, K)),
            ValueError,
        ),
        (bytes(ROWS * K * 2), ValueError),
        (
            Foreign(__cuda_array_interface__={**DEVICE, "shape": (ROWS, K), "typestr": "<i2"}),
            ValueError,
        ),
    ],
)
def test_memory_that_cannot_be_a_sink_is_refused(
    make: Any, tensor: Any, kind: type[Exception]
) -> None:
    capturer = make(external_sink=True)
    with pytest.raises(kind) as raised:
        capturer.bind(0, tensor)
    assert isinstance(raised.value, routecap.Error)


def test_rows_that_arrive_have_any_strides_but_none_is_read_twice(make: Any) -> None:
    capturer = make(external_sink=True)
    request = capturer.open()
    spans = routecap.spans(1, request=int(request), rows=2)
    step = capturer.issue(spans, snapshot="later")
    ids = expected_ids(1, 2)  # [rows, layers, k]
    for wrong in (
        np.broadcast_to(ids[:1], ids.shape).swapaxes(0, 1),
        np.broadcast_to(ids[:, :1], ids.shape).swapaxes(0, 1),
        ids[::-1].swapaxes(0, 1),
        ids.swapaxes(0, 1)[:-1],
        ids[0],
    ):
        with pytest.raises(ValueError):
            capturer.arrive(step, wrong)
    assert step.poll() == routecap.Status.PENDING
    capturer.arrive(step, ids.swapaxes(0, 1))
    routing = request.finish()
    routing.wait()
    assert (routing.ids() == ids).all()


# ---- From logits


def test_experts_are_chosen_from_logits(make: Any) -> None:
    capturer = make(layers=1, layer_provenance=["recomputed"])
    logits = np.random.default_rng(3).standard_normal((10, EXPERTS)).astype(np.float32)
    weights = np.zeros((10, K), np.float32)
    request = capturer.open()
    capturer.begin(10)
    capturer.route(0, routecap.Router("softmax_renormalize"), logits, weights=weights)
    capturer.snapshot()
    capturer.issue(routecap.spans(1, request=int(request), rows=10)).wait(10)
    expected = np.argsort(-logits, axis=1, kind="stable")[:, :K]
    routing = request.extract()
    assert (routing.ids()[:, 0] == expected).all() and routing.layer_provenance.tolist() == [
        routecap.Provenance.RECOMPUTED
    ]
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-5)
    with pytest.raises(routecap.Error) as raised:
        request.extract(strict=True)
    assert raised.value.status == routecap.Status.ERR_RECOMPUTED
    assert request.extract(strict=True, allow_recomputed=True) == routing


def test_a_router_takes_bias_groups_and_a_hash_table(make: Any) -> None:
    capturer = make(layers=3, layer_provenance=["recomputed"] * 3)
    random = np.random.default_rng(4)
    logits = random.standard_normal((6, EXPERTS)).astype(np.float16)
    bias = (np.arange(EXPERTS) == 5).astype(np.float32) * 100
    table = np.stack([random.permutation(EXPERTS)[:K] for _ in range(50)]).astype(np.int32)
    tokens = random.integers(0, 50, 6)
    request = capturer.open()
    capturer.begin(6)
    capturer.route(
        0, routecap.Router("deepseek_v3", groups=8, groups_kept=2, bias=bias, scale=2.5), logits
    )
    capturer.route(
        1,
        routecap.Router(routecap.Method.DEEPSEEK_V4, hash_table=table),
        None,
        tokens=tokens,
        rows=6,
    )
    as_bfloat16 = (logits.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    capturer.route(
        2,
        routecap.Router(score="sigmoid", flags=routecap.RouterFlag.RENORMALIZE),
        as_bfloat16,
        dtype="bf16",
    )
    capturer.snapshot()
    capturer.issue(routecap.spans(1, request=int(request), rows=6)).wait(10)
    ids = request.extract().ids()
    assert (ids[:, 0, 0] == 5).all() and all(
        len({id // 8 for id in row}) <= 2 for row in ids[:, 0].tolist()
    )
    assert (ids[:, 1] == table[tokens]).all()


@pytest.mark.parametrize(
    ("router", "logits", "options", "kind"),
    [
        ({"method": "softmax"}, np.zeros((4, EXPERTS), np.float64), {}, TypeError),
        ({"method": "softmax"}, np.zeros((4, EXPERTS + 1), np.float32), {}, ValueError),
        ({"method": "softmax"}, np.zeros((4, EXPERTS), np.float32), {"rows": 5}, ValueError),
        ({"method": "softmax"}, None, {}, ValueError),
        (
            {"method": "softmax"},
            np.zeros((4, EXPERTS), np.float32),
            {"weights": np.zeros((3, K), np.float32)},
            ValueError,
        ),
        (
            {"method": "softmax"},
            np.zeros((4, EXPERTS), np.float32),
            {"weights": np.zeros((4, K), np.float64)},
            TypeError,
        ),
        (
            {"method": "softmax"},
            np.zeros((4, EXPERTS), np.float32),
            {"weights": np.broadcast_to(np.zeros((1, K), np.float32), (4, K))},
            ValueError,
        ),
        (
            {"method": "sigmoid", "bias": np.zeros(EXPERTS - 1, np.float32)},
            np.zeros((4, EXPERTS), np.float32),
            {},
            ValueError,
        ),
        (
            {"method": "sigmoid", "bias": np.zeros(EXPERTS, np.int32)},
            np.zeros((4, EXPERTS), np.float32),
            {},
            TypeError,
        ),
        (
            {"method": "deepseek_v4", "hash_table": np.zeros((9, K + 1), np.int32)},
            np.zeros((4, EXPERTS), np.float32),
            {"tokens": np.zeros(4, np.int32)},
            ValueError,
        ),
        (
            {"method": "deepseek_v4", "hash_table": np.zeros((9, K), np.int32)},
            np.zeros((4, EXPERTS), np.float32),
            {"tokens": np.zeros(3, np.int32)},
            ValueError,
        ),
    ],
)
def test_logits_that_cannot_be_routed_are_refused(
    make: Any, router: Any, logits: Any, options: Any, kind: type[Exception]
) -> None:
    capturer = make(layers=1, layer_provenance=["recomputed"])
    capturer.begin(4)
    with pytest.raises(kind) as raised:
        capturer.route(0, routecap.Router(**router), logits, **options)
    assert isinstance(raised.value, routecap.Error)


def test_a_router_of_an_unknown_method_is_refused() -> None:
    with pytest.raises(ValueError, match="softmax"):
        routecap.Router("best")


# ---- Steps


def test_a_probe_finds_taps_that_do_not_fire(capturer: routecap.Capturer) -> None:
    capturer.begin(4)
    ids = expected_ids(1, 4)
    for layer in range(LAYERS - 1):
        capturer.record(layer, ids[:, min(layer, 2)])
    found = capturer.probe(4)
    assert found["found"].tolist() == [
        0,
        0,
        0,
        routecap.ProbeFlag.REPEATED,
        routecap.ProbeFlag.SILENT,
    ]
    assert len(capturer.probe(4, 2)) == 2
    capturer.discard()
    with pytest.raises(routecap.Error):
        capturer.probe(4)


def test_wrong_spans_are_refused(capturer: routecap.Capturer) -> None:
    request = capturer.open()
    forward(capturer, expected_ids(1, 4))
    good = routecap.spans(1, request=int(request), rows=4)
    with pytest.raises(TypeError):
        capturer.issue(np.zeros(4, np.int64))
    with pytest.raises(ValueError):
        capturer.issue(np.repeat(good, 4)[::2])
    for status in (np.zeros(2, np.int32), np.zeros(1, np.int64), [0]):
        with pytest.raises(
            ValueError, match="status must be an int32 array with an element for each span"
        ):
            capturer.issue(good, status=status)  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        capturer.issue(good, snapshot="never")
    for wrong in ({"rows": 0}, {"flags": 64}, {"position": 1 << 40}):
        with pytest.raises(ValueError):
            capturer.issue(routecap.spans(1, **{"request": int(request), "rows": 4, **wrong}))
    with pytest.raises(IndexError):
        capturer.issue(routecap.spans(1, request=int(request), rows=4, sink_row=ROWS - 1))
    status = np.full(2, 77, np.int32)
    both = routecap.spans(2, request=[request, 12345], rows=2, sink_row=[0, 2])
    step = capturer.issue(both, status=status)
    assert step.status == routecap.Status.PARTIAL and status.tolist() == [
        0,
        routecap.Status.ERR_UNKNOWN_REQUEST,
    ]
    with pytest.raises(KeyError):
        capturer.issued(99).poll()


@pytest.mark.parametrize(
    "given",
    [
        [(1, 0, 0, 0, 4, 0, 0)],
        [{"request": 1, "rows": 4}],
        (1, 0, 4),
        5,
        "a",
        np.zeros(4, np.int64),
        np.zeros(1, [("request", np.uint64), ("rows", np.uint32)]),
    ],
)
def test_what_is_no_array_of_spans_is_told_what_a_span_looks_like(
    capturer: routecap.Capturer, given: Any
) -> None:
    """The error was that a list has no attribute dtype."""
    forward(capturer, expected_ids(1, 4))
    with pytest.raises(TypeError, match=r"spans is .*routecap\.spans\(request=") as raised:
        capturer.issue(given)
    assert isinstance(raised.value, routecap.DtypeError) and "attribute" not in str(raised.value)


@pytest.mark.parametrize(
    ("columns", "kind", "match"),
    [
        ({"request": "a"}, TypeError, r"request: 'a' is not a Request or its handle"),
        ({"request": [1, "a"]}, TypeError, r"request: 'a' is not a Request or its handle"),
        ({"request": None}, TypeError, r"request: None is not a Request or its handle"),
        ({"request": [1.0, 2.0]}, TypeError, r"request: 1\.0 is not"),
        ({"request": np.array([1.0, 2.0])}, TypeError, r"request: an array of float64 is not"),
        ({"request": np.array([1, None])}, TypeError, r"request: None is not"),
        ({"rows": 2.5}, TypeError, r"rows: 2\.5 is not an integer"),
        ({"rows": "4"}, TypeError, r"rows: '4' is not an integer"),
        ({"position": [0, None]}, TypeError, r"position: None is not"),
        ({"position": -1}, ValueError, r"position: -1 is not in \[0, 18446744073709551615\]"),
        ({"position": [5, -2]}, ValueError, r"position: -2 is not"),
        (
            {"sink_row": np.array([1 << 32])},
            ValueError,
            r"sink_row: 4294967296 is not in \[0, 4294967295\]",
        ),
        ({"rows": 1 << 70}, ValueError, r"rows: 1180591620717411303424"),
        ({"request": [1, 2, 3], "rows": [1, 2]}, ValueError, r"rows: 3 spans have .* shape \(2,\)"),
        ({"rows": np.ones((2, 2), int)}, ValueError, r"rows: 2 spans have .* shape \(2, 2\)"),
    ],
)
def test_columns_that_make_no_spans_are_refused(
    columns: dict[str, Any], kind: type[Exception], match: str
) -> None:
    """The errors spoke of int(), of casts and of broadcasting, and 2.5 rows became 2."""
    with pytest.raises(kind, match=match) as raised:
        routecap.spans(**columns)
    assert isinstance(raised.value, routecap.Error) and "int()" not in str(raised.value)
    assert "routecap.spans(request=" in str(raised.value)


def test_a_column_of_spans_is_any_sequence_of_integers(capturer: routecap.Capturer) -> None:
    request = capturer.open()
    columns: list[Any] = [request, request.handle, np.uint64(request.handle), [request]]
    columns += [
        (request,),
        [np.uint64(request.handle)],
        np.array([request]),
        memoryview(np.array([request.handle], np.uint64)),
    ]
    for column in columns:
        assert routecap.spans(request=column)["request"].tolist() == [request.handle]
    draft = routecap.SpanFlag.SPECULATIVE
    spans = routecap.spans(
        3,
        request=(7,),
        rows=np.array([4]),
        sink_row=range(3),
        position=[1, 2, 1 << 39],
        flags=draft,
    )
    assert (
        spans["request"].tolist() == [7] * 3
        and spans["rows"].tolist() == [4] * 3
        and spans["flags"].tolist() == [1] * 3
    )
    assert spans["sink_row"].tolist() == [0, 1, 2] and spans["position"].tolist() == [1, 2, 1 << 39]
    assert len(routecap.spans(request=[])) == 0 and len(routecap.spans(0, position=[])) == 0


def test_items_of_a_batch_that_are_none_are_told_what_items_look_like(
    capturer: routecap.Capturer,
) -> None:
    calls: dict[str, Any] = {
        "accept_dtype": capturer.accept_batch,
        "extract_dtype": capturer.extract_batch,
    }
    calls["finish_dtype"] = capturer.finish_batch
    for dtype, call in calls.items():
        for given in ([], [(1, 2)], 5, None, np.zeros(2, np.uint64)):
            with pytest.raises(
                routecap.DtypeError, match=rf"items is .*np\.zeros\(n, routecap\.{dtype}\)"
            ):
                call(given)
    wrong: list[Any] = [5, capturer.open(), [capturer.open()], np.zeros(2, np.int32)]
    for given in (*wrong, np.zeros((2, 2), np.uint64)):
        with pytest.raises(TypeError, match="handles is .*, as Capturer.open_batch gives"):
            capturer.close_batch(given)


@pytest.mark.parametrize("given", [None, 1, 1.5, b"a", []])
def test_what_is_no_step_is_told_where_steps_come_from(
    capturer: routecap.Capturer, given: Any
) -> None:
    with pytest.raises(TypeError, match=r"is not a step: .* Capturer.issued\(ticket\)"):
        capturer.open().accept(given, 1)
    with pytest.raises(TypeError, match=r"is not a step: .* Capturer.issued\(ticket\)"):
        capturer.arrive(given, None)


def test_statuses_are_one_for_each_span_also_of_spans_in_two_dimensions(
    capturer: routecap.Capturer,
) -> None:
    forward(capturer, expected_ids(1, 4))
    spans = routecap.spans(
        4, request=capturer.open_batch(4), rows=1, sink_row=np.arange(4)
    ).reshape(2, 2)
    memory = np.full(4, 77, np.int32)
    with pytest.raises(ValueError):
        capturer.issue(spans, status=memory[:2])
    assert (memory == 77).all()


def test_positions_come_from_the_device(capturer: routecap.Capturer) -> None:
    request = capturer.open()
    ids = expected_ids(1, 4)
    flags = routecap.SpanFlag.DEVICE_POSITIONS
    for dtype, start in ((np.int32, 0), (np.int64, 4)):
        forward(capturer, ids)
        spans = routecap.spans(
            1, request=int(request), position=0, position_end=16, rows=4, flags=flags
        )
        with pytest.raises(ValueError):
            capturer.issue(spans, positions=np.zeros(3, dtype))
        with pytest.raises(TypeError):
            capturer.issue(spans, positions=np.zeros(4, np.int16))
        capturer.issue(spans, positions=np.arange(start, start + 4, dtype=dtype)).wait(10)
    assert request.length == 8 and (request.extract(4).ids() == ids).all()


def lose(capturer: routecap.Capturer, request: routecap.Request) -> routecap.Step:
    """Issue a step for which there is no slot: the capturer has one, and no thread that files."""
    spans = routecap.spans(1, request=int(request), rows=4)
    for expected in (routecap.Status.OK, routecap.Status.LOST):
        forward(capturer, expected_ids(1, 4))
        step = capturer.issue(spans)
        assert step.status == expected and step.lost == (expected == routecap.Status.LOST)
    return step


def test_a_lost_step_says_so(make: Any) -> None:
    capturer = make(slots=1, manual_progress=True, may_lose=True)
    with pytest.warns(routecap.LostStepWarning):
        step = lose(capturer, capturer.open())
    assert repr(step) == "<routecap.Step 2, LOST>"
    assert (
        capturer.issued(1).poll() == routecap.Status.PENDING and step.poll() == routecap.Status.LOST
    )
    assert not capturer.issued(1).lost and capturer.issued(2).lost
    capturer.progress()
    assert capturer.issued(1).landed and capturer.stats().steps_lost == 1
    assert step.poll() == routecap.Status.LOST and "in flight" in raw.routecap_last_error()
    capturer.close()
    assert step.lost  # what its issue said is known


def test_the_first_lost_step_of_a_capturer_is_warned_of_with_what_to_do(make: Any) -> None:
    """The quick start in a loop lost nine steps of ten, and nothing said so."""
    for _ in range(2):
        capturer = make(slots=1, manual_progress=True, may_lose=True)
        request = capturer.open()
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            lose(capturer, request)
            forward(capturer, expected_ids(1, 4))
            assert capturer.issue(routecap.spans(1, request=int(request), rows=4)).lost
            capturer.progress()
            lose(capturer, request)
        assert [each.category for each in seen] == [
            routecap.LostStepWarning
        ] and capturer.stats().steps_lost == 3
        assert issubclass(routecap.LostStepWarning, RuntimeWarning) and seen[0].filename == __file__
        text = str(seen[0].message)
        for word in (
            "step 2 ",
            "rows are missing",
            "as many steps were in flight",
            "slots=1",
            "slots=2",
            "step.wait()",
            "steps_lost",
        ):
            assert word in text


def test_a_program_that_makes_an_error_of_the_warning_goes_on_behind_the_lost_step(
    make: Any,
) -> None:
    capturer = make(slots=1, manual_progress=True, may_lose=True)
    request = capturer.open()
    with warnings.catch_warnings():
        warnings.simplefilter("error", routecap.LostStepWarning)
        with pytest.raises(routecap.LostStepWarning):
            lose(capturer, request)
    assert capturer.issued(2).lost
    capturer.progress()
    forward(capturer, expected_ids(1, 4))
    assert capturer.issue(routecap.spans(1, request=int(request), position=4, rows=4)).ticket == 3


def test_issue_makes_the_snapshot_if_told_to(capturer: routecap.Capturer) -> None:
    request = capturer.open()
    ids = expected_ids(1, 4)
    capturer.begin(4)
    capturer.record_layers(ids.transpose(1, 0, 2))
    capturer.issue(routecap.spans(1, request=int(request), rows=4), snapshot="make").wait(10)
    assert (request.extract().ids() == ids).all()


# ---- Requests


# A request was named by its object, its handle or a string, in every method of the capturer, and
# each method stood there twice.
def test_a_request_is_its_object_and_its_handle_in_arrays(capturer: routecap.Capturer) -> None:
    request, ids = capturer.open(), expected_ids(1, 8)
    assert capturer.request(request.handle) == request and int(request) == request.handle
    assert capturer.request(np.uint64(request.handle)) == request != capturer.open()
    run(capturer, request, ids)
    assert request.coverage().rows == 8 and (request.extract().ids() == ids).all()
    child = request.fork(5)
    assert child.length == 5 and child.capturer is capturer
    request.truncate(6)
    assert (request.length, child.length) == (6, 5)
    child.close()
    assert request.finish().wait(10) == routecap.Status.OK
    for ended in (request, child):
        with pytest.raises(KeyError) as raised:
            ended.finish()
        assert (
            isinstance(raised.value, routecap.Error)
            and raised.value.status == routecap.Status.ERR_UNKNOWN_REQUEST
        )
    handles = capturer.open_batch(3)
    items = np.zeros(2, routecap.finish_dtype)
    items["request"] = handles[:2]
    capturer.finish_batch(items)
    assert capturer.close_batch(handles[2:]) == routecap.Status.OK
    assert capturer.request(handles[2]) not in (None, capturer.request(handles[1]))
    with pytest.raises(KeyError):
        capturer.request(handles[2]).close()


def test_what_is_done_with_one_request_is_a_method_of_it_alone() -> None:
    of_one = {name for name in vars(routecap.Request) if not name.startswith("_")}
    assert {"accept", "fork", "extract", "finish", "publish", "close"} <= of_one
    both = of_one & set(dir(routecap.Capturer))
    assert both == {"close"}  # each its own


def test_a_request_is_closed_at_the_end_of_its_block_unless_it_was_finished(
    capturer: routecap.Capturer,
) -> None:
    with capturer.open():
        assert capturer.stats().requests_open == 1
    assert capturer.stats().requests_open == 0
    with capturer.open() as request:
        request.finish()
    with pytest.raises(KeyError):
        request.close()


def test_another_capturer_s_steps_are_unknown(make: Any) -> None:
    one, two = make(), make()
    step = run(one, one.open(), expected_ids(1, 4))
    with pytest.raises(KeyError, match="another capturer"):
        two.open().accept(step, 1)


def test_drafts_are_settled_one_by_one_and_in_batches(capturer: routecap.Capturer) -> None:
    ids = expected_ids(1, 12)
    requests = [capturer.open() for _ in range(3)]
    forward(capturer, ids)
    step = capturer.issue(
        routecap.spans(3, request=requests, rows=4, sink_row=[0, 4, 8], flags=DRAFT)
    )
    requests[0].accept(step, 3)
    items = np.zeros(2, routecap.accept_dtype)
    items["request"], items["step"], items["count"] = (
        [int(each) for each in requests[1:]],
        int(step),
        [2, 1],
    )
    assert capturer.accept_batch(items, np.array([0, 3, 2], np.uint32)) == routecap.Status.OK
    with pytest.raises(KeyError):
        requests[0].accept(step, [0])
    assert (
        capturer.accept_batch(items) == routecap.Status.PARTIAL
        and (items["status"] == routecap.Status.ERR_UNKNOWN_STEP).all()
    )
    step.wait(10)
    assert [each.length for each in requests] == [3, 4, 3]
    assert (requests[0].extract().ids() == ids[:3]).all()
    assert [
        requests[1].extract().mask().all(axis=1).tolist(),
        (requests[1].extract(3)[0] == ids[7]).all(),
    ] == [[True, False, False, True], True]
    with pytest.raises(ValueError):
        capturer.accept_batch(items, np.array([0], np.uint32))
    with pytest.raises(TypeError):
        capturer.accept_batch(np.zeros(2, routecap.finish_dtype))
    with pytest.raises(ValueError):
        requests[0].accept(step, [-1])


def test_a_batch_has_one_dimension(capturer: routecap.Capturer) -> None:
    calls = (
        (capturer.accept_batch, routecap.accept_dtype),
        (capturer.extract_batch, routecap.extract_dtype),
        (capturer.finish_batch, routecap.finish_dtype),
        (capturer.close_batch, np.uint64),
    )
    for call, dtype in calls:
        with pytest.raises(TypeError):
            call(np.zeros((2, 2), dtype))  # type: ignore[operator]


def test_counts_whose_sum_wraps_to_the_paths_are_refused(capturer: routecap.Capturer) -> None:
    request = capturer.open()
    forward(capturer, expected_ids(1, 8))
    step = capturer.issue(
        routecap.spans(
            2, request=int(request), position=[0, 4], rows=4, sink_row=[0, 4], flags=DRAFT
        )
    )
    items = np.zeros(2, routecap.accept_dtype)
    items["request"], items["step"], items["count"] = int(request), int(step), [2**64 - 4, 8]
    memory = np.arange(8, dtype=np.uint32)
    with pytest.raises(ValueError, match="paths has 4 indices"):
        capturer.accept_batch(items, memory[4:])
    assert (items["rows"] == 0).all()


def test_a_prefix_is_attached_from_the_routing_that_computed_it(
    capturer: routecap.Capturer, routing: routecap.Routing
) -> None:
    request = capturer.open()
    request.attach(routing, 8)
    assert request.length == 8 and (request.extract().ids() == expected_ids(3, 20)[:8]).all()
    request.attach(routing)
    assert request.length == 20


def test_rows_are_taken_shared_and_copied(capturer: routecap.Capturer) -> None:
    request = capturer.open()
    ids = expected_ids(1, 10)
    run(capturer, request, ids)
    assert (request.extract(2, 3).ids() == ids[2:5]).all() and (
        request.extract(mode="copy", rows=routecap.LANDED).ids() == ids
    ).all()
    assert (request.extract(5, mode="take").ids() == ids[5:]).all()
    assert request.coverage().rows_empty == 5
    out, mask = np.zeros((4, LAYERS, K), np.int64), np.zeros((4, LAYERS), bool)
    assert request.extract_into(out, 3, mask=mask) == routecap.Status.INCOMPLETE
    assert (
        (out[:2] == ids[3:5]).all()
        and (out[2:] == -1).all()
        and mask[:2].all()
        and not mask[2:].any()
    )
    with pytest.raises(IndexError):
        request.extract(11)
    with pytest.raises(ValueError):
        request.extract(mode="steal")
    with pytest.raises(routecap.Error):
        request.extract(strict=True)
    with pytest.raises(ValueError):
        request.extract_into(np.zeros((4, LAYERS), np.int64))


def test_a_batch_makes_routings_when_they_are_asked_for(capturer: routecap.Capturer) -> None:
    ids = expected_ids(1, 12)
    handles = capturer.open_batch(3)
    forward(capturer, ids)
    capturer.issue(routecap.spans(3, request=handles, rows=4, sink_row=[0, 4, 8])).wait(10)
    reads = np.zeros(4, routecap.extract_dtype)
    reads["request"], reads["rows"] = [*handles, 999], routecap.ALL
    shared = capturer.extract_batch(reads)
    assert (
        shared.status == routecap.Status.PARTIAL
        and len(shared) == 4
        and reads["status"][3] == routecap.Status.ERR_UNKNOWN_REQUEST
    )
    with pytest.raises(KeyError):
        shared[3]
    reads["first"] = [0, 5, 0, 0]
    with pytest.raises(IndexError):  # which is not the end of the iteration
        list(capturer.extract_batch(reads))
    ends = np.zeros(3, routecap.finish_dtype)
    ends["request"], ends["rows"] = handles, 4
    with capturer.finish_batch(ends) as routings:
        assert routings.status == routecap.Status.OK and routings.statuses.tolist() == [0, 0, 0]
        kept = routings[1]
        assert (
            [each.wait(10) for each in routings] == [0, 0, 0]
            and (routings[-1].ids() == ids[8:]).all()
            and len(routings[:2]) == 2
        )
        with pytest.raises(IndexError):
            routings[3]
    with pytest.raises(routecap.Error, match="freed"):
        routings[0]
    assert (kept.ids() == ids[4:8]).all() and (shared[0].ids() == ids[:4]).all()
    with pytest.raises(TypeError):
        capturer.finish_batch(reads)
    with pytest.raises(ValueError):
        capturer.finish_batch(np.repeat(ends, 2)[::2])


def test_an_item_that_was_refused_is_named_when_it_is_asked_for(
    capturer: routecap.Capturer,
) -> None:
    """The error said ROUTECAP_ERR_UNKNOWN_REQUEST, and not of which of the items."""
    items = np.zeros(3, routecap.finish_dtype)
    items["request"], items["rows"] = (
        [int(capturer.open()), 0x3E7, int(capturer.open())],
        [
            0,
            0,
            1 << 41,
        ],
    )
    with capturer.finish_batch(items) as routings:
        assert "PARTIAL" in repr(routings) and "1 (request 0x3e7): ERR_UNKNOWN_REQUEST" in repr(
            routings
        )
        with pytest.raises(
            KeyError, match=r"item 1 of 3, request 0x3e7, was refused: ERR_UNKNOWN_REQUEST"
        ):
            routings[1]
        with pytest.raises(KeyError, match=r"item 1 of 3, request 0x3e7"):
            list(routings)
        with pytest.raises(
            IndexError,
            match=rf"item 2 of 3, request {items['request'][2]:#x}, was refused: ERR_OUT_OF_RANGE",
        ):
            routings[-1]
    assert repr(capturer.finish_batch(items[:0])) == "<routecap.Routings of 0, OK>"


def test_a_batch_that_is_checked_names_every_item_that_was_refused(
    capturer: routecap.Capturer,
) -> None:
    good, late = capturer.open(), capturer.open()
    run(capturer, good, expected_ids(1, 4))
    wrong = {1: routecap.Status.ERR_UNKNOWN_REQUEST, 3: routecap.Status.ERR_UNKNOWN_REQUEST}

    def items(dtype: Any, **columns: Any) -> Any:
        made = np.zeros(4, dtype)
        made["request"] = [int(good), 0x3E7, int(late), 0x3E8]
        for name, column in columns.items():
            made[name] = column
        return made

    with pytest.raises(routecap.PartialError) as raised:
        capturer.extract_batch(items(routecap.extract_dtype, rows=routecap.ALL), check=True)
    assert raised.value.statuses == wrong and raised.value.status == routecap.Status.PARTIAL
    unknown = "ERR_UNKNOWN_REQUEST"
    text = f"2 of 4 items were refused: 1 (request 0x3e7): {unknown}, 3 (request 0x3e8): {unknown}"
    assert str(raised.value) == text
    assert (
        raised.value.routings is not None
        and (raised.value.routings[0].ids() == expected_ids(1, 4)).all()
    )
    again = pickle.loads(pickle.dumps(raised.value))
    assert type(again) is routecap.PartialError and (again.statuses, str(again)) == (wrong, text)

    settled = items(routecap.accept_dtype, step=1)
    with pytest.raises(
        routecap.PartialError,
        match=rf"4 of 4 items .* 2 \(request {int(late):#x}\): ERR_UNKNOWN_STEP",
    ) as raised:
        capturer.accept_batch(settled, check=True)
    assert (
        raised.value.statuses == {i: status for i, status in enumerate(settled["status"])}
        and raised.value.routings is None
    )

    ends = items(routecap.finish_dtype, rows=[4, 0, 1 << 41, 0])
    with pytest.raises(
        routecap.PartialError, match=rf"2 \(request {int(late):#x}\): ERR_OUT_OF_RANGE"
    ) as raised:
        capturer.finish_batch(ends, check=True)
    # What was done is done, and its routing is not lost.
    assert capturer.stats().requests_open == 1 and late.length == 0
    assert (
        raised.value.routings is not None
        and raised.value.routings[0].wait(10) == routecap.Status.OK
    )
    assert (raised.value.routings[0].ids() == expected_ids(1, 4)).all()

    status = np.zeros(3, np.int32)
    with pytest.raises(
        routecap.PartialError, match=r"2 of 3 items .* 0 \(request 0x3e7\).*, 2 \(request 0x3e8\)"
    ) as raised:
        capturer.close_batch(np.array([0x3E7, late, 0x3E8], np.uint64), status, check=True)
    assert capturer.stats().requests_open == 0 and raised.value.statuses == {
        0: status[0],
        2: status[2],
    }
    assert capturer.close_batch(np.array([0x3E7], np.uint64)) == routecap.Status.PARTIAL


def test_a_batch_that_is_checked_and_complete_is_what_it_was(capturer: routecap.Capturer) -> None:
    handles = capturer.open_batch(2)
    items = np.zeros(1, routecap.finish_dtype)
    items["request"] = handles[:1]
    assert (
        capturer.finish_batch(items, check=True).status
        == capturer.close_batch(handles[1:], check=True)
        == routecap.Status.OK
    )


def test_the_items_of_a_large_batch_are_not_all_in_the_text(capturer: routecap.Capturer) -> None:
    with pytest.raises(
        routecap.PartialError,
        match=r"1000 of 1000 items .* 15 \(request 0x10\): \w+, and 984 more$",
    ) as raised:
        capturer.close_batch(np.arange(1, 1001, dtype=np.uint64), check=True)
    assert list(raised.value.statuses) == list(range(1000))


def test_rows_of_spans_lie_one_after_another_unless_said_otherwise() -> None:
    """Two spans without a sink row both had that of the first."""
    spans = routecap.spans(request=[1, 2, 3], rows=[4, 1, 2])
    assert spans["sink_row"].tolist() == [0, 4, 5]
    assert routecap.spans(3, rows=2)["sink_row"].tolist() == [0, 2, 4]
    assert routecap.spans(3)["sink_row"].tolist() == [0, 0, 0]  # to be filled
    with pytest.raises(ValueError, match="sink_row: 4294967295 is not|sink_row: 8589934590 is not"):
        routecap.spans(3, rows=0xFFFFFFFF)


def test_spans_are_filled_again_in_what_is_given() -> None:
    spans = routecap.spans(request=[1, 2], rows=[3, 4], flags="speculative")
    assert routecap.spans(out=spans, position=[7, 8]) is spans
    assert spans["position"].tolist() == [7, 8] and spans["rows"].tolist() == [3, 4]
    assert spans["sink_row"].tolist() == [0, 3] and spans["flags"].tolist() == [1, 1]
    before = spans.copy()
    with pytest.raises(routecap.ArgumentError, match=r"rows: 2 spans have .* shape \(3,\)"):
        routecap.spans(out=spans, position=9, rows=[1, 2, 3])
    for wrong in (spans.reshape(2, 1), np.zeros(2)):
        with pytest.raises(routecap.Error, match=r"^out "):
            routecap.spans(out=wrong)
    with pytest.raises(routecap.ArgumentError, match="out has shape .* give 3 spans"):
        routecap.spans(3, out=spans)
    assert (spans == before).all()


def test_spans_are_columns_of_one_array() -> None:
    spans = routecap.spans(request=[1, 2, 3], rows=2, sink_row=np.arange(3) * 2, position=10)
    assert (
        spans.dtype == routecap.span_dtype
        and spans["sink_row"].tolist() == [0, 2, 4]
        and spans["position"].tolist() == [10] * 3
    )
    assert len(routecap.spans(7)) == 7 and len(routecap.spans()) == 1


# ---- Roles, counters, errors


def test_a_disabled_capturer_does_nothing() -> None:
    with routecap.Capturer(role="disabled") as capturer:
        request = capturer.open()
        assert int(request) == 0
        capturer.begin(5)
        capturer.snapshot()
        assert capturer.issue(None).ticket == 0
        with pytest.raises(routecap.Error) as raised:
            request.finish()
        assert raised.value.status == routecap.Status.ERR_DISABLED


def test_a_mirror_goes_through_the_forward_path(make: Any) -> None:
    capturer = make(role="mirror")
    forward(capturer, expected_ids(1, 4))
    assert capturer.issue(routecap.spans(1)).ticket == 0


def test_the_counters_add_up(capturer: routecap.Capturer) -> None:
    request = capturer.open()
    run(capturer, request, expected_ids(1, 8))
    stats = capturer.stats()
    assert (
        stats.steps_issued,
        stats.steps_landed,
        stats.rows_issued,
        stats.rows_delivered,
        stats.requests_open,
    ) == (1, 1, 8, 8, 1)
    assert stats.bytes_in_use <= stats.bytes_peak <= stats.bytes_budget
    assert (
        capturer.layer_stats()["rows_written"].tolist() == [8] * LAYERS
        and len(capturer.layer_stats(2)) == 2
    )
    with pytest.raises(IndexError):
        capturer.layer_stats(LAYERS + 1)


@pytest.mark.parametrize("status", [each for each in routecap.Status if each < 0])
def test_every_error_is_an_error_with_its_status(status: routecap.Status) -> None:
    from routecap._errors import error

    found = error(status, "a text")
    assert isinstance(found, routecap.Error) and found.status == status and str(found) == "a text"
    again = pickle.loads(pickle.dumps(found))
    assert type(again) is type(found) and again.status == status and str(again) == "a text"
    assert str(error(status)) == f"ROUTECAP_{status.name}"


def test_errors_are_read_on_the_thread_that_made_the_call(capturer: routecap.Capturer) -> None:
    wrong: list[str] = []

    def fail(number: int) -> None:
        for _ in range(300):
            try:
                capturer.request(number).extract()
            except routecap.Error as error:
                if f"{number:016x}" not in str(error):
                    wrong.append(str(error))

    threads = [threading.Thread(target=fail, args=(1000 + i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[:3]

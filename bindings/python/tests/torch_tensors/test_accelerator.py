"""routecap.torch, judged by ids that are a formula of request, position and layer.

The host stands in for the device: what it computes is there at once, and `Late` keeps a copy's
arrival back until the test lets it in, as a device that is behind does.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from typing import Any

import numpy as np
import pytest
import routecap
import torch
from numpy.typing import NDArray
from routecap.torch import Capturer

LAYERS, K, EXPERTS, ROWS = 3, 4, 64, 32
SHAPE: dict[str, Any] = {"layers": LAYERS, "k": K, "experts": EXPERTS, "rows": ROWS}


def chosen(key: int, first: int, rows: int) -> NDArray[np.int64]:
    """[rows, layers, k] of a request from a position on."""
    position, layer, column = np.ogrid[first : first + rows, :LAYERS, :K]
    return (key * 31 + position * 13 + layer * 29 + column * 5) % EXPERTS


class Event:
    """Of one slot after another; arrives when the test says."""

    def __init__(self, order: deque[threading.Event]) -> None:
        self.order, self.arrived = order, threading.Event()

    def record(self, stream: None) -> None:
        self.arrived = threading.Event()
        self.order.append(self.arrived)

    def query(self) -> bool:
        return self.arrived.is_set()


class Late(Capturer):
    def __init__(self, **settings: Any) -> None:
        self.coming: deque[threading.Event] = deque()
        super().__init__(**{**SHAPE, **settings})

    def _event(self) -> Event:
        return Event(self.coming)

    def arrive_next(self, steps: int = 1) -> None:
        for _ in range(steps):
            self.coming.popleft().set()


def write(capture: Capturer, ids: NDArray[np.int64], layers: Any = range(LAYERS)) -> None:
    capture.begin(len(ids))
    for layer in layers:
        capture.record(layer, torch.from_numpy(ids[:, layer].copy()))


def spans(request: routecap.Request, position: int, rows: int, **more: Any) -> NDArray[np.void]:
    return routecap.spans(1, request=int(request), position=position, rows=rows, **more)


def taken(capture: Capturer, request: routecap.Request, rows: int) -> routecap.Routing:
    routing = request.finish(rows)
    routing.wait(10)
    return routing


@pytest.fixture
def capture() -> Any:
    with Capturer(**SHAPE) as made:
        yield made


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("ROUTECAP_CHECKED", raising=False)  # with which slips are errors
    with Capturer(**SHAPE) as made:
        yield made


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64])
def test_chunks_decode_rows_and_padding_of_one_pass(capture: Capturer, dtype: torch.dtype) -> None:
    first, second = capture.open(), capture.open()
    for position, rows in ((0, 20), (20, 1), (21, 1)):
        ids = np.full((rows + 7, LAYERS, K), 9)  # 5 rows of padding at the end
        ids[:rows] = chosen(1, position, rows)
        ids[rows : rows + 2] = chosen(2, position * 2, 2)
        capture.begin(len(ids))
        for layer in range(LAYERS):
            wide = torch.from_numpy(
                np.pad(ids[:, layer], ((0, 0), (0, 2)), constant_values=EXPERTS)
            )
            half = len(ids) // 2  # micro-batches, in any order
            capture.record(layer, wide[half:].to(dtype), columns=K + 2, first_row=half)
            capture.record(layer, wide[:half].to(dtype), columns=K + 2)
        both = np.concatenate(
            [spans(first, position, rows), spans(second, position * 2, 2, sink_row=rows)]
        )
        capture.issue(both)
    assert (taken(capture, first, 22).ids() == chosen(1, 0, 22)).all()
    routing = taken(capture, second, 2)
    assert routing.complete and (routing.ids() == chosen(2, 0, 2)).all()


@pytest.mark.parametrize("as_list", [True, False])
def test_all_layers_are_recorded_at_once(capture: Capturer, as_list: bool) -> None:
    request, ids = capture.open(), chosen(1, 0, 9)
    tensor = torch.from_numpy(ids.transpose(1, 0, 2).copy())
    capture.begin(9)
    capture.record_layers(list(tensor) if as_list else tensor)
    capture.issue(spans(request, 0, 9))
    assert (taken(capture, request, 9).ids() == ids).all()
    other = capture.open()
    capture.record_layers(list(tensor) if as_list else tensor, whole_step=True)
    capture.issue(spans(other, 0, 9))
    assert (taken(capture, other, 9).ids() == ids).all()


def test_a_buffer_of_the_engine_is_bound(capture: Capturer) -> None:
    buffer = torch.zeros(LAYERS, ROWS, K, dtype=torch.int16)
    capture.bind(0, buffer)
    request = capture.open()
    for position in range(0, 20, 5):
        capture.begin(5)
        buffer[:, :5] = torch.from_numpy(chosen(1, position, 5).transpose(1, 0, 2))
        if position == 15:
            buffer[1, 2:5] = torch.tensor(-1, dtype=torch.int16)
        capture.issue(spans(request, position, 5))
    routing, mask = taken(capture, request, 20), np.ones((20, LAYERS), bool)
    mask[17:, 1] = False
    assert (routing.mask() == mask).all()
    assert (routing.ids()[mask] == chosen(1, 0, 20)[mask]).all()
    assert set(routing.missing["reason"].tolist()) == {routecap.Missing.OUT_OF_RANGE}


def test_ids_are_looked_up_in_a_table(capture: Capturer) -> None:
    request, table = capture.open(), torch.arange(EXPERTS, dtype=torch.int32).flip(0)
    ids = chosen(1, 0, 4)
    capture.begin(4)
    for layer in range(LAYERS):
        capture.record(layer, EXPERTS - 1 - torch.from_numpy(ids[:, layer].copy()), table=table)
    capture.issue(spans(request, 0, 4))
    assert (taken(capture, request, 4).ids() == ids).all()


def test_a_router_writes_its_ids_itself(capture: Capturer) -> None:
    request, ids = capture.open(), chosen(1, 0, 5)
    capture.begin(5)
    capture.ids[:5] = torch.from_numpy(ids)
    capture.issue(spans(request, 0, 5))
    assert (taken(capture, request, 5).ids() == ids).all()


def test_what_a_pass_does_not_write_is_missing_and_never_of_an_earlier_one(
    capture: Capturer,
) -> None:
    request = capture.open()
    write(capture, chosen(1, 0, 8))
    capture.issue(spans(request, 0, 8))
    write(capture, chosen(1, 8, 8), layers=(0, 2))
    capture.record(1, torch.from_numpy(chosen(1, 8, 3)[:, 1].copy()))
    capture.issue(spans(request, 8, 8))
    write(capture, chosen(1, 16, 8), layers=(0, 1))
    capture.issue(spans(request, 16, 8))
    routing = taken(capture, request, 24)
    mask = np.ones((24, LAYERS), bool)
    mask[11:16, 1] = mask[16:, 2] = False
    assert (routing.mask() == mask).all()
    assert (routing.ids()[mask] == chosen(1, 0, 24)[mask]).all()
    assert set(routing.missing["reason"].tolist()) == {routecap.Missing.UNWRITTEN}
    assert capture.stats().silent_layers == 1


def test_nothing_of_an_abandoned_pass_is_seen(unchecked: Capturer) -> None:
    capture = unchecked
    request = capture.open()
    write(capture, chosen(9, 0, 16))  # its engine fails here
    write(capture, chosen(1, 0, 4), layers=(0,))
    capture.issue(spans(request, 0, 16))
    write(capture, chosen(9, 0, 16))
    capture.discard()
    capture.issue(spans(request, 16, 2))
    routing = taken(capture, request, 18)
    mask = np.zeros((18, LAYERS), bool)
    mask[:4, 0] = True
    assert (routing.mask() == mask).all() and (routing.ids()[mask] == chosen(1, 0, 4)[:, 0]).all()


def test_a_step_that_an_exception_leaves_is_an_abandoned_pass(capture: Capturer) -> None:
    request = capture.open()
    with pytest.raises(ValueError):
        with capture.step(4) as step:
            step.record(0, torch.from_numpy(chosen(9, 0, 4)[:, 0].copy()))
            raise ValueError
    with capture.step(4) as step:
        for layer in range(1, LAYERS):
            step.record(layer, torch.from_numpy(chosen(1, 0, 4)[:, layer].copy()))
        step.issue(spans(request, 0, 4))
    routing = taken(capture, request, 4)
    assert (routing.mask() == (np.arange(LAYERS) > 0)).all()
    assert (routing.ids()[:, 1:] == chosen(1, 0, 4)[:, 1:]).all()


def test_a_pass_that_is_issued_twice_has_its_rows_once(unchecked: Capturer) -> None:
    capture = unchecked
    request = capture.open()
    write(capture, chosen(1, 0, 4))
    capture.issue(spans(request, 0, 4))
    capture.issue(spans(request, 4, 4))  # as if a graph had not been replayed
    routing = taken(capture, request, 8)
    assert (routing.mask() == (np.arange(8) < 4)[:, None]).all()


def test_numbers_that_are_no_ids_never_become_some(capture: Capturer) -> None:
    request = capture.open()
    numbers = torch.tensor([[0, 1, 2, 3], [EXPERTS, 1, 2, 3], [-1, 1, 2, 3], [5, 5, 2, 3]])
    numbers = torch.cat([numbers, numbers[:1] + (1 << 16), numbers[:1] + (1 << 32)])
    capture.begin(6)
    for layer in range(LAYERS):
        capture.record(layer, numbers)
    capture.issue(spans(request, 0, 6))
    routing = taken(capture, request, 6)
    assert routing.mask()[:, 0].tolist() == [True] + [False] * 5


def test_calls_on_requests_come_after_the_steps_before_them() -> None:
    with Late(slots=8) as capture:
        request, other = capture.open(), capture.open()
        write(capture, chosen(1, 0, 6))
        capture.issue(spans(request, 0, 6))
        write(capture, chosen(9, 6, 4))
        capture.issue(spans(request, 6, 4))
        request.truncate(6)  # the four are computed again, and differ
        write(capture, chosen(1, 6, 4))
        capture.issue(spans(request, 6, 4))
        write(capture, chosen(1, 10, 3))
        drafts = spans(request, 10, 3, flags=int(routecap.SpanFlag.SPECULATIVE))
        step = capture.issue(drafts)
        request.accept(step, 2)
        copy = request.fork(5)
        write(capture, chosen(2, 0, 3))
        capture.issue(spans(other, 0, 3))
        routing = request.finish(12)
        other.close()
        assert not step.landed and capture.stats().rows_in_flight == 20
        capture.arrive_next(5)
        routing.wait(10)
        assert routing.complete and (routing.ids() == chosen(1, 0, 12)).all()
        assert (taken(capture, copy, 5).ids() == chosen(1, 0, 5)).all()
        assert capture.stats().rows_late == 4 + 3


def test_a_step_that_finds_no_slot_waits_for_one_and_is_not_lost() -> None:
    with Late(slots=2) as capture:
        request = capture.open()
        reused = spans(request, 0, 1)

        def engine() -> None:
            for position in range(20):
                write(capture, chosen(1, position, 1))
                reused["position"] = position
                capture.issue(reused)

        thread = threading.Thread(target=engine)
        thread.start()
        most, arrived = 0, 0
        while arrived < 20:
            most = max(most, len(capture.coming))
            if len(capture.coming) == 2 or not thread.is_alive():
                capture.arrive_next()
                arrived += 1
        thread.join()
        routing = taken(capture, request, 20)
        assert most == 2 and routing.complete and (routing.ids() == chosen(1, 0, 20)).all()


def test_a_pass_of_nobody_is_a_step_without_rows(capture: Capturer) -> None:
    request = capture.open()
    write(capture, chosen(9, 0, 4))
    assert capture.issue(routecap.spans(0)).wait(10) is routecap.Status.OK
    write(capture, chosen(1, 0, 4))
    capture.issue(spans(request, 0, 4))
    assert (taken(capture, request, 4).ids() == chosen(1, 0, 4)).all()


def test_a_step_that_is_refused_can_be_issued_again(capture: Capturer) -> None:
    request = capture.open()
    write(capture, chosen(1, 0, 4))
    refused(
        routecap.Status.ERR_OVERLAP,
        capture.issue,
        np.concatenate([spans(request, 0, 4), spans(request, 2, 2, sink_row=4)]),
    )
    capture.issue(spans(request, 0, 4))
    assert (taken(capture, request, 4).ids() == chosen(1, 0, 4)).all()


def test_a_copy_that_fails_loses_its_step_alone(caplog: pytest.LogCaptureFixture) -> None:
    with Late() as capture:
        request = capture.open()
        write(capture, chosen(1, 0, 2))
        lost = capture.issue(spans(request, 0, 2))
        capture.coming[0].is_set = lambda: 1 / 0  # type: ignore[assignment,method-assign]
        assert lost.wait(10) is routecap.Status.LOST
        write(capture, chosen(1, 2, 2))
        capture.issue(spans(request, 2, 2))
        capture.coming.popleft()
        capture.arrive_next()
        routing = taken(capture, request, 4)
        assert routing.mask()[:, 0].tolist() == [False, False, True, True]
        assert "PyTorch did not copy them" in caplog.text


def test_steps_that_never_arrive_are_lost_at_the_end() -> None:
    raw = routecap.Capturer(**SHAPE, external_sink=True)
    request = raw.open()
    raw.issue(spans(request, 0, 2), snapshot="later")
    routing = request.finish(2)
    raw.close()
    routing.wait(10)
    assert set(routing.missing["reason"].tolist()) == {routecap.Missing.LOST}


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_positions_of_the_device(capture: Capturer, dtype: torch.dtype) -> None:
    request, where = capture.open(), [5, 3, 4, 0, 2, 1]
    positions = torch.tensor([*where, 99], dtype=dtype)
    write(capture, chosen(1, 0, 6)[where])
    flags = int(routecap.SpanFlag.DEVICE_POSITIONS)
    capture.issue(spans(request, 0, 6, position_end=6, flags=flags), positions=positions)
    positions.zero_()  # the engine goes on
    assert (taken(capture, request, 6).ids() == chosen(1, 0, 6)).all()


def test_tags_and_layers_of_different_sizes() -> None:
    with Capturer(layers=2, k=2, layer_experts=[4, 32768], rows=4) as capture:
        request = capture.open()
        capture.begin(1)
        capture.record(0, torch.tensor([[3, 1]]))
        capture.record(1, torch.tensor([[32767, 5]]))
        capture.issue(spans(request, 0, 1), tag=7)
        routing = taken(capture, request, 1)
        assert routing.ids().tolist() == [[[3, 1], [32767, 5]]] and routing.tags.tolist() == [7]


def test_inference_mode_inside_and_outside(capture: Capturer) -> None:
    with torch.inference_mode():
        inside = Capturer(**SHAPE)
        request = capture.open()
        write(capture, chosen(1, 0, 2))
        capture.issue(spans(request, 0, 2))
    with inside:
        other = inside.open()
        write(inside, chosen(1, 0, 2))
        inside.issue(spans(other, 0, 2))
        assert (taken(inside, other, 2).ids() == taken(capture, request, 2).ids()).all()


def refused(status: routecap.Status, call: Any, *args: Any, **more: Any) -> None:
    with pytest.raises(routecap.Error) as reason:
        call(*args, **more)
    assert reason.value.status is status


def test_what_is_refused(capture: Capturer) -> None:
    S, ids = routecap.Status, torch.zeros(4, K, dtype=torch.int64)
    refused(S.ERR_NOT_BEGUN, capture.record, 0, ids)
    refused(S.ERR_CAPACITY, capture.begin, ROWS + 1)
    capture.begin(4)
    refused(S.ERR_UNKNOWN_LAYER, capture.record, LAYERS, ids)
    refused(S.ERR_UNKNOWN_LAYER, capture.record, -1, ids)
    refused(S.ERR_DTYPE, capture.record, 0, ids.float())
    refused(S.ERR_SHAPE_MISMATCH, capture.record, 0, ids[:, :2])
    refused(S.ERR_SHAPE_MISMATCH, capture.record_layers, ids.expand(LAYERS + 1, -1, -1))
    refused(S.ERR_UNKNOWN_LAYER, capture.record_layers, {LAYERS: ids})
    refused(S.ERR_CAPACITY, capture.record, 0, ids, first_row=1)
    capture.record(0, ids)
    refused(S.ERR_CONFLICT, capture.record, 0, ids[:1], first_row=3)
    refused(S.ERR_CONFLICT, capture.record_layers, ids.expand(LAYERS, -1, -1))
    refused(S.ERR_CAPACITY, capture.issue, spans(capture.open(), 0, 2, sink_row=ROWS - 1))
    refused(S.ERR_ARGUMENT, Capturer, **SHAPE, backend="cuda")
    refused(S.ERR_ARGUMENT, capture.record, 1, ids, row_index=ids)
    refused(S.ERR_SHAPE_MISMATCH, capture.bind, 0, capture.ids)


@pytest.mark.parametrize("seed", range(20))
def test_random_engines(seed: int) -> None:
    """Batches of several requests in flight, passes that fail, layers that are forgotten, requests
    that are cut and go on, in any order of arrival: each cell is what its pass wrote, or missing.
    """
    dice = random.Random(seed)
    with Late(slots=6) as capture:
        requests = {capture.open(): key for key in range(6)}
        lengths = dict.fromkeys(requests, 0)
        model = {request: np.full((400, LAYERS, K), -1) for request in requests}
        futures = {}
        for turn in range(60):
            batch, cells, at = [], [], 0
            for request in dice.sample(list(lengths), min(len(lengths), 3)):
                rows = dice.choice([1, 1, 1, 9])
                if at + rows > ROWS:
                    continue
                written = [layer for layer in range(LAYERS) if dice.random() < 0.95]
                ids = chosen(requests[request] + turn, lengths[request], rows)
                batch.append(spans(request, lengths[request], rows, sink_row=at))
                cells.append((request, rows, at, written, ids))
                at += rows
            capture.begin(at + dice.randrange(0, ROWS - at + 1))
            for layer in range(LAYERS):
                for _, _, row, written, ids in cells:
                    if layer in written:
                        tensor = torch.from_numpy(ids[:, layer].copy())
                        capture.record(layer, tensor, first_row=row)
            if dice.random() < 0.2 or not batch:
                continue  # the pass fails
            if len(capture.coming) == 6:
                capture.arrive_next(dice.randrange(1, 7))
            capture.issue(np.concatenate(batch), tag=turn)
            for request, rows, _, written, ids in cells:
                to = model[request][lengths[request] : lengths[request] + rows]
                to[:] = -1
                to[:, written] = ids[:, written]
                lengths[request] += rows
            if dice.random() < 0.2:
                request = dice.choice(list(lengths))
                lengths[request] = dice.randrange(lengths[request] + 1)
                model[request][lengths[request] :] = -1
                request.truncate(lengths[request])
            if dice.random() < 0.05 and len(lengths) > 2:
                request = dice.choice(list(lengths))
                futures[request] = request.finish(lengths[request]), lengths.pop(request)
        for request, rows in lengths.items():
            futures[request] = request.finish(rows), rows
        capture.arrive_next(len(capture.coming))
        seen = 0
        for request, (routing, rows) in futures.items():
            routing.wait(10)
            assert (routing.ids() == model[request][:rows]).all()
            seen += rows
        assert seen > 50


# k came from the tensor's shape; a shorter list of positions was the same for all rows, and one of
# floats was rounded.
def test_a_slip_of_shape_is_refused(capture: Capturer) -> None:
    S, ids = routecap.Status, torch.zeros(4, K, dtype=torch.int64)
    capture.begin(4)
    refused(S.ERR_SHAPE_MISMATCH, capture.record, 0, torch.zeros(4, K + 2, dtype=torch.int64))
    refused(S.ERR_SHAPE_MISMATCH, capture.record, 0, torch.zeros(K, 3, dtype=torch.int64))
    refused(S.ERR_SHAPE_MISMATCH, capture.record, 0, ids, columns=K + 1)
    refused(S.ERR_SHAPE_MISMATCH, capture.record, 0, ids[:, :2], columns=2)
    refused(S.ERR_SHAPE_MISMATCH, capture.record, 0, ids.ravel())
    refused(S.ERR_SHAPE_MISMATCH, capture.record_layers, ids.expand(LAYERS - 1, -1, -1))
    refused(S.ERR_DTYPE, capture.record, 0, ids.numpy())
    table = torch.zeros(EXPERTS)
    refused(S.ERR_DTYPE, capture.record, 0, ids, table=table)
    refused(S.ERR_SHAPE_MISMATCH, capture.record, 0, ids, table=table.int().expand(LAYERS, -1))
    request = capture.open()
    where = routecap.spans(request=request, rows=4, position_end=9, flags="device_positions")
    for positions, status in (
        (torch.tensor([3]), S.ERR_SHAPE_MISMATCH),
        (torch.arange(8).reshape(4, 2), S.ERR_SHAPE_MISMATCH),
        (torch.arange(4.0), S.ERR_DTYPE),
    ):
        refused(status, capture.issue, where, positions=positions)

"""A step as a context manager: it is issued, or it leaves nothing behind."""

import warnings
from typing import Any

import numpy as np
import pytest
import routecap
from routecap_testing.helpers import LAYERS, expected_ids, forward, run


def record(step: routecap.OpenStep, ids: Any, layers: Any = range(LAYERS)) -> None:
    for layer in layers:
        step.record(layer, ids[:, layer])


def spans(request: routecap.Request, position: int, rows: int) -> Any:
    return routecap.spans(request=request, position=position, rows=rows)


def state_error() -> Any:
    return pytest.raises(routecap.Error, match=r"issued nor|is open|not open")


def test_what_is_recorded_in_a_step_is_what_it_issues(capturer: routecap.Capturer) -> None:
    request, ids = capturer.open(), expected_ids(1, 12)
    with capturer.step(4) as step:
        record(step, ids[:4])
        issued = step.issue(spans(request, 0, 4), tag=7)
    with capturer.step(4) as step:
        step.record_layers(ids[4:8].transpose(1, 0, 2))
        step.snapshot()
        step.issue(spans(request, 4, 4), tag=7)
    forward(capturer, ids[8:])  # as a graph does it
    capturer.issue(spans(request, 8, 4), tag=7)
    assert (issued.ticket, issued.wait(10)) == (1, routecap.Status.OK)
    routing = request.finish(12)
    routing.wait(10)
    assert (routing.ids() == ids).all() and set(routing.tags.tolist()) == {7}


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, GeneratorExit])
def test_a_step_that_an_exception_leaves_has_its_rows_missing_and_its_slot_free(
    make: Any, kind: type[BaseException]
) -> None:
    capturer = make(slots=1, may_lose=True)
    request, wrong, right = capturer.open(), expected_ids(9, 4), expected_ids(1, 4)
    for _ in range(3):
        with pytest.raises(kind):
            with capturer.step(4) as step:
                record(step, wrong)
                raise kind
    with capturer.step(4) as step:
        record(step, right, [0, 2])
        issued = step.issue(spans(request, 4, 4))
    assert issued.wait(10) == routecap.Status.OK and capturer.stats().steps_issued == 1
    routing = request.finish(8)
    routing.wait(10)
    assert not routing.mask()[:4].any()
    reasons = {routecap.Missing(each["reason"]) for each in routing.missing if each["first"] < 4}
    assert reasons == {routecap.Missing.ABSENT}
    # What the abandoned passes left in the sink is nobody's, also where the next one wrote nothing.
    assert routing.mask()[4:].tolist() == [[True, False, True, False, False]] * 4
    assert (routing.ids()[4:, [0, 2]] == right[:, [0, 2]]).all()


def test_a_step_that_is_neither_issued_nor_discarded_says_so(make: Any) -> None:
    capturer = make(slots=1, may_lose=True)
    request = capturer.open()
    for _ in range(3):
        with state_error() as raised:
            with capturer.step(4) as step:
                record(step, expected_ids(9, 4))
        assert raised.value.status == routecap.Status.ERR_STATE
        assert "step.issue(spans)" in str(raised.value) and "step.discard()" in str(raised.value)
    for _ in range(3):
        with capturer.step(4) as step:
            record(step, expected_ids(9, 4))
            step.discard()
    assert run(capturer, request, expected_ids(1, 4)).ticket == 1
    assert (request.extract().ids() == expected_ids(1, 4)).all()


def test_what_leaves_a_step_after_its_issue_leaves_it_issued(capturer: routecap.Capturer) -> None:
    request, ids = capturer.open(), expected_ids(1, 4)
    with pytest.raises(ValueError, match="behind the issue"):
        with capturer.step(4) as step:
            record(step, ids)
            step.issue(spans(request, 0, 4)).wait(10)
            raise ValueError("behind the issue")
    assert (request.extract().ids() == ids).all()


def test_an_issue_that_is_refused_can_be_made_again(capturer: routecap.Capturer) -> None:
    request, ids = capturer.open(), expected_ids(1, 4)
    with capturer.step(4) as step:
        record(step, ids)
        with pytest.raises(IndexError):
            step.issue(routecap.spans(request=request, rows=4, sink_row=1 << 20))
        step.issue(spans(request, 0, 4)).wait(10)
    with pytest.raises(IndexError):  # and not that it was not issued
        with capturer.step(4) as step:
            step.issue(routecap.spans(request=request, rows=4, sink_row=1 << 20))
    assert (request.extract().ids() == ids).all() and request.length == 4


def test_a_step_is_used_in_its_own_block_alone(capturer: routecap.Capturer) -> None:
    request, ids = capturer.open(), expected_ids(1, 4)
    step = capturer.step(4)
    uses: list[Any] = [
        lambda: step.record(0, ids[:, 0]),
        lambda: step.record_layers(ids.transpose(1, 0, 2)),
        lambda: step.route(0, routecap.Router(), np.zeros((4, 64), np.float32)),
        step.snapshot,
        step.discard,
        lambda: step.issue(spans(request, 0, 4)),
    ]
    for when in ("before", "after"):
        for use in uses:
            with state_error():
                use()
        if when == "before":
            with step:
                record(step, ids)
                step.issue(spans(request, 0, 4)).wait(10)
                with state_error():
                    step.record(0, ids[:, 0])
    assert (request.extract().ids() == ids).all() and capturer.stats().steps_issued == 1


# The inner begin discarded what the outer step had, and the outer issue took the inner one's rows.
def test_a_step_does_not_begin_in_another(capturer: routecap.Capturer) -> None:
    request, ids = capturer.open(), expected_ids(1, 8)
    with capturer.step(4) as outer:
        record(outer, ids[:4])
        with state_error():
            with capturer.step(4):
                raise AssertionError
        outer.issue(spans(request, 0, 4))
        with capturer.step(4) as next_one:  # the outer one has ended
            record(next_one, ids[4:])
            next_one.issue(spans(request, 4, 4)).wait(10)
    assert (request.extract().ids() == ids).all()


def test_a_begin_that_is_refused_leaves_no_step_open(capturer: routecap.Capturer) -> None:
    with pytest.raises(IndexError):
        with capturer.step(1 << 20):
            raise AssertionError
    with capturer.step(4) as step:
        step.discard()


def test_a_capturer_that_is_closed_within_a_step_hides_no_exception(make: Any) -> None:
    capturer = make()
    with pytest.raises(ValueError, match="the engine's") as raised:
        with capturer.step(4):
            capturer.close()
            raise ValueError("the engine's")
    assert any("not discarded" in note for note in raised.value.__notes__)
    other = make()
    with pytest.raises(routecap.Error, match="closed"):
        with other.step(4):
            other.close()


def test_a_step_s_snapshot_is_taken_once(make: Any) -> None:
    capturer = make(checked=True)  # in which a second one is an error
    request, ids = capturer.open(), expected_ids(1, 8)
    for position, explicit in ((0, False), (4, True)):
        with capturer.step(4) as step:
            record(step, ids[position : position + 4])
            if explicit:
                step.snapshot()
            assert step.issue(spans(request, position, 4)).wait(10) == routecap.Status.OK
    assert (request.extract().ids() == ids).all()


def test_a_lost_step_is_warned_of_where_it_is_issued(make: Any) -> None:
    capturer = make(slots=1, manual_progress=True, may_lose=True)
    request = capturer.open()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for position in (0, 4):
            with capturer.step(4) as step:
                record(step, expected_ids(1, 4))
                issued = step.issue(spans(request, position, 4))
    assert issued.lost and [each.filename for each in seen] == [__file__]


def test_all_of_a_step_is_on_its_stream_and_is_its_capturer_s_own_way() -> None:
    """routecap.torch.Capturer, for one, records in another way."""
    seen: list[tuple[str, Any]] = []

    def noted(name: str) -> Any:
        def method(self: Any, *given: Any, stream: Any = None, **named: Any) -> Any:
            seen.append((name, stream))
            return getattr(routecap.Capturer, name)(
                self, *given, **named
            )  # the host has no streams

        return method

    names = ("begin", "record", "record_layers", "snapshot", "issue", "discard")
    kind: Any = type("Noting", (routecap.Capturer,), {name: noted(name) for name in names})
    ids = np.zeros((1, 4, 2), np.int32)
    with kind(layers=1, k=2, experts=8, rows=4, backend="host") as capturer:
        for stream in (7, None):
            with capturer.step(4, stream=stream) as step:
                step.record(0, ids[0], rows=2)
                step.record_layers(ids[:, 2:], first_row=2, stream=9)
                step.snapshot()
                step.issue(None)
            with capturer.step(4, stream=stream) as step:
                step.discard()
            with pytest.raises(ValueError):
                with capturer.step(4, stream=stream):
                    raise ValueError
            others = [name for name, given in seen if given == stream and name != "record_layers"]
            assert others == [
                *("begin", "record", "snapshot", "issue"),
                *("begin", "discard") * 2,
            ]
            assert ("record_layers", 9) in seen
            seen.clear()


def test_a_capturer_that_is_off_has_steps_too() -> None:
    for role in ("disabled", "mirror"):
        shape: Any = {} if role == "disabled" else {"layers": 1, "k": 2, "experts": 8, "rows": 4}
        with routecap.Capturer(role=role, **shape) as capturer:
            with capturer.step(4) as step:
                step.record(0, np.zeros((4, 2), np.int32))
                assert step.issue(None).ticket == 0
            with state_error():
                with capturer.step(4):
                    pass

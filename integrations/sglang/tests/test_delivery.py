"""Rows on their way to the process that encodes them, and what it makes of them."""

import base64
import json
import subprocess
import sys
import time

import numpy as np
import pytest
import routecap
from routecap_sglang._answer import DTYPES, dtype_asked, encode
from routecap_sglang._delivery import Asked, Outbox, disconnect, fetch, in_message
from routecap_sglang._options import Options
from routecap_sglang._sinks import Finished, Sinks

ROWS, MAP, K = 9, [0, 2, 3], 2


@pytest.fixture
def routing():
    return make(40)


def make(experts, mask=None):
    draw = np.random.default_rng(0)
    ids = np.stack([draw.permutation(experts)[:K] for _ in range(ROWS * len(MAP))])
    ids = ids.reshape(ROWS, len(MAP), K).astype(np.int32)
    return routecap.Routing.from_arrays(ids, valid=mask, experts=experts, layer_map=MAP)


@pytest.fixture
def outbox():
    box = Outbox()
    yield box
    box.close()
    disconnect()


def test_rows_are_fetched_once_from_where_the_client_wants_them(outbox, routing):
    ticket = outbox.put(routing, Asked("int32", 3, 8, 5))
    assert ticket.dtype == np.uint8 and len(ticket) < 300
    rows, asked = fetch(ticket)
    assert asked == Asked("int32", 3, 8, 5)
    assert (rows.first, rows.rows) == (3, 5) and (rows.ids() == routing.ids()[3:8]).all()
    with pytest.raises(RuntimeError, match="does not have"):
        fetch(ticket)
    assert fetch(outbox.put(routing, Asked("int32", 9, 9, 5)))[0].rows == 0


def test_a_process_that_is_gone_is_an_error_and_the_next_one_is_asked_anew(outbox, routing):
    ticket = outbox.put(routing, Asked("int32", 0, 9, 5))
    fetch(ticket)
    other = Outbox()
    gone = other.put(routing, Asked("int32", 0, 9, 5))
    other.close()
    with pytest.raises(RuntimeError):
        fetch(gone)
    assert fetch(outbox.put(routing, Asked("int32", 0, 9, 5)))[0].rows == ROWS


CLIENT = """
import sys, time
from routecap_sglang._delivery import fetch
for line in sys.stdin:
    rows, _ = fetch(bytes.fromhex(line))
    print(rows.rows, time.monotonic(), flush=True)
"""


def test_an_interpreter_that_is_busy_does_not_hold_rows_back(outbox, routing):
    tickets = [outbox.put(routing, Asked("int32", 0, 9, 5)).tobytes().hex() for _ in range(32)]
    interval = sys.getswitchinterval()
    arguments = [sys.executable, "-c", CLIENT]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(arguments, text=True, **pipes) as client:
        client.stdin.write(tickets[0] + "\n")
        client.stdin.flush()
        client.stdout.readline()  # it has started
        try:
            sys.setswitchinterval(1000)
            client.stdin.write("\n".join(tickets[1:]) + "\n")
            client.stdin.flush()
            until = time.monotonic() + 1
            while time.monotonic() < until:
                pass  # no other thread of this interpreter runs
        finally:
            sys.setswitchinterval(interval)
        client.stdin.close()
        answers = [line.split() for line in client.stdout]
    assert [int(rows) for rows, _ in answers] == [ROWS] * 31
    assert float(answers[-1][1]) < until


def test_of_too_many_that_nobody_fetches_the_oldest_go(outbox, routing, monkeypatch):
    monkeypatch.setattr("routecap_sglang._delivery._MOST", 2)
    tickets = [outbox.put(routing, Asked("int32", 0, 9, 5)) for _ in range(4)]
    for gone in tickets[:2]:
        with pytest.raises(RuntimeError, match="does not have"):
            fetch(gone)
    assert all(fetch(each)[0].rows == ROWS for each in tickets[2:])


def test_rows_in_flight_are_sent_once_they_have_landed(outbox):
    settings = {
        "layers": 1,
        "k": K,
        "experts": 8,
        "rows": 4,
        "backend": "host",
        "manual_progress": True,
    }
    with routecap.Capturer(**settings) as capturer:
        request = capturer.open()
        capturer.begin(1)
        capturer.record(0, np.array([[3, 5]], np.int32))
        capturer.snapshot()
        capturer.issue(routecap.spans(request=[request], position=[0], rows=[1]))
        pending = request.finish()
        assert not pending.ready
        rows, _ = fetch(outbox.put(pending, Asked("int32", 0, 1, 1)))
        assert rows.ids().tolist() == [[[3, 5]]]


def test_rows_in_the_message_need_no_socket(routing):
    rows, asked = fetch(in_message(routing, Asked("uint8", 2, 9, 5)))
    assert asked.dtype == "uint8" and (rows.ids() == routing.ids()[2:]).all()


@pytest.mark.parametrize("length", (0, 5, 12, 400))
def test_other_bytes_are_no_ticket(length):
    assert fetch(np.full(length, 7, np.uint8)) is None


def test_int32_is_what_the_engine_itself_would_send_but_for_what_is_missing():
    mask = np.ones((ROWS, len(MAP)), bool)
    mask[4] = False
    routing = make(40, mask)
    answer = np.frombuffer(base64.b64decode(encode(routing, Asked("int32", 0, ROWS, 5))), np.int32)
    answer = answer.reshape(ROWS, 5, K)
    assert (answer[:, [1, 4]] == 0).all()
    assert (answer[4, MAP] == -1).all()
    assert (answer[mask[:, 0]][:, MAP] == routing.ids()[mask[:, 0]]).all()


@pytest.mark.parametrize("kind", ("uint8", "uint16", "int16"))
def test_narrow_answers_say_their_shape_and_what_is_missing(kind):
    mask = np.ones((ROWS, len(MAP)), bool)
    mask[2:4, 1] = False
    routing = make(40, mask)
    answer = json.loads(encode(routing, Asked(kind, 0, ROWS, 5)))
    ids = np.frombuffer(base64.b64decode(answer["data"]), kind).reshape(answer["shape"])
    assert answer["layers"] == MAP and answer["start"] == 0 and answer["dtype"] == kind
    assert (ids[mask] == routing.ids()[mask]).all()
    assert (ids[~mask] == (-1 if kind == "int16" else np.iinfo(kind).max)).all()
    [[first, rows, layer, layers, reason]] = answer["missing"]
    assert (first, rows, layer, layers) == (2, 2, 1, 1) and isinstance(reason, str)
    assert "missing" not in json.loads(encode(make(40), Asked(kind, 0, ROWS, 5)))


def test_ids_that_do_not_fit_into_one_byte_come_in_two():
    answer = json.loads(encode(make(300), Asked("uint8", 0, ROWS, 5)))
    assert answer["dtype"] == "uint16"
    full = json.loads(encode(make(256), Asked("uint8", 0, ROWS, 5)))
    assert full["dtype"] == "uint8"  # nothing is missing, so that 255 is an expert


def test_the_serialised_form_has_everything():
    routing = make(40)
    data = base64.b64decode(encode(routing, Asked("routecap", 0, ROWS, 5)))
    assert routecap.Routing.deserialize(data) == routing


def test_a_reference_is_where_the_rows_are(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="no ROUTECAP_SGLANG_OBJECTS"):
        dtype_asked({"custom_params": {"routed_experts_dtype": "reference"}})
    monkeypatch.setenv("ROUTECAP_SGLANG_OBJECTS", f"file://{tmp_path}")
    assert dtype_asked({"custom_params": {"routed_experts_dtype": "reference"}}) == "reference"
    routing = make(40)
    reference = json.loads(encode(routing, Asked("reference", 0, ROWS, 5)))
    store = routecap.remote.connect(f"file://{tmp_path}")
    shape = {"layers": len(MAP), "k": K, "experts": 40, "layer_map": MAP}
    assert routecap.remote.Reader(store, **shape).rows(reference).read(0, ROWS) == routing


def test_a_request_names_its_type_or_is_refused(monkeypatch):
    monkeypatch.setenv("ROUTECAP_SGLANG_OBJECTS", "memory://objects")

    class Parameters:
        custom_params = None

    assert dtype_asked(Parameters()) == "int32"
    for each in DTYPES:
        Parameters.custom_params = {"routed_experts_dtype": each}
        assert dtype_asked(Parameters()) == each
    Parameters.custom_params = {"routed_experts_dtype": "float"}
    with pytest.raises(ValueError, match="float"):
        dtype_asked(Parameters())


received = []


def test_every_routing_goes_to_the_folder_and_to_the_function(tmp_path, routing):
    received.clear()
    options = Options(folder=str(tmp_path / "new"), callback=f"{__name__}:received.append")
    sinks = Sinks(options)
    sinks.put(Finished("a/b", routing, 4, 3, "7"))
    sinks.close()
    [finished] = received
    assert finished.rid == "a/b" and finished.routing.rows == finished.rows == 6
    [saved] = routecap.load(tmp_path / "new" / "a%2Fb.routecap").values()
    assert saved.routing == finished.routing


def test_options_travel_to_processes_through_the_environment():
    options = Options(beside=True, folder="/data", budget_bytes=5 << 30, slots=9, metrics_port=1)
    environment = {}
    options.to_environment(environment)
    assert Options.from_environment(environment) == options
    assert Options.from_environment({"ROUTECAP_SGLANG": "beside"}).beside
    assert Options.from_environment({}) == Options()
    wrong = [("SLOTS", "many"), ("SLOTS", "1"), ("BESIDE", "maybe"), ("CALLBACK", "f")]
    for name, value in (*wrong, ("METRICS_PORT", "-1")):
        with pytest.raises(ValueError, match=value):
            Options.from_environment({f"ROUTECAP_SGLANG_{name}": value})

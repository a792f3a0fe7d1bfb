"""The load of the experts in every form in which it leaves: served, watched, saved."""

import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import routecap
from routecap_testing.scraping import free_port, samples, scrape, taken_port
from routecap_testing.traffic import EXPERTS, LAYERS, K, capturer, counted, drawn, step
from routecap_tools.command import main, top


def test_metrics_say_what_was_counted() -> None:
    pytest.importorskip("prometheus_client")
    from routecap_tools import metrics

    random = np.random.default_rng(6)
    with capturer() as c:
        ids = drawn(random, 9)
        step(c, ids, routecap.spans(request=c.open(), rows=9))
        found = samples(metrics.text(c, labels={"rank": "3"}))
        assert found["routecap_load_rows_total"] == {("prefill", "3"): 9, ("decode", "3"): 0}
        assert found["routecap_rows_total"][("delivered", "3")] == 9
        chosen = found["routecap_expert_chosen_total"]
        expected = counted(ids)
        for layer in range(LAYERS):
            assert found["routecap_load_imbalance"][(str(layer), "prefill", "3")] == (
                expected[layer].max() / expected[layer].mean()
            )
            for expert in range(EXPERTS):
                assert chosen[(str(expert), str(layer), "prefill", "3")] == expected[layer, expert]
        assert "routecap_expert_chosen" not in metrics.text(c, experts=False)
        assert metrics.text(c, openmetrics=True).endswith("# EOF\n")


def test_metrics_are_served_and_watched(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("prometheus_client")
    from routecap_tools import metrics

    random = np.random.default_rng(7)
    with capturer() as c:
        request = c.open()
        server = metrics.serve(c, port=0)
        ended = threading.Event()

        def run() -> None:
            position = 0
            while not ended.wait(0.01):
                ids = drawn(random, 4)
                ids[:, 2] = np.arange(K)
                step(c, ids, routecap.spans(request=request, position=position, rows=4))
                position += 4

        engine = threading.Thread(target=run)
        engine.start()
        try:
            wanted = {"Accept": "application/openmetrics-text"}
            asked = urllib.request.Request(server.url, headers=wanted)
            with urllib.request.urlopen(asked) as answer:
                assert "openmetrics" in answer.headers["Content-Type"]
                assert answer.read().endswith(b"# EOF\n")
            assert main(["top", server.url, "--interval", "0.3", "--count", "1"]) == 0
        finally:
            ended.set()
            engine.join()
            server.close()
    lines = capsys.readouterr().out.splitlines()
    assert f"{LAYERS} layers with load" in lines[0]
    assert lines[2].split()[:2] == ["2", f"{EXPERTS / K:.2f}"]


def test_top_says_when_experts_are_not_served(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("prometheus_client")
    from routecap_tools import metrics

    with capturer() as c, metrics.serve(c, port=0, experts=False) as server:
        assert main(["top", server.url, "--interval", "0.1", "--count", "1"]) != 0
    assert "experts=True" in capsys.readouterr().err


def test_what_was_chosen_while_one_watched_is_saved_for_balancers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("prometheus_client")
    from routecap_tools import metrics

    random = np.random.default_rng(8)
    ranks = [capturer(layer_map=[1, 2, 4, 5, 6]) for _ in range(2)]
    servers = [metrics.serve(c, 0, labels={"rank": str(i)}) for i, c in enumerate(ranks)]
    requests = [c.open() for c in ranks]
    before, meanwhile = drawn(random, 8), drawn(random, 16)
    for c, request in zip(ranks, requests):
        step(c, before, routecap.spans(request=request, rows=8))

    def engine(seconds: float) -> None:
        """In the place of a sleep."""
        for i, (c, request) in enumerate(zip(ranks, requests)):
            step(c, meanwhile[i::2], routecap.spans(request=request, position=8, rows=8))

    files = tmp_path / "load.json", tmp_path / "load.npy"
    watch = ["top", *(each.url for each in servers), "--count", "1", "--save"]
    monkeypatch.setattr(top, "time", SimpleNamespace(sleep=engine, monotonic=time.monotonic))
    assert main([*watch, str(files[0]), "--decoder-layers", "8"]) == 0
    monkeypatch.setattr(top, "time", SimpleNamespace(sleep=id, monotonic=time.monotonic))
    assert main([*watch, str(files[1])]) == 0
    said = np.array(json.loads(files[0].read_text())["logical_count"])
    assert (said[0, [1, 2, 4, 5, 6]] == counted(meanwhile)).all() and said.shape == (1, 8, EXPERTS)
    assert "rank=1" in capsys.readouterr().out
    assert (np.load(files[1]) == 0).all()  # nothing was chosen in that time
    for server, c in zip(servers, ranks):
        server.close()
        c.close()


def test_a_port_that_is_taken_is_said_and_an_engine_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pytest.importorskip("prometheus_client")
    from routecap_tools import metrics

    with capturer() as c, taken_port() as port:
        with pytest.raises(OSError, match=f"in use: port {port} of 127.0.0.1. Choose another"):
            metrics.serve(c, port)
        with pytest.raises(OSError, match="port 1 of 192.0.2.1"):
            metrics.serve(c, 1, "192.0.2.1")  # is no address of this machine
        assert metrics.serve_rank(c, port, logger=logging.getLogger("engine")) is None
        said = f"metrics of rank 0 are not served: [Errno 98] Address already in use: port {port}"
        assert said in caplog.text
    with capturer(load=False) as c:
        with pytest.raises(routecap.ArgumentError, match="ROUTECAP_CONFIG_LOAD"):
            metrics.serve(c, 0)


def test_a_server_ends_with_what_it_serves(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("prometheus_client")
    from routecap_tools import metrics

    with capturer() as c:
        for _ in range(2):  # the port is free again
            with metrics.serve(c, port=free_port()) as server:
                assert scrape(server.port)["routecap_load_rows_total"] == {
                    ("prefill",): 0,
                    ("decode",): 0,
                }
        server = metrics.serve(c, port=0)
        server._process.kill()  # and nobody closed it
        server._thread.join()
        assert "metrics are served no more" in caplog.text
        server.close()
        server = metrics.serve(c, port=0)
    with pytest.raises(OSError):  # the capturer is closed
        scrape(server.port)
    server._thread.join()
    server.close()


def test_nothing_stays_of_an_engine_that_was_killed() -> None:
    pytest.importorskip("prometheus_client")
    program = """
import routecap, routecap_tools.metrics, time
capturer = routecap.Capturer(layers=1, k=1, experts=2, rows=1, load=True)
print(routecap_tools.metrics.serve(capturer, 0).port, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as engine:
        assert engine.stdout is not None
        port = int(engine.stdout.readline())
        os.kill(engine.pid, signal.SIGKILL)
    end = time.monotonic() + 300
    while time.monotonic() < end:
        try:
            scrape(port)
        except OSError:
            return
        time.sleep(0.05)
    pytest.fail("the metrics of an engine that was killed are still served")


def test_top_counts_anew_when_the_engine_was_started_again() -> None:
    from routecap_tools.command.top import _lines

    before = {("", 3): {0: 900.0, 1: 100.0}}
    now = {("", 3): {0: 10.0, 1: 30.0}}
    assert _lines(before, now, 2.0, 5) == [["", "3", "1.50", "20", "1 (1.5)  0 (0.5)"]]


# ---- What can make rows missing: a series moves, and an alert is about it


def issued(
    c: routecap.Capturer, request: int, ids: np.ndarray, *, layers: Any = range(LAYERS), **more: Any
) -> None:
    """A step of rows whose other layers record nothing."""
    c.begin(len(ids))
    for layer in layers:
        c.record(layer, ids[:, layer].astype(np.int32))
    c.snapshot()
    c.issue(routecap.spans(request=request, rows=len(ids), **more)).wait(10)


IDS = drawn(np.random.default_rng(9), 8)
TWICE, TOO_HIGH = IDS.copy(), IDS.copy()
TWICE[3, 1, 0] = TWICE[3, 1, 1]
TOO_HIGH[5, 4, 2] = EXPERTS


def a_layer_is_never_recorded(c: routecap.Capturer, store: routecap.Store) -> None:
    issued(c, int(c.open()), IDS, layers=(0, 1, 3, 4))


def no_layer_is_recorded(c: routecap.Capturer, store: routecap.Store) -> None:
    issued(c, int(c.open()), IDS, layers=())


def ids_are_no_experts(c: routecap.Capturer, store: routecap.Store) -> None:
    issued(c, int(c.open()), TOO_HIGH)


def an_id_is_there_twice(c: routecap.Capturer, store: routecap.Store) -> None:
    issued(c, int(c.open()), TWICE)


def rows_are_refused(c: routecap.Capturer, store: routecap.Store) -> None:
    held = [c.open() for _ in range(100)]
    for position in range(0, 8 * 100, 8):
        for request in held:
            issued(c, int(request), IDS, position=position)
            if c.stats().rows_refused:
                return


def adopted_rows_are_refused(c: routecap.Capturer, store: routecap.Store) -> None:
    for key in (1, 2):
        request = c.open()
        issued(c, int(request), IDS)
        request.publish(store, 0, [key])
    rows_are_refused(c, store)
    adopters = [c.open() for _ in range(100)]
    for request in adopters:
        request.adopt(store, 0, [2, 1])  # which lie otherwise in a page, and are copied
    routing = adopters[-1].finish()
    routing.wait()
    assert (routing.reasons() == routecap.Missing.REFUSED).any()
    stats = c.stats()
    assert stats.bytes_in_use > 0.98 * stats.bytes_budget


def no_slot_is_free(c: routecap.Capturer, store: routecap.Store) -> None:
    request = c.open()
    with pytest.warns(routecap.LostStepWarning):
        for position in (0, 8):
            c.begin(8)
            for layer in range(LAYERS):
                c.record(layer, IDS[:, layer].astype(np.int32))
            c.snapshot()
            c.issue(routecap.spans(request=int(request), position=position, rows=8))


def a_request_is_closed_too_early(c: routecap.Capturer, store: routecap.Store) -> None:
    request = c.open()
    c.begin(8)
    c.snapshot()
    step = c.issue(routecap.spans(request=int(request), rows=8))
    request.close()
    step.wait(10)


def a_request_was_never_opened(c: routecap.Capturer, store: routecap.Store) -> None:
    request = c.open()
    request.close()
    issued(c, int(request), IDS)


def positions_are_outside_of_the_span(c: routecap.Capturer, store: routecap.Store) -> None:
    c.begin(8)
    c.snapshot()
    flags = routecap.SpanFlag.DEVICE_POSITIONS
    spans = routecap.spans(request=int(c.open()), rows=8, flags=flags, position_end=4)
    c.issue(spans, positions=np.arange(8, dtype=np.int32)).wait(10)


def fewer_rows_are_begun(c: routecap.Capturer, store: routecap.Store) -> None:
    c.begin(4)
    for layer in range(LAYERS):
        c.record(layer, IDS[:, layer].astype(np.int32))
    c.snapshot()
    c.issue(routecap.spans(request=int(c.open()), rows=4)).wait(10)


def published(c: routecap.Capturer, store: routecap.Store) -> None:
    request = c.open()
    issued(c, int(request), IDS)
    request.publish(store, 0, [1])
    request.coverage()  # which waits until it was applied


def a_block_was_evicted(c: routecap.Capturer, store: routecap.Store) -> None:
    published(c, store)
    store.evict([1])
    c.open().adopt(store, 0, [1])


def a_block_was_never_published(c: routecap.Capturer, store: routecap.Store) -> None:
    c.open().adopt(store, 0, [1])


def a_block_is_stale(c: routecap.Capturer, store: routecap.Store) -> None:
    published(c, store)
    store.advance(1)
    c.open().adopt(store, 0, [1])


def of_layers(outcome: str) -> str:
    return f'routecap_layer_cells_total{{outcome="{outcome}"}}'


def of_rows(outcome: str) -> str:
    return f'routecap_rows_total{{outcome="{outcome}"}}'


ABSENT = 'routecap_store_blocks_total{outcome="absent"}'
CAUSES: list[tuple[Any, dict[str, Any], dict[str, str]]] = [
    (a_layer_is_never_recorded, {}, {of_layers("unwritten"): "RoutecapCellsUnwritten", "routecap_layer_silent_steps_total": "RoutecapLayerSilent"}),
    (no_layer_is_recorded, {}, {of_rows("missing"): "RoutecapRowsMissing"}),
    (ids_are_no_experts, {}, {of_layers("out_of_range"): "RoutecapIdsRefused"}),
    (an_id_is_there_twice, {}, {of_layers("duplicate"): "RoutecapIdsRefused"}),
    (rows_are_refused, {"budget_bytes": 1 << 17}, {of_rows("refused"): "RoutecapRowsRefused"}),
    (adopted_rows_are_refused, {"budget_bytes": 1 << 19}, {'routecap_memory_bytes{kind="in_use"}': "RoutecapBudgetFull"}),
    (no_slot_is_free, {"slots": 1, "manual_progress": True, "may_lose": True}, {'routecap_steps_total{state="lost"}': "RoutecapStepsLost"}),
    (a_request_is_closed_too_early, {"manual_progress": True}, {of_rows("late"): "RoutecapRowsWithoutRequest"}),
    (a_request_was_never_opened, {}, {of_rows("skipped"): "RoutecapRowsWithoutRequest"}),
    (positions_are_outside_of_the_span, {}, {of_rows("unplaced"): "RoutecapRowsUnplaced"}),
    (fewer_rows_are_begun, {}, {"routecap_dropped_rows_total": "RoutecapRowsDropped"}),
    (a_block_was_evicted, {}, {ABSENT: "RoutecapPrefixesMissing"}),
    (a_block_was_never_published, {}, {ABSENT: "RoutecapPrefixesMissing"}),
    (a_block_is_stale, {}, {ABSENT: "RoutecapPrefixesMissing"}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("cause", "settings", "moves"), CAUSES, ids=lambda it: getattr(it, "__name__", "")
)
def test_whatever_makes_rows_missing_moves_a_series_that_an_alert_is_about(
    cause: Any, settings: dict[str, Any], moves: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A layer that was never recorded was in no series and no alert."""
    monkeypatch.delenv("ROUTECAP_CHECKED", raising=False)  # where fewer rows begun are an error
    pytest.importorskip("prometheus_client")
    from routecap_tools import metrics

    with capturer(**settings) as c:
        store = routecap.Store(c, block_rows=8, key_bytes=8)
        before = samples(metrics.text(c, store=store, experts=False))
        cause(c, store)
        after = samples(metrics.text(c, store=store, experts=False))
    rules = dict(
        each.split("\n", 1)
        for each in (metrics.folder / "alerts.yml").read_text().split("- alert: ")[1:]
    )
    for series, alert in moves.items():
        name, _, label = series.partition("{")
        wanted = re.findall(r'"(\w+)"', label)
        grown = {
            labels: value - before[name].get(labels, 0)
            for labels, value in after[name].items()
            if set(wanted) <= set(labels)
        }
        assert max(grown.values()) > 0, (series, after[name])
        assert name in rules[alert] and all(each in rules[alert] for each in wanted)


def test_a_layer_that_is_silent_is_named_and_no_other() -> None:
    pytest.importorskip("prometheus_client")
    from routecap_tools import metrics

    with capturer(layer_map=[3, 4, 5, 7, 9]) as c:
        a_layer_is_never_recorded(c, routecap.Store(c, block_rows=8, key_bytes=8))
        found = samples(metrics.text(c, experts=False))
    silent = found["routecap_layer_silent_steps_total"]
    assert silent == {(layer,): float(layer == "5") for layer in "34579"}
    cells = found["routecap_layer_cells_total"]
    assert cells["5", "unwritten"] == 8 and cells["5", "valid"] == 0 and cells["4", "valid"] == 8
    assert found["routecap_rows_total"]["missing",] == 0  # which is why nobody saw it


def test_top_names_layers_that_are_silent(capsys: pytest.CaptureFixture[str]) -> None:
    """It left them out, as if they were not there."""
    pytest.importorskip("prometheus_client")
    from routecap_tools import metrics

    with capturer(layer_map=[3, 4, 5, 7, 9]) as c, metrics.serve(c, 0) as server:
        before = top._read([server.url], None)
        a_layer_is_never_recorded(c, routecap.Store(c, block_rows=8, key_bytes=8))
        now = top._read([server.url], None)
        assert top._silent(before, now) == [
            "silent layers, whose cells are missing: 5 (in 1 steps)"
        ]
        assert top._silent(now, now) == []
        assert main(["top", server.url, "--interval", "0", "--count", "1"]) == 0
    assert "silent" not in capsys.readouterr().out  # none since it began to watch


def test_labels_that_a_scrape_would_stumble_over_are_converted_or_refused() -> None:
    """A number was a traceback in each scrape, and a label named as one of the series vanished."""
    pytest.importorskip("prometheus_client")
    from routecap_tools import metrics

    with capturer() as c:
        given: dict[str, Any] = {"rank": 0, "node": "a b", "share": 0.5, "on": np.int64(3)}
        with metrics.serve(c, 0, labels=given) as server:
            with urllib.request.urlopen(server.url) as answer:
                text = answer.read().decode()
        assert 'steps_total{node="a b",on="3",rank="0",share="0.5",state="issued"}' in text
        own = {
            name
            for found in re.findall(
                r"{(.*)}", metrics.text(c, store=routecap.Store(c, block_rows=8, key_bytes=8))
            )
            for name in re.findall(r'(\w+)="', found)
        }
        assert own == {"expert", "kind", "layer", "outcome", "phase", "state"}
        wrong: list[dict[str, Any]] = [{"labels": {name: "1"}} for name in (*own, "__a", "a-b", "")]
        wrong += [{"labels": {"rank": value}} for value in (None, [], "\udcdf", b"1")]
        wrong += [{"labels": ["rank"]}, {"window": "x"}, {"window": -1.0}, {"window": float("nan")}]
        wrong += [{"lables": {}}]
        for options in wrong:
            with pytest.raises(routecap.ArgumentError):
                metrics.serve(c, 0, **options)
            if "lables" not in options:
                with pytest.raises(routecap.ArgumentError):
                    metrics.Collector(c, **options)


def test_every_series_is_named_in_the_documentation() -> None:
    pytest.importorskip("prometheus_client")
    from routecap_tools import metrics

    text = (Path(__file__).parents[2] / "docs" / "load.md").read_text()
    with capturer() as c:
        store = routecap.Store(c, block_rows=8, key_bytes=8)
        names = {name for name in samples(metrics.text(c, store=store)) if "_created" not in name}
    assert not [name for name in names if f"`{name}`" not in text]
    rules = (metrics.folder / "alerts.yml").read_text()
    assert not [each for each in re.findall("alert: (\\w+)", rules) if f"`{each}`" not in text]


# ---- Clients and helpers that hang


def threads_of(process: int) -> int:
    status = Path(f"/proc/{process}/status").read_text()
    return int(re.findall(r"Threads:\s+(\d+)", status)[0])


def test_half_requests_hold_few_threads_and_keep_nobody_out() -> None:
    """Each held a thread for ever."""
    pytest.importorskip("prometheus_client")
    from routecap_tools import metrics

    with capturer() as c, metrics.serve(c, 0) as server:
        half = []
        for _ in range(150):
            half.append(socket.create_connection((server.address, server.port)))
            half[-1].send(b"GET /metrics HTTP/1.1\r\nX: y\r\n")
        assert scrape(server.port)["routecap_load_rows_total"]  # behind all of them
        assert threads_of(server._process.pid) < 50
        assert half[0].recv(1) == b""  # the oldest was closed
        for each in half:
            each.close()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{server.port}/etc/passwd", timeout=60)


def test_a_server_whose_process_is_stopped_is_closed() -> None:
    pytest.importorskip("prometheus_client")
    from routecap_tools import metrics

    with capturer() as c:
        server = metrics.serve(c, 0)
        os.kill(server._process.pid, signal.SIGSTOP)
        stat = Path(f"/proc/{server._process.pid}/stat")
        while stat.read_text().rsplit(")", 1)[1].split()[0] != "T":
            time.sleep(0.001)
        closing = threading.Thread(target=server.close, daemon=True)
        closing.start()
        closing.join(60)
        stopped = closing.is_alive()
        os.kill(server._process.pid, signal.SIGCONT)
        assert not stopped and server._process.wait(60) == -signal.SIGKILL
        with pytest.raises(OSError):
            scrape(server.port)


def test_an_engine_that_is_stopped_is_said_and_answers_later() -> None:
    pytest.importorskip("prometheus_client")
    program = """
import routecap, routecap_tools.metrics
from routecap_tools.metrics import _server
_server._PROGRAM = _server._PROGRAM.replace("main(", "import routecap_tools.metrics._server as s;"
    " s._ENGINE_SECONDS = 0.5; main(", 1)
capturer = routecap.Capturer(layers=1, k=1, experts=2, rows=1, load=True)
print(routecap_tools.metrics.serve(capturer, 0).port, flush=True)
input()
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as engine:
        assert engine.stdout is not None
        port = int(engine.stdout.readline())
        os.kill(engine.pid, signal.SIGSTOP)
        try:
            for _ in range(3):
                with pytest.raises(urllib.error.HTTPError, match="503"):
                    scrape(port)
        finally:
            os.kill(engine.pid, signal.SIGCONT)
        for _ in range(3):  # answers that came too late are no answers to later questions
            assert scrape(port)["routecap_load_rows_total"] == {("prefill",): 0, ("decode",): 0}
        engine.kill()


@pytest.mark.parametrize(
    ("served", "words"),
    [
        (b"<html>", "serves no metrics of routecap"),
        (b'routecap_expert_chosen_total{layer="a",expert="0",phase="decode"} 1\n', "no metrics of"),
        (b'routecap_expert_chosen_total{layer="1"} 1\n', "no metrics of"),
        (
            b'routecap_expert_chosen_total{layer="1",expert="99999999999",phase="decode"} 1\n',
            "expert 99999999999",
        ),
        (b"# " + b"x" * 100_000, "more than 65536 bytes"),
        (b"\xff\xfe", "no metrics of"),
    ],
)
def test_what_top_is_served_is_not_trusted(
    served: bytes, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("prometheus_client")
    monkeypatch.setattr(top, "_MOST_BYTES", 1 << 16)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            try:
                self.wfile.write(served)
            except OSError:
                pass

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/metrics"
        assert main(["top", url, "--interval", "0", "--count", "1"]) == 2
        server.shutdown()
    assert words in capsys.readouterr().err

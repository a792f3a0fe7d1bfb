"""The load of the experts: counted as brute force does, in windows, by tag, and in every form in
which it leaves.
"""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scraping import free_port, samples, scrape, taken_port

import routecap
from routecap.command import main, top

LAYERS, K, EXPERTS, ROWS = 5, 3, 12, 16


def capturer(**settings: Any) -> routecap.Capturer:
    shape = {"layers": LAYERS, "k": K, "experts": EXPERTS, "rows": ROWS, "load": True}
    return routecap.Capturer(**{**shape, **settings})


def step(
    capturer: routecap.Capturer,
    ids: np.ndarray,
    spans: Any,
    **options: Any,
) -> routecap.Step:
    """A forward pass of ids [rows, layers, k]."""
    capturer.begin(len(ids))
    for layer in range(ids.shape[1]):
        capturer.record(layer, ids[:, layer].astype(np.int32))
    capturer.snapshot()
    issued = capturer.issue(spans, **options)
    issued.wait()
    return issued


def drawn(random: np.random.Generator, rows: int) -> np.ndarray:
    return np.argsort(random.random((rows, LAYERS, EXPERTS)), axis=2)[..., :K]


def counted(ids: np.ndarray) -> np.ndarray:
    """[layers, experts]"""
    counts = np.zeros((LAYERS, EXPERTS), np.uint64)
    for layer in range(LAYERS):
        np.add.at(counts[layer], ids[:, layer].ravel(), 1)
    return counts


def test_counts_are_those_of_the_routings_of_all_requests() -> None:
    random = np.random.default_rng(1)
    with capturer(load_tags=True) as c:
        expected = np.zeros((2, LAYERS, EXPERTS), np.uint64)
        tags = {tag: np.zeros_like(expected) for tag in range(3)}
        rows = [0, 0]
        routings = []
        for number in range(30):
            request = c.open()
            prompt = drawn(random, int(random.integers(2, ROWS + 1)))
            tag = number % 3
            step(c, prompt, routecap.spans(request=request, rows=len(prompt)), tag=tag)
            expected[0] += counted(prompt)
            tags[tag][0] += counted(prompt)
            rows[0] += len(prompt)
            for position in range(len(prompt), len(prompt) + 4):
                token = drawn(random, 1)
                step(c, token, routecap.spans(request=request, position=position), tag=tag)
                expected[1] += counted(token)
                tags[tag][1] += counted(token)
                rows[1] += 1
            routings.append(c.finish(request))
            routings[-1].wait()
            load = c.load()
            assert (load.counts == expected).all()
            assert [load.rows_prefill, load.rows_decode] == rows
            assert (load.steps, load.first_step, load.last_step) == (
                5 * (number + 1),
                1,
                5 * (number + 1),
            )
        for tag, of_tag in tags.items():
            assert (c.load(tag).counts == of_tag).all()
        assert c.load_tags() == [0, 1, 2]
        whole = np.concatenate([routing.ids() for routing in routings])
        assert (load.total == counted(whole)).all()
        assert (load.total.sum(axis=1) == K * len(whole)).all()


def test_drafts_count_once_they_are_accepted() -> None:
    random = np.random.default_rng(2)
    with capturer() as c:
        request = c.open()
        drafts = drawn(random, 5)
        made = step(
            c, drafts, routecap.spans(request=request, rows=5, flags=routecap.SpanFlag.SPECULATIVE)
        )
        assert c.load().steps == 1 and not c.load().counts.any()
        c.accept(request, made, 3)
        c.finish(request).wait()
        assert (c.load().decode == counted(drafts[:3])).all()


def test_a_window_is_what_was_counted_between_two_readings() -> None:
    random = np.random.default_rng(3)
    with capturer() as c:
        request = c.open()
        empty = c.load()
        first, second = drawn(random, 4), drawn(random, 6)
        step(c, first, routecap.spans(request=request, rows=4))
        before = c.load()
        step(c, second, routecap.spans(request=request, position=4, rows=6))
        now = c.load()
        window = now.since(before)
        assert (window.prefill == counted(second)).all()
        assert (window.steps, window.first_step, window.last_step, window.rows_prefill) == (
            1,
            2,
            2,
            6,
        )
        assert (now.since(empty).counts == now.counts).all()
        assert now.since(now).steps == 0
        with pytest.raises(routecap.ArgumentError, match="earlier"):
            before.since(now)


def test_imbalance_is_the_most_over_the_mean() -> None:
    with capturer(layers=2, layer_experts=[4, 12], k=1, experts=None) as c:
        request = c.open()
        ids = np.zeros((8, 2, 1), int)
        ids[:, 0, 0] = [0, 1, 2, 3] * 2
        ids[:, 1, 0] = [5] * 6 + [7] * 2
        step(c, ids, routecap.spans(request=request, rows=8))
        load = c.load()
        assert load.imbalance().tolist() == [1.0, 9.0]
        assert np.isnan(load.imbalance(routecap.Phase.DECODE)).all()
        assert load.hottest(2) == [(1, 5, 9.0), (1, 7, 3.0)]
        assert load.hottest(2, routecap.Phase.DECODE) == []


def test_a_capturer_says_what_it_does_not_count() -> None:
    with (
        capturer(load=False) as c,
        pytest.raises(routecap.ArgumentError, match="ROUTECAP_CONFIG_LOAD"),
    ):
        c.load()
    with capturer() as c, pytest.raises(routecap.ArgumentError, match="ROUTECAP_CONFIG_LOAD_TAGS"):
        c.load(4)
    with capturer(load_tags=True) as c, pytest.raises(routecap.RangeError):
        c.load(4)
    with routecap.Capturer(role="disabled") as c:
        assert c.load().counts.shape == (2, 0, 0)
        assert c.load().imbalance().tolist() == []


# ---- What leaves


def test_a_load_is_saved_for_balancers(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    with capturer(layer_map=[1, 2, 4, 5, 6]) as c:
        ids = drawn(random, 9)
        step(c, ids, routecap.spans(request=c.open(), rows=9))
        load = c.load()
    load.save(tmp_path / "load.json", decoder_layers=8)
    load.save(tmp_path / "load.npy")
    said = np.array(json.loads((tmp_path / "load.json").read_text())["logical_count"])
    assert said.shape == (1, 8, EXPERTS)
    assert (said[0, [1, 2, 4, 5, 6]] == counted(ids)).all() and not said[0, [0, 3, 7]].any()
    assert (np.load(tmp_path / "load.npy") == counted(ids)).all()
    with pytest.raises(routecap.ArgumentError, match="layer 6 was captured"):
        load.logical_count(6)
    with pytest.raises(routecap.ArgumentError, match="ends in .json or .npy"):
        load.save(tmp_path / "load.txt")


def test_metrics_say_what_was_counted() -> None:
    pytest.importorskip("prometheus_client")
    from routecap import metrics

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
    from routecap import metrics

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
    from routecap import metrics

    with capturer() as c, metrics.serve(c, port=0, experts=False) as server:
        assert main(["top", server.url, "--interval", "0.1", "--count", "1"]) != 0
    assert "experts=True" in capsys.readouterr().err


def test_what_was_chosen_while_one_watched_is_saved_for_balancers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("prometheus_client")
    from routecap import metrics

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
    from routecap import metrics

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
    from routecap import metrics

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
import routecap, routecap.metrics, time
capturer = routecap.Capturer(layers=1, k=1, experts=2, rows=1, load=True)
print(routecap.metrics.serve(capturer, 0).port, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as engine:
        assert engine.stdout is not None
        port = int(engine.stdout.readline())
        os.kill(engine.pid, signal.SIGKILL)
    end = time.monotonic() + 20
    while time.monotonic() < end:
        try:
            scrape(port)
        except OSError:
            return
        time.sleep(0.05)
    pytest.fail("the metrics of an engine that was killed are still served")


def test_top_counts_anew_when_the_engine_was_started_again() -> None:
    from routecap.command.top import _lines

    before = {("", 3): {0: 900.0, 1: 100.0}}
    now = {("", 3): {0: 10.0, 1: 30.0}}
    assert _lines(before, now, 2.0, 5) == [["", "3", "1.50", "20", "1 (1.5)  0 (0.5)"]]

"""The load of the experts: counted as brute force does, in windows, and by tag."""

import json
from pathlib import Path

import numpy as np
import pytest
import routecap
from routecap_testing.traffic import EXPERTS, LAYERS, ROWS, K, capturer, counted, drawn, step


def test_counts_are_those_of_the_routings_of_all_requests() -> None:
    random = np.random.default_rng(1)
    with capturer() as c:
        expected = np.zeros((2, LAYERS, EXPERTS), np.uint64)
        rows = [0, 0]
        routings = []
        for number in range(30):
            request = c.open()
            prompt = drawn(random, int(random.integers(2, ROWS + 1)))
            tag = number % 3
            step(c, prompt, routecap.spans(request=request, rows=len(prompt)), tag=tag)
            expected[0] += counted(prompt)
            rows[0] += len(prompt)
            for position in range(len(prompt), len(prompt) + 4):
                token = drawn(random, 1)
                step(c, token, routecap.spans(request=request, position=position), tag=tag)
                expected[1] += counted(token)
                rows[1] += 1
            routings.append(request.finish())
            routings[-1].wait()
            load = c.load()
            assert (load.counts == expected).all()
            assert [load.rows_prefill, load.rows_decode] == rows
            assert (load.steps, load.first_step, load.last_step) == (
                5 * (number + 1),
                1,
                5 * (number + 1),
            )
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
        request.accept(made, 3)
        request.finish().wait()
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

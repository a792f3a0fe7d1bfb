"""Results that callers in the engine's process have: which memory their rows are in."""

import gc
import logging

import numpy as np
import pytest
from batch import Batch, request

from routecap_vllm import _unread
from routecap_vllm import routed_experts_capturer as module
from routecap_vllm._prefixes import BlocksOf

BLOCK, ROWS, REQUESTS = 4, 40, 6
PAGES = 6 * 6528  # of one rollout, whose requests have a page each


def rollouts(start, count, store=False, look=lambda result: None, **options):
    """Results of rollouts, one after another, which somebody keeps; and what they should be."""
    batch = Batch(start, options=module.Options(**options), max_model_len=128)
    capturer = batch.capturer
    capturer.tell_ends({})
    prefixes = capturer.keep_prefixes(BLOCK, BLOCK, 32, False) if store else None
    kept, expected = [], []
    for rollout in range(count):
        batch.names = [f"{rollout}-{i}" for i in range(REQUESTS)]
        batch.tokens = {name: [] for name in batch.names}
        for row in range(ROWS):
            for i, name in enumerate(batch.names):
                if prefixes is not None and row % BLOCK == BLOCK - 1:
                    number = 1 + (rollout * REQUESTS + i) * ROWS + row
                    prefixes.step.fills.append(BlocksOf(name, row + 1 - BLOCK, [number]))
            if prefixes is not None:
                prefixes.send(None)
            batch.step()
        found = capturer.end(dict.fromkeys(batch.names, ROWS))
        module.free_routing_buffers(set(batch.names))
        kept += [found[name] for name in batch.names]
        expected += [batch.expected(name) for name in batch.names]
        for result in kept[-REQUESTS:]:
            look(result)
    return capturer, kept, expected


def test_ten_rollouts_that_are_kept_whole_have_every_row_with_a_budget_for_one(start):
    budget = {"budget_bytes": 4 * PAGES, "store_bytes": 3 * PAGES}
    capturer, kept, expected = rollouts(start, 10, store=True, **budget)
    stats, store = capturer.capturer.stats(), capturer.prefixes.store.stats()
    assert stats.rows_refused == 0 and stats.bytes_peak <= 4 * PAGES
    assert store.blocks_refused == 0 and store.blocks * BLOCK * 25 > store.bytes_budget // 2
    for result, rows in zip(kept, expected, strict=True):
        assert result.validity().all() and (result.routing.tags == 0).all()
        np.testing.assert_array_equal(result.array(), rows)


def test_what_was_read_is_the_reader_s_and_in_no_budget(start):
    capturer, kept, expected = rollouts(
        start, 10, look=lambda result: result[3:].array(), budget_bytes=4 * PAGES, unread_bytes=0
    )
    assert capturer.capturer.stats().rows_refused == 0
    assert capturer.capturer.stats().bytes_in_use == 0 and capturer._unread.bytes == 0
    for result, rows in zip(kept, expected, strict=True):
        np.testing.assert_array_equal(result.array(), rows)


def test_beyond_the_limit_rows_are_missing_and_the_first_is_one_line_of_the_log(start, caplog):
    with caplog.at_level(logging.ERROR):
        capturer, kept, expected = rollouts(start, 10, budget_bytes=4 * PAGES, unread_bytes=8192)
    missing = sum(not result.validity().all() for result in kept)
    assert 0 < missing < len(kept)
    for result, rows in zip(kept, expected, strict=True):
        there = result.validity().all(axis=1)
        np.testing.assert_array_equal(result.array()[there], rows[there])
        assert (result.array()[~there] == -1).all()
    said = [each for each in caplog.records if "do not fit into the budget" in each.getMessage()]
    assert len(said) == 1 and said[0].name.startswith("vllm.")
    assert "ROUTECAP_VLLM_BUDGET_BYTES" in said[0].getMessage()


def test_copied_rows_that_are_read_or_gone_leave_room_for_others(start):
    capturer, kept, expected = rollouts(start, 6, budget_bytes=4 * PAGES)
    unread = capturer._unread
    assert unread.bytes > 0
    before = unread.bytes
    kept[0].array()
    assert 0 < unread.bytes < before
    kept.clear()
    gc.collect()
    assert unread.bytes == 0 and len(unread) == 0
    assert capturer.capturer.stats().bytes_in_use == 0


def test_a_look_at_the_budget_is_rare_where_there_is_room(start):
    batch = Batch(start, a=request())
    looked = []
    look = batch.capturer.watch._look
    batch.capturer.watch._look = lambda step: (looked.append(step), look(step))
    for _ in range(100):
        batch.step()
    assert len(looked) <= 4


@pytest.mark.parametrize(
    ("of_process", "files", "expected"),
    [
        ("0::/\n", {"memory.max": "4096"}, 4096),
        ("0::/a/b\n", {"a/memory.max": "8192", "a/b/memory.max": "max"}, 8192),
        ("2:cpu:/x\n3:memory:/x\n", {"memory/memory.limit_in_bytes": "12288"}, 12288),
        ("0::/gone\n", {}, None),
    ],
)
def test_a_share_of_memory_is_of_the_cgroup_s(monkeypatch, tmp_path, of_process, files, expected):
    places = {"/proc/self/cgroup": tmp_path / "cgroup", "/sys/fs/cgroup": tmp_path / "fs"}
    places["/sys/fs/cgroup/memory"] = tmp_path / "fs" / "memory"
    (tmp_path / "cgroup").write_text(of_process)
    for name, text in files.items():
        (tmp_path / "fs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "fs" / name).write_text(f"{text}\n")
    monkeypatch.setattr(_unread, "Path", lambda name: places[str(name)])
    found = _unread.memory_of_this_process()
    assert found == expected if expected else found > 1 << 30

"""Rows of prefixes that an engine takes from its cache, out of a store."""

import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
from batch import Batch, request

import routecap
from routecap import Missing
from routecap.vllm import _v021
from routecap.vllm._options import Options

BLOCK = 4
TOKENS = [5, 6, 7, 8, 9, 10, 11, 12]


def key(tokens, salt=0):
    return hash((salt, *tokens)).to_bytes(8, "little", signed=True) * 4


def keys_of(tokens):
    return [key(tokens[:end]) for end in range(BLOCK, len(tokens) + 1, BLOCK)]


class Caching(Batch):
    """Its scheduler tells which blocks are filled and hit."""

    def __init__(self, start, options=None, **requests):
        super().__init__(start, options=options, **requests)
        self.prefixes = self.capturer.keep_prefixes(BLOCK, 32)

    def fill(self, name, tokens=TOKENS):
        """One token after the other, each block told with the step that fills it."""
        for index, token in enumerate(tokens, 1):
            if index % BLOCK == 0:
                self.prefixes.fills(name, index - BLOCK, keys_of(tokens)[index // BLOCK - 1 :][:1])
            self.step([name], [token])

    def wait_for_blocks(self):
        """Those of a fill: of what is published later, no generation is told."""
        while self.prefixes.store.stats().blocks_published < 2:
            time.sleep(0.001)

    def hit(self, name, tokens=TOKENS, more=(20,)):
        """It begins behind the blocks of these tokens."""
        self.prefixes.hits(name, keys_of(tokens))
        self.tokens[name] = list(tokens)
        for token in more:
            self.step([name], [token])

    def rows(self, name):
        return self.capturer.end({name: len(self.tokens[name])})[name]

    def reasons(self, name):
        rows = self.rows(name)
        rows.routing.wait()
        return [Missing(int(each)).name if each else "" for each in rows.routing.reasons()[:, 0]]


def test_a_request_that_hits_what_another_filled_has_its_rows(start):
    batch = Caching(start, a=request(), b=request())
    batch.fill("a")
    batch.hit("b")
    rows = batch.rows("b")
    np.testing.assert_array_equal(rows.array(), batch.expected("b"))
    assert rows.validity().all() and len(rows) == 9
    np.testing.assert_array_equal(batch.rows("a").array(), batch.expected("a"))
    counts = batch.prefixes.store.stats()
    assert (counts.blocks_published, counts.blocks_adopted, counts.key_bytes) == (2, 2, 32)


def test_two_requests_of_one_step_may_share_a_block(start):
    batch = Caching(start, a=request(), b=request())
    for token in TOKENS[:3]:
        batch.step(["a"], [token])
    batch.prefixes.hits("b", keys_of(TOKENS[:BLOCK]))  # told in any order
    batch.prefixes.fills("a", 0, keys_of(TOKENS[:BLOCK]))
    batch.tokens["b"] = TOKENS[:BLOCK]
    batch.step(["a", "b"], [TOKENS[3], 20])
    np.testing.assert_array_equal(batch.rows("b").array(), batch.expected("b"))


def test_what_is_not_there_says_why(start):
    batch = Caching(start, a=request(), b=request(), c=request(routed_experts=0), d=request())
    batch.fill("a")
    batch.prefixes.store.evict(keys_of(TOKENS)[:1])
    batch.hit("b")
    assert batch.reasons("b") == ["EVICTED"] * 4 + [""] * 5
    other = [30 + token for token in TOKENS]
    batch.fill("c", other)  # is off
    batch.hit("d", other)
    assert batch.reasons("d") == ["NOT_PUBLISHED"] * 8 + [""]


def test_no_row_of_old_weights_is_served_for_new(start):
    batch = Caching(start, a=request(), b=request(), c=request(), d=request())
    batch.fill("a")
    batch.wait_for_blocks()
    batch.capturer.weights_changed()
    batch.hit("b")  # keys and values are the engine's to drop
    assert batch.reasons("b") == ["STALE"] * 8 + [""]
    batch.fill("c")
    batch.hit("d")
    rows = batch.rows("d")
    np.testing.assert_array_equal(rows.array(), batch.expected("d"))
    assert rows.routing.tags.tolist() == [1] * 9


@pytest.mark.parametrize("change", ["weights_changed", "set_tag"])
def test_rows_of_the_first_step_under_new_weights_are_published(start, change):
    batch = Caching(start, a=request(), b=request(), c=request())
    batch.fill("a")
    batch.wait_for_blocks()
    getattr(batch.capturer, change)(*[3] * (change == "set_tag"))
    batch.fill("b")
    batch.hit("c")
    rows = batch.rows("c")
    np.testing.assert_array_equal(rows.array(), batch.expected("c"))
    assert rows.validity().all() and batch.prefixes.store.stats().blocks_stale == 0


def test_a_block_with_rows_of_two_weights_is_nobodys(start):
    batch = Caching(start, a=request(), b=request())
    for token in TOKENS[:2]:
        batch.step(["a"], [token])
    batch.capturer.set_tag(5)
    batch.step(["a"], [TOKENS[2]])
    batch.prefixes.fills("a", 0, keys_of(TOKENS[:BLOCK]))
    batch.step(["a"], [TOKENS[3]])
    batch.hit("b", TOKENS[:BLOCK])
    assert batch.reasons("b") == ["NOT_PUBLISHED"] * 4 + [""]
    rows = batch.rows("a")
    assert rows.validity().all() and rows.routing.tags.tolist() == [0, 0, 5, 5]


def test_the_programs_store_is_used_and_must_fit(start):
    first = Caching(start, a=request())
    store = routecap.Store(first.capturer.capturer, block_rows=BLOCK)
    one = Caching(start, Options(store=store), a=request())
    one.fill("a")
    one.wait_for_blocks()  # its worker publishes them, and another capturer does not wait for that
    two = Caching(start, Options(store=store), b=request())
    two.hit("b")
    np.testing.assert_array_equal(two.rows("b").array(), two.expected("b"))
    for rows, key_bytes in ((8, 32), (BLOCK, 16)):
        with pytest.raises(ValueError, match="rows and keys of 32 bytes, the engine of"):
            two.capturer.keep_prefixes(rows, key_bytes)
    assert Caching(start, Options(store_bytes=0), a=request()).prefixes is None


# ---- The scheduler


class Pool:
    hash_block_size = BLOCK

    def __init__(self):
        self.cached = []

    def cache_full_blocks(self, **arguments):
        self.cached.append(arguments)


class Scheduler:
    """vLLM's, as far as it is asked here."""

    def __init__(self, requests):
        self.requests = requests
        model = SimpleNamespace(enable_return_routed_experts=True)
        cache = SimpleNamespace(prefix_caching_hash_algo="sha256")
        self.vllm_config = SimpleNamespace(model_config=model, cache_config=cache)
        self.kv_cache_manager = SimpleNamespace(enable_caching=True, block_pool=Pool())
        self.output = None

    def schedule(self):
        return self.output

    def reset_prefix_cache(self, reset_running_requests=False):
        return True

    def _handle_invalid_blocks(self, invalid):
        return invalid


@pytest.fixture(autouse=True)
def hashing(monkeypatch):
    functions = {"sha256": lambda data: bytes(32)}
    module = SimpleNamespace(get_hash_fn_by_name=functions.get)
    monkeypatch.setitem(sys.modules, "vllm.utils.hashing", module)


def scheduler_of(**requests):
    return type("Telling", (_v021.TellingScheduler, Scheduler), {})(requests)


def scheduled(new=(), cached=(), resumed=()):
    new = [SimpleNamespace(req_id=name, num_computed_tokens=rows) for name, rows in new]
    names, rows = zip(*cached, strict=True) if cached else ((), ())
    cached = SimpleNamespace(req_ids=names, num_computed_tokens=rows, resumed_req_ids=set(resumed))
    return SimpleNamespace(scheduled_new_reqs=new, scheduled_cached_reqs=cached)


def engine_request(tokens):
    return SimpleNamespace(request_id="a", block_hashes=keys_of(tokens), sampling_params=None)


def test_the_scheduler_tells_what_fills_and_what_is_hit(start):
    batch = Batch(start, a=request(), b=request())
    a, b = engine_request(TOKENS), engine_request(TOKENS)
    scheduler = scheduler_of(a=a, b=b)
    pool, prefixes = scheduler.kv_cache_manager.block_pool, batch.capturer.prefixes
    arguments = {"request": a, "blocks": [], "block_size": BLOCK}
    for first, end, group in ((0, 1, 0), (1, 2, 0), (0, 2, 1), (2, 2, 0)):
        pool.cache_full_blocks(
            num_cached_blocks=first, num_full_blocks=end, kv_cache_group_id=group, **arguments
        )
    assert [each.first for each in prefixes.waiting] == [0, 4] and len(pool.cached) == 4
    told, prefixes.waiting[:] = list(prefixes.waiting), []
    for token in TOKENS:
        prefixes.waiting += told if token == TOKENS[-1] else []  # with the step that fills them
        batch.step(["a"], [token])
    assert not prefixes.waiting
    scheduler.output = scheduled(new=[("b", 8)], cached=[("a", 8)])
    scheduler.schedule()
    assert [(each.name, len(each.keys), each.hit) for each in prefixes.waiting] == [("b", 2, True)]
    batch.tokens["b"] = list(TOKENS)
    batch.step(["a", "b"], [20, 21])
    np.testing.assert_array_equal(batch.capturer.end({"b": 9})["b"].array(), batch.expected("b"))
    scheduler.output = scheduled(new=[("b", 3)], cached=[("a", 7), ("b", 8)], resumed=["a"])
    scheduler.schedule()
    assert [(each.name, len(each.keys)) for each in prefixes.waiting] == [("a", 1)]


def test_a_reset_of_the_prefix_cache_drops_rows_too(start):
    batch = Batch(start, a=request())
    scheduler = scheduler_of(a=engine_request(TOKENS))
    assert scheduler.reset_prefix_cache(reset_running_requests=True)
    assert batch.capturer.tag == 1
    batch.capturer.set_tag(9)
    scheduler.reset_prefix_cache()
    assert batch.capturer.tag == 9  # the program says which weights they are


def test_blocks_that_could_not_be_loaded_are_dropped(start):
    batch = Caching(start, a=request(), b=request())
    batch.fill("a")
    a = engine_request(TOKENS)
    a.num_computed_tokens = 4
    scheduler = scheduler_of(a=a)
    scheduler._prefixes = batch.prefixes
    scheduler._handle_invalid_blocks({"a", "gone"})
    assert batch.prefixes.store.reasons(keys_of(TOKENS)).tolist() == [0, Missing.EVICTED]


def test_nothing_is_asked_of_the_store_in_a_step_without_blocks(start, monkeypatch):
    batch = Caching(start, a=request())
    asked = []
    monkeypatch.setattr(batch.prefixes, "settle", lambda generation: asked.append(generation))
    for _ in range(4):
        batch.step()
    assert not asked

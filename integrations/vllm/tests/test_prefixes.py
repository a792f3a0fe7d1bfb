"""Rows of prefixes that an engine takes from its cache, out of a store."""

import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
from batch import Batch, request

import routecap
from routecap import Missing
from routecap_vllm import _scheduler
from routecap_vllm import routed_experts_capturer as module
from routecap_vllm._options import Options
from routecap_vllm._prefixes import BlocksOf

BLOCK = 4
TOKENS = [5, 6, 7, 8, 9, 10, 11, 12]


def key(tokens, salt=0):
    return hash((salt, *tokens)).to_bytes(8, "little", signed=True) * 4


def keys_of(tokens):
    return [key(tokens[:end]) for end in range(BLOCK, len(tokens) + 1, BLOCK)]


class Caching(Batch):
    """Its scheduler tells which blocks are allocated, filled and hit, by number and by hash."""

    def __init__(self, start, options=None, **requests):
        super().__init__(start, options=options, **requests)
        self.prefixes = self.capturer.keep_prefixes(BLOCK, BLOCK, 32, False)

    def begins(self, name, tokens=(), numbers=()):
        found = BlocksOf(name, 0, numbers, keys_of(tokens)[: len(numbers)])
        self.prefixes.step.begins.append(found)

    def fills(self, name, tokens, index, number):
        """The next step: the block before its token of this index."""
        key = keys_of(tokens)[index // BLOCK - 1]
        self.prefixes.step.fills.append(BlocksOf(name, index - BLOCK, [number], [key]))

    def step(self, names=None, tokens=None):
        self.prefixes.send(None)
        with module.use_capturer(self.capturer):
            super().step(names, tokens)

    def fill(self, name, tokens=TOKENS, numbers=(3, 5)):
        """One token after the other, each block told with the step that fills it."""
        self.prefixes.step.allocated += numbers
        self.begins(name)
        for index, token in enumerate(tokens, 1):
            if index % BLOCK == 0:
                self.fills(name, tokens, index, numbers[index // BLOCK - 1])
            self.step([name], [token])

    def wait_for_blocks(self):
        """Those of a fill are in the store."""
        while self.prefixes.store.stats().blocks_published < 2:
            time.sleep(0.001)

    def hit(self, name, tokens=TOKENS, more=(20,), numbers=(3, 5)):
        """It begins behind the blocks of these tokens."""
        self.begins(name, tokens, numbers[: len(tokens) // BLOCK])
        self.tokens[name] = list(tokens)
        for token in more:
            self.step([name], [token])

    def rows(self, name):
        return self.capturer.end({name: len(self.tokens[name])})[name]

    def rows_of_versions(self, name, versions):
        """Its rows are all there, and those of these versions of the weights."""
        rows = self.rows(name)
        np.testing.assert_array_equal(rows.array(), self.expected(name, versions))
        assert rows.validity().all() and rows.routing.tags.tolist() == versions

    def reasons(self, name):
        rows = self.rows(name)
        rows.routing.wait()
        return [Missing(int(each)).name if each else "" for each in rows.routing.reasons()[:, 0]]

    def new_weights(self, change="weights_changed"):
        self.model.version += 1
        getattr(self.capturer, change)(*[int(self.model.version)] * (change == "set_tag"))


def of_a_program(start, block_rows):
    """Of a store that engines of one program use together."""
    first = Caching(start, **{"first of all": request()})
    return Options(store=routecap.Store(first.capturer.capturer, block_rows=block_rows))


@pytest.fixture
def of_program(start):
    return of_a_program(start, BLOCK)


@pytest.fixture(params=["numbers", "contents"])
def options(request):
    """Of a store of the engine's own, and of one that others use too."""
    return None if request.param == "numbers" else request.getfixturevalue("of_program")


def test_a_request_that_hits_what_another_filled_has_its_rows(start, options):
    batch = Caching(start, options, a=request(), b=request())
    batch.fill("a")
    batch.hit("b")
    rows = batch.rows("b")
    np.testing.assert_array_equal(rows.array(), batch.expected("b"))
    assert rows.validity().all() and len(rows) == 9
    np.testing.assert_array_equal(batch.rows("a").array(), batch.expected("a"))
    counts = batch.prefixes.store.stats()
    assert (counts.blocks_published, counts.blocks_adopted) == (2, 2)
    assert counts.key_bytes == (32 if options else 8)


def test_two_requests_of_one_step_may_share_a_block(start, options):
    batch = Caching(start, options, a=request(), b=request())
    batch.begins("a")
    for token in TOKENS[:3]:
        batch.step(["a"], [token])
    batch.begins("b", TOKENS[:BLOCK], [7])  # told in any order
    batch.fills("a", TOKENS, BLOCK, 7)
    batch.tokens["b"] = TOKENS[:BLOCK]
    batch.step(["a", "b"], [TOKENS[3], 20])
    np.testing.assert_array_equal(batch.rows("b").array(), batch.expected("b"))


def test_what_is_not_there_says_why(start):
    batch = Caching(start, a=request(), b=request(), c=request(routed_experts=0), d=request())
    batch.fill("a")
    batch.prefixes.store.evict([3])
    batch.hit("b")
    assert batch.reasons("b") == ["EVICTED"] * 4 + [""] * 5
    other = [30 + token for token in TOKENS]
    batch.fill("c", other, [8, 9])  # is off
    batch.hit("d", other, numbers=[8, 9])
    assert batch.reasons("d") == ["NOT_PUBLISHED"] * 8 + [""]


def test_rows_that_are_all_older_than_the_programs_store_are_said_once(start, caplog):
    first = Caching(start, a=request())
    store = routecap.Store(first.capturer.capturer, block_rows=BLOCK, generation=7)
    batch = Caching(start, Options(store=store), a=request(), b=request())
    batch.fill("a")
    said = [each.getMessage() for each in caplog.records if "generation" in each.getMessage()]
    assert len(said) == 1 and "tag is 0" in said[0] and "generation 7" in said[0]
    caplog.clear()
    batch.capturer.set_tag(7)
    batch.fill("b", numbers=[8, 9])
    assert not caplog.records


@pytest.mark.parametrize("change", ["weights_changed", "set_tag"])
def test_blocks_that_the_engine_keeps_over_new_weights_have_the_rows_of_the_old(
    start, options, change
):
    batch = Caching(start, options, a=request(), b=request(), c=request(), d=request())
    batch.fill("a")
    batch.new_weights(change)
    batch.hit("b")
    batch.rows_of_versions("b", [0] * 8 + [1])
    batch.fill("c", numbers=[8, 9])  # the same tokens: twins, of which the engine hits either
    batch.hit("d", numbers=[8, 9])
    batch.rows_of_versions("d", [1] * 9)
    batch.hit("e", numbers=[3, 9])
    batch.rows_of_versions("e", [0] * 4 + [1] * 5)


def test_a_block_with_rows_of_two_weights_is_its_engines_alone(start, options):
    batch = Caching(start, options, a=request(), b=request(), c=request())
    batch.begins("a")
    for index, token in enumerate(TOKENS, 1):
        if index == 3:
            batch.new_weights("set_tag")
        if index % BLOCK == 0:
            batch.fills("a", TOKENS, index, index)
        batch.step(["a"], [token])
    batch.hit("b", numbers=[4, 8])
    batch.fill("c", numbers=[1, 2])  # wholly under the new ones, which are other keys and values
    if options:
        assert batch.reasons("b") == ["NOT_PUBLISHED"] * 8 + [""]
    else:
        batch.rows_of_versions("b", [0, 0] + [1] * 7)
    batch.rows_of_versions("a", [0, 0] + [1] * 6)


def test_a_block_that_is_allocated_anew_has_no_rows_until_it_is_full(start, options):
    """Whoever computes it: a request that is off, another engine that hands it over, a copy."""
    batch = Caching(start, options, a=request(), b=request(), c=request())
    batch.fill("a")
    batch.wait_for_blocks()
    batch.new_weights()
    batch.prefixes.step.allocated += [3, 5]
    batch.hit("b")
    assert batch.reasons("b")[:8] == ["NOT_PUBLISHED" if options else "EVICTED"] * 8
    batch.fill("c")
    batch.hit("d")
    batch.rows_of_versions("d", [1] * 9)


def test_what_another_engine_hands_over_has_its_rows_while_weights_are_the_first(start, of_program):
    one, other = (Caching(start, of_program, **{name: request()}) for name in "ab")
    one.fill("a")
    one.wait_for_blocks()
    other.hit("b", numbers=[11, 12])
    np.testing.assert_array_equal(other.rows("b").array()[:8], one.expected("a"))


def test_blocks_that_a_connector_brings_back_have_their_rows_under_any_number(start):
    batch = Caching(start, a=request(), b=request(), c=request(), d=request())
    batch.prefixes = batch.capturer.keep_prefixes(BLOCK, BLOCK, 32, True)
    assert batch.prefixes.by_contents
    batch.fill("a")
    batch.wait_for_blocks()
    batch.prefixes.step.allocated += [3, 5, 8, 9]
    batch.hit("b", numbers=[8, 9])
    batch.rows_of_versions("b", [0] * 9)
    batch.new_weights()
    batch.prefixes.step.allocated += [11, 12]
    batch.hit("c", numbers=[11, 12])
    assert batch.reasons("c")[:8] == ["NOT_PUBLISHED"] * 8  # nobody knows of which weights
    batch.prefixes.step.emptied = True
    batch.prefixes.step.allocated += [3, 5, 8, 9]
    batch.fill("d")
    batch.hit("e", numbers=[8, 9])
    batch.rows_of_versions("e", [1] * 9)


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
            two.capturer.keep_prefixes(BLOCK, rows, key_bytes, False)
    assert Caching(start, Options(store_bytes=0), a=request()).prefixes is None


def test_two_engines_with_one_store_have_the_rows_of_their_own_weights(start, of_program):
    """Both get new weights, and neither empties its cache."""
    a = Caching(start, of_program, a=request())
    b = Caching(start, of_program, b=request(), c=request())
    b.fill("b")
    b.wait_for_blocks()
    for engine in (a, b):
        engine.new_weights()
    a.fill("a")
    while a.prefixes.store.stats().blocks_published < 4:
        time.sleep(0.001)
    b.hit("c")
    b.rows_of_versions("c", [0] * 8 + [1])
    b.hit("d", numbers=[11, 12])  # from another engine, nobody knows of which weights
    assert b.reasons("d")[:8] == ["NOT_PUBLISHED"] * 8


# ---- The scheduler


class Pool:
    hash_block_size = BLOCK // 2

    def __init__(self):
        self.cached, self.next = [], 3

    def get_new_blocks(self, count):
        self.next += count
        return [SimpleNamespace(block_id=self.next - count + i) for i in range(count)]

    def cache_full_blocks(self, **arguments):
        self.cached.append(arguments)


class FullAttentionSpec:
    pass


class Scheduler:
    """vLLM's, as far as it is asked here. The second of its caches has every row."""

    def __init__(self, requests):
        self.requests, self.connector = requests, None
        model = SimpleNamespace(enable_return_routed_experts=True)
        cache = SimpleNamespace(prefix_caching_hash_algo="sha256")
        self.vllm_config = SimpleNamespace(model_config=model, cache_config=cache)
        managers = [
            SimpleNamespace(kv_cache_spec=spec, block_size=BLOCK * (1 + index))
            for index, spec in enumerate((None, FullAttentionSpec(), FullAttentionSpec()))
        ]
        self.kv_cache_manager = SimpleNamespace(
            enable_caching=True,
            block_pool=Pool(),
            coordinator=SimpleNamespace(single_type_managers=managers),
            get_block_ids=lambda name: ([9], [3, 5, 7, 8], [1]),
        )
        self.output = None

    def schedule(self):
        return self.output

    def reset_prefix_cache(self, reset_running_requests=False, reset_connector=False):
        return reset_running_requests or not self.requests

    def _handle_invalid_blocks(self, invalid):
        return invalid


@pytest.fixture(autouse=True)
def engine_modules(monkeypatch):
    functions = {"sha256": lambda data: bytes(32)}
    hashing = SimpleNamespace(get_hash_fn_by_name=functions.get)
    monkeypatch.setitem(sys.modules, "vllm.utils.hashing", hashing)
    interface = SimpleNamespace(FullAttentionSpec=FullAttentionSpec)
    monkeypatch.setitem(sys.modules, "vllm.v1.kv_cache_interface", interface)


def scheduler_of(**requests):
    return type("Telling", (_scheduler.TellingScheduler, Scheduler), {})(requests=requests)


def scheduled(new=(), cached=(), resumed=()):
    new = [
        SimpleNamespace(req_id=name, num_computed_tokens=rows, block_ids=blocks)
        for name, rows, blocks in new
    ]
    names, rows, blocks = zip(*cached, strict=True) if cached else ((), (), ())
    cached = SimpleNamespace(
        req_ids=names,
        num_computed_tokens=rows,
        new_block_ids=blocks,
        resumed_req_ids=set(resumed),
    )
    return SimpleNamespace(scheduled_new_reqs=new, scheduled_cached_reqs=cached)


def engine_request(tokens, name="a"):
    hashes = [key(tokens[:end]) for end in range(2, len(tokens) + 1, 2)]
    return SimpleNamespace(request_id=name, block_hashes=hashes, sampling_params=None)


def test_the_scheduler_tells_what_is_allocated_fills_and_is_hit(start, options):
    options = options and of_a_program(start, BLOCK // 2)
    batch = Batch(start, options=options, a=request(), b=request(), c=request())
    tokens = [*TOKENS, *range(40, 49)]
    a, b = engine_request(tokens), engine_request(tokens, "b")
    scheduler = scheduler_of(a=a, b=b)
    pool, prefixes = scheduler.kv_cache_manager.block_pool, batch.capturer.prefixes
    assert prefixes.store.block_rows == (BLOCK // 2 if options else 2 * BLOCK)
    blocks = [SimpleNamespace(block_id=each) for each in (3, 4)]
    assert pool.get_new_blocks(2) == blocks
    arguments = {"request": a, "blocks": blocks, "block_size": 2 * BLOCK, "block_mask": None}
    for first, end, group in ((0, 1, 1), (1, 2, 1), (0, 2, 0), (2, 2, 1)):
        pool.cache_full_blocks(
            num_cached_blocks=first, num_full_blocks=end, kv_cache_group_id=group, **arguments
        )
    assert len(pool.cached) == 4 and pool.cached[0]["block_mask"] is None
    scheduler.output = scheduled(new=[("b", 8, ([9], [3, 6], [1]))], cached=[("a", 8, None)])
    scheduler.schedule()
    [step] = prefixes.waiting
    assert step.allocated == [3, 4]
    keys = [a.block_hashes[:4], a.block_hashes[4:8]] if options else [(), ()]
    assert step.fills == [BlocksOf("a", 0, [3], keys[0]), BlocksOf("a", 8, [4], keys[1])]
    assert step.begins == [BlocksOf("b", 0, [3], keys[0])]
    scheduler.output = scheduled(
        new=[("b", 7, ([9], [3], [1]))],
        cached=[("b", 8, ([9], [8], [1])), ("a", 17, ([9], [3, 4, 8], [1]))],
        resumed=["a"],
    )
    scheduler.schedule()
    begins = prefixes.waiting[-1].begins
    assert [each.numbers for each in begins] == [[], [3, 4]][0 if options else 1 :]
    for number in (6, 7):
        arguments["blocks"] = [SimpleNamespace(block_id=number)]
        pool.cache_full_blocks(
            num_cached_blocks=0, num_full_blocks=1, kv_cache_group_id=1, **arguments
        )
    pool.next = 7
    pool.get_new_blocks(2)  # it was preempted meanwhile
    assert [each.numbers for each in prefixes.step.fills] == [[6]]
    assert prefixes.step.allocated == [7, 8]


def test_a_reset_of_the_prefix_cache_counts_as_new_weights(start):
    batch = Batch(start, a=request())
    scheduler = scheduler_of(a=engine_request(TOKENS))
    assert scheduler.reset_prefix_cache(reset_running_requests=True)
    assert batch.capturer.tag == 1
    batch.capturer.set_tag(9)
    scheduler.reset_prefix_cache(True)
    assert batch.capturer.tag == 9  # the program says which weights they are
    assert not scheduler._prefixes.step.emptied
    scheduler.reset_prefix_cache(True, reset_connector=True)
    assert scheduler._prefixes.step.emptied


# vLLM's reset says False, and empties nothing, while a request runs. It was taken for new weights:
# whoever hit blocks of that request had no rows.
def test_a_reset_of_the_prefix_cache_that_failed_changes_nothing(start):
    batch = Batch(start, a=request())
    scheduler = scheduler_of(a=engine_request(TOKENS))
    assert scheduler.reset_prefix_cache() is False
    assert scheduler.reset_prefix_cache(reset_connector=True) is False
    assert batch.capturer.tag == 0 and not scheduler._prefixes.step.emptied
    scheduler.requests.clear()
    assert scheduler.reset_prefix_cache() and batch.capturer.tag == 1


def test_a_request_that_begins_anew_has_the_rows_of_what_it_hits_then(start, options):
    """An engine that empties its cache preempts, and tells the worker only who begins again."""
    batch = Caching(start, options, a=request(), b=request())
    batch.fill("a")
    batch.new_weights()
    batch.fill("b", numbers=[8, 9])  # the same tokens
    batch.capturer.resume(["a", "gone"])
    batch.hit("a", numbers=[8, 9])
    batch.rows_of_versions("a", [1] * 9)


def test_blocks_that_could_not_be_loaded_are_dropped(start, options, monkeypatch):
    batch = Caching(start, options, a=request(), b=request())
    batch.fill("a")
    monkeypatch.setattr(batch.capturer, "keep_prefixes", lambda *shape: None)
    scheduler = scheduler_of(a=engine_request(TOKENS))
    scheduler._prefixes = batch.prefixes
    scheduler._block_rows = scheduler._hash_rows = BLOCK
    a = scheduler.requests["a"]
    a.block_hashes, a.num_computed_tokens, a.num_tokens = keys_of(TOKENS), 4, 9
    scheduler._handle_invalid_blocks({"a", "gone"})
    keys = keys_of(TOKENS) if options else [3, 5]
    assert batch.prefixes.store.reasons(keys).tolist() == [0, Missing.EVICTED]


def test_nothing_is_asked_of_the_store_in_a_step_without_blocks(start, monkeypatch):
    batch = Caching(start, a=request())
    asked = []
    monkeypatch.setattr(batch.prefixes, "settle", lambda tag: asked.append(tag))
    for _ in range(4):
        batch.step()
    assert not asked

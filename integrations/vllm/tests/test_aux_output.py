"""The connector of 0.33, under random schedules: every row that is called for, from where it is."""

import asyncio
import pickle
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from schedule import BLOCK, Router, Run, Scheduling, capture, rows_connector, told
from routecap_testing.scraping import chosen, counted, free_port, scrape

from routecap import remote
from routecap_vllm import _aux_output
from routecap_vllm._connector import PendingOutput
from routecap_vllm._options import Options, set_options

LAYERS, K, EXPERTS = 3, 2, 16
ROUTER = Router(LAYERS, K, EXPERTS)


class Output:
    def __init__(self, token_start, rows):
        self.token_start, self.rows = token_start, rows


def connector(layers=LAYERS + 1, k=K, **more):
    return rows_connector(layers, k, EXPERTS, Output, dense=[1], **more)


class Judge:
    """Every output goes on where the last one ended, and has the rows of its tokens."""

    def __init__(self, router):
        self.router, self.rows, self.missing, self.next = router, 0, 0, {}

    def __call__(self, request, outputs):
        (output,) = outputs
        if output is None:
            return
        asked = request.sampling_params.routed_experts_prompt_start
        start = self.next.get(request.request_id, asked)
        assert output.token_start == start
        self.next[request.request_id] = start + len(output.rows)
        tokens = request.truth(start + len(output.rows))
        assert output.rows.shape[1:] == (LAYERS + 1, K) and not output.rows[:, 1].any()
        rows = output.rows[:, [0, 2, 3]]
        own = [self.router.ids(tokens[: start + row + 1]) for row in range(len(rows))]
        missing = (rows == -1).all(axis=(1, 2), keepdims=True)
        np.testing.assert_array_equal(rows, np.where(missing, -1, own) if own else rows)
        self.rows += len(rows)
        self.missing += int(missing.sum())


def play(made, seed, steps=300, early=False, **how):
    judge = Judge(ROUTER)
    run = Run(seed, judge.router, Scheduling(early), [(made, capture)], judge, **how)
    run.steps(steps)
    for request in run.requests.values():
        if request.over:
            assert judge.next[request.request_id] >= request.num_tokens - 1
    return run, judge


# Until 0.32 the hashes of a prompt come with its first rows: published then, blocks had none.
@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("numbers", [_aux_output.Numbers(), None])
@pytest.mark.parametrize(
    ("seed", "drafts", "ahead"),
    [
        (1, 0, 1),
        pytest.param(2, 0, 2, marks=pytest.mark.slow),
        pytest.param(3, 2, 1, marks=pytest.mark.slow),
        (4, 2, 2),
    ],
)
def test_every_row_comes_once_and_is_its_tokens(seed, drafts, ahead, numbers, early):
    made = connector(numbers=numbers, exact=not early)
    run, judge = play(made, seed, drafts=drafts, ahead=ahead, early=early)
    assert judge.missing == 0 and judge.rows > 1500
    assert run.hits > 300 and run.preempted and run.resets and bool(run.rejected) == bool(drafts)
    stats = made.store.stats()
    assert stats.blocks_adopted > 50 and stats.blocks_mismatched == 0
    assert made._capturer.stats().requests_open < 8  # those that run, and what ended last


# Each request's rows were pickled as an array of their own: 256 of them cost the engine's thread
# 0.4 ms of every step of 10.4 ms, with the worker in another process.
def test_what_goes_to_another_process_is_one_array_a_step_and_comes_out_the_same(monkeypatch):
    arrays, take = [], PendingOutput.process_output

    def sent(pending):
        buffers = []
        data = pickle.dumps(take(pending), protocol=5, buffer_callback=buffers.append)
        arrays.append(len(buffers))
        return pickle.loads(data, buffers=buffers)

    monkeypatch.setattr(PendingOutput, "process_output", sent)
    _, judge = play(connector(), 3, drafts=2)
    assert judge.missing == 0 and judge.rows > 1500
    assert set(arrays) == {0, 1} and sum(arrays) > 100  # 0: of a step that only begins prompts


class Requests:
    """Requests of 9 tokens, one after another, in a connector. Their rows say under which weights
    they were computed."""

    def __init__(self, made, parts=1):
        self.made, self.parts, self.number = made, parts, 0

    def rows_of(self, hits, version, blocks=(), generation=0, hashes=(0, 1), copies=None):
        """What a request gets for the rows that it takes from the cache.

        blocks: The numbers of its blocks.
        hashes: What its tokens are known by, BLOCK by BLOCK.
        """
        made, name = self.made, f"r{self.number}"
        self.number += 1
        data = b"".join(bytes([each]) * 32 for each in hashes)
        metadata = SimpleNamespace(
            generation=generation,
            requests={name: 0},
            block_hashes={name: SimpleNamespace(data=data, item_size=32)},
            finished_requests=(),
            retained_block_hashes=None,
            released_block_hashes=None,
        )
        batch = SimpleNamespace(
            req_ids=[name],
            query_start_loc_np=np.array([0, 9 - hits], np.int32),
            num_computed_tokens_np=np.array([hits], np.int32),
            num_draft_tokens_per_req=None,
            positions=torch.arange(hits, 9),
        )
        new = SimpleNamespace(req_id=name, num_computed_tokens=hits, block_ids=(list(blocks),))
        made.told = told([new], copies=copies)
        made.begin_step(metadata)
        capture(made, self.ids(version)[hits:].astype(np.int32))
        output = made.prepare_output(batch)
        output.enqueue_cpu_copy(np.ones(1, np.int32), np.zeros(1, np.int32))
        found = output.process_output()[name].rows[:, [0, 2, 3]]
        np.testing.assert_array_equal(found[hits:], self.ids(version)[hits:])
        return [self.of(position, row) for position, row in enumerate(found[:hits])]

    @staticmethod
    def ids(version):
        base = np.arange(9)[:, None, None] + np.arange(LAYERS)[:, None] + np.arange(K)
        return (base + 5 * version) % EXPERTS

    def of(self, position, row):
        """The version of the weights that a row is of; None if it is missing."""
        if (row == -1).all():
            return None
        [version] = [v for v in range(3) if (row == self.ids(v)[position]).all()]
        return version


def test_under_hashes_hits_are_missing_from_new_weights_until_the_cache_is_emptied():
    """The engine keeps its blocks, and then has blocks of both weights under one hash: nobody says
    which of them is hit."""
    made = connector(numbers=None)
    rows_of = Requests(made).rows_of
    assert BLOCK == 4
    assert not rows_of(0, 0) and rows_of(8, 0) == [0] * 8
    made.capture.weights_changed()
    assert rows_of(8, 1) == [None] * 8  # the block is of the old weights
    assert not rows_of(0, 1)  # a twin, as for prompt_logprobs
    assert rows_of(8, 1) == [None] * 8
    made.capture.weights_changed()
    assert rows_of(8, 1, generation=1) == [None] * 8  # emptied behind that
    assert not rows_of(0, 1, generation=1) and rows_of(8, 1, generation=1) == [1] * 8


# Prompts that were computed wholly behind an update were missing too when they were hit, until
# somebody emptied the cache.
def test_under_numbers_hits_have_the_rows_of_their_keys_and_values_whatever_the_weights_are():
    made = connector()
    rows_of = Requests(made).rows_of
    assert not rows_of(0, 0, [1, 2, 3]) and rows_of(8, 0, [1, 2, 4]) == [0] * 8
    made.capture.weights_changed()
    assert rows_of(8, 1, [1, 2, 5]) == [0] * 8  # they are of the old weights
    assert not rows_of(0, 1, [6, 7, 8])  # a twin, with the same hashes
    assert rows_of(8, 2, [6, 7, 9]) == [1] * 8 and rows_of(8, 2, [1, 2, 9]) == [0] * 8
    assert rows_of(8, 2, [1, 7, 9]) == [0] * 4 + [1] * 4
    assert not rows_of(0, 2, [1, 10, 11], hashes=(7, 8))  # 1 is allocated anew
    assert rows_of(8, 2, [1, 2, 9]) == [None] * 4 + [0] * 4  # with another hash than it has
    assert rows_of(8, 2, [1, 10, 9], hashes=(7, 8)) == [2] * 8
    assert rows_of(4, 2, [1, 12, 13], hashes=(7, 9)) == [2] * 4


def test_a_part_of_a_block_is_taken_from_what_it_is_a_copy_of():
    made = connector(numbers=_aux_output.Numbers(parts=2))
    rows_of = Requests(made).rows_of
    assert not rows_of(0, 0, [1, 2])  # two hashes a block
    assert rows_of(8, 1, [1, 3]) == [0] * 8
    copy = [SimpleNamespace(src_block_id=1, dst_block_id=4)]
    assert rows_of(4, 1, [4, 5], hashes=(0, 6), copies=copy) == [0] * 4
    assert rows_of(8, 2, [4, 6], hashes=(0, 6)) == [0] * 4 + [1] * 4  # it went on in the copy


def test_a_block_that_ends_in_a_rejected_draft_waits_for_the_row_of_its_token():
    """Until 0.32 the hash of a block comes when its last token is known, which is one step before
    that token is computed. In between a draft's row is where its row will be."""
    made = connector(exact=False)
    hashes = [bytes([each]) * 32 for each in (1, 2)]

    def step(name, first, ids, keys=(), blocks=None, rejected=0):
        """Rows of these ids, from position `first` on; `blocks` of a request that is new."""
        data = SimpleNamespace(data=b"".join(keys), item_size=32)
        metadata = SimpleNamespace(
            generation=0,
            requests={name: 0} if ids else {},
            block_hashes={name: data} if keys else {},
            finished_requests=(),
        )
        new = [SimpleNamespace(req_id=name, num_computed_tokens=first, block_ids=([5, 6, 7],))]
        made.told = told(new if blocks else ())
        made.begin_step(metadata)
        if not ids:
            return None
        rows = np.array(ids, np.int32)[:, None, None] + np.arange(LAYERS)[:, None] + np.arange(K)
        capture(made, (rows % EXPERTS).astype(np.int32))
        batch = SimpleNamespace(
            req_ids=[name],
            query_start_loc_np=np.array([0, len(ids)], np.int32),
            num_computed_tokens_np=np.array([first], np.int32),
            num_draft_tokens_per_req=np.array([rejected], np.int32) if rejected else None,
            positions=torch.arange(first, first + len(ids)),
        )
        output = made.prepare_output(batch)
        output.enqueue_cpu_copy(np.ones(1, np.int32), np.array([rejected], np.int32))
        return output.process_output()[name].rows[:, 0, 0].tolist()

    assert step("a", 0, range(6), hashes[:1], blocks=True) == [0, 1, 2, 3, 4, 5]
    assert step("a", 6, [6, 13, 14], rejected=2) == [6]
    step("a", 7, [], hashes[1:])  # it is known, and has no step
    assert step("a", 7, [7]) == [7]
    assert step("b", 8, [8], hashes, blocks=True) == [0, 1, 2, 3, 4, 5, 6, 7, 8]


def test_a_step_that_nobody_told_the_blocks_of_is_refused():
    made = connector()
    made.begin_step(None)  # of no request
    with pytest.raises(
        RuntimeError, match="GPUModelRunner.execute_model .* did not begin this step"
    ):
        made.begin_step(
            SimpleNamespace(generation=0, requests={}, block_hashes={}, finished_requests=())
        )


def test_the_runner_tells_its_connector_which_blocks_a_step_has():
    told_of = []

    class GPUModelRunner:
        aux_output_connector = None

        def execute_model(self, scheduler_output, intermediate=None, dummy_run=False):
            told_of.append(getattr(self.aux_output_connector, "told", "none"))
            return dummy_run

    module = SimpleNamespace(GPUModelRunner=GPUModelRunner, get_aux_output_connector=print)
    for _ in range(2):  # the second changes nothing
        _aux_output.put_worker(module)
    runner = GPUModelRunner()
    assert runner.execute_model("first", dummy_run=True)
    runner.aux_output_connector = SimpleNamespace(told="its own")
    assert not runner.execute_model("second")
    runner.aux_output_connector = connector()
    runner.execute_model("third")
    assert told_of == ["none", "its own", "third"]


# vLLM's own worker came in beside our scheduler, which takes blocks from a KV connector whose rows
# are gone. The own worker then stopped the engine: BlockObjectStoreError.
@pytest.mark.parametrize("transfer", [None, "OffloadingConnector"])
def test_the_engines_own_capture_takes_over_unless_blocks_come_from_elsewhere(transfer):
    module = SimpleNamespace(
        GPUModelRunner=type("GPUModelRunner", (), {"execute_model": print}),
        get_aux_output_connector=lambda *arguments: "its own",
    )
    _aux_output.put_worker(module)
    config = SimpleNamespace(
        parallel_config=SimpleNamespace(use_ubatching=True), kv_transfer_config=transfer
    )
    if transfer is None:
        assert module.get_aux_output_connector(None, config, None) == "its own"
        return
    with pytest.raises(ValueError, match="micro-batches .* unset ROUTECAP_VLLM"):
        module.get_aux_output_connector(None, config, None)


@pytest.mark.parametrize(
    ("groups", "found"),
    [
        ([("whole", 16)], _aux_output.Numbers(0, 2)),
        ([("window", 16), ("whole", 32)], _aux_output.Numbers(1, 4)),
        ([("window", 16)], None),
        ([("whole", 12)], None),  # hashes of other rows than a block has
        ([("window", 16), ("whole of each layer", 32)], _aux_output.Numbers(1, 4)),
    ],
)
def test_numbers_are_those_of_the_cache_that_keeps_every_row(groups, found, monkeypatch):
    kinds = {kind: type(kind, (SimpleNamespace,), {}) for kind in ("whole", "window", "several")}
    interface = SimpleNamespace(
        FullAttentionSpec=kinds["whole"], UniformTypeKVCacheSpecs=kinds["several"]
    )
    monkeypatch.setitem(sys.modules, "vllm.v1.kv_cache_interface", interface)
    specs = [kinds[kind.split()[0]](block_size=rows) for kind, rows in groups]
    for i, (kind, _) in enumerate(groups):
        if kind.endswith("of each layer"):
            specs[i] = kinds["several"](kv_cache_specs={"0": specs[i], "1": specs[i]})
    assert (
        _aux_output.numbers_of([SimpleNamespace(kv_cache_spec=each) for each in specs], 8) == found
    )


def test_a_cache_that_is_emptied_beside_a_step_in_flight_costs_no_row_of_it():
    made, hashes = connector(), SimpleNamespace(data=bytes(32), item_size=32)
    rows = (np.arange(6)[:, None, None] + np.arange(LAYERS)[:, None] + np.arange(K)) % 8

    def step(generation, first, end):
        made.told = told()
        made.begin_step(
            SimpleNamespace(
                generation=generation,
                requests={"a": 0} if end > first else {},
                block_hashes={"a": hashes} if first == 0 < end else {},
                finished_requests=(),
                retained_block_hashes=None,
                released_block_hashes=None,
            )
        )
        if first == end:
            return None
        capture(made, rows[first:end].astype(np.int32))
        output = made.prepare_output(
            SimpleNamespace(
                req_ids=["a"],
                query_start_loc_np=np.array([0, end - first], np.int32),
                num_computed_tokens_np=np.array([first], np.int32),
                num_draft_tokens_per_req=None,
                positions=torch.arange(first, end),
            )
        )
        output.enqueue_cpu_copy(np.array([end == 6], np.int32), np.zeros(1, np.int32))
        return output

    chunk, last = step(0, 0, 4), step(0, 4, 6)
    step(1, 0, 0)  # it was preempted for that
    again = step(1, 0, 6)
    assert chunk.process_output() == {}
    for output in last, again:
        found = output.process_output()["a"]
        assert found.token_start == 0
        np.testing.assert_array_equal(found.rows[:, [0, 2, 3]], rows)


def test_a_step_in_which_nothing_happens_to_its_requests_costs_nothing_for_each():
    """Spans were made and steps were counted for each request, in every step: 0.4 ms of 14 ms, on
    the engine's thread, for 256 requests that decode."""

    def calls_of(count):
        made, found = connector(), []
        names = [f"r{i}" for i in range(count)]
        for position in range(3):
            made.told = told(names=names, more=[None] * count)
            capture(made, np.tile(np.arange(LAYERS * K).reshape(LAYERS, K), (count, 1, 1)))
            metadata = SimpleNamespace(
                generation=0,
                requests=dict.fromkeys(names, position),
                block_hashes={},
                finished_requests=(),
                retained_block_hashes=None,
                released_block_hashes=None,
            )
            batch = SimpleNamespace(
                req_ids=list(names),
                query_start_loc_np=np.arange(count + 1, dtype=np.int32),
                num_computed_tokens_np=np.full(count, position, np.int32),
                num_draft_tokens_per_req=None,
                positions=torch.full((count,), position),
            )
            found.append(0)

            def count_calls(frame, event, argument):
                found[-1] += event in ("call", "c_call")

            sys.setprofile(count_calls)
            try:
                made.begin_step(metadata)
                output = made.prepare_output(batch)
            finally:
                sys.setprofile(None)
            output.enqueue_cpu_copy(np.ones(count, np.int32), np.zeros(count, np.int32))
            given = output.process_output()
            assert [each.token_start for each in map(given.get, names)] == [position] * count
        return found

    few, many = calls_of(2), calls_of(60)
    assert many[0] > few[0] + 58  # they begin
    assert many[1:] == few[1:]


@pytest.mark.parametrize("numbers", [_aux_output.Numbers(), None])
def test_a_store_that_is_full_costs_rows_and_nothing_else(numbers):
    made = connector(store_bytes=1, numbers=numbers)
    run, judge = play(made, 5, steps=400, prefixes=30, forget=0.001, reset=0, blocks=4000)
    assert judge.rows > 1500 and 0 < judge.missing < run.hits
    assert made.store.stats().blocks_refused + made.store.stats().blocks_evicted


def test_a_store_has_room_for_what_runs_beside_what_the_scheduler_retains():
    blocks = 200  # of the engine's cache
    rows, shape = _aux_output.kept_rows(blocks * BLOCK, None), {"layers": 41, "k": 8}
    room = connector(**shape).capture.store_bytes(rows)
    made = connector(store_bytes=room, numbers=None, **shape)
    ids = np.arange(BLOCK * 40 * 8).reshape(BLOCK, 40, 8) % EXPERTS
    hashes = [index.to_bytes(32, "little") for index in range(2 * blocks)]

    def step(name, hashes, hits, retained=None):
        made.told = told()
        made.begin_step(
            SimpleNamespace(
                generation=0,
                requests={name: 0},
                block_hashes={name: SimpleNamespace(data=b"".join(hashes), item_size=32)},
                finished_requests=(),
                retained_block_hashes=retained,
                released_block_hashes=None,
            )
        )
        new = len(hashes) - hits + (hits == len(hashes))
        capture(made, np.tile(ids, (new, 1, 1)).astype(np.int32))
        first = hits * BLOCK
        output = made.prepare_output(
            SimpleNamespace(
                req_ids=[name],
                query_start_loc_np=np.array([0, BLOCK * new], np.int32),
                num_computed_tokens_np=np.array([first], np.int32),
                num_draft_tokens_per_req=None,
                positions=torch.arange(first, first + BLOCK * new),
            )
        )
        output.enqueue_cpu_copy(np.ones(1, np.int32), np.zeros(1, np.int32))
        return output.process_output()[name].rows

    for at in range(0, 2 * blocks, 10):
        part = hashes[at : at + 10]
        packed = SimpleNamespace(data=b"".join(part), item_size=32)
        step(f"r{at}", part, 0, packed if at < blocks else None)
    for at in range(0, 2 * blocks, 10):
        assert (step(f"hit {at}", hashes[at : at + 10], 10)[:, 0] >= 0).all()
    assert made.store.stats().blocks_refused == 0


def test_zeros_in_the_engines_own_type_if_so_chosen():
    set_options(Options(fill=0))
    try:
        made = connector()
    finally:
        set_options(None)

    def judge(request, outputs):
        if outputs[0] is not None:
            assert outputs[0].rows.dtype == np.uint8 and not outputs[0].rows[:, 1].any()

    Run(6, Router(LAYERS, K, EXPERTS), Scheduling(), [(made, capture)], judge).steps(40)


@pytest.mark.parametrize("drafts", [0, 2])
def test_every_row_is_counted_once_in_its_phase(drafts):
    pytest.importorskip("prometheus_client")
    port = free_port()
    set_options(Options(metrics_port=port))
    try:
        made = connector()
    finally:
        set_options(None)

    def forward(connector, rows):
        capture(connector, rows)
        seen.append(rows)

    seen = []
    router = Router(LAYERS, K, EXPERTS)
    run = Run(7, router, Scheduling(), [(made, forward)], lambda *_: None, drafts=drafts)
    run.steps(60)
    rows = np.concatenate(seen)
    found = scrape(port)
    phases = found["routecap_load_rows_total"]
    assert phases["prefill", "0"] == len(rows) - run.decoded > 0
    if drafts:  # the position of a rejected one is computed again, and counts once
        assert len(rows) - run.rejected <= sum(phases.values()) < len(rows)
    else:
        counts = chosen(found, made.capture.layer_map, EXPERTS)
        assert (counts.sum(0) == counted(rows, EXPERTS)).all()
        assert phases["decode", "0"] == run.decoded > 0


def test_ranks_that_own_nothing_only_take_part():
    made = connector(owner=False)
    made.begin_step(SimpleNamespace())
    assert made.prepare_output(None) is None
    made.close()


class Own:
    """The scheduler's side as it is: what it has forgotten is computed again."""

    def max_cache_hit(self, request):
        return 0

    def cap_external_hit(self, request, num_local, num_external):
        return 0


def test_the_scheduler_gives_up_no_prefix_and_asks_for_no_row_that_is_gone(monkeypatch):
    monkeypatch.setattr(_aux_output._versions, "release", lambda: (0, 32, 0))
    module = SimpleNamespace(AuxOutputSchedulerConnector=Own)
    _aux_output.put_scheduler(module)
    put = module.AuxOutputSchedulerConnector
    _aux_output.put_scheduler(module)
    assert module.AuxOutputSchedulerConnector is put and issubclass(put, Own)
    side = put()
    request = SimpleNamespace(request_id="a", num_tokens=33)
    assert side.max_cache_hit(request) == 32 and side.cap_external_hit(request, 16, 32) == 32
    assert side.take_output(request, None) is None and side.take_output(request, {}) is None
    rows = np.zeros((4, LAYERS, K))
    assert len(side.take_output(request, {"a": Output(30, rows)})) == 2
    assert side.take_output(request, {"a": Output(33, rows)}) is None


class OwnThatLists(Own):
    """That of 0.33, which tells the worker what finished requests leave in the cache."""

    def __init__(self, kv_cache_manager, kv_connector=None):
        self.manager, self.listed = kv_cache_manager, []

    def _kv_blocks(self, hashes):
        return iter(hashes)

    def request_finished(self, request):
        self.listed.extend(self._kv_blocks(request.block_hashes))


@pytest.mark.parametrize(
    ("block", "transfer", "listed"),
    [(16, None, []), (24, None, ["a", "b"]), (16, "a connector", ["a", "b"])],
)
def test_blocks_are_listed_for_who_keeps_rows_by_hashes_alone(monkeypatch, block, transfer, listed):
    monkeypatch.setattr(_aux_output._versions, "release", lambda: (0, 33, 0))
    specs = SimpleNamespace(FullAttentionSpec=SimpleNamespace, UniformTypeKVCacheSpecs=dict)
    monkeypatch.setitem(sys.modules, "vllm.v1.kv_cache_interface", specs)
    groups = [SimpleNamespace(kv_cache_spec=SimpleNamespace(block_size=block))]
    manager = SimpleNamespace(
        block_pool=SimpleNamespace(hash_block_size=16),
        kv_cache_config=SimpleNamespace(kv_cache_groups=groups),
    )
    module = SimpleNamespace(AuxOutputSchedulerConnector=OwnThatLists)
    _aux_output.put_scheduler(module)
    side = module.AuxOutputSchedulerConnector(manager, transfer)
    side.request_finished(SimpleNamespace(block_hashes=["a", "b"]))
    assert side.listed == listed and side.manager is manager


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"routed_experts": 0}, "vLLM has no routed_experts"),
        ({"routed_experts_start": 3}, "vLLM has no routed_experts"),
        ({"routed_experts_format": "reference"}, "this process has no ROUTECAP_VLLM_OBJECTS"),
        ({"routed_experts_format": "lists"}, "only AsyncLLM.generate and the HTTP server"),
        ({"routed_experts_dtype": "uint8"}, "only AsyncLLM.generate and the HTTP server"),
    ],
)
def test_what_0_33_does_not_have_is_refused_by_name(asked, said):
    class InputProcessor:
        def process_inputs(self, request_id, prompt, params, tasks, priority=0):
            return request_id, priority

    for _ in range(2):  # the second changes nothing
        _aux_output.refuse_asked(InputProcessor)
    plain = SimpleNamespace(extra_args={"other": 1})
    assert InputProcessor().process_inputs("a", [1], plain, (), priority=7) == ("a", 7)
    with pytest.raises(ValueError, match=said):
        InputProcessor().process_inputs(
            "a", [1], params=SimpleNamespace(extra_args=asked), tasks=()
        )


# ---- Answers in a format

PROMPT, ANSWER = [5, 6, 7, 8, 9], [10, 11, 12]
MODEL = SimpleNamespace(
    hf_text_config=SimpleNamespace(
        model_type="qwen3_moe",
        num_hidden_layers=LAYERS + 1,
        num_experts=EXPERTS,
        num_experts_per_tok=K,
        mlp_only_layers=[1],
        decoder_sparse_step=1,
    )
)


def decoder_rows(start=0, rows=len(PROMPT) + len(ANSWER) - 1, dtype=np.int16):
    """[rows, layers of the decoder, K], as the engine's front end has them."""
    router = Router(LAYERS, K, EXPERTS)
    tokens = PROMPT + ANSWER
    found = np.zeros((rows, LAYERS + 1, K), dtype)
    for row in range(start, rows):
        found[row, [0, 2, 3]] = router.ids(tokens[: row + 1])
    return found[start:]


class Engine:
    """Two choices, whose tokens come one by one; the second ends first."""

    model_config = MODEL
    rows = staticmethod(decoder_rows)
    end = "length"

    async def generate(self, prompt, sampling_params, request_id):
        assert sampling_params.extra_args in (None, {"other": 1})
        delta = getattr(sampling_params.output_kind, "name", "") == "DELTA"
        start = sampling_params.routed_experts_prompt_start
        for step in range(1, len(ANSWER) + 1):
            tokens = ANSWER[step - 1 : step] if delta else ANSWER[:step]
            ends = {0: step == 3, 1: step == 2}
            outputs = [
                SimpleNamespace(
                    index=index,
                    token_ids=tokens,
                    finish_reason=self.end if ended else None,
                    routed_experts=self.rows(start, len(PROMPT) + step - 1) if ended else None,
                )
                for index, ended in ends.items()
                if index == 0 or step < 3
            ]
            yield SimpleNamespace(prompt_token_ids=PROMPT, outputs=outputs)


def completions(kind="CUMULATIVE", start=0, engine=Engine, **asked):
    answering = type("Answering", (engine,), {})
    for _ in range(2):  # the second changes nothing
        _aux_output.answer_asked(answering)
    parameters = SimpleNamespace(
        output_kind=SimpleNamespace(name=kind),
        routed_experts_prompt_start=start,
        extra_args={"other": 1} | asked,
    )

    async def take():
        outputs = answering().generate(PROMPT, parameters, "name")
        taken = [each async for output in outputs for each in output.outputs]
        return {each.index: each for each in taken if each.finish_reason}

    return asyncio.run(take())


@pytest.mark.parametrize("kind", ["CUMULATIVE", "DELTA"])
@pytest.mark.parametrize("start", [0, 3])
def test_a_request_gets_a_reference_and_a_reader_has_its_rows(kind, start):
    set_options(Options(objects="memory://aux-output"))
    try:
        found = completions(kind, start, routed_experts_format="reference")
    finally:
        set_options(None)
    shape = {"layers": LAYERS, "k": K, "layer_map": [0, 2, 3], "layer_experts": [EXPERTS] * LAYERS}
    reader = remote.Reader(remote.connect("memory://aux-output"), **shape)
    for index, rows in ((0, 7), (1, 6)):
        reference = found[index].routed_experts
        assert (reference["first"], reference["rows"]) == (start, rows - start)
        got = reader.rows(reference).read(0, 99)
        assert got is not None and got.mask().all() and got.first == start, reader.log
        np.testing.assert_array_equal(got.ids(), decoder_rows(start, rows)[:, [0, 2, 3]])


def test_missing_cells_stay_missing_behind_a_reference():
    class Lacking(Engine):
        @staticmethod
        def rows(*where):
            found = decoder_rows(*where)
            found[2] = -1
            return found

    set_options(Options(objects="memory://aux-output"))
    try:
        reference = completions(engine=Lacking, routed_experts_format="reference")[0].routed_experts
    finally:
        set_options(None)
    shape = {"layers": LAYERS, "k": K, "layer_map": [0, 2, 3], "layer_experts": [EXPERTS] * LAYERS}
    got = remote.Reader(remote.connect("memory://aux-output"), **shape).rows(reference).read(0, 99)
    assert got.mask().all(axis=1).tolist() == [row != 2 for row in range(7)]


def test_a_format_has_all_layers_of_the_decoder_and_the_mask():
    (_, first), *_ = sorted(completions(routed_experts_validity=1).items())
    np.testing.assert_array_equal(first.routed_experts, decoder_rows())
    mask = [[layer != 1 for layer in range(LAYERS + 1)]] * len(decoder_rows())
    np.testing.assert_array_equal(first.routed_experts_validity, mask)
    plain = completions()[0]
    np.testing.assert_array_equal(plain.routed_experts, decoder_rows())


@pytest.mark.parametrize(
    ("rows", "end", "said"),
    [
        (lambda *where: decoder_rows(*where)[1:], "length", "6 rows came for 7 inputs"),
        (lambda start, rows: decoder_rows(start, rows + 1), "abort", "8 rows came for 7"),
        (lambda *where: decoder_rows(*where, dtype=np.uint8), "stop", "these rows are uint8"),
    ],
)
def test_rows_of_which_something_is_uncertain_are_an_error(rows, end, said):
    made = type("Made", (Engine,), {"rows": staticmethod(rows), "end": end})
    found = completions(engine=made, routed_experts_format="lists")[0]
    assert found.routed_experts is None and said in found.routed_experts_error


def test_an_aborted_request_has_the_rows_so_far():
    made = type(
        "Made",
        (Engine,),
        {"rows": staticmethod(lambda *where: decoder_rows(*where)[:4]), "end": "abort"},
    )
    found = completions(engine=made, routed_experts_format="lists")[0]
    assert found.routed_experts == decoder_rows()[:4].tolist()

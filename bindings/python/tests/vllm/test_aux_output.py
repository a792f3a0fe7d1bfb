"""The connector of 0.33, under random schedules: every row that is called for, from where it is."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from schedule import BLOCK, Router, Run, Scheduling, capture, rows_connector
from scraping import chosen, counted, free_port, scrape

from routecap.vllm import _v033
from routecap.vllm._options import Options, set_options

LAYERS, K, EXPERTS = 3, 2, 16


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
        assert output.rows.shape[1:] == (LAYERS + 1, K) and (output.rows[:, 1] == -1).all()
        for position, row in enumerate(output.rows[:, [0, 2, 3]], start):
            self.rows += 1
            if (row == -1).all():
                self.missing += 1
            else:
                np.testing.assert_array_equal(row, self.router.ids(tokens[: position + 1]))


def play(made, seed, steps=300, **how):
    judge = Judge(Router(LAYERS, K, EXPERTS))
    run = Run(seed, judge.router, Scheduling(), [(made, capture)], judge, **how)
    run.steps(steps)
    for request in run.requests.values():
        if request.over:
            assert judge.next[request.request_id] >= request.num_tokens - 1
    return run, judge


@pytest.mark.parametrize(("seed", "drafts", "ahead"), [(1, 0, 1), (2, 0, 2), (3, 2, 1), (4, 2, 2)])
def test_every_row_comes_once_and_is_its_tokens(seed, drafts, ahead):
    made = connector()
    run, judge = play(made, seed, drafts=drafts, ahead=ahead)
    assert judge.missing == 0 and judge.rows > 1500
    assert run.hits > 300 and run.preempted and run.resets and bool(run.rejected) == bool(drafts)
    stats = made.store.stats()
    assert stats.blocks_adopted > 50 and stats.blocks_mismatched == 0
    assert made._capturer.stats().requests_open < 8  # those that run, and what ended last


def test_rows_of_hits_are_missing_from_new_weights_until_the_cache_is_emptied():
    """The engine keeps its blocks, and then has blocks of both weights under one hash: nobody says
    which of them is hit."""
    made, number = connector(), [0]

    def rows_of(generation, hits, version):
        """Of a request of 9 tokens, as callers get them."""
        name, number[0] = f"r{number[0]}", number[0] + 1
        hashes = b"".join(bytes([block]) * 32 for block in range(2))
        metadata = SimpleNamespace(
            generation=generation,
            requests={name: 0},
            block_hashes={name: SimpleNamespace(data=hashes, item_size=32)},
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
        made.begin_step(metadata)
        ids = (np.arange(9)[:, None, None] + np.arange(LAYERS)[:, None] + np.arange(K)) % 8
        capture(made, (ids + 5 * version)[hits:].astype(np.int32))
        output = made.prepare_output(batch)
        output.enqueue_cpu_copy(np.ones(1, np.int32), np.zeros(1, np.int32))
        found = output.process_output()[name].rows[:, [0, 2, 3]]
        np.testing.assert_array_equal(found[hits:], (ids + 5 * version)[hits:])
        if (found[:hits] == -1).all():
            return "missing" if hits else "computed"
        return "of its weights" if (found == ids + 5 * version).all() else "of others"

    assert BLOCK == 4
    assert rows_of(0, 0, 0) == "computed" and rows_of(0, 8, 0) == "of its weights"
    made.capture.weights_changed()
    assert rows_of(0, 8, 1) == "missing"  # the block is of the old weights
    assert rows_of(0, 0, 1) == "computed"  # a twin, as for prompt_logprobs
    assert rows_of(0, 8, 1) == "missing"
    made.capture.weights_changed()
    assert rows_of(1, 8, 1) == "missing"  # emptied behind that
    assert rows_of(1, 0, 1) == "computed" and rows_of(1, 8, 1) == "of its weights"


def test_a_cache_that_is_emptied_beside_a_step_in_flight_costs_no_row_of_it():
    made, hashes = connector(), SimpleNamespace(data=bytes(32), item_size=32)
    rows = (np.arange(6)[:, None, None] + np.arange(LAYERS)[:, None] + np.arange(K)) % 8

    def step(generation, first, end):
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


def test_a_store_that_is_full_costs_rows_and_nothing_else():
    made = connector(store_bytes=1)
    run, judge = play(made, 5, steps=400, prefixes=30, forget=0.001, reset=0)
    assert judge.rows > 1500 and 0 < judge.missing < run.hits
    assert made.store.stats().blocks_refused + made.store.stats().blocks_evicted


def test_a_store_has_room_for_what_runs_beside_what_the_scheduler_retains():
    blocks = 200  # of the engine's cache
    rows, shape = _v033.kept_rows(blocks * BLOCK, None), {"layers": 41, "k": 8}
    made = connector(store_bytes=connector(**shape).capture.store_bytes(rows), **shape)
    ids = np.arange(BLOCK * 40 * 8).reshape(BLOCK, 40, 8) % EXPERTS
    hashes = [index.to_bytes(32, "little") for index in range(2 * blocks)]

    def step(name, hashes, hits, retained=None):
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


def test_the_scheduler_gives_up_no_prefix_and_asks_for_no_row_that_is_gone():
    module = SimpleNamespace(AuxOutputSchedulerConnector=Own)
    _v033.put_scheduler(module)
    put = module.AuxOutputSchedulerConnector
    _v033.put_scheduler(module)
    assert module.AuxOutputSchedulerConnector is put and issubclass(put, Own)
    side = put()
    request = SimpleNamespace(request_id="a", num_tokens=33)
    assert side.max_cache_hit(request) == 32 and side.cap_external_hit(request, 16, 32) == 32
    assert side.take_output(request, None) is None and side.take_output(request, {}) is None
    rows = np.zeros((4, LAYERS, K))
    assert len(side.take_output(request, {"a": Output(30, rows)})) == 2
    assert side.take_output(request, {"a": Output(33, rows)}) is None


@pytest.mark.parametrize(
    "asked",
    [{"routed_experts": 0}, {"routed_experts_format": "lists"}, {"routed_experts_start": 3}],
)
def test_what_0_33_does_not_have_is_refused_by_name(asked):
    class InputProcessor:
        def process_inputs(self, request_id, prompt, params, tasks, priority=0):
            return request_id, priority

    for _ in range(2):  # the second changes nothing
        _v033.refuse_asked(InputProcessor)
    plain = SimpleNamespace(extra_args={"other": 1})
    assert InputProcessor().process_inputs("a", [1], plain, (), priority=7) == ("a", 7)
    with pytest.raises(ValueError, match="vLLM 0.33 has no"):
        InputProcessor().process_inputs(
            "a", [1], params=SimpleNamespace(extra_args=asked), tasks=()
        )

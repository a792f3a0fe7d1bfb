"""An engine of stand-ins with the adapter's hooks around it: every row of every sequence."""

import base64
import json
import logging
import sys
import types

import engine as stand_in
import numpy as np
import pytest
import routecap
import torch
from engine import LAYERS, ROUTED, VOCABULARY, K, PaddingMode, Request, choose, right
from routecap_sglang import _checkpoints, _hooks
from routecap_sglang._batch import say_that_prefills_are_missing
from routecap_sglang._options import Options

draw = np.random.default_rng(5)
received = []


def tokens(n):
    return draw.integers(0, VOCABULARY, n).tolist()


def rows_of(engine, request):
    """The answer as [rows, layers that route, k]."""
    answer = np.frombuffer(base64.b64decode(engine.answer(request)), np.int32)
    answer = answer.reshape(-1, LAYERS, K)
    assert (answer[:, 1] == 0).all()
    return answer[:, ROUTED]


def test_on_a_device_that_pytorch_does_not_have_either_sglangs_own_stays(
    start, monkeypatch, caplog
):
    make, own = _hooks._make, types.SimpleNamespace()
    monkeypatch.setattr(
        _hooks,
        "_make",
        lambda *arguments: make(*arguments[:-1], {**arguments[-1], "device": "xpu"}),
    )
    assert start(own=own).capturer is own
    assert "runs on xpu, where routecap has no backend and PyTorch" in caplog.text


def test_the_log_says_that_it_captures(start, caplog):
    """Where the capturer is made; when plugins are loaded SGLang has not set up its log yet."""
    caplog.set_level(logging.INFO)
    start()
    assert "routecap captures routed experts in SGLang 0.5.23: <routecap.Capturer" in caplog.text


@pytest.mark.parametrize("without_kernels", ["0", "1"])
def test_every_row_of_a_batch_with_padding_and_chunks(start, monkeypatch, without_kernels):
    monkeypatch.setenv("ROUTECAP_WITHOUT_KERNELS", without_kernels)
    engine = start()
    by_copies = "routecap.torch.Capturer" in repr(engine.capturer.capturer)
    assert by_copies is (without_kernels == "1")
    requests = [Request(tokens(n), most=n % 7 + 1) for n in (1, 15, 16, 17, 40)]
    engine.generate(requests)
    for request in requests:
        got = rows_of(engine, request)
        assert (got == right(request)).all()
        assert (got[1:] != right(request)[:-1]).any((1, 2)).all()  # shifted by one


def test_a_ticket_gives_its_rows_once_and_what_is_lost_on_the_way_is_no_answer(start):
    engine = start()
    request = Request(tokens(5), most=1)
    engine.generate([request])
    assert engine.answer(request) is not None and engine.answer(request) is None


def test_rows_of_a_cached_prefix_are_those_of_who_computed_it(start):
    engine = start()
    first, second = Request(tokens(30), most=6), None
    engine.generate([first])
    second = Request(first.tokens[:33].tolist() + tokens(5), most=4)
    third = Request(second.tokens[:34].tolist() + tokens(2), most=1)
    assert engine.generate([second]) == [33]
    assert engine.generate([third]) == [34]
    assert (rows_of(engine, second) == right(second)).all()
    assert (rows_of(engine, third) == right(third)).all()


def test_a_prefix_may_be_taken_while_who_computes_it_goes_on(start):
    engine = start()
    first = Request(tokens(20), most=6)
    engine.prefill(first)
    engine.decode([first])
    second = Request(first.origin_input_ids.tolist() + tokens(5), most=2)
    assert engine.generate([second]) == [20]
    engine.decode([first])
    engine.finish(first)
    assert (rows_of(engine, second) == right(second)).all()
    assert (rows_of(engine, first) == right(first)).all()


def test_rows_of_one_that_was_aborted_serve_who_takes_its_prefix(start):
    engine = start()
    first = Request(tokens(20), most=6)
    engine.prefill(first)
    prompt = first.origin_input_ids.tolist()
    del first
    second = Request(prompt + tokens(3), most=2)
    assert engine.generate([second]) == [20]
    assert (rows_of(engine, second) == right(second)).all()


def test_one_that_went_away_leaves_nothing_open(start):
    engine = start()
    engine.tree.disable = True
    request = Request(tokens(20), most=6)
    engine.run("prefill", [request], [0], [20])
    before = engine.capturer.capturer.stats().requests_open
    del request
    after = engine.capturer.capturer.stats().requests_open
    assert after < before


def test_the_row_that_ran_ahead_of_a_stop_is_there_for_who_continues(start):
    """Under overlap scheduling the last token of a request may be input before its end is known."""
    engine = start()
    first = Request(tokens(10), most=3)
    engine.prefill(first)
    for _ in range(3):
        engine.decode([first])  # the third is the overshoot
    engine.finish(first)
    assert (rows_of(engine, first) == right(first)).all()
    second = Request(first.tokens.tolist() + tokens(4), most=1)
    assert engine.generate([second]) == [13]
    assert (rows_of(engine, second) == right(second)).all()


# Of a request with several answers SGLang computes the prompt first, and asks for no output. It stops
# at the first token, behind which a pass may have run ahead: the cache takes that token, and who was
# given it had no row for it.
@pytest.mark.parametrize("stop", (0, 2, None))
def test_rows_behind_a_stop_are_there_for_who_takes_their_kv(start, stop):
    engine = start()
    first = Request(tokens(10), most=5)
    engine.prefill(first)
    for _ in range(5):
        engine.decode([first])
    first.finished_len = stop
    engine.finish(first)
    rows = 10 + len(first.output_ids_through_stop) - 1
    assert (rows_of(engine, first) == choose(first.tokens[:rows])).all()
    second = Request(first.tokens.tolist() + tokens(4), most=1)
    assert engine.generate([second]) == [15]
    assert (rows_of(engine, second) == right(second)).all()


def test_what_is_gone_from_memory_is_missing_and_says_so(start):
    engine = start()
    first = Request(tokens(20), most=2)
    engine.generate([first])
    engine.capturer.prefixes.clear()
    parameters = {"routed_experts_dtype": "uint8"}
    second = Request(first.tokens[:20].tolist() + tokens(5), most=2, parameters=parameters)
    assert engine.generate([second]) == [20]
    answer = json.loads(engine.answer(second))
    ids = np.frombuffer(base64.b64decode(answer["data"]), np.uint8).reshape(answer["shape"])
    assert (ids[20:] == right(second)[20:]).all() and (ids[:20] == 255).all()
    assert [block[:2] for block in answer["missing"]] == [[0, 20]]


def test_a_flush_forgets_and_everything_is_computed_again(start):
    engine = start()
    first = Request(tokens(20), most=2)
    engine.generate([first])
    engine.tree.reset()
    assert engine.capturer.prefixes.rows == 0
    second = Request(first.origin_input_ids.tolist(), most=2)
    assert engine.generate([second]) == [0]
    assert (rows_of(engine, second) == right(second)).all()


def test_what_was_evicted_and_computed_again_has_the_later_rows(start):
    engine = start()
    first = Request(tokens(20), most=1)
    engine.generate([first])
    engine.tree.evict(first, first.tokens.tolist(), 8)
    engine.weights = 1  # so that who computed a row can be told
    second = Request(first.origin_input_ids.tolist(), most=1)
    assert engine.generate([second]) == [8]
    third = Request(first.origin_input_ids.tolist() + tokens(2), most=1)
    assert engine.generate([third]) == [20]
    got = rows_of(engine, third)
    assert (got[:8] == right(third)[:8]).all()
    assert (got[8:] == right(third, 1)[8:]).all()


@pytest.mark.parametrize("page_size", (1, 16, 64))
def test_prompts_that_differ_within_a_page_have_each_the_rows_of_its_own_kv(start, page_size):
    """The second one, of other weights, does not take the place of the first."""
    engine = start(page_size=page_size)
    shared, parameters = tokens(93), {"routed_experts_dtype": "routecap"}
    first = Request(shared + tokens(67), most=1)
    engine.generate([first])
    engine.weights = 1
    _hooks.named(None, None, "31")
    second = Request(shared + tokens(67), most=1)
    hit = 93 // page_size * page_size
    assert engine.generate([second]) == [hit]
    for before, new in ((first, 160), (second, hit)):
        third = Request(before.origin_input_ids.tolist() + tokens(2), parameters=parameters, most=1)
        cached = 160 // page_size * page_size
        assert engine.generate([third]) == [cached]
        routing = routecap.Routing.deserialize(base64.b64decode(engine.answer(third)))
        assert routing.complete
        old = [*range(min(new, cached))]
        assert (routing.ids()[old] == right(third)[old]).all()
        later = [*range(len(old), 162)]
        assert (routing.ids()[later] == right(third, 1)[later]).all()
        assert routing.tags.tolist() == [0] * len(old) + [31] * len(later)


def generated(engine, tokens, **settings):
    """A request that has ended, and its routing."""
    request = Request(tokens, most=1, parameters={"routed_experts_dtype": "routecap"}, **settings)
    engine.generate([request])
    return request, routecap.Routing.deserialize(base64.b64decode(engine.answer(request)))


# Such caches may put KV that was computed later in the place of what was told, and tell nobody.
@pytest.mark.parametrize(
    "kind", ("window", "state", "host", "decode", "storage", "linker", "class")
)
def test_over_an_update_without_a_flush_a_cache_that_is_not_followed_gives_no_rows(
    start, ranks, kind
):
    engine = start()
    tree = engine.tree
    if kind in ("window", "state"):
        tree.tree_components = (
            stand_in.Component.FULL,
            stand_in.Component.SWA if kind == "window" else stand_in.Component.MAMBA,
        )
    elif kind == "host":
        tree.cache_controller = object()
    elif kind == "decode":
        ranks.disaggregation = "decode"
    elif kind == "class":
        tree.__class__ = type("AnotherTree", (stand_in.Tree,), {})
    else:
        setattr(tree, "enable_storage" if kind == "storage" else "linker", True)
    first, _ = generated(engine, tokens(20))
    prompt = first.origin_input_ids.tolist()
    second, routing = generated(engine, prompt + tokens(3))
    assert routing.complete and (routing.ids() == right(second)).all()  # of one version all are
    engine.update(1)
    third, routing = generated(engine, prompt + tokens(3))
    assert not routing.mask()[:20].any() and routing.mask()[20:].all()
    engine.tree.reset()
    generated(engine, prompt)
    fourth, routing = generated(engine, prompt + tokens(3))
    outside = kind in ("storage", "linker", "class")  # where a flush does not reach
    assert routing.mask()[:20].all() != outside and routing.mask()[20:].all()
    if outside:
        _hooks.storage_cleared(True, tree)
        engine.tree.reset()
        generated(engine, prompt)
        _, routing = generated(engine, prompt + tokens(3))
    assert routing.complete and set(routing.tags.tolist()) == {1}


def test_a_name_behind_a_flush_says_nothing_of_what_the_cache_has(start):
    engine = start()
    engine.tree.cache_controller = object()
    generated(engine, tokens(20))
    engine.update(1)
    engine.tree.reset()
    _hooks.named(None, None, "7")
    first, _ = generated(engine, tokens(20))
    second, routing = generated(engine, first.origin_input_ids.tolist() + tokens(3))
    assert routing.complete and (routing.ids() == right(second, 1)).all()
    assert set(routing.tags.tolist()) == {7}


def test_kv_that_the_cache_got_from_elsewhere_is_nobodys(start):
    engine = start()
    first, _ = generated(engine, tokens(40))
    engine.tree.evict(first, first.tokens.tolist(), 8)
    loaded = stand_in.Key(first.tokens[:32], first)
    engine.tree.load(loaded)
    second, routing = generated(engine, first.tokens[:32].tolist() + tokens(3))
    assert routing.mask()[:, 0].tolist() == [True] * 8 + [False] * 24 + [True] * 3
    assert (routing.ids()[:8] == right(second)[:8]).all()


def test_a_session_that_ended_or_was_aborted_begins_with_the_tree_again(start):
    """Under the name of another one, whose KV is gone."""
    engine = start()
    session = types.SimpleNamespace(session_id="s")
    prompt = tokens(12)

    def keep(kept=True):
        first = Request(prompt, most=1, session=session)
        engine.run("prefill", [first], [0], [12])
        first.output_ids.append(1)
        _hooks.collect(engine.own_collect, None, first)
        _hooks.kept_by_session(kept, None, first)

    def after_an_update(end):
        keep()
        engine.tree.reset()  # which does not tell of sessions here
        keep()
        engine.update(engine.weights + 1)
        end()
        generated(engine, prompt)
        second, routing = generated(engine, prompt + tokens(3), session=session)
        assert routing.complete and (routing.ids() == right(second, engine.weights)).all()

    after_an_update(lambda: _hooks.released_by_session(None, None, "s"))
    engine.tree.reset()
    after_an_update(lambda: keep(False))


@pytest.mark.parametrize("kept", (0, 7, 25))
def test_one_that_was_retracted_is_computed_again(start, kept):
    engine = start()
    request = Request(tokens(20), most=9)
    engine.prefill(request)
    for _ in range(4):
        engine.decode([request])
    if kept < 20:
        engine.tree.evict(request, request.tokens.tolist(), kept)
    engine.retract(request)
    hit = engine.prefill(request)
    assert hit == min(kept, 20)
    for _ in range(3):
        engine.decode([request])
    engine.finish(request)
    assert (rows_of(engine, request) == right(request)).all()


def test_one_that_was_retracted_after_an_update_has_the_new_weights_rows(start):
    engine = start()
    request = Request(tokens(20), most=9, parameters={"routed_experts_dtype": "routecap"})
    engine.prefill(request)
    engine.decode([request])
    engine.tree.reset()
    engine.weights = 1
    _hooks.named(None, None, "31")
    engine.retract(request)
    engine.prefill(request)
    engine.decode([request])
    engine.finish(request)
    routing = routecap.Routing.deserialize(base64.b64decode(engine.answer(request)))
    assert (routing.ids() == right(request, 1)).all()
    assert set(routing.tags.tolist()) == {31}


def test_one_that_was_retracted_has_the_rows_of_the_kv_that_it_went_on_with(start):
    """Another computed the same tokens meanwhile, under new weights."""
    engine = start()
    first = Request(tokens(20), most=9, parameters={"routed_experts_dtype": "routecap"})
    engine.prefill(first)
    engine.tree.reset()
    engine.weights = 1
    _hooks.named(None, None, "31")
    engine.generate([Request(first.origin_input_ids.tolist(), most=1)])
    engine.retract(first)
    assert engine.prefill(first) == 19
    engine.decode([first])
    engine.finish(first)
    routing = routecap.Routing.deserialize(base64.b64decode(engine.answer(first)))
    assert (routing.ids() == right(first, 1)).all()
    assert set(routing.tags.tolist()) == {31}


def test_a_batch_of_one_that_was_retracted_is_a_new_batch(start):
    engine = start()
    request = Request(tokens(5), most=9)
    engine.prefill(request)
    engine.decode([request])
    engine.tree.reset()
    engine.retract(request)
    engine.prefill(request)
    for _ in range(2):
        engine.decode([request])
    engine.finish(request)
    assert (rows_of(engine, request) == right(request)).all()


def test_requests_that_were_aborted_leave_no_handle_open(start):
    engine = start()
    for _ in range(5):
        engine.prefill(Request(tokens(20)))
    stats = engine.capturer.capturer.stats()
    assert stats.requests_open == 0 and engine.capturer.prefixes.rows == 100


def test_a_decode_of_which_only_the_device_knows_the_positions(start):
    engine = start()
    request = Request(tokens(5), most=9)
    engine.prefill(request)
    for _ in range(3):
        request.output_ids.append(3)
        first = len(request.tokens) - 1
        row = choose(request.tokens)[-1:]
        position = torch.tensor([first])
        engine.run_rows("decode", [request], [None], [1], row, positions=position)
    request.output_ids.append(4)
    engine.finish(request)
    assert (rows_of(engine, request) == right(request)).all()


def test_weights_without_a_number_are_counted(start):
    engine = start()
    engine.update(1, "step-a")
    engine.update(2)
    assert engine.capturer.tag == 2 and engine.capturer.weight_version == ""


def test_a_tag_is_never_given_again_to_other_weights(start, caplog):
    """An update without a number took the next one, and a version of that number took it again."""
    engine, tags = start(), []
    versions = (None, "7", "abc", "8", "8", "9", "3", None, "99999999999999999999", "40")
    for weights, version in enumerate(versions):
        engine.update(weights, version)
        request = Request(tokens(5), most=1, parameters={"routed_experts_dtype": "routecap"})
        engine.generate([request])
        routing = routecap.Routing.deserialize(base64.b64decode(engine.answer(request)))
        assert (routing.ids() == right(request, weights)).all()
        tags += set(routing.tags.tolist())
    assert tags == [1, 7, 8, 9, 10, 11, 12, 13, 14, 40]
    assert "weight_version 8 is not above 8" in caplog.text
    _hooks.named(None, None, "40")  # said again
    assert engine.capturer.tag == 40


def test_parts_of_weights_between_which_nothing_is_computed_are_one_version(start):
    engine = start()
    for version in ("1", "2"):
        for _ in range(5):
            engine.update(0, version)
        assert engine.capturer.tag == int(version)
        engine.generate([Request(tokens(5), most=1)])


def test_weights_that_come_in_parts_are_those_of_the_name_that_follows(start):
    engine = start()
    session = types.SimpleNamespace(_session=types.SimpleNamespace(loaded_weights=True))
    for _ in range(3):
        engine.update(0)
        _hooks.updated_in_part(session, None, True, "")
    _hooks.updated_from_outside(session, None)
    assert engine.capturer.tag == 3
    _hooks.named(None, None, "7")
    assert engine.capturer.tag == 7


def test_an_update_that_fails_behind_the_weights_and_one_from_outside_count(start):
    engine = start()
    _hooks.updated_in_part(None, None, False, "the draft's")
    assert engine.capturer.tag == 1
    session = types.SimpleNamespace(_session=types.SimpleNamespace(loaded_weights=False))
    _hooks.updated_from_outside(session, None)
    assert engine.capturer.tag == 2
    _hooks.updated_from_outside(types.SimpleNamespace(_session=None), None)
    assert engine.capturer.tag == 2


def test_a_streaming_session_keeps_its_rows_apart_from_the_tree(start):
    engine = start()
    session = types.SimpleNamespace(session_id="s")
    first = Request(tokens(12), most=3, session=session)
    engine.run("prefill", [first], [0], [12])
    for _ in range(3):
        engine.decode([first])
    _hooks.collect(engine.own_collect, None, first)
    _hooks.kept_by_session(True, None, first)
    second = Request(first.tokens.tolist() + tokens(4), most=1, session=session)
    engine.run("prefill", [second], [14], [5])
    second.output_ids.append(3)
    _hooks.collect(engine.own_collect, None, second)
    assert (rows_of(engine, second) == right(second)).all()


def test_a_prefill_with_decoding_requests_in_it(start):
    engine = start()
    first, second = Request(tokens(9), most=5), Request(tokens(20), most=5)
    engine.prefill(first)
    first.output_ids.append(8)
    engine.run("prefill", [second, first], [0, 9], [16, 1])
    first.output_ids.append(9)
    engine.run("prefill", [second, first], [16, 10], [4, 1])
    for request in (first, second):
        request.output_ids.append(1)
        engine.finish(request)
        assert (rows_of(engine, request) == right(request)).all()


def test_routers_that_overwrite_their_ids_are_recorded_where_they_are(start):
    engine = start()
    engine.model.overwrites = True
    requests = [Request(tokens(n), most=4) for n in (5, 20)]
    engine.generate(requests)
    for request in requests:
        assert (rows_of(engine, request) == right(request)).all()
    assert not engine.capturer._forward.held.proven


def test_ids_are_recorded_at_once_where_they_stay(start):
    engine = start()
    engine.generate([Request(tokens(20), most=4)])
    assert engine.capturer._forward.held.recorded == len(ROUTED)


def test_a_stage_of_a_pipeline_has_the_rows_of_its_own_layers(start):
    engine = start()
    engine.model.stage = ROUTED[:2]
    request = Request(tokens(40), most=4)
    engine.generate([request])
    got = rows_of(engine, request)
    assert (got[:, :2] == right(request)[:, :2]).all() and (got[:, 2:] == -1).all()


def test_a_start_and_a_stop_within_the_output(start):
    engine = start()
    request = Request(tokens(9), most=5, start=4)
    engine.prefill(request)
    for _ in range(5):
        engine.decode([request])
    request.finished_len = 2
    engine.finish(request)
    assert (rows_of(engine, request) == choose(request.tokens)[4:10]).all()


def test_who_does_not_ask_gets_none_and_a_wrong_type_is_said(start, caplog):
    engine = start()
    silent = Request(tokens(9), most=1, asked=False)
    wrong = Request(tokens(9), most=1, parameters={"routed_experts_dtype": "float"})
    engine.generate([silent, wrong])
    assert silent.routed_experts is None and wrong.routed_experts is None
    assert "float" in caplog.text


def test_beside_the_engines_own_both_see_everything(start, tmp_path):
    class Own:
        def __init__(self):
            self.captured, self.ended, self.destroyed = [], 0, False

        def capture(self, layer_id, topk_indices):
            self.captured.append((layer_id, topk_indices.clone()))

        def on_forward_end(self, *args):
            self.ended += 1
            return self

        def map_device_tensors(self, copy):
            pass

        def finalize(self):
            self.finalized = True

        def get_topk(self):
            return "own"

        def destroy(self):
            self.destroyed = True

    own = Own()
    received.clear()
    options = {"folder": str(tmp_path), "callback": f"{__name__}:received.append"}
    engine = start(Options(beside=True, **options), own)
    request = Request(tokens(30), most=3)
    engine.generate([request])
    assert request.routed_experts == "own"
    engine.capturer._sinks.close()
    [saved] = routecap.load(tmp_path / f"{request.rid}.routecap").values()
    [finished] = received
    assert saved.routing == finished.routing
    assert (saved.routing.ids() == right(request)).all()
    engine.close()
    assert own.ended == 5 and len(own.captured) == 5 * len(ROUTED) and own.destroyed


# ---- Drafts


def test_of_a_chain_of_drafts_the_accepted_rows_stay(start, ranks):
    engine = start()
    requests = [Request(tokens(n)) for n in (5, 9)]
    for request in requests:
        engine.prefill(request)
        request.output_ids.append(1)
    for accepted in ((2, 1), (4, 3), (1, 4)):
        rows, positions = [], []
        for request, count in zip(requests, accepted, strict=True):
            drafts = tokens(3)
            if count > 1:
                drafts[: count - 1] = tokens(count - 1)
            first = len(request.tokens) - 1
            sequence = request.tokens.tolist() + drafts
            rows.append(choose(sequence)[first:])
            positions += range(first, first + 4)
            request.pending = [*drafts[: count - 1], int(draw.integers(VOCABULARY))]
        issued = engine.run_rows(
            "verify",
            requests,
            None or [0, 0],
            [4, 4],
            np.concatenate(rows),
            positions=torch.tensor(positions),
        )
        issued.map_device_tensors(lambda tensor: tensor)
        issued.finalize()
        kept = [request.pending for request in requests]
        _hooks.accept(kept, None, None, types.SimpleNamespace(reqs=requests))
        for request in requests:
            request.output_ids.extend(request.pending)
    for request in requests:
        engine.finish(request)
        assert (rows_of(engine, request) == right(request)).all()


def test_of_a_tree_whose_path_nobody_tells_the_rows_are_missing(start, ranks):
    ranks.topk = 2
    engine = start()
    request = Request(tokens(5))
    engine.prefill(request)
    request.output_ids.append(1)
    issued = engine.run_rows(
        "verify", [request], [0], [3], choose(tokens(3)), positions=torch.tensor([5, 6, 6])
    )
    issued.finalize()
    _hooks.accept([[8, 9]], None, None, types.SimpleNamespace(reqs=[request]))
    request.output_ids.extend([8, 9])
    engine.finish(request)
    got = rows_of(engine, request)
    assert (got[:5] == right(request)[:5]).all() and (got[5:] == -1).all()


@pytest.mark.parametrize("ngram", (False, True))
def test_of_a_tree_of_drafts_the_accepted_path_stays(start, ranks, ngram):
    """Each request verifies a root and two drafts for each of two positions. Who guesses by n-grams
    says the path only where KV is moved, and does not carry what was captured."""
    ranks.topk = 2
    engine = start()
    requests = [Request(tokens(n)) for n in (5, 9)]
    for request in requests:
        engine.prefill(request)
        request.output_ids.append(1)
    rows, positions, paths = [], [], []
    for i, (request, branch) in enumerate(zip(requests, (0, 1), strict=True)):
        sequence, first = request.tokens.tolist(), len(request.tokens) - 1
        branches = [tokens(2), tokens(2)]
        nodes = [choose(sequence)[first:]]
        nodes += [choose(sequence + each)[first + 1 :] for each in branches]
        rows += [nodes[0], nodes[1][:1], nodes[2][:1], nodes[1][1:], nodes[2][1:]]
        positions += [first, first + 1, first + 1, first + 2, first + 2]
        paths.append([5 * i, 5 * i + 1 + branch, 5 * i + 3 + branch])
        request.pending = [*branches[branch], 7]
    issued = engine.run_rows(
        "verify", requests, [0, 0], [5, 5], np.concatenate(rows), positions=torch.tensor(positions)
    )
    result = types.SimpleNamespace(routed_experts_output=issued, accept_index=torch.tensor(paths))
    if ngram:
        _hooks.keep_moved_paths(None, result.accept_index, None, None)
        result.routed_experts_output = result.accept_index = None
        _hooks.carry_drafts(result, None)
        assert result.routed_experts_output is issued
    _hooks.keep_paths(result)
    issued.map_device_tensors(lambda tensor: tensor.clone())
    issued.finalize()
    kept = [request.pending for request in requests]
    _hooks.accept(kept, None, None, types.SimpleNamespace(reqs=requests))
    for request in requests:
        request.output_ids.extend(request.pending)
        engine.finish(request)
        assert (rows_of(engine, request) == right(request)).all()


# ---- Ranks


@pytest.mark.parametrize("in_graph", (False, True))
def test_under_data_parallel_attention_a_rank_has_its_own_slice(start, ranks, in_graph):
    ranks.num_dp_ranks, ranks.dp_rank = 2, 1
    engine = start()
    request = Request(tokens(6))
    rows = choose(request.tokens)
    engine.run_rows("prefill", [request], [0], [6], rows, before=4)
    for _ in range(3):
        request.output_ids.append(3)
        row = choose(request.tokens)[-1:]
        engine.run_rows(
            "decode", [request], [len(request.tokens) - 1], [1], row, before=4, in_graph=in_graph
        )
    request.output_ids.append(4)
    engine.finish(request)
    assert (rows_of(engine, request) == right(request)).all()


def test_a_prefill_graph_under_data_parallel_attention(start, ranks, caplog):
    say_that_prefills_are_missing.cache_clear()
    ranks.num_dp_ranks, ranks.dp_rank = 2, 1
    engine = start()
    request = Request(tokens(6))
    graph = {"before": 8, "in_graph": True, "padding_mode": PaddingMode(most=True), "decodes": 3}
    engine.run_rows("prefill", [request], [0], [6], choose(request.tokens), **graph)
    for _ in range(2):  # beside a prefill of the other rank
        request.output_ids.append(3)
        row = choose(request.tokens)[-1:]
        engine.run_rows("decode", [request], [len(request.tokens) - 1], [1], row, **graph)
    request.output_ids.append(4)
    engine.finish(request)
    assert (rows_of(engine, request) == right(request)).all()
    assert not caplog.text


@pytest.mark.parametrize("release, most", (("0.5.23", False), ("0.5.22", True)))
def test_a_prefill_graph_whose_padding_nobody_says_has_no_rows(
    start, ranks, caplog, monkeypatch, release, most
):
    say_that_prefills_are_missing.cache_clear()
    ranks.num_dp_ranks, ranks.dp_rank = 2, 1
    number = tuple(map(int, release.split(".")))
    buckets = _checkpoints.design(release, number).buckets
    monkeypatch.setattr(_hooks, "_design", _hooks.design()._replace(buckets=buckets))
    engine = start()
    for _ in range(2):
        request = Request(tokens(6))
        rows = choose(request.tokens)
        graph = {"before": 4, "in_graph": True, "padding_mode": PaddingMode(most)}
        engine.run_rows("prefill", [request], [0], [6], rows, **graph)
        request.output_ids.append(4)
        engine.finish(request)
        assert request.routed_experts is None
    assert caplog.text.count("--disable-prefill-cuda-graph") == 1


def test_rows_that_an_attention_group_scatters_are_gathered(start, ranks):
    ranks.scattered, ranks.attn_tp_size = True, 2
    engine = start(padding=0)
    request = Request(tokens(8))
    rows = choose(request.tokens)

    def forward(input_ids, positions, forward_batch, **more):
        for i, layer in enumerate(ROUTED):
            ids = torch.from_numpy(rows[:, i].copy())
            ranks.parts = [ids[:4], ids[4:]]
            engine.capturer.capture(layer_id=layer, topk_indices=ids[:4])

    engine.model.forward = engine.capturer._forward.around(forward, engine.capturer.softly)
    engine.run_rows("prefill", [request], [0], [8], rows)
    request.output_ids.append(4)
    engine.finish(request)
    assert (rows_of(engine, request) == right(request)).all()


def test_a_rank_that_has_no_requests_only_does_the_same_work(start, ranks):
    ranks.attn_tp_rank, ranks.attn_tp_size = 1, 2
    engine = start()
    request = Request(tokens(8), most=3)
    engine.generate([request])
    assert request.routed_experts is None
    assert engine.capturer.capturer.role is routecap.Role.MIRROR


def test_on_another_host_rows_travel_in_the_message(start, ranks):
    ranks.nnodes, ranks.node_rank = 2, 1
    engine = start()
    request = Request(tokens(8), most=3)
    engine.generate([request])
    assert engine.capturer._outbox is None
    assert (rows_of(engine, request) == right(request)).all()


def test_a_verification_that_is_padded_has_the_rows_of_its_drafts(start, ranks):
    ranks.drafts = 4
    engine = start(padding=4)
    requests = [Request(tokens(6)), Request(tokens(9))]
    for each in requests:
        engine.run_rows("prefill", [each], [0], [len(each.tokens)], choose(each.tokens))
        each.output_ids.append(3)
    accepted = [tokens(2), tokens(3)]
    firsts = [6, 9]
    rows = [
        choose(each.tokens.tolist() + [*some, 5, 6][:3])[first:]
        for each, some, first in zip(requests, accepted, firsts)
    ]
    positions = [first + torch.arange(4) for first in firsts]
    issued = engine.run_rows(
        "verify",
        requests,
        [0, 0],
        [4, 4],
        np.concatenate(rows),
        positions=torch.cat([*positions, torch.zeros(4, dtype=torch.int64)]),
    )
    issued.finalize()
    _hooks.accept(
        [[*each, 9] for each in accepted], None, None, types.SimpleNamespace(reqs=requests)
    )
    for each, some in zip(requests, accepted):
        each.output_ids.extend([*some, 9])
        engine.finish(each)
        assert (rows_of(engine, each) == right(each)).all()


def test_drafts_under_data_parallel_attention(start, ranks):
    ranks.num_dp_ranks, ranks.dp_rank = 2, 1
    engine = start()
    request = Request(tokens(6))
    engine.run_rows("prefill", [request], [0], [6], choose(request.tokens), before=4)
    request.output_ids.append(3)
    accepted = tokens(2)
    rows = choose(request.tokens.tolist() + [*accepted, 5])[6:]
    issued = engine.run_rows(
        "verify", [request], [0], [4], rows, before=4, positions=torch.arange(6, 10)
    )
    issued.finalize()
    _hooks.accept([[*accepted, 9]], None, None, types.SimpleNamespace(reqs=[request]))
    request.output_ids.extend([*accepted, 9])
    engine.finish(request)
    assert (rows_of(engine, request) == right(request)).all()


@pytest.mark.parametrize("kind", ("idle", "dllm"))
def test_passes_of_nobody_have_no_rows(start, kind):
    engine = start()
    request = Request(tokens(6))
    assert engine.run_rows(kind, [request], [0], [6], choose(request.tokens)) is None
    assert getattr(request, "routecap", None) is None


def test_a_forward_that_context_parallelism_divides_has_no_rows(start):
    engine = start()
    request = Request(tokens(6))
    engine.divided = True
    engine.run("prefill", [request], [0], [6])
    assert getattr(request, "routecap", None) is None


def test_a_router_that_sees_a_part_of_a_pass_has_no_rows_in_it(start, caplog):
    engine = start(padding=0)
    request, other = Request(tokens(6)), Request(tokens(6))
    route = engine.capturer.route

    def cut(layer, ids, weights=None):
        route(layer, ids[2:] if layer == ROUTED[1] else ids, weights)

    engine.capturer.route = cut
    engine.run_rows("prefill", [request], [0], [6], choose(request.tokens))
    del engine.capturer.route
    engine.run_rows("prefill", [other], [0], [6], choose(other.tokens))
    for each in (request, other):
        each.output_ids.append(4)
        engine.finish(each)
    found = rows_of(engine, request)
    assert (found[:, 1] == -1).all()
    found[:, 1] = right(request)[:, 1]
    assert (found == right(request)).all() and (rows_of(engine, other) == right(other)).all()
    assert "saw 4 of a pass's 6 rows" in caplog.text


def test_a_beam_search_has_no_rows_and_others_beside_it_have_theirs(start):
    engine = start()
    search, request = Request(tokens(6)), Request(tokens(9))
    search.sampling_params.beam_width = 2
    firsts, counts = [0, 0], [6, 9]
    rows = [choose(each.tokens) for each in (search, request)]
    engine.run_rows("prefill", [search, request], firsts, counts, np.concatenate(rows))
    for _ in range(3):
        for each in (search, request):
            each.output_ids.append(3)
        firsts = [len(each.tokens) - 1 for each in (search, request)]
        rows = [choose(each.tokens)[-1:] for each in (search, request)]
        engine.run_rows("decode", [search, request], firsts, [1, 1], np.concatenate(rows))
    for each in (search, request):
        engine.finish(each)
    assert search.routed_experts is None
    assert (rows_of(engine, request) == right(request)).all()


def test_what_the_model_routes_counts_where_the_configuration_denies_it(ranks, caplog):
    from routecap_sglang._capturer import settings_of

    model = stand_in.Model()
    model.layers.append(stand_in.TopK(1))
    model.layers.append(stand_in.TopK(0, allowed=False))
    settings, layers = settings_of(_hooks._routers_of(model), stand_in.CONFIG)
    assert settings["layer_map"] == [0, 1, 2, 3, 4] and layers == 5
    assert settings["layer_experts"] == [40] * 5 and "[1]" in caplog.text


def test_each_layer_has_its_k_and_layers_that_run_again_are_refused_by_name():
    from routecap_sglang._capturer import settings_of

    blocks = [
        {"block_type": "moe", "n_routed_experts": 16, "num_experts_per_tok": k} for k in (1, 4)
    ]
    settings, _ = settings_of({0, 1}, {"block_configs": blocks})
    assert settings["k"] == 4 and settings["layer_k"] == [1, 4]
    with pytest.raises(ValueError, match="layer 6 of the decoder runs several times"):
        settings_of(set(), {"model_type": "inkling2_loop_text"})


def test_two_banks_of_experts_in_a_layer_are_refused_by_name():
    """What routed first, the text of a batch, was kept as the first rows of the pass, and what
    routed second left out: behind an image, a token of text had the ids of another."""
    from routecap_sglang._capturer import settings_of

    for kind in ("ernie4_5_vl_moe_text", "ernie4_5_moe_vl"):
        with pytest.raises(ValueError, match="layer . of the decoder has 2 banks of experts"):
            settings_of({1, 2}, {"model_type": kind, "moe_num_experts": [64, 64]})


# ---- Failing softly


def test_a_failure_ends_capture_and_not_the_engine(start, caplog, monkeypatch):
    engine = start()
    request = Request(tokens(6), most=4)
    engine.prefill(request)

    def fail(*args, **kwargs):
        raise RuntimeError("on purpose")

    monkeypatch.setattr(engine.capturer.capturer, "issue", fail)
    for _ in range(3):
        engine.decode([request])
    engine.finish(request)
    assert request.routed_experts is None
    assert caplog.text.count("capture ends here") == 1


def test_without_the_servers_flag_there_is_nothing_but_what_was_there(
    start, ranks, tmp_path, caplog
):
    ranks.enabled = False
    nothing = _hooks.create(lambda **kwargs: None, model=stand_in.Model())
    assert nothing is None and _hooks._capturer is None
    engine = start(Options(folder=str(tmp_path)))
    assert "--enable-return-routed-experts" in caplog.text
    request = Request(tokens(6), most=2, asked=False)
    engine.generate([request])
    engine.close()
    assert (tmp_path / f"{request.rid}.routecap").exists()


def test_what_routecap_cannot_capture_the_engines_own_does(start, monkeypatch, caplog):
    monkeypatch.setitem(stand_in.CONFIG, "num_experts_per_tok", None)
    engine = start(own="own")
    assert engine.capturer == "own" and _hooks._capturer is None
    assert "SGLang's own does" in caplog.text
    engine.capturer = None


def test_a_pass_that_is_too_large_has_no_rows(start, caplog):
    engine = start(chunk=200)
    request = Request(tokens(120), most=1)
    engine.generate([request])
    assert "too large" in caplog.text
    assert rows_of(engine, request).tolist() == np.full((120, len(ROUTED), K), -1).tolist()


def test_a_compiled_model_calls_an_op(start):
    engine = start()
    capturer, ids = engine.capturer, torch.zeros(4, K, dtype=torch.int32)

    @torch.compile(backend="eager", fullgraph=True)
    def region(x):
        capturer.capture(0, x + 1)
        return x * 2

    capturer._forward.begin(4)
    region(ids)
    assert 0 in capturer._forward.held._copies
    capturer._forward.end()


# ---- What the scheduler's thread does


def work(call):
    """How many instructions of Python it takes."""
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def test_a_step_in_which_nothing_happens_costs_the_same_for_any_number_of_requests(start):
    counts = []
    for n in (1, 16):
        engine = start()
        requests = [Request(tokens(4), most=9) for _ in range(n)]
        for request in requests:
            engine.prefill(request)
        forward = None

        def keep(batch, *arguments, keep=engine.capturer.on_forward_end):
            nonlocal forward
            forward = (batch, *arguments)
            return keep(*forward)

        engine.capturer.on_forward_end = keep
        for _ in range(3):
            engine.decode(requests)
        batch, *arguments = forward
        del engine.capturer.on_forward_end
        result = types.SimpleNamespace(routed_experts_output=None)

        def step():
            _hooks.name_requests(batch, None, types.SimpleNamespace(reqs=list(requests)))
            _hooks.keep_paths(result)
            assert engine.capturer.on_forward_end(batch, *arguments) is None

        engine.capturer.capturer.begin(n)
        engine.capturer.capturer.snapshot()
        counts.append(work(step))
    assert counts[0] == counts[1] > 50


@pytest.mark.slow
def test_an_end_costs_the_same_at_any_length(start):
    counts = []
    for n in (5, 600):
        engine = start()
        request = Request(tokens(n), most=1)
        engine.prefill(request)
        request.output_ids.append(1)
        counts.append(work(lambda: _hooks.collect(engine.own_collect, None, request)))
        assert len(request.routed_experts) < 300
        assert (rows_of(engine, request) == right(request)).all()
    assert counts[0] == counts[1] > 50

"""A name of SGLang's that the adapter does not find is refused, and never an answer.

An adapter of another library once asked for an argument that its library had renamed, found nothing,
and took that for "there is none": every row was there, and at the wrong position.
"""

import base64

import engine as stand_in
import numpy as np
import released
import routecap_sglang
import torch
from engine import LAYERS, ROUTED, K, Request, choose, right
from routecap_sglang import _hooks
from watched import Watched


def test_a_function_or_field_that_sglang_renamed_is_named_and_sglangs_own_captures(
    start,
    registry,
    monkeypatch,
    caplog,
):
    """Each of what is hooked and of what is read, one at a time, in a copy of SGLang's source."""
    monkeypatch.setenv("ROUTECAP_SGLANG", "1")
    monkeypatch.setattr(_hooks, "_design", None)
    routecap_sglang.plugin()
    design = _hooks.design()
    functions = design.functions
    hooked = {target for target, _, _ in registry.hooks}
    assert hooked == functions.keys() - {f"sglang.srt.{design.breaks}"} and len(hooked) == 20
    for name in functions:
        released.put(monkeypatch, name)
    assert start(own="own").capturer != "own"  # as it is
    renamed = 0
    for name, parts in {**functions, **design.fields}.items():
        last = name.rpartition(".")[2]
        for part in (last, *parts):
            with monkeypatch.context() as patch:
                assert released.put(patch, name, **{part: "renamed"})
                caplog.clear()
                engine = start(own="own")
                engine.close()
                assert engine.capturer == "own" and _hooks._capturer is None, (name, part)
                assert name in caplog.text and part in caplog.text
                assert "SGLang's own does" in caplog.text
            renamed += 1
    assert renamed > 60


class Served:
    """A run of all that the adapter follows. `answers` are those of requests that ended: what a
    client gets, and the weights that computed it."""

    def __init__(self, start, ranks, folder):
        ranks.enable_hierarchical_cache, ranks.topk = True, 2
        self.answers, draw = [], np.random.default_rng(3)

        def tokens(n):
            return draw.integers(0, stand_in.VOCABULARY, n).tolist()

        engine = self.engine = start()
        if not hasattr(engine.capturer, "capturer"):
            return
        shared, session = tokens(20), stand_in.Session(session_id="s")
        self.ended(Request(shared, most=2))
        for name in ("extra_key", "cache_salt"):  # of adapters, whose KV is their own
            engine.weights += 1
            adapted = [Request(shared, most=n + 1) for n in range(2)]
            for each in adapted:
                setattr(each, name, "another")
            self.ended(*adapted)
        engine.weights = 0
        engine.divided = True  # the rank has other rows than this pass says
        divided = Request(tokens(6))
        engine.run_rows("prefill", [divided], [0], [6], choose(tokens(6)))
        divided.output_ids.append(1)
        engine.divided = False
        self.end(divided)
        drafted = Request(tokens(5))
        engine.prefill(drafted)
        drafted.output_ids.append(1)
        nodes = [choose(drafted.tokens)[-1:], choose(tokens(2))]
        result = stand_in.GenerationBatchResult(
            routed_experts_output=engine.run_rows(
                "verify",
                [drafted],
                [0],
                [3],
                np.concatenate(nodes),
                positions=torch.tensor([5, 6, 6]),
            ),
            accept_index=torch.tensor([[0]]),
        )
        _hooks.carry_drafts(result, None)
        _hooks.keep_paths(result)
        if result.routed_experts_output is not None:
            result.routed_experts_output.finalize()
        _hooks.accept([[7]], None, result, stand_in.ScheduleBatch(reqs=[drafted]))
        drafted.output_ids.append(7)
        self.end(drafted)
        talk = Request(tokens(8), most=2, session=session)
        engine.run("prefill", [talk], [0], [8])
        talk.output_ids.append(2)
        self.end(talk)
        _hooks.kept_by_session(True, None, talk)
        again = Request(talk.tokens.tolist() + tokens(2), most=1, session=session)
        engine.run("prefill", [again], [8], [3])
        again.output_ids.append(2)
        self.end(again)
        retracted = Request(tokens(9), most=9)
        engine.prefill(retracted)
        engine.tree.reset()
        engine.update(1, "7")
        _hooks.updated_from_outside(
            stand_in.Updater(_session=stand_in.Loading(loaded_weights=False)), None
        )
        engine.retract(retracted)
        engine.prefill(retracted)
        engine.decode([retracted])
        self.end(retracted)

    def ended(self, *requests):
        for each in requests:
            self.engine.generate([each])
            self.answers.append((each, self.engine.weights))

    def end(self, request):
        self.engine.finish(request)
        self.answers.append((request, self.engine.weights))

    def rows(self):
        """How many cells were answered, all of them right."""
        cells = 0
        for request, weights in self.answers:
            answer = self.engine.answer(request)
            if answer is None:
                continue
            got = np.frombuffer(base64.b64decode(answer), np.int32).reshape(-1, LAYERS, K)
            got = got[:, ROUTED]
            there = (got != -1).all(-1)
            assert (got[there] == right(request, weights)[there]).all()
            cells += int(there.sum())
        return cells


def test_of_no_attribute_that_the_adapter_does_not_find_it_makes_a_row(
    start, ranks, monkeypatch, tmp_path, caplog
):
    """Each that it asks any object of SGLang's for, one at a time."""
    Watched.asked.clear()
    whole = Served(start, ranks, tmp_path).rows()
    asked = sorted(Watched.asked - {("ForwardBatch", "routecap"), ("Request", "routecap")})
    assert whole > 300 and len(asked) > 60
    for i, what in enumerate(asked):
        monkeypatch.setattr(Watched, "lacks", what)
        caplog.clear()
        folder = tmp_path / str(i)
        folder.mkdir()
        refusal = ""
        try:
            assert Served(start, ranks, folder).rows() < whole, what
        except AttributeError as error:
            refusal = str(error)
        assert what[1] in caplog.text + refusal, what

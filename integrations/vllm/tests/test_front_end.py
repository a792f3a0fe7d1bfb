"""The front end: where rows come into outputs, with stand-ins of vLLM's states and outputs. In a
step in which nothing happens to a request no function of ours runs for it."""

import base64
import dataclasses
import io
import pickle
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from calls import calls_in

import routecap
from routecap_vllm import _by_request, _by_slot, _front_end, _transport
from routecap_vllm._results import PendingRoutedExperts

PROMPT = [1, 2, 3]
IDS = (np.arange(9 * 2)[:, None] * 5 % 16 + np.arange(3)).reshape(9, 2, 3).astype(np.int16)
STOP, LENGTH, ABORT = "stop", "length", "abort"


def rows_of(count, ids=IDS):
    routing = routecap.Routing.from_arrays(ids[:count], experts=32)
    return PendingRoutedExperts(routing, (count, 2, 3), -1)


# ---- The engine's front end, as far as it is looked at


class Detokenizer:
    """Each token is a word; a word of `stop` ends the request."""

    def __init__(self, stop):
        self.stop, self.tokens = stop, []

    def update(self, tokens):
        self.tokens += tokens
        return next((f"w{token}" for token in tokens if f"w{token}" in self.stop), None)

    def num_output_tokens(self):
        return len(self.tokens)


class Queue:
    def __init__(self):
        self.output = None

    def put(self, output):
        if self.output is None or isinstance(output, Exception):
            self.output = output
        else:
            self.output.add(output)

    def take(self):
        output, self.output = self.output, None
        return output


@dataclasses.dataclass
class CompletionOutput:
    index: int
    token_ids: list
    routed_experts: object = None
    finish_reason: object = None


class RequestOutput:
    def __init__(self, outputs, finished, prompt_routed_experts=None):
        self.outputs, self.finished = outputs, finished
        self.prompt_routed_experts = prompt_routed_experts

    def add(self, further):
        self.finished |= further.finished
        if further.prompt_routed_experts is not None:
            self.prompt_routed_experts = further.prompt_routed_experts
        for each in further.outputs:
            same = [mine for mine in self.outputs if mine.index == each.index]
            for mine in same:
                mine.token_ids = mine.token_ids + each.token_ids
                mine.finish_reason = each.finish_reason
            self.outputs += [] if same else [each]


class Parent:
    """Of the requests that one prompt became; their outputs are given at once."""

    def __init__(self, names):
        self.request_id, self.child_requests, self.ended = "parent", set(names), {}

    def get_outputs(self, name, completion):
        if completion.finish_reason is not None:
            self.child_requests.discard(name)
        self.ended[completion.index] = completion
        return [] if self.child_requests else [self.ended[i] for i in sorted(self.ended)]


class State21:
    def __init__(self, request, queue, parent):
        self.request_id, self.sampling = request.request_id, request.sampling_params
        self.prompt_token_ids, self.prompt_len = PROMPT, len(PROMPT)
        self.index, self.queue, self.parent_req = request.index, queue, parent
        self.detokenizer = Detokenizer(self.sampling.stop)
        self.routed_experts_chunks = []
        self.lasting = request.resumable

    @classmethod
    def from_new_request(cls, tokenizer, request, queue, parent):
        return cls(request, queue, parent)

    def make_request_output(
        self, new_token_ids, pooling_output, finish_reason, stop_reason, kv=None, more=None
    ):
        if finish_reason is None and self.sampling.final:
            return None
        made = self._new_completion_output(new_token_ids, finish_reason, stop_reason, more)
        outputs, finished = [made], finish_reason is not None
        if self.parent_req is not None:
            outputs = self.parent_req.get_outputs(self.request_id, made)
            finished = not self.parent_req.child_requests
        return self._new_request_output(self.request_id, outputs, finished) if outputs else None

    def _new_completion_output(self, tokens, finish_reason, stop_reason, more=None):
        return CompletionOutput(self.index, list(tokens), more, finish_reason)

    def _new_request_output(self, name, outputs, finished):
        return RequestOutput(outputs, finished)


class State26(State21):
    def _new_completion_output(self, tokens, finish_reason, stop_reason, more=None):
        made = super()._new_completion_output(tokens, finish_reason, stop_reason)
        if finish_reason is not None and self.routed_experts_chunks:
            made.routed_experts = np.concatenate(self.routed_experts_chunks)
        return made


class Processor:
    state = State21

    def __init__(self):
        self.request_states, self.parent_requests, self.external_req_ids = {}, {}, {}

    def add(self, name, queue=None, parent=None, index=0, resumable=False, final=False, **asked):
        extra = {f"routed_experts_{key}": value for key, value in asked.items() if key != "stop"}
        sampling = SimpleNamespace(
            stop=asked.get("stop", ()),
            extra_args=extra,
            final=final,
            routed_experts_prompt_start=0,
        )
        request = SimpleNamespace(
            request_id=name, sampling_params=sampling, index=index, resumable=resumable
        )
        made = self.state.from_new_request(None, request, queue, parent)
        self.request_states[name] = made
        self.external_req_ids[f"user's {name}"] = [name]
        if parent is not None:
            self.parent_requests[parent.request_id] = parent
        return made

    def process_outputs(self, outputs):
        made, to_abort = [], []
        for each in outputs:
            state = self.request_states.get(each.request_id)
            if state is None:
                continue
            if each.routed_experts is not None:
                state.routed_experts_chunks.append(each.routed_experts)
            reason, text = each.finish_reason, state.detokenizer.update(each.new_token_ids)
            if text:
                reason = STOP
            parameters = (each.new_token_ids, None, reason, text, None, each.routed_experts)
            output = state.make_request_output(*parameters)
            if output is not None and state.queue is not None:
                state.queue.put(output)
            elif output is not None:
                made.append(output)
            if reason is not None and not state.lasting:
                del self.request_states[each.request_id]
                to_abort += [] if each.finished else [each.request_id]
        return SimpleNamespace(request_outputs=made, reqs_to_abort=to_abort)

    def abort_requests(self, names, internal):
        for name in names if internal else sum(map(self.external_req_ids.get, names), []):
            state = self.request_states.pop(name)
            output = state.queue and state.make_request_output(
                new_token_ids=[], pooling_output=None, finish_reason=ABORT, stop_reason=None
            )
            if output is not None:
                state.queue.put(output)

    def propagate_error(self, error):
        for state in self.request_states.values():
            state.queue.put(error)

    def has_unfinished_requests(self):
        return bool(self.request_states)

    def get_num_unfinished_requests(self):
        return len(self.request_states)


def out(name, *tokens, reason=None, rows=None):
    return SimpleNamespace(
        request_id=name,
        new_token_ids=list(tokens),
        finish_reason=reason,
        finished=reason is not None,
        routed_experts=rows,
    )


@pytest.fixture
def make(monkeypatch):
    """make("0.21" or "0.26"): a processor of an engine that captures, with that face."""
    monkeypatch.setattr(_front_end, "_captures", True)
    monkeypatch.setattr(_front_end, "on_both_sides", lambda: True)
    completion = type("CompletionOutput", (CompletionOutput,), {})
    request = type("RequestOutput", (RequestOutput,), {})
    for cls in (completion, request):
        monkeypatch.setitem(globals(), cls.__name__, cls)
        cls.__qualname__ = cls.__name__

    def made(version):
        base = State21 if version == "0.21" else State26
        state = type("State", (base,), {})
        processor = type("Processor", (Processor,), {"state": state})
        classes = SimpleNamespace(RequestState=state, OutputProcessor=processor)
        outputs = SimpleNamespace(CompletionOutput=completion, RequestOutput=request)
        for _ in range(2):  # the second changes nothing
            if version == "0.21":
                _by_request.look_later(outputs, classes)
            else:
                inputs = SimpleNamespace(InputProcessor=type("Inputs", (), {}))
                _by_slot.look_later(outputs, classes, inputs)
        return processor()

    return made


def all_rows(output):
    """Of a request, from wherever its face has them."""
    parts = (output.prompt_routed_experts, output.outputs[0].routed_experts)
    return np.concatenate([each for each in parts if each is not None])


BOTH = pytest.mark.parametrize("version", ["0.21", "0.26"])


# ---- What is called


@BOTH
@pytest.mark.parametrize("kind", ["final", "stream", "stream that nobody takes"])
def test_a_step_calls_as_much_for_many_requests_as_for_few(make, version, kind):
    found = []
    for count in (8, 64):
        processor = make(version)
        names = [f"r{i}" for i in range(count)]
        for name in names:
            queue = None if kind == "final" else Queue()
            processor.add(name, queue, final=kind == "final")
        step = [out(name, 7) for name in names]
        processor.process_outputs(step)
        for state in processor.request_states.values() if kind == "stream" else ():
            state.queue.take()
        calls = calls_in(lambda p=processor, s=step: p.process_outputs(s))
        assert processor.get_num_unfinished_requests() == count
        found.append({key: n for key, n in calls.items() if "<listcomp>" not in key})
    assert found[0] == found[1] and sum(found[0].values()) <= 2, found


# ---- What comes


@BOTH
def test_rows_become_an_array_when_they_are_read_and_others_have_none(make, version):
    processor = make(version)
    processor.add("a")
    processor.add("b")
    rows = rows_of(4)
    last = [out("a", 8, reason=LENGTH, rows=rows), out("b", 8)]
    others = processor.process_outputs([out("a", 7), out("b", 7)]).request_outputs
    a, b = processor.process_outputs(last).request_outputs
    for each in (*others, b):
        assert each.outputs[0].routed_experts is None and each.prompt_routed_experts is None
        assert each.outputs[0].routed_experts_validity is None
    assert rows._array is None
    np.testing.assert_array_equal(all_rows(a), IDS[:4])
    assert len(a.outputs[0].routed_experts) == (1 if version == "0.21" else 4)
    assert a.outputs[0].routed_experts_validity.all()
    np.testing.assert_array_equal(all_rows(pickle.loads(pickle.dumps(a))), IDS[:4])
    copy = dataclasses.replace(a.outputs[0], index=3)
    np.testing.assert_array_equal(copy.routed_experts, a.outputs[0].routed_experts)
    a.outputs[0].routed_experts = None  # by whoever has it
    assert a.outputs[0].routed_experts is None


@BOTH
def test_rows_are_as_asked_for(make, version, monkeypatch, tmp_path):
    monkeypatch.setenv("ROUTECAP_VLLM_FOLDER", str(tmp_path))
    processor = make(version)
    processor.add("a", start=2, dtype="uint8")
    processor.add("b", format="npy.base64")
    sent = _transport.to_bytes(rows_of(5))  # from an engine in another process
    step = [
        out("a", 7, 8, 9, reason=LENGTH, rows=sent),
        out("b", 7, 8, 9, reason=LENGTH, rows=sent),
    ]
    a, b = processor.process_outputs(step).request_outputs
    assert all_rows(a).dtype == np.uint8
    np.testing.assert_array_equal(all_rows(a), IDS[2:5])
    answer = b.outputs[0].routed_experts
    np.testing.assert_array_equal(np.load(io.BytesIO(base64.b64decode(answer))), IDS[:5])


def test_formats_of_0_26_have_the_layers_that_its_arrays_have(make):
    processor = make("0.26")
    rows = PendingRoutedExperts(rows_of(5).routing, (5, 2, 3), -1, decoder_layers=3)
    sent = _transport.to_bytes(rows)
    formats = ("lists", "npy.base64", "raw.base64")
    for name in formats:
        processor.add(name, format=name)
    found = processor.process_outputs(
        [out(name, 7, 8, 9, reason=LENGTH, rows=sent) for name in formats]
    ).request_outputs
    lists, npy, raw = (each.outputs[0].routed_experts for each in found)
    arrays = [np.array(lists), np.load(io.BytesIO(base64.b64decode(npy)))]
    arrays.append(np.frombuffer(base64.b64decode(raw), np.int16).reshape(5, 3, 3))
    for array in arrays:
        np.testing.assert_array_equal(array[:, :2], IDS[:5])
        assert not array[:, 2].any()  # a layer without a router


# In uint8 these columns were 255, so that no answer of a model with 256 experts could be written.
def test_a_layer_without_a_router_lacks_no_cell_where_every_number_is_an_expert(make):
    processor = make("0.26")
    routing = routecap.Routing.from_arrays(IDS[:5], experts=256)
    rows = PendingRoutedExperts(routing, (5, 2, 3), -1, decoder_layers=3)
    processor.add("a", format="npy.base64", dtype="uint8")
    [found] = processor.process_outputs(
        [out("a", 7, 8, 9, reason=LENGTH, rows=_transport.to_bytes(rows))]
    ).request_outputs
    array = np.load(io.BytesIO(base64.b64decode(found.outputs[0].routed_experts)))
    np.testing.assert_array_equal(array[:, :2], IDS[:5])
    assert array.dtype == np.uint8 and not array[:, 2].any()


def test_what_0_26_does_not_have_is_refused_by_name(make, monkeypatch):
    processor = make("0.26")
    monkeypatch.setattr(_front_end, "_captures", False)
    for asked in ({"format": "lists"}, {"dtype": "uint8"}, {"start": 3}, {"validity": True}):
        with pytest.raises(ValueError, match="does not capture with routecap"):
            processor.add("a", **asked)
    processor.add("a")


@BOTH
def test_an_output_that_nobody_has_taken_gets_the_rows_of_the_next_one(make, version, monkeypatch):
    processor, queue = make(version), Queue()
    processor.add("a", queue)
    processor.process_outputs([out("a", 7)])
    looked = []
    array = PendingRoutedExperts.array
    monkeypatch.setattr(PendingRoutedExperts, "array", lambda rows: looked.append(1) or array(rows))
    processor.process_outputs([out("a", 8, reason=LENGTH, rows=rows_of(4))])
    output = queue.take()
    assert not looked  # nobody waits for rows that may be in flight
    assert output.outputs[0].token_ids == [7, 8] and output.finished
    np.testing.assert_array_equal(all_rows(output), IDS[:4])


@BOTH
def test_an_answer_comes_too_where_nobody_has_taken_an_output(make, version):
    processor, queue = make(version), Queue()
    processor.add("a", queue, format="lists")
    processor.process_outputs([out("a", 7)])
    processor.process_outputs([out("a", 8, reason=LENGTH, rows=rows_of(4))])
    found = queue.take().outputs[0].routed_experts
    np.testing.assert_array_equal(found, IDS[:4])
    assert isinstance(found, list)


@BOTH
def test_rows_of_a_turn_are_not_the_next_one_s(make, version):
    processor = make(version)
    state = processor.add("a", resumable=True)
    own = type(state)
    for turn in (4, 6):
        last = out("a", 8, reason=LENGTH, rows=rows_of(turn))
        steps = [processor.process_outputs([each]) for each in (out("a", 7), last)]
        between, end = (each.request_outputs[0] for each in steps)
        assert between.outputs[0].routed_experts is None and type(state) is own
        np.testing.assert_array_equal(all_rows(end), IDS[:turn])


# ---- Who waits


@BOTH
@pytest.mark.parametrize("queue", [None, Queue()])
def test_a_stop_string_waits_for_its_rows(make, version, queue):
    processor = make(version)
    processor.add("a", queue, stop=["w9"])
    processor.add("b", queue)
    processor.process_outputs([out("a", 7)])
    ended = processor.process_outputs([out("a", 9), out("b", 9)])
    assert ended.reqs_to_abort == ["a"] and len(ended.request_outputs) == (queue is None)
    assert processor.get_num_unfinished_requests() == 2
    if queue is not None:
        queue.take()
    late = out("a", reason=ABORT, rows=rows_of(6))  # the engine was ahead
    output = processor.process_outputs([late]).request_outputs
    output = output[0] if queue is None else queue.take()
    assert output.outputs[0].finish_reason == STOP
    np.testing.assert_array_equal(all_rows(output), IDS[:4])
    processor.process_outputs([out("b", reason=LENGTH)])
    assert not processor.has_unfinished_requests()


@BOTH
def test_a_stop_string_in_the_engine_s_last_step_has_its_rows(make, version):
    processor = make(version)
    processor.add("a", stop=["w9"])
    [output] = processor.process_outputs(
        [out("a", 9, reason=LENGTH, rows=rows_of(3))]
    ).request_outputs
    np.testing.assert_array_equal(all_rows(output), IDS[:3])
    assert not processor.has_unfinished_requests()


@BOTH
def test_one_of_several_choices_waits_and_the_others_with_it(make, version):
    processor = make(version)
    parent = Parent(["a", "b"])
    processor.add("a", parent=parent, stop=["w9"], final=True)
    processor.add("b", parent=parent, index=1, stop=["w9"], final=True)
    step = [out("a", 9), out("b", 8, reason=LENGTH, rows=rows_of(3))]
    assert not processor.process_outputs(step).request_outputs
    late = out("a", reason=ABORT, rows=rows_of(3))
    [output] = processor.process_outputs([late]).request_outputs
    assert [each.index for each in output.outputs] == [0, 1] and output.finished
    if version == "0.26":
        for each in output.outputs:
            np.testing.assert_array_equal(each.routed_experts, IDS[:3])
    assert not processor.parent_requests


@BOTH
@pytest.mark.parametrize("internal", [True, False])
def test_an_abort_waits_for_its_rows_where_the_engine_gives_them(make, version, internal):
    processor, queue = make(version), Queue()
    processor.add("a", queue)
    processor.process_outputs([out("a", 7)])
    queue.take()
    processor.abort_requests(iter(["a" if internal else "user's a"]), internal=internal)
    waits = version == "0.26"
    assert (queue.output is None) is waits is processor.has_unfinished_requests()
    if waits:
        processor.process_outputs([out("a", reason=ABORT, rows=rows_of(3))])
        output = queue.take()
        assert output.finished and output.outputs[0].finish_reason == ABORT
        np.testing.assert_array_equal(all_rows(output), IDS[:3])


def test_an_abort_in_process_gives_an_output_with_the_rows_so_far(make, monkeypatch):
    engine = SimpleNamespace(FinishReason=SimpleNamespace(ABORT=ABORT))
    monkeypatch.setitem(sys.modules, "vllm.v1.engine", engine)
    processor = make("0.26")
    processor.add("a")
    processor.add("b")
    processor.process_outputs([out("a", 7), out("b", 7)])
    processor.abort_requests(["user's a"], internal=False)
    assert processor.get_num_unfinished_requests() == 2
    step = [out("a", reason=ABORT, rows=rows_of(3)), out("b", 8, reason=LENGTH, rows=rows_of(4))]
    found = {
        len(each.outputs[0].routed_experts): each
        for each in processor.process_outputs(step).request_outputs
    }
    assert found[3].finished and found[3].outputs[0].finish_reason == ABORT
    np.testing.assert_array_equal(all_rows(found[3]), IDS[:3])
    assert len(found) == 2 and not processor.has_unfinished_requests()


def test_who_waits_hears_of_an_error(make):
    processor, queue = make("0.21"), Queue()
    processor.add("a", queue, stop=["w9"])
    processor.process_outputs([out("a", 9)])
    error = RuntimeError("the engine is dead")
    processor.propagate_error(error)
    assert queue.take() is error and not processor.has_unfinished_requests()


def test_rows_of_the_engine_s_own_capturer_are_left_to_it(make):
    processor = make("0.26")
    processor.add("a")
    processor.process_outputs([out("a", 7, rows=IDS[:3])])
    [output] = processor.process_outputs(
        [out("a", 8, reason=LENGTH, rows=IDS[3:4])]
    ).request_outputs
    np.testing.assert_array_equal(all_rows(output), IDS[:4])


def test_what_is_installed_is_looked_up_once_and_not_for_each_request(monkeypatch):
    looked = []
    monkeypatch.setattr(_front_end, "entry_points", lambda **which: looked.append(which) or [which])
    _front_end.on_both_sides.cache_clear()
    assert [_front_end.on_both_sides() for _ in range(3)] == [True] * 3 and len(looked) == 1
    _front_end.on_both_sides.cache_clear()

"""What designs of SGLang's before the newest do otherwise."""

import base64
import functools
import pickle
import types

import engine as stand_in
import numpy as np
import pytest
import routecap
import routecap_sglang
from engine import LAYERS, ROUTED, K, Request, right
from routecap_sglang import _hooks, _spawned, _versions
from routecap_sglang._options import Options
from routecap_sglang._settings import Settings

PLAIN = Settings(
    enabled=True,
    chunk=32,
    most=64,
    algorithm="",
    drafts=1,
    branches=1,
    ranks=1,
    divides="",
    group=(0, 1),
    sliced=False,
    scattered=False,
    apart=False,
    replica=0,
    tokenizers=1,
    host_tokens=0,
    weight_version="",
)


@pytest.mark.parametrize(
    ("first", "changed", "said"),
    [
        ("0.5.22", {"algorithm": "EAGLE"}, "speculative decoding"),
        ("0.5.12", {"sliced": True}, "data-parallel attention"),
        ("0.5.22", {"tokenizers": 2}, "tokenizer workers"),
        ("0.5.22", {"replica": None}, "metrics"),  # which 0.5.22 always says
    ],
)
def test_what_a_release_does_not_have_is_named_with_the_first_that_has_it(first, changed, said):
    settings, options = PLAIN._replace(**changed), Options(metrics_port=9000)
    numbers = ["0.5.10.post1", "0.5.11", "0.5.12", "0.5.13", "0.5.20", "0.5.21", "0.5.22"]
    for number in numbers if settings.replica is not None else numbers[:-1]:
        design = _versions.find(number, options).design
        assert design.why_not(PLAIN, options) == ""
        why = design.why_not(settings, options)
        has = _versions.release_of(number) >= _versions.release_of(first)
        assert (why == "") is has
        assert has or said in why and f"from SGLang {first} on" in why


def test_a_server_with_what_a_release_does_not_have_keeps_sglangs_own(start, ranks, caplog):
    engine = start(own="own")
    ranks.tokenizer_worker_num = 2
    _hooks._design = _hooks.design()._replace(tokenizers=False)
    own = _hooks.create(lambda **kwargs: "own", model=engine.model)
    assert own == "own" and "several tokenizer workers" in caplog.text


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"enable_two_batch_overlap": True}, "two-batch overlap divides a pass"),
        ({"attn_cp_size": 2}, "context parallelism divides a pass"),
        ({"num_dp_ranks": 2, "backend": "mooncake"}, "over the backend mooncake divides a pass"),
    ],
)
def test_where_a_pass_is_divided_sglangs_own_stays(start, ranks, caplog, changed, said):
    engine = start()
    vars(ranks).update(changed)
    assert _hooks.create(lambda **kwargs: "own", model=engine.model) == "own"
    assert said in caplog.text
    ranks.scattered = "backend" in changed  # DeepEP's rows are gathered
    vars(ranks).update(enable_two_batch_overlap=False, attn_cp_size=1)
    assert _hooks.settings_of((0, 5, 23)).divides == ""


class Scheduler:
    @classmethod
    def made(cls, number):
        return cls, number

    @staticmethod
    def twice(number):
        return 2 * number

    def plus(self, number):
        return self.start + number


def test_without_a_registry_hooks_are_put_around_functions_of_each_kind(monkeypatch):
    monkeypatch.setattr(_spawned.pkgutil, "resolve_name", lambda path: Scheduler)
    called = []

    def around(original, *args):
        called.append(("around", *args))
        return original(*args)

    def note(*args):
        called.append(args)

    for name, hook, kind in (
        ("made", note, "after"),
        ("twice", around, "around"),
        ("plus", note, "before"),
    ):
        monkeypatch.setattr(Scheduler, name, Scheduler.__dict__[name])
        _spawned.apply(_hooks.Hook(f"scheduler.Scheduler.{name}", (), hook, kind))
    scheduler = Scheduler()
    scheduler.start = 40
    assert Scheduler.made(1) == (Scheduler, 1)
    assert scheduler.twice(4) == 8
    assert scheduler.plus(2) == 42
    assert called == [((Scheduler, 1), Scheduler, 1), ("around", 4), (scheduler, 2)]


def scheduler_process(*args):
    return args


def test_without_plugins_the_schedulers_that_an_engine_starts_have_hooks(monkeypatch):
    plugged = []
    monkeypatch.setattr(routecap_sglang, "plugin", lambda: plugged.append(True))

    def launch(owner, server_args, run_scheduler_process_func):
        return pickle.loads(pickle.dumps(run_scheduler_process_func))  # as spawn does

    process = _spawned._launch(
        launch, None, server_args="arguments", run_scheduler_process_func=scheduler_process
    )
    assert isinstance(process, functools.partial) and not plugged
    assert process(1, 2) == (1, 2) and plugged == [True]
    with pytest.raises(TypeError, match="run_scheduler_process_func by name"):
        _spawned._launch(launch, None, "arguments", scheduler_process)


def generated(start, dtype=None):
    engine = start()
    parameters = None if dtype is None else {"routed_experts_dtype": dtype}
    request = Request(list(range(20)), most=5, parameters=parameters)
    engine.generate([request])
    return request


def rows_of(answer, dtype):
    if dtype == "routecap":
        return routecap.Routing.deserialize(base64.b64decode(answer)).ids()
    ids = np.frombuffer(base64.b64decode(answer), np.int32).reshape(-1, LAYERS, K)
    return ids[:, ROUTED]


@pytest.mark.parametrize("dtype", [None, "routecap"])
def test_base64_of_a_ticket_is_taken_apart_by_the_tokenizer_manager(start, dtype):
    """A detokenizer without plugins makes base64 of what it gets."""
    request = generated(start, dtype)
    encoded = base64.b64encode(request.routed_experts.numpy().tobytes()).decode()
    own = base64.b64encode(np.arange(8, dtype=np.int32).tobytes()).decode()
    message = types.SimpleNamespace(routed_experts=[None, encoded, own])
    _hooks.encode_tickets(None, message)
    assert message.routed_experts[0] is None and message.routed_experts[2] == own
    assert (rows_of(message.routed_experts[1], dtype) == right(request)).all()


@pytest.mark.parametrize("dtype", [None, "routecap"])
def test_where_the_manager_makes_base64_itself_the_answer_takes_its_place(start, dtype):
    request = generated(start, dtype)
    states = {name: types.SimpleNamespace(out_list=[]) for name in ("a", "b")}
    manager = types.SimpleNamespace(rid_to_state=dict(states))

    def handle(manager, message):
        for rid, rows in zip(message.rids, message.routed_experts, strict=True):
            if rid in manager.rid_to_state:
                meta = {} if rows is None else {"routed_experts": rows}
                manager.rid_to_state.pop(rid).out_list.append({"meta_info": meta})

    message = types.SimpleNamespace(
        rids=["a", "gone", "b"], routed_experts=[request.routed_experts, None, None]
    )
    _hooks.encode_answers(handle, manager, message)
    [answer] = states["a"].out_list
    assert (rows_of(answer["meta_info"]["routed_experts"], dtype) == right(request)).all()
    assert states["b"].out_list == [{"meta_info": {}}]


@pytest.mark.parametrize("success", [True, False])
def test_a_call_that_loads_weights_names_them_if_it_succeeds(start, success):
    engine = start()
    engine.generate([Request([1, 2, 3], most=2)])

    def load(updater, asked):
        engine.weights = 1
        return types.SimpleNamespace(success=success)

    _hooks.updated_by(load, None, types.SimpleNamespace(weight_version="7"))
    assert engine.capturer.weight_version == ("7" if success else "")
    assert engine.capturer.tag == (7 if success else 1)


def test_a_router_of_another_width_than_the_configuration_says_is_refused(start, caplog):
    """The shape of what was recorded was once that of whatever tensor came."""
    engine = start()
    request = Request([1, 2, 3, 4], most=4)
    engine.prefill(request)
    engine.capturer.capture(0, stand_in.torch.zeros((4, K - 1), dtype=stand_in.torch.int32))
    assert engine.capturer.failed
    assert f"shape (4, {K - 1}), and the model's configuration says {K}" in caplog.text


def test_what_a_session_is_told_of_a_request_may_be_more_than_the_request(start):
    """Until 0.5.20 it is told whether the tree takes it, and a session of SGLang's newest cache is
    told of every request: the scheduler ended with a TypeError."""
    engine = start()
    request = Request([1, 2, 3], most=1)
    engine.generate([request])
    _hooks.kept_by_session(False, None, request, is_insert=True)
    assert not engine.capturer.failed

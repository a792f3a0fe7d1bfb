"""The weights of the routers, beside the ids: bit for bit what a router returned, or a refusal that
names the layer. The routers are engine.py's, whose weights are known by a formula."""

import pickle
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from calls import calls_in
from engine import (
    Model,
    Router,
    RouterThatIsOpaque,
    RouterWithoutCallback,
    weights_of,
)
from schedule import Run, Scheduling
from test_aux_output import EXPERTS, K, LAYERS, ROUTER, connector
from test_binding import Bare, bare_layer, taps
from test_by_slot import Runner, RunnerV2, configuration
from test_graph import Machine
from test_versions import installed  # noqa: F401  # a fixture

import routecap
from routecap_vllm import (
    _answers,
    _aux_output,
    _binding,
    _by_slot,
    _forward,
    _front_end,
    _versions,
    _weights,
)
from routecap_vllm import routed_experts_capturer as module
from routecap_vllm._answers import Answer
from routecap_vllm._asked import FORMATS, Asked
from routecap_vllm._results import PendingRoutedExperts
from routecap_vllm.routed_experts_capturer import Options

ON = Options(weights=True)
WEIGHTED = {"routecap.base64", "file", "reference"}  # formats that have weights


def bits(weights):
    return np.ascontiguousarray(weights).view(np.int32)


def same_bits(found, known):
    assert found.dtype == known.dtype == np.float32
    np.testing.assert_array_equal(bits(found), bits(known))


def known_of(model, tokens, first=0):
    """The ids and weights of these tokens, the first of which is at a position."""
    ids = model.expected([0] * first + list(tokens))[first:]
    return ids, weights_of(ids, np.arange(first, first + len(tokens))[:, None])


def forward(model, tokens, name="a"):
    positions = torch.arange(len(tokens), device=model.device)
    model(torch.tensor(tokens, device=model.device), positions)
    module.issue_routing_d2h_copy([name], {name: len(tokens)}, positions, positions.cpu())
    return module.routing_of(name)


@pytest.fixture
def options():
    """options(...): of this process."""
    yield lambda **chosen: module.set_options(Options(**chosen))
    module.set_options(None)


# ---- On


@pytest.mark.parametrize(
    "model",
    [
        {},
        {"router": RouterWithoutCallback},
        {"dtype": torch.int64},
        {"shared": 2},
        {"replicas": torch.arange(128).view(64, 2)},
    ],
    ids=["callback", "no callback", "int64", "fused shared experts", "balanced"],
)
def test_weights_are_those_that_the_routers_returned(start, model):
    model = Model(**model)
    start(model, ON, bind=False)
    if shared := model.moe[-1].router.num_fused_shared_experts:
        module.get_global_experts_capturer().forward._width = (model.k, model.k + shared)
    module.bind_routing_capture_to_model(model)
    assert taps(model) == dict.fromkeys(range(4), "weights")
    tokens = list(range(10, 30))
    for turn in "ab":
        routing = forward(model, tokens, turn)
        ids, weights = known_of(model, tokens)
        np.testing.assert_array_equal(routing.ids(), ids)
        same_bits(routing.weights(), weights)
        assert routing.complete and routing.weights_dtype is routecap.Dtype.F32


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("drafts", [0, 3])
def test_each_request_of_a_random_schedule_has_its_weights(start, drafts, asynchronous):
    engine = start(options=Options(weights=True, lazy=True), drafts=drafts, seed=3)
    engine.asynchronous = asynchronous
    for i in range(24):
        prompt = [engine.random.randrange(3, 900) for _ in range(1 + i * 7 % 90)]
        engine.add(f"r{i}", prompt, max_tokens=1 + i % 20)
        engine.step()
    engine.run()
    assert engine.checked["requests"] == 24
    assert engine.checked["weights"] == engine.checked["ids"] > 10_000


class Narrow(Router):
    dtype_of_weights = torch.bfloat16

    def _compute_routing(self, tokens, positions):
        weights, ids = super()._compute_routing(tokens, positions)
        return weights.to(self.dtype_of_weights), ids


class Half(Narrow):
    dtype_of_weights = torch.float16


@pytest.mark.parametrize("router", [Narrow, Half])
def test_weights_of_a_narrower_type_keep_their_values(start, router):
    model = Model(router=router)
    start(model, ON)
    tokens = list(range(20))
    wide = torch.from_numpy(known_of(model, tokens)[1])
    same_bits(forward(model, tokens).weights(), wide.to(router.dtype_of_weights).float().numpy())


def test_a_place_places_weights_as_it_places_ids(start):
    model = Model()
    start(model, Options(weights=True, place=lambda rows: (2, 1, 3)))
    routing = forward(model, list(range(5)))
    ids, weights = known_of(model, list(range(5)))
    np.testing.assert_array_equal(routing.ids()[1:4], ids[2:])
    same_bits(routing.weights()[1:4], weights[2:])
    assert not routing.mask()[[0, 4]].any() and np.isnan(routing.weights()[[0, 4]]).all()


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_compiled_model_gives_them_without_a_graph_break(start, backend):
    model = Model(dtype=torch.int64)
    start(model, ON)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=backend, fullgraph=True, dynamic=False)
    for turn, rows in enumerate((5, 9, 5)):
        tokens = list(range(10 * turn, 10 * turn + rows))
        positions = torch.arange(rows)
        compiled(torch.tensor(tokens), positions)
        module.issue_routing_d2h_copy([str(turn)], {str(turn): rows}, positions, positions)
        routing = module.routing_of(str(turn))
        ids, weights = known_of(model, tokens)
        np.testing.assert_array_equal(routing.ids(), ids)
        same_bits(routing.weights(), weights)


def test_a_pass_with_weights_is_one_launch_in_a_graph_too(monkeypatch):
    made = Machine()
    made.weights_dtype = routecap.Dtype.F32
    made.forward = _forward.Forward(made, None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: made.capturing)
    monkeypatch.setattr(_forward, "_pieces", lambda: None)

    def run():
        made.log.clear()
        made.forward.begin(4)
        for layer in range(3):
            ids = torch.full((4, 2), layer, dtype=torch.int32)
            made.forward.route(layer, ids, weights=ids / 3)
        made.forward.end()
        return list(made.log)

    # An eager pass proves that nobody writes over them.
    assert run() == ["begin of 4", "layer 0", "layer 1", "layer 2", "snapshot"]
    for made.capturing in (False, True):
        assert run() == ["step of layers [0, 1, 2] with weights"]


class Scaling(Router):
    """An engine that scales what its router returned, where it is."""

    def select_experts(self, tokens, positions):
        weights, ids = super().select_experts(tokens, positions)
        return weights.mul_(2.5), ids


@pytest.mark.parametrize("inference", [False, True], ids=["", "inference mode"])
def test_weights_that_an_engine_scales_where_they_are_are_those_of_the_router(start, inference):
    model = Model(router=Scaling)
    start(model, ON)
    tokens = list(range(12))
    with torch.inference_mode(inference):  # in which tensors have no versions
        for name in "abc":
            routing = forward(model, tokens, name)
            assert routing.complete
            same_bits(routing.weights(), known_of(model, tokens)[1])


# ---- Off


def test_off_nothing_is_wrapped_and_a_pass_calls_what_it_called(start):
    model = Model()
    start(model)
    capturer = module.get_global_experts_capturer()
    assert capturer.device_cache.weights is None and capturer.capturer.weights_dtype is None
    assert taps(model) == dict.fromkeys(range(4), "callback")
    assert not any("_compute_routing" in vars(moe.router) for moe in model.moe if moe)
    tokens, positions = torch.arange(6), torch.arange(6)
    model(tokens, positions)  # it proves that ids stay
    found = calls_in(lambda: model(tokens, positions))
    named = {name.rpartition(".")[2]: count for name, count in found.items()}
    assert named["route"] == named["hold"] == 4 and named["record_layers"] == 1
    assert not {"kept_weights", "compute_and_record"} & named.keys()
    module.issue_routing_d2h_copy(["a"], {"a": 6}, positions, positions)
    assert module.routing_of("a").weights_dtype is None


# ---- Refused


class Zero(Router):
    zero_expert_type = "identity"


REFUSED = [
    ({"internal": True}, r"layers\.2\.mlp\.experts.*SimpleNamespace routes inside a kernel"),
    (
        {"router": RouterThatIsOpaque},
        r"layers\.2\.mlp\.experts.*RouterThatIsOpaque has no _compute",
    ),
    ({"router": Zero}, r"layers\.2\.mlp\.experts.*Zero replaces the ids of zero experts"),
]


@pytest.mark.parametrize(("model", "said"), REFUSED)
def test_a_layer_whose_weights_cannot_be_had_is_refused_by_name(start, model, said):
    model = Model(**model)
    with pytest.raises(ValueError, match=f"ROUTECAP_VLLM_WEIGHTS is set.*{said}"):
        start(model, ON)
    assert not model._forward_pre_hooks and model not in _binding._bindings


def test_a_layer_that_tells_its_ids_alone_is_refused_and_the_others_are_left_alone(start):
    start(options=ON, bind=False)
    router = Router(0, torch.zeros((), dtype=torch.int64), 4, 64, torch.int32)
    told = SimpleNamespace(layer_id=1, capture_fn=None, layer_name="model.layers.1.mega")
    layers = [bare_layer(0, router=router), told, bare_layer(2), bare_layer(3)]
    with pytest.raises(ValueError, match=r"model\.layers\.1\.mega cannot.*has no router"):
        module.bind_routing_capture_to_model(Bare(layers))
    assert told.capture_fn is None and "_compute_routing" not in vars(router)


class Odd(Router):
    made = None

    def _compute_routing(self, tokens, positions):
        weights, ids = super()._compute_routing(tokens, positions)
        return type(self).made(weights), ids


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda weights: weights[:, :2], r"\(6, 2\) beside ids \(6, 4\)"),
        (lambda weights: weights.double(), r"torch\.float64"),
        (lambda weights: weights.int(), r"torch\.int32"),
        (lambda weights: None, "NoneType beside ids"),
    ],
    ids=["shape", "float64", "int32", "none"],
)
def test_weights_that_are_not_one_for_each_id_are_refused_in_the_first_pass(start, made, said):
    model = Model(router=type("Odd", (Odd,), {"made": staticmethod(made)}))
    start(model, ON)
    with pytest.raises(ValueError, match=f"router of captured layer 0 gave weights.*{said}"):
        forward(model, list(range(6)))


def test_a_device_on_which_pytorch_copies_is_refused(start, monkeypatch):
    monkeypatch.setenv("ROUTECAP_WITHOUT_KERNELS", "1")
    with pytest.raises(ValueError, match="ROUTECAP_VLLM_WEIGHTS is set, and on cpu PyTorch copies"):
        start(options=ON)


@pytest.mark.parametrize("how", [{"executor": "mp"}, {"micro_batches": True}])
def test_an_engine_in_which_vllm_captures_itself_is_refused(options, how):
    config = configuration(**how)
    _by_slot.check_worker(config)  # a warning
    options(weights=True)
    with pytest.raises(ValueError, match=r"ROUTECAP_VLLM_WEIGHTS is set, and .* vLLM captures"):
        _by_slot.check_worker(config)


def test_the_same_with_auxiliary_outputs(options):
    runner = SimpleNamespace(
        GPUModelRunner=type("Runner", (), {"execute_model": None}),
        get_aux_output_connector=lambda *arguments: "its own",
    )
    _aux_output.put_worker(runner)
    parallel = SimpleNamespace(use_ubatching=True)
    config = SimpleNamespace(parallel_config=parallel, kv_transfer_config=None)
    assert runner.get_aux_output_connector(None, config, None) == "its own"
    options(weights=True)
    with pytest.raises(ValueError, match="ROUTECAP_VLLM_WEIGHTS is set.*two micro-batches"):
        runner.get_aux_output_connector(None, config, None)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("_compute_routing", "_route", r"BaseRouter\._compute_routing"),
        ("hidden_states, router_logits", "router_logits", r"BaseRouter\._compute_routing"),
        ("_new_completion_output", "_completion", r"RequestState\._new_completion_output"),
    ],
)
def test_a_place_of_weights_that_is_renamed_is_refused_where_they_are_wanted(
    request, options, monkeypatch, before, after, said
):
    import test_versions

    own = test_versions.tables
    with_weights = lambda *what: f"{own(*what)}\n{_weights.PLACES}"  # noqa: E731
    monkeypatch.setattr(test_versions, "tables", with_weights)
    request.getfixturevalue("installed")("0.33.0", "_aux_output", before, after)
    assert not _versions.find().why  # without weights nothing hooks it
    options(weights=True)
    assert re.search(said, _versions.find().why.partition("These fit")[0])


# ---- What callers get


def rows_with_weights(start, tokens=9, lazy=True):
    model = Model()
    start(model, ON)
    routing = forward(model, list(range(tokens)))
    shape = (routing.rows, routing.layers, routing.k)
    return PendingRoutedExperts(routing, shape, -1), *known_of(model, list(range(tokens)))


def test_outputs_have_them_cut_spread_and_pickled(start):
    rows, ids, weights = rows_with_weights(start)

    class Output:
        routed_experts = None

    cls = type("Output", (Output,), {"__module__": __name__})
    _front_end.make_lazy(cls, "routed_experts")
    output = cls()
    assert output.routed_experts_weights is None
    _front_end.put_rows(output, "routed_experts", rows[2:7])
    same_bits(output.routed_experts_weights, weights[2:7])
    np.testing.assert_array_equal(output.routed_experts, ids[2:7])
    same_bits(output.routed_experts_weights, weights[2:7])
    state = pickle.loads(pickle.dumps(output.__getstate__()))
    same_bits(state["routed_experts_weights"], weights[2:7])
    spread = PendingRoutedExperts(rows.routing, rows.shape, -1, decoder_layers=6).weights()
    same_bits(spread[:, 2:], weights)
    assert not spread[:, :2].any()


def test_formats_have_them_or_the_ids_alone_as_before(start, tmp_path, monkeypatch):
    rows, ids, weights = rows_with_weights(start)
    plain = routecap.Routing.from_arrays(ids, layer_map=rows.routing.layer_map, experts=64)
    plain = PendingRoutedExperts(plain, rows.shape, -1)
    folder, objects = tmp_path / "folder", f"file://{tmp_path}/objects"
    chosen = Options(folder=str(folder), objects=objects, weights=True)
    monkeypatch.setattr(_answers, "get_options", lambda: chosen)
    for kind in FORMATS:
        value = Answer(rows, Asked(format=kind)).value
        if kind not in WEIGHTED:
            assert value == Answer(plain, Asked(format=kind)).value
            continue
        if kind == "file":
            routing = _answers.read(value)
        elif kind == "reference":
            [file] = (tmp_path / "objects").iterdir()
            routing = routecap.Routing.deserialize(file.read_bytes())
        else:
            routing = routecap.Routing.deserialize(_answers.base64.b64decode(value))
        np.testing.assert_array_equal(routing.ids(), ids)
        same_bits(routing.weights(), weights)


@pytest.mark.parametrize("runner", [Runner, RunnerV2])
def test_a_worker_of_0_22_to_0_30_captures_them(options, runner):
    options(weights=True)
    runner = runner()
    made = runner.face(runner).capturer
    made.tell_ends({})
    runner.step([("r", 0, 7), ("other", 0, 3)])
    ended = made.end({"r": 7})["r"]
    ids, weights = known_of(runner.model, [10 + p for p in range(7)])
    np.testing.assert_array_equal(ended.array()[:, 2:], ids)
    same_bits(ended.weights()[:, 2:], weights)
    assert not ended.weights()[:, :2].any()


# ---- From 0.31 on: rows and weights are one array until the front end takes them apart


def beside(ids):
    return (ids.astype(np.float32) + 1) / 7


def capture(made, rows):
    for layer in range(rows.shape[1]):
        ids = torch.from_numpy(np.ascontiguousarray(rows[:, layer]))
        weights = torch.from_numpy(beside(np.ascontiguousarray(rows[:, layer])))
        made.capture.forward.record(layer, ids, weights=weights)


@pytest.mark.parametrize("numbers", [_aux_output.Numbers(), None])
@pytest.mark.parametrize(
    ("seed", "drafts", "ahead"), [pytest.param(1, 0, 1, marks=pytest.mark.slow), (4, 2, 2)]
)
def test_each_row_of_a_connector_comes_with_its_weights(options, seed, drafts, ahead, numbers):
    options(weights=True)
    made, seen = connector(numbers=numbers), [0]

    def judge(request, outputs):
        [output] = outputs
        if output is None:
            return
        assert output.rows.shape[1:] == (LAYERS + 1, 2 * K) and not output.rows[:, 1].any()
        ids, weights = _weights.unpacked(output.rows[:, [0, 2, 3]])
        tokens = request.truth(output.token_start + len(ids))
        first = output.token_start
        for row, found in enumerate(ids):
            own = ROUTER.ids(tokens[: first + row + 1])
            np.testing.assert_array_equal(found, own)
            same_bits(weights[row], beside(own))
        seen[0] += len(ids)

    run = Run(seed, ROUTER, Scheduling(False), [(made, capture)], judge, drafts=drafts, ahead=ahead)
    run.steps(300)
    assert seen[0] > 1500 and run.hits > 300 and run.preempted and EXPERTS


def packed(ids, weights):
    """As routecap.adapter.to_packed makes it of a routing."""
    return np.concatenate((ids.astype(np.int32), weights.view(np.int32)), axis=2)


def test_a_cell_without_ids_has_no_weights():
    ids = np.full((2, 1, 2), -1, np.int16)
    ids[1] = 3, 4
    weights = np.full((2, 1, 2), np.nan, np.float32)
    weights[1] = -0.0, np.inf
    found = _weights.unpacked(packed(ids, weights))
    assert found[0].dtype == np.int16
    np.testing.assert_array_equal(found[0], ids)
    same_bits(found[1], weights)
    plain, none = _weights.unpacked(ids)  # what is not packed
    assert plain is ids and none is None


def test_missing_cells_that_look_like_an_expert_are_refused_beside_weights(options):
    options(weights=True, fill=0)
    with pytest.raises(ValueError, match="unset ROUTECAP_VLLM_FILL"):
        connector()


def test_a_completion_has_them_apart_also_where_it_is_merged_into_one(monkeypatch):
    class Completion:
        def __init__(self, index, routed_experts=None):
            self.index, self.routed_experts = index, routed_experts

    ids = np.arange(12, dtype=np.int16).reshape(3, 2, 2)
    rows = packed(ids, beside(ids))

    class State:
        queue = SimpleNamespace(output=SimpleNamespace(outputs=[Completion(0), Completion(1)]))

        def _new_completion_output(self, tokens, rows):
            return Completion(1, rows)

    outputs = SimpleNamespace(CompletionOutput=Completion)
    monkeypatch.setattr(_weights, "import_module", {"vllm.outputs": outputs}.get)
    for _ in range(2):  # the second changes nothing
        _weights.give_weights(State)
    assert State()._new_completion_output([], None).routed_experts_weights is None
    made = State()._new_completion_output([], rows)
    np.testing.assert_array_equal(made.routed_experts, ids)
    same_bits(made.routed_experts_weights, beside(ids))
    other, merged = State.queue.output.outputs
    assert merged.routed_experts_weights is made.routed_experts_weights
    assert other.routed_experts_weights is None


def test_an_answer_in_a_format_has_them():
    config = SimpleNamespace(
        model_type="qwen3_moe",
        num_hidden_layers=3,
        num_experts=16,
        num_experts_per_tok=2,
        mlp_only_layers=[1],
        decoder_sparse_step=1,
    )
    ids = np.array([[[1, 2], [0, 0], [3, 4]], [[-1, -1], [0, 0], [-1, -1]]], np.int16)
    weights = np.where(ids < 0, np.nan, beside(ids)).astype(np.float32)
    completion = SimpleNamespace(
        routed_experts=ids, routed_experts_weights=weights, finish_reason="stop"
    )
    asked = Asked(format="routecap.base64")
    _aux_output._answer(completion, SimpleNamespace(hf_text_config=config), asked, 2)
    data = _answers.base64.b64decode(completion.routed_experts)
    routing = routecap.Routing.deserialize(data)
    np.testing.assert_array_equal(routing.ids(), ids[:, [0, 2]])
    same_bits(routing.weights()[:1], weights[:1, [0, 2]])
    assert np.isnan(routing.weights()[1]).all() and not routing.mask()[1].any()

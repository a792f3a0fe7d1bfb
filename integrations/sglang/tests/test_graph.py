"""What a capturer does inside a CUDA graph: against a log of what was launched, and by the rows of
graphs that are replayed."""

import types
import weakref

import pytest
import routecap
import torch
from routecap_sglang._forward import Forward

LAYERS, K = 3, 2


class Machine:
    """Stands for a capturer and for an engine that captures a graph.

    breaks: Whether the engine may end its graph within a pass.
    """

    layers, rows, backend = LAYERS, 8, routecap.Backend.CUDA

    def __init__(self):
        self.log, self.capturing, self.broken, self.breaks = [], False, False, False
        self.held = []
        self.forward = self.made(weights=False)

    def made(self, weights):
        return Forward(self, [(K, 4)] * LAYERS, lambda: self.breaks, weights)

    def begin(self, rows):
        self.log.append(f"begin of {rows}")

    def record(self, layer, ids, *, columns=None, weights=None):
        self.log.append(f"layer {layer}" + (" with weights" if weights is not None else ""))

    def layer_sources(self, ids, *, columns, none, weights, whole_step):
        return types.SimpleNamespace(layers=list(ids), weights=weights, whole_step=whole_step)

    def record_layers(self, sources, *, stream=None):
        if self.broken:
            raise RuntimeError("on purpose")
        what = "step of layers" if sources.whole_step else "layers"
        beside = " with weights" if sources.weights else ""
        self.log.append(f"{what} {sources.layers}{beside}")

    def snapshot(self):
        self.log.append("snapshot")

    def softly(self, call, *args):
        try:
            call(*args)
        except RuntimeError:
            self.log.append("failed")

    def run(self, layers=range(LAYERS), rows=4, eager=(), ids_rows=None):
        """A pass; returns what was launched.

        eager: Layers that an engine runs outside of its graph.
        """
        self.log.clear()
        self.held.clear()

        def model(input_ids, positions, batch):
            capturing = self.capturing
            for layer in layers:
                ids = torch.full((ids_rows or rows, K), layer, dtype=torch.int32)
                self.held.append(weakref.ref(ids))
                self.capturing = capturing and layer not in eager
                self.forward.route(layer, ids, ids.float())
            self.capturing, ids = capturing, None
            self.log.append("head" if all(ref() is not None for ref in self.held) else "freed")

        self.forward.around(model, self.softly)(
            None, torch.zeros(rows), types.SimpleNamespace(global_dp_buffer_len=None)
        )
        return list(self.log)


@pytest.fixture
def machine(monkeypatch):
    made = Machine()
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: made.capturing)
    return made


IN_LINE = ["begin of 4", "head", "layers [0, 1, 2]", "snapshot"]


def test_a_graph_of_the_whole_pass_holds_one_launch(machine):
    machine.run()  # eager: it proves that ids stay
    machine.capturing = True
    assert machine.run() == ["head", "step of layers [0, 1, 2]"]
    assert all(ref() is None for ref in machine.held)


def test_an_eager_pass_begins_before_the_graphs_that_may_be_in_it(machine):
    """A graph of a part of the model records its layers when it is replayed, before the end of the
    pass: a begin there would clear them."""
    machine.run()
    assert machine.run() == IN_LINE


def test_a_graph_that_may_end_within_the_pass_begins_the_step_at_its_start(machine):
    machine.run()
    machine.capturing = machine.breaks = True
    assert machine.run() == IN_LINE


def test_what_runs_eagerly_between_two_graphs_is_recorded_where_it_is(machine):
    """At each replay its ids are elsewhere, and the first graph has begun the step."""
    machine.run()
    machine.capturing = machine.breaks = True
    log = machine.run(eager=(1,))
    assert log == ["begin of 4", "layer 1", "freed", "layers [0, 2]", "snapshot"]
    machine.log.clear()
    machine.capturing = False
    machine.forward.route(1, torch.zeros(4, K, dtype=torch.int32))  # a replay, between its graphs
    assert machine.log == ["layer 1"]


def test_a_graph_of_some_layers_records_them_behind_the_model(machine):
    machine.run()
    machine.capturing = True
    assert machine.run(layers=(0, 2)) == ["head", "step of layers [0, 2]"]


def test_ids_of_more_rows_than_the_pass_has_are_no_step(machine):
    machine.run()
    machine.capturing = True
    log = machine.run(rows=4, ids_rows=6)
    assert log == ["head", "begin of 4", "layers [0, 1, 2]", "snapshot"]


def test_until_an_eager_pass_has_proven_that_ids_stay_layers_are_recorded_where_they_are(machine):
    machine.capturing = True
    assert machine.run(layers=(1,)) == ["begin of 4", "layer 1", "freed", "snapshot"]


# Each layer with weights was recorded where its router ran: a kernel for each.
def test_weights_are_held_with_their_ids(machine):
    machine.forward = machine.made(weights=True)
    layers = [f"layer {layer} with weights" for layer in range(LAYERS)]
    assert machine.run() == ["begin of 4", *layers, "head", "snapshot"]
    assert machine.run() == ["begin of 4", "head", "layers [0, 1, 2] with weights", "snapshot"]
    machine.capturing = True
    assert machine.run() == ["head", "step of layers [0, 1, 2] with weights"]


def test_a_pass_without_routers_has_no_rows(machine):
    machine.run()
    machine.capturing = True
    assert machine.run(layers=()) == ["head", "begin of 4", "snapshot"]


def test_a_capture_that_fails_leaves_nothing_to_the_next_pass(machine):
    machine.run()
    machine.capturing = machine.broken = True
    assert machine.run()[-1] == "failed"
    machine.broken = False
    assert machine.run(layers=(0,)) == ["head", "step of layers [0]"]


# ---- Rows of graphs, which a host runs as passes of as many rows


DEVICES = ["host", *(["cuda"] if torch.cuda.is_available() else [])]


class Engine:
    """A model of routers alone, whose ids are those of a static input, captured into a graph for
    each number of rows. All graphs share a pool, as an engine's do."""

    def __init__(self, capturer, device):
        self.capturer, self.graphs, self.pool = capturer, {}, None
        self.input = torch.zeros(capturer.rows, LAYERS, K, dtype=torch.int32, device=device)
        forward = Forward(capturer, [(K,)] * LAYERS)
        self.held = forward.held

        def model(input_ids, positions, batch):
            last = None
            for layer in range(LAYERS):
                ids = input_ids[:, layer] + 0
                forward.route(layer, ids)
                last = ids.float().sum() + (0 if last is None else last)
            return last

        def call(function, *args):
            return function(*args)

        self.model = forward.around(model, call)

    def run(self, rows):
        batch = types.SimpleNamespace(global_dp_buffer_len=None)
        self.model(self.input[:rows], self.input[:rows, 0, 0], batch)

    def capture(self, rows):
        if self.input.device.type == "cpu":
            self.graphs[rows] = types.SimpleNamespace(replay=lambda: self.run(rows))
            return
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            self.run(rows)
        self.pool, self.graphs[rows] = graph.pool(), graph
        self.capturer.discard()

    def step(self, ids, graph):
        """Issue a step of these ids [rows, layers, k], by a graph of so many rows; of 0, eagerly."""
        self.input.zero_()
        self.input[: len(ids)] = ids.to(self.input.device)
        self.graphs[graph].replay() if graph else self.run(len(ids))
        request = self.capturer.open()
        self.capturer.issue(routecap.spans(1, request=int(request), position=0, rows=len(ids)))
        return request.finish(len(ids))


@pytest.mark.parametrize("backend", DEVICES)
def test_a_row_of_a_replayed_graph_is_of_its_own_step(backend):
    """Of steps of other ids and of other numbers of rows in turns, with eager ones between."""
    torch.manual_seed(5)
    with routecap.Capturer(
        backend=backend, layers=LAYERS, experts=64, k=K, rows=16, slots=4
    ) as capturer:
        engine = Engine(capturer, "cuda" if backend == "cuda" else "cpu")
        engine.run(4)
        capturer.discard()
        assert engine.held.proven
        for rows in (16, 8, 4):
            engine.capture(rows)
        for rows, graph in [(4, 4), (7, 8), (16, 16), (3, 4), (5, 0), (8, 8), (4, 4)] * 8:
            ids = torch.rand(rows, LAYERS, 64).argsort(-1)[..., :K].int()  # of a row all differ
            routing = engine.step(ids, graph)
            routing.wait(10)
            assert (routing.ids() == ids.numpy()).all(), (rows, graph)

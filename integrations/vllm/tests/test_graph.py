"""What a capturer does inside a CUDA graph, against a log of what was launched where."""

import types
import weakref

import pytest
import torch

import routecap
from routecap_vllm import _forward

LAYERS = 3


class Machine:
    """Stands for a capturer and for an engine that captures a graph.

    piece: which graphs of parts of the model a pass replays.
    """

    layers, k, rows, backend = LAYERS, 2, 8, routecap.Backend.CUDA
    weights_dtype = None

    def __init__(self):
        self.log, self.capturing, self.piece, self.held = [], False, None, []

    def begin(self, rows):
        self.log.append(f"begin of {rows}")

    def record(self, layer, ids, **more):
        self.log.append(f"layer {layer}")

    def layer_sources(self, ids, *, columns, none, weights, whole_step):
        return types.SimpleNamespace(layers=list(ids), weights=weights, whole_step=whole_step)

    def record_layers(self, sources, *, stream=None):
        what = "step of layers" if sources.whole_step else "layers"
        beside = " with weights" if sources.weights else ""
        self.log.append(f"{what} {sources.layers}{beside}")

    def snapshot(self):
        self.log.append("snapshot")

    def run(self, layers=range(LAYERS), rows=4, eager=(), table=(), ids_rows=None):
        """A pass; returns what was launched.

        eager: Layers that an engine runs outside of its graph.
        table: Layers whose ids are looked up, and so recorded where they are.
        """
        self.log.clear()
        self.held.clear()
        self.forward.begin(rows)
        capturing = self.capturing
        for layer in layers:
            ids = torch.full((ids_rows or rows, 2), layer, dtype=torch.int32)
            self.held.append(weakref.ref(ids))
            self.capturing = capturing and layer not in eager
            self.forward.route(layer, ids, torch.arange(9) if layer in table else None)
        self.capturing = capturing
        ids = None
        self.log.append("norm" if all(ref() is not None for ref in self.held) else "freed")
        self.forward.end()
        return list(self.log)


@pytest.fixture
def machine(monkeypatch):
    made = Machine()
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: made.capturing)
    monkeypatch.setattr(_forward, "_pieces", lambda: made.piece)
    made.forward = _forward.Forward(made, None)
    made.run()  # eager: it proves that ids stay
    return made


IN_LINE = ["begin of 4", "norm", "layers [0, 1, 2]", "snapshot"]


@pytest.mark.parametrize("capturing", [False, True])
def test_a_pass_that_is_eager_or_one_graph_launches_once(machine, capturing):
    machine.capturing = capturing
    assert machine.run() == ["norm", "step of layers [0, 1, 2]"]
    assert all(ref() is None for ref in machine.held)


def test_a_graph_that_ends_within_the_pass_holds_no_begin(machine, monkeypatch):
    """The engine breaks it at its attention. What a part of it holds is done when that part is
    replayed: a begin there would clear what was recorded before."""
    machine.capturing, machine.piece = True, "of 4 rows"
    assert machine.run() == IN_LINE
    monkeypatch.setattr(_forward, "_pieces", None)  # it is not known
    assert machine.run() == IN_LINE


def test_what_runs_eagerly_within_a_graph_is_recorded_where_it_is(machine):
    """At each replay its ids are elsewhere: what the graph read would be those of its capture."""
    machine.capturing, machine.piece = True, "of 4 rows"
    log = machine.run(eager=(1,))
    assert "layer 1" in log and "layers [0, 2]" in log


def test_a_graph_of_some_layers_records_them_behind_the_model(machine):
    machine.capturing = True
    assert machine.run(layers=(0, 2)) == ["norm", "step of layers [0, 2]"]


def test_a_layer_that_is_recorded_where_it_is_comes_after_the_begin(machine):
    machine.capturing = True
    log = machine.run(table=(1,))
    assert log == ["begin of 4", "layer 1", "freed", "layers [0, 2]", "snapshot"]


def test_ids_of_more_rows_than_the_pass_has_are_no_step(machine):
    log = machine.run(rows=4, ids_rows=6)
    assert log == ["norm", "begin of 4", "layers [0, 1, 2]", "snapshot"]


def test_a_pass_without_routers_has_no_rows(machine):
    assert machine.run(layers=()) == ["norm", "begin of 4", "snapshot"]

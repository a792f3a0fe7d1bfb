"""What a capturer does inside a CUDA graph, against a log of what was launched where."""

import types
import weakref

import pytest
import torch

import routecap
from routecap.vllm import _forward

LAYERS = 3


class Machine:
    """Stands for torch's streams, for a capturer and for an engine that captures a graph.

    piece: which graphs of parts of the model a pass replays.
    """

    layers, rows, backend = LAYERS, 8, routecap.Backend.CUDA

    def __init__(self):
        self.log, self.capturing, self.broken, self.piece = [], False, False, None
        self.main, self.held = Stream(self, "engine"), []

    def begin(self, rows, *, stream=None):
        self.log.append(f"begin of {rows} on {stream or self.main}")

    def record(self, layer, ids, **more):
        self.log.append(f"layer {layer} on {self.main}")

    def layer_sources(self, ids, *, columns=None):
        return types.SimpleNamespace(layers=list(ids))

    def record_layers(self, sources, *, stream=None):
        if self.broken:
            raise RuntimeError("on purpose")
        self.log.append(f"layers {sources.layers} on {stream or self.main}")

    def snapshot(self, *, stream=None):
        self.log.append(f"snapshot on {stream or self.main}")

    def run(self, layers=range(LAYERS), rows=4, eager=(), table=()):
        """A pass; returns what was launched.

        eager: Layers that an engine runs outside of its graph.
        table: Layers whose ids are looked up, and so recorded where they are.
        """
        self.log.clear()
        self.held.clear()
        self.forward.begin(rows)
        capturing = self.capturing
        for layer in layers:
            ids = torch.full((rows, 2), layer, dtype=torch.int32)
            self.held.append(weakref.ref(ids))
            self.capturing = capturing and layer not in eager
            self.forward.route(layer, ids, torch.arange(9) if layer in table else None)
        self.capturing = capturing
        del ids
        self.log.append("norm" if all(ref() is not None for ref in self.held) else "freed")
        self.forward.end()
        return list(self.log)


class Stream:
    def __init__(self, machine, name="branch"):
        self.machine, self.name = machine, name

    def wait_stream(self, other):
        self.machine.log.append(f"{self} waits for {other}")

    def __str__(self):
        return self.name


@pytest.fixture
def machine(monkeypatch):
    made = Machine()
    monkeypatch.setattr(torch.cuda, "Stream", lambda: Stream(made))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: made.main)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: made.capturing)
    monkeypatch.setattr(_forward, "_pieces", lambda: made.piece)
    made.forward = _forward.Forward(made, None)
    made.run()  # eager: it proves that ids stay
    return made


def test_in_a_graph_the_engine_waits_for_nothing_behind_its_last_router(machine):
    machine.capturing = True
    assert machine.run() == [
        "branch waits for engine",
        "begin of 4 on branch",
        "branch waits for engine",
        "layers [0, 1, 2] on branch",
        "snapshot on branch",
        "norm",
        "engine waits for branch",
    ]
    assert all(ref() is None for ref in machine.held)


IN_LINE = ["begin of 4 on engine", "norm", "layers [0, 1, 2] on engine", "snapshot on engine"]


def test_an_eager_pass_is_all_on_the_engines_stream(machine):
    assert machine.run() == IN_LINE


def test_a_graph_that_ends_within_the_pass_has_no_branch(machine, monkeypatch):
    """The engine breaks it at its attention: a branch would be open at the end of the first part,
    and the capture be lost."""
    machine.capturing, machine.piece = True, "of 4 rows"
    assert machine.run() == IN_LINE
    monkeypatch.setattr(_forward, "_pieces", None)  # it is not known
    assert machine.run() == IN_LINE


def test_what_runs_eagerly_within_a_graph_is_recorded_where_it_is(machine):
    """At each replay its ids are elsewhere: what the graph read would be those of its capture."""
    machine.capturing, machine.piece = True, "of 4 rows"
    log = machine.run(eager=(1,))
    assert "layer 1 on engine" in log and "layers [0, 2] on engine" in log


def test_a_graph_of_some_layers_records_them_behind_the_model(machine):
    machine.capturing = True
    log = machine.run(layers=(0, 2))
    assert log.index("norm") < log.index("layers [0, 2] on branch")
    assert log[-1] == "engine waits for branch"


def test_a_layer_that_is_recorded_where_it_is_comes_after_the_begin(machine):
    machine.capturing = True
    log = machine.run(table=(1,))
    assert log.index("engine waits for branch") < log.index("layer 1 on engine")
    assert log[-2:] == ["layers [0, 2] on engine", "snapshot on engine"]


def test_a_branch_is_joined_whatever_fails(machine):
    machine.capturing = machine.broken = True
    with pytest.raises(RuntimeError):
        machine.run(layers=(0,))
    assert machine.log[-1] == "engine waits for branch"

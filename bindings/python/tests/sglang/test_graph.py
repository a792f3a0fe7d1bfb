"""What a capturer does inside a CUDA graph, against a log of what was launched where."""

import types
import weakref

import pytest
import torch

import routecap
from routecap.sglang._forward import Forward

LAYERS = 3


class Machine:
    """Stands for torch's streams, for a capturer and for an engine that captures a graph."""

    layers, rows, backend = LAYERS, 8, routecap.Backend.CUDA

    def __init__(self):
        self.log, self.capturing, self.broken = [], False, False
        self.held = []
        self.main = Stream(self, "engine")

    def begin(self, rows, *, stream=None):
        self.log.append(f"begin of {rows} on {stream or self.main}")

    def record(self, layer, ids, *, columns=None):
        self.log.append(f"layer {layer} on {self.main}")

    def layer_sources(self, ids, *, columns, whole_step):
        return types.SimpleNamespace(layers=list(ids))

    def record_layers(self, sources, *, stream=None):
        if self.broken:
            raise RuntimeError("on purpose")
        self.log.append(f"layers {sources.layers} on {stream or self.main}")

    def snapshot(self, *, stream=None):
        self.log.append(f"snapshot on {stream or self.main}")

    def softly(self, call, *args):
        try:
            call(*args)
        except RuntimeError:
            self.log.append("failed")

    def run(self, layers=range(LAYERS), rows=4):
        """A pass; returns what was launched."""
        self.log.clear()
        self.held.clear()

        def model(input_ids, positions, batch):
            for layer in layers:
                ids = torch.full((rows, 2), layer, dtype=torch.int32)
                self.held.append(weakref.ref(ids))
                self.forward.route(layer, ids)
            self.log.append("head" if all(ref() is not None for ref in self.held) else "freed")

        self.forward.around(model, self.softly)(
            None, torch.zeros(rows), types.SimpleNamespace(global_dp_buffer_len=None)
        )
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
    made.forward = Forward(made, (2, 4))
    return made


def test_in_a_graph_the_engine_waits_for_nothing_behind_its_last_router(machine):
    machine.run()  # eager: it proves that ids stay
    machine.capturing = True
    assert machine.run() == [
        "branch waits for engine",
        "begin of 4 on branch",
        "branch waits for engine",
        "layers [0, 1, 2] on branch",
        "snapshot on branch",
        "head",
        "engine waits for branch",
    ]
    assert all(ref() is None for ref in machine.held)


def test_an_eager_pass_is_all_on_the_engines_stream(machine):
    machine.run()
    assert machine.run() == [
        "begin of 4 on engine",
        "head",
        "layers [0, 1, 2] on engine",
        "snapshot on engine",
    ]


def test_a_graph_of_some_layers_records_them_behind_the_model(machine):
    machine.run()
    machine.capturing = True
    log = machine.run(layers=(0, 2))
    assert log.index("head") < log.index("layers [0, 2] on branch")
    assert log[-1] == "engine waits for branch"


def test_until_an_eager_pass_has_proven_that_ids_stay_layers_are_recorded_where_they_are(machine):
    machine.capturing = True
    assert machine.run(layers=(1,))[:2] == ["begin of 4 on engine", "layer 1 on engine"]


def test_a_branch_is_joined_whatever_fails(machine):
    machine.run()
    machine.capturing = machine.broken = True
    with pytest.raises(RuntimeError):
        machine.run()  # by a router
    machine.forward._join()
    assert machine.log[-1] == "engine waits for branch"
    log = machine.run(layers=(0,))
    assert log[-2:] == ["failed", "engine waits for branch"]

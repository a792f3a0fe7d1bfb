"""Saved loads, read by those for whom they are: SGLang's own start of a server, and the balancer of
DeepSeek that it has with it.

SGLang's modules are imported one by one, without the packages around them, which want a whole
engine.
"""

import importlib
import sys
import types
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import routecap

DECODER_LAYERS, DENSE, EXPERTS, K, SPARE, RANKS = 5, 2, 8, 2, 4, 2


@pytest.fixture
def load():
    """Of layers 2, 3 and 4 of the decoder, in each of which one expert more is hot."""
    layers = DECODER_LAYERS - DENSE
    layer_map = list(range(DENSE, DECODER_LAYERS))
    with routecap.Capturer(
        layers=layers, layer_map=layer_map, k=K, experts=EXPERTS, rows=32, load=True
    ) as capturer:
        request = capturer.open()
        capturer.begin(32)
        for layer in range(layers):
            rows = np.arange(32)
            hot = np.where(rows % 4 < 3, layer, (rows // 4) % EXPERTS)
            capturer.record(layer, np.stack([hot, (hot + 1 + rows % 5) % EXPERTS], axis=1))
        capturer.snapshot()
        capturer.issue(routecap.spans(request=request, rows=32)).wait()
        return capturer.load()


@pytest.fixture
def sglang(monkeypatch):
    """SGLang's modules: module("eplb.expert_location")."""
    for name in ("sglang", "sglang.srt"):
        package = types.ModuleType(name)
        spec = find_spec("sglang") if name == "sglang" else None
        package.__path__ = (
            list(spec.submodule_search_locations)
            if spec is not None
            else [f"{sys.modules['sglang'].__path__[0]}/srt"]
        )
        monkeypatch.setitem(sys.modules, name, package)
    context = types.ModuleType("sglang.srt.runtime_context")
    moe = SimpleNamespace(
        ep_num_redundant_experts=SPARE,
        ep_join_mode=None,
        eplb_algorithm="deepseek",
        ep_dispatch_algorithm="dynamic",
    )
    parallel = SimpleNamespace(ep_size=RANKS, nnodes=1, elastic_ep_initial_size=None)
    context.get_exec = lambda: SimpleNamespace(moe=moe)
    context.get_device = lambda: SimpleNamespace(device="cpu")
    context.get_parallel = lambda: parallel
    context.get_resources = lambda: None
    context.moe = moe
    monkeypatch.setitem(sys.modules, context.__name__, context)
    known = set(sys.modules)
    yield lambda name: importlib.import_module(f"sglang.srt.{name}")
    for name in set(sys.modules) - known:
        if name.startswith("sglang."):
            del sys.modules[name]


def copies(physical_to_logical):
    """[layers, experts] how often each expert is placed."""
    return np.stack(
        [np.bincount(layer, minlength=EXPERTS) for layer in np.asarray(physical_to_logical)]
    )


def test_sglang_starts_with_a_saved_load(load, sglang, monkeypatch, tmp_path):
    location = sglang("eplb.expert_location")
    path = tmp_path / "load.json"
    load.save(path, decoder_layers=DECODER_LAYERS)
    sglang("runtime_context").moe.init_expert_location = str(path)
    model = location.ModelConfigForExpertLocation(
        num_layers=DECODER_LAYERS, num_logical_experts=EXPERTS, num_groups=1
    )
    monkeypatch.setattr(
        location.ModelConfigForExpertLocation, "from_model_config", lambda config: model
    )
    placed = location.compute_initial_expert_location_metadata(object(), 0)
    found = copies(placed.physical_to_logical_map)
    assert found.shape == (DECODER_LAYERS, EXPERTS) and (found.sum(axis=1) == EXPERTS + SPARE).all()
    for layer in range(DENSE, DECODER_LAYERS):
        counts = load.total[layer - DENSE]
        assert found[layer].argmax() == counts.argmax() == layer - DENSE


def test_deepseeks_balancer_takes_a_saved_load(load, sglang, tmp_path):
    path = tmp_path / "load.npy"
    load.save(path)
    weight = torch.from_numpy(np.load(path))
    physical_to_logical, _, counts = sglang("eplb.eplb_algorithms.deepseek").rebalance_experts(
        weight=weight,
        num_replicas=EXPERTS + SPARE,
        num_groups=1,
        num_nodes=1,
        num_gpus=RANKS,
        enable_hierarchical=False,
    )
    assert (copies(physical_to_logical) == np.asarray(counts)).all()
    assert (np.asarray(counts).argmax(axis=1) == load.total.argmax(axis=1)).all()

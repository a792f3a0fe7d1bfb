"""vLLM's balancer places experts by a saved load: load.py [SITE]

SITE is a folder with vLLM's sources; default: where vLLM is installed. The balancer alone is
imported, without the packages around it, which want a whole engine.
"""

import importlib
import sys
import tempfile
import types
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import routecap
import torch

LAYERS, EXPERTS, K, SPARE, RANKS = 3, 8, 2, 4, 2


def policy(vllm: Path) -> type:
    name, folder = "vllm", vllm
    for below in ("distributed", "eplb", "policy", ""):
        package = types.ModuleType(name)
        package.__path__ = [str(folder)]
        sys.modules[name] = package
        name, folder = f"{name}.{below}", folder / below
    return importlib.import_module("vllm.distributed.eplb.policy.default").DefaultEplbPolicy


def counted(path: Path) -> routecap.Load:
    """The load of layers in each of which another expert is hot, saved as path."""
    with routecap.Capturer(layers=LAYERS, k=K, experts=EXPERTS, rows=32, load=True) as capturer:
        request = capturer.open()
        capturer.begin(32)
        rows = np.arange(32)
        for layer in range(LAYERS):
            hot = np.where(rows % 4 < 3, layer, (rows // 4) % EXPERTS)
            capturer.record(layer, np.stack([hot, (hot + 1 + rows % 5) % EXPERTS], axis=1))
        capturer.snapshot()
        capturer.issue(routecap.spans(request=request, rows=32)).wait()
        load = capturer.load()
    load.save(path)
    return load


def main() -> None:
    vllm = (
        Path(sys.argv[1]) / "vllm"
        if len(sys.argv) > 1
        else Path(find_spec("vllm").submodule_search_locations[0])
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "load.npy")
        load = counted(path)
        weight = torch.from_numpy(np.load(path))
    placed = policy(vllm).rebalance_experts(weight, EXPERTS + SPARE, 1, 1, RANKS)
    assert placed.shape == (LAYERS, EXPERTS + SPARE), placed.shape
    for layer in range(LAYERS):
        copies = np.bincount(placed[layer].numpy(), minlength=EXPERTS)
        assert (copies > 0).all() and copies.argmax() == load.total[layer].argmax(), copies
    print(f"vLLM places {EXPERTS} experts and {SPARE} copies of the hottest on {RANKS} ranks")


if __name__ == "__main__":
    main()

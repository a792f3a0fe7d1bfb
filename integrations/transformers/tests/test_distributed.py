"""A model whose experts are distributed over two processes: each rank captures the rows of its own
batch, with ids of all experts, in every layer.

The refusal of distributed experts was lifted when the first layer had been compared, on ranks with
one batch.
"""

import inspect
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from families import VERSION, make
from transformers.distributed import DistributedConfig

pytestmark = pytest.mark.slow  # two processes that import PyTorch and wait for one another
LAYERS = 4
RANK = Path(__file__).with_name("distributed_rank.py")
ONE_BATCH = {"tp_size": 2, "ep_size": 2}
"""Both ranks have the same tokens, and each computes what its experts add."""
OWN_BATCHES = {"fsdp_size": 2, "ep_size": 2}
"""Each rank has its own tokens, and sends them to the experts' ranks."""


def run(folder: Path, *settings: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """What each rank said, for each of the settings."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen(
            [sys.executable, RANK, folder, *map(json.dumps, settings)],
            env={**os.environ, **group, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = []
    try:
        for rank in ranks:
            output, errors = rank.communicate(timeout=500)
            assert rank.returncode == 0, errors[-3000:]
            said.append([json.loads(line) for line in output.splitlines()[-len(settings) :]])
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    return [list(ranks) for ranks in zip(*said, strict=True)]


SETTINGS: dict[str, dict[str, Any]] = {"one batch": ONE_BATCH}
if VERSION >= (5, 20):  # 5.19 refuses a batch of its own for each rank
    SETTINGS["own batches"] = OWN_BATCHES
if VERSION >= (5, 23):
    SETTINGS["one batch that is exchanged"] = ONE_BATCH | {"ep_implementation": "all_to_all"}
if VERSION < (5, 19):  # the experts are given ids of their own part
    SETTINGS = {"refused": {"enable_expert_parallel": True}}
    if "tp_size" in inspect.signature(DistributedConfig).parameters:
        SETTINGS["refused"]["tp_size"] = 2


# The ranks start once for all settings: most of their time is the import of torch.
@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("model")
    make("qwen3_moe", num_hidden_layers=LAYERS, mlp_only_layers=[]).save_pretrained(folder)
    return dict(zip(SETTINGS, run(folder, *SETTINGS.values()), strict=True))


@pytest.mark.parametrize("name", SETTINGS)
def test_every_layer_of_distributed_experts_is_what_its_router_chose(
    said: dict[str, list[dict[str, Any]]], name: str
) -> None:
    assert len(said[name]) == 2
    for rank in said[name]:
        assert rank["own"] == [4] * LAYERS  # of eight
        if name == "refused":
            assert "has a part of the experts (expert parallelism)" in rank["refused"]
            continue
        assert rank["experts"] == list(range(8))
        assert rank["wrong"] == [0] * LAYERS and min(rank["cells"]) > 80

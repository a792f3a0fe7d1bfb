"""The first of two ranks that share a sequence: its router sees a DTensor, and is replayed."""

import sys
from types import SimpleNamespace
from unittest import mock

import torch
import torch.distributed as dist
from routecap_replay.torchtitan import attach
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

sys.modules["torchtitan.distributed.minimal_async_ep.kernels"] = mock.MagicMock()
from torchtitan.models.common import config_utils as titan
from torchtitan.models.common.token_dispatcher import LocalTokenDispatcher

EXPERTS, K, BATCH, LENGTH, WIDTH = 8, 2, 2, 6, 16

dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
router = titan.make_router_config(
    dim=WIDTH, num_experts=EXPERTS, top_k=K, gate_param_init={"weight": torch.nn.init.normal_}
).build()
router.init_states()
weight = DTensor.from_local(router.gate.weight.data, mesh, [Replicate()], run_check=False)
router.gate.weight = torch.nn.Parameter(weight)
block = torch.nn.Module()
block.router = router
dispatcher = object.__new__(LocalTokenDispatcher)  # it runs in no test
block.routed_experts = SimpleNamespace(token_dispatcher=dispatcher)
model = torch.nn.Module()
model.layers = torch.nn.ModuleDict({"4": block})
model.forward = lambda hidden: router(hidden)

mine = torch.randn(BATCH, LENGTH // 2, WIDTH)
hidden = DTensor.from_local(mine, mesh, [Shard(1)], run_check=False)
rows = torch.stack([torch.randperm(EXPERTS)[:K] for _ in range(BATCH * LENGTH // 2)])
with attach(model) as replay, replay({4: rows}):
    scores, ids, whole = model(hidden)
assert isinstance(ids, DTensor) and ids.placements == (Shard(1),)
assert ids.shape == (BATCH, LENGTH, K) and replay.report().replayed == len(rows)
assert torch.equal(ids.to_local().reshape(-1, K), rows)
expected = whole.to_local().reshape(-1, EXPERTS).gather(1, rows)
assert torch.allclose(scores.to_local().reshape(-1, K), expected)
weights = torch.rand(rows.shape)
weights[1] = torch.nan
with attach(model) as replay, replay({4: rows}, weights={4: weights}):
    given, ids, whole = model(hidden)
assert isinstance(given, DTensor) and given.placements == (Shard(1),) and given.shape == ids.shape
wanted = torch.where(weights.isnan(), expected, weights)
assert torch.allclose(given.to_local().reshape(-1, K), wanted)
given.to_local().sum().backward()
gradient = router.gate.weight.grad.to_local()
router.zero_grad()
(mine.reshape(-1, WIDTH)[1] @ router.gate.weight.to_local().T).sigmoid()[rows[1]].sum().backward()
assert gradient.any() and torch.allclose(gradient, router.gate.weight.grad.to_local(), atol=1e-6)
with attach(model) as replay, replay.record() as own:
    _, live, _ = model(hidden)
assert torch.equal(own.rows(0)[4].long(), live.to_local().reshape(-1, K))
print("its own rows, as a DTensor")

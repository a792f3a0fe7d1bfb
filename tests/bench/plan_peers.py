"""Plans beside the functions of trainers that do the same: plan_peers.py FOLDER [--rows N], with
the FOLDER of tests/plan/golden/make.py, PyTorch and this package.

From routings of one byte for each id (routecap) or from the tensors that each function takes (int32
for slime, int16 for verl, left-padded uint8 for SkyRL) to int64 [layers, rows, k] in host memory,
as Megatron's routers take it. One thread each, and its processor time, so that others on the
machine count little; medians of 5 runs, interleaved.
"""

import argparse
import importlib.util
import statistics
import time
from pathlib import Path

import numpy as np
import routecap
import torch

LAYERS, K, EXPERTS = 48, 8, 128


def layouts():
    """tests/plan/golden/make.py, which runs the functions of trainers."""
    spec = importlib.util.spec_from_file_location(
        "make", Path(__file__).parents[1] / "plan/golden/make.py"
    )
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    return make


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=65536)
    given = parser.parse_args()
    torch.set_num_threads(1)
    make = layouts()
    theirs = make.Trainers(given.folder)
    theirs.ranks.context_size, theirs.ranks.context_rank = 2, 0
    lengths, left, n = [], given.rows, 700
    while left > 0:
        lengths.append(min(max(n, 2), left))
        left, n = left - lengths[-1], n * 7 % 8009 + 200
    random = np.random.default_rng(1)
    base = np.array([random.permutation(EXPERTS)[:K] for _ in range(4096)], np.uint8)
    ids = [
        base[random.integers(0, 4096, (max(length - 1, 0), LAYERS))].reshape(-1, LAYERS, K)
        for length in lengths
    ]
    routings = [routecap.Routing.from_arrays(each, experts=EXPERTS) for each in ids]
    for_slime = [torch.from_numpy(each.astype(np.int32)) for each in ids]
    tokens = [torch.arange(length) for length in lengths]
    jagged = torch.nested.as_nested_tensor(
        [torch.from_numpy(each.astype(np.int16)) for each in ids], layout=torch.jagged
    )
    inputs = torch.nested.as_nested_tensor(tokens, layout=torch.jagged)
    for_skyrl, mask = make.left_padded([torch.from_numpy(each) for each in ids])
    plan = routecap.Plan(
        lengths, layers=LAYERS, k=K, experts=EXPERTS, context="zigzag", context_size=2
    )
    out = np.zeros(plan.shape, np.int64)

    def ours():
        made = routecap.Plan(
            lengths, layers=LAYERS, k=K, experts=EXPERTS, context="zigzag", context_size=2
        )
        return made.gather(routings, out=out).ids

    def slime():
        rows = theirs.slime.prepare_routed_experts_for_routing_replay(
            for_slime,
            tokens,
            num_experts=EXPERTS,
            data_pad_size_multiplier=1,
            sequence_parallel=False,
            allgather_cp=False,
        )
        return [rows[:, layer].to(torch.int64).contiguous() for layer in range(LAYERS)]

    def verl():
        rows, _, _ = theirs.verl.preprocess_thd_engine(theirs.align(jagged, inputs))
        rows = rows.squeeze(0).permute(1, 0, 2)
        return [rows[layer].to(torch.int64).contiguous() for layer in range(LAYERS)]

    def skyrl():
        packed = theirs.skyrl._pack_replay_indices(for_skyrl, mask)
        return [rows.to(torch.int64) for rows in theirs.skyrl._split_replay_indices(packed)]

    calls = {"routecap": ours, "slime": slime, "verl": verl, "SkyRL": skyrl}
    times = {name: [] for name in calls}
    results = {}
    for _ in range(6):
        for name, call in calls.items():
            start = time.thread_time()
            results[name] = call()
            times[name].append(time.thread_time() - start)
    valid = plan.gather(routings).classes[0] == routecap.PlanClass.VALID
    for name in ("slime", "verl", "SkyRL"):
        same = all(
            (results[name][layer].numpy()[valid] == results["routecap"][layer][valid]).all()
            for layer in range(LAYERS)
        )
        assert same, name
    print(f"{given.rows} tokens in {len(lengths)} sequences, {LAYERS} x {K}, zigzag rank 0 of 2")
    own = statistics.median(times["routecap"][1:])
    for name, each in times.items():
        median = statistics.median(each[1:])
        print(f"{name:10} {median * 1e3:9.1f} ms {median / own:8.1f} x")


if __name__ == "__main__":
    main()

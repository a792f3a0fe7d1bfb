"""vLLM 0.33's own connector for auxiliary output beside routecap's, without a GPU.

    python3 aux_output.py

Both sides of both are driven through the same random schedules: every output of every step has the
same rows from the same position on. Then with a store that is too small, in which the engine's own
cannot give what the scheduler promised.
"""

import sys
import threading
from pathlib import Path
from types import SimpleNamespace

sys.path.append(str(Path(__file__).resolve().parents[1]))
import numpy as np
import torch
from schedule import BLOCK, Cache, Router, Run, capture, rows_connector
from vllm.distributed.aux_output_connector import connector as own_connector
from vllm.distributed.aux_output_connector import routed_experts, store, worker

from routecap_vllm import _aux_output

LAYERS, K, EXPERTS = 6, 4, 32
BLOCK_BYTES = BLOCK * LAYERS * K


def own(blocks):
    """The engine's, as its own tests make it."""
    made = object.__new__(worker.AuxOutputWorkerConnector)
    blocks = store.BlockObjectStore(max_bytes=BLOCK_BYTES * blocks, object_nbytes=BLOCK_BYTES)
    made._store = store.BackgroundBlockObjectStore(blocks, max_pending_batches=64)
    made._buffer = routed_experts.RoutedExpertsBuffer(
        np.dtype("uint8"), (LAYERS, K), BLOCK, 16, 64, 2
    )
    made._requests, made._generation, made._pending_outputs = {}, 0, []
    made._step_metadata, made._lock, made._max_concurrent_batches = None, threading.Lock(), 2
    return made


def own_forward(made, rows):
    data = torch.from_numpy(rows.astype(np.uint8))
    made._capturer = SimpleNamespace(snapshot_routing_data=lambda count: data[:count])


def ours(store_bytes):
    return rows_connector(
        LAYERS, K, EXPERTS, own_connector.AuxRequestOutput, store_bytes=store_bytes
    )


def scheduling(cache):
    """The scheduler's side, and the engine's own class of it."""
    module = SimpleNamespace(AuxOutputSchedulerConnector=own_connector.AuxOutputSchedulerConnector)
    _aux_output.put_scheduler(module)
    return module.AuxOutputSchedulerConnector(cache)


class Judge:
    def __init__(self, router, scheduling):
        self.router, self.scheduling = router, scheduling
        self.outputs = self.rows = self.missing = self.wrong = 0

    def __call__(self, request, outputs):
        *others, mine = outputs
        if mine is None:
            self.wrong += any(each is not None for each in others)
            return
        self.outputs += 1
        for other in others:
            self.wrong += other is None or other.token_start != mine.token_start
            self.wrong += other is None or not np.array_equal(other.rows, mine.rows)
        first, tokens = mine.token_start, request.truth(mine.token_start + len(mine.rows))
        for position, row in enumerate(mine.rows, first):
            self.rows += 1
            missing = (row == -1).all()
            self.missing += missing
            expected = self.router.ids(tokens[: position + 1])
            self.wrong += not missing and not np.array_equal(row, expected)


passed = failed = 0
for seed in range(12):
    drafts, ahead = (0, 2)[seed % 2], (1, 2)[seed // 2 % 2]
    cache, router = Cache(), Router(LAYERS, K, EXPERTS)
    side = scheduling(cache)
    judge = Judge(router, side)
    mine, theirs = ours(1 << 24), own(4096)
    run = Run(seed, router, side, [(theirs, own_forward), (mine, capture)], judge, drafts, ahead)
    run.cache = cache
    run.steps(300)
    theirs.close()
    good = not judge.wrong and not judge.missing and run.hits > 100 and judge.rows > 1000
    passed, failed = passed + good, failed + (not good)
    print(
        f"seed {seed}, {drafts} drafts, {ahead} steps ahead: {judge.outputs} outputs,"
        f" {judge.rows} rows, {run.hits} of prefixes, {run.preempted} preempted,"
        f" {judge.wrong} differ, {judge.missing} missing"
    )
cache, router = Cache(4000), Router(LAYERS, K, EXPERTS)
side = scheduling(cache)
judge = Judge(router, side)
run = Run(1, router, side, [(ours(0), capture)], judge, prefixes=30, forget=0.001, reset=0)
run.cache = cache
run.steps(600)
good = not judge.wrong and 0 < judge.missing < run.hits
passed, failed = passed + good, failed + (not good)
print(f"a small store: {judge.rows} rows, {judge.wrong} wrong, {judge.missing} missing")
print(f"{passed} checks passed, {failed} failed")
sys.exit(failed > 0)

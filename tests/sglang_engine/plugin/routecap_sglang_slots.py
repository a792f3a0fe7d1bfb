"""What was computed into each slot of SGLang's KV cache, and so which rows a request's KV has: seen
at the routers' output and in the requests' tables of slots, and nowhere else.

A row that a request computed is what its routers chose for it then. A row that it took from the
cache is what was chosen when that slot was written. Whenever SGLang gives a request's slots back,
its rows so far are added to a file.
"""

import pickle

import numpy as np


class Slots:
    """version: how many updates of the weights there were."""

    def __init__(self, path):
        self.file = open(path, "ab")
        self.version, self.pass_ids = 0, {}
        self.ids = self.versions = None  # of each slot
        self.requests = {}  # rid -> [life, ids, versions, from the cache] by position

    def forward(self, original, runner, batch, *args, **kwargs):
        requests = getattr(batch, "test_requests", None)
        if not requests or runner.is_draft_worker:
            return original(runner, batch, *args, **kwargs)
        if batch.forward_mode.is_decode():
            firsts = (batch.seq_lens_cpu - 1).tolist()
            counts = [1] * len(firsts)
        else:
            firsts, counts = list(batch.extend_prefix_lens_cpu), list(batch.extend_seq_lens_cpu)
        table = runner.req_to_token_pool.req_to_token
        pools, slots = batch.req_pool_indices.tolist(), batch.out_cache_loc.numpy().copy()
        hits = [table[pool, :first].numpy().copy() for pool, first in zip(pools, firsts)]
        self.pass_ids.clear()
        output = original(runner, batch, *args, **kwargs)
        ids = np.stack([self.pass_ids[layer] for layer in sorted(self.pass_ids)], 1)
        if self.ids is None:
            size = runner.max_total_num_tokens + 4096
            self.ids = np.full((size, *ids.shape[1:]), -2, np.int16)
            self.versions = np.full(size, -1, np.int32)
        before = [(self.ids[hit], self.versions[hit]) for hit in hits]
        rows = sum(counts)
        self.ids[slots[:rows]], self.versions[slots[:rows]] = ids[:rows], self.version
        at = 0
        for request, first, count, hit in zip(requests, firsts, counts, before):
            self.add(request, first, count, hit, ids[at : at + count])
            at += count
        return output

    def add(self, request, first, count, hit, ids):
        life = request.retraction_count
        known = self.requests.get(request.rid)
        if known is None or known[0] != life:
            nothing = [np.empty((0, *ids.shape[1:]), np.int16), np.empty(0, np.int32)]
            known = self.requests[request.rid] = [life, *nothing, np.empty(0, bool)]
        at = min(first, len(known[1]))
        new = (hit[0][at:], ids), (hit[1][at:], np.full(count, self.version))
        new += ((np.ones(first - at, bool), np.zeros(count, bool)),)
        known[1:] = [np.concatenate([old[:at], *more]) for old, more in zip(known[1:], new)]

    def released(self, cache, request):
        if request.rid in self.requests:
            pickle.dump((request.rid, *self.requests[request.rid]), self.file)
            self.file.flush()


def watch(path):
    from sglang.srt.layers.moe.topk import TopK
    from sglang.srt.managers.scheduler_components.weight_updater import (
        SchedulerWeightUpdaterManager,
    )
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.model_executor.model_runner import ModelRunner
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    slots = Slots(path)

    def chosen(output, topk, *args, **kwargs):
        slots.pass_ids[topk.layer_id] = output.topk_ids.to("cpu").numpy().astype(np.int16)

    def named(batch, cls, of, *args, **kwargs):
        batch.test_requests = of.reqs

    def updated(*args, **kwargs):
        slots.version += 1

    for owner, name, hook, kind in (
        (TopK, "forward", chosen, HookType.AFTER),
        (ForwardBatch, "init_new", named, HookType.AFTER),
        (ModelRunner, "forward", slots.forward, HookType.AROUND),
        (UnifiedRadixCache, "claim_kv_row", slots.released, HookType.BEFORE),
        (
            SchedulerWeightUpdaterManager,
            "record_weight_version_after_update",
            updated,
            HookType.AFTER,
        ),
    ):
        HookRegistry.register(f"{owner.__module__}.{owner.__name__}.{name}", hook, kind)

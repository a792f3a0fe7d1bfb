"""What was computed into each slot of SGLang's KV cache, and so which rows a request's KV has: seen
at the routers' output and in the requests' tables of slots, and nowhere else.

A row that a request computed is what its routers chose for it then. A row that it took from the
cache is what was chosen when that slot was written. Each pass adds its requests' new rows to a file.
"""

import os
import pickle

import numpy as np
from routecap_sglang_cpu import after, around


class Slots:
    """version: how many updates of the weights there were."""

    def __init__(self):
        self.file = None
        self.version, self.given = 0, {}  # in this pass: layer -> ids, weights
        self.ids = self.weights = self.versions = None  # of each slot
        self.known = {}  # rid -> life, rows

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
        self.given.clear()
        output = original(runner, batch, *args, **kwargs)
        of_layers = zip(*(self.given[layer] for layer in sorted(self.given)), strict=True)
        ids, weights = (np.stack(each, 1) for each in of_layers)
        if self.ids is None:
            self.file = open(os.environ["ROUTECAP_TEST_SLOTS"], "ab")
            size = runner.max_total_num_tokens + 4096
            self.ids = np.full((size, *ids.shape[1:]), -2, np.int16)
            self.weights = np.full(self.ids.shape, np.nan, np.float32)
            self.versions = np.full(size, -1, np.int32)
        before = [(self.ids[hit], self.weights[hit], self.versions[hit]) for hit in hits]
        rows = sum(counts)
        self.ids[slots[:rows]], self.weights[slots[:rows]] = ids[:rows], weights[:rows]
        self.versions[slots[:rows]] = self.version
        at = 0
        for request, first, count, hit in zip(requests, firsts, counts, before):
            self.add(request, first, count, hit, ids[at : at + count], weights[at : at + count])
            at += count
        self.file.flush()
        return output

    def add(self, request, first, count, hit, ids, weights):
        life, rows = self.known.get(request.rid, (request.retraction_count, 0))
        at = min(first, rows) if life == request.retraction_count else 0
        new = (
            np.concatenate([hit[0][at:], ids]),
            np.concatenate([hit[1][at:], weights]),
            np.concatenate([hit[2][at:], np.full(count, self.version)]),
        )
        cached = np.arange(at, first + count) < first
        pickle.dump((request.rid, at, *new, cached), self.file)
        self.known[request.rid] = request.retraction_count, first + count


def watch():
    from sglang.srt.layers.moe.topk import TopK
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.model_executor.model_runner import ModelRunner
    from sglang.srt.models.qwen3_moe import Qwen3MoeForCausalLM

    slots = Slots()

    def chosen(output, topk, *args, **kwargs):
        ids = output.topk_ids.to("cpu").numpy().astype(np.int16)
        slots.given[topk.layer_id] = ids, output.topk_weights.to("cpu", copy=True).numpy()

    def named(batch, cls, of, *args, **kwargs):
        batch.test_requests = of.reqs

    def loaded(*args, **kwargs):
        if slots.ids is not None:  # the first time, before there is a pass
            slots.version += 1

    after(TopK, "forward", chosen)
    after(ForwardBatch, "init_new", named)
    around(ModelRunner, "forward", slots.forward)
    after(Qwen3MoeForCausalLM, "load_weights", loaded)

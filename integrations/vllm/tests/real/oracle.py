"""An oracle of what vLLM's routers chose, by the slots of the KV cache.

It shares no code with routecap, and knows nothing of the order of the batch, of counters or of
hashes: a row is a request's where the request's block is, and a request that takes a block from the
prefix cache has what was last computed into it. With async scheduling the scheduler counts drafts as
computed whose fate it does not know: a request's rows may then lie before those that it told.
"""

import collections
import os
import pickle
import threading
import time

import numpy as np
import releases
import router_weights
import torch
from vllm.model_executor.layers.fused_moe.router.base_router import BaseRouter

Row = collections.namedtuple("Row", "ids version who hit")
"""What a request attends to at a position: ids [layers, k], and behind them their weights if these
are captured (router_weights.py); the version of the model's weights then, the request that computed
it, and whether it was there already."""


class Oracle:
    """Make it before the engine.

    block: rows of a block of the KV cache.
    version: of the weights, as whoever changes them says.
    lives: {request: [{position: Row}]}: one for each time that it began.
    odd: a Counter of what must not be. notes: what is known of the first rows without an owner.
    """

    def __init__(self, block, rows=8192):
        self.block, self.version = block, 0
        self.lives, self.odd = collections.defaultdict(list), collections.Counter()
        self.notes = []
        self._buffers, self._layers, self._tables, self._slots = [], {}, {}, {}
        self._drafts = {}  # of the last step, {request: how many}
        self._told = self._batch = None
        wanted = router_weights.WANTED
        self._watched = router_weights.Watched(self._layers, rows) if wanted else None
        kind = releases.runner_class()
        place, execute = BaseRouter._apply_eplb_mapping, kind.execute_model
        sample = kind.sample_tokens

        def place_experts(router, ids):
            layer = self._layers.setdefault(id(router), len(self._layers))
            if layer == len(self._buffers):
                shape = (rows, ids.shape[1])
                self._buffers.append(torch.full(shape, -7, dtype=torch.int32, device=ids.device))
            self._buffers[layer][: len(ids)].copy_(ids)
            return place(router, ids)

        def execute_model(runner, step, *args, **kwargs):
            if not releases.is_dummy(args, kwargs):
                self._tell(step)
            return execute(runner, step, *args, **kwargs)

        def sample_tokens(runner, *args, **kwargs):
            if self._told is not None:
                self._computed()
            return sample(runner, *args, **kwargs)

        def see(slots, positions):
            self._batch = slots, positions

        BaseRouter._apply_eplb_mapping = place_experts
        kind.execute_model, kind.sample_tokens = execute_model, sample_tokens
        releases.watch_batches(see)

    def begun_anew(self):
        return sum(len(each) - 1 for each in self.lives.values())

    def _tell(self, step):
        """What the scheduler says: blocks of requests, and what they compute."""
        if any(name.startswith("_warmup_") for name in step.num_scheduled_tokens):
            return  # of vLLM's own, which no scheduler made
        cached, begins = step.scheduled_cached_reqs, {}
        for name in (*step.finished_req_ids, *(step.preempted_req_ids or ())):
            self._tables.pop(name, None)
        for new in step.scheduled_new_reqs:
            begins[new.req_id] = list(new.block_ids[0])
        for name, blocks in zip(cached.req_ids, cached.new_block_ids, strict=True):
            blocks = list(blocks[0]) if blocks else []
            if name in cached.resumed_req_ids:
                begins[name] = blocks
            else:
                self._tables[name] += blocks
        computed = {each.req_id: each.num_computed_tokens for each in step.scheduled_new_reqs}
        computed |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        for name, blocks in begins.items():
            self._tables[name] = blocks
            self.lives[name].append({})
        if step.total_num_scheduled_tokens:
            known = {name: each - self._drafts.get(name, 0) for name, each in computed.items()}
            known |= {name: computed[name] for name in begins}
            self._told = dict(step.num_scheduled_tokens), computed, known, list(begins)
            drafts = step.scheduled_spec_decode_tokens
            self._drafts = {name: len(each) for name, each in drafts.items()}

    def _computed(self):
        (counts, computed, known, begins), (slots, positions) = self._told, self._batch
        self._told = self._batch = None
        owners = collections.defaultdict(list)
        for name in counts:
            for index, number in enumerate(self._tables[name]):
                owners[number].append((name, index * self.block))
        ids = torch.stack([each[: len(slots)] for each in self._buffers], 1)
        ids = ids.cpu().numpy().astype(np.int16)
        self.odd["rows that no router wrote"] += int((ids < 0).any((1, 2)).sum())
        if self._watched is not None:
            ids = self._watched.beside(ids)
        self.odd["rows that the scheduler did not count"] += abs(len(slots) - sum(counts.values()))
        for slot, position, row in zip(slots.tolist(), positions.tolist(), ids, strict=True):
            here = [
                name
                for name, first in owners[slot // self.block]
                if first + slot % self.block == position
                and known[name] <= position < computed[name] + counts[name]
            ]
            found = [name for name in here if computed[name] <= position] or here
            if len(found) != 1:
                self.odd[f"rows of {len(found)} owners"] += 1
                if len(self.notes) < 12:
                    near = [
                        (name, first + slot % self.block, known[name], computed[name], counts[name])
                        for name, first in owners[slot // self.block]
                    ]
                    self.notes.append(f"slot {slot}, position {position}, of {near}")
                continue
            self._slots[slot] = Row(row, self.version, found[0], False)
            self.lives[found[0]][-1][position] = self._slots[slot]
        for name in begins:  # also what others compute in this step
            for position in range(computed[name]):
                number = self._tables[name][position // self.block]
                slot = number * self.block + position % self.block
                if slot in self._slots:
                    self.lives[name][-1][position] = self._slots[slot]._replace(hit=True)
                else:
                    self.odd["hits of what nobody computed"] += 1

    def serve(self, file):
        """Write what is known to a file whenever FILE.ask appears, and then FILE.done."""
        threading.Thread(target=self._serve, args=(file,), daemon=True).start()

    def _serve(self, file):
        while True:
            time.sleep(0.1)
            if os.path.exists(f"{file}.ask"):
                os.unlink(f"{file}.ask")
                lives = {name: list(map(dict, each)) for name, each in list(self.lives.items())}
                plain = {
                    name: [{at: tuple(row) for at, row in life.items()} for life in each]
                    for name, each in lives.items()
                }
                with open(file, "wb") as out:
                    pickle.dump((plain, +self.odd), out)
                open(f"{file}.done", "w").close()

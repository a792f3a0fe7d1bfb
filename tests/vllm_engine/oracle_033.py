"""An oracle of what the routers of vLLM 0.33 chose, by the slots of the KV cache.

It shares no code with routecap, and knows nothing of the order of the batch, of counters or of
hashes: a row is a request's where the request's block is, and a request that takes a block from the
prefix cache has what was last computed into it.
"""

import collections
import os
import pickle
import threading
import time


class Life:
    """A request from when it is scheduled until it ends or is preempted.

    truth: {position: (ids [layers, k], version of the weights, "hit" or "computed")}
    """

    def __init__(self):
        self.truth = {}


class Oracle:
    """Make it before the engine.

    steps: of each step what the scheduler said, slots, positions, ids and version.
    version: of the weights, as whoever changes them says.
    preempted: how many requests were, again and again.
    """

    def __init__(self, block, rows=8192):
        import torch
        from vllm.model_executor.layers.fused_moe.router.base_router import BaseRouter
        from vllm.v1.worker.gpu.model_runner import GPUModelRunner

        self.buffers, self.steps, self.block = [], [], block
        self.version = self.preempted = self.copies = 0
        layers, now = {}, {}
        select, attend = BaseRouter.select_experts, GPUModelRunner.prepare_attn
        execute, sample = GPUModelRunner.execute_model, GPUModelRunner.sample_tokens

        def select_experts(router, *args, **kwargs):
            weights, ids = select(router, *args, **kwargs)
            layer = layers.setdefault(id(router), len(layers))
            if layer == len(self.buffers):
                shape = (rows, ids.shape[1])
                self.buffers.append(torch.full(shape, -7, dtype=torch.int32, device=ids.device))
            self.buffers[layer][: len(ids)].copy_(ids)
            return weights, ids

        def prepare_attn(runner, batch, *args, **kwargs):
            found = attend(runner, batch, *args, **kwargs)
            now["slots"] = found[1][0][: batch.num_tokens].clone()
            now["positions"] = batch.positions[: batch.num_tokens].clone()
            return found

        def execute_model(runner, step, *args, **kwargs):
            if not (kwargs.get("dummy_run") or (len(args) > 1 and args[1])):
                now["told"] = self._told(step)
                if not step.total_num_scheduled_tokens:
                    self.steps.append((now.pop("told"), None, None, None, self.version))
            return execute(runner, step, *args, **kwargs)

        def sample_tokens(runner, *args, **kwargs):
            if "told" in now and "slots" in now:
                slots = now.pop("slots")
                ids = torch.stack([each[: len(slots)] for each in self.buffers], 1)
                step = now.pop("told"), slots, now.pop("positions"), ids.to(torch.int16)
                self.steps.append((*step, self.version))
            return sample(runner, *args, **kwargs)

        BaseRouter.select_experts = select_experts
        GPUModelRunner.prepare_attn = prepare_attn
        GPUModelRunner.execute_model = execute_model
        GPUModelRunner.sample_tokens = sample_tokens

    def _told(self, step):
        cached = step.scheduled_cached_reqs
        self.copies += len(step.kv_cache_block_copies or ())
        self.preempted += len(step.preempted_req_ids or ())
        began = {each.req_id: each.num_computed_tokens for each in step.scheduled_new_reqs}
        began |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        more = zip(cached.req_ids, cached.new_block_ids, strict=True)
        return (
            set(step.finished_req_ids) | set(step.preempted_req_ids or ()),
            [
                (each.req_id, list(each.block_ids[0]), each.num_computed_tokens)
                for each in step.scheduled_new_reqs
            ],
            [(name, list(blocks[0])) for name, blocks in more if blocks is not None],
            dict(step.num_scheduled_tokens),
            began,
        )

    def forget(self):
        """What came before, as a warm-up."""
        self.steps.clear()
        self.preempted = 0

    def lives(self):
        """{name: [Life]}, and a Counter of what is odd."""
        found, odd = collections.defaultdict(list), collections.Counter()
        tables, slot_truth, block = {}, {}, self.block
        for (gone, new, more, counts, began), slots, positions, ids, version in list(self.steps):
            for name in gone:
                tables.pop(name, None)
            for name, blocks, _ in new:
                found[name].append(Life())
                tables[name] = blocks
            for name, blocks in more:
                tables[name] = tables[name] + blocks
            if slots is None:
                continue
            owners_of = collections.defaultdict(list)
            for name in counts:
                for index, number in enumerate(tables[name]):
                    owners_of[number].append((name, index))
            ids = ids.cpu().numpy()
            rows = zip(slots.cpu().tolist(), positions.cpu().tolist(), ids, strict=True)
            for slot, position, row in rows:
                owners = [
                    (name, index * block + slot % block) for name, index in owners_of[slot // block]
                ]
                if len(owners) > 1:  # of those that share a block, the one that computes in it
                    owners = [
                        (name, at)
                        for name, at in owners
                        if began[name] <= at < began[name] + counts[name]
                    ]
                if len(owners) != 1 or owners[0][1] != position:
                    odd[f"rows of {len(owners)} owners"] += 1
                    continue
                odd["rows that no router wrote"] += bool((row < 0).any())
                slot_truth[slot] = row, version
                found[owners[0][0]][-1].truth[position] = row, version, "computed"
            for name, blocks, computed in new:  # also what others compute in this step
                for position in range(computed):
                    slot = blocks[position // block] * block + position % block
                    if slot in slot_truth:
                        found[name][-1].truth[position] = (*slot_truth[slot], "hit")
                    else:
                        odd["hits of what nobody computed"] += 1
        odd["copies of blocks"] += self.copies
        return dict(found), +odd

    def serve(self, file):
        """Write the lives to a file whenever FILE.ask appears, and then FILE.done."""
        threading.Thread(target=self._serve, args=(file,), daemon=True).start()

    def _serve(self, file):
        while True:
            time.sleep(0.1)
            if os.path.exists(f"{file}.ask"):
                os.unlink(f"{file}.ask")
                lives, odd = self.lives()
                with open(file, "wb") as out:
                    plain = {name: [life.truth for life in each] for name, each in lives.items()}
                    pickle.dump((plain, odd), out)
                open(f"{file}.done", "w").close()

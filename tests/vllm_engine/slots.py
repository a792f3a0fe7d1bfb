"""Row by row: what callers of vLLM get of a request, and what was computed into the blocks of the
KV cache that the request attends to.

    python3 slots.py [--rows N] [--block ROWS] [--blocks N] [--sync] [--updates load|tag|none]
                     [--flush P] [--store FILE] [--seed N]

The oracle goes by the numbers of blocks alone, as the worker's table has them: it knows no hash, no
version and nothing of what routecap was told. Random traffic has prompts in common, prompts of whole
blocks and prompt_logprobs (whose requests compute blocks that are there already), preemptions,
aborts, requests that are off, and weights that change every few steps: with the cache emptied and
what runs preempted, with a try to empty it, and without. With --store two engines of one file, in
two processes, go through that side by side. Prints a line for each kind of row, and PASSED or FAILED.
"""

import argparse
import collections
import os
import random
import subprocess
import sys

parser = argparse.ArgumentParser()
parser.add_argument("--rows", type=int, default=20000, help="as many are judged at least")
parser.add_argument("--block", type=int, default=16)
parser.add_argument("--blocks", type=int, default=0, help="of the cache; few: preemptions")
parser.add_argument("--sync", action="store_true", help="no async scheduling")
parser.add_argument("--updates", choices=("load", "tag", "none"), default="load")
parser.add_argument(
    "--flush", type=float, default=0.3, help="share of updates that empty the cache"
)
parser.add_argument("--store", default="", help="a file that two engines share")
parser.add_argument("--seed", type=int, default=0)
options = parser.parse_args()
if options.store and options.updates == "load":
    options.updates = "tag"  # both are to have the same numbers for the same weights

other = None
if options.store:
    os.environ["ROUTECAP_VLLM_STORE_FILE"] = options.store
    os.environ["PYTHONHASHSEED"] = "0"
    if "SLOTS_OTHER" not in os.environ:
        arguments = [sys.executable, *sys.argv, "--seed", str(options.seed + 1000)]
        other = subprocess.Popen(arguments, env=os.environ | {"SLOTS_OTHER": "1"})

import engine  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from vllm.v1.worker.gpu_model_runner import GPUModelRunner  # noqa: E402

import routecap  # noqa: E402
import routecap.vllm  # noqa: E402

VOCABULARY, LONGEST = 2048, max(256, 6 * options.block)
BLOCKS = options.blocks or max(640 // options.block, 16)
EVERY = 9  # steps from one update to the next


class Slots:
    """What was computed into each row of each block, and so what each request attended to.

    truth: {request: {position: (ids [layers, k], version, who computed it, whether it was a hit)}},
        of the request's last life.
    """

    def __init__(self, rows=8192):
        from vllm.model_executor.layers.fused_moe.router.base_router import BaseRouter

        self.version, self.preempted, self.twins = 0, 0, 0
        self.truth, self._slots = collections.defaultdict(dict), {}
        self._step, self._layers, self.buffers = [], {}, []
        place, prepare = BaseRouter._apply_eplb_mapping, GPUModelRunner._prepare_inputs
        sample = GPUModelRunner.sample_tokens

        def place_experts(router, ids):
            layer = self._layers.setdefault(id(router), len(self._layers))
            if layer == len(self.buffers):
                shape = (rows, ids.shape[1])
                self.buffers.append(torch.full(shape, -7, dtype=torch.int32, device=ids.device))
            self.buffers[layer][: len(ids)].copy_(ids)
            return place(router, ids)

        def prepare_inputs(runner, scheduled, *args, **kwargs):
            batch, table = runner.input_batch, runner.input_batch.block_table[0]
            begins = {each.req_id for each in scheduled.scheduled_new_reqs}
            begins |= scheduled.scheduled_cached_reqs.resumed_req_ids
            self.preempted += len(scheduled.scheduled_cached_reqs.resumed_req_ids)
            numbers = table.get_numpy_array()
            self._step = [
                (
                    name,
                    int(batch.num_computed_tokens_cpu[i]),
                    int(scheduled.num_scheduled_tokens[name]),
                    numbers[i].copy(),
                    name in begins,
                )
                for i, name in enumerate(batch.req_ids[: batch.num_reqs])
            ]
            self.size = table.block_size
            return prepare(runner, scheduled, *args, **kwargs)

        def sample_tokens(runner, *args, **kwargs):
            self._computed()
            return sample(runner, *args, **kwargs)

        BaseRouter._apply_eplb_mapping = place_experts
        GPUModelRunner._prepare_inputs = prepare_inputs
        GPUModelRunner.sample_tokens = sample_tokens

    def _computed(self):
        step, self._step, at = self._step, [], 0
        if not step:
            return
        total = sum(count for _, _, count, _, _ in step)
        ids = torch.stack([each[:total] for each in self.buffers], 1).cpu().numpy().astype(np.int16)
        for name, first, count, numbers, begins in step:
            if begins:
                self.truth[name].clear()
            for position in range(first, first + count):
                row = ids[at], self.version, name
                self._slots[int(numbers[position // self.size]), position % self.size] = row
                self.truth[name][position] = *row, False
                at += 1
        for name, first, _, numbers, begins in step:  # also what another computed in this step
            for position in range(first if begins else 0):
                place = int(numbers[position // self.size]), position % self.size
                if place in self._slots:  # otherwise from before
                    self.truth[name][position] = *self._slots[place], True

    def forget(self):
        """What came before, as a warm-up."""
        self.truth.clear(), self._slots.clear()
        self.preempted = 0


routecap.vllm.install()
slots = Slots()
llm, runner = engine.make(
    "tiny",
    True,
    async_scheduling=not options.sync,
    max_num_batched_tokens=max(128, 2 * options.block),
    max_model_len=LONGEST,
    max_num_seqs=8,
    max_logprobs=5,
    enable_prefix_caching=True,
    block_size=options.block,
    num_gpu_blocks_override=BLOCKS,
    **engine.cache_of(2),
)
ROUTES, running = engine.layers_that_route(llm), llm.llm_engine
slots.forget()
draw, counts, notes = random.Random(options.seed), collections.Counter(), []
shared = [[random.Random(i).randrange(VOCABULARY) for _ in range(LONGEST)] for i in range(3)]
requests, without, number = {}, set(), 0  # without: those that are off


def add():
    """One whose prompt others have too, up to some point."""
    global number
    most = LONGEST - 24
    if draw.random() < 0.4:
        length = options.block * draw.randint(1, max(1, most // options.block))
    else:
        length = draw.randint(1, most)
    prompt, more, parameters = list(draw.choice(shared)[:length]), {}, {}
    if draw.random() < 0.25 and length > 2:
        prompt[length // 2 :] = [draw.randrange(VOCABULARY) for _ in range(length - length // 2)]
    if draw.random() < 0.06:
        parameters["prompt_logprobs"] = 1
    if draw.random() < 0.1:
        more["cache_salt"] = f"salt {draw.randrange(2)}"
    off = draw.random() < 0.05
    if off:
        parameters["extra_args"] = {"routed_experts": False}
    name, tokens = f"r{number}", draw.choice((1, 2, 5, 12, 20))
    number += 1
    given = {"prompt_token_ids": prompt, **more}
    internal = running.add_request(name, given, engine.sampling(tokens, **parameters)) or name
    # vLLM does not bear that what computes prompt_logprobs is preempted by an emptied cache.
    requests[name] = internal, prompt, off, "prompt_logprobs" in parameters
    if off:
        without.add(internal)


def update():
    """New weights, as a trainer brings them; and what is done about the cache, if anything is."""
    slots.version += 1
    model = runner.get_model()
    engine.draw_weights(model, 1 + slots.version)  # of one version the same in all engines
    norm = model.model.norm.weight
    if options.updates == "load":
        model.load_weights([("model.norm.weight", torch.ones(norm.shape))])
    else:
        llm.collective_rpc("routecap_set_tag", args=(slots.version,))
    if draw.random() < options.flush and not any(each[3] for each in requests.values()):
        counts[f"emptied: {llm.reset_prefix_cache(reset_running_requests=True)}"] += 1
    elif draw.random() < 0.3:
        counts[f"tried to empty: {llm.reset_prefix_cache()}"] += 1


def judge(output):
    if output.request_id not in requests:
        return  # was aborted
    internal, prompt, off, _ = requests.pop(output.request_id)
    truth = slots.truth.pop(internal, {})
    completion = output.outputs[0]
    got = engine.given(output, ROUTES)
    if off:
        counts["WRONG off, and with rows" if got is not None else "off"] += 1
        return
    count = len(prompt) + len(completion.token_ids) - 1
    if got is None or len(got[0]) != count:
        if count:
            counts[f"WRONG {0 if got is None else len(got[0])} rows of {count}"] += 1
        return
    counts["requests"] += 1
    if not count:
        return
    last = vars(completion).get("_routed_experts") or vars(output).get("_prompt_routed_experts")
    tags, reasons = last.routing.tags, last.routing.reasons()
    for position, (row, mask) in enumerate(zip(*got, strict=True)):
        counts["rows"] += 1
        if position not in truth:
            counts["WRONG of no block"] += 1
            continue
        ids, version, who, hit = truth[position]
        if not mask.any():
            counts[missing(hit, who, version, reasons[position])] += 1
        elif not mask.all() or not (row == ids).all():
            counts[f"WRONG rows, {'hit' if hit else 'computed'}"] += 1
            notes.append((output.request_id, position, who, version, int(tags[position])))
        elif options.updates == "tag" and tags[position] != version:
            counts["WRONG tags"] += 1
        else:
            old = ", of older weights" if version < slots.version else ""
            counts[f"right, {f'hit{old}' if hit else 'computed'}"] += 1


def missing(hit, who, version, reasons):
    reason = routecap.Missing(int(reasons.max())).name
    if not hit:
        return f"WRONG computed, and missing: {reason}"
    if who in without:
        return "missing, computed for a request that is off"
    return f"missing: {reason}" if options.store else f"WRONG missing: {reason}"


steps = 0
while running.has_unfinished_requests() or counts["rows"] < options.rows:
    while counts["rows"] < options.rows and len(requests) < draw.choice((1, 6, 12)):
        add()
    for output in running.step():
        if output.finished:
            judge(output)
    steps += 1
    if options.updates != "none" and steps % EVERY == 0:
        for _ in range(draw.choice((1, 1, 2))):
            update()
    if requests and draw.random() < 0.02:
        name = draw.choice(list(requests))
        running.abort_request([name])
        del requests[name]
        counts["aborted"] += 1

for each in notes[:12]:
    print("request {}, position {}: computed by {} of version {}; tag {}".format(*each))
print(f"steps {steps}, versions {slots.version}, begun anew {slots.preempted}")
for what, count in sorted(counts.items()):
    print(f"{count:9d}  {what}")
wrong = any("WRONG" in what for what in counts)
few = not counts["right, hit"] + counts["right, hit, of older weights"]
few |= options.updates != "none" and not counts["right, hit, of older weights"]
few |= options.updates != "none" and options.flush > 0 and not counts["emptied: True"]
if other is not None:
    wrong |= bool(other.wait())
print("FAILED" if wrong or few else "PASSED")
raise SystemExit(bool(wrong or few))

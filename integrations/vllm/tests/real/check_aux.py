"""Cell for cell: what callers of vLLM 0.33 get from routecap, and what its routers chose.

    python3 check_aux.py [--sync] [--preempt] [--drafts] [--weights] [--own] [--router-weights]
                         [--requests N] [--seed N]

With its own model runner, scheduler, prefix cache and front end. Random requests: prompts of many
lengths in chunks, shared prefixes, n = 3, the three kinds of output, stop tokens, aborts,
routed_experts_prompt_start, one to the model's length. With --router-weights the weights of the
experts are compared too, bit for bit. Prints a line for each kind of row, and PASSED or FAILED.
"""

import argparse
import collections
import os
import random

parser = argparse.ArgumentParser()
parser.add_argument("--sync", action="store_true", help="no async scheduling")
parser.add_argument("--preempt", action="store_true", help="few blocks: requests are preempted")
parser.add_argument("--drafts", action="store_true", help="by n-grams")
parser.add_argument("--weights", action="store_true", help="change those of routers, many times")
parser.add_argument("--own", action="store_true", help="vLLM's own capture")
parser.add_argument("--router-weights", action="store_true", help="compare these too")
parser.add_argument("--requests", type=int, default=96)
parser.add_argument("--seed", type=int, default=0)
options = parser.parse_args()

os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"
if options.router_weights:
    os.environ["ROUTECAP_VLLM_WEIGHTS"] = "1"
import engine  # noqa: E402
import router_weights  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from oracle import Oracle  # noqa: E402
from vllm.sampling_params import RequestOutputKind  # noqa: E402

import routecap_vllm  # noqa: E402

SCALE, MODEL, VOCABULARY = (8, "tiny", 2048) if engine.ON_CPU else (1, "small", 32768)
REQUESTS = options.requests // (2 if engine.ON_CPU else 1)
BLOCK = 32 if engine.ON_CPU else 16
FILL = 0 if options.own else -1

if not options.own:
    routecap_vllm.install()  # after vllm was imported, as by a user's script
oracle = Oracle(BLOCK)
more = {}
if options.preempt:
    more["num_gpu_blocks_override"] = 14 if engine.ON_CPU else 900
if options.drafts:
    more["speculative_config"] = {
        "method": "ngram",
        "num_speculative_tokens": 4,
        "prompt_lookup_max": 3,
        "prompt_lookup_min": 1,
    }
llm, runner = engine.make(
    MODEL,
    True,
    block_size=BLOCK,
    async_scheduling=not options.sync,
    enable_prefix_caching=True,
    max_num_batched_tokens=1024 // SCALE,
    max_model_len=2048 // SCALE,
    max_num_seqs=64 // SCALE,
    **more,
)
assert type(runner).__module__.startswith("vllm.v1.worker.") and "gpu_model" not in str(
    type(runner)
)
connector = type(runner.aux_output_connector).__module__
assert connector.startswith("vllm" if options.own else "routecap"), connector
front = llm.llm_engine
LONGEST = front.vllm_config.model_config.max_model_len
ROUTES = engine.layers_that_route(llm)
draw = random.Random(options.seed)
shared = [[draw.randrange(VOCABULARY) for _ in range(512)] for _ in range(4)]
KINDS = (RequestOutputKind.CUMULATIVE, RequestOutputKind.DELTA, RequestOutputKind.FINAL_ONLY)
asked, got, aborted, counts = {}, {}, set(), collections.Counter()
notes = []


def add(i):
    length = draw.choice((1, 15, 16, 17, 64, 200, 513, 1024)) if i % 3 else draw.randrange(64, 1024)
    prompt = [draw.randrange(VOCABULARY) for _ in range(max(1, length // SCALE))]
    if i % 2:
        first = draw.choice((128, 300, 512)) // min(SCALE, 4)
        own = draw.choice((1, 20, 200)) // min(SCALE, 2)
        prompt = shared[i % 4][:first] + prompt[:own]
    if options.drafts and i % 2 == 0:  # it repeats itself
        prompt = (prompt[:5] * len(prompt))[: len(prompt)]
    most = draw.choice((1, 2, 17, 64, 150, 300) if SCALE == 1 else (1, 2, 17, 40, 60))
    if i == 5:
        prompt = list(asked["r1"]["prompt"])
    prompt = prompt[: LONGEST - 1]
    most = LONGEST - len(prompt) if i == 7 else min(most, LONGEST - len(prompt))
    parameters = {}
    if i % 10 == 9:
        parameters["stop_token_ids"] = list(range(0, VOCABULARY, 40))
    if i % 13 == 4:
        parameters["routed_experts_prompt_start"] = len(prompt) // 2
    if i % 8 == 6:
        parameters |= {"n": 3, "temperature": 1.0, "seed": i}
    name, kind = f"r{i}", KINDS[i % 3]
    sampling = engine.sampling(most, output_kind=kind, **parameters)
    internal = front.add_request(name, {"prompt_token_ids": prompt}, sampling)
    first = parameters.get("routed_experts_prompt_start", 0)
    asked[name] = {"prompt": prompt, "first": first, "n": sampling.n, "kind": kind}
    asked[name]["internal"] = internal


def change_weights():
    """Of all routers, in mid-request; and what is done about the cache, if anything is."""
    oracle.version += 1
    seed = torch.Generator().manual_seed(oracle.version + 100)
    gates = {name: each for name, each in runner.get_model().named_parameters() if ".gate." in name}
    assert gates
    fresh = [
        (name, (torch.randn(each.shape, generator=seed) * each.shape[-1] ** -0.5).to(each.dtype))
        for name, each in gates.items()
    ]
    runner.get_model().load_weights(iter(fresh))
    how = draw.choice(("nothing", "nothing", "emptied", "emptied under running requests"))
    if how != "nothing":
        done = llm.reset_prefix_cache(reset_running_requests="running" in how and not options.own)
        how += f": {done}"
    counts[f"updates: {how}"] += 1


def take(output):
    for each in output.outputs:
        known = got.setdefault((output.request_id, each.index), {"tokens": [], "arrays": []})
        delta = asked[output.request_id]["kind"] == RequestOutputKind.DELTA
        known["tokens"] = known["tokens"] * delta + list(each.token_ids)
        if each.routed_experts is not None:
            rows = np.asarray(each.routed_experts)
            if router_weights.WANTED:
                rows = router_weights.packed(rows, each.routed_experts_weights)
            known["arrays"].append(rows)
        known["ended"] = each.finish_reason
    counts["tokens of the prefix cache"] += (output.num_cached_tokens or 0) * output.finished


steps = i = 0
while i < REQUESTS or front.has_unfinished_requests():
    while i < REQUESTS and (steps >= i // 4 or not front.has_unfinished_requests()):
        add(i)
        i += 1
    for at, name in ((20, "r2"), (40, "r3"), (41, "r12")):
        if steps == at and name in asked:
            front.abort_request([name])
            aborted.add(name)
    if options.weights and steps % 15 == 14:
        change_weights()
    for output in front.step():
        take(output)
    steps += 1
lives, odd = oracle.lives, +oracle.odd


def judge(name, index):
    one = asked[name]
    known = got.get((name, index))
    if known is None or known["ended"] is None or (name in aborted and not known["arrays"]):
        counts["without a final output"] += 1
        if name not in aborted:
            counts["WRONG without a final output"] += 1
        return
    internal = one["internal"] if one["n"] == 1 else f"{index}_{one['internal']}"
    rows = len(one["prompt"]) + len(known["tokens"]) - 1
    counts["requests"] += 1
    counts[f"requests that ended by {known['ended']}"] += 1
    if not known["arrays"]:
        counts["WRONG no array"] += rows > one["first"]
        return
    counts["WRONG several arrays"] += len(known["arrays"]) > 1
    array = known["arrays"][-1]
    if len(array) != rows - one["first"]:
        counts["WRONG number of rows"] += 1
        notes.append((name, len(array), rows, one["first"], known["ended"]))
        return
    dense = [layer for layer in range(array.shape[1]) if layer not in ROUTES]
    counts["WRONG layers without a router"] += bool(array[:, dense].any())
    for position, row in enumerate(array[:, ROUTES].astype(np.int32), one["first"]):
        truths = [life[position] for life in lives[internal] if position in life]
        judge_row(name, position, row, truths)


def judge_row(name, position, row, truths):
    counts["rows"] += 1
    if not truths:
        counts["WRONG of nobody"] += 1
        return
    how = "hit" if truths[-1].hit else "computed"
    if any((row == each.ids).all() for each in truths):  # of an earlier life, if it came out then
        counts[f"right, {how}"] += 1
    elif router_weights.is_missing(row, FILL):
        counts[f"WRONG missing, {how}"] += 1
        notes.append((name, position, "missing", [each.version for each in truths]))
    else:
        counts[f"WRONG rows, {how}"] += 1
        notes.append((name, position, [each.version for each in truths], oracle.version))


for name, one in asked.items():
    for index in range(one["n"]):
        judge(name, index)
for note in notes[:12]:
    print(*note)
print(*oracle.notes, sep="\n")
print(
    f"steps {steps}, begun anew {oracle.begun_anew()}, versions {oracle.version}, odd {dict(odd)},"
    f" routers' weights {'compared' if router_weights.WANTED else 'off'}"
)
counts = +counts
for what, count in sorted(counts.items()):
    print(f"{count:9d}  {what}")
wrong = any("WRONG" in what for what in counts)
short = {
    "rows that were computed": counts["right, computed"] < 1000,
    "hits": not counts["right, hit"],
    "preempted requests": options.preempt and not any(len(each) > 1 for each in lives.values()),
    "versions of the weights": options.weights and oracle.version < 5,
}
few = [f"too few {what}" for what, it_is in short.items() if it_is]
failed = ["a line that says WRONG"] * wrong + ["what is odd"] * bool(odd) + few
print(f"FAILED: {', '.join(failed)}" if failed else "PASSED")
raise SystemExit(bool(failed))

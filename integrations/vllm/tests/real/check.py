"""Cell for cell: what callers of vLLM's engine get from routecap, and what its routers chose.

    python3 check.py [--eager] [--sync] [--prefix] [--preempt] [--weights] [--sleep] [--drafts]
                     [--lora] [--copies] [--router-weights] [--store BYTES] [--seed N]

Random traffic: prompts of many lengths in chunks, requests that end by their number of tokens, by
stop tokens, at the model's length and by an abort, some of which ask for no capture, for a start
or for a narrow dtype. Prints a line for each kind of row, and PASSED or FAILED. What is compared is
each row's ids, and its tag with the version of the weights; with --router-weights also the weights
of its experts, bit for bit.
"""

import argparse
import collections
import itertools
import os
import random
import sys
import tempfile
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--eager", action="store_true")
parser.add_argument("--sync", action="store_true", help="no async scheduling")
parser.add_argument("--prefix", action="store_true", help="with the prefix cache")
parser.add_argument(
    "--preempt", action="store_true", help="so few blocks that requests are preempted"
)
parser.add_argument("--store", type=int, default=1 << 30, help="bytes for rows of prefixes")
parser.add_argument("--weights", action="store_true", help="change those of routers, many times")
parser.add_argument(
    "--sleep", action="store_true", help="sleep and wake up, as trainers have it, in mid-request"
)
parser.add_argument("--drafts", action="store_true", help="by n-grams; without async scheduling")
parser.add_argument("--lora", action="store_true", help="every third request has an adapter")
parser.add_argument("--copies", action="store_true", help="by those of PyTorch, without kernels")
parser.add_argument("--router-weights", action="store_true", help="compare these too")
parser.add_argument("--requests", type=int, default=96)
parser.add_argument("--kv", type=float, default=2, help="GiB of the cache")
parser.add_argument("--seed", type=int, default=0)
options = parser.parse_args()
options.sync |= options.drafts
if options.router_weights:
    os.environ["ROUTECAP_VLLM_WEIGHTS"] = "1"

import adapter  # noqa: E402
import engine  # noqa: E402
import routecap  # noqa: E402
import router_weights  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from vllm.lora.request import LoRARequest  # noqa: E402

import routecap_vllm  # noqa: E402
from routecap_vllm import routed_experts_capturer  # noqa: E402

SCALE, MODEL, VOCABULARY = (8, "tiny", 2048) if engine.ON_CPU else (1, "small", 32768)
REQUESTS = options.requests // (2 if engine.ON_CPU else 1)
BLOCKS = 40 if engine.ON_CPU else 500 if options.prefix else 900  # some requests do not fit

if options.copies:
    sys.path.append(str(Path(__file__).resolve().parents[4] / "tests/engines"))
    import late_copies

    late_copies.install()
routed_experts_capturer.set_options(
    routed_experts_capturer.Options(store_bytes=options.store, weights=options.router_weights)
)
routecap_vllm.install()  # after vllm was imported, as by a user's script
oracle = engine.Oracle(8192)
more = {"num_gpu_blocks_override": BLOCKS} if options.preempt else {}
more["enable_sleep_mode"] = options.sleep and not engine.ON_CPU
if options.drafts:
    more["speculative_config"] = {"method": "ngram", "num_speculative_tokens": 4}
    more["speculative_config"] |= {"prompt_lookup_max": 3, "prompt_lookup_min": 1}
lora = None
if options.lora:
    path = Path(tempfile.mkdtemp())
    adapter.write(path, engine.MODELS / MODEL)
    lora = LoRARequest("adapter", 1, str(path))
    more |= {"enable_lora": True, "max_lora_rank": 8, "max_loras": 1}
    more["lora_target_modules"] = list(adapter.MODULES.values())
llm, runner = engine.make(
    MODEL,
    True,
    eager=options.eager,
    async_scheduling=not options.sync,
    max_num_batched_tokens=1024 // SCALE,
    max_model_len=2048 // SCALE,
    max_num_seqs=64 // SCALE,
    enable_prefix_caching=options.prefix,
    **engine.cache_of(options.kv),
    **more,
)
config = llm.llm_engine.vllm_config
ROUTES = engine.layers_that_route(llm)
assert config.scheduler_config.async_scheduling is not options.sync
oracle.forget()

draw = random.Random(options.seed)
shared = [[draw.randrange(VOCABULARY) for _ in range(512)] for _ in range(4)]
requests = {}  # name -> (prompt, what it asks for)
engines_names, outputs = {}, {}


def adapted(name):
    return int(options.lora and int(name[1:]) % 3 == 0)


def prompt_of(i):
    length = draw.choice((1, 15, 16, 17, 64, 200, 513, 1024)) if i % 3 else draw.randrange(64, 1024)
    prompt = [draw.randrange(VOCABULARY) for _ in range(max(1, length // SCALE))]
    if options.drafts and i % 2:
        prompt = (prompt[:5] * len(prompt))[: len(prompt)]
    if options.lora and i % 6 == 3:  # one that a request without the adapter has too
        prompt = list(requests[f"r{i - 1}"][0])
    if options.prefix and i % 2:
        own = prompt[: draw.choice((1, 20, 200)) // min(SCALE, 2)]
        prompt = shared[i % 4][: draw.choice((128, 300, 512)) // SCALE] + own
    return list(requests["r1"][0]) if options.prefix and i == 5 else prompt


def add(i):
    prompt, name, more = prompt_of(i), f"r{i}", {}
    most = draw.choice((1, 2, 17, 64, 150, 300) if SCALE == 1 else (1, 2, 17, 40, 90))
    if i == 7:
        most = 4096  # to the model's length
    if i % 5 == 4:
        more["stop_token_ids"] = list(range(0, VOCABULARY, 40))
    asked = {}
    if i % 12 == 10:
        asked["routed_experts"] = False
    elif i % 12 == 6:
        asked["routed_experts_start"] = draw.randrange(len(prompt) + 1)
    elif i % 12 == 3:
        asked["routed_experts_dtype"] = "uint8"
    requests[name] = prompt, asked
    parameters = engine.sampling(most, extra_args=asked or None, **more)
    engines_names[name] = llm.llm_engine.add_request(
        name, {"prompt_token_ids": prompt}, parameters, lora_request=lora if adapted(name) else None
    )


def change_weights():
    """Of all routers, in mid-request."""
    gates = {name: each for name, each in runner.get_model().named_parameters() if ".gate." in name}
    assert gates
    seed = torch.Generator().manual_seed(oracle.version + 100)
    fresh = [
        (name, (torch.randn(each.shape, generator=seed) * each.shape[-1] ** -0.5).to(each.dtype))
        for name, each in gates.items()
    ]
    if oracle.version % 2:
        runner.get_model().load_weights(iter(fresh))
    else:
        llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(fresh)})
    runner.get_model().load_weights(iter(fresh[:1]))  # twice between two steps is once
    oracle.version += 1


steps = i = 0
while i < REQUESTS or llm.llm_engine.has_unfinished_requests():
    while i < REQUESTS and (steps >= i // 4 or not llm.llm_engine.has_unfinished_requests()):
        add(i)
        i += 1
    if steps == 40:
        llm.llm_engine.abort_request(["r3"])
    if options.weights and steps % 20 == 19:
        change_weights()
    if options.sleep and steps % 50 == 49:  # which resets the prefix cache, as for other weights
        llm.sleep(level=1, mode="keep")
        llm.wake_up()
        oracle.version += 1
    for output in llm.llm_engine.step():
        outputs[output.request_id] = output
    steps += 1

truth, lives, counts = oracle.rows(), oracle.rows(last_life=True), collections.Counter()
Missing = routecap.Missing
of_prefix = collections.defaultdict(list)  # what was computed behind the same tokens


def prefixes_of(name):
    """For each position what stands for all tokens up to it, and for the adapter."""
    output = outputs.get(name)
    tokens = requests[name][0] + list(output.outputs[0].token_ids if output else ())
    keys = itertools.accumulate(tokens, lambda *both: hash(both), initial=adapted(name))
    return list(keys)[1:]


for name in requests:
    computed = truth.get(engines_names[name] or name, {})
    for position, key in enumerate(prefixes_of(name)):
        of_prefix[key] += computed.get(position, [])


def judge(name):
    prompt, asked = requests[name]
    output = outputs.get(name)
    if output is None or not output.finished:
        counts["without a final output"] += 1
        return
    completion = output.outputs[0]
    got = engine.given(output, ROUTES)
    if asked.get("routed_experts") is False:
        counts["off, and without rows" if got is None else "WRONG off, and with rows"] += 1
        return
    first = asked.get("routed_experts_start", 0)
    rows = len(prompt) + len(completion.token_ids) - 1 - first
    counts["requests"] += 1
    if completion.stop_reason is not None:
        counts["requests that ended by a stop token"] += 1
    came = 0 if got is None else len(got[0])
    if came != rows:
        counts[f"WRONG {came} rows of {rows}, reason {completion.finish_reason}"] += 1
        return
    if not came:
        return
    ids, valid = got
    dtype = np.dtype(asked.get("routed_experts_dtype", "int16"))
    if type(ids) is not np.ndarray or ids.dtype != dtype:
        counts["WRONG dtype"] += 1
    fill = np.array(-1).astype(dtype)
    ids = router_weights.given(ids, output, ROUTES)
    last = vars(completion).get("_routed_experts") or vars(output).get("_prompt_routed_experts")
    tags, reasons = last.routing.tags, last.routing.reasons()
    keys = prefixes_of(name)
    computed = lives.get(engines_names[name] or name, {})
    for position, (row, mask) in enumerate(zip(ids, valid, strict=True), first):
        known = computed.get(position, [])
        if not known and mask.all():
            found = any(equal(row, tags[position], each) for each in of_prefix[keys[position]])
            counts[f"{'' if found else 'WRONG '}out of the prefix cache, by the store"] += 1
        elif not known:
            reason = Missing(int(reasons[position].max()))
            gone = reason is Missing.EVICTED
            # A store that is too small for what the engine holds refuses blocks.
            gone |= reason is Missing.NOT_PUBLISHED and options.store < 1 << 20
            empty = not mask.any() and router_weights.is_missing(row, fill)
            counts[f"{'' if gone and empty else 'WRONG '}missing: {reason.name}"] += 1
        elif not mask.all():
            counts["WRONG rows" if mask.any() else "WRONG computed, and missing"] += 1
        elif equal(row, tags[position], known[-1]):
            counts["rows equal to what was computed last"] += 1
        else:
            counts["WRONG rows"] += 1


def equal(row, tag, computed):
    ids, version = computed
    return tag == version and (row == ids).all()


for name in requests:
    judge(name)
capturer = routed_experts_capturer.get_global_experts_capturer()
print(
    f"steps {steps}, preempted {oracle.preempted}, layers {len(oracle.buffers)},"
    f" graphs {config.compilation_config.cudagraph_mode}, weights {oracle.version},"
    f" routers' weights {'compared' if router_weights.WANTED else 'off'}"
)
several = sum(count > 1 for spans, _, _ in oracle.steps for _, first, count in spans if first)
if options.drafts:
    counts["passes that verified drafts, or computed part of a prompt"] = several
for what, count in sorted(counts.items()):
    print(f"{count:9d}  {what}")
lost = capturer.capturer.stats().steps_lost
print(f"{lost:9d}  steps lost; {capturer.forward.held.recorded} layers were recorded at once")
prefixes = capturer.prefixes
if prefixes is not None and prefixes.store is not None:
    print(prefixes.store.stats())
wrong = lost or any(what.startswith("WRONG") for what in counts)
enough = counts["rows equal to what was computed last"] > 2000 and (
    counts["requests that ended by a stop token"] > 1 or options.lora
)
few = options.preempt and not oracle.preempted
few |= (options.weights or options.sleep) and oracle.version < 3
few |= options.prefix and not counts["out of the prefix cache, by the store"]
few |= options.store < 1 << 20 and not counts["missing: EVICTED"]
print("FAILED" if wrong or few or not enough else "PASSED")
raise SystemExit(bool(wrong or few or not enough))

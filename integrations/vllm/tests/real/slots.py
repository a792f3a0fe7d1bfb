"""Row by row: what callers of vLLM get of a request, and what was computed into the blocks of the
KV cache that the request attends to; in every release and with either model runner.

    python3 slots.py [--rows N] [--block ROWS] [--blocks N] [--sync] [--updates load|tag|none]
                     [--flush P] [--seed N] [--json FOLDER] [--router-weights]

Random traffic has prompts in common, prompts of whole blocks and prompt_logprobs (whose requests
compute blocks that are there already), n = 3, stop tokens, preemptions, aborts, requests that are
off, and weights that change every few steps: with the cache emptied and what runs preempted, with a
try to empty it, and without. The oracle is oracle.py's. With --router-weights the weights of the
experts are compared too, bit for bit. Prints a line for each kind of row, and PASSED or FAILED.

--json: `routecap conform` judges the same engine first, and a report of both is written there, for
lab/matrix.py.
"""

import argparse
import collections
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path

import releases

parser = argparse.ArgumentParser()
parser.add_argument(
    "--rows", type=int, default=20000 if releases.V2 else 60000, help="as many are judged at least"
)
parser.add_argument("--block", type=int, default=releases.BLOCK)
parser.add_argument("--blocks", type=int, default=0, help="of the cache; few: preemptions")
parser.add_argument("--sync", action="store_true", help="no async scheduling")
parser.add_argument("--updates", choices=("load", "tag", "none"), default="load")
parser.add_argument(
    "--flush", type=float, default=0.3, help="share of updates that empty the cache"
)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--json", type=Path, help="a folder for the report")
parser.add_argument("--router-weights", action="store_true", help="compare these too")
options = parser.parse_args()

if options.router_weights:
    os.environ["ROUTECAP_VLLM_WEIGHTS"] = "1"

if options.json:
    os.environ["ROUTECAP_VLLM_FOLDER"] = tempfile.mkdtemp()  # for a format that conform asks for

import engine  # noqa: E402
import router_weights  # noqa: E402
import torch  # noqa: E402
from oracle import Oracle  # noqa: E402
from vllm.sampling_params import RequestOutputKind  # noqa: E402

import routecap  # noqa: E402
import routecap_vllm  # noqa: E402

VOCABULARY, LONGEST = 2048, max(384, 6 * options.block)
BLOCKS = options.blocks or max(960 // options.block, 16)
SMALL = {"generated": 8, "requests": 8}  # of conform: Triton's interpreter takes 0.3 s a step
EVERY = 7  # steps from one update to the next

began = time.monotonic()


def seconds():
    return f"{time.monotonic() - began:.0f} s, of CPU {time.process_time():.0f}"


routecap_vllm.install()
oracle = Oracle(options.block)
llm, runner = engine.make(
    "tiny",
    True,
    async_scheduling=not options.sync,
    max_num_batched_tokens=256,
    max_model_len=max(512, LONGEST),
    max_num_seqs=16,
    max_logprobs=5,
    enable_prefix_caching=True,
    block_size=options.block,
    num_gpu_blocks_override=BLOCKS,
    **engine.cache_of(2),
)
assert isinstance(runner, releases.runner_class()), type(runner)
print(f"started: {seconds()}", flush=True)
ROUTES, running = engine.layers_that_route(llm), llm.llm_engine
report = None
if options.json:
    sys.path.append(str(Path(__file__).resolve().parents[4] / "tools/tests/conform"))
    import prove
    import vllm_engine

    about = [f"model runner V{1 + releases.V2}", "random schedules"]
    report = prove.judged(
        *vllm_engine.of(llm, runner, "routecap", about=about), **SMALL, seed=options.seed
    )
    print(f"conform: status {report['status']}, {seconds()}", flush=True)
draw, counts, notes = random.Random(options.seed), collections.Counter(), []
shared = [random.Random(i).choices(range(VOCABULARY), k=LONGEST) for i in range(3)]
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
    elif draw.random() < 0.08:
        parameters |= {"n": 3, "temperature": 1.0}
    if draw.random() < 0.15:
        parameters["stop_token_ids"] = list(range(0, VOCABULARY, 20))
    if draw.random() < 0.1:
        more["cache_salt"] = f"salt {draw.randrange(2)}"
    off = draw.random() < 0.05 and not releases.AUX_OUTPUT
    if off:
        parameters["extra_args"] = {"routed_experts": False}
    name, tokens = f"r{number}", draw.choice((1, 2, 4, 8, 16))
    number += 1
    given = {"prompt_token_ids": prompt, **more}
    asked = engine.sampling(tokens, **parameters)
    asked.output_kind = RequestOutputKind.FINAL_ONLY
    internal = running.add_request(name, given, asked) or name
    choices = [internal] if asked.n == 1 else [f"{i}_{internal}" for i in range(asked.n)]
    requests[name] = prompt, choices, off, "prompt_logprobs" in parameters
    if off:
        without.update(choices)


def update():
    """New weights, as a trainer brings them; and what is done about the cache, if anything is."""
    oracle.version += 1
    model = runner.get_model()
    engine.draw_weights(model, 1 + oracle.version)  # of one version the same in all engines
    norm = model.model.norm.weight
    if options.updates == "load":
        model.load_weights([("model.norm.weight", torch.ones(norm.shape))])
    else:
        llm.collective_rpc("routecap_set_tag", args=(oracle.version,))
    # vLLM does not bear that what computes prompt_logprobs is preempted by an emptied cache.
    if draw.random() < options.flush and not any(each[3] for each in requests.values()):
        counts[f"emptied: {releases.empty_under_requests(llm, step)}"] += 1
    elif draw.random() < 0.3:
        counts[f"tried to empty: {llm.reset_prefix_cache()}"] += 1


def step():
    for output in running.step():
        if output.finished:
            judge(output)


def judge(output):
    if output.request_id not in requests:
        return  # was aborted
    prompt, choices, off, _ = requests.pop(output.request_id)
    lives = [oracle.lives.pop(name, [{}]) for name in choices]
    for completion, own in zip(output.outputs, lives, strict=True):
        counts["begun anew"] += len(own) - 1
        counts[f"choices that ended by {completion.finish_reason}"] += not off
        got = engine.given(output, ROUTES, completion)
        if off:
            counts["WRONG off, and with rows" if got is not None else "off"] += 1
            continue
        count = len(prompt) + len(completion.token_ids) - 1
        if (0 if got is None else len(got[0])) != count:
            counts[f"WRONG {0 if got is None else len(got[0])} rows of {count}"] += 1
        elif count:
            rows = router_weights.given(got[0], output, ROUTES, completion)
            judge_rows(output, completion, (rows, got[1]), own, lives, len(prompt))


def judge_rows(output, completion, got, own, lives, prompt):
    tags = reasons = None
    if not releases.AUX_OUTPUT:
        whole = vars(output).get("_prompt_routed_experts")  # 0.21's; it may be another choice's
        last = vars(completion).get("_routed_experts") or whole
        whole = last if whole is None else whole
        tags = [*whole.routing.tags[:prompt], *last.routing.tags[prompt:]]
        reasons = [*whole.routing.reasons()[:prompt], *last.routing.reasons()[prompt:]]
    for position, (row, mask) in enumerate(zip(*got, strict=True)):
        counts["rows"] += 1
        truths = releases.truths(position, own, lives, prompt)
        if not truths:
            counts["WRONG of no block"] += 1
            continue
        hit, who = truths[0].hit, truths[0].who
        found = next((each for each in truths if (row == each.ids).all()), None)
        if not mask.any() and router_weights.is_missing(row):
            counts[
                missing(hit, who, None if reasons is None else int(reasons[position].max()))
            ] += 1
        elif not mask.all() or found is None:
            counts[f"WRONG rows, {'hit' if hit else 'computed'}"] += 1
        elif options.updates == "tag" and tags[position] != found.version:
            counts["WRONG tags"] += 1
        else:
            old = ", of older weights" if found.version < oracle.version else ""
            counts[f"right, {f'hit{old}' if hit else 'computed'}"] += 1
            continue
        notes.append((output.request_id, position, len(got[0]), *truths[0][1:], oracle.version))


def missing(hit, who, reason):
    reason = "" if reason is None else f": {routecap.Missing(reason).name}"
    if not hit:
        return f"WRONG computed, and missing{reason}"
    if who in without:
        return "missing, computed for a request that is off"
    return f"WRONG missing{reason}"


steps = 0
while running.has_unfinished_requests() or counts["rows"] < options.rows:
    while counts["rows"] < options.rows and len(requests) < draw.choice((1, 6, 12)):
        add()
    step()
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
    print(
        "request {}, position {} of {}: of version {}, computed by {}, hit {}; now {}".format(*each)
    )
how = "compared" if router_weights.WANTED else "off"
print(f"steps {steps}, versions {oracle.version}, routers' weights {how}, {seconds()}")
counts = +counts
for what, count in sorted(counts.items()):
    print(f"{count:9d}  {what}")
for what, count in (+oracle.odd).items():
    print(f"{count:9d}  ODD {what}")
wrong = any("WRONG" in what for what in counts) or any(oracle.odd.values())
old = counts["right, hit, of older weights"]
few = not counts["right, hit"] + old or not counts["begun anew"]
few |= not counts["choices that ended by stop"] or not counts["aborted"]
few |= options.updates != "none" and not old
few |= options.updates != "none" and options.flush > 0 and not counts["emptied: True"]
if report is not None:
    wrong |= report["status"] != 0
    release = ".".join(map(str, releases.RELEASE))
    results = collections.Counter(each["result"] for each in report["verdicts"])
    told = {"checks passed": results["passes"], "failed": results["fails"]}
    told["rows"] = counts["rows"]
    for name, what in (("wrong", "WRONG"), ("missing", "missing")):
        told[name] = sum(count for each, count in counts.items() if what in each)
    made = {"engine": report["engine"], "command": f"release.sh {release}", "counts": told}
    made |= {"seconds": round(time.process_time()), "steps": steps, "conform": report}
    options.json.mkdir(parents=True, exist_ok=True)
    file = options.json / f"vllm-{release}-V{1 + releases.V2}.json"
    file.write_text(json.dumps(made))
print("FAILED" if wrong or few else "PASSED")
raise SystemExit(bool(wrong or few))

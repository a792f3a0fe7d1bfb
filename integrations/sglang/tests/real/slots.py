"""Rows of cached prefixes by slot: what routecap gives, against what was computed into the slots of
SGLang's KV cache that each request has, in random traffic with updates of the weights.

    python3 slots.py [--weights] [--requests N] [--updates N] [--seed N] [--json FILE]
        FOLDER [PAGE[:sync][:retract]]...

Prompts begin alike for random lengths, differ within pages, and are as long as pages. Some requests
are aborted, end at a stop token, or have several answers. Between them the weights change: with a
flush of the cache or without, with requests in flight that are paused or retracted, with a version
that is a number, a name, or none. An engine has pages of so many tokens; `sync`: no overlap
scheduling; `retract`: every third pass retracts requests. With --weights the weight of each expert
is captured too, and is bit for bit that of the router. Prints a line for each kind of row,
and PASSED or FAILED: no row is wrong, none is missing, and each version of the weights has a tag of
its own, which rises. --json: a report of all engines together, for lab/matrix.py.
"""

import argparse
import asyncio
import collections
import itertools
import json
import multiprocessing
import os
import pickle
import random
import shutil
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("engines", nargs="*", default=["1"])
parser.add_argument("--weights", action="store_true")
parser.add_argument("--requests", type=int, default=150)
parser.add_argument("--updates", type=int, default=12)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--json", type=Path)
options = parser.parse_args()

VOCABULARY = 128
NAMED = ("step-b", "rl", "default")


def main():
    import small_checkpoint as model

    shutil.rmtree(options.folder, ignore_errors=True)
    checkpoints = [model.make(options.folder / name, i) for i, name in enumerate("abc")]
    os.environ["SGLANG_EXTERNAL_MODEL_PACKAGE"] = "routecap_sglang_models"
    if options.json:
        options.json.unlink(missing_ok=True)
    engines = [each.split(":") for each in options.engines]
    passed, counted = [], collections.Counter()
    for i, (page, *kinds) in enumerate(engines):
        right, counts = run(checkpoints, i, int(page), kinds)
        passed.append(right)
        counted += counts
    if options.json:
        report(passed, counted)
    print("PASSED" if all(passed) else "FAILED")
    return 0 if all(passed) else 1


def report(passed, counts):
    """What lab/matrix.py enters."""
    import routecap
    import sglang

    pages = [each.split(":")[0] for each in options.engines]
    pages = " and ".join(filter(None, [", ".join(pages[:-1]), pages[-1]]))
    about = [f"SGLang {sglang.__version__}", f"pages of {pages}"]
    about += ["weights"] * options.weights
    about += ["random schedules", f"routecap {routecap.__version__}"]
    missing = sum(many for what, many in counts.items() if "missing" in what or "without" in what)
    wrong = sum(many for what, many in counts.items() if what.startswith("WRONG")) - missing
    told = {"engines passed": sum(passed), "failed": len(passed) - sum(passed)}
    told |= {"rows": counts["rows"], "wrong": wrong, "missing": missing}
    if options.weights:
        told["cells with weights"] = counts["cells with weights, right"]
    multiprocessing.active_children()  # takes the times of those that ended
    made = {"engine": ", ".join(about), "command": f"check.sh {sglang.__version__}"}
    made |= {"counts": told, "seconds": round(sum(os.times()[:4]))}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(made))


def run(checkpoints, index, page, kinds):
    """Random traffic in an engine: whether all is right, and counts of rows."""
    seed = options.seed + index
    routings, slots = (options.folder / f"{name}{index}" for name in ("routings", "slots"))
    os.environ["ROUTECAP_TEST_SLOTS"] = str(slots)
    os.environ["SGLANG_TEST_RETRACT"] = str(int("retract" in kinds))
    import routecap_sglang

    chosen = {"folder": str(routings), "budget_bytes": 256 << 20, "weights": options.weights}
    routecap_sglang.install(routecap_sglang.Options(**chosen))
    import sglang
    from sglang.srt.managers import io_struct

    # Until 0.5.21 a flush behind an update ends the scheduler where it may not be. A salt is a part
    # of the adapter's key until 0.5.17.
    release = tuple(int(each) for each in sglang.__version__.split(".")[:3])

    engine = sglang.Engine(
        model_path=str(checkpoints[0]),
        port=21000 + 1000 * (seed % 10),
        device="cpu",
        dtype="float32",
        attention_backend="torch_native",
        sampling_backend="pytorch",
        grammar_backend="none",
        skip_tokenizer_init=True,
        enable_return_routed_experts=True,
        chunked_prefill_size=64,
        max_total_tokens=max(1600, 40 * page),
        max_running_requests=8,
        mem_fraction_static=0.5,
        page_size=page,
        disable_overlap_schedule="sync" in kinds,
        log_level="warning",
    )
    draw = random.Random(seed)
    manager = engine.tokenizer_manager
    longest = 240
    families = [[draw.randrange(VOCABULARY) for _ in range(longest)] for _ in range(5)]
    lengths, happened = {}, collections.Counter()
    number, ended = 0, 0

    def prompt():
        tokens = list(draw.choice(families))
        cut = draw.randrange(1, longest)
        if draw.random() < 0.4:  # as long as pages are, or nearly
            cut = min(longest - 1, max(1, 16 * draw.randrange(1, 15) + draw.choice((-1, 0, 0, 1))))
        if draw.random() < 0.5:
            more = [draw.randrange(VOCABULARY) for _ in range(draw.randrange(1, 80))]
            return (tokens[:cut] + more)[:longest]
        return tokens[:cut]

    async def one(i):
        nonlocal ended
        name, tokens = f"r{i}-", prompt()
        salted = draw.random() < 0.1 and release >= (0, 5, 18)
        fields = {"cache_salt": draw.choice("xy")} if salted else {}
        most = draw.choice((1, 2, 5, 12, 30))
        parameters = {"temperature": 0.0, "max_new_tokens": most, "ignore_eos": True}
        kind = draw.random()
        if kind < 0.05:
            parameters["max_new_tokens"] = 100  # it has not ended by then, nor has it yet to begin
            for seconds in (0.1, 1):
                asyncio.get_running_loop().call_later(seconds, manager.abort_request, name)
        elif kind < 0.15:  # its choices have names that SGLang gives them
            parameters |= {"temperature": 1.0, "n": 3}
        elif kind < 0.3:
            parameters |= {
                "ignore_eos": False,
                "stop_token_ids": draw.sample(range(VOCABULARY), 16),
            }
        fields |= {} if "n" in parameters else {"rid": name}
        output = await engine.async_generate(input_ids=tokens, sampling_params=parameters, **fields)
        ended += 1
        for each in output if isinstance(output, list) else [output]:
            reason = each["meta_info"]["finish_reason"]
            happened["several answers"] += isinstance(output, list)
            happened["aborted"] += reason["type"] == "abort"
            happened["stopped"] += reason["type"] == "stop"
            if reason["type"] != "abort":
                lengths[each["meta_info"]["id"]] = len(tokens) + len(each["output_ids"]) - 1

    async def update(tasks):
        nonlocal number
        mode = draw.choice((None, "in_place", "in_place", "retract"))
        flush = draw.random() < 0.3 and mode != "in_place"
        if flush and release < (0, 5, 22):
            mode = None
            await asyncio.gather(*tasks)
            while not (await manager.flush_cache()).success:
                await asyncio.sleep(0.05)
        version = draw.choice((None, "number", "number", draw.choice(NAMED)))
        if version == "number":
            number += draw.randrange(1, 5)
            version = str(number)
        if mode is not None:
            await manager.pause_generation(io_struct.PauseGenerationReqInput(mode=mode))
        request = io_struct.UpdateWeightFromDiskReqInput(
            model_path=str(draw.choice(checkpoints)), flush_cache=flush, weight_version=version
        )
        done = await manager.update_weights_from_disk(request, None)
        if mode is not None:
            await manager.continue_generation(io_struct.ContinueGenerationReqInput())
        if not done[0]:  # what was aborted may not have ended yet
            assert flush and "the cache was not flushed" in done[1], done
            flush = False
        happened[f"updates, {mode or 'idle'}, {'flushed' if flush else 'not flushed'}"] += 1

    async def traffic():
        tasks, every = set(), max(1, options.requests // (options.updates + 1))
        for i in range(options.requests):
            tasks.add(asyncio.create_task(one(i)))
            while len(tasks) >= 10:
                _, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if i % every == every - 1 and i // every < options.updates:
                await update(tasks)
        await asyncio.gather(*tasks)

    began = time.monotonic()
    engine.loop.run_until_complete(traffic())
    wait_for(routings / f"{name}.routecap" for name in lengths)
    engine.shutdown()
    happened["seconds"] = int(time.monotonic() - began)
    counts, tags = judge(lengths, routings, slots)
    print(f"pages of {page}", *kinds)
    for what, count in [*sorted(counts.items()), *sorted(happened.items())]:
        print(f"{count:9d}  {what}")
    for version, of in sorted(tags.items()):
        print(f"          weights {version} have the tags {sorted(of)}")
    known = [of for _, of in sorted(tags.items()) if of]
    rising = all(len(of) == 1 for of in known)
    rising &= all(max(a) < min(b) for a, b in itertools.pairwise(known))
    counts["WRONG tags"] = not rising
    wrong = any(count for what, count in counts.items() if what.startswith("WRONG"))
    enough = counts["rows of the cache, right"] > 1000 and counts["rows of older weights"] > 100
    enough &= all(happened[kind] for kind in ("aborted", "stopped", "several answers"))
    enough |= not options.updates
    if options.weights:
        enough &= counts["cells with weights, right"] > 10 * counts["weights shifted by one, equal"]
    return enough and not wrong, counts


def wait_for(paths):
    """They are written behind the answers, in their order; a shutdown waits for none."""
    end = time.monotonic() + 60
    for path in paths:
        while not (path.exists() and path.stat().st_size) and time.monotonic() < end:
            time.sleep(0.02)


def judge(lengths, routings, slots):
    """Counts of rows, and the tags of each version of the weights."""
    import numpy as np
    import routecap

    truth = {}
    with open(slots, "rb") as file:
        while file.peek(1):
            name, at, *new = pickle.load(file)
            old = [each[:at] for each in truth.get(name, ())] or [each[:0] for each in new]
            truth[name] = [np.concatenate(both) for both in zip(old, new, strict=True)]
    counts, tags = collections.Counter(), collections.defaultdict(set)
    for name, length in lengths.items():
        path = routings / f"{name}.routecap"
        if not path.exists():
            counts["WRONG requests without a file"] += 1
            continue
        routing = routecap.load(path)[name].routing
        ids, weights, versions, cached = (of[:length] for of in truth[name])
        if routing.rows != length or len(ids) != length:
            counts["WRONG lengths"] += 1
            print(name, routing.rows, len(ids), length)
            continue
        there = routing.mask().all(1)
        same = (np.sort(routing.ids(), -1) == np.sort(ids, -1)).all((1, 2))
        for kind, of in (("cache", cached), ("request's own", ~cached)):
            counts[f"rows of the {kind}, right"] += int((of & there & same).sum())
            counts[f"WRONG rows of the {kind}"] += int((of & there & ~same).sum())
            counts[f"WRONG rows of the {kind}, missing"] += int((of & ~there).sum())
        if options.weights:
            weigh(counts, routing, ids, weights, there)
        else:
            counts["WRONG weights that nobody wanted"] += routing.weights_dtype is not None
        counts["rows of older weights"] += int((there & (versions < versions.max())).sum())
        counts["rows"] += length
        for version in set(versions.tolist()):
            tags[version] |= set(routing.tags[there & (versions == version)].tolist())
        if (there & ~same).any() or not there.all():
            bad = np.flatnonzero(~there | ~same)
            print(
                name,
                length,
                "differ:",
                bad.tolist()[:8],
                "...",
                len(bad),
                versions[bad][:4],
                routing.tags[bad][:4],
                "missing" if not there[bad].any() else "wrong",
                {routecap.Missing(int(why)).name for why in routing.reasons()[bad].flat if why},
            )
    return counts, tags


def weigh(counts, routing, ids, weights, there):
    """Counts of weights, each beside the id that has it."""
    import numpy as np

    got, mask = routing.weights(), np.empty(routing.ids().shape[:2], bool)
    routing.weights(mask=mask)
    want, got = (
        np.take_along_axis(values, np.argsort(of, -1), -1).view(np.uint32)
        for values, of in ((weights, ids), (got, routing.ids()))
    )
    same = (got == want).all(-1)
    counts["cells with weights, right"] += int((mask & same).sum())
    counts["weights shifted by one, equal"] += int((got[1:] == want[:-1]).all(-1).sum())
    counts["WRONG weights"] += int((mask & ~same).sum())
    counts["WRONG weights, missing"] += int((there[:, None] & ~mask).sum())


if __name__ == "__main__":
    raise SystemExit(main())

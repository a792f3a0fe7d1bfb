"""Rows of cached prefixes by slot: what routecap gives, against what was computed into the slots of
SGLang's KV cache that each request has, in random traffic with updates of the weights.

    python3 slots.py [--page N] [--requests N] [--updates N] [--sync] [--retract] [--seed N] FOLDER

Prompts begin alike for random lengths, differ within pages, and are as long as pages. Between them
the weights change: with a flush of the cache or without, with requests in flight that are paused
or retracted, with a version that is a number, a name, or none. Prints a line for each kind of row,
and PASSED or FAILED: no row is wrong, none is missing, and each version of the weights has a tag of
its own, which rises.
"""

import argparse
import asyncio
import collections
import os
import pickle
import random
import shutil
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("--page", type=int, default=1)
parser.add_argument("--requests", type=int, default=150)
parser.add_argument("--updates", type=int, default=12)
parser.add_argument("--sync", action="store_true", help="no overlap scheduling")
parser.add_argument("--retract", action="store_true", help="every third pass retracts requests")
parser.add_argument("--seed", type=int, default=0)
options = parser.parse_args()

VOCABULARY = 128
NAMED = ("step-b", "rl", "default")


def main():
    import model

    shutil.rmtree(options.folder, ignore_errors=True)
    checkpoints = [model.make(options.folder / name, i) for i, name in enumerate("abc")]
    routings, slots = options.folder / "routings", options.folder / "slots"
    os.environ["ROUTECAP_TEST_SLOTS"] = str(slots)
    os.environ["SGLANG_EXTERNAL_MODEL_PACKAGE"] = "routecap_sglang_models"
    if options.retract:
        os.environ["SGLANG_TEST_RETRACT"] = "1"
    import routecap.sglang

    routecap.sglang.install(routecap.sglang.Options(folder=str(routings), budget_bytes=256 << 20))
    import sglang
    from sglang.srt.managers import io_struct

    engine = sglang.Engine(
        model_path=str(checkpoints[0]),
        port=21000 + 1000 * (options.seed % 10),
        device="cpu",
        dtype="float32",
        attention_backend="torch_native",
        sampling_backend="pytorch",
        grammar_backend="none",
        skip_tokenizer_init=True,
        enable_return_routed_experts=True,
        chunked_prefill_size=64,
        max_total_tokens=max(1600, 40 * options.page),
        max_running_requests=8,
        mem_fraction_static=0.5,
        page_size=options.page,
        disable_overlap_schedule=options.sync,
        log_level="warning",
    )
    draw = random.Random(options.seed)
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
        fields = {"cache_salt": draw.choice("xy")} if draw.random() < 0.1 else {}
        most = draw.choice((1, 2, 5, 12, 30))
        parameters = {"temperature": 0.0, "max_new_tokens": most, "ignore_eos": True}
        if draw.random() < 0.05:
            asyncio.get_running_loop().call_later(0.1, manager.abort_request, name)
        output = await engine.async_generate(
            input_ids=tokens, rid=name, sampling_params=parameters, **fields
        )
        ended += 1
        if output["meta_info"]["finish_reason"]["type"] == "abort":
            happened["aborted"] += 1
        else:
            lengths[name] = len(tokens) + len(output["output_ids"]) - 1

    async def update():
        nonlocal number
        mode = draw.choice((None, "in_place", "in_place", "retract"))
        flush = draw.random() < 0.3 and mode != "in_place"
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
                await update()
        await asyncio.gather(*tasks)

    began = time.monotonic()
    engine.loop.run_until_complete(traffic())
    wait_for(routings / f"{name}.routecap" for name in lengths)
    engine.shutdown()
    happened["seconds"] = int(time.monotonic() - began)
    counts, tags = judge(lengths, routings, slots)
    for what, count in [*sorted(counts.items()), *sorted(happened.items())]:
        print(f"{count:9d}  {what}")
    for version, of in sorted(tags.items()):
        print(f"          weights {version} have the tags {sorted(of)}")
    known = [of for _, of in sorted(tags.items()) if of]
    rising = all(len(of) == 1 for of in known)
    rising &= all(max(a) < min(b) for a, b in zip(known, known[1:]))
    counts["WRONG tags"] = not rising
    wrong = any(count for what, count in counts.items() if what.startswith("WRONG"))
    enough = counts["rows of the cache, right"] > 1000 and counts["rows of older weights"] > 100
    enough |= not options.updates
    print("PASSED" if enough and not wrong else "FAILED")
    return 0 if enough and not wrong else 1


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
            name, _, *rows = pickle.load(file)
            truth[name] = rows
    counts, tags = collections.Counter(), collections.defaultdict(set)
    for name, length in lengths.items():
        path = routings / f"{name}.routecap"
        if not path.exists():
            counts["WRONG requests without a file"] += 1
            continue
        routing = routecap.load(path)[name].routing
        ids, versions, cached = (of[:length] for of in truth[name])
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
            )
    return counts, tags


if __name__ == "__main__":
    raise SystemExit(main())

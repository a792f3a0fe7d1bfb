#!/usr/bin/env python3
"""What a serving engine does with requests, in vLLM itself: one situation after another, and every
row of every request judged.

usage: check.py [--ahead] [--dropin] FOLDER TEXT

FOLDER: the model, on bytes. TEXT: for its prompts. --ahead: steps are scheduled ahead, as on a GPU.
--dropin: with the worker of dropin.py. Both workers are those of ../../examples.

Each row is compared with the ids that the engine's experts were computed for, in their order
(oracle.Recording), and with those of the same tokens in one forward pass of transformers, as sets
(oracle.Reference). One line is printed for each situation.
"""

import random
import sys

import routecap

from engine import Ended, Engine, Passages
from oracle import Judge, Reference

# ---- Situations: each returns what it found


def chunked_prefill_and_batches(engine, judge, text):
    """A prompt longer than a step comes in chunks, beside others that decode; prefill and decode
    share steps.
    """
    ids = [engine.add(text(length), most) for length, most in ((20, 12), (200, 6), (41, 9))]
    engine.run()
    chunks = [step[ids[1]] for step in engine.recording.steps if step.get(ids[1], 0) > 1]
    mixed = sum(
        len(step) > 1 and 1 in step.values() and max(step.values()) > 1
        for step in engine.recording.steps
    )
    judge.expect(len(chunks) >= 3 and sum(chunks) == 200, "the long prompt comes in chunks")
    judge.expect(mixed > 0, "steps decode one request and prefill another")
    for id in ids:
        judge.rows_are_right(engine.end(id))
    return (
        f"3 requests, a prompt of 200 tokens in chunks of {', '.join(map(str, chunks))}, {mixed}"
        " steps that prefill and decode"
    )


def several_end_in_one_step(engine, judge, text):
    """Requests of one length end together; others go on."""
    ids = [engine.add(text(9), 7) for _ in range(3)]
    other = engine.add(text(9), 12)
    engine.run()
    last = [max(n for n, step in enumerate(engine.recording.steps) if id in step) for id in ids]
    judge.expect(len(set(last)) == 1, "three requests end with one step")
    for id in [*ids, other]:
        judge.rows_are_right(engine.end(id))
    return "3 of 4 requests end with one step"


def stop_tokens(engine, judge, text):
    """A request ends where nobody knew it would.

    The step that was scheduled ahead has computed a row more, which the sequence has not.
    """
    prompt = text(30)
    probe = engine.add(prompt, 8)
    engine.run()
    sampled = engine.end(probe).tokens[30:]
    at = next(at for at in range(2, 8) if sampled[at] not in sampled[:at])
    id = engine.add(prompt, 40, stop_token_ids=[sampled[at]])
    engine.run()
    ended = engine.end(id)
    judge.expect(ended.tokens[30:] == sampled[: at + 1], "the request stops at its stop token")
    beyond = (
        sum(step.get(id, 0) for step in engine.recording.steps)
        + ended.cached
        - len(ended.tokens)
        + 1
    )
    judge.expect(beyond == engine.ahead, "a step that was scheduled ahead goes beyond the end")
    judge.rows_are_right(ended)
    return f"stops after {at + 1} of 40 tokens, {beyond} rows computed beyond the end"


def prefix_hit_is_missing(engine, judge, text):
    """Without the tap's help: tokens out of the prefix cache are not computed, and their rows are
    reported as missing.
    """
    engine.tap.supply_prefixes = False
    prompt = text(100)
    earlier = engine.add(prompt, 3)
    engine.run()
    id = engine.add(prompt, 5)
    engine.run()
    engine.tap.supply_prefixes = True
    ended = engine.end(id)
    judge.expect(ended.cached == 96, "three blocks come out of the cache")
    blocks = [
        (int(block["first"]), int(block["rows"]), routecap.Missing(block["reason"]).name)
        for block in ended.routing.missing
    ]
    judge.expect(
        blocks == [(0, 96, "ABSENT")], f"rows 0 to 95 are reported as missing, not {blocks}"
    )
    judge.expect(
        ended.routing.status == routecap.Status.INCOMPLETE, "the routing says that it is incomplete"
    )
    judge.rows_are_right(ended, missing=96)
    judge.rows_are_right(engine.end(earlier))
    return f"{ended.cached} tokens cached, rows 0 to {ended.cached - 1} reported as {blocks[0][2]}"


def prefix_hit_is_supplied(engine, judge, text):
    """They are attached from the request that computed them: one that has ended, one that got them
    so itself, and one that still runs.
    """
    prompt = text(165)
    first = engine.add(prompt[:100], 3)
    engine.run()
    second = engine.add(prompt[:160], 12)  # 96 tokens cached, the rest computed
    engine.run(steps=5)  # and it goes on
    third = engine.add(prompt, 4)
    engine.run()
    cached = []
    for id in (first, second, third):
        ended = engine.end(id)
        judge.rows_are_right(ended)
        judge.expect(ended.routing.status == routecap.Status.OK, "nothing is missing")
        cached.append(ended.cached)
    judge.expect(
        cached[0] == 0 and cached[1] == 96 and cached[2] > 128,
        f"prefixes of two requests were cached: {cached}",
    )
    return (
        f"{cached[1]} rows from a request that had ended, {cached[2]} from one that ran on, itself"
        " begun from the cache"
    )


def prefix_hit_in_one_step(engine, judge, text):
    """The scheduler finds blocks in the cache that are only computed in the same step."""
    prompt = text(40)
    ids = [engine.add(prompt, 6, temperature=1.0) for _ in range(3)]
    engine.run()
    first = next(n for n, step in enumerate(engine.recording.steps) if ids[1] in step)
    judge.expect(ids[0] in engine.recording.steps[first], "both are prefilled in one step")
    ended = [engine.end(id) for id in ids]
    judge.expect([each.cached for each in ended] == [0, 32, 32], "one block comes out of the cache")
    for each in ended:
        judge.rows_are_right(each)
    return (
        f"3 samples of one prompt, {ended[1].cached} rows of two of them from the step that"
        " computed them for the first"
    )


def preemption(engine, judge, text):
    """The KV cache is too small for all: requests are preempted, and computed again from the start
    or from what is cached.
    """
    ids = [engine.add(text(60), 90) for _ in range(6)]
    engine.run()
    seen = {id: sum(step.get(id, 0) for step in engine.recording.steps) for id in ids}
    again = sum(seen[id] - 149 for id in ids)
    judge.expect(engine.preempted, "requests are preempted")
    judge.expect(again > 0, "tokens are computed again")
    for id in ids:
        judge.rows_are_right(engine.end(id))
    return f"{len(engine.preempted)} of 6 requests preempted, {again} rows computed again"


def preempted_in_its_prefill(engine, judge, text):
    """Of two requests with one prompt one is preempted before its end, and goes on with blocks that
    the other has filled meanwhile.
    """
    others = [engine.add(text(300), 40)]
    engine.run(steps=14)
    prompt = text(200)
    ids = [engine.add(prompt, 30) for _ in range(2)]
    engine.run()
    judge.expect(ids[1] in engine.preempted, "the second is preempted")
    ended = [engine.end(id) for id in [*ids, *others]]
    again = [
        computed
        for computed in engine.recording.of(ids[1], prompt)[ended[1].cached :]
        if not computed
    ]
    judge.expect(again, "it has tokens that it never computed, neither before nor after")
    for each in ended:
        judge.rows_are_right(each)
    return f"{len(again)} rows beyond what it had came from the cache when it went on"


def prefix_hit_after_preemption(engine, judge, text):
    """Blocks belong to whom they were given last: to requests that were preempted, and were
    computed again elsewhere in the cache.
    """
    prompts = [text(length) for length in (100, 70, 40)]
    ids = [engine.add(prompt, 30) for prompt in prompts]
    engine.run(steps=12)
    judge.expect(
        engine.engine.reset_prefix_cache(reset_running_requests=True),
        "the requests that run are preempted",
    )
    engine.run(steps=12)
    later = [engine.add(prompt, 3) for prompt in prompts]
    engine.run()
    cached = [engine.end(id) for id in later]
    judge.expect([each.cached for each in cached] == [96, 64, 32], "their prompts are in the cache")
    for ended in [*cached, *map(engine.end, ids)]:
        judge.rows_are_right(ended)
    return f"{sum(each.cached for each in cached)} rows from 3 requests that had been preempted"


def new_weights_in_mid_run(engine, judge, text):
    """The routers change, and all is computed again from the start; each token keeps the row under
    which it was sampled.
    """
    ids = [engine.add(text(50), 20) for _ in range(3)]
    engine.run(steps=10)
    before = {id: sum(step.get(id, 0) for step in engine.recording.steps) for id in ids}
    engine.change_routers()
    engine.tap.tag = 1
    judge.expect(
        engine.engine.reset_prefix_cache(reset_running_requests=True),
        "the requests that run are preempted",
    )
    engine.run()
    changed = 0
    for id in ids:
        ended = engine.end(id)
        recorded = engine.recording.of(id, ended.tokens[:-1])
        judge.expect(
            [row.tolist() for row in ended.routing.ids()] == [computed[0] for computed in recorded],
            f"{id} keeps what was first",
        )
        judge.expect(
            ended.routing.tags.tolist() == [0] * before[id] + [1] * (len(recorded) - before[id]),
            f"{id}: rows say under which weights",
        )
        changed += sum(computed[0] != computed[-1] for computed in recorded)
        judge.rows += len(recorded)
    judge.expect(changed > 100, "computed again, the rows are others")
    engine.change_routers()
    engine.tap.tag = 0
    return (
        f"{sum(before.values())} rows of the old weights, of which {changed} were others when they"
        " were computed again"
    )


def aborts(engine, judge, text):
    """Requests are aborted while they are prefilled, while they decode, and before they are
    scheduled at all; their neighbours go on.
    """
    decoding, staying = engine.add(text(30), 50), engine.add(text(30), 30)
    engine.run(steps=6)
    prompt = text(200)
    prefilling = engine.add(prompt, 5)
    engine.run(steps=2)
    waiting = engine.add(text(20), 5)
    engine.engine.abort_request([decoding, prefilling, waiting], internal=True)
    late = engine.add(text(30), 6)
    engine.run()
    ended = engine.end(decoding)
    judge.expect(30 < len(ended.tokens) < 80, "the aborted request has some of its tokens")
    judge.rows_are_right(ended)
    prefilled = Ended(prefilling, prompt, 0, engine.take(prefilling, 200))
    computed = sum(map(bool, engine.recording.of(prefilling, prompt)))
    judge.expect(
        0 < computed < 199 and prefilled.routing.rows == computed,
        "the other has as many rows as were computed",
    )
    prefilled.tokens = prompt[: computed + 1]
    judge.rows_are_right(prefilled)
    judge.expect(engine.take(waiting, 20) is None, "what was never scheduled has no routing")
    for id in (staying, late):
        judge.rows_are_right(engine.end(id))
    return (
        f"aborted while waiting, after {computed} of 200 prompt tokens, and after"
        f" {len(ended.tokens) - 30} of 50 output tokens"
    )


def one_name_twice(engine, judge, text):
    """Two callers choose the same request id at the same time: the engine adds a suffix to each."""
    ids = [engine.add(text(25), 8, name="same") for _ in range(2)]
    judge.expect(
        ids[0] != ids[1] and all(id.startswith("same-") for id in ids),
        "the engine's ids have suffixes",
    )
    engine.run()
    judge.expect(engine.take("same", 33) is None, "a caller's id alone names no routing")
    for id in ids:
        judge.rows_are_right(engine.end(id))
    return f"2 requests called 'same' are {' and '.join(ids)}"


def random_traffic(engine, judge, text):
    """Prompts of all lengths that begin alike, in a cache that is too small for them; some are
    aborted.
    """
    chance = random.Random(1)
    beginnings = [text(200) for _ in range(4)]
    ids = []
    for _ in range(60):
        prompt = chance.choice(beginnings)[: chance.randint(10, 200)] + text(chance.randint(0, 3))
        ids.append(engine.add(prompt, chance.randint(1, 60)))
        engine.run(steps=chance.randint(0, 8))
        if chance.random() < 0.2:
            engine.engine.abort_request([chance.choice(ids[-6:])], internal=True)
    engine.run()
    ended = [
        engine.end(id) for id in ids if engine.prompts[id] in engine.outputs
    ]  # others were aborted before their first token
    for each in ended:
        judge.rows_are_right(each)
    hits = sum(each.cached > 0 for each in ended)
    judge.expect(
        len(ended) > 40 and hits > 10 and engine.preempted,
        "many requests end, many begin from the cache, some are preempted",
    )
    return f"{len(ended)} requests, {hits} begun from the cache, {len(engine.preempted)} preempted"


SITUATIONS = [
    chunked_prefill_and_batches,
    several_end_in_one_step,
    stop_tokens,
    prefix_hit_is_missing,
    prefix_hit_is_supplied,
    prefix_hit_in_one_step,
    preemption,
    preempted_in_its_prefill,
    prefix_hit_after_preemption,
    new_weights_in_mid_run,
    aborts,
    one_name_twice,
    random_traffic,
]
OF_DROPIN = [
    chunked_prefill_and_batches,
    several_end_in_one_step,
    stop_tokens,
    preemption,
    one_name_twice,
]


def main():
    *options, folder, text = sys.argv[1:]
    dropin = "--dropin" in options
    engine = Engine(
        folder,
        "dropin.DropInWorker" if dropin else "worker.CPURoutingWorker",
        ahead="--ahead" in options,
    )
    judge = Judge(engine, Reference(folder))
    passages = Passages(text)
    for situation in SITUATIONS if not dropin else OF_DROPIN:
        found = situation(engine, judge, passages)
        judge.close(situation.__name__.replace("_", " "), found)

    engine.step()  # tells the worker who ended last
    stats = engine.tap.capturer.stats()
    judge.expect(
        stats.requests_open == 0 and stats.steps_lost == 0 and stats.silent_layers == 0,
        f"nothing is left open or lost: {stats}",
    )
    judge.close(
        "in the end",
        f"{stats.steps_landed} steps, {stats.rows_delivered} rows delivered, 0 requests open",
    )
    print(f"{judge.passed} checks passed, {judge.failed} failed")
    return judge.failed > 0


if __name__ == "__main__":
    sys.exit(main())

"""routecap.deepep.check on the real DeepEP v2: two ranks (or DISPATCH_RANKS), in both of vLLM's
modes.

    python3 dispatch.py [--part all|faults,decode,...] [--seconds N] [--out FILE]

Needs two GPUs with NVLink, PyTorch, Triton, deep_ep (ElasticBuffer) and routecap with CUDA. Without
them, `--simulate` runs the same checks on the host backend and a stand-in for the dispatch.

What is true is known without DeepEP and without routecap: the ids that a router chose and those
that were sent are both drawn here, and what must be counted of them is written again here, by sets.
Ends with one line and status 0 if every count is what it must be.
"""

import argparse
import collections
import copy
import json
import os
import sys
import time
import traceback
import types

import numpy as np
import routecap
import routecap.deepep
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from routecap.deepep import Counts, Dispatch, check

RANKS = int(os.environ.get("DISPATCH_RANKS", 2))
CAPACITY = 2048  # of the buffer: num_max_tokens_per_rank in prefill
SMS = 22

simulated = False
device = None
rank = 0
buffer = None
deadline = 0.0
id_type = torch.int64  # of DeepEP's build: deep_ep.topk_idx_t
found = []  # one dictionary per step


def say(*what):
    if rank == 0:
        print(*what, flush=True)


# ---- What is true


def choose(n, k, experts, seed, masked, only=None):
    """[n, k] distinct ids of a router in random columns; of `masked` rows some or all columns are
    -1; `only` experts of one rank."""
    random = torch.Generator().manual_seed(seed)
    keys = torch.rand(n, experts, generator=random)
    local = experts // RANKS
    kind = torch.randint(0, 8, (n,), generator=random)
    if local >= k:  # a token whose experts are all on one rank
        keys[kind == 0, : experts - local] += 2
        keys[kind == 1, local:] += 2
    if only is not None:
        keys[:, only * local : (only + 1) * local] += 4
    ids = keys.topk(k).indices
    ids = ids.gather(1, torch.rand(n, k, generator=random).argsort(1))
    if masked:
        ids[kind == 2] = -1
        some = (kind == 3)[:, None] & (torch.rand(n, k, generator=random) < 0.5)
        ids[some] = -1
    return ids


# ---- A stand-in for the dispatch, to try this program without GPUs


class EPHandle(types.SimpleNamespace):
    """Of the name and the attributes of DeepEP's."""


EPHandle.__module__ = "deep_ep.buffers.elastic"


class Simulated:
    num_max_tokens_per_rank = CAPACITY
    deterministic = False

    def dispatch(
        self,
        x,
        topk_idx,
        topk_weights,
        num_experts,
        num_max_tokens_per_rank=None,
        expert_alignment=1,
        do_expand=False,
        do_cpu_sync=True,
        handle=None,
        **_,
    ):
        x, sf = x if isinstance(x, tuple) else (x, None)
        if handle is not None:
            topk_idx, num_experts, num_max_tokens_per_rank = (
                handle.topk_idx,
                handle.num_experts,
                handle.num_max_tokens_per_rank,
            )
            expert_alignment, do_cpu_sync = handle.expert_alignment, False
        m, k, local = num_max_tokens_per_rank or CAPACITY, topk_idx.shape[1], num_experts // RANKS
        everyone = [None] * RANKS
        dist.all_gather_object(everyone, (x.float(), sf, topk_idx))
        random = np.random.default_rng(rank)
        rows, psum = [], []
        for source, (_, _, ids) in enumerate(everyone):
            mine = ((ids >= 0) & (ids // local == rank)).any(1).nonzero()[:, 0].tolist()
            random.shuffle(mine)
            rows += [(source, t) for t in mine]
            psum.append(len(rows))
        n = len(rows)
        size = n if do_cpu_sync else RANKS * m
        metadata = torch.randint(0, RANKS * m, (size, 2 + k), dtype=torch.int32)
        recv_ids = torch.randint(-1, local, (size, k), dtype=topk_idx.dtype)
        counts = torch.zeros(local, dtype=torch.int64)
        for source, t in rows:
            for id in everyone[source][2][t].tolist():
                if id >= 0 and id // local == rank:
                    counts[id % local] += 1
        aligned = (counts + expert_alignment - 1) // expert_alignment * expert_alignment
        starts = torch.cumsum(aligned, 0) - aligned
        total = (
            int(aligned.sum())
            if do_cpu_sync
            else RANKS * m * min(k, local) + local * (expert_alignment - 1)
        )
        recv_x = torch.zeros(total if do_expand else size, x.shape[1], dtype=x.dtype)
        recv_sf = None if sf is None else torch.zeros(len(recv_x), sf.shape[1])
        cursor = starts.clone()
        for i, (source, t) in enumerate(rows):
            metadata[i, 0] = source * m + t
            for c, id in enumerate(everyone[source][2][t].tolist()):
                here = id >= 0 and id // local == rank
                at = i
                if do_expand:
                    at = int(cursor[id % local]) if here else -1
                    metadata[i, 2 + c] = at
                    cursor[id % local] += int(here)
                recv_ids[i, c] = id % local if here else -1
                if at >= 0:
                    recv_x[at] = everyone[source][0][t].to(x.dtype)
                    if sf is not None:
                        recv_sf[at] = everyone[source][1][t]
        handle = EPHandle(
            do_expand=do_expand,
            num_recv_tokens=size,
            num_expanded_tokens=total,
            num_experts=num_experts,
            expert_alignment=expert_alignment,
            num_max_tokens_per_rank=m,
            topk_idx=topk_idx.clone(),
            recv_src_metadata=metadata,
            psum_num_recv_tokens_per_scaleup_rank=torch.tensor(psum, dtype=torch.int32),
            psum_num_recv_tokens_per_expert=(
                cursor if do_expand else torch.cumsum(aligned, 0)
            ).int(),
            num_recv_tokens_per_expert_list=aligned.tolist() if do_cpu_sync else [],
        )
        return (
            recv_x if sf is None else (recv_x, recv_sf),
            None if do_expand else recv_ids,
            None,
            handle,
            types.SimpleNamespace(event=None),
        )


# ---- The check


def truth(chosen, sent, ignored=0):
    """What a rank must count that chose one and sent the other: by sets, of every token."""
    is_ = collections.Counter(tokens=len(chosen), ignored=ignored)
    for want, got in zip(chosen.tolist(), sent.tolist()):
        columns = lost = 0
        for w, g in zip(want, got):
            columns += w >= 0
            if w < 0:
                is_["extra"] += g >= 0
            elif g < 0:
                lost += 1
            elif g == w:
                is_["equal"] += 1
            elif g in want and w in got:
                is_["swapped"] += 1
            else:
                is_["replaced"] += 1
        is_["columns"] += columns
        is_["lost"] += lost
        is_["tokens_lost"] += columns > 0 and lost == columns
    return Counts(*(is_[name] for name in Counts._fields))


def wrong_fields(counts, expected):
    return sum(a != b for a, b in zip(counts, expected))


def globalize(ids, psum, first, experts):
    """As vLLM's class does it: a local id becomes global. -1: of another rank, beyond the experts,
    or behind the live rows."""
    row = torch.arange(len(ids), device=ids.device)[:, None]
    return torch.where((ids >= 0) & (ids + first < experts) & (row < psum[-1]), ids + first, -1)


def poison(ids, metadata, m, local):
    """What lies behind the live rows looks like rows."""
    if ids is not None:
        ids.random_(0, local)
    metadata.random_(0, RANKS * m)


def power_of_two(n):
    return 1 << max(n - 1, 0).bit_length()


def ready():
    if not simulated:
        torch.cuda.synchronize()
        dist.barrier()


def graph_of(body, warm_ups=2, repeat=1):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(warm_ups):
            body()
    torch.cuda.current_stream().wait_stream(stream)
    ready()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(repeat):
            body()
    return graph


# ---- Decode: do_expand=False, do_cpu_sync=False


class Decode:
    """Layers of one forward pass, eagerly or as a graph: dispatch each, then check all at once,
    with local ids and with global ones."""

    def __init__(self, experts, k, tokens, hidden, fp8=False, layers=1, m=None):
        self.experts, self.k, self.tokens, self.layers = experts, k, tokens, layers
        self.n, self.m = tokens[rank], m or power_of_two(max(tokens))
        self.local, self.first = experts // RANKS, rank * (experts // RANKS)
        self.x = torch.rand(self.n, hidden).to(torch.bfloat16).to(device)
        if fp8:
            self.x = (
                torch.rand(self.n, hidden, device=device).to(torch.float8_e4m3fn),
                torch.rand(self.n, hidden // 128, device=device),
            )
        self.chosen = torch.zeros(layers, self.n, k, dtype=id_type, device=device)
        self.sent = torch.zeros_like(self.chosen)
        self.weights = torch.rand(self.n, k, device=device)
        self.graph, self.kept = None, []
        self.mend = self.more = lambda *_: None

    def draw(self, seed, masked=False, change=None, only=None):
        self.drawn = [
            [
                choose(n, self.k, self.experts, 10000 * seed + 100 * layer + r, masked, only)
                for r, n in enumerate(self.tokens)
            ]
            for layer in range(self.layers)
        ]
        chosen = torch.stack([each[rank] for each in self.drawn])
        sent = chosen.clone()
        if change is not None:
            for layer in range(self.layers):
                change(sent[layer], self.experts)
        self.expected = [truth(c, s) for c, s in zip(chosen, sent)]
        self.chosen.copy_(chosen)
        self.sent.copy_(sent)

    def forward(self):
        self.kept = []
        for layer in range(self.layers):
            self.kept.append(
                buffer.dispatch(
                    x=self.x,
                    topk_idx=self.sent[layer],
                    topk_weights=self.weights,
                    num_experts=self.experts,
                    num_max_tokens_per_rank=self.m,
                    do_expand=False,
                    do_cpu_sync=False,
                    async_with_compute_stream=False,
                    num_sms=SMS,
                )
            )
        dispatches = []
        for layer, (_, ids, _, handle, _) in enumerate(self.kept):
            in_place = globalize(
                ids, handle.psum_num_recv_tokens_per_scaleup_rank, self.first, self.experts
            )
            dispatches += [
                Dispatch(handle, self.chosen[layer], ids),
                Dispatch(handle, self.chosen[layer], in_place, global_ids=True),
            ]
        self.checked = check(dispatches)

    def capture(self):
        self.graph = graph_of(self.forward)

    def step(self, seed, **drawn):
        self.draw(seed, **drawn)
        if self.graph is not None:
            for _, ids, _, handle, _ in self.kept:
                poison(ids, handle.recv_src_metadata, self.m, self.local)
            self.graph.replay()
        else:
            if not simulated:  # the allocator hands these blocks out again
                shapes = (
                    ((RANKS * self.m, self.k), id_type),
                    ((RANKS * self.m, 2 + self.k), torch.int32),
                )
                blocks = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in shapes]
                poison(*blocks, self.m, self.local)
                del blocks
            self.forward()
        counts = self.checked.read()
        want = [each for each in self.expected for _ in range(2)]
        return {
            "graph": self.graph is not None,
            "columns": sum(c.columns for c in counts),
            "counts": [tuple(c) for c in counts[:2]],
            "right": [c.right for c in counts],
            "counts_wrong": sum(map(wrong_fields, counts, want)),
        }


def keep(part, name, result):
    found.append({"part": part, "name": name, "rank": rank, **result})


def run(part, name, work):
    """A step on both ranks; if one of them fails, the others hear of it."""
    if not simulated:
        late = torch.tensor([int(time.time() > deadline)], device=device)
        dist.all_reduce(late)
        if int(late):
            keep(part, name, {"left_out": 1})
            return say(f"{part:9} {name:44} left out: no time")
    begun = time.time()
    try:
        results = work()
        for each in results if isinstance(results, list) else [results]:
            keep(part, name, each)
        error = None
    except Exception as e:
        traceback.print_exc()
        error = f"{type(e).__name__}: {e}"
        keep(part, name, {"error": error})
    errors = [None] * RANKS
    dist.all_gather_object(errors, error)
    bad = [
        key
        for each in found
        if each["part"] == part and each["name"] == name
        for key, value in each.items()
        if key.endswith("_wrong") and np.sum(value)
    ]
    say(
        f"{part:9} {name:44} {time.time() - begun:6.2f} s {'  '.join(filter(None, errors))} {' '.join(sorted(set(bad)))}"
    )


SHAPES = [(64, 6, 1024), (256, 8, 2048), (64, 4, 512)]
TOKENS = [(64, 50), (1, 1), (7, 3), (200, 256), (2048, 1500)]
if RANKS > 2:
    TOKENS = [(*t, *[max(1, t[1] // (2 + i)) for i in range(RANKS - 2)]) for t in TOKENS]
FEW = TOKENS[0]


def part_decode():
    for experts, k, hidden in SHAPES:
        for tokens in TOKENS:

            def work():
                decode = Decode(experts, k, tokens, hidden)
                results = [decode.step(1), decode.step(2, masked=True)]
                if not simulated:
                    decode.capture()
                    results += [decode.step(10 + i, masked=i == 3) for i in range(4)]
                return results

            run("decode", f"E={experts} k={k} hidden={hidden} tokens={tokens}", work)


# ---- Prefill: do_expand=True, do_cpu_sync=True


def prefill(
    experts,
    k,
    tokens,
    hidden,
    seed,
    masked=False,
    alignment=1,
    cpu_sync=True,
    fp8=False,
    change=None,
    only=None,
):
    n = tokens[rank]
    chosen = choose(n, k, experts, 1000 * seed + rank, masked, only)
    sent = chosen.clone()
    if change is not None:
        change(sent, experts)
    x = torch.rand(n, hidden).to(torch.bfloat16).to(device)
    if fp8:
        x = (
            torch.rand(n, hidden, device=device).to(torch.float8_e4m3fn),
            torch.rand(n, hidden // 128, device=device),
        )
    recv_x, recv_ids, _, handle, _ = buffer.dispatch(
        x=x,
        topk_idx=sent.to(device, id_type),
        topk_weights=torch.rand(n, k, device=device),
        num_experts=experts,
        num_max_tokens_per_rank=None,
        expert_alignment=alignment,
        do_expand=True,
        do_cpu_sync=cpu_sync,
        async_with_compute_stream=False,
        num_sms=SMS,
    )
    assert recv_ids is None
    rows = (recv_x[0] if fp8 else recv_x).shape[0]
    [counts] = check([Dispatch(handle, chosen.to(device, id_type))]).read()
    return {
        "rows": rows,
        "expanded_rows_wrong": int(rows != handle.num_expanded_tokens),
        "columns": counts.columns,
        "counts": tuple(counts),
        "right": [counts.right],
        "counts_wrong": wrong_fields(counts, truth(chosen, sent)),
    }


def part_prefill():
    for experts, k, hidden in SHAPES:
        run(
            "prefill",
            f"E={experts} k={k} hidden={hidden}",
            lambda: [
                prefill(experts, k, tokens, hidden, 31 + masked, masked=masked)
                for tokens in TOKENS
                for masked in (False, True)
            ],
        )


# ---- Planted faults


def another_expert(sent, experts):
    if len(sent):
        sent[0, 0] = next(e for e in range(experts) if e not in sent[0].tolist())


def lost_expert(sent, experts):
    if len(sent):
        sent[-1, 1] = -1


def lost_token(sent, experts):
    if len(sent):
        sent[len(sent) // 2] = -1


def swapped(sent, experts):
    if len(sent):
        sent[0] = sent[0].flip(0)


def all_of_them(sent, experts):
    if len(sent) > 8:
        (
            another_expert(sent[:1], experts),
            lost_expert(sent[1:3], experts),
            lost_token(sent[3:5], experts),
            swapped(sent[5:6], experts),
        )


FAULTS = {
    "nothing": None,
    "another expert": another_expert,
    "a lost expert": lost_expert,
    "a lost token": lost_token,
    "columns in another order": swapped,
    "all of them": all_of_them,
}


def part_faults():
    def must(result, change):
        return {
            **result,
            "verdict_wrong": int(any(result["right"]) if change else not all(result["right"])),
        }

    def decode(graph):
        d, results = Decode(64, 6, FEW, 1024, layers=2), []
        if graph:
            d.step(96)
            d.capture()
        for name, change in FAULTS.items():
            results.append({"fault": name, **must(d.step(97, change=change), change)})
        return results

    run("faults", "decode", lambda: decode(False))
    if not simulated:
        run("faults", "decode, in a graph", lambda: decode(True))
    run(
        "faults",
        "prefill",
        lambda: [
            {
                "fault": name,
                **must(prefill(64, 6, FEW, 1024, 98, change=change, alignment=16), change),
            }
            for name, change in FAULTS.items()
        ],
    )


# ---- Variants


def part_variants():
    run(
        "variants",
        "prefill, experts aligned to 128",
        lambda: prefill(64, 6, TOKENS[3], 1024, 41, masked=True, alignment=128),
    )
    run(
        "variants",
        "expanded without the CPU's sync",
        lambda: prefill(64, 6, FEW, 1024, 42, masked=True, cpu_sync=False),
    )
    run(
        "variants",
        "expanded without the CPU's sync, aligned to 128",
        lambda: prefill(64, 6, FEW, 1024, 43, alignment=128, cpu_sync=False),
    )
    run("variants", "prefill, fp8 with scales", lambda: prefill(64, 6, FEW, 1024, 44, fp8=True))
    run(
        "variants",
        "decode, fp8 with scales",
        lambda: Decode(64, 6, FEW, 1024, fp8=True).step(45, masked=True),
    )
    run("variants", "decode, asynchronous, sorted, cached handle", more_dispatches)
    run(
        "variants",
        "decode, a rank that receives nothing",
        lambda: Decode(64, 6, FEW, 1024).step(47, only=0),
    )
    run(
        "variants",
        "prefill, a rank that receives nothing",
        lambda: prefill(64, 6, FEW, 1024, 48, only=1),
    )
    run(
        "variants",
        "decode, a rank with no tokens",
        lambda: Decode(64, 6, (7, *[0] * (RANKS - 1)), 1024).step(46),
    )
    run("variants", "decode, four layers at once", lambda: four_layers(False))
    run("variants", "decode and prefill in one check", mixed)
    if not simulated:
        run("variants", "decode, four layers in one graph", lambda: four_layers(True))
        run("variants", "expanded without the CPU's sync, in a graph", expanded_graph)


def four_layers(graph):
    d = Decode(64, 6, FEW, 1024, layers=4)
    results = [d.step(60)]
    if graph:
        d.capture()
        results += [d.step(61 + i, change=all_of_them if i == 2 else None) for i in range(3)]
    return results


def mixed():
    """Micro-batches of different sizes, and both layouts, add up in one all-reduce."""
    experts, k, dispatches, expected, keep_ = 64, 6, [], [], []
    for i, (n, m, expand) in enumerate(((40, 64, False), (16, 16, False), (64, None, True))):
        n = n - 3 * rank
        chosen = choose(n, k, experts, 700 + 10 * i + rank, False)
        sent = chosen.clone()
        if i == 1:
            swapped(sent, experts)
        ids = chosen.to(device, id_type)
        _, recv, _, handle, _ = buffer.dispatch(
            x=torch.rand(n, 1024).to(torch.bfloat16).to(device),
            topk_idx=sent.to(device, id_type),
            topk_weights=torch.rand(n, k, device=device),
            num_experts=experts,
            num_max_tokens_per_rank=m,
            do_expand=expand,
            do_cpu_sync=expand,
            num_sms=SMS,
        )
        dispatches.append(Dispatch(handle, ids, recv))
        expected.append(truth(chosen, sent))
    counts = check(dispatches).read()
    return {
        "columns": sum(c.columns for c in counts),
        "right": [c.right for c in counts],
        "counts_wrong": sum(map(wrong_fields, counts, expected)),
    }


def more_dispatches():
    d, results = Decode(64, 6, FEW, 1024), []
    d.draw(51, masked=True)
    common = dict(x=d.x, num_experts=64, do_expand=False, num_sms=SMS)
    fresh = dict(topk_idx=d.sent[0], topk_weights=d.weights, num_max_tokens_per_rank=d.m)

    def compare(name, recv_ids, handle):
        [counts] = check([Dispatch(handle, d.chosen[0], recv_ids)]).read()
        results.append(
            {
                "variant": name,
                "rows": len(recv_ids),
                "columns": counts.columns,
                "right": [counts.right],
                "counts_wrong": wrong_fields(counts, d.expected[0]),
            }
        )

    _, ids, _, handle, event = buffer.dispatch(
        **common, **fresh, do_cpu_sync=False, async_with_compute_stream=True
    )
    if event.event is not None:
        event.current_stream_wait()
    compare("asynchronous", ids, handle)
    _, ids, _, handle, _ = buffer.dispatch(**common, **fresh, do_cpu_sync=True)
    compare("with the CPU's sync", ids, handle)
    if not simulated:
        buffer.deterministic = True
        _, ids, _, handle, _ = buffer.dispatch(**common, **fresh, do_cpu_sync=False)
        buffer.deterministic = False
        compare("deterministic", ids, handle)
    _, ids, _, handle, _ = buffer.dispatch(**common, **fresh, do_cpu_sync=False)
    _, again, _, handle_again, _ = buffer.dispatch(
        **common, topk_idx=None, topk_weights=d.weights, handle=handle
    )
    compare("cached handle", again, handle_again)
    return results


def expanded_graph():
    """do_expand=True, do_cpu_sync=False: what later versions of vLLM's class can capture."""
    experts, k, n, results, state = 64, 6, FEW[rank], [], {}
    chosen, sent = (torch.zeros(n, k, dtype=id_type, device=device) for _ in range(2))
    weights, x = torch.rand(n, k, device=device), torch.rand(n, 1024).to(torch.bfloat16).to(device)
    sent.copy_(choose(n, k, experts, 1, False))

    def forward():
        _, _, _, state["handle"], _ = buffer.dispatch(
            x=x,
            topk_idx=sent,
            topk_weights=weights,
            num_experts=experts,
            do_expand=True,
            do_cpu_sync=False,
            num_sms=SMS,
        )
        state["checked"] = check([Dispatch(state["handle"], chosen)])

    graph = graph_of(forward)
    for seed, name in enumerate(FAULTS):
        drawn = choose(n, k, experts, 9500 + 10 * seed + rank, seed == 3)
        moved = drawn.clone()
        if FAULTS[name] is not None:
            FAULTS[name](moved, experts)
        chosen.copy_(drawn)
        sent.copy_(moved)
        poison(None, state["handle"].recv_src_metadata, CAPACITY, 32)
        graph.replay()
        [counts] = state["checked"].read()
        results.append(
            {
                "graph": True,
                "fault": name,
                "columns": counts.columns,
                "right": [counts.right],
                "counts_wrong": wrong_fields(counts, truth(drawn, moved)),
            }
        )
    return results


# ---- What a user would get wrong


def altered(handle, **changes):
    """The same handle with other attributes; None takes one away."""
    other = copy.copy(handle)
    for name, value in changes.items():
        if value is None:
            delattr(other, name)
        else:
            setattr(other, name, value)
    return other


def part_mistakes():
    run("mistakes", "decode", decode_mistakes)
    run("mistakes", "prefill", prefill_mistakes)
    run("mistakes", "refused", refusals)


def attempt(name, dispatch, results, must_be_found=True):
    counts = check([dispatch]).read()[0]
    rights = [None] * RANKS
    dist.all_gather_object(rights, counts.right)
    results.append(
        {
            "mistake": name,
            "counts": tuple(counts),
            "missed_wrong": int(all(rights) == must_be_found),
        }
    )


def decode_mistakes():
    d, results = Decode(64, 6, FEW, 1024), []
    d.step(90)
    earlier = d.kept[0]
    d.step(91)
    _, ids, _, h, _ = d.kept[0]
    psum = h.psum_num_recv_tokens_per_scaleup_rank
    live = int(psum[-1])
    h.recv_src_metadata[live:] = torch.randint(
        0, RANKS * d.m, (RANKS * d.m - live, 2 + d.k), dtype=torch.int32
    ).to(device)
    ids[live:] = torch.randint(0, d.local, (RANKS * d.m - live, d.k)).to(device, id_type)
    chosen, in_place = d.chosen[0], globalize(ids, psum, d.first, 64)
    attempt("none", Dispatch(h, chosen, ids), results, False)
    attempt("none, global", Dispatch(h, chosen, in_place, True), results, False)
    attempt(
        "tokens_per_rank of a larger step",
        Dispatch(altered(h, num_max_tokens_per_rank=256), chosen, ids),
        results,
    )
    attempt(
        "tokens_per_rank = the buffer's capacity",
        Dispatch(altered(h, num_max_tokens_per_rank=CAPACITY), chosen, ids),
        results,
    )
    attempt(
        "no live rows",
        Dispatch(
            altered(h, psum_num_recv_tokens_per_scaleup_rank=torch.full_like(psum, RANKS * d.m)),
            chosen,
            ids,
        ),
        results,
    )
    attempt("local ids called global", Dispatch(h, chosen, ids, True), results)
    attempt("global ids, not said", Dispatch(h, chosen, in_place), results)
    attempt(
        "the tail is not masked",
        Dispatch(h, chosen, torch.where(ids >= 0, ids + d.first, -1), True),
        results,
    )
    attempt(
        "metadata of another dispatch (zeros)",
        Dispatch(altered(h, recv_src_metadata=torch.zeros_like(h.recv_src_metadata)), chosen, ids),
        results,
    )
    attempt("the handle of the step before", Dispatch(earlier[3], chosen, earlier[1]), results)
    attempt("the ids of the step before", Dispatch(h, chosen, earlier[1]), results)
    attempt("the router's ids of the step before", Dispatch(h, earlier[3].topk_idx, ids), results)
    return results


def prefill_mistakes():
    experts, k, n, results = 64, 6, FEW[rank], []
    chosen = choose(n, k, experts, 95 + rank, False).to(device, id_type)
    for alignment in (1, 128):
        _, _, _, h, _ = buffer.dispatch(
            x=torch.rand(n, 1024).to(torch.bfloat16).to(device),
            topk_idx=chosen,
            topk_weights=torch.rand(n, k, device=device),
            num_experts=experts,
            num_max_tokens_per_rank=None,
            expert_alignment=alignment,
            do_expand=True,
            do_cpu_sync=True,
            num_sms=SMS,
        )
        counts = torch.tensor(h.num_recv_tokens_per_expert_list, dtype=torch.int32, device=device)
        attempt(f"aligned to {alignment}: none", Dispatch(h, chosen), results, False)
        attempt(
            f"aligned to {alignment}: the list's counts as expert_ends",
            Dispatch(altered(h, psum_num_recv_tokens_per_expert=counts), chosen),
            results,
        )
        attempt(
            f"aligned to {alignment}: the sums before each expert",
            Dispatch(
                altered(h, psum_num_recv_tokens_per_expert=(counts.cumsum(0) - counts).int()),
                chosen,
            ),
            results,
        )
        attempt(
            f"aligned to {alignment}: tokens_per_rank of a decode step",
            Dispatch(altered(h, num_max_tokens_per_rank=1024), chosen),
            results,
        )
    return results


def refusals():
    """Each is an error on every rank, before anything is sent."""
    d, results = Decode(64, 6, FEW, 1024), []
    d.step(92)
    _, ids, _, h, _ = d.kept[0]
    later = type("EPHandle", (), {"__module__": "deep_ep.buffers.ep"})()
    for name, dispatch, words in (
        ("a handle of DeepEP 2.5", Dispatch(later, d.chosen[0], ids), "DeepEP 2.5"),
        ("what is no handle", Dispatch(object(), d.chosen[0], ids), "builtins.object"),
        (
            "a handle without an attribute",
            Dispatch(altered(h, recv_src_metadata=None), d.chosen[0], ids),
            "has no recv_src_metadata",
        ),
        ("no recv_topk_idx", Dispatch(h, d.chosen[0]), "recv_topk_idx is None"),
        ("ids of 16 bits", Dispatch(h, d.chosen[0], ids.short()), "I16"),
        ("a column too few", Dispatch(h, d.chosen[0][:, 1:].contiguous(), ids), "5 columns"),
        (
            "tokens_per_rank of a smaller step",
            Dispatch(altered(h, num_max_tokens_per_rank=16), d.chosen[0], ids),
            "rows",
        ),
    ):
        try:
            check([dispatch])
            results.append({"refused": name, "passed_wrong": 1})
        except routecap.Error as error:
            results.append(
                {
                    "refused": name,
                    "error_text": str(error)[:200],
                    "words_wrong": int(words not in str(error)),
                }
            )
    return results


# ---- Time


def part_time():
    for tokens, experts, k, hidden in (
        (64, 256, 8, 2048),
        (256, 256, 8, 2048),
        (64, 256, 8, 7168),
        (256, 256, 8, 7168),
    ):
        run(
            "time",
            f"{tokens} tokens, E={experts} k={k} hidden={hidden}",
            lambda: timings(tokens, experts, k, hidden),
        )


def replay_time(graph, repeat=1, replays=50, rounds=9):
    """Microseconds of one body: the median of the rounds, and their spread."""
    times = []
    for _ in range(rounds):
        dist.barrier()
        torch.cuda.synchronize()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        graph.replay()
        begin.record()
        for _ in range(replays):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / replays / repeat)
    return [round(float(np.median(times)), 2), round(float(np.ptp(times)), 2)]


def timings(tokens, experts, k, hidden):
    from routecap import _received as calls

    n, m = tokens, power_of_two(tokens)
    ids, weights = (
        choose(n, k, experts, 7 + rank, False).to(device, id_type),
        torch.rand(n, k, device=device),
    )
    x = torch.rand(n, hidden).to(torch.bfloat16).to(device)

    def dispatch():
        _, recv, _, handle, _ = buffer.dispatch(
            x=x,
            topk_idx=ids,
            topk_weights=weights,
            num_experts=experts,
            num_max_tokens_per_rank=m,
            do_expand=False,
            do_cpu_sync=False,
            async_with_compute_stream=False,
            num_sms=SMS,
        )
        return Dispatch(handle, ids, recv)

    state, result = {}, {"received_rows": RANKS * m}

    def step(layers, checked):
        def body():
            state["kept"] = [dispatch() for _ in range(layers)]
            if checked:
                state["checked"] = check(state["kept"])

        return body

    for layers in (1, 16, 58):
        for checked in (False, True):
            result[f"{layers} dispatches{' + check' if checked else ''}"] = replay_time(
                graph_of(step(layers, checked)), replays=20 if layers > 1 else 50, rounds=7
            )
            if checked:
                result["counts_wrong"] = sum(not each.right for each in state["checked"].read())
    one = dispatch()
    torch.cuda.synchronize()
    described = routecap.deepep._Handle(one.handle)
    table = calls.Table(
        torch.zeros(RANKS * m * k, dtype=torch.int32, device=device),
        torch.zeros(len(Counts._fields), dtype=torch.int64, device=device),
        RANKS,
        rank,
        experts,
        m,
    )
    capturer, arguments = routecap.deepep._capturer(device), described.tensors(one)
    many = torch.zeros(58 * RANKS * m * k, dtype=torch.int32, device=device)

    def empty_then_read():
        table.executed.zero_()
        calls.read(capturer, table, **arguments)

    for name, body in (
        ("alone: zero_ + read", empty_then_read),
        ("alone: zero_", table.executed.zero_),
        ("alone: compare", lambda: calls.compare(capturer, table, ids)),
        ("alone: all_reduce of one", lambda: dist.all_reduce(table.executed)),
        ("alone: all_reduce of 58", lambda: dist.all_reduce(many)),
        ("alone: zero_ of 58", many.zero_),
    ):
        result[name] = replay_time(graph_of(body, repeat=20), 20, 20)
    for name, body in (
        ("host: check of 1", lambda: check([one])),
        ("host: check of 58", lambda: check([one] * 58)),
        ("host: read", lambda: calls.read(capturer, table, **arguments)),
    ):
        body()
        spans = []
        for _ in range(5):
            ready()
            begun = time.perf_counter()
            for _ in range(10):
                body()
            spans.append((time.perf_counter() - begun) / 10 * 1e6)
        result[name] = round(float(np.median(spans)), 1)
    return result


# ---- Running

PARTS = ("faults", "decode", "prefill", "mistakes", "variants", "time")


def main_of(rank_here, options):
    global rank, device, buffer, simulated, id_type, deadline
    rank, simulated, deadline = rank_here, options.simulate, options.deadline
    id_type = torch.int32 if options.int32 else torch.int64
    if simulated:
        del TOKENS[4:], SHAPES[1:]
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29531")
    if simulated:
        device = torch.device("cpu")
        dist.init_process_group("gloo", rank=rank, world_size=RANKS)
        buffer = Simulated()
    else:
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", rank=rank, world_size=RANKS, device_id=device)
        dist.all_reduce(torch.zeros(1, device=device))
        torch.cuda.synchronize()
        import deep_ep

        assert deep_ep.topk_idx_t == id_type, (
            "with --int32, DeepEP must be built so, and without it not"
        )
        say(
            f"torch {torch.__version__}, NCCL {torch.cuda.nccl.version()}, {torch.cuda.get_device_name()}, DeepEP {deep_ep.__version__}, ids {deep_ep.topk_idx_t}"
        )
        buffer = deep_ep.ElasticBuffer(
            dist.group.WORLD,
            num_max_tokens_per_rank=CAPACITY,
            hidden=7168,
            num_topk=8,
            explicitly_destroy=True,
            num_cpu_timeout_secs=30,
            num_gpu_timeout_secs=20,
        )
        say(
            "domains:",
            buffer.get_physical_domain_size(),
            buffer.get_logical_domain_size(),
            f"{buffer.num_bytes / 2**20:.0f} MiB",
        )
    begun = time.time()
    for part in options.part.split(","):
        for each in PARTS if part == "all" else (part,):
            if not (simulated and each == "time"):
                globals()["part_" + each]()
    say(f"{time.time() - begun:.1f} s")
    everyone = [None] * RANKS
    dist.all_gather_object(everyone, found)
    bad = report(everyone, options.out) if rank == 0 else 0
    if not simulated:
        buffer.destroy()
    dist.barrier()
    dist.destroy_process_group()
    if bad:
        sys.exit(1)


def report(everyone, out):
    steps = [each for rank_found in everyone for each in rank_found]
    if out:
        with open(out, "w") as file:
            json.dump(steps, file, indent=1, default=str)
    totals = collections.defaultdict(collections.Counter)
    for each in steps:
        total = totals[each["part"]]
        total["steps"] += 1
        total["errors"] += "error" in each
        total["in graphs"] += bool(each.get("graph"))
        for key, value in each.items():
            if key.endswith("_wrong") or key in ("columns", "left_out"):
                total[key] += int(np.sum(value))
    for part, total in totals.items():
        print(part, dict(total))
    for each in steps:
        if (
            each["part"] in ("mistakes", "time", "faults")
            or "error" in each
            or any(key.endswith("_wrong") and np.sum(value) for key, value in each.items())
        ):
            print(
                json.dumps(
                    {key: value for key, value in each.items() if key != "part"}, default=str
                )
            )
    bad = sum(
        total["errors"] + sum(value for key, value in total.items() if key.endswith("_wrong"))
        for total in totals.values()
    )
    out_of_time = sum(total["left_out"] for total in totals.values())
    columns = sum(total["columns"] for total in totals.values())
    print(
        f"dispatch: {'FAILED, ' + str(bad) + ' wrong' if bad else 'all right'}: {sum(t['steps'] for t in totals.values())} steps, {columns} columns"
        + (f", {out_of_time} left out" if out_of_time else ""),
        flush=True,
    )
    return bad


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--part", default="all")
    parser.add_argument("--out")
    parser.add_argument(
        "--seconds", type=float, default=1e9, help="then leave out what is not done"
    )
    parser.add_argument("--int32", action="store_true", help="DeepEP was built with 32-bit ids")
    parser.add_argument("--simulate", action="store_true")
    options = parser.parse_args()
    options.deadline = time.time() + options.seconds
    try:
        mp.spawn(main_of, (options,), nprocs=RANKS)
    except mp.ProcessExitedException:
        sys.exit(1)

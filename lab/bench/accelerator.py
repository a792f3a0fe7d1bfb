#!/usr/bin/env python3
"""What routecap.torch costs on a GPU beside the CUDA backend, and whether both are right.

    python3 accelerator.py [--json FILE] [--quick] [--cpu]

First both capture the same random engine: eager prefills and decodes, replayed graphs with padding,
passes that fail, layers that are forgotten, requests that are cut and go on, and steps in flight.
Every cell is compared with ids that were cloned behind each router, and must be that or, if its
layer was forgotten, missing. The exit status is 1 if one is not.

Then the cost of a decode step of 48 layers, k 8, of 128 experts: microseconds that a loop takes
more for each step than without capture, and how much of its thread's time the calls take. Blocks of
50 steps with capture are held against the mean of the blocks without before and after them. Needs
PyTorch and the package; --cpu runs all of it that needs no GPU, with the host backend instead, and
its times mean nothing.
"""

import argparse
import random
import sys
import time
from collections import defaultdict

import numpy as np
import routecap
import routecap.torch
import torch
from interval import estimate
from machine import commit, processor, save

LAYERS, K, EXPERTS, ROWS = 48, 8, 128, 2048
SHAPE = {"layers": LAYERS, "k": K, "experts": EXPERTS, "rows": ROWS, "slots": 4}
PASSES = 16  # different inputs


class Model:
    """Matrix products that read memory, and routers. Its input and output never move."""

    def __init__(self, device, hidden):
        make = {"device": device, "dtype": torch.float32 if device == "cpu" else torch.bfloat16}
        self.device = device
        self.inputs = torch.randn(PASSES, ROWS, hidden, **make)
        self.x = torch.zeros(ROWS, hidden, **make)
        self.weights = torch.randn(LAYERS, hidden, hidden, **make) / hidden**0.5
        self.routers = torch.randn(LAYERS, hidden, EXPERTS, **make) / hidden**0.5
        self.seen = torch.full((LAYERS, ROWS, K), -1, dtype=torch.int64, device=device)

    def read(self, number, rows):
        self.x[:rows].copy_(self.inputs[number % PASSES].roll(number // PASSES, 0)[:rows])

    def __call__(self, rows, route, see):
        x = self.x[:rows]
        for layer in range(LAYERS):
            x = torch.nn.functional.rms_norm(x @ self.weights[layer], x.shape[-1:])
            ids = (x @ self.routers[layer]).topk(K).indices
            if see:
                self.seen[layer, :rows].copy_(ids)
            route(layer, ids)


class Nothing:
    """No capture."""

    def begin(self, rows):
        pass

    def route(self, layer, ids):
        pass

    def end(self):
        pass

    def issue(self, spans):
        pass

    def open(self, count):
        return np.zeros(count, np.uint64)

    def close(self, handles):
        pass


class Cuda(Nothing):
    """routecap's CUDA backend, or with --cpu its host backend."""

    def __init__(self, device, way):
        backend = "host" if device == "cpu" else "cuda"
        self.capturer = routecap.Capturer(**SHAPE, backend=backend)
        self.way, self.held = way, {}
        if way == "written":
            self.sinks = [
                torch.as_tensor(self.capturer.sink(layer), device=device) for layer in range(LAYERS)
            ]

    def begin(self, rows):
        self.held = {}
        self.capturer.begin(rows)

    def route(self, layer, ids):
        if self.way == "each":
            self.capturer.record(layer, ids)
        elif self.way == "all":
            self.held[layer] = ids
        else:
            self.sinks[layer][: len(ids)].copy_(ids)

    def end(self):
        if self.way == "all":
            self.capturer.record_layers(self.held)
        self.capturer.snapshot()

    def issue(self, spans):
        ticket = self.capturer.issue(spans).ticket
        if ticket > 2:
            self.capturer.issued(ticket - 2).wait()

    def discard(self):
        self.capturer.discard()

    def open(self, count):
        return self.capturer.open_batch(count)

    def close(self, handles):
        self.capturer.close_batch(handles)

    def truncate(self, handle, rows):
        self.capturer.request(handle).truncate(rows)

    def finish(self, handle, rows):
        return self.capturer.request(handle).finish(rows)

    def stop(self):
        self.capturer.close()


class Torch(Cuda):
    """routecap.torch."""

    def __init__(self, device, way):
        self.capturer = routecap.torch.Capturer(**SHAPE, device=device)
        self.way, self.held = way, {}
        self.sinks = [self.capturer.sink(layer) for layer in range(LAYERS)]

    def issue(self, spans):
        self.capturer.issue(spans)  # which waits for a slot itself


def captured_graph(model, tap, rows, see):
    """A CUDA graph of a pass; its kernels have run before."""
    for _ in range(2):
        run(model, tap, rows, see)
    if isinstance(tap, Torch):
        tap.capturer.drain()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(
        graph, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"
    ):
        run(model, tap, rows, see)
    return graph


def run(model, tap, rows, see, forgotten=frozenset()):
    def route(layer, ids):
        if layer not in forgotten:
            tap.route(layer, ids)

    tap.begin(rows)
    model(rows, route, see)
    tap.end()


# ---- Whether it is right


def judge(model, tap, seed, steps):
    """Rows compared, cells that are missing as they have to be, and cells that are wrong."""
    dice = random.Random(seed)
    graphs = {}
    if model.device != "cpu":
        graphs = {rows: captured_graph(model, tap, rows, True) for rows in (16, 64, 256)}
        tap.discard()
    handles = tap.open(40).tolist()
    lengths = dict.fromkeys(handles, 0)
    rows_of = defaultdict(dict)  # request: position: (pass, row)
    forgotten_in, seen, ended = [], [], {}
    for number in range(steps):
        spans, at, placed = [], 0, []
        for handle in dice.sample(list(lengths), dice.randrange(1, min(len(lengths), 30) + 1)):
            rows = dice.choice([1, 1, 1, 1, dice.randrange(2, 40)])
            first = lengths[handle]
            spans.append(routecap.spans(1, request=handle, position=first, rows=rows, sink_row=at))
            placed += [(handle, first + i, at + i) for i in range(rows)]
            at += rows
        model.read(number, ROWS)
        size = next((rows for rows in graphs if rows >= at), None)
        forgotten = set()
        if size is not None and dice.random() < 0.7:
            graphs[size].replay()
        else:
            forgotten = {layer for layer in range(LAYERS) if dice.random() < 0.03}
            run(model, tap, min(at + dice.randrange(8), ROWS), True, forgotten)
        seen.append(model.seen.clone())
        forgotten_in.append(forgotten)
        fails = dice.random()
        if fails < 0.1:
            continue  # the next pass discards it
        if fails < 0.2:
            tap.discard()
            continue
        tap.issue(np.concatenate(spans))
        for handle, position, row in placed:
            rows_of[handle][position] = number, row
            lengths[handle] = position + 1
        if dice.random() < 0.2:
            handle = dice.choice(list(lengths))
            lengths[handle] = dice.randrange(lengths[handle] + 1)
            tap.truncate(handle, lengths[handle])
        if dice.random() < 0.1 and len(lengths) > 10:
            handle = dice.choice(list(lengths))
            ended[handle] = tap.finish(handle, lengths[handle]), lengths.pop(handle)
    for handle, rows in lengths.items():
        ended[handle] = tap.finish(handle, rows), rows
    seen = [each.cpu().numpy() for each in seen]
    compared = missing = wrong = 0
    for handle, (routing, rows) in ended.items():
        routing.wait(60)
        ids = routing.ids()
        for position in range(rows):
            number, row = rows_of[handle][position]
            right = seen[number][:, row].copy()
            for layer in forgotten_in[number]:
                right[layer] = -1
            wrong += int((ids[position] != right).any(1).sum())
            missing += len(forgotten_in[number])
        compared += rows
    return compared, missing, wrong


# ---- What it costs


class Loop:
    """Decoding of `rows` requests, a token each in a step. The device is a step ahead, as with
    asynchronous scheduling: the loop waits for the step before the one that it launched.
    """

    def __init__(self, model, tap, rows, graphed, steps):
        self.model, self.tap, self.rows, self.steps = model, tap, rows, steps
        self.graph = captured_graph(model, tap, rows, False) if graphed else None
        if hasattr(tap, "discard"):
            tap.discard()

    def block(self):
        """Microseconds of a step, and of the thread in calls of the capture behind each pass."""
        handles = self.tap.open(self.rows)
        spans = routecap.spans(
            self.rows, request=handles, rows=1, sink_row=np.arange(self.rows, dtype=np.uint32)
        )
        synchronize(self.model.device)
        done = [] if self.model.device == "cpu" else [torch.cuda.Event(), torch.cuda.Event()]
        calls, start = 0.0, time.perf_counter()
        for position in range(self.steps):
            spans["position"] = position
            self.model.read(position % PASSES, self.rows)
            if self.graph is not None:
                self.graph.replay()
            else:
                run(self.model, self.tap, self.rows, False)
            if done:
                done[position % 2].record()
            before = time.perf_counter()
            self.tap.issue(spans)
            calls += time.perf_counter() - before
            if done and position:
                done[position % 2 - 1].synchronize()  # the tokens of the step before
        synchronize(self.model.device)
        taken = time.perf_counter() - start
        self.tap.close(handles)
        return taken / self.steps * 1e6, calls / self.steps * 1e6


def synchronize(device):
    if device != "cpu":
        torch.cuda.synchronize()


WAYS = [
    (Cuda, "each", "{}: each layer recorded"),
    (Cuda, "all", "{}: all layers at once"),
    (Cuda, "written", "{}: a copy of PyTorch's into its sink"),
    (Torch, "each", "routecap.torch: each layer recorded"),
    (Torch, "all", "routecap.torch: all layers at once"),
    (Torch, "written", "routecap.torch: a copy of PyTorch's into its ids"),
]


def cost(model, rows, graphed, repetitions, steps, backend):
    """Lines of the table: name, estimates of what a step takes more and of the calls behind it."""
    nothing = Loop(model, Nothing(), rows, graphed, steps)
    taps = [kind(model.device, way) for kind, way, _ in WAYS]
    loops = [Loop(model, tap, rows, graphed, steps) for tap in taps]
    for loop in [nothing, *loops]:
        loop.block()
    bases, added, calls = [], defaultdict(list), defaultdict(list)
    before = nothing.block()[0]
    for _ in range(repetitions):
        for (_, _, name), loop in zip(WAYS, loops):
            taken, behind = loop.block()
            after = nothing.block()[0]
            bases.append(after)
            added[name].append(taken - (before + after) / 2)
            calls[name].append(behind)
            before = after
    lines = [("without capture, a step", estimate(bases), None)]
    lines += [
        (name.format(backend), estimate(added[name]), estimate(calls[name])) for _, _, name in WAYS
    ]
    for tap in taps:
        if isinstance(tap, Torch):
            assert tap.capturer.stats().steps_lost == 0
        tap.stop()
    return lines


def main():
    parser = argparse.ArgumentParser(description="routecap.torch beside the CUDA backend.")
    parser.add_argument("--json", metavar="FILE", help="write the results there, too")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--cpu", action="store_true", help="without a GPU")
    options = parser.parse_args()
    device = "cpu" if options.cpu else "cuda"
    backend = "host backend" if options.cpu else "CUDA backend"
    where = "CPU" if options.cpu else torch.cuda.get_device_name()
    title = f"routecap {routecap.__version__}, {where}, PyTorch {torch.__version__}"
    print(f"{title}\n{processor()}, {commit()}\n", flush=True)
    if not options.cpu:
        torch.cuda.set_stream(torch.cuda.Stream())  # of everything that follows
    model = Model(device, 64 if options.cpu else 4096)
    results, failed = [], 0

    print("Every cell against what was cloned behind its router")
    for kind, name in ((Cuda, backend), (Torch, "routecap.torch")):
        for way in ("each", "all", "written"):
            sums = np.zeros(3, int)
            for seed in range(1 if options.quick or options.cpu else 3):
                tap = kind(device, way)
                sums += judge(model, tap, seed, 60 if options.cpu else 300)
                tap.stop()
            compared, missing, wrong = sums.tolist()
            failed += wrong
            print(
                f"  {name + ', ' + way:<28} {compared:8} rows, {missing:6} cells missing as they"
                f" must, {wrong} wrong",
                flush=True,
            )
            results.append(
                {"cells": name, "way": way, "rows": compared, "missing": missing, "wrong": wrong}
            )

    repetitions, steps = (1, 3) if options.cpu else (3 if options.quick else 20, 50)
    for graphed in (False,) if options.cpu else (True, False):
        for rows in (64, 256):
            pass_of = "a replayed graph" if graphed else "an eager pass"
            print(
                f"\n{pass_of}, {rows} tokens, {LAYERS} layers, k {K}: us of a step"
                "        more than without     in the calls behind the pass"
            )
            for name, added, calls in cost(model, rows, graphed, repetitions, steps, backend):
                text = f"  {name:<52} {added[0]:9.1f} [{added[1]:.1f}, {added[2]:.1f}]"
                line = {"pass": pass_of, "rows": rows, "name": name, "us": added}
                if calls is not None:
                    text = f"{text:<90} {calls[0]:7.1f} [{calls[1]:.1f}, {calls[2]:.1f}]"
                    line["us_in_calls"] = calls
                print(text, flush=True)
                results.append(line)
    if options.json:
        save(options.json, title=title, interval="95 % of the median", results=results)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

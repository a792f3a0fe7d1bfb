#!/usr/bin/env python3
"""The same checkpoint and the same prompts through several engines, captured through routecap in
each: the same experts in every cell.

usage: oracle.py WORK SEEDS GGUF_PYTHON LIBRARY ENGINE=PROGRAM...

ENGINE is llama.cpp, rust, ollama or candle; transformers, which runs in this Python, is what they
are compared with. Each seed is a model and prompts of its own. Some engines run several times: with
one memory for all sequences and with one for each, and with all logits wanted or only those of each
prompt's last token, so that the last layer computes only that row: the others of that layer have to
be missing, and nothing else may be.

Every cell is compared, as a set and in order: all these engines rank what they choose. In the end
the comparison is proved: for each run of the first model, results with one thing wrong have to be
noticed. Prints a line for each run; exit status 0 if all is as it should be.
"""

import json
import random
import string
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

import routecap

HERE = Path(__file__).parent
TRANSFORMERS = HERE.parent.parent / "integrations/transformers/tests/real/engine_program.py"
GENERATE = 8  # tokens that every engine generates for each prompt; the last one is never input
TIE = 1e-4  # models in which two logits that decide differ by less are not used


class Cells(NamedTuple):
    """One request: ids [rows, layers, k], and [rows, layers] which cells are there."""

    ids: np.ndarray
    there: np.ndarray


class Verdict(NamedTuple):
    cells: int  # compared
    spared: int  # that the engine did not compute, and should not have
    absent: int = 0  # that should be there
    extra: int = 0  # that should not
    sets: int = 0  # other experts
    orders: int = 0  # the same experts in another order
    shapes: int = 0  # requests with other rows, layers or k, which are not compared

    @property
    def good(self):
        return self.cells > 0 and not any(self[2:])

    def __str__(self):
        wrong = ", ".join(
            f"{count} {name}"
            for name, count in self._asdict().items()
            if count and name not in ("cells", "spared")
        )
        return (
            f"{self.cells} cells equal in order, {self.spared} spared"
            if self.good
            else f"{self.cells} cells compared; WRONG: {wrong}"
        )


def compare(prompts, expected, actual, pruned):
    """The verdict on the requests of one run, against those of the reference."""
    count = dict.fromkeys(Verdict._fields, 0)
    count["shapes"] = abs(len(expected) - len(actual))
    for prompt, reference, other in zip(prompts, expected, actual):
        if other.ids.shape != reference.ids.shape:
            count["shapes"] += 1
            continue
        computed = reference.there.copy()
        if pruned:
            computed[: len(prompt) - 1, -1] = False
        both = computed & other.there
        orders = (other.ids != reference.ids).any(-1) & both
        sets = (np.sort(other.ids, -1) != np.sort(reference.ids, -1)).any(-1) & both
        for name, cells in {
            "cells": both,
            "spared": ~computed & ~other.there,
            "absent": computed & ~other.there,
            "extra": ~computed & other.there,
            "sets": sets,
            "orders": orders & ~sets,
        }.items():
            count[name] += int(cells.sum())
    return Verdict(**count)


def wrong_results(prompts, requests, pruned):
    """Results of a run with one thing wrong in each: (what, requests)."""

    def changed(change, request=0):
        copies = [Cells(each.ids.copy(), each.there.copy()) for each in requests]
        copies[request] = change(*copies[request]) or copies[request]
        return copies

    row = len(prompts[0]) - 1  # is in every layer of every run

    def swap_order(ids, there):
        ids[row, -1, [0, 1]] = ids[row, -1, [1, 0]]

    def replace(ids, there):
        ids[row, 0, 0] = next(expert for expert in range(99) if expert not in ids[row, 0])

    def exchange_layers(ids, there):
        ids[row, [0, 1]] = ids[row, [1, 0]]

    def lose(ids, there):
        there[row, -1] = False

    def invent(ids, there):
        there[0, -1] = True

    yield "two experts of a cell swapped", changed(swap_order)
    yield "an expert replaced by another", changed(replace)
    yield "two layers of a row exchanged", changed(exchange_layers)
    yield "a cell lost", changed(lose)
    yield "rows shifted by one", changed(lambda ids, there: Cells(np.roll(ids, 1, 0), there))
    yield "a row too few", changed(lambda ids, there: Cells(ids[:-1], there[:-1]))
    yield (
        "two requests of one length exchanged",
        [requests[i] for i in (1, 0, *range(2, len(requests)))],
    )
    yield "a request too few", requests[:-1]
    if pruned:
        yield "a cell that was not computed", changed(invent)


def prompts_of(seed):
    """Some texts: two of one length, which candle runs as one batch, one that begins as another
    does, and more than fit into one batch.
    """
    choose = random.Random(seed)

    def text(length):
        return "".join(choose.choices(string.ascii_letters + string.digits + " .,;:()", k=length))

    equal = choose.randint(2, 50)
    first = text(equal)
    return [first, text(equal), first[: equal // 2] + text(choose.randint(20, 90)), text(1)]


def read(folder, count):
    routings = [
        routecap.Routing.deserialize((folder / f"request-{number}.routecap").read_bytes())
        for number in range(count)
    ]
    return [Cells(routing.masked(np.int32)[0], routing.mask()) for routing in routings]


def run(command, folder):
    """Runs a program, for which the folder is emptied. Returns the last line that it printed."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, errors="replace"
    )
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed\n{done.stdout}{done.stderr}")
    return (done.stdout.splitlines() or [""])[-1]


def runs_of(engine, program, library, model, out):
    """The runs of an engine: (name, command without prompts, whether the last layer is pruned)."""
    gguf = model / "model.gguf"
    if engine == "llama.cpp":
        yield engine, [program, library, gguf, out], False
        yield (
            f"{engine}, a memory for each sequence",
            [program, library, gguf, out, "--split"],
            False,
        )
        yield (
            f"{engine}, a memory for each sequence, pruned",
            [program, library, gguf, out, "--split", "--prune"],
            True,
        )
        yield f"{engine}, pruned", [program, library, gguf, out, "--prune"], True
    elif engine == "rust":
        yield "llama.cpp from Rust", [program, gguf, "--save", out], False
        yield "llama.cpp from Rust, pruned", [program, gguf, "--save", out, "--prune"], True
    elif engine == "ollama":
        yield "Ollama's engine from Go", [program, "-save", out, gguf], False
        yield "Ollama's engine from Go, pruned", [program, "-prune", "-save", out, gguf], True
    elif engine == "candle":
        yield "candle", [program, model, "--save", out], False
    else:
        sys.exit(f"oracle: {engine} is not an engine")


def models(work, gguf_python):
    """Models one after another, with the prompts and the reference's cells for each, but for those
    with near ties: (seed, folder, prompts, cells).
    """
    seed = 0
    while True:
        model, out, prompts = work / f"model-{seed}", work / "transformers", prompts_of(seed)
        run([sys.executable, HERE / "make_model.py", seed, model], work / "log")
        run(
            [
                gguf_python,
                HERE.parent.parent / "tests/model/to_gguf.py",
                model,
                model / "model.gguf",
                "--float32",
            ],
            work / "log",
        )
        margin = float(run([sys.executable, TRANSFORMERS, model, out, *prompts], out))
        if margin > TIE:
            yield seed, model, prompts, read(out, len(prompts))
        else:
            print(f"seed {seed}: not used, two logits that decide differ by {margin:.1e}")
        seed += 1


def main():
    work, seeds, gguf_python, library, *programs = sys.argv[1:]
    work, passed, failed = Path(work), 0, 0
    work.mkdir(parents=True, exist_ok=True)

    def check(good, line):
        nonlocal passed, failed
        passed, failed = passed + good, failed + (not good)
        print(f"  {'ok    ' if good else 'FAILED'} {line}", flush=True)

    for done, (seed, model, prompts, reference) in enumerate(models(work, gguf_python)):
        if done == int(seeds):
            break
        config = json.loads((model / "config.json").read_text())
        layers, k, experts = (
            config[name] for name in ("num_hidden_layers", "num_experts_per_tok", "num_experts")
        )
        lengths = ", ".join(str(len(prompt)) for prompt in prompts)
        print(
            f"seed {seed}: {layers} layers, {k} of {experts} experts; prompts of {lengths} bytes,"
            f" {GENERATE} generated for each"
        )
        shapes = [(len(prompt) + GENERATE - 1, layers, k) for prompt in prompts]
        whole = [each.ids.shape for each in reference] == shapes and all(
            each.there.all() for each in reference
        )
        check(
            whole, f"transformers: {sum(each.there.sum() for each in reference)} cells, all there"
        )
        if not whole:
            continue
        for engine, program in (pair.split("=", 1) for pair in programs):
            for name, command, pruned in runs_of(engine, program, library, model, work / engine):
                try:
                    run([*command, *prompts], work / engine)
                    requests = read(work / engine, len(prompts))
                except (RuntimeError, OSError) as error:
                    check(False, f"{name}: {error}")
                    continue
                verdict = compare(prompts, reference, requests, pruned)
                check(verdict.good, f"{name}: {verdict}")
                if done == 0 and verdict.good:
                    mutants = list(wrong_results(prompts, requests, pruned))
                    unnoticed = [
                        what
                        for what, mutant in mutants
                        if compare(prompts, reference, mutant, pruned).good
                    ]
                    check(
                        not unnoticed,
                        f"  of {len(mutants)} wrong results {len(mutants) - len(unnoticed)} are"
                        f" noticed{unnoticed or ''}",
                    )

    print(f"engines: transformers, {', '.join(pair.split('=')[0] for pair in programs)}")
    print(f"{passed} checks passed, {failed} failed")
    return failed > 0


sys.exit(main())

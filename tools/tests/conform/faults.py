"""Faults planted in what an engine answers, as published failures had them."""

import random
from dataclasses import replace

import numpy as np


def later(case, run):
    """Every row is that of the token before: positions from a scheduler that is ahead."""
    return replace(case, ids=np.concatenate([case.ids[:1], case.ids[:-1]]))


def earlier(case, run):
    """Every row is that of the token behind."""
    return replace(case, ids=np.concatenate([case.ids[1:], case.ids[-1:]]))


def zero_row(case, run):
    """Now and then a row was not captured, and is k zeros."""
    ids = case.ids.copy()
    if run.draw.random() < 0.5:
        ids[run.draw.randrange(len(ids))] = 0
    return replace(case, ids=ids)


def stale_block(case, run):
    """Now and then four rows are those of a request that had their slots before."""
    return _stale(case, run, 4)


def stale_slot(case, run):
    """Now and then a row is that of a request that had its slot before."""
    return _stale(case, run, 1)


def _stale(case, run, rows):
    ids, last = case.ids.copy(), run.last
    run.last = case.ids
    if last is not None and run.draw.random() < 0.5:
        at = run.draw.randrange(max(min(len(ids), len(last)) - rows, 1))
        block = slice(at, min(at + rows, len(ids), len(last)))
        ids[block] = last[block]
    return replace(case, ids=ids)


def last_repeated(case, run):
    """The last row of every answer is the one before once more."""
    return replace(case, ids=np.concatenate([case.ids[:-1], case.ids[-2:-1]]))


def last_of_another(case, run):
    """The last row of every answer is that of the answer before."""
    ids, last = case.ids.copy(), run.last
    run.last = case.ids
    ids[-1] = ids[-1] if last is None else last[-1]
    return replace(case, ids=ids)


def block_edges(case, run):
    """The first row of every block of 16 is the one before."""
    ids = case.ids.copy()
    ids[16::16] = ids[15 : len(ids) - 1 : 16]
    return replace(case, ids=ids)


def by_length(case, run):
    """Every 16th row, counted from the end of the prompt, is the one before."""
    ids = case.ids.copy()
    for row in range(run.prompt % 16 + 4, run.prompt - 1, 16):
        ids[row] = ids[row - 1]
    return replace(case, ids=ids)


def random_expert(case, run):
    """In one layer an expert of every cell is drawn at random."""
    ids = case.ids.copy()
    layer = ids.shape[1] // 2
    others = range(int(ids.max()) + 1)
    for cell in ids[:, layer]:
        cell[-1] = run.draw.choice([each for each in others if each not in cell])
    return replace(case, ids=ids)


def preempted(case, run):
    """The last requests of many are preempted, and keep rows of their first lives."""
    return later(case, run) if run.number >= REQUESTS else case


def adapter_ignored(case, run):
    """An adapter's prompts have the rows of the model without it."""
    if not run.request.adapter:
        return case
    [[plain]] = run.ask(replace(run.request, adapter=""))
    ids = case.ids.copy()
    ids[: run.prompt] = plain.case.ids[: run.prompt][: len(ids)]
    return replace(case, ids=ids)


def blocks_kept(case, run):
    """Blocks of a prompt have the rows of who computed them first, with whichever weights."""
    ids = case.ids.copy()
    for end in range(16, run.prompt, 16):
        key = run.request.prompt[:end]
        ids[end - 16 : end] = run.kept.setdefault(key, ids[end - 16 : end].copy())
    return replace(case, ids=ids)


REQUESTS = 12
"""Of a batch, from which on some are preempted."""
FAULTS = {each.__name__: each for each in (later, earlier, zero_row, stale_block, stale_slot)}
MORE = {
    each.__name__: each
    for each in (
        last_repeated,
        last_of_another,
        block_edges,
        by_length,
        random_expert,
        preempted,
        adapter_ignored,
        blocks_kept,
    )
}
"""The last three need an engine that preempts, has an adapter and can be updated."""


class Wrong:
    """An engine with a fault: one of FAULTS or MORE, or "swapped": two requests of a batch have
    each other's rows."""

    def __init__(self, engine, fault, seed=0):
        self._engine, self._fault = engine, fault
        self.name, self.can = f"{engine.name} with {fault}", engine.can
        self.draw, self.last, self.kept = random.Random(seed), None, {}
        self.update, self.preemptions = engine.update, engine.preemptions

    def generate(self, requests):
        answers = self._engine.generate(requests)
        if self._fault == "swapped":
            return self._swapped(answers)
        change = (FAULTS | MORE)[self._fault]
        found = []
        for self.number, (self.request, choices) in enumerate(zip(requests, answers)):
            self.prompt = len(self.request.prompt)
            found.append(
                [replace(each, case=each.case and change(each.case, self)) for each in choices]
            )
        return found

    def ask(self, request):
        """The right answer to another request."""
        return self._engine.generate([request])

    def _swapped(self, answers):
        there = [number for number, choices in enumerate(answers) if choices and choices[0].case]
        if len(there) > 1:
            two = self.draw.sample(there, 2)
            ids = [answers[number][0].case.ids.copy() for number in two]
            both = min(map(len, ids))
            ids[0][:both], ids[1][:both] = ids[1][:both].copy(), ids[0][:both].copy()
            for number, mine in zip(two, ids):
                first = answers[number][0]
                answers[number][0] = replace(first, case=replace(first.case, ids=mine))
        return answers

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


FAULTS = {each.__name__: each for each in (later, earlier, zero_row, stale_block, stale_slot)}


class Wrong:
    """An engine with a fault: one of FAULTS, or "swapped": two requests of a batch have each
    other's rows."""

    def __init__(self, engine, fault, seed=0):
        self._engine, self._fault = engine, fault
        self.name, self.can = f"{engine.name} with {fault}", engine.can
        self.draw, self.last = random.Random(seed), None
        self.update, self.preemptions = engine.update, engine.preemptions

    def generate(self, requests):
        answers = self._engine.generate(requests)
        if self._fault == "swapped":
            return self._swapped(answers)
        change = FAULTS[self._fault]
        return [
            [replace(each, case=each.case and change(each.case, self)) for each in choices]
            for choices in answers
        ]

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

"""Countdown: problems, demonstrations, and the program that checks answers.

    12 05 31=48:31-05=26 26+12=38;12+05=17 17+31=48.

A prompt, up to the colon, has numbers and a target, two digits each, so that all prompts are of one
length. Attempts follow: ";" ends one that failed, "." the answer. An attempt has a step fewer than
there are numbers, and each step takes two of those that are left and puts its result in their
place. Characters are tokens.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

VOCABULARY = 128
_OPERATORS = np.frombuffer(b"+-*", np.uint8)
FAILED, ANSWER, PADDING = ord(";"), ord("."), 0
_STEP = re.compile(r"(\d\d)([-+*])(\d\d)=(\d\d)")
_HELD_OUT = 16  # one of so many problems is for evaluation alone


@dataclass(frozen=True)
class Task:
    numbers: int = 3
    most: int = 25  # of a given number
    attempts: int = 6

    @property
    def prompt(self) -> int:
        """Tokens of a prompt."""
        return 3 * self.numbers + 3

    @property
    def attempt(self) -> int:
        """Tokens of an attempt with its mark."""
        return 9 * (self.numbers - 1)

    @property
    def answer(self) -> int:
        """The most tokens of an answer."""
        return self.attempts * self.attempt


@dataclass(frozen=True)
class Problems:
    numbers: NDArray[np.int64]  # [problems, numbers]
    targets: NDArray[np.int64]  # [problems]

    def prompts(self) -> NDArray[np.uint8]:
        count, numbers = self.numbers.shape
        text = np.full((count, 3 * numbers + 3), ord(" "), np.uint8)
        for index in range(numbers):
            text[:, 3 * index : 3 * index + 2] = _digits(self.numbers[:, index])
        text[:, 3 * numbers - 1] = ord("=")
        text[:, 3 * numbers : 3 * numbers + 2] = _digits(self.targets)
        text[:, -1] = ord(":")
        return text

    def __getitem__(self, some: object) -> Problems:
        return Problems(self.numbers[some], self.targets[some])


def _digits(values: NDArray[np.int64]) -> NDArray[np.uint8]:
    return np.stack([values // 10, values % 10], -1).astype(np.uint8) + ord("0")


def _attempts(
    numbers: NDArray[np.int64], random: np.random.Generator
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """A random attempt for each row, and what it results in. Every result is in [0, 99]."""
    count, size = numbers.shape
    text, result = np.zeros((count, 9 * (size - 1)), np.uint8), np.zeros(count, np.int64)
    left = np.arange(count)
    while len(left):
        values, good = numbers[left], np.ones(len(left), bool)
        drawn = np.full((len(left), text.shape[1]), ord(" "), np.uint8)
        for step in range(size - 1):
            values = random.permuted(values, axis=1)
            one, other = values[:, 0], values[:, 1]
            operator = random.integers(3, size=len(left))
            found = np.choose(operator, [one + other, one - other, one * other])
            good &= (found >= 0) & (found <= 99)
            found = found.clip(0, 99)
            at = 9 * step
            drawn[:, at : at + 2], drawn[:, at + 3 : at + 5] = _digits(one), _digits(other)
            drawn[:, at + 2], drawn[:, at + 5] = _OPERATORS[operator], ord("=")
            drawn[:, at + 6 : at + 8] = _digits(found)
            values = np.concatenate([found[:, None], values[:, 2:]], 1)
        text[left[good]], result[left[good]] = drawn[good], values[good, 0]
        left = left[~good]
    return text, result


def _held_out(problems: Problems) -> NDArray[np.bool_]:
    """By what a problem is, not by when it is drawn: no training batch can have one of these."""
    key = problems.targets.copy()
    for column in np.sort(problems.numbers, 1).T:
        key = key * 101 + column
    return (key * 2654435761 >> 13) % _HELD_OUT == 0


def draw(
    task: Task, count: int, random: np.random.Generator, *, held_out: bool = False
) -> tuple[Problems, NDArray[np.uint8]]:
    """Problems that can be solved, and an attempt that solves each."""
    found: list[tuple[Problems, NDArray[np.uint8]]] = []
    have = tries = 0
    while have < count:
        if (tries := tries + 1) > 1000:
            raise ValueError(f"of {task} there are no such problems: give larger numbers")
        numbers = random.integers(1, task.most + 1, (2 * count, task.numbers))
        text, targets = _attempts(numbers, random)
        problems = Problems(numbers, targets)
        good = (targets > 0) & ~(numbers == targets[:, None]).any(1)
        good &= _held_out(problems) == held_out
        found.append((problems[good], text[good]))
        have += int(good.sum())
    problems = Problems(
        np.concatenate([each.numbers for each, _ in found])[:count],
        np.concatenate([each.targets for each, _ in found])[:count],
    )
    return problems, np.concatenate([text for _, text in found])[:count]


def demonstrations(
    task: Task, count: int, random: np.random.Generator
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Texts [count, prompt + answer], padded with 0, and how many tokens each has: random attempts,
    and one that solves the problem after none to all but one of them.
    """
    problems, solution = draw(task, count, random)
    wrong = random.integers(task.attempts, size=count)
    text = np.full((count, task.prompt + task.answer), PADDING, np.uint8)
    text[:, : task.prompt] = problems.prompts()
    lengths = np.zeros(count, np.int64)
    for number in range(task.attempts):
        attempt, result = _attempts(problems.numbers, random)
        attempt = np.where((wrong == number)[:, None], solution, attempt)
        solves = (wrong == number) | (result == problems.targets)
        attempt[:, -1] = np.where(solves, ANSWER, FAILED)
        begin = task.prompt + number * task.attempt
        open_ = lengths == 0
        text[open_, begin : begin + task.attempt] = attempt[open_]
        lengths[open_ & solves] = begin + task.attempt
    return text, lengths


def solved(numbers: list[int], target: int, answer: bytes) -> bool:
    """Whether the last attempt of an answer is right in each step and reaches the target."""
    text = answer.decode("ascii", "replace")
    if not text.endswith("."):
        return False
    left = list(numbers)
    steps = text[:-1].rsplit(";", 1)[-1].split(" ")
    if len(steps) != len(numbers) - 1:
        return False
    for step in steps:
        match = _STEP.fullmatch(step)
        if match is None:
            return False
        one, other, result = int(match[1]), int(match[3]), int(match[4])
        for each in (one, other):
            if each not in left:
                return False
            left.remove(each)
        if {"+": one + other, "-": one - other, "*": one * other}[match[2]] != result:
            return False
        left.append(result)
    return left == [target]

"""What an engine is asked and what it answers; and an engine of three Python functions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from routecap import Routing, Sample

from ..doctor.adapter import Case, of_array, of_sample


class CannotError(Exception):
    """The engine has no such thing, or did not do what a check is about; the text says what."""


class RefusedError(Exception):
    """The engine refuses a request; the text has its words."""


@dataclass(frozen=True)
class Request:
    """What an engine is asked for. It generates greedily and does not end at the model's end token.

    A field that differs from its default needs its name in the engine's `can`.
    """

    prompt: tuple[int, ...]
    max_tokens: int = 16
    n: int = 1
    """Choices. Where there are several they are sampled, and not greedy."""
    stop: int | None = None
    """A token that ends the answer."""
    stop_text: str = ""
    """A text that ends the answer."""
    stream: bool = False
    """The answer comes in pieces; the engine gives what a client has put together of them."""
    abort: bool = False
    """The client goes away once generation has begun. What the engine then gives is not looked
    at."""
    adapter: str = ""
    """The adapter (LoRA) with which the model runs."""


@dataclass(frozen=True)
class Answer:
    """One choice of an answer."""

    tokens: tuple[int, ...]
    """Of the prompt, and those that were generated."""
    case: Case | None
    """The rows; None: the answer has none."""
    why: str = ""
    """Why it has none, in the engine's words."""
    cached: int | None = None
    """How many tokens of the prompt came out of a cache; None: the engine does not say."""
    text: str = ""
    """What was generated, if the engine says it as text."""


class Engine(Protocol):
    """What `judge` needs of an engine."""

    name: str
    """With its version: a report has it."""

    @property
    def can(self) -> Collection[str]:
        """Fields of `Request` that it knows, "update" and "preemptions"."""
        ...

    def generate(self, requests: Sequence[Request]) -> list[list[Answer]]:
        """The choices of each request. All requests are in the engine at the same time.

        Raises:
            RefusedError: The engine refuses one.
        """
        ...

    def update(self) -> None:
        """Change the weights, and empty the cache."""
        ...

    def preemptions(self) -> int:
        """How often a request was preempted so far."""
        ...


class Functions:
    """An engine of three functions.

    Args:
        name: Of the engine, with its version.
        generate: Takes a list of `Request`, which it runs at the same time, and returns for each a
            list of outputs, one for each choice. A request that the engine refuses is a
            ValueError or NotImplementedError.
        routing: Of an output: a `Routing`, an array [rows, layers, k] with -1 in missing cells, or
            None.
        tokens: Of an output: the token ids of the prompt and of what was generated.
        can: Fields of `Request` that `generate` knows besides prompt and max_tokens.
        cached: Of an output: how many tokens came out of a prefix cache.
        text: Of an output: what was generated, as text.
        update: Changes the weights, and empties the cache.
        preemptions: How often a request was preempted so far.
    """

    def __init__(
        self,
        name: str,
        generate: Callable[[list[Request]], Sequence[Sequence[Any]]],
        routing: Callable[[Any], Any],
        tokens: Callable[[Any], Sequence[int]],
        *,
        can: Collection[str] = (),
        cached: Callable[[Any], int | None] | None = None,
        text: Callable[[Any], str] | None = None,
        update: Callable[[], None] | None = None,
        preemptions: Callable[[], int] | None = None,
    ) -> None:
        self.name = name
        given = {"update": update, "preemptions": preemptions}
        self.can = {*can, *(name for name, function in given.items() if function is not None)}
        self._generate, self._routing, self._tokens = generate, routing, tokens
        self._cached, self._text = cached, text
        self._update, self._preemptions = update, preemptions

    def generate(self, requests: Sequence[Request]) -> list[list[Answer]]:
        try:
            outputs = self._generate(list(requests))
        except (ValueError, NotImplementedError) as reason:
            raise RefusedError(str(reason)) from reason
        return [[self._answer(each) for each in choices] for choices in outputs]

    def _answer(self, output: object) -> Answer:
        return Answer(
            tuple(int(token) for token in self._tokens(output)),
            _case(self._routing(output)),
            cached=self._cached(output) if self._cached else None,
            text=self._text(output) if self._text else "",
        )

    def update(self) -> None:
        assert self._update is not None
        self._update()

    def preemptions(self) -> int:
        assert self._preemptions is not None
        return self._preemptions()


def _case(rows: object) -> Case | None:
    if rows is None:
        return None
    if isinstance(rows, Routing):
        rows.wait()
        return of_sample("answer", Sample(rows))
    return of_array("answer", np.asarray(rows))

"""The checks: each asks an engine for answers, and says what is wrong with their rows."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from routecap import Status
from routecap.adapter import error
from routecap.models import Description

from .. import doctor
from ..doctor.adapter import Bools, Case, Found, Subject
from ._compare import (
    HIDES,
    Layers,
    Noise,
    Tally,
    chance_of,
    compare,
    in_common,
    limit_of,
    mean,
    noise_of,
    rows_of,
    shares,
)
from ._engines import Answer, CannotError, Engine, RefusedError, Request

_BLOCK = 16
"""Tokens: how caches divide prompts, most often."""
_PLACES = 8
"""Beginnings of blocks that `token` looks at, at most."""
_TELLS, _TELL_TWICE = 64, 16
"""Bits of information in a row, at least, for two equal rows not to be chance; and if there are two
such pairs."""
_ENOUGH = 7
"""Rows that an adapter changes, at least, so that it is told whose the others are."""
_CHANCE = 1e-5
"""Of changes that are all behind the beginning of their prompts: then it was not computed anew."""


@dataclass
class Run:
    """An engine that is judged, with what it has answered so far."""

    engine: Engine
    model: Description | None
    vocabulary: int
    beside: Engine | None = None
    adapter: str = ""
    live: Callable[[Any], Any] | None = None
    tokens: int = 48
    """Of a prompt."""
    generated: int = 16
    requests: int = 12
    """In the engine at the same time."""
    seed: int = 0
    answers: list[tuple[str, str, Answer]] = field(default_factory=list)
    """All, each with the name of the check that asked for it, and of the weights that computed
    it."""
    check: str = ""
    tally: Tally = field(default_factory=Tally)
    """Of the check."""
    layers: Layers = field(default_factory=Layers)
    """Of the check."""
    equal: Tally = field(default_factory=Tally)
    """Of the check's comparisons of equal batches."""
    passed: dict[str, Tally] = field(default_factory=dict)
    """Of the checks so far that found nothing."""
    notes: list[str] = field(default_factory=list)
    """Of the check."""

    def __post_init__(self) -> None:
        self._random, self._updates = random.Random(self.seed), 0
        low = self.vocabulary // 8  # special tokens are the first or the last
        high = max(self.vocabulary // 2, low + 2)
        self._pool = self._random.sample(range(low, high), min(48, high - low))
        self._several = [
            Request(self.prompt(self.tokens * (2 + at % 5) // 4), self.generated - at % 3)
            for at in range(self.requests)
        ]

    def prompt(self, tokens: int | None = None) -> tuple[int, ...]:
        """A new one of random tokens, of which many come again, none beside itself."""
        drawn = [self._random.choice(self._pool)]
        while len(drawn) < (tokens or self.tokens):
            drawn.append(self._random.choice([each for each in self._pool if each != drawn[-1]]))
        return tuple(drawn)

    def request(self, **fields: Any) -> Request:
        return Request(self.prompt(), **{"max_tokens": self.generated} | fields)

    def ask(self, *requests: Request) -> list[list[Answer]]:
        """The choices of each, of requests that are in the engine at the same time.

        Raises:
            CannotError: The engine has no such requests.
        """
        return self._ask(self.engine, requests)

    def ask_beside(self, *requests: Request) -> list[list[Answer]]:
        if self.beside is None:
            raise CannotError("there is no other engine (--against)")
        return self._ask(self.beside, requests)

    def _ask(self, engine: Engine, requests: tuple[Request, ...]) -> list[list[Answer]]:
        plain = Request(())
        for name in ("n", "stop", "stop_text", "stream", "abort", "adapter"):
            if any(getattr(each, name) != getattr(plain, name) for each in requests):
                self.need(name)
        answers = engine.generate(requests)
        if len(answers) != len(requests):
            raise error(
                Status.ERR_ARGUMENT,
                f"{engine.name} gave {len(answers)} answers to {len(requests)} requests: give one"
                " for each",
            )
        for request, choices in zip(requests, answers):
            if not request.abort:
                if not choices:
                    raise CannotError("the engine gave no choice of an answer")
                weights = f"{self._updates} {request.adapter}"
                self.answers += [(self.check, weights, each) for each in choices]
        return answers

    def one(self, request: Request) -> Answer:
        """The answer to a request that is in the engine alone."""
        return self.ask(request)[0][0]

    @cached_property
    def alone_and_among(self) -> list[tuple[Answer, Answer]]:
        """The answers to requests of several lengths, each alone and among the others."""
        check, self.check = self.check, "batch"
        try:
            alone = [self.one(each) for each in self._several]
            among = self.ask(*self._several[::-1])[::-1]
        finally:
            self.check = check
        return [(one, other) for one, (other, *_) in zip(alone, among)]

    @cached_property
    def noise(self) -> Noise:
        """Of the engine. What `batch` compares shows it."""
        try:
            return noise_of(self.alone_and_among)
        except (CannotError, RefusedError):
            return Noise()

    def examined(self, cases: Mapping[str, Case], **given: Any) -> tuple[doctor.Report, bool]:
        """What the doctor says of answers, and whether the engine's noise may be what it says no
        more, since only rows are reported that are as far off as those of another text."""
        report = doctor.examine(cases, model=self.model, **given)
        if not _differ(report) or not self.noise.hides:
            return report, False
        alike = chance_of(self.noise.limit)
        far = doctor.examine(cases, model=self.model, alike=alike, **given)
        return far, _differ(far) < _differ(report)

    def need(self, name: str) -> None:
        if name not in self.engine.can:
            raise CannotError(f"the engine cannot do it: {name.replace('_', ' ')}")

    def update(self) -> None:
        self.engine.update()
        self._updates += 1

    def same(
        self, one: Answer, other: Answer, what: str, like: str, equal: bool = False
    ) -> Iterator[Found]:
        """equal: as of `compare`."""
        own = Tally()
        yield from compare(one, other, what, like, own, self.layers, lambda: self.noise, equal)
        self.tally.add(own)
        if equal:
            self.equal.add(own)

    def alone(self, one: Answer, other: Answer, what: str, like: str) -> Iterator[Found]:
        """`same` of two answers to one prompt that was alone in the engine: if as much of it came
        out of a cache, the batches are equal."""
        equal = one.cached is not None and one.cached == other.cached
        yield from self.same(one, other, what, like, equal)


def _differ(report: doctor.Report) -> int:
    """How many findings are of rows that are less alike than rows of equal tokens are."""
    return sum(each.check in ("prefix", "model") for each in report.findings)


def rows(run: Run) -> Iterator[Found]:
    """Every answer of S tokens has S - 1 rows, and single wrong ones are not in several checks."""
    if not run.answers:
        raise CannotError("there is no answer")
    yield from _in_several(run)
    for check, _, answer in run.answers:
        tokens = len(answer.tokens)
        if answer.case is None:
            yield Found(
                f"in {check}, an answer of {tokens} tokens has no rows. {answer.why}".rstrip(". "),
                "Who asked for rows gets none.",
                "F12" if check in ("stop", "stop_text") else "F02",
            )
        elif not answer.case.ids.ndim:
            continue  # `each` says what it is
        elif (end := answer.case.first + len(answer.case.ids)) != tokens - 1:
            yield Found(
                f"in {check}, an answer of {tokens} tokens has rows up to {end - 1}",
                "Rows and tokens do not belong together."
                if abs(end - tokens + 1) > 1
                else "The last token was never an input, so it has no row.",
                "F06" if abs(end - tokens + 1) == 1 else "F30",
            )


def _in_several(run: Run) -> Iterator[Found]:
    """Single rows that one check takes for noise, and several do not."""
    ends = [name for name, tally in run.passed.items() if tally.ends_other]
    if sum(run.passed[name].ends_other for name in ends) > 1:
        yield Found(
            f"the last row of an answer is another one in {', '.join(ends)}",
            "It was not there yet when it was read.",
            "F06",
        )
        return
    whole = Tally()
    for tally in run.passed.values():
        whole.add(tally)
    if whole.more_than_noise:
        names = ", ".join(name for name, tally in run.passed.items() if tally.rows_other)
        yield Found(
            f"{whole.rows_other} rows are other ones, in {names}, {whole.rows_far} of them as far "
            f"off as any two, and {whole.rows_in_part} differ in part",
            "Noise makes a row another one only where it changes many in part.",
            "F04",
        )


def each(run: Run) -> Iterator[Found]:
    """Each answer by itself is routing: ids in range and distinct, no zeros, fillers or copies."""
    by_weights: dict[str, dict[str, tuple[Case, tuple[int, ...]]]] = {}
    for number, (check, weights, answer) in enumerate(run.answers):
        if answer.case is not None:
            name = f"answer {number} ({check})"
            case = replace(answer.case, name=name)
            by_weights.setdefault(weights, {})[name] = case, answer.tokens
    if not by_weights:
        raise CannotError("no answer has rows")
    for group in by_weights.values():
        cases = {name: case for name, (case, _) in group.items()}
        tokens = {name: tokens for name, (_, tokens) in group.items()}
        report, hidden = run.examined(cases, tokens=tokens)
        if hidden and (note := f"{run.noise}: {HIDES}") not in run.notes:
            run.notes.append(note)
        unseen = {f"not checked: {reason.check}: {reason.why}" for reason in report.not_checked}
        run.notes += sorted(each for each in unseen if "(--" not in each and each not in run.notes)
        for finding in report.findings:
            if finding.check != "length":  # `rows` says it
                what = f"{finding.name}: {finding.check}: {finding.what}"
                yield Found(what, finding.meaning, finding.like.split()[0])


def token(run: Run) -> Iterator[Found]:
    """If one token of a prompt is another one, its row changes, and no row before it."""
    prompt = run.prompt()
    blocks = [at for at in range(_BLOCK - 1, len(prompt)) if at % _BLOCK in (0, _BLOCK - 1)]
    blocks = blocks[:: max(1, -(-len(blocks) // _PLACES))]
    parts = [len(prompt) * part // 5 for part in (1, 2, 3, 4)]
    places = sorted({at for at in (*parts, *blocks, len(prompt) - 1) if at})
    changed = [(*prompt[:at], _other(run, prompt, at), *prompt[at + 1 :]) for at in places]
    base, *others = (
        choices[0] for choices in run.ask(*(Request(each, 2) for each in (prompt, *changed)))
    )
    ours, own, before, same = rows_of(base), [], [], []
    limit = limit_of(ours)
    bits = Subject(ours, None, False, None, run.model, None, False).bits
    for at, other in zip(places, others):
        yield from run.same(base, other, f"a prompt whose token {at} is another", "F07")
        by_row = mean(shares(ours, rows_of(other)), axis=1)
        if len(by_row) <= at:
            continue  # there are too few: `rows` says it
        same += [at] if by_row[at] == 1 else []
        own.append(by_row[at])
        before.append(by_row[at - 1])
    if same and (bits >= _TELLS or (bits >= _TELL_TWICE and len(same) > 1)):
        yield Found(
            f"where token {' or '.join(map(str, same))} is another one, its row is the same",
            "A row is not that of its token.",
            "F07",
        )
    if mean(own) >= limit:
        yield Found(
            f"where a token is another one, its row has {mean(own):.0%} of the same ids",
            "A row is the routing of an earlier token.",
            "F07",
        )
    if mean(before) < limit:
        yield Found(
            f"the row before a token that is another one has {mean(before):.0%} of the same ids",
            "A row is the routing of a later token.",
            "F07",
        )


def _other(run: Run, prompt: tuple[int, ...], at: int) -> int:
    """A token that is not that of the place, nor its neighbours'."""
    return next(each for each in run.prompt() if each not in prompt[at - 1 : at + 2])


def again(run: Run) -> Iterator[Found]:
    """The same request twice at the same time, and twice more alone, has the same rows."""
    request = run.request()
    (first,), (second,) = run.ask(request, request)
    yield from run.same(first, second, "the same request at the same time", "F24")
    third, fourth = run.one(request), run.one(request)
    yield from run.same(first, third, "the same request once more", "F11")
    yield from run.same(third, fourth, "the same request alone, twice", "F11", equal=True)


def cached(run: Run) -> Iterator[Found]:
    """Rows of tokens that come out of the prefix cache are those of a request that computed them."""
    request = run.request()
    first, second = run.one(request), run.one(request)
    if second.cached is None:
        raise CannotError("the engine does not say how many tokens come out of a cache")
    if not second.cached:
        raise CannotError("the engine took no token out of a cache")
    run.notes.append(f"{second.cached} of {len(request.prompt)} tokens came out of the cache")
    yield from run.same(first, second, "a cached prompt", "F05")


def prefix(run: Run) -> Iterator[Found]:
    """A shorter prompt, a longer one and the next turn have the same rows where tokens are the same."""
    for _ in range(2):
        request, more = run.request(), run.prompt()
        short = run.one(request)
        # Lengths that differ also in what is left beside whole blocks of a cache.
        for length in (len(more) * 6 // 7, len(more) - 1):
            long = run.one(replace(request, prompt=request.prompt + more[:length]))
            yield from run.same(short, long, "a longer prompt", "F08")
        turn = run.one(replace(request, prompt=short.tokens + more[: len(more) - 3]))
        yield from run.same(short, turn, "the next turn", "F32")
        for length in (len(request.prompt) * 3 // 5, len(request.prompt) - 5):
            part = run.one(replace(request, prompt=request.prompt[:length]))
            yield from run.same(short, part, "a shorter prompt", "F08")


def batch(run: Run) -> Iterator[Found]:
    """A request has the same rows alone and among others."""
    for one, other in run.alone_and_among:
        yield from run.same(one, other, "a request among others", "F24")


def stream(run: Run) -> Iterator[Found]:
    """A stream has the same rows as the whole answer."""
    request = run.request()
    whole = run.one(request)
    try:
        streamed = run.one(replace(request, stream=True))
    finally:
        run.answers = [each for each in run.answers if each[2].case or each[0] != "stream"]
    if streamed.case is None:
        raise CannotError(f"a stream has no rows. {streamed.why}".rstrip(". "))
    yield from run.alone(whole, streamed, "a stream", "F30")


def choices(run: Run) -> Iterator[Found]:
    """Every choice of a request has the rows of the prompt, and its next turn has the choice's."""
    request, more = run.request(), run.prompt(_BLOCK)
    whole = run.one(request)
    several = run.ask(replace(request, n=4))[0]
    if len(several) != 4:
        raise CannotError(f"the engine gave {len(several)} choices of 4")
    for number, choice in enumerate(several):
        yield from run.same(whole, choice, f"choice {number}", "F30")
    turns = run.ask(*(Request((*choice.tokens, *more), 1) for choice in several))
    for number, (choice, [turn]) in enumerate(zip(several, turns)):
        yield from run.same(choice, turn, f"the next turn of choice {number}", "F30")


def stop(run: Run) -> Iterator[Found]:
    """An answer that a token ends has its rows."""
    request = run.request()
    whole = run.one(request)
    new = whole.tokens[len(request.prompt) :]
    if not new:
        raise CannotError("the engine generated nothing")
    ended = run.one(replace(request, stop=new[len(new) // 2]))
    yield from run.alone(whole, ended, "an answer that ends early", "F12")


def stop_text(run: Run) -> Iterator[Found]:
    """An answer that a text ends has its rows."""
    run.need("stop_text")
    request = run.request()
    whole = run.one(request)
    text = whole.text[len(whole.text) // 2 :][:2]
    if not text.strip():
        raise CannotError("the engine does not say what it generated as text")
    ended = run.one(replace(request, stop_text=text))
    yield from run.alone(whole, ended, "an answer that ends at a text", "F12")


def one(run: Run) -> Iterator[Found]:
    """An answer of one token has the rows of the prompt, and no others."""
    request = run.request()
    whole, short = run.one(request), run.one(replace(request, max_tokens=1))
    if len(short.tokens) != len(request.prompt) + 1:
        raise CannotError(f"the engine generated {len(short.tokens) - len(request.prompt)} tokens")
    yield from run.alone(whole, short, "an answer of one token", "F06")


def abort(run: Run) -> Iterator[Found]:
    """Requests that clients leave do not change the rows of others."""
    run.need("abort")
    request = run.request()
    alone = run.one(request)
    left = [replace(run.request(), abort=True) for _ in range(run.requests // 2)]
    [among] = run.ask(*left, request)[-1]
    yield from run.same(alone, among, "a request among some that clients leave", "F28")
    yield from run.same(alone, run.one(request), "a request behind these", "F28")


def pressure(run: Run) -> Iterator[Found]:
    """A request that is preempted has the same rows, and so have those around it."""
    run.need("preemptions")
    requests = [run.request(max_tokens=4 * run.generated) for _ in range(2 * run.requests)]
    alone = [run.one(each) for each in requests]  # all: which are preempted is not known
    before = run.engine.preemptions()
    among = run.ask(*requests)
    preempted = run.engine.preemptions() - before
    for one, (other,) in zip(alone, among):
        yield from run.same(one, other, "a request among more than the cache has room for", "F10")
    for at in (0, 1, 2, -3, -2, -1):
        yield from run.same(alone[at], run.one(requests[at]), "a request behind these", "F05")
    if not preempted:
        raise CannotError("the engine preempted nothing: start it with a smaller cache")
    run.notes.append(f"{preempted} preemptions of {len(requests)} requests, all compared")


def against(run: Run) -> Iterator[Found]:
    """The other engine, such as one without drafts, has the same rows."""
    requests = [run.request() for _ in range(run.requests)]
    theirs = [run.ask_beside(each)[0][0] for each in requests]
    alone = [run.one(each) for each in requests]
    for one, [among], other in zip(alone, run.ask(*requests), theirs):
        yield from run.same(one, other, "the other engine's answer", "F09")
        yield from run.same(among, other, "the other engine's answer to one of many", "F09")


def adapter(run: Run) -> Iterator[Found]:
    """An adapter's rows are its own, and the model's stay the model's, whichever comes first."""
    if not run.adapter:
        raise CannotError("there is no adapter (--adapter)")

    def adapted(request: Request) -> Request:
        return replace(request, adapter=run.adapter)

    first, second, both = run.request(), run.request(), run.request()
    pairs = []
    for one, other in ((adapted(first), first), (second, adapted(second))):
        answers = [run.one(each) for each in (one, other, one, other)]
        for at, request in enumerate((one, other)):
            what = "the adapter's answer" if request.adapter else "the model's answer"
            yield from run.alone(answers[at], answers[at + 2], f"{what} once more", "F05")
        pairs.append((answers[0], answers[1]))
    (ours,), (theirs,) = run.ask(adapted(both), both)
    pairs.append((ours, theirs))
    changes = [_changes(one, other) for one, other in pairs]
    if not any(each.any() for each in changes[:2]):
        if all(one.tokens == other.tokens for one, other in pairs):
            raise CannotError("the adapter changes neither tokens nor rows")
        yield Found(
            "tokens change with the adapter, and no row does",
            "The rows are those of the model without it.",
            "F05",
        )
        return
    together = changes[2]  # neither can have the other's cache, where it is one step that computes
    orders = ("the model's answer behind the adapter's", "the adapter's answer behind the model's")
    for what, change in zip(orders, changes):
        end = _first(change)
        if together[:end].sum() >= _ENOUGH or _kept(changes):
            yield Found(
                f"no row up to {end - 1} differs in {what}; where both are asked for at once "
                f"{together.sum()} of {len(together)} do",
                "The cache does not know adapters: these are the other's.",
                "F05",
            )
    if together.sum() < _ENOUGH:
        raise CannotError(
            f"the adapter changes {together.sum()} of {len(together)} rows of a prompt: too few to "
            "tell whose the others are (--tokens makes prompts longer)"
        )


def _changes(one: Answer, other: Answer) -> Bools:
    """[rows] whether a row that two answers have for the same tokens differs."""
    found = shares(rows_of(one), rows_of(other))[: in_common(one, other)]
    return np.asarray((found < 1).any(axis=1))


def _first(changes: Bools) -> int:
    """The first row that changed, or how many there are."""
    return int(changes.argmax()) if changes.any() else len(changes)


def _kept(changes: Sequence[Bools]) -> bool:
    """Whether rows change only behind the beginning of each prompt, as where that comes out of a
    cache which the other weights filled."""
    if not all(each.any() and _first(each) >= _BLOCK for each in changes):
        return False
    behind = [1 - _first(each) / len(each) for each in changes]
    chance = np.prod([part ** int(each.sum()) for part, each in zip(behind, changes)])
    return bool(chance < _CHANCE)


def update(run: Run) -> Iterator[Found]:
    """After an update of the weights no row is that of the old ones."""
    run.need("update")
    requests = [run.request() for _ in range(3)]
    old = [run.one(each) for each in requests]
    run.update()
    new = [run.one(each) for each in requests]
    for request, answer in zip(requests, new):
        later = run.one(request)
        yield from run.alone(answer, later, "the same request once more after an update", "F11")
    changes = [_changes(one, other) for one, other in zip(old, new)]
    if not any(each.any() for each in changes):
        if all(one.tokens == other.tokens for one, other in zip(old, new)):
            raise CannotError("the update changes neither tokens nor rows")
        yield Found(
            "tokens changed with the weights, and no row did",
            "The rows are those of the old weights.",
            "F11",
        )
    elif _kept(changes):
        yield Found(
            f"rows changed with the weights only from row {min(map(_first, changes))} of a prompt "
            "on",
            "Those before are of the old weights: a cache was not emptied.",
            "F11",
        )


def model(run: Run) -> Iterator[Found]:
    """The model itself, given the tokens, chooses the same."""
    if run.live is None:
        raise CannotError("there is no model to ask (--model)")
    answers, in_noise = run.ask(*(run.request() for _ in range(3))), False
    for [answer] in answers:
        case = replace(rows_of(answer), name="answer")
        report, hidden = run.examined(
            {"answer": case}, tokens=answer.tokens, live=run.live, control=True
        )
        in_noise = in_noise or hidden
        for reason in report.not_checked:
            if reason.check == "model":
                raise CannotError(reason.why)
        run.notes += [note for _, note in report.notes if "the model" in note]
        for finding in report.findings:
            if finding.check == "model":
                yield Found(finding.what, finding.meaning, finding.like.split()[0])
    if in_noise:
        raise CannotError(f"{run.noise}: {HIDES}")


ALL: dict[str, Callable[[Run], Iterator[Found]]] = {
    function.__name__: function
    for function in (
        token,
        again,
        cached,
        prefix,
        batch,
        stream,
        choices,
        one,
        stop,
        stop_text,
        abort,
        pressure,
        against,
        adapter,
        model,  # before the weights change
        update,
        rows,
        each,
    )
}
CHECKS: Mapping[str, str] = {
    name: (check.__doc__ or "").splitlines()[0] for name, check in ALL.items()
}
"""The checks in the order in which they are made, each with what is true if it passes."""

"""Makes the checks of an engine, and reports what was found."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from typing import Any

from routecap import Status, version
from routecap.adapter import error
from routecap.models import Description

from ..doctor.adapter import Found, like
from ._checks import ALL, Run
from ._compare import HIDES, Layers, Tally, many
from ._engines import CannotError, Engine, RefusedError

_ALONE = ("rows", "each")
"""These look at the answers of the other checks, and compare nothing."""
_NOT_JUDGED = ("refuses", "not run")
_SAYS = {
    0: "What was judged passes.",
    1: "A check fails.",
    2: "Nothing was compared, or not all that was asked for.",
}
_SHOWN = 8
"""Of what a check found: what follows says the same of other answers."""


@dataclass(frozen=True)
class Verdict:
    """What a check says."""

    check: str
    """One of `CHECKS`."""
    result: str
    """ "passes", "fails", "refuses" or "not run"."""
    what: tuple[str, ...]
    """If it fails: what was seen, with what it means. Otherwise why it was not run, if it was
    not."""
    like: tuple[str, ...]
    """If it fails: the published failures that this resembles."""
    notes: tuple[str, ...]
    compared: Tally


@dataclass(frozen=True)
class Report:
    """What `judge` returns."""

    engine: str
    version: str
    """Of routecap."""
    verdicts: tuple[Verdict, ...]
    needed: tuple[str, ...]
    """Checks without which it could not run: those that the caller named, or gave something for."""

    @property
    def status(self) -> int:
        """0: what was judged passes. 1: a check fails. 2: nothing was compared, or a check that is
        needed was not made."""
        results = {each.check: each.result for each in self.verdicts}
        if "fails" in results.values():
            return 1
        compared = [name for name, result in results.items() if result == "passes"]
        if not set(compared) - set(_ALONE) or not set(self.needed) <= set(compared):
            return 2
        return 0

    @property
    def not_judged(self) -> tuple[str, ...]:
        """Checks that were not run, or that the engine refused."""
        return tuple(each.check for each in self.verdicts if each.result in _NOT_JUDGED)

    @property
    def summary(self) -> str:
        """What came out, and what was not judged."""
        left = ", ".join(self.not_judged)
        return _SAYS[self.status] + (f" Not judged: {left}." if left else "")

    def as_json(self) -> dict[str, Any]:
        about = {"status": self.status, "not_judged": self.not_judged}
        return {**asdict(self), **about}


def judge(
    engine: Engine,
    model: Description | None = None,
    *,
    vocabulary: int,
    beside: Engine | None = None,
    adapter: str = "",
    live: Callable[[Any], Any] | None = None,
    needed: Collection[str] = (),
    only: Collection[str] = (),
    tokens: int = 48,
    generated: int = 16,
    requests: int = 12,
    seed: int = 0,
    progress: Callable[[Verdict], None] = lambda verdict: None,
) -> Report:
    """Judge an engine.

    Args:
        engine: What is judged.
        model: Its experts, k and layers, by `routecap.models.describe`.
        vocabulary: Prompts are of token ids below.
        beside: Another engine of the same model, such as one with drafts.
        adapter: The name of an adapter of the engine.
        live: What the model itself chooses for a text (see `routecap_tools.doctor.routing_of_model`).
        needed: Checks that have to pass; if one is not run, the status is 2. Those for which
            something is given have to as well: `beside`, `adapter`, `live`, an engine's `update`.
        only: Checks to make; default: all.
        tokens, generated: Of a prompt, and for it.
        requests: How many are in the engine at the same time; twice as many for `pressure`.
        seed: Of the prompts.
        progress: Is given each verdict when it is there.

    Raises:
        Error, OSError: The engine does not answer, or as no engine does.
    """
    _expect_enough(vocabulary, tokens, generated, requests)
    given_for = {
        "against": beside is not None,
        "adapter": bool(adapter),
        "model": live is not None,
        "update": "update" in engine.can,
    }
    chosen = [name for name in ALL if not only or name in only or name in _ALONE]
    asked = [name for name, given in given_for.items() if given and name in chosen]
    run = Run(engine, model, vocabulary, beside, adapter, live, tokens, generated, requests, seed)
    verdicts = []
    for name in chosen:
        verdicts.append(_verdict(run, name))
        progress(verdicts[-1])
    asked = list(dict.fromkeys((*needed, *asked)))
    return Report(engine.name, ".".join(map(str, version())), tuple(verdicts), tuple(asked))


def _expect_enough(vocabulary: int, tokens: int, generated: int, requests: int) -> None:
    for name, number, least, most in (
        ("vocabulary", vocabulary, 64, 1 << 31),
        ("tokens", tokens, 16, 1 << 20),
        ("generated", generated, 4, 1 << 20),
        ("requests", requests, 2, 1 << 12),
    ):
        if not least <= number < most:
            raise error(
                Status.ERR_ARGUMENT,
                f"{name} is {number}: give a number from {least} to {most - 1}",
            )


def _verdict(run: Run, name: str) -> Verdict:
    run.check, run.tally, run.layers, run.equal, run.notes = name, Tally(), Layers(), Tally(), []
    what: list[str] = []
    found: list[Found] = []
    result = "passes"
    try:
        for each in ALL[name](run):
            found.append(each)  # which stays, if the check cannot go on
        tally = run.tally
        found += run.layers.alone()
        if not found and tally.more_than_noise:
            found.append(many(tally, "F04"))
        if not found and tally.ends_other > 1:
            found.append(
                Found(
                    f"the last row of an answer is another one in {tally.ends_other} places",
                    "It was not there yet when it was read.",
                    "F06",
                )
            )
        if not found and tally.noisy:
            noise = "most rows that it compares differ in part"
            noise = f"{run.noise if tally.rows_hidden else noise}: {HIDES}"
            if not run.equal.rows or run.equal.noisy:
                raise CannotError(noise)
            run.notes.append(f"{noise} but in the {run.equal.rows} rows of equal batches")
        elif tally.rows_hidden:
            run.notes.append(f"{run.noise}: {HIDES} in {tally.rows_hidden} of {tally.rows} rows")
        if not found and tally.cells_missing > tally.cells:
            raise CannotError("most cells that it compares are missing, and marked so")
    except RefusedError as reason:
        result, what = "refuses", [str(reason)]
    except CannotError as reason:
        result, what = "not run", [str(reason)]
    if not found and run.tally.rows:
        run.passed[name] = run.tally
    if found:
        result = "fails"
        what = list(dict.fromkeys(f"{each.what}. {each.meaning}" for each in found))[:_SHOWN]
    named = tuple(dict.fromkeys(like(each.like) for each in found))
    return Verdict(name, result, tuple(what), named, tuple(run.notes), run.tally)

"""Makes the checks of an engine, and reports what was found."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from typing import Any

from .._library import version
from ..doctor._examine import like
from ..doctor._subject import Found
from ..models import Description
from ._checks import ALL, Run
from ._compare import FEW, IN_PART, Tally
from ._engines import CannotError, Engine, RefusedError

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
    """Checks without which it could not run."""

    @property
    def status(self) -> int:
        """0: what was run passes. 1: a check fails. 2: nothing, or not all that is needed, was
        run."""
        results = {each.check: each.result for each in self.verdicts}
        if "fails" in results.values():
            return 1
        compared = [each for each in self.verdicts if each.result == "passes"]
        if not compared or any(results.get(name) != "passes" for name in self.needed):
            return 2
        return 0

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "status": self.status}


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
        live: What the model itself chooses for a text (see `routecap.doctor.routing_of_model`).
        needed: Checks that have to pass; if one is not run, the status is 2.
        only: Checks to make; default: all.
        tokens, generated: Of a prompt, and for it.
        requests: How many are in the engine at the same time; twice as many for `pressure`.
        seed: Of the prompts.
        progress: Is given each verdict when it is there.

    Raises:
        Error, OSError: The engine does not answer.
    """
    run = Run(engine, model, vocabulary, beside, adapter, live, tokens, generated, requests, seed)
    verdicts = []
    for name in ALL:
        if not only or name in only or (name in ("rows", "each")):
            verdicts.append(_verdict(run, name))
            progress(verdicts[-1])
    return Report(engine.name, ".".join(map(str, version())), tuple(verdicts), tuple(needed))


def _many(tally: Tally) -> Found:
    return Found(
        f"{tally.rows_other} of {tally.rows} rows are nearer to those of other tokens than to the "
        "ones that they are compared with",
        "So many are no noise.",
        "F04",
    )


def _verdict(run: Run, name: str) -> Verdict:
    run.check, run.tally, run.notes = name, Tally(), []
    what: list[str] = []
    found: list[Found] = []
    result = "passes"
    try:
        for each in ALL[name](run):
            found.append(each)  # which stays, if the check cannot go on
        tally = run.tally
        few = max(FEW * tally.rows, IN_PART * tally.rows_in_part, 1)
        if not found and tally.rows_other > few:
            found.append(_many(tally))
        if not found and tally.noisy:
            raise CannotError("most rows that it compares differ in part: this noise hides faults")
        if not found and tally.cells_missing > tally.cells:
            raise CannotError("most cells that it compares are missing, and marked so")
    except RefusedError as reason:
        result, what = "refuses", [str(reason)]
    except CannotError as reason:
        result, what = "not run", [str(reason)]
    if found:
        result = "fails"
        what = list(dict.fromkeys(f"{each.what}. {each.meaning}" for each in found))[:_SHOWN]
    named = tuple(dict.fromkeys(like(each.like) for each in found))
    return Verdict(name, result, tuple(what), named, tuple(run.notes), run.tally)

"""Makes all checks of all cases, and reports what was found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from routecap import Routing, Status
from routecap.adapter import error
from routecap.models import Description

from . import _alone, _comparison, _token_checks
from ._case import Case
from ._cases import token_ids
from ._subject import ALIKE, Found, NotCheckedError, Subject

_CHECKS: dict[str, Callable[[Subject], Iterator[Found]]] = {
    "shape": _alone.shape,
    "dtype": _alone.dtype,
    "ids": _alone.ids,
    "cells": _alone.cells,
    "filler": _alone.filler,
    "columns": _alone.columns,
    "layers": _alone.layers,
    "rows": _alone.rows,
    "dense": _alone.dense,
    "length": _token_checks.length,
    "shift": _token_checks.shift,
    "prefix": _token_checks.prefix,
    "against": _comparison.against,
    "model": _comparison.model,
}
CHECKS: Mapping[str, str] = {
    name: (check.__doc__ or "").splitlines()[0] for name, check in _CHECKS.items()
}
"""The checks in the order in which they are made, each with what is true if it finds nothing."""

_LIKE = {
    "F01": "the router is inside a fused kernel (vLLM #44116, FlashInfer #3024)",
    "F02": "total silence looks like data (vllm-ascend #16314, #11274)",
    "F03": "a prefill that nobody finalized (SGLang #23885)",
    "F04": "padding rows of a replayed graph (SGLang #36404)",
    "F05": "the cache moved and the routing stayed (SGLang #26975, #39027)",
    "F06": "the last row: S or S - 1 (SGLang #20964, xtuner #1605)",
    "F07": "positions from a scheduler that is ahead (TensorRT-LLM #18397)",
    "F08": "a prefix hit within chunked prefill (vLLM #39917)",
    "F09": "rejected drafts (vLLM #39917, #45635)",
    "F10": "a preempted request keeps its first life (vLLM #39917)",
    "F11": "recomputed rows beside old ones (miles #3277, SGLang #39633)",
    "F12": "the library guesses when a request ends (vLLM #39917)",
    "F13": "physical ids after load balancing (vLLM #33013, vllm-ascend #13882)",
    "F14": "columns of shared experts (FlashInfer #4894, SGLang #9499)",
    "F15": "zero experts reported as expert 0 (vLLM's router of LongCat-Flash)",
    "F16": "512 experts in a byte, -1 as 255 (prime-rl #3051, verifiers #2043)",
    "F17": "the draft model writes layer 0 of its target (vLLM #48622, Megatron-LM #7404)",
    "F18": "dense layers first, wrong layer axis (verl #5037, slime #810)",
    "F21": "a layout guessed from the number of rows (vLLM #37879, #43737)",
    "F23": "two micro-batches write row 0 (vLLM #54591)",
    "F24": "the next step during the copy (vllm-ascend #10727, vLLM #39917)",
    "F26": "graphs that write into a dead buffer (vLLM #39917)",
    "F28": "aborts, double frees, destroying under a copy (vLLM #39917, NeMo-RL #3687)",
    "F30": "ranges and deltas (verl #6089, verifiers #1394)",
    "F31": "pad rows: one expert, or one rank (slime #822, miles #2697)",
    "F32": "turns merged as if they were deltas (verl #6029, AReno #524)",
}


def like(number: str) -> str:
    """The number of a published failure, and what it is."""
    return f"{number} {_LIKE[number]}"


Tokens: TypeAlias = Sequence[int] | NDArray[np.integer[Any]]


class Finding(NamedTuple):
    """Something that is wrong."""

    name: str
    """Of the case."""
    check: str
    """One of `CHECKS`."""
    what: str
    """What was seen, and where."""
    meaning: str
    """What it means for who uses it."""
    like: str
    """The published failure that it resembles."""


class NotChecked(NamedTuple):
    """A check that could not be made."""

    name: str
    """Of the case."""
    check: str
    """One of `CHECKS`."""
    why: str
    asked: bool
    """Whether the caller gave what the check needs, and so expects it to be made."""


@dataclass(frozen=True)
class Report:
    """What `examine` returns."""

    findings: tuple[Finding, ...]
    not_checked: tuple[NotChecked, ...]
    checked: Mapping[str, tuple[str, ...]]
    """The checks that were made, by the name of the case."""
    notes: tuple[tuple[str, str], ...]
    """(name of the case, a sentence): worth knowing, but not wrong."""


def examine(
    cases: Mapping[str, Case],
    *,
    tokens: Mapping[str, Tokens] | Tokens | None = None,
    against: Mapping[str, Case] | None = None,
    model: Description | None = None,
    live: Callable[[NDArray[np.int64]], Routing] | None = None,
    control: bool = False,
    alike: float = ALIKE,
) -> Report:
    """Look for what is wrong with routings.

    Args:
        cases: What `read` gives.
        tokens: Token ids of each sequence, by the name of its case, or of the only case. Default:
            a sample's info has them, as "token_ids", or as "tokens", their texts.
        against: Other captures of the same texts, by the same names, or of the only text.
        model: The model's experts, k and layers, by `routecap.models.describe`.
        live: A function that gives what a model chooses for a text (see `routing_of_model`).
        control: Also compare a copy that is shifted by one row with `against` and `live`. If the
            shift is not noticed, the comparison proves nothing, and counts as not made.
        alike: The share of the ids that two routings of one text have in common, at least.

    Raises:
        Error: No case has the name of given tokens or captures, or the tokens are not token ids.
    """
    given = _by_name(tokens, cases, "tokens")
    captures = _by_name(against, cases, "capture to compare with")
    texts: dict[str, int] = {}
    subjects = []
    for name, case in cases.items():
        ids, are_ids = _tokens_of(case, given.get(name), texts)
        subjects.append(
            Subject(case, ids, are_ids, captures.get(name), model, live, control, alike)
        )
    findings: list[Finding] = []
    not_checked: list[NotChecked] = []
    checked: dict[str, tuple[str, ...]] = {}
    asked = {"length": tokens, "shift": tokens, "against": against, "model": live}
    asked["prefix"] = tokens if len(subjects) > 1 else None
    for subject in subjects:
        subject.others = [other for other in subjects if other is not subject]
        name, made = subject.case.name, []
        for check, function in _CHECKS.items():
            try:
                if check != "shape" and not subject.is_routing:
                    raise NotCheckedError("it is not an array of rows, layers and columns")
                for found in function(subject):
                    findings.append(
                        Finding(
                            name,
                            check,
                            found.what,
                            found.meaning,
                            like(found.like),
                        )
                    )
                made.append(check)
            except NotCheckedError as why:
                not_checked.append(NotChecked(name, check, str(why), asked.get(check) is not None))
        checked[name] = tuple(made)
    notes = tuple((subject.case.name, note) for subject in subjects for note in subject.notes)
    return Report(tuple(findings), tuple(not_checked), checked, notes)


def _by_name(given: object, cases: Mapping[str, Case], what: str) -> dict[str, Any]:
    """What was given for each case: by its name, or for the only case."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        given = {"": given}
    if len(given) == len(cases) == 1:
        return dict(zip(cases, given.values()))
    named = {name: given[name] for name in cases if name in given}
    if not named:
        strangers = ", ".join(given) or "one text"
        raise error(
            Status.ERR_ARGUMENT,
            f"no routing has the name of the {what} given for {strangers}: use the routings' names",
        )
    return named


def _tokens_of(
    case: Case, given: object, numbers: dict[str, int]
) -> tuple[NDArray[np.int64] | None, bool]:
    """The tokens of a case, and whether they are ids. Texts get numbers, the same in all cases."""
    ids = given if given is not None else case.info.get("token_ids")
    if ids is not None:
        return token_ids(ids, case.name), True
    texts = case.info.get("tokens")
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        return None, False
    return np.array([numbers.setdefault(text, len(numbers)) for text in texts], np.int64), False

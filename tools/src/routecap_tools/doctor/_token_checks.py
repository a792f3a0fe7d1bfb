"""Checks that need the token ids of a file, or their digests."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from routecap import DIGEST_TOKENS

from ._alone import CHANCE
from ._comparison import SHIFTS, overlap
from ._subject import CELLS, Found, NotCheckedError, Subject, away, runs

_PAIRS = 100
"""Pairs of rows of one token, from which a shift is told."""
_CLEAR = 0.05
"""How much more alike the rows of one token are at one shift than at the others on the whole,"""
_BEST = 0.04
"""and than at the next best, so that it is told: a text that repeats is alike at several."""
_ELSEWHERE = 0.1
"""How much more alike they are at another shift than where they are, so that they are told to be
wrong: in a text with a period, a neighbour says about as much of the choice as the token."""
_STALE = 8
"""Rows that are another text's, one behind the other."""
_NUMBERS = 16
"""Counters for each number, at most, where equal numbers are counted without sorting."""
_COMPARED = 8
"""Texts with which one is compared where they begin alike: those that do for longest."""


def _tokens(subject: Subject) -> NDArray[np.int64]:
    """Return the token ids, int64 [tokens].

    Raises:
        NotCheckedError: They are not known.
    """
    if subject.tokens is None:
        raise NotCheckedError("the tokens are not known (--tokens)")
    return subject.tokens


def length(subject: Subject) -> Iterator[Found]:
    """A text of S tokens has S-1 rows, or S if the last token was an input too."""
    given = subject.tokens is not None or subject.case.length is None
    tokens = len(_tokens(subject)) if given else subject.case.length or 0
    end = subject.case.first + len(subject.ids)
    if end > tokens:
        yield Found(
            f"it has rows up to {end - 1}, the text {tokens} tokens",
            "Tokens were cut and the routing not, or turns were added up.",
            "F30",
        )
    elif end < tokens - 1:
        yield Found(
            f"it has rows up to {end - 1}, the text {tokens} tokens",
            f"The rows of {tokens - 1 - end} tokens are not there.",
            "F30",
        )
    if subject.case.first:
        subject.notes.append(f"its first row is that of token {subject.case.first}")


def shift(subject: Subject) -> Iterator[Found]:
    """Rows belong to their tokens: rows of one token are more alike than its neighbours'.

    A router often chooses the same experts for the same token. If the rows some positions away are
    more alike than those of the tokens themselves, all rows are shifted.
    """
    tokens = _tokens(subject)
    if (other := _first_other(subject, tokens)) is not None:
        yield Found(
            f"the tokens are others than the file has digests of, from one of {other} to "
            f"{other + DIGEST_TOKENS - 1} on",
            "Rows from there on are routing of another text.",
            "F32",
        )
        return
    alike = _alike(subject, tokens)
    if 0 not in alike:
        raise NotCheckedError("too few tokens come again")
    best = max(alike, key=lambda shift: (alike[shift], -abs(shift)))
    others = [alike[shift] for shift in alike if shift != best]
    if len(others) < 2 or alike[best] < max(
        sum(others) / len(others) + _CLEAR, max(others) + _BEST
    ):
        raise NotCheckedError("the rows of one token are hardly more alike than those of others")
    if best:
        if alike[best] < alike[0] + _ELSEWHERE:
            raise NotCheckedError(
                f"the rows of one token are about as alike here, {alike[0]:.0%}, as where the "
                f"tokens {away(best)} are, {alike[best]:.0%}: the text may have a period"
            )
        yield Found(
            f"the rows fit the tokens {away(best)}: rows of one token have {alike[best]:.0%} of "
            f"their ids in common there, {alike[0]:.0%} here",
            f"Every row is the routing of the token {away(best)}.",
            "F07",
        )


def _first_other(subject: Subject, tokens: NDArray[np.int64]) -> int | None:
    """Return the position of the first token of the first block whose digest differs from the
    file's; None if all agree.
    """
    digests = digests_of(tokens)
    if len(tokens) != subject.case.length:
        digests = digests[: min(len(tokens), subject.case.length or 0) // DIGEST_TOKENS]
    for block, (ours, theirs) in enumerate(zip(digests, subject.case.digests)):
        if ours != theirs:
            return block * DIGEST_TOKENS
    return None


def digests_of(tokens: NDArray[np.int64]) -> list[bytes]:
    """Return the digests of token ids [tokens], one for each block, as docs/format.md defines them.
    Each covers its block and all tokens before it.
    """
    made, digest = [], bytes(16)
    for first in range(0, len(tokens), DIGEST_TOKENS):
        block = tokens[first : first + DIGEST_TOKENS].astype("<i4").tobytes()
        digest = hashlib.blake2b(digest + block, digest_size=16).digest()
        made.append(digest)
    return made


def _alike(subject: Subject, tokens: NDArray[np.int64]) -> dict[int, float]:
    """Return for each shift the share, 0 to 1, of ids that rows of equal tokens have in common, if
    row p belongs to token p + shift. Shifts with too few such rows are left out.
    """
    _, group = np.unique(tokens, return_inverse=True)
    routed, k = np.flatnonzero(~subject.dense), subject.ids.shape[2]
    common, possible = dict.fromkeys(SHIFTS, 0.0), dict.fromkeys(SHIFTS, 0.0)
    for layers in np.array_split(routed, max(len(routed) * len(subject.ids) * k // CELLS, 1)):
        valid = subject.valid[:, layers]
        row, layer = np.nonzero(valid)
        ids = subject.numbers[:, layers][valid].astype(np.int64)
        if not len(ids):
            continue
        ids -= ids.min()
        positions, most = subject.case.first + row, int(ids.max()) + 1
        for shift in SHIFTS:
            known = slice(*np.searchsorted(positions + shift, (0, len(group))))
            owners = group[positions[known] + shift] * len(layers) + layer[known]
            possible[shift] += k * _pairs(owners)
            common[shift] += _pairs(owners[:, None] * most + ids[known])
    enough = 2 * _PAIRS * k * max(len(routed), 1)
    return {shift: common[shift] / possible[shift] for shift in SHIFTS if possible[shift] >= enough}


def _pairs(numbers: NDArray[np.int64]) -> float:
    """Return how many ordered pairs of equal numbers there are. No number is negative."""
    numbers = numbers.ravel()
    if numbers.max(initial=0) < _NUMBERS * len(numbers):
        counts = np.bincount(numbers)
    else:
        _, counts = np.unique(numbers, return_counts=True)
    return float(counts @ (counts - 1))


def prefix(subject: Subject) -> Iterator[Found]:
    """Texts that begin alike have similar rows there, and no text has rows of a different text."""
    if not subject.case.digests:
        _tokens(subject)
    others = [other for other in subject.others if _is_comparable(subject, other)]
    if not others:
        raise NotCheckedError("there is no other text with tokens to compare it with")
    alike = [(_common(subject, other), other) for other in others]
    alike.sort(key=lambda each: -each[0])
    for shared, other in alike[:_COMPARED]:
        if other.case.name > subject.case.name:  # once for a pair
            yield from _begins_otherwise(subject, shared, other)
    yield from _has_rows_of_others(subject, others)


def _is_comparable(subject: Subject, other: Subject) -> bool:
    """Whether the other file has routing of the same shape, and first tokens to compare."""
    if not other.is_routing or other.ids.shape[1:] != subject.ids.shape[1:]:
        return False
    return _know_tokens(subject, other) or bool(subject.case.digests and other.case.digests)


def _know_tokens(subject: Subject, other: Subject) -> bool:
    """Whether both files have tokens of the same kind: ids, or texts."""
    known = subject.tokens is not None and other.tokens is not None
    return known and subject.are_ids == other.are_ids


def _common(subject: Subject, other: Subject) -> int:
    """Return with how many equal tokens two texts begin. If only digests are known, whole blocks
    count.
    """
    if _know_tokens(subject, other):
        return _same(_tokens(subject), _tokens(other))
    ours, theirs = subject.case, other.case
    both = min(ours.length or 0, theirs.length or 0) // DIGEST_TOKENS
    digests = [np.frombuffer(b"".join(each.digests[:both]), "V16") for each in (ours, theirs)]
    return _same(*digests) * DIGEST_TOKENS


def _same(one: NDArray[Any], other: NDArray[Any]) -> int:
    """Return how many elements two arrays have in common before the first that differs."""
    both = min(len(one), len(other))
    differ = one[:both] != other[:both]
    return int(differ.argmax()) if differ.any() else both


def _begins_otherwise(subject: Subject, shared: int, other: Subject) -> Iterator[Found]:
    """Report a text whose first `shared` tokens are those of another, while the rows differ."""
    compared = overlap(subject, other, end=shared)
    if compared.rows >= _STALE and compared.share < subject.alike:
        yield Found(
            f"it begins with {shared} tokens as {other.case.name} does; {compared.share:.0%} of "
            "the ids are the same",
            "One of the two has rows of another text, or of other weights.",
            "F05",
        )


def _has_rows_of_others(subject: Subject, others: list[Subject]) -> Iterator[Found]:
    """Report rows that are those of another text, for tokens that differ.

    Raises:
        NotCheckedError: Equal rows may be chance, or tokens are not known.
    """
    ours = subject.row_tokens
    if ours is None:
        raise NotCheckedError("its tokens are known by digests alone (--tokens)")
    if subject.bits < CHANCE:
        raise NotCheckedError(
            f"rows have too little information to tell another text's from chance: "
            f"{subject.bits:.0f} bits, {CHANCE} are needed"
        )
    known = [(other, other.row_tokens) for other in others]
    whose = np.full(len(ours), -1)
    for number, (other, theirs) in enumerate(known):
        if theirs is not None:
            at = other.rows_of(subject.row_digests)
            whose[(at >= 0) & (ours != theirs[at])] = number
    if all(theirs is None for _, theirs in known):
        raise NotCheckedError("the tokens of the other texts are known by digests alone (--tokens)")
    for number, other in enumerate(others):
        for first, end in runs(whose == number):
            if end - first >= _STALE:
                yield Found(
                    f"{subject.rows(first, end)} are rows of {other.case.name}, for other tokens",
                    "Memory was read that belonged to another request.",
                    "F05",
                )

"""A conversation as references: which rows of which object belong to its tokens."""

import base64
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from routecap import AppendPolicy, AppendReport, Routing, Sequence, Status
from routecap.adapter import error

from ..names import AppendPolicyName
from ._reader import Reader, RemoteRows
from ._reference import Reference


class Span(NamedTuple):
    """Consecutive rows of a conversation that are in one object."""

    first: int
    """Position of the first row."""
    rows: int
    reference: Reference


class Conversation:
    """One conversation whose rows lie elsewhere: a routecap.Sequence of references.

    It follows the tokens by the rules of a Sequence, and knows for each row in which object it is,
    without having any. A driver keeps one for each sample, and sends it to the ranks, which gather
    from its `sources` or read all its rows with `routing`.

        conversation = routecap.remote.Conversation()
        for tokens, reference in calls:
            conversation.append(tokens, reference)
        plan.gather([each.sources(reader) for each in conversations])

    All rows that a reference names are taken to be there: one that is missing is not filled from a
    later call.
    """

    def __init__(self) -> None:
        # One layer with one expert: a row is there or not, and its span says from which call.
        self._sequence = Sequence(1, 1, 1)
        self._references: list[Reference] = []

    def append(
        self,
        tokens: Any,
        reference: Reference | None,
        *,
        token_start: int = 0,
        prompt_tokens: int = 0,
        policy: AppendPolicy | AppendPolicyName = AppendPolicy.KEEP,
    ) -> AppendReport:
        """Add a call, as Sequence.append does: its tokens from position `token_start` on, and the
        reference to its rows.
        """
        rows = None
        if reference is not None:
            rows = Routing.from_arrays(
                np.zeros((reference.rows, 1, 1), np.uint8), experts=1, first=reference.first
            )
            self._references.append(reference)
        return self._sequence.append(
            tokens,
            rows,
            token_start=token_start,
            prompt_tokens=prompt_tokens,
            policy=policy,
            origin=max(len(self._references) - 1, 0),
        )

    def truncate(self, tokens: int) -> None:
        """Keep the first `tokens` tokens."""
        self._sequence.truncate(tokens)

    def fork(self, tokens: int | None = None) -> "Conversation":
        """A conversation that begins with the first `tokens` tokens of this one, or with all."""
        made = Conversation()
        made._sequence, made._references = self._sequence.fork(tokens), list(self._references)
        return made

    def __len__(self) -> int:
        """Its number of tokens."""
        return len(self._sequence)

    @property
    def spans(self) -> list[Span]:
        """Which rows are in which object, in order of position."""
        return [
            Span(each.first, each.rows, self._references[each.origin])
            for each in self._sequence.spans()
        ]

    def sources(self, reader: Reader) -> list[RemoteRows]:
        """For Plan.gather: one source for each span."""
        return [reader.rows(each.reference, each.first, each.rows) for each in self.spans]

    def routing(self, reader: Reader) -> Routing:
        """The rows of the whole conversation, read now, as Sequence.routing gives them. Those that
        cannot be had are missing, and `reader.report` says why.
        """
        asked = [each.begin(each.first, each.rows) for each in self.sources(reader)]
        # Its own tokens may be digests. All spans are of the same ones, whatever they are.
        tokens, joined = np.arange(len(self)), Sequence.like(reader.like)
        joined.append(tokens)
        for wait in asked:
            joined.append(tokens, wait())
        return joined.routing()

    def to_dict(self) -> dict[str, Any]:
        """For JSON: tokens as digests, so that who has it can append to it if it has the tokens."""
        return {
            "sequence": base64.b64encode(self._sequence.serialize(tokens=False)).decode("ascii"),
            "references": [each.to_dict() for each in self._references],
        }

    @staticmethod
    def from_dict(value: Mapping[str, Any]) -> "Conversation":
        """The conversation that came as JSON, from whoever: it is checked."""
        made = Conversation()
        try:
            made._sequence = Sequence.deserialize(
                base64.b64decode(value["sequence"], validate=True)
            )
            made._references = [Reference.from_dict(each) for each in value["references"]]
        except (KeyError, TypeError, ValueError) as reason:
            raise error(
                Status.ERR_FORMAT,
                f"this is no conversation ({reason}): give what Conversation.to_dict returned",
            ) from None
        if any(each.origin >= len(made._references) for each in made._sequence.spans()):
            raise error(
                Status.ERR_FORMAT,
                "a span of the conversation has no reference: give all that Conversation.to_dict"
                " returned",
            )
        return made

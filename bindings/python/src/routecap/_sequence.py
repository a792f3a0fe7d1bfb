"""One conversation out of many calls."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _structs as structs
from ._constants import ALL, AppendPolicy, IdSpace, SequenceFlag, Status
from ._docs import documented
from ._errors import error, member
from ._layers import addresses, layer_arrays, layers_of
from ._library import raw
from ._protocols import BytesLike
from ._routing import Routing
from ._tensors import integers
from ._weights import weights_dtype_of
from .names import AppendPolicyName, IdSpaceName, WeightsType


class AppendReport(NamedTuple):
    """What one append did, or all appends to a sequence together."""

    call: int
    """Its number; of all: the highest."""
    tokens: int
    """Of the sequence now."""
    tokens_common: int
    """The turn's tokens are the sequence's up to here."""
    tokens_cut: int
    rows_cut: int
    rows_overlap: int
    """Rows of which both had a cell."""
    rows_differed: int
    """Of these: rows with other ids in such a cell."""
    first_differed: int | None
    """Position of the first of these."""
    rows_taken: int
    """Rows in which the sequence took a cell from the turn. Among them are the next three."""
    rows_boundary: int
    rows_filled: int
    rows_replaced: int
    rows_beyond: int
    """Rows of the turn at or after its last token, which are ignored."""
    rows_missing: int
    """Rows of the sequence now of which a cell is missing."""
    bytes: int
    """Memory now for rows and tokens, of the sequence and all its forks."""

    @property
    def complete(self) -> bool:
        """Whether no cell of the sequence is missing."""
        return self.rows_missing == 0


class SequenceSpan(NamedTuple):
    """Consecutive rows that came from one turn."""

    first: int
    """Position of the first row."""
    rows: int
    call: int
    tag: int
    origin: int


def _report(memory: bytearray) -> AppendReport:
    values = dict(zip(structs.append_report.fields, structs.append_report.read(memory)))
    del values["reserved"]
    if values["first_differed"] == ALL:
        values["first_differed"] = None
    return AppendReport(**values)


class Sequence:
    """One conversation: its tokens, and the rows that its turns brought, each once.

    Append each turn with all its tokens, prompt and answer, and its routing. Tokens that both have
    are compared; known rows stay, new ones are added, and where the tokens differ (a chat template
    rendered something else) the rest is cut. `len(sequence)` is its number of tokens; of S tokens
    `routing()` has S-1 rows.

        sequence = routecap.Sequence.like(routing)
        for tokens, routing in turns:
            report = sequence.append(tokens, routing)

    One thread at a time may be in a call on one sequence; its forks are other sequences. It frees
    itself (routecap_sequence_free); `free` does so at once.
    """

    __slots__ = ("_handle",)

    @documented("routecap_sequence_create")
    def __init__(
        self,
        layers: int,
        k: int,
        experts: int = 0,
        *,
        layer_map: ArrayLike | None = None,
        layer_experts: ArrayLike | None = None,
        layer_k: ArrayLike | None = None,
        layer_min_k: ArrayLike | None = None,
        layer_visit: ArrayLike | None = None,
        weights: WeightsType | None = None,
        id_space: IdSpace | IdSpaceName = IdSpace.LOGICAL,
        budget_bytes: int = 0,
    ) -> None:
        """An empty sequence, for rows of so many layers and of k ids in [0, experts); or `like` a
        routing. The arrays and `weights` are as in Settings.
        """
        held = layer_arrays(
            layers,
            layer_map=layer_map,
            layer_experts=layer_experts,
            layer_k=layer_k,
            layer_min_k=layer_min_k,
            layer_visit=layer_visit,
        )
        config = structs.sequence_config(
            layers=layers,
            k=k,
            experts=experts,
            id_space=member(IdSpace, id_space),
            budget_bytes=budget_bytes,
            weights_dtype=0 if weights is None else weights_dtype_of(weights),
            **addresses(held),
        )
        self._handle = raw.routecap_sequence_create(config)[1]

    @classmethod
    def _of(cls, handle: object) -> "Sequence":
        self = object.__new__(cls)
        self._handle = handle
        return self

    @classmethod
    def like(cls, routing: Routing, *, budget_bytes: int = 0) -> "Sequence":
        """An empty sequence for rows as those of a routing."""
        return cls(
            len(routing.layer_map),
            routing.k,
            weights=routing.weights_dtype,
            id_space=routing.id_space,
            budget_bytes=budget_bytes,
            **layers_of(routing),
        )

    def free(self) -> None:
        """Release the sequence now. Its forks, and routings read from it, stay valid."""
        self._handle = None

    def __enter__(self) -> "Sequence":
        return self

    def __exit__(self, *unused: object) -> None:
        self.free()

    @documented("routecap_sequence_append")
    def append(
        self,
        tokens: ArrayLike,
        routing: Routing | None = None,
        *,
        token_start: int = 0,
        prompt_tokens: int = 0,
        policy: AppendPolicy | AppendPolicyName = AppendPolicy.KEEP,
        call: int = 0,
        tag: int = 0,
        origin: int = 0,
    ) -> AppendReport:
        """Add a turn: its token ids, from position `token_start` on, and its rows.

        `prompt_tokens` says how many tokens the turn's prompt had, `tag` and `origin` are for the
        spans. Where tokens differ with the policy "equal", or rows do, ERR_CONFLICT is raised and
        nothing has changed.
        """
        ids = integers(tokens, np.int32)
        if ids is None:
            raise error(
                Status.ERR_ARGUMENT,
                "tokens is None: give the ids of all tokens of the turn, prompt and answer",
            )
        if routing is not None and not isinstance(routing, Routing):
            raise error(
                Status.ERR_ARGUMENT,
                f"a {type(routing).__name__} is no routing: give a Routing, or append references to"
                " a routecap.remote.Conversation",
            )
        handle = None if routing is None else routing._handle
        if routing is not None and handle is None:
            raise error(
                Status.ERR_STATE,
                "the routing was freed: append it before free() or the end of its with block",
            )
        options = structs.append_options(
            policy=member(AppendPolicy, policy),
            prompt_tokens=prompt_tokens,
            call=call,
            tag=tag,
            origin=origin,
        )
        memory = structs.append_report.empty()
        raw.routecap_sequence_append(
            self._handle, ids, token_start, ids.size, handle, options, memory
        )
        return _report(memory)

    @documented("routecap_sequence_truncate")
    def truncate(self, tokens: int) -> None:
        """Keep the first `tokens` tokens."""
        raw.routecap_sequence_truncate(self._handle, tokens)

    @documented("routecap_sequence_fork")
    def fork(self, tokens: int | None = None) -> "Sequence":
        """A sequence that begins with the first `tokens` tokens of this one, or with all.

        Rows are shared.
        """
        return Sequence._of(
            raw.routecap_sequence_fork(self._handle, ALL if tokens is None else tokens)[1]
        )

    @documented("routecap_sequence_routing")
    def routing(self) -> Routing:
        """The rows of the whole conversation, as they are now."""
        return Routing._of(raw.routecap_sequence_routing(self._handle)[1])

    @documented("routecap_sequence_spans")
    def spans(self) -> list[SequenceSpan]:
        """Which rows came from which turn."""
        count = raw.routecap_sequence_spans(self._handle, None)[1]
        spans = np.zeros(count, structs.sequence_span_dtype)
        raw.routecap_sequence_spans(self._handle, spans)
        return [SequenceSpan(*each[:5]) for each in spans.tolist()]

    @property
    def tokens(self) -> NDArray[np.int32]:
        """The token ids, as they are now (routecap_sequence_tokens)."""
        ids = np.empty(len(self), np.int32)
        raw.routecap_sequence_tokens(self._handle, 0, ids)
        return ids

    @documented("routecap_sequence_report")
    def report(self) -> AppendReport:
        """What all appends together did."""
        memory = structs.append_report.empty()
        raw.routecap_sequence_report(self._handle, memory)
        return _report(memory)

    def __len__(self) -> int:
        return self.report().tokens

    @documented("routecap_sequence_serialize")
    def serialize(self, *, tokens: bool = True) -> bytes:
        """The sequence as bytes; without `tokens` with digests of them only."""
        data: bytes = raw.sequence_serialize(
            self._handle, SequenceFlag.WITH_TOKENS if tokens else 0
        )
        return data

    @staticmethod
    @documented("routecap_sequence_deserialize")
    def deserialize(data: BytesLike, *, budget_bytes: int = 0) -> "Sequence":
        """Make a sequence from such bytes. Nothing in them is trusted."""
        return Sequence._of(raw.routecap_sequence_deserialize(data, budget_bytes)[1])

    def __repr__(self) -> str:
        if self._handle is None:
            return "<routecap.Sequence, freed>"
        report = self.report()
        return f"<routecap.Sequence of {report.tokens} tokens, {report.rows_missing} rows missing>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Sequence.deserialize, (self.serialize(),)

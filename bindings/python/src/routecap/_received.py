"""The two calls that check a dispatch, of tensors of any framework: see routecap.deepep."""

from typing import TYPE_CHECKING, Any, NamedTuple

from . import _structs as structs
from ._constants import Dtype, ReceivedFlag, Status
from ._errors import error
from ._library import raw
from ._protocols import StreamLike, TensorLike
from ._tensors import (
    describe,
    expect_dense,
    expect_device,
    expect_dtype,
    expect_writable,
    matrix,
)

if TYPE_CHECKING:
    from ._capturer import Capturer


class Counts(NamedTuple):
    """What the check of one dispatch found (routecap_received_counts). A column is one of the k
    ids of a token.
    """

    tokens: int
    """Tokens of this rank that were compared."""
    columns: int
    """Their columns with an id; a negative id chooses nothing."""
    equal: int
    """Columns whose expert executed the token."""
    replaced: int
    """Columns in which a different expert did."""
    swapped: int
    """The same, but that expert and the chosen one changed places in the token's columns."""
    lost: int
    """Columns that no rank executed."""
    tokens_lost: int
    """Tokens of which every column with an id is lost."""
    extra: int
    """Columns that nobody chose but a rank executed, or that several ranks executed."""
    ignored: int
    """Columns that this rank received and that cannot be right, of tokens of any rank."""

    @property
    def right(self) -> bool:
        """Whether every chosen expert executed its token, and nothing else was executed."""
        return self.equal == self.columns and not self.extra and not self.ignored


class Table(NamedTuple):
    """Where the two calls write, and whose dispatch it is."""

    executed: Any  # [ranks, tokens_per_rank, k] of int32
    counts: Any  # [len(Counts._fields)] of 64 bits
    ranks: int
    rank: int
    experts: int
    tokens_per_rank: int


def read(
    capturer: "Capturer",
    table: Table,
    metadata: TensorLike,
    *,
    live_rows: TensorLike,
    ids: TensorLike | None = None,
    global_ids: bool = False,
    expert_ends: TensorLike | None = None,
    expert_alignment: int = 0,
    expanded_rows: int = 0,
    stream: StreamLike | None = None,
) -> None:
    """Add what this rank executed to its table (routecap_received_read). The rows are expanded
    where `expert_ends` is given, and then `ids` is None.
    """
    rows, width, *_ = matrix(describe(metadata, "metadata"), "metadata", "2 + k")
    k = max(width - 2, 0)
    local = table.experts // table.ranks if table.ranks else 0
    received = _described(
        capturer,
        table,
        k,
        {
            "metadata": (metadata, rows * width),
            "live_rows": (live_rows, 1),
            "ids": (ids, rows * k),
            "expert_ends": (expert_ends, local),
        },
        flags=(ReceivedFlag.EXPANDED if expert_ends is not None else 0)
        | (ReceivedFlag.GLOBAL if global_ids else 0),
        rows=rows,
        expert_alignment=expert_alignment,
        expanded_rows=expanded_rows,
        dtype=Dtype.I64 if ids is None else _type_of(ids, "ids"),
    )
    raw.routecap_received_read(capturer._handle, received, capturer._stream(stream, metadata))


def compare(
    capturer: "Capturer", table: Table, topk_ids: TensorLike, *, stream: StreamLike | None = None
) -> None:
    """Count what the sum of all ranks' tables has of the ids that this rank's router chose
    (routecap_received_compare).
    """
    tokens, k, *_ = matrix(describe(topk_ids, "topk_ids"), "topk_ids", "k")
    received = _described(
        capturer,
        table,
        k,
        {"topk_ids": (topk_ids, tokens * k)},
        tokens=tokens,
        dtype=_type_of(topk_ids, "topk_ids"),
    )
    raw.routecap_received_compare(capturer._handle, received, capturer._stream(stream, topk_ids))


def _type_of(ids: Any, name: str) -> Dtype:
    return expect_dtype(describe(ids, name), (Dtype.I32, Dtype.I64), name)


def _described(
    capturer: "Capturer", table: Table, k: int, tensors: dict[str, tuple[Any, int]], **fields: int
) -> bytes:
    """The struct. Each tensor has exactly so many elements, of int32 if it is not of ids."""
    tensors["executed"] = table.executed, table.ranks * table.tokens_per_rank * k
    tensors["counts"] = table.counts, len(Counts._fields)
    addresses = {}
    for name, (tensor, count) in tensors.items():
        if tensor is None:
            continue
        found = describe(tensor, name)
        expect_device(found, capturer._place, name)
        if name == "counts":
            if found.itemsize != 8:
                raise error(Status.ERR_DTYPE, "counts must be of int64: give torch.zeros of that")
        elif name not in ("ids", "topk_ids"):
            expect_dtype(found, (Dtype.I32,), name)
        expect_dense(found, name)
        if name in ("executed", "counts"):
            expect_writable(found, name)
        elements = 1
        for size in found.shape:
            elements *= size
        if elements != count:
            raise error(
                Status.ERR_SHAPE_MISMATCH,
                f"{name} has shape {found.shape}, {count} elements are expected: give "
                + (
                    "the last number of the prefix sum alone"
                    if name == "live_rows"
                    else "all tensors of one dispatch"
                ),
            )
        addresses[name] = found.address
    return structs.received(
        ranks=table.ranks,
        rank=table.rank,
        experts=table.experts,
        k=k,
        tokens_per_rank=table.tokens_per_rank,
        **fields,
        **addresses,
    )

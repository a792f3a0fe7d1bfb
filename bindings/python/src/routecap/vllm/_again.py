"""A batch that comes again, or spans that are kept, are issued by one call into the library."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import routecap

from .. import _structs as structs
from .._constants import Dtype
from .._devices import takes_tensors
from .._library import raw
from .._tensors import describe, expect_dense, expect_device, expect_dtype
from ._requests import Requests

if TYPE_CHECKING:
    import torch

# Of names, rows of each, positions and tag: the ticket, or None if the batch is another.
IssueAgain = Callable[[Sequence[str], Mapping[str, int], Any, int], int | None]


def issue_again(
    capturer: routecap.Capturer,
    prepared: routecap.PreparedIssue,
    positions: torch.Tensor,
    requests: Requests,
) -> IssueAgain:
    """Issues a batch like the prepared one, by a call whose variables lie close together: the
    engine's thread comes here with a cold cache.

    It returns the ticket; None if the batch is another, or a step that has its slot has not landed.
    """
    call, handle, batch = raw.issue_again, prepared.handle, requests.batch
    address, slots, device = positions.data_ptr, capturer.slots, capturer.device
    raw_stream = _raw_stream_of(capturer)

    def issue(
        req_ids: Sequence[str], counts: Mapping[str, int], at: torch.Tensor, tag: int
    ) -> int | None:
        if at is not positions or requests.batch is not batch:
            return None
        oldest = max(0, requests.last_ticket + 2 - slots)
        stream = 0 if raw_stream is None else raw_stream(device)
        found = call(handle, req_ids, counts, address(), tag, oldest, stream)
        return None if found is None else found[1]

    return issue


def _raw_stream_of(capturer: routecap.Capturer) -> Callable[[int], int] | None:
    if capturer.backend is not routecap.Backend.CUDA:
        return None
    import torch

    found: Callable[[int], int] | None = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return found


class KeptSpans:
    """Issues spans that their owner keeps and fills itself. `Capturer.issue` asks spans and tensor
    all that it asks of a stranger's; this asks the tensor again only if its memory is another than
    in the last step."""

    def __init__(self, capturer: routecap.Capturer) -> None:
        self._capturer, self._takes_tensors = capturer, takes_tensors(capturer)
        self._raw_stream = None if self._takes_tensors else _raw_stream_of(capturer)
        self._known: tuple[Any, ...] = ()
        self._options = b""

    def issue(
        self,
        spans: NDArray[np.void],
        rows: int,
        positions: torch.Tensor,
        tag: int,
        snapshot: routecap.Snapshot,
    ) -> routecap.Step:
        """
        Args:
            spans: of the rows [0, rows) of the step.
            positions: of each of these rows, and perhaps of more.
        """
        capturer = self._capturer
        if self._takes_tensors:
            return capturer.issue(spans, tag=tag, positions=positions, snapshot=snapshot)
        if positions.numel() < rows or not positions.is_contiguous():
            raise ValueError(
                f"{positions.numel()} positions came for {rows} rows: there must be one for each, one"
                " after another"
            )
        known = positions.data_ptr(), positions.dtype, tag, snapshot
        if known != self._known:
            tensor = describe(positions, "positions")
            expect_device(tensor, capturer._place, "positions")
            expect_dense(tensor, "positions")
            self._options = structs.issue_options(
                snapshot=snapshot,
                tag=tag,
                positions=tensor.address,
                positions_dtype=expect_dtype(tensor, (Dtype.I32, Dtype.I64), "positions"),
            )
            self._known = known
        stream = 0 if self._raw_stream is None else self._raw_stream(capturer.device)
        return capturer._step_of(
            *raw.routecap_step_issue(capturer._handle, spans, self._options, None, stream)
        )

"""A batch that comes again is issued by one call into the library."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import routecap
from routecap.adapter import issue_prepared, raw_stream_of

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

    It returns the ticket; None if the batch is another, or as many steps as may be are in flight.
    """
    call, handle, batch = issue_prepared, prepared.handle, requests.batch
    address, slots, device = positions.data_ptr, capturer.slots, capturer.device
    raw_stream = raw_stream_of(capturer)

    def issue(
        req_ids: Sequence[str], counts: Mapping[str, int], at: torch.Tensor, tag: int
    ) -> int | None:
        if at is not positions or requests.batch is not batch:
            return None
        oldest = max(0, requests.last_ticket + 1 - slots)
        stream = 0 if raw_stream is None else raw_stream(device)
        found = call(handle, req_ids, counts, address(), tag, oldest, stream)
        return None if found is None else found[1]

    return issue

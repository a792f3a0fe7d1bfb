"""Steps whose spans come again are issued by one call into the library."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from . import _structs as structs
from ._capturer import Capturer
from ._constants import Backend, Dtype, Snapshot
from ._devices import takes_tensors
from ._library import raw
from ._steps import Step
from ._tensors import describe, expect_dense, expect_device, expect_dtype, torch_stream

if TYPE_CHECKING:
    import torch

issue_prepared: Callable[
    [Any, Sequence[str], Mapping[str, int], int, int, int, int], tuple[Any, int] | None
] = raw.issue_again
"""Issue a prepared step once more, if it is the same: one call, which touches no object of Python
but its arguments.

    found = issue_prepared(prepared.handle, names, rows, positions, tag, oldest, stream)

prepared: Of Capturer.prepare_issue. names, rows: The requests of the step in their order, and how
many rows each has. positions: The address of the position of each row. oldest: The ticket of the
step that had the slot; 0 if none. stream: The address of the engine's; 0 on the host.

Returns status and ticket; None if the requests or their rows are others than those that were
prepared, or the oldest step has not landed: nothing was issued then. By the thread of the forward
pass alone.
"""


def raw_stream_of(capturer: Capturer) -> Callable[[int], int] | None:
    """What gives the address of the stream on which PyTorch works now, by the device's ordinal.
    None: the capturer is on the host, where streams are 0.
    """
    return torch_stream() if capturer.backend is Backend.CUDA else None


class KeptSpans:
    """Issues spans that their owner keeps and fills itself, at less cost than `Capturer.issue`: that
    checks spans and positions in each step, and this checks positions only where their memory is
    another than in the last step, and spans never. By the thread of the forward pass alone.
    """

    def __init__(self, capturer: Capturer) -> None:
        self._capturer, self._takes_tensors = capturer, takes_tensors(capturer)
        self._raw_stream = None if self._takes_tensors else raw_stream_of(capturer)
        self._known: tuple[Any, ...] = ()
        self._options = b""

    def issue(
        self,
        spans: NDArray[np.void],
        rows: int,
        positions: torch.Tensor,
        tag: int,
        snapshot: Snapshot,
    ) -> Step:
        """Issue a step, on the current stream of the capturer's device.

        Args:
            spans: An array of span_dtype, of the rows [0, rows) of the step.
            positions: [rows or more] of each of these rows, int32 or int64, dense.
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

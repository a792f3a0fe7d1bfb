"""What a capturer does inside a forward pass: begin, a record for each layer, the snapshot."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import routecap

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)


class Forward:
    """Everything here may be captured into a CUDA graph. By one thread at a time.

    delimited: whether somebody says where a forward pass begins and ends: hooks on a bound model, or the engine. Where nobody does, the first layer
    that is captured begins one, so does a layer that is captured again, and the snapshot is made when the step is issued: for eager engines
    that call `capture` and nothing else.
    """

    def __init__(self, capturer: routecap.Capturer, place: Callable[[int], tuple[int, int, int]] | None) -> None:
        self._capturer = capturer
        self._place = place
        self._captured: set[int] = set()  # layers, since the last begin, where nobody says when one begins
        self._conflict_told = False
        self.delimited = False

    def begin(self, rows: int | None = None) -> None:
        """A forward pass of up to `rows` rows starts, padding included; None: as many as there may be."""
        self.delimited = True
        self._capturer.begin(self._capturer.rows if rows is None else rows)

    def end(self) -> None:
        """All routers of the forward pass have run."""
        self._capturer.snapshot()

    def record(self, layer: int, topk_ids: torch.Tensor, table: torch.Tensor | None = None) -> None:
        """A router chose these ids, [rows, >= k] of any integer type, for the first rows of the step, or where `Options.place` has them.

        With a table, [ids] of int32, they are looked up in it.
        """
        if not self.delimited:
            self._begin_if_new(layer, topk_ids)
        first_row = 0
        if self._place is not None:
            source_row, first_row, rows = self._place(len(topk_ids))
            topk_ids = topk_ids[source_row : source_row + rows]
        try:
            self._capturer.record(layer, topk_ids, first_row=first_row, table=table)
        except routecap.Error as error:
            if error.status is not routecap.Status.ERR_CONFLICT:
                raise
            if not self._conflict_told:
                self._conflict_told = True
                logger.error("routed experts: layer %d is written twice in one forward pass; the first is kept (%s)", layer, error)

    def issued(self) -> None:
        self._captured.clear()

    def _begin_if_new(self, layer: int, topk_ids: torch.Tensor) -> None:
        if topk_ids.is_cuda:
            import torch

            if torch.cuda.is_current_stream_capturing():
                raise RuntimeError("a CUDA graph is being captured, and nobody says where its forward pass begins: bind the model")
        if not self._captured or layer in self._captured:
            self._capturer.begin(self._capturer.rows)
            self._captured.clear()
        self._captured.add(layer)

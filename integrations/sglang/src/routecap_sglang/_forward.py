"""What a capturer does inside a forward pass: begin, the ids of each router, the snapshot."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import routecap
from routecap.adapter import HeldIds, capturing_on

from ._routed import kept

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)


class Forward:
    """Everything here may be captured into a CUDA graph. By one thread at a time.

    Where a pass is eager, or one graph, nothing is launched for a layer: all is recorded at
    once behind the last router. In one graph that launch is the whole step. A pass in which graphs
    begin or end begins its step at its start, and a graph of a part of the model, which begins and
    ends elsewhere, records each layer where it is.
    """

    def __init__(
        self,
        capturer: routecap.Capturer,
        widths: Sequence[tuple[int, ...]],
        breaks: Callable[[], bool | None] = lambda: False,
        weights: bool = False,
    ) -> None:
        """
        Args:
            widths: Of each captured layer, how many columns its router's ids may have: its k, of
                which the others are behind.
            breaks: Whether the engine may end the graph that it captures within the pass, and
                begin another.
            weights: Whether the capturer keeps them.
        """
        self._capturer, self._widths, self._breaks = capturer, widths, breaks
        self._weights = weights
        self._is_capturing = capturing_on(capturer)
        self._capturing: bool | None = None  # a graph, when this pass began; None outside of one
        self._rows = 0  # of this pass, padding included
        self._begun = False  # its step
        self._told = self._told_of_part = False
        self.held = HeldIds(capturer)

    def around(self, forward: Callable[..., Any], softly: Callable[..., Any]) -> Callable[..., Any]:
        """A model's forward, with a begin before and a snapshot behind it, both called softly."""

        @functools.wraps(forward)
        def delimited(
            input_ids: object,
            positions: object,
            forward_batch: object,
            *args: object,
            **more: object,
        ) -> Any:
            softly(self._begin_batch, positions, forward_batch)
            output = forward(input_ids, positions, forward_batch, *args, **more)
            softly(self.end)
            return output

        return delimited

    def _begin_batch(self, positions: Any, forward_batch: Any) -> None:
        self.begin(max(len(positions), forward_batch.global_dp_buffer_len or 0))

    def begin(self, rows: int) -> None:
        """A pass whose routers see up to `rows` rows, padding included."""
        self._capturing = self._is_capturing()
        self._rows, self._begun = min(rows, self._capturer.rows), False
        self.held.begin()
        # What runs eagerly between two graphs records into a step that the first one has begun.
        if not (self._capturing and self.held.proven) or self._breaks():
            self._begin_step()

    def end(self) -> None:
        """All routers of the pass have run."""
        sources = self.held.settle(-1 if self._begun else self._rows)
        self.held.end_step(sources, self._begin_step)
        self._capturing = None

    def _begin_step(self) -> None:
        if not self._begun:
            self._begun = True
            self._capturer.begin(self._rows)

    def route(self, layer: int, ids: torch.Tensor, weights: torch.Tensor | None = None) -> None:
        """A router chose these, [rows, k or more], of rows from the first on. Of a router that sees
        fewer than the pass has nobody knows which: they are left out.

        Raises:
            ValueError: They have another width than the model says, or weights not of them.
            LookupError: Their weights are to be kept, and are not there.
        """
        if ids.ndim != 2 or ids.shape[1] not in self._widths[layer]:
            raise ValueError(
                f"the router of layer {layer} gave ids of shape {tuple(ids.shape)}, and the model's"
                f" configuration says {self._widths[layer][0]} experts a token: report the model"
            )
        if len(ids) < self._rows:
            self._tell_part(layer, len(ids))
            return
        weights = kept(layer, ids, weights) if self._weights else None
        if len(ids) > self._capturer.rows:
            ids = ids[: self._capturer.rows]
            weights = None if weights is None else weights[: self._capturer.rows]
        capturing = self._is_capturing()
        if capturing != self._capturing:
            self._record(layer, ids, weights)
        elif layer in self.held:
            self._tell_conflict(layer)
        elif not self.held.hold(layer, ids, capturing, weights):
            self._record(layer, ids, weights)

    def _record(self, layer: int, ids: torch.Tensor, weights: torch.Tensor | None = None) -> None:
        if self._capturing is not None:  # else the pass is a replay, whose first graph begins it
            self._begin_step()
        try:
            # What is fused behind the k-th column is left out.
            self._capturer.record(layer, ids, columns=ids.shape[1], weights=weights)
        except routecap.Error as error:
            if error.status is not routecap.Status.ERR_CONFLICT:
                raise
            self._tell_conflict(layer)

    def _tell_part(self, layer: int, rows: int) -> None:
        if not self._told_of_part:
            self._told_of_part = True
            logger.error(
                "routed experts: the router of a layer (%d) saw %d of a pass's %d rows, and nothing"
                " says which: they are missing. Report the model and the server's arguments",
                layer,
                rows,
                self._rows,
            )

    def _tell_conflict(self, layer: int) -> None:
        if not self._told:
            self._told = True
            logger.error(
                "routed experts: a layer (%d) routes twice in one pass: the first is kept. Report "
                "the model",
                layer,
            )

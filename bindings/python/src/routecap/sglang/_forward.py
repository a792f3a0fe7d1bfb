"""What a capturer does inside a forward pass: begin, the ids of each router, the snapshot."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import routecap

from .._branch import Branch
from .._devices import capturing_on
from .._held import HeldIds

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)


class Forward:
    """Everything here may be captured into a CUDA graph. By one thread at a time.

    Where a pass is eager, or one graph, nothing is launched for a layer: all ids are recorded at
    once behind the last router. In one graph that runs on a branch, beside what the engine has
    still to do. In a graph of a part of the model, which begins and ends elsewhere, each layer is
    recorded where it is.
    """

    def __init__(self, capturer: routecap.Capturer, widths: tuple[int, ...]) -> None:
        """widths: how many columns the routers' ids may have: the model's k, of which the others
        are behind."""
        self._capturer, self._widths = capturer, widths
        self._is_capturing = capturing_on(capturer)
        self._capturing: bool | None = None  # a graph, when this pass began; None outside of one
        on_cuda = capturer.backend is routecap.Backend.CUDA
        self._branch = Branch() if on_cuda else None  # of a graph that is a whole pass
        self._recorded = False  # all layers of this pass, before its end
        self._told = False
        self.held = HeldIds(capturer)

    def around(self, forward: Callable[..., Any], softly: Callable[..., Any]) -> Callable[..., Any]:
        """A model's forward, with a begin before and a snapshot behind it, both called softly."""

        @functools.wraps(forward)
        def delimited(
            input_ids: Any, positions: Any, forward_batch: Any, *args: Any, **more: Any
        ) -> Any:
            softly(self._begin_batch, positions, forward_batch)
            output = forward(input_ids, positions, forward_batch, *args, **more)
            softly(self.end)
            self._join()
            return output

        return delimited

    def _begin_batch(self, positions: Any, forward_batch: Any) -> None:
        self.begin(max(len(positions), forward_batch.global_dp_buffer_len or 0))

    def begin(self, rows: int) -> None:
        """A pass whose routers see up to `rows` rows, padding included."""
        self._capturing, self._recorded = self._is_capturing(), False
        self.held.begin()
        if self._branch is not None and self._capturing and self.held.proven:
            self._branch.fork()
        self._capturer.begin(min(rows, self._capturer.rows), stream=self._aside)

    def end(self) -> None:
        if not self._recorded:
            self._record_all()
        self._capturing = None

    @property
    def _aside(self) -> Any:
        """The branch's stream while there is one; None is the engine's."""
        return None if self._branch is None else self._branch.stream

    def _record_all(self) -> None:
        if self._branch is not None and self._aside is not None:
            self._branch.fork()
        self.held.record(self._aside)
        self._capturer.snapshot(stream=self._aside)
        self._recorded = True

    def _join(self) -> None:
        """Also if capture failed: the engine's graph would be lost with a branch that is open."""
        if self._branch is not None and self._branch.join():
            self.held.forget()

    def route(self, layer: int, ids: torch.Tensor) -> None:
        """A router chose these, [rows, k or more], of rows from the first on.

        Raises:
            ValueError: They have another width than the model says.
        """
        if ids.ndim != 2 or ids.shape[1] not in self._widths:
            raise ValueError(
                f"the router of layer {layer} gave ids of shape {tuple(ids.shape)}, and the model's"
                f" configuration says {self._widths[0]} experts a token: report the model"
            )
        if len(ids) > self._capturer.rows:
            ids = ids[: self._capturer.rows]
        capturing = self._is_capturing()
        if capturing != self._capturing:
            self._record(layer, ids)
        elif layer in self.held:
            self._tell_conflict(layer)
        elif not self.held.hold(layer, ids, capturing):
            self._record(layer, ids)
        elif self._aside is not None and len(self.held) == self._capturer.layers:
            self._record_all()

    def _record(self, layer: int, ids: torch.Tensor) -> None:
        try:
            # What is fused behind the k-th column is left out.
            self._capturer.record(layer, ids, columns=ids.shape[1])
        except routecap.Error as error:
            if error.status is not routecap.Status.ERR_CONFLICT:
                raise
            self._tell_conflict(layer)

    def _tell_conflict(self, layer: int) -> None:
        if not self._told:
            self._told = True
            logger.error(
                "routed experts: a layer (%d) routes twice in one pass: the first is kept. Report "
                "the model",
                layer,
            )

"""What a capturer does inside a forward pass: begin, record the ids of each layer, take a snapshot.

If the whole pass is eager, or one CUDA graph, nothing is launched for a single layer: after the
last router one kernel is the whole step (`HeldIds`). A graph of a part of the pass leaves its ids in
memory that lives as long as the graph. They are recorded after the pass that replays the graph.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

import routecap
from routecap.adapter import Choice, HeldIds, capturing_on, kept_weights

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("vllm.routecap")  # which vLLM shows

_pieces: Callable[[], Hashable | None] | None = None


def say_pieces(pieces: Callable[[], Hashable | None] | None) -> None:
    """Set the function that says which graphs of parts of the model a pass replays; None if none.

    Without such a function, ids are recorded inside these graphs.
    """
    global _pieces
    _pieces = pieces


class Forward:
    """Everything here may be captured into a CUDA graph. For one thread at a time.

    delimited: Whether hooks on a bound model, or the engine, say where a forward pass begins and
        ends. If not, a pass begins with the first layer that is captured, and again with a layer
        that is captured for the second time, and the snapshot is taken when the step is issued.
        This is for eager engines that call nothing but `capture`.
    """

    def __init__(
        self,
        capturer: routecap.Capturer,
        place: Callable[[int], tuple[int, int, int]] | None,
        fused: int = 0,
    ) -> None:
        """
        Args:
            fused: How many shared experts may stand behind the k chosen ones, unless a layer says
                it in `widths`.
        """
        self._capturer = capturer
        self._weighted = capturer.weights_dtype is not None
        self._width = (capturer.k, capturer.k + fused)
        self.widths: dict[int, tuple[int, ...]] = {}  # what a layer says: columns its ids may have
        self._place = place
        self._captured: set[int] = set()  # layers since the last begin, if not delimited
        self._conflict_told = False
        self.delimited = False
        self.held = HeldIds(capturer, logger)
        self._is_capturing = capturing_on(capturer)
        self._capturing = False  # a graph, when this pass began
        self._rows = 0  # of this pass, padding included
        self._begun = False  # its step
        self._seen = False  # a router has called in this pass
        self._of_pieces: dict[Hashable, dict[int, Choice]] = {}
        self._sources_of_pieces: dict[Hashable, list[routecap.LayerSources]] = {}

    def begin(self, rows: int | None = None) -> None:
        """A forward pass of up to `rows` rows starts, padding included.

        None: as many as there may be.
        """
        self.delimited = True
        self._seen = self._begun = False
        self._capturing = self._is_capturing()
        self._rows = self._capturer.rows if rows is None else rows
        self.held.begin()
        # A graph that begins and ends within the pass cannot hold the begin of the step.
        if not (self.held.proven and _pieces is not None and _pieces() is None):
            self._begin_step()

    def end(self) -> None:
        """All routers of the forward pass have run."""
        if not self._seen and _pieces is not None and self._of_pieces:
            sources = self._of_replayed(_pieces())
        else:
            sources = self.held.settle(-1 if self._begun else self._rows)
        self.held.end_step(sources, self._begin_step)

    def _begin_step(self) -> None:
        if not self._begun:
            self._begun = True
            self._capturer.begin(self._rows)

    def route(
        self,
        layer: int,
        topk_ids: torch.Tensor,
        table: torch.Tensor | None = None,
        weights: torch.Tensor | None = None,
    ) -> None:
        """As `record`, for tensors whose memory is free only once they are gone."""
        weights = self._expected(layer, topk_ids, weights)
        if not self.delimited or self._place is not None or table is not None:
            self._record(layer, topk_ids, table, weights)
            return
        capturing = self._is_capturing()
        if capturing != self._capturing:
            self._route_in_piece(layer, topk_ids, weights)
        elif layer in self.held:
            self._tell_conflict(layer)
        elif self.held.hold(layer, topk_ids, capturing, weights):
            self._seen = True
        else:
            self._record(layer, topk_ids, weights=weights)

    def record(
        self,
        layer: int,
        topk_ids: torch.Tensor,
        table: torch.Tensor | None = None,
        weights: torch.Tensor | None = None,
    ) -> None:
        """Record the ids [rows, >= k] that a router chose, of any integer type; and, if they are
        captured, the weights of these.

        They belong to the first rows of the step, or to the rows that `Options.place` says. With a
        `table` [ids] of int32 they are looked up in it.

        Raises:
            ValueError: They have another number of columns than the layer says, or the weights are
                not one for each id.
        """
        self._record(layer, topk_ids, table, self._expected(layer, topk_ids, weights))

    def _record(
        self,
        layer: int,
        topk_ids: torch.Tensor,
        table: torch.Tensor | None = None,
        weights: torch.Tensor | None = None,
    ) -> None:
        self._seen = True
        if self.delimited:
            self._begin_step()
        else:
            self._begin_if_new(layer, topk_ids)
        first_row = 0
        if self._place is not None:
            source_row, first_row, rows = self._place(len(topk_ids))
            seen = slice(source_row, source_row + rows)
            topk_ids, weights = topk_ids[seen], None if weights is None else weights[seen]
        try:
            columns = topk_ids.shape[1]  # what is fused behind the k-th is left out
            self._capturer.record(
                layer,
                topk_ids,
                columns=columns,
                first_row=first_row,
                table=table,
                weights=weights,
            )
        except routecap.Error as error:
            if error.status is not routecap.Status.ERR_CONFLICT:
                raise
            self._tell_conflict(layer)

    def _expected(
        self, layer: int, topk_ids: torch.Tensor, weights: torch.Tensor | None
    ) -> torch.Tensor | None:
        """The weights of these ids as they are captured, if they are. Ids of a width that the layer
        does not say, and weights that are not one for each id, are refused."""
        widths = self.widths.get(layer, self._width)
        if topk_ids.ndim != 2 or topk_ids.shape[1] not in widths:
            raise ValueError(
                f"the router of captured layer {layer} gave ids of shape {tuple(topk_ids.shape)},"
                f" and the model says {widths[0]} experts a token: report the model"
            )
        if not self._weighted:
            return weights
        router, setting = f"the router of captured layer {layer}", "ROUTECAP_VLLM_WEIGHTS"
        return kept_weights(topk_ids, weights, router=router, setting=setting)

    def _tell_conflict(self, layer: int) -> None:
        if not self._conflict_told:
            self._conflict_told = True
            logger.error(
                "routed experts: layer %d was recorded twice in one forward pass, and its first "
                "ids are kept. Please report the model",
                layer,
            )

    def issued(self) -> None:
        self._captured.clear()

    # ---- Graphs of parts of a pass

    def _route_in_piece(
        self, layer: int, topk_ids: torch.Tensor, weights: torch.Tensor | None
    ) -> None:
        in_piece = not self._capturing  # else a part that runs eagerly within a graph
        key = _pieces() if in_piece and self.held.proven and _pieces is not None else None
        of_pieces = None if key is None else self._of_pieces.setdefault(key, {})
        if of_pieces is None or layer in of_pieces:  # another graph of this name records inside
            self._record(layer, topk_ids, weights=weights)
        else:
            of_pieces[layer] = Choice(topk_ids, weights)

    def _of_replayed(self, key: Hashable | None) -> list[routecap.LayerSources]:
        """What records the ids that the graphs of this name left."""
        choices = self._of_pieces.get(key, {})
        sources = self._sources_of_pieces.get(key, [])
        if sum(len(each.layers) for each in sources) != len(choices):  # more were captured since
            sources = self._sources_of_pieces[key] = self.held.sources(choices)
        return sources

    # ---- Without hooks that say when a pass begins

    def _begin_if_new(self, layer: int, topk_ids: torch.Tensor) -> None:
        if self._is_capturing():
            raise RuntimeError(
                "a graph is being captured, and it is not known where its forward pass begins: bind"
                " the model first"
            )
        if not self._captured or layer in self._captured:
            self._capturer.begin(self._capturer.rows)
            self._captured.clear()
        self._captured.add(layer)

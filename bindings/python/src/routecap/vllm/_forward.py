"""What a capturer does inside a forward pass: begin, the ids of each layer, the snapshot.

Where the whole pass is one CUDA graph, or eager, nothing is launched for a layer: its ids are held,
so that the allocator cannot give their memory to a later layer, and all are recorded at once behind
the last router. A graph of a part of the pass leaves its ids in memory that is held as long as the
graph, and they are recorded behind the pass in which it was replayed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

import routecap

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)


class Forward:
    """Everything here may be captured into a CUDA graph. By one thread at a time.

    Ids are held only once an eager pass has proven that they stay what they were until its end:
    an engine may write its own over them (`_prove`). Before that, and where ids are looked up in a
    table or placed, each layer is recorded where it is.

    delimited: whether somebody says where a forward pass begins and ends: hooks on a bound model,
        or the engine. Where nobody does, the first layer that is captured begins one, so does a
        layer that is captured again, and the snapshot is made when the step is issued: for eager
        engines that call `capture` and nothing else.
    pieces: tells which graphs of parts of the pass are replayed in this one, and None if none are.
        Without it ids are recorded inside such graphs.
    held: how many layers the last pass recorded at once.
    """

    pieces: Callable[[], Hashable | None] | None = None

    def __init__(self, capturer: routecap.Capturer, place: Callable[[int], tuple[int, int, int]] | None) -> None:
        self._capturer = capturer
        self._place = place
        self._captured: set[int] = set()  # layers, since the last begin, where nobody says when one begins
        self._conflict_told = False
        self.delimited = False
        self.held = 0
        self._on_gpu = capturer.backend is routecap.Backend.CUDA
        self._capturing = False  # a graph, when this pass began
        self._ids: dict[int, torch.Tensor] = {}  # of this pass, by layer
        self._seen = False  # a router has called in this pass
        self._of_pieces: dict[Hashable, dict[int, torch.Tensor]] = {}
        self._sources_of_pieces: dict[Hashable, list[routecap.LayerSources]] = {}
        self._proven: bool | None = None
        self._before: dict[int, torch.Tensor] = {}  # copies of `_ids`, in the pass that proves

    def begin(self, rows: int | None = None) -> None:
        """A forward pass of up to `rows` rows starts, padding included; None: as many as there may be."""
        self.delimited = True
        self._ids, self._before, self._seen = {}, {}, False
        self._capturing = self._is_capturing()
        self._capturer.begin(self._capturer.rows if rows is None else rows)

    def end(self) -> None:
        """All routers of the forward pass have run."""
        if self._before and not self._capturing:
            self._prove()
        elif self._ids:
            self._record_held(self._sources(self._ids))
        elif not self._seen and self.pieces is not None and self._of_pieces:
            self._record_pieces(self.pieces())
        self._ids, self._before = {}, {}
        self._capturer.snapshot()

    def route(self, layer: int, topk_ids: torch.Tensor, table: torch.Tensor | None = None) -> None:
        """As `record`, of ids in memory that nothing but their tensors' ends makes free."""
        if not self.delimited or self._place is not None or table is not None:
            self.record(layer, topk_ids, table)
            return
        if layer in self._ids:
            self._tell_conflict(layer)
            return
        capturing = self._is_capturing()
        if capturing != self._capturing:
            self._route_in_piece(layer, topk_ids)
            return
        self._seen = True
        if self._proven:
            self._ids[layer] = topk_ids
            return
        if self._proven is None and not capturing:
            self._ids[layer], self._before[layer] = topk_ids, topk_ids.clone()
        self.record(layer, topk_ids)

    def record(self, layer: int, topk_ids: torch.Tensor, table: torch.Tensor | None = None) -> None:
        """A router chose these ids, [rows, >= k] of any integer type, for the first rows of the step, or where `Options.place` has them.

        With a table, [ids] of int32, they are looked up in it.
        """
        self._seen = True
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
            self._tell_conflict(layer)

    def _tell_conflict(self, layer: int) -> None:
        if not self._conflict_told:
            self._conflict_told = True
            logger.error("routed experts: layer %d is written twice in one forward pass; the first is kept", layer)

    def issued(self) -> None:
        self._captured.clear()

    # ---- Ids that are held

    def _is_capturing(self) -> bool:
        if not self._on_gpu:
            return False
        import torch

        return torch.cuda.is_current_stream_capturing()

    def _route_in_piece(self, layer: int, topk_ids: torch.Tensor) -> None:
        key = self.pieces() if self._proven and self.pieces is not None else None
        of_piece = self._of_pieces.setdefault(key, {}) if key is not None else None
        if of_piece is None or layer in of_piece:  # a second graph of one name: both record their own
            self.record(layer, topk_ids)
        else:
            of_piece[layer] = topk_ids

    def _record_pieces(self, key: Hashable | None) -> None:
        ids = self._of_pieces.get(key, {})
        sources = self._sources_of_pieces.get(key, [])
        if sum(len(each.layers) for each in sources) != len(ids):  # more were captured since
            sources = self._sources_of_pieces[key] = self._sources(ids)
        self._record_held(sources)

    def _sources(self, ids: dict[int, torch.Tensor]) -> list[routecap.LayerSources]:
        alike: dict[tuple[object, ...], dict[int, torch.Tensor]] = {}
        for layer, tensor in ids.items():
            alike.setdefault((tensor.dtype, tensor.shape, tensor.stride()), {})[layer] = tensor
        return [self._capturer.layer_sources(some) for some in alike.values()]

    def _record_held(self, sources: list[routecap.LayerSources]) -> None:
        self.held = sum(len(each.layers) for each in sources)
        for each in sources:
            self._capturer.record_layers(each)

    def _prove(self) -> None:
        """Whether, at the end of a pass, each layer's ids are what its router chose, in memory of their own."""
        import torch

        places = sorted((ids.data_ptr(), ids.data_ptr() + ids.nbytes) for ids in self._ids.values())
        apart = all(end <= begin for (_, end), (begin, _) in zip(places, places[1:], strict=False))
        same = torch.stack([(ids == self._before[layer]).all() for layer, ids in self._ids.items()])
        self._proven = apart and bool(same.all())
        if not self._proven:
            logger.warning(
                "routed experts: this model writes over the ids of its routers: each layer is "
                "recorded where it is, which launches a kernel for each"
            )

    # ---- Where nobody says when a pass begins

    def _begin_if_new(self, layer: int, topk_ids: torch.Tensor) -> None:
        if topk_ids.is_cuda:
            import torch

            if torch.cuda.is_current_stream_capturing():
                raise RuntimeError("a CUDA graph is being captured, and nobody says where its forward pass begins: bind the model")
        if not self._captured or layer in self._captured:
            self._capturer.begin(self._capturer.rows)
            self._captured.clear()
        self._captured.add(layer)

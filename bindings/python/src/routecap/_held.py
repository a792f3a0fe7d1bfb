"""Ids of routers that are held until the end of a forward pass, and recorded at once there.

Nothing is launched for a layer then, and as a tensor is held no allocator gives its memory to a
later layer, inside a CUDA graph neither. What else could go wrong, an engine that writes its own
over the ids, an eager pass proves not to happen; until it has, each layer is recorded where it is.
Where tensors have versions, each later pass proves it too: ids that were written to all the same,
zero experts say that the first pass did not choose, are not recorded, and their cells are missing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from ._capturer import Capturer
from ._steps import LayerSources

logger = logging.getLogger(__name__)


class HeldIds:
    """Ids of routers that are recorded at once at the end of a forward pass, where that is safe.

        held.begin(kind)
        for layer, ids in routers:                       # ids: a tensor of torch, [rows, k or more]
            if not held.hold(layer, ids, capturing()):
                capturer.record(layer, ids)              # its rows, where the router runs
        held.record()

    It is safe in passes of a kind of which one ran eagerly, held copies of all ids, and found at
    its end that nothing had written over them. For one forward pass after another, by one thread at
    a time.

    recorded: how many layers the last pass recorded at once.
    """

    def __init__(
        self, capturer: Capturer, logger: logging.Logger = logger, none: int | None = None
    ) -> None:
        """
        Args:
            logger: One that the engine shows.
            none: As in `Capturer.record`.
        """
        self._none = none
        self._capturer, self._logger = capturer, logger
        self._ids: dict[int, Any] = {}  # of this pass, by layer
        self._copies: dict[int, Any] = {}  # of these, in the pass that proves
        self._versions: dict[int, int | None] = {}  # of these, when their routers had run
        self._proven: dict[Hashable, bool] = {}
        self._kind: Hashable = None
        self.recorded = 0

    def begin(self, kind: Hashable = None) -> None:
        """A pass starts. Passes of one kind run the same operations."""
        self.forget()
        self._kind = kind

    def forget(self) -> None:
        """The pass was given up, or has ended."""
        self._ids, self._copies, self._versions = {}, {}, {}

    def __contains__(self, layer: int) -> bool:
        return layer in self._ids

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def proven(self) -> bool:
        """Whether ids of passes of this kind are held."""
        return self._proven.get(self._kind, False)

    def hold(self, layer: int, ids: Any, capturing: bool) -> bool:
        """Hold a router's ids, a tensor of torch [rows, >= k]; False: they are to be recorded here.

        capturing: a CUDA graph, so that nothing can be compared.
        """
        known = self._proven.get(self._kind)
        self._versions[layer] = _version(ids)
        if known is None and not capturing:
            self._ids[layer], self._copies[layer] = ids, ids.clone()
        if not known:
            return False
        self._ids[layer] = ids
        return True

    def record(self) -> None:
        """The last router has run: record what was held, or prove."""
        self._record(self.settle())
        self.forget()

    def end_step(self, sources: list[LayerSources], begin: Callable[[], None]) -> None:
        """The pass has ended: record what `settle` or `sources` gave, and take the snapshot.

        begin: Begins the step if it is not begun; not called where the sources are the whole step.
        """
        whole_step = bool(sources) and sources[0].whole_step
        if not whole_step:
            begin()
        self._record(sources)
        if not whole_step:
            self._capturer.snapshot()
        self.forget()

    def settle(self, step_rows: int = -1) -> list[LayerSources]:
        """The last router has run: what records the ids that were held; nothing where that is still
        to be proved. `step_rows` as in `sources`."""
        written = [
            layer for layer in self._ids if _version(self._ids[layer]) != self._versions[layer]
        ]
        if self._copies:
            self._prove(bool(written))
            return []
        for layer in written:
            del self._ids[layer]
        if written:
            self._refuse(f"the cells of layers {written} of one forward pass are missing, and ")
        return self.sources(self._ids, step_rows)

    def sources(self, ids: Mapping[int, Any], step_rows: int = -1) -> list[LayerSources]:
        """What records the ids of these layers, [rows, k or more], in as few calls as there are types
        and shapes. What an engine fuses behind the k-th column is left out.

        step_rows: How many rows the step has, if it is not begun: a single call then is the whole
            step.
        """
        alike: dict[tuple[Any, Any, Any, int | None], dict[int, Any]] = {}
        for layer, tensor in ids.items():
            kind = tensor.dtype, tensor.shape, tensor.stride(), self._none_of(layer)
            alike.setdefault(kind, {})[layer] = tensor
        found = []
        for (_, _, _, none), some in alike.items():
            rows, columns = next(iter(some.values())).shape
            whole = len(alike) == 1 and rows <= step_rows
            found.append(
                self._capturer.layer_sources(some, columns=columns, none=none, whole_step=whole)
            )
        return found

    def _none_of(self, layer: int) -> int | None:
        """What says in a layer that no expert was chosen; None where each token has all of them."""
        fewer = self._none is not None and (
            self._capturer.layer_min_k[layer] < self._capturer.layer_k[layer]
        )
        return self._none if fewer else None

    def _record(self, sources: list[LayerSources]) -> None:
        self.recorded = sum(len(each.layers) for each in sources)
        for each in sources:
            self._capturer.record_layers(each)

    def _prove(self, written: bool) -> None:
        """Whether each layer's ids are still what its router chose, in memory of their own.

        written: Whether somebody wrote to one, be it what was there. Waits for the device.
        """
        import torch

        places = sorted((ids.data_ptr(), ids.data_ptr() + ids.nbytes) for ids in self._ids.values())
        apart = all(end <= begin for (_, end), (begin, _) in zip(places, places[1:]))
        same = torch.stack([(ids == self._copies[layer]).all() for layer, ids in self._ids.items()])
        self._proven[self._kind] = apart and not written and bool(same.all())
        if not self._proven[self._kind]:
            self._refuse()

    def _refuse(self, lost: str = "") -> None:
        """From now on each layer is recorded where it is."""
        self._proven[self._kind] = False
        self._logger.warning(
            "this model writes over the ids of its routers: %seach layer is recorded where it is from"
            " now on, which launches a kernel for each. Leave the ids in memory of their own to save"
            " that",
            lost,
        )


def _version(ids: Any) -> int | None:
    """How often a tensor was written to; None of one of inference mode, of which nothing says it."""
    return None if ids.is_inference() else ids._version

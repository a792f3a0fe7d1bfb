"""Ids of routers, and their weights, that are held until the end of a forward pass, and recorded at
once there.

Nothing is launched for a layer then, and as a tensor is held no allocator gives its memory to a
later layer, inside a CUDA graph neither. What else could go wrong, an engine that writes its own
over the ids, an eager pass proves not to happen; until it has, each layer is recorded where it is.
Where tensors have versions, each later pass proves it too: ids that were written to all the same,
zero experts say that the first pass did not choose, are not recorded, and their cells are missing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, NamedTuple

from ._capturer import Capturer
from ._steps import LayerSources

logger = logging.getLogger(__name__)


class Choice(NamedTuple):
    """What the router of a layer chose: tensors of torch [rows, k or more]."""

    ids: Any
    weights: Any = None

    def tensors(self) -> list[Any]:
        return [each for each in self if each is not None]


class HeldIds:
    """Ids of routers, with their weights if these are captured, that are recorded at once at the end
    of a forward pass, where that is safe.

        held.begin(kind)
        for layer, ids in routers:                       # ids: a tensor of torch, [rows, k or more]
            if not held.hold(layer, ids, capturing()):
                capturer.record(layer, ids)              # its rows, where the router runs
        held.record()

    With weights, hold(layer, ids, capturing(), weights) and record(layer, ids, weights=weights).

    It is safe in passes of a kind of which one ran eagerly, held copies of all tensors, and found
    at its end that nothing had written over them. For one forward pass after another, by one thread at
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
        self._held: dict[int, Choice] = {}  # of this pass, by layer
        self._copies: dict[int, Choice] = {}  # of these, in the pass that proves
        self._versions: dict[int, list[int | None]] = {}  # of these, when their routers had run
        self._proven: dict[Hashable, bool] = {}
        self._kind: Hashable = None
        self.recorded = 0

    def begin(self, kind: Hashable = None) -> None:
        """A pass starts. Passes of one kind run the same operations."""
        self.forget()
        self._kind = kind

    def forget(self) -> None:
        """The pass was given up, or has ended."""
        self._held, self._copies, self._versions = {}, {}, {}

    def __contains__(self, layer: int) -> bool:
        return layer in self._held

    def __len__(self) -> int:
        return len(self._held)

    @property
    def proven(self) -> bool:
        """Whether ids of passes of this kind are held."""
        return self._proven.get(self._kind, False)

    def hold(self, layer: int, ids: Any, capturing: bool, weights: Any = None) -> bool:
        """Hold a router's ids, a tensor of torch [rows, >= k], and its weights, one of the same shape;
        False: they are to be recorded here.

        capturing: a CUDA graph, so that nothing can be compared.
        """
        known = self._proven.get(self._kind)
        choice = Choice(ids, weights)
        self._versions[layer] = _versions(choice)
        if known is None and not capturing:
            self._held[layer] = choice
            self._copies[layer] = Choice(*(each.clone() for each in choice.tensors()))
        if not known:
            return False
        self._held[layer] = choice
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
            layer for layer, each in self._held.items() if _versions(each) != self._versions[layer]
        ]
        if self._copies:
            self._prove(bool(written))
            return []
        for layer in written:
            del self._held[layer]
        if written:
            self._refuse(f"the cells of layers {written} of one forward pass are missing, and ")
        return self.sources(self._held, step_rows)

    def sources(self, held: Mapping[int, Choice], step_rows: int = -1) -> list[LayerSources]:
        """What records the choices of these layers, in as few calls as there are types and shapes.
        What an engine fuses behind the k-th column is left out.

        step_rows: How many rows the step has, if it is not begun: a single call then is the whole
            step.
        """
        alike: dict[Hashable, dict[int, Choice]] = {}
        for layer, choice in held.items():
            kind = tuple((each.dtype, each.shape, each.stride()) for each in choice.tensors())
            alike.setdefault(kind, {})[layer] = choice
        found = []
        for some in alike.values():
            ids = {layer: choice.ids for layer, choice in some.items()}
            weights = {at: each.weights for at, each in some.items() if each.weights is not None}
            rows, columns = next(iter(ids.values())).shape
            found.append(
                self._capturer.layer_sources(
                    ids,
                    columns=columns,
                    none=self._none_of(ids),
                    weights=weights or None,
                    whole_step=len(alike) == 1 and rows <= step_rows,
                )
            )
        return found

    def _none_of(self, layers: Iterable[int]) -> int | None:
        """What says in layers that no expert was chosen; None where each token has all of them."""
        if self._none is None:
            return None
        least, most = self._capturer.layer_min_k, self._capturer.layer_k
        return self._none if any(least[layer] < most[layer] for layer in layers) else None

    def _record(self, sources: list[LayerSources]) -> None:
        self.recorded = sum(len(each.layers) for each in sources)
        for each in sources:
            self._capturer.record_layers(each)

    def _prove(self, written: bool) -> None:
        """Whether each layer's tensors are still what its router gave, in memory of their own.

        written: Whether somebody wrote to one, be it what was there. Waits for the device.
        """
        import torch

        now = [each for choice in self._held.values() for each in choice.tensors()]
        then = [each for choice in self._copies.values() for each in choice.tensors()]
        places = sorted((each.data_ptr(), each.data_ptr() + each.nbytes) for each in now)
        apart = all(end <= begin for (_, end), (begin, _) in zip(places, places[1:]))
        same = torch.stack(  # a NaN is not what it was, and that layer is recorded where it is
            [(each == copy).all() for each, copy in zip(now, then, strict=True)]
        )
        self._proven[self._kind] = apart and not written and bool(same.all())
        if not self._proven[self._kind]:
            self._refuse()

    def _refuse(self, lost: str = "") -> None:
        """From now on each layer is recorded where it is."""
        self._proven[self._kind] = False
        self._logger.warning(
            "this model writes over what its routers choose: %seach layer is recorded where it is from"
            " now on, which launches a kernel for each. Leave it in memory of its own to save"
            " that",
            lost,
        )


def _versions(choice: Choice) -> list[int | None]:
    """How often each tensor was written to; None of one of inference mode, of which nothing says it."""
    return [None if each.is_inference() else each._version for each in choice.tensors()]

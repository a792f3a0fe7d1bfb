"""Forward passes of a model, and which of them a router runs in.

A pass begins before the model's forward and ends behind it. Its output then carries a hook of
autograd, which says that backward has come to this pass. What runs in backward after that is
activation checkpointing, running routers of this pass again, and gets what they chose before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from routecap.adapter import in_backward

from ._recording import Recording
from ._report import LayerReport, ReplayError, Report

LIVE = -2
"""An id that asks for live routing: of padding, say. Rows of it are not counted as lost."""
_MOST_PASSES = 256  # that are reported each by itself
_COUNTS = ("replayed", "lost", "invalid", "unweighted", "agreeing ids")


@dataclass(frozen=True)
class Router:
    """A router that is bound to its layer."""

    layer: int
    """Index in the decoder."""
    name: str


class Given(NamedTuple):
    """What a forward pass is to be replayed with."""

    rows: dict[int, torch.Tensor]
    """By layer, [T, k] ids."""
    valid: torch.Tensor | None = None
    """[T] rows that are there; None: those whose ids say so."""
    weights: dict[int, torch.Tensor] | None = None
    """By layer, [T, k]: that of each id, NaN where it is missing; None: the routers weigh."""


@dataclass(eq=False)
class Tally:
    """What became of rows, on the device, as `Replay` sums it up."""

    counts: dict[Router, torch.Tensor] = field(default_factory=dict)
    """[5] numbers of rows, of ids the last: _COUNTS."""
    weights: dict[Router, torch.Tensor] = field(default_factory=dict)
    """[2] the sum of the weights that were given, and of the router's own in the same rows."""


@dataclass(eq=False)
class Pass:
    """A forward pass of one model, or of one virtual pipeline stage."""

    routers: frozenset[Router]
    """Those that run in it."""
    rows: dict[int, torch.Tensor] | None
    """By layer, [T, k]: the rows as given, and once its router ran the ids that it chose. None: no
    rows were given, and everything is routed live."""
    valid: torch.Tensor | None
    """[T] rows that are there; None: those whose ids say so."""
    weights: dict[int, torch.Tensor] | None = None
    """By layer, [T, k]: the weights as given, and once its router ran NaN in every row that the
    router is to weigh. None: no weights were given."""
    taken: set[Router] = field(default_factory=set)
    weighed: set[Router] = field(default_factory=set)
    tally: Tally = field(default_factory=Tally)
    again: set[Router] = field(default_factory=set)
    """Routers that ran again in the backward that goes on."""
    chosen: dict[Router, torch.Tensor] | None = None
    """[T, k] what each gave its experts; None if it is not recorded."""


class Replay:
    """Routers of a model that choose the experts they are given. An adapter's `attach` makes it.

    Not for several threads: it belongs to the thread that runs the model, and to autograd's.
    """

    def __init__(self, routers: Sequence[Router], *, agreement: bool) -> None:
        self.routers = tuple(routers)
        """The routers that are replayed, by layer."""
        self.agreement = agreement
        """Whether `report` says how often live routing agrees. It costs a comparison of k x k ids
        for each row."""
        self._given: Given | None = None
        self._running: Pass | None = None
        self._backward: Pass | None = None
        self._recording: Recording | None = None
        self._was_given_rows = False  # ever: only then it matters which pass runs again
        self._passes = 0
        self._tally = Tally()
        self._each: deque[Tally] = deque(maxlen=_MOST_PASSES)  # the same, of one
        self._agreeing_of: dict[Router, int] = {}  # ids in a row, where agreement was counted
        self._undo: list[Callable[[], None]] = []

    # ---- For users

    def report(self, *, reset: bool = False) -> Report:
        """What became of the rows so far. Waits for the device.

        reset: Count from zero afterwards.
        """
        each = tuple(Report(1, self._layers(of)) for of in self._each)
        report = Report(self._passes, self._layers(self._tally), each)
        if reset:
            self._passes = 0
            self._tally = Tally()
            self._each.clear()
            self._agreeing_of.clear()
        return report

    def _layers(self, of: Tally) -> tuple[LayerReport, ...]:
        layers = []
        for router in self.routers:
            counts = of.counts.get(router)
            found = dict.fromkeys(_COUNTS, 0)
            if counts is not None:
                found.update(zip(_COUNTS, counts.tolist()))
            agreeing, replayed = found.pop("agreeing ids"), found["replayed"]
            k = self._agreeing_of.get(router)
            agreement = agreeing / (replayed * k) if k and replayed else None
            given, own = of.weights[router].tolist() if router in of.weights else (0, 0)
            ratio = given / own if own else None
            layers.append(
                LayerReport(
                    router.layer, router.name, **found, agreement=agreement, weight_ratio=ratio
                )
            )
        return tuple(layers)

    def detach(self) -> None:
        """Leave the model as it was. What is still to go backward must be done before."""
        while self._undo:
            self._undo.pop()()

    def __enter__(self) -> Replay:
        return self

    def __exit__(self, *unused: object) -> None:
        self.detach()

    # ---- For adapters

    def begin(self, routers: Iterable[Router]) -> None:
        """A forward pass begins in which these routers run. It takes the rows that are loaded."""
        if in_backward():
            return  # the whole model runs again
        given, self._given = self._given, None
        rows, valid, weights = (None, None, None) if given is None else given
        chosen: dict[Router, torch.Tensor] | None = None if self._recording is None else {}
        self._running = Pass(frozenset(routers), rows, valid, weights, chosen=chosen)
        if rows is None:
            return
        for what, of in (("rows", rows), ("weights", weights)):
            if of is None:
                continue
            if lacking := [each for each in self._running.routers if each.layer not in of]:
                self._running = None
                raise ReplayError(
                    f"there are no {what} for {_names(lacking)}: give those of every layer that"
                    " routes"
                )
        self._was_given_rows = True
        self._passes += 1
        self._each.append(self._running.tally)

    def end(self, output: object) -> None:
        """It ended, with this output."""
        if in_backward() or (ended := self._running) is None:
            return
        self._running = None
        if ended.rows is not None and (left := ended.routers - ended.taken):
            raise ReplayError(
                f"{_names(left)} did not run, or chose its experts in another way: "
                "attach to the model that runs, after whatever changes its routers"
            )
        if ended.weights is not None and (left := ended.routers - ended.weighed):
            raise ReplayError(
                f"{_names(left)} did not give its experts the weights: attach to the model that"
                " runs, after whatever changes its routers"
            )
        if ended.chosen is not None and self._recording is not None:
            if unseen := ended.routers - ended.chosen.keys():
                raise ReplayError(
                    f"{_names(unseen)} was not seen to choose, and cannot be recorded: attach to"
                    " the model that runs, after whatever changes its routers"
                )
            self._recording.add({each.layer: ids for each, ids in ended.chosen.items()})

        def reached(gradient: torch.Tensor) -> None:
            if self._backward is not ended:
                self._backward = ended
                ended.again.clear()
                torch.autograd.Variable._execution_engine.queue_callback(self._left)

        for tensor in _tensors(output):
            if tensor.requires_grad:
                tensor.register_hook(reached)

    def _left(self) -> None:
        self._backward = None

    @property
    def has_rows(self) -> bool:
        """Whether a router that runs now may have to choose what it is given: `choose` knows."""
        if in_backward():
            return self._was_given_rows
        return self._running is not None and self._running.rows is not None

    def choose(self, router: Router, live: torch.Tensor, experts: int) -> torch.Tensor | None:
        """The experts of a router that runs now.

        live: [T, k] what it chose by itself, int64. experts: Ids are below.

        Returns:
            Ids like `live`; None: it is to choose by itself.

        Raises:
            ReplayError: It ran before in this pass, or has other rows or columns; or it runs in
                backward, and of which pass is not known.
        """
        if in_backward():
            return self._chosen_before(router, live)
        now = self._running
        if now is None or now.rows is None:
            return None
        if router in now.taken:
            raise ReplayError(
                f"{router.name} ran twice in one forward pass: give rows for each pass by itself"
            )
        now.taken.add(router)
        given = now.rows[router.layer]
        if given.shape != live.shape:
            raise ReplayError(
                f"{router.name} has {_shape(live)} tokens and experts, the rows for it"
                f" {_shape(given)}: give a row for each token of the batch"
            )
        chosen = self._forced(router, live, given.to(live.device, non_blocking=True), now, experts)
        narrow = experts - 1 <= torch.iinfo(given.dtype).max
        now.rows[router.layer] = chosen.to(given.dtype if narrow else torch.int32)
        return chosen

    @property
    def has_weights(self) -> bool:
        """Whether a router that `choose` has given experts is to be given their weights, too."""
        of = self._backward if in_backward() else self._running
        return of is not None and of.weights is not None

    def weigh(self, router: Router, own: torch.Tensor) -> torch.Tensor:
        """The weights of the experts that `choose` gave a router, in a pass that `has_weights`.

        own: [T, k] with what the router would multiply the output of each; gradients go through
        those alone that stay.
        """
        of = self._backward if in_backward() else self._running
        assert of is not None and of.weights is not None
        weights = of.weights[router.layer]
        missing = weights.isnan()
        if router not in of.weighed:
            of.weighed.add(router)
            both = torch.stack([weights.float(), own.detach().float()])
            sums = both.masked_fill(missing, 0).sum((1, 2))
            for tally in (of.tally, self._tally):
                tally.weights[router] = tally.weights.get(router, 0) + sums
        return torch.where(missing, own, weights.to(own.dtype))

    def chose(self, router: Router, ids: torch.Tensor, experts: int) -> None:
        """A router that runs now gives its experts these: [T, k]. Looked at if it is recorded.

        Raises:
            ReplayError: It ran before in this pass.
        """
        now = self._running
        if now is None or now.chosen is None or in_backward():
            return
        if router in now.chosen:
            raise ReplayError(
                f"{router.name} ran twice in one forward pass: record passes in which it runs once"
            )
        narrow = torch.int16 if experts - 1 <= torch.iinfo(torch.int16).max else torch.int32
        now.chosen[router] = ids.detach().to(narrow, copy=True)

    def _chosen_before(self, router: Router, live: torch.Tensor) -> torch.Tensor | None:
        of = self._backward
        if of is None:
            if not self._was_given_rows:
                return None
            raise ReplayError(
                f"{router.name} runs again in backward, and of which forward pass is not known: its"
                " output had no gradient (is the whole model checkpointed with use_reentrant=True?"
                " Make it use_reentrant=False)"
            )
        if of.rows is None:
            return None
        if router in of.again:
            raise ReplayError(
                f"{router.name} ran again twice in the backward of one forward pass: "
                "leave one of the nested checkpoints out"
            )
        of.again.add(router)
        chosen = of.rows[router.layer]
        if router not in of.taken or chosen.shape != live.shape:
            raise ReplayError(
                f"{router.name} runs in backward as it did not in its forward pass: "
                "give recomputation the inputs of the forward pass"
            )
        return chosen.long()

    def _forced(
        self, router: Router, live: torch.Tensor, given: torch.Tensor, now: Pass, experts: int
    ) -> torch.Tensor:
        """Ids as given, in rows that are there; on the device, without waiting for it."""
        ids = given.long()
        asked = (ids == LIVE).all(-1)
        lost = (ids < 0).any(-1)
        if now.valid is not None:
            lost = lost | ~now.valid.to(ids.device, non_blocking=True).view(-1)
        sorted_ids = ids.sort(-1).values
        wrong = (sorted_ids[:, -1] >= experts) | (sorted_ids[:, 1:] == sorted_ids[:, :-1]).any(-1)
        alive = lost | wrong
        chosen = torch.where(alive[:, None], live, ids)
        unweighted = asked.new_zeros(())
        if now.weights is not None:
            weights = now.weights[router.layer]
            if weights.shape != live.shape or not weights.is_floating_point():
                raise ReplayError(
                    f"the weights for {router.name} are {_shape(weights)} of {weights.dtype}: give"
                    f" {_shape(live)} floats, one for each of its ids"
                )
            weights = weights.detach().to(live.device, non_blocking=True)
            without = weights.isnan().any(-1)
            now.weights[router.layer] = weights.masked_fill((alive | without)[:, None], torch.nan)
            unweighted = (without & ~alive).sum()

        agreeing = asked.new_zeros(())
        if self.agreement:
            self._agreeing_of[router] = ids.shape[1]
            common = (ids[:, :, None] == live[:, None, :]).any(-1).sum(-1)
            agreeing = torch.where(alive, 0, common).sum()
        found = [(~alive).sum(), (lost & ~asked).sum(), (wrong & ~lost).sum(), unweighted, agreeing]
        counts = torch.stack([each.long() for each in found])
        for tally in (now.tally, self._tally):
            tally.counts[router] = tally.counts.get(router, 0) + counts
        return chosen


def _tensors(output: object) -> Iterator[torch.Tensor]:
    """The tensors of a module's output."""
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, Mapping):
        for each in output.values():
            yield from _tensors(each)
    elif isinstance(output, (tuple, list)):
        for each in output:
            yield from _tensors(each)


def _names(routers: Iterable[Router]) -> str:
    return ", ".join(each.name for each in sorted(routers, key=lambda each: each.layer))


def _shape(ids: torch.Tensor) -> str:
    return " x ".join(map(str, ids.shape))

"""Replay of tensors: what a trainer's rank gives its routers for a micro-batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch

from ._passes import Given, Replay
from ._recording import Recording
from ._report import ReplayError


class RankReplay(Replay):
    """Routers of a rank's model, or of its virtual stages. An adapter's `attach` makes it.

    with replay({layer: ids, ...}):             # for each micro-batch, and each virtual stage
        output = model(...)
    output.backward()                           # whenever the schedule has it
    """

    def load(
        self,
        rows: Mapping[int, torch.Tensor] | torch.Tensor,
        layers: Sequence[int] | None = None,
        valid: torch.Tensor | None = None,
        weights: Mapping[int, torch.Tensor] | torch.Tensor | None = None,
    ) -> None:
        """Give the next forward pass its rows.

        Args:
            rows: By index in the decoder, [T, k] ids of any integer type, on any device; T are this
                rank's tokens in the order in which its routers see them. Or all as one [L, T, k].
                Rows of -1 are lost, rows of -2 are wanted live. Layers that this rank does not have
                are not looked at.
            layers: Of [L, T, k]: the index of each layer in the decoder.
            valid: [T] bool: the others are lost, whatever their ids are. Unsigned types have no -1.
            weights: In the form of `rows`, the weight of each id: by what the output of its expert
                is to be multiplied. They are constants: through them the router has no gradient.
                A row with a NaN is weighed by the router. None: all rows are.

        Raises:
            ReplayError: The rows of an earlier call are not taken yet.
        """
        if self._given is not None:
            raise ReplayError(
                "the rows of an earlier load() were not taken: no forward pass ran. Give rows just"
                " before each"
            )
        of_weights = None if weights is None else _by_layer("weights", weights, layers)
        self._given = Given(_by_layer("rows", rows, layers), valid, of_weights)

    @contextmanager
    def __call__(
        self,
        rows: Mapping[int, torch.Tensor] | torch.Tensor,
        layers: Sequence[int] | None = None,
        valid: torch.Tensor | None = None,
        weights: Mapping[int, torch.Tensor] | torch.Tensor | None = None,
    ) -> Iterator[None]:
        """Within it one forward pass is replayed: `load`, and an error if none took the rows.

        Its backward may come later, outside.
        """
        self.load(rows, layers, valid, weights)
        try:
            yield
            if self._given is not None:
                raise ReplayError(
                    "no forward pass took the rows: call the model that is attached inside the with"
                    " block"
                )
        finally:
            self._given = self._running = None

    @contextmanager
    def record(self) -> Iterator[Recording]:
        """Within it what the routers give their experts is recorded, of each forward pass once:
        the trainer's own choices, or in a pass that is replayed what it was given.

        with replay.record() as own:
            loss = model(...)
        loss.backward()                         # runs nothing that is recorded
        own.rows(0)                             # {layer: [T, k]} of the first pass

        Only passes inside are recorded: leave evaluation outside, or record it by itself.

        Raises:
            ReplayError: It records already; a router was not seen to choose; or, at the end, no
                forward pass of the attached model has run.
        """
        if self._recording is not None:
            raise ReplayError("what the routers choose is recorded already: use that recording")
        self._recording = recording = Recording(router.layer for router in self.routers)
        try:
            yield recording
            if not len(recording):
                raise ReplayError(
                    "no forward pass was recorded: call the model that is attached inside the with"
                    " block"
                )
        finally:
            self._recording = None


class StagedReplay(RankReplay):
    """Also of a rank's stages of torch.distributed.pipelining."""

    @contextmanager
    def schedule(
        self,
        stages: Sequence[Any],
        rows: Sequence[Mapping[int, torch.Tensor] | torch.Tensor],
        layers: Sequence[int] | None = None,
        weights: Sequence[Mapping[int, torch.Tensor] | torch.Tensor] | None = None,
    ) -> Iterator[None]:
        """Within it a schedule of torch.distributed.pipelining makes one step, and micro-batch n is
        replayed with rows[n] in each of this rank's stages, whatever order they run in.

        stages: Its PipelineStages. rows, layers, weights: For each micro-batch what `load` takes.

        Raises:
            ReplayError: A stage did not run each micro-batch once.
            ValueError: There are weights of more or fewer micro-batches than rows.
        """
        if weights is not None and len(weights) != len(rows):
            raise ValueError(
                f"there are rows of {len(rows)} micro-batches, and weights of {len(weights)}: give"
                " both of each"
            )
        ran: Counter[tuple[int, int]] = Counter()

        def forward(number: int, run: Any, micro_batch: int, *args: Any, **kwargs: object) -> Any:
            ran[number, micro_batch] += 1
            if not 0 <= micro_batch < len(rows):
                raise ReplayError(
                    f"there are rows of {len(rows)} micro-batches, none of {micro_batch}"
                )
            of_weights = None if weights is None else weights[micro_batch]
            with self(rows[micro_batch], layers, weights=of_weights):
                return run(micro_batch, *args, **kwargs)

        with ExitStack() as undo:
            for number, stage in enumerate(stages):
                run = stage.forward_one_chunk
                stage.forward_one_chunk = partial(forward, number, run)
                undo.callback(delattr, stage, "forward_one_chunk")
            yield
        expected = {(number, each) for number in range(len(stages)) for each in range(len(rows))}
        if wrong := sorted(each for each in expected | ran.keys() if ran[each] != 1):
            number, micro_batch = wrong[0]
            raise ReplayError(
                f"stage {number} of this rank ran micro-batch {micro_batch} {ran[wrong[0]]} times: "
                "give rows of each micro-batch that the schedule runs, and leave all else outside"
            )


def _by_layer(
    what: str, given: Mapping[int, torch.Tensor] | torch.Tensor, layers: Sequence[int] | None
) -> dict[int, torch.Tensor]:
    """[L, T, k] as {layer: [T, k]}."""
    if not isinstance(given, torch.Tensor):
        return dict(given)
    if layers is None or len(layers) != len(given):
        raise ValueError(
            f"{what} of {len(given)} layers need as many layers, not {layers}: give the index of"
            " each"
        )
    return dict(zip(layers, given))

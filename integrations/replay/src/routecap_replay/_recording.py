"""What the routers of a rank gave their experts: a trainer's own choices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

from ._report import ReplayError


class Recording:
    """The experts of every token, forward pass by forward pass. `RankReplay.record` gives it.

    A forward pass is one of a micro-batch. What activation checkpointing runs again in backward is
    the same pass, and is not recorded again. Len is the number of micro-batches.
    """

    def __init__(self, layers: Iterable[int]) -> None:
        self.layers = sorted(layers)
        """Indices in the decoder: those of this rank that route."""
        self._rows: dict[int, list[torch.Tensor]] = {layer: [] for layer in self.layers}

    def add(self, rows: dict[int, torch.Tensor]) -> None:
        """What a forward pass of the model, or of one virtual stage, has chosen."""
        for layer, ids in rows.items():
            self._rows[layer].append(ids)

    def __len__(self) -> int:
        return max(map(len, self._rows.values()), default=0)

    def rows(self, number: int) -> dict[int, torch.Tensor]:
        """Of one micro-batch, by layer: [T, k] ids, where the routers are; T are this rank's tokens
        in the order in which its routers see them. Replay takes rows in the same form.

        number: Counts the forward passes from 0 on, of each virtual stage by itself.

        Raises:
            ReplayError: A stage had no such pass.
        """
        if lacking := [layer for layer in self.layers if not -1 < number < len(self._rows[layer])]:
            raise ReplayError(
                f"layer {lacking[0]} ran {len(self._rows[lacking[0]])} times while it was recorded,"
                f" so there is no micro-batch {number}: record whole steps"
            )
        return {layer: self._rows[layer][number] for layer in self.layers}

    def ids(
        self, number: int, layers: Sequence[int] | None = None, dtype: DTypeLike = np.int64
    ) -> NDArray[Any]:
        """Of one micro-batch [layers, T, k] in host memory, as `routecap.Plan.scatter` takes it: the
        plan of this rank and micro-batch makes a Routing for each sequence of it.

        layers: Indices in the decoder, in this order. Default: all of this rank.
        """
        rows = self.rows(number)
        wanted = self.layers if layers is None else layers
        if missing := [layer for layer in wanted if layer not in rows]:
            raise ReplayError(
                f"layer {missing[0]} does not route on this rank: give some of {self.layers}"
            )
        return np.stack([rows[layer].cpu().numpy() for layer in wanted]).astype(dtype)

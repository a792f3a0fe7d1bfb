"""How often each expert of each layer was chosen."""

import json
import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._constants import Phase, Status
from ._errors import error


@dataclass(frozen=True, eq=False)
class Load:
    """A reading of Capturer.load, or the window between two of them."""

    counts: NDArray[np.uint64]
    """[2, layers, experts] by Phase: how often each expert was chosen. Beyond the experts of a
    layer they are 0."""
    steps: int
    """Steps that landed with rows."""
    first_step: int
    """The first of them; 0: none. Of a window, one past the last of the reading before."""
    last_step: int
    """The last of them."""
    rows_prefill: int
    """Rows that got their first valid cell."""
    rows_decode: int
    """Likewise."""
    layer_map: NDArray[Any]
    """[layers] index of each layer in the decoder."""
    layer_experts: NDArray[Any]
    """[layers] experts of each layer."""
    layer_visit: NDArray[Any]
    """[layers] how often a looped decoder ran the layer before."""

    @property
    def prefill(self) -> NDArray[np.uint64]:
        """[layers, experts], a view of counts."""
        prefill: NDArray[np.uint64] = self.counts[Phase.PREFILL]
        return prefill

    @property
    def decode(self) -> NDArray[np.uint64]:
        """[layers, experts], a view of counts."""
        decode: NDArray[np.uint64] = self.counts[Phase.DECODE]
        return decode

    @property
    def total(self) -> NDArray[np.uint64]:
        """[layers, experts], of both phases."""
        total: NDArray[np.uint64] = self.counts.sum(axis=0, dtype=np.uint64)
        return total

    def since(self, earlier: "Load") -> "Load":
        """What was counted after an earlier reading of the same capturer and tag: a window."""
        if self.counts.shape != earlier.counts.shape or (self.counts < earlier.counts).any():
            raise error(
                Status.ERR_ARGUMENT,
                "earlier is of another capturer or tag, or later: give an earlier reading of this"
                " load",
            )
        steps = self.steps - earlier.steps
        return replace(
            self,
            counts=self.counts - earlier.counts,
            steps=steps,
            first_step=(
                earlier.last_step + 1
                if steps and earlier.steps
                else self.first_step
                if steps
                else 0
            ),
            last_step=self.last_step if steps else 0,
            rows_prefill=self.rows_prefill - earlier.rows_prefill,
            rows_decode=self.rows_decode - earlier.rows_decode,
        )

    def _over_mean(self, phase: Phase | None) -> NDArray[np.float64]:
        """[layers, experts] each expert over the mean of its layer, 0 where none was chosen."""
        counts = self.total if phase is None else self.counts[phase]
        over = np.zeros(counts.shape)
        if counts.size:
            mean = counts.sum(axis=1, keepdims=True) / self.layer_experts[:, None]
            np.divide(counts, mean, out=over, where=mean > 0)
        return over

    def imbalance(self, phase: Phase | None = None) -> NDArray[np.float64]:
        """[layers] the most chosen expert over the mean of the layer's experts: 1 where all are
        chosen alike, NaN where none was."""
        over = self._over_mean(phase)
        highest = over.max(axis=1, initial=0)
        return np.where(highest > 0, highest, np.nan)

    def hottest(self, n: int = 8, phase: Phase | None = None) -> list[tuple[int, int, float]]:
        """The n experts most above their layer's mean: (index of the layer, expert, over the mean),
        the highest first."""
        over = self._over_mean(phase)
        flat = np.argsort(over, axis=None, kind="stable")[::-1][:n]
        places = np.unravel_index(flat, over.shape)
        return [(int(l), int(e), float(over[l, e])) for l, e in zip(*places) if over[l, e] > 0]

    def logical_count(self, decoder_layers: int | None = None) -> NDArray[np.uint64]:
        """[decoder_layers, experts], of both phases, as balancers take it: a row for each layer of
        the decoder, 0 for those that were not captured; visits of one layer are one row. Default: up
        to the last captured one."""
        last = int(self.layer_map.max(initial=-1)) + 1
        if decoder_layers is not None and decoder_layers < last:
            raise error(
                Status.ERR_ARGUMENT,
                f"decoder_layers is {decoder_layers}, and layer {last - 1} was captured: give "
                "the model's number of layers, or none",
            )
        counts = np.zeros((decoder_layers or last, self.counts.shape[2]), np.uint64)
        np.add.at(counts, self.layer_map, self.total)
        return counts

    def save(self, path: str | os.PathLike[str], decoder_layers: int | None = None) -> None:
        """Write logical_count for a balancer, by the ending of the path:

        .json: {"logical_count": [1, decoder_layers, experts]}, which SGLang's
            --init-expert-location reads; decoder_layers is the model's num_hidden_layers.
        .npy: int64 [layers, experts] of the captured layers, the weights that rebalance_experts
            of DeepSeek's EPLB, and of vLLM's policy, takes. No vLLM up to 0.33 reads a file itself.
        """
        ending = os.path.splitext(path)[1]
        if ending == ".json":
            with open(path, "w", encoding="utf-8") as file:
                json.dump({"logical_count": [self.logical_count(decoder_layers).tolist()]}, file)
        elif ending == ".npy":
            np.save(path, self.total.astype(np.int64))
        else:
            raise error(Status.ERR_ARGUMENT, f"{path}: name a file that ends in .json or .npy")

    def __repr__(self) -> str:
        layers, experts = self.counts.shape[1:]
        return (
            f"<routecap.Load {layers} layers, {experts} experts, {self.steps} steps, "
            f"{self.rows_prefill} rows of prefill and {self.rows_decode} of decode>"
        )

"""What a replay says of itself."""

from __future__ import annotations

from dataclasses import dataclass


class ReplayError(RuntimeError):
    """A router cannot be replayed, or did not take its rows exactly once; the text names it."""


@dataclass(frozen=True)
class LayerReport:
    """What became of the rows of one layer's router, in all forward passes with rows."""

    layer: int
    """Index in the decoder."""
    name: str
    """Of the router in the model."""
    replayed: int
    """Rows that got the experts they were given."""
    lost: int
    """Rows of which there was nothing (-1): routed live."""
    invalid: int
    """Rows that were no choice of k experts (one twice, as in rows of zeros, or one that the layer
    does not have): routed live. Anything but 0 is a defect on the way from the engine."""
    unweighted: int
    """Of the replayed rows those that the router weighed, because a weight of theirs was missing,
    in passes that were given weights."""
    agreement: float | None
    """Share of the replayed ids that the live router chose, too; None if it was not asked for, or
    nothing was replayed. Below 0.8, look for rows of other tokens: `routecap doctor`."""
    weight_ratio: float | None = None
    """The sum of the weights that were given over that of the router's own for the same experts;
    None if none were. Near 1, unless one of the two has a factor of the model in it, and the other
    has not: then scale what you give."""


@dataclass(frozen=True)
class Report:
    """What `report` of a replay returns. Sums of whole rows, over its layers."""

    passes: int
    """Forward passes that were given rows."""
    layers: tuple[LayerReport, ...]
    each: tuple[Report, ...] = ()
    """Of each of the last passes (256 at most) by itself, the newest last: rows of other sequences
    show in the agreement of their pass, where the sum over all may hide it."""

    @property
    def replayed(self) -> int:
        return sum(layer.replayed for layer in self.layers)

    @property
    def agreement(self) -> float | None:
        """That of all layers: a share of all replayed ids."""
        told = [(e.agreement, e.replayed) for e in self.layers if e.agreement is not None]
        rows = sum(replayed for _, replayed in told)
        return sum(agreement * replayed for agreement, replayed in told) / rows if rows else None

    @property
    def weight_ratio(self) -> float | None:
        """That of all layers."""
        told = [
            (each.weight_ratio, each.replayed - each.unweighted)
            for each in self.layers
            if each.weight_ratio is not None
        ]
        rows = sum(weighted for _, weighted in told)
        return sum(ratio * weighted for ratio, weighted in told) / rows if rows else None

    @property
    def lost(self) -> int:
        return sum(layer.lost for layer in self.layers)

    @property
    def invalid(self) -> int:
        return sum(layer.invalid for layer in self.layers)

    @property
    def unweighted(self) -> int:
        return sum(layer.unweighted for layer in self.layers)

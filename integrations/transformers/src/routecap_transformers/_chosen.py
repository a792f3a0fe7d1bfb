"""What a tap gives in a forward pass, as it is recorded."""

from __future__ import annotations

from collections import Counter

import torch
from torch import nn

from ._taps import Tap


class Chosen:
    """Which taps have chosen in a forward pass, by their numbers. Those of one layer are the visits
    of its module, one behind another."""

    def __init__(self, taps: list[Tap]) -> None:
        self._taps = taps
        self._visits = Counter(tap.layer for tap in taps)
        self._numbers: set[int] = set()

    def begin(self) -> None:
        """A forward pass begins."""
        self._numbers.clear()

    def add(self, first: int) -> int:
        """The module whose first tap has this number runs: the number of the tap whose turn it is."""
        tap = self._taps[first]
        visits = self._visits[tap.layer]
        number = first + sum(each in self._numbers for each in range(first, first + visits))
        if number == first + visits:
            often = "once" if visits == 1 else f"{visits} times"
            raise ValueError(
                f"{tap.name} runs more than {often} in one forward pass: the model runs its layers in"
                " a loop, or two of them have the same experts, and a tap has one row of a token."
                " Give attach() a tap for each visit of a layer, or the taps of layers that run once"
            )
        self._numbers.add(number)
        return number

    def end(self) -> None:
        """It ends. Of a module that ran, all visits are there: a visit that was not seen would make
        others of those behind it."""
        for first, tap in enumerate(self._taps):
            visits = self._visits[tap.layer]
            if tap.visit or visits == 1:
                continue
            seen = sum(each in self._numbers for each in range(first, first + visits))
            if seen not in (0, visits):
                raise ValueError(
                    f"{tap.name} has taps of {visits} visits and ran {seen} times in one forward"
                    " pass: nothing says which of its visits these are. Attach before the model is"
                    " compiled, or give attach() a tap for each time that it runs"
                )

    def silent_layers(self) -> list[int]:
        """Those that have not chosen."""
        return [tap.layer for each, tap in enumerate(self._taps) if each not in self._numbers]


def device_of(module: nn.Module) -> torch.device:
    tensor = next(module.parameters(), None)
    return torch.device("meta") if tensor is None else tensor.device


def expect_weights(taps: list[Tap]) -> None:
    """Every tap has weights."""
    without = [tap for tap in taps if tap.weights is None or tap.router is not None]
    if without:
        names = ", ".join(f"{tap.name} ({type(tap.module).__name__})" for tap in without)
        raise ValueError(
            f"weights= of attach() is set, and nothing gives those of {names}: leave it out, or give"
            " taps whose `ids` are ids and not logits, with `weights` of your own"
        )


def expect_ids(tap: Tap, ids: torch.Tensor, rows: int, device: torch.device) -> None:
    """They are of all rows of a forward pass, on the layer's device."""
    if not isinstance(ids, torch.Tensor):
        raise TypeError(
            f"the tap of {tap.name} gives {type(ids).__name__}: a tensor is expected, of ids"
            " [rows, k], or of logits [rows, experts] if the tap has a router"
        )
    if ids.device != device and device.type != "meta":
        raise RuntimeError(
            f"{tap.name} was on {device} when the capture was attached, and is on {ids.device}:"
            " detach, move, attach again"
        )
    if ids.ndim != 2 or len(ids) != rows:
        raise ValueError(
            f"{tap.name} is given ids {list(ids.shape)} in a forward pass of {rows} rows:"
            " it sees a part of the tokens, and nothing says which. Give attach() a tap of your"
            " own on the module that sees them all, whose ids are [rows, k]"
        )
    if tap.router is None and ids.shape[1] != tap.k:
        raise ValueError(
            f"{tap.name} is given {ids.shape[1]} experts per token, {tap.k} were expected: give"
            " attach() the tap with its k"
        )

"""Two banks of experts in one layer, each for tokens of another kind: what they are given, put
together.

A block of ernie4_5_vl_moe has the banks text_moe and vision_moe, with a router each. Of the rows of
a forward pass it hands those of images, which moe_mm_token_type_ids says, to the second and the
others to the first, in their order; all of them to the first if no row is of an image.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

NAMES = ("text_moe", "vision_moe")
KINDS = "moe_mm_token_type_ids"

Given = Callable[[tuple[Any, ...], dict[str, Any], Any], torch.Tensor]


class Bank(NamedTuple):
    name: str
    experts: nn.Module
    size: int
    ids: Given
    """From arguments, keyword arguments and output (None) of a call of the experts to ids [rows, k],
    those of this bank."""
    weights: Given


class Banks:
    """The banks of a layer. The ids of the second are behind those of the first."""

    def __init__(self, name: str, place: int, banks: Sequence[Bank]) -> None:
        """
        Args:
            name: Of the block in the model.
            place: Of KINDS among the arguments of its forward.
        """
        self._name, self._place = name, place
        self._text, self._vision = banks
        self._given: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}  # in this run, by bank
        self._rows: torch.Tensor | None = None  # of this run, those of the first bank first

    def follow(self, block: nn.Module) -> list[RemovableHandle]:
        """Hooks that see what each bank is given while the block runs."""
        begin = block.register_forward_pre_hook(self._begin)
        return [begin] + [
            bank.experts.register_forward_pre_hook(partial(self._see, bank), with_kwargs=True)
            for bank in (self._text, self._vision)
        ]

    def _begin(self, *unused: object) -> None:
        self._given, self._rows = {}, None

    def _see(
        self, bank: Bank, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        given = bank.ids(args, kwargs, None), bank.weights(args, kwargs, None)
        ids, weights = (each.detach().clone() for each in given)  # experts may write over them
        self._given[bank.name] = ids, weights

    def ids(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> torch.Tensor:
        """Of a call of the block to ids [rows, k]."""
        text, vision = self._seen()
        if vision is None:
            return text[0]
        return self._in_order(text[0], vision[0] + self._text.size, args, kwargs)

    def weights(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> torch.Tensor:
        """The same of the weights."""
        text, vision = self._seen()
        return text[1] if vision is None else self._in_order(text[1], vision[1], args, kwargs)

    def _seen(
        self,
    ) -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor] | None]:
        if self._text.name not in self._given:
            raise ValueError(
                f"{self._text.name} was not seen to choose when {self._name} ran: it was compiled"
                " before the capture was attached, or the block hands out its tokens in another way."
                " Attach before the model is compiled, or give attach() taps of your own"
            )
        return self._given[self._text.name], self._given.get(self._vision.name)

    def _in_order(
        self,
        text: torch.Tensor,
        vision: torch.Tensor,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> torch.Tensor:
        """[rows, k] in the order of the forward pass."""
        if self._rows is None:  # the weights of a run come behind its ids
            kinds = args[self._place] if len(args) > self._place else kwargs.get(KINDS)
            self._rows = self._order(kinds, len(text), len(vision), text.device)
        both = torch.cat([text, vision])
        return torch.empty_like(both).index_copy_(0, self._rows, both)

    def _order(
        self, kinds: torch.Tensor | None, text: int, vision: int, device: torch.device
    ) -> torch.Tensor:
        """The rows of the first bank, and behind them those of the second. Waits for the device."""
        of_image = None if kinds is None else kinds.reshape(-1).to(device) != 0
        images = 0 if of_image is None else int(of_image.sum())
        if of_image is None or len(of_image) != text + vision or images != vision:
            said = "no" if of_image is None else f"{images} of {len(of_image)}"
            raise ValueError(
                f"{self._text.name} was given {text} tokens and {self._vision.name}"
                f" {vision}, and {KINDS} of {self._name} says that {said} tokens are of images:"
                " nothing says which tokens each of them had. Give attach() taps of your own"
            )
        return of_image.int().argsort(stable=True)

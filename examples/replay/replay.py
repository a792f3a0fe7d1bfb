"""Runs a model of Hugging Face transformers with experts that were captured earlier: routing replay.

    with replay(model, routings):                              # one Routing for each sequence of the batch
        loss = objective(model(input_ids=..., attention_mask=...))
        loss.backward()

An engine that generates and a trainer that learns from what was generated compute the same numbers in another order or precision, and where two
experts are nearly even the trainer's routers choose others. The policy that is trained is then not the one that generated. Replay gives every row
the experts that it was generated with; cells that the routing lacks (a prefix that was not captured, the last token, padding) are routed as usual.

Only the choice is replayed. The weights of the chosen experts are made by the model's own router out of its own scores, gathered at the captured ids
and normalised as its family does, so gradients reach the router as they do without replay: what is called routing replay (R3) in reinforcement
learning. It works by standing in for `torch.topk` inside each block that routes, where it chooses k of the experts: no family needs code of its own.
One that masks groups of experts before it weighs the rest (deepseek_v2) gives a captured expert whose group it has masked the weight zero.

With activation checkpointing routers run again in backward: do backward inside, and one forward at a time.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

import routecap
import routecap.transformers
from routecap.transformers import Tap


@contextmanager
def replay(model: nn.Module, routings: Sequence[routecap.Routing]) -> Iterator[None]:
    """Forwards of `model` within choose these experts where the routings have a valid cell.

    The routings belong to the sequences of the forward in their order: the batch's rows, and in each of them those that are packed, which begin where
    position_ids is 0. A routing's position i is the i-th token of its sequence, padding (attention_mask 0, on either side) not counted. Layers are
    matched by their index in the decoder.

    Raises:
        ValueError: k, the layers or their experts are not the model's; on a forward, the sequences are not as many, one is shorter than its routing,
            or there is a cache with tokens before them.
        RuntimeError: on a forward, a layer chose its experts without torch.topk.
    """
    taps = routecap.transformers.find(model)
    captured = _Captured(taps, routings)
    with ExitStack() as undo:
        decoder = model.get_submodule(re.split(r"\.?\w+\.\d+\.", taps[0].name, maxsplit=1)[0])
        undo.callback(decoder.register_forward_pre_hook(captured.place, with_kwargs=True).remove)
        for index, tap in enumerate(taps):
            undo.enter_context(_forced(model.get_submodule(tap.name.rpartition(".")[0]), _Choice(captured, index, tap)))
        yield


class _Captured:
    """The captured ids, and where those of the current forward's rows are among them."""

    def __init__(self, taps: list[Tap], routings: Sequence[routecap.Routing]) -> None:
        self.first = np.array([routing.first for routing in routings], np.int64)
        self.rows = np.array([routing.rows for routing in routings], np.int64)
        self.offset = np.cumsum(self.rows) - self.rows
        # [all rows and one without a valid cell, layers, k]; -1 where a cell is missing
        ids = np.full((int(self.rows.sum()) + 1, len(taps), taps[0].k), -1, np.int16)
        layers = {tap.layer: index for index, tap in enumerate(taps)}
        for routing, offset in zip(routings, self.offset):
            if routing.k != taps[0].k:
                raise ValueError(f"a routing has {routing.k} experts per token, the model {taps[0].k}")
            copy = np.empty((routing.rows, routing.layers, routing.k), np.int16)
            routing.copy_to(copy)
            for source, (layer, experts) in enumerate(zip(routing.layer_map.tolist(), routing.layer_experts.tolist())):
                if layer not in layers or experts != taps[layers[layer]].experts:
                    raise ValueError(f"a routing has {experts} experts in layer {layer}, the model has not")
                ids[offset : offset + routing.rows, layers[layer]] = copy[:, source]
        self.table = torch.from_numpy(ids)
        self.ids = self.table[:0]

    def place(self, decoder: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before the decoder's forward: the ids of its rows, [batch * length, layers, k]."""
        cache = kwargs.get("past_key_values")
        if cache is not None and cache.get_seq_length():
            raise ValueError("replay is for whole sequences: this forward continues a cache")
        given = next(tensor for tensor in (kwargs.get("input_ids"), kwargs.get("inputs_embeds"), *args) if tensor is not None)
        mask, positions = kwargs.get("attention_mask"), kwargs.get("position_ids")
        live = np.ones(given.shape[:2], bool) if mask is None else _matrix(mask, given).astype(bool)
        positions = np.cumsum(live, axis=1) - 1 if positions is None else _matrix(positions, given)

        begins = live & (positions == 0)
        sequence = np.cumsum(begins).reshape(begins.shape) - 1
        if begins.sum() != len(self.rows) or (live & (np.cumsum(begins, axis=1) == 0)).any():
            raise ValueError(f"{len(self.rows)} routings for {begins.sum()} sequences that begin at position 0")
        if (np.bincount(sequence[live], minlength=len(self.rows)) < self.first + self.rows).any():
            raise ValueError("a routing has more rows than its sequence has tokens")
        row = positions - self.first[sequence]
        known = live & (row >= 0) & (row < self.rows[sequence])
        index = np.where(known, self.offset[sequence] + row, len(self.table) - 1)
        self.table = self.table.to(given.device)
        self.ids = self.table[torch.from_numpy(index.ravel()).to(given.device)]


def _matrix(tensor: torch.Tensor, like: torch.Tensor) -> np.ndarray:
    """attention_mask or position_ids as an array [batch, length]."""
    if tensor.dim() != 2:
        raise ValueError(f"attention_mask and position_ids must be [batch, length], not {list(tensor.shape)}")
    return tensor.expand(like.shape[:2]).cpu().numpy()


class _Choice(TorchFunctionMode):
    """Within it the call of torch.topk that chooses this layer's experts gives the captured ones, and their scores."""

    def __init__(self, captured: _Captured, index: int, tap: Tap) -> None:
        super().__init__()
        self.captured, self.index, self.tap = captured, index, tap
        self.made = False

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func not in (torch.topk, torch.Tensor.topk):
            return result
        scores = args[0] if args else kwargs["input"]
        captured = self.captured.ids[:, self.index].long()
        if scores.shape[-1] != self.tap.experts or result.indices.numel() != captured.numel():
            return result  # of groups, say
        self.made = True
        captured = captured.view_as(result.indices)
        ids = torch.where(captured >= 0, captured, result.indices)
        return torch.return_types.topk((scores.gather(-1, ids), ids))


@contextmanager
def _forced(block: nn.Module, choice: _Choice) -> Iterator[None]:
    """The block's forward runs with this choice."""
    forward, own = block.forward, "forward" in vars(block)

    def replayed(*args: Any, **kwargs: Any) -> Any:
        choice.made = False
        with choice:
            output = forward(*args, **kwargs)
        if not choice.made:
            raise RuntimeError(f"{choice.tap.name}: its experts are not chosen by torch.topk, and cannot be replayed")
        return output

    block.forward = replayed
    try:
        yield
    finally:
        if own:
            block.forward = forward
        else:
            del block.forward

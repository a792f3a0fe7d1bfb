"""Replay in models of Hugging Face transformers, of every family that `routecap_transformers`
knows.

    replay = routecap_replay.transformers.attach(model)
    with replay(routings):                          # one Routing for each sequence of the batch
        loss = objective(model(input_ids=..., attention_mask=...))
    loss.backward()
    print(replay.report())

`with replay(routings, weights=True)` gives the experts the captured weights, too: constants, in
the place of what the router has computed.

It stands in for `torch.topk` inside each block that routes, where that chooses k of the experts: no
family needs code of its own. One that masks groups of experts before it weighs the rest
(deepseek_v2) gives a captured expert whose group it has masked the weight zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from routecap import Routing
from routecap.adapter import experts_per_token, in_backward

from routecap_transformers import Tap, find
from routecap_transformers.adapter import (
    KNOWN,
    cached_columns,
    expect_known,
    expect_model,
    inputs_of,
    runs_of,
    stack_of,
)
from ._passes import LIVE, Given, Replay, Router
from ._report import ReplayError
from ._topk import Choice, replace_forward

__all__ = ["ModelReplay", "attach"]


def attach(
    model: nn.Module, *, agreement: bool = False, unchecked: bool | None = None
) -> ModelReplay:
    """Make a model's routers ready for replay. Without rows they choose as before.

    Args:
        agreement: Whether its report says how often live routing agrees.
        unchecked: As for `routecap_transformers.attach`.

    Raises:
        ValueError: The model has no experts, or routes in a way that is not known or not replayed,
            or this release of transformers is not known.
    """
    expect_model("attach", model)
    expect_known(model, unchecked)
    return ModelReplay(model, find(model), agreement=agreement)


class ModelReplay(Replay):
    """What `attach` returns."""

    def __init__(self, model: nn.Module, taps: list[Tap], *, agreement: bool) -> None:
        super().__init__([Router(tap.layer, tap.name) for tap in taps], agreement=agreement)
        if several := sorted({tap.k for tap in taps[1:]} - {taps[0].k}):
            odd = next(tap for tap in taps if tap.k in several)
            raise ValueError(
                f"{odd.name} gives a token {odd.k} experts and {taps[0].name} {taps[0].k}: layers"
                " with a k of their own are captured, and not replayed"
            )
        for tap in taps:
            if tap.visit or tap.banks is not None:
                runs = sum(tap.module is each.module for each in taps)
                why = (
                    f"runs {runs} times"
                    if tap.visit
                    else "gives each bank of its experts some rows"
                )
                raise ValueError(
                    f"{tap.name} {why} in a forward pass: such layers are captured, and not replayed."
                    " Train this model without replay"
                )
        self._taps = taps
        self._sequences: _Sequences | None = None
        self._tried = False
        decoder = model.get_submodule(stack_of(taps[0].name))
        self._undo += [
            decoder.register_forward_pre_hook(self._before, with_kwargs=True).remove,
            decoder.register_forward_hook(lambda module, args, output: self.end(output)).remove,
        ]
        for router, tap in zip(self.routers, taps):
            block = model.get_submodule(tap.name.rpartition(".")[0])
            choice = Choice(self, router, tap.experts, tap.k)
            self._undo.append(replace_forward(block, choice))
            if _takes_weights(tap):
                hook = tap.module.register_forward_pre_hook(
                    partial(self._weigh, tap, choice), with_kwargs=True, prepend=True
                )
                self._undo.append(hook.remove)

    def _weigh(
        self,
        tap: Tap,
        choice: Choice,
        experts: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """The experts of a layer run: they get the weights of the replay in the place of others."""
        if choice.ids is None or not self.has_weights:
            return None
        assert tap.weights is not None
        own = tap.weights(args, kwargs, None)
        weights = choice.weigh(tap.ids(args, kwargs, None), own)
        given = [weights if each is own else each for each in args]
        named = {name: weights if each is own else each for name, each in kwargs.items()}
        return tuple(given), named

    @contextmanager
    def __call__(
        self, routings: Sequence[Routing], *, weights: bool = False, scale: float = 1.0
    ) -> Iterator[None]:
        """Forwards within it choose the experts of the routings, in cells that these have.

        The routings belong to the sequences of each forward in their order: the batch's rows, and
        in each of them those that are packed, which begin where position_ids is 0. A routing's
        position i is the i-th token of its sequence; padding (attention_mask 0, on either side) is
        not counted. Padding and the last token are routed live.

        Args:
            weights: Multiply the output of each expert by its captured weight, too, and not by the
                router's own. Captured weights are constants: through them the router has no
                gradient. A cell that lacks them is weighed by the router.
            scale: By what the captured weights are multiplied: the factor by which the engine
                multiplied the sum of the experts, and this model multiplies the weights.

        Raises:
            ValueError: k, the layers or their experts are not the model's; weights are wanted, and a
                routing has none, or a layer has no place for them; on a forward, the sequences are
                not as many, one is shorter than its routing, or there is a cache with tokens before
                them.
            ReplayError: On a forward, a layer did not choose its experts by torch.topk, once. At the
                end, no forward was replayed.
            TypeError: These are no routings.
        """
        given = _routings(routings)
        if weights:
            _expect_weights(self._taps, given)
        elif scale != 1:
            raise ValueError(f"scale={scale} is of weights that are replayed: give weights=True")
        self._sequences = _Sequences(self._taps, given, scale if weights else None)
        self._tried = False
        try:
            yield
            if not self._tried:
                raise ReplayError(
                    "no forward pass was replayed inside the with block: call the model that is"
                    " attached there, and not what was compiled before"
                )
        finally:
            self._sequences = self._running = self._given = None

    def _before(self, decoder: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._sequences is not None and not in_backward():
            self._tried = True  # what is refused has said so
            self._given = self._sequences.place(decoder, args, kwargs)
        self.begin(self.routers)


def _routings(given: object) -> list[Routing]:
    """Routings as they were given, or what to give in their place."""
    if isinstance(given, Routing):
        raise TypeError("replay() takes a list of routings, one for each sequence: give [routing]")
    if isinstance(given, (str, bytes, Mapping)) or not isinstance(given, Iterable):
        raise TypeError(
            f"a list of routings is expected, one for each sequence, not {type(given).__name__}:"
            f" {_INSTEAD.get(type(given).__name__, _INSTEAD['dict'])}"
        )
    routings = list(given)
    for each in routings:
        if not isinstance(each, Routing):
            kind = type(each).__name__
            raise TypeError(
                f"a list of routings is expected, and one of these is {kind}:"
                f" {_INSTEAD.get(kind, 'give what capture.take() returned')}"
            )
    return routings


def _takes_weights(tap: Tap) -> bool:
    """Whether its experts are given the weights as an argument, in the place of which others go.
    Inkling's are of one softmax with those of its shared experts, which would stay live."""
    alone = type(tap.module).__name__ != "InklingExperts"
    return tap.before and tap.weights is not None and alone


def _expect_weights(taps: list[Tap], routings: Sequence[Routing]) -> None:
    """Raises:
    ValueError: A routing has no weights, or a layer has no place for them.
    """
    for tap in taps:
        if not _takes_weights(tap):
            raise ValueError(
                f"{tap.name} ({type(tap.module).__name__}) has no place for weights of each"
                " expert: leave weights out"
            )
    for number, routing in enumerate(routings):
        if routing.weights_dtype is None and routing.rows:
            raise ValueError(
                f"routing {number} has no weights: capture it with weights, or leave weights out"
            )


_INSTEAD = {
    "Tensor": "make one by routecap.Routing.from_arrays(ids.cpu().numpy(), experts=...)",
    "ndarray": "make one by routecap.Routing.from_arrays(ids, experts=...)",
    "list": "make one by routecap.Routing.from_arrays(numpy.array(ids), experts=...)",
    "bytes": "read it by routecap.Routing.deserialize(...)",
    "str": "read a file by routecap.load(...)",
    "dict": "take its routing out by routecap.wire_decode(...)",
}


class _Sequences:
    """The captured ids of the sequences of a batch, and their weights by a scale, if there is one."""

    def __init__(self, taps: list[Tap], routings: Sequence[Routing], scale: float | None) -> None:
        self.first = np.array([routing.first for routing in routings], np.int64)
        self.rows = np.array([routing.rows for routing in routings], np.int64)
        self.offset = np.cumsum(self.rows) - self.rows
        self.layers = [tap.layer for tap in taps]
        # [layers, all rows, a lost one, and one that is to be live, k]; -1 where a cell is missing
        ids = np.full((len(taps), int(self.rows.sum()) + 2, taps[0].k), -1, np.int16)
        ids[:, -1] = LIVE
        weights = None if scale is None else np.full(ids.shape, np.nan, np.float32)
        at = {tap.layer: index for index, tap in enumerate(taps)}
        for routing, offset in zip(routings, self.offset):
            if (routing.layer_min_k != taps[0].k).any() or routing.layer_visit.any():
                chosen = experts_per_token(routing.layer_k, routing.layer_min_k)
                raise ValueError(
                    f"a routing has {chosen} experts per token, the model {taps[0].k}, in one run of"
                    " each layer: give routings of this model"
                )
            copy = np.empty((routing.rows, routing.layers, routing.k), np.int16)
            routing.copy_to(copy)
            described = zip(routing.layer_map.tolist(), routing.layer_experts.tolist())
            for source, (layer, experts) in enumerate(described):
                if layer not in at or experts != taps[at[layer]].experts:
                    raise ValueError(
                        f"a routing has {experts} experts in layer {layer}, the model has not: give"
                        " routings of this model"
                    )
                ids[at[layer], offset : offset + routing.rows] = copy[:, source]
            if weights is not None and routing.rows:
                of_routing = routing.weights().swapaxes(0, 1)
                places = [at[layer] for layer in routing.layer_map.tolist()]
                weights[places, offset : offset + routing.rows] = of_routing * np.float32(scale)
        self.tables = [torch.from_numpy(each) for each in (ids, weights) if each is not None]

    def place(self, decoder: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Given:
        """Those of a forward's rows, [batch * length, k] for each layer."""
        inputs = inputs_of(decoder, args, kwargs)
        if inputs is None:
            raise ValueError(
                "the decoder's forward does not take these arguments: give what it takes, by name"
            )
        if inputs.lacking:
            raise ValueError(
                f"{inputs.lacking}: nothing says which sequences its rows are of. Give a model of a"
                f" version of transformers that routecap knows ({KNOWN})"
            )
        if inputs.cache is not None and cached_columns(inputs.cache) != 0:
            raise ValueError(
                "replay is for whole sequences: this forward continues a cache. Give"
                " use_cache=False"
            )
        shape = inputs.batch, inputs.length
        live = (
            np.ones(shape, bool)
            if inputs.mask is None
            else _matrix(inputs.mask, shape).astype(bool)
        )
        if inputs.starts is not None:
            begins = np.zeros(shape, bool)
            begins.ravel()[[begin for begin, _ in runs_of(inputs) or ()]] = True
        elif inputs.position_ids is not None:
            begins = live & (_matrix(inputs.position_ids, shape) == 0)
        else:
            begins = live & (np.cumsum(live, 1) == 1)
        sequence = np.cumsum(begins).reshape(shape) - 1
        counts = np.cumsum(live).reshape(shape) - 1  # of the whole batch, and then of the sequence
        positions = counts - np.append(counts[begins], 0)[sequence]
        if begins.sum() != len(self.rows) or (live & (np.cumsum(begins, axis=1) == 0)).any():
            raise ValueError(
                f"{len(self.rows)} routings for {begins.sum()} sequences that begin at position 0:"
                " give one for each, in their order"
            )
        tokens = np.bincount(sequence[live], minlength=len(self.rows))
        if (tokens < self.first + self.rows).any():
            raise ValueError(
                "a routing has more rows than its sequence has tokens: give routings in the order"
                " of the batch"
            )
        row = positions - self.first[sequence]
        end = self.tables[0].shape[1]
        is_last = positions == tokens[sequence] - 1
        outside = np.where(live & ~is_last, end - 2, end - 1)
        inside = live & (row >= 0) & (row < self.rows[sequence])
        index = torch.from_numpy(np.where(inside, self.offset[sequence] + row, outside).ravel())
        index = index.to(inputs.device)
        self.tables = [each.to(inputs.device) for each in self.tables]
        rows, *weights = [dict(zip(self.layers, each[:, index])) for each in self.tables]
        return Given(rows, weights=weights[0] if weights else None)


def _matrix(tensor: object, shape: tuple[int, int]) -> NDArray[Any]:
    """attention_mask or position_ids as an array [batch, length]."""
    if not isinstance(tensor, torch.Tensor) or tensor.dim() != 2:
        given = list(tensor.shape) if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise ValueError(f"attention_mask and position_ids must be [batch, length], not {given}")
    matrix: NDArray[Any] = tensor.expand(shape).cpu().numpy()
    return matrix

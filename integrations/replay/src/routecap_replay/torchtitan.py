"""Replay in models of torchtitan 0.3.

    replay = routecap_replay.torchtitan.attach(model)    # or model_parts, of a pipeline
    with replay({layer: ids, ...}):                      # [T, k] in the order of this rank's tokens
        loss = loss_function(model(tokens), labels)
    loss.backward()                                      # with activation checkpointing, too

    with replay.schedule(stages, rows):                  # rows[n]: of micro-batch n
        schedule.step(...)

It stands in for `torch.topk` inside each `TokenChoiceTopKRouter`, and whatever descends from it,
where that chooses k of the experts. The router weighs them as it weighs its own, unless weights are
given: `replay(rows, weights={layer: [T, k], ...})`. Its counts of tokens, which move the bias of
load balancing, are those of the replay. Layers are the numbers in the routers' names: indices in the
decoder, as in `Routing.layer_map`. Routers of multi-token prediction are routed live.

Tokens are those that this rank's routers see, batch by batch: under tensor or context parallelism
the rank's part of each sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from ._names import expect, layers_of
from ._passes import Router
from ._rank import StagedReplay
from ._report import ReplayError
from ._topk import Choice, local, replace_forward

__all__ = ["TorchtitanReplay", "attach"]

_KIND = "TokenChoiceTopKRouter"
_KNOWN = "torchtitan 0.3"
_CAPACITY = {
    "LocalTokenDispatcher": None,
    "AllToAllTokenDispatcher": None,
    "TorchAOTokenDispatcher": None,
    "DeepEPTokenDispatcher": None,
    "MinimalAsyncEPTokenDispatcher": None,
    "HybridEPTokenDispatcher": "non_blocking_capacity_factor",
}
"""What of a dispatcher says that it drops tokens; None: nothing can make it."""


def attach(model: nn.Module | Sequence[nn.Module], *, agreement: bool = False) -> TorchtitanReplay:
    """Make a rank's routers ready for replay. Without rows they choose as before.

    model: As the trainer calls it, parallelized; or all its parts on this rank, one for each
        (virtual) stage.
    agreement: Whether its report says how often live routing agrees.

    Raises:
        ValueError: It has no routers, or some that cannot be replayed; the text says why.
    """
    parts = [model] if isinstance(model, nn.Module) else list(model)
    return TorchtitanReplay(parts, agreement=agreement)


class TorchtitanReplay(StagedReplay):
    """What `attach` returns."""

    def __init__(self, parts: Sequence[nn.Module], *, agreement: bool) -> None:
        found = [_routers_of(part) for part in parts]
        routers = sorted((each for own, _ in found for each in own), key=lambda each: each[0].layer)
        if not routers:
            raise ValueError(
                f"the model has no {_KIND} that can be replayed: give a mixture-of-experts model"
            )
        super().__init__([router for router, _ in routers], agreement=agreement)
        self.live = tuple(name for _, live in found for name in live)
        """Names of the routers that are left alone: those of multi-token prediction."""
        for part, (own, _) in zip(parts, found):
            names = [router for router, _ in own]
            self._undo += [
                part.register_forward_pre_hook(partial(self._before, names)).remove,
                part.register_forward_hook(self._behind).remove,
            ]
        for router, module in routers:
            choice = Choice(self, router, int(module.num_experts), int(module.top_k))
            self._undo += [
                replace_forward(module, choice),
                module.register_forward_hook(partial(_put_out, choice), prepend=True).remove,
            ]

    def _before(self, routers: Sequence[Router], part: nn.Module, args: object) -> None:
        self.begin(routers)

    def _behind(self, part: nn.Module, args: object, output: object) -> None:
        self.end(output)

    def choose(self, router: Router, live: torch.Tensor, experts: int) -> torch.Tensor | None:
        if torch.compiler.is_compiling():
            raise ReplayError(f"{router.name} is compiled, leave it eager: {_COMPILED}")
        return super().choose(router, live, experts)


_COMPILED = "a compiled router would choose the experts of one pass in all of them"


def _put_out(choice: Choice, module: nn.Module, args: object, output: Any) -> Any:
    """Nothing behind torch.topk has put other experts into their place; and the weights of the
    replay are put into theirs, behind all that the router does to its own."""
    ids, live = choice.ids, choice.live
    if ids is not None and not any(each is ids for each in output):
        raise ReplayError(
            f"{choice.router.name} does not put out what it chose: replay has no way into it. Leave"
            " it out, or report its class"
        )
    chosen = live if ids is None else ids
    put_out = next((each for each in output if chosen is not None and each is chosen), None)
    if put_out is not None:
        choice.replay.chose(choice.router, local(put_out).reshape(-1, choice.k), choice.experts)
    if ids is not None and choice.replay.has_weights:
        output = choice.weigh(output[1], output[0]), *output[1:]
    choice.ids = choice.live = None
    return output


def _routers_of(part: nn.Module) -> tuple[list[tuple[Router, Any]], list[str]]:
    """Of a model or part: the routers that can be replayed, and names of those that are not to be.

    Raises:
        ValueError: One cannot be replayed.
    """
    replayed: list[tuple[str, Any]] = []
    live = []
    compiled: Callable[[Any], bool] = lambda module: module._compiled_call_impl is not None
    for name, module in part.named_modules():
        if all(each.__name__ != _KIND for each in type(module).__mro__):
            continue
        if name.startswith("mtp_layers.") or ".mtp_layers." in name:
            live.append(name)
            continue
        expect(module, name, ("num_experts", "top_k", "_debug_force_load_balance"), _KNOWN)
        owners = [part.get_submodule(name.rsplit(".", n)[0]) for n in range(1, name.count(".") + 1)]
        if any(map(compiled, [part, *owners, module])):
            raise ValueError(f"{name} is compiled, leave it eager: {_COMPILED}")
        if module._debug_force_load_balance:
            raise ValueError(f"{name} is forced to balance: leave debug.moe_force_load_balance out")
        _expect_whole(name, owners[0] if owners else part)
        replayed.append((name, module))
    layers = layers_of([name for name, _ in replayed])
    routers = [Router(layer, name) for layer, (name, _) in zip(layers, replayed)]
    return [(router, module) for router, (_, module) in zip(routers, replayed)], live


def _expect_whole(name: str, owner: Any) -> None:
    """The experts behind a router get every token that it gives them."""
    expect(owner, f"what {name} is in", ("routed_experts",), _KNOWN)
    expect(owner.routed_experts, f"routed_experts beside {name}", ("token_dispatcher",), _KNOWN)
    dispatcher = owner.routed_experts.token_dispatcher
    kinds = [each.__name__ for each in type(dispatcher).__mro__ if each.__name__ in _CAPACITY]
    if not kinds:
        raise ValueError(
            f"{name} has experts behind a {type(dispatcher).__name__}, of which it is not known"
            f" whether it drops tokens: routecap knows {_KNOWN}. Install that, or report the class"
        )
    setting = _CAPACITY[kinds[0]]
    if setting is None:
        return
    expect(dispatcher, f"the dispatcher beside {name}", (setting,), _KNOWN)
    capacity = getattr(dispatcher, setting)
    if capacity is not None and capacity < 1:
        raise ValueError(
            f"{name} has experts of capacity {capacity}, which drop tokens that they were given:"
            f" leave {setting} out"
        )

"""Replay in models of NeMo Automodel 0.7.

    replay = routecap_replay.automodel.attach(model)
    with replay({layer: ids, ...}):                 # [T, k] in the order of this rank's tokens
        loss = model(**batch)
    loss.backward()                                 # also outside, and with activation checkpointing

    replay = routecap_replay.automodel.attach(pipeline.parts)    # an AutoPipeline's, on this rank
    with replay.schedule(pipeline.info.stages, rows):            # rows[n]: of micro-batch n
        pipeline.step(...)

It stands in for each gate's own `RouterReplay`, and needs no `enable_routing_replay`. Weights are
gathered from the gate's own scores, as Automodel does, unless they are given: `replay(rows,
weights={layer: [T, k], ...})`. Layers are the numbers in the gates' names: indices in the decoder,
as in `Routing.layer_map`. Gates of multi-token prediction are routed live.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from ._names import expect, layers_of
from ._passes import Router
from ._rank import StagedReplay
from ._report import ReplayError

__all__ = ["AutomodelReplay", "attach"]

_KIND = "Gate"
_KNOWN = "NeMo Automodel 0.7"


def attach(model: nn.Module | Sequence[nn.Module], *, agreement: bool = False) -> AutomodelReplay:
    """Make a rank's gates ready for replay. Without rows they choose as before.

    model: As the trainer calls it; or all its parts on this rank, one for each (virtual) stage.
    agreement: Whether its report says how often live routing agrees.

    Raises:
        ValueError: It has no gates, or some that cannot be replayed; the text says why.
    """
    parts = [model] if isinstance(model, nn.Module) else list(model)
    return AutomodelReplay(parts, agreement=agreement)


class AutomodelReplay(StagedReplay):
    """What `attach` returns."""

    def __init__(self, parts: Sequence[nn.Module], *, agreement: bool) -> None:
        found = [_gates_of(part) for part in parts]
        gates = sorted((each for own, _ in found for each in own), key=lambda each: each[0].layer)
        if not gates:
            raise ValueError(
                "the model has no gates of Automodel that can be replayed, with router_replay and"
                " n_experts: give a mixture-of-experts model"
            )
        super().__init__([router for router, _ in gates], agreement=agreement)
        self.live = tuple(name for _, live in found for name in live)
        """Names of the gates that are left alone: those of multi-token prediction."""
        for part, (own, _) in zip(parts, found):
            routers = [router for router, _ in own]
            self._undo += [
                part.register_forward_pre_hook(partial(self._before, routers)).remove,
                part.register_forward_hook(self._behind).remove,
            ]
        for router, gate in gates:
            self._undo.append(partial(setattr, gate, "router_replay", gate.router_replay))
            gate.router_replay = mine = _Gate(self, router, gate)
            self._undo.append(gate.register_forward_hook(mine.put_out, prepend=True).remove)

    def _before(self, routers: Sequence[Router], part: nn.Module, args: object) -> None:
        self.begin(routers)

    def _behind(self, part: nn.Module, args: object, output: object) -> None:
        self.end(output)


def _gates_of(part: nn.Module) -> tuple[list[tuple[Router, Any]], list[str]]:
    """Of a model or part: the gates that can be replayed, and names of those that are not to be.

    Raises:
        ValueError: One cannot be replayed.
    """
    replayed: list[tuple[str, Any]] = []
    live = []
    for name, module in part.named_modules():
        known = any(each.__name__ == _KIND for each in type(module).__mro__)
        if not known and not hasattr(module, "router_replay"):
            continue
        if "mtp" in name.split("."):
            live.append(name)
            continue
        if not known:
            raise ValueError(
                f"{name} is a {type(module).__name__}, and no {_KIND} that is known here: report the"
                " model"
            )
        expect(module, name, ("router_replay", "n_experts", "use_routing_core"), _KNOWN)
        if module.use_routing_core:
            raise ValueError(
                f"{name} runs in a CUDA graph, which would replay its first rows: leave "
                "use_routing_core out"
            )
        replayed.append((name, module))
    layers = layers_of([name for name, _ in replayed])
    routers = [Router(layer, name) for layer, (name, _) in zip(layers, replayed)]
    return [(router, gate) for router, (_, gate) in zip(routers, replayed)], live


class _Gate:
    """In the place of a gate's RouterReplay."""

    def __init__(self, replay: AutomodelReplay, router: Router, gate: Any) -> None:
        self._replay, self._router, self._experts = replay, router, int(gate.n_experts)
        self._own = gate.router_replay
        self._ids: torch.Tensor | None = None  # those of the replay, till the gate puts them out

    def apply(self, indices: torch.Tensor) -> torch.Tensor:
        """What RouterReplay.apply does: indices [T, k] that the gate chose to those it is to have."""
        chosen: torch.Tensor | None = None
        if self._replay.has_rows:
            chosen = self._replay.choose(self._router, indices, self._experts)
        self._ids = chosen
        if chosen is None:
            chosen = indices if self._own is None else self._own.apply(indices)
        self._replay.chose(self._router, chosen, self._experts)
        return chosen

    def put_out(self, gate: nn.Module, args: object, output: Any) -> Any:
        """What the gate puts out, with the weights of the replay: behind all that it does to its
        own. A hook."""
        ids, self._ids = self._ids, None
        if ids is None or not self._replay.has_weights:
            return output
        own, indices, *rest = output
        if indices is not ids or own.shape != ids.shape or not own.is_floating_point():
            raise ReplayError(
                f"{self._router.name} does not put out a weight and then an id of each expert:"
                f" routecap knows {_KNOWN}. Install that, or leave the weights out"
            )
        return self._replay.weigh(self._router, own), indices, *rest

    def __getattr__(self, name: str) -> Any:  # what recording asks of it
        return getattr(self._own, name)

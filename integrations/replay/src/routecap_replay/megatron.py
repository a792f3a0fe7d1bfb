"""Replay in Megatron-Core 0.16 to 0.19, whatever parallelism and recompute it runs with.

    replay = routecap_replay.megatron.attach(model)         # a model, or its virtual stages

    def forward_step(data_iterator, model):
        batch = next(data_iterator)
        with replay(batch["rows"]):                         # {layer: [T, k]}, this rank's tokens
            output = model(batch["tokens"], batch["positions"], None)
        return output, loss_function

It stands in for each router's own `RouterReplay`, and needs no `moe_enable_routing_replay`. Where
that is set, `RouterReplay.set_replay_data` and `set_target_indices` give rows, too, so a trainer
that calls these gains what `routecap_replay` promises, with its global action REPLAY_FORWARD or
REPLAY_BACKWARD alike. RECORD works as before.

The router weighs the experts by its own scores, unless weights are given: `replay(rows,
weights={layer: [T, k], ...})`.

Layers are counted from 0 through the whole decoder, as in `Routing.layer_map`; Megatron's
`layer_number` is one more. Layers of multi-token prediction count apart and are routed live.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from ._names import expect, expect_parameters
from ._passes import LIVE, Router
from ._rank import RankReplay
from ._report import ReplayError

__all__ = ["MegatronReplay", "attach"]

_REFUSED: dict[str, tuple[Any, str]] = {
    "moe_router_fusion": (False, "the fused router does not ask for replay"),
    "moe_expert_capacity_factor": (None, "tokens would be dropped from experts they were given"),
    "moe_router_force_load_balancing": (False, "logits are random"),
    "moe_router_force_biased": (None, "logits are biased at random"),
    "overlap_moe_expert_parallel_comm": (False, "micro-batches are mixed layer by layer"),
    "enable_cuda_graph": (False, "graphs would replay the rows of their capture"),
    "external_cuda_graph": (False, "graphs would replay the rows of their capture"),
    "cuda_graph_impl": ("none", "graphs would replay the rows of their capture"),
}
"""Settings of a configuration, the one value with which routers can be replayed, and why."""
_SINCE = {"moe_router_force_biased": (0, 17), "is_mtp_layer": (0, 17)}
"""What came later than the rest."""
_KNOWN = "Megatron-Core 0.16 to 0.19"
_ROUTER = ("topk", "config", "routing_type", "layer_number", "is_mtp_layer")
_TOPK = ("scores", "topk", "num_groups", "group_topk", "default_compute_topk")
_KINDS = ("sinkhorn", "quantile_balancing")
"""Kinds of load balancing that choose experts without asking for replay."""


def attach(model: nn.Module | Sequence[nn.Module], *, agreement: bool = False) -> MegatronReplay:
    """Make a rank's routers ready for replay. Without rows they choose as before.

    model: As the trainer calls it, wrapped or not; or all its virtual pipeline stages.
    agreement: Whether its report says how often live routing agrees.

    Raises:
        ValueError: It has no routers, or some that cannot be replayed; the text says why.
    """
    stages = [model] if isinstance(model, nn.Module) else list(model)
    return MegatronReplay(stages, agreement=agreement)


class MegatronReplay(RankReplay):
    """What `attach` returns."""

    def __init__(self, stages: Sequence[nn.Module], *, agreement: bool) -> None:
        found = [routers_of(stage) for stage in stages]
        bound = [routers for routers, _ in found]
        flat = sorted((each for stage in bound for each in stage), key=lambda each: each[0].layer)
        if not flat:
            raise ValueError(
                "the model has no routers of Megatron-Core that can be replayed, with routing() and"
                " gating(): give a mixture-of-experts model"
            )
        for (one, _), (other, _) in zip(flat, flat[1:]):
            if one.layer == other.layer:
                raise ValueError(
                    f"{one.name} and {other.name} both are layer {one.layer}: give each"
                    " layer_number once"
                )
        super().__init__([router for router, _ in flat], agreement=agreement)
        self._targets: dict[Router, torch.Tensor] = {}  # set_target_indices, till a forward pass
        self._ids: dict[Router, torch.Tensor] = {}  # those of the replay, till a router's end
        self.live = tuple(name for _, live in found for name in live)
        """Names of the routers that are left alone: those of multi-token prediction."""
        for stage, routers in zip(stages, bound):
            names = [router for router, _ in routers]
            self._undo += [
                stage.register_forward_pre_hook(partial(self._before, names)).remove,
                stage.register_forward_hook(self._behind).remove,
            ]
            for router, module in routers:
                self._stand_in(router, module)
                hook = partial(self._put_out, router)
                self._undo.append(module.register_forward_hook(hook, prepend=True).remove)

    def _before(self, routers: Sequence[Router], stage: nn.Module, args: object) -> None:
        targets = {each.layer: self._targets.pop(each) for each in routers if each in self._targets}
        if targets:
            self.load(targets)
        self.begin(routers)

    def _behind(self, stage: nn.Module, args: object, output: object) -> None:
        self.end(output)

    def _stand_in(self, router: Router, module: nn.Module) -> None:
        """For the methods of the router's own RouterReplay that give rows, and that take them."""
        own: Any = module.router_replay
        _expect_replay(own)
        if own is None:
            module.router_replay = own = _Unused()
            self._undo.append(partial(setattr, module, "router_replay", None))
        for name, method in {
            "get_replay_topk": partial(self._topk, router, own.get_replay_topk),
            "set_target_indices": partial(self._target, router),
            "clear_indices": partial(self._clear, router, own.clear_indices),
        }.items():
            setattr(own, name, method)
            self._undo.append(partial(delattr, own, name))

    def _topk(
        self,
        router: Router,
        otherwise: Callable[..., tuple[torch.Tensor, torch.Tensor]],
        scores: torch.Tensor,
        topk: int,
        num_groups: int | None = None,
        group_topk: int | None = None,
        default_compute_topk: Any = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What RouterReplay.get_replay_topk does: scores [T, experts] to scores and ids [T, k]."""
        experts = scores.shape[1]
        self._ids.pop(router, None)
        if self.has_rows:
            values, ids = default_compute_topk(
                scores, topk, num_groups=num_groups, group_topk=group_topk
            )
            given = self.choose(router, ids, experts)
            if given is not None:
                values, ids = scores.gather(1, given), given
                self._ids[router] = given
        else:
            values, ids = otherwise(scores, topk, num_groups, group_topk, default_compute_topk)
        self.chose(router, ids, experts)
        return values, ids

    def _put_out(self, router: Router, module: nn.Module, args: object, output: Any) -> Any:
        """Probabilities and map, with the weights of the replay: behind all that the router does to
        its own. A hook."""
        ids = self._ids.pop(router, None)
        if ids is None or not self.has_weights:
            return output
        probabilities, chosen = output
        if probabilities.shape != chosen.shape or len(probabilities) != len(ids):
            raise ReplayError(
                f"{router.name} does not put out [T, experts] of probabilities and a map: routecap"
                f" knows {_KNOWN}. Install that, or leave the weights out"
            )
        weights = self.weigh(router, probabilities.gather(1, ids))
        return probabilities.scatter(1, ids, weights), chosen

    def _target(
        self, router: Router, topk_indices: torch.Tensor, replay_mask: torch.Tensor | None = None
    ) -> None:
        """What RouterReplay.set_target_indices does; verl gives a mask [T] of the rows that are
        to be replayed."""
        if replay_mask is not None:
            asked = replay_mask.view(-1, 1).to(topk_indices.device, torch.bool)
            topk_indices = torch.where(asked, topk_indices, LIVE)
        if router in self._targets:
            raise ReplayError(
                f"{router.name} was given rows twice: no forward pass took the first. Give rows"
                " just before each"
            )
        self._targets[router] = topk_indices

    def _clear(self, router: Router, otherwise: Callable[[], None]) -> None:
        """What RouterReplay.clear_indices does."""
        self._targets.pop(router, None)
        otherwise()


class _Unused:
    """In the place of a RouterReplay, where a configuration has none."""

    def get_replay_topk(
        self,
        scores: torch.Tensor,
        topk: int,
        num_groups: int | None = None,
        group_topk: int | None = None,
        default_compute_topk: Any = None,
    ) -> Any:
        return default_compute_topk(scores, topk, num_groups=num_groups, group_topk=group_topk)

    def clear_indices(self) -> None:
        pass


def _there(names: Iterable[str]) -> list[str]:
    """Those that this version of Megatron-Core has."""
    import megatron.core

    version = tuple(map(int, megatron.core.__version__.split(".")[:2]))
    return [each for each in names if _SINCE.get(each, version) <= version]


def _expect_replay(own: object) -> None:
    """What gives rows to a RouterReplay, and takes them, is called as it was."""
    from megatron.core.transformer.moe.router_replay import RouterReplay

    kind = RouterReplay if own is None else type(own)
    for name, parameters in {
        "get_replay_topk": _TOPK,
        "set_target_indices": ("topk_indices",),
        "clear_indices": (),
    }.items():
        if not hasattr(kind, name):
            raise ValueError(
                f"{kind.__name__} has no {name}(): routecap knows {_KNOWN}. Install that, or report"
                " this version"
            )
        expect_parameters(getattr(kind, name), parameters, _KNOWN)


def routers_of(stage: nn.Module) -> tuple[list[tuple[Router, nn.Module]], list[str]]:
    """Of a model or stage: the routers that can be replayed, and names of those that are not to be.

    Raises:
        ValueError: One cannot be replayed.
    """
    replayed, live = [], []
    for name, module in stage.named_modules():
        if not (hasattr(module, "routing") and hasattr(module, "gating")):
            continue
        if not hasattr(module, "router_replay"):
            raise ValueError(f"{name} knows no replay (router_replay): install {_KNOWN}")
        expect(module, name, _there(_ROUTER), _KNOWN)
        ahead = "is_mtp_layer" in _there(_ROUTER) and module.is_mtp_layer
        if ahead or "mtp" in name.split("."):
            live.append(name)
            continue
        settings = _there(_REFUSED)
        expect(module.config, f"the configuration of {name}", settings, _KNOWN)
        for setting in settings:
            value, why = _REFUSED[setting]
            if (has := getattr(module.config, setting)) != value:
                raise ValueError(
                    f"{name} cannot be replayed with {setting}={has!r}: {why}. Leave it out"
                )
        if module.routing_type in _KINDS:
            raise ValueError(
                f"{name} cannot be replayed: {module.routing_type} chooses by itself. Take another"
                " load balancing"
            )
        if module.layer_number is None:
            raise ValueError(
                f"{name} has no layer_number: it is in no layer of a decoder. Give it one, from"
                " 1 on"
            )
        replayed.append((Router(int(module.layer_number) - 1, name), module))
    return replayed, live

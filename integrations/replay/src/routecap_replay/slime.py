"""Replay in slime and in miles, by their custom paths:

    --use-rollout-routing-replay
    --custom-megatron-before-log-prob-hook-path routecap_replay.slime.before_log_prob
    --custom-megatron-before-train-step-hook-path routecap_replay.slime.before_train_step

slime and miles lay the rows out and put them into a queue at each router, one entry for each
micro-batch. From there on routecap takes over: at the beginning of a forward pass each router of
the stage takes its entry; rows that are -1, or no choice of k experts, are routed live and counted;
recompute gets what its own forward pass chose, so their queue for backward is not used; and a
router that does not run, or runs twice, is named.

`rows` makes what a rollout function puts into `Sample.rollout_routed_experts` of a Routing.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from types import CodeType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from routecap import Routing, Status
from routecap.adapter import error, in_backward

from ._names import expect
from ._passes import Given, Replay, Router
from ._report import ReplayError
from .megatron import routers_of

__all__ = ["QueueReplay", "before_log_prob", "before_train_step", "replay_of", "rows"]

_logger = logging.getLogger("routecap_replay")
_replays: dict[
    int, tuple[Any, QueueReplay]
] = {}  # by the identity of the first stage, kept with it


def rows(routing: Routing, layers: int) -> NDArray[np.int32]:
    """int32 [rows, layers, k] of a routing, for all layers of the decoder; -1 where it has nothing.

    Of S tokens it must be S - 1 rows: a routing that begins later lost its first ones, which are
    -1.

    Raises:
        Error: A cell may have fewer than k experts, or a layer ran again: this array cannot say it.
    """
    if (routing.layer_min_k < routing.k).any() or routing.layer_visit.any():
        raise error(
            Status.ERR_LOSSY,
            f"slime replays {routing.k} experts for each token in one run of each layer, and the"
            " routing has cells with fewer, or visits of a layer: replay this model without capture",
        )
    ids = np.full((routing.first + routing.rows, layers, routing.k), -1, np.int32)
    ids[routing.first :, routing.layer_map] = routing.ids()
    return ids


def before_log_prob(args: object, model: Sequence[nn.Module], store_prefix: str) -> None:
    """For --custom-megatron-before-log-prob-hook-path."""
    replay_of(model)


def before_train_step(
    args: object, rollout_id: int, step_id: int, model: Sequence[nn.Module], *unused: object
) -> None:
    """For --custom-megatron-before-train-step-hook-path. Logs what became of the rows since."""
    report = replay_of(model).report(reset=True)
    if report.passes:
        _logger.info(
            "rollout %d, before step %d: %d rows x layers replayed, %d lost, %d invalid",
            rollout_id, step_id, report.replayed, report.lost, report.invalid,
        )  # fmt: skip


def replay_of(model: Sequence[nn.Module], *, agreement: bool = False) -> QueueReplay:
    """The replay of a rank's model, made at the first call.

    model: Its virtual stages, as slime and miles have them.

    Raises:
        ReplayError: Its routers have no queues, or those that slime fills are not theirs.
    """
    key = id(model[0])
    if key not in _replays:
        trainer = _Miles() if "miles" in sys.modules else _Slime()
        _replays[key] = model[0], QueueReplay(model, trainer, agreement=agreement)
    return _replays[key][1]


_STAGES = ("fallthrough", "record", "replay_forward", "replay_backward")


def _is_forward(stage: str) -> bool:
    if stage not in _STAGES:
        raise ReplayError(
            f"{stage!r} is no stage of replay that is known here ({', '.join(_STAGES)}): report this"
            " version"
        )
    return stage == "replay_forward"


def _constants(code: CodeType) -> set[Any]:
    """Those of a function, and of the functions in it."""
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return set(code.co_consts).union(*map(_constants, inner))


Choice = Callable[..., Any]
"""compute_topk(scores [T, experts], topk, num_groups=None, group_topk=None): scores and ids [T, k].
"""


def _expect(thing: object, what: str, names: Sequence[str]) -> None:
    try:
        expect(thing, what, names, "slime and miles as they were in November 2026")
    except ValueError as error:
        raise ReplayError(str(error)) from None


class _Slime:
    """What is slime's own."""

    def __init__(self) -> None:
        self._module: Any = import_module("slime.utils.routing_replay")
        names = ("ROUTING_REPLAY", "RoutingReplay", "get_routing_replay_compute_topk")
        _expect(self._module, "slime.utils.routing_replay", names)
        _expect(self._module.RoutingReplay, "slime's RoutingReplay", ("all_routing_replays",))
        # The order of a router's choice, for who computes as SGLang does. Older versions have none.
        self._capture: Any = None
        if any("ordered_topk" in name.lower() for name in vars(self._module)):
            _expect(self._module, "slime.utils.routing_replay", ("_capture_ordered_topk",))
            self._capture = self._module._capture_ordered_topk
        read = _constants(self._module.get_routing_replay_compute_topk.__code__)
        if missing := {"ENABLE_ROUTING_REPLAY", "ROUTING_REPLAY_STAGE"} - read:
            raise ReplayError(
                f"slime's get_routing_replay_compute_topk does not read {', '.join(sorted(missing))}"
                " of the environment: report this version"
            )

    def is_replaying(self) -> bool:
        if os.environ.get("ENABLE_ROUTING_REPLAY", "0") != "1":
            return False
        return _is_forward(os.environ["ROUTING_REPLAY_STAGE"])

    def current(self) -> Any:
        """The queue of the router that runs now."""
        return self._module.ROUTING_REPLAY

    def check(self, queues: Sequence[Any]) -> None:
        """slime fills queues in the order in which they were made, whosever they are."""
        filled = self._module.RoutingReplay.all_routing_replays
        if [id(each) for each in filled] != [id(each) for each in queues]:
            raise ReplayError(
                f"slime fills {len(filled)} queues in the order in which they were made, and the"
                f" {len(queues)} of this model's routers are others, or in another order: attach to"
                " this model alone, just after it is made"
            )

    def wrap(self, wrapper: Callable[[Choice, Choice], Choice]) -> Callable[[], None]:
        """Let wrapper(slime's choice, Megatron's choice) choose; returns what undoes it."""
        own = self._module.get_routing_replay_compute_topk

        def compute_topk_of(old: Choice) -> Choice:
            choice = wrapper(own(old), old)

            def captured(*args: object, **kwargs: object) -> Any:
                result = choice(*args, **kwargs)
                if self._capture is not None:
                    self._capture(result[1])
                return result

            return captured

        self._module.get_routing_replay_compute_topk = compute_topk_of
        return partial(setattr, self._module, "get_routing_replay_compute_topk", own)


class _Miles:
    """What is miles' own."""

    def __init__(self) -> None:
        module: Any = import_module("miles.utils.replay_base")
        _expect(module, "miles.utils.replay_base", ("routing_replay_manager",))
        self._manager: Any = module.routing_replay_manager
        names = ("enabled", "stage", "replays", "get_current", "get_topk_fn")
        _expect(self._manager, "miles' routing_replay_manager", names)

    def is_replaying(self) -> bool:
        return bool(self._manager.enabled) and _is_forward(self._manager.stage)

    def current(self) -> Any:
        return self._manager.get_current()

    def check(self, queues: Sequence[Any]) -> None:
        """miles fills queues by layer; those of this model must be among them."""
        filled = {id(each) for each in self._manager.replays}
        if missing := sum(id(each) not in filled for each in queues):
            raise ReplayError(
                f"miles does not fill the queues of {missing} of this model's routers: attach to"
                " the model that it trains"
            )

    def wrap(self, wrapper: Callable[[Choice, Choice], Choice]) -> Callable[[], None]:
        own = self._manager.get_topk_fn

        def get_topk_fn(old_topk_fn: Choice, return_probs: bool) -> Choice:
            wrapped = own(old_topk_fn, return_probs)
            return wrapper(wrapped, old_topk_fn) if return_probs else wrapped

        self._manager.get_topk_fn = get_topk_fn
        return partial(delattr, self._manager, "get_topk_fn")


class QueueReplay(Replay):
    """What `replay_of` returns."""

    def __init__(
        self, stages: Sequence[nn.Module], trainer: _Slime | _Miles, *, agreement: bool
    ) -> None:
        found = [
            [(router, module, getattr(module, "routing_replay", None)) for router, module in each]
            for each, _ in map(routers_of, stages)
        ]
        queues: dict[Router, Any] = {router: queue for each in found for router, _, queue in each}
        if not queues or None in queues.values():
            raise ReplayError(
                "routers have no queues (routing_replay): give --use-rollout-routing-replay"
            )
        for router, queue in queues.items():
            names = ("pop_forward", "forward_index", "backward_index")
            _expect(queue, f"the queue of {router.name}", names)
        trainer.check(list(queues.values()))
        super().__init__(sorted(queues, key=lambda each: each.layer), agreement=agreement)
        self._trainer, self._queues = trainer, queues
        self._router_of = {id(queue): router for router, queue in queues.items()}
        for stage, each in zip(stages, found):
            own = [router for router, _, _ in each]
            self._undo += [
                stage.register_forward_pre_hook(partial(self._before, own)).remove,
                stage.register_forward_hook(lambda module, args, output: self.end(output)).remove,
            ]
        self._undo.append(trainer.wrap(self._choice))

    def _before(self, routers: Sequence[Router], stage: nn.Module, args: object) -> None:
        if self._trainer.is_replaying() and not in_backward():
            rows = {}
            for router in routers:
                queue = self._queues[router]
                rows[router.layer] = queue.pop_forward()
                queue.backward_index = queue.forward_index  # what runs again takes no entry
            self._given = Given(rows)
        self.begin(routers)

    def _choice(self, own: Choice, megatron: Choice) -> Choice:
        def choose(scores: torch.Tensor, topk: int, *args: object, **kwargs: object) -> Any:
            router = self._router_of.get(id(self._trainer.current()))
            if router is None or not self.has_rows:
                return own(scores, topk, *args, **kwargs)
            values, live = megatron(scores, topk, *args, **kwargs)
            ids = self.choose(router, live, scores.shape[1])
            return (values, live) if ids is None else (scores.gather(1, ids), ids)

        return choose

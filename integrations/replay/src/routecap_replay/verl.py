"""Replay in verl 0.9 with Megatron-Core, without a change of its code:

    export ROUTECAP_VERL=1                      # on every node; verl itself is told router_replay.mode=R3

verl loads this module by its entry points (`verl.plugins`), in each of its processes. It then puts
functions of its own in the place of two of verl's, when verl imports them:

    align_r3_router_replay_data     the last token of a sequence is routed live, not to expert 0
    set_router_replay_data          after verl's own layout, rows go to a `MegatronReplay` of the model

So a row that verl filled with zeros (what an engine lost, padding) is routed live and counted, rows
that a forward pass did not take are an error, and recompute gets the rows of its own micro-batch.
`replays()` gives the replays of this process, for their reports.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from ._report import ReplayError

_MODULE = "verl.utils.megatron.router_replay_utils"
_USED = {
    "align_r3_router_replay_data": ("layers_topk_idx", "input_ids"),
    "set_router_replay_data": (
        "layers_topk_idx",
        "attention_mask",
        "tf_config",
        "vp_rank",
        "replay_mask",
        "local_cp_size",
        "model",
    ),
    "iter_model_routers": ("model",),
}
"""What is replaced, or marks the version, and its parameters."""
_replays: dict[int, tuple[Any, Any]] = {}  # by the identity of a model, which is kept with it


def replays() -> list[Any]:
    """The `routecap_replay.megatron.MegatronReplay` of each model that was replayed."""
    return [replay for _, replay in _replays.values()]


def install(utils: Any) -> None:
    """Put the functions in their places in `verl.utils.megatron.router_replay_utils`.

    Raises:
        ReplayError: This version of verl has others.
    """
    import torch

    from ._names import expect_parameters
    from .megatron import attach

    missing = [name for name in _USED if not hasattr(utils, name)]
    if missing:
        raise ReplayError(
            f"routecap_replay.verl knows verl 0.9; this one has no {missing}: install verl 0.9"
        )
    try:
        for name, parameters in _USED.items():
            expect_parameters(getattr(utils, name), parameters, "verl 0.9")
    except ValueError as error:
        raise ReplayError(str(error)) from None
    align, set_data = utils.align_r3_router_replay_data, utils.set_router_replay_data

    def align_r3_router_replay_data(layers_topk_idx: Any, input_ids: object) -> Any:
        aligned = align(layers_topk_idx, input_ids)
        parts = []
        for rows, given in zip(aligned.unbind(), layers_topk_idx.unbind()):
            rows = rows if rows.dtype.is_signed else rows.to(torch.int32)
            rows[len(given) :] = -1
            parts.append(rows)
        return torch.nested.as_nested_tensor(parts, layout=torch.jagged)

    def set_router_replay_data(
        layers_topk_idx: object,
        attention_mask: Any,
        tf_config: object,
        vp_rank: Any = None,
        replay_mask: object = None,
        local_cp_size: Any = None,
        model: object = None,
    ) -> None:
        if model is None:
            raise ReplayError(
                "verl does not say which model the rows are for, as verl 0.9 does: install that"
            )
        for stage in model if isinstance(model, (list, tuple)) else [model]:
            if id(stage) not in _replays:
                _replays[id(stage)] = stage, attach(stage)
        set_data(
            layers_topk_idx,
            attention_mask,
            tf_config,
            vp_rank,
            replay_mask=replay_mask,
            local_cp_size=local_cp_size,
            model=model,
        )

    utils.align_r3_router_replay_data = align_r3_router_replay_data
    utils.set_router_replay_data = set_router_replay_data


class _WhenImported(MetaPathFinder, Loader):
    """Installs once verl imports the module whose functions are replaced; nothing is imported
    before:
    verl's driver has no Megatron-Core.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        self._loader = spec.loader
        spec.loader = self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        install(module)


def _expect_module() -> None:
    """It is where it is waited for. Nothing of verl is imported here.

    Raises:
        ReplayError: There is no such file.
    """
    package, *folders = _MODULE.split(".")
    found = find_spec(package)
    roots = found.submodule_search_locations if found is not None else None
    path = Path(*folders).with_suffix(".py")
    if not any((Path(root) / path).exists() for root in roots or ()):
        raise ReplayError(
            f"verl has no {_MODULE}, whose functions are replaced: install verl 0.9, or unset"
            " ROUTECAP_VERL"
        )


if os.environ.get("ROUTECAP_VERL", "0") not in ("", "0"):
    _expect_module()
    if _MODULE in sys.modules:
        install(sys.modules[_MODULE])
    else:
        sys.meta_path.insert(0, _WhenImported())

"""The weights that routers give their experts, for the checks in this folder: what the routers gave,
and what callers of the engine get, if ROUTECAP_VLLM_WEIGHTS is 1. It shares no code with routecap.

A row is then its ids, and behind them the bits of their weights: int32 [layers, 2k].
"""

import os

import numpy as np
import torch

WANTED = os.environ.get("ROUTECAP_VLLM_WEIGHTS") == "1"


def packed(ids, weights):
    weights = np.ascontiguousarray(weights)
    assert weights.dtype == np.float32 and weights.shape == ids.shape, (weights.dtype, ids.shape)
    return np.concatenate((ids.astype(np.int32), weights.view(np.int32)), -1)


class Watched:
    """Copies of what each router returns to its experts, on the device as it returns it, inside
    graphs too. Make it before the engine.

    layers: {id of a router: its number}, of routers that have chosen.
    """

    def __init__(self, layers, rows):
        from vllm.model_executor.layers.fused_moe.router.base_router import BaseRouter

        self._buffers = {}
        select = BaseRouter.select_experts

        def select_experts(router, *args, **kwargs):
            found = select(router, *args, **kwargs)
            weights, layer = found[0], layers[id(router)]
            if layer not in self._buffers:
                made = torch.full((rows, weights.shape[1]), torch.nan, device=weights.device)
                self._buffers[layer] = made
            assert weights.dtype == torch.float32, weights.dtype
            self._buffers[layer][: len(weights)].copy_(weights)
            return found

        BaseRouter.select_experts = select_experts

    def beside(self, ids):
        """The rows of the last pass: ids [rows, layers, k], and their weights behind them."""
        found = [self._buffers[layer][: len(ids)] for layer in sorted(self._buffers)]
        return packed(ids, torch.stack(found, 1).cpu().numpy())


def given(rows, output, layers, completion=None):
    """What engine.given returned as the rows of an output, and what came with them as weights."""
    if not WANTED:
        return rows
    completion = output.outputs[0] if completion is None else completion
    parts = [getattr(output, "prompt_routed_experts_weights", None)]  # of 0.21
    parts = [*parts, completion.routed_experts_weights]
    weights = np.concatenate([each for each in parts if each is not None])
    if weights.shape[1] != rows.shape[1]:  # with all layers of the decoder
        dense = [layer for layer in range(weights.shape[1]) if layer not in layers]
        assert not weights[:, dense].any()
        weights = weights[:, layers]
    return packed(rows, weights)


def is_missing(row, fill=-1):
    """Whether a row has no expert, and no weight."""
    if not WANTED:
        return bool((row == fill).all())
    ids, weights = np.split(np.ascontiguousarray(row), 2, -1)
    return bool((ids == fill).all() and np.isnan(weights.copy().view(np.float32)).all())

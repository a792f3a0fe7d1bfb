"""routecap.torch in a loop over a tiny model, judged by torch.topk: it tells what routers chose."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import routecap
import torch
from families import CACHE, EXPERTS, K, VOCABULARY, make
from routecap.torch import Capturer
from routecap_transformers import find
from transformers import DynamicCache

REQUESTS, PROMPT, STEPS = 3, 9, 12


def watched(call: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> tuple[Any, np.ndarray]:
    """What a forward pass returns, and what its routers chose, [rows, layers, k]."""
    chosen: list[np.ndarray] = []
    topk = torch.topk

    def wrapped(scores: torch.Tensor, k: int, *args: Any, **kwargs: Any) -> Any:
        result = topk(scores, k, *args, **kwargs)
        if scores.shape[-1] == EXPERTS and k == K:
            chosen.append(result.indices.reshape(-1, K).numpy().copy())
        return result

    with monkeypatch.context() as patch:
        patch.setattr(torch, "topk", wrapped)
        output = call()
    return output, np.stack(chosen, axis=1)


@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral", "olmoe"])
def test_prefill_decode_and_abandoned_passes_in_flight(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make(family)
    taps = find(model)
    shape = routecap.Settings(
        layers=len(taps), layer_map=[tap.layer for tap in taps], k=K, experts=EXPERTS, rows=64
    )
    with torch.inference_mode(), Capturer(**shape, device="cpu", slots=3) as capture:
        hooks = []
        for index, tap in enumerate(taps):

            def hook(
                module: Any, args: Any, kwargs: Any, index: int = index, tap: Any = tap
            ) -> None:
                capture.record(index, tap.ids(args, kwargs, None))

            assert tap.before
            hooks.append(tap.module.register_forward_pre_hook(hook, with_kwargs=True))

        requests = [capture.open() for _ in range(REQUESTS)]
        tokens = torch.randint(3, VOCABULARY, (REQUESTS, PROMPT))
        cache, position, right = DynamicCache(config=model.config), 0, []
        while position < PROMPT + STEPS:
            rows = tokens.shape[1]
            for other in (True, False):  # each pass is run with other tokens before, and abandoned
                inputs = torch.flip(tokens, (0,)) + 1 if other else tokens
                used = copy.deepcopy(cache) if other else cache
                capture.begin(REQUESTS * rows)
                output, chosen = watched(
                    lambda: model(inputs % VOCABULARY, **{CACHE: used}), monkeypatch
                )
            capture.issue(
                routecap.spans(
                    REQUESTS,
                    request=[int(request) for request in requests],
                    position=position,
                    sink_row=np.arange(REQUESTS) * rows,
                    rows=rows,
                )
            )
            right.append(chosen.reshape(REQUESTS, rows, len(taps), K))
            position += rows
            tokens = output.logits[:, -1:].argmax(-1)
        finished = [request.finish(position) for request in requests]
        seen = np.concatenate(right, axis=1)
        for i, routing in enumerate(finished):
            routing.wait(60)
            assert routing.complete and (np.sort(routing.ids()) == np.sort(seen[i])).all()
        for each in hooks:
            each.remove()

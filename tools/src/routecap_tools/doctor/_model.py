"""What a model of transformers chooses for a text."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray
from routecap import Routing


def routing_of_model(path: str | os.PathLike[str]) -> Callable[[NDArray[np.int64]], Routing]:
    """A function that gives the routing of a text, from its token ids, by a model of transformers.

    It needs torch and transformers (ImportError otherwise). The model runs once for each text, in
    the precision of its weights, on a GPU if there is one. A row is given for every token.
    """
    try:
        import torch

        transformers: Any = import_module("transformers")
    except ImportError:
        raise ImportError(
            "torch and transformers are needed for this: pip install routecap-transformers"
        ) from None
    from routecap_transformers import attach

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model: Any = (
        transformers.AutoModelForCausalLM.from_pretrained(os.fspath(path), dtype="auto")
        .to(device)
        .eval()
    )

    def route(tokens: NDArray[np.int64]) -> Routing:
        with attach(model, rows=max(len(tokens), 1)) as capture, torch.no_grad():
            model(input_ids=torch.from_numpy(tokens)[None].to(device), use_cache=False)
            [routing] = capture.take()
        return routing

    return route

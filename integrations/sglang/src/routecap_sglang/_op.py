"""The custom op for regions that torch.compile traces. Importing this imports torch.

`routecap::route(anchor, ids, weights, layer)` hands what a router gave to the capturer whose anchor
it is. It says that it writes to the anchor, so that no compiler drops it.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

_forwards: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def anchor(forward: object, device: object) -> torch.Tensor:
    """What names a Forward in a trace. It must live as long."""
    tensor = torch.zeros(1, dtype=torch.int32, device=device)
    _forwards[tensor.data_ptr()] = forward
    return tensor


def _route(
    tensor: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor | None, layer: int
) -> None:
    forward = _forwards.get(tensor.data_ptr())
    if forward is None:
        raise RuntimeError(
            "this is no capturer's anchor: a compiler has copied it. Leave it out of the compiled"
            " graph, or run eagerly"
        )
    forward.route(layer, ids, weights)


if not hasattr(torch.ops.routecap, "route"):
    torch.library.define(
        "routecap::route", "(Tensor(a!) anchor, Tensor ids, Tensor? weights, int layer) -> ()"
    )
    torch.library.impl("routecap::route", "CompositeExplicitAutograd")(_route)
    torch.library.register_fake("routecap::route")(lambda *arguments: None)

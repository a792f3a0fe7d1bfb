"""The custom ops, which `register` makes known to torch.

`vllm::capture_routing(buffer, topk_ids, layer_id, batch_size)` writes ids into one layer of a
capturer's buffer, `routecap::capture_weights` ids and weights; the two others begin and end a
forward pass for hooks that torch.compile traces.
Under a trace they are opaque, and what a replayed graph does is what they enqueue.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from ._forward import Forward


class Cache(Protocol):
    """What the ops use of a device cache."""

    forward: Forward | None

    def capture_fwd_routed_experts(self, layer_id: int, topk_ids: torch.Tensor) -> None: ...


# Device caches by the address of their buffer: what the custom op is given is the buffer.
caches: weakref.WeakValueDictionary[int, Cache] = weakref.WeakValueDictionary()


def _capture_routing(
    buffer: torch.Tensor, topk_ids: torch.Tensor, layer_id: int, batch_size: int
) -> None:
    cache = caches.get(buffer.data_ptr())
    if cache is not None:
        cache.capture_fwd_routed_experts(layer_id, topk_ids[:batch_size])
    else:  # memory of the caller's own
        import torch

        ids = topk_ids[:batch_size, : buffer.shape[2]]
        largest = torch.iinfo(buffer.dtype).max
        buffer[layer_id, :batch_size] = ids.where((ids >= 0) & (ids <= largest), -1).to(
            buffer.dtype
        )


def _forward(buffer: torch.Tensor) -> Forward:
    cache = caches.get(buffer.data_ptr())
    if cache is None or cache.forward is None:
        raise RuntimeError(
            "the buffer is no capturer's: a compiler has copied it, and what the forward pass"
            " writes would be lost. Leave it out of the compiled graph, or run eagerly"
        )
    return cache.forward


def _capture_weights(
    buffer: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor, layer_id: int
) -> None:
    _forward(buffer).record(layer_id, topk_ids, weights=topk_weights)


def _begin_forward(buffer: torch.Tensor, rows: int) -> None:
    _forward(buffer).begin(rows)


def _end_forward(buffer: torch.Tensor) -> None:
    _forward(buffer).end()


def register() -> None:
    """Register the ops that the engine does not have itself."""
    import torch

    schemas: dict[str, tuple[str, Callable[..., None]]] = {
        "vllm::capture_routing": (
            "(Tensor(a!) buffer, Tensor topk_ids, int layer_id, int batch_size) -> ()",
            _capture_routing,
        ),
        "routecap::capture_weights": (
            "(Tensor(a!) buffer, Tensor topk_ids, Tensor topk_weights, int layer_id) -> ()",
            _capture_weights,
        ),
        "routecap::begin_forward": ("(Tensor(a!) buffer, SymInt rows) -> ()", _begin_forward),
        "routecap::end_forward": ("(Tensor(a!) buffer) -> ()", _end_forward),
    }
    for name, (schema, kernel) in schemas.items():
        namespace, op = name.split("::")
        if hasattr(getattr(torch.ops, namespace), op):
            continue  # the engine has its own
        torch.library.define(name, schema)
        torch.library.impl(name, "CompositeExplicitAutograd")(kernel)
        torch.library.register_fake(name)(lambda *arguments: None)

"""The two caches of vLLM's interface: the buffer that a forward pass writes, and rows by request on
the host.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ._op import caches, register
from ._options import get_options
from ._weights import memory_beside

if TYPE_CHECKING:
    import torch

    from ._forward import Forward

logger = logging.getLogger("vllm.routecap")  # which vLLM shows


class _TorchDtype:
    """A torch dtype as a class attribute. torch is imported only when the attribute is read."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> torch.dtype:
        import torch

        dtype: torch.dtype = getattr(torch, self._name)
        return dtype


class _RoutedExpertsDeviceCache:
    """The int16 buffer [layers, rows, k] into which a forward pass writes the ids that its routers
    choose.

    Its address never changes, and `buffer[layer]` is contiguous, as kernels need it for their
    output of ids. A capturer binds the buffer as its sink. Cells that a step does not write are
    then missing. Without a capturer it is plain memory, and begins as zeros.
    """

    DTYPE = _TorchDtype("int16")

    def __init__(
        self,
        max_num_batched_tokens: int,
        num_hidden_layers: int,
        num_experts_per_tok: int,
        device: object,
    ) -> None:
        import torch

        register()
        self.num_hidden_layers = num_hidden_layers
        self.buffer = torch.zeros(
            (num_hidden_layers, max_num_batched_tokens, num_experts_per_tok),
            dtype=self.DTYPE,
            device=device,
        )
        # float32, of the ids' shape, if weights are captured
        self.weights = memory_beside(self.buffer) if get_options().weights else None
        self.forward: Forward | None = None  # of the capturer that has bound the buffer
        caches[self.buffer.data_ptr()] = self
        logger.info(
            "routed experts: buffer %s on %s, %.1f MB",
            tuple(self.buffer.shape),
            device,
            self.get_buffer_size_bytes() / 1e6,
        )

    def get_buffer_size_bytes(self) -> int:
        nbytes: int = self.buffer.nbytes
        return nbytes

    def capture_fwd_routed_experts(self, layer_id: int, topk_ids: torch.Tensor) -> None:
        """Write ids [batch, k or more] of any integer type into the first rows of one layer. Ids
        that do not fit int16 become -1.
        """
        if not 0 <= layer_id < self.num_hidden_layers:
            raise IndexError(
                f"layer {layer_id} of {self.num_hidden_layers}: give the index of a captured layer,"
                " from 0 on"
            )
        if self.forward is not None:
            self.forward.record(layer_id, topk_ids)
            return
        ids = topk_ids[:, : self.buffer.shape[2]]
        self.buffer[layer_id, : len(ids)] = ids.where((ids >= 0) & (ids <= 32767), -1).to(
            self.DTYPE
        )


class _Source(Protocol):
    """Where a host cache finds the rows of a capturer."""

    def host_rows(self, req_id: str) -> NDArray[np.int16] | None: ...
    def host_length(self, req_id: str) -> int: ...
    def host_bytes(self) -> int: ...
    def host_free(self, req_id: str) -> None: ...


class _RoutedExpertsHostCache:
    """Rows by request, as int16 arrays [rows, layers, k].

    Reading copies the rows that a capturer has at that moment. For requests that no capturer has,
    the caller can fill arrays of its own, which it gets by `get_or_grow_buffer`.
    """

    DTYPE = np.int16

    def __init__(
        self, num_hidden_layers: int, num_experts_per_tok: int, max_model_len: int
    ) -> None:
        self.num_hidden_layers = num_hidden_layers
        self.num_experts_per_tok = num_experts_per_tok
        self.max_model_len = max_model_len
        self._fill = get_options().fill
        self._buffers: dict[str, NDArray[np.int16]] = {}
        self._filled: dict[str, int] = {}
        self._sources: weakref.WeakSet[Any] = weakref.WeakSet()

    def add_source(self, source: _Source) -> None:
        self._sources.add(source)

    def get_buffer_size_bytes(self) -> int:
        """Return the bytes of the caller's arrays and of the rows of capturers."""
        captured: int = sum(source.host_bytes() for source in self._sources)
        return captured + sum(buffer.nbytes for buffer in self._buffers.values())

    def get_or_grow_buffer(self, req_id: str, max_pos: int) -> NDArray[np.int16]:
        """Return the caller's array for a request, with a row for `max_pos` at least. New rows hold
        the fill, -1 by default.

        The array doubles when it is too short, up to the model's length. Otherwise the same object
        is returned.
        """
        old = self._buffers.get(req_id)
        rows = max_pos + 1
        if old is not None:
            if len(old) >= rows:
                return old
            rows = max(rows, min(2 * len(old), self.max_model_len))
        new = np.full(
            (rows, self.num_hidden_layers, self.num_experts_per_tok), self._fill, self.DTYPE
        )
        if old is not None:
            new[: len(old)] = old
        self._buffers[req_id] = new
        return new

    def get_buffer(self, req_id: str) -> NDArray[np.int16] | None:
        """Return the rows of a request, or None if it is not known. Waits for rows in flight."""
        captured = (
            rows for source in self._sources if (rows := source.host_rows(req_id)) is not None
        )
        return next(captured, self._buffers.get(req_id))

    def update_filled_len(self, req_id: str, max_pos: int) -> None:
        self._filled[req_id] = max(self._filled.get(req_id, 0), max_pos + 1)

    def get_filled_len(self, req_id: str) -> int:
        """Return one past the last row of a request, or 0. Waits for rows in flight."""
        return max(
            (source.host_length(req_id) for source in self._sources), default=0
        ) or self._filled.get(req_id, 0)

    def free_request(self, req_id: str) -> None:
        """Forget a request. Unknown requests are ignored."""
        self.drop_arrays((req_id,))
        for source in self._sources:
            source.host_free(req_id)

    def drop_arrays(self, req_ids: Iterable[str]) -> None:
        """Forget the caller's arrays of requests, but not the rows of capturers."""
        for req_id in req_ids:
            self._buffers.pop(req_id, None)
            self._filled.pop(req_id, None)

"""What callers get: int16 arrays [rows, layers, k], now or when they are looked at."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

import routecap


def to_array(routing: routecap.Routing, fill: int) -> NDArray[np.int16]:
    """The ids of a routing that is ready, in memory of their own, with `fill` in missing cells."""
    out = np.empty((routing.rows, routing.layers, routing.k), np.int16)
    # A fill that is an expert's id needs a mask: missing cells must not pass for routing unnoticed.
    mask = np.empty(out.shape[:2], np.bool_) if fill >= 0 else None
    routing.copy_to(out, mask=mask, fill=fill)
    return out


class PendingRoutedExperts:
    """The routed experts of a request whose last steps may still be in flight: an int16 array [rows, layers, k] to whoever looks at it.

    The shape is known at once. Everything that needs the ids waits for them, without the GIL, and keeps the array. Pickling and copying give that
    array. From any thread.
    """

    dtype = np.dtype(np.int16)
    ndim = 3

    def __init__(self, routing: routecap.Routing, shape: tuple[int, int, int], fill: int) -> None:
        self.routing = routing
        self.shape = shape
        self._fill = fill
        self._array: NDArray[np.int16] | None = None

    @property
    def ready(self) -> bool:
        """Whether looking at it waits for nothing."""
        return self._array is not None or self.routing.ready

    def array(self) -> NDArray[np.int16]:
        if self._array is None:
            self.routing.wait()
            self._array = to_array(self.routing, self._fill)
        return self._array

    def validity(self) -> NDArray[np.bool_]:
        """[rows, layers]: which cells are there."""
        self.routing.wait()
        return self.routing.mask()

    @property
    def size(self) -> int:
        return self.shape[0] * self.shape[1] * self.shape[2]

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        return self.array()[index]

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        array = self.array()
        return array.astype(dtype or array.dtype, copy=bool(copy))

    def __reduce__(self) -> tuple[Any, ...]:
        return np.asarray, (self.array(),)

    def __repr__(self) -> str:
        return f"<PendingRoutedExperts {self.shape}{'' if self.ready else ', in flight'}>"


def split_routed_experts(
    routed_experts: Any, prompt_len: int, num_output_tokens: int | None = None
) -> tuple[NDArray[np.int16] | None, NDArray[np.int16] | None]:
    """Divide the rows of a request into those of its prompt and those of its output, which are views. An empty part is None.

    Args:
        routed_experts: [rows, layers, k].
        prompt_len: Tokens of the prompt.
        num_output_tokens: If positive, at most so many rows are the output's. (The last token is usually never input, so there is one row fewer.)
    """
    generated_end = prompt_len + num_output_tokens if num_output_tokens is not None and num_output_tokens > 0 else None
    prompt, generated = routed_experts[:prompt_len], routed_experts[prompt_len:generated_end]
    return (prompt if len(prompt) else None), (generated if len(generated) else None)

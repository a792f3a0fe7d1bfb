"""What callers get: arrays [rows, layers, k], made at once or when somebody reads them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

import routecap
from routecap.adapter import to_array

from ._unread import Rows


def spread(cells: NDArray[Any], decoder_layers: int, layer_map: NDArray[Any]) -> NDArray[Any]:
    """[rows, layers of the decoder, ...] from [rows, layers that route, ...]. The others are zeros,
    as in vLLM's own capture.
    """
    out = np.zeros((len(cells), decoder_layers, *cells.shape[2:]), cells.dtype)
    out[:, layer_map] = cells
    return out


class PendingRoutedExperts:
    """The routed experts of a request whose last steps may still be in flight.

    It behaves as an array [rows, layers, k]. The shape is known at once. Whatever needs the ids
    waits for them, without the GIL, and keeps the array. Pickling and copying give that array. All
    of it can be used from any thread.

    Until the array is made it holds routecap's rows, which take one byte for each id up to 256
    experts. They are in pages of the capturer, until its budget gets short (`_unread`).

    Attributes:
        routing: The rows with their validity, tags and layers. Whoever takes it holds its memory.
        first: The row of `routing` that is row 0 here.
        decoder_layers: If not 0, there are this many layers, those of the decoder. Cells of layers
            that do not route are 0, and not valid.
    """

    ndim = 3

    def __init__(
        self,
        routing: routecap.Routing | Rows,
        shape: tuple[int, int, int],
        fill: int,
        *,
        first: int = 0,
        dtype: DTypeLike = np.int16,
        decoder_layers: int = 0,
    ) -> None:
        self._rows = routing if isinstance(routing, Rows) else Rows(routing)
        self.decoder_layers = decoder_layers
        self.shape = (shape[0], decoder_layers or shape[1], shape[2])
        self.first = first
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self._fill = fill
        self._array: NDArray[Any] | None = None

    @property
    def routing(self) -> routecap.Routing:
        return self._rows.routing

    def read(self) -> None:
        """Copy its rows out of the capturer's budget. Waits for rows in flight."""
        self._rows.read()

    @property
    def ready(self) -> bool:
        """Whether reading it waits for nothing."""
        return self._array is not None or self.routing.ready

    def array(self) -> NDArray[Any]:
        if self._array is None:
            self.read()
            self._array = self._spread(to_array(self.part(), self._fill, self.dtype))
        return self._array

    def validity(self) -> NDArray[np.bool_]:
        """[rows, layers]: which cells are there."""
        return self._spread(self.part().mask())

    def weights(self) -> NDArray[np.float32] | None:
        """[rows, layers, k]: the weight of each id. NaN where it is missing, 0 in layers that do not
        route; None if no weights were captured.
        """
        self.read()
        part = self.part()
        return None if part.weights_dtype is None else self._spread(part.weights())

    def _spread(self, cells: NDArray[Any]) -> NDArray[Any]:
        """[rows, layers, ...] from [rows, layers that route, ...]."""
        if not self.decoder_layers:
            return cells
        return spread(cells, self.decoder_layers, self.routing.layer_map)

    def of(self, dtype: DTypeLike) -> PendingRoutedExperts:
        """The same in another integer type."""
        return self._part(self.first, self.shape[0], dtype)

    def _part(self, first: int, rows: int, dtype: DTypeLike) -> PendingRoutedExperts:
        shape = (rows, *self.shape[1:])
        return PendingRoutedExperts(
            self._rows,
            shape,
            self._fill,
            first=first,
            dtype=dtype,
            decoder_layers=self.decoder_layers,
        )

    def part(self) -> routecap.Routing:
        """Its rows, after they have landed."""
        self.routing.wait()
        if self.first == 0 and self.shape[0] == self.routing.rows:
            return self.routing
        return self.routing.slice(self.first, self.shape[0])

    @property
    def size(self) -> int:
        return self.shape[0] * self.shape[1] * self.shape[2]

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def tolist(self) -> Any:
        return self.array().tolist()

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        """A slice of consecutive rows is lazy too; anything else is an array."""
        if isinstance(index, slice) and index.step in (None, 1):
            first, end, _ = index.indices(len(self))
            return self._part(self.first + first, max(0, end - first), self.dtype)
        return self.array()[index]

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        array = self.array()
        return array.astype(dtype or array.dtype, copy=bool(copy))

    def __reduce__(self) -> tuple[Any, ...]:
        return np.asarray, (self.array(),)

    def __repr__(self) -> str:
        return f"<PendingRoutedExperts {self.shape}{'' if self.ready else ', in flight'}>"


def of_array(array: NDArray[np.int16], first: int) -> PendingRoutedExperts:
    """Rows from position `first` on, from an array that has -1 in missing cells."""
    routing = routecap.Routing.from_arrays(array, experts=routecap.MAX_EXPERTS, first=first)
    rows, layers, k = array.shape
    return PendingRoutedExperts(routing, (rows, layers, k), -1, first=first, dtype=array.dtype)


def split_routed_experts(
    routed_experts: Any, prompt_len: int, num_output_tokens: int | None = None
) -> tuple[Any, Any]:
    """Divide the rows of a request into those of its prompt and those of its output.

    They are views. An empty part is None.

    Args:
        routed_experts: [rows, layers, k]. If it is pending the parts are pending too, and rows
            before its `first` are left out.
        prompt_len: Tokens of the prompt.
        num_output_tokens: If positive, the output has at most this many rows. (Usually the last
            token is never input, so that there is one row fewer.)
    """
    generated_end = (
        prompt_len + num_output_tokens
        if num_output_tokens is not None and num_output_tokens > 0
        else None
    )
    if first := getattr(routed_experts, "first", 0):
        prompt_len = max(0, prompt_len - first)
        generated_end = None if generated_end is None else max(0, generated_end - first)
    prompt, generated = routed_experts[:prompt_len], routed_experts[prompt_len:generated_end]
    return (prompt if len(prompt) else None), (generated if len(generated) else None)

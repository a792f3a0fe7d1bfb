"""A capturer's sink: the memory into which routers' choices are written."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import _structs as structs
from ._arguments import shape_and_dtype
from ._constants import Dtype, Status
from ._docs import documented
from ._errors import error
from ._library import raw
from ._opened import Opened
from ._protocols import Tensor, TensorLike
from ._steps import Step, ticket_of
from ._tensors import (
    DeviceArray,
    bytes_at,
    describe,
    expect_device,
    expect_dtype,
    expect_writable,
    numpy_dtype,
)
from ._weights import array_dtype


class SinkMemory(Opened):
    """Capturer: the sink, and rows that arrive in host memory."""

    def _sink(
        self, tensor: TensorLike, weights: TensorLike | None, interleaved: bool
    ) -> tuple[Tensor, int, bytes]:
        """How many layers a tensor ([layers,] rows, k) has, and its routecap_sink."""
        found = describe(tensor, "tensor")
        expect_device(found, self._place, "tensor")
        dtype = expect_dtype(found, (Dtype.I16, Dtype.I32, Dtype.I64), "tensor")
        if len(found.shape) not in (2, 3):
            raise error(
                Status.ERR_SHAPE_MISMATCH,
                f"tensor has shape {found.shape}, [rows, k] or [layers, rows, k] is expected: give"
                " a tensor of two or three dimensions",
            )
        *outer, rows, k = found.shape
        layers = outer[0] if outer else 1
        row_stride = found.strides[-2] if rows > 1 else 0
        layer_stride = found.strides[0] if layers > 1 and rows > 0 else 0
        if k > 1 and found.strides[-1] != 1:
            raise error(
                Status.ERR_ARGUMENT,
                "tensor: the ids of a row must be next to one another: give a tensor whose last"
                " dimension is dense",
            )
        if found.address % found.itemsize:
            raise error(
                Status.ERR_ARGUMENT,
                "tensor is not aligned to its elements: give one whose address is a multiple of"
                " their size",
            )
        least = k if interleaved else (rows - 1) * row_stride + k
        if rows > 1 and row_stride < k or layers > 1 and rows > 0 and layer_stride < least:
            raise error(
                Status.ERR_SHAPE_MISMATCH,
                f"tensor has strides {found.strides}: rows or layers overlap. Give one that is not"
                " expanded",
            )
        beside: dict[str, int] = {}
        if weights is not None:
            other = describe(weights, "weights")
            expect_device(other, self._place, "weights")
            kind = self._config.weights_dtype
            if (other.shape, other.strides) != (found.shape, found.strides) or (
                kind is not None and other.itemsize != array_dtype(kind).itemsize
            ):
                raise error(
                    Status.ERR_SHAPE_MISMATCH,
                    f"weights has {shape_and_dtype(other)} and strides {other.strides}: give a tensor"
                    f" of shape {found.shape} and strides {found.strides}, as the ids have, of the"
                    " type that the setting `weights` names",
                )
            beside = {
                "weights": other.address,
                "weights_dtype": 0 if kind is None else int(kind),
                "weights_bytes": bytes_at(other),
            }
        sink = structs.sink(
            dtype=dtype,
            ids=found.address,
            ids_bytes=bytes_at(found),
            rows=rows,
            k=k,
            row_stride=row_stride,
            layer_stride=layer_stride,
            **beside,
        )
        return found, layers, sink

    @documented("routecap_sink_bind")
    def bind(self, first_layer: int, tensor: TensorLike, weights: TensorLike | None = None) -> None:
        """Use a tensor as the sink of a layer ([rows, k]) or of several ([layers, rows, k]). It has
        int16, int32 or int64, and is kept alive until the capturer is closed. k is that of these
        layers. A router that chooses fewer writes NO_EXPERT into the columns behind.
        """
        found = describe(tensor, "tensor")
        expect_writable(found, "tensor")
        if weights is not None:
            expect_writable(describe(weights, "weights"), "weights")
        found, layers, sink = self._sink(found, weights, interleaved=False)
        raw.routecap_sink_bind(self._handle, first_layer, layers, sink)
        raw.keep(self._handle, found.holder)
        if weights is not None:
            raw.keep(self._handle, describe(weights, "weights").holder)

    @documented("routecap_step_arrive")
    def arrive(self, step: Step, ids: TensorLike | None, weights: TensorLike | None = None) -> None:
        """Hand over the rows of a step that was issued with Snapshot.LATER. Any thread may call it.

        ids: a tensor [layers, rows, k] of int16, int32 or int64 in host memory, in which only the
        ids of a row must be next to one another. NO_EXPERT is in columns without an expert. None:
        the rows will not come.
        """
        sink = None
        if ids is not None:
            found, layers, sink = self._sink(ids, weights, interleaved=True)
            if layers != self.layers:
                raise error(
                    Status.ERR_SHAPE_MISMATCH,
                    f"ids have shape {found.shape}: give those of all {self.layers} layers",
                )
        raw.routecap_step_arrive(self._handle, ticket_of(step, self), sink)

    @documented("routecap_sink_layer")
    def sink(self, layer: int) -> NDArray[Any] | DeviceArray | None:
        """The sink of a layer, [rows, k]: a NumPy array, or a DeviceArray on CUDA; None if it has
        no memory yet. It stays valid after `close`.
        """
        memory, handle = structs.sink.empty(), self._handle
        raw.routecap_sink_layer(handle, layer, memory)
        dtype, address, rows, k, row_stride, *_ = structs.sink.read(memory)
        kind = numpy_dtype(dtype) if address else None
        return self._in_sink(handle, address, dtype, kind, rows, k, row_stride)

    @documented("routecap_sink_layer")
    def weights_sink(self, layer: int) -> NDArray[Any] | DeviceArray | None:
        """The weights in the sink of a layer, [rows, k], as `sink` has the ids: of float32 or float16,
        or the bits of bfloat16 as uint16; None if it has none.
        """
        memory, handle = structs.sink.empty(), self._handle
        raw.routecap_sink_layer(handle, layer, memory)
        found = dict(zip(structs.sink.fields, structs.sink.read(memory), strict=True))
        address, dtype = found["weights"], found["weights_dtype"]
        rows, k, row_stride = found["rows"], found["k"], found["row_stride"]
        kind = array_dtype(dtype) if dtype else None
        return self._in_sink(handle, address, dtype, kind, rows, k, row_stride)

    def _in_sink(
        self,
        handle: object,
        address: int,
        dtype: int,
        kind: "np.dtype[Any] | None",
        rows: int,
        k: int,
        row_stride: int,
    ) -> NDArray[Any] | DeviceArray | None:
        if not address or kind is None:
            return None
        if not self._host:
            return DeviceArray(address, Dtype(dtype), (rows, k), row_stride, self._place, handle)
        elements = (rows - 1) * row_stride + k
        view: NDArray[Any] = np.ndarray(
            (rows, k),
            kind,
            raw.memory(address, elements * kind.itemsize, 1, handle),
            strides=(row_stride * kind.itemsize, kind.itemsize),
        )
        return view

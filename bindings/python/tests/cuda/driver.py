"""Memory, streams and graphs of a CUDA driver, as much as the tests need.

With the driver that needs no device, device memory can be looked at as it is.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

cuda = ctypes.CDLL("libcuda.so.1")


def call(name: str, *arguments: Any) -> None:
    address = ctypes.c_void_p()
    found = cuda.cuGetProcAddress_v2(
        name.encode(), ctypes.byref(address), 12030, ctypes.c_uint64(0), None
    )
    if found != 0 or address.value is None:
        raise RuntimeError(f"the driver has no {name}")
    status = ctypes.CFUNCTYPE(ctypes.c_int)(address.value)(*arguments)
    if status != 0:
        raise RuntimeError(f"{name} returned {status}")


context = ctypes.c_void_p()
call("cuInit", 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
call("cuCtxSetCurrent", context)


class Stream:
    """As torch's streams: its address is `cuda_stream`."""

    def __init__(self) -> None:
        address = ctypes.c_void_p()
        call("cuStreamCreate", ctypes.byref(address), 1)
        self.cuda_stream = address.value

    def synchronize(self) -> None:
        call("cuStreamSynchronize", ctypes.c_void_p(self.cuda_stream))

    @contextmanager
    def capture(self) -> Iterator["Graph"]:
        graph = Graph(self)
        call("cuStreamBeginCapture", ctypes.c_void_p(self.cuda_stream), 2)
        yield graph
        captured = ctypes.c_void_p()
        call("cuStreamEndCapture", ctypes.c_void_p(self.cuda_stream), ctypes.byref(captured))
        call("cuGraphInstantiate", ctypes.byref(graph.executable), captured, ctypes.c_ulonglong(0))
        call("cuGraphDestroy", captured)


class Graph:
    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.executable = ctypes.c_void_p()

    def replay(self) -> None:
        call("cuGraphLaunch", self.executable, ctypes.c_void_p(self.stream.cuda_stream))


class DeviceTensor:
    """Device memory with an array's shape, known to others by __cuda_array_interface__. `values` is
    the same memory.
    """

    def __init__(self, values: NDArray[Any], device: int | None = None) -> None:
        address = ctypes.c_void_p()
        call("cuMemAlloc", ctypes.byref(address), ctypes.c_size_t(max(values.nbytes, 1)))
        assert address.value is not None
        self.address = address.value
        self.values = (
            np.ctypeslib.as_array(
                ctypes.cast(self.address, ctypes.POINTER(ctypes.c_uint8)), (values.nbytes,)
            )
            .view(values.dtype)
            .reshape(values.shape)
        )
        self.values[...] = values
        if device is not None:
            self.device = device

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        strides = None if self.values.flags.c_contiguous else self.values.strides
        return {
            "shape": self.values.shape,
            "typestr": self.values.dtype.str,
            "data": (self.values.ctypes.data, False),
            "strides": strides,
            "version": 3,
        }

    def __getitem__(self, key: Any) -> "DeviceTensor":
        part = object.__new__(DeviceTensor)
        part.__dict__.update(self.__dict__, values=self.values[key], whole=self)
        return part

    def __len__(self) -> int:
        return len(self.values)

    def __del__(self) -> None:
        if not hasattr(self, "whole"):
            call("cuMemFree", ctypes.c_void_p(self.address))

"""What calls take that other libraries make: tensors and streams."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, SupportsIndex, TypeAlias, Union

from numpy.typing import NDArray

from ._constants import Dtype


class Tensor(NamedTuple):
    """Memory that somebody else owns: `holder` keeps it."""

    address: int
    dtype: Dtype | str
    """What it is; a name if routecap has no use for such elements."""
    itemsize: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In elements. 0 is memory that several elements share."""
    device: int | None
    """Ordinal, -1 for the host, or None: a CUDA device, its owner does not say which."""
    readonly: bool
    pinned: Callable[[], bool]
    """Whether host memory is page-locked, so that a device reads it too."""
    holder: Any


class SupportsDLPack(Protocol):
    """A tensor of NumPy, torch, JAX, CuPy and others."""

    def __dlpack__(self) -> object: ...

    def __dlpack_device__(self) -> tuple[int, int]: ...


class SupportsCudaArray(Protocol):
    """A tensor on a CUDA device, of CuPy or Numba for instance."""

    @property
    def __cuda_array_interface__(self) -> Mapping[str, Any]: ...


TensorLike: TypeAlias = Union[
    NDArray[Any], SupportsDLPack, SupportsCudaArray, bytes, bytearray, memoryview, Tensor
]
"""A tensor of any framework, or another buffer."""
NumberLike: TypeAlias = Union[SupportsIndex, TensorLike]
"""A number, or a tensor of one element that is read when the device gets there."""
BytesLike: TypeAlias = Union[bytes, bytearray, memoryview, NDArray[Any]]
"""A C-contiguous buffer."""
MessageLike: TypeAlias = Union[BytesLike, str, dict[str, Any], list[Any]]
"""A message: its bytes, its text, or what json.loads made of it."""


class TorchStream(Protocol):
    @property
    def cuda_stream(self) -> int: ...


class CupyStream(Protocol):
    @property
    def ptr(self) -> int: ...


class NumbaStream(Protocol):
    @property
    def handle(self) -> object: ...


class CudaStream(Protocol):
    """CUDA Python's, and any object with its protocol."""

    def __cuda_stream__(self) -> tuple[int, int]: ...


StreamLike: TypeAlias = Union[int, TorchStream, CupyStream, NumbaStream, CudaStream]
"""The address of a stream, or an object of torch, CuPy, Numba or CUDA Python."""

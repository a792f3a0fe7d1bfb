"""Tensors of any framework, and the streams of theirs.

No framework is imported here: what gives us a tensor has imported it already.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._constants import Dtype, Provenance, Status
from ._errors import Error, error, member
from ._library import raw
from ._protocols import BytesLike, StreamLike, SupportsCudaArray, Tensor, TensorLike

HOST = -1  # as a device: host memory

_NAMES = {
    Dtype.U8: "uint8",
    Dtype.I16: "int16",
    Dtype.U16: "uint16",
    Dtype.I32: "int32",
    Dtype.U32: "uint32",
    Dtype.I64: "int64",
    Dtype.F16: "float16",
    Dtype.F32: "float32",
}
"""What NumPy and PyTorch call the types of tensors; bfloat16, which NumPy has not, is added below."""
_TYPES = {dtype: np.dtype(name) for dtype, name in _NAMES.items()}
_FORMATS: dict[str, Dtype] = {own.char: dtype for dtype, own in _TYPES.items()}
_FORMATS |= {"l": Dtype.I64, "q": Dtype.I64}
_TYPESTRS = {own.str: dtype for dtype, own in _TYPES.items()}
_DLPACK_TYPES = {
    ("iuf".index(own.kind), 8 * own.itemsize): dtype for dtype, own in _TYPES.items()
} | {(4, 16): Dtype.BF16}
_TORCH_TYPES = {f"torch.{name}": dtype for dtype, name in _NAMES.items()}
_TORCH_TYPES["torch.bfloat16"] = Dtype.BF16
_SIZES = {dtype: own.itemsize for dtype, own in _TYPES.items()}
_SIZES |= {Dtype.ID16_BF16: 4, Dtype.BF16: 2}
_NUMPY_TYPES: dict[int, "np.dtype[Any]"] = {
    dtype: own for dtype, own in _TYPES.items() if own.kind in "iu"
}
_KINDS = {dtype: Dtype(kind) for kind, dtype in _NUMPY_TYPES.items()}


def numpy_dtype(dtype: int) -> "np.dtype[Any]":
    if dtype not in _NUMPY_TYPES:
        raise error(
            Status.ERR_DTYPE,
            f"NumPy has no type for dtype {dtype}: take one of the integers that routecap.Dtype"
            " names",
        )
    return _NUMPY_TYPES[dtype]


def dtype_of(value: object) -> Dtype:
    """A Dtype of what names a type of ids: a Dtype, its number or name, anything that NumPy takes
    for a dtype, or torch's.
    """
    if isinstance(value, Dtype):
        return value
    if isinstance(value, int) and value in _SIZES:
        return Dtype(value)
    if isinstance(value, str) and value.upper() in Dtype.__members__:
        return Dtype[value.upper()]
    if str(value) in _TORCH_TYPES:
        return _TORCH_TYPES[str(value)]
    other: Any = value
    try:
        return _KINDS[np.dtype(other)]
    except (KeyError, TypeError):
        raise error(
            Status.ERR_DTYPE,
            f"{value!r} is no type of ids: give one of {', '.join(str(kind) for kind in _KINDS)}",
        ) from None


# ---- Tensors in


def _known(types: dict[str, Dtype], name: str) -> Dtype | str:
    return types[name] if name in types else name


def _no() -> bool:
    return False


def _in_elements(strides: tuple[int, ...], itemsize: int, name: str) -> tuple[int, ...]:
    if any(stride % itemsize for stride in strides):
        raise error(
            Status.ERR_ARGUMENT,
            f"{name} has strides of {strides} bytes, which are not multiples of its elements'"
            f" {itemsize}: make it contiguous",
        )
    return tuple([stride // itemsize for stride in strides])


def _from_buffer(tensor: BytesLike, name: str) -> Tensor:
    bfloat16, seen = False, tensor
    if isinstance(tensor, np.ndarray) and tensor.dtype.name == "bfloat16":
        bfloat16 = True  # of ml_dtypes, which the buffer protocol does not know
        seen = tensor.view(np.uint16)
    address, form, itemsize, shape, strides, readonly = raw.describe_buffer(seen)
    holder: object = tensor if isinstance(tensor, np.ndarray) else memoryview(tensor)
    dtype = Dtype.BF16 if bfloat16 else _known(_FORMATS, form.lstrip("@=<"))
    return Tensor(
        address,
        dtype,
        itemsize,
        shape,
        _in_elements(strides, itemsize, name),
        HOST,
        bool(readonly),
        _no,
        holder,
    )


def _from_torch(tensor: Any, name: str) -> Tensor:
    if str(tensor.layout) != "torch.strided":
        raise error(
            Status.ERR_ARGUMENT,
            f"{name} is a tensor of layout {tensor.layout}: give a dense one (to_dense())",
        )
    kind = tensor.device.type
    if kind not in ("cpu", "cuda"):
        raise error(
            Status.ERR_ARGUMENT,
            f"{name} is on {tensor.device}, where routecap cannot go: copy it to the host or a CUDA"
            " device",
        )
    device = HOST if kind == "cpu" else tensor.device.index
    dtype = str(tensor.dtype)
    return Tensor(
        tensor.data_ptr(),
        _known(_TORCH_TYPES, dtype),
        tensor.element_size(),
        tuple(tensor.shape),
        tensor.stride(),
        device,
        False,
        tensor.is_pinned,
        tensor,
    )


def _from_cuda_array(tensor: SupportsCudaArray, name: str) -> Tensor:
    face = tensor.__cuda_array_interface__
    if face.get("mask") is not None:
        raise error(
            Status.ERR_ARGUMENT,
            f"{name} is a masked array: give its data, with an id that no expert has where it is"
            " masked",
        )
    address, readonly = face["data"]
    shape, typestr = tuple(face["shape"]), face["typestr"]
    itemsize = int(typestr[2:])
    strides = face.get("strides")
    if strides is None:
        dense = [itemsize]
        for size in reversed(shape[1:]):
            dense.insert(0, dense[0] * size)
        strides = tuple(dense[: len(shape)])
    device = getattr(
        tensor, "device", None
    )  # an int (ours), or an object with one as its id (cupy)
    device = getattr(device, "id", device)
    return Tensor(
        address,
        _known(_TYPESTRS, typestr),
        itemsize,
        shape,
        _in_elements(strides, itemsize, name),
        device if isinstance(device, int) else None,
        bool(readonly),
        _no,
        tensor,
    )


_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED = 1, 2, 3, 13  # DLPack's device types


def _from_dlpack(tensor: Any, name: str) -> Tensor:
    kind, _ = tensor.__dlpack_device__()
    # Order among streams is the caller's, as with every other tensor: -1 asks the producer to wait
    # for nothing.
    options = {"stream": -1} if kind == _CUDA else {}
    try:
        capsule = tensor.__dlpack__(max_version=(1, 0), **options)
    except TypeError:
        capsule = tensor.__dlpack__(**options)
    address, code, bits, shape, strides, readonly, kind, device = raw.describe_dlpack(capsule)
    if kind not in (_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED):
        raise error(
            Status.ERR_ARGUMENT,
            f"{name} is on a device of DLPack's type {kind}, where routecap cannot go: copy it to"
            " the host or a CUDA device",
        )
    return Tensor(
        address,
        _DLPACK_TYPES.get((code, bits), f"DLPack type {code} of {bits} bits"),
        bits // 8,
        shape,
        strides,
        HOST if kind in (_CPU, _CUDA_HOST) else device,
        bool(readonly),
        lambda: kind == _CUDA_HOST,
        capsule,
    )


def describe(tensor: TensorLike, name: str) -> Tensor:
    """What a tensor is; `name` is its argument's, for errors. A description describes itself."""
    if type(tensor) is Tensor:
        return tensor
    try:
        found = _described(tensor, name)
        if isinstance(found.dtype, Dtype) and found.itemsize != _SIZES[found.dtype]:
            raise error(
                Status.ERR_DTYPE,
                f"{name} says that it is of {found.dtype.name}, and has elements of"
                f" {found.itemsize} bytes: give np.asarray({name}) of another type",
            )
        return found
    except Error:
        raise
    except (TypeError, ValueError, BufferError) as reason:
        raise error(
            Status.ERR_ARGUMENT,
            f"{name} is a {type(tensor).__name__}, not a NumPy array, a tensor with __dlpack__ or"
            f" __cuda_array_interface__: {reason}. Give np.asarray({name})",
        ) from reason


def bytes_at(tensor: Tensor) -> int:
    """The bytes from a tensor's first element to the end of the last one in memory."""
    if not all(tensor.shape):
        return 0
    last = sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.strides) if stride > 0
    )
    return (last + 1) * tensor.itemsize


def _described(tensor: Any, name: str) -> Tensor:
    if isinstance(tensor, (np.ndarray, bytes, bytearray, memoryview)):
        return _from_buffer(tensor, name)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        return _from_torch(tensor, name)
    if hasattr(tensor, "__cuda_array_interface__"):
        return _from_cuda_array(tensor, name)
    if hasattr(tensor, "__dlpack__"):
        return _from_dlpack(tensor, name)
    return _from_buffer(tensor, name)


def address_of_alike(tensor: Any, first: Any, described: Tensor) -> int | None:
    """The address of a tensor of torch that differs from the first in its memory alone; None: it
    may not be.
    """
    torch = sys.modules.get("torch")
    if torch is None or type(first) is not torch.Tensor or type(tensor) is not torch.Tensor:
        return None
    if tensor.dtype != first.dtype or tensor.shape != first.shape or tensor.device != first.device:
        return None
    return int(tensor.data_ptr()) if tensor.stride() == described.strides else None


# ---- What is asked of a tensor


def expect_device(tensor: Tensor, device: int, name: str) -> None:
    """Refuse memory that a capturer on `device` (an ordinal or HOST) cannot use."""
    if tensor.device == device or tensor.device is None and device != HOST:
        return
    if tensor.device == HOST and tensor.pinned():
        return
    place = {HOST: "in host memory", None: "on a CUDA device"}
    raise error(
        Status.ERR_ARGUMENT,
        f"{name} is {place.get(tensor.device, f'on cuda:{tensor.device}')}, the capturer's memory"
        f" is {place.get(device, f'on cuda:{device}')}: copy it there, or make the capturer with"
        " backend= and device= of where the model is",
    )


def expect_dtype(tensor: Tensor, dtypes: tuple[Dtype, ...], name: str) -> Dtype:
    if tensor.dtype in dtypes:
        return Dtype(tensor.dtype)
    found = tensor.dtype.name if isinstance(tensor.dtype, Dtype) else tensor.dtype
    raise error(
        Status.ERR_DTYPE,
        f"{name} has elements of type {found}, not {' or '.join(dtype.name for dtype in dtypes)}:"
        " convert it, or say dtype= where its bits mean something else",
    )


def expect_kind(tensor: Tensor, dtype: object, dtypes: tuple[Dtype, ...], name: str) -> Dtype:
    """The type of a tensor's elements: one of `dtypes`, or `dtype`, which the caller says they are."""
    if dtype is None:
        return expect_dtype(tensor, dtypes, name)
    kind = dtype_of(dtype)
    if tensor.itemsize != _SIZES[kind]:
        raise error(
            Status.ERR_DTYPE,
            f"{name} has elements of {tensor.itemsize} bytes, which are no {kind.name}: give a"
            f" tensor of {_SIZES[kind]} bytes an element, or another dtype",
        )
    return kind


def expect_writable(tensor: Tensor, name: str) -> None:
    if tensor.readonly:
        raise error(Status.ERR_ARGUMENT, f"{name} may not be written: give a copy of it, which may")


def expect_dense(tensor: Tensor, name: str) -> None:
    """Refuse arrays with gaps, or in another order than C's."""
    dense = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.strides)):
        if size > 1 and stride != dense:
            raise error(
                Status.ERR_ARGUMENT,
                f"{name} must be C-contiguous: give np.ascontiguousarray({name}), or"
                f" {name}.contiguous()",
            )
        dense *= size


def matrix(tensor: Tensor, name: str, columns: str) -> tuple[int, int, int, int]:
    """Rows, columns, and the strides of both, of a two-dimensional tensor."""
    if len(tensor.shape) != 2:
        raise error(
            Status.ERR_SHAPE_MISMATCH,
            f"{name} has shape {tensor.shape}, [rows, {columns}] is expected: reshape it to two"
            " dimensions",
        )
    (rows, k), (row_stride, column_stride) = tensor.shape, tensor.strides
    if k == 1:
        column_stride = 1
    if rows == 1:
        row_stride = k
    if rows and k and not (row_stride and column_stride):
        raise error(
            Status.ERR_ARGUMENT,
            f"{name} is expanded: its rows or columns share memory. Make it contiguous",
        )
    return rows, k, row_stride, column_stride


# ---- Streams


def stream_of(stream: StreamLike) -> int:
    """The address of a stream: an int, or torch's, cupy's, numba's or CUDA Python's object."""
    if isinstance(stream, int):
        return stream
    for name in ("cuda_stream", "ptr", "handle"):
        value = getattr(stream, name, None)
        if value is not None:
            return int(getattr(value, "value", value))
    protocol: Any = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        found: Any = protocol() if callable(protocol) else protocol
        return int(found[1])
    raise error(
        Status.ERR_ARGUMENT,
        f"stream is a {type(stream).__name__}, not a number or a CUDA stream: give torch's, cupy's"
        " or CUDA Python's, or its address",
    )


def torch_stream() -> Callable[[int], int]:
    """PyTorch's function that gives the address of a device's current stream, by the device's
    ordinal, without making an object of it; where it has none, one that makes one.
    """
    import torch

    def of_object(device: int) -> int:
        return int(torch.cuda.current_stream(device).cuda_stream)

    found: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", of_object)
    return found


def current_stream(tensor: object, device: int) -> int:
    """The stream on which the framework of `tensor` works now; of None: the one that is imported,
    torch before cupy. Without one, the legacy
    default.
    """
    torch = sys.modules.get("torch")
    cupy = sys.modules.get("cupy")
    if torch is not None and (
        isinstance(tensor, (torch.Tensor, Tensor)) or tensor is None and torch.cuda.is_initialized()
    ):
        return int(torch_stream()(device))
    if cupy is not None and (tensor is None or isinstance(tensor, cupy.ndarray)):
        return int(cupy.cuda.get_current_stream().ptr)
    return 0


# ---- Tensors out


class DeviceArray:
    """A matrix of ids in the memory of a CUDA device: one layer of a capturer's sink.

    What is made of it holds that memory.
    """

    def __init__(
        self,
        address: int,
        dtype: Dtype,
        shape: tuple[int, int],
        row_stride: int,
        device: int,
        owner: object,
    ) -> None:
        self.shape = shape
        self.dtype = numpy_dtype(dtype)
        self.device = device
        self._address = address
        self._row_stride = row_stride
        self._owner = raw.memory(address, 0, 0, owner)

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        strides = self._row_stride * self.dtype.itemsize, self.dtype.itemsize
        return {
            "shape": self.shape,
            "strides": strides,
            "typestr": self.dtype.str,
            "data": (self._address, False),
            "version": 3,
            "stream": None,
        }

    def __dlpack__(
        self,
        *,
        stream: object = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError("the sink is given away in place only: copy what you made of it")
        return raw.make_dlpack(
            self._address,
            self.device,
            self.dtype.itemsize * 8,
            *self.shape,
            self._row_stride,
            self._owner,
        )

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CUDA, self.device

    def torch(self) -> Any:
        """A torch tensor over the same memory. torch must be imported."""
        torch = sys.modules.get("torch")
        if torch is None:
            raise error(
                Status.ERR_STATE,
                "torch is not imported: import it first, or use __dlpack__ or"
                " __cuda_array_interface__",
            )
        return torch.from_dlpack(self)

    def __repr__(self) -> str:
        return f"DeviceArray(shape={self.shape}, dtype={self.dtype}, device={self.device})"


def integers(values: ArrayLike | None, kind: type[np.integer[Any]]) -> NDArray[Any] | None:
    """A dense array of one integer type, of numbers that fit it."""
    if values is None:
        return None
    array = np.asarray(values)
    limits = np.iinfo(kind)
    if (
        array.ndim != 1
        or array.size
        and (array.dtype.kind not in "iu" or array.min() < limits.min or array.max() > limits.max)
    ):
        raise error(
            Status.ERR_ARGUMENT,
            f"{values!r} is not a sequence of integers that fit into {np.dtype(kind)}: give a list"
            " or an array, of one dimension, of such",
        )
    return np.ascontiguousarray(array, kind)


def provenances(
    values: Sequence[Provenance | str] | NDArray[Any] | None,
) -> NDArray[Any] | None:
    if values is not None and not isinstance(values, np.ndarray):
        values = [member(Provenance, value) for value in values]
    return integers(values, np.int32)


def as_bytes(data: BytesLike, name: str) -> memoryview:
    """A buffer's bytes; it is held as long as they are."""
    try:
        return memoryview(data).cast("B")  # type: ignore[arg-type]  # arrays are buffers
    except TypeError as reason:
        raise error(
            Status.ERR_ARGUMENT,
            f"{name} must be a C-contiguous buffer: {reason}. Give bytes, a memoryview or a dense"
            " array",
        ) from None

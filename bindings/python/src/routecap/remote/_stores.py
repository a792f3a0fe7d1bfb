"""Stores of others behind one small protocol."""

import ctypes
import time
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .._constants import Status
from .._errors import error
from ._reference import check_key


class ObjectStore(Protocol):
    """Where objects are written once, and ranges of them are read."""

    scheme: str

    def write(self, key: str, data: bytes) -> Any:
        """Write an object; return the key under which it is read. Raises what the store raises."""
        ...

    def read(
        self, keys: Sequence[Any], offsets: Sequence[int], into: Sequence[memoryview]
    ) -> list[str]:
        """Fill each of `into` with the bytes of an object from an offset on, all in one call.

        Returns for each "" or why it was not filled. Of objects that are gone it does not raise.
        """
        ...

    def register(self, address: int, size: int) -> None:
        """Say what memory the ranges will be read into, before they are."""
        ...

    def unregister(self, address: int) -> None:
        """It will be freed."""
        ...

    def delete(self, keys: Sequence[Any]) -> None:
        """Nobody will read these objects again. Those that are gone are no error."""
        ...

    def close(self) -> None: ...


def connect(url: str, **settings: Any) -> ObjectStore:
    """A store by its URL.

    - ``file:///path``, ``memory://name``, ``s3://bucket/path``, ``https://host/path`` and whatever
      else fsspec knows, with the settings of its file system.
    - ``mooncake://master:port`` with the settings of `Mooncake`.
    - ``ray://`` in a program that has called ray.init.

    Credentials come from the environment or from `settings`. A URL that has some is refused, since
    URLs are logged.
    """
    scheme, _, rest = url.partition("://")
    if "@" in rest.partition("/")[0]:
        raise error(
            Status.ERR_ARGUMENT,
            "the URL has a user or a password: give these as settings, or in the environment",
        )
    if scheme == "mooncake":
        return Mooncake(rest, **settings)
    if scheme == "ray":
        return RayObjects(**settings)
    return Files(url, **settings)


class Files:
    """Objects in a file system of fsspec: a folder, a bucket, a web server, this process."""

    def __init__(self, url: str, **settings: Any) -> None:
        try:
            import fsspec
        except ImportError:
            raise ImportError("fsspec is needed for this: pip install fsspec") from None
        self.scheme = url.partition("://")[0]
        if self.scheme == "file":
            settings.setdefault("auto_mkdir", True)
        self._files, self._root = fsspec.core.url_to_fs(url, **settings)
        self._root = self._root.rstrip("/")

    def write(self, key: str, data: bytes) -> str:
        self._files.pipe_file(self._path(key), data)
        return key

    def read(
        self, keys: Sequence[Any], offsets: Sequence[int], into: Sequence[memoryview]
    ) -> list[str]:
        found = self._files.cat_ranges(
            [self._path(key) for key in keys],
            list(offsets),
            [offset + len(memory) for offset, memory in zip(offsets, into)],
            on_error="return",
        )
        return [_put(data, memory) for data, memory in zip(found, into)]

    def register(self, address: int, size: int) -> None:
        pass

    def unregister(self, address: int) -> None:
        pass

    def delete(self, keys: Sequence[Any]) -> None:
        for key in keys:
            try:
                self._files.rm_file(self._path(key))
            except FileNotFoundError:
                pass

    def close(self) -> None:
        pass

    def _path(self, key: str) -> str:
        check_key(key)
        return f"{self._root}/{key}"


def _put(data: Any, memory: memoryview) -> str:
    if isinstance(data, BaseException):
        return f"{type(data).__name__}: {data}"
    if len(data) != len(memory):
        return f"{len(data)} bytes came, where {len(memory)} were asked for"
    memory[:] = data
    return ""


class Mooncake:
    """Objects in Mooncake Store (the package mooncake-transfer-engine), of which ranges are read
    straight into registered memory.

    Args:
        master: "host:port" of mooncake_master.
        host: The name or address under which others reach this process.
        segment_bytes: Memory that this process gives to the store. Who only reads gives none.
        buffer_bytes: Memory for what this process writes.
        metadata, protocol, devices: As Mooncake has them; "rdma" and the devices' names with RDMA.
    """

    scheme = "mooncake"

    def __init__(
        self,
        master: str,
        *,
        host: str = "127.0.0.1",
        segment_bytes: int = 0,
        buffer_bytes: int = 64 << 20,
        metadata: str = "P2PHANDSHAKE",
        protocol: str = "tcp",
        devices: str = "",
    ) -> None:
        from mooncake.store import MooncakeDistributedStore, ReplicateConfig

        self._store = MooncakeDistributedStore()
        self._sizes: dict[int, int] = {}  # of what is registered, by its address
        status = self._store.setup(
            host, metadata, segment_bytes, buffer_bytes, protocol, devices, master
        )
        if status != 0:
            raise OSError(
                f"Mooncake Store at {master} cannot be used, as setup returned {status}: give the"
                " address of a running mooncake_master, and a host that others can reach"
            )
        self._placement = ReplicateConfig()
        if segment_bytes:  # an object lies with who wrote it, and goes with no other
            self._placement.preferred_segment = self._store.get_hostname()

    def write(self, key: str, data: bytes) -> str:
        status = self._store.put(key, data, self._placement)
        if status != 0:
            raise OSError(f"Mooncake Store did not take {len(data)} bytes: put returned {status}")
        return key

    def read(
        self, keys: Sequence[Any], offsets: Sequence[int], into: Sequence[memoryview]
    ) -> list[str]:
        if not keys:
            return []
        at = [_address(memory) for memory in into]
        lowest, highest = min(at), max(at)
        base = next(
            (
                each
                for each, size in self._sizes.items()
                if each <= lowest and highest < each + size
            ),
            None,
        )
        if base is None:
            raise error(Status.ERR_ARGUMENT, "into is not registered: call register before")
        (found,) = self._store.get_into_ranges(
            [base],
            [list(keys)],
            [[[address - base] for address in at]],
            [[[offset] for offset in offsets]],
            [[[len(memory)] for memory in into]],
        )
        return [
            "" if count == len(memory) else f"get_into_ranges returned {count}"
            for (count,), memory in zip(found, into)
        ]

    def register(self, address: int, size: int) -> None:
        status = self._store.register_buffer(address, size)
        if status != 0:
            raise OSError(
                f"Mooncake did not register {size} bytes, as register_buffer returned {status}:"
                " give memory that is not registered yet, and that this process may lock if the"
                " protocol is rdma"
            )
        self._sizes[address] = size

    def unregister(self, address: int) -> None:
        if self._sizes.pop(address, None) is not None:
            self._store.unregister_buffer(address)

    def delete(self, keys: Sequence[Any]) -> None:
        for key in keys:
            self._store.remove(key)

    def close(self) -> None:
        self._sizes.clear()
        self._store.close()


def _address(memory: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


class RayObjects:
    """Objects in Ray's object store. They live as long as Ray has references to them, and no longer
    than the process that wrote them.

    Args:
        seconds: How long a read waits for Ray.
        here: Bring whole objects to this machine, once, in the place of a task that cuts the ranges
            of an object where it lies. For ranks of one node that together need all rows.
    """

    scheme = "ray"

    def __init__(self, *, seconds: float = 60, here: bool = False) -> None:
        self._seconds, self._here = seconds, here

    def write(self, key: str, data: bytes) -> Any:
        import ray

        return ray.put(np.frombuffer(data, np.uint8))

    def read(
        self, keys: Sequence[Any], offsets: Sequence[int], into: Sequence[memoryview]
    ) -> list[str]:
        import ray

        ranges: dict[Any, list[int]] = {}
        for i, key in enumerate(keys):
            ranges.setdefault(key, []).append(i)
        cut = ray.remote(_cut)
        asked = {
            key: key
            if self._here
            else cut.remote(key, [(offsets[i], len(into[i])) for i in numbers])
            for key, numbers in ranges.items()
        }
        end, said = time.monotonic() + self._seconds, [""] * len(keys)
        for key, numbers in ranges.items():
            try:
                data = ray.get(asked[key], timeout=max(end - time.monotonic(), 0))
            except (ray.exceptions.RayError, TimeoutError) as reason:
                for i in numbers:
                    said[i] = f"{type(reason).__name__}: {str(reason).splitlines()[0]}"
                continue
            at = 0
            for i in numbers:
                begin = offsets[i] if self._here else at
                said[i] = _put(data[begin : begin + len(into[i])], into[i])
                at += len(into[i])
        return said

    def register(self, address: int, size: int) -> None:
        pass

    def unregister(self, address: int) -> None:
        pass

    def delete(self, keys: Sequence[Any]) -> None:
        pass  # they go with the last reference

    def close(self) -> None:
        pass


def _cut(data: NDArray[np.uint8], ranges: list[tuple[int, int]]) -> NDArray[np.uint8]:
    return np.concatenate([data[offset : offset + size] for offset, size in ranges])

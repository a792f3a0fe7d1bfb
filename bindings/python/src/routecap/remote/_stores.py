"""Stores of others behind one small protocol."""

import ctypes
import functools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from routecap import Status
from routecap.adapter import error

from ._reference import check_key

_Answer = TypeVar("_Answer")


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

        Returns for each "" or why it was not filled. Of objects that are gone it does not raise. It
        may give up on one and write there later, as long as it holds what it was given of `into`.
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


class SizedStore(ObjectStore, Protocol):
    """One that knows how long objects are."""

    def sizes(self, keys: Sequence[str]) -> list[int]:
        """Bytes of each; -1: it is not there, or the store does not answer."""
        ...


def connect(url: str, **settings: Any) -> ObjectStore:
    """A store by its URL.

    - ``file:///path``, ``memory://name``, ``s3://bucket/path``, ``https://host/path`` and whatever
      else fsspec knows, with the settings of its file system.
    - ``mooncake://master:port`` with the settings of `Mooncake`.
    - ``ray://`` in a program that has called ray.init.

    `seconds`, which all have, is how long a read waits at most: 60 unless given.

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


def _beside(
    seconds: float, calls: Sequence[Callable[[], list[_Answer]]]
) -> list[list[_Answer] | None]:
    """What these calls return, made beside one another. None: it takes longer; the call goes on, and
    holds its memory, until it ends by itself.
    """
    answers: list[list[_Answer] | None] = [None] * len(calls)
    failed: list[BaseException] = []

    def run(i: int) -> None:
        try:
            answers[i] = calls[i]()
        except Exception as reason:  # noqa: BLE001 - raised again below
            failed.append(reason)

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(calls))]
    for each in threads:
        each.start()
    end = time.monotonic() + seconds
    for each in threads:
        each.join(max(end - time.monotonic(), 0))
    for reason in failed:
        raise reason
    return answers


def _late(seconds: float) -> str:
    return f"no answer in {seconds} seconds"


class Files:
    """Objects in a file system of fsspec: a folder, a bucket, a web server, this process."""

    def __init__(self, url: str, *, seconds: float = 60, **settings: object) -> None:
        try:
            import fsspec
        except ImportError:
            raise ImportError("fsspec is needed for this: pip install fsspec") from None
        self.scheme = url.partition("://")[0]
        self.seconds = seconds
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
        def call() -> list[str]:
            found = self._files.cat_ranges(
                [self._path(key) for key in keys],
                list(offsets),
                [offset + len(memory) for offset, memory in zip(offsets, into)],
                on_error="return",
            )
            return [_put(data, memory) for data, memory in zip(found, into)]

        (said,) = _beside(self.seconds, [call])
        return [_late(self.seconds)] * len(keys) if said is None else said

    def sizes(self, keys: Sequence[str]) -> list[int]:
        def size(key: str) -> int:
            try:
                return int(self._files.size(self._path(key)))
            except FileNotFoundError:
                return -1

        (found,) = _beside(self.seconds, [lambda: [size(key) for key in keys]])
        return [-1] * len(keys) if found is None else found

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
        seconds: How long a read waits. Mooncake itself waits longer for a machine that is gone, and
            for one object after another: so a read is one call for each machine, beside the others.
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
        seconds: float = 60,
        host: str = "127.0.0.1",
        segment_bytes: int = 0,
        buffer_bytes: int = 64 << 20,
        metadata: str = "P2PHANDSHAKE",
        protocol: str = "tcp",
        devices: str = "",
    ) -> None:
        from mooncake.store import MooncakeDistributedStore, ReplicateConfig

        self._store, self.seconds = MooncakeDistributedStore(), seconds
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
        base = self._base(min(at), max(at))
        owners: dict[Any, list[int]] = {}

        def find_owners() -> list[str]:
            places = self._store.batch_get_replica_desc(list(dict.fromkeys(keys)))
            for i, key in enumerate(keys):
                owners.setdefault(_owner(places.get(key)), []).append(i)
            return []

        def read_of(numbers: list[int]) -> list[str]:
            (found,) = self._store.get_into_ranges(
                [base],
                [[keys[i] for i in numbers]],
                [[[at[i] - base] for i in numbers]],
                [[[offsets[i]] for i in numbers]],
                [[[len(into[i])] for i in numbers]],
            )
            return [
                "" if count == len(into[i]) else f"get_into_ranges returned {count}"
                for (count,), i in zip(found, numbers)
            ]

        end, said = time.monotonic() + self.seconds, [_late(self.seconds)] * len(keys)
        if _beside(self.seconds, [find_owners]) == [None]:
            return said
        calls = [functools.partial(read_of, numbers) for numbers in owners.values()]
        answers = _beside(end - time.monotonic(), calls)
        for numbers, answer in zip(owners.values(), answers):
            for i, each in zip(numbers, answer or []):
                said[i] = each
        return said

    def sizes(self, keys: Sequence[str]) -> list[int]:
        def find() -> list[int]:
            places = self._store.batch_get_replica_desc(list(dict.fromkeys(keys)))
            return [_size(places.get(key)) for key in keys]

        (found,) = _beside(self.seconds, [find])
        return [-1] * len(keys) if found is None else found

    def _base(self, lowest: int, highest: int) -> int:
        """Of the registered memory that these addresses are in."""
        for base, size in self._sizes.items():
            if base <= lowest and highest < base + size:
                return base
        raise error(Status.ERR_ARGUMENT, "into is not registered: call register before")

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


def _owner(places: Any) -> Any:
    """The machine whose memory an object is in; None: it is not there, or on a disk."""
    for each in places or ():
        if each.is_memory_replica():
            return each.get_memory_descriptor().buffer_descriptor.transport_endpoint
    return None


def _size(places: Any) -> int:
    for each in places or ():
        if each.is_memory_replica():
            return int(each.get_memory_descriptor().buffer_descriptor.size)
        if each.is_disk_replica():
            return int(each.get_disk_descriptor().object_size)
    return -1


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
        self.seconds, self._here = seconds, here

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
        end, said = time.monotonic() + self.seconds, [""] * len(keys)
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

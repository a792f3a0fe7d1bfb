"""Routings that lie elsewhere in the serialised form, of which a rank reads the rows that it needs:
files that are mapped, archives, objects of Ray.
"""

import mmap
import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._constants import Status
from ._errors import error
from ._routing import Routing, Serialized, serialized_info, slice_pieces

_ENDING = ".routecap"


class StoredRouting:
    """A routing in bytes that are not read until rows of it are: a reader, as Plan.gather takes it.

    data: the bytes of one serialised routing, such as a mapped file. They are held.
    """

    def __init__(self, data: Any) -> None:
        self._data = memoryview(data).cast("B")
        self.info: Serialized = serialized_info(self._data[:64])
        if len(self._data) != self.info.bytes:
            raise error(
                Status.ERR_FORMAT,
                f"{len(self._data)} bytes of a routing of {self.info.bytes}: give all of its bytes and no others",
            )

    @property
    def first(self) -> int:
        """Position of the first row."""
        return self.info.first

    @property
    def rows(self) -> int:
        return self.info.rows

    def read(self, first: int, rows: int) -> Routing:
        """Rows from position `first` on, as far as there are any.

        Only their bytes and the header are read; the ids are checked.
        """
        return Routing.deserialize(self.cut(first, rows))

    def cut(self, first: int, rows: int) -> bytes:
        """The same rows in the serialised form. Their ids are not checked."""
        begin = min(max(first, self.first), self.first + self.rows)
        end = min(max(first + rows, begin), self.first + self.rows)
        return b"".join(slice_pieces(self._data, begin, end - begin))

    def __repr__(self) -> str:
        return f"StoredRouting(rows {self.first} to {self.first + self.rows}, {self.info.layers} layers)"


def stored(path: str | os.PathLike[str]) -> dict[str, StoredRouting]:
    """The routings of a file, a folder or an archive, by their names, without reading them: files
    are mapped, and must not change meanwhile.

    ``.routecap``  one serialised routing; or several, one behind another, whose names are then "0",
    "1", and so on ``.tar``       an archive of such files that is not compressed, as `save` writes
    it a folder       of such files
    """
    path = Path(path)
    if path.is_dir():
        return {
            file.stem: StoredRouting(_mapped(file)) for file in sorted(path.glob("*" + _ENDING))
        }
    data = _mapped(path)
    if path.suffix == ".tar":
        return dict(_in_archive(path, data))
    several = list(_behind_one_another(data))
    return (
        {path.stem: several[0]}
        if len(several) == 1
        else {str(i): each for i, each in enumerate(several)}
    )


def _mapped(path: Path) -> memoryview:
    if not path.stat().st_size:
        raise error(Status.ERR_FORMAT, f"{path} is empty: write the routing again")
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _behind_one_another(data: memoryview) -> Iterator[StoredRouting]:
    while data:
        size = serialized_info(data[:64]).bytes
        yield StoredRouting(data[:size])
        data = data[size:]


def _in_archive(path: Path, data: memoryview) -> Iterator[tuple[str, StoredRouting]]:
    try:
        with tarfile.open(path, "r:") as archive:
            for entry in archive:
                name = PurePosixPath(entry.name)
                if entry.isfile() and name.suffix == _ENDING:
                    yield name.stem, StoredRouting(data[entry.offset_data :][: entry.size])
    except tarfile.TarError as reason:
        raise error(Status.ERR_FORMAT, f"{path}: {reason}") from None


class RayRouting:
    """A serialised routing that is an object of Ray: a reader.

    Rows are cut out by a task, which Ray runs where the object lies, so that no other bytes travel.
    They are used where Ray puts them, and not copied again.

    reference: what ray.put gave for the bytes, or for a NumPy array of them, which tasks of that
    machine read in place.
    """

    def __init__(self, reference: Any) -> None:
        self.reference = reference

    @staticmethod
    def put(routing: Routing) -> "RayRouting":
        """Make an object of a routing."""
        import ray

        return RayRouting(ray.put(np.frombuffer(routing.serialize(), np.uint8)))

    def begin(self, first: int, rows: int) -> Callable[[], Routing]:
        """Start to read rows; what it returns waits for them."""
        import ray

        cut = ray.remote(_cut).remote(self.reference, first, rows)
        return lambda: Routing.deserialize(ray.get(cut))

    def read(self, first: int, rows: int) -> Routing:
        """Rows from position `first` on, as far as there are any."""
        return self.begin(first, rows)()


def _cut(data: Any, first: int, rows: int) -> NDArray[np.uint8]:
    return np.frombuffer(StoredRouting(data).cut(first, rows), np.uint8)

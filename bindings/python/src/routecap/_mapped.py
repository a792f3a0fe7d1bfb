"""Files that are mapped, folders of them and archives: `load` and `stored` find routings in them by
`routings_in`.

Any of these may come from others. Nothing is read, and no memory taken, by what a header claims:
what is found are views of bytes that are there.
"""

import mmap
import os
import re
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from io import FileIO
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from ._constants import SERIALIZED_MIN, Status
from ._errors import Error, error
from ._serialized import serialized_info

ROUTING = ".routecap"
"""The ending of files with a serialised routing."""
INFO = ".json"
TAR = ".tar"


class Member(NamedTuple):
    """A routing in the serialised form."""

    name: str
    source: str
    """The file, with an archive's name before it, for errors."""
    data: memoryview
    info_source: str
    info: memoryview | None
    """What lies beside it, in the file of the same name with the ending .json."""


def routings_in(path: Path, progress: Callable[[Any], Iterable[Any]] = iter) -> Iterator[Member]:
    """The routings of a file, of a folder's files .routecap, or of an archive.

    A file may have several, one behind another, whose names are then "0", "1", and so on. `progress`
    wraps what is iterated over.

    Raises:
        Error: An archive is damaged, or has one file twice.
    """
    if path.suffix == TAR and not path.is_dir():
        yield from progress(in_archive(path))
    elif path.is_dir():
        for file in progress(in_folder(path, ROUTING)):
            yield _in_file(file, mapped(file))
    else:
        several = list(_behind_one_another(path))
        for number, data in enumerate(progress(several)):
            name = path.stem if len(several) == 1 else str(number)
            yield _in_file(path, data)._replace(name=name)


def _in_file(path: Path, data: memoryview) -> Member:
    beside = path.with_suffix(INFO)
    info = memoryview(beside.read_bytes()) if beside.is_file() else None
    return Member(path.stem, str(path), data, str(beside), info)


def _behind_one_another(path: Path) -> Iterator[memoryview]:
    data = mapped(path)
    while data:
        try:
            size = serialized_info(data[:SERIALIZED_MIN]).bytes
        except Error as reason:
            raise error(reason.status, f"{path}: {reason}") from None
        yield data[:size]
        data = data[size:]


def mapped(path: Path) -> memoryview:
    """The bytes of a file, which must not change as long as they are used. What is no file on a
    disk, such as a pipe, is read.
    """
    with path.open("rb") as file:
        if not path.is_file():
            return memoryview(file.read())
        try:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except ValueError:
            raise error(Status.ERR_FORMAT, f"{path} is empty: write the routing again") from None


def in_folder(folder: Path, *endings: str) -> list[Path]:
    """Its files with one of these endings; request-9 comes before request-10."""
    return sorted(
        (each for each in folder.iterdir() if each.name.endswith(endings) and each.is_file()),
        key=_natural,
    )


def _natural(path: Path) -> list[Any]:
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", path.name)]


def in_archive(path: Path) -> list[Member]:
    """The routings of a tar archive that is not compressed, in its order.

    A routing has the name of its file, without folders and without the ending. Where several would
    have one name, as rank0/r.routecap and rank1/r.routecap, each keeps its folders: rank0/r.

    Raises:
        Error: It is damaged, or has one file twice.
    """
    files = dict(_files(path))
    routings = [PurePosixPath(name) for name in files if PurePosixPath(name).suffix == ROUTING]
    several = {name for name, count in Counter(each.stem for each in routings).items() if count > 1}
    found = []
    for each in routings:
        beside = str(each.with_suffix(INFO))
        name = str(each.with_suffix("")) if each.stem in several else each.stem
        sources = f"{path}: {each}", f"{path}: {beside}"
        found.append(Member(name, sources[0], files[str(each)], sources[1], files.get(beside)))
    return found


class _Read(FileIO):
    """A file of which no more bytes are asked for than there are: the size that a header claims
    would be memory.
    """

    def read(self, size: int | None = -1) -> bytes:
        left = max(os.fstat(self.fileno()).st_size - self.tell(), 0)
        return super().read(left if size is None or size < 0 else min(size, left))


def _files(path: Path) -> Iterator[tuple[str, memoryview]]:
    """The files of an archive that `in_archive` looks for, by their names in it."""
    data = mapped(path)
    seen = set()
    behind = -1
    try:
        with _Read(path) as file, tarfile.open(fileobj=file, mode="r:") as archive:
            for entry in archive:
                # A size below 0 leads back to the same header, again and again.
                if entry.offset <= behind or entry.size < 0:
                    raise error(
                        Status.ERR_FORMAT,
                        f"{path}: the header of {entry.name} is damaged: write it again",
                    )
                behind = entry.offset
                name = str(PurePosixPath(entry.name))
                if not entry.isfile() or PurePosixPath(name).suffix not in (ROUTING, INFO):
                    continue
                found = data[entry.offset_data :][: entry.size]
                if name in seen:
                    raise error(
                        Status.ERR_FORMAT,
                        f"{path} has {name} twice: give each routing of an archive a name of its"
                        " own",
                    )
                if entry.issparse() or len(found) != entry.size:
                    raise error(
                        Status.ERR_FORMAT,
                        f"{path}: {name}: not all of its {entry.size} bytes are in the archive:"
                        " write it again, without sparse files",
                    )
                seen.add(name)
                yield name, found
    except Error:
        raise
    except (tarfile.TarError, ValueError, OverflowError, RecursionError) as reason:
        raise error(Status.ERR_FORMAT, f"{path}: {reason}") from None

"""A store in a file, which engines of one model on one machine share, and clients read.

`path` is a link to the file, whose name is its own: a reference to rows in it is of this file, and
of none that comes after it. It is made by the first engine that opens it; one that no engine has
open is forgotten, as its rows may be of other weights. Beside it is `path`.lock. Files of engines
that are gone stay until the next one starts.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import routecap
from routecap.experimental import SharedStore


def make(path: str, capturer: routecap.Capturer, **settings: Any) -> routecap.Store:
    """An engine's: the store that others have open there, or a new one.

    Args:
        settings: block_rows, key_bytes, budget_bytes.

    Raises:
        OSError, routecap.Error: There can be no such file, or it is of another shape.
    """
    link = Path(path).absolute()
    with _alone(link):
        descriptor, file = _of_others(link), None
        if descriptor is None:
            descriptor, file = _new(link)
        try:
            store = SharedStore.open(descriptor, capturer, **settings)
            fcntl.flock(descriptor, fcntl.LOCK_SH)  # as long as the store has a descriptor of it
            if file is not None:
                _point(link, file)
        except BaseException:
            if file is not None:
                file.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
    return store


def open_made(path: str | os.PathLike[str], **settings: Any) -> routecap.Store:
    """A client's: the store of a file that an engine has made.

    Args:
        settings: block_rows, key_bytes and the shape, as it was made with.

    Raises:
        FileNotFoundError: There is none: its engines have ended.
        routecap.Error: It is of another shape.
    """
    descriptor = os.open(path, os.O_RDWR)
    try:
        return SharedStore.open(descriptor, **settings)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _alone(link: Path) -> Iterator[None]:
    """Nobody else makes the file meanwhile."""
    gate = os.open(f"{link}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(gate, fcntl.LOCK_EX)
        yield
    finally:
        os.close(gate)


def _of_others(link: Path) -> int | None:
    """A descriptor of the file, if an engine has it open; otherwise it is gone."""
    try:
        descriptor = os.open(link, os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return descriptor
    link.resolve().unlink()
    os.close(descriptor)
    return None


def _new(link: Path) -> tuple[int, Path]:
    file = link.with_name(f"{link.name}.{secrets.token_hex(8)}")
    return os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), file


def _point(link: Path, file: Path) -> None:
    """The link is to this file from now on, at once."""
    new = link.with_name(f"{file.name}.link")
    new.symlink_to(file.name)
    new.replace(link)

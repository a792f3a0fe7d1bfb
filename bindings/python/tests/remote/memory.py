"""Memory of this process in bytes, as Linux counts it."""

import ctypes
from pathlib import Path


def now() -> int:
    return _status("VmRSS")


def peak() -> int:
    """The most since it was forgotten."""
    return _status("VmHWM")


def shared() -> int:
    """Of what it has now: pages of memory that is shared, as that of Ray's object store."""
    return _status("RssShmem")


def forget_peak() -> None:
    """And what was freed goes back to the system, so that it does not count."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(name):
            return int(line.split()[1]) << 10
    raise OSError(f"/proc/self/status has no {name}")

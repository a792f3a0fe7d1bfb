"""Loads the library, and the generated module over it."""

import atexit
import ctypes
import os

__all__ = ["path", "raw", "version"]

# Another library than the one that the package was installed with: the generated module finds it
# loaded under the same name.
_path = os.environ.get("ROUTECAP_LIBRARY")
try:
    _named = ctypes.CDLL(_path) if _path else None
except OSError as error:
    raise ImportError(
        f"routecap: ROUTECAP_LIBRARY cannot be loaded: {error}. Name a libroutecap.so.1, or"
        " unset it"
    ) from error

try:
    from . import _routecap as raw
except ImportError as error:
    raise ImportError(
        f"routecap: the library cannot be loaded: {error}. Name one by ROUTECAP_LIBRARY, or install"
        " the package again"
    ) from error

_needed = raw.ROUTECAP_VERSION_MAJOR, raw.ROUTECAP_VERSION_MINOR
if not raw.routecap_get_api(*_needed):
    raise ImportError(
        f"routecap: this package needs version {_needed[0]}.{_needed[1]} of the library, and found"
        f" {raw.routecap_version()} (major * 10000 + minor * 100 + patch). Install a newer library,"
        " or unset ROUTECAP_LIBRARY"
    )
_version = getattr(_named, "routecap_version", None)
if _named is not None and (
    _version is None or ctypes.cast(_version, ctypes.c_void_p).value != raw.library_address()
):
    raise ImportError(
        f"routecap: {_path}, which ROUTECAP_LIBRARY names, is not a library that this package can"
        " use: its name is not the one that the package was built against. Name a"
        " libroutecap.so.1, or unset it"
    )

atexit.register(raw.stop)


def version() -> tuple[int, int, int]:
    """The version of the loaded library (routecap_version): major, minor, patch."""
    number: int = raw.routecap_version()
    return number // 10000, number // 100 % 100, number % 100


def path() -> str:
    """The file of the loaded library."""
    address = raw.library_address()
    with open("/proc/self/maps") as maps:
        for line in maps:
            start, end = (int(each, 16) for each in line.split(maxsplit=1)[0].split("-"))
            if start <= address < end:
                return line.split(maxsplit=5)[5].rstrip("\n")
    return "unknown"

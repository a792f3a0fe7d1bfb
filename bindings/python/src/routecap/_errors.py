"""One exception class; where a built-in class says the same, what is raised is of both."""

import sys
import warnings
from typing import TypeVar

from ._constants import Status
from ._library import raw
from ._named import Named


class Error(RuntimeError):
    """A call failed, and nothing changed. `status` says how, the text why."""

    status: Status
    needed: int | None = None
    """The bytes that a buffer should have had (ERR_BUFFER_TOO_SMALL)."""

    def __init__(self, status: int, text: str = "") -> None:
        self.status = Status(status)
        super().__init__(text or raw.routecap_status_name(status))

    def __str__(self) -> str:  # KeyError would quote it
        return RuntimeError.__str__(self)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.status, str(self))


class ArgumentError(Error, ValueError):
    """An argument is wrong: a value, a shape, a size or a format."""


class DtypeError(Error, TypeError):
    """Elements of a type that does not serve here."""


class RangeError(Error, IndexError):
    """Layers, rows or indices that do not exist."""


class UnknownError(Error, KeyError):
    """A request or step that is not, or no longer, known."""


class NotReadyError(Error, TimeoutError):
    """Rows are in flight."""


class OutOfMemoryError(Error, MemoryError):
    """The budget, or the system's memory, is exhausted."""


class LostStepWarning(RuntimeWarning):
    """A step is lost, and all its rows are missing: too many were in flight, or its copy failed. Each
    capturer warns once; Step.lost says it of every step."""


_classes: dict[Status, type[Error]] = {
    Status.ERR_ARGUMENT: ArgumentError,
    Status.ERR_STRUCT_SIZE: ArgumentError,
    Status.ERR_OVERLAP: ArgumentError,
    Status.ERR_SHAPE_MISMATCH: ArgumentError,
    Status.ERR_BUFFER_TOO_SMALL: ArgumentError,
    Status.ERR_FORMAT: ArgumentError,
    Status.ERR_DTYPE: DtypeError,
    Status.ERR_UNKNOWN_LAYER: RangeError,
    Status.ERR_OUT_OF_RANGE: RangeError,
    Status.ERR_CAPACITY: RangeError,
    Status.ERR_UNKNOWN_REQUEST: UnknownError,
    Status.ERR_UNKNOWN_STEP: UnknownError,
    Status.ERR_NOT_READY: NotReadyError,
    Status.ERR_NO_MEMORY: OutOfMemoryError,
}


def error(status: int, text: str = "") -> Error:
    """The exception of a status.

    For errors of the library the text is that of routecap_last_error, read in the call that failed.
    """
    return _classes.get(Status(status), Error)(status, text)


def warn(text: str, category: type[Warning]) -> None:
    """Warn of the line outside of this package that made the call."""
    level = 1
    while sys._getframe(level).f_globals.get("__name__", "").startswith(f"{__package__}."):
        level += 1
    warnings.warn(text, category, stacklevel=level + 1)


_Enum = TypeVar("_Enum", bound=Named)


def member(group: type[_Enum], value: _Enum | int | str) -> _Enum:
    """A member of an enum, its number, or its name in any case."""
    if isinstance(value, group):
        return value
    try:
        return group[value.upper()] if isinstance(value, str) else group(value)
    except (KeyError, ValueError):
        names = ", ".join(repr(each.name.lower()) for each in group)
        raise error(
            Status.ERR_ARGUMENT, f"{group.__name__} is one of {names}, not {value!r}"
        ) from None


class _Statuses(dict[int, Status]):
    """By their numbers, those too that a later library returns."""

    def __missing__(self, number: int) -> Status:
        return Status(number)


raw.use_statuses(_Statuses({int(status): status for status in Status}), error)

"""Open requests by their handles, and their names."""

from collections.abc import Sequence
from operator import index
from typing import Any, Union

import numpy as np
from numpy.typing import NDArray

from ._constants import Status
from ._errors import error
from ._opened import Opened
from ._steps import Step


class Handle:
    """A request as a number, whatever can be done with it."""

    __slots__ = ("capturer", "handle", "id")

    def __init__(self, capturer: "Handles", handle: int, id: str | None = None) -> None:
        self.capturer = capturer
        self.handle = handle
        self.id = id
        """The name under which it was opened."""

    def __index__(self) -> int:
        return self.handle

    __int__ = __index__

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Handle)
            and other.handle == self.handle
            and other.capturer is self.capturer
        )

    def __hash__(self) -> int:
        return hash(self.handle)

    def __repr__(self) -> str:
        return f"<routecap.Request {self.handle:#x}{'' if self.id is None else f', {self.id!r}'}>"


RequestLike = Union[Handle, int, str]
"""A Request, its handle, or the string id under which it was opened."""


class Handles(Opened):
    """Capturer: which requests are open."""

    def _resolve(self, request: Any) -> int:
        if isinstance(request, Handle):
            if request.capturer is not self:
                raise error(
                    Status.ERR_UNKNOWN_REQUEST,
                    f"{request!r} belongs to another capturer: give it to that one, or open one"
                    " here",
                )
            return request.handle
        if isinstance(request, str):
            try:
                return self._names[request]
            except KeyError:
                raise error(
                    Status.ERR_UNKNOWN_REQUEST,
                    f"no request {request!r} is open: open() comes first, and finish() and close()"
                    " end it",
                ) from None
        try:
            return index(request)
        except TypeError:
            raise TypeError(
                "a request is a Request, its handle or the string id under which it was opened, "
                f"not {request!r}: give what open() returned"
            ) from None

    def _keep_name(self, handle: int, id: str | None) -> None:
        if id is not None:
            self._names[id] = handle
            self._ids[handle] = id

    def _expect_free(self, id: str | None) -> None:
        if id is not None and id in self._names:
            raise error(
                Status.ERR_ARGUMENT,
                f"request {id!r} is open already: finish or close it first, or take another id",
            )

    def _forget(self, handle: int) -> None:
        id = self._ids.pop(handle, None)
        if id is not None:
            self._names.pop(id, None)

    def _ticket(self, step: Any) -> int:
        if type(step) is Step and step.capturer is not self:
            raise error(
                Status.ERR_UNKNOWN_STEP,
                f"{step!r} belongs to another capturer: give it to that one",
            )
        try:
            return index(step)
        except TypeError:
            raise TypeError(
                f"a step is a Step or its ticket, not {step!r}: give what issue() returned"
            ) from None

    def handles(self, ids: Sequence[RequestLike]) -> NDArray[np.uint64]:
        """The handles of requests, for use in spans and batches."""
        if isinstance(ids, (str, Handle, int)):
            raise TypeError(
                f"{ids!r} is one request, where a sequence of them is expected: give [{ids!r}]"
            )
        return np.fromiter((self._resolve(id) for id in ids), np.uint64, len(ids))

    def __contains__(self, id: object) -> bool:
        """Whether a string id is open."""
        return id in self._names

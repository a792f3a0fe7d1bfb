"""Batches of routings, and which of their items were refused."""

from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from ._constants import Status
from ._errors import Error, error
from ._library import raw
from ._routing import Routing


class Routings(Sequence[Routing]):
    """The routings of a batch.

    They are made into objects only when one is asked for; all are freed with this, or by `free`.
    """

    __slots__ = ("status", "statuses", "_addresses", "_requests")

    def __init__(self, status: Status, items: NDArray[np.void]) -> None:
        """Takes the routings out of the items."""
        self.status = status
        """OK, or PARTIAL: some items were refused."""
        self.statuses: NDArray[np.int32] = items["status"].copy()
        """[n] the status of each item."""
        self._requests: NDArray[np.uint64] = items["request"].copy()
        self._addresses: NDArray[np.uint64] = items["routing"].copy()
        items["routing"] = 0

    def __len__(self) -> int:
        return len(self._addresses)

    @overload
    def __getitem__(self, index: int) -> Routing: ...

    @overload
    def __getitem__(self, index: slice) -> list[Routing]: ...

    def __getitem__(self, index: int | slice) -> Routing | list[Routing]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        number = range(len(self))[index]
        handle = raw.routing_of(self._addresses, number)
        if handle is not None:
            return Routing._of(handle)
        status = Status(self.statuses[number])
        if status >= 0:
            raise error(
                Status.ERR_STATE,
                "the routing was freed: take it out before free() or the end of the with block",
            )
        raise error(
            status,
            f"item {number} of {len(self)}, request {self._requests[number]:#x}, was refused: "
            f"{status}. Take the others; Routings.statuses has the status of each",
        )

    def __iter__(self) -> Iterator[Routing]:
        for number in range(
            len(self)
        ):  # not by Sequence, for which the IndexError of a refused item is the end
            yield self[number]

    def free(self) -> None:
        """Free all routings now, except those that were taken out as objects."""
        raw.routings_free(self._addresses)

    def __del__(self) -> None:
        self.free()

    def __repr__(self) -> str:
        refused = (
            f": {refusals(self._requests, self.statuses)}" if self.status == Status.PARTIAL else ""
        )
        return f"<routecap.Routings of {len(self)}, {self.status}{refused}>"

    def __enter__(self) -> "Routings":
        return self

    def __exit__(self, *unused: object) -> None:
        self.free()


class PartialError(Error):
    """Items of a batch were refused, and the caller asked to be told (check=True). The others were
    done."""

    statuses: dict[int, Status] = {}
    """How each item was refused, by its number in the batch."""
    routings: Routings | None = None
    """What the other items gave."""

    def __reduce__(self) -> tuple[object, ...]:
        return (
            type(self),
            (self.status, str(self)),
            {"statuses": self.statuses},
        )  # routings stay in this process


_NAMED = 16  # refused items of a batch, in a text


def refusals(requests: NDArray[np.uint64], statuses: NDArray[np.int32]) -> str:
    """Which items of a batch were refused, and how each was."""
    refused = np.flatnonzero(statuses < 0).tolist()
    texts = []
    for item in refused[:_NAMED]:
        texts.append(f"{item} (request {int(requests[item]):#x}): {Status(statuses[item])}")
    if len(refused) > _NAMED:
        texts.append(f"and {len(refused) - _NAMED} more")
    return f"{len(refused)} of {len(statuses)} items were refused: {', '.join(texts)}"


def check_items(
    requests: NDArray[np.uint64],
    statuses: NDArray[np.int32],
    routings: Routings | None = None,
) -> None:
    """Raise PartialError if an item of a batch was refused."""
    if not (statuses < 0).any():
        return
    partial = PartialError(Status.PARTIAL, refusals(requests, statuses))
    partial.statuses = {
        item: Status(statuses[item]) for item in np.flatnonzero(statuses < 0).tolist()
    }
    partial.routings = routings
    raise partial

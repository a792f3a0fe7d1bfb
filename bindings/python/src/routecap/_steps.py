"""Steps, and what their calls are given."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._constants import Status
from ._docs import documented
from ._errors import error
from ._library import raw
from ._opened import Opened
from ._reading import wait


class LayerSources(NamedTuple):
    """Ids of several layers, for `Capturer.record_layers`, made by `Capturer.layer_sources`.

    whole_step: Recording them begins the step and takes its snapshot.
    """

    source: bytes
    layers: NDArray[np.void]
    first: object
    held: Any
    whole_step: bool = False


class PreparedIssue(NamedTuple):
    """Made by `Capturer.prepare_issue`. Issued by `routecap.adapter.issue_prepared`, in one call."""

    handle: object
    positions: int


class Step:
    """A forward pass that was issued. int(step) is its ticket: 1, 2, 3, ... in order of issue."""

    __slots__ = ("capturer", "ticket", "status")

    def __init__(self, capturer: Opened, ticket: int, status: Status = Status.OK) -> None:
        self.capturer = capturer
        self.ticket = ticket
        self.status = status
        """Of its issue: OK, PARTIAL (spans were skipped) or LOST (all its rows are missing)."""

    @documented("routecap_step_poll")
    def poll(self) -> Status:
        """Whether its rows can be read: OK, LOST or PENDING. Does not wait."""
        status: Status = raw.routecap_step_poll(self.capturer._handle, self.ticket)
        return status

    @property
    def lost(self) -> bool:
        """Whether too many steps were in flight or its copy failed, so that all its rows are missing.
        Does not wait."""
        return self.status is Status.LOST or self.poll() is Status.LOST

    @property
    def landed(self) -> bool:
        """Whether its rows can be read. Does not wait."""
        return self.poll() != Status.PENDING

    def wait(self, timeout: float | None = None) -> Status:
        """Wait until it has landed, for `timeout` seconds at most, None for as long as it takes:
        OK, LOST or PENDING (routecap_step_finalize).
        """
        return self._finalize(timeout)[0]

    @documented("routecap_step_finalize")
    def conflicts(self, timeout: float | None = None) -> int:
        """Wait as `wait` does; then how many of its cells were recorded twice.

        NotReadyError after the time.
        """
        status, conflicting = self._finalize(timeout)
        if status == Status.PENDING:
            raise error(
                Status.ERR_NOT_READY,
                "the step has not landed: wait longer, by a larger timeout or without one",
            )
        return conflicting

    def _finalize(self, timeout: float | None) -> tuple[Status, int]:
        found: tuple[Status, int] = wait(
            lambda ns: raw.routecap_step_finalize(self.capturer._handle, self.ticket, ns),
            lambda found: found[0] == Status.PENDING,
            timeout,
        )
        return found

    def __index__(self) -> int:
        return self.ticket

    __int__ = __index__

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Step)
            and other.ticket == self.ticket
            and other.capturer is self.capturer
        )

    def __hash__(self) -> int:
        return hash(self.ticket)

    def __repr__(self) -> str:
        return f"<routecap.Step {self.ticket}, {self.status.name}>"


def ticket_of(step: Step, capturer: Opened) -> int:
    """The ticket of a step of this capturer."""
    if not isinstance(step, Step):
        raise TypeError(
            f"{step!r} is not a step: give what issue() returned, or Capturer.issued(ticket)"
        )
    if step.capturer is not capturer:
        raise error(
            Status.ERR_UNKNOWN_STEP,
            f"{step!r} belongs to another capturer: give it to that one",
        )
    return step.ticket

"""Steps and requests: what a capturer gives out."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Union

import numpy as np
from numpy.typing import NDArray

from ._constants import Extract, Order, Status
from ._docs import documented
from ._errors import error
from ._library import raw
from ._reading import FILL, Coverage, wait
from ._routing import Routing
from ._store import Adoption, Keys, Store
from .names import ExtractName, OrderName

if TYPE_CHECKING:
    from ._capturer import Capturer


class LayerSources(NamedTuple):
    """Ids of several layers, for `Capturer.record_layers`, made by `Capturer.layer_sources`.

    whole_step: Recording them begins the step and takes its snapshot.
    """

    source: bytes
    layers: NDArray[np.void]
    first: Any
    held: Any
    whole_step: bool = False


class PreparedIssue(NamedTuple):
    """Made by `Capturer.prepare_issue`. Issued by `_library.raw.issue_again`, in one call."""

    handle: Any
    positions: int


class Step:
    """A forward pass that was issued. int(step) is its ticket: 1, 2, 3, ... in order of issue."""

    __slots__ = ("capturer", "ticket", "status")

    def __init__(self, capturer: "Capturer", ticket: int, status: Status = Status.OK) -> None:
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
        """Whether no slot was free for it or its copy failed, so that all its rows are missing.
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


class Request:
    """A sequence that is being captured. int(request) is its handle.

    As a context manager it is closed at the end, unless it was finished.
    """

    __slots__ = ("capturer", "handle", "id")

    def __init__(self, capturer: "Capturer", handle: int, id: str | None = None) -> None:
        self.capturer = capturer
        self.handle = handle
        self.id = id
        """The name under which it was opened."""

    @property
    def length(self) -> int:
        """One past its highest position that was issued and is settled."""
        return self.capturer.coverage(self, 0, 0).length

    def accept(self, step: Union[Step, int], keep: int | Sequence[int] | NDArray[Any]) -> None:
        """See Capturer.accept."""
        self.capturer.accept(self, step, keep)

    def truncate(self, rows: int) -> None:
        """See Capturer.truncate."""
        self.capturer.truncate(self, rows)

    def fork(self, rows: int | None = None, *, id: str | None = None) -> "Request":
        """See Capturer.fork."""
        return self.capturer.fork(self, rows, id=id)

    def attach(self, routing: Routing, rows: int | None = None) -> None:
        """See Capturer.attach."""
        self.capturer.attach(self, routing, rows)

    def publish(
        self, store: Store, first: int, keys: Keys, *, generation: int | None = None
    ) -> None:
        """See Capturer.publish."""
        self.capturer.publish(self, store, first, keys, generation=generation)

    def adopt(
        self, store: Store, first: int, keys: Keys, *, generation: int | None = None
    ) -> Adoption:
        """See Capturer.adopt."""
        return self.capturer.adopt(self, store, first, keys, generation=generation)

    def coverage(self, first: int = 0, rows: int | None = None) -> Coverage:
        """See Capturer.coverage."""
        return self.capturer.coverage(self, first, rows)

    def missing(self, first: int = 0, rows: int | None = None) -> NDArray[np.void]:
        """See Capturer.missing."""
        return self.capturer.missing(self, first, rows)

    def extract(
        self,
        first: int = 0,
        rows: int | None = None,
        *,
        mode: Extract | ExtractName = Extract.SHARE,
        strict: bool = False,
        allow_recomputed: bool = False,
    ) -> Routing:
        """See Capturer.extract."""
        return self.capturer.extract(
            self, first, rows, mode=mode, strict=strict, allow_recomputed=allow_recomputed
        )

    def extract_into(
        self,
        out: Any,
        first: int = 0,
        rows: int | None = None,
        *,
        mask: NDArray[Any] | None = None,
        fill: int = FILL,
        order: Order | OrderName = Order.ROW_MAJOR,
        first_layer: int = 0,
        layers: int | None = None,
        strict: bool = False,
        allow_recomputed: bool = False,
    ) -> Status:
        """See Capturer.extract_into."""
        return self.capturer.extract_into(
            self,
            out,
            first,
            rows,
            mask=mask,
            fill=fill,
            order=order,
            first_layer=first_layer,
            layers=layers,
            strict=strict,
            allow_recomputed=allow_recomputed,
        )

    def finish(self, rows: int | None = None) -> Routing:
        """See Capturer.finish."""
        return self.capturer.finish(self, rows)

    def close(self) -> None:
        """See Capturer.close_request."""
        self.capturer.close_request(self)

    def __enter__(self) -> "Request":
        return self

    def __exit__(self, *unused: object) -> None:
        self.capturer.close_batch([self])  # which refuses, by a status only, what has ended

    def __index__(self) -> int:
        return self.handle

    __int__ = __index__

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Request)
            and other.handle == self.handle
            and other.capturer is self.capturer
        )

    def __hash__(self) -> int:
        return hash(self.handle)

    def __repr__(self) -> str:
        return f"<routecap.Request {self.handle:#x}{'' if self.id is None else f', {self.id!r}'}>"


RequestLike = Union[Request, int, str]
"""A Request, its handle, or the string id under which it was opened."""

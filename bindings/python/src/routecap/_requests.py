"""A request: what can be done with one."""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from . import _structs as structs
from ._constants import ALL, LANDED, Extract, Order, Status
from ._docs import documented
from ._errors import Error, UnknownError, member
from ._library import raw
from ._opened import Opened
from ._protocols import TensorLike
from ._reading import (
    FILL,
    NONE,
    Coverage,
    copy_into,
    read_coverage,
    read_flags,
    read_missing,
    rows_of,
)
from ._routing import Routing
from ._steps import Step, ticket_of
from ._store import Adoption, Keys, Store, checked_keys
from ._tensors import describe, integers
from .names import ExtractName, OrderName


class Request:
    """A sequence that is being captured: Capturer.open gives it, and all that is done with it alone
    is a method of it.

    Arrays have its number, its handle: columns of spans, and the items of batches. There a Request
    counts as its handle.

    As a context manager it is closed at the end, unless it was finished.
    """

    __slots__ = ("capturer", "handle")

    def __init__(self, capturer: Opened, handle: int) -> None:
        self.capturer = capturer
        self.handle = handle

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
        return f"<routecap.Request {self.handle:#x}>"

    @property
    def length(self) -> int:
        """One past its highest position that was issued and is settled."""
        return self.coverage(0, 0).length

    @documented("routecap_request_accept")
    def accept(self, step: Step, keep: int | Sequence[int] | NDArray[Any]) -> None:
        """Settle its drafts in one step: keep the first `keep` of them, or those with
        the given indices, such as the accepted path of a tree.
        """
        if isinstance(keep, (int, np.integer)):
            rows, count = None, int(keep)
        else:
            rows = integers(keep, np.uint32)
            count = len(rows)  # type: ignore[arg-type]
        raw.routecap_request_accept(
            self.capturer._handle, self.handle, ticket_of(step, self.capturer), rows, count
        )

    @documented("routecap_request_truncate")
    def truncate(self, rows: int) -> None:
        """Cut it: remove all rows from position `rows` on."""
        raw.routecap_request_truncate(self.capturer._handle, self.handle, rows)

    @documented("routecap_request_fork")
    def fork(self, rows: int | None = None) -> "Request":
        """Open a request that begins with the first `rows` rows of this one; None: all rows."""
        handle = raw.routecap_request_fork(self.capturer._handle, self.handle, rows_of(rows))[1]
        return Request(self.capturer, handle)

    @documented("routecap_request_attach")
    def attach(self, routing: Routing, rows: int | None = None) -> None:
        """Add the rows before position `rows` (None: all rows) of the routing of the request that
        computed them.
        """
        raw.routecap_request_attach(
            self.capturer._handle, self.handle, routing._handle, rows_of(rows)
        )

    # ---- Prefixes

    @documented("routecap_request_publish")
    def publish(
        self,
        store: Store,
        first: int,
        keys: Keys,
        *,
        generation: int | None = None,
    ) -> None:
        """Publish rows from position `first` on: one block for each key. The rows
        may be in flight; the call does not wait for them. `generation` is the store's unless it is
        given.
        """
        data, count = checked_keys(keys, store.key_bytes)
        raw.routecap_request_publish(
            self.capturer._handle,
            self.handle,
            store._handle,
            first,
            data,
            count,
            store._generation(generation),
        )

    @documented("routecap_request_adopt")
    def adopt(
        self,
        store: Store,
        first: int,
        keys: Keys,
        *,
        generation: int | None = None,
    ) -> Adoption:
        """Add rows of a store from position `first` on: one block for each key. Rows
        that the store does not have are missing, with a reason.
        """
        data, count = checked_keys(keys, store.key_bytes)
        memory = structs.adoption.empty()
        raw.routecap_request_adopt(
            self.capturer._handle,
            self.handle,
            store._handle,
            first,
            data,
            count,
            store._generation(generation),
            memory,
        )
        return Adoption._make(structs.adoption.read(memory)[1:])

    # ---- Reading

    @documented("routecap_request_coverage")
    def coverage(self, first: int = 0, rows: int | None = None) -> Coverage:
        """Count the valid and the missing cells of a range of rows."""
        return read_coverage(
            lambda memory, blocks: raw.routecap_request_coverage(
                self.capturer._handle, self.handle, first, rows_of(rows), memory, blocks
            )
        )

    def missing(self, first: int = 0, rows: int | None = None) -> NDArray[np.void]:
        """List the blocks of missing cells in a range of rows: an array of missing_dtype, whose
        `reason` is a Missing (routecap_request_coverage).
        """
        return read_missing(
            lambda memory, blocks: raw.routecap_request_coverage(
                self.capturer._handle, self.handle, first, rows_of(rows), memory, blocks
            )
        )

    @documented("routecap_request_extract")
    def extract(
        self,
        first: int = 0,
        rows: int | None = None,
        *,
        mode: Extract | ExtractName = Extract.SHARE,
        strict: bool = False,
        allow_recomputed: bool = False,
    ) -> Routing:
        """Read `rows` rows from position `first` on into a routing. None: up to the end;
        routecap.LANDED: up to the first row in flight.
        """
        mode = mode if mode is Extract.SHARE else member(Extract, mode)
        flags = read_flags(strict, allow_recomputed)
        return Routing._of(
            raw.routecap_request_extract(
                self.capturer._handle, self.handle, first, rows_of(rows), mode, flags
            )[1]
        )

    @documented("routecap_request_extract_into")
    def extract_into(
        self,
        out: TensorLike,
        first: int = 0,
        rows: int | None = None,
        *,
        mask: NDArray[Any] | None = None,
        fill: int = FILL,
        none: int = NONE,
        order: Order | OrderName = Order.ROW_MAJOR,
        first_layer: int = 0,
        layers: int | None = None,
        strict: bool = False,
        allow_recomputed: bool = False,
    ) -> Status:
        """Copy rows into an array, like Routing.copy_to, but without making a routing.
        If `rows` is not given, it is the number of rows of `out`.
        """
        layers = self.capturer.layers - first_layer if layers is None else layers
        if rows is None:
            shape = describe(out, "out").shape
            rows = (
                shape[0 if member(Order, order) == Order.ROW_MAJOR else 1] if len(shape) == 3 else 0
            )
        status, _ = copy_into(
            lambda options, memory, mask: raw.routecap_request_extract_into(
                self.capturer._handle, self.handle, first, rows, options, memory, mask
            ),
            out,
            mask,
            None if rows in (ALL, LANDED) else rows,
            self.capturer.k,
            fill,
            none,
            order,
            first_layer,
            layers,
            read_flags(strict, allow_recomputed),
        )
        return Status(status)

    # ---- The end of a request

    @documented("routecap_request_finish")
    def finish(self, rows: int | None = None) -> Routing:
        """End it and get its routing, with exactly `rows` rows: S-1 for a sequence of S
        tokens.

        None: the request's length. The call does not wait: see Routing.wait.
        """
        return Routing._of(
            raw.routecap_request_finish(self.capturer._handle, self.handle, rows_of(rows))[1]
        )

    @documented("routecap_request_close")
    def close(self) -> None:
        """End it and drop its rows.

        All requests of a closed capturer have ended. This then does nothing, as finalizers need it.
        """
        if self.capturer.closed:
            return
        try:
            raw.routecap_request_close(self.capturer._handle, self.handle)
        except Error:
            if not self.capturer.closed:  # by another thread since then
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        try:
            self.close()
        except UnknownError:  # it was finished, or closed
            pass

"""Requests, and the part of a capturer that has them, for any thread at any time."""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import _structs as structs
from ._batch_calls import BatchCalls
from ._constants import ALL, LANDED, Extract, Order, Policy, Status
from ._docs import documented
from ._errors import Error, member
from ._handles import Handle, RequestLike
from ._library import raw
from ._reading import FILL, Coverage, copy_into, read_coverage, read_flags, read_missing, rows_of
from ._routing import Routing
from ._steps import Step
from ._store import Adoption, Keys, Store, checked_keys
from ._tensors import describe, integers
from .names import ExtractName, OrderName, PolicyName


class Request(Handle):
    """A sequence that is being captured. int(request) is its handle.

    As a context manager it is closed at the end, unless it was finished.
    """

    __slots__ = ()
    capturer: "RequestCalls"

    @property
    def length(self) -> int:
        """One past its highest position that was issued and is settled."""
        return self.capturer.coverage(self, 0, 0).length

    def accept(self, step: Step | int, keep: int | Sequence[int] | NDArray[Any]) -> None:
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


class RequestCalls(BatchCalls):
    """Capturer: requests, from open to finish."""

    def _name(self, handle: int, id: str | None) -> Request:
        self._keep_name(handle, id)
        return Request(self, handle, id)

    @documented("routecap_request_open")
    def open(self, id: str | None = None, *, policy: Policy | PolicyName = Policy.KEEP) -> Request:
        """Open a request, optionally under a string id. Every method accepts the id until the
        request ends.
        """
        self._expect_free(id)
        handle = bytearray(8)
        raw.routecap_request_open(self._handle, self._open_options(policy), handle)
        return self._name(int.from_bytes(handle, sys.byteorder), id)

    def request(self, request: RequestLike) -> Request:
        """The Request of a string id or handle."""
        if isinstance(request, Request):
            return request
        handle = self._resolve(request)
        return Request(self, handle, self._ids.get(handle))

    @documented("routecap_request_accept")
    def accept(
        self, request: RequestLike, step: Step | int, keep: int | Sequence[int] | NDArray[Any]
    ) -> None:
        """Settle the drafts of a request in one step: keep the first `keep` of them, or those with
        the given indices, such as the accepted path of a tree.
        """
        if isinstance(keep, (int, np.integer)):
            rows, count = None, int(keep)
        else:
            rows = integers(keep, np.uint32)
            count = len(rows)  # type: ignore[arg-type]
        raw.routecap_request_accept(
            self._handle, self._resolve(request), self._ticket(step), rows, count
        )

    @documented("routecap_request_truncate")
    def truncate(self, request: RequestLike, rows: int) -> None:
        """Cut a request: remove all rows from position `rows` on."""
        raw.routecap_request_truncate(self._handle, self._resolve(request), rows)

    @documented("routecap_request_fork")
    def fork(
        self, request: RequestLike, rows: int | None = None, *, id: str | None = None
    ) -> Request:
        """Open a request that begins with the first `rows` rows of another; None: all rows."""
        self._expect_free(id)
        return self._name(
            raw.routecap_request_fork(self._handle, self._resolve(request), rows_of(rows))[1], id
        )

    @documented("routecap_request_attach")
    def attach(self, request: RequestLike, routing: Routing, rows: int | None = None) -> None:
        """Add the rows before position `rows` (None: all rows) of the routing of the request that
        computed them.
        """
        raw.routecap_request_attach(
            self._handle, self._resolve(request), routing._handle, rows_of(rows)
        )

    # ---- Prefixes

    @documented("routecap_request_publish")
    def publish(
        self,
        request: RequestLike,
        store: Store,
        first: int,
        keys: Keys,
        *,
        generation: int | None = None,
    ) -> None:
        """Publish rows of a request from position `first` on: one block for each key. The rows
        may be in flight; the call does not wait for them. `generation` is the store's unless it is
        given.
        """
        data, count = checked_keys(keys, store.key_bytes)
        raw.routecap_request_publish(
            self._handle,
            self._resolve(request),
            store._handle,
            first,
            data,
            count,
            store._generation(generation),
        )

    @documented("routecap_request_adopt")
    def adopt(
        self,
        request: RequestLike,
        store: Store,
        first: int,
        keys: Keys,
        *,
        generation: int | None = None,
    ) -> Adoption:
        """Add rows of a store to a request from position `first` on: one block for each key. Rows
        that the store does not have are missing, with a reason.
        """
        data, count = checked_keys(keys, store.key_bytes)
        memory = structs.adoption.empty()
        raw.routecap_request_adopt(
            self._handle,
            self._resolve(request),
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
    def coverage(self, request: RequestLike, first: int = 0, rows: int | None = None) -> Coverage:
        """Count the valid and the missing cells of a range of rows."""
        handle = self._resolve(request)
        return read_coverage(
            lambda memory, blocks: raw.routecap_request_coverage(
                self._handle, handle, first, rows_of(rows), memory, blocks
            )
        )

    def missing(
        self, request: RequestLike, first: int = 0, rows: int | None = None
    ) -> NDArray[np.void]:
        """List the blocks of missing cells in a range of rows: an array of missing_dtype, whose
        `reason` is a Missing (routecap_request_coverage).
        """
        handle = self._resolve(request)
        return read_missing(
            lambda memory, blocks: raw.routecap_request_coverage(
                self._handle, handle, first, rows_of(rows), memory, blocks
            )
        )

    @documented("routecap_request_extract")
    def extract(
        self,
        request: RequestLike,
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
                self._handle, self._resolve(request), first, rows_of(rows), mode, flags
            )[1]
        )

    @documented("routecap_request_extract_into")
    def extract_into(
        self,
        request: RequestLike,
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
        """Copy rows of a request into an array, like Routing.copy_to, but without making a routing.
        If `rows` is not given, it is the number of rows of `out`.
        """
        layers = self.layers - first_layer if layers is None else layers
        if rows is None:
            shape = describe(out, "out").shape
            rows = (
                shape[0 if member(Order, order) == Order.ROW_MAJOR else 1] if len(shape) == 3 else 0
            )
        handle = self._resolve(request)
        status, _ = copy_into(
            lambda options, memory, mask: raw.routecap_request_extract_into(
                self._handle, handle, first, rows, options, memory, mask
            ),
            out,
            mask,
            None if rows in (ALL, LANDED) else rows,
            self.k,
            fill,
            order,
            first_layer,
            layers,
            read_flags(strict, allow_recomputed),
        )
        return Status(status)

    # ---- The end of a request

    @documented("routecap_request_finish")
    def finish(self, request: RequestLike, rows: int | None = None) -> Routing:
        """End a request and get its routing, with exactly `rows` rows: S-1 for a sequence of S
        tokens.

        None: the request's length. The call does not wait: see Routing.wait.
        """
        handle = self._resolve(request)
        routing = Routing._of(raw.routecap_request_finish(self._handle, handle, rows_of(rows))[1])
        self._forget(handle)
        return routing

    @documented("routecap_request_close")
    def close_request(self, request: RequestLike) -> None:
        """End a request and drop its rows.

        All requests of a closed capturer have ended. This then does nothing, as finalizers need it.
        """
        if self.closed:
            return
        handle = self._resolve(request)
        try:
            raw.routecap_request_close(self._handle, handle)
        except Error:
            if not self.closed:  # by another thread since then
                raise
        self._forget(handle)

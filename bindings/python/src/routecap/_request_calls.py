"""The part of a capturer that has requests, for any thread at any time."""

import sys
from collections.abc import Callable, Sequence
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import _structs as structs
from ._constants import ALL, LANDED, Extract, Order, Policy, Status
from ._docs import documented
from ._errors import Error, error, member
from ._library import raw
from ._opened import Opened
from ._reading import FILL, Coverage, copy_into, read_coverage, read_flags, read_missing, rows_of
from ._requests import Request, RequestLike, Step
from ._routing import Routing
from ._routings import Routings, check_items
from ._store import Adoption, Keys, Store, checked_keys
from ._tensors import describe, integers
from .names import ExtractName, OrderName, PolicyName


class RequestCalls(Opened):
    """Capturer: requests, from open to finish."""

    def _resolve(self, request: Any) -> int:
        if type(request) is Request:
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

    def _name(self, handle: int, id: str | None) -> Request:
        if id is not None:
            self._names[id] = handle
            self._ids[handle] = id
        return Request(self, handle, id)  # type: ignore[arg-type]  # a Capturer

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

    @staticmethod
    def _open_options(policy: Policy | PolicyName) -> bytes | None:
        return (
            None if policy is Policy.KEEP else structs.open_options(policy=member(Policy, policy))
        )

    @documented("routecap_request_open")
    def open(self, id: str | None = None, *, policy: Policy | PolicyName = Policy.KEEP) -> Request:
        """Open a request, optionally under a string id. Every method accepts the id until the
        request ends.
        """
        self._expect_free(id)
        handle = bytearray(8)
        raw.routecap_request_open(self._handle, self._open_options(policy), handle)
        return self._name(int.from_bytes(handle, sys.byteorder), id)

    def open_batch(
        self, requests: int | Sequence[str], *, policy: Policy | PolicyName = Policy.KEEP
    ) -> NDArray[np.uint64]:
        """Open many requests in one call: a number of them, or one for each string id.

        Returns their handles.
        """
        ids = None if isinstance(requests, int) else requests
        if ids is not None:
            if len(set(ids)) != len(ids):
                twice = next(id for id in ids if list(ids).count(id) > 1)
                raise error(
                    Status.ERR_ARGUMENT,
                    f"{twice!r} is given twice: give each request an id of its own",
                )
            for id in ids:
                self._expect_free(id)
        handles = np.zeros(requests if isinstance(requests, int) else len(requests), np.uint64)
        raw.routecap_request_open(self._handle, self._open_options(policy), handles)
        if ids is not None:
            for handle, id in zip(handles.tolist(), ids):
                self._name(handle, id)
        return handles

    def request(self, request: RequestLike) -> Request:
        """The Request of a string id or handle."""
        if isinstance(request, Request):
            return request
        handle = self._resolve(request)
        return Request(self, handle, self._ids.get(handle))  # type: ignore[arg-type]

    def handles(self, ids: Sequence[RequestLike]) -> NDArray[np.uint64]:
        """The handles of requests, for use in spans and batches."""
        if isinstance(ids, (str, Request, int)):
            raise TypeError(
                f"{ids!r} is one request, where a sequence of them is expected: give [{ids!r}]"
            )
        return np.fromiter((self._resolve(id) for id in ids), np.uint64, len(ids))

    def __contains__(self, id: object) -> bool:
        """Whether a string id is open."""
        return id in self._names

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

    @documented("routecap_request_accept_batch")
    def accept_batch(
        self,
        items: NDArray[np.void],
        paths: NDArray[np.uint32] | None = None,
        *,
        check: bool = False,
    ) -> Status:
        """Settle the drafts of many requests in one call: an array of accept_dtype, whose `status`
        is filled. Returns OK, or PARTIAL if items were refused: with `check` that is a
        PartialError, which names them.

        Each item keeps its first `count` rows; or, with `paths`, those that `count` indices name:
        all items' indices, one after another.
        """
        self._expect_items(items, "accept_dtype")
        if paths is None:
            items["rows"] = 0
        else:
            paths = integers(paths, np.uint32)
            size = paths.size  # type: ignore[union-attr]
            ends = np.cumsum(items["count"], dtype=np.uint64)
            if (
                items["count"].max(initial=0) > size or len(ends) and int(ends[-1]) != size
            ):  # counts beyond might wrap the sum
                raise error(
                    Status.ERR_SHAPE_MISMATCH,
                    f"paths has {size} indices, the items keep {sum(items['count'].tolist())}: give"
                    " as many as their counts add up to",
                )
            items["rows"] = (ends - items["count"]) * np.uint64(4) + np.uint64(
                describe(paths, "paths").address
            )
        status: Status = raw.routecap_request_accept_batch(self._handle, items)
        if check:
            check_items(items["request"], items["status"], self._ids)
        return status

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

    @documented("routecap_request_publish_batch")
    def publish_batch(
        self,
        store: Store,
        items: Sequence[tuple[RequestLike, int, Keys]],
        *,
        generation: int | None = None,
        check: bool = False,
    ) -> NDArray[np.int32]:
        """Publish rows of many requests in one call: (request, first, keys) for each. Returns the
        status of each; with `check`, a refused item raises a PartialError.
        """
        if not items:
            return np.zeros(0, np.int32)
        return self._prefixes(
            raw.routecap_request_publish_batch,
            structs.publish_dtype,
            store,
            items,
            generation,
            check,
        )["status"]

    @documented("routecap_request_adopt_batch")
    def adopt_batch(
        self,
        store: Store,
        items: Sequence[tuple[RequestLike, int, Keys]],
        *,
        generation: int | None = None,
        check: bool = False,
    ) -> NDArray[np.void]:
        """Add rows of a store to many requests in one call: (request, first, keys) for each.
        Returns an array of adopt_dtype, which says what was found for each; with `check`, a refused
        item raises a PartialError.
        """
        if not items:
            return np.zeros(0, structs.adopt_dtype)
        return self._prefixes(
            raw.routecap_request_adopt_batch, structs.adopt_dtype, store, items, generation, check
        )

    def _prefixes(
        self,
        call: Callable[..., Any],
        dtype: "np.dtype[np.void]",
        store: Store,
        items: Sequence[tuple[RequestLike, int, Keys]],
        generation: int | None,
        check: bool,
    ) -> NDArray[np.void]:
        requests, firsts, keys = zip(*items)
        checked = [checked_keys(each, store.key_bytes) for each in keys]
        counts = np.array([count for _, count in checked], np.uint64)
        held = np.frombuffer(b"".join(data for data, _ in checked), np.uint8)
        array = np.zeros(len(items), dtype)
        array["request"] = [self._resolve(request) for request in requests]
        array["first"], array["count"] = firsts, counts
        before = counts.cumsum() - counts
        array["keys"] = held.ctypes.data + before * np.uint64(store.key_bytes)
        call(self._handle, store._handle, array, store._generation(generation))
        array["keys"] = 0  # they are not held from here on
        if check:
            check_items(array["request"], array["status"], self._ids)
        return array

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

    @documented("routecap_request_extract_batch")
    def extract_batch(self, items: NDArray[np.void], *, check: bool = False) -> Routings:
        """Read rows of many requests in one call: an array of extract_dtype, whose `status` is
        filled.

        An item that was refused is an error when its routing is asked for. With `check` the call
        raises a PartialError: it names the items that were refused, and has the other routings.
        """
        self._expect_items(items, "extract_dtype")
        routings = Routings(raw.routecap_request_extract_batch(self._handle, items), items)
        if check:
            check_items(items["request"], routings.statuses, self._ids, routings)
        return routings

    @staticmethod
    def _expect_items(items: NDArray[np.void], form: str) -> None:
        structs.expect_array(items, "items", form)
        if items.ndim != 1:
            raise error(
                Status.ERR_DTYPE,
                f"items has shape {items.shape}, where one dimension is expected: give"
                " items.ravel()",
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

    @documented("routecap_request_finish_batch")
    def finish_batch(self, items: NDArray[np.void], *, check: bool = False) -> Routings:
        """End many requests in one call: an array of finish_dtype, whose `status` is filled.

        An item that was refused is an error when its routing is asked for. With `check` the call
        raises a PartialError: it names the items that were refused, and has the other routings.
        """
        self._expect_items(items, "finish_dtype")
        routings = Routings(raw.routecap_request_finish_batch(self._handle, items), items)
        if self._ids:
            self._forget_all(items["request"], routings.statuses)
        if check:
            check_items(items["request"], routings.statuses, self._ids, routings)
        return routings

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

    @documented("routecap_request_close_batch")
    def close_batch(
        self,
        requests: NDArray[np.uint64] | Sequence[RequestLike],
        status: NDArray[np.int32] | None = None,
        *,
        check: bool = False,
    ) -> Status:
        """End many requests and drop their rows; `status`, an int32 array, receives their statuses.
        Returns OK, or PARTIAL if some were unknown: with `check` that is a PartialError, which
        names them.

        All requests of a closed capturer have ended. This then does nothing.
        """
        if self.closed:
            return self._closed_all(status)
        handles = requests if isinstance(requests, np.ndarray) else self.handles(requests)
        if handles.dtype != np.uint64 or handles.ndim != 1:
            raise error(
                Status.ERR_DTYPE,
                f"requests is {structs.what_it_is(handles)} of shape {handles.shape}, where a list "
                "of requests is expected, or an array of handles as Capturer.open_batch gives",
            )
        if status is None:
            status = np.empty(len(handles), np.int32)
        elif status.dtype != np.int32 or status.shape != handles.shape:
            raise error(
                Status.ERR_SHAPE_MISMATCH,
                "status must be an int32 array with an element for each request:"
                " np.zeros(len(requests), np.int32)",
            )
        try:
            outcome: Status = raw.routecap_request_close_batch(
                self._handle, handles, status, len(handles)
            )
        except Error:
            if not self.closed:  # by another thread since then
                raise
            return self._closed_all(status)
        if self._ids:
            self._forget_all(handles, status)
        if check:
            check_items(handles, status, self._ids)
        return outcome

    @staticmethod
    def _closed_all(status: NDArray[np.int32] | None) -> Status:
        if status is not None:
            status[:] = Status.OK
        return Status.OK

    def _forget_all(self, handles: NDArray[np.uint64], statuses: NDArray[np.int32]) -> None:
        for handle, status in zip(handles.tolist(), statuses.tolist()):
            if status == Status.OK:
                self._forget(handle)

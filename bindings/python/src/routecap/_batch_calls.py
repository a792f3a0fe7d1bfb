"""The part of a capturer that opens requests, and has the calls for many of them at once."""

from collections.abc import Callable, Sequence
from operator import index
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from . import _structs as structs
from ._constants import Policy, Status
from ._docs import documented
from ._errors import Error, error, member
from ._library import raw
from ._opened import Opened
from ._requests import Request
from ._routings import Routings, check_items
from ._store import Keys, Store, checked_keys
from ._tensors import describe, integers
from .names import PolicyName


class BatchCalls(Opened):
    """Capturer: requests, opened and many in one call.

    One request is a Request. Many are an array of their handles, which spans and items of batches
    have too.
    """

    def _open(self, handles: NDArray[np.uint64], policy: Policy | PolicyName) -> None:
        options = (
            None if policy is Policy.KEEP else structs.open_options(policy=member(Policy, policy))
        )
        raw.routecap_request_open(self._handle, options, handles)

    @documented("routecap_request_open")
    def open(self, *, policy: Policy | PolicyName = Policy.KEEP) -> Request:
        """Open a request."""
        handles = np.zeros(1, np.uint64)
        self._open(handles, policy)
        return Request(self, int(handles[0]))

    def request(self, handle: SupportsIndex) -> Request:
        """The Request of a handle, such as one of open_batch."""
        return Request(self, index(handle))

    @documented("routecap_request_open")
    def open_batch(
        self, count: int, *, policy: Policy | PolicyName = Policy.KEEP
    ) -> NDArray[np.uint64]:
        """Open many requests in one call. Returns their handles."""
        handles = np.zeros(count, np.uint64)
        self._open(handles, policy)
        return handles

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
            assert paths is not None
            size = paths.size
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
            check_items(items["request"], items["status"])
        return status

    @documented("routecap_request_publish_batch")
    def publish_batch(
        self,
        store: Store,
        items: Sequence[tuple[SupportsIndex, int, Keys]],
        *,
        generation: int | None = None,
        check: bool = False,
    ) -> NDArray[np.int32]:
        """Publish rows of many requests in one call: (handle, first, keys) for each. Returns the
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
        items: Sequence[tuple[SupportsIndex, int, Keys]],
        *,
        generation: int | None = None,
        check: bool = False,
    ) -> NDArray[np.void]:
        """Add rows of a store to many requests in one call: (handle, first, keys) for each.
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
        items: Sequence[tuple[SupportsIndex, int, Keys]],
        generation: int | None,
        check: bool,
    ) -> NDArray[np.void]:
        requests, firsts, keys = zip(*items)
        checked = [checked_keys(each, store.key_bytes) for each in keys]
        counts = np.array([count for _, count in checked], np.uint64)
        held = np.frombuffer(b"".join(data for data, _ in checked), np.uint8)
        array = np.zeros(len(items), dtype)
        array["request"] = [index(request) for request in requests]
        array["first"], array["count"] = firsts, counts
        before = counts.cumsum() - counts
        array["keys"] = held.ctypes.data + before * np.uint64(store.key_bytes)
        call(self._handle, store._handle, array, store._generation(generation))
        array["keys"] = 0  # they are not held from here on
        if check:
            check_items(array["request"], array["status"])
        return array

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
            check_items(items["request"], routings.statuses, routings)
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

    @documented("routecap_request_finish_batch")
    def finish_batch(self, items: NDArray[np.void], *, check: bool = False) -> Routings:
        """End many requests in one call: an array of finish_dtype, whose `status` is filled.

        An item that was refused is an error when its routing is asked for. With `check` the call
        raises a PartialError: it names the items that were refused, and has the other routings.
        """
        self._expect_items(items, "finish_dtype")
        routings = Routings(raw.routecap_request_finish_batch(self._handle, items), items)
        if check:
            check_items(items["request"], routings.statuses, routings)
        return routings

    @documented("routecap_request_close_batch")
    def close_batch(
        self,
        handles: NDArray[np.uint64],
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
        if getattr(handles, "dtype", None) != np.uint64 or handles.ndim != 1:
            raise error(
                Status.ERR_DTYPE,
                f"handles is {structs.what_it_is(handles)}, where one dimension of uint64 is"
                " expected, as Capturer.open_batch gives: of Requests, close each",
            )
        if status is None:
            status = np.empty(len(handles), np.int32)
        elif status.dtype != np.int32 or status.shape != handles.shape:
            raise error(
                Status.ERR_SHAPE_MISMATCH,
                "status must be an int32 array with an element for each request:"
                " np.zeros(len(handles), np.int32)",
            )
        try:
            outcome: Status = raw.routecap_request_close_batch(
                self._handle, handles, status, len(handles)
            )
        except Error:
            if not self.closed:  # by another thread since then
                raise
            return self._closed_all(status)
        if check:
            check_items(handles, status)
        return outcome

    @staticmethod
    def _closed_all(status: NDArray[np.int32] | None) -> Status:
        if status is not None:
            status[:] = Status.OK
        return Status.OK

"""The requests of an engine, from their first row to the routing that is delivered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import routecap
from numpy.typing import NDArray

from ._prefixes import Part, Prefixes, Tokens


class Rows:
    """What one request computed, from a prefill of its first row on.

    handle: routecap's, while it is open. routing: its rows, once it has ended, and `count` how
    many. adopted: how many of them came from the prefix cache. kept: of how many the cache has the
    KV.
    """

    __slots__ = ("_capturer", "adopted", "count", "handle", "kept", "routing")

    def __init__(self, capturer: routecap.Capturer, handle: int) -> None:
        self._capturer = capturer
        self.handle = handle
        self.routing: routecap.Routing | None = None
        self.adopted = self.count = self.kept = 0

    @property
    def request(self) -> routecap.Request:
        return self._capturer.request(self.handle)

    def give(self, request: routecap.Request, rows: int) -> None:
        """Add its first rows to another request, those in flight included once they land."""
        if self.routing is not None:
            request.attach(self.routing, min(rows, self.count))
        else:
            request.attach(self.request.fork().finish(rows), rows)

    def finish(self, count: int | None = None) -> routecap.Routing:
        """So many rows, or those that others may want, those in flight included once they land."""
        if self.routing is None:
            count = self.kept if count is None else count
            self.routing = self.request.finish(count)
            self.handle, self.count = 0, count
        return self.routing


class Life:
    """One request of the engine; an attribute of it, so that it ends with it.

    end: one past the last row that a prefill issued. prompt: how many tokens it began with.
    part: the last one that the prefix cache has of it.
    retractions: as the engine counted them then; computed again, a request begins anew.
    """

    __slots__ = ("end", "part", "prompt", "retractions", "rows")

    def __init__(self, rows: Rows, retractions: int) -> None:
        self.rows, self.retractions = rows, retractions
        self.end = self.prompt = 0
        self.part: Part | None = None

    def __del__(self) -> None:
        if self.rows.handle and not self.rows._capturer.closed:
            self.rows.finish()


def life_of(request: object) -> Life | None:
    return getattr(request, "routecap", None)


class Lives:
    """Handles and spans of batches. A batch like the last one costs one comparison.

    mixed: the engine's cache may have KV of several versions of the weights.
    followed: a place in its tree keeps the KV that it was told here with, so that a row is of the
        KV that a request gets, and not only of the same tokens.
    """

    mixed, followed = False, True

    def __init__(
        self,
        capturer: routecap.Capturer,
        prefixes: Prefixes,
        tree_of: Callable[[Any], tuple[Any, ...]],
        beams: bool = True,
    ) -> None:
        self._capturer = capturer
        self._prefixes = prefixes
        self._tree_of = tree_of
        self._beams = beams
        self._batch: list[Any] = []
        self._spans = routecap.spans(1)

    def decoding(
        self,
        requests: list[Any],
        rows: int,
        sink_row: int,
        flags: routecap.SpanFlag = routecap.SpanFlag(0),
    ) -> NDArray[np.void]:
        """Spans of `rows` rows for each, one after another from `sink_row` on; their positions are
        to be set. Valid until the next call."""
        spans = self._spans
        if requests != self._batch or len(spans) != len(requests):
            spans = self._spans = routecap.spans(request=self._handles(requests))
            self._batch = list(requests)
            self._rows = -1
        if (rows, sink_row, flags) != (self._rows, self._first, self._flags):
            self._rows, self._first, self._flags = rows, sink_row, flags
            spans["rows"] = rows
            spans["sink_row"] = sink_row + rows * np.arange(len(spans), dtype=np.uint32)
            spans["flags"] = flags
            spans["position_end"] = 0
        return spans

    _rows = _first = _flags = -1

    def _handles(self, requests: list[Any]) -> NDArray[np.uint64]:
        new = [request for request in requests if life_of(request) is None]
        if self._beams:  # of a beam search KV goes from beam to beam
            new = [request for request in new if not is_beam_search(request)]
        if new:
            opened = self._capturer.open_batch(len(new)).tolist()
            for request, handle in zip(new, opened, strict=True):
                request.routecap = Life(Rows(self._capturer, handle), request.retraction_count)
        lives = map(life_of, requests)
        return np.array([0 if life is None else life.rows.handle for life in lives], np.uint64)

    def prefilling(
        self, requests: list[Any], firsts: list[int], counts: list[int], sink_row: int
    ) -> NDArray[np.void]:
        """Spans of requests that compute positions from `firsts` on, `counts` each. What the engine
        took from its cache before these is taken from who computed it."""
        for request in requests:
            life = life_of(request)
            if life is not None and life.retractions != request.retraction_count:
                life.rows.finish()
                request.routecap = None
                self._batch = []
        handles = self._handles(requests)
        for request, first, count in zip(requests, firsts, counts, strict=True):
            self._begin(request, first, count)
        rows = np.array(counts, np.uint32)
        return routecap.spans(
            request=handles,
            position=np.array(firsts, np.uint64),
            sink_row=sink_row + np.cumsum(rows) - rows,
            rows=rows,
        )

    def _begin(self, request: Any, first: int, count: int) -> None:
        life = life_of(request)
        if life is None or not life.rows.handle:
            return
        if life.end == 0:
            life.prompt = len(request.origin_input_ids) + len(request.output_ids)
        if first < life.end:  # what it computed from here on, it computes again
            life.rows.request.truncate(first)
        elif first > life.end and life.end < life.prompt:
            self._adopt(life, request, first)
        life.end = first + count

    def _adopt(self, life: Life, request: Any, rows: int) -> None:
        if life.end == 0:
            life.rows.adopted = rows
        if self.mixed and not self.followed:
            return
        tokens = tokens_of(request.origin_input_ids + request.output_ids)
        session, tree = session_of(request), self._tree_of(request)
        owners = self._prefixes.find(session if session in self._prefixes else tree, tokens, rows)
        for owner, end in owners:
            if owner is not life.rows:
                owner.give(life.rows.request, end)


def tokens_of(tokens: Any) -> Tokens:
    """The engine's array of token ids, without a copy; until 0.5.12 it has lists."""
    if isinstance(tokens, list):
        return np.array(tokens, np.int64)
    return np.frombuffer(tokens, np.int64) if len(tokens) else np.empty(0, np.int64)


def tree_of(key: Any) -> tuple[Any, ...]:
    """Where in the cache's tree the prefix of a request, or a key of the cache's, may be."""
    return (key.extra_key, key.cache_salt or None)


def tree_without_salts(key: Any) -> tuple[Any, ...]:
    """The same until 0.5.17: a salt is a part of the other."""
    return (key.extra_key, None)


def is_beam_search(request: Any) -> bool:
    return (request.sampling_params.beam_width or 1) > 1


def session_of(request: Any) -> tuple[Any, ...] | None:
    """Where the KV of its session is, apart from the tree, if that keeps any."""
    session = request.session
    return None if session is None else ("session", session.session_id)

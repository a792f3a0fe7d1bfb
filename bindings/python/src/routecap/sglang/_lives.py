"""The requests of an engine, from their first row to the routing that is delivered."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

import routecap

from ._prefixes import Prefixes, Tokens


class Life:
    """One request of the engine; an attribute of it, so that it ends with it.

    handle: routecap's, while it is open. routing: its rows, once it has ended.
    end: one past the last row that a prefill issued. adopted: how many of its rows came from the
    prefix cache. retractions: as the engine counted them when its last prefill began.
    """

    __slots__ = ("_capturer", "adopted", "end", "handle", "retractions", "routing")

    def __init__(self, capturer: routecap.Capturer, handle: int, retractions: int) -> None:
        self._capturer = capturer
        self.handle = handle
        self.routing: routecap.Routing | None = None
        self.end = self.adopted = 0
        self.retractions = retractions

    def share(self, rows: int) -> routecap.Routing:
        if self.routing is not None:
            return self.routing
        return self._capturer.fork(self.handle, rows).finish(rows)

    def finish(self, tokens: int) -> routecap.Routing:
        """A row for each of its tokens, those in flight included once they land. The last token's
        is there if it was input to a step that ran ahead: whoever continues it needs that row."""
        if self.routing is None:
            self.routing = self._capturer.finish(self.handle, tokens)
            self.handle = 0
        return self.routing

    def __del__(self) -> None:
        if self.handle and not self._capturer.closed:
            self._capturer.close_batch(np.array([self.handle], np.uint64))


def life_of(request: Any) -> Life | None:
    return getattr(request, "routecap", None)


class Lives:
    """Handles and spans of batches. A batch like the last one costs one comparison."""

    def __init__(self, capturer: routecap.Capturer, prefixes: Prefixes) -> None:
        self._capturer = capturer
        self._prefixes = prefixes
        self._batch: list[Any] = []
        self._spans = routecap.spans(1)

    def decoding(self, requests: list[Any], rows: int, sink_row: int, flags: int = 0) -> Any:
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
        lives = [life_of(request) for request in requests]
        new = [i for i, life in enumerate(lives) if life is None]
        if new:
            opened = self._capturer.open_batch(len(new)).tolist()
            for i, handle in zip(new, opened, strict=True):
                request = requests[i]
                retractions = getattr(request, "retraction_count", 0)
                lives[i] = request.routecap = Life(self._capturer, handle, retractions)
        return np.array([life.handle for life in lives if life is not None], np.uint64)

    def prefilling(
        self, requests: list[Any], firsts: list[int], counts: list[int], sink_row: int
    ) -> NDArray[np.void]:
        """Spans of requests that compute positions from `firsts` on, `counts` each. What the engine
        took from its cache before these is taken from who computed it."""
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
        life: Life = request.routecap
        if not life.handle:
            return
        retractions = getattr(request, "retraction_count", 0)
        retracted = retractions != life.retractions
        if retracted or first < life.end:  # what it computed from here on, it computes again
            self._capturer.truncate(life.handle, first)
            life.end, life.adopted = min(life.end, first), min(life.adopted, first)
            life.retractions = retractions
        in_prompt = life.end < len(request.origin_input_ids)
        if first > life.end and (retracted or in_prompt):
            self._adopt(life, request, first)
        life.end = first + count

    def _adopt(self, life: Life, request: Any, rows: int) -> None:
        tokens = tokens_of(request.full_untruncated_fill_ids)
        fresh = life.end == 0
        for scope in scopes_of(request):
            owners = self._prefixes.find(scope, tokens, rows)
            for owner, end in owners:
                if owner is not life:
                    self._capturer.attach(life.handle, owner.share(end), end)
            if owners and owners[-1][1] == rows:
                break
        if fresh:
            life.adopted = rows


def tokens_of(tokens: Any) -> Tokens:
    """The engine's array of token ids, without a copy."""
    return np.frombuffer(tokens, np.int64) if len(tokens) else np.empty(0, np.int64)


def scopes_of(request: Any) -> list[tuple[Any, ...]]:
    """Where the cached prefix of a request may be: what its session keeps, and the tree."""
    tree = (getattr(request, "extra_key", None), getattr(request, "cache_salt", None))
    session = getattr(request, "session", None)
    return [tree] if session is None else [(*tree, session.session_id), tree]

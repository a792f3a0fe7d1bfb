"""The requests of a capturer by the engine's names, from their first row until they are read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

import routecap

from ._stops import StopRule

_handle = attrgetter("handle")


@dataclasses.dataclass(slots=True, eq=False)
class RequestState:
    """What is known of one request.

    handle: routecap's handle while it is open; 0 before its first row, after its end, and while it
        is preempted.
    routing: its rows, once it has ended.
    earlier: its rows from before a preemption, which come first; only if the options keep them.
    rule: when it ends; None before its first output token.
    seen: output tokens that the rule has looked at. All of them are certain.
    end: rows that belong to its tokens, as its outputs have told; 0 before its first output token.
    rows: rows of its last step, if later ones may belong to rejected drafts; otherwise 0.
    start: position of the first of these rows, if the host knows it.
    certain: rows that certainly belong to its tokens, before an output has told it; None: all.
    off: it is not captured, and has no handle.
    version: of the weights, if all its rows so far are of one; otherwise -1. For `Prefixes`.
    """

    handle: int = 0
    routing: routecap.Routing | None = None
    earlier: routecap.Routing | None = None
    rule: StopRule | None = None
    seen: int = 0
    end: int = 0
    rows: int = 0
    start: int | None = None
    certain: int | None = None
    off: bool = False
    version: int = -1

    @property
    def issued(self) -> int:
        """One past the last row of its last step; 0 if not known, or if all rows are certain."""
        return 0 if self.start is None else self.start + self.rows


class Requests:
    """live: requests that have not finished, by name. unsettled: those whose `rows` is not 0.

    wanted: says whether a request is captured, by its name. It is asked once.
    tokens_of: says how many prompt tokens and tokens a request has, by its name, if nobody calls
        `settle` with its outputs; None for an unknown request.
    """

    def __init__(self, capturer: routecap.Capturer, keep_ended: int, keep_preempted: bool) -> None:
        self.wanted: Callable[[str], bool] = lambda name: True
        self.tokens_of: Callable[[str], tuple[int, int] | None] | None = None
        self._capturer = capturer
        self._keep_ended = keep_ended
        self._keep_preempted = keep_preempted
        self.live: dict[str, RequestState] = {}
        self.unsettled: set[RequestState] = set()
        self._left: set[RequestState] = set()  # preempted, and not computed again yet
        self._ended: dict[str, RequestState] = {}  # in the order in which they ended
        self.batch: list[str] | None = None  # of the last step, as long as its handles are good
        self._batch_states: list[RequestState] = []
        self._batch_handles: NDArray[np.uint64] = np.empty(0, np.uint64)
        self.last_ticket = 0  # of the last step of all requests

    def find(self, name: str) -> RequestState | None:
        return self.live.get(name) or self._ended.get(name)

    def handles(self, names: Sequence[str]) -> NDArray[np.uint64]:
        """The handles of a batch, 0 for requests that are not captured. New requests are opened.

        A batch equal to the last one costs one comparison.
        """
        if self.batch == names:
            return self._batch_handles
        for name in names:
            if name not in self.live:
                state = self.live[name] = RequestState()
                state.off = not self.wanted(name)
        states = list(map(self.live.__getitem__, names))
        for state in self._left.intersection(states) if self._left else ():
            if state.handle:
                self._capturer.request(state.handle).truncate(0)
            self._left.discard(state)
        handles = np.fromiter(map(_handle, states), np.uint64, len(states))
        if np.count_nonzero(handles) < len(handles):
            new = [i for i in np.flatnonzero(handles == 0) if not states[i].off]
            if new:
                handles[new] = self._open([states[i] for i in new])
        self.batch, self._batch_states, self._batch_handles = list(names), states, handles
        return handles

    def _open(self, states: Sequence[RequestState]) -> NDArray[np.uint64]:
        # Positions that are input again are cut first. Where that is not known, rows are replaced.
        handles = self._capturer.open_batch(len(states), policy="replace")
        for state, handle in zip(states, handles.tolist(), strict=True):
            state.handle = handle
            if state.routing is None:
                state.end = 0
            else:  # it seemed to have ended, and goes on
                self._capturer.request(handle).attach(state.routing)
                state.routing = None
                state.rows, state.start, state.certain = 1, None, None
                self.unsettled.add(state)
        return handles

    # ---- Drafts
    #
    # A step verifies drafts in the rows after that of the last known token, and the engine does not
    # say which rows these are. Rows of rejected drafts are cut: by `settle`, if outputs tell how
    # many rows belong to tokens; otherwise by `expect`, when the next step inputs them again.
    # Requests that are computed again from some position on are cut in the same way.

    def expect(
        self,
        counts: Sequence[int],
        bounds: tuple[NDArray[np.int64], NDArray[np.int64]] | None,
        start_of: Callable[[str], int | None],
    ) -> list[int]:
        """Cut the positions that each request inputs again: the batch is about to be issued.

        Args:
            counts: How many rows each request has.
            bounds: The first position of each request and one past its last, if they are known.
            start_of: Otherwise, the first position of a request by its name.

        Returns: Handles of the requests whose rows verify drafts.
        """
        assert self.batch is not None
        verified: list[int] = []
        for index, (state, rows) in enumerate(zip(self._batch_states, counts, strict=True)):
            if rows == 1 and not state.rows or state.off:
                continue
            start: int | None
            if bounds is not None:
                start, rows = int(bounds[0][index]), int(bounds[1][index] - bounds[0][index])
                if rows <= 0:  # the request has no position
                    continue
            else:
                unknown = state.rule is None and self.tokens_of is None
                start = None if unknown else start_of(self.batch[index])
            if start is not None and start < max(state.end, state.issued):
                self._capturer.request(state.handle).truncate(start)
                if start < state.end and state.rule is not None:  # other tokens may come there
                    state.end = start
                    state.seen = min(state.seen, max(0, start + 1 - state.rule.prompt_tokens))
            if rows > 1:
                state.rows, state.start, state.certain = rows, start, None
                known = self._known_tokens(state, self.batch[index])
                if known is not None:
                    state.certain = known  # including the row of the last token
                    if start is not None:
                        state.certain = max(start + 1, min(start + rows, state.certain))
                    if start is not None and start >= self._told(state, self.batch[index])[0]:
                        verified.append(state.handle)
                self.unsettled.add(state)
            else:
                self._certain(state)
        return verified

    def _known_tokens(self, state: RequestState, name: str) -> int | None:
        """How many tokens the host knows; None while there is no output token."""
        prompt, tokens = self._told(state, name)
        return tokens if state.rule is not None or tokens > prompt else None

    def _told(self, state: RequestState, name: str) -> tuple[int, int]:
        """How many prompt tokens and tokens of a request the host knows; 0 if it knows none."""
        if state.rule is not None:
            return state.rule.prompt_tokens, state.rule.prompt_tokens + state.seen
        return self.tokens_of and self.tokens_of(name) or (0, 0)

    def settle(self, state: RequestState, end: int, known: bool) -> None:
        """The outputs of a request tell that `end` rows at most are its tokens': cut the others.

        Args:
            known: Whether they tell all that its last step accepted.
        """
        issued = state.issued or end
        before, state.end = state.end, min(end, issued)  # fewer while its tokens are computed again
        if state.rows and known:
            if state.start is None and 0 < before < end:
                issued = before + state.rows  # at least
            if issued > end:
                self._capturer.request(state.handle).truncate(end)
            self._certain(state)

    def _certain(self, state: RequestState) -> None:
        if state.rows:
            state.rows = 0
            self.unsettled.discard(state)

    def cut(self, rows: Mapping[str, int]) -> None:
        """Rows from these on, of steps so far, are gone."""
        for name, end in rows.items():
            state = self.live.get(name)
            if state is not None and state.handle:
                self._capturer.request(state.handle).truncate(end)
                state.end = min(state.end, end)
                self._certain(state)

    def end_of(
        self,
        state: RequestState,
        outputs: Sequence[int],
        prompt: int,
        sampling: object,
        max_model_len: int,
    ) -> int | None:
        """How many rows a request ends with; None if it goes on."""
        rule, before = state.rule, 0
        # A session's next turn is new in both.
        if rule is None or rule.prompt_tokens != prompt or rule.sampling is not sampling:
            rule = state.rule = StopRule(sampling, prompt, max_model_len)
            state.seen = 0
        elif state.end:
            before = max(0, min(state.end + 1 - prompt, len(outputs) - 1))
            state.seen = min(state.seen, before)  # of outputs taken back, the last is another
        self.settle(state, prompt + len(outputs) - 1, known=outputs[-1] >= 0)
        end, state.seen = rule.check(outputs, state.seen, before)
        return None if end is None else prompt + end - 1  # the last token was never input

    def finish(self, ends: Sequence[tuple[RequestState, int]]) -> None:
        """End requests, each with a number of rows. Waits for nothing: rows in flight arrive in the
        routings.
        """
        items = np.zeros(len(ends), routecap.finish_dtype)
        items["request"] = [state.handle for state, _ in ends]
        items["rows"] = [rows for _, rows in ends]
        routings = self._capturer.finish_batch(items)
        for (state, rows), routing in zip(ends, routings, strict=True):
            state.handle = 0
            self._certain(state)
            state.routing = (
                routing if state.earlier is None else self._united(state.earlier, routing, rows)
            )
        self.batch, self._batch_states = None, []

    def read(self, state: RequestState) -> routecap.Routing | None:
        """All rows that a request has now, None if it has none. A running request goes on.

        Waits for rows in flight.
        """
        routing = state.earlier if state.routing is None else state.routing
        if state.handle:
            # A span whose positions only the device knows may be anything within its bounds until
            # it lands.
            self._wait_for_all()
            captured = self._capturer.request(state.handle).extract()
            if state.rows and state.certain is not None:
                captured = captured.slice(0, min(max(state.certain, state.end), captured.rows))
            routing = (
                captured if state.earlier is None else self._united(state.earlier, captured, None)
            )
        if routing is not None:
            routing.wait()
        return routing

    def _wait_for_all(self) -> None:
        """Wait until all steps have landed: in order, except lost ones, which land at once."""
        number = self.last_ticket
        while number > 0 and self._capturer.issued(number).wait() is routecap.Status.LOST:
            number -= 1

    def preempt(self, names: Iterable[str]) -> None:
        """Forget the rows of these requests, or keep those under which a token was sampled.

        Both will be computed again.

        Where ends are told, they are forgotten when they are: a step that was in flight may have
        been a request's last.
        """
        dropped, kept = [], []
        for name in names:
            state = self.live.get(name)
            if state is None:
                continue
            known = self._known_tokens(state, name)
            if not self._keep_preempted or known is None:
                dropped.append(state)
            elif state.handle:
                kept.append((state, known - 1))  # what is behind may be a rejected draft's
            elif state.routing is not None:  # was thought to have ended
                state.earlier, state.routing = state.routing, None
        if kept:
            self.finish(kept)
            for state, _ in kept:
                state.earlier, state.routing = state.routing, None
        if self.tokens_of is None:
            self._close(dropped)
            return
        for state in dropped:
            self._left.add(state)
            self._certain(state)
        self.batch, self._batch_states = None, []

    def resume(self, names: Iterable[str]) -> None:
        """These requests begin anew with the next step. Not every preemption is told: an engine
        that empties its cache does not say so.
        """
        found = [name for name in names if name in self.live]
        self.preempt(name for name in found if self.live[name] not in self._left)

    def end(self, names: Iterable[str]) -> None:
        """These requests have finished. Those that were not read stay readable, as many as the
        options keep.
        """
        forgotten = []
        for name in names:
            state = self.live.pop(name, None)
            if state is None:
                continue
            if (
                self._keep_ended
                and (state.handle or state.earlier is not None)
                and state.routing is None
            ):
                if (older := self._ended.pop(name, None)) is not None:
                    forgotten.append(older)
                self._ended[name] = state
            else:
                forgotten.append(state)
        while len(self._ended) > self._keep_ended:
            forgotten.append(self._ended.pop(next(iter(self._ended))))
        self._close(forgotten)

    def drop(self, name: str) -> None:
        """Forget a request and its rows; one that is not known is none."""
        state = self.live.pop(name, None) or self._ended.pop(name, None)
        if state is not None:
            self._close([state])

    def _united(
        self, earlier: routecap.Routing, later: routecap.Routing, rows: int | None
    ) -> routecap.Routing:
        """One routing of two, either of which may be pending, with the rows of the earlier one
        where it has any.
        """
        request = self._capturer.open()
        request.attach(earlier)
        request.attach(later)
        return request.finish(rows)

    def _close(self, states: Sequence[RequestState]) -> None:
        handles = [state.handle for state in states if state.handle]
        if handles:
            self._capturer.close_batch(np.array(handles, np.uint64))
        for state in states:
            state.handle = 0
            state.routing = None
            self._certain(state)
            self._left.discard(state)
        self.batch, self._batch_states = None, []

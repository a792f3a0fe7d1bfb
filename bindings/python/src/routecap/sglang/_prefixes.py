"""Who computed the rows of what is in the engine's prefix cache.

SGLang's radix tree is told by tokens, and so is this one: a path of tokens, and for each part of it
the request that computed the part. A part is as long as what one request brought in, so that a hit
of 30,000 tokens costs a few calls, none of which looks at a row, at a slot or at the device. KV
that moves to another slot, to the host or back keeps its tokens, and so its rows.

The engine does not say which KV it evicts. A part whose KV came back, computed again, replaces what
is here; one whose KV is gone is never asked for, and ends when `limit` rows are exceeded, the least
recently used first. All calls are the scheduler's thread's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int64]


class Owner(Protocol):
    """A request that computed rows.

    adopted: how many rows at its beginning came from the cache, and so are those of the tree.
    """

    adopted: int

    def give(self, request: int, rows: int) -> None:
        """Add its first rows, which may be in flight, to a request of routecap."""


class Part:
    """Tokens that one request brought in behind those of `parent`, which has `first` before it."""

    __slots__ = ("children", "first", "owner", "parent", "tokens")

    def __init__(
        self, parent: Part | None, first: int, tokens: Tokens, owner: Owner | None
    ) -> None:
        self.parent, self.first, self.tokens, self.owner = parent, first, tokens, owner
        self.children: dict[int, Part] = {}

    @property
    def end(self) -> int:
        return self.first + len(self.tokens)


class Prefixes:
    """rows: how many are kept reachable here; at most `limit`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._roots: dict[Hashable, Part] = {}
        self._used: OrderedDict[Part, None] = OrderedDict()  # a part comes before its parent
        self.rows = 0

    def clear(self) -> None:
        """The cache was flushed."""
        self._roots.clear()
        self._used.clear()
        self.rows = 0

    def insert(
        self, scope: Hashable, tokens: Tokens, first: int, owner: Owner, last: Part | None = None
    ) -> Part | None:
        """KV of `tokens` is in the cache, and from position `first` on it is what `owner` computed.

        scope: what else must be alike for KV to be shared (adapter, salt, session).
        last: what the insert before this one returned for the same sequence, so that a long one is
            not compared again each time that it has grown.
        """
        root = self._roots.setdefault(scope, Part(None, 0, tokens[:0], None))
        path, matched = self._path(root, last, first), first
        if not path:
            path, matched = self._walk(root, tokens[:first])
        if matched < first or first >= len(tokens):
            return last  # those who computed what is before it are gone: nothing could lead here
        part = path[-1] if path else root
        if part.end > first:
            part = path[-1] = self._split(part, first)
        known = part.children.get(int(tokens[first]))
        if known is not None:
            self._drop(known)  # its KV was evicted, and so was all that is behind it
        new = Part(part, first, tokens[first:].copy(), owner)
        part.children[int(tokens[first])] = new
        self.rows += len(new.tokens)
        self._used[new] = None
        self._touch([*path, new])
        self._trim()
        return new

    def find(self, scope: Hashable, tokens: Tokens, rows: int) -> list[tuple[Owner, int]]:
        """Who computed the first `rows` rows of these tokens: each, in order, with the end of its
        own. Shorter than asked for where nobody is known."""
        root = self._roots.get(scope)
        if root is None:
            return []
        path, matched = self._walk(root, tokens[:rows])
        self._touch(path)
        found: list[tuple[Owner, int]] = []
        for part in reversed(path):
            assert part.owner is not None
            found.append((part.owner, min(part.end, matched)))
            if part.owner.adopted >= part.first:
                break  # what it took from the cache are the rows of all before it
        return found[::-1]

    def _path(self, root: Part, last: Part | None, end: int) -> list[Part]:
        """The parts that lead to the last one; none if it is gone, or ends elsewhere."""
        path: list[Part] = []
        if last is None or last.end != end or last not in self._used:
            return path
        part = last
        while part.parent is not None:
            path.append(part)
            part = part.parent
        return path[::-1] if part is root else []

    def _walk(self, root: Part, tokens: Tokens) -> tuple[list[Part], int]:
        """The parts that begin with these tokens, and how many tokens they agree on."""
        path: list[Part] = []
        part, at = root, 0
        while at < len(tokens):
            child = part.children.get(int(tokens[at]))
            if child is None:
                break
            same = _alike(child.tokens, tokens[at:])
            path.append(child)
            at += same
            part = child
            if same < len(child.tokens):
                break
        return path, at

    def _split(self, part: Part, at: int) -> Part:
        """Divide a part at a position; returns its beginning."""
        assert part.parent is not None
        count = at - part.first
        head = Part(part.parent, part.first, part.tokens[:count], part.owner)
        part.parent.children[int(head.tokens[0])] = head
        part.parent, part.first, part.tokens = head, at, part.tokens[count:]
        head.children[int(part.tokens[0])] = part
        self._used[head] = None
        return head

    def _touch(self, path: list[Part]) -> None:
        for part in reversed(path):
            self._used.move_to_end(part)

    def _drop(self, part: Part) -> None:
        """Forget a part and all behind it."""
        if part.parent is not None and part.parent.children.get(int(part.tokens[0])) is part:
            del part.parent.children[int(part.tokens[0])]
        pending = [part]
        while pending:
            each = pending.pop()
            pending.extend(each.children.values())
            self.rows -= len(each.tokens)
            del self._used[each]

    def _trim(self) -> None:
        while self.rows > self._limit and self._used:
            self._drop(next(iter(self._used)))


def _alike(known: Tokens, tokens: Tokens) -> int:
    """How many tokens two sequences begin with together."""
    n = min(len(known), len(tokens))
    different = known[:n] != tokens[:n]
    at = int(different.argmax()) if n else 0
    return at if n and different[at] else n

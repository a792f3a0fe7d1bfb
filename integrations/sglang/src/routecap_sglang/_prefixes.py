"""Who computed the rows of what is in the engine's prefix cache.

SGLang's radix tree is told by tokens, and so is this one: a path of tokens, and for each part of it
the request that computed the part. A part is as long as what one request brought in, so that a hit
of 30,000 tokens costs a few calls, none of which looks at a row, at a slot or at the device. KV
that moves to another slot, to the host or back keeps its tokens, and so its rows.

The cache shares whole pages: two sequences that differ within a page have that page twice, and a
part is told from its siblings by its whole first page. Where the cache tells tokens by pairs, each
with the one behind it, so does this one: an array of tokens is [n], or [n, 2] of pairs.

The engine does not say which KV it evicts. A part whose KV came back, computed again, replaces what
is here; one whose KV is gone is never asked for, and ends when `limit` rows are exceeded, the least
recently used first. All calls are the scheduler's thread's.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable
from typing import Protocol

import numpy as np
import routecap
from numpy.typing import NDArray

Tokens = NDArray[np.int64]


class Owner(Protocol):
    """A request that computed rows.

    adopted: how many rows at its beginning came from the cache, and so are those of the tree.
    """

    adopted: int

    def give(self, request: routecap.Request, rows: int) -> None:
        """Add its first rows, which may be in flight, to a request of routecap."""


class Part:
    """Tokens that one request brought in behind those of `parent`, which has `first` before it.

    key: its first page, by which its parent has it.
    """

    __slots__ = ("children", "first", "key", "owner", "parent", "tokens")

    def __init__(
        self, parent: Part | None, first: int, tokens: Tokens, owner: Owner | None
    ) -> None:
        self.parent, self.first, self.tokens, self.owner = parent, first, tokens, owner
        self.children: dict[bytes, Part] = {}
        self.key = b""

    @property
    def end(self) -> int:
        return self.first + len(self.tokens)


class Root(Part):
    """page: tokens in a page, as far as that is known: a multiple of it."""

    __slots__ = ("page",)

    def __init__(self, tokens: Tokens) -> None:
        super().__init__(None, 0, tokens[:0], None)
        self.page = 0

    def key_at(self, tokens: Tokens, at: int) -> bytes:
        return tokens[at : at + self.page].tobytes()


class Prefixes:
    """rows: how many are kept reachable here; at most `limit`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._roots: dict[Hashable, Root] = {}
        self._used: OrderedDict[Part, None] = OrderedDict()  # a part comes before its parent
        self.rows = 0

    def __contains__(self, scope: Hashable) -> bool:
        return scope in self._roots

    def forget(self, scope: Hashable, tokens: Tokens | None = None, first: int = 0) -> None:
        """The cache has nothing any more in this scope; or behind the first ones of these tokens."""
        root = self._roots.get(scope)
        if root is None:
            return
        if tokens is None:
            del self._roots[scope]
            pending = list(root.children.values())
        else:
            path, matched = self._walk(root, tokens[:first])
            if matched < first:
                return
            part = path[-1] if path else root
            if part.end > first:
                part = self._split(root, part, first)
            known = part.children.get(root.key_at(tokens, first))
            pending = [] if known is None else [known]
        for part in pending:
            self._drop(part)

    def clear(self) -> None:
        """The cache was flushed."""
        self._roots.clear()
        self._used.clear()
        self.rows = 0

    def insert(
        self,
        scope: Hashable,
        tokens: Tokens,
        first: int,
        owner: Owner,
        last: Part | None = None,
        page: int = 0,
    ) -> Part | None:
        """KV of `tokens` is in the cache, and from position `first` on it is what `owner` computed.

        scope: what else must be alike for KV to be shared (adapter, salt, session).
        last: what the insert before this one returned for the same sequence, so that a long one is
            not compared again each time that it has grown.
        page: how many tokens the cache's pages have. 0: it does not say; what it takes are whole
            pages, and their lengths tell as much as matters.
        """
        root = self._roots.get(scope)
        if root is None:
            root = self._roots[scope] = Root(tokens)
        self._page(root, math.gcd(root.page, page, first, len(tokens)))
        path, matched = self._path(root, last, first), first
        if not path:
            path, matched = self._walk(root, tokens[:first])
        if matched < first or first >= len(tokens):
            return last  # those who computed what is before it are gone: nothing could lead here
        part = path[-1] if path else root
        if part.end > first:
            part = path[-1] = self._split(root, part, first)
        known = part.children.get(root.key_at(tokens, first))
        if known is not None:
            self._drop(known)  # its KV was evicted, and so was all that is behind it
        new = Part(part, first, tokens[first:].copy(), owner)
        self._hang(root, new)
        self.rows += len(new.tokens)
        self._used[new] = None
        self._touch([*path, new])
        self._trim()
        return new

    def find(self, scope: Hashable, tokens: Tokens, rows: int) -> list[tuple[Owner, int]]:
        """Who computed the first `rows` rows of these tokens, [n]: each, in order, with the end of
        its own. Shorter than asked for where nobody is known."""
        root = self._roots.get(scope)
        if root is None:
            return []
        if root.tokens.ndim == 2:
            tokens = pairs_of(tokens)
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

    def _walk(self, root: Root, tokens: Tokens) -> tuple[list[Part], int]:
        """The parts that begin with these tokens, and how many tokens they agree on, in whole
        pages."""
        path: list[Part] = []
        part: Part = root
        at = 0
        while at < len(tokens):
            child = part.children.get(root.key_at(tokens, at))
            if child is None:
                break
            same = _alike(child.tokens, tokens[at:]) // root.page * root.page
            path.append(child)
            at += same
            part = child
            if same < len(child.tokens):
                break
        return path, at

    def _page(self, root: Root, page: int) -> None:
        """A page has at most so many tokens. Of parts that have their first one in common only the
        latest is in the cache: that one could not be taken beside another."""
        if page == root.page:
            return
        root.page = page
        pending: list[Part] = [root]
        while pending:
            part = pending.pop()
            children, part.children = part.children, {}
            for child in children.values():  # the latest comes last
                known = part.children.get(root.key_at(child.tokens, 0))
                if known is not None:
                    self._drop(known)
                self._hang(root, child)
            pending.extend(part.children.values())

    def _hang(self, root: Root, part: Part) -> None:
        """Below its parent."""
        assert part.parent is not None
        part.key = root.key_at(part.tokens, 0)
        part.parent.children[part.key] = part

    def _split(self, root: Root, part: Part, at: int) -> Part:
        """Divide a part at a position; returns its beginning."""
        assert part.parent is not None
        count = at - part.first
        head = Part(part.parent, part.first, part.tokens[:count], part.owner)
        part.parent, part.first, part.tokens = head, at, part.tokens[count:]
        self._hang(root, head)
        self._hang(root, part)
        self._used[head] = None
        return head

    def _touch(self, path: list[Part]) -> None:
        for part in reversed(path):
            self._used.move_to_end(part)

    def _drop(self, part: Part) -> None:
        """Forget a part and all behind it."""
        if part.parent is not None and part.parent.children.get(part.key) is part:
            del part.parent.children[part.key]
        pending = [part]
        while pending:
            each = pending.pop()
            pending.extend(each.children.values())
            self.rows -= len(each.tokens)
            del self._used[each]

    def _trim(self) -> None:
        while self.rows > self._limit and self._used:
            self._drop(next(iter(self._used)))


def pairs_of(tokens: Tokens) -> Tokens:
    """Each token with the one behind it, [n - 1, 2], without a copy."""
    if len(tokens) < 2:
        return np.empty((0, 2), np.int64)
    return np.lib.stride_tricks.sliding_window_view(tokens, 2)


def _alike(known: Tokens, tokens: Tokens) -> int:
    """How many tokens two sequences begin with together."""
    n = min(len(known), len(tokens))
    different = known[:n] != tokens[:n]
    if different.ndim == 2:
        different = different.any(1)
    at = int(different.argmax()) if n else 0
    return at if n and different[at] else n

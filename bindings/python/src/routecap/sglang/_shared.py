"""Rows for other engines of the same model: a store in a file, under the tokens that they are of.

An engine that takes KV from elsewhere, out of a storage backend or after its start, has the rows
from who computed it, if that one shares the file.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Hashable

import routecap
from routecap.experimental import SharedStore

from ._prefixes import Tokens

logger = logging.getLogger(__name__)

BLOCK_ROWS = 16


class Shared:
    """Of one version of the weights at a time. Any thread may call.

    model: as the server names it. What another name's engine computed is not found.

    Raises:
        OSError, routecap.Error: There can be no such file, or it is of another shape.
    """

    def __init__(
        self, capturer: routecap.Capturer, path: str, budget_bytes: int, model: str, generation: int
    ) -> None:
        self._capturer, self._model = capturer, model
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            self.store = SharedStore.open(
                descriptor, capturer, block_rows=BLOCK_ROWS, budget_bytes=budget_bytes
            )
        finally:
            os.close(descriptor)
        self._generation: int | None = generation  # None: the store is of other weights
        self.advance(generation)

    def close(self) -> None:
        self.store.close()

    def advance(self, generation: int | None) -> None:
        """The weights are of this version from the next pass on, which is the tag of its rows; of
        one without a number if None, which no other engine could tell from another."""
        newest = self.store.stats().generation
        if generation is not None and generation >= newest:
            self.store.advance(generation)
            self._generation = generation
            return
        if self._generation is not None:
            logger.error(
                "routed experts: the store is of weights %d, and these are %s: it is not used. Give"
                " weights numbers that rise (weight_version)",
                newest,
                "without a number" if generation is None else generation,
            )
        self._generation = None

    def publish(
        self, rows: routecap.Request, routing: routecap.Routing, scope: Hashable, tokens: Tokens
    ) -> None:
        """Whole blocks of what a request has computed for its tokens; none if `routing`, which is
        the same, has a row of other weights than those that the engine has now."""
        generation = self._generation
        if generation is None or (routing.tags[routing.mask().any(1)] != generation).any():
            return
        try:
            rows.publish(self.store, 0, self._keys(scope, tokens), generation=generation)
        except routecap.Error:
            logger.exception("routed experts of a request do not go to the store")

    def adopt(self, request: int, scope: Hashable, tokens: Tokens) -> None:
        """Rows that a request lacks, of whole blocks of its first tokens."""
        if self._generation is not None:
            keys = self._keys(scope, tokens)
            self._capturer.adopt(request, self.store, 0, keys, generation=self._generation)

    def _keys(self, scope: Hashable, tokens: Tokens) -> routecap.Keys:
        return self.store.keys(tokens.astype("int32"), seed=repr((self._model, scope)).encode())

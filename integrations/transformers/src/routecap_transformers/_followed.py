"""Whose the rows of each forward pass are, and where the sequences go on: a capture, as far as it
follows them.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

import routecap

from . import _ledger
from ._ledger import Held
from ._names import Unread
from ._prefixes import Prefixes
from ._sequences import Batch, Content, Owner, Plan, plan_of_runs
from ._steps import Steps
from ._versions import KNOWN
from ._inputs import Inputs, cached_columns, inputs_of, runs_of


class Followed(Owner):
    """Capture, without its hooks."""

    def __init__(
        self, capturer: routecap.Capturer, device: torch.device, store: routecap.Store | int | None
    ) -> None:
        super().__init__()
        self.capturer = capturer
        self._device = device
        self._prefixes = None if store is None else Prefixes(capturer, store)
        self.store = None if self._prefixes is None else self._prefixes.store
        self._tag = 0 if self.store is None else self.store.stats().generation
        self._marks: Steps | None = None
        self._plan: Plan | None = None
        self._placed: tuple[torch.Tensor, bool] | None = None
        self._steps: list[routecap.Step] = []
        self._batches: list[Batch] = []
        self._named: dict[str, Batch] = {}
        self._skipped: dict[int, tuple[nn.Module, Plan]] = {}
        self._said_unversioned = False
        self._undo: list[Callable[[], object]] = []
        self._seen = False  # any forward pass
        self._paused = False
        self._aside: set[int] = set()  # threads whose forward passes compute no user's sequence

    @property
    def attached(self) -> bool:
        return bool(self._undo)

    def _apart(self) -> bool:
        """Whether nothing of this thread's forward passes is captured."""
        return self._paused or threading.get_ident() in self._aside

    @contextmanager
    def _set_apart(self) -> Iterator[None]:
        """As `paused`, for this thread."""
        here = threading.get_ident()
        before = here in self._aside
        self._aside.add(here)
        try:
            yield
        finally:
            if not before:
                self._aside.discard(here)

    def _plan_of(
        self,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        has_decoder: bool = False,
    ) -> Plan | None:
        """What is to be said of a forward pass that begins with these arguments.

        has_decoder: The decoder runs within it, and can be asked if this function says too little.
        """
        try:
            inputs = inputs_of(module, args, kwargs)
        except Unread:
            if has_decoder:
                return None
            raise
        if inputs is None:
            return None
        if self._placed is not None:
            (positions, new), self._placed = self._placed, None
            return self._plan_placed(positions, new)
        if inputs.paged:  # a warm-up: whose rows those of a step are is planned by who runs it
            return plan_of_runs(np.zeros(0, np.uint64), [], 0, None)
        if inputs.lacking:
            if has_decoder:
                return None
            raise ValueError(
                f"{inputs.lacking}: nothing says which sequences its rows are of. Say where they are"
                " by capture.place(), or give a model of a version of transformers that routecap"
                f" knows ({KNOWN})"
            )
        mask = inputs.mask
        if mask is not None and not (isinstance(mask, torch.Tensor) and mask.ndim == 2):
            raise ValueError(
                "attention_mask is no [batch, length] tensor, so that padding cannot be told: give"
                " one, or say where the rows are by capture.place()"
            )
        held = self._held_by(inputs.cache)
        if held.known and held.content is None or inputs.starts is not None:
            runs = runs_of(inputs)
            if runs is not None:
                return self._plan_packed(inputs, runs, held)
        batch, begun = self._goes_on(inputs.batch, inputs.length, inputs.mask, inputs.cache, held)
        batch.lengths = None  # if it was generated, it goes on
        try:
            return self._with_cache(batch.plan(inputs.length, mask), inputs.cache, begun)
        except ValueError:
            self._forget(begun)
            raise

    def _held_by(self, cache: object) -> Held:
        held = Held(True) if cache is None else _ledger.read(self, cache)
        if held.unversioned and not self._said_unversioned:
            self._said_unversioned = True
            warnings.warn(
                "under torch.inference_mode nothing tells whether a cache was changed since the last"
                " forward pass, so that caches are not followed: each pass begins new sequences,"
                " whose earlier rows are missing. Call the model under torch.no_grad, or"
                " call generate()",
                RuntimeWarning,
                stacklevel=2,
            )
        return held

    def _with_cache(self, plan: Plan, cache: object, begun: Batch | None) -> Plan:
        """The forward pass of a plan is next, and goes on with a cache."""
        plan.cache, plan.begun = cache, begun
        if cache is not None:
            _ledger.begin(self, cache, plan)
        return plan

    def _goes_on(
        self, rows: int, length: int, mask: torch.Tensor | None, cache: object, held: Held
    ) -> tuple[Batch, Batch | None]:
        """The sequences that a forward pass goes on with; and again, if they begin with it."""
        content, batch = held.content, held.batch
        in_progress = batch is not None and batch in self._batches
        known = len(content.rows) if content is not None else None
        if not held.known and in_progress:
            known = held.rows
        if known not in (None, rows):
            raise ValueError(
                f"the cache has {known} sequences and the forward pass {rows} rows: call"
                " capture.reorder() where that changes"
            )
        if content is not None and batch is not None and in_progress and content.line is batch.line:
            self._bring(batch, content)
            return batch, None
        columns = 0
        if not held.known:
            said = cached_columns(cache)
            if said is None and mask is not None:
                said = mask.shape[1] - length
            if said is None:
                raise ValueError(
                    "the cache was filled unseen, and does not say how many tokens it has: give"
                    " attention_mask, or say where the rows are by capture.place()"
                )
            columns = said
        batch = self._new_batch(rows)
        if content is None:
            batch.begin(columns)
        elif self._prefixes is None:
            batch.begin(content.columns)
        else:
            self._prefixes.adopt(content, batch, self._tag)
        return batch, batch

    def _bring(self, batch: Batch, content: Content) -> None:
        """Rows of its cache were cut or reordered: its sequences follow."""
        assert batch.line is not None
        rows, every = list(content.rows), list(range(len(batch.requests)))
        columns = batch.line.columns
        if rows == every and content.columns == columns:
            return
        if rows != every:
            self._reorder(batch, rows)
        if content.columns < columns:
            self._cut(batch, content.columns)
        now = Content(batch.line, content.columns, tuple(range(len(rows))))
        for ledger in batch.ledgers:
            if ledger.content == content:
                ledger.content = now

    def _skip(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A forward pass of which nothing is captured: what its cache holds then is followed."""
        here = threading.get_ident()
        outer = self._skipped.get(here)
        if outer is not None and outer[0] is not module:
            return
        self._skipped.pop(here, None)  # of one that was interrupted
        try:
            inputs = inputs_of(module, args, kwargs)
        except ValueError:  # its caches are not known from now on, as they were changed unseen
            return
        if inputs is None or inputs.cache is None or inputs.starts is not None or inputs.lacking:
            return
        held = self._held_by(inputs.cache)
        content, batch, mask = held.content, held.batch, inputs.mask
        if (
            content is None
            or len(content.rows) != inputs.batch
            or not (mask is None or isinstance(mask, torch.Tensor) and mask.ndim == 2)
        ):
            return
        if batch is not None and batch in self._batches and content.line is batch.line:
            self._bring(batch, content)
        elif self._prefixes is not None:
            batch = self._prefixes.left(content)
        else:
            return
        try:
            plan = batch.plan(inputs.length, mask)
        except ValueError:
            return
        if plan.positions is not None and batch in self._batches:
            # where a mask has hidden tokens, the next are in their place, and have no rows
            for handle, rows in zip(batch.requests.tolist(), batch.rows(plan.past)):
                self.capturer.request(handle).truncate(rows)
        self._skipped[here] = module, self._with_cache(plan, inputs.cache, None)

    def _skipped_to(self, module: nn.Module, output: object) -> None:
        begun = self._skipped.get(threading.get_ident())
        if begun is not None and begun[0] is module:
            del self._skipped[threading.get_ident()]
            if output is not None:
                self._ended(begun[1], output)

    def _ended(self, plan: Plan, output: Any) -> None:
        """The forward pass of a plan has run, and a cache has its columns."""
        batch = plan.batch
        if batch is None or batch.line is None:
            return
        batch.line.columns = plan.columns
        parts = output.values() if isinstance(output, Mapping) else output
        parts = parts if isinstance(output, (Mapping, tuple)) else ()
        # Told by what it is, whatever its name is.
        cache = next((each for each in parts if hasattr(each, "get_seq_length")), plan.cache)
        if cache is not None:
            _ledger.end(self, cache, plan, batch, plan.past)

    def _plan_packed(self, inputs: Inputs, runs: list[tuple[int, int]], held: Held) -> Plan:
        positions = inputs.position_ids
        begun = (
            []
            if positions is None
            else positions.expand(inputs.batch, -1).flatten()[[first for first, _ in runs]].tolist()
        )
        if not held.known or held.content is not None or any(begun):
            raise ValueError(
                "a packed batch goes on with sequences of a cache, and nothing says with which:"
                " name them by capture.place()"
            )
        batch = self._new_batch(len(runs))
        batch.line = None
        plan = plan_of_runs(batch.requests, runs, 0, inputs.rows)
        plan.begun = batch
        return plan

    def _plan_placed(self, positions: torch.Tensor, new: bool) -> Plan:
        if positions.ndim != 2:
            raise ValueError(
                f"positions has shape {tuple(positions.shape)}, [batch, length] is expected: a row"
                " for each sequence"
            )
        if new or not self._batches or self._batches[-1].name:
            batch = self._new_batch(len(positions))
            plan = batch.placed(positions)
            plan.begun = batch
            return plan
        return self._batches[-1].placed(positions)

    def _new_batch(self, sequences: int, name: str | None = None) -> Batch:
        batch = Batch(
            self.capturer.open_batch(sequences, policy="replace"), name
        )  # a position that is computed again is meant to be
        self._batches.append(batch)
        return batch

    def _forget(self, batch: Batch | None) -> None:
        if batch is not None and batch in self._batches:
            self._batches.remove(batch)
            self.capturer.close_batch(batch.requests)

    def _copied(self, batch: Batch | None) -> None:
        """A cache is copied that a batch goes on with."""
        if self._prefixes is not None and batch in self._batches and batch is not None:
            self._prefixes.keep(batch, self._tag)

    def _reorder(self, batch: Batch, indices: list[int]) -> None:
        self._wait()  # for the lengths of requests whose positions the device has
        kept = [self.capturer.request(batch.requests[index]).fork().handle for index in indices]
        self.capturer.close_batch(batch.requests)
        batch.select(indices, np.array(kept, np.uint64))

    def _cut(self, batch: Batch, columns: int) -> None:
        """The cache was cut: what is behind it is no longer a part of the sequences."""
        for handle, rows in zip(batch.requests.tolist(), batch.cut(columns)):
            self.capturer.request(handle).truncate(rows)

    def _drop(self) -> None:
        """The last forward pass is nobody's. The next begin discards what it wrote."""
        plan, self._plan = self._plan, None
        if plan is not None:
            self._forget(plan.begun)

    def _file(self, stream: Any = None, output: object = None) -> None:
        """Say whose the rows of the last forward pass are, if somebody has planned that and it has
        not been said.
        """
        plan, self._plan = self._plan, None
        if plan is None:
            return
        if len(self._steps) >= self.capturer.slots:
            self._steps.pop(0).wait()  # so that none is lost, however far ahead the host is
        positions = None if plan.positions is None else plan.positions.to(self._device)
        tag = self._tag if self._marks is None else self._marks.mark(self._tag)
        self._steps.append(
            self.capturer.issue(plan.spans, positions=positions, tag=tag, stream=stream)
        )
        self._ended(plan, output)
        if plan.batch is not None:
            plan.batch.reach = plan.columns

    def _wait(self) -> None:
        for step in self._steps:
            step.wait()
        self._steps.clear()

    def _batches_of(self, requests: Sequence[str]) -> list[Batch]:
        unknown = [name for name in requests if name not in self._named]
        if unknown:
            raise KeyError(
                f"no request {unknown[0]!r} was captured: give one of those that the capture has"
            )
        return [self._named[name] for name in requests]

    def _lengths(self, batch: Batch) -> Sequence[int | None]:
        """How many rows each sequence of a batch has; None is as many as were forwarded."""
        if batch.line is None:
            return [None] * len(batch.requests)
        content = _ledger.head(batch)
        if content is not None and content.columns and content.line is batch.line:
            if batch.lengths is not None:  # it was generated; what was cut since is a part of that
                content = content._replace(columns=batch.line.columns)
            self._bring(batch, content)
        for handle, rows in zip(batch.requests.tolist(), batch.kept or ()):
            self.capturer.request(handle).truncate(rows)
        if batch.lengths is not None:
            return batch.lengths()
        return batch.rows(batch.reach)

    def _end_batches(self, batches: list[Batch]) -> None:
        self._batches = [batch for batch in self._batches if batch not in batches]
        for batch in batches:
            if batch.name:
                if self._named.get(batch.name) is batch:
                    del self._named[batch.name]

"""Checks between steps: whether there is room for more steps, and whether rows are missing."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

import routecap

from ._unread import Unread

logger = logging.getLogger("vllm.routecap")  # which vLLM shows


class Watch:
    """Watches one capturer, on the thread that issues its steps.

    Attributes:
        store: Whose blocks share pages with requests and results; None without one.
        elsewhere: Layers that another stage of a pipeline has.
    """

    def __init__(
        self,
        capturer: routecap.Capturer,
        memory: routecap.Memory,
        unread: Unread,
        layer_map: list[int],
    ) -> None:
        self.capturer, self._memory, self._unread = capturer, memory, unread
        self._layer_map = layer_map
        # Only the device knows positions: until a step is filed, each row may need its own page.
        self._step_bytes = memory.page_bytes * capturer.rows
        self.store: routecap.Store | None = None
        self.elsewhere: set[int] = set()
        self._look_at_step = self._report_at_step = 1
        self._found: list[str] = []
        self._refused = False  # a row was, and the log says so

    def look(self, step: int) -> None:
        """Steps up to this one were issued: make room for more, if it is time to look."""
        if step >= self._look_at_step:
            self._look(step)

    def _look(self, step: int) -> None:
        """Make room for the next steps, and choose when to look again. Log which rows are missing,
        every 1024 steps if that has changed.
        """
        stats = self.capturer.stats()
        spare = self._spare(stats)
        while spare < 0 and self._unread.move_out():
            stats = self.capturer.stats()
            spare = self._spare(stats)
        self._look_at_step = step + max(1, min(64, spare // self._step_bytes))
        if stats.rows_refused and not self._refused:
            self._refused = True
            logger.error(
                "routed experts: rows are missing, because they do not fit into the budget of %d "
                "bytes: set a higher ROUTECAP_VLLM_BUDGET_BYTES, or ROUTECAP_VLLM_UNREAD_BYTES "
                "(%d) if this process keeps results without reading them",
                stats.bytes_budget,
                self._unread.limit,
            )
        if stats.steps_landed == 0 or step < self._report_at_step:
            return
        self._report_at_step = step + 1024
        found = []
        if silent := self.silent_layers():
            found.append(f"layers {silent} of the decoder have written nothing")
        if stats.rows_refused:
            found.append(
                f"{stats.rows_refused} rows did not fit into the budget of {stats.bytes_budget}"
                " bytes"
            )
        if stats.steps_lost:
            found.append(
                f"{stats.steps_lost} steps were lost, as {self.capturer.slots} were in flight"
            )
        if found and found != self._found:
            logger.error("routed experts: rows are missing: %s", "; ".join(found))
        self._found = found

    def _spare(self, stats: Any) -> int:
        """How many bytes are free beyond what the next steps need; negative if some are lacking."""
        budget = stats.bytes_budget
        free = max(budget // 4, min(2 * self._step_bytes, budget // 2))
        spare: int = budget - free - stats.bytes_in_use
        if self.store is not None and len(self._unread):
            store = self.store.stats()
            # When a block is evicted, results that share its page still hold the page.
            block = store.block_rows * self._memory.row_bytes * 4 // 3
            held = store.bytes_in_use - store.blocks * block
            if 4 * store.bytes_in_use > 3 * store.bytes_budget:
                spare = min(spare, store.bytes_budget // 4 - held)
        return spare

    def silent_layers(self) -> list[int]:
        """Layers, by their index in the decoder, that have written nothing, although steps have
        landed.
        """
        if self.capturer.stats().steps_landed == 0:
            return []
        return [
            self._layer_map[i]
            for i in np.flatnonzero(self.capturer.layer_stats()["rows_written"] == 0)
            if i not in self.elsewhere
        ]

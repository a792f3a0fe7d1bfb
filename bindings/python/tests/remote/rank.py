"""A trainer's rank: reads the rows that its plan names, and nothing else."""

import importlib
import time
from collections.abc import Iterator
from typing import Any

import memory
import routecap
import servers
from rollout import routing_of
from routecap import remote

TOKENS = 65536  # of a micro-batch, unless one sample has more


class Rank:
    def __init__(
        self, url: str, settings: dict[str, Any], shape: dict[str, int], rank: dict[str, Any]
    ) -> None:
        self._shape, self._rank = shape, rank
        self._reader = remote.Reader(servers.connect(url, settings), **shape)
        self._got: list[routecap.Gathered] = []
        self._memory = memory.now()

    def step(self, lengths: list[int], references: list[Any]) -> dict[str, Any]:
        """Gather this rank's rows of a step, one micro-batch after another, and keep them: what that
        took."""
        self._got = []
        memory.forget_peak()
        before, seconds, rows, ranges = self._reader.report, [], 0, 0
        for samples, plan in self._micro_batches(lengths):
            start = time.perf_counter()
            self._got.append(plan.gather([self._reader.rows(references[i]) for i in samples]))
            seconds.append(time.perf_counter() - start)
            rows, ranges = rows + plan.rows_needed, ranges + len(plan.ranges)
        report = self._reader.report
        return {
            "seconds": sum(seconds),
            "seconds_of_a_gather": max(seconds),
            "rows": rows,
            "ranges": ranges,
            "bytes_of_the_plan": rows * self._shape["layers"] * self._shape["k"],
            "bytes": report.bytes - before.bytes,
            "memory": memory.peak() - self._memory,
            "shared": memory.shared(),
            "missing": {
                why: count - before.missing.get(why, 0) for why, count in report.missing.items()
            },
        }

    def wrong(
        self, lengths: list[int], seeds: list[int], texts: list[list[int]] | None
    ) -> dict[str, int]:
        """Rows of the last step that are not what was captured, and those that are lost. With texts:
        that are not what the routers of engine.py choose for them."""
        if texts is None:
            truth = [routing_of(self._shape, seed, n - 1) for seed, n in zip(seeds, lengths)]
        else:
            truth = importlib.import_module("engine").chosen(texts)
        wrong = lost = 0
        for got, (samples, plan) in zip(self._got, self._micro_batches(lengths)):
            right = plan.gather([truth[i] for i in samples])
            gone = got.classes == routecap.PlanClass.LOST
            differ = (got.ids != right.ids).any(axis=2) & ~gone
            wrong, lost = wrong + differ.any(axis=0).sum(), lost + gone.any(axis=0).sum()
        return {"wrong": int(wrong), "lost": int(lost)}

    def log(self) -> list[str]:
        return self._reader.log

    def _micro_batches(self, lengths: list[int]) -> Iterator[tuple[list[int], routecap.Plan]]:
        """Which samples, and this rank's plan of them."""
        batch: list[int] = []
        for i, length in enumerate([*lengths, TOKENS]):
            if batch and sum(lengths[each] for each in batch) + length > TOKENS:
                own = [lengths[each] for each in batch]
                yield (
                    batch,
                    routecap.Plan(own, **self._shape, **self._rank, dtype="uint8", lost=255),
                )
                batch = []
            batch.append(i)

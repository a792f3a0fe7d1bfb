"""A trainer's rank: reads the rows that its plan names, and nothing else."""

import time
from typing import Any

import routecap
import servers
from rollout import routing_of
from routecap import remote


class Rank:
    def __init__(
        self, url: str, settings: dict[str, Any], shape: dict[str, int], rank: dict[str, Any]
    ) -> None:
        self._shape, self._rank = shape, rank
        self._reader = remote.Reader(servers.connect(url, settings), **shape)

    def step(self, lengths: list[int], references: list[Any]) -> dict[str, Any]:
        """Gather this rank's rows of a micro-batch: what that took."""
        plan = routecap.Plan(lengths, **self._shape, **self._rank, dtype="uint8", lost=255)
        before = self._reader.report
        start = time.perf_counter()
        self._got = plan.gather([self._reader.rows(each) for each in references])
        seconds, report = time.perf_counter() - start, self._reader.report
        row = self._shape["layers"] * self._shape["k"]
        return {
            "seconds": seconds,
            "rows": plan.rows_needed,
            "ranges": len(plan.ranges),
            "bytes_of_the_plan": plan.rows_needed * row,
            "bytes": report.bytes - before.bytes,
            "missing": {
                why: count - before.missing.get(why, 0) for why, count in report.missing.items()
            },
        }

    def wrong(self, lengths: list[int], seeds: list[int]) -> dict[str, int]:
        """Rows of the last step that are not what was captured, and those that are lost."""
        plan = routecap.Plan(lengths, **self._shape, **self._rank, dtype="uint8", lost=255)
        routings = [routing_of(self._shape, s, n - 1) for s, n in zip(seeds, lengths)]
        right = plan.gather(routings)
        lost = self._got.classes == routecap.PlanClass.LOST
        differ = (self._got.ids != right.ids).any(axis=2) & ~lost
        return {"wrong": int(differ.any(axis=0).sum()), "lost": int(lost.any(axis=0).sum())}

    def log(self) -> list[str]:
        return self._reader.log

"""Four rollout processes, four ranks of a trainer (TP 2 with sequence parallelism, CP 2), and a
driver that hands on references: no row passes through it.

main.py --store s3|mooncake|ray [--engine transformers] [--samples N] [--steps N] [--kill N]
    [--cut N] [--seconds N] [--json FILE]

The rollout processes stand in for an engine (rollout.py), unless --engine names one (engine.py).
Servers of the store are started on this machine. --kill ends a random rollout process in each of N
more steps, after it has answered and while the ranks read. --cut cuts, in each of N more steps, the
link to where objects lie: it puts each rollout process, or the server of S3, into a network
namespace of its own (Linux, root). Of every row it is checked whether it is what was captured, or
is missing with a reason.
"""

import argparse
import json
import random
import time
from contextlib import nullcontext
from typing import Any

import hosts
import memory
import numpy as np
import servers
from workers import Actor, Process, shared, worker

SHAPE = {"layers": 48, "k": 8, "experts": 128}
ENGINES = ("transformers",)
ENGINE_SHAPE = {"layers": 4, "k": 2, "experts": 16}  # engine.SHAPE, which needs torch to be read
ROLLOUTS = 4
RANKS = [
    {
        "context": "zigzag",
        "context_size": 2,
        "context_rank": context,
        "sequence_parallel": True,
        "tensor_size": 2,
        "tensor_rank": tensor,
    }
    for context in range(2)
    for tensor in range(2)
]


class Job:
    """The driver: it knows who is where, and which sample is of which length."""

    def __init__(
        self,
        scheme: str,
        url: str,
        settings: dict[str, Any],
        machines: list[hosts.Host],
        engine: str = "",
        outside: str = hosts.DRIVER,
    ) -> None:
        """machines: of the rollouts, if they are not on this one, whose address is `outside`."""
        self._scheme, self._url, self._settings = scheme, url, settings
        self._machines, self._engine = machines, engine
        self._shape = ENGINE_SHAPE if engine else SHAPE
        self.rollouts = [self._rollout(i) for i in range(ROLLOUTS)]
        own = servers.settings_at(scheme, settings, outside if machines else None)
        self.ranks: list[Process | Actor] = [
            worker(scheme, "rank:Rank", url, own, self._shape, rank) for rank in RANKS
        ]
        self._seed = 0

    def _rollout(self, number: int) -> Process | Actor:
        machine = self._machines[number] if self._machines else None
        settings = servers.writer_settings(self._scheme, self._settings)
        settings = servers.settings_at(self._scheme, settings, machine and machine.address)
        name = "engine:Rollout" if self._engine else "rollout:Rollout"
        return worker(self._scheme, name, self._url, settings, self._shape, machine=machine)

    def step(self, lengths: list[int], hurt: str = "") -> dict[str, Any]:
        """Every sample is captured by a rollout process, and read by the ranks that need it."""
        workers = [*self.rollouts, *self.ranks]
        memory.forget_peak()
        begun = memory.now()
        before = sum(each.bytes for each in workers)
        seeds = [self._seed + i for i in range(len(lengths))]
        self._seed += len(lengths)
        for i, each in enumerate(self.rollouts):
            each.begin("generate", seeds[i::ROLLOUTS], lengths[i::ROLLOUTS])
        references: list[Any] = [None] * len(lengths)
        for i, each in enumerate(self.rollouts):
            references[i::ROLLOUTS] = each.end()
        texts: list[Any] | None = None
        if self._engine:
            texts = [None] * len(lengths)
            for i, each in enumerate(self.rollouts):
                texts[i::ROLLOUTS] = each.call("texts")
        handed, size = shared(self._scheme, references)
        for rank in self.ranks:
            rank.begin("step", lengths, handed)
        victim = random.randrange(ROLLOUTS)
        if hurt:
            self.hurt(hurt, victim)
        ranks = [rank.end() for rank in self.ranks]
        if hurt:
            self.heal(hurt, victim)
        driver = sum(each.bytes for each in workers) - before + size
        took = memory.peak() - begun
        wrong = [rank.call("wrong", lengths, seeds, texts) for rank in self.ranks]
        return {"ranks": ranks, "wrong": wrong, "driver_bytes": driver, "memory": took}

    def hurt(self, how: str, victim: int) -> None:
        time.sleep(random.uniform(0, 0.03))
        if how == "kill":
            self.restart(victim)
        if how == "cut":
            self._machines[victim].cut()

    def heal(self, how: str, victim: int) -> None:
        if how == "cut":
            self._machines[victim].mend()
            self.restart(victim)  # as its store has given it up

    def restart(self, number: int) -> None:
        self.rollouts[number].kill()
        self.rollouts[number] = self._rollout(number)

    def close(self) -> None:
        for each in [*self.rollouts, *self.ranks]:
            each.kill()


def lengths_of(samples: int, step: int, engine: str = "") -> list[int]:
    """Log-normal, as those of rollouts are: tokens. Of a real engine they are shorter."""
    drawn = np.random.default_rng(step).lognormal(np.log(2000), 0.8, samples)
    if engine:
        return np.clip(drawn / 40, 12, 120).astype(int).tolist()
    return np.clip(drawn, 64, 16384).astype(int).tolist()


def total(steps: list[dict[str, Any]], name: str) -> int:
    return sum(rank[name] for step in steps for rank in step["ranks"])


def report(
    scheme: str, steps: list[dict[str, Any]], samples: int, engine: str = ""
) -> dict[str, Any]:
    shape = ENGINE_SHAPE if engine else SHAPE
    row = shape["layers"] * shape["k"]
    rows = total(steps, "rows")
    found = {
        "store": scheme,
        "samples": samples * len(steps),
        "rows": rows,
        "bytes_of_the_plans": total(steps, "bytes_of_the_plan"),
        "bytes_read": total(steps, "bytes"),
        "read_over_plan": total(steps, "bytes") / total(steps, "bytes_of_the_plan"),
        "driver_bytes_a_sample": sum(s["driver_bytes"] for s in steps) / len(steps) / samples,
        "whole_int32_base64_a_sample": rows * row * 4 * 4 / 3 / len(steps) / samples,
        "ranges_a_second_of_a_rank": total(steps, "ranges")
        / sum(r["seconds"] for s in steps for r in s["ranks"]),
        "most_own_rows_of_a_rank": max(r["bytes_of_the_plan"] for s in steps for r in s["ranks"]),
        "memory_of_a_rank_beyond_its_rows": max(
            r["memory"] - r["bytes_of_the_plan"] for s in steps for r in s["ranks"]
        ),
        "shared_memory_of_a_rank": max(r["shared"] for s in steps for r in s["ranks"]),
        "memory_of_the_driver": max(s["memory"] for s in steps),
        "most_seconds_of_a_gather": max(
            r["seconds_of_a_gather"] for s in steps for r in s["ranks"]
        ),
        "seconds_that_a_gather_may_wait": 2 * servers.SECONDS,
        "wrong_rows": sum(w["wrong"] for s in steps for w in s["wrong"]),
        "lost_rows": sum(w["lost"] for s in steps for w in s["wrong"]),
        "missing": {},
    }
    for step in steps:
        for rank in step["ranks"]:
            for why, count in rank["missing"].items():
                found["missing"][why] = found["missing"].get(why, 0) + count
    return found


def run(
    scheme: str, samples: int, steps: int, kills: int = 0, cuts: int = 0, engine: str = ""
) -> dict[str, Any]:
    # With S3, objects lie on the one machine of its server.
    on = 1 if scheme == "s3" else ROLLOUTS
    with hosts.some(on) if cuts else nullcontext([]) as machines:
        at = machines[0] if scheme == "s3" and cuts else None
        outside = hosts.DRIVER if cuts else "127.0.0.1"
        with servers.server_of(scheme, at, outside) as (url, settings, _):
            job = Job(scheme, url, settings, machines * (ROLLOUTS // on), engine)
            try:
                lengths = [lengths_of(samples, step, engine) for step in range(steps + 1)]
                calm = [job.step(each) for each in lengths][1:]
                found = {"calm": report(scheme, calm, samples, engine)}
                for hurt, times in (("kill", kills), ("cut", cuts)):
                    if times:
                        hurts = [
                            job.step(lengths_of(samples, i, engine), hurt) for i in range(times)
                        ]
                        found[hurt] = report(scheme, hurts, samples, engine) | {"times": times}
                return found
            finally:
                job.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", choices=servers.SCHEMES, required=True)
    parser.add_argument("--engine", choices=ENGINES, default="")
    parser.add_argument("--samples", type=int, default=16, help="of a step; default: %(default)s")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--kill", type=int, default=0, metavar="N")
    parser.add_argument("--cut", type=int, default=0, metavar="N")
    parser.add_argument(
        "--seconds", type=int, default=servers.SECONDS, help="that a read of the store may take"
    )
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    if arguments.cut and arguments.store == "ray":
        parser.error("Ray's objects lie in one node here, which has no link to cut")
    servers.SECONDS = arguments.seconds
    found = run(
        arguments.store,
        arguments.samples,
        arguments.steps,
        arguments.kill,
        arguments.cut,
        arguments.engine,
    )
    for name, each in found.items():
        print(f"{name}:")
        for what, value in each.items():
            shown = round(value, 3) if isinstance(value, float) else value
            print(f"  {what.replace('_', ' '):36} {shown}")
        assert each["wrong_rows"] == 0
        assert each["lost_rows"] == sum(each["missing"].values())
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=2)


if __name__ == "__main__":
    main()

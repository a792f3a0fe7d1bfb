"""The job of main.py on two hosts, as far as one machine can show them: its rollouts in one network
namespace and its ranks in another, with a link between that has latency, loses packets, is cut, and
goes with all processes of the rollouts' host.

two_hosts.py --store s3|mooncake [--samples N] [--steps N] [--seconds N] [--json FILE]

What crosses the link are the store's bytes alone: the driver, which is with the ranks, hands
references over by pipes. The server of S3 is on the rollouts' host, Mooncake's master on the ranks'.
Ray is left out: actors on a node of Ray in a namespace of its own did not answer. Needs root and
/dev/net/tun.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import link
import main
import servers

SCHEMES = ("s3", "mooncake")
ROLLOUTS, RANKS = "10.214.7.1", "10.214.7.2"
LINKS = {
    "1 ms": (0.001, 0.0),
    "20 ms": (0.020, 0.0),
    "1 ms, 1 % lost": (0.001, 0.01),
    "20 ms, 1 % lost": (0.020, 0.01),
}
"""One way, and of the packets of each way."""
READ_MOST = 1.05
"""Bytes that ranks read, of the ids that their plans name."""
BESIDES = 2.0
"""Seconds of a gather that are no wait for a store, on a machine that is busy."""


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


class Host:
    """The rollouts' host, seen from that of the ranks."""

    def __init__(self, name: str, ends: "subprocess.Popen[str]") -> None:
        self.name, self.address, self._link = name, ROLLOUTS, ends

    def command(self, *command: str) -> list[str]:
        return ["ip", "netns", "exec", self.name, *command]

    def tell(self, *command: object) -> int:
        """Bytes that came through the link so far."""
        assert self._link.stdin is not None and self._link.stdout is not None
        print(*command, file=self._link.stdin, flush=True)
        return sum(map(int, self._link.stdout.readline().split()))

    def cut(self) -> None:
        self.tell("cut")

    def mend(self) -> None:
        self.tell("mend")

    def vanish(self) -> None:
        """All of its processes at once, and its end of the link."""
        _ip("-n", self.name, "link", "set", link.DEVICE, "down")
        self.end_processes()

    def end_processes(self) -> None:
        found = subprocess.run(
            ["ip", "netns", "pids", self.name], check=True, capture_output=True, text=True
        )
        for process in found.stdout.split():
            os.kill(int(process), signal.SIGKILL)


@contextmanager
def two_hosts() -> Iterator[Host]:
    """This process is on the ranks' host from then on."""
    names = [f"routecap-{os.getpid()}-{name}" for name in ("rollouts", "ranks")]
    for name in names:
        _ip("netns", "add", name)
    command = [sys.executable, str(Path(link.__file__)), *names]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as ends:
        try:
            assert ends.stdout is not None and ends.stdout.readline() == "ready\n"
            for name, address in zip(names, (ROLLOUTS, RANKS)):
                _ip("-n", name, "address", "add", f"{address}/30", "dev", link.DEVICE)
                for device in ("lo", link.DEVICE):
                    _ip("-n", name, "link", "set", device, "up")
            link.enter(names[1])
            yield Host(names[0], ends)
        finally:
            Host(names[0], ends).end_processes()
            ends.kill()
            for name in names:
                _ip("netns", "delete", name)


class Job(main.Job):
    """Of which all rollouts are on one host, which is cut off or vanishes."""

    def __init__(self, scheme: str, url: str, settings: dict[str, Any], host: Host) -> None:
        self._host = host
        machines: list[Any] = [host] * main.ROLLOUTS
        super().__init__(scheme, url, settings, machines, outside=RANKS)

    def hurt(self, how: str, victim: int) -> None:
        time.sleep(random.uniform(0, 0.1))  # a gather has two round trips of 40 ms
        getattr(self._host, how)()

    def heal(self, how: str, victim: int) -> None:
        if how == "cut":
            self._host.mend()
            for number in range(main.ROLLOUTS):
                self.restart(number)  # as the store may have given them up


def steps_of(job: Job, host: Host, lengths: list[list[int]], hurt: str = "") -> dict[str, Any]:
    """What main.py reports of these steps, and the bytes that crossed the link for them."""
    written, steps = host.tell("bytes"), []
    for each in lengths:
        steps.append(job.step(each, hurt))
    found = main.report(job._scheme, steps, len(lengths[0]))
    crossed = host.tell("bytes") - written
    return found | {
        "bytes_over_the_link": crossed,
        "link_over_plan": crossed / found["bytes_of_the_plans"],
    }


def run(scheme: str, samples: int, steps: int) -> dict[str, Any]:
    with two_hosts() as host:
        host.tell("set", *LINKS["1 ms"])
        at: Any = host if scheme == "s3" else None
        with servers.server_of(scheme, at, RANKS) as (url, settings, _):
            job = Job(scheme, url, settings, host)
            try:
                lengths = [main.lengths_of(samples, step) for step in range(steps)]
                job.step(lengths[0])  # connections are made
                found = {}
                for name, link_of in LINKS.items():
                    host.tell("set", *link_of)
                    found[name] = steps_of(job, host, lengths)
                host.tell("set", *LINKS["20 ms"])
                found["cut"] = steps_of(job, host, lengths * 2, "cut")
                found["mended"] = steps_of(job, host, lengths)
                found["vanished"] = steps_of(job, host, lengths[:1], "vanish")
                return found
            finally:
                job.close()


def faults(found: dict[str, Any]) -> Iterator[str]:
    for name, each in found.items():
        if each["wrong_rows"]:
            yield f"{name}: {each['wrong_rows']} rows are wrong"
        if each["lost_rows"] != sum(each["missing"].values()):
            yield f"{name}: rows are lost without a reason"
        if each["most_seconds_of_a_gather"] > each["seconds_that_a_gather_may_wait"] + BESIDES:
            yield f"{name}: a gather took {each['most_seconds_of_a_gather']:.1f} s"
        if name in ("cut", "vanished"):
            if not each["lost_rows"]:
                yield f"{name}: it came too late to cost a row"
            continue
        if each["lost_rows"]:
            yield f"{name}: {each['lost_rows']} rows are lost"
        if each["read_over_plan"] > READ_MOST:
            yield f"{name}: ranks read {each['read_over_plan']:.3f} of their plans"


def program() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", choices=SCHEMES, required=True)
    parser.add_argument("--samples", type=int, default=8, help="of a step; default: %(default)s")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=30, help="that a read of the store may take")
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    servers.SECONDS = arguments.seconds
    found = run(arguments.store, arguments.samples, arguments.steps)
    for name, each in found.items():
        print(f"{arguments.store}, {name}:")
        for what, value in each.items():
            shown = round(value, 3) if isinstance(value, float) else value
            print(f"  {what.replace('_', ' '):36} {shown}")
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=2)
    wrong = list(faults(found))
    print(*wrong, sep="\n", end="\n" * bool(wrong))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(program())

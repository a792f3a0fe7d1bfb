"""Machines as network namespaces of Linux: each has addresses, routes and connections of its own, and
a link that can be cut, so that no packet comes through and nobody is told. Needs root."""

import itertools
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

DRIVER = "10.213.255.1"
"""Where every host finds what runs outside: the ranks, and the servers of a store."""
_numbers = itertools.count(1)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


class Host:
    def __init__(self, number: int) -> None:
        self.name = f"routecap-{os.getpid()}-{number}"
        self.address = f"10.213.{number}.2"
        self._link = f"rc{os.getpid() % 100000}-{number}"
        self._outside = f"10.213.{number}.1"
        _ip("netns", "add", self.name)
        inside = ["-n", self.name]
        _ip("link", "add", self._link, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        _ip("address", "add", f"{self._outside}/30", "dev", self._link)
        _ip("link", "set", self._link, "up")
        _ip(*inside, "address", "add", f"{self.address}/30", "dev", "eth0")
        for device in ("lo", "eth0"):
            _ip(*inside, "link", "set", device, "up")
        _ip(*inside, "route", "add", "default", "via", self._outside)

    def command(self, *command: str) -> list[str]:
        """That runs there."""
        return ["ip", "netns", "exec", self.name, *command]

    def cut(self) -> None:
        """The peer's end goes down: who sends to it hears nothing."""
        _ip("-n", self.name, "link", "set", "eth0", "down")

    def mend(self) -> None:
        _ip("-n", self.name, "link", "set", "eth0", "up")
        _ip("-n", self.name, "route", "replace", "default", "via", self._outside)

    def remove(self) -> None:
        _ip("netns", "delete", self.name)


@contextmanager
def some(count: int) -> Iterator[list[Host]]:
    _ip("address", "replace", f"{DRIVER}/32", "dev", "lo")
    made: list[Host] = []
    try:
        for _ in range(count):
            made.append(Host(next(_numbers)))
        yield made
    finally:
        for each in made:
            each.remove()
        _ip("address", "delete", f"{DRIVER}/32", "dev", "lo")

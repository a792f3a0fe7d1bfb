"""A link between two network namespaces that delays packets and loses some: in the kernel netem does
that, which is a module that not every machine has. Needs root and /dev/net/tun.

link.py NAMESPACE NAMESPACE makes a device "wan" in each and moves packets between them. It reads
commands, and answers each with a line:

    set SECONDS SHARE    how late a packet comes, and which share of them never does
    cut, mend            no packet comes; they come again
    bytes                that came through to the first and to the second namespace, so far
"""

import ctypes
import fcntl
import os
import random
import select
import struct
import sys
import time
from collections import deque

DEVICE = "wan"
_PACKET = 65536
_AT_ONCE = 256  # packets of one side, before the other side has its turn
_CLONE_NEWNET = 0x40000000
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 1, 0x1000


def enter(namespace: str) -> None:
    """This thread, and the processes that it starts, are there from now on."""
    with open(f"/var/run/netns/{namespace}", encoding="ascii") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"setns to {namespace}")


def _device(namespace: str) -> int:
    enter(namespace)
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), _IFF_TUN | _IFF_NO_PI))
    return device


class _Direction:
    """From one device to the other. All packets are late by as much, so they come in order."""

    def __init__(self, source: int, target: int) -> None:
        self._source, self._target = source, target
        self.late: deque[tuple[float, bytes]] = deque()
        self.bytes = 0

    def take(self, latency: float, loss: float) -> None:
        for _ in range(_AT_ONCE):
            try:
                packet = os.read(self._source, _PACKET)
            except OSError:  # there is none, or the device is down
                return
            if random.random() >= loss:
                self.late.append((time.monotonic() + latency, packet))

    def give(self) -> None:
        while self.late and self.late[0][0] <= time.monotonic():
            _, packet = self.late.popleft()
            try:
                self.bytes += os.write(self._target, packet)
            except OSError:  # the device is down
                pass


def main() -> None:
    a, b = (_device(namespace) for namespace in sys.argv[1:])
    directions = {a: _Direction(b, a), b: _Direction(a, b)}
    latency, loss, whole = 0.0, 0.0, True
    print("ready", flush=True)
    while True:
        due = [each.late[0][0] for each in directions.values() if each.late]
        wait = max(min(due) - time.monotonic(), 0) if due else None
        ready, _, _ = select.select([a, b, 0], [], [], wait)
        for each in directions.values():
            each.take(latency, loss if whole else 1)
            each.give()
        if 0 in ready:
            line = os.read(0, 1000).decode().split()
            if not line:
                return
            if line[0] == "set":
                latency, loss = map(float, line[1:])
            elif line[0] in ("cut", "mend"):
                whole = line[0] == "mend"
                for each in directions.values():
                    each.late.clear()
            print(*(each.bytes for each in directions.values()), flush=True)


if __name__ == "__main__":
    main()

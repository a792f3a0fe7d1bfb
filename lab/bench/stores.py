"""Reads of ranges by each store of routecap.remote, beside one another and beside a plain socket.

stores.py [--turns N] [--rclone PROGRAM] [--json FILE]

Another process writes two objects of 32,767 rows of 48 layers of 8 of 128. This one reads rows of
them by a routecap.remote.Reader that knows their headers: 256 rows, 4,096 rows, and 64 times 256
rows in one call. In each turn every store has its turn, in another order.
"""

import argparse
import json
import os
import socket
import statistics
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from machine import commit

CLUSTER = Path(__file__).resolve().parents[2] / "bindings/python/tests/remote"
sys.path.insert(0, str(CLUSTER))

import servers
from rollout import routing_of
from routecap import remote
from workers import worker

SHAPE = {"layers": 48, "k": 8, "experts": 128}
ROWS = 32767
SEEDS = [1, 2]  # of the two objects
FEW, MANY, AT_ONCE = 256, 4096, 64
RANGE = struct.Struct("<3Q")  # object, offset, size


# ---- The plain socket: one connection, ranges asked for in one message, bytes and no more


class SocketOwner:
    """Holds serialised routings, and sends ranges of them to who connects."""

    def __init__(self, _: str, settings: dict[str, Any], shape: dict[str, int]) -> None:
        self._shape, self._objects = shape, list[memoryview]()
        self._listening = socket.create_server(("127.0.0.1", settings["port"]))
        threading.Thread(target=self._serve, daemon=True).start()

    def write(self, key: str, data: bytes) -> str:
        self._objects.append(memoryview(data))
        return str(len(self._objects) - 1)

    scheme = "socket"

    def generate(self, seeds: list[int], lengths: list[int]) -> list[Any]:
        owner: Any = self
        return [
            remote.write(owner, routing_of(self._shape, seed, length - 1)).to_dict()
            for seed, length in zip(seeds, lengths)
        ]

    def _serve(self) -> None:
        connection, _ = self._listening.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        file = connection.makefile("rb")
        while head := file.read(8):
            (count,) = struct.unpack("<Q", head)
            for number, offset, size in RANGE.iter_unpack(file.read(count * RANGE.size)):
                connection.sendall(self._objects[number][offset : offset + size])


class Socket:
    """A store that reads from a SocketOwner."""

    scheme = "socket"

    def __init__(self, port: int) -> None:
        self._connection = socket.create_connection(("127.0.0.1", port))
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def write(self, key: str, data: bytes) -> Any:
        raise NotImplementedError

    def read(
        self, keys: Sequence[Any], offsets: Sequence[int], into: Sequence[memoryview]
    ) -> list[str]:
        asked = [RANGE.pack(int(k), o, len(i)) for k, o, i in zip(keys, offsets, into)]
        self._connection.sendall(struct.pack("<Q", len(asked)) + b"".join(asked))
        for memory in into:
            at = 0
            while at < len(memory):
                at += self._connection.recv_into(memory[at:])
        return [""] * len(keys)

    def register(self, address: int, size: int) -> None:
        pass

    def unregister(self, address: int) -> None:
        pass

    def delete(self, keys: Sequence[Any]) -> None:
        pass

    def close(self) -> None:
        self._connection.close()


# ---- What is measured


@contextmanager
def written(scheme: str, store: Callable[[], Any], url: str, settings: Any) -> Iterator[Any]:
    """The objects, written by another process, as a reader that knows their headers sees them."""
    name = "stores:SocketOwner" if scheme == "socket" else "rollout:Rollout"
    settings = servers.writer_settings(scheme, settings)
    owner = worker(scheme, name, url, settings, SHAPE)
    try:
        references = owner.call("generate", SEEDS, [ROWS + 1] * len(SEEDS))
        reader = remote.Reader(store(), **SHAPE)
        sources = [reader.rows(each) for each in references]
        for source, seed in zip(sources, SEEDS):
            expected = routing_of(SHAPE, seed, ROWS).ids()
            for first, rows in ((0, MANY), (ROWS - FEW, FEW)):
                got = source.read(first, rows).ids()
                assert np.array_equal(got, expected[first : first + rows]), scheme
        yield sources
    finally:
        owner.kill()


def timed(times: int, call: Callable[[], Any]) -> float:
    """Median milliseconds."""
    found = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        found.append(1e3 * (time.perf_counter() - start))
    return statistics.median(found)


def turn(sources: Any, random: np.random.Generator) -> dict[str, float]:
    def read(rows: int) -> None:
        first = int(random.integers(0, ROWS - rows))
        assert sources[0].read(first, rows).complete

    def read_at_once() -> None:
        firsts = random.integers(0, ROWS - FEW, AT_ONCE).tolist()
        waiting = [
            sources[i % len(sources)].begin(first, FEW) for i, first in enumerate(sorted(firsts))
        ]
        assert all(each().complete for each in waiting)

    return {
        "few_ms": timed(30, lambda: read(FEW)),
        "many_ms": timed(15, lambda: read(MANY)),
        "at_once_ms": timed(7, read_at_once),
    }


@contextmanager
def s3_by_rclone(program: str, folder: str) -> Iterator[tuple[str, dict[str, Any]]]:
    port, root = servers.free_port(), Path(folder) / "buckets"
    (root / "routings").mkdir(parents=True)
    key = [os.environ[f"AWS_{name}"] for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY")]
    options = ["--addr", f"127.0.0.1:{port}", "--auth-key", ",".join(key), "--config", os.devnull]
    with servers.running(port, program, "serve", "s3", *options, str(root)):
        settings = {"endpoint_url": f"http://127.0.0.1:{port}", "seconds": servers.SECONDS}
        yield "s3://routings/step-1", settings


@contextmanager
def opened(folder: str, rclone: str | None) -> Iterator[dict[str, Any]]:
    """The objects in each store, by the name of its line."""
    with ExitStack() as stack:

        def put(line: str, scheme: str, url: str, settings: Any, store: Any = None) -> None:
            store = store or (lambda: servers.connect(url, settings))
            found[line] = stack.enter_context(written(scheme, store, url, settings))

        found: dict[str, Any] = {}
        port = servers.free_port()
        put("plain socket", "socket", "", {"port": port}, lambda: Socket(port))
        put("file", "file", f"file://{folder}", {})
        url, settings, _ = stack.enter_context(servers.mooncake())
        put("Mooncake, TCP", "mooncake", url, settings)
        url, settings, _ = stack.enter_context(servers.s3())
        put("S3 by moto", "s3", url, settings)
        if rclone:
            url, settings = stack.enter_context(s3_by_rclone(rclone, folder))
            put("S3 by rclone", "s3", url, settings)
        url, settings, _ = stack.enter_context(servers.ray())
        put("Ray, by a task", "ray", url, settings)
        put("Ray, brought here", "ray", url, settings, lambda: remote.RayObjects(here=True))
        yield found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument(
        "--rclone", metavar="PROGRAM", help="a server of S3 that is quicker than moto"
    )
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    path = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join([*path, str(CLUSTER)])
    random = np.random.default_rng(0)
    turns: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder, opened(folder, arguments.rclone) as stores:
        for sources in stores.values():
            turn(sources, random)  # what begins with the first reads
        for _ in range(arguments.turns):
            for line in random.permutation(list(stores)).tolist():
                turns.setdefault(line, []).append(turn(stores[line], random))
        order = list(stores)
    found: dict[str, Any] = {
        "title": "Reads of ranges by each store of routecap.remote, beside a plain socket",
        "command": f"lab/bench/stores.py --turns {arguments.turns}"
        + " --rclone rclone" * bool(arguments.rclone),
        "device": "two cores, no GPU",
        "commit": commit(),
        "turns": arguments.turns,
        "stores": {line: summary(turns[line], turns["plain socket"]) for line in order},
    }
    show(found)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=2)


def summary(own: list[dict[str, float]], plain: list[dict[str, float]]) -> dict[str, Any]:
    """Medians of the turns, the best and the worst turn, and how many times as long as the plain
    socket in the same turn."""
    found: dict[str, Any] = {}
    for name in own[0]:
        values = [each[name] for each in own]
        found[name] = {
            "median": statistics.median(values),
            "best": min(values),
            "worst": max(values),
            "of_socket": statistics.median(a[name] / b[name] for a, b in zip(own, plain)),
        }
    found["ranges_a_second"] = 1e3 * AT_ONCE / found["at_once_ms"]["median"]
    return found


def show(found: dict[str, Any]) -> None:
    print(f"{found['command']}\n{found['device']}, one host, {found['commit']}")
    print(f"Median (best to worst) of {found['turns']} turns; x: of the plain socket's time")
    head = ("", f"{FEW} rows, ms", f"{MANY} rows, ms", f"{AT_ONCE} x {FEW} rows at once, ms")
    print(f"{head[0]:18}{head[1]:>30}{head[2]:>30}{head[3]:>34}{'ranges a second':>17}")
    for line, each in found["stores"].items():
        cells = [
            "{median:.2f} ({best:.2f} to {worst:.2f}) x{of_socket:.1f}".format(**each[name])
            for name in ("few_ms", "many_ms", "at_once_ms")
        ]
        print(
            f"{line:18}{cells[0]:>30}{cells[1]:>30}{cells[2]:>34}{each['ranges_a_second']:>17.0f}"
        )


if __name__ == "__main__":
    main()

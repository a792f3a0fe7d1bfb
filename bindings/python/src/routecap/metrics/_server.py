"""Metrics are served by a process of their own: thousands of series take the interpreter's lock for
longer than an engine's step, and the engine's thread wants it.

    the engine's process    a thread that sends counters to whoever asks: microseconds
    the process that serves prometheus_client: it asks at each scrape, and writes the series

The second ends with the first, however that ends.
"""

import errno
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from importlib.util import find_spec
from multiprocessing.connection import Connection, Pipe
from typing import Any, Unpack

from .._capturer import Capturer, Stats
from .._errors import Error
from .._load import Load
from ._collector import Options, registry

logger = logging.getLogger("routecap.metrics")

_PROGRAM = """import sys; sys.path[:] = sys.argv[2:]
from routecap.metrics._server import main; main(int(sys.argv[1]))"""
_START_SECONDS = 60


class Server:
    """What `serve` returns. It goes on until it is closed, or the capturer is, or the process ends.

    Attributes:
        address, port: where it listens.
    """

    def __init__(self, capturer: Capturer, port: int, address: str, options: Options) -> None:
        if find_spec("prometheus_client") is None:
            raise ImportError(
                "prometheus_client is needed for this: pip install 'routecap[metrics]'"
            )
        self._capturer = capturer
        self._connection, theirs = Pipe()
        self._port: Future[int] = Future()
        self._closed = False
        with theirs:
            command = [sys.executable, "-c", _PROGRAM, str(theirs.fileno()), *sys.path]
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
            )
        self._thread = threading.Thread(target=self._answer, name="routecap.metrics", daemon=True)
        self._thread.start()
        try:
            self._connection.send((os.getpid(), port, address, options))
            self.address, self.port = address, self._port.result(_START_SECONDS)
        except BaseException as failed:
            self.close()
            if failed.__class__ is TimeoutError:
                raise TimeoutError(
                    f"the process that serves them has not started in {_START_SECONDS} s: look what "
                    "keeps this machine"
                ) from None
            raise

    @property
    def url(self) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"http://{host}:{self.port}/metrics"

    def _answer(self) -> None:
        """Sends what the process asks for: counters. It says its port, or why it has none."""
        why = "the process that serves them has ended"
        try:
            while True:
                asked = self._connection.recv()
                if isinstance(asked, int):
                    self._port.set_result(asked)
                elif isinstance(asked, OSError):
                    self._port.set_exception(asked)
                elif asked == "load":
                    self._connection.send(self._capturer.load())
                else:
                    self._connection.send(self._capturer.stats())
        except (EOFError, OSError):
            pass
        except Error as failed:
            why = str(failed)
        self._connection.close()
        if not self._port.done():
            self._port.set_exception(OSError(errno.ECHILD, why))
        elif not self._closed and not self._capturer.closed and not self._port.exception():
            logger.error("metrics are served no more: %s", why)

    def close(self) -> None:
        """Serve no more. The port is free afterwards."""
        self._closed = True
        self._process.terminate()
        self._process.wait()
        self._thread.join()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()


def serve(
    capturer: Capturer,
    port: int = 9400,
    address: str = "127.0.0.1",
    **options: Unpack[Options],
) -> Server:
    """Serve the metrics under /metrics, as whoever asks wants them: in Prometheus's text format or
    as OpenMetrics. They are written by a process of their own, so that no thread of this one waits.

    Close the server before the capturer.

    Args:
        port: 0: any that is free.
        address: of this machine, to listen at; "0.0.0.0": at all.
        options: of Collector.

    Raises:
        OSError: The port is taken, or the address is none of this machine.
        ArgumentError: The capturer counts no load (its setting `load`).
        ImportError: prometheus_client is not installed.
    """
    capturer.load()
    return Server(capturer, port, address, options)


def serve_rank(
    capturer: Capturer,
    port: int,
    address: str = "127.0.0.1",
    *,
    logger: logging.Logger,
    replica: int = 0,
    **options: Unpack[Options],
) -> Server | None:
    """Serve the metrics of one rank of an engine, whose `logger` is told where, or why not. Then
    the engine goes on without them.

    It listens at `port` and the rank, which is the label "rank" of each series: that of
    torch.distributed, in replica r of an engine behind those of r others.

    Returns: None if there are none: the port is taken, or prometheus_client is not installed.
    """
    rank = 0
    if find_spec("torch") is not None:
        from torch import distributed

        if distributed.is_available() and distributed.is_initialized():
            rank = distributed.get_rank() + replica * distributed.get_world_size()
    options = {"labels": {"rank": str(rank)}, **options}
    try:
        server = serve(capturer, port + rank, address, **options)
    except (ImportError, OSError, Error) as failed:
        logger.error("metrics of rank %d are not served: %s", rank, failed)
        return None
    logger.info("metrics of rank %d are served at %s", rank, server.url)
    return server


# ---- The process that serves


class _Remote:
    """A capturer in the process that started this one."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()  # a question and its answer

    def _ask(self, question: str) -> Any:
        with self._lock:
            try:
                self._connection.send(question)
                return self._connection.recv()
            except (EOFError, OSError):
                os._exit(0)  # nobody is left whose counters these would be

    def stats(self) -> Stats:
        stats: Stats = self._ask("stats")
        return stats

    def load(self) -> Load:
        load: Load = self._ask("load")
        return load

    def is_gone(self) -> bool:
        with self._lock:  # nobody writes unasked: there is something to be read at the end alone
            return self._connection.poll()


def main(descriptor: int) -> None:
    from prometheus_client import start_http_server

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # is meant for the engine, with which this ends
    connection = Connection(descriptor)
    parent, port, address, options = connection.recv()
    remote = _Remote(connection)
    try:
        server, _ = start_http_server(port, address, registry=registry(remote, **options))
    except (OSError, OverflowError) as failed:
        text = f"{getattr(failed, 'strerror', failed)}: port {port} of {address}. Choose another"
        connection.send(OSError(getattr(failed, "errno", errno.EINVAL), text))
        return
    connection.send(server.server_port)
    while os.getppid() == parent and not remote.is_gone():
        time.sleep(0.5)

"""Metrics are served by a process of their own: thousands of series take the interpreter's lock for
longer than an engine's step, and the engine's thread wants it.

    the engine's process    a thread that sends counters to whoever asks: microseconds
    the process that serves prometheus_client: it asks at each scrape, and writes the series

The second ends with the first, however that ends.

Neither waits for ever for the other, and none of them for a client: connections are few, and each
has some seconds.
"""

import errno
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from importlib.util import find_spec
from multiprocessing.connection import Connection, Pipe
from socketserver import ThreadingTCPServer
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray
from routecap import Capturer, Error, Load, Stats, Store, StoreStats

from ._collector import Options, checked, registry

logger = logging.getLogger("routecap_tools.metrics")

_PROGRAM = """import sys; sys.path[:] = sys.argv[2:]
from routecap_tools.metrics._server import main; main(int(sys.argv[1]))"""
_START_SECONDS = 60
_CLOSE_SECONDS = 2
_CLIENT_SECONDS = 10
"""How long a client may take for the next bytes of its request, or to take all of the answer."""
_ENGINE_SECONDS = 10
"""How long the engine's process may take to send its counters."""
_CONNECTIONS = 16
"""With more, the oldest is closed: half requests do not keep Prometheus out."""
_ENDS_SECONDS = 0.5
"""How long the thread of a closed one may take to end, before a newcomer is closed in its place."""


class Server:
    """What `serve` returns. It goes on until it is closed, or the capturer is, or the process ends.

    Attributes:
        address, port: where it listens.
        store: whose counters are served too, also one that was made later; None.
    """

    def __init__(
        self,
        capturer: Capturer,
        port: int,
        address: str,
        options: Options,
        store: Store | None = None,
    ) -> None:
        if find_spec("prometheus_client") is None:
            raise ImportError(
                "prometheus_client is needed for this: pip install 'routecap-tools[metrics]'"
            )
        self._capturer = capturer
        self.store = store
        self._lock = threading.Lock()  # the connection is closed, and its descriptor another's
        self._connection, theirs = Pipe()
        self._port: Future[int] = Future()
        self._closed = False
        with theirs:
            command = [sys.executable, "-c", _PROGRAM, str(theirs.fileno()), *sys.path]
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
            )
        self._thread = threading.Thread(
            target=self._answer, name="routecap_tools.metrics", daemon=True
        )
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
                else:
                    self._connection.send(self._asked_for(asked))
        except (EOFError, OSError):
            pass
        except Error as failed:
            why = str(failed)
        with self._lock:
            self._connection.close()
        if not self._port.done():
            self._port.set_exception(OSError(errno.ECHILD, why))
        elif not self._closed and not self._capturer.closed and not self._port.exception():
            logger.error("metrics are served no more: %s", why)

    def _asked_for(self, question: str) -> Any:
        if question == "store":
            store = self.store
            return None if store is None or store.closed else store.stats()
        return getattr(self._capturer, question)()

    def close(self) -> None:
        """Serve no more. The port is free afterwards, or soon: a process that is stopped or frozen is
        killed after 2 s, and not waited for.
        """
        self._closed, self.store = True, None
        self._process.terminate()
        # Whoever reads or writes the connection, here and there, goes on at once.
        with self._lock:
            if not self._connection.closed:
                with socket.socket(fileno=os.dup(self._connection.fileno())) as end:
                    end.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        try:
            self._process.wait(_CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()  # and is not waited for: a frozen one dies when it is thawed

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()


def serve(
    capturer: Capturer,
    port: int = 9400,
    address: str = "127.0.0.1",
    *,
    store: Store | None = None,
    **options: Unpack[Options],
) -> Server:
    """Serve the metrics under /metrics, as whoever asks wants them: in Prometheus's text format or
    as OpenMetrics. They are written by a process of their own, so that no thread of this one waits.

    Close the server before the capturer.

    Args:
        port: 0: any that is free.
        address: of this machine, to listen at; "0.0.0.0": at all.
        store: whose counters are served too: that of the prefixes that are adopted.
        options: of Collector.

    Raises:
        OSError: The port is taken, or the address is none of this machine.
        ArgumentError: The capturer counts no load (its setting `load`), or an option is wrong, such
            as a label that series have already.
        ImportError: prometheus_client is not installed.
    """
    capturer.load()
    return Server(capturer, port, address, checked(options), store)


def serve_rank(
    capturer: Capturer,
    port: int,
    address: str = "127.0.0.1",
    *,
    logger: logging.Logger,
    replica: int = 0,
    store: Store | None = None,
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
        server = serve(capturer, port + rank, address, store=store, **options)
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
        self._asked: str | None = None  # the question whose answer is still to come

    def _ask(self, question: str) -> Any:
        """Raises: TimeoutError: the engine's process is stopped, perhaps."""
        if not self._lock.acquire(timeout=_ENGINE_SECONDS):
            raise TimeoutError
        try:
            while True:
                if self._asked is None:
                    self._connection.send(question)
                    self._asked = question
                if not self._connection.poll(_ENGINE_SECONDS):
                    raise TimeoutError
                answer, asked = self._connection.recv(), self._asked
                self._asked = None
                if asked == question:
                    return answer
        except (EOFError, ConnectionError):
            os._exit(0)  # nobody is left whose counters these would be
        finally:
            self._lock.release()

    def stats(self) -> Stats:
        stats: Stats = self._ask("stats")
        return stats

    def load(self) -> Load:
        load: Load = self._ask("load")
        return load

    def layer_stats(self) -> NDArray[np.void]:
        layers: NDArray[np.void] = self._ask("layer_stats")
        return layers

    def is_gone(self) -> bool:
        """Whether the engine's process has closed the connection: it sends nothing unasked."""
        if not self._lock.acquire(timeout=0):
            return False  # whoever asks finds it out
        try:
            if self._asked is None:
                return self._connection.poll()
            if self._connection.poll():
                self._connection.recv()  # too late for whoever asked
                self._asked = None
            return False
        except (EOFError, ConnectionError):
            return True
        finally:
            self._lock.release()


class _RemoteStore:
    """A store in the process that started this one, once there is one."""

    def __init__(self, remote: _Remote) -> None:
        self._remote = remote

    def stats(self) -> StoreStats | None:
        stats: StoreStats | None = self._remote._ask("store")
        return stats


class _Listener(ThreadingTCPServer):
    """Few connections at a time, a thread for each."""

    request_queue_size = 128  # with 5, a burst keeps Prometheus out until its packets come again
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def __init__(self, port: int, address: str, handler: Any) -> None:
        found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family = found[0][0]
        self._open: dict[socket.socket, None] = {}  # the oldest first
        self._guard = threading.Condition()
        super().__init__((str(found[0][4][0]), port), handler)

    def process_request(self, request: Any, client_address: object) -> None:
        with self._guard:
            self._open[request] = None
            for old in list(self._open)[:-_CONNECTIONS]:
                try:
                    old.shutdown(socket.SHUT_RDWR)  # its thread reads the end
                except OSError:
                    pass  # the client went first
            # Threads of closed ones end at once, but for those that wait for the engine.
            room = self._guard.wait_for(lambda: len(self._open) <= 2 * _CONNECTIONS, _ENDS_SECONDS)
        if not room:
            self.shutdown_request(request)
        else:
            super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._guard:
            self._open.pop(request, None)
            self._guard.notify()
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: object) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # a client that went is no error
            super().handle_error(request, client_address)


def _handler(registry_: object) -> Any:
    from prometheus_client import MetricsHandler

    class Handler(MetricsHandler.factory(registry_)):  # type: ignore[misc]
        timeout = _CLIENT_SECONDS

        def do_GET(self) -> None:
            if self.path.partition("?")[0] not in ("/metrics", "/"):
                self.send_error(404, "metrics are under /metrics")
                return
            try:
                super().do_GET()
            except TimeoutError:
                self.send_error(503, f"the engine has not answered for {_ENGINE_SECONDS} s")

    return Handler


def main(descriptor: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # is meant for the engine, with which this ends
    connection = Connection(descriptor)
    parent, port, address, options = connection.recv()
    remote = _Remote(connection)
    metrics = registry(remote, store=_RemoteStore(remote), **options)
    try:
        listener = _Listener(port, address, _handler(metrics))
    except (OSError, OverflowError) as failed:
        text = f"{getattr(failed, 'strerror', failed)}: port {port} of {address}. Choose another"
        connection.send(OSError(getattr(failed, "errno", errno.EINVAL), text))
        return
    threading.Thread(target=listener.serve_forever, daemon=True).start()
    connection.send(listener.server_address[1])
    while os.getppid() == parent and not remote.is_gone():
        time.sleep(0.5)

"""Where routings go beside the answers to clients: a function, a folder."""

from __future__ import annotations

import logging
import queue
import threading
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import routecap

from ._options import Options

logger = logging.getLogger(__name__)


class Finished(NamedTuple):
    """A request that ended.

    routing: row i is that of its i-th token, prompt and output one after another; ready.
    prompt_tokens, output_tokens: how many it has; the last one was never input, and has no row.
    weight_version: as the engine's last weight update named it; before the first "", or the
        server's if that is a number.
    """

    rid: str
    routing: routecap.Routing
    prompt_tokens: int
    output_tokens: int
    weight_version: str

    @property
    def rows(self) -> int:
        return max(0, self.prompt_tokens + self.output_tokens - 1)


def rows_of(routing: routecap.Routing, first: int, end: int) -> routecap.Routing:
    """Rows of a routing that may be in flight, once they have landed."""
    routing.wait()
    first = min(first, end)
    return routing if (first, end) == (0, routing.rows) else routing.slice(first, end - first)


class Sinks:
    """Delivers in a thread of its own, in the order in which requests ended."""

    def __init__(self, options: Options) -> None:
        self._callback = None
        if options.callback:
            module, name = options.callback.split(":")
            self._callback = attrgetter(name)(import_module(module))
        self._folder = Path(options.folder) if options.folder else None
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
        self._queue: queue.SimpleQueue[Finished | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def __bool__(self) -> bool:
        return self._callback is not None or self._folder is not None

    def put(self, finished: Finished) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="routecap-sinks", daemon=True)
            self._thread.start()
        self._queue.put(finished)

    def close(self) -> None:
        """Waits until everything is delivered."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (finished := self._queue.get()) is not None:
            try:
                routing = rows_of(finished.routing, 0, finished.rows)
                finished = finished._replace(routing=routing)
                if self._folder is not None:
                    name = quote(finished.rid, safe="") + ".routecap"
                    routecap.save(self._folder / name, finished.routing)
                if self._callback is not None:
                    self._callback(finished)
            except Exception:
                logger.exception("routed experts of request %s were not delivered", finished.rid)

"""Results of a capturer that callers in this process have.

Their rows are in its pages, which count in its budget, or where they were published in that of a
store. Rows that are read are copied out: from then on they are the reader's. Of those that nobody
has read the oldest are copied out when room gets short, up to a limit.
"""

from __future__ import annotations

import os
import threading
import weakref
from pathlib import Path

import routecap


class Rows:
    """Rows of one result, which its parts share: in a capturer's pages, or copied out of them.

    Attributes:
        routing: Whoever takes it holds its pages.
    """

    __slots__ = ("__weakref__", "_own", "_unread", "routing")

    def __init__(self, routing: routecap.Routing) -> None:
        self.routing = routing
        self._own = False
        self._unread: Unread | None = None

    def read(self) -> None:
        """Copy the rows out, to the reader. Waits for rows in flight. For any thread."""
        unread, self._unread = self._unread, None
        if unread is not None:
            unread.forget(self)
            self.move_out()

    def move_out(self) -> int:
        """Copy the rows out, and return how many bytes the copy has. Waits for rows in flight."""
        if self._own:
            return 0
        self.routing.wait()
        data = self.routing.serialize()
        self.routing = routecap.Routing.deserialize(data, trusted=True)
        self._own = True
        return len(data)


class Unread:
    """The results that nobody has read, in the order in which they ended.

    `add` and `move_out` are for one thread; rows are read, and freed, on any.

    Args:
        limit: The most memory of results that were copied out, in bytes.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bytes = 0  # of results that were copied out, and still exist unread
        # It guards all. This thread may collect a result while it has the lock.
        self._lock = threading.RLock()
        self._in_pages: dict[int, weakref.ref[Rows]] = {}
        self._out: dict[int, tuple[weakref.ref[Rows], int]] = {}

    def add(self, rows: Rows) -> None:
        rows._unread = self
        name = id(rows)
        with self._lock:
            self._in_pages[name] = weakref.ref(rows, lambda _: self._drop(name))

    def forget(self, rows: Rows) -> None:
        self._drop(id(rows))

    def move_out(self) -> bool:
        """Copy the oldest result out, if there is one and the limit allows it."""
        with self._lock:
            name = next(iter(self._in_pages), None)
            if name is None or self.bytes >= self.limit:
                return False
            reference = self._in_pages.pop(name)
        rows = reference()
        if rows is not None:
            size = rows.move_out()
            with self._lock:
                if rows._unread is self:
                    self._out[name] = reference, size
                    self.bytes += size
        return True

    def __len__(self) -> int:
        """How many have their rows in pages."""
        return len(self._in_pages)

    def _drop(self, name: int) -> None:
        with self._lock:
            self._in_pages.pop(name, None)
            _, size = self._out.pop(name, (None, 0))
            self.bytes -= size


def memory_of_this_process() -> int:
    """How many bytes its cgroup may have, or the machine has."""
    most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return most
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            base, name = Path("/sys/fs/cgroup"), "memory.max"
        elif "memory" in controllers.split(","):
            base, name = Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"
        else:
            continue
        place = base / path.lstrip("/")
        for folder in (place, *place.parents):  # within a container its own is at the top
            if folder.is_relative_to(base) and (folder / name).is_file():
                text = (folder / name).read_text().strip()
                most = min(most, int(text)) if text.isdecimal() else most
    return most

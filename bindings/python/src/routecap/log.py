"""What the library has to say to an operator, as records of the module logging.

    import logging, routecap.log

    logging.basicConfig(level=logging.INFO)
    routecap.log.to_logging()

Without it, ROUTECAP_LOG in the environment ("error", "warning", "info" or "debug") says which lines
the library writes to stderr.
"""

import atexit
import logging
import os
import threading

from ._constants import LogLevel
from ._docs import documented
from ._library import raw

__all__ = ["stop", "to_logging"]

_LEVELS = {
    LogLevel.ERROR: logging.ERROR,
    LogLevel.WARNING: logging.WARNING,
    LogLevel.INFO: logging.INFO,
    LogLevel.DEBUG: logging.DEBUG,
}


class _Reader:
    """Reads the lines that the library writes into a pipe: it calls no Python, and waits for none."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._from, self.to = os.pipe()
        os.set_blocking(self.to, False)
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._read, name="routecap.log", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with open(self._from, errors="replace") as lines:
            for line in lines:
                level, left_out, text = line.rstrip("\n").split(" ", 2)
                if left_out != "0":
                    text += f" ({left_out} lines before were left out)"
                self._logger.log(_LEVELS[LogLevel(int(level))], "%s", text)

    def close(self) -> None:
        """All lines have been logged afterwards. The library writes here no more."""
        os.close(self.to)
        if self._process == os.getpid() and self._thread is not threading.current_thread():
            self._thread.join()


_lock = threading.Lock()
_reader: _Reader | None = None


def _replace(reader: _Reader | None, level: LogLevel) -> None:
    global _reader
    with _lock:
        raw.routecap_set_log(-1 if reader is None else reader.to, level)
        before, _reader = _reader, reader
    if before is not None:
        before.close()


@documented("routecap_set_log")
def to_logging(level: int | None = None, logger: str | logging.Logger = "routecap") -> None:
    """Log the library's lines, those of `level` and above: by default as many as the logger takes
    now.

    A thread of its own logs them, a little later than they were said. So the library never waits
    for Python. What the thread has no time for is left out, and the next line says how many. The
    lines of a forked child are logged by its parent.
    """
    if isinstance(logger, str):
        logger = logging.getLogger(logger)
    wanted = logger.getEffectiveLevel() if level is None else level
    passed = [number for number, each in _LEVELS.items() if each >= wanted]
    _replace(_Reader(logger), max(passed, default=LogLevel.OFF))


def stop() -> None:
    """Log nothing more: ROUTECAP_LOG holds again.

    All lines before have been logged when it returns.
    """
    _replace(None, LogLevel.OFF)


atexit.register(stop)

"""Lines of the library as records of logging."""

import array
import fcntl
import logging
import subprocess
import sys
import termios
import threading

import pytest
import routecap
import routecap.log


@pytest.fixture
def records():
    """What was logged, once the log has been stopped."""

    class Handler(logging.Handler):
        def __init__(self):
            super().__init__()
            self.records = []

        def emit(self, record):
            self.records.append(record)

    handler = Handler()
    logger = logging.getLogger("routecap")
    logger.addHandler(handler)
    yield handler.records
    routecap.log.stop()
    logger.removeHandler(handler)


def test_lines_become_records_at_their_levels(make, records):
    routecap.log.to_logging(logging.DEBUG)
    logging.getLogger("routecap").setLevel(logging.DEBUG)
    capturer = make()
    with pytest.raises(routecap.UnknownError):
        capturer.issued(7).poll()
    capturer.close()
    routecap.log.stop()
    logging.getLogger("routecap").setLevel(logging.NOTSET)
    assert [(record.levelname, record.name) for record in records] == [
        ("INFO", "routecap"),
        ("DEBUG", "routecap"),
        ("INFO", "routecap"),
    ]
    assert "ROUTECAP_ERR_UNKNOWN_STEP: step 7 was not issued" in records[1].getMessage()
    assert all(record.threadName == "routecap.log" for record in records)


def test_only_the_levels_that_the_logger_takes_are_logged(make, records):
    routecap.log.to_logging()  # WARNING, as every logger has it
    make().close()
    routecap.log.stop()
    assert records == []


def test_lines_that_nobody_reads_in_time_are_left_out_and_counted(make, records):
    read = threading.Event()

    class Slow(logging.Filter):
        def filter(self, record):
            return read.wait(30)

    logger = logging.getLogger("routecap.slow")
    logger.addFilter(Slow())
    logger.setLevel(logging.INFO)
    routecap.log.to_logging(logger=logger)
    for _ in range(600):  # more than a pipe holds
        make().close()
    read.set()
    unread = array.array("i", [1])
    while unread[0]:  # or the lines that say how many are left out may be left out, too
        fcntl.ioctl(routecap.log._reader._from, termios.FIONREAD, unread)
    make().close()
    routecap.log.stop()
    told = [record.getMessage() for record in records]
    assert len(told) < 1202
    left_out = sum(
        int(text.split("(")[-1].split()[0]) for text in told if text.endswith("left out)")
    )
    assert len(told) + left_out == 1202


def test_a_process_may_end_while_it_logs():
    program = (
        "import logging, routecap, routecap.log\n"
        "logging.basicConfig(level=logging.INFO)\n"
        "routecap.log.to_logging()\n"
        "capturer = routecap.Capturer(layers=2, k=2, experts=8, rows=4)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "INFO:routecap:capturer 1 made: owner on host" in done.stderr

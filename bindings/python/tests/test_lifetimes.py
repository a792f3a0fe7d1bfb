"""Who holds what, and what happens when owners go in an odd order, on other threads, in other
processes, or never.
"""

import ctypes
import ctypes.util
import gc
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import warnings
import weakref
from typing import Any

import numpy as np
import pytest
import routecap
from routecap_testing.helpers import EXPERTS, K, LAYERS, ROWS, expected_ids, run
from routecap import _received as received
from routecap import _structs as structs
from routecap._library import raw
from routecap._reading import wait


def resident() -> int:
    """Bytes of this process that are in memory, free ones given back first."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def python(program: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """A program in a process of its own, with the helpers in its path."""
    path = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path, **environment},
        text=True,
        capture_output=True,
        timeout=60,
    )


def test_arrays_outlive_routing_request_and_capturer() -> None:
    capturer = routecap.Capturer(layers=LAYERS, k=K, experts=EXPERTS, rows=ROWS)
    request = capturer.open()
    run(capturer, request, expected_ids(3, 20), tag=4)
    routing = request.finish()
    assert routing.wait(10) == routecap.Status.OK
    ids, table, tags = routing.ids(), routing.layer_map, routing.segments[0]
    part = routing[5:]
    sink = capturer.sink(0)
    capturer.close()
    del routing, request, capturer
    gc.collect()
    assert (
        (ids == expected_ids(3, 20)).all()
        and table.tolist() == list(range(LAYERS))
        and tags.tags is not None
        and tags.tags.tolist() == [4] * 20
        and (part[0] == ids[5]).all()
    )
    sink[:] = 9
    assert sink.sum() == 9 * ROWS * K
    view = sink[3:5]
    del sink
    gc.collect()
    assert (view == 9).all()


def test_a_closed_capturer_s_requests_and_steps_are_errors() -> None:
    with routecap.Capturer(layers=LAYERS, k=K, experts=EXPERTS, rows=ROWS) as capturer:
        request = capturer.open()
        step = run(capturer, request, expected_ids(1, 4))
    uses = (
        step.poll,
        step.wait,
        request.finish,
        lambda: request.length,
        lambda: capturer.begin(1),
        capturer.stats,
        lambda: capturer.open(),
        lambda: capturer.sink(0),
        lambda: capturer.bind(0, np.zeros((ROWS, K), np.int16)),
    )
    for use in uses:
        with pytest.raises(routecap.Error, match="closed") as raised:
            use()
        assert raised.value.status == routecap.Status.ERR_STATE
    with request:
        pass


def test_a_request_of_a_closed_capturer_is_closed_without_a_word(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A finalizer that ran after the capturer's end printed an error that nobody could catch."""

    class Sequence:
        def __init__(self, capturer: routecap.Capturer) -> None:
            self.request = capturer.open()

        def __del__(self) -> None:
            self.request.close()

    with routecap.Capturer(layers=LAYERS, k=K, experts=EXPERTS, rows=ROWS) as capturer:
        sequence = Sequence(capturer)
        request, other = capturer.open(), capturer.open()
    del sequence
    gc.collect()
    for each in (request, other):
        each.close()
        each.close()
    handles, statuses = np.array([request, other], np.uint64), np.full(2, 77, np.int32)
    assert (
        capturer.close_batch(handles, statuses, check=True) == routecap.Status.OK
        and not statuses.any()
    )
    assert capturer.close_batch(handles[:1]) == routecap.Status.OK
    assert capfd.readouterr().err == ""


def test_requests_may_be_closed_while_another_thread_closes_the_capturer() -> None:
    failures: list[BaseException] = []
    begun = threading.Semaphore(0)

    def end(capturer: routecap.Capturer, batches: bool) -> None:
        while not capturer.closed:
            try:
                requests = [capturer.open() for _ in range(50)]
            except routecap.Error:  # closed in between
                return
            begun.release()
            try:
                for request in requests:
                    if batches:
                        capturer.close_batch(np.array([request], np.uint64), check=True)
                    else:
                        request.close()
            except BaseException as failure:
                failures.append(failure)

    for _ in range(20):
        capturer = routecap.Capturer(layers=1, k=1, experts=4, rows=1)
        enders = [
            threading.Thread(target=end, args=(capturer, batches)) for batches in (False, True)
        ]
        for ender in enders:
            ender.start()
            assert begun.acquire(timeout=300)
        capturer.close()
        for ender in enders:
            ender.join()
    assert not failures, failures


def test_a_bound_array_is_held_until_the_capturer_is_closed() -> None:
    class Array(np.ndarray):  # which can be referred to weakly
        pass

    capturer = routecap.Capturer(layers=1, k=K, experts=EXPERTS, rows=ROWS, external_sink=True)
    bound = np.zeros((ROWS, K), np.int16).view(Array)
    alive = weakref.ref(bound)
    capturer.bind(0, bound)
    del bound
    gc.collect()
    assert alive() is not None
    capturer.close()
    assert alive() is None


def test_a_forgotten_capturer_is_closed_with_a_warning() -> None:
    capturer = routecap.Capturer(layers=LAYERS, k=K, experts=EXPERTS, rows=ROWS)
    request = capturer.open()
    run(capturer, request, expected_ids(1, 4))
    routing = request.finish()
    cycle: list[Any] = [capturer, request]
    cycle.append(cycle)
    before = threads_of_this_process()
    with pytest.warns(ResourceWarning, match="unclosed <routecap.Capturer"):
        del capturer, request, cycle
        gc.collect()
    assert threads_of_this_process() == before - 1
    assert (routing.ids() == expected_ids(1, 4)).all()


def test_a_capturer_that_is_forgotten_until_exit_says_so_and_no_more() -> None:
    program = (
        "import routecap\n"
        "kept = [routecap.Capturer(layers=2, k=2, experts=4, rows=4)]\n"
        "kept.append(kept)\n"  # which the last collection frees
    )
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", program], capture_output=True, text=True, check=True
    )
    assert "unclosed <routecap.Capturer" in done.stderr
    assert "Exception ignored" not in done.stderr


def threads_of_this_process() -> int:
    return len(os.listdir("/proc/self/task"))


def test_closing_waits_for_calls_on_other_threads() -> None:
    capturer = routecap.Capturer(layers=LAYERS, k=K, experts=EXPERTS, rows=ROWS)
    stop = threading.Event()
    all_have_read = threading.Barrier(5)
    outcomes: list[str] = []

    def read() -> None:
        request = capturer.open()
        request.extract()
        all_have_read.wait(300)
        try:
            while not stop.is_set():
                request.coverage()
                request.extract()
        except routecap.Error as error:
            outcomes.append(str(error))

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    all_have_read.wait(300)
    capturer.close()
    for reader in readers:
        reader.join(300)
        assert not reader.is_alive()
    stop.set()
    assert outcomes == ["the capturer is closed"] * 4


def test_a_sink_that_is_asked_for_while_the_capturer_closes_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    capturer = routecap.Capturer(layers=LAYERS, k=K, experts=EXPERTS, rows=ROWS)
    read = structs.sink.read

    def close_first(memory: Any) -> Any:
        closing = threading.Thread(target=capturer.close)
        closing.start()
        closing.join()
        return read(memory)

    monkeypatch.setattr(structs.sink, "read", close_first)
    with pytest.raises(routecap.Error, match="closed"):
        capturer.sink(0)


def test_a_routing_that_is_taken_while_its_batch_is_freed_is_an_error(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    capturer = make()
    reads = np.zeros(2, routecap.extract_dtype)
    reads["request"] = int(capturer.open())
    batch = capturer.extract_batch(reads)
    routing_of = raw.routing_of

    def free_first(*arguments: Any) -> Any:
        freeing = threading.Thread(target=batch.free)
        freeing.start()
        freeing.join()
        return routing_of(*arguments)

    monkeypatch.setattr(raw, "routing_of", free_first)
    with pytest.raises(routecap.Error, match="freed"):
        batch[1]


def test_calls_of_the_forward_path_on_two_threads_at_once_are_refused() -> None:
    rows, k = 1 << 16, 8
    ids = np.tile(np.arange(k, dtype=np.int32), (rows, 1))
    stop = threading.Event()

    def record() -> None:
        while not stop.is_set():
            try:
                capturer.begin(rows)
                capturer.record(0, ids)
            except routecap.Error:
                pass  # the other thread was first

    uses: list[Any] = [
        lambda: capturer.sink(0),  # first: it harms nothing if it is let in
        lambda: capturer.bind(0, bound),
        lambda: capturer.begin(1),
        lambda: capturer.record(0, ids[:1]),
        lambda: capturer.record_layers(ids[None, :1]),
        lambda: capturer.route(0, routecap.Router("softmax"), np.zeros((1, EXPERTS), np.float32)),
        lambda: received.compare(capturer, table, np.zeros((1, 1), np.int64)),
        lambda: capturer.snapshot(),
        lambda: capturer.issue(None),
        lambda: capturer.discard(),
        lambda: capturer.probe(1),
    ]
    bound = np.zeros((rows, k), np.int16)
    counts = np.zeros(len(received.Counts._fields), np.int64)
    table = received.Table(np.zeros((1, 1, 1), np.int32), counts, 1, 0, EXPERTS, 1)
    with routecap.Capturer(layers=1, k=k, experts=EXPERTS, rows=rows) as capturer:
        recording = threading.Thread(target=record)
        recording.start()
        try:
            for number, use in enumerate(uses):
                assert any(is_refused(use) for _ in range(20_000)), number
        finally:
            stop.set()
            recording.join()


def is_refused(use: Any) -> bool:
    try:
        use()
    except routecap.Error as error:
        return "another thread" in str(error)
    return False


def test_a_wait_without_end_is_interrupted_by_a_signal() -> None:
    class Interrupted(Exception):
        pass

    def interrupt(*unused: object) -> None:
        raise Interrupted

    old = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(Interrupted):
            wait(lambda ns: time.sleep(ns / 1e9), lambda found: True, None)
    finally:
        signal.signal(signal.SIGALRM, old)


def test_routings_are_used_by_many_threads_at_once(routing: routecap.Routing) -> None:
    expected = expected_ids(3, 20)
    wrong: list[Any] = []

    def use(start: int) -> None:
        for _ in range(200):
            part = routing[start:]
            if (
                not (part.ids() == expected[start:]).all()
                or not (
                    routecap.Routing.deserialize(part.serialize()).ids(np.int64) == expected[start:]
                ).all()
            ):
                wrong.append(start)

    threads = [threading.Thread(target=use, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("cycles", [1_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_thousands_of_requests_leave_nothing_behind(make: Any, cycles: int) -> None:
    capturer = make()
    ids = expected_ids(1, 16)
    layered = np.ascontiguousarray(ids.transpose(1, 0, 2))
    spans = routecap.spans(1, rows=16)

    def cycle(count: int) -> None:
        for i in range(count):
            request = capturer.open()
            capturer.begin(16)
            capturer.record_layers(layered)
            capturer.snapshot()
            spans["request"] = request.handle
            capturer.issue(spans).wait(10)
            shared = request.extract(mode="copy" if i % 2 else "share")
            array = shared.ids()
            back = routecap.Routing.deserialize(shared.serialize())
            pickled: list[Any] = []
            again = pickle.loads(
                pickle.dumps(back, 5, buffer_callback=pickled.append), buffers=pickled
            )
            routing = request.finish()
            if i % 3 == 0:
                routing.free()
            assert array[0, 0, 0] == again.ids()[0, 0, 0]

    cycle(cycles // 10)
    before = resident()
    cycle(cycles)
    for _ in range(60_000):  # the worker thread gives back what it had in hand
        if capturer.stats().bytes_in_use == 0:
            break
        time.sleep(0.005)
    assert capturer.stats().bytes_in_use == 0 and capturer.stats().requests_open == 0
    assert resident() - before < 4 << 20


def test_ten_thousand_capturers_leave_nothing_behind() -> None:
    def cycle(count: int) -> None:
        for _ in range(count):
            with routecap.Capturer(
                layers=2, k=2, experts=8, rows=4, manual_progress=True
            ) as capturer:
                capturer.open()

    cycle(1000)
    before, threads = resident(), threads_of_this_process()
    cycle(10_000)
    assert resident() - before < 4 << 20 and threads_of_this_process() == threads


def test_memory_that_a_capturer_s_thread_gives_back_is_dropped(
    capturer: routecap.Capturer, routing: routecap.Routing
) -> None:
    """The last reference to attached rows goes where the worker files, which is no thread of
    Python's.
    """
    released: list[int] = []

    class Buffer(bytearray):
        def __del__(self) -> None:
            released.append(1)

    data = Buffer(routing.serialize())
    request = capturer.open()
    with routecap.Routing.deserialize(data) as lent:
        request.attach(lent)
    del lent, data
    request.close()
    for _ in range(60_000):
        if released:
            break
        time.sleep(0.005)
    gc.collect()
    assert released == [1]


def read_in_child(pipe: Any) -> None:
    routing = pickle.loads(
        pipe.recv_bytes(), buffers=[pipe.recv_bytes() for _ in range(pipe.recv())]
    )
    pipe.send(int(routing.ids(np.int64).sum()))


def test_routings_go_to_other_processes_out_of_band(routing: routecap.Routing) -> None:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=read_in_child, args=(there,))
    child.start()
    there.close()
    buffers: list[pickle.PickleBuffer] = []
    here.send_bytes(pickle.dumps(routing, 5, buffer_callback=buffers.append))
    here.send(len(buffers))
    for buffer in buffers:
        here.send_bytes(buffer)
    assert here.recv() == expected_ids(3, 20).sum()
    child.join(30)
    assert child.exitcode == 0


def test_what_was_made_before_a_fork_is_an_error_in_the_child(
    capturer: routecap.Capturer, routing: routecap.Routing
) -> None:
    request = capturer.open()
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads
        child = os.fork()
    if child == 0:
        said = []
        try:
            for use in (
                lambda: request.finish(),
                lambda: capturer.begin(1),
                lambda: routing.rows,
                lambda: routing.serialize(),
            ):
                try:
                    use()
                    said.append("none")
                except routecap.Error as error:
                    said.append(error.status.name)
            routing.free()
            capturer.close()
            with routecap.Capturer(
                layers=2, k=2, experts=8, rows=4
            ) as own:  # what the child makes itself works
                said.append(str(own.open().length))
        finally:
            os.write(writer, " ".join(said).encode())
            os._exit(0)
    os.close(writer)
    _, status = os.waitpid(child, 0)
    assert (
        status == 0
        and os.read(reader, 1000).decode() == "ERR_FORKED ERR_FORKED ERR_FORKED ERR_FORKED 0"
    )
    os.close(reader)
    assert (routing.ids() == expected_ids(3, 20)).all()


EXIT = """
import threading
import numpy as np, routecap
from routecap_testing.helpers import *
capturer = routecap.Capturer(layers=LAYERS, k=K, experts=EXPERTS, rows=ROWS)
request = capturer.open()
run(capturer, request, expected_ids(1, 4))
forward(capturer, expected_ids(1, 4))
step = capturer.issue(routecap.spans(1, request=int(request), rows=4, position=4))
routing, sink = request.extract(0, 4), capturer.sink(0)
lent = routecap.Routing.deserialize(bytearray(routing.serialize()))
request.attach(lent, 4)
kept = [lent.ids(), routing.ids()]
pending = request.finish()
batch = capturer.finish_batch(np.zeros(0, routecap.finish_dtype))
cycle = [capturer, lent]; cycle.append(cycle)
{ending}
print("done")
"""


@pytest.mark.parametrize(
    "ending",
    [
        "",
        "threading.Thread(target=lambda: capturer.issued(1).wait(), daemon=True).start()",
        "del capturer, request",
        "capturer.close()",
        "import sys; sys.modules.pop('routecap')",
        (
            "threading.Thread(target=lambda: [routecap.Routing.deserialize(lent.serialize()) for _"
            " in range(10**9)], daemon=True).start()"
        ),
    ],
    ids=[
        "live",
        "a thread waits",
        "in a cycle only",
        "closed",
        "the module forgotten",
        "a thread at work",
    ],
)
def test_a_program_ends_with_live_objects(ending: str) -> None:
    ended = python(EXIT.replace("{ending}", ending))
    assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr


def test_a_library_that_cannot_be_used_is_an_import_error(tmp_path: Any) -> None:
    ended = python("import routecap", ROUTECAP_LIBRARY=str(tmp_path / "libroutecap.so.1"))
    assert (
        ended.returncode == 1
        and "ImportError: routecap: ROUTECAP_LIBRARY cannot be loaded" in ended.stderr
    )
    other = ctypes.util.find_library("m")
    ended = python("import routecap", ROUTECAP_LIBRARY=str(other))
    assert (
        ended.returncode == 1
        and "ImportError: routecap:" in ended.stderr
        and "which ROUTECAP_LIBRARY names" in ended.stderr
    )


def test_nothing_is_imported_that_was_not_there() -> None:
    ended = python(
        "import sys, routecap; print([name for name in ('torch', 'cupy', 'jax', 'numba') if name in"
        " sys.modules])"
    )
    assert ended.stdout == "[]\n", ended.stderr

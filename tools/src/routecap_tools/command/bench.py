"""Measure what capture costs on this machine.

Runs steps on the host, and on a CUDA device if there is one. Each step records the ids of all
layers, takes the snapshot, and is issued for one request. Then the rows are read and compared with
what was recorded.

Times are medians in microseconds. "begin" to "issue" are the times of the calls on the engine's
thread. On CUDA the calls only enqueue work, which the device runs beside the engine's own. "landed
after" is the time from the issue until the rows can be read.
"""

import argparse
import ctypes
import json
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter_ns as now
from typing import Any

import numpy as np
from numpy.typing import NDArray
from routecap import MAX_ROWS, Capturer, Error, Status, backends, spans
from routecap.names import BackendName

from .terminal import Terminal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--backend",
        choices=("host", "cuda"),
        help="which backend; default: all that this machine has",
    )
    parser.add_argument(
        "--layers", type=_counted, default=58, help="MoE layers; default: %(default)s"
    )
    parser.add_argument(
        "--k", type=_counted, default=8, help="experts per token; default: %(default)s"
    )
    parser.add_argument(
        "--experts", type=_counted, default=256, help="of a layer; default: %(default)s"
    )
    parser.add_argument(
        "--rows",
        type=_counted,
        nargs="+",
        default=[1, 64, 256, 1024],
        help="tokens of a step, one or more numbers; default: 1 64 256 1024",
    )
    parser.add_argument(
        "--steps",
        type=_counted,
        default=100,
        help="steps to measure for each number of tokens; default: %(default)s",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object for each line of the table instead",
    )


def _counted(text: str) -> int:
    if not 0 < (number := int(text)) <= MAX_ROWS:
        raise argparse.ArgumentTypeError(f"{text}: give a number from 1 to {MAX_ROWS}")
    return number


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    usable: list[BackendName] = [name for name, backend in backends().items() if backend.available]
    chosen = [arguments.backend] if arguments.backend else usable
    runs: list[tuple[BackendName, int]] = [
        (backend, rows) for backend in chosen for rows in arguments.rows
    ]
    shape = arguments.layers, arguments.k, arguments.experts
    found = [
        _measure(backend, rows, arguments.steps, *shape) for backend, rows in terminal.track(runs)
    ]
    if arguments.json:
        for each in found:
            print(json.dumps(each))
        return 0
    terminal.title("Capture of %d layers, %d of %d experts, microseconds" % shape)
    columns = list(found[0])
    terminal.table(
        ["<" + columns[0], *columns[1:]],
        [
            [f"{value:.1f}" if isinstance(value, float) else str(value) for value in each.values()]
            for each in found
        ],
    )
    return 0


def _measure(
    backend: BackendName, rows: int, steps: int, layers: int, k: int, experts: int
) -> dict[str, Any]:
    row, layer, column = np.ogrid[:rows, :layers, :k]
    ids = ((row * 13 + layer * 29 + column * max(experts // k, 1)) % experts).astype(np.int32)
    times: dict[str, list[int]] = {
        name: [] for name in ("begin", "record", "snapshot", "issue", "landed")
    }
    with (
        Capturer(
            layers=layers,
            k=k,
            experts=experts,
            rows=rows,
            backend=backend,
            stream=2 if backend == "cuda" else None,
        ) as capturer,
        (_on_device if backend == "cuda" else _on_host)(
            np.ascontiguousarray(ids.transpose(1, 0, 2))
        ) as sources,
    ):
        every_layer = dict(enumerate(sources))
        for measured in [False] * 10 + [True] * steps:
            request = capturer.open()
            batch = spans(1, request=int(request), rows=rows)
            moments = [now()]
            capturer.begin(rows)
            moments.append(now())
            capturer.record_layers(every_layer)
            moments.append(now())
            capturer.snapshot()
            moments.append(now())
            step = capturer.issue(batch)
            moments.append(now())
            step.wait()
            moments.append(now())
            with request.finish(rows) as routing:
                if routing.wait() != Status.OK or not (routing.ids() == ids).all():
                    raise Error(
                        Status.ERR_INTERNAL,
                        "what was read is not what was recorded: report it with the version of the"
                        " driver",
                    )
            if measured:
                for name, start, end in zip(times, moments, moments[1:]):
                    times[name].append(end - start)
    medians = {name: statistics.median(values) / 1000 for name, values in times.items()}
    landed = medians.pop("landed")
    return {
        "backend": backend,
        "tokens": rows,
        **medians,
        "together": sum(medians.values()),
        "landed after": landed,
    }


@contextmanager
def _on_host(layers: NDArray[np.int32]) -> Iterator[list[Any]]:
    yield list(layers)


class _DeviceIds:
    def __init__(self, address: int, shape: tuple[int, ...]) -> None:
        self.__cuda_array_interface__ = {
            "shape": shape,
            "strides": None,
            "typestr": "<i4",
            "data": (address, False),
            "version": 3,
            "stream": None,
        }


@contextmanager
def _on_device(layers: NDArray[np.int32]) -> Iterator[list[Any]]:
    """The layers' ids in the memory of device 0, by the driver alone."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context, previous, memory = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()

    def check(name: str, *arguments: Any) -> None:
        address, found = ctypes.c_void_p(), ctypes.c_int()
        if (
            cuda.cuGetProcAddress_v2(
                name.encode(), ctypes.byref(address), 12030, ctypes.c_uint64(0), ctypes.byref(found)
            )
            or not address.value
        ):
            raise Error(
                Status.ERR_DEVICE,
                f"the driver has no {name}: install a newer one, or take --backend host",
            )
        status = ctypes.CFUNCTYPE(ctypes.c_int)(address.value)(*arguments)
        if status:
            raise Error(
                Status.ERR_DEVICE,
                f"{name} returned {status}: look whether device 0 can be used (routecap info), or"
                " take --backend host",
            )

    check("cuInit", 0)
    check("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    check("cuCtxPushCurrent", context)
    check("cuMemAlloc", ctypes.byref(memory), ctypes.c_size_t(layers.nbytes))
    try:
        check(
            "cuMemcpyHtoD",
            memory,
            ctypes.c_void_p(layers.ctypes.data),
            ctypes.c_size_t(layers.nbytes),
        )
        yield [
            _DeviceIds(memory.value + layer.ctypes.data - layers.ctypes.data, layer.shape)
            for layer in layers
        ]
    finally:
        check("cuMemFree", memory)
        check("cuCtxPopCurrent", ctypes.byref(previous))
        check("cuDevicePrimaryCtxRelease", 0)

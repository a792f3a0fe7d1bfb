"""Whether the engine runs where this library can capture: asked before any weights are loaded."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import sys

import routecap
from routecap import Backend
from routecap.adapter import backend_of, expect_device


logger = logging.getLogger("vllm.routecap")  # which vLLM shows

WITHOUT_CUDA = (
    "routed experts: the engine runs on CUDA, and this routecap was built without it: "
    "install one that was built with nvcc"
)

# Executors whose worker is in the process of the scheduler.
ONE_PROCESS = ("uni", "external_launcher")


def without_cuda() -> bool:
    """Whether the library has no CUDA. It leaves the driver alone: processes may fork later."""
    try:
        needs = routecap.memory(backend="cuda", layers=1, k=1, experts=2, rows=1)
    except routecap.Error as error:
        return error.status is routecap.Status.ERR_NO_BACKEND
    return needs.device_bytes == 0


def _device_type() -> str | None:
    """By the engine's own word; None before there is one."""
    platforms = sys.modules.get("vllm.platforms")
    if platforms is None:
        return None
    kind: str = platforms.current_platform.device_type
    return kind or "cpu"  # it is empty where vLLM has no platform


def engine_is_on_cuda() -> bool:
    """By the engine's own word, or before there is one, by whether this machine has the driver."""
    kind = _device_type()
    if kind is not None:
        return kind == "cuda"
    with contextlib.suppress(OSError):
        ctypes.CDLL("libcuda.so.1")  # which is not initialised by that
        return True
    return False


def expect_cuda() -> None:
    """Raises: ValueError: the engine runs on CUDA, and the library has none; or there is no way to
    capture on its device.
    """
    if (kind := _device_type()) is not None:
        expect_device(kind)
    if _lacks_cuda():
        raise ValueError(WITHOUT_CUDA)


def say_if_without_cuda() -> None:
    if _lacks_cuda():
        logger.error(WITHOUT_CUDA)


def _lacks_cuda() -> bool:
    return without_cuda() and engine_is_on_cuda() and backend_of("cuda") is Backend.CUDA

"""What the adapters of engines capture with on a device: the library's own backend for it, or where
there is none, the copies of PyTorch (routecap.torch)."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ._capturer import Capturer
from ._constants import Backend

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

_KINDS = {"cpu": Backend.HOST, "cuda": Backend.CUDA}


def backend_of(kind: str) -> Backend | None:
    """The library's backend for PyTorch's type of a device, such as "cuda"; None: it has none.

    None everywhere with ROUTECAP_WITHOUT_KERNELS=1, by which PyTorch's copies can be tried on any
    device.
    """
    torch = sys.modules.get("torch")
    if kind == "cuda" and torch is not None and torch.version.hip:
        return None
    return None if os.environ.get("ROUTECAP_WITHOUT_KERNELS") == "1" else _KINDS.get(kind)


def expect_device(kind: str) -> None:
    """Raises: ValueError: There is no way to capture on this type of a device."""
    if kind == "cpu" or backend_of(kind) is not None:
        return
    import torch

    there = torch.accelerator.current_accelerator() if hasattr(torch, "accelerator") else None
    if there is None or there.type != kind:
        raise ValueError(
            f"routed experts: the engine runs on {kind}, where routecap has no backend and PyTorch"
            f" {torch.__version__} no streams and events (torch.accelerator): leave capture off"
        )


def capturer_on(device: torch.device, **settings: Any) -> Capturer:
    """A capturer for a device, with these settings of routecap.Capturer beside `backend` and
    `device`. Where the library has no backend, it is a routecap.torch.Capturer, and a warning says
    so.

    Raises: ValueError: There is no way to capture on this device.
    """
    expect_device(device.type)
    backend = backend_of(device.type)
    if backend is not None:
        return Capturer(backend=backend, device=device.index or 0, **settings)
    from .torch import Capturer as Copying

    logger.warning(
        "routed experts: %s has no backend of routecap, so PyTorch copies the ids. Make `routecap"
        " conform` judge the rows, if nobody has run this there before",
        device,
    )
    settings.pop("external_sink", None)
    return Copying(device=device, **settings)


def takes_tensors(capturer: Capturer) -> bool:
    """Whether the capturer copies by PyTorch: it then takes tensors alone, no addresses and no
    descriptions (`describe`).
    """
    return hasattr(capturer, "is_capturing")


def capturing_on(capturer: Capturer) -> Callable[[], bool]:
    """A function that says whether a graph is being captured on the current stream of the
    capturer's device. It costs no call of the driver where there are no graphs.
    """
    if takes_tensors(capturer):
        return capturer.is_capturing  # type: ignore[attr-defined,no-any-return]
    if capturer.backend is not Backend.CUDA:
        return lambda: False
    import torch

    return lambda: bool(torch.cuda.is_current_stream_capturing())

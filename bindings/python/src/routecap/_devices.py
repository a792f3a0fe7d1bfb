"""On which devices the adapters of engines capture."""

from __future__ import annotations

import sys


def expect_host_or_cuda(kind: str) -> None:
    """kind: PyTorch's name of the type of a device.

    Raises: ValueError: it is neither the host nor CUDA.
    """
    torch = sys.modules.get("torch")
    if kind == "cuda" and torch is not None and torch.version.hip:
        kind = "ROCm"
    if kind not in ("cpu", "cuda"):
        raise ValueError(
            f"routed experts: the engine runs on {kind}, and this adapter captures on CUDA and on"
            " the host alone. Leave it off; a loop of your own captures there by routecap.torch"
        )

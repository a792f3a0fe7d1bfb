"""Work beside the engine's stream inside a CUDA graph: nothing that the engine launches waits for
it.

A graph that is replayed runs the branch while the engine's own kernels run. Memory that the branch
reads must be held until it is joined: until then the engine's stream may be given it again.
"""

from __future__ import annotations

from typing import Any


class Branch:
    """Forked from the current stream of a capture. It must be joined before the capture ends."""

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self.stream: Any = torch.cuda.Stream()
        self.follow()

    def follow(self) -> None:
        """What comes on the branch waits for what the current stream has now."""
        self.stream.wait_stream(self._torch.cuda.current_stream())

    def join(self) -> None:
        """What comes on the current stream waits for the branch."""
        self._torch.cuda.current_stream().wait_stream(self.stream)

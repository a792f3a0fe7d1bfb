"""Work beside the engine's stream inside a CUDA graph: nothing that the engine launches waits for
it.

A graph that is replayed runs the branch while the engine's own kernels run. Memory that the branch
reads must be held until it is joined: until then the engine's stream may be given it again.
"""

from __future__ import annotations

from typing import Any


class Branch:
    """Of one capture after another; each joins it before it ends. By one thread at a time."""

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self._open = False
        self._stream: Any = torch.cuda.Stream()  # not while a graph is captured

    @property
    def stream(self) -> Any:
        """Where the branch runs, between a fork and its join; None outside."""
        return self._stream if self._open else None

    def fork(self) -> None:
        """What comes on the branch waits for what the current stream has now. Also of one that is
        open."""
        self._open = True
        self._stream.wait_stream(self._torch.cuda.current_stream())

    def join(self) -> bool:
        """What comes on the current stream waits for the branch. False if none is open."""
        if not self._open:
            return False
        self._open = False
        self._torch.cuda.current_stream().wait_stream(self._stream)
        return True

"""PyTorch's copies (routecap.torch) in an engine on the host, where a copy is there when it was
made: `install` lets each arrive up to 20 ms later, as those of a device that is behind do."""

import os
import random
import time

import routecap.torch


class _Event:
    def record(self, stream):
        self._arrival = time.monotonic() + random.uniform(0, 0.02)

    def query(self):
        return time.monotonic() >= self._arrival


def install():
    """In this process, and on the host alone: a device's copies are late by themselves."""
    os.environ["ROUTECAP_WITHOUT_KERNELS"] = "1"  # for its children, too
    event = routecap.torch.Capturer._event
    routecap.torch.Capturer._event = lambda capturer: event(capturer) or _Event()

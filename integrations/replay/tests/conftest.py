"""One thread, so that tiny models do not wait for others; and released Megatron-Core without a GPU."""

import sys
from pathlib import Path

here = Path(__file__).resolve().parent
sys.path += [str(here), str(here.parent / "examples")]
import megatron_on_cpu  # before anything imports megatron
import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def alone():
    """One rank of Megatron-Core."""
    megatron_on_cpu.start()

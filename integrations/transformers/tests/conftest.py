"""One thread, so that tiny models do not wait for others, and what transformers warns of on
machines like this. What a release has no family for is not collected.
"""

from collections.abc import Iterator

import pytest
import torch
from families import HAS_LOOPS

torch.set_num_threads(1)
collect_ignore = [] if HAS_LOOPS else ["test_visits.py"]


@pytest.fixture
def compiler() -> Iterator[None]:
    """Nothing is compiled before and after."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()

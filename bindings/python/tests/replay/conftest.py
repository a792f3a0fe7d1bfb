"""One thread, so that tiny models do not wait for others; and released Megatron-Core without a GPU."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[4] / "examples"))
import megatron_on_cpu  # noqa: F401, before anything imports megatron
import torch

torch.set_num_threads(1)

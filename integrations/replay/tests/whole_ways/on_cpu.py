"""vLLM's engine without a GPU, in each process that imports this before vLLM: those of
integrations/vllm/tests/real/cpu.py. Nothing of it is needed on a GPU.
"""

import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[4] / "integrations/vllm/tests/real"))
if os.environ.get("VLLM_ENGINE_ON_CPU") == "1":
    import cpu

    cpu.in_each_process()


def spawn() -> None:
    """Have the processes that this one spawns import this module before anything else."""
    sys.modules["__main__"].__file__ = __file__
    sys.modules["__main__"].__spec__ = None

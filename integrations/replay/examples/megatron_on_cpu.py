"""Lets released Megatron-Core (0.16, 0.19) run on a machine without a GPU, with gloo: import it
before megatron, then call `start`.

What it stands in for: the current CUDA device (the CPU), CUDA's streams and random states (none),
triton (0.19 imports it for kernels that are not called here), and one function that 0.16 takes from
Transformer Engine. Nothing of routers, experts, layouts or schedules is touched.
"""

import contextlib
import importlib.machinery
import importlib.util
import logging
import sys
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

logging.getLogger("torch.utils.flop_counter").setLevel(logging.ERROR)
import torch
import torch._dynamo
import torch._inductor.runtime.triton_compat  # asks for triton, and must not find what stands in for it
import torch.nn.attention.flex_attention
import torch.utils.checkpoint
import torch.utils.flop_counter
from torch.overrides import TorchFunctionMode


def _kernels(name: str) -> ModuleType:
    """Stands in for triton: kernels are plain functions that nobody calls."""
    module: Any = MagicMock(name=name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    module.__path__, module.__version__ = [], "3"
    module.jit = lambda function=None, **options: function or (lambda given: given)
    module.autotune = module.heuristics = lambda *args, **options: lambda given: given
    return module


class _Stream:
    """A stream, and an event on it, for what is done once it is called."""

    synchronize = record_event = wait_event = wait_stream = wait = lambda self, *args: self


class _OnCpu(TorchFunctionMode):
    """What is made on the device "cuda" is made on the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if str(kwargs.get("device")).startswith("cuda"):
            kwargs = {**kwargs, "device": "cpu"}
        return func(*args, **kwargs)


if importlib.util.find_spec("triton") is None:
    for _name in ("triton", "triton.language", "triton.language.extra"):
        sys.modules[_name] = _kernels(_name)

_STREAM = _Stream()
torch.cuda.current_device = lambda: "cpu"
torch.cuda.synchronize = lambda *args: None
torch.cuda.Stream = _Stream
torch.cuda.current_stream = lambda *args: _STREAM
torch.cuda.stream = lambda stream: contextlib.nullcontext()
torch.cuda.get_rng_state = torch.cuda.random.get_rng_state = lambda *args, **options: torch.zeros(
    0, dtype=torch.uint8
)
torch.cuda.manual_seed = lambda seed: None


def start(rank: int = 0, ranks: int = 1, store: Any = None, **parallel: Any) -> None:
    """Join the other ranks, and set up parallelism: see
    megatron.core.parallel_state.initialize_model_parallel.

    store: Where ranks find each other (torch.distributed.FileStore, for one); one rank needs none.
    """
    torch.distributed.init_process_group(
        "gloo", store=store or torch.distributed.HashStore(), rank=rank, world_size=ranks
    )
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer.moe import moe_utils, token_dispatcher

    # Sizes for a collective are there as NumPy arrays once they have left the GPU; here they never
    # were on one.
    token_dispatcher.maybe_move_tensor_to_cpu = lambda tensor, as_numpy=False, record_stream=False: (
        tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor
    )
    random._set_cuda_rng_state = lambda *args, **options: None
    random.CudaRNGStatesTracker.fork = lambda self, name=None: contextlib.nullcontext()
    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None
    _OnCpu().__enter__()  # until the end
    parallel_state.initialize_model_parallel(**parallel)


def stop() -> None:
    """Leave the other ranks; `start` may be called again."""
    from megatron.core import parallel_state

    parallel_state.destroy_model_parallel()
    torch.distributed.destroy_process_group()

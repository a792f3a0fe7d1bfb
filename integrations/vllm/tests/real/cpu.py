"""vLLM's engine, of any release from 0.21 on, without a GPU. Import it before vllm.

What its kernels do, PyTorch does, as in ../worker/cpu_kernels.py, and Triton's interpreter runs
those of model runner V2. It shows what the host does, and nothing about the device.
"""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
from releases import V2

if V2:
    os.environ["TORCHDYNAMO_DISABLE"] = "1"  # of an embedding that is cut among ranks
    os.environ["TRITON_INTERPRET"] = "1"
    import triton.backends

    driver = SimpleNamespace(is_active=lambda: True)
    triton.backends.backends["cpu"] = SimpleNamespace(driver=driver, compiler=None)
    import triton.language as tl
    from triton.language.extra import libdevice

    libdevice.log1p = lambda x: tl.log(1 + x)  # the interpreter has no body for it
import torch

for name in ("zeros", "empty"):

    def unpinned(*args, make=getattr(torch, name), **kwargs):
        kwargs.pop("pin_memory", None)
        return make(*args, **kwargs)

    setattr(torch, name, unpinned)

sys.path.append(str(Path(__file__).resolve().parents[1] / "worker"))
import cpu_kernels  # noqa: E402

cpu_kernels.Immediate.device = torch.device("cpu")
from vllm.model_executor.layers.fused_moe import unquantized_fused_moe_method  # noqa: E402
from vllm.platforms.cpu import CpuPlatform  # noqa: E402


if not hasattr(torch.ops._C, "silu_and_mul"):  # of 0.26, by another name

    @cpu_kernels.operator("silu_and_mul(Tensor(a!) out, Tensor x) -> ()")
    def silu_and_mul(out, x):
        gate, up = x.chunk(2, -1)
        out.copy_(torch.nn.functional.silu(gate) * up)


def apply(self, layer, x, topk_weights, topk_ids, *_, **__):
    out = torch.empty_like(x)
    weights = topk_weights.to(x.dtype)
    cpu_kernels.fused_moe(
        out, x, layer.w13_weight, layer.w2_weight, None, None, weights, topk_ids, False, "silu", ""
    )
    return out


method = unquantized_fused_moe_method.UnquantizedFusedMoEMethod
method.is_monolithic = property(lambda self: False)
method.supports_internal_mk = property(lambda self: True)  # routes its own rows before any dispatch
method.process_weights_after_loading = lambda self, layer: None
method.apply = apply

update_config = CpuPlatform.check_and_update_config


def as_on_a_gpu(config):
    """Where the worker is stays as it was chosen, in the engine's process or in one of its own."""
    chosen = config.parallel_config.distributed_executor_backend
    update_config(config)
    config.parallel_config.distributed_executor_backend = chosen or "uni"
    if V2 and chosen == "mp":  # workers have what is replaced here before they import anything
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"


CpuPlatform.check_and_update_config = staticmethod(as_on_a_gpu)


def topk_softmax(
    topk_weights, topk_ids, token_expert_indices, gating_output, renormalize=False, *_, **__
):
    weights, ids = gating_output.float().softmax(-1).topk(topk_ids.shape[1], -1)
    topk_weights.copy_(weights / weights.sum(-1, keepdim=True) if renormalize else weights)
    topk_ids.copy_(ids)


cpu_kernels.ops.topk_softmax = topk_softmax


# Of drafts, as far as requests are greedy: the others are only run for their memory.
draft_ops = {
    "rejection_random_sample": "Tensor(a!) tokens, Tensor ends, Tensor drafts, Tensor? draft_probs,"
    " Tensor probs, Tensor bonus, Tensor recovered, Tensor uniform, Tensor greedy, int most, int n,"
    " bool none",
    "sample_recovered_tokens": "Tensor(a!) tokens, Tensor ends, Tensor drafts, Tensor? draft_probs,"
    " Tensor probs, Tensor inv_q, int n, bool none",
}
for name, arguments in draft_ops.items():
    cpu_kernels.operator(f"{name}_kernel_impl({arguments}) -> ()")(lambda *arguments: None)


@cpu_kernels.operator(
    "rejection_greedy_sample_kernel_impl(Tensor(a!) tokens, Tensor ends, Tensor drafts,"
    " Tensor targets, Tensor bonus, Tensor? greedy, int most) -> ()"
)
def verify_drafts(tokens, ends, drafts, targets, bonus, greedy, most):
    start = 0
    for request, end in enumerate(ends.tolist()):
        wrong = (drafts[start:end] != targets[start:end]).nonzero()
        count = int(wrong[0]) + 1 if len(wrong) else end - start
        tokens[request, :count] = targets[start : start + count]
        if not len(wrong):
            tokens[request, count] = bonus.flatten()[request]
        start = end


def expand_batch_to_tokens(x, cu_num_tokens, num_tokens, replace_from=0, replace_to=0):
    values = torch.where(x == replace_from, replace_to, x)
    return values.repeat_interleave(cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1)))


from vllm.v1.sample import rejection_sampler  # noqa: E402

rejection_sampler.expand_batch_to_tokens = expand_batch_to_tokens
torch.Event = cpu_kernels.Immediate


def without_streams():
    """This imports the model runner: what replaces its parts has to be there before."""
    if V2:
        return
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    initialise = CPUModelRunner.__init__
    if getattr(initialise, "without_streams", False):
        return

    def init(self, *args, **kwargs):
        initialise(self, *args, **kwargs)
        for name, value in vars(self).items():
            if type(value).__name__ in ("_StreamPlaceholder", "_EventPlaceholder"):
                setattr(self, name, cpu_kernels.Immediate())

    init.without_streams = True
    CPUModelRunner.__init__ = init


def in_each_process():
    """The same in an engine's own process, once its plugins are loaded."""
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    init_device = WorkerWrapperBase.init_device

    def init(self):
        without_streams()
        init_device(self)

    WorkerWrapperBase.init_device = init

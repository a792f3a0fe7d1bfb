"""vLLM's wheel on PyPI has kernels for CUDA only.

The few that its engine needs on a CPU, in PyTorch: import this before vllm.

Only what is computed inside an operator is here. Scheduler, paged KV cache, prefix cache, model
code and routers are vLLM's own. For float32 models of a few layers, and for this version of vLLM.
"""

import contextlib
import os

os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # the engine runs in this process
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

import torch  # noqa: E402

observers = []
"""Functions that are called with the ids, [rows, k], for which experts are computed, layer by
layer.
"""

_library = torch.library.Library("_C", "FRAGMENT")


def operator(schema):
    """Defines the operator of this schema as the function below it."""

    def define(function):
        _library.define(schema)
        _library.impl(schema.partition("(")[0], function, "CompositeExplicitAutograd")
        return function

    return define


operator("init_cpu_memory_env(int[] nodes) -> ()")(lambda nodes: None)
operator("init_cpu_threads_env(str cores) -> str")(lambda cores: "")
operator("greedy_argmax(Tensor logits) -> Tensor")(lambda logits: logits.argmax(-1))


@operator("fused_gumbel_argmax(Tensor logits, Tensor seeds) -> Tensor")
def sample(logits, seeds):
    noise = [
        torch.empty_like(row).exponential_(generator=torch.Generator().manual_seed(seed))
        for row, seed in zip(logits, seeds.tolist())
    ]
    return (logits - torch.stack(noise).log()).argmax(-1)


@operator("prepack_moe_weight(Tensor weight, Tensor(a!) out, str isa) -> ()")
def prepack(weight, out, isa):
    out.copy_(weight)


@operator(
    "compute_slot_mapping_kernel_impl(Tensor starts, Tensor positions, Tensor blocks, Tensor(a!) slots, int block_size) -> ()"
)
def slot_mapping(starts, positions, blocks, slots, block_size):
    """Where each token of the batch is kept in the KV cache."""
    slots.fill_(-1)
    for row, (start, end) in enumerate(zip(starts.tolist(), starts[1:].tolist())):
        if row < len(blocks):
            position = positions[start:end]
            slots[start:end] = (
                blocks[row, position // block_size].long() * block_size + position % block_size
            )


@operator(
    "cpu_fused_moe(Tensor(a!) out, Tensor x, Tensor w13, Tensor w2, Tensor? b13, Tensor? b2, Tensor weights, Tensor ids, bool skip_weighted, "
    "str activation, str isa) -> ()"
)
def fused_moe(out, x, w13, w2, b13, b2, weights, ids, skip_weighted, activation, isa):
    assert b13 is None and b2 is None and not skip_weighted and activation == "silu"
    for observer in observers:
        observer(ids)
    out.zero_()
    for expert in ids.unique().tolist():
        row, column = (ids == expert).nonzero(as_tuple=True)
        gate, up = (x[row] @ w13[expert].T).chunk(2, -1)
        out.index_add_(
            0,
            row,
            (torch.nn.functional.silu(gate) * up) @ w2[expert].T * weights[row, column, None],
        )


def write_cache(key, value, key_cache, value_cache, slots, *_, **__):
    """key, value: [tokens, heads, size]. Caches: [blocks, heads, block_size, size]."""
    used = slots >= 0
    block, offset = slots[used] // key_cache.shape[2], slots[used] % key_cache.shape[2]
    key_cache[block, :, offset], value_cache[block, :, offset] = (
        key[: len(slots)][used],
        value[: len(slots)][used],
    )


def attention(
    query,
    key_cache,
    value_cache,
    output,
    query_start_loc,
    seq_lens,
    scale,
    causal,
    block_table,
    **_,
):
    """query: [tokens, heads, size], those of each sequence together."""
    size, heads = key_cache.shape[2], query.shape[1] // key_cache.shape[1]

    def cached(cache, blocks, length):
        return cache[blocks].transpose(1, 2).flatten(0, 1)[:length].repeat_interleave(heads, 1)

    for row, (start, end, length) in enumerate(
        zip(query_start_loc.tolist(), query_start_loc[1:].tolist(), seq_lens.tolist())
    ):
        if start == end:
            continue
        blocks = block_table[row, : -(-length // size)].long()
        scores = (
            torch.einsum("qhd,khd->hqk", query[start:end], cached(key_cache, blocks, length))
            * scale
        )
        if causal:
            last = torch.arange(length - (end - start), length)
            scores = scores.masked_fill(torch.arange(length) > last[:, None], float("-inf"))
        output[start:end] = torch.einsum(
            "hqk,khd->qhd", scores.softmax(-1), cached(value_cache, blocks, length)
        ).view(output[start:end].shape)


import vllm._custom_ops as ops  # noqa: E402

ops.cpu_attn_get_scheduler_metadata = lambda *_, **__: torch.zeros(1)
ops.cpu_attn_reshape_and_cache = write_cache
ops.cpu_attention_with_kv_cache = attention


# ---- Scheduling ahead of the results, as on a GPU: vLLM's runner asks for a stream and events, which have nothing to wait for here


class Immediate:
    def __init__(self, *_, **__):
        pass

    def record(self, *_):
        pass

    wait_stream = synchronize = record


torch.cuda.Event = torch.cuda.Stream = torch.cuda.current_stream = Immediate
torch.cuda.stream = contextlib.nullcontext

from vllm.platforms.cpu import CpuPlatform  # noqa: E402

update_config = CpuPlatform.check_and_update_config


def update_config_but_for_scheduling(config):
    asked = config.scheduler_config.async_scheduling
    update_config(config)
    config.scheduler_config.async_scheduling = asked


CpuPlatform.check_and_update_config = staticmethod(update_config_but_for_scheduling)

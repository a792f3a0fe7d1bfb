"""A plugin of SGLang, in each of its processes: what its capturer, its cache in host memory and its
attention for drafts need without a GPU; and a list of what happened, for the checks."""

import contextlib
import ctypes
import os
import warnings


def register():
    import torch
    from sglang.srt.mem_cache.pool_host import base, common, mha
    from sglang.srt.runtime_context import override_platform

    def unpinned(dims, dtype, *args, **kwargs):
        return torch.zeros(dims, dtype=dtype)

    common.ALLOC_MEMORY_FUNCS["cpu"] = unpinned
    base.HICACHE_HOST_MEMORY_RESERVE_BYTES = 0
    override_platform(has_amx=True).install()  # its attention for drafts is in sgl_kernel.drafts
    if not hasattr(mha, "transfer_kv_all_layer"):
        mha.transfer_kv_all_layer, mha.transfer_kv_per_layer = _to_host, _to_device
    _tell()
    if os.environ.get("ROUTECAP_WITHOUT_KERNELS"):
        import late_copies

        late_copies.install()
    if path := os.environ.get("ROUTECAP_TEST_SLOTS"):
        from routecap_sglang_slots import watch

        watch(path)


def _to_host(
    src_k_layers, dst_k_layers, src_v_layers, dst_v_layers, src_indices, dst_indices, item_size,
    num_layers,
):  # fmt: skip
    """Rows of all layers, of which the addresses are given."""
    for source, target in ((src_k_layers, dst_k_layers), (src_v_layers, dst_v_layers)):
        for begin, to in zip(source.tolist(), target.tolist(), strict=True):
            for row, at in zip(src_indices.tolist(), dst_indices.tolist(), strict=True):
                ctypes.memmove(to + at * item_size, begin + row * item_size, item_size)


def _to_device(src_k, dst_k, src_v, dst_v, src_indices, dst_indices, item_size):
    dst_k[dst_indices] = src_k[src_indices]
    dst_v[dst_indices] = src_v[src_indices]


@contextlib.contextmanager
def waits(tell):
    """Tell of each time that this thread waits for a GPU inside, by PyTorch's operations."""
    import torch

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")
    for each in said:
        if "called a synchronizing CUDA operation" in str(each.message):
            tell(WAITS)


WAITS = "waits of routecap for the device"


def _tell():
    """Retractions, KV that came back from the host's memory, accepted drafts, and waits for a GPU
    in what the adapter does: a line each."""
    import torch
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    path = os.environ.get("ROUTECAP_TEST_EVENTS")
    if path is None:
        return

    def tell(what, count=1):
        with open(path, "a") as file:
            file.write(f"{what} {count}\n")

    def retracted(result, request):
        tell("retractions")

    def loaded(result, engine, transfers, **kwargs):
        tell("tokens loaded back", len(transfers[0].host_indices))

    def resolved(tokens, *args):
        tell("drafts accepted", sum(len(each) - 1 for each in tokens))

    if torch.cuda.is_available():
        from routecap.sglang._capturer import Capturer

        softly = Capturer.softly

        def watched(*args):
            with waits(tell):
                return softly(*args)

        Capturer.softly = watched
    results = "managers.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor"
    for target, hook in (
        ("managers.schedule_batch.Req.reset_for_retract", retracted),
        ("mem_cache.l2_transfer.L2TransferEngine.submit_host_to_device", loaded),
        (f"{results}._resolve_spec_v2_tokens", resolved),
    ):
        HookRegistry.register(f"sglang.srt.{target}", hook, HookType.AFTER)

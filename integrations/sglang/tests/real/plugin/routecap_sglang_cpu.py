"""A plugin of SGLang, in each of its processes: what its capturer, its cache in host memory and its
attention for drafts need without a GPU; and a list of what happened, for the checks.

Of a release without plugins the model calls it (`routecap_sglang_models`)."""

import contextlib
import ctypes
import functools
import inspect
import os
import warnings


def around(owner, name, hook):
    """Put `hook(original, ...)` in the place of a class's function."""
    found = inspect.getattr_static(owner, name)
    kind = type(found) if isinstance(found, (classmethod, staticmethod)) else None
    original = found.__func__ if kind else found

    @functools.wraps(original)
    def hooked(*args, **kwargs):
        return hook(original, *args, **kwargs)

    setattr(owner, name, kind(hooked) if kind else hooked)


def after(owner, name, hook):
    """Call `hook(result, ...)` behind a class's function."""

    def call(original, *args, **kwargs):
        result = original(*args, **kwargs)
        hook(result, *args, **kwargs)
        return result

    around(owner, name, call)


@functools.cache
def register():
    import sglang

    _replace_kernels_of_pages()
    if newest := sglang.__version__ in ("0.5.22", "0.5.23"):
        _replace_what_needs_a_gpu()
    _tell(newest)
    if os.environ.get("ROUTECAP_WITHOUT_KERNELS"):
        import late_copies

        late_copies.install()
    if os.environ.get("ROUTECAP_TEST_SLOTS"):
        from routecap_sglang_slots import watch

        watch()


def _replace_kernels_of_pages():
    """Triton's, which give slots to tokens: a request goes on in its last page, and then in free
    ones."""
    from sglang.srt.mem_cache import allocator
    from triton.runtime import JITFunction

    module = getattr(allocator, "paged", allocator)  # a package from 0.5.13 on

    def extend(firsts, ends, last, free, slots, batch, page):
        at = used = 0
        for first, end, slot in zip(*(each.tolist() for each in (firsts, ends, last)), strict=True):
            for position in range(first, end):
                if position % page:
                    slot += 1
                else:
                    slot, used = int(free[used]) * page, used + 1
                slots[at] = slot
                at += 1

    def decode(ends, *arguments):
        extend(ends - 1, ends, *arguments)

    for name, function in (("alloc_extend_kernel", extend), ("alloc_decode_kernel", decode)):
        if isinstance(getattr(module, name), JITFunction):
            setattr(module, name, _Grid(function))


class _Grid:
    """A kernel of Triton is called as kernel[grid](...)."""

    def __init__(self, function):
        self.function = function

    def __getitem__(self, grid):
        return self.function


def _replace_what_needs_a_gpu():
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


def _tell(newest):
    """Retractions, KV that came back from the host's memory, accepted drafts, and waits for a GPU
    in what the adapter does: a line each."""
    import torch
    from sglang.srt.managers.schedule_batch import Req

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
        from routecap_sglang._capturer import Capturer

        softly = Capturer.softly

        def watched(*args):
            with waits(tell):
                return softly(*args)

        Capturer.softly = watched
    after(Req, "reset_for_retract", retracted)
    if newest:
        from sglang.srt.managers.scheduler_components import batch_result_processor as results
        from sglang.srt.mem_cache.l2_transfer import L2TransferEngine

        after(L2TransferEngine, "submit_host_to_device", loaded)
        after(results.SchedulerBatchResultProcessor, "_resolve_spec_v2_tokens", resolved)

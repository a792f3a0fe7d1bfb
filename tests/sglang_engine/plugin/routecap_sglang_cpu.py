"""A plugin of SGLang, in each of its processes: what its own capturer needs without a GPU."""


def register():
    import torch
    from sglang.srt.mem_cache.pool_host import common
    from sglang.srt.runtime_context import override_platform

    def unpinned(dims, dtype, *args, **kwargs):
        return torch.zeros(dims, dtype=dtype)

    common.ALLOC_MEMORY_FUNCS["cpu"] = unpinned
    override_platform(has_amx=True).install()  # its attention for drafts is in sgl_kernel.drafts
    _count_retractions()


def _count_retractions():
    import os

    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    def retracted(result, request):
        with open(os.environ["ROUTECAP_TEST_RETRACTIONS"], "a") as file:
            file.write(request.rid + "\n")

    if "ROUTECAP_TEST_RETRACTIONS" in os.environ:
        target = "sglang.srt.managers.schedule_batch.Req.reset_for_retract"
        HookRegistry.register(target, retracted, HookType.AFTER)

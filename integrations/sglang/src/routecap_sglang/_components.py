"""SGLang 0.5.13 to 0.5.21: a scheduler made of components.

A capturer is made with the model from 0.5.16 on, and before as in `_mixins`. The cache, the
detokenizer and the weights are as there; from 0.5.19 on a version of the weights may be named by a
call of its own, and from 0.5.21 on loading has a beginning and an end.
"""

from __future__ import annotations

from . import _hooks, _mixins
from ._hooks import Design, Hook
from ._settings import Release

FIRST, LAST = "0.5.13", "0.5.21"

_ALLOWED = {"sglang.srt.layers.moe.topk.TopKConfig": ("allow_routed_experts_capture",)}
DECLINED = {
    "sglang.srt.mem_cache.base_prefix_cache.InsertResult": ("prefix_len", "rotation_tail_declined")
}

RESULTS = "managers.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor."
WEIGHTS = "managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
GIVEN = ("model", "model_config", "num_tokens", "max_running_requests", "device")


def results() -> list[Hook]:
    return [Hook(RESULTS + "_maybe_collect_routed_experts", ("req",), _hooks.collect, "around")]


def named() -> list[Hook]:
    return [
        Hook(
            "managers.scheduler.Scheduler.record_weight_version_change",
            ("new_version",),
            _hooks.named,
            "after",
        )
    ]


def ended() -> list[Hook]:
    return [
        Hook(WEIGHTS + ".end_weight_update", ("recv_req",), _hooks.updated_from_outside, "before")
    ]


def storage() -> list[Hook]:
    return [
        Hook(
            "mem_cache.unified_radix_cache.UnifiedRadixCache.clear_storage_backend",
            (),
            _hooks.storage_cleared,
            "after",
        )
    ]


def design(number: str, release: Release) -> Design:
    trees = ["unified_radix_cache.UnifiedRadixCache"]
    if release < (0, 5, 20):
        trees.insert(0, "radix_cache.RadixCache")
    finished = "cache_finished_req" if release < (0, 5, 21) else "insert_req"
    hooks = [
        *_mixins.capturer(
            "state_capturer.routed_experts",
            *([GIVEN] if release >= (0, 5, 16) else []),
        ),
        *results(),
        *_mixins.trees(*trees, finished=finished),
        *storage(),
        *_mixins.sessions(),
        *_mixins.weights(WEIGHTS),
        *(named() if release >= (0, 5, 19) else []),
        *(ended() if release >= (0, 5, 21) else []),
        *_mixins.manager(),
    ]
    fields = dict(_mixins.FIELDS)
    if release >= (0, 5, 15):
        fields |= _ALLOWED
    if release >= (0, 5, 20):
        fields |= DECLINED
    made = Design(
        number,
        release,
        hooks,
        fields,
        drafts=False,
        tokenizers=False,
        salts=release >= (0, 5, 18),
        beams=release >= (0, 5, 19),
        caches=(_hooks.RADIX, _hooks.UNIFIED) if release < (0, 5, 20) else (_hooks.UNIFIED,),
        buckets=False,
    )
    return made if release >= (0, 5, 14) else made._replace(breaks=_mixins.BREAKS)

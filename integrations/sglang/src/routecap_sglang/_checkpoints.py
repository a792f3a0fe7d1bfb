"""SGLang 0.5.22 and 0.5.23: a cache that takes checkpoints of requests.

There is one cache for all models. Plugins are loaded by the detokenizer too, which encodes rows.
The version of the weights is recorded by a function of its own.
"""

from __future__ import annotations

from . import _components, _hooks, _mixins
from ._hooks import Design, Hook
from ._settings import Release

FIRST, LAST = "0.5.22", "0.5.23"

FIELDS = {
    **_mixins.FIELDS,
    **_components.DECLINED,
    "sglang.srt.managers.utils.GenerationBatchResult": ("routed_experts_output", "accept_index"),
    "sglang.srt.layers.moe.topk.TopKConfig": ("allow_routed_experts_capture",),
    "sglang.srt.sampling.sampling_params.SamplingParams": ("custom_params", "beam_width"),
}


def drafts() -> list[Hook]:
    """Which of them were accepted."""
    return [
        Hook(
            _components.RESULTS + "_resolve_spec_v2_tokens",
            ("result", "batch"),
            _hooks.accept,
            "after",
        ),
        Hook("managers.utils.GenerationBatchResult.copy_to_cpu", (), _hooks.keep_paths, "before"),
        Hook(
            "speculative.spec_utils.move_accept_tokens_to_target_kvcache",
            ("batch", "accept_index"),
            _hooks.keep_moved_paths,
            "before",
        ),
        Hook(
            "speculative.ngram_worker.NGRAMWorker.forward_batch_generation",
            (),
            _hooks.carry_drafts,
            "after",
        ),
    ]


def design(number: str, release: Release) -> Design:
    weights = _components.WEIGHTS
    cache = "mem_cache.unified_radix_cache.UnifiedRadixCache."
    manager = "managers.tokenizer_manager.TokenizerManager."
    create, _, init_new = _mixins.capturer("state_capturer.routed_experts", _components.GIVEN)
    hooks = [
        create,
        init_new,
        *_components.results(),
        *drafts(),
        Hook(cache + "checkpoint", ("req",), _hooks.checkpoint, "around"),
        Hook(cache + "insert", ("params",), _hooks.inserted, "after"),
        Hook(cache + "reset", (), _hooks.flushed, "after"),
        *_components.storage(),
        *_mixins.sessions(),
        Hook(
            f"{weights}.record_weight_version_after_update",
            ("weight_version",),
            _hooks.updated,
            "around",
        ),
        Hook(
            f"{weights}.flush_cache_after_weight_update",
            ("recv_req", "success", "message"),
            _hooks.updated_in_part,
            "before",
        ),
        *_components.ended(),
        *_components.named(),
        Hook(
            "managers.detokenizer_manager.DetokenizerManager._b64_encode_per_request",
            ("data_list",),
            _hooks.encode_rows,
            "around",
        ),
        Hook(manager + "_validate_one_request", ("obj",), _hooks.check_request, "before"),
        Hook(manager + "_handle_batch_output", ("recv_obj",), _hooks.encode_in_place, "before"),
    ]
    return Design(number, release, hooks, FIELDS, buckets=release >= (0, 5, 23))

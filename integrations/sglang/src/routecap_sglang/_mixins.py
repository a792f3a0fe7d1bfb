"""SGLang 0.5.11 to 0.5.12.post1: a scheduler made of mixins.

A capturer is made if the server is to return routed experts, without the model. The cache takes
what is finished and what is not in two functions. The detokenizer has no plugins: it makes base64
of tickets, which the tokenizer manager takes apart. Weights are told of by the calls that load
them.
"""

from __future__ import annotations

from . import _hooks
from ._hooks import Design, Hook
from ._settings import Release

FIRST, LAST = "0.5.11", "0.5.12.post1"

BREAKS = f"model_executor.{_hooks.BREAKABLE}"  # until 0.5.13.post1
BATCH = "sglang.srt.model_executor.forward_batch_info.ForwardBatch"
FIELDS = {
    BATCH: (
        "forward_mode",
        "positions",
        "seq_lens_cpu",
        "extend_prefix_lens_cpu",
        "extend_seq_lens_cpu",
        "global_dp_buffer_len",
        "dp_padding_mode",
        "spec_info",
        "attn_cp_metadata",
    ),
    "sglang.srt.mem_cache.base_prefix_cache.InsertResult": ("prefix_len",),
    "sglang.srt.managers.io_struct.GenerateReqInput": ("return_routed_experts", "sampling_params"),
    "sglang.srt.managers.io_struct.BatchStrOutput": ("routed_experts",),
    "sglang.srt.managers.io_struct.BatchTokenIDOutput": ("routed_experts",),
}

_ENABLED = (
    "enable",
    "model_config",
    "num_fused_shared_experts",
    "num_tokens",
    "max_running_requests",
    "device",
)


def capturer(module: str, parameters: tuple[str, ...] = _ENABLED) -> list[Hook]:
    """Where a capturer is made, in this module, and told whose a pass is."""
    return [
        Hook(f"{module}.RoutedExpertsCapturer.create", parameters, _hooks.create, "around"),
        Hook(
            "model_executor.model_runner.ModelRunner.init_routed_experts_capturer",
            (),
            _hooks.around_runner,
            "around",
        ),
        Hook(
            "model_executor.forward_batch_info.ForwardBatch.init_new",
            ("batch",),
            _hooks.name_requests,
            "after",
        ),
    ]


def mixin() -> list[Hook]:
    return [
        Hook(
            "managers.scheduler_output_processor_mixin.SchedulerOutputProcessorMixin."
            "maybe_collect_routed_experts",
            ("req",),
            _hooks.collect,
            "around",
        )
    ]


def trees(*caches: str, finished: str = "cache_finished_req") -> list[Hook]:
    """What caches take of requests that have ended, and of others."""
    hooks = []
    for cache in caches:
        name = f"mem_cache.{cache}."
        hooks += [
            Hook(name + finished, ("req",), _hooks.checkpoint, "around"),
            Hook(name + "cache_unfinished_req", ("req",), _hooks.checkpoint, "around"),
            Hook(name + "insert", ("params",), _hooks.inserted, "after"),
            Hook(name + "reset", (), _hooks.flushed, "after"),
        ]
    return hooks


def weights(owner: str) -> list[Hook]:
    """The calls that load weights."""
    return [
        Hook(f"{owner}.update_weights_from_{source}", ("recv_req",), _hooks.updated_by, "around")
        for source in ("disk", "distributed", "tensor", "ipc")
    ]


def sessions() -> list[Hook]:
    session = "session.streaming_session.StreamingSession."
    return [
        Hook(session + "try_cache_finished_req", ("req",), _hooks.kept_by_session, "after"),
        Hook(session + "release_session", ("session_id",), _hooks.released_by_session, "after"),
    ]


def manager() -> list[Hook]:
    """Where requests come in, and the base64 of tickets goes out."""
    owner = "managers.tokenizer_manager.TokenizerManager."
    return [
        Hook(owner + "_validate_one_request", ("obj",), _hooks.check_request, "before"),
        Hook(owner + "_handle_batch_output", ("recv_obj",), _hooks.encode_tickets, "before"),
    ]


def design(number: str, release: Release) -> Design:
    late = release >= (0, 5, 12)
    module = "state_capturer.routed_experts" if late else "layers.moe.routed_experts_capturer"
    return Design(
        number,
        release,
        [
            *capturer(module),
            *mixin(),
            *trees("radix_cache.RadixCache", "unified_radix_cache.UnifiedRadixCache"),
            *weights("managers.scheduler_update_weights_mixin.SchedulerUpdateWeightsMixin"),
            *sessions(),
            *manager(),
        ],
        FIELDS,
        drafts=False,
        slices=late,
        tokenizers=False,
        salts=False,
        starts=late,
        beams=False,
        caches=(_hooks.RADIX, _hooks.UNIFIED),
        buckets=False,
        breaks=BREAKS,
    )

"""SGLang 0.5.10.post1: a scheduler made of mixins, and no plugins.

A capturer is always there, and is asked for rows by the slots that a request has. The tokenizer
manager makes base64 of what it gets. Weights are told of by the calls that load them.
"""

from __future__ import annotations

from . import _hooks, _mixins
from ._hooks import Design, Hook
from ._settings import Release

FIRST, LAST = "0.5.10.post1", "0.5.10.post1"


def design(number: str, release: Release) -> Design:
    session = "mem_cache.session_aware_cache.SessionAwareCache."
    manager = "managers.tokenizer_manager.TokenizerManager."
    hooks = [
        *_mixins.capturer("layers.moe.routed_experts_capturer"),
        *_mixins.trees("radix_cache.RadixCache"),
        *_mixins.mixin(),
        *_mixins.weights("managers.scheduler_update_weights_mixin.SchedulerUpdateWeightsMixin"),
        Hook(session + "cache_finished_req", ("req",), _hooks.kept_by_streaming_session, "after"),
        Hook(session + "release_session", ("session_id",), _hooks.released_by_session, "after"),
        Hook(manager + "_validate_one_request", ("obj",), _hooks.check_request, "before"),
        Hook(manager + "_handle_batch_output", ("recv_obj",), _hooks.encode_answers, "around"),
    ]
    return Design(
        number,
        release,
        hooks,
        fields={
            **_mixins.FIELDS,
            _mixins.BATCH: (*_mixins.FIELDS[_mixins.BATCH], "nsa_cp_metadata"),
        },
        plugins=False,
        drafts=False,
        slices=False,
        tokenizers=False,
        salts=False,
        starts=False,
        beams=False,
        caches=(_hooks.RADIX,),
        splits=("attn_cp_metadata", "nsa_cp_metadata"),
        buckets=False,
        breaks="",
    )

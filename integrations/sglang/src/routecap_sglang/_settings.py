"""What a server's arguments decide, where each release of SGLang keeps them."""

from __future__ import annotations

from typing import Any, NamedTuple

Release = tuple[int, ...]  # (0, 5, 10, 1) is 0.5.10.post1


class Settings(NamedTuple):
    """And where a process stands among the others.

    chunk: tokens of a chunk of a prefill; none or less if prefills are whole. most: of all prefills
        of a pass.
    drafts: tokens that a verification computes for a request, or 1. branches: for a position.
    ranks: that share a pass; of each attention group the rows are `sliced`, or `scattered` over it.
    divides: what divides a pass, so that a router sees a part of its rows that nobody names; "" if
        nothing does.
    group: rank and size of the attention group.
    apart: the detokenizer runs on another host.
    replica: of the whole engine, which one this is; None if SGLang does not say it.
    tokenizers: processes that take requests.
    host_tokens: that the cache has in host memory for each on the device.
    """

    enabled: bool
    chunk: int
    most: int
    algorithm: str
    drafts: int
    branches: int
    ranks: int
    divides: str
    group: tuple[int, int]
    sliced: bool
    scattered: bool
    apart: bool
    replica: int | None
    tokenizers: int
    host_tokens: float
    weight_version: str


def settings_of(release: Release) -> Settings:
    """Of the process that calls, once its ranks are known."""
    from sglang.srt.layers.dp_attention import is_dp_attention_enabled

    serving, schedule, spec, enabled = _parts(release)
    attention, scattered = is_dp_attention_enabled(), _is_scattered(release)
    if release < (0, 5, 16):
        from sglang.srt.layers import dp_attention

        group = dp_attention.get_attention_tp_rank(), dp_attention.get_attention_tp_size()
    else:
        from sglang.srt.runtime_context import get_parallel

        group = get_parallel().attn_tp_rank, get_parallel().attn_tp_size
    if release < (0, 5, 22):
        size = serving.dp_size if release < (0, 5, 17) else get_parallel().dp_size
        ranks = size if attention else 1
        replica = 0 if attention or size == 1 else None
    else:
        ranks = get_parallel().num_dp_ranks
        replica = 0 if attention else get_parallel().dp_rank or 0
    host = (serving.hicache_ratio or 4) if serving.enable_hierarchical_cache else 0
    version = serving.weight_version
    return Settings(
        enabled=enabled,
        chunk=schedule.chunked_prefill_size or 0,
        most=schedule.max_prefill_tokens or 0,
        algorithm=str(spec.speculative_algorithm or ""),
        drafts=spec.speculative_num_draft_tokens or 1,
        branches=spec.speculative_eagle_topk or 1,
        ranks=ranks,
        divides=_what_divides(release, serving, attention and not scattered),
        group=group,
        sliced=attention and not scattered,
        scattered=scattered,
        apart=serving.nnodes > 1 and serving.node_rank > 0,
        replica=replica,
        tokenizers=serving.tokenizer_worker_num,
        host_tokens=host,
        weight_version=version if version and version.isdecimal() else "",
    )


def _what_divides(release: Release, serving: Any, sliced: bool) -> str:
    from sglang.srt.layers.moe import get_moe_a2a_backend

    if serving.enable_two_batch_overlap:
        return "two-batch overlap"
    if release >= (0, 5, 19):  # before, a pass says it
        from sglang.srt.runtime_context import get_parallel

        if get_parallel().attn_cp_size > 1:
            return "context parallelism"
    if sliced and not (backend := get_moe_a2a_backend()).is_none():
        return f"data-parallel attention over the backend {backend.value}"
    return ""


def transfers(release: Release) -> bool:
    """Whether KV comes from another server now, or goes to one: prefills apart from decodes."""
    if release < (0, 5, 17):
        from sglang.srt.server_args import get_global_server_args as arguments
    else:
        from sglang.srt.runtime_context import get_disagg as arguments
    return bool(arguments().disaggregation_mode != "null")


def _parts(release: Release) -> tuple[Any, Any, Any, bool]:
    """The server's arguments; those of its schedule, and of drafts; whether it is to capture."""
    if release < (0, 5, 17):
        from sglang.srt.server_args import get_global_server_args

        serving = get_global_server_args()
        return serving, serving, serving, serving.enable_return_routed_experts
    from sglang.srt import runtime_context as runtime

    enabled = runtime.get_exec().features.enable_return_routed_experts
    return runtime.get_server_args(), runtime.get_schedule(), runtime.get_spec(), enabled


def _is_scattered(release: Release) -> bool:
    """Whether each rank of an attention group routes a part of its rows."""
    if release < (0, 5, 19):
        from sglang.srt.layers.moe import get_moe_a2a_backend

        return bool(get_moe_a2a_backend().is_deepep())
    from sglang.srt.state_capturer.routed_experts import _is_scattered_a2a_backend

    return bool(_is_scattered_a2a_backend())

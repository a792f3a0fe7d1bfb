"""The face to SGLang 0.5.23: what of it is hooked, each in one function.

In the scheduler's process:
    RoutedExpertsCapturer.create        gives ours, which SGLang keeps and calls as its own:
                                        `capture` in the routers, `on_forward_end` behind the pass
    ForwardBatch.init_new               says which requests a pass is of
    _maybe_collect_routed_experts       a request has ended: its ticket travels as its rows
    _resolve_spec_v2_tokens, copy_to_cpu, move_accept_tokens_to_target_kvcache,
    NGRAMWorker.forward_batch_generation  which drafts were accepted
    UnifiedRadixCache.checkpoint, insert, reset, clear_storage_backend;
    StreamingSession.try_cache_finished_req, release_session
                                        what the cache holds, and whose it is
    record_weight_version_after_update, flush_cache_after_weight_update, end_weight_update,
    record_weight_version_change        the weights are others now, or have another name
In the detokenizer's: _b64_encode_per_request. In the tokenizer manager's: _validate_one_request;
_handle_batch_output, for servers without a tokenizer, whose scheduler answers it.

What is hooked, and the fields that are read, are looked up before a capturer is made: where one is
not there, or has other parameters, SGLang's own capturer stays. What else is read is read by its
name alone, never with a value in its place.

Hooks fail softly: what one raises is logged once, capture ends, and the engine goes on. From then
on requests have no rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from ._answer import dtype_asked, encode
from ._capturer import NOBODYS, Batch, Capturer, Place
from ._delivery import fetch
from ._lives import session_of, tokens_of
from ._options import Options
from ._prefixes import pairs_of
from ._surface import check_fields, check_functions

logger = logging.getLogger("sglang.srt.routecap")

# Who verifies drafts one after another, unless there are several for a position. Of trees the path
# must be told, or their rows are missing.
_IN_CHAINS = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "DFLASH")

# Of RoutedExpertsCapturer.create.
_ARGUMENTS = ("model", "model_config", "num_tokens", "max_running_requests", "device")

# Fields that hooks and the capturer read of what SGLang gives them.
_FIELDS = {
    "sglang.srt.model_executor.forward_batch_info.ForwardBatch": (
        "forward_mode",
        "positions",
        "seq_lens_cpu",
        "extend_prefix_lens_cpu",
        "extend_seq_lens_cpu",
        "global_dp_buffer_len",
        "attn_cp_metadata",
    ),
    "sglang.srt.managers.utils.GenerationBatchResult": ("routed_experts_output", "accept_index"),
    "sglang.srt.mem_cache.base_prefix_cache.InsertResult": ("prefix_len", "rotation_tail_declined"),
    "sglang.srt.layers.moe.topk.TopKConfig": ("allow_routed_experts_capture",),
    "sglang.srt.managers.io_struct.GenerateReqInput": ("return_routed_experts", "sampling_params"),
    "sglang.srt.managers.io_struct.BatchStrOutput": ("routed_experts",),
    "sglang.srt.managers.io_struct.BatchTokenIDOutput": ("routed_experts",),
    "sglang.srt.sampling.sampling_params.SamplingParams": ("custom_params",),
}

_hooked: dict[str, tuple[str, ...]] = {}  # what is hooked, and its first parameters
_options = Options()
_capturer: SGLangCapturer | None = None


def register(options: Options) -> None:
    """Tell SGLang's registry of all hooks, once in a process."""
    global _options
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    _options = options
    if _hooked:
        return
    scheduler = "managers.scheduler_components."
    results = scheduler + "batch_result_processor.SchedulerBatchResultProcessor."
    weights = scheduler + "weight_updater.SchedulerWeightUpdaterManager."
    cache = "mem_cache.unified_radix_cache.UnifiedRadixCache."
    session = "session.streaming_session.StreamingSession."
    hooks: list[tuple[str, tuple[str, ...], Callable[..., Any], HookType]] = [
        (
            "state_capturer.routed_experts.RoutedExpertsCapturer.create",
            _ARGUMENTS,
            create,
            HookType.AROUND,
        ),
        (
            "model_executor.forward_batch_info.ForwardBatch.init_new",
            ("batch",),
            name_requests,
            HookType.AFTER,
        ),
        (results + "_maybe_collect_routed_experts", ("req",), collect, HookType.AROUND),
        (results + "_resolve_spec_v2_tokens", ("result", "batch"), accept, HookType.AFTER),
        ("managers.utils.GenerationBatchResult.copy_to_cpu", (), keep_paths, HookType.BEFORE),
        (
            "speculative.spec_utils.move_accept_tokens_to_target_kvcache",
            ("batch", "accept_index"),
            keep_moved_paths,
            HookType.BEFORE,
        ),
        (
            "speculative.ngram_worker.NGRAMWorker.forward_batch_generation",
            (),
            carry_drafts,
            HookType.AFTER,
        ),
        (cache + "checkpoint", ("req",), checkpoint, HookType.AROUND),
        (cache + "insert", ("params",), inserted, HookType.AFTER),
        (cache + "reset", (), flushed, HookType.AFTER),
        (cache + "clear_storage_backend", (), storage_cleared, HookType.AFTER),
        (session + "try_cache_finished_req", ("req",), kept_by_session, HookType.AFTER),
        (session + "release_session", ("session_id",), released_by_session, HookType.AFTER),
        (
            weights + "record_weight_version_after_update",
            ("weight_version",),
            updated,
            HookType.AROUND,
        ),
        (
            weights + "flush_cache_after_weight_update",
            ("recv_req", "success", "message"),
            updated_in_part,
            HookType.BEFORE,
        ),
        (weights + "end_weight_update", ("recv_req",), updated_from_outside, HookType.BEFORE),
        (
            "managers.scheduler.Scheduler.record_weight_version_change",
            ("new_version",),
            named,
            HookType.AFTER,
        ),
        (
            "managers.detokenizer_manager.DetokenizerManager._b64_encode_per_request",
            ("data_list",),
            encode_rows,
            HookType.AROUND,
        ),
        (
            "managers.tokenizer_manager.TokenizerManager._validate_one_request",
            ("obj",),
            check_request,
            HookType.BEFORE,
        ),
        (
            "managers.tokenizer_manager.TokenizerManager._handle_batch_output",
            ("recv_obj",),
            encode_in_place,
            HookType.BEFORE,
        ),
    ]
    for name, parameters, hook, kind in hooks:
        target = f"sglang.srt.{name}"
        _hooked[target] = parameters
        HookRegistry.register(target, hook, kind)


# ---- The capturer


def _make(
    own: Any, model: Any, model_config: Any, num_tokens: int, max_requests: int, device: str
) -> SGLangCapturer:
    import torch
    from sglang.srt import runtime_context as runtime
    from sglang.srt.layers.dp_attention import is_dp_attention_enabled
    from sglang.srt.state_capturer.routed_experts import _is_scattered_a2a_backend

    schedule, parallel = runtime.get_schedule(), runtime.get_parallel()
    spec = runtime.get_spec()
    drafts = spec.speculative_num_draft_tokens or 1
    one_each = (spec.speculative_eagle_topk or 1) == 1
    in_chains = one_each and str(spec.speculative_algorithm) in _IN_CHAINS
    prefill = schedule.chunked_prefill_size or 0
    if prefill <= 0:  # not in chunks
        prefill = model_config.context_len
    prefill = max(prefill, schedule.max_prefill_tokens or 0)
    rows = (prefill + max_requests * drafts) * parallel.num_dp_ranks
    where = torch.device(device)
    if where.type == "cuda":
        where = torch.device("cuda", torch.cuda.current_device())
    serving = runtime.get_server_args()
    scattered = _is_scattered_a2a_backend()
    place = Place(
        owner=parallel.attn_tp_rank == 0,
        scattered=scattered,
        sliced=is_dp_attention_enabled() and not scattered,
        apart=serving.nnodes > 1 and serving.node_rank > 0,
        replica=0 if is_dp_attention_enabled() else parallel.dp_rank or 0,
    )
    capturer = SGLangCapturer(
        model,
        model_config.hf_text_config,
        routers=_routers_of(model),
        rows=rows,
        cached_tokens=num_tokens + _host_tokens(serving, num_tokens),
        max_requests=max_requests,
        max_tokens=model_config.context_len + 2 * drafts,
        device=where,
        place=place,
        options=_options,
        own=own,
        model_name=_model_name(serving),
        weight_version=_number(serving.weight_version),
    )
    capturer.drafts_in_chains = in_chains
    return capturer


def _routers_of(model: Any) -> set[int]:
    """The layers whose routers give their ids to a capturer."""
    from sglang.srt.layers.moe.topk import TopK

    found = [module for module in model.modules() if isinstance(module, TopK)]
    allowed = [each for each in found if each.topk_config.allow_routed_experts_capture]
    return {each.layer_id for each in allowed if each.layer_id is not None}


# What of a server's arguments decides the weights, and how a pass computes with them and with KV.
_MODEL = (
    "model_path",
    "revision",
    "json_model_override_args",
    "load_format",
    "dtype",
    "quantization",
    "kv_cache_dtype",
)


def _model_name(serving: Any) -> str:
    return repr([str(getattr(serving, name)) for name in _MODEL])


def _number(version: str | None) -> str:
    """A version of weights that is a number; "" for others: the server's is "default"."""
    return version if version and version.isdecimal() else ""


def _host_tokens(serving: Any, device_tokens: int) -> int:
    """About how many tokens the cache holds in host memory (HiCache)."""
    if not serving.enable_hierarchical_cache:
        return 0
    return int(device_tokens * (serving.hicache_ratio or 4))


def create(original: Callable[..., Any], **kwargs: Any) -> Any:
    """Ours, if the server was started to return routed experts or has somewhere to put them."""
    global _capturer
    from sglang.srt.runtime_context import get_exec

    enabled = get_exec().features.enable_return_routed_experts
    if not enabled:
        if _options.callback or _options.folder or _options.store or _options.metrics_port:
            logger.warning(
                "routed experts: give --enable-return-routed-experts: without it SGLang may choose "
                "kernels that hide what they route, and such layers would be missing"
            )
        else:
            return original(**kwargs)
    own = original(**kwargs) if _options.beside else None
    try:
        check_functions(_hooked)
        check_fields(_FIELDS)
        _capturer = _make(own, *(kwargs[name] for name in _ARGUMENTS))
    except Exception:
        logger.exception("routed experts: routecap cannot capture here; SGLang's own does")
        _capturer = None
        return own or original(**kwargs)
    # Here, where the process has set up its log: when plugins are loaded it may not have.
    logger.info("routecap captures routed experts in SGLang 0.5.23: %r", _capturer.capturer)
    return _capturer


class SGLangCapturer(Capturer):
    """With the methods that SGLang calls."""

    verifying: Issued | None = None  # the last pass, if it verified drafts
    settling: Issued | None = None  # whose results are being processed
    drafts_in_chains = False

    def capture(self, layer_id: int, topk_indices: Any) -> None:
        if self.own is not None:
            self.own.capture(layer_id=layer_id, topk_indices=topk_indices)
        if self.place.scattered:  # all ranks do, whatever has failed in one
            topk_indices = _gathered(topk_indices)
        self.softly(self.route, layer_id, topk_indices)

    def on_forward_end(
        self,
        forward_batch: Any,
        can_run_graph: bool,
        cuda_graph_batch: int | None,
        no_copy_to_cpu: bool = False,
    ) -> Issued | None:
        own = None
        if self.own is not None:
            own = self.own.on_forward_end(
                forward_batch, can_run_graph, cuda_graph_batch, no_copy_to_cpu
            )
        issued = self.softly(_issue, self, forward_batch, can_run_graph, cuda_graph_batch)
        if own is not None:
            issued = issued or Issued(self, None, 0)
            issued.own = own
        self.verifying = issued
        return issued  # type: ignore[no-any-return]

    def get_topk(self, *args: Any, **kwargs: Any) -> Any:
        return None if self.own is None else self.own.get_topk(*args, **kwargs)

    def destroy(self) -> None:
        self.close()
        if self.own is not None:
            self.own.destroy()


class Issued:
    """What SGLang carries beside a pass to where its results are processed.

    step: None if its rows are nobody's, or no drafts. each: rows of a request.
    """

    def __init__(self, capturer: SGLangCapturer, step: Any, each: int) -> None:
        self.capturer, self.step, self.each = capturer, step, each
        self.own: Any = None  # what SGLang's own carries
        self.paths: Any = None  # of a tree of drafts: its accepted ones, first on the device

    def map_device_tensors(self, copy: Callable[[Any], Any]) -> None:
        if self.own is not None:
            self.own.map_device_tensors(copy)
        if self.paths is not None:
            self.paths = copy(self.paths)

    def finalize(self) -> None:
        if self.own is not None:
            self.own.finalize()
        self.capturer.settling = self


def _gathered(ids: Any) -> Any:
    """The ids of the whole pass, of which each rank of an attention group routes a part."""
    import torch
    from sglang.srt.layers.dp_attention import attn_tp_all_gather_into_tensor
    from sglang.srt.runtime_context import get_parallel

    size = get_parallel().attn_tp_size
    if size == 1:
        return ids
    whole = torch.empty((len(ids) * size, ids.shape[1]), dtype=ids.dtype, device=ids.device)
    attn_tp_all_gather_into_tensor(whole, ids.contiguous())
    return whole


def _issue(
    capturer: SGLangCapturer, forward_batch: Any, in_graph: bool, graph_requests: int | None
) -> Issued | None:
    batch = batch_of(forward_batch, capturer.place, in_graph, graph_requests)
    step = capturer.issue(batch)
    if step is None or batch.kind != "verify":
        return None
    return Issued(capturer, step, batch.counts)


def batch_of(forward_batch: Any, place: Place, in_graph: bool, graph_requests: int | None) -> Batch:
    """What SGLang says of a pass. Looks at nothing on the device."""
    mode = forward_batch.forward_mode
    # Passes that are made to warm up or to capture a graph have no requests.
    requests = getattr(forward_batch, "routecap", None) or []
    split = forward_batch.attn_cp_metadata is not None
    if not requests or mode.is_idle() or split or mode.is_dllm_extend():
        return NOBODYS
    verify, decode = mode.is_target_verify(), mode.is_decode()
    each = len(forward_batch.positions) // len(requests) if verify else 1
    padded = graph_requests * each if graph_requests and (verify or decode) else None
    sink_row = _first_row(forward_batch, in_graph, padded) if place.sliced else 0
    if sink_row is None:
        return NOBODYS
    if verify or decode and forward_batch.seq_lens_cpu is None:
        positions = forward_batch.positions
        if sink_row:
            import torch

            positions = torch.nn.functional.pad(positions, (sink_row, 0))
        kind = "verify" if verify else "decode"
        return Batch(kind, requests, sink_row, None, each, positions)
    if decode:
        return Batch("decode", requests, sink_row, forward_batch.seq_lens_cpu.numpy() - 1)
    firsts, counts = forward_batch.extend_prefix_lens_cpu, forward_batch.extend_seq_lens_cpu
    return Batch("prefill", requests, sink_row, list(firsts), list(counts))


def _first_row(forward_batch: Any, in_graph: bool, padded: int | None) -> int | None:
    """Where a slice begins among the rows that the routers saw; None if that is not known.

    padded: how many rows each rank has in a graph. Nobody says it of a prefill's.
    """
    from sglang.srt.layers.dp_attention import get_dp_local_slice_cpu

    if in_graph and padded is None:
        return None
    return int(get_dp_local_slice_cpu(forward_batch, in_graph, padded)[0])


# ---- Requests


def name_requests(forward_batch: Any, cls: Any, batch: Any, *args: Any, **kwargs: Any) -> None:
    if _capturer is not None:
        forward_batch.routecap = _capturer.softly(lambda: batch.reqs)


def collect(original: Callable[..., Any], processor: Any, req: Any) -> None:
    capturer = _capturer
    if capturer is None or capturer.own is not None or capturer.failed:
        original(processor, req)
    if capturer is not None:
        capturer.softly(_collect, capturer, req)


def _collect(capturer: SGLangCapturer, request: Any) -> None:
    try:
        ticket = capturer.finish(request)
    except ValueError as error:  # it asks for what there is not
        logger.error("routed experts of request %s: %s", request.rid, error)
        return
    if ticket is not None:
        import torch

        request.routed_experts = torch.from_numpy(ticket)


def accept(tokens: list[Any], processor: Any, result: Any, batch: Any) -> None:
    if _capturer is not None and (issued := _capturer.settling) is not None:
        _capturer.settling = None
        if issued.step is not None:
            _capturer.softly(_accept, _capturer, issued, batch, tokens)


def _accept(capturer: SGLangCapturer, issued: Issued, batch: Any, tokens: list[Any]) -> None:
    kept = [len(each) for each in tokens]
    paths = None if issued.paths is None else issued.paths.cpu().numpy()
    if paths is None and not capturer.drafts_in_chains:
        kept = [0] * len(kept)
    capturer.accept(issued.step, batch.reqs, kept, paths, issued.each)


def keep_paths(result: Any, *args: Any, **kwargs: Any) -> None:
    """Of a tree of drafts, which nodes were accepted: copied with the other results."""
    if _capturer is not None:
        _capturer.softly(_keep_path_of, result)


def _keep_path_of(result: Any) -> None:
    issued = result.routed_experts_output
    if isinstance(issued, Issued):
        _keep_paths(issued, result.accept_index)


def keep_moved_paths(batch: Any, accept_index: Any, *args: Any, **kwargs: Any) -> None:
    """The same where the result does not say it: their KV is moved to where it would be without
    the other drafts."""
    if _capturer is not None and _capturer.verifying is not None:
        _keep_paths(_capturer.verifying, accept_index)


def _keep_paths(issued: Issued, index: Any) -> None:
    if index is not None and issued.step is not None and not issued.capturer.drafts_in_chains:
        issued.paths = index


def carry_drafts(result: Any, worker: Any, *args: Any, **kwargs: Any) -> None:
    """Of n-gram drafts SGLang drops what its capturer gives it to carry."""
    if _capturer is not None:
        _capturer.softly(_carry_drafts, _capturer, result)


def _carry_drafts(capturer: SGLangCapturer, result: Any) -> None:
    if result.routed_experts_output is None:
        result.routed_experts_output = capturer.verifying


_updating = False  # what is named now are new weights


def updated(original: Callable[..., Any], updater: Any, weight_version: str | None = None) -> Any:
    """The weights are others now."""
    global _updating
    _updating = True
    try:
        return original(updater, weight_version)
    finally:
        _updating = False
        _other_weights(weight_version)


def _other_weights(version: str | None) -> None:
    if _capturer is not None:
        _capturer.softly(_capturer.set_weight_version, version)


def updated_in_part(updater: Any, recv_req: Any, success: bool, message: str) -> None:
    """The weights are others, but not those of the drafts: SGLang keeps the former version."""
    if not success:
        _other_weights(None)


def updated_from_outside(updater: Any, recv_req: Any) -> None:
    """A session of updates ends in which SGLang loaded nothing: somebody else wrote the weights, or
    a part of them could not be loaded."""
    if _capturer is not None and _capturer.softly(_loaded_nothing, updater):
        _other_weights(None)


def _loaded_nothing(updater: Any) -> bool:
    session = updater._session
    return session is not None and not bool(session.loaded_weights)


def named(result: Any, scheduler: Any, new_version: str | None = None) -> None:
    """By a call behind those of all its parts, or of weights that are written from outside."""
    if new_version is None or _updating or _capturer is None:
        return
    if new_version != _capturer.weight_version:
        _other_weights(new_version)


# ---- The cache

_checkpointing: Any = None  # the request whose KV the cache is taking


def checkpoint(original: Callable[..., Any], cache: Any, req: Any, **kwargs: Any) -> Any:
    global _checkpointing
    _checkpointing = req
    try:
        return original(cache, req, **kwargs)
    finally:
        _checkpointing = None


def inserted(result: Any, cache: Any, params: Any) -> None:
    if _capturer is not None:
        _capturer.softly(_inserted, _capturer, cache, _checkpointing, params, result)


def _inserted(capturer: SGLangCapturer, cache: Any, request: Any, params: Any, result: Any) -> None:
    """The cache takes whole pages, and tells them by tokens, or by pairs of these. Without a request
    it took them from elsewhere."""
    if cache.disable or result.rotation_tail_declined:
        return
    key = params.key
    capturer.follow(_followed(cache), _outside(cache))
    first, page = result.prefix_len, cache.page_size
    tokens = tokens_of(key.token_ids)
    if key.is_bigram:
        tokens = pairs_of(tokens)
    tokens, scope = tokens[: len(key) // page * page], (key.extra_key, key.cache_salt)
    if request is None:
        capturer.prefixes.forget(scope, tokens, first)
    else:
        capturer.cached(request, scope, tokens, first, page)


def _followed(cache: Any) -> bool:
    """Whether the cache keeps what it takes, as it was taken, until it evicts it. With a window or
    a state beside it, in host memory, or where KV comes from elsewhere, a place in the tree may get
    KV that was computed later, which nobody tells."""
    from sglang.srt.runtime_context import get_disagg

    kinds = [kind.name for kind in cache.tree_components]
    alone = cache.cache_controller is None and get_disagg().disaggregation_mode == "null"
    return kinds == ["FULL"] and alone and not _outside(cache)


def _outside(cache: Any) -> bool:
    """Whether it gets KV that a flush does not reach: of a storage backend, or another's cache."""
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

    known = type(cache) is UnifiedRadixCache
    return not known or cache.linker is not None or bool(cache.enable_storage)


def kept_by_session(kept: bool, session: Any, req: Any) -> None:
    """A streaming session keeps the KV of its last turn, outside of the tree."""
    if _capturer is not None:
        _capturer.softly(_kept_by_session, _capturer, req, kept)


def _kept_by_session(capturer: SGLangCapturer, request: Any, kept: bool) -> None:
    """If it was aborted, the session has nothing any more, and begins with the tree again."""
    scope = session_of(request)
    if scope is None:
        return
    capturer.prefixes.forget(scope)
    if kept:
        tokens = tokens_of(request.origin_input_ids + request.output_ids_through_stop)
        capturer.cached(request, scope, tokens, 0)


def released_by_session(result: Any, sessions: Any, session_id: str) -> None:
    if _capturer is not None:
        _capturer.softly(_capturer.prefixes.forget, ("session", session_id))


def flushed(result: Any, cache: Any) -> None:
    if _capturer is not None:
        _capturer.softly(_capturer.flushed)


def storage_cleared(cleared: bool, cache: Any) -> None:
    """A flush behind it leaves nothing that is older."""
    if cleared and _capturer is not None:
        _capturer.storage_cleared = True


# ---- The other processes


def check_request(manager: Any, obj: Any, *args: Any) -> None:
    """Refuses what nobody could answer.

    Raises:
        ValueError: Which SGLang tells the client.
    """
    if not _options.beside and getattr(obj, "return_routed_experts", False):  # not an embedding's
        dtype_asked(obj.sampling_params)


def encode_rows(original: Callable[..., Any], data_list: list[Any] | None) -> Any:
    """Base64 of what each request asked for; other tensors are SGLang's."""
    if data_list is None:
        return None
    return [_encode(original, each) for each in data_list]


def _encode(original: Callable[..., Any], tensor: Any) -> Any:
    if tensor is None:
        return None
    try:
        found = fetch(tensor.numpy()) if tensor.element_size() == 1 else None
        return original([tensor])[0] if found is None else encode(*found)
    except Exception:
        logger.exception("routed experts of a request are lost on their way")
        return None


def encode_in_place(manager: Any, recv_obj: Any) -> None:
    rows = getattr(recv_obj, "routed_experts", None)  # embeddings have none
    if rows and any(each is not None and not isinstance(each, str) for each in rows):
        recv_obj.routed_experts = encode_rows(_as_they_are, rows)


def _as_they_are(tensors: list[Any]) -> list[Any]:
    return tensors

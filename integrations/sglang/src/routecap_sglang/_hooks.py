"""What is hooked in SGLang, each in one function. A module of a design says where.

In the scheduler's process:
    RoutedExpertsCapturer.create        gives ours, which SGLang keeps and calls as its own:
                                        `capture` in the routers, `on_forward_end` behind the pass
    ForwardBatch.init_new               says which requests a pass is of
    _post_process_topk_ids              the weights of a router, if they are wanted
    _maybe_collect_routed_experts       a request has ended: its ticket travels as its rows
    _resolve_spec_v2_tokens, copy_to_cpu, move_accept_tokens_to_target_kvcache,
    NGRAMWorker.forward_batch_generation  which drafts were accepted
    the cache's checkpoint, insert, reset, clear_storage_backend; a session's
    try_cache_finished_req, release_session
                                        what the cache holds, and whose it is
    the weights' updates                the weights are others now, or have another name
In the detokenizer's, or in the tokenizer manager's: rows that were fetched, as they were asked for.

What is hooked, and the fields that are read, are looked up before a capturer is made: where one is
not there, or has other parameters, SGLang's own capturer stays. What else is read is read by its
name alone, never with a value in its place.

Hooks fail softly: what one raises is logged once, capture ends, and the engine goes on. From then
on requests have no rows.
"""

from __future__ import annotations

import base64
import logging
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from routecap import Step

from ._answer import dtype_asked, encode
from ._batch import batch_of
from ._capturer import Capturer, Place
from ._delivery import fetch
from ._lives import session_of, tokens_of
from ._options import Options
from ._prefixes import pairs_of
from ._routed import FUNCTION, PARAMETERS, around_ids, gathered, weights_given
from ._settings import Release, Settings, settings_of, transfers
from ._surface import check

logger = logging.getLogger("sglang.srt.routecap")

# Who verifies drafts one after another, unless there are several for a position. Of trees the path
# must be told, or their rows are missing.
_IN_CHAINS = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "DFLASH")

RADIX = "sglang.srt.mem_cache.radix_cache.RadixCache"
UNIFIED = "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache"
BREAKABLE = "breakable_cuda_graph.context.is_in_breakable_cuda_graph"


class Hook(NamedTuple):
    """target: of SGLang's, behind `sglang.srt.`. parameters: with which it begins, without self.
    kind: "before", "after" or "around", as SGLang's registry of hooks has them."""

    target: str
    parameters: tuple[str, ...]
    function: Callable[..., Any]
    kind: str


class Design(NamedTuple):
    """What a release of SGLang has where.

    fields: classes by their whole names, and what is read of each.
    plugins: whether SGLang loads them.
    drafts: whether the path of accepted drafts is told.
    slices: whether the host knows a rank's slice of a pass.
    tokenizers: whether rows are encoded elsewhere than in the process that took the request.
    salts: whether the cache tells a salt from an adapter.
    starts: whether a request may begin behind its first row.
    beams: whether a request may be a beam search.
    caches: classes of caches that are followed.
    splits: fields of a pass that say that its rows are divided over ranks.
    buckets: whether a prefill is padded to the size of its graph before it says how many rows each
        rank has.
    breaks: a function of SGLang's, behind `sglang.srt.`: whether a graph may end within the pass
        that it captures. "" where none does.
    """

    number: str
    release: Release
    hooks: list[Hook]
    fields: Mapping[str, tuple[str, ...]]
    plugins: bool = True
    drafts: bool = True
    slices: bool = True
    tokenizers: bool = True
    salts: bool = True
    starts: bool = True
    beams: bool = True
    caches: tuple[str, ...] = (UNIFIED,)
    splits: tuple[str, ...] = ("attn_cp_metadata",)
    buckets: bool = True
    breaks: str = f"model_executor.runner_backend_utils.{BREAKABLE}"

    def with_weights(self) -> Design:
        """Which hooks the weights of routers too."""
        hook = Hook(FUNCTION, PARAMETERS, around_ids, "around")
        return self._replace(hooks=[*self.hooks, hook])

    @property
    def functions(self) -> dict[str, tuple[str, ...]]:
        read: dict[str, tuple[str, ...]] = {f"sglang.srt.{self.breaks}": ()} if self.breaks else {}
        return read | {f"sglang.srt.{each.target}": each.parameters for each in self.hooks}

    def why_not(self, settings: Settings, options: Options) -> str:
        """Why SGLang's own capturer stays in a process with these settings; "" if it need not."""
        if settings.algorithm and not self.drafts:
            return "speculative decoding is captured from SGLang 0.5.22 on"
        if settings.sliced and not self.slices:
            return "data-parallel attention is captured from SGLang 0.5.12 on"
        if settings.divides:
            return f"{settings.divides} divides a pass, and nothing says which rows a router sees"
        if settings.tokenizers > 1 and not self.tokenizers:
            return "several tokenizer workers are served from SGLang 0.5.22 on"
        if settings.replica is None and options.metrics_port:
            return "metrics of several replicas are served from SGLang 0.5.22 on"
        return ""


_options = Options()
_design: Design | None = None
_capturer: SGLangCapturer | None = None
_model: Any = None  # that of the runner that makes a capturer


def register(design: Design, options: Options, apply: Callable[[Hook], None]) -> None:
    """Hook all that a design names, once in a process."""
    global _options, _design
    _options = options
    if _design is None:
        _design = design
        for hook in design.hooks:
            apply(hook)


def design() -> Design:
    assert _design is not None, "nothing is hooked"
    return _design


# ---- The capturer


def around_runner(original: Callable[..., Any], runner: Any) -> Any:
    """A capturer is made for this runner's model."""
    global _model
    _model = runner.model
    try:
        return original(runner)
    finally:
        _model = None


def _make(own: Any, settings: Settings, model: object, given: Mapping[str, Any]) -> SGLangCapturer:
    import torch

    model_config, max_requests = given["model_config"], given["max_running_requests"]
    chunk = settings.chunk if settings.chunk > 0 else model_config.context_len
    rows = (max(chunk, settings.most) + max_requests * settings.drafts) * settings.ranks
    where = torch.device(given["device"])
    if where.type == "cuda":
        where = torch.device("cuda", torch.cuda.current_device())
    rank, size = settings.group
    place = Place(
        owner=rank == 0,
        scattered=settings.scattered,
        sliced=settings.sliced,
        apart=settings.apart,
        replica=settings.replica or 0,
    )
    capturer = SGLangCapturer(
        model,
        model_config.hf_text_config,
        routers=_routers_of(model),
        fused=_fused_in(model, given),
        rows=rows,
        cached_tokens=int(given["num_tokens"] * (1 + settings.host_tokens)),
        max_requests=max_requests,
        max_tokens=model_config.context_len + 2 * settings.drafts,
        device=where,
        place=place,
        options=_options,
        own=own,
        salts=design().salts,
        starts=design().starts,
        beams=design().beams,
        breaks=_breaks(),
        weight_version=settings.weight_version,
    )
    capturer.group_size = size
    capturer.drafts_in_chains = settings.branches == 1 and settings.algorithm in _IN_CHAINS
    return capturer


def _routers_of(model: Any) -> set[int]:
    """The layers whose routers give their ids to a capturer."""
    from sglang.srt.layers.moe.topk import TopK

    found = [module for module in model.modules() if isinstance(module, TopK)]
    if design().release >= (0, 5, 15):
        found = [each for each in found if each.topk_config.allow_routed_experts_capture]
    return {each.layer_id for each in found if each.layer_id is not None}


def _fused_in(model: Any, given: Mapping[str, Any]) -> int:
    """How many shared experts a router may choose behind the k-th, always the same ones."""
    if "num_fused_shared_experts" in given:
        return int(given["num_fused_shared_experts"])
    if design().release >= (0, 5, 23):
        return int(model.shared_experts_config.num_fused_shared_experts)
    return int(getattr(model, "num_fused_shared_experts", 0))  # most models have none


def _breaks() -> Callable[[], bool | None]:
    """Whether a graph may end within the pass that it captures."""
    name = design().breaks
    found: Callable[[], bool] = pkgutil.resolve_name(f"sglang.srt.{name}") if name else bool
    return found


def create(original: Callable[..., Any], **kwargs: object) -> Any:
    """Ours, if the server was started to return routed experts or has somewhere to put them."""
    global _capturer
    own = None
    try:
        settings = settings_of(design().release)
        if not settings.enabled:
            if not (_options.callback or _options.folder or _options.metrics_port):
                return original(**kwargs)
            logger.warning(
                "routed experts: give --enable-return-routed-experts: without it SGLang may choose "
                "kernels that hide what they route, and such layers would be missing"
            )
        if why := design().why_not(settings, _options):
            logger.error("routed experts: SGLang's own capturer stays: %s", why)
            return original(**kwargs)
        own = original(**kwargs) if _options.beside else None
        check(design().functions, design().fields)
        _capturer = _make(own, settings, kwargs.get("model") or _model, kwargs)
    except Exception:
        logger.exception("routed experts: routecap cannot capture here; SGLang's own does")
        _capturer = None
        return own or original(**kwargs)
    # Here, where the process has set up its log: when plugins are loaded it may not have.
    logger.info(
        "routecap captures routed experts in SGLang %s: %r", design().number, _capturer.capturer
    )
    return _capturer


class SGLangCapturer(Capturer):
    """With the methods that SGLang calls."""

    verifying: Issued | None = None  # the last pass, if it verified drafts
    settling: Issued | None = None  # whose results are being processed
    drafts_in_chains = False
    group_size = 1  # of the attention group

    def capture(
        self, layer_id: int, topk_indices: Any = None, topk_ids: Any = None
    ) -> None:  # the last until 0.5.11
        if self.own is not None:
            chosen = {"topk_indices": topk_indices} if topk_ids is None else {"topk_ids": topk_ids}
            self.own.capture(layer_id=layer_id, **chosen)
        ids = topk_indices if topk_ids is None else topk_ids
        weights = weights_given()
        if self.place.scattered:  # all ranks do, whatever has failed in one
            ids = gathered(ids, self.group_size)
            weights = None if weights is None else gathered(weights, self.group_size)
        self.softly(self.route, layer_id, ids, weights)

    def on_forward_end(
        self,
        forward_batch: Any,
        can_run_graph: bool,
        cuda_graph_batch: int | None,
        **more: Any,
    ) -> Any:
        own = None
        if self.own is not None:
            own = self.own.on_forward_end(forward_batch, can_run_graph, cuda_graph_batch, **more)
        self.verifying = issued = self.softly(
            _issue, self, forward_batch, can_run_graph, cuda_graph_batch
        )
        if issued is None:
            return own
        issued.own = own
        return issued

    def get_topk(self, *args: Any, **kwargs: Any) -> Any:
        return None if self.own is None else self.own.get_topk(*args, **kwargs)

    def get_routed_experts(self, *args: Any, **kwargs: Any) -> Any:
        """The same, until 0.5.11."""
        return None if self.own is None else self.own.get_routed_experts(*args, **kwargs)

    def destroy(self) -> None:
        self.close()
        if self.own is not None:
            self.own.destroy()


class Issued:
    """What SGLang carries beside a pass to where its results are processed.

    step: a verification of drafts. each: its rows of a request.
    """

    def __init__(self, capturer: SGLangCapturer, step: Step | None, each: int) -> None:
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


def _issue(
    capturer: SGLangCapturer, forward_batch: object, in_graph: bool, graph_requests: int | None
) -> Issued | None:
    known = design()
    batch = batch_of(
        forward_batch, capturer.place, known.splits, known.buckets, in_graph, graph_requests
    )
    step = capturer.issue(batch)
    if step is None or batch.kind != "verify":
        return None
    return Issued(capturer, step, batch.counts)


# ---- Requests


def name_requests(forward_batch: Any, cls: Any, batch: Any, *args: Any, **kwargs: object) -> None:
    if _capturer is not None:
        forward_batch.routecap = _capturer.softly(lambda: batch.reqs)


def collect(original: Callable[..., Any], processor: object, req: object) -> None:
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


def accept(tokens: list[Any], processor: Any, result: Any, batch: object) -> None:
    if _capturer is not None and (issued := _capturer.settling) is not None:
        _capturer.settling = None
        if issued.step is not None:
            _capturer.softly(_accept, _capturer, issued, batch, tokens)


def _accept(capturer: SGLangCapturer, issued: Issued, batch: Any, tokens: list[Any]) -> None:
    assert issued.step is not None
    kept = [len(each) for each in tokens]
    paths = None if issued.paths is None else issued.paths.cpu().numpy()
    if paths is None and not capturer.drafts_in_chains:
        kept = [0] * len(kept)
    capturer.accept(issued.step, batch.reqs, kept, paths, issued.each)


def keep_paths(result: object, *args: object, **kwargs: object) -> None:
    """Of a tree of drafts, which nodes were accepted: copied with the other results."""
    if _capturer is not None:
        _capturer.softly(_keep_path_of, result)


def _keep_path_of(result: Any) -> None:
    issued = result.routed_experts_output
    if isinstance(issued, Issued):
        _keep_paths(issued, result.accept_index)


def keep_moved_paths(batch: object, accept_index: object, *args: object, **kwargs: object) -> None:
    """The same where the result does not say it: their KV is moved to where it would be without
    the other drafts."""
    if _capturer is not None and _capturer.verifying is not None:
        _keep_paths(_capturer.verifying, accept_index)


def _keep_paths(issued: Issued, index: object) -> None:
    if index is not None and issued.step is not None and not issued.capturer.drafts_in_chains:
        issued.paths = index


def carry_drafts(result: object, worker: object, *args: object, **kwargs: object) -> None:
    """Of n-gram drafts SGLang drops what its capturer gives it to carry."""
    if _capturer is not None:
        _capturer.softly(_carry_drafts, _capturer, result)


def _carry_drafts(capturer: SGLangCapturer, result: Any) -> None:
    if result.routed_experts_output is None:
        result.routed_experts_output = capturer.verifying


_updating = False  # what is named now are new weights


def updated(
    original: Callable[..., Any], updater: object, weight_version: str | None = None
) -> Any:
    """The weights are others now."""
    global _updating
    _updating = True
    try:
        return original(updater, weight_version)
    finally:
        _updating = False
        _other_weights(weight_version)


def updated_by(original: Callable[..., Any], updater: Any, recv_req: Any) -> Any:
    """A call of SGLang's that loads weights; if it fails, a part of them may be others."""
    global _updating
    _updating, version = True, None
    try:
        answer = original(updater, recv_req)
        version = recv_req.weight_version if answer.success else None
        return answer
    finally:
        _updating = False
        _other_weights(version)


def _other_weights(version: str | None) -> None:
    if _capturer is not None:
        _capturer.softly(_capturer.set_weight_version, version)


def updated_in_part(updater: object, recv_req: object, success: bool, message: str) -> None:
    """The weights are others, but not those of the drafts: SGLang keeps the former version."""
    if not success:
        _other_weights(None)


def updated_from_outside(updater: object, recv_req: object) -> None:
    """A session of updates ends in which SGLang loaded nothing: somebody else wrote the weights, or
    a part of them could not be loaded."""
    if _capturer is not None and _capturer.softly(_loaded_nothing, updater):
        _other_weights(None)


def _loaded_nothing(updater: Any) -> bool:
    session = updater._session
    return session is not None and not bool(session.loaded_weights)


def named(result: object, scheduler: object, new_version: str | None = None) -> None:
    """By a call behind those of all its parts, or of weights that are written from outside."""
    if new_version is None or _updating or _capturer is None:
        return
    if new_version != _capturer.weight_version:
        _other_weights(new_version)


# ---- The cache

_checkpointing: Any = None  # the request whose KV the cache is taking


def checkpoint(original: Callable[..., Any], cache: object, req: object, **kwargs: object) -> Any:
    global _checkpointing
    _checkpointing = req
    try:
        return original(cache, req, **kwargs)
    finally:
        _checkpointing = None


def inserted(result: object, cache: object, params: object) -> None:
    if _capturer is not None:
        _capturer.softly(_inserted, _capturer, cache, _checkpointing, params, result)


def _inserted(capturer: SGLangCapturer, cache: Any, request: Any, params: Any, result: Any) -> None:
    """The cache takes whole pages, and tells them by tokens, or by pairs of these. Without a request
    it took them from elsewhere."""
    if cache.disable or design().release >= (0, 5, 20) and result.rotation_tail_declined:
        return
    key = params.key
    capturer.follow(_followed(cache), _outside(cache))
    first, page = result.prefix_len, cache.page_size
    tokens = tokens_of(key.token_ids)
    if key.is_bigram:
        tokens = pairs_of(tokens)
    tokens, scope = tokens[: len(key) // page * page], capturer.tree_of(key)
    if request is None:
        capturer.prefixes.forget(scope, tokens, first)
    else:
        capturer.cached(request, scope, tokens, first, page)


def _followed(cache: Any) -> bool:
    """Whether the cache keeps what it takes, as it was taken, until it evicts it. With a window or
    a state beside it, in host memory, or where KV comes from elsewhere, a place in the tree may get
    KV that was computed later, which nobody tells."""
    if transfers(design().release) or _outside(cache):
        return False
    if _kind_of(cache) == RADIX:
        return True
    kinds = [kind.name for kind in cache.tree_components]
    alone = design().release < (0, 5, 12) or cache.cache_controller is None
    return kinds == ["FULL"] and alone


def _outside(cache: Any) -> bool:
    """Whether it gets KV that a flush does not reach: of a storage backend, or another's cache."""
    kind = _kind_of(cache)
    if kind is None:
        return True
    if kind == RADIX or design().release < (0, 5, 12):
        return False
    linked = design().release >= (0, 5, 19) and cache.linker is not None
    return linked or bool(cache.enable_storage)


def _kind_of(cache: object) -> str | None:
    """Which of the design's caches this is; None of another, derived from one perhaps."""
    for name in design().caches:
        if type(cache) is pkgutil.resolve_name(name):
            return name
    return None


def kept_by_session(kept: bool, session: object, req: object, *_: object, **__: object) -> None:
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


def kept_by_streaming_session(result: Any, cache: Any, req: Any, *_: Any, **__: object) -> None:
    """The same, where the session is told of every request."""
    if req.session is not None and req.session.streaming:
        kept_by_session(True, cache, req)


def released_by_session(result: object, sessions: object, session_id: str) -> None:
    if _capturer is not None:
        _capturer.softly(_capturer.prefixes.forget, ("session", session_id))


def flushed(result: object, cache: object) -> None:
    if _capturer is not None:
        _capturer.softly(_capturer.flushed)


def storage_cleared(cleared: bool, cache: object) -> None:
    """A flush behind it leaves nothing that is older."""
    if cleared and _capturer is not None:
        _capturer.storage_cleared = True


# ---- The other processes


def check_request(manager: Any, obj: Any, *args: object) -> None:
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
    if tensor is None or isinstance(tensor, str):
        return tensor
    try:
        found = fetch(tensor.numpy()) if tensor.element_size() == 1 else None
        return original([tensor])[0] if found is None else encode(*found)
    except Exception:
        logger.exception("routed experts of a request are lost on their way")
        return None


def encode_in_place(manager: Any, recv_obj: Any) -> None:
    """Of servers without a tokenizer, whose scheduler answers the manager."""
    rows = getattr(recv_obj, "routed_experts", None)  # embeddings have none
    if rows and any(each is not None and not isinstance(each, str) for each in rows):
        recv_obj.routed_experts = encode_rows(_as_they_are, rows)


def encode_tickets(manager: Any, recv_obj: Any) -> None:
    """Where detokenizers have no hooks, and give on the base64 of tickets."""
    rows = getattr(recv_obj, "routed_experts", None)  # embeddings have none
    if rows and any(each is not None for each in rows):
        recv_obj.routed_experts = encode_rows(_as_they_are, [_unpacked(each) for each in rows])


def _unpacked(row: object) -> Any:
    import torch

    if not isinstance(row, str) or not row.startswith(_TICKET):
        return row
    return torch.frombuffer(bytearray(base64.b64decode(row)), dtype=torch.uint8)


# What base64 of a ticket begins with.
_TICKET = "cm91dGVjYX"


def _as_they_are(tensors: list[Any]) -> list[Any]:
    return tensors


def encode_answers(original: Callable[..., Any], manager: Any, recv_obj: Any) -> Any:
    """Where the tokenizer manager itself makes base64 of what it gets: what was asked for takes its
    place in the answers."""
    rows = getattr(recv_obj, "routed_experts", None)
    if not rows or all(each is None for each in rows):
        return original(manager, recv_obj)
    answers = encode_rows(_as_they_are, rows)
    states = [manager.rid_to_state.get(rid) for rid in recv_obj.rids]
    recv_obj.routed_experts = [
        row if row is answer else None for row, answer in zip(rows, answers, strict=True)
    ]
    done = original(manager, recv_obj)
    for state, row, answer in zip(states, rows, answers, strict=True):
        if state is not None and answer is not None and answer is not row:
            state.out_list[-1]["meta_info"]["routed_experts"] = answer
    return done

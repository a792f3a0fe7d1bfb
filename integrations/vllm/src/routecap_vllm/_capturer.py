"""The capturer, in three classes: what vLLM calls, one that does nothing, and the real one."""

from __future__ import annotations

import logging
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import routecap
from routecap.adapter import Tensor, backend_of, capturer_on, describe, expect_device, takes_tensors

from . import _model_config
from ._again import IssueAgain, issue_again
from ._asked import asked_by
from ._binding import MAX_EXPERTS, bind, bind_buffer, experts_of
from ._caches import _RoutedExpertsDeviceCache, _RoutedExpertsHostCache
from ._forward import Forward
from ._metrics import serve_metrics
from ._options import get_options
from ._platform import WITHOUT_CUDA, without_cuda
from ._prefixes import Prefixes
from ._requests import Requests, RequestState
from ._results import PendingRoutedExperts
from ._spans import BatchSpans, bounds, runs
from ._stops import prompt_tokens
from ._unread import Rows, Unread, memory_of_this_process
from ._watch import Watch

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("vllm.routecap")  # which vLLM shows


class RoutedExpertsCapturer(ABC):
    """Captures which experts each token of a model's requests was sent to."""

    @staticmethod
    def create(
        enable: bool,
        model_config: object,
        num_fused_shared_experts: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        device: object,
        shared_host_cache: _RoutedExpertsHostCache | None = None,
        skip_host_cache: bool = False,
    ) -> RoutedExpertsCapturer:
        """A capturer for a model, or one that does nothing.

        Args:
            model_config: Has the model's Hugging Face configuration as `hf_text_config` or
                `hf_config`.
            num_fused_shared_experts: How many columns of shared experts routers append. They are
                dropped.
            max_num_batched_tokens: The most tokens of one forward pass, padding included.
            max_model_len: The most tokens of a request.
            device: "cpu", "cuda", "cuda:1" or a torch device.
            shared_host_cache: A cache in which rows of several capturers can be read.
            skip_host_cache: Only take part in forward passes: for ranks whose rows rank 0 has.
        """
        if not enable:
            return _RoutedExpertsCapturerNoop()
        sizes = max_num_batched_tokens, num_fused_shared_experts, max_model_len
        return _RoutedExpertsCapturerReal(
            model_config, *sizes, device, shared_host_cache, skip_host_cache
        )

    @abstractmethod
    def capture(self, layer_id: int, topk_ids: torch.Tensor) -> None:
        """In a forward pass: write the ids [batch, >= k] that a router chose for the first rows.

        `layer_id` counts the layers that route, from 0.
        """

    @abstractmethod
    def get_routed_experts(
        self, req_id: str, seqlen: int | None = None, free_slot: bool = True
    ) -> NDArray[np.int16] | None:
        """A copy of the rows of a request, of the first `seqlen` at most.

        None if it is unknown or has none. Waits for rows in flight.

        Args:
            seqlen: A negative one counts from the end, as in a slice.
            free_slot: Forget the request afterwards.
        """

    @abstractmethod
    def sync_fwd_experts_buffer_DtoH(
        self, positions: torch.Tensor, num_scheduled_tokens: Mapping[str, int]
    ) -> None:
        """After a forward pass: hand its rows over. Waits for nothing.

        Args:
            positions: [rows] in host memory: the position of each row in its request.
            num_scheduled_tokens: How many rows each request has, in the order of the rows.
        """

    @abstractmethod
    def finalize_pending_copy(self) -> None:
        """Make sure that the next step finds a slot.

        Waits only if `Options.slots` steps are in flight.
        """

    @abstractmethod
    def get_host_cache(self) -> _RoutedExpertsHostCache | None:
        """Where rows are read by request; None if this capturer keeps none."""

    @abstractmethod
    def get_device_cache(self) -> _RoutedExpertsDeviceCache | None:
        """Where forward passes write; None if nothing is captured."""

    # The functions of `routed_experts_capturer` call these. A capturer of another class need not
    # have them: its model is then bound to the buffer of its device cache. The rest is not done.

    def bind(self, model: object) -> None:
        """Tap the model's MoE layers, and begin and end each step with the model's forward pass.

        Call it before graphs are captured.
        """
        cache = self.get_device_cache()
        if cache is not None:
            bind_buffer(model, cache.buffer)

    def issue(
        self,
        req_ids: Sequence[str],
        num_scheduled_tokens: Mapping[str, int],
        positions: torch.Tensor,
    ) -> None:
        """After a forward pass: hand its rows over.

        Looks at no token. Waits only if `Options.slots` steps are in flight.

        Args:
            req_ids: The batch, in the order of its rows.
            num_scheduled_tokens: How many rows each request has; 0 if it is not listed.
            positions: [rows] of int32 or int64. On the capturer's device they are read in stream
                order, on the host at once.
        """

    def extract(
        self,
        req_ids: Sequence[str],
        requests: Mapping[str, Any],
        req_id_to_index: Mapping[str, int],
        num_tokens_no_spec: object,
        max_model_len: int,
    ) -> dict[str, Any] | None:
        """The rows of those requests of a batch that end with this step; see
        `extract_routed_experts_for_current_batch`.
        """
        return None

    def free(
        self, finished_req_ids: Iterable[str], preempted_req_ids: Iterable[str] | None = None
    ) -> None:
        """Requests have finished, or were preempted; see `free_routing_buffers`."""

    def resume(self, req_ids: Iterable[str]) -> None:
        """These requests were preempted, and begin anew with the next step. Their rows so far are
        dropped: what they find in the prefix cache may have been computed by other requests.
        """

    def set_tag(self, tag: int) -> None:
        """Set the tag of rows that are issued from now on."""

    def weights_changed(self) -> None:
        """The model's weights have changed."""

    def routing(self, req_id: str) -> routecap.Routing | None:
        """The rows of a request that is running, has ended in this step, or has ended and was kept.
        None if it is unknown or has none.

        Waits for rows in flight.
        """
        return None


class _RoutedExpertsCapturerNoop(RoutedExpertsCapturer):
    def capture(self, layer_id: int, topk_ids: torch.Tensor) -> None:
        pass

    def get_routed_experts(
        self, req_id: str, seqlen: int | None = None, free_slot: bool = True
    ) -> None:
        return None

    def sync_fwd_experts_buffer_DtoH(
        self, positions: torch.Tensor, num_scheduled_tokens: Mapping[str, int]
    ) -> None:
        pass

    def finalize_pending_copy(self) -> None:
        pass

    def get_host_cache(self) -> None:
        return None

    def get_device_cache(self) -> None:
        return None


class _RoutedExpertsCapturerReal(RoutedExpertsCapturer):
    """The capturer of one model on one rank.

    An engine with several capturers calls these methods instead of the functions of
    `routed_experts_capturer`.

    Attributes:
        capturer: routecap's.
        forward: Begins and ends forward passes, for engines whose model has no hooks.
        layer_map: The index in the decoder of each captured layer.
        prefixes: Publishes and adopts rows of cached prefixes; None without a store.
        shared_store: The store whose blocks share pages with requests and results, or None.
        decoder_layers: If not 0, how many layers results have; see `PendingRoutedExperts`.
        tag: The version of the weights, kept with every row that is issued from now on: how often
            they have changed (`weights_changed`), or what `set_tag` was given.
    """

    def __init__(
        self,
        model_config: object,
        max_num_batched_tokens: int,
        num_fused_shared_experts: int,
        max_model_len: int,
        device: Any,
        shared_host_cache: _RoutedExpertsHostCache | None = None,
        skip_host_cache: bool = False,
    ) -> None:
        import torch

        options = self.options = get_options()
        config = _model_config.hf_config_of(model_config)
        self.layer_map = _model_config.moe_layers(config)
        if not self.layer_map:
            raise ValueError(
                "by its configuration no layer of the model routes: leave capture off for this"
                " model"
            )
        self.num_hidden_layers = len(self.layer_map)
        self.num_experts_per_tok = _model_config.experts_per_token(config)
        self.num_fused_shared_experts = num_fused_shared_experts
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_model_len = max_model_len
        self.tag = 0
        self._tag_is_told = False
        self._changed_at = -1  # the last step before the weights were changed
        self.decoder_layers = 0

        device = torch.device(device)
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        expect_device(device.type)
        if backend_of(device.type) is routecap.Backend.CUDA and without_cuda():
            raise RuntimeError(WITHOUT_CUDA)
        self._device = device
        self.device_cache = _RoutedExpertsDeviceCache(
            max_num_batched_tokens, self.num_hidden_layers, self.num_experts_per_tok, device
        )
        self._settings: dict[str, Any] = {
            "role": "mirror" if skip_host_cache else "owner",
            "layers": self.num_hidden_layers,
            "k": self.num_experts_per_tok,
            "layer_map": self.layer_map,
            "rows": max_num_batched_tokens,
            "slots": options.slots,
            "budget_bytes": options.budget_bytes,
            "external_sink": True,
            "load": bool(options.metrics_port),
        }
        if self.device_cache.weights is not None:
            self._settings["weights"] = "float32"
        most = options.unread_bytes
        self._unread = Unread(memory_of_this_process() // 4 if most < 0 else most)
        self._bounded = not _model_config.names_experts(config)  # only from above
        if self._bounded:
            logger.warning(
                "routed experts: the model's configuration does not say how many experts there "
                "are. Ids up to %d are accepted, unless its layers say it when they are bound",
                MAX_EXPERTS - 1,
            )
            self._open([MAX_EXPERTS] * self.num_hidden_layers)
        else:
            self._open(_model_config.experts_of_layers(config))

        self.host_cache: _RoutedExpertsHostCache | None = None
        if not skip_host_cache:
            self.host_cache = shared_host_cache or _RoutedExpertsHostCache(
                self.num_hidden_layers, self.num_experts_per_tok, max_model_len
            )
            self.host_cache.add_source(self)
        self._spans = BatchSpans(max_model_len)
        self._positions: Tensor | None = None  # of the last step, if on the device
        self._again: IssueAgain | None = None  # the last batch, if it came twice
        self._slots = options.slots
        self.prefixes: Prefixes | None = None
        self.shared_store: routecap.Store | None = None
        self._waiting: Sequence[Any] = ()  # what `prefixes` has to do with the next step

    def _open(self, experts: list[int]) -> None:
        """Open routecap's capturer, for layers of so many experts each."""
        settings = {**self._settings, "experts": max(experts)}
        self.capturer = capturer_on(self._device, layer_experts=experts, **settings)
        self.capturer.bind(0, self.device_cache.buffer, self.device_cache.weights)
        self._memory = routecap.memory(backend=self.capturer.backend, **settings)
        self.watch = Watch(self.capturer, self._memory, self._unread, self.layer_map)
        self.forward = Forward(self.capturer, self.options.place, self.num_fused_shared_experts)
        self.device_cache.forward = self.forward
        weakref.finalize(self.forward, self.capturer.close)  # a bound model uses it after us
        self._metrics = serve_metrics(self.capturer, self.options, self.forward)
        kept = self.options.preempted == "keep"
        self._requests = Requests(self.capturer, self.options.keep_ended, kept)
        self._engine_requests: Mapping[str, Any] = {}  # as the last `extract` was given them
        self._told_of_ends = False
        self.scheduler_requests: Mapping[str, Any] = {}

    # ---- The forward pass

    def bind(self, model: object) -> None:
        while callable(unwrap := getattr(model, "unwrap", None)):
            model = unwrap()  # the wrapper holds graphs; weights are loaded into the model itself
        if self._bounded and not self.forward.delimited and self.capturer.stats().steps_issued == 0:
            experts = experts_of(model)
            if experts is not None:
                self.capturer.close()
                self._open([experts] * self.num_hidden_layers)
        if self._bounded and self.options.metrics_port and self.capturer.experts == MAX_EXPERTS:
            logger.error(
                "metrics are not served, because it is not known how many experts the model has: "
                "give it a configuration that says it"
            )
        self._bounded = False
        experts = int(self.capturer.layer_experts.max())
        placed = self.options.place is not None
        binding = bind(model, self.device_cache, self.layer_map, experts, placed)
        self.watch.elsewhere = set(range(self.num_hidden_layers)) - set(binding.layers)
        binding.call_after(model, "load_weights", self.weights_changed)

    def set_tag(self, tag: int) -> None:
        changed, self.tag, self._tag_is_told = tag != self.tag, tag, True
        if changed and self.prefixes is not None:
            self.prefixes.weights_changed()

    def weights_changed(self) -> None:  # several calls between two steps count once
        if not self._tag_is_told and self._changed_at != self._requests.last_ticket:
            self.tag, self._changed_at = self.tag + 1, self._requests.last_ticket
            if self.prefixes is not None:
                self.prefixes.weights_changed()

    def capture(self, layer_id: int, topk_ids: torch.Tensor) -> None:
        self.device_cache.capture_fwd_routed_experts(layer_id, topk_ids)

    # ---- Steps

    def issue(
        self,
        req_ids: Sequence[str],
        num_scheduled_tokens: Mapping[str, int],
        positions: torch.Tensor,
    ) -> None:
        again, found = self._again, None
        if again is not None:
            found = again(req_ids, num_scheduled_tokens, positions, self.tag)
            if found is None:
                self._make_room()
        if found is None:
            self._issue_new(req_ids, num_scheduled_tokens, positions)
        else:
            self._requests.last_ticket = found
        if self._waiting:
            assert self.prefixes is not None
            self.prefixes.settle(self.tag)

    def _issue_new(
        self,
        req_ids: Sequence[str],
        num_scheduled_tokens: Mapping[str, int],
        positions: torch.Tensor,
    ) -> None:
        self._again = None
        if self.host_cache is None:
            return
        try:
            counts = self._spans.count(req_ids, num_scheduled_tokens)
        except KeyError:
            counts = (0,)
        if 0 in counts:
            req_ids = [req_id for req_id in req_ids if num_scheduled_tokens.get(req_id)]
            counts = self._spans.count(req_ids, num_scheduled_tokens)
        if not counts:
            return
        before = self._requests.batch
        handles = self._requests.handles(req_ids)
        if positions.device.type != self._device.type:  # they are on the host
            self._issue_known(handles, counts, positions)
            return
        spans = self._spans.fill(handles, counts)
        self._expect(spans, counts, positions, self._spans.several)
        self._issue(spans, positions)
        if before is self._requests.batch and len(spans) and not self._requests.unsettled:
            self._prepare(req_ids, counts, spans, positions)

    def _prepare(
        self,
        req_ids: Sequence[str],
        counts: tuple[int, ...],
        spans: NDArray[np.void],
        positions: torch.Tensor,
    ) -> None:
        """Prepare the issue of a batch that has come twice, as it will come again."""
        if self.forward.delimited and not takes_tensors(self.capturer):
            where = self._describe(positions)
            prepared = self.capturer.prepare_issue(
                list(req_ids), counts, spans, tag=self.tag, positions=where
            )
            self._again = issue_again(self.capturer, prepared, positions, self._requests)

    def sync_fwd_experts_buffer_DtoH(
        self, positions: torch.Tensor, num_scheduled_tokens: Mapping[str, int]
    ) -> None:
        if self.host_cache is None:
            return
        req_ids = [req_id for req_id, count in num_scheduled_tokens.items() if count]
        if not req_ids:
            return
        counts = tuple(num_scheduled_tokens[req_id] for req_id in req_ids)
        self._issue_known(self._requests.handles(req_ids), counts, positions)

    def _issue_known(
        self, handles: NDArray[np.uint64], counts: tuple[int, ...], positions: torch.Tensor
    ) -> None:
        spans = runs(handles, np.array(counts, np.uint32), positions.numpy(), self.max_model_len)
        if not handles.all():
            spans = spans[spans["request"] != 0]
        self._expect(spans, counts, positions, sum(counts) > len(counts))
        self._issue(spans, None)

    def _expect(
        self,
        spans: NDArray[np.void],
        counts: tuple[int, ...],
        positions: torch.Tensor,
        several: bool,
    ) -> None:
        if not several and not self._requests.unsettled:
            return  # a row for each request, as in ordinary decoding: nothing can be rejected
        known = None
        if positions.device.type == "cpu":
            known = bounds(counts, positions.numpy(), self.max_model_len)
        verified = self._requests.expect(counts, known, self._start_of)
        if self.options.metrics_port:
            flags = spans["flags"] & ~np.uint32(routecap.SpanFlag.DECODE)
            decode = np.isin(spans["request"], verified)
            spans["flags"] = np.where(decode, flags | routecap.SpanFlag.DECODE, flags)

    def _start_of(self, req_id: str) -> int | None:
        return getattr(self._engine_requests.get(req_id), "num_computed_tokens", None)

    def _issue(self, spans: NDArray[np.void], positions: torch.Tensor | None) -> None:
        if not len(spans):  # no request is captured: the next begin discards this pass
            return
        snapshot = routecap.Snapshot.TAKEN if self.forward.delimited else routecap.Snapshot.MAKE
        where = None if positions is None else self._describe(positions)
        step = self.capturer.issue(spans, tag=self.tag, positions=where, snapshot=snapshot)
        self.forward.issued()
        self.issued(step)

    def issued(self, step: routecap.Step) -> None:
        """This is the last step: weights that change from now on change after it."""
        self._requests.last_ticket = step.ticket

    def _describe(self, positions: torch.Tensor) -> Tensor | torch.Tensor:
        """The description of the tensor, made once: an engine has one tensor for all steps."""
        if takes_tensors(self.capturer):
            return positions
        known = self._positions
        if known is None or known.holder is not positions or known.address != positions.data_ptr():
            known = self._positions = describe(positions, "positions")
        return known

    def _make_room(self) -> None:
        """Wait until a step that is issued would not be lost."""
        oldest = self._requests.last_ticket + 1 - self._slots
        if oldest > 0:
            self.capturer.issued(oldest).wait()

    def finalize_pending_copy(self) -> None:
        if self._again is None:  # otherwise the prepared issue does it
            self._make_room()
        self.watch.look(self._requests.last_ticket)

    def silent_layers(self) -> list[int]:
        """Layers, by their index in the decoder, that have written nothing, although steps have
        landed.
        """
        return self.watch.silent_layers()

    # ---- Requests

    def extract(
        self,
        req_ids: Sequence[str],
        requests: Mapping[str, Any],
        req_id_to_index: Mapping[str, int],
        num_tokens_no_spec: object,
        max_model_len: int,
    ) -> dict[str, Any] | None:
        self._engine_requests = requests
        if self._told_of_ends:
            return None
        live = self._requests.live
        ends: list[tuple[str, RequestState, int]] = []
        for req_id in req_ids:
            state, request = live.get(req_id), requests.get(req_id)
            if (
                state is None
                or not state.handle
                or request is None
                or not (outputs := request.output_token_ids)
            ):
                continue
            # In nearly every step one token has come, and it ends nothing.
            count, rule = len(outputs), state.rule
            if rule is not None and not state.rows and state.seen == count - 1:
                end = rule.prompt_tokens + count - 1
                if end == state.end + 1 and rule.goes_on(count, outputs[-1]):
                    state.end, state.seen = end, count
                    continue
            if request.sampling_params is None:
                continue
            prompt = prompt_tokens(request, req_id_to_index.get(req_id), num_tokens_no_spec)
            rows = self._requests.end_of(
                state, outputs, prompt, request.sampling_params, max_model_len
            )
            if rows is not None:
                ends.append((req_id, state, rows))
        if not ends:
            return None
        self._requests.finish([(state, rows) for _, state, rows in ends])
        return {req_id: self._result(state, rows) for req_id, state, rows in ends}

    def _result(self, state: RequestState, rows: int) -> Any:
        pending = self._pending(state, rows)
        return pending if self.options.lazy else pending.array()

    def _pending(self, state: RequestState, rows: int) -> PendingRoutedExperts:
        assert state.routing is not None
        shared = Rows(state.routing)
        self._unread.add(shared)
        shape = (
            min(rows, state.routing.rows) if state.routing is state.earlier else rows,
            self.num_hidden_layers,
            self.num_experts_per_tok,
        )
        return PendingRoutedExperts(
            shared, shape, self.options.fill, decoder_layers=self.decoder_layers
        )

    def store_bytes(self, rows: int) -> int:
        """The budget of a store for this many rows: a third more than their bytes, for pages that
        are only partly used, and at least what any store needs.
        """
        return max(8 * self._memory.page_bytes, rows * self._memory.row_bytes * 4 // 3)

    # ---- Requests of an engine whose scheduler tells which requests end

    def tell_ends(self, requests: Mapping[str, Any]) -> None:
        """From now on `end` is called for every request that ends, and `extract` does nothing.

        Args:
            requests: The scheduler's requests by name. The `sampling_params` of new ones are read.
        """
        self._told_of_ends = True
        self.scheduler_requests = requests
        self._requests.wanted = self._is_wanted
        self._requests.tokens_of = self._tokens_of

    def keep_prefixes(
        self, block_rows: int, hash_rows: int, hash_bytes: int, handed: bool
    ) -> Prefixes | None:
        """Publish and adopt rows of cached prefixes from now on, as the scheduler tells the result.
        None if the options have no store.

        Args:
            block_rows: Rows of a block of the engine's cache.
            hash_rows, hash_bytes: Rows that a hash stands for, and bytes of the hash.
            handed: Whether the engine has a connector that brings keys and values.

        Raises:
            ValueError: The blocks of the given store do not match.
        """
        if self.options.store is not None or self.options.store_bytes:
            self.prefixes = Prefixes(
                self.capturer,
                self._requests.live,
                block_rows,
                hash_rows,
                hash_bytes,
                self.options,
                handed,
            )
            self.shared_store = self.watch.store = self.prefixes.store
            if self._metrics is not None:
                self._metrics.store = self.shared_store
            self._waiting = self.prefixes.waiting
        return self.prefixes

    def end(self, rows: Mapping[str, int]) -> dict[str, PendingRoutedExperts]:
        """End these requests, each with a number of rows, and return those that have rows.

        Waits for nothing.
        """
        live = self._requests.live
        ends = [
            (name, state, n) for name, n in rows.items() if (state := live.get(name)) is not None
        ]
        self._requests.finish([(state, n) for _, state, n in ends if state.handle])
        for _, state, _ in ends:
            state.routing = state.routing or state.earlier
        return {
            name: self._pending(state, n) for name, state, n in ends if state.routing is not None
        }

    def cut(self, rows: Mapping[str, int]) -> None:
        """Cut each of these requests to a number of rows: the later ones are wrong, and will be
        computed again.
        """
        self._requests.cut(rows)

    def _is_wanted(self, req_id: str) -> bool:
        request = self.scheduler_requests.get(req_id)
        return request is None or asked_by(request.sampling_params).capture

    def _tokens_of(self, req_id: str) -> tuple[int, int] | None:
        request = self._engine_requests.get(req_id)
        if request is None:
            return None
        return request.num_prompt_tokens, request.num_prompt_tokens + len(request.output_token_ids)

    def free(
        self, finished_req_ids: Iterable[str], preempted_req_ids: Iterable[str] | None = None
    ) -> None:
        if self.host_cache is None:
            return
        self.host_cache.drop_arrays(finished_req_ids)
        self._requests.end(finished_req_ids)
        if preempted_req_ids:
            self._requests.preempt(preempted_req_ids)

    def resume(self, req_ids: Iterable[str]) -> None:
        self._requests.resume(req_ids)

    def routing(self, req_id: str) -> routecap.Routing | None:
        state = self._requests.find(req_id)
        routing = None if state is None else self._requests.read(state)
        return routing if routing is not None and routing.rows else None

    def get_routed_experts(
        self, req_id: str, seqlen: int | None = None, free_slot: bool = True
    ) -> NDArray[np.int16] | None:
        routing = self.routing(req_id)
        if routing is None:
            return None
        if seqlen is not None and seqlen < routing.rows:
            routing = routing.slice(0, seqlen if seqlen >= 0 else max(routing.rows + seqlen, 0))
        array = routecap.adapter.to_array(routing, self.options.fill)
        if free_slot:
            self._requests.drop(req_id)
        return array

    # ---- Caches

    def get_host_cache(self) -> _RoutedExpertsHostCache | None:
        return self.host_cache

    def get_device_cache(self) -> _RoutedExpertsDeviceCache:
        return self.device_cache

    # What the host cache reads here.

    def host_rows(self, req_id: str) -> NDArray[np.int16] | None:
        return self.get_routed_experts(req_id, free_slot=False)

    def host_length(self, req_id: str) -> int:
        routing = self.routing(req_id)
        return 0 if routing is None else routing.rows

    def host_bytes(self) -> int:
        return self.capturer.stats().bytes_in_use

    def host_free(self, req_id: str) -> None:
        self._requests.drop(req_id)

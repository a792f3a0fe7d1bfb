"""A small engine in the manner of vLLM, on torch tensors of any device, that knows of every id
which it has to be.

Its model routes by a formula of layer, token and position, so what was input where decides the ids,
as in a real one: a rejected draft, another request's row or a row of an earlier step has other ids
than the row that belongs there. Scheduling, sampling and stopping are its own; of the drop-in
module it calls what vLLM's runner calls, in that order.
"""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from routecap_vllm import routed_experts_capturer as capturer_module

EOS = 2
VOCABULARY = 1000


def choices(layers: Any, tokens: Any, positions: Any, version: Any, k: int, experts: int) -> Any:
    """The experts of a token at a position in a layer of the decoder: k different ones, by a
    formula for NumPy arrays and tensors alike.
    """
    first = tokens * 7 + positions * 13 + layers * 29 + version * 3
    columns = (
        torch.arange(k, device=first.device) if isinstance(first, torch.Tensor) else np.arange(k)
    )
    step = (
        1 + (first % 3) * 2
    )  # odd, and the number of experts is a power of two: no expert comes twice
    return (first[..., None] + columns * step[..., None]) % experts


def weights_of(ids: Any, positions: Any) -> Any:
    """The float32 weight of each of these ids [rows, ..., k], at positions [rows, ...], by a formula
    for NumPy arrays and tensors alike."""
    places = positions[..., None] + 3
    if isinstance(ids, torch.Tensor):
        return (ids + 1).float() / places.float()
    return (ids + 1).astype(np.float32) / places.astype(np.float32)


# ---- The model


class Router:
    """As vLLM's BaseRouter: logical ids, a callback, replicas, the type that the kernels want."""

    def __init__(
        self,
        layer: int,
        version: torch.Tensor,
        k: int,
        experts: int,
        dtype: torch.dtype,
        shared: int = 0,
        replicas: torch.Tensor | None = None,
    ) -> None:
        self.layer, self.version, self.top_k, self.experts, self.dtype = (
            layer,
            version,
            k,
            experts,
            dtype,
        )
        self.num_fused_shared_experts = shared
        self.enable_eplb = replicas is not None
        self.eplb_state = SimpleNamespace(logical_to_physical_map=replicas)
        self.capture_fn: Any = None

    def set_capture_fn(self, capture_fn: Any) -> None:
        self.capture_fn = capture_fn

    def _compute_routing(
        self, tokens: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ids = choices(self.layer, tokens, positions, self.version, self.top_k, self.experts)
        if shared := self.num_fused_shared_experts:
            columns = torch.arange(self.experts, self.experts + shared, device=ids.device)
            ids = torch.cat((ids, columns.expand(len(ids), -1)), 1)
        return weights_of(ids, positions), ids.to(self.dtype)

    def select_experts(
        self, tokens: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        weights, ids = self._compute_routing(tokens, positions)
        if self.capture_fn is not None:
            self.capture_fn(ids)
        if self.enable_eplb:
            routed = ids[:, : self.top_k].long()
            replica = torch.arange(routed.numel(), device=ids.device).view(routed.shape) % 2
            ids = self.eplb_state.logical_to_physical_map[routed, replica].to(ids.dtype)
        return weights, ids


class RouterWithoutCallback(Router):
    set_capture_fn = None  # type: ignore[assignment]


class RouterThatIsOpaque(Router):
    """Only its result can be seen."""

    set_capture_fn = None  # type: ignore[assignment]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.__dict__["_compute_routing"] = None

    def select_experts(
        self, tokens: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.__dict__.pop("_compute_routing")
        try:
            return super().select_experts(tokens, positions)
        finally:
            self.__dict__["_compute_routing"] = None


class FusedMoE(torch.nn.Module):
    count = 0  # of all models of the process, as in vLLM

    def __init__(self, router: Router, internal: bool = False, **moe_config: Any) -> None:
        super().__init__()
        self.moe_layer_id = FusedMoE.count
        FusedMoE.count += 1
        self.router = router
        self.quant_method = SimpleNamespace(supports_internal_mk=True, is_monolithic=internal)
        self.moe_config = SimpleNamespace(
            **({"is_sequence_parallel": False, "dp_size": 1} | moe_config)
        )
        self._routing_replay_out: torch.Tensor | None = None
        self.skip = False  # a branch of the engine that calls no router

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor) -> None:
        if self.skip:
            return
        if (
            self.quant_method.is_monolithic
        ):  # the kernel routes, and fills the buffer that it was given
            ids = self.router._compute_routing(tokens, positions)[1]
        else:
            ids = self.router.select_experts(tokens, positions)[1]
        if self._routing_replay_out is not None:
            self._routing_replay_out[: len(ids)].copy_(ids.to(torch.int16))


class Layer(torch.nn.Module):
    def __init__(self, moe: FusedMoE | None) -> None:
        super().__init__()
        self.mlp = torch.nn.Module()
        if moe is not None:
            self.mlp.experts = moe


class Model(torch.nn.Module):
    """`dense` leading dense layers, then MoE layers. `version` is that of its weights."""

    def __init__(
        self,
        *,
        layers: int = 6,
        dense: int = 2,
        k: int = 4,
        experts: int = 64,
        router: type[Router] = Router,
        dtype: torch.dtype = torch.int32,
        device: str = "cpu",
        internal: bool = False,
        shared: int = 0,
        replicas: torch.Tensor | None = None,
        **moe_config: Any,
    ) -> None:
        super().__init__()
        self.k, self.experts, self.device = k, experts, device
        self.version = torch.zeros((), dtype=torch.int64, device=device)
        self.moe = [
            (
                FusedMoE(
                    router(i, self.version, k, experts, dtype, shared, replicas),
                    internal,
                    **moe_config,
                )
                if i >= dense
                else None
            )
            for i in range(layers)
        ]
        self.layers = torch.nn.ModuleList(Layer(moe) for moe in self.moe)
        self.hf_config = SimpleNamespace(
            num_hidden_layers=layers,
            n_routed_experts=experts,
            num_experts_per_tok=k,
            first_k_dense_replace=dense,
            moe_layer_freq=1,
        )

    @property
    def model_config(self) -> Any:
        return SimpleNamespace(hf_text_config=self.hf_config)

    @property
    def moe_layers(self) -> np.ndarray:
        return np.array([i for i, moe in enumerate(self.moe) if moe is not None])

    def expected(self, tokens: Any, version: Any = 0) -> np.ndarray:
        """[rows, layers, k]: what the rows of these tokens, from position 0 on, have to be."""
        tokens = np.asarray(tokens)[:, None]
        versions = np.broadcast_to(version, len(tokens))[:, None]
        return choices(
            self.moe_layers[None, :],
            tokens,
            np.arange(len(tokens))[:, None],
            versions,
            self.k,
            self.experts,
        )

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            if hasattr(layer.mlp, "experts"):
                layer.mlp.experts(input_ids, positions)
        return input_ids


# ---- Requests


def sampling(**parameters: Any) -> Any:
    defaults = {
        "min_tokens": 0,
        "max_tokens": 1 << 30,
        "stop_token_ids": None,
        "eos_token_id": EOS,
        "ignore_eos": False,
    }
    return SimpleNamespace(**(defaults | parameters))


@dataclass
class Request:
    """`sampled` is what the device knows, `output_token_ids` what the worker sees of it.

    record: the version of the weights under which each position was input: what is to be delivered.
    silent: the layers that chose nothing when a position was input.
    kept: positions below it keep theirs when they are input again.
    num_computed_tokens: the position of the first token of its last step, as in vLLM.
    """

    req_id: str
    prompt: list[int]
    sampling_params: Any
    computed: int = 0  # tokens in the key-value cache
    sampled: list[int] = field(default_factory=list)
    output_token_ids: list[int] = field(default_factory=list)
    record: dict[int, int] = field(default_factory=dict)
    silent: dict[int, list[int]] = field(default_factory=dict)
    kept: int = 0
    num_computed_tokens: int = 0

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt)

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.sampled

    def end(self, max_model_len: int) -> int | None:
        """The scheduler's rule, for one output token after the other: with how many it ends."""
        p = self.sampling_params
        for count, token in enumerate(self.output_token_ids, 1):
            if token < 0:
                return None
            if count >= p.min_tokens and (
                (token == p.eos_token_id and not p.ignore_eos)
                or token in (p.stop_token_ids or ())
                or count >= p.max_tokens
                or len(self.prompt) + count >= max_model_len
            ):
                return count
        return None


# ---- The engine


class Hidden(torch.Tensor):
    """Of a device, as far as anybody asks."""

    is_cuda = True


class Engine:
    """One model and its requests. `step()` is one iteration; what ends with it is compared, and
    counted in `checked`.

    graph_sizes: batches of up to these sizes replay a CUDA graph, padded.
    drafts: tokens drafted per decoding request and step.
    asynchronous: the worker learns what a step sampled one step later.
    keep_preempted: as `Options.preempted`.
    holes: how likely a layer is to choose nothing in a step.
    blind: the host cannot see positions, as if they were on a device.
    """

    def __init__(
        self,
        model: Model,
        *,
        max_tokens: int = 64,
        max_model_len: int = 512,
        seed: int = 0,
        drafts: int = 0,
        asynchronous: bool = False,
        keep_preempted: bool = False,
        graph_sizes: tuple[int, ...] = (),
        holes: float = 0.0,
        blind: bool = False,
    ) -> None:
        self.holes, self.hidden = holes, Hidden if blind else torch.Tensor
        self.model, self.device, self.max_tokens, self.max_model_len = (
            model,
            model.device,
            max_tokens,
            max_model_len,
        )
        self.drafts, self.asynchronous, self.keep_preempted = drafts, asynchronous, keep_preempted
        self.random = random.Random(seed)
        self.requests: dict[str, Request] = {}
        self.order: list[str] = []  # the input batch
        self.ended: set[str] = set()  # by the last step, to be freed by the next
        self.preempted: set[str] = set()
        self.version = 0
        self.checked = {
            "requests": 0,
            "rows": 0,
            "ids": 0,
            "weights": 0,
            "steps": 0,
            "replays": 0,
            "drafts rejected": 0,
        }
        self.results: dict[str, Any] = {}  # of requests that the scheduler has not ended yet
        self.arrays: dict[str, np.ndarray] = {}
        self.scripts: dict[
            str, dict[int, int]
        ] = {}  # request -> {position: the token that is sampled after it}
        self.input_ids = torch.zeros(max_tokens, dtype=torch.int64, device=self.device)
        self.positions = torch.zeros(max_tokens, dtype=torch.int64, device=self.device)
        self.positions_cpu = torch.zeros(max_tokens, dtype=torch.int64)
        self.graphs: dict[int, Any] = {}
        for size in sorted(graph_sizes, reverse=True):
            self._capture(size)

    def _capture(self, size: int) -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.model(self.input_ids[:size], self.positions[:size])
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.model(self.input_ids[:size], self.positions[:size])
        self.graphs[size] = graph

    def add(
        self,
        req_id: str,
        prompt: list[int],
        cached: int = 0,
        script: dict[int, int] | None = None,
        **parameters: Any,
    ) -> Request:
        """cached: tokens of the prompt that the prefix cache has. script: {position: token} for
        what is sampled there.
        """
        request = self.requests[req_id] = Request(
            req_id, prompt, sampling(**parameters), computed=cached
        )
        self.order.append(req_id)
        self.scripts[req_id] = script or {}
        return request

    def preempt(self, req_id: str) -> None:
        """Its cache is gone: all its tokens will be computed again, and what the worker has not
        learnt yet is sampled again.
        """
        if req_id in self.results:
            return  # it has ended, but for the news
        request = self.requests[req_id]
        had_outputs = bool(request.output_token_ids)
        request.output_token_ids = [token for token in request.output_token_ids if token >= 0]
        request.sampled = list(request.output_token_ids)
        request.kept = len(request.tokens) - 1 if self.keep_preempted and had_outputs else 0
        request.record = {
            position: version
            for position, version in request.record.items()
            if position < request.kept
        }
        request.computed = 0
        self.preempted.add(req_id)

    def abort(self, req_id: str) -> None:
        """Also a stop string: the frontend ends a request, and the worker learns it when the
        request is freed.
        """
        del self.requests[req_id]
        self.order.remove(req_id)
        self.ended.add(req_id)

    def set_version(self, version: int) -> None:
        """Update the weights."""
        self.version = version
        self.model.version.fill_(version)

    def next_token(self, request: Request, position: int) -> int:
        """What the model samples after the token at `position`."""
        usual = 3 + (zlib.crc32(request.req_id.encode()) * 31 + position * 17) % (VOCABULARY - 3)
        return self.scripts[request.req_id].get(position, usual)

    def step(self) -> dict[str, Any]:
        module = capturer_module
        module.get_global_experts_capturer().finalize_pending_copy()
        module.free_routing_buffers(self.ended, self.preempted)
        self.ended = set()
        scheduled = self._schedule()
        self.preempted = set()
        self.random.shuffle(self.order)
        batch = [req_id for req_id in self.order if req_id in scheduled]

        self._forward(batch, scheduled)
        for req_id in self.order:  # what was not known yet is now
            request = self.requests[req_id]
            request.output_token_ids = list(request.sampled)
        for req_id in batch:
            request = self.requests[req_id]
            outputs = self._sample(request, scheduled[req_id])
            request.sampled += outputs
            request.output_token_ids += [-1] * len(outputs) if self.asynchronous else outputs

        counts = {req_id: len(scheduled[req_id]) for req_id in scheduled}
        positions = self.positions.as_subclass(self.hidden)
        module.issue_routing_d2h_copy(list(self.order), counts, positions, self.positions_cpu)
        counts.clear()  # the dict is the scheduler's
        index = {req_id: i for i, req_id in enumerate(self.order)}
        lengths = np.array([len(self.requests[req_id].tokens) for req_id in self.order])
        result = module.extract_routed_experts_for_current_batch(
            list(self.order), self.requests, index, lengths, self.max_model_len
        )
        self.results.update(result or {})
        self.checked["steps"] += 1
        self._update()
        return result or {}

    def _schedule(self) -> dict[str, list[int]]:
        """The tokens that each request inputs: a chunk of what is known and not computed, then
        drafts, some of them right.
        """
        budget = self.max_tokens
        scheduled: dict[str, list[int]] = {}
        for req_id in self.random.sample(self.order, len(self.order)):
            request = self.requests[req_id]
            tokens = request.tokens
            if (
                req_id in self.preempted
                or len(request.sampled) >= request.sampling_params.max_tokens
                or len(tokens) >= self.max_model_len
            ):
                continue
            chunk = tokens[request.computed :][:budget]
            if len(chunk) > 1:
                chunk = chunk[: self.random.randint(1, len(chunk))]
            if not chunk:
                continue
            if request.sampled and request.computed + len(chunk) == len(tokens):
                for position in range(
                    len(tokens) - 1,
                    len(tokens)
                    - 1
                    + min(self.drafts, budget - len(chunk), self.max_model_len - len(tokens)),
                ):
                    right = self.next_token(request, position)
                    chunk.append(right if self.random.random() < 0.7 else (right + 1) % VOCABULARY)
            scheduled[req_id] = chunk
            request.num_computed_tokens = request.computed
            budget -= len(chunk)
        return scheduled

    def _forward(self, batch: list[str], scheduled: dict[str, list[int]]) -> None:
        tokens, positions = [], []
        layers = list(filter(None, self.model.moe))
        if self.holes:
            for layer in layers:
                layer.skip = self.random.random() < self.holes
        silent = [index for index, layer in enumerate(layers) if layer.skip]
        for req_id in batch:
            request = self.requests[req_id]
            for position, token in enumerate(scheduled[req_id], request.computed):
                tokens.append(token)
                positions.append(position)
                if position >= request.kept or position not in request.record:
                    request.record[position] = self.version
                    request.silent[position] = silent
        n = len(tokens)
        self.input_ids[:n] = torch.tensor(tokens, dtype=torch.int64)
        self.positions[:n] = torch.tensor(positions, dtype=torch.int64)
        size = min((size for size in self.graphs if size >= n), default=None)
        if size is None:
            self.model(self.input_ids[:n], self.positions[:n])
        else:
            self.graphs[size].replay()
            self.checked["replays"] += 1

    def _sample(self, request: Request, inputs: list[int]) -> list[int]:
        """What the device makes of a request's rows: nothing in the middle of a prompt, otherwise
        the accepted drafts and one token.
        """
        known = len(request.tokens) - request.computed
        if len(inputs) < known:
            request.computed += len(inputs)
            return []
        position = len(request.tokens) - 1
        outputs = [self.next_token(request, position)]
        for draft in inputs[known:]:
            if draft != outputs[-1]:
                break
            position += 1
            outputs.append(self.next_token(request, position))
        self.checked["drafts rejected"] += len(inputs) - known - (len(outputs) - 1)
        request.computed += known + len(outputs) - 1
        return outputs

    def _update(self) -> None:
        """The scheduler: end requests, and compare what came with what has to come."""
        for req_id in list(self.order):
            request = self.requests[req_id]
            outputs = request.end(self.max_model_len)
            if outputs is None:
                continue
            request.sampled = request.sampled[:outputs]
            assert req_id in self.results, f"{req_id} has ended, and its rows did not come"
            self.check(request, self.results[req_id])
            self.arrays[req_id] = np.asarray(self.results.pop(req_id))
            self.abort(req_id)
        early = [
            req_id
            for req_id in self.results
            if not self.asynchronous or req_id not in self.requests
        ]
        assert not early, f"rows came of requests that have not ended: {early}"

    def expected(self, request: Request, rows: int) -> np.ndarray:
        """[rows, layers, k]: -1 where the prefix cache had them."""
        expected = self.model.expected(
            request.tokens[:rows], [request.record.get(position, 0) for position in range(rows)]
        )
        expected[[position not in request.record for position in range(rows)]] = -1
        for position in range(rows):
            expected[position, request.silent.get(position, [])] = -1
        return expected

    def check(self, request: Request, experts: Any, rows: int | None = None) -> None:
        """Every id of a request: all rows of its tokens but the last one's."""
        expected = self.expected(request, len(request.tokens) - 1 if rows is None else rows)
        weights = experts.weights() if hasattr(experts, "weights") else None
        experts = np.asarray(experts)
        assert experts.dtype == np.int16
        assert experts.shape == expected.shape, (
            f"{request.req_id}: {experts.shape} instead of {expected.shape}"
        )
        wrong = np.argwhere((experts != expected).any((1, 2)))[:, 0]
        assert len(wrong) == 0, (
            f"{request.req_id}: {len(wrong)} of {len(expected)} rows are wrong, the first at"
            f" {wrong[0]}"
        )
        if weights is not None:
            known = weights_of(expected, np.arange(len(expected))[:, None])
            known[(expected == -1).all(2)] = np.nan
            np.testing.assert_array_equal(weights.view(np.int32), known.view(np.int32))
            self.checked["weights"] += weights.size
        self.checked["requests"] += 1
        self.checked["rows"] += len(expected)
        self.checked["ids"] += expected.size

    def run(self, steps: int = 10_000) -> None:
        for _ in range(steps):
            if not self.requests:
                break
            self.step()
        assert not self.requests, f"still running: {sorted(self.requests)}"

"""A drop-in for vLLM's `vllm.model_executor.layers.fused_moe.routed_experts_capturer` (0.21) on
routecap: the same names, signatures and meanings.

    import routecap_vllm
    routecap_vllm.install()        # before an engine is made; or change the import itself

The functions serve the capturer of the process (`init_routed_experts_capturer_with_shared_cache`),
or within `use_capturer` another one; with several models in a process, use that or the capturers'
own methods. In a worker's loop:

    init_routed_experts_capturer_with_shared_cache(...)     once
    bind_routing_capture_to_model(model)                    once, before graphs are captured
    free_routing_buffers(finished, preempted)               every step
    finalize_pending_copy() of the capturer
    model(...)                                              begin and snapshot are hooks of the model, inside its graphs
    issue_routing_d2h_copy(...)                             returns at once: copy and bookkeeping happen beside the engine
    extract_routed_experts_for_current_batch(...)           the requests that end with this step

What differs, and why: cells that were not captured are -1 instead of 0, which is an expert
(`Options.fill`); ids are logical, before load balancing; a sequence of S tokens has S-1 rows, and
no rejected draft's; layers are those that route. `Options` has what can be chosen.

Threads: one, the engine's, for all of it; what comes out of it, any. torch is imported when a
capturer is made.
"""

from __future__ import annotations

import contextlib
import contextvars
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import routecap

from . import _model_config, _op
from ._caches import _RoutedExpertsDeviceCache, _RoutedExpertsHostCache
from ._capturer import RoutedExpertsCapturer, _RoutedExpertsCapturerNoop, _RoutedExpertsCapturerReal
from ._forward import Forward
from ._options import Options, get_options, set_options
from ._platform import say_if_without_cuda
from ._results import PendingRoutedExperts, split_routed_experts

if TYPE_CHECKING:
    import torch

__all__ = [
    "Options",
    "PendingRoutedExperts",
    "RoutedExpertsCapturer",
    "begin_forward",
    "bind_routing_capture_to_model",
    "create_shared_host_cache",
    "end_forward",
    "extract_routed_experts_for_current_batch",
    "free_routing_buffers",
    "get_global_experts_capturer",
    "get_options",
    "get_shared_host_cache",
    "init_routed_experts_capturer_with_shared_cache",
    "issue_routing_d2h_copy",
    "routing_of",
    "set_global_experts_capturer",
    "set_options",
    "set_tag",
    "split_routed_experts",
    "use_capturer",
    "validity_of",
    "weights_changed",
]

if sys.modules.get("torch") is not None:
    _op.register()  # otherwise the first capturer does

say_if_without_cuda()

_NOOP = _RoutedExpertsCapturerNoop()
_global_capturer: RoutedExpertsCapturer | None = _NOOP
_used_capturer: contextvars.ContextVar[RoutedExpertsCapturer | None] = contextvars.ContextVar(
    "routecap_vllm_capturer", default=None
)
_shared_host_cache: _RoutedExpertsHostCache | None = None


# ---- The capturer in use


def get_global_experts_capturer() -> RoutedExpertsCapturer | None:
    return _used_capturer.get() or _global_capturer


def set_global_experts_capturer(capturer: RoutedExpertsCapturer | None) -> None:
    """From now on the functions here serve this capturer; None: they do nothing."""
    global _global_capturer
    _global_capturer = capturer


def _method(name: str) -> Callable[..., Any]:
    """A method of the capturer in use; the class's where one of another kind has none."""
    capturer = _used_capturer.get() or _global_capturer  # one call less, as caches are cold
    if capturer is None:
        capturer = _NOOP
    method: Callable[..., Any] | None = getattr(capturer, name, None)
    return partial(getattr(RoutedExpertsCapturer, name), capturer) if method is None else method


def _forward() -> Forward | None:
    return getattr(_method("get_device_cache")(), "forward", None)


@contextlib.contextmanager
def use_capturer(capturer: RoutedExpertsCapturer) -> Iterator[RoutedExpertsCapturer]:
    """Within it, on this thread, the functions here serve another capturer: that of a second model."""
    token = _used_capturer.set(capturer)
    try:
        yield capturer
    finally:
        _used_capturer.reset(token)


def init_routed_experts_capturer_with_shared_cache(
    enable: bool,
    model_config: object,
    num_fused_shared_experts: int,
    max_num_batched_tokens: int,
    max_model_len: int,
    device: object,
    rank: int = 0,
    world_size: int = 1,
) -> RoutedExpertsCapturer:
    """Create the capturer of this process and rank. Arguments as of `RoutedExpertsCapturer.create`.

    Ranks other than 0 of several mirror rank 0: they do the same in the forward pass, so that all
    have the same graphs, and keep no rows.
    """
    capturer = RoutedExpertsCapturer.create(
        enable=enable,
        model_config=model_config,
        num_fused_shared_experts=num_fused_shared_experts,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        device=device,
        skip_host_cache=world_size > 1 and rank != 0 and not get_options().all_ranks,
    )
    set_global_experts_capturer(capturer)
    return capturer


def get_shared_host_cache() -> _RoutedExpertsHostCache | None:
    return _shared_host_cache


def create_shared_host_cache(model_config: object, max_model_len: int) -> _RoutedExpertsHostCache:
    """A host cache that several capturers can be given (`RoutedExpertsCapturer.create`)."""
    global _shared_host_cache
    config = _model_config.hf_config_of(model_config)
    _shared_host_cache = _RoutedExpertsHostCache(
        _count_moe_layers(config), _model_config.experts_per_token(config), max_model_len
    )
    return _shared_host_cache


def _count_moe_layers(hf_config: object) -> int:
    """How many layers of a model route tokens."""
    return len(_model_config.moe_layers(hf_config))


# ---- The forward pass


def bind_routing_capture_to_model(model: object) -> None:
    """Tap the model's MoE layers, and begin and end a forward pass where the model does.

    After init, before graphs are captured.

    May be called again, also for a model that another capturer was bound to.

    Raises:
        NotImplementedError: A layer whose router sees other rows than the step's own
            (`Options.place`), or two routers in one decoder layer.
        ValueError: The model's layers are not those of its configuration.
    """
    _method("bind")(model)


def begin_forward(rows: int | None = None) -> None:
    """A forward pass of up to `rows` rows starts, padding included: for engines whose model has no
    hooks. May be captured into a CUDA graph.
    """
    forward = _forward()
    if forward is not None:
        forward.begin(rows)


def end_forward() -> None:
    """All routers of the forward pass have run. May be captured into a CUDA graph."""
    forward = _forward()
    if forward is not None:
        forward.end()


# ---- Steps and requests


def issue_routing_d2h_copy(
    input_batch_req_ids: list[str],
    num_scheduled_tokens: dict[str, int],
    positions: torch.Tensor,
    positions_cpu: torch.Tensor | None,
) -> None:
    """After a forward pass: hand its rows over.

    Waits only if as many steps are in flight as can be (`Options.slots`).

    Args:
        input_batch_req_ids: The batch, in the order of its rows.
        num_scheduled_tokens: How many rows each request has; those that are not in it have none.
            Read before the call returns.
        positions: [>= rows] the position of each row. On the capturer's device they are read in the
            order of the current stream; on the host at once.
        positions_cpu: Not needed any more, and left alone.
    """
    # The engine's thread is here in each step, with a cold cache: what is looked up is little.
    capturer = _used_capturer.get() or _global_capturer
    if type(capturer) is _RoutedExpertsCapturerReal:
        capturer.issue(input_batch_req_ids, num_scheduled_tokens, positions)
    else:
        _method("issue")(input_batch_req_ids, num_scheduled_tokens, positions)


def extract_routed_experts_for_current_batch(
    req_ids: list[str],
    requests: Mapping[str, Any],
    req_id_to_index: dict[str, int],
    num_tokens_no_spec: NDArray[Any],
    max_model_len: int,
) -> dict[str, Any] | None:
    """The rows of those requests of a batch that end with this step, as int16 arrays
    [rows, layers, k]; None if none does.

    A request ends, from `min_tokens` on, at its end-of-sequence token unless that is ignored, at
    one of `stop_token_ids`, at `max_tokens`, or where it is `max_model_len` long; also in the
    middle of several accepted tokens. It then has one row for each of its tokens but the last. If
    it goes on all the same, nothing is lost. A session's next turn goes on under its name, with
    outputs of its own, and another number of prompt tokens or other sampling parameters.

    Rows of rejected drafts are cut here, where the outputs tell which they are; under asynchronous
    scheduling they are when the next step is issued.

    Waits, when a request ends, for the steps in flight that have rows of it; with `Options.lazy`
    for nothing.

    Args:
        requests: By id; `sampling_params`, `output_token_ids` and `num_prompt_tokens` are looked
            at. A negative token is one not known yet. When the next step is issued,
            `num_computed_tokens` is: where it begins, if known.
        req_id_to_index, num_tokens_no_spec: Tokens of each request, drafts not counted: where
            `num_prompt_tokens` is not there.
    """
    ended: dict[str, Any] | None = _method("extract")(
        req_ids, requests, req_id_to_index, num_tokens_no_spec, max_model_len
    )
    return ended


def free_routing_buffers(
    finished_req_ids: set[str], preempted_req_ids: set[str] | None = None
) -> None:
    """These requests are over, and these preempted: forget their rows, or keep them as `Options`
    says. Unknown ones are none.
    """
    if finished_req_ids or preempted_req_ids:
        _method("free")(finished_req_ids, preempted_req_ids)


def set_tag(tag: int) -> None:
    """Which version the weights have from now on: each row's tag (`Routing.tags`) says under which
    it was computed. Between two steps.

    Without it the tag counts changes of the weights that the engine tells (`weights_changed`).
    """
    _method("set_tag")(tag)


def weights_changed() -> None:
    """The model's weights are others now: for whoever changes them by other means than the model's
    `load_weights` and the engine's own update."""
    _method("weights_changed")()


def routing_of(req_id: str) -> routecap.Routing | None:
    """The rows of a request with their validity, tags and layers, at any time until it is freed.

    Waits for rows in flight.

    None if it is unknown or has none.
    """
    routing: routecap.Routing | None = _method("routing")(req_id)
    return routing


def validity_of(req_id: str) -> NDArray[np.bool_] | None:
    """[rows, layers]: which cells of a request were captured. As `routing_of`."""
    routing = routing_of(req_id)
    return None if routing is None else routing.mask()

"""Finds the MoE layers of a model, and takes each layer's ids where its router leaves them: whole
rows with logical ids.

vLLM's layers can be tapped in these ways, the best first:

    router.set_capture_fn   is called with the ids before load balancing maps them to replicas
    capture_fn              the same, of a module that has no router
    experts.set_capture_fn  the same, of a kernel that routes internally and tells what it chose
    router._compute_routing the same ids; wrapped in versions whose routers have no such callback
    select_experts          (of the router or the layer) ids after that mapping, which a physical-to-logical table undoes
    _routing_replay_out     a buffer that a kernel fills that routes internally, or that the layer copies its ids into

If the logical ids of a layer cannot be had, its cells are missing, and the log says so. With
weights, see `_weights`, which refuses a layer that it cannot tap.
"""

from __future__ import annotations

import contextlib
import logging
import re
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _weights
from ._caches import _RoutedExpertsDeviceCache
from ._forward import Forward

PLACES = """
vllm.model_executor.layers.fused_moe.router.base_router
    BaseRouter._apply_eplb_mapping(self, topk_ids)
    BaseRouter.set_capture_fn(self, capture_fn)
    BaseRouter: top_k
vllm.model_executor.layers.fused_moe.router.grouped_topk_router
    GroupedTopKRouter: num_fused_shared_experts
vllm.model_executor.layers.fused_moe.router.aiter_shared_routed_fused_moe_router
    AiterSharedRoutedFusedMoERouter: num_fused_shared_experts
vllm.model_executor.layers.fused_moe.router.fused_topk_bias_router since 0.25
    FusedTopKBiasRouter: num_fused_shared_experts
vllm.model_executor.layers.fused_moe.router.zero_expert_router
    ZeroExpertRouter: zero_expert_type
vllm.model_executor.layers.fused_moe.runner.moe_runner
    MoERunner: moe_config router layer_name _quant_method
vllm.model_executor.layers.fused_moe.config
    FusedMoEConfig: dp_size is_sequence_parallel experts_per_token
vllm.model_executor.layers.fused_moe.fused_moe_method_base
    FusedMoEMethodBase: supports_internal_mk is_monolithic
vllm.model_executor.layers.fused_moe.routed_experts_capturer since 0.28
    RoutedExpertsCaptureSource: layer_id capture_fn
"""  # what this module replaces and reads

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("vllm.routecap")  # which vLLM shows

MAX_EXPERTS = 32768  # ids are int16
_CLASSES = {"FusedMoE", "SharedFusedMoE", "MoERunner"}
_QUANT = ("quant_method", "_quant_method")  # of FusedMoE, and of MoERunner
_bindings: weakref.WeakKeyDictionary[Any, Binding] = weakref.WeakKeyDictionary()


class Layer(NamedTuple):
    """A module that routes. `place` is the index of its layer in the decoder, None if unknown."""

    name: str
    module: Any
    place: int | None


class Binding:
    """What was installed on a model, so that it can be removed."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []
        self.layers: dict[int, str] = {}  # captured layer -> how it is tapped

    def set(self, owner: object, name: str, value: object) -> None:
        """Set an attribute of a module or router of the engine."""
        own = vars(owner)
        if name in own:
            old = own[name]
            self._undo.append(lambda: setattr(owner, name, old))
        else:
            self._undo.append(lambda: delattr(owner, name))
        setattr(owner, name, value)

    def call_after(self, owner: object, name: str, function: Callable[[], object]) -> None:
        """Call a function after each call of a method, also after one that raises."""
        if not hasattr(owner, name):
            logger.warning(
                "routed experts: %s has no %s, by which routecap hears of new weights: call"
                " weights_changed() where they change",
                type(owner).__name__,
                name,
            )
            return
        method = getattr(owner, name)

        def called(*args: object, **kwargs: object) -> Any:
            try:
                return method(*args, **kwargs)
            finally:
                function()

        self.set(owner, name, called)

    def add(self, undo: Callable[[], object]) -> None:
        self._undo.append(undo)

    def remove(self) -> None:
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()


def bind(
    model: object,
    cache: _RoutedExpertsDeviceCache,
    layer_map: list[int],
    experts: int,
    placed: bool,
) -> Binding:
    """Tap every MoE layer of a model. An earlier binding of the same model is removed first.

    Args:
        cache: The buffer that is written, bound by its capturer.
        layer_map: Where each captured layer is in the decoder.
        experts: The most experts of any layer.
        placed: Whether it is known which rows a router of a parallel layer sees (`Options.place`).
    """
    forward = cache.forward
    assert forward is not None
    previous = _bindings.pop(model, None)
    if previous is not None:
        previous.remove()
    binding = Binding()
    try:
        _mark_static(cache.buffer)
        for captured, layer in _assign(list(_find_layers(model)), layer_map):
            _check_layout(layer, experts, placed)
            if widths := widths_of(layer, cache.buffer.shape[2]):
                forward.widths[captured] = widths
            if cache.weights is None:
                binding.layers[captured] = _tap(binding, layer, captured, cache, forward)
            else:
                method = _of_layer(layer.module, *_QUANT)
                taken = layer.name, layer.module, method, captured, cache.buffer, forward
                binding.layers[captured] = _weights.tap(*taken, binding.set)
        _delimit(binding, model, cache, forward)
    except BaseException:
        binding.remove()
        raise
    _bindings[model] = binding

    untapped = [layer_map[c] for c, tap in binding.layers.items() if not tap]
    absent = [index for captured, index in enumerate(layer_map) if captured not in binding.layers]
    if untapped:
        logger.error(
            "routed experts: decoder layers %s will be missing, because their ids cannot be had."
            " Look at the messages before this one: they say why, and what to do",
            untapped,
        )
    if absent:
        logger.warning(
            "routed experts: decoder layers %s will be missing here, because the model has no MoE"
            " layers there. Unless another stage of the pipeline has them, give the configuration"
            " that the model was made from",
            absent,
        )
    logger.info(
        "routed experts: bound %d of %d layers", len(binding.layers) - len(untapped), len(layer_map)
    )
    return binding


def bind_buffer(model: object, buffer: torch.Tensor) -> None:
    """Give every MoE layer its part of the buffer [layers, rows, k] of a foreign capturer."""
    _mark_static(buffer)
    for index, layer in _assign_by_id(list(_find_layers(model)), len(buffer)):
        _check_layout(layer, MAX_EXPERTS, placed=False)
        view = buffer[index]
        _mark_static(view)
        layer.module._routing_replay_out = view


def experts_of(model: object) -> int | None:
    """The most experts of any MoE layer, as the layers say; None if one of them does not say."""
    found = [getattr(layer.module, "logical_num_experts", None) for layer in _find_layers(model)]
    numbers = [number for number in found if isinstance(number, int)]
    return max(numbers) if numbers and len(numbers) == len(found) else None


# ---- Finding them


def _find_layers(model: Any) -> Iterator[Layer]:
    """The modules that route, without the parts of one that share its router."""
    named = (
        model.named_modules()
        if hasattr(model, "named_modules")
        else (("", module) for module in model.modules())
    )
    found: list[str] = []
    for name, module in named:
        known = _is_known(module) or _tells(module) or hasattr(module, "moe_layer_id")
        if not known and not callable(
            getattr(getattr(module, "router", None), "select_experts", None)
        ):
            continue
        if name and any(outer and name.startswith(outer + ".") for outer in found):
            continue
        found.append(name)
        yield Layer(name or getattr(module, "layer_name", ""), module, _decoder_index(name, module))


def _is_known(module: object) -> bool:
    """Whether it is one of vLLM's own layers that route."""
    return any(cls.__name__ in _CLASSES for cls in type(module).__mro__)


def _tells(module: object) -> bool:
    """Whether it is given ids and tells them, as vLLM's protocol RoutedExpertsCaptureSource says."""
    return hasattr(module, "layer_id") and hasattr(module, "capture_fn")


def _decoder_index(name: str, module: object) -> int | None:
    for text in (name, getattr(module, "layer_name", "")):
        if numbers := re.findall(r"(?:^|\.)(\d+)(?=\.|$)", text):
            return int(numbers[0])
    return None


def _assign(layers: list[Layer], layer_map: list[int]) -> list[tuple[int, Layer]]:
    """Which captured layer each module is: by its place in the decoder; where no name tells it, by
    the order of `moe_layer_id`.
    """
    if any(layer.place is None for layer in layers):
        return _assign_by_id(layers, len(layer_map))
    captured = {index: c for c, index in enumerate(layer_map)}
    assigned: dict[int, Layer] = {}
    for layer in layers:
        assert layer.place is not None
        if layer.place not in captured:
            if layer_map and layer.place > layer_map[-1]:
                logger.info(
                    "routed experts: %s is not captured: it comes after the decoder's layers, as"
                    " a draft model's does",
                    layer.name,
                )
                continue
            raise ValueError(
                f"{layer.name} routes, but by the model's configuration only layers {layer_map} of"
                " the decoder do: give the configuration that the model was made from"
            )
        expect_one_router(assigned.get(layer.place), layer)
        assigned[layer.place] = layer
    return [(captured[index], layer) for index, layer in assigned.items()]


def expect_one_router(other: Layer | None, layer: Layer) -> None:
    """Refuse a decoder layer with a second router: each of them sees a part of the rows, and no
    capture knows which. vLLM's own takes the rows of one for those of the other.

    Raises:
        ValueError: `other` routes in the same decoder layer.
    """
    if other is not None:
        raise ValueError(
            f"{other.name} ({type(other.module).__name__}) and {layer.name} both route in one"
            " decoder layer. Each sees a part of the rows, and no capture knows which, vLLM's own"
            " neither: make the engine of this model without --enable-return-routed-experts"
        )


def _assign_by_id(layers: list[Layer], count: int) -> list[tuple[int, Layer]]:
    """`moe_layer_id` counts the layers of all models of a process: with a second model it does not
    begin at 0.
    """
    ids = [getattr(layer.module, "moe_layer_id", order) for order, layer in enumerate(layers)]
    first = min(ids, default=0) if max(ids, default=0) >= count else 0
    if len(set(ids)) != len(ids) or max(ids, default=0) - first >= count:
        raise ValueError(
            f"{len(layers)} modules route with the numbers {ids}, but by the model's configuration"
            f" {count} layers do: give the configuration that the model was made from"
        )
    return [(i - first, layer) for i, layer in zip(ids, layers, strict=True)]


def _check_layout(layer: Layer, experts: int, placed: bool) -> None:
    """Refuse a layer whose router sees other rows than the step's own, unless it is known which,
    and a layer with more experts than can be captured.
    """
    config = _of_layer(layer.module, "moe_config")
    layout = None
    if config is not None and config.is_sequence_parallel:
        layout = "sequence parallelism: each rank routes a part of the rows"
    elif config is not None and config.dp_size > 1:
        method = _of_layer(layer.module, *_QUANT)
        if not method.supports_internal_mk or method.is_monolithic is True:
            layout = "data parallelism that gathers the rows of all ranks before routing"
    if layout is not None and not placed:
        raise NotImplementedError(
            f"{layer.name or 'a layer'} has {layout}. Set Options.place to say which rows are this"
            " rank's"
        )
    logical = getattr(layer.module, "logical_num_experts", None)
    if isinstance(logical, int) and logical > experts:
        raise ValueError(
            f"{layer.name} has {logical} experts, but by the model's configuration there are"
            f" {experts}: give the configuration that the model was made from"
        )


def widths_of(layer: Layer, k: int) -> tuple[int, int] | None:
    """How many columns the ids of a layer may have: its experts a token, and behind them shared
    ones that its router appends. None of a module of another kind: the model's `k` then.

    Raises:
        ValueError: It is more than `k`, or a layer of vLLM does not say it.
    """
    router, fused = getattr(layer.module, "router", None), 0
    if router is not None and hasattr(router, "top_k"):
        chosen, fused = router.top_k, getattr(router, "num_fused_shared_experts", 0)
    else:
        config = _of_layer(layer.module, "moe_config")
        if config is None:
            return None
        chosen = config.experts_per_token
    if chosen > k:
        raise ValueError(
            f"{layer.name} chooses {chosen} experts a token, but by the model's configuration it is"
            f" {k}: give the configuration that the model was made from"
        )
    return chosen, chosen + fused


def _of_layer(module: object, *names: str) -> Any:
    """An attribute that a layer of vLLM has under one of these names; None of a module of another
    kind without it.

    Raises:
        ValueError: A layer of vLLM has none of them.
    """
    for name in names:
        if hasattr(module, name):
            return getattr(module, name)
    if _is_known(module):
        raise ValueError(
            f"{type(module).__name__} of {type(module).__module__} has no {' or '.join(names)}, and"
            " so does not say whose rows its router sees: install a version of vLLM that routecap"
            " supports"
        )
    return None


# ---- Tapping one


def hides_zero_experts(layer: Layer) -> bool:
    """Whether the router gives 0 in the place of zero experts, which the log says then."""
    router = getattr(layer.module, "router", None)
    hides = getattr(router, "zero_expert_type", None) is not None
    if hides:
        logger.error(
            "routed experts: %s replaces the ids of zero experts by 0 before they can be captured. "
            "Leave its layer out of replay",
            layer.name,
        )
    return hides


def _tap(
    binding: Binding,
    layer: Layer,
    captured: int,
    cache: _RoutedExpertsDeviceCache,
    forward: Forward,
) -> str:
    """Returns how it is done, or "" if the ids cannot be had."""
    module = layer.module
    router = getattr(module, "router", None)
    balanced = _is_balanced(module) or _is_balanced(router)
    quant_method = _of_layer(module, *_QUANT)
    internal = quant_method is not None and quant_method.is_monolithic is True
    buffers = [
        owner
        for owner in (module, router)
        if owner is not None and hasattr(owner, "_routing_replay_out")
    ]

    table: Callable[[], torch.Tensor] | None = None

    def record(topk_ids: torch.Tensor, *_: object) -> None:
        import torch

        logical = table() if table is not None else None
        if torch.compiler.is_compiling():
            ids = topk_ids if logical is None else _look_up(logical, topk_ids)
            torch.ops.vllm.capture_routing(cache.buffer, ids, captured, ids.shape[0])
        else:
            forward.route(captured, topk_ids, logical)

    if router is None and _tells(module):
        binding.set(module, "capture_fn", record)
        return "callback"
    if internal or (router is None and not callable(getattr(module, "select_experts", None))):
        if balanced:
            logger.error(
                "routed experts: %s routes inside a kernel, to replicas of experts. Make the "
                "engine without expert load balancing to capture it",
                layer.name,
            )
            return ""
        if (experts := _experts_inside(quant_method)) is not None:
            experts.set_capture_fn(record)
            binding.add(lambda: experts.set_capture_fn(None))
            return "callback"
        view = cache.buffer[captured]
        _mark_static(view)
        for owner in buffers or [module]:
            binding.set(owner, "_routing_replay_out", view)
        return "buffer"
    for owner in buffers:  # or it would be written again there, after the mapping to replicas
        binding.set(owner, "_routing_replay_out", None)

    if hides_zero_experts(layer):
        return ""

    set_capture_fn = getattr(router, "set_capture_fn", None)
    if callable(set_capture_fn):
        set_capture_fn(record)
        binding.add(lambda: set_capture_fn(None))
        return "callback"
    if callable(getattr(router, "_compute_routing", None)):
        _wrap(binding, router, "_compute_routing", record)
        return "router"
    if balanced:
        table = _placement(module) or _placement(router)
        if table is None:
            logger.error(
                "routed experts: %s gives ids of replicas, and has no table of their experts. Make "
                "the engine without expert load balancing to capture it",
                layer.name,
            )
            return ""
    owner = router if callable(getattr(router, "select_experts", None)) else module
    _wrap(binding, owner, "select_experts", record)
    return "selection"


def _experts_inside(quant_method: object) -> Any:
    """What tells the ids that a kernel chooses; None of a kernel that does not, and until 0.26."""
    kernel = getattr(getattr(quant_method, "moe_kernel", None), "impl", None)
    experts = getattr(kernel, "fused_experts", None)
    tells = getattr(experts, "supports_routing_replay_capture", None)
    return experts if tells is not None and tells() else None


def _wrap(
    binding: Binding, owner: object, name: str, record: Callable[[torch.Tensor], None]
) -> None:
    """Record the second result of a method: (weights, ids, ...)."""
    method = getattr(owner, name)

    def recorded(*args: object, **kwargs: object) -> Any:
        result = method(*args, **kwargs)
        record(result[1])
        return result

    binding.set(owner, name, recorded)


def _is_balanced(owner: object) -> bool:
    """Whether expert-parallel load balancing maps ids to those of replicas."""
    if getattr(owner, "enable_eplb", False):
        return True
    return getattr(getattr(owner, "eplb_state", None), "logical_to_physical_map", None) is not None


def _placement(owner: object) -> Callable[[], torch.Tensor] | None:
    """A function that returns the expert of each replica by the layer's present tables, which
    rebalancing rewrites in place on the device.
    """
    import torch

    for state in (getattr(owner, "eplb_state", None), owner):
        experts = getattr(state, "physical_to_logical_map", None)
        if experts is not None:
            return lambda: experts.to(torch.int32)
        replicas = getattr(state, "logical_to_physical_map", None)
        if replicas is not None:
            return lambda: _inverted(replicas)
    return None


def _look_up(table: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    ids = ids.long()
    inside = (ids >= 0) & (ids < len(table))
    return table[ids.where(inside, 0)].where(inside, -1)


def _inverted(replicas: torch.Tensor) -> torch.Tensor:
    """The expert of each replica, from the replicas of each expert: [experts, most replicas], with
    negative numbers where there are fewer.
    """
    import torch

    places = replicas.flatten().long()
    count = len(places)  # there are no more replicas than entries
    experts = torch.arange(
        len(replicas), dtype=torch.int32, device=replicas.device
    ).repeat_interleave(replicas.shape[1])
    table = torch.full((count + 1,), -1, dtype=torch.int32, device=replicas.device)
    return table.scatter_(0, places.where(places >= 0, count), experts)[:count]


# ---- Around them


def _delimit(
    binding: Binding, model: Any, cache: _RoutedExpertsDeviceCache, forward: Forward
) -> None:
    """Begin and snapshot around the model's forward pass, inside a graph if it is captured into
    one.
    """
    if not hasattr(model, "register_forward_pre_hook"):
        logger.warning(
            "routed experts: %s takes no hooks: call begin_forward and end_forward around it",
            type(model).__name__,
        )
        return

    def before(module: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        import torch

        rows = _rows_of(args, kwargs)
        if torch.compiler.is_compiling():
            torch.ops.routecap.begin_forward(
                cache.buffer, cache.buffer.shape[1] if rows is None else rows
            )
        else:
            forward.begin(rows)

    def after(module: object, args: tuple[Any, ...], output: object) -> None:
        import torch

        if torch.compiler.is_compiling():
            torch.ops.routecap.end_forward(cache.buffer)
        else:
            forward.end()

    binding.add(model.register_forward_pre_hook(before, with_kwargs=True).remove)
    binding.add(model.register_forward_hook(after).remove)
    forward.delimited = True


def _rows_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """How many tokens a forward pass has, padding included, by the model's arguments. None if they
    do not say it for certain: too few rows would lose some, too many only cost a little.
    """
    for name in ("input_ids", "positions"):
        tensor = kwargs.get(name)
        if tensor is not None:
            rows: int = tensor.shape[-1] if name == "positions" else tensor.numel()
            return rows
    if kwargs.get("inputs_embeds") is not None:
        rows = kwargs["inputs_embeds"].shape[:-1].numel()
        return rows
    if args and getattr(args[0], "ndim", 0) in (1, 2) and not args[0].is_floating_point():
        rows = args[0].numel()
        return rows
    return None


def _mark_static(tensor: torch.Tensor) -> None:
    """Tell compilers that the memory stays where it is, so that their graphs do not copy it."""
    import torch

    marks = (
        (torch.compiler, "cudagraph_mark_tensor_static", ()),
        (torch._C, "_set_static_address_tag", (True,)),
    )
    for owner, name, arguments in marks:  # by release
        if callable(mark := getattr(owner, name, None)):
            mark(tensor, *arguments)
            break
    with contextlib.suppress(Exception):  # best effort: a part of torch that need not be there
        import torch._dynamo

        torch._dynamo.mark_static_address(tensor)

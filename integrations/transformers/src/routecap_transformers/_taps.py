"""Finding where a model of any family leaves the ids of its experts.

What is tapped, by family:

    experts     a module whose forward has a parameter `top_k_index` (in gpt_oss, `router_indices`): hidden states [rows, hidden], ids [rows, k],
                weights [rows, k] come in. That is every class under transformers' `use_experts_implementation`, and dbrx, longcat_flash and
                step3p7, which do without it
    jetmoe      the gate of its feed-forward block gives ids sorted by expert and how many each expert has; they are put back in order. So do
                the three of granitemoe before 5.13
    llama4      the router gives scores [rows, experts], which are 0 but for the experts that it chose
    zaya        the experts get id 0 for a token that skips them. The router's choice is made again
                from its logits, as it makes it; the id of a skip is the one behind the experts
    ernie4_5_vl_moe
                a layer has two banks of experts, and the block that has both is tapped: see _banks

Where layers run in a loop, each visit of a layer has a tap of its own, on the same module.

Weights are those that the experts are given beside the ids, or that the gate or router puts out in
their place.

Rows are those of the forward pass, batch * length of them with padding, in the order of the batch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import torch
from torch import nn

import routecap

from routecap.models import Description, describe

from ._banks import KINDS, NAMES, Bank, Banks

Ids = Callable[[tuple[Any, ...], dict[str, Any], Any], torch.Tensor]


@dataclass(frozen=True, eq=False)
class Tap:
    """One layer that routes, and how its ids are had."""

    layer: int
    """Index in the decoder: dense layers have their numbers too."""
    name: str
    """Of the module in the model."""
    module: nn.Module = field(repr=False)
    """What is hooked."""
    before: bool
    """Hooked before its forward, whose arguments have the ids; otherwise behind it."""
    ids: Ids = field(repr=False)
    """From arguments, keyword arguments and output (None before) of a call to ids [rows, k], or to
    logits [rows, experts] if there is a router.
    """
    k: int
    experts: int
    """Ids are below this, zero experts included."""
    router: routecap.Router | None = field(default=None, repr=False)
    """How ids are chosen from logits. The layer's provenance is then RECOMPUTED, and it has no
    weights.
    """
    gate: nn.Module | None = field(default=None, repr=False)
    """The module that routes, beside the experts, for those who need weights or logits; None if it
    is not known.
    """
    weights: Ids | None = field(default=None, repr=False)
    """From what `ids` is given to the weights [rows, k], that of each id; None: they are not had."""
    visit: int = 0
    """How often the module ran before in a forward pass, where layers run in a loop: there is a tap
    for each of its runs.
    """
    banks: Banks | None = field(default=None, repr=False)
    """What `ids` and `weights` are put together from, if it needs hooks of its own."""


def expect_model(function: str, model: object) -> None:
    if not isinstance(model, nn.Module):
        given = repr(model) if isinstance(model, str) else type(model).__name__
        raise TypeError(
            f"{function}() takes a model, a torch.nn.Module, not {given}: give what"
            " AutoModelForCausalLM.from_pretrained(...) returns"
        )


def find(model: nn.Module) -> list[Tap]:
    """The layers of a model that route, in order.

    Raises:
        ValueError: None does, or none that is known; two stacks of layers do, or two modules of one
            layer that are no banks which are known; layers run in a loop, and nothing says which;
            experts are distributed, and their ids are not of all.
    """
    expect_model("find", model)
    modules = dict(model.named_modules())
    taps: list[Tap] = []
    for name, module in modules.items():
        known = _known(name, module)
        if known is not None:
            taps.append(_tap(model, modules, name, module, *known))
    if not taps:
        suspects = sorted(
            {type(module).__name__ for module in modules.values() if _looks_like_routing(module)}
        )
        kind = type(model).__name__
        if suspects:
            raise ValueError(
                f"{kind} routes in a way that routecap does not know ({', '.join(suspects)}): give"
                " attach() taps of your own"
            )
        raise ValueError(
            f"{kind} has no mixture-of-experts layers: there is nothing to capture. Give a"
            " mixture-of-experts model"
        )
    taps = [
        replace(tap, visit=visit)
        for tap in _joined(modules, taps)
        for visit in range(_visits(model, tap))
    ]
    taps = in_order(taps)
    _expect_all(modules, taps)
    return taps


def _expect_all(modules: dict[str, nn.Module], taps: list[Tap]) -> None:
    """No layer beside those that are tapped has experts."""
    stack, layers = stack_of(taps[0].name), {tap.layer for tap in taps}
    for name, module in modules.items():
        kind = type(module).__name__
        if not kind.lower().endswith(("experts", "router")):
            continue
        parts, number = _number(name)
        if ".".join(parts) == stack and number is not None and number not in layers:
            raise ValueError(
                f"{name} ({kind}) routes in a way that routecap does not know, and other layers of"
                " the model in one that it knows: give attach() taps of your own"
            )


def in_order(taps: list[Tap]) -> list[Tap]:
    """Taps by layer and visit, all of one decoder."""
    stacks = sorted({stack_of(tap.name) for tap in taps})
    if len(stacks) > 1:
        raise ValueError(
            f"experts in several stacks of layers ({', '.join(stacks)}): attach to one of them, or"
            " give attach() the taps of one"
        )
    layers: dict[int, list[Tap]] = {}
    for tap in sorted(taps, key=lambda tap: (tap.layer, tap.visit)):
        layers.setdefault(tap.layer, []).append(tap)
    for first, *others in layers.values():
        for other in others:
            if other.module is not first.module:
                raise ValueError(
                    f"{first.name} and {other.name} route in one layer. If they are two banks of"
                    " experts, each sees a part of the tokens, and nothing says which: give attach()"
                    " one tap of your own for each layer, on the module that has both banks"
                )
        visits = [tap.visit for tap in (first, *others)]
        if visits != list(range(len(visits))):
            raise ValueError(
                f"{first.name} has taps of the visits {visits}: give one for each time that it runs"
                " in a forward pass, from visit 0 on"
            )
    return [tap for each in layers.values() for tap in each]


def stack_of(name: str) -> str:
    """The decoder of a tapped module: "model" of "model.layers.3.mlp.experts"."""
    return ".".join(_split(name)[0])


def layer_of(name: str) -> int:
    """The number of the layer in which a module is: 3 of "model.layers.3.mlp.experts"."""
    return _split(name)[1]


def _split(name: str) -> tuple[list[str], int]:
    stack, number = _number(name)
    if number is None:
        raise ValueError(
            f"{name} is in no numbered layer of a decoder: give attach() taps of your own"
        )
    return stack, number


def _number(name: str) -> tuple[list[str], int | None]:
    parts = name.split(".")
    at = next((i for i, part in enumerate(parts) if part.isdigit()), None)
    return (parts, None) if at is None else (parts[: at - 1], int(parts[at]))


# ---- What is known


_IDS = ("top_k_index", "router_indices")
_WEIGHTS = ("top_k_weights", "routing_weights")


def _argument(
    names: tuple[str, ...],
    place: int,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    output: object,
) -> torch.Tensor:
    """One of the arguments that experts are given. place: Of it among them."""
    if len(args) > place:
        return args[place]
    found = next((kwargs[name] for name in names if name in kwargs), None)
    if found is None:
        raise ValueError(
            f"the experts are given none of {', '.join(names)}, but {', '.join(kwargs)}: give"
            " attach() taps of your own"
        )
    return found


def _gating_ids(args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> torch.Tensor:
    order, _, _, counts, _ = output
    sorted_ids = torch.arange(len(counts), device=order.device).repeat_interleave(
        torch.as_tensor(counts, device=order.device)
    )
    return _put_back(order, sorted_ids, args)


def _gating_weights(args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> torch.Tensor:
    order, _, gates, _, _ = output
    return _put_back(order, gates, args)


def _put_back(order: torch.Tensor, by_expert: torch.Tensor, args: tuple[Any, ...]) -> torch.Tensor:
    """[rows, k] of what a gate gives sorted by expert."""
    return torch.empty_like(by_expert).scatter_(0, order, by_expert).view(len(args[0]), -1)


def _scattered_ids(
    router: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
) -> torch.Tensor:
    scores, logits = (each.detach() for each in output)
    if scores.shape != logits.shape or scores.shape[-1] != router.num_experts:
        raise ValueError(
            f"a {type(router).__name__} gives {list(scores.shape)} and {list(logits.shape)}, and"
            f" scores and logits of {router.num_experts} experts are expected: give attach() taps of"
            " your own"
        )
    # A score may be rounded to 0, and its logit is then still among the largest.
    keys = torch.where(scores != 0, torch.inf, logits.nan_to_num())
    order = keys.sort(dim=-1, descending=True, stable=True).indices
    return order[:, : router.top_k].contiguous()


def _scattered_weights(
    router: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
) -> torch.Tensor:
    scores: torch.Tensor = output[0]
    return scores.gather(-1, _scattered_ids(router, args, kwargs, output))


def _zaya_ids(
    router: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
) -> torch.Tensor:
    logits: torch.Tensor = output[0]
    biased = logits.softmax(-1).detach().float() + router.balancing_biases
    return biased.topk(output[2].shape[-1], -1).indices


def _zaya_weights(args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> torch.Tensor:
    weights: torch.Tensor = output[1]
    return weights


def _known(name: str, module: nn.Module) -> tuple[bool, Ids, Ids | None] | None:
    """before, ids and weights of a tap."""
    kind = type(module).__name__
    if kind == "ZayaRouter":
        return False, partial(_zaya_ids, module), _zaya_weights
    if kind != "ZayaExperts" and (place := _place_of(_IDS, module.__class__)) is not None:
        beside = _place_of(_WEIGHTS, module.__class__)
        weights = None if beside is None else partial(_argument, _WEIGHTS, beside)
        return True, partial(_argument, _IDS, place), weights
    if kind.endswith("TopKGating") and name.endswith(("mlp.router", "block_sparse_moe.router")):
        # the other gate of a layer of jetmoe routes its attention
        return False, _gating_ids, _gating_weights
    if kind == "Llama4Router":
        return False, partial(_scattered_ids, module), partial(_scattered_weights, module)
    return None


@cache
def _place_of(arguments: tuple[str, ...], kind: Any) -> int | None:
    """Where modules of a class get one of these arguments; None if they get none."""
    _, *names = inspect.signature(kind.forward).parameters
    return next((names.index(name) for name in arguments if name in names), None)


def _looks_like_routing(module: nn.Module) -> bool:
    kind = type(module).__name__.lower()
    return any(word in kind for word in ("router", "moe", "experts", "topkgat"))


def _tap(
    model: nn.Module,
    modules: dict[str, nn.Module],
    name: str,
    module: nn.Module,
    before: bool,
    ids: Ids,
    weights: Ids | None,
) -> Tap:
    layer = layer_of(name)
    block = modules[name.rpartition(".")[0]]
    gate = next(
        (
            each
            for each in (getattr(block, "gate", None), getattr(block, "router", None))
            if isinstance(each, nn.Module)
        ),
        None,
    )
    owners = module, gate, block
    said = describe(_config(model, module))
    k = _of_layer(said, said.layer_k, layer)
    k = _attribute(owners, "top_k", "num_experts_per_tok") if k is None else k
    experts = _of_layer(said, said.layer_experts, layer)
    experts = None if experts is None else experts // said.banks  # a module has one of them
    if experts is None:
        experts = _attribute(
            owners, "total_experts", "num_experts", "num_local_experts", "n_routed_experts"
        )
    if k is None or experts is None:
        raise ValueError(
            f"nothing says how many experts {name} chooses, and among how many: give attach() taps"
            " of your own"
        )
    part = getattr(module, "num_experts", experts) < experts - said.zero_experts
    if part and not _gets_global_ids(module):
        raise ValueError(
            f"{name} has a part of the experts (expert parallelism), and nothing says that its ids are"
            " of all of them: this version of transformers gives experts the ids of their own part"
            " (5.19 and later do not), or distributes them otherwise. Give a model that has them all"
        )
    return Tap(layer, name, module, before, ids, k, experts, gate=gate, weights=weights)


def _config(model: nn.Module, module: nn.Module) -> object:
    return getattr(module, "config", None) or getattr(model, "config", None)


def _visits(model: nn.Module, tap: Tap) -> int:
    """How often a tapped module runs in a forward pass."""
    config = _config(model, tap.module)
    if (layer_map := describe(config).layer_map) is not None:
        return max(1, layer_map.count(tap.layer))
    if (passes := getattr(config, "loop_num_passes", 1)) > 1:
        raise ValueError(
            f"{tap.name} cannot be captured: the configuration says that layers run {passes} times in"
            " a loop, and not which. Give attach() taps of your own, one for each visit of a layer"
        )
    return 1  # what has no such field, or another, is seen when it runs


def _joined(modules: dict[str, nn.Module], taps: list[Tap]) -> list[Tap]:
    """Banks of experts of one layer as one tap, on the block that gives each its tokens."""
    blocks: dict[str, list[Tap]] = {}
    for tap in taps:
        block, _, bank = tap.name.rpartition(".")[0].rpartition(".")
        blocks.setdefault(block if bank in NAMES else tap.name, []).append(tap)
    return [
        tap
        for name, each in blocks.items()
        for tap in ([_bank_tap(name, modules[name], each)] if len(each) == len(NAMES) else each)
    ]


def _bank_tap(name: str, block: nn.Module, taps: list[Tap]) -> Tap:
    text, vision = sorted(taps, key=lambda tap: NAMES.index(tap.name.split(".")[-2]))
    place = _place_of((KINDS,), block.__class__)
    if place is None:
        raise ValueError(
            f"{text.name} and {vision.name} are banks of experts, and {name} is not given"
            f" {KINDS}, by which each gets its tokens: this version of transformers calls it"
            " otherwise. Give attach() taps of your own"
        )
    banks = []
    for tap in (text, vision):
        held = getattr(tap.module, "num_experts", None)
        if tap.weights is None or held is None or held > tap.experts:
            raise ValueError(
                f"{tap.name} has {held} experts and {tap.experts} were expected, behind which the ids"
                " of the next bank begin: give attach() taps of your own"
            )
        banks.append(Bank(tap.name, tap.module, tap.experts, tap.ids, tap.weights))
    both = Banks(name, place, banks)
    return Tap(
        layer=text.layer,
        name=name,
        module=block,
        before=False,
        ids=both.ids,
        k=text.k,
        experts=text.experts + vision.experts,
        weights=both.weights,
        banks=both,
    )


def _gets_global_ids(module: nn.Module) -> bool:
    """Whether a module that has a part of the experts is given ids of all of them: its forward is
    that of transformers' dispatch, which sends tokens to the experts behind our hook.
    """
    forward = vars(module).get("forward")
    name = getattr(forward, "__qualname__", "")
    return name.startswith("EpDispatchExpertsParallel.") and any(
        each in inspect.signature(forward).parameters for each in _IDS
    )


def _of_layer(said: Description, numbers: tuple[int, ...] | None, layer: int) -> int | None:
    """One of the numbers that a configuration says of its layers."""
    if said.layer_map is None or numbers is None or layer not in said.layer_map:
        return None
    return numbers[said.layer_map.index(layer)]


def _attribute(owners: tuple[nn.Module | None, ...], *names: str) -> int | None:
    return next(
        (
            value
            for owner in owners
            for name in names
            if isinstance(value := getattr(owner, name, None), int)
        ),
        None,
    )

"""The places of transformers that a capture hooks and reads, and whether a release has them.

Each is looked for by name. In releases that routecap is checked with, attaching looks for those that
it is about to use. In another, all of them are looked for before anything else.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from routecap.adapter import option_values

from ._names import CACHE, TOKENS, expect, expect_parameters, of_transformers
from ._versions import KNOWN, Options, is_checked, number

logger = logging.getLogger("routecap_transformers")

CALLED = ("generate", "prepare_inputs_for_generation")
PREPARES = ("_get_logits_processor", "_get_stopping_criteria")
"""Of transformers' own loop, which a wrapper of another library calls."""
SETTINGS = ("num_beams", "eos_token_id", "pad_token_id")
BATCHING = "transformers.generation.continuous_batching"

_FURTHER = {
    "transformers.modeling_flash_attention_utils": ("FlashAttentionKwargs", "cu_seq_lens_q"),
    f"{BATCHING}.input_outputs": ("PagedAttentionArgs", "read_index"),
}
"""What a forward takes without a parameter of that name: the class that declares it, by module."""
_REQUESTS = (
    (
        "requests",
        "RequestState",
        ("request_id", "initial_tokens", "generated_tokens", "position_offset"),
    ),
    ("requests", "FutureRequestState", ("state", "query_length")),
    ("input_outputs", "ContinuousBatchingIOs", ("requests_in_batch", "compute_stream")),
    ("continuous_api", "ContinuousBatchProcessor", ("inputs_and_outputs",)),
)
_ROWS = ("reorder_cache", "batch_repeat_interleave", "batch_select_indices")
_CACHES = {
    "Cache": ("get_seq_length",),
    "DynamicLayer": ("get_seq_length", "update", "reset", "crop", *_ROWS),
    "StaticLayer": ("get_seq_length", "update", "reset"),
}


def expect_known(model: nn.Module, unchecked: bool | None) -> str:
    """The release of transformers is one that routecap is checked with, or has all places and the
    user lets it.

    unchecked: Whether the user lets it; None: the environment says that.

    Returns: What is to be said of it: "not checked with transformers 5.99.0"; "" if it is checked.
    """
    release = number()
    if release is None or is_checked(release):
        return ""
    if not any(of_transformers(module) for module in model.modules()):
        return ""
    if unchecked is None:
        options = Options(**option_values(Options, "ROUTECAP_TRANSFORMERS_", os.environ))
        unchecked = options.unchecked
    fits, bad = look()
    if bad or not unchecked:
        raise ValueError(_why(release, fits, bad))
    note = f"not checked with transformers {release}"
    logger.warning("routecap is %s: take one of %s for rows that were checked", note, KNOWN)
    return note


def look() -> tuple[list[str], dict[str, str]]:
    """Which places fit, and of those that do not, why."""
    fits: list[str] = []
    bad: dict[str, str] = {}
    for place, expect_place in _PLACES.items():
        try:
            expect_place()
        except (ImportError, AttributeError, ValueError) as reason:
            bad[place] = str(reason).partition(": this version of transformers")[0]
        else:
            fits.append(place)
    return fits, bad


def _why(release: str, fits: Sequence[str], bad: dict[str, str]) -> str:
    lines = [
        f"routecap knows transformers {KNOWN}, and this is {release}. Of the places that"
        f" routecap_transformers hooks and reads, {len(fits)} of {len(fits) + len(bad)} fit."
    ]
    if bad:
        lines += ["These do not fit:", *(f"  {place}: {why}" for place, why in bad.items())]
        lines += ["These fit:"] if fits else []
    else:
        lines += [
            "attach(model, unchecked=True) or ROUTECAP_TRANSFORMERS_UNCHECKED=1 runs it, not"
            " checked with this release. These fit:"
        ]
    return "\n".join([*lines, *(f"  {place}" for place in fits)])


# ---- One by one


def expect_further(decoder: nn.Module | None = None) -> None:
    """What a decoder of transformers takes among its further arguments has the names that are
    known.
    """
    if decoder is not None and ("transformers" not in sys.modules or not of_transformers(decoder)):
        return
    for module, (name, member) in _FURTHER.items():
        try:
            declared = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as reason:
            raise ValueError(
                f"{module} has no {name}, by which {member} is known: this version of transformers"
                f" calls it otherwise. Give a model of a version that routecap knows ({KNOWN})"
            ) from reason
        if member not in declared.__annotations__:
            raise ValueError(
                f"{name}({', '.join(declared.__annotations__)}) has no {member}: this version of"
                " transformers calls it otherwise. Give a model of a version that routecap knows"
                f" ({KNOWN})"
            )


def expect_loop(kind: Any) -> None:
    """What is read of transformers' own loop has the names that are known."""
    expect(kind, (*CALLED, *PREPARES))
    expect_parameters(kind.generate, ("inputs", "generation_config"))
    prepares = [vars(each)[CALLED[1]] for each in kind.__mro__ if CALLED[1] in vars(each)]
    # The others hand theirs on to it.
    expect_parameters(prepares[-1], ("attention_mask", *TOKENS), CACHE)


def expect_batching() -> Any:
    """What runs a step of a continuous batch, and what is read of one that is scheduled."""
    processor = _of(f"{BATCHING}.continuous_api", "ContinuousBatchProcessor")
    expect(processor, ("_generation_step",))
    return processor


def _expect_requests() -> None:
    for module, kind, names in _REQUESTS:
        owner = _of(f"{BATCHING}.{module}", kind)
        said = {*getattr(owner, "__annotations__", ()), *_assigned(owner)}
        if missing := [name for name in names if name not in said]:
            raise ValueError(f"{kind} must have {missing[0]}")


def _assigned(kind: object) -> set[str]:
    """What objects of a class are given by their first method."""
    code = getattr(vars(kind).get("__init__"), "__code__", None)
    return set() if code is None else set(code.co_names)


def _expect_caches() -> None:
    for kind, names in _CACHES.items():
        expect(_of("transformers.cache_utils", kind), names)


def _of(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as reason:
        raise ValueError(
            f"{module} has no {name}: this version of transformers calls it otherwise. Give a model"
            f" of a version that routecap knows ({KNOWN})"
        ) from reason


_PLACES: dict[str, Callable[[], object]] = {
    "the experts' dispatch": lambda: _of(
        "transformers.integrations.moe", "use_experts_implementation"
    ),
    "further arguments of a forward pass": expect_further,
    "generate": lambda: expect_loop(_of("transformers", "GenerationMixin")),
    "its settings": lambda: expect(_of("transformers", "GenerationConfig")(), SETTINGS),
    "caches": _expect_caches,
    "continuous batching": expect_batching,
    "its requests": _expect_requests,
}

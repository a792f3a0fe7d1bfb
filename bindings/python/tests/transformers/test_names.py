"""Names of transformers that are not what the adapter knows: it refuses, or rows are missing, and
none is another token's.

transformers 5.24 renamed `past_key_values` to `cache`. Every forward pass that went on with a cache
became a new and complete routing at position 0, and replay no longer saw that a cache had tokens.
"""

import inspect
from typing import Any

import numpy as np
import pytest
import torch
from families import CACHE, VERSION, VOCABULARY, Witness, make, rows_of
from routecap import Routing
from routecap.replay.transformers import attach as replay_in
from routecap.transformers import attach
from torch import nn
from transformers import DynamicCache


@pytest.fixture
def model() -> Any:
    return make("qwen3_moe")


def rename(module: nn.Module, old: str, new: str) -> None:
    """From now on the module is of a copy of its class in which a parameter of forward has another
    name, and so it has for those who call it.
    """
    kind: Any = type(module)
    names = inspect.signature(kind.forward).parameters
    assert old in names

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return nn.Module.__call__(self, *args, **{new if n == old else n: v for n, v in kwargs.items()})

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return kind.forward(self, *args, **{old if n == new else n: v for n, v in kwargs.items()})

    forward.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [each.replace(name=new) if each.name == old else each for each in names.values()]
    )
    module.__class__ = type(kind.__name__, (kind,), {"__call__": call, "forward": forward})


def whole(model: Any, tokens: torch.Tensor) -> np.ndarray:
    """[tokens, layers, k] what the routers choose for one sequence in one pass."""
    with Witness(model) as witness, torch.no_grad():
        model(input_ids=tokens, use_cache=False)
    return rows_of(witness.passes, [torch.ones_like(tokens)], 1)[0].numpy()


# ---- The cache


@pytest.mark.filterwarnings("ignore:.*past_key_values.*is deprecated:FutureWarning")
@pytest.mark.parametrize("name", ["past_key_values", *["cache"] * (VERSION >= (5, 24))])
def test_passes_go_on_with_a_cache_by_either_name(model: Any, name: str) -> None:
    tokens = torch.randint(3, VOCABULARY, (1, 8))
    cache = DynamicCache(config=model.config)
    with attach(model) as capture, torch.no_grad():
        for part in tokens.split([4, 3, 1], 1):
            model(input_ids=part, **{name: cache})
        [routing] = capture.take()
    assert routing.complete
    assert (np.sort(routing.ids(), -1) == whole(model, tokens)).all()


def test_a_cache_that_the_model_ignores_is_not_gone_on_with(model: Any) -> None:
    """Before 5.24 a forward takes `cache=` among its further arguments, and does without."""
    kind = type(model.model)

    class Earlier(kind):
        def forward(
            self,
            input_ids: Any = None,
            attention_mask: Any = None,
            position_ids: Any = None,
            past_key_values: Any = None,
            inputs_embeds: Any = None,
            use_cache: Any = None,
            **ignored: Any,
        ) -> Any:
            given = {CACHE: past_key_values, "inputs_embeds": inputs_embeds, "use_cache": use_cache}
            return kind.forward(self, input_ids, attention_mask, position_ids, **given)

    decoder = model.model
    decoder.__class__ = Earlier
    tokens = torch.randint(3, VOCABULARY, (1, 8))
    cache = DynamicCache(config=model.config)
    with attach(decoder) as capture, torch.no_grad():
        for part in tokens.split(4, 1):
            decoder(input_ids=part, cache=cache, use_cache=False)
        routings = capture.take()
    assert cache.get_seq_length() == 0
    for part, routing in zip(tokens.split(4, 1), routings, strict=True):
        assert routing.complete and (np.sort(routing.ids(), -1) == whole(model, part)).all()


def test_a_cache_of_an_unknown_name_is_refused(model: Any) -> None:
    for module in (model, model.model):
        rename(module, CACHE, "memory")
    cache = DynamicCache(config=model.config)
    tokens = torch.randint(3, VOCABULARY, (1, 4))
    names = r"\(input_ids, attention_mask, position_ids, memory, .*\)"
    with attach(model) as capture, torch.no_grad():
        for forward in (model, model.model):
            with pytest.raises(ValueError, match=names + " is given a cache as memory"):
                forward(input_ids=tokens, memory=cache)
            with pytest.raises(ValueError, match=names + " has none of cache, past_key_values"):
                forward(input_ids=tokens)
        assert capture.take() == []


def test_replay_refuses_a_cache_of_an_unknown_name(model: Any) -> None:
    for module in (model, model.model):
        rename(module, CACHE, "memory")
    ids = np.tile(np.array([1, 2], np.uint8), (3, 2, 1))
    routing = Routing.from_arrays(ids, experts=8, layer_map=[0, 2])
    with (
        replay_in(model) as replay,
        replay([routing]),
        pytest.raises(ValueError, match="has none of cache, past_key_values, cache_params"),
    ):
        model(input_ids=torch.tensor([[5, 6, 7, 8]]))


@pytest.mark.filterwarnings("ignore:.*past_key_values.*is deprecated:FutureWarning")
@pytest.mark.parametrize("name", ["past_key_values", *["cache"] * (VERSION >= (5, 24))])
def test_replay_refuses_a_cache_with_tokens_by_either_name(model: Any, name: str) -> None:
    tokens = torch.randint(3, VOCABULARY, (1, 4))
    cache = DynamicCache(config=model.config)
    routing = Routing.from_arrays(whole(model, tokens).astype(np.uint8), experts=8, layer_map=[0, 2])
    with torch.no_grad(), replay_in(model) as replay:
        model(input_ids=tokens, **{name: cache})
        with replay([routing]), pytest.raises(ValueError, match="continues a cache"):
            model(input_ids=tokens, **{name: cache})

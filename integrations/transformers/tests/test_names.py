"""Names of transformers that are not what the adapter knows: it refuses, or rows are missing, and
none is another token's.

transformers 5.24 renamed `past_key_values` to `cache`. Every forward pass that went on with a cache
became a new and complete routing at position 0, and replay no longer saw that a cache had tokens.
"""

import inspect
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from families import CACHE, RESET_EMPTIES, VERSION, VOCABULARY, Witness, make, rows_of
from routecap import Routing
from routecap_replay.transformers import attach as replay_in
from routecap_transformers import attach
from torch import nn
from transformers import (
    ContinuousBatchingConfig,
    DynamicCache,
    GenerationConfig,
    GenerationMixin,
    StaticCache,
)
from transformers.generation.continuous_batching import continuous_api


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
        return nn.Module.__call__(
            self, *args, **{new if n == old else n: v for n, v in kwargs.items()}
        )

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return kind.forward(self, *args, **{old if n == new else n: v for n, v in kwargs.items()})

    forward.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [each.replace(name=new) if each.name == old else each for each in names.values()]
    )
    module.__class__ = type(kind.__name__, (kind,), {"__call__": call, "forward": forward})


def renamed_for_routecap(owner: Any, name: str) -> Any:
    """An object of a copy of its class in which routecap does not find an attribute. transformers,
    whose code is not rewritten here, finds it still.
    """
    kind: Any = type(owner)
    missing = object()
    own = vars(owner).pop(name, missing)

    def get(self: Any) -> Any:
        if sys._getframe(1).f_globals["__name__"].partition(".")[0] == "routecap_transformers":
            raise AttributeError(f"{kind.__name__} has no attribute {name!r}")
        held = vars(self).get("_" + name, missing)
        return getattr(super(copied, self), name) if held is missing else held

    def put(self: Any, value: Any) -> None:
        vars(self)["_" + name] = value

    copied: Any = type(kind.__name__, (kind,), {name: property(get, put)})
    owner.__class__ = copied
    if own is not missing:
        vars(owner)["_" + name] = own
    return owner


def expect_no_wrong_row(model: Any, run: Callable[[], Any], *texts: torch.Tensor) -> str:
    """What a call is refused with; or its rows are those of these texts, or missing."""
    refused = ""
    with attach(model) as capture, torch.no_grad():
        try:
            run()
        except (ValueError, AttributeError, TypeError) as refusal:
            refused = str(refusal)
        routings = capture.take()
    found = [whole(model, each) for each in texts]
    for routing in routings:
        there = routing.mask().all(1)
        ids = np.sort(routing.ids(), -1)
        assert any(
            len(rows) >= len(ids) and (ids[there] == rows[: len(ids)][there]).all()
            for rows in found
        ), f"rows of another token: {routing}"
    return refused


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
    routing = Routing.from_arrays(
        whole(model, tokens).astype(np.uint8), experts=8, layer_map=[0, 2]
    )
    with torch.no_grad(), replay_in(model) as replay:
        model(input_ids=tokens, **{name: cache})
        with replay([routing]), pytest.raises(ValueError, match="continues a cache"):
            model(input_ids=tokens, **{name: cache})


# ---- The other arguments of a forward pass

PADDED = torch.tensor([[0, 0, 0, 11, 12, 13], [21, 22, 23, 24, 25, 26]])
MASK = (PADDED != 0).long()
TEXTS = PADDED[:1, 3:], PADDED[1:]


@pytest.mark.parametrize("name", ["input_ids", "inputs_embeds", "attention_mask", "position_ids"])
@pytest.mark.parametrize("where", ["both", "model", "decoder"])
def test_an_argument_of_a_forward_pass_that_was_renamed(model: Any, name: str, where: str) -> None:
    embedded = model.get_input_embeddings()(PADDED).detach()
    padded = {"input_ids": PADDED, "attention_mask": MASK, "position_ids": MASK.cumsum(1) - 1}
    padded["position_ids"] = padded["position_ids"].clamp(min=0)
    if name == "inputs_embeds":
        padded["inputs_embeds"] = embedded
        del padded["input_ids"]
    packed = torch.cat([PADDED[:1, 3:], PADDED[1:]], 1)
    several = {"input_ids": packed, "position_ids": torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4, 5]])}
    modules = {"both": (model, model.model), "model": (model,), "decoder": (model.model,)}[where]
    for module in modules:
        rename(module, name, "other")
    refused = []
    for given in (padded, several):
        if where != "decoder":
            given = {"other" if each == name else each: value for each, value in given.items()}
        if where != "decoder" and "other" not in given:
            continue
        run = lambda given=given: model(**given, use_cache=False)  # noqa: E731
        refused.append(expect_no_wrong_row(model, run, *TEXTS))
    if where == "both":
        assert refused and all(
            "Qwen3MoeModel.forward(" in each and "other" in each for each in refused
        )


@pytest.mark.parametrize(
    ("where", "kind", "member"),
    [
        ("transformers.modeling_flash_attention_utils", "FlashAttentionKwargs", "cu_seq_lens_q"),
        (
            "transformers.generation.continuous_batching.input_outputs",
            "PagedAttentionArgs",
            "read_index",
        ),
    ],
)
def test_a_further_argument_that_was_renamed_is_refused(
    model: Any, where: str, kind: str, member: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = getattr(sys.modules[where], kind)
    others = {name: each for name, each in declared.__annotations__.items() if name != member}
    monkeypatch.setattr(sys.modules[where], kind, type(kind, (), {"__annotations__": others}))
    with pytest.raises(ValueError, match=f"{kind}.* has no {member}"):
        attach(model)
    monkeypatch.delattr(sys.modules[where], kind)
    with pytest.raises(ValueError, match=f"has no {kind}, by which {member} is known"):
        attach(model)


# ---- generate


@pytest.mark.parametrize(
    "name",
    [
        "generate",
        "prepare_inputs_for_generation",
        "_get_logits_processor",
        "_get_stopping_criteria",
    ],
)
def test_a_part_of_the_loop_that_was_renamed_is_refused(
    model: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GenerationMixin, "renamed", getattr(GenerationMixin, name), raising=False)
    monkeypatch.delattr(GenerationMixin, name)
    with pytest.raises(ValueError, match=f"Qwen3MoeForCausalLM has no {name}"):
        attach(model)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        ("generate", "inputs"),
        ("generate", "generation_config"),
        ("prepare_inputs_for_generation", "input_ids"),
        ("prepare_inputs_for_generation", "inputs_embeds"),
        ("prepare_inputs_for_generation", "attention_mask"),
        ("prepare_inputs_for_generation", CACHE),
    ],
)
def test_an_argument_of_the_loop_that_was_renamed_is_refused(
    model: Any, function: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = getattr(GenerationMixin, function)
    names = inspect.signature(theirs).parameters.values()

    def copied(self: Any, *args: Any, **kwargs: Any) -> Any:
        return theirs(self, *args, **kwargs)

    copied.__qualname__ = theirs.__qualname__
    copied.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [each.replace(name="other") if each.name == name else each for each in names]
    )
    monkeypatch.setattr(GenerationMixin, function, copied)
    with pytest.raises(
        ValueError, match=rf"GenerationMixin\.{function}\(.*other.*\) has no.* {name}"
    ):
        attach(model)


@pytest.mark.parametrize("name", ["num_beams", "eos_token_id", "pad_token_id"])
def test_a_setting_of_the_loop_that_was_renamed_is_refused(model: Any, name: str) -> None:
    mine = renamed_for_routecap(GenerationConfig(max_new_tokens=2, do_sample=False), name)
    with attach(model), pytest.raises(ValueError, match=f"GenerationConfig has no {name}"):
        model.generate(PADDED, attention_mask=MASK, generation_config=mine)
    renamed_for_routecap(model.generation_config, name)
    with pytest.raises(ValueError, match=f"GenerationConfig has no {name}"):
        attach(model)


@pytest.mark.parametrize("name", ["_get_logits_processor", "_get_stopping_criteria"])
def test_a_part_of_the_loop_that_gives_something_else_is_refused(
    model: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = getattr(GenerationMixin, name)
    monkeypatch.setattr(GenerationMixin, name, lambda *a, **k: tuple(theirs(*a, **k)))
    with attach(model), pytest.raises(TypeError, match="gave tuple, a list was expected"):
        model.generate(PADDED, attention_mask=MASK, max_new_tokens=2, do_sample=False)


def test_the_inputs_of_a_step_that_were_renamed_are_refused(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = GenerationMixin.prepare_inputs_for_generation

    for name in (CACHE, "input_ids"):

        def prepared(self: Any, *args: Any, name: str = name, **kwargs: Any) -> Any:
            inputs = theirs(self, *args, **kwargs)
            inputs["other"] = inputs.pop(name)
            return inputs

        prepared.__signature__ = inspect.signature(theirs)  # type: ignore[attr-defined]
        monkeypatch.setattr(GenerationMixin, "prepare_inputs_for_generation", prepared)
        refusal = expect_no_wrong_row(
            model,
            lambda: model.generate(PADDED, attention_mask=MASK, max_new_tokens=2, do_sample=False),
        )
        assert "Qwen3MoeForCausalLM.forward(" in refusal and "other" in refusal


# ---- Continuous batching


@pytest.mark.parametrize("name", ["ContinuousBatchProcessor", "_generation_step"])
def test_a_part_of_continuous_batching_that_was_renamed_is_refused(
    model: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner: Any = continuous_api
    if name == "_generation_step":
        owner = continuous_api.ContinuousBatchProcessor
    monkeypatch.delattr(owner, name)
    with pytest.raises(ValueError, match=f"has no {name}"):
        attach(model)


class Proxy:
    """An object, and those that it leads to, without an attribute of this name."""

    def __init__(self, of: Any, lacks: str) -> None:
        vars(self).update(of=of, lacks=lacks)

    def __getattr__(self, name: str) -> Any:
        if name == self.lacks:
            raise AttributeError(f"{type(self.of).__name__} has no attribute {name!r}")
        value = getattr(self.of, name)
        if name == "requests_in_batch":
            return [Proxy(each, self.lacks) for each in value]
        return Proxy(value, self.lacks) if name in ("inputs_and_outputs", "state") else value


@pytest.mark.parametrize(
    "name",
    [
        "inputs_and_outputs",
        "requests_in_batch",
        "compute_stream",
        "state",
        "query_length",
        "position_offset",
        "request_id",
        "initial_tokens",
        "generated_tokens",
    ],
)
def test_an_attribute_of_continuous_batching_that_was_renamed(
    model: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import routecap_transformers._follow as adapter

    prompt = PADDED[1].tolist()
    config = GenerationConfig(max_new_tokens=4, do_sample=False, eos_token_id=2, pad_token_id=0)
    memory = ContinuousBatchingConfig(num_blocks=16, max_batch_tokens=32)
    processor: Any = continuous_api.ContinuousBatchProcessor
    rows = whole(model, PADDED[1:])
    with attach(model) as capture:
        theirs = inspect.getclosurevars(processor._generation_step).nonlocals["generation_step"]

        def step(self: Any, *args: Any, **kwargs: Any) -> Any:
            ours = adapter._followed(lambda proxy, *a, **k: theirs(self, *a, **k))
            return ours(Proxy(self, name), *args, **kwargs)

        monkeypatch.setattr(processor, "_generation_step", step)
        model.generate_batch(
            inputs=[prompt], generation_config=config, continuous_batching_config=memory
        )
        try:
            routings = capture.take()
        except AttributeError as refusal:
            assert name in str(refusal)
            return
    for routing in routings:
        there = routing.mask().all(1)
        assert (np.sort(routing.ids(), -1)[there] == rows[: routing.rows][there]).all()


# ---- Caches


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("name", ["layers", "get_seq_length", "has_previous_state"])
@pytest.mark.parametrize("of", ["cache", "layers"])
def test_an_attribute_of_a_cache_that_was_renamed(
    model: Any, kind: str, name: str, of: str
) -> None:
    cache: Any = DynamicCache(config=model.config)
    if kind == "static":
        cache = StaticCache(config=model.config, max_cache_len=16)
    owners = [cache] if of == "cache" else cache.layers
    for owner in owners:
        if hasattr(owner, name):
            renamed_for_routecap(owner, name)
    tokens = torch.randint(3, VOCABULARY, (1, 8))

    def run() -> None:
        for part in tokens.split([5, 2, 1], 1):
            model(input_ids=part, **{CACHE: cache})

    expect_no_wrong_row(model, run, tokens)


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize(
    "name", ["crop", "reset", "reorder_cache", "batch_select_indices", "batch_repeat_interleave"]
)
def test_an_operation_of_a_cache_that_was_renamed(model: Any, kind: str, name: str) -> None:
    cache: Any = DynamicCache(config=model.config)
    if kind == "static":
        cache = StaticCache(config=model.config, max_cache_len=16)
    operation = getattr(type(cache.layers[0]), name, None)
    if kind == "static" and (operation is None or name.startswith("batch")):
        return  # it has none
    if kind == "dynamic" and name == "reset" and not RESET_EMPTIES:
        return  # what is computed behind columns of zeros is no text's
    tokens = torch.randint(3, VOCABULARY, (2, 8))
    rows, argument = {
        "crop": ([0, 1], (-2,)),
        "reset": ([0, 1], ()),
        "reorder_cache": ([1, 0], (torch.tensor([1, 0]),)),
        "batch_select_indices": ([1, 0], (torch.tensor([1, 0]),)),
        "batch_repeat_interleave": ([0, 0, 1, 1], (2,)),
    }[name]
    left = {"crop": 4, "reset": 0}.get(name, 6)
    more = torch.randint(3, VOCABULARY, (len(rows), 2))

    def run() -> None:
        model(input_ids=tokens[:, :6], **{CACHE: cache})
        for layer in cache.layers:
            operation(layer, *argument)
        model(input_ids=more, **{CACHE: cache})

    after = torch.cat([tokens[rows][:, :left], more], 1)
    before = list(tokens[:, :6].split(1))
    expect_no_wrong_row(model, run, *before, *after.split(1))


# ---- Experts


@pytest.mark.parametrize("layers", [[0, 2], [2]])
def test_the_ids_of_experts_that_were_renamed_are_refused(model: Any, layers: list[int]) -> None:
    for layer in layers:
        rename(model.model.layers[layer].mlp.experts, "top_k_index", "chosen")
    with pytest.raises(ValueError, match="in a way that routecap does not know"):
        attach(model)


def test_ids_that_are_given_in_another_place_are_found(model: Any) -> None:
    """They were taken for the second argument, whatever that was."""
    experts = model.model.layers[2].mlp.experts
    kind = type(experts)

    class Swapped(kind):
        def __call__(self, states: Any, ids: Any, weights: Any) -> Any:
            return nn.Module.__call__(self, states, weights, ids)

        def forward(self, hidden_states: Any, top_k_weights: Any, top_k_index: Any) -> Any:
            return kind.forward(self, hidden_states, top_k_index, top_k_weights)

    experts.__class__ = Swapped
    assert expect_no_wrong_row(model, lambda: model(PADDED[1:], use_cache=False), PADDED[1:]) == ""

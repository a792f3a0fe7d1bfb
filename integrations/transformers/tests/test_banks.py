"""Layers with a bank of experts for text and one for images: a captured layer has both, with the ids
of the second behind those of the first. Judged by hooks on the routers, which find the tokens that
each was given among those of the layer, by their states.
"""

import copy
from typing import Any, Self

import numpy as np
import pytest
import routecap
import torch
from families import CACHE, EXPERTS, K, checkpoint, make_banked
from routecap_replay.transformers import attach as replay_in
from routecap_transformers import attach, find
from transformers import DynamicCache

PROMPTS = torch.tensor([[0, 0, 0, 11, 12, 13], [21, 22, 23, 24, 25, 26], [0, 0, 0, 0, 0, 7]])
MASK = (PROMPTS != 0).long()
IMAGES = torch.tensor([[0, 0, 0, 1, 0, 2], [0, 1, 1, 1, 0, 0], [0, 0, 0, 0, 0, 0]])
TOKENS = torch.arange(3, 20)[None]
OF_IMAGES = torch.tensor([[0, 0, 1, 1, 1, 1, 0, 0, 2, 2, 0, 0, 1, 0, 0, 0, 0]])


@pytest.fixture
def model() -> Any:
    return make_banked()


class Routers:
    """Hooks on the routers: `ids` and `weights` have of each forward pass [tokens, layers, k], in
    the order of the sorted ids."""

    def __init__(self, model: Any) -> None:
        self.ids: list[np.ndarray] = []
        self.weights: list[np.ndarray] = []
        self._layers: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._states = torch.empty(0)
        self._undo: list[Any] = []
        decoder = model.model.language_model
        for layer in decoder.layers[1:]:
            self._undo.append(layer.mlp.register_forward_pre_hook(self._begin))
            for bank, routed in enumerate((layer.mlp.text_moe, layer.mlp.vision_moe)):

                def see(module: Any, args: Any, output: Any, bank: int = bank) -> None:
                    ids, weights = sorted(output[1:], key=torch.is_floating_point)
                    self._see(bank, args[0].cpu(), ids.cpu(), weights.cpu())

                self._undo.append(routed.gate.register_forward_hook(see))
        self._undo.append(decoder.register_forward_hook(self._end))

    def _begin(self, block: Any, args: Any) -> None:
        self._states = args[0].detach().flatten(0, 1).cpu()
        rows = len(self._states)
        self._layers.append((torch.full((rows, K), -1), torch.full((rows, K), torch.nan)))

    def _see(self, bank: int, states: Any, ids: Any, weights: Any) -> None:
        if not len(states):  # all tokens are of images
            return
        same = (self._states[:, None] == states.detach()[None]).all(-1)
        rows, of = same.any(1), same.int().argmax(1)
        assert same.any(0).all()
        ordered = ids.sort(-1)
        mine, beside = self._layers[-1]
        mine[rows] = ordered.values[of[rows]] + EXPERTS * bank
        beside[rows] = weights.detach().gather(-1, ordered.indices)[of[rows]]

    def _end(self, *unused: object) -> None:
        ids, weights = ([each[i] for each in self._layers] for i in (0, 1))
        self.ids.append(torch.stack(ids, 1).numpy())
        self.weights.append(torch.stack(weights, 1).numpy())
        self._layers = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        for each in self._undo:
            each.remove()


def is_told(routing: routecap.Routing, ids: np.ndarray, weights: np.ndarray | None = None) -> bool:
    """Whether a routing is complete, and has these ids and weights."""
    assert (ids >= 0).all()
    order = np.argsort(routing.ids(), -1)
    mine = np.take_along_axis(routing.ids(), order, -1)
    right = routing.complete and np.array_equal(mine, ids)
    if right and weights is not None:
        right = np.array_equal(np.take_along_axis(routing.weights(), order, -1), weights)
    return right


def banks_of(routing: routecap.Routing) -> np.ndarray:
    """[rows] 0 for text and 1 for images, as all ids of a row say."""
    banks = (routing.ids() // EXPERTS).reshape(routing.rows, -1)
    assert (banks == banks[:, :1]).all()
    return banks[:, 0]


def test_every_row_of_a_left_padded_generation_has_the_ids_of_its_bank(model: Any) -> None:
    with attach(model, weights="float32") as capture, Routers(model) as routers:
        model.generate(
            input_ids=PROMPTS,
            attention_mask=MASK,
            moe_mm_token_type_ids=IMAGES,
            max_new_tokens=6,
            do_sample=False,
            eos_token_id=None,
        )
        routings = capture.take()
    assert [tap.name for tap in capture.taps] == [
        f"model.language_model.layers.{layer}.mlp" for layer in (1, 2)
    ]
    masks = [MASK] + [torch.ones(3, 1)] * 5
    for number, routing in enumerate(routings):
        assert routing.layer_map.tolist() == [1, 2] and not routing.layer_visit.any()
        assert routing.layer_experts.tolist() == [2 * EXPERTS] * 2 and routing.k == K
        ids, weights = (
            np.concatenate(
                [
                    rows.reshape(*mask.shape, 2, K)[number][mask[number].numpy() != 0]
                    for rows, mask in zip(each, masks, strict=True)
                ]
            )
            for each in (routers.ids, routers.weights)
        )
        assert is_told(routing, ids, weights)
        shown = IMAGES[number][MASK[number] != 0].bool().tolist()
        assert banks_of(routing).astype(bool).tolist() == shown + [False] * 5


@pytest.mark.parametrize("kinds", ["both", "text", "images", "none"])
def test_tokens_of_one_kind_or_of_both_have_the_ids_of_their_banks(model: Any, kinds: str) -> None:
    given = {
        "both": OF_IMAGES,
        "text": torch.zeros_like(OF_IMAGES),
        "images": torch.ones_like(OF_IMAGES),
        "none": None,
    }[kinds]
    with attach(model, weights="float32", steps=True) as capture, Routers(model) as routers:
        for _ in range(3):  # from the second on, ids may be held to the end of a pass
            with torch.no_grad():
                model(input_ids=TOKENS, moe_mm_token_type_ids=given)
        routings = capture.take()
    expected = torch.zeros_like(OF_IMAGES) if given is None else given
    for number, routing in enumerate(routings):
        assert is_told(routing, routers.ids[number], routers.weights[number])
        assert banks_of(routing).tolist() == expected[0].bool().int().tolist()
    assert [each.tolist() for each in capture.steps or ()] == [[0] * 17, [1] * 17, [2] * 17]


def test_chunks_of_a_prompt_and_copies_of_its_cache_have_both_banks(model: Any) -> None:
    def run(begin: int, end: int, cache: Any) -> None:
        kinds = OF_IMAGES[:, begin:end]
        model(input_ids=TOKENS[:, begin:end], moe_mm_token_type_ids=kinds, **{CACHE: cache})

    with (
        attach(model, weights="float32", store=1 << 22) as capture,
        Routers(model) as routers,
        torch.no_grad(),
    ):
        cache = DynamicCache(config=model.config.get_text_config())
        run(0, 6, cache)
        run(6, 9, cache)
        other = copy.deepcopy(cache)
        run(9, 17, cache)
        model(input_ids=TOKENS[:, 9:] + 30, **{CACHE: other})
        one, two = capture.take()
    for routing, passes in ((one, (0, 1, 2)), (two, (0, 1, 3))):
        ids, weights = ([of[each] for each in passes] for of in (routers.ids, routers.weights))
        assert is_told(routing, np.concatenate(ids), np.concatenate(weights))


@pytest.mark.parametrize("reentrant", [True, False])
def test_banks_that_run_again_in_backward_leave_their_rows_as_they_were(
    model: Any, reentrant: bool
) -> None:
    with Routers(model) as routers, torch.no_grad():
        model(input_ids=TOKENS, moe_mm_token_type_ids=OF_IMAGES)
    checkpoint(model, use_reentrant=reentrant)
    model.train()
    with attach(model, weights="float32") as capture:
        for _ in range(2):
            output = model(
                input_ids=TOKENS, moe_mm_token_type_ids=OF_IMAGES, labels=TOKENS, use_cache=False
            )
            output.loss.backward()
        routings = capture.take()
    assert len(routings) == 2
    assert all(is_told(each, routers.ids[0], routers.weights[0]) for each in routings)


def test_ids_that_experts_write_over_are_those_of_the_router(model: Any) -> None:
    """They are put together when both banks have run."""
    for layer in model.model.language_model.layers[1:]:
        for experts in (layer.mlp.text_moe.experts, layer.mlp.vision_moe.experts):

            def rewriting(states: Any, ids: Any, weights: Any, run: Any = experts.forward) -> Any:
                output = run(states, ids, weights)
                ids.zero_()
                weights.zero_()
                return output

            experts.forward = rewriting
    with attach(model, weights="float32") as capture, torch.no_grad():
        with Routers(model) as routers:
            for kinds in (OF_IMAGES, None) * 2:
                model(input_ids=TOKENS, moe_mm_token_type_ids=kinds, use_cache=False)
        routings = capture.take()
    for number, routing in enumerate(routings):
        assert is_told(routing, routers.ids[number], routers.weights[number])


def test_the_language_model_alone_is_captured(model: Any) -> None:
    decoder = model.model.language_model
    with attach(decoder) as capture, Routers(model) as routers, torch.no_grad():
        decoder(input_ids=TOKENS, moe_mm_token_type_ids=OF_IMAGES)
        [routing] = capture.take()
    assert is_told(routing, routers.ids[0])


def test_a_pass_that_fails_leaves_nothing_to_the_next(model: Any) -> None:
    bank = model.model.language_model.layers[2].mlp.vision_moe
    with attach(model) as capture, torch.no_grad():
        forward = bank.forward
        bank.forward = lambda states: forward(states)[:0]
        with pytest.raises(ValueError, match="unpack"):
            model(input_ids=TOKENS, moe_mm_token_type_ids=OF_IMAGES)
        bank.forward = forward
        with Routers(model) as routers:
            model(input_ids=TOKENS[:, :5])
            model(input_ids=TOKENS, moe_mm_token_type_ids=OF_IMAGES)
        routings = capture.take()
    assert len(routings) == 2
    assert all(is_told(*each) for each in zip(routings, routers.ids))


# ---- Compiled


def layers_behind_attach(model: Any, capture_of: Any) -> Any:
    capture = capture_of(model)
    for layer in model.model.language_model.layers:
        layer.compile(backend="eager")
    return capture, model


def whole(model: Any, capture_of: Any) -> Any:
    run = torch.compile(model, backend="eager")
    return capture_of(run), run


@pytest.mark.usefixtures("compiler")
@pytest.mark.slow
@pytest.mark.parametrize("way", [layers_behind_attach, whole])
def test_a_compiled_model_has_the_banks_of_the_eager_one(model: Any, way: Any) -> None:
    kinds = (OF_IMAGES, None, OF_IMAGES.roll(3))
    with Routers(model) as routers, torch.no_grad():
        for each in kinds:
            model(input_ids=TOKENS, moe_mm_token_type_ids=each, use_cache=False)
    capture, run = way(model, lambda module: attach(module, weights="float32"))
    with capture, torch.no_grad():
        for each in kinds:
            run(input_ids=TOKENS, moe_mm_token_type_ids=each, use_cache=False)
        routings = capture.take()
    assert len(routings) == 3
    for number, routing in enumerate(routings):
        assert is_told(routing, routers.ids[number], routers.weights[number])


# ---- What is refused


def test_a_bank_of_other_tokens_than_are_said_to_be_its_is_refused_and_named(model: Any) -> None:
    block = model.model.language_model.layers[1].mlp
    forward = block.forward
    with attach(model) as capture, torch.no_grad():
        for kinds in (1 - OF_IMAGES.bool().int(), OF_IMAGES.new_ones(1, 16)):
            block.forward = lambda states, unused, kinds=kinds: forward(
                states[:, : kinds.shape[1]], kinds
            )
            with pytest.raises(
                ValueError,
                match=r"layers.1.mlp.text_moe.experts was given \d+ tokens and .*layers.1.mlp"
                r".vision_moe.experts \d+, and moe_mm_token_type_ids of .*layers.1.mlp says that \d+ of 17",
            ):
                model(input_ids=TOKENS, moe_mm_token_type_ids=OF_IMAGES)
        block.forward = lambda states, unused: forward(states, OF_IMAGES)
        with pytest.raises(ValueError, match="says that no tokens are of images"):
            model(input_ids=TOKENS)
        assert capture.take() == []


def test_a_bank_that_is_not_seen_is_refused_and_named(model: Any) -> None:
    block = model.model.language_model.layers[1].mlp
    with attach(model) as capture, torch.no_grad():
        block.text_moe.forward = lambda states: (
            states.flatten(),
            states.new_zeros(states.numel() // 64 * EXPERTS),
        )
        with pytest.raises(
            ValueError, match="layers.1.mlp.text_moe.experts was not seen to choose"
        ):
            model(input_ids=TOKENS)
        assert capture.take() == []


def test_a_block_that_is_told_the_kinds_otherwise_is_refused_and_named(model: Any) -> None:
    block = model.model.language_model.layers[1].mlp

    class Other(type(block)):  # type: ignore[misc]
        def forward(self, hidden_states: Any, image_tokens: Any = None) -> Any:
            return super().forward(hidden_states, image_tokens)

    block.__class__ = Other
    with pytest.raises(
        ValueError, match="layers.1.mlp is not given moe_mm_token_type_ids, by which"
    ):
        attach(model)


def test_a_bank_with_more_experts_than_the_configuration_says_is_refused_and_named(
    model: Any,
) -> None:
    """An id behind those of the first bank would be one of the second."""
    model.model.language_model.layers[2].mlp.text_moe.experts.num_experts = EXPERTS + 1
    with pytest.raises(ValueError, match="layers.2.mlp.text_moe.experts has 9 experts and 8 were"):
        find(model)


def test_banks_are_not_replayed_and_the_module_is_named(model: Any) -> None:
    with pytest.raises(ValueError, match="layers.1.mlp gives each bank .* not replayed"):
        replay_in(model)

"""Layers that run in a loop: each visit of a layer is a captured layer of its own, with what its
router chose in that run. Judged by hooks on the routers, which keep every run of a forward pass.
"""

import copy
import io
from dataclasses import replace
from typing import Any, Self

import numpy as np
import pytest
import routecap
import torch
from families import CACHE, checkpoint, make, make_looped
from routecap_replay.transformers import attach as replay_in
from routecap_transformers import Tap, attach, find
from transformers import DynamicCache

PROMPTS = torch.tensor([[0, 0, 0, 11, 12, 13], [21, 22, 23, 24, 25, 26], [0, 0, 0, 0, 0, 7]])
MASK = (PROMPTS != 0).long()
TOKENS = torch.arange(3, 20)[None]
LAYERS, VISITS = [0, 1, 1, 1, 2, 2, 2, 3], [0, 0, 1, 2, 0, 1, 2, 0]


@pytest.fixture
def model() -> Any:
    return make_looped()


class Runs:
    """Hooks on the routers: `ids` and `weights` have of each forward pass [tokens, runs, k], those
    of a layer behind one another, in the order of the sorted ids."""

    def __init__(self, model: Any) -> None:
        self._passes: list[list[list[tuple[torch.Tensor, torch.Tensor]]]] = []
        layers = model.model.layers
        self._undo = [
            model.model.register_forward_pre_hook(
                lambda *unused: self._passes.append([[] for _ in layers])
            )
        ]
        for layer, block in enumerate(layers):

            def see(module: Any, args: Any, output: Any, layer: int = layer) -> None:
                _, weights, ids = output
                ordered = ids.sort(-1)
                beside = weights.detach().gather(-1, ordered.indices)
                self._passes[-1][layer].append((ordered.values.cpu(), beside.cpu()))

            self._undo.append(block.mlp.gate.register_forward_hook(see))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        for each in self._undo:
            each.remove()

    def _of(self, which: int) -> list[np.ndarray]:
        return [
            torch.stack([run[which] for layer in each for run in layer], 1).numpy()
            for each in self._passes
        ]

    @property
    def ids(self) -> list[np.ndarray]:
        return self._of(0)

    @property
    def weights(self) -> list[np.ndarray]:
        return self._of(1)


def is_told(routing: routecap.Routing, ids: np.ndarray, weights: np.ndarray | None = None) -> bool:
    """Whether a routing is complete, and has these ids and weights."""
    order = np.argsort(routing.ids(), -1)
    mine = np.take_along_axis(routing.ids(), order, -1)
    right = routing.complete and np.array_equal(mine, ids)
    if right and weights is not None:
        right = np.array_equal(np.take_along_axis(routing.weights(), order, -1), weights)
    return right


def of_sequence(passes: list[np.ndarray], masks: list[torch.Tensor], number: int) -> np.ndarray:
    """The rows of one sequence of a batch, from passes and a mask [sequences, length] of each."""
    rows = [
        each.reshape(*mask.shape, *each.shape[1:])[number][mask[number].numpy() != 0]
        for each, mask in zip(passes, masks, strict=True)
    ]
    return np.concatenate(rows)


@pytest.mark.parametrize("cache", ["dynamic", "static", "none"])
def test_every_visit_of_a_left_padded_generation_has_what_its_router_chose(
    model: Any, cache: str
) -> None:
    options: dict[str, Any] = {"use_cache": False} if cache == "none" else {}
    if cache == "static":  # which transformers itself fails to mask if layers differ in length
        model = make_looped(sliding_window_size=64)
        options["cache_implementation"] = cache
    with attach(model, weights="float32") as capture, Runs(model) as runs:
        model.generate(
            input_ids=PROMPTS,
            attention_mask=MASK,
            max_new_tokens=6,
            do_sample=False,
            eos_token_id=None,
            **options,
        )
        routings = capture.take()
    assert [(tap.layer, tap.visit) for tap in capture.taps] == list(zip(LAYERS, VISITS))
    masks = [MASK] + [torch.ones(3, 1)] * 5
    ids, weights = runs.ids, runs.weights
    if cache == "none":  # the last pass has all
        grown = torch.cat([MASK, torch.ones(3, 5, dtype=torch.long)], 1)
        ids, weights, masks = ids[-1:], weights[-1:], [grown]
    for number, routing in enumerate(routings):
        assert routing.layer_map.tolist() == LAYERS and routing.layer_visit.tolist() == VISITS
        assert is_told(
            routing, of_sequence(ids, masks, number), of_sequence(weights, masks, number)
        )
        assert (of_sequence(ids, masks, number)[:, 1] != routing.ids()[:, 2]).any()
    saved = io.BytesIO(routings[0].serialize())
    assert routecap.Routing.deserialize(saved.getvalue()).layer_visit.tolist() == VISITS


def test_chunks_of_a_prompt_and_copies_of_its_cache_have_all_visits(model: Any) -> None:
    with (
        attach(model, weights="float32", store=1 << 22) as capture,
        Runs(model) as runs,
        torch.no_grad(),
    ):
        cache = DynamicCache(config=model.config)
        model(input_ids=TOKENS[:, :6], **{CACHE: cache})
        model(input_ids=TOKENS[:, 6:9], **{CACHE: cache})
        other = copy.deepcopy(cache)
        model(input_ids=TOKENS[:, 9:], **{CACHE: cache})
        model(input_ids=TOKENS[:, 9:] + 30, **{CACHE: other})
        one, two = capture.take()
    for routing, passes in ((one, (0, 1, 2)), (two, (0, 1, 3))):
        ids, weights = ([each[number] for number in passes] for each in (runs.ids, runs.weights))
        assert is_told(routing, np.concatenate(ids), np.concatenate(weights))


def test_forward_passes_one_after_another_have_all_visits_each(model: Any) -> None:
    with attach(model, steps=True) as capture, Runs(model) as runs, torch.no_grad():
        for length in (5, 1, 9):
            model(input_ids=TOKENS[:, :length], use_cache=False)
        routings = capture.take()
    assert all(is_told(*each) for each in zip(routings, runs.ids, strict=True))
    assert [each.tolist() for each in capture.steps or ()] == [[0] * 5, [1], [2] * 9]


@pytest.mark.parametrize("reentrant", [True, False])
def test_visits_that_are_computed_again_in_backward_count_once(model: Any, reentrant: bool) -> None:
    with Runs(model) as runs, torch.no_grad():
        model(input_ids=TOKENS)
    checkpoint(model, use_reentrant=reentrant)
    model.train()
    with attach(model, weights="float32") as capture:
        for _ in range(2):
            model(input_ids=TOKENS, labels=TOKENS, use_cache=False).loss.backward()
        routings = capture.take()
    assert len(routings) == 2
    assert all(is_told(each, runs.ids[0], runs.weights[0]) for each in routings)


def test_some_of_the_layers_are_captured_with_all_their_visits(model: Any) -> None:
    taps = [tap for tap in find(model) if tap.layer in (0, 2)]
    with attach(model, taps=taps) as capture, Runs(model) as runs, torch.no_grad():
        model(input_ids=TOKENS)
        [routing] = capture.take()
    assert routing.layer_visit.tolist() == [0, 0, 1, 2]
    assert is_told(routing, runs.ids[0][:, [0, 4, 5, 6]])


def test_layers_that_run_once_have_no_visits_behind_the_first() -> None:
    model = make_looped(loop_num_passes=1)
    with attach(model) as capture, Runs(model) as runs, torch.no_grad():
        model(input_ids=TOKENS)
        [routing] = capture.take()
    assert routing.layer_map.tolist() == [0, 1, 2, 3] and not routing.layer_visit.any()
    assert is_told(routing, runs.ids[0])


def test_layers_of_any_model_that_run_twice_are_captured_by_a_tap_for_each_visit() -> None:
    model = make("qwen3_moe", mlp_only_layers=[])
    layer = model.model.layers[1]
    once = layer.forward
    layer.forward = lambda states, *args, **kwargs: once(
        once(states, *args, **kwargs), *args, **kwargs
    )
    first, second, third = find(model)
    taps = [first, second, replace(second, visit=1), third]
    with attach(model, taps=taps) as capture, Runs(model) as runs, torch.no_grad():
        model(input_ids=TOKENS, use_cache=False)
        [routing] = capture.take()
    assert routing.layer_map.tolist() == [0, 1, 1, 2]
    assert routing.layer_visit.tolist() == [0, 0, 1, 0]
    assert is_told(routing, runs.ids[0])


# ---- Compiled


def whole(model: Any, capture_of: Any) -> Any:
    run = torch.compile(model, backend="eager")
    return capture_of(run), run


def forward_behind_attach(model: Any, capture_of: Any) -> Any:
    capture = capture_of(model)
    model.forward = torch.compile(model.forward, backend="aot_eager")
    return capture, model


def layers_behind_attach(model: Any, capture_of: Any) -> Any:
    capture = capture_of(model)
    for layer in model.model.layers:
        layer.compile(backend="eager")
    return capture, model


@pytest.mark.usefixtures("compiler")
@pytest.mark.slow
@pytest.mark.parametrize("way", [layers_behind_attach, whole, forward_behind_attach])
def test_a_compiled_model_has_the_visits_of_the_eager_one(model: Any, way: Any) -> None:
    with Runs(model) as runs, torch.no_grad():
        model(input_ids=TOKENS, use_cache=False)
    capture, run = way(model, lambda module: attach(module, weights="float32"))
    with capture, torch.no_grad():
        run(input_ids=TOKENS, use_cache=False)
        run(input_ids=TOKENS, use_cache=False)
        routings = capture.take()
    assert len(routings) == 2
    assert all(is_told(each, runs.ids[0], runs.weights[0]) for each in routings)


@pytest.mark.usefixtures("compiler")
@pytest.mark.slow
def test_layers_that_ran_compiled_before_the_attach_are_warned_of(model: Any) -> None:
    for layer in model.model.layers:
        layer.compile(backend="eager")
    with torch.no_grad():
        model(input_ids=TOKENS, use_cache=False)
        with attach(model) as capture:
            with pytest.warns(RuntimeWarning, match=r"layers \[0, 1, 1, 1, .* were not seen to"):
                model(input_ids=TOKENS, use_cache=False)
            with pytest.warns(RuntimeWarning, match="have not fired"):
                [routing] = capture.take()
    assert not routing.mask().any()


# ---- What is refused


def forward(model: Any) -> None:
    with torch.no_grad():
        model(input_ids=TOKENS, use_cache=False)


@pytest.mark.parametrize("passes", [1, 2, 4])
def test_a_layer_that_runs_as_often_as_nobody_said_is_refused_and_named(
    model: Any, passes: int
) -> None:
    said = "ran [12] times" if passes < 3 else "runs more than 3 times"
    with attach(model) as capture:
        model.config.loop_num_passes = passes
        with pytest.raises(ValueError, match=f"model.layers.1.mlp.experts .*{said} in one forward"):
            forward(model)
        assert capture.take() == []
        model.config.loop_num_passes = 3
        with Runs(model) as runs:
            forward(model)
        [routing] = capture.take()
    assert is_told(routing, runs.ids[0])


def test_a_visit_that_is_not_seen_makes_no_other_of_those_behind_it(model: Any) -> None:
    """A compiler may run one visit without hooks, and another with them."""
    block = model.model.layers[2].mlp
    hooked, runs = block.experts, 0

    def forward_of_block(states: torch.Tensor) -> torch.Tensor:
        nonlocal runs
        runs += 1
        flat = states.view(-1, states.shape[-1])
        _, weights, ids = block.gate(flat)
        experts = hooked.forward if runs % 3 == 1 else hooked
        output: torch.Tensor = experts(flat, ids, weights).view_as(states)
        return output

    block.forward = forward_of_block
    with attach(model) as capture:
        with pytest.raises(ValueError, match="layers.2.mlp.experts .*3 visits and ran 2 times"):
            forward(model)
        assert capture.take() == []


def test_taps_of_a_part_of_the_visits_are_refused(model: Any) -> None:
    taps = find(model)
    for part, said in ((taps[2:], r"\[1, 2\]"), ([*taps, taps[1]], r"\[0, 0, 1, 2\]")):
        with pytest.raises(ValueError, match=rf"layers.1.mlp.experts has taps .* visits {said}"):
            attach(model, taps=part)
    with (
        attach(model, taps=[*taps[:3], *taps[4:]]),
        pytest.raises(ValueError, match="layers.1.mlp.experts runs more than 2 times"),
    ):
        forward(model)


def test_visits_are_not_replayed_and_the_module_is_named(model: Any) -> None:
    with pytest.raises(ValueError, match="model.layers.1.mlp.experts runs 3 times .* not replayed"):
        replay_in(model)


def test_a_loop_of_which_nothing_says_what_runs_in_it_is_refused(model: Any) -> None:
    other = make("qwen3_moe")
    other.config.loop_num_passes = 3
    with pytest.raises(
        ValueError, match="model.layers.0.mlp.experts cannot .* 3 times in a loop, and not which"
    ):
        attach(other)
    own: list[Tap] = find(model)
    assert [each.visit for each in own] == VISITS

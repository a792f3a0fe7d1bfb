"""Caches that are used again: the rows of a prompt that was forwarded once come out of a store."""

import copy
from typing import Any

import numpy as np
import pytest
import routecap
import torch
from families import CACHE, make
from routecap_transformers import attach
from test_sequences import alone
from transformers import DynamicCache, StaticCache

SYSTEM = torch.tensor([[11, 12, 13, 14, 15]])
QUESTIONS = [[21, 22, 23], [31, 32], [21, 22, 33, 34]]


@pytest.fixture
def model() -> Any:
    return make("qwen3_moe")


def cache_of(model: Any, kind: str) -> Any:
    if kind == "static":
        return StaticCache(config=model.config, max_cache_len=64)
    return DynamicCache(config=model.config)


def forwarded(model: Any, cache: Any, tokens: torch.Tensor = SYSTEM) -> Any:
    with torch.no_grad():
        model(input_ids=tokens, **{CACHE: cache}, use_cache=True)
    return cache


def answered(model: Any, cache: Any, tokens: list[int], **options: Any) -> torch.Tensor:
    prompt = torch.tensor([SYSTEM[0].tolist() + tokens])
    given = {"max_new_tokens": 4, "do_sample": False, "eos_token_id": None} | options
    return model.generate(input_ids=prompt, **{CACHE: cache}, **given)


def whole_rows(routing: routecap.Routing) -> list[bool]:
    return list((routing.ids() >= 0).all((1, 2)).tolist())


def same(capture: Any, model: Any, routing: routecap.Routing, tokens: Any) -> bool:
    with capture.paused():
        rows = alone(model, tokens)[: routing.rows]
    return bool((np.sort(routing.ids().astype(np.int64), -1) == rows).all())


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("taken", ["before", "after"])
def test_each_copy_of_a_prompts_cache_begins_with_its_rows(
    model: Any, kind: str, taken: str
) -> None:
    """As in transformers' guide to prefix caching."""
    with attach(model, store=1 << 22) as capture:
        cache = forwarded(model, cache_of(model, kind))
        if taken == "before":
            assert capture.take()[0].rows == SYSTEM.shape[1]
        outs = [answered(model, copy.deepcopy(cache), question) for question in QUESTIONS]
        routings = capture.take()[-len(QUESTIONS) :]
        for routing, out in zip(routings, outs, strict=True):
            assert routing.rows == out.shape[1] - 1
            assert routing.complete, routing.missing
            assert same(capture, model, routing, out[0])
        assert capture.store.stats().blocks_mismatched == 0


def test_without_a_store_the_rows_of_a_copied_cache_are_missing(model: Any) -> None:
    with attach(model) as capture:
        cache = forwarded(model, cache_of(model, "dynamic"))
        capture.take()
        answered(model, copy.deepcopy(cache), QUESTIONS[0])
        (routing,) = capture.take()
        assert whole_rows(routing) == [False] * 5 + [True] * 6


def test_a_cache_goes_on_after_its_sequences_were_taken(model: Any) -> None:
    with attach(model, store=1 << 22) as capture:
        cache = forwarded(model, cache_of(model, "dynamic"))
        capture.take()
        forwarded(model, cache, torch.tensor([[21, 22]]))
        (routing,) = capture.take()
        assert routing.complete and routing.rows == 7
        assert same(capture, model, routing, [*SYSTEM[0].tolist(), 21, 22])


def test_copies_are_changed_before_they_are_used(model: Any) -> None:
    with attach(model, store=1 << 22) as capture:
        cache = forwarded(model, cache_of(model, "dynamic"))
        capture.take()
        wide, short = copy.deepcopy(cache), copy.deepcopy(cache)
        wide.batch_repeat_interleave(2)
        forwarded(model, wide, torch.tensor([[21, 22], [31, 32]]))
        short.crop(-2)
        forwarded(model, short, torch.tensor([[41, 42]]))
        assert cache.get_seq_length() == 5 and cache.layers[0].keys.shape[0] == 1
        system = SYSTEM[0].tolist()
        sequences = [[*system, 21, 22], [*system, 31, 32], [*system[:3], 41, 42]]
        for routing, tokens in zip(capture.take(), sequences, strict=True):
            assert routing.complete and routing.rows == len(tokens)
            assert same(capture, model, routing, tokens)


def test_a_copy_that_is_cropped_and_filled_unseen_has_no_rows_of_others(model: Any) -> None:
    with attach(model, store=1 << 22) as capture:
        cache = forwarded(model, cache_of(model, "dynamic"))
        capture.take()
        own = copy.deepcopy(cache)
        own.crop(-3)
        with capture.paused():
            forwarded(model, own, torch.tensor([[61, 62, 63]]))
        forwarded(model, own, torch.tensor([[21]]))
        (routing,) = capture.take()
        assert whole_rows(routing) == [True, True, False, False, False, True]


def test_a_copy_of_a_cache_whose_layers_were_cut_has_the_rows_of_its_own_tokens(model: Any) -> None:
    """It was as long as when it was copied before, and got the rows of that time."""
    with attach(model, store=1 << 22) as capture:
        cache = forwarded(model, cache_of(model, "dynamic"))
        copy.deepcopy(cache)
        for layer in cache.layers:
            layer.crop(-2)
        forwarded(model, cache, torch.tensor([[41, 42]]))
        forwarded(model, copy.deepcopy(cache), torch.tensor([[43]]))
        _, routing = capture.take()
        assert routing.complete
        assert same(capture, model, routing, [*SYSTEM[0, :3].tolist(), 41, 42, 43])


def test_a_larger_tag_ends_the_rows_before_it(model: Any) -> None:
    with attach(model, store=1 << 22) as capture:
        cache = forwarded(model, cache_of(model, "dynamic"))
        capture.take()
        capture.tag = 7
        forwarded(model, copy.deepcopy(cache), torch.tensor([[41, 42]]))
        (routing,) = capture.take()
        assert whole_rows(routing) == [False] * 5 + [True] * 2
        assert set(routing.missing["reason"].tolist()) == {routecap.Missing.STALE}
        with pytest.raises(ValueError, match="give newer weights a larger tag"):
            capture.tag = 6
        cache = forwarded(model, cache_of(model, "dynamic"))
        capture.take()
        forwarded(model, cache, torch.tensor([[41, 42]]))
        (routing,) = capture.take()
        assert routing.complete and set(routing.tags.tolist()) == {7}


def test_the_prompt_of_a_batch_may_be_padded(model: Any) -> None:
    tokens = torch.tensor([[0, 0, 11, 12], [21, 22, 23, 24]])
    mask = (tokens != 0).long()
    with attach(model, store=1 << 22) as capture:
        cache = cache_of(model, "dynamic")
        with torch.no_grad():
            model(
                input_ids=tokens,
                attention_mask=mask,
                position_ids=(mask.cumsum(1) - 1).clamp(0),  # as generate has them
                **{CACHE: cache},
                use_cache=True,
            )
        capture.take()
        whole = torch.cat([tokens, torch.tensor([[31, 32], [33, 34]])], 1)
        out = model.generate(
            input_ids=whole,
            attention_mask=torch.cat([mask, torch.ones(2, 2, dtype=torch.long)], 1),
            **{CACHE: copy.deepcopy(cache)},
            max_new_tokens=3,
            do_sample=False,
            eos_token_id=None,
        )
        first, second = capture.take()
        assert first.complete and second.complete
        assert same(capture, model, first, out[0, 2:]) and same(capture, model, second, out[1])


def test_a_store_of_the_user_says_what_it_lacks(model: Any) -> None:
    """Blocks of two rows: the last row of five is in none. And weights that change end them."""
    missing = routecap.Missing
    with attach(model) as shape:
        store = routecap.Store(shape.capturer, block_rows=2, key_bytes=32)
    with attach(model, store=store) as capture:
        assert capture.store is store
        cache = forwarded(model, cache_of(model, "dynamic"))
        capture.take()
        answered(model, copy.deepcopy(cache), QUESTIONS[0])
        (routing,) = capture.take()
        assert whole_rows(routing) == [True] * 4 + [False] + [True] * 6
        store.advance(1)
        answered(model, copy.deepcopy(cache), QUESTIONS[0])
        (routing,) = capture.take()
        assert set(routing.missing["reason"].tolist()) == {missing.STALE, missing.ABSENT}

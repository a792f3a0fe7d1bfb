"""One routing for each sequence, however a model is run: each is compared with that of its tokens
alone, in one forward pass.
"""

import io
import warnings
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import routecap
import routecap_transformers
import torch
from families import (
    CACHE,
    EOS,
    PAD,
    RESET_EMPTIES,
    VERSION,
    VOCABULARY,
    Witness,
    checkpoint,
    make,
    rows_of,
)
from routecap_transformers import Capture, attach
from transformers import (
    CONFIG_MAPPING,
    AutoModel,
    ContinuousBatchingConfig,
    DynamicCache,
    GenerationConfig,
    StaticCache,
)
from transformers.utils.hub import PushToHubMixin

PROMPTS = torch.tensor([[0, 0, 0, 11, 12, 13], [21, 22, 23, 24, 25, 26]])
MASK = (PROMPTS != 0).long()
NEVER = VOCABULARY
"""A token that no model says. Drafts want one that ends a sequence, before transformers 5.13."""


@pytest.fixture
def model() -> Any:
    return make("qwen3_moe")


@pytest.fixture
def capture(model: Any) -> Any:
    with attach(model) as attached:
        yield attached


def alone(model: Any, tokens: Any) -> np.ndarray:
    """[tokens, layers, k]: the routing of one sequence, by plain hooks."""
    tokens = torch.as_tensor(tokens).view(1, -1)
    with Witness(model) as witness, torch.no_grad():
        model(input_ids=tokens, use_cache=False)
    return rows_of(witness.passes, [torch.ones_like(tokens)], 1)[0].numpy()


def expect(
    model: Any,
    capture: Capture,
    routings: Sequence[routecap.Routing],
    sequences: Sequence[Any],
    *,
    missing: int = 1,
) -> None:
    """A routing for each sequence, complete but for the last `missing` tokens, which are not in it."""
    assert len(routings) == len(sequences)
    for routing, tokens in zip(routings, sequences):
        with capture.paused() if capture.attached else torch.no_grad():
            rows = alone(model, tokens)
        assert routing.rows == len(rows) - missing
        assert routing.complete, routing.missing
        assert (np.sort(routing.ids().astype(np.int64), -1) == rows[: routing.rows]).all()


def live(out: torch.Tensor, mask: torch.Tensor = MASK) -> list[list[int]]:
    """The tokens of each row behind its left padding."""
    return [row[int(keep.argmax()) :] for row, keep in zip(out.tolist(), mask)]


def generate(model: Any, **options: Any) -> torch.Tensor:
    return model.generate(
        input_ids=PROMPTS,
        attention_mask=MASK,
        **{"max_new_tokens": 6, "do_sample": False, "eos_token_id": None, **options},
    )


# ---- generate


def test_a_left_padded_batch(model: Any, capture: Capture) -> None:
    out = generate(model)
    expect(model, capture, capture.take(), live(out))
    assert capture.take() == []


@pytest.mark.parametrize("padding", ["a token of its own", "the end"])
def test_tokens_behind_the_end_of_a_sequence_are_not_delivered(
    model: Any, capture: Capture, padding: str
) -> None:
    free = generate(model, max_new_tokens=12)
    capture.discard()
    end = int(free[0, 9])  # the fourth token of the first row ends it; the other goes on
    assert end not in free[0, 6:9]
    pad = end if padding == "the end" else PAD
    out = generate(model, max_new_tokens=12, eos_token_id=end, pad_token_id=pad)
    first = out[0, : 6 + out[0, 6:].tolist().index(end) + 1]
    rest = out[1, 6:].tolist()
    second = out[1, : 6 + rest.index(end) + 1] if end in rest else out[1]
    assert len(second) > len(first) == 10 and (out[0, 10:] == pad).all()
    expect(model, capture, capture.take(), [first[3:], second])


def test_padding_behind_a_sequence_that_another_criterion_ended_is_not_delivered(
    model: Any, capture: Capture
) -> None:
    def first_row_after_three(tokens: torch.Tensor, scores: Any, **options: Any) -> torch.Tensor:
        return torch.tensor([tokens.shape[1] >= 9, False])

    out = generate(model, eos_token_id=VOCABULARY - 1, stopping_criteria=[first_row_after_three])
    assert (
        (out[0, 9:] == PAD).all()
        and VOCABULARY - 1 not in out
        and PAD not in (out[0, 8], out[1, -1])
    )
    expect(model, capture, capture.take(), [out[0, 3:9], out[1]])


def test_several_samples_of_each_prompt(model: Any, capture: Capture) -> None:
    torch.manual_seed(1)
    out = generate(model, do_sample=True, num_return_sequences=3)
    expect(model, capture, capture.take(), live(out, MASK.repeat_interleave(3, 0)))


@pytest.mark.parametrize(
    "options",
    [
        {"use_cache": False},
        {"cache_implementation": "static"},
        {"prefill_chunk_size": 2},
        {"prefill_chunk_size": 1},
        {"return_dict_in_generate": True},
    ],
)
def test_other_ways_to_generate(model: Any, capture: Capture, options: dict[str, Any]) -> None:
    out = generate(model, **options)
    expect(model, capture, capture.take(), live(getattr(out, "sequences", out)))


def test_a_column_of_padding_that_is_forwarded_alone_is_no_token(
    model: Any, capture: Capture
) -> None:
    """A pass of one column, whose mask had one more than the last time, was taken for one of a token
    that was generated: rows were shifted by the padding, and complete."""
    prompts = torch.tensor([[0, 0, 0, 0, 11, 12], [21, 22, 23, 24, 25, 26]])
    mask = (prompts != 0).long()
    for chunk in (1, 2, 3):
        out = model.generate(
            prompts, attention_mask=mask, max_new_tokens=4, prefill_chunk_size=chunk,
            do_sample=False, eos_token_id=None,
        )  # fmt: skip
        expect(model, capture, capture.take(), live(out, mask))


@pytest.mark.slow
def test_a_generation_compiled_around_a_static_cache(model: Any, capture: Capture) -> None:
    """Where masks are prepared for compilation, the model's inputs show no padding."""
    from transformers import CompileConfig

    torch.compiler.reset()
    compiled = CompileConfig(backend="eager", mode=None, fullgraph=True)
    compiled._compile_all_devices = True
    out = generate(model, cache_implementation="static", compile_config=compiled)
    assert hasattr(model, "_compiled_call")
    expect(model, capture, capture.take(), live(out))


def test_prompts_as_embeddings(model: Any, capture: Capture) -> None:
    out = model.generate(
        inputs_embeds=model.get_input_embeddings()(PROMPTS),
        attention_mask=MASK,
        max_new_tokens=6,
        do_sample=False,
        eos_token_id=None,
    )
    expect(model, capture, capture.take(), live(torch.cat([PROMPTS, out], 1)))


def test_a_right_padded_prompt(model: Any, capture: Capture) -> None:
    """Which transformers warns of; routing follows the positions of what is no padding all the
    same.
    """
    prompts = torch.tensor([[11, 12, 13, 0, 0, 0], [21, 22, 23, 24, 25, 26]])
    mask = (prompts != 0).long()
    with Witness(model) as witness:
        model.generate(
            input_ids=prompts,
            attention_mask=mask,
            max_new_tokens=4,
            do_sample=False,
            eos_token_id=None,
        )
    seen = rows_of(witness.passes, [mask] + [torch.ones(2, 1)] * 3, 2)
    for routing, rows in zip(capture.take(), seen, strict=True):
        assert (
            routing.complete and (np.sort(routing.ids().astype(np.int64), -1) == rows.numpy()).all()
        )


def test_padding_that_generate_finds_itself(model: Any, capture: Capture) -> None:
    out = model.generate(
        input_ids=PROMPTS, max_new_tokens=4, do_sample=False, eos_token_id=None, pad_token_id=PAD
    )
    expect(model, capture, capture.take(), live(out))


def test_drafts_that_were_rejected_leave_nothing(model: Any, capture: Capture) -> None:
    prompt = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 8, 5, 6]])
    out = model.generate(
        input_ids=prompt,
        max_new_tokens=10,
        do_sample=False,
        eos_token_id=NEVER,
        prompt_lookup_num_tokens=3,
    )
    expect(model, capture, capture.take(), [out[0]])


def test_a_conversation_goes_on_with_its_cache(model: Any, capture: Capture) -> None:
    cache = DynamicCache(config=model.config)
    first = generate(model, **{CACHE: cache})
    second = torch.cat([first, torch.tensor([[31, 32], [33, 34]])], 1)
    mask = torch.cat([MASK, torch.ones(2, 8, dtype=torch.long)], 1)
    out = model.generate(
        input_ids=second,
        attention_mask=mask,
        **{CACHE: cache},
        max_new_tokens=4,
        do_sample=False,
        eos_token_id=None,
    )
    expect(model, capture, capture.take(), live(out))


def test_sequences_that_were_taken_go_on_as_new_ones_whose_first_rows_are_missing(
    model: Any, capture: Capture
) -> None:
    cache = DynamicCache(config=model.config)
    first = generate(model, **{CACHE: cache})
    capture.take()
    mask = torch.cat([MASK, torch.ones(2, 6, dtype=torch.long)], 1)
    out = model.generate(
        input_ids=first,
        attention_mask=mask,
        **{CACHE: cache},
        max_new_tokens=4,
        do_sample=False,
        eos_token_id=None,
    )
    for routing, tokens in zip(capture.take(), live(out), strict=True):
        cached = len(tokens) - 5
        with capture.paused():
            rows = alone(model, tokens)
        assert routing.rows == len(tokens) - 1 and routing.coverage().rows_empty == cached
        assert (np.sort(routing[cached:].ids().astype(np.int64), -1) == rows[cached:-1]).all()


def test_two_generations_are_taken_together_in_their_order(model: Any, capture: Capture) -> None:
    outs = [generate(model), generate(model, max_new_tokens=3)]
    expect(model, capture, capture.take(), live(outs[0]) + live(outs[1]))


def test_a_generation_that_fails_leaves_nothing(model: Any, capture: Capture) -> None:
    def fail(*unused: Any, **options: Any) -> Any:
        raise KeyError("stop")

    with pytest.raises(KeyError):
        generate(model, stopping_criteria=[fail])
    assert capture.take() == []
    expect(model, capture, (lambda out: capture.take())(out := generate(model)), live(out))


# ---- Forward passes


def test_a_right_padded_forward_pass(model: Any, capture: Capture) -> None:
    tokens = torch.tensor([[11, 12, 13, 0, 0], [21, 22, 23, 24, 25]])
    with torch.no_grad():
        model(input_ids=tokens, attention_mask=(tokens != 0).long())
    expect(model, capture, capture.take(), [tokens[0, :3], tokens[1]], missing=0)


@pytest.mark.parametrize("padded", [False, True])
def test_decoding_with_a_cache_of_the_caller_s(model: Any, capture: Capture, padded: bool) -> None:
    prompts = PROMPTS if padded else PROMPTS + 40
    mask = (prompts != 0).long()
    tokens, cache = prompts, None
    inputs = prompts
    with torch.no_grad():
        for _ in range(4):
            positions = mask.cumsum(1).sub(1).clamp(min=0)[:, -inputs.shape[1] :]
            output = model(
                input_ids=inputs,
                attention_mask=mask if padded else None,
                position_ids=positions,
                **{CACHE: cache},
                use_cache=True,
            )
            cache, inputs = output[CACHE], output.logits[:, -1:].argmax(-1)
            tokens, mask = (
                torch.cat([tokens, inputs], 1),
                torch.cat([mask, torch.ones(2, 1, dtype=torch.long)], 1),
            )
    expect(model, capture, capture.take(), live(tokens, mask))


def test_a_static_cache_of_the_caller_s(model: Any, capture: Capture) -> None:
    tokens = torch.randint(3, VOCABULARY, (2, 9))
    cache = StaticCache(config=model.config, max_cache_len=16)
    with torch.no_grad():
        for begin, end in ((0, 5), (5, 6), (6, 9)):
            model(input_ids=tokens[:, begin:end], **{CACHE: cache})
    expect(model, capture, capture.take(), list(tokens), missing=0)


def test_a_cache_that_was_cut(model: Any, capture: Capture) -> None:
    tokens = torch.randint(3, VOCABULARY, (1, 12))
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(input_ids=tokens[:, :8], **{CACHE: cache})
        model(input_ids=torch.randint(3, VOCABULARY, (1, 4)), **{CACHE: cache})
        cache.crop(-4)
        model(input_ids=tokens[:, 8:11], **{CACHE: cache})
        model(input_ids=torch.randint(3, VOCABULARY, (1, 2)), **{CACHE: cache})
        cache.crop(-2)
    assert cache.get_seq_length() == 11
    expect(model, capture, capture.take(), [tokens[0, :11]], missing=0)


@pytest.mark.parametrize(
    "change", ["reorder_cache", "batch_select_indices", "batch_repeat_interleave"]
)
def test_a_cache_whose_rows_were_changed(model: Any, capture: Capture, change: str) -> None:
    tokens = torch.randint(3, VOCABULARY, (3, 7))
    mask = (torch.arange(7) >= torch.tensor([[3], [0], [1]])).long()
    cache = DynamicCache(config=model.config)
    rows, argument = {
        "reorder_cache": ([2, 0, 0], torch.tensor([2, 0, 0])),
        "batch_select_indices": ([0, 2], torch.tensor([0, 2])),
        "batch_repeat_interleave": ([0, 0, 1, 1, 2, 2], 2),
    }[change]
    more = torch.randint(3, VOCABULARY, (len(rows), 2))
    with torch.no_grad():
        model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=mask.cumsum(1).sub(1).clamp(min=0),
            **{CACHE: cache},
        )
        getattr(cache, change)(argument)
        later = torch.cat([mask[rows], torch.ones_like(more)], 1)
        model(
            input_ids=more,
            attention_mask=later,
            position_ids=later.cumsum(1)[:, 7:] - 1,
            **{CACHE: cache},
        )
    expect(
        model,
        capture,
        capture.take(),
        live(torch.cat([tokens[rows], more], 1), mask[rows]),
        missing=0,
    )


def test_a_batch_that_the_caller_reorders(model: Any, capture: Capture) -> None:
    tokens = torch.randint(3, VOCABULARY, (3, 7))
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(input_ids=tokens, **{CACHE: cache})
        for layer in cache.layers:
            layer.keys, layer.values = layer.keys[[1, 0]], layer.values[[1, 0]]
        capture.reorder([1, 0])
        model(input_ids=tokens[:2, :1], **{CACHE: cache})
    expect(
        model,
        capture,
        capture.take(),
        [torch.cat([tokens[1], tokens[0, :1]]), torch.cat([tokens[0], tokens[1, :1]])],
        missing=0,
    )


@pytest.mark.parametrize("told", ["position_ids", "cu_seq_lens"])
def test_a_packed_batch(model: Any, capture: Capture, told: str) -> None:
    tokens = [torch.randint(3, VOCABULARY, (length,)) for length in (5, 1, 7, 3)]
    options: dict[str, Any] = {
        "position_ids": torch.cat([torch.arange(len(each)) for each in tokens])[None]
    }
    if told == "cu_seq_lens":
        starts = torch.tensor([0, 5, 6, 13, 16], dtype=torch.int32)
        options |= {
            "cu_seq_lens_q": starts,
            "cu_seq_lens_k": starts,
            "max_length_q": 7,
            "max_length_k": 7,
        }
    with torch.no_grad():
        model(input_ids=torch.cat(tokens)[None], use_cache=False, **options)
    expect(model, capture, capture.take(), tokens, missing=0)


def test_a_packed_batch_by_the_first_of_four_rows_of_positions() -> None:
    """The others are an image's. They were no positions, and two sequences one."""
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [3, 3, 2]}
    sizes = dict(num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16)
    config = CONFIG_MAPPING["qwen3_vl_moe_text"](
        vocab_size=VOCABULARY,
        hidden_size=64,
        num_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        rope_parameters=rope,
        pad_token_id=PAD,
        **sizes,
    )
    model = AutoModel.from_config(config).eval()
    tokens = [torch.randint(3, VOCABULARY, (1, length)) for length in (5, 7)]
    positions = torch.cat([torch.arange(5), torch.arange(7)]).expand(4, 1, -1)
    with attach(model) as capture, torch.no_grad():
        for each in tokens:
            model(input_ids=each, use_cache=False)
        alone = capture.take()
        model(input_ids=torch.cat(tokens, 1), position_ids=positions, use_cache=False)
        packed = capture.take()
    for one, other in zip(packed, alone, strict=True):
        assert one.complete and np.array_equal(np.sort(one.ids()), np.sort(other.ids()))


class Wrapper(PushToHubMixin, torch.nn.Module):
    """As PEFT's around a model: its class descends from one of transformers, which is no module."""

    def __init__(self, base: Any) -> None:
        super().__init__()
        self.base = base

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.base(*args, **kwargs)

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        return self.base.generate(*args, **kwargs)

    def prepare_inputs_for_generation(self, *args: Any, **kwargs: Any) -> Any:
        return self.base.prepare_inputs_for_generation(*args, **kwargs)


def test_a_generation_by_a_wrapper_of_another_library(model: Any) -> None:
    wrapped = Wrapper(model)
    tokens = torch.randint(3, VOCABULARY, (2, 6))
    with attach(wrapped) as capture:
        found = wrapped.generate(tokens, max_new_tokens=4, do_sample=False, eos_token_id=None)
        expect(model, capture, capture.take(), list(found))


def test_packed_rows_of_a_batch_of_several(model: Any, capture: Capture) -> None:
    tokens = torch.randint(3, VOCABULARY, (2, 8))
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5, 6, 7]])
    with torch.no_grad():
        model(input_ids=tokens, position_ids=positions, use_cache=False)
    expect(model, capture, capture.take(), [tokens[0, :3], tokens[0, 3:], tokens[1]], missing=0)


def test_rows_that_the_caller_places(model: Any, capture: Capture) -> None:
    tokens = torch.tensor([[11, 12, 13, 14], [21, 22, 0, 0]])
    causal = torch.full((4, 4), float("-inf")).triu(1).expand(2, 1, 4, 4)
    capture.place(torch.tensor([[0, 1, 2, 3], [0, 1, -1, -1]]))
    with torch.no_grad():
        model(input_ids=tokens, attention_mask=causal, use_cache=False)
    expect(model, capture, capture.take(), [tokens[0], tokens[1, :2]], missing=0)


def test_a_model_without_a_head_and_positional_arguments(model: Any) -> None:
    tokens = torch.tensor([[11, 12, 13, 0], [21, 22, 23, 24]])
    with attach(model.model) as capture, torch.no_grad():
        model.model(tokens, (tokens != 0).long())
    expect(model, capture, capture.take(), [tokens[0, :3], tokens[1]], missing=0)


def test_lengths_that_only_the_caller_knows(model: Any, capture: Capture) -> None:
    tokens = torch.randint(3, VOCABULARY, (2, 6))
    with torch.no_grad():
        model(input_ids=tokens)
    routings = capture.take([4, 8])
    assert [routing.rows for routing in routings] == [4, 8] and routings[
        1
    ].coverage().rows_empty == 2


def test_tags_are_kept_with_rows(model: Any, capture: Capture) -> None:
    for tag in (3, 4):
        capture.tag = tag
        with torch.no_grad():
            model(input_ids=torch.randint(3, VOCABULARY, (1, 4)))
    assert [set(routing.tags.tolist()) for routing in capture.take()] == [{3}, {4}]


def test_nothing_is_captured_in_a_pause(model: Any, capture: Capture) -> None:
    with capture.paused():
        generate(model)
        with torch.no_grad():
            model(input_ids=PROMPTS)
    assert capture.take() == [] and capture.capturer.stats().steps_issued == 0


# ---- What goes on in a cache beside the forward passes that are captured


def test_rows_of_tokens_that_were_cut_while_capture_was_paused_are_missing(
    model: Any, capture: Capture
) -> None:
    """They were given for the tokens that stood in their place, as the cache was as long."""
    first, other, rest = (torch.randint(3, VOCABULARY, (1, length)) for length in (10, 4, 3))
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(input_ids=first, **{CACHE: cache})
        cache.crop(-4)
        with capture.paused():
            model(input_ids=other, **{CACHE: cache})
        model(input_ids=rest, **{CACHE: cache})
    (routing,) = capture.take()
    there = (routing.ids() >= 0).all((1, 2))
    assert there.tolist() == [True] * 6 + [False] * 4 + [True] * 3
    with capture.paused():
        rows = alone(model, torch.cat([first[:, :6], other, rest], 1))
    assert (np.sort(routing.ids().astype(np.int64), -1)[there] == rows[there]).all()


def test_a_cache_that_an_earlier_capture_followed_is_reordered_under_a_later_one(
    model: Any,
) -> None:
    cache = DynamicCache(config=model.config)
    tokens = torch.randint(3, VOCABULARY, (2, 11))
    with torch.no_grad():
        with attach(model):
            model(input_ids=tokens[:, :6], **{CACHE: cache})
        with attach(model) as capture:
            model(input_ids=tokens[:, 6:8], **{CACHE: cache})
            cache.reorder_cache(torch.tensor([1, 0]))
            model(input_ids=tokens[:, 8:], **{CACHE: cache})
            routings = capture.take()
    for row, routing in enumerate(routings):
        whole = torch.cat([tokens[1 - row, :8], tokens[row, 8:]])
        ids = np.sort(routing.ids().astype(np.int64), -1)
        assert (ids[:6] == -1).all() and (ids[6:] == alone(model, whole)[6:]).all()


@pytest.mark.parametrize("added", [0, 1])
def test_a_mask_that_hides_tokens_of_the_turn_before_moves_the_next(
    model: Any, capture: Capture, added: int
) -> None:
    """With one column more, which is the last turn's last token, the new mask was not looked at."""
    mask = torch.ones_like(PROMPTS)
    cache, options = DynamicCache(config=model.config), {"do_sample": False, "eos_token_id": None}
    with Witness(model) as witness:
        out = model.generate(
            PROMPTS, attention_mask=mask, **{CACHE: cache}, max_new_tokens=6, **options
        )
        more = torch.cat([out, torch.randint(3, VOCABULARY, (2, added))], 1)
        later = torch.ones_like(more)
        later[0, 9:11] = 0
        model.generate(more, attention_mask=later, **{CACHE: cache}, max_new_tokens=4, **options)
    shown = torch.cat([later, torch.ones(2, 3, dtype=torch.long)], 1)
    columns = rows_of(
        witness.passes, [torch.ones(2, len(ids[0]) // 2) for ids in witness.passes], 2
    )
    for row, routing in enumerate(capture.take()):
        expected = columns[row][shown[row, : len(columns[row])] != 0]
        assert routing.complete and routing.rows == len(expected)
        assert (np.sort(routing.ids().astype(np.int64), -1) == expected.numpy()).all()


@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_a_cache_that_is_reset_has_other_sequences(model: Any, capture: Capture, kind: str) -> None:
    tokens = torch.randint(3, VOCABULARY, (1, 10))
    cache: Any = DynamicCache(config=model.config)
    if kind == "static":
        cache = StaticCache(config=model.config, max_cache_len=32)
    with torch.no_grad(), Witness(model) as witness:
        model(input_ids=tokens, **{CACHE: cache})
        cache.reset()
        model(input_ids=tokens[:, :4] + 1, **{CACHE: cache})
    routings = capture.take()
    if kind == "static" or RESET_EMPTIES:
        expect(model, capture, routings, [tokens[0], tokens[0, :4] + 1], missing=0)
        return
    expect(model, capture, routings[:1], [tokens[0]], missing=0)
    [columns] = rows_of(witness.passes[1:], [torch.ones(1, 4)], 1)  # behind ten of zeros
    assert not routings[1].mask()[:10].any() and routings[1].mask()[10:].all()
    assert (np.sort(routings[1].ids().astype(np.int64), -1)[10:] == columns.numpy()).all()


def test_a_turn_that_fails_leaves_the_turn_before(model: Any, capture: Capture) -> None:
    def fail(*unused: Any, **options: Any) -> Any:
        raise MemoryError

    options = {"do_sample": False, "eos_token_id": None, "max_new_tokens": 4}
    for again in (False, True):
        cache = DynamicCache(config=model.config)
        out = model.generate(PROMPTS[1:], **{CACHE: cache}, **options)
        more = torch.cat([out, torch.tensor([[31, 32]])], 1)
        with pytest.raises(MemoryError):
            model.generate(more, **{CACHE: cache}, stopping_criteria=[fail], **options)
        if again:
            out = model.generate(
                torch.cat([more, torch.tensor([[33]])], 1), **{CACHE: cache}, **options
            )
        expect(model, capture, capture.take(), [out[0]])


def test_tokens_that_are_the_padding_belong_to_the_sequence(model: Any, capture: Capture) -> None:
    from transformers import LogitsProcessor

    class Seven(LogitsProcessor):
        def __call__(self, tokens: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            return torch.zeros_like(scores).index_fill_(1, torch.tensor([7]), 1.0)

    out = generate(model, eos_token_id=1, pad_token_id=7, logits_processor=[Seven()])
    assert (out[:, 6:] == 7).all()
    expect(model, capture, capture.take(), live(out))


def test_forward_passes_of_guidance_are_no_sequences(model: Any, capture: Capture) -> None:
    out = generate(model, guidance_scale=1.5)
    expect(model, capture, capture.take(), live(out))


def test_drafts_of_the_models_own_first_layers_leave_nothing(model: Any, capture: Capture) -> None:
    out = model.generate(
        PROMPTS[1:], max_new_tokens=8, do_sample=False, eos_token_id=None, assistant_early_exit=2
    )
    assert model.config.num_hidden_layers == 3
    expect(model, capture, capture.take(), [out[0]])


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_whole_model_that_is_checkpointed_is_captured_once(
    model: Any, capture: Capture, reentrant: bool
) -> None:
    from torch.utils.checkpoint import checkpoint

    tokens = torch.randint(3, VOCABULARY, (2, 6))
    embeddings = model.get_input_embeddings()(tokens).detach().requires_grad_()
    checkpoint(
        lambda each: model(inputs_embeds=each, use_cache=False).logits,
        embeddings,
        use_reentrant=reentrant,
    ).sum().backward()
    expect(model, capture, capture.take(), list(tokens), missing=0)


def test_a_cache_is_saved_as_if_nobody_followed_it(model: Any) -> None:
    cache = DynamicCache(config=model.config)
    with attach(model) as capture:
        with torch.no_grad():
            model(input_ids=PROMPTS, **{CACHE: cache})
        torch.save(cache, file := io.BytesIO())
        loaded = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
        assert (loaded.layers[0].keys == cache.layers[0].keys).all()
        capture.take()
    assert all(not name.startswith("_routecap") for layer in cache.layers for name in vars(layer))
    assert not hasattr(type(cache.layers[0]), "_routecap_followed")
    torch.save(cache, io.BytesIO())


def test_a_name_that_another_request_had_is_another_request(model: Any, capture: Capture) -> None:
    """Each call of generate_batch names its requests req_0, req_1 and so on."""
    config = GenerationConfig(max_new_tokens=4, do_sample=False, eos_token_id=EOS, pad_token_id=PAD)
    memory = ContinuousBatchingConfig(num_blocks=16, max_batch_tokens=32)
    tokens = []
    for prompts in ([[5, 6, 7, 8, 9, 10]], [[11, 12, 13]]):
        results = model.generate_batch(
            inputs=prompts, generation_config=config, continuous_batching_config=memory
        )
        (result,) = results.values()
        tokens.append([*result.prompt_ids, *result.generated_tokens])
    expect(model, capture, capture.take(), tokens)


# ---- Caches that are changed where nothing tells it


def rows_there(model: Any, capture: Capture, routing: routecap.Routing, text: Any) -> list[bool]:
    """Which rows of a routing are there; all of those are those of a text."""
    with capture.paused():
        rows = alone(model, text)
    there = routing.mask().all(1)
    assert (np.sort(routing.ids().astype(np.int64), -1)[there] == rows[: len(there)][there]).all()
    return [bool(each) for each in there]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_static_cache_that_is_put_back_has_no_rows_of_another_question(
    model: Any, capture: Capture, mode: Any
) -> None:
    """Tensors of inference mode have no versions: nothing told that the cache was another's."""
    cache = StaticCache(config=model.config, max_cache_len=16)
    prompt = torch.randint(3, VOCABULARY, (1, 5))
    with mode(), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model(input_ids=prompt, **{CACHE: cache})
        capture.take()
        saved = [
            {name: each.clone() for name, each in vars(layer).items() if torch.is_tensor(each)}
            for layer in cache.layers
        ]
        for length in 4, 2:
            question = torch.randint(3, VOCABULARY, (1, length))
            model(input_ids=question, **{CACHE: cache})
            [routing] = capture.take()
            text = torch.cat([prompt, question], 1)
            assert rows_there(model, capture, routing, text) == [False] * 5 + [True] * length
            for layer, tensors in zip(cache.layers, saved):
                for name, each in tensors.items():
                    getattr(layer, name).copy_(each)
    words = [str(each.message) for each in said]
    assert len(words) == (mode is torch.inference_mode)
    assert all("under torch.no_grad, or call generate()" in each for each in words)


@pytest.mark.filterwarnings("ignore:under torch.inference_mode")
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_rows_of_a_cache_that_change_their_places_in_it_are_missing(
    model: Any, capture: Capture, mode: Any
) -> None:
    tokens = torch.randint(3, VOCABULARY, (2, 7))
    cache = DynamicCache(config=model.config)
    with mode():
        model(input_ids=tokens[:, :5], **{CACHE: cache})
        for layer in cache.layers:
            for each in layer.keys, layer.values:
                each.copy_(each.flip(0))
        model(input_ids=tokens[:, 5:], **{CACHE: cache})
    for row, routing in enumerate(capture.take()[2:]):
        text = torch.cat([tokens[1 - row, :5], tokens[row, 5:]])
        assert rows_there(model, capture, routing, text) == [False] * 5 + [True] * 2


def test_a_generation_in_inference_mode_has_all_its_rows(model: Any, capture: Capture) -> None:
    """Nothing but its own loop has its cache between two steps."""
    with torch.inference_mode():
        for options in ({}, {"prefill_chunk_size": 1}, {"cache_implementation": "static"}):
            out = generate(model, **options)
            expect(model, capture, capture.take(), live(out))
        prompt = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 8, 5, 6]])
        out = model.generate(
            prompt,
            max_new_tokens=8,
            do_sample=False,
            eos_token_id=NEVER,
            prompt_lookup_num_tokens=3,
        )
        expect(model, capture, capture.take(), [out[0]])


@pytest.mark.filterwarnings("ignore:under torch.inference_mode")
@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_a_cache_that_is_reset_in_inference_mode_begins_at_its_first_row(
    model: Any, capture: Capture, kind: str
) -> None:
    tokens = torch.randint(3, VOCABULARY, (1, 6))
    cache: Any = DynamicCache(config=model.config)
    if kind == "static":
        cache = StaticCache(config=model.config, max_cache_len=16)
    with torch.inference_mode():
        model(input_ids=tokens + 1, **{CACHE: cache})
        cache.reset()
        model(input_ids=tokens, **{CACHE: cache})
        routing = capture.take()[-1]
    if kind == "static" or RESET_EMPTIES:
        assert rows_there(model, capture, routing, tokens) == [True] * 6
    else:
        assert routing.mask().all(1).tolist() == [False] * 6 + [True] * 6


def test_a_pass_behind_a_graph_goes_on_where_the_cache_says(model: Any, capture: Capture) -> None:
    """Its rows were put where the cache was before the graph ran: a replay writes where no version
    counts. Here a copy of another cache's memory is the replay."""
    tokens = torch.randint(3, VOCABULARY, (1, 9))
    caches = [StaticCache(config=model.config, max_cache_len=16) for _ in range(2)]
    with torch.no_grad():
        model(input_ids=tokens[:, :4], **{CACHE: caches[0]})
        with capture.paused():
            model(input_ids=tokens[:, :7], **{CACHE: caches[1]})
        for layer, other in zip(caches[0].layers, caches[1].layers):
            for name, each in vars(layer).items():
                if torch.is_tensor(each):
                    each.numpy()[...] = getattr(other, name).numpy()
        for position in 4, 5, 6:
            capture.capturer.begin(1)
            capture.capturer.snapshot()
            capture.issue(torch.tensor([[position]]))
        model(input_ids=tokens[:, 7:], **{CACHE: caches[0]})
        *_, routing = capture.take()
    assert rows_there(model, capture, routing, tokens) == [False] * 7 + [True] * 2


# ---- Training


@pytest.mark.parametrize("reentrant", [None, False, True])
def test_training_with_and_without_gradient_checkpointing(
    model: Any, capture: Capture, reentrant: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[int] = []
    record, record_layers = routecap.Capturer.record, routecap.Capturer.record_layers
    monkeypatch.setattr(
        routecap.Capturer,
        "record",
        lambda self, layer, ids, weights: (
            recorded.append(layer),
            record(self, layer, ids, weights=weights),
        ),
    )
    monkeypatch.setattr(
        routecap.Capturer,
        "record_layers",
        lambda self, sources, **stream: (
            recorded.extend(sources.layers["layer"].tolist()),
            record_layers(self, sources, **stream),
        ),
    )
    if reentrant is not None:
        checkpoint(model, use_reentrant=reentrant)
    model.train()
    tokens = torch.randint(3, VOCABULARY, (2, 6))
    for _ in range(2):  # with micro-batches of one step
        for each in tokens.split(1):
            model(input_ids=each, labels=each).loss.backward()
    model.eval()
    routings = capture.take()
    assert recorded == [0, 1] * 4  # and nothing in backward, where checkpointed layers run again
    expect(model, capture, routings, [*tokens, *tokens], missing=0)


# ---- Continuous batching


def test_continuous_batching(model: Any, capture: Capture) -> None:
    prompts = [[5, 6, 7, 8, 9], [11, 12, 13], [21, 22, 23, 24, 25, 26, 27]]
    config = GenerationConfig(max_new_tokens=6, do_sample=False, eos_token_id=EOS, pad_token_id=PAD)
    memory = ContinuousBatchingConfig(
        num_blocks=16, max_batch_tokens=32
    )  # or it takes what there is
    results = model.generate_batch(
        inputs=prompts, generation_config=config, continuous_batching_config=memory
    )
    assert len(results) == 3
    routings = capture.take(requests=results)
    expect(
        model,
        capture,
        routings,
        [[*result.prompt_ids, *result.generated_tokens] for result in results.values()],
    )
    assert capture.take() == []


@pytest.mark.parametrize(
    ("page_size", "shares"),
    [
        (4, True),
        pytest.param(16, True, marks=pytest.mark.slow),
        pytest.param(64, True, marks=pytest.mark.slow),
        (16, False),
    ],
)
def test_pages_that_requests_of_a_continuous_batch_share(
    model: Any, capture: Capture, page_size: int, shares: bool
) -> None:
    """Prompts begin alike for some pages, differ within them, and are as long as they are. Rows of
    a prefix that another request computed are missing, and no row is wrong."""
    draw = np.random.default_rng(page_size)
    common = draw.integers(3, VOCABULARY, 3 * page_size).tolist()
    ends = [page_size, 2 * page_size - 1, 2 * page_size, 2 * page_size + 3, 3 * page_size] * 3
    prompts = [
        common[:end] + draw.integers(3, VOCABULARY, i % 4).tolist() for i, end in enumerate(ends)
    ]
    config = GenerationConfig(max_new_tokens=5, do_sample=False, eos_token_id=EOS, pad_token_id=PAD)
    names = [each.name for each in fields(ContinuousBatchingConfig)]
    memory = ContinuousBatchingConfig(
        **{"page_size" if "page_size" in names else "block_size": page_size},
        num_blocks=40,
        max_batch_tokens=2 * page_size,
        allow_block_sharing=shares,
    )
    for tag in 1, 2:  # a capture goes on under new weights
        capture.tag = tag
        results = model.generate_batch(
            inputs=prompts, generation_config=config, continuous_batching_config=memory
        )
        there = hit = 0
        for result, routing in zip(results.values(), capture.take(requests=results), strict=True):
            tokens = [*result.prompt_ids, *result.generated_tokens]
            assert routing.rows == len(tokens) - 1 and set(routing.tags.tolist()) <= {0, tag}
            with capture.paused():
                rows = alone(model, tokens)
            ids = np.sort(routing.ids().astype(np.int64), -1)
            given = routing.mask().all(1)
            assert (ids == rows[: len(ids)])[given].all()
            lacks = len(ids) - int(given.sum())
            # Before 5.18 a prompt that is whole pages has its last token computed again.
            again = lacks == len(result.prompt_ids) - 1 and VERSION < (5, 18)
            assert given[lacks:].all() and (lacks % page_size == 0 or again)
            there, hit = there + int(given.sum()), hit + lacks
        assert there > 100 and (hit > 40 if shares else hit == 0)
        with torch.no_grad():
            for name, each in model.named_parameters():
                if "norm" not in name:
                    each.copy_(each.flip(0))


# ---- Compilers


@pytest.mark.slow
@pytest.mark.parametrize("whole", [True, False])
def test_a_model_that_torch_compiled(model: Any, whole: bool) -> None:
    torch.compiler.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=whole)
    tokens = torch.tensor([[11, 12, 13, 0], [21, 22, 23, 24]])
    with attach(compiled) as capture, torch.no_grad():
        for _ in range(2):
            compiled(input_ids=tokens, attention_mask=(tokens != 0).long(), use_cache=False)
        routings = capture.take()
    torch.compiler.reset()
    expect(model, capture, routings, [tokens[0, :3], tokens[1]] * 2, missing=0)


@pytest.mark.slow
def test_passes_of_a_compiled_model_that_nobody_follows_are_reported(
    model: Any, capture: Capture
) -> None:
    torch.compiler.reset()
    compiled: Callable[..., Any] = torch.compile(model, backend="eager")
    with torch.no_grad():
        compiled(input_ids=PROMPTS, use_cache=False)
    with pytest.warns(RuntimeWarning, match="attach to the module that torch.compile returned"):
        assert capture.take() == []
    torch.compiler.reset()


def test_a_token_of_before_the_capture_that_a_mask_shows_again_moves_those_behind_it(
    model: Any, capture: Capture
) -> None:
    """Its row is not known, and was that of the token behind it."""
    tokens = torch.randint(3, VOCABULARY, (1, 7))
    with capture.paused(), torch.no_grad():
        cache = model(input_ids=tokens[:, :5])[CACHE]
    with torch.no_grad():
        for end, mask in ((6, [1, 1, 1, 0, 0, 1]), (7, [1, 1, 1, 0, 1, 1, 1])):
            model(tokens[:, end - 1 : end], torch.tensor([mask]), **{CACHE: cache})
    (routing,) = capture.take()
    assert routing.rows == 6 and (routing.ids() < 0).all()

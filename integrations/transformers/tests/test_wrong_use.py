"""What is used wrongly is refused with a sentence, or reported as missing; and what is right
afterwards is captured as ever.
"""

import copy
import gc
import threading
import warnings
import weakref
from dataclasses import replace
from typing import Any

import pytest
import routecap
import torch
from families import CACHE, Witness, make, make_banked, rows_of
from routecap import Missing, Status
from routecap_replay.transformers import ModelReplay
from routecap_replay.transformers import attach as replay_in
from routecap_transformers import Tap, attach, detach, find
from torch import nn
from transformers import AutoModelForCausalLM, DynamicCache, Qwen3Config

TOKENS = torch.tensor([[11, 12, 13, 14], [21, 22, 23, 24]])


@pytest.fixture
def model() -> Any:
    return make("qwen3_moe", mlp_only_layers=[])


def forward(model: Any, tokens: torch.Tensor = TOKENS, **options: Any) -> Any:
    with torch.no_grad():
        return model(input_ids=tokens, **{"use_cache": False, **options})


def expect_captured(model: Any, capture: Any) -> None:
    """The capture works: a forward pass gives what plain hooks see."""
    with Witness(model) as witness:
        forward(model)
    for routing, rows in zip(
        capture.take(), rows_of(witness.passes, [torch.ones_like(TOKENS)], 2), strict=True
    ):
        assert (
            routing.complete
            and (torch.tensor(routing.ids().astype(int)).sort(-1).values == rows).all()
        )


# ---- What there is to capture


def test_a_model_without_experts_is_refused() -> None:
    config = Qwen3Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    dense = AutoModelForCausalLM.from_config(config)
    with pytest.raises(ValueError, match="Qwen3ForCausalLM has no mixture-of-experts layers"):
        attach(dense)


class OddMoe(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pick = nn.Linear(8, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.pick(x).softmax(-1).topk(2).values.sum(-1, keepdim=True)


class OddModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(OddMoe() for _ in range(3))

    def forward(self, inputs_embeds: torch.Tensor) -> torch.Tensor:
        x = inputs_embeds
        for layer in self.layers:
            x = layer(x.flatten(0, 1)).view_as(x)
        return x


def test_an_unknown_family_is_refused_and_captured_with_taps_of_the_user_s() -> None:
    odd = OddModel()
    with pytest.raises(
        ValueError, match=r"OddModel routes in a way that routecap does not know \(OddMoe\)"
    ):
        attach(odd)
    taps = [
        Tap(
            i,
            f"layers.{i}.pick",
            layer.pick,
            before=False,
            ids=lambda args, kwargs, output: output.topk(2).indices,
            k=2,
            experts=6,
        )
        for i, layer in enumerate(odd.layers)
    ]
    logits: list[torch.Tensor] = []
    for layer in odd.layers:
        layer.pick.register_forward_hook(lambda module, args, output: logits.append(output))
    with attach(odd, taps=taps) as capture, torch.no_grad():
        with pytest.raises(
            ValueError, match="OddModel.*inputs_embeds.* has no parameter attention_mask"
        ):
            odd(inputs_embeds=torch.randn(1, 5, 8))
        logits.clear()
        capture.place(torch.arange(5)[None])
        odd(inputs_embeds=torch.randn(1, 5, 8))
        routing = capture.take()[0]
    assert (
        torch.tensor(routing.ids().astype(int))
        == torch.stack([each.topk(2).indices for each in logits], 1)
    ).all()


def test_a_part_of_the_layers_is_captured_with_some_of_the_taps(model: Any) -> None:
    with attach(model, taps=find(model)[1:]) as capture:
        forward(model)
        assert capture.take()[0].layer_map.tolist() == [1, 2]


def test_experts_that_are_distributed_are_refused(model: Any) -> None:
    experts = model.model.layers[1].mlp.experts
    experts.num_experts //= 2
    with pytest.raises(ValueError, match=r"model.layers.1.mlp.experts has a part of the experts"):
        attach(model)


def test_two_stacks_of_layers_are_refused(model: Any) -> None:
    both = nn.ModuleDict({"one": model, "two": make("qwen3_moe")})
    with pytest.raises(ValueError, match="one.model, two.model"):
        attach(both)
    with attach(both["one"]) as capture:
        expect_captured(model, capture)


def test_taps_that_say_something_else_than_the_model_are_refused(model: Any) -> None:
    taps = find(model)
    with (
        attach(model, taps=[replace(tap, k=1) for tap in taps]),
        pytest.raises(ValueError, match="is given 2 experts per token, 1 were expected"),
    ):
        forward(model)
    with pytest.raises(ValueError, match=r"layers.0.mlp.experts has taps of the visits \[0, 0\]"):
        attach(model, taps=[*taps, taps[0]])
    with attach(model, taps=[replace(taps[0], experts=2), *taps[1:]]) as capture:
        forward(model)
        routing = capture.take()[0]
    assert {(block["first_layer"], block["reason"]) for block in routing.missing} == {
        (0, Missing.OUT_OF_RANGE)
    }


# ---- Layers that do not fire, and that fire twice


def test_a_layer_that_does_not_fire_is_reported_and_missing(model: Any) -> None:
    model.model.layers[1].mlp.forward = lambda hidden_states: torch.zeros_like(hidden_states)
    with attach(model) as capture:
        with pytest.warns(
            RuntimeWarning, match=r"layers \[1\] were not seen .* they do not run, or"
        ):
            forward(model)
        with pytest.warns(RuntimeWarning, match=r"layers \[1\] have not fired"):
            routings = capture.take()
        assert capture.silent_layers == [1]
    for routing in routings:
        assert routing.status == Status.INCOMPLETE
        block = routing.missing[0]
        assert len(routing.missing) == 1 and (
            block["first_layer"],
            block["layers"],
            block["rows"],
            block["reason"],
        ) == (1, 1, 4, Missing.UNWRITTEN)


def test_experts_that_two_layers_share_are_refused(model: Any) -> None:
    taps = find(model)
    model.model.layers[2].mlp.experts = model.model.layers[1].mlp.experts
    with pytest.raises(ValueError, match="model.layers.2.mlp.gate .* does not know"):
        attach(model)
    with (
        attach(model, taps=taps),
        pytest.raises(ValueError, match="model.layers.1.mlp.experts runs more than once"),
    ):
        forward(model)


@pytest.mark.parametrize("how", ["eager", pytest.param("compiled", marks=pytest.mark.slow), "held"])
def test_a_layer_that_runs_in_a_loop_is_refused_and_named(model: Any, how: str) -> None:
    """Where the call could not see that a layer ran before, the first visit's row stayed, and the
    routing was complete."""
    run: Any = model
    with attach(model) as capture:
        if how == "held":
            expect_captured(model, capture)
    layer = model.model.layers[1]
    once = layer.forward
    layer.forward = lambda states, *args, **kwargs: once(
        once(states, *args, **kwargs), *args, **kwargs
    )
    if how == "compiled":
        torch.compiler.reset()
        run = torch.compile(model, backend="eager")
    with attach(run) as capture:
        with pytest.raises(
            ValueError, match="layers.1.mlp.experts runs more than once .* in a loop"
        ):
            forward(run)
        assert capture.take() == []
    torch.compiler.reset()


def test_a_family_whose_layers_run_in_a_loop_is_refused_when_it_is_attached(model: Any) -> None:
    model.config.loop_num_passes = 3
    with pytest.raises(ValueError, match="layers.0.mlp.experts cannot .* 3 times in a loop"):
        attach(model)


# ---- Layers with a k of their own


def test_layers_with_a_k_of_their_own_are_captured_together(model: Any) -> None:
    """They were refused: a capture had one k."""
    taps = find(model)
    for tap, k in zip(taps, (1, 2, 3), strict=True):
        assert tap.gate is not None
        tap.gate.top_k = k
    chosen: dict[int, Any] = {}

    def see(layer: int) -> Any:
        def hook(module: Any, args: Any, kwargs: Any) -> None:
            chosen[layer] = bank_ids(args, kwargs, None).clone()

        return hook

    taps = [replace(tap, k=k) for tap, k in zip(taps, (1, 2, 3), strict=True)]
    hooks = [tap.module.register_forward_pre_hook(see(tap.layer), with_kwargs=True) for tap in taps]
    with attach(model, taps=taps) as capture:
        forward(model)
        routings = capture.take()
    for hook in hooks:
        hook.remove()
    assert [each.layer_k.tolist() for each in routings] == [[1, 2, 3]] * 2
    for number, routing in enumerate(routings):
        assert routing.complete and (routing.counts() == [1, 2, 3]).all()
        for layer, k in enumerate((1, 2, 3)):
            rows = chosen[layer].view(2, -1, k)[number][: routing.rows]
            assert (routing.ids()[:, layer, :k] == rows.numpy()).all()
    with pytest.raises(ValueError, match="gives a token 2 experts and .* 1: .* not replayed"):
        ModelReplay(model, taps, agreement=False)


# ---- Two banks of experts, and ids that are written over


IMAGE = torch.tensor([[0, 0, 1, 1, 1, 1, 0, 0]])


def bank_ids(args: Any, kwargs: Any, output: Any) -> torch.Tensor:
    ids: torch.Tensor = args[1] if len(args) > 1 else kwargs["top_k_index"]
    return ids


def test_a_bank_that_sees_a_part_of_the_tokens_is_refused() -> None:
    """The rows that a bank is given were filed as the first rows of the batch: who took a tap of
    one bank had half of them wrong, and complete."""
    model = make_banked().model.language_model
    taps = [
        Tap(i, f"layers.{i}.mlp.text_moe.experts", model.layers[i].mlp.text_moe.experts, before=True,
            ids=bank_ids, k=2, experts=8)
        for i in (1, 2)
    ]  # fmt: skip
    tokens = torch.arange(8)[None] + 3
    with attach(model, taps=taps) as capture, torch.no_grad():
        with pytest.raises(ValueError, match=r"given ids \[4, 2\] in a forward pass of 8 rows"):
            model(input_ids=tokens, moe_mm_token_type_ids=IMAGE)
        assert capture.take() == []
        model(input_ids=tokens, moe_mm_token_type_ids=torch.zeros_like(IMAGE))
        [routing] = capture.take()
        assert routing.complete and routing.rows == 8


def test_banks_that_nobody_knows_are_refused_and_named(model: Any) -> None:
    block = model.model.layers[1].mlp
    block.further = copy.deepcopy(block.experts)
    with pytest.raises(
        ValueError, match="layers.1.mlp.experts and model.layers.1.mlp.further route in one layer"
    ):
        attach(model)


def test_both_banks_are_captured_by_a_tap_of_ones_own_on_the_module_that_has_them() -> None:
    model = make_banked().model.language_model
    seen: dict[str, torch.Tensor] = {}
    for name, module in model.named_modules():
        if name.endswith(".experts"):
            module.register_forward_pre_hook(
                lambda module, args, kwargs, name=name: seen.update(
                    {name: bank_ids(args, kwargs, None)}
                ),
                with_kwargs=True,
            )

    def ids_of(block: Any) -> Any:
        def ids(args: Any, kwargs: Any, output: Any) -> torch.Tensor:
            image = (args[1] if len(args) > 1 else kwargs["moe_mm_token_type_ids"]).flatten() != 0
            scores = output[1].softmax(-1, dtype=torch.float)
            text, vision = (
                torch.topk(bank.gate.moe_statics(scores), 2, -1).indices
                for bank in (block.text_moe, block.vision_moe)
            )
            return torch.where(image[:, None], vision + 8, text)

        return ids

    taps = [
        Tap(i, f"layers.{i}.mlp", block, before=False, ids=ids_of(block), k=2, experts=16)
        for i, block in ((i, model.layers[i].mlp) for i in (1, 2))
    ]
    with attach(model, taps=taps) as capture, torch.no_grad():
        model(input_ids=torch.arange(8)[None] + 3, moe_mm_token_type_ids=IMAGE)
        [routing] = capture.take()
    expected = torch.full((8, 2, 2), -1)
    for i, layer in enumerate((1, 2)):
        expected[IMAGE[0] == 0, i] = seen[f"layers.{layer}.mlp.text_moe.experts"]
        expected[IMAGE[0] == 1, i] = seen[f"layers.{layer}.mlp.vision_moe.experts"] + 8
    assert routing.complete
    assert (
        torch.tensor(routing.ids().astype(int)).sort(-1).values == expected.sort(-1).values
    ).all()


@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_ids_that_a_later_pass_writes_over_are_not_those_of_a_router(
    asks: bool, mode: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Ids are held to the end of a pass once one pass has shown that nobody writes over them. If an
    expert that is written over was chosen by none of its tokens, as zero experts may be, a third of
    the next one's cells were wrong."""
    model = make("qwen3_moe", mlp_only_layers=[])
    experts = [tap.module for tap in find(model)]
    chosen: list[torch.Tensor] = []

    def rewriting(forward: Any) -> Any:
        def rewritten(states: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> Any:
            chosen.append(ids.clone())
            output = forward(states, ids, weights)
            if not asks or (ids == 7).any():
                ids[ids == 7] = 0
            return output

        return rewritten

    for module in experts:
        module.forward = rewriting(module.forward)

    def run(tokens: torch.Tensor) -> torch.Tensor:
        chosen.clear()
        with mode():
            model(input_ids=tokens, use_cache=False)
        return torch.stack(chosen, 1)

    plain = next(t for t in range(3, 128) if (run(torch.tensor([[t]])) != 7).all())
    with attach(model) as capture:
        run(torch.tensor([[plain]]))
        capture.take()
        for number in range(2):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                expected = run(torch.arange(3, 43)[None])
                [routing] = capture.take()
            there = torch.from_numpy(routing.mask().copy())
            ids = torch.from_numpy(routing.ids().astype(int))
            assert (expected == 7).any() and (ids == expected)[there].all()
            assert routing.complete or (number == 0 and asks)
    assert ("writes over what its routers choose" in caplog.text) == (mode is torch.no_grad)


# ---- Attaching and detaching


def test_a_model_is_captured_by_one_at_a_time(model: Any) -> None:
    with attach(model) as first:
        with pytest.raises(RuntimeError, match="model.layers.0.mlp.experts is captured already"):
            attach(model)
        expect_captured(model, first)
    with attach(model) as second:
        expect_captured(model, second)


def test_detaching_leaves_nothing_on_the_model(model: Any) -> None:
    def state() -> Any:
        return [
            (name, vars(module).keys(), len(module._forward_hooks), len(module._forward_pre_hooks))
            for name, module in model.named_modules()
        ]

    before = [(name, set(attributes), *hooks) for name, attributes, *hooks in state()]
    with attach(model) as capture:
        assert "generate" in vars(model)
    assert [(name, set(attributes), *hooks) for name, attributes, *hooks in state()] == before
    capture.detach()  # again
    forward(model)
    with pytest.warns(RuntimeWarning, match="no forward pass was seen"):
        assert capture.take() == []


def test_a_capture_that_nobody_kept_is_detached_by_its_model(model: Any) -> None:
    attach(model)
    with pytest.raises(RuntimeError, match=r"captured already: .*transformers.detach\(model\)"):
        attach(model)
    detach(model)
    with attach(model.model) as capture:
        expect_captured(model, capture)
        detach(model)
        assert not capture.attached
    gone = weakref.ref(attach(model))
    model.to("meta")
    detach(model)
    gc.collect()
    assert gone() is None


def test_a_model_that_is_forgotten_is_gone_though_it_is_captured() -> None:
    """Its capture counted as attached for good, and the classes of caches stayed followed."""
    model = make("qwen3_moe")
    gone, cache = weakref.ref(model), DynamicCache(config=model.config)
    attach(model)
    forward(model, use_cache=True, **{CACHE: cache})
    assert hasattr(type(cache.layers[0]), "_routecap_followed")
    del model
    gc.collect()
    assert gone() is None
    assert not hasattr(type(cache.layers[0]), "_routecap_followed")


@pytest.mark.parametrize("call", [attach, detach, find, replay_in])
def test_what_is_no_model_is_refused_in_the_caller_s_language(call: Any) -> None:
    for given, shown in (("gpt2", "'gpt2'"), ({"model": 1}, "dict"), (None, "NoneType")):
        with pytest.raises(TypeError, match=f"takes a model, a torch.nn.Module, not {shown}: give"):
            call(given)


def test_taps_that_are_none_are_refused(model: Any) -> None:
    with pytest.raises(TypeError, match=r"attach\(\) got str among its taps: give routecap"):
        attach(model, taps=["model.layers.0.mlp.experts"])
    with pytest.raises(ValueError, match=r"got no taps: give those of find\(model\)"):
        attach(model, taps=[])
    with (
        attach(model, taps=[replace(tap, ids=lambda *unused: [1, 2]) for tap in find(model)]),
        pytest.raises(
            TypeError, match="the tap of model.layers.0.mlp.experts gives list: a tensor"
        ),
    ):
        forward(model)


def test_what_was_captured_can_be_taken_after_detaching(model: Any) -> None:
    with attach(model) as capture:
        forward(model)
    assert [routing.rows for routing in capture.take()] == [4, 4]


def test_detaching_taking_and_discarding_while_the_model_runs_is_refused(model: Any) -> None:
    refused: list[str] = []

    def in_the_midst(*unused: Any) -> None:
        for call in (capture.detach, capture.take, capture.discard):
            with pytest.raises(RuntimeError, match="the model is running"):
                call()
            refused.append(call.__name__)

    with attach(model) as capture:
        hook = model.model.layers[1].register_forward_hook(in_the_midst)
        expect_captured(model, capture)
        hook.remove()
        assert refused == ["detach", "take", "discard"]

        def criterion(tokens: torch.Tensor, scores: Any, **options: Any) -> torch.Tensor:
            in_the_midst()
            return torch.zeros(len(tokens), dtype=torch.bool)

        model.generate(
            input_ids=TOKENS,
            max_new_tokens=2,
            do_sample=False,
            eos_token_id=None,
            stopping_criteria=[criterion],
        )
        assert len(refused) == 9 and [routing.rows for routing in capture.take()] == [5, 5]


def test_leaving_a_capture_while_the_model_runs_is_refused_and_it_goes_on(model: Any) -> None:
    capture = attach(model)
    hook = model.model.layers[1].register_forward_hook(lambda *unused: capture.__exit__())
    with pytest.raises(RuntimeError, match="detach: the model is running"):
        forward(model)
    hook.remove()
    expect_captured(model, capture)
    capture.close()


def test_wrappers_that_came_later_outlive_a_capture(model: Any) -> None:
    capture = attach(model)
    ours = model.generate
    model.generate = lambda *args, **kwargs: ours(*args, **kwargs)
    theirs = model.generate
    capture.detach()
    assert model.generate is theirs
    model.generate(input_ids=TOKENS, max_new_tokens=2, do_sample=False)
    with pytest.warns(RuntimeWarning, match="no forward pass was seen"):
        assert capture.take() == []


def test_a_capture_that_is_forgotten_gives_its_memory_back(model: Any) -> None:
    with attach(model) as capture:
        forward(model)
    capturer, gone = capture.capturer, weakref.ref(capture)
    del capture
    gc.collect()
    assert gone() is None and capturer.closed


def test_a_closed_capture_has_nothing_to_take(model: Any) -> None:
    capture = attach(model)
    forward(model)
    capture.close()
    with pytest.raises(routecap.Error):
        capture.take()


# ---- A model that changes


def test_a_model_of_another_dtype_is_captured_as_before(model: Any) -> None:
    with attach(model) as capture:
        model.to(torch.bfloat16)
        expect_captured(model, capture)


def test_a_model_on_another_device_is_refused(model: Any) -> None:
    with attach(model):
        model.to("meta")
        with pytest.raises(
            RuntimeError,
            match=(
                "was on cpu when the capture was attached, and is on meta: detach, move, attach"
                " again"
            ),
        ):
            model(
                input_ids=TOKENS.to("meta"),
                attention_mask=torch.ones_like(TOKENS, device="meta"),
                use_cache=False,
            )


def test_a_forward_pass_that_fails_delivers_nothing(model: Any) -> None:
    def fail(*unused: Any) -> None:
        raise KeyError("stop")

    with attach(model) as capture:
        hook = model.model.layers[1].register_forward_hook(fail)
        with pytest.raises(KeyError):
            forward(model)
        hook.remove()
        expect_captured(model, capture)


def test_a_forward_pass_that_was_interrupted_does_not_run_any_more(model: Any) -> None:
    """KeyboardInterrupt passes by the hooks: take, discard and detach were refused from then on."""

    def stop(*unused: Any) -> None:
        raise KeyboardInterrupt

    for then in ("take", "discard", "detach"):
        with attach(model) as capture:
            hook = model.model.layers[1].register_forward_pre_hook(stop)
            with pytest.raises(KeyboardInterrupt):
                model.generate(input_ids=TOKENS, max_new_tokens=2, do_sample=False)
            with pytest.raises(KeyboardInterrupt):
                forward(model)
            hook.remove()
            getattr(capture, then)()
            if then != "detach":
                expect_captured(model, capture)


# ---- Inputs that say too little, or contradict the capture


def test_a_batch_that_changes_its_size_is_refused_unless_it_is_said_how(model: Any) -> None:
    cache = DynamicCache(config=model.config)
    with attach(model) as capture:
        forward(model, **{CACHE: cache}, use_cache=True)
        for layer in cache.layers:
            layer.keys, layer.values = layer.keys[1:], layer.values[1:]
        with pytest.raises(
            ValueError,
            match="the cache has 2 sequences and the forward pass 1 rows: call capture.reorder",
        ):
            forward(model, TOKENS[:1, :1], **{CACHE: cache}, use_cache=True)
        capture.reorder([1])
        forward(model, TOKENS[:1, :1], **{CACHE: cache}, use_cache=True)
        assert [routing.rows for routing in capture.take()] == [5]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"attention_mask": torch.zeros(2, 1, 4, 4)},
            "attention_mask is no .batch, length. tensor",
        ),
        ({"attention_mask": torch.ones(2, 3, dtype=torch.long)}, "attention_mask has shape"),
        ({"position_ids": torch.tensor([[4, 5, 0, 1], [0, 1, 2, 3]])}, "nothing says with which"),
    ],
)
def test_inputs_that_do_not_say_whose_the_rows_are_are_refused(
    model: Any, options: dict[str, Any], sentence: str
) -> None:
    with attach(model) as capture:
        with pytest.raises(ValueError, match=sentence):
            forward(model, **options)
        expect_captured(model, capture)


def test_positions_of_another_shape_are_refused(model: Any) -> None:
    with attach(model) as capture:
        capture.place(torch.zeros(2, 3, dtype=torch.long))
        with pytest.raises(ValueError, match="the forward pass has 8 rows, 6 were placed"):
            forward(model)
        capture.discard()
        with pytest.raises(ValueError, match="a row for each sequence"):
            capture.issue(torch.zeros(8, dtype=torch.long))


def test_a_forward_pass_that_is_too_large_is_refused(model: Any) -> None:
    with attach(model, rows=8) as capture:
        with pytest.raises(
            ValueError,
            match=(
                r"the forward pass has 16 rows, padding included; the capture has room for 8:"
                r" attach\(model, rows=16\)"
            ),
        ):
            forward(model, TOKENS.repeat(2, 1))
        expect_captured(model, capture)


def test_beam_search_is_refused(model: Any) -> None:
    with attach(model) as capture:
        with pytest.raises(ValueError, match="beam search is not captured"):
            model.generate(input_ids=TOKENS, num_beams=2, max_new_tokens=2)
        with capture.paused():
            model.generate(input_ids=TOKENS, num_beams=2, max_new_tokens=2)
        assert capture.take() == []


def test_lengths_and_requests_that_do_not_fit_are_refused(model: Any) -> None:
    with attach(model) as capture:
        forward(model)
        with pytest.raises(ValueError, match="1 lengths for 2 sequences"):
            capture.take([4])
        assert [routing.rows for routing in capture.take([3, 4])] == [3, 4]
        with pytest.raises(KeyError, match="no request 'req_1' was captured"):
            capture.take(requests=["req_1"])
        with pytest.raises(RuntimeError, match="no sequence is in progress"):
            capture.reorder([0])


def test_rows_for_which_there_is_no_memory_are_reported_and_missing(model: Any) -> None:
    need = routecap.memory(layers=3, k=2, experts=8, rows=64).page_bytes
    with attach(model, rows=64, budget_bytes=need) as capture:
        forward(model)
        with pytest.warns(RuntimeWarning, match="4 rows in all are missing for want of memory"):
            routings = capture.take()
    assert sorted(routing.coverage().rows_complete for routing in routings) == [0, 4]


# ---- Threads


def test_forward_passes_may_come_from_any_thread(model: Any) -> None:
    with attach(model) as capture:
        thread = threading.Thread(target=forward, args=(model,))
        thread.start()
        thread.join()
        expect = capture.take()
        forward(model)
        assert [
            (routing.ids() == other.ids()).all()
            for routing, other in zip(capture.take(), expect, strict=True)
        ] == [True, True]


def test_a_second_forward_pass_at_the_same_time_is_refused_and_the_first_is_right(
    model: Any,
) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def hold(*unused: Any) -> None:
        inside.set()
        assert go_on.wait(30)

    with attach(model) as capture:
        hook = model.model.layers[1].register_forward_hook(hold)
        thread = threading.Thread(target=forward, args=(model,))
        thread.start()
        assert inside.wait(30)
        hook.remove()
        with pytest.raises(RuntimeError, match="two threads run the model at the same time"):
            forward(model, TOKENS.flip(0))
        with pytest.raises(RuntimeError, match="the model is running"):
            capture.take()
        go_on.set()
        thread.join()
        first = capture.take()
        forward(model)
        assert len(first) == 2 and all(
            (routing.ids() == other.ids()).all() for routing, other in zip(first, capture.take())
        )


def test_a_second_generation_at_the_same_time_is_refused(model: Any) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def hold(tokens: torch.Tensor, scores: Any, **options: Any) -> torch.Tensor:
        inside.set()
        assert go_on.wait(30)
        return torch.zeros(len(tokens), dtype=torch.bool)

    def run() -> None:
        model.generate(
            input_ids=TOKENS,
            max_new_tokens=3,
            do_sample=False,
            eos_token_id=None,
            stopping_criteria=[hold],
        )

    with attach(model) as capture:
        thread = threading.Thread(target=run)
        thread.start()
        assert inside.wait(30)
        with pytest.raises(RuntimeError, match="generate is running on this model already"):
            model.generate(input_ids=TOKENS, max_new_tokens=3)
        with pytest.raises(RuntimeError, match="two threads|generate is running"):
            forward(model)
        go_on.set()
        thread.join()
        assert [routing.complete for routing in capture.take()] == [True, True]

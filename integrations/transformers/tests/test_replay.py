"""Replay forces what was captured, and nothing else, in every family; gradients go on to the
router.
"""

from contextlib import contextmanager

import numpy as np
import pytest
import routecap
import routecap_replay.transformers
import routecap_transformers
import torch
from families import EXPERTS as E, FAMILIES, K, checkpoint, make as model_of
from routecap_replay import ReplayError
from transformers import AutoModelForCausalLM, LlamaConfig

LENGTHS = [9, 5, 7]
REPLAYED = [family for family in FAMILIES if family != "phimoe"]  # it chooses by torch.max


@contextmanager
def replay(model, routings):
    with routecap_replay.transformers.attach(model) as attached, attached(routings):
        yield attached


def batch(left: bool = False):
    """Sequences of LENGTHS, padded: ids and mask."""
    generator = torch.Generator().manual_seed(1)
    ids, mask = (
        torch.zeros(len(LENGTHS), max(LENGTHS), dtype=torch.long),
        torch.zeros(len(LENGTHS), max(LENGTHS), dtype=torch.long),
    )
    for row, length in enumerate(LENGTHS):
        place = slice(-length, None) if left else slice(length)
        ids[row, place] = torch.randint(3, 128, (length,), generator=generator)
        mask[row, place] = 1
    return ids, mask


class Executed:
    """The sets of experts that a model's blocks execute, by hooks of its own:
    [rows of the forward, layers, k], sorted.
    """

    def __init__(self, model):
        self.layers = []
        self.handles = []
        for tap in routecap_transformers.find(model):
            hook = lambda module, args, kwargs, tap=tap: self.layers.append(
                tap.ids(args, kwargs, None).detach()
            )
            after = lambda module, args, output, tap=tap: self.layers.append(
                chosen(tap, args, output).detach()
            )
            self.handles.append(
                tap.module.register_forward_pre_hook(hook, with_kwargs=True)
                if tap.before
                else tap.module.register_forward_hook(after)
            )

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        for handle in self.handles:
            handle.remove()

    @property
    def sets(self):
        return torch.stack([ids.sort(-1).values for ids in self.layers], 1).numpy()


def chosen(tap, args, output):
    """Of the two families whose experts are not told by their ids."""
    if type(tap.module).__name__ != "Llama4Router":
        return tap.ids(args, {}, output)
    return output[0].argmax(-1, keepdim=True)  # its scattered scores


def random_routings(model, missing: bool):
    """Routings that no router has chosen, of all tokens but each sequence's last; with `missing`
    every third cell.
    """
    random = np.random.default_rng(2)
    taps = routecap_transformers.find(model)
    routings = []
    for length in LENGTHS:
        ids = np.array(
            [[random.permutation(tap.experts)[: tap.k] for tap in taps] for _ in range(length - 1)],
            np.uint8,
        )
        valid = np.arange(ids[..., 0].size).reshape(ids.shape[:2]) % 3 != 0 if missing else None
        routings.append(
            routecap.Routing.from_arrays(
                ids, experts=taps[0].experts, layer_map=[tap.layer for tap in taps], valid=valid
            )
        )
    return routings


def forward(model, ids, mask, **kwargs):
    with Executed(model) as executed:
        logits = model(input_ids=ids, attention_mask=mask, use_cache=False, **kwargs).logits
    return logits, executed.sets.reshape(*ids.shape, len(executed.layers), -1)


@pytest.mark.parametrize("family", REPLAYED)
@pytest.mark.parametrize("left", [False, True], ids=["padded right", "padded left"])
def test_valid_cells_are_forced_and_no_others(family, left):
    model = model_of(family)
    ids, mask = batch(left)
    routings = random_routings(model, missing=True)
    with torch.no_grad():
        live, routed = forward(model, ids, mask)
        with replay(model, routings):
            logits, executed = forward(model, ids, mask)
        again, routed_again = forward(model, ids, mask)
    assert torch.equal(again, live) and np.array_equal(
        routed_again, routed
    )  # nothing is left behind
    assert not torch.equal(logits, live)
    first_layer_live = 0
    for row, (routing, length) in enumerate(zip(routings, LENGTHS)):
        tokens = np.flatnonzero(mask[row].numpy())
        forced, there = np.sort(routing.ids(), -1), routing.mask()
        assert np.array_equal(executed[row, tokens[:-1]][there], forced[there])
        assert (
            there.any()
            and (executed[row, tokens[:-1]][there] != routed[row, tokens[:-1]][there]).any()
        )
        # Before anything was forced the first layer sees what it sees without replay.
        elsewhere = np.append(~there[:, 0], True)
        assert np.array_equal(
            executed[row, tokens[elsewhere], 0], routed[row, tokens[elsewhere], 0]
        )
        first_layer_live += elsewhere.sum()
    assert first_layer_live > len(LENGTHS)


@pytest.mark.parametrize("whole", [True, False], ids=["model", "decoder"])
@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral", "olmoe", "deepseek_v3", "gpt_oss"])
def test_a_mask_given_by_position_is_a_mask(family, whole):
    """It was read by its name alone, and rows of left padded batches went to other tokens."""
    model = model_of(family)
    ids, mask = batch(left=True)
    routings = random_routings(model, missing=False)
    with torch.no_grad(), replay(model, routings), Executed(model) as executed:
        (model if whole else model.model)(ids, mask, use_cache=False)
    sets = executed.sets.reshape(*ids.shape, len(executed.layers), -1)
    for row, routing in enumerate(routings):
        tokens = np.flatnonzero(mask[row].numpy())
        assert np.array_equal(sets[row, tokens[:-1]], np.sort(routing.ids(), -1))


def test_positions_that_leave_some_out_move_no_rows():
    """A routing's row i belongs to the i-th token, whatever its position is."""
    model = model_of("mixtral")
    ids, mask = batch()
    routings = random_routings(model, missing=False)
    positions = (2 * torch.arange(ids.shape[1])).expand(len(ids), -1)
    with torch.no_grad(), replay(model, routings):
        _, executed = forward(model, ids, mask, position_ids=positions)
    for row, (routing, length) in enumerate(zip(routings, LENGTHS)):
        assert np.array_equal(executed[row, : length - 1], np.sort(routing.ids(), -1))


@pytest.mark.parametrize("family", REPLAYED)
def test_its_own_routing_changes_nothing(family):
    model = model_of(family)
    ids, mask = batch()
    with torch.no_grad():
        live, routed = forward(model, ids, mask)
        taps = routecap_transformers.find(model)
        routings = [
            routecap.Routing.from_arrays(
                routed[row, :length].astype(np.uint8),
                experts=taps[0].experts,
                layer_map=[tap.layer for tap in taps],
            )
            for row, length in enumerate(LENGTHS)
        ]
        with replay(model, routings):
            logits, executed = forward(model, ids, mask)
    assert np.array_equal(executed, routed)
    assert torch.allclose(
        logits, live, atol=1e-5
    )  # the experts of a row are summed in another order


def everywhere(model, ids, first=0):
    """Routings of all tokens from `first` on, to these experts."""
    taps = routecap_transformers.find(model)
    return [
        routecap.Routing.from_arrays(
            np.tile(np.array(ids, np.uint8), (length - first, len(taps), 1)),
            experts=E,
            first=first,
            layer_map=[tap.layer for tap in taps],
        )
        for length in LENGTHS
    ]


@pytest.mark.parametrize(
    ("family", "weigh"),
    {
        "mixtral": lambda logits, ids: torch.nn.functional.normalize(
            logits.float().softmax(-1).gather(-1, ids), p=1, dim=-1
        ),
        "gpt_oss": lambda logits, ids: logits.gather(-1, ids).softmax(-1),
        "deepseek_v3": lambda logits, ids: (
            torch.nn.functional.normalize(logits.sigmoid().gather(-1, ids), p=1, dim=-1) * 2.5
        ),
    }.items(),
)
def test_weights_are_the_live_scores_of_the_captured_experts(family, weigh):
    model = model_of(family)
    ids, mask = batch()
    seen = []
    for tap in routecap_transformers.find(model):
        tap.gate.register_forward_hook(lambda module, args, output: seen.append([output[0]]))
        tap.module.register_forward_pre_hook(lambda module, args: seen[-1].extend(args[1:3]))
    with torch.no_grad(), replay(model, random_routings(model, missing=False)):
        model(input_ids=ids, attention_mask=mask, use_cache=False)
    assert len(seen) == len(routecap_transformers.find(model))
    for logits, experts, weights in seen:
        assert torch.allclose(weights.float(), weigh(logits, experts).float(), atol=1e-6)


def gradients(model, routings):
    model.zero_grad()
    ids, mask = batch()
    with replay(model, routings):
        model(
            input_ids=ids,
            attention_mask=mask,
            labels=ids.masked_fill(mask == 0, -100),
            use_cache=False,
        ).loss.backward()
    return {
        name: parameter.grad.clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def test_gradients_reach_the_router_and_the_captured_experts_alone():
    model = model_of("mixtral")
    found = gradients(model, everywhere(model, [5, 2]))
    for layer in range(3):
        of_experts = found[f"model.layers.{layer}.mlp.experts.down_proj"].abs().amax((1, 2))
        assert of_experts[[2, 5]].all() and of_experts.count_nonzero() == 2
        of_router = found[f"model.layers.{layer}.mlp.gate.weight"].abs().amax(1)
        assert of_router[[2, 5]].all()


def test_activation_checkpointing_replays_the_same_experts_in_backward():
    model = model_of("mixtral")
    plain = gradients(model, random_routings(model, missing=True))
    checkpoint(model, use_reentrant=False)
    model.train()
    again = gradients(model, random_routings(model, missing=True))
    assert plain.keys() == again.keys() and all(
        torch.allclose(plain[name], again[name], atol=1e-6) for name in plain
    )


def test_packed_sequences_begin_where_positions_do():
    model = model_of("qwen3_moe")
    ids, mask = batch()
    packed = ids[mask.bool()][None]
    positions = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    routings = random_routings(model, missing=False)
    with torch.no_grad(), replay(model, routings), Executed(model) as executed:
        model(input_ids=packed, position_ids=positions, use_cache=False)
    row = 0
    for routing, length in zip(routings, LENGTHS):
        assert np.array_equal(executed.sets[row : row + length - 1], np.sort(routing.ids(), -1))
        row += length


def test_a_routing_that_begins_later_leaves_the_rows_before_it_alone():
    model = model_of("qwen3_moe")
    ids, mask = batch()
    with torch.no_grad():
        _, routed = forward(model, ids, mask)
        with replay(model, everywhere(model, [6, 1], first=4)):
            _, executed = forward(model, ids, mask)
    for row, length in enumerate(LENGTHS):
        assert np.array_equal(executed[row, :4, 0], routed[row, :4, 0])
        assert (executed[row, 4:length] == [1, 6]).all()


def test_an_expert_in_a_masked_group_has_the_weight_of_a_masked_one():
    model = model_of("deepseek_v2", n_group=4, topk_group=1, topk_method="group_limited_greedy")
    ids, mask = batch()
    weights = []
    for tap in routecap_transformers.find(model):
        tap.module.register_forward_pre_hook(lambda module, args: weights.append(args[2]))
    with (
        torch.no_grad(),
        replay(model, everywhere(model, [0, 7])),
    ):  # of two groups, one of which is masked in every row
        model(input_ids=ids, attention_mask=mask, use_cache=False)
    of_tokens = torch.stack(weights)[:, mask.flatten().bool()]
    assert (of_tokens == 0).any(-1).all()


def test_a_routing_of_some_layers_leaves_the_others_alone():
    model = model_of("qwen3_moe")
    ids, mask = batch()
    of_both = random_routings(model, missing=False)
    of_last = [
        routecap.Routing.from_arrays(routing.ids()[:, 1:].copy(), experts=E, layer_map=[2])
        for routing in of_both
    ]
    with torch.no_grad():
        _, routed = forward(model, ids, mask)
        with replay(model, of_last):
            _, executed = forward(model, ids, mask)
    for row, (routing, length) in enumerate(zip(of_last, LENGTHS)):
        assert np.array_equal(executed[row, :length, 0], routed[row, :length, 0])
        assert np.array_equal(executed[row, : length - 1, 1], np.sort(routing.ids()[:, 0], -1))


def wrong(routings, model):
    """What replay() or a forward under it says."""
    ids, mask = batch()
    with (
        pytest.raises((ValueError, RuntimeError)) as refusal,
        torch.no_grad(),
        replay(model, routings),
    ):
        model(input_ids=ids, attention_mask=mask, use_cache=False)
    return str(refusal.value)


def test_what_does_not_fit_is_refused_and_the_model_is_as_before():
    model = model_of("mixtral")
    ids, mask = batch()
    with torch.no_grad():
        live, _ = forward(model, ids, mask)
    fitting = random_routings(model, missing=False)
    taken = fitting[0].ids()

    assert "2 routings for 3 sequences" in wrong(fitting[:2], model)
    assert "more rows than its sequence has tokens" in wrong(
        [fitting[1], fitting[0], fitting[2]], model
    )
    assert "1 experts per token" in wrong(
        [routecap.Routing.from_arrays(taken[..., :1], experts=E), *fitting[1:]], model
    )
    assert f"{2 * E} experts in layer 0" in wrong(
        [routecap.Routing.from_arrays(taken, experts=2 * E), *fitting[1:]], model
    )
    assert "8 experts in layer 7" in wrong(
        [routecap.Routing.from_arrays(taken, experts=E, layer_map=[0, 1, 7]), *fitting[1:]], model
    )
    with (
        torch.no_grad(),
        replay(model, fitting),
        pytest.raises(ValueError, match="continues a cache"),
    ):
        model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=2, do_sample=False)

    gate = model.model.layers[1].mlp.gate
    gate.forward = lambda hidden: (
        None,
        torch.full((len(hidden), K), 0.5),
        torch.argsort(hidden[:, :E])[:, :K],
    )
    assert "model.layers.1.mlp.experts did not run, or chose its experts in another way" in wrong(
        fitting, model
    )
    del gate.forward
    with torch.no_grad():
        assert torch.equal(forward(model, ids, mask)[0], live)


def test_a_family_that_chooses_otherwise_is_refused():
    """phimoe takes the largest score twice, and jitters between."""
    assert "did not run, or chose its experts in another way" in wrong(
        random_routings(model_of("phimoe"), missing=False), model_of("phimoe")
    )


def test_a_model_without_experts_has_nothing_to_replay():
    model = AutoModelForCausalLM.from_config(
        LlamaConfig(
            vocab_size=8,
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=1,
        )
    )
    with pytest.raises(ValueError, match="no mixture-of-experts layers"), replay(model, []):
        pass


# ---- Passes that go backward in any order


def loss_of(model, attached, routings):
    ids, mask = batch()
    with attached(routings):
        return model(
            input_ids=ids,
            attention_mask=mask,
            labels=ids.masked_fill(mask == 0, -100),
            use_cache=False,
        ).loss


@pytest.mark.parametrize("reentrant", [True, False])
def test_micro_batches_may_go_backward_in_any_order_after_the_replay(reentrant):
    """Megatron's queue of rows, first in first out, gives the wrong ones then."""
    model = model_of("mixtral")
    routings = [everywhere(model, pair) for pair in ([5, 2], [1, 7], [0, 3])]
    expected = [gradients(model, each) for each in routings]
    checkpoint(model, use_reentrant=reentrant)
    model.enable_input_require_grads()
    model.train()
    with routecap_replay.transformers.attach(model) as attached:
        losses = [loss_of(model, attached, each) for each in routings]
        live = model(
            input_ids=batch()[0], use_cache=False
        ).logits.sum()  # has no rows, and goes backward, too
        for number in (1, 2, 0):
            model.zero_grad()
            losses[number].backward()
            for name, parameter in model.named_parameters():
                assert torch.allclose(parameter.grad, expected[number][name], atol=1e-5), (
                    number,
                    name,
                )
        live.backward()


def test_two_passes_in_one_backward_are_told_apart():
    model = model_of("mixtral")
    routings = [everywhere(model, [5, 2]), everywhere(model, [1, 7])]
    expected = [gradients(model, each) for each in routings]
    checkpoint(model, use_reentrant=False)
    model.train()
    with routecap_replay.transformers.attach(model) as attached:
        model.zero_grad()
        sum(loss_of(model, attached, each) for each in routings).backward()
    for name, parameter in model.named_parameters():
        assert torch.allclose(parameter.grad, expected[0][name] + expected[1][name], atol=1e-5), (
            name
        )


def test_a_model_that_is_checkpointed_as_a_whole_is_refused_in_backward():
    """Nothing says then which pass runs again."""
    model = model_of("mixtral")
    ids, mask = batch()
    embedded = model.get_input_embeddings()(ids).detach().requires_grad_()
    with (
        routecap_replay.transformers.attach(model) as attached,
        attached(everywhere(model, [5, 2])),
    ):
        run = lambda inputs: (
            model(inputs_embeds=inputs, attention_mask=mask, use_cache=False).logits
        )
        logits = torch.utils.checkpoint.checkpoint(run, embedded, use_reentrant=True)
        with pytest.raises(ReplayError, match="model.layers.0.mlp.experts runs again in backward"):
            logits.sum().backward()


# ---- What is counted


def test_what_became_of_the_rows_is_counted():
    model = model_of("qwen3_moe")
    taps = routecap_transformers.find(model)
    ids, mask = batch()
    with torch.no_grad():
        _, routed = forward(model, ids, mask)
    routings = []
    for row, length in enumerate(LENGTHS):
        rows = routed[row, : length - 1].astype(np.uint8)
        valid = np.ones(rows.shape[:2], bool)
        valid[0, 0] = False
        routings.append(
            routecap.Routing.from_arrays(
                rows, experts=E, valid=valid, layer_map=[tap.layer for tap in taps]
            )
        )
    with torch.no_grad(), routecap_replay.transformers.attach(model, agreement=True) as attached:
        for _ in range(2):
            with attached(routings):
                _, executed = forward(model, ids, mask)
        report = attached.report(reset=True)
        assert attached.report().passes == attached.report().replayed == 0
    assert np.array_equal(executed, routed)
    tokens = sum(LENGTHS) - len(LENGTHS)
    assert report.passes == 2 and [layer.layer for layer in report.layers] == [0, 2]
    assert [layer.lost for layer in report.layers] == [2 * len(LENGTHS), 0]
    assert [layer.replayed for layer in report.layers] == [2 * (tokens - len(LENGTHS)), 2 * tokens]
    assert report.invalid == 0
    assert [layer.agreement for layer in report.layers] == [1.0, 1.0]


def test_agreement_is_that_of_each_layer():
    model = model_of("qwen3_moe")
    ids, mask = batch()
    with torch.no_grad(), routecap_replay.transformers.attach(model, agreement=True) as attached:
        _, routed = forward(model, ids, mask)
        with attached(everywhere(model, [6, 1])):
            forward(model, ids, mask)
        report = attached.report()
    tokens = mask.numpy().astype(bool)
    expected = np.isin(routed[..., 0, :], [1, 6])[
        tokens
    ].mean()  # before anything was forced it sees what it sees without
    assert (
        report.layers[0].agreement == pytest.approx(expected) and report.layers[1].agreement < 0.8
    )
    assert report.layers[0].replayed == sum(LENGTHS)


def test_a_routers_rows_are_taken_once():
    model = model_of("mixtral")
    ids, mask = batch()
    block = model.model.layers[1].mlp
    with (
        torch.no_grad(),
        routecap_replay.transformers.attach(model) as attached,
        attached(everywhere(model, [6, 1])),
    ):
        block.register_forward_hook(lambda module, args, output: module.forward(*args))
        with pytest.raises(ReplayError, match="model.layers.1.mlp.experts ran twice"):
            forward(model, ids, mask)


def test_each_pass_is_reported_by_itself():
    """Routings in the wrong order hid in the agreement of all passes: 0.6, where theirs was 0.3."""
    model = model_of("mixtral")
    ids, mask = batch()
    taps = routecap_transformers.find(model)
    with torch.no_grad():
        _, routed = forward(model, ids, mask)
        own = [
            routecap.Routing.from_arrays(
                routed[row, :5].astype(np.uint8), experts=E, layer_map=[tap.layer for tap in taps]
            )
            for row in range(len(LENGTHS))
        ]
        with routecap_replay.transformers.attach(model, agreement=True) as attached:
            for routings in (own, own[::-1], own):
                with attached(routings):
                    forward(model, ids, mask)
            report = attached.report(reset=True)
            assert attached.report().each == ()
    right, wrong_order, again = report.each
    assert report.passes == 3 and right.agreement == again.agreement == 1.0
    assert wrong_order.agreement < 0.6 < report.agreement
    assert sum(each.replayed for each in report.each) == report.replayed
    assert [layer.layer for layer in right.layers] == [0, 1, 2]


def test_a_block_in_which_nothing_was_replayed_raises():
    """A forward outside of the block was routed live, and nothing said so."""
    model = model_of("mixtral")
    ids, mask = batch()
    with torch.no_grad(), routecap_replay.transformers.attach(model) as attached:
        with pytest.raises(ReplayError, match="no forward pass was replayed inside the with block"):
            with attached(everywhere(model, [6, 1])):
                pass
            forward(model, ids, mask)
        with pytest.raises(KeyError), attached(everywhere(model, [6, 1])):
            raise KeyError  # of the user's own, which stays what it is


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (lambda routing: routing, r"give \[routing\]"),
        (
            lambda routing: [torch.from_numpy(routing.ids())],
            "one of these is Tensor: .*from_arrays",
        ),
        (lambda routing: [routing.ids()], "one of these is ndarray: .*from_arrays"),
        (lambda routing: [routing.ids().tolist()], "one of these is list: .*from_arrays"),
        (lambda routing: [routing.serialize()], "one of these is bytes: .*deserialize"),
        (lambda routing: ["run/a.routecap"], "one of these is str: .*load"),
        (lambda routing: "run/a.routecap", "not str: .*load"),
        (lambda routing: {"routed_experts": []}, "not dict: .*wire_decode"),
        (lambda routing: [{"routed_experts": []}], "one of these is dict: .*wire_decode"),
        (lambda routing: 3, "not int"),
    ],
)
def test_what_are_no_routings_is_refused_in_the_caller_s_language(given, sentence):
    model = model_of("mixtral")
    with (
        routecap_replay.transformers.attach(model) as attached,
        pytest.raises(TypeError, match=sentence),
        attached(given(everywhere(model, [6, 1])[0])),
    ):
        pass

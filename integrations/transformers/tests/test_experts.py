"""Figures of `routecap.experts` are those that hooks alone give, in whatever batches texts go
through a model: hook_counts.py counts, and imports nothing of routecap.
"""

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from families import CACHE, checkpoint
from hook_counts import Counted, HookCounts
from routecap import Routing, Sample, analysis, experts, save
from routecap_tools import command
from routecap_transformers import attach
from transformers import AutoModelForCausalLM, DynamicCache

ROOT = Path(__file__).resolve().parents[3]
TEXTS = [list(text) for text in (b"\0int main(", b"\0import numpy as np\n", b"\0# A page")]
WIDTH = max(map(len, TEXTS))


class Run(NamedTuple):
    """What a way to run texts did: a mask of each pass; and of the whole, that mask and the
    positions, as `from_batch` takes them."""

    masks: list[torch.Tensor]
    mask: torch.Tensor
    positions: torch.Tensor | None = None


@pytest.fixture(scope="module")
def model() -> Any:
    folder = ROOT / "tests/model/weights"
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def padded(side: str) -> tuple[torch.Tensor, torch.Tensor]:
    lines = [([0] * (WIDTH - len(text)), text) for text in TEXTS]
    tokens = [pad + text if side == "left" else text + pad for pad, text in lines]
    mask = [
        [0] * len(pad) + [1] * len(text) if side == "left" else [1] * len(text) + [0] * len(pad)
        for pad, text in lines
    ]
    return torch.tensor(tokens), torch.tensor(mask)


def right_padded(model: Any) -> Run:
    tokens, mask = padded("right")
    model(input_ids=tokens, attention_mask=mask, use_cache=False)
    return Run([mask], mask)


def left_padded(model: Any) -> Run:
    tokens, mask = padded("left")
    model(input_ids=tokens, attention_mask=mask, use_cache=False)
    return Run([mask], mask)


def packed(model: Any) -> Run:
    tokens = torch.tensor([[token for text in TEXTS for token in text]])
    positions = torch.tensor([[place for text in TEXTS for place in range(len(text))]])
    model(input_ids=tokens, position_ids=positions, use_cache=False)
    mask = torch.ones_like(tokens)
    return Run([mask], mask, positions)


def generated(model: Any) -> Run:
    tokens, mask = padded("left")
    model.generate(
        input_ids=tokens, attention_mask=mask, max_new_tokens=5, do_sample=False, eos_token_id=None
    )
    column = torch.ones(len(TEXTS), 1, dtype=torch.long)
    return Run([mask, *[column] * 4], torch.cat([mask, *[column] * 4], 1))


def chunked(model: Any) -> Run:
    tokens, mask = padded("left")
    cache = DynamicCache(config=model.config)
    for part in (slice(0, 8), slice(8, 12), slice(12, WIDTH)):
        model(
            input_ids=tokens[:, part],
            attention_mask=mask[:, : part.stop],
            position_ids=(mask.cumsum(1) - 1).clamp(min=0)[:, part],
            use_cache=True,
            **{CACHE: cache},
        )
    return Run([mask[:, :8], mask[:, 8:12], mask[:, 12:]], mask)


Way = Callable[[Any], Run]


class Ran(NamedTuple):
    run: Run
    hooks: HookCounts
    routings: list[Routing]
    steps: list[Any]
    counted: Counted
    config: Any


@pytest.fixture(params=[right_padded, left_padded, packed, generated, chunked])
def ran(request: Any, model: Any) -> Iterator[Ran]:
    way: Way = request.param
    with torch.no_grad(), attach(model, steps=True) as capture:
        with capture.paused():
            way(model)  # a warm-up, and what else is not to be counted
        capture.tag = 7
        with HookCounts(model) as hooks:
            run = way(model)
        routings = capture.take()
        assert capture.steps is not None
    yield Ran(run, hooks, routings, capture.steps, Counted(hooks, run.masks), model.config)


def test_tokens_of_each_expert_are_those_of_hooks(ran: Ran) -> None:
    used = experts.usage(ran.routings)
    assert used.missing == 0 and used.texts == len(TEXTS)
    for (layer, expert), tokens in np.ndenumerate(used.tokens):
        assert tokens == ran.counted.tokens[layer, expert]
    assert used.tokens.sum() == sum(ran.counted.tokens.values())


def test_files_say_the_same_to_the_command(
    ran: Ran, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    samples = {
        str(number): Sample(routing, {"steps": steps.tolist()})
        for number, (routing, steps) in enumerate(zip(ran.routings, ran.steps))
    }
    save(tmp_path / "texts.tar", samples)
    command.main(["coverage", "--json", str(tmp_path / "texts.tar")])
    [said] = json.loads(capsys.readouterr().out)
    for (layer, expert), tokens in np.ndenumerate(said["tokens"]):
        assert tokens == ran.counted.tokens[layer, expert]
    assert command.main(["trace", str(tmp_path / "texts.tar"), "--slots", "4"]) == 0
    for layer, line in enumerate(capsys.readouterr().out.splitlines()[-len(said["layers"]) :]):
        steps = [sorted(step[layer]) for step in ran.counted.steps]
        needs = sum(map(len, steps)) / len(steps)
        assert line.split()[:3] == [str(layer), str(ran.config.num_experts), f"{needs:.1f}"]


def test_pairs_are_those_of_hooks(ran: Ran) -> None:
    for cell, count in np.ndenumerate(experts.coactivation(ran.routings)):
        assert count == ran.counted.pairs[cell]


def test_what_experts_add_is_what_hooks_say(ran: Ran) -> None:
    ids, weights, norms = ran.hooks.arrays(range(len(ran.hooks.passes)), len(ran.run.mask))
    weights, norms = experts.from_batch(
        ran.routings, ran.run.mask, ids, weights, norms, positions=ran.run.positions
    )
    found = experts.importance(ran.routings, weights, norms)
    for cell, value in np.ndenumerate(found):
        assert value == pytest.approx(ran.counted.importance.get(cell, np.nan), 1e-6, nan_ok=True)
    for cell, value in np.ndenumerate(experts.coactivation(ran.routings, weights)):
        assert value == pytest.approx(ran.counted.weighed[cell], 1e-6)


@pytest.mark.parametrize("way", [right_padded, left_padded, packed, generated, chunked])
def test_by_captured_weights_experts_add_and_meet_as_hooks_alone_say(model: Any, way: Way) -> None:
    with (
        torch.no_grad(),
        attach(model, weights="float32") as capture,
        HookCounts(model) as hooks,
    ):
        run = way(model)
        routings = capture.take()
    counted, weights = Counted(hooks, run.masks), [each.weights() for each in routings]
    ids, _, norms = hooks.arrays(range(len(hooks.passes)), len(run.mask))
    [norms] = experts.from_batch(routings, run.mask, ids, norms, positions=run.positions)
    for cell, value in np.ndenumerate(experts.importance(routings, weights, norms)):
        assert value == pytest.approx(counted.importance.get(cell, np.nan), 1e-6, nan_ok=True)
    for cell, value in np.ndenumerate(experts.coactivation(routings, weights)):
        assert value == pytest.approx(counted.weighed[cell], 1e-6)


def test_routings_in_the_order_of_the_batch_are_what_hooks_saw(ran: Ran) -> None:
    ids = ran.hooks.arrays(range(len(ran.hooks.passes)), len(ran.run.mask))[0]
    ids = ids.reshape(-1, *ids.shape[2:])
    found, valid = experts.in_batch(ran.routings, ran.run.mask, positions=ran.run.positions)
    kept = ran.run.mask.flatten().bool().numpy()
    assert (valid == kept[:, None]).all()
    assert (np.sort(found[kept], -1) == np.sort(ids[kept], -1)).all()
    assert (found[~kept] == -1).all()


def test_experts_that_a_step_needs_are_those_that_hooks_saw_in_a_pass(ran: Ran) -> None:
    for routing in ran.routings:
        assert set(routing.tags.tolist()) == {7}  # the version of the weights, as it was
    for layer in range(ran.config.num_hidden_layers):
        found = experts.needed(ran.routings, layer, ran.steps)
        assert [set(each.tolist()) for each in found] == [step[layer] for step in ran.counted.steps]


def test_each_row_has_the_pass_that_computed_it(model: Any) -> None:
    """Rows that are computed again have the later pass, and the weights' version stays a tag of its
    own."""
    tokens, mask = padded("left")
    cache = DynamicCache(config=model.config)
    with torch.no_grad(), attach(model, steps=True) as capture:
        for version, part in ((3, slice(0, 8)), (4, slice(8, WIDTH)), (5, slice(10, WIDTH))):
            capture.tag = version
            if version == 5:
                cache.crop(10 - WIDTH)
            model(
                input_ids=tokens[:, part],
                attention_mask=mask[:, : part.stop],
                position_ids=(mask.cumsum(1) - 1).clamp(min=0)[:, part],
                use_cache=True,
                **{CACHE: cache},
            )
        routings = capture.take()
        steps = capture.steps
        model(input_ids=tokens, attention_mask=mask, use_cache=False)
        [later, *_] = capture.take()
        assert set(capture.steps[0].tolist()) == {3} and set(later.tags.tolist()) == {5}
    for routing, found, keep in zip(routings, steps, mask.bool().numpy(), strict=True):
        by_column = np.array([0] * 8 + [1] * 2 + [2] * (WIDTH - 10))
        assert routing.complete and found.tolist() == by_column[keep].tolist()
        assert routing.tags.tolist() == (by_column[keep] + 3).tolist()


def test_rows_that_are_missing_have_no_pass(model: Any) -> None:
    tokens, _ = padded("left")
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(tokens[:, :8], use_cache=True, **{CACHE: cache})  # before it is attached
        with attach(model, steps=True) as capture:
            model(tokens[:, 8:], use_cache=True, **{CACHE: cache})
            routings = capture.take()
    for routing, found in zip(routings, capture.steps, strict=True):
        assert found.tolist() == [-1] * 8 + [0] * (WIDTH - 8)
        assert routing.mask().all(axis=1).tolist() == [step == 0 for step in found.tolist()]
        assert (routing.reasons()[:8] != 0).all()
    with pytest.raises(ValueError, match="steps and a store"):
        attach(model, steps=True, store=1 << 20)


def test_an_engine_and_a_trainer_differ_where_hooks_say(model: Any) -> None:
    """The engine generates with weights that are not the trainer's any more. Activation
    checkpointing runs the trainer's routers again, and an evaluation is left out.
    """
    engine, trainer = model, copy.deepcopy(model).train()
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for layer in trainer.model.layers:
            weight = layer.mlp.gate.weight
            weight += 0.05 * weight.std() * torch.randn(weight.shape, generator=random)
    checkpoint(trainer, use_reentrant=False)
    tokens, mask = padded("left")
    with attach(engine) as rollouts, HookCounts(engine) as by_engine:
        out = engine.generate(
            input_ids=tokens, attention_mask=mask, max_new_tokens=9, do_sample=False,
            eos_token_id=None,
        )  # fmt: skip
        mine = rollouts.take()
    whole = torch.cat([mask, mask.new_ones(len(out), out.shape[1] - mask.shape[1])], 1)
    with attach(trainer) as own, HookCounts(trainer) as by_trainer:
        loss = trainer(out, attention_mask=whole, use_cache=False).logits.sum()
        with own.paused(), torch.no_grad():
            trainer(tokens, attention_mask=mask, use_cache=False)
        loss.backward()
        theirs = own.take()
    assert len(by_trainer.passes[0]) == model.config.num_hidden_layers
    assert len(by_trainer.passes[-1]) > model.config.num_hidden_layers  # some ran again
    one = by_engine.arrays(range(len(by_engine.passes)), len(out))[0]
    other = by_trainer.arrays([0], len(out))[0][:, : one.shape[1]]
    differs: list[list[bool]] = []
    for line, column in np.argwhere(whole[:, : one.shape[1]].numpy()):
        pairs = zip(one[line, column].tolist(), other[line, column].tolist())
        differs.append([set(mine) != set(theirs) for mine, theirs in pairs])
    found = analysis.drift(mine, theirs)
    assert found.both.all() and found.differs.tolist() == differs
    assert 0 < found.differs.sum() < found.differs.size
    assert found.by_tag() == {0: pytest.approx(np.mean(differs))}

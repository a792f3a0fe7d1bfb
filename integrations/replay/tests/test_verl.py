"""verl's own functions, with routecap's in the place of two of them, lay out rows for released
routers of Megatron-Core.
"""

import os
import subprocess
import sys
import types
from importlib.metadata import entry_points

import pytest
import torch

os.environ["ROUTECAP_VERL"] = "1"
[plugin] = entry_points(group="verl.plugins", name="routecap")
verl = plugin.load()  # as verl does when it is imported: before it has imported what is replaced
assert not any(name.startswith(("verl.", "megatron.")) for name in sys.modules)

from routecap_replay import ReplayError
from small import EXPERTS, K, Seen, config_of, experts_of, model_of, on_two_ranks
from verl_steps import jagged, prepare, replayed

LENGTHS = [5, 7]


@pytest.fixture(scope="module")
def utils(alone):
    return prepare()


def batch(layers=4, seed=1):
    """Two sequences: token ids, the mask of their responses, and rows [S - 1, all layers, k] as
    vLLM gives them.
    """
    generator = torch.Generator().manual_seed(seed)
    draw = lambda: torch.stack(
        [torch.randperm(EXPERTS, generator=generator)[:K] for _ in range(layers)]
    )
    rows = [torch.stack([draw() for _ in range(length - 1)]).to(torch.int16) for length in LENGTHS]
    tokens = [torch.randint(0, 64, (length,), generator=generator) for length in LENGTHS]
    return jagged(tokens), torch.tensor([[1, 1, 0], [1, 1, 1]]), rows


def step(utils, model, config, data):
    """A forward of a micro-batch."""
    tokens, _, rows = data
    with replayed(utils, model, config, tokens.unbind(), rows):
        packed = tokens.values()[None]
        causal = torch.triu(torch.ones(1, 1, packed.shape[1], packed.shape[1]), 1).bool()
        output = model(packed, torch.arange(packed.shape[1])[None], causal, labels=packed)
    return output.sum()


def expected(data, layer):
    """[tokens, experts], and which rows are replayed: not the last of a sequence."""
    rows = [torch.cat([each[:, layer], torch.full((1, K), -1)]) for each in data[2]]
    ids = torch.cat(rows)
    return experts_of(ids.clamp(min=0)), (ids >= 0).all(-1) & (ids[:, 0] != ids[:, 1])


def test_rows_reach_their_layers_and_recompute_their_micro_batch(utils):
    config = config_of(
        enable_routing_replay=True,
        recompute_granularity="full",
        recompute_method="uniform",
        recompute_num_layers=1,
    )
    model = model_of(config)
    seen, batches = Seen(model), [batch(seed=seed) for seed in range(2)]
    batches[1][2][1][2:4] = 0  # rows that the engine lost and verl filled up
    losses = [step(utils, model, config, data) for data in batches]
    for loss in reversed(losses):
        loss.backward()
    forward, again = seen.maps(), seen.maps(again=True)
    for layer in (1, 2, 3):
        for maps, data in zip(forward[layer], batches):
            want, replayed = expected(data, layer)
            assert torch.equal(maps[replayed], want[replayed]) and (maps.sum(-1) == K).all()
        assert torch.equal(again[layer][0], forward[layer][1]) and torch.equal(
            again[layer][1], forward[layer][0]
        )
    [replay] = verl.replays()
    report = replay.report()
    tokens = sum(LENGTHS) - len(LENGTHS)
    assert (report.passes, report.replayed, report.invalid, report.lost) == (
        2,
        3 * (2 * tokens - 2),
        3 * 2,
        0,
    )


def test_virtual_stages_and_recompute_under_the_interleaved_schedule(tmp_path):
    on_two_ranks(tmp_path / "store", "verl")


def test_rows_that_no_forward_took_are_an_error(utils):
    config = config_of(enable_routing_replay=True)
    model, (tokens, response, rows) = model_of(config), batch()
    aligned = utils.align_r3_router_replay_data(jagged(rows), tokens)
    assert all((each[-1] == -1).all() for each in aligned.unbind())
    mask = utils.build_r3_replay_mask(tokens, response)
    utils.set_router_replay_data(aligned, None, config, 0, replay_mask=mask, model=model)
    with pytest.raises(ReplayError, match="was given rows twice"):
        utils.set_router_replay_data(aligned, None, config, 0, replay_mask=mask, model=model)
    with pytest.raises(ReplayError, match="which model"):
        utils.set_router_replay_data(aligned, None, config, 0, replay_mask=mask)


def test_what_verl_renamed_is_named(utils, monkeypatch, tmp_path):
    """A module that never came was waited for: verl's own replay went on, with zeros for what the
    engine lost."""
    for name, function in verl._USED.items():
        other = types.SimpleNamespace(**{each: getattr(utils, each) for each in verl._USED})
        delattr(other, name)
        with pytest.raises(ReplayError, match=rf"no \['{name}'\]"):
            verl.install(other)
        for parameter in function:
            scope = {}
            exec(f"def {name}({', '.join(function).replace(parameter, 'renamed')}): pass", scope)
            other = types.SimpleNamespace(**{each: getattr(utils, each) for each in verl._USED})
            setattr(other, name, scope[name])
            with pytest.raises(ReplayError, match=rf"{name}\(.*renamed"):
                verl.install(other)
    (tmp_path / "verl" / "utils").mkdir(parents=True)
    (tmp_path / "verl" / "__init__.py").touch()
    ran = subprocess.run(
        [sys.executable, "-c", "import routecap_replay.verl"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ['PYTHONPATH']}"},
        capture_output=True,
        text=True,
    )
    assert (
        ran.returncode != 0 and "verl has no verl.utils.megatron.router_replay_utils" in ran.stderr
    )

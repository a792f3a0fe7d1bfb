"""One of two ranks of a pipeline with two stages each, for small.py: stages.py RANK STORE [verl].

Its routers get their rows by routecap's replay, or by verl's functions.
"""

import os
import sys
from contextlib import nullcontext
from pathlib import Path

BY_VERL = sys.argv[3:] == ["verl"]
if BY_VERL:  # before verl or Megatron-Core is imported, as verl's plugins are
    os.environ["ROUTECAP_VERL"] = "1"
    import routecap_replay.verl

sys.path.append(str(Path(__file__).resolve().parents[1] / "examples"))
import megatron_on_cpu
import torch

torch.set_num_threads(1)
rank = int(sys.argv[1])
megatron_on_cpu.start(
    rank,
    2,
    torch.distributed.FileStore(sys.argv[2], 2),
    pipeline_model_parallel_size=2,
    virtual_pipeline_model_parallel_size=2,
)

import routecap_replay.megatron
from megatron.core.pipeline_parallel import get_forward_backward_func
from small import LENGTH, MicroBatch, Seen, config_of, experts_of, model_of, weighed

LAYERS, BATCHES = 8, 4
by_verl = {}
if BY_VERL:
    from verl_steps import prepare, replayed

    utils, by_verl = prepare(), {"enable_routing_replay": True}
config = config_of(
    LAYERS, pipeline_model_parallel_size=2, virtual_pipeline_model_parallel_size=2, pipeline_dtype=torch.float32, deallocate_pipeline_outputs=True,
    recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1, **by_verl,
)  # fmt: skip
stages = [model_of(config, stage) for stage in range(2)]
replay = None if BY_VERL else routecap_replay.megatron.attach(stages)
seen = Seen(*stages)
batches = [MicroBatch(seed, LAYERS) for seed in range(BATCHES)]


def forward_step(iterator, model):
    batch = next(iterator)
    if replay is None:
        with replayed(utils, model, config, [batch.tokens[0]], [batch.captured(LAYERS)]):
            output = batch.through(model)
    else:
        with replay(batch.rows, weights=batch.weights):
            output = batch.through(model)
    return output, lambda losses: (losses.mean(), {})


with nullcontext() if replay is None else replay.record() as recorded:
    get_forward_backward_func()(
        forward_step_func=forward_step, data_iterator=[iter(batches) for _ in stages], model=stages, num_microbatches=BATCHES,
        seq_length=LENGTH, micro_batch_size=1, forward_only=False,
    )  # fmt: skip
replays = routecap_replay.verl.replays() if BY_VERL else [replay]
layers = [router.layer for each in replays for router in each.routers]
known = LENGTH - 1 if BY_VERL else LENGTH  # verl knows no row of a sequence's last token
for again in (False, True):
    maps = seen.maps(again)
    assert sorted(maps) == layers, sorted(maps)
    for layer, chosen in maps.items():
        assert len(chosen) == BATCHES
        for each, batch in zip(chosen, batches):
            assert torch.equal(each[:known], experts_of(batch.rows[layer][:known])), (layer, again)
if replay is not None:
    for again in (False, True):
        for layer, given in seen.probabilities(again).items():
            for each, batch in zip(given, batches, strict=True):
                assert torch.equal(each, weighed(batch, layer)), (layer, again)
if recorded is not None:
    assert len(recorded) == BATCHES
    for number, batch in enumerate(batches):
        for layer, rows in recorded.rows(number).items():
            assert torch.equal(rows, batch.rows[layer].to(torch.int16)), (layer, number)
reports = [each.report() for each in replays]
assert sum(report.replayed for report in reports) == len(layers) * BATCHES * known
print(f"layers {layers}, {sum(report.passes for report in reports)} passes")

"""One of two ranks of a pipeline, for test_megatron.py: stages.py RANK STORE."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[4] / "examples"))
import megatron_on_cpu
import routecap.replay.megatron
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

from megatron.core.pipeline_parallel import get_forward_backward_func
from small import LENGTH, MicroBatch, Seen, config_of, experts_of, model_of

LAYERS, BATCHES = 8, 4
config = config_of(
    LAYERS, pipeline_model_parallel_size=2, virtual_pipeline_model_parallel_size=2, pipeline_dtype=torch.float32, deallocate_pipeline_outputs=True,
    recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1,
)  # fmt: skip
stages = [model_of(config, stage) for stage in range(2)]
replay = routecap.replay.megatron.attach(stages)
seen = Seen(*stages)
batches = [MicroBatch(seed, LAYERS) for seed in range(BATCHES)]


def forward_step(iterator, model):
    batch = next(iterator)
    with replay(batch.rows):
        output = batch.through(model)
    return output, lambda losses: (losses.mean(), {})


get_forward_backward_func()(
    forward_step_func=forward_step, data_iterator=[iter(batches) for _ in stages], model=stages, num_microbatches=BATCHES,
    seq_length=LENGTH, micro_batch_size=1, forward_only=False,
)  # fmt: skip
layers = [router.layer for router in replay.routers]
for again in (False, True):
    maps = seen.maps(again)
    assert sorted(maps) == layers, sorted(maps)
    for layer, chosen in maps.items():
        assert len(chosen) == BATCHES
        for each, batch in zip(chosen, batches):
            assert torch.equal(each, experts_of(batch.rows[layer])), (layer, again)
report = replay.report()
assert report.replayed == len(layers) * BATCHES * LENGTH
print(f"layers {layers}, {report.passes} passes")

"""What a job of 1,024 ranks moves to give each its routing: by plan, and by copies of everything.

traffic.py [--samples N] [--json FILE]

Samples of random lengths are divided among data-parallel groups and packed into micro-batches. For
each rank of each group a routecap.Plan says which rows it needs: their bytes are added up, with the
header that comes with each range. Nothing is sent. One sampled group stands for all of them.
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import routecap
from machine import commit, processor
from numpy.typing import NDArray

MEAN, MOST = 16384, 131072  # tokens of a sample
GPUS_PER_NODE = 8


@dataclass(frozen=True)
class Job:
    name: str
    layers: int
    decoder_layers: int
    k: int
    experts: int
    tensor: int  # with sequence parallelism
    context: int  # zigzag
    pipeline: int
    data: int
    tokens: int = 65536  # of a micro-batch, at most, unless one sample has more

    @property
    def ranks(self) -> int:
        return self.tensor * self.context * self.pipeline * self.data


JOBS = (
    Job("48 layers of 8 of 128", 48, 48, 8, 128, tensor=4, context=2, pipeline=4, data=32),
    Job("58 layers of 8 of 256", 58, 61, 8, 256, tensor=8, context=2, pipeline=8, data=8),
)


def lengths_of(samples: int) -> NDArray[np.int64]:
    """Log-normal, as rollouts are: most are short, and the longest takes all there is."""
    drawn = np.random.default_rng(1).lognormal(np.log(MEAN) - 0.5, 1.0, samples)
    return np.clip(drawn, 64, MOST).astype(np.int64)


def micro_batches(lengths: list[int], most: int) -> Iterator[list[int]]:
    batch: list[int] = []
    for length in lengths:
        if batch and sum(batch) + length > most:
            yield batch
            batch = []
        batch.append(length)
    yield batch


def header_bytes(job: Job) -> int:
    empty = routecap.Routing.from_arrays(
        np.zeros((0, job.layers, job.k), np.uint8), experts=job.experts
    )
    return routecap.serialized_info(empty.serialize()).header_bytes


def traffic(job: Job, samples: int) -> dict[str, Any]:
    """Bytes into all ranks of the job, by each way."""
    lengths = lengths_of(samples)
    group = lengths[:: job.data].tolist()  # of one data-parallel group
    row = job.layers * job.k  # ids of one byte
    header = header_bytes(job)
    by_plan, ranges, most_of_a_rank = 0, 0, 0
    started, plans = time.perf_counter(), 0
    for context_rank in range(job.context):
        for tensor_rank in range(job.tensor):
            rank = 0
            for batch in micro_batches(group, job.tokens):
                plan = routecap.Plan(
                    batch,
                    layers=1,  # of a stage: rows are the same in each
                    k=job.k,
                    experts=job.experts,
                    context="zigzag",
                    context_size=job.context,
                    context_rank=context_rank,
                    sequence_parallel=True,
                    tensor_size=job.tensor,
                    tensor_rank=tensor_rank,
                )
                needed = plan.ranges
                rank += int(needed["rows"].sum()) * row + len(needed) * header
                ranges += len(needed)
                plans += 1
            by_plan += rank
            most_of_a_rank = max(most_of_a_rank, rank)
    seconds = time.perf_counter() - started
    per_group = job.tensor * job.context * job.pipeline
    rows = int(sum(group) - len(group))
    return {
        "job": job.name,
        "ranks": job.ranks,
        "parallel": f"TP {job.tensor}, CP {job.context}, PP {job.pipeline}, DP {job.data}",
        "tokens": int(lengths.sum()),
        "routing_bytes": rows * row * job.data,
        "int32_to_every_rank_bytes": rows * job.decoder_layers * job.k * 4 * per_group * job.data,
        "narrow_to_every_rank_bytes": rows * row * per_group * job.data,
        "by_plan_bytes": by_plan * job.pipeline * job.data,
        "by_plan_one_stage_reads_bytes": by_plan * job.data,
        "most_of_a_rank_bytes": most_of_a_rank,
        "reads_of_the_job": ranges * job.pipeline * job.data,
        "reads_of_a_rank": round(ranges / (job.tensor * job.context)),
        "plan_us": seconds / plans * 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--samples", type=int, default=8192, help="of a training step; default: %(default)s"
    )
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    about: dict[str, Any] = {
        "commit": commit(),
        "processor": processor(),
        "samples": arguments.samples,
        "jobs": [traffic(job, arguments.samples) for job in JOBS],
    }
    print(f"Routing that {about['samples']} samples bring to a trainer's ranks")
    print(f"{about['processor']}, {about['commit']}")
    for job in about["jobs"]:
        # Nothing of the input is read twice within a stage, and nothing is left out.
        assert (
            job["routing_bytes"]
            <= job["by_plan_one_stage_reads_bytes"]
            < 1.02 * job["routing_bytes"]
        )
        print(
            f"{job['job']}: {job['ranks']} ranks ({job['parallel']}), {job['tokens'] / 1e6:.0f}"
            " million tokens"
        )
        for name, value in job.items():
            if name.endswith("_bytes"):
                print(
                    f"  {name.removesuffix('_bytes').replace('_', ' '):32} {value / 1e9:12.2f} GB"
                )
        print(
            f"  {'reads of the job, of a rank':32} {job['reads_of_the_job']:12,d}"
            f" {job['reads_of_a_rank']:10,d}"
        )
        print(f"  {'making a plan':32} {job['plan_us']:12.0f} us")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(about, file, indent=2)


if __name__ == "__main__":
    main()

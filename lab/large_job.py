#!/usr/bin/env python3
"""The table of lab/evidence.md for 1,000 engines and 512 ranks of a trainer: what measured rates
come to there. Nothing of that size was run.

large_job.py writes the table, large_job.py --check fails if it is stale. large_job.py measure
measures what no other result has, by the library, into lab/results/large_job.json: times of rows
as bytes, and the ranges of a plan.
"""

import json
import pathlib
import sys
import time
from dataclasses import dataclass
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = ROOT / "lab/results"
OWN = RESULTS / "large_job.json"
PAGE = ROOT / "lab/evidence.md"
BEGIN, END = "<!-- by lab/large_job.py -->\n", "<!-- end of it -->\n"
ENGINES, RANKS, LIVE, TOKENS, SAMPLES = 1000, 512, 256, 32768, 8192


@dataclass(frozen=True)
class Job:
    name: str
    layers: int
    experts: int
    tensor: int  # with sequence parallelism
    pipeline: int
    weights: bool  # bf16
    k: int = 8  # ids of one byte
    context: int = 2  # zigzag

    @property
    def title(self) -> str:
        return self.name + (", bf16 weights" if self.weights else "")

    @property
    def data(self) -> int:
        return RANKS // (self.tensor * self.context * self.pipeline)

    @property
    def stride(self) -> int:
        """Bytes of a row's record, as kernels/row_layout.h has them."""
        validity = (self.layers + 7) // 8
        if not self.weights:
            return -(-(self.layers * self.k + validity) // 8) * 8
        begin = -(-(self.layers * self.k + 2 * validity) // 2) * 2
        return -(-(begin + self.layers * self.k * 2) // 8) * 8


JOBS = [
    Job(name, layers, experts, tensor, pipeline, weights)
    for name, layers, experts, tensor, pipeline in (
        ("48 x 8 of 128 (Qwen3-30B)", 48, 128, 4, 4),
        ("58 x 8 of 256 (DeepSeek-V3)", 58, 256, 8, 8),
    )
    for weights in (False, True)
]


def read(name: str) -> Any:
    return json.loads((RESULTS / name).read_text())


def result(file: str, **which: object) -> float:
    """The median of the first line that is so."""
    for each in read(file)["results"]:
        if all(each.get(key) == value for key, value in which.items()):
            return float(each["median"])
    raise KeyError(f"{file} has no {which}")


def share_of_store(name: str, ranges: float, size: float) -> float:
    """Of a second, that one reader waits for so many ranges of so many bytes together: at most, as
    the bytes of the ranges that were timed count twice."""
    measured = read("stores.json")["stores"][name]
    bytes_a_second = 4096 * 48 * 8 / (measured["many_ms"]["median"] / 1e3)
    return ranges / measured["ranges_a_second"] + size / bytes_a_second


def figures(job: Job) -> dict[str, float]:
    own = next(each for each in read(OWN.name)["jobs"] if each["job"] == job.title)
    scale = "10000 requests of 131072 rows, 48 layers of 8 of 128 experts"
    in_pages = (
        result("scale.json", group=scale, name="of that more than rows have") / 10000 / 131072
    )
    beside = result("scale.json", group=scale, name="requests besides") / 10000
    step = result("h200.json", rows=LIVE, name="step without capture", unit="us") / 1e6
    driver = read("cluster.json")["runs"][0]["calm"]["driver_bytes_a_sample"]
    rows = LIVE / step  # a second, of an engine
    object_bytes = (job.stride + 4) * TOKENS
    samples = ENGINES * rows / TOKENS  # a second, of the job
    rank_rows = ENGINES * rows / (job.tensor * job.context * job.data)
    rank_samples = samples / job.data
    ranges = rank_samples * own["ranges_a_sample"] * 2 + rank_samples * own["samples_read"]
    rank_bytes = rank_rows * (job.stride + 4)
    return {
        "bytes of a row": job.stride,
        "an engine: rows a second": rows,
        "from device to host, MB/s": rows * job.stride / 1e6,
        "memory for 256 live requests, GB": LIVE
        * (TOKENS * (job.stride + in_pages) + beside)
        / 1e9,
        "into the store, MB/s": rows * (job.stride + 4) / 1e6,
        "a core's share to serialise, %": rows * own["serialise_us"] / 1e4,
        "all engines: into the store, GB/s": ENGINES * rows * (job.stride + 4) / 1e9,
        "objects of a step of 8,192 samples, GB": SAMPLES * object_bytes / 1e9,
        "the driver, by reference, MB/s": samples * driver / 1e6,
        "the driver, by int32 in base64, GB/s": ENGINES
        * rows
        * job.layers
        * job.k
        * (4 + 4 * job.weights)
        * 4
        / 3
        / 1e9,
        "a rank: reads, MB/s": rank_bytes / 1e6,
        "ranges a second": ranges,
        "a core's share to check, %": rank_rows * own["deserialise_us"] / 1e4,
        "its time for Mooncake over TCP, %": share_of_store("Mooncake, TCP", ranges, rank_bytes)
        * 100,
        "its time for S3 (rclone), %": share_of_store("S3 by rclone", ranges, rank_bytes) * 100,
        "all ranks: read, GB/s": rank_bytes * RANKS / 1e9,
        "if one stage of the pipeline reads, GB/s": rank_bytes * RANKS / job.pipeline / 1e9,
    }


def shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}" if value < 10 else f"{value:.0f}"


def table() -> str:
    columns = [figures(job) for job in JOBS]
    lines = [
        "| | " + " | ".join(job.title for job in JOBS) + " |",
        "|" + "---|" * (len(JOBS) + 1),
        "| ranks | "
        + " | ".join(f"TP {j.tensor}, CP {j.context}, PP {j.pipeline}, DP {j.data}" for j in JOBS)
        + " |",
    ]
    for name in columns[0]:
        lines.append(f"| {name} | " + " | ".join(shown(each[name]) for each in columns) + " |")
    return "\n".join([*lines, ""])


def measure() -> None:
    import numpy as np
    import routecap

    sys.path.insert(0, str(ROOT / "lab/bench"))
    from machine import save

    def us_a_row(call: Any, rows: int) -> float:
        took = []
        for _ in range(3):
            start = time.process_time()
            call()
            took.append(time.process_time() - start)
        return round(min(took) * 1e6 / rows, 4)

    jobs = []
    for job in JOBS:
        rows = 2048
        start = np.random.default_rng(1).integers(0, job.experts, (rows, job.layers, 1))
        ids = ((start + np.arange(job.k) * 5) % job.experts).astype(np.uint8)
        given: dict[str, Any] = {}
        if job.weights:
            given = {"weights": np.full(ids.shape, 0x3F00, np.uint16), "weights_dtype": "bf16"}
        routing = routecap.Routing.from_arrays(ids, experts=job.experts, **given)
        data = routing.serialize()
        assert int.from_bytes(data[72:76], "little") == job.stride, job.title
        ranges, samples = 0, 0
        for rank in range(job.tensor * job.context):
            plan = routecap.Plan(
                [TOKENS] * 2,  # of a micro-batch
                layers=1,
                k=job.k,
                experts=job.experts,
                context="zigzag",
                context_size=job.context,
                context_rank=rank // job.tensor,
                sequence_parallel=True,
                tensor_size=job.tensor,
                tensor_rank=rank % job.tensor,
            )
            ranges += len(plan.ranges)
            samples += len(set(plan.ranges["sample"].tolist()))
        jobs.append(
            {
                "job": job.title,
                "serialise_us": us_a_row(routing.serialize, rows),
                "deserialise_us": us_a_row(lambda d=data: routecap.Routing.deserialize(d), rows),
                "ranges_a_sample": ranges / (job.tensor * job.context) / 2,
                "samples_read": samples / (job.tensor * job.context) / 2,
            }
        )
    save(
        OWN,
        title="Rows as bytes, us a row, CPU time, best of 3; ranges of a rank's plan",
        jobs=jobs,
    )


def main() -> int:
    if sys.argv[1:] == ["measure"]:
        measure()
        return 0
    before, rest = PAGE.read_text().split(BEGIN)
    made = before + BEGIN + table() + END + rest.split(END)[1]
    if sys.argv[1:] == ["--check"]:
        if made != PAGE.read_text():
            print("lab/evidence.md is stale: python3 lab/large_job.py")
        return int(made != PAGE.read_text())
    PAGE.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The routing of a model whose ranks are Ray actors, united on the driver.

What a rank can capture depends on how the model is divided:

    tensor parallel     every rank routes the same rows in the same layers: one captures, the others mirror it (the same calls, nothing is kept)
    sequence parallel   every rank routes its share of each step's rows
    pipeline parallel   every rank routes in its own layers

At the end of a sequence each rank that captured returns its part, a Routing. It pickles out of
band: Ray writes the ids into its object store once, and the driver's Routing reads them there,
without a copy (below 100 KB Ray sends results with the reply instead). `merge` unites rows and
layers.

The model is imitated by a formula that chooses experts; what is routecap's and Ray's is what an
engine writes. The program divides it in four ways, compares what comes out with a single rank, and
loses a rank.
"""

import os
import secrets
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import ray
import routecap
from numpy.typing import NDArray

LAYERS, K, EXPERTS, MAX_TOKENS = 24, 8, 128, 512
WEIGHTS_VERSION = 3
STORE_BYTES = 80 << 20

# ---- How a model is divided


@dataclass(frozen=True)
class Part:
    """What one rank has of each forward pass: some layers of one share of the rows."""

    layers: range = range(LAYERS)
    share: int = 0
    shares: int = 1
    role: str = "owner"


def tensor_parallel(ranks: int) -> list[Part]:
    return [Part(role="mirror" if rank else "owner") for rank in range(ranks)]


def sequence_parallel(ranks: int) -> list[Part]:
    return [Part(share=rank, shares=ranks) for rank in range(ranks)]


def pipeline_parallel(ranks: int) -> list[Part]:
    return [
        Part(layers=range(LAYERS * rank // ranks, LAYERS * (rank + 1) // ranks))
        for rank in range(ranks)
    ]


def both(rows: list[Part], layers: list[Part]) -> list[Part]:
    """Stages of a pipeline that are divided themselves."""
    return [replace(part, layers=stage.layers) for stage in layers for part in rows]


# ---- On each rank


def routed(sequence: int, positions: NDArray[np.int64], layers: range) -> NDArray[np.int32]:
    """What the routers of these layers choose at these positions: [rows, layers, k] distinct ids."""
    row, layer, column = positions[:, None, None], np.array(layers)[:, None], np.arange(K)
    return ((sequence * 7 + row * 13 + layer * 29 + column * 5) % EXPERTS).astype(np.int32)


@dataclass(frozen=True)
class Chunk:
    """Rows of one sequence in a forward pass."""

    sequence: int
    position: int
    rows: int


class Rank:
    """The worker of one rank."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.capturer = routecap.Capturer(
            layers=len(part.layers),
            layer_map=part.layers,
            k=K,
            experts=EXPERTS,
            rows=MAX_TOKENS,
            role=part.role,
        )
        self.requests: dict[int, routecap.Request] = {}

    def open(self, sequence: int) -> None:
        self.requests[sequence] = self.capturer.open()

    def forward(self, batch: Sequence[Chunk]) -> None:
        """One forward pass.

        The rows of the batch lie one after another; this rank computes its share of them.
        """
        tokens = sum(chunk.rows for chunk in batch)
        first, end = (
            tokens * share // self.part.shares for share in (self.part.share, self.part.share + 1)
        )
        spans = routecap.spans(len(batch), rows=0)
        ids = np.empty((end - first, len(self.part.layers), K), np.int32)
        row = -first  # of the chunk, as this rank counts them
        for span, chunk in zip(spans, batch):
            low, high = max(row, 0), min(row + chunk.rows, end - first)
            if low < high:
                position = chunk.position + low - row
                ids[low:high] = routed(
                    chunk.sequence, np.arange(position, position + high - low), self.part.layers
                )
                span["request"], span["position"], span["sink_row"], span["rows"] = (
                    self.requests[chunk.sequence],
                    position,
                    low,
                    high - low,
                )
            row += chunk.rows

        with self.capturer.step(end - first) as forward:
            for layer in range(len(self.part.layers)):
                forward.record(layer, ids[:, layer])  # behind the router of each layer
            step = forward.issue(spans[spans["rows"] > 0], tag=WEIGHTS_VERSION)
        step.wait()  # as an engine's own pace does: steps beyond the slots would be lost

    def finish(self, sequence: int, rows: int) -> routecap.Routing:
        routing = self.requests.pop(sequence).finish(rows)
        routing.wait()
        return routing


# ---- On the driver


class Ranks:
    """The ranks of a model as actors, as the driver sees them."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.actors = [ray.remote(num_cpus=0)(Rank).remote(part) for part in parts]
        self.owners = [actor for actor, part in zip(self.actors, parts) if part.role == "owner"]

    def open(self, sequence: int) -> None:
        ray.get([actor.open.remote(sequence) for actor in self.actors])

    def forward(self, batch: Sequence[Chunk]) -> None:
        ray.get([actor.forward.remote(batch) for actor in self.actors])

    def parts(self, sequence: int, rows: int) -> list[routecap.Routing]:
        """End a sequence: what each rank captured of it. Of an actor that died there is nothing."""
        arrived = []
        for result in [actor.finish.remote(sequence, rows) for actor in self.owners]:
            try:
                arrived.append(ray.get(result))
            except ray.exceptions.RayActorError as death:
                print(f"a rank is lost: {str(death).splitlines()[0]}")
        return arrived

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(self, *unused: object) -> None:
        for actor in self.actors:
            ray.kill(actor)


def lose(actor: Any) -> None:
    """Kill a rank. A call that comes at once might still be served: wait until none is."""
    ray.kill(actor)
    try:
        while True:
            ray.get(actor.__ray_ready__.remote())
    except ray.exceptions.RayActorError:
        return


def unite(parts: Sequence[routecap.Routing], rows: int) -> routecap.Routing:
    """The routing of a sequence, exactly so many rows in all layers.

    What no part has is missing: an empty routing names it, whole layers too.
    """
    empty = routecap.Routing.from_segments(
        [], layers=LAYERS, k=K, rows=rows, dtype=np.uint8, experts=EXPERTS
    )
    return routecap.merge([empty, *parts])


@contextmanager
def local_ray() -> Iterator[None]:
    """Ray on this machine alone: two CPUs, a small object store, and nothing left behind."""
    os.environ |= {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_TOKEN": secrets.token_hex(16),
    }  # or Ray writes a token into the home folder
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        with ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=STORE_BYTES,
            log_to_driver=False,
            logging_level="ERROR",
            _temp_dir=folder,
        ):
            yield


def in_object_store(array: NDArray[np.generic]) -> bool:
    """Whether an array lies in the memory that this process shares with Ray's object store."""
    with open("/proc/self/maps") as file:
        ranges = [line.split()[0].split("-") for line in file if "/plasma" in line]
    return any(
        int(low, 16) <= array.ctypes.data and array.ctypes.data + array.nbytes <= int(high, 16)
        for low, high in ranges
    )


# ---- The program


def generate(ranks: Rank | Ranks, rows: dict[int, int]) -> None:
    """Forward passes until each sequence has its rows.

    The one that lacks most takes two thirds of a step, the next two thirds of what is left.
    """
    for sequence in rows:
        ranks.open(sequence)
    left = dict(rows)
    while left:
        batch, room = [], MAX_TOKENS
        for sequence in sorted(left, key=left.__getitem__, reverse=True):
            count = min(left[sequence], room * 2 // 3)
            batch.append(Chunk(sequence, rows[sequence] - left[sequence], count))
            left[sequence] -= count
            room -= count
        ranks.forward(batch)
        left = {sequence: count for sequence, count in left.items() if count}


def main() -> None:
    rows = {1: 9000, 2: 7001}
    alone = Rank(Part())
    generate(alone, rows)
    reference = {sequence: alone.finish(sequence, rows[sequence]) for sequence in rows}

    differences = 0
    with local_ray():
        for name, parts in {
            "2 tensor-parallel": tensor_parallel(2),
            "2 sequence-parallel": sequence_parallel(2),
            "2 pipeline-parallel": pipeline_parallel(2),
            "2 x 2 pipeline- and sequence-parallel": both(
                sequence_parallel(2), pipeline_parallel(2)
            ),
        }.items():
            with Ranks(parts) as ranks:
                generate(ranks, rows)
                for sequence in rows:
                    arrived = ranks.parts(sequence, rows[sequence])
                    arrays = [
                        segment.ids
                        for part in arrived
                        for segment in part.segments
                        if segment.ids is not None
                    ]
                    in_place = sum(map(in_object_store, arrays))
                    united = unite(arrived, rows[sequence])
                    same = bytes(united) == bytes(reference[sequence])
                    differences += not same or in_place != len(arrays)
                    print(
                        f"{name}: sequence {sequence}, {len(arrived)} parts, {in_place} of"
                        f" {len(arrays)} arrays in the object store, {united.rows} rows x"
                        f" {united.layers} layers united: {'as' if same else 'NOT AS'} on one rank"
                    )

        with Ranks(sequence_parallel(2)) as ranks:
            generate(ranks, rows)
            lose(ranks.actors[1])
            united = unite(ranks.parts(1, rows[1]), rows[1])
            coverage = united.coverage()
            print(
                f"1 of 2 sequence-parallel: {coverage.rows_complete} rows are there,"
                f" {coverage.rows_empty} are missing, {united.status.name}"
            )
            there = united.mask()
            same = np.array_equal(united.ids()[there], reference[1].ids()[there])
            differences += not same or not 0 < coverage.rows_empty < united.rows
    print(f"{differences} differences")
    if differences:
        raise SystemExit(1)


if __name__ == "__main__":
    main()

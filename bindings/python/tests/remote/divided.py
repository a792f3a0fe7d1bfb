"""A model that is divided among Ray actors in each way there is, as the driver sees it: the ranks of
examples/ray_ranks.py."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import ray
import routecap
from numpy.typing import NDArray
from ray_ranks import LAYERS, MAX_TOKENS, Chunk, Part, Rank


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


def in_object_store(array: NDArray[np.generic]) -> bool:
    """Whether an array lies in the memory that this process shares with Ray's object store."""
    with open("/proc/self/maps") as file:
        ranges = [line.split()[0].split("-") for line in file if "/plasma" in line]
    return any(
        int(low, 16) <= array.ctypes.data and array.ctypes.data + array.nbytes <= int(high, 16)
        for low, high in ranges
    )


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

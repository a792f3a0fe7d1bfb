"""The routing of a model whose ranks are Ray actors, united on the driver.

What a rank can capture depends on how the model is divided: with tensor parallelism every rank
routes the same rows in the same layers, so one captures and the others mirror it (the same calls,
nothing is kept); with sequence parallelism each routes its share of each step's rows; a stage of a
pipeline routes in its own layers.

At the end of a sequence each rank that captured returns its part, a Routing. It pickles out of
band: Ray writes the ids into its object store once, and the driver's Routing reads them there,
without a copy (below 100 KB Ray sends results with the reply instead). `merge` unites rows and
layers. The model is imitated by a formula that chooses experts.
"""

import os
import secrets
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import ray
import routecap
from numpy.typing import NDArray

LAYERS, K, EXPERTS, MAX_TOKENS = 24, 8, 128, 512
WEIGHTS_VERSION = 3
STORE_BYTES = 80 << 20


@dataclass(frozen=True)
class Part:
    """What one rank has of each forward pass: some layers of one share of the rows."""

    layers: range = range(LAYERS)
    share: int = 0
    shares: int = 1
    role: str = "owner"


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
        """A forward pass. The rows of the batch lie one after another: this rank has its share."""
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
                span["request"] = self.requests[chunk.sequence]
                span["position"] = position
                span["sink_row"], span["rows"] = low, high - low
            row += chunk.rows

        with self.capturer.step(end - first) as forward:
            for layer in range(len(self.part.layers)):
                forward.record(layer, ids[:, layer])  # behind the router of each layer
            step = forward.issue(spans[spans["rows"] > 0], tag=WEIGHTS_VERSION)
        step.wait()  # as an engine's own pace does: steps beyond `slots` would be lost

    def finish(self, sequence: int, rows: int) -> routecap.Routing:
        routing = self.requests.pop(sequence).finish(rows)
        routing.wait()
        return routing


def unite(parts: Sequence[routecap.Routing], rows: int) -> routecap.Routing:
    """Of a sequence, so many rows in all layers. What no part has is missing: `empty` names it."""
    empty = routecap.Routing.from_segments(
        [], layers=LAYERS, k=K, rows=rows, dtype=np.uint8, experts=EXPERTS
    )
    return routecap.merge([empty, *parts])


@contextmanager
def local_ray() -> Iterator[None]:
    """Ray on this machine alone: two CPUs, a small object store, and nothing left behind."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(16)  # or Ray writes one into the home folder
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


def main() -> None:
    rows = 700
    parts = [Part(range(0, 12)), Part(range(12, LAYERS))]  # two stages of a pipeline
    with local_ray():
        ranks = [ray.remote(num_cpus=0)(Rank).remote(part) for part in parts]
        ray.get([rank.open.remote(1) for rank in ranks])
        for first in range(0, rows, MAX_TOKENS):
            batch = [Chunk(1, first, min(MAX_TOKENS, rows - first))]
            ray.get([rank.forward.remote(batch) for rank in ranks])
        routing = unite(ray.get([rank.finish.remote(1, rows) for rank in ranks]), rows)
        assert np.array_equal(routing.ids(), routed(1, np.arange(rows), range(LAYERS)))
        print(f"{routing.rows} rows x {routing.layers} layers united: {routing.status.name}")


if __name__ == "__main__":
    main()

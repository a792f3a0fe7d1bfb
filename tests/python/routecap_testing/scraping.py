"""What Prometheus would see."""

import socket
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import routecap
from numpy.typing import NDArray

Samples = dict[str, dict[tuple[str, ...], float]]


def samples(text: str) -> Samples:
    """By name, and by the values of the labels in the order of the labels' names."""
    from prometheus_client.parser import text_string_to_metric_families

    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            values = tuple(value for _, value in sorted(sample.labels.items()))
            found.setdefault(sample.name, {})[values] = sample.value
    return found


def wait_for_all(capturer: routecap.Capturer) -> None:
    """Until every step that was issued has landed: what has not is not counted yet."""
    while (stats := capturer.stats()).steps_landed < stats.steps_issued:
        time.sleep(0.001)


def scrape(port: int) -> Samples:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        return samples(answer.read().decode())


def chosen(found: Samples, layer_map: Any, experts: int, rank: int = 0) -> NDArray[np.int64]:
    """[2, layers, experts] counts of one rank, by phase."""
    counts = found["routecap_expert_chosen_total"]
    assert len(counts) == 2 * len(layer_map) * experts
    return np.array(
        [
            [
                [int(counts[str(e), str(layer), phase, str(rank)]) for e in range(experts)]
                for layer in layer_map
            ]
            for phase in ("prefill", "decode")
        ]
    )


def counted(ids: Any, experts: int) -> NDArray[np.int64]:
    """[layers, experts] of ids [rows, layers, k]; -1 is none."""
    return np.array(
        [
            np.bincount(ids[:, layer][ids[:, layer] >= 0], minlength=experts)
            for layer in range(ids.shape[1])
        ]
    )


@contextmanager
def taken_port() -> Iterator[int]:
    """A port at which somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def free_port() -> int:
    with taken_port() as port:
        return port

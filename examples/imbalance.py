"""Load that becomes uneven, as routecap counts it, and what replicas of hot experts would gain.

    python imbalance.py               # four windows
    python imbalance.py --port 9400   # on and on, for Prometheus and routecap top

An engine is simulated: its routers choose evenly first, and prefer a few experts from then on. A
balancer gets the counts of the last window: it gives the hottest experts a second copy, and puts
copies on the least loaded GPU. A layer takes as long as its busiest GPU.
"""

import argparse
import itertools
from collections.abc import Iterator

import numpy as np
import routecap
import routecap_tools.metrics

LAYERS, K, EXPERTS, ROWS, GPUS, SPARE = 12, 4, 64, 256, 8, 16


def chosen(random: np.random.Generator, weights: np.ndarray, rows: int) -> np.ndarray:
    """k distinct experts for each row, an expert the likelier the higher its weight: [rows, k]"""
    keys = np.log(weights) - np.log(-np.log(random.random((rows, EXPERTS))))
    return np.argsort(-keys, axis=1)[:, :K].astype(np.int32)


def busiest(counts: np.ndarray, copies: np.ndarray) -> float:
    """The busiest GPU's load over the mean, if each copy of an expert takes its share of it."""
    loads = np.repeat(counts / copies, copies)
    gpus, room = np.zeros(GPUS), np.full(GPUS, len(loads) // GPUS)
    for load in sorted(loads, reverse=True):
        gpu = min((g for g in range(GPUS) if room[g]), key=lambda g: gpus[g])
        gpus[gpu] += load
        room[gpu] -= 1
    return float(gpus.max() / gpus.mean())


def as_it_is(counts: np.ndarray) -> float:
    gpus = counts.reshape(GPUS, -1).sum(axis=1)
    return float(gpus.max() / gpus.mean())


def replicated(counts: np.ndarray) -> np.ndarray:
    """One copy more for whichever expert has the most load in each copy, SPARE times."""
    copies = np.ones(EXPERTS, int)
    for _ in range(SPARE):
        copies[np.argmax(counts / copies)] += 1
    return copies


def serve(capturer: routecap.Capturer, random: np.random.Generator, weights: np.ndarray) -> None:
    """Ten requests: a prompt each, and four tokens after it."""
    for _ in range(10):
        with capturer.open() as request:
            position = 0
            for rows in (ROWS, 1, 1, 1, 1):
                spans = routecap.spans(request=request, position=position, rows=rows)
                with capturer.step(rows) as step:
                    for layer in range(LAYERS):
                        step.record(layer, chosen(random, weights, rows))
                    step.issue(spans).wait()
                position += rows


def windows(capturer: routecap.Capturer) -> Iterator[routecap.Load]:
    """The load of each window: two of even routing, and uneven ones without end."""
    even, uneven = np.ones(EXPERTS), np.ones(EXPERTS)
    uneven[:6] = 12
    random = np.random.default_rng(1)
    before = capturer.load()
    for weights in itertools.chain((even, even), itertools.repeat(uneven)):
        serve(capturer, random, weights)
        now = capturer.load()
        yield now.since(before)
        before = now


def gains(load: routecap.Load) -> tuple[float, float, float]:
    """The busiest expert, the busiest GPU, and that GPU with replicas: over the mean, in the layer
    where it is highest."""
    return (
        load.imbalance().max(),
        max(as_it_is(counts) for counts in load.total),
        max(busiest(counts, replicated(counts)) for counts in load.total),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, help="serve the metrics there, and do not end")
    port = parser.parse_args().port
    shape = {"layers": LAYERS, "k": K, "experts": EXPERTS, "rows": ROWS}
    with routecap.Capturer(**shape, load=True) as capturer:
        if port is not None:
            routecap_tools.metrics.serve(capturer, port, window=1)
        print("window  busiest expert  busiest GPU  with replicas   (over the mean, worst layer)")
        shown = itertools.islice(windows(capturer), 4 if port is None else None)
        for window, load in enumerate(shown):
            expert, gpu, balanced = gains(load)
            print(f"{window:6}  {expert:14.2f}  {gpu:11.2f}  {balanced:13.2f}", flush=True)


if __name__ == "__main__":
    main()

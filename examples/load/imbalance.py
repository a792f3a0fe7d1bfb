"""Load that becomes uneven, as routecap counts it, and what replicas of hot experts would gain.

    python examples/load/imbalance.py

An engine is simulated: its routers choose evenly first, and prefer a few experts from then on. A
balancer gets the counts of the last window: it gives the hottest experts a second copy, and puts
copies on the least loaded GPU. A layer takes as long as its busiest GPU.
"""

import numpy as np
import routecap

LAYERS, K, EXPERTS, ROWS, GPUS, SPARE = 8, 4, 64, 256, 8, 16


def chosen(random: np.random.Generator, weights: np.ndarray) -> np.ndarray:
    """k distinct experts for each row, an expert the likelier the higher its weight: [rows, k]"""
    keys = np.log(weights) - np.log(-np.log(random.random((ROWS, EXPERTS))))
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


def main() -> None:
    random = np.random.default_rng(1)
    even = np.ones(EXPERTS)
    uneven = np.ones(EXPERTS)
    uneven[:6] = 12
    print("window  busiest expert  busiest GPU  with replicas   (over the mean, worst layer)")
    shape = {"layers": LAYERS, "k": K, "experts": EXPERTS, "rows": ROWS}
    with routecap.Capturer(**shape, load=True) as capturer:
        before = capturer.load()
        for window, weights in enumerate([even, even, uneven, uneven]):
            for _ in range(10):
                with capturer.open() as request:
                    capturer.begin(ROWS)
                    for layer in range(LAYERS):
                        capturer.record(layer, chosen(random, weights))
                    capturer.snapshot()
                    capturer.issue(routecap.spans(request=request, rows=ROWS)).wait()
            now = capturer.load()
            load = now.since(before)
            before = now
            gains = [busiest(counts, replicated(counts)) for counts in load.total]
            worst = max(as_it_is(counts) for counts in load.total)
            print(f"{window:6}  {load.imbalance().max():14.2f}  {worst:11.2f}  {max(gains):13.2f}")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Says what caches of experts would do for the requests of a run, and compares that with what a
callback of llama.cpp wrote by itself.

usage: caches.py FOLDER RAW

FOLDER and RAW are what `capture --save FOLDER --trace RAW` wrote. RAW knows nothing of requests and
positions: it has a line "STEP LAYER ID..." for each row of a layer, as the engine chose it. For each
layer, the experts that each step needs have to be the same, and so the hit rates of the caches.
"""

import sys
from collections import defaultdict

import numpy as np
import routecap
from routecap import experts
from routecap_tools import traces

SLOTS = (4, 8, 12)


def read_raw(path):
    """The experts that each step needs: sets by layer, then by step."""
    needed = defaultdict(lambda: defaultdict(set))
    with open(path) as file:
        for line in file:
            step, layer, *ids = map(int, line.split())
            needed[layer][step].update(ids)
    return needed


def main():
    folder, raw = sys.argv[1:]
    table = traces.trace(routecap.load(folder))
    by_callback = read_raw(raw)
    same = sorted(by_callback) == table.rows.layer_map.tolist()
    print("hit rates of LRU / at best, by slots of a layer")
    for layer in table.rows.layer_map.tolist():
        steps = table.needed(layer)
        theirs = [by_callback[layer][step] for step in sorted(by_callback[layer])]
        ours, expected = experts.hit_rates(steps, SLOTS), experts.hit_rates(theirs, SLOTS)
        same &= [set(step.tolist()) for step in steps] == theirs
        same &= all(np.array_equal(one, other) for one, other in zip(ours, expected))
        rates = [f"{size}: {l:.3f} / {o:.3f}" for size, l, o in zip(SLOTS, ours.lru, ours.optimal)]
        print(f"layer {layer}, {ours.needs} needs in {len(steps)} steps  " + "  ".join(rates))
    print("the same as of the callback's own trace" if same else "NOT as of the callback's trace")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())

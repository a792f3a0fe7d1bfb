#!/usr/bin/env python3
"""The host backend's costs with one build of the library over those with another.

    libraries.py [--runs N] [--quick] PROGRAM NAME=FOLDER NAME=FOLDER

PROGRAM is host.cc, built over any of the libraries; each FOLDER has a libroutecap.so.1. They are
run in turns, N times around, so that what the machine does meanwhile falls on both; of each figure
the least median counts, for others use the machine. First is what the groups of figures are in the
mean, then the figures themselves, those first where the second library is slower.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from collections import defaultdict
from pathlib import Path

from machine import commit, processor


def run(program, folder, quick):
    """The medians of one run: (group, name, unit) -> number."""
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "bench.json"
        command = [program, *(["--quick"] if quick else []), "--json", str(file)]
        environment = {**os.environ, "LD_LIBRARY_PATH": folder}
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
        results = json.loads(file.read_text())["results"]
    return {(each["group"], each["name"], each["unit"]): each["median"] for each in results}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("program")
    parser.add_argument("libraries", nargs=2, metavar="NAME=FOLDER")
    options = parser.parse_args()
    libraries = dict(library.split("=", 1) for library in options.libraries)
    least = {name: {} for name in libraries}
    for _ in range(options.runs):
        for name, folder in libraries.items():
            for key, median in run(options.program, folder, options.quick).items():
                least[name][key] = min(median, least[name].get(key, median))

    first, second = least.values()
    times = [
        key for key in first if key[2] in ("ns", "us", "ms") and min(first[key], second[key]) > 0
    ]
    ratios = {key: second[key] / first[key] for key in times}
    groups = defaultdict(list)
    for (group, _, _), ratio in ratios.items():
        groups[group].append(ratio)
    names = " over ".join(reversed(list(libraries)))
    print(f"{names}, {commit()}, {processor()}, {options.runs} runs each in turns\n")
    mean = statistics.geometric_mean(ratios.values())
    print(f"{mean:6.2f}  all {len(ratios)} figures, geometric mean")
    for group, found in groups.items():
        print(f"{statistics.geometric_mean(found):6.2f}  {group}")
    print()
    for group, name, unit in sorted(ratios, key=ratios.get, reverse=True):
        key = group, name, unit
        print(f"{ratios[key]:6.2f}  {first[key]:10.2f} {second[key]:10.2f} {unit}  {group}: {name}")


if __name__ == "__main__":
    main()

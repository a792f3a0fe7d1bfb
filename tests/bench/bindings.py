#!/usr/bin/env python3
"""A call from each language over the same call from C.

    bindings.py [--runs N] [--json FILE] c=PROGRAM LANGUAGE=COMMAND...

Each program prints {"name": ..., "ns": median} for the operations of bindings.c. They are run one
after another, N times around, so that what the machine does meanwhile falls on all of them; of each
operation the median of a program's runs counts.
"""

import argparse
import json
import shlex
import statistics
import subprocess

from machine import commit, processor


def run(command):
    """The operations of one run: name -> nanoseconds."""
    done = subprocess.run(shlex.split(command), stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{command}: ended with {done.returncode}")
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {line["name"]: line["ns"] for line in lines}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json")
    parser.add_argument("programs", nargs="+", metavar="LANGUAGE=COMMAND")
    options = parser.parse_args()
    commands = dict(program.split("=", 1) for program in options.programs)
    if "c" not in commands:
        parser.error("c=PROGRAM is what the others are compared with")

    runs = {language: [] for language in commands}
    for _ in range(options.runs):
        for language, command in commands.items():
            runs[language].append(run(command))
    names = list(runs["c"][0])
    for language, all_runs in runs.items():
        missing = set(names) - set(all_runs[0])
        if missing:
            raise SystemExit(f"{language} does not measure {', '.join(sorted(missing))}")
    results = []
    print(f"{processor()}, {commit()}; median ns of {options.runs} runs, and over C\n")
    print(f"{'':26}" + "".join(f"{language:>20}" for language in commands))
    for name in names:
        median = {
            language: statistics.median(one[name] for one in all_runs)
            for language, all_runs in runs.items()
        }
        row = f"{name:26}"
        for language, ns in median.items():
            ratio = ns / median["c"]
            row += f"{ns:12.0f}" + (f"{ratio:7.2f}x" if language != "c" else " " * 8)
            results.append(
                {
                    "name": name,
                    "language": language,
                    "unit": "ns",
                    "median": round(ns, 1),
                    "over_c": round(ratio, 3),
                }
            )
        print(row)
    if options.json:
        head = {"title": "a call from each language over the same call from C, L=58 K=8 E=256",
                "command": f"bindings.py --runs {options.runs} --json FILE", "commit": commit(), "processor": processor()}  # fmt: skip
        with open(options.json, "w", encoding="utf-8") as out:
            lines = ",\n    ".join(json.dumps(result) for result in results)
            out.write(
                json.dumps(head, indent=2)[:-2] + f',\n  "results": [\n    {lines}\n  ]\n}}\n'
            )


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""The table of trainers.md, from trainers.json (released trainers, the engines that
their packages pin, and runs of integrations/replay/tests/whole_ways) and lab/matrix.json (runs of engines).

    trainers.py                writes the page
    trainers.py --check        fails if the page is stale
    trainers.py add FILE...    enters runs: result.json of integrations/replay/tests/whole_ways
"""

import argparse
import datetime
import json
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DATA, PAGE = HERE / "trainers.json", HERE / "trainers.md"
ENGINES = ROOT / "lab/matrix.json"
BEGIN, END = "<!-- by integrations/replay/trainers.py -->\n", "<!-- end -->\n"
SAME = ("trainer", "version", "engine", "engine_version")


def add(paths):
    data = json.loads(DATA.read_text())
    known = [tuple(each[key] for key in SAME) for each in data["trainers"]]
    git = ["git", "-C", str(ROOT), "rev-parse", "--short=7", "HEAD"]
    for path in paths:
        run = json.loads(path.read_text())
        name = tuple(run[key] for key in SAME)
        assert name in known, f"{path}: {name} is no row of {DATA}"
        run["commit"] = subprocess.check_output(git, text=True).strip()
        run["date"] = datetime.datetime.now(datetime.UTC).date().isoformat()
        others = [each for each in data["runs"] if tuple(each[key] for key in SAME) != name]
        data["runs"] = sorted([*others, run], key=lambda each: [each[key] for key in SAME])
    DATA.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")


def row(trainer, runs, engines):
    engine, version = trainer["engine"], trainer["engine_version"]
    cells = [f"{trainer['name']} {trainer['version']}", f"{engine} {version}", trainer["switch"]]
    found = [
        run
        for run in engines
        if (run["engine"], run["version"]) == (engine, version)
        and run["capture"].startswith("routecap")
    ]
    newest = max(found, key=lambda run: (run["date"], "counts" in run), default=None)
    if newest is None:
        cells.append("not run")
    else:
        counts = newest.get("counts", {})
        bad = counts.get("failed") or counts.get("wrong")
        bad = bad or "fails" in newest.get("results", {}).values()
        rows = f": {counts['rows']:,} rows, {counts['wrong']} wrong" if "rows" in counts else ""
        said = f"{newest['date']} ({newest['commit']}){rows}"
        cells.append(f"**fails**, {said}" if bad else said)
    whole = [run for run in runs if all(run[key] == trainer[key] for key in SAME)]
    if whole:
        [run] = whole
        counts = f"{run['rows']:,} rows, {run['wrong']} wrong, {run['missing']} missing"
        failed = "" if run["passed"] else "**fails**, "
        cells.append(f"{failed}{run['date']} ({run['commit']}): {counts}")
    else:
        cells.append(f"not run{trainer['why']}")
    return f"| {' | '.join(cells)} |"


def table():
    data = json.loads(DATA.read_text())
    engines = json.loads(ENGINES.read_text())
    lines = [
        "| your trainer | its engine | switch it on | engine checked | whole way checked |",
        "|---|---|---|---|---|",
    ]
    lines += [row(each, data["runs"], engines) for each in data["trainers"]]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("command", nargs="?", choices=["add"])
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_intermixed_args()
    if arguments.command == "add":
        add(arguments.files)
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    made = before + BEGIN + "\n" + table() + "\n" + END + rest.split(END)[1]
    if not arguments.check:
        PAGE.write_text(made)
    elif made != page:
        print("trainers.md is stale: python3 integrations/replay/trainers.py writes it")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

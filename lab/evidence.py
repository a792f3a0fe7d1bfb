#!/usr/bin/env python3
"""The table of lab/evidence.md: one line for each measurement in lab/results, by
lab/results/table.json, which says what was measured, its figure, the device, date and commit, and
the file; `also` has more files of it.

evidence.py writes the table. evidence.py --check fails if the table is stale, a file of results is in
none of its lines or in two, or a figure or a commit is not in the line's files. A line with an empty
figure is of a file that counts: the figure is added up from it. --check also fails if a page says
another commit behind its link to a file than the file does.
"""

import json
import pathlib
import re
import sys
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = ROOT / "lab/results"
LINES = RESULTS / "table.json"
PAGE = ROOT / "lab/evidence.md"
BEGIN, END = "<!-- by lab/evidence.py -->\n", "<!-- end -->\n"
STATED = re.compile(r"results/([\w./]+)\),\s+commit\s+([0-9a-f]{7,})")
COMMIT_BESIDE = {"full/replay.txt", "full/sglang.txt"}  # what they are of, the history says alone


def counted(data: dict) -> str:
    """What a soak or the fuzzers counted."""
    if "executions" in data:
        return f"{data['executions']:,} inputs in {data['cpu_hours']} hours of processor time"
    runs = [data, *data.get("runs", [])]
    sums = [run["sum"] for run in runs if "sum" in run]
    if "sum" not in data:
        sums += [run for run in runs if "cells_wrong" in run]
    steps, compared, wrong = (
        sum(part[key] for part in sums) for key in ("steps", "cells_compared", "cells_wrong")
    )
    return f"{steps:,} steps, {compared:,} cells compared, {wrong} wrong"


def files(line: dict) -> list[str]:
    return [line["file"], *line.get("also", [])]


def wrong(lines: list[dict]) -> Iterator[str]:
    """What the lines say that is not so."""
    named = [file for line in lines for file in files(line)]
    there = {str(file.relative_to(RESULTS)) for file in RESULTS.rglob("*.*")} - {LINES.name}
    yield from (f"{file} is in no line" for file in sorted(there - set(named)))
    yield from (f"{file} is in two lines" for file in {f for f in named if named.count(f) > 1})
    yield from (f"there is no {file}" for file in sorted(set(named) - there))
    for line in lines:
        text = "\n".join((RESULTS / file).read_text() for file in files(line) if file in there)
        numbers = set(re.findall(r"[+-]?\d[\d.,e+-]*\d|\d", text))
        numbers |= {each.lstrip("+-") for each in numbers}
        for figure in re.findall(r"(?<![\w.-])[+-]?\d(?:[\d.,e-]*\d)?", line["figure"]):
            if figure not in numbers:
                yield f"{line['file']}: {figure} is in none of its files"
        for commit in line["commit"].split(", "):
            if commit not in text and line["file"] not in COMMIT_BESIDE:
                yield f"{line['file']}: {commit} is in none of its files"


def said_by_pages() -> Iterator[str]:
    """Commits that pages state, as "[file](...), commit X", and that the files do not have."""
    folders = ("docs", "lab", "integrations")
    for page in sorted(each for folder in folders for each in (ROOT / folder).rglob("*.md")):
        for file, commit in STATED.findall(page.read_text()):
            if not (RESULTS / file).exists() or commit not in (RESULTS / file).read_text():
                yield f"{page.relative_to(ROOT)}: {file} is not of commit {commit}"


def table(lines: list[dict]) -> str:
    made = [
        "| what was measured | figure | on | date | commit | file |",
        "|---|---|---|---|---|---|",
    ]
    for line in lines:
        figure = line["figure"] or counted(json.loads((RESULTS / line["file"]).read_text()))
        link = f"[{line['file']}](results/{line['file']})"
        cells = [line["what"], figure, line["device"], line["date"], line["commit"], link]
        made.append(f"| {' | '.join(cells)} |")
    return "\n".join([*made, ""])


def main() -> int:
    lines = json.loads(LINES.read_text())
    faults = [*wrong(lines), *said_by_pages()]
    before, rest = PAGE.read_text().split(BEGIN)
    made = before + BEGIN + table(lines) + END + rest.split(END)[1]
    if "--check" not in sys.argv:
        PAGE.write_text(made)
    elif made != PAGE.read_text():
        faults.append("lab/evidence.md is stale: python3 lab/evidence.py")
    print(*faults, sep="\n", end="\n" * bool(faults))
    return bool(faults)


sys.exit(main())

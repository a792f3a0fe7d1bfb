#!/usr/bin/env python3
"""The table of lab/evidence.md: one line for each measurement in lab/results, read from
the files themselves. The commit is what the file says that it measured: the first that it names.

evidence.py writes the table. evidence.py --check fails if it is stale.
"""

import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = ROOT / "lab/results"
PAGE = ROOT / "lab/evidence.md"
BEGIN, END = "<!-- by lab/evidence.py -->\n", "<!-- end -->\n"
HASH = re.compile(r"(?<!of )\b(?=[0-9a-f]*[0-9])(?=[0-9a-f]*[a-f])[0-9a-f]{7,12}\b")


def counted(data: dict) -> str:
    """What a soak or the fuzzers counted; nothing for other files."""
    if "executions" in data:
        return f"{data['executions']:,} inputs in {data['cpu_hours']} hours of processor time"
    runs = [data, *data.get("runs", [])]
    sums = [run["sum"] for run in runs if "sum" in run]
    if "sum" not in data:
        sums += [run for run in runs if "cells_wrong" in run]
    if not sums:
        return ""
    steps, compared, wrong = (
        sum(part[key] for part in sums) for key in ("steps", "cells_compared", "cells_wrong")
    )
    return f"{steps:,} steps, {compared:,} cells compared, {wrong} wrong"


def heading(text: str) -> str:
    """The first line, with those in which its sentence goes on: a full line may not be its end."""
    lines = text.splitlines()
    count = 1
    while len(lines[count - 1]) >= 100 and "".join(lines[count : count + 1])[:1].islower():
        if lines[count - 1].endswith(":"):
            break
        count += 1
    return " ".join(lines[:count])


def line(name: str, files: list[pathlib.Path]) -> str:
    """One measurement, which has a text, a JSON file, or both."""
    texts = [file.read_text() for file in files if file.suffix != ".json"]
    data = next((json.loads(file.read_text()) for file in files if file.suffix == ".json"), {})
    title = data.get("title") or (heading(texts[0]) if texts else data.get("device", ""))
    said = ": ".join(filter(None, [title.rstrip(":."), counted(data)])).replace("|", "/")
    said = re.sub(r"--\w+", r"`\g<0>`", said)  # or the site would make a dash of it
    named = HASH.findall("\n".join([*texts, json.dumps(data)]))
    commit = named[0 if texts else -1][:7] if named else ""  # of several runs the last one's
    link = f"[{name}]({min(files, key=lambda f: f.suffix == '.json').relative_to(PAGE.parent)})"
    return f"| {link} | {said} | {commit} |"


def table() -> str:
    found: dict[str, list[pathlib.Path]] = {}
    for file in sorted(RESULTS.rglob("*.*")):
        found.setdefault(str(file.relative_to(RESULTS).with_suffix("")), []).append(file)
    lines = ["| file | what was measured | commit |", "|---|---|---|"]
    for name, files in found.items():
        if not any(name.startswith(other + "_") for other in found):  # more data of that one
            lines.append(line(name, files))
    return "\n".join([*lines, ""])


def main() -> int:
    check, page = "--check" in sys.argv, PAGE.read_text()
    before, rest = page.split(BEGIN)
    made = before + BEGIN + table() + END + rest.split(END)[1]
    if not check:
        PAGE.write_text(made)
    elif made != page:
        print("lab/evidence.md is stale: python3 lab/evidence.py")
        return 1
    return 0


sys.exit(main())

#!/usr/bin/env python3
"""lab/matrix.md from lab/matrix.json: what `routecap conform` said of engines when it was run.

    matrix.py                      writes the page
    matrix.py --check              fails if the page is stale
    matrix.py --check --current    fails too if a run is older than its adapter
    matrix.py add FILE...          enters runs: the reports of conform --json, or of
                                   tools/tests/conform/prove.py --json, whose runs without a fault
                                   count; or what tests said in a release: its engine, command,
                                   counts, as {"passed": 300, "failed": 0}, and seconds
        --device NAME              where they ran; default: the host
        --tree FOLDER              the checkout that ran them, as it was; default: this one

A run is older than its adapter if the adapter's code is another one than at that run. Code is the
syntax tree of its Python files without docstrings and imports, or the text of its C files: comments,
layout, and where a name comes from do not count. What an engine captures by itself has no adapter here, and is never older.
"""

import argparse
import ast
import datetime
import functools
import hashlib
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
DATA, PAGE = ROOT / "lab/matrix.json", ROOT / "lab/matrix.md"
BEGIN, END = "<!-- by lab/matrix.py -->\n", "<!-- end -->\n"
ADAPTERS = {
    "vLLM": "integrations/vllm/src/routecap_vllm/*.py",
    "SGLang": "integrations/sglang/src/routecap_sglang/*.py",
    "transformers": "integrations/transformers/src/routecap_transformers/*.py",
    "llama.cpp": "integrations/llama_cpp/tap.[ch]",
    "llama-server": "integrations/llama_cpp/tap.[ch] integrations/llama_cpp/server/preload.c",
}
OWN = "its own capture"
BAD = {"failed", "wrong"}
SHOWN = {"passes": "passes", "fails": "**fails**", "refuses": "refuses"}


@functools.cache
def code(file):
    """What of a file decides what it does."""
    text = file.read_text()
    if file.suffix != ".py":
        return text
    tree = ast.parse(text)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [each for each in body if not is_text(each) and not is_import(each)]
    return ast.dump(tree)


def is_text(node):
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def is_import(node):
    return isinstance(node, (ast.Import, ast.ImportFrom))


def digest(run, tree=ROOT):
    """Of the adapter that a run is of, as it is in a checkout; nothing for an engine's own."""
    if run["capture"] == OWN:
        return ""
    parts = ADAPTERS[run["engine"]].split()
    files = [file for part in parts for file in sorted(tree.glob(part))]
    whole = "".join(f"{file.name}\0{code(file)}\0" for file in files)
    return hashlib.sha256(whole.encode()).hexdigest()[:12]


def is_older(run):
    return run["adapter"] != digest(run)


# ---- Entering runs


def add(paths, device, tree):
    runs = json.loads(DATA.read_text()) if DATA.exists() else []
    for path in paths:
        new = run_of(json.loads(path.read_text()), device, tree)
        same = ("engine", "version", "capture", "settings", "device")
        runs = [each for each in runs if any(each[key] != new[key] for key in same)] + [new]
    runs.sort(key=lambda run: [run[key] for key in ("engine", "version", "capture", "settings")])
    DATA.write_text(json.dumps(runs, indent=1) + "\n")


def run_of(reports, device, tree):
    """A run, of the reports of several with different prompts: a check fails if it failed in one."""
    reports = reports if isinstance(reports, list) else [reports]
    if "counts" in reports[0]:
        [report] = reports
        run = entered(report, device, tree)
        return run | {"counts": report["counts"], "seconds": report["seconds"]}
    clean = [each for each in reports if each.get("what", "clean") == "clean"]
    results, said = {}, {}
    for verdict in (verdict for each in clean for verdict in each["verdicts"]):
        check, result = verdict["check"], verdict["result"]
        if result == "not run":
            continue
        if results.get(check) != "fails":
            results[check] = result
        if result != "passes" and check not in said:
            said[check] = verdict["what"][0]
    run = entered(clean[0], device, tree) | {"prompts": len(clean)}
    return run | {"results": results, "said": said}


def entered(report, device, tree):
    """What any report says of its run, and where the checkout was."""
    name, *settings, capture = report["engine"].split(", ")
    engine, version = name.rsplit(" ", 1) if " " in name else (name, "")
    assert engine in ADAPTERS, f"{engine}: say in ADAPTERS where its adapter is"
    git = ["git", "-C", str(tree), "rev-parse", "--short=7", "HEAD"]
    run = {"engine": engine, "version": version.removesuffix("+cpu"), "capture": capture}
    run |= {"settings": ", ".join(settings), "device": device}
    run |= {"command": report.get("command", "routecap conform")}
    run |= {"commit": subprocess.check_output(git, text=True).strip()}
    run |= {"date": datetime.datetime.now(datetime.UTC).date().isoformat()}
    return run | {"adapter": digest(run, tree)}


# ---- The page


def tables(runs):
    releases = [run for run in runs if "counts" in run]
    runs = [run for run in runs if "counts" not in run]
    checks = list(dict.fromkeys(check for run in runs for check in order(run)))
    lines = [
        "| run | engine | captured by | on | command | commit | date |",
        "|---|---|---|---|---|---|---|",
    ]
    for number, run in enumerate(runs, 1):
        name = f"{run['engine']} {run['version']}".strip()
        name += f", {run['settings']}" if run["settings"] else ""
        older = " (the adapter has changed since)" if is_older(run) else ""
        lines.append(
            f"| {number} | {name} | {run['capture']}{older} | {run['device']} | "
            f"`{run['command']}` | {run['commit']} | {run['date']} |"
        )
    heads = "".join(f" {number} |" for number in range(1, len(runs) + 1))
    lines += ["", f"| check |{heads}", f"|---|{'---|' * len(runs)}"]
    for check in checks:
        cells = (SHOWN.get(run["results"].get(check), "-") for run in runs)
        lines.append(f"| `{check}` | {' | '.join(cells)} |")
    said = [(number, run) for number, run in enumerate(runs, 1) if run["said"]]
    lines += ["", "| run | check | what was seen first |", "|---|---|---|"] if said else []
    for number, run in said:
        named = [each for each in checks if each in run["said"]]
        failed = [each for each in named if run["results"].get(each) != "refuses"]
        for check in failed[:1] + [each for each in named if each not in failed]:
            lines.append(f"| {number} | `{check}` | {run['said'][check]} |")
    return "\n".join([*lines, *table_of_releases(releases)]) + "\n"


def table_of_releases(runs):
    """Of the tests that were run in releases: as many lines as releases."""
    if not runs:
        return []
    lines = [
        "",
        "## Releases",
        "",
        "| release | with | captured by | on | counts | seconds | command | commit | date |",
    ]
    lines.append("|---|---|---|---|---|---|---|---|---|")
    for run in sorted(runs, key=lambda run: (run["engine"], numbers(run["version"]))):
        counts = ", ".join(
            f"**{many} {what}**" if many and what in BAD else f"{many} {what}"
            for what, many in run["counts"].items()
        )
        older = " (the adapter has changed since)" if is_older(run) else ""
        lines.append(
            f"| {run['engine']} {run['version']} | {run['settings']} | {run['capture']}{older} | "
            f"{run['device']} | {counts} | {run['seconds']} | `{run['command']}` | "
            f"{run['commit']} | {run['date']} |"
        )
    return lines


def numbers(version):
    return [int(each) if each.isdigit() else -1 for each in version.split(".")]


def order(run):
    """Checks of a run as conform has them."""
    names = list(run["results"])
    return sorted(names, key=lambda name: CHECKS.index(name) if name in CHECKS else len(CHECKS))


def checks():
    """The names of the checks, in their order, from the page of conform."""
    text = (ROOT / "docs/conform.md").read_text().partition("## The checks")[2]
    lines = text.partition("What some")[0].splitlines()
    return [line.split("`")[1] for line in lines if line.startswith("- `")]


CHECKS = checks()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("command", nargs="?", choices=["add"])
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    parser.add_argument("--device", default="host")
    parser.add_argument("--tree", default=ROOT, type=pathlib.Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--current", action="store_true")
    arguments = parser.parse_intermixed_args()
    if arguments.command == "add":
        add(arguments.files, arguments.device, arguments.tree)
    runs = json.loads(DATA.read_text())
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    made = before + BEGIN + "\n" + tables(runs) + "\n" + END + rest.split(END)[1]
    if not arguments.check:
        PAGE.write_text(made)
        return 0
    if made != page:
        print("lab/matrix.md is stale: python3 lab/matrix.py writes it")
        return 1
    older = [run for run in runs if is_older(run)]
    for run in older if arguments.current else ():
        where = "" if "counts" in run else "tools/tests/conform/"
        print(f"{run['engine']} {run['version']}: run {where}{run['command']} again")
    return bool(arguments.current and older)


if __name__ == "__main__":
    sys.exit(main())

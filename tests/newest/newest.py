#!/usr/bin/env python3
"""What is new among the engines that routecap captures in and the trainers that pin them.

    newest.py            asks pip's index for the newest release of each, and compares it with what
                         the tree states: an engine's checked releases, and seen.json of trainers
    newest.py --check    runs the release check of each engine's newest release that is not checked,
                         and of each release that a trainer pins, too
    newest.py --enter    writes what was seen into seen.json

Prints a line for each release, and of a trainer's pins the newest release that each allows, which is
checked, unchecked (newer or between: the adapter runs there if its places fit and the user lets it)
or refused (older than all that are checked). Exits with 1 if something is new and not checked, with 2 if something
cannot be told.

It asks by pip, and so wherever pip is set to ask (PIP_INDEX_URL).
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from pip._vendor.packaging.requirements import InvalidRequirement, Requirement
from pip._vendor.packaging.utils import canonicalize_name
from pip._vendor.packaging.version import InvalidVersion, Version

ROOT = Path(__file__).resolve().parents[2]
SEEN = Path(__file__).with_name("seen.json")

ENGINES = {
    "transformers": "integrations/transformers/releases.sh",
    "vllm": "integrations/vllm/release.sh",
    "sglang": "integrations/sglang/check.sh",
}
"""What checks a release that it is given."""
TRAINERS = ("verl", "skyrl", "openrlhf", "torchtitan", "nemo-automodel", "areal", "trl")


class Untold(Exception):
    """Something cannot be told; it says what, and why."""


class Stated(NamedTuple):
    """Which releases of an engine its adapter is checked with, as its sources say it."""

    releases: frozenset[str]
    """By their whole number."""
    begins: frozenset[str]
    """By the beginning of their number: 0.26 is 0.26.0 and 0.26.1."""
    ranges: tuple[tuple[str, str], ...]
    """From the first to the last; of a last one with two numbers, all patches too."""

    def has(self, release: str) -> bool:
        if Version(release).is_prerelease:
            return False
        return (
            release in self.releases
            or any(release == each or release.startswith(f"{each}.") for each in self.begins)
            or any(
                Version(first) <= Version(release)
                and (Version(release) <= Version(last) or _begins(release, last))
                for first, last in self.ranges
            )
        )

    @property
    def first(self) -> Version:
        return min(
            Version(each)
            for each in (*self.releases, *self.begins, *(first for first, _ in self.ranges))
        )

    def state(self, release: str) -> str:
        if self.has(release):
            return "checked"
        return "refused" if Version(release) < self.first else "unchecked"


def _begins(release: str, last: str) -> bool:
    return last.count(".") == 1 and release.startswith(f"{last}.")


def stated(engine: str) -> Stated:
    """Read in the sources, without importing an adapter, whose engine is not here."""
    releases: set[str] = set()
    begins: set[str] = set()
    ranges: list[tuple[str, str]] = []
    adapter = ROOT / "integrations" / engine / "src" / f"routecap_{engine}"
    for file in sorted(adapter.glob("*.py")):
        values = _assigned(file)
        releases.update(_texts(values.get("RELEASES")))
        for name in ("MODULES", "_KNOWN"):
            if isinstance(values.get(name), ast.Dict):
                begins.update(_texts(values[name]))
        if "FIRST" in values and "LAST" in values:
            ranges.append((_number(values["FIRST"]), _number(values["LAST"])))
    if not (releases or begins or ranges):
        raise Untold(
            f"{adapter} states no releases: RELEASES, FIRST and LAST, MODULES or _KNOWN"
            " were looked for"
        )
    return Stated(frozenset(releases), frozenset(begins), tuple(ranges))


def _assigned(file: Path) -> dict[str, ast.expr]:
    """What a module assigns; of `FIRST, LAST = a, b`, too."""
    values: dict[str, ast.expr] = {}
    for node in ast.parse(file.read_text()).body:
        if not isinstance(node, ast.Assign):
            continue
        [target] = node.targets[:1]
        if isinstance(target, ast.Name):
            values[target.id] = node.value
        elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            names = (each.id for each in target.elts if isinstance(each, ast.Name))
            values.update(zip(names, node.value.elts))
    return values


def _texts(value: ast.expr | None) -> set[str]:
    """The release numbers in an expression; of a mapping, in its keys."""
    parts = [] if value is None else value.keys if isinstance(value, ast.Dict) else [value]
    texts = (node for part in parts if part for node in ast.walk(part))
    return {
        node.value
        for node in texts
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(r"\d+(\.\d+)+(\.post\d+)?", node.value)
    }


def _number(value: ast.expr) -> str:
    said = ast.literal_eval(value)
    return said if isinstance(said, str) else ".".join(map(str, said))


# ---- The index


def pip(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pip", *arguments, "--disable-pip-version-check"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise Untold(f"pip {' '.join(arguments)}: {' '.join(lines) or done.stderr[-500:]}")
    return done.stdout


def releases_of(name: str) -> list[str]:
    """Newest first, whichever Python they need, without what comes before releases."""
    said = pip("index", "versions", "--ignore-requires-python", name)
    found = re.search(r"Available versions: (.*)", said)
    if found is None:
        raise Untold(f"pip index versions {name} names no versions")
    releases = [each for each in found[1].split(", ") if not Version(each).is_prerelease]
    return sorted(releases, key=Version, reverse=True)


def needs_of(name: str, release: str) -> list[str]:
    """What a release requires, with its extras, as its metadata says it."""
    report = pip(
        *("install", "--quiet", "--dry-run", "--no-deps", "--ignore-installed"),
        *("--ignore-requires-python", "--only-binary", ":all:", "--report", "-"),
        f"{name}=={release}",
    )
    needs: list[str] = json.loads(report)["install"][0]["metadata"].get("requires_dist", [])
    return needs


def pins_of(name: str, release: str) -> dict[str, list[str]]:
    """For each engine, how the release limits it: a limit for each place that names it."""
    pins: dict[str, list[str]] = {}
    for line in needs_of(name, release):
        try:
            need = Requirement(line)
        except InvalidRequirement as reason:
            raise Untold(f"{name} {release} requires {line!r}: {reason}") from None
        if (engine := canonicalize_name(need.name)) in ENGINES:
            limits = pins.setdefault(engine, [])
            if (limit := str(need.specifier) or "any") not in limits:
                limits.append(limit)
    return {engine: sorted(limits) for engine, limits in sorted(pins.items())}


def newest_of(releases: list[str], limit: str) -> str | None:
    """The newest of these releases that a limit allows."""
    if limit == "any":
        return releases[0] if releases else None
    allowed = Requirement(f"engine{limit}").specifier
    return next((each for each in releases if allowed.contains(each)), None)


# ---- What is said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="run the checks of what is new")
    parser.add_argument("--enter", action="store_true", help="write what was seen into seen.json")
    options = parser.parse_args()
    seen: dict[str, Any] = json.loads(SEEN.read_text())
    now: dict[str, Any] = {}
    untold: list[str] = []
    to_check: dict[str, set[str]] = {engine: set() for engine in ENGINES}
    releases: dict[str, list[str]] = {}
    states: dict[str, Stated] = {}
    for engine in ENGINES:
        try:
            states[engine], releases[engine] = stated(engine), releases_of(engine)
            newest = releases[engine][0]
            state = states[engine].state(newest)
            print(f"{engine} {newest}: {state}", flush=True)
            if state != "checked":
                to_check[engine].add(newest)
        except (Untold, InvalidVersion) as reason:
            untold.append(f"{engine}: {reason}")
    for trainer in TRAINERS:
        try:
            newest = releases_of(trainer)[0]
            now[trainer] = {"release": newest, "pins": pins_of(trainer, newest)}
        except (Untold, InvalidVersion, LookupError) as reason:
            untold.append(f"{trainer}: {reason}")
            continue
        is_new = seen.get(trainer, {}).get("release") != newest
        print(f"{trainer} {newest}{': new' if is_new else ''}", flush=True)
        for engine, limits in now[trainer]["pins"].items():
            for limit in limits if engine in releases else ():
                pinned = newest_of(releases[engine], limit)
                if pinned is None:
                    untold.append(f"{trainer} {newest}: {engine} {limit} allows no release")
                    continue
                state = states[engine].state(pinned)
                print(f"  {engine} {limit}: {pinned} is {state}", flush=True)
                if state == "unchecked":
                    to_check[engine].add(pinned)
    for line in untold:
        print(f"cannot be told: {line}", flush=True)
    if options.enter:
        SEEN.write_text(json.dumps(seen | now, indent=1, sort_keys=True) + "\n")
    if options.check:
        to_check = {engine: failing(engine, each) for engine, each in to_check.items()}
    left = [f"{engine} {each}" for engine, some in to_check.items() for each in sorted(some)]
    if left:
        print(f"not {'right' if options.check else 'checked'}: {', '.join(left)}")
    return 2 if untold else bool(left)


def failing(engine: str, releases: set[str]) -> set[str]:
    """Of these releases those whose check fails."""
    failed = set()
    for release in sorted(releases, key=Version):
        command = ["bash", ENGINES[engine], release]
        print(f"$ {' '.join(command)}", flush=True)
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            failed.add(release)
    return failed


if __name__ == "__main__":
    sys.exit(main())

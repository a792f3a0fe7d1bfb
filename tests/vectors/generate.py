#!/usr/bin/env python3
"""Writes the conformance vectors of this folder.

README.md says what they are and how to call this.
"""

import importlib
import json
import pkgutil
import re
import sys
import textwrap
from pathlib import Path

sys.dont_write_bytecode = True  # this folder is of sources

import scenarios  # noqa: E402
from model.routing import ALL, LANDED  # noqa: E402
from mutate import mutants  # noqa: E402

HERE = Path(__file__).resolve().parent
HEADERS = sorted((HERE.parent.parent / "include" / "routecap").glob("*.h"))

# What no vector calls or returns, and why.
EXEMPT = {
    "last_error": "read after every call that leaves a text",
    "ERR_FORKED": "needs a second process",
    "ERR_CAPTURING": "needs a stream",
    "ERR_TWO_THREADS": "needs two threads",
    "ERR_THREAD": "needs a system that refuses a thread",
    "ERR_DRIVER_TOO_OLD": "needs a device",
    "ERR_DEVICE": "needs a device",
    "ERR_DEVICE_LOST": "needs a device",
    "ERR_LOSSY": "is of the wire, whose golden messages every binding reads",
    "ERR_INTERNAL": "is a defect",
    "set_log": "is no part of what a capturer says: tests/diagnostics",
    "capturer_dump": "is compared with the model in the tests of operations",
    "serialized_slice": "is compared with routing_slice in the tests and by fuzzing",
    "store_create_shared": "needs a descriptor: tests/store",
    "store_open_shared": "needs a descriptor: tests/store",
}


def read_header():
    """Its numbers by name, its functions but those of the wire and of plans, and its statuses."""
    text = "".join(path.read_text() for path in HEADERS)
    numbers = {}
    for name, value in re.findall(r"^#define ROUTECAP_(\w+) \(?(-?\d\w*)\)?", text, re.M):
        numbers[name] = int(re.sub("[uUlL]+$", "", value), 0)
    statuses = text[
        text.index("#define ROUTECAP_OK") : text.index("const char *routecap_status_name")
    ]
    return (
        numbers,
        re.findall(
            r"^ROUTECAP_API .*?routecap_(?!wire_|plan_)(\w+)\(",
            text,
            re.M,
        ),
        re.findall(r"^#define ROUTECAP_(\w+)", statuses, re.M),
    )


def plain(value):
    """A value as README.md says it is written."""
    if isinstance(value, bytes):
        digits = value.hex()
        return [digits[i : i + 128] for i in range(0, len(digits), 128)]
    if isinstance(value, dict):
        return {key: plain(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, int) and value in (ALL, LANDED):
        return "ALL" if value == ALL else "LANDED"
    if isinstance(value, int) and abs(value) > 2**53:
        return str(value)
    return value


def written(topic):
    """The text of a file."""
    lines = [f'{{"topic": {json.dumps(topic["topic"])}, "vectors": [']
    for i, vector in enumerate(topic["vectors"]):
        lines.append("{" + f'"name": {json.dumps(vector["name"])}, "calls": [')
        for j, call in enumerate(vector["calls"]):
            text = json.dumps(call) + ("," if j + 1 < len(vector["calls"]) else "")
            lines += textwrap.wrap(
                text,
                148,
                initial_indent=" ",
                subsequent_indent="  ",
                break_long_words=False,
                break_on_hyphens=False,
            )
        lines.append("]}" + ("," if i + 1 < len(topic["vectors"]) else ""))
    return "\n".join(lines) + "\n]}\n"


def built(numbers):
    topics = []
    for module in sorted(module.name for module in pkgutil.iter_modules(scenarios.__path__)):
        topics.append(plain(importlib.import_module(f"scenarios.{module}").topic.build(numbers)))
    return topics


def found_in(value, found):
    """All strings in a value."""
    if isinstance(value, str):
        found.add(value)
    for part in (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    ):
        found_in(part, found)
    return found


def uncovered(topics, functions, statuses):
    """Functions that are never called, statuses that are never returned, and exempt ones that are."""
    calls = [call for topic in topics for vector in topic["vectors"] for call in vector["calls"]]
    called = {call["call"] for call in calls}
    returned = set()
    for call in calls:
        if call["call"] != "status_name":
            found_in([call.get("status", ""), call.get("out", {}).get("status", [])], returned)
    seen = called | {status.removeprefix("ROUTECAP_") for status in returned}
    return sorted((set(functions) | set(statuses)) - seen - set(EXEMPT)) + sorted(
        seen & set(EXEMPT)
    )


def main(arguments):
    numbers, functions, statuses = read_header()
    topics = built(numbers)
    missing = uncovered(topics, functions, statuses)
    names = [vector["name"] for topic in topics for vector in topic["vectors"]]
    twice = sorted({name for name in names if names.count(name) > 1})
    assert not missing, f"covered by no vector, or exempt and covered: {missing}"
    assert not twice, f"names used twice: {twice}"
    files = {HERE / f"{topic['topic']}.json": written(topic) for topic in topics}
    if arguments[:1] == ["--mutate"] and len(arguments) == 3:
        folder = Path(arguments[2])
        folder.mkdir(parents=True, exist_ok=True)
        for earlier in folder.glob("[0-9][0-9][0-9][0-9].json"):
            earlier.unlink()
        for number, (topic, vector) in enumerate(mutants(topics, int(arguments[1]))):
            (folder / f"{number:04}.json").write_text(
                written({"topic": f"{topic}_{number}", "vectors": [vector]})
            )
        return 0
    if arguments == ["--check"]:
        stale = sorted(
            path.name
            for path in set(HERE.glob("*.json")) | set(files)
            if not path.exists() or files.get(path) != path.read_text()
        )
        if stale:
            print(f"not what generate.py writes: {', '.join(stale)}")
            return 1
    elif not arguments:
        for path in set(HERE.glob("*.json")) - set(files):
            path.unlink()
        for path, text in files.items():
            path.write_text(text)
    else:
        sys.exit("usage: generate.py [--check | --mutate N DIRECTORY]")
    calls = sum(len(vector["calls"]) for topic in topics for vector in topic["vectors"])
    print(
        f"{len(names)} vectors with {calls} calls in {len(files)} files; exempt:"
        f" {', '.join(EXEMPT)}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

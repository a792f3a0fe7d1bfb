#!/usr/bin/env python3
"""What is said of the vectors' files, whatever the library answers.

files.py                         lays them out
files.py --check                 fails if a file is laid out otherwise, if a name is used twice,
                                 or if a function or status of the headers is in no vector
files.py --mutate N DIRECTORY    writes N files of one vector each, in which one expectation is
                                 wrong: a replayer must fail every one. `wrong` has the call, the
                                 field, and the status that the call had
"""

import copy
import json
import random
import re
import sys
import textwrap
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.dont_write_bytecode = True
sys.path.append(str(ROOT / "dev" / "generate"))

from headers import Headers  # noqa: E402
from vectors import ELSEWHERE, UNCALLED  # noqa: E402

# What no vector calls or returns, and why.
EXEMPT = UNCALLED | {
    "ERR_FORKED": "needs a second process",
    "ERR_CAPTURING": "needs a stream",
    "ERR_TWO_THREADS": "needs two threads",
    "ERR_THREAD": "needs a system that refuses a thread",
    "ERR_DRIVER_TOO_OLD": "needs a device",
    "ERR_DEVICE": "needs a device",
    "ERR_DEVICE_LOST": "needs a device",
    "ERR_LOSSY": "is of the wire, whose golden messages every binding reads",
    "ERR_INTERNAL": "is a defect",
}


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
        wrong = f', "wrong": {json.dumps(vector["wrong"])}' if "wrong" in vector else ""
        lines.append("]" + wrong + "}" + ("," if i + 1 < len(topic["vectors"]) else ""))
    return "\n".join(lines) + "\n]}\n"


def problems(topics):
    """What is wrong with files, by their paths."""
    vectors = [vector for topic in topics.values() for vector in topic["vectors"]]
    names = [vector["name"] for vector in vectors]
    yield from (f"{name}: used twice" for name in sorted({n for n in names if names.count(n) > 1}))
    for path, topic in topics.items():
        if topic["topic"] != path.stem or written(topic) != path.read_text():
            yield f"{path.name}: laid out otherwise than by files.py"
    headers = Headers()
    known = {each.short for each in headers.functions} | {
        each.name.removeprefix("ROUTECAP_") for each in headers.statuses
    }
    # The messages of the wire, and layouts and cells of plans, are in other files.
    known = {name for name in known if not name.startswith(ELSEWHERE)}
    seen = set()
    for call in (call for vector in vectors for call in vector["calls"]):
        seen.add(call["call"])
        if call["call"] != "status_name":
            returned = [call.get("status"), call.get("out", {}).get("status")]
            seen |= set(re.findall(r"ROUTECAP_(\w+)", json.dumps(returned)))
    yield from (f"{name}: in no vector" for name in sorted(known - seen - set(EXEMPT)))
    yield from (f"{name}: exempt, and in a vector" for name in sorted(seen & set(EXEMPT)))


# ---- Mutants


def wrong(value):
    """Another value of the same kind, or None where there is none."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int):
        return 1 - value if value in (0, 1) else value + 1
    if isinstance(value, float):
        return value + 0.5
    if value in ("nan", "inf", "-inf"):
        return 0
    if value in ("ALL", "LANDED") or value.lstrip("-").isdigit():
        return 12345
    if value.startswith("ROUTECAP_"):
        return "ROUTECAP_OK" if value != "ROUTECAP_OK" else "ROUTECAP_INCOMPLETE"
    if value and len(value) % 2 == 0 and all(each in "0123456789abcdef" for each in value):
        return value[:-1] + ("0" if value[-1] != "0" else "1")
    return None  # a handle's name


def leaves(value, path):
    """The paths to everything in an expectation that is compared."""
    if isinstance(value, dict):
        for key, part in value.items():
            if key == "tolerance":
                continue
            if key == "ids" and "valid" in value:
                k = max(len(part) // max(len(value["valid"]), 1), 1)
                yield from ((*path, key, i) for i in range(len(part)) if value["valid"][i // k])
            elif key == "tags" and "valid" in value:
                layers = len(value["valid"]) // max(len(part), 1)
                yield from (
                    (*path, key, i)
                    for i in range(len(part))
                    if any(value["valid"][i * layers : (i + 1) * layers])
                )
            else:
                yield from leaves(part, (*path, key))
    elif isinstance(value, list):
        for i, part in enumerate(value):
            yield from leaves(part, (*path, i))
    else:
        yield path


def at(value, path):
    for step in path:
        value = value[step]
    return value


def mutants(topics, count):
    """Yields (topic, vector). The places are spread over all kinds of calls and expectations."""
    places = {}  # (call, what is expected) -> where
    for topic in topics.values():
        for v, vector in enumerate(topic["vectors"]):
            for c, call in enumerate(vector["calls"]):
                paths = [("status",)] if "status" in call else []
                paths += [("out", *path) for path in leaves(call.get("out", {}), ())]
                for path in paths:
                    if wrong(at(call, path)) is not None:
                        kind = (call["call"], *(step for step in path if isinstance(step, str)))
                        places.setdefault(kind, []).append((topic, v, c, path))
    dice, kinds = random.Random(count), sorted(places)
    for number in range(count):
        topic, v, c, path = dice.choice(places[kinds[number % len(kinds)]])
        vector = copy.deepcopy(topic["vectors"][v])
        holder = at(vector["calls"][c], path[:-1])
        holder[path[-1]] = wrong(holder[path[-1]])
        vector["name"] += f"; wrong: call {c}, {'.'.join(map(str, path))}"
        field = next(step for step in reversed(path) if isinstance(step, str))
        was = topic["vectors"][v]["calls"][c].get("status")
        vector["wrong"] = {"call": c, "field": field} | ({"status": was} if was else {})
        yield topic["topic"], vector


def main(arguments):
    topics = {path: json.loads(path.read_text()) for path in sorted(HERE.glob("*.json"))}
    if arguments[:1] == ["--mutate"] and len(arguments) == 3:
        folder = Path(arguments[2])
        folder.mkdir(parents=True, exist_ok=True)
        for earlier in folder.glob("[0-9][0-9][0-9][0-9].json"):
            earlier.unlink()
        for number, (topic, vector) in enumerate(mutants(topics, int(arguments[1]))):
            (folder / f"{number:04}.json").write_text(
                written({"topic": f"{topic}_{number}", "vectors": [vector]})
            )
    elif arguments == ["--check"]:
        found = list(problems(topics))
        for each in found:
            print(f"vectors: {each}")
        vectors = [vector for topic in topics.values() for vector in topic["vectors"]]
        calls = sum(len(vector["calls"]) for vector in vectors)
        print(f"vectors: {len(vectors)} with {calls} calls in {len(topics)} files")
        return len(found) > 0
    elif not arguments:
        for path, topic in topics.items():
            path.write_text(written(topic))
    else:
        sys.exit(__doc__)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

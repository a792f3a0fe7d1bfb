"""Vectors with one wrong expectation each: what a replayer must notice."""

import copy

from script import Dice


def wrong(value):
    """Another value of the same kind, or None where there is none."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int):
        return 1 - value if value in (0, 1) else value + 1
    if isinstance(value, float):
        return value + 0.5
    if value in ("ALL", "LANDED") or value.lstrip("-").isdigit():
        return 12345
    if value.startswith("ROUTECAP_"):
        return "ROUTECAP_OK" if value != "ROUTECAP_OK" else "ROUTECAP_INCOMPLETE"
    if value and all(digit in "0123456789abcdef" for digit in value):
        return value[:-1] + ("0" if value[-1] != "0" else "1")
    return None  # a handle's name


def leaves(value, path):
    """The paths to everything in an expectation that is compared."""
    if isinstance(value, dict):
        for key, part in value.items():
            if key == "tolerance":
                continue
            if key == "ids" and "valid" in value:
                k = value["k"]
                yield from ((*path, key, i) for i in range(len(part)) if value["valid"][i // k])
            elif key == "tags" and "valid" in value:
                layers = value["layers"]
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
    for topic in topics:
        for v, vector in enumerate(topic["vectors"]):
            for c, call in enumerate(vector["calls"]):
                paths = [("status",)] if "status" in call else []
                paths += [("out", *path) for path in leaves(call.get("out", {}), ())]
                for path in paths:
                    if wrong(at(call, path)) is not None:
                        kind = (call["call"], *(step for step in path if isinstance(step, str)))
                        places.setdefault(kind, []).append((topic, v, c, path))
    dice, kinds = Dice(count), sorted(places)
    for number in range(count):
        topic, v, c, path = dice.pick(places[kinds[number % len(kinds)]])
        vector = copy.deepcopy(topic["vectors"][v])
        holder = at(vector["calls"][c], path[:-1])
        holder[path[-1]] = wrong(holder[path[-1]])
        vector["name"] += f"; wrong: call {c}, {'.'.join(map(str, path))}"
        yield topic["topic"], vector

"""What docs/ has of the headers: the schema of the dump. Pages, which say more of each reason and
format than the headers do, are looked at for what they lack.
"""

import re
from collections.abc import Iterator

from headers import ROOT, Headers

COLUMNS = 100


def short(headers: Headers, prefix: str) -> list[str]:
    return [each.name.removeprefix(f"ROUTECAP_{prefix}") for each in headers.group(prefix)]


def listed(names: list[str], indent: str) -> str:
    """A list of strings in JSON, in lines."""
    lines, line = [], indent
    for number, name in enumerate(names):
        item = f'"{name}"' + ("," if number < len(names) - 1 else "")
        if len(line) + 1 + len(item) > COLUMNS:
            lines.append(line)
            line = indent
        line += item if line == indent else f" {item}"
    return "[\n" + "\n".join([*lines, line]) + f"\n{indent[2:]}]"


def schema(headers: Headers) -> str:
    """The dump's switches and counters; what else it says is written by hand."""
    text = (ROOT / "docs/dump.schema.json").read_text()
    switches = [name.lower() for name in short(headers, "CONFIG_")]
    stats = next(each for each in headers.structs if each.short == "stats")
    counters = [each.name for each in stats.fields[1:] if not each.name.startswith("bytes_")]
    required = re.search(r'"required": (\[\s*"backend",[^]]*\])', text)
    settings = re.findall(r'"(\w+)"', required[1])
    settings = [*settings[: settings.index("budget_bytes") + 1], *switches]
    text = text.replace(required[1], listed(settings, " " * 8))
    required = re.search(r'"required": (\[\s*"(?:silent_layers|steps_issued)",[^]]*\])', text)
    text = text.replace(required[1], listed(counters, " " * 8))
    booleans = ",\n".join(f'        "{name}": {{ "type": "boolean" }}' for name in switches)
    return re.sub(r'(?:        "\w+": \{ "type": "boolean" \},?\n)+', f"{booleans}\n", text)


def forgotten(headers: Headers) -> Iterator[str]:
    text = (ROOT / "docs/faq.md").read_text()
    for name in short(headers, "MISSING_"):
        if not re.search(rf"\b{name}\b", text):
            yield f"ROUTECAP_MISSING_{name} is not in docs/faq.md"
    text = (ROOT / "docs/wire.md").read_text()
    for each in headers.constants:
        name = re.match(r'"([\w.]+)":', each.comment)
        if each.name.startswith("ROUTECAP_WIRE_") and name and f"`{name[1]}`" not in text:
            yield f"{each.name} is not in docs/wire.md"


def files(headers: Headers) -> dict[str, str]:
    return {"docs/dump.schema.json": schema(headers)}

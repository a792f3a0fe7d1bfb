"""What docs/ has of the headers: which thread may make which call.
Pages, which say more of each reason and format than the headers do, are looked at for what they
lack.
"""

import re
from collections.abc import Iterator

from headers import ROOT, Headers


def short(headers: Headers, prefix: str) -> list[str]:
    return [each.name.removeprefix(f"ROUTECAP_{prefix}") for each in headers.group(prefix)]


def callers(headers: Headers) -> Iterator[tuple[str, str]]:
    """Who may make a call, by the rules in "Threads" of base.h; and the call."""
    listed = re.search(r"calls wait for work in flight:([^.]*)\.", headers.text)
    waiting = re.findall(r"routecap_(\w+)", listed[1])
    for chapter in headers.chapters:
        text = headers.chapter(chapter)
        for each in headers.functions:
            if not re.search(rf"^ROUTECAP_API .*?\b{each.name}\(", text, re.MULTILINE):
                continue
            types = {parameter.type for parameter in each.parameters}
            waits = " (waits)" if each.short in waiting else ""
            forward = {"routecap_capturer *", "routecap_stream"} <= types
            if forward or each.short.startswith("sink_"):
                caller = "one thread at a time for each capturer (the forward path)"
            elif types & {"routecap_sequence *", "const routecap_sequence *"}:
                caller = "one thread at a time for each sequence"
            elif "routecap_wire_decoder *" in types:
                caller = "one thread at a time for each decoder"
            else:
                caller = f"any thread: `{chapter}.h`"
            yield caller, f"`{each.short}`{waits}"


def threads(headers: Headers) -> str:
    """The table of calls by thread."""
    rows: dict[str, list[str]] = {}
    for caller, call in callers(headers):
        rows.setdefault(caller, []).append(call)
    order = sorted(rows, key=lambda each: each.startswith("any"))
    lines = [f"| {each} | {', '.join(rows[each])} |" for each in order]
    table = "\n".join(["| who may call | calls |", "|---|---|", *lines, ""])
    text = (ROOT / "docs/threading.md").read_text()
    return re.sub(r"\| who may call \| calls \|\n(?:\|.*\n)+", table, text)


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
    return {"docs/threading.md": threads(headers)}

"""What docs/ has of the headers: which thread may make which call.
Pages, which say more of each reason and format than the headers do, are looked at for what they
lack.
"""

import re
from collections.abc import Iterator

from headers import ROOT, Headers


def short(headers: Headers, prefix: str) -> list[str]:
    return [each.name.removeprefix(f"ROUTECAP_{prefix}") for each in headers.group(prefix)]


# Who may make a call, by its mark @thread.
CALLERS = {
    "forward": "one thread at a time for each capturer (the forward path)",
    "decoder": "one thread at a time for each decoder",
    "sequence": "one thread at a time for each sequence",
    "any": "any thread: `{chapter}.h`",
}


def threads(headers: Headers) -> str:
    """The table of calls by thread."""
    lines = []
    for thread, caller in CALLERS.items():
        rows: dict[str, list[str]] = {}
        for each in headers.functions:
            if each.marked("thread") == thread:
                waits = " (waits)" if "waits" in each.marks else ""
                row = rows.setdefault(caller.format(chapter=each.chapter), [])
                row.append(f"`{each.short}`{waits}")
        lines += [f"| {row} | {', '.join(calls)} |" for row, calls in rows.items()]
    table = "\n".join(["| who may call | calls |", "|---|---|", *lines, ""])
    text = (ROOT / "docs/threading.md").read_text()
    return re.sub(r"\| who may call \| calls \|\n(?:\|.*\n)+", table, text)


def forgotten(headers: Headers) -> Iterator[str]:
    for page in ("docs/faq.md", "docs/load.md", "docs/format.md"):
        text = (ROOT / page).read_text()
        for name in short(headers, "MISSING_"):
            own = name.lower().replace("_", " ") if page == "docs/format.md" else name
            if not re.search(rf"\b{own}\b", text):
                yield f"ROUTECAP_MISSING_{name} is not in {page}"
    text = (ROOT / "docs/wire.md").read_text()
    for each in headers.constants:
        if "names" in each.marks and f"`{each.marks['names'].split(', ')[0]}`" not in text:
            yield f"{each.name} is not in docs/wire.md"


def files(headers: Headers) -> dict[str, str]:
    return {"docs/threading.md": threads(headers)}

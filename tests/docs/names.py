#!/usr/bin/env python3
"""Files, functions, constants, variables and options that the pages name in backticks are in the
tree, and so are the files and headings to which they link, and the suites that the map of the tests
names. A row of a table has as many cells as its heading. Prints what is not so, and exits with 1.
usage: names.py, in the project's root"""

import os
import re
import subprocess
import sys
from pathlib import Path

# Of other projects, gone (SECURITY.md says so), made by a build, or of a page's own example.
OTHERS = set(
    """
    --enable-eplb --radix-cache-backend --tokenizer-worker-num --weight-version --aux-output-config
    --moe-a2a-backend --cache-reuse request-17.json router_trace.py routecap_single.h
    build/soak.json routecap.1 first.py routecap_wire_decode_into
    """.split()
)
PAGES = [
    *("README.md CONTRIBUTING.md SECURITY.md tests/README.md examples/README.md".split()),
    "dev/generate/README.md",
    "dev/recipes.md",
    *map(str, sorted(Path("docs").glob("*.md"))),
    *map(str, sorted(Path("docs/guides").glob("*.md"))),
    *map(str, sorted(Path("bindings").glob("*/README.md"))),
    *map(str, sorted(Path("integrations").glob("*/*.md"))),
    *map(str, sorted(Path("integrations").glob("*/*/README.md"))),
    "tools/README.md",
    "packaging/README.md",
    *map(str, sorted(Path("lab").glob("*.md"))),
]
FILE = re.compile(r"(?:[\w.-]+/)*[\w-]+\.(?:py|sh|cc|h|c|cu|rs|go|md|json|txt|toml|map)")
NAME = re.compile(r"(?:routecap|ROUTECAP)_\w+")

tracked = subprocess.check_output(["git", "ls-files"], text=True).split("\n")[:-1]
names, options, stems = set(), set(), {}
for file in tracked:
    stems.setdefault(str(Path(file).parent), set()).update((Path(file).name, Path(file).stem))
    if file.endswith((".md", ".svg", ".json")) or not Path(file).is_file():
        continue
    text = Path(file).read_bytes().decode(errors="replace")
    names.update(re.findall(r"[A-Za-z_]\w*", text))
    options.update(re.findall(r"--[a-z][a-z0-9-]+", text))
basenames = {Path(file).name for file in tracked}


def is_there(said: str, page: str) -> bool:
    """Whether what a page says in backticks is there, as far as it is a name of ours."""
    if "NAME" in said:
        return True
    if program := re.match(r"(?:python3|bash|sh) ((?:[\w.-]+/)+[\w.-]+)(?= |$)", said):
        places = (Path(), Path(page).parent)  # the project's root, or the page's folder
        if not any((place / program[1]).exists() for place in places):
            return said in OTHERS
    ours = said.startswith(("bash tests", "routecap ", "python3 tests", "--"))
    found = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", said)) - OTHERS
    if said in OTHERS or ours and not found <= options:
        return said in OTHERS
    if setting := re.fullmatch(r"ROUTECAP_(?:VLLM|SGLANG)_(\w+)", said):
        return said in names or setting[1].lower() in names  # a field of Options
    if NAME.fullmatch(said.removesuffix("()")):
        return said.removesuffix("()") in names or any(each.startswith(said) for each in names)
    if re.fullmatch(r"routecap(\.\w+)+(\(\))?", said):
        return all(part in names for part in said.removesuffix("()").split(".")[1:])
    if FILE.fullmatch(said):
        return (
            Path(said).name in basenames
            if "/" not in said
            else any(each == said or each.endswith("/" + said) for each in tracked)
        )
    return True


def headings(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page, and those that stand in it as HTML."""
    text = page.read_text()
    titles = re.findall(r"^#+ (.*?) *#*$", re.sub(r"```.*?```", "", text, flags=re.S), re.M)
    titles = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", each).lower() for each in titles]
    anchors = {re.sub(r"[^\w\- ]", "", each).replace(" ", "-") for each in titles}
    return anchors | set(re.findall(r'(?:id|name)="([^"]+)"', text))


def leads(page: str, link: str) -> bool:
    """Whether a link of a page leads to a tracked file or folder, and a heading of it."""
    path, _, anchor = link.partition("#")
    if "://" in link or link.startswith("mailto:"):
        return True
    to = Path(os.path.normpath(Path(page).parent / path)) if path else Path(page)
    if not any(each == str(to) or each.startswith(f"{to}/") for each in tracked):
        return False
    return not anchor or to.suffix != ".md" or anchor in headings(to)


def crooked(page: str) -> list[str]:
    """Rows of tables that do not have the cells of their heading: a | in code ends a cell too."""
    found, cells = [], 0
    text = re.sub(
        r"```.*?```", lambda code: "\n" * code[0].count("\n"), Path(page).read_text(), flags=re.S
    )
    for number, line in enumerate(text.split("\n"), 1):
        count = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
        cells = cells if cells and count else count
        if count != cells:
            found.append(f"{page}:{number}: {count - 1} cells in a table of {cells - 1}")
    return found


def suites() -> list[str]:
    """Those that the map of the tests names, and tests/run.sh has not."""
    listed = subprocess.check_output(["bash", "tests/run.sh", "--list"], text=True)
    known = {line.split()[0] for line in listed.splitlines() if line.strip()}
    named = set()
    for phrase in re.findall(r"\bsuites? (`[^|;.:]*)", Path("tests/README.md").read_text()):
        named.update(re.findall(r"`([a-z][a-z-]+)`", phrase))
    return [f"tests/README.md: there is no suite {each}" for each in sorted(named - known)]


def main() -> int:
    missing = [line for page in PAGES for line in crooked(page)] + suites()
    for page in PAGES:
        for link in sorted(set(re.findall(r"\]\(([^)\s]+)\)", Path(page).read_text()))):
            if not leads(page, link):
                missing.append(f"{page}: {link} leads nowhere")
    for page in PAGES:
        text = re.sub(r"```.*?```", "", Path(page).read_text(), flags=re.S)
        for said in sorted(set(re.findall(r"`([^`\n]+)`", text))):
            if not is_there(said, page):
                missing.append(f"{page}: there is no {said}")
    # What architecture.md says is in a room.
    for folder, said in re.findall(
        r"^\| `(src/\w+)/` \|[^|]*\|(.*)\|$", Path("docs/architecture.md").read_text(), re.M
    ):
        there = {each for place in stems if place.startswith(folder) for each in stems[place]}
        there |= {Path(place).name for place in stems if place.startswith(folder)}
        for name in re.findall(r"`(\w+)/?`", said):
            if name not in there:
                missing.append(f"docs/architecture.md: there is no {name} in {folder}")
    print("\n".join(missing))
    return bool(missing)


sys.exit(main())

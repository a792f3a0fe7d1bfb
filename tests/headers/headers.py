"""The headers as a reader has them: headers.py FOLDER, the folder of routecap.h.

Prints what is wrong. Lines of every file there end at 100 columns. A function has a comment that
names each of its parameters once, in their order, with a direction. routecap.h includes every
chapter and has it in its list. What is experimental is declared where that is asked for.

headers.py FOLDER --first-page FILE    writes the program of the first page of routecap.h
headers.py FOLDER --runs PROGRAM       fails if that, compiled, does not print what the page says
"""

import re
import subprocess
import sys
from pathlib import Path

COLUMNS = 100


def parameters(declaration):
    """The names of a function's parameters."""
    inside = declaration[declaration.index("(") + 1 : declaration.rindex(")")]
    return [] if inside == "void" else [re.findall(r"\w+", each)[-1] for each in inside.split(",")]


def documented(text):
    """Each function with the parameters that it has and those that its comment names."""
    for match in re.finditer(r"^ROUTECAP_API [^;]*?(routecap_\w+)\([^;]*;", text, re.MULTILINE):
        before = text[: match.start()].rstrip("\n")
        comment = before[before.rindex("/*") :] if before.endswith("*/") else ""
        named = re.findall(r"^ \* @param\[(?:in|out|in,out)\] (\w+) +\S", comment, re.MULTILINE)
        yield match[1], parameters(match[0]), named, comment.startswith("/**\n * ")


def problems(folder):
    root = (folder / "routecap.h").read_text()
    chapters = sorted((folder / "routecap").glob("*.h"))
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if len(line) > COLUMNS:
                yield f"{path}:{number}: {len(line)} columns"
    for path in chapters:
        if f'#include "routecap/{path.name}"\n' not in root:
            yield f"{path}: routecap.h does not include it"
        if not re.search(rf"^ \* +routecap/{path.name} ", root, re.MULTILINE):
            yield f"{path}: it is not in the list of chapters in routecap.h"
        text = path.read_text()
        if "experimental" in text.split(":")[0]:
            for match in re.finditer("^ROUTECAP_API", text, re.MULTILINE):
                before = text[: match.start()]
                if before.rfind("#ifdef ROUTECAP_EXP") <= before.rfind("#endif /* ROUTECAP_EXP"):
                    yield f"{path}: a function is declared without ROUTECAP_EXPERIMENTAL"
        for function, has, named, begins in documented(text):
            if not begins:
                yield f"{path}: {function} has no comment"
            elif has != named:
                yield f"{path}: {function} has the parameters {has}, its comment {named}"


def first_page(folder):
    """The program of the first page, and what it prints."""
    text = (folder / "routecap.h").read_text()
    found = re.search(r"^ \*     #include <routecap.h>\n( \*(     .*)?\n)+", text, re.MULTILINE)
    lines = [line[len(" *     ") :] for line in found[0].splitlines()]
    return "\n".join(lines) + "\n", re.search(r'It prints "([^"]*)"', text)[1] + "\n"


if __name__ == "__main__":
    if sys.argv[2:3] == ["--first-page"]:
        Path(sys.argv[3]).write_text(first_page(Path(sys.argv[1]))[0])
        sys.exit()
    if sys.argv[2:3] == ["--runs"]:
        ran = subprocess.run([sys.argv[3]], capture_output=True, text=True)
        print(ran.stdout, ran.stderr, end="")
        sys.exit(ran.returncode != 0 or ran.stdout != first_page(Path(sys.argv[1]))[1])
    found = list(problems(Path(sys.argv[1])))
    for each in found:
        print(each)
    sys.exit(len(found) > 0)

"""Makes Doxygen see the comments of a header: doxygen_filter.py HEADER, to standard output.

The headers say `/* ... */` as C programmers do; Doxygen looks at `/** ... */` and `/**< ... */`
alone. By where a comment stands:

    beside a field or a constant      it documents that
    above a struct                    it documents that
    above constants                   it is the title of their group, which ends at an empty line
    by itself                         it belongs to the chapter: the file's description

Lines of = or - around a title make a heading. A mark such as @rank(3) is shown as [rank 3].
"""

import re
import sys

COMMENT = re.compile(r"/\*(?!\*)(.*?)\*/", re.S)
MARK = re.compile(r"(?<![`\w])@(?!(?:param|return)\b)(\w+)(?:\(([^)]*)\))?:?")
RULED = re.compile(r"^( \* )[-=]{4,}\n \* (\S.*)\n \* [-=]{4,}$", re.M)


def laid_out(text: str) -> str:
    """Lines laid out by hand stay as they are: indented, behind an empty line or a colon, no list."""
    made: list[str] = []
    inside = False
    lines = text.split("\n")
    for previous, line in zip(["", *lines], lines):
        indented = re.match(r" \*   +(?!- |\d+\. )\S", line) is not None
        if inside and not indented and line.strip() != "*":
            made.append("@endverbatim")
            inside = False
        elif not inside and indented and (previous.strip() == "*" or previous.endswith(":")):
            made.append(" * @verbatim")
            inside = True
        made.append(line.removeprefix(" *   ").removeprefix(" *") if inside else line)
    return "\n".join(made)


def comment(text: str, before: str, after: str) -> str:
    """What becomes of one comment, between what is before it and what is after it."""
    if before.rpartition("\n")[2].strip():
        return f"/**<{text}*/"
    if re.match(r"\n[ \t]+\S", after) or re.match(r"[\s*]*[-=]{4}", text) and text.count("\n") < 4:
        return f"/*{text}*/"
    if re.match(r"\n(typedef|struct)\b", after):
        return f"/**{laid_out(text)}*/"
    if re.match(r"\n#define\b", after):
        title, _, rest = re.sub(r"\s*\n \*\s*", " ", text).strip().partition(". ")
        return f"/** @name {title.rstrip('.')}\n * {rest}\n * @{{ */"
    return f"/** @file\n * @details\n *{laid_out(text)}*/"


def converted(source: str) -> str:
    source = re.sub(r"^ \* @thread", " *\n * @thread", source, flags=re.M)
    source = MARK.sub(lambda mark: f"[{' '.join(filter(None, mark.groups()))}]", source)
    source = RULED.sub(r"\1**\2**\n\1", source)
    source = re.sub(r"@param (\w+), (\w+) ", r"@param \1 As the next.\n * @param \2 ", source)
    made, at = [], 0
    for match in COMMENT.finditer(source):
        made += [
            source[at : match.start()],
            comment(match[1], source[: match.start()], source[match.end() :]),
        ]
        at = match.end()
    text = "".join([*made, source[at:]])
    return re.sub(r"@\{ \*/\n(.*?)\n(?=\n)", r"@{ */\n\1\n/** @} */\n", text, flags=re.S)


with open(sys.argv[1], encoding="utf-8") as header:
    sys.stdout.write(converted(header.read()))

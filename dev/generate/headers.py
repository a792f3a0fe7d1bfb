"""The declarations of the headers, read from their text.

The headers keep to one layout, which this relies on: a constant is one #define, a struct has one
field a line, a function begins with ROUTECAP_API, and what is said of one stands before it or on
the rest of its line. A line that fits none of these is an error, so that nothing is overlooked.

Facts that are no declarations of C are marks in comments, such as @rank(3): see README.md. Nothing
is read from the sentences of a comment. They are documentation, and go where documentation goes.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[2]

# Bytes of the types that fields have; pointers have 8.
SIZES = {"uint8_t": 1, "int32_t": 4, "uint32_t": 4, "float": 4, "int64_t": 8, "uint64_t": 8}
SIZES |= {"size_t": 8}

# A mark, as it stands in a comment. What stands in backticks is text about marks; @param and
# @return are Doxygen's.
MARK = re.compile(r"(?<![`\w])@(?!(?:param|return)\b)(\w+)(?:\(([^)]*)\))?:?")

# What a function that returns a status has in front of it.
NODISCARD = "ROUTECAP_NODISCARD"

# The marks and what is in their brackets; None: they have none.
THREADS = r"any|forward|sequence|decoder"
MARKS = {
    "success": None,
    "text": None,
    "rank": r"[1-9]\d*",
    "of_cell": None,
    "of_row": None,
    "bytes": r"[1-9]\d*",
    "names": r"[\w.]+(, [\w.-]+)*",
    "number": None,
    "one_of": r"ROUTECAP_\w+_\*",
    "any_of": r"ROUTECAP_\w+_\*",
    "handle": None,
    "counted": None,
    "after": r"\w+",
    "computed": None,
    "thread": THREADS,
    "waits": None,
}


def stop(where: str, what: str) -> NoReturn:
    raise SystemExit(f"generate: {where}: {what}")


def words(comment: str) -> str:
    """A comment as one line of words, without its marks."""
    inside = comment.strip().removeprefix("/**").removeprefix("/*").removesuffix("*/")
    return " ".join(MARK.sub(" ", re.sub(r"^ *\* ?", "", inside, flags=re.MULTILINE)).split())


@dataclass
class Said:
    """What is said of a declaration."""

    name: str
    where: str  # such as base.h:212, with its name
    comment: str  # without marks
    marks: dict[str, str]

    def marked(self, mark: str) -> str:
        """What is in the brackets of a mark that it must have."""
        if mark not in self.marks:
            stop(self.where, f"it has no @{mark}")
        return self.marks[mark]

    def one(self, marks: list[str]) -> str:
        """The one that it has of some marks."""
        has = [each for each in marks if each in self.marks]
        if len(has) != 1:
            stop(self.where, f"it needs one of {', '.join(f'@{each}' for each in marks)}")
        return has[0]

    def only(self, marks: list[str]) -> None:
        for each in self.marks:
            if each not in marks:
                stop(self.where, f"@{each} is no mark of this")


@dataclass
class Constant(Said):
    text: str  # as it is written: 1u, (-100), 0xFFull
    block: str  # the comment above the constants that stand together

    @property
    def value(self) -> int:
        return int(re.sub(r"(?i)u?l*$", "", self.text.strip("()")), 0)


@dataclass
class Kind(Said):
    """An integer by another name: typedef int32_t routecap_role; /* @one_of(ROUTECAP_ROLE_*) */"""

    integer: str
    flags: bool = False
    prefix: str = ""  # of its constants; "" if it has none


@dataclass
class Field(Said):
    type: str
    size: int

    @property
    def pointer(self) -> bool:
        return "*" in self.type


@dataclass
class Struct:
    name: str
    fields: list[Field] = field(default_factory=list)

    @property
    def short(self) -> str:
        return self.name.removeprefix("routecap_")

    @property
    def sized(self) -> bool:
        """Whether it says its own size; otherwise it is an element of arrays."""
        return self.fields[0].name == "struct_size"

    def offsets(self) -> list[int]:
        """Of each field, and at the end the size of all."""
        offsets, at = [], 0
        for each in self.fields:
            at = -(-at // each.size) * each.size
            offsets.append(at)
            at += each.size
        most = max(each.size for each in self.fields)
        return [*offsets, -(-at // most) * most]


@dataclass
class Parameter:
    type: str
    name: str


@dataclass
class Function(Said):
    returns: str
    parameters: list[Parameter]
    chapter: str

    @property
    def short(self) -> str:
        return self.name.removeprefix("routecap_")


def split_type(declaration: str) -> tuple[str, str]:
    """The type and the name of a field or parameter."""
    match = re.fullmatch(r"(.*?)(\w+)", " ".join(declaration.split()))
    assert match, declaration
    return match[1].strip(), match[2]


class Text:
    """The lines of a chapter, one after another."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines = path.read_text().splitlines()
        self.number = 0

    def __iter__(self) -> Iterator[str]:
        while self.number < len(self.lines):
            yield self.next()

    def next(self) -> str:
        if self.number == len(self.lines):
            stop(self.path.name, "it ends within a declaration or comment")
        self.number += 1
        return self.lines[self.number - 1]

    def until(self, line: str, complete: Callable[[str], bool], between: str = " ") -> str:
        """The line with as many of the next as it takes."""
        while not complete(line):
            line += between + (self.next() if between == "\n" else self.next().strip())
        return line

    def commented(self, comment: str) -> str:
        """The comment on the rest of a line, with the lines on which it goes on."""
        return self.until(comment.strip(), lambda text: not text or text.endswith("*/"))


class Headers:
    def __init__(self, folder: Path = ROOT / "include") -> None:
        self.folder = folder
        root = (folder / "routecap.h").read_text()
        self.chapters = re.findall(r'^#include "routecap/(\w+)\.h"$', root, re.MULTILINE)
        self.constants: list[Constant] = []
        self.kinds: dict[str, Kind] = {}
        self.structs: list[Struct] = []
        self.functions: list[Function] = []
        for name in self.chapters:
            self._read(name, Text(folder / "routecap" / f"{name}.h"))
        self._check()

    def chapter(self, name: str) -> str:
        return (self.folder / "routecap" / f"{name}.h").read_text()

    def _read(self, chapter: str, text: Text) -> None:
        above = ""  # the comment before what comes next
        together = False  # the last line was a constant
        for line in text:
            number = text.number
            said = lambda name, comment: self._said(text.path, number, name, comment)
            if line.startswith("/*"):
                comment = text.until(line, lambda text: text.endswith("*/"), "\n")
                function = text.number < len(text.lines) and text.lines[text.number].startswith(
                    "ROUTECAP_API "
                )
                if not function:
                    self._unmarked(text.path, number, comment)
                above = "" if "=====" in comment else comment
                together = False
                continue
            if match := re.match(r"#define (ROUTECAP_\w+) +(\S+)(.*)", line):
                comment = text.commented(match[3])
                if match[1] not in ("ROUTECAP_API", NODISCARD):
                    self.constants.append(
                        Constant(*said(match[1], comment), match[2], words(above))
                    )
                together = True
                continue
            if not line.strip() and together:
                above = ""
            if match := re.match(r"typedef (\w+) (routecap_\w+);(.*)$", line):
                self._kind(Kind(*said(match[2], text.commented(match[3])), match[1]))
            elif match := re.match(r"typedef struct (routecap_\w+) \{$", line):
                self._struct(Struct(match[1]), text)
            elif line.startswith("ROUTECAP_API "):
                line = text.until(line, lambda text: text.endswith(";"))
                match = re.fullmatch(r"ROUTECAP_API (.*?)(routecap_\w+)\((.*)\);", line)
                if match is None:
                    stop(f"{text.path.name}:{number}", f"no function that is understood: {line}")
                returns = match[1].strip()
                if (returns.removeprefix(f"{NODISCARD} ") == "routecap_status") != (
                    returns.startswith(NODISCARD)
                ):
                    stop(
                        f"{text.path.name}:{number}: {match[2]}",
                        f"{NODISCARD} is of functions that return a status, and of each of them",
                    )
                inside = [] if match[3] == "void" else match[3].split(",")
                parameters = [Parameter(*split_type(each)) for each in inside]
                self.functions.append(
                    Function(
                        *said(match[2], above),
                        returns.removeprefix(f"{NODISCARD} "),
                        parameters,
                        chapter,
                    )
                )
                above = ""
            elif not re.match(r"(#|typedef |struct |extern |\}|$)", line):
                stop(f"{text.path.name}:{number}", f"no declaration that is understood: {line}")
            else:
                self._unmarked(text.path, number, line)

    def _said(
        self, path: Path, number: int, name: str, comment: str
    ) -> tuple[str, str, str, dict[str, str]]:
        """What is said of the declaration of this name, which begins in this line."""
        where = f"{path.name}:{number}: {name}"
        marks: dict[str, str] = {}
        for match in MARK.finditer(comment):
            mark, inside = match[1], match[2] and " ".join(match[2].split())
            if mark not in MARKS:
                stop(where, f"there is no mark @{mark}")
            if mark in marks:
                stop(where, f"it has two @{mark}")
            pattern = MARKS[mark]
            if (inside is None) != (pattern is None) or (
                pattern is not None and not re.fullmatch(pattern, inside)
            ):
                needs = "nothing in brackets" if pattern is None else f"({pattern})"
                stop(where, f"@{mark} needs {needs}")
            marks[mark] = inside or ""
        return name, where, words(comment), marks

    def _unmarked(self, path: Path, number: int, comment: str) -> None:
        """In a comment that belongs to no member a mark would be overlooked."""
        if match := MARK.search(comment):
            number += comment[: match.start()].count("\n")
            stop(f"{path.name}:{number}", f"{match[0]} belongs to no constant, field or function")

    def _kind(self, kind: Kind) -> None:
        kind.only(["one_of", "any_of", "handle"])
        mark = kind.one(["one_of", "any_of", "handle"])
        kind.prefix = kind.marks[mark].removesuffix("*")
        kind.flags = mark == "any_of"
        self.kinds[kind.name] = kind

    def _struct(self, struct: Struct, text: Text) -> None:
        for line in text:
            number = text.number
            if line.startswith("}"):
                break
            if line.lstrip().startswith("/*"):  # of the fields that follow
                comment = text.until(line, lambda text: text.endswith("*/"), "\n")
                self._unmarked(text.path, number, comment)
                continue
            line = text.until(line, lambda text: ";" in text)
            declaration, _, comment = line.partition(";")
            comment = text.commented(comment)
            if struct.name == "routecap_api":
                self._unmarked(text.path, number, comment)
                continue
            type, name = split_type(declaration)
            integer = self.kinds[type].integer if type in self.kinds else type
            said = self._said(text.path, number, f"{struct.name}.{name}", comment)
            struct.fields.append(Field(name, *said[1:], type, 8 if "*" in type else SIZES[integer]))
        if struct.name != "routecap_api":
            self.structs.append(struct)

    # ---- Each has the marks that it needs, and no other

    def _check(self) -> None:
        for each in self.constants:
            self._check_constant(each)
        for struct in self.structs:
            for each in struct.fields:
                each.only(["counted", "after", "computed"] if struct.short == "stats" else [])
        for each in self.functions:
            each.only(["thread", "waits"])
            each.marked("thread")
        _ = self.counters, self.reasons_best_first

    def _check_constant(self, constant: Constant) -> None:
        """By what it is a constant of."""
        kind = self.kind_of(constant)
        if constant.name.startswith("ROUTECAP_VERSION_"):
            constant.only([])
        elif kind is None:
            mark = constant.one(["success", "number"])
            constant.only([mark, *(["text"] if mark == "success" else [])])
        elif kind.name == "routecap_reason":
            constant.only(["rank", "of_cell", "of_row"])
            constant.one(["of_cell", "of_row"])
        elif kind.name == "routecap_dtype":
            constant.only(["bytes"])
            constant.marked("bytes")
        elif kind.name == "routecap_wire_format" and constant.value > 0:  # 0 is no format
            constant.only(["names"])
            constant.marked("names")
        else:
            constant.only([])

    # ---- What belongs together

    def kind_of(self, constant: Constant) -> Kind | None:
        """That of the longest prefix that fits."""
        kinds = [each for each in self.kinds.values() if each.prefix]
        fitting = [each for each in kinds if constant.name.startswith(each.prefix)]
        return max(fitting, key=lambda each: len(each.prefix), default=None)

    def struct(self, short: str) -> Struct:
        return next(each for each in self.structs if each.short == short)

    def group(self, prefix: str) -> list[Constant]:
        """The constants of one prefix, by their values."""
        full = f"ROUTECAP_{prefix}"
        found = []
        for each in self.constants:
            kind = self.kind_of(each)
            if kind is not None and kind.prefix == full:
                found.append(each)
        return sorted(found, key=lambda each: abs(each.value))

    @cached_property
    def statuses(self) -> list[Constant]:
        """Those that are marked as success, and the errors."""
        success = [each for each in self.constants if "success" in each.marks]
        return sorted(success, key=lambda each: each.value) + self.group("ERR_")

    @cached_property
    def reasons_best_first(self) -> list[Constant]:
        """By their rank: where a cell has two reasons, the one of the higher rank stands."""
        reasons = self.group("MISSING_")
        ranks: dict[int, Constant] = {}
        for number, each in enumerate(reasons, 1):
            if each.value != number:
                stop(each.where, f"reasons are numbered 1, 2, 3, ...: this is not {number}")
            rank = int(each.marked("rank"))
            if rank in ranks:
                stop(each.where, f"{ranks[rank].name} has @rank({rank}) too")
            ranks[rank] = each
        return [ranks[rank] for rank in sorted(ranks, reverse=True)]

    @cached_property
    def counters(self) -> list[Field]:
        """The fields of routecap_stats that are counted, in an order in which they can be read: what
        is counted after another is read before it.
        """
        stats = self.struct("stats")
        fields = {each.name: each for each in stats.fields[1:]}
        waiting = {}
        for name, each in reversed(fields.items()):
            mark = each.one(["counted", "after", "computed"])
            if mark == "after" and "computed" in fields.get(each.marks[mark], each).marks:
                stop(each.where, f"{each.marks[mark]} is not counted")
            if mark == "after" and each.marks[mark] not in fields:
                stop(each.where, f"there is no field {each.marks[mark]}")
            if mark != "computed":
                waiting[name] = each
        order = []
        while waiting:
            causes = {each.marks.get("after") for each in waiting.values()}
            ready = next((each for name, each in waiting.items() if name not in causes), None)
            if ready is None:
                first = next(iter(waiting.values()))
                stop(first.where, "it is counted after itself")
            order.append(waiting.pop(ready.name))
        return order

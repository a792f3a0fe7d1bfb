"""The declarations of the headers, read from their text.

The headers keep to one layout, which this relies on: a constant is one #define, a struct has one
field a line, a function begins with ROUTECAP_API, and what is said of one stands before it or on
the rest of its line. A line that fits none of these is an error, so that nothing is overlooked.
"""

import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Bytes of the types that fields have; pointers have 8.
SIZES = {"uint8_t": 1, "int32_t": 4, "uint32_t": 4, "float": 4, "int64_t": 8, "uint64_t": 8}
SIZES |= {"size_t": 8}


@dataclass
class Constant:
    name: str
    text: str  # as it is written: 1u, (-100), 0xFFull
    comment: str
    block: str  # the comment above the constants that stand together

    @property
    def value(self) -> int:
        return int(re.sub(r"(?i)u?l*$", "", self.text.strip("()")), 0)


@dataclass
class Kind:
    """An integer by another name: typedef int32_t routecap_role; /* ROUTECAP_ROLE_* */"""

    name: str
    integer: str
    prefix: str  # of its constants; "" if it has none


@dataclass
class Field:
    type: str
    name: str
    comment: str
    size: int
    section: str  # the last comment above it on lines of its own

    @property
    def pointer(self) -> bool:
        return "*" in self.type


@dataclass
class Struct:
    name: str
    comment: str
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
class Function:
    name: str
    returns: str
    parameters: list[Parameter]
    comment: str
    chapter: str = ""

    @property
    def short(self) -> str:
        return self.name.removeprefix("routecap_")


def words(comment: str) -> str:
    """A comment as one line of words."""
    inside = comment.strip().removeprefix("/**").removeprefix("/*").removesuffix("*/")
    return " ".join(re.sub(r"^ *\* ?", "", inside, flags=re.MULTILINE).split())


def split_type(declaration: str) -> tuple[str, str]:
    """The type and the name of a field or parameter."""
    match = re.fullmatch(r"(.*?)(\w+)", " ".join(declaration.split()))
    assert match, declaration
    return match[1].strip(), match[2]


class Headers:
    def __init__(self, folder: Path = ROOT / "include") -> None:
        self.folder = folder
        root = (folder / "routecap.h").read_text()
        self.chapters = re.findall(r'^#include "routecap/(\w+)\.h"$', root, re.MULTILINE)
        self.text = "".join(self.chapter(name) for name in self.chapters)
        self.constants: list[Constant] = []
        self.kinds: dict[str, Kind] = {}
        self.structs: list[Struct] = []
        self.functions: list[Function] = []
        for name in self.chapters:
            self._read(self.chapter(name))
            for each in self.functions:
                each.chapter = each.chapter or name

    def chapter(self, name: str) -> str:
        return (self.folder / "routecap" / f"{name}.h").read_text()

    def _read(self, text: str) -> None:
        above = ""  # the comment before what comes next
        together = False  # the last line was a constant
        lines = iter(text.splitlines())
        for line in lines:
            if line.startswith("/*"):
                while not line.endswith("*/"):
                    line += "\n" + next(lines)
                above = "" if "=====" in line else words(line)
                together = False
                continue
            if match := re.match(r"#define (ROUTECAP_\w+) +(\S+)(.*)", line):
                comment = match[3].strip()
                while comment and not comment.endswith("*/"):
                    comment += " " + next(lines).strip()
                if match[1] != "ROUTECAP_API":
                    self.constants.append(Constant(match[1], match[2], words(comment), above))
                together = True
                continue
            if not line.strip() and together:
                above = ""
            if match := re.match(
                r"typedef (\w+) (routecap_\w+);(?: /\* (?:any of )?(?:(ROUTECAP_\w+_)\*)?.*)?$",
                line,
            ):
                self.kinds[match[2]] = Kind(match[2], match[1], match[3] or "")
                continue
            if match := re.match(r"typedef struct (routecap_\w+) \{$", line):
                self._struct(Struct(match[1], above), lines)
            elif line.startswith("ROUTECAP_API "):
                while not line.endswith(";"):
                    line += " " + next(lines).strip()
                self._function(line, above)
            elif not re.match(r"(#|typedef |struct |extern |\}|$)", line):
                raise SystemExit(f"generate: no declaration that is understood: {line}")

    def _struct(self, struct: Struct, lines) -> None:
        section = ""
        for line in lines:
            if line.startswith("}"):
                break
            if line.lstrip().startswith("/*"):  # of the fields that follow
                while not line.endswith("*/"):
                    line += "\n" + next(lines)
                section = words(line)
                continue
            while ";" not in line:
                line += " " + next(lines).strip()
            declaration, _, comment = line.partition(";")
            comment = comment.strip()
            while comment and not comment.endswith("*/"):
                comment += " " + next(lines).strip()
            if struct.name != "routecap_api":
                type, name = split_type(declaration)
                struct.fields.append(self._field(type, name, words(comment), section))
        if struct.name != "routecap_api":
            self.structs.append(struct)

    def _field(self, type: str, name: str, comment: str, section: str) -> Field:
        integer = self.kinds[type].integer if type in self.kinds else type
        return Field(type, name, comment, 8 if "*" in type else SIZES[integer], section)

    def _function(self, line: str, comment: str) -> None:
        match = re.fullmatch(r"ROUTECAP_API (.*?)(routecap_\w+)\((.*)\);", line)
        if match is None:
            raise SystemExit(f"generate: no function that is understood: {line}")
        inside = [] if match[3] == "void" else match[3].split(",")
        parameters = [Parameter(*split_type(each)) for each in inside]
        self.functions.append(Function(match[2], match[1].strip(), parameters, comment))

    # ---- What belongs together

    def group(self, prefix: str) -> list[Constant]:
        """The constants of one prefix, by their values."""
        found = [each for each in self.constants if each.name.startswith(f"ROUTECAP_{prefix}")]
        return sorted(found, key=lambda each: abs(each.value))

    @cached_property
    def statuses(self) -> list[Constant]:
        """From ROUTECAP_OK to the first constant that is none."""
        names = [each.name for each in self.constants]
        begin = names.index("ROUTECAP_OK")
        rest = self.constants[begin:]
        end = next(n for n, each in enumerate(rest) if not (n < 6 or each.value < 0))
        return sorted(rest[:end], key=lambda each: abs(each.value))

    @cached_property
    def reasons_best_first(self) -> list[str]:
        """By the list in reading.h: where a cell has two reasons, the first of them stands."""
        known = {each.name.removeprefix("ROUTECAP_MISSING_") for each in self.group("MISSING_")}
        text = words(self.chapter("reading"))
        for match in re.finditer(r"[A-Z_]+(?:, [A-Z_]+){3,}", text):
            listed = match[0].split(", ")
            if set(listed) != known or len(listed) != len(known):
                odd = ", ".join(sorted(set(listed) ^ known))
                raise SystemExit(f"generate: reading.h's list of reasons, the best first: {odd}?")
            numbers = [each.value for each in self.group("MISSING_")]
            if numbers != list(range(1, len(known) + 1)):
                raise SystemExit("generate: the reasons are not numbered 1, 2, 3, ...")
            return listed
        raise SystemExit("generate: reading.h has no list of the reasons, the best first")

    @cached_property
    def reasons_of_cells(self) -> list[str]:
        """Those that are said of single cells; the others are of whole rows."""
        sentence = re.search(r"[^.]*single cells", self.group("MISSING_")[0].block)
        named = re.findall(r"[A-Z_]{2,}", sentence[0] if sentence else "")
        if not named or not set(named) <= set(self.reasons_best_first):
            raise SystemExit("generate: reading.h does not say which reasons are of single cells")
        return named

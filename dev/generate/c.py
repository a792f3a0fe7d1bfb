"""What the library and its tests in C and C++ have of the headers."""

import re
from collections.abc import Iterator

from headers import NODISCARD, ROOT, Function, Headers

OPENING = "Generated from the headers: run python3 dev/generate. Do not edit."
COLUMNS = 100


def wrapped(begin: str, parts: list[str], end: str) -> str:
    """The parts with commas, in lines that go on below the first part."""
    lines, line = [], begin
    for number, part in enumerate(parts):
        part += end if number == len(parts) - 1 else ","
        if len(line) + 1 + len(part) > COLUMNS:
            lines.append(line)
            line = " " * len(begin) + part
        else:
            line += part if line == begin else " " + part
    return "\n".join([*lines, line])


# ---- The function table and the version script


def entries(headers: Headers) -> list[str]:
    """The functions of the table, in the order of the chapters."""
    return [each.short for each in headers.functions if each.short != "get_api"]


def pointer(function: Function) -> str:
    types = [each.type for each in function.parameters] or ["void"]
    space = "" if function.returns.endswith("*") else " "
    checked = f"{NODISCARD} " if function.returns == "routecap_status" else ""
    return wrapped(f"    {checked}{function.returns}{space}(*{function.short})(", types, ");")


def table_header(headers: Headers) -> str:
    """table.h with every other chapter, and with every function of theirs."""
    text = headers.chapter("table")
    begin = text.index("    uint32_t minor;\n") + len("    uint32_t minor;\n")
    end = text.index("} routecap_api;")
    body = ""
    for chapter in headers.chapters:
        functions = [each for each in headers.functions if each.chapter == chapter]
        functions = [each for each in functions if each.short != "get_api"]
        if functions:
            body += f"    /* {chapter}.h */\n"
            body += "".join(pointer(each) + "\n" for each in functions)
    chapters = sorted(each.name for each in headers.folder.glob("routecap/*.h"))
    includes = "".join(f'#include "{each}"\n' for each in chapters if each != "table.h")
    text = text[:begin] + body + text[end:]
    return re.sub(r'(#include "\w+\.h"\n)+', includes, text, count=1)


def version(headers: Headers) -> str:
    """The name of the version that all symbols have."""
    number = {each.name: each.value for each in headers.constants}
    return "ROUTECAP_{ROUTECAP_VERSION_MAJOR}.{ROUTECAP_VERSION_MINOR}".format(**number)


def version_script(headers: Headers) -> str:
    names = sorted(["get_api", *entries(headers)])
    exported = "".join(f"    routecap_{name};\n" for name in names)
    return f"# {OPENING}\n{version(headers)} {{\n  global:\n{exported}  local:\n    *;\n}};\n"


def symbols(headers: Headers) -> str:
    names = sorted(["get_api", *entries(headers)])
    return "".join(f"routecap_{name}@@{version(headers)}\n" for name in names)


# ---- Lists for the preprocessor


def macro(name: str, comment: str, items: list[str]) -> str:
    body = " \\\n".join(f"    X({item})" for item in items)
    return f"// {comment}\n#define {name}(X) \\\n{body}\n\n"


def lists(headers: Headers) -> str:
    ranks = {each.name: n for n, each in enumerate(reversed(headers.reasons_best_first), 1)}
    flags = [each.name.removeprefix("ROUTECAP_CONFIG_") for each in headers.group("CONFIG_")]
    return (
        f"// {OPENING}\n"
        "// Lists of what the headers declare: X(...) is expanded for each.\n"
        "#pragma once\n\n"
        "// clang-format off\n"
        + macro("ROUTECAP_FUNCTIONS", "X(name), in the order of the table.", entries(headers))
        + macro("ROUTECAP_STATUSES", "X(ROUTECAP_NAME).", [each.name for each in headers.statuses])
        + macro(
            "ROUTECAP_REASONS",
            "X(NAME, rank, of_cells), by their numbers from 1 on. A cell with two reasons keeps\n"
            "// the one of the higher rank. of_cells: it is said of single cells of a row.",
            [
                f"{each.name.removeprefix('ROUTECAP_MISSING_')}, {ranks[each.name]}, "
                + ("true" if "of_cell" in each.marks else "false")
                for each in headers.group("MISSING_")
            ],
        )
        + macro("ROUTECAP_CONFIG_FLAGS", "X(NAME, name).", [f"{n}, {n.lower()}" for n in flags])
        + macro(
            "ROUTECAP_COUNTERS",
            "X(field): those of routecap_stats that are counted, effects before causes. The\n"
            "// others are computed when they are read.",
            [each.name for each in headers.counters],
        )
        + "// clang-format on\n"
    )


def array(name: str, items: list[str]) -> str:
    return wrapped(f"constexpr uint8_t {name}[] = {{", items, "};\n").replace("{ ", "{")


def test_lists(headers: Headers) -> str:
    best = headers.reasons_best_first
    of_rows = [each.name for each in best if "of_row" in each.marks]
    return (
        f"// {OPENING}\n"
        "// Why cells are missing, for tests.\n"
        "#pragma once\n\n#include <routecap.h>\n\n"
        "// Where a cell has two reasons, the one that stands first here is the cell's.\n"
        + array("kBestFirst", [each.name for each in best])
        + "// Those of whole rows that are not there.\n"
        + array("kOfRows", of_rows)
    )


def vector_fields(headers: Headers) -> str:
    text = (
        f"// {OPENING}\n"
        "// The fields of every struct, for filling it from a vector and for comparing it:\n"
        "// fields(struct, f) calls f(name, field) for each, but for struct_size, pointers and\n"
        "// requests; others(struct, f) for these two.\n"
        "#pragma once\n\n#include <routecap.h>\n\nnamespace vectors {\n\n"
        "#define FIELD(name) f(#name, s.name)\n\n"
    )
    for struct in headers.structs:
        names = [
            each.name
            for each in struct.fields
            if not each.pointer and each.type != "routecap_request" and each.name != "struct_size"
        ]
        others = [
            each.name for each in struct.fields if each.pointer or each.type == "routecap_request"
        ]
        for function, found in (("fields", names), ("others", others)):
            if found:
                calls = wrapped("    ", [f"FIELD({name})" for name in found], ";").replace(
                    "     F", "    F"
                )
                text += f"template <class F>\nvoid {function}({struct.name} &s, F &&f) {{\n"
                text += f"{calls}\n}}\n"
            elif not struct.short.startswith(("wire_", "plan_")):
                text += f"template <class F>\nvoid {function}({struct.name} &, F &&) {{}}\n"
    return text + "\n#undef FIELD\n\n}  // namespace vectors\n"


# ---- What the ABI promises


def layout(headers: Headers) -> str:
    """layout.txt: the value of every constant, and the offset of every field."""
    is_so: dict[str, int] = {}
    for each in headers.constants:
        if not each.name.startswith("ROUTECAP_VERSION_"):
            is_so[each.name] = each.value
    for struct in headers.structs:
        *offsets, size = struct.offsets()
        is_so[struct.name] = size
        is_so |= {f"{struct.name}.{f.name}": at for f, at in zip(struct.fields, offsets)}
    names = entries(headers)
    is_so |= {"routecap_api.size": 0, "routecap_api.major": 8, "routecap_api.minor": 12}
    is_so |= {f"routecap_api.{name}": 16 + 8 * at for at, name in enumerate(names)}
    is_so["routecap_api"] = 16 + 8 * len(names)
    return "".join(
        f"{what} {value}{'u' if value >= 2**63 else ''}\n" for what, value in is_so.items()
    )


def forgotten(headers: Headers) -> Iterator[str]:
    """What compiles without: a count that is 0 for ever, and a format that is none."""
    counted = (ROOT / "src/capture/capturer.cc").read_text()
    for each in headers.struct("stats").fields[1:]:
        if "computed" in each.marks and not re.search(rf"\bout\.{each.name}\b", counted):
            yield f"routecap_stats.{each.name} is not set in src/capture/capturer.cc"
    formats = (ROOT / "src/wire/format.cc").read_text()
    for each in headers.constants:
        if "names" in each.marks:
            line = re.search(rf'{{{each.name},[^"]*"(.*?)",\s+"(.*?)",\s+"(.*?)",', formats)
            names = [name for part in line.groups() for name in part.split()] if line else []
            if names != each.marks["names"].split(", "):
                yield f"{each.name} is not in src/wire/format.cc with the names of its mark"


def files(headers: Headers) -> dict[str, str]:
    return {
        "include/routecap/table.h": table_header(headers),
        "src/routecap.map": version_script(headers),
        "src/base/declared.h": lists(headers),
        "tests/support/declared.h": test_lists(headers),
        "tests/vectors/fields.h": vector_fields(headers),
        "tests/abi/symbols.txt": symbols(headers),
        "tests/abi/layout.txt": layout(headers),
    }

"""What the library and its tests in C and C++ have of the headers."""

import re
from collections.abc import Iterator

from headers import ROOT, Function, Headers

OPENING = "Generated from the headers: run python3 include/generate. Do not edit."
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


def since(headers: Headers) -> dict[str, str]:
    """The version of each function in the order of the table. What is declared and not in the table
    comes at its end, under the version of the headers.
    """
    number = {each.name: each.value for each in headers.constants}
    now = f"{number['ROUTECAP_VERSION_MAJOR']}.{number['ROUTECAP_VERSION_MINOR']}"
    declared = {each.short for each in headers.functions} - {"get_api"}
    found, version = {}, "1.0"
    body = table(headers)
    for match in re.finditer(r"/\* Since (\d+\.\d+)\. \*/|\(\*(\w+)\)\(", body):
        if match[1]:
            version = match[1]
        elif match[2] in declared:
            found[match[2]] = version
        else:
            raise SystemExit(f"generate: table.h has {match[2]}, which no chapter declares")
    for each in headers.functions:
        if each.short in declared:
            found.setdefault(each.short, now)
    return found


def table(headers: Headers) -> str:
    """The entries of the function table, as they stand."""
    text = headers.chapter("table")
    return text[text.index("    uint32_t minor;\n") + 20 : text.index("} routecap_api;")]


def pointer(function: Function) -> str:
    types = [each.type for each in function.parameters] or ["void"]
    space = "" if function.returns.endswith("*") else " "
    return wrapped(f"    {function.returns}{space}(*{function.short})(", types, ");")


def table_header(headers: Headers) -> str:
    """table.h with every other chapter, and the functions that are declared and not in it. Entries
    never change: what the chapters declare otherwise does not compile in src/api/table.cc.
    """
    body = table(headers)
    functions = {each.short: each for each in headers.functions}
    versions = re.findall(r"Since (\d+\.\d+)", body)
    added = ""
    for name, came in since(headers).items():
        if f"(*{name})(" not in body:
            if came != versions[-1]:
                versions.append(came)
                added += f"    /* Since {came}. */\n"
            added += pointer(functions[name]) + "\n"
    text = headers.chapter("table").replace(body, body + added)
    chapters = sorted(each.name for each in headers.folder.glob("routecap/*.h"))
    includes = "".join(f'#include "{each}"\n' for each in chapters if each != "table.h")
    return re.sub(r'(#include "\w+\.h"\n)+', includes, text, count=1)


def version_script(headers: Headers) -> str:
    versions: dict[str, list[str]] = {}
    for name, came in {"get_api": "1.0", **since(headers)}.items():
        versions.setdefault(came, []).append(name)
    text, before = f"# {OPENING}\n", ""
    for version, names in versions.items():
        text += f"ROUTECAP_{version} {{\n  global:\n"
        text += "".join(f"    routecap_{name};\n" for name in sorted(names))
        text += "" if before else "  local:\n    *;\n"
        text += f"}}{before};\n"
        before = f" ROUTECAP_{version}"
    return text


def symbols(headers: Headers) -> str:
    every = {"get_api": "1.0", **since(headers)}
    return "".join(f"routecap_{name}@@ROUTECAP_{every[name]}\n" for name in sorted(every))


# ---- Lists for the preprocessor


def macro(name: str, comment: str, items: list[str]) -> str:
    body = " \\\n".join(f"    X({item})" for item in items)
    return f"// {comment}\n#define {name}(X) \\\n{body}\n\n"


def lists(headers: Headers) -> str:
    best = headers.reasons_best_first
    reasons = [each.name.removeprefix("ROUTECAP_MISSING_") for each in headers.group("MISSING_")]
    flags = [each.name.removeprefix("ROUTECAP_CONFIG_") for each in headers.group("CONFIG_")]
    return (
        f"// {OPENING}\n"
        "// Lists of what the headers declare: X(...) is expanded for each.\n"
        "#pragma once\n\n"
        "// clang-format off\n"
        + macro("ROUTECAP_FUNCTIONS", "X(name), in the order of the table.", list(since(headers)))
        + macro("ROUTECAP_STATUSES", "X(ROUTECAP_NAME).", [each.name for each in headers.statuses])
        + macro(
            "ROUTECAP_REASONS",
            "X(NAME, rank, of_cells), by their numbers from 1 on. A cell with two reasons keeps\n"
            "// the one of the higher rank. of_cells: it is said of single cells of a row.",
            [
                f"{name}, {len(best) - best.index(name)}, "
                + ("true" if name in headers.reasons_of_cells else "false")
                for name in reasons
            ],
        )
        + macro("ROUTECAP_CONFIG_FLAGS", "X(NAME, name).", [f"{n}, {n.lower()}" for n in flags])
        + macro(
            "ROUTECAP_COUNTERS",
            "X(field): those of routecap_stats that are counted, effects before causes. The\n"
            "// others are sums over layers, or say what is there now.",
            counters(headers)[::-1],
        )
        + "// clang-format on\n"
    )


def counters(headers: Headers) -> list[str]:
    structs = {each.short: each for each in headers.structs}
    of_layers = [f"cells_{each.name}" for each in structs["layer_stats"].fields]
    return [
        each.name
        for each in structs["stats"].fields[1:]
        if each.section != "Now." and each.name not in of_layers
    ]


def array(name: str, items: list[str]) -> str:
    return wrapped(f"constexpr uint8_t {name}[] = {{", items, "};\n").replace("{ ", "{")


def test_lists(headers: Headers) -> str:
    best = headers.reasons_best_first
    of_rows = [name for name in best if name not in headers.reasons_of_cells]
    full = [f"ROUTECAP_MISSING_{name}" for name in best]
    return (
        f"// {OPENING}\n"
        "// Why cells are missing, for tests.\n"
        "#pragma once\n\n#include <routecap.h>\n\n"
        "// Where a cell has two reasons, the one that stands first here is the cell's.\n"
        + array("kBestFirst", full)
        + "// Those of whole rows that are not there.\n"
        + array("kOfRows", [f"ROUTECAP_MISSING_{name}" for name in of_rows])
    )


def vector_fields(headers: Headers) -> str:
    text = (
        f"// {OPENING}\n"
        "// The fields of every struct, for filling it from a vector and for comparing it:\n"
        "// fields(struct, f) calls f(name, field) for each, but for struct_size, pointers and\n"
        "// requests.\n"
        "#pragma once\n\n#include <routecap.h>\n\nnamespace vectors {\n\n"
        "#define FIELD(name) f(#name, s.name)\n\n"
    )
    for struct in headers.structs:
        names = [
            each.name
            for each in struct.fields
            if not each.pointer and each.type != "routecap_request" and each.name != "struct_size"
        ]
        if names:
            calls = wrapped("    ", [f"FIELD({name})" for name in names], ";").replace(
                "     F", "    F"
            )
            text += f"template <class F>\nvoid fields({struct.name} &s, F &&f) {{\n{calls}\n}}\n"
    return text + "\n#undef FIELD\n\n}  // namespace vectors\n"


# ---- What the ABI promises


def layout(headers: Headers) -> str:
    """layout.txt, with what it says nothing of added, and larger sizes of structs that grew. Where
    it says otherwise than the headers, the ABI was changed.
    """
    is_so: dict[str, int] = {}
    for each in headers.constants:
        if not each.name.startswith("ROUTECAP_VERSION_"):
            is_so[each.name] = each.value
    for struct in headers.structs:
        *offsets, size = struct.offsets()
        is_so[struct.name] = size
        is_so |= {f"{struct.name}.{f.name}": at for f, at in zip(struct.fields, offsets)}
    names = ["size", "major", "minor", *since(headers)]
    offsets = [0, 8, 12, *range(16, 16 + 8 * len(names), 8)]
    is_so |= {f"routecap_api.{name}": at for name, at in zip(names, offsets)}
    is_so["routecap_api"] = 16 + 8 * (len(names) - 3)
    text = (ROOT / "tests/abi/layout.txt").read_text()
    said = dict(line.split() for line in text.splitlines())
    for what, value in is_so.items():
        was = int(said.get(what, str(value)).removesuffix("u"))
        if was < value and re.fullmatch(r"routecap_\w+", what):
            said[what] = str(value)
        elif was != value:
            raise SystemExit(
                f"generate: tests/abi/layout.txt has {what} {was}; the headers have {value}"
            )
        else:
            said.setdefault(what, f"{value}u" if value >= 2**63 else str(value))
    return "".join(f"{what} {value}\n" for what, value in said.items())


def forgotten(headers: Headers) -> Iterator[str]:
    """What compiles without: a count that is 0 for ever, and a format that is none."""
    counted = (ROOT / "src/capture/capturer.cc").read_text()
    stats = next(each for each in headers.structs if each.short == "stats")
    listed = counters(headers)
    for each in stats.fields[1:]:
        if each.name not in listed and not re.search(rf"\bout\.{each.name}\b", counted):
            yield f"routecap_stats.{each.name} is not set in src/capture/capturer.cc"
    formats = (ROOT / "src/wire/format.cc").read_text()
    for each in headers.constants:
        if re.match(r'"[\w.]+":', each.comment) and f"{{{each.name}," not in formats:
            yield f"{each.name} is not in src/wire/format.cc"


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

"""How the vectors' calls are made in C: tests/vectors/calls.h.

The signature of a function says all: which arguments it has, and what of them a vector gives and
expects. The classes are those of tests/vectors/arguments.h.
"""

import re
import textwrap
from dataclasses import dataclass

from c import COLUMNS, OPENING
from headers import Function, Headers, Kind, Parameter, stop

# What no vector calls, and why.
UNCALLED = {
    "last_error": "read after every call that leaves a text",
    "set_log": "is no part of what a capturer says: tests/diagnostics",
    "serialized_slice": "is compared with routing_slice in the tests and by fuzzing",
    "received_read": "writes a table whose numbers are the library's: tests/recording/received.cc",
    "received_compare": "reads that table",
}
# The messages of the wire, and layouts and cells of plans, are in other files.
ELSEWHERE = ("wire_", "plan_")
# What replayers call by themselves: it returns no status, or its outputs are put together.
BY_HAND = ("version", "get_api", "status_name", "routing_retain", "serialized_splice")


def called(headers: Headers) -> list[Function]:
    return [
        each
        for each in headers.functions
        if not each.short.startswith(ELSEWHERE) and each.short not in (*UNCALLED, *BY_HAND)
    ]


@dataclass
class Argument:
    """One argument of a vector, which may be several parameters of C."""

    kind: str  # below
    name: str
    element: str  # its type, or that of its elements
    covers: list[str]  # the parameters that it stands for
    length: str = ""  # the name of what says how many elements there are


def arguments(headers: Headers, function: Function) -> list[Argument]:
    """In the order of the parameters. Kinds:

    object, objects   by their names            structs          beside one another
    number            also a request's name     numbers          in
    struct            in                        written          numbers out
    filled            struct out                statuses         out
    init              filled, of a size         made, all_made   handles out
    bytes, keys       in                        out              one number
    buffer            bytes out                 loan, stream
    """
    structs = {each.name for each in headers.structs}
    found: list[Argument] = []
    left = list(function.parameters)

    def take(pattern: str) -> str:
        """The next parameter, if its name ends so."""
        if left and left[0].name.endswith(pattern) and "*" not in left[0].type:
            return left.pop(0).name
        return ""

    def add(kind: str, parameter: Parameter, element: str, *more: str, length: str = "") -> None:
        covers = [parameter.name, *(each for each in more if each)]
        found.append(Argument(kind, parameter.name, element, covers, length))

    while left:
        p = left.pop(0)
        constant = p.type.startswith("const ")
        element = p.type.replace("const ", "").replace("*", "").replace("const", "").strip()
        kind = headers.kinds.get(element)
        stars = p.type.count("*")
        if element == "routecap_release":
            add("loan", p, element, take("context") or left.pop(0).name)
        elif element == "routecap_stream":
            add("stream", p, element)
        elif stars == 2 and constant:
            add("objects", p, element, take("count"))
        elif stars == 2:
            add("made", p, element)
        elif stars == 0:
            add("number", p, element)
        elif element in structs:
            if size := take("struct_size"):
                add("init", p, element, size)
            elif size := take("_size"):
                length = take("count") or take("capacity")
                add("structs", p, element, size, length, length=length)
            else:
                add("struct" if constant else "filled", p, element)
        elif element.startswith("routecap_") and kind is None:
            add("object", p, element)
        elif constant and element == "void":
            keys = p.name == "keys"
            add("keys" if keys else "bytes", p, element, take("count") or take("bytes"))
        elif constant:
            add("numbers", p, element, take("count"))
        elif element in ("void", "uint8_t"):
            add("buffer", p, element, take("bytes"))
        else:
            written(found, left, p, element, kind)
    counts(found)
    if any(each.kind == "buffer" and len(each.covers) < 2 for each in found):
        stop(function.where, "a parameter is of no kind that dev/generate/vectors.py knows")
    return found


def written(
    found: list[Argument], left: list[Parameter], p: Parameter, element: str, kind: Kind | None
) -> None:
    """Numbers that a call writes: one, or as many as it is given."""
    one = kind is not None and "handle" in kind.marks
    plain = bool(left) and left[0].type == "size_t" and left[0].name in ("count", "capacity")
    if element in ("routecap_status", "routecap_reason"):  # of each element of an array before
        kinds = {"routecap_status": "statuses", "routecap_reason": "written"}
        found.append(Argument(kinds[element], p.name, element, [p.name]))
    elif plain:
        length = left.pop(0).name
        name = "all_made" if one else "written"
        found.append(Argument(name, p.name, element, [p.name, length], length))
    else:
        found.append(Argument("made" if one else "out", p.name, element, [p.name]))


def counts(found: list[Argument]) -> None:
    """A count that stands further on is that of the array before it."""
    array = next((each for each in found if each.kind == "numbers"), None)
    for each in list(found):
        if each.kind == "number" and each.name == "count" and array and len(array.covers) == 1:
            found.remove(each)
            array.covers.append("count")


# ---- C++


def expression(argument: Argument, parameter: Parameter) -> str:
    """What is passed for a parameter."""
    a, name = argument, argument.name
    at = a.covers.index(parameter.name)
    match a.kind:
        case "object":
            return f'r.object<{a.element}>("{name}")'
        case "number":
            return f'r.number<{a.element}>("{name}")'
        case "stream":
            return "r.stream()"
        case "loan":
            return ["loan.release()", "&loan"][at]
        case "structs":
            return [f"{name}.data()", f"{name}.size()", f"{name}.count()"][at]
        case "init":
            return [name, f"{name}.size()"][at]
        case "buffer":
            data = "bytes()" if a.element == "uint8_t" else "data()"
            return [f"{name}.{data}", f"{name}.count()"][at]
        case "bytes" | "keys" | "numbers" | "objects" | "written" | "all_made":
            return [f"{name}.data()", f"{name}.count()"][at]
        case "statuses":
            return f"{name}.data()"
    return name


def declaration(argument: Argument, of: list[Argument]) -> str:
    """What lives as long as the call; "" if nothing does."""
    a, name = argument, argument.name
    quoted = f'r, "{name}"'
    counted = next((e.name for e in of if e.kind in ("structs", "numbers", "keys")), "")
    match a.kind:
        case "struct":
            return f"Given<{a.element}> {name}({quoted});"
        case "filled" | "init":
            return f"Filled<{a.element}> {name}({quoted});"
        case "structs":
            given = f'"{a.covers[1]}", "{a.length}"'
            return f"Structs<{a.element}> {name}({quoted}, {given});"
        case "bytes" | "keys":
            return f"{a.kind.capitalize()} {name}({quoted});"
        case "numbers":
            return f"Numbers<{a.element}> {name}({quoted});"
        case "objects":
            return f"Objects<{a.element}> {name}({quoted});"
        case "statuses":
            return f"Statuses {name}({quoted}, {counted}.count());"
        case "made":
            return f"Made<{a.element}> {name}({quoted});"
        case "written" | "all_made":
            kind = "Written" if a.kind == "written" else "AllMade"
            length = f'r.length("{a.length}", "{name}")' if a.length else f"{counted}.count()"
            return f"{kind}<{a.element}> {name}({quoted}, {length});"
        case "out":
            return f"Out<{a.element}> {name}({quoted});"
        case "buffer":
            of_bytes = "true" if a.element == "uint8_t" else "false"
            return f'Buffer {name}({quoted}, "{a.covers[1]}", {of_bytes});'
        case "loan":
            return "Loan &loan = r.lend();"  # what it lends is what stands before it
    return ""


def wrapped(line: str) -> str:
    indent = " " * 13
    return textwrap.fill(
        line,
        COLUMNS,
        initial_indent=indent,
        subsequent_indent=indent + "    ",
        break_long_words=False,
    )


def call(headers: Headers, function: Function) -> str:
    found = arguments(headers, function)
    lines = [line for each in found if (line := declaration(each, found))]
    passed = []
    for parameter in function.parameters:
        argument = next(each for each in found if parameter.name in each.covers)
        passed.append(expression(argument, parameter))
    made = f"{function.name}({', '.join(passed)})"
    looked = [re.split(r"[(=]", line)[0].split()[-1].strip("&") for line in lines]
    if function.returns == "void":
        lines += [f"{made};", f'r.forget<{found[0].element}>("{found[0].name}");']
    else:
        lines.append(f"r.returned({', '.join([made, *looked])});")
    inside = "".join(wrapped(line) + "\n" for line in lines)
    return f'        {{"{function.short}",\n         [](Replay &r) {{\n{inside}         }}}},\n'


def calls(headers: Headers) -> str:
    return (
        f"// {OPENING}\n"
        "// Every call that a vector may have, made by the signature of the function: see\n"
        "// arguments.h.\n"
        "#pragma once\n\n// clang-format off\n"
        '#include "arguments.h"\n\nnamespace vectors {\n\n'
        "inline const std::map<std::string, void (*)(Replay &r)> &calls() {\n"
        "    static const std::map<std::string, void (*)(Replay &r)> kCalls = {\n"
        + "".join(call(headers, each) for each in called(headers))
        + "    };\n    return kCalls;\n}\n\n}  // namespace vectors\n// clang-format on\n"
    )


# ---- Go, Python and Rust
#
# Their replayers go through what their users call. What C calls object_does_something is there a
# method of the object with that name; its arguments are C's, but for counts, sizes and outputs,
# which are results. This table has what a language says otherwise, or calls by hand: None.

SAYS: dict[str, dict[str, tuple[str, str] | None]] = {
    "go": {
        "config_memory": ("Config.Memory", "config"),
        "step_finalize": ("(*Capturer).Finalize", "capturer timeout_ns step"),
        "request_close": ("(*Capturer).CloseRequest", ""),
        "request_close_batch": ("(*Capturer).CloseRequests", ""),
        "capturer_destroy": ("(*Capturer).Close", ""),
        "routing_free": ("(*Routing).Close", ""),
        "routing_merge": ("Merge", "routings"),
        "serialized_info": ("SerializedInfo", "data"),
        "sequence_deserialize": ("DeserializeSequence", ""),
        "sequence_free": ("(*Sequence).Close", ""),
        "sequence_spans": ("(*Sequence).Spans", "sequence"),
        "sequence_tokens": ("(*Sequence).Tokens", "sequence first"),
        "store_free": ("(*Store).Close", ""),
        "key_chain": ("KeyChain", ""),
    }
    | dict.fromkeys(
        "backend_info config_init capturer_create capturer_load sink_bind sink_layer layer_record "
        "layers_record router_init layer_route step_issue step_arrive copy_options_init "
        "request_open request_accept request_accept_batch request_extract_into routing_copy_to "
        "routing_copy_weights routing_view routing_serialize routing_deserialize routing_import "
        "sequence_create "
        "store_config_init store_create request_publish_batch request_adopt_batch".split()
    ),
    "python": {
        "capturer_destroy": ("capturer.close", ""),
        "capturer_layer_stats": ("capturer.layer_stats", "count"),
        "routing_free": ("routing.free", ""),
        "sequence_free": ("sequence.free", ""),
        "store_free": ("store.close", ""),
        "store_retain": ("store.retain", "keys"),
    }
    | dict.fromkeys(
        "config_init config_memory backend_info capturer_create capturer_load sink_bind sink_layer "
        "layer_record layers_record router_init layer_route capturer_probe step_issue step_arrive "
        "step_poll step_finalize request_open request_accept request_accept_batch request_coverage "
        "request_extract request_extract_batch request_finish_batch request_close_batch "
        "request_extract_into copy_options_init routing_wait routing_poll routing_view "
        "routing_coverage routing_merge routing_copy_to routing_copy_weights routing_serialize "
        "routing_deserialize "
        "routing_import serialized_info sequence_create sequence_append sequence_fork "
        "sequence_routing sequence_spans sequence_tokens sequence_report sequence_serialize "
        "sequence_deserialize store_config_init store_create store_contains key_chain "
        "request_publish_batch request_adopt_batch".split()
    ),
    "rust": dict.fromkeys(
        "config_init config_memory backend_info capturer_create capturer_destroy capturer_layer_stats "
        "capturer_load sink_bind sink_layer layer_record layers_record router_init layer_route "
        "capturer_probe step_issue step_arrive step_finalize request_open request_accept "
        "request_accept_batch request_coverage request_extract request_extract_batch "
        "request_finish_batch request_close_batch request_extract_into copy_options_init routing_wait "
        "routing_view routing_coverage routing_slice routing_merge routing_copy_to routing_copy_weights "
        "routing_free "
        "routing_serialize routing_deserialize routing_import serialized_info sequence_create "
        "sequence_free sequence_append sequence_routing sequence_spans sequence_tokens "
        "sequence_serialize store_config_init store_create store_free request_publish_batch "
        "request_adopt_batch".split()
    )
    | {"sequence_deserialize": ("Sequence::deserialize", ""), "key_chain": ("key_chain", "")},
}
RESULTS = ("made", "all_made", "filled", "init", "out", "buffer", "loan")


def said(headers: Headers, language: str, function: Function) -> tuple[str, str, str] | None:
    """What a language calls a function, "" if by the rule; and the names of its arguments and of its
    results. None: its replayer calls it by hand."""
    otherwise = SAYS[language].get(function.short, ("", ""))
    if otherwise is None:
        return None
    found = arguments(headers, function)
    returned = (*RESULTS, "written", "statuses") if language == "rust" else RESULTS
    given = [each.name for each in found if each.kind not in returned]
    passed = otherwise[1].split() or given
    fills = (*RESULTS, "structs", "written", "statuses")
    results = [each.name for each in found if each.kind in fills and each.name not in passed]
    return otherwise[0], " ".join(passed), " ".join(results)


def camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def go(headers: Headers) -> str:
    text = (
        f"// Code generated from the headers by dev/generate. DO NOT EDIT.\n\n//go:build cgo\n\n"
        "package routecap\n\n"
        "// What the replayer of vectors_test.go calls by its signature: the function, and the names of\n"
        "// its arguments and results.\n"
        "func init() {\n"
    )
    for function in called(headers):
        if found := said(headers, "go", function):
            owner = function.parameters[0].type.rstrip("*").strip().removeprefix("const ")
            does = camel(function.short.partition("_")[2])
            name = found[0] or f"(*{camel(owner.removeprefix('routecap_'))}).{does}"
            text += f'\tcallsLike("{function.short}", {name}, "{found[1]}", "{found[2]}")\n'
    return text + "}\n"


def python(headers: Headers) -> str:
    text = (
        '"""What the replayer of test_vectors.py calls by its signature: the method of which object, and\n'
        "the names of its arguments and results.\n"
        '"""\n\n'
        f"# {OPENING}\n\n"
        "CALLS = {\n"
    )
    for function in called(headers):
        if found := said(headers, "python", function):
            owner, _, does = function.short.partition("_")
            owner = "capturer" if owner == "step" else owner
            call = found[0] or f"{owner}.{does}"
            own = ("stream", "capturer", call.partition(".")[0])  # there are no streams
            given = " ".join(each for each in found[1].split() if each not in own)
            text += f'    "{function.short}": ("{call}", "{given}", "{found[2]}"),\n'
    return text + "}\n"


def rust(headers: Headers) -> str:
    text = (
        "//! The calls that are made by their signatures: each parameter is made of what the vector\n"
        "//! says under its name, by its type, and each result is compared by its type.\n"
        f"// {OPENING}\n\n"
        "use routecap::{Sequence, Stream, key_chain};\n\n"
        "use crate::replay::{Call, Inexpressible, Replay};\n\n"
        "/// Whether the call is made here.\n"
        "pub fn call(replay: &mut Replay, call: &Call<'_>) -> Result<bool, Inexpressible> {\n"
        "    match call.name {\n"
    )
    for function in called(headers):
        found = said(headers, "rust", function)
        if found is None:
            continue
        kinds = {each.name: each for each in arguments(headers, function)}
        owner, _, does = function.short.partition("_")
        passed = []
        for name in found[1].split():
            match kinds[name].kind:
                case "object" if name in ("store", "sequence"):
                    passed.append(f"replay.{name}(call)")
                case "object":
                    passed.append(f"replay.{name}(call)?")
                case "keys" | "bytes":
                    passed.append(f'&call.input.bytes("{name}")')
                case "numbers":
                    passed.append(f'&call.numbers("{name}")')
                case "stream":
                    passed.append("Stream::HOST")
                case _:
                    passed.append(f'replay.given(call, "{name}")')
        lines = []
        if found[0]:
            made = found[0]
        elif owner in ("capturer", "request", "step", "sink", "layer", "layers"):
            forward = function.marks["thread"] == "forward"
            lines.append(
                "let forward = &mut replay.capturer(call)?.1;"
                if forward
                else "let capturer = replay.capturer(call)?.0.clone();"
            )
            made = f"{'forward' if forward else 'capturer'}.{does}"
            passed = passed[1:]
            numbers = [each for each in passed if each.startswith("replay.given")]
            if forward and numbers:  # before it is borrowed
                name = numbers[0].split('"')[1]
                lines.insert(0, f"let {name} = {numbers[0]};")
                passed = [name if each == numbers[0] else each for each in passed]
        else:
            made = f"{passed[0]}.{does}"
            passed = passed[1:]
        if owner == "sequence" and not found[0]:  # it may change
            for each in [each for each in passed if each.startswith("replay.given")]:
                name = each.split('"')[1]
                lines.append(f"let {name} = {each};")
                passed[passed.index(each)] = name
        lines.append(f"let answer = {made}({', '.join(passed)});")
        results = ", ".join(f'"{each}"' for each in found[2].split())
        lines.append(f"call.delivered(replay, answer, &[{results}]);")
        inside = "".join(f"            {line}\n" for line in lines)
        text += f'        "{function.short}" => {{\n{inside}        }}\n'
    return text + "        _ => return Ok(false),\n    }\n    Ok(true)\n}\n"


def files(headers: Headers) -> dict[str, str]:
    return {
        "tests/vectors/calls.h": calls(headers),
        "bindings/go/zz_vectors_test.go": go(headers),
        "bindings/python/tests/vector_calls.py": python(headers),
        "bindings/rust/routecap/tests/vectors/calls.rs": rust(headers),
    }

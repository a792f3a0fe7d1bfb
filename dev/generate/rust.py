"""What Rust's crate has of the headers: enums, switches of a configuration, and counts."""

import re
import textwrap

from headers import Constant, Headers

OPENING = "Generated from the headers: run python3 dev/generate. Do not edit."
COLUMNS = 100

# Enums that keep a number which only a later library knows: their name and documentation, what `of`
# says, the method that gives the number, and what that says.
OPEN = {
    "ERR_": (
        "ErrorKind",
        "What went wrong: the statuses of the library that are errors, and the one that\n"
        "[`Issued::step`](crate::Issued::step) makes one.\n\n"
        "Newer libraries may know more; those are [`ErrorKind::Other`].",
        "The kind of a status of C's that is an error.",
        "status",
        "The status in C.",
    ),
    "MISSING_": (
        "Reason",
        "Why a cell is missing. {of_cell} belong to a cell of a row that is there, the others to whole "
        "rows that are not there.",
        "The one that has this number in C.",
        "value",
        "The number in C.",
    ),
    "WIRE_": (
        "WireFormat",
        "A format of the wire.",
        "The format of C's number.",
        "number",
        "The number in C.",
    ),
}

# Enums of the numbers that this version takes.
CLOSED = {
    "DTYPE_": ("DType", "Type of elements."),
    "METHOD_": ("Method", "A method in use, for [`Router::new`](crate::Router::new)."),
    "SCORE_": ("Score", "The score of an expert, from its logit x. All arithmetic is in float32."),
    "GROUP_": ("GroupScore", "The score of a group of experts, from their keys."),
}

# Words that the crate writes otherwise than with one capital.
WORDS = {"DTYPE": "DType", "DEEPSEEK": "DeepSeek", "BF16": "BF16", "ID16_BF16": "IdWeight"}


def camel(name: str) -> str:
    if name in WORDS:
        return WORDS[name]
    return "".join(WORDS.get(word, word.capitalize()) for word in name.split("_"))


def doc(text: str, indent: str = "") -> str:
    lines = []
    for paragraph in text.split("\n\n"):
        lines += [*textwrap.wrap(paragraph, COLUMNS - len(indent) - 4), ""]
    return "".join(f"{indent}/// {line}".rstrip() + "\n" for line in lines[:-1])


def documented(constant: Constant, indent: str) -> str:
    """The comment of a constant as a sentence, with its name in C."""
    says = constant.comment
    if constant.name.startswith("ROUTECAP_ERR_"):
        says = says or constant.block  # what a group of errors has in common
    if not says:
        return doc(f"`{constant.name}`.", indent)
    if "names" in constant.marks:
        says = f'"{constant.marks["names"].split(", ")[0]}": {says}'
    return doc(f"{sentence(says)} (`{constant.name}`).", indent)


def of_cell(headers: Headers) -> str:
    """The reasons that are said of single cells, as links."""
    found = [each for each in headers.group("MISSING_") if "of_cell" in each.marks]
    names = [camel(each.name.removeprefix("ROUTECAP_MISSING_")) for each in found]
    links = [f"[`{name}`](Reason::{name})" for name in names]
    return ", ".join(links[:-1]) + " and " + links[-1]


def sentence(comment: str) -> str:
    """A comment with a capital, without its full stop, and with code as code."""
    comment = re.sub(r"\b(ROUTECAP_\w+\b\*?|routecap_[\w.]+\w)", r"`\1`", comment)
    comment = re.sub(r"\[[^]]*[])]|[<>]=?", r"`\g<0>`", comment)
    if re.match(r"(a|[a-z]{2,})(?![(\w])", comment):  # a word, and not a formula
        comment = comment[0].upper() + comment[1:]
    return comment.removesuffix(".")


def members(headers: Headers, prefix: str) -> list[Constant]:
    found = headers.group(prefix)
    if prefix == "ERR_":
        found += [each for each in headers.statuses if each.name == "ROUTECAP_LOST"]
    return found


def declared(headers: Headers) -> str:
    text = (
        "//! What the headers declare: enums, switches of a configuration, and counts.\n"
        f"// {OPENING}\n\n"
        "use crate::number::numbers;\nuse crate::{Config, sys};\n"
    )
    for prefix, (name, says, of, method, number) in OPEN.items():
        if "{of_cell}" in says:
            says = says.format(of_cell=of_cell(headers))
        text += f'\nnumbers! {{\n{doc(says, "    ")}    {name}, "{of}", {method}: "{number}" {{\n'
        for each in members(headers, prefix):
            short = each.name.removeprefix(f"ROUTECAP_{prefix}").removeprefix("ROUTECAP_")
            text += f"{documented(each, ' ' * 8)}        {camel(short)} = {each.name};\n"
        text += "    }\n}\n"
    for prefix, (name, says) in CLOSED.items():
        found = members(headers, prefix)
        names = [camel(each.name.removeprefix(f"ROUTECAP_{prefix}")) for each in found]
        text += (
            f"\n{doc(says)}#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]\n#[repr(i32)]\n"
            f"#[non_exhaustive]\npub enum {name} {{\n"
        )
        for each, variant in zip(found, names):
            text += f"{documented(each, '    ')}    {variant} = sys::{each.name},\n"
        text += "}\n"
        if prefix == "DTYPE_":
            text += (
                "\nimpl DType {\n"
                "    /// The one that has this number in C, if there is one.\n"
                "    pub fn of(value: i32) -> Option<DType> {\n"
                "        match value {\n"
                + "".join(
                    f"            sys::{each.name} => Some(DType::{variant}),\n"
                    for each, variant in zip(found, names)
                )
                + "            _ => None,\n        }\n    }\n\n"
                "    /// Bytes of one element.\n"
                "    pub fn size(self) -> usize {\n"
                "        match self {\n"
                + "".join(
                    f"            DType::{variant} => {each.marked('bytes')},\n"
                    for each, variant in zip(found, names)
                )
                + "        }\n    }\n}\n"
            )
    return text + switches(headers) + stats(headers)


def switches(headers: Headers) -> str:
    flags = headers.group("CONFIG_")
    pairs = [(each, each.name.removeprefix("ROUTECAP_CONFIG_").lower()) for each in flags]
    text = (
        "\n/// The switches of a configuration.\n"
        f"pub(crate) const SWITCHES: [(&str, u32); {len(pairs)}] = [\n"
        + "".join(f'    ("{name}", sys::{each.name}),\n' for each, name in pairs)
        + "];\n\n/// Switches, which are all off by default.\nimpl Config {\n"
    )
    methods = [
        f"{documented(each, '    ')}    pub fn {name}(self, on: bool) -> Self {{\n"
        f"        self.flag(sys::{each.name}, on)\n    }}\n"
        for each, name in pairs
    ]
    return text + "\n".join(methods) + "}\n"


def stats(headers: Headers) -> str:
    struct = headers.struct("stats")
    text = (
        "\n/// What the capturer saw since it was created (`routecap_stats`).\n///\n"
        "/// Fields are read one after another while it runs; no row is counted as landed before "
        "it is\n/// issued. Every row of the spans that issue was given, those of unknown requests "
        "apart, is in one\n/// of the counts from `rows_in_flight` to `rows_refused`.\n"
        "#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]\n#[non_exhaustive]\n"
        "pub struct Stats {\n"
    )
    kinds = {"uint32_t": "u32", "uint64_t": "u64"}
    for each in struct.fields[1:]:
        text += doc(f"{sentence(each.comment or each.name.replace('_', ' '))}.", "    ")
        text += f"    pub {each.name}: {kinds[each.type]},\n"
    text += (
        "}\n\nimpl From<sys::routecap_stats> for Stats {\n"
        "    fn from(raw: sys::routecap_stats) -> Stats {\n        Stats {\n"
    )
    text += "".join(f"            {each.name}: raw.{each.name},\n" for each in struct.fields[1:])
    return text + "        }\n    }\n}\n"


def test_fields(headers: Headers) -> str:
    """What the replayer of vectors goes through."""
    struct = headers.struct("stats")
    flags = [each.name.removeprefix("ROUTECAP_CONFIG_") for each in headers.group("CONFIG_")]
    methods = [
        camel(each.name.removeprefix("ROUTECAP_METHOD_")) for each in headers.group("METHOD_")
    ]
    text = (
        "//! The methods of routing, the switches of a configuration and the fields of the counts.\n"
        f"// {OPENING}\n\n"
        "use routecap::{Config, Method, sys};\n\n"
        f"pub const METHODS: [Method; {len(methods)}] = [\n"
        + "".join(f"    Method::{each},\n" for each in methods)
        + "];\n\npub type Switch = fn(Config, bool) -> Config;\n\n"
        f"pub const SWITCHES: [(u32, Switch); {len(flags)}] = [\n"
        + "".join(f"    (sys::ROUTECAP_CONFIG_{each}, Config::{each.lower()}),\n" for each in flags)
        + "];\n\nmacro_rules! stats_object {\n    ($stats:expr) => {\n        object!($stats;\n"
    )
    names = textwrap.wrap(", ".join(each.name for each in struct.fields[1:]), COLUMNS - 12)
    text += "".join(f"            {line}\n" for line in names)
    return text + "        )\n    };\n}\npub(crate) use stats_object;\n"


def files(headers: Headers) -> dict[str, str]:
    crate = "bindings/rust/routecap"
    return {
        f"{crate}/src/declared.rs": declared(headers),
        f"{crate}/tests/vectors/fields.rs": test_fields(headers),
    }

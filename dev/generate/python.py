"""What Python's package has of the headers: constants, layouts of structs, and counts."""

import textwrap
from collections.abc import Iterator

from headers import ROOT, Constant, Headers

OPENING = "Generated from the headers: run python3 dev/generate. Do not edit."
COLUMNS = 100
FOLDER = "bindings/python/src/routecap"
NO_LAYOUT = ["plan_source"]  # routecap.i makes it

# Groups of constants: their class, what it says, and the name of the type of their names if a
# setting or an argument takes those. "later": a library that is newer may say more of them.
GROUPS = {
    "DTYPE_": ("Dtype", "Element types of ids, and of logits and biases.", "DtypeName"),
    "WIRE_": ("Wire", "Formats of the wire: what servers send and trainers read.", "WireName"),
    "WIRE_FACT_": (
        "WireFact",
        "What a routing says, and a format of the wire may not.",
        "WireFactName",
    ),
    "WIRE_COLUMNS_": (
        "WireColumns",
        "What the columns of a message are: as many as layers, or more, FOUND; the captured "
        "layers;\n    all layers of the decoder.\n    ",
        "WireColumnsName",
    ),
    "WIRE_HINT_": ("WireHintFlag", "`strict` of decoding.", ""),
    "BACKEND_": ("Backend", "Where the sink is.", "BackendName"),
    "ROLE_": ("Role", "What a rank does.", "RoleName"),
    "ID_SPACE_": ("IdSpace", "What the ids number.", "IdSpaceName"),
    "PROVENANCE_": ("Provenance", "How the ids of a layer were had.", "ProvenanceName"),
    "CONFIG_": (
        "ConfigFlag",
        "Settings of a Capturer that are switches, each by its name in lower case.",
        "",
    ),
    "SOURCE_": ("SourceFlag", "`overlap` of Capturer.record.", ""),
    "SCORE_": ("Score", "The score of an expert, from its logit.", "ScoreName"),
    "GROUP_": ("GroupScore", "The score of a group of experts, from their keys.", "GroupScoreName"),
    "ROUTER_": ("RouterFlag", "Flags of a Router.", ""),
    "METHOD_": ("Method", "Ways of routing in use.", "MethodName"),
    "PROBE_": ("ProbeFlag", "What is odd about the ids of a layer: `found` of Capturer.probe.", ""),
    "RECEIVED_": (
        "ReceivedFlag",
        "What the ids of a dispatch are: see routecap.deepep.",
        "",
    ),
    "SPAN_": ("SpanFlag", "`flags` of a span.", "SpanFlagName"),
    "PHASE_": (
        "Phase",
        "That of a step's rows, by which their load is counted: the first index of Load.counts.",
        "",
    ),
    "SNAPSHOT_": (
        "Snapshot",
        "Whether the forward took its snapshot, or issue takes it.",
        "SnapshotName",
    ),
    "POLICY_": ("Policy", "What happens to a valid cell that is issued again.", "PolicyName"),
    "APPEND_": (
        "AppendPolicy",
        "Which cell stays where a sequence and a call that is appended both have one.",
        "AppendPolicyName",
    ),
    "SEQUENCE_": ("SequenceFlag", "`tokens` of Sequence.serialize.", ""),
    "MISSING_": (
        "Missing",
        "Why a cell is missing: `reason` of a block of missing cells, and of a segment without "
        "ids.",
        "",
    ),
    "EXTRACT_": ("Extract", "What becomes of rows that are read.", "ExtractName"),
    "READ_": ("ReadFlag", "`strict` and `allow_recomputed` of reading calls.", ""),
    "ORDER_": (
        "Order",
        "Layout of ids: [rows, layers, k] or [layers, rows, k].",
        "OrderName",
    ),
    "IMPORT_": ("TrustFlag", "`trusted` of Routing.deserialize and Routing.from_arrays.", ""),
    "PIECE_": ("Piece", "Where bytes of a spliced routing come from.", ""),
    "PLAN_LAYOUT_": (
        "PlanLayout",
        "How a micro-batch lies before it is divided.",
        "PlanLayoutName",
    ),
    "PLAN_CONTEXT_": (
        "PlanContext",
        "How context parallelism divides a micro-batch.",
        "PlanContextName",
    ),
    "PLAN_SEQUENCE_": ("PlanSequence", "`sequence_parallel` and `sequence_first` of a plan.", ""),
    "PLAN_FILL_": ("PlanFill", "What padding is filled with.", ""),
    "PLAN_LOST_": ("PlanLost", "What lost cells are filled with.", ""),
    "PLAN_CLASS_": ("PlanClass", "What a cell of a plan's result is.", ""),
    "STORE_": ("StoreFlag", "`slot_keys` of Store.", ""),
    "LOG_": (
        "LogLevel",
        "What a line of the log is about; routecap.log has those of the module logging for them.",
        "",
    ),
}
LATER = ["ID_SPACE_", "PROVENANCE_", "MISSING_"]  # later libraries may say more of them

# Constants that the package has under another name, or not.
ELSEWHERE = ["ROWS_ALL", "ROWS_LANDED", "PLAN_RANK_UNSET"]


def constants(headers: Headers) -> str:
    for kind in headers.kinds.values():
        prefix = kind.prefix.removeprefix("ROUTECAP_")
        if prefix and prefix != "ERR_" and prefix not in GROUPS:
            raise SystemExit(f"generate: {kind.where}: dev/generate/python.py has no class for it")
    elsewhere = [f"ROUTECAP_{each}" for each in ELSEWHERE]
    limits = [each for each in headers.constants if "number" in each.marks]
    limits = [each for each in limits if each.name not in elsewhere]
    text = (
        '"""The constants of routecap.h: each group is an enum, and names have lost their prefix.'
        "\n\n"
        "Where a function takes one of them, it also takes its name in lower case: "
        '"cuda", "take",\n"row_major".\n"""\n'
        f"# {OPENING}\n\n"
        "from typing import Literal, TypeAlias\n\n"
        "from ._named import Constant, Flags, Open\n\n"
        f"{EVERY_ROW}\n"
    )
    for each in limits:
        power = each.value.bit_length() - 1
        value = f"1 << {power}" if power >= 24 and each.value == 1 << power else str(each.value)
        text += f"{each.name.removeprefix('ROUTECAP_')} = {value}\n"
    text += cls("Status", "Open", STATUS, headers.statuses, "ROUTECAP_")
    flags = {each.prefix for each in headers.kinds.values() if each.flags}
    for prefix, (name, says, names) in GROUPS.items():
        full = f"ROUTECAP_{prefix}"
        found = headers.group(prefix)
        base = "Flags" if full in flags else "Open" if prefix in LATER else "Constant"
        text += cls(name, base, says, found, full)
        if names:
            own = [each.name.removeprefix(full).lower() for each in found]
            text += literal(names, own)
            if prefix == "WIRE_":
                text += literal("WireAlias", [each for each in aliases(found) if each not in own])
        if prefix == "MISSING_":
            inside = ", ".join(
                f"Missing.{each.name.removeprefix(full)}"
                for each in found
                if "of_cell" in each.marks
            )
            text += f"\n\nOF_CELLS = ({inside})\n"
            text += '"""The reasons that are said of single cells of a row that is there."""\n'
    return text


def aliases(formats: list[Constant]) -> list[str]:
    """What names a format of the wire in the library: its name, who writes it, the ending of files."""
    return [name for each in formats if each.value > 0 for name in each.marks["names"].split(", ")]


EVERY_ROW = '''\
ALL = 0xFFFFFFFFFFFFFFFF
"""In a count of rows: up to the end. None is the same."""
LANDED = 0xFFFFFFFFFFFFFFFE
"""In a count of rows: up to the first row in flight, or the end; what of a running request can be
read now.
"""
'''
STATUS = (
    "What a call came to: 0 success, positive partial success with everything delivered, negative\n"
    "    an error, raised as routecap.Error.\n    "
)


def cls(name: str, base: str, says: str, members: list[Constant], prefix: str) -> str:
    lines = [f"    {each.name.removeprefix(prefix)} = {each.value}\n" for each in members]
    return f'\n\nclass {name}({base}):\n    """{says}"""\n\n' + "".join(lines)


def literal(name: str, values: list[str]) -> str:
    quoted = [f'"{each}"' for each in values]
    line = f"{name}: TypeAlias = Literal[{', '.join(quoted)}]\n"
    if len(line) > COLUMNS + 1:
        inside = f"    {', '.join(quoted)}\n"
        if len(inside) > COLUMNS + 1:
            inside = "".join(f"    {each},\n" for each in quoted)
        line = f"{name}: TypeAlias = Literal[\n{inside}]\n"
    return f"\n\n{line}"


# ---- Structs


def layouts(headers: Headers) -> str:
    """The fields of structs, as _structs.py reads them: with NumPy's codes those of elements of
    arrays, with those of the module struct the others, without their size.
    """
    codes = {"uint32_t": "I", "int32_t": "i", "uint64_t": "Q", "int64_t": "q", "float": "f"}
    codes |= {"size_t": "Q"}
    arrays = {"I": "u4", "i": "i4", "Q": "u8", "q": "i8", "f": "f4"}
    text = (
        '"""The fields of the structs of routecap.h, with the codes of their types: those of NumPy '
        "for what\narrays have, otherwise those of the module struct, without struct_size.\n"
        '"""\n\n'
        f"# {OPENING}\n"
    )
    for struct in headers.structs:
        pairs = []
        for each in struct.fields[struct.sized :]:
            integer = headers.kinds[each.type].integer if each.type in headers.kinds else each.type
            code = "Q" if each.pointer else codes[integer]
            pairs.append(f"{each.name}:{code if struct.sized else arrays[code]}")
        line = f'{struct.short} = "{" ".join(pairs)}"\n'
        if len(line) > COLUMNS + 1:
            lines, now = [], ""
            for pair in pairs:
                if len(now) + 1 + len(pair) > COLUMNS - 7:
                    lines.append(now + " ")
                    now = pair
                else:
                    now += f" {pair}" if now else pair
            inside = "".join(f'    "{each}"\n' for each in [*lines, now])
            line = f"{struct.short} = (\n{inside})\n"
        text += line
    return text


# ---- Counts

COUNTS = {
    "stats": (
        "Stats",
        "Counters of a capturer since it was created; see routecap_stats in the header.\n\n"
        "    Each row issued is in one of the counts from rows_in_flight to rows_refused.\n"
        "    ",
    ),
    "store_counts": (
        "StoreStats",
        "Contents of a store, and counters since it was created; see routecap_store_counts in "
        "the\n    header.\n    ",
    ),
}


def counts(headers: Headers) -> str:
    text = (
        '"""What is counted."""\n\n'
        f"# {OPENING}\n\n"
        "from typing import NamedTuple\n\n"
        "from ._constants import StoreFlag\n"
    )
    for struct in headers.structs:
        if struct.short not in COUNTS:
            continue
        name, says = COUNTS[struct.short]
        text += f'\n\nclass {name}(NamedTuple):\n    """{says}"""\n\n'
        for each in struct.fields[1:]:
            kind = "StoreFlag" if each.type == "routecap_store_flags" else "int"
            text += f"    {each.name}: {kind}\n{docstring(each.comment)}"
    return text


# ---- Switches of a configuration


def switches(headers: Headers) -> str:
    text = (
        '"""The settings of a Capturer that are switches."""\n\n'
        f"# {OPENING}\n\n"
        "from typing import TypedDict\n\n\n"
        "class Switches(TypedDict, total=False):\n"
        '    """Settings that are switches, all off by default."""\n\n'
    )
    for each in headers.group("CONFIG_"):
        name = each.name.removeprefix("ROUTECAP_CONFIG_").lower()
        text += f"    {name}: bool\n{docstring(each.comment)}"
    return text


def docstring(comment: str) -> str:
    """A comment as a sentence, below a field."""
    if not comment:
        return ""
    text = comment[0].upper() + comment[1:] + ("" if comment.endswith(".") else ".")
    lines = textwrap.wrap(text, COLUMNS, initial_indent='    """', subsequent_indent="    ")
    end = '"""' if len(lines) == 1 and len(lines[0]) <= COLUMNS - 3 else '\n    """'
    return "\n".join(lines) + end + "\n"


# ---- What a person writes


def forgotten(headers: Headers) -> Iterator[str]:
    interface = (ROOT / "bindings/python/routecap.i").read_text()
    for each in headers.functions:
        if each.marks["thread"] == "forward" and f"%by_one_thread({each.name}," not in interface:
            yield f"{each.name} is not among %by_one_thread in bindings/python/routecap.i"
    structs = read("_structs.py")
    for struct in headers.structs:
        if f"layouts.{struct.short})" not in structs and struct.short not in NO_LAYOUT:
            yield f"{struct.name} is not in {FOLDER}/_structs.py"


def read(name: str) -> str:
    return (ROOT / FOLDER / name).read_text()


def files(headers: Headers) -> dict[str, str]:
    return {
        f"{FOLDER}/_constants.py": constants(headers),
        f"{FOLDER}/_layouts.py": layouts(headers),
        f"{FOLDER}/_counts.py": counts(headers),
        f"{FOLDER}/_switches.py": switches(headers),
    }

"""The package against the headers themselves: nothing in it may be missing here, or be otherwise."""

import inspect
import os
import pickle
import re
import struct
import subprocess
import sys
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import routecap
from routecap import _structs as structs, names
from routecap._library import raw

INCLUDE = Path(os.environ.get("ROUTECAP_INCLUDE", Path(__file__).parents[3] / "include"))
HEADERS = "".join(path.read_text() for path in sorted(INCLUDE.glob("routecap/*.h")))
CODE = re.sub(r"/\*.*?\*/", "", HEADERS, flags=re.DOTALL)
PACKAGE = Path(routecap.__file__).parent

# Where each group of the header's constants is in the package.
GROUPS: dict[str, type[IntEnum]] = {
    "DTYPE_": routecap.Dtype,
    "BACKEND_": routecap.Backend,
    "ROLE_": routecap.Role,
    "ID_SPACE_": routecap.IdSpace,
    "PROVENANCE_": routecap.Provenance,
    "CONFIG_": routecap.ConfigFlag,
    "SOURCE_": routecap.SourceFlag,
    "SCORE_": routecap.Score,
    "GROUP_": routecap.GroupScore,
    "ROUTER_": routecap.RouterFlag,
    "METHOD_": routecap.Method,
    "PROBE_": routecap.ProbeFlag,
    "RECEIVED_": routecap.ReceivedFlag,
    "SPAN_": routecap.SpanFlag,
    "SNAPSHOT_": routecap.Snapshot,
    "POLICY_": routecap.Policy,
    "MISSING_": routecap.Missing,
    "EXTRACT_": routecap.Extract,
    "ORDER_": routecap.Order,
    "PIECE_": routecap.Piece,
    "READ_": routecap.ReadFlag,
    "IMPORT_": routecap.TrustFlag,
    "PHASE_": routecap.Phase,
    "PLAN_LAYOUT_": routecap.PlanLayout,
    "PLAN_CONTEXT_": routecap.PlanContext,
    "PLAN_SEQUENCE_": routecap.PlanSequence,
    "PLAN_FILL_": routecap.PlanFill,
    "PLAN_LOST_": routecap.PlanLost,
    "PLAN_CLASS_": routecap.PlanClass,
    "APPEND_": routecap.AppendPolicy,
    "SEQUENCE_": routecap.SequenceFlag,
    "STORE_": routecap.StoreFlag,
    "LOG_": routecap.LogLevel,
    "WIRE_FACT_": routecap.WireFact,
    "WIRE_COLUMNS_": routecap.WireColumns,
    "WIRE_HINT_": routecap.WireHintFlag,
    "WIRE_": routecap.Wire,
}
ALONE = {"ROWS_ALL": routecap.ALL, "ROWS_LANDED": routecap.LANDED}
BUILD = {"VERSION_MAJOR", "VERSION_MINOR", "VERSION_PATCH", "VERSION_DEV", "API"}
NONE = {"PLAN_RANK_UNSET"}  # what the package says by None


def constants() -> list[str]:
    return [
        name
        for name in re.findall(r"^#define ROUTECAP_(\w+) ", CODE, re.MULTILINE)
        if name not in BUILD | NONE
    ]


def functions() -> list[str]:
    return re.findall(r"^ROUTECAP_API [^;]*?\b(routecap_\w+)\(", CODE, re.MULTILINE)


def fields(name: str) -> list[tuple[str, str]]:
    """The fields of a struct of the header, with the code that the struct module has for their
    type.
    """
    body = re.search(rf"typedef struct {name} \{{(.*?)\}} {name};", CODE, re.DOTALL)
    assert body is not None, name
    codes = {
        "uint32_t": "I",
        "int32_t": "i",
        "uint64_t": "Q",
        "int64_t": "q",
        "float": "f",
        "size_t": "Q",
    }
    for integer, alias in re.findall(r"typedef (\w+_t) (routecap_\w+);", CODE):
        codes[alias] = codes[integer]
    found = []
    for line in body[1].split(";"):
        if match := re.match(r"\s*(?:const )?(\w+) (?:const )?(\*?)(\w+)\s*$", line):
            found.append((match[3], "Q" if match[2] else codes[match[1]]))
    return found


@pytest.mark.parametrize("name", constants())
def test_a_constant_of_the_header_is_in_the_package(name: str) -> None:
    value = getattr(raw, f"ROUTECAP_{name}")
    if hasattr(routecap, name):
        assert getattr(routecap, name) == value
    elif name in ALONE:
        assert ALONE[name] == value
    elif name in routecap.Status.__members__:
        assert routecap.Status[name] == value
    else:
        prefix = next(prefix for prefix in GROUPS if name.startswith(prefix))
        assert GROUPS[prefix][name.removeprefix(prefix)] == value


def test_the_package_has_no_constant_that_the_header_has_not() -> None:
    here = {"ROUTECAP_" + name for name in routecap.Status.__members__}
    here |= {
        f"ROUTECAP_{prefix}{name}" for prefix, group in GROUPS.items() for name in group.__members__
    }
    here |= {f"ROUTECAP_{name}" for name in ALONE}
    here |= {
        f"ROUTECAP_{name}"
        for name in dir(routecap)
        if name.isupper() and f"ROWS_{name}" not in ALONE
    }
    assert here == {f"ROUTECAP_{name}" for name in constants()}


@pytest.mark.parametrize("status", routecap.Status)
def test_a_status_has_the_name_that_the_library_gives_it(status: routecap.Status) -> None:
    assert raw.routecap_status_name(status) == f"ROUTECAP_{status.name}"


@pytest.mark.parametrize(
    "group", [routecap.Status, routecap.IdSpace, routecap.Provenance, routecap.Missing]
)
def test_a_number_that_only_a_later_header_has_is_kept(group: type[IntEnum]) -> None:
    later = group(np.int32(99))
    assert (
        isinstance(later, group)
        and later == 99
        and later.name == "UNKNOWN"
        and later not in list(group)
    )
    assert pickle.loads(pickle.dumps(later)) == later
    with pytest.raises(ValueError):
        group("99")


@pytest.mark.parametrize(
    "name", [name for name in names.__all__ if name.removesuffix("Name") in routecap.__all__]
)
def test_a_type_of_names_has_all_members_of_its_enum(name: str) -> None:
    members = getattr(routecap, name.removesuffix("Name")).__members__
    assert get_args(getattr(names, name)) == tuple(each.lower() for each in members)


def test_every_group_that_a_call_takes_by_name_has_a_type_of_names() -> None:
    taken = set(
        re.findall(r"member\((\w+), ", "".join(path.read_text() for path in PACKAGE.glob("*.py")))
    )
    assert taken > {"Backend", "Method", "Order"} and {f"{group}Name" for group in taken} <= set(
        names.__all__
    )


@pytest.mark.parametrize("group", [routecap.Status, *GROUPS.values()])
def test_a_constant_prints_as_its_name(group: type[IntEnum]) -> None:
    for each in group:
        assert str(each) == f"{each}" == "{:}".format(each) == "%s" % each == each.name
        assert each.name in repr(each) and f"{each:>30}" == each.name.rjust(30)
        assert f"{each:d}" == "%d" % each == str(int(each)) and f"{each:#x}" == hex(each)


def test_flags_that_are_set_together_print_as_their_names() -> None:
    both = routecap.SpanFlag.SPECULATIVE | routecap.SpanFlag.DEVICE_POSITIONS
    assert str(both) == f"{both}" == "SPECULATIVE|DEVICE_POSITIONS" and f"{both:d}" == "3"
    assert str(routecap.SpanFlag(0)) == "0"


def test_a_number_without_a_name_prints_as_what_it_is() -> None:
    assert (
        str(routecap.Status(99)) == "UNKNOWN(99)"
        and repr(routecap.Status(99)) == "<Status.UNKNOWN: 99>"
    )


@cache
def words_of_the_package() -> set[str]:
    interface = Path(__file__).parents[1] / "routecap.i"
    sources = (path.read_text() for path in [*PACKAGE.glob("*.py"), interface])
    return {word for source in sources for word in re.findall(r"\w+", source)}


@pytest.mark.parametrize("name", functions())
def test_a_function_of_the_header_is_used_by_the_package(name: str) -> None:
    assert name in words_of_the_package()
    released = ("routing_retain", "routing_free", "wire_decoder_free", "plan_free", "store_free")
    released += ("sequence_free",)
    if name not in [f"routecap_{each}" for each in released]:  # references: see routecap.i
        assert callable(getattr(raw, name))


@pytest.mark.parametrize(
    "name",
    [
        "config",
        "memory",
        "stats",
        "backend",
        "sink",
        "source",
        "router",
        "logits",
        "received",
        "issue_options",
        "open_options",
        "coverage",
        "copy_options",
        "view",
        "serialized",
        "splice",
        "wire_description",
        "wire_hint",
        "wire_report",
        "wire_options",
        "plan_config",
        "plan_shape",
        "plan_report",
        "plan_target",
        "sequence_config",
        "append_options",
        "append_report",
    ],
)
def test_a_struct_is_laid_out_as_in_the_header(name: str) -> None:
    layout = getattr(structs, name)
    assert [("struct_size", "I"), *zip(layout.fields, layout.codes)] == fields(f"routecap_{name}")
    assert layout.size % 8 == 0 or "Q" not in layout.codes


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("span", "span_dtype"),
        ("accept_item", "accept_dtype"),
        ("extract_item", "extract_dtype"),
        ("finish_item", "finish_dtype"),
        ("missing", "missing_dtype"),
        ("segment", "segment_dtype"),
        ("layer_source", "layer_source_dtype"),
        ("layer_stats", "layer_stats_dtype"),
        ("layer_probe", "layer_probe_dtype"),
        ("received_counts", "received_counts_dtype"),
        ("piece", "piece_dtype"),
        ("plan_range", "plan_range_dtype"),
        ("sequence_span", "sequence_span_dtype"),
        ("publish_item", "publish_dtype"),
        ("adopt_item", "adopt_dtype"),
    ],
)
def test_an_array_dtype_is_laid_out_as_in_the_header(name: str, dtype: str) -> None:
    found = getattr(structs, dtype)
    expected = {"routing": "Q"} | dict(fields(f"routecap_{name}"))
    names = [field for field, _ in fields(f"routecap_{name}")]
    assert list(found.names) == names
    layout = struct.Struct("@" + "".join(expected[field] for field in names) + "0Q")
    assert found.itemsize == layout.size
    values = tuple(range(1, len(names) + 1))
    assert np.frombuffer(layout.pack(*values), found)[0].item() == values


def test_every_struct_of_the_header_is_laid_out_here() -> None:
    here = {
        f"routecap_{name}"
        for name, value in vars(structs).items()
        if isinstance(value, structs.Struct)
    }
    arrays = {
        "span",
        "accept_item",
        "extract_item",
        "finish_item",
        "missing",
        "segment",
        "layer_source",
        "layer_stats",
        "layer_probe",
        "received_counts",
        "piece",
        "plan_range",
        "plan_source",  # pairs of a number and a routing: see routecap.i
        "sequence_span",
        "publish_item",
        "adopt_item",
    }
    here |= {f"routecap_{name}" for name in arrays}
    assert here == set(re.findall(r"^typedef struct (routecap_\w+) \{", CODE, re.MULTILINE)) - {
        "routecap_api"
    }


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (
            routecap.Capturer.issue,
            ["routecap_step_issue", "ROUTECAP_PARTIAL", "Not capturable", "span_dtype"],
        ),
        (
            routecap.Capturer.record,
            ["routecap_layer_record", "Capturable", "ROUTECAP_ERR_CAPACITY"],
        ),
        (routecap.Routing.copy_to, ["routecap_routing_copy_to", "ROUTECAP_ERR_INCOMPLETE"]),
        (routecap.merge, ["ROUTECAP_ERR_CONFLICT"]),
        (routecap.Sequence.append, ["routecap_sequence_append", "ROUTECAP_ERR_NOT_READY"]),
    ],
)
def test_help_says_what_the_header_says(method: object, words: list[str]) -> None:
    assert method.__doc__ is not None
    for word in words:
        assert word in method.__doc__


PARTS = """
import sys, routecap
before = set(sys.modules)
heavy = {"safetensors", "torch"}
assert not heavy & before, heavy & before
for name in ("analysis", "experts", "log", "names", "remote"):
    assert getattr(routecap, name).__name__ == f"routecap.{name}", name
assert routecap.experts.usage and routecap.remote.connect
assert not hasattr(routecap, "plots")
"""


def test_parts_of_the_package_are_there_without_an_import_of_their_own() -> None:
    """Docs write routecap.experts.usage behind `import routecap`; it was an AttributeError."""
    run = subprocess.run([sys.executable, "-c", PARTS], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_every_public_name_has_a_docstring() -> None:
    for name in routecap.__all__:
        each = getattr(routecap, name)
        if isinstance(each, type) or inspect.isfunction(each):
            assert each.__doc__, name

"""What of the package is public: the constants and how they print, names, docstrings."""

import inspect
import pickle
import re
import subprocess
import sys
from enum import Enum, IntEnum
from pathlib import Path

import numpy as np
import pytest
import routecap
from routecap import names

PACKAGE = Path(routecap.__file__).parent
MADE = (PACKAGE / "_constants.py").read_text()
GROUPS = [getattr(routecap, name) for name in re.findall(r"^class (\w+)\(", MADE, re.MULTILINE)]


def test_every_group_of_constants_is_in_the_package() -> None:
    assert len(GROUPS) > 30 and all(issubclass(each, Enum) for each in GROUPS)


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


def test_every_group_that_a_call_takes_by_name_has_a_type_of_names() -> None:
    taken = set(
        re.findall(r"member\((\w+), ", "".join(path.read_text() for path in PACKAGE.glob("*.py")))
    )
    assert taken > {"Backend", "Method", "Order"} and {f"{group}Name" for group in taken} <= set(
        names.__all__
    )


@pytest.mark.parametrize("group", GROUPS)
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

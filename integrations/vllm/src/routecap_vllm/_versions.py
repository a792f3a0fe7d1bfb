"""Which module of ours is for the installed vLLM, and whether that release has all its places.

There is a module for each way in which vLLM brings rows to requests. Each lists in RELEASES, oldest
first, those that it was checked with.
"""

from __future__ import annotations

import re
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from ._options import get_options
from ._places import Fit, look

MODULES = ("_by_request", "_by_slot", "_aux_output")

note = ""  # "not checked with vLLM 0.99.0", in a process that captures in such a version


class Found(NamedTuple):
    """What there is for the installed vLLM.

    Attributes:
        version: Its number.
        module: Of ours, for this version, or else the one of whose places the most fit.
        checked: Whether routecap is checked with this version.
        why: Why routecap does not run in it; "" if it does.
    """

    version: str
    module: str
    checked: bool
    why: str

    @property
    def note(self) -> str:
        return "" if self.checked else f"not checked with vLLM {self.version}"


def find() -> Found:
    """Look at the installed vLLM. Nothing of it is imported."""
    number = installed()
    known = [each for each in MODULES if number.partition("+")[0] in _of(each).RELEASES]
    spec = find_spec("vllm")
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    if not folders:
        why = "" if known else f"routecap supports vLLM {supported()}, and this is {number}"
        return Found(number, known[0] if known else "", bool(known), why)
    also = "" if known else _of("_unchecked").PLACES
    if get_options().weights:
        also += _of("_weights").PLACES
    fits = {each: _look(each, also, Path(folders[0])) for each in known or MODULES}
    module = max(reversed(fits), key=lambda each: _share(fits[each]))
    fit = _share(fits[module]) == 1
    why = ""
    if not fit or not (known or get_options().unchecked):
        why = _why(number, module, fits[module])
    return Found(number, module, bool(known), why)


def installed() -> str:
    try:
        return version("vllm")
    except PackageNotFoundError:
        return "a vLLM without a version"


def release() -> tuple[int, ...]:
    """The installed one, as (0, 30, 0); later than any if it has no number."""
    number = re.match(r"\d+(\.\d+)*", installed())
    return tuple(map(int, number[0].split("."))) if number else (2**31,)


def supported() -> str:
    """As "0.21, 0.22 to 0.30": of each module the first release and the last."""
    ends = [[each.RELEASES[0], each.RELEASES[-1]] for each in map(_of, MODULES)]
    short = [[end.rpartition(".")[0] for end in each] for each in ends]
    return ", ".join(first if first == last else f"{first} to {last}" for first, last in short)


def _of(module: str) -> Any:
    return import_module(f".{module}", __package__)


def _look(module: str, also: str, folder: Path) -> list[Fit]:
    return look(_of(module).PLACES + also, folder, release())


def _share(fits: list[Fit]) -> float:
    return sum(not each.why for each in fits) / len(fits)


def _why(number: str, module: str, fits: list[Fit]) -> str:
    """Why routecap does not run: which places fit, and which do not."""
    bad = [f"  {each.place}: {each.why}" for each in fits if each.why]
    good = [f"  {each.place}" for each in fits if not each.why]
    lines = [
        f"routecap supports vLLM {supported()}, and this is {number}. Of the places that"
        f" routecap_vllm.{module} hooks and reads, {len(good)} of {len(fits)} fit."
    ]
    if bad:
        lines += ["These do not fit:", *bad, "These fit:"]
    else:
        lines += [
            "ROUTECAP_VLLM_UNCHECKED=1 runs it, not checked with this version, if each engine"
            " passes conform at its start. These fit:"
        ]
    return "\n".join([*lines, *good])

"""Which design of SGLang's the installed release has, and whether routecap is checked with it."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from ._options import ASKED, Options
from ._settings import Release
from ._surface import misfits

DESIGNS = ("_before_plugins", "_mixins", "_components", "_checkpoints")  # in their order


class Found(NamedTuple):
    """What there is for the installed SGLang.

    Attributes:
        number: Its release.
        design: A `Design` for it; None if routecap does not run in it.
        checked: Whether routecap is checked with it.
        why: Why routecap does not run in it; "" if it does.
    """

    number: str
    design: Any
    checked: bool
    why: str


def find(number: str, options: Options) -> Found:
    """Look for the design of this release. If it is a checked one, nothing of SGLang is imported."""
    release = release_of(number)
    if release is None:
        return Found(number, None, False, f"{known()}, and this is {number}")
    modules = [import_module(f".{name}", __package__) for name in DESIGNS]
    for module in modules:
        if _numbers(module.FIRST) <= release <= _numbers(module.LAST):
            return Found(number, _design(module, number, release, options), True, "")
    designs = [_design(module, number, release, options) for module in reversed(modules)]
    bad = {i: misfits(each.functions, each.fields) for i, each in enumerate(designs)}
    best = min(bad, key=lambda i: len(bad[i]))
    if bad[best]:
        lines = [f"{known()}, and this is {number}. These do not fit:", *bad[best]]
        return Found(number, None, False, "\n  ".join(lines))
    if not options.unchecked:
        setting = f"{ASKED}_UNCHECKED=1"
        why = f"{known()}, and this is {number}. All that is hooked fits: {setting} runs it, unchecked"
        return Found(number, None, False, why)
    return Found(number, designs[best], False, "")


def _design(module: Any, number: str, release: Release, options: Options) -> Any:
    made = module.design(number, release)
    return made.with_weights() if options.weights else made


def known() -> str:
    first = import_module(f".{DESIGNS[0]}", __package__).FIRST
    last = import_module(f".{DESIGNS[-1]}", __package__).LAST
    return f"routecap knows SGLang {first} to {last}"


def installed() -> str:
    try:
        return version("sglang")
    except PackageNotFoundError:
        return "of no version"


def release_of(number: str) -> Release | None:
    """0.5.10.post1 as (0, 5, 10, 1), which is behind (0, 5, 10) and before (0, 5, 11). None if this
    is no release: a candidate of one, say."""
    if not re.fullmatch(r"\d+(\.\d+)*(\.post\d+)?(\+.*)?", number):
        return None
    return _numbers(number.partition("+")[0])


def _numbers(number: str) -> Release:
    return tuple(map(int, number.replace("post", "").split(".")))

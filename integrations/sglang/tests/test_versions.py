"""The releases that are run, those that the adapter says it knows, and those of the guide."""

import json
import re
from importlib import import_module
from pathlib import Path

from routecap_sglang import _versions
from routecap_sglang._options import Options

FOLDER = Path(__file__).parents[1]
RUN = (FOLDER / "releases.txt").read_text().split()  # by check.sh
RANGES = {
    name: (module.FIRST, module.LAST)
    for name in _versions.DESIGNS
    for module in [import_module(f"routecap_sglang.{name}")]
}
FIRST, LAST = RANGES[_versions.DESIGNS[0]][0], RANGES[_versions.DESIGNS[-1]][1]


def test_the_releases_that_are_run_are_known_and_reach_from_the_first_to_the_last():
    assert RUN == sorted(set(RUN), key=_versions.release_of)
    assert [RUN[0], RUN[-1]] == [FIRST, LAST]
    assert all(_versions.find(each, Options()).checked for each in RUN)


def test_each_design_has_a_release_that_is_run():
    run = [_versions.release_of(each) for each in RUN]
    for name, ends in RANGES.items():
        first, last = map(_versions.release_of, ends)
        assert [each for each in run if first <= each <= last], f"{name}: none of {ends}"


def test_the_releases_that_trainers_pin_are_run():
    trainers = json.loads((FOLDER.parent / "replay/trainers.json").read_text())
    of_sglang = [each for each in trainers["trainers"] if each["engine"] == "SGLang"]
    pinned = {each["engine_version"] for each in of_sglang}
    assert pinned and pinned <= set(RUN)


def test_the_guide_says_which_releases_there_are():
    guide = (FOLDER / "README.md").read_text()
    assert f"SGLang {FIRST} to {LAST}," in guide and f"sglang=={LAST} " in guide
    lines = re.findall(r"^\| (0\.\S+?)(?:(?: to |, )(0\.\S+))? \| `(\w+)` \|", guide, re.MULTILINE)
    assert {name: (first, last or first) for first, last, name in lines} == RANGES

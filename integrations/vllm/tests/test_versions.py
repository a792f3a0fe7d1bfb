"""In which vLLM the adapter runs: by its number, and by the places that its sources have."""

import os
import re
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import routecap_vllm
from routecap_vllm import _answers, _hooks, _options, _versions
from routecap_vllm._asked import Asked
from routecap_vllm._places import look

FOLDER = Path(__file__).parents[1]
RUN = (FOLDER / "releases.txt").read_text().split()  # by release.sh
UNKNOWN = "0.99.0"
RELEASES = {each: import_module(f"routecap_vllm.{each}").RELEASES for each in _versions.MODULES}
FOUND = [(each, module) for module, numbers in RELEASES.items() for each in numbers]


def tables(module, release):
    """The places of a module of ours in a release, and those that one needs that is not checked."""
    own = [import_module(f"routecap_vllm.{each}").PLACES for each in (module, "_unchecked")]
    return places_in("".join(own), release)


def places_in(table, release):
    """The lines of a table that are of a release, without the words that say so."""
    found, here = [], True
    for line in re.sub(r",\n +", ", ", table).splitlines():
        name, *words = re.split(r" (since|until) (?=0)", line)
        kept = not words or within(release, *words)
        here = kept if line and not line.startswith(" ") else here
        found += [name] if kept and here else []
    return "\n".join(found)


def within(release, word, end):
    """Whether a release is one since or until another, whose patches count with it."""
    minor, last = (int(each.split(".")[1]) for each in (release, end))
    return minor >= last if word == "since" else minor <= last


def sources(table):
    """{file: text} of a vLLM that has these places, and no more."""
    found, text = {}, []
    for line in table.splitlines():
        place = line.strip()
        if line and not line.startswith(" "):
            text = found.setdefault(line, [])
        elif ":" in place:
            name, _, attributes = place.partition(":")
            text += [f"class {name}:", *(f"    {each} = None" for each in attributes.split())]
            text += ["    pass"]
        elif place and "(" not in place:
            text += [f"class {each}:" for each in place.split()]
        elif place:
            owner, dot, method = (
                place.rpartition(".") if "." in place.split("(")[0] else ("", "", place)
            )
            if "(" in owner:  # the dots of "..."
                owner, _, method = place.partition(".")
            method = method.replace(", ...)", ", *more)").replace("(...)", "(*more)")
            if owner:
                text += [f"class {owner}:"]
                text += ["    @classmethod"] if "(cls" in method else []
            text += [f"    def {method}: ..." if owner else f"def {method}: ..."]
    return {file_of(name, found): merged(text) for name, text in found.items()}


def file_of(name, names):
    package = any(each.startswith(f"{name}.") for each in names)
    return f"{name.replace('.', '/')}{'/__init__' if package else ''}.py"


def merged(lines):
    """One class of each name."""
    classes, functions = {}, []
    for line in lines:
        if line.startswith("class "):
            body = classes.setdefault(line, ["    pass"])
        elif line.startswith("def "):
            functions.append(line)
        else:
            body.append(line)
    return "\n".join(
        [*functions, *(f"{name}\n" + "\n".join(body) for name, body in classes.items())]
    )


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """installed(version, module, before, after): a vLLM with the places of a module of ours, and of
    `before`, which one of its sources has, `after` in its place.
    """

    def put(version, module, before="", after=""):
        changed = 0
        places = tables(module, version)
        for name, text in {"vllm/__init__.py": "", **sources(places)}.items():
            changed += before in text if before else 0
            file = tmp_path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text.replace(before, after) if before else text)
        assert not before or changed
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setattr(_versions, "version", lambda name: version)

    return put


@pytest.mark.parametrize(("version", "module"), FOUND)
def test_a_release_that_is_checked_has_the_module_of_its_design(installed, version, module):
    installed(version, module)
    assert _versions.find() == (version, module, True, "")


def test_the_releases_that_are_run_are_those_that_a_module_says():
    assert [each for each, _ in FOUND] == RUN


def test_the_guide_and_the_refusal_say_which_releases_there_are():
    last = RUN[-1].rpartition(".")[0]
    assert _versions.supported() == f"0.21, 0.22 to 0.30, 0.31 to {last}"
    guide = (FOLDER / "README.md").read_text()
    assert f"any release from 0.21 to {last}," in guide and f"from {RUN[0]} to {RUN[-1]}," in guide
    found = [end for _, end in re.findall(r"\b(0\.31|0\.21) to (0\.\d\d)\b", guide)]
    assert set(found) == {"0.30", last}, "an end of a range that is not the last release"


# Releases from 0.28 on choose the second model runner by default for some models, or all. All
# places fitted, and the engine died of "no attribute 'requests'".
@pytest.mark.parametrize("v2", [False, True])
@pytest.mark.parametrize(("version", "module"), FOUND)
def test_the_model_runner_that_the_engine_chooses_is_hooked_or_refused(version, module, v2):
    face = import_module(f"routecap_vllm.{module}")
    config = SimpleNamespace(use_v2_model_runner=v2)
    if module == "_by_slot":  # until 0.27 vLLM refuses capture in the second one
        name = "CaptureV2" if v2 else "Capture"
        assert face.capture_of(config) is getattr(face, name)
        return
    config.aux_output_config = SimpleNamespace(enabled=True)
    served = module == "_aux_output"
    if v2 == served:
        _hooks.expect_runner(config, served)
        return
    with pytest.raises(ValueError, match=f"set VLLM_USE_V2_MODEL_RUNNER={int(served)}, or unset"):
        _hooks.expect_runner(config, served)


@pytest.mark.parametrize(
    ("module", "like"),
    [("_by_slot", "0.26.1"), ("_by_slot", "0.28.1"), ("_aux_output", "0.31.1")]
    + [("_aux_output", UNKNOWN)],
)
def test_another_version_is_refused_unless_it_is_asked_for(installed, monkeypatch, module, like):
    installed(like, module)
    found = _versions.find()
    assert (found.module, found.checked) == (module, False)
    assert f"this is {like}" in found.why and "ROUTECAP_VLLM_UNCHECKED=1" in found.why
    release = tuple(map(int, like.split(".")))
    places = [each.place for each in look(tables(module, like), _folder(), release)]
    assert all(f"  {place}" in found.why for place in places)
    with pytest.raises(RuntimeError, match=f"this is {like}"):
        routecap_vllm.install()
    monkeypatch.setenv("ROUTECAP_VLLM_UNCHECKED", "1")
    found = _versions.find()
    assert not found.why and found.note == f"not checked with vLLM {like}"


def _folder():
    return Path(find_spec("vllm").submodule_search_locations[0])


CHANGED = [
    ("def init_worker(self, all_kwargs)", "def init_worker(self, rank, all_kwargs)", "init_worker"),
    ("def begin_step(", "def start_step(", "begin_step"),
    ("    query_start_loc_np = None\n", "", "query_start_loc_np"),
    ("class AuxRequestOutput:", "class AuxRequest:", "AuxRequestOutput"),
]


@pytest.mark.parametrize("version", [f"{RUN[-1]}.1", UNKNOWN])
@pytest.mark.parametrize(("before", "after", "named"), CHANGED)
def test_a_place_that_does_not_fit_is_named_whatever_is_set(
    installed, monkeypatch, version, before, after, named
):
    installed(version, "_aux_output", before, after)
    monkeypatch.setenv("ROUTECAP_VLLM_UNCHECKED", "1")
    why = _versions.find().why
    bad, _, good = why.partition("These fit:")
    bad = bad.partition("These do not fit:")[2].strip().splitlines()
    assert len(bad) == 1 and named in bad[0] and good
    assert "UNCHECKED" not in why


# In a version that is not known, a second install put a base before the scheduler's class twice:
# the engine ended with a TypeError. vLLM's own loading of plugins is a second one.
TWICE = """
import os
import sys

import routecap_vllm

for folder in sys.argv[1:]:
    if not os.fork():  # a process of its own for each release, which has what takes long already
        break
    if os.wait()[1]:
        open(f"{folder}/said", "a").write("it did not end with 0")
else:
    sys.exit()
said = os.open(f"{folder}/said", os.O_WRONLY | os.O_CREAT)
os.dup2(said, 1)
os.dup2(said, 2)
sys.path.insert(0, folder)


def engine():
    found = {}
    for name, module in list(sys.modules.items()):
        if name.startswith("vllm."):
            for key, value in vars(module).items():
                if isinstance(value, type):
                    found |= {(name, key, each): id(own) for each, own in vars(value).items()}
                found[name, key] = id(value)
    return found


routecap_vllm.install()
first = engine()
routecap_vllm.install()
routecap_vllm.plugin()
assert engine() == first, set(engine().items()) ^ set(first.items())
print(len(first))
"""
INSTALLED = [*FOUND, ("0.28.1", "_by_slot"), (UNKNOWN, "_aux_output")]


@pytest.fixture(scope="module")
def said_by_a_second_install(tmp_path_factory):
    """What each release said."""
    folders = {}
    for version, module in INSTALLED:
        folders[version] = tmp_path_factory.mktemp(version)
        for name, text in {"vllm/__init__.py": "", **sources(tables(module, version))}.items():
            file = folders[version] / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        about = folders[version] / f"vllm-{version}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "ROUTECAP_VLLM_UNCHECKED": "1",
    }
    subprocess.run([sys.executable, "-c", TWICE, *folders.values()], env=environment, check=True)
    return {version: (folder / "said").read_text() for version, folder in folders.items()}


@pytest.mark.slow
@pytest.mark.parametrize("version", [version for version, _ in INSTALLED])
def test_a_second_install_changes_nothing(said_by_a_second_install, version):
    said = said_by_a_second_install[version]
    assert said.strip().isdigit() and int(said) > 40, said


def test_a_module_that_is_gone_is_named():
    [one] = look("vllm.gone\n    function(a, ...)\n", Path(__file__).parent, (0, 21, 0))
    assert one == ("vllm.gone function(a, ...)", "there is no such module")


@pytest.mark.parametrize(
    ("release", "named"),
    [((0, 24, 0), {"old", "both"}), ((0, 24, 9), {"old", "both"}), ((0, 25, 0), {"both"})]
    + [((0, 28, 0), {"new", "newer", "both"}), ((1,), {"new", "newer", "both"})],
)
def test_a_place_is_looked_for_in_the_releases_that_have_it(release, named):
    table = """
vllm.one until 0.24
    old
vllm.two
    both
    new since 0.28
vllm.three since 0.28
    newer
"""
    found = [each.place.split()[-1] for each in look(table, Path(__file__).parent, release)]
    assert set(found) == named and len(found) == len(named)


def test_the_plugin_says_what_is_not_checked(installed, monkeypatch, caplog):
    installed(UNKNOWN, "_aux_output")
    monkeypatch.setenv("ROUTECAP_VLLM", "1")
    monkeypatch.setattr(routecap_vllm, "_install", lambda found: None)
    with caplog.at_level("INFO", "vllm.routecap"):
        routecap_vllm.plugin()
        assert "vLLM captures routed experts itself" in caplog.text and "fit" in caplog.text
        caplog.clear()
        monkeypatch.setenv("ROUTECAP_VLLM_UNCHECKED", "1")
        routecap_vllm.plugin()
    assert "not checked with vLLM 0.99.0" in caplog.text


def test_an_answer_says_that_it_is_not_checked(monkeypatch):
    answer = _answers.Answer(np.ones((3, 2, 1), np.int16), Asked(format="lists"))
    assert "routed_experts_unchecked" not in answer.for_json()
    monkeypatch.setattr(_versions, "note", "not checked with vLLM 0.99.0")
    assert answer.for_json()["routed_experts_unchecked"] == "not checked with vLLM 0.99.0"
    assert _options.Options().unchecked is False

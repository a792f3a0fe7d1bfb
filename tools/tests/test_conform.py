"""Conform finds nothing in an engine that is right, and each planted fault by the check for it."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import routecap
from routecap.models import describe
from routecap_testing.pretended import (
    CONFIG,
    EXPERTS,
    FORMATS,
    VOCABULARY,
    Pretended,
    others,
    served,
)
from routecap_tools import conform
from routecap_tools.command import main
from routecap_tools.conform import Report

MODEL = describe(CONFIG)


def live(engine: Pretended) -> Any:
    """The model itself, which gives a row for every token."""

    def route(tokens: Any) -> routecap.Routing:
        listed = [int(each) for each in tokens]
        ids = [engine.row(listed, end, str(engine.weights)) for end in range(1, len(listed) + 1)]
        return routecap.Routing.from_arrays(np.array(ids), experts=EXPERTS)

    return route


def judged(engine: Pretended, **given: Any) -> Report:
    given.setdefault("adapter", "lora")
    made = given.pop("by", None) or engine.engine()
    return conform.judge(made, MODEL, vocabulary=VOCABULARY, **given)


def results(report: Report) -> dict[str, str]:
    return {each.check: each.result for each in report.verdicts}


def failed(report: Report) -> set[str]:
    return {each.check for each in report.verdicts if each.result == "fails"}


def numbers(report: Report) -> set[str]:
    """Of the published failures that findings resemble."""
    return {text.split()[0] for each in report.verdicts for text in each.like}


# ---- What is right


@pytest.mark.parametrize("noise", [pytest.param(0.0, marks=pytest.mark.slow), 0.02])
def test_nothing_is_found_in_an_engine_that_is_right(noise: float) -> None:
    engine = Pretended(noise=noise)
    beside = Pretended().engine()
    report = judged(engine, beside=beside, live=live(engine), needed=conform.CHECKS)
    assert results(report) == dict.fromkeys(conform.CHECKS, "passes")
    assert report.status == 0
    different = sum(each.compared.cells_different for each in report.verdicts)
    assert bool(different) == bool(noise)


def test_noise_that_changes_much_of_few_rows_and_little_of_many_is_no_fault() -> None:
    """As where activations are rounded with one scale for all tokens of a step."""

    def judged_with(little: float) -> Report:
        engine, draw = Pretended(), np.random.default_rng(0)

        def noisy(output: Any) -> Any:
            ids, much = output.ids.copy(), draw.random(len(output.ids)) < 0.01
            ids[much, :, 1:] = (ids[much, :, :1] + np.arange(1, 4)) % EXPERTS
            for row in np.flatnonzero(~much & (draw.random(len(ids)) < little)):
                cell = ids[row, draw.integers(ids.shape[1])]
                cell[0] = min(set(range(EXPERTS)) - set(cell.tolist()))
            return ids

        made = conform.Functions("noisy", engine.generate, noisy, lambda output: output.tokens)
        return judged(engine, by=made, adapter="", only=["batch"])

    assert not failed(judged_with(0.3))
    assert failed(judged_with(0.0)) == {"batch"}
    assert results(judged_with(0.9))["batch"] == "not run"


def test_a_stale_row_here_and_there_is_found_in_noise_that_changes_few_ids() -> None:
    """Sixteen such rows were fewer than an eighth of the 258 that a trained model's activations in
    float8 changed in part. Noise leaves a row half of its ids; a stale one has hardly any."""

    def judged_with(stale: float, seed: int) -> Report:
        engine, draw = Pretended(), np.random.default_rng(seed)
        last: list[Any] = [None]

        def noisy(output: Any) -> Any:
            ids, before = output.ids.copy(), last[0]
            last[0] = output.ids
            for row in np.flatnonzero(draw.random(len(ids)) < 0.2):
                cell = ids[row, draw.integers(ids.shape[1])]
                cell[0] = min(set(range(EXPERTS)) - set(cell.tolist()))
            if before is not None and draw.random() < stale:
                row = draw.integers(min(len(ids), len(before)))
                ids[row] = before[row]
            return ids

        made = conform.Functions("noisy", engine.generate, noisy, lambda output: output.tokens)
        return judged(engine, by=made, adapter="", only=["prefix", "batch", "choices"])

    for seed in range(3):
        assert not failed(judged_with(0.0, seed))
        assert failed(judged_with(0.5, seed))


class Rounds(Pretended):
    """Rounds with one scale for all tokens of a step: what else is in it, or how long a prompt is,
    changes up to half of the ids, alike in four rows one behind the other."""

    def answer(self, request: Any, together: int, at: int) -> Any:
        self.step = [together, len(request.prompt)]
        return super().answer(request, together, at)

    def noisy(self, ids: Any, together: int) -> Any:
        draw, ids = np.random.default_rng([*self.step, int(ids[0, 0, 0])]), ids.copy()
        changed = others(draw, ids)
        for first in range(0, len(ids), 4):
            few, rows = draw.integers(3), slice(first, first + 4)
            ids[rows, :, :few] = changed[rows, :, :few]
        return ids


@pytest.mark.slow
def test_where_noise_is_as_large_as_a_fault_nothing_is_judged() -> None:
    """Five checks failed of engines that were right: rows 27 to 34 had 53 % of their ids in common,
    85 of 1248 rows were nearer to those of other tokens, 78 % of the ids were the model's."""
    noisy = ["prefix", "batch", "choices", "pressure", "model"]
    engine = Rounds()
    report = judged(engine, live=live(engine), only=["token", "again", *noisy], adapter="")
    assert not failed(report)
    said = {each.check: each.what for each in report.verdicts if each.result == "not run"}
    assert set(said) == set(noisy)
    assert all(re.search("([5-9].|100)% of the rows of equal", what) for (what,) in said.values())
    assert report.status == 2  # the model was given
    nothing = judged(Rounds(), only=["prefix", "batch"], adapter="")
    assert nothing.status == 2 and nothing.summary.startswith("Nothing was compared")


@pytest.mark.parametrize(
    "fault",
    {
        "swapped": "batch",
        "choices share the first's rows": "choices",
        "the first life's rows": "pressure",
        "a chunk is not there": "prefix",
        "one expert of every cell is drawn at random": "again",
    }.items(),
)
def test_noise_does_not_hide_the_rows_of_another_text(fault: tuple[str, str]) -> None:
    planted, check = fault
    assert check in failed(judged(Rounds(planted), only=[check], adapter="")), planted


@pytest.mark.slow
def test_noise_does_not_hide_another_model_or_layer() -> None:
    engine = Rounds()
    drafts = judged(Rounds("drafts write layer 0"), beside=engine.engine(), only=["against"])
    assert "against" in failed(drafts) and "F17" in numbers(drafts)
    assert "model" in failed(judged(engine, live=live(Pretended(weights=7)), only=["model"]))
    assert "model" in failed(judged(Rounds("later"), live=live(engine), only=["model"]))


def test_what_an_engine_cannot_do_is_not_run_and_says_why() -> None:
    engine = Pretended()
    plain = engine.engine(can=(), cached=None, text=None, update=None, preemptions=None)
    report = judged(engine, by=plain, adapter="")
    not_run = {each.check: each.what for each in report.verdicts if each.result == "not run"}
    assert set(not_run) == {
        *("cached", "stream", "choices", "stop", "stop_text", "abort", "pressure"),
        *("against", "adapter", "update", "model"),
    }
    assert all(len(what) == 1 and what[0] for what in not_run.values())
    assert report.status == 0
    assert judged(engine, by=plain, only=["again"], needed=["cached"]).status == 2


def test_a_judge_that_compared_nothing_says_so() -> None:
    """Checks that look at each answer by itself passed, and the status was 0."""

    class Constant(Pretended):
        def row(self, tokens: Any, end: int, version: str) -> Any:
            return super().row([5], 1, "")  # no row can be told from another

    report = judged(Constant(), adapter="")
    assert report.status == 2 and results(report)["rows"] == "passes"
    assert report.summary.startswith("Nothing was compared")
    assert {"again", "token", "batch"} <= set(report.not_judged)
    assert all(name in report.summary for name in report.not_judged)


def test_what_the_caller_gave_something_for_has_to_be_judged() -> None:
    engine = Pretended()
    no_change = engine.engine(update=lambda: None)  # nothing that a check could see
    only = ["again", "update", "adapter"]
    report = judged(engine, by=no_change, only=only, adapter="")
    assert results(report)["update"] == "not run" and report.status == 2
    weak = Pretended()

    def as_the_model(requests: Any) -> Any:
        return weak.generate([replace(each, adapter="") for each in requests])

    made = weak.engine(update=None)
    made._generate = as_the_model
    report = judged(weak, by=made, only=only)
    assert results(report)["adapter"] == "not run" and report.status == 2
    assert "adapter" in report.summary and report.needed == ("adapter",)


def test_the_model_is_asked_before_its_weights_change() -> None:
    """After an update, with --model, the old weights were compared with rows of the new ones."""
    engine = Pretended()
    report = judged(engine, live=live(Pretended()), only=["model", "update"])
    assert results(report) | {"model": "passes", "update": "passes"} == results(report)
    assert report.status == 0


def test_an_engine_that_gives_no_answer_to_a_request_is_told_so() -> None:
    engine = Pretended()
    none = conform.Functions("none", lambda asked: [[] for _ in asked], lambda _: 0, lambda _: [1])
    assert set(results(judged(engine, by=none, adapter="")).values()) == {"not run"}
    few = conform.Functions("few", lambda asked: [], lambda _: 0, lambda _: [1])
    with pytest.raises(routecap.Error, match="0 answers to"):
        judged(engine, by=few, adapter="")
    with pytest.raises(routecap.Error, match="tokens is 3"):
        judged(engine, tokens=3)


def test_an_engine_that_refuses_is_no_pass() -> None:
    def refuse(requests: Any) -> Any:
        raise NotImplementedError("capture is not there with this backend")

    engine = Pretended()
    made = conform.Functions("refuses", refuse, lambda each: each, lambda each: each)
    report = judged(engine, by=made)
    assert set(results(report).values()) == {"refuses", "not run"}
    assert "not there with this backend" in report.verdicts[0].what[0]
    assert report.status == 2


def test_checks_that_could_prove_nothing_do_not_pass() -> None:
    engine = Pretended(room=1000)
    report = results(judged(engine, only=["pressure"]))
    assert report["pressure"] == "not run"

    class Constant(Pretended):
        def row(self, tokens: Any, end: int, version: str) -> Any:
            return np.tile(np.arange(4, dtype=np.int16), (6, 1)) + 3

    [again, *_] = judged(Constant(), only=["again"]).verdicts
    assert again.result == "not run" and "cannot be told apart" in again.what[0]


def test_missing_cells_are_no_fault_and_no_proof() -> None:
    engine = Pretended()

    def with_holes(output: Any) -> Any:
        ids = output.ids.copy()
        ids[: output.cached] = -1
        return ids

    made = conform.Functions(
        "holes",
        engine.generate,
        with_holes,
        lambda output: output.tokens,
        cached=lambda output: output.cached,
    )
    report = judged(engine, by=made, adapter="", only=["again", "cached"])
    assert not failed(report)
    assert results(report)["cached"] == "not run"


# ---- What is wrong

FAULTS = {
    "later": ("token", "F07"),
    "earlier": ("token", "F07"),
    "swapped": ("batch", "F24"),
    "a zero row": ("each", "F07"),
    "zeros of cached tokens": ("cached", "F05"),
    "the last owner's rows of cached tokens": ("cached", "F05"),
    "one row of a slot's last owner": ("batch", "F04"),
    "computed again with other weights": ("again", "F24"),
    "a chunk is not there": ("prefix", "F08"),
    "streams say everything so far again": ("rows", "F30"),
    "streams end early": ("stream", "F30"),
    "choices share the first's rows": ("choices", "F30"),
    "one token has the last owner's rows": ("one", "F06"),
    "a row too many": ("rows", "F06"),
    "stop tokens end without rows": ("rows", "F12"),
    "stop tokens shift rows": ("stop", "F12"),
    "stop texts shift rows": ("stop_text", "F12"),
    "the rows of who left": ("abort", "F28"),
    "the first life's rows": ("pressure", "F10"),
    "one expert of a layer is drawn at random": ("again", "F17"),
    "one expert of every cell is drawn at random": ("again", "F11"),
    "the last row is the one before": ("prefix", "F04"),
    "the last row is another request's": ("batch", "F04"),
    "single rows of a length are the ones before": ("prefix", "F04"),
    "the first rows of blocks are the ones before": ("token", "F07"),
    "choices generate the first's rows": ("choices", "F30"),
    "cache knows no adapters": ("adapter", "F05"),
    "adapters have the model's rows": ("adapter", "F05"),
    "keeps blocks": ("adapter", "F05"),
    "keeps blocks of one token": ("adapter", "F05"),
    "rows of old weights": ("update", "F11"),
    "an id too high": ("each", "F13"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_by_the_check_for_it(fault: str) -> None:
    check, number = FAULTS[fault]
    in_check = {"a zero row": "prefix", "stop tokens end without rows": "stop"}
    in_check["streams say everything so far again"] = "stream"
    report = judged(Pretended(fault, noise=0.01), only=[in_check.get(fault, check), "again"])
    assert report.status == 1
    assert check in failed(report), [each.what for each in report.verdicts if each.what]
    assert number in numbers(report)


@pytest.mark.parametrize("fault", ["keeps blocks", "keeps blocks of one token"])
def test_a_cache_that_an_update_does_not_empty_is_found(fault: str) -> None:
    """Of a prompt's rows only those changed that were computed anew, and one was enough to pass."""
    assert failed(judged(Pretended(fault), only=["update"])) == {"update"}


LAST = ["the last row is the one before", "the last row is another request's"]


@pytest.mark.parametrize("fault", LAST)
def test_a_last_row_that_is_another_is_found_in_whatever_checks_there_are(fault: str) -> None:
    """Each of `one`, `prefix` and `stop` compared one such row, and took it for noise."""
    if "before" in fault:
        for only in (["prefix"], ["choices"]):
            assert failed(judged(Pretended(fault), only=only, adapter="")) & set(only)
        # One place in each of several checks.
        assert failed(judged(Pretended(fault), only=["one", "stop"], adapter="")) == {"rows"}
    assert judged(Pretended(fault), seed=0).status == 1


@pytest.mark.slow
@pytest.mark.parametrize("fault", LAST)
def test_a_last_row_that_is_another_is_found_with_any_seed(fault: str) -> None:
    for seed in (1, 2):
        assert judged(Pretended(fault), seed=seed).status == 1


def test_whoever_is_preempted_is_compared() -> None:
    """Of 24 requests the first four were, which an engine that preempts the last never preempts."""
    for room in (14, 20, 23):
        report = judged(Pretended("the first life's rows", room=room), only=["pressure"])
        assert "pressure" in failed(report), room
        [pressure] = [each for each in report.verdicts if each.check == "pressure"]
        assert pressure.notes == (f"{24 - room} preemptions of 24 requests, all compared",)


def test_noise_elsewhere_does_not_hide_what_equal_batches_say() -> None:
    """With noise in most rows of larger batches all was "not run", and the status 0."""
    noisy = {"noise": 0.5, "weights": 3}
    right = judged(Pretended(**noisy), only=["again", "batch", "one"], adapter="")
    assert results(right)["batch"] == "not run" and results(right)["again"] == "passes"
    assert right.status == 0 and "batch" in right.not_judged and "batch" in right.summary
    for fault in ("one expert of every cell", "one expert of a layer"):
        report = judged(Pretended(f"{fault} is drawn at random", **noisy), only=["again", "batch"])
        assert "again" in failed(report)


def test_drafts_that_write_another_layer_are_found_beside_an_engine_without() -> None:
    report = judged(
        Pretended("drafts write layer 0"), beside=Pretended().engine(), only=["against"]
    )
    assert "against" in failed(report) and "F17" in numbers(report)


def test_the_model_finds_what_no_comparison_can() -> None:
    engine = Pretended()
    other = Pretended(weights=7)
    assert failed(judged(engine, live=live(other), only=["model"])) == {"model"}


def test_a_layer_is_named_as_the_decoder_counts_it() -> None:
    engine = Pretended("one expert of a layer is drawn at random")

    def mapped(output: Any) -> routecap.Routing:
        layers = [3, 4, 6, 7, 8, 9]
        return routecap.Routing.from_arrays(output.ids, experts=EXPERTS, layer_map=layers)

    made = conform.Functions("mapped", engine.generate, mapped, lambda output: output.tokens)
    [again, *_] = judged(engine, by=made, only=["again"], adapter="").verdicts
    assert again.result == "fails" and "layer 6 (captured layer 2) differs" in again.what[0]


def test_every_check_finds_a_fault_and_is_run_clean() -> None:
    found = {check for check, _ in FAULTS.values()} | {"against", "model"}
    assert found == set(conform.CHECKS)


# ---- Over HTTP


@pytest.mark.parametrize("format", FORMATS)
def test_a_server_in_each_format_of_the_wire(format: str) -> None:
    with served(Pretended(), format) as url:
        engine = conform.Http(url, MODEL)
        assert engine.name == "vLLM 0.0"
        report = judged(
            Pretended(), by=engine, only=["token", "cached", "stream", "choices", "one"]
        )
        has_not = {"stream"} if format == "split" else set()
        assert {name for name, result in results(report).items() if result != "passes"} == has_not


@pytest.mark.parametrize("sglang", [pytest.param(False, marks=pytest.mark.slow), True])
def test_servers_of_both_kinds(sglang: bool, tmp_path: Path) -> None:
    right, wrong = Pretended(room=0), Pretended("later", room=0)
    format = "raw.base64" if sglang else "lists"
    with served(right, format, sglang) as url:
        engine = conform.Http(url, MODEL, update="true")
        assert engine.name.startswith("SGLang" if sglang else "vLLM")
        report = judged(right, by=engine)
        assert not failed(report)
        not_run = {name for name, result in results(report).items() if result == "not run"}
        assert not_run == {"against", "model", "update"}  # the command changes nothing
    with served(wrong, format, sglang) as url:
        assert "token" in failed(judged(wrong, by=conform.Http(url, MODEL), only=["token"]))


def test_what_a_server_refuses_is_said_in_its_words() -> None:
    with served(Pretended()) as url:
        engine = conform.Http(url, MODEL, body={"n": 5})
        [again, *_] = judged(Pretended(), by=engine, only=["again"]).verdicts
        assert again.result == "refuses" and "n is too large" in again.what[0]


# ---- The command


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return str(path)


def test_the_commands_status_report_and_page(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with served(Pretended()) as url:
        options = ["--html", str(tmp_path / "a.html"), "--json", str(tmp_path / "a.json")]
        assert main(["conform", url, "--config", config, *options]) == 0
        only = ["--only", "again", "--require", "all"]
        assert main(["conform", url, "--config", config, *only]) == 2
    report = json.loads((tmp_path / "a.json").read_text())
    assert report["status"] == 0 and report["engine"] == "vLLM 0.0"
    assert [each["check"] for each in report["verdicts"]] == list(conform.CHECKS)
    text = (tmp_path / "a.html").read_text()
    assert "<script" not in text and not re.search(r'(src|href)="', text)
    assert all(f"<td>{check}<small>" in text for check in conform.CHECKS)
    capsys.readouterr()
    with served(Pretended("zeros of cached tokens")) as url:
        options = ["--html", str(tmp_path / "b.html"), "--only", "cached"]
        assert main(["conform", url, "--config", config, *options]) == 1
    said = capsys.readouterr().out
    assert said.startswith("vLLM 0.0: A check fails.")
    assert "fails    cached" in said and "They are zeros in one of the two" in said
    assert "like F05" in said and "SGLang #26975" in (tmp_path / "b.html").read_text()


def test_a_name_in_a_page_is_text() -> None:
    engine = Pretended().engine(can=())
    engine.name = "<script>alert(1)</script>"
    report = conform.judge(engine, MODEL, vocabulary=VOCABULARY, only=["again"])
    assert "<script" not in conform.page(report)


def test_the_command_takes_an_object_of_python(
    config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "mine.py").write_text(
        "from routecap_testing.pretended import Pretended\ndef right(): return Pretended().engine()\n"
    )
    asked = ["conform", "mine:right", "--config", config, "--only", "again"]
    assert main([*asked, "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["engine"] == "pretended 1.0"
    assert main(["conform", "mine", "--config", config]) == 2
    assert main(["conform", "http://127.0.0.1:9", "--config", config]) == 2
    assert main(["conform", "mine:right"]) == 2


# ---- The page


def test_the_page_has_every_check_as_the_code_has_it() -> None:
    page = Path(__file__).resolve().parents[2] / "docs/conform.md"
    text = page.read_text().partition("## The checks")[2].replace("\n  ", " ")
    listed = re.findall(r"^- `(\w+)`: (.*)$", text.partition("What some")[0], re.MULTILINE)
    assert dict(listed) == dict(conform.CHECKS)


def test_the_engine_of_the_page_is_one() -> None:
    page = Path(__file__).resolve().parents[2] / "docs/conform.md"
    [program] = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    right = Pretended()

    class Mine:
        def __init__(self, prompt: tuple[int, ...], most: int) -> None:
            [[output]] = right.generate([conform.Request(prompt, most)])
            self.prompt, self.routed_experts = list(prompt), output.ids
            self.new = output.tokens[len(prompt) :]

    names: dict[str, Any] = {"run": Mine}
    exec(program, names)
    report = judged(right, by=names["engine"](), adapter="", only=["token", "again", "batch"])
    assert report.status == 0 and results(report)["batch"] == "passes"

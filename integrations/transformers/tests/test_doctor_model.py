"""The doctor asks a model: one that was trained, about real text, as it generates it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import routecap
import routecap_transformers
import torch
from routecap_tools import doctor
from routecap_tools.command import main
from routecap_tools.doctor._case import of_array
from routecap.models import describe
from transformers import AutoModelForCausalLM

WEIGHTS = Path(__file__).parents[3] / "tests" / "model" / "weights"
TEXT = (Path(__file__).parents[3] / "LICENSE").read_bytes()
PROMPTS = [TEXT[:300], TEXT[1000:1240], TEXT[:120] + TEXT[2000:2100]]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three captured generations, of which two begin alike, and their tokens: bytes."""
    folder = tmp_path_factory.mktemp("job")
    model = AutoModelForCausalLM.from_pretrained(WEIGHTS).eval()
    tokens = {}
    with routecap_transformers.attach(model) as capture:
        for number, prompt in enumerate(PROMPTS):
            out = model.generate(
                input_ids=torch.tensor([list(prompt)]),
                max_new_tokens=20,
                do_sample=False,
                pad_token_id=0,
            )
            tokens[f"request-{number}"] = out[0].tolist()
        routings = dict(zip(tokens, capture.take(), strict=True))
    routecap.save(folder / "job.tar", routings)
    (folder / "tokens.json").write_text(json.dumps(tokens))
    ids = {name: routing.ids(np.int16) for name, routing in routings.items()}
    np.savez(
        folder / "shifted.npz", **{name: np.roll(each, 1, axis=0) for name, each in ids.items()}
    )
    stale = {name: each.copy() for name, each in ids.items()}
    stale["request-2"][:100] = stale["request-1"][:100]
    np.savez(folder / "stale.npz", **stale)
    return folder


def asked(
    job: Path, file: str, capsys: pytest.CaptureFixture[str]
) -> tuple[int, dict[str, object]]:
    capsys.readouterr()
    given = ["--tokens", str(job / "tokens.json"), "--model", str(WEIGHTS), "--control", "--json"]
    status = main(["doctor", str(job / file), *given])
    return status, json.loads(capsys.readouterr().out)


def test_a_generation_that_was_captured_is_what_the_model_chooses(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All that is not checked is whether rows are another text's: the rows of a model as small as
    this one say too little."""
    status, report = asked(job, "job.tar", capsys)
    assert status == 3 and report["findings"] == []
    missing = [each for each in report["not_checked"] if each["asked"]]
    assert [(each["name"], each["check"]) for each in missing] == [
        (f"request-{number}", "prefix") for number in range(3)
    ]
    assert all("too little information" in each["why"] for each in missing)
    assert all({"shift", "dense", "model"} <= set(each) for each in report["checked"].values())
    assert all(
        note["note"].startswith("100.0% of the ids are those of the model")
        for note in report["notes"]
    )


def test_a_shift_is_found_by_the_tokens_and_by_the_model(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, report = asked(job, "shifted.npz", capsys)
    found = {(each["name"], each["check"], each["like"][:3]) for each in report["findings"]}
    assert status == 1
    assert found >= {
        (f"request-{number}", check, "F07") for number in range(3) for check in ("shift", "model")
    }


def test_rows_of_another_request_are_found_by_the_text_that_begins_alike_and_by_the_model(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, report = asked(job, "stale.npz", capsys)
    found = {(each["name"], each["check"]) for each in report["findings"]}
    assert status == 1
    assert found == {("request-0", "prefix"), ("request-2", "model")}


def test_of_real_texts_nothing_is_found_and_no_shift_is_missed() -> None:
    """What cannot be told of a text is not checked; it is never wrong."""
    model = AutoModelForCausalLM.from_pretrained(WEIGHTS).eval()
    known = describe(WEIGHTS)
    told = 0
    for first in range(0, len(TEXT) - 600, 1000):
        tokens = list(TEXT[first : first + 150 + first % 7 * 60])
        with routecap_transformers.attach(model) as capture, torch.no_grad():
            model(input_ids=torch.tensor([tokens]), use_cache=False)
            [routing] = capture.take()
        ids = routing.ids(np.int16)
        for shift in (-1, 0, 1):
            case = of_array("text", np.roll(ids, shift, axis=0))
            report = doctor.examine({"text": case}, tokens=tokens, model=known)
            found = {(each.check, each.like[:3]) for each in report.findings}
            checked = "shift" in report.checked["text"]
            assert found == ({("shift", "F07")} if shift and checked else set()), (first, shift)
            told += checked
    assert told > 10

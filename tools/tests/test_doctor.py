"""The doctor finds each published failure where it is planted, and nothing in what is right."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import ZIP_DEFLATED, ZIP_LZMA, ZipFile

import numpy as np
import pytest
import routecap
from numpy.typing import NDArray
from routecap.models import describe
from routecap_tools import doctor
from routecap_tools.command import main
from routecap_tools.doctor import Report
from routecap_tools.doctor._case import of_array, of_sample

Ids = NDArray[Any]


class Text(NamedTuple):
    """A text and how a model routes it: by the token above all, and by what came before."""

    tokens: NDArray[np.int64]
    ids: Ids


class Model(NamedTuple):
    layers: int
    k: int
    experts: int
    seed: int = 0

    def config(self, dense: int = 0) -> dict[str, Any]:
        return {
            "model_type": "glm4_moe",
            "num_hidden_layers": self.layers + dense,
            "n_routed_experts": self.experts,
            "num_experts_per_tok": self.k,
            "first_k_dense_replace": dense,
        }

    def route(self, tokens: NDArray[np.int64]) -> Ids:
        """ids [rows, layers, k] of all tokens: the same for the same beginning."""
        own = np.random.default_rng(self.seed).normal(
            size=(self.layers, int(tokens.max()) + 1, self.experts)
        )
        popular = np.random.default_rng(self.seed + 1).normal(size=(self.layers, 1, self.experts))
        before = np.zeros(self.experts)
        rows = []
        for position, token in enumerate(tokens):
            around = np.random.default_rng([position, int(token)]).normal(
                size=(self.layers, self.experts)
            )
            before = 0.9 * before + 0.3 * around[0]
            scores = own[:, token] + 0.5 * popular[:, 0] + 0.5 * around + 0.3 * before
            rows.append(np.argsort(-scores, axis=1)[:, : self.k])
        return np.array(rows, np.int16)

    def text(self, tokens: int, seed: int = 0) -> Text:
        """A text of S tokens, some of them frequent, and its S - 1 rows."""
        drawn = np.minimum(np.random.default_rng([self.seed, seed]).zipf(1.3, tokens), 60).astype(
            np.int64
        )
        return Text(drawn, self.route(drawn)[:-1])


MODELS = [Model(12, 4, 64), Model(24, 8, 256, 1), Model(9, 6, 512, 2)]
ONE = Model(24, 1, 128, 3)


def examine(ids: Ids, **given: Any) -> Report:
    given.setdefault("cases", {"it": of_array("it", ids)})
    return doctor.examine(**given)


def found(report: Report) -> set[tuple[str, str]]:
    return {(finding.check, finding.like.split()[0]) for finding in report.findings}


# ---- Nothing in what is right


@pytest.mark.parametrize("model", [*MODELS, ONE], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_found_in_a_capture_that_is_right(model: Model, seed: int) -> None:
    text, other = model.text(160, seed), model.text(90, seed + 10)
    shared = np.concatenate([text.tokens[:40], other.tokens])  # another text that begins alike
    cases = {"a": of_array("a", text.ids), "b": of_array("b", model.route(shared)[:-1])}
    report = doctor.examine(
        cases,
        tokens={"a": text.tokens, "b": shared},
        against={"a": of_array("a", text.ids[..., ::-1]), "b": of_array("b", model.route(shared))},
        model=describe(model.config()),
        control=True,
    )
    assert report.findings == ()
    made = {check for check in doctor.CHECKS if check != "model"}
    assert all(set(report.checked[name]) == made for name in cases)
    assert {(each.check, each.asked) for each in report.not_checked} == {("model", False)}


def test_holes_that_are_marked_are_no_finding() -> None:
    text = MODELS[0].text(160)
    ids = text.ids.copy()
    ids[:20], ids[50:60, 3] = -1, -1
    report = examine(ids, tokens=text.tokens, model=describe(MODELS[0].config()))
    assert report.findings == ()


def test_a_text_of_one_token_again_and_again_is_not_taken_for_copies() -> None:
    tokens = np.full(60, 7)
    ids = np.repeat(MODELS[0].text(2).ids, 60, axis=0)
    assert examine(ids, tokens=tokens).findings == ()
    ids[0, 3:] = MODELS[0].text(3).ids[1, 3:]  # the first is routed otherwise in some layers
    assert examine(ids, tokens=tokens).findings == ()
    assert examine(ids[:-1], tokens=np.arange(60)).findings


# ---- Each failure where it is planted


def zeros(rows: Any = slice(None), layers: Any = slice(None)) -> Callable[[Ids, Model], Ids]:
    def plant(ids: Ids, model: Model) -> Ids:
        ids[rows, layers] = 0
        return ids

    return plant


def put(rows: Any, layers: Any, values: Callable[[Model], Any]) -> Callable[[Ids, Model], Ids]:
    def plant(ids: Ids, model: Model) -> Ids:
        ids[rows, layers] = values(model)
        return ids

    return plant


def narrow(ids: Ids, model: Model) -> Ids:
    """-1 in a byte."""
    ids = ids % 256
    ids[40:44] = 255
    return ids.astype(np.uint8)


def masked(ids: Ids, model: Model) -> Ids:
    """The last quarter are zero experts, overwritten with expert 0."""
    return np.where(ids >= 3 * model.experts // 4, 0, ids)


def widened(ids: Ids, model: Model) -> Ids:
    return np.concatenate([ids, np.full((*ids.shape[:2], 1), model.experts, ids.dtype)], axis=2)


def layers_of_decoder(values: int) -> Callable[[Ids, Model], Ids]:
    def plant(ids: Ids, model: Model) -> Ids:
        dense = np.zeros((len(ids), 2, model.k), ids.dtype)
        dense[10:20] = values * np.arange(1, model.k + 1)
        return np.concatenate([dense, ids], axis=1)

    return plant


PLANTED: dict[str, tuple[Callable[[Ids, Model], Ids], set[tuple[str, str]]]] = {
    "nobody wrote anything": (zeros(), {("cells", "F02")}),
    "the router of a layer was not seen": (zeros(layers=5), {("cells", "F01")}),
    "some cells were not written": (zeros(slice(10, 90, 7), 3), {("cells", "F01")}),
    "dense layers first": (zeros(layers=slice(0, 3)), {("cells", "F18")}),
    "dense layers ignored, so that the last are not there": (
        zeros(layers=slice(-2, None)),
        {("cells", "F18")},
    ),
    "a cached prefix": (zeros(slice(0, 48)), {("cells", "F08")}),
    "S rows": (zeros(-1), {("cells", "F06")}),
    "a tail that nobody finalized": (zeros(slice(-9, None)), {("cells", "F03")}),
    "rows that were skipped": (zeros(slice(70, 73)), {("cells", "F07")}),
    "zero experts as expert 0": (masked, {("cells", "F15")}),
    "two writers": (put(slice(30, 33), slice(2, 4), lambda model: 5), {("cells", "F23")}),
    "-1 as 255": (narrow, {("dtype", "F16")}),
    "physical ids": (
        put(slice(None, None, 3), 4, lambda model: model.experts + np.arange(model.k)),
        {("ids", "F13")},
    ),
    "a column of shared experts": (widened, {("ids", "F14"), ("columns", "F14"), ("shape", "F14")}),
    "a column that is always the same": (lambda ids, model: _column(ids), {("columns", "F14")}),
    "columns that are partly -1": (
        put(slice(20, 25), 1, lambda model: [3, *[-1] * (model.k - 1)]),
        {("ids", "F31")},
    ),
    "a buffer that nobody wrote": (
        put(slice(60, 90), slice(None), lambda model: np.arange(model.k)),
        {("filler", "F26"), ("rows", "F04")},
    ),
    "rows that are filled up": (lambda ids, model: _filled(ids, model), {("filler", "F31")}),
    "one step's ids for all": (lambda ids, model: _stuck(ids), {("layers", "F26")}),
    "the draft model in layer 0": (lambda ids, model: _twin(ids), {("layers", "F17")}),
    "padding rows": (lambda ids, model: _again(ids, 60, 67), {("rows", "F04")}),
    "a copy of the row before, at the end": (
        lambda ids, model: _again(ids, len(ids) - 2, 1),
        {("rows", "F06")},
    ),
    "turns that overlap": (
        lambda ids, model: np.concatenate([ids[:100], ids[60:]]),
        {("rows", "F32")},
    ),
    "everything twice": (lambda ids, model: np.concatenate([ids, ids]), {("rows", "F32")}),
}


def _column(ids: Ids) -> Ids:
    ids[..., 1:] = np.where(ids[..., 1:] == 1, ids[..., :1], ids[..., 1:])
    ids[..., 0] = 1
    return ids


def _filled(ids: Ids, model: Model) -> Ids:
    ids[-6:] = (np.arange(ids[-6:].size) % model.experts).reshape(ids[-6:].shape)
    return ids


def _stuck(ids: Ids) -> Ids:
    ids[:, 4] = ids[0, 4]
    return ids


def _twin(ids: Ids) -> Ids:
    ids[:, 0] = ids[:, -1]
    return ids


def _again(ids: Ids, row: int, times: int) -> Ids:
    ids[row + 1 : row + 1 + times] = ids[row]
    return ids


@pytest.mark.parametrize("model", MODELS, ids=str)
@pytest.mark.parametrize("name", PLANTED)
def test_each_failure_is_found_in_the_file_alone_and_nothing_else(name: str, model: Model) -> None:
    plant, expected = PLANTED[name]
    ids = plant(model.text(160).ids.copy(), model)
    known = (
        describe(model.config())
        if {"ids", "dtype", "shape"} & {check for check, _ in expected}
        else None
    )
    if name == "-1 as 255" and model.experts > 256:
        expected = expected | {("cells", "F23")}  # what a byte cuts off
    report = examine(ids, model=known)
    assert found(report) == expected, report.findings


# Where a token has one expert, these are nothing that could not be right.
MANY = {"some cells were not written", "zero experts as expert 0", "two writers"}


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, (_, expected) in PLANTED.items()
        if name not in MANY and {check for check, _ in expected} <= {"cells", "layers", "rows"}
    ],
)
def test_failures_are_found_where_a_token_has_one_expert(name: str) -> None:
    plant, expected = PLANTED[name]
    report = examine(plant(ONE.text(160).ids.copy(), ONE))
    assert found(report) == expected, report.findings


def test_a_type_that_is_too_narrow_for_the_model_is_found_where_no_id_shows_it() -> None:
    model = MODELS[2]
    ids = (model.text(160).ids % 256).astype(np.uint8)
    distinct = [len(set(cell)) == model.k for cell in ids.reshape(-1, model.k).tolist()]
    ids[~np.array(distinct).reshape(ids.shape[:2])] = np.arange(1, 1 + model.k)
    assert found(examine(ids, model=describe(model.config()))) == {("dtype", "F16")}


def test_layers_that_do_not_route_have_no_ids() -> None:
    model = MODELS[0]
    text, known = model.text(160), describe(model.config(dense=2))
    report = examine(layers_of_decoder(0)(text.ids, model), model=known, tokens=text.tokens)
    assert report.findings == () and report.notes[0][1].startswith(
        "its layer axis has all 14 layers"
    )
    assert found(examine(layers_of_decoder(1)(text.ids, model), model=known)) == {("dense", "F18")}
    assert found(examine(text.ids[:, :-1], model=known)) == {("shape", "F18")}


@pytest.mark.parametrize(
    "array, like",
    [
        (np.zeros((0, 4, 2), np.int32), "F02"),
        (np.ones((8, 4, 2), np.float32), "F18"),
        (np.ones(64, np.int32), "F21"),
        (np.ones((8, 8), np.uint8), "F21"),
    ],
)
def test_what_is_no_routing_is_found_and_nothing_else_is_checked(array: Ids, like: str) -> None:
    report = examine(array)
    assert found(report) == {("shape", like)} and report.checked == {"it": ("shape",)}
    assert {each.check for each in report.not_checked} == set(doctor.CHECKS) - {"shape"}


# ---- With tokens


@pytest.mark.parametrize("by", [-2, -1, 1, 3])
@pytest.mark.parametrize("model", [*MODELS, ONE], ids=str)
def test_rows_of_other_positions_are_found_by_their_tokens(model: Model, by: int) -> None:
    text = model.text(160)
    report = examine(np.roll(text.ids, -by, axis=0), tokens=text.tokens)
    assert ("shift", "F07") in found(report)
    [finding] = [each for each in report.findings if each.check == "shift"]
    assert f"{abs(by)} {'later' if by > 0 else 'earlier'}" in finding.meaning


def test_rows_that_fit_a_neighbour_about_as_well_are_not_told_to_be_shifted() -> None:
    """In a text with a period, what is 8 tokens away may say a little more of a row than its own
    token: 51 % of the ids in common there, 44 % here. Nothing is wrong with that.
    """
    model, draw = Model(12, 8, 64), np.random.default_rng(1)
    tokens = model.text(120).tokens
    own = draw.normal(size=(int(tokens.max()) + 1, model.layers, model.experts))
    scores = 0.8 * own[tokens] + own[np.roll(tokens, 8)]
    scores += 0.3 * draw.normal(size=scores.shape[1:]) + 0.5 * draw.normal(size=scores.shape)
    ids = np.argsort(-scores, axis=2)[:-1, :, : model.k].astype(np.int16)

    right = of_array("it", ids)
    report = examine(ids, tokens=tokens, against={"it": right})
    [not_checked] = [each for each in report.not_checked if each.check == "shift"]
    assert report.findings == () and not_checked.asked
    assert "alike here, 44%, as where the tokens 8 earlier are, 51%" in not_checked.why

    control = examine(np.roll(ids, 1, axis=0), tokens=tokens, against={"it": right})
    assert found(control) == {("against", "F07"), ("shift", "F07")}


@pytest.mark.parametrize(
    "tokens, expected",
    [(159, set()), (160, set()), (158, {("length", "F30")}), (200, {("length", "F30")})],
)
def test_the_number_of_rows_is_that_of_the_tokens(
    tokens: int, expected: set[tuple[str, str]]
) -> None:
    model = MODELS[0]
    report = examine(
        model.text(160).ids, tokens=model.text(tokens if tokens > 160 else 160).tokens[:tokens]
    )
    assert {each for each in found(report) if each[0] == "length"} == expected


def test_rows_of_another_request_are_found() -> None:
    model = MODELS[0]
    text, other = model.text(160, 1), model.text(160, 2)
    ids = text.ids.copy()
    ids[:32] = other.ids[:32]
    cases = {"a": of_array("a", ids), "b": of_array("b", other.ids)}
    assert found(doctor.examine(cases, tokens={"a": text.tokens, "b": other.tokens})) == {
        ("prefix", "F05")
    }


def test_rows_that_say_too_little_are_not_checked_for_those_of_others() -> None:
    """Below 128 bits a row, where texts with the same rows passed, `prefix` was said to be checked."""
    small = Model(3, 2, 8)
    text, tokens = (
        small.text(60),
        {name: small.text(60, seed).tokens for seed, name in enumerate("abcd")},
    )
    cases = {name: of_array(name, text.ids) for name in tokens}
    report = doctor.examine(cases, tokens=tokens, model=describe(small.config()))
    assert all("prefix" not in each for each in report.checked.values())
    why = {each.why for each in report.not_checked if each.check == "prefix" and each.asked}
    assert len(why) == 1 and "128 are needed" in why.pop()
    large = MODELS[0].text(60)
    cases = {name: of_array(name, large.ids) for name in tokens}
    assert ("prefix", "F05") in found(doctor.examine(cases, tokens=tokens))


def test_what_a_sequence_says_of_its_tokens_is_held_against_them(tmp_path: Path) -> None:
    """Digests alone say how many tokens there are, whether those given are these, and with how many
    two texts begin alike.
    """
    model = MODELS[1]
    text = model.text(200)
    ends = model.text(150, seed=2).tokens
    shared = np.concatenate([text.tokens[:150], ends])  # begins as `text` does
    files = {}
    for name, tokens, ids in (
        ("a", text.tokens, text.ids),
        ("b", shared, model.route(shared)[:-1]),
        ("stale", shared, Model(24, 8, 256, 7).route(shared)[:-1]),
    ):
        routing = routecap.Routing.from_arrays(ids, experts=model.experts)
        sequence = routecap.Sequence.like(routing)
        sequence.append(tokens, routing)
        for known in (False, True):
            file = tmp_path / f"{name}{'-known' * known}.sequence"
            file.write_bytes(sequence.serialize(tokens=known))
            files[file.stem] = doctor.read(file)[file.stem]
    right = {name: files[name] for name in ("a", "b")}

    alone = doctor.examine(right)
    assert alone.findings == () and all("length" in each for each in alone.checked.values())
    assert {each.why for each in alone.not_checked if each.check == "prefix"} == {
        "its tokens are known by digests alone (--tokens)"  # whether it has rows of others
    }
    assert all("shift" not in each for each in alone.checked.values())
    given = doctor.examine(right, tokens={"a": text.tokens, "b": shared})
    assert given.findings == () and all("shift" in each for each in given.checked.values())
    known = doctor.examine({name: files[f"{name}-known"] for name in right})
    assert known.findings == () and all("shift" in each for each in known.checked.values())

    report = doctor.examine({"a": files["a"], "stale": files["stale"]})
    assert found(report) == {("prefix", "F05")}
    assert "it begins with 128 tokens as" in report.findings[0].what
    other = text.tokens.copy()
    other[130] += 1
    report = doctor.examine({"a": files["a"]}, tokens=other)
    assert found(report) == {("shift", "F32")} and "from one of 128 to 191 on" in str(report)
    cut = doctor.examine({"a": files["a"]}, tokens=text.tokens[:190])
    assert found(cut) == {("length", "F30")}
    (tmp_path / "damaged").write_bytes((tmp_path / "a.sequence").read_bytes()[:-1])
    with pytest.raises(routecap.Error):
        doctor.read(tmp_path / "damaged")
    assert main(["doctor", str(tmp_path / "a.sequence")]) == 0


def test_texts_that_begin_alike_and_are_not_routed_alike_are_found() -> None:
    model = MODELS[0]
    text = model.text(160)
    stale = text.ids.copy()
    stale[:60] = Model(12, 4, 64, 9).text(160).ids[:60]
    cases = {"a": of_array("a", text.ids), "b": of_array("b", stale)}
    assert ("prefix", "F05") in found(
        doctor.examine(cases, tokens={"a": text.tokens, "b": text.tokens[:100]})
    )


def test_tokens_that_are_known_by_their_texts_are_the_same_where_the_texts_are() -> None:
    model = MODELS[0]
    tokens = model.text(160).tokens
    words = {"a": [f"a{token}" for token in tokens], "b": [f"b{token}" for token in tokens]}
    cases = {}
    for seed, (name, text) in enumerate(words.items()):
        routing = routecap.Routing.from_arrays(model.text(160, seed).ids, experts=model.experts)
        cases[name] = of_sample(name, routecap.Sample(routing, {"tokens": text}))
    report = doctor.examine(cases)
    assert report.findings == () and "prefix" in report.checked["b"]
    cases["b"] = of_sample("b", routecap.Sample(routing, {"tokens": words["a"]}))
    assert found(doctor.examine(cases)) == {("prefix", "F05")}


# ---- Against another capture


AGAINST: dict[str, tuple[Callable[[Ids], Ids], str]] = {
    "a row later": (lambda ids: np.roll(ids, 1, axis=0), "F07"),
    "two rows earlier": (lambda ids: ids[2:], "F07"),
    "a layer later": (lambda ids: np.roll(ids, 1, axis=1), "F18"),
    "rows of something else": (
        lambda ids: np.concatenate([ids[:40], ids[100:112], ids[52:]]),
        "F05",
    ),
    "another model": (lambda ids: (ids + 17) % 64, "F11"),
}


@pytest.mark.parametrize("name", AGAINST)
def test_what_differs_from_another_capture_is_named(name: str) -> None:
    change, like = AGAINST[name]
    text = MODELS[0].text(160)
    report = examine(change(text.ids.copy()), against={"it": of_array("it", text.ids)})
    assert ("against", like) in found(report), report.findings


def test_a_comparison_that_would_not_notice_a_shift_proves_nothing() -> None:
    ids = np.repeat(MODELS[0].text(2).ids, 60, axis=0)
    given = {"against": {"it": of_array("it", ids)}, "tokens": np.full(60, 7)}
    assert "against" in examine(ids, **given).checked["it"]
    report = examine(ids, control=True, **given)
    assert "against" not in report.checked["it"]
    assert [each.asked for each in report.not_checked if each.check == "against"] == [True]


# ---- What the engine gave


def test_what_the_library_refused_of_an_engine_is_said(
    make: Callable[..., routecap.Capturer],
) -> None:
    capturer = make(layers=2, k=4, experts=64, rows=8)
    request = capturer.open()
    ids = MODELS[0].text(9).ids[:, 0].astype(np.int32)
    ids[2, 1], ids[5] = 70, [3, 0, 0, 0]
    capturer.begin(8)
    for layer in range(2):
        capturer.record(layer, ids)
    capturer.snapshot()
    capturer.issue(routecap.spans(1, request=int(request), position=0, rows=8)).wait(10)
    sample = routecap.Sample(request.finish(8))
    sample.routing.wait()
    report = doctor.examine({"it": of_sample("it", sample)})
    assert found(report) == {("ids", "F13"), ("cells", "F15")}


# ---- Whatever it is given


@pytest.mark.parametrize(
    "seed", [4, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (5, 6))]
)
def test_whatever_arrays_hold_there_is_a_report(seed: int) -> None:
    draw = np.random.default_rng(seed)
    for _ in range(100):
        cases, tokens = {}, {}
        shape = tuple(draw.integers(0, draw.choice([2, 6, 30]), 3))
        for name in "ab":
            kind = draw.choice(["u1", "i1", "i2", "u2", "i4", "i8", "u8", "f4"])
            low, high = (0 if kind[0] == "u" else -1), draw.choice([1, 2, 4, 64, 120])
            ids = draw.integers(low, high, shape).astype(kind)
            if len(ids) > 4:
                ids[2 : draw.integers(2, len(ids))] = draw.choice([0, 1])
            cases[name] = of_array(name, ids)
            tokens[name] = draw.integers(0, draw.choice([1, 5, 100]), draw.integers(0, 40))
        config = describe({"model_type": "glm4_moe", "num_hidden_layers": int(draw.integers(1, 8))})
        for model in (None, config):
            against = {"a": cases["b"]}
            report = doctor.examine(
                cases, tokens=tokens, against=against, model=model, control=True
            )
            for name in cases:
                made = (
                    len(report.checked[name]),
                    len([n for n in report.not_checked if n.name == name]),
                )
                assert sum(made) == len(doctor.CHECKS)


# ---- Files, and the command


@pytest.fixture
def files(tmp_path: Path) -> Path:
    model = MODELS[0]
    texts = {name: model.text(160, seed) for seed, name in enumerate(("one", "two"))}
    routings = {
        name: routecap.Routing.from_arrays(text.ids, experts=model.experts)
        for name, text in texts.items()
    }
    routecap.save(tmp_path / "job.tar", routings)
    np.savez(tmp_path / "job.npz", **{name: text.ids for name, text in texts.items()})
    np.savez(tmp_path / "tokens.npz", **{name: text.tokens for name, text in texts.items()})
    np.save(tmp_path / "one.npy", texts["one"].ids)
    np.save(tmp_path / "shifted.npy", np.roll(texts["one"].ids, 1, axis=0))
    (tmp_path / "tokens.json").write_text(
        json.dumps({name: text.tokens.tolist() for name, text in texts.items()})
    )
    (tmp_path / "one.json").write_text(json.dumps(texts["one"].tokens.tolist()))
    (tmp_path / "config.json").write_text(json.dumps(model.config()))
    return tmp_path


def test_the_command_says_nothing_is_wrong_and_what_was_not_checked(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", str(files / "job.tar")]) == 0
    text = capsys.readouterr().out
    assert (
        text.count("no findings") == 2
        and "not checked: shift: the tokens are not known (--tokens)" in text
    )
    assert main(["doctor", str(files / "job.tar"), "--strict"]) == 3
    for tokens in ("tokens.json", "tokens.npz"):
        given = [
            "--tokens",
            str(files / tokens),
            "--config",
            str(files),
            "--against",
            str(files / "job.npz"),
            "--control",
        ]
        assert main(["doctor", str(files / "job.tar"), *given]) == 0
    assert "not checked: model" in capsys.readouterr().out


def test_the_command_finds_a_shift_in_each_way(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for given in (["--tokens", str(files / "one.json")], ["--against", str(files / "one.npy")]):
        assert main(["doctor", str(files / "shifted.npy"), *given, "--json"]) == 1
        report = json.loads(capsys.readouterr().out)
        assert "earlier" in report["findings"][0]["meaning"] and report["findings"][0][
            "like"
        ].startswith("F07")
        assert "model" in {each["check"] for each in report["not_checked"]}


def test_what_was_asked_for_and_could_not_be_checked_is_no_pass(files: Path) -> None:
    (files / "one.json").write_text(json.dumps(list(range(160))))  # no token comes again
    assert main(["doctor", str(files / "one.npy"), "--tokens", str(files / "one.json")]) == 3


def test_what_is_no_file_of_its_kind_is_an_error(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(files / "objects.npy", np.array([{}]), allow_pickle=True)
    (files / "empty").mkdir()
    (files / "damaged.npy").write_bytes(b"\x93NUMPY\x01")
    (files / "words.json").write_text('["a"]')
    (files / "nobody.json").write_text('{"three": [1]}')
    one, good = str(files / "one.npy"), str(files / "job.tar")
    for arguments in (
        [str(files / "objects.npy")],
        [str(files / "damaged.npy")],
        [str(files / "empty")],
        [str(files / "absent.npy")],
        [one, "--tokens", str(files / "words.json")],
        [good, "--tokens", str(files / "nobody.json")],
        [one, "--config", str(files / "words.json")],
        [good, "--tokens", str(files / "one.json")],
        [good, "--against", str(files / "shifted.npy")],
    ):
        assert main(["doctor", *arguments]) == 2, arguments
        assert capsys.readouterr().err.startswith("routecap: ")


def zip_of(
    path: Path, name: str, data: bytes, *, times: int = 1, method: int = ZIP_DEFLATED
) -> Path:
    with (
        ZipFile(path, "w", method, compresslevel=1) as archive,
        archive.open(name, "w", force_zip64=True) as file,
    ):
        for _ in range(times):
            file.write(data)
    return path


def npy_header(shape: tuple[int, ...], dtype: str = "|u1") -> bytes:
    file = BytesIO()
    about: Any = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, about)
    return file.getvalue()


def test_a_damaged_archive_of_arrays_is_an_error_and_nothing_that_was_found(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was a traceback, whose exit status means that something was found."""
    good = (files / "job.npz").read_bytes()
    random = np.random.default_rng(2)
    path = files / "damaged.npz"
    for turn in range(80):
        damaged = bytearray(good[: int(random.integers(len(good)))] if turn % 4 == 0 else good)
        for at in random.integers(max(len(damaged), 1), size=0 if turn % 4 == 0 else 3):
            damaged[-at if turn % 2 else at] ^= int(random.integers(1, 256))
        path.write_bytes(damaged)
        status = main(["doctor", "--json", str(path)])
        out, err = capsys.readouterr()
        assert status == 2 and err.startswith("routecap: ") and out == "" or json.loads(out), err
    ids = BytesIO()
    np.save(ids, np.zeros((3, 3, 2), np.uint8))
    for wrong in (
        zip_of(files / "lzma.npz", "a.npy", ids.getvalue(), method=ZIP_LZMA),
        zip_of(files / "cut.npz", "a.npy", ids.getvalue()[:-1]),
        zip_of(files / "no.npz", "a.npy", b"x"),
    ):
        assert main(["doctor", str(wrong)]) == 2
        assert wrong.name in capsys.readouterr().err


SMALL = """
import json, resource, sys
from routecap_tools.command import main
with open("/proc/self/status") as status:
    [has] = [1024 * int(line.split()[1]) for line in status if line.startswith("VmData")]
resource.setrlimit(resource.RLIMIT_DATA, (has + (1 << 29), resource.RLIM_INFINITY))
for given in json.loads(sys.argv[1]):
    print(main(["doctor", "--experts", "8", *given]), file=sys.stderr)
"""


@pytest.mark.slow
def test_no_memory_is_taken_for_what_a_small_file_claims(tmp_path: Path) -> None:
    """The doctor took 10.5 GB for a file of 4 MB. The system refuses more than half a GiB."""
    bomb = zip_of(tmp_path / "bomb.npz", "a.npy", bytes(1 << 24), times=65)
    claims = tmp_path / "claims.npy"
    claims.write_bytes(npy_header((1 << 40, 64, 8)) + bytes(100))
    inside = zip_of(tmp_path / "inside.npz", "a.npy", npy_header((1 << 40, 64, 8)))
    message = tmp_path / "claims.npy.b64"
    message.write_bytes(base64.b64encode(claims.read_bytes()))
    np.save(tmp_path / "good.npy", np.zeros((3, 3, 2), np.uint8))
    expected = {
        (str(bomb),): "its arrays take 1090519040 bytes, and 1073741824 are allowed",
        (str(bomb), "--budget", "1000"): "its arrays take 1090519040 bytes, and 1000 are allowed",
        (str(tmp_path / "good.npy"), "--tokens", str(bomb)): "and 1073741824 are allowed",
        (str(claims),): "it is cut off",
        (str(inside),): "it is cut off",
        (str(message),): "it is cut off",
    }
    given = json.dumps(list(expected))
    run = subprocess.run([sys.executable, "-c", SMALL, given], capture_output=True, text=True)
    said = run.stderr.split("\n2\n")
    assert len(said) == len(expected) + 1 and not said[-1], run
    for words, text in zip(expected.values(), said):
        assert words in text


def test_the_command_takes_several_files_and_a_folder_of_messages(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = files / "messages"
    folder.mkdir()
    ids = np.load(files / "one.npy")
    for number, ending in ((2, ".npy.b64"), (10, ".routes.json"), (1, ".lists.json")):
        (folder / f"r-{number}{ending}").write_bytes(message(ending, ids))
    (folder / "notes.txt").write_text("none of ours")
    given = ["--config", str(files), "--json"]
    assert (
        main(["doctor", str(folder), str(files / "one.npy"), str(files / "job.tar"), *given]) == 0
    )
    names = list(json.loads(capsys.readouterr().out)["checked"])
    assert names == ["r-1", "r-2", "r-10", "one", f"{files / 'job.tar'}:one", "two"]
    assert main(["doctor", str(files / "one.npy"), str(files / "absent.npy")]) == 2


def test_every_check_is_said_in_the_documentation() -> None:
    text = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text()
    for name, what in doctor.CHECKS.items():
        assert f"- `{name}`: {what[0].lower()}{what[1:]}" in text.replace("\n  ", " "), name


# ---- Messages of the wire

GOLDEN = Path(__file__).parents[2] / "tests" / "wire" / "golden"


def message(ending: str, ids: Ids) -> bytes:
    """As the projects write it, whatever the ids are."""
    text, name = base64.b64encode(ids.tobytes()).decode(), str(ids.dtype)
    if ending == ".npy.b64":
        file = BytesIO()
        np.save(file, ids)
        return base64.b64encode(file.getvalue())
    if ending == ".routes.json":
        object = {"data": text, "shape": ids.shape, "start": 0, "dtype": name}
        return json.dumps(object).encode()
    if ending == ".nrlre1":
        return f"nrlre1:{name}:{'x'.join(map(str, ids.shape))}:{text}".encode()
    return json.dumps(ids.tolist()).encode() if ending == ".lists.json" else text.encode()


@pytest.mark.parametrize("ending", [".npy.b64", ".b64", ".routes.json", ".nrlre1", ".lists.json"])
@pytest.mark.parametrize("plant", [None, "zero rows", "shift", "experts"])
def test_what_is_wrong_in_a_message_is_found_by_the_command(
    files: Path, ending: str, plant: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """The decoder would keep none of it: to it a cell of zeros is missing."""
    ids = np.load(files / "one.npy").astype(np.int32)
    if plant == "zero rows":
        ids[20:40] = 0
    elif plant == "shift":
        ids = np.roll(ids, 1, axis=0)
    elif plant == "experts":
        ids[3, 2, 1] = MODELS[0].experts
    file = files / f"one{ending}"
    file.write_bytes(message(ending, ids))
    given = ["--config", str(files), "--tokens", str(files / "one.json"), "--json"]
    assert main(["doctor", str(file), *given]) == int(plant is not None)
    like = {each["like"][:3] for each in json.loads(capsys.readouterr().out)["findings"]}
    assert like == {None: set(), "zero rows": {"F07"}, "shift": {"F07"}, "experts": {"F13"}}[plant]


WRITTEN = json.loads((GOLDEN / "golden.json").read_text())


@pytest.mark.parametrize("name", WRITTEN)
def test_what_the_projects_wrote_is_read_as_the_library_reads_it(name: str) -> None:
    about = WRITTEN[name]
    hint = {each: about["hint"][each] for each in ("columns", "k") if each in about["hint"]}
    [case] = doctor.read(GOLDEN / name, **hint).values()
    given = {"experts": about["experts"], **about["hint"]}
    routing, report = routecap.wire_decode((GOLDEN / name).read_bytes(), about["format"], **given)
    kept = case.ids[:, given["layer_map"]] if report.columns_left_out else case.ids
    ids, valid = routing.masked()
    assert case.first == routing.first and np.array_equal(kept[valid], ids[valid])


@pytest.mark.parametrize("name", [*WRITTEN, "a.sequence", "a.routecap"])
def test_whatever_bytes_a_file_has_there_is_a_report_or_an_error(name: str, tmp_path: Path) -> None:
    """NumPy once let an exception of Python's tokenizer through, and asked for the memory that a
    header claims.
    """
    random = np.random.default_rng(1)
    if name in WRITTEN:
        data = (GOLDEN / name).read_bytes()
    else:
        ids = MODELS[0].text(100).ids
        routing = routecap.Routing.from_arrays(ids, experts=64)
        sequence = routecap.Sequence.like(routing)
        sequence.append(np.arange(100), routing)
        data = (sequence if name == "a.sequence" else routing).serialize()
    words = [b"9", b"999999999", b"-1", b'"', b"[", b"(", b"{}", b"\0", b"null", b"1e400", b"NaN"]
    words += [b"%d" % ((1 << 63) - 1), b"%d" % (1 << 63), b"%d" % (1 << 64), b"\xdf", b"\xff\xfe"]
    path = tmp_path / name
    for turn in range(60):
        damaged = bytearray(data)
        for _ in range(1 + turn % 3):
            at = int(random.integers(min(len(damaged), int(random.choice([60, 200, 1 << 30]))) + 1))
            what = random.integers(4)
            if what == 0:
                damaged[at : at + 1] = bytes([random.integers(256)])
            elif what == 1:
                del damaged[at:]
            else:
                damaged[at:at] = words[random.integers(len(words))]
        path.write_bytes(damaged)
        try:
            doctor.examine(doctor.read(path, columns=3, k=8))
        except routecap.Error:
            pass


@pytest.mark.parametrize("shape", ["(9, 3, 8", "(999999999, 999, 8)"])
def test_a_header_that_is_no_shape_or_an_enormous_one_is_an_error(
    shape: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.npy"
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    path.write_bytes(b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header.encode())
    with pytest.raises(routecap.Error):
        doctor.read(path)


def test_a_message_that_does_not_say_its_shape_needs_it(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = np.load(files / "one.npy").astype(np.int16)
    file = files / "one.b64"
    file.write_bytes(message(".b64", ids))
    assert main(["doctor", str(file)]) == 2
    assert "do not say how many columns and k" in capsys.readouterr().err
    shape = ["--columns", "12", "--k", "4", "--dtype", "int16", "--experts", "64"]
    assert main(["doctor", str(file), *shape]) == 0
    assert "not checked: ids" not in capsys.readouterr().out
    assert main(["doctor", str(file), *shape, "--first", "3", "--json"]) == 0
    assert main(["doctor", str(file), *shape[:-1], "8"]) == 1
    file.write_bytes(b"%%%%")
    assert main(["doctor", str(file), *shape]) == 2


# ---- Answers of servers


def answers(ids: Ids) -> dict[str, Any]:
    """Servers' whole answers, and how many rows of a text they have."""
    object = json.loads(message(".routes.json", ids))
    vllm = {"object": "text_completion", "prompt_token_ids": None}
    serialized = routecap.Routing.from_arrays(ids, experts=64).serialize()
    return {
        "vllm": vllm
        | {
            "prompt_routed_experts": ids[:100].tolist(),
            "choices": [{"index": 0, "text": "a", "routed_experts": ids[100:].tolist()}],
        },
        "vllm-npy": vllm | {"choices": [{"routed_experts": message(".npy.b64", ids).decode()}]},
        "vllm-object": vllm | {"choices": [{"routed_experts": object}]},
        "vllm-nrlre1": vllm | {"choices": [{"routed_experts": message(".nrlre1", ids).decode()}]},
        "vllm-routecap": vllm
        | {"choices": [{"routed_experts": base64.b64encode(serialized).decode()}]},
        "sglang": {
            "text": "a",
            "meta_info": {"routed_experts": message(".b64", ids.astype(np.int32)).decode()},
        },
        "sglang-object": [{"meta_info": {"routed_experts": json.dumps(object)}}],
    }


@pytest.mark.parametrize("name", answers(np.arange(54, dtype=np.int16).reshape(9, 3, 2)))
@pytest.mark.parametrize("shifted", [False, True])
def test_a_whole_answer_of_a_server_is_examined(
    files: Path, name: str, shifted: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = np.load(files / "one.npy")
    path = files / "response.json"
    path.write_text(json.dumps(answers(np.roll(ids, 1, axis=0) if shifted else ids)[name]))
    given = ["--config", str(files), "--tokens", str(files / "one.json"), "--json"]
    assert main(["doctor", str(path), *given]) == int(shifted)
    assert list(json.loads(capsys.readouterr().out)["checked"]) == ["response"]


def test_an_answer_says_its_tokens_layers_and_missing_cells(files: Path) -> None:
    text = MODELS[0].text(160)
    tokens = text.tokens.tolist()
    choice = {"routed_experts": message(".npy.b64", text.ids).decode()}
    both = [choice | {"token_ids": tokens[90:], "prompt_token_ids": tokens[:90]}] * 2
    path = files / "response.json"
    path.write_text(json.dumps({"choices": both}))
    cases = doctor.read(path)
    assert list(cases) == ["response.0", "response.1"]
    report = doctor.examine(cases)
    assert not report.findings and "shift" in report.checked["response.1"]
    ids = text.ids.astype(np.uint8)
    ids[20:30, 2:4] = 255
    object = json.loads(message(".routes.json", ids)) | {
        "layers": list(range(1, 13)),
        "missing": [[20, 10, 2, 2, "evicted"]],
    }
    path.write_text(json.dumps({"meta_info": {"routed_experts": json.dumps(object)}}))
    [case] = doctor.read(path, experts=64).values()
    assert case.layer_map == tuple(range(1, 13)) and case.reasons is not None
    assert (case.valid == (ids[..., 0] != 255)).all()
    assert (case.reasons[20:30, 2:4] == routecap.Missing.EVICTED).all()
    assert not doctor.examine({"response": case}).findings


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"choices": [{"text": "a"}]}, 'there is no "routed_experts" in it'),
        ({"choices": [{"routed_experts": None, "routed_experts_error": "too old"}]}, "too old"),
        ({"choices": [{"routed_experts": {"file": "/x", "offset": 0}}]}, "a reference to rows"),
        ({"choices": [{"routed_experts": "RCAPROWS"}]}, "response"),
        ({"meta_info": {"routed_experts": "{"}}, "no JSON"),
        ([], "no .routed_experts"),
        (7, "no .routed_experts"),
    ],
)
def test_an_answer_without_rows_says_so(
    answer: object, words: str, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = files / "response.json"
    path.write_text(json.dumps(answer))
    assert main(["doctor", str(path)]) == 2
    assert re.search(words, capsys.readouterr().err)

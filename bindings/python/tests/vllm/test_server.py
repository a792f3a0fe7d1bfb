"""What a server answers, and how it comes into a response or a stream: with stand-ins of both."""

import asyncio
import base64
import io
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import routecap
from routecap.vllm import _answers, _asked, _options
from routecap.vllm import _v021_server as server
from routecap.vllm._results import PendingRoutedExperts

IDS = (np.arange(5 * 3)[:, None] * 3 % 60 + np.arange(4)).reshape(5, 3, 4).astype(np.int16)


def rows_of(ids=IDS, experts=64, start=0):
    routing = routecap.Routing.from_arrays(ids, experts=experts, tags=7)
    return PendingRoutedExperts(routing, ids.shape, -1)[start:]


def answered(rows=None, folder=None, **asked):
    asked = {f"routed_experts_{name}": value for name, value in asked.items()}
    asked = _asked.asked_by(SimpleNamespace(extra_args=asked))
    return _answers.answer(rows_of() if rows is None else rows, asked, folder)


def test_each_format_gives_the_same_rows(tmp_path):
    folder = _answers.Folder(tmp_path / "rows", 1 << 20)
    rows = rows_of(start=2)
    read = {
        "lists": np.array,
        "npy.base64": lambda text: np.load(io.BytesIO(base64.b64decode(text))),
        "raw.base64": lambda text: np.frombuffer(base64.b64decode(text), np.int16).reshape(3, 3, 4),
        "object": lambda value: routecap.wire_decode(value, "object", experts=64)[0].ids(),
        "nrlre1": lambda text: routecap.wire_decode(text, "nrlre1", experts=64)[0].ids(),
        "routecap.base64": lambda text: routecap.Routing.deserialize(base64.b64decode(text)).ids(),
        "file": lambda place: routecap.Routing.deserialize(Path(place["file"]).read_bytes()).ids(),
    }
    assert sorted(read) == sorted(_asked.FORMATS)
    for kind, ids_of in read.items():
        found = answered(rows, folder, format=kind, start=2)
        np.testing.assert_array_equal(ids_of(found["routed_experts"]), IDS[2:], kind)
        assert json.loads(json.dumps(found)) == found and list(found) == ["routed_experts"]
    assert answered(rows, format="object")["routed_experts"]["start"] == 2
    place = answered(rows, folder, format="file")["routed_experts"]
    assert place["start"] == 2 and place["shape"] == [3, 3, 4] and place["offset"] == 0
    narrow = answered(rows, format="npy.base64", dtype="uint8")["routed_experts"]
    assert read["npy.base64"](narrow).dtype == np.uint8


def test_what_is_missing_is_said_or_is_an_error():
    ids = IDS.copy()
    ids[1, 2] = -1
    few, many = rows_of(ids), rows_of(ids, experts=256)
    valid = (ids >= 0).all(2)
    assert answered(few, validity=True)["routed_experts_validity"] == valid.tolist()
    for rows in (few, many):
        found = answered(rows, format="npy.base64", dtype="uint8", validity=1)
        mask = np.load(io.BytesIO(base64.b64decode(found["routed_experts_validity"])))
        np.testing.assert_array_equal(mask, valid)
        array = np.load(io.BytesIO(base64.b64decode(found["routed_experts"])))
        np.testing.assert_array_equal(array, np.where(valid[:, :, None], ids, 255))
        array = np.load(
            io.BytesIO(base64.b64decode(answered(rows, format="npy.base64")["routed_experts"]))
        )
        np.testing.assert_array_equal(array, ids)
    assert answered(few, format="npy.base64", dtype="uint8")["routed_experts"]
    found = answered(many, format="npy.base64", dtype="uint8")  # 255 is an expert there
    assert found["routed_experts"] is None
    assert "cannot say all: validity" in found["routed_experts_error"]


def test_rows_of_a_worker_in_another_process_are_an_array():
    found = answered(IDS[2:], format="routecap.base64", start=2)["routed_experts"]
    routing = routecap.Routing.deserialize(base64.b64decode(found))
    assert routing.first == 2
    np.testing.assert_array_equal(routing.ids(), IDS[2:])


def test_a_folder_keeps_to_its_budget_and_its_oldest_files_go(tmp_path):
    folder = _answers.Folder(tmp_path, 1000)
    files = [folder.write(bytes([i]) * 300)["file"] for i in range(5)]
    there = sorted(path.name for path in tmp_path.iterdir())
    assert there == sorted(name.rpartition("/")[2] for name in files[2:])
    assert Path(files[4]).read_bytes() == b"\4" * 300
    (tmp_path / files[2].rpartition("/")[2]).unlink()  # a client has read it
    folder.write(bytes(900))
    assert len(list(tmp_path.iterdir())) == 1
    with pytest.raises(ValueError, match="1001 bytes are more than the folder's 1000"):
        folder.write(bytes(1001))
    found = answered(folder=_answers.Folder(tmp_path, 8), format="file")
    assert found["routed_experts"] is None and "are more than" in found["routed_experts_error"]
    tmp_path.joinpath("gone").mkdir()
    folder = _answers.Folder(tmp_path / "gone", 1000)
    tmp_path.joinpath("gone").rmdir()
    for _ in range(3):  # a folder that cannot be written takes no budget
        found = answered(folder=folder, format="file")
        assert "No such file" in found["routed_experts_error"]


def test_files_are_refused_without_a_folder(monkeypatch, tmp_path):
    asked = _asked.Asked(format="file")
    with pytest.raises(ValueError, match="no ROUTECAP_VLLM_FOLDER"):
        server.check(asked)
    with pytest.raises(ValueError, match="no ROUTECAP_VLLM_FOLDER"):
        outputs_of(routed_experts_format="file")  # before a stream begins
    monkeypatch.setenv("ROUTECAP_VLLM_FOLDER", str(tmp_path))
    server.check(asked)
    assert _options.get_options().folder == str(tmp_path)


# ---- Responses and streams


def completion(index, finish_reason=None, rows=None):
    found = SimpleNamespace(index=index, finish_reason=finish_reason, routed_experts="array")
    server.keep(found, rows)
    return found


class Engine:
    """Two choices, of which the second ends first."""

    closed = 0

    async def generate(self, prompt, sampling_params, request_id):
        try:
            yield SimpleNamespace(outputs=[completion(0), completion(1)])
            ends = completion(1, "stop", rows_of(start=3))
            yield SimpleNamespace(outputs=[completion(0), ends])
            yield SimpleNamespace(outputs=[completion(0, "length", rows_of())])
        finally:
            Engine.closed += 1


def sampling(**extra):
    return SimpleNamespace(extra_args=extra)


def outputs_of(**asked):
    engine = type("Answering", (Engine,), {})
    server.answer_later(engine)
    return engine().generate("prompt", sampling(**asked), "name")


async def taken(outputs):
    return [each async for each in outputs]


class Serving:
    async def whole(self, request, results):
        outputs = [each async for each in results]
        last = [each for output in outputs for each in output.outputs if each.finish_reason]
        last.sort(key=lambda each: each.index)
        self.arrays = [each.routed_experts for each in last]
        outputs[-1].outputs[:] = last
        return SimpleNamespace(choices=[SimpleNamespace(index=each.index) for each in last])

    async def stream(self, request, results):
        async for output in results:
            for each in output.outputs:
                choice = {"index": each.index, "finish_reason": each.finish_reason}
                yield f"data: {json.dumps({'choices': [choice]})}\n\n"
        yield 'data: {"choices": [], "usage": 1}\n\n'
        yield "data: [DONE]\n\n"


def test_a_request_that_asks_for_no_format_is_left_alone():
    [first, *_, last] = asyncio.run(taken(outputs_of(routed_experts_start=2)))
    assert "routecap_answer" not in vars(last.outputs[0])
    with pytest.raises(ValueError, match="routed_experts_format is 'xml'"):
        outputs_of(routed_experts_format="xml")


def test_a_stream_has_the_rows_of_a_choice_where_it_ends():
    serving = type("Streaming", (Serving,), {})
    server._answer_stream(serving, "stream", results_at=1)
    outputs = outputs_of(routed_experts_format="lists")
    texts = asyncio.run(taken(serving().stream(SimpleNamespace(n=2), outputs)))
    chunks = [json.loads(text[6:]) for text in texts[:-1]]
    having = [each for chunk in chunks for each in chunk["choices"] if "routed_experts" in each]
    ends = [(each["index"], each["finish_reason"]) for each in having]
    assert ends == [(1, "stop"), (0, "length")]
    assert having[0]["routed_experts"] == IDS[3:].tolist()
    assert having[1]["routed_experts"] == IDS.tolist()
    assert texts[-1] == "data: [DONE]\n\n" and "usage" in chunks[-1]


def test_a_response_has_the_rows_of_its_last_output():
    serving = type("Responding", (Serving,), {})

    class Last(Engine):
        async def generate(self, prompt, sampling_params, request_id):
            yield SimpleNamespace(
                outputs=[completion(0, "length", rows_of()), completion(1, "stop")],
                prompt_routed_experts="array",
            )

    server.answer_later(Last)
    server._answer_whole(serving, "whole")
    outputs = Last().generate("prompt", sampling(routed_experts_format="lists"), "name")
    instance = serving()
    response = asyncio.run(instance.whole(SimpleNamespace(), outputs))
    assert response.choices[0].routed_experts == IDS.tolist()
    assert not hasattr(response.choices[1], "routed_experts")
    assert instance.arrays == [None, "array"]  # an array that nobody looks at is not made


def test_whoever_goes_away_closes_what_the_engine_gives():
    async def leave():
        outputs = outputs_of(routed_experts_format="lists")
        async for _ in outputs:
            break
        await outputs.aclose()

    before = Engine.closed
    asyncio.run(leave())
    assert Engine.closed == before + 1

"""What a server answers, and how it comes into a response or a stream: with stand-ins of both."""

import asyncio
import base64
import dataclasses
import io
import json
import pickle
import subprocess
import sys
import types
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import routecap
import routecap_vllm
from routecap_vllm import _answers, _asked, _front_end, _options
from routecap_vllm import _server as server
from routecap_vllm._results import PendingRoutedExperts

IDS = (np.arange(5 * 3)[:, None] * 3 % 60 + np.arange(4)).reshape(5, 3, 4).astype(np.int16)


def rows_of(ids=IDS, experts=64, start=0):
    routing = routecap.Routing.from_arrays(ids, experts=experts, tags=7)
    return PendingRoutedExperts(routing, ids.shape, -1)[start:]


def answered(rows=None, folder=None, **asked):
    asked = {f"routed_experts_{name}": value for name, value in asked.items()}
    asked = _asked.asked_by(SimpleNamespace(extra_args=asked))
    return _answers.Answer(rows_of() if rows is None else rows, asked, folder).for_json()


def test_each_format_gives_the_same_rows(tmp_path, monkeypatch):
    monkeypatch.setenv("ROUTECAP_VLLM_OBJECTS", f"file://{tmp_path}/objects")
    folder = _answers.Folder(tmp_path / "rows", 1 << 20)
    rows = rows_of(start=2)
    objects = routecap.remote.connect(f"file://{tmp_path}/objects")
    reader = routecap.remote.Reader(objects, layers=3, k=4, experts=64)
    read = {
        "lists": np.array,
        "npy.base64": lambda text: np.load(io.BytesIO(base64.b64decode(text))),
        "raw.base64": lambda text: np.frombuffer(base64.b64decode(text), np.int16).reshape(3, 3, 4),
        "object": lambda value: routecap.wire_decode(value, "object", experts=64)[0].ids(),
        "nrlre1": lambda text: routecap.wire_decode(text, "nrlre1", experts=64)[0].ids(),
        "routecap.base64": lambda text: routecap.Routing.deserialize(base64.b64decode(text)).ids(),
        "file": lambda place: routecap_vllm.read(place).ids(),
        "reference": lambda place: reader.rows(place).read(2, 3).ids(),
    }
    assert sorted(read) == sorted(_asked.FORMATS)
    for kind, ids_of in read.items():
        found = answered(rows, folder, format=kind, start=2)
        np.testing.assert_array_equal(ids_of(found["routed_experts"]), IDS[2:], kind)
        assert json.loads(json.dumps(found)) == found and list(found) == ["routed_experts"]
    assert answered(rows, format="object")["routed_experts"]["start"] == 2
    place = answered(rows, folder, format="file")["routed_experts"]
    assert place["start"] == 2 and place["shape"] == [3, 3, 4] and place["offset"] == 0
    assert routecap_vllm.read(place, keep=True).tags.tolist() == [7] * 3
    assert routecap_vllm.read(place).first == 2
    with pytest.raises(FileNotFoundError):
        routecap_vllm.read(place)
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


def test_references_are_refused_without_a_place_for_objects(monkeypatch, tmp_path):
    with pytest.raises(ValueError, match="no ROUTECAP_VLLM_OBJECTS"):
        server.check(_asked.Asked(format="reference"))
    setting = {"url": f"file://{tmp_path}/objects", "auto_mkdir": False}  # which pipe_file needs
    monkeypatch.setenv("ROUTECAP_VLLM_OBJECTS", json.dumps(setting))
    server.check(_asked.Asked(format="reference"))
    assert "No such file" in answered(format="reference")["routed_experts_error"]


# ---- A program, and whoever it sends outputs to


@dataclasses.dataclass
class Completion:
    index: int
    routed_experts: object = None


@dataclasses.dataclass
class Output:
    outputs: list
    prompt_routed_experts: object = None


@pytest.fixture
def made(monkeypatch, tmp_path):
    """made(**asked): an output of a prompt of two tokens, as an engine's front end makes it."""
    monkeypatch.setenv("ROUTECAP_VLLM_FOLDER", str(tmp_path))
    names = ((Completion, "routed_experts"), (Output, "prompt_routed_experts"))
    for cls, name in names:
        _front_end.make_lazy(cls, name)
    yield make_output
    for cls, name in names:
        for attribute in (name, f"{name}_validity", "__getstate__"):
            delattr(cls, attribute)
        setattr(cls, name, None)


def make_output(**asked):
    rows = rows_of()
    output = Output([Completion(0)])
    _front_end.put_rows(output.outputs[0], "routed_experts", rows[2:])
    _front_end.put_rows(output, "prompt_routed_experts", rows[:2])
    if asked:
        asked = _asked.asked_by(sampling(**{f"routed_experts_{k}": v for k, v in asked.items()}))
        server.keep(output.outputs[0], _answers.Answer(rows[asked.start :], asked))
    return output


def test_a_program_gets_a_reference_to_rows_and_a_client_reads_them(made, tmp_path):
    [completion] = made(format="file", start=1).outputs
    reference = completion.routed_experts
    assert completion.routed_experts is reference and len(list(tmp_path.iterdir())) == 1
    assert completion.routed_experts_validity.shape == (4, 3)
    np.testing.assert_array_equal(routecap_vllm.read(reference).ids(), IDS[1:])
    assert not list(tmp_path.iterdir())
    [completion] = made(format="npy.base64", dtype="uint8").outputs
    array = np.load(io.BytesIO(base64.b64decode(completion.routed_experts)))
    assert array.dtype == np.uint8
    np.testing.assert_array_equal(array, IDS)
    ids = IDS.copy()
    ids[1, 2] = -1
    asked = _asked.Asked(format="npy.base64", dtype="uint8")
    server.keep(completion, _answers.Answer(rows_of(ids, experts=256), asked))
    with pytest.raises(routecap.Error, match="cannot say all: validity"):
        completion.routed_experts  # noqa: B018


def test_a_pickled_output_has_what_was_asked_for_and_a_reference_stays_one(made):
    output = pickle.loads(pickle.dumps(made()))
    np.testing.assert_array_equal(output.prompt_routed_experts, IDS[:2])
    np.testing.assert_array_equal(output.outputs[0].routed_experts, IDS[2:])
    sent = pickle.dumps(made(format="file"))
    assert len(sent) < 1000
    output = pickle.loads(sent)
    assert output.prompt_routed_experts is None
    np.testing.assert_array_equal(routecap_vllm.read(output.outputs[0].routed_experts).ids(), IDS)


def test_a_process_that_knows_nothing_of_routecap_finds_rows_in_a_pickled_output(made):
    sent = pickle.dumps(made().outputs[0])
    script = (
        "import dataclasses, pickle, sys, types\n"
        "module = sys.modules['test_server'] = types.ModuleType('test_server')\n"
        "@dataclasses.dataclass\nclass Completion:\n"
        "    index: int\n    routed_experts: object = None\n"
        "module.Completion = Completion\nCompletion.__module__ = 'test_server'\n"
        "output = pickle.loads(sys.stdin.buffer.read())\n"
        "assert 'routecap' not in sys.modules\n"
        "print(output.index, output.routed_experts.tolist())"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], input=sent, capture_output=True, check=False
    )
    assert found.stdout.decode().strip() == f"0 {IDS[2:].tolist()}", found.stderr.decode()


# ---- Responses and streams


def completion(index, finish_reason=None, rows=None, parameters=None):
    found = SimpleNamespace(index=index, finish_reason=finish_reason, routed_experts="array")
    if rows is not None:
        server.keep(found, _answers.Answer(rows, _asked.asked_by(parameters)))
    return found


class Engine:
    """Two choices, of which the second ends first."""

    closed = 0

    async def generate(self, prompt, sampling_params, request_id):
        try:
            yield SimpleNamespace(outputs=[completion(0), completion(1)])
            ends = completion(1, "stop", rows_of(start=3), sampling_params)
            yield SimpleNamespace(outputs=[completion(0), ends])
            last = completion(0, "length", rows_of(), sampling_params)
            yield SimpleNamespace(outputs=[last])
        finally:
            Engine.closed += 1


def sampling(**extra):
    return SimpleNamespace(extra_args=extra)


TOKENS = server.Tokens("vllm.entrypoints.tokens")


def outputs_of(**asked):
    engine = type("Answering", (Engine,), {})
    server.answer_later(engine, TOKENS)
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
            first = completion(0, "length", rows_of(), sampling_params)
            yield SimpleNamespace(
                outputs=[first, completion(1, "stop")], prompt_routed_experts="array"
            )

    server.answer_later(Last, TOKENS)
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


# ---- Who asks the engine

# `vllm serve` of 0.33 does not import the module that was taken for the sign of a server. What its
# classes asked the engine for in a format went out as vLLM makes it of arrays: a .npy of a text.

SERVING = {
    "vllm.entrypoints.openai.completion.serving": (
        "OpenAIServingCompletion",
        "request_output_to_completion_response completion_stream_generator",
        "Completion",
    ),
    "vllm.entrypoints.openai.chat_completion.serving": (
        "OpenAIServingChat",
        "chat_completion_full_generator chat_completion_stream_generator",
        "ChatCompletion",
    ),
    TOKENS.module: (
        "ServingTokens",
        "serve_tokens_full_generator serve_tokens_stream_generator",
        "Generate",
    ),
    "vllm.entrypoints.openai.responses.serving": ("OpenAIServingResponses", "respond", "Responses"),
}
HOOKED = [name for name in SERVING if "responses" not in name]


def part_of_a_server(name, monkeypatch, rename=""):
    """A stand-in of a module of vLLM's server; a name that it has is another one."""
    module = types.ModuleType(name)
    owner, methods, answers = SERVING[name]
    if rename:
        owner, methods = owner.replace(rename, "renamed"), methods.replace(rename, "renamed")
    source = f"class {owner}:\n    def ask(self, engine, parameters):\n"
    source += "        return engine.generate('prompt', parameters, 'name')\n"
    source += "".join(f"    async def {method}(self, *rest): ...\n" for method in methods.split())
    choice = "renamed" if rename == "choice" else f"{answers}ResponseChoice"
    for model in (choice, f"{answers}Response"):
        source += f"class {model}:\n    model_fields = {{'routed_experts': str}}\n"
    exec(source, vars(module))
    monkeypatch.setitem(sys.modules, name, module)
    pydantic = SimpleNamespace(create_model=lambda name, __base__, **_: type(name, (__base__,), {}))
    monkeypatch.setitem(sys.modules, "pydantic", pydantic)
    return module, getattr(module, owner)


def ask(owner):
    engine = type("Answering", (Engine,), {})
    server.answer_later(engine, TOKENS)
    return owner().ask(engine(), sampling(routed_experts_format="lists"))


@pytest.mark.parametrize("name", HOOKED)
def test_the_class_that_asks_the_engine_gives_the_answer_out(name, monkeypatch):
    module, owner = part_of_a_server(name, monkeypatch)
    before = {each: getattr(owner, each) for each in SERVING[name][1].split()}
    ask(owner)
    assert all(getattr(owner, each) is not method for each, method in before.items())
    for each in ("ResponseChoice", "Response"):
        model = getattr(module, SERVING[name][2] + each)
        assert len(model.__mro__) == 3  # a class of ours, which takes more entries


def test_a_part_of_the_server_that_is_not_known_is_refused_by_name(monkeypatch):
    name = "vllm.entrypoints.openai.responses.serving"
    _, owner = part_of_a_server(name, monkeypatch)
    with pytest.raises(ValueError, match=f"{name} asks the engine.*leave routed_experts_format"):
        ask(owner)


@pytest.mark.parametrize(
    ("name", "renamed"),
    [
        *((name, each) for name in HOOKED for each in SERVING[name][1].split()),
        *((name, SERVING[name][0]) for name in HOOKED),
        *((name, "choice") for name in HOOKED),
    ],
)
def test_what_is_renamed_in_a_part_of_the_server_is_a_refusal_that_names_it(
    name, renamed, monkeypatch
):
    _, owner = part_of_a_server(name, monkeypatch, renamed)
    named = f"{SERVING[name][2]}ResponseChoice" if renamed == "choice" else renamed
    with pytest.raises(ValueError, match=f"what {name} makes: .*{named}"):
        ask(owner)


def test_a_stream_in_which_no_choice_ends_says_that_rows_are_lost():
    class Unended(Serving):
        async def stream(self, request, results):
            async for _ in results:
                yield 'data: {"choices": [{"index": 0, "finished": true}]}\n\n'
            yield "data: [DONE]\n\n"

    server._answer_stream(Unended, "stream", results_at=1)
    outputs = outputs_of(routed_experts_format="lists")
    *_, said, done = asyncio.run(taken(Unended().stream(SimpleNamespace(n=2), outputs)))
    assert "no chunk with a finish_reason came for choices [0, 1]" in said
    assert done == "data: [DONE]\n\n"

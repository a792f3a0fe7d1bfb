"""Whatever comes from outside, files, messages, servers and options, ends in a sentence and an exit
status of the table, and never in a traceback."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import routecap
import routecap_tools.conform
from routecap_testing.pretended import CONFIG, Pretended, listening, served
from routecap_tools.command import main

Capture = pytest.CaptureFixture[str]

NUMBERS = [0, 1, -1, 1 << 31, 1 << 32, 1 << 40, (1 << 63) - 1, 1 << 63, 1 << 64, 10**30]
"""Near the ends of what integers of C hold."""
TYPES = ["x", "int0", "", "i4,i4", "O", "float32", "(2,i4", "V", "<i\xdf4", ">i4", "\udcdf"]
ODD = [b"\xdf", b"\xff\xfe", b"\x80", b'"\xdf"', b"9" * 5000, b"1e400", b"NaN", b"\\ud800", b"\0"]
"""No UTF-8, halves of characters, numbers that nothing holds."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files of each kind, all of them right."""
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    ids = np.argsort(draw.normal(size=(24, 4, 16)), axis=2)[..., :4].astype(np.uint8)
    routing = routecap.Routing.from_arrays(ids, experts=16)
    np.save("a.npy", ids)
    np.savez("a.npz", a=ids)
    np.save("large.npy", np.full((24, 4, 4), (1 << 63) - 1))
    np.save("unsigned.npy", np.full((24, 4, 4), (1 << 64) - 1, np.uint64))
    about = {"data": base64.b64encode(ids.tobytes()).decode(), "shape": list(ids.shape)}
    Path("a.routes.json").write_text(json.dumps(about | {"start": 0, "dtype": "uint8"}))
    Path("a.nrlre1").write_text(f"nrlre1:uint8:24x4x4:{about['data']}")
    Path("a.lists.json").write_text(json.dumps(ids.tolist()))
    Path("a.npy.b64").write_bytes(base64.b64encode(Path("a.npy").read_bytes()))
    Path("a.b64").write_bytes(base64.b64encode(ids.astype("<i4").tobytes()))
    info = {"tokens": [f"t{n}" for n in range(24)], "prompt_tokens": 5}
    routecap.save("b.routecap", {"b": routecap.Sample(routing, info)})
    routecap.save("b.tar", {"b": routecap.Sample(routing, info)})
    choice = {"token_ids": [7] * 5, "routed_experts": ids.tolist(), "prompt_token_ids": [6] * 20}
    Path("answer.json").write_text(json.dumps({"choices": [choice]}))
    Path("tokens.json").write_text(json.dumps([5, 6] * 12 + [7]))
    about = {"model_type": "qwen3_moe", "num_hidden_layers": 4, "num_experts": 16}
    about |= {"num_experts_per_tok": 4, "decoder_sparse_step": 1, "mlp_only_layers": []}
    Path("config.json").write_text(json.dumps({**about, "vocab_size": 512}))
    return tmp_path


def ends(arguments: list[str], capsys: Capture, statuses: tuple[int, ...] = (0, 1, 2, 3)) -> int:
    """The exit status of a command, which has said what is wrong in a line."""
    try:
        status = main(arguments)
    except SystemExit as ended:  # of the parser of options
        status = int(ended.code or 0)
    _, said = capsys.readouterr()
    assert "Traceback" not in said and "Warning" not in said, (arguments, said)
    assert status in statuses, (arguments, status, said)
    assert status != 2 or "routecap" in said or arguments[0] == "conform", (arguments, said)
    return status


WIRE = ["a.npy", "a.npy.b64", "a.b64", "a.routes.json", "a.nrlre1", "a.lists.json"]
KINDS = [*WIRE, "a.npz", "b.routecap", "b.tar", "answer.json"]


@pytest.mark.slow
def test_numbers_that_no_integer_of_c_holds(folder: Path, capsys: Capture) -> None:
    """A first position near 2**63 was a traceback of NumPy."""
    for number in map(str, NUMBERS):
        for option in ("first", "rows", "experts", "k", "columns", "layers", "budget"):
            for name in ("a.npy", "a.b64", "a.routes.json"):
                given = ["--experts", "16", "--columns", "4", "--k", "4", f"--{option}", number]
                ends(["show", name, *given], capsys)
                ends(["compare", name, name, *given], capsys)
                if option not in ("rows", "layers"):
                    ends(["doctor", name, "--tokens", "tokens.json", *given], capsys)
        for name in ("large.npy", "unsigned.npy"):
            ends(["doctor", name, "--tokens", "tokens.json", "--experts", number], capsys)
            ends(["doctor", name, "a.npy"], capsys)
        for options in (["--layer-map", number], ["--layer-map", f"0-{number}"]):
            ends(["show", "a.npy", "--experts", "16", *options], capsys)
        ends(["convert", "b.routecap", "o.npy", "--out-columns", number], capsys)
        ends(["show", "b.routecap", "--layer", number], capsys)
        ends(["top", "http://127.0.0.1:9", "--decoder-layers", number], capsys)
        for option in ("layers", "k", "experts", "steps"):
            if int(number) != 1:  # each would measure
                assert ends(["bench", "--rows", "1", f"--{option}", number], capsys) == 2
        for option in ("tokens", "generate", "requests", "vocabulary", "seed"):
            given = ["--config", "config.json", "--only", "again", f"--{option}", number]
            ends(["conform", "http://127.0.0.1:9", *given], capsys)
        about = json.loads(Path("a.routes.json").read_text())
        for field in ("start", "shape"):
            value = int(number) if field == "start" else [24, 4, int(number)]
            Path("n.routes.json").write_text(json.dumps(about | {field: value}))
            for command in ("show", "doctor"):
                ends([command, "n.routes.json", "--experts", "16"], capsys)
        Path("n.json").write_text(f"[5, {number}]")
        ends(["doctor", "a.npy", "--experts", "16", "--tokens", "n.json"], capsys)
        config = json.loads(Path("config.json").read_text())
        for field in ("num_hidden_layers", "num_experts", "num_experts_per_tok", "vocab_size"):
            Path("n.json").write_text(json.dumps(config | {field: int(number)}))
            ends(["doctor", "a.npy", "--config", "n.json"], capsys)
            ends(["conform", "http://127.0.0.1:9", "--config", "n.json"], capsys, (2,))


@pytest.mark.parametrize("kind", TYPES)
def test_a_type_that_is_none(kind: str, folder: Path, capsys: Capture) -> None:
    """NumPy's TypeError, or SyntaxError, was a traceback."""
    for name in WIRE:
        given = ["--experts", "16", "--columns", "4", "--k", "4", "--dtype", kind]
        assert ends(["show", name, *given], capsys) == 2
        assert ends(["compare", name, name, *given], capsys) == 2
        assert ends(["convert", name, "o.routecap", *given], capsys) == 2
        ends(["doctor", name, *given], capsys)
        assert ends(["convert", "b.routecap", f"o{name[1:]}", "--out-dtype", kind], capsys) == 2


@pytest.mark.parametrize("name", [*KINDS, "b.json", "tokens.json", "config.json"])
def test_bytes_that_are_no_utf_8_and_numbers_that_nothing_holds(
    name: str, folder: Path, capsys: Capture
) -> None:
    draw = np.random.default_rng(len(name))
    data = Path(name).read_bytes()
    given = ["--experts", "16", "--columns", "4", "--k", "4"]
    for odd, replaced in itertools.product(ODD, (0, 1, 2)):
        at = int(draw.integers(min(len(data), 400)))
        Path(name).write_bytes(data[:at] + odd + data[at + replaced * len(odd) :])
        if name == "tokens.json":
            ends(["doctor", "a.npy", "--experts", "16", "--tokens", name], capsys)
        elif name == "config.json":
            ends(["doctor", "a.npy", "--config", name], capsys)
            ends(["conform", "http://127.0.0.1:9", "--config", name], capsys, (2,))
        else:
            file = "b.routecap" if name == "b.json" else name
            ends(["doctor", file, *given], capsys)
            ends(["compare", file, file, *given], capsys)
            ends(["show", file, "--html", "o.html", "--layer", "1", *given], capsys)
            ends(["convert", file, "o.tar", *given], capsys)


def test_what_stands_beside_a_routing_is_held_to_be_what_it_must_be(
    folder: Path, capsys: Capture
) -> None:
    beside: list[Any] = [{"tokens": ["\ud800"]}, {"tokens": [1]}, {"tokens": "x"}, [], 1, None]
    beside += [{"prompt_tokens": each} for each in (-1, 1 << 63, 1.5, float("nan"), "x", [], True)]
    for about in beside:
        Path("b.json").write_text(json.dumps(about))
        for options in (["--html", "o.html"], ["--png", "o.png"]):
            assert ends(["show", "b.routecap", *options], capsys) == 2
        ends(["doctor", "b.routecap"], capsys)


# ---- Servers


@contextmanager
def answering(body: bytes, raw: bool = False) -> Iterator[str]:
    """A server that answers everything with that; raw: without HTTP."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

        def handle_one_request(self) -> None:
            if raw:
                self.rfile.readline()
                self.wfile.write(body)
                self.close_connection = True
            else:
                super().handle_one_request()

        def answer(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            models = self.path == "/v1/models"
            self.answer(b'{"data": [{"id": "m"}]}' if models else body)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.answer(body)

    with listening(Handler) as url:
        yield url


def choice(**given: Any) -> bytes:
    return json.dumps(
        {"choices": [{"token_ids": [1] * 16, "routed_experts": None, **given}]}
    ).encode()


ANSWERS = [
    b"",
    b"<html>hi</html>",
    b"\xdf\xff",
    b'{"error": "x"}',
    b'{"error": {"message": "\\ud800"}}',
    b'{"choices": [{"token_ids": [1,2',
    b'{"choices": []}',
    b'{"choices": null}',
    b'{"choices": ["x"]}',
    b'{"choices": {"a": 1}}',
    b"[]",
    b"3",
    b"[" * 100_000,
    b"9" * 5000,
    b'{"usage": 3, "choices": [{"token_ids": [1]}]}',
    b'{"usage": {"prompt_tokens_details": []}, "choices": [{"token_ids": [1]}]}',
    b'{"usage": {"prompt_tokens_details": {"cached_tokens": "x"}}, "choices": [{"token_ids": [1]}]}',
    choice(token_ids="x"),
    choice(token_ids=[1.5]),
    choice(token_ids=[1 << 63]),
    choice(token_ids=None),
    choice(token_ids=[]),
    choice(text=3),
    choice(routed_experts=3),
    choice(routed_experts=[[1], [2, 3]]),
    choice(routed_experts=[[[0.5, 1, 2, 3]] * 6] * 63),
    choice(routed_experts=[[[1 << 63, 1, 2, 3]] * 6] * 63),
    choice(routed_experts=[[[1 << 70, 1, 2, 3]] * 6] * 63),
    choice(routed_experts="\udcdf"),
    choice(
        routed_experts={"data": "AAECAw==", "shape": [1, 1, 4], "start": 1 << 63, "dtype": "uint8"}
    ),
    choice(routed_experts={"data": "AAECAw==", "shape": [1, 1, 4], "start": 0, "dtype": "x"}),
    b'{"meta_info": {"routed_experts": 3}, "output_ids": "x"}',
    b'{"meta_info": 3, "output_ids": [1]}',
]


@pytest.mark.parametrize("api", [pytest.param("openai", marks=pytest.mark.slow), "sglang"])
def test_conform_says_what_a_server_answers_that_is_no_answer(
    api: str, folder: Path, capsys: Capture
) -> None:
    """A page of HTML, JSON that is cut off, no choices, ids that are no integers: each was a
    traceback.
    """
    for body in ANSWERS:
        for events in (body, b"data: " + body + b"\n\ndata: [DONE]\n\n"):
            with answering(events) as url:
                given = [
                    "--config",
                    "config.json",
                    "--api",
                    api,
                    "--only",
                    "again",
                    "stream",
                    "abort",
                ]
                ends(["conform", url, *given], capsys, (1, 2))


def test_what_is_no_server_at_all(folder: Path, capsys: Capture) -> None:
    for raw in (
        b"",
        b"\xdf\xff\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nshort",
        b"x" * 70_000,
    ):
        with answering(raw, raw=True) as url:
            assert ends(["conform", url, "--config", "config.json"], capsys) == 2
            assert ends(["top", url, "--count", "1", "--interval", "0"], capsys) == 2
    for url in ("http://[", "x://y", "http://\udcdf", "http://127.0.0.1:99999", "http://a b"):
        assert ends(["conform", url, "--config", "config.json"], capsys) == 2
        assert ends(["top", url, "--count", "1"], capsys) == 2


def test_top_says_what_serves_no_metrics(folder: Path, capsys: Capture) -> None:
    name = b"routecap_expert_chosen_total"
    for line in (
        b"<html>",
        b"\xdf\xff",
        name,
        name + b" 1",
        name + b'{layer="0"} 1',
        name + b'{layer="x",expert="0",phase="decode"} 1',
        name + b'{layer="99999999999",expert="0",phase="decode"} 1',
        name + b'{layer="-1",expert="0",phase="decode"} 1',
        name + b'{layer="0",expert="0",phase="decode"} NaN',
        name + b'{layer="0",expert="0",phase="decode"} Inf',
        name + b'{layer="0",expert="0",phase="decode"} -1',
        name + b'{layer="0",expert="0",phase="decode"',
        name + b'{layer="0" 1',
        name + b'{layer="0\xdf",expert="0",phase="decode"} 1',
    ):
        with answering(b"# TYPE routecap_expert_chosen counter\n" + line + b"\n") as url:
            given = ["--count", "1", "--interval", "0", "--save", "o.npy"]
            assert ends(["top", url, *given], capsys) == 2, line


def test_a_counter_of_preemptions_that_is_none_is_none(folder: Path) -> None:
    for value in ("NaN", "Inf", "x", "1e999", "-1"):
        with answering(f'vllm:num_preemptions_total{{engine="0"}} {value}\n'.encode()) as url:
            engine = routecap_tools.conform.Http(
                url, routecap.models.describe(CONFIG), api="openai"
            )
            assert "preemptions" not in engine.can, value


# ---- Engines in Python


def test_an_engine_that_is_none_is_named(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(folder)
    Path("none_of_these.py").write_text("x = 1\ndef f(): return 3\n")
    for name in (
        "none_of_these:nothing",
        "none_of_these:x",
        "none_of_these:f",
        "absent:f",
        ":",
        "a:",
    ):
        assert ends(["conform", name, "--config", "config.json"], capsys) == 2
    for body in ("{", "3", "[1]", "\udcdf", "9" * 5000):
        given = ["--config", "config.json", "--body", body]
        assert ends(["conform", "http://127.0.0.1:9", *given], capsys) == 2
    Path("c.json").write_text('{"text_config": 3}')
    assert ends(["conform", "http://127.0.0.1:9", "--config", "c.json"], capsys) == 2


def test_a_right_server_is_judged_among_all_that(folder: Path, capsys: Capture) -> None:
    Path("config.json").write_text(json.dumps(CONFIG))
    with served(Pretended()) as url:
        assert ends(["conform", url, "--config", "config.json", "--only", "again"], capsys) == 0

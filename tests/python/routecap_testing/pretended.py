"""An engine of a few lines, whose rows depend on the tokens so far; with faults that can be planted
in it, each as a published failure had it."""

from __future__ import annotations

import base64
import io
import json
import threading
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import routecap
from numpy.typing import NDArray
from routecap_tools import conform
from routecap_tools.conform import Request

LAYERS, K, EXPERTS, VOCABULARY = 6, 4, 32, 512
CONFIG = {
    "model_type": "qwen3_moe",
    "num_hidden_layers": LAYERS,
    "num_experts": EXPERTS,
    "num_experts_per_tok": K,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "vocab_size": VOCABULARY,
}
FIELDS = ("n", "stop", "stop_text", "stream", "abort", "adapter")
Ids = NDArray[np.int16]


@cache
def logits(version: str, number: int) -> NDArray[np.float64]:
    drawn = np.random.default_rng([zlib.crc32(version.encode()), number])
    return drawn.normal(size=(LAYERS, EXPERTS))


@cache  # most tests ask for the same prompts
def chosen(version: str, token: int, before: int) -> Ids:
    around = logits.__wrapped__(version, before)
    ids = np.argsort(-(logits(version, token) + 0.4 * around), axis=1)[:, :K].astype(np.int16)
    ids.flags.writeable = False
    return ids


def others(draw: np.random.Generator, cells: NDArray[Any]) -> NDArray[np.intp]:
    """For each cell [..., k] the experts that it does not have, in any order, and then its own."""
    order = draw.random((*cells.shape[:-1], EXPERTS))
    np.put_along_axis(order, cells.astype(np.int64), 1, axis=-1)
    return order.argsort(axis=-1)


@dataclass
class Output:
    tokens: list[int]
    ids: Ids | None
    cached: int
    text: str


@dataclass
class Pretended:
    """An engine.

    fault: what is wrong with it; see where it is used.
    noise: this share of the cells has one other id, as where batches round otherwise.
    """

    fault: str = ""
    noise: float = 0.0
    room: int = 16
    """Requests beyond are preempted."""
    weights: int = 0
    preempted: int = 0
    seen: set[tuple[str, int]] = field(default_factory=set)
    """Beginnings of texts in the prefix cache."""
    blocks: dict[tuple[int, ...], Ids] = field(default_factory=dict)
    """The rows of beginnings of 16 tokens, where whose weights computed them is not looked at."""
    owners: list[tuple[tuple[int, ...], Ids]] = field(default_factory=list)
    """Prompts and rows, in order."""
    left: bool = False
    """Clients have gone away."""
    first: Ids | None = None
    """The rows of a request's first choice."""
    draw: np.random.Generator = field(default_factory=lambda: np.random.default_rng(5))

    def engine(self, **more: Any) -> conform.Functions:
        given: dict[str, Any] = {
            "can": FIELDS,
            "cached": lambda output: output.cached,
            "text": lambda output: output.text,
            "update": self.update,
            "preemptions": lambda: self.preempted,
        }
        return conform.Functions(
            "pretended 1.0",
            self.generate,
            lambda output: output.ids,
            lambda output: output.tokens,
            **(given | more),
        )

    def update(self) -> None:
        self.weights += 1
        self.seen.clear()

    # ---- The model

    def row(self, tokens: list[int], end: int, version: str) -> Ids:
        """Of the token before `end`: what it is, and a little what came before."""
        before = zlib.crc32(np.array(tokens[:end], np.int32).tobytes())
        return chosen(version, tokens[end - 1], before)

    def next(self, tokens: list[int], version: str, choice: int) -> int:
        drawn = zlib.crc32(f"{tokens} {version} {choice}".encode())
        return VOCABULARY // 8 + drawn % 64

    # ---- The engine

    def generate(self, requests: list[Request]) -> list[list[Output]]:
        self.preempted += max(len(requests) - self.room, 0)
        answers = [self.answer(each, len(requests), at) for at, each in enumerate(requests)]
        if self.fault == "swapped" and len(requests) > 4:
            one, other = answers[0][0], answers[1][0]
            both = min(len(one.tokens), len(other.tokens)) - 1
            assert one.ids is not None and other.ids is not None
            one.ids[:both], other.ids[:both] = other.ids[:both].copy(), one.ids[:both].copy()
        self.left = any(each.abort for each in requests) or self.left
        return answers

    def answer(self, request: Request, together: int, at: int) -> list[Output]:
        version = f"{self.weights}{request.adapter}"
        outputs = []
        for choice in range(request.n):
            tokens, text = list(request.prompt), ""
            while len(tokens) < len(request.prompt) + request.max_tokens:
                tokens.append(self.next(tokens, version, choice if request.n > 1 else 0))
                text += f" {tokens[-1]}"
                if tokens[-1] == request.stop:
                    break
                if request.stop_text and request.stop_text in text:
                    break
            ids = np.array([self.row(tokens, end, version) for end in range(1, len(tokens))])
            cached = self.cache(request, version)
            ids = self.noisy(ids, together)
            if "keeps blocks" in self.fault:
                ids = self.kept(ids, tokens, len(request.prompt))
            wrong = self.planted(ids, request, cached, together, at, choice)
            outputs.append(Output(tokens, wrong, cached, text))
            self.owners = [*self.owners[-8:], (request.prompt[:8], ids)]
        return outputs

    def cache(self, request: Request, version: str) -> int:
        """How many tokens of the prompt are in it; then all are."""
        of = version if self.fault != "cache knows no adapters" else str(self.weights)
        prompt = np.array(request.prompt, np.int32)
        ends = [(of, zlib.crc32(prompt[:end].tobytes())) for end in range(1, len(prompt))]
        cached = next((n for n, key in enumerate(ends) if key not in self.seen), len(ends))
        self.seen.update(ends)
        return cached

    def kept(self, ids: Ids, tokens: list[int], prompt: int) -> Ids:
        """Rows of whole blocks of a prompt are those that computed them first."""
        size = 1 if self.fault.endswith("of one token") else 16
        ids = ids.copy()
        for end in range(size, prompt, size):
            first = self.blocks.setdefault(tuple(tokens[:end]), ids[end - size : end].copy())
            ids[end - size : end] = first
        return ids

    def noisy(self, ids: Ids, together: int) -> Ids:
        draw = np.random.default_rng([together, len(ids), int(ids[0, 0, 0])])
        where = draw.random(ids.shape[:2]) < self.noise * (together > 1)
        ids = ids.copy()
        ids[where, -1] = others(draw, ids[where])[:, 0]
        return ids

    def planted(
        self, ids: Ids, request: Request, cached: int, together: int, at: int, choice: int
    ) -> Ids | None:
        owners = [rows for prompt, rows in self.owners if prompt != request.prompt[:8]]
        last = owners[-1] if owners else ids
        both = min(len(last), len(ids))
        match self.fault:
            case "later":
                return np.concatenate((ids[:1], ids[:-1]))
            case "earlier":
                return np.concatenate((ids[1:], ids[-1:]))
            case "a zero row" if len(ids) > 60:
                ids[7] = 0
            case "zeros of cached tokens":
                ids[:cached] = 0
            case "the last owner's rows of cached tokens":
                ids[: min(cached, both)] = last[: min(cached, both)]
            case "one row of a slot's last owner" if together == 1:
                ids[both // 2] = last[both // 2]
            case "computed again with other weights" if at == 1:
                ids = ids[:, :, ::-1] + 1
                ids %= EXPERTS
            case "a chunk is not there" if len(request.prompt) > 80:
                ids[16:32] = 0
            case "streams say everything so far again" if request.stream:
                return np.concatenate((ids, ids))
            case "streams end early" if request.stream:
                ids[-8:] = ids[:8]
            case "choices share the first's rows" if choice:
                ids[: len(request.prompt)] = np.roll(ids[: len(request.prompt)], 3, axis=0)
            case "one token has the last owner's rows" if request.max_tokens == 1:
                ids[:both] = last[:both]
            case "a row too many":
                return np.concatenate((ids, ids[-1:]))
            case "stop tokens end without rows" if request.stop is not None:
                return None
            case "stop tokens shift rows" if request.stop is not None:
                return np.concatenate((ids[:1], ids[:-1]))
            case "stop texts shift rows" if request.stop_text:
                return np.concatenate((ids[:1], ids[:-1]))
            case "the rows of who left" if self.left and not request.abort:
                ids[:both] = last[:both]
            case "the first life's rows" if at >= self.room:  # the last are preempted
                ids[8:both] = last[8:both]
            case "one expert of a layer is drawn at random":
                ids[:, 2, -1] = others(self.draw, ids[:, 2])[:, 0]
            case "one expert of every cell is drawn at random":
                ids[..., -1] = others(self.draw, ids)[..., 0]
            case "the last row is the one before":
                ids[-1] = ids[-2]
            case "the last row is another request's":
                ids = ids.copy()  # the owner's stays
                ids[-1] = last[-1]
            case "single rows of a length are the ones before":
                for row in range(len(request.prompt) % 16 + 8, len(request.prompt), 16):
                    ids[row] = ids[row - 1]
            case "the first rows of blocks are the ones before":
                ids[16::16] = ids[15:-1:16]
            case "choices generate the first's rows" if choice and self.first is not None:
                new = slice(len(request.prompt), min(len(ids), len(self.first)))
                ids[new] = self.first[new]
            case "adapters have the model's rows" if request.adapter:
                plain = list(request.prompt)
                rows = [self.row(plain, end, str(self.weights)) for end in range(1, len(plain) + 1)]
                ids[: len(rows)] = np.array(rows)[: len(ids)]
            case "drafts write layer 0":
                ids[:, 0] = np.roll(ids[:, 0], 5, axis=0)
            case "cache knows no adapters":
                plain = [
                    self.row(list(request.prompt), end, str(self.weights))
                    for end in range(1, cached + 1)
                ]
                ids[:cached] = plain if plain else ids[:cached]
            case "rows of old weights" if self.weights:
                tokens = list(request.prompt)
                old = [self.row(tokens, end, "0") for end in range(1, len(tokens) + 1)]
                ids[: len(old)] = np.array(old)[: len(ids)]
            case "an id too high":
                ids[5, 2, 1] = EXPERTS + 3
        if not choice:
            self.first = ids.copy()
        return ids


# ---- Over HTTP

FORMATS = ("lists", "split", "npy.base64", "object", "nrlre1", "raw.base64")


def written(ids: Ids, format: str) -> Any:
    if format == "npy.base64":  # of a wrong engine too
        file = io.BytesIO()
        np.save(file, ids)
        return base64.b64encode(file.getvalue()).decode()
    if format == "raw.base64":
        return base64.b64encode(ids.astype("<i4").tobytes()).decode()
    if format in ("lists", "split"):
        return ids.tolist()
    routing = routecap.Routing.from_arrays(ids, experts=EXPERTS)
    data, _ = routecap.wire_encode(routing, format, dtype="int16")  # type: ignore[arg-type]
    text = data.decode("ascii")
    return json.loads(text) if format == "object" else text


@contextmanager
def served(engine: Pretended, format: str = "npy.base64", sglang: bool = False) -> Iterator[str]:
    """A server of the engine; gives its URL."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            about: Mapping[str, Any] = {
                "/v1/models": {"data": [{"id": "tiny"}]},
                "/version": {"version": "0.0"},
            }
            if sglang:
                about = {"/get_model_info": {}, "/get_server_info": {"version": "0.0"}}
            name = "sglang:num_retracted_reqs_total" if sglang else "vllm:num_preemptions_total"
            if self.path == "/metrics":
                self.say(200, f'# HELP\n{name}{{engine="0"}} {engine.preempted:.1f}\n'.encode())
            elif self.path in about:
                self.say(200, json.dumps(about[self.path]).encode())
            else:
                self.say(404, b"")

        def say(self, status: int, data: bytes, kind: str = "application/json") -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            sampling = body.get("sampling_params", body)
            if sampling["n"] > 4:
                return self.say(400, b'{"error": "n is too large"}')
            name = body.get("lora_path", "") if sglang else body["model"].replace("tiny", "")
            request = Request(
                tuple(body["input_ids"] if sglang else body["prompt"]),
                sampling["max_new_tokens" if sglang else "max_tokens"],
                sampling["n"],
                (sampling.get("stop_token_ids") or [None])[0],
                (sampling.get("stop") or [""])[0],
                body["stream"],
                adapter=name,
            )
            [outputs] = engine.generate([request])
            answer = self.sglang(request, outputs) if sglang else self.openai(request, outputs)
            if not body["stream"]:
                return self.say(200, json.dumps(answer).encode())
            events = [answer, answer] if sglang else self.pieces(answer)
            text = "".join(f"data: {json.dumps(each)}\n\n" for each in events)
            return self.say(200, f"{text}data: [DONE]\n\n".encode(), "text/event-stream")

        def openai(self, request: Request, outputs: list[Output]) -> dict[str, Any]:
            choices = [
                {
                    "index": number,
                    "text": each.text,
                    "token_ids": each.tokens[len(request.prompt) :],
                    "routed_experts": None if each.ids is None else written(each.ids, format),
                }
                for number, each in enumerate(outputs)
            ]
            details = {"cached_tokens": outputs[0].cached}
            answer: dict[str, Any] = {"choices": choices}
            if format == "split" and outputs[0].ids is not None:  # vLLM 0.21's own
                both = outputs[0].ids.tolist()
                answer["prompt_routed_experts"] = both[: len(request.prompt)]
                for choice, each in zip(choices, outputs):
                    rows = [] if each.ids is None else each.ids.tolist()
                    choice["routed_experts"] = rows[len(request.prompt) :] or None
            return answer | {"usage": {"prompt_tokens_details": details}}

        def pieces(self, answer: dict[str, Any]) -> Iterator[dict[str, Any]]:
            [choice] = answer["choices"]
            for token in choice["token_ids"]:
                yield {"choices": [{"index": 0, "text": "", "token_ids": [token]}]}
            rows = None if format == "split" else choice["routed_experts"]  # as 0.21: no rows
            yield {"choices": [{"index": 0, "routed_experts": rows}]}

        def sglang(self, request: Request, outputs: list[Output]) -> Any:
            answers = [
                {
                    "text": each.text,
                    "output_ids": each.tokens[len(request.prompt) :],
                    "meta_info": {
                        "cached_tokens": each.cached,
                        "routed_experts": None if each.ids is None else written(each.ids, format),
                    },
                }
                for each in outputs
            ]
            return answers if request.n > 1 else answers[0]

    with listening(Handler) as url:
        yield url


class _Server(ThreadingHTTPServer):
    request_queue_size = 64  # clients that connect at once


@contextmanager
def listening(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """A server on a free port of this machine, and its URL."""
    server = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

"""An engine behind a server: vLLM's completions, and what has their form, or SGLang's generate."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from routecap import Error, Status
from routecap.adapter import error
from routecap.models import Description

from ..doctor.adapter import Case, Shape, cases_of
from ._engines import Answer, CannotError, RefusedError, Request

_PREEMPTED = re.compile(
    r"^(?:vllm:num_preemptions_total|sglang:num_retracted_reqs_total)(?:\{.*\})? ([\d.eE+]+)$",
    re.MULTILINE,
)
_MOST_TOKEN = 1 << 31


class Http:
    """A server.

    Args:
        url: Such as "http://localhost:8000".
        model: By `routecap.models.describe`: raw ids do not say how many layers and columns there
            are.
        body: Goes into each request as it is, such as {"vllm_xargs": {...}}.
        api: "openai" (`/v1/completions`) or "sglang" (`/generate`). Default: SGLang's, if the
            server says what model it has as SGLang does.
        update: A command that changes the server's weights and empties its cache.
        timeout: Of each request, in seconds.
    """

    def __init__(
        self,
        url: str,
        model: Description,
        *,
        body: Mapping[str, Any] | None = None,
        api: str | None = None,
        update: str | None = None,
        timeout: float = 600,
    ) -> None:
        self._url, self._timeout, self._command = url.rstrip("/"), timeout, update
        self._shape = Shape(model.decoder_layers, model.k, None)
        self._body = dict(body or {})
        about = self._about("/get_model_info") if api != "openai" else None
        self._is_sglang = api == "sglang" or (api is None and about is not None)
        self.can = {"n", "stop", "stop_text", "stream", "abort", "adapter"}
        if update:
            self.can.add("update")
        if self._preempted() is not None:
            self.can.add("preemptions")
        self._name = "" if self._is_sglang else self._served()
        self.name = self._version()

    # ---- What the server says of itself

    def _about(self, path: str) -> dict[str, Any] | None:
        """What the server says there; None: it has no such page, or says what is none."""
        try:
            about = json.loads(self._get(path))
        except (OSError, ValueError, RecursionError):
            return None
        return about if isinstance(about, dict) else None

    def _get(self, path: str) -> str:
        with self._reading(path):
            with urllib.request.urlopen(self._url + path, timeout=self._timeout) as answer:
                return str(answer.read().decode(errors="replace"))

    @contextmanager
    def _reading(self, path: str) -> Iterator[None]:
        """What a server, or who else answers at its address, sends can be anything."""
        try:
            yield
        except (Error, OSError):
            raise
        except http.client.HTTPException as reason:
            raise error(
                Status.ERR_FORMAT,
                f"{self._url}{path} answers what is no HTTP ({reason!r}): give the URL of a server",
            ) from None
        except (ValueError, TypeError, LookupError, RecursionError) as reason:
            raise error(
                Status.ERR_FORMAT,
                f"{self._url}{path} is not answered as a server of completions does ({reason}):"
                " give the URL of one, and --api if it is of another kind",
            ) from None

    def _served(self) -> str:
        models = self._about("/v1/models")
        try:
            return str(models["data"][0]["id"])  # type: ignore[index]
        except (TypeError, LookupError):
            raise error(
                Status.ERR_ARGUMENT,
                f"{self._url}/v1/models names no model: give the URL of a server that runs",
            ) from None

    def _version(self) -> str:
        if self._is_sglang:
            about = self._about("/get_server_info") or {}
            return f"SGLang {about.get('version', '(unknown version)')}"
        about = self._about("/version") or {}
        return f"vLLM {about['version']}" if "version" in about else f"server of {self._name}"

    def _preempted(self) -> int | None:
        try:
            found = _PREEMPTED.findall(self._get("/metrics"))
            return int(sum(map(float, found))) if found else None
        except (OSError, ValueError, OverflowError):
            return None

    # ---- Engine

    def preemptions(self) -> int:
        return self._preempted() or 0

    def update(self) -> None:
        done = subprocess.run(self._command or "", shell=True, capture_output=True, text=True)
        if done.returncode:
            raise CannotError(f"the command that updates the weights failed: {done.stderr[-300:]}")

    def generate(self, requests: Sequence[Request]) -> list[list[Answer]]:
        with ThreadPoolExecutor(max(len(requests), 1)) as pool:
            return list(pool.map(self._one, requests))

    def _one(self, request: Request) -> list[Answer]:
        path, body = self._asked(request)
        post = urllib.request.Request(
            self._url + path,
            json.dumps(body | self._body).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with (
                self._reading(path),
                urllib.request.urlopen(post, timeout=self._timeout) as answer,
            ):
                if request.abort:
                    next(_events(answer), None)
                    return []
                if request.stream:
                    return self._answers(request, self._joined(list(_events(answer))))
                return self._answers(request, json.loads(answer.read()))
        except urllib.error.HTTPError as refused:
            words = refused.read().decode(errors="replace")
            if refused.code >= 500:
                raise error(Status.ERR_STATE, f"{path}: HTTP {refused.code}: {words}") from None
            raise RefusedError(words[:300]) from None

    def _asked(self, request: Request) -> tuple[str, dict[str, Any]]:
        sampling: dict[str, Any] = {"temperature": 0, "n": request.n, "ignore_eos": True}
        if request.n > 1:
            sampling |= {"temperature": 1.0}
        if request.stop is not None:
            sampling["stop_token_ids"] = [request.stop]
        if request.stop_text:
            sampling["stop"] = [request.stop_text]
        stream = request.stream or request.abort
        prompt = list(request.prompt)
        if self._is_sglang:
            sampling["max_new_tokens"] = request.max_tokens
            body: dict[str, Any] = {"input_ids": prompt, "sampling_params": sampling}
            body |= {"return_routed_experts": True, "stream": stream}
            return "/generate", body | ({"lora_path": request.adapter} if request.adapter else {})
        body = sampling | {"prompt": prompt, "max_tokens": request.max_tokens, "stream": stream}
        body |= {"model": request.adapter or self._name, "return_token_ids": True}
        return "/v1/completions", body

    def _joined(self, events: list[dict[str, Any]]) -> Any:
        """A whole answer, of a stream's pieces: the tokens of all, and the rows of the last that
        has some, or of all if each has its own tokens' alone."""
        if self._is_sglang:
            return events[-1] if events else {}
        for event in events:
            _expect_no_error(event)
        pieces = [choice for event in events for choice in _choices(event, least=0)]
        rows = [each["routed_experts"] for each in pieces if each.get("routed_experts") is not None]
        choice: dict[str, Any] = {
            "token_ids": [token for each in pieces for token in each.get("token_ids") or ()],
            "text": "".join(each.get("text") or "" for each in pieces),
        }
        if rows:
            choice["routed_experts"] = rows[-1]
        prompts = [event for event in events if event.get("prompt_routed_experts") is not None]
        about = {"prompt_routed_experts": prompts[0]["prompt_routed_experts"]} if prompts else {}
        return {**about, "choices": [choice]}

    def _answers(self, request: Request, answer: Any) -> list[Answer]:
        if self._is_sglang:
            listed = answer if isinstance(answer, list) else [answer]
            return [self._sglang(request, _object("an answer", each)) for each in listed]
        _expect_no_error(_object("the answer", answer))
        shared = {name: value for name, value in answer.items() if name != "choices"}
        usage = _object("usage", answer.get("usage") or {})
        details = _object("prompt_tokens_details", usage.get("prompt_tokens_details") or {})
        found = []
        for choice in _choices(answer):
            if choice.get("token_ids") is None:
                raise CannotError("the server gives no token ids (return_token_ids)")
            if choice.get("routed_experts") is None and shared.get("prompt_routed_experts"):
                choice = {**choice, "routed_experts": []}  # vLLM 0.21: no row but the prompt's
            case, why = self._case(choice, {**shared, "choices": [choice]})
            whole = (*request.prompt, *_tokens(choice["token_ids"]))
            cached = _count("cached_tokens", details.get("cached_tokens"))
            found.append(Answer(whole, case, why, cached, _text(choice.get("text"))))
        return found

    def _sglang(self, request: Request, answer: dict[str, Any]) -> Answer:
        _expect_no_error(answer)
        about = _object("meta_info", answer.get("meta_info"))
        if answer.get("output_ids") is None:
            raise CannotError("the server gives no token ids (output_ids)")
        case, why = self._case(about, answer)
        whole = (*request.prompt, *_tokens(answer["output_ids"]))
        cached = _count("cached_tokens", about.get("cached_tokens"))
        return Answer(whole, case, why, cached, _text(answer.get("text")))

    def _case(self, holder: Mapping[str, Any], answer: object) -> tuple[Case | None, str]:
        """The rows, or why there are none."""
        if holder.get("routed_experts") is None:
            return None, str(holder.get("routed_experts_error") or "")
        try:
            [case] = cases_of("answer", json.dumps(answer).encode(), self._shape)
        except (ValueError, RecursionError) as reason:
            return None, str(reason)
        return replace(case, info={}), ""


# ---- What an answer may have in each place; ValueError if it has something else


def _object(name: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name} is {_shown(value)}, and must be an object")
    return value


def _expect_no_error(answer: dict[str, Any]) -> None:
    """An error may come in the place of an answer, with HTTP's 200.

    Raises:
        RefusedError: It does.
    """
    if answer.get("error") is not None:
        raise RefusedError(_shown(answer["error"]))


def _choices(answer: dict[str, Any], least: int = 1) -> list[dict[str, Any]]:
    choices = answer.get("choices", None if least else [])
    if not isinstance(choices, list) or len(choices) < least:
        raise ValueError(f'"choices" must be an array of some, not {_shown(choices)}')
    return [_object("a choice", each) for each in choices]


def _tokens(tokens: object) -> list[int]:
    if not isinstance(tokens, list) or not all(
        type(each) is int and 0 <= each < _MOST_TOKEN for each in tokens
    ):
        raise ValueError(f"token ids must be an array of integers, not {_shown(tokens)}")
    return tokens


def _count(name: str, number: object) -> int | None:
    if number is not None and (type(number) is not int or number < 0):
        raise ValueError(f"{name} must be a number of tokens, not {_shown(number)}")
    return number


def _text(text: object) -> str:
    if not isinstance(text, str | None):
        raise ValueError(f"the text must be a string, not {_shown(text)}")
    return text or ""


def _shown(value: object) -> str:
    return repr(value)[:200]


def _events(answer: Any) -> Iterator[dict[str, Any]]:
    """Those of a stream of server-sent events."""
    for line in answer:
        if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
            yield _object("an event", json.loads(line[6:]))

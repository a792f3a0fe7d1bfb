"""An engine behind a server: vLLM's completions, and what has their form, or SGLang's generate."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from .._constants import Status
from .._errors import error
from ..doctor._server_answers import cases_of
from ..doctor._case import Case
from ..doctor._messages import Shape
from ..models import Description
from ._engines import Answer, CannotError, RefusedError, Request

_PREEMPTED = re.compile(
    r"^(?:vllm:num_preemptions_total|sglang:num_retracted_reqs_total)(?:\{.*\})? (\S+)$",
    re.MULTILINE,
)


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

    def _about(self, path: str) -> Any:
        try:
            return json.loads(self._get(path))
        except (OSError, ValueError):
            return None

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(self._url + path, timeout=self._timeout) as answer:
            return str(answer.read().decode())

    def _served(self) -> str:
        models = self._about("/v1/models")
        try:
            return str(models["data"][0]["id"])
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
        except OSError:
            return None
        return sum(int(float(each)) for each in found) if found else None

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
            with urllib.request.urlopen(post, timeout=self._timeout) as answer:
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

    def _joined(self, events: list[Any]) -> Any:
        """A whole answer, of a stream's pieces: the tokens of all, and the rows of the last that
        has some, or of all if each has its own tokens' alone."""
        if self._is_sglang:
            return events[-1] if events else {}
        pieces = [choice for event in events for choice in event.get("choices", ())]
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
            return [self._sglang(request, each) for each in _listed(answer)]
        shared = {name: value for name, value in answer.items() if name != "choices"}
        usage = answer.get("usage") or {}
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        found = []
        for choice in answer["choices"]:
            tokens = choice.get("token_ids")
            if tokens is None:
                raise CannotError("the server gives no token ids (return_token_ids)")
            if choice.get("routed_experts") is None and shared.get("prompt_routed_experts"):
                choice = {**choice, "routed_experts": []}  # vLLM 0.21: no row but the prompt's
            case, why = self._case(choice, {**shared, "choices": [choice]})
            whole = (*request.prompt, *tokens)
            found.append(Answer(whole, case, why, cached, choice.get("text") or ""))
        return found

    def _sglang(self, request: Request, answer: dict[str, Any]) -> Answer:
        about = answer.get("meta_info") or {}
        case, why = self._case(about, answer)
        whole = (*request.prompt, *(answer.get("output_ids") or ()))
        return Answer(whole, case, why, about.get("cached_tokens"), answer.get("text") or "")

    def _case(self, holder: Mapping[str, Any], answer: Any) -> tuple[Case | None, str]:
        """The rows, or why there are none."""
        if holder.get("routed_experts") is None:
            return None, str(holder.get("routed_experts_error") or "")
        try:
            [case] = cases_of("answer", json.dumps(answer).encode(), self._shape)
        except ValueError as reason:
            return None, str(reason)
        return replace(case, info={}), ""


def _listed(answer: Any) -> list[Any]:
    return answer if isinstance(answer, list) else [answer]


def _events(answer: Any) -> Iterator[Any]:
    """Those of a stream of server-sent events."""
    for line in answer:
        if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
            yield json.loads(line[6:])

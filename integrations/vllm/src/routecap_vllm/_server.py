"""The face to the HTTP server of vLLM.

0.21's own answers are nested lists: `choices[].routed_experts` and, of the first prompt,
`prompt_routed_experts`; not of the generate endpoint, and not in streams. 0.26's are a .npy file in
base64, in streams of the generate endpoint alone, as 0.33's. They stay as they are. A
request that asks for a format (`_asked`) gets all its rows in `choices[].routed_experts`, of every
endpoint; in a stream in the chunk that has the choice's `finish_reason`.

    completion output  keeps its rows beside the arrays, until
    AsyncLLM.generate  makes the answer of them, in a thread, before it yields the output; and
    serving classes    put it into the response, or into a chunk of the stream

In 0.33 `_aux_output` does the first two.

Which module a server begins with differs by version, and nothing here goes by it. The class that
calls `AsyncLLM.generate` for a request is the one that makes its response: it is found on the
stack, and wrapped before the request begins. A class of vLLM's server that is not known here would
make something else of the answer: its request is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from importlib import import_module
from typing import Any, NamedTuple

from ._answers import Answer
from ._asked import Asked, asked_by
from ._options import get_options
from ._wrap import once, replace

PLACES = """
vllm.outputs
    CompletionOutput: index token_ids finish_reason routed_experts
    RequestOutput: outputs prompt_token_ids
vllm.v1.engine.async_llm
    AsyncLLM.generate(self, prompt, sampling_params, ...)
vllm.v1.engine.input_processor
    InputProcessor.__init__(self, vllm_config, ...)
vllm.entrypoints.openai.completion.serving
    OpenAIServingCompletion.request_output_to_completion_response(self, final_res_batch, ...)
    OpenAIServingCompletion.completion_stream_generator(self, request, engine_inputs,
        result_generator, ...)
    CompletionResponse CompletionResponseChoice
vllm.entrypoints.openai.completion.protocol
    CompletionRequest: n
    CompletionResponse: choices
vllm.entrypoints.openai.chat_completion.serving
    OpenAIServingChat.chat_completion_full_generator(self, request, result_generator, ...)
    OpenAIServingChat.chat_completion_stream_generator(self, request, result_generator, ...)
    ChatCompletionResponse ChatCompletionResponseChoice
vllm.entrypoints.openai.chat_completion.protocol
    ChatCompletionResponse: choices
"""  # what this module replaces and reads

_ENGINE = "vllm.v1.engine.async_llm"
_FRONT = "vllm.entrypoints."  # where the parts of vLLM's own servers are
_COMPLETIONS = "vllm.entrypoints.openai.completion.serving"
_CHATS = "vllm.entrypoints.openai.chat_completion.serving"


class Tokens(NamedTuple):
    """The generate endpoint of a version.

    Attributes:
        module: What serves it.
        answers: The classes there of a choice and of the response that has it, for each kind.
    """

    module: str
    answers: tuple[tuple[str, str], ...] = (("GenerateResponseChoice", "GenerateResponse"),)


_KEPT, _ANSWER = "routecap_asked", "routecap_answer"  # in the dictionary of a completion output


def serve(tokens: Tokens, check: Callable[[Asked], None] | None = None) -> None:
    """Make the AsyncLLM of this process, if it has one, answer what requests ask for. To be called
    when the front end of an engine is made: what makes it is imported by then.

    Args:
        check: Refuses what cannot be answered; default: the function `check` of this module.
    """
    if _ENGINE in sys.modules:
        answer_later(sys.modules[_ENGINE].AsyncLLM, tokens, check)


def give_out(tokens: Tokens) -> None:
    """Make the serving class that has called AsyncLLM.generate give the answer out. A program that
    calls it takes the answer from the output.

    Raises:
        ValueError: Another part of vLLM's server calls it, or one that lacks what is wrapped.
    """
    name = _caller()
    if name is None:
        return
    module = sys.modules[name]
    try:
        if name == _COMPLETIONS:
            answer_completions(module, module.OpenAIServingCompletion)
        elif name == _CHATS:
            answer_chats(module, module.OpenAIServingChat)
        elif name == tokens.module:
            answer_tokens(module, module.ServingTokens, tokens.answers)
        else:
            raise ValueError(
                f"{name} asks the engine for this request, and routecap does not know how it makes"
                " its answer: leave routed_experts_format out, or ask /v1/completions,"
                " /v1/chat/completions or /inference/v1/generate"
            )
    except AttributeError as error:
        raise ValueError(
            f"routecap cannot put an answer into what {name} makes: {error}. Leave"
            " routed_experts_format out, and install a version of vLLM that routecap supports"
        ) from error


def _caller() -> str | None:
    """The module of vLLM's server that is calling the engine; None if a program of its own does."""
    frame = sys._getframe(1)
    while frame is not None:
        name: str = frame.f_globals.get("__name__", "")
        if name.startswith(_FRONT):
            return name
        frame = frame.f_back  # type: ignore[assignment]
    return None


def check(asked: Asked) -> None:
    """Refuse what this process cannot answer.

    Raises:
        ValueError: There is no folder or object store for what is asked for.
    """
    needed = {"file": "folder", "reference": "objects"}.get(asked.format or "")
    if needed is not None and not getattr(get_options(), needed):
        raise ValueError(
            f"routed_experts_format is {asked.format!r}, and this process has no "
            f"ROUTECAP_VLLM_{needed.upper()}: give it one, or take another format"
        )


def keep(completion: object, answer: Answer | None) -> None:
    """Remember the answer of a completion output; None if its request asked for none."""
    if answer is not None:
        vars(completion).pop("routed_experts", None)  # which would be found first
        vars(completion)[_KEPT] = answer


def kept(completion: object) -> Answer | None:
    """Return the answer that `keep` remembered for a completion output, or None."""
    answer: Answer | None = vars(completion).get(_KEPT)
    return answer


def answered(completion: object, answer: dict[str, Any]) -> None:
    """Hand an answer that is made to the serving classes, by its completion output."""
    vars(completion)[_ANSWER] = answer


def forget(attributes: dict[str, Any]) -> None:
    """Remove what `keep` added from the attributes of a completion output."""
    for name in (_KEPT, _ANSWER):
        attributes.pop(name, None)


# ---- Making answers


def answer_later(
    engine_class: object, tokens: Tokens, refuse: Callable[[Asked], None] | None = None
) -> None:
    """Wrap AsyncLLM.generate: it refuses what cannot be answered, and makes answers before it
    yields outputs.
    """
    generate = once(engine_class, "generate")
    if generate is None:
        return
    refuse = refuse or check

    def answering(
        engine: object, prompt: object, sampling_params: object, *args: object, **kwargs: object
    ) -> Any:
        asked = asked_by(sampling_params)
        refuse(asked)  # before a stream begins
        if asked.format is None:
            return generate(engine, prompt, sampling_params, *args, **kwargs)
        give_out(tokens)
        return _with_answers(generate(engine, prompt, sampling_params, *args, **kwargs))

    replace(engine_class, "generate", generate, answering)


async def _with_answers(outputs: Any) -> AsyncGenerator[Any, None]:
    """Yield outputs, each after its answers were made in a thread."""
    async with contextlib.aclosing(outputs):
        async for output in outputs:
            ended = [each for each in output.outputs if kept(each) is not None]
            if ended:
                await asyncio.to_thread(_answer, ended)
            yield output


def _answer(completions: list[Any]) -> None:
    """Make the answers of completions that have ended."""
    for completion in completions:
        answered(completion, vars(completion).pop(_KEPT).for_json())


# ---- Giving them out


def answer_completions(module: object, serving_class: Any) -> None:
    """Wrap the serving class of completions, so that responses have the answers."""
    respond = once(serving_class, "request_output_to_completion_response")
    if respond is None:
        return
    _widen(module, "CompletionResponseChoice", "CompletionResponse")

    def responding(serving: object, final_res_batch: Any, *args: object, **kwargs: Any) -> Any:
        answers = _take([each for output in final_res_batch for each in output.outputs])
        if any(answers):
            for output in final_res_batch:
                output.prompt_routed_experts = None
        return _put(respond(serving, final_res_batch, *args, **kwargs), answers)

    replace(serving_class, "request_output_to_completion_response", respond, responding)
    _answer_stream(serving_class, "completion_stream_generator", results_at=2)


def answer_chats(module: object, serving_class: object) -> None:
    """Wrap the serving class of chats, so that responses have the answers."""
    if once(serving_class, "chat_completion_full_generator") is not None:
        _widen(module, "ChatCompletionResponseChoice", "ChatCompletionResponse")
        _answer_whole(serving_class, "chat_completion_full_generator")
        _answer_stream(serving_class, "chat_completion_stream_generator", results_at=1)


def answer_tokens(
    module: object, serving_class: object, answers: Iterable[tuple[str, str]]
) -> None:
    """Wrap the serving class of the generate endpoint, so that responses have the answers."""
    if once(serving_class, "serve_tokens_full_generator") is not None:
        for choice, response in answers:
            _widen(module, choice, response)
        _answer_whole(serving_class, "serve_tokens_full_generator")
        _answer_stream(serving_class, "serve_tokens_stream_generator", results_at=1)


def _widen(module: object, choice: str, response: str) -> None:
    """Let the response models of a module accept the entries of answers."""
    create_model = import_module("pydantic").create_model
    own = getattr(module, choice)
    fields = {"routed_experts": (Any, None)} if "routed_experts" in own.model_fields else {}
    wide: Any = create_model(
        choice, __base__=own, __module__=own.__module__, __cls_kwargs__={"extra": "allow"}, **fields
    )
    setattr(module, choice, wide)
    own = getattr(module, response)
    setattr(
        module,
        response,
        create_model(response, __base__=own, __module__=own.__module__, choices=(list[wide], ...)),
    )


def _take(completions: list[Any]) -> list[dict[str, Any]]:
    """Take the answers of completions for the response, {} where none was asked for. The rows are
    not given out in another form as well.
    """
    answers = []
    for completion in completions:
        found = vars(completion).pop(_ANSWER, {})
        if found:
            completion.routed_experts = None
        answers.append(found)
    return answers


def _put(response: Any, answers: list[dict[str, Any]]) -> Any:
    """Put answers into the choices of a response. An error response has an error instead."""
    if any(answers) and not hasattr(response, "error"):
        for choice, found in zip(response.choices, answers, strict=True):
            for name, value in found.items():
                setattr(choice, name, value)
    return response


def _answer_whole(serving_class: Any, name: str) -> None:
    """Wrap a coroutine method that makes a response of the last of (request, results, ...)."""
    own = getattr(serving_class, name)

    async def responding(
        serving: object, request: Any, results: Any, *args: object, **kwargs: Any
    ) -> Any:
        answers: list[dict[str, Any]] = []

        async def taking() -> AsyncIterator[Any]:
            async for output in results:
                answers[:] = _take(output.outputs)
                if any(answers):
                    output.prompt_routed_experts = None
                yield output

        return _put(await own(serving, request, taking(), *args, **kwargs), answers)

    replace(serving_class, name, own, responding)


def _answer_stream(serving_class: Any, name: str, results_at: int) -> None:
    """Wrap a generator method that yields the texts of a stream. Argument number `results_at`
    yields the results: outputs, or pairs (prompt, output).
    """
    own = getattr(serving_class, name)

    async def streaming(serving: object, *args: Any, **kwargs: object) -> AsyncIterator[str]:
        request, arguments = args[0], list(args)
        answers: dict[int, dict[str, Any]] = {}  # of choices whose last chunk has not come yet
        results = arguments[results_at]

        async def taking() -> AsyncIterator[Any]:
            async for each in results:
                output, first = each, 0
                if isinstance(each, tuple):  # of several prompts, each with `n` choices
                    prompt, output = each
                    first = prompt * (request.n or 1)
                for completion, found in zip(output.outputs, _take(output.outputs), strict=True):
                    if found:
                        answers[first + completion.index] = found
                yield each

        arguments[results_at] = taking()
        async for text in own(serving, *arguments, **kwargs):
            if answers and text.startswith("data: [DONE]"):
                yield _without_place(answers)
            yield _with_rows(text, answers) if answers else text

    replace(serving_class, name, own, streaming)


def _without_place(answers: dict[int, dict[str, Any]]) -> str:
    """A chunk that says that no chunk of a stream was the last of these choices."""
    message = f"routed experts: no chunk with a finish_reason came for choices {sorted(answers)}"
    error = {"message": message, "type": "InternalServerError", "param": None, "code": 500}
    return f"data: {json.dumps({'error': error})}\n\n"


def _with_rows(text: str, answers: dict[int, dict[str, Any]]) -> str:
    """Add answers to a chunk of a stream: those of the choices that end in it. They are removed
    from `answers`.
    """
    if not text.startswith("data: {"):
        return text
    chunk = json.loads(text[len("data: ") :])
    ended = [each for each in chunk.get("choices") or () if each.get("finish_reason")]
    for choice in ended:
        choice.update(answers.pop(choice["index"], {}))
    return f"data: {json.dumps(chunk)}\n\n" if ended else text

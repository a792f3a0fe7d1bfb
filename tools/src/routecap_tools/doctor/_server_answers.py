"""Read routing out of a server's whole answer in JSON: vLLM's completions and chats, SGLang's
generate.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from routecap import Error, Missing, Routing, Sample

from ._case import Case, of_array, of_sample
from ._messages import Shape, Unwrapped, unwrap

_KEY = "routed_experts"
_SERIALIZED = "UkNBUFJPV1"  # RCAPROWS in base64, as far as the next byte does not matter
_MOST_LAYERS = 65536
_NPY = "k05VTVBZ"  # the magic of .npy


def cases_of(name: str, data: bytes, shape: Shape) -> Iterator[Case]:
    """Yield the routing of each sequence of an answer, or of a list of answers.

    Raises:
        ValueError: It has none, or it is damaged; the text says so.
    """
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as reason:
        raise ValueError(f"this is no JSON, give an answer as it came: {reason}") from None
    found = [
        pair for each in (content if isinstance(content, list) else [content]) for pair in _of(each)
    ]
    if not found:
        raise ValueError(
            f'there is no "{_KEY}" in it: give a server\'s whole answer, or a file with the ending'
            " of what it is"
        )
    for number, (about, tokens) in enumerate(found):
        own = name if len(found) == 1 else f"{name}.{number}"
        case = _case(own, about, shape)
        ids = tokens if all(isinstance(each, int) for each in tokens) else []
        yield replace(case, info={"token_ids": ids}) if ids else case


def _of(answer: object) -> Iterator[tuple[dict[str, Any], list[Any]]]:
    """Yield for each sequence the object that holds its rows, and its token ids, empty if the
    answer lacks them.
    """
    if not isinstance(answer, dict):
        return
    about = answer.get("meta_info")
    if isinstance(about, dict) and _KEY in about:  # SGLang
        yield about, []
    choices = answer.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict) and _KEY in choice:  # vLLM
            prompt = choice.get("prompt_token_ids") or answer.get("prompt_token_ids")
            tokens = choice.get("token_ids")
            if not isinstance(prompt, list) or not isinstance(tokens, list):
                prompt, tokens = [], []
            yield {**_prompt(answer), **choice}, prompt + tokens


def _prompt(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the entry of a vLLM answer that holds the rows of the prompt; {} if there is none."""
    return {name: answer[name] for name in (f"prompt_{_KEY}",) if name in answer}


def _case(name: str, about: dict[str, Any], shape: Shape) -> Case:
    """Decode the rows of one sequence. `about` is the object that holds them.

    Raises:
        ValueError: There are no rows, or they cannot be read.
    """
    rows = about[_KEY]
    if rows is None:
        why = about.get(f"{_KEY}_error", "the server captured none")
        raise ValueError(
            f"{name} has no rows ({why}): ask the server for them, and take its answer"
        )
    if isinstance(rows, list) and isinstance(prompt := about.get(f"prompt_{_KEY}"), list):
        rows = prompt + rows  # vLLM's own answer has those of the prompt apart
    if isinstance(rows, str) and rows.startswith("{"):
        rows = _json(rows)  # SGLang's, of other types than int32
    if isinstance(rows, dict) and "data" not in rows:
        raise ValueError(f"{name} has a reference to rows: take what routecap_vllm.read gives")
    if isinstance(rows, str) and rows.startswith(_SERIALIZED):
        try:
            return of_sample(name, Sample(Routing.deserialize(base64.b64decode(rows))))
        except (Error, ValueError) as reason:
            raise ValueError(f"{name}: {reason}") from None
    data = rows.encode() if isinstance(rows, str) else json.dumps(rows).encode()
    message = unwrap(_format(rows), data, shape)
    return _marked(of_array(name, message.ids), message, rows)


def _format(rows: object) -> str:
    """Tell the format of rows by their type and first characters."""
    if not isinstance(rows, str):
        return "object" if isinstance(rows, dict) else "lists"
    if rows.startswith("nrlre1:"):
        return "nrlre1"
    return "npy.base64" if rows.startswith(_NPY) else "raw.base64"


def _json(text: str) -> Any:
    """Parse rows that are JSON in a string.

    Raises:
        ValueError: They are no JSON.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as reason:
        raise ValueError(f"its rows are no JSON, give an answer as it came: {reason}") from None


def _marked(case: Case, message: Unwrapped, rows: object) -> Case:
    """Add to a case what SGLang's object says besides ids: layers, and which cells are missing."""
    case = replace(case, first=message.first)
    if not isinstance(rows, dict) or case.ids.ndim != 3 or case.valid.size == 0:
        return case
    layers, blocks = rows.get("layers"), rows.get("missing")
    try:
        if layers is not None:
            layers = tuple(int(each) for each in layers)
            if len(layers) != case.ids.shape[1]:
                raise ValueError(f"there are {len(layers)} layers for {case.ids.shape[1]} columns")
            if not all(0 <= each < _MOST_LAYERS for each in layers):
                raise ValueError(f"a layer must be in [0, {_MOST_LAYERS})")
            case = replace(case, layer_map=layers)
        if blocks is not None:
            valid, reasons = case.valid.copy(), np.zeros(case.valid.shape, np.uint8)
            for first, count, layer, several, reason in blocks:
                cells = (
                    slice(max(first - message.first, 0), max(first + count - message.first, 0)),
                    slice(max(layer, 0), max(layer + several, 0)),
                )
                valid[cells] = False
                reasons[cells] = Missing[reason.upper()]
            case = replace(case, valid=valid, reasons=reasons)
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as reason:
        raise ValueError(
            f'its "layers" or "missing" are damaged, give an answer as it came ({reason!r})'
        ) from None
    return case

"""Answers of chat completions with rows, in OpenPipe ART's binary form (`ARTRTE2`, ART 0.5.23):

    body = routecap.art.write(answer, {0: routing})     # answer: the JSON that has the choices
    answer, routings = routecap.art.read(body)

The form has one array for each choice, in uint8 up to 256 experts and uint16 above, of k distinct
experts in each cell. So it cannot say that a cell is missing, and has no room for a layer without
experts: routings that lack cells, or whose decoder has dense layers, are refused here. Tags, which
say with which weights a row was computed, stay behind.
"""

import json
import struct
from collections.abc import Mapping
from typing import Any, Unpack

import numpy as np

from ._constants import Status
from ._errors import error
from ._message import WireHint
from ._routing import Routing
from ._whole import routing_of, whole_rows

__all__ = ["read", "write"]

_MAGIC = b"ARTRTE2\0"
_HEAD = struct.Struct("<8sQII")  # magic, bytes of the JSON, arrays, experts
_ARRAY = struct.Struct("<IB3xQQQ")  # choice, type, rows, layers, k
_TYPES: dict[int, np.dtype[Any]] = {1: np.dtype(np.uint8), 2: np.dtype("<u2")}


def write(answer: Mapping[str, Any] | bytes, routings: Mapping[int, Routing]) -> bytes:
    """The body of an answer.

    answer: A chat completion, as JSON or as json.loads gives it. ART takes its token ids from
    "prompt_token_ids" and from the "token_ids" of its choices. routings: By the index of a choice.
    All have the experts, layers and k of the model, and begin at position 0.

    Raises:
        Error: The form cannot say what a routing says.
    """
    experts = {routing.experts for routing in routings.values()}
    if len(experts) != 1:
        raise error(
            Status.ERR_SHAPE_MISMATCH,
            f"the routings have {sorted(experts)} experts: give those of one model",
        )
    said = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    body = [_HEAD.pack(_MAGIC, len(said), len(routings), *experts), said]
    for choice, routing in sorted(routings.items()):
        if not 0 <= choice < 1 << 32:
            raise error(Status.ERR_ARGUMENT, f"there is no choice {choice}: they count from 0")
        captured = routing.layer_map.tolist()
        if captured != list(range(len(captured))):
            dense = sorted(set(range(captured[-1])) - set(captured))
            raise error(
                Status.ERR_LOSSY,
                f"ART's form has k experts in each layer of the decoder, and layers {dense} have no"
                " routing: give such rows to ART in another way",
            )
        ids = whole_rows(routing, None, 0, "ART's form")
        body += [_ARRAY.pack(choice, ids.itemsize, *ids.shape), ids.tobytes()]
    return b"".join(body)


def read(body: bytes, **hint: Unpack[WireHint]) -> tuple[dict[str, Any], dict[int, Routing]]:
    """The JSON of a body, and the routings by the index of their choice.

    `hint` is what the body does not say: see WireHint. `layer_map`, for one, of a model with dense
    layers: ART's server writes 0, 1, ..., k-1 in their columns, which then are left out.

    Raises:
        Error: The bytes are not a body in this form.
    """
    at = 0

    def take(count: int, what: str) -> bytes:
        nonlocal at
        if at + count > len(body):
            raise error(Status.ERR_FORMAT, f"the body ends in {what}: it has {len(body)} bytes")
        at += count
        return body[at - count : at]

    magic, length, arrays, experts = _HEAD.unpack(take(_HEAD.size, "its head"))
    if magic != _MAGIC:
        raise error(Status.ERR_FORMAT, f"the body must begin with {_MAGIC!r}, not {magic!r}")
    try:
        answer: Any = json.loads(take(length, "its JSON"))
    except ValueError as reason:
        raise error(
            Status.ERR_FORMAT, f"the JSON of the body is damaged, take it again: {reason}"
        ) from None
    if not isinstance(answer, dict):
        raise error(Status.ERR_FORMAT, "the JSON of the body must be an object")
    routings: dict[int, Routing] = {}
    for _ in range(arrays):
        choice, code, rows, columns, k = _ARRAY.unpack(take(_ARRAY.size, "the head of an array"))
        if code not in _TYPES:
            raise error(Status.ERR_FORMAT, f"an array has ids of type {code}; there are 1 and 2")
        if choice in routings:
            raise error(Status.ERR_FORMAT, f"choice {choice} must have one array, not two")
        dtype = _TYPES[code]
        ids = take(rows * columns * k * dtype.itemsize, "an array")
        known: WireHint = {"experts": experts, "columns": columns, "k": k, "dtype": dtype}
        routings[choice] = routing_of(ids, known, hint)
    if at != len(body):
        raise error(
            Status.ERR_FORMAT, f"{len(body) - at} bytes follow the last array: leave them out"
        )
    return answer, routings

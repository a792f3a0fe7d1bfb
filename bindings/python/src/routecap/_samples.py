"""Routings with what else is known of their sequences."""

from codecs import getincrementaldecoder
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._constants import MAX_POSITION, Status
from ._errors import error
from ._layers import layers_of
from ._routing import Routing


class Sample(NamedTuple):
    """The routing of one sequence, and what else is known of it."""

    routing: Routing
    info: Mapping[str, Any] = MappingProxyType({})
    """What a JSON object can hold.

    Three keys are looked at by the command and the pictures, if they are there: "tokens", the text
    of each token by its position, where bytes that are no UTF-8 by themselves are U+DC80..U+DCFF,
    as Python's surrogateescape has them; "prompt_tokens", how many of them are the prompt's; and
    "steps", by position the number of the engine's step that computed the row, null where none did.
    """


def token_texts(sample: Sample) -> list[str] | None:
    """The text of each row's token, None if it is not known.

    Of tokens that are UTF-8 only together, the last has the character.
    """
    tokens = sample.info.get("tokens")
    if tokens is None:
        return None
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise error(
            Status.ERR_FORMAT, '"tokens" is not an array of strings: give the text of each token'
        )
    decoder = getincrementaldecoder("utf-8")("replace")
    try:
        texts = [decoder.decode(token.encode("utf-8", "surrogateescape")) for token in tokens]
    except UnicodeEncodeError as reason:
        raise error(
            Status.ERR_FORMAT,
            f'"tokens" has {reason.object[reason.start]!r}, which is half of a character: give bytes'
            " that are no UTF-8 as U+DC80..U+DCFF",
        ) from None
    first, rows = sample.routing.first, sample.routing.rows
    return (texts + [""] * (first + rows - len(texts)))[first : first + rows]


def prompt_of(sample: Sample) -> int | None:
    """How many of the tokens are the prompt's, None if it is not known."""
    tokens = sample.info.get("prompt_tokens")
    if tokens is None:
        return None
    if type(tokens) is not int or not 0 <= tokens < MAX_POSITION:
        raise error(
            Status.ERR_FORMAT,
            f'"prompt_tokens" is {tokens!r}: give the number of the prompt\'s tokens',
        )
    return tokens


def steps_of(sample: Sample) -> NDArray[np.int64] | None:
    """[rows] the engine's step of each row, -1 where none computed it; None if that is not known."""
    steps = sample.info.get("steps")
    if steps is None:
        return None
    first, rows = sample.routing.first, sample.routing.rows
    if not isinstance(steps, list) or len(steps) < first + rows:
        raise error(
            Status.ERR_FORMAT,
            f'"steps" is not an array of {first + rows} and more: give the step of each position',
        )
    mine = [-1 if step is None else step for step in steps[first : first + rows]]
    if not all(type(step) is int and -1 <= step < 2**63 for step in mine):
        raise error(
            Status.ERR_FORMAT,
            '"steps" has what is neither a number from 0 on nor null: give the step of each'
            " position",
        )
    return np.array(mine, np.int64)


def layer_of(routing: Routing, decoder_layer: int) -> int:
    """The captured layer of a decoder layer: of its first visit, where the decoder loops."""
    layers: list[int] = routing.layer_map.tolist()
    if decoder_layer not in layers:
        raise error(
            Status.ERR_UNKNOWN_LAYER,
            f"layer {decoder_layer} of the decoder was not captured: give one of"
            f" {', '.join(map(str, layers))}",
        )
    return layers.index(decoder_layer)


def alike(samples: Mapping[str, Sample]) -> list[dict[str, Sample]]:
    """The samples in groups whose layers, experts and k are the same: those of one model."""
    groups: dict[Any, dict[str, Sample]] = {}
    for name, sample in samples.items():
        model = tuple(each.tobytes() for each in layers_of(sample.routing).values())
        groups.setdefault((sample.routing.k, *model), {})[name] = sample
    return list(groups.values())

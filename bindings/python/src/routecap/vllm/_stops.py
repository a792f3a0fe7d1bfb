"""When a request ends, by the rules of vLLM's scheduler, told from the tokens that the worker sees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class StopRule:
    """The rule of one request: from `min_tokens` on, the end-of-sequence token unless ignored,
    a stop token, or the most tokens."""

    __slots__ = ("_maximum", "_minimum", "_stops", "_told", "prompt_tokens", "sampling")

    def __init__(self, sampling: Any, prompt_tokens: int, max_model_len: int) -> None:
        self.sampling = sampling
        self.prompt_tokens = prompt_tokens
        self._minimum = sampling.min_tokens or 0
        stops = set(sampling.stop_token_ids or ())
        eos = getattr(sampling, "eos_token_id", None)
        if eos is not None and not getattr(sampling, "ignore_eos", False):
            stops.add(eos)
        self._stops = frozenset(stops)
        self._maximum = max_model_len - prompt_tokens
        if sampling.max_tokens is not None:
            self._maximum = min(self._maximum, sampling.max_tokens)
        self._told = True  # the engine replaces negative tokens once it knows them

    def goes_on(self, count: int, token: int) -> bool:
        """Whether a request goes on whose last of `count` tokens is this, and no other an end."""
        return count < self._maximum and token >= 0 and token not in self._stops

    def check(self, outputs: Sequence[int], seen: int, before: int = 0) -> tuple[int | None, int]:
        """How many output tokens the request ends with, or None if it goes on; and how many of
        `outputs` need not be looked at again.

        It looks at those beyond the first `seen` one by one: several may have come at once
        (accepted drafts), and the request may end at any of them. A negative token is one that the
        device has sampled and the host does not know yet: it ends a request by its number only.
        The first `before` were there a step ago: if one of them is still negative, no token will
        be known in time.
        """
        for count in range(seen + 1, len(outputs) + 1):
            token = outputs[count - 1]
            if count >= self._minimum and (count >= self._maximum or token in self._stops):
                return count, count
            if token < 0:
                if self._told and count > before:
                    return None, count - 1
                self._told = False
        return None, len(outputs)


def prompt_tokens(request: Any, index: int | None, num_tokens_no_spec: Any) -> int:
    known: int | None = getattr(request, "num_prompt_tokens", None)
    if known is not None:
        return known
    if index is None:
        raise ValueError(
            "a request's prompt is neither in num_prompt_tokens nor to be told from"
            " num_tokens_no_spec: give the request's index in the batch"
        )
    return int(num_tokens_no_spec[index]) - len(request.output_token_ids)

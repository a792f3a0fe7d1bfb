"""Tell when a request ends, by vLLM's rules, from the tokens that the worker sees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class StopRule:
    """The rule of one request. It ends at the largest number of tokens, or, from `min_tokens` on,
    at a stop token or the end-of-sequence token (unless that is ignored).
    """

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
        """Whether the request goes on after `count` output tokens, if `token` is the last of them
        and none before it ended the request.
        """
        return count < self._maximum and token >= 0 and token not in self._stops

    def check(self, outputs: Sequence[int], seen: int, before: int = 0) -> tuple[int | None, int]:
        """Return the number of output tokens with which the request ends, or None if it goes on;
        and how many of `outputs` need not be checked again.

        Tokens beyond the first `seen` are checked one by one, because accepted drafts come several
        at once, and the request may end at any of them. A negative token was sampled by the device,
        and the host does not know it yet: only the number of tokens can end the request there. The
        first `before` tokens were there a step ago. If one of them is still negative, the host will
        not know tokens in time.
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
    """Return the number of prompt tokens of a request."""
    known: int | None = getattr(request, "num_prompt_tokens", None)
    if known is not None:
        return known
    if index is None:
        raise ValueError(
            "a request's prompt is neither in num_prompt_tokens nor to be told from"
            " num_tokens_no_spec: give the request's index in the batch"
        )
    return int(num_tokens_no_spec[index]) - len(request.output_token_ids)

"""When a request ends, by the rules of vLLM's scheduler, told from the tokens that the worker sees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class StopRule:
    """The rule of one request: from `min_tokens` on, the end-of-sequence token unless it is ignored, a stop token, or the most tokens."""

    __slots__ = ("_maximum", "_minimum", "_stops", "prompt_tokens")

    def __init__(self, sampling: Any, prompt_tokens: int, max_model_len: int) -> None:
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

    def check(self, outputs: Sequence[int], seen: int) -> tuple[int | None, int]:
        """How many output tokens the request ends with, or None if it goes on; and how many of `outputs` need not be looked at again.

        Those beyond the first `seen` are looked at one by one, as several may have come at once (accepted drafts) and the request may end at any of
        them. A negative token is one that the device has sampled and the host does not know yet: it ends a request by its number only.
        """
        for count in range(seen + 1, len(outputs) + 1):
            token = outputs[count - 1]
            if count >= self._minimum and (count >= self._maximum or token in self._stops):
                return count, count
            if token < 0:
                return None, count - 1
        return None, len(outputs)

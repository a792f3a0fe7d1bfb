"""A lean decode loop on a model of transformers: a batch of prompts of one length, a cache, and
sampling with random numbers that depend on a seed alone.

On a CUDA device the step is one graph with a static cache: a model this small is bound by launches.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache, StaticCache

from .countdown import ANSWER

_LOOK = 9  # steps between two looks at whether all answers have ended: they wait for the device


@dataclass
class Answers:
    tokens: torch.Tensor  # int64 [batch, prompt + answer], junk behind the end
    lengths: list[int]  # with the prompt, and the token that ends it
    logs: torch.Tensor  # float32 [batch, answer]: log-probability of each sampled token
    logits: torch.Tensor | None  # float32 [batch, answer, vocabulary], if they were asked for


def cache_name(model: Any) -> str:
    """What a model calls its cache: transformers 5.24 has renamed it."""
    names = inspect.signature(model.forward).parameters
    return next(name for name in ("cache", "past_key_values") if name in names)


class Decoder:
    """Of a model, for `batch` prompts of `prompt` tokens and up to `answer` more.

    With a capture every row of the model is captured: take them with `lengths` less one.
    """

    def __init__(
        self, model: Any, batch: int, prompt: int, answer: int, *, graph: bool, capture: Any = None
    ) -> None:
        self.model, self.capture = model, capture
        self.batch, self.prompt, self.answer = batch, prompt, answer
        self.device = model.device
        self._name = cache_name(model)
        self._graph: torch.cuda.CUDAGraph | None = None
        if graph:
            self._make_graph()

    @torch.no_grad()
    def __call__(self, prompts: torch.Tensor, seed: int, *, keep_logits: bool = False) -> Answers:
        random = torch.Generator(self.device).manual_seed(seed)
        size = self.answer, self.batch, self.model.config.vocab_size
        noise = -torch.empty(size, device=self.device).exponential_(generator=random).log_()
        tokens = prompts.new_zeros((self.batch, self.prompt + self.answer))
        tokens[:, : self.prompt] = prompts
        logs = torch.zeros(self.batch, self.answer, device=self.device)
        kept = []
        ended = torch.full((self.batch,), self.prompt + self.answer, device=self.device)
        open_ = torch.ones(self.batch, dtype=torch.bool, device=self.device)
        logits, cache = self._prefill(prompts)
        for step in range(self.answer):
            found = logits.float().log_softmax(-1)
            if keep_logits:
                kept.append(found)
            chosen = (found + noise[step]).argmax(-1)
            logs[:, step] = found.gather(-1, chosen[:, None])[:, 0]
            tokens[:, self.prompt + step] = chosen
            ends = open_ & (chosen == ANSWER)
            ended = torch.where(ends, self.prompt + step + 1, ended)
            open_ = open_ & ~ends
            last = step == self.answer - 1
            if last or (step % _LOOK == _LOOK - 1 and not open_.any()):
                break
            logits = self._step(chosen[:, None], cache)
        return Answers(tokens, ended.tolist(), logs, torch.stack(kept, 1) if kept else None)

    def _prefill(self, prompts: torch.Tensor) -> tuple[torch.Tensor, Any]:
        if self._graph is None:
            cache: Any = DynamicCache(config=self.model.config)
            output = self.model(input_ids=prompts, **{self._name: cache}, logits_to_keep=1)
            return output.logits[:, -1], cache
        self._cache.reset()
        self._positions.fill_(self.prompt - 1)
        self._mask.zero_()
        self._mask[:, : self.prompt] = 1
        output = self.model(
            input_ids=prompts,
            attention_mask=self._mask[:, : self.prompt],
            **{self._name: self._cache},
            logits_to_keep=1,
        )
        return output.logits[:, -1], self._cache

    def _step(self, tokens: torch.Tensor, cache: Any) -> torch.Tensor:
        if self._graph is None:
            return self.model(input_ids=tokens, **{self._name: cache}).logits[:, -1]
        self._tokens.copy_(tokens)
        self._graph.replay()
        if self.capture is not None:
            self.capture.issue(self._positions)
        return self._logits

    # ---- The graph. What a step reads and writes are tensors that stay where they are

    @torch.no_grad()
    def _make_graph(self) -> None:
        length = self.prompt + self.answer
        self._cache = StaticCache(config=self.model.config, max_cache_len=length)
        self._tokens, self._positions = (
            torch.zeros(self.batch, 1, dtype=torch.long, device=self.device) for _ in range(2)
        )
        self._mask = torch.zeros(self.batch, length, dtype=torch.long, device=self.device)
        self._graph = graph = torch.cuda.CUDAGraph()
        # What of a capture there is on the model, and is not this decoder's, is no part of it.
        self._prefill(torch.ones(self.batch, self.prompt, dtype=torch.long, device=self.device))
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                self._static_step()
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(graph):
            self._logits = self._static_step()
        if self.capture is not None:
            self.capture.discard()

    def _static_step(self) -> torch.Tensor:
        self._positions += 1
        self._mask.scatter_(1, self._positions, 1)
        output = self.model(
            input_ids=self._tokens,
            attention_mask=self._mask,
            position_ids=self._positions,
            **{self._name: self._cache},
        )
        return output.logits[:, -1]


def decoder(model: Any, batch: int, prompt: int, answer: int, how: str, capture: Any) -> Decoder:
    """how: "graph", "eager", or "auto": a graph on a CUDA device, unless it cannot be made."""
    if how == "auto" and model.device.type != "cuda":
        how = "eager"
    try:
        return Decoder(model, batch, prompt, answer, graph=how != "eager", capture=capture)
    except (RuntimeError, ValueError) as reason:
        if how != "auto":
            raise
        print(f"decoding without a graph, which could not be made: {reason!r}", flush=True)
        torch.cuda.synchronize()
        if capture is not None:
            capture.discard()
        return Decoder(model, batch, prompt, answer, graph=False, capture=capture)

"""What transformers' own loops know that a forward pass does not show: padding where masks are
prepared for compilation, where sequences end, and
which request of a continuous batch each row belongs to.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from ._sequences import Batch, Plan, cached_columns, plan_of_runs

if TYPE_CHECKING:
    from ._capture import Capture

Add = Callable[[Callable[[], object]], object]


def follow_generate(capture: Capture, model: nn.Module, add: Add) -> None:
    """Wrap `generate` of a model, and what it asks for the inputs of each step."""
    owner = next(
        (
            module
            for module in model.modules()
            if hasattr(type(module), "prepare_inputs_for_generation")
        ),
        None,
    )
    if owner is None:
        return
    generate, prepare = owner.generate, owner.prepare_inputs_for_generation

    @wraps(generate)  # transformers looks at the signatures of both
    def followed(*args: Any, **kwargs: Any) -> Any:
        if capture._paused or not capture.attached:
            return generate(*args, **kwargs)
        if capture._generation is not None:
            raise RuntimeError(
                "generate is running on this model already: a capture follows one at a time. Wait"
                " until it has ended"
            )
        generation = capture._generation = Generation(capture, owner, args, kwargs)
        try:
            output = generate(*args, **kwargs)
            capture._file()  # of a compiled forward pass, for which no hook does it
        except BaseException:
            generation.abandon()
            raise
        finally:
            capture._generation = None
        generation.ended(output)
        return output

    @wraps(prepare)
    def prepared(*args: Any, **kwargs: Any) -> Any:
        inputs = prepare(*args, **kwargs)
        if capture._generation is not None:
            capture._generation.step(inputs, kwargs.get("attention_mask"))
        return inputs

    for name, function in (("generate", followed), ("prepare_inputs_for_generation", prepared)):
        _set(owner, name, function, add)


def _set(owner: nn.Module, name: str, value: Any, add: Add) -> None:
    own = vars(owner)
    missing = object()
    before = own.get(name, missing)

    def restore() -> None:
        if own.get(name) is not value:  # somebody has wrapped ours: it does nothing from now on
            return
        if before is missing:
            delattr(owner, name)
        else:
            setattr(owner, name, before)

    setattr(owner, name, value)
    add(restore)


class Generation:
    """One call of `generate`."""

    def __init__(
        self, capture: Capture, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._capture = capture
        self.thread = threading.get_ident()
        self._batch: Batch | None = None
        given = kwargs.get("generation_config") or next(
            (each for each in args[1:] if hasattr(each, "eos_token_id")), None
        )

        def setting(name: str) -> Any:
            if name in kwargs:  # None too
                return kwargs[name]
            value = getattr(given, name, None)
            return (
                getattr(getattr(model, "generation_config", None), name, None)
                if value is None
                else value
            )

        if (setting("num_beams") or 1) > 1:
            raise ValueError(
                "beam search is not captured: which beams a returned sequence was in is not to be"
                " had. Sample, or search greedily"
            )
        eos = setting("eos_token_id")
        self._eos: list[int] = [] if eos is None else torch.as_tensor(eos).flatten().tolist()
        pad = setting("pad_token_id")
        self._pad = int(pad) if pad is not None else self._eos[0] if self._eos else None
        tokens = (
            args[0]
            if args and args[0] is not None
            else kwargs.get("inputs", kwargs.get("input_ids"))
        )
        embeddings, mask = kwargs.get("inputs_embeds"), kwargs.get("attention_mask")
        self._prompt_tokens = (
            tokens.shape[1] if tokens is not None else 1 if embeddings is None else 0
        )  # those that are returned, too
        whole = next((each for each in (mask, tokens, embeddings) if each is not None), None)
        self._prompt_columns = 1 if whole is None else whole.shape[1]

    def step(self, inputs: dict[str, Any], mask: Any) -> None:
        """A forward pass with these inputs is next. mask: [rows, columns] before it was prepared,
        or None.
        """
        capture = self._capture
        capture._file()
        tokens = inputs.get("input_ids")
        tokens = inputs["inputs_embeds"] if tokens is None else tokens
        rows, length = tokens.shape[:2]
        cache = inputs.get("past_key_values")
        if cache is None:
            cache = inputs.get("cache_params")
        batch = self._batch
        if mask is not None:
            past = mask.shape[1] - length
        else:
            past = (
                0
                if cache is None
                else cached_columns(cache, None if batch is None else batch.columns) or 0
            )
        if batch is None:
            known = None if cache is None or past == 0 else capture._of_cache.get(cache)
            batch = self._batch = known or capture._begin_batch(rows, cache, past)
        capture._plan = batch.plan(
            length, past, mask, one_more=length == 1 and past == batch.columns
        )

    def abandon(self) -> None:
        self._capture._plan = None
        self._capture._forget(self._batch)

    def ended(self, output: Any) -> None:
        batch = self._batch
        if batch is None:
            return
        sequences = output if isinstance(output, torch.Tensor) else output.sequences
        generated = sequences[:, self._prompt_tokens :]
        batch.lengths = lambda: [
            prompt + self._length(row) - 1
            for prompt, row in zip(batch.live(self._prompt_columns), generated.tolist())
        ]

    def _length(self, generated: list[int]) -> int:
        """How many of the tokens belong to the sequence: up to its end, behind which there is
        padding.
        """
        for i, token in enumerate(generated):
            if token in self._eos:
                return i + 1
        count = len(generated)
        while self._eos and count > 1 and generated[count - 1] == self._pad:
            count -= 1
        return count


# ---- Continuous batching

_continuous: weakref.WeakKeyDictionary[nn.Module, Capture] = weakref.WeakKeyDictionary()
_MODULE = "transformers.generation.continuous_batching.continuous_api"


def follow_generate_batch(capture: Capture, model: nn.Module, add: Add) -> None:
    """Follow the steps of `generate_batch` and its manager, each of which runs the model once for
    many requests.
    """
    owner = next(
        (module for module in model.modules() if hasattr(type(module), "generate_batch")), None
    )
    processor = getattr(sys.modules.get(_MODULE), "ContinuousBatchProcessor", None)
    if owner is None or processor is None:
        return
    if not hasattr(processor._generation_step, "followed"):
        processor._generation_step = _followed(processor._generation_step)
    _continuous[owner] = capture
    add(lambda: _continuous.pop(owner, None))


def _followed(generation_step: Callable[..., Any]) -> Callable[..., Any]:
    def step(self: Any, model: nn.Module, *args: Any, **kwargs: Any) -> Any:
        capture = _continuous.get(model)
        if capture is None or capture._paused:
            return generation_step(self, model, *args, **kwargs)
        inputs = self.inputs_and_outputs
        capture._plan = _plan_of_requests(capture, inputs.requests_in_batch)
        try:
            result = generation_step(self, model, *args, **kwargs)
        except BaseException:
            capture._drop()
            raise
        capture._file(
            stream=getattr(inputs, "compute_stream", None)
        )  # of a graph that was replayed; otherwise a hook has said it
        return result

    step.followed = True  # type: ignore[attr-defined]
    return step


def _plan_of_requests(capture: Capture, scheduled: list[Any]) -> Plan:
    """For a step of scheduled requests, whose rows lie one after another."""
    batches: list[Batch] = []
    runs: list[tuple[int, int]] = []
    positions: list[int] = []
    row = 0
    for each in scheduled:
        state, rows = each.state, each.query_length
        position = state.position_offset - rows  # which was moved on when the step was prepared
        batches.append(_batch_of(capture, state, position))
        runs.append((row, rows))
        positions.append(position)
        row += rows
    requests = np.array([batch.requests[0] for batch in batches], np.uint64)
    return plan_of_runs(requests, runs, positions, None)


def _batch_of(capture: Capture, state: Any, position: int) -> Batch:
    name: str = state.request_id
    batch = capture._named.get(name)
    if batch is not None:
        return batch
    parent = capture._named.get(name.partition("__child#")[0])
    if parent is not None and position > 0:  # several answers to one prompt: it was forwarded once
        request = capture.capturer.fork(int(parent.requests[0]), position)
        batch = Batch(np.array([int(request)], np.uint64), name)
        capture._batches.append(batch)
    else:
        batch = capture._new_batch(1, name)
    batch.lengths = lambda: [len(state.initial_tokens) + len(state.generated_tokens) - 1]
    capture._named[name] = batch
    return batch

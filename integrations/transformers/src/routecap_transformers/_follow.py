"""What transformers' own loops know that a forward pass does not show: padding where masks are
prepared for compilation, where sequences end, and
which request of a continuous batch each row belongs to.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any

import numpy as np
import torch
from torch import nn

import routecap

from ._followed import Followed
from ._names import (
    cache_in,
    expect,
    expect_known_caches,
    of_transformers,
    parameters_of,
    tokens_in,
)
from ._places import CALLED, PREPARES, SETTINGS, expect_batching, expect_loop
from ._sequences import Batch, Plan, plan_of_runs
from ._versions import KNOWN

Add = Callable[[Callable[[], object]], object]


def follow_generate(capture: Followed, model: nn.Module, add: Add) -> None:
    """Wrap `generate` of a model, and what it asks for the inputs of each step."""
    modules = list(model.modules())
    loops = [each for each in modules if of_transformers(each) and _has(each, any)]
    if loops:
        _expect_loop(loops[0])
    # Not that of a wrapper such as PEFT's, which calls this one.
    owner = next((each for each in loops or modules if _has(each, all, CALLED)), None)
    if owner is None:
        return
    generate, prepare = owner.generate, owner.prepare_inputs_for_generation

    @wraps(generate)  # transformers looks at the signatures of both
    def followed(*args: object, **kwargs: object) -> Any:
        if capture._apart() or not capture.attached:
            return generate(*args, **kwargs)
        if (running := capture._generation) is not None:
            if (
                running.thread == threading.get_ident()
            ):  # of drafts, by the model's own first layers
                capture._file()
                with capture._set_apart():
                    return generate(*args, **kwargs)
            raise RuntimeError(
                "generate is running on this model already: a capture follows one at a time. Wait"
                " until it has ended"
            )
        capture._seen = True
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
    def prepared(*args: object, **kwargs: object) -> Any:
        inputs = prepare(*args, **kwargs)
        if capture._generation is not None and not capture._apart():
            capture._generation.step(inputs, kwargs.get("attention_mask"))
        return inputs

    def apart(call: Callable[..., Any], *args: object, **kwargs: object) -> Any:
        with capture._set_apart():  # what runs the model there computes no sequence of the user's
            return call(*args, **kwargs)

    def judged(call: Callable[..., Any], *args: object, **kwargs: object) -> Any:
        done = apart(call, *args, **kwargs)
        if capture._generation is not None and not capture._apart():
            capture._generation.judged(args[0] if args else kwargs["input_ids"], done)
        return done

    for name, function in (("generate", followed), ("prepare_inputs_for_generation", prepared)):
        _set(owner, name, function, add)
    for name, around in zip(PREPARES, (apart, judged)) if loops else ():
        _set(loops[0], name, _calls(getattr(loops[0], name), around), add)


def _has(module: nn.Module, some: Callable[..., bool], names: Sequence[str] = ()) -> bool:
    return some(hasattr(type(module), name) for name in names or (*CALLED, *PREPARES))


def _expect_loop(model: Any) -> None:
    """What is read of transformers' own loop has the names that are known."""
    expect_loop(type(model))
    expect(model, ("generation_config",))
    if model.generation_config is not None:
        expect(model.generation_config, SETTINGS)


def _calls(prepare: Callable[..., Any], around: Callable[..., Any]) -> Callable[..., Any]:
    """What prepares a list of processors or criteria, whose call is made by `around`."""

    @wraps(prepare)
    def prepared(*args: object, **kwargs: object) -> Any:
        found = prepare(*args, **kwargs)
        if not isinstance(found, list):
            raise TypeError(
                f"{prepare.__qualname__} gave {type(found).__name__}, a list was expected: this"
                " version of transformers does otherwise. Give a model of a version that routecap"
                f" knows ({KNOWN})"
            )
        kind: Any = type(found)
        called = {"__call__": lambda self, *a, **k: around(partial(kind.__call__, self), *a, **k)}
        return type(kind.__name__, (kind,), called)(found)

    return prepared


def _set(owner: nn.Module, name: str, value: object, add: Add) -> None:
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
        self, capture: Followed, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._capture, self._model = capture, model
        self.thread = threading.get_ident()
        self._batch: Batch | None = None
        self._begun: Batch | None = None
        """Which began with it."""
        self._ends: torch.Tensor | None = None
        """[rows] the tokens of each when a criterion ended it, 0 until then."""
        configs = [
            each
            for each in (kwargs.get("generation_config"), *args[1:], model.generation_config)
            if hasattr(each, "to_diff_dict")
        ]
        for each in configs:
            expect(each, SETTINGS)

        def setting(name: str) -> Any:
            if name in kwargs:  # None too
                return kwargs[name]
            said = (getattr(each, name) for each in configs)
            return next((value for value in said if value is not None), None)

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

    def step(self, inputs: dict[str, Any], mask: object) -> None:
        """A forward pass with these inputs is next. mask: [rows, columns] before it was prepared,
        or None.
        """
        capture, names = self._capture, parameters_of(self._model)
        capture._file()
        tokens = tokens_in(self._model, names, inputs)
        expect_known_caches(self._model, names, inputs)
        rows, length = tokens.shape[:2]
        cache = cache_in(inputs)
        last, begun = self._batch, None
        if cache is None and last is not None:  # all is computed again
            batch = last
            batch.begin(0)
        else:
            held = capture._held_by(cache)
            batch, begun = capture._goes_on(rows, length, mask, cache, held)
        self._batch = batch
        if begun is not None:
            capture._forget(self._begun)  # its cache was changed unseen
            self._begun = begun
        plan = batch.plan(length, mask)
        if last is None and begun is None:
            batch.lengths = _until(batch, plan)
        capture._plan = capture._with_cache(plan, cache, None)

    def judged(self, tokens: torch.Tensor, done: torch.Tensor) -> None:
        """Criteria say which sequences have ended, with so many tokens [rows, length]."""
        ends = torch.zeros_like(done, dtype=torch.int64) if self._ends is None else self._ends
        self._ends = ends.where((ends > 0) | ~done, tokens.shape[1])

    def abandon(self) -> None:
        """Sequences that began with it are none. Those that went on end where they were."""
        self._capture._plan = None
        self._capture._forget(self._begun)

    def ended(self, output: Any) -> None:
        batch = self._batch
        if batch is None:
            return
        sequences = output if isinstance(output, torch.Tensor) else output.sequences
        generated, prompt = sequences[:, self._prompt_tokens :], batch.counted(self._prompt_columns)
        ends = self._ends

        def lengths() -> list[int]:
            ended = [0] * len(generated) if ends is None else ends.tolist()
            return [
                columns + self._length(row, end) - 1
                for columns, row, end in zip(prompt(), generated.tolist(), ended)
            ]

        batch.lengths = lengths

    def _length(self, generated: list[int], end: int) -> int:
        """How many of the tokens belong to the sequence: up to its end, behind which there is
        padding.

        end: How many tokens it had with the prompt when a criterion ended it; 0 if none did.
        """
        for i, token in enumerate(generated):
            if token in self._eos:
                return i + 1
        if self._eos and end:  # otherwise it goes on until all have ended
            return end - self._prompt_tokens
        return len(generated)


def _until(batch: Batch, plan: Plan) -> Callable[[], Sequence[int]]:
    """How many rows the sequences of a batch have before a pass of a generation that may fail."""
    before = batch.lengths or batch.counted(batch.reach)
    positions = plan.positions
    if positions is None:
        return before
    first = positions.where(positions >= 0, routecap.MAX_POSITION).amin(1)  # those written anew
    return lambda: [min(each) for each in zip(before(), first.tolist())]


# ---- Continuous batching

_continuous: weakref.WeakKeyDictionary[nn.Module, weakref.ref[Followed]] = (
    weakref.WeakKeyDictionary()
)


def follow_generate_batch(capture: Followed, model: nn.Module, add: Add) -> None:
    """Follow the steps of `generate_batch` and its manager, each of which runs the model once for
    many requests.
    """
    owner = next(
        (module for module in model.modules() if hasattr(type(module), "generate_batch")), None
    )
    if owner is None:
        return
    processor = expect_batching()
    if not hasattr(processor._generation_step, "followed"):
        processor._generation_step = _followed(processor._generation_step)
    _continuous[owner] = weakref.ref(capture)
    add(lambda: _continuous.pop(owner, None))


def _followed(generation_step: Callable[..., Any]) -> Callable[..., Any]:
    def step(self: Any, model: nn.Module, *args: object, **kwargs: Any) -> Any:
        held = _continuous.get(model)
        capture = None if held is None else held()
        if capture is None or capture._apart():
            return generation_step(self, model, *args, **kwargs)
        capture._seen = True
        inputs = self.inputs_and_outputs
        capture._plan = _plan_of_requests(capture, inputs.requests_in_batch)
        try:
            result = generation_step(self, model, *args, **kwargs)
        except BaseException:
            capture._drop()
            raise
        capture._file(
            stream=inputs.compute_stream
        )  # of a graph that was replayed; otherwise a hook has said it
        return result

    step.followed = True  # type: ignore[attr-defined]
    return step


def _plan_of_requests(capture: Followed, scheduled: list[Any]) -> Plan:
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


def _batch_of(capture: Followed, state: Any, position: int) -> Batch:
    """The batch of a request, which is known by its state, not by its name: names are used again."""
    name: str = state.request_id
    batch = capture._named.get(name)
    if batch is not None and batch.state is state:
        return batch
    if batch is not None and _begins_with(state, _tokens(batch.state)):
        pass  # it was taken out and begins again, with all tokens that it had
    else:
        parent = capture._named.get(name.rpartition("__child#")[0])
        if (
            parent is not None
            and position > 0
            and _begins_with(state, _tokens(parent.state)[:position])
        ):  # several answers to one prompt: it was forwarded once
            request = capture.capturer.request(parent.requests[0]).fork(position)
            batch = Batch(np.array([request.handle], np.uint64), name)
            capture._batches.append(batch)
        else:
            batch = capture._new_batch(1, name)
        capture._named[name] = batch
    batch.line, batch.state = None, state
    batch.lengths = lambda: [len(_tokens(state)) - 1]
    return batch


def _tokens(state: Any) -> list[int]:
    tokens: list[int] = state.initial_tokens + state.generated_tokens
    return tokens


def _begins_with(state: object, tokens: list[int]) -> bool:
    return bool(tokens) and _tokens(state)[: len(tokens)] == tokens

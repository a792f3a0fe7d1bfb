"""The front end of vLLM 0.21 and 0.26: rows become arrays when somebody reads them, on that thread,
in the form that each request asked for.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

import numpy as np

from ._answers import Answer
from ._asked import Asked, asked_by
from ._options import get_options
from ._results import PendingRoutedExperts, split_routed_experts
from ._server import check, forget, keep, kept
from ._transport import from_bytes
from ._wrap import once, replace

PLACES = """
vllm.v1.engine.output_processor
    RequestState.from_new_request(cls, tokenizer, request, ...)
    RequestState.make_request_output(self, new_token_ids, pooling_output, finish_reason,
        stop_reason, ...)
    RequestState._new_completion_output(self, ...)
    RequestState._new_request_output(self, ...)
    RequestState: request_id prompt_token_ids detokenizer queue prompt_len parent_req
    OutputProcessor.process_outputs(self, engine_core_outputs, ...)
    OutputProcessor.abort_requests(self, request_ids, ...)
    OutputProcessor.propagate_error(self, e)
    OutputProcessor.has_unfinished_requests(self)
    OutputProcessor.get_num_unfinished_requests(self)
    OutputProcessor: request_states external_req_ids parent_requests
    RequestOutputCollector: output
"""  # what this module replaces and reads

# Whether an engine of this process, or one that it started in another, captures.
_captures = False


def say_captures() -> None:
    """An engine of this process, or one that it started in another, captures."""
    global _captures
    _captures = True


def captures_here() -> bool:
    return _captures


@functools.cache  # it looks through all packages that are installed
def on_both_sides() -> bool:
    """Whether processes that the engine starts load routecap too, as a plugin of vLLM."""
    allowed = os.environ.get("VLLM_PLUGINS")
    return bool(entry_points(group="vllm.general_plugins", name="routecap")) and (
        allowed is None or "routecap" in allowed.split(",")
    )


def each_processor(processor_class: object, look: Callable[[Any], None]) -> None:
    """`look` at the configuration of each engine whose front end this process makes, before it is
    made.
    """
    init = once(processor_class, "__init__")
    if init is None:
        return

    def look_and_init(
        processor: object, vllm_config: object, *args: object, **kwargs: object
    ) -> None:
        look(vllm_config)
        init(processor, vllm_config, *args, **kwargs)

    replace(processor_class, "__init__", init, look_and_init)


class _Rows:
    """An attribute of outputs. If an output has rows (`put_rows`), reading it makes their array, or
    what the request asked for instead.

    Python looks into an output's dictionary first, where other outputs have their value: they cost
    nothing.
    """

    def __init__(self, name: str) -> None:
        self._name = f"_{name}"

    def __get__(self, output: object, owner: object = None) -> Any:
        if output is None:
            return None  # the default of the field
        if (answer := kept(output)) is not None:
            return answer.value
        rows = self.pending(output)
        return None if rows is None else rows.array()

    def pending(self, output: object) -> PendingRoutedExperts | None:
        rows: PendingRoutedExperts | None = vars(output).get(self._name)
        return rows


class _Validity:
    """An attribute of outputs: [rows, layers], which cells of the rows were captured."""

    def __init__(self, rows: _Rows) -> None:
        self._rows = rows

    def __get__(self, output: object, owner: object = None) -> Any:
        rows = None if output is None else kept(output) or self._rows.pending(output)
        return None if rows is None else rows.validity()


class _Weights(_Validity):
    """An attribute of outputs: [rows, layers, k], the weight of each id; None if none were captured."""

    def __get__(self, output: object, owner: object = None) -> Any:
        rows = None if output is None else kept(output) or self._rows.pending(output)
        return None if rows is None else rows.weights()


def make_lazy(cls: Any, name: str) -> None:
    """Make an array of the rows in this attribute when it is read; {name}_validity is its mask, and
    {name}_weights are the weights.
    """
    if not isinstance(vars(cls).get(name), _Rows):
        rows = _Rows(name)
        setattr(cls, name, rows)
        setattr(cls, f"{name}_validity", _Validity(rows))
        setattr(cls, f"{name}_weights", _Weights(rows))
        cls.__getstate__ = functools.partialmethod(_state, name)


def put_rows(output: object, name: str, rows: object) -> None:
    """Put rows, an array or None into an attribute of an output whose class is lazy."""
    if isinstance(rows, PendingRoutedExperts):
        vars(output).pop(name, None)
        vars(output)[f"_{name}"] = rows
    else:
        setattr(output, name, rows)


def _state(output: object, name: str) -> dict[str, Any]:
    """The state that an output is pickled with: plain values, for processes without routecap."""
    answers = [kept(each) for each in (output, *getattr(output, "outputs", ()))]
    state = {key: value for key, value in vars(output).items() if key != f"_{name}"}
    forget(state)
    # The answers of the completions include the rows of the prompt.
    state[name] = getattr(output, name) if answers[0] or not any(answers) else None
    if not any(answers) and (weights := getattr(output, f"{name}_weights")) is not None:
        state[f"{name}_weights"] = weights
    return state


@dataclasses.dataclass(slots=True, eq=False)
class Asking:
    """What a request asked for.

    ends: The ends, "stop string" and "abort", with which the last output waits for rows.
    rows: Its rows, while the output is made that has them.
    output: The arguments of the output that waits for rows.
    """

    asked: Asked
    ends: frozenset[str]
    rows: Any = None
    output: tuple[Any, ...] | None = None


class TakingState:
    """A base of the class of a request's state in the front end. It puts rows into the outputs that
    the state makes, or makes an output wait for them.

    A state has this class while it has rows, while an abort is in progress, and always if the
    request may end by a stop string. In all other steps none of our code runs for it.
    """

    ENDS = frozenset({"stop string"})  # ends that the front end decides, and that wait for rows
    OWN_START = False  # whether vLLM has a parameter for the first row
    check = staticmethod(check)  # refuses what cannot be given

    routecap: Asking
    routecap_waiting: dict[str, Any]  # states of requests that the engine was told to abort

    @staticmethod
    def are_ours(rows: Any) -> bool:
        return True  # also an array, of workers in separate processes

    def _divide(self, rows: object) -> tuple[Any, Any]:
        """The rows of the request's output, which are the prompt's, and those of the completion;
        None where there are none.
        """
        prompt, count = self.prompt_token_ids, self.detokenizer.num_output_tokens()  # type: ignore[attr-defined]
        return split_routed_experts(rows, len(prompt or ()), count)

    def make_request_output(
        self,
        new_token_ids: object,
        pooling_output: object,
        finish_reason: object,
        stop_reason: object,
        *args: object,
        **kwargs: object,
    ) -> Any:
        what = (new_token_ids, pooling_output, finish_reason, stop_reason, *args)
        asking = self.routecap
        if finish_reason is not None and asking.rows is None and asking.output is None:
            end = "stop string" if isinstance(stop_reason, str) else str(finish_reason)
            if end in asking.ends:
                asking.output = what, kwargs
                self.routecap_waiting[self.request_id] = self  # type: ignore[attr-defined]
                return None
        return super().make_request_output(*what, **kwargs)  # type: ignore[misc]

    def _new_completion_output(self, *args: object, **kwargs: object) -> Any:
        completion = super()._new_completion_output(*args, **kwargs)  # type: ignore[misc]
        asked, rows = self.routecap.asked, self.routecap.rows
        if rows is None:
            return completion
        _, own = self._divide(rows)
        answer = Answer(rows, asked) if asked.format else None
        # This output will be merged into one that nobody has taken yet.
        for each in (completion, *getattr(self._untaken(), "outputs", ())):
            if each.index == completion.index:
                put_rows(each, "routed_experts", own)
                keep(each, answer)
        return completion

    def _new_request_output(self, *args: object, **kwargs: object) -> Any:
        output = super()._new_request_output(*args, **kwargs)  # type: ignore[misc]
        rows = self.routecap.rows
        prompt = None if rows is None else self._divide(rows)[0]
        if prompt is not None:
            put_rows(self._untaken() or output, "prompt_routed_experts", prompt)
        return output

    def _untaken(self) -> Any:
        """The output that this one will be merged into; None if there is none."""
        found = getattr(self.queue, "output", None)  # type: ignore[attr-defined]
        return None if isinstance(found, Exception) else found


def take_rows(state_class: Any, processor_class: Any, before: Any = TakingState) -> None:
    """Give each request of the front end the rows that it asked for. If the front end ends a
    request, its last output waits for the rows.

    Args:
        before: The base that the class of a state gets.
    """
    process = once(processor_class, "process_outputs")
    if process is None:
        return
    waiting: dict[str, Any] = {}
    members = {"routecap_waiting": waiting}
    taking = type(f"Routecap{state_class.__name__}", (before, state_class), members)
    from_request = state_class.from_new_request.__func__
    abort, propagate = processor_class.abort_requests, processor_class.propagate_error
    unfinished = processor_class.has_unfinished_requests
    number = processor_class.get_num_unfinished_requests

    def from_new_request(cls: Any, *args: Any, **kwargs: Any) -> Any:
        sampling = (kwargs["request"] if "request" in kwargs else args[1]).sampling_params
        asked = asked_by(sampling)
        before.check(asked)
        state = from_request(cls, *args, **kwargs)
        if before.OWN_START and sampling is not None:
            own = sampling.routed_experts_prompt_start
            asked = asked._replace(start=max(asked.start, own))
        comes = _captures and asked.capture and on_both_sides()
        state.routecap = Asking(asked, before.ENDS if comes else frozenset())
        if comes and getattr(sampling, "stop", None):
            state.__class__ = taking
        return state

    def process_outputs(
        processor: Any, engine_core_outputs: Any, *args: Any, **kwargs: object
    ) -> Any:
        # Only this line runs for each request of each step: 8 ns.
        having = [each for each in engine_core_outputs if each.routed_experts is not None]
        states = []
        for each in having:
            state = processor.request_states.get(each.request_id)
            asking = getattr(state, "routecap", None)
            if asking is not None and before.are_ours(each.routed_experts):
                asking.rows = _as_asked(each.routed_experts, asking.asked)
                states.append((state, type(state)))
                each.routed_experts, state.__class__ = None, taking
        arrived = (
            [each for each in engine_core_outputs if each.request_id in waiting and each.finished]
            if waiting
            else ()
        )
        processed = process(processor, engine_core_outputs, *args, **kwargs)
        for state, own in states:  # the state of a session goes on
            state.routecap.rows, state.__class__ = None, own
        for each in arrived:
            state = waiting.pop(each.request_id)
            asking = state.routecap
            if each.routed_experts is not None:  # the engine may be ahead
                rows = state.prompt_len + state.detokenizer.num_output_tokens() - 1
                asking.rows = _as_asked(_as_pending(each.routed_experts)[:rows], asking.asked)
            what, named = asking.output
            output = state.make_request_output(*what, **named)
            if output is not None and state.queue is not None:
                state.queue.put(output)
            elif output is not None:
                processed.request_outputs.append(output)
            parent = state.parent_req
            if parent and not parent.child_requests:
                processor.parent_requests.pop(parent.request_id, None)
        return processed

    def abort_requests(processor: Any, request_ids: Any, *args: Any, **kwargs: object) -> Any:
        request_ids = list(request_ids)
        for name in request_ids:
            for each in (name, *processor.external_req_ids.get(name, ())):
                state = processor.request_states.get(each)
                asking = getattr(state, "routecap", None)
                if asking is not None and "abort" in asking.ends:
                    state.__class__ = taking
                    if state.queue is None:  # in process vLLM makes no output here
                        aborted = import_module("vllm.v1.engine").FinishReason.ABORT
                        state.make_request_output([], None, aborted, None)
        return abort(processor, request_ids, *args, **kwargs)

    def propagate_error(processor: Any, error: Exception) -> None:
        for state in waiting.values():
            if state.queue is not None:
                state.queue.put(error)
        waiting.clear()
        propagate(processor, error)

    state_class.from_new_request = classmethod(from_new_request)
    replace(processor_class, "process_outputs", process, process_outputs)
    if "abort" in before.ENDS:
        replace(processor_class, "abort_requests", abort, abort_requests)
    replace(processor_class, "propagate_error", propagate, propagate_error)
    replace(
        processor_class,
        "has_unfinished_requests",
        unfinished,
        lambda self: bool(waiting) or unfinished(self),
    )
    replace(
        processor_class,
        "get_num_unfinished_requests",
        number,
        lambda self: len(waiting) + number(self),
    )


def _as_pending(rows: object) -> Any:
    """Rows, which may have come from another process as bytes."""
    if isinstance(rows, np.ndarray) and rows.ndim == 1:
        return from_bytes(rows, get_options().fill)
    return rows


def _as_asked(rows: Any, asked: Asked) -> Any:
    rows = _as_pending(rows)
    if isinstance(rows, PendingRoutedExperts) and asked.dtype != "int16":
        rows = rows.of(asked.dtype)
    return rows[asked.start :] if asked.start else rows

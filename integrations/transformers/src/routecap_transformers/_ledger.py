"""What a cache holds: whose columns each of its layers has.

The ledger of a layer names the content, and the tensors by which that is known again: as long as
these are the same objects of the same version, nothing but what the ledger was told of has happened. Tensors of inference mode have no versions, and
what is in them is not known from one pass to the next, but within a call of `generate`. The layer's own operations (crop, reset,
reorder and their like) tell it; whatever else changes the tensors makes the content unknown. A copy
of the layer has a ledger of its own, of the same content. A pickle has none.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

import torch

from ._sequences import LEDGER, ROWS, Batch, Content, Ledger, Owner, length_of, tensors_of


class Held(NamedTuple):
    """What a whole cache holds."""

    known: bool
    content: Content | None = None
    """None, and known: nothing."""
    batch: Batch | None = None
    """Who goes on with the cache. A copy's is nobody yet."""
    unversioned: bool = False
    """It is not known for want of versions alone."""
    rows: int | None = None
    """How many rows it had when that was known last."""


def read(capture: Owner, cache: object) -> Held:
    """What a cache holds: the same in all of its layers, or it is not known."""
    contents: set[Content | None] = set()
    batches: set[Batch | None] = set()
    rows: set[int] = set()
    layers = layers_of(cache)
    known, unversioned = layers is not None, False
    for index, layer in enumerate(layers or ()):
        ledger = _of(capture, layer, index)
        if ledger is None:
            known = known and _is_empty(layer)
            contents.add(None)
        else:
            batches.add(ledger.batch)
            if ledger.content is not None:
                rows.add(len(ledger.content.rows))
            if ledger.empty:  # it has gone on with none
                known = known and next(tensors_of(layer), None) is None
            elif ledger.holds and ledger.content is not None:
                contents.add(ledger.content if ledger.content.columns else None)
            else:
                known, unversioned = False, unversioned or ledger.unversioned
    batch = batches.pop() if len(batches) == 1 else None
    if not known or len(contents) > 1:
        return Held(False, None, batch, unversioned, rows.pop() if len(rows) == 1 else None)
    return Held(True, next(iter(contents), None), batch)


def begin(capture: Owner, cache: object, pass_: object) -> None:
    """A forward pass goes on with a cache."""
    follow(layers := layers_of(cache) or [])
    for index, layer in enumerate(layers):
        ledger = _of(capture, layer, index) or _put(capture, layer, index)
        ledger.pass_ = pass_


def end(capture: Owner, cache: object, pass_: object, batch: Batch, past: int) -> None:
    """It has ended: the cache has the columns of a batch, `past` of them before this pass."""
    follow(layers := layers_of(cache) or [])
    line = batch.line
    columns = 0 if line is None else line.columns
    content = None if line is None else Content(line, columns, tuple(range(len(batch.requests))))
    batch.ledgers = []
    for index, layer in enumerate(layers):
        ledger = _of(capture, layer, index)
        told = past == 0 if ledger is None else ledger.pass_ is pass_
        ledger = ledger or _put(capture, layer, index)
        was_empty, ledger.empty = ledger.empty, next(tensors_of(layer), None) is None
        told = told and (past == 0 or ledger.empty or not was_empty)
        fits = ledger.empty or length_of(layer) in (None, columns)
        ledger.batch, ledger.pass_ = batch, None
        ledger.content = content if told and fits else None
        ledger.look()
        batch.ledgers.append(ledger)


def head(batch: Batch) -> Content | None:
    """What the cache of a batch holds now, or held at its end; None if it is not known."""
    contents = {
        ledger.content if ledger.batch is batch and ledger.holds else None
        for ledger in batch.ledgers
        if not ledger.empty
    }
    return contents.pop() if len(contents) == 1 else None


def layers_of(cache: object) -> list[Any] | None:
    """The parts of a cache that are changed each by itself; None if it is of an unknown kind, with
    tensors elsewhere than in itself or in `layers`.
    """
    if isinstance(layers := getattr(cache, "layers", None), list):
        return layers
    parts = [
        getattr(cache, name, None) for name in ("self_attention_cache", "cross_attention_cache")
    ]
    if parts[0] is not None:
        return [layer for part in parts for layer in layers_of(part) or ()]
    return [cache] if next(tensors_of(cache), None) is not None else None


def _is_empty(layer: Any) -> bool:
    """Whether a layer that no ledger knows has nothing. May wait for the device."""
    states = getattr(layer, "has_previous_state", {})
    if any(states.values() if isinstance(states, dict) else [states]):
        return False
    try:
        return int(layer.get_seq_length()) == 0
    except (AttributeError, ValueError):
        return isinstance(states, dict) and bool(states) or next(tensors_of(layer), None) is None


def _of(capture: Owner, layer: object, index: int) -> Ledger | None:
    """The ledger of a layer, if it is this capture's, this layer's and of this place."""
    ledger: Ledger | None = vars(layer).get(LEDGER)
    if ledger is None or ledger.capture() is not capture or ledger.layer() is not layer:
        return None
    return ledger if ledger.index == index else None


def _put(capture: Owner, layer: object, index: int) -> Ledger:
    ledger = vars(layer)[LEDGER] = capture._new_ledger(layer, index)
    return ledger


_OPERATIONS = ("crop", "reset", *ROWS, "offload", "prefetch")
_UPDATES = ("update", "update_conv_state", "update_recurrent_state", "update_indexer")

_followed: dict[type, dict[str, tuple[bool, Any, Any]]] = {}
"""Of each class of layers, by method: whether the class has it itself, it, and what follows it. Kept
for good: what compilers have made of a method holds as long as that is the same object.
"""
_captures = 0


def follow(layers: list[Any]) -> None:
    """Let the methods of layers' classes tell the ledgers, as long as a capture is attached."""
    for kind in {type(layer) for layer in layers}:
        if _captures and getattr(kind, "_routecap_followed", None) is not kind:
            _install(kind)


def attached() -> None:
    global _captures
    _captures += 1


def detached() -> None:
    """When the last capture has gone, the classes are as they were."""
    global _captures
    _captures -= 1
    for kind, methods in _followed.items() if not _captures else ():
        if vars(kind).get("_routecap_followed") is kind:
            del kind._routecap_followed
        for name, (own, method, ours) in methods.items():
            if vars(kind).get(name) is ours:
                setattr(kind, name, method) if own else delattr(kind, name)


def _install(kind: Any) -> None:
    methods = _followed.setdefault(kind, {})
    for name in (*_OPERATIONS, *_UPDATES):
        method, known = getattr(kind, name, None), methods.get(name)
        if not callable(method) or known is not None and method is known[2]:
            continue
        if known is None or method is not known[1]:
            ours = (_updating if name in _UPDATES else _operating)(name, method)
            methods[name] = name in vars(kind), method, ours
        setattr(kind, name, methods[name][2])
    kind._routecap_followed = kind


def _operating(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def followed(self: object, *args: object, **kwargs: object) -> Any:
        if torch.compiler.is_compiling():
            return method(self, *args, **kwargs)
        ledger: Ledger | None = vars(self).get(LEDGER)
        if ledger is None or ledger._moving or ledger.layer() is not self:
            return method(self, *args, **kwargs)
        return ledger.through(name, method, *args, **kwargs)

    return followed


def _updating(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def followed(self: object, *args: object, **kwargs: object) -> Any:
        if not torch.compiler.is_compiling() and (ledger := vars(self).get(LEDGER)) is not None:
            ledger._updates += 1
        return method(self, *args, **kwargs)

    return followed

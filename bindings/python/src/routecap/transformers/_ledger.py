"""What a cache holds: whose columns each of its layers has.

A ledger lies in each layer of a cache that the captured model was given. It names the content, and
the tensors by which that is known again: as long as these are the same objects of the same version,
nothing but what the ledger was told of has happened. Tensors of inference mode have no versions, and
what is in them is not known from one pass to the next, but within a call of `generate`. The layer's own operations (crop, reset,
reorder and their like) tell it; whatever else changes the tensors makes the content unknown. A copy
of the layer has a ledger of its own, of the same content. A pickle has none.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from ._followed import Followed
    from ._sequences import Batch, Line

_NAME = "_routecap_ledger"


class Content(NamedTuple):
    """The first columns of a line, of some of its rows."""

    line: Line
    columns: int
    rows: tuple[int, ...]


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


class Ledger:
    """Of one layer, for one capture."""

    def __init__(self, capture: weakref.ref[Followed], layer: Any, index: int) -> None:
        self.capture, self.index = capture, index
        self.layer = weakref.ref(layer)
        self.batch: Batch | None = None
        self.content: Content | None = None
        """None: it is not known."""
        self.empty = False
        """The layer has no tensors of its own: it uses another's, or needs none."""
        self.pass_: object = None
        """The forward pass that goes on with the layer, if nothing else has changed it since."""
        self._moving = False
        self._tensors: list[tuple[weakref.ref[torch.Tensor], int | None]] = []
        self._generation: object = None
        """The call of `generate` in which the layer was looked at."""
        self._updates = self._updates_seen = 0

    def look(self) -> None:
        """The layer as it is now has the content."""
        capture = self.capture()
        self._generation = None if capture is None else capture._generation
        self._tensors = [_seen(tensor) for tensor in _tensors(self.layer())]
        self._updates_seen = self._updates

    @property
    def holds(self) -> bool:
        """Whether the content is known, and the layer's still."""
        return not self.unversioned and self._is_same

    @property
    def unversioned(self) -> bool:
        """Whether the layer has tensors of inference mode, of which nothing tells that they were
        written to. Between the steps of a call of `generate` its own loop alone has them.
        """
        capture = self.capture()
        if self._generation is not None and capture is not None:
            if self._generation is capture._generation:
                return False
        return any(version is None for _, version in self._tensors)

    @property
    def _is_same(self) -> bool:
        if self.content is None or self._updates != self._updates_seen:
            return False
        layer = self.layer()
        if layer is None:  # nobody changes it any more
            return True
        return _are(_tensors(layer), self._tensors)

    def through(self, name: str, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call an operation of the layer, and follow what it does."""
        layer = self.layer()
        content, before = self.content if self.holds else None, length_of(layer)
        tensors = [_seen(tensor) for tensor in _tensors(layer)]
        self.content, self.pass_, self._moving = None, None, True
        try:
            result = method(layer, *args, **kwargs)
        finally:
            self._moving = False
        if content is not None:
            change = next(iter((*args, *kwargs.values())), None)
            moved = not _are(_tensors(layer), tensors)
            self.content = _after(content, name, change, before, length_of(layer), moved)
            self.look()
        else:  # its rows may be others now, and as many as nobody knows
            self.batch = None
            if name == "reset":  # but nothing stays
                take_out(self)
        return result

    def __deepcopy__(self, memo: dict[int, Any]) -> Ledger | None:
        import copy

        layer, capture = memo.get(id(self.layer())), self.capture()
        if layer is None or capture is None or not self.holds:
            return None
        capture._copied(self.batch)
        ledger = capture._new_ledger(layer, self.index)
        ledger.content, ledger.empty = self.content, self.empty
        ledger._tensors = [_seen(copy.deepcopy(each, memo)) for each in _tensors(self.layer())]
        return ledger

    def __reduce__(self) -> Any:
        return type(None), ()


def read(capture: Followed, cache: Any) -> Held:
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
                known = known and next(_tensors(layer), None) is None
            elif ledger.holds and ledger.content is not None:
                contents.add(ledger.content if ledger.content.columns else None)
            else:
                known, unversioned = False, unversioned or ledger.unversioned
    batch = batches.pop() if len(batches) == 1 else None
    if not known or len(contents) > 1:
        return Held(False, None, batch, unversioned, rows.pop() if len(rows) == 1 else None)
    return Held(True, next(iter(contents), None), batch)


def begin(capture: Followed, cache: Any, pass_: object) -> None:
    """A forward pass goes on with a cache."""
    follow(layers := layers_of(cache) or [])
    for index, layer in enumerate(layers):
        ledger = _of(capture, layer, index) or _put(capture, layer, index)
        ledger.pass_ = pass_


def end(capture: Followed, cache: Any, pass_: object, batch: Batch, past: int) -> None:
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
        was_empty, ledger.empty = ledger.empty, next(_tensors(layer), None) is None
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


def layers_of(cache: Any) -> list[Any] | None:
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
    return [cache] if next(_tensors(cache), None) is not None else None


def length_of(layer: Any) -> int | None:
    """How many columns a layer says it has, where it can and nothing waits for the device."""
    try:
        columns = layer.get_seq_length()
    except (AttributeError, ValueError):
        return None
    if isinstance(columns, torch.Tensor) and columns.is_cuda:
        return None
    return int(columns)


def _is_empty(layer: Any) -> bool:
    """Whether a layer that no ledger knows has nothing. May wait for the device."""
    states = getattr(layer, "has_previous_state", {})
    if any(states.values() if isinstance(states, dict) else [states]):
        return False
    try:
        return int(layer.get_seq_length()) == 0
    except (AttributeError, ValueError):
        return isinstance(states, dict) and bool(states) or next(_tensors(layer), None) is None


def _of(capture: Followed, layer: Any, index: int) -> Ledger | None:
    """The ledger of a layer, if it is this capture's, this layer's and of this place."""
    ledger: Ledger | None = vars(layer).get(_NAME)
    if ledger is None or ledger.capture() is not capture or ledger.layer() is not layer:
        return None
    return ledger if ledger.index == index else None


def _put(capture: Followed, layer: Any, index: int) -> Ledger:
    ledger = vars(layer)[_NAME] = capture._new_ledger(layer, index)
    return ledger


def take_out(ledger: Ledger) -> None:
    """Leave a layer as if it had never been followed."""
    layer = ledger.layer()
    if layer is not None and vars(layer).get(_NAME) is ledger:
        del vars(layer)[_NAME]


# ---- What is done to a layer


def _after(
    content: Content,
    name: str,
    change: Any,
    before: int | None,
    after: int | None,
    moved: bool,
) -> Content | None:
    """What a layer holds after an operation; None if it is not known.

    moved: Whether its tensors are others.
    """
    if name == "reset":  # before 5.18 a layer that grows keeps its columns, with zeros in them
        return content._replace(columns=0) if after in (None, 0) else None
    if name == "crop":
        if before is not None and after is not None:
            removed = before - after
        elif not moved:  # before 5.14 a state is not cropped
            removed = 0
        elif int(change) <= 0:
            removed = -int(change)
        else:
            return None
        columns = content.columns - removed
        return content._replace(columns=columns) if 0 <= columns <= content.columns else None
    if name in _ROWS:
        rows = _rows_after(name, change, len(content.rows))
        return content._replace(rows=tuple(content.rows[row] for row in rows))
    return content


def _rows_after(name: str, change: Any, rows: int) -> list[int]:
    """Which rows of a layer those are that it has after an operation."""
    device = change.device if isinstance(change, torch.Tensor) else None
    before = torch.arange(rows, device=device)
    if name == "batch_repeat_interleave":
        after = before.repeat_interleave(change)
    else:
        after = before.index_select(0, change) if name == "reorder_cache" else before[change]
    found: list[int] = after.tolist()
    return found


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Those of a layer, in their order."""
    for each in vars(value).values() if hasattr(value, "__dict__") else ():
        if isinstance(each, torch.Tensor):
            yield each
        elif isinstance(each, (list, tuple, dict)):
            for item in each.values() if isinstance(each, dict) else each:
                if isinstance(item, torch.Tensor):
                    yield item


def _seen(tensor: torch.Tensor) -> tuple[weakref.ref[torch.Tensor], int | None]:
    return weakref.ref(tensor), _version(tensor)


def _are(tensors: Iterable[torch.Tensor], seen: list[tuple[Any, int | None]]) -> bool:
    """Whether tensors are those that were seen, of the same versions."""
    now = list(tensors)
    return len(now) == len(seen) and all(
        which() is tensor and version == _version(tensor)
        for tensor, (which, version) in zip(now, seen)
    )


def _version(tensor: torch.Tensor) -> int | None:
    """How often a tensor was written to; None of those made in inference mode, of which nothing
    says that.
    """
    return None if tensor.is_inference() else tensor._version


_ROWS = ("reorder_cache", "batch_select_indices", "batch_repeat_interleave")
_OPERATIONS = ("crop", "reset", *_ROWS, "offload", "prefetch")
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
    def followed(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return method(self, *args, **kwargs)
        ledger: Ledger | None = vars(self).get(_NAME)
        if ledger is None or ledger._moving or ledger.layer() is not self:
            return method(self, *args, **kwargs)
        return ledger.through(name, method, *args, **kwargs)

    return followed


def _updating(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def followed(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling() and (ledger := vars(self).get(_NAME)) is not None:
            ledger._updates += 1
        return method(self, *args, **kwargs)

    return followed

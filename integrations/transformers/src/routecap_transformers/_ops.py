"""Begin, record and snapshot as torch's custom ops: opaque to torch.compile, in its order, and
captured into its CUDA graphs as the kernels that they
enqueue.

`token` is a tensor of the capture's that each of them claims to write, so that none is moved or
dropped; `key` says whose call it is.
"""

from __future__ import annotations

import weakref
from typing import Protocol

import torch


class Capture(Protocol):
    """What the ops call."""

    def _begin(self, rows: int) -> None: ...

    def _record(self, index: int, ids: torch.Tensor, weights: torch.Tensor | None) -> None: ...

    def _snapshot(self) -> None: ...


captures: weakref.WeakValueDictionary[int, Capture] = weakref.WeakValueDictionary()


def _begin(token: torch.Tensor, key: int, rows: int) -> None:
    if (capture := captures.get(key)) is not None:
        capture._begin(rows)


def _record(
    token: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor | None, key: int, index: int
) -> None:
    if (capture := captures.get(key)) is not None:
        capture._record(index, ids, weights)


def _snapshot(token: torch.Tensor, key: int) -> None:
    if (capture := captures.get(key)) is not None:
        capture._snapshot()


for _schema, _kernel in (
    ("routecap::begin(Tensor(a!) token, int key, SymInt rows) -> ()", _begin),
    (
        "routecap::record(Tensor(a!) token, Tensor ids, Tensor? weights, int key, int index) -> ()",
        _record,
    ),
    ("routecap::snapshot(Tensor(a!) token, int key) -> ()", _snapshot),
):
    _name, _, _signature = _schema.partition("(")
    torch.library.define(_name, "(" + _signature)
    torch.library.impl(_name, "CompositeExplicitAutograd")(_kernel)
    torch.library.register_fake(_name)(lambda *arguments: None)

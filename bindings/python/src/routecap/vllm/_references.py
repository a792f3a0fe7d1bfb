"""References to rows in a store that is in a file: the keys of the blocks that they are in.

    {"store": the file, "keys": base64, "key_bytes", "block_rows", "generation", "first",
     "rest": base64, "format": "routecap", "start", "shape"}

Row `first` is the first of the blocks. `rest` is the serialised form of the rows behind them: those
of a block that is not full, and all from a block on that the store does not have, or has otherwise,
as another request that had the same tokens was routed otherwise. So the rows of a reference are the
request's own.
"""

from __future__ import annotations

import base64
import functools
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

import routecap

from . import _store_file
from ._prefixes import content_keys
from ._results import PendingRoutedExperts, to_array

_Shape = tuple[tuple[str, Any], ...]


def refer(rows: PendingRoutedExperts, path: str) -> dict[str, Any]:
    """A reference to rows. Waits for those in flight.

    Args:
        path: Of the engine's store.
    """
    rows.routing.wait()
    file, end, keys, place = os.path.realpath(path), rows.first + len(rows), b"", {}
    behind = rows.first
    if rows.blocks is not None and rows.blocks.keys and os.path.exists(file):
        size = rows.blocks.rows
        block = rows.first // size
        first = block * size
        store = _open(file, size, rows.blocks.key_bytes, _shape_of(rows.routing), os.getpid())
        generation = store.stats().generation
        own = _keys(rows.blocks.keys, size, rows.routing.tags)[block : end // size]
        held = _held(store, own, generation, rows.routing, first)
        keys, behind = b"".join(own[:held]), max(rows.first, first + held * size)
        place = {"key_bytes": store.key_bytes, "block_rows": size}
        place |= {"generation": generation, "first": first}
    rest = rows.routing.slice(behind, end - behind)
    return {
        "store": file,
        "keys": base64.b64encode(keys).decode("ascii"),
        **place,
        "rest": base64.b64encode(rest.serialize()).decode("ascii"),
        "format": "routecap",
        "start": rows.first,
        "shape": list(rows.shape),
    }


def read(reference: Mapping[str, Any]) -> routecap.Routing:
    """The rows of a reference. What the store has no more is missing.

    Raises:
        FileNotFoundError: The store is gone.
        routecap.Error: It is of another shape, or these are no rows.
    """
    rest = routecap.Routing.deserialize(base64.b64decode(reference["rest"]))
    keys = base64.b64decode(reference["keys"])
    if not keys:
        return rest
    size, key_bytes, start = (reference[name] for name in ("block_rows", "key_bytes", "start"))
    store = _open(reference["store"], size, key_bytes, _shape_of(rest), os.getpid())
    stored = _read(store, keys, reference["generation"], reference["first"], rest)
    return stored.slice(start, rest.first + rest.rows - start)


def _keys(hashes: list[bytes], size: int, tags: NDArray[Any]) -> list[bytes]:
    """What the store has blocks under: hash, and version of the weights of all rows up to it."""
    other = np.flatnonzero(tags != tags[0])
    same = (int(other[0]) if len(other) else len(tags)) // size
    versions = [int(tags[0]) if block < same else -1 for block in range(len(hashes))]
    return [key.tobytes() for key in content_keys(hashes, versions)]


def _held(
    store: routecap.Store, keys: list[bytes], generation: int, routing: routecap.Routing, first: int
) -> int:
    """How many of the blocks from row `first` on the store has as the routing has them."""
    held = store.leading(keys, generation=generation)
    if held == 0:
        return 0
    size = store.block_rows
    own = routing.slice(first, held * size)
    stored = _read(store, keys[:held], generation, first, own.slice(own.first + own.rows, 0))
    same = (to_array(own, -1) == to_array(stored, -1)).all(axis=(1, 2)) & (own.tags == stored.tags)
    blocks = same.reshape(held, size).all(axis=1)
    return held if blocks.all() else int(blocks.argmin())


def _read(
    store: routecap.Store,
    keys: bytes | list[bytes],
    generation: int,
    first: int,
    rest: routecap.Routing,
) -> routecap.Routing:
    """Rows of the blocks, the first of which begins at row `first`, and the rest behind them."""
    end = rest.first + rest.rows
    with routecap.Capturer(rows=1, **dict(_shape_of(rest))) as capturer:
        request = capturer.open()
        request.adopt(store, first, keys, generation=generation)
        if rest.rows:
            request.attach(rest)
        routing = request.finish(end)
        routing.wait()
    return routing.slice(first, end - first)


def _shape_of(routing: routecap.Routing) -> _Shape:
    shape: dict[str, Any] = {
        "layers": routing.layers,
        "k": routing.k,
        "experts": routing.experts,
        "id_space": routing.id_space,
    }
    for name in ("layer_map", "layer_experts", "layer_provenance"):
        shape[name] = tuple(getattr(routing, name).tolist())
    return tuple(shape.items())


@functools.lru_cache(maxsize=4)
def _open(
    file: str, block_rows: int, key_bytes: int, shape: _Shape, process: int
) -> routecap.Store:
    """It takes a while, and holds the file's memory. In a child of a process it is opened anew."""
    return _store_file.open_made(file, block_rows=block_rows, key_bytes=key_bytes, **dict(shape))

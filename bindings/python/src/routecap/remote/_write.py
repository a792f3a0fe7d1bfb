"""A routing becomes an object, and what names it a reference."""

import functools
import json
import os
import secrets
from typing import Any

from routecap import SERIALIZED_MIN, Routing, serialized_info

from ._head import tables_bytes_of
from ._reference import Reference, check_key, digest_of
from ._stores import ObjectStore, connect


@functools.lru_cache(maxsize=4)
def _store_of(setting: str, process: int) -> ObjectStore:
    """In a child of a process it is connected anew."""
    return connect(**json.loads(setting)) if setting.startswith("{") else connect(setting)


def write_as_set(routing: Routing, setting: str) -> dict[str, Any]:
    """Write a routing where an engine's setting says: a URL, or JSON with "url" and the settings of
    its store. The reference for JSON.
    """
    tags = routing.tags
    generation = int(tags.min()) if len(tags) and routing.complete else 0
    return write(_store_of(setting, os.getpid()), routing, generation=generation).to_dict()


def write(
    store: ObjectStore, routing: Routing, *, key: str | None = None, generation: int = 0
) -> Reference:
    """Write a routing as an object, with checksums, and return the reference to it.

    key: by default a new one. An object never changes: do not write a key twice. generation: what
    the lowest of its rows' tags is, or less.
    """
    routing.wait()
    data = routing.serialize()
    info = serialized_info(data)
    if key is None:
        key = f"{secrets.token_hex(16)}.routecap"
    check_key(key)
    return Reference(
        store.scheme,
        store.write(key, data),
        info.first,
        info.rows,
        info.bytes,
        digest_of(data[: tables_bytes_of(data[:SERIALIZED_MIN])]),
        generation,
    )

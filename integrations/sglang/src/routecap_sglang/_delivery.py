"""How rows come from the scheduler's process to the one that encodes them.

SGLang's message has a tensor for the rows. It gets a small one, a ticket: where the rows can be
fetched, and how the client asked for them. The rows stay where they are until the detokenizer
fetches them over a local socket, served by threads without the interpreter: the scheduler's does
nothing per row, and may keep the interpreter busy. A process on another host gets them in the
message.

The socket is in Linux's abstract namespace, and gives out what is asked for by a random number that
only the message has, once.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
import struct
from typing import Any, NamedTuple

import numpy as np
import routecap
from routecap import adapter

from ._sinks import rows_of

logger = logging.getLogger(__name__)

_MAGIC = b"routecap"
_HEAD = struct.Struct("<8sI")  # and the bytes of the JSON object that follows
_SIZE = struct.Struct("<q")
_TICKET_BYTES = 16
_SECONDS = 120  # that a fetch may take
_MOST = 65536  # routings that wait: of messages that never arrive the oldest go


class Asked(NamedTuple):
    """How a client wants its rows: from `start` to `end`, in `dtype`, with `columns` layers."""

    dtype: str
    start: int
    end: int
    columns: int


class Outbox:
    """Rows of finished requests, until they are fetched."""

    def __init__(self) -> None:
        self._outbox = adapter.Outbox(f"routecap-sglang-{os.getpid()}-{secrets.token_hex(4)}")

    def put(self, routing: routecap.Routing, asked: Asked) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The ticket. The routing may be in flight."""
        ticket = secrets.token_bytes(_TICKET_BYTES)
        first = min(asked.start, asked.end)
        self._outbox.put(ticket, routing, first, asked.end, _MOST)
        return _pack({**asked._asdict(), "at": self._outbox.name, "ticket": ticket.hex()})

    def close(self) -> None:
        self._outbox.close()


def in_message(routing: routecap.Routing, asked: Asked) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The rows themselves, for a process on another host. Waits for those in flight."""
    return _pack(asked._asdict(), rows_of(routing, asked.start, asked.end).serialize())


def _pack(header: dict[str, Any], data: bytes = b"") -> np.ndarray[Any, np.dtype[np.uint8]]:
    text = json.dumps(header).encode()
    return np.frombuffer(bytearray(_HEAD.pack(_MAGIC, len(text)) + text + data), np.uint8)


def _receive(connection: socket.socket, size: int) -> bytearray | None:
    """So many bytes; None if the other side has gone."""
    data = bytearray(size)
    view = memoryview(data)
    while view:
        try:
            count = connection.recv_into(view)
        except ConnectionError:
            return None
        if count == 0:
            return None
        view = view[count:]
    return data


# ---- The other side

_connections: dict[str, socket.socket] = {}


def fetch(message: Any) -> tuple[routecap.Routing, Asked] | None:
    """The rows that a ticket stands for; None if this is no ticket. By one thread at a time.

    Raises:
        RuntimeError: The process that had them is gone, or has given them out.
    """
    data = memoryview(message).cast("B") if len(message) >= _HEAD.size else memoryview(b"")
    if len(data) < _HEAD.size or data[:8] != _MAGIC:
        return None
    _, length = _HEAD.unpack_from(data)
    header = json.loads(bytes(data[_HEAD.size : _HEAD.size + length]))
    asked = Asked(*(header[name] for name in Asked._fields))
    if "at" in header:
        received = _ask(header["at"], bytes.fromhex(header["ticket"]))
    else:
        received = bytearray(data[_HEAD.size + length :])
    return routecap.Routing.deserialize(received), asked


def _ask(name: str, ticket: bytes) -> bytearray:
    try:
        connection = _connections.get(name) or _connect(name)
        connection.sendall(ticket)
        size = _receive(connection, _SIZE.size)
        if size is None:
            raise ConnectionError("it has ended")
        (rows,) = _SIZE.unpack(size)
        if rows < 0:
            raise RuntimeError(
                "the scheduler's process does not have these rows: take them once, and before"
                " others push them out"
            )
        received = _receive(connection, rows)
        if received is None:
            raise ConnectionError("it has ended")
        return received
    except OSError as error:
        if name in _connections:
            _connections.pop(name).close()
        raise RuntimeError(
            f"the scheduler's process does not answer: {error}. Look into its log, and make the"
            " request again"
        ) from None


def _connect(name: str) -> socket.socket:
    connection = _connections[name] = socket.socket(socket.AF_UNIX)
    connection.settimeout(_SECONDS)
    connection.connect("\0" + name)
    return connection


def disconnect() -> None:
    """End all connections."""
    while _connections:
        _connections.popitem()[1].close()

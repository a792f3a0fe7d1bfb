"""Routings that another process fetches over a local socket."""

from ._library import raw
from ._routing import Routing


class Outbox:
    """Rows that wait until another process of this host fetches them, each once. Threads that do
    not need the interpreter serve them, so that nobody waits for it. Any threads may call.

    Who fetches connects to the socket of this name in Linux's abstract namespace, sends a ticket,
    and receives the number of bytes, as a signed number of 64 bits, and a serialised routing; -1
    if no rows wait under the ticket.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._outbox: object = raw.open_outbox(name)

    def put(self, ticket: bytes, routing: Routing, first: int, end: int, most: int) -> None:
        """Let the rows of positions [first, end) wait under a ticket, a secret of 16 bytes. The
        routing may be in flight. Of more than `most` that wait, the oldest go.
        """
        raw.put_into_outbox(self._outbox, ticket, routing._handle, first, end, most)

    def close(self) -> None:
        """Drop what waits, and end the threads."""
        self._outbox = None

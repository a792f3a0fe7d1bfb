"""Routings from and to the bytes in which servers send them and trainers read them."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Unpack

from . import _structs as structs
from ._constants import Status, Wire, WireFact
from ._docs import documented
from ._errors import error
from ._library import raw
from ._message import (
    WireHint,
    WireReport,
    decode,
    encode,
    hint_of,
    read_report,
    wire_format,
)
from ._protocols import MessageLike
from ._routing import Routing
from .names import WireDtypeLike, WireFactName, WireLike


class WireFormat(NamedTuple):
    """A wire format."""

    format: Wire
    version: int
    facts: WireFact
    """What its bytes can say."""
    name: str
    aliases: tuple[str, ...]
    """Who writes it."""
    ending: str
    """Of the names of files, with the dot; empty if it has none."""


def wire_formats() -> dict[str, WireFormat]:
    """All wire formats by their names (routecap_wire_describe)."""
    formats: dict[str, WireFormat] = {}
    for number in Wire:
        if number != Wire.ANY:
            memory = structs.wire_description.empty()
            raw.routecap_wire_describe(number, memory)
            format, version, facts, *texts = structs.wire_description.read(memory)
            name, aliases, ending = (raw.text(text) for text in texts)
            formats[name] = WireFormat(
                Wire(format), version, WireFact(facts), name, tuple(aliases.split()), ending
            )
    return formats


@documented("routecap_wire_decode")
def wire_decode(
    data: MessageLike, format: WireLike = Wire.ANY, **hint: Unpack[WireHint]
) -> tuple[Routing, WireReport]:
    """Decode a message into a routing and a report.

    `data` is bytes, text, or what json.loads made of an object or of lists. `format` is its name,
    or who writes it: "vllm", "sglang", "nemo-rl".
    """
    handle, report = decode(data, format, hint)
    return Routing._of(handle), report


def wire_decode_batch(
    messages: Iterable[MessageLike],
    format: WireLike = Wire.ANY,
    *,
    hints: Sequence[WireHint] | None = None,
    threads: int = 1,
    **hint: Unpack[WireHint],
) -> list[tuple[Routing, WireReport]]:
    """`wire_decode` of many messages: `hint` is that of all of them, `hints` has what differs of
    each, first and rows for instance.

    With `threads` as many work at once, without the interpreter's lock. An error is raised with the
    number of its message, and nothing is returned.
    """
    listed, number = list(messages), wire_format(format)
    if hints is not None and len(hints) != len(listed):
        raise error(
            Status.ERR_ARGUMENT,
            f"{len(listed)} messages have {len(hints)} hints: give one for each message",
        )

    def decode(index: int) -> tuple[Routing, WireReport]:
        try:
            each = hint.copy()
            if hints is not None:
                each.update(hints[index])
            return wire_decode(listed[index], number, **each)
        except RuntimeError as reason:
            reason.add_note(f"in message {index}")
            raise

    if threads <= 1:
        return [decode(index) for index in range(len(listed))]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(decode, range(len(listed))))


class WireDecoder:
    """Decodes a message that arrives piece by piece: write(bytes) as often as there are some, then
    finish(). It is freed with the object
    (routecap_wire_decoder_free).
    """

    def __init__(self, format: WireLike = Wire.ANY, **hint: Unpack[WireHint]) -> None:
        given, _held = hint_of(hint)
        _, self._handle = raw.routecap_wire_decoder_create(wire_format(format), given)

    @documented("routecap_wire_decoder_write")
    def write(self, data: MessageLike) -> None:
        """Give the decoder the next bytes of the message."""
        raw.routecap_wire_decoder_write(self._handle, data)

    @documented("routecap_wire_decoder_finish")
    def finish(self) -> tuple[Routing, WireReport]:
        """End the message."""
        memory = structs.wire_report.empty()
        _, handle = raw.routecap_wire_decoder_finish(self._handle, memory)
        return Routing._of(handle), read_report(memory)


@documented("routecap_wire_encode")
def wire_encode(
    routing: Routing,
    format: WireLike,
    *,
    dtype: WireDtypeLike | None = None,
    columns: int | None = None,
    allow: Iterable[WireFact | WireFactName] = (),
    fill: int = 0,
) -> tuple[bytes, WireReport]:
    """Encode a routing as a message. Returns the message and what was lost: only facts that `allow`
    names ("first", "tags", "validity", ...) can be lost.

    With `columns` the layer axis is that of the whole decoder, of so many layers (0: up to the last
    captured one). Unlike a message's reader, who knows the model, nobody could tell otherwise.
    """
    return encode(routing._handle, format, dtype=dtype, columns=columns, allow=allow, fill=fill)

"""Routings from and to the bytes in which servers send them and trainers read them."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Unpack

from . import _structs as structs
from ._constants import Dtype, Order, Status, Wire, WireFact
from ._docs import documented
from ._errors import error, member
from ._library import raw
from ._message import (
    WireHint,
    WireReport,
    as_message,
    decode,
    encode,
    hint_of,
    read_report,
    wire_format,
)
from ._reading import FILL, copy_into
from ._routing import Routing
from ._tensors import describe
from .names import OrderName, WireDtypeLike, WireFactName, WireLike


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


class WireInfo(NamedTuple):
    """What the beginning of a message says about it; 0 if it does not say."""

    format: Wire
    version: int
    certain: bool
    """Whether it is of no other format."""
    facts: WireFact
    dtype: Dtype | None
    columns: int
    k: int
    first: int
    rows: int


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


@documented("routecap_wire_probe")
def wire_probe(data: Any) -> WireInfo:
    """Find the format of a message by its beginning."""
    memory = structs.wire_info.empty()
    raw.routecap_wire_probe(as_message(data), memory)
    format, version, certain, facts, dtype, *shape = structs.wire_info.read(memory)
    return WireInfo(
        Wire(format),
        version,
        bool(certain),
        WireFact(facts),
        Dtype(dtype) if dtype else None,
        *shape,
    )


@documented("routecap_wire_decode")
def wire_decode(
    data: Any, format: WireLike = Wire.ANY, **hint: Unpack[WireHint]
) -> tuple[Routing, WireReport]:
    """Decode a message into a routing and a report.

    `data` is bytes, text, or what json.loads made of an object or of lists. `format` is its name,
    or who writes it: "vllm", "sglang", "nemo-rl".
    """
    handle, report = decode(data, format, hint)
    return Routing._of(handle), report


def wire_decode_batch(
    messages: Iterable[Any],
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


@documented("routecap_wire_decode_into")
def wire_decode_into(
    data: Any,
    out: Any,
    format: WireLike = Wire.ANY,
    *,
    mask: Any = None,
    fill: int = FILL,
    order: Order | OrderName = Order.ROW_MAJOR,
    first_layer: int = 0,
    **hint: Unpack[WireHint],
) -> WireReport:
    """Write the ids of a message into an array [rows, layers, k] or [layers, rows, k], of any
    integer type, without making a routing.

    mask, fill, order and first_layer are those of Routing.copy_to.
    """
    tensor = describe(out, "out")
    if len(tensor.shape) != 3:
        raise error(
            Status.ERR_SHAPE_MISMATCH,
            f"out has shape {tensor.shape}, three dimensions are expected: give [rows, layers, k]"
            " or [layers, rows, k]",
        )
    order = member(Order, order)
    rows, layers, k = (
        tensor.shape
        if order == Order.ROW_MAJOR
        else (tensor.shape[1], tensor.shape[0], tensor.shape[2])
    )
    given, _held = hint_of(
        {"rows": rows, "k": k, **hint}
    )  # a message of another shape is refused before anything is written
    memory, message, number = structs.wire_report.empty(), as_message(data), wire_format(format)

    def call(options: bytes, dst: Any, cells: Any) -> Any:
        return raw.routecap_wire_decode_into(message, number, given, options, dst, cells, memory)

    copy_into(call, out, mask, k, fill, order, first_layer, layers, 0)
    return read_report(memory)


class WireDecoder:
    """Decodes a message that arrives piece by piece: write(bytes) as often as there are some, then
    finish(). It is freed with the object
    (routecap_wire_decoder_free).
    """

    def __init__(self, format: WireLike = Wire.ANY, **hint: Unpack[WireHint]) -> None:
        given, _held = hint_of(hint)
        _, self._handle = raw.routecap_wire_decoder_create(wire_format(format), given)

    @documented("routecap_wire_decoder_write")
    def write(self, data: Any) -> None:
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


@documented("routecap_wire_splice")
def wire_splice(
    format: WireLike,
    head: Any,
    tail: Any,
    row: int,
    *,
    head_hint: WireHint | None = None,
    tail_hint: WireHint | None = None,
) -> bytes:
    """Join two messages: the rows of `head` before position `row`, and those of `tail` from it
    on.
    """
    (head_given, _held), (tail_given, _held_too) = (
        hint_of(head_hint or {}),
        hint_of(tail_hint or {}),
    )
    number, first, second = wire_format(format), as_message(head), as_message(tail)
    room = bytearray(len(first) + len(second) + 4096)
    _, needed = raw.routecap_wire_splice(number, first, head_given, second, tail_given, row, room)
    return bytes(memoryview(room)[:needed])

"""Routings from and to the bytes in which servers send them and trainers read them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypedDict, Unpack

import numpy as np

from . import _structs as structs
from ._constants import Dtype, IdSpace, Order, Status, Wire, WireColumns, WireFact, WireHintFlag
from ._docs import documented
from ._errors import error, member
from ._library import raw
from ._routing import FILL, Routing, copy_into, integers
from ._tensors import describe
from .names import IdSpaceName, OrderName, WireColumnsName, WireDtypeLike, WireFactName, WireLike


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


class WireReport(NamedTuple):
    """What a message held, and which facts of a routing it could not carry."""

    format: Wire
    version: int
    dtype: Dtype
    facts: WireFact
    """What these bytes say."""
    lost: WireFact
    """Encoding: what the routing said and these bytes do not."""
    columns: int
    columns_left_out: int
    columns_in_use: int
    """Of those left out: with a cell of k distinct ids.

    Such a layer may be missing in the layer map.
    """
    layers_empty: int
    bytes: int
    first: int
    rows: int
    cells_valid: int
    cells_negative: int
    cells_zero: int
    cells_out_of_range: int
    cells_duplicate: int
    rows_zero: int
    rows_repeated: int
    rows_counting: int
    largest_id: int

    def _repr_html_(self) -> str:
        from . import _html

        return _html.counters("Report of a message", self._asdict())


class WireHint(TypedDict, total=False):
    """What you know about messages besides their bytes. If the bytes say it too, both must
    agree.
    """

    experts: int
    """Ids are in [0, experts). Required, unless layer_experts is given."""
    layers: int
    """Captured (MoE) layers; default: those of layer_map, or as many as there are columns."""
    columns: int
    """Where the bytes do not say it: the length of the layer axis."""
    k: int
    dtype: WireDtypeLike
    column_kind: WireColumns | WireColumnsName
    id_space: IdSpace | IdSpaceName
    first: int
    """Position of the first row."""
    rows: int
    """How many: of S tokens S-1."""
    tag: int
    budget_bytes: int
    """The most memory that decoding may take."""
    layer_map: Any
    """Index of each captured layer in the decoder."""
    layer_experts: Any
    strict: bool
    """A missing cell is an error."""


class WireOptions(TypedDict, total=False):
    """How a routing is written as a message: what `wire_encode` takes, which has the meaning."""

    dtype: WireDtypeLike | None
    columns: int | None
    allow: Iterable[WireFact | WireFactName]
    fill: int


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


def wire_format(name: Wire | str) -> Wire:
    """Find a format by its name ("nrlre1"), by a program that writes it ("vllm"), or by a file
    ending (".npy") (routecap_wire_find).
    """
    if isinstance(name, Wire):
        return name
    if name.lower() in ("any", *(each.name.lower() for each in Wire)):
        return member(Wire, name)
    return Wire(raw.routecap_wire_find(name)[1])


def _dtype(value: Any) -> int:
    if isinstance(value, str) and value.upper() in Dtype.__members__:
        return Dtype[value.upper()]
    if isinstance(value, Dtype):
        return value
    return {"int8": Dtype.I8, "uint64": Dtype.U64}.get(str(np.dtype(value))) or describe(
        np.empty(0, value), "dtype"
    ).dtype  # type: ignore[return-value]


def _message(data: Any) -> Any:
    """Bytes as they are; text, and what json.loads made of a message, as bytes."""
    if isinstance(data, (dict, list)):
        data = json.dumps(data)
    if isinstance(data, str):
        try:
            return data.encode("ascii")
        except UnicodeEncodeError:
            raise error(
                Status.ERR_FORMAT,
                "the text is not ASCII, as base64 and JSON of ids are: give the message alone, or"
                " bytes",
            ) from None
    return data


def _hint(given: Mapping[str, Any]) -> tuple[bytes, list[Any]]:
    """The struct, and the arrays that it points to."""
    values = {name: value for name, value in given.items() if value is not None}
    held = [
        integers(values.get("layer_map"), np.int32),
        integers(values.get("layer_experts"), np.uint32),
    ]
    for name, array in zip(("layer_map", "layer_experts"), held):
        if array is not None:
            values[name] = array.ctypes.data
            if values.setdefault("layers", array.size) != array.size:
                raise error(
                    Status.ERR_SHAPE_MISMATCH,
                    f"{name} has {array.size} elements for {values['layers']} layers: give one for"
                    " each layer",
                )
    if "dtype" in values:
        values["dtype"] = _dtype(values["dtype"])
    if "column_kind" in values:
        values["column_kind"] = member(WireColumns, values["column_kind"])
    if "id_space" in values:
        values["id_space"] = member(IdSpace, values["id_space"])
    values["flags"] = WireHintFlag.STRICT if values.pop("strict", False) else 0
    if unknown := set(values) - set(structs.wire_hint.fields):
        raise TypeError(
            f"{', '.join(sorted(unknown))}: there is no such hint; there are"
            f" {', '.join(WireHint.__annotations__)}"
        )
    return structs.wire_hint(**values), held


def _report(memory: bytearray) -> WireReport:
    values = dict(zip(structs.wire_report.fields, structs.wire_report.read(memory)))
    for name, group in (
        ("format", Wire),
        ("dtype", Dtype),
        ("facts", WireFact),
        ("lost", WireFact),
    ):
        values[name] = group(values[name])
    return WireReport(**values)


@documented("routecap_wire_probe")
def wire_probe(data: Any) -> WireInfo:
    """Find the format of a message by its beginning."""
    memory = structs.wire_info.empty()
    raw.routecap_wire_probe(_message(data), memory)
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
    given, _held = _hint(hint)
    memory = structs.wire_report.empty()
    _, handle = raw.routecap_wire_decode(_message(data), wire_format(format), given, memory)
    return Routing._of(handle), _report(memory)


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
    given, _held = _hint(
        {"rows": rows, "k": k, **hint}
    )  # a message of another shape is refused before anything is written
    memory, message, number = structs.wire_report.empty(), _message(data), wire_format(format)

    def call(options: bytes, dst: Any, cells: Any) -> Any:
        return raw.routecap_wire_decode_into(message, number, given, options, dst, cells, memory)

    copy_into(call, out, mask, k, fill, order, first_layer, layers, 0)
    return _report(memory)


class WireDecoder:
    """Decodes a message that arrives piece by piece: write(bytes) as often as there are some, then
    finish(). It is freed with the object
    (routecap_wire_decoder_free).
    """

    def __init__(self, format: WireLike = Wire.ANY, **hint: Unpack[WireHint]) -> None:
        given, _held = _hint(hint)
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
        return Routing._of(handle), _report(memory)


def wire_fact(name: str) -> WireFact:
    try:
        return WireFact[name.upper()]
    except KeyError:
        raise error(
            Status.ERR_ARGUMENT,
            f"{name!r} is no fact; there are"
            f" {', '.join(fact.name.lower() for fact in WireFact if fact.name)}",
        ) from None


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
    facts = WireFact(0)
    for fact in [allow] if isinstance(allow, (str, WireFact)) else allow:
        facts |= fact if isinstance(fact, WireFact) else wire_fact(fact)
    options = structs.wire_options(
        format=wire_format(format),
        dtype=_dtype(dtype) if dtype is not None else 0,
        column_kind=WireColumns.CAPTURED if columns is None else WireColumns.DECODER,
        columns=columns or 0,
        allow=facts,
        fill=fill,
    )
    memory = structs.wire_report.empty()
    return raw.wire_encode(routing._handle, options, memory), _report(memory)


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
    (head_given, _held), (tail_given, _held_too) = _hint(head_hint or {}), _hint(tail_hint or {})
    number, first, second = wire_format(format), _message(head), _message(tail)
    room = bytearray(len(first) + len(second) + 4096)
    _, needed = raw.routecap_wire_splice(number, first, head_given, second, tail_given, row, room)
    return bytes(memoryview(room)[:needed])

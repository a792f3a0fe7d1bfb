"""Messages of servers and trainers as the library takes them: hints, options and reports as structs,
routing by their handles."""

import json
from collections.abc import Iterable
from typing import Any, NamedTuple, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _structs as structs
from ._constants import Dtype, IdSpace, Status, Wire, WireColumns, WireFact, WireHintFlag
from ._errors import error, member
from ._library import raw
from ._protocols import BytesLike, MessageLike
from ._tensors import integers
from .names import IdSpaceName, WireColumnsName, WireDtypeLike, WireFactName, WireLike


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
    layer_map: ArrayLike
    """Index of each captured layer in the decoder."""
    layer_experts: ArrayLike
    strict: bool
    """A missing cell is an error."""


class WireOptions(TypedDict, total=False):
    """How a routing is written as a message: what `wire_encode` takes, which has the meaning."""

    dtype: WireDtypeLike | None
    columns: int | None
    allow: Iterable[WireFact | WireFactName]
    fill: int


def wire_format(name: Wire | str) -> Wire:
    """Find a format by its name ("nrlre1"), by a program that writes it ("vllm"), or by a file
    ending (".npy") (routecap_wire_find).
    """
    if isinstance(name, Wire):
        return name
    if name.lower() in ("any", *(each.name.lower() for each in Wire)):
        return member(Wire, name)
    return Wire(raw.routecap_wire_find(name)[1])


def _dtype(value: WireDtypeLike) -> int:
    if isinstance(value, str) and value.upper() in Dtype.__members__:
        return Dtype[value.upper()]
    if isinstance(value, Dtype):
        return value
    try:
        kind = np.dtype(value)
    except Exception:  # NumPy and Python's tokenizer raise many kinds for what is no type
        kind = np.dtype(object)
    if kind.kind not in "iu" or not kind.isnative:
        raise error(
            Status.ERR_DTYPE,
            f"{value!r} is no type of ids: give one of integers in this machine's order, such as"
            " int32",
        )
    return Dtype[f"{kind.kind.upper()}{8 * kind.itemsize}"]


def as_message(data: MessageLike) -> BytesLike:
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


def hint_of(given: WireHint) -> tuple[bytes, list[NDArray[Any] | None]]:
    """The struct, and the arrays that it points to."""
    values: dict[str, Any] = {n: value for n, value in given.items() if value is not None}
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


def read_report(memory: bytearray) -> WireReport:
    values = dict(zip(structs.wire_report.fields, structs.wire_report.read(memory)))
    for name, group in (
        ("format", Wire),
        ("dtype", Dtype),
        ("facts", WireFact),
        ("lost", WireFact),
    ):
        values[name] = group(values[name])
    return WireReport(**values)


def decode(data: MessageLike, format: WireLike, hint: WireHint) -> tuple[object, WireReport]:
    """The handle of a message's routing, and the report."""
    given, _held = hint_of(hint)
    memory = structs.wire_report.empty()
    _, handle = raw.routecap_wire_decode(as_message(data), wire_format(format), given, memory)
    return handle, read_report(memory)


def wire_fact(name: str) -> WireFact:
    """A fact of the wire by its name, in any case. Raises: ArgumentError: There is none."""
    try:
        return WireFact[name.upper()]
    except KeyError:
        raise error(
            Status.ERR_ARGUMENT,
            f"{name!r} is no fact; there are"
            f" {', '.join(fact.name.lower() for fact in WireFact if fact.name)}",
        ) from None


def encode(
    handle: object,
    format: WireLike,
    *,
    dtype: WireDtypeLike | None = None,
    columns: int | None = None,
    allow: Iterable[WireFact | WireFactName] = (),
    fill: int = 0,
) -> tuple[bytes, WireReport]:
    """A routing, by its handle, as a message; see `wire_encode`."""
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
    return raw.wire_encode(handle, options, memory), read_report(memory)

"""The structs of routecap.h: arrays of them as NumPy dtypes, single ones as bytes."""

import struct
from collections.abc import Callable, Sequence
from operator import index
from typing import Any, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from . import _layouts as layouts
from ._constants import SpanFlag, Status
from ._errors import Error, error, member
from .names import Integers, SpanFlagName

# ---- Arrays


def _dtype(fields: str) -> "np.dtype[np.void]":
    return np.dtype([tuple(field.split(":")) for field in fields.split()], align=True)


span_dtype = _dtype(layouts.span)
accept_dtype = _dtype(layouts.accept_item)
extract_dtype = _dtype(layouts.extract_item)
finish_dtype = _dtype(layouts.finish_item)
publish_dtype = _dtype(layouts.publish_item)
adopt_dtype = _dtype(layouts.adopt_item)
missing_dtype = _dtype(layouts.missing)
segment_dtype = _dtype(layouts.segment)
layer_source_dtype = _dtype(layouts.layer_source)
layer_stats_dtype = _dtype(layouts.layer_stats)
layer_probe_dtype = _dtype(layouts.layer_probe)
received_counts_dtype = _dtype(layouts.received_counts)
piece_dtype = _dtype(layouts.piece)
plan_range_dtype = _dtype(layouts.plan_range)
sequence_span_dtype = _dtype(layouts.sequence_span)


_MOST = {name: int(np.iinfo(span_dtype[name]).max) for name in span_dtype.names or ()}
_SPANS = "routecap.spans(request=[a, b], position=0, rows=4)"


class SpanColumns(TypedDict, total=False):
    """Columns of spans: each is an integer, for all spans, or a sequence with one for each."""

    request: Integers
    """Handles, as Capturer.open_batch gives them: a Request counts as its own. 0, which is nobody's,
    unless given.
    """
    position: Integers
    """Position of the first row; default 0."""
    rows: Integers
    """Number of rows; default 1."""
    sink_row: Integers
    """The first; by default the spans take consecutive sink rows, from 0 on. So do those of each
    call: of spans that are put together, say it.
    """
    flags: SpanFlagName | SpanFlag | Sequence[SpanFlag] | NDArray[np.integer[Any]]
    """SpanFlags, or the name of one for all spans; none unless given. An array has their numbers."""
    position_end: Integers
    """With "device_positions": one past the highest position; see routecap_span in the header."""


def spans(
    n: int | None = None,
    /,
    *,
    out: NDArray[np.void] | None = None,
    shared: bool = False,
    **columns: Unpack[SpanColumns],
) -> NDArray[np.void]:
    """An array of spans: `n` of them, or as many as the longest of its `columns` has (see
    SpanColumns).
    Without any column they are spans to be filled: of one row each, at sink row 0.

    out: spans to fill again, for the next step; columns that are not given stay as they are. shared:
    other spans may have their sink rows too, if they are shared as well; otherwise a sink row in two
    spans of a step is an error.
    """
    if unknown := columns.keys() - SpanColumns.__annotations__.keys():
        raise TypeError(
            f"a span has no {', '.join(sorted(unknown))}; it has"
            f" {', '.join(SpanColumns.__annotations__)}"
        )
    given = {name: _column(name, each) for name, each in columns.items()}
    if out is None:
        longest = max((len(column) for column in given.values() if column.ndim), default=1)
        array = np.zeros(longest if n is None else n, span_dtype)
        given.setdefault("rows", np.array(1))
    else:
        expect_array(out, "out", "span_dtype")
        if out.ndim != 1 or n not in (None, len(out)):
            wanted = "one dimension" if n is None else f"{n} spans"
            raise error(
                Status.ERR_SHAPE_MISMATCH,
                f"out has shape {out.shape}: give {wanted}, such as routecap.spans(n) or a slice"
                " of it",
            )
        array = out
    for name, column in given.items():
        if column.shape not in ((), (1,), array.shape):
            raise error(
                Status.ERR_SHAPE_MISMATCH,
                f"{name}: {len(array)} spans have a column of as many elements, not one of shape "
                f"{column.shape}. Spans are made by {_SPANS}",
            )
    if out is None and columns and "sink_row" not in given:
        rows = np.broadcast_to(given["rows"].astype(np.uint64), array.shape)
        given["sink_row"] = _column("sink_row", rows.cumsum() - rows)
    for name, column in given.items():
        array[name] = column
    if shared:
        array["flags"] |= np.uint32(SpanFlag.SHARED)
    return array


def _column(name: str, given: object) -> NDArray[Any]:
    """A column of spans as an array, of numbers that fit its field."""
    if isinstance(given, str) and name == "flags":
        given = member(SpanFlag, given)
    most = _MOST[name]
    if type(given) is int and 0 <= given <= most:
        return np.array(given, np.uint64)
    column = np.array(given, object) if isinstance(given, (list, tuple)) else np.asarray(given)
    if column.dtype.kind == "O":  # Requests among them
        column = np.array([_number(name, each) for each in column.flat], object).reshape(
            column.shape
        )
    elif column.dtype.kind not in "iub":
        raise _no_number(
            name, repr(given) if not column.ndim else f"an array of {column.dtype}", given
        )
    if column.size and not (0 <= (least := column.min()) and column.max() <= most):
        value = least if least < 0 else column.max()
        raise error(
            Status.ERR_ARGUMENT,
            f"{name}: {value} is not in [0, {most}]. Spans are made by {_SPANS}",
        )
    return column


def _number(name: str, value: Any) -> int:
    try:
        return index(value)
    except TypeError:
        raise _no_number(name, repr(value), value) from None


def _no_number(name: str, what: str, value: object) -> Error:
    wanted = "a Request or its handle" if name == "request" else "an integer"
    return error(Status.ERR_DTYPE, f"{name}: {what} is not {wanted}. Spans are made by {_SPANS}")


_FORMS = {
    "span_dtype": (span_dtype, "routecap.spans(request=request, position=0, rows=4)"),
    "accept_dtype": (
        accept_dtype,
        "np.zeros(n, routecap.accept_dtype), with request, step and count filled in",
    ),
    "extract_dtype": (
        extract_dtype,
        "np.zeros(n, routecap.extract_dtype), with request, first and rows filled in",
    ),
    "finish_dtype": (
        finish_dtype,
        "np.zeros(n, routecap.finish_dtype), with request and rows filled in",
    ),
}


def expect_array(given: object, name: str, form: str) -> None:
    """Refuse what is no array of the dtype that `form` names."""
    dtype, example = _FORMS[form]
    if getattr(given, "dtype", None) != dtype:
        raise error(
            Status.ERR_DTYPE,
            f"{name} is {what_it_is(given)}, where an array of routecap.{form} is expected: "
            f"{example}",
        )


def what_it_is(given: object) -> str:
    """For errors."""
    if not isinstance(given, np.ndarray):
        return f"a {type(given).__name__}"
    return f"an array of {'other fields' if given.dtype.names else given.dtype}"


# ---- Single structs


class Struct:
    """The layout of one struct whose first field is struct_size: bytes that a call reads, or memory
    that it fills.

    Called with values by name it gives bytes; what is not named is 0.
    """

    def __init__(self, fields: str) -> None:
        pairs = [field.split(":") for field in fields.split()]
        codes = "".join(code for _, code in pairs)
        layout = struct.Struct("@I" + codes + ("0Q" if set(codes) & set("Qqn") else ""))
        self.fields = tuple(name for name, _ in pairs)
        self.codes = tuple(code for _, code in pairs)
        self.size = layout.size
        self._layout = layout
        # One function with a keyword for each field, as a struct literal in C has: several times as
        # quick as gathering them in a dict.
        self._pack: Callable[..., bytes] = eval(  # of the names below only
            f"lambda {', '.join(f'{name}=0' for name in self.fields)}: pack(size,"
            f" {', '.join(self.fields)})",
            {"pack": layout.pack, "size": layout.size},
        )
        self._empty = self._pack()

    def __call__(self, **values: object) -> bytes:
        try:
            return self._pack(**values)
        except struct.error as reason:
            raise error(
                Status.ERR_ARGUMENT,
                f"a number is out of range: {reason}. Give numbers that are not negative, of 32"
                " bits, or of 64 for positions and bytes",
            ) from None

    def empty(self) -> bytearray:
        """Memory for a call to fill."""
        return bytearray(self._empty)

    def read(self, memory: bytes | bytearray) -> tuple[Any, ...]:
        """The values that a call filled in, in order, without struct_size."""
        return self._layout.unpack(memory)[1:]


config = Struct(layouts.config)
memory = Struct(layouts.memory)
stats = Struct(layouts.stats)
load = Struct(layouts.load)
backend = Struct(layouts.backend)
sink = Struct(layouts.sink)
source = Struct(layouts.source)
router = Struct(layouts.router)
logits = Struct(layouts.logits)
received = Struct(layouts.received)
issue_options = Struct(layouts.issue_options)
open_options = Struct(layouts.open_options)
coverage = Struct(layouts.coverage)
copy_options = Struct(layouts.copy_options)
view = Struct(layouts.view)
serialized = Struct(layouts.serialized)
splice = Struct(layouts.splice)
wire_description = Struct(layouts.wire_description)
wire_hint = Struct(layouts.wire_hint)
wire_report = Struct(layouts.wire_report)
wire_options = Struct(layouts.wire_options)
plan_config = Struct(layouts.plan_config)
plan_shape = Struct(layouts.plan_shape)
plan_report = Struct(layouts.plan_report)
plan_target = Struct(layouts.plan_target)
store_config = Struct(layouts.store_config)
store_counts = Struct(layouts.store_counts)
adoption = Struct(layouts.adoption)
sequence_config = Struct(layouts.sequence_config)
append_options = Struct(layouts.append_options)
append_report = Struct(layouts.append_report)

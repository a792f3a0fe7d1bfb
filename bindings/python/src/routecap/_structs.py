"""The structs of routecap.h: arrays of them as NumPy dtypes, single ones as bytes."""

import struct
from collections.abc import Callable
from operator import index
from typing import Any, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from ._constants import SpanFlag, Status, member
from ._errors import Error, error
from .names import Integers, SpanFlagName

# ---- Arrays


def _dtype(fields: str) -> "np.dtype[np.void]":
    return np.dtype([tuple(field.split(":")) for field in fields.split()], align=True)


span_dtype = _dtype(
    "request:u8 position:u8 position_end:u8 sink_row:u4 rows:u4 flags:u4 reserved:u4"
)
accept_dtype = _dtype("request:u8 step:u8 rows:u8 count:u8 status:i4 reserved:i4")
extract_dtype = _dtype(
    "request:u8 first:u8 rows:u8 mode:i4 flags:u4 routing:u8 status:i4 reserved:i4"
)
finish_dtype = _dtype("request:u8 rows:u8 routing:u8 status:i4 reserved:i4")
publish_dtype = _dtype("request:u8 first:u8 keys:u8 count:u8 status:i4 reserved:i4")
adopt_dtype = _dtype(
    "request:u8 first:u8 keys:u8 count:u8 rows:u8 found:u8 evicted:u8 not_published:u8 stale:u8 "
    "status:i4 reserved:i4"
)
missing_dtype = _dtype("first:u8 rows:u8 first_layer:u4 layers:u4 reason:i4 reserved:u4")
segment_dtype = _dtype("first:u8 rows:u8 ids:u8 validity:u8 tags:u8 tag:u8 reason:i4 reserved:u4")
layer_source_dtype = _dtype("layer:u4 reserved:u4 ids:u8 table:u8")
layer_stats_dtype = _dtype(
    "rows_written:u8 unwritten:u8 out_of_range:u8 duplicate:u8 silent_steps:u8"
)
layer_probe_dtype = _dtype(
    "found:u4 rows_unwritten:u4 rows_incomplete:u4 rows_written:u4 rows_out_of_range:u4"
    " rows_duplicate:u4 lowest:i4 highest:i4"
)
piece_dtype = _dtype("offset:u8 bytes:u8 source:i4 reserved:u4")
plan_range_dtype = _dtype("sample:u8 first:u8 rows:u8")
plan_run_dtype = _dtype(
    "sample:u8 first:u8 rows:u8 row:u8 step:u8 ordinal:u8 row_class:i4 reserved:u4"
)
sequence_span_dtype = _dtype("first:u8 rows:u8 call:u8 tag:u8 origin:u4 reserved:u4")


_MOST = {name: int(np.iinfo(span_dtype[name]).max) for name in span_dtype.names or ()}
_SPANS = "routecap.spans(request=[a, b], position=0, rows=4)"


class SpanColumns(TypedDict, total=False):
    """Columns of spans: each is an integer, for all spans, or a sequence with one for each."""

    request: Integers
    """Requests, or handles (Capturer.open_batch, Capturer.handles); 0, which is nobody's, unless
    given.
    """
    position: Integers
    """Position of the first row; default 0."""
    rows: Integers
    """Number of rows; default 1."""
    sink_row: Integers
    """The first; by default the spans take consecutive sink rows, from 0 on."""
    flags: SpanFlagName | Integers
    """SpanFlags, or the name of one for all spans; none unless given."""
    position_end: Integers
    """With "device_positions": one past the highest position; see routecap_span in the header."""


def spans(
    n: int | None = None,
    /,
    *,
    out: NDArray[np.void] | None = None,
    **columns: Unpack[SpanColumns],
) -> NDArray[np.void]:
    """An array of spans: `n` of them, or as many as the longest of its `columns` has (see
    SpanColumns).
    Without any column they are spans to be filled: of one row each, at sink row 0.

    out: spans to fill again, for the next step; columns that are not given stay as they are.
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
    return array


def _column(name: str, given: Any) -> NDArray[Any]:
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


def _no_number(name: str, what: str, value: Any) -> Error:
    wanted = "a Request or its handle" if name == "request" else "an integer"
    if name == "request" and isinstance(value, str):
        wanted += f", which Capturer.handles([{value!r}]) gives"
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


def expect_array(given: Any, name: str, form: str) -> None:
    """Refuse what is no array of the dtype that `form` names."""
    dtype, example = _FORMS[form]
    if getattr(given, "dtype", None) != dtype:
        raise error(
            Status.ERR_DTYPE,
            f"{name} is {what_it_is(given)}, where an array of routecap.{form} is expected: "
            f"{example}",
        )


def what_it_is(given: Any) -> str:
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

    def __call__(self, **values: Any) -> bytes:
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


config = Struct(
    "backend:i role:i device:i layers:I k:I experts:I rows:I slots:I sink_dtype:i flags:I"
    " id_space:i max_requests:I reserved:I budget_bytes:Q layer_map:Q layer_experts:Q"
    " layer_provenance:Q"
)
memory = Struct(
    "page_rows:I device_bytes:Q pinned_bytes:Q host_bytes:Q row_bytes:Q page_bytes:Q"
    " request_bytes:Q tag_bytes:Q"
)
stats = Struct(
    "silent_layers:I steps_issued:Q steps_landed:Q steps_lost:Q rows_issued:Q rows_in_flight:Q"
    " rows_provisional:Q rows_delivered:Q rows_missing:Q rows_lost:Q rows_late:Q rows_rejected:Q"
    " rows_unplaced:Q rows_refused:Q rows_skipped:Q rows_overlapped:Q rows_mismatched:Q"
    " rows_dropped:Q cells_conflicting:Q cells_unwritten:Q cells_out_of_range:Q cells_duplicate:Q"
    " requests_open:Q steps_in_flight:Q bytes_in_use:Q bytes_peak:Q bytes_budget:Q"
)
load = Struct(
    "layers:I experts:I reserved:I steps:Q first_step:Q last_step:Q rows_prefill:Q rows_decode:Q"
)
backend = Struct("available:i devices:i reserved:i detail:Q")
sink = Struct("dtype:i ids:Q rows:I k:I row_stride:q layer_stride:q")
source = Struct(
    "dtype:i ids:Q row_stride:q column_stride:q rows:I k_source:I live_rows:Q row_base:Q"
    " row_index:Q first_row:I offset:i table:Q table_size:I flags:I"
)
router = Struct(
    "score:i group_score:i flags:I groups:I groups_kept:I scale:f floor:f bias:Q bias_dtype:i"
    " hash_tokens:I hash_table:Q"
)
logits = Struct(
    "dtype:i logits:Q row_stride:q column_stride:q rows:I first_row:I live_rows:Q row_base:Q"
    " row_index:Q tokens:Q tokens_dtype:i experts:I weights:Q weights_stride:q"
)
received = Struct(
    "flags:I ranks:I rank:I experts:I k:I tokens_per_rank:I rows:I live_rows:Q metadata:Q ids:Q"
    " expert_ends:Q expert_alignment:I expanded_rows:I dtype:i reserved:I global_ids:Q executed:Q"
    " ignored:Q"
)
issue_options = Struct("snapshot:i tag:Q positions:Q positions_dtype:i reserved:I")
open_options = Struct("policy:i")
coverage = Struct(
    "layers:I first:Q rows:Q length:Q rows_complete:Q rows_partial:Q rows_empty:Q cells_missing:Q"
    " blocks:Q cells_recomputed:Q"
)
copy_options = Struct(
    "dtype:i order:i flags:I first_layer:I layers:I row_stride:q layer_stride:q fill:q"
)
view = Struct(
    "dtype:i layers:I k:I experts:I validity_bytes:I id_space:i complete:i first:Q rows:Q"
    " layer_map:Q layer_experts:Q segments:Q segment_size:Q segment_count:Q layer_provenance:Q"
)
serialized = Struct(
    "version:I bytes:Q header_bytes:Q first:Q rows:Q layers:I k:I dtype:i id_space:i"
)
splice = Struct("pieces:I bytes:Q header_bytes:Q")
wire_description = Struct("format:i version:I facts:I name:Q aliases:Q ending:Q")
wire_info = Struct("format:i version:I certain:i facts:I dtype:i columns:I k:I first:Q rows:Q")
wire_hint = Struct(
    "layers:I columns:I k:I experts:I dtype:i column_kind:i id_space:i flags:I reserved:I first:Q"
    " rows:Q tag:Q budget_bytes:Q layer_map:Q layer_experts:Q"
)
wire_report = Struct(
    "format:i version:I dtype:i facts:I lost:I columns:I columns_left_out:I columns_in_use:I"
    " layers_empty:I bytes:Q first:Q rows:Q cells_valid:Q cells_negative:Q cells_zero:Q"
    " cells_out_of_range:Q cells_duplicate:Q rows_zero:Q rows_repeated:Q rows_counting:Q"
    " largest_id:q"
)
wire_options = Struct("format:i dtype:i column_kind:i columns:I allow:I fill:q")
plan_config = Struct(
    "layout:i context:i context_size:I context_rank:I tensor_size:I tensor_rank:I flags:I samples:Q"
    " lengths:Q cu_lengths:Q needed:Q padded_lengths:Q starts:Q width:Q align:Q align_total:Q"
    " least_total:Q align_rank:Q layers:I k:I experts:I expert_parallel:I layer_map:Q"
    " layer_experts:Q dtype:i order:i fill:i lost:i fill_value:q lost_value:q"
)
plan_shape = Struct(
    "layers:I k:I dtype:i order:i reserved:I rows:Q rows_needed:Q rows_not_needed:Q rows_padding:Q"
    " total_rows:Q width:Q ranges:Q runs:Q ids_bytes:Q classes_bytes:Q packed_bytes:Q"
)
plan_report = Struct(
    "layers:I rows:Q rows_valid:Q rows_partial:Q rows_lost:Q rows_not_needed:Q rows_padding:Q"
    " cells_lost:Q"
)
plan_target = Struct(
    "backend:i device:i reserved:I scratch:Q scratch_bytes:Q dst:Q dst_bytes:Q classes:Q"
    " classes_bytes:Q"
)
store_config = Struct("flags:I block_rows:I key_bytes:I budget_bytes:Q generation:Q")
store_counts = Struct(
    "block_rows:I key_bytes:I flags:I generation:Q blocks:Q blocks_in_flight:Q blocks_retained:Q"
    " bytes_in_use:Q bytes_peak:Q bytes_budget:Q blocks_published:Q blocks_repeated:Q"
    " blocks_empty:Q blocks_refused:Q blocks_stale:Q blocks_adopted:Q blocks_absent:Q"
    " blocks_mismatched:Q blocks_replaced:Q blocks_evicted:Q blocks_imported:Q rows_copied:Q"
)
adoption = Struct("reserved:I rows:Q found:Q evicted:Q not_published:Q stale:Q")
sequence_config = Struct(
    "layers:I k:I experts:I id_space:i reserved:I budget_bytes:Q layer_map:Q layer_experts:Q"
)
append_options = Struct("policy:i prompt_tokens:Q call:Q tag:Q origin:I flags:I")
append_report = Struct(
    "reserved:I call:Q tokens:Q tokens_common:Q tokens_cut:Q rows_cut:Q rows_overlap:Q"
    " rows_differed:Q first_differed:Q rows_taken:Q rows_boundary:Q rows_filled:Q rows_replaced:Q"
    " rows_beyond:Q rows_missing:Q bytes:Q"
)

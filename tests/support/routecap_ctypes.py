"""The C API of routecap for Python tests: constants, structs and functions of routecap.h under their names without the prefix.

A test loads the library once and calls its functions as attributes of a Library:

    lib = Library(path)
    config = Config()
    lib.expect(lib.config_init(byref(config), sizeof(config)))

What is missing here is the function table, which ctypes does not need.
"""
import ctypes
from ctypes import POINTER, c_char_p, c_float, c_int32, c_int64, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p, sizeof

# ---- Constants --------------------------------------------------------------------------------

OK, INCOMPLETE, LOST, PENDING, PARTIAL, NOT_CAPTURED = range(6)
(ERR_ARGUMENT, ERR_STRUCT_SIZE, ERR_UNKNOWN_LAYER, ERR_UNKNOWN_REQUEST, ERR_UNKNOWN_STEP, ERR_OUT_OF_RANGE, ERR_CAPACITY, ERR_OVERLAP,
 ERR_DTYPE, ERR_SHAPE_MISMATCH, ERR_BUFFER_TOO_SMALL) = range(-100, -111, -1)
(ERR_STATE, ERR_DISABLED, ERR_NOT_READY, ERR_INCOMPLETE, ERR_CONFLICT, ERR_FORKED, ERR_CAPTURING, ERR_RECOMPUTED) = range(-200, -208, -1)
ERR_NO_MEMORY, ERR_TOO_MANY_REQUESTS, ERR_THREAD = range(-300, -303, -1)
ERR_NO_BACKEND, ERR_DRIVER_TOO_OLD, ERR_DEVICE, ERR_DEVICE_LOST = range(-400, -404, -1)
ERR_INTERNAL = -500

ALL, LANDED = 0xFFFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFE
MAX_LAYERS, MAX_K, MAX_EXPERTS, MAX_ROUTED_EXPERTS, MAX_GROUPS, MAX_ROWS, MAX_SLOTS = 1024, 32, 32768, 1024, 32, 1048576, 64
MAX_POSITION, MAX_RECEIVED = 1 << 40, 67108864

DTYPE_U8, DTYPE_I16, DTYPE_U16, DTYPE_I32, DTYPE_U32, DTYPE_I64, DTYPE_ID16_BF16 = range(1, 8)
DTYPE_F32, DTYPE_F16, DTYPE_BF16 = range(16, 19)
BACKEND_HOST, BACKEND_CUDA = 1, 2
ROLE_OWNER, ROLE_MIRROR, ROLE_DISABLED = range(3)
ID_SPACE_LOGICAL, ID_SPACE_PHYSICAL = range(2)
PROVENANCE_CAPTURED, PROVENANCE_RECOMPUTED = range(2)
CONFIG_COMPARE, CONFIG_EXTERNAL_SINK, CONFIG_MANUAL_PROGRESS = 1, 2, 4

SOURCE_OVERLAP = 1
SCORE_LOGIT, SCORE_SOFTMAX, SCORE_SIGMOID, SCORE_SQRT_SOFTPLUS = range(4)
GROUP_MAX, GROUP_TOP2, GROUP_TOP2_DISTINCT = range(3)
ROUTER_RANK_LOGITS, ROUTER_RENORMALIZE, ROUTER_FLOOR_MAX, ROUTER_SIGMOID_TANH, ROUTER_GROUPS_ZERO = 1, 2, 4, 8, 16
(METHOD_SOFTMAX, METHOD_SOFTMAX_RENORMALIZE, METHOD_TOPK_SOFTMAX, METHOD_TOPK, METHOD_TOPK_SIGMOID, METHOD_SIGMOID,
 METHOD_SIGMOID_RENORMALIZE, METHOD_DEEPSEEK_V2, METHOD_DEEPSEEK_V3, METHOD_DEEPSEEK_V4, METHOD_ERNIE) = range(1, 12)
(PROBE_SILENT, PROBE_INCOMPLETE, PROBE_OUT_OF_RANGE, PROBE_DUPLICATE, PROBE_SEQUENCE, PROBE_CONSTANT,
 PROBE_REPEATED) = 1, 2, 4, 8, 16, 32, 64
RECEIVED_EXPANDED, RECEIVED_GLOBAL = 1, 2

SPAN_SPECULATIVE, SPAN_DEVICE_POSITIONS = 1, 2
SNAPSHOT_TAKEN, SNAPSHOT_MAKE = range(2)
POLICY_KEEP, POLICY_REPLACE = range(2)
MISSING_ABSENT, MISSING_UNWRITTEN, MISSING_OUT_OF_RANGE, MISSING_DUPLICATE = range(1, 5)
EXTRACT_SHARE, EXTRACT_TAKE, EXTRACT_COPY = range(3)
STRICT, ALLOW_RECOMPUTED = 1, 2
ORDER_ROW_MAJOR, ORDER_LAYER_MAJOR = range(2)

# ---- Structs ----------------------------------------------------------------------------------


class Config(ctypes.Structure):
    _fields_ = [("struct_size", c_uint32), ("backend", c_int32), ("role", c_int32), ("device", c_int32), ("layers", c_uint32),
                ("k", c_uint32), ("experts", c_uint32), ("rows", c_uint32), ("slots", c_uint32), ("sink_dtype", c_int32),
                ("flags", c_uint32), ("id_space", c_int32), ("max_requests", c_uint32), ("reserved", c_uint32), ("budget_bytes", c_uint64),
                ("layer_map", POINTER(c_int32)), ("layer_experts", POINTER(c_uint32)), ("layer_provenance", POINTER(c_int32))]


class Memory(ctypes.Structure):
    _fields_ = [("struct_size", c_uint32), ("page_rows", c_uint32)] + [(name, c_uint64) for name in (
        "device_bytes", "pinned_bytes", "host_bytes", "row_bytes", "page_bytes", "request_bytes")]


class Stats(ctypes.Structure):
    _fields_ = [("struct_size", c_uint32), ("silent_layers", c_uint32)] + [(name, c_uint64) for name in (
        "steps_issued", "steps_landed", "steps_lost", "rows_issued", "rows_in_flight", "rows_provisional", "rows_delivered", "rows_missing",
        "rows_lost", "rows_late", "rows_rejected", "rows_unplaced", "rows_refused", "rows_skipped", "rows_overlapped", "rows_mismatched",
        "rows_dropped", "cells_conflicting", "cells_unwritten", "cells_out_of_range", "cells_duplicate", "requests_open", "steps_in_flight",
        "bytes_in_use", "bytes_peak", "bytes_budget")]


class LayerStats(ctypes.Structure):
    _fields_ = [(name, c_uint64) for name in ("rows_written", "unwritten", "out_of_range", "duplicate", "silent_steps")]


class Backend(ctypes.Structure):
    _fields_ = [("struct_size", c_uint32), ("available", c_int32), ("devices", c_int32), ("reserved", c_int32), ("detail", c_char_p)]


class Sink(ctypes.Structure):
    _fields_ = [("struct_size", c_uint32), ("dtype", c_int32), ("ids", c_void_p), ("rows", c_uint32), ("k", c_uint32),
                ("row_stride", c_int64), ("layer_stride", c_int64)]


class Source(ctypes.Structure):
    _fields_ = [("struct_size", c_uint32), ("dtype", c_int32), ("ids", c_void_p), ("row_stride", c_int64), ("column_stride", c_int64),
                ("rows", c_uint32), ("k_source", c_uint32), ("live_rows", c_void_p), ("row_base", c_void_p), ("row_index", c_void_p),
                ("first_row", c_uint32), ("offset", c_int32), ("table", c_void_p), ("table_size", c_uint32), ("flags", c_uint32)]


class LayerSource(ctypes.Structure):
    _fields_ = [("layer", c_uint32), ("reserved", c_uint32), ("ids", c_void_p), ("table", c_void_p)]


class Router(ctypes.Structure):
    _fields_ = [("struct_size", c_uint32), ("score", c_int32), ("group_score", c_int32), ("flags", c_uint32), ("groups", c_uint32),
                ("groups_kept", c_uint32), ("scale", c_float), ("floor", c_float), ("bias", c_void_p), ("bias_dtype", c_int32),
                ("hash_tokens", c_uint32), ("hash_table", c_void_p)]


class Logits(ctypes.Structure):
    _fields_ = [("struct_size", c_uint32), ("dtype", c_int32), ("logits", c_void_p), ("row_stride", c_int64), ("column_stride", c_int64),
                ("rows", c_uint32), ("first_row", c_uint32), ("live_rows", c_void_p), ("row_base", c_void_p), ("row_index", c_void_p),
                ("tokens", c_void_p), ("tokens_dtype", c_int32), ("experts", c_uint32), ("weights", c_void_p), ("weights_stride", c_int64)]


class LayerProbe(ctypes.Structure):
    _fields_ = [(name, c_uint32) for name in ("found", "rows_unwritten", "rows_incomplete", "rows_written", "rows_out_of_range",
                                              "rows_duplicate")] + [("lowest", c_int32), ("highest", c_int32)]


class Received(ctypes.Structure):
    _fields_ = [(name, c_uint32) for name in ("struct_size", "flags", "ranks", "rank", "experts", "k", "tokens_per_rank", "rows")] + [
        (name, c_void_p) for name in ("live_rows", "metadata", "ids", "expert_ends")] + [
        ("expert_alignment", c_uint32), ("expanded_rows", c_uint32), ("dtype", c_int32), ("reserved", c_uint32)] + [
        (name, c_void_p) for name in ("global_ids", "executed", "ignored")]


class Span(ctypes.Structure):
    _fields_ = [("request", c_uint64), ("position", c_uint64), ("position_end", c_uint64), ("sink_row", c_uint32), ("rows", c_uint32),
                ("flags", c_uint32), ("reserved", c_uint32)]


class IssueOptions(ctypes.Structure):
    _fields_ = [("struct_size", c_uint32), ("snapshot", c_int32), ("tag", c_uint64), ("positions", c_void_p), ("positions_dtype", c_int32),
                ("reserved", c_uint32)]


class OpenOptions(ctypes.Structure):
    _fields_ = [("struct_size", c_uint32), ("policy", c_int32)]


class AcceptItem(ctypes.Structure):
    _fields_ = [("request", c_uint64), ("step", c_uint64), ("rows", POINTER(c_uint32)), ("count", c_uint64), ("status", c_int32),
                ("reserved", c_int32)]


class Missing(ctypes.Structure):
    _fields_ = [("first", c_uint64), ("rows", c_uint64), ("first_layer", c_uint32), ("layers", c_uint32), ("reason", c_int32),
                ("reserved", c_uint32)]


class Coverage(ctypes.Structure):
    _fields_ = [("struct_size", c_uint32), ("layers", c_uint32)] + [(name, c_uint64) for name in (
        "first", "rows", "length", "rows_complete", "rows_partial", "rows_empty", "cells_missing", "blocks", "cells_recomputed")]


class ExtractItem(ctypes.Structure):
    _fields_ = [("request", c_uint64), ("first", c_uint64), ("rows", c_uint64), ("mode", c_int32), ("flags", c_uint32),
                ("routing", c_void_p), ("status", c_int32), ("reserved", c_int32)]


class CopyOptions(ctypes.Structure):
    _fields_ = [("struct_size", c_uint32), ("dtype", c_int32), ("order", c_int32), ("flags", c_uint32), ("first_layer", c_uint32),
                ("layers", c_uint32), ("row_stride", c_int64), ("layer_stride", c_int64), ("fill", c_int64)]


class FinishItem(ctypes.Structure):
    _fields_ = [("request", c_uint64), ("rows", c_uint64), ("routing", c_void_p), ("status", c_int32), ("reserved", c_int32)]


class Segment(ctypes.Structure):
    _fields_ = [("first", c_uint64), ("rows", c_uint64), ("ids", c_void_p), ("validity", POINTER(c_uint8)), ("tags", POINTER(c_uint64)),
                ("tag", c_uint64)]


class View(ctypes.Structure):
    _fields_ = [("struct_size", c_uint32), ("dtype", c_int32), ("layers", c_uint32), ("k", c_uint32), ("experts", c_uint32),
                ("validity_bytes", c_uint32), ("id_space", c_int32), ("complete", c_int32), ("first", c_uint64), ("rows", c_uint64),
                ("layer_map", POINTER(c_int32)), ("layer_experts", POINTER(c_uint32)), ("segments", POINTER(Segment)),
                ("segment_size", c_size_t), ("segment_count", c_size_t), ("layer_provenance", POINTER(c_int32))]


# ---- Functions --------------------------------------------------------------------------------

CAPTURER = ROUTING = STREAM = c_void_p
FUNCTIONS = {  # name without prefix: result, arguments
    "version": (c_uint32, []),
    "status_name": (c_char_p, [c_int32]),
    "last_error": (c_char_p, []),
    "backend_info": (c_int32, [c_int32, POINTER(Backend)]),
    "config_init": (c_int32, [POINTER(Config), c_size_t]),
    "config_memory": (c_int32, [POINTER(Config), POINTER(Memory)]),
    "capturer_create": (c_int32, [POINTER(Config), POINTER(CAPTURER)]),
    "capturer_destroy": (None, [CAPTURER]),
    "capturer_stats": (c_int32, [CAPTURER, POINTER(Stats)]),
    "capturer_layer_stats": (c_int32, [CAPTURER, POINTER(LayerStats), c_size_t, c_size_t]),
    "capturer_progress": (c_int32, [CAPTURER]),
    "sink_bind": (c_int32, [CAPTURER, c_uint32, c_uint32, POINTER(Sink)]),
    "sink_layer": (c_int32, [CAPTURER, c_uint32, POINTER(Sink)]),
    "layer_record": (c_int32, [CAPTURER, c_uint32, POINTER(Source), STREAM]),
    "layers_record": (c_int32, [CAPTURER, POINTER(Source), POINTER(LayerSource), c_size_t, c_size_t, STREAM]),
    "router_init": (c_int32, [POINTER(Router), c_size_t, c_int32]),
    "layer_route": (c_int32, [CAPTURER, c_uint32, POINTER(Router), POINTER(Logits), STREAM]),
    "received_read": (c_int32, [CAPTURER, c_uint32, POINTER(Received), STREAM]),
    "received_merge": (c_int32, [POINTER(POINTER(c_int32)), c_size_t, c_size_t, POINTER(c_int32)]),
    "capturer_probe": (c_int32, [CAPTURER, c_uint32, POINTER(LayerProbe), c_size_t, c_size_t, STREAM]),
    "step_begin": (c_int32, [CAPTURER, c_uint32, STREAM]),
    "step_snapshot": (c_int32, [CAPTURER, STREAM]),
    "step_issue": (c_int32, [CAPTURER, POINTER(Span), c_size_t, c_size_t, POINTER(IssueOptions), POINTER(c_int32), POINTER(c_uint64),
                             STREAM]),
    "step_discard": (c_int32, [CAPTURER, STREAM]),
    "step_poll": (c_int32, [CAPTURER, c_uint64]),
    "step_finalize": (c_int32, [CAPTURER, c_uint64, c_int64, POINTER(c_uint64)]),
    "request_open": (c_int32, [CAPTURER, POINTER(OpenOptions), POINTER(c_uint64), c_size_t]),
    "request_accept": (c_int32, [CAPTURER, c_uint64, c_uint64, POINTER(c_uint32), c_size_t]),
    "request_accept_batch": (c_int32, [CAPTURER, POINTER(AcceptItem), c_size_t, c_size_t]),
    "request_truncate": (c_int32, [CAPTURER, c_uint64, c_uint64]),
    "request_fork": (c_int32, [CAPTURER, c_uint64, c_uint64, POINTER(c_uint64)]),
    "request_attach": (c_int32, [CAPTURER, c_uint64, ROUTING, c_uint64]),
    "request_coverage": (c_int32, [CAPTURER, c_uint64, c_uint64, c_uint64, POINTER(Coverage), POINTER(Missing), c_size_t, c_size_t]),
    "request_extract": (c_int32, [CAPTURER, c_uint64, c_uint64, c_uint64, c_int32, c_uint32, POINTER(ROUTING)]),
    "request_extract_batch": (c_int32, [CAPTURER, POINTER(ExtractItem), c_size_t, c_size_t]),
    "copy_options_init": (c_int32, [POINTER(CopyOptions), c_size_t]),
    "request_extract_into": (c_int32, [CAPTURER, c_uint64, c_uint64, c_uint64, POINTER(CopyOptions), c_void_p, c_size_t, c_void_p, c_size_t,
                                       POINTER(c_uint64)]),
    "request_finish": (c_int32, [CAPTURER, c_uint64, c_uint64, POINTER(ROUTING)]),
    "request_finish_batch": (c_int32, [CAPTURER, POINTER(FinishItem), c_size_t, c_size_t]),
    "request_close": (c_int32, [CAPTURER, c_uint64]),
    "request_close_batch": (c_int32, [CAPTURER, POINTER(c_uint64), POINTER(c_int32), c_size_t]),
    "routing_wait": (c_int32, [ROUTING, c_int64]),
    "routing_poll": (c_int32, [ROUTING]),
    "routing_view": (c_int32, [ROUTING, POINTER(View)]),
    "routing_coverage": (c_int32, [ROUTING, POINTER(Coverage), POINTER(Missing), c_size_t, c_size_t]),
    "routing_split": (c_int32, [ROUTING, c_uint64, c_uint64, POINTER(ROUTING), POINTER(ROUTING)]),
    "routing_slice": (c_int32, [ROUTING, c_uint64, c_uint64, POINTER(ROUTING)]),
    "routing_merge": (c_int32, [POINTER(ROUTING), c_size_t, c_uint32, POINTER(ROUTING)]),
    "routing_copy_to": (c_int32, [ROUTING, POINTER(CopyOptions), c_void_p, c_size_t, c_void_p, c_size_t, POINTER(c_uint64)]),
    "routing_retain": (c_int32, [ROUTING]),
    "routing_free": (None, [ROUTING]),
}


class Library:
    """Functions of the library as attributes. ctypes lets other Python threads run during a call."""

    def __init__(self, path=None):
        if path is not None:
            self.load(path)

    def load(self, path):
        loaded = ctypes.CDLL(path)
        for name, (result, arguments) in FUNCTIONS.items():
            function = getattr(loaded, "routecap_" + name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    def name_of(self, status):
        return self.status_name(status).decode()

    def expect(self, status, expected=OK, what="call"):
        """The status of a call, which must be the expected one."""
        if status != expected:
            raise AssertionError(f"{what}: {self.name_of(status)} ({status}) instead of {self.name_of(expected)} ({expected}); "
                                 f"last error: {self.last_error().decode()!r}")
        return status

    def config(self, **fields):
        """A configuration with the defaults and these fields."""
        config = Config()
        self.expect(self.config_init(config, sizeof(Config)), what="config_init")
        for name, value in fields.items():
            setattr(config, name, value)
        return config

    def copy_options(self, **fields):
        """Copy options with the defaults and these fields."""
        options = CopyOptions()
        self.expect(self.copy_options_init(options, sizeof(CopyOptions)), what="copy_options_init")
        for name, value in fields.items():
            setattr(options, name, value)
        return options

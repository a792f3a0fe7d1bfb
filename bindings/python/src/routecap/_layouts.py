"""The fields of the structs of routecap.h, with the codes of their types: those of NumPy for what
arrays have, otherwise those of the module struct, without struct_size.
"""

# Generated from the headers: run python3 dev/generate. Do not edit.
config = (
    "backend:i role:i device:i layers:I k:I experts:I rows:I slots:I sink_dtype:i flags:I "
    "id_space:i max_requests:I weights_dtype:i budget_bytes:Q layer_map:Q layer_experts:Q "
    "layer_provenance:Q layer_k:Q layer_min_k:Q layer_visit:Q"
)
span = "request:u8 position:u8 position_end:u8 sink_row:u4 rows:u4 flags:u4 reserved:u4"
issue_options = "snapshot:i tag:Q positions:Q positions_dtype:i reserved:I"
memory = (
    "page_rows:I device_bytes:Q pinned_bytes:Q host_bytes:Q row_bytes:Q page_bytes:Q "
    "request_bytes:Q"
)
backend = "available:i devices:i reserved:i detail:Q"
stats = (
    "silent_layers:I steps_issued:Q steps_landed:Q steps_lost:Q rows_issued:Q rows_in_flight:Q "
    "rows_provisional:Q rows_delivered:Q rows_missing:Q rows_lost:Q rows_late:Q rows_rejected:Q "
    "rows_unplaced:Q rows_refused:Q rows_skipped:Q rows_shared:Q rows_overlapped:Q "
    "rows_mismatched:Q rows_dropped:Q cells_conflicting:Q cells_unwritten:Q cells_out_of_range:Q "
    "cells_duplicate:Q requests_open:Q steps_in_flight:Q bytes_in_use:Q bytes_peak:Q "
    "bytes_budget:Q"
)
layer_stats = "rows_written:u8 unwritten:u8 out_of_range:u8 duplicate:u8 silent_steps:u8"
sink = (
    "dtype:i ids:Q rows:I k:I row_stride:q layer_stride:q ids_bytes:Q weights_dtype:i reserved:I "
    "weights:Q weights_bytes:Q"
)
source = (
    "dtype:i ids:Q ids_bytes:Q row_stride:q column_stride:q rows:I k_source:I live_rows:Q "
    "row_base:Q row_index:Q first_row:I offset:i table:Q table_size:I flags:I none:i "
    "weights_dtype:i weights:Q weights_row_stride:q weights_bytes:Q"
)
layer_source = "layer:u4 reserved:u4 ids:u8 table:u8 weights:u8"
router = (
    "score:i group_score:i flags:I groups:I groups_kept:I scale:f floor:f bias:Q bias_dtype:i "
    "hash_tokens:I hash_table:Q"
)
logits = (
    "dtype:i logits:Q row_stride:q column_stride:q rows:I first_row:I live_rows:Q row_base:Q "
    "row_index:Q tokens:Q tokens_dtype:i experts:I weights:Q weights_stride:q"
)
layer_probe = (
    "found:u4 rows_unwritten:u4 rows_incomplete:u4 rows_written:u4 rows_out_of_range:u4 "
    "rows_duplicate:u4 lowest:i4 highest:i4"
)
missing = "first:u8 rows:u8 first_layer:u4 layers:u4 reason:i4 reserved:u4"
coverage = (
    "layers:I first:Q rows:Q length:Q rows_complete:Q rows_partial:Q rows_empty:Q cells_missing:Q "
    "blocks:Q cells_recomputed:Q cells_weighted:Q"
)
copy_options = (
    "dtype:i order:i flags:I first_layer:I layers:I row_stride:q layer_stride:q fill:q none:q"
)
open_options = "policy:i"
accept_item = "request:u8 step:u8 rows:u8 count:u8 status:i4 reserved:i4"
finish_item = "request:u8 rows:u8 routing:u8 status:i4 reserved:i4"
extract_item = "request:u8 first:u8 rows:u8 mode:i4 flags:u4 routing:u8 status:i4 reserved:i4"
segment = (
    "first:u8 rows:u8 ids:u8 validity:u8 tags:u8 tag:u8 reason:i4 reserved:u4 weights:u8 "
    "weights_validity:u8"
)
view = (
    "dtype:i layers:I k:I experts:I validity_bytes:I id_space:i complete:i first:Q rows:Q "
    "row_stride:Q layer_map:Q layer_experts:Q segments:Q segment_size:Q segment_count:Q "
    "layer_provenance:Q layer_k:Q layer_min_k:Q layer_visit:Q weights_dtype:i reserved:I"
)
serialized = (
    "version:I bytes:Q header_bytes:Q first:Q rows:Q layers:I k:I dtype:i id_space:i "
    "weights_dtype:i reserved:I"
)
piece = "offset:u8 bytes:u8 source:i4 reserved:u4"
splice = "pieces:I bytes:Q header_bytes:Q"
wire_description = "format:i version:I facts:I name:Q aliases:Q ending:Q"
wire_hint = (
    "layers:I columns:I k:I experts:I dtype:i column_kind:i id_space:i flags:I reserved:I first:Q "
    "rows:Q tag:Q budget_bytes:Q layer_map:Q layer_experts:Q"
)
wire_report = (
    "format:i version:I dtype:i facts:I lost:I columns:I columns_left_out:I columns_in_use:I "
    "layers_empty:I bytes:Q first:Q rows:Q cells_valid:Q cells_negative:Q cells_zero:Q "
    "cells_out_of_range:Q cells_duplicate:Q rows_zero:Q rows_repeated:Q rows_counting:Q "
    "largest_id:q"
)
wire_options = "format:i dtype:i column_kind:i columns:I allow:I fill:q"
sequence_config = (
    "layers:I k:I experts:I id_space:i weights_dtype:i budget_bytes:Q layer_map:Q layer_experts:Q "
    "layer_k:Q layer_min_k:Q layer_visit:Q"
)
append_options = "policy:i prompt_tokens:Q call:Q tag:Q origin:I flags:I"
append_report = (
    "reserved:I call:Q tokens:Q tokens_common:Q tokens_cut:Q rows_cut:Q rows_overlap:Q "
    "rows_differed:Q first_differed:Q rows_taken:Q rows_boundary:Q rows_filled:Q rows_replaced:Q "
    "rows_beyond:Q rows_missing:Q bytes:Q"
)
sequence_span = "first:u8 rows:u8 call:u8 tag:u8 origin:u4 reserved:u4"
store_config = "flags:I block_rows:I key_bytes:I budget_bytes:Q generation:Q"
store_counts = (
    "block_rows:I key_bytes:I flags:I generation:Q blocks:Q blocks_in_flight:Q blocks_retained:Q "
    "bytes_in_use:Q bytes_peak:Q bytes_budget:Q blocks_published:Q blocks_repeated:Q "
    "blocks_empty:Q blocks_refused:Q blocks_stale:Q blocks_adopted:Q blocks_absent:Q "
    "blocks_mismatched:Q blocks_replaced:Q blocks_evicted:Q rows_copied:Q"
)
adoption = "reserved:I rows:Q found:Q evicted:Q not_published:Q stale:Q"
publish_item = "request:u8 first:u8 keys:u8 count:u8 status:i4 reserved:i4"
adopt_item = (
    "request:u8 first:u8 keys:u8 count:u8 rows:u8 found:u8 evicted:u8 not_published:u8 stale:u8 "
    "status:i4 reserved:i4"
)
plan_config = (
    "layout:i context:i context_size:I context_rank:I tensor_size:I tensor_rank:I flags:I "
    "samples:Q lengths:Q cu_lengths:Q needed:Q padded_lengths:Q starts:Q width:Q align:Q "
    "align_total:Q least_total:Q align_rank:Q layers:I k:I experts:I expert_parallel:I layer_map:Q "
    "layer_experts:Q layer_k:Q layer_min_k:Q layer_visit:Q dtype:i order:i fill:i lost:i "
    "fill_value:q lost_value:q none_value:q"
)
plan_shape = (
    "layers:I k:I dtype:i order:i reserved:I rows:Q rows_needed:Q rows_not_needed:Q rows_padding:Q "
    "total_rows:Q width:Q ranges:Q ids_bytes:Q classes_bytes:Q packed_bytes:Q"
)
plan_range = "sample:u8 first:u8 rows:u8"
plan_source = "sample:u8 routing:u8"
plan_report = (
    "layers:I rows:Q rows_valid:Q rows_partial:Q rows_lost:Q rows_not_needed:Q rows_padding:Q "
    "cells_lost:Q"
)
plan_target = (
    "backend:i device:i reserved:I scratch:Q scratch_bytes:Q dst:Q dst_bytes:Q classes:Q "
    "classes_bytes:Q"
)
load = "layers:I experts:I reserved:I steps:Q first_step:Q last_step:Q rows_prefill:Q rows_decode:Q"
received_counts = (
    "tokens:u8 columns:u8 equal:u8 replaced:u8 swapped:u8 lost:u8 tokens_lost:u8 extra:u8 "
    "ignored:u8"
)
received = (
    "flags:I ranks:I rank:I experts:I k:I tokens_per_rank:I rows:I live_rows:Q metadata:Q ids:Q "
    "expert_ends:Q expert_alignment:I expanded_rows:I dtype:i tokens:I topk_ids:Q executed:Q "
    "counts:Q"
)

// Generated from the headers: run python3 dev/generate. Do not edit.
// Lists of what the headers declare: X(...) is expanded for each.
#pragma once

// clang-format off
// X(name), in the order of the table.
#define ROUTECAP_FUNCTIONS(X) \
    X(version) \
    X(status_name) \
    X(last_error) \
    X(config_init) \
    X(capturer_create) \
    X(capturer_destroy) \
    X(step_begin) \
    X(step_snapshot) \
    X(step_issue) \
    X(step_discard) \
    X(step_poll) \
    X(step_finalize) \
    X(config_memory) \
    X(backend_info) \
    X(capturer_stats) \
    X(capturer_layer_stats) \
    X(capturer_progress) \
    X(sink_layer) \
    X(sink_bind) \
    X(layer_record) \
    X(layers_record) \
    X(router_init) \
    X(layer_route) \
    X(step_arrive) \
    X(capturer_probe) \
    X(copy_options_init) \
    X(request_open) \
    X(request_accept) \
    X(request_accept_batch) \
    X(request_truncate) \
    X(request_fork) \
    X(request_attach) \
    X(request_finish) \
    X(request_finish_batch) \
    X(request_close) \
    X(request_close_batch) \
    X(request_coverage) \
    X(request_extract) \
    X(request_extract_batch) \
    X(request_extract_into) \
    X(routing_wait) \
    X(routing_poll) \
    X(routing_view) \
    X(routing_coverage) \
    X(routing_copy_to) \
    X(routing_copy_weights) \
    X(routing_split) \
    X(routing_slice) \
    X(routing_merge) \
    X(routing_retain) \
    X(routing_free) \
    X(routing_serialize) \
    X(routing_deserialize) \
    X(routing_import) \
    X(serialized_info) \
    X(serialized_splice) \
    X(serialized_slice) \
    X(wire_describe) \
    X(wire_find) \
    X(wire_decode) \
    X(wire_decoder_create) \
    X(wire_decoder_write) \
    X(wire_decoder_finish) \
    X(wire_decoder_free) \
    X(wire_encode) \
    X(sequence_create) \
    X(sequence_free) \
    X(sequence_append) \
    X(sequence_truncate) \
    X(sequence_fork) \
    X(sequence_routing) \
    X(sequence_spans) \
    X(sequence_tokens) \
    X(sequence_report) \
    X(sequence_serialize) \
    X(sequence_deserialize) \
    X(store_config_init) \
    X(store_create) \
    X(store_free) \
    X(store_stats) \
    X(store_advance) \
    X(request_publish) \
    X(request_adopt) \
    X(request_publish_batch) \
    X(request_adopt_batch) \
    X(key_chain) \
    X(store_contains) \
    X(store_retain) \
    X(store_release) \
    X(store_evict) \
    X(plan_config_init) \
    X(plan_create) \
    X(plan_free) \
    X(plan_describe) \
    X(plan_ranges) \
    X(plan_gather) \
    X(plan_gather_values) \
    X(plan_gather_weights) \
    X(plan_scatter) \
    X(plan_pack) \
    X(plan_unpack) \
    X(capturer_load) \
    X(set_log) \
    X(received_read) \
    X(received_compare)

// X(ROUTECAP_NAME).
#define ROUTECAP_STATUSES(X) \
    X(ROUTECAP_OK) \
    X(ROUTECAP_INCOMPLETE) \
    X(ROUTECAP_LOST) \
    X(ROUTECAP_PENDING) \
    X(ROUTECAP_PARTIAL) \
    X(ROUTECAP_NOT_CAPTURED) \
    X(ROUTECAP_ERR_ARGUMENT) \
    X(ROUTECAP_ERR_STRUCT_SIZE) \
    X(ROUTECAP_ERR_UNKNOWN_LAYER) \
    X(ROUTECAP_ERR_UNKNOWN_REQUEST) \
    X(ROUTECAP_ERR_UNKNOWN_STEP) \
    X(ROUTECAP_ERR_OUT_OF_RANGE) \
    X(ROUTECAP_ERR_CAPACITY) \
    X(ROUTECAP_ERR_OVERLAP) \
    X(ROUTECAP_ERR_DTYPE) \
    X(ROUTECAP_ERR_SHAPE_MISMATCH) \
    X(ROUTECAP_ERR_BUFFER_TOO_SMALL) \
    X(ROUTECAP_ERR_FORMAT) \
    X(ROUTECAP_ERR_LOSSY) \
    X(ROUTECAP_ERR_STATE) \
    X(ROUTECAP_ERR_DISABLED) \
    X(ROUTECAP_ERR_NOT_READY) \
    X(ROUTECAP_ERR_INCOMPLETE) \
    X(ROUTECAP_ERR_CONFLICT) \
    X(ROUTECAP_ERR_FORKED) \
    X(ROUTECAP_ERR_CAPTURING) \
    X(ROUTECAP_ERR_RECOMPUTED) \
    X(ROUTECAP_ERR_NOT_BEGUN) \
    X(ROUTECAP_ERR_NOT_SNAPSHOT) \
    X(ROUTECAP_ERR_SNAPSHOT_TWICE) \
    X(ROUTECAP_ERR_ISSUED_TWICE) \
    X(ROUTECAP_ERR_ROWS_NOT_BEGUN) \
    X(ROUTECAP_ERR_TWO_THREADS) \
    X(ROUTECAP_ERR_NO_MEMORY) \
    X(ROUTECAP_ERR_TOO_MANY_REQUESTS) \
    X(ROUTECAP_ERR_THREAD) \
    X(ROUTECAP_ERR_NO_BACKEND) \
    X(ROUTECAP_ERR_DRIVER_TOO_OLD) \
    X(ROUTECAP_ERR_DEVICE) \
    X(ROUTECAP_ERR_DEVICE_LOST) \
    X(ROUTECAP_ERR_INTERNAL)

// X(NAME, rank, of_cells), by their numbers from 1 on. A cell with two reasons keeps
// the one of the higher rank. of_cells: it is said of single cells of a row.
#define ROUTECAP_REASONS(X) \
    X(ABSENT, 1, false) \
    X(UNWRITTEN, 8, true) \
    X(OUT_OF_RANGE, 9, true) \
    X(DUPLICATE, 10, true) \
    X(LOST, 6, false) \
    X(REFUSED, 5, false) \
    X(TAKEN, 7, false) \
    X(EVICTED, 3, false) \
    X(NOT_PUBLISHED, 2, false) \
    X(STALE, 4, false)

// X(NAME, name).
#define ROUTECAP_CONFIG_FLAGS(X) \
    X(COMPARE, compare) \
    X(EXTERNAL_SINK, external_sink) \
    X(MANUAL_PROGRESS, manual_progress) \
    X(MAY_LOSE, may_lose) \
    X(CHECKED, checked) \
    X(LOAD, load)

// X(field): those of routecap_stats that are counted, effects before causes. The
// others are computed when they are read.
#define ROUTECAP_COUNTERS(X) \
    X(cells_conflicting) \
    X(rows_dropped) \
    X(rows_mismatched) \
    X(rows_overlapped) \
    X(rows_shared) \
    X(rows_skipped) \
    X(rows_refused) \
    X(rows_unplaced) \
    X(rows_rejected) \
    X(rows_late) \
    X(rows_lost) \
    X(rows_missing) \
    X(rows_delivered) \
    X(rows_provisional) \
    X(rows_in_flight) \
    X(rows_issued) \
    X(steps_lost) \
    X(steps_landed) \
    X(silent_layers) \
    X(steps_issued)

// clang-format on

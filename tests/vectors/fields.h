// Generated from the headers: run python3 dev/generate. Do not edit.
// The fields of every struct, for filling it from a vector and for comparing it:
// fields(struct, f) calls f(name, field) for each, but for struct_size, pointers and
// requests; others(struct, f) for these two.
#pragma once

#include <routecap.h>

namespace vectors {

#define FIELD(name) f(#name, s.name)

template <class F>
void fields(routecap_config &s, F &&f) {
    FIELD(backend), FIELD(role), FIELD(device), FIELD(layers), FIELD(k), FIELD(experts),
    FIELD(rows), FIELD(slots), FIELD(sink_dtype), FIELD(flags), FIELD(id_space),
    FIELD(max_requests), FIELD(weights_dtype), FIELD(budget_bytes);
}
template <class F>
void others(routecap_config &s, F &&f) {
    FIELD(layer_map), FIELD(layer_experts), FIELD(layer_provenance), FIELD(layer_k),
    FIELD(layer_min_k), FIELD(layer_visit);
}
template <class F>
void fields(routecap_span &s, F &&f) {
    FIELD(position), FIELD(position_end), FIELD(sink_row), FIELD(rows), FIELD(flags),
    FIELD(reserved);
}
template <class F>
void others(routecap_span &s, F &&f) {
    FIELD(request);
}
template <class F>
void fields(routecap_issue_options &s, F &&f) {
    FIELD(snapshot), FIELD(tag), FIELD(positions_dtype), FIELD(reserved);
}
template <class F>
void others(routecap_issue_options &s, F &&f) {
    FIELD(positions);
}
template <class F>
void fields(routecap_memory &s, F &&f) {
    FIELD(page_rows), FIELD(device_bytes), FIELD(pinned_bytes), FIELD(host_bytes), FIELD(row_bytes),
    FIELD(page_bytes), FIELD(request_bytes);
}
template <class F>
void others(routecap_memory &, F &&) {}
template <class F>
void fields(routecap_backend &s, F &&f) {
    FIELD(available), FIELD(devices), FIELD(reserved);
}
template <class F>
void others(routecap_backend &s, F &&f) {
    FIELD(detail);
}
template <class F>
void fields(routecap_stats &s, F &&f) {
    FIELD(silent_layers), FIELD(steps_issued), FIELD(steps_landed), FIELD(steps_lost),
    FIELD(rows_issued), FIELD(rows_in_flight), FIELD(rows_provisional), FIELD(rows_delivered),
    FIELD(rows_missing), FIELD(rows_lost), FIELD(rows_late), FIELD(rows_rejected),
    FIELD(rows_unplaced), FIELD(rows_refused), FIELD(rows_skipped), FIELD(rows_shared),
    FIELD(rows_overlapped), FIELD(rows_mismatched), FIELD(rows_dropped), FIELD(cells_conflicting),
    FIELD(cells_unwritten), FIELD(cells_out_of_range), FIELD(cells_duplicate), FIELD(requests_open),
    FIELD(steps_in_flight), FIELD(bytes_in_use), FIELD(bytes_peak), FIELD(bytes_budget);
}
template <class F>
void others(routecap_stats &, F &&) {}
template <class F>
void fields(routecap_layer_stats &s, F &&f) {
    FIELD(rows_written), FIELD(unwritten), FIELD(out_of_range), FIELD(duplicate),
    FIELD(silent_steps);
}
template <class F>
void others(routecap_layer_stats &, F &&) {}
template <class F>
void fields(routecap_sink &s, F &&f) {
    FIELD(dtype), FIELD(rows), FIELD(k), FIELD(row_stride), FIELD(layer_stride), FIELD(ids_bytes),
    FIELD(weights_dtype), FIELD(reserved), FIELD(weights_bytes);
}
template <class F>
void others(routecap_sink &s, F &&f) {
    FIELD(ids), FIELD(weights);
}
template <class F>
void fields(routecap_source &s, F &&f) {
    FIELD(dtype), FIELD(ids_bytes), FIELD(row_stride), FIELD(column_stride), FIELD(rows),
    FIELD(k_source), FIELD(first_row), FIELD(offset), FIELD(table_size), FIELD(flags), FIELD(none),
    FIELD(weights_dtype), FIELD(weights_row_stride), FIELD(weights_bytes);
}
template <class F>
void others(routecap_source &s, F &&f) {
    FIELD(ids), FIELD(live_rows), FIELD(row_base), FIELD(row_index), FIELD(table), FIELD(weights);
}
template <class F>
void fields(routecap_layer_source &s, F &&f) {
    FIELD(layer), FIELD(reserved);
}
template <class F>
void others(routecap_layer_source &s, F &&f) {
    FIELD(ids), FIELD(table), FIELD(weights);
}
template <class F>
void fields(routecap_router &s, F &&f) {
    FIELD(score), FIELD(group_score), FIELD(flags), FIELD(groups), FIELD(groups_kept), FIELD(scale),
    FIELD(floor), FIELD(bias_dtype), FIELD(hash_tokens);
}
template <class F>
void others(routecap_router &s, F &&f) {
    FIELD(bias), FIELD(hash_table);
}
template <class F>
void fields(routecap_logits &s, F &&f) {
    FIELD(dtype), FIELD(row_stride), FIELD(column_stride), FIELD(rows), FIELD(first_row),
    FIELD(tokens_dtype), FIELD(experts), FIELD(weights_stride);
}
template <class F>
void others(routecap_logits &s, F &&f) {
    FIELD(logits), FIELD(live_rows), FIELD(row_base), FIELD(row_index), FIELD(tokens),
    FIELD(weights);
}
template <class F>
void fields(routecap_layer_probe &s, F &&f) {
    FIELD(found), FIELD(rows_unwritten), FIELD(rows_incomplete), FIELD(rows_written),
    FIELD(rows_out_of_range), FIELD(rows_duplicate), FIELD(lowest), FIELD(highest);
}
template <class F>
void others(routecap_layer_probe &, F &&) {}
template <class F>
void fields(routecap_missing &s, F &&f) {
    FIELD(first), FIELD(rows), FIELD(first_layer), FIELD(layers), FIELD(reason), FIELD(reserved);
}
template <class F>
void others(routecap_missing &, F &&) {}
template <class F>
void fields(routecap_coverage &s, F &&f) {
    FIELD(layers), FIELD(first), FIELD(rows), FIELD(length), FIELD(rows_complete),
    FIELD(rows_partial), FIELD(rows_empty), FIELD(cells_missing), FIELD(blocks),
    FIELD(cells_recomputed), FIELD(cells_weighted);
}
template <class F>
void others(routecap_coverage &, F &&) {}
template <class F>
void fields(routecap_copy_options &s, F &&f) {
    FIELD(dtype), FIELD(order), FIELD(flags), FIELD(first_layer), FIELD(layers), FIELD(row_stride),
    FIELD(layer_stride), FIELD(fill), FIELD(none);
}
template <class F>
void others(routecap_copy_options &, F &&) {}
template <class F>
void fields(routecap_open_options &s, F &&f) {
    FIELD(policy);
}
template <class F>
void others(routecap_open_options &, F &&) {}
template <class F>
void fields(routecap_accept_item &s, F &&f) {
    FIELD(step), FIELD(count), FIELD(status), FIELD(reserved);
}
template <class F>
void others(routecap_accept_item &s, F &&f) {
    FIELD(request), FIELD(rows);
}
template <class F>
void fields(routecap_finish_item &s, F &&f) {
    FIELD(rows), FIELD(status), FIELD(reserved);
}
template <class F>
void others(routecap_finish_item &s, F &&f) {
    FIELD(request), FIELD(routing);
}
template <class F>
void fields(routecap_extract_item &s, F &&f) {
    FIELD(first), FIELD(rows), FIELD(mode), FIELD(flags), FIELD(status), FIELD(reserved);
}
template <class F>
void others(routecap_extract_item &s, F &&f) {
    FIELD(request), FIELD(routing);
}
template <class F>
void fields(routecap_segment &s, F &&f) {
    FIELD(first), FIELD(rows), FIELD(tag), FIELD(reason), FIELD(reserved);
}
template <class F>
void others(routecap_segment &s, F &&f) {
    FIELD(ids), FIELD(validity), FIELD(tags), FIELD(weights), FIELD(weights_validity);
}
template <class F>
void fields(routecap_view &s, F &&f) {
    FIELD(dtype), FIELD(layers), FIELD(k), FIELD(experts), FIELD(validity_bytes), FIELD(id_space),
    FIELD(complete), FIELD(first), FIELD(rows), FIELD(row_stride), FIELD(segment_size),
    FIELD(segment_count), FIELD(weights_dtype), FIELD(reserved);
}
template <class F>
void others(routecap_view &s, F &&f) {
    FIELD(layer_map), FIELD(layer_experts), FIELD(segments), FIELD(layer_provenance),
    FIELD(layer_k), FIELD(layer_min_k), FIELD(layer_visit);
}
template <class F>
void fields(routecap_serialized &s, F &&f) {
    FIELD(version), FIELD(bytes), FIELD(header_bytes), FIELD(first), FIELD(rows), FIELD(layers),
    FIELD(k), FIELD(dtype), FIELD(id_space), FIELD(weights_dtype), FIELD(reserved);
}
template <class F>
void others(routecap_serialized &, F &&) {}
template <class F>
void fields(routecap_piece &s, F &&f) {
    FIELD(offset), FIELD(bytes), FIELD(source), FIELD(reserved);
}
template <class F>
void others(routecap_piece &, F &&) {}
template <class F>
void fields(routecap_splice &s, F &&f) {
    FIELD(pieces), FIELD(bytes), FIELD(header_bytes);
}
template <class F>
void others(routecap_splice &, F &&) {}
template <class F>
void fields(routecap_wire_description &s, F &&f) {
    FIELD(format), FIELD(version), FIELD(facts);
}
template <class F>
void others(routecap_wire_description &s, F &&f) {
    FIELD(name), FIELD(aliases), FIELD(ending);
}
template <class F>
void fields(routecap_wire_hint &s, F &&f) {
    FIELD(layers), FIELD(columns), FIELD(k), FIELD(experts), FIELD(dtype), FIELD(column_kind),
    FIELD(id_space), FIELD(flags), FIELD(reserved), FIELD(first), FIELD(rows), FIELD(tag),
    FIELD(budget_bytes);
}
template <class F>
void others(routecap_wire_hint &s, F &&f) {
    FIELD(layer_map), FIELD(layer_experts);
}
template <class F>
void fields(routecap_wire_report &s, F &&f) {
    FIELD(format), FIELD(version), FIELD(dtype), FIELD(facts), FIELD(lost), FIELD(columns),
    FIELD(columns_left_out), FIELD(columns_in_use), FIELD(layers_empty), FIELD(bytes), FIELD(first),
    FIELD(rows), FIELD(cells_valid), FIELD(cells_negative), FIELD(cells_zero),
    FIELD(cells_out_of_range), FIELD(cells_duplicate), FIELD(rows_zero), FIELD(rows_repeated),
    FIELD(rows_counting), FIELD(largest_id);
}
template <class F>
void fields(routecap_wire_options &s, F &&f) {
    FIELD(format), FIELD(dtype), FIELD(column_kind), FIELD(columns), FIELD(allow), FIELD(fill);
}
template <class F>
void fields(routecap_sequence_config &s, F &&f) {
    FIELD(layers), FIELD(k), FIELD(experts), FIELD(id_space), FIELD(weights_dtype),
    FIELD(budget_bytes);
}
template <class F>
void others(routecap_sequence_config &s, F &&f) {
    FIELD(layer_map), FIELD(layer_experts), FIELD(layer_k), FIELD(layer_min_k), FIELD(layer_visit);
}
template <class F>
void fields(routecap_append_options &s, F &&f) {
    FIELD(policy), FIELD(prompt_tokens), FIELD(call), FIELD(tag), FIELD(origin), FIELD(flags);
}
template <class F>
void others(routecap_append_options &, F &&) {}
template <class F>
void fields(routecap_append_report &s, F &&f) {
    FIELD(reserved), FIELD(call), FIELD(tokens), FIELD(tokens_common), FIELD(tokens_cut),
    FIELD(rows_cut), FIELD(rows_overlap), FIELD(rows_differed), FIELD(first_differed),
    FIELD(rows_taken), FIELD(rows_boundary), FIELD(rows_filled), FIELD(rows_replaced),
    FIELD(rows_beyond), FIELD(rows_missing), FIELD(bytes);
}
template <class F>
void others(routecap_append_report &, F &&) {}
template <class F>
void fields(routecap_sequence_span &s, F &&f) {
    FIELD(first), FIELD(rows), FIELD(call), FIELD(tag), FIELD(origin), FIELD(reserved);
}
template <class F>
void others(routecap_sequence_span &, F &&) {}
template <class F>
void fields(routecap_store_config &s, F &&f) {
    FIELD(flags), FIELD(block_rows), FIELD(key_bytes), FIELD(budget_bytes), FIELD(generation);
}
template <class F>
void others(routecap_store_config &, F &&) {}
template <class F>
void fields(routecap_store_counts &s, F &&f) {
    FIELD(block_rows), FIELD(key_bytes), FIELD(flags), FIELD(generation), FIELD(blocks),
    FIELD(blocks_in_flight), FIELD(blocks_retained), FIELD(bytes_in_use), FIELD(bytes_peak),
    FIELD(bytes_budget), FIELD(blocks_published), FIELD(blocks_repeated), FIELD(blocks_empty),
    FIELD(blocks_refused), FIELD(blocks_stale), FIELD(blocks_adopted), FIELD(blocks_absent),
    FIELD(blocks_mismatched), FIELD(blocks_replaced), FIELD(blocks_evicted), FIELD(rows_copied);
}
template <class F>
void others(routecap_store_counts &, F &&) {}
template <class F>
void fields(routecap_adoption &s, F &&f) {
    FIELD(reserved), FIELD(rows), FIELD(found), FIELD(evicted), FIELD(not_published), FIELD(stale);
}
template <class F>
void others(routecap_adoption &, F &&) {}
template <class F>
void fields(routecap_publish_item &s, F &&f) {
    FIELD(first), FIELD(count), FIELD(status), FIELD(reserved);
}
template <class F>
void others(routecap_publish_item &s, F &&f) {
    FIELD(request), FIELD(keys);
}
template <class F>
void fields(routecap_adopt_item &s, F &&f) {
    FIELD(first), FIELD(count), FIELD(rows), FIELD(found), FIELD(evicted), FIELD(not_published),
    FIELD(stale), FIELD(status), FIELD(reserved);
}
template <class F>
void others(routecap_adopt_item &s, F &&f) {
    FIELD(request), FIELD(keys);
}
template <class F>
void fields(routecap_plan_config &s, F &&f) {
    FIELD(layout), FIELD(context), FIELD(context_size), FIELD(context_rank), FIELD(tensor_size),
    FIELD(tensor_rank), FIELD(flags), FIELD(samples), FIELD(width), FIELD(align),
    FIELD(align_total), FIELD(least_total), FIELD(align_rank), FIELD(layers), FIELD(k),
    FIELD(experts), FIELD(expert_parallel), FIELD(dtype), FIELD(order), FIELD(fill), FIELD(lost),
    FIELD(fill_value), FIELD(lost_value), FIELD(none_value);
}
template <class F>
void others(routecap_plan_config &s, F &&f) {
    FIELD(lengths), FIELD(cu_lengths), FIELD(needed), FIELD(padded_lengths), FIELD(starts),
    FIELD(layer_map), FIELD(layer_experts), FIELD(layer_k), FIELD(layer_min_k), FIELD(layer_visit);
}
template <class F>
void fields(routecap_plan_shape &s, F &&f) {
    FIELD(layers), FIELD(k), FIELD(dtype), FIELD(order), FIELD(reserved), FIELD(rows),
    FIELD(rows_needed), FIELD(rows_not_needed), FIELD(rows_padding), FIELD(total_rows),
    FIELD(width), FIELD(ranges), FIELD(ids_bytes), FIELD(classes_bytes), FIELD(packed_bytes);
}
template <class F>
void fields(routecap_plan_range &s, F &&f) {
    FIELD(sample), FIELD(first), FIELD(rows);
}
template <class F>
void fields(routecap_plan_source &s, F &&f) {
    FIELD(sample);
}
template <class F>
void others(routecap_plan_source &s, F &&f) {
    FIELD(routing);
}
template <class F>
void fields(routecap_plan_report &s, F &&f) {
    FIELD(layers), FIELD(rows), FIELD(rows_valid), FIELD(rows_partial), FIELD(rows_lost),
    FIELD(rows_not_needed), FIELD(rows_padding), FIELD(cells_lost);
}
template <class F>
void fields(routecap_plan_target &s, F &&f) {
    FIELD(backend), FIELD(device), FIELD(reserved), FIELD(scratch_bytes), FIELD(dst_bytes),
    FIELD(classes_bytes);
}
template <class F>
void others(routecap_plan_target &s, F &&f) {
    FIELD(scratch), FIELD(dst), FIELD(classes);
}
template <class F>
void fields(routecap_load &s, F &&f) {
    FIELD(layers), FIELD(experts), FIELD(reserved), FIELD(steps), FIELD(first_step),
    FIELD(last_step), FIELD(rows_prefill), FIELD(rows_decode);
}
template <class F>
void others(routecap_load &, F &&) {}
template <class F>
void fields(routecap_received_counts &s, F &&f) {
    FIELD(tokens), FIELD(columns), FIELD(equal), FIELD(replaced), FIELD(swapped), FIELD(lost),
    FIELD(tokens_lost), FIELD(extra), FIELD(ignored);
}
template <class F>
void others(routecap_received_counts &, F &&) {}
template <class F>
void fields(routecap_received &s, F &&f) {
    FIELD(flags), FIELD(ranks), FIELD(rank), FIELD(experts), FIELD(k), FIELD(tokens_per_rank),
    FIELD(rows), FIELD(expert_alignment), FIELD(expanded_rows), FIELD(dtype), FIELD(tokens);
}
template <class F>
void others(routecap_received &s, F &&f) {
    FIELD(live_rows), FIELD(metadata), FIELD(ids), FIELD(expert_ends), FIELD(topk_ids),
    FIELD(executed), FIELD(counts);
}

#undef FIELD

}  // namespace vectors

// Generated from the headers: run python3 dev/generate. Do not edit.
// Every call that a vector may have, made by the signature of the function: see
// arguments.h.
#pragma once

// clang-format off
#include "arguments.h"

namespace vectors {

inline const std::map<std::string, void (*)(Replay &r)> &calls() {
    static const std::map<std::string, void (*)(Replay &r)> kCalls = {
        {"config_init",
         [](Replay &r) {
             Filled<routecap_config> config(r, "config");
             r.returned(routecap_config_init(config, config.size()), config);
         }},
        {"capturer_create",
         [](Replay &r) {
             Given<routecap_config> config(r, "config");
             Made<routecap_capturer> capturer(r, "capturer");
             r.returned(routecap_capturer_create(config, capturer), config, capturer);
         }},
        {"capturer_destroy",
         [](Replay &r) {
             routecap_capturer_destroy(r.object<routecap_capturer>("capturer"));
             r.forget<routecap_capturer>("capturer");
         }},
        {"step_begin",
         [](Replay &r) {
             r.returned(routecap_step_begin(r.object<routecap_capturer>("capturer"),
                 r.number<uint32_t>("rows"), r.stream()));
         }},
        {"step_snapshot",
         [](Replay &r) {
             r.returned(routecap_step_snapshot(r.object<routecap_capturer>("capturer"),
                 r.stream()));
         }},
        {"step_issue",
         [](Replay &r) {
             Structs<routecap_span> spans(r, "spans", "span_size", "count");
             Given<routecap_issue_options> options(r, "options");
             Statuses status(r, "status", spans.count());
             Made<routecap_step> step(r, "step");
             r.returned(routecap_step_issue(r.object<routecap_capturer>("capturer"), spans.data(),
                 spans.size(), spans.count(), options, status.data(), step, r.stream()), spans,
                 options, status, step);
         }},
        {"step_discard",
         [](Replay &r) {
             r.returned(routecap_step_discard(r.object<routecap_capturer>("capturer"), r.stream()));
         }},
        {"step_poll",
         [](Replay &r) {
             r.returned(routecap_step_poll(r.object<routecap_capturer>("capturer"),
                 r.number<routecap_step>("step")));
         }},
        {"step_finalize",
         [](Replay &r) {
             Out<uint64_t> conflicting(r, "conflicting");
             r.returned(routecap_step_finalize(r.object<routecap_capturer>("capturer"),
                 r.number<routecap_step>("step"), r.number<int64_t>("timeout_ns"), conflicting),
                 conflicting);
         }},
        {"config_memory",
         [](Replay &r) {
             Given<routecap_config> config(r, "config");
             Filled<routecap_memory> memory(r, "memory");
             r.returned(routecap_config_memory(config, memory), config, memory);
         }},
        {"backend_info",
         [](Replay &r) {
             Filled<routecap_backend> info(r, "info");
             r.returned(routecap_backend_info(r.number<routecap_backend_kind>("backend"), info),
                 info);
         }},
        {"capturer_stats",
         [](Replay &r) {
             Filled<routecap_stats> stats(r, "stats");
             r.returned(routecap_capturer_stats(r.object<routecap_capturer>("capturer"), stats),
                 stats);
         }},
        {"capturer_layer_stats",
         [](Replay &r) {
             Structs<routecap_layer_stats> stats(r, "stats", "stat_size", "count");
             r.returned(routecap_capturer_layer_stats(r.object<routecap_capturer>("capturer"),
                 stats.data(), stats.size(), stats.count()), stats);
         }},
        {"capturer_progress",
         [](Replay &r) {
             r.returned(routecap_capturer_progress(r.object<routecap_capturer>("capturer")));
         }},
        {"sink_layer",
         [](Replay &r) {
             Filled<routecap_sink> sink(r, "sink");
             r.returned(routecap_sink_layer(r.object<routecap_capturer>("capturer"),
                 r.number<uint32_t>("layer"), sink), sink);
         }},
        {"sink_bind",
         [](Replay &r) {
             Given<routecap_sink> sink(r, "sink");
             r.returned(routecap_sink_bind(r.object<routecap_capturer>("capturer"),
                 r.number<uint32_t>("first_layer"), r.number<uint32_t>("layers"), sink), sink);
         }},
        {"layer_record",
         [](Replay &r) {
             Given<routecap_source> source(r, "source");
             r.returned(routecap_layer_record(r.object<routecap_capturer>("capturer"),
                 r.number<uint32_t>("layer"), source, r.stream()), source);
         }},
        {"layers_record",
         [](Replay &r) {
             Given<routecap_source> source(r, "source");
             Structs<routecap_layer_source> layers(r, "layers", "layer_size", "count");
             r.returned(routecap_layers_record(r.object<routecap_capturer>("capturer"), source,
                 layers.data(), layers.size(), layers.count(), r.stream()), source, layers);
         }},
        {"router_init",
         [](Replay &r) {
             Filled<routecap_router> router(r, "router");
             r.returned(routecap_router_init(router, router.size(),
                 r.number<routecap_method>("method")), router);
         }},
        {"layer_route",
         [](Replay &r) {
             Given<routecap_router> router(r, "router");
             Given<routecap_logits> logits(r, "logits");
             r.returned(routecap_layer_route(r.object<routecap_capturer>("capturer"),
                 r.number<uint32_t>("layer"), router, logits, r.stream()), router, logits);
         }},
        {"step_arrive",
         [](Replay &r) {
             Given<routecap_sink> rows(r, "rows");
             r.returned(routecap_step_arrive(r.object<routecap_capturer>("capturer"),
                 r.number<routecap_step>("step"), rows), rows);
         }},
        {"capturer_probe",
         [](Replay &r) {
             Structs<routecap_layer_probe> layers(r, "layers", "layer_size", "count");
             r.returned(routecap_capturer_probe(r.object<routecap_capturer>("capturer"),
                 r.number<uint32_t>("rows"), layers.data(), layers.size(), layers.count(),
                 r.stream()), layers);
         }},
        {"copy_options_init",
         [](Replay &r) {
             Filled<routecap_copy_options> options(r, "options");
             r.returned(routecap_copy_options_init(options, options.size()), options);
         }},
        {"request_open",
         [](Replay &r) {
             Given<routecap_open_options> options(r, "options");
             AllMade<routecap_request> requests(r, "requests", r.length("count", "requests"));
             r.returned(routecap_request_open(r.object<routecap_capturer>("capturer"), options,
                 requests.data(), requests.count()), options, requests);
         }},
        {"request_accept",
         [](Replay &r) {
             Numbers<uint32_t> rows(r, "rows");
             r.returned(routecap_request_accept(r.object<routecap_capturer>("capturer"),
                 r.number<routecap_request>("request"), r.number<routecap_step>("step"),
                 rows.data(), rows.count()), rows);
         }},
        {"request_accept_batch",
         [](Replay &r) {
             Structs<routecap_accept_item> items(r, "items", "item_size", "count");
             r.returned(routecap_request_accept_batch(r.object<routecap_capturer>("capturer"),
                 items.data(), items.size(), items.count()), items);
         }},
        {"request_truncate",
         [](Replay &r) {
             r.returned(routecap_request_truncate(r.object<routecap_capturer>("capturer"),
                 r.number<routecap_request>("request"), r.number<uint64_t>("rows")));
         }},
        {"request_fork",
         [](Replay &r) {
             Made<routecap_request> child(r, "child");
             r.returned(routecap_request_fork(r.object<routecap_capturer>("capturer"),
                 r.number<routecap_request>("request"), r.number<uint64_t>("rows"), child), child);
         }},
        {"request_attach",
         [](Replay &r) {
             r.returned(routecap_request_attach(r.object<routecap_capturer>("capturer"),
                 r.number<routecap_request>("request"), r.object<routecap_routing>("routing"),
                 r.number<uint64_t>("rows")));
         }},
        {"request_finish",
         [](Replay &r) {
             Made<routecap_routing> routing(r, "routing");
             r.returned(routecap_request_finish(r.object<routecap_capturer>("capturer"),
                 r.number<routecap_request>("request"), r.number<uint64_t>("rows"), routing),
                 routing);
         }},
        {"request_finish_batch",
         [](Replay &r) {
             Structs<routecap_finish_item> items(r, "items", "item_size", "count");
             r.returned(routecap_request_finish_batch(r.object<routecap_capturer>("capturer"),
                 items.data(), items.size(), items.count()), items);
         }},
        {"request_close",
         [](Replay &r) {
             r.returned(routecap_request_close(r.object<routecap_capturer>("capturer"),
                 r.number<routecap_request>("request")));
         }},
        {"request_close_batch",
         [](Replay &r) {
             Numbers<routecap_request> requests(r, "requests");
             Statuses status(r, "status", requests.count());
             r.returned(routecap_request_close_batch(r.object<routecap_capturer>("capturer"),
                 requests.data(), status.data(), requests.count()), requests, status);
         }},
        {"request_coverage",
         [](Replay &r) {
             Filled<routecap_coverage> coverage(r, "coverage");
             Structs<routecap_missing> missing(r, "missing", "missing_size", "capacity");
             r.returned(routecap_request_coverage(r.object<routecap_capturer>("capturer"),
                 r.number<routecap_request>("request"), r.number<uint64_t>("first"),
                 r.number<uint64_t>("rows"), coverage, missing.data(), missing.size(),
                 missing.count()), coverage, missing);
         }},
        {"request_extract",
         [](Replay &r) {
             Made<routecap_routing> routing(r, "routing");
             r.returned(routecap_request_extract(r.object<routecap_capturer>("capturer"),
                 r.number<routecap_request>("request"), r.number<uint64_t>("first"),
                 r.number<uint64_t>("rows"), r.number<routecap_extract_mode>("mode"),
                 r.number<routecap_read_flags>("flags"), routing), routing);
         }},
        {"request_extract_batch",
         [](Replay &r) {
             Structs<routecap_extract_item> items(r, "items", "item_size", "count");
             r.returned(routecap_request_extract_batch(r.object<routecap_capturer>("capturer"),
                 items.data(), items.size(), items.count()), items);
         }},
        {"request_extract_into",
         [](Replay &r) {
             Given<routecap_copy_options> options(r, "options");
             Buffer dst(r, "dst", "dst_bytes", false);
             Buffer mask(r, "mask", "mask_bytes", true);
             Out<uint64_t> needed(r, "needed");
             r.returned(routecap_request_extract_into(r.object<routecap_capturer>("capturer"),
                 r.number<routecap_request>("request"), r.number<uint64_t>("first"),
                 r.number<uint64_t>("rows"), options, dst.data(), dst.count(), mask.bytes(),
                 mask.count(), needed), options, dst, mask, needed);
         }},
        {"routing_wait",
         [](Replay &r) {
             r.returned(routecap_routing_wait(r.object<routecap_routing>("routing"),
                 r.number<int64_t>("timeout_ns")));
         }},
        {"routing_poll",
         [](Replay &r) {
             r.returned(routecap_routing_poll(r.object<routecap_routing>("routing")));
         }},
        {"routing_view",
         [](Replay &r) {
             Filled<routecap_view> view(r, "view");
             r.returned(routecap_routing_view(r.object<routecap_routing>("routing"), view), view);
         }},
        {"routing_coverage",
         [](Replay &r) {
             Filled<routecap_coverage> coverage(r, "coverage");
             Structs<routecap_missing> missing(r, "missing", "missing_size", "capacity");
             r.returned(routecap_routing_coverage(r.object<routecap_routing>("routing"), coverage,
                 missing.data(), missing.size(), missing.count()), coverage, missing);
         }},
        {"routing_copy_to",
         [](Replay &r) {
             Given<routecap_copy_options> options(r, "options");
             Buffer dst(r, "dst", "dst_bytes", false);
             Buffer mask(r, "mask", "mask_bytes", true);
             Out<uint64_t> needed(r, "needed");
             r.returned(routecap_routing_copy_to(r.object<routecap_routing>("routing"), options,
                 dst.data(), dst.count(), mask.bytes(), mask.count(), needed), options, dst, mask,
                 needed);
         }},
        {"routing_copy_weights",
         [](Replay &r) {
             Given<routecap_copy_options> options(r, "options");
             Buffer dst(r, "dst", "dst_bytes", false);
             Buffer mask(r, "mask", "mask_bytes", true);
             Out<uint64_t> needed(r, "needed");
             r.returned(routecap_routing_copy_weights(r.object<routecap_routing>("routing"),
                 options, dst.data(), dst.count(), mask.bytes(), mask.count(), needed), options,
                 dst, mask, needed);
         }},
        {"routing_split",
         [](Replay &r) {
             Made<routecap_routing> prompt(r, "prompt");
             Made<routecap_routing> generated(r, "generated");
             r.returned(routecap_routing_split(r.object<routecap_routing>("routing"),
                 r.number<uint64_t>("prompt_tokens"), r.number<uint64_t>("generated_tokens"),
                 prompt, generated), prompt, generated);
         }},
        {"routing_slice",
         [](Replay &r) {
             Made<routecap_routing> slice(r, "slice");
             r.returned(routecap_routing_slice(r.object<routecap_routing>("routing"),
                 r.number<uint64_t>("first"), r.number<uint64_t>("rows"), slice), slice);
         }},
        {"routing_merge",
         [](Replay &r) {
             Objects<routecap_routing> routings(r, "routings");
             Made<routecap_routing> merged(r, "merged");
             r.returned(routecap_routing_merge(routings.data(), routings.count(),
                 r.number<uint32_t>("flags"), merged), routings, merged);
         }},
        {"routing_free",
         [](Replay &r) {
             routecap_routing_free(r.object<routecap_routing>("routing"));
             r.forget<routecap_routing>("routing");
         }},
        {"routing_serialize",
         [](Replay &r) {
             Buffer dst(r, "dst", "dst_bytes", false);
             Out<uint64_t> needed(r, "needed");
             r.returned(routecap_routing_serialize(r.object<routecap_routing>("routing"),
                 dst.data(), dst.count(), needed), dst, needed);
         }},
        {"routing_deserialize",
         [](Replay &r) {
             Bytes data(r, "data");
             Loan &loan = r.lend();
             Made<routecap_routing> routing(r, "routing");
             r.returned(routecap_routing_deserialize(data.data(), data.count(),
                 r.number<routecap_import_flags>("flags"), loan.release(), &loan, routing), data,
                 loan, routing);
         }},
        {"routing_import",
         [](Replay &r) {
             Given<routecap_view> view(r, "view");
             Loan &loan = r.lend();
             Made<routecap_routing> routing(r, "routing");
             r.returned(routecap_routing_import(view, r.number<routecap_import_flags>("flags"),
                 loan.release(), &loan, routing), view, loan, routing);
         }},
        {"serialized_info",
         [](Replay &r) {
             Bytes data(r, "data");
             Filled<routecap_serialized> info(r, "info");
             r.returned(routecap_serialized_info(data.data(), data.count(), info), data, info);
         }},
        {"sequence_create",
         [](Replay &r) {
             Given<routecap_sequence_config> config(r, "config");
             Made<routecap_sequence> sequence(r, "sequence");
             r.returned(routecap_sequence_create(config, sequence), config, sequence);
         }},
        {"sequence_free",
         [](Replay &r) {
             routecap_sequence_free(r.object<routecap_sequence>("sequence"));
             r.forget<routecap_sequence>("sequence");
         }},
        {"sequence_append",
         [](Replay &r) {
             Numbers<int32_t> tokens(r, "tokens");
             Given<routecap_append_options> options(r, "options");
             Filled<routecap_append_report> report(r, "report");
             r.returned(routecap_sequence_append(r.object<routecap_sequence>("sequence"),
                 tokens.data(), r.number<uint64_t>("token_start"), tokens.count(),
                 r.object<routecap_routing>("routing"), options, report), tokens, options, report);
         }},
        {"sequence_truncate",
         [](Replay &r) {
             r.returned(routecap_sequence_truncate(r.object<routecap_sequence>("sequence"),
                 r.number<uint64_t>("tokens")));
         }},
        {"sequence_fork",
         [](Replay &r) {
             Made<routecap_sequence> child(r, "child");
             r.returned(routecap_sequence_fork(r.object<routecap_sequence>("sequence"),
                 r.number<uint64_t>("tokens"), child), child);
         }},
        {"sequence_routing",
         [](Replay &r) {
             Made<routecap_routing> routing(r, "routing");
             r.returned(routecap_sequence_routing(r.object<routecap_sequence>("sequence"), routing),
                 routing);
         }},
        {"sequence_spans",
         [](Replay &r) {
             Structs<routecap_sequence_span> spans(r, "spans", "span_size", "capacity");
             Out<uint64_t> count(r, "count");
             r.returned(routecap_sequence_spans(r.object<routecap_sequence>("sequence"),
                 spans.data(), spans.size(), spans.count(), count), spans, count);
         }},
        {"sequence_tokens",
         [](Replay &r) {
             Written<int32_t> tokens(r, "tokens", r.length("capacity", "tokens"));
             Out<uint64_t> count(r, "count");
             r.returned(routecap_sequence_tokens(r.object<routecap_sequence>("sequence"),
                 r.number<uint64_t>("first"), tokens.data(), tokens.count(), count), tokens, count);
         }},
        {"sequence_report",
         [](Replay &r) {
             Filled<routecap_append_report> report(r, "report");
             r.returned(routecap_sequence_report(r.object<routecap_sequence>("sequence"), report),
                 report);
         }},
        {"sequence_serialize",
         [](Replay &r) {
             Buffer dst(r, "dst", "dst_bytes", false);
             Out<uint64_t> needed(r, "needed");
             r.returned(routecap_sequence_serialize(r.object<routecap_sequence>("sequence"),
                 r.number<routecap_sequence_flags>("flags"), dst.data(), dst.count(), needed), dst,
                 needed);
         }},
        {"sequence_deserialize",
         [](Replay &r) {
             Bytes data(r, "data");
             Made<routecap_sequence> sequence(r, "sequence");
             r.returned(routecap_sequence_deserialize(data.data(), data.count(),
                 r.number<uint64_t>("budget_bytes"), sequence), data, sequence);
         }},
        {"store_config_init",
         [](Replay &r) {
             Filled<routecap_store_config> config(r, "config");
             r.returned(routecap_store_config_init(config, config.size()), config);
         }},
        {"store_create",
         [](Replay &r) {
             Given<routecap_store_config> config(r, "config");
             Given<routecap_config> shape(r, "shape");
             Made<routecap_store> store(r, "store");
             r.returned(routecap_store_create(config, shape, store), config, shape, store);
         }},
        {"store_free",
         [](Replay &r) {
             routecap_store_free(r.object<routecap_store>("store"));
             r.forget<routecap_store>("store");
         }},
        {"store_stats",
         [](Replay &r) {
             Filled<routecap_store_counts> counts(r, "counts");
             r.returned(routecap_store_stats(r.object<routecap_store>("store"), counts), counts);
         }},
        {"store_advance",
         [](Replay &r) {
             r.returned(routecap_store_advance(r.object<routecap_store>("store"),
                 r.number<uint64_t>("generation")));
         }},
        {"request_publish",
         [](Replay &r) {
             Keys keys(r, "keys");
             r.returned(routecap_request_publish(r.object<routecap_capturer>("capturer"),
                 r.number<routecap_request>("request"), r.object<routecap_store>("store"),
                 r.number<uint64_t>("first"), keys.data(), keys.count(),
                 r.number<uint64_t>("generation")), keys);
         }},
        {"request_adopt",
         [](Replay &r) {
             Keys keys(r, "keys");
             Filled<routecap_adoption> adoption(r, "adoption");
             r.returned(routecap_request_adopt(r.object<routecap_capturer>("capturer"),
                 r.number<routecap_request>("request"), r.object<routecap_store>("store"),
                 r.number<uint64_t>("first"), keys.data(), keys.count(),
                 r.number<uint64_t>("generation"), adoption), keys, adoption);
         }},
        {"request_publish_batch",
         [](Replay &r) {
             Structs<routecap_publish_item> items(r, "items", "item_size", "count");
             r.returned(routecap_request_publish_batch(r.object<routecap_capturer>("capturer"),
                 r.object<routecap_store>("store"), items.data(), items.size(), items.count(),
                 r.number<uint64_t>("generation")), items);
         }},
        {"request_adopt_batch",
         [](Replay &r) {
             Structs<routecap_adopt_item> items(r, "items", "item_size", "count");
             r.returned(routecap_request_adopt_batch(r.object<routecap_capturer>("capturer"),
                 r.object<routecap_store>("store"), items.data(), items.size(), items.count(),
                 r.number<uint64_t>("generation")), items);
         }},
        {"key_chain",
         [](Replay &r) {
             Bytes seed(r, "seed");
             Numbers<int32_t> tokens(r, "tokens");
             Buffer keys(r, "keys", "keys_bytes", false);
             r.returned(routecap_key_chain(seed.data(), seed.count(), tokens.data(), tokens.count(),
                 r.number<uint32_t>("block_rows"), r.number<uint32_t>("key_bytes"), keys.data(),
                 keys.count()), seed, tokens, keys);
         }},
        {"store_contains",
         [](Replay &r) {
             Keys keys(r, "keys");
             Written<routecap_reason> reasons(r, "reasons", keys.count());
             Out<uint64_t> leading(r, "leading");
             r.returned(routecap_store_contains(r.object<routecap_store>("store"), keys.data(),
                 keys.count(), r.number<uint64_t>("generation"), reasons.data(), leading), keys,
                 reasons, leading);
         }},
        {"store_retain",
         [](Replay &r) {
             Keys keys(r, "keys");
             Written<routecap_reason> reasons(r, "reasons", keys.count());
             r.returned(routecap_store_retain(r.object<routecap_store>("store"), keys.data(),
                 keys.count(), reasons.data()), keys, reasons);
         }},
        {"store_release",
         [](Replay &r) {
             Keys keys(r, "keys");
             r.returned(routecap_store_release(r.object<routecap_store>("store"), keys.data(),
                 keys.count()), keys);
         }},
        {"store_evict",
         [](Replay &r) {
             Keys keys(r, "keys");
             Out<uint64_t> evicted(r, "evicted");
             r.returned(routecap_store_evict(r.object<routecap_store>("store"), keys.data(),
                 keys.count(), evicted), keys, evicted);
         }},
        {"capturer_load",
         [](Replay &r) {
             Filled<routecap_load> load(r, "load");
             Written<uint64_t> counts(r, "counts", r.length("count", "counts"));
             r.returned(routecap_capturer_load(r.object<routecap_capturer>("capturer"), load,
                 counts.data(), counts.count()), load, counts);
         }},
    };
    return kCalls;
}

}  // namespace vectors
// clang-format on

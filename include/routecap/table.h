/*
 * routecap, chapter 15: the function table. To load the library with dlopen, start here.
 *
 * Copyright 2026 The routecap authors. Licensed under the Apache License, Version 2.0; see LICENSE.
 *
 * A program that dlopens the library needs only one dlsym, of routecap_get_api, instead of one for
 * each function.
 */
#ifndef ROUTECAP_TABLE_H
#define ROUTECAP_TABLE_H

#include "capture.h"
#include "diagnostics.h"
#include "dispatch_check.h"
#include "load.h"
#include "plan.h"
#include "record.h"
#include "requests.h"
#include "sequence.h"
#include "serialized.h"
#include "store.h"
#include "wire.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * All functions except routecap_get_api, each under its name without the prefix. Later versions
 * only add entries, at the end.
 */
typedef struct routecap_api {
    size_t size;    /* size of this table in the loaded library, in bytes; entries beyond it do not
                       exist */
    uint32_t major; /* version of the loaded library */
    uint32_t minor;
    uint32_t (*version)(void);
    const char *(*status_name)(int32_t);
    const char *(*last_error)(void);
    int32_t (*backend_info)(int32_t, routecap_backend *);
    int32_t (*config_init)(routecap_config *, size_t);
    int32_t (*config_memory)(const routecap_config *, routecap_memory *);
    int32_t (*capturer_create)(const routecap_config *, routecap_capturer **);
    void (*capturer_destroy)(routecap_capturer *);
    int32_t (*capturer_stats)(const routecap_capturer *, routecap_stats *);
    int32_t (*capturer_layer_stats)(const routecap_capturer *, routecap_layer_stats *, size_t,
                                    size_t);
    int32_t (*capturer_progress)(routecap_capturer *);
    int32_t (*sink_bind)(routecap_capturer *, uint32_t, uint32_t, const routecap_sink *);
    int32_t (*sink_layer)(routecap_capturer *, uint32_t, routecap_sink *);
    int32_t (*layer_record)(routecap_capturer *, uint32_t, const routecap_source *,
                            routecap_stream);
    int32_t (*layers_record)(routecap_capturer *, const routecap_source *,
                             const routecap_layer_source *, size_t, size_t, routecap_stream);
    int32_t (*router_init)(routecap_router *, size_t, int32_t);
    int32_t (*layer_route)(routecap_capturer *, uint32_t, const routecap_router *,
                           const routecap_logits *, routecap_stream);
    int32_t (*capturer_probe)(routecap_capturer *, uint32_t, routecap_layer_probe *, size_t, size_t,
                              routecap_stream);
    int32_t (*received_read)(routecap_capturer *, uint32_t, const routecap_received *,
                             routecap_stream); /* experimental */
    int32_t (*received_merge)(const int32_t *const *, size_t, size_t, int32_t *); /* experimental */
    int32_t (*step_begin)(routecap_capturer *, uint32_t, routecap_stream);
    int32_t (*step_snapshot)(routecap_capturer *, routecap_stream);
    int32_t (*step_issue)(routecap_capturer *, const routecap_span *, size_t, size_t,
                          const routecap_issue_options *, int32_t *, routecap_step *,
                          routecap_stream);
    int32_t (*step_discard)(routecap_capturer *, routecap_stream);
    int32_t (*step_poll)(routecap_capturer *, routecap_step);
    int32_t (*step_finalize)(routecap_capturer *, routecap_step, int64_t, uint64_t *);
    int32_t (*request_open)(routecap_capturer *, const routecap_open_options *, routecap_request *,
                            size_t);
    int32_t (*request_accept)(routecap_capturer *, routecap_request, routecap_step,
                              const uint32_t *, size_t);
    int32_t (*request_accept_batch)(routecap_capturer *, routecap_accept_item *, size_t, size_t);
    int32_t (*request_truncate)(routecap_capturer *, routecap_request, uint64_t);
    int32_t (*request_fork)(routecap_capturer *, routecap_request, uint64_t, routecap_request *);
    int32_t (*request_attach)(routecap_capturer *, routecap_request, const routecap_routing *,
                              uint64_t);
    int32_t (*request_coverage)(routecap_capturer *, routecap_request, uint64_t, uint64_t,
                                routecap_coverage *, routecap_missing *, size_t, size_t);
    int32_t (*request_extract)(routecap_capturer *, routecap_request, uint64_t, uint64_t, int32_t,
                               uint32_t, routecap_routing **);
    int32_t (*request_extract_batch)(routecap_capturer *, routecap_extract_item *, size_t, size_t);
    int32_t (*copy_options_init)(routecap_copy_options *, size_t);
    int32_t (*request_extract_into)(routecap_capturer *, routecap_request, uint64_t, uint64_t,
                                    const routecap_copy_options *, void *, size_t, uint8_t *,
                                    size_t, uint64_t *);
    int32_t (*request_finish)(routecap_capturer *, routecap_request, uint64_t, routecap_routing **);
    int32_t (*request_finish_batch)(routecap_capturer *, routecap_finish_item *, size_t, size_t);
    int32_t (*request_close)(routecap_capturer *, routecap_request);
    int32_t (*request_close_batch)(routecap_capturer *, const routecap_request *, int32_t *,
                                   size_t);
    int32_t (*routing_wait)(const routecap_routing *, int64_t);
    int32_t (*routing_poll)(const routecap_routing *);
    int32_t (*routing_view)(const routecap_routing *, routecap_view *);
    int32_t (*routing_coverage)(const routecap_routing *, routecap_coverage *, routecap_missing *,
                                size_t, size_t);
    int32_t (*routing_split)(const routecap_routing *, uint64_t, uint64_t, routecap_routing **,
                             routecap_routing **);
    int32_t (*routing_slice)(const routecap_routing *, uint64_t, uint64_t, routecap_routing **);
    int32_t (*routing_merge)(const routecap_routing *const *, size_t, uint32_t,
                             routecap_routing **);
    int32_t (*routing_copy_to)(const routecap_routing *, const routecap_copy_options *, void *,
                               size_t, uint8_t *, size_t, uint64_t *);
    int32_t (*routing_retain)(const routecap_routing *);
    void (*routing_free)(routecap_routing *);
    int32_t (*routing_serialize)(const routecap_routing *, uint32_t, void *, size_t, uint64_t *);
    int32_t (*routing_deserialize)(const void *, size_t, uint32_t, routecap_release, void *,
                                   routecap_routing **);
    int32_t (*routing_import)(const routecap_view *, uint32_t, routecap_release, void *,
                              routecap_routing **);
    int32_t (*serialized_info)(const void *, size_t, routecap_serialized *);
    int32_t (*serialized_splice)(const void *, size_t, const void *, size_t, uint64_t, void *,
                                 size_t, routecap_piece *, size_t, size_t, routecap_splice *);
    /* Since 1.1. */
    int32_t (*wire_describe)(int32_t, routecap_wire_description *);
    int32_t (*wire_find)(const char *, int32_t *);
    int32_t (*wire_probe)(const void *, size_t, routecap_wire_info *);
    int32_t (*wire_decode)(const void *, size_t, int32_t, const routecap_wire_hint *,
                           routecap_wire_report *, routecap_routing **);
    int32_t (*wire_decode_into)(const void *, size_t, int32_t, const routecap_wire_hint *,
                                const routecap_copy_options *, void *, size_t, uint8_t *, size_t,
                                uint64_t *, routecap_wire_report *);
    int32_t (*wire_decoder_create)(int32_t, const routecap_wire_hint *, routecap_wire_decoder **);
    int32_t (*wire_decoder_write)(routecap_wire_decoder *, const void *, size_t);
    int32_t (*wire_decoder_finish)(routecap_wire_decoder *, routecap_wire_report *,
                                   routecap_routing **);
    void (*wire_decoder_free)(routecap_wire_decoder *);
    int32_t (*wire_encode)(const routecap_routing *, const routecap_wire_options *, void *, size_t,
                           uint64_t *, routecap_wire_report *);
    int32_t (*wire_splice)(int32_t, const void *, size_t, const routecap_wire_hint *, const void *,
                           size_t, const routecap_wire_hint *, uint64_t, void *, size_t,
                           uint64_t *);
    /* Sequences. */
    int32_t (*sequence_create)(const routecap_sequence_config *, routecap_sequence **);
    void (*sequence_free)(routecap_sequence *);
    int32_t (*sequence_append)(routecap_sequence *, const int32_t *, uint64_t, uint64_t,
                               const routecap_routing *, const routecap_append_options *,
                               routecap_append_report *);
    int32_t (*sequence_truncate)(routecap_sequence *, uint64_t);
    int32_t (*sequence_fork)(const routecap_sequence *, uint64_t, routecap_sequence **);
    int32_t (*sequence_routing)(const routecap_sequence *, routecap_routing **);
    int32_t (*sequence_spans)(const routecap_sequence *, routecap_sequence_span *, size_t, size_t,
                              uint64_t *);
    int32_t (*sequence_tokens)(const routecap_sequence *, uint64_t, int32_t *, size_t, uint64_t *);
    int32_t (*sequence_report)(const routecap_sequence *, routecap_append_report *);
    int32_t (*sequence_serialize)(const routecap_sequence *, uint32_t, void *, size_t, uint64_t *);
    int32_t (*sequence_deserialize)(const void *, size_t, uint64_t, routecap_sequence **);
    /* The store. */
    int32_t (*store_config_init)(routecap_store_config *, size_t);
    int32_t (*store_create)(const routecap_store_config *, const routecap_config *,
                            routecap_store **);
    void (*store_free)(routecap_store *);
    int32_t (*store_stats)(const routecap_store *, routecap_store_counts *);
    int32_t (*store_advance)(routecap_store *, uint64_t);
    int32_t (*request_publish)(routecap_capturer *, routecap_request, routecap_store *, uint64_t,
                               const void *, size_t, uint64_t);
    int32_t (*request_adopt)(routecap_capturer *, routecap_request, routecap_store *, uint64_t,
                             const void *, size_t, uint64_t, routecap_adoption *);
    int32_t (*request_publish_batch)(routecap_capturer *, routecap_store *, routecap_publish_item *,
                                     size_t, size_t, uint64_t);
    int32_t (*request_adopt_batch)(routecap_capturer *, routecap_store *, routecap_adopt_item *,
                                   size_t, size_t, uint64_t);
    int32_t (*key_chain)(const void *, size_t, const int32_t *, size_t, uint32_t, uint32_t, void *,
                         size_t);
    int32_t (*store_contains)(routecap_store *, const void *, size_t, uint64_t, int32_t *,
                              uint64_t *);
    int32_t (*store_retain)(routecap_store *, const void *, size_t, int32_t *);
    int32_t (*store_release)(routecap_store *, const void *, size_t);
    int32_t (*store_evict)(routecap_store *, const void *, size_t, uint64_t *);
    int32_t (*store_move)(routecap_store *, const void *, const void *, size_t);
    int32_t (*store_export)(routecap_store *, const void *, size_t, uint64_t, void *, size_t,
                            uint64_t *);
    int32_t (*store_import)(routecap_store *, const void *, size_t, uint64_t *);
    int32_t (*store_create_shared)(const routecap_store_config *, const routecap_config *,
                                   int32_t *, routecap_store **);
    int32_t (*store_open_shared)(const routecap_store_config *, const routecap_config *, int32_t,
                                 routecap_store **);
    /* Plans. */
    int32_t (*plan_config_init)(routecap_plan_config *, size_t);
    int32_t (*plan_create)(const routecap_plan_config *, routecap_plan **);
    void (*plan_free)(routecap_plan *);
    int32_t (*plan_describe)(const routecap_plan *, routecap_plan_shape *);
    int32_t (*plan_ranges)(const routecap_plan *, routecap_plan_range *, size_t, size_t,
                           uint64_t *);
    int32_t (*plan_runs)(const routecap_plan *, routecap_plan_run *, size_t, size_t, uint64_t *);
    int32_t (*plan_gather)(const routecap_plan *, const routecap_plan_source *, size_t, size_t,
                           void *, size_t, uint8_t *, size_t, routecap_plan_report *);
    int32_t (*plan_gather_values)(const routecap_plan *, const void *const *, size_t, const void *,
                                  void *, size_t);
    int32_t (*plan_scatter)(const routecap_plan *, const void *, size_t, const uint8_t *, size_t,
                            routecap_routing **, size_t);
    int32_t (*plan_pack)(const routecap_plan *, const routecap_plan_source *, size_t, size_t,
                         void *, size_t, routecap_plan_report *);
    int32_t (*plan_unpack)(const routecap_plan *, const void *, size_t,
                           const routecap_plan_target *, routecap_stream);
    int32_t (*serialized_slice)(const void *, size_t, uint64_t, uint64_t, void *, size_t,
                                routecap_piece *, size_t, size_t, routecap_splice *);
    /* Load. */
    int32_t (*capturer_load)(const routecap_capturer *, const uint64_t *, routecap_load *,
                             uint64_t *, size_t);
    int32_t (*capturer_load_tags)(const routecap_capturer *, uint64_t *, size_t, uint64_t *);
    /* Diagnostics. */
    int32_t (*set_log)(routecap_log, void *, int32_t);
    int32_t (*capturer_dump)(const routecap_capturer *, uint32_t, void *, size_t, uint64_t *);
} routecap_api;

/**
 * Get the library's functions as one table.
 *
 * Ask for the oldest minor version that the program can work with. An entry that was added later
 * exists only if offsetof(routecap_api, entry) < api->size.
 *
 * @param[in] major  ROUTECAP_VERSION_MAJOR that the caller was compiled with.
 * @param[in] minor  ROUTECAP_VERSION_MINOR that the caller was compiled with, or an older one.
 * @return Static storage, with every entry of that version. NULL if this library has a different
 *         major version or an older minor version; routecap_last_error names both versions.
 */
ROUTECAP_API const routecap_api *routecap_get_api(uint32_t major, uint32_t minor);

#ifdef __cplusplus
}
#endif

#endif /* ROUTECAP_TABLE_H */

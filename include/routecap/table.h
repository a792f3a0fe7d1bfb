/*
 * routecap, chapter 15: the function table. To load the library with dlopen, start here.
 *
 * Copyright 2026 The routecap authors. Licensed under the Apache License, Version 2.0; see LICENSE.
 *
 * A program that dlopens the library needs only one dlsym, of routecap_get_api, instead of one for
 * each function. To print why it returned NULL, also dlsym routecap_last_error.
 *
 *     void *library = dlopen("libroutecap.so.1", RTLD_NOW | RTLD_LOCAL);
 *     const routecap_api *(*get_api)(uint32_t, uint32_t);
 *     *(void **)&get_api = dlsym(library, "routecap_get_api");
 *     const routecap_api *api = get_api(ROUTECAP_VERSION_MAJOR, 0);
 *     status = api->capturer_create(&config, &capturer);
 */
#ifndef ROUTECAP_TABLE_H
#define ROUTECAP_TABLE_H

#include "base.h"
#include "capture.h"
#include "diagnostics.h"
#include "dispatch_check.h"
#include "load.h"
#include "plan.h"
#include "reading.h"
#include "record.h"
#include "requests.h"
#include "routing.h"
#include "sequence.h"
#include "serialized.h"
#include "store.h"
#include "wire.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * All functions except routecap_get_api, each under its name without the prefix, in the order of
 * the chapters of 1.0. Later versions only add entries, at the end. Experimental functions have
 * their entries whether or not ROUTECAP_EXPERIMENTAL is defined.
 */
typedef struct routecap_api {
    size_t size;    /* size of this table in the loaded library, in bytes; entries beyond it do not
                       exist */
    uint32_t major; /* version of the loaded library */
    uint32_t minor;
    /* base.h */
    uint32_t (*version)(void);
    const char *(*status_name)(routecap_status);
    const char *(*last_error)(void);
    /* capture.h */
    ROUTECAP_NODISCARD routecap_status (*config_init)(routecap_config *, size_t);
    ROUTECAP_NODISCARD routecap_status (*capturer_create)(const routecap_config *,
                                                          routecap_capturer **);
    void (*capturer_destroy)(routecap_capturer *);
    ROUTECAP_NODISCARD routecap_status (*step_begin)(routecap_capturer *, uint32_t,
                                                     routecap_stream);
    ROUTECAP_NODISCARD routecap_status (*step_snapshot)(routecap_capturer *, routecap_stream);
    ROUTECAP_NODISCARD routecap_status (*step_issue)(routecap_capturer *, const routecap_span *,
                                                     size_t, size_t, const routecap_issue_options *,
                                                     routecap_status *, routecap_step *,
                                                     routecap_stream);
    ROUTECAP_NODISCARD routecap_status (*step_discard)(routecap_capturer *, routecap_stream);
    ROUTECAP_NODISCARD routecap_status (*step_poll)(routecap_capturer *, routecap_step);
    ROUTECAP_NODISCARD routecap_status (*step_finalize)(routecap_capturer *, routecap_step, int64_t,
                                                        uint64_t *);
    ROUTECAP_NODISCARD routecap_status (*config_memory)(const routecap_config *, routecap_memory *);
    ROUTECAP_NODISCARD routecap_status (*backend_info)(routecap_backend_kind, routecap_backend *);
    ROUTECAP_NODISCARD routecap_status (*capturer_stats)(const routecap_capturer *,
                                                         routecap_stats *);
    ROUTECAP_NODISCARD routecap_status (*capturer_layer_stats)(const routecap_capturer *,
                                                               routecap_layer_stats *, size_t,
                                                               size_t);
    ROUTECAP_NODISCARD routecap_status (*capturer_progress)(routecap_capturer *);
    /* record.h */
    ROUTECAP_NODISCARD routecap_status (*sink_layer)(routecap_capturer *, uint32_t,
                                                     routecap_sink *);
    ROUTECAP_NODISCARD routecap_status (*sink_bind)(routecap_capturer *, uint32_t, uint32_t,
                                                    const routecap_sink *);
    ROUTECAP_NODISCARD routecap_status (*layer_record)(routecap_capturer *, uint32_t,
                                                       const routecap_source *, routecap_stream);
    ROUTECAP_NODISCARD routecap_status (*layers_record)(routecap_capturer *,
                                                        const routecap_source *,
                                                        const routecap_layer_source *, size_t,
                                                        size_t, routecap_stream);
    ROUTECAP_NODISCARD routecap_status (*router_init)(routecap_router *, size_t, routecap_method);
    ROUTECAP_NODISCARD routecap_status (*layer_route)(routecap_capturer *, uint32_t,
                                                      const routecap_router *,
                                                      const routecap_logits *, routecap_stream);
    ROUTECAP_NODISCARD routecap_status (*step_arrive)(routecap_capturer *, routecap_step,
                                                      const routecap_sink *);
    ROUTECAP_NODISCARD routecap_status (*capturer_probe)(routecap_capturer *, uint32_t,
                                                         routecap_layer_probe *, size_t, size_t,
                                                         routecap_stream);
    /* reading.h */
    ROUTECAP_NODISCARD routecap_status (*copy_options_init)(routecap_copy_options *, size_t);
    /* requests.h */
    ROUTECAP_NODISCARD routecap_status (*request_open)(routecap_capturer *,
                                                       const routecap_open_options *,
                                                       routecap_request *, size_t);
    ROUTECAP_NODISCARD routecap_status (*request_accept)(routecap_capturer *, routecap_request,
                                                         routecap_step, const uint32_t *, size_t);
    ROUTECAP_NODISCARD routecap_status (*request_accept_batch)(routecap_capturer *,
                                                               routecap_accept_item *, size_t,
                                                               size_t);
    ROUTECAP_NODISCARD routecap_status (*request_truncate)(routecap_capturer *, routecap_request,
                                                           uint64_t);
    ROUTECAP_NODISCARD routecap_status (*request_fork)(routecap_capturer *, routecap_request,
                                                       uint64_t, routecap_request *);
    ROUTECAP_NODISCARD routecap_status (*request_attach)(routecap_capturer *, routecap_request,
                                                         const routecap_routing *, uint64_t);
    ROUTECAP_NODISCARD routecap_status (*request_finish)(routecap_capturer *, routecap_request,
                                                         uint64_t, routecap_routing **);
    ROUTECAP_NODISCARD routecap_status (*request_finish_batch)(routecap_capturer *,
                                                               routecap_finish_item *, size_t,
                                                               size_t);
    ROUTECAP_NODISCARD routecap_status (*request_close)(routecap_capturer *, routecap_request);
    ROUTECAP_NODISCARD routecap_status (*request_close_batch)(routecap_capturer *,
                                                              const routecap_request *,
                                                              routecap_status *, size_t);
    ROUTECAP_NODISCARD routecap_status (*request_coverage)(routecap_capturer *, routecap_request,
                                                           uint64_t, uint64_t, routecap_coverage *,
                                                           routecap_missing *, size_t, size_t);
    ROUTECAP_NODISCARD routecap_status (*request_extract)(routecap_capturer *, routecap_request,
                                                          uint64_t, uint64_t, routecap_extract_mode,
                                                          routecap_read_flags, routecap_routing **);
    ROUTECAP_NODISCARD routecap_status (*request_extract_batch)(routecap_capturer *,
                                                                routecap_extract_item *, size_t,
                                                                size_t);
    ROUTECAP_NODISCARD routecap_status (*request_extract_into)(routecap_capturer *,
                                                               routecap_request, uint64_t, uint64_t,
                                                               const routecap_copy_options *,
                                                               void *, size_t, uint8_t *, size_t,
                                                               uint64_t *);
    /* routing.h */
    ROUTECAP_NODISCARD routecap_status (*routing_wait)(const routecap_routing *, int64_t);
    ROUTECAP_NODISCARD routecap_status (*routing_poll)(const routecap_routing *);
    ROUTECAP_NODISCARD routecap_status (*routing_view)(const routecap_routing *, routecap_view *);
    ROUTECAP_NODISCARD routecap_status (*routing_coverage)(const routecap_routing *,
                                                           routecap_coverage *, routecap_missing *,
                                                           size_t, size_t);
    ROUTECAP_NODISCARD routecap_status (*routing_copy_to)(const routecap_routing *,
                                                          const routecap_copy_options *, void *,
                                                          size_t, uint8_t *, size_t, uint64_t *);
    ROUTECAP_NODISCARD routecap_status (*routing_copy_weights)(const routecap_routing *,
                                                               const routecap_copy_options *,
                                                               void *, size_t, uint8_t *, size_t,
                                                               uint64_t *);
    ROUTECAP_NODISCARD routecap_status (*routing_split)(const routecap_routing *, uint64_t,
                                                        uint64_t, routecap_routing **,
                                                        routecap_routing **);
    ROUTECAP_NODISCARD routecap_status (*routing_slice)(const routecap_routing *, uint64_t,
                                                        uint64_t, routecap_routing **);
    ROUTECAP_NODISCARD routecap_status (*routing_merge)(const routecap_routing *const *, size_t,
                                                        uint32_t, routecap_routing **);
    ROUTECAP_NODISCARD routecap_status (*routing_retain)(const routecap_routing *);
    void (*routing_free)(routecap_routing *);
    /* serialized.h */
    ROUTECAP_NODISCARD routecap_status (*routing_serialize)(const routecap_routing *, void *,
                                                            size_t, uint64_t *);
    ROUTECAP_NODISCARD routecap_status (*routing_deserialize)(const void *, size_t,
                                                              routecap_import_flags,
                                                              routecap_release, void *,
                                                              routecap_routing **);
    ROUTECAP_NODISCARD routecap_status (*routing_import)(const routecap_view *,
                                                         routecap_import_flags, routecap_release,
                                                         void *, routecap_routing **);
    ROUTECAP_NODISCARD routecap_status (*serialized_info)(const void *, size_t,
                                                          routecap_serialized *);
    ROUTECAP_NODISCARD routecap_status (*serialized_splice)(const void *, size_t, const void *,
                                                            size_t, uint64_t, void *, size_t,
                                                            routecap_piece *, size_t, size_t,
                                                            routecap_splice *);
    ROUTECAP_NODISCARD routecap_status (*serialized_slice)(const void *, size_t, uint64_t, uint64_t,
                                                           void *, size_t, routecap_piece *, size_t,
                                                           size_t, routecap_splice *);
    /* wire.h */
    ROUTECAP_NODISCARD routecap_status (*wire_describe)(routecap_wire_format,
                                                        routecap_wire_description *);
    ROUTECAP_NODISCARD routecap_status (*wire_find)(const char *, routecap_wire_format *);
    ROUTECAP_NODISCARD routecap_status (*wire_decode)(const void *, size_t, routecap_wire_format,
                                                      const routecap_wire_hint *,
                                                      routecap_wire_report *, routecap_routing **);
    ROUTECAP_NODISCARD routecap_status (*wire_decoder_create)(routecap_wire_format,
                                                              const routecap_wire_hint *,
                                                              routecap_wire_decoder **);
    ROUTECAP_NODISCARD routecap_status (*wire_decoder_write)(routecap_wire_decoder *, const void *,
                                                             size_t);
    ROUTECAP_NODISCARD routecap_status (*wire_decoder_finish)(routecap_wire_decoder *,
                                                              routecap_wire_report *,
                                                              routecap_routing **);
    void (*wire_decoder_free)(routecap_wire_decoder *);
    ROUTECAP_NODISCARD routecap_status (*wire_encode)(const routecap_routing *,
                                                      const routecap_wire_options *, void *, size_t,
                                                      uint64_t *, routecap_wire_report *);
    /* sequence.h */
    ROUTECAP_NODISCARD routecap_status (*sequence_create)(const routecap_sequence_config *,
                                                          routecap_sequence **);
    void (*sequence_free)(routecap_sequence *);
    ROUTECAP_NODISCARD routecap_status (*sequence_append)(routecap_sequence *, const int32_t *,
                                                          uint64_t, uint64_t,
                                                          const routecap_routing *,
                                                          const routecap_append_options *,
                                                          routecap_append_report *);
    ROUTECAP_NODISCARD routecap_status (*sequence_truncate)(routecap_sequence *, uint64_t);
    ROUTECAP_NODISCARD routecap_status (*sequence_fork)(const routecap_sequence *, uint64_t,
                                                        routecap_sequence **);
    ROUTECAP_NODISCARD routecap_status (*sequence_routing)(const routecap_sequence *,
                                                           routecap_routing **);
    ROUTECAP_NODISCARD routecap_status (*sequence_spans)(const routecap_sequence *,
                                                         routecap_sequence_span *, size_t, size_t,
                                                         uint64_t *);
    ROUTECAP_NODISCARD routecap_status (*sequence_tokens)(const routecap_sequence *, uint64_t,
                                                          int32_t *, size_t, uint64_t *);
    ROUTECAP_NODISCARD routecap_status (*sequence_report)(const routecap_sequence *,
                                                          routecap_append_report *);
    ROUTECAP_NODISCARD routecap_status (*sequence_serialize)(const routecap_sequence *,
                                                             routecap_sequence_flags, void *,
                                                             size_t, uint64_t *);
    ROUTECAP_NODISCARD routecap_status (*sequence_deserialize)(const void *, size_t, uint64_t,
                                                               routecap_sequence **);
    /* store.h */
    ROUTECAP_NODISCARD routecap_status (*store_config_init)(routecap_store_config *, size_t);
    ROUTECAP_NODISCARD routecap_status (*store_create)(const routecap_store_config *,
                                                       const routecap_config *, routecap_store **);
    void (*store_free)(routecap_store *);
    ROUTECAP_NODISCARD routecap_status (*store_stats)(const routecap_store *,
                                                      routecap_store_counts *);
    ROUTECAP_NODISCARD routecap_status (*store_advance)(routecap_store *, uint64_t);
    ROUTECAP_NODISCARD routecap_status (*request_publish)(routecap_capturer *, routecap_request,
                                                          routecap_store *, uint64_t, const void *,
                                                          size_t, uint64_t);
    ROUTECAP_NODISCARD routecap_status (*request_adopt)(routecap_capturer *, routecap_request,
                                                        routecap_store *, uint64_t, const void *,
                                                        size_t, uint64_t, routecap_adoption *);
    ROUTECAP_NODISCARD routecap_status (*request_publish_batch)(routecap_capturer *,
                                                                routecap_store *,
                                                                routecap_publish_item *, size_t,
                                                                size_t, uint64_t);
    ROUTECAP_NODISCARD routecap_status (*request_adopt_batch)(routecap_capturer *, routecap_store *,
                                                              routecap_adopt_item *, size_t, size_t,
                                                              uint64_t);
    ROUTECAP_NODISCARD routecap_status (*key_chain)(const void *, size_t, const int32_t *, size_t,
                                                    uint32_t, uint32_t, void *, size_t);
    ROUTECAP_NODISCARD routecap_status (*store_contains)(routecap_store *, const void *, size_t,
                                                         uint64_t, routecap_reason *, uint64_t *);
    ROUTECAP_NODISCARD routecap_status (*store_retain)(routecap_store *, const void *, size_t,
                                                       routecap_reason *);
    ROUTECAP_NODISCARD routecap_status (*store_release)(routecap_store *, const void *, size_t);
    ROUTECAP_NODISCARD routecap_status (*store_evict)(routecap_store *, const void *, size_t,
                                                      uint64_t *);
    /* plan.h */
    ROUTECAP_NODISCARD routecap_status (*plan_config_init)(routecap_plan_config *, size_t);
    ROUTECAP_NODISCARD routecap_status (*plan_create)(const routecap_plan_config *,
                                                      routecap_plan **);
    void (*plan_free)(routecap_plan *);
    ROUTECAP_NODISCARD routecap_status (*plan_describe)(const routecap_plan *,
                                                        routecap_plan_shape *);
    ROUTECAP_NODISCARD routecap_status (*plan_ranges)(const routecap_plan *, routecap_plan_range *,
                                                      size_t, size_t, uint64_t *);
    ROUTECAP_NODISCARD routecap_status (*plan_gather)(const routecap_plan *,
                                                      const routecap_plan_source *, size_t, size_t,
                                                      void *, size_t, uint8_t *, size_t,
                                                      routecap_plan_report *);
    ROUTECAP_NODISCARD routecap_status (*plan_gather_values)(const routecap_plan *,
                                                             const void *const *, size_t,
                                                             const void *, void *, size_t);
    ROUTECAP_NODISCARD routecap_status (*plan_gather_weights)(const routecap_plan *,
                                                              const routecap_plan_source *, size_t,
                                                              size_t, routecap_dtype, float, void *,
                                                              size_t, uint64_t *);
    ROUTECAP_NODISCARD routecap_status (*plan_scatter)(const routecap_plan *, const void *, size_t,
                                                       const uint8_t *, size_t, routecap_routing **,
                                                       size_t);
    ROUTECAP_NODISCARD routecap_status (*plan_pack)(const routecap_plan *,
                                                    const routecap_plan_source *, size_t, size_t,
                                                    void *, size_t, routecap_plan_report *);
    ROUTECAP_NODISCARD routecap_status (*plan_unpack)(const routecap_plan *, const void *, size_t,
                                                      const routecap_plan_target *,
                                                      routecap_stream);
    /* load.h */
    ROUTECAP_NODISCARD routecap_status (*capturer_load)(const routecap_capturer *, routecap_load *,
                                                        uint64_t *, size_t);
    /* diagnostics.h */
    ROUTECAP_NODISCARD routecap_status (*set_log)(routecap_log, void *, routecap_log_level);
    /* dispatch_check.h */
    ROUTECAP_NODISCARD routecap_status (*received_read)(routecap_capturer *,
                                                        const routecap_received *, routecap_stream);
    ROUTECAP_NODISCARD routecap_status (*received_compare)(routecap_capturer *,
                                                           const routecap_received *,
                                                           routecap_stream);
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
 * @thread(any)
 */
ROUTECAP_API const routecap_api *routecap_get_api(uint32_t major, uint32_t minor);

#ifdef __cplusplus
}
#endif

#endif /* ROUTECAP_TABLE_H */

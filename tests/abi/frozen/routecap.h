/* Of the declarations of routecap.h 1.0, as it was released, those that consumer.c uses. */
#ifndef ROUTECAP_H
#define ROUTECAP_H
#include <stddef.h>
#include <stdint.h>
#if UINTPTR_MAX < 0xFFFFFFFFFFFFFFFFu
#error "routecap needs 64-bit pointers"
#endif
#define ROUTECAP_VERSION_MAJOR 1
#define ROUTECAP_VERSION_MINOR 0
#define ROUTECAP_VERSION_PATCH 0
#define ROUTECAP_OK 0
#define ROUTECAP_ERR_STRUCT_SIZE (-101)
typedef struct routecap_capturer routecap_capturer;
typedef struct routecap_routing routecap_routing;
typedef uint64_t routecap_request;
typedef uint64_t routecap_step;
typedef struct CUstream_st *routecap_stream;
#define ROUTECAP_ROWS_ALL 0xFFFFFFFFFFFFFFFFull
#define ROUTECAP_DTYPE_U8 1
#define ROUTECAP_DTYPE_I16 2
#define ROUTECAP_DTYPE_I32 4
#define ROUTECAP_DTYPE_F32 16
#define ROUTECAP_BACKEND_HOST 1
#define ROUTECAP_PROVENANCE_CAPTURED 0
#define ROUTECAP_PROVENANCE_RECOMPUTED 1
typedef struct routecap_config {
    uint32_t struct_size;
    int32_t backend;
    int32_t role;
    int32_t device;
    uint32_t layers;
    uint32_t k;
    uint32_t experts;
    uint32_t rows;
    uint32_t slots;
    int32_t sink_dtype;
    uint32_t flags;
    int32_t id_space;
    uint32_t max_requests;
    uint32_t reserved;
    uint64_t budget_bytes;
    const int32_t *layer_map;
    const uint32_t *layer_experts;
    const int32_t *layer_provenance;
} routecap_config;
typedef struct routecap_memory {
    uint32_t struct_size;
    uint32_t page_rows;
    uint64_t device_bytes;
    uint64_t pinned_bytes;
    uint64_t host_bytes;
    uint64_t row_bytes;
    uint64_t page_bytes;
    uint64_t request_bytes;
    uint64_t tag_bytes;
} routecap_memory;
typedef struct routecap_stats {
    uint32_t struct_size;
    uint32_t silent_layers;
    uint64_t steps_issued;
    uint64_t steps_landed;
    uint64_t steps_lost;
    uint64_t rows_issued;
    uint64_t rows_in_flight;
    uint64_t rows_provisional;
    uint64_t rows_delivered;
    uint64_t rows_missing;
    uint64_t rows_lost;
    uint64_t rows_late;
    uint64_t rows_rejected;
    uint64_t rows_unplaced;
    uint64_t rows_refused;
    uint64_t rows_skipped;
    uint64_t rows_overlapped;
    uint64_t rows_mismatched;
    uint64_t rows_dropped;
    uint64_t cells_conflicting;
    uint64_t cells_unwritten;
    uint64_t cells_out_of_range;
    uint64_t cells_duplicate;
    uint64_t requests_open;
    uint64_t steps_in_flight;
    uint64_t bytes_in_use;
    uint64_t bytes_peak;
    uint64_t bytes_budget;
} routecap_stats;
typedef struct routecap_layer_stats {
    uint64_t rows_written;
    uint64_t unwritten;
    uint64_t out_of_range;
    uint64_t duplicate;
    uint64_t silent_steps;
} routecap_layer_stats;
typedef struct routecap_backend {
    uint32_t struct_size;
    int32_t available;
    int32_t devices;
    int32_t reserved;
    const char *detail;
} routecap_backend;
typedef struct routecap_sink {
    uint32_t struct_size;
    int32_t dtype;
    void *ids;
    uint32_t rows;
    uint32_t k;
    int64_t row_stride;
    int64_t layer_stride;
} routecap_sink;
typedef struct routecap_source {
    uint32_t struct_size;
    int32_t dtype;
    const void *ids;
    int64_t row_stride;
    int64_t column_stride;
    uint32_t rows;
    uint32_t k_source;
    const int32_t *live_rows;
    const int32_t *row_base;
    const int32_t *row_index;
    uint32_t first_row;
    int32_t offset;
    const int32_t *table;
    uint32_t table_size;
    uint32_t flags;
} routecap_source;
typedef struct routecap_layer_source {
    uint32_t layer;
    uint32_t reserved;
    const void *ids;
    const int32_t *table;
} routecap_layer_source;
#define ROUTECAP_METHOD_SOFTMAX 1
#define ROUTECAP_METHOD_TOPK 4
#define ROUTECAP_METHOD_DEEPSEEK_V3 9
typedef struct routecap_router {
    uint32_t struct_size;
    int32_t score;
    int32_t group_score;
    uint32_t flags;
    uint32_t groups;
    uint32_t groups_kept;
    float scale;
    float floor;
    const void *bias;
    int32_t bias_dtype;
    uint32_t hash_tokens;
    const int32_t *hash_table;
} routecap_router;
typedef struct routecap_logits {
    uint32_t struct_size;
    int32_t dtype;
    const void *logits;
    int64_t row_stride;
    int64_t column_stride;
    uint32_t rows;
    uint32_t first_row;
    const int32_t *live_rows;
    const int32_t *row_base;
    const int32_t *row_index;
    const void *tokens;
    int32_t tokens_dtype;
    uint32_t experts;
    float *weights;
    int64_t weights_stride;
} routecap_logits;
typedef struct routecap_layer_probe {
    uint32_t found;
    uint32_t rows_unwritten;
    uint32_t rows_incomplete;
    uint32_t rows_written;
    uint32_t rows_out_of_range;
    uint32_t rows_duplicate;
    int32_t lowest;
    int32_t highest;
} routecap_layer_probe;
typedef struct routecap_received {
    uint32_t struct_size;
    uint32_t flags;
    uint32_t ranks;
    uint32_t rank;
    uint32_t experts;
    uint32_t k;
    uint32_t tokens_per_rank;
    uint32_t rows;
    const int32_t *live_rows;
    const int32_t *metadata;
    const void *ids;
    const int32_t *expert_ends;
    uint32_t expert_alignment;
    uint32_t expanded_rows;
    int32_t dtype;
    uint32_t reserved;
    void *global_ids;
    int32_t *executed;
    uint64_t *ignored;
} routecap_received;
typedef struct routecap_span {
    routecap_request request;
    uint64_t position;
    uint64_t position_end;
    uint32_t sink_row;
    uint32_t rows;
    uint32_t flags;
    uint32_t reserved;
} routecap_span;
typedef struct routecap_issue_options {
    uint32_t struct_size;
    int32_t snapshot;
    uint64_t tag;
    const void *positions;
    int32_t positions_dtype;
    uint32_t reserved;
} routecap_issue_options;
#define ROUTECAP_POLICY_REPLACE 1
typedef struct routecap_open_options {
    uint32_t struct_size;
    int32_t policy;
} routecap_open_options;
typedef struct routecap_accept_item {
    routecap_request request;
    routecap_step step;
    const uint32_t *rows;
    uint64_t count;
    int32_t status;
    int32_t reserved;
} routecap_accept_item;
#define ROUTECAP_MISSING_LOST 5
typedef struct routecap_missing {
    uint64_t first;
    uint64_t rows;
    uint32_t first_layer;
    uint32_t layers;
    int32_t reason;
    uint32_t reserved;
} routecap_missing;
typedef struct routecap_coverage {
    uint32_t struct_size;
    uint32_t layers;
    uint64_t first;
    uint64_t rows;
    uint64_t length;
    uint64_t rows_complete;
    uint64_t rows_partial;
    uint64_t rows_empty;
    uint64_t cells_missing;
    uint64_t blocks;
    uint64_t cells_recomputed;
} routecap_coverage;
#define ROUTECAP_EXTRACT_COPY 2
typedef struct routecap_extract_item {
    routecap_request request;
    uint64_t first;
    uint64_t rows;
    int32_t mode;
    uint32_t flags;
    routecap_routing *routing;
    int32_t status;
    int32_t reserved;
} routecap_extract_item;
typedef struct routecap_copy_options {
    uint32_t struct_size;
    int32_t dtype;
    int32_t order;
    uint32_t flags;
    uint32_t first_layer;
    uint32_t layers;
    int64_t row_stride;
    int64_t layer_stride;
    int64_t fill;
} routecap_copy_options;
typedef struct routecap_finish_item {
    routecap_request request;
    uint64_t rows;
    routecap_routing *routing;
    int32_t status;
    int32_t reserved;
} routecap_finish_item;
typedef struct routecap_segment {
    uint64_t first;
    uint64_t rows;
    const void *ids;
    const uint8_t *validity;
    const uint64_t *tags;
    uint64_t tag;
    int32_t reason;
    uint32_t reserved;
} routecap_segment;
typedef struct routecap_view {
    uint32_t struct_size;
    int32_t dtype;
    uint32_t layers;
    uint32_t k;
    uint32_t experts;
    uint32_t validity_bytes;
    int32_t id_space;
    int32_t complete;
    uint64_t first;
    uint64_t rows;
    const int32_t *layer_map;
    const uint32_t *layer_experts;
    const routecap_segment *segments;
    size_t segment_size;
    size_t segment_count;
    const int32_t *layer_provenance;
} routecap_view;
typedef void (*routecap_release)(void *context);
typedef struct routecap_serialized {
    uint32_t struct_size;
    uint32_t version;
    uint64_t bytes;
    uint64_t header_bytes;
    uint64_t first;
    uint64_t rows;
    uint32_t layers;
    uint32_t k;
    int32_t dtype;
    int32_t id_space;
} routecap_serialized;
typedef struct routecap_piece {
    uint64_t offset;
    uint64_t bytes;
    int32_t source;
    uint32_t reserved;
} routecap_piece;
#define ROUTECAP_MAX_PIECES 16
typedef struct routecap_splice {
    uint32_t struct_size;
    uint32_t pieces;
    uint64_t bytes;
    uint64_t header_bytes;
} routecap_splice;
typedef struct routecap_api {
    size_t size;
    uint32_t major;
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
    int32_t (*capturer_layer_stats)(const routecap_capturer *, routecap_layer_stats *, size_t, size_t);
    int32_t (*capturer_progress)(routecap_capturer *);
    int32_t (*sink_bind)(routecap_capturer *, uint32_t, uint32_t, const routecap_sink *);
    int32_t (*sink_layer)(routecap_capturer *, uint32_t, routecap_sink *);
    int32_t (*layer_record)(routecap_capturer *, uint32_t, const routecap_source *, routecap_stream);
    int32_t (*layers_record)(routecap_capturer *, const routecap_source *, const routecap_layer_source *, size_t, size_t, routecap_stream);
    int32_t (*router_init)(routecap_router *, size_t, int32_t);
    int32_t (*layer_route)(routecap_capturer *, uint32_t, const routecap_router *, const routecap_logits *, routecap_stream);
    int32_t (*capturer_probe)(routecap_capturer *, uint32_t, routecap_layer_probe *, size_t, size_t, routecap_stream);
    int32_t (*received_read)(routecap_capturer *, uint32_t, const routecap_received *, routecap_stream);
    int32_t (*received_merge)(const int32_t *const *, size_t, size_t, int32_t *);
    int32_t (*step_begin)(routecap_capturer *, uint32_t, routecap_stream);
    int32_t (*step_snapshot)(routecap_capturer *, routecap_stream);
    int32_t (*step_issue)(routecap_capturer *, const routecap_span *, size_t, size_t, const routecap_issue_options *, int32_t *,
                          routecap_step *, routecap_stream);
    int32_t (*step_discard)(routecap_capturer *, routecap_stream);
    int32_t (*step_poll)(routecap_capturer *, routecap_step);
    int32_t (*step_finalize)(routecap_capturer *, routecap_step, int64_t, uint64_t *);
    int32_t (*request_open)(routecap_capturer *, const routecap_open_options *, routecap_request *, size_t);
    int32_t (*request_accept)(routecap_capturer *, routecap_request, routecap_step, const uint32_t *, size_t);
    int32_t (*request_accept_batch)(routecap_capturer *, routecap_accept_item *, size_t, size_t);
    int32_t (*request_truncate)(routecap_capturer *, routecap_request, uint64_t);
    int32_t (*request_fork)(routecap_capturer *, routecap_request, uint64_t, routecap_request *);
    int32_t (*request_attach)(routecap_capturer *, routecap_request, const routecap_routing *, uint64_t);
    int32_t (*request_coverage)(routecap_capturer *, routecap_request, uint64_t, uint64_t, routecap_coverage *, routecap_missing *, size_t,
                                size_t);
    int32_t (*request_extract)(routecap_capturer *, routecap_request, uint64_t, uint64_t, int32_t, uint32_t, routecap_routing **);
    int32_t (*request_extract_batch)(routecap_capturer *, routecap_extract_item *, size_t, size_t);
    int32_t (*copy_options_init)(routecap_copy_options *, size_t);
    int32_t (*request_extract_into)(routecap_capturer *, routecap_request, uint64_t, uint64_t, const routecap_copy_options *, void *, size_t,
                                    uint8_t *, size_t, uint64_t *);
    int32_t (*request_finish)(routecap_capturer *, routecap_request, uint64_t, routecap_routing **);
    int32_t (*request_finish_batch)(routecap_capturer *, routecap_finish_item *, size_t, size_t);
    int32_t (*request_close)(routecap_capturer *, routecap_request);
    int32_t (*request_close_batch)(routecap_capturer *, const routecap_request *, int32_t *, size_t);
    int32_t (*routing_wait)(const routecap_routing *, int64_t);
    int32_t (*routing_poll)(const routecap_routing *);
    int32_t (*routing_view)(const routecap_routing *, routecap_view *);
    int32_t (*routing_coverage)(const routecap_routing *, routecap_coverage *, routecap_missing *, size_t, size_t);
    int32_t (*routing_split)(const routecap_routing *, uint64_t, uint64_t, routecap_routing **, routecap_routing **);
    int32_t (*routing_slice)(const routecap_routing *, uint64_t, uint64_t, routecap_routing **);
    int32_t (*routing_merge)(const routecap_routing *const *, size_t, uint32_t, routecap_routing **);
    int32_t (*routing_copy_to)(const routecap_routing *, const routecap_copy_options *, void *, size_t, uint8_t *, size_t, uint64_t *);
    int32_t (*routing_retain)(const routecap_routing *);
    void (*routing_free)(routecap_routing *);
    int32_t (*routing_serialize)(const routecap_routing *, uint32_t, void *, size_t, uint64_t *);
    int32_t (*routing_deserialize)(const void *, size_t, uint32_t, routecap_release, void *, routecap_routing **);
    int32_t (*routing_import)(const routecap_view *, uint32_t, routecap_release, void *, routecap_routing **);
    int32_t (*serialized_info)(const void *, size_t, routecap_serialized *);
    int32_t (*serialized_splice)(const void *, size_t, const void *, size_t, uint64_t, void *, size_t, routecap_piece *, size_t, size_t,
                                 routecap_splice *);
} routecap_api;
#endif

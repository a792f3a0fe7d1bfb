/* The declarations of routecap.h 1.0, as it was released, without its comments. */
#ifndef ROUTECAP_H
#define ROUTECAP_H
#include <stddef.h>
#include <stdint.h>
#if UINTPTR_MAX < 0xFFFFFFFFFFFFFFFFu
#error "routecap needs 64-bit pointers"
#endif
#ifndef ROUTECAP_API
#if defined(__GNUC__) || defined(__clang__)
#define ROUTECAP_API __attribute__((visibility("default")))
#else
#define ROUTECAP_API
#endif
#endif
#ifdef __cplusplus
extern "C" {
#endif
#define ROUTECAP_VERSION_MAJOR 1
#define ROUTECAP_VERSION_MINOR 0
#define ROUTECAP_VERSION_PATCH 0
ROUTECAP_API uint32_t routecap_version(void);
#define ROUTECAP_OK 0
#define ROUTECAP_INCOMPLETE 1
#define ROUTECAP_LOST 2
#define ROUTECAP_PENDING 3
#define ROUTECAP_PARTIAL 4
#define ROUTECAP_NOT_CAPTURED 5
#define ROUTECAP_ERR_ARGUMENT (-100)
#define ROUTECAP_ERR_STRUCT_SIZE (-101)
#define ROUTECAP_ERR_UNKNOWN_LAYER (-102)
#define ROUTECAP_ERR_UNKNOWN_REQUEST (-103)
#define ROUTECAP_ERR_UNKNOWN_STEP (-104)
#define ROUTECAP_ERR_OUT_OF_RANGE (-105)
#define ROUTECAP_ERR_CAPACITY (-106)
#define ROUTECAP_ERR_OVERLAP (-107)
#define ROUTECAP_ERR_DTYPE (-108)
#define ROUTECAP_ERR_SHAPE_MISMATCH (-109)
#define ROUTECAP_ERR_BUFFER_TOO_SMALL (-110)
#define ROUTECAP_ERR_FORMAT (-111)
#define ROUTECAP_ERR_STATE (-200)
#define ROUTECAP_ERR_DISABLED (-201)
#define ROUTECAP_ERR_NOT_READY (-202)
#define ROUTECAP_ERR_INCOMPLETE (-203)
#define ROUTECAP_ERR_CONFLICT (-204)
#define ROUTECAP_ERR_FORKED (-205)
#define ROUTECAP_ERR_CAPTURING (-206)
#define ROUTECAP_ERR_RECOMPUTED (-207)
#define ROUTECAP_ERR_NOT_BEGUN (-208)
#define ROUTECAP_ERR_NOT_SNAPSHOT (-209)
#define ROUTECAP_ERR_SNAPSHOT_TWICE (-210)
#define ROUTECAP_ERR_ISSUED_TWICE (-211)
#define ROUTECAP_ERR_ROWS_NOT_BEGUN (-212)
#define ROUTECAP_ERR_TWO_THREADS (-213)
#define ROUTECAP_ERR_NO_MEMORY (-300)
#define ROUTECAP_ERR_TOO_MANY_REQUESTS (-301)
#define ROUTECAP_ERR_THREAD (-302)
#define ROUTECAP_ERR_NO_BACKEND (-400)
#define ROUTECAP_ERR_DRIVER_TOO_OLD (-401)
#define ROUTECAP_ERR_DEVICE (-402)
#define ROUTECAP_ERR_DEVICE_LOST (-403)
#define ROUTECAP_ERR_INTERNAL (-500)
ROUTECAP_API const char *routecap_status_name(int32_t status);
ROUTECAP_API const char *routecap_last_error(void);
typedef struct routecap_capturer routecap_capturer;
typedef struct routecap_routing routecap_routing;
typedef uint64_t routecap_request;
typedef uint64_t routecap_step;
struct CUstream_st;
typedef struct CUstream_st *routecap_stream;
#define ROUTECAP_ROWS_ALL 0xFFFFFFFFFFFFFFFFull
#define ROUTECAP_ROWS_LANDED 0xFFFFFFFFFFFFFFFEull
#define ROUTECAP_MAX_LAYERS 1024
#define ROUTECAP_MAX_K 32
#define ROUTECAP_MAX_EXPERTS 32768
#define ROUTECAP_MAX_ROUTED_EXPERTS 1024
#define ROUTECAP_MAX_GROUPS 32
#define ROUTECAP_MAX_ROWS 1048576
#define ROUTECAP_MAX_RECEIVED 67108864
#define ROUTECAP_MAX_SLOTS 64
#define ROUTECAP_MAX_POSITION 1099511627776ULL
#define ROUTECAP_DTYPE_U8 1
#define ROUTECAP_DTYPE_I16 2
#define ROUTECAP_DTYPE_U16 3
#define ROUTECAP_DTYPE_I32 4
#define ROUTECAP_DTYPE_U32 5
#define ROUTECAP_DTYPE_I64 6
#define ROUTECAP_DTYPE_ID16_BF16 7
#define ROUTECAP_DTYPE_F32 16
#define ROUTECAP_DTYPE_F16 17
#define ROUTECAP_DTYPE_BF16 18
#define ROUTECAP_BACKEND_HOST 1
#define ROUTECAP_BACKEND_CUDA 2
#define ROUTECAP_ROLE_OWNER 0
#define ROUTECAP_ROLE_MIRROR 1
#define ROUTECAP_ROLE_DISABLED 2
#define ROUTECAP_ID_SPACE_LOGICAL 0
#define ROUTECAP_ID_SPACE_PHYSICAL 1
#define ROUTECAP_PROVENANCE_CAPTURED 0
#define ROUTECAP_PROVENANCE_RECOMPUTED 1
#define ROUTECAP_CONFIG_COMPARE 1u
#define ROUTECAP_CONFIG_EXTERNAL_SINK 2u
#define ROUTECAP_CONFIG_MANUAL_PROGRESS 4u
#define ROUTECAP_CONFIG_MAY_LOSE 8u
#define ROUTECAP_CONFIG_CHECKED 16u
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
ROUTECAP_API int32_t routecap_backend_info(int32_t backend, routecap_backend *info);
ROUTECAP_API int32_t routecap_config_init(routecap_config *config, size_t struct_size);
ROUTECAP_API int32_t routecap_config_memory(const routecap_config *config, routecap_memory *memory);
ROUTECAP_API int32_t routecap_capturer_create(const routecap_config *config, routecap_capturer **capturer);
ROUTECAP_API void routecap_capturer_destroy(routecap_capturer *capturer);
ROUTECAP_API int32_t routecap_capturer_stats(const routecap_capturer *capturer, routecap_stats *stats);
ROUTECAP_API int32_t routecap_capturer_layer_stats(const routecap_capturer *capturer, routecap_layer_stats *stats, size_t stat_size,
                                                   size_t count);
ROUTECAP_API int32_t routecap_capturer_progress(routecap_capturer *capturer);
typedef struct routecap_sink {
    uint32_t struct_size;
    int32_t dtype;
    void *ids;
    uint32_t rows;
    uint32_t k;
    int64_t row_stride;
    int64_t layer_stride;
} routecap_sink;
ROUTECAP_API int32_t routecap_sink_bind(routecap_capturer *capturer, uint32_t first_layer, uint32_t layers, const routecap_sink *sink);
ROUTECAP_API int32_t routecap_sink_layer(routecap_capturer *capturer, uint32_t layer, routecap_sink *sink);
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
#define ROUTECAP_SOURCE_OVERLAP 1u
ROUTECAP_API int32_t routecap_layer_record(routecap_capturer *capturer, uint32_t layer, const routecap_source *source, routecap_stream stream);
typedef struct routecap_layer_source {
    uint32_t layer;
    uint32_t reserved;
    const void *ids;
    const int32_t *table;
} routecap_layer_source;
ROUTECAP_API int32_t routecap_layers_record(routecap_capturer *capturer, const routecap_source *source, const routecap_layer_source *layers,
                                            size_t layer_size, size_t count, routecap_stream stream);
#define ROUTECAP_SCORE_LOGIT 0
#define ROUTECAP_SCORE_SOFTMAX 1
#define ROUTECAP_SCORE_SIGMOID 2
#define ROUTECAP_SCORE_SQRT_SOFTPLUS 3
#define ROUTECAP_GROUP_MAX 0
#define ROUTECAP_GROUP_TOP2 1
#define ROUTECAP_GROUP_TOP2_DISTINCT 2
#define ROUTECAP_ROUTER_RANK_LOGITS 1u
#define ROUTECAP_ROUTER_RENORMALIZE 2u
#define ROUTECAP_ROUTER_FLOOR_MAX 4u
#define ROUTECAP_ROUTER_SIGMOID_TANH 8u
#define ROUTECAP_ROUTER_GROUPS_ZERO 16u
#define ROUTECAP_METHOD_SOFTMAX 1
#define ROUTECAP_METHOD_SOFTMAX_RENORMALIZE 2
#define ROUTECAP_METHOD_TOPK_SOFTMAX 3
#define ROUTECAP_METHOD_TOPK 4
#define ROUTECAP_METHOD_TOPK_SIGMOID 5
#define ROUTECAP_METHOD_SIGMOID 6
#define ROUTECAP_METHOD_SIGMOID_RENORMALIZE 7
#define ROUTECAP_METHOD_DEEPSEEK_V2 8
#define ROUTECAP_METHOD_DEEPSEEK_V3 9
#define ROUTECAP_METHOD_DEEPSEEK_V4 10
#define ROUTECAP_METHOD_ERNIE 11
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
ROUTECAP_API int32_t routecap_router_init(routecap_router *router, size_t struct_size, int32_t method);
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
ROUTECAP_API int32_t routecap_layer_route(routecap_capturer *capturer, uint32_t layer, const routecap_router *router,
                                          const routecap_logits *logits, routecap_stream stream);
#define ROUTECAP_PROBE_SILENT 1u
#define ROUTECAP_PROBE_INCOMPLETE 2u
#define ROUTECAP_PROBE_OUT_OF_RANGE 4u
#define ROUTECAP_PROBE_DUPLICATE 8u
#define ROUTECAP_PROBE_SEQUENCE 16u
#define ROUTECAP_PROBE_CONSTANT 32u
#define ROUTECAP_PROBE_REPEATED 64u
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
ROUTECAP_API int32_t routecap_capturer_probe(routecap_capturer *capturer, uint32_t rows, routecap_layer_probe *layers, size_t layer_size,
                                             size_t count, routecap_stream stream);
#define ROUTECAP_RECEIVED_EXPANDED 1u
#define ROUTECAP_RECEIVED_GLOBAL 2u
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
ROUTECAP_API int32_t routecap_received_read(routecap_capturer *capturer, uint32_t layer, const routecap_received *received,
                                            routecap_stream stream);
ROUTECAP_API int32_t routecap_received_merge(const int32_t *const *executed, size_t count, size_t cells, int32_t *merged);
#define ROUTECAP_SPAN_SPECULATIVE 1u
#define ROUTECAP_SPAN_DEVICE_POSITIONS 2u
typedef struct routecap_span {
    routecap_request request;
    uint64_t position;
    uint64_t position_end;
    uint32_t sink_row;
    uint32_t rows;
    uint32_t flags;
    uint32_t reserved;
} routecap_span;
#define ROUTECAP_SNAPSHOT_TAKEN 0
#define ROUTECAP_SNAPSHOT_MAKE 1
typedef struct routecap_issue_options {
    uint32_t struct_size;
    int32_t snapshot;
    uint64_t tag;
    const void *positions;
    int32_t positions_dtype;
    uint32_t reserved;
} routecap_issue_options;
ROUTECAP_API int32_t routecap_step_begin(routecap_capturer *capturer, uint32_t rows, routecap_stream stream);
ROUTECAP_API int32_t routecap_step_snapshot(routecap_capturer *capturer, routecap_stream stream);
ROUTECAP_API int32_t routecap_step_issue(routecap_capturer *capturer, const routecap_span *spans, size_t span_size, size_t count,
                                         const routecap_issue_options *options, int32_t *status, routecap_step *step, routecap_stream stream);
ROUTECAP_API int32_t routecap_step_discard(routecap_capturer *capturer, routecap_stream stream);
ROUTECAP_API int32_t routecap_step_poll(routecap_capturer *capturer, routecap_step step);
ROUTECAP_API int32_t routecap_step_finalize(routecap_capturer *capturer, routecap_step step, int64_t timeout_ns, uint64_t *conflicting);
#define ROUTECAP_POLICY_KEEP 0
#define ROUTECAP_POLICY_REPLACE 1
typedef struct routecap_open_options {
    uint32_t struct_size;
    int32_t policy;
} routecap_open_options;
ROUTECAP_API int32_t routecap_request_open(routecap_capturer *capturer, const routecap_open_options *options, routecap_request *requests,
                                           size_t count);
ROUTECAP_API int32_t routecap_request_accept(routecap_capturer *capturer, routecap_request request, routecap_step step, const uint32_t *rows,
                                             size_t count);
typedef struct routecap_accept_item {
    routecap_request request;
    routecap_step step;
    const uint32_t *rows;
    uint64_t count;
    int32_t status;
    int32_t reserved;
} routecap_accept_item;
ROUTECAP_API int32_t routecap_request_accept_batch(routecap_capturer *capturer, routecap_accept_item *items, size_t item_size, size_t count);
ROUTECAP_API int32_t routecap_request_truncate(routecap_capturer *capturer, routecap_request request, uint64_t rows);
ROUTECAP_API int32_t routecap_request_fork(routecap_capturer *capturer, routecap_request request, uint64_t rows, routecap_request *child);
ROUTECAP_API int32_t routecap_request_attach(routecap_capturer *capturer, routecap_request request, const routecap_routing *routing,
                                             uint64_t rows);
#define ROUTECAP_MISSING_ABSENT 1
#define ROUTECAP_MISSING_UNWRITTEN 2
#define ROUTECAP_MISSING_OUT_OF_RANGE 3
#define ROUTECAP_MISSING_DUPLICATE 4
#define ROUTECAP_MISSING_LOST 5
#define ROUTECAP_MISSING_REFUSED 6
#define ROUTECAP_MISSING_TAKEN 7
#define ROUTECAP_MISSING_EVICTED 8
#define ROUTECAP_MISSING_NOT_PUBLISHED 9
#define ROUTECAP_MISSING_STALE 10
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
ROUTECAP_API int32_t routecap_request_coverage(routecap_capturer *capturer, routecap_request request, uint64_t first, uint64_t rows,
                                               routecap_coverage *coverage, routecap_missing *missing, size_t missing_size, size_t capacity);
#define ROUTECAP_EXTRACT_SHARE 0
#define ROUTECAP_EXTRACT_TAKE 1
#define ROUTECAP_EXTRACT_COPY 2
#define ROUTECAP_READ_STRICT 1u
#define ROUTECAP_READ_ALLOW_RECOMPUTED 2u
ROUTECAP_API int32_t routecap_request_extract(routecap_capturer *capturer, routecap_request request, uint64_t first, uint64_t rows, int32_t mode,
                                              uint32_t flags, routecap_routing **routing);
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
ROUTECAP_API int32_t routecap_request_extract_batch(routecap_capturer *capturer, routecap_extract_item *items, size_t item_size, size_t count);
#define ROUTECAP_ORDER_ROW_MAJOR 0
#define ROUTECAP_ORDER_LAYER_MAJOR 1
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
ROUTECAP_API int32_t routecap_copy_options_init(routecap_copy_options *options, size_t struct_size);
ROUTECAP_API int32_t routecap_request_extract_into(routecap_capturer *capturer, routecap_request request, uint64_t first, uint64_t rows,
                                                   const routecap_copy_options *options, void *dst, size_t dst_bytes, uint8_t *mask,
                                                   size_t mask_bytes, uint64_t *needed);
ROUTECAP_API int32_t routecap_request_finish(routecap_capturer *capturer, routecap_request request, uint64_t rows, routecap_routing **routing);
typedef struct routecap_finish_item {
    routecap_request request;
    uint64_t rows;
    routecap_routing *routing;
    int32_t status;
    int32_t reserved;
} routecap_finish_item;
ROUTECAP_API int32_t routecap_request_finish_batch(routecap_capturer *capturer, routecap_finish_item *items, size_t item_size, size_t count);
ROUTECAP_API int32_t routecap_request_close(routecap_capturer *capturer, routecap_request request);
ROUTECAP_API int32_t routecap_request_close_batch(routecap_capturer *capturer, const routecap_request *requests, int32_t *status, size_t count);
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
ROUTECAP_API int32_t routecap_routing_wait(const routecap_routing *routing, int64_t timeout_ns);
ROUTECAP_API int32_t routecap_routing_poll(const routecap_routing *routing);
ROUTECAP_API int32_t routecap_routing_view(const routecap_routing *routing, routecap_view *view);
ROUTECAP_API int32_t routecap_routing_coverage(const routecap_routing *routing, routecap_coverage *coverage, routecap_missing *missing,
                                               size_t missing_size, size_t capacity);
ROUTECAP_API int32_t routecap_routing_split(const routecap_routing *routing, uint64_t prompt_tokens, uint64_t generated_tokens,
                                            routecap_routing **prompt, routecap_routing **generated);
ROUTECAP_API int32_t routecap_routing_slice(const routecap_routing *routing, uint64_t first, uint64_t rows, routecap_routing **slice);
ROUTECAP_API int32_t routecap_routing_merge(const routecap_routing *const *routings, size_t count, uint32_t flags,
                                            routecap_routing **merged);
ROUTECAP_API int32_t routecap_routing_copy_to(const routecap_routing *routing, const routecap_copy_options *options, void *dst,
                                              size_t dst_bytes, uint8_t *mask, size_t mask_bytes, uint64_t *needed);
ROUTECAP_API int32_t routecap_routing_retain(const routecap_routing *routing);
ROUTECAP_API void routecap_routing_free(routecap_routing *routing);
typedef void (*routecap_release)(void *context);
#define ROUTECAP_IMPORT_TRUSTED 1u
ROUTECAP_API int32_t routecap_routing_serialize(const routecap_routing *routing, uint32_t flags, void *dst, size_t dst_bytes,
                                                uint64_t *needed);
ROUTECAP_API int32_t routecap_routing_deserialize(const void *data, size_t bytes, uint32_t flags, routecap_release release, void *context,
                                                  routecap_routing **routing);
ROUTECAP_API int32_t routecap_routing_import(const routecap_view *view, uint32_t flags, routecap_release release, void *context,
                                             routecap_routing **routing);
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
#define ROUTECAP_SERIALIZED_MIN 64
ROUTECAP_API int32_t routecap_serialized_info(const void *data, size_t bytes, routecap_serialized *info);
#define ROUTECAP_PIECE_HEADER 0
#define ROUTECAP_PIECE_HEAD 1
#define ROUTECAP_PIECE_TAIL 2
#define ROUTECAP_PIECE_ZERO 3
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
ROUTECAP_API int32_t routecap_serialized_splice(const void *head, size_t head_bytes, const void *tail, size_t tail_bytes, uint64_t row,
                                                void *header, size_t capacity, routecap_piece *pieces, size_t piece_size, size_t piece_capacity,
                                                routecap_splice *splice);
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
ROUTECAP_API const routecap_api *routecap_get_api(uint32_t major, uint32_t minor);
#ifdef __cplusplus
}
#endif
#endif

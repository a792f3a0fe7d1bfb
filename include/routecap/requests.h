/*
 * routecap: requests, from their opening to their end.
 */
#ifndef ROUTECAP_REQUESTS_H
#define ROUTECAP_REQUESTS_H

#include "reading.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ================================================================================================
 * Requests
 *
 * A request's length is one past its highest position that was issued and is settled, whether or not it was captured. A span with device
 * positions counts with its upper bound until it lands, and with its highest real position from then on; if it is lost or refused, its
 * bound stays. Reading a row at or beyond the length is ROUTECAP_ERR_OUT_OF_RANGE.
 *
 * The first valid value of a cell is final: issuing its position again keeps it and is counted. A cell that is missing is filled by a later
 * issue. A row's tag is that of the step that delivered its first valid cell. Of two rows for one position in one step, the first in the
 * order of spans and rows is the first.
 *
 * accept, truncate, fork, attach, finish and close apply to all steps issued before them, landed or not, and to none issued after. The rows
 * that they change, and rows between these, can be read once those of these steps that concern the request have landed.
 *
 * A request that is preempted and computed again keeps its handle: positions that are issued again keep their first values; after a truncate to 0
 * they are recorded anew, with other weights for instance.
 *
 * The batch forms make one call of many. They return ROUTECAP_OK if every item has the status ROUTECAP_OK, otherwise ROUTECAP_PARTIAL: look
 * at the status of each item.
 * ============================================================================================== */

#define ROUTECAP_POLICY_KEEP 0 /* a valid cell is final */
#define ROUTECAP_POLICY_REPLACE 1 /* a later row with a valid cell replaces the whole row, tag and missing cells included */

typedef struct routecap_open_options {
    uint32_t struct_size;
    int32_t policy; /* ROUTECAP_POLICY_* */
} routecap_open_options;

/**
 * Open requests.
 *
 * @param options   For all of them; NULL: the defaults.
 * @param requests  [count] receives the handles.
 * @return ROUTECAP_ERR_TOO_MANY_REQUESTS (none is opened).
 */
ROUTECAP_API int32_t routecap_request_open(routecap_capturer *capturer, const routecap_open_options *options, routecap_request *requests,
                                           size_t count);

/**
 * Settle the speculative rows of one request in one step: keep some, drop the others.
 *
 * May come before the step has landed and after later steps were issued. The rows of a step are
 * settled once. The first row of a verification, which is no draft, may be in the same span: it is
 * then one of those to keep. Rows that were lost, refused for memory or cut by a truncate in
 * between are accepted too, without effect but for the length of lost and refused ones.
 *
 * A kept row takes its place in the order of rows when accept is called: behind the rows of every
 * step that was issued before the call, and before those of every later step. So a row that was
 * issued for the same position before accept was called comes first.
 *
 * @param rows   NULL: the first `count` rows. Otherwise [count] strictly ascending indices into the request's speculative rows of
 *               that step as they were issued, in the order of the spans: the accepted path of a tree.
 * @param count  How many rows to keep; 0 keeps none.
 * @return ROUTECAP_ERR_UNKNOWN_REQUEST; ROUTECAP_ERR_UNKNOWN_STEP (no speculative rows of this request wait there: none were issued, or they are
 *         settled); ROUTECAP_ERR_OUT_OF_RANGE (more rows than there are, or an index outside them).
 */
ROUTECAP_API int32_t routecap_request_accept(routecap_capturer *capturer, routecap_request request, routecap_step step, const uint32_t *rows,
                                             size_t count);

/* One call of routecap_request_accept. */
typedef struct routecap_accept_item {
    routecap_request request;
    routecap_step step;
    const uint32_t *rows;
    uint64_t count;
    int32_t status;   /* receives the status of this item */
    int32_t reserved; /* 0 */
} routecap_accept_item;

/**
 * Settle the speculative rows of many requests in one call.
 *
 * @param items      [count] of item_size bytes each.
 * @param item_size  sizeof(routecap_accept_item) of the caller.
 * @return ROUTECAP_OK; ROUTECAP_PARTIAL.
 */
ROUTECAP_API int32_t routecap_request_accept_batch(routecap_capturer *capturer, routecap_accept_item *items, size_t item_size, size_t count);

/**
 * Cut a request: rows at and after position `rows` are gone, whether settled, provisional or in flight. Later spans may record those
 * positions anew. Nothing happens if the request is shorter.
 *
 * @return ROUTECAP_ERR_UNKNOWN_REQUEST.
 */
ROUTECAP_API int32_t routecap_request_truncate(routecap_capturer *capturer, routecap_request request, uint64_t rows);

/**
 * Open a request that begins with rows 0..rows-1 of another: several samples of one prompt, a beam. The pages are shared, not copied. Rows in
 * flight are included once they land; provisional rows are not. Without memory for its table of pages the child's shared rows are missing.
 *
 * Until the rows of steps in flight have landed, the shared rows cannot be taken from the parent (ROUTECAP_ERR_NOT_READY).
 *
 * @param rows   At most the parent's length (ROUTECAP_ERR_OUT_OF_RANGE otherwise); ROUTECAP_ROWS_ALL: its length at this moment.
 * @param child  Receives the handle. It has the parent's policy.
 * @return ROUTECAP_ERR_UNKNOWN_REQUEST; ROUTECAP_ERR_OUT_OF_RANGE; ROUTECAP_ERR_TOO_MANY_REQUESTS.
 */
ROUTECAP_API int32_t routecap_request_fork(routecap_capturer *capturer, routecap_request request, uint64_t rows, routecap_request *child);

/**
 * Supply rows of a routing as rows of a request: the positions before `rows` that an engine took from its prefix cache and did not compute,
 * from the routing of the request that did. Whether both really have the same tokens there is the caller's knowledge.
 *
 * Positions are those of the routing. Cells that the request has already are kept, also with ROUTECAP_POLICY_REPLACE. Pages are shared where
 * their rows line up; where they do not, rows are copied, or refused for memory and missing. The request's length becomes at least the
 * end of what was attached.
 *
 * @param routing  Retained as long as needed. May be pending if it comes from a request of the same capturer.
 * @param rows     One past the last position to attach; at most the end of the routing; ROUTECAP_ROWS_ALL: its end.
 * @return ROUTECAP_ERR_UNKNOWN_REQUEST; ROUTECAP_ERR_SHAPE_MISMATCH (also a layer that is recomputed in the routing and captured here);
 *         ROUTECAP_ERR_OUT_OF_RANGE (rows beyond the routing);
 *         ROUTECAP_ERR_NOT_READY (pending, of another capturer).
 */
ROUTECAP_API int32_t routecap_request_attach(routecap_capturer *capturer, routecap_request request, const routecap_routing *routing,
                                             uint64_t rows);

/* ---- Reading ------------------------------------------------------------------------------- */

/**
 * Say which cells of a range of rows are there and which are missing.
 *
 * @param first         Position of the first row.
 * @param rows          How many; ROUTECAP_ROWS_ALL; ROUTECAP_ROWS_LANDED.
 * @param coverage      Filled.
 * @param missing       [capacity] receives the first blocks; may be NULL if capacity is 0.
 * @param missing_size  sizeof(routecap_missing) of the caller.
 * @return ROUTECAP_OK; ROUTECAP_INCOMPLETE (also if nothing at all is there); ROUTECAP_ERR_UNKNOWN_REQUEST; ROUTECAP_ERR_OUT_OF_RANGE;
 *         ROUTECAP_ERR_NOT_READY; ROUTECAP_ERR_DISABLED.
 */
ROUTECAP_API int32_t routecap_request_coverage(routecap_capturer *capturer, routecap_request request, uint64_t first, uint64_t rows,
                                               routecap_coverage *coverage, routecap_missing *missing, size_t missing_size, size_t capacity);

#define ROUTECAP_EXTRACT_SHARE 0 /* the request keeps the rows; pages are shared */
#define ROUTECAP_EXTRACT_TAKE 1 /* the rows leave the request, where they are missing from then on */
#define ROUTECAP_EXTRACT_COPY 2 /* the request keeps the rows; the routing is one array (one segment) of its own */

/**
 * Read rows of a request into a routing, at any time of its life.
 *
 * share and take cost a few nanoseconds per page; copy costs one pass over the rows. Their memory
 * counts in the budget until the routing is freed; copy takes new memory from it, and so does a
 * take that leaves rows on both sides in one page. Rows that drafts or steps in flight name too may
 * have to be copied later: memory for that is reserved now, or the call returns
 * ROUTECAP_ERR_NO_MEMORY.
 *
 * @param first    Position of the first row, at most the length.
 * @param rows     How many; ROUTECAP_ROWS_ALL; ROUTECAP_ROWS_LANDED; 0 gives a routing without rows.
 * @param mode     ROUTECAP_EXTRACT_*.
 * @param flags    0 or ROUTECAP_READ_STRICT, with or without ROUTECAP_READ_ALLOW_RECOMPUTED.
 * @param routing  Receives the routing, to be freed with routecap_routing_free; NULL on error.
 * @return ROUTECAP_OK; ROUTECAP_INCOMPLETE (the valid cells are delivered); ROUTECAP_NOT_CAPTURED (a routing of missing rows);
 *         ROUTECAP_ERR_UNKNOWN_REQUEST; ROUTECAP_ERR_OUT_OF_RANGE; ROUTECAP_ERR_NOT_READY; ROUTECAP_ERR_INCOMPLETE (strict);
 *         ROUTECAP_ERR_RECOMPUTED (strict); ROUTECAP_ERR_DISABLED.
 */
ROUTECAP_API int32_t routecap_request_extract(routecap_capturer *capturer, routecap_request request, uint64_t first, uint64_t rows, int32_t mode,
                                              uint32_t flags, routecap_routing **routing);

/* One call of routecap_request_extract. */
typedef struct routecap_extract_item {
    routecap_request request;
    uint64_t first;
    uint64_t rows;
    int32_t mode;
    uint32_t flags;
    routecap_routing *routing; /* receives the routing */
    int32_t status;            /* receives the status of this item */
    int32_t reserved;          /* 0 */
} routecap_extract_item;

/**
 * Read rows of many requests in one call.
 *
 * @param items      [count] of item_size bytes each.
 * @param item_size  sizeof(routecap_extract_item) of the caller.
 * @return ROUTECAP_OK; ROUTECAP_PARTIAL; ROUTECAP_ERR_DISABLED.
 */
ROUTECAP_API int32_t routecap_request_extract_batch(routecap_capturer *capturer, routecap_extract_item *items, size_t item_size, size_t count);

/**
 * Copy rows of a request to the caller's memory without making a routing.
 *
 * A fill that, in this dtype, is an expert id needs a mask or ROUTECAP_READ_STRICT: missing cells must not pass for routing. With 8 bits and
 * 256 experts every fill is one. Waits as reading does.
 *
 * @param first       Position of the first row, at most the length.
 * @param rows        How many; ROUTECAP_ROWS_ALL; ROUTECAP_ROWS_LANDED.
 * @param dst         [rows, layers, k] elements of options->dtype in the layout of options; NULL with dst_bytes 0 to ask for the size, which
 *                    returns ROUTECAP_ERR_BUFFER_TOO_SMALL.
 * @param dst_bytes   Size of dst.
 * @param mask        [rows, layers] or [layers, rows] bytes, as the order says: 1 where the cell is valid, otherwise 0. NULL: none.
 * @param mask_bytes  Size of mask.
 * @param needed      Receives the bytes that dst needs; may be NULL. Set on ROUTECAP_ERR_BUFFER_TOO_SMALL too.
 * @return As routecap_request_extract, and ROUTECAP_ERR_BUFFER_TOO_SMALL (dst or mask; nothing is written);
 *         ROUTECAP_ERR_DTYPE (ids up to experts-1, or the fill, do not fit); ROUTECAP_ERR_UNKNOWN_LAYER;
 *         ROUTECAP_ERR_ARGUMENT (strides that do not put all layers of a row before the next row, or all rows of a layer before the next layer; a
 *         fill that is an expert id).
 */
ROUTECAP_API int32_t routecap_request_extract_into(routecap_capturer *capturer, routecap_request request, uint64_t first, uint64_t rows,
                                                   const routecap_copy_options *options, void *dst, size_t dst_bytes, uint8_t *mask,
                                                   size_t mask_bytes, uint64_t *needed);

/* ---- The end of a request ------------------------------------------------------------------ */

/**
 * End a request and get its rows: the ordinary end.
 *
 * The handle is stale at once. Steps issued before still file into the routing, which is ready when the last of them has landed; nobody waits
 * here. Speculative rows that were not accepted are dropped. The routing begins at position 0; rows that were taken before are missing in it.
 *
 * @param rows     The routing has exactly so many rows: later ones are cut, absent ones are missing. A sequence of S tokens has S-1, whatever was
 *                 issued ahead. ROUTECAP_ROWS_ALL: the request's length, rows issued ahead included.
 * @param routing  Receives the routing, to be freed with routecap_routing_free; see routecap_routing_wait.
 * @return ROUTECAP_ERR_UNKNOWN_REQUEST; ROUTECAP_ERR_OUT_OF_RANGE (rows beyond ROUTECAP_MAX_POSITION); ROUTECAP_ERR_DISABLED.
 */
ROUTECAP_API int32_t routecap_request_finish(routecap_capturer *capturer, routecap_request request, uint64_t rows, routecap_routing **routing);

/* One call of routecap_request_finish. */
typedef struct routecap_finish_item {
    routecap_request request;
    uint64_t rows;
    routecap_routing *routing; /* receives the routing */
    int32_t status;            /* receives the status of this item */
    int32_t reserved;          /* 0 */
} routecap_finish_item;

/**
 * End many requests in one call.
 *
 * @param items      [count] of item_size bytes each.
 * @param item_size  sizeof(routecap_finish_item) of the caller.
 * @return ROUTECAP_OK; ROUTECAP_PARTIAL (see the status of each item); ROUTECAP_ERR_DISABLED.
 */
ROUTECAP_API int32_t routecap_request_finish_batch(routecap_capturer *capturer, routecap_finish_item *items, size_t item_size, size_t count);

/**
 * End a request and drop its rows: an abort, or a preemption whose rows are not wanted. Rows in flight are dropped when they land.
 *
 * @param request  0 is allowed and ignored.
 * @return ROUTECAP_ERR_UNKNOWN_REQUEST.
 */
ROUTECAP_API int32_t routecap_request_close(routecap_capturer *capturer, routecap_request request);

/**
 * End many requests and drop their rows.
 *
 * @param requests  [count]; 0 is allowed and ignored.
 * @param status    [count] receives the status of each; may be NULL.
 * @return ROUTECAP_OK; ROUTECAP_PARTIAL.
 */
ROUTECAP_API int32_t routecap_request_close_batch(routecap_capturer *capturer, const routecap_request *requests, int32_t *status, size_t count);

#ifdef __cplusplus
}
#endif

#endif /* ROUTECAP_REQUESTS_H */

/*
 * routecap, chapter 5: requests. To get the rows of one sequence, open a request, issue its spans,
 * and finish it.
 *
 * Copyright 2026 The routecap authors. Licensed under the Apache License, Version 2.0; see LICENSE.
 *
 * A request is a sequence whose rows are captured. Spans of routecap_step_issue add rows to it. The
 * calls of this chapter open it, accept its drafts, cut it, fork it, read its rows while it runs,
 * and end it.
 *
 * Most programs need these six functions:
 *
 *   routecap_request_open          when a sequence begins
 *   routecap_request_accept        when a verification has decided which drafts stay
 *   routecap_request_truncate      when the engine rolls back tokens
 *   routecap_request_fork          when several samples share a prompt
 *   routecap_request_finish        at the end: get the routing
 *   routecap_request_close         at the end: drop the rows
 *
 *     routecap_request_open(capturer, NULL, &request, 1);
 *     ... steps whose spans name the request ...
 *     routecap_request_finish(capturer, request, tokens - 1, &routing);
 *     routecap_routing_wait(routing, -1);                     // until its last step has landed
 *
 * ------------------------------------------------------------------------------------------------
 * In detail
 * ------------------------------------------------------------------------------------------------
 * The rest of the chapter: prefixes that an engine took from its cache and did not compute
 * (attach), reading a running request (coverage, extract, extract_into), and batch forms.
 *
 * Recipes:
 *   - Preemption (the engine drops what it computed for a sequence, to resume it later): keep the
 *     handle. When the engine computes the tokens again, issue their positions again. Cells that
 *     are already valid keep their values. To record them anew, for example because the weights
 *     changed, first call routecap_request_truncate with 0 rows.
 *   - Abort: routecap_request_close drops the rows. If you want the rows so far, call
 *     routecap_request_finish instead. Either works while steps are in flight.
 *   - Chunked prefill: issue one span for each chunk, with the position of the chunk's first token.
 *   - Drafts: issue them with ROUTECAP_SPAN_SPECULATIVE, and call routecap_request_accept after the
 *     verification. If an engine issues drafts in ordinary spans, cut the rejected rows with
 *     routecap_request_truncate. capture.h has the recipe for engines that learn the result later.
 *   - Prefix cache (tokens that the engine did not compute): if you publish rows to a store, call
 *     routecap_request_adopt (store.h). If you hold the routing of the request that computed the
 *     tokens, call routecap_request_attach.
 *   - Several samples of one prompt: issue the prompt once, then call routecap_request_fork for
 *     each further sample.
 *   - Weight updates during a request: nothing to do here. The tag of each row says which weights
 *     computed it, if each step has the version as its tag (routecap_issue_options.tag).
 *   - Data parallel ranks: a request belongs to the capturer of one rank. If the engine moves a
 *     sequence to another rank, finish the request on the first rank. On the other rank open a
 *     request, and attach the routing once it is ready. serialized.h carries a routing to another
 *     process.
 *
 * ------------------------------------------------------------------------------------------------
 * In detail: rules for all calls
 * ------------------------------------------------------------------------------------------------
 * Length. A request's length is one past its highest position that was issued, whether or not that
 * row was captured. A draft counts once accept has kept it. Attach and adopt extend the length, and
 * truncate cuts it. Until a span with device positions lands (of drafts: until their accept is
 * carried out), its upper bound counts; after that its highest real position counts. If such a span
 * is lost or refused, its upper bound stays. A row that truncate cut counts up to the cut, whether
 * or not it had landed then. Reading a row at or beyond the length returns
 * ROUTECAP_ERR_OUT_OF_RANGE.
 *
 * First value. The first valid value of a cell is final. If a position is issued again, its valid
 * cells keep their values, and the row is counted (stats.rows_overlapped). Cells that are missing
 * are filled by the later issue. The tag of a row is the lowest tag among the steps that its valid
 * cells came from. If one step has two rows for one position, the row in the earlier span comes
 * first; within a span, the earlier row does. ROUTECAP_POLICY_REPLACE has a different rule.
 *
 * Order. accept, truncate, fork, attach, adopt, finish and close apply to all steps that were
 * issued before the call, landed or not, and to no step that is issued later. Each of these calls
 * changes some rows: the drafts that accept keeps, the rows at and after a cut, the rows that a
 * fork, attach or adopt brings. You can read them once all earlier steps with spans of the request
 * have landed. However many calls wait, each holds up its own rows and no others.
 *
 * Batch forms do the work of many calls in one. They return ROUTECAP_OK if the status of every item
 * is ROUTECAP_OK. Otherwise they return ROUTECAP_PARTIAL: check the status of each item.
 */
#ifndef ROUTECAP_REQUESTS_H
#define ROUTECAP_REQUESTS_H

#include "reading.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ================================================================================================
 * Beginning
 * ============================================================================================== */

#define ROUTECAP_POLICY_KEEP 0    /* a valid cell is final */
#define ROUTECAP_POLICY_REPLACE 1 /* a later row with a valid cell replaces the whole earlier row. A
                                     cell that is missing in the later row is then missing, even if
                                     the earlier row had it */
typedef int32_t routecap_policy; /* @one_of(ROUTECAP_POLICY_*) */

/* Options of a new request. */
typedef struct routecap_open_options {
    uint32_t struct_size;
    routecap_policy policy; /* ROUTECAP_POLICY_*; default KEEP */
} routecap_open_options;

/**
 * Open one or more requests.
 *
 * @param[in] capturer   The capturer.
 * @param[in] options    They apply to all requests of the call; NULL: the defaults.
 * @param[out] requests  [count] the handles.
 * @param[in] count      How many requests.
 * @return ROUTECAP_OK; ROUTECAP_ERR_TOO_MANY_REQUESTS (none is opened).
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_request_open(routecap_capturer *capturer, const routecap_open_options *options,
                      routecap_request *requests, size_t count);

/* ================================================================================================
 * Changing
 * ============================================================================================== */

/**
 * Settle the drafts that one step issued for one request: keep some, drop the others.
 *
 * Drafts are the rows of spans with ROUTECAP_SPAN_SPECULATIVE. The drafts of a step can be settled
 * only once. You may call accept before the step has landed, and after later steps were issued.
 * Later spans may record the positions of dropped drafts.
 *
 * The pass that verifies speculative tokens also computes a row for the token before them. If that
 * row is in the same span, it counts as draft 0, and you must keep it: add 1 to the number of
 * accepted tokens. For example, a span of 5 rows verifies 4 tokens. If the first 2 of them are
 * accepted, count is 3.
 *
 * If several rows have one position, a kept draft counts as issued at the moment of the accept:
 * after the rows of all steps that were issued before the accept, and before those of later steps.
 *
 * You may keep rows that were lost, refused for memory or cut in the meantime. Lost and refused
 * rows then count towards the request's length. Keeping a row that was cut has no effect.
 *
 * @param[in] capturer  The capturer.
 * @param[in] request   The request.
 * @param[in] step      The ticket of the step that issued the drafts.
 * @param[in] rows      [count] strictly ascending indices of the drafts to keep, such as the
 *                      accepted path of a tree. The request's drafts of that step are numbered
 *                      from 0 in the order of the spans. NULL: the first `count` drafts.
 * @param[in] count     How many drafts to keep; 0 keeps none.
 * @return ROUTECAP_OK; ROUTECAP_ERR_UNKNOWN_REQUEST; ROUTECAP_ERR_UNKNOWN_STEP (the request has no
 *         drafts in that step: none were issued, or they are settled); ROUTECAP_ERR_OUT_OF_RANGE
 *         (an index or a count beyond the drafts).
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_request_accept(routecap_capturer *capturer, routecap_request request, routecap_step step,
                        const uint32_t *rows, size_t count);

/* One call of routecap_request_accept: its parameters, and its status. */
typedef struct routecap_accept_item {
    routecap_request request;
    routecap_step step;
    const uint32_t *rows; /* [count]; may be NULL, as in routecap_request_accept */
    uint64_t count;
    routecap_status status; /* receives the status of this item */
    int32_t reserved;       /* 0 */
} routecap_accept_item;

/**
 * Settle the drafts of many requests in one call.
 *
 * @param[in] capturer   The capturer.
 * @param[in,out] items  [count] elements of item_size bytes.
 * @param[in] item_size  sizeof(routecap_accept_item) of the caller, in bytes.
 * @param[in] count      How many items.
 * @return ROUTECAP_OK; ROUTECAP_PARTIAL.
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_request_accept_batch(routecap_capturer *capturer, routecap_accept_item *items,
                              size_t item_size, size_t count);

/**
 * Cut a request: drop its rows at and after a position, whether settled, provisional or in flight.
 *
 * Later spans may record those positions anew. If no row was issued at or after `rows`, nothing
 * happens.
 *
 * @param[in] capturer  The capturer.
 * @param[in] request   The request.
 * @param[in] rows      How many rows stay: the position of the first row that is dropped.
 * @return ROUTECAP_OK; ROUTECAP_ERR_UNKNOWN_REQUEST.
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_request_truncate(routecap_capturer *capturer, routecap_request request, uint64_t rows);

/**
 * Open a request that begins with the first rows of another. Use it for several samples of one
 * prompt, or for a beam.
 *
 * Pages are shared, not copied. The child gets rows in flight once they land. It does not get
 * provisional rows. If there is no memory for the child's table of pages, its shared rows are
 * missing. The parent's shared rows cannot be taken (ROUTECAP_EXTRACT_TAKE) until its steps that
 * are in flight at the fork have landed; before that, taking returns ROUTECAP_ERR_NOT_READY.
 *
 * @param[in] capturer  The capturer.
 * @param[in] request   The parent.
 * @param[in] rows      How many rows: at most the parent's length. ROUTECAP_ROWS_ALL: the parent's
 *                      length at this moment.
 * @param[out] child    The handle; 0 on error. The child has the parent's policy.
 * @return ROUTECAP_OK; ROUTECAP_ERR_UNKNOWN_REQUEST; ROUTECAP_ERR_OUT_OF_RANGE;
 *         ROUTECAP_ERR_TOO_MANY_REQUESTS.
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_request_fork(routecap_capturer *capturer, routecap_request request, uint64_t rows,
                      routecap_request *child);

/**
 * Add rows of a routing to a request. Use it if an engine took tokens from its prefix cache: the
 * routing of the request that computed these tokens has their rows.
 *
 * Rows keep their positions. You vouch that the routing and the request have the same tokens at
 * these positions. Cells that the request already has are kept, even with ROUTECAP_POLICY_REPLACE.
 * Where rows line up with pages, the pages are shared. Other rows are copied; if there is no memory
 * for a copy, they are missing (REFUSED). If the request's length was less than `rows`, it becomes
 * `rows`. With `rows` up to the routing's first row nothing is added, and the length stays.
 *
 * @param[in] capturer  The capturer.
 * @param[in] request   The request.
 * @param[in] routing   The routing, which the library retains as long as it needs it. It may be
 *                      pending if it comes from a request of the same capturer.
 * @param[in] rows      One past the last position to add: at most the end of the routing.
 *                      ROUTECAP_ROWS_ALL: the end of the routing.
 * @return ROUTECAP_OK; ROUTECAP_ERR_UNKNOWN_REQUEST; ROUTECAP_ERR_SHAPE_MISMATCH (also if the
 *         weights_dtype differs, or if a layer is recomputed in the routing and captured here);
 *         ROUTECAP_ERR_OUT_OF_RANGE;
 *         ROUTECAP_ERR_NOT_READY (pending, and of another capturer).
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_request_attach(routecap_capturer *capturer, routecap_request request,
                        const routecap_routing *routing, uint64_t rows);

/* ================================================================================================
 * Ending
 * ============================================================================================== */

/**
 * End a request and get its rows. This is the usual way to end a request.
 *
 * The handle ends with the call. Rows of steps that were issued before the call are still filed
 * into the routing. The routing is ready when the last of these steps has landed;
 * routecap_routing_wait waits for that. Drafts that were not accepted are dropped. The routing
 * begins at position 0. Rows that an extract took earlier are missing in it (TAKEN).
 *
 * @param[in] capturer  The capturer.
 * @param[in] request   The request.
 * @param[in] rows      How many rows the routing has. Those of them that were never issued are
 *                      missing (ABSENT). Later rows are cut. For a sequence of S tokens pass S-1,
 *                      even if the engine issued further rows ahead. ROUTECAP_ROWS_ALL: the
 *                      request's length, rows issued ahead included.
 * @param[out] routing  The routing, to be freed with routecap_routing_free; NULL on error.
 * @return ROUTECAP_OK; ROUTECAP_ERR_UNKNOWN_REQUEST; ROUTECAP_ERR_OUT_OF_RANGE (rows beyond
 *         ROUTECAP_MAX_POSITION); ROUTECAP_ERR_DISABLED.
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_request_finish(routecap_capturer *capturer, routecap_request request, uint64_t rows,
                        routecap_routing **routing);

/* One call of routecap_request_finish: its parameters, and its status. */
typedef struct routecap_finish_item {
    routecap_request request;
    uint64_t rows;
    routecap_routing *routing; /* receives the routing; NULL on error */
    routecap_status status;    /* receives the status of this item */
    int32_t reserved;          /* 0 */
} routecap_finish_item;

/**
 * End many requests and get their rows, in one call.
 *
 * @param[in] capturer   The capturer.
 * @param[in,out] items  [count] elements of item_size bytes.
 * @param[in] item_size  sizeof(routecap_finish_item) of the caller, in bytes.
 * @param[in] count      How many items.
 * @return ROUTECAP_OK; ROUTECAP_PARTIAL; ROUTECAP_ERR_DISABLED.
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_request_finish_batch(routecap_capturer *capturer, routecap_finish_item *items,
                              size_t item_size, size_t count);

/**
 * End a request and drop its rows: for example after an abort, or after a preemption if you do not
 * want to keep the rows.
 *
 * Rows in flight are dropped when they land.
 *
 * @param[in] capturer  The capturer.
 * @param[in] request   The request; 0 is allowed and ignored.
 * @return ROUTECAP_OK; ROUTECAP_ERR_UNKNOWN_REQUEST.
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_request_close(routecap_capturer *capturer, routecap_request request);

/**
 * End many requests and drop their rows, in one call.
 *
 * @param[in] capturer  The capturer.
 * @param[in] requests  [count] the requests; 0 is allowed and ignored.
 * @param[out] status   [count] the status of each; may be NULL.
 * @param[in] count     How many requests.
 * @return ROUTECAP_OK; ROUTECAP_PARTIAL.
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_request_close_batch(routecap_capturer *capturer, const routecap_request *requests,
                             routecap_status *status, size_t count);

/* ================================================================================================
 * Reading a request that runs
 * ============================================================================================== */

/**
 * Tell which cells of a range of rows are valid and which are missing.
 *
 * @param[in] capturer      The capturer.
 * @param[in] request       The request.
 * @param[in] first         Position of the first row, at most the length.
 * @param[in] rows          How many rows; ROUTECAP_ROWS_ALL; ROUTECAP_ROWS_LANDED.
 * @param[out] coverage     The counts.
 * @param[out] missing      [capacity] elements of missing_size bytes: the first blocks of missing
 *                          cells. coverage->blocks is the number of all of them. May be NULL if
 *                          capacity is 0.
 * @param[in] missing_size  sizeof(routecap_missing) of the caller, in bytes.
 * @param[in] capacity      How many elements there is room for.
 * @return ROUTECAP_OK; ROUTECAP_INCOMPLETE (also if no cell is valid);
 *         ROUTECAP_ERR_UNKNOWN_REQUEST; ROUTECAP_ERR_OUT_OF_RANGE; ROUTECAP_ERR_NOT_READY;
 *         ROUTECAP_ERR_DISABLED.
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_request_coverage(routecap_capturer *capturer, routecap_request request, uint64_t first,
                          uint64_t rows, routecap_coverage *coverage, routecap_missing *missing,
                          size_t missing_size, size_t capacity);

#define ROUTECAP_EXTRACT_SHARE 0 /* the request keeps the rows; pages are shared */
#define ROUTECAP_EXTRACT_TAKE 1  /* the rows leave the request, where they are missing afterwards */
#define ROUTECAP_EXTRACT_COPY 2  /* the request keeps the rows; the routing is one array (one
                                    segment) of its own */
typedef int32_t routecap_extract_mode; /* @one_of(ROUTECAP_EXTRACT_*) */

/**
 * Read rows of a request into a routing.
 *
 * TAKE returns ROUTECAP_ERR_NOT_READY as long as a fork or a publish (store.h) is still to get some
 * of the rows: until the request's steps that were in flight at that call have landed.
 *
 * SHARE and TAKE cost a few nanoseconds per page. COPY costs one pass over the rows. The memory of
 * the rows counts in the budget until the routing is freed. COPY takes new memory from the budget.
 * TAKE does too if all taken rows lie in one page, and rows before and after them stay in it.
 * Without that memory the call returns ROUTECAP_ERR_NO_MEMORY. SHARE needs no new memory.
 *
 * Drafts, and steps that are issued after the call, may still fill cells at positions that are read
 * here. Whoever files them then copies the page first, because a routing never changes. That copy
 * may exceed the budget (see routecap_step_issue).
 *
 * @param[in] capturer  The capturer.
 * @param[in] request   The request.
 * @param[in] first     Position of the first row, at most the length.
 * @param[in] rows      How many rows; ROUTECAP_ROWS_ALL; ROUTECAP_ROWS_LANDED. 0 gives a routing
 *                      without rows.
 * @param[in] mode      ROUTECAP_EXTRACT_*.
 * @param[in] flags     0, or ROUTECAP_READ_*.
 * @param[out] routing  The routing, to be freed with routecap_routing_free; NULL on error.
 * @return ROUTECAP_OK; ROUTECAP_INCOMPLETE (the valid cells are delivered); ROUTECAP_NOT_CAPTURED
 *         (a routing whose cells are all missing); ROUTECAP_ERR_UNKNOWN_REQUEST;
 *         ROUTECAP_ERR_OUT_OF_RANGE; ROUTECAP_ERR_NOT_READY; ROUTECAP_ERR_INCOMPLETE (strict);
 *         ROUTECAP_ERR_RECOMPUTED (strict); ROUTECAP_ERR_DISABLED.
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_request_extract(routecap_capturer *capturer, routecap_request request, uint64_t first,
                         uint64_t rows, routecap_extract_mode mode, routecap_read_flags flags,
                         routecap_routing **routing);

/* One call of routecap_request_extract: its parameters, and its status. */
typedef struct routecap_extract_item {
    routecap_request request;
    uint64_t first;
    uint64_t rows;
    routecap_extract_mode mode;
    routecap_read_flags flags;
    routecap_routing *routing; /* receives the routing; NULL on error */
    routecap_status status;    /* receives the status of this item */
    int32_t reserved;          /* 0 */
} routecap_extract_item;

/**
 * Read rows of many requests in one call.
 *
 * @param[in] capturer   The capturer.
 * @param[in,out] items  [count] elements of item_size bytes.
 * @param[in] item_size  sizeof(routecap_extract_item) of the caller, in bytes.
 * @param[in] count      How many items.
 * @return ROUTECAP_OK; ROUTECAP_PARTIAL (also if an item is INCOMPLETE); ROUTECAP_ERR_DISABLED.
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_request_extract_batch(routecap_capturer *capturer, routecap_extract_item *items,
                               size_t item_size, size_t count);

/**
 * Copy rows of a request to the caller's memory, without a routing.
 *
 * If the fill of missing cells, in this dtype, is also an expert id, a reader could not tell the
 * two apart. The call then requires a mask or ROUTECAP_READ_STRICT. With 8 bits and 256 experts,
 * every fill is an expert id.
 *
 * Where cells may have fewer than k experts, options->none must not be an expert id in this dtype.
 * If it equals the fill, the call requires a mask or ROUTECAP_READ_STRICT too.
 *
 * The call copies ids alone. To copy weights, extract a routing and call
 * routecap_routing_copy_weights.
 *
 * @param[in] capturer    The capturer.
 * @param[in] request     The request.
 * @param[in] first       Position of the first row, at most the length.
 * @param[in] rows        How many rows; ROUTECAP_ROWS_ALL; ROUTECAP_ROWS_LANDED.
 * @param[in] options     The dtype, layers and layout of dst.
 * @param[out] dst        [rows, layers, k] elements of options->dtype, in the layout of options.
 *                        NULL with dst_bytes 0 asks for the size, and the call returns
 *                        ROUTECAP_ERR_BUFFER_TOO_SMALL.
 * @param[in] dst_bytes   Size of dst, in bytes.
 * @param[out] mask       [rows, layers] or [layers, rows] bytes, as options->order says: 1 for a
 *                        valid cell, 0 for a missing one; NULL if you do not want it.
 * @param[in] mask_bytes  Size of mask, in bytes.
 * @param[out] needed     How many bytes dst needs, set on ROUTECAP_ERR_BUFFER_TOO_SMALL too; may be
 *                        NULL.
 * @return As routecap_request_extract, and ROUTECAP_ERR_BUFFER_TOO_SMALL (dst or mask; nothing is
 *         written); ROUTECAP_ERR_DTYPE (the dtype cannot hold experts - 1, the fill or `none`);
 *         ROUTECAP_ERR_UNKNOWN_LAYER; ROUTECAP_ERR_ARGUMENT (a fill or a `none` that could be
 *         mistaken, see above; or strides with which cells overlap: each row must end before the
 *         next row begins, or each layer before the next layer begins).
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_request_extract_into(routecap_capturer *capturer, routecap_request request, uint64_t first,
                              uint64_t rows, const routecap_copy_options *options, void *dst,
                              size_t dst_bytes, uint8_t *mask, size_t mask_bytes, uint64_t *needed);

#ifdef __cplusplus
}
#endif

#endif /* ROUTECAP_REQUESTS_H */

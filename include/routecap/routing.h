/*
 * routecap, chapter 6: routings. To use the rows of a request, view or copy them here.
 *
 * Copyright 2026 The routecap authors. Licensed under the Apache License, Version 2.0; see LICENSE.
 *
 * A routing holds rows that were read from a request: their ids, validity and tags, their weights
 * if these were captured, and the list of their layers. It is immutable. Any number of threads of
 * the process that made it may use it at once, even after its request has ended, its capturer is
 * destroyed, or the device is lost.
 *
 * Most programs need these six functions:
 *
 *   routecap_routing_wait        wait until a routing is ready
 *   routecap_routing_view        look at its rows in place
 *   routecap_routing_copy_to     copy its ids to memory of the caller
 *   routecap_routing_coverage    find which cells are missing, and why
 *   routecap_routing_split       divide it into prompt and generated tokens
 *   routecap_routing_free        free it
 *
 *     routecap_routing_wait(routing, -1);                     // pending until its rows have landed
 *     routecap_view view = {.struct_size = sizeof view};
 *     routecap_routing_view(routing, &view);                  // in place: nothing is copied
 *     routecap_routing_copy_to(routing, &options,             // or a copy; options: reading.h
 *                              ids, sizeof ids, NULL, 0, NULL);
 *     routecap_routing_free(routing);
 *
 * ------------------------------------------------------------------------------------------------
 * In detail
 * ------------------------------------------------------------------------------------------------
 * A routing of routecap_request_finish is pending until its last step has landed. Until then all
 * functions return ROUTECAP_ERR_NOT_READY, except wait, poll, retain, free, and
 * routecap_request_attach to a request of the same capturer. All other routings are ready from the
 * start.
 *
 * The rest of the chapter: poll, copying weights, slice, merge, and counting references.
 *
 * Recipes:
 *   - Pipeline stages or sequence-parallel ranks: each rank serialises its routing (serialized.h).
 *     Deserialise all of them in one process, and join them with routecap_routing_merge.
 *   - Turns of a conversation: do not merge them, but append them to a sequence (sequence.h), which
 *     decides which row stays if two turns computed a row of the same token.
 *   - A response that was cut: routecap_routing_slice keeps the rows of the tokens that remain.
 *   - Rows for a trainer's rank: do not copy them here, but make a plan (plan.h).
 */
#ifndef ROUTECAP_ROUTING_H
#define ROUTECAP_ROUTING_H

#include "reading.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Consecutive rows, view.row_stride bytes apart: row r has its ids at `ids` plus r * row_stride
 * bytes. Its validity, its weights and their validity are found likewise, each from its own
 * pointer. The rows of a routing may be in several segments: routecap_routing_copy_to and
 * routecap_routing_copy_weights make one array of them all.
 */
typedef struct routecap_segment {
    uint64_t first;          /* position of the first row */
    uint64_t rows;           /* how many */
    const void *ids;         /* of the first row: [layers, k] elements of view.dtype, in C order.
                                NULL: all cells of these rows are missing, and `reason` says why */
    const uint8_t *validity; /* of the first row: [validity_bytes] bit l % 8 of byte l / 8, from the
                                least significant, is 1 if layer l is valid. NULL: all layers of all
                                these rows are */
    const uint64_t *tags;    /* [rows] the tag of each row, meaningless where no cell of the row is
                                valid; NULL: `tag` is the tag of all rows */
    uint64_t tag;            /* the tag of all rows, where tags is NULL */
    routecap_reason reason;  /* with ids NULL: ROUTECAP_MISSING_*, one of the reasons of whole rows.
                                Otherwise 0 */
    uint32_t reserved;       /* 0 */
    const void *weights;     /* of the first row: [layers, k] elements of view.weights_dtype; 0 in
                                columns without an expert and in cells without weights. NULL if ids
                                is NULL, or if view.weights_dtype is 0 */
    const uint8_t *weights_validity; /* of the first row: [validity_bytes] bits as in `validity`: 1
                                        if the weights of the layer are there. Unlike `validity`
                                        never NULL where there are weights */
} routecap_segment;

/*
 * The contents of a routing, in place.
 *
 * In a cell that is not valid, the first of the k ids is the reason, ROUTECAP_MISSING_*. Imported
 * arrays may have a different number there: the reason is then UNWRITTEN. The other ids of the cell
 * have no meaning.
 *
 * A valid cell with fewer than k experts has them in its first columns. In its other columns all
 * bits are set: 255 as a uint8, -1 as an int16.
 */
typedef struct routecap_view {
    uint32_t struct_size;
    routecap_dtype dtype;       /* of the ids: ROUTECAP_DTYPE_U8 if experts <= 256, or <= 255 where
                                   a cell may have fewer than k; otherwise _I16 */
    uint32_t layers;            /* captured layers that the routing has */
    uint32_t k;                 /* columns of a cell: the most experts of a token */
    uint32_t experts;           /* the most of any layer */
    uint32_t validity_bytes;    /* bytes of validity per row */
    routecap_id_space id_space; /* ROUTECAP_ID_SPACE_* */
    int32_t complete;           /* 1: no cell is missing; otherwise 0 */
    uint64_t first;             /* position of the first row */
    uint64_t rows;              /* of the whole routing */
    uint64_t row_stride;        /* bytes from one row of a segment to the next, the same for ids,
                                   weights and the validity of both; a multiple of the size of an
                                   id and of a weight */
    const int32_t *layer_map;      /* [layers] each layer's index in the decoder */
    const uint32_t *layer_experts; /* [layers] experts of each layer */
    const routecap_segment *segments;            /* [segment_count] all rows, in order */
    size_t segment_size;                         /* bytes from one segment to the next */
    size_t segment_count;                        /* how many segments */
    const routecap_provenance *layer_provenance; /* [layers] ROUTECAP_PROVENANCE_* */
    const uint32_t *layer_k;       /* [layers] the most experts of a token in each layer */
    const uint32_t *layer_min_k;   /* [layers] the fewest experts of a token in each layer */
    const uint32_t *layer_visit;   /* [layers] as in routecap_config; 0 unless the decoder runs a
                                      layer several times */
    routecap_dtype weights_dtype;  /* of the weights: ROUTECAP_DTYPE_F32, _F16 or _BF16; 0: there
                                      are none */
    uint32_t reserved;             /* 0 */
} routecap_view;

/* ================================================================================================
 * Waiting for a routing
 * ============================================================================================== */

/**
 * Wait until a routing is ready.
 *
 * With ROUTECAP_CONFIG_MANUAL_PROGRESS the calling thread files the steps that can land.
 *
 * @param[in] routing     The routing.
 * @param[in] timeout_ns  Nanoseconds; 0 looks once; a negative number waits without limit.
 * @return ROUTECAP_OK (ready and complete); ROUTECAP_INCOMPLETE (ready, cells are missing);
 *         ROUTECAP_NOT_CAPTURED (ready, no cell is valid); ROUTECAP_PENDING (timeout).
 * @thread(any) @waits
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_routing_wait(const routecap_routing *routing, int64_t timeout_ns);

/**
 * Tell whether a routing is ready. The call neither waits nor files steps.
 *
 * @param[in] routing  The routing.
 * @return As routecap_routing_wait; ROUTECAP_PENDING if it is not ready.
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_routing_poll(const routecap_routing *routing);

/* ================================================================================================
 * Viewing and copying
 * ============================================================================================== */

/**
 * Get the contents of a routing in place, without copying them.
 *
 * @param[in] routing  The routing.
 * @param[out] view    Its contents. The pointers are valid until the last reference to the routing
 *                     is freed.
 * @return ROUTECAP_OK; ROUTECAP_ERR_NOT_READY.
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_routing_view(const routecap_routing *routing, routecap_view *view);

/**
 * Count the cells of a routing that are there, and list those that are missing.
 *
 * @param[in] routing       The routing.
 * @param[out] coverage     The counts, over all rows.
 * @param[out] missing      [capacity] elements of missing_size bytes: the first blocks of missing
 *                          cells, coverage->blocks in all; may be NULL if capacity is 0.
 * @param[in] missing_size  sizeof(routecap_missing) of the caller, in bytes.
 * @param[in] capacity      How many elements there is room for.
 * @return ROUTECAP_OK; ROUTECAP_INCOMPLETE (also if no cell is valid); ROUTECAP_ERR_NOT_READY.
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_routing_coverage(const routecap_routing *routing, routecap_coverage *coverage,
                          routecap_missing *missing, size_t missing_size, size_t capacity);

/**
 * Copy the ids of a routing to the caller's memory.
 *
 * The call copies all rows; to copy fewer, slice the routing first. The rules on fill, none and
 * strides are those of routecap_request_extract_into.
 *
 * @param[in] routing     The routing.
 * @param[in] options     The dtype, layers and layout of dst.
 * @param[out] dst        [rows, layers, k] elements of options->dtype, in the layout of options.
 *                        NULL with dst_bytes 0 asks for the size, and the call returns
 *                        ROUTECAP_ERR_BUFFER_TOO_SMALL.
 * @param[in] dst_bytes   Size of dst, in bytes.
 * @param[out] mask       [rows, layers] or [layers, rows] bytes, as options->order says: 1 for a
 *                        valid cell, otherwise 0; NULL: not wanted.
 * @param[in] mask_bytes  Size of mask, in bytes.
 * @param[out] needed     How many bytes dst needs, set on ROUTECAP_ERR_BUFFER_TOO_SMALL too; may be
 *                        NULL.
 * @return ROUTECAP_OK; ROUTECAP_INCOMPLETE; ROUTECAP_NOT_CAPTURED; ROUTECAP_ERR_INCOMPLETE
 *         (strict); ROUTECAP_ERR_RECOMPUTED (strict); ROUTECAP_ERR_NOT_READY;
 *         ROUTECAP_ERR_BUFFER_TOO_SMALL (dst or mask; nothing is written); ROUTECAP_ERR_DTYPE;
 *         ROUTECAP_ERR_UNKNOWN_LAYER; ROUTECAP_ERR_ARGUMENT. The last three are as in
 *         routecap_request_extract_into.
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_routing_copy_to(const routecap_routing *routing, const routecap_copy_options *options,
                         void *dst, size_t dst_bytes, uint8_t *mask, size_t mask_bytes,
                         uint64_t *needed);

/**
 * Copy the weights of a routing to the caller's memory.
 *
 * Call it beside routecap_routing_copy_to, with the same options except for dtype. The weight of an
 * expert is then at the same place as its id: column c of a cell is the weight of the expert in
 * column c. In a cell whose weights are missing all k weights are NaN. The weight of a column
 * without an expert is 0.
 *
 * Here a cell counts as missing if it has no weights, even if it has ids. ROUTECAP_INCOMPLETE and
 * ROUTECAP_NOT_CAPTURED say this of some cells or of all.
 *
 * @param[in] routing     The routing.
 * @param[in] options     The layers and layout of dst. dtype is ROUTECAP_DTYPE_F32, to which
 *                        weights are widened, or view.weights_dtype. fill and none are not used.
 *                        With ROUTECAP_READ_STRICT every cell must have weights.
 * @param[out] dst        [rows, layers, k] elements of options->dtype, in the layout of options.
 *                        NULL with dst_bytes 0 asks for the size, and the call returns
 *                        ROUTECAP_ERR_BUFFER_TOO_SMALL.
 * @param[in] dst_bytes   Size of dst, in bytes.
 * @param[out] mask       [rows, layers] or [layers, rows] bytes, as options->order says: 1 for a
 *                        cell whose weights are there, otherwise 0; NULL: not wanted.
 * @param[in] mask_bytes  Size of mask, in bytes.
 * @param[out] needed     How many bytes dst needs, set on ROUTECAP_ERR_BUFFER_TOO_SMALL too; may be
 *                        NULL.
 * @return ROUTECAP_OK; ROUTECAP_INCOMPLETE; ROUTECAP_NOT_CAPTURED; ROUTECAP_ERR_INCOMPLETE
 *         (strict); ROUTECAP_ERR_RECOMPUTED (strict); ROUTECAP_ERR_NOT_READY;
 *         ROUTECAP_ERR_BUFFER_TOO_SMALL (dst or mask); ROUTECAP_ERR_DTYPE (neither of the two; or
 *         the routing has no weights); ROUTECAP_ERR_UNKNOWN_LAYER; ROUTECAP_ERR_ARGUMENT (also
 *         strides with which cells overlap).
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_routing_copy_weights(const routecap_routing *routing, const routecap_copy_options *options,
                              void *dst, size_t dst_bytes, uint8_t *mask, size_t mask_bytes,
                              uint64_t *needed);

/* ================================================================================================
 * Dividing and merging
 * ============================================================================================== */

/**
 * Divide a routing at the end of the prompt: into the rows whose input is a token of the prompt,
 * and those whose input is a generated token. Pages are shared. To train on the response, do not
 * split: make a plan (plan.h), which keeps all rows that the loss needs.
 *
 * @param[in] routing           The routing.
 * @param[in] prompt_tokens     Rows before this position go to `prompt`; if the routing ends before
 *                              it, all rows do. The first generated token was sampled from the pass
 *                              of the last of these rows.
 * @param[in] generated_tokens  At most this many of the other rows go to `generated`. The last
 *                              generated token has no row if it was never an input: then it makes
 *                              no difference whether you count that token. ROUTECAP_ROWS_ALL: all
 *                              of them.
 * @param[out] prompt           A routing, possibly without rows; NULL on error.
 * @param[out] generated        A routing, possibly without rows; NULL on error.
 * @return ROUTECAP_OK; ROUTECAP_ERR_NOT_READY.
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_routing_split(const routecap_routing *routing, uint64_t prompt_tokens,
                       uint64_t generated_tokens, routecap_routing **prompt,
                       routecap_routing **generated);

/**
 * Make a routing of some rows of another. Pages are shared, and positions stay the same.
 *
 * @param[in] routing  The routing.
 * @param[in] first    Position of the first row.
 * @param[in] rows     How many rows; ROUTECAP_ROWS_ALL: all up to the end.
 * @param[out] slice   The new routing; NULL on error.
 * @return ROUTECAP_OK; ROUTECAP_ERR_OUT_OF_RANGE; ROUTECAP_ERR_NOT_READY.
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_routing_slice(const routecap_routing *routing, uint64_t first, uint64_t rows,
                       routecap_routing **slice);

/**
 * Merge routings of one sequence that have different rows, different layers, or both: for instance
 * those of sequence-parallel and pipeline-parallel ranks, or the parts of an answer that arrives in
 * parts.
 *
 * Layers are matched by their index in the decoder (the layer map) and their visit (layer_visit),
 * rows by position. The result has all layers of all routings, and the rows from the lowest to the
 * highest position of any. A cell that no routing has is missing; its reason comes from the
 * routings that have the layer, by the order in reading.h. If the valid cells of a row come from
 * rows with different tags, the result has the lowest of these tags. A layer that is RECOMPUTED in
 * one routing is RECOMPUTED in the result.
 *
 * @param[in] routings  [count] the routings. They stay the caller's.
 * @param[in] count     How many, 1 or more.
 * @param[in] flags     0.
 * @param[out] merged   The new routing; NULL on error. Its memory counts in the budget of the first
 *                      routing's capturer, even after the capturer is destroyed; in none, if the
 *                      first routing came from bytes or arrays.
 * @return ROUTECAP_OK; ROUTECAP_INCOMPLETE; ROUTECAP_NOT_CAPTURED; ROUTECAP_ERR_CONFLICT (two
 *         routings have different sets of ids in the same cell); ROUTECAP_ERR_SHAPE_MISMATCH (k,
 *         the id space, the weights_dtype, or experts, layer_k or layer_min_k of one layer differ);
 *         ROUTECAP_ERR_NOT_READY.
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_routing_merge(const routecap_routing *const *routings, size_t count, uint32_t flags,
                       routecap_routing **merged);

/* ================================================================================================
 * References
 * ============================================================================================== */

/**
 * Take one more reference to a routing. Each reference is freed with routecap_routing_free.
 *
 * @param[in] routing  The routing.
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_routing_retain(const routecap_routing *routing);

/**
 * Free one reference to a routing. The last one frees the memory. In a forked child the call does
 * nothing.
 *
 * @param[in] routing  The routing; may be NULL.
 * @thread(any)
 */
ROUTECAP_API void routecap_routing_free(routecap_routing *routing);

#ifdef __cplusplus
}
#endif

#endif /* ROUTECAP_ROUTING_H */

/*
 * routecap: routings, the rows that were read out.
 */
#ifndef ROUTECAP_ROUTING_H
#define ROUTECAP_ROUTING_H

#include "reading.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ================================================================================================
 * Routings
 *
 * Immutable and self-describing; usable from all threads at once, after the request's end, the capturer's destruction and the loss of the
 * device, in the process that made it. A routing of routecap_request_finish is pending until its last step has landed: until then all functions but
 * wait, poll, retain and free return ROUTECAP_ERR_NOT_READY.
 * ============================================================================================== */

/* Consecutive rows whose ids lie next to one another in memory. */
typedef struct routecap_segment {
    uint64_t first;          /* position of the first row */
    uint64_t rows;
    const void *ids;         /* [rows, layers, k] in C order; NULL: all cells of these rows are missing, for `reason` */
    const uint8_t *validity; /* [rows, validity_bytes]: bit l % 8 of byte l / 8 is set if layer l is valid; NULL: all are */
    const uint64_t *tags;    /* [rows] the tag of each row, without meaning where the row is not there; NULL: `tag` is that of all */
    uint64_t tag;
    int32_t reason;          /* where ids is NULL: why these rows are not there, one of ROUTECAP_MISSING_*; otherwise 0 */
    uint32_t reserved;       /* 0 */
} routecap_segment;

/* A routing's contents, in place. The k ids of a cell that is not valid have no meaning, but for the first: its reason,
 * ROUTECAP_MISSING_*, or UNWRITTEN where it is anything else, as it may be in foreign bytes. */
typedef struct routecap_view {
    uint32_t struct_size;
    int32_t dtype;           /* of the ids: U8 if experts <= 256, otherwise I16 */
    uint32_t layers;
    uint32_t k;
    uint32_t experts;        /* the most of any layer */
    uint32_t validity_bytes; /* per row */
    int32_t id_space;        /* ROUTECAP_ID_SPACE_* */
    int32_t complete;        /* 1: no cell is missing */
    uint64_t first;          /* position of the first row */
    uint64_t rows;
    const int32_t *layer_map;      /* [layers] index of each captured layer in the decoder */
    const uint32_t *layer_experts; /* [layers] */
    const routecap_segment *segments; /* [segment_count] together exactly the rows, in order */
    size_t segment_size;              /* bytes from one segment to the next */
    size_t segment_count;
    const int32_t *layer_provenance;  /* [layers] ROUTECAP_PROVENANCE_* */
} routecap_view;

/**
 * Wait until a routing is ready. Those of extract, split, slice and merge always are.
 *
 * Waits. With ROUTECAP_CONFIG_MANUAL_PROGRESS it files what has landed itself.
 *
 * @param timeout_ns  Nanoseconds; 0 looks once; negative waits without limit.
 * @return ROUTECAP_OK (ready and complete); ROUTECAP_INCOMPLETE (ready); ROUTECAP_NOT_CAPTURED (ready); ROUTECAP_PENDING (timeout).
 */
ROUTECAP_API int32_t routecap_routing_wait(const routecap_routing *routing, int64_t timeout_ns);

/**
 * Whether a routing is ready. Does not wait, and makes no progress.
 *
 * @return As routecap_routing_wait.
 */
ROUTECAP_API int32_t routecap_routing_poll(const routecap_routing *routing);

/**
 * Look at a routing in place, without a copy.
 *
 * @param view  Filled. Its pointers are valid until the last reference to the routing is freed.
 * @return ROUTECAP_ERR_NOT_READY.
 */
ROUTECAP_API int32_t routecap_routing_view(const routecap_routing *routing, routecap_view *view);

/**
 * Say which cells of a routing are there and which are missing. Parameters as in routecap_request_coverage, over all its rows.
 *
 * @return ROUTECAP_OK; ROUTECAP_INCOMPLETE; ROUTECAP_ERR_NOT_READY.
 */
ROUTECAP_API int32_t routecap_routing_coverage(const routecap_routing *routing, routecap_coverage *coverage, routecap_missing *missing,
                                               size_t missing_size, size_t capacity);

/**
 * Divide a routing at the end of the prompt. Pages are shared.
 *
 * @param prompt_tokens     Rows before this position go to `prompt`, all of them if the routing ends before it.
 * @param generated_tokens  Of the rows from there on, at most so many go to `generated` (one token is usually never input: its row does not
 *                          exist); ROUTECAP_ROWS_ALL: all of them.
 * @param prompt            Receives a routing, possibly without rows; NULL on error.
 * @param generated         Likewise.
 * @return ROUTECAP_ERR_NOT_READY.
 */
ROUTECAP_API int32_t routecap_routing_split(const routecap_routing *routing, uint64_t prompt_tokens, uint64_t generated_tokens,
                                            routecap_routing **prompt, routecap_routing **generated);

/**
 * A routing of some of the rows of another. Pages are shared; positions stay what they are.
 *
 * @param first  Position of the first row.
 * @param rows   How many; ROUTECAP_ROWS_ALL: up to the end.
 * @param slice  Receives the routing; NULL on error.
 * @return ROUTECAP_ERR_OUT_OF_RANGE; ROUTECAP_ERR_NOT_READY.
 */
ROUTECAP_API int32_t routecap_routing_slice(const routecap_routing *routing, uint64_t first, uint64_t rows, routecap_routing **slice);

/**
 * Unite routings of one sequence that hold different rows, different layers, or both: sequence- and pipeline-parallel ranks, pieces of a
 * stream.
 *
 * Layers are matched by their index in the decoder (the layer map), rows by position. The result
 * has the layers of all, and the rows from the lowest to the highest position of any; what nobody
 * has is missing, for the reason that comes first in the list at ROUTECAP_MISSING_STALE among those
 * of all routings that have the layer. A row keeps the tag of the first routing that has any cell
 * of it. A layer that is recomputed in one of them is recomputed in the result.
 *
 * @param routings  [count], count >= 1. They stay the caller's.
 * @param flags     0.
 * @param merged    Receives the routing; NULL on error. Its memory counts in the budget that the first one's does, also after its capturer's end.
 * @return ROUTECAP_OK; ROUTECAP_INCOMPLETE; ROUTECAP_NOT_CAPTURED; ROUTECAP_ERR_CONFLICT (two have a cell with different sets of ids);
 *         ROUTECAP_ERR_SHAPE_MISMATCH (k, the id space, or the experts of one layer differ);
 *         ROUTECAP_ERR_NOT_READY.
 */
ROUTECAP_API int32_t routecap_routing_merge(const routecap_routing *const *routings, size_t count, uint32_t flags,
                                            routecap_routing **merged);

/**
 * Copy a routing to the caller's memory. Parameters, rules and errors as routecap_request_extract_into; slice first to copy fewer rows.
 *
 * @return ROUTECAP_OK; ROUTECAP_INCOMPLETE; ROUTECAP_NOT_CAPTURED; ROUTECAP_ERR_INCOMPLETE (strict); ROUTECAP_ERR_RECOMPUTED (strict);
 *         ROUTECAP_ERR_NOT_READY; ROUTECAP_ERR_BUFFER_TOO_SMALL; ROUTECAP_ERR_DTYPE; ROUTECAP_ERR_UNKNOWN_LAYER.
 */
ROUTECAP_API int32_t routecap_routing_copy_to(const routecap_routing *routing, const routecap_copy_options *options, void *dst,
                                              size_t dst_bytes, uint8_t *mask, size_t mask_bytes, uint64_t *needed);

/**
 * Take one more reference to a routing. Each is freed with routecap_routing_free.
 */
ROUTECAP_API int32_t routecap_routing_retain(const routecap_routing *routing);

/**
 * Free one reference to a routing; its memory goes with the last. NULL is allowed. In a forked child it does nothing.
 */
ROUTECAP_API void routecap_routing_free(routecap_routing *routing);

#ifdef __cplusplus
}
#endif

#endif /* ROUTECAP_ROUTING_H */

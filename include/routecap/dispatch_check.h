/*
 * routecap, chapter 14, experimental: checking a dispatch. With expert parallelism, a dispatch
 * sends each token to the ranks that hold its experts. These functions compare the experts that
 * executed a token with those that its router chose.
 *
 * Copyright 2026 The routecap authors. Licensed under the Apache License, Version 2.0; see LICENSE.
 *
 * Experimental: the functions are declared only if you define ROUTECAP_EXPERIMENTAL first:
 *
 *     #define ROUTECAP_EXPERIMENTAL
 *     #include <routecap.h>
 *
 * They read tensors of a different project, DeepEP v2 (ElasticBuffer.dispatch at revision dd758ca
 * of 14 July 2026), as vLLM's class DeepEPV2PrepareAndFinalize uses them (at revision 02bd2a4). If
 * these tensors change, the functions may return an error, and new functions replace them. DeepEP
 * 2.5 (EPBuffer) is a different library: its experts move between ranks, and these functions do not
 * know where.
 *
 *   routecap_received_read      add what this rank executed to the caller's table
 *   routecap_received_compare   compare the table of all ranks with the router's ids, and count
 *
 * Between the two calls, the caller adds up the tables of all ranks. If the tables of all layers
 * lie next to one another, one all-reduce is enough for a step:
 *
 *     cudaMemsetAsync(tables, 0, layers * size, stream);  // size: of one table
 *     ... behind each dispatch, with received[layer].executed = tables + layer * cells:
 *         routecap_received_read(capturer, &received[layer], stream);
 *     ... behind the last layer:
 *         ncclAllReduce(tables, tables, layers * cells, ncclInt32, ncclSum, comm, stream);
 *         for each layer:
 *             routecap_received_compare(capturer, &received[layer], stream);
 *
 * Every column of every token of this rank is then counted in received.counts. The dispatch was
 * right if `equal` is `columns`, and `extra` and `ignored` are 0, on all ranks. All this may be
 * captured into a graph.
 *
 * In Python, one call does all of it: routecap.deepep.check.
 */
#ifndef ROUTECAP_DISPATCH_CHECK_H
#define ROUTECAP_DISPATCH_CHECK_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Flags of routecap_received. */
#define ROUTECAP_RECEIVED_EXPANDED 1u /* do_expand=True (prefill): a row for each token and local
                                         expert. Without it (decode): a row for each token */
#define ROUTECAP_RECEIVED_GLOBAL 2u   /* the engine has replaced the ids in place, as vLLM's class
                                         does: they number all experts, not only this rank's, and
                                         are -1 behind the live rows. Not with EXPANDED */
typedef uint32_t routecap_received_flags; /* @any_of(ROUTECAP_RECEIVED_*) */

/*
 * What a check found, in device memory. Both functions add to it. A column is one of the k ids of a
 * token.
 */
typedef struct routecap_received_counts {
    uint64_t tokens;      /* tokens of this rank that were compared */
    uint64_t columns;     /* their columns with an id; a negative id chooses nothing */
    uint64_t equal;       /* columns whose expert executed the token */
    uint64_t replaced;    /* columns in which a different expert did */
    uint64_t swapped;     /* the same, but that expert and the chosen one changed places in the
                             token's columns */
    uint64_t lost;        /* columns that no rank executed */
    uint64_t tokens_lost; /* tokens of which every column with an id is lost */
    uint64_t extra;       /* columns that nobody chose but a rank executed, and columns that several
                             ranks executed */
    uint64_t ignored;     /* columns that this rank received and that cannot be right, of tokens of
                             any rank: the tensors do not belong together, or the table was not
                             zero */
} routecap_received_counts;

/*
 * What this rank sent and received in one dispatch. Names in parentheses are DeepEP's. All arrays
 * are in C order, without gaps. "read" and "compare" say which function uses a field; the other
 * fields are used by both.
 */
typedef struct routecap_received {
    uint32_t struct_size;
    routecap_received_flags flags; /* read: ROUTECAP_RECEIVED_* */
    uint32_t ranks;                /* all scale-out and scale-up ranks of the dispatch, 1..1024 */
    uint32_t rank;                 /* this one; its experts begin at rank * (experts / ranks) */
    uint32_t experts;              /* (handle.num_experts) a multiple of ranks, up to
                                      ROUTECAP_MAX_EXPERTS */
    uint32_t k;                    /* columns of the dispatched ids, up to ROUTECAP_MAX_K */
    uint32_t tokens_per_rank;      /* (handle.num_max_tokens_per_rank) of this dispatch: in vLLM it
                                      changes from step to step. ranks * tokens_per_rank is at most
                                      ROUTECAP_MAX_RECEIVED */
    uint32_t rows;                 /* read: (handle.recv_src_metadata.shape[0]) rows of metadata, at
                                      most ranks * tokens_per_rank */
    const int32_t *live_rows;      /* read: [device] one number, the last of
                                      handle.psum_num_recv_tokens_per_scaleup_rank: only the first
                                      *live_rows rows were received. NULL: all rows */
    const int32_t *metadata;       /* read: [device] [rows, 2 + k] (handle.recv_src_metadata) */
    const void *ids;               /* read: [device] [rows, k] (recv_topk_idx); NULL with
                                      EXPANDED */
    const int32_t *expert_ends;    /* read: [device] [experts / ranks] with EXPANDED
                                      (handle.psum_num_recv_tokens_per_expert, after the dispatch):
                                      one past the last row of each local expert. The rows of the
                                      next expert begin at the next multiple of expert_alignment.
                                      Otherwise NULL */
    uint32_t expert_alignment;     /* read: with EXPANDED (handle.expert_alignment) in rows; 0 means
                                      1. Otherwise 0 */
    uint32_t expanded_rows;        /* read: with EXPANDED (handle.num_expanded_tokens, the rows of
                                      recv_x, or of recv_x[0] with fp8), less than 2^31.
                                      Otherwise 0 */
    routecap_dtype dtype;          /* ROUTECAP_DTYPE_I32 or _I64, of ids and topk_ids. DeepEP's
                                      builds with ids of 8 or 16 bits are refused */
    uint32_t tokens;               /* compare: tokens that this rank sent, at most
                                      tokens_per_rank */
    const void *topk_ids;          /* compare: [device] [tokens, k] the ids that the router chose.
                                      Not handle.topk_idx, which is what was sent. With load
                                      balancing, the ids behind the balancer: those of physical
                                      experts */
    int32_t *executed;             /* [device] [ranks, tokens_per_rank, k] of int32, by source token
                                      and column. Zero it before read; add it up over all ranks
                                      before compare. What its numbers mean is the library's */
    routecap_received_counts *counts; /* [device] added to. Zero it before the first call */
} routecap_received;

#ifdef ROUTECAP_EXPERIMENTAL

/**
 * Add to a table what this rank executed of one dispatch.
 *
 * Each column that this rank received is written at its source token, whatever the order of the
 * rows. A column that cannot be right is not written, and is counted in counts->ignored:
 *   - its source token is outside ranks * tokens_per_rank;
 *   - its id is not an expert of this rank;
 *   - its expanded row is outside expanded_rows, or of no expert;
 *   - its place in the table is not zero: a different row has the same token, or the table is that
 *     of an earlier step;
 *   - with GLOBAL, it is behind the live rows and is not -1: the experts get rows that nobody sent;
 *   - *live_rows is not `rows`, nor is `rows` ranks * tokens_per_rank: DeepEP allocates either as
 *     many rows as it received or as many as could be, so tokens_per_rank is that of a different
 *     step. All columns are then counted, and none is written.
 *
 * Keep the tensors until the stream has run this work. An engine keeps the handle of a dispatch
 * anyway until it has collected the experts' outputs. A disabled capturer writes nothing.
 *
 * Capturable; a graph keeps the sizes of the call that was captured. On the host backend the work
 * is done before the call returns.
 *
 * @param[in] capturer  A capturer on the device of the tensors. Nothing else of it is used.
 * @param[in] received  The tensors of the dispatch, the table, and the counts.
 * @param[in] stream    A stream that is ordered after the dispatch.
 * @return ROUTECAP_OK; ROUTECAP_ERR_DTYPE; ROUTECAP_ERR_ARGUMENT (a number beyond its limit, rank
 *         not below ranks, an array that is NULL); ROUTECAP_ERR_SHAPE_MISMATCH (experts not a
 *         multiple of ranks; or rows beyond ranks * tokens_per_rank, as with the tokens_per_rank of
 *         a different step).
 * @thread(forward)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_received_read(routecap_capturer *capturer, const routecap_received *received,
                       routecap_stream stream);

/**
 * Compare, column by column, what all ranks executed with what the router of this rank chose.
 *
 * Capturable; a graph keeps the sizes of the call that was captured. On the host backend the work
 * is done before the call returns.
 *
 * @param[in] capturer  A capturer on the device of the tensors. Nothing else of it is used.
 * @param[in] received  The same as in read: `executed` is now the sum of all ranks' tables.
 * @param[in] stream    A stream that is ordered after that sum.
 * @return ROUTECAP_OK; ROUTECAP_ERR_DTYPE; ROUTECAP_ERR_ARGUMENT (a number beyond its limit, rank
 *         not below ranks, an array that is NULL); ROUTECAP_ERR_SHAPE_MISMATCH (experts not a
 *         multiple of ranks; or tokens beyond tokens_per_rank).
 * @thread(forward)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_received_compare(routecap_capturer *capturer, const routecap_received *received,
                          routecap_stream stream);

#endif /* ROUTECAP_EXPERIMENTAL */

#ifdef __cplusplus
}
#endif

#endif /* ROUTECAP_DISPATCH_CHECK_H */

/*
 * routecap, chapter 14, experimental: checking a dispatch. A dispatch sends each token to the ranks
 * that hold its experts. To check that the experts that ran are those that the router chose,
 * compare the two.
 *
 * Copyright 2026 The routecap authors. Licensed under the Apache License, Version 2.0; see LICENSE.
 *
 * Experimental: these functions read tensors of a different project, DeepEP v2
 * (ElasticBuffer.dispatch, at revision dd758ca), as vLLM's class DeepEPV2PrepareAndFinalize uses
 * them. If these tensors change, the functions may return an error, and new functions replace them.
 *
 * With expert parallelism, a rank receives the tokens that chose one of its experts, and for each
 * token only the columns of its own experts. So these functions are not for capturing:
 * routecap_layer_record on the source rank, before the dispatch, gets whole rows without
 * communication. They are for checking a dispatch.
 *
 *   routecap_received_read    read what this rank received, as one or two arrays
 *   routecap_received_merge   merge the tables of all ranks in host memory
 *
 * routecap_received_read writes up to two arrays:
 *
 *   global_ids   The ids of the received rows, as vLLM's class hands them to its experts.
 *   executed     [ranks, tokens_per_rank, k] by source token and column: the experts that this rank
 *                executed, and -1 elsewhere. Each column of a token is executed by one rank, so the
 *                element-wise maximum over the tables of all ranks has the whole row of every
 *                token.
 *
 * To check, record the maximum into a second capturer, and merge a routing of each capturer with
 * routecap_routing_merge. It returns ROUTECAP_ERR_CONFLICT if they differ. With NCCL:
 *
 *     routecap_received_read(capturer, layer, &received, stream);
 *     ncclReduceScatter(received.executed, own, tokens_per_rank * k,
 *                       ncclInt32, ncclMax, comm, stream);      // own: [tokens_per_rank, k]
 *     source.ids = own; source.dtype = ROUTECAP_DTYPE_I32; source.rows = tokens;
 *     routecap_layer_record(executed_capturer, layer, &source, stream);
 *
 * A column that no rank executed is -1, and its cell is missing. With load balancing the ids are
 * physical: set source.table to map them to logical ones. Make one call for each micro-batch, with
 * its own DeepEP handle and buffers. Calls share no state.
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
#define ROUTECAP_RECEIVED_GLOBAL 2u   /* the engine has already replaced the ids in place: they now
                                         number all experts, not only this rank's. Not with
                                         EXPANDED */
typedef uint32_t routecap_received_flags; /* any of ROUTECAP_RECEIVED_* */

/*
 * What this rank received in one dispatch. Names in parentheses are DeepEP's. All arrays are in C
 * order, without gaps.
 */
typedef struct routecap_received {
    uint32_t struct_size;
    routecap_received_flags flags; /* ROUTECAP_RECEIVED_* */
    uint32_t ranks;                /* all scale-out and scale-up ranks of the dispatch, 1..1024 */
    uint32_t rank;                 /* this one; its experts begin at rank * (experts / ranks) */
    uint32_t experts;              /* (handle.num_experts) a multiple of ranks, up to
                                      ROUTECAP_MAX_EXPERTS; 0 means the layer's */
    uint32_t k;                    /* columns of the dispatched ids, up to ROUTECAP_MAX_K; 0 means
                                      the capturer's k */
    uint32_t tokens_per_rank;      /* (handle.num_max_tokens_per_rank) of this dispatch: in vLLM it
                                      changes from step to step. ranks * tokens_per_rank is at most
                                      ROUTECAP_MAX_RECEIVED */
    uint32_t rows;                 /* (handle.recv_src_metadata.shape[0]) rows of metadata, at most
                                      ranks * tokens_per_rank */
    const int32_t *live_rows;      /* [device] one number, the last of
                                      handle.psum_num_recv_tokens_per_scaleup_rank: only the first
                                      *live_rows rows were received; clamped to [0, rows]; NULL:
                                      all */
    const int32_t *metadata;       /* [device] [rows, 2 + k] (handle.recv_src_metadata); may be NULL
                                      if executed is */
    const void *ids;               /* [device] [rows, k] (recv_topk_idx); NULL with EXPANDED */
    const int32_t *expert_ends; /* [device] [experts / ranks] with EXPANDED
                                   (handle.psum_num_recv_tokens_per_expert, after the dispatch): one
                                   past the last row of each local expert. The rows of the next
                                   expert begin at the next multiple of expert_alignment. Otherwise
                                   NULL */
    uint32_t expert_alignment;  /* (handle.expert_alignment) in rows, with EXPANDED; 0 means 1.
                                   Otherwise 0 */
    uint32_t expanded_rows;     /* (recv_x.shape[0]) with EXPANDED, less than 2^31. Otherwise 0 */
    routecap_dtype dtype;       /* ROUTECAP_DTYPE_I32 or _I64, of ids and global_ids. Required */
    uint32_t reserved;          /* 0 */
    void *global_ids;           /* [device] receives [rows, k], or with EXPANDED [expanded_rows];
                                   NULL: not wanted. May be `ids` */
    int32_t *executed;          /* [device] receives [ranks, tokens_per_rank, k], all of it; NULL:
                                   not wanted */
    uint64_t *ignored;          /* [device] one number, to which the number of ignored columns is
                                   added; NULL: not counted */
} routecap_received;

/**
 * Write what this rank received in an expert-parallel dispatch to the caller's memory.
 *
 * The call does not write to the sink, because a rank receives only some of a token's k columns.
 *
 * global_ids. Every row is written.
 *   - Decode: an id i that numbers this rank's experts becomes rank * (experts / ranks) + i. If
 *     that is not below `experts`, it becomes -1, as in vLLM's class. Columns of other ranks become
 *     -1, and so do rows that are not live, whose memory is uninitialised.
 *   - Expanded: the expert of each row. Rows are grouped by expert, and each group is padded to
 *     expert_alignment. Padding rows have the expert of their group. Rows after the last group are
 *     -1.
 * An engine that reads global_ids must not pass a disabled capturer, which writes nothing.
 *
 * executed. It is ordered by source token, whatever the order of the rows. Columns that cannot be
 * right are not written, and are counted in `ignored`: a source token outside ranks *
 * tokens_per_rank; an id that is not an expert of this rank; an expanded row outside expanded_rows,
 * or of no expert; a column of a token that a different row has already filled. With correct
 * tensors the count is 0.
 *
 * Keep the tensors until the stream has run this work. An engine keeps the handle of a micro-batch
 * anyway until it has collected the experts' outputs.
 *
 * Capturable; a graph keeps the sizes of the call that was captured. On the host backend the work
 * is done before the call returns.
 *
 * @param[in] capturer  The capturer.
 * @param[in] layer     The layer whose number of experts is used if received->experts is 0.
 * @param[in] received  The tensors of the dispatch, and the arrays to write.
 * @param[in] stream    A stream that is ordered after the dispatch.
 * @return ROUTECAP_OK; ROUTECAP_ERR_UNKNOWN_LAYER; ROUTECAP_ERR_DTYPE; ROUTECAP_ERR_ARGUMENT (a
 *         number beyond its limit, rank not below ranks, NULL where rows need an array, or neither
 *         array wanted although there are rows); ROUTECAP_ERR_SHAPE_MISMATCH (experts not a
 *         multiple of ranks; or rows beyond ranks * tokens_per_rank, as with the tokens_per_rank of
 *         another step).
 */
ROUTECAP_API routecap_status routecap_received_read(routecap_capturer *capturer, uint32_t layer,
                                                    const routecap_received *received,
                                                    routecap_stream stream);

/**
 * Merge the `executed` tables of all ranks in host memory, if you do not use a collective. The
 * result has the whole rows of all tokens. The call needs no capturer and no device.
 *
 * @param[in] executed  [count] tables of [cells] ids each, copied to the host.
 * @param[in] count     How many tables: ranks.
 * @param[in] cells     Elements of each table: ranks * tokens_per_rank * k.
 * @param[out] merged   [cells] the id of each element, -1 where no table has one. May be one of the
 *                      tables.
 * @return ROUTECAP_OK; ROUTECAP_ERR_CONFLICT (two tables have different ids in the same element;
 *         nothing is written).
 */
ROUTECAP_API routecap_status routecap_received_merge(const int32_t *const *executed, size_t count,
                                                     size_t cells, int32_t *merged);

#ifdef __cplusplus
}
#endif

#endif /* ROUTECAP_DISPATCH_CHECK_H */

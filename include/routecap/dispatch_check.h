/*
 * routecap, chapter 14, experimental: was what was executed also what was routed?
 *
 * Copyright 2026 The routecap authors. Licensed under the Apache License, Version 2.0; see LICENSE.
 *
 * Experimental: this reads the tensors of another project, DeepEP v2 (ElasticBuffer.dispatch, read
 * at revision dd758ca), as vLLM's class DeepEPV2PrepareAndFinalize uses them. When they change,
 * these functions may return an error, and others take their place.
 *
 * Under expert parallelism a rank receives the tokens that have an expert there. Of each token it
 * gets only the columns whose experts are its own. So this is no way to capture:
 * routecap_layer_record on the source rank, before the dispatch, needs no communication and has
 * whole rows. It is a way to check a dispatch.
 *
 *   routecap_received_read    what a dispatch brought to this rank, as one or both of two arrays
 *   routecap_received_merge   unite the tables of all ranks in host memory
 *
 * routecap_received_read makes two arrays, each only if it is wanted:
 *
 *   global_ids   The ids of the received rows, as vLLM's class hands them to its experts.
 *   executed     [ranks, tokens_per_rank, k] by source token and column: the experts that this rank
 *                executed, and -1 elsewhere. The columns of a token are divided among the ranks. So
 *                the element-wise maximum of the tables of all ranks is the whole row of every
 *                token.
 *
 * A check records the maximum into a second capturer. routecap_routing_merge of a routing of each
 * capturer then finds them equal, or returns ROUTECAP_ERR_CONFLICT. With NCCL:
 *
 *     routecap_received_read(capturer, layer, &received, stream);
 *     ncclReduceScatter(received.executed, own, tokens_per_rank * k,
 *                       ncclInt32, ncclMax, comm, stream);      // own: [tokens_per_rank, k]
 *     source.ids = own; source.dtype = ROUTECAP_DTYPE_I32; source.rows = tokens;
 *     routecap_layer_record(executed_capturer, layer, &source, stream);
 *
 * A column that no rank executed is -1 and makes its cell missing. With load balancing the ids are
 * physical: give source.table the logical ones. Micro-batches are calls of their own, each with its
 * handle and its buffers. No call leaves anything behind for the next.
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
#define ROUTECAP_RECEIVED_GLOBAL 2u   /* the engine has made the ids global in place. Not with
                                         EXPANDED */

/*
 * What one dispatch brought to this rank. In parentheses: where DeepEP has it. All arrays are in C
 * order, without gaps.
 */
typedef struct routecap_received {
    uint32_t struct_size;
    uint32_t flags;           /* ROUTECAP_RECEIVED_* */
    uint32_t ranks;           /* all scale-out and scale-up ranks of the dispatch, 1..1024 */
    uint32_t rank;            /* this one; its experts begin at rank * (experts / ranks) */
    uint32_t experts;         /* (handle.num_experts) a multiple of ranks, up to
                                 ROUTECAP_MAX_EXPERTS; 0 means the layer's */
    uint32_t k;               /* columns of the dispatched ids, up to ROUTECAP_MAX_K; 0 means the
                                 capturer's k */
    uint32_t tokens_per_rank; /* (handle.num_max_tokens_per_rank) of this very dispatch: vLLM's
                                 changes from step to step. Times ranks at most
                                 ROUTECAP_MAX_RECEIVED */
    uint32_t rows;            /* (handle.recv_src_metadata.shape[0]) rows of metadata, at most
                                 ranks * tokens_per_rank */
    const int32_t *live_rows; /* [device] one number, the last of
                                 handle.psum_num_recv_tokens_per_scaleup_rank: only the first
                                 *live_rows rows were received; clamped to [0, rows]; NULL: all */
    const int32_t *metadata;  /* [device] [rows, 2 + k] (handle.recv_src_metadata); may be NULL if
                                 executed is */
    const void *ids;          /* [device] [rows, k] (recv_topk_idx); NULL with EXPANDED */
    const int32_t *expert_ends; /* [device] [experts / ranks] with EXPANDED
                                   (handle.psum_num_recv_tokens_per_expert, after the dispatch): one
                                   past the last row of each local expert. The rows of the next
                                   expert begin at the next multiple of expert_alignment. Otherwise
                                   NULL */
    uint32_t expert_alignment;  /* (handle.expert_alignment) in rows, with EXPANDED; 0 means 1.
                                   Otherwise 0 */
    uint32_t expanded_rows;     /* (recv_x.shape[0]) with EXPANDED, less than 2^31. Otherwise 0 */
    int32_t dtype;              /* ROUTECAP_DTYPE_I32 or _I64, of ids and global_ids. Required */
    uint32_t reserved;          /* 0 */
    void *global_ids;           /* [device] receives [rows, k], or with EXPANDED [expanded_rows];
                                   NULL: not wanted. May be `ids` */
    int32_t *executed;          /* [device] receives [ranks, tokens_per_rank, k], all of it; NULL:
                                   not wanted */
    uint64_t *ignored;          /* [device] one number, to which the number of ignored columns is
                                   added; NULL: not counted */
} routecap_received;

/**
 * Read what an expert-parallel dispatch brought to this rank, into memory of the caller.
 *
 * It does not write the sink, where a cell is a whole row.
 *
 * global_ids. Every row is written.
 *   - Decode: a local id becomes global where the sum is below `experts`, as vLLM's class does it.
 *     All else is -1: columns of other ranks, and rows that are not live, which are memory that
 *     nobody initialised.
 *   - Expanded: the expert of each row, as repeat_interleave over the aligned counts gives it. The
 *     gaps of the alignment belong to the expert before them. Rows behind the last expert are -1.
 * An engine that reads global_ids must not pass a disabled capturer, which writes nothing.
 *
 * executed. It is by source token, whatever the order of the rows. What contradicts itself writes
 * nothing and is counted in `ignored`: a source token outside ranks * tokens_per_rank; an id that
 * is no expert of this rank; an expanded row outside expanded_rows, or of no expert; a column of a
 * token that another row has filled. With sound tensors the count is 0.
 *
 * The owner of the tensors keeps them until the stream has reached this work. The handle of a
 * micro-batch lives until its combine anyway.
 *
 * Capturable; a graph keeps the sizes of the call that was captured. On the host backend the work
 * is done before the call returns.
 *
 * @param[in] capturer  The capturer.
 * @param[in] layer     The layer whose experts are meant if received->experts is 0.
 * @param[in] received  The tensors of the dispatch, and the arrays that are wanted.
 * @param[in] stream    A stream that is ordered behind the dispatch.
 * @return ROUTECAP_OK; ROUTECAP_ERR_UNKNOWN_LAYER; ROUTECAP_ERR_DTYPE; ROUTECAP_ERR_ARGUMENT (a
 *         number beyond its limit, rank not below ranks, NULL where rows need an array, or neither
 *         array wanted although there are rows); ROUTECAP_ERR_SHAPE_MISMATCH (experts not a
 *         multiple of ranks; or rows beyond ranks * tokens_per_rank, as with the tokens_per_rank of
 *         another step).
 */
ROUTECAP_API int32_t routecap_received_read(routecap_capturer *capturer, uint32_t layer,
                                            const routecap_received *received,
                                            routecap_stream stream);

/**
 * Merge the `executed` tables of all ranks in host memory, if no collective does: the result has
 * the whole rows of all tokens. Needs no capturer and touches no device.
 *
 * @param[in] executed  [count] tables of [cells] ids each, copied to the host.
 * @param[in] count     How many tables: ranks.
 * @param[in] cells     Ids of a table: ranks * tokens_per_rank * k.
 * @param[out] merged   [cells] the highest id of each cell, -1 where no table has one. May be one
 *                      of the tables.
 * @return ROUTECAP_OK; ROUTECAP_ERR_CONFLICT (two tables have different ids in one cell; nothing is
 *         written).
 */
ROUTECAP_API int32_t routecap_received_merge(const int32_t *const *executed, size_t count,
                                             size_t cells, int32_t *merged);

#ifdef __cplusplus
}
#endif

#endif /* ROUTECAP_DISPATCH_CHECK_H */

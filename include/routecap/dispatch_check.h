/*
 * routecap: whether what was executed is what was routed. Experimental.
 */
#ifndef ROUTECAP_DISPATCH_CHECK_H
#define ROUTECAP_DISPATCH_CHECK_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- After a dispatch (experimental) ------------------------------------------------------- */

/*
 * Experimental: this reads the tensors of another project, DeepEP v2 (ElasticBuffer.dispatch, read at revision dd758ca), as vLLM's class
 * DeepEPV2PrepareAndFinalize uses them. When they change, other functions come, and these may return an error.
 *
 * Under expert parallelism each rank receives the tokens that have an expert there, and of each token only the columns whose experts are its
 * own. So this is no way to capture: routecap_layer_record on the source rank, before the dispatch, needs no communication and has whole rows.
 * It is the way to check that what was executed is what was routed. Two things are made of what a rank received, each only if wanted:
 *
 *   global_ids   the ids of the received rows as that class hands them to its experts
 *   executed     [ranks, tokens_per_rank, k] by source token and column, the experts that this rank executed, and -1 elsewhere. The columns of
 *                a token are divided among the ranks, so the element-wise maximum of all ranks' tables is the whole row of every token
 *
 * In words of NCCL, and into a second capturer, with whose routings routecap_routing_merge then finds the first one's equal or in conflict:
 *
 *     routecap_received_read(capturer, layer, &received, stream);
 *     ncclReduceScatter(received.executed, own, tokens_per_rank * k, ncclInt32, ncclMax, comm, stream);   // own: [tokens_per_rank, k]
 *     source.ids = own; source.dtype = ROUTECAP_DTYPE_I32; source.rows = tokens;
 *     routecap_layer_record(executed_capturer, layer, &source, stream);
 *
 * A column that nobody executed is -1 there and makes its cell missing. With load balancing the ids are physical ones: source.table has the
 * logical ones. Micro-batches are calls of their own, each with its handle and its buffers; no call leaves anything behind for the next.
 */

/* Flags of routecap_received. */
#define ROUTECAP_RECEIVED_EXPANDED 1u /* do_expand=True (prefill): a row for each token and local expert; otherwise (decode) for each token */
#define ROUTECAP_RECEIVED_GLOBAL 2u   /* ids are global already: the engine has converted them in place. Not with EXPANDED */

/* What one dispatch brought to this rank. In parentheses: where DeepEP has it. All arrays are in C order, without gaps. */
typedef struct routecap_received {
    uint32_t struct_size;
    uint32_t flags;           /* ROUTECAP_RECEIVED_* */
    uint32_t ranks;           /* of the dispatch: all scale-out and scale-up ranks, 1..1024 */
    uint32_t rank;            /* this one; it has the experts from rank * (experts / ranks) on */
    uint32_t experts;         /* (handle.num_experts), a multiple of ranks, up to ROUTECAP_MAX_EXPERTS; 0 means the layer's */
    uint32_t k;               /* columns of the dispatched ids, up to ROUTECAP_MAX_K; 0 means the capturer's k */
    uint32_t tokens_per_rank; /* (handle.num_max_tokens_per_rank) of this very dispatch: vLLM's changes from step to step; times ranks at most
                                 ROUTECAP_MAX_RECEIVED */
    uint32_t rows;            /* rows of metadata (handle.recv_src_metadata.shape[0]), at most ranks * tokens_per_rank */
    const int32_t *live_rows; /* [device] one number, the last of handle.psum_num_recv_tokens_per_scaleup_rank: only the first *live_rows rows were
                                 received; clamped to [0, rows]; NULL: all */
    const int32_t *metadata;  /* [device] [rows, 2 + k] (handle.recv_src_metadata); may be NULL if executed is */
    const void *ids;          /* [device] [rows, k] (recv_topk_idx); NULL with EXPANDED */
    const int32_t *expert_ends; /* [device] [experts / ranks] with EXPANDED (handle.psum_num_recv_tokens_per_expert, after the dispatch): the row
                                   behind the last of each local expert; the next begins at the next multiple of expert_alignment. Otherwise NULL */
    uint32_t expert_alignment;  /* (handle.expert_alignment) with EXPANDED; 0 means 1. Otherwise 0 */
    uint32_t expanded_rows;     /* (recv_x.shape[0]) with EXPANDED, less than 2^31. Otherwise 0 */
    int32_t dtype;              /* I32 or I64: of ids and global_ids. Required */
    uint32_t reserved;          /* 0 */
    void *global_ids;           /* [device] receives [rows, k], or with EXPANDED [expanded_rows]; NULL: not wanted. May be `ids` */
    int32_t *executed;          /* [device] receives [ranks, tokens_per_rank, k]; NULL: not wanted. Written whole, -1 included */
    uint64_t *ignored;          /* [device] one number, to which is added how many columns were ignored; NULL: not counted */
} routecap_received;

/**
 * Read what an expert-parallel dispatch brought to this rank, into memory of the caller: not into the sink, where a cell is a whole row.
 *
 * global_ids, decode: a local id becomes global, as that class does it: wherever the sum is below `experts`; and all else is -1: other ranks'
 * columns, and every row that is not live, which is memory nobody initialised. Every row is written. Expanded: the expert of each row, the
 * gaps that alignment leaves included, as repeat_interleave over the aligned counts has it; -1 behind the last expert's rows. An engine that
 * reads global_ids must not be given a disabled capturer, which writes nothing.
 *
 * executed: by source token, whatever the order of the rows. What contradicts itself writes nothing and is counted in `ignored`: a source token
 * outside ranks * tokens_per_rank, an id that is no expert of this rank, an expanded row that is outside expanded_rows or no expert's, and a
 * column of a token that another row has filled. In tables that can be trusted the count is 0.
 *
 * Whoever owns the tensors keeps them until the stream has reached this work: the handle of a micro-batch until its combine, as anyway.
 *
 * Capturable; a graph has the sizes of the call that was captured. Does not block. On the host backend the work is done before the call returns.
 *
 * @param layer  Whose `experts` are meant if received->experts is 0.
 * @return ROUTECAP_ERR_UNKNOWN_LAYER; ROUTECAP_ERR_DTYPE; ROUTECAP_ERR_ARGUMENT (a number beyond its limit, rank not below ranks, NULL where rows
 *         need an array, neither product wanted although there are rows); ROUTECAP_ERR_SHAPE_MISMATCH (experts not a multiple of ranks, or
 *         rows beyond ranks * tokens_per_rank: another step's tokens_per_rank).
 */
ROUTECAP_API int32_t routecap_received_read(routecap_capturer *capturer, uint32_t layer, const routecap_received *received,
                                            routecap_stream stream);

/**
 * Merge the tables of all ranks in host memory, where no collective does: the whole rows of all tokens. Experimental, as the above.
 *
 * Touches no device, needs no capturer.
 *
 * @param executed  [count] tables of `cells` ids each, `executed` of every rank copied to the host.
 * @param cells     ranks * tokens_per_rank * k.
 * @param merged    [cells] receives the highest id of each cell, -1 where no table has one. May be one of the tables.
 * @return ROUTECAP_ERR_CONFLICT (two tables have different ids in one cell; nothing is written).
 */
ROUTECAP_API int32_t routecap_received_merge(const int32_t *const *executed, size_t count, size_t cells, int32_t *merged);

#ifdef __cplusplus
}
#endif

#endif /* ROUTECAP_DISPATCH_CHECK_H */

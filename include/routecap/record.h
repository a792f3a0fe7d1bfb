/*
 * routecap: how expert ids come into the sink.
 */
#ifndef ROUTECAP_RECORD_H
#define ROUTECAP_RECORD_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ================================================================================================
 * Sink
 * ============================================================================================== */

/* Where the ids of one layer, or of several at equal distances, are written. */
typedef struct routecap_sink {
    uint32_t struct_size;
    int32_t dtype;        /* ROUTECAP_DTYPE_I16, _I32 or _I64 */
    void *ids;            /* [device] element of row 0, column 0 of the (first) layer, aligned to its element size */
    uint32_t rows;        /* rows present */
    uint32_t k;           /* columns of a row, next to one another */
    int64_t row_stride;   /* elements from one row to the next, >= k; 0 means k */
    int64_t layer_stride; /* elements from one layer to the next; 0 means rows * row_stride */
} routecap_sink;

/**
 * Adopt memory of the engine as the sink of `layers` layers from `first_layer` on, instead of the library's.
 *
 * A router or fused kernel then writes its ids there and nothing has to be recorded. Only where nothing rewrites the ids
 * before the snapshot (load balancing in place, masking of zero experts): there, record them before that instead. The
 * memory must stay valid and in place until the capturer is destroyed, and as long as graphs that write it are replayed.
 * Addresses never change: other memory for a layer that has adopted some, or whose address was given out, is refused, and after the first
 * begin everything but what is bound already.
 *
 * Not capturable. One thread at a time, with the calls that take a stream.
 *
 * On a device the memory must be that device's own: neither managed, nor page-locked host memory, nor another device's
 * (ROUTECAP_ERR_ARGUMENT).
 *
 * @param sink  rows >= the capturer's rows, k == the capturer's k.
 * @return ROUTECAP_ERR_UNKNOWN_LAYER; ROUTECAP_ERR_SHAPE_MISMATCH (rows or strides too small, another k); ROUTECAP_ERR_DTYPE;
 *         ROUTECAP_ERR_STATE (the address of a layer is fixed); ROUTECAP_ERR_DEVICE, ROUTECAP_ERR_DEVICE_LOST.
 */
ROUTECAP_API int32_t routecap_sink_bind(routecap_capturer *capturer, uint32_t first_layer, uint32_t layers, const routecap_sink *sink);

/**
 * Where layer `layer` is written: what to give a router as its output of ids. From now on the address is fixed.
 *
 * Write a row at most once in a step, between its begin and its snapshot, in the order of the stream.
 *
 * @param sink  Filled; sink->ids is NULL if the layer has no memory yet (ROUTECAP_CONFIG_EXTERNAL_SINK), which leaves it unfixed.
 * @return ROUTECAP_ERR_UNKNOWN_LAYER.
 */
ROUTECAP_API int32_t routecap_sink_layer(routecap_capturer *capturer, uint32_t layer, routecap_sink *sink);

/* ================================================================================================
 * Recording a layer
 * ============================================================================================== */

/*
 * Expert ids as a router leaves them: a matrix of rows x k_source elements. What it takes to make ids of this capturer from them: columns
 * at and after the capturer's k are dropped (fused shared experts); then `table`, if there is one, replaces an id by table[id], and an id
 * outside the table becomes invalid; then `offset` is added. An id that is outside the layer's range in the end makes its cell missing;
 * nothing wraps.
 */
typedef struct routecap_source {
    uint32_t struct_size;
    int32_t dtype;            /* I16, I32, U32, I64 or ID16_BF16 */
    const void *ids;          /* [device] element of row 0, column 0 */
    int64_t row_stride;       /* elements from one row to the next; 0 means k_source; arbitrary if there is one row */
    int64_t column_stride;    /* elements from one column to the next; 0 means 1 */
    uint32_t rows;            /* rows present, or the most of them where live_rows is set */
    uint32_t k_source;        /* columns present, >= the capturer's k; 0 means k */
    const int32_t *live_rows; /* [device] one number: only the first *live_rows rows hold ids; clamped to [0, rows]; NULL: all */
    const int32_t *row_base;  /* [device] one number, added to first_row; NULL: nothing is added */
    const int32_t *row_index; /* [device] [rows] the sink row of each source row, negative for none; first_row is not used then. NULL: in order */
    uint32_t first_row;       /* sink row of source row 0, where row_index is NULL */
    int32_t offset;           /* added to each id */
    const int32_t *table;     /* [device] [table_size] the id of each source id: a placement's physical-to-logical table; NULL: none */
    uint32_t table_size;
    uint32_t flags;           /* 0 or ROUTECAP_SOURCE_OVERLAP */
} routecap_source;

/*
 * Flag of routecap_source: launch the copy with programmatic dependent launch (compute capability 9.0 or newer; elsewhere without effect), so
 * that it may start while a router that allows it is still running; it waits for the router's end before it reads. A consumer launched so may
 * start while the copy is running, with and without this flag, and must wait for what comes before it, as it has to anyway.
 */
#define ROUTECAP_SOURCE_OVERLAP 1u

/**
 * Copy the ids that a router chose into the sink of one layer.
 *
 * Ways to bring ids into the sink, the cheapest first:
 * - The router writes them there (routecap_sink_layer, routecap_sink_bind): nothing is launched. Not if anything rewrites them in place before
 *   the snapshot: load balancing, masks of zero experts, shared experts appended to the same rows.
 * - One call for many layers behind the last router (routecap_layers_record), if the ids of all of them still exist there.
 * - One call per layer on a stream of its own, forked behind the router and joined before the snapshot.
 * - One call per layer in line, with ROUTECAP_SOURCE_OVERLAP if the router and the consumer of its ids use programmatic dependent launch.
 * README.md has what each costs.
 *
 * Call it after top-k and before anything rewrites the ids. Rows of one layer may come in several calls (micro-batches, chunks) as long as
 * they are disjoint: of a row recorded twice one is kept, the first where the order is known. If begin and both records were made outside
 * graph capture, with no snapshot, issue, discard or capture since, and neither row_index nor live_rows nor row_base, the second call is
 * refused with ROUTECAP_ERR_CONFLICT; otherwise its cells are dropped, counted, and reported by routecap_step_finalize. Rows at or beyond
 * the number begun are dropped and counted; without a begin, that is all rows.
 *
 * Capturable. Does not block. On the host backend the ids are copied before the call returns.
 *
 * @return ROUTECAP_ERR_UNKNOWN_LAYER; ROUTECAP_ERR_DTYPE; ROUTECAP_ERR_SHAPE_MISMATCH (k_source < k);
 *         ROUTECAP_ERR_CAPACITY (first_row + rows outside the sink; nothing is written); ROUTECAP_ERR_CONFLICT (nothing is written);
 *         ROUTECAP_ERR_STATE (the layer has no sink).
 */
ROUTECAP_API int32_t routecap_layer_record(routecap_capturer *capturer, uint32_t layer, const routecap_source *source, routecap_stream stream);

/* The ids of one layer among several. */
typedef struct routecap_layer_source {
    uint32_t layer;
    uint32_t reserved;    /* 0 */
    const void *ids;      /* [device] as in routecap_source */
    const int32_t *table; /* [device] as in routecap_source; NULL for every layer if source.table_size is 0 */
} routecap_layer_source;

/**
 * Copy the ids of several layers in one launch (of at most 64 layers each), where all of them are still there at the end of a forward pass.
 *
 * Inside a CUDA graph the ids of a layer may lie in memory that later layers use again: keep them in memory of their own.
 *
 * Otherwise as routecap_layer_record, once for each layer; if one of them is refused, nothing is recorded. A layer that is named twice is
 * ROUTECAP_ERR_ARGUMENT.
 *
 * @param source      What the layers have in common; `ids` and `table` are NULL.
 * @param layers      [count] of layer_size bytes each, each layer once.
 * @param layer_size  sizeof(routecap_layer_source) of the caller.
 */
ROUTECAP_API int32_t routecap_layers_record(routecap_capturer *capturer, const routecap_source *source, const routecap_layer_source *layers,
                                            size_t layer_size, size_t count, routecap_stream stream);

/* ---- From logits --------------------------------------------------------------------------- */

/*
 * Kernels that route internally may expose no ids. Their logits still say which experts win, if the same arithmetic is done again: ties and
 * near ties may fall differently, so the ids of such a layer carry the provenance RECOMPUTED, which views and coverage show and strict
 * reading refuses unless told otherwise. Capture where you can.
 */

/* The score of an expert, from its logit x; everything is computed in float32. */
#define ROUTECAP_SCORE_LOGIT 0         /* x */
#define ROUTECAP_SCORE_SOFTMAX 1       /* exp(x - max) / sum of these */
#define ROUTECAP_SCORE_SIGMOID 2       /* 1 / (1 + exp(-x)) */
#define ROUTECAP_SCORE_SQRT_SOFTPLUS 3 /* sqrt(log(1 + exp(x))); sqrt(x) above 20 */

/* The score of a group of experts, from their keys. */
#define ROUTECAP_GROUP_MAX 0           /* the largest */
#define ROUTECAP_GROUP_TOP2 1          /* sum of the two largest, which may be equal */
#define ROUTECAP_GROUP_TOP2_DISTINCT 2 /* sum of the two largest different ones; of one, if all are equal */

/* Flags of routecap_router. */
#define ROUTECAP_ROUTER_RANK_LOGITS 1u  /* the key is x + bias, not score + bias */
#define ROUTECAP_ROUTER_RENORMALIZE 2u  /* weights are divided by their sum, and `floor` is added to that */
#define ROUTECAP_ROUTER_FLOOR_MAX 4u    /* the sum is at least `floor`, which is not added */
#define ROUTECAP_ROUTER_SIGMOID_TANH 8u /* sigmoid as 0.5 * tanh(0.5 * x) + 0.5 */
#define ROUTECAP_ROUTER_GROUPS_ZERO 16u /* experts of groups that are not kept have the key 0; without it they are out of the running */

/* Methods in use, for routecap_router_init. */
#define ROUTECAP_METHOD_SOFTMAX 1             /* rank probabilities; weights are probabilities: OLMoE, Qwen2 */
#define ROUTECAP_METHOD_SOFTMAX_RENORMALIZE 2 /* rank probabilities; weights sum to 1: Mixtral, Qwen3 */
#define ROUTECAP_METHOD_TOPK_SOFTMAX 3        /* rank logits; softmax over the chosen: gpt-oss */
#define ROUTECAP_METHOD_TOPK 4                /* rank logits; weights are logits */
#define ROUTECAP_METHOD_TOPK_SIGMOID 5        /* rank logits; weights are their sigmoid: Llama 4 with k = 1 */
#define ROUTECAP_METHOD_SIGMOID 6             /* rank sigmoid + bias; weights are sigmoids */
#define ROUTECAP_METHOD_SIGMOID_RENORMALIZE 7 /* likewise, sum 1: MiniMax M2 (with bias) */
#define ROUTECAP_METHOD_DEEPSEEK_V2 8         /* softmax, groups by their maximum; set groups, groups_kept, scale */
#define ROUTECAP_METHOD_DEEPSEEK_V3 9         /* sigmoid + bias, groups by their top two, sum 1: also GLM, Kimi, Nemotron; set groups, groups_kept,
                                                 bias, scale */
#define ROUTECAP_METHOD_DEEPSEEK_V4 10        /* sqrt-softplus + bias, sum 1; set bias, scale; or hash_table in layers that have one */
#define ROUTECAP_METHOD_ERNIE 11              /* rank softmax + bias; weights are probabilities, sum 1; set bias, floor */

/*
 * How a router chooses k of its experts. The key of an expert is its score plus its bias. With groups, only experts of the groups_kept groups
 * with the largest group scores remain. The k largest keys win; of equal ones the lower id (of equal groups the lower group). Ids are in
 * order of falling keys, a column each. A NaN is scored as minus infinity would be, and its key is minus infinity; if the largest logit is
 * infinite, softmax counts logits equal to it as 1 and others as 0.
 */
typedef struct routecap_router {
    uint32_t struct_size;
    int32_t score;             /* ROUTECAP_SCORE_* */
    int32_t group_score;       /* ROUTECAP_GROUP_* */
    uint32_t flags;            /* ROUTECAP_ROUTER_* */
    uint32_t groups;           /* of equal size, up to ROUTECAP_MAX_GROUPS; 0 or 1: no groups */
    uint32_t groups_kept;      /* 1..groups, with k experts at least; not looked at without groups */
    float scale;               /* weights are multiplied by it; 0 means 1 */
    float floor;               /* see ROUTECAP_ROUTER_RENORMALIZE; routecap_router_init sets what the method's models use */
    const void *bias;          /* [device] [experts]; ranks experts and does not weigh them; NULL: none */
    int32_t bias_dtype;        /* F32, F16 or BF16, where bias is set */
    uint32_t hash_tokens;      /* rows of hash_table */
    const int32_t *hash_table; /* [device] [hash_tokens, k] ids by token: no key is looked at, logits serve for weights only; NULL: none */
} routecap_router;

/**
 * Fill a router with a method in use; what that method takes from the model remains to be set.
 *
 * @param router       Filled.
 * @param struct_size  sizeof(routecap_router) of the caller.
 * @param method       ROUTECAP_METHOD_*.
 */
ROUTECAP_API int32_t routecap_router_init(routecap_router *router, size_t struct_size, int32_t method);

/* The logits of one layer: a matrix of rows x experts elements. */
typedef struct routecap_logits {
    uint32_t struct_size;
    int32_t dtype;            /* F32, F16 or BF16 */
    const void *logits;       /* [device] element of row 0, column 0; may be NULL with a hash_table if weights is NULL */
    int64_t row_stride;       /* elements from one row to the next; 0 means experts */
    int64_t column_stride;    /* elements from one column to the next; 0 means 1 */
    uint32_t rows;            /* these five as in routecap_source */
    uint32_t first_row;
    const int32_t *live_rows; /* [device] */
    const int32_t *row_base;  /* [device] */
    const int32_t *row_index; /* [device] [rows] */
    const void *tokens;       /* [device] [rows] input token of each row, where the router has a hash_table */
    int32_t tokens_dtype;     /* I32 or I64, where tokens is set */
    uint32_t experts;         /* columns: k or more, and no more than the layer's or ROUTECAP_MAX_ROUTED_EXPERTS; 0 means the layer's */
    float *weights;           /* [device] [rows, weights_stride] receives the weight of each column, for every live row, also one that is not
                                 begun or was recorded before; NULL: none. A disabled capturer writes none */
    int64_t weights_stride;   /* elements from one row to the next, >= k; 0 means k */
} routecap_logits;

/**
 * Choose experts from logits, into the sink of one layer.
 *
 * Rows go where routecap_layer_record would put them, and are kept or dropped by the same rules.
 *
 * Capturable. Does not block. On the host backend the work is done before the call returns.
 *
 * @param layer  One whose provenance is RECOMPUTED (ROUTECAP_ERR_STATE otherwise).
 * @return ROUTECAP_ERR_UNKNOWN_LAYER; ROUTECAP_ERR_DTYPE (logits, bias or tokens); ROUTECAP_ERR_ARGUMENT (also groups that do not divide the experts,
 *         groups kept with fewer than k experts, more experts than there may be, a hash_table without tokens);
 *         ROUTECAP_ERR_CAPACITY; ROUTECAP_ERR_CONFLICT; ROUTECAP_ERR_STATE.
 */
ROUTECAP_API int32_t routecap_layer_route(routecap_capturer *capturer, uint32_t layer, const routecap_router *router,
                                          const routecap_logits *logits, routecap_stream stream);

/* ---- Probing ------------------------------------------------------------------------------- */

/* What is odd about the ids of a layer. One forward of many different tokens shows none of it in a layer that is captured well. */
#define ROUTECAP_PROBE_SILENT 1u       /* no row was written: the tap does not fire */
#define ROUTECAP_PROBE_INCOMPLETE 2u   /* some rows were not written, or not all of their columns */
#define ROUTECAP_PROBE_OUT_OF_RANGE 4u /* ids outside the layer's range: shared experts, local ids or another dtype */
#define ROUTECAP_PROBE_DUPLICATE 8u    /* one id twice in a row */
#define ROUTECAP_PROBE_SEQUENCE 16u    /* several rows, all of them 0, 1, ... k-1: what a router makes of no logits */
#define ROUTECAP_PROBE_CONSTANT 32u    /* several rows, all with the same ids */
#define ROUTECAP_PROBE_REPEATED 64u    /* several rows, the same in each as in the layer before: one buffer for two layers */

/* What a layer's sink holds. Each row is in exactly one of the first three counts. */
typedef struct routecap_layer_probe {
    uint32_t found;             /* ROUTECAP_PROBE_* */
    uint32_t rows_unwritten;    /* no column was written */
    uint32_t rows_incomplete;   /* some were */
    uint32_t rows_written;      /* all were */
    uint32_t rows_out_of_range; /* of those that were written at least in part */
    uint32_t rows_duplicate;    /* of those that were written, with ids in range */
    int32_t lowest;             /* id of those in range; -1 if there is none */
    int32_t highest;
} routecap_layer_probe;

/**
 * Look at what the last forward pass wrote: for one warm-up at start, of many different tokens, to learn which layers are captured and which
 * only seem to be.
 *
 * Call it between a begin with its forward and what issues or discards that; it changes nothing. Waits until the stream has run. Not
 * capturable. A disabled capturer fills zeros.
 *
 * @param rows        The rows to look at, from row 0 on: those of the forward that were not padding. At most those begun.
 * @param layers      [count], filled for layers 0..count-1.
 * @param layer_size  sizeof(routecap_layer_probe) of the caller.
 * @param count       At most the capturer's layers (ROUTECAP_ERR_UNKNOWN_LAYER otherwise).
 * @return ROUTECAP_OK; ROUTECAP_PARTIAL (something was found: see each layer); ROUTECAP_ERR_CAPACITY; ROUTECAP_ERR_STATE (no row is begun).
 */
ROUTECAP_API int32_t routecap_capturer_probe(routecap_capturer *capturer, uint32_t rows, routecap_layer_probe *layers, size_t layer_size,
                                             size_t count, routecap_stream stream);

#ifdef __cplusplus
}
#endif

#endif /* ROUTECAP_RECORD_H */

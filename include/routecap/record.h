/*
 * routecap, chapter 3: recording. To capture a layer, get its expert ids into the sink.
 *
 * Copyright 2026 The routecap authors. Licensed under the Apache License, Version 2.0; see LICENSE.
 *
 * Between the begin and the snapshot of a step, the ids of each MoE layer must get into the sink.
 *
 * A program needs one or two of the first five functions, and the probe:
 *
 *   routecap_sink_layer        where a router writes the ids of a layer
 *   routecap_sink_bind         use memory of the engine as the sink instead
 *   routecap_layer_record      copy the ids of one layer
 *   routecap_layers_record     copy the ids of many layers
 *   routecap_layer_route       choose the experts of a layer from its logits
 *   routecap_capturer_probe    check a warm-up pass
 *
 *     // in each MoE layer, behind its router
 *     routecap_source source = {.struct_size = sizeof source, .dtype = ROUTECAP_DTYPE_I32,
 *                               .ids = topk_ids, .rows = rows};
 *     routecap_layer_record(capturer, layer, &source, stream);
 *
 * After any change to how the engine records, run routecap_capturer_probe. It tells you which
 * layers are captured, and which only seem to be.
 *
 * ------------------------------------------------------------------------------------------------
 * In detail
 * ------------------------------------------------------------------------------------------------
 * There are five ways to get ids into the sink, the cheapest first. docs/performance.md has the
 * cost of each:
 *
 *   1. The router writes its ids into the sink itself: routecap_sink_layer, or routecap_sink_bind
 *      if the engine has its own memory for them. Nothing is launched. This works only if the ids
 *      stay as they are until the snapshot. Three things change them: load balancing in place,
 *      masking of zero-computation experts, and shared experts appended to the same rows.
 *   2. One call after the last router copies the ids of many layers: routecap_layers_record. This
 *      works only if the ids of all these layers still exist at that point. If they are all layers,
 *      ROUTECAP_SOURCE_WHOLE_STEP makes this the only call of the step.
 *   3. One call per layer, routecap_layer_record, on a side stream that is forked after the
 *      router and joined before the snapshot.
 *   4. One call per layer on the engine's stream. If the engine lets a kernel start before the
 *      previous one has ended (CUDA's programmatic dependent launch), set ROUTECAP_SOURCE_OVERLAP,
 *      so that the copy does not prevent that.
 *   5. If only the router's scores (logits) exist, routecap_layer_route chooses the experts again.
 *
 * Recipes:
 *   - Micro-batches of one forward pass: record each with first_row set to its first sink row.
 *   - A load balancer that replaces ids in place: record before it runs. If only physical ids
 *     remain, map them back with `table`.
 *   - A padded CUDA graph: set live_rows, so that the padding is not recorded.
 *   - Rows in a different order than in the sink: set row_index.
 *   - A device that the library has no backend for: issue with ROUTECAP_SNAPSHOT_LATER, copy the
 *     ids to the host, and call routecap_step_arrive.
 *
 * The rest of the chapter: routecap_router_init, which prepares routecap_layer_route, and
 * routecap_step_arrive, for devices that the library has no backend for.
 */
#ifndef ROUTECAP_RECORD_H
#define ROUTECAP_RECORD_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ================================================================================================
 * The sink
 * ============================================================================================== */

/*
 * Memory for the ids of one layer, or of several layers at equal distances: [layers, rows, k]
 * without strides. If a token may have fewer than k experts (layer_min_k), the router writes
 * ROUTECAP_NO_EXPERT into each column after the last expert.
 */
typedef struct routecap_sink {
    uint32_t struct_size;
    routecap_dtype dtype; /* ROUTECAP_DTYPE_I16, _I32 or _I64 */
    void *ids;            /* [device] row 0, column 0 of the first layer, aligned to its element
                             type */
    uint32_t rows;        /* rows present */
    uint32_t k;           /* columns of a row, adjacent in memory: config.k, or the layer_k of these
                             layers if config.layer_k is set. For routecap_step_arrive it is
                             config.k in any case */
    int64_t row_stride;   /* elements from one row to the next, k or more; 0 means k */
    int64_t layer_stride; /* elements from one layer to the next; 0 means rows * row_stride */
    uint64_t ids_bytes;   /* the bytes at ids, to be checked as in routecap_source: without strides
                             layers * rows * k elements exactly; 0: not stated. routecap_sink_layer
                             does not state it */
    routecap_dtype weights_dtype; /* config.weights_dtype if weights are given; otherwise 0 */
    uint32_t reserved;            /* 0 */
    void *weights;                /* [device] the weights of the same cells, with the same strides
                                     in elements. Begin fills the rows with NaN, so weights that
                                     nobody writes are missing. NULL: the weights of these layers
                                     are missing */
    uint64_t weights_bytes;       /* the bytes at weights, checked as ids_bytes; 0: not stated */
} routecap_sink;

/**
 * Get the sink of a layer, so that the router can write its ids there.
 *
 * The address does not change afterwards. In each step, the router may write each row once. The
 * stream must order this write after the begin and before the snapshot. A second write replaces the
 * first, and nothing can notice it. Begin fills the rows with a value that is no id, so the
 * snapshot finds cells that were not written. The router may also write unsigned integers of the
 * size of the sink's dtype. If weights are captured, it writes them to sink->weights, by the same
 * rules.
 *
 * @param[in] capturer  The capturer.
 * @param[in] layer     The layer.
 * @param[out] sink     The sink of this layer, with row_stride set. ids is NULL if the capturer is
 *                      disabled. It is NULL too if the layer has no memory yet
 *                      (ROUTECAP_CONFIG_EXTERNAL_SINK); the call does not fix its address then.
 * @return ROUTECAP_OK; ROUTECAP_ERR_UNKNOWN_LAYER.
 * @thread(forward)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_sink_layer(routecap_capturer *capturer, uint32_t layer, routecap_sink *sink);

/**
 * Use memory of the engine as the sink of some layers, instead of the library's. With
 * ROUTECAP_CONFIG_EXTERNAL_SINK the library does not allocate the memory that is replaced.
 *
 * If a router or a fused kernel writes its ids there, nothing else has to record them. Bind only
 * memory in which nothing rewrites the ids before the snapshot. If something rewrites them, record
 * them before it does. routecap_step_begin writes to this memory: it clears the k columns of each
 * row that is begun, of ids and of weights.
 *
 * Keep the memory valid and in place until the capturer is destroyed, and as long as graphs that
 * write it are replayed. On a device it must be that device's own memory. Managed memory,
 * page-locked host memory and the memory of a different device are ROUTECAP_ERR_ARGUMENT.
 *
 * The address of a sink never changes. It is fixed when the layer is bound, when its address is
 * returned, or when the first step begins. After that only the same memory can be bound again.
 *
 * Not capturable.
 *
 * @param[in] capturer     The capturer.
 * @param[in] first_layer  The first layer.
 * @param[in] layers       How many layers, 1 or more.
 * @param[in] sink         The memory, with routecap_config.rows rows or more, and the k of these
 *                         layers. Layers with different layer_k need a call each.
 * @return ROUTECAP_OK; ROUTECAP_ERR_UNKNOWN_LAYER; ROUTECAP_ERR_SHAPE_MISMATCH (rows or strides too
 *         small, a different k, layers with different layer_k, ids_bytes or weights_bytes);
 *         ROUTECAP_ERR_DTYPE (also if weights_dtype is not config.weights_dtype, is set without
 *         weights, or is 0 with them); ROUTECAP_ERR_STATE (the address is fixed);
 *         ROUTECAP_ERR_DEVICE; ROUTECAP_ERR_DEVICE_LOST.
 * @thread(forward)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_sink_bind(routecap_capturer *capturer, uint32_t first_layer, uint32_t layers,
                   const routecap_sink *sink);

/* ================================================================================================
 * Recording ids
 * ============================================================================================== */

typedef uint32_t routecap_source_flags; /* @any_of(ROUTECAP_SOURCE_*) */

/*
 * Expert ids as a router leaves them: a matrix [rows, k_source]. Usually you set dtype, ids and
 * rows, and leave the rest 0: the ids of source row i then go to sink row i as they are.
 *
 * The library turns the numbers into ids of the capturer in this order:
 *   1. Only the first k columns are used (the layer's layer_k). Engines that fuse shared experts
 *      append their ids after these.
 *   2. A number that equals `none`, if you state one, says that no expert was chosen. Such columns
 *      must come after all experts of the cell. The next two steps leave them out.
 *   3. If there is a table, an id becomes table[id]. An id outside the table becomes invalid.
 *   4. `offset` is added.
 * If the result is outside the layer's range, the cell is missing. Nothing wraps around.
 *
 * A matrix of another shape or type than it is said to be gives ids that are in range and wrong. So
 * state the bytes that there are at `ids` if you know them:
 *   - With neither row_stride nor column_stride, they must be rows * k_source elements exactly.
 *   - With a stride, they must reach up to the end of the last element that is used.
 * Otherwise the call returns ROUTECAP_ERR_SHAPE_MISMATCH, and the text has both numbers.
 */
typedef struct routecap_source {
    uint32_t struct_size;
    routecap_dtype dtype;        /* ROUTECAP_DTYPE_I16, _I32, _U32, _I64 or _ID16_BF16 */
    const void *ids;             /* [device] row 0, column 0 */
    uint64_t ids_bytes;          /* the bytes at ids, of each layer alike; 0: not stated */
    int64_t row_stride;          /* elements from one row to the next; 0 means k_source; ignored if
                                    there is only one row */
    int64_t column_stride;       /* elements from one column to the next; 0 means 1 */
    uint32_t rows;               /* rows present; with live_rows, the most that can be present */
    uint32_t k_source;           /* columns present, the layer's layer_k or more; 0 means config.k,
                                    also where layer_k is less */
    const int32_t *live_rows;    /* [device] one number: only the first *live_rows rows hold ids;
                                    clamped to [0, rows]; NULL: all do */
    const int32_t *row_base;     /* [device] one number, added to first_row; NULL: 0 */
    const int32_t *row_index;    /* [device] [rows] the sink row of each source row, negative for
                                    none; first_row and row_base are then ignored. NULL: source rows
                                    go to consecutive sink rows */
    uint32_t first_row;          /* without row_index: the sink row of source row 0 */
    int32_t offset;              /* added to each id */
    const int32_t *table;        /* [device] [table_size] the id for each source id, such as a load
                                    balancer's table from physical to logical ids; NULL: none */
    uint32_t table_size;         /* elements of table; 0 without one */
    routecap_source_flags flags; /* 0, ROUTECAP_SOURCE_OVERLAP or ROUTECAP_SOURCE_WHOLE_STEP */
    int32_t none;                /* the number that says that no expert was chosen, such as -1 or
                                    the number of experts; with U32 a negative one in two's
                                    complement. 0: there is no such number, and -1 is out of range.
                                    Allowed only if layer_min_k is less than layer_k in a layer of
                                    the call. Where it is not, such a cell is out of range */
    routecap_dtype weights_dtype; /* config.weights_dtype if weights are given; otherwise 0 */
    const void *weights;         /* [device] row 0, column 0: the weight of each id, in adjacent
                                    columns, whatever column_stride is. NULL: none; but if dtype is
                                    ID16_BF16 and config.weights_dtype BF16, those in the ids are
                                    recorded */
    int64_t weights_row_stride;  /* elements from one row of weights to the next, 0 or more;
                                    0 means k_source */
    uint64_t weights_bytes;      /* the bytes at weights, of each layer alike, checked as
                                    ids_bytes; 0: not stated */
} routecap_source;

/*
 * Flag of routecap_source. Launches the copy with programmatic dependent launch. On compute
 * capability 9.0 and newer, the copy may then start while the router is still running, if the
 * router allows it. The copy waits for the end of the router before it reads. On older devices the
 * flag has no effect. If a kernel after the copy is itself launched in this way, it may start while
 * the copy is running, with or without the flag. As always with such launches, that kernel must
 * synchronise before it reads.
 */
#define ROUTECAP_SOURCE_OVERLAP 1u

/*
 * Flag of routecap_source, for routecap_layers_record alone. The call is the whole step: it begins
 * the step with source.rows rows, copies the ids of the layers, and takes the snapshot. Layers that
 * it does not name are missing. On a device all of that is one launch for up to 64 layers, and the
 * ids do not go through the sink.
 *
 * Source row i is sink row i: leave first_row, live_rows, row_base and row_index out. If a step was
 * begun before, this one takes its place. Record nothing else in the step.
 *
 * routecap_capturer_probe looks at the sink, so it finds no rows of such a step. To probe, begin
 * the warm-up pass and record it without this flag.
 */
#define ROUTECAP_SOURCE_WHOLE_STEP 2u

/**
 * Copy the ids that a router chose into the sink of one layer.
 *
 * Call it after top-k, before anything rewrites the ids.
 *
 * You may record the rows of a layer in several calls (micro-batches, chunks), if they are
 * disjoint. If a row is recorded twice, one record is kept: the first, if the streams order the
 * two.
 *   - The call notices the second record and returns ROUTECAP_ERR_CONFLICT if all of this holds:
 *     the begin and both records were made outside graph capture; no snapshot, issue, discard or
 *     graph capture came between them; and neither record has row_index, live_rows or row_base.
 *   - Otherwise the device drops and counts the cells of the second record, and
 *     routecap_step_finalize reports them.
 * Rows at or beyond the number begun are dropped and counted: without a begin, all rows.
 *
 * Capturable. On the host backend the ids are copied before the call returns.
 *
 * @param[in] capturer  The capturer.
 * @param[in] layer     The layer.
 * @param[in] source    The ids, and the sink rows to write them to.
 * @param[in] stream    A stream that is ordered after the router.
 * @return ROUTECAP_OK. On error nothing is written: ROUTECAP_ERR_UNKNOWN_LAYER; ROUTECAP_ERR_DTYPE
 *         (also if weights_dtype is not config.weights_dtype, or is set without weights, or is 0
 *         with them); ROUTECAP_ERR_SHAPE_MISMATCH (k_source less than layer_k, or ids_bytes or
 *         weights_bytes is not what is read); ROUTECAP_ERR_ARGUMENT (also `none` for a layer in
 *         which each token has layer_k experts); ROUTECAP_ERR_CAPACITY (first_row + rows outside
 *         the sink); ROUTECAP_ERR_CONFLICT; ROUTECAP_ERR_STATE (the layer has no sink, or none for
 *         the weights that are given).
 * @thread(forward)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_layer_record(routecap_capturer *capturer, uint32_t layer, const routecap_source *source,
                      routecap_stream stream);

/* The ids of one layer among several. */
typedef struct routecap_layer_source {
    uint32_t layer;       /* index of the captured layer */
    uint32_t reserved;    /* 0 */
    const void *ids;      /* [device] as in routecap_source */
    const int32_t *table; /* [device] as in routecap_source; NULL if source.table_size is 0 */
    const void *weights;  /* [device] as in routecap_source; NULL: no weights of this layer */
} routecap_layer_source;

/**
 * Copy the ids of several layers, with one launch per 64 layers.
 *
 * The ids of all layers must still exist when the stream reaches this call. Inside a CUDA graph,
 * later layers may reuse the memory that holds the ids of a layer, so keep the ids of each layer in
 * separate memory.
 *
 * With ROUTECAP_SOURCE_WHOLE_STEP the call also begins the step and takes its snapshot. In all
 * other respects it is like one routecap_layer_record for each layer. If one layer is refused,
 * nothing is recorded. Naming a layer twice is ROUTECAP_ERR_ARGUMENT. Capturable.
 *
 * @param[in] capturer    The capturer.
 * @param[in] source      What the layers have in common. Set its ids, table and weights to NULL.
 * @param[in] layers      [count] elements of layer_size bytes, each layer once.
 * @param[in] layer_size  sizeof(routecap_layer_source) of the caller, in bytes.
 * @param[in] count       How many layers.
 * @param[in] stream      A stream that is ordered after the routers.
 * @return As routecap_layer_record.
 * @thread(forward)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_layers_record(routecap_capturer *capturer, const routecap_source *source,
                       const routecap_layer_source *layers, size_t layer_size, size_t count,
                       routecap_stream stream);

/* ================================================================================================
 * Choosing experts from logits
 *
 * A kernel that routes internally may expose no ids. Its logits still say which experts win, if the
 * same arithmetic is done again. Ties and near ties may fall differently. So the ids of such a
 * layer carry the provenance RECOMPUTED. Views and coverage show it, and strict reading refuses it
 * unless ROUTECAP_READ_ALLOW_RECOMPUTED allows it. Record the router's own ids where you can.
 * ============================================================================================== */

/* The score of an expert, from its logit x. All arithmetic is in float32. */
#define ROUTECAP_SCORE_LOGIT 0         /* x */
#define ROUTECAP_SCORE_SOFTMAX 1       /* exp(x - max) / sum of these */
#define ROUTECAP_SCORE_SIGMOID 2       /* 1 / (1 + exp(-x)) */
#define ROUTECAP_SCORE_SQRT_SOFTPLUS 3 /* sqrt(log(1 + exp(x))); sqrt(x) above 20 */
typedef int32_t routecap_score; /* @one_of(ROUTECAP_SCORE_*) */

/* The score of a group of experts, from their keys. An expert's key is its score plus its bias, by
 * which experts are ranked; see routecap_router. */
#define ROUTECAP_GROUP_MAX 0           /* the largest */
#define ROUTECAP_GROUP_TOP2 1          /* sum of the two largest, which may be equal */
#define ROUTECAP_GROUP_TOP2_DISTINCT 2 /* sum of the two largest values that differ; if all are
                                          equal, that value once */
typedef int32_t routecap_group_score; /* @one_of(ROUTECAP_GROUP_*) */

/* Flags of routecap_router. */
#define ROUTECAP_ROUTER_RANK_LOGITS 1u  /* the key is x + bias, not score + bias */
#define ROUTECAP_ROUTER_RENORMALIZE 2u  /* the weights of the chosen experts, by which their outputs
                                           are multiplied, are divided by their sum plus `floor` */
#define ROUTECAP_ROUTER_FLOOR_MAX 4u    /* with RENORMALIZE: the divisor is max(sum, floor)
                                           instead */
#define ROUTECAP_ROUTER_SIGMOID_TANH 8u /* sigmoid as 0.5 * tanh(0.5 * x) + 0.5 */
#define ROUTECAP_ROUTER_GROUPS_ZERO 16u /* experts of groups that are not kept have the key 0;
                                           without the flag they cannot win */
typedef uint32_t routecap_router_flags; /* @any_of(ROUTECAP_ROUTER_*) */

/*
 * Routing methods for routecap_router_init. "Rank ..." names the key by which experts are ranked;
 * see routecap_router. "Set ..." names the fields that you fill from the model.
 */
#define ROUTECAP_METHOD_SOFTMAX 1             /* rank probabilities; weights are probabilities:
                                                 OLMoE, Qwen2 */
#define ROUTECAP_METHOD_SOFTMAX_RENORMALIZE 2 /* rank probabilities; weights sum to 1: Mixtral,
                                                 Qwen3 */
#define ROUTECAP_METHOD_TOPK_SOFTMAX 3        /* rank logits; softmax over the chosen: gpt-oss */
#define ROUTECAP_METHOD_TOPK 4                /* rank logits; weights are logits */
#define ROUTECAP_METHOD_TOPK_SIGMOID 5        /* rank logits; weights are their sigmoid: Llama 4,
                                                 with k = 1 */
#define ROUTECAP_METHOD_SIGMOID 6             /* rank sigmoid + bias; weights are sigmoids */
#define ROUTECAP_METHOD_SIGMOID_RENORMALIZE 7 /* rank sigmoid + bias; weights sum to 1: MiniMax M2
                                                 (set bias) */
#define ROUTECAP_METHOD_DEEPSEEK_V2 8         /* softmax; groups by their maximum. Set groups,
                                                 groups_kept, scale */
#define ROUTECAP_METHOD_DEEPSEEK_V3 9         /* sigmoid + bias; groups by their top two; weights
                                                 sum to 1: also GLM, Kimi, Nemotron. Set groups,
                                                 groups_kept, bias, scale */
#define ROUTECAP_METHOD_DEEPSEEK_V4 10        /* sqrt-softplus + bias; weights sum to 1. Set bias,
                                                 scale; or hash_table in layers that have one */
#define ROUTECAP_METHOD_ERNIE 11              /* rank softmax + bias; weights are probabilities and
                                                 sum to 1. Set bias, floor */
typedef int32_t routecap_method; /* @one_of(ROUTECAP_METHOD_*) */

/*
 * How a router chooses k of its experts. The key of an expert is its score plus its bias. The
 * experts with the k largest keys win. With groups, only the groups_kept groups with the largest
 * group scores take part. If keys are equal, the lower id wins; if group scores are equal, the
 * lower group. The ids are in descending order of their keys, one in each column.
 *
 * A logit that is NaN gets the score that a logit of minus infinity would get, and its key is minus
 * infinity. If the largest logit is infinite, softmax counts logits equal to it as 1 and the others
 * as 0.
 */
typedef struct routecap_router {
    uint32_t struct_size;
    routecap_score score;             /* ROUTECAP_SCORE_* */
    routecap_group_score group_score; /* ROUTECAP_GROUP_* */
    routecap_router_flags flags;      /* ROUTECAP_ROUTER_* */
    uint32_t groups;                  /* groups of equal size, up to ROUTECAP_MAX_GROUPS; 0 or 1:
                                         none */
    uint32_t groups_kept;             /* 1..groups, with k experts or more in them; not used without
                                         groups */
    float scale;                      /* weights are multiplied by it; 0 means 1 */
    float floor;                      /* see ROUTECAP_ROUTER_RENORMALIZE; routecap_router_init sets
                                         what the method's models use */
    const void *bias;                 /* [device] [experts] added to the scores to rank experts; not
                                         part of the weights; NULL: none */
    routecap_dtype bias_dtype;        /* ROUTECAP_DTYPE_F32, _F16 or _BF16, where bias is set */
    uint32_t hash_tokens;             /* rows of hash_table; 0 without one */
    const int32_t *hash_table;        /* [device] [hash_tokens, k] row t has the ids for token id t.
                                         Keys are then not used, and logits only for weights; NULL:
                                         none */
} routecap_router;

/**
 * Fill a router with a routing method. Then set the fields that the method takes from the model.
 *
 * @param[out] router      The router.
 * @param[in] struct_size  sizeof(routecap_router) of the caller, in bytes.
 * @param[in] method       ROUTECAP_METHOD_*.
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_router_init(routecap_router *router, size_t struct_size, routecap_method method);

/* The logits of one layer: a matrix [rows, experts]. */
typedef struct routecap_logits {
    uint32_t struct_size;
    routecap_dtype dtype;        /* ROUTECAP_DTYPE_F32, _F16 or _BF16 */
    const void *logits;          /* [device] row 0, column 0; may be NULL with a hash_table, if
                                    weights is NULL */
    int64_t row_stride;          /* elements from one row to the next; 0 means experts */
    int64_t column_stride;       /* elements from one column to the next; 0 means 1 */
    uint32_t rows;               /* as in routecap_source */
    uint32_t first_row;          /* as in routecap_source */
    const int32_t *live_rows;    /* [device] as in routecap_source */
    const int32_t *row_base;     /* [device] as in routecap_source */
    const int32_t *row_index;    /* [device] [rows] as in routecap_source */
    const void *tokens;          /* [device] [rows] the token id of each row, where the router has a
                                    hash_table */
    routecap_dtype tokens_dtype; /* ROUTECAP_DTYPE_I32 or _I64, where tokens is set */
    uint32_t experts;            /* columns: k or more, at most the layer's experts and
                                    ROUTECAP_MAX_ROUTED_EXPERTS; 0 means the layer's */
    float *weights;              /* [device] [rows, weights_stride] receives the weight of each
                                    chosen expert, for every live row, even if the row is not begun
                                    or was recorded before; NULL: not wanted. A disabled capturer
                                    writes no weights */
    int64_t weights_stride;      /* elements from one row to the next, k or more; 0 means k */
} routecap_logits;

/**
 * Choose the experts of one layer from its logits, and write their ids into the sink.
 *
 * Rows are placed, kept and dropped as in routecap_layer_record. Each token gets layer_k experts,
 * even if layer_min_k is less. The call writes weights only to logits->weights: it records none, so
 * the weights of its cells are missing if the capturer captures weights.
 *
 * Capturable. On the host backend the work is done before the call returns.
 *
 * @param[in] capturer  The capturer.
 * @param[in] layer     A layer whose provenance is RECOMPUTED (otherwise ROUTECAP_ERR_STATE).
 * @param[in] router    How the layer chooses.
 * @param[in] logits    The logits, and the sink rows to write the ids to.
 * @param[in] stream    A stream that is ordered after the logits.
 * @return ROUTECAP_OK. On error nothing is written: ROUTECAP_ERR_UNKNOWN_LAYER; ROUTECAP_ERR_DTYPE
 *         (logits, bias or tokens); ROUTECAP_ERR_ARGUMENT (also groups that do not divide the
 *         experts, kept groups with fewer than k experts, too many experts, or a hash_table without
 *         tokens); ROUTECAP_ERR_CAPACITY; ROUTECAP_ERR_CONFLICT; ROUTECAP_ERR_STATE.
 * @thread(forward)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_layer_route(routecap_capturer *capturer, uint32_t layer, const routecap_router *router,
                     const routecap_logits *logits, routecap_stream stream);

/* ================================================================================================
 * Rows that arrive later
 *
 * A device that the library has no backend for can still be captured, by a capturer on the host
 * backend. The engine keeps the ids of a forward pass in its own memory on that device. It enqueues
 * the pass and a copy of the ids to host memory, and issues the step without waiting for either.
 * When the copy has arrived, it hands the rows over.
 * ============================================================================================== */

/**
 * Hand over the rows of a step that was issued with ROUTECAP_SNAPSHOT_LATER.
 *
 * The calls between the issue and this one work as on the CUDA backend: they may come while the
 * rows are on their way, and take effect in the order in which they were made. Rows may arrive in
 * any order. Steps are filed in the order in which they were issued.
 *
 * The step is in flight until its rows have been filed. At most config.slots steps may be in
 * flight: one that is issued beyond them is lost, with or without ROUTECAP_CONFIG_MAY_LOSE. To lose
 * none, wait for the oldest by routecap_step_finalize, while another thread hands over its rows.
 *
 * Such a capturer never begins a step. Once a step was issued in this way, routecap_step_begin
 * returns ROUTECAP_ERR_STATE; once a step was begun, such an issue does. Set
 * ROUTECAP_CONFIG_EXTERNAL_SINK, so that the library allocates no sink, and bind none.
 *
 * Fill the device's memory for ids with bytes 0x80, and that for weights with bytes 0xff (NaN),
 * before each pass. What the pass does not write is then missing (UNWRITTEN), and never the id of
 * an earlier pass.
 *
 * The call copies the rows and checks every cell before it returns, so their memory is free again
 * after it. It does nothing if the rows were handed over before, if the step has landed, or if it
 * was issued in another way. When the capturer is destroyed, steps whose rows have not arrived are
 * lost.
 *
 * Any thread may call it, once the issue has returned. It does not wait.
 *
 * @param[in] capturer  The capturer.
 * @param[in] step      The ticket.
 * @param[in] rows      The rows of all layers, in host memory: ids (and weights, if captured) of
 *                      sink row 0 of layer 0. rows->k is config.k; of a layer with a smaller
 *                      layer_k the columns after that are not read. Set layer_stride if the memory
 *                      has room for more than rows->rows rows. For an array [rows, layers, k],
 *                      row_stride is layers * k, and layer_stride is k.
 *                      Rows of spans at or beyond rows->rows are missing (ABSENT), in checked mode
 *                      ROUTECAP_ERR_ROWS_NOT_BEGUN. Rows beyond the last that a span names are not
 *                      read. NULL: the rows will not come, and the step is lost.
 * @return ROUTECAP_OK; ROUTECAP_ERR_UNKNOWN_STEP (never issued); ROUTECAP_ERR_SHAPE_MISMATCH (a
 *         different k, a stride below k, ids_bytes or weights_bytes); ROUTECAP_ERR_DTYPE (as of
 *         routecap_sink_bind); in checked mode ROUTECAP_ERR_ROWS_NOT_BEGUN. On error the rows can
 *         still arrive.
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_step_arrive(routecap_capturer *capturer, routecap_step step, const routecap_sink *rows);

/* ================================================================================================
 * Probing
 * ============================================================================================== */

/*
 * Findings about the ids of a layer. After a pass with many different tokens, a layer that is
 * captured correctly has none of them. Weights are not examined. A column in which the layer may
 * have ROUTECAP_NO_EXPERT, and has it, counts as written.
 */
#define ROUTECAP_PROBE_SILENT 1u       /* no row was written: nothing records this layer */
#define ROUTECAP_PROBE_INCOMPLETE 2u   /* some rows were not written, or not in all columns */
#define ROUTECAP_PROBE_OUT_OF_RANGE 4u /* ids outside the layer's range: shared experts, ids that
                                          number only this rank's experts, another dtype, or fewer
                                          experts than layer_min_k */
#define ROUTECAP_PROBE_DUPLICATE 8u    /* the same id twice in one row */
#define ROUTECAP_PROBE_SEQUENCE 16u    /* several rows, all of them 0, 1, ..., k-1: a router that
                                          got no logits */
#define ROUTECAP_PROBE_CONSTANT 32u    /* several rows, all with the same ids */
#define ROUTECAP_PROBE_REPEATED 64u    /* several rows, each the same as in the layer before: two
                                          layers share one buffer */
#define ROUTECAP_PROBE_WORD_SIZE 128u  /* every second id is 0: ids are read as narrower ones, such
                                          as 64 bits as 32, and the 0 is their upper half. Found if
                                          all rows were written, have 16 ids or more together, and
                                          the other ids are not all the same. With k 1 or 2 such
                                          cells are valid, and with k 3 half of them are: nothing
                                          else finds them, checked mode included. State
                                          routecap_source.ids_bytes. If k is 2 and expert 0 is the
                                          second choice for every token, it looks the same */
typedef uint32_t routecap_probe_flags; /* @any_of(ROUTECAP_PROBE_*) */

/* What the sink of a layer holds. Each row is in exactly one of the first three counts. */
typedef struct routecap_layer_probe {
    routecap_probe_flags found; /* ROUTECAP_PROBE_* */
    uint32_t rows_unwritten;    /* no column was written */
    uint32_t rows_incomplete;   /* some columns were written */
    uint32_t rows_written;      /* all columns were written */
    uint32_t rows_out_of_range; /* rows with at least one written id out of range */
    uint32_t rows_duplicate;    /* written rows with all ids in range and one id twice */
    int32_t lowest;             /* lowest id in range that was written; -1 if there is none */
    int32_t highest;            /* highest id in range that was written; -1 if there is none */
} routecap_layer_probe;

/**
 * Check what the latest forward pass wrote, layer by layer.
 *
 * Use it at startup, for one warm-up pass with many different tokens. Call it after the begin and
 * the writes of that pass, and before the issue or discard. It changes nothing. For a disabled
 * capturer all numbers are 0.
 *
 * The call waits until the device has done the work that is on the stream. Not capturable.
 *
 * @param[in] capturer    The capturer.
 * @param[in] rows        Check sink rows 0..rows-1: the rows of the pass without padding. At most
 *                        the rows begun.
 * @param[out] layers     [count] elements of layer_size bytes, for layers 0..count-1.
 * @param[in] layer_size  sizeof(routecap_layer_probe) of the caller, in bytes.
 * @param[in] count       How many layers: at most routecap_config.layers.
 * @param[in] stream      The stream of the forward pass.
 * @return ROUTECAP_OK; ROUTECAP_PARTIAL (there are findings; see `found` of each layer);
 *         ROUTECAP_ERR_UNKNOWN_LAYER (layers beyond routecap_config.layers); ROUTECAP_ERR_CAPACITY
 *         (more rows than begun); ROUTECAP_ERR_STATE (no row is begun).
 * @thread(forward) @waits
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_capturer_probe(routecap_capturer *capturer, uint32_t rows, routecap_layer_probe *layers,
                        size_t layer_size, size_t count, routecap_stream stream);

#ifdef __cplusplus
}
#endif

#endif /* ROUTECAP_RECORD_H */

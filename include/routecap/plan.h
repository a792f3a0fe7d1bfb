/*
 * routecap, chapter 11: plans. To replay routing in a trainer, lay it out as the trainer lays out
 * its tokens.
 *
 * Copyright 2026 The routecap authors. Licensed under the Apache License, Version 2.0; see LICENSE.
 *
 * To replay routing is to send each token in training to the experts that were captured, not to
 * those that the trainer's router chooses. A trainer pads and concatenates the sequences of a
 * micro-batch, then divides them among its ranks: the tokens of a sequence by context and sequence
 * parallelism, the layers by pipeline stages. Replayed routing must go through the same steps. If
 * it is off by one row, every token is sent to its neighbour's experts, and nothing reports an
 * error. A plan says which row goes where on one rank. Make one plan for each micro-batch and rank.
 * Use it for expert ids, their weights, token ids, and anything else that has one element per
 * token.
 *
 *     routecap_plan_config config;
 *     routecap_plan_config_init(&config, sizeof config);
 *     config.samples = 2; config.lengths = lengths;
 *     config.context = ROUTECAP_PLAN_CONTEXT_ZIGZAG; config.context_size = 4;
 *     config.context_rank = rank;
 *     config.layers = 24; config.layer_map = moe_layers_of_this_stage;
 *     config.k = 8; config.experts = 128; config.expert_parallel = 8;
 *     config.dtype = ROUTECAP_DTYPE_I64; config.order = ROUTECAP_ORDER_LAYER_MAJOR;
 *     routecap_plan_create(&config, &plan);
 *
 *     routecap_plan_ranges(plan, ranges, sizeof *ranges, capacity, &n);  // which rows to fetch
 *     routecap_plan_gather(plan, sources, sizeof *sources, count,   // ids [layers, rows, k]
 *                          ids, ids_bytes, classes, classes_bytes, &report);
 *
 * To put the ids on a device, upload them narrow (one or two bytes each); a kernel widens and
 * transposes them:
 *
 *     routecap_plan_pack(plan, sources, sizeof *sources, count, pinned, bytes, &report);
 *     routecap_plan_unpack(plan, pinned, bytes, &target, stream);   // capturable
 *
 * ------------------------------------------------------------------------------------------------
 * In detail
 * ------------------------------------------------------------------------------------------------
 *   sample      one sequence of the micro-batch, of `length` tokens; row i belongs to token i
 *   local row   one row of this rank, 0..rows-1, in the order in which its routers see tokens
 *   needed      a row that the loss can depend on. By default these are all rows of a sample but
 *               the last, because row i predicts token i + 1; `needed` of the configuration changes
 *               that
 *   class       the kind of each cell of the result: ROUTECAP_PLAN_CLASS_VALID, _PADDING,
 *               _NOT_NEEDED or _LOST (needed, and missing in all sources for whatever reason)
 *   packed      the layout PACKED puts sequences one after another. routecap_plan_pack is something
 *               else: it packs the bytes of any layout for an upload
 *
 * Recipes:
 *   - Data parallel ranks: each rank makes plans of its own micro-batches. Nothing else is needed.
 *   - Pipeline stages: each stage, or virtual stage, makes a plan with its own layers and layer_map
 *     (and layer_experts, if it is set). All other fields are the same on every stage.
 *   - A sequence without a response, or without any token (length 0): keep it in the micro-batch.
 *   - Routings in files or on another machine: read only the rows of routecap_plan_ranges, by
 *     routecap_serialized_slice.
 *   - A sample that begins at a later token of its conversation: positions in routings must count
 *     from the sample's first token. Subtract the position of that token from `first` of the view
 *     and of its segments, and import the view (routecap_routing_import).
 *   - Rows of older weights: a plan ignores tags. To leave such rows out, cut the routing into
 *     slices where the tags of its rows change, and give only the slices with the newer tags as
 *     sources.
 *   - A response that the trainer cut short: slice its routing too (routecap_routing_slice). Rows
 *     at or beyond `length` are refused, because they belong to tokens that are gone.
 *   - Rows that were never captured: with LOST_MARK their ids are -1, and the code that replays
 *     must let the trainer's own router choose there. With LOST_ERROR, gather and pack fail
 *     instead.
 *
 * A plan is immutable. Any number of threads may use it at once. Only routecap_plan_unpack needs a
 * device, and only with ROUTECAP_BACKEND_CUDA. No function needs a capturer.
 */
#ifndef ROUTECAP_PLAN_H
#define ROUTECAP_PLAN_H

#include "routing.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Limits of this version; see "Constants" in base.h. */
#define ROUTECAP_MAX_PLAN_ROWS 1073741824  /* @number: rows of a micro-batch over all ranks, padding
                                              included */
#define ROUTECAP_MAX_PLAN_SAMPLES 16777216 /* @number */
#define ROUTECAP_MAX_RANKS 1048576         /* @number: for each kind of parallelism */

/* A plan; see routecap_plan_create. */
typedef struct routecap_plan routecap_plan;

/* ================================================================================================
 * Making a plan
 * ============================================================================================== */

/* How the sequences of the micro-batch are arranged before they are divided. */
#define ROUTECAP_PLAN_LAYOUT_PACKED 0       /* sequences one after another, each followed by its
                                               padding (THD) */
#define ROUTECAP_PLAN_LAYOUT_PADDED_RIGHT 1 /* [samples, width]: padding after the tokens */
#define ROUTECAP_PLAN_LAYOUT_PADDED_LEFT 2  /* [samples, width]: padding before the tokens */
typedef int32_t routecap_plan_layout; /* @one_of(ROUTECAP_PLAN_LAYOUT_*) */

/* How context parallelism divides the micro-batch among C ranks. */
#define ROUTECAP_PLAN_CONTEXT_NONE 0
#define ROUTECAP_PLAN_CONTEXT_ZIGZAG 1     /* each sequence is cut into 2C chunks: rank r has chunks
                                              r and 2C - 1 - r of each, in this order, sequence by
                                              sequence */
#define ROUTECAP_PLAN_CONTEXT_CONTIGUOUS 2 /* PACKED: the whole micro-batch is cut into C intervals,
                                              and rank r has interval r. Padded: each sequence is
                                              cut so, and rank r has interval r of each */
#define ROUTECAP_PLAN_CONTEXT_ALLGATHER 3  /* the same intervals as CONTIGUOUS, but by default
                                              PACKED pads only the micro-batch as a whole, not each
                                              sequence */
typedef int32_t routecap_plan_context; /* @one_of(ROUTECAP_PLAN_CONTEXT_*) */

/* Flags of routecap_plan_config. */
#define ROUTECAP_PLAN_SEQUENCE_PARALLEL 1u /* PACKED: the rows of a context-parallel rank are cut
                                              into tensor_size intervals, and this rank has interval
                                              tensor_rank. Padded: its part of each sequence is cut
                                              so */
#define ROUTECAP_PLAN_SEQUENCE_FIRST 2u    /* with a padded layout: local rows are [width, samples],
                                              as in Megatron, instead of [samples, width] */
typedef uint32_t routecap_plan_flags; /* @any_of(ROUTECAP_PLAN_SEQUENCE_*) */

#define ROUTECAP_PLAN_RANK_UNSET 4294967295u /* @number: default of context_rank and tensor_rank.
                                                Refused where a rank is required, so that no rank
                                                passes for rank 0 by mistake */

/* How the cells of padding and of rows that are not needed are filled. */
#define ROUTECAP_PLAN_FILL_BALANCED 0 /* k distinct experts, chosen so that all experts, and all
                                         ranks among which the experts are divided, get equally many
                                         rows; see expert_parallel */
#define ROUTECAP_PLAN_FILL_VALUE 1    /* each id is fill_value */
typedef int32_t routecap_plan_fill; /* @one_of(ROUTECAP_PLAN_FILL_*) */

/* How lost cells are filled. */
#define ROUTECAP_PLAN_LOST_MARK 0     /* each id is lost_value, so that the trainer can let its own
                                         router choose there */
#define ROUTECAP_PLAN_LOST_BALANCED 1 /* like padding; only the class tells that the cell is lost */
#define ROUTECAP_PLAN_LOST_ERROR 2    /* the call fails with ROUTECAP_ERR_INCOMPLETE if a cell is
                                         lost */
typedef int32_t routecap_plan_lost; /* @one_of(ROUTECAP_PLAN_LOST_*) */

/* One rank of a trainer, and one micro-batch. */
typedef struct routecap_plan_config {
    uint32_t struct_size;
    routecap_plan_layout layout;   /* ROUTECAP_PLAN_LAYOUT_PACKED (default), _PADDED_RIGHT or
                                      _PADDED_LEFT */
    routecap_plan_context context; /* ROUTECAP_PLAN_CONTEXT_*; default NONE */
    uint32_t context_size;         /* number of context-parallel ranks, C; default 1 */
    uint32_t context_rank;         /* this rank, 0..C-1. Required if C is more than 1 */
    uint32_t tensor_size;          /* number of tensor-parallel ranks; default 1 */
    uint32_t tensor_rank;          /* this rank, 0..tensor_size-1. Required with SEQUENCE_PARALLEL
                                      if tensor_size is more than 1 */
    routecap_plan_flags flags;     /* ROUTECAP_PLAN_SEQUENCE_PARALLEL, _SEQUENCE_FIRST; default
                                      none */
    uint64_t samples;              /* sequences of the micro-batch; may be 0 */
    const uint64_t *lengths;        /* [samples] number of tokens of each sample; may be 0.
                                       Required, unless cu_lengths is given */
    const uint64_t *cu_lengths;     /* [samples + 1] instead of lengths: cumulative lengths. The
                                       first is 0, the last the number of all tokens */
    const uint64_t *needed;         /* [samples] rows [0, needed) of each sample are needed;
                                       ROUTECAP_ROWS_ALL: all. Default: all but the last */
    const uint64_t *padded_lengths; /* [samples] PACKED: rows of each sample with its padding.
                                       Default: the lengths, each rounded up to a multiple of
                                       `align` */
    const uint64_t *starts;         /* [samples] padded layouts: the column of each sample's first
                                       token. Default: 0; with PADDED_LEFT width - length */
    uint64_t width;           /* padded layouts: columns. Default: the length of the longest sample,
                                 rounded up to a multiple of `align` */
    uint64_t align;           /* each sequence is padded to a multiple of this. Default: C, times 2
                                 with ZIGZAG, times tensor_size with SEQUENCE_PARALLEL, so that a
                                 sequence can be divided evenly among all ranks; but 1 with PACKED
                                 and ALLGATHER */
    uint64_t align_total;     /* PACKED: the last sequence is padded further until the number of
                                 rows of the micro-batch is a multiple of this. Default: 1. With
                                 ALLGATHER: C, times tensor_size with SEQUENCE_PARALLEL */
    uint64_t least_total;     /* PACKED: the last sequence is padded further until the micro-batch
                                 has at least this many rows */
    uint64_t align_rank;      /* PACKED: the rows of each context-parallel rank are padded at their
                                 end to a multiple of this. Default 1 */
    uint32_t layers;          /* MoE layers of this pipeline stage (or virtual stage),
                                 1..ROUTECAP_MAX_LAYERS. Required; a stage without MoE layers needs
                                 no plan */
    uint32_t k;               /* experts per token, 1..ROUTECAP_MAX_K: the k of the sources, also
                                 where layer_k is less in all layers of this stage. Required */
    uint32_t experts;         /* ids are in [0, experts). Required unless layer_experts is set */
    uint32_t expert_parallel; /* number P of ranks among which the experts are divided, for
                                 BALANCED; default 1. All ranks of the trainer fill a row with the
                                 same experts. Which experts these are depends on p, the number of
                                 the row, counted from 0 in the order of the undivided micro-batch.
                                 For a row of padding, or one that is not needed, p counts only rows
                                 of these two kinds. For a lost cell, p counts all rows. Column c of
                                 row p in a layer of E experts, whose index in the decoder is l,
                                 gets this expert, where a = p * k + c + l * P * k:
                                   if P divides E:  a % P * (E / P) + a / P % (E / P)
                                   otherwise:       a % E
                                 With layer_k, the layer_k of the layer takes the place of k:
                                 columns from there on get none_value */
    const int32_t *layer_map;       /* [layers] each layer's index in the decoder, strictly
                                       ascending unless layer_visit is set. Default: 0..layers-1 */
    const uint32_t *layer_experts;  /* [layers] number of experts of each layer, if they differ.
                                       Default: `experts` for all */
    const uint32_t *layer_k;        /* [layers] as in routecap_config */
    const uint32_t *layer_min_k;    /* [layers] as in routecap_config */
    const uint32_t *layer_visit;    /* [layers] as in routecap_config */
    routecap_dtype dtype;     /* dtype of the result: ROUTECAP_DTYPE_U8, _I16, _U16, _I32, _U32 or
                                 _I64. Required */
    routecap_order order;     /* ROUTECAP_ORDER_ROW_MAJOR (default): [rows, layers, k];
                                 _LAYER_MAJOR: [layers, rows, k] */
    routecap_plan_fill fill;  /* ROUTECAP_PLAN_FILL_*; default BALANCED */
    routecap_plan_lost lost;  /* ROUTECAP_PLAN_LOST_*; default MARK */
    int64_t fill_value;       /* with FILL_VALUE: written for each of the k ids of a filled cell; a
                                 negative one as in routecap_copy_options */
    int64_t lost_value;       /* with LOST_MARK: written for each of the k ids of a lost cell; a
                                 negative one as in routecap_copy_options. Here 0 means 0 and not
                                 the default: routecap_plan_config_init sets -1 */
    int64_t none_value;       /* written for each column of a valid or BALANCED cell that has no
                                 expert; a negative one as in routecap_copy_options. It must not be
                                 an expert's id. Not used if every cell has k experts. 0 means 0
                                 here too: routecap_plan_config_init sets ROUTECAP_NO_EXPERT */
} routecap_plan_config;

/**
 * Fill a plan's configuration with the defaults: lost_value -1, none_value ROUTECAP_NO_EXPERT,
 * context_rank and tensor_rank ROUTECAP_PLAN_RANK_UNSET, everything else 0.
 *
 * @param[out] config      The configuration.
 * @param[in] struct_size  sizeof(routecap_plan_config) of the caller, in bytes.
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_plan_config_init(routecap_plan_config *config, size_t struct_size);

/**
 * Make the plan of one rank for one micro-batch.
 *
 * All ranks that share the micro-batch must be given the same samples in the same order. Time and
 * memory grow with the number of samples, not with the number of tokens.
 *
 * @param[in] config  The rank and the micro-batch. The call reads it and its arrays before it
 *                    returns.
 * @param[out] plan   The plan, to be freed with routecap_plan_free; NULL on error.
 * @return ROUTECAP_OK; ROUTECAP_ERR_ARGUMENT (also if rows cannot be divided evenly: the text names
 *         the number and the divisor; or if none_value is an expert's id); ROUTECAP_ERR_DTYPE (ids,
 *         fill_value, lost_value or none_value do not fit dtype).
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_plan_create(const routecap_plan_config *config, routecap_plan **plan);

/**
 * Free a plan.
 *
 * @param[in,out] plan  The plan; may be NULL. Work that routecap_plan_unpack has enqueued still
 *                      runs to its end.
 * @thread(any)
 */
ROUTECAP_API void routecap_plan_free(routecap_plan *plan);

/* ================================================================================================
 * Reading a plan
 * ============================================================================================== */

/* The sizes of a plan and of its results. */
typedef struct routecap_plan_shape {
    uint32_t struct_size;
    uint32_t layers;          /* this and the next three: as configured */
    uint32_t k;
    routecap_dtype dtype;
    routecap_order order;
    uint32_t reserved;        /* 0 */
    uint64_t rows;            /* local rows: the sum of the next three */
    uint64_t rows_needed;     /* needed rows */
    uint64_t rows_not_needed; /* rows of tokens after the last needed row of their sample */
    uint64_t rows_padding;    /* rows without a token */
    uint64_t total_rows;      /* rows of the whole micro-batch, over all ranks that share it,
                                 padding included */
    uint64_t width;           /* padded layouts: columns of this rank; otherwise 0 */
    uint64_t ranges;          /* number of ranges that routecap_plan_ranges returns */
    uint64_t ids_bytes;       /* bytes of dst in routecap_plan_gather */
    uint64_t classes_bytes;   /* bytes of classes in routecap_plan_gather: one for each cell */
    uint64_t packed_bytes;    /* the most that routecap_plan_pack writes: the same for all plans
                                 with these rows, layers, k and experts */
} routecap_plan_shape;

/**
 * Get the sizes of a plan and of its results.
 *
 * @param[in] plan    The plan.
 * @param[out] shape  Its sizes.
 * @return ROUTECAP_OK.
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_plan_describe(const routecap_plan *plan, routecap_plan_shape *shape);

/* Consecutive rows of one sample that a rank needs. */
typedef struct routecap_plan_range {
    uint64_t sample; /* its number, from 0 */
    uint64_t first;  /* position of the first row */
    uint64_t rows;   /* how many */
} routecap_plan_range;

/**
 * List the rows that this rank needs, sample by sample, so that it fetches no others.
 *
 * Ranges are ordered by sample, then by row, and adjacent rows are in one range. A sample has at
 * most two ranges with ZIGZAG, and at most one otherwise.
 *
 * @param[in] plan        The plan.
 * @param[out] ranges     [capacity] elements of range_size bytes: the first ranges; may be NULL if
 *                        capacity is 0.
 * @param[in] range_size  sizeof(routecap_plan_range) of the caller, in bytes.
 * @param[in] capacity    How many there is room for.
 * @param[out] count      How many there are.
 * @return ROUTECAP_OK.
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_plan_ranges(const routecap_plan *plan, routecap_plan_range *ranges, size_t range_size,
                     size_t capacity, uint64_t *count);

/* ================================================================================================
 * Gathering: captured routing into this rank's layout
 * ============================================================================================== */

/* Classes: the kind of each cell of a result. */
#define ROUTECAP_PLAN_CLASS_VALID 0      /* its ids are those of a source, captured or recomputed */
#define ROUTECAP_PLAN_CLASS_PADDING 1    /* there is no token */
#define ROUTECAP_PLAN_CLASS_NOT_NEEDED 2 /* the row of a token, after the last needed row of its
                                            sample. The cell is filled, even if a source has the
                                            row */
#define ROUTECAP_PLAN_CLASS_LOST 3       /* the row is needed, and no source has the cell */
typedef int32_t routecap_plan_class; /* @one_of(ROUTECAP_PLAN_CLASS_*) */

/* Rows of one sample, to be gathered. */
typedef struct routecap_plan_source {
    uint64_t sample;                 /* its number, from 0 */
    const routecap_routing *routing; /* its rows, by their positions in the sample, 0 for its first
                                        token. Layers that the plan lacks and rows that this rank
                                        does not need are ignored, and so are tags and provenance */
} routecap_plan_source;

/* How many rows and cells of a result are valid, filled or lost. */
typedef struct routecap_plan_report {
    uint32_t struct_size;
    uint32_t layers;          /* of the plan */
    uint64_t rows;            /* local rows: the sum of the next five */
    uint64_t rows_valid;      /* every cell is valid */
    uint64_t rows_partial;    /* some cells are lost */
    uint64_t rows_lost;       /* all cells are lost */
    uint64_t rows_not_needed; /* as in routecap_plan_shape */
    uint64_t rows_padding;    /* as in routecap_plan_shape */
    uint64_t cells_lost;      /* cells of needed rows that no source has */
} routecap_plan_report;

/**
 * Write the ids of this rank to host memory, in the rank's layout.
 *
 * Every byte of dst and of classes is written exactly once. A sample may have several sources with
 * different rows. Each must have all layers of the plan: merge routings with different layers first
 * (routecap_routing_merge). To gather from serialised bytes or arrays without a copy, make routings
 * of them with routecap_routing_deserialize or routecap_routing_import.
 *
 * On an error nothing is written, except the report on ROUTECAP_ERR_INCOMPLETE.
 *
 * @param[in] plan           The plan.
 * @param[in] sources        [count] elements of source_size bytes, in any order; may be NULL if
 *                           count is 0. Needed rows that no source has are lost.
 * @param[in] source_size    sizeof(routecap_plan_source) of the caller, in bytes.
 * @param[in] count          How many sources.
 * @param[out] dst           [rows, layers, k] or [layers, rows, k] elements of the plan's dtype.
 *                           May be NULL if the plan has no rows.
 * @param[in] dst_bytes      Size of dst, in bytes: ids_bytes of the plan's shape or more.
 * @param[out] classes       [rows, layers] or [layers, rows] bytes: ROUTECAP_PLAN_CLASS_*. NULL:
 *                           not wanted. NULL is ROUTECAP_ERR_ARGUMENT if lost cells could not be
 *                           told from valid ones: with LOST_BALANCED, or with LOST_MARK and an
 *                           expert's id or none_value as lost_value.
 * @param[in] classes_bytes  Size of classes, in bytes: classes_bytes of the plan's shape or more.
 * @param[out] report        What became of the cells; may be NULL.
 * @return ROUTECAP_OK; ROUTECAP_INCOMPLETE (cells are lost); ROUTECAP_ERR_INCOMPLETE (LOST_ERROR,
 *         and cells are lost); ROUTECAP_ERR_OUT_OF_RANGE (no such sample, or a routing with rows
 *         beyond the last token of its sample); ROUTECAP_ERR_OVERLAP (the ranges of rows of two
 *         sources of one sample overlap, even if rows in them are missing);
 *         ROUTECAP_ERR_UNKNOWN_LAYER (a routing lacks a layer, or a visit of it);
 *         ROUTECAP_ERR_SHAPE_MISMATCH (k differs, or experts, layer_k or layer_min_k of a layer, or
 *         ids are physical); ROUTECAP_ERR_NOT_READY; ROUTECAP_ERR_BUFFER_TOO_SMALL;
 *         ROUTECAP_ERR_FORKED (a routing was made before fork()).
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_plan_gather(const routecap_plan *plan, const routecap_plan_source *sources,
                     size_t source_size, size_t count, void *dst, size_t dst_bytes,
                     uint8_t *classes, size_t classes_bytes, routecap_plan_report *report);

/**
 * Lay out other data that has one element per token, such as token ids, in the same way.
 *
 * The elements of tokens whose rows are not needed are copied too.
 *
 * @param[in] plan           The plan.
 * @param[in] values         [samples] pointers to host memory, each to the [length] elements of one
 *                           sample. An element may be NULL if this rank has no row of the sample.
 * @param[in] element_bytes  Size of an element: 1 to 65536 bytes.
 * @param[in] fill           [element_bytes] the element to write where there is no token.
 * @param[out] dst           [rows] elements.
 * @param[in] dst_bytes      Size of dst, in bytes: rows * element_bytes or more.
 * @return ROUTECAP_OK; ROUTECAP_ERR_BUFFER_TOO_SMALL (nothing is written).
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_plan_gather_values(const routecap_plan *plan, const void *const *values,
                            size_t element_bytes, const void *fill, void *dst, size_t dst_bytes);

/**
 * Write the weights of this rank to host memory, in the rank's layout.
 *
 * Call it beside routecap_plan_gather, with the same sources. The weight of an expert is then at
 * the same place as its id. What a cell gets depends on its row, and on the source:
 *   - A needed cell that has weights in a source gets them, with 0 in columns without an expert.
 *   - A needed cell without weights gets `missing` in all k columns, whether its ids are lost or
 *     there. That is no error, even with LOST_ERROR.
 *   - A cell of padding, or of a row that is not needed, gets 0 in all k columns.
 *
 * @param[in] plan            The plan. It says nothing of weights: any plan of these rows and
 *                            layers will do.
 * @param[in] sources         [count] elements of source_size bytes, as in routecap_plan_gather. The
 *                            routings must have weights.
 * @param[in] source_size     sizeof(routecap_plan_source) of the caller, in bytes.
 * @param[in] count           How many sources.
 * @param[in] dtype           ROUTECAP_DTYPE_F32, to which weights are widened; or the weights_dtype
 *                            of all sources.
 * @param[in] missing         Written in place of each missing weight, such as NaN or 0. Rounded to
 *                            dtype.
 * @param[out] dst            [rows, layers, k] or [layers, rows, k] elements of dtype, as the
 *                            plan's order says. May be NULL if the plan has no rows.
 * @param[in] dst_bytes       Size of dst, in bytes: rows * layers * k elements of dtype or more.
 * @param[out] missing_cells  How many needed cells have no weights; may be NULL.
 * @return ROUTECAP_OK; ROUTECAP_INCOMPLETE (needed cells have no weights); ROUTECAP_ERR_DTYPE (also
 *         if a source has no weights); ROUTECAP_ERR_BUFFER_TOO_SMALL; ROUTECAP_ERR_SHAPE_MISMATCH,
 *         ROUTECAP_ERR_UNKNOWN_LAYER, ROUTECAP_ERR_OVERLAP, ROUTECAP_ERR_OUT_OF_RANGE and
 *         ROUTECAP_ERR_NOT_READY as in routecap_plan_gather.
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_plan_gather_weights(const routecap_plan *plan, const routecap_plan_source *sources,
                             size_t source_size, size_t count, routecap_dtype dtype, float missing,
                             void *dst, size_t dst_bytes, uint64_t *missing_cells);

/* ================================================================================================
 * Scattering: recorded ids back into routings
 * ============================================================================================== */

/**
 * Make routings from ids that this rank's routers recorded: the inverse of gather.
 *
 * Each sample gets one routing with rows [0, length) and the plan's layers. It has the rows that
 * this rank needs; all others are ABSENT. Merge the routings of all ranks with
 * routecap_routing_merge. A cell that is not k distinct ids of its layer is missing: UNWRITTEN if
 * an id is below 0, otherwise OUT_OF_RANGE or DUPLICATE. If the plan allows fewer than k experts,
 * columns without one come last in `ids` and hold none_value. The routings have no weights. To
 * record the last row of each sample too, make a plan with `needed` ROUTECAP_ROWS_ALL.
 *
 * @param[in] plan           The plan.
 * @param[in] ids            [rows, layers, k] or [layers, rows, k] elements of the plan's dtype, in
 *                           host memory.
 * @param[in] ids_bytes      Size of ids, in bytes: ids_bytes of the plan's shape.
 * @param[in] classes        [rows, layers] or [layers, rows] bytes. Cells of class LOST become
 *                           missing cells, with the reason UNWRITTEN. NULL: no cell counts as lost.
 *                           Pass NULL to keep what the trainer's own router chose in cells that
 *                           gather marked as lost.
 * @param[in] classes_bytes  Size of classes, in bytes: classes_bytes of the plan's shape.
 * @param[out] routings      [count] a routing for each sample, to be freed with
 *                           routecap_routing_free; NULL on error.
 * @param[in] count          How many: `samples`.
 * @return ROUTECAP_OK; ROUTECAP_INCOMPLETE (a needed cell of this rank is missing);
 *         ROUTECAP_ERR_ARGUMENT (a size differs from the plan's).
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_plan_scatter(const routecap_plan *plan, const void *ids, size_t ids_bytes,
                      const uint8_t *classes, size_t classes_bytes, routecap_routing **routings,
                      size_t count);

/* ================================================================================================
 * Onto a device
 * ============================================================================================== */

/**
 * Pack the ids of this rank for upload: the narrow ids, and what the kernel needs to widen them and
 * to fill the other cells. Weights are not packed; see routecap_plan_gather_weights.
 *
 * Only routecap_plan_unpack on this machine can read the bytes: in a call with this plan, or in the
 * replay of a call that was captured with a plan of the same shape. Do not store or send them.
 *
 * @param[in] plan          The plan.
 * @param[in] sources       [count] elements of source_size bytes, as in routecap_plan_gather.
 * @param[in] source_size   sizeof(routecap_plan_source) of the caller, in bytes.
 * @param[in] count         How many sources.
 * @param[out] packed       [packed_bytes] host memory, aligned to 8 bytes. Page-locked memory is
 *                          uploaded faster, and is required if the upload is captured into a graph.
 *                          Do not write to it while an upload reads it.
 * @param[in] packed_bytes  Size of packed, in bytes: packed_bytes of the plan's shape or more.
 * @param[out] report       What became of the cells; may be NULL. It is also filled on
 *                          ROUTECAP_ERR_INCOMPLETE.
 * @return As routecap_plan_gather.
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_plan_pack(const routecap_plan *plan, const routecap_plan_source *sources,
                   size_t source_size, size_t count, void *packed, size_t packed_bytes,
                   routecap_plan_report *report);

/* Where unpack writes the ids of a rank. With ROUTECAP_BACKEND_HOST, all pointers are to host
 * memory. */
typedef struct routecap_plan_target {
    uint32_t struct_size;
    routecap_backend_kind backend; /* ROUTECAP_BACKEND_* */
    int32_t device;                /* CUDA's number of the device; the host backend ignores it */
    uint32_t reserved;             /* 0 */
    void *scratch;                 /* [device] [scratch_bytes] receives the upload; aligned to 8
                                      bytes. The host backend does not use it: may be NULL there */
    uint64_t scratch_bytes;        /* packed_bytes of the plan's shape or more */
    void *dst;                     /* [device] as in routecap_plan_gather */
    uint64_t dst_bytes;            /* as in routecap_plan_gather */
    uint8_t *classes;              /* [device] as in routecap_plan_gather; NULL: not wanted */
    uint64_t classes_bytes;        /* as in routecap_plan_gather */
} routecap_plan_target;

/**
 * Upload packed ids and write the ids of this rank to device memory, in the rank's layout.
 *
 * The call enqueues one copy and one kernel on the stream and returns without waiting for them.
 * Every byte of dst and of classes is written exactly once.
 *
 * Capturable. Each replay uploads what `packed` holds at that time, so one graph serves many
 * micro-batches: when the copy of one replay has finished, pack the next micro-batch into the same
 * memory. Its plan must have the same rows, layers, k, experts, dtype and order, and both plans or
 * neither must allow cells with fewer than k experts. If any of these differs, the replay writes -1
 * for every id and marks every cell as LOST. Replays do not need the plan that was captured.
 *
 * The first call for a device loads the kernels there, which may take milliseconds.
 *
 * @param[in] plan          The plan whose ids were packed.
 * @param[in] packed        [packed_bytes] what routecap_plan_pack wrote, in host memory that the
 *                          stream reads. Keep it valid and unchanged until the stream has finished
 *                          the copy. The host backend reads it before the call returns.
 * @param[in] packed_bytes  Size of packed, in bytes: as for routecap_plan_pack.
 * @param[in] target        Where the ids go.
 * @param[in] stream        A stream of the device; NULL on the host.
 * @return ROUTECAP_OK; ROUTECAP_ERR_STATE (packed does not hold ids packed by this plan);
 *         ROUTECAP_ERR_BUFFER_TOO_SMALL; ROUTECAP_ERR_NO_BACKEND; ROUTECAP_ERR_DRIVER_TOO_OLD;
 *         ROUTECAP_ERR_FORKED (the driver was loaded before fork()).
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_plan_unpack(const routecap_plan *plan, const void *packed, size_t packed_bytes,
                     const routecap_plan_target *target, routecap_stream stream);

#ifdef __cplusplus
}
#endif

#endif /* ROUTECAP_PLAN_H */

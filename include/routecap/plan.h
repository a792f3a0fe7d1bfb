/*
 * routecap, chapter 11: the rows of one rank of a trainer, in the layout of its model.
 *
 * Copyright 2026 The routecap authors. Licensed under the Apache License, Version 2.0; see LICENSE.
 *
 * A trainer lays out the sequences of a micro-batch, pads them, and divides them among its ranks by
 * context and sequence parallelism. It divides the layers among pipeline stages. Replayed routing
 * must be laid out and divided in the same way, row by row, or each token gets the routing of
 * another. A plan says, in integers, which row goes where. It is made once for a micro-batch and a
 * rank, and used for expert ids, for token ids, and for whatever else has one element per token.
 *
 *   sample      one sequence of the micro-batch: `length` tokens, of which row i is token i
 *   local row   one row of this rank, 0..rows-1, in the order in which its routers see tokens
 *   needed      rows before the last token that has a loss. Token i + 1 is predicted by the pass of
 *               row i, so a sample whose last token has a loss needs length - 1 rows
 *   class       what a cell of the result is: ROUTECAP_PLAN_CLASS_VALID, _PADDING, _NOT_NEEDED or
 *               _LOST
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
 *     routecap_plan_ranges(plan, ranges, sizeof *ranges, n, &n);    // which rows to fetch
 *     routecap_plan_gather(plan, sources, sizeof *sources, count,   // ids [layers, rows, k]
 *                          ids, ids_bytes, classes, classes_bytes, &report);
 *
 * On a device the narrow ids are uploaded, and one kernel widens and transposes them:
 *
 *     routecap_plan_pack(plan, sources, sizeof *sources, count, pinned, bytes, &report);
 *     routecap_plan_unpack(plan, pinned, bytes, &target, stream);   // capturable
 *
 * A plan is immutable. Any number of threads may use it at once. Only routecap_plan_unpack needs a
 * device; no function needs a capturer.
 */
#ifndef ROUTECAP_PLAN_H
#define ROUTECAP_PLAN_H

#include "routing.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Limits of this version, as those of base.h. */
#define ROUTECAP_MAX_PLAN_ROWS 1073741824 /* rows of a micro-batch with its padding, of all ranks */
#define ROUTECAP_MAX_PLAN_SAMPLES 16777216
#define ROUTECAP_MAX_RANKS 1048576 /* of each kind of parallelism */

/* A plan; see routecap_plan_create. */
typedef struct routecap_plan routecap_plan;

/* ================================================================================================
 * Making a plan
 * ============================================================================================== */

/* How the micro-batch lies before it is divided. */
#define ROUTECAP_PLAN_LAYOUT_PACKED 0       /* sequences one after another, each with its padding
                                               behind it (THD) */
#define ROUTECAP_PLAN_LAYOUT_PADDED_RIGHT 1 /* [samples, width]: padding behind the tokens */
#define ROUTECAP_PLAN_LAYOUT_PADDED_LEFT 2  /* [samples, width]: padding before the tokens */

/* How context parallelism divides it among C ranks. */
#define ROUTECAP_PLAN_CONTEXT_NONE 0
#define ROUTECAP_PLAN_CONTEXT_ZIGZAG 1     /* each sequence in 2C chunks: rank r has chunks r and
                                              2C - 1 - r */
#define ROUTECAP_PLAN_CONTEXT_CONTIGUOUS 2 /* PACKED: the whole in C intervals; padded: each
                                              sequence in C intervals. Rank r has interval r */
#define ROUTECAP_PLAN_CONTEXT_ALLGATHER 3  /* the same intervals, but by default no sequence is
                                              padded, only the whole */

/* Flags of routecap_plan_config. */
#define ROUTECAP_PLAN_SEQUENCE_PARALLEL 1u /* what a context-parallel rank has is divided into
                                              tensor_size intervals, and this rank has that of
                                              tensor_rank: of its rows if PACKED, otherwise of each
                                              sequence */
#define ROUTECAP_PLAN_SEQUENCE_FIRST 2u    /* of padded layouts: local rows are [width, samples], as
                                              in Megatron, and not [samples, width] */

#define ROUTECAP_PLAN_RANK_UNSET 4294967295u /* as context_rank or tensor_rank: one of several ranks
                                                is an error until it is said which */

/* What padding and rows that are not needed are filled with. */
#define ROUTECAP_PLAN_FILL_BALANCED 0 /* k distinct experts that load experts and expert-parallel
                                         ranks evenly; see expert_parallel */
#define ROUTECAP_PLAN_FILL_VALUE 1    /* fill_value */

/* What lost cells are filled with. */
#define ROUTECAP_PLAN_LOST_MARK 0     /* lost_value, for a router that then chooses live */
#define ROUTECAP_PLAN_LOST_BALANCED 1 /* as padding; only their class says that they are lost */
#define ROUTECAP_PLAN_LOST_ERROR 2    /* nothing: a lost cell is ROUTECAP_ERR_INCOMPLETE */

/* A rank of a trainer, and one micro-batch. */
typedef struct routecap_plan_config {
    uint32_t struct_size;
    int32_t layout;           /* ROUTECAP_PLAN_LAYOUT_PACKED (default), _PADDED_RIGHT or
                                 _PADDED_LEFT */
    int32_t context;          /* ROUTECAP_PLAN_CONTEXT_*; default NONE */
    uint32_t context_size;    /* context-parallel ranks C; default 1 */
    uint32_t context_rank;    /* this one, 0..C-1. Required where C is more than 1 */
    uint32_t tensor_size;     /* tensor-parallel ranks; default 1 */
    uint32_t tensor_rank;     /* this one, 0..tensor_size-1. Required with SEQUENCE_PARALLEL where
                                 tensor_size is more than 1 */
    uint32_t flags;           /* ROUTECAP_PLAN_SEQUENCE_PARALLEL, _SEQUENCE_FIRST; default none */
    uint64_t samples;         /* sequences of the micro-batch; may be 0 */
    const uint64_t *lengths;        /* [samples] tokens of each, which may be 0. Required, unless
                                       cu_lengths is given */
    const uint64_t *cu_lengths;     /* [samples + 1] instead of lengths: where each sample begins
                                       among all tokens, and the number of these. It begins with
                                       0 */
    const uint64_t *needed;         /* [samples] rows [0, needed) of each are needed;
                                       ROUTECAP_ROWS_ALL: all. Default: all but the last */
    const uint64_t *padded_lengths; /* [samples] PACKED: rows of each with its padding. Default:
                                       the lengths, each rounded up to a multiple of `align` */
    const uint64_t *starts;         /* [samples] of padded layouts: the column of each first token.
                                       Default: 0, and with PADDED_LEFT width - length */
    uint64_t width;           /* of padded layouts: columns. Default: the longest sequence, rounded
                                 up to a multiple of `align` */
    uint64_t align;           /* each sequence is padded to a multiple of this. Default: the least
                                 with which all ranks have equally many rows of it: C, times 2 with
                                 ZIGZAG, times tensor_size with SEQUENCE_PARALLEL; 1 with ALLGATHER
                                 where it is PACKED: there the whole is divided */
    uint64_t align_total;     /* PACKED: the last sequence gets more padding, until the whole is a
                                 multiple of this. Default: with ALLGATHER C, times tensor_size
                                 with SEQUENCE_PARALLEL; otherwise 1 */
    uint64_t least_total;     /* PACKED: the last sequence gets more padding, until the whole has so
                                 many rows or more */
    uint64_t align_rank;      /* PACKED: behind all sequences, the rows of each context-parallel
                                 rank are padded to a multiple of this. Default 1 */
    uint32_t layers;          /* MoE layers of this pipeline stage, or virtual stage,
                                 1..ROUTECAP_MAX_LAYERS. Required */
    uint32_t k;               /* experts per token, 1..ROUTECAP_MAX_K. Required */
    uint32_t experts;         /* ids are in [0, experts). Required unless layer_experts is set */
    uint32_t expert_parallel; /* expert-parallel ranks P, for BALANCED; default 1. Column c of layer
                                 l of the filled row p has expert a % P * (E / P) + a / P % (E / P)
                                 with a = p * k + c + l * P * k, where E is the layer's experts, or
                                 a % E where P does not divide E. l is the layer's index in the
                                 decoder. p counts padding and rows that are not needed, in the
                                 order of the whole micro-batch, before it is divided */
    const int32_t *layer_map;       /* [layers] index of each in the decoder, strictly ascending.
                                       Default: 0..layers-1 */
    const uint32_t *layer_experts;  /* [layers] experts of each layer, where they differ. Default:
                                       `experts` for all */
    int32_t dtype;            /* of the result: ROUTECAP_DTYPE_U8, _I16, _U16, _I32, _U32 or _I64.
                                 Required */
    int32_t order;            /* ROUTECAP_ORDER_ROW_MAJOR (default): [rows, layers, k];
                                 _LAYER_MAJOR: [layers, rows, k] */
    int32_t fill;             /* ROUTECAP_PLAN_FILL_*; default BALANCED */
    int32_t lost;             /* ROUTECAP_PLAN_LOST_*; default MARK */
    int64_t fill_value;       /* with FILL_VALUE: each id of a filled cell, in two's complement */
    int64_t lost_value;       /* with LOST_MARK: each id of a lost cell, in two's complement. 0 is
                                 no default here: routecap_plan_config_init sets -1 */
} routecap_plan_config;

/**
 * Fill a plan's configuration with the defaults: lost_value -1, context_rank and tensor_rank
 * ROUTECAP_PLAN_RANK_UNSET, everything else 0.
 *
 * @param[out] config      The configuration.
 * @param[in] struct_size  sizeof(routecap_plan_config) of the caller, in bytes.
 */
ROUTECAP_API int32_t routecap_plan_config_init(routecap_plan_config *config, size_t struct_size);

/**
 * Make the plan of a rank for one micro-batch.
 *
 * Its time and memory grow with the number of samples, not of tokens. All ranks must be given the
 * same samples.
 *
 * @param[in] config  The rank and the micro-batch. Read now, with its arrays.
 * @param[out] plan   The plan, to be freed with routecap_plan_free; NULL on error.
 * @return ROUTECAP_OK; ROUTECAP_ERR_ARGUMENT (also where rows cannot be divided evenly, and the
 *         text says what is no multiple of what); ROUTECAP_ERR_DTYPE (ids, fill_value or lost_value
 *         do not fit dtype).
 */
ROUTECAP_API int32_t routecap_plan_create(const routecap_plan_config *config, routecap_plan **plan);

/**
 * Free a plan.
 *
 * @param[in,out] plan  The plan; NULL is allowed. Work that routecap_plan_unpack has enqueued goes
 *                      on.
 */
ROUTECAP_API void routecap_plan_free(routecap_plan *plan);

/* ================================================================================================
 * What a plan says
 * ============================================================================================== */

/* Sizes of a plan. */
typedef struct routecap_plan_shape {
    uint32_t struct_size;
    uint32_t layers;          /* these four are those of its configuration */
    uint32_t k;
    int32_t dtype;
    int32_t order;
    uint32_t reserved;        /* 0 */
    uint64_t rows;            /* local rows; each is in exactly one of the next three counts */
    uint64_t rows_needed;     /* tokens whose routing is wanted */
    uint64_t rows_not_needed; /* tokens from the last one on that has a loss */
    uint64_t rows_padding;    /* no tokens */
    uint64_t total_rows;      /* of the micro-batch with its padding, of all ranks that divide it */
    uint64_t width;           /* of padded layouts: columns of this rank; otherwise 0 */
    uint64_t ranges;          /* how many routecap_plan_ranges gives */
    uint64_t runs;            /* how many routecap_plan_runs gives */
    uint64_t ids_bytes;       /* of the result of routecap_plan_gather */
    uint64_t classes_bytes;   /* of its classes: one byte for each cell */
    uint64_t packed_bytes;    /* the most that routecap_plan_pack writes, for any plan with the
                                 same rows, layers, k and experts */
} routecap_plan_shape;

/**
 * Say how large a plan's results are.
 *
 * @param[in] plan    The plan.
 * @param[out] shape  Its sizes.
 * @return ROUTECAP_OK.
 */
ROUTECAP_API int32_t routecap_plan_describe(const routecap_plan *plan, routecap_plan_shape *shape);

/* Rows of one sample that a rank must have. */
typedef struct routecap_plan_range {
    uint64_t sample; /* its number, from 0 */
    uint64_t first;  /* position of the first row */
    uint64_t rows;   /* how many */
} routecap_plan_range;

/**
 * Say which rows this rank needs, of which sample: those that it must fetch.
 *
 * Ranges are ordered by sample, then by row, and are as long as possible: with ZIGZAG two for each
 * sample at most, otherwise one.
 *
 * @param[in] plan        The plan.
 * @param[out] ranges     [capacity] elements of range_size bytes: the first ranges; may be NULL if
 *                        capacity is 0.
 * @param[in] range_size  sizeof(routecap_plan_range) of the caller, in bytes.
 * @param[in] capacity    How many there is room for.
 * @param[out] count      How many there are.
 * @return ROUTECAP_OK.
 */
ROUTECAP_API int32_t routecap_plan_ranges(const routecap_plan *plan, routecap_plan_range *ranges,
                                          size_t range_size, size_t capacity, uint64_t *count);

/* Local rows that follow one another in one sample. */
typedef struct routecap_plan_run {
    uint64_t sample;   /* its number, from 0; `samples` for the padding of align_rank */
    uint64_t first;    /* of the first row: the position of its token in the sample. With PADDING
                          its column in the padded sequence, or its place in the padding of
                          align_rank */
    uint64_t rows;     /* how many */
    uint64_t row;      /* of the first row: its local row */
    uint64_t step;     /* local rows from one to the next: 1, or with SEQUENCE_FIRST `samples` */
    uint64_t ordinal;  /* of the first row: its p where rows are filled (see expert_parallel),
                          otherwise its row in the whole micro-batch */
    int32_t row_class; /* ROUTECAP_PLAN_CLASS_VALID (needed), _PADDING or _NOT_NEEDED */
    uint32_t reserved; /* 0 */
} routecap_plan_run;

/**
 * Give out the plan itself: every local row, in runs, each row once.
 *
 * @param[in] plan      The plan.
 * @param[out] runs     [capacity] elements of run_size bytes: the first runs; may be NULL if
 *                      capacity is 0.
 * @param[in] run_size  sizeof(routecap_plan_run) of the caller, in bytes.
 * @param[in] capacity  How many there is room for.
 * @param[out] count    How many there are.
 * @return ROUTECAP_OK.
 */
ROUTECAP_API int32_t routecap_plan_runs(const routecap_plan *plan, routecap_plan_run *runs,
                                        size_t run_size, size_t capacity, uint64_t *count);

/* ================================================================================================
 * Gathering
 * ============================================================================================== */

/* What a cell of a result is. */
#define ROUTECAP_PLAN_CLASS_VALID 0      /* the routing that was captured */
#define ROUTECAP_PLAN_CLASS_PADDING 1    /* no token */
#define ROUTECAP_PLAN_CLASS_NOT_NEEDED 2 /* a token from the last one on that has a loss. It is
                                            filled, also where a source has the row */
#define ROUTECAP_PLAN_CLASS_LOST 3       /* a needed token whose cell no source has */

/* Rows of one sample, to be gathered. */
typedef struct routecap_plan_source {
    uint64_t sample;                 /* its number, from 0 */
    const routecap_routing *routing; /* rows at their positions in the sample; more layers than the
                                        plan has, and rows that this rank does not need, are not
                                        looked at */
} routecap_plan_source;

/* What became of the cells of a result. */
typedef struct routecap_plan_report {
    uint32_t struct_size;
    uint32_t layers;          /* of the plan */
    uint64_t rows;            /* local rows; the next five add up to it */
    uint64_t rows_valid;      /* every cell is valid */
    uint64_t rows_partial;    /* some cells are lost */
    uint64_t rows_lost;       /* all cells are lost */
    uint64_t rows_not_needed; /* as in routecap_plan_shape */
    uint64_t rows_padding;    /* as in routecap_plan_shape */
    uint64_t cells_lost;      /* cells of needed rows that no source has */
} routecap_plan_report;

/**
 * Write the ids of this rank, in its layout, to host memory.
 *
 * Every byte of dst and of classes is written exactly once. Rows of a sample may come from several
 * sources. Serialised bytes and arrays become sources by routecap_routing_deserialize and
 * routecap_routing_import, which use them in place.
 *
 * On an error nothing is written.
 *
 * @param[in] plan           The plan.
 * @param[in] sources        [count] elements of source_size bytes, in any order; may be NULL if
 *                           count is 0. Rows that none has are lost.
 * @param[in] source_size    sizeof(routecap_plan_source) of the caller, in bytes.
 * @param[in] count          How many sources.
 * @param[out] dst           [rows, layers, k] or [layers, rows, k] elements of the plan's dtype.
 *                           May be NULL if the plan has no rows.
 * @param[in] dst_bytes      Size of dst, in bytes: ids_bytes of the plan's shape or more.
 * @param[out] classes       [rows, layers] or [layers, rows] bytes: ROUTECAP_PLAN_CLASS_*. NULL:
 *                           not wanted, which is refused where a lost cell would look like experts:
 *                           with LOST_BALANCED, and where lost_value is an expert.
 * @param[in] classes_bytes  Size of classes, in bytes: classes_bytes of the plan's shape or more.
 * @param[out] report        What became of the cells; may be NULL. It is also filled on
 *                           ROUTECAP_ERR_INCOMPLETE.
 * @return ROUTECAP_OK; ROUTECAP_INCOMPLETE (cells are lost); ROUTECAP_ERR_INCOMPLETE (LOST_ERROR,
 *         and cells are lost); ROUTECAP_ERR_OUT_OF_RANGE (no such sample, or a routing with rows
 *         behind its last token); ROUTECAP_ERR_OVERLAP (two sources have one row);
 *         ROUTECAP_ERR_UNKNOWN_LAYER (a routing lacks a layer); ROUTECAP_ERR_SHAPE_MISMATCH (k or
 *         the experts of a layer differ, or ids are physical); ROUTECAP_ERR_NOT_READY;
 *         ROUTECAP_ERR_BUFFER_TOO_SMALL; ROUTECAP_ERR_FORKED (a routing).
 */
ROUTECAP_API int32_t routecap_plan_gather(const routecap_plan *plan,
                                          const routecap_plan_source *sources, size_t source_size,
                                          size_t count, void *dst, size_t dst_bytes,
                                          uint8_t *classes, size_t classes_bytes,
                                          routecap_plan_report *report);

/**
 * Lay out one element per token in the same way: token ids, for instance.
 *
 * Rows that are not needed are tokens, too: their elements are copied.
 *
 * @param[in] plan           The plan.
 * @param[in] values         [samples] pointers, each to the [length] elements of one sample; NULL
 *                           where this rank has no row of the sample.
 * @param[in] element_bytes  Size of an element: 1 to 65536 bytes.
 * @param[in] fill           [element_bytes] the element that is written where there is no token.
 * @param[out] dst           [rows] elements.
 * @param[in] dst_bytes      Size of dst, in bytes: rows * element_bytes or more.
 * @return ROUTECAP_OK; ROUTECAP_ERR_BUFFER_TOO_SMALL (nothing is written).
 */
ROUTECAP_API int32_t routecap_plan_gather_values(const routecap_plan *plan,
                                                 const void *const *values, size_t element_bytes,
                                                 const void *fill, void *dst, size_t dst_bytes);

/* ================================================================================================
 * Scattering
 * ============================================================================================== */

/**
 * Make routings of ids that this rank's routers have recorded: the inverse of gather.
 *
 * The result has one routing for each sample, with rows [0, length) and the plan's layers, in which
 * the needed rows of this rank are there and all others are ABSENT. routecap_routing_merge unites
 * those of all ranks. A cell that is not k distinct ids of its layer is missing: UNWRITTEN if an id
 * is below 0, otherwise OUT_OF_RANGE or DUPLICATE. To record the last row of each sample too, make
 * a plan with `needed` ROUTECAP_ROWS_ALL.
 *
 * @param[in] plan           The plan.
 * @param[in] ids            [rows, layers, k] or [layers, rows, k] elements of the plan's dtype, in
 *                           host memory.
 * @param[in] ids_bytes      Size of ids, in bytes: ids_bytes of the plan's shape.
 * @param[in] classes        [rows, layers] or [layers, rows] bytes: a cell that is LOST is
 *                           UNWRITTEN; NULL: none is.
 * @param[in] classes_bytes  Size of classes, in bytes: classes_bytes of the plan's shape.
 * @param[out] routings      [count] a routing for each sample, to be freed with
 *                           routecap_routing_free; NULL on error.
 * @param[in] count          How many: `samples`.
 * @return ROUTECAP_OK; ROUTECAP_INCOMPLETE (a needed cell of this rank is missing);
 *         ROUTECAP_ERR_ARGUMENT (a size is another than the plan's).
 */
ROUTECAP_API int32_t routecap_plan_scatter(const routecap_plan *plan, const void *ids,
                                           size_t ids_bytes, const uint8_t *classes,
                                           size_t classes_bytes, routecap_routing **routings,
                                           size_t count);

/* ================================================================================================
 * Onto a device
 * ============================================================================================== */

/**
 * Write the ids of this rank as they are uploaded: narrow, with what tells a kernel the rest.
 *
 * The bytes are for the same plan on the same machine. They are no format to keep or send.
 *
 * @param[in] plan          The plan.
 * @param[in] sources       [count] elements of source_size bytes, as those of routecap_plan_gather.
 * @param[in] source_size   sizeof(routecap_plan_source) of the caller, in bytes.
 * @param[in] count         How many sources.
 * @param[out] packed       [packed_bytes] host memory, aligned to 8 bytes. Page-locked memory is
 *                          uploaded faster, and is required where the upload is captured. The
 *                          caller does not write it while an upload reads it.
 * @param[in] packed_bytes  Size of packed, in bytes: packed_bytes of the plan's shape or more.
 * @param[out] report       What became of the cells; may be NULL. It is also filled on
 *                          ROUTECAP_ERR_INCOMPLETE.
 * @return As routecap_plan_gather.
 */
ROUTECAP_API int32_t routecap_plan_pack(const routecap_plan *plan,
                                        const routecap_plan_source *sources, size_t source_size,
                                        size_t count, void *packed, size_t packed_bytes,
                                        routecap_plan_report *report);

/* Where the ids of a rank go. Addresses are of the device, or with BACKEND_HOST of the host. */
typedef struct routecap_plan_target {
    uint32_t struct_size;
    int32_t backend;        /* ROUTECAP_BACKEND_* */
    int32_t device;         /* ordinal of the device; the host backend ignores it */
    uint32_t reserved;      /* 0 */
    void *scratch;          /* [device] [scratch_bytes] room for what is uploaded, aligned to 8
                               bytes; not used, and may be NULL, on the host */
    uint64_t scratch_bytes; /* packed_bytes of the plan's shape or more */
    void *dst;              /* [device] as dst of routecap_plan_gather */
    uint64_t dst_bytes;     /* as in routecap_plan_gather */
    uint8_t *classes;       /* [device] as classes of routecap_plan_gather. NULL: not wanted */
    uint64_t classes_bytes; /* as in routecap_plan_gather */
} routecap_plan_target;

/**
 * Upload what was packed and write the ids of this rank, in its layout, on a device.
 *
 * It enqueues one copy and one kernel on the stream, and waits for nothing. Every byte of dst and
 * of classes is written exactly once.
 *
 * Capturable. A replay uploads what `packed` holds then, so that other routing, or another
 * micro-batch, can be packed into the same memory between replays. Its plan must have the same
 * rows, layers, k, experts, dtype and order. Where it has others, the replay marks every cell as
 * LOST.
 *
 * The first call for a device loads the kernels there, which may take milliseconds.
 *
 * @param[in] plan          The plan that was packed.
 * @param[in] packed        [packed_bytes] what routecap_plan_pack wrote. The stream's work reads
 *                          it, so the caller keeps it valid and does not write it until the stream
 *                          has reached the end of the copy; on the host it is read now.
 * @param[in] packed_bytes  Size of packed, in bytes: as for routecap_plan_pack.
 * @param[in] target        Where the ids go.
 * @param[in] stream        A stream of the device; NULL on the host.
 * @return ROUTECAP_OK; ROUTECAP_ERR_STATE (packed holds nothing of this plan);
 *         ROUTECAP_ERR_BUFFER_TOO_SMALL; ROUTECAP_ERR_NO_BACKEND; ROUTECAP_ERR_DRIVER_TOO_OLD;
 *         ROUTECAP_ERR_FORKED (the driver was loaded before fork()).
 */
ROUTECAP_API int32_t routecap_plan_unpack(const routecap_plan *plan, const void *packed,
                                          size_t packed_bytes, const routecap_plan_target *target,
                                          routecap_stream stream);

#ifdef __cplusplus
}
#endif

#endif /* ROUTECAP_PLAN_H */

/*
 * routecap, chapter 4: missing cells and copy options. To find out why a cell is missing, look
 * here.
 *
 * Copyright 2026 The routecap authors. Licensed under the Apache License, Version 2.0; see LICENSE.
 *
 * You can read rows from a request (requests.h) or from a routing (routing.h). Both report missing
 * cells in the same structs, and copy ids by the same options. This chapter has these structs and
 * one function, routecap_copy_options_init.
 *
 *     routecap_copy_options options;                         // how ids are copied
 *     routecap_copy_options_init(&options, sizeof options);
 *     options.dtype = ROUTECAP_DTYPE_I16;
 *     routecap_routing_copy_to(routing, &options, ids, sizeof ids, NULL, 0, NULL);
 *
 *     routecap_missing missing[16];                          // which cells are missing, and why
 *     routecap_coverage coverage = {.struct_size = sizeof coverage};
 *     routecap_routing_coverage(routing, &coverage, missing, sizeof *missing, 16);
 */
#ifndef ROUTECAP_READING_H
#define ROUTECAP_READING_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ================================================================================================
 * Missing cells
 * ============================================================================================== */

/*
 * Why a cell is missing. UNWRITTEN, OUT_OF_RANGE and DUPLICATE (`@of_cell`) apply to single cells
 * of a row that was stored. The other reasons (`@of_row`) apply to a whole row that was not stored:
 * all its cells are missing. If routecap_routing_merge joins different layers, the cells of one row
 * may have reasons of both kinds.
 */
#define ROUTECAP_MISSING_ABSENT 1        /* @rank(1) @of_row: the row was never issued, or was cut
                                            by truncate or finish; or its sink row was not begun, or
                                            is not in the snapshot */
#define ROUTECAP_MISSING_UNWRITTEN 2     /* @rank(8) @of_cell: the layer did not write it in its
                                            step, or not completely */
#define ROUTECAP_MISSING_OUT_OF_RANGE 3  /* @rank(9) @of_cell: an id outside [0, experts) of the
                                            layer; or, where cells may have fewer than k experts,
                                            fewer than layer_min_k, or a column without an expert
                                            before one that has one */
#define ROUTECAP_MISSING_DUPLICATE 4     /* @rank(10) @of_cell: the same id twice */
#define ROUTECAP_MISSING_LOST 5          /* @rank(6) @of_row: the row's step was lost; see
                                            ROUTECAP_LOST */
#define ROUTECAP_MISSING_REFUSED 6       /* @rank(5) @of_row: there was no memory for the row */
#define ROUTECAP_MISSING_TAKEN 7         /* @rank(7) @of_row: a call with ROUTECAP_EXTRACT_TAKE took
                                            the row out of its request; the routing of that call has
                                            the row */
#define ROUTECAP_MISSING_EVICTED 8       /* @rank(3) @of_row: a store had the row and dropped it;
                                            see store.h */
#define ROUTECAP_MISSING_NOT_PUBLISHED 9 /* @rank(2) @of_row: a store never had the row, or dropped
                                            it long ago */
#define ROUTECAP_MISSING_STALE 10        /* @rank(4) @of_row: a store has the row, but the row, or
                                            the request that asks for it, is of an older generation;
                                            see store.h */
typedef int32_t routecap_reason; /* @one_of(ROUTECAP_MISSING_*) */

/*
 * Several rows may meet at one position: in a merge or an attach, or if a position is issued again.
 * If a cell is missing in all of them, it gets the reason with the highest `@rank`: DUPLICATE, if
 * one of them has it, and ABSENT only if all have. The order of the rows or routings makes no
 * difference. With ROUTECAP_POLICY_REPLACE (requests.h), the row that replaces another brings its
 * own reasons.
 *
 * LOST, REFUSED and TAKEN belong to positions, not to cells. A reader sees them only where no row
 * was stored. A row that was stored has the reasons of its cells, even if all its cells are
 * missing. If a span with device positions is lost or refused, all positions within its bounds get
 * that reason.
 */

/*
 * A block of missing cells: consecutive rows, consecutive layers, one reason.
 *
 * The library first joins consecutive rows with the same missing cells and reasons into the longest
 * possible runs. In each run, consecutive layers with the same reason form one block. Blocks are
 * ordered by row, then by layer.
 */
typedef struct routecap_missing {
    uint64_t first;         /* position of the first row */
    uint64_t rows;          /* how many rows */
    uint32_t first_layer;   /* index of the first layer */
    uint32_t layers;        /* how many layers */
    routecap_reason reason; /* ROUTECAP_MISSING_*, of every cell of the block */
    uint32_t reserved;      /* 0 */
} routecap_missing;

/* How many cells of a range of rows are there. */
typedef struct routecap_coverage {
    uint32_t struct_size;
    uint32_t layers;        /* of the request or routing */
    uint64_t first;         /* position of the first row of the range */
    uint64_t rows;          /* rows of the range */
    uint64_t length;        /* one past the last position of the request or routing; see "Length"
                               in requests.h */
    uint64_t rows_complete; /* rows with every cell valid */
    uint64_t rows_partial;  /* rows with some cells valid */
    uint64_t rows_empty;    /* rows with no cell valid */
    uint64_t cells_missing; /* cells of the range that are not valid */
    uint64_t blocks;        /* blocks of missing cells in the range */
    uint64_t cells_recomputed; /* valid cells of layers whose provenance is RECOMPUTED */
    uint64_t cells_weighted;   /* cells whose weights are there; 0 if no weights are captured.
                                  Cells without weights are not counted as missing */
} routecap_coverage;

/* ================================================================================================
 * Strict reading, and copying
 * ============================================================================================== */

/* Flags of calls that read. */
#define ROUTECAP_READ_STRICT 1u           /* the call fails if cells are missing
                                             (ROUTECAP_ERR_INCOMPLETE) or recomputed
                                             (ROUTECAP_ERR_RECOMPUTED) */
#define ROUTECAP_READ_ALLOW_RECOMPUTED 2u /* with STRICT: recomputed cells are no error. Without
                                             STRICT the flag has no effect */
typedef uint32_t routecap_read_flags; /* @any_of(ROUTECAP_READ_*) */

#define ROUTECAP_ORDER_ROW_MAJOR 0   /* [rows, layers, k] */
#define ROUTECAP_ORDER_LAYER_MAJOR 1 /* [layers, rows, k] */
typedef int32_t routecap_order; /* @one_of(ROUTECAP_ORDER_*) */

/*
 * How to write ids into the caller's memory. Usually you set dtype, and `fill` is -1. The other
 * fields select layers and a layout.
 *
 * Values for the fields that are written in place of ids must fit dtype. An unsigned dtype takes
 * a negative value in two's complement: -1 becomes 255 in U8.
 */
typedef struct routecap_copy_options {
    uint32_t struct_size;
    routecap_dtype dtype;      /* ROUTECAP_DTYPE_U8, _I16, _U16, _I32, _U32 or _I64. Required */
    routecap_order order;      /* ROUTECAP_ORDER_*: of the mask, and of the ids if you give no
                                  strides */
    routecap_read_flags flags; /* 0, or ROUTECAP_READ_* */
    uint32_t first_layer;      /* the first layer to copy */
    uint32_t layers;           /* how many layers; 0 means all from first_layer on */
    int64_t row_stride;        /* elements from one row to the next; 0 means as in a dense array of
                                  this order */
    int64_t layer_stride;      /* elements from one layer to the next; 0 means as in a dense array
                                  of this order */
    int64_t fill;              /* written for each id of a missing cell. Here 0 means 0 and not the
                                  default: routecap_copy_options_init sets -1 */
    int64_t none;              /* written for each column of a valid cell that has no expert. Not
                                  used if every cell has k experts. 0 means 0 here too:
                                  routecap_copy_options_init sets ROUTECAP_NO_EXPERT */
} routecap_copy_options;

/**
 * Fill copy options with the defaults: fill -1, none ROUTECAP_NO_EXPERT, everything else 0. The
 * caller then sets `dtype`.
 *
 * @param[out] options     The options.
 * @param[in] struct_size  sizeof(routecap_copy_options) of the caller, in bytes.
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_copy_options_init(routecap_copy_options *options, size_t struct_size);

#ifdef __cplusplus
}
#endif

#endif /* ROUTECAP_READING_H */

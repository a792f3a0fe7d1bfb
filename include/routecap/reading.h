/*
 * routecap: what every way of reading rows shares: what is missing and why, and how ids are copied out.
 */
#ifndef ROUTECAP_READING_H
#define ROUTECAP_READING_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Why a cell is missing. UNWRITTEN, OUT_OF_RANGE and DUPLICATE belong to a cell of a row that is
 * there. The others belong to whole rows that are not there, and say so without memory for their
 * cells.
 */
#define ROUTECAP_MISSING_ABSENT 1        /* nothing is known of the row: never issued, cut, not begun, or not in the snapshot */
#define ROUTECAP_MISSING_UNWRITTEN 2     /* the layer did not write it, or not completely, in its step */
#define ROUTECAP_MISSING_OUT_OF_RANGE 3  /* an id outside [0, experts) */
#define ROUTECAP_MISSING_DUPLICATE 4     /* one id twice */
#define ROUTECAP_MISSING_LOST 5          /* its step was lost: see ROUTECAP_LOST */
#define ROUTECAP_MISSING_REFUSED 6       /* there was no memory for the row */
#define ROUTECAP_MISSING_TAKEN 7         /* the row left its request by ROUTECAP_EXTRACT_TAKE: whoever took it has it */
#define ROUTECAP_MISSING_EVICTED 8       /* a store of prefixes had the row and gave it up. No call of this version says so */
#define ROUTECAP_MISSING_NOT_PUBLISHED 9 /* no store has ever had the row. No call of this version says so */
#define ROUTECAP_MISSING_STALE 10        /* a store has the row of older weights only. No call of this version says so */

/*
 * Two reasons for one cell. Where rows come together that have none of them a valid cell there (a
 * merge, attach, a row that is issued again), the cell's reason is the one that stands first in
 * this list: DUPLICATE, OUT_OF_RANGE, UNWRITTEN, TAKEN, LOST, REFUSED, STALE, EVICTED,
 * NOT_PUBLISHED, ABSENT. The order of the rows, and of the routings in a merge, makes no
 * difference. With ROUTECAP_POLICY_REPLACE a row that replaces another brings its own reasons. What
 * a request knows of its own rows (LOST, REFUSED, TAKEN) shows only where nothing of the row is
 * there. Where a span with device positions is lost or refused, all positions within its bounds say
 * so.
 */

/*
 * A block of missing cells: consecutive rows, consecutive layers, one reason. Rows with equal missing cells and reasons follow one another
 * in one run as long as possible; in a run, neighbouring layers with one reason are one block. Blocks are ordered by row, then layer.
 */
typedef struct routecap_missing {
    uint64_t first; /* position of the first row */
    uint64_t rows;
    uint32_t first_layer;
    uint32_t layers;
    int32_t reason;    /* ROUTECAP_MISSING_* */
    uint32_t reserved; /* 0 */
} routecap_missing;

/* How much of a range of rows is there. */
typedef struct routecap_coverage {
    uint32_t struct_size;
    uint32_t layers;
    uint64_t first;         /* the range: position of its first row */
    uint64_t rows;          /* and its rows */
    uint64_t length;        /* one past the last row that exists, of the request or routing */
    uint64_t rows_complete; /* every cell valid */
    uint64_t rows_partial;  /* some cells valid */
    uint64_t rows_empty;    /* no cell valid */
    uint64_t cells_missing;
    uint64_t blocks;        /* how many blocks of missing cells there are */
    uint64_t cells_recomputed; /* valid, of layers whose provenance is RECOMPUTED */
} routecap_coverage;

/* Flags of reading calls. */
#define ROUTECAP_READ_STRICT 1u /* missing cells make the call fail with ROUTECAP_ERR_INCOMPLETE, recomputed ones with ROUTECAP_ERR_RECOMPUTED */
#define ROUTECAP_READ_ALLOW_RECOMPUTED 2u /* but recomputed ones do not; without ROUTECAP_READ_STRICT it has no effect */

#define ROUTECAP_ORDER_ROW_MAJOR 0 /* [rows, layers, k] */
#define ROUTECAP_ORDER_LAYER_MAJOR 1 /* [layers, rows, k] */

/* How ids are written into the caller's memory. */
typedef struct routecap_copy_options {
    uint32_t struct_size;
    int32_t dtype;         /* U8, I16, U16, I32, U32 or I64. Required */
    int32_t order;         /* ROUTECAP_ORDER_*: of the dense layout and of the mask */
    uint32_t flags;        /* as of routecap_request_extract */
    uint32_t first_layer;  /* layers to copy: the first */
    uint32_t layers;       /* and how many; 0 means all from first_layer on */
    int64_t row_stride;    /* elements from one row to the next; 0 means that of the dense layout */
    int64_t layer_stride;  /* elements from one layer to the next; likewise */
    int64_t fill;          /* for the ids of missing cells, in two's complement; -1 by routecap_copy_options_init */
} routecap_copy_options;

/**
 * Fill copy options with the defaults: fill -1, everything else 0; `dtype` remains to be set.
 *
 * @param options      Filled.
 * @param struct_size  sizeof(routecap_copy_options) of the caller.
 */
ROUTECAP_API int32_t routecap_copy_options_init(routecap_copy_options *options, size_t struct_size);

#ifdef __cplusplus
}
#endif

#endif /* ROUTECAP_READING_H */

/*
 * routecap, chapter 12: the load of the experts. To find busy experts, count how often each is
 * chosen.
 *
 * Copyright 2026 The routecap authors. Licensed under the Apache License, Version 2.0; see LICENSE.
 *
 * A capturer that was created with ROUTECAP_CONFIG_LOAD counts how often each expert of each layer
 * was chosen, separately for prefill and decode. routecap_capturer_load reads the counts.
 *
 *     config.flags |= ROUTECAP_CONFIG_LOAD;                     // at create
 *     ...
 *     routecap_load load = {.struct_size = sizeof load};
 *     routecap_capturer_load(capturer, &load, NULL, 0);         // how large the counts are
 *     size_t n = ROUTECAP_LOAD_PHASES * (size_t)load.layers * load.experts;
 *     uint64_t *counts = calloc(n, sizeof *counts);
 *     routecap_capturer_load(capturer, &load, counts, n);       // counts [2, layers, experts]
 *
 * ------------------------------------------------------------------------------------------------
 * In detail
 * ------------------------------------------------------------------------------------------------
 * Which cells count. When a cell becomes valid in its request, because its step was filed or
 * because its draft was accepted, the capturer adds 1 to each of the cell's experts. So if every
 * cell has k experts, the counts of a layer add up to k times the number of its cells that became
 * valid. Columns without an expert are not counted (base.h). The counts equal what you would count
 * in the routings of all requests by these rules:
 *   - Rows that were lost, refused, late or unplaced, and drafts that were rejected, do not count.
 *   - If a position is issued again, only the cells that were missing count. After truncate the
 *     position counts again in full.
 *   - A row that a request gets by fork, attach or adopt was counted when it was computed. It is
 *     not counted again.
 *   - Only owners count, because the mirrors of a tensor-parallel group compute the same rows.
 *   - If several spans name one sink row, it counts once for each of them. Give all but one of
 *     these spans ROUTECAP_SPAN_UNCOUNTED to count it once.
 *
 * When. The thread that files a step counts its rows, before the step has landed. Nearly always
 * this is the worker thread (see "Waiting" in base.h). A draft is counted when its accept is
 * carried out.
 *
 * Windows. The counters only grow, and each reading contains whole steps and whole accepts. To get
 * the load of a time window, read at its start and at its end, and subtract. Any number of readers
 * may do this independently.
 *
 * Recipes:
 *   - Data parallel ranks: each rank counts its own tokens. Add the counts of all ranks.
 *   - New weights: read when the last step of the old weights has landed, and subtract that reading
 *     from later ones.
 *   - Preemption: if the engine computes rows again that are already valid, they do not count
 *     again. After routecap_request_truncate they do.
 *
 * Cost. Without ROUTECAP_CONFIG_LOAD none of this takes time or memory. With it, the worker thread
 * needs 3 to 5 ns more for each valid cell of 8 ids, and rows can be read that much later.
 *
 * The sizes of routecap_config_memory include the memory of the counts.
 */
#ifndef ROUTECAP_LOAD_H
#define ROUTECAP_LOAD_H

#include "capture.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Phases: the first index of the counts. A span with ROUTECAP_SPAN_PREFILL or ROUTECAP_SPAN_DECODE
 * belongs to that phase. A span with neither is decode if it has one row or drafts, and prefill
 * otherwise.
 */
#define ROUTECAP_PHASE_PREFILL 0
#define ROUTECAP_PHASE_DECODE 1
typedef int32_t routecap_phase; /* @one_of(ROUTECAP_PHASE_*) */

#define ROUTECAP_LOAD_PHASES 2   /* @number */

/* What a reading of the load covers. */
typedef struct routecap_load {
    uint32_t struct_size;
    uint32_t layers;       /* of the counts: those of the capturer */
    uint32_t experts;      /* of the counts: the most experts of any layer */
    uint32_t reserved;     /* 0 */
    uint64_t steps;        /* steps that landed with rows and are counted */
    uint64_t first_step;   /* ticket of the first of them; 0: none */
    uint64_t last_step;    /* ticket of the last of them */
    uint64_t rows_prefill; /* rows of prefill that got their first valid cell */
    uint64_t rows_decode;  /* rows of decode that got their first valid cell */
} routecap_load;

/**
 * Read how often each expert was chosen since the capturer was created.
 *
 * The counts contain every step that had landed, and every accept that was applied, when the call
 * began. A step or accept is counted either completely or not at all. If the worker thread is
 * filing a step, the call waits until that step is done: microseconds for a decode step, some
 * milliseconds for thousands of rows. Any thread may call it.
 *
 * For a disabled or mirroring capturer all numbers are 0.
 *
 * @param[in] capturer  The capturer.
 * @param[out] load     What the counts cover.
 * @param[out] counts   [ROUTECAP_LOAD_PHASES, layers, experts] in C order. Beyond the experts of a
 *                      layer they are 0. NULL if count is 0.
 * @param[in] count     Elements of counts: exactly ROUTECAP_LOAD_PHASES * layers * experts; or 0,
 *                      to fill only `load`.
 * @return ROUTECAP_OK; ROUTECAP_ERR_ARGUMENT (the capturer was created without
 *         ROUTECAP_CONFIG_LOAD); ROUTECAP_ERR_BUFFER_TOO_SMALL (any other count; load is filled,
 *         counts are not).
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_capturer_load(const routecap_capturer *capturer, routecap_load *load, uint64_t *counts,
                       size_t count);

#ifdef __cplusplus
}
#endif

#endif /* ROUTECAP_LOAD_H */

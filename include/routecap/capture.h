/*
 * routecap, chapter 2: the capturer and its steps.
 *
 * Copyright 2026 The routecap authors. Licensed under the Apache License, Version 2.0; see LICENSE.
 *
 * A capturer belongs to one rank and one device. It owns the sink into which forward passes write
 * expert ids, the slots that hold steps in flight, and the memory of all captured rows. A forward
 * pass becomes a step by begin, snapshot and issue.
 *
 * Most programs need these six functions:
 *
 *   routecap_config_init         fill a configuration with the defaults
 *   routecap_capturer_create     make a capturer, before CUDA graphs are captured
 *   routecap_step_begin          at the head of each forward pass
 *   routecap_step_snapshot       behind the last router
 *   routecap_step_issue          say which rows belong to which request
 *   routecap_capturer_destroy    at the end
 *
 * The rest of the chapter: discarding a pass, waiting for a step, memory, backends, counters, and a
 * checked mode that turns slips into errors.
 */
#ifndef ROUTECAP_CAPTURE_H
#define ROUTECAP_CAPTURE_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ================================================================================================
 * Configuration
 * ============================================================================================== */

/* Flags of routecap_config. */
#define ROUTECAP_CONFIG_COMPARE 1u         /* compare rows that are issued again with the rows that
                                              are kept; see stats.rows_mismatched */
#define ROUTECAP_CONFIG_EXTERNAL_SINK 2u   /* allocate no sink: routecap_sink_bind gives one to each
                                              layer that is used */
#define ROUTECAP_CONFIG_MANUAL_PROGRESS 4u /* start no thread: the caller's calls file steps; see
                                              routecap_capturer_progress */
#define ROUTECAP_CONFIG_MAY_LOSE 8u        /* host backend: a begin without a free slot loses the
                                              step, as on a device, instead of filing the oldest */
#define ROUTECAP_CONFIG_CHECKED 16u        /* checked mode, for development: slips are errors */
#define ROUTECAP_CONFIG_LOAD 32u           /* since 1.1: count how often each expert was chosen; see
                                              load.h */
#define ROUTECAP_CONFIG_LOAD_TAGS 64u      /* since 1.1: count it for each tag apart, too; needs
                                              ROUTECAP_CONFIG_LOAD */
typedef uint32_t routecap_config_flags; /* any of ROUTECAP_CONFIG_* */

/*
 * Checked mode is for development and tests. ROUTECAP_CONFIG_CHECKED turns it on, and so does
 * ROUTECAP_CHECKED=1 in the environment when the capturer is created. Without it a slip is no
 * error; it costs rows, which are missing. With it these errors exist:
 *
 *   ROUTECAP_ERR_NOT_BEGUN, ROUTECAP_ERR_NOT_SNAPSHOT, ROUTECAP_ERR_SNAPSHOT_TWICE,
 *   ROUTECAP_ERR_ISSUED_TWICE, ROUTECAP_ERR_ROWS_NOT_BEGUN
 *       The call that makes the slip returns it and changes nothing. Only the device sees slips in
 *       graphs that are replayed, or where a row base or an index list is on the device. For these,
 *       routecap_step_finalize of that step returns the slip, once the step has landed. The next
 *       issue after that also returns it, once, and changes nothing; the text names the step. The
 *       rows of that step are the same as without checked mode.
 *   ROUTECAP_ERR_TWO_THREADS
 *       A call of the forward path finds another thread in such a call of the same capturer.
 *   ROUTECAP_ERR_ARGUMENT
 *       On a device: a [device] argument is not memory of the device.
 *
 * A capturer without checked mode pays one branch per call for it.
 */

/* What a capturer captures, and with how much memory. */
typedef struct routecap_config {
    uint32_t struct_size;
    routecap_backend_kind backend; /* ROUTECAP_BACKEND_*. Required: 0 or less is
                                      ROUTECAP_ERR_ARGUMENT, an unknown one
                                      ROUTECAP_ERR_NO_BACKEND */
    routecap_role role;            /* ROUTECAP_ROLE_*; default OWNER */
    int32_t device;                /* ordinal of the device, 0 or more; the host backend ignores
                                      it */
    uint32_t layers;               /* captured (MoE) layers, 1..ROUTECAP_MAX_LAYERS. Required */
    uint32_t k;                    /* experts per token, 1..ROUTECAP_MAX_K. Required */
    uint32_t experts;              /* ids are in [0, experts); zero-computation experts count. In
                                      k..ROUTECAP_MAX_EXPERTS. Required unless layer_experts is
                                      set */
    uint32_t rows;                 /* sink rows: the most tokens of one forward pass, padding
                                      included, in 1..ROUTECAP_MAX_ROWS. Required */
    uint32_t slots;                /* steps that can be in flight, 1..ROUTECAP_MAX_SLOTS; default 4;
                                      see routecap_step_issue */
    routecap_dtype sink_dtype;     /* of the library's sink: ROUTECAP_DTYPE_I16 (default), _I32 or
                                      _I64 */
    routecap_config_flags flags;   /* ROUTECAP_CONFIG_*; default none */
    routecap_id_space id_space;    /* ROUTECAP_ID_SPACE_* of the ids that are written; default
                                      LOGICAL. Every routing carries it */
    uint32_t max_requests; /* requests open at a time, at most 16777216; default 65536 */
    uint32_t reserved;     /* 0 */
    uint64_t budget_bytes; /* limit of the memory for captured rows, routings included, in bytes; at
                              least one page (routecap_memory.page_bytes); default 1 GiB */
    const int32_t *layer_map;      /* [layers] each captured layer's index in the decoder, strictly
                                      ascending; default 0..layers-1 */
    const uint32_t *layer_experts; /* [layers] experts of each layer, where they differ, k or
                                      more; default `experts` for all */
    const routecap_provenance *layer_provenance; /* [layers] ROUTECAP_PROVENANCE_*; default CAPTURED
                                                    for all. Only a RECOMPUTED layer takes
                                                    routecap_layer_route */
} routecap_config;

/**
 * Fill a configuration with the defaults. The caller then sets `backend`, `layers`, `k`, `experts`
 * and `rows`.
 *
 * @param[out] config      The configuration.
 * @param[in] struct_size  sizeof(routecap_config) of the caller, in bytes.
 */
ROUTECAP_API routecap_status routecap_config_init(routecap_config *config, size_t struct_size);

/* ================================================================================================
 * Life of a capturer
 * ============================================================================================== */

/**
 * Create a capturer.
 *
 * This allocates all device memory and all page-locked memory. The forward path allocates none
 * later. Create the capturer before CUDA graphs are captured. Starts one worker thread, unless
 * ROUTECAP_CONFIG_MANUAL_PROGRESS is set. Not capturable.
 *
 * The role says what the capturer does:
 *   - ROUTECAP_ROLE_OWNER captures.
 *   - ROUTECAP_ROLE_MIRROR does the same as its owner up to the snapshot, so that graphs are equal
 *     on all ranks. From issue on it behaves as a disabled one.
 *   - ROUTECAP_ROLE_DISABLED turns capture off. It allocates and starts nothing, and no other field
 *     of the configuration is looked at. Every call looks at its outputs only, and returns at once.
 *     Calls that give out rows (coverage, extract, finish, and their batch forms) return
 *     ROUTECAP_ERR_DISABLED. All others return ROUTECAP_OK, with handles and counts of 0.
 *
 * @param[in] config     The configuration. The arrays that it points to are copied.
 * @param[out] capturer  The capturer, to be passed to routecap_capturer_destroy; NULL on error.
 * @return ROUTECAP_OK; ROUTECAP_ERR_NO_BACKEND (unknown, not in this build, or not usable on this
 *         machine); ROUTECAP_ERR_DRIVER_TOO_OLD; ROUTECAP_ERR_DEVICE; ROUTECAP_ERR_DEVICE_LOST;
 *         ROUTECAP_ERR_THREAD.
 */
ROUTECAP_API routecap_status routecap_capturer_create(const routecap_config *config,
                                                      routecap_capturer **capturer);

/**
 * Destroy a capturer.
 *
 * Waits until all issued steps have landed. After that the library touches no memory of the engine.
 *
 * Routings stay valid, and those of routecap_request_finish are ready. If there is no memory left
 * to hand rows over to such a routing, those rows are missing in it. Threads may be waiting for
 * routings meanwhile. In a forked child destroy does nothing.
 *
 * @param[in] capturer  The capturer; may be NULL.
 */
ROUTECAP_API void routecap_capturer_destroy(routecap_capturer *capturer);

/* ================================================================================================
 * Steps
 * ============================================================================================== */

/**
 * Begin a step: forget what the sink holds, and expect sink rows 0..rows-1 from this forward pass.
 *
 * Call it at the head of the forward pass, before the first write and before streams of
 * micro-batches fork. It may run on a stream of its own that is forked from the engine's stream and
 * joined before the first write. Rows that are not begun are missing. A begin after a forward pass
 * that was not issued discards that pass.
 *
 * On the host backend no step is lost. If all slots hold steps in flight, begin files the oldest
 * one on the calling thread, also with ROUTECAP_CONFIG_MANUAL_PROGRESS. That takes as long as
 * copying the rows of that step. If the worker thread is filing that step already, begin waits for
 * it. It never waits for a thread that reads or waits. ROUTECAP_CONFIG_MAY_LOSE turns this off.
 *
 * Capturable.
 *
 * @param[in] capturer  The capturer.
 * @param[in] rows      How many rows, padding included: at most the capturer's. Spans need not name
 *                      all of them.
 * @param[in] stream    The stream of the forward pass, or one forked from it.
 * @return ROUTECAP_OK; ROUTECAP_ERR_CAPACITY (more rows than the capturer's).
 */
ROUTECAP_API routecap_status routecap_step_begin(routecap_capturer *capturer, uint32_t rows,
                                                 routecap_stream stream);

/**
 * Take a snapshot of the rows begun. After that the next forward pass may write the sink.
 *
 * Call it behind the last write of the forward pass, on a stream that has joined all writers. It
 * reads the sink and never writes it. A second snapshot of one step makes the step's rows missing.
 *
 * In a graph, later work on the stream does not wait for the snapshot. Only the end of the graph
 * and the next begin wait for it. So a snapshot directly behind the last router costs next to
 * nothing. Write the sink again only after another begin.
 *
 * Capturable. On the host backend the rows are copied before the call returns.
 *
 * @param[in] capturer  The capturer.
 * @param[in] stream    The stream that has joined all writers.
 */
ROUTECAP_API routecap_status routecap_step_snapshot(routecap_capturer *capturer,
                                                    routecap_stream stream);

/* Flags of routecap_span. They may be combined. */
#define ROUTECAP_SPAN_SPECULATIVE 1u      /* drafts: provisional until routecap_request_accept */
#define ROUTECAP_SPAN_DEVICE_POSITIONS 2u /* positions come from routecap_issue_options.positions;
                                             they are in [position, position_end) */
#define ROUTECAP_SPAN_PREFILL 4u          /* since 1.1: load.h counts its rows as prefill */
#define ROUTECAP_SPAN_DECODE 8u           /* since 1.1: load.h counts its rows as decode; not
                                             together with PREFILL */
#define ROUTECAP_SPAN_UNCOUNTED 16u       /* since 1.1: load.h does not count its rows, because
                                             another span with the same sink rows counts them; not
                                             together with PREFILL or DECODE */
typedef uint32_t routecap_span_flags; /* any of ROUTECAP_SPAN_* */

/*
 * Sink rows of one step that belong to one request.
 *
 * For example, a prompt of 100 tokens in chunks of 64 and 36 gives a span with position 0 and 64
 * rows, and in a later step one with position 64 and 36 rows. Each decode step after that gives a
 * span of one row, with position 100, 101, and so on.
 */
typedef struct routecap_span {
    routecap_request request;
    uint64_t position;         /* of the first row; the others follow it. With DEVICE_POSITIONS: the
                                  lowest position that a row may have */
    uint64_t position_end;     /* with DEVICE_POSITIONS: one past the highest position that a row
                                  may have; a row outside the bounds is dropped and counted.
                                  Otherwise 0 */
    uint32_t sink_row;         /* of the first row */
    uint32_t rows;             /* how many, 1 or more */
    routecap_span_flags flags; /* ROUTECAP_SPAN_* */
    uint32_t reserved;         /* 0 */
} routecap_span;

/* Who takes the snapshot of a step. */
#define ROUTECAP_SNAPSHOT_TAKEN 0 /* the forward pass took it, by routecap_step_snapshot */
#define ROUTECAP_SNAPSHOT_MAKE 1  /* issue takes it, on its stream */
typedef int32_t routecap_snapshot; /* ROUTECAP_SNAPSHOT_* */

/* What holds for all spans of an issue. */
typedef struct routecap_issue_options {
    uint32_t struct_size;
    routecap_snapshot snapshot;     /* ROUTECAP_SNAPSHOT_*; default TAKEN */
    uint64_t tag;                   /* kept with every row of the step: the version of the weights,
                                       say */
    const void *positions;          /* [device] the position of each sink row, from sink row 0 to
                                       the last one that a span with DEVICE_POSITIONS names; NULL:
                                       none */
    routecap_dtype positions_dtype; /* ROUTECAP_DTYPE_I32 or _I64, where positions is set */
    uint32_t reserved;              /* 0 */
} routecap_issue_options;

/**
 * Issue the last forward pass: say which of its rows belong to which request.
 *
 * The rows are then filed in the background, in order of issue. Call it after the forward pass, on
 * a stream that is ordered behind it, and before a call that begins another pass.
 *
 * Spans. Sink rows that no span names are forgotten. Several spans may name one sink row: one token
 * in several sequences. One request may have several spans. They must not overlap in position,
 * except for spans that are speculative (trees) or have device positions. A step without spans has
 * landed at once.
 *
 * A span is skipped and counted if its request is unknown, or if it is charged more memory than the
 * budget (config.budget_bytes) has left. Issue then returns ROUTECAP_PARTIAL, and the other spans
 * are not affected. Positions that are refused for memory count for the request's length and are
 * missing (REFUSED).
 *
 * Memory. Issue charges the budget for each page that a span touches, except the newest page that
 * the request wrote itself. That page is charged too after it was truncated or taken, and where the
 * span writes rows that were once shared or forked. Pages whose rows may get a second tag are
 * charged with their tags, drafts with memory of their own, and wide bounds of device positions
 * with a page for each row. What is not needed goes back when the step is filed, or when its drafts
 * are settled. A span that is charged nothing is accepted above the budget too. Rows that were
 * accepted are refused later only where the system itself has no memory left: they are then missing
 * (REFUSED), and counted.
 *
 * Rows that are shared, forked or taken after a span was issued and before it is filed may make it
 * need a page that it was not charged. It gets that page above the budget. The excess is at most
 * the pages, with their tags, that spans in flight and waiting drafts touched since bytes_in_use
 * was last within the budget.
 *
 * What close, truncate, finish and an extract with ROUTECAP_EXTRACT_TAKE free can be used at once.
 * If the budget is exhausted, issue applies those calls itself before it refuses a span. It leaves
 * memory alone that a step in flight still needs.
 *
 * Slots. Each forward pass fills one slot. The slot is free again once its step is filed. If no
 * slot is free the step is lost: it has a ticket and has landed, all its rows are missing (LOST),
 * and issue returns ROUTECAP_LOST. When the slot is chosen depends on how begin runs:
 *   - Begin is called for each pass (eager). It chooses the slot. To lose no step, have at most
 *     slots - 1 steps in flight when you call begin. On the host backend no step is lost.
 *   - Begin is replayed as part of a graph. The issue or discard before it chose the slot. To lose
 *     no step, have at most slots - 2 steps in flight when you call issue. If an issue found no
 *     free slot, the pass after it is lost, whatever lands meanwhile. routecap_step_discard before
 *     that pass chooses again.
 *
 * Positions. They are read on the stream, to the last sink row that needs one. Memory that a call
 * named before is not looked at again. If it was freed meanwhile, the kernel of a small step makes
 * an error for the whole context, which the engine shares; a large step is lost alone. An address
 * that is mapped nowhere may end the process.
 *
 * Issue takes memory from the system only to grow buffers that it keeps. Not capturable.
 *
 * @param[in] capturer   The capturer.
 * @param[in] spans      [count] elements of span_size bytes; may be NULL if count is 0.
 * @param[in] span_size  sizeof(routecap_span) of the caller, in bytes.
 * @param[in] count      How many spans.
 * @param[in] options    NULL: the forward pass took its snapshot, and the tag is 0.
 * @param[out] status    [count] ROUTECAP_OK, ROUTECAP_ERR_UNKNOWN_REQUEST or ROUTECAP_ERR_NO_MEMORY
 *                       for each span; may be NULL.
 * @param[out] step      The ticket, 0 on error; may be NULL.
 * @param[in] stream     A stream that is ordered behind the forward pass.
 * @return ROUTECAP_OK; ROUTECAP_PARTIAL; ROUTECAP_LOST (also if spans were skipped). On error the
 *         pass is neither issued nor discarded: ROUTECAP_ERR_ARGUMENT (a span without rows, unknown
 *         flags, positions beyond ROUTECAP_MAX_POSITION, empty bounds, or no positions where a span
 *         needs them); ROUTECAP_ERR_CAPACITY (sink rows outside the sink); ROUTECAP_ERR_OVERLAP;
 *         ROUTECAP_ERR_DTYPE (of the positions).
 */
ROUTECAP_API routecap_status routecap_step_issue(routecap_capturer *capturer,
                                                 const routecap_span *spans, size_t span_size,
                                                 size_t count,
                                                 const routecap_issue_options *options,
                                                 routecap_status *status, routecap_step *step,
                                                 routecap_stream stream);

/**
 * Discard the last forward pass, after a warm-up, profiling or dummy run that will not be issued.
 * The next begin does the same. Not capturable.
 *
 * @param[in] capturer  The capturer.
 * @param[in] stream    A stream that is ordered behind the forward pass.
 */
ROUTECAP_API routecap_status routecap_step_discard(routecap_capturer *capturer,
                                                   routecap_stream stream);

/**
 * Say whether a step has landed, so that its rows can be read.
 *
 * @param[in] capturer  The capturer.
 * @param[in] step      The ticket.
 * @return ROUTECAP_OK (landed); ROUTECAP_LOST (landed and lost; the text says why: no slot was
 *         free, or which call of the driver failed); ROUTECAP_PENDING; ROUTECAP_ERR_UNKNOWN_STEP
 *         (never issued). A loss is known for the last 1024 steps; older lost steps return
 *         ROUTECAP_OK.
 */
ROUTECAP_API routecap_status routecap_step_poll(routecap_capturer *capturer, routecap_step step);

/**
 * Wait until a step has landed.
 *
 * With ROUTECAP_CONFIG_MANUAL_PROGRESS the calling thread files the steps that can land.
 *
 * @param[in] capturer      The capturer.
 * @param[in] step          The ticket.
 * @param[in] timeout_ns    Nanoseconds; 0 looks once; a negative number waits without limit.
 * @param[out] conflicting  How many cells of the step were recorded twice, 0 for all but the last
 *                          1024 steps; left alone on a timeout; may be NULL.
 * @return ROUTECAP_OK; ROUTECAP_LOST (see routecap_step_poll); ROUTECAP_PENDING (timeout);
 *         ROUTECAP_ERR_UNKNOWN_STEP (never issued). In checked mode also a slip that the device
 *         found; the step has landed nevertheless.
 */
ROUTECAP_API routecap_status routecap_step_finalize(routecap_capturer *capturer, routecap_step step,
                                                    int64_t timeout_ns, uint64_t *conflicting);

/* ================================================================================================
 * Memory and backends
 * ============================================================================================== */

/* Memory that a capturer of some configuration needs. */
typedef struct routecap_memory {
    uint32_t struct_size;
    uint32_t page_rows;       /* rows in one page */
    uint64_t device_bytes;    /* allocated at create */
    uint64_t pinned_bytes;    /* allocated at create: page-locked host memory */
    uint64_t host_bytes;      /* allocated at create: other host memory, rounded up */
    uint64_t row_bytes;       /* of one captured row: ids and validity */
    uint64_t page_bytes;      /* of one page, the unit in which requests take from the budget */
    uint64_t request_bytes;   /* of one open request before its first row, outside the budget */
    uint64_t tag_bytes;       /* what a page takes from the budget in addition, once two of its rows
                                 have different tags */
} routecap_memory;

/**
 * Say how much memory a capturer of a configuration needs, without creating it.
 *
 * Asks neither the driver nor a device. It can be called before a fork, and without a device.
 *
 * @param[in] config   The configuration.
 * @param[out] memory  The sizes, in bytes.
 * @return ROUTECAP_OK; ROUTECAP_ERR_NO_BACKEND (unknown, or not in this build).
 */
ROUTECAP_API routecap_status routecap_config_memory(const routecap_config *config,
                                                    routecap_memory *memory);

/* What a backend of this build can do on this machine. */
typedef struct routecap_backend {
    uint32_t struct_size;
    int32_t available;   /* 1: a capturer can be created on it; 0: detail says why not */
    int32_t devices;     /* how many; 0 on the host backend */
    int32_t reserved;    /* 0 */
    const char *detail;  /* one line, static storage */
} routecap_backend;

/**
 * Describe a backend of this build on this machine.
 *
 * @param[in] backend  ROUTECAP_BACKEND_*. One that this library does not know is not available.
 * @param[out] info    What it can do.
 */
ROUTECAP_API routecap_status routecap_backend_info(routecap_backend_kind backend,
                                                   routecap_backend *info);

/* ================================================================================================
 * Counters and progress
 * ============================================================================================== */

/*
 * What a capturer saw since it was created. The fields are read one after another while it runs. No
 * row is counted as landed before it is counted as issued.
 */
typedef struct routecap_stats {
    uint32_t struct_size;
    uint32_t silent_layers; /* layers without a valid cell in the last step that landed with rows */
    /* Steps. */
    uint64_t steps_issued; /* lost ones included */
    uint64_t steps_landed; /* lost ones included */
    uint64_t steps_lost;   /* no slot was free, or the copy failed */
    /* Rows of the spans of issue, without those of unknown requests. Each row is in exactly one of
     * the nine counts that follow rows_issued. */
    uint64_t rows_issued;
    uint64_t rows_in_flight;
    uint64_t rows_provisional; /* drafts that have landed and wait for accept */
    uint64_t rows_delivered;   /* filed with at least one valid cell */
    uint64_t rows_missing;     /* landed without a valid cell */
    uint64_t rows_lost;        /* of a lost step */
    uint64_t rows_late;        /* landed after their request was closed; or cut by truncate or
                                  finish, before they landed or as drafts */
    uint64_t rows_rejected;    /* drafts that were not accepted, also if a later call cut them */
    uint64_t rows_unplaced;    /* their position on the device was outside the span's bounds */
    uint64_t rows_refused;     /* for memory */
    /* Other counts. */
    uint64_t rows_skipped;       /* in spans of unknown requests */
    uint64_t rows_overlapped;    /* delivered with a valid cell where there was one already */
    uint64_t rows_mismatched;    /* overlapped rows with another set of ids in a cell that is valid
                                    in both; needs ROUTECAP_CONFIG_COMPARE */
    uint64_t rows_dropped;       /* recorded rows outside the rows begun, of steps that landed */
    uint64_t cells_conflicting;  /* recorded twice in one step, of steps that landed; the first
                                    record was kept */
    uint64_t cells_unwritten;    /* cells of landed rows that their step did not write, or not
                                    completely. Late and unplaced rows are not counted */
    uint64_t cells_out_of_range; /* likewise, with an id outside the layer's range */
    uint64_t cells_duplicate;    /* likewise, with one id twice */
    /* Now. */
    uint64_t requests_open;
    uint64_t steps_in_flight;
    uint64_t bytes_in_use; /* of the budget: pages of requests and routings, their tags, provisional
                              rows, and what spans in flight are charged */
    uint64_t bytes_peak;   /* the highest bytes_in_use so far. It includes what an issue reserved
                              and gave back at once, such as for a page that two of its spans
                              share */
    uint64_t bytes_budget; /* the limit of bytes_in_use, but for the excess that issue names */
} routecap_stats;

/*
 * What a capturer saw of one layer since it was created. A cell is that layer's part of a landed
 * row. Late and unplaced rows are not counted.
 */
typedef struct routecap_layer_stats {
    uint64_t rows_written; /* cells that are valid */
    uint64_t unwritten;    /* cells that their step did not write, or not completely */
    uint64_t out_of_range; /* cells with an id outside the layer's range */
    uint64_t duplicate;    /* cells with one id twice */
    uint64_t silent_steps; /* steps that landed with rows, none of which this layer wrote */
} routecap_layer_stats;

/**
 * Read the counters.
 *
 * @param[in] capturer  The capturer.
 * @param[out] stats    The counters.
 */
ROUTECAP_API routecap_status routecap_capturer_stats(const routecap_capturer *capturer,
                                                     routecap_stats *stats);

/**
 * Read the counters of layers 0..count-1.
 *
 * @param[in] capturer   The capturer.
 * @param[out] stats     [count] elements of stat_size bytes.
 * @param[in] stat_size  sizeof(routecap_layer_stats) of the caller, in bytes.
 * @param[in] count      How many layers: at most the capturer's.
 * @return ROUTECAP_OK; ROUTECAP_ERR_UNKNOWN_LAYER (more layers than the capturer's).
 */
ROUTECAP_API routecap_status routecap_capturer_layer_stats(const routecap_capturer *capturer,
                                                           routecap_layer_stats *stats,
                                                           size_t stat_size, size_t count);

/**
 * File the steps that the device has finished, on this thread.
 *
 * This is the whole work of the worker thread, for a capturer with ROUTECAP_CONFIG_MANUAL_PROGRESS:
 * for processes that allow no threads, and for tests. Calls that wait make progress themselves.
 * Reading does not: changes of a request are visible only after progress.
 *
 * Any thread may call it. One call runs at a time, and others wait for it. It does not wait for the
 * device. Without ROUTECAP_CONFIG_MANUAL_PROGRESS it does nothing.
 *
 * @param[in] capturer  The capturer.
 */
ROUTECAP_API routecap_status routecap_capturer_progress(routecap_capturer *capturer);

#ifdef __cplusplus
}
#endif

#endif /* ROUTECAP_CAPTURE_H */

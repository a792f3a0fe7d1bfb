/*
 * routecap, chapter 2: the capturer and its steps. To capture a forward pass, begin it, take a
 * snapshot, and issue it.
 *
 * Copyright 2026 The routecap authors. Licensed under the Apache License, Version 2.0; see LICENSE.
 *
 * A capturer belongs to one rank and one device. It owns the sink into which forward passes write
 * expert ids, the slots that hold steps in flight, and the memory of all captured rows. A step is
 * one forward pass, from begin to issue or discard. Issue says which rows belong to which request,
 * and returns the step's ticket. When the device has finished the pass, the worker thread files its
 * rows into their requests. After that the step has landed.
 *
 * Most programs need these six functions:
 *
 *   routecap_config_init         fill a configuration with the defaults
 *   routecap_capturer_create     make a capturer, before CUDA graphs are captured
 *   routecap_step_begin          at the start of each forward pass
 *   routecap_step_snapshot       after the last router
 *   routecap_step_issue          say which rows belong to which request
 *   routecap_capturer_destroy    at the end
 *
 *     routecap_config config;
 *     routecap_config_init(&config, sizeof config);
 *     config.backend = ROUTECAP_BACKEND_CUDA;
 *     config.layers = 48; config.k = 8; config.experts = 128; config.rows = 8192;
 *     routecap_capturer_create(&config, &capturer);
 *
 *     for each forward pass:
 *         routecap_step_begin(capturer, rows, stream);
 *         ... the model runs; chapter 3 (record.h) gets its expert ids into the sink ...
 *         routecap_step_snapshot(capturer, stream);
 *         routecap_step_issue(capturer, spans, sizeof *spans, count, NULL, NULL, &step, stream);
 *
 * If one call records all layers after the last router, that call can begin the step and take the
 * snapshot too, as on the first page of routecap.h: ROUTECAP_SOURCE_WHOLE_STEP in record.h.
 *
 * ------------------------------------------------------------------------------------------------
 * In detail
 * ------------------------------------------------------------------------------------------------
 * The rest of the chapter: discarding a pass, waiting for a step, memory, backends, counters, and a
 * checked mode that turns mistakes into errors.
 *
 * Recipes:
 *   - Chunked prefill (a prompt computed in several passes): issue each chunk as a span whose
 *     position is the number of tokens before it. A step may hold chunks of some requests and, for
 *     other requests, the row of one generated token each (decode).
 *   - Drafts: issue them with ROUTECAP_SPAN_SPECULATIVE. After the verification, call
 *     routecap_request_accept with the ticket of the step. If the host learns only later which
 *     drafts were accepted, give the positions of the next step in device memory:
 *     ROUTECAP_SPAN_DEVICE_POSITIONS.
 *   - Preemption: issue no spans of the request until the engine resumes it; see requests.h. Steps
 *     in flight need no special care.
 *   - Abort: see requests.h.
 *   - Updates of the model's weights: set routecap_issue_options.tag to their version. Each row
 *     keeps the tag of its step.
 *   - Data parallel ranks: each rank has its own capturer, with ROUTECAP_ROLE_OWNER.
 *   - Tensor parallel ranks: one rank has ROUTECAP_ROLE_OWNER, and the others have
 *     ROUTECAP_ROLE_MIRROR. All make the same calls; those that return rows return
 *     ROUTECAP_ERR_DISABLED on a mirror.
 *   - CUDA graphs: begin (with the padded number of rows) and snapshot belong in the graph. Call
 *     issue after each replay, outside the graph. Capturing the graph is no forward pass: there is
 *     nothing to discard until you replay it.
 *   - A warm-up, profiling or dummy run: call routecap_step_discard instead of issue.
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
#define ROUTECAP_CONFIG_COMPARE 1u         /* if a row is issued again, compare it with the row that
                                              is kept; see stats.rows_mismatched */
#define ROUTECAP_CONFIG_EXTERNAL_SINK 2u   /* allocate no sink: you bind memory to each layer by
                                              routecap_sink_bind. The cells of a layer without
                                              memory are missing */
#define ROUTECAP_CONFIG_MANUAL_PROGRESS 4u /* start no worker thread: calls of the caller file the
                                              steps; see routecap_capturer_progress */
#define ROUTECAP_CONFIG_MAY_LOSE 8u        /* host backend: if config.slots steps are in flight, the
                                              next one is lost, as on a device. Without the flag
                                              begin files the oldest step instead */
#define ROUTECAP_CONFIG_CHECKED 16u        /* checked mode, for development: mistakes in the order
                                              of calls are errors (ROUTECAP_ERR_NOT_BEGUN to
                                              ROUTECAP_ERR_TWO_THREADS). ROUTECAP_CHECKED=1 in the
                                              environment does the same */
#define ROUTECAP_CONFIG_LOAD 32u           /* count how often each expert was chosen; see
                                              load.h */
typedef uint32_t routecap_config_flags; /* @any_of(ROUTECAP_CONFIG_*) */

/*
 * Checked mode is for development and tests. ROUTECAP_CONFIG_CHECKED turns it on, and so does
 * ROUTECAP_CHECKED=1 in the environment when the capturer is created. Without it, most mistakes in
 * the calls of the forward path only make rows missing. Checked mode reports them:
 *
 *   ROUTECAP_ERR_NOT_BEGUN, ROUTECAP_ERR_NOT_SNAPSHOT, ROUTECAP_ERR_SNAPSHOT_TWICE,
 *   ROUTECAP_ERR_ISSUED_TWICE, ROUTECAP_ERR_ROWS_NOT_BEGUN
 *       The call that makes the mistake returns the error and changes nothing. If a graph is
 *       replayed, or if a source has row_base or row_index (record.h), only the device can see the
 *       mistake. When the step has landed, routecap_step_finalize of that step returns the error,
 *       and so does the next issue, which issues nothing. Call issue again to issue the pass. The
 *       text of the error names the step with the mistake. The rows of that step are the same as
 *       without checked mode.
 *   ROUTECAP_ERR_TWO_THREADS
 *       A call of the forward path finds another thread in such a call of the same capturer.
 *   ROUTECAP_ERR_ARGUMENT
 *       On a device: a [device] argument is memory that the driver does not know.
 *
 * If checked mode is off, it costs one branch per call.
 */

/* The shape of the rows that a capturer captures, and the memory that it may use. */
typedef struct routecap_config {
    uint32_t struct_size;
    routecap_backend_kind backend; /* ROUTECAP_BACKEND_*. Required: 0 or less is
                                      ROUTECAP_ERR_ARGUMENT, an unknown one
                                      ROUTECAP_ERR_NO_BACKEND */
    routecap_role role;            /* ROUTECAP_ROLE_*; default OWNER */
    int32_t device;                /* CUDA's number of the device, 0 or more; the host backend
                                      ignores it */
    uint32_t layers;               /* captured (MoE) layers, 1..ROUTECAP_MAX_LAYERS. Required */
    uint32_t k;                    /* experts per token, 1..ROUTECAP_MAX_K; with layer_k, the most
                                      of any layer or more. Required */
    uint32_t experts;              /* ids are in [0, experts), those of zero-computation experts
                                      included. In k..ROUTECAP_MAX_EXPERTS. Required unless
                                      layer_experts is set */
    uint32_t rows;                 /* sink rows: the most tokens of one forward pass, padding
                                      included, in 1..ROUTECAP_MAX_ROWS. Required */
    uint32_t slots;                /* steps that may be in flight, 1..ROUTECAP_MAX_SLOTS;
                                      default 2. On a device, a step that is issued while so many
                                      are in flight is lost. On the host backend begin files the
                                      oldest of them instead */
    routecap_dtype sink_dtype;     /* of the sink that the library allocates: ROUTECAP_DTYPE_I16
                                      (default), _I32 or _I64 */
    routecap_config_flags flags;   /* ROUTECAP_CONFIG_*; default none */
    routecap_id_space id_space;    /* ROUTECAP_ID_SPACE_* of the captured ids; default LOGICAL.
                                      Every routing states it */
    uint32_t max_requests; /* requests open at a time, at most 16777216; default 65536 */
    routecap_dtype weights_dtype; /* capture the experts' weights too, as ROUTECAP_DTYPE_F32, _F16
                                     or _BF16; default 0: ids alone. A row with weights has at
                                     most 4096 bytes. See "Weights" in base.h */
    uint64_t budget_bytes; /* limit of the host memory for captured rows, routings included, in
                              bytes. It is taken page by page, as rows need it. At least one page
                              (routecap_memory.page_bytes); default 1 GiB */
    const int32_t *layer_map;      /* [layers] index of each captured layer in the decoder, strictly
                                      ascending unless layer_visit is set; default 0..layers-1 */
    const uint32_t *layer_experts; /* [layers] number of experts of each layer, if they differ: in
                                      layer_k..ROUTECAP_MAX_EXPERTS; default `experts` for all */
    const routecap_provenance *layer_provenance; /* [layers] ROUTECAP_PROVENANCE_*; default CAPTURED
                                                    for all. routecap_layer_route works only on a
                                                    RECOMPUTED layer */
    const uint32_t *layer_k;       /* [layers] the most experts of a token in each layer, 1..k, if
                                      they differ; default k for all. See "Cells with fewer experts"
                                      in base.h */
    const uint32_t *layer_min_k;   /* [layers] the fewest experts of a token in each layer,
                                      0..layer_k; default layer_k: each token has as many */
    const uint32_t *layer_visit;   /* [layers] if the decoder runs a layer several times, each visit
                                      is a captured layer, and this is its number, from 0; default 0
                                      for all. Layers ascend by (layer_map, layer_visit), which is
                                      not the order in which they run. For example, layers 3 and 5
                                      run in turn, twice: layer_map {3, 3, 5, 5} and layer_visit
                                      {0, 1, 0, 1} */
} routecap_config;

/**
 * Fill a configuration with the defaults. The caller then sets `backend`, `layers`, `k`, `experts`
 * and `rows`.
 *
 * @param[out] config      The configuration.
 * @param[in] struct_size  sizeof(routecap_config) of the caller, in bytes.
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_config_init(routecap_config *config, size_t struct_size);

/* ================================================================================================
 * Life of a capturer
 * ============================================================================================== */

/**
 * Create a capturer.
 *
 * Create it before you capture CUDA graphs with calls on it. The call allocates all device memory
 * and all page-locked memory, so the forward path allocates none later. It starts one worker
 * thread, unless ROUTECAP_CONFIG_MANUAL_PROGRESS is set. Not capturable.
 *
 * The role decides how the capturer behaves:
 *   - ROUTECAP_ROLE_OWNER captures.
 *   - ROUTECAP_ROLE_MIRROR behaves like an owner in begin, snapshot and the calls of record.h, so
 *     that CUDA graphs are equal on all ranks. In all other calls it behaves like
 *     ROUTECAP_ROLE_DISABLED.
 *   - ROUTECAP_ROLE_DISABLED turns capture off. The capturer allocates nothing, starts nothing, and
 *     ignores all other fields of the configuration. Every call only checks that its output
 *     pointers are sound, and sets the outputs. Calls that return rows (coverage, extract, finish,
 *     and their batch forms) return ROUTECAP_ERR_DISABLED. All other calls return ROUTECAP_OK, with
 *     handles and counts of 0. routecap_sink_layer gives ids NULL: the router must then write
 *     elsewhere.
 *
 * @param[in] config     The configuration. The arrays that it points to are copied.
 * @param[out] capturer  The capturer, to be passed to routecap_capturer_destroy; NULL on error.
 * @return ROUTECAP_OK; ROUTECAP_ERR_ARGUMENT (a field outside its range; the text names it);
 *         ROUTECAP_ERR_DTYPE (weights_dtype); ROUTECAP_ERR_NO_BACKEND (unknown, not in this build,
 *         or not usable on this machine); ROUTECAP_ERR_DRIVER_TOO_OLD; ROUTECAP_ERR_DEVICE;
 *         ROUTECAP_ERR_DEVICE_LOST; ROUTECAP_ERR_THREAD.
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_capturer_create(const routecap_config *config, routecap_capturer **capturer);

/**
 * Destroy a capturer.
 *
 * The call waits until all issued steps have landed; those whose rows have not arrived
 * (routecap_step_arrive) are lost. After that only graphs that you still replay use the engine's
 * memory. The call ends all open requests and drops their rows.
 *
 * Routings stay valid. Those of routecap_request_finish become ready, and threads that wait for
 * them return. If there is no memory left to hand rows over to such a routing, those rows are
 * missing in it. In a forked child process the call does nothing.
 *
 * @param[in] capturer  The capturer; may be NULL.
 * @thread(any) @waits
 */
ROUTECAP_API void routecap_capturer_destroy(routecap_capturer *capturer);

/* ================================================================================================
 * Steps
 * ============================================================================================== */

/**
 * Begin a step: clear the sink, and expect sink rows 0..rows-1 from this forward pass.
 *
 * Call it at the start of the forward pass, before the first write. If the engine computes parts of
 * the pass on several streams, call it before these streams fork. It may run on a stream of its own
 * that is forked from the engine's stream and joined before the first write. Rows of the pass
 * beyond `rows` are missing. If the previous forward pass was not issued, begin discards it. A
 * begin that is replayed in a graph does that too.
 *
 * On the host backend, if config.slots steps are in flight, begin files the oldest one on the
 * calling thread, even with ROUTECAP_CONFIG_MANUAL_PROGRESS. So no step is lost. Filing takes as
 * long as copying the rows of that step. If another thread is filing a step at that moment, begin
 * waits until that step is filed. With ROUTECAP_CONFIG_MAY_LOSE, begin files nothing.
 *
 * Capturable.
 *
 * @param[in] capturer  The capturer.
 * @param[in] rows      How many rows, padding included: at most routecap_config.rows. Spans may
 *                      leave some of them out.
 * @param[in] stream    The stream of the forward pass, or one forked from it.
 * @return ROUTECAP_OK; ROUTECAP_ERR_CAPACITY (rows beyond routecap_config.rows);
 *         ROUTECAP_ERR_STATE (a step was issued with ROUTECAP_SNAPSHOT_LATER).
 * @thread(forward)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_step_begin(routecap_capturer *capturer, uint32_t rows, routecap_stream stream);

/**
 * Take a snapshot of the rows that were begun: sink rows 0..rows-1 of the begin. After the snapshot
 * and the issue, the next forward pass may begin and write the sink.
 *
 * Call it after the last write of the forward pass, on a stream that has joined all writers. The
 * call reads the sink and never writes it. A second snapshot in one step makes the rows of the step
 * missing.
 *
 * Write the sink again only after another begin. In a graph the snapshot is a branch of its own,
 * which may still read the sink while later work of the stream runs. So it costs next to nothing if
 * you call it directly after the last router. The library joins the branch before the end of the
 * graph and before the device work of the next begin.
 *
 * Capturable. On the host backend the rows are copied before the call returns.
 *
 * @param[in] capturer  The capturer.
 * @param[in] stream    The stream that has joined all writers.
 * @thread(forward)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_step_snapshot(routecap_capturer *capturer, routecap_stream stream);

/* Flags of routecap_span. They may be combined, except where one says otherwise. */
#define ROUTECAP_SPAN_SPECULATIVE 1u      /* drafts: provisional until routecap_request_accept */
#define ROUTECAP_SPAN_DEVICE_POSITIONS 2u /* the positions are in routecap_issue_options.positions,
                                             and lie in [position, position_end) */
#define ROUTECAP_SPAN_PREFILL 4u          /* load.h counts its rows as prefill */
#define ROUTECAP_SPAN_DECODE 8u           /* load.h counts its rows as decode. Cannot be
                                             combined with PREFILL */
#define ROUTECAP_SPAN_UNCOUNTED 16u       /* load.h does not count its rows, because
                                             another span with the same sink rows counts them.
                                             Cannot be combined with PREFILL or DECODE */
#define ROUTECAP_SPAN_SHARED 32u          /* other spans of the step may have its sink rows too, if
                                             they have this flag */
typedef uint32_t routecap_span_flags; /* @any_of(ROUTECAP_SPAN_*) */

/*
 * Sink rows of one step that belong to one request.
 *
 * For example, a prompt of 100 tokens in chunks of 64 and 36 tokens gives two spans: one with
 * position 0 and 64 rows, and in a later step one with position 64 and 36 rows. Each decode step
 * after that gives a span of one row, with position 100, 101, and so on.
 */
typedef struct routecap_span {
    routecap_request request;
    uint64_t position;         /* of the first row; the positions of the others follow it. With
                                  DEVICE_POSITIONS: the lowest position that a row may have */
    uint64_t position_end;     /* with DEVICE_POSITIONS: one past the highest position that a row
                                  may have; a row outside the bounds is dropped and counted.
                                  Otherwise 0 */
    uint32_t sink_row;         /* sink row of the first row: its place among all rows of the pass */
    uint32_t rows;             /* how many, 1 or more */
    routecap_span_flags flags; /* ROUTECAP_SPAN_* */
    uint32_t reserved;         /* 0 */
} routecap_span;

/* Who takes the snapshot of a step. */
#define ROUTECAP_SNAPSHOT_TAKEN 0 /* the forward pass took it, by routecap_step_snapshot */
#define ROUTECAP_SNAPSHOT_MAKE 1  /* issue takes it, on its stream */
#define ROUTECAP_SNAPSHOT_LATER 2 /* nobody: the rows arrive later, by routecap_step_arrive */
typedef int32_t routecap_snapshot; /* @one_of(ROUTECAP_SNAPSHOT_*) */

/* Options that apply to all spans of an issue. */
typedef struct routecap_issue_options {
    uint32_t struct_size;
    routecap_snapshot snapshot;     /* ROUTECAP_SNAPSHOT_*; default TAKEN */
    uint64_t tag;                   /* kept with every row of the step, such as the version of the
                                       weights */
    const void *positions;          /* [device] [n] the position of each sink row, where n is one
                                       more than the last sink row in a span with DEVICE_POSITIONS;
                                       NULL if no span has them. With ROUTECAP_SNAPSHOT_LATER it
                                       is host memory, which routecap_step_arrive reads */
    routecap_dtype positions_dtype; /* ROUTECAP_DTYPE_I32 or _I64, if positions is set */
    uint32_t reserved;              /* 0 */
} routecap_issue_options;

/**
 * Issue the latest forward pass: say which of its rows belong to which request.
 *
 * Call it when the whole forward pass is enqueued, on a stream that is ordered after the pass, and
 * before a call that begins another pass. The pass need not have run. The worker thread then files
 * the rows in the background. Steps are filed in the order in which they were issued.
 *
 * Spans. Issue ignores sink rows that are in no span. A request may have several spans. They must
 * not overlap in position, unless they are speculative (a tree has several drafts for one position)
 * or have device positions. A step without spans lands at once.
 *
 * Shared sink rows. If several sequences share a token that is computed once, its sink row is in
 * several spans. Each of these spans must have ROUTECAP_SPAN_SHARED. Otherwise issue returns
 * ROUTECAP_ERR_CONFLICT and changes nothing, because a sink_row that was forgotten gives a request
 * the rows of another. All spans of the call count, those of unknown requests too. The check costs
 * one comparison per span if spans are in the order of their sink rows.
 *
 * Issue skips a span and counts its rows if the request is unknown, or if the span's charge (see
 * "Memory") is more than the budget (config.budget_bytes) has left. Issue then returns
 * ROUTECAP_PARTIAL, and files the other spans as usual. Positions that were refused for memory are
 * missing (REFUSED). They count towards the request's length; those of drafts do once accept keeps
 * them.
 *
 * Memory. Issue reserves the memory that the rows of a span may need, so that rows which it accepts
 * find room when they land. It charges the budget for each page that a span touches, except the
 * newest page that the request wrote, which is charged already. That page is charged again if the
 * request was truncated, or if rows of the page were taken (requests.h). It is not charged again
 * because its rows were shared or forked: the next row still goes into it. Issue also charges:
 *   - for drafts: memory of their own, until they are settled,
 *   - for device positions: each page within the bounds. If the bounds contain more pages than the
 *     span has rows, issue charges one page for each row instead.
 * When the step is filed, or when its drafts are settled, the part of the charge that was not
 * needed returns to the budget. Issue accepts a span that is charged nothing, even if the budget is
 * exceeded. Rows of an accepted span are refused later only if the system itself has no memory
 * left. They are then missing (REFUSED), and counted.
 *
 * A span may need a page that issue did not charge, if rows are shared, forked or taken between its
 * issue and its filing. The span gets that page even if this exceeds the budget. The excess has a
 * limit. Consider the time since stats.bytes_in_use was last within the budget, and all spans that
 * were in flight or had provisional drafts at any moment of that time. The excess is at most the
 * memory of the pages that these spans touch.
 *
 * The worker thread frees the memory of rows that close, truncate, finish or a take removed from a
 * request, unless a routing has them. If the budget is exhausted, issue does that itself before it
 * refuses a span. Memory that a step in flight still needs is not freed.
 *
 * Steps in flight. If config.slots steps are in flight, the next one that is issued is lost,
 * whether its begin was called or replayed in a graph. It has a ticket and has landed, all its rows
 * are missing (LOST), and issue returns ROUTECAP_LOST. To lose none, first call
 * routecap_step_finalize of the step issued config.slots steps before this one. For example, with 2
 * slots finalize step 1 before you issue step 3. On the host backend begin does that for you. A
 * step without spans is never lost.
 *
 * Positions. The positions array is read on the stream, up to the last sink row whose span has
 * DEVICE_POSITIONS. Free the array only after the stream has run this work; with
 * ROUTECAP_SNAPSHOT_LATER, only after routecap_step_arrive has returned. The library checks an
 * address when it is first passed, and may not check it again. If you pass an address whose memory
 * was freed since then, the step may be lost, the CUDA context that the engine shares may fail, or
 * the process may crash.
 *
 * Issue allocates system memory only to grow buffers that it keeps. Not capturable.
 *
 * @param[in] capturer   The capturer.
 * @param[in] spans      [count] elements of span_size bytes; may be NULL if count is 0.
 * @param[in] span_size  sizeof(routecap_span) of the caller, in bytes.
 * @param[in] count      How many spans.
 * @param[in] options    NULL: the forward pass took its snapshot, and the tag is 0.
 * @param[out] status    [count] ROUTECAP_OK, ROUTECAP_ERR_UNKNOWN_REQUEST or ROUTECAP_ERR_NO_MEMORY
 *                       for each span; may be NULL.
 * @param[out] step      The ticket, 0 on error; may be NULL.
 * @param[in] stream     A stream that is ordered after the forward pass.
 * @return ROUTECAP_OK; ROUTECAP_PARTIAL; ROUTECAP_LOST (also if spans were skipped). On error the
 *         pass is neither issued nor discarded: ROUTECAP_ERR_ARGUMENT (a span without rows, unknown
 *         flags, positions beyond ROUTECAP_MAX_POSITION, empty bounds, no positions although a span
 *         needs them, or ROUTECAP_SNAPSHOT_LATER on a device); ROUTECAP_ERR_CAPACITY (sink rows
 *         outside the sink); ROUTECAP_ERR_CONFLICT (a sink row in two spans without
 *         ROUTECAP_SPAN_SHARED; the text names both); ROUTECAP_ERR_OVERLAP; ROUTECAP_ERR_DTYPE (of
 *         the positions); ROUTECAP_ERR_STATE (ROUTECAP_SNAPSHOT_LATER after a begin).
 * @thread(forward)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_step_issue(routecap_capturer *capturer, const routecap_span *spans, size_t span_size,
                    size_t count, const routecap_issue_options *options, routecap_status *status,
                    routecap_step *step, routecap_stream stream);

/**
 * Discard the latest forward pass, such as a warm-up, profiling or dummy run. If you do not call
 * it, the next begin discards the pass. Not capturable.
 *
 * @param[in] capturer  The capturer.
 * @param[in] stream    A stream that is ordered after the forward pass.
 * @thread(forward)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_step_discard(routecap_capturer *capturer, routecap_stream stream);

/**
 * Tell whether a step has landed, so that its rows can be read.
 *
 * @param[in] capturer  The capturer.
 * @param[in] step      The ticket.
 * @return ROUTECAP_OK (landed); ROUTECAP_LOST (landed and lost; the text gives the reason: too
 *         many were in flight, the call of the driver that failed, or the rows did not arrive);
 *         ROUTECAP_PENDING; ROUTECAP_ERR_UNKNOWN_STEP (never issued). The library remembers which
 *         of the last 1024 steps were lost; for older lost steps the call returns ROUTECAP_OK.
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_step_poll(routecap_capturer *capturer, routecap_step step);

/**
 * Wait until a step has landed.
 *
 * With ROUTECAP_CONFIG_MANUAL_PROGRESS the calling thread files the steps that can land.
 *
 * @param[in] capturer      The capturer.
 * @param[in] step          The ticket.
 * @param[in] timeout_ns    The longest wait, in nanoseconds; 0: look once; negative: no limit.
 * @param[out] conflicting  How many cells of the step were recorded twice. 0 for all but the last
 *                          1024 steps; unchanged on a timeout; may be NULL.
 * @return ROUTECAP_OK; ROUTECAP_LOST (see routecap_step_poll); ROUTECAP_PENDING (timeout);
 *         ROUTECAP_ERR_UNKNOWN_STEP (never issued). In checked mode also the error of a mistake
 *         that the device found; the step has landed nevertheless.
 * @thread(any) @waits
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_step_finalize(routecap_capturer *capturer, routecap_step step, int64_t timeout_ns,
                       uint64_t *conflicting);

/* ================================================================================================
 * Memory and backends
 * ============================================================================================== */

/*
 * The memory that a capturer with a given configuration needs.
 *
 * For example, with 48 layers and 8 of 128 experts a row takes 390 bytes, and a page of 128 rows,
 * with room for their tags, 51,072 bytes. A request of 4,096 tokens takes 32 pages of the budget,
 * 1.6 MB. A request of 10 tokens takes one page. 256 requests of 4,096 tokens take 418 MB, so the
 * default budget of 1 GiB has room for 657 of them.
 */
typedef struct routecap_memory {
    uint32_t struct_size;
    uint32_t page_rows;       /* rows in one page */
    uint64_t device_bytes;    /* device memory, allocated at create */
    uint64_t pinned_bytes;    /* page-locked host memory, allocated at create */
    uint64_t host_bytes;      /* other host memory, allocated at create, rounded up */
    uint64_t row_bytes;       /* of one captured row: ids, validity, and weights if captured */
    uint64_t page_bytes;      /* of one page, the unit in which requests take from the budget: its
                                 rows, and 8 bytes for the tag of each */
    uint64_t request_bytes;   /* of one open request before its first row, outside the budget */
} routecap_memory;

/**
 * Tell how much memory a capturer with a given configuration needs, without creating it.
 *
 * The call asks neither the driver nor a device. You can call it before a fork, and without a
 * device.
 *
 * @param[in] config   The configuration.
 * @param[out] memory  The sizes, in bytes.
 * @return ROUTECAP_OK; ROUTECAP_ERR_NO_BACKEND (unknown, or not in this build).
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_config_memory(const routecap_config *config, routecap_memory *memory);

/* A backend of this build, on this machine. */
typedef struct routecap_backend {
    uint32_t struct_size;
    int32_t available;   /* 1: a capturer can be created on it; 0: it cannot, and detail says why */
    int32_t devices;     /* number of devices; 0 on the host backend */
    int32_t reserved;    /* 0 */
    const char *detail;  /* one line, static storage */
} routecap_backend;

/**
 * Describe a backend of this build on this machine.
 *
 * @param[in] backend  ROUTECAP_BACKEND_*. One that this library does not know is not available.
 * @param[out] info    The description.
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_backend_info(routecap_backend_kind backend, routecap_backend *info);

/* ================================================================================================
 * Counters and progress
 * ============================================================================================== */

/*
 * The counters of a capturer, since it was created. The fields are read one after another while the
 * capturer runs. No row is counted as landed before it is counted as issued.
 */
typedef struct routecap_stats {
    uint32_t struct_size;
    uint32_t silent_layers; /* @after(steps_issued): layers without a valid cell in the last step
                               that landed with rows */
    /* Steps. */
    uint64_t steps_issued; /* @counted: lost ones included */
    uint64_t steps_landed; /* @after(steps_issued): lost ones included */
    uint64_t steps_lost;   /* @after(steps_issued): too many were in flight, the copy failed, or the
                              rows did not arrive */
    /* Rows in the spans of issue, except those of unknown requests. Each row is in exactly one of
     * the counts from rows_in_flight to rows_refused. */
    uint64_t rows_issued;      /* @after(steps_issued) */
    uint64_t rows_in_flight;   /* @after(rows_issued) */
    uint64_t rows_provisional; /* @after(rows_issued): drafts that have landed and wait for
                                  accept */
    uint64_t rows_delivered;   /* @after(rows_issued): landed with at least one valid cell */
    uint64_t rows_missing;     /* @after(rows_issued): landed without a valid cell */
    uint64_t rows_lost;        /* @after(rows_issued): of a lost step */
    uint64_t rows_late;        /* @after(rows_issued): cut by close or truncate, or by `rows` of
                                  finish, while in flight or provisional. A cut draft counts here if
                                  accept kept it, if close dropped it, or if truncate cut it and
                                  finish dropped it */
    uint64_t rows_rejected;    /* @after(rows_issued): drafts that accept did not keep, cut or not;
                                  and drafts that finish dropped unsettled, unless truncate had cut
                                  them */
    uint64_t rows_unplaced;    /* @after(rows_issued): their device position was outside the span's
                                  bounds */
    uint64_t rows_refused;     /* @after(rows_issued): there was no memory for them */
    /* Other counts. */
    uint64_t rows_skipped;       /* @after(steps_issued): in spans of unknown requests */
    uint64_t rows_shared;        /* @after(rows_issued): of spans whose sink row another span of the
                                    step has too; see ROUTECAP_SPAN_SHARED */
    uint64_t rows_overlapped;    /* @after(rows_issued): delivered with a valid cell where the
                                    request already had one */
    uint64_t rows_mismatched;    /* @after(rows_issued): rows of rows_overlapped with different sets
                                    of ids in a cell that is valid in both; needs
                                    ROUTECAP_CONFIG_COMPARE */
    uint64_t rows_dropped;       /* @after(steps_issued): recorded rows outside the rows that were
                                    begun, of steps that landed */
    uint64_t cells_conflicting;  /* @after(steps_issued): recorded twice in one step, of steps that
                                    landed; one of the two records was kept */
    uint64_t cells_unwritten;    /* @computed: cells of landed rows that their step did not write,
                                    or not completely. Late and unplaced rows are not counted */
    uint64_t cells_out_of_range; /* @computed: likewise, with the reason OUT_OF_RANGE (reading.h) */
    uint64_t cells_duplicate;    /* @computed: likewise, with the same id twice */
    /* Now. */
    uint64_t requests_open;   /* @computed */
    uint64_t steps_in_flight; /* @computed */
    uint64_t bytes_in_use;    /* @computed: of the budget: pages of requests and routings,
                                 provisional rows, and the charges of spans in flight */
    uint64_t bytes_peak;      /* @computed: the highest bytes_in_use so far. It includes memory that
                                 an issue reserved and gave back at once, such as for a page that
                                 two of its spans share */
    uint64_t bytes_budget;    /* @computed: the limit of bytes_in_use, except for the excess that
                                 routecap_step_issue describes */
} routecap_stats;

/*
 * The counters of one layer, since the capturer was created. A cell is that layer's part of a
 * landed row. Late and unplaced rows are not counted.
 */
typedef struct routecap_layer_stats {
    uint64_t rows_written; /* cells that are valid */
    uint64_t unwritten;    /* cells that their step did not write, or not completely */
    uint64_t out_of_range; /* cells with the reason OUT_OF_RANGE (reading.h) */
    uint64_t duplicate;    /* cells with the same id twice */
    uint64_t silent_steps; /* steps that landed with rows, none of which this layer wrote */
} routecap_layer_stats;

/**
 * Read the counters.
 *
 * @param[in] capturer  The capturer.
 * @param[out] stats    The counters.
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_capturer_stats(const routecap_capturer *capturer, routecap_stats *stats);

/**
 * Read the counters of layers 0 to count-1.
 *
 * @param[in] capturer   The capturer.
 * @param[out] stats     [count] elements of stat_size bytes.
 * @param[in] stat_size  sizeof(routecap_layer_stats) of the caller, in bytes.
 * @param[in] count      How many layers: at most routecap_config.layers.
 * @return ROUTECAP_OK; ROUTECAP_ERR_UNKNOWN_LAYER (layers beyond routecap_config.layers).
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_capturer_layer_stats(const routecap_capturer *capturer, routecap_layer_stats *stats,
                              size_t stat_size, size_t count);

/**
 * File the steps that the device has finished, on this thread.
 *
 * With ROUTECAP_CONFIG_MANUAL_PROGRESS this call does all the work of the worker thread. Use it in
 * processes that allow no threads, and in tests. Calls that wait also file steps. Calls that read
 * do not file steps, and do not carry out queued changes. So a reader sees new rows and changes of
 * a request only after progress or a wait: routecap_routing_poll of a request that was finished
 * returns ROUTECAP_PENDING until then, even if none of its rows was in flight, and
 * routecap_step_poll may return ROUTECAP_LOST of a step whose rows are still in flight for
 * routecap_request_extract.
 *
 * Any thread may call it. One call runs at a time, and others wait for it. It does not wait for the
 * device. Without ROUTECAP_CONFIG_MANUAL_PROGRESS it does nothing.
 *
 * @param[in] capturer  The capturer.
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_capturer_progress(routecap_capturer *capturer);

#ifdef __cplusplus
}
#endif

#endif /* ROUTECAP_CAPTURE_H */

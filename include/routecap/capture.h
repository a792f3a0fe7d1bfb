/*
 * routecap: the capturer and its steps.
 */
#ifndef ROUTECAP_CAPTURE_H
#define ROUTECAP_CAPTURE_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ================================================================================================
 * Configuration and capturer
 * ============================================================================================== */

/* Flags of routecap_config. */
#define ROUTECAP_CONFIG_COMPARE 1u         /* compare rows that are issued again with what is kept: stats.rows_mismatched */
#define ROUTECAP_CONFIG_EXTERNAL_SINK 2u   /* allocate no sink: every layer that is used gets its own by routecap_sink_bind */
#define ROUTECAP_CONFIG_MANUAL_PROGRESS 4u /* start no thread: steps land inside routecap_capturer_progress */
#define ROUTECAP_CONFIG_MAY_LOSE 8u        /* host backend: begin files nothing; a step without a free slot is lost, as on a device */
#define ROUTECAP_CONFIG_CHECKED 16u        /* report slips of the protocol as errors; see below */

/*
 * Checked mode, for development and tests: ROUTECAP_CONFIG_CHECKED, or ROUTECAP_CHECKED=1 in the
 * environment when a capturer is created. A slip that is otherwise forgiven is an error:
 *
 *   ROUTECAP_ERR_NOT_BEGUN, _NOT_SNAPSHOT, _SNAPSHOT_TWICE, _ISSUED_TWICE, _ROWS_NOT_BEGUN
 *       At the call that makes it, which changes nothing. Where only the device can see it (graphs
 *       that are replayed, a row base or an index list on the device), routecap_step_finalize of that
 *       step returns it once the step has landed, and the next issue after that returns it once,
 *       with nothing changed: the text names the step. Rows are what they are without checked mode.
 *   ROUTECAP_ERR_TWO_THREADS
 *       At the call that finds another thread in a call of the forward path of this capturer.
 *   ROUTECAP_ERR_ARGUMENT
 *       On a device: ids, a table or another [device] argument that is no memory of the device.
 *
 * Without the flag it costs a branch a call.
 */

typedef struct routecap_config {
    uint32_t struct_size;
    int32_t backend;     /* ROUTECAP_BACKEND_*. Required: 0 or less is ROUTECAP_ERR_ARGUMENT, unknown ones ROUTECAP_ERR_NO_BACKEND */
    int32_t role;        /* ROUTECAP_ROLE_* */
    int32_t device;      /* ordinal, 0 or more; ignored by the host backend */
    uint32_t layers;     /* captured (MoE) layers, 1..ROUTECAP_MAX_LAYERS. Required */
    uint32_t k;          /* experts per token, 1..ROUTECAP_MAX_K. Required */
    uint32_t experts;    /* ids are in [0, experts), zero experts included; k..ROUTECAP_MAX_EXPERTS. Required unless layer_experts is set */
    uint32_t rows;       /* sink rows: the most tokens of one forward pass, padding included; 1..ROUTECAP_MAX_ROWS. Required */
    uint32_t slots;      /* each holds one step in flight, 1..ROUTECAP_MAX_SLOTS; default 4; see routecap_step_issue */
    int32_t sink_dtype;  /* of the library's sink: I16 (default), I32 or I64 */
    uint32_t flags;      /* ROUTECAP_CONFIG_* */
    int32_t id_space;    /* ROUTECAP_ID_SPACE_*: what the recorded ids are; travels with every routing */
    uint32_t max_requests; /* open at a time; default 65536, at most 16777216 */
    uint32_t reserved;     /* 0 */
    uint64_t budget_bytes; /* upper limit of the memory for captured rows, routings included; default 1 GiB; at least one page (routecap_memory) */
    const int32_t *layer_map;      /* [layers] index of each captured layer in the decoder, strictly ascending; default 0..layers-1 */
    const uint32_t *layer_experts; /* [layers] experts of each layer where they differ; default `experts` for all */
    const int32_t *layer_provenance; /* [layers] ROUTECAP_PROVENANCE_*; default CAPTURED for all. RECOMPUTED: the layer may be routed */
} routecap_config;

/* Memory that a capturer of some configuration needs. */
typedef struct routecap_memory {
    uint32_t struct_size;
    uint32_t page_rows;       /* rows in one page */
    uint64_t device_bytes;    /* allocated at create */
    uint64_t pinned_bytes;    /* allocated at create: page-locked host memory */
    uint64_t host_bytes;      /* allocated at create: other host memory, rounded up */
    uint64_t row_bytes;       /* of one captured row: ids and validity */
    uint64_t page_bytes;      /* of one page, the unit in which requests take memory from the budget */
    uint64_t request_bytes;   /* of one open request before its first row, outside the budget */
    uint64_t tag_bytes;       /* what a page takes besides, from the budget, once two of its rows have different tags */
} routecap_memory;

/* What the capturer saw since it was created. Fields are read one after another while it runs; no row is counted as landed before it is issued. */
typedef struct routecap_stats {
    uint32_t struct_size;
    uint32_t silent_layers; /* layers without one valid cell in the last step that landed with rows */
    /* Steps. */
    uint64_t steps_issued; /* lost ones included */
    uint64_t steps_landed; /* lost ones included */
    uint64_t steps_lost;   /* no slot was free, or the copy failed */
    /* Rows of the spans that issue was given, those of unknown requests apart. Each is in one of the nine counts that follow. */
    uint64_t rows_issued;
    uint64_t rows_in_flight;
    uint64_t rows_provisional; /* landed, speculative, not settled */
    uint64_t rows_delivered;   /* filed with at least one valid cell */
    uint64_t rows_missing;     /* landed without a valid cell */
    uint64_t rows_lost;        /* in a lost step */
    uint64_t rows_late;        /* landed after their request was closed; or cut, before or after they landed as drafts */
    uint64_t rows_rejected;    /* speculative and not accepted, whether or not a later call cut them too */
    uint64_t rows_unplaced;    /* their position, read from the device, was outside the span's bounds */
    uint64_t rows_refused;     /* for memory */
    /* Other counts. */
    uint64_t rows_skipped;       /* in spans of unknown requests */
    uint64_t rows_overlapped;    /* delivered with a valid cell where one was */
    uint64_t rows_mismatched;    /* of those, with another set of ids in a cell valid in both; needs ROUTECAP_CONFIG_COMPARE */
    uint64_t rows_dropped;       /* recorded rows outside the rows begun, of steps that landed */
    uint64_t cells_conflicting;  /* recorded again within one step, of steps that landed; the first was kept */
    uint64_t cells_unwritten;    /* missing cells of landed rows, but for late and unplaced ones: not, or not completely, written in their step */
    uint64_t cells_out_of_range; /* likewise: an id outside the layer's range */
    uint64_t cells_duplicate;    /* likewise: one id twice */
    /* Now. */
    uint64_t requests_open;
    uint64_t steps_in_flight;
    uint64_t bytes_in_use; /* of the budget: pages of requests and routings, their tags, provisional rows, and what is promised to rows issued */
    uint64_t bytes_peak;   /* with what a step asked for and gave back at once: a page that two of its spans share */
    uint64_t bytes_budget;
} routecap_stats;

/* The same for one layer. Late and unplaced rows are not looked at. */
typedef struct routecap_layer_stats {
    uint64_t rows_written; /* valid cells that landed */
    uint64_t unwritten;
    uint64_t out_of_range;
    uint64_t duplicate;
    uint64_t silent_steps; /* steps that landed with rows, none of which this layer wrote */
} routecap_layer_stats;

/* What this build and machine can do. */
typedef struct routecap_backend {
    uint32_t struct_size;
    int32_t available;   /* 1: a capturer on this backend can be created; 0: detail says why not */
    int32_t devices;     /* how many, 0 on the host backend */
    int32_t reserved;    /* 0 */
    const char *detail;  /* one line, static storage */
} routecap_backend;

/**
 * Describe a backend of this build on this machine.
 *
 * @param backend  ROUTECAP_BACKEND_*. One that this library does not know is not available.
 * @param info     Filled.
 */
ROUTECAP_API int32_t routecap_backend_info(int32_t backend, routecap_backend *info);

/**
 * Fill a configuration with the defaults; `layers`, `k`, `experts` and `rows` remain to be set.
 *
 * @param config       Filled.
 * @param struct_size  sizeof(routecap_config) of the caller.
 */
ROUTECAP_API int32_t routecap_config_init(routecap_config *config, size_t struct_size);

/**
 * Say how much memory a capturer of this configuration needs, without creating it.
 *
 * It asks neither the driver nor a device: it can be called before a fork, and where there is no
 * device. Errors as routecap_capturer_create, as far as configuration and build tell them:
 * ROUTECAP_ERR_ARGUMENT, ROUTECAP_ERR_NO_BACKEND (unknown, or not in this build).
 */
ROUTECAP_API int32_t routecap_config_memory(const routecap_config *config, routecap_memory *memory);

/**
 * Create a capturer: all memory of the device and all page-locked memory is allocated here, none of it later on the forward path.
 *
 * Create it before CUDA graphs are captured. Not capturable. Starts one worker thread unless ROUTECAP_CONFIG_MANUAL_PROGRESS is set.
 *
 * A disabled capturer is its own handle and nothing else; of its configuration only `role` is looked at. Every function returns at once:
 * those that give out rows (coverage, extract, finish, and their batches) with ROUTECAP_ERR_DISABLED, all others with ROUTECAP_OK, handles
 * and counts 0. A mirror works on the forward path: up to the snapshot all calls do what they do on its owner, so that graphs are the same on
 * all ranks. From issue on it is like a disabled capturer.
 *
 * @param config    The arrays it points to are copied.
 * @param capturer  Receives the capturer, to be passed to routecap_capturer_destroy; NULL on error.
 * @return ROUTECAP_ERR_NO_BACKEND: unknown, not in this build or not usable on this machine; ROUTECAP_ERR_DRIVER_TOO_OLD; ROUTECAP_ERR_DEVICE,
 *         ROUTECAP_ERR_DEVICE_LOST; ROUTECAP_ERR_THREAD.
 */
ROUTECAP_API int32_t routecap_capturer_create(const routecap_config *config, routecap_capturer **capturer);

/**
 * Destroy a capturer. NULL is allowed.
 *
 * Waits until all steps issued so far have landed; after it returns the library touches no memory of the engine. Routings stay valid, and
 * those of routecap_request_finish are ready, even where there is no memory left to hand their rows over: those rows are missing then. Threads
 * that wait for a routing may go on waiting meanwhile. In a forked child it does nothing.
 */
ROUTECAP_API void routecap_capturer_destroy(routecap_capturer *capturer);

/**
 * Read the counters. Does not wait.
 */
ROUTECAP_API int32_t routecap_capturer_stats(const routecap_capturer *capturer, routecap_stats *stats);

/**
 * Read the counters of every layer. Does not wait.
 *
 * @param stats      [count], filled for layers 0..count-1.
 * @param stat_size  sizeof(routecap_layer_stats) of the caller.
 * @param count      At most the capturer's layers (ROUTECAP_ERR_UNKNOWN_LAYER otherwise).
 */
ROUTECAP_API int32_t routecap_capturer_layer_stats(const routecap_capturer *capturer, routecap_layer_stats *stats, size_t stat_size,
                                                   size_t count);

/**
 * File the steps that have landed, on this thread: the whole work of the worker thread that a capturer with ROUTECAP_CONFIG_MANUAL_PROGRESS
 * does not have, for processes that allow no threads, and for tests. The calls that wait make progress themselves; reading does not, and
 * finds changes of a request only after it.
 *
 * Does not wait for the device. From any thread, one at a time (others wait for it). Without that flag it does nothing.
 */
ROUTECAP_API int32_t routecap_capturer_progress(routecap_capturer *capturer);

/* ================================================================================================
 * Steps
 * ============================================================================================== */

/* Flags of routecap_span. They may be combined. */
#define ROUTECAP_SPAN_SPECULATIVE 1u      /* draft tokens: provisional until routecap_request_accept */
#define ROUTECAP_SPAN_DEVICE_POSITIONS 2u /* positions, within [position, position_end), come from routecap_issue_options.positions */

/* Sink rows of one step that belong to one request. */
typedef struct routecap_span {
    routecap_request request;
    uint64_t position;     /* row index, in the request, of the first row; the others follow. Not a rotary position */
    uint64_t position_end; /* with DEVICE_POSITIONS: one past the highest position; rows outside the bounds are dropped. Otherwise 0 */
    uint32_t sink_row;     /* of the first row */
    uint32_t rows;         /* >= 1 */
    uint32_t flags;        /* ROUTECAP_SPAN_* */
    uint32_t reserved;     /* 0 */
} routecap_span;

#define ROUTECAP_SNAPSHOT_TAKEN 0 /* the forward took its snapshot */
#define ROUTECAP_SNAPSHOT_MAKE 1  /* issue takes it */

typedef struct routecap_issue_options {
    uint32_t struct_size;
    int32_t snapshot;         /* ROUTECAP_SNAPSHOT_* */
    uint64_t tag;             /* kept with every row of the step: a weight version, for instance */
    const void *positions;    /* [device] the position of each sink row, up to the last that a span with DEVICE_POSITIONS names */
    int32_t positions_dtype;  /* I32 or I64, where positions is set */
    uint32_t reserved;        /* 0 */
} routecap_issue_options;

/**
 * Begin a step: forget what the sink holds and expect up to `rows` rows, sink rows 0..rows-1, from this forward pass.
 *
 * Belongs at the head of the forward pass, before the first write and before streams of micro-batches fork. It may be made on a stream of
 * its own that is forked from the engine's and joined before the first write. Rows that are not begun are missing. A begin after a forward
 * that was never issued discards that forward.
 *
 * On the host backend, where all slots hold steps in flight, begin files the oldest of them on the
 * calling thread: nothing is lost there, also with ROUTECAP_CONFIG_MANUAL_PROGRESS. That takes as
 * long as copying that step's rows does. If the worker thread is filing it already, begin waits for
 * that instead. It never waits for whoever reads or waits. ROUTECAP_CONFIG_MAY_LOSE turns it off.
 *
 * Capturable. Does not block otherwise.
 *
 * @param rows  At most the capturer's rows (ROUTECAP_ERR_CAPACITY otherwise). May exceed the rows that spans will name later.
 */
ROUTECAP_API int32_t routecap_step_begin(routecap_capturer *capturer, uint32_t rows, routecap_stream stream);

/**
 * Take a snapshot of the rows begun, so that the next forward may write the sink.
 *
 * Belongs behind the last write of the forward pass, on a stream that has joined all writers. It reads the sink and never writes it. A
 * second snapshot of one step makes its rows missing. In a graph what follows on the stream does not wait for it, only the graph's end and
 * the next begin do: put it behind the last router and it costs next to nothing; but write the sink again only after another begin.
 *
 * Capturable. Does not block. On the host backend the rows are copied before the call returns.
 */
ROUTECAP_API int32_t routecap_step_snapshot(routecap_capturer *capturer, routecap_stream stream);

/**
 * Hand the last forward pass to the library: say which of its rows belong to which request. They will be filed in the
 * background, in order of issue; the ticket refers to the step from now on.
 *
 * Call it after the forward, on a stream that is ordered behind it, and before anything that begins another. Sink rows that no span names are
 * forgotten. Several spans may name one sink row (one token in several sequences). One request may have several spans: those with positions
 * known to the host must not overlap unless they are speculative (trees). With no spans at all the step has landed at once.
 *
 * A span of an unknown or closed request, or one that could need more memory than the budget has,
 * is skipped and counted; the others are not affected, and the call returns ROUTECAP_PARTIAL.
 * Positions refused for memory count for the request's length: they are missing (REFUSED).
 *
 * Memory. A span is accepted if the budget has all that its rows could need: new pages, a copy of
 * each page that it shares with a routing or another request, the tags of a page whose rows get a
 * second tag, and for wide bounds of device positions a page for each row. What turns out not to be
 * needed goes back when the step is filed. Rows that were accepted are refused later only where the
 * system itself has no memory left: they are then missing (REFUSED), and counted. What close,
 * truncate, take and finish have freed can be used at once: where the budget is exhausted, issue
 * applies those calls itself, as far as no step in flight still needs the memory, before it refuses
 * a span.
 *
 * Slots. Each forward fills one slot, which is free again once its step was filed. If none is free,
 * the step is lost: it has a ticket and has landed, all its rows are missing (LOST), and the call
 * returns ROUTECAP_LOST. When the slot is chosen depends on who makes the begin:
 *   - begin is called for this forward (eager): begin chooses. To lose no step, have at most
 *     slots - 1 steps in flight when you call begin. On the host backend nothing is ever lost.
 *   - begin is replayed as part of a graph: the issue or discard before it has chosen. To lose no
 *     step, have at most slots - 2 steps in flight when you call issue, so that one slot is left for
 *     the forward that follows. If an issue found none, the forward after it is lost, whatever has
 *     landed meanwhile, unless routecap_step_discard is called before it, which chooses again.
 *
 * Not capturable. Does not block otherwise. Takes memory from the system only to grow buffers that
 * it keeps.
 *
 * @param spans      [count] of span_size bytes each; may be NULL if count is 0.
 * @param span_size  sizeof(routecap_span) of the caller.
 * @param options    NULL: the forward took its snapshot, tag 0.
 * @param status     [count] receives for each span ROUTECAP_OK, ROUTECAP_ERR_UNKNOWN_REQUEST or ROUTECAP_ERR_NO_MEMORY; may be NULL.
 * @param step       Receives the ticket; may be NULL. 0 on error.
 * @return ROUTECAP_PARTIAL; ROUTECAP_LOST (also where spans were skipped); and with nothing changed, the step neither issued nor discarded:
 *         ROUTECAP_ERR_ARGUMENT (a span without rows, unknown flags, positions beyond ROUTECAP_MAX_POSITION, empty bounds, no positions where a span
 *         needs them); ROUTECAP_ERR_CAPACITY (sink rows outside the sink); ROUTECAP_ERR_OVERLAP; ROUTECAP_ERR_DTYPE (positions).
 */
ROUTECAP_API int32_t routecap_step_issue(routecap_capturer *capturer, const routecap_span *spans, size_t span_size, size_t count,
                                         const routecap_issue_options *options, int32_t *status, routecap_step *step, routecap_stream stream);

/**
 * Forget the last forward pass: for warm-up, profiling and dummy runs that will not be issued. The next begin does the same.
 *
 * Not capturable. Does not block.
 */
ROUTECAP_API int32_t routecap_step_discard(routecap_capturer *capturer, routecap_stream stream);

/**
 * Whether a step has landed, that is, whether its rows can be read.
 *
 * @return ROUTECAP_OK; ROUTECAP_LOST (landed, and lost; known for the last 1024 steps, ROUTECAP_OK before; the text says why: no slot was free,
 *         or the call of the driver that failed); ROUTECAP_PENDING;
 *         ROUTECAP_ERR_UNKNOWN_STEP (never issued).
 */
ROUTECAP_API int32_t routecap_step_poll(routecap_capturer *capturer, routecap_step step);

/**
 * Wait until a step has landed.
 *
 * Waits. With ROUTECAP_CONFIG_MANUAL_PROGRESS it files what has landed itself.
 *
 * @param timeout_ns   Nanoseconds; 0 looks once; negative waits without limit.
 * @param conflicting  Receives how many cells of the step were recorded twice (known for the last 1024 steps, 0 before); may be NULL.
 * @return ROUTECAP_OK; ROUTECAP_LOST; ROUTECAP_PENDING (timeout); ROUTECAP_ERR_UNKNOWN_STEP (never issued). In checked mode also the slips that
 *         the device found in this step, which has landed all the same.
 */
ROUTECAP_API int32_t routecap_step_finalize(routecap_capturer *capturer, routecap_step step, int64_t timeout_ns, uint64_t *conflicting);

#ifdef __cplusplus
}
#endif

#endif /* ROUTECAP_CAPTURE_H */

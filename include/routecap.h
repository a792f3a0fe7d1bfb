/*
 * routecap: which experts every token was sent to, in every layer of a mixture-of-experts model,
 * captured from any inference engine.
 *
 * Copyright 2026 The routecap authors. Licensed under the Apache License, Version 2.0; see LICENSE.
 *
 * ------------------------------------------------------------------------------------------------
 * What it is
 * ------------------------------------------------------------------------------------------------
 * A mixture-of-experts (MoE) engine decides, for every token and every MoE layer, which K of E experts run. routecap keeps those
 * decisions, row by row and request by request, beside a running engine, and hands them out as immutable routings.
 *
 *   capturer   one per rank and device: owns the sink, the slots, the pages and the requests below
 *   layer      index 0..layers-1 among the captured (MoE) layers; the layer map gives each its decoder layer's index
 *   expert id  id in [0, experts) as the router chose it: before load-balancing replicas, without shared-expert columns, with zero experts
 *   sink       buffer (layers, rows, k) into which a forward pass writes its expert ids; its addresses never change
 *   step       one forward pass: begin, writes, snapshot, issue. The ticket that issue returns names it
 *   span       a run of sink rows of one step that belong to one request, at consecutive positions
 *   row        the k ids of every layer for one input token. Row i of a request is the routing when token i was *input*, so a sequence
 *              of S tokens has S-1 rows (S if the last token was itself forwarded, as in prefill-only work)
 *   request    a sequence being captured, named by a 64-bit handle; a stale handle is an error, never another request's rows
 *   routing    rows that were read out: immutable, reference-counted, owned by the caller; outlives request and capturer
 *   cell       one row in one layer. It is valid only if that layer wrote k distinct ids in range for that row in that step; validity is
 *              kept beside the ids, because every id value is an ordinary expert
 *   slot       memory that holds the rows of one step while it is in flight
 *   filed      rows that were put with their request: kept, or counted as missing. A step whose rows are filed has landed: they can be read
 *   settled    rows that are no draft, or whose draft was accepted; drafts that wait for that are provisional
 *   page       the unit in which memory for filed rows is taken from the budget; requests and routings share pages
 *   tag        a number of the caller's for each step, kept with its rows: a weight version, for instance
 *
 * One forward pass after another, in the engine's worker loop:
 *
 *     routecap_config config;                                      // once
 *     routecap_config_init(&config, sizeof config);
 *     config.backend = ROUTECAP_BACKEND_CUDA;
 *     config.layers = 58; config.k = 8; config.experts = 256; config.rows = 8192;
 *     routecap_capturer_create(&config, &capturer);
 *
 *     routecap_request_open(capturer, NULL, &request, 1);          // every sequence
 *
 *     routecap_step_begin(capturer, rows, stream);                 // every forward pass; these three may be part of a CUDA graph
 *     for each MoE layer l:  router; routecap_layer_record(capturer, l, &ids, stream);
 *     routecap_step_snapshot(capturer, stream);
 *     routecap_step_issue(capturer, spans, sizeof *spans, n, NULL, NULL, &step, stream);    // which row was whose
 *
 *     routecap_request_finish(capturer, request, tokens - 1, &routing);                     // the last token was never input
 *     routecap_routing_wait(routing, timeout_ns);                                           // on any thread, later
 *     routecap_routing_view(routing, &view); ...  routecap_routing_free(routing);
 *
 * Forget one of these calls and rows are missing and reported as missing; they are never wrong.
 *
 * The load of experts, for an operator: open a request for each step that is to be counted, one span with all its rows, finish it, and count the
 * ids of its view.
 *
 * ------------------------------------------------------------------------------------------------
 * Threads, waiting, ownership, streams
 * ------------------------------------------------------------------------------------------------
 * Threads. The functions that take a stream, and those of the sink, are called by one thread at a time per capturer. All others may be
 * called from any thread at any time, also while steps are in flight, except that nothing may run during or after
 * routecap_capturer_destroy of the same capturer. Routings may be used from all threads at once, also during destroy; each reference is freed
 * once. Each call takes effect at one instant between its start and its return: a span whose request ends concurrently is either filed or
 * skipped; of two concurrent calls that end a request, one finds it gone.
 *
 * Waiting. routecap_step_finalize, routecap_routing_wait, routecap_capturer_probe and
 * routecap_capturer_destroy wait for work in flight. No other call waits for a step or for the
 * device. No lock is held while the driver is called, while memory is allocated or while a release
 * callback runs, so a stall there holds up the calling thread only. Three calls may do work of the
 * worker thread themselves, and wait for that thread to finish the step it is filing:
 *   begin on the host backend, where no slot is free (see routecap_step_begin);
 *   issue, where the budget is exhausted (see routecap_step_issue);
 *   capturer_progress.
 * Reading a request (coverage, extract, extract_into) waits up to 100 ms for the worker thread to
 * apply an earlier accept, truncate, fork or attach of the same request whose steps have landed.
 * After that it returns ROUTECAP_ERR_NOT_READY.
 *
 * Ownership. Arguments are read before the call returns and belong to the caller; device arguments (below) are the exception. A capturer,
 * and each reference to a routing, belongs to the caller until destroyed or freed. Pointers found in a view belong to its routing. Every
 * pointer is aligned to the type it points to, also where that is void and a dtype says it. On error every output that is a handle is set to 0 or
 * NULL, and other outputs are left alone.
 *
 * Forks. In a child process that was forked after a capturer or a routing was made, it cannot be used (ROUTECAP_ERR_FORKED), and destroying or
 * freeing it does nothing. Serialised bytes can: deserialise them there.
 *
 * Streams. A stream is what CUDA calls cudaStream_t or CUstream; no CUDA header is needed here. The host backend has no streams: pass NULL,
 * anything else is ROUTECAP_ERR_ARGUMENT. A call marked "capturable" may be made on a stream that is being captured into a CUDA graph, and
 * then runs at each replay. Work runs in the order of the stream; order among streams is the caller's, but for one thing: when a step
 * begins on another stream than the last one was issued on, outside a capture, it waits for that issue. Streams belong to the capturer's
 * device and to its primary context, as all do that the CUDA runtime or PyTorch made; 0 is the legacy default stream, 2 the per-thread one. No call
 * changes what context is current on the thread.
 *
 * A call that is not capturable returns ROUTECAP_ERR_CAPTURING on a stream that is being captured, and the capture goes on. Graphs keep
 * what they write alive: they may be replayed after the capturer's end. Every call that takes a stream may return ROUTECAP_ERR_DEVICE or
 * ROUTECAP_ERR_DEVICE_LOST.
 *
 * Device arguments are marked [device]: pointers to memory that the stream's work can read (plain host memory on the host backend). They are
 * read only when the stream reaches the call's work, and must stay valid until then (host backend: until the call returns).
 *
 * ------------------------------------------------------------------------------------------------
 * The ABI
 * ------------------------------------------------------------------------------------------------
 * A program built against 1.x runs with every later 1.y: functions, statuses, flags and constants are only added, structs and the function table
 * only grow at their end. An experimental function keeps its name and signature too, but may cease to work: it then returns an error, and another
 * is there for what it did.
 *
 * So a program may meet what it does not know: a status (its sign says what it is), a reason, a provenance, an id space, a dtype, a bit of a probe,
 * one more outcome of a row in the stats. Where the caller's struct has no room for what is new and the rest would be misunderstood without it, the
 * call returns an error.
 *
 * Every struct begins with struct_size, which the caller sets to its sizeof; array arguments pass the size of one element instead. A struct
 * without an _init function begins as zeros. Of a struct that the caller fills, a smaller one of an older caller is accepted, down to what it was
 * in 1.0, and a larger one of a newer caller if what this library does not know is zero (ROUTECAP_ERR_STRUCT_SIZE otherwise, and beyond 65536
 * bytes, which no struct will have); zero in a field means its default, but in routecap_copy_options.fill. Of a struct that the library fills
 * only struct_size is read; it is filled up to that size, with zeros where this library knows nothing.
 *
 * Statuses are int32_t: 0 is success, positive is partial success with all outputs delivered (none
 * are with ROUTECAP_PENDING), negative is an error and nothing changed. A call that returns an
 * error, ROUTECAP_INCOMPLETE, ROUTECAP_NOT_CAPTURED, ROUTECAP_PARTIAL or ROUTECAP_LOST leaves one
 * line of text for routecap_last_error. Unless a function says otherwise it may also return, and
 * its own list does not repeat: ROUTECAP_ERR_ARGUMENT (NULL where not allowed, a value outside its
 * documented set, a reserved field that is not 0), ROUTECAP_ERR_STRUCT_SIZE,
 * ROUTECAP_ERR_NO_MEMORY, ROUTECAP_ERR_FORKED and ROUTECAP_ERR_INTERNAL.
 */
#ifndef ROUTECAP_H
#define ROUTECAP_H

#include <stddef.h>
#include <stdint.h>

#if UINTPTR_MAX < 0xFFFFFFFFFFFFFFFFu
#error "routecap needs 64-bit pointers"
#endif

#ifndef ROUTECAP_API
#if defined(__GNUC__) || defined(__clang__)
#define ROUTECAP_API __attribute__((visibility("default")))
#else
#define ROUTECAP_API
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ================================================================================================
 * Version
 * ============================================================================================== */

#define ROUTECAP_VERSION_MAJOR 1
#define ROUTECAP_VERSION_MINOR 0
#define ROUTECAP_VERSION_PATCH 0

/**
 * The version of the loaded library: major * 10000 + minor * 100 + patch. Never fails.
 */
ROUTECAP_API uint32_t routecap_version(void);

/* ================================================================================================
 * Statuses
 * ============================================================================================== */

#define ROUTECAP_OK 0

/* Partial success: outputs are delivered. */
#define ROUTECAP_INCOMPLETE 1   /* some cells of the result are missing; coverage names them */
#define ROUTECAP_LOST 2         /* the step has a ticket, but all its rows are missing: no slot was free, or its copy failed */
#define ROUTECAP_PENDING 3      /* not landed yet */
#define ROUTECAP_PARTIAL 4      /* some items of an array were refused: see the status of each */
#define ROUTECAP_NOT_CAPTURED 5 /* there are rows, but not one cell of them is valid */

/* An argument is wrong. */
#define ROUTECAP_ERR_ARGUMENT (-100)
#define ROUTECAP_ERR_STRUCT_SIZE (-101)      /* too small, or larger with a non-zero tail */
#define ROUTECAP_ERR_UNKNOWN_LAYER (-102)    /* outside the capturer's layers */
#define ROUTECAP_ERR_UNKNOWN_REQUEST (-103)  /* never opened here, closed or finished */
#define ROUTECAP_ERR_UNKNOWN_STEP (-104)     /* never issued, or nothing of that step waits for this call */
#define ROUTECAP_ERR_OUT_OF_RANGE (-105)     /* rows or indices that do not exist */
#define ROUTECAP_ERR_CAPACITY (-106)         /* rows outside the sink */
#define ROUTECAP_ERR_OVERLAP (-107)          /* one step, one request, one position twice */
#define ROUTECAP_ERR_DTYPE (-108)            /* unknown dtype, or ids of this model or the fill do not fit into it */
#define ROUTECAP_ERR_SHAPE_MISMATCH (-109)   /* layers, k, experts or id space differ */
#define ROUTECAP_ERR_BUFFER_TOO_SMALL (-110) /* nothing was written; the needed size is returned */
#define ROUTECAP_ERR_FORMAT (-111)           /* not a serialised routing, damaged, or of a version that this library does not read */

/* The call does not fit the state. */
#define ROUTECAP_ERR_STATE (-200)      /* wrong order of calls */
#define ROUTECAP_ERR_DISABLED (-201)   /* reading from a disabled or mirroring capturer */
#define ROUTECAP_ERR_NOT_READY (-202)  /* some of these rows are in flight */
#define ROUTECAP_ERR_INCOMPLETE (-203) /* strict reading, and cells are missing */
#define ROUTECAP_ERR_CONFLICT (-204)   /* recorded twice in one step, or different ids where equal ones are required */
#define ROUTECAP_ERR_FORKED (-205)     /* called in a child process that was forked after the object was made */
#define ROUTECAP_ERR_CAPTURING (-206)  /* this call cannot be part of a CUDA graph, and the stream is being captured; the capture goes on */
#define ROUTECAP_ERR_RECOMPUTED (-207) /* strict reading, and cells were recomputed from logits */

/* Slips that only a capturer with ROUTECAP_CONFIG_CHECKED reports. Others forgive them: rows are then missing. */
#define ROUTECAP_ERR_NOT_BEGUN (-208)      /* record, route, snapshot or issue, and no step was begun */
#define ROUTECAP_ERR_NOT_SNAPSHOT (-209)   /* issue of a forward that took no snapshot */
#define ROUTECAP_ERR_SNAPSHOT_TWICE (-210) /* a second snapshot of one step */
#define ROUTECAP_ERR_ISSUED_TWICE (-211)   /* a second issue of one forward */
#define ROUTECAP_ERR_ROWS_NOT_BEGUN (-212) /* rows were recorded, or named by a span, at or beyond those begun */
#define ROUTECAP_ERR_TWO_THREADS (-213)    /* two threads are in calls of the forward path at once */

/* A resource is exhausted. */
#define ROUTECAP_ERR_NO_MEMORY (-300) /* the budget, or the system's memory */
#define ROUTECAP_ERR_TOO_MANY_REQUESTS (-301)
#define ROUTECAP_ERR_THREAD (-302) /* the worker thread could not be started */

/* The device. */
#define ROUTECAP_ERR_NO_BACKEND (-400)     /* this build or this machine does not have the backend */
#define ROUTECAP_ERR_DRIVER_TOO_OLD (-401) /* the text says which driver this build needs */
#define ROUTECAP_ERR_DEVICE (-402)         /* a call of the driver failed; the text says which and how */
#define ROUTECAP_ERR_DEVICE_LOST (-403)    /* the device works no more. Final; what has landed can still be read, the rest is missing */

/* A defect of the library. */
#define ROUTECAP_ERR_INTERNAL (-500)

/**
 * The name of a status, "ROUTECAP_ERR_CAPACITY" for instance; "ROUTECAP_STATUS_UNKNOWN" for others. Static storage. Never fails.
 */
ROUTECAP_API const char *routecap_status_name(int32_t status);

/**
 * One line about the last call on this thread that left one (see above); "" if none did.
 *
 * Valid until the next such call on this thread. Read it on the thread that made the call.
 */
ROUTECAP_API const char *routecap_last_error(void);

/* ================================================================================================
 * Types and constants
 * ============================================================================================== */

typedef struct routecap_capturer routecap_capturer;
typedef struct routecap_routing routecap_routing;

/*
 * Names a request of one capturer; other capturers do not know it. 0 is none. No two requests of a
 * process have the same handle, whatever their capturers: a handle that was closed or finished is
 * not given out again.
 */
typedef uint64_t routecap_request;

/* Ticket of a step of one capturer: 1, 2, 3, ... in order of issue. 0 is none. */
typedef uint64_t routecap_step;

/* What CUDA calls cudaStream_t and CUstream. NULL on the host backend. */
struct CUstream_st;
typedef struct CUstream_st *routecap_stream;

/* In a count of rows. Where ROWS_LANDED is allowed, the function says so. */
#define ROUTECAP_ROWS_ALL 0xFFFFFFFFFFFFFFFFull    /* up to the end */
#define ROUTECAP_ROWS_LANDED 0xFFFFFFFFFFFFFFFEull /* up to the first row in flight, or the end: what of a running request can be read now */

/*
 * Limits of this version. Later ones may raise them, but that of positions: size memory by a routing's view, not by these, because a routing may
 * come from a later version.
 */
#define ROUTECAP_MAX_LAYERS 1024
#define ROUTECAP_MAX_K 32
#define ROUTECAP_MAX_EXPERTS 32768
#define ROUTECAP_MAX_ROUTED_EXPERTS 1024       /* of a layer that is routed from logits */
#define ROUTECAP_MAX_GROUPS 32                 /* of its experts */
#define ROUTECAP_MAX_ROWS 1048576              /* sink rows, that is, tokens of one forward pass */
#define ROUTECAP_MAX_RECEIVED 67108864         /* source tokens of one dispatch: its ranks times its tokens_per_rank */
#define ROUTECAP_MAX_SLOTS 64                  /* steps in flight */
#define ROUTECAP_MAX_POSITION 1099511627776ULL /* positions are below 2^40 */

/* Element types of ids: values of dtype fields. */
#define ROUTECAP_DTYPE_U8 1
#define ROUTECAP_DTYPE_I16 2
#define ROUTECAP_DTYPE_U16 3
#define ROUTECAP_DTYPE_I32 4
#define ROUTECAP_DTYPE_U32 5
#define ROUTECAP_DTYPE_I64 6
#define ROUTECAP_DTYPE_ID16_BF16 7 /* 32 bits: id in the upper 16, bfloat16 weight in the lower 16; as a source only */

/* Element types of logits and biases: values of dtype fields. */
#define ROUTECAP_DTYPE_F32 16
#define ROUTECAP_DTYPE_F16 17
#define ROUTECAP_DTYPE_BF16 18

/* Where the sink is. */
#define ROUTECAP_BACKEND_HOST 1
#define ROUTECAP_BACKEND_CUDA 2

/* What a rank does. */
#define ROUTECAP_ROLE_OWNER 0 /* captures */
#define ROUTECAP_ROLE_MIRROR 1 /* tensor-parallel replica: same calls on the forward path as the owner, rows go nowhere */
#define ROUTECAP_ROLE_DISABLED 2 /* off: nothing is allocated or started, only outputs are looked at, every call returns at once */

/* What the ids number. */
#define ROUTECAP_ID_SPACE_LOGICAL 0 /* ids as the router chose them */
#define ROUTECAP_ID_SPACE_PHYSICAL 1 /* ids of replicas, after load balancing, where nothing else can be had */

/* How the ids of a layer were had. */
#define ROUTECAP_PROVENANCE_CAPTURED 0 /* written or recorded where the router left them */
#define ROUTECAP_PROVENANCE_RECOMPUTED 1 /* chosen again from the router's logits, by routecap_layer_route */

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

/* ---- After a dispatch (experimental) ------------------------------------------------------- */

/*
 * Experimental: this reads the tensors of another project, DeepEP v2 (ElasticBuffer.dispatch, read at revision dd758ca), as vLLM's class
 * DeepEPV2PrepareAndFinalize uses them. When they change, other functions come, and these may return an error.
 *
 * Under expert parallelism each rank receives the tokens that have an expert there, and of each token only the columns whose experts are its
 * own. So this is no way to capture: routecap_layer_record on the source rank, before the dispatch, needs no communication and has whole rows.
 * It is the way to check that what was executed is what was routed. Two things are made of what a rank received, each only if wanted:
 *
 *   global_ids   the ids of the received rows as that class hands them to its experts
 *   executed     [ranks, tokens_per_rank, k] by source token and column, the experts that this rank executed, and -1 elsewhere. The columns of
 *                a token are divided among the ranks, so the element-wise maximum of all ranks' tables is the whole row of every token
 *
 * In words of NCCL, and into a second capturer, with whose routings routecap_routing_merge then finds the first one's equal or in conflict:
 *
 *     routecap_received_read(capturer, layer, &received, stream);
 *     ncclReduceScatter(received.executed, own, tokens_per_rank * k, ncclInt32, ncclMax, comm, stream);   // own: [tokens_per_rank, k]
 *     source.ids = own; source.dtype = ROUTECAP_DTYPE_I32; source.rows = tokens;
 *     routecap_layer_record(executed_capturer, layer, &source, stream);
 *
 * A column that nobody executed is -1 there and makes its cell missing. With load balancing the ids are physical ones: source.table has the
 * logical ones. Micro-batches are calls of their own, each with its handle and its buffers; no call leaves anything behind for the next.
 */

/* Flags of routecap_received. */
#define ROUTECAP_RECEIVED_EXPANDED 1u /* do_expand=True (prefill): a row for each token and local expert; otherwise (decode) for each token */
#define ROUTECAP_RECEIVED_GLOBAL 2u   /* ids are global already: the engine has converted them in place. Not with EXPANDED */

/* What one dispatch brought to this rank. In parentheses: where DeepEP has it. All arrays are in C order, without gaps. */
typedef struct routecap_received {
    uint32_t struct_size;
    uint32_t flags;           /* ROUTECAP_RECEIVED_* */
    uint32_t ranks;           /* of the dispatch: all scale-out and scale-up ranks, 1..1024 */
    uint32_t rank;            /* this one; it has the experts from rank * (experts / ranks) on */
    uint32_t experts;         /* (handle.num_experts), a multiple of ranks, up to ROUTECAP_MAX_EXPERTS; 0 means the layer's */
    uint32_t k;               /* columns of the dispatched ids, up to ROUTECAP_MAX_K; 0 means the capturer's k */
    uint32_t tokens_per_rank; /* (handle.num_max_tokens_per_rank) of this very dispatch: vLLM's changes from step to step; times ranks at most
                                 ROUTECAP_MAX_RECEIVED */
    uint32_t rows;            /* rows of metadata (handle.recv_src_metadata.shape[0]), at most ranks * tokens_per_rank */
    const int32_t *live_rows; /* [device] one number, the last of handle.psum_num_recv_tokens_per_scaleup_rank: only the first *live_rows rows were
                                 received; clamped to [0, rows]; NULL: all */
    const int32_t *metadata;  /* [device] [rows, 2 + k] (handle.recv_src_metadata); may be NULL if executed is */
    const void *ids;          /* [device] [rows, k] (recv_topk_idx); NULL with EXPANDED */
    const int32_t *expert_ends; /* [device] [experts / ranks] with EXPANDED (handle.psum_num_recv_tokens_per_expert, after the dispatch): the row
                                   behind the last of each local expert; the next begins at the next multiple of expert_alignment. Otherwise NULL */
    uint32_t expert_alignment;  /* (handle.expert_alignment) with EXPANDED; 0 means 1. Otherwise 0 */
    uint32_t expanded_rows;     /* (recv_x.shape[0]) with EXPANDED, less than 2^31. Otherwise 0 */
    int32_t dtype;              /* I32 or I64: of ids and global_ids. Required */
    uint32_t reserved;          /* 0 */
    void *global_ids;           /* [device] receives [rows, k], or with EXPANDED [expanded_rows]; NULL: not wanted. May be `ids` */
    int32_t *executed;          /* [device] receives [ranks, tokens_per_rank, k]; NULL: not wanted. Written whole, -1 included */
    uint64_t *ignored;          /* [device] one number, to which is added how many columns were ignored; NULL: not counted */
} routecap_received;

/**
 * Read what an expert-parallel dispatch brought to this rank, into memory of the caller: not into the sink, where a cell is a whole row.
 *
 * global_ids, decode: a local id becomes global, as that class does it: wherever the sum is below `experts`; and all else is -1: other ranks'
 * columns, and every row that is not live, which is memory nobody initialised. Every row is written. Expanded: the expert of each row, the
 * gaps that alignment leaves included, as repeat_interleave over the aligned counts has it; -1 behind the last expert's rows. An engine that
 * reads global_ids must not be given a disabled capturer, which writes nothing.
 *
 * executed: by source token, whatever the order of the rows. What contradicts itself writes nothing and is counted in `ignored`: a source token
 * outside ranks * tokens_per_rank, an id that is no expert of this rank, an expanded row that is outside expanded_rows or no expert's, and a
 * column of a token that another row has filled. In tables that can be trusted the count is 0.
 *
 * Whoever owns the tensors keeps them until the stream has reached this work: the handle of a micro-batch until its combine, as anyway.
 *
 * Capturable; a graph has the sizes of the call that was captured. Does not block. On the host backend the work is done before the call returns.
 *
 * @param layer  Whose `experts` are meant if received->experts is 0.
 * @return ROUTECAP_ERR_UNKNOWN_LAYER; ROUTECAP_ERR_DTYPE; ROUTECAP_ERR_ARGUMENT (a number beyond its limit, rank not below ranks, NULL where rows
 *         need an array, neither product wanted although there are rows); ROUTECAP_ERR_SHAPE_MISMATCH (experts not a multiple of ranks, or
 *         rows beyond ranks * tokens_per_rank: another step's tokens_per_rank).
 */
ROUTECAP_API int32_t routecap_received_read(routecap_capturer *capturer, uint32_t layer, const routecap_received *received,
                                            routecap_stream stream);

/**
 * Merge the tables of all ranks in host memory, where no collective does: the whole rows of all tokens. Experimental, as the above.
 *
 * Touches no device, needs no capturer.
 *
 * @param executed  [count] tables of `cells` ids each, `executed` of every rank copied to the host.
 * @param cells     ranks * tokens_per_rank * k.
 * @param merged    [cells] receives the highest id of each cell, -1 where no table has one. May be one of the tables.
 * @return ROUTECAP_ERR_CONFLICT (two tables have different ids in one cell; nothing is written).
 */
ROUTECAP_API int32_t routecap_received_merge(const int32_t *const *executed, size_t count, size_t cells, int32_t *merged);

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

/* ================================================================================================
 * Requests
 *
 * A request's length is one past its highest position that was issued and is settled, whether or not it was captured. A span with device
 * positions counts with its upper bound until it lands, and with its highest real position from then on; if it is lost or refused, its
 * bound stays. Reading a row at or beyond the length is ROUTECAP_ERR_OUT_OF_RANGE.
 *
 * The first valid value of a cell is final: issuing its position again keeps it and is counted. A cell that is missing is filled by a later
 * issue. A row's tag is that of the step that delivered its first valid cell. Of two rows for one position in one step, the first in the
 * order of spans and rows is the first.
 *
 * accept, truncate, fork, attach, finish and close apply to all steps issued before them, landed or not, and to none issued after. The rows
 * that they change, and rows between these, can be read once those of these steps that concern the request have landed.
 *
 * A request that is preempted and computed again keeps its handle: positions that are issued again keep their first values; after a truncate to 0
 * they are recorded anew, with other weights for instance.
 *
 * The batch forms make one call of many. They return ROUTECAP_OK if every item has the status ROUTECAP_OK, otherwise ROUTECAP_PARTIAL: look
 * at the status of each item.
 * ============================================================================================== */

#define ROUTECAP_POLICY_KEEP 0 /* a valid cell is final */
#define ROUTECAP_POLICY_REPLACE 1 /* a later row with a valid cell replaces the whole row, tag and missing cells included */

typedef struct routecap_open_options {
    uint32_t struct_size;
    int32_t policy; /* ROUTECAP_POLICY_* */
} routecap_open_options;

/**
 * Open requests.
 *
 * @param options   For all of them; NULL: the defaults.
 * @param requests  [count] receives the handles.
 * @return ROUTECAP_ERR_TOO_MANY_REQUESTS (none is opened).
 */
ROUTECAP_API int32_t routecap_request_open(routecap_capturer *capturer, const routecap_open_options *options, routecap_request *requests,
                                           size_t count);

/**
 * Settle the speculative rows of one request in one step: keep some, drop the others.
 *
 * May come before the step has landed and after later steps were issued. The rows of a step are
 * settled once. The first row of a verification, which is no draft, may be in the same span: it is
 * then one of those to keep. Rows that were lost, refused for memory or cut by a truncate in
 * between are accepted too, without effect but for the length of lost and refused ones.
 *
 * A kept row takes its place in the order of rows when accept is called: behind the rows of every
 * step that was issued before the call, and before those of every later step. So a row that was
 * issued for the same position before accept was called comes first.
 *
 * @param rows   NULL: the first `count` rows. Otherwise [count] strictly ascending indices into the request's speculative rows of
 *               that step as they were issued, in the order of the spans: the accepted path of a tree.
 * @param count  How many rows to keep; 0 keeps none.
 * @return ROUTECAP_ERR_UNKNOWN_REQUEST; ROUTECAP_ERR_UNKNOWN_STEP (no speculative rows of this request wait there: none were issued, or they are
 *         settled); ROUTECAP_ERR_OUT_OF_RANGE (more rows than there are, or an index outside them).
 */
ROUTECAP_API int32_t routecap_request_accept(routecap_capturer *capturer, routecap_request request, routecap_step step, const uint32_t *rows,
                                             size_t count);

/* One call of routecap_request_accept. */
typedef struct routecap_accept_item {
    routecap_request request;
    routecap_step step;
    const uint32_t *rows;
    uint64_t count;
    int32_t status;   /* receives the status of this item */
    int32_t reserved; /* 0 */
} routecap_accept_item;

/**
 * Settle the speculative rows of many requests in one call.
 *
 * @param items      [count] of item_size bytes each.
 * @param item_size  sizeof(routecap_accept_item) of the caller.
 * @return ROUTECAP_OK; ROUTECAP_PARTIAL.
 */
ROUTECAP_API int32_t routecap_request_accept_batch(routecap_capturer *capturer, routecap_accept_item *items, size_t item_size, size_t count);

/**
 * Cut a request: rows at and after position `rows` are gone, whether settled, provisional or in flight. Later spans may record those
 * positions anew. Nothing happens if the request is shorter.
 *
 * @return ROUTECAP_ERR_UNKNOWN_REQUEST.
 */
ROUTECAP_API int32_t routecap_request_truncate(routecap_capturer *capturer, routecap_request request, uint64_t rows);

/**
 * Open a request that begins with rows 0..rows-1 of another: several samples of one prompt, a beam. The pages are shared, not copied. Rows in
 * flight are included once they land; provisional rows are not. Without memory for its table of pages the child's shared rows are missing.
 *
 * Until the rows of steps in flight have landed, the shared rows cannot be taken from the parent (ROUTECAP_ERR_NOT_READY).
 *
 * @param rows   At most the parent's length (ROUTECAP_ERR_OUT_OF_RANGE otherwise); ROUTECAP_ROWS_ALL: its length at this moment.
 * @param child  Receives the handle. It has the parent's policy.
 * @return ROUTECAP_ERR_UNKNOWN_REQUEST; ROUTECAP_ERR_OUT_OF_RANGE; ROUTECAP_ERR_TOO_MANY_REQUESTS.
 */
ROUTECAP_API int32_t routecap_request_fork(routecap_capturer *capturer, routecap_request request, uint64_t rows, routecap_request *child);

/**
 * Supply rows of a routing as rows of a request: the positions before `rows` that an engine took from its prefix cache and did not compute,
 * from the routing of the request that did. Whether both really have the same tokens there is the caller's knowledge.
 *
 * Positions are those of the routing. Cells that the request has already are kept, also with ROUTECAP_POLICY_REPLACE. Pages are shared where
 * their rows line up; where they do not, rows are copied, or refused for memory and missing. The request's length becomes at least the
 * end of what was attached.
 *
 * @param routing  Retained as long as needed. May be pending if it comes from a request of the same capturer.
 * @param rows     One past the last position to attach; at most the end of the routing; ROUTECAP_ROWS_ALL: its end.
 * @return ROUTECAP_ERR_UNKNOWN_REQUEST; ROUTECAP_ERR_SHAPE_MISMATCH (also a layer that is recomputed in the routing and captured here);
 *         ROUTECAP_ERR_OUT_OF_RANGE (rows beyond the routing);
 *         ROUTECAP_ERR_NOT_READY (pending, of another capturer).
 */
ROUTECAP_API int32_t routecap_request_attach(routecap_capturer *capturer, routecap_request request, const routecap_routing *routing,
                                             uint64_t rows);

/* ---- Reading ------------------------------------------------------------------------------- */

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

/**
 * Say which cells of a range of rows are there and which are missing.
 *
 * @param first         Position of the first row.
 * @param rows          How many; ROUTECAP_ROWS_ALL; ROUTECAP_ROWS_LANDED.
 * @param coverage      Filled.
 * @param missing       [capacity] receives the first blocks; may be NULL if capacity is 0.
 * @param missing_size  sizeof(routecap_missing) of the caller.
 * @return ROUTECAP_OK; ROUTECAP_INCOMPLETE (also if nothing at all is there); ROUTECAP_ERR_UNKNOWN_REQUEST; ROUTECAP_ERR_OUT_OF_RANGE;
 *         ROUTECAP_ERR_NOT_READY; ROUTECAP_ERR_DISABLED.
 */
ROUTECAP_API int32_t routecap_request_coverage(routecap_capturer *capturer, routecap_request request, uint64_t first, uint64_t rows,
                                               routecap_coverage *coverage, routecap_missing *missing, size_t missing_size, size_t capacity);

#define ROUTECAP_EXTRACT_SHARE 0 /* the request keeps the rows; pages are shared */
#define ROUTECAP_EXTRACT_TAKE 1 /* the rows leave the request, where they are missing from then on */
#define ROUTECAP_EXTRACT_COPY 2 /* the request keeps the rows; the routing is one array (one segment) of its own */

/* Flags of reading calls. */
#define ROUTECAP_READ_STRICT 1u /* missing cells make the call fail with ROUTECAP_ERR_INCOMPLETE, recomputed ones with ROUTECAP_ERR_RECOMPUTED */
#define ROUTECAP_READ_ALLOW_RECOMPUTED 2u /* but recomputed ones do not; without ROUTECAP_READ_STRICT it has no effect */

/**
 * Read rows of a request into a routing, at any time of its life.
 *
 * share and take cost a few nanoseconds per page; copy costs one pass over the rows. Their memory
 * counts in the budget until the routing is freed; copy takes new memory from it, and so does a
 * take that leaves rows on both sides in one page. Rows that drafts or steps in flight name too may
 * have to be copied later: memory for that is reserved now, or the call returns
 * ROUTECAP_ERR_NO_MEMORY.
 *
 * @param first    Position of the first row, at most the length.
 * @param rows     How many; ROUTECAP_ROWS_ALL; ROUTECAP_ROWS_LANDED; 0 gives a routing without rows.
 * @param mode     ROUTECAP_EXTRACT_*.
 * @param flags    0 or ROUTECAP_READ_STRICT, with or without ROUTECAP_READ_ALLOW_RECOMPUTED.
 * @param routing  Receives the routing, to be freed with routecap_routing_free; NULL on error.
 * @return ROUTECAP_OK; ROUTECAP_INCOMPLETE (the valid cells are delivered); ROUTECAP_NOT_CAPTURED (a routing of missing rows);
 *         ROUTECAP_ERR_UNKNOWN_REQUEST; ROUTECAP_ERR_OUT_OF_RANGE; ROUTECAP_ERR_NOT_READY; ROUTECAP_ERR_INCOMPLETE (strict);
 *         ROUTECAP_ERR_RECOMPUTED (strict); ROUTECAP_ERR_DISABLED.
 */
ROUTECAP_API int32_t routecap_request_extract(routecap_capturer *capturer, routecap_request request, uint64_t first, uint64_t rows, int32_t mode,
                                              uint32_t flags, routecap_routing **routing);

/* One call of routecap_request_extract. */
typedef struct routecap_extract_item {
    routecap_request request;
    uint64_t first;
    uint64_t rows;
    int32_t mode;
    uint32_t flags;
    routecap_routing *routing; /* receives the routing */
    int32_t status;            /* receives the status of this item */
    int32_t reserved;          /* 0 */
} routecap_extract_item;

/**
 * Read rows of many requests in one call.
 *
 * @param items      [count] of item_size bytes each.
 * @param item_size  sizeof(routecap_extract_item) of the caller.
 * @return ROUTECAP_OK; ROUTECAP_PARTIAL; ROUTECAP_ERR_DISABLED.
 */
ROUTECAP_API int32_t routecap_request_extract_batch(routecap_capturer *capturer, routecap_extract_item *items, size_t item_size, size_t count);

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

/**
 * Copy rows of a request to the caller's memory without making a routing.
 *
 * A fill that, in this dtype, is an expert id needs a mask or ROUTECAP_READ_STRICT: missing cells must not pass for routing. With 8 bits and
 * 256 experts every fill is one. Waits as reading does.
 *
 * @param first       Position of the first row, at most the length.
 * @param rows        How many; ROUTECAP_ROWS_ALL; ROUTECAP_ROWS_LANDED.
 * @param dst         [rows, layers, k] elements of options->dtype in the layout of options; NULL with dst_bytes 0 to ask for the size, which
 *                    returns ROUTECAP_ERR_BUFFER_TOO_SMALL.
 * @param dst_bytes   Size of dst.
 * @param mask        [rows, layers] or [layers, rows] bytes, as the order says: 1 where the cell is valid, otherwise 0. NULL: none.
 * @param mask_bytes  Size of mask.
 * @param needed      Receives the bytes that dst needs; may be NULL. Set on ROUTECAP_ERR_BUFFER_TOO_SMALL too.
 * @return As routecap_request_extract, and ROUTECAP_ERR_BUFFER_TOO_SMALL (dst or mask; nothing is written);
 *         ROUTECAP_ERR_DTYPE (ids up to experts-1, or the fill, do not fit); ROUTECAP_ERR_UNKNOWN_LAYER;
 *         ROUTECAP_ERR_ARGUMENT (strides that do not put all layers of a row before the next row, or all rows of a layer before the next layer; a
 *         fill that is an expert id).
 */
ROUTECAP_API int32_t routecap_request_extract_into(routecap_capturer *capturer, routecap_request request, uint64_t first, uint64_t rows,
                                                   const routecap_copy_options *options, void *dst, size_t dst_bytes, uint8_t *mask,
                                                   size_t mask_bytes, uint64_t *needed);

/* ---- The end of a request ------------------------------------------------------------------ */

/**
 * End a request and get its rows: the ordinary end.
 *
 * The handle is stale at once. Steps issued before still file into the routing, which is ready when the last of them has landed; nobody waits
 * here. Speculative rows that were not accepted are dropped. The routing begins at position 0; rows that were taken before are missing in it.
 *
 * @param rows     The routing has exactly so many rows: later ones are cut, absent ones are missing. A sequence of S tokens has S-1, whatever was
 *                 issued ahead. ROUTECAP_ROWS_ALL: the request's length, rows issued ahead included.
 * @param routing  Receives the routing, to be freed with routecap_routing_free; see routecap_routing_wait.
 * @return ROUTECAP_ERR_UNKNOWN_REQUEST; ROUTECAP_ERR_OUT_OF_RANGE (rows beyond ROUTECAP_MAX_POSITION); ROUTECAP_ERR_DISABLED.
 */
ROUTECAP_API int32_t routecap_request_finish(routecap_capturer *capturer, routecap_request request, uint64_t rows, routecap_routing **routing);

/* One call of routecap_request_finish. */
typedef struct routecap_finish_item {
    routecap_request request;
    uint64_t rows;
    routecap_routing *routing; /* receives the routing */
    int32_t status;            /* receives the status of this item */
    int32_t reserved;          /* 0 */
} routecap_finish_item;

/**
 * End many requests in one call.
 *
 * @param items      [count] of item_size bytes each.
 * @param item_size  sizeof(routecap_finish_item) of the caller.
 * @return ROUTECAP_OK; ROUTECAP_PARTIAL (see the status of each item); ROUTECAP_ERR_DISABLED.
 */
ROUTECAP_API int32_t routecap_request_finish_batch(routecap_capturer *capturer, routecap_finish_item *items, size_t item_size, size_t count);

/**
 * End a request and drop its rows: an abort, or a preemption whose rows are not wanted. Rows in flight are dropped when they land.
 *
 * @param request  0 is allowed and ignored.
 * @return ROUTECAP_ERR_UNKNOWN_REQUEST.
 */
ROUTECAP_API int32_t routecap_request_close(routecap_capturer *capturer, routecap_request request);

/**
 * End many requests and drop their rows.
 *
 * @param requests  [count]; 0 is allowed and ignored.
 * @param status    [count] receives the status of each; may be NULL.
 * @return ROUTECAP_OK; ROUTECAP_PARTIAL.
 */
ROUTECAP_API int32_t routecap_request_close_batch(routecap_capturer *capturer, const routecap_request *requests, int32_t *status, size_t count);

/* ================================================================================================
 * Routings
 *
 * Immutable and self-describing; usable from all threads at once, after the request's end, the capturer's destruction and the loss of the
 * device, in the process that made it. A routing of routecap_request_finish is pending until its last step has landed: until then all functions but
 * wait, poll, retain and free return ROUTECAP_ERR_NOT_READY.
 * ============================================================================================== */

/* Consecutive rows whose ids lie next to one another in memory. */
typedef struct routecap_segment {
    uint64_t first;          /* position of the first row */
    uint64_t rows;
    const void *ids;         /* [rows, layers, k] in C order; NULL: all cells of these rows are missing, for `reason` */
    const uint8_t *validity; /* [rows, validity_bytes]: bit l % 8 of byte l / 8 is set if layer l is valid; NULL: all are */
    const uint64_t *tags;    /* [rows] the tag of each row, without meaning where the row is not there; NULL: `tag` is that of all */
    uint64_t tag;
    int32_t reason;          /* where ids is NULL: why these rows are not there, one of ROUTECAP_MISSING_*; otherwise 0 */
    uint32_t reserved;       /* 0 */
} routecap_segment;

/* A routing's contents, in place. The k ids of a cell that is not valid have no meaning, but for the first: its reason,
 * ROUTECAP_MISSING_*, or UNWRITTEN where it is anything else, as it may be in foreign bytes. */
typedef struct routecap_view {
    uint32_t struct_size;
    int32_t dtype;           /* of the ids: U8 if experts <= 256, otherwise I16 */
    uint32_t layers;
    uint32_t k;
    uint32_t experts;        /* the most of any layer */
    uint32_t validity_bytes; /* per row */
    int32_t id_space;        /* ROUTECAP_ID_SPACE_* */
    int32_t complete;        /* 1: no cell is missing */
    uint64_t first;          /* position of the first row */
    uint64_t rows;
    const int32_t *layer_map;      /* [layers] index of each captured layer in the decoder */
    const uint32_t *layer_experts; /* [layers] */
    const routecap_segment *segments; /* [segment_count] together exactly the rows, in order */
    size_t segment_size;              /* bytes from one segment to the next */
    size_t segment_count;
    const int32_t *layer_provenance;  /* [layers] ROUTECAP_PROVENANCE_* */
} routecap_view;

/**
 * Wait until a routing is ready. Those of extract, split, slice and merge always are.
 *
 * Waits. With ROUTECAP_CONFIG_MANUAL_PROGRESS it files what has landed itself.
 *
 * @param timeout_ns  Nanoseconds; 0 looks once; negative waits without limit.
 * @return ROUTECAP_OK (ready and complete); ROUTECAP_INCOMPLETE (ready); ROUTECAP_NOT_CAPTURED (ready); ROUTECAP_PENDING (timeout).
 */
ROUTECAP_API int32_t routecap_routing_wait(const routecap_routing *routing, int64_t timeout_ns);

/**
 * Whether a routing is ready. Does not wait, and makes no progress.
 *
 * @return As routecap_routing_wait.
 */
ROUTECAP_API int32_t routecap_routing_poll(const routecap_routing *routing);

/**
 * Look at a routing in place, without a copy.
 *
 * @param view  Filled. Its pointers are valid until the last reference to the routing is freed.
 * @return ROUTECAP_ERR_NOT_READY.
 */
ROUTECAP_API int32_t routecap_routing_view(const routecap_routing *routing, routecap_view *view);

/**
 * Say which cells of a routing are there and which are missing. Parameters as in routecap_request_coverage, over all its rows.
 *
 * @return ROUTECAP_OK; ROUTECAP_INCOMPLETE; ROUTECAP_ERR_NOT_READY.
 */
ROUTECAP_API int32_t routecap_routing_coverage(const routecap_routing *routing, routecap_coverage *coverage, routecap_missing *missing,
                                               size_t missing_size, size_t capacity);

/**
 * Divide a routing at the end of the prompt. Pages are shared.
 *
 * @param prompt_tokens     Rows before this position go to `prompt`, all of them if the routing ends before it.
 * @param generated_tokens  Of the rows from there on, at most so many go to `generated` (one token is usually never input: its row does not
 *                          exist); ROUTECAP_ROWS_ALL: all of them.
 * @param prompt            Receives a routing, possibly without rows; NULL on error.
 * @param generated         Likewise.
 * @return ROUTECAP_ERR_NOT_READY.
 */
ROUTECAP_API int32_t routecap_routing_split(const routecap_routing *routing, uint64_t prompt_tokens, uint64_t generated_tokens,
                                            routecap_routing **prompt, routecap_routing **generated);

/**
 * A routing of some of the rows of another. Pages are shared; positions stay what they are.
 *
 * @param first  Position of the first row.
 * @param rows   How many; ROUTECAP_ROWS_ALL: up to the end.
 * @param slice  Receives the routing; NULL on error.
 * @return ROUTECAP_ERR_OUT_OF_RANGE; ROUTECAP_ERR_NOT_READY.
 */
ROUTECAP_API int32_t routecap_routing_slice(const routecap_routing *routing, uint64_t first, uint64_t rows, routecap_routing **slice);

/**
 * Unite routings of one sequence that hold different rows, different layers, or both: sequence- and pipeline-parallel ranks, pieces of a
 * stream.
 *
 * Layers are matched by their index in the decoder (the layer map), rows by position. The result
 * has the layers of all, and the rows from the lowest to the highest position of any; what nobody
 * has is missing, for the reason that comes first in the list at ROUTECAP_MISSING_STALE among those
 * of all routings that have the layer. A row keeps the tag of the first routing that has any cell
 * of it. A layer that is recomputed in one of them is recomputed in the result.
 *
 * @param routings  [count], count >= 1. They stay the caller's.
 * @param flags     0.
 * @param merged    Receives the routing; NULL on error. Its memory counts in the budget that the first one's does, also after its capturer's end.
 * @return ROUTECAP_OK; ROUTECAP_INCOMPLETE; ROUTECAP_NOT_CAPTURED; ROUTECAP_ERR_CONFLICT (two have a cell with different sets of ids);
 *         ROUTECAP_ERR_SHAPE_MISMATCH (k, the id space, or the experts of one layer differ);
 *         ROUTECAP_ERR_NOT_READY.
 */
ROUTECAP_API int32_t routecap_routing_merge(const routecap_routing *const *routings, size_t count, uint32_t flags,
                                            routecap_routing **merged);

/**
 * Copy a routing to the caller's memory. Parameters, rules and errors as routecap_request_extract_into; slice first to copy fewer rows.
 *
 * @return ROUTECAP_OK; ROUTECAP_INCOMPLETE; ROUTECAP_NOT_CAPTURED; ROUTECAP_ERR_INCOMPLETE (strict); ROUTECAP_ERR_RECOMPUTED (strict);
 *         ROUTECAP_ERR_NOT_READY; ROUTECAP_ERR_BUFFER_TOO_SMALL; ROUTECAP_ERR_DTYPE; ROUTECAP_ERR_UNKNOWN_LAYER.
 */
ROUTECAP_API int32_t routecap_routing_copy_to(const routecap_routing *routing, const routecap_copy_options *options, void *dst,
                                              size_t dst_bytes, uint8_t *mask, size_t mask_bytes, uint64_t *needed);

/**
 * Take one more reference to a routing. Each is freed with routecap_routing_free.
 */
ROUTECAP_API int32_t routecap_routing_retain(const routecap_routing *routing);

/**
 * Free one reference to a routing; its memory goes with the last. NULL is allowed. In a forked child it does nothing.
 */
ROUTECAP_API void routecap_routing_free(routecap_routing *routing);

/* ================================================================================================
 * Routings from and to other memory: the serialised form, and arrays of any origin
 *
 * The serialised form, version 1. All numbers are little endian; what is reserved, and padding, is 0. Files of it end in ".routecap".
 *
 *      offset  size  header
 *           0     8  the bytes "ROUTECAP"
 *           8     4  version: 1
 *          12     4  reserved
 *          16     8  bytes: of everything
 *          24     8  first: position of the first row
 *          32     8  rows; first + rows is at most ROUTECAP_MAX_POSITION
 *          40     8  runs
 *          48     4  layers
 *          52     4  k
 *          56     4  dtype of the ids: ROUTECAP_DTYPE_U8 if no layer has more than 256 experts, otherwise ROUTECAP_DTYPE_I16
 *          60     4  id_space
 *          64        layer table [layers] of 12 bytes: 4 index in the decoder, strictly ascending; 4 experts; 4 provenance; padded to a multiple of 8
 *                    run table [runs] of 24 bytes: 8 rows, not 0; 8 tag; 4 flags; 4 reason. Their rows add up to `rows`. Padded to a multiple of
 *                    64, where the first plane begins
 *
 * The numbers are within the limits of a configuration; a reader refuses anything else, also a reserved field or padding that is not 0, and an id
 * space or a provenance that it does not know.
 *
 * A run is a number of consecutive rows of one kind. Its flags: 1 PRESENT, the rows are in the ids
 * plane and the reason is 0, otherwise all their cells are missing, no other flag is set, the tag
 * is 0, and the reason is ROUTECAP_MISSING_* with 0 for ABSENT; 2 VALIDITY, they are in the
 * validity plane, otherwise all their cells are valid; 4 TAGS, each has its own tag in the tags
 * plane, and the run's is 0, otherwise the run's tag is that of all of them.
 *
 * Three planes follow, each of the rows of all runs that have its flag, in order, without gaps. The second and third begin at the next multiple
 * of 64, as the first does, also behind and before planes without rows; `bytes` ends with the last byte of the third:
 *
 *      ids       [PRESENT rows, layers, k] of 1 or 2 bytes. In a cell that is not valid: ROUTECAP_MISSING_*, then zeros (a reader takes anything
 *                else for UNWRITTEN)
 *      tags      [TAGS rows] of 8 bytes
 *      validity  [VALIDITY rows, (layers + 7) / 8] bytes: bit l % 8 of byte l / 8 is set if layer l is valid; bits beyond the layers are 0
 *
 * So a routing without missing rows is one array, and a range of rows is one range of each plane: what was taken from a stream or comes from two
 * machines can be put together on the headers alone, and an array in a file or in shared memory is used in place. routecap_routing_serialize
 * writes runs as long as possible, VALIDITY only for runs with a missing cell in each row, and so one form for equal routings; a splice keeps the
 * runs of its two parts, but for neighbours with the same flags, tag and reason. Readers take any.
 * ============================================================================================== */

/*
 * Called once when memory that was lent is no longer used: on any thread, perhaps before the call
 * that lent it returns, perhaps inside a call that frees rows (close, free, truncate, destroy). No
 * lock of the library is held while it runs, so it may take a lock that other threads hold while
 * they call routecap. It must not call routecap itself.
 */
typedef void (*routecap_release)(void *context);

/* Flag of routecap_routing_deserialize and routecap_routing_import. */
#define ROUTECAP_IMPORT_TRUSTED 1u /* the ids are known to be right: they are not looked at. Everything else is checked all the same */

/**
 * Write a routing in the serialised form. Routings with equal layer tables, first rows, cells (ids in order), reasons and tags give equal bytes.
 *
 * Later libraries write version 1 too, unless a flag asks them for another, and refuse a routing that version 1 has no words for.
 *
 * @param flags      0.
 * @param dst        NULL with dst_bytes 0 to ask for the size, which returns ROUTECAP_ERR_BUFFER_TOO_SMALL.
 * @param dst_bytes  Size of dst.
 * @param needed     Receives the bytes that it takes; may be NULL. Set on ROUTECAP_ERR_BUFFER_TOO_SMALL too.
 * @return ROUTECAP_OK, also if cells are missing; ROUTECAP_ERR_NOT_READY; ROUTECAP_ERR_BUFFER_TOO_SMALL (nothing is written).
 */
ROUTECAP_API int32_t routecap_routing_serialize(const routecap_routing *routing, uint32_t flags, void *dst, size_t dst_bytes,
                                                uint64_t *needed);

/**
 * Make a routing of bytes in the serialised form, from wherever they come: nothing in them is trusted. Needs no capturer.
 *
 * The memory that it takes is about `bytes`, at most twenty times that (many runs of one row), and counts in no budget. Ids are checked as
 * those of a step are: a cell that claims to be valid and is not k distinct experts of its layer is an error.
 *
 * @param data     [bytes]. With `release`, lent: the routing, and all that shares rows with it, refers to it in place, and it must not change
 *                 until it is released, in this process: it is checked once. Copy memory that someone else may still write. It is never written, so
 *                 a read-only mapping will do. If it does not begin at a multiple of 8 it is copied all the same, and released at once.
 * @param bytes    Exactly those of one routing.
 * @param flags    0 or ROUTECAP_IMPORT_TRUSTED.
 * @param release  NULL: data is copied, and the caller's again when the call returns. Not called if the call fails.
 * @param context  Passed to release.
 * @param routing  Receives the routing, to be freed with routecap_routing_free; NULL on error.
 * @return ROUTECAP_OK; ROUTECAP_INCOMPLETE; ROUTECAP_NOT_CAPTURED; ROUTECAP_ERR_FORMAT (the text says what is wrong).
 */
ROUTECAP_API int32_t routecap_routing_deserialize(const void *data, size_t bytes, uint32_t flags, routecap_release release, void *context,
                                                  routecap_routing **routing);

/**
 * Make a routing of arrays of any origin: the inverse of routecap_routing_view. For rows that another process, file format or engine has.
 *
 * The rows and cells of the view are checked as those of routecap_routing_deserialize. Of cells
 * that are not valid only the first id is looked at: it is their reason if it is one of
 * ROUTECAP_MISSING_*, which is otherwise UNWRITTEN. Rows without ids are missing for the segment's
 * `reason`, where 0 means ABSENT.
 *
 * @param view     `experts` and `complete` are not looked at; `validity_bytes` may be 0; layer_map, layer_experts and layer_provenance may be
 *                 NULL: 0..layers-1, `experts` (which is then needed) and CAPTURED. Segments need not hold rows that are ABSENT, but are in
 *                 order, with a segment_size of sizeof(routecap_segment) of the caller.
 * @param release  NULL: all arrays are copied. Otherwise those that segments point to are lent; tables and segments themselves are copied.
 * @return As routecap_routing_deserialize, but ROUTECAP_ERR_ARGUMENT (limits, order or segments), ROUTECAP_ERR_DTYPE or
 *         ROUTECAP_ERR_FORMAT (an id of a valid cell out of range or twice).
 */
ROUTECAP_API int32_t routecap_routing_import(const routecap_view *view, uint32_t flags, routecap_release release, void *context,
                                             routecap_routing **routing);

/* What the first 64 bytes of the serialised form say. */
typedef struct routecap_serialized {
    uint32_t struct_size;
    uint32_t version;
    uint64_t bytes;        /* of everything */
    uint64_t header_bytes; /* of the header with its tables: as much as routecap_serialized_splice reads */
    uint64_t first;
    uint64_t rows;
    uint32_t layers;
    uint32_t k;
    int32_t dtype;
    int32_t id_space;
} routecap_serialized;

#define ROUTECAP_SERIALIZED_MIN 64 /* bytes of the fixed part of the header */

/**
 * Read the fixed part of a serialised routing's header: what it is, and how much is still to come from a stream, as its sender claims: bound
 * header_bytes and bytes before you make room for them.
 *
 * @param data   The first bytes of it.
 * @param bytes  ROUTECAP_SERIALIZED_MIN or more (ROUTECAP_ERR_BUFFER_TOO_SMALL otherwise, unless the first bytes show that it is none).
 * @param info   Filled.
 * @return ROUTECAP_ERR_FORMAT; ROUTECAP_ERR_BUFFER_TOO_SMALL.
 */
ROUTECAP_API int32_t routecap_serialized_info(const void *data, size_t bytes, routecap_serialized *info);

/* Where bytes of a spliced routing come from. */
#define ROUTECAP_PIECE_HEADER 0 /* the new header */
#define ROUTECAP_PIECE_HEAD 1   /* the first of the two */
#define ROUTECAP_PIECE_TAIL 2   /* the second */
#define ROUTECAP_PIECE_ZERO 3   /* bytes of 0: padding */

typedef struct routecap_piece {
    uint64_t offset;   /* in its source; 0 for ZERO */
    uint64_t bytes;
    int32_t source;    /* ROUTECAP_PIECE_* */
    uint32_t reserved; /* 0 */
} routecap_piece;

#define ROUTECAP_MAX_PIECES 16 /* enough for two routings in version 1 of the form */

/* A serialised routing as a list of pieces: written one after another (writev) they are it. */
typedef struct routecap_splice {
    uint32_t struct_size;
    uint32_t pieces;       /* how many */
    uint64_t bytes;        /* of everything */
    uint64_t header_bytes; /* of the new header */
} routecap_splice;

/**
 * Splice two serialised routings of one sequence: the rows of `head` before position `row`, and the rows of `tail` from it on. Prefill and decode
 * on different machines, the turns of a conversation, the parts of a stream; no id is read, and none needs to be there.
 *
 * The result begins with head's first row or at `row`, whichever comes first, and ends with tail's last row or at `row`; rows between that neither
 * has are missing. A layer that is recomputed in one is recomputed in the result. Both headers are checked; the planes are whoever's who reads
 * the result. Pieces of one source ascend, but head's tags and validity come after tail's ids: have both at hand.
 *
 * @param head, tail      At least their headers, header_bytes as routecap_serialized_info gives them.
 * @param header          Receives the new header; NULL with capacity 0 to ask for the sizes, which returns ROUTECAP_ERR_BUFFER_TOO_SMALL.
 * @param capacity        Size of header: splice->header_bytes, at most the sum of both headers' and 128.
 * @param pieces          [piece_capacity] receives where the bytes come from, in order; may be NULL if piece_capacity is 0.
 * @param piece_size      sizeof(routecap_piece) of the caller.
 * @param piece_capacity  At least splice->pieces; ROUTECAP_MAX_PIECES are enough.
 * @param splice          Filled, also on ROUTECAP_ERR_BUFFER_TOO_SMALL.
 * @return ROUTECAP_OK; ROUTECAP_ERR_FORMAT; ROUTECAP_ERR_SHAPE_MISMATCH (k, the id space, the layers or their experts differ);
 *         ROUTECAP_ERR_BUFFER_TOO_SMALL (header or pieces; nothing is written to either).
 */
ROUTECAP_API int32_t routecap_serialized_splice(const void *head, size_t head_bytes, const void *tail, size_t tail_bytes, uint64_t row,
                                                void *header, size_t capacity, routecap_piece *pieces, size_t piece_size, size_t piece_capacity,
                                                routecap_splice *splice);

/* ================================================================================================
 * The function table, for programs that dlopen the library: one dlsym instead of one per function
 * ============================================================================================== */

typedef struct routecap_api {
    size_t size;    /* of this table in the loaded library; entries at or beyond it do not exist */
    uint32_t major; /* version of the loaded library */
    uint32_t minor;
    uint32_t (*version)(void);
    const char *(*status_name)(int32_t);
    const char *(*last_error)(void);
    int32_t (*backend_info)(int32_t, routecap_backend *);
    int32_t (*config_init)(routecap_config *, size_t);
    int32_t (*config_memory)(const routecap_config *, routecap_memory *);
    int32_t (*capturer_create)(const routecap_config *, routecap_capturer **);
    void (*capturer_destroy)(routecap_capturer *);
    int32_t (*capturer_stats)(const routecap_capturer *, routecap_stats *);
    int32_t (*capturer_layer_stats)(const routecap_capturer *, routecap_layer_stats *, size_t, size_t);
    int32_t (*capturer_progress)(routecap_capturer *);
    int32_t (*sink_bind)(routecap_capturer *, uint32_t, uint32_t, const routecap_sink *);
    int32_t (*sink_layer)(routecap_capturer *, uint32_t, routecap_sink *);
    int32_t (*layer_record)(routecap_capturer *, uint32_t, const routecap_source *, routecap_stream);
    int32_t (*layers_record)(routecap_capturer *, const routecap_source *, const routecap_layer_source *, size_t, size_t, routecap_stream);
    int32_t (*router_init)(routecap_router *, size_t, int32_t);
    int32_t (*layer_route)(routecap_capturer *, uint32_t, const routecap_router *, const routecap_logits *, routecap_stream);
    int32_t (*capturer_probe)(routecap_capturer *, uint32_t, routecap_layer_probe *, size_t, size_t, routecap_stream);
    int32_t (*received_read)(routecap_capturer *, uint32_t, const routecap_received *, routecap_stream); /* experimental */
    int32_t (*received_merge)(const int32_t *const *, size_t, size_t, int32_t *);                        /* experimental */
    int32_t (*step_begin)(routecap_capturer *, uint32_t, routecap_stream);
    int32_t (*step_snapshot)(routecap_capturer *, routecap_stream);
    int32_t (*step_issue)(routecap_capturer *, const routecap_span *, size_t, size_t, const routecap_issue_options *, int32_t *,
                          routecap_step *, routecap_stream);
    int32_t (*step_discard)(routecap_capturer *, routecap_stream);
    int32_t (*step_poll)(routecap_capturer *, routecap_step);
    int32_t (*step_finalize)(routecap_capturer *, routecap_step, int64_t, uint64_t *);
    int32_t (*request_open)(routecap_capturer *, const routecap_open_options *, routecap_request *, size_t);
    int32_t (*request_accept)(routecap_capturer *, routecap_request, routecap_step, const uint32_t *, size_t);
    int32_t (*request_accept_batch)(routecap_capturer *, routecap_accept_item *, size_t, size_t);
    int32_t (*request_truncate)(routecap_capturer *, routecap_request, uint64_t);
    int32_t (*request_fork)(routecap_capturer *, routecap_request, uint64_t, routecap_request *);
    int32_t (*request_attach)(routecap_capturer *, routecap_request, const routecap_routing *, uint64_t);
    int32_t (*request_coverage)(routecap_capturer *, routecap_request, uint64_t, uint64_t, routecap_coverage *, routecap_missing *, size_t,
                                size_t);
    int32_t (*request_extract)(routecap_capturer *, routecap_request, uint64_t, uint64_t, int32_t, uint32_t, routecap_routing **);
    int32_t (*request_extract_batch)(routecap_capturer *, routecap_extract_item *, size_t, size_t);
    int32_t (*copy_options_init)(routecap_copy_options *, size_t);
    int32_t (*request_extract_into)(routecap_capturer *, routecap_request, uint64_t, uint64_t, const routecap_copy_options *, void *, size_t,
                                    uint8_t *, size_t, uint64_t *);
    int32_t (*request_finish)(routecap_capturer *, routecap_request, uint64_t, routecap_routing **);
    int32_t (*request_finish_batch)(routecap_capturer *, routecap_finish_item *, size_t, size_t);
    int32_t (*request_close)(routecap_capturer *, routecap_request);
    int32_t (*request_close_batch)(routecap_capturer *, const routecap_request *, int32_t *, size_t);
    int32_t (*routing_wait)(const routecap_routing *, int64_t);
    int32_t (*routing_poll)(const routecap_routing *);
    int32_t (*routing_view)(const routecap_routing *, routecap_view *);
    int32_t (*routing_coverage)(const routecap_routing *, routecap_coverage *, routecap_missing *, size_t, size_t);
    int32_t (*routing_split)(const routecap_routing *, uint64_t, uint64_t, routecap_routing **, routecap_routing **);
    int32_t (*routing_slice)(const routecap_routing *, uint64_t, uint64_t, routecap_routing **);
    int32_t (*routing_merge)(const routecap_routing *const *, size_t, uint32_t, routecap_routing **);
    int32_t (*routing_copy_to)(const routecap_routing *, const routecap_copy_options *, void *, size_t, uint8_t *, size_t, uint64_t *);
    int32_t (*routing_retain)(const routecap_routing *);
    void (*routing_free)(routecap_routing *);
    int32_t (*routing_serialize)(const routecap_routing *, uint32_t, void *, size_t, uint64_t *);
    int32_t (*routing_deserialize)(const void *, size_t, uint32_t, routecap_release, void *, routecap_routing **);
    int32_t (*routing_import)(const routecap_view *, uint32_t, routecap_release, void *, routecap_routing **);
    int32_t (*serialized_info)(const void *, size_t, routecap_serialized *);
    int32_t (*serialized_splice)(const void *, size_t, const void *, size_t, uint64_t, void *, size_t, routecap_piece *, size_t, size_t,
                                 routecap_splice *);
} routecap_api;

/**
 * The library's functions as one append-only table, each under its name without the prefix.
 *
 * @param major  ROUTECAP_VERSION_MAJOR that the caller was compiled with.
 * @param minor  ROUTECAP_VERSION_MINOR, likewise; or the oldest that the caller can do with: then an entry that came later exists only if
 *               offsetof(routecap_api, entry) < api->size.
 * @return Static storage, with every entry that version has; NULL if this library cannot stand in for it: another major version, or an older
 *         minor one.
 */
ROUTECAP_API const routecap_api *routecap_get_api(uint32_t major, uint32_t minor);

#ifdef __cplusplus
}
#endif

#endif /* ROUTECAP_H */

/*
 * routecap, chapter 1: rules for all calls. Read "Threads", "Ownership" and "Statuses" before your
 * first call.
 *
 * Copyright 2026 The routecap authors. Licensed under the Apache License, Version 2.0; see LICENSE.
 *
 * This chapter has the rules on threads, waiting, ownership, streams and the ABI. After them come
 * the statuses, and the types and constants that all chapters share. Two sections at the end are
 * for some models only: "Cells with fewer experts" and "Weights". The functions of the chapter are
 * routecap_version, routecap_status_name and routecap_last_error.
 *
 * ------------------------------------------------------------------------------------------------
 * How functions are documented
 * ------------------------------------------------------------------------------------------------
 * Parameters are [in], [out] or [in,out]. A pointer must not be NULL unless its text allows it.
 * Shapes are in brackets, such as [rows, k], and in C order. A range [a, b) includes a but not b.
 * Positions, rows and layers are counted from 0. Strides are in elements, unless their text says
 * bytes. Examples leave out the checks of statuses.
 *
 * A word behind an at sign is a mark: a fact that programs read too.
 *   - Each function says who may call it, see "Threads": `@thread(any)`, `@thread(forward)`,
 *     `@thread(sequence)` or `@thread(decoder)`. `@waits`: it waits for work in flight.
 *   - A status that is no error is a `@success`; with `@text` it leaves a line of text.
 *   - A reason has a `@rank(N)`, and is `@of_cell` or `@of_row`: see reading.h.
 *   - A dtype has `@bytes(N)` for each element, a format of the wire its `@names(NAME, ALIASES)`.
 *   - An integer type is `@one_of(NAMES)` of constants, or `@any_of(NAMES)` combined with |, or a
 *     `@handle`. A constant of no type is a `@number`.
 *   - A field of routecap_stats is `@counted`; `@after(FIELD)` if it is counted after that other
 *     field; or `@computed` when it is read.
 *
 * "Capturable" and "not capturable" say whether a call may be captured into a CUDA graph; see
 * "Streams" below.
 *
 * ------------------------------------------------------------------------------------------------
 * Threads
 * ------------------------------------------------------------------------------------------------
 * The calls of the forward path (`@thread(forward)`) are routecap_sink_* and those that take a
 * capturer and a stream. For each capturer, only one thread at a time may be in one of them. Only
 * one thread at a time may use a routecap_sequence (`@thread(sequence)`) or a routecap_wire_decoder
 * (`@thread(decoder)`). Any thread may make any other call (`@thread(any)`) at any time, even while
 * steps are in flight. docs/threading.md lists all calls by thread.
 *
 * No call on a capturer may run during or after its routecap_capturer_destroy. Any number of
 * threads may use a routing, even during and after destroy. Free each reference to it once.
 *
 * Each call takes effect at one instant between its start and its return. A call that queues a
 * change (see "Waiting") takes effect when it queues it. If one thread ends a request while another
 * issues a span of it, the span is either filed or skipped. If two threads end the same request,
 * one of the calls returns ROUTECAP_ERR_UNKNOWN_REQUEST.
 *
 * ------------------------------------------------------------------------------------------------
 * Waiting
 * ------------------------------------------------------------------------------------------------
 * A call with the mark `@waits`, such as routecap_step_finalize, waits for work in flight. No other
 * call waits for the device, or for work that the device has not finished.
 *
 * Each capturer has one worker thread, which files steps. It also carries out the calls that change
 * a request (accept, truncate, fork, attach, adopt, finish, close) once the request's steps that
 * were issued before the call have landed. These calls only queue the change, and return at once.
 *
 * The following calls may do some of the worker thread's work themselves. If the worker thread is
 * filing a step at that moment, they wait until it has filed that one step.
 *   - routecap_step_begin on the host backend, if config.slots steps are in flight.
 *   - routecap_step_issue, if the budget is exhausted.
 *   - Calls that read a request (coverage, extract, extract_into). They first carry out the
 *     request's queued changes whose steps have landed, unless ROUTECAP_CONFIG_MANUAL_PROGRESS is
 *     set. If there is no memory for that, they return ROUTECAP_ERR_NO_MEMORY.
 *   - routecap_capturer_progress, with ROUTECAP_CONFIG_MANUAL_PROGRESS. There is no worker thread
 *     then. Begin, issue and progress wait for another caller's thread that is filing a step; calls
 *     that read a request do not.
 *
 * routecap_capturer_load waits until the worker thread has finished the step that it is filing.
 * routecap_set_log waits until no thread is inside the log hook that it replaces.
 *
 * The library holds no lock while it calls the driver, or runs a release callback (serialized.h) or
 * the log hook (diagnostics.h). If one of these stalls, only the calling thread stalls with it.
 * Memory that a call needs may be allocated under a lock, before anything is changed.
 *
 * ------------------------------------------------------------------------------------------------
 * Ownership
 * ------------------------------------------------------------------------------------------------
 * Arguments belong to the caller. The library uses them only before the call returns, with four
 * exceptions: device arguments (see "Streams"), memory that routecap_sink_bind binds, memory that
 * is lent with a release callback (serialized.h), and `packed` of routecap_plan_unpack. The caller
 * owns the objects that it makes. It destroys each capturer, and frees each store, sequence, plan,
 * decoder and reference to a routing. Pointers in a view belong to the view's routing.
 *
 * Every pointer must be aligned to the type that it points to. A void pointer to elements of a
 * dtype must be aligned to these elements.
 *
 * On error, outputs that are handles are set to 0 or NULL. Other outputs are unchanged, unless
 * their text says otherwise.
 *
 * After fork(), the child process cannot use a capturer, routing, sequence or store that was made
 * before: calls return ROUTECAP_ERR_FORKED, and destroying or freeing does nothing. It can use
 * plans and wire decoders, and deserialise bytes that the parent serialised.
 *
 * ------------------------------------------------------------------------------------------------
 * Streams
 * ------------------------------------------------------------------------------------------------
 * A stream is CUDA's cudaStream_t or CUstream. You need no CUDA header. The host backend has no
 * streams: pass NULL; anything else is ROUTECAP_ERR_ARGUMENT.
 *
 * A stream must belong to the primary context of the capturer's device. Streams that the CUDA
 * runtime or PyTorch made for this device do. 0 is the legacy default stream, 2 the per-thread
 * default stream. No call changes the thread's current context.
 *
 * Work runs in the order of its stream, except for a snapshot in a graph (see
 * routecap_step_snapshot). If you use several streams, you must order the work on them yourself.
 * There is one exception: the library makes a begin run after the last issue, unless the begin is
 * captured.
 *
 * A capturable call may be made on a stream that is being captured into a CUDA graph. Its work then
 * runs at each replay. The graph keeps the library's own memory alive, so it may be replayed even
 * after the capturer is destroyed. It still uses the engine's memory that the captured calls named:
 * keep that valid as long as you replay the graph. On a stream that is being captured, a call that
 * is not capturable returns ROUTECAP_ERR_CAPTURING, and the capture continues.
 *
 * The worker thread and calls without a stream do not disturb a graph capture, whatever its mode.
 *
 * Device arguments are marked [device]. They point to memory that the device can access. The work
 * on the stream uses that memory, so keep it valid until the stream has run the work. On the host
 * backend they point to ordinary memory, which the library uses only before the call returns.
 *
 * Every call that takes a stream may return ROUTECAP_ERR_DEVICE or ROUTECAP_ERR_DEVICE_LOST.
 *
 * ------------------------------------------------------------------------------------------------
 * The ABI
 * ------------------------------------------------------------------------------------------------
 * A program built against 1.x runs with every later 1.y. Functions, statuses, flags and constants
 * are only added. Structs and the function table grow at their end.
 *
 * Experimental functions (dispatch_check.h) are declared only where ROUTECAP_EXPERIMENTAL is
 * defined before routecap.h is included. Their structs and their entries in the function table are
 * declared in any case. An experimental function keeps its name and signature, but may stop
 * working: it then returns an error, and a new function replaces it.
 *
 * A later library may therefore return values that the program does not know, such as a new status
 * (its sign tells success from error), reason or dtype, and may count rows in a new field of the
 * stats. If such a library has to return something that only a new field can say, and the caller's
 * struct lacks that field, the call returns ROUTECAP_ERR_STRUCT_SIZE.
 *
 * A struct begins with struct_size, which the caller sets to sizeof the struct. Elements of arrays
 * have no struct_size: the call takes the size of one element instead. Set a struct to zeros first,
 * or fill it with its _init function, which also sets struct_size. In a struct that the caller
 * fills, a field that is 0 has its default. In two structs there are exceptions, in which 0 means
 * 0: `fill` and `none` of routecap_copy_options; lost_value, none_value, context_rank and
 * tensor_rank of routecap_plan_config. Fill these two structs with their _init functions, or set
 * these fields yourself. `none` and none_value matter only where cells may have fewer than k
 * experts.
 *
 * The sizes of a struct in the program and in the library may differ:
 *   - A struct that the caller fills may be smaller than this library's, down to its size in 1.0.0.
 *     It may be larger, up to 65536 bytes, if all bytes that this library does not know are 0.
 *     Otherwise the call returns ROUTECAP_ERR_STRUCT_SIZE.
 *   - In a struct that the library fills, it reads only struct_size. It fills that many bytes, and
 *     writes zeros beyond the fields that it knows. A struct smaller than in 1.0 is refused, with
 *     ROUTECAP_ERR_STRUCT_SIZE.
 *
 * ------------------------------------------------------------------------------------------------
 * Statuses
 * ------------------------------------------------------------------------------------------------
 * A status is an int32_t. 0 is success. A positive status is partial success: all outputs are set,
 * except with ROUTECAP_PENDING. A negative status is an error, and the call has changed nothing.
 *
 * An error leaves one line of text, which routecap_last_error returns. So does a positive status
 * with the mark `@text`.
 *
 * Every function that returns a status may return these five errors:
 *   - ROUTECAP_ERR_ARGUMENT: NULL where it is not allowed, a value outside its documented set, or
 *     a reserved field that is not 0.
 *   - ROUTECAP_ERR_STRUCT_SIZE, ROUTECAP_ERR_NO_MEMORY, ROUTECAP_ERR_FORKED,
 *     ROUTECAP_ERR_INTERNAL.
 * The list of a function names one of them only to say more about it. A function without a list
 * returns ROUTECAP_OK, one of these five, an error of "Streams", or an error of checked mode
 * (capture.h).
 */
#ifndef ROUTECAP_BASE_H
#define ROUTECAP_BASE_H

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

/* On each function that returns a status: the compiler warns of a call whose status is not used.
 * GCC warns even if the call is cast to void. To turn these warnings off, define
 * ROUTECAP_NODISCARD as nothing before you include routecap.h. */
#ifndef ROUTECAP_NODISCARD
#if defined(__GNUC__) || defined(__clang__)
#define ROUTECAP_NODISCARD __attribute__((warn_unused_result))
#else
#define ROUTECAP_NODISCARD
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ================================================================================================
 * Version
 * ============================================================================================== */

/* The version of this header. docs/compatibility.md says what stays as it is within a major
 * version. */
#define ROUTECAP_VERSION_MAJOR 1
#define ROUTECAP_VERSION_MINOR 0
#define ROUTECAP_VERSION_PATCH 0

/**
 * Return the version of the loaded library: major * 10000 + minor * 100 + patch. Never fails.
 * @thread(any)
 */
ROUTECAP_API uint32_t routecap_version(void);

/* ================================================================================================
 * Statuses
 * ============================================================================================== */

typedef int32_t routecap_status; /* @one_of(ROUTECAP_ERR_*): an error; or a `@success` */

#define ROUTECAP_OK 0 /* @success */

/* Partial success. */
#define ROUTECAP_INCOMPLETE 1   /* @success @text: some cells of the result are missing */
#define ROUTECAP_LOST 2         /* @success @text: the step has a ticket, but all its rows are
                                   missing: too many were in flight, its copy failed, or its rows
                                   did not arrive */
#define ROUTECAP_PENDING 3      /* @success: the step has not landed yet, or the routing is not
                                   ready yet */
#define ROUTECAP_PARTIAL 4      /* @success @text: the status of some items of an array is not
                                   ROUTECAP_OK; or routecap_capturer_probe found something in some
                                   layers */
#define ROUTECAP_NOT_CAPTURED 5 /* @success @text: there are rows, but none of their cells is
                                   valid */

/* An argument is wrong. */
#define ROUTECAP_ERR_ARGUMENT (-100)
#define ROUTECAP_ERR_STRUCT_SIZE (-101)      /* too small; or larger, with a tail that is not 0 */
#define ROUTECAP_ERR_UNKNOWN_LAYER (-102)    /* outside the capturer's layers */
#define ROUTECAP_ERR_UNKNOWN_REQUEST (-103)  /* never opened here, closed or finished */
#define ROUTECAP_ERR_UNKNOWN_STEP (-104)     /* never issued; for accept: the request has no drafts
                                                in it */
#define ROUTECAP_ERR_OUT_OF_RANGE (-105)     /* rows or indices that do not exist */
#define ROUTECAP_ERR_CAPACITY (-106)         /* rows outside the sink */
#define ROUTECAP_ERR_OVERLAP (-107)          /* two spans of a step, or two sources of a plan, have
                                                the same row */
#define ROUTECAP_ERR_DTYPE (-108)            /* a dtype that the call does not take, or one that
                                                cannot hold the ids or what is written in their
                                                place */
#define ROUTECAP_ERR_SHAPE_MISMATCH (-109)   /* layers, k, experts, id space or the dtype of the
                                                weights differ; or a matrix does not have the size
                                                that it is said to have */
#define ROUTECAP_ERR_BUFFER_TOO_SMALL (-110) /* nothing was written; the needed size is returned */
#define ROUTECAP_ERR_FORMAT (-111)           /* the bytes are not in the expected format, are
                                                damaged, or have a version that this library does
                                                not read */
#define ROUTECAP_ERR_LOSSY (-112)            /* the format cannot carry a fact of the routing, and
                                                the caller did not allow the loss */

/* The call does not fit the state. */
#define ROUTECAP_ERR_STATE (-200)      /* wrong order of calls */
#define ROUTECAP_ERR_DISABLED (-201)   /* reading from a disabled or mirroring capturer */
#define ROUTECAP_ERR_NOT_READY (-202)  /* some of these rows are in flight */
#define ROUTECAP_ERR_INCOMPLETE (-203) /* strict reading, and cells are missing */
#define ROUTECAP_ERR_CONFLICT (-204)   /* recorded twice in one step, one sink row in two spans, or
                                          two different sets of ids for one cell */
#define ROUTECAP_ERR_FORKED (-205)     /* the object was made before this process was forked */
#define ROUTECAP_ERR_CAPTURING (-206)  /* the call is not capturable, and the stream is being
                                          captured */
#define ROUTECAP_ERR_RECOMPUTED (-207) /* strict reading, and cells were recomputed from the
                                          router's scores (logits) */

/* Mistakes in the calls of the forward path, which only checked mode reports; see
 * ROUTECAP_CONFIG_CHECKED. Without it the rows concerned are missing, and the result of two threads
 * at once is undefined. */
#define ROUTECAP_ERR_NOT_BEGUN (-208)      /* record, route, snapshot or issue without a begin */
#define ROUTECAP_ERR_NOT_SNAPSHOT (-209)   /* issue of a forward pass without a snapshot */
#define ROUTECAP_ERR_SNAPSHOT_TWICE (-210) /* a second snapshot of one step */
#define ROUTECAP_ERR_ISSUED_TWICE (-211)   /* a second issue of one forward pass */
#define ROUTECAP_ERR_ROWS_NOT_BEGUN (-212) /* a recorded row, or a row of a span, is not among the
                                              rows begun */
#define ROUTECAP_ERR_TWO_THREADS (-213)    /* two threads are in calls of the forward path at
                                              once */

/* A resource is exhausted. */
#define ROUTECAP_ERR_NO_MEMORY (-300) /* the budget, or the system's memory */
#define ROUTECAP_ERR_TOO_MANY_REQUESTS (-301)
#define ROUTECAP_ERR_THREAD (-302) /* the worker thread could not be started */

/* The device. */
#define ROUTECAP_ERR_NO_BACKEND (-400)     /* this build or this machine lacks the backend */
#define ROUTECAP_ERR_DRIVER_TOO_OLD (-401) /* the text names the driver that this build needs */
#define ROUTECAP_ERR_DEVICE (-402)         /* a call of the driver failed; the text names it */
#define ROUTECAP_ERR_DEVICE_LOST (-403)    /* the device has failed for good. Rows that have landed
                                              can still be read; the others are missing */

/* A defect of the library. */
#define ROUTECAP_ERR_INTERNAL (-500)

/**
 * Return the name of a status, such as "ROUTECAP_ERR_CAPACITY". Never fails.
 *
 * @param[in] status  A status.
 * @return A static string; "ROUTECAP_STATUS_UNKNOWN" if this library does not know the status.
 * @thread(any)
 */
ROUTECAP_API const char *routecap_status_name(routecap_status status);

/**
 * Return the most recent line of text that a call on this thread left; see "Statuses" at the top.
 *
 * Call it on the thread that made that call. Never fails.
 *
 * @return A string, valid until the next call on this thread that leaves a text; "" if none did.
 * @thread(any)
 */
ROUTECAP_API const char *routecap_last_error(void);

/* ================================================================================================
 * Handles
 * ============================================================================================== */

/* A capturer; see capture.h. */
typedef struct routecap_capturer routecap_capturer;

/* A routing; see routing.h. */
typedef struct routecap_routing routecap_routing;

/*
 * A request of one capturer; other capturers do not know it. 0 means no request. No two requests of
 * a process ever have the same handle.
 */
typedef uint64_t routecap_request; /* @handle */

/* The ticket of a step of one capturer: 1, 2, 3, ... in order of issue. 0 means no step. */
typedef uint64_t routecap_step; /* @handle */

/* CUDA's cudaStream_t or CUstream. NULL on the host backend. */
struct CUstream_st;
typedef struct CUstream_st *routecap_stream;

/* ================================================================================================
 * Constants
 * ============================================================================================== */

/* Values to give instead of a number of rows. A function that accepts ROWS_LANDED says so. */
#define ROUTECAP_ROWS_ALL 0xFFFFFFFFFFFFFFFFull    /* @number: up to the end */
#define ROUTECAP_ROWS_LANDED 0xFFFFFFFFFFFFFFFEull /* @number: up to the first row in flight, or the
                                                      end: all rows of a running request that can be
                                                      read now */

/*
 * Limits of this version. Later versions may raise all but ROUTECAP_MAX_POSITION. A routing may
 * come from a later version, so size memory by its view, not by these limits.
 */
#define ROUTECAP_MAX_LAYERS 1024               /* @number */
#define ROUTECAP_MAX_K 32                      /* @number */
#define ROUTECAP_MAX_EXPERTS 32768             /* @number */
#define ROUTECAP_MAX_ROUTED_EXPERTS 1024       /* @number: experts of a layer that is routed from
                                                  logits */
#define ROUTECAP_MAX_GROUPS 32                 /* @number: groups of experts in such a layer */
#define ROUTECAP_MAX_ROWS 1048576              /* @number: sink rows: tokens of one forward pass */
#define ROUTECAP_MAX_RECEIVED 67108864         /* @number: ranks * tokens_per_rank of
                                                  routecap_received */
#define ROUTECAP_MAX_SLOTS 64                  /* @number: steps in flight */
#define ROUTECAP_MAX_POSITION 1099511627776ULL /* @number: positions are below 2^40 */

/*
 * Cells with fewer experts
 *
 * Usually every token is sent to k experts in every layer. If that is so, skip this.
 *
 * For example, a router with a threshold chooses one to four experts for each token:
 *
 *     uint32_t least[LAYERS] = {1, 1};      // the fewest, for each layer
 *     config.k = 4; config.layer_min_k = least;
 *     ...
 *     source.none = -1;                     // ids of a token: {17, 5, -1, -1}, two experts
 *
 * There are two kinds of such models, and a model may be of both:
 *   - Each layer has its own number of experts per token: set config.layer_k.
 *   - Tokens of one layer have different numbers of experts: because of a threshold (top-p, ReLU),
 *     of a null expert, or of an expert that is full. Set config.layer_min_k to the fewest. It may
 *     be 0.
 *
 * A valid cell of layer l has from layer_min_k[l] to layer_k[l] distinct experts. A cell with fewer
 * is missing (ROUTECAP_MISSING_OUT_OF_RANGE).
 *
 * A cell that is read has k columns in any case. Those with an expert come first. What the others
 * hold depends on the place:
 *   - In the sink: ROUTECAP_NO_EXPERT. A row there has only layer_k columns.
 *   - In a source of ids: the number that routecap_source.none states. "No expert" is neither "not
 *     captured" nor padding, so the library never guesses it from -1.
 *   - In a view, and in arrays for routecap_routing_import: all bits set, which is 255 in U8 and -1
 *     in I16.
 *   - In copied ids: routecap_copy_options.none. In a plan's ids: routecap_plan_config.none_value.
 *     Both are ROUTECAP_NO_EXPERT by default.
 *
 * The load does not count such columns, and comparisons of cells ignore them. Of the formats in
 * wire.h only ROUTECAP_WIRE_SERIALIZED can carry them.
 */
#define ROUTECAP_NO_EXPERT (-2) /* @number: in a column of a cell: no expert was chosen for it */

/*
 * Weights
 *
 * A router also computes a weight for each expert that it chooses: the factor by which the expert's
 * output is multiplied. By default only ids are captured. To capture the weights too:
 *
 *     config.weights_dtype = ROUTECAP_DTYPE_BF16;           // at create
 *     ...
 *     source.weights = topk_weights;                        // [rows, k_source], beside source.ids
 *     source.weights_dtype = ROUTECAP_DTYPE_BF16;
 *     ...
 *     options.dtype = ROUTECAP_DTYPE_F32;                   // widened; or BF16, as they are
 *     routecap_routing_copy_weights(routing, &options, weights, sizeof weights, NULL, 0, NULL);
 *
 * The numbers may be any k numbers of a cell: nothing is computed from them. They are kept bit for
 * bit, and follow their ids: into requests, stores, sequences, routings and the serialised form.
 * routecap_plan_gather_weights lays them out for a trainer; pack and scatter (plan.h) leave them
 * out. Of the formats in wire.h only ROUTECAP_WIRE_SERIALIZED carries them. Rows with weights and
 * rows without, or with weights of different dtypes, cannot be joined: calls that join them return
 * ROUTECAP_ERR_SHAPE_MISMATCH.
 *
 * A cell can have ids without weights. Its weights are missing if its ids are, if nobody recorded
 * them, or if the weight of one of its experts is NaN. Infinities are weights. A cell without
 * weights is not a missing cell: the routing is complete if all ids are there.
 * routecap_coverage.cells_weighted counts the cells that have weights.
 *
 * Columns without an expert have the weight 0. The weights of a valid cell without any expert are
 * always there.
 *
 * When rows meet at one position, the weights of a cell come from the row that its ids come from.
 * Cells are compared by their ids alone.
 */

/* Element types of ids: values of dtype fields. */
#define ROUTECAP_DTYPE_U8 1        /* @bytes(1) */
#define ROUTECAP_DTYPE_I16 2       /* @bytes(2) */
#define ROUTECAP_DTYPE_U16 3       /* @bytes(2) */
#define ROUTECAP_DTYPE_I32 4       /* @bytes(4) */
#define ROUTECAP_DTYPE_U32 5       /* @bytes(4) */
#define ROUTECAP_DTYPE_I64 6       /* @bytes(8) */
#define ROUTECAP_DTYPE_ID16_BF16 7 /* @bytes(4): the upper 16 bits are the id. The lower 16 are a
                                      bfloat16: the factor by which the expert's output is
                                      multiplied. Only in routecap_source */

/* Element types of logits, biases and weights: values of dtype fields. */
#define ROUTECAP_DTYPE_F32 16  /* @bytes(4) */
#define ROUTECAP_DTYPE_F16 17  /* @bytes(2) */
#define ROUTECAP_DTYPE_BF16 18 /* @bytes(2) */
typedef int32_t routecap_dtype; /* @one_of(ROUTECAP_DTYPE_*) */

/* Where the sink is. */
#define ROUTECAP_BACKEND_HOST 1
#define ROUTECAP_BACKEND_CUDA 2
typedef int32_t routecap_backend_kind; /* @one_of(ROUTECAP_BACKEND_*) */

/* What a rank does; see routecap_capturer_create. */
#define ROUTECAP_ROLE_OWNER 0    /* captures */
#define ROUTECAP_ROLE_MIRROR 1   /* further rank of a tensor-parallel group: keeps no rows */
#define ROUTECAP_ROLE_DISABLED 2 /* off */
typedef int32_t routecap_role; /* @one_of(ROUTECAP_ROLE_*) */

/* What the ids refer to. */
#define ROUTECAP_ID_SPACE_LOGICAL 0  /* experts, as the router chose them */
#define ROUTECAP_ID_SPACE_PHYSICAL 1 /* copies of experts, after load balancing. For engines that do
                                        not know the logical ids */
typedef int32_t routecap_id_space; /* @one_of(ROUTECAP_ID_SPACE_*) */

/* Where the ids of a layer come from. */
#define ROUTECAP_PROVENANCE_CAPTURED 0   /* the router wrote them */
#define ROUTECAP_PROVENANCE_RECOMPUTED 1 /* routecap_layer_route chose them again from logits */
typedef int32_t routecap_provenance; /* @one_of(ROUTECAP_PROVENANCE_*) */

#ifdef __cplusplus
}
#endif

#endif /* ROUTECAP_BASE_H */

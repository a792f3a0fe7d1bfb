/*
 * routecap: what every call shares.
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

#ifdef __cplusplus
}
#endif

#endif /* ROUTECAP_BASE_H */

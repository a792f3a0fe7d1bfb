/*
 * How tests control the fake CUDA driver: a libcuda.so.1 on host memory, for machines without a
 * GPU.
 *
 * A program finds the fake as it finds the driver: dlopen("libcuda.so.1"), with its folder in
 * LD_LIBRARY_PATH. A test asks that library for fake_cuda_control(); where dlsym does not find it,
 * the driver is a real one. The first lines of fake_cuda.cc say how the fake differs.
 *
 * All functions may be called on any thread at any time, also from kernels and host functions that
 * the fake runs. Texts that are returned stay valid until the same thread asks for another. Streams
 * are named as in the driver API: NULL is the legacy stream of the calling thread's context.
 *
 * The environment gives the settings that hold after loading and after reset, for programs that
 * know nothing of the fake: FAKE_CUDA_EXECUTION and FAKE_CUDA_ORDER hold
 * numbers of the enums below, FAKE_CUDA_VERSION what set_version takes. With FAKE_CUDA_DELAY each
 * call, and each operation that the fake's threads run, first sleeps for a random time of less than
 * so many microseconds, one in four of them. With FAKE_CUDA_ABORT=1 a violation is written to
 * stderr and aborts.
 */
#ifndef ROUTECAP_FAKE_CUDA_H
#define ROUTECAP_FAKE_CUDA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUctx_st;
struct CUfunc_st;
struct CUgraph_st;
struct CUstream_st;

/* Who runs what was enqueued, and when. Held work (see hold) waits under each. */
enum fake_cuda_execution {
    FAKE_CUDA_AT_ONCE = 0, /* the call that enqueues it, before it returns; if it waits for
                              something, whoever completes that */
    FAKE_CUDA_LAZY = 1, /* the call that waits for it, and only what that needs; a query that finds
                           it unfinished runs one operation */
    FAKE_CUDA_THREADS = 2 /* four threads of the fake, as soon as they can: streams run at once */
};

/* Which of several streams goes on first, where more than one can. */
enum fake_cuda_order {
    FAKE_CUDA_OLDEST = 0, /* the one whose next operation was enqueued first */
    FAKE_CUDA_NEWEST = 1, /* the one whose next operation was enqueued last: shows a missing wait
                             between streams */
    FAKE_CUDA_RANDOM = 2
};

/* What exists now. */
typedef struct fake_cuda_live {
    size_t device_allocations, device_bytes;
    size_t host_allocations, host_bytes;
    size_t streams, events;
    size_t graphs, execs;
    size_t user_objects;
    size_t primary_references; /* of all devices together: retained and not released */
    size_t captures;
} fake_cuda_live;

typedef struct fake_cuda {
    size_t size; /* of this table */

    /* ---- Settings. reset: all of them, what is held, failures, counts, trace and violations are
     * as after loading; what exists stays. A lost device works again; what was still to run on it
     * is dropped. */
    void (*reset)(void);
    void (*set_version)(
        int version); /* as cuDriverGetVersion gives it; functions newer than that are not found */
    void (*set_devices)(int count);
    void (*set_attribute)(int attribute, int value); /* of every device, by CUdevice_attribute */
    void (*set_execution)(int execution);
    void (*set_order)(int order, uint64_t seed); /* the seed is that of FAKE_CUDA_RANDOM */

    /* ---- Holding work. An operation is one enqueued call, or one node of a launched graph. */
    void (*hold)(
        void); /* every stream: what is enqueued from now on, and what has not run yet, waits */
    void (*hold_stream)(struct CUstream_st *stream); /* only this one */
    void (*release)(void);                           /* every stream, those of hold_stream too */
    void (*release_stream)(struct CUstream_st *stream);
    size_t (*step)(size_t operations); /* runs at most so many that can run, held or not; returns
                                          how many did */
    size_t (*step_stream)(struct CUstream_st *stream, size_t operations);

    /* ---- Failures. name is that of a function, as "cuMemAlloc". */
    void (*fail)(
        const char *name, uint64_t nth,
        int result); /* the nth call from now (1: the next) does nothing and returns result */
    void (*fail_from)(const char *name, uint64_t nth,
                      int result);              /* likewise, and every later one */
    void (*fail_any)(uint64_t nth, int result); /* the nth call of any function */
    void (*lose_device)(void); /* work stops for good; all calls but those of fake_cuda.cc's list
                                  return CUDA_ERROR_LAUNCH_FAILED */

    /* ---- Kernels of the test, which cuLaunchKernel, graphs and cuLibraryGetKernel know. run is
     * called with a copy of the `bytes` bytes that the first kernel parameter points to; it may
     * block. Never removed; a later one of the same name takes its place for cuLibraryGetKernel.
     * What is returned is a CUfunction. */
    struct CUfunc_st *(*add_kernel)(const char *name, size_t bytes,
                                    void (*run)(const void *params, void *user), void *user);

    /* ---- Memory. p points into an allocation; both return 1, or 0 if it does not. */
    int (*mark_managed)(const void *p);
    int (*mark_device)(const void *p, int ordinal);

    /* ---- What was done. Counts are of calls that were made, failed ones too; name NULL: of all
     * functions. */
    uint64_t (*count)(const char *name);
    void (*trace_start)(int all_threads); /* 0: only calls of this thread */
    const char *(*trace)(void); /* since then, one call a line: "cuLaunchKernel 1 routecap_begin".
                                 * Streams are "legacy", "thread" or a number in the order in which
                                 * they appear, kernels are named */
    void (*trace_stop)(void);
    uint64_t (*violations)(void);        /* misuse that was seen: see fake_cuda.cc */
    const char *(*violation_text)(void); /* one a line */
    void (*forget_violations)(void);
    void (*live)(fake_cuda_live *out);

    /* ---- Failures, for loops over all of them. */
    void (*fail_any_from)(uint64_t nth,
                          int result); /* the nth call of any function, and every later one */
    void (*lose_device_at)(
        uint64_t nth); /* the nth call of any function is the first that finds the device lost */
    void (*exempt)(
        int on); /* calls of this thread neither fail by these functions nor count for their nth */
    void (*forget_failures)(void); /* those to come; a lost device stays lost */
    uint64_t (*failures)(void);    /* how many calls were made to fail, since the last reset */
    const char *(*failed)(
        void); /* and of which functions, sorted, each once, with spaces between */
    void (*hide)(
        const char *name); /* cuGetProcAddress does not find this one; NULL: it finds all again */
    const char *(*asked)(void); /* what cuGetProcAddress was asked for since loading, likewise */
    int (*inside)(void);        /* 1: this thread is within a call of the driver */

    /* ---- Launches. How many blocks the last launch, or the last node of a graph, of the kernel of
     * this name has; 0: there was none. */
    uint64_t (*blocks)(const char *kernel);

    /* ---- A gate, and a look at every call. */
    void (*close_gate)(
        uint64_t nth);    /* the nth call that this thread makes from now on waits, before it does
                           * anything, for open_gate; calls of    other threads go on */
    int (*at_gate)(void); /* 1: it waits there */
    void (*open_gate)(void); /* lets it go on; or, if it has not come, lets it pass */
    void (*watch)(void (*called)(const char *name)); /* called on the thread of each call before the
                                                        fake takes a lock; NULL: no more */
} fake_cuda;

const fake_cuda *fake_cuda_control(void);

#ifdef __cplusplus
}
#endif

#endif /* ROUTECAP_FAKE_CUDA_H */

/*
 * routecap, chapter 13: to see inside.
 *
 * Copyright 2026 The routecap authors. Licensed under the Apache License, Version 2.0; see LICENSE.
 *
 * For operators, when something goes wrong: lines of text about what happens, and a dump of a
 * capturer whose engine hangs. docs/diagnostics.md says how they are used.
 *
 *   routecap_set_log        where lines go
 *   routecap_capturer_dump  requests, steps in flight and memory as JSON
 */
#ifndef ROUTECAP_DIAGNOSTICS_H
#define ROUTECAP_DIAGNOSTICS_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ================================================================================================
 * Log
 * ============================================================================================== */

/*
 * Levels. A level takes the lines of those before it, too.
 *
 * A fault that repeats gives few lines: one a second for each kind and capturer, with how often it
 * happened since the last, and five a second for each status that calls return.
 */
#define ROUTECAP_LOG_OFF 0
#define ROUTECAP_LOG_ERROR 1   /* it does not work: no device, a lost device, a defect */
#define ROUTECAP_LOG_WARNING 2 /* rows are missing: steps lost, rows refused for memory, layers that
                                  write nothing, ids out of range, a step that does not land, slips
                                  of checked mode, blocks that a store refused */
#define ROUTECAP_LOG_INFO 3    /* capturers made and destroyed, with settings and memory; rows of
                                  unknown requests; a worker thread that falls behind */
#define ROUTECAP_LOG_DEBUG 4   /* every call that returned an error, and which */

/*
 * Takes one line.
 *
 * It is called on the thread on which something happened: in a call that returns an error, create
 * or destroy; otherwise on the worker thread, or in routecap_capturer_progress and calls that wait
 * where there is none. Calls of the forward path that succeed, or lose a step, never call it.
 * Several threads may be in it at once. No lock of the library is held, so it may take one that
 * other threads hold while they call routecap. A hook that waits holds up its own thread: on the
 * worker thread, the filing of rows.
 *
 * It may call routecap, except for routecap_set_log and routecap_capturer_destroy. What is logged
 * inside a hook goes nowhere. It must not throw, fork or leave by longjmp.
 *
 * context is that of routecap_set_log. level is ROUTECAP_LOG_ERROR..ROUTECAP_LOG_DEBUG. text is one
 * line without a newline, at most 511 bytes and a 0; it is valid during the call.
 */
typedef void (*routecap_log)(void *context, int32_t level, const char *text);

/**
 * Say where the lines of this process go.
 *
 * Without a hook, ROUTECAP_LOG in the environment says which lines are written to stderr: "error",
 * "warning", "info" or "debug"; none if it is not set. It is read when there is something to say
 * for the first time.
 *
 * When this call returns, the hook before it is in no call and will not be called again. So its
 * context may be freed. This call waits for that: on a thread that holds a lock which a hook needs,
 * it would wait for ever. A child of fork() keeps the hook.
 *
 * @param[in] log      Takes the lines. NULL: there is no hook, and ROUTECAP_LOG holds again.
 * @param[in] context  Passed to log.
 * @param[in] level    ROUTECAP_LOG_*: the lines that log takes; 0 without a hook.
 * @return ROUTECAP_OK; ROUTECAP_ERR_ARGUMENT (level is none of these, or not 0 without a hook);
 *         ROUTECAP_ERR_STATE (called by a hook).
 */
ROUTECAP_API int32_t routecap_set_log(routecap_log log, void *context, int32_t level);

/* ================================================================================================
 * Dump
 * ============================================================================================== */

/**
 * Describe a capturer as JSON: its settings, memory, counters, what the worker thread does, every
 * step in flight, and requests.
 *
 * Call it on any thread, also while the engine hangs. It waits for no step, no callback and not for
 * the device. It calls no driver, allocates nothing, and writes only to dst. The locks that it
 * takes are held for a call's arguments at most, and never while anything waits. So it returns
 * while the engine's thread is stuck in a call, and while the worker thread is stuck in a hook or
 * in a release callback. The numbers are read one after another while the capturer runs.
 *
 * docs/dump.schema.json describes the JSON. It is ASCII. Later versions may add members.
 *
 * @param[in] capturer   The capturer.
 * @param[in] requests   How many requests are listed at most: first those with rows in flight or
 *                       calls that wait to be applied. If dst has no room for so many, fewer are.
 * @param[out] dst       [dst_bytes] the JSON, without a 0 at its end. NULL with dst_bytes 0 asks
 *                       for the size, which returns ROUTECAP_ERR_BUFFER_TOO_SMALL.
 * @param[in] dst_bytes  Size of dst, in bytes. With the size that was asked for, a second call
 *                       never finds it too small, whatever has happened since.
 * @param[out] needed    How many bytes were written; on ROUTECAP_ERR_BUFFER_TOO_SMALL how many are
 *                       enough; may be NULL.
 * @return ROUTECAP_OK; ROUTECAP_ERR_BUFFER_TOO_SMALL (nothing is written).
 */
ROUTECAP_API int32_t routecap_capturer_dump(const routecap_capturer *capturer, uint32_t requests,
                                            void *dst, size_t dst_bytes, uint64_t *needed);

#ifdef __cplusplus
}
#endif

#endif /* ROUTECAP_DIAGNOSTICS_H */

/*
 * routecap, chapter 13: diagnostics. To find out why capture loses rows, turn on the log.
 *
 * Copyright 2026 The routecap authors. Licensed under the Apache License, Version 2.0; see LICENSE.
 *
 * The log reports problems, one line of text each. docs/diagnostics.md says how to use it.
 *
 *   routecap_set_log  where lines go
 *
 *     static void print(void *file, routecap_log_level level, const char *text) {
 *         fprintf(file, "%d: %s\n", (int)level, text);
 *     }
 *     ...
 *     routecap_set_log(print, stderr, ROUTECAP_LOG_WARNING);
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
 * Levels. Each level includes the lines of the levels before it.
 *
 * A fault that repeats does not flood the log. Each kind of fault of each capturer gives at most
 * one line a second, with the number of times that it happened since the last line. Faults without
 * a line of their own are counted in the next line of their kind, or in one when the capturer is
 * destroyed. Each error status of a call is logged at most five times a second.
 */
#define ROUTECAP_LOG_OFF 0
#define ROUTECAP_LOG_ERROR 1   /* capture does not work: no device, a lost device, a defect */
#define ROUTECAP_LOG_WARNING 2 /* rows are missing: steps lost, rows refused for memory, layers that
                                  write nothing, ids out of range, a step in flight for ten seconds,
                                  mistakes that checked mode found, blocks that a store refused */
#define ROUTECAP_LOG_INFO 3    /* capturers made and destroyed, with settings and memory; rows of
                                  unknown requests; a worker thread that falls behind */
#define ROUTECAP_LOG_DEBUG 4   /* every call that returned an error, with the error */
typedef int32_t routecap_log_level; /* @one_of(ROUTECAP_LOG_*) */

/*
 * Takes one line.
 *
 * The hook runs on the thread on which something happened: in create, in destroy, in a call that
 * returns an error, and on the worker thread. Without a worker thread it runs in
 * routecap_capturer_progress and in calls that wait. Calls of the forward path that succeed, or
 * that lose a step, never run it. Several threads may run it at once. The library holds no lock
 * meanwhile, so the hook may take a lock that other threads hold while they call routecap. A slow
 * hook delays the thread that runs it; on the worker thread it delays the filing of rows.
 *
 * The hook may call routecap, except for routecap_set_log and routecap_capturer_destroy. Lines that
 * calls made in the hook would log are dropped. If the hook runs on the worker thread, it must not
 * wait for a step or a routing without a timeout: the thread would wait for itself. The hook must
 * not throw, fork or leave by longjmp.
 *
 * `context` is the pointer that was passed to routecap_set_log. level is
 * ROUTECAP_LOG_ERROR..ROUTECAP_LOG_DEBUG. text is one line without a newline, at most 511 bytes and
 * a 0; it is valid during the call.
 */
typedef void (*routecap_log)(void *context, routecap_log_level level, const char *text);

/**
 * Set the log hook of this process.
 *
 * Without a hook, the environment variable ROUTECAP_LOG selects the lines that are written to
 * stderr: "error", "warning", "info" or "debug". If it is not set, no lines are written. It is read
 * once, when the first line is logged.
 *
 * The call waits until no thread runs the previous hook, and the previous hook never runs again. So
 * you may then free its context. Do not hold a lock that the previous hook needs: the call could
 * then wait forever. A child of fork() keeps the hook.
 *
 * @param[in] log      The hook. NULL: no hook, and ROUTECAP_LOG applies again.
 * @param[in] context  Passed to log.
 * @param[in] level    ROUTECAP_LOG_*: the lines that the hook gets; 0 without a hook.
 * @return ROUTECAP_OK; ROUTECAP_ERR_ARGUMENT (level is none of these, or not 0 without a hook);
 *         ROUTECAP_ERR_STATE (called by a hook).
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_set_log(routecap_log log, void *context, routecap_log_level level);

#ifdef __cplusplus
}
#endif

#endif /* ROUTECAP_DIAGNOSTICS_H */

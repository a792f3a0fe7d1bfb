/*
 * How a program writes into the trace of its driver calls: what the tracing driver (trace_cuda.cc)
 * has beside a driver's functions. A program finds them by dlsym in "libcuda.so.1", which is the
 * tracing driver where its folder comes first in LD_LIBRARY_PATH.
 */
#ifndef ROUTECAP_TRACE_CUDA_H
#define ROUTECAP_TRACE_CUDA_H

#ifdef __cplusplus
extern "C" {
#endif

/* Functions of the driver that an engine calls and the library does not: F(name without cu, version
 * of its signature). They are traced like those of src/backend/cuda/driver.h; whatever else a
 * program finds in the driver is not. */
#define TRACE_ENGINE_FUNCTIONS(F)       \
    F(CtxSetCurrent, 4000)              \
    F(CtxSynchronize, 2000)             \
    F(LaunchHostFunc, 10000)            \
    F(StreamBeginCapture, 10010)        \
    F(StreamEndCapture, 10000)          \
    F(GraphInstantiateWithFlags, 11040) \
    F(GraphLaunch, 10000)               \
    F(GraphExecDestroy, 10000)          \
    F(GraphDestroy, 10000)

/* Writes a line. The thread that does so first is the one whose calls are written from then on, one
 * a line in their order. */
void trace_cuda_note(const char *line);

/* The names of the functions that other threads have called, sorted, each once, with spaces
 * between. Valid until the next call. */
const char *trace_cuda_elsewhere(void);

#ifdef __cplusplus
}
#endif

#endif /* ROUTECAP_TRACE_CUDA_H */

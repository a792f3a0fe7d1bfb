// Package cudatest is what tests need of an engine on a GPU: memory, streams and graphs, through
// the driver that is loaded at run time. Its tests are those of package routecap on the CUDA
// backend.
package cudatest

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

// What of the driver API an engine needs. Handles are pointers; CUdeviceptr and streams are numbers
// here.
static struct {
    int (*Init)(unsigned);
    int (*DevicePrimaryCtxRetain)(void **, int);
    int (*CtxSetCurrent)(void *);
    int (*MemAlloc)(uintptr_t *, size_t);
    int (*MemFree)(uintptr_t);
    int (*MemHostAlloc)(void **, size_t, unsigned);
    int (*MemcpyAsync)(uintptr_t, uintptr_t, size_t, uintptr_t);
    int (*StreamCreate)(uintptr_t *, unsigned);
    int (*StreamDestroy)(uintptr_t);
    int (*StreamSynchronize)(uintptr_t);
    int (*StreamBeginCapture)(uintptr_t, int);
    int (*StreamEndCapture)(uintptr_t, void **);
    int (*GraphInstantiateWithFlags)(void **, void *, unsigned long long);
    int (*GraphLaunch)(void *, uintptr_t);
    int (*GraphExecDestroy)(void *);
    int (*GraphDestroy)(void *);
} driver;
static void *context;

// What went wrong last, and its result.
static const char *failed;

static int load(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) {
        failed = "dlopen of libcuda.so.1";
        return -1;
    }
    int (*get)(const char *, void **, int, unsigned long long, void *) = dlsym(library, "cuGetProcAddress_v2");
    if (get == NULL) {
        failed = "cuGetProcAddress_v2";
        return -1;
    }
#define FIND(name, version) { failed = "cu" #name; int r = get(failed, (void **)&driver.name, version, 0, NULL); if (r != 0) return r; }
    FIND(Init, 2000) FIND(DevicePrimaryCtxRetain, 7000) FIND(CtxSetCurrent, 4000) FIND(MemAlloc, 3020) FIND(MemFree, 3020)
    FIND(MemHostAlloc, 2020) FIND(MemcpyAsync, 4000) FIND(StreamCreate, 2000) FIND(StreamDestroy, 4000) FIND(StreamSynchronize, 2000)
    FIND(StreamBeginCapture, 10010) FIND(StreamEndCapture, 10000) FIND(GraphInstantiateWithFlags, 11040) FIND(GraphLaunch, 10000)
    FIND(GraphExecDestroy, 10000) FIND(GraphDestroy, 10000)
    failed = "cuInit";
    int r = driver.Init(0);
    if (r != 0) return r;
    failed = "cuDevicePrimaryCtxRetain";
    return driver.DevicePrimaryCtxRetain(&context, 0);
}

// Goroutines change threads, and a context is current on one: so every call makes it current.
#define CALL(name, ...) (failed = "cu" #name, driver.CtxSetCurrent(context) != 0 ? -1 : driver.name(__VA_ARGS__))

static int allocate(uintptr_t *memory, size_t bytes) { return CALL(MemAlloc, memory, bytes); }
static int release(uintptr_t memory) { return CALL(MemFree, memory); }
static int allocate_host(void **memory, size_t bytes) { return CALL(MemHostAlloc, memory, bytes, 0); }
static int copy(uintptr_t to, uintptr_t from, size_t bytes, uintptr_t stream) {
    int r = CALL(MemcpyAsync, to, from, bytes, stream);
    return r != 0 ? r : CALL(StreamSynchronize, stream);
}
static int synchronize(uintptr_t stream) { return CALL(StreamSynchronize, stream); }
static int create_stream(uintptr_t *stream) { return CALL(StreamCreate, stream, 1); }
static int destroy_stream(uintptr_t stream) { return CALL(StreamDestroy, stream); }
static int begin_capture(uintptr_t stream) { return CALL(StreamBeginCapture, stream, 2); }
static int end_capture(uintptr_t stream, void **replay) {
    void *graph = NULL;
    int r = CALL(StreamEndCapture, stream, &graph);
    if (r == 0) r = CALL(GraphInstantiateWithFlags, replay, graph, 0);
    return r != 0 ? r : CALL(GraphDestroy, graph);
}
static int launch(void *replay, uintptr_t stream) { return CALL(GraphLaunch, replay, stream); }
static int destroy_graph(void *replay) { return CALL(GraphExecDestroy, replay); }
static const char *what_failed(void) { return failed; }
*/
import "C"

import (
	"fmt"
	"sync"
	"unsafe"
)

var load = sync.OnceValue(func() error { return failure(C.load()) })

func failure(code C.int) error {
	if code == 0 {
		return nil
	}
	return fmt.Errorf("%s: %d", C.GoString(C.what_failed()), code)
}

func check(code C.int) {
	if err := failure(code); err != nil {
		panic(err)
	}
}

const stagingBytes = 1 << 20

// Device is an engine's device: a stream, and memory that lives as long. Its methods are called by
// one goroutine at a time, and panic where the driver refuses something.
type Device struct {
	Stream  uintptr
	staging unsafe.Pointer // page-locked
	memory  []C.uintptr_t
}

// Open makes a device; it fails where there is no driver or no GPU.
func Open() (*Device, error) {
	if err := load(); err != nil {
		return nil, err
	}
	d := &Device{}
	var stream C.uintptr_t
	check(C.create_stream(&stream))
	check(C.allocate_host(&d.staging, stagingBytes))
	d.Stream = uintptr(stream)
	return d, nil
}

// Close waits for the stream's work and gives everything back but the page-locked memory.
func (d *Device) Close() {
	d.Synchronize()
	for _, m := range d.memory {
		check(C.release(m))
	}
	check(C.destroy_stream(C.uintptr_t(d.Stream)))
}

// Allocate returns the address of memory of the device.
func (d *Device) Allocate(bytes int) uintptr {
	var memory C.uintptr_t
	check(C.allocate(&memory, C.size_t(bytes)))
	d.memory = append(d.memory, memory)
	return uintptr(memory)
}

// Write copies bytes to memory of the device, behind all work of the stream.
func (d *Device) Write(to uintptr, from []byte) {
	copy(unsafe.Slice((*byte)(d.staging), stagingBytes), from)
	check(
		C.copy(
			C.uintptr_t(to),
			C.uintptr_t(uintptr(d.staging)),
			C.size_t(len(from)),
			C.uintptr_t(d.Stream),
		),
	)
}

// Read copies bytes from memory of the device, behind all work of the stream.
func (d *Device) Read(to []byte, from uintptr) {
	check(
		C.copy(
			C.uintptr_t(uintptr(d.staging)),
			C.uintptr_t(from),
			C.size_t(len(to)),
			C.uintptr_t(d.Stream),
		),
	)
	copy(to, unsafe.Slice((*byte)(d.staging), stagingBytes))
}

// Synchronize waits for all work of the stream.
func (d *Device) Synchronize() { check(C.synchronize(C.uintptr_t(d.Stream))) }

// Graph is a captured forward pass.
type Graph struct{ replay unsafe.Pointer }

// Capture captures what f enqueues on the device's stream. A test that fails in f ends the capture
// too: otherwise whatever cleans up would be refused by the driver.
func (d *Device) Capture(f func()) *Graph {
	check(C.begin_capture(C.uintptr_t(d.Stream)))
	g := &Graph{}
	defer func() { check(C.end_capture(C.uintptr_t(d.Stream), &g.replay)) }()
	f()
	return g
}

// Launch replays the graph on the device's stream.
func (g *Graph) Launch(d *Device) { check(C.launch(g.replay, C.uintptr_t(d.Stream))) }

// Close destroys the graph.
func (g *Graph) Close() { check(C.destroy_graph(g.replay)) }

// A CUDA driver on host memory: libcuda.so.1 for machines without a GPU, on which the CUDA
// backend's tests run as they do on a GPU.
//
// Here: how functions are found, devices, contexts and kernels, and what tests control
// (fake_cuda.h). fake_memory.cc, fake_streams.cc and fake_graphs.cc hold the rest, fake_state.h
// what they share. What it answers, in captures, without a context, on a lost device, was compared
// call by call with a driver of CUDA 13.0.
//
// It differs from a driver, on purpose, where that hides a mistake. Each of these is a violation,
// which tests can count:
//   - memory that is in no live allocation is refused by copies, fills and writes
//   (CUDA_ERROR_INVALID_VALUE), pageable memory by
//     cuMemcpyAsync too, and looked for again when the work's turn comes; new memory holds 0xcd
//   - a destroyed or unknown stream, event, graph or user object is refused, as is releasing more
//   references than there are
//   - cuStreamWaitValue64 waits for all work before it, and the value is there then
//   - cuMemFreeHost waits for nothing, so that work which is still to use its memory finds it gone
//   - any call inside a kernel, a host function or the destructor of a user object is refused
//   (CUDA_ERROR_NOT_PERMITTED)
//   - whatever invalidates a capture is one; cuStreamWriteValue64 does, although a driver captures
//   it
// It knows less:
//   - graphs have kernels, copies, fills and host functions; their nodes run one after another, in
//   the launching stream's order
//   - no event flags but those of timing and blocking, no external waits or records, no edge data,
//   no cuGraphExecUpdate, no per-thread
//     default streams but by their handle; of every function one signature
//   - kernels are those of kernels/list.h, on the host, whatever cuLibraryLoadData is given, and
//   those of the test. Two of the list
//     never run at once, for their host bodies count without atomics. Grids and blocks only have to
//     be such as the device could launch
//   - streams and events of a context whose last reference was released answer
//   CUDA_ERROR_CONTEXT_IS_DESTROYED, its memory is freed
//   - cuMemFree and cuMemFreeHost wait for all work of the context, as a driver does, but hold up
//   no other call meanwhile
// On a lost device these still work: cuInit and what asks for versions, names, devices and
// attributes, contexts and their stack, the capture mode of a thread, libraries, what pointers are,
// user objects, and cuGraphCreate, cuGraphDestroy and cuGraphExecDestroy.
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "fake_state.h"
#include "kernels/list.h"

#define FAKE_EXPORT extern "C" __attribute__((visibility("default")))

namespace fake {
namespace {

// ---- Kernels -----------------------------------------------------------------------------------

// The host's form of a kernel of kernels/list.h, as kernels.cu has the device's.
template <class Body>
void run_body(const void *params, void *) {
    const Body &body = *static_cast<const Body *>(params);
    const uint64_t inner = body.inner(), items = body.outer() * inner;
    for (uint64_t i = 0; i < items; i++)
        body.item(static_cast<uint32_t>(i / inner), static_cast<uint32_t>(i % inner));
    if constexpr (requires { body.once(); }) body.once();
    if constexpr (requires { body.last(); }) body.last();
}

// The launch bound of kernels.cu.
constexpr unsigned kMaxThreads = 128;

void add_library_kernels(std::deque<Kernel> &to) {
    using namespace routecap::kernels;
#define FAKE_KERNEL(name, Body) \
    to.push_back({#name, sizeof(Body), run_body<Body>, nullptr, kMaxThreads, true});
    ROUTECAP_KERNELS(FAKE_KERNEL)
#undef FAKE_KERNEL
}

int number_in_environment(const char *name, int otherwise) {
    const char *text = std::getenv(name);
    return text == nullptr || *text == 0 ? otherwise : std::atoi(text);
}

// ---- Devices, contexts, libraries --------------------------------------------------------------

CUresult Init(unsigned flags) {
    return call({"cuInit", kWhenLost | kBeforeInit}, [&](State &s, Lock &) {
        if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
        if (s.devices == 0) return CUDA_ERROR_NO_DEVICE;
        s.initialised = true;
        return CUDA_SUCCESS;
    });
}

CUresult DriverGetVersion(int *version) {
    return call({"cuDriverGetVersion", kWhenLost | kBeforeInit}, [&](State &s, Lock &) {
        if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
        *version = s.version;
        return CUDA_SUCCESS;
    });
}

const char *error_name(CUresult result) {
    switch (result) {
#define FAKE_NAME(name) \
    case name: return #name;
        FAKE_NAME(CUDA_SUCCESS)
        FAKE_NAME(CUDA_ERROR_INVALID_VALUE)
        FAKE_NAME(CUDA_ERROR_OUT_OF_MEMORY)
        FAKE_NAME(CUDA_ERROR_NOT_INITIALIZED)
        FAKE_NAME(CUDA_ERROR_DEINITIALIZED)
        FAKE_NAME(CUDA_ERROR_NO_DEVICE)
        FAKE_NAME(CUDA_ERROR_INVALID_DEVICE)
        FAKE_NAME(CUDA_ERROR_DEVICE_UNAVAILABLE)
        FAKE_NAME(CUDA_ERROR_INVALID_IMAGE)
        FAKE_NAME(CUDA_ERROR_INVALID_CONTEXT)
        FAKE_NAME(CUDA_ERROR_NO_BINARY_FOR_GPU)
        FAKE_NAME(CUDA_ERROR_ECC_UNCORRECTABLE)
        FAKE_NAME(CUDA_ERROR_INVALID_HANDLE)
        FAKE_NAME(CUDA_ERROR_ILLEGAL_STATE)
        FAKE_NAME(CUDA_ERROR_NOT_FOUND)
        FAKE_NAME(CUDA_ERROR_NOT_READY)
        FAKE_NAME(CUDA_ERROR_ILLEGAL_ADDRESS)
        FAKE_NAME(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES)
        FAKE_NAME(CUDA_ERROR_LAUNCH_TIMEOUT)
        FAKE_NAME(CUDA_ERROR_CONTEXT_IS_DESTROYED)
        FAKE_NAME(CUDA_ERROR_ASSERT)
        FAKE_NAME(CUDA_ERROR_LAUNCH_FAILED)
        FAKE_NAME(CUDA_ERROR_NOT_PERMITTED)
        FAKE_NAME(CUDA_ERROR_NOT_SUPPORTED)
        FAKE_NAME(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH)
        FAKE_NAME(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
        FAKE_NAME(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
        FAKE_NAME(CUDA_ERROR_STREAM_CAPTURE_MERGE)
        FAKE_NAME(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED)
        FAKE_NAME(CUDA_ERROR_STREAM_CAPTURE_UNJOINED)
        FAKE_NAME(CUDA_ERROR_STREAM_CAPTURE_ISOLATION)
        FAKE_NAME(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
        FAKE_NAME(CUDA_ERROR_CAPTURED_EVENT)
        FAKE_NAME(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)
        FAKE_NAME(CUDA_ERROR_UNKNOWN)
#undef FAKE_NAME
        default: return nullptr;
    }
}

CUresult GetErrorName(CUresult result, const char **name) {
    return call({"cuGetErrorName", kWhenLost | kBeforeInit}, [&](State &, Lock &) {
        if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
        *name = error_name(result);
        return *name == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    });
}

CUresult DeviceGetCount(int *count) {
    return call({"cuDeviceGetCount", kWhenLost}, [&](State &s, Lock &) {
        if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
        *count = s.devices;
        return CUDA_SUCCESS;
    });
}

CUresult DeviceGet(CUdevice *device, int ordinal) {
    return call({"cuDeviceGet", kWhenLost}, [&](State &s, Lock &) {
        if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
        if (ordinal < 0 || ordinal >= s.devices) return CUDA_ERROR_INVALID_DEVICE;
        *device = ordinal;
        return CUDA_SUCCESS;
    });
}

CUresult DeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    return call({"cuDeviceGetAttribute", kWhenLost}, [&](State &s, Lock &) {
        if (value == nullptr || attribute <= 0 || attribute >= CU_DEVICE_ATTRIBUTE_MAX)
            return CUDA_ERROR_INVALID_VALUE;
        if (device < 0 || device >= s.devices) return CUDA_ERROR_INVALID_DEVICE;
        const auto it = s.attributes.find(attribute);
        *value = it == s.attributes.end() ? 0 : it->second;
        return CUDA_SUCCESS;
    });
}

CUresult DevicePrimaryCtxRetain(CUcontext *out, CUdevice device) {
    return call({"cuDevicePrimaryCtxRetain", kWhenLost}, [&](State &s, Lock &) {
        if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
        if (device < 0 || device >= s.devices) return CUDA_ERROR_INVALID_DEVICE;
        Context *&context = s.primary[device];
        if (context != nullptr) {
            context->references++;
        } else {
            auto made = std::make_unique<Context>(Context{device});
            context = made.get();
            context->legacy = s.make_stream(context, Stream::Type::kLegacy, true);
            s.contexts[context] = std::move(made);
        }
        *out = reinterpret_cast<CUcontext>(context);
        return CUDA_SUCCESS;
    });
}

CUresult DevicePrimaryCtxRelease(CUdevice device) {
    return call({"cuDevicePrimaryCtxRelease", kWhenLost}, [&](State &s, Lock &) {
        if (device < 0 || device >= s.devices) return CUDA_ERROR_INVALID_DEVICE;
        const auto it = s.primary.find(device);
        if (it == s.primary.end()) {
            s.violation("cuDevicePrimaryCtxRelease of a context that is not retained");
            return CUDA_ERROR_INVALID_CONTEXT;
        }
        if (--it->second->references != 0) return CUDA_SUCCESS;
        it->second->destroyed = true;
        s.free_memory_of(it->second);
        s.primary.erase(it);
        return CUDA_SUCCESS;
    });
}

CUfunction function_of(const Kernel &kernel) {
    return reinterpret_cast<CUfunction>(const_cast<char *>(&kernel.function));
}

Context *find_context(const State &s, CUcontext handle) {
    const auto it = s.contexts.find(handle);
    return it == s.contexts.end() ? nullptr : it->second.get();
}

CUresult CtxGetCurrent(CUcontext *out) {
    return call({"cuCtxGetCurrent", kWhenLost}, [&](State &, Lock &) {
        if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
        *out = reinterpret_cast<CUcontext>(current());
        return CUDA_SUCCESS;
    });
}

CUresult CtxSetCurrent(CUcontext handle) {
    return call({"cuCtxSetCurrent", kWhenLost}, [&](State &s, Lock &) {
        Context *const context = find_context(s, handle);
        if (handle != nullptr && context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
        if (!t_contexts.empty()) t_contexts.pop_back();
        if (context != nullptr) t_contexts.push_back(context);
        return CUDA_SUCCESS;
    });
}

CUresult CtxPushCurrent(CUcontext handle) {
    return call({"cuCtxPushCurrent", kWhenLost}, [&](State &s, Lock &) {
        if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
        Context *const context = find_context(s, handle);
        if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
        if (context->destroyed) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
        t_contexts.push_back(context);
        return CUDA_SUCCESS;
    });
}

CUresult CtxPopCurrent(CUcontext *out) {
    return call({"cuCtxPopCurrent", kWhenLost}, [&](State &, Lock &) {
        if (t_contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
        if (out != nullptr) *out = reinterpret_cast<CUcontext>(t_contexts.back());
        t_contexts.pop_back();
        return CUDA_SUCCESS;
    });
}

// One library is enough: every kernel there is.
CUresult LibraryLoadData(CUlibrary *out, const void *code, CUjit_option *, void **, unsigned,
                         CUlibraryOption *, void **, unsigned) {
    return call({"cuLibraryLoadData", kWhenLost}, [&](State &s, Lock &) {
        if (out == nullptr || code == nullptr) return CUDA_ERROR_INVALID_VALUE;
        *out = reinterpret_cast<CUlibrary>(&s.kernels);
        return CUDA_SUCCESS;
    });
}

CUresult LibraryGetKernel(CUkernel *out, CUlibrary library, const char *name) {
    return call({"cuLibraryGetKernel", kWhenLost, kNoStream, name == nullptr ? "?" : name},
                [&](State &s, Lock &) {
                    if (out == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
                    if (library != reinterpret_cast<CUlibrary>(&s.kernels))
                        return CUDA_ERROR_INVALID_HANDLE;
                    for (auto it = s.kernels.rbegin(); it != s.kernels.rend(); ++it)
                        if (it->name == name) {
                            *out = reinterpret_cast<CUkernel>(&*it);
                            return CUDA_SUCCESS;
                        }
                    return CUDA_ERROR_NOT_FOUND;
                });
}

const std::vector<Function> &functions() {
    static const auto *const all = [] {
        auto *to = new std::vector<Function>;
        FAKE_ADD(*to, Init, 2000, Init);
        FAKE_ADD(*to, DriverGetVersion, 2020, DriverGetVersion);
        FAKE_ADD(*to, GetErrorName, 6000, GetErrorName);
        FAKE_ADD(*to, DeviceGetCount, 2000, DeviceGetCount);
        FAKE_ADD(*to, DeviceGet, 2000, DeviceGet);
        FAKE_ADD(*to, DeviceGetAttribute, 2000, DeviceGetAttribute);
        FAKE_ADD(*to, DevicePrimaryCtxRetain, 7000, DevicePrimaryCtxRetain);
        FAKE_ADD(*to, DevicePrimaryCtxRelease, 11000, DevicePrimaryCtxRelease);
        FAKE_ADD(*to, CtxGetCurrent, 4000, CtxGetCurrent);
        FAKE_ADD(*to, CtxSetCurrent, 4000, CtxSetCurrent);
        FAKE_ADD(*to, CtxPushCurrent, 4000, CtxPushCurrent);
        FAKE_ADD(*to, CtxPopCurrent, 4000, CtxPopCurrent);
        FAKE_ADD(*to, LibraryLoadData, 12000, LibraryLoadData);
        FAKE_ADD(*to, LibraryGetKernel, 12000, LibraryGetKernel);
        add_memory_functions(*to);
        add_stream_functions(*to);
        add_graph_functions(*to);
        return to;
    }();
    return *all;
}

// ---- Control -----------------------------------------------------------------------------------

// Runs `body(state, lock)` as a call of the control interface.
template <class Body>
auto control(Body body) {
    State &s = state();
    Lock lock(s.mutex);
    return body(s, lock);
}

// As control, and runs what may run after it.
template <class Body>
void control_and_run(Body body) {
    State &s = state();
    Lock lock(s.mutex);
    body(s, lock);
    s.changed.notify_all();
    s.leave(lock);
}

const char *kept(std::string text) {
    static thread_local std::string last;
    last = std::move(text);
    return last.c_str();
}

std::map<int, int> default_attributes() {
    return {
        {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
        {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
        {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 132},
        {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
        {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
        {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, number_in_environment("FAKE_CUDA_MAPS_HOST", 1)},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
        {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
        {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1},
        {CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1},
        {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 1}};
}

// A queue without what has not begun.
void drop_queued(Stream &stream) {
    while (stream.queue.size() > (stream.busy ? 1u : 0u)) {
        Op &op = *stream.queue.back();
        op.done = true;
        op.work = {};
        op.waits.clear();
        op.exec.reset();
        stream.queue.pop_back();
    }
}

void reset() {
    control_and_run([](State &s, Lock &lock) {
        s.version = number_in_environment("FAKE_CUDA_VERSION", 13000);
        s.devices = 2;
        s.attributes = default_attributes();
        s.order = number_in_environment("FAKE_CUDA_ORDER", FAKE_CUDA_OLDEST);
        s.random.seed(1);
        s.abort_on_violation = number_in_environment("FAKE_CUDA_ABORT", 0) != 0;
        s.gate_in = 0;
        s.at_gate = false;
        s.changed.notify_all();
        s.watch = nullptr;
        s.failures.clear();
        s.failed_calls = 0;
        s.failed.clear();
        s.hidden.clear();
        s.longest_delay = number_in_environment("FAKE_CUDA_DELAY", 0);
        if (s.lost) {
            for (Stream *stream : s.working) drop_queued(*stream);
            std::erase_if(s.working, [](const Stream *stream) { return stream->queue.empty(); });
        }
        s.lost = false;
        s.held = false;
        for (auto &[handle, stream] : s.streams) stream->held = Stream::Held::kAsAll;
        s.counts.clear();
        s.tracing = false;
        s.trace.clear();
        s.violations = 0;
        s.violation_text.clear();
        s.set_execution(lock, number_in_environment("FAKE_CUDA_EXECUTION", FAKE_CUDA_AT_ONCE));
    });
}

void set_held(CUstream handle, Stream::Held held) {
    control_and_run([&](State &s, Lock &) {
        Stream *stream;
        if (s.find_stream(handle, stream) == CUDA_SUCCESS) stream->held = held;
    });
}

size_t step(CUstream handle, bool all, size_t operations) {
    State &s = state();
    Lock lock(s.mutex);
    Stream *stream = nullptr;
    if (!all && s.find_stream(handle, stream) != CUDA_SUCCESS) return 0;
    const size_t count = s.run(lock, operations, stream, true);
    s.leave(lock);
    return count;
}

uint64_t count_of(const char *name) {
    return control([&](State &s, Lock &) {
        uint64_t sum = 0;
        for (const auto &[of, count] : s.counts)
            if (name == nullptr || of == name) sum += count;
        return sum;
    });
}

void add_failure(const char *name, uint64_t nth, int result, bool stays,
                 bool loses_device = false) {
    control([&](State &s, Lock &) {
        s.failures.push_back({name, nth, static_cast<CUresult>(result), stays, loses_device});
    });
}

const char *joined(std::set<std::string, std::less<>> State::*names) {
    return kept(control([&](State &s, Lock &) {
        std::string text;
        for (const std::string &name : s.*names) text += (text.empty() ? "" : " ") + name;
        return text;
    }));
}

bool mark(const void *p, auto change) {
    return control([&](State &s, Lock &) {
        uintptr_t base = 0;
        if (s.find(p, 1, &base) == nullptr) return false;
        change(s.allocations[base]);
        return true;
    });
}

const fake_cuda *control_table() {
    static const fake_cuda table = {
        .size = sizeof(fake_cuda),
        .reset = reset,
        .set_version = [](int version) { control([&](State &s, Lock &) { s.version = version; }); },
        .set_devices = [](int count) { control([&](State &s, Lock &) { s.devices = count; }); },
        .set_attribute =
            [](int attribute, int value) {
                control([&](State &s, Lock &) { s.attributes[attribute] = value; });
            },
        .set_execution =
            [](int how) {
                control_and_run([&](State &s, Lock &lock) { s.set_execution(lock, how); });
            },
        .set_order =
            [](int order, uint64_t seed) {
                control([&](State &s, Lock &) {
                    s.order = order;
                    s.random.seed(seed);
                });
            },
        .hold = [] { control([](State &s, Lock &) { s.held = true; }); },
        .hold_stream = [](CUstream stream) { set_held(stream, Stream::Held::kHeld); },
        .release =
            [] {
                control_and_run([](State &s, Lock &) {
                    s.held = false;
                    for (auto &[handle, stream] : s.streams) stream->held = Stream::Held::kAsAll;
                });
            },
        .release_stream = [](CUstream stream) { set_held(stream, Stream::Held::kReleased); },
        .step = [](size_t operations) { return step(nullptr, true, operations); },
        .step_stream = [](CUstream stream,
                          size_t operations) { return step(stream, false, operations); },
        .fail = [](const char *name, uint64_t nth,
                   int result) { add_failure(name, nth, result, false); },
        .fail_from = [](const char *name, uint64_t nth,
                        int result) { add_failure(name, nth, result, true); },
        .fail_any = [](uint64_t nth, int result) { add_failure("", nth, result, false); },
        .lose_device =
            [] {
                control([](State &s, Lock &) {
                    s.lost = true;
                    s.changed.notify_all();
                });
            },
        .add_kernel =
            [](const char *name, size_t bytes, void (*run)(const void *, void *), void *user) {
                return control([&](State &s, Lock &) {
                    s.kernels.push_back({name, bytes, run, user, 1024, false});
                    return function_of(s.kernels.back());
                });
            },
        .mark_managed = [](const void *p) -> int {
            return mark(p, [](Allocation &a) { a.managed = true; });
        },
        .mark_device = [](const void *p, int ordinal) -> int {
            return mark(p, [&](Allocation &a) { a.device = ordinal; });
        },
        .count = count_of,
        .trace_start =
            [](int all_threads) {
                control([&](State &s, Lock &) {
                    s.tracing = true;
                    s.trace_all = all_threads != 0;
                    s.trace_thread = std::this_thread::get_id();
                    s.trace.clear();
                    s.trace_streams.clear();
                });
            },
        .trace = [] { return kept(control([](State &s, Lock &) { return s.trace; })); },
        .trace_stop = [] { control([](State &s, Lock &) { s.tracing = false; }); },
        .violations = [] { return control([](State &s, Lock &) { return s.violations; }); },
        .violation_text =
            [] { return kept(control([](State &s, Lock &) { return s.violation_text; })); },
        .forget_violations =
            [] {
                control([](State &s, Lock &) {
                    s.violations = 0;
                    s.violation_text.clear();
                });
            },
        .live =
            [](fake_cuda_live *out) {
                control([&](State &s, Lock &) {
                    *out = {};
                    for (const auto &[base, a] : s.allocations) {
                        (a.host ? out->host_allocations : out->device_allocations)++;
                        (a.host ? out->host_bytes : out->device_bytes) += a.bytes;
                    }
                    for (const auto &[handle, stream] : s.streams)
                        out->streams += stream->type == Stream::Type::kCreated &&
                                        !stream->destroyed && !stream->context->destroyed;
                    for (const auto &[handle, event] : s.events)
                        out->events += !event->destroyed && !event->context->destroyed;
                    for (const auto &[handle, graph] : s.graphs) out->graphs += !graph->capturing;
                    out->execs = s.execs.size();
                    out->user_objects = s.objects.size();
                    for (const auto &[device, context] : s.primary)
                        out->primary_references += context->references;
                    out->captures = s.captures.size();
                });
            },
        .fail_any_from = [](uint64_t nth, int result) { add_failure("", nth, result, true); },
        .lose_device_at =
            [](uint64_t nth) { add_failure("", nth, CUDA_ERROR_LAUNCH_FAILED, false, true); },
        .exempt = [](int on) { t_exempt = on != 0; },
        .forget_failures = [] { control([](State &s, Lock &) { s.failures.clear(); }); },
        .failures = [] { return control([](State &s, Lock &) { return s.failed_calls; }); },
        .failed = [] { return joined(&State::failed); },
        .hide =
            [](const char *name) {
                control([&](State &s, Lock &) {
                    if (name == nullptr)
                        s.hidden.clear();
                    else
                        s.hidden.insert(name);
                });
            },
        .asked = [] { return joined(&State::asked); },
        .inside = []() -> int { return t_calling; },
        .blocks =
            [](const char *kernel) {
                return control([&](State &s, Lock &) {
                    const auto it = s.blocks.find(kernel);
                    return it == s.blocks.end() ? uint64_t{0} : it->second;
                });
            },
        .close_gate =
            [](uint64_t nth) {
                control([&](State &s, Lock &) {
                    s.gate_thread = std::this_thread::get_id();
                    s.gate_in = nth;
                });
            },
        .at_gate = []() -> int { return control([](State &s, Lock &) { return s.at_gate; }); },
        .open_gate =
            [] {
                control([](State &s, Lock &) {
                    s.gate_in = 0;
                    s.at_gate = false;
                    s.changed.notify_all();
                });
            },
        .watch = [](void (*called)(const char *)) { state().watch = called; },
    };
    return &table;
}

}  // namespace

State &state() {
    static auto *const made = new State;
    return *made;
}

State::State() { add_library_kernels(kernels); }

// What is common to all calls: counting, tracing, and the reasons to refuse one.
CUresult State::enter(const CallInfo &info) {
    const std::thread::id thread = std::this_thread::get_id();
    counts[info.name]++;
    if (tracing && (trace_all || thread == trace_thread)) {
        trace += info.name;
        if (info.stream == nullptr || info.stream == CU_STREAM_LEGACY) {
            trace += " legacy";
        } else if (info.stream == CU_STREAM_PER_THREAD) {
            trace += " thread";
        } else if (info.stream != kNoStream) {
            size_t n = 0;
            while (n < trace_streams.size() && trace_streams[n] != info.stream) n++;
            if (n == trace_streams.size()) trace_streams.push_back(info.stream);
            trace += " " + std::to_string(n + 1);
        }
        if (*info.detail != 0) trace += std::string(" ") + info.detail;
        trace += "\n";
    }
    if (t_inside != nullptr) {
        violation("%s is called inside %s", info.name, t_inside);
        return CUDA_ERROR_NOT_PERMITTED;
    }
    CUresult injected = CUDA_SUCCESS;
    for (auto it = failures.begin(); it != failures.end() && !t_exempt;) {
        if (!it->name.empty() && it->name != info.name) {
            ++it;
            continue;
        }
        if (it->in > 1) {
            it->in--;
            ++it;
            continue;
        }
        injected = it->result;
        if (it->loses_device) {
            lost = true;
            changed.notify_all();
        }
        it = it->stays ? std::next(it) : failures.erase(it);
    }
    if (injected != CUDA_SUCCESS) {
        failed_calls++;
        failed.insert(info.name);
        return injected;
    }
    if (!initialised && (info.needs & kBeforeInit) == 0) return CUDA_ERROR_NOT_INITIALIZED;
    if (lost && (info.needs & kWhenLost) == 0) return CUDA_ERROR_LAUNCH_FAILED;
    if ((info.needs & kContext) != 0) {
        if (current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
        if (current()->destroyed) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    return (info.needs & kUnsafe) != 0 ? check_safe(info.name) : CUDA_SUCCESS;
}

// After every call: work that can run at once, and destructors of user objects.
void State::leave(Lock &lock) {
    if (t_inside != nullptr) return;
    if (execution == FAKE_CUDA_AT_ONCE) run(lock, SIZE_MAX);
    while (!destructors.empty()) {
        const auto [destroy, user] = destructors.back();
        destructors.pop_back();
        outside(lock, "the destructor of a user object",
                [destroy = destroy, user = user] { destroy(user); });
    }
}

void State::pass_gate(Lock &lock) {
    if (gate_in == 0 || gate_thread != std::this_thread::get_id() || --gate_in > 0) return;
    at_gate = true;
    changed.wait(lock, [this] { return !at_gate; });
}

void State::violation(const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    std::vsnprintf(text, sizeof text, format, args);
    va_end(args);
    violations++;
    if (violations <= 100) violation_text += std::string(text) + "\n";
    if (!abort_on_violation) return;
    std::fprintf(stderr, "fake CUDA driver: %s\n", text);
    std::abort();
}

const Kernel *State::find_kernel(const void *handle) const {
    for (const Kernel &kernel : kernels)
        if (&kernel == handle || &kernel.function == handle) return &kernel;
    return nullptr;
}

bool State::is_function(const void *handle) const {
    const Kernel *kernel = find_kernel(handle);
    return kernel != nullptr && kernel != handle;
}

namespace {
// Settings of the environment hold from the start.
[[maybe_unused]] const bool loaded = (reset(), true);
}  // namespace

}  // namespace fake

FAKE_EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **out, int version, cuuint64_t,
                                         CUdriverProcAddressQueryResult *found) {
    if (symbol == nullptr || out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *out = nullptr;
    const fake::Calling calling;
    CUdriverProcAddressQueryResult result = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    int driver_version = 0;
    bool hidden = false;
    fake::control([&](fake::State &s, fake::Lock &) {
        s.asked.insert(symbol);
        driver_version = s.version;
        hidden = s.hidden.contains(symbol);
    });
    if (version > driver_version) return CUDA_ERROR_INVALID_VALUE;
    for (const fake::Function &function : fake::functions()) {
        if (hidden || std::strcmp(function.name, symbol) != 0) continue;
        const bool new_enough = function.version <= version;
        result =
            new_enough ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
        if (new_enough) *out = function.address;
        break;
    }
    if (found != nullptr) *found = result;
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDriverGetVersion(int *version) { return fake::DriverGetVersion(version); }
FAKE_EXPORT CUresult cuInit(unsigned flags) { return fake::Init(flags); }

FAKE_EXPORT const fake_cuda *fake_cuda_control(void) { return fake::control_table(); }

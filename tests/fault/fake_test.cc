// The fake driver's own tests: what it promises about a driver's behaviour, and what tests control.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fake_cuda.h"
#include "kernels/list.h"
#include "src/backend/cuda/driver.h"

namespace {

// What the driver allocates next lies here, if it is no nullptr.
void *place = nullptr;
alignas(256) std::byte placed[512];

}  // namespace

// The driver's memory.
void *operator new(size_t bytes, std::align_val_t alignment, const std::nothrow_t &) noexcept {
    if (place != nullptr) return std::exchange(place, nullptr);
    const auto multiple = static_cast<size_t>(alignment);
    return std::aligned_alloc(multiple, (bytes + multiple - 1) / multiple * multiple);
}
void operator delete(void *memory, std::align_val_t) noexcept {
    if (memory != placed) std::free(memory);
}

namespace {

using namespace routecap::kernels;

// What these tests call beside the library's functions.
#define TEST_FUNCTIONS(F)               \
    F(CtxSetCurrent, 4000)              \
    F(CtxSynchronize, 2000)             \
    F(MemcpyHtoD, 3020)                 \
    F(MemcpyDtoH, 3020)                 \
    F(EventQuery, 2000)                 \
    F(EventSynchronize, 2000)           \
    F(StreamBeginCapture, 10010)        \
    F(StreamEndCapture, 10000)          \
    F(StreamIsCapturing, 10000)         \
    F(LaunchHostFunc, 10000)            \
    F(GraphInstantiateWithFlags, 11040) \
    F(GraphLaunch, 10000)               \
    F(GraphExecDestroy, 10000)          \
    F(GraphDestroy, 10000)

struct Driver {
#define MEMBER(name, version) PFN_cu##name##_v##version name = nullptr;
    ROUTECAP_DRIVER_FUNCTIONS(MEMBER)
    TEST_FUNCTIONS(MEMBER)
#undef MEMBER
};

PFN_cuGetProcAddress_v12000 get_address;
const fake_cuda *fake;

const Driver &cu() {
    static const Driver driver = [] {
        Driver d;
        void *library = dlopen("libcuda.so.1", RTLD_NOW);
        if (library == nullptr) throw std::runtime_error(dlerror());
        get_address =
            reinterpret_cast<PFN_cuGetProcAddress_v12000>(dlsym(library, "cuGetProcAddress_v2"));
        fake =
            reinterpret_cast<decltype(&fake_cuda_control)>(dlsym(library, "fake_cuda_control"))();
#define FIND(name, version)                                                                     \
    {                                                                                           \
        void *address = nullptr;                                                                \
        get_address("cu" #name, &address, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, nullptr); \
        d.name = reinterpret_cast<PFN_cu##name##_v##version>(address);                          \
        if (address == nullptr) throw std::runtime_error("no cu" #name);                        \
    }
        ROUTECAP_DRIVER_FUNCTIONS(FIND)
        TEST_FUNCTIONS(FIND)
#undef FIND
        d.Init(0);
        return d;
    }();
    return driver;
}

#define OK(call) ASSERT_EQ(CUDA_SUCCESS, (call))
#define IS(result, call) EXPECT_EQ(CUDA_ERROR_##result, (call))

class Fake : public testing::Test {
protected:
    void SetUp() override {
        cu();
        fake->reset();
        OK(cu().DevicePrimaryCtxRetain(&context, 0));
        OK(cu().CtxPushCurrent(context));
    }
    void TearDown() override {
        fake->release();
        OK(cu().CtxPopCurrent(nullptr));
        OK(cu().DevicePrimaryCtxRelease(0));
        fake_cuda_live live;
        fake->live(&live);
        EXPECT_EQ(live.device_allocations + live.host_allocations + live.streams + live.events +
                      live.captures,
                  0u);
        EXPECT_EQ(live.primary_references, 0u);
        EXPECT_EQ(fake->violations(), expected_violations) << fake->violation_text();
        fake->reset();
    }

    static CUstream stream(unsigned flags = CU_STREAM_NON_BLOCKING) {
        CUstream made = nullptr;
        EXPECT_EQ(CUDA_SUCCESS, cu().StreamCreate(&made, flags));
        return made;
    }
    static CUevent event() {
        CUevent made = nullptr;
        EXPECT_EQ(CUDA_SUCCESS, cu().EventCreate(&made, CU_EVENT_DISABLE_TIMING));
        return made;
    }
    template <class T>
    static T *device(size_t count, T value = {}) {
        CUdeviceptr made = 0;
        EXPECT_EQ(CUDA_SUCCESS, cu().MemAlloc(&made, count * sizeof(T)));
        T *p = reinterpret_cast<T *>(made);
        for (size_t i = 0; i < count; i++) p[i] = value;
        return p;
    }
    static CUdeviceptr address(const void *p) { return reinterpret_cast<CUdeviceptr>(p); }

    // A kernel that writes down its number.
    CUresult launch(int number, CUstream on) {
        void *params[] = {&number};
        return cu().LaunchKernel(note(), 1, 1, 1, 1, 1, 1, 0, on, params, nullptr);
    }
    CUfunction note() {
        if (note_ == nullptr)
            note_ = fake->add_kernel(
                "note", sizeof(int),
                [](const void *params, void *user) {
                    auto *self = static_cast<Fake *>(user);
                    std::lock_guard lock(self->mutex_);
                    self->ran_.push_back(*static_cast<const int *>(params));
                },
                this);
        return note_;
    }
    std::vector<int> ran() {
        std::lock_guard lock(mutex_);
        return std::exchange(ran_, {});
    }
    using Ran = std::vector<int>;

    // Captures what body does with the stream.
    CUgraph capture(CUstream on, const std::function<void()> &body,
                    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) {
        EXPECT_EQ(CUDA_SUCCESS, cu().StreamBeginCapture(on, mode));
        body();
        CUgraph graph = nullptr;
        EXPECT_EQ(CUDA_SUCCESS, cu().StreamEndCapture(on, &graph));
        return graph;
    }
    void replay(CUgraph graph, CUstream on) {
        CUgraphExec exec = nullptr;
        OK(cu().GraphInstantiateWithFlags(&exec, graph, 0));
        OK(cu().GraphLaunch(exec, on));
        OK(cu().GraphExecDestroy(exec));
    }
    // Runs body on a thread of its own, with the context.
    void elsewhere(const std::function<void()> &body) {
        std::thread([&] {
            cu().CtxPushCurrent(context);
            body();
            cu().CtxPopCurrent(nullptr);
        }).join();
    }
    // Adds a kernel to a graph that is being captured, behind what the stream did last.
    CUgraphNode add_note(int number, CUstream on) {
        CUstreamCaptureStatus status;
        CUgraph graph = nullptr;
        const CUgraphNode *dependencies = nullptr;
        const CUgraphEdgeData *edges = nullptr;
        size_t count = 0;
        cuuint64_t id = 0;
        EXPECT_EQ(CUDA_SUCCESS, cu().StreamGetCaptureInfo(on, &status, &id, &graph, &dependencies,
                                                          &edges, &count));
        EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
        void *params[] = {&number};
        CUDA_KERNEL_NODE_PARAMS_v2 node{};
        node.func = note();
        node.gridDimX = node.gridDimY = node.gridDimZ = node.blockDimX = node.blockDimY =
            node.blockDimZ = 1;
        node.kernelParams = params;
        CUgraphNode added = nullptr;
        EXPECT_EQ(CUDA_SUCCESS, cu().GraphAddKernelNode(&added, graph, dependencies, count, &node));
        return added;
    }

    CUcontext context = nullptr;
    uint64_t expected_violations = 0;

private:
    CUfunction note_ = nullptr;
    std::mutex mutex_;
    std::vector<int> ran_;
};

// ---- Finding functions -------------------------------------------------------------------------

TEST_F(Fake, FunctionsAreFoundByVersion) {
    void *address = this;
    CUdriverProcAddressQueryResult found;
    OK(get_address("cuNothing", &address, 12000, 0, &found));
    EXPECT_EQ(address, nullptr);
    EXPECT_EQ(found, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    OK(get_address("cuStreamGetCaptureInfo", &address, 12020, 0, &found));
    EXPECT_EQ(address, nullptr);
    EXPECT_EQ(found, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    OK(get_address("cuMemAlloc", &address, 12000, 0, &found));
    EXPECT_NE(address, nullptr);
    fake->set_version(12020);
    int version = 0;
    OK(cu().DriverGetVersion(&version));
    EXPECT_EQ(version, 12020);
    IS(INVALID_VALUE, get_address("cuStreamGetCaptureInfo", &address, 12030, 0, &found));
}

TEST_F(Fake, ThereAreAsManyDevicesAsATestSays) {
    int count = 0;
    OK(cu().DeviceGetCount(&count));
    EXPECT_EQ(count, 2);
    CUdevice device;
    OK(cu().DeviceGet(&device, 1));
    IS(INVALID_DEVICE, cu().DeviceGet(&device, 2));
    fake->set_devices(5);
    OK(cu().DeviceGet(&device, 4));
    int value = 0;
    fake->set_attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 7);
    OK(cu().DeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 4));
    EXPECT_EQ(value, 7);
}

// ---- Memory ------------------------------------------------------------------------------------

TEST_F(Fake, MemoryHasBounds) {
    expected_violations = 6;
    const CUstream s = stream();
    uint8_t *const p = device<uint8_t>(1000);
    EXPECT_EQ(address(p) % 256, 0u);
    OK(cu().MemsetD8Async(address(p), 7, 1000, s));
    EXPECT_EQ(p[999], 7);
    IS(INVALID_VALUE, cu().MemsetD8Async(address(p), 7, 1001, s));
    IS(INVALID_VALUE, cu().MemsetD8Async(address(p) + 1000, 7, 1, s));
    void *host = nullptr;
    OK(cu().MemHostAlloc(&host, 64, 0));
    OK(cu().MemcpyAsync(address(host), address(p) + 936, 64, s));
    IS(INVALID_VALUE, cu().MemcpyAsync(address(host), address(p) + 936, 65, s));
    // misaligned: refused before its bounds are looked at.
    IS(INVALID_VALUE, cu().StreamWriteValue64(s, address(p) + 996, 1, 0));
    IS(INVALID_VALUE, cu().StreamWriteValue64(s, address(p) + 1000, 1, 0));
    OK(cu().StreamWriteValue64(s, address(p) + 992, 0x0807060504030201, 0));
    EXPECT_EQ(p[999], 8);
    OK(cu().MemFreeHost(host));
    IS(INVALID_VALUE, cu().MemcpyAsync(address(host), address(p), 1, s));
    IS(INVALID_VALUE, cu().MemFree(address(p) + 1));
    OK(cu().MemFree(address(p)));
    OK(cu().MemFree(0));
}

TEST_F(Fake, FreeingWaitsForQueuedWork) {
    uint8_t *const p = device<uint8_t>(8);
    const CUstream s = stream();
    fake->hold();
    OK(cu().MemsetD8Async(address(p), 1, 8, s));
    std::atomic<bool> freed = false;
    std::thread thread([&] {
        cu().CtxPushCurrent(context);
        EXPECT_EQ(CUDA_SUCCESS, cu().MemFree(address(p)));
        freed = true;
        cu().CtxPopCurrent(nullptr);
    });
    while (fake->count("cuMemFree") == 0) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_FALSE(freed);
    fake->release();
    thread.join();
}

TEST_F(Fake, MemoryThatAGraphStillWritesIsMissed) {
    expected_violations = 1;
    uint8_t *const p = device<uint8_t>(8);
    const CUstream s = stream();
    const CUgraph graph = capture(s, [&] { OK(cu().MemsetD8Async(address(p), 1, 8, s)); });
    OK(cu().MemFree(address(p)));
    replay(graph, s);
    OK(cu().GraphDestroy(graph));
}

TEST_F(Fake, PointersAreDescribed) {
    struct {
        CUcontext context;
        unsigned type, managed;
        int device;
    } got;
    CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_CONTEXT, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                   CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                   CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    void *data[] = {&got.context, &got.type, &got.managed, &got.device};
    const auto ask = [&](const void *p) {
        OK(cu().PointerGetAttributes(4, names, data, address(p)));
    };
    uint8_t *const p = device<uint8_t>(100);
    ask(p + 99);
    EXPECT_EQ(got.context, context);
    EXPECT_EQ(got.type, unsigned{CU_MEMORYTYPE_DEVICE});
    EXPECT_EQ(got.managed, 0u);
    EXPECT_EQ(got.device, 0);
    EXPECT_EQ(fake->mark_managed(p + 3), 1);
    EXPECT_EQ(fake->mark_device(p, 1), 1);
    ask(p);
    EXPECT_EQ(got.managed, 1u);
    EXPECT_EQ(got.device, 1);
    void *host = nullptr;
    OK(cu().MemHostAlloc(&host, 8, CU_MEMHOSTALLOC_PORTABLE));
    ask(host);
    EXPECT_EQ(got.type, unsigned{CU_MEMORYTYPE_HOST});
    ask(&got);
    EXPECT_EQ(got.context, nullptr);
    EXPECT_EQ(got.type, 0u);
    EXPECT_EQ(got.device, CU_DEVICE_INVALID);
    EXPECT_EQ(fake->mark_managed(&got), 0);
}

// ---- Streams and events ------------------------------------------------------------------------

TEST_F(Fake, WorkRunsAtOnceOrIsHeld) {
    const CUstream s = stream(), t = stream();
    OK(launch(1, s));
    EXPECT_EQ(ran(), Ran{1});
    fake->hold();
    for (int i = 1; i <= 3; i++) {
        OK(launch(i, s));
        OK(launch(10 * i, t));
    }
    EXPECT_EQ(ran(), Ran{});
    EXPECT_EQ(fake->pending(), 6u);
    IS(NOT_READY, cu().StreamQuery(s));
    EXPECT_EQ(fake->step(3), 3u);
    EXPECT_EQ(ran(), (Ran{1, 10, 2}));
    EXPECT_EQ(fake->step_stream(t, 5), 2u);
    EXPECT_EQ(ran(), (Ran{20, 30}));
    EXPECT_EQ(fake->pending_stream(s), 1u);
    fake->release_stream(s);
    EXPECT_EQ(ran(), Ran{3});
    OK(launch(4, s));
    OK(launch(5, t));
    EXPECT_EQ(ran(), Ran{4});
    fake->release();
    EXPECT_EQ(ran(), Ran{5});
    fake->hold_stream(t);
    OK(launch(6, t));
    OK(launch(7, s));
    EXPECT_EQ(ran(), Ran{7});
    fake->release();
    EXPECT_EQ(ran(), Ran{6});
}

TEST_F(Fake, AnEventThatWasNeverRecordedIsComplete) {
    const CUevent e = event();
    OK(cu().EventQuery(e));
    OK(cu().EventSynchronize(e));
    const CUstream s = stream();
    OK(cu().StreamWaitEvent(s, e, 0));
    OK(launch(1, s));
    EXPECT_EQ(ran(), Ran{1});
}

TEST_F(Fake, AWaitIsForTheRecordThatWasTheLastThen) {
    const CUstream s = stream(), t = stream(), u = stream();
    const CUevent e = event();
    fake->hold();
    OK(launch(1, s));
    OK(cu().EventRecord(e, s));
    OK(cu().StreamWaitEvent(t, e, 0));
    OK(launch(2, t));
    OK(launch(3, s));
    OK(cu().EventRecord(e, s));
    OK(cu().StreamWaitEvent(u, e, 0));
    OK(launch(4, u));
    fake->release_stream(t);
    fake->release_stream(u);
    EXPECT_EQ(ran(), Ran{});
    EXPECT_EQ(fake->step_stream(s, 2), 2u);
    EXPECT_EQ(ran(), (Ran{1, 2}));
    IS(NOT_READY, cu().EventQuery(e));  // recorded again
    EXPECT_EQ(fake->step_stream(s, 2), 2u);
    EXPECT_EQ(ran(), (Ran{3, 4}));
    OK(cu().EventQuery(e));
    OK(cu().EventDestroy(e));
}

TEST_F(Fake, AnEventMayBeDestroyedWhileStreamsWaitForIt) {
    const CUstream s = stream(), t = stream();
    const CUevent e = event();
    fake->hold_stream(s);
    OK(launch(1, s));
    OK(cu().EventRecord(e, s));
    OK(cu().StreamWaitEvent(t, e, 0));
    OK(launch(2, t));
    OK(cu().EventDestroy(e));
    OK(cu().StreamDestroy(t));
    EXPECT_EQ(ran(), Ran{});
    fake->release();
    EXPECT_EQ(ran(), (Ran{1, 2}));
    expected_violations = 2;
    IS(INVALID_HANDLE, cu().EventQuery(e));
    IS(INVALID_HANDLE, launch(3, t));
}

TEST_F(Fake, SynchronisingWaitsUntilAnotherThreadReleases) {
    const CUstream s = stream();
    const CUevent e = event();
    for (const auto &wait : std::vector<std::function<CUresult()>>{
             [&] { return cu().EventSynchronize(e); }, [&] { return cu().StreamSynchronize(s); },
             [] { return cu().CtxSynchronize(); }}) {
        fake->hold();
        OK(launch(1, s));
        OK(cu().EventRecord(e, s));
        std::atomic<bool> done = false;
        std::thread thread([&] {
            cu().CtxPushCurrent(context);
            EXPECT_EQ(CUDA_SUCCESS, wait());
            done = true;
            cu().CtxPopCurrent(nullptr);
        });
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        EXPECT_FALSE(done);
        fake->release();
        thread.join();
        EXPECT_EQ(ran(), Ran{1});
    }
}

TEST_F(Fake, TheLegacyStreamWaitsForBlockingStreamsAndTheyForIt) {
    const CUstream blocking = stream(CU_STREAM_DEFAULT), free = stream();
    fake->set_order(FAKE_CUDA_NEWEST, 0);
    fake->hold();
    OK(launch(1, blocking));
    OK(launch(2, nullptr));
    OK(launch(3, CU_STREAM_PER_THREAD));
    OK(launch(4, free));
    fake->release();
    EXPECT_EQ(ran(), (Ran{4, 1, 2, 3}));
}

TEST_F(Fake, TheNewestWorkCanRunFirst) {
    const CUstream s = stream(), t = stream();
    for (int order : {FAKE_CUDA_OLDEST, FAKE_CUDA_NEWEST}) {
        fake->set_order(order, 0);
        fake->hold();
        OK(launch(1, s));
        OK(launch(2, t));
        fake->release();
        EXPECT_EQ(ran(), order == FAKE_CUDA_OLDEST ? (Ran{1, 2}) : (Ran{2, 1}));
    }
}

TEST_F(Fake, LazyWorkRunsWhenItIsWaitedForAndNoMoreThanThat) {
    fake->set_execution(FAKE_CUDA_LAZY);
    const CUstream s = stream(), t = stream();
    const CUevent e = event(), f = event();
    OK(launch(1, s));
    OK(cu().EventRecord(e, s));
    OK(launch(2, s));
    OK(cu().StreamWaitEvent(t, e, 0));
    OK(launch(3, t));
    OK(cu().EventRecord(f, t));
    EXPECT_EQ(ran(), Ran{});
    OK(cu().EventSynchronize(f));
    EXPECT_EQ(ran(), (Ran{1, 3}));
    IS(NOT_READY, cu().StreamQuery(s));
    OK(cu().StreamQuery(s));
    EXPECT_EQ(ran(), Ran{2});
}

TEST_F(Fake, SynchronousCopiesWaitForTheLegacyStream) {
    uint8_t *const p = device<uint8_t>(4);
    fake->set_execution(FAKE_CUDA_LAZY);
    OK(cu().MemsetD8Async(address(p), 5, 4, nullptr));
    uint8_t back[4] = {};
    OK(cu().MemcpyDtoH(back, address(p), 4));
    EXPECT_EQ(back[3], 5);
    back[3] = 6;
    OK(cu().MemcpyHtoD(address(p), back, 4));
    EXPECT_EQ(p[3], 6);
}

// TSan's allocator leaves no room between two allocations, so that plans met this there.
TEST_F(Fake, HostMemoryRightBehindAnAllocationIsUnknownToTheDriver) {
    place = placed;
    void *pinned = nullptr;
    OK(cu().MemHostAlloc(&pinned, 256, 0));
    ASSERT_EQ(pinned, placed);
    std::byte *const behind = placed + 256;
    uint8_t *const p = device<uint8_t>(256, 7);
    OK(cu().MemcpyDtoH(behind, address(p), 256));
    EXPECT_EQ(behind[255], std::byte{7});
    OK(cu().MemcpyHtoD(address(p), behind, 256));
}

// Memory that begins in an allocation is the driver's, and ends with it.
TEST_F(Fake, ACopyFromTheHostThatRunsBeyondItsAllocationIsRefused) {
    place = placed;
    void *pinned = nullptr;
    OK(cu().MemHostAlloc(&pinned, 256, 0));
    uint8_t *const p = device<uint8_t>(512);
    IS(INVALID_VALUE, cu().MemcpyHtoD(address(p), pinned, 257));
    IS(INVALID_VALUE, cu().MemcpyDtoH(pinned, address(p), 257));
    expected_violations = 2;
}

// Under FAKE_CUDA_AT_ONCE such a copy waited for work that only the end of its own call would have
// run.
TEST_F(Fake, ACopyThatWaitsIsDoneUnderEveryExecution) {
    for (int execution : {FAKE_CUDA_AT_ONCE, FAKE_CUDA_LAZY, FAKE_CUDA_THREADS}) {
        fake->set_execution(execution);
        CUdeviceptr p = 0;
        OK(cu().MemAlloc(&p, 4));
        const uint8_t sent[4] = {1, 2, 3, static_cast<uint8_t>(execution)};
        uint8_t back[4] = {};
        OK(cu().MemcpyHtoD(p, sent, 4));
        OK(cu().MemcpyDtoH(back, p, 4));
        EXPECT_EQ(0, std::memcmp(sent, back, 4));
    }
}

// Under every execution, with events between streams, from several threads: what arrives is what
// was sent.
TEST_F(Fake, ManyThreadsMayUseItAtOnce) {
    for (int execution : {FAKE_CUDA_AT_ONCE, FAKE_CUDA_LAZY, FAKE_CUDA_THREADS}) {
        fake->set_execution(execution);
        std::vector<std::thread> threads;
        for (int n = 0; n < 4; n++)
            threads.emplace_back([&] {
                cu().CtxPushCurrent(context);
                const CUstream s = stream(), side = stream();
                const CUevent done = event(), copied = event();
                void *host = nullptr;
                CUdeviceptr p = 0;
                EXPECT_EQ(CUDA_SUCCESS, cu().MemAlloc(&p, 64));
                EXPECT_EQ(CUDA_SUCCESS, cu().MemHostAlloc(&host, 64, 0));
                for (int i = 0; i < 100; i++) {
                    EXPECT_EQ(CUDA_SUCCESS, cu().StreamWaitEvent(s, copied, 0));
                    EXPECT_EQ(CUDA_SUCCESS,
                              cu().MemsetD8Async(p, static_cast<unsigned char>(i), 64, s));
                    EXPECT_EQ(CUDA_SUCCESS, cu().EventRecord(done, s));
                    EXPECT_EQ(CUDA_SUCCESS, cu().StreamWaitEvent(side, done, 0));
                    EXPECT_EQ(CUDA_SUCCESS, cu().MemcpyAsync(address(host), p, 64, side));
                    EXPECT_EQ(CUDA_SUCCESS, cu().EventRecord(copied, side));
                    if (i % 7 == 0) {
                        EXPECT_EQ(CUDA_SUCCESS, cu().EventSynchronize(copied));
                        EXPECT_EQ(static_cast<unsigned char *>(host)[63], i);
                    }
                }
                EXPECT_EQ(CUDA_SUCCESS, cu().MemFree(p));
                EXPECT_EQ(CUDA_SUCCESS, cu().MemFreeHost(host));
                cu().CtxPopCurrent(nullptr);
            });
        for (std::thread &thread : threads) thread.join();
    }
}

// ---- Kernels -----------------------------------------------------------------------------------

// A sink of two layers with four rows of two ids, and one slot, in the device's memory.
class FakeKernels : public Fake {
protected:
    void make() {
        sink = device<int32_t>(2 * 4 * 2, 3);
        layers = device<SinkLayer>(2);
        for (int l = 0; l < 2; l++) layers[l] = {sink + l * 8, 2, ROUTECAP_DTYPE_I32, 16};
        slot = device<uint8_t>(layout.bytes(), 0xcd);
        control = device<Control>(1);
        std::memset(static_cast<void *>(control), 0, sizeof *control);
        control->named = {0, 9};
        OK(cu().LibraryLoadData(&library, "kernels", nullptr, nullptr, 0, nullptr, nullptr, 0));
    }
    template <class Body>
    void run(const char *name, Body body, CUstream on) {
        CUkernel kernel = nullptr;
        OK(cu().LibraryGetKernel(&kernel, library, name));
        void *params[] = {&body};
        OK(cu().LaunchKernel(reinterpret_cast<CUfunction>(kernel), 1, 1, 1, 128, 1, 1, 0, on,
                             params, nullptr));
        // The launch has taken its copy.
        std::memset(static_cast<void *>(&body), 0xee, sizeof body);
    }
    // A forward pass of two rows that writes one layer, and the ids of row 1 of it.
    void forward(CUstream on, const int32_t *source) {
        run("routecap_begin", Begin{layers, 2, 2, 2, begin_items(2, 2, 4), control, slot, layout},
            on);
        RecordOne<2> record{};
        record.source.row_stride = 2;
        record.source.column_stride = 1;
        record.source.dtype = ROUTECAP_DTYPE_I32;
        record.source.to.rows = 2;
        record.k = 2;
        record.control = control;
        record.layers[0] = {source, nullptr, layers[1]};
        run("routecap_record_2", record, on);
        run("routecap_snapshot8_2", Snapshot8<2>{layers, 2, 2, control, slot, layout}, on);
    }
    void expect_forward() {
        EXPECT_EQ(layout.header(slot)->epoch, 9u);
        EXPECT_EQ(layout.header(slot)->covered, 2u);
        for (uint32_t row = 0; row < 2; row++) EXPECT_EQ(*layout.validity(slot, row), 2);
        const uint8_t *const ids = layout.ids(slot, 1);
        EXPECT_EQ(ids[0], ROUTECAP_MISSING_UNWRITTEN);
        EXPECT_EQ(ids[2], 7);
        EXPECT_EQ(ids[3], 8);
        EXPECT_EQ(layout.header(slot)->snapshots, 1u);
    }
    int32_t *source() {
        auto *const ids = device<int32_t>(4);
        for (int i = 0; i < 4; i++) ids[i] = 5 + i;
        return ids;
    }

    const SlotLayout layout{4, 1, 4};
    int32_t *sink = nullptr;
    SinkLayer *layers = nullptr;
    uint8_t *slot = nullptr;
    Control *control = nullptr;
    CUlibrary library = nullptr;
};

TEST_F(FakeKernels, RunTheirBodiesOnTheHostInEitherOrder) {
    for (int order : {FAKE_CUDA_FORWARD, FAKE_CUDA_BACKWARD}) {
        fake->set_items(order);
        make();
        forward(stream(), source());
        expect_forward();
    }
}

TEST_F(FakeKernels, RunInAGraph) {
    make();
    const CUstream s = stream();
    const int32_t *const ids = source();
    const CUgraph graph = capture(s, [&] { forward(s, ids); });
    EXPECT_STREQ(fake->graph_text(graph),
                 "0 routecap_begin\n1 routecap_record_2 <- 0\n2 routecap_snapshot8_2 <- 1\n");
    EXPECT_EQ(layout.header(slot)->epoch, 0xcdcdcdcdcdcdcdcdu);
    for (int replays = 0; replays < 2; replays++) {
        std::memset(slot, 0xcd, layout.bytes());
        replay(graph, s);
        expect_forward();
    }
    OK(cu().GraphDestroy(graph));
}

TEST_F(FakeKernels, RefuseWhatTheDeviceCannotLaunch) {
    make();
    const CUstream s = stream();
    CUkernel kernel = nullptr;
    IS(NOT_FOUND, cu().LibraryGetKernel(&kernel, library, "routecap_nothing"));
    OK(cu().LibraryGetKernel(&kernel, library, "routecap_begin"));
    const auto function = reinterpret_cast<CUfunction>(kernel);
    Begin body{layers, 2, 2, 2, begin_items(2, 2, 4), control, slot, layout};
    void *params[] = {&body};
    IS(INVALID_VALUE, cu().LaunchKernel(function, 0, 1, 1, 128, 1, 1, 0, s, params, nullptr));
    // More than the launch bounds.
    IS(INVALID_VALUE, cu().LaunchKernel(function, 1, 1, 1, 256, 1, 1, 0, s, params, nullptr));
    IS(INVALID_VALUE, cu().LaunchKernel(function, 1, 1, 1, 128, 1, 1, 0, s, nullptr, nullptr));
    IS(INVALID_HANDLE, cu().LaunchKernel(nullptr, 1, 1, 1, 128, 1, 1, 0, s, params, nullptr));
    // A CUkernel stands for a function in a launch, but not as the function of a node.
    CUDA_KERNEL_NODE_PARAMS_v2 node{};
    node.func = function;
    node.gridDimX = node.gridDimY = node.gridDimZ = node.blockDimX = node.blockDimY =
        node.blockDimZ = 1;
    node.kernelParams = params;
    const CUgraph graph = capture(s, [] {});
    CUgraphNode added = nullptr;
    IS(INVALID_HANDLE, cu().GraphAddKernelNode(&added, graph, nullptr, 0, &node));
    node.func = nullptr;
    node.kern = kernel;
    OK(cu().GraphAddKernelNode(&added, graph, nullptr, 0, &node));
    OK(cu().GraphDestroy(graph));
}

// ---- Capture -----------------------------------------------------------------------------------

class FakeCapture : public Fake {};

TEST_F(FakeCapture, CollectsTheStreamsThatForkAndJoin) {
    const CUstream s = stream(), t = stream();
    const CUevent e = event(), f = event();
    uint8_t *const p = device<uint8_t>(8);
    const CUgraph graph = capture(s, [&] {
        OK(launch(0, s));
        OK(cu().EventRecord(e, s));
        OK(cu().StreamWaitEvent(t, e, 0));
        OK(launch(1, s));
        OK(cu().MemsetD8Async(address(p), 1, 8, t));
        OK(cu().MemcpyAsync(address(p), address(p) + 4, 4, t));
        CUstreamCaptureStatus status;
        OK(cu().StreamIsCapturing(t, &status));
        EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
        OK(cu().EventRecord(f, t));
        OK(cu().StreamWaitEvent(s, f, 0));
        OK(cu().LaunchHostFunc(
            s, [](void *) {}, nullptr));
    });
    EXPECT_STREQ(fake->graph_text(graph),
                 "0 note\n1 note <- 0\n2 set <- 0\n3 copy <- 2\n4 host <- 1 3\n");
    EXPECT_EQ(ran(), Ran{});
    EXPECT_EQ(p[0], 0);
    CUstreamCaptureStatus status;
    OK(cu().StreamIsCapturing(t, &status));
    EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_NONE);
    replay(graph, t);
    EXPECT_EQ(p[0], 1);
    OK(cu().GraphDestroy(graph));
}

TEST_F(FakeCapture, WantsForkedWorkJoinedButNotNodesThatWereAdded) {
    const CUstream s = stream(), t = stream();
    const CUevent e = event();
    OK(cu().StreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(launch(1, s));
    OK(cu().EventRecord(e, s));
    OK(cu().StreamWaitEvent(t, e, 0));
    OK(launch(2, t));
    CUgraph graph = nullptr;
    IS(STREAM_CAPTURE_UNJOINED, cu().StreamEndCapture(s, &graph));
    EXPECT_EQ(graph, nullptr);
    graph = capture(s, [&] {
        OK(launch(1, s));
        add_note(2, s);
        OK(launch(3, s));
        CUgraphNode leaf = add_note(4, s);
        OK(cu().StreamUpdateCaptureDependencies(s, &leaf, nullptr, 1,
                                                CU_STREAM_ADD_CAPTURE_DEPENDENCIES));
        OK(launch(5, s));
        OK(cu().StreamUpdateCaptureDependencies(s, &leaf, nullptr, 1,
                                                CU_STREAM_SET_CAPTURE_DEPENDENCIES));
        OK(launch(6, s));
    });
    EXPECT_STREQ(fake->graph_text(graph),
                 "0 note\n1 note <- 0\n2 note <- 0\n3 note <- 2\n4 note <- 2 3\n5 note <- 3\n");
    OK(cu().GraphDestroy(graph));
    IS(ILLEGAL_STATE, cu().StreamUpdateCaptureDependencies(s, nullptr, nullptr, 0, 0));
}

// The leaf should have been behind node 3: only one of the orders shows it.
TEST_F(FakeCapture, ReplaysInAnAwkwardOrder) {
    const CUstream s = stream();
    const CUgraph graph = capture(s, [&] {
        OK(launch(1, s));
        add_note(2, s);
        OK(launch(3, s));
        OK(launch(4, s));
    });
    for (const auto &[order, expected] :
         std::vector<std::pair<int, Ran>>{{FAKE_CUDA_LEAVES_LAST, {1, 3, 4, 2}},
                                          {FAKE_CUDA_LEAVES_FIRST, {1, 2, 3, 4}},
                                          {FAKE_CUDA_AS_ADDED, {1, 2, 3, 4}}}) {
        fake->set_graph_order(order);
        replay(graph, s);
        EXPECT_EQ(ran(), expected);
    }
    fake->hold();
    replay(graph, s);
    OK(launch(5, s));
    EXPECT_EQ(fake->step(3), 3u);  // one operation stands for the launch itself
    EXPECT_EQ(ran(), (Ran{1, 2}));
    fake->release();
    EXPECT_EQ(ran(), (Ran{3, 4, 5}));
    OK(cu().GraphDestroy(graph));
}

// Every call that might wait, in every mode, on the thread of the capture and on another.
TEST_F(FakeCapture, IsEndedByUnsafeCalls) {
    const CUstream other = stream();
    const CUevent e = event();
    void *memory = nullptr;
    CUdeviceptr device_memory = 0;
    const std::vector<std::function<CUresult()>> unsafe = {
        [&] { return cu().MemAlloc(&device_memory, 8); },
        [&] { return cu().MemHostAlloc(&memory, 8, 0); },
        [&] { return cu().MemFree(0); },
        [&] { return cu().MemFreeHost(nullptr); },
        [&] { return cu().EventQuery(e); },
        [&] { return cu().EventSynchronize(e); },
        [&] { return cu().StreamQuery(other); },
        [&] { return cu().StreamSynchronize(other); }};
    for (auto mode : {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                      CU_STREAM_CAPTURE_MODE_RELAXED})
        for (bool own : {true, false})
            for (auto thread_mode :
                 {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                  CU_STREAM_CAPTURE_MODE_RELAXED})
                for (size_t i = 0; i < unsafe.size(); i++) {
                    SCOPED_TRACE(testing::Message() << mode << own << thread_mode << i);
                    const CUstream s = stream();
                    OK(cu().StreamBeginCapture(s, mode));
                    CUresult result = CUDA_SUCCESS;
                    const auto ask = [&] {
                        CUstreamCaptureMode exchanged = thread_mode;
                        EXPECT_EQ(CUDA_SUCCESS, cu().ThreadExchangeStreamCaptureMode(&exchanged));
                        result = unsafe[i]();
                        EXPECT_EQ(CUDA_SUCCESS, cu().ThreadExchangeStreamCaptureMode(&exchanged));
                        EXPECT_EQ(exchanged, thread_mode);
                    };
                    own ? ask() : elsewhere(ask);
                    const bool forbidden = thread_mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
                                           (own ? mode != CU_STREAM_CAPTURE_MODE_RELAXED
                                                : mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                                                      thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
                    EXPECT_EQ(result,
                              forbidden ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS);
                    CUgraph graph = nullptr;
                    EXPECT_EQ(cu().StreamEndCapture(s, &graph),
                              forbidden ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS);
                    expected_violations += forbidden;
                    if (graph != nullptr) cu().GraphDestroy(graph);
                    OK(cu().MemFree(std::exchange(device_memory, 0)));
                    OK(cu().MemFreeHost(std::exchange(memory, nullptr)));
                    OK(cu().StreamDestroy(s));
                }
}

// What a capture forbids whatever its mode. Each ends it but those of the second list.
TEST_F(FakeCapture, IsEndedByWhatCannotBeCaptured) {
    uint64_t *const p = device<uint64_t>(1);
    const CUstream s = stream(), t = stream(), blocking = stream(CU_STREAM_DEFAULT);
    const CUevent e = event(), never = event(), outside = event();
    OK(cu().EventRecord(outside, t));
    CUgraph graph = nullptr;
    CUstreamCaptureStatus status;
    int number = 0;
    void *params[] = {&number};
    const auto ends = [&](CUresult expected, const std::function<CUresult()> &body, CUstream on) {
        OK(cu().StreamBeginCapture(on, CU_STREAM_CAPTURE_MODE_RELAXED));
        OK(launch(1, on));
        OK(cu().EventRecord(e, on));
        EXPECT_EQ(expected, body());
        OK(cu().StreamIsCapturing(on, &status));
        EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
        IS(STREAM_CAPTURE_INVALIDATED, launch(1, on));
        IS(INVALID_VALUE, cu().EventQuery(e));
        IS(STREAM_CAPTURE_INVALIDATED, cu().StreamEndCapture(on, &graph));
        expected_violations++;
    };
    ends(
        CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, [&] { return cu().StreamSynchronize(s); }, s);
    ends(
        CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, [&] { return cu().StreamQuery(s); }, s);
    ends(
        CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, [&] { return cu().CtxSynchronize(); }, s);
    ends(
        CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
        [&] { return cu().StreamWriteValue64(s, address(p), 1, 0); }, s);
    ends(
        CUDA_ERROR_CAPTURED_EVENT, [&] { return cu().EventQuery(e); }, s);
    ends(
        CUDA_ERROR_CAPTURED_EVENT, [&] { return cu().EventSynchronize(e); }, s);
    ends(
        CUDA_ERROR_STREAM_CAPTURE_ISOLATION, [&] { return cu().StreamWaitEvent(s, outside, 0); },
        s);
    ends(
        CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, [&] { return cu().StreamWaitEvent(nullptr, e, 0); }, s);
    ends(
        CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, [&] { return launch(1, nullptr); }, blocking);
    ends(
        CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, [&] { return cu().StreamSynchronize(nullptr); },
        blocking);
    ends(
        CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, [&] { return cu().MemcpyHtoD(address(p), p, 8); },
        blocking);
    ends(
        CUDA_ERROR_INVALID_VALUE,
        [&] { return cu().LaunchKernel(note(), 0, 1, 1, 1, 1, 1, 0, s, params, nullptr); }, s);

    graph = capture(s, [&] {
        OK(launch(1, nullptr));  // s does not block
        OK(cu().StreamWaitEvent(s, never, 0));
        IS(ILLEGAL_STATE, cu().StreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
        IS(STREAM_CAPTURE_UNSUPPORTED,
           cu().StreamBeginCapture(nullptr, CU_STREAM_CAPTURE_MODE_RELAXED));
        OK(cu().EventRecord(e, s));
    });
    OK(cu().GraphDestroy(graph));
    IS(INVALID_VALUE, cu().EventQuery(e));  // its capture is over
    IS(INVALID_VALUE, cu().StreamWaitEvent(t, e, 0));
    graph = capture(blocking,
                    [&] { IS(STREAM_CAPTURE_IMPLICIT, cu().StreamIsCapturing(nullptr, &status)); });
    OK(cu().GraphDestroy(graph));
    IS(ILLEGAL_STATE, cu().StreamEndCapture(s, &graph));
}

TEST_F(FakeCapture, DoesNotMergeWithAnother) {
    expected_violations = 2;
    const CUstream s = stream(), t = stream();
    const CUevent e = event();
    OK(cu().StreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cu().StreamBeginCapture(t, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cu().EventRecord(e, t));
    IS(STREAM_CAPTURE_MERGE, cu().StreamWaitEvent(s, e, 0));
    CUgraph graph = nullptr;
    IS(STREAM_CAPTURE_INVALIDATED, cu().StreamEndCapture(s, &graph));
    IS(STREAM_CAPTURE_INVALIDATED, cu().StreamEndCapture(t, &graph));
}

TEST_F(FakeCapture, EndsWhereItBegan) {
    expected_violations = 1;
    const CUstream s = stream(), t = stream();
    const CUevent e = event();
    CUgraph graph = nullptr;
    OK(cu().StreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cu().EventRecord(e, s));
    OK(cu().StreamWaitEvent(t, e, 0));
    IS(STREAM_CAPTURE_UNMATCHED, cu().StreamEndCapture(t, &graph));
    IS(STREAM_CAPTURE_INVALIDATED, cu().StreamEndCapture(s, &graph));
    OK(cu().StreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    elsewhere([&] { IS(STREAM_CAPTURE_WRONG_THREAD, cu().StreamEndCapture(s, &graph)); });
    IS(ILLEGAL_STATE, cu().StreamEndCapture(s, &graph));
}

// ---- User objects ------------------------------------------------------------------------------

class FakeObjects : public Fake {
protected:
    CUuserObject object() {
        CUuserObject made = nullptr;
        const CUhostFn count = [](void *into) { ++*static_cast<int *>(into); };
        EXPECT_EQ(CUDA_SUCCESS,
                  cu().UserObjectCreate(&made, &gone, count, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
        return made;
    }
    int gone = 0;
};

TEST_F(FakeObjects, GoWithTheLastOfTheirGraphs) {
    const CUstream s = stream();
    OK(cu().UserObjectRelease(object(), 1));
    EXPECT_EQ(gone, 1);
    CUgraph graph = nullptr;
    const CUuserObject kept = object(), moved = object();
    CUgraph captured = capture(s, [&] {
        CUstreamCaptureStatus status;
        OK(cu().StreamGetCaptureInfo(s, &status, nullptr, &graph, nullptr, nullptr, nullptr));
        OK(cu().GraphRetainUserObject(graph, moved, 1, CU_GRAPH_USER_OBJECT_MOVE));
        OK(cu().GraphRetainUserObject(graph, kept, 1, 0));
        OK(launch(1, s));
    });
    EXPECT_EQ(captured, graph);
    CUgraphExec exec = nullptr;
    OK(cu().GraphInstantiateWithFlags(&exec, graph, 0));
    OK(cu().GraphDestroy(graph));
    EXPECT_EQ(gone, 1);
    fake->hold();
    OK(cu().GraphLaunch(exec, s));
    OK(cu().GraphExecDestroy(exec));
    EXPECT_EQ(gone, 1);  // a launch is in flight
    fake->release();
    EXPECT_EQ(ran(), Ran{1});
    EXPECT_EQ(gone, 2);
    OK(cu().UserObjectRelease(kept, 1));
    EXPECT_EQ(gone, 3);
}

TEST_F(FakeObjects, GoWithACaptureThatFails) {
    expected_violations = 1;
    const CUstream s = stream();
    OK(cu().StreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    CUstreamCaptureStatus status;
    CUgraph graph = nullptr;
    OK(cu().StreamGetCaptureInfo(s, &status, nullptr, &graph, nullptr, nullptr, nullptr));
    OK(cu().GraphRetainUserObject(graph, object(), 1, CU_GRAPH_USER_OBJECT_MOVE));
    IS(STREAM_CAPTURE_UNSUPPORTED, cu().StreamSynchronize(s));
    EXPECT_EQ(gone, 0);
    IS(STREAM_CAPTURE_INVALIDATED, cu().StreamEndCapture(s, &graph));
    EXPECT_EQ(gone, 1);
}

TEST_F(FakeObjects, MayGoLater) {
    fake->set_destructors(FAKE_CUDA_DESTRUCTORS_LATER);
    OK(cu().UserObjectRelease(object(), 1));
    EXPECT_EQ(gone, 0);
    fake->run_destructors();
    EXPECT_EQ(gone, 1);
}

TEST_F(FakeObjects, MayNotCallTheDriver) {
    expected_violations = 2;
    static CUresult result;
    result = CUDA_SUCCESS;
    CUuserObject made = nullptr;
    const CUhostFn destroy = [](void *e) { result = cu().EventQuery(static_cast<CUevent>(e)); };
    OK(cu().UserObjectCreate(&made, event(), destroy, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    OK(cu().UserObjectRelease(made, 1));
    EXPECT_EQ(result, CUDA_ERROR_NOT_PERMITTED);
    const CUuserObject twice = object();
    IS(INVALID_VALUE, cu().UserObjectRelease(twice, 2));
    OK(cu().UserObjectRelease(twice, 1));
    IS(INVALID_VALUE, cu().UserObjectCreate(&made, nullptr, destroy, 1, 0));
}

// ---- Contexts ----------------------------------------------------------------------------------

TEST_F(Fake, OnlySomeCallsNeedACurrentContext) {
    const CUstream s = stream();
    const CUevent e = event();
    uint8_t *const p = device<uint8_t>(8);
    std::thread([&] {
        CUdeviceptr other = 0;
        CUstream made = nullptr;
        CUcontext now = context;
        OK(cu().CtxGetCurrent(&now));
        EXPECT_EQ(now, nullptr);
        IS(INVALID_CONTEXT, cu().MemAlloc(&other, 8));
        IS(INVALID_CONTEXT, cu().StreamCreate(&made, 0));
        IS(INVALID_CONTEXT, launch(1, nullptr));
        OK(launch(1, s));
        OK(cu().EventRecord(e, s));
        OK(cu().EventSynchronize(e));
        OK(cu().MemFree(address(p)));
        OK(cu().CtxSetCurrent(context));
        OK(launch(1, nullptr));
        OK(cu().CtxPopCurrent(&now));
        EXPECT_EQ(now, context);
    }).join();
}

TEST_F(Fake, DevicesHaveContextsOfTheirOwn) {
    const CUstream s = stream();
    const CUevent e = event();
    CUcontext second = nullptr;
    OK(cu().DevicePrimaryCtxRetain(&second, 1));
    EXPECT_NE(second, context);
    OK(cu().CtxPushCurrent(second));
    const CUstream t = stream();
    IS(INVALID_HANDLE, cu().EventRecord(e, t));
    OK(cu().EventRecord(e, s));
    OK(cu().StreamWaitEvent(t, e, 0));
    OK(cu().CtxPopCurrent(nullptr));
    CUcontext again = nullptr;
    OK(cu().DevicePrimaryCtxRetain(&again, 1));
    EXPECT_EQ(again, second);
    OK(cu().DevicePrimaryCtxRelease(1));
    OK(cu().EventRecord(e, s));
    OK(launch(1, t));
    OK(cu().DevicePrimaryCtxRelease(1));
    IS(CONTEXT_IS_DESTROYED, launch(1, t));
    IS(INVALID_CONTEXT, cu().DevicePrimaryCtxRelease(1));
    expected_violations = 1;
}

// ---- Failures ----------------------------------------------------------------------------------

TEST_F(Fake, CallsFailWhenToldTo) {
    CUdeviceptr p = 0;
    fake->fail("cuMemAlloc", 2, CUDA_ERROR_OUT_OF_MEMORY);
    OK(cu().MemAlloc(&p, 8));
    IS(OUT_OF_MEMORY, cu().MemAlloc(&p, 8));
    OK(cu().MemAlloc(&p, 8));
    fake->fail_from("cuMemAlloc", 2, CUDA_ERROR_ECC_UNCORRECTABLE);
    OK(cu().MemAlloc(&p, 8));
    IS(ECC_UNCORRECTABLE, cu().MemAlloc(&p, 8));
    IS(ECC_UNCORRECTABLE, cu().MemAlloc(&p, 8));
    fake->reset();
    OK(cu().MemAlloc(&p, 8));
    fake->fail_any(2, CUDA_ERROR_UNKNOWN);
    CUcontext now = nullptr;
    OK(cu().CtxGetCurrent(&now));
    IS(UNKNOWN, cu().CtxPopCurrent(&now));
    OK(cu().CtxGetCurrent(&now));
    EXPECT_EQ(now, context);
    const char *name = nullptr;
    OK(cu().GetErrorName(CUDA_ERROR_ECC_UNCORRECTABLE, &name));
    EXPECT_STREQ(name, "CUDA_ERROR_ECC_UNCORRECTABLE");
}

TEST_F(Fake, ALostDeviceCompletesNothing) {
    const CUstream s = stream();
    const CUevent e = event();
    fake->hold();
    OK(launch(1, s));
    OK(cu().EventRecord(e, s));
    std::thread waiting([&] { IS(LAUNCH_FAILED, cu().EventSynchronize(e)); });
    while (fake->count("cuEventSynchronize") == 0) std::this_thread::yield();
    fake->lose_device();
    waiting.join();
    fake->release();
    IS(LAUNCH_FAILED, cu().EventQuery(e));
    IS(LAUNCH_FAILED, cu().StreamSynchronize(s));
    IS(LAUNCH_FAILED, launch(2, s));
    CUdeviceptr p = 0;
    IS(LAUNCH_FAILED, cu().MemAlloc(&p, 8));
    OK(cu().CtxPushCurrent(context));
    OK(cu().CtxPopCurrent(nullptr));
    EXPECT_EQ(ran(), Ran{});
    fake->reset();
    EXPECT_EQ(fake->pending(), 0u);
    OK(launch(3, s));
    EXPECT_EQ(ran(), Ran{3});
}

// ---- Looking -----------------------------------------------------------------------------------

TEST_F(Fake, CallsAreCountedByThread) {
    fake->reset_counts();
    const CUevent e = event();
    OK(cu().EventQuery(e));
    elsewhere([&] {
        OK(cu().EventQuery(e));
        EXPECT_EQ(fake->count_here("cuEventQuery"), 1u);
        EXPECT_EQ(fake->count_here("cuEventCreate"), 0u);
    });
    EXPECT_EQ(fake->count("cuEventQuery"), 2u);
    EXPECT_EQ(fake->count(nullptr), 5u);
    EXPECT_EQ(fake->count_here(nullptr), 2u);
}

TEST_F(Fake, CallsAreTraced) {
    const CUstream s = stream(), t = stream();
    const CUevent e = event();
    fake->trace_start(0);
    OK(launch(1, t));
    OK(cu().EventRecord(e, t));
    OK(cu().StreamWaitEvent(s, e, 0));
    OK(launch(2, nullptr));
    elsewhere([&] { OK(cu().EventQuery(e)); });
    OK(cu().EventQuery(e));
    fake->trace_stop();
    OK(cu().EventQuery(e));
    EXPECT_STREQ(
        fake->trace(),
        "cuLaunchKernel 1 note\ncuEventRecord 1\ncuStreamWaitEvent 2\ncuLaunchKernel legacy note\ncuEventQuery\n");
}

TEST_F(Fake, KernelsMayControlTheFake) {
    const CUstream s = stream(), t = stream();
    fake->hold_stream(t);
    OK(launch(2, t));
    const CUfunction releases = fake->add_kernel(
        "releases", 0, [](const void *, void *) { fake->release(); }, nullptr);
    OK(cu().LaunchKernel(releases, 1, 1, 1, 1, 1, 1, 0, s, nullptr, nullptr));
    EXPECT_EQ(ran(), Ran{2});
}

TEST_F(Fake, WhatExistsIsCounted) {
    const CUstream s = stream();
    event();
    uint8_t *const p = device<uint8_t>(8);
    void *host = nullptr;
    OK(cu().MemHostAlloc(&host, 100, 0));
    fake_cuda_live live;
    const CUgraph graph = capture(s, [&] {
        fake->live(&live);
        EXPECT_EQ(live.captures, 1u);
    });
    fake->live(&live);
    EXPECT_EQ(live.streams, 1u);
    EXPECT_EQ(live.events, 1u);
    EXPECT_EQ(live.device_bytes, 8u);
    EXPECT_EQ(live.host_allocations, 1u);
    EXPECT_EQ(live.host_bytes, 100u);
    EXPECT_EQ(live.graphs, 1u);
    EXPECT_EQ(live.captures, 0u);
    EXPECT_EQ(live.primary_references, 1u);
    OK(cu().GraphDestroy(graph));
    OK(cu().MemFree(address(p)));
    fake->live(&live);
    EXPECT_EQ(live.device_allocations, 0u);
}

// The gate is one thread's, and calls of others go on while a call waits there.
TEST_F(Fake, a_call_waits_at_the_gate_and_others_go_on) {
    std::atomic<bool> returned{false};
    std::thread waiting([&] {
        fake->close_gate(2);
        int version = 0;
        OK(cu().DriverGetVersion(&version));
        OK(cu().DriverGetVersion(&version));
        returned = true;
        EXPECT_EQ(version, 13000);
    });
    while (fake->at_gate() == 0) std::this_thread::yield();
    float *p = device<float>(2);
    OK(cu().MemFree(address(p)));
    EXPECT_FALSE(returned);
    fake->open_gate();
    waiting.join();
    EXPECT_TRUE(returned);
    EXPECT_EQ(fake->at_gate(), 0);
}

TEST_F(Fake, a_watch_sees_every_call_on_its_thread) {
    static std::atomic<int> seen;
    seen = 0;
    fake->watch([](const char *name) {
        seen += std::string(name) == "cuDriverGetVersion" && fake->inside() == 1;
    });
    int version = 0;
    OK(cu().DriverGetVersion(&version));
    OK(cu().DriverGetVersion(&version));
    fake->watch(nullptr);
    OK(cu().DriverGetVersion(&version));
    EXPECT_EQ(seen, 2);
}

}  // namespace

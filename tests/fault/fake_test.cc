// The fake driver's own tests: the misuse that it must notice and the unkind orders in which it
// runs work, which tests on it cannot tell from a driver that lets everything pass. What it must do
// right is seen by every test on it.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fake_cuda.h"
#include "kernels/list.h"
#include "src/backend/cuda/driver.h"

namespace {

using namespace routecap::kernels;

// What these tests call beside the library's functions.
#define TEST_FUNCTIONS(F)               \
    F(StreamBeginCapture, 10010)        \
    F(StreamEndCapture, 10000)          \
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

    static CUstream stream() {
        CUstream made = nullptr;
        EXPECT_EQ(CUDA_SUCCESS, cu().StreamCreate(&made, CU_STREAM_NON_BLOCKING));
        return made;
    }
    static CUevent event() {
        CUevent made = nullptr;
        EXPECT_EQ(CUDA_SUCCESS, cu().EventCreate(&made, CU_EVENT_DISABLE_TIMING));
        return made;
    }
    static uint8_t *device(size_t bytes) {
        CUdeviceptr made = 0;
        EXPECT_EQ(CUDA_SUCCESS, cu().MemAlloc(&made, bytes));
        return reinterpret_cast<uint8_t *>(made);
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
    CUgraph capture(CUstream on, const std::function<void()> &body) {
        EXPECT_EQ(CUDA_SUCCESS, cu().StreamBeginCapture(on, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
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
    void add_note(int number, CUstream on) {
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
    }

    CUcontext context = nullptr;
    uint64_t expected_violations = 0;

private:
    CUfunction note_ = nullptr;
    std::mutex mutex_;
    std::vector<int> ran_;
};

// ---- Memory ------------------------------------------------------------------------------------

TEST_F(Fake, MemoryHasBounds) {
    expected_violations = 6;
    const CUstream s = stream();
    uint8_t *const p = device(1000);
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

TEST_F(Fake, MemoryThatAGraphStillWritesIsMissed) {
    expected_violations = 1;
    uint8_t *const p = device(8);
    const CUstream s = stream();
    const CUgraph graph = capture(s, [&] { OK(cu().MemsetD8Async(address(p), 1, 8, s)); });
    OK(cu().MemFree(address(p)));
    replay(graph, s);
    OK(cu().GraphDestroy(graph));
}

// ---- Streams and events ------------------------------------------------------------------------

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
    EXPECT_EQ(fake->step_stream(s, 2), 2u);
    EXPECT_EQ(ran(), (Ran{3, 4}));
    OK(cu().EventDestroy(e));
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

// ---- Capture -----------------------------------------------------------------------------------

// The leaf should have been behind node 3.
TEST_F(Fake, AGraphIsReplayedInAnAwkwardOrder) {
    const CUstream s = stream();
    const CUgraph graph = capture(s, [&] {
        OK(launch(1, s));
        add_note(2, s);
        OK(launch(3, s));
        OK(launch(4, s));
    });
    replay(graph, s);
    EXPECT_EQ(ran(), (Ran{1, 3, 4, 2}));
    fake->hold();
    replay(graph, s);
    OK(launch(5, s));
    EXPECT_EQ(fake->step(3), 3u);  // one operation stands for the launch itself
    EXPECT_EQ(ran(), (Ran{1, 3}));
    fake->release();
    EXPECT_EQ(ran(), (Ran{4, 2, 5}));
    OK(cu().GraphDestroy(graph));
}

// Every call that might wait, in every mode, on the thread of the capture and on another.
TEST_F(Fake, ACaptureIsEndedByUnsafeCalls) {
    const CUstream other = stream();
    void *memory = nullptr;
    CUdeviceptr device_memory = 0;
    const std::vector<std::function<CUresult()>> unsafe = {
        [&] { return cu().MemAlloc(&device_memory, 8); },
        [&] { return cu().MemHostAlloc(&memory, 8, 0); },
        [&] { return cu().MemFree(0); },
        [&] { return cu().MemFreeHost(nullptr); },
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

// What a capture forbids whatever its mode.
TEST_F(Fake, ACaptureIsEndedByWhatCannotBeCaptured) {
    const CUstream s = stream(), other = stream();
    const CUevent outside = event();
    OK(cu().EventRecord(outside, other));
    uint8_t *const p = device(8);
    const std::vector<std::function<CUresult()>> forbidden = {
        [&] { return cu().StreamSynchronize(s); }, [&] { return cu().StreamQuery(s); },
        [&] { return cu().StreamWriteValue64(s, address(p), 1, 0); },
        [&] { return cu().StreamWaitEvent(s, outside, 0); }};
    for (const auto &call : forbidden) {
        OK(cu().StreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
        EXPECT_NE(CUDA_SUCCESS, call());
        IS(STREAM_CAPTURE_INVALIDATED, launch(1, s));
        CUgraph graph = nullptr;
        IS(STREAM_CAPTURE_INVALIDATED, cu().StreamEndCapture(s, &graph));
        expected_violations++;
    }
    OK(cu().MemFree(address(p)));
}

// ---- User objects ------------------------------------------------------------------------------

TEST_F(Fake, DestructorsMayNotCallTheDriver) {
    expected_violations = 2;
    static CUresult result;
    result = CUDA_SUCCESS;
    CUuserObject made = nullptr;
    const CUhostFn destroy = [](void *s) { result = cu().StreamQuery(static_cast<CUstream>(s)); };
    OK(cu().UserObjectCreate(&made, stream(), destroy, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    OK(cu().UserObjectRelease(made, 1));
    EXPECT_EQ(result, CUDA_ERROR_NOT_PERMITTED);
    CUuserObject twice = nullptr;
    OK(cu().UserObjectCreate(
        &twice, nullptr, [](void *) {}, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    IS(INVALID_VALUE, cu().UserObjectRelease(twice, 2));
    OK(cu().UserObjectRelease(twice, 1));
    IS(INVALID_VALUE, cu().UserObjectCreate(&made, nullptr, destroy, 1, 0));
}

}  // namespace

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

TEST_F(Fake, MemoryThatAGraphStillWritesIsMissed) {
    expected_violations = 1;
    uint8_t *const p = device<uint8_t>(8);
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
    IS(NOT_READY, cu().EventQuery(e));  // recorded again
    EXPECT_EQ(fake->step_stream(s, 2), 2u);
    EXPECT_EQ(ran(), (Ran{3, 4}));
    OK(cu().EventQuery(e));
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

// Memory that begins in an allocation is the driver's, and ends with it.
TEST_F(Fake, ACopyFromTheHostThatRunsBeyondItsAllocationIsRefused) {
    void *pinned = nullptr;
    OK(cu().MemHostAlloc(&pinned, 256, 0));
    uint8_t *const p = device<uint8_t>(512);
    IS(INVALID_VALUE, cu().MemcpyHtoD(address(p), pinned, 257));
    IS(INVALID_VALUE, cu().MemcpyDtoH(pinned, address(p), 257));
    expected_violations = 2;
}

// ---- Kernels -----------------------------------------------------------------------------------

TEST_F(Fake, RefusesWhatTheDeviceCannotLaunch) {
    CUlibrary library = nullptr;
    OK(cu().LibraryLoadData(&library, "kernels", nullptr, nullptr, 0, nullptr, nullptr, 0));
    const CUstream s = stream();
    CUkernel kernel = nullptr;
    IS(NOT_FOUND, cu().LibraryGetKernel(&kernel, library, "routecap_nothing"));
    OK(cu().LibraryGetKernel(&kernel, library, "routecap_begin"));
    const auto function = reinterpret_cast<CUfunction>(kernel);
    Begin body{};
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

TEST_F(Fake, ACaptureWantsForkedWorkJoinedButNotNodesThatWereAdded) {
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
TEST_F(Fake, AGraphIsReplayedInAnAwkwardOrder) {
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
TEST_F(Fake, ACaptureIsEndedByUnsafeCalls) {
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
TEST_F(Fake, ACaptureIsEndedByWhatCannotBeCaptured) {
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

TEST_F(Fake, ACaptureDoesNotMergeWithAnother) {
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

TEST_F(Fake, ACaptureEndsWhereItBegan) {
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

TEST_F(Fake, DestructorsMayNotCallTheDriver) {
    expected_violations = 2;
    static CUresult result;
    result = CUDA_SUCCESS;
    CUuserObject made = nullptr;
    const CUhostFn destroy = [](void *e) { result = cu().EventQuery(static_cast<CUevent>(e)); };
    OK(cu().UserObjectCreate(&made, event(), destroy, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    OK(cu().UserObjectRelease(made, 1));
    EXPECT_EQ(result, CUDA_ERROR_NOT_PERMITTED);
    CUuserObject twice = nullptr;
    OK(cu().UserObjectCreate(
        &twice, nullptr, [](void *) {}, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
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

}  // namespace

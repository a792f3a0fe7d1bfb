#include "device.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <mutex>

#include "../fault/fake_cuda.h"

namespace rig {
namespace {

constexpr size_t kPoolBytes = 8 << 20;

bool set_to(const char *variable, const char *value) {
    const char *is = std::getenv(variable);
    return is != nullptr && std::strcmp(is, value) == 0;
}

// What of the driver API an engine needs. Handles are pointers, CUdeviceptr is an address.
struct Driver {
    int (*Init)(unsigned);
    int (*DevicePrimaryCtxRetain)(void **, int);
    int (*CtxSetCurrent)(void *);
    int (*MemAlloc)(uintptr_t *, size_t);
    int (*MemFree)(uintptr_t);
    int (*MemHostAlloc)(void **, size_t, unsigned);
    int (*MemsetD8Async)(uintptr_t, unsigned char, size_t, routecap_stream);
    int (*MemcpyAsync)(uintptr_t, uintptr_t, size_t, routecap_stream);
    int (*MemcpyDtoHAsync)(void *, uintptr_t, size_t, routecap_stream);
    int (*StreamCreate)(routecap_stream *, unsigned);
    int (*StreamDestroy)(routecap_stream);
    int (*StreamSynchronize)(routecap_stream);
    int (*StreamBeginCapture)(routecap_stream, int);
    int (*StreamEndCapture)(routecap_stream, void **);
    int (*GraphInstantiateWithFlags)(void **, void *, unsigned long long);
    int (*GraphLaunch)(void *, routecap_stream);
    int (*GraphExecDestroy)(void *);
    int (*GraphDestroy)(void *);
    int (*EventCreate)(void **, unsigned);
    int (*EventRecord)(void *, routecap_stream);
    int (*EventDestroy)(void *);
    int (*StreamWaitEvent)(routecap_stream, void *, unsigned);
    // Null on the fake driver.
    int (*StreamWaitValue32)(routecap_stream, uintptr_t, uint32_t, unsigned);
    const fake_cuda *fake = nullptr;  // null on a real one
    void *context = nullptr;
};

void require(int result, const char *call) {
    if (result == 0) return;
    std::fprintf(stderr, "%s returned %d\n", call, result);
    std::abort();
}
#define REQUIRE(name, ...) require(driver().name(__VA_ARGS__), "cu" #name)

const Driver &driver() {
    static const Driver loaded = [] {
        Driver d{};
        void *library = dlopen("libcuda.so.1", RTLD_NOW);
        if (library == nullptr) std::fprintf(stderr, "%s\n", dlerror()), std::abort();
        const auto get =
            reinterpret_cast<int (*)(const char *, void **, int, unsigned long long, void *)>(
                dlsym(library, "cuGetProcAddress_v2"));
        const auto find = [&](auto &function, const char *name, int version) {
            void *address = nullptr;
            require(get(name, &address, version, 0, nullptr), name);
            function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(address);
        };
        find(d.Init, "cuInit", 2000);
        find(d.DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000);
        find(d.CtxSetCurrent, "cuCtxSetCurrent", 4000);
        find(d.MemAlloc, "cuMemAlloc", 3020);
        find(d.MemFree, "cuMemFree", 3020);
        find(d.MemHostAlloc, "cuMemHostAlloc", 2020);
        find(d.MemsetD8Async, "cuMemsetD8Async", 3020);
        find(d.MemcpyAsync, "cuMemcpyAsync", 4000);
        find(d.MemcpyDtoHAsync, "cuMemcpyDtoHAsync", 3020);
        find(d.StreamCreate, "cuStreamCreate", 2000);
        find(d.StreamDestroy, "cuStreamDestroy", 4000);
        find(d.StreamSynchronize, "cuStreamSynchronize", 2000);
        find(d.StreamBeginCapture, "cuStreamBeginCapture", 10010);
        find(d.StreamEndCapture, "cuStreamEndCapture", 10000);
        find(d.GraphInstantiateWithFlags, "cuGraphInstantiateWithFlags", 11040);
        find(d.GraphLaunch, "cuGraphLaunch", 10000);
        find(d.GraphExecDestroy, "cuGraphExecDestroy", 10000);
        find(d.GraphDestroy, "cuGraphDestroy", 10000);
        find(d.EventCreate, "cuEventCreate", 2000);
        find(d.EventRecord, "cuEventRecord", 2000);
        find(d.EventDestroy, "cuEventDestroy", 4000);
        find(d.StreamWaitEvent, "cuStreamWaitEvent", 3020);
        if (const auto control =
                reinterpret_cast<decltype(&fake_cuda_control)>(dlsym(library, "fake_cuda_control"));
            control != nullptr)
            d.fake = control();
        else
            find(d.StreamWaitValue32, "cuStreamWaitValue32", 11070);
        require(d.Init(0), "cuInit");
        require(d.DevicePrimaryCtxRetain(&d.context, 0), "cuDevicePrimaryCtxRetain");
        return d;
    }();
    return loaded;
}

// Page-locked memory is slow to make: what one device no longer needs serves the next.
std::mutex pools_mutex;
std::vector<unsigned char *> pools;

}  // namespace

bool on_cuda() {
    static const bool cuda = set_to("ROUTECAP_TEST_BACKEND", "cuda");
    return cuda;
}
bool in_graphs() {
    static const bool graphs = on_cuda() && set_to("ROUTECAP_TEST_GRAPH", "1");
    return graphs;
}
int32_t backend() { return on_cuda() ? ROUTECAP_BACKEND_CUDA : ROUTECAP_BACKEND_HOST; }

Device::Device() {
    if (!on_cuda()) return;
    REQUIRE(CtxSetCurrent, driver().context);
    REQUIRE(StreamCreate, &stream_, 1);
    pools_.push_back(take_pool());
}

unsigned char *Device::take_pool() {
    const std::lock_guard lock(pools_mutex);
    void *pool = nullptr;
    if (pools.empty()) {
        REQUIRE(MemHostAlloc, &pool, kPoolBytes, 0);
    } else {
        pool = pools.back();
        pools.pop_back();
    }
    return static_cast<unsigned char *>(pool);
}

Device::~Device() {
    synchronize();
    for (void *memory : allocations_)
        on_cuda() ? REQUIRE(MemFree, reinterpret_cast<uintptr_t>(memory)) : std::free(memory);
    if (!on_cuda()) return;
    REQUIRE(StreamDestroy, stream_);
    for (routecap_stream stream : streams_) REQUIRE(StreamDestroy, stream);
    const std::lock_guard lock(pools_mutex);
    pools.insert(pools.end(), pools_.begin(), pools_.end());
}

const void *Device::upload(const void *data, size_t bytes) {
    if (!on_cuda() || data == nullptr || bytes > kPoolBytes) return data;
    REQUIRE(CtxSetCurrent, driver().context);
    if (used_ + bytes > kPoolBytes) {
        if (capturing_)
            pools_.push_back(take_pool());
        else
            synchronize();
        used_ = 0;
    }
    unsigned char *to = pools_.back() + used_;
    std::memcpy(to, data, bytes);
    used_ += (bytes + 15) / 16 * 16;
    return to;
}

void *Device::allocate(size_t bytes, unsigned char fill) {
    if (!on_cuda()) {
        allocations_.push_back(
            std::memset(std::aligned_alloc(256, (bytes + 255) / 256 * 256), fill, bytes));
        return allocations_.back();
    }
    uintptr_t memory = 0;
    REQUIRE(MemAlloc, &memory, bytes);
    REQUIRE(MemsetD8Async, memory, fill, bytes, stream_);
    synchronize();
    allocations_.push_back(reinterpret_cast<void *>(memory));
    return allocations_.back();
}

void Device::write(void *to, const void *from, size_t bytes) {
    if (on_cuda())
        REQUIRE(MemcpyAsync, reinterpret_cast<uintptr_t>(to),
                reinterpret_cast<uintptr_t>(upload(from, bytes)), bytes, stream_);
    else
        std::memcpy(to, from, bytes);
}

void Device::read(void *to, const void *from, size_t bytes) {
    if (!on_cuda()) {
        std::memcpy(to, from, bytes);
        return;
    }
    REQUIRE(MemcpyDtoHAsync, to, reinterpret_cast<uintptr_t>(from), bytes, stream_);
    synchronize();
}

void Device::synchronize() {
    if (on_cuda()) REQUIRE(StreamSynchronize, stream_);
}

void Device::forward(const std::function<void()> &pass) {
    if (!in_graphs()) return pass();
    capture(pass).replay(stream_);
}

Device::Graph Device::capture(const std::function<void()> &pass, int mode) {
    void *graph = nullptr, *replay = nullptr;
    REQUIRE(StreamBeginCapture, stream_, mode);
    capturing_ = true;
    pass();
    capturing_ = false;
    REQUIRE(StreamEndCapture, stream_, &graph);
    REQUIRE(GraphInstantiateWithFlags, &replay, graph, 0);
    REQUIRE(GraphDestroy, graph);
    return Graph(replay);
}

Device::Graph::~Graph() {
    if (replay_ != nullptr) REQUIRE(GraphExecDestroy, replay_);
}

void Device::Graph::replay(routecap_stream stream) const { REQUIRE(GraphLaunch, replay_, stream); }

routecap_stream Device::make_stream() {
    streams_.emplace_back();
    REQUIRE(StreamCreate, &streams_.back(), 1);
    return streams_.back();
}

void Device::order(routecap_stream before, routecap_stream after) {
    void *event = nullptr;
    REQUIRE(EventCreate, &event, 2);
    REQUIRE(EventRecord, event, before);
    REQUIRE(StreamWaitEvent, after, event, 0);
    REQUIRE(EventDestroy, event);
}

void Device::close_gate() {
    if (driver().fake != nullptr) return driver().fake->hold_stream(stream_);
    if (gate_ == nullptr) {
        void *gate = nullptr;
        REQUIRE(MemHostAlloc, &gate, sizeof *gate_, 0);
        gate_ = new (gate) uint32_t{0};
    }
    constexpr unsigned kAtLeast = 0;  // CU_STREAM_WAIT_VALUE_GEQ
    REQUIRE(StreamWaitValue32, stream_, reinterpret_cast<uintptr_t>(gate_), ++closed_, kAtLeast);
}

void Device::open_gate() {
    if (driver().fake != nullptr) return driver().fake->release_stream(stream_);
    __atomic_store_n(gate_, closed_, __ATOMIC_RELEASE);
}

}  // namespace rig

// The CUDA backend.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "backend/backends.h"
#include "backend/cuda/arena.h"
#include "backend/cuda/current_context.h"
#include "base/process.h"
#include "base/shape.h"
#include "base/status.h"

namespace routecap {
namespace {

using namespace cuda;

CUdeviceptr address_of(const void *p) { return reinterpret_cast<CUdeviceptr>(p); }

// The most bytes that a kernel on the engine's stream delivers: these take 8 us on an H200. A
// larger step is copied on a stream of the library.
constexpr size_t kMostDelivered = 256 << 10;

// Returns from a function that returns a status, if a call of the driver failed.
#define ROUTECAP_TRY(name, ...)                                                    \
    if (const CUresult result = driver_.name(__VA_ARGS__); result != CUDA_SUCCESS) \
    return fail(result, "cu" #name)

// Where everything lies in the device memory of a capturer.
struct MemoryMap {
    size_t control = 0, table, weight_table, sink, weights, slots, bytes;
    size_t sink_bytes, weight_bytes, staging_bytes;
    kernels::SlotLayout layout;

    explicit MemoryMap(const BackendConfig &config) : layout(config.rows, *config.shape) {
        const Shape &shape = *config.shape;
        const auto aligned = [](size_t n) { return (n + 255) / 256 * 256; };
        const bool own = !config.external_sink, weighted = shape.weight_bytes != 0;
        sink_bytes = own ? routecap::sink_bytes(config.rows, shape, config.sink_dtype) : 0;
        weight_bytes = own ? weights_bytes(config.rows, shape) : 0;
        table = aligned(sizeof(kernels::Control));
        weight_table = table + aligned(shape.layers * sizeof(kernels::SinkLayer));
        sink = weight_table + (weighted ? aligned(shape.layers * sizeof(kernels::WeightSink)) : 0);
        weights = sink + aligned(sink_bytes);
        slots = weights + aligned(weight_bytes);
        bytes = slots + config.slots * layout.bytes();
        staging_bytes = config.slots * (layout.bytes() + 8);
    }
};

class CudaBackend final : public Backend {
public:
    explicit CudaBackend(const BackendConfig &config)
        : shape_(config.shape),
          config_(config),
          map_(config),
          slot_count_(config.slots),
          slots_(slot_count_),
          epoch_(config.first_epoch - 1) {}
    int32_t create();
    ~CudaBackend() override;

    const kernels::SlotLayout &layout() const override { return map_.layout; }
    const Sink &sink() const override { return *sink_; }
    int32_t bind(uint32_t first_layer, uint32_t layers, const routecap_sink &sink) override;
    routecap_sink give_out(uint32_t layer) override { return sink_->give_out(layer); }

    int32_t enter(routecap_stream stream, bool &capturing) override;
    uint64_t capture() const override { return capturing_ ? capture_.id + 1 : 0; }
    int32_t check_memory(const void *address, const char *name) override;
    int32_t begin(uint32_t rows, routecap_stream stream) override;
    int32_t record(const RecordSource &source, std::span<const RecordedLayer> layers, bool overlap,
                   routecap_stream stream) override;
    int32_t route(uint32_t layer, const kernels::Router &router, const kernels::Logits &logits,
                  routecap_stream stream) override;
    int32_t read_received(const routecap_received &r, routecap_stream stream) override;
    int32_t compare_received(const routecap_received &r, routecap_stream stream) override;
    int32_t wait_for(routecap_stream stream, uint32_t &rows_begun) override;
    int32_t read_layer(uint32_t layer, uint32_t rows, void *ids) override;
    int32_t snapshot(routecap_stream stream) override;
    int32_t whole_step(const RecordSource &source, std::span<const RecordedLayer> layers,
                       routecap_stream stream) override;
    void name_slot(int32_t slot, routecap_stream stream) override;
    void expect(int32_t slot) override {
        in(slot).state.store(State::kExpected, std::memory_order_relaxed);
    }
    void copy(int32_t slot, uint32_t rows, const DevicePositions &positions, int32_t next,
              routecap_stream stream) override;

    bool landed(int32_t slot) override;
    SlotContents contents(int32_t slot) override;
    const char *failure(int32_t slot) const override;

private:
    // The text of the call that failed, or "".
    class Failure {
    public:
        explicit operator bool() const { return text_[0] != '\0'; }
        const char *text() const { return text_; }
        void note(int32_t status) {
            text_[0] = '\0';
            if (status < 0) std::snprintf(text_, sizeof text_, "%s", last_error());
        }

    private:
        char text_[256] = "";
    };
    // A slot belongs to the forward path until its state is kCopied or kFailed, and then to the
    // filing thread until its step is filed.
    enum class State : uint8_t { kExpected, kCopied, kFailed };
    struct Slot {
        std::atomic<uint64_t> epoch{0};  // of its last naming
        Failure failure;                 // of its naming or its copy
        std::atomic<State> state{State::kExpected};
        bool astray = false;  // a failed copy of a lost step may still write this slot later
    };

    int32_t fail(CUresult result, const char *call);
    Slot &in(int32_t slot) { return slots_[static_cast<size_t>(slot)]; }
    const Slot &in(int32_t slot) const { return slots_[static_cast<size_t>(slot)]; }
    uint64_t epoch_of(int32_t slot) const { return in(slot).epoch.load(std::memory_order_relaxed); }
    int32_t upload_table();
    int32_t warm_up();
    int32_t warm_up_weights();
    int32_t follow(CUstream stream);
    int32_t name(int32_t slot, CUstream stream);
    int32_t try_name(int32_t slot, CUstream stream);
    kernels::Named new_name(int32_t slot);
    void named_on(CUstream stream, kernels::Named named, bool delivered);
    void note_naming(int32_t slot, int32_t status);
    bool kernels_read(const DevicePositions &positions);
    int32_t deliver(int32_t slot, size_t bytes, const DevicePositions &positions, int32_t next,
                    CUstream stream);
    int32_t keep_positions(int32_t slot, size_t bytes, const DevicePositions &positions,
                           CUstream stream);
    int32_t bring(int32_t slot, size_t bytes, const DevicePositions &positions);
    int32_t alive() const;
    template <class Body>
    uint32_t blocks(uint64_t items, uint32_t layers) const;
    template <class Body>
    int32_t launch(const Body &body, uint64_t items, CUstream stream, bool overlap = false,
                   uint32_t layers = 1);
    template <uint32_t K, uint32_t L>
    kernels::Record<K, L> record_body(const kernels::Source &source,
                                      std::span<const RecordedLayer> layers) const;
    int32_t record_weights(const RecordSource &source, std::span<const RecordedLayer> layers,
                           bool overlap, CUstream stream);
    template <class Body>
    int32_t add_leaf(const Body &body, uint64_t items, CUstream stream);
    int32_t retain();
    template <class F>
    int32_t with_snapshot(F f);
    template <class F>
    int32_t with_weights_snapshot(F f);
    int32_t before_begin(uint32_t rows, CUstream stream);
    kernels::Begin begin_body(uint32_t rows) const;

    CUdeviceptr device_name() const {
        return arena_->at(map_.control + offsetof(kernels::Control, named));
    }
    kernels::Control *control() const { return arena_->pointer<kernels::Control>(map_.control); }
    kernels::SinkTable table() const {
        return sink_->table(arena_->pointer<const kernels::SinkLayer>(map_.table));
    }
    const kernels::WeightSink *weight_table() const {
        return arena_->pointer<const kernels::WeightSink>(map_.weight_table);
    }
    uint8_t *slots() const { return arena_->pointer<uint8_t>(map_.slots); }
    uint8_t *device_slot(int32_t slot) const { return map_.layout.slot(slots(), slot); }
    // A word in page-locked memory, after all slots: the epoch of the last step whose rows arrived
    // in this slot.
    uint64_t *arrived(int32_t slot) const {
        uint8_t *behind = map_.layout.slot(staging_, static_cast<int32_t>(slot_count_));
        return reinterpret_cast<uint64_t *>(behind) + slot;
    }
    bool has_arrived(int32_t slot) const {
        return __atomic_load_n(arrived(slot), __ATOMIC_ACQUIRE) == epoch_of(slot);
    }
    uint8_t *host_slot(int32_t slot) const { return map_.layout.slot(staging_, slot); }

    const ShapePtr shape_;
    const BackendConfig config_;
    const MemoryMap map_;
    const uint32_t slot_count_;
    const Driver &driver_ = driver();
    CUdevice device_ = 0;
    CUcontext context_ = nullptr;
    uint32_t most_blocks_ = 0;
    bool reads_pageable_ = false;  // kernels can read any memory of the process
    bool maps_host_ = false;       // kernels can reach page-locked host memory
    // The device has programmatic dependent launch, and the kernels were compiled to use it.
    bool overlaps_ = false;
    Arena *arena_ = nullptr;
    uint8_t *staging_ = nullptr;  // the slots in page-locked host memory
    CUstream side_ = nullptr;
    std::vector<Slot> slots_;
    std::optional<Sink> sink_;
    std::atomic<bool> losing_{false}, lost_{false};
    Failure loss_;        // constant once lost_ is true
    uint32_t looks_ = 0;  // how often landed() found that a slot had not

    // Used by the forward path only.
    uint64_t epoch_ = 0;                 // of the last naming
    uint32_t upper_ = 0;                 // upper half of the device's word that names a slot
    int32_t naming_ = kernels::kNoSlot;  // the slot of the last naming, which may have failed
    Failure unnamed_;  // of that naming: the device goes on with an older name, or nothing can wait
                       // for the new one
    CUevent named_ = nullptr;  // after the last naming, on the stream of the last step
    bool named_recorded_ = false;
    uint64_t delivered_ = 0;  // the word of the last naming, if it came with the rows of a step
    const void *known_positions_ = nullptr;  // the address that kernels_read() last found readable
    CUstream last_stream_ = nullptr;
    bool any_step_ = false;
    // Graph captures: the one that enter() found, if any; the last one that was given a reference
    // to the arena; and the one that has the last captured snapshot.
    struct Capture {
        cuuint64_t id = 0;
        CUgraph graph = nullptr;
        bool operator==(const Capture &) const = default;
    } capture_, retained_, leaf_capture_;
    bool capturing_ = false;
    bool entered_ = false;  // enter() found the context current on its caller's thread
    Capture here() const { return capturing_ ? capture_ : Capture{}; }
    // These choose the size of a snapshot's launch. If the last begin is in the same capture as the
    // snapshot, or neither is captured and no slot was named in between, the snapshot has the rows
    // of that begin. Otherwise it may have as many as the largest begin.
    uint32_t largest_begin_ = 0;
    struct Begun {
        uint32_t rows;
        Capture where;
    };
    std::optional<Begun> begun_;
    CUgraphNode leaf_ = nullptr;
    std::vector<CUgraphNode> before_;  // of add_leaf, kept to reuse its memory
};

// ---- Life -----------------------------------------------------------------------------------

int32_t CudaBackend::fail(CUresult result, const char *call) {
    const int32_t status = driver_.failed(result, call);
    if (status == ROUTECAP_ERR_DEVICE_LOST && !losing_.exchange(true, std::memory_order_relaxed)) {
        loss_.note(status);
        lost_.store(true, std::memory_order_release);
    }
    return status;
}

int32_t CudaBackend::alive() const {
    return lost_.load(std::memory_order_acquire)
               ? report(ROUTECAP_ERR_DEVICE_LOST, "%s", loss_.text())
               : ROUTECAP_OK;
}

int32_t CudaBackend::create() {
    ROUTECAP_TRY(DeviceGet, &device_, config_.device);
    ROUTECAP_TRY(DevicePrimaryCtxRetain, &context_, device_);
    const Current current(context_);
    const Uncaptured uncaptured;
    before_.reserve(64);
    int multiprocessors = 1;
    ROUTECAP_TRY(DeviceGetAttribute, &multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                 device_);
    most_blocks_ = static_cast<uint32_t>(multiprocessors) * 8;
    int capability = 0;
    ROUTECAP_TRY(DeviceGetAttribute, &capability, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                 device_);
    int pageable = 0;
    if (config_.checked)
        ROUTECAP_TRY(DeviceGetAttribute, &pageable, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS,
                     device_);
    reads_pageable_ = pageable != 0;
    int maps = 0;
    ROUTECAP_TRY(DeviceGetAttribute, &maps, CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, device_);
    maps_host_ = maps != 0;
    // Kernels compiled for older devices do not wait for the router, so they must not overlap it.
    overlaps_ = capability >= 9 && ROUTECAP_PTX_ARCH >= 90;
    if (const CUresult r = Arena::create(device_, context_, map_.bytes, &arena_); r != CUDA_SUCCESS)
        return fail(r, "cuMemAlloc");
    ROUTECAP_TRY(StreamCreate, &side_, CU_STREAM_NON_BLOCKING);
    ROUTECAP_TRY(EventCreate, &named_, CU_EVENT_DISABLE_TIMING);
    if (slot_count_ > 0) {
        void *staging = nullptr;
        ROUTECAP_TRY(MemHostAlloc, &staging, map_.staging_bytes, CU_MEMHOSTALLOC_PORTABLE);
        staging_ = static_cast<uint8_t *>(staging);
        std::memset(arrived(0), 0, slot_count_ * 8);
    }
    sink_.emplace(*shape_, config_.rows, config_.sink_dtype,
                  config_.external_sink ? nullptr : arena_->pointer<void>(map_.sink),
                  config_.external_sink ? nullptr : arena_->pointer<void>(map_.weights));

    ROUTECAP_TRY(MemsetD8Async, arena_->at(0), 0, map_.bytes, side_);
    if (map_.sink_bytes > 0)
        ROUTECAP_TRY(MemsetD8Async, arena_->at(map_.sink), kernels::kPoisonByte, map_.sink_bytes,
                     side_);
    if (map_.weight_bytes > 0)
        ROUTECAP_TRY(MemsetD8Async, arena_->at(map_.weights), kernels::kWeightPoisonByte,
                     map_.weight_bytes, side_);
    kernels::Control words{};
    words.named = {kernels::kNoSlot, epoch_};
    ROUTECAP_TRY(MemcpyHtoDAsync, arena_->at(map_.control), &words, sizeof words, side_);
    if (int32_t s = upload_table(); s < 0) return s;
    if (int32_t s = warm_up(); s < 0) return s;
    // The first slot is named only now, so that the warm-up launches could not write it.
    if (slot_count_ > 0) words.named = {0, in(0).epoch = ++epoch_};
    upper_ = static_cast<uint32_t>(words.named.word >> 32);
    ROUTECAP_TRY(MemcpyHtoDAsync, arena_->at(map_.control), &words, sizeof words, side_);
    ROUTECAP_TRY(StreamSynchronize, side_);
    return ROUTECAP_OK;
}

// Launches every kernel once without work, so that the driver loads it now. Loading it within a
// graph capture would fail.
int32_t CudaBackend::warm_up() {
    if (int32_t s = launch(begin_body(0), 0, side_, false, shape_->layers); s < 0) return s;
    int32_t status = ROUTECAP_OK;
    const auto empty = [&](auto body) {
        if (status < 0) return;
        body.control = control();
        status = launch(body, 0, side_);
    };
    kernels::with_columns(shape_->kernel_k(), [&]<uint32_t K>() {
        empty(kernels::RecordOne<K>{});
        empty(kernels::RecordMany<K>{});
    });
    if (shape_->recomputed_layers > 0) {
        const auto each = [&]<uint32_t V, int32_t Score>() { empty(kernels::Route<V, Score>{}); };
        for (int32_t score = kernels::kSigmoidTanh; kernels::is_score(score); score++) {
#define ROUTECAP_EMPTY(V) kernels::with_score<V>(score, each);
            ROUTECAP_LANE_EXPERTS(ROUTECAP_EMPTY)
#undef ROUTECAP_EMPTY
        }
    }
    if (status < 0) return status;
    if (int32_t s = launch(kernels::Received{}, 0, side_); s < 0) return s;
    if (int32_t s = launch(kernels::ReceivedExpanded{}, 0, side_); s < 0) return s;
    if (int32_t s = launch(kernels::Chosen{}, 0, side_); s < 0) return s;
    const auto snapshot = [&](const auto &body) { return launch(body, 0, side_); };
    if (int32_t s = with_snapshot(snapshot); s < 0) return s;
    if (shape_->weight_bytes != 0)
        if (int32_t s = warm_up_weights(); s < 0) return s;
    if (slot_count_ == 0 || !maps_host_) return ROUTECAP_OK;
    kernels::Deliver nothing{};
    nothing.control = control();
    nothing.arrived = arrived(0);
    nothing.next = {kernels::kNoSlot, epoch_};
    return launch(nothing, 0, side_);
}

int32_t CudaBackend::warm_up_weights() {
    const kernels::BeginWeights begin{begin_body(0), weight_table(), shape_->weight_bytes};
    if (int32_t s = launch(begin, 0, side_, false, begin.outer()); s < 0) return s;
    const auto snapshot = [&](const auto &body) { return launch(body, 0, side_); };
    int32_t status = with_weights_snapshot(snapshot);
    kernels::with_weight_columns(
        shape_->kernel_k(), shape_->weight_bytes, [&]<uint32_t K, class W>() {
            const auto empty = [&](auto body) {
                if (status < 0) return;
                body.record.control = control();
                status = launch(body, 0, side_);
            };
            empty(kernels::RecordWeights<K, 1, W>{});
            empty(kernels::RecordWeights<K, ROUTECAP_WEIGHTED_LAYERS, W>{});
        });
    return status;
}

CudaBackend::~CudaBackend() {
    if (context_ == nullptr) return;
    {
        const Current current(context_);
        const Uncaptured uncaptured;
        if (side_ != nullptr) driver_.StreamSynchronize(side_), driver_.StreamDestroy(side_);
        if (named_ != nullptr) driver_.EventDestroy(named_);
        if (staging_ != nullptr) driver_.MemFreeHost(staging_);
    }
    if (arena_ != nullptr) arena_->release();
    Arena::collect();
    driver_.DevicePrimaryCtxRelease(device_);
}

// ---- Sink -----------------------------------------------------------------------------------

int32_t CudaBackend::upload_table() {
    const auto layers = sink_->layers();
    ROUTECAP_TRY(MemcpyHtoDAsync, arena_->at(map_.table), layers.data(), layers.size_bytes(),
                 side_);
    if (const auto weights = sink_->weights(); !weights.empty())
        ROUTECAP_TRY(MemcpyHtoDAsync, arena_->at(map_.weight_table), weights.data(),
                     weights.size_bytes(), side_);
    ROUTECAP_TRY(StreamSynchronize, side_);
    return ROUTECAP_OK;
}

int32_t CudaBackend::bind(uint32_t first_layer, uint32_t layers, const routecap_sink &sink) {
    if (int32_t s = alive(); s < 0) return s;
    const Current current(context_);
    const Uncaptured uncaptured;
    for (const auto &[memory, what] :
         {std::pair(sink.ids, "ids"), std::pair(sink.weights, "weights")}) {
        if (memory == nullptr) continue;
        unsigned int type = 0;
        int managed = 0, ordinal = -1;
        CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                            CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                            CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
        void *values[] = {&type, &managed, &ordinal};
        ROUTECAP_TRY(PointerGetAttributes, 3, attributes, values,
                     reinterpret_cast<CUdeviceptr>(memory));
        if (type != CU_MEMORYTYPE_DEVICE || managed != 0 || ordinal != config_.device)
            return report(ROUTECAP_ERR_ARGUMENT, "sink.%s is not plain memory of device %d", what,
                          config_.device);
    }
    Sink before = *sink_;
    if (int32_t s = sink_->bind(first_layer, layers, sink); s < 0) return s;
    // A sealed sink has not changed, and an upload would wait for steps in flight.
    if (sink_->sealed()) return ROUTECAP_OK;
    const int32_t s = upload_table();
    if (s < 0) sink_.emplace(std::move(before));
    return s;
}

// ---- The forward path -----------------------------------------------------------------------

int32_t CudaBackend::enter(routecap_stream stream, bool &capturing) {
    if (int32_t s = alive(); s < 0) return s;
    const Current current(context_);
    entered_ = current.found();
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    capture_ = {};
    ROUTECAP_TRY(StreamGetCaptureInfo, stream, &status, &capture_.id, &capture_.graph, nullptr,
                 nullptr, nullptr);
    if (status == CU_STREAM_CAPTURE_STATUS_INVALIDATED)
        return report(ROUTECAP_ERR_CAPTURING, "the capture of this stream was invalidated before");
    capturing = capturing_ = status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return ROUTECAP_OK;
}

// The driver knows all memory that was allocated or registered with it, on any device. An address
// that it does not know is refused. Whether this device can reach the memory of another device is
// not checked: that depends on more than the address.
int32_t CudaBackend::check_memory(const void *address, const char *name) {
    if (reads_pageable_) return ROUTECAP_OK;
    const Current current(context_, entered_);
    unsigned int type = 0;
    CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE};
    void *values[] = {&type};
    ROUTECAP_TRY(PointerGetAttributes, 1, attributes, values,
                 reinterpret_cast<CUdeviceptr>(address));
    if (type != 0) return ROUTECAP_OK;
    return report(ROUTECAP_ERR_ARGUMENT, "%s is %p, which is no memory that device %d can read",
                  name, address, config_.device);
}

// How many blocks to launch for `items` items in each of `layers` layers.
template <class Body>
uint32_t CudaBackend::blocks(uint64_t items, uint32_t layers) const {
    using Launch = kernels::Launch<Body>;
    const uint64_t wanted = (items + Launch::threads - 1) / Launch::threads;
    const uint32_t most = Launch::loops ? std::max(most_blocks_ / layers, 1u) : INT32_MAX;
    return static_cast<uint32_t>(std::clamp<uint64_t>(wanted, 1, most));
}

template <class Body>
int32_t CudaBackend::launch(const Body &body, uint64_t items, CUstream stream, bool overlap,
                            uint32_t layers) {
    void *parameters[] = {const_cast<Body *>(&body)};
    const auto function = reinterpret_cast<CUfunction>(driver_.kernel_of<Body>());
    if (!overlap) {
        ROUTECAP_TRY(LaunchKernel, function, blocks<Body>(items, layers), layers, 1,
                     kernels::Launch<Body>::threads, 1, 1, 0, stream, parameters, nullptr);
        return ROUTECAP_OK;
    }
    CUlaunchAttribute dependent{};
    dependent.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    dependent.value.programmaticStreamSerializationAllowed = 1;
    const CUlaunchConfig config{.gridDimX = blocks<Body>(items, layers),
                                .gridDimY = layers,
                                .gridDimZ = 1,
                                .blockDimX = kernels::Launch<Body>::threads,
                                .blockDimY = 1,
                                .blockDimZ = 1,
                                .sharedMemBytes = 0,
                                .hStream = stream,
                                .attrs = &dependent,
                                .numAttrs = 1};
    ROUTECAP_TRY(LaunchKernelEx, &config, function, parameters, nullptr);
    return ROUTECAP_OK;
}

// Adds a kernel to the graph being captured as a leaf: it runs after what the stream has captured
// and after the previous leaf, and later work on the stream does not wait for it.
template <class Body>
int32_t CudaBackend::add_leaf(const Body &body, uint64_t items, CUstream stream) {
    CUstreamCaptureStatus status;
    const CUgraphNode *dependencies = nullptr;
    const CUgraphEdgeData *edges = nullptr;
    size_t count = 0;
    ROUTECAP_TRY(StreamGetCaptureInfo, stream, &status, nullptr, nullptr, &dependencies, &edges,
                 &count);
    before_.assign(dependencies, dependencies + count);
    if (leaf_ != nullptr && leaf_capture_ == capture_) before_.push_back(leaf_);
    void *parameters[] = {const_cast<Body *>(&body)};
    CUDA_KERNEL_NODE_PARAMS node{};
    node.gridDimX = blocks<Body>(items, 1);
    node.gridDimY = node.gridDimZ = node.blockDimY = node.blockDimZ = 1;
    node.blockDimX = kernels::Launch<Body>::threads;
    node.kernelParams = parameters;
    node.kern = driver_.kernel_of<Body>();
    node.ctx = context_;
    ROUTECAP_TRY(GraphAddKernelNode, &leaf_, capture_.graph, before_.data(), before_.size(), &node);
    leaf_capture_ = capture_;
    return ROUTECAP_OK;
}

// A graph that is being captured may run long after the capturer is destroyed, so it gets a
// reference to the arena.
int32_t CudaBackend::retain() {
    if (!capturing_ || retained_ == capture_) return ROUTECAP_OK;
    if (const CUresult r = arena_->retain_by(capture_.graph); r != CUDA_SUCCESS)
        return fail(r, "cuGraphRetainUserObject");
    retained_ = capture_;
    return ROUTECAP_OK;
}

kernels::Begin CudaBackend::begin_body(uint32_t rows) const {
    return {table(),   shape_->layers, rows,       sink_->begin_items(rows),
            control(), slots(),        map_.layout};
}

// What a begin of any kind does before its launch, and what it notes.
int32_t CudaBackend::before_begin(uint32_t rows, CUstream stream) {
    if (int32_t s = retain(); s < 0) return s;
    // The snapshot of an earlier step in this graph must have read the sink before begin clears it.
    if (capturing_ && leaf_ != nullptr && leaf_capture_ == capture_)
        ROUTECAP_TRY(StreamUpdateCaptureDependencies, stream, &leaf_, nullptr, 1,
                     CU_STREAM_ADD_CAPTURE_DEPENDENCIES);
    leaf_ = nullptr;
    if (!capturing_) {
        if (int32_t s = unnamed_ ? name(naming_, stream) : follow(stream); s < 0) return s;
    }
    sink_->seal();
    largest_begin_ = std::max(largest_begin_, rows);
    begun_ = {rows, here()};
    return ROUTECAP_OK;
}

int32_t CudaBackend::begin(uint32_t rows, routecap_stream stream) {
    const Current current(context_, entered_);
    if (int32_t s = before_begin(rows, stream); s < 0) return s;
    const kernels::Begin body = begin_body(rows);
    if (shape_->weight_bytes == 0) return launch(body, body.inner(), stream, false, body.outer());
    const kernels::BeginWeights both{body, weight_table(), shape_->weight_bytes};
    return launch(both, both.inner(), stream, false, both.outer());
}

int32_t CudaBackend::whole_step(const RecordSource &source, std::span<const RecordedLayer> layers,
                                routecap_stream stream) {
    if (shape_->layers > kernels::kWholeStepLayers)
        return Backend::whole_step(source, layers, stream);
    const Current current(context_, entered_);
    if (int32_t s = before_begin(source.ids.to.rows, stream); s < 0) return s;
    const auto step_of = [&]<class Id, uint32_t K>(const kernels::Snapshot<Id, K> &snapshot) {
        kernels::WholeStep<Id, K> body{{source.ids, 0, control(), {}}, snapshot, {}, {}, {}};
        for (const RecordedLayer &l : layers) {
            body.ids[l.layer] = l.ids;
            body.tables[l.layer] = l.table;
        }
        std::copy(shape_->rules.begin(), shape_->rules.end(), body.rules);
        return body;
    };
    const uint64_t items = uint64_t{source.ids.to.rows} * 8;
    if (shape_->weight_bytes == 0)
        return with_snapshot([&](const auto &snapshot) {
            const auto body = step_of(snapshot);
            return launch(body, items, stream, false, body.inner());
        });
    return with_weights_snapshot(
        [&]<class Id, uint32_t K, class W>(const kernels::SnapshotWeights<Id, K, W> &snapshot) {
            kernels::WholeStepWeights<Id, K, W> body{
                step_of(snapshot), source.weights, snapshot.nan, {}};
            for (const RecordedLayer &l : layers) body.weights[l.layer] = l.weights;
            return launch(body, items, stream, false, body.inner());
        });
}

template <uint32_t K, uint32_t L>
kernels::Record<K, L> CudaBackend::record_body(const kernels::Source &source,
                                               std::span<const RecordedLayer> layers) const {
    kernels::Record<K, L> body{source, static_cast<uint32_t>(layers.size()), control(), {}};
    for (size_t i = 0; i < layers.size(); i++)
        body.layers[i] = {layers[i].ids, layers[i].table, sink_->layers()[layers[i].layer]};
    return body;
}

// Calls f.operator()<L>(layers) for parts of the layers that one launch can record.
template <uint32_t Most, class F>
static int32_t in_parts(std::span<const RecordedLayer> layers, F f) {
    if (layers.size() == 1) return f.template operator()<1>(layers);
    int32_t status = ROUTECAP_OK;
    for (size_t l = 0; l < layers.size() && status == ROUTECAP_OK; l += Most)
        status = f.template operator()<Most>(
            layers.subspan(l, std::min<size_t>(Most, layers.size() - l)));
    return status;
}

int32_t CudaBackend::record_weights(const RecordSource &source,
                                    std::span<const RecordedLayer> layers, bool overlap,
                                    CUstream stream) {
    int32_t status = ROUTECAP_OK;
    const auto run = [&]<uint32_t K, class W>() {
        status = in_parts<ROUTECAP_WEIGHTED_LAYERS>(
            layers, [&]<uint32_t L>(std::span<const RecordedLayer> part) {
                kernels::RecordWeights<K, L, W> body{
                    record_body<K, L>(source.ids, part), source.weights, {}, {}};
                for (size_t i = 0; i < part.size(); i++) {
                    body.sinks[i] = sink_->weights()[part[i].layer];
                    body.weights[i] = part[i].weights;
                }
                return launch(body, body.inner(), stream, overlap, body.outer());
            });
    };
    kernels::with_weight_columns(shape_->kernel_k(), shape_->weight_bytes, run);
    return status;
}

int32_t CudaBackend::record(const RecordSource &source, std::span<const RecordedLayer> layers,
                            bool overlap, routecap_stream stream) {
    const Current current(context_, entered_);
    if (int32_t s = retain(); s < 0) return s;
    overlap = overlap && overlaps_;
    if (source.weighted) return record_weights(source, layers, overlap, stream);
    int32_t status = ROUTECAP_OK;
    kernels::with_columns(shape_->kernel_k(), [&]<uint32_t K>() {
        status = in_parts<ROUTECAP_RECORD_LAYERS>(
            layers, [&]<uint32_t L>(std::span<const RecordedLayer> part) {
                const auto body = record_body<K, L>(source.ids, part);
                return launch(body, body.inner(), stream, overlap, body.outer());
            });
    });
    return status;
}

int32_t CudaBackend::route(uint32_t layer, const kernels::Router &router,
                           const kernels::Logits &logits, routecap_stream stream) {
    const Current current(context_, entered_);
    if (int32_t s = retain(); s < 0) return s;
    int32_t status = ROUTECAP_OK;
    const kernels::SinkLayer &sink = sink_->layers()[layer];
    const auto route = [&]<uint32_t V, int32_t Score>() {
        const kernels::Route<V, Score> body{router, logits, sink.rule.k, sink, control()};
        status = launch(body, uint64_t{logits.to.rows} * 32, stream);
    };
    if (!kernels::with_route(logits.experts, score_of(router), route))
        return report(ROUTECAP_ERR_ARGUMENT, "router: no kernel for score %d of %u experts",
                      router.score, logits.experts);
    return status;
}

// These two use only memory of the caller, so a graph needs no reference to the arena.
int32_t CudaBackend::read_received(const routecap_received &r, routecap_stream stream) {
    const Current current(context_, entered_);
    return kernels::with_received(
        r, [&](const auto &body) { return launch(body, body.inner(), stream); });
}

int32_t CudaBackend::compare_received(const routecap_received &r, routecap_stream stream) {
    const Current current(context_, entered_);
    const kernels::Chosen body = kernels::chosen(r);
    return launch(body, body.inner(), stream);
}

// Calls f(body) with the snapshot's element body for this shape.
template <class F>
int32_t CudaBackend::with_snapshot(F f) {
    int32_t status = ROUTECAP_OK;
    kernels::with_columns(shape_->kernel_k(), [&]<uint32_t K>() {
        const auto run = [&]<class Body>() {
            return f(Body{table(), shape_->layers, shape_->k, control(), slots(), map_.layout});
        };
        status = shape_->id_bytes == 1 ? run.template operator()<kernels::Snapshot8<K>>()
                                       : run.template operator()<kernels::Snapshot16<K>>();
    });
    return status;
}

// The same with weights.
template <class F>
int32_t CudaBackend::with_weights_snapshot(F f) {
    int32_t status = ROUTECAP_OK;
    const auto run = [&]<class Id, uint32_t K, class W>() {
        return f(kernels::SnapshotWeights<Id, K, W>{
            {table(), shape_->layers, shape_->k, control(), slots(), map_.layout},
            weight_table(),
            kernels::NanRule(shape_->weights_dtype)});
    };
    kernels::with_weight_columns(
        shape_->kernel_k(), shape_->weight_bytes, [&]<uint32_t K, class W>() {
            status = shape_->id_bytes == 1 ? run.template operator()<uint8_t, K, W>()
                                           : run.template operator()<uint16_t, K, W>();
        });
    return status;
}

int32_t CudaBackend::snapshot(routecap_stream stream) {
    const Current current(context_, entered_);
    if (int32_t s = retain(); s < 0) return s;
    const uint64_t rows = begun_ && begun_->where == here() ? begun_->rows : largest_begin_;
    const uint64_t items = rows * shape_->validity_bytes * 8;
    const auto take = [&](const auto &body) {
        return capturing_ ? add_leaf(body, items, stream) : launch(body, items, stream);
    };
    return shape_->weight_bytes == 0 ? with_snapshot(take) : with_weights_snapshot(take);
}

// Makes `stream` wait for the last step, if that was on a different stream. The wait may last long,
// and reads only the arena's memory, which is freed only when no work on the device uses it.
int32_t CudaBackend::follow(CUstream stream) {
    if (!any_step_ || stream == last_stream_) return ROUTECAP_OK;
    if (delivered_ != 0) {
        ROUTECAP_TRY(StreamWaitValue64, stream, device_name(), delivered_,
                     CU_STREAM_WAIT_VALUE_GEQ);
    } else {
        if (!named_recorded_) ROUTECAP_TRY(EventRecord, named_, last_stream_);
        named_recorded_ = true;
        ROUTECAP_TRY(StreamWaitEvent, stream, named_, CU_EVENT_WAIT_DEFAULT);
    }
    last_stream_ = stream;
    return ROUTECAP_OK;
}

// ---- Naming a slot

kernels::Named CudaBackend::new_name(int32_t slot) {
    const kernels::Named named{slot, ++epoch_};
    if (slot != kernels::kNoSlot) in(slot).epoch.store(named.epoch(), std::memory_order_relaxed);
    return named;
}

// Notes that the stream will give the device this name.
void CudaBackend::named_on(CUstream stream, kernels::Named named, bool delivered) {
    epoch_ = named.epoch();
    upper_ = static_cast<uint32_t>(named.word >> 32);
    if (begun_ && begun_->where == Capture{}) begun_.reset();
    last_stream_ = stream;
    any_step_ = true;
    named_recorded_ = false;
    delivered_ = delivered ? named.word : 0;
}

void CudaBackend::note_naming(int32_t slot, int32_t status) {
    naming_ = slot;
    unnamed_.note(status);
    if (slot != kernels::kNoSlot) in(slot).failure = unnamed_;
}

// A memset of four bytes is the cheapest operation that runs in the order of a stream: 1.5 us on an
// H200, and 2.2 us for eight bytes. So the upper half of the name is written only when it changes,
// every 2^24 namings, and before the lower half.
int32_t CudaBackend::try_name(int32_t slot, CUstream stream) {
    if (int32_t s = alive(); s < 0) return s;
    if (int32_t s = follow(stream); s < 0) return s;
    const kernels::Named named = new_name(slot);
    const CUdeviceptr word = device_name();
    const auto lower = static_cast<uint32_t>(named.word),
               upper = static_cast<uint32_t>(named.word >> 32);
    if (upper != upper_) {
        ROUTECAP_TRY(MemsetD32Async, word + 4, upper, 1, stream);
        upper_ = upper;
        epoch_ |= 0xffffff;  // should the next line fail: with the old lower half it is a name that
                             // is never given
    }
    ROUTECAP_TRY(MemsetD32Async, word, lower, 1, stream);
    named_on(stream, named, false);
    ROUTECAP_TRY(EventRecord, named_, stream);
    named_recorded_ = true;
    return ROUTECAP_OK;
}

void CudaBackend::name_slot(int32_t slot, routecap_stream stream) {
    const Current current(context_, entered_);
    name(slot, stream);
}

int32_t CudaBackend::name(int32_t slot, CUstream stream) {
    const int32_t status = try_name(slot, stream);
    note_naming(slot, status);
    return status;
}

// ---- A step on its way to the host

// Whether a kernel can certainly read the positions. If it cannot, a kernel would lose the device,
// while a copy works or fails and loses only its step. The driver is seldom asked, because engines
// keep their positions at one address.
bool CudaBackend::kernels_read(const DevicePositions &positions) {
    if (positions.rows == 0 || positions.positions == known_positions_) return true;
    unsigned int type = 0;
    int ordinal = -1;
    CUdeviceptr for_kernels = 0;
    CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                        CU_POINTER_ATTRIBUTE_DEVICE_POINTER};
    void *values[] = {&type, &ordinal, &for_kernels};
    const CUdeviceptr address = address_of(positions.positions);
    if (address % 4 != 0 ||
        driver_.PointerGetAttributes(3, attributes, values, address) != CUDA_SUCCESS ||
        (type != CU_MEMORYTYPE_HOST && ordinal != config_.device) || for_kernels != address)
        return false;
    known_positions_ = positions.positions;
    return true;
}

// Does everything in one launch on the engine's stream. Its few microseconds cost less than more
// calls of the driver would.
int32_t CudaBackend::deliver(int32_t slot, size_t bytes, const DevicePositions &positions,
                             int32_t next, CUstream stream) {
    if (int32_t s = alive(); s < 0) return s;
    if (int32_t s = follow(stream); s < 0) return s;
    const kernels::Named named = new_name(next);
    const kernels::Deliver body{
        .control = control(),
        .from = device_slot(slot),
        .to = host_slot(slot),
        .chunks = static_cast<uint32_t>(bytes / sizeof(kernels::Deliver::Chunk)),
        .position_words = static_cast<uint32_t>(positions.bytes() / 4),
        .positions = positions.positions,
        .positions_to = host_slot(slot) + bytes,
        .arrived = arrived(slot),
        .epoch = epoch_of(slot),
        .next = named};
    if (int32_t s = launch(body, body.inner(), stream); s < 0) return s;
    named_on(stream, named, true);
    return ROUTECAP_OK;
}

// Copies the positions on the engine's stream, because the engine may overwrite them after that.
int32_t CudaBackend::keep_positions(int32_t slot, size_t bytes, const DevicePositions &positions,
                                    CUstream stream) {
    if (positions.rows == 0) return ROUTECAP_OK;
    if (int32_t s = alive(); s < 0) return s;
    if (int32_t s = follow(stream); s < 0) return s;
    ROUTECAP_TRY(MemcpyAsync, address_of(device_slot(slot) + bytes),
                 address_of(positions.positions), positions.bytes(), stream);
    return ROUTECAP_OK;
}

// Copies rows and positions on a stream of the library. It waits for the event of the last naming,
// which was recorded after the copy of the positions.
int32_t CudaBackend::bring(int32_t slot, size_t bytes, const DevicePositions &positions) {
    ROUTECAP_TRY(StreamWaitEvent, side_, named_, CU_EVENT_WAIT_DEFAULT);
    ROUTECAP_TRY(MemcpyDtoHAsync, host_slot(slot), address_of(device_slot(slot)),
                 bytes + positions.bytes(), side_);
    ROUTECAP_TRY(StreamWriteValue64, side_, address_of(arrived(slot)), epoch_of(slot),
                 CU_STREAM_WRITE_VALUE_DEFAULT);
    return ROUTECAP_OK;
}

// Copies only if the naming of `next` succeeded. Otherwise the device still has an older name, and
// its next snapshot may write the slot that the copy would read.
void CudaBackend::copy(int32_t slot, uint32_t count, const DevicePositions &positions, int32_t next,
                       routecap_stream stream) {
    const Current current(context_, entered_);
    Slot &s = in(slot);
    const auto bytes =
        static_cast<size_t>(map_.layout.positions(host_slot(slot), count) - host_slot(slot));
    const bool at_once = !s.failure && maps_host_ && !s.astray &&
                         bytes + positions.bytes() <= kMostDelivered && kernels_read(positions);
    if (at_once) {
        note_naming(next, deliver(slot, bytes, positions, next, stream));
    } else {
        if (!s.failure) s.failure.note(keep_positions(slot, bytes, positions, stream));
        name(next, stream);
    }
    if (!s.failure) s.failure = unnamed_;
    if (!at_once && !s.failure) {
        s.failure.note(bring(slot, bytes, positions));
        s.astray = static_cast<bool>(s.failure);
    }
    s.state.store(s.failure ? State::kFailed : State::kCopied, std::memory_order_release);
}

// ---- Probing --------------------------------------------------------------------------------

int32_t CudaBackend::wait_for(routecap_stream stream, uint32_t &rows_begun) {
    const Current current(context_, entered_);
    const Uncaptured uncaptured;
    kernels::Control words;
    ROUTECAP_TRY(StreamSynchronize, stream);
    ROUTECAP_TRY(MemcpyDtoHAsync, &words, arena_->at(map_.control), sizeof words, side_);
    ROUTECAP_TRY(StreamSynchronize, side_);
    rows_begun = words.rows();
    return ROUTECAP_OK;
}

int32_t CudaBackend::read_layer(uint32_t layer, uint32_t rows, void *ids) {
    const Current current(context_, entered_);
    const Uncaptured uncaptured;
    const kernels::SinkLayer &from = sink_->layers()[layer];
    const size_t element = sink_element_bytes(from.dtype);
    const size_t bytes = from.rule.k * element,
                 pitch = static_cast<size_t>(from.row_stride) * element;
    const auto address = reinterpret_cast<CUdeviceptr>(from.ids);
    const uint32_t copies = pitch == bytes ? 1 : rows;
    for (uint32_t r = 0; r < copies; r++)
        ROUTECAP_TRY(MemcpyDtoHAsync, static_cast<uint8_t *>(ids) + r * bytes, address + r * pitch,
                     bytes * (rows / copies), side_);
    ROUTECAP_TRY(StreamSynchronize, side_);
    return ROUTECAP_OK;
}

// ---- Filing -------------------------------------------------------------------------------------

bool CudaBackend::landed(int32_t slot) {
    Slot &s = in(slot);
    if (const State state = s.state.load(std::memory_order_acquire); state != State::kCopied)
        return state == State::kFailed;
    if (has_arrived(slot)) return true;
    if (++looks_ % 1024 != 0) return false;
    // Every 1,024 looks, ask the driver whether the copy can still arrive.
    const Current current(context_);
    const Uncaptured uncaptured;
    const CUresult result = driver_.StreamQuery(side_);
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY) return false;
    s.failure.note(fail(result, "cuStreamQuery"));
    s.state.store(State::kFailed, std::memory_order_release);
    return true;
}

SlotContents CudaBackend::contents(int32_t slot) {
    if (failure(slot) != nullptr) return {host_slot(slot)};
    return read_slot(map_.layout, host_slot(slot), in(slot).epoch);
}

const char *CudaBackend::failure(int32_t slot) const {
    const Slot &s = in(slot);
    return s.state.load(std::memory_order_acquire) == State::kFailed ? s.failure.text() : nullptr;
}

}  // namespace

int32_t make_cuda_backend(const BackendConfig &config, std::unique_ptr<Backend> &backend) {
    const Driver &d = driver();
    if (d.status < 0) return report(d.status, "%s", d.detail);
    if (d.process != process_generation())
        return report(ROUTECAP_ERR_FORKED,
                      "the CUDA driver was loaded before fork(); it works in the parent only");
    if (config.device < 0 || config.device >= d.devices)
        return report(ROUTECAP_ERR_ARGUMENT, "config.device is %d of %d", config.device, d.devices);
    auto made = std::make_unique<CudaBackend>(config);
    if (int32_t s = made->create(); s < 0) return s;
    backend = std::move(made);
    return ROUTECAP_OK;
}

BackendInfo cuda_backend_info() {
    const Driver &d = driver();
    return {d.status == ROUTECAP_OK, d.devices, d.detail};
}

DeviceMemory cuda_memory_of(const BackendConfig &config) {
    const MemoryMap map(config);
    return {map.bytes, map.staging_bytes};
}

}  // namespace routecap

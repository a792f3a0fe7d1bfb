// The CUDA backend's costs on one GPU: bench_cuda [--quick] [--json FILE] [--only SUBSTRING]...
// [--list] [--device ORDINAL]
//
// The engine is imitated: a CUDA graph of layers that read memory (and multiply, in prefill) with a
// router behind each, then a tail (last experts, head). Its routers write ids by a formula into the
// capturer's sink. Before anything is timed, every row of one step is compared with that formula.
//
// A cost is a difference: runs without capture and with it alternate, and each run with it is held
// against the mean of its two neighbours. Everything is repeated 30 times (5 with --quick). Times
// of the engine's thread are wall times of its calls unless called CPU time.
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <routecap.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "extraction.h"
#include "measure.h"
#include "threads.h"

namespace {

using namespace bench;

int repetitions = 30;

void check_cuda(cudaError_t error, const char *call) {
    if (error != cudaSuccess) fail(std::string(call) + ": " + cudaGetErrorString(error));
}
#define CUDA(call) check_cuda((call), #call)

template <class T, auto destroy>
struct Owned {
    Owned() = default;
    Owned(const Owned &) = delete;
    Owned &operator=(const Owned &) = delete;
    ~Owned() {
        if (value != nullptr) destroy(value);
    }
    operator T() const { return value; }
    T value = nullptr;
};

struct Stream : Owned<cudaStream_t, cudaStreamDestroy> {
    Stream() { CUDA(cudaStreamCreateWithFlags(&value, cudaStreamNonBlocking)); }
};
struct Event : Owned<cudaEvent_t, cudaEventDestroy> {
    explicit Event(unsigned flags = cudaEventDisableTiming) {
        CUDA(cudaEventCreateWithFlags(&value, flags));
    }
};
using Graph = Owned<cudaGraphExec_t, cudaGraphExecDestroy>;

template <class T>
struct DeviceArray : Owned<T *, cudaFree> {
    explicit DeviceArray(size_t count) { CUDA(cudaMalloc(&this->value, count * sizeof(T))); }
};
template <class T>
struct PinnedArray : Owned<T *, cudaFreeHost> {
    explicit PinnedArray(size_t count) {
        CUDA(cudaHostAlloc(&this->value, count * sizeof(T), cudaHostAllocMapped));
        std::memset(this->value, 0, count * sizeof(T));
    }
};

// ---- The model's work on the device
// ---------------------------------------------------------------------------------

// What the router of a layer chooses for a sink row: k distinct ids, for experts that 5 does not
// divide.
__host__ __device__ inline uint32_t expert(uint32_t row, uint32_t layer, uint32_t column,
                                           uint32_t experts) {
    uint32_t h = row * 0x9E3779B1u + layer * 0x85EBCA77u;
    h ^= h >> 15;
    return (h % experts + column * 5) % experts;
}

template <class T>
__global__ void route(T *ids, int64_t row_stride, uint32_t rows, uint32_t layer, uint32_t k,
                      uint32_t experts) {
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < rows * k)
        ids[i / k * row_stride + i % k] = static_cast<T>(expert(i / k, layer, i % k, experts));
}

__global__ void read_memory(const uint4 *from, size_t words, uint4 *never) {
    uint4 all{};
    const size_t threads = static_cast<size_t>(gridDim.x) * blockDim.x;
    for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < words;
         i += threads) {
        const uint4 v = __ldcs(from + i);
        all.x ^= v.x, all.y ^= v.y, all.z ^= v.z, all.w ^= v.w;
    }
    if (all.x == 0x12345678 && all.y == 0x9ABCDEF0) *never = all;
}

__global__ void multiply(uint32_t iterations, uint4 *never) {
    float a = 0.5f + static_cast<float>(threadIdx.x), b = a + 1, c = a + 2, d = a + 3;
    for (uint32_t i = 0; i < iterations; i++) {
        a = fmaf(a, 0.9999f, 0.5f), b = fmaf(b, 0.9999f, 0.5f);
        c = fmaf(c, 0.9999f, 0.5f), d = fmaf(d, 0.9999f, 0.5f);
    }
    if (a + b + c + d < 0) *never = uint4{1, 1, 1, 1};
}

// Tells the host, without a call of the driver, that the stream came so far.
__global__ void stamp(volatile uint32_t *word, uint32_t value) {
    *word = value;
    __threadfence_system();
}

// Has a stream write a word of the host's memory, which only the driver's own interface can.
void write_word(cudaStream_t stream, uint64_t *word, uint64_t value) {
    using Function = int (*)(cudaStream_t, uint64_t address, uint64_t value, unsigned flags);
    static const auto function = reinterpret_cast<Function>(
        dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuStreamWriteValue64_v2"));
    if (function == nullptr || function(stream, reinterpret_cast<uint64_t>(word), value, 0) != 0)
        fail("cuStreamWriteValue64 fails");
}

// What begin and snapshot cannot do with less: a launch, and their bytes.
__global__ void nothing() {}
__global__ void fill(uint4 *cells, uint32_t count) {
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) cells[i] = uint4{1, 2, 3, 4};
}
__global__ void narrow(const uint4 *from, uint2 *to, uint32_t count) {
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) to[i] = uint2{from[i].x ^ from[i].y, from[i].z ^ from[i].w};
}

// What bringing rows in one launch cannot do with less: their bytes, and a word behind them all.
__global__ void bring(const uint4 *from, uint4 *to, uint32_t count, uint32_t *done,
                      volatile uint64_t *word, uint64_t value) {
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) to[i] = from[i];
    __syncthreads();
    if (threadIdx.x != 0) return;
    __threadfence();
    if (atomicAdd(done, 1u) != gridDim.x - 1) return;
    *done = 0;
    __threadfence_system();
    *word = value;
}

// How long a forward pass works, besides its routers, in microseconds.
struct Work {
    double layer_read, layer_multiply;  // in each layer
    double tail_read;                   // in each of three kernels behind the last router
};
constexpr Work kDecode{55, 0, 110}, kPrefill{840, 840, 300}, kSmallPrefill{165, 165, 100},
    kNoWork{0, 0, 0};

// Kernels that take a given time on this GPU as it is now.
class Workload {
public:
    explicit Workload(int device) : never_(1), device_(device) {
        size_t available = 0, total = 0;
        CUDA(cudaMemGetInfo(&available, &total));
        words_ = std::min<size_t>(size_t{8} << 30, available / 2) / sizeof(uint4);
        CUDA(cudaMalloc(&weights_.value, words_ * sizeof(uint4)));
        CUDA(cudaMemset(weights_, 1, words_ * sizeof(uint4)));
        CUDA(cudaDeviceSynchronize());
        int sms = 0;
        CUDA(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device));
        blocks_ = sms * 8;
        // How much is read and multiplied in a microsecond.
        constexpr size_t kWords = 14'000'000;
        constexpr uint32_t kIterations = 20'000;
        constexpr int kLaunches = 20;
        words_per_us_ =
            kWords / time([&](uint32_t i) { read_words(i, kWords, stream_); }, kLaunches);
        iterations_per_us_ =
            kIterations / time([&](uint32_t) { iterate(kIterations, stream_); }, kLaunches);
    }

    void layer(const Work &work, uint32_t index, cudaStream_t stream) const {
        if (work.layer_read > 0)
            read_words(index, static_cast<size_t>(work.layer_read * words_per_us_), stream);
        if (work.layer_multiply > 0)
            iterate(static_cast<uint32_t>(work.layer_multiply * iterations_per_us_), stream);
    }
    void tail(const Work &work, cudaStream_t stream) const {
        for (uint32_t i = 0; i < 3 && work.tail_read > 0; i++)
            read_words(i, static_cast<size_t>(work.tail_read * words_per_us_), stream);
    }

    int device() const { return device_; }

private:
    static constexpr int kWarmUp = 50;  // launches before those that are timed

    template <class F>
    double time(F launch, int launches) {
        const Event from(cudaEventDefault), to(cudaEventDefault);
        for (int i = -kWarmUp; i < launches; i++) {
            if (i == 0) CUDA(cudaEventRecord(from, stream_));
            launch(static_cast<uint32_t>(i + kWarmUp));
        }
        CUDA(cudaEventRecord(to, stream_));
        CUDA(cudaEventSynchronize(to));
        float ms = 0;
        CUDA(cudaEventElapsedTime(&ms, from, to));
        return static_cast<double>(ms) * 1e3 / launches;
    }
    // The index-th so many words: far more than a cache holds lie between two reads of one word.
    void read_words(uint32_t index, size_t words, cudaStream_t stream) const {
        words = std::min(words, words_ / 2);
        read_memory<<<blocks_, 256, 0, stream>>>(weights_ + index * words % (words_ - words), words,
                                                 never_);
        CUDA(cudaGetLastError());
    }
    void iterate(uint32_t iterations, cudaStream_t stream) const {
        multiply<<<blocks_, 256, 0, stream>>>(iterations, never_);
        CUDA(cudaGetLastError());
    }

    Stream stream_;
    Owned<uint4 *, cudaFree> weights_;
    size_t words_ = 0;
    DeviceArray<uint4> never_;
    int device_, blocks_ = 0;
    double words_per_us_ = 0, iterations_per_us_ = 0;
};

// ---- The engine
// -----------------------------------------------------------------------------------------------------

struct Shape {
    uint32_t layers = 58, k = 8, experts = 256;
    int32_t dtype = ROUTECAP_DTYPE_I16;
};
constexpr uint32_t kSinkRows = 8192;
constexpr int kSlots = 4, kStepsInFlight = 2;

std::string name_of(const Shape &shape) {
    return "L=" + std::to_string(shape.layers) + " K=" + std::to_string(shape.k) +
           " E=" + std::to_string(shape.experts) + " N=" + std::to_string(kSinkRows) +
           (shape.dtype == ROUTECAP_DTYPE_I64 ? " I64" : " I16");
}

routecap_config config_of(const Shape &shape, int device) {
    routecap_config config;
    CHECK(routecap_config_init(&config, sizeof config));
    config.backend = ROUTECAP_BACKEND_CUDA;
    config.device = device;
    config.layers = shape.layers;
    config.k = shape.k;
    config.experts = shape.experts;
    config.rows = kSinkRows;
    config.slots = kSlots;
    config.sink_dtype = shape.dtype;
    config.budget_bytes = uint64_t{4} << 30;
    return config;
}

// What the library makes of a row.
size_t row_bytes_of(const Shape &shape, int device) {
    routecap_memory memory{};
    memory.struct_size = sizeof memory;
    const routecap_config config = config_of(shape, device);
    CHECK(routecap_config_memory(&config, &memory));
    return memory.row_bytes;
}

// The rows of a step: so many, of so many requests of equal shares.
struct Batch {
    uint32_t rows, requests;
    uint32_t share() const { return rows / requests; }
};
constexpr Batch decode_batch(uint32_t rows) { return {rows, rows}; }

// How a forward is captured.
enum class Mode {
    kNone,        // not at all; the routers write the sink all the same
    kEager,       // begin and snapshot outside the graph
    kInLine,      // begin in line, snapshot captured
    kForked,      // begin on a branch that joins before the first router, snapshot captured
    kOwnBuffers,  // not at all; the routers write memory of the engine, 32 bits an id
    kRecord,      // the same, and each layer is recorded from there; otherwise as kForked
    kGraph,       // as kInLine, and nothing is issued: what is in the graph alone
    // Limits of kInLine, which capture nothing:
    kAgain,       // the graph of kNone, made once more
    kTwoKernels,  // empty kernels in the places of begin and snapshot
    kSameMemory,  // kernels that write, or read and write, as many bytes and do nothing else
    // The same, and behind the graph what orders a copy with it: a word, an event, on another
    // stream the copy and a word.
    kProtocol,
    // The same two, and behind the graph a kernel that writes the rows to host memory, and a word
    // once they are there.
    kOneLaunch,
};

// The mode whose graph a forward of this one launches.
Mode graph_of(Mode mode) {
    return mode == Mode::kEager                                  ? Mode::kNone
           : mode == Mode::kGraph                                ? Mode::kInLine
           : mode == Mode::kProtocol || mode == Mode::kOneLaunch ? Mode::kSameMemory
                                                                 : mode;
}

bool captures(Mode mode) {
    return mode == Mode::kEager || mode == Mode::kInLine || mode == Mode::kForked ||
           mode == Mode::kRecord;
}

const char *name_of(Mode mode) {
    switch (mode) {
        case Mode::kEager: return "begin, snapshot outside graph";
        case Mode::kInLine: return "begin in line, snapshot captured";
        case Mode::kForked: return "begin forked, snapshot captured";
        case Mode::kGraph: return "begin in line, snapshot captured, no issue";
        case Mode::kRecord: return "each layer recorded, all captured";
        case Mode::kAgain: return "limit: the same kernels in another graph";
        case Mode::kTwoKernels: return "limit: two empty kernels";
        case Mode::kSameMemory: return "limit: two kernels that move the bytes";
        case Mode::kProtocol: return "limit: the same, an event, a copy, two words";
        case Mode::kOneLaunch: return "limit: the same two, a kernel that writes to the host";
        default: return "without capture";
    }
}

// Wall time of calls on the engine's thread, microseconds.
struct Calls {
    std::vector<double> begin, snapshot, issue;
};

template <class F>
double timed(F f, double (*clock)() = wall_us) {
    const double start = clock();
    f();
    return clock() - start;
}

class Engine {
public:
    Engine(const Workload &workload, const Shape &shape, const Batch &batch, const Work &work)
        : workload_(workload),
          shape_(shape),
          row_bytes_(row_bytes_of(shape, workload.device())),
          batch_(batch),
          work_(work),
          requests_(batch.requests),
          spans_(batch.requests),
          sinks_(shape.layers) {
        const routecap_config config = config_of(shape, workload.device());
        CHECK(routecap_capturer_create(&config, &capturer_.value));
        for (uint32_t l = 0; l < shape.layers; l++) {
            sinks_[l].struct_size = sizeof sinks_[l];
            CHECK(routecap_sink_layer(capturer_, l, &sinks_[l]));
        }
        for (uint32_t i = 0; i < batch.requests; i++)
            spans_[i].sink_row = i * batch.share(), spans_[i].rows = batch.share();
    }

    // Makes the graph, and sees that what is captured with it is what the routers chose.
    void prepare(Mode mode) {
        build(mode);
        if (captures(mode)) verify(mode);
    }

    // ---- Requests
    void open() {
        CHECK(routecap_request_open(capturer_, nullptr, requests_.data(), requests_.size()));
        for (uint32_t i = 0; i < batch_.requests; i++) spans_[i].request = requests_[i];
    }
    void close() {
        CHECK(routecap_request_close_batch(capturer_, requests_.data(), nullptr, requests_.size()));
    }
    const std::vector<routecap_request> &requests() const { return requests_; }
    const std::vector<routecap_span> &spans() const { return spans_; }

    // ---- A step, in the order of its calls
    void forward(Mode mode, Calls *calls = nullptr) {
        if (mode == Mode::kEager) {
            const double used =
                timed([&] { CHECK(routecap_step_begin(capturer_, batch_.rows, main_)); });
            if (calls != nullptr) calls->begin.push_back(used);
        }
        CUDA(cudaGraphLaunch(graphs_.at(graph_of(mode)), main_));
        if (mode == Mode::kEager) {
            const double used = timed([&] { CHECK(routecap_step_snapshot(capturer_, main_)); });
            if (calls != nullptr) calls->snapshot.push_back(used);
        }
        if (mode == Mode::kProtocol) {
            const double used = timed([&] { order_copy(); });
            if (calls != nullptr) calls->issue.push_back(used);
        }
        if (mode == Mode::kOneLaunch) {
            const double used = timed([&] { write_rows(); });
            if (calls != nullptr) calls->issue.push_back(used);
        }
    }
    // Where the rows of a limit go.
    void make_landed() {
        if (landed_ == nullptr) CUDA(cudaMallocHost(&landed_.value, batch_.rows * row_bytes_));
    }
    // What a protocol of copies cannot do without: the word that the next replay reads, and behind
    // this one the rows' copy and a word that says that they have come.
    void order_copy() {
        make_landed();
        CUDA(cudaMemsetAsync(bytes_, 0, 4, main_));
        CUDA(cudaEventRecord(fork_, main_));
        CUDA(cudaStreamWaitEvent(branch_, fork_, 0));
        CUDA(cudaMemcpyAsync(landed_, bytes_, batch_.rows * row_bytes_, cudaMemcpyDeviceToHost,
                             branch_));
        write_word(branch_, arrived_, ++copies_);
    }
    // The same in one launch.
    void write_rows() {
        make_landed();
        if (done_ == nullptr) {
            CUDA(cudaMalloc(&done_.value, sizeof(uint32_t)));
            CUDA(cudaMemset(done_, 0, sizeof(uint32_t)));
        }
        const auto count = static_cast<uint32_t>(batch_.rows * row_bytes_ / sizeof(uint4));
        bring<<<(count + kCellThreads - 1) / kCellThreads, kCellThreads, 0, main_>>>(
            reinterpret_cast<const uint4 *>(bytes_.value), reinterpret_cast<uint4 *>(landed_.value),
            count, done_, arrived_, ++copies_);
        CUDA(cudaGetLastError());
    }
    // The calls of the driver by which routecap brings the rows of a step: a launch, or beyond 256
    // KiB what orders a copy, which holds up the next step less.
    bool brings_by_launch() const { return batch_.rows * row_bytes_ <= 256 << 10; }
    void bring_rows() {
        if (!brings_by_launch()) return order_copy();
        nothing<<<1, 1, 0, main_>>>();
        CUDA(cudaGetLastError());
    }
    const uint8_t *landed_rows() const { return landed_; }
    size_t row_bytes() const { return row_bytes_; }
    // The last copy that was ordered, and the last that has come.
    uint64_t copies() const { return copies_; }
    const uint64_t *arrived() const { return arrived_; }
    // The spans of the step-th step since the requests were opened. Outside the timing of issue: an
    // engine has them already.
    void arrange(uint64_t step, uint32_t flags = 0) {
        for (routecap_span &span : spans_)
            span.position = step * batch_.share(), span.flags = flags;
    }
    routecap_step issue() {
        routecap_step step = 0;
        CHECK(routecap_step_issue(capturer_, spans_.data(), sizeof spans_[0], spans_.size(),
                                  nullptr, nullptr, &step, main_));
        return step;
    }
    void land(routecap_step step) {
        const int32_t status = routecap_step_poll(capturer_, step);
        if (status != ROUTECAP_PENDING) return check(status, "routecap_step_poll");
        CHECK(routecap_step_finalize(capturer_, step, -1, nullptr));
    }

    // So many steps back to back, two of them in flight. Returns microseconds per step.
    double run(Mode mode, int steps, Calls *medians = nullptr) {
        const bool capture = captures(mode);
        std::vector<routecap_step> tickets;
        Calls calls;
        if (capture) open();
        CUDA(cudaStreamSynchronize(main_));
        const double start = wall_us();
        for (int i = 0; i < steps; i++) {
            if (i >= kStepsInFlight)
                CUDA(cudaEventSynchronize(ends_[(i - kStepsInFlight) % kSlots]));
            forward(mode, &calls);
            if (capture) {
                if (i >= kSlots - 1) land(tickets[static_cast<size_t>(i - kSlots + 1)]);
                arrange(static_cast<uint64_t>(i));
                calls.issue.push_back(timed([&] { tickets.push_back(issue()); }));
            }
            CUDA(cudaEventRecord(ends_[i % kSlots], main_));
        }
        CUDA(cudaEventSynchronize(ends_[(steps - 1) % kSlots]));
        const double used = (wall_us() - start) / steps;
        if (capture) {
            land(tickets.back());
            expect_all_delivered();
            close();
        }
        if (medians != nullptr)
            for (const auto member : {&Calls::begin, &Calls::snapshot, &Calls::issue})
                if (!(calls.*member).empty())
                    (medians->*member).push_back(estimate(calls.*member).median);
        return used;
    }

    void synchronize() const {
        for (const cudaStream_t stream : {main_.value, branch_.value})
            CUDA(cudaStreamSynchronize(stream));
    }

    routecap_capturer *capturer() const { return capturer_; }
    cudaStream_t stream() const { return main_; }

private:
    template <class T>
    void route_to(void *ids, int64_t row_stride, uint32_t layer) {
        const uint32_t threads = 256, blocks = (batch_.rows * shape_.k + threads - 1) / threads;
        route<<<blocks, threads, 0, main_>>>(static_cast<T *>(ids), row_stride, batch_.rows, layer,
                                             shape_.k, shape_.experts);
        CUDA(cudaGetLastError());
    }
    void router(uint32_t layer) {
        const routecap_sink &sink = sinks_[layer];
        const int64_t stride = sink.row_stride != 0 ? sink.row_stride : shape_.k;
        switch (sink.dtype) {
            case ROUTECAP_DTYPE_I16: return route_to<int16_t>(sink.ids, stride, layer);
            case ROUTECAP_DTYPE_I32: return route_to<int32_t>(sink.ids, stride, layer);
            default: return route_to<int64_t>(sink.ids, stride, layer);
        }
    }
    int32_t *own_buffer(uint32_t layer) const {
        return own_buffers_ + static_cast<size_t>(layer) * batch_.rows * shape_.k;
    }

    void build(Mode mode) {
        const bool own = mode == Mode::kOwnBuffers || mode == Mode::kRecord,
                   forked = mode == Mode::kForked || mode == Mode::kRecord;
        if (graph_of(mode) != mode) return build(graph_of(mode));
        if (graphs_.count(mode) != 0) return;
        if (own && own_buffers_ == nullptr)
            CUDA(cudaMalloc(&own_buffers_.value, static_cast<size_t>(shape_.layers) * batch_.rows *
                                                     shape_.k * sizeof(int32_t)));
        if (mode == Mode::kSameMemory) CUDA(cudaMalloc(&bytes_.value, cells() * 24));

        CUDA(cudaStreamBeginCapture(main_, cudaStreamCaptureModeThreadLocal));
        if (mode == Mode::kInLine) CHECK(routecap_step_begin(capturer_, batch_.rows, main_));
        if (mode == Mode::kTwoKernels) nothing<<<1, 1, 0, main_>>>();
        if (mode == Mode::kSameMemory)
            fill<<<blocks_of_cells(), kCellThreads, 0, main_>>>(
                reinterpret_cast<uint4 *>(bytes_.value), cells());
        if (forked) {
            CUDA(cudaEventRecord(fork_, main_));
            CUDA(cudaStreamWaitEvent(branch_, fork_, 0));
            CHECK(routecap_step_begin(capturer_, batch_.rows, branch_));
            CUDA(cudaEventRecord(join_, branch_));
        }
        for (uint32_t l = 0; l < shape_.layers; l++) {
            workload_.layer(work_, l, main_);
            if (forked && l == 0) CUDA(cudaStreamWaitEvent(main_, join_, 0));
            if (own)
                route_to<int32_t>(own_buffer(l), shape_.k, l);
            else
                router(l);
            if (mode != Mode::kRecord) continue;
            routecap_source source{};
            source.struct_size = sizeof source;
            source.dtype = ROUTECAP_DTYPE_I32;
            source.ids = own_buffer(l);
            source.rows = batch_.rows;
            CHECK(routecap_layer_record(capturer_, l, &source, main_));
        }
        if (captures(mode)) CHECK(routecap_step_snapshot(capturer_, main_));
        if (mode == Mode::kTwoKernels) add_leaf(reinterpret_cast<void *>(nothing), 1, 1);
        if (mode == Mode::kSameMemory)
            add_leaf(reinterpret_cast<void *>(narrow), blocks_of_cells(), kCellThreads);
        workload_.tail(work_, main_);
        cudaGraph_t graph = nullptr;
        CUDA(cudaStreamEndCapture(main_, &graph));
        CUDA(cudaGraphInstantiate(&graphs_[mode].value, graph, 0));
        CUDA(cudaGraphDestroy(graph));
    }

    // Cells of 16 bytes: eight ids of 16 bits, as most models have.
    uint32_t cells() const { return batch_.rows * shape_.layers; }
    static constexpr uint32_t kCellThreads = 128;
    uint32_t blocks_of_cells() const { return (cells() + kCellThreads - 1) / kCellThreads; }

    // A kernel of `cells` that nothing in the graph waits for.
    void add_leaf(void *function, uint32_t blocks, uint32_t threads) {
        cudaStreamCaptureStatus status;
        cudaGraph_t graph = nullptr;
        const cudaGraphNode_t *before = nullptr;
        const cudaGraphEdgeData *edges = nullptr;
        size_t count = 0;
        CUDA(cudaStreamGetCaptureInfo(main_, &status, nullptr, &graph, &before, &edges, &count));
        cudaKernelNodeParams kernel{};
        uint4 *from = reinterpret_cast<uint4 *>(bytes_.value);
        uint2 *to = reinterpret_cast<uint2 *>(from + cells());
        uint32_t count_of_cells = cells();
        void *parameters[] = {&from, &to, &count_of_cells};
        kernel.func = function;
        kernel.gridDim = dim3(blocks), kernel.blockDim = dim3(threads);
        kernel.kernelParams = parameters;
        cudaGraphNode_t leaf = nullptr;
        CUDA(cudaGraphAddKernelNode(&leaf, graph, before, count, &kernel));
    }

    void verify(Mode mode) {
        open();
        forward(mode);
        arrange(0);
        land(issue());
        for (const routecap_span &span : spans_) {
            routecap_routing *routing = nullptr;
            CHECK(routecap_request_extract(capturer_, span.request, 0, batch_.share(),
                                           ROUTECAP_EXTRACT_SHARE, ROUTECAP_READ_STRICT, &routing));
            compare(routing, span.sink_row);
            routecap_routing_free(routing);
        }
        close();
    }
    // Ends the program unless every cell is valid and holds the ids of its row, in the router's
    // order.
    void compare(const routecap_routing *routing, uint32_t sink_row) const {
        routecap_view view{};
        view.struct_size = sizeof view;
        CHECK(routecap_routing_view(routing, &view));
        if (view.first != 0 || view.rows != batch_.share() || view.layers != shape_.layers ||
            view.k != shape_.k || view.complete != 1)
            fail("correctness: rows or layers are absent");
        uint64_t row = 0;
        for (size_t s = 0; s < view.segment_count; s++) {
            const auto *bytes =
                reinterpret_cast<const char *>(view.segments) + s * view.segment_size;
            const auto &segment = *reinterpret_cast<const routecap_segment *>(bytes);
            if (segment.ids == nullptr || segment.first != row)
                fail("correctness: rows are absent");
            for (uint64_t r = 0; r < segment.rows; r++, row++)
                for (uint32_t l = 0; l < view.layers; l++)
                    compare_cell(view, segment, r, l, sink_row + static_cast<uint32_t>(row));
        }
        if (row != view.rows) fail("correctness: rows are absent");
    }
    void compare_cell(const routecap_view &view, const routecap_segment &segment, uint64_t row,
                      uint32_t layer, uint32_t sink_row) const {
        const auto where = [&] {
            return "correctness: sink row " + std::to_string(sink_row) + ", layer " +
                   std::to_string(layer);
        };
        if (segment.validity != nullptr &&
            (segment.validity[row * view.row_stride + layer / 8] >> layer % 8 & 1) == 0)
            fail(where() + " is missing");
        const auto *ids = static_cast<const uint8_t *>(segment.ids) + row * view.row_stride;
        for (uint32_t c = 0; c < view.k; c++) {
            const size_t i = size_t{layer} * view.k + c;
            const int64_t id = view.dtype == ROUTECAP_DTYPE_U8
                                   ? int64_t{ids[i]}
                                   : int64_t{reinterpret_cast<const int16_t *>(ids)[i]};
            const int64_t right = expert(sink_row, layer, c, shape_.experts);
            if (id == right) continue;
            fail(where() + ", column " + std::to_string(c) + " is " + std::to_string(id) +
                 ", not " + std::to_string(right));
        }
    }
    void expect_all_delivered() const {
        routecap_stats s{};
        s.struct_size = sizeof s;
        CHECK(routecap_capturer_stats(capturer_, &s));
        const uint64_t cells =
            s.cells_unwritten + s.cells_out_of_range + s.cells_duplicate + s.cells_conflicting;
        if (s.rows_delivered != s.rows_issued || cells != 0 || s.rows_dropped != 0)
            fail("correctness: rows or cells were lost in a run that was timed");
    }

    const Workload &workload_;
    const Shape shape_;
    const size_t row_bytes_;
    const Batch batch_;
    const Work work_;
    std::vector<routecap_request> requests_;
    std::vector<routecap_span> spans_;
    std::vector<routecap_sink> sinks_;
    // Each goes before what it uses.
    Stream main_, branch_;
    Event fork_, join_, ends_[kSlots];
    Owned<int32_t *, cudaFree> own_buffers_;
    Owned<uint8_t *, cudaFree> bytes_;  // of kSameMemory: cells of 16 bytes, then of 8
    Owned<uint8_t *, cudaFreeHost> landed_;
    Owned<uint32_t *, cudaFree> done_;  // blocks of the kernel that brings rows
    uint64_t copies_ = 0;
    PinnedArray<uint64_t> arrived_{1};
    Owned<routecap_capturer *, routecap_capturer_destroy> capturer_;
    std::map<Mode, Graph> graphs_;
};

// ---- What is made of samples
// ----------------------------------------------------------------------------------------

std::string parameter(const char *name, uint64_t value) {
    return "\"" + std::string(name) + "\": " + std::to_string(value);
}

std::string parameters(const Shape &shape, uint32_t rows) {
    return parameter("rows", rows) + ", " + parameter("layers", shape.layers) + ", " +
           parameter("k", shape.k) + ", " + parameter("experts", shape.experts) + ", " +
           parameter("sink_bits", shape.dtype == ROUTECAP_DTYPE_I64 ? 64 : 16);
}

// As estimate, of another quantile than the median.
Estimate quantile(std::vector<double> samples, double p) {
    std::sort(samples.begin(), samples.end());
    const auto n = static_cast<double>(samples.size());
    const double half = 1.96 * std::sqrt(n * p * (1 - p));
    const auto at = [&](double rank) {
        return samples[static_cast<size_t>(std::clamp(rank, 0.0, n - 1))];
    };
    return {at(n * p), at(std::floor(n * p - half)), at(std::ceil(n * p + half))};
}

// What one way of capturing adds to a step.
struct Added {
    std::vector<double> us, percent;
    Calls calls;
};

// Runs of `steps` steps, those of each of `modes` between two of `base`.
struct Comparison {
    std::vector<double> base;
    std::map<Mode, Added> added;
};
Comparison compare(Engine &engine, Mode base, const std::vector<Mode> &modes, int steps) {
    Comparison c;
    engine.prepare(base);
    for (const Mode mode : modes) engine.prepare(mode);
    for (const Mode mode : modes) engine.run(mode, steps);
    double before = engine.run(base, steps);
    for (int i = 0; i < repetitions; i++) {
        for (const Mode mode : modes) {
            Added &added = c.added[mode];
            const double with = engine.run(mode, steps, &added.calls);
            const double after = engine.run(base, steps);
            const double without = (before + after) / 2;
            c.base.push_back(after);
            added.us.push_back(with - without);
            added.percent.push_back(100 * (with - without) / without);
            before = after;
        }
    }
    return c;
}

void add_calls(Report &report, const std::string &group, const std::string &name,
               const std::string &p, const Calls &calls) {
    if (!calls.begin.empty())
        report.add(group, name + ": begin call", p, "us", estimate(calls.begin));
    if (!calls.snapshot.empty())
        report.add(group, name + ": snapshot call", p, "us", estimate(calls.snapshot));
    if (!calls.issue.empty())
        report.add(group, name + ": issue call", p, "us", estimate(calls.issue));
}

// ---- The groups
// -----------------------------------------------------------------------------------------------------

void decode_step(Report &report, const Workload &workload, const Shape &shape, uint32_t rows,
                 const std::vector<Mode> &modes, bool record) {
    constexpr int kSteps = 60;
    Engine engine(workload, shape, decode_batch(rows), kDecode);
    const std::string group =
        "Device time added to a decode step, n=" + std::to_string(rows) + ", " + name_of(shape);
    const std::string p = parameters(shape, rows);
    const auto add = [&](Mode base, const std::vector<Mode> &with) {
        const Comparison c = compare(engine, base, with, kSteps);
        report.add(group,
                   base == Mode::kNone ? "step without capture"
                                       : "step without capture, routers' own buffers",
                   p, "us", estimate(c.base));
        for (const Mode mode : with) {
            const Added &added = c.added.at(mode);
            const bool targeted = rows <= 256 && shape.layers == 58;
            report.add(group, name_of(mode), p, "us", estimate(added.us),
                       targeted && mode == Mode::kEager    ? "target 9"
                       : targeted && mode == Mode::kGraph  ? "target 3.5"
                       : targeted && mode == Mode::kForked ? "target 2.5"
                                                           : "");
            report.add(group, name_of(mode), p, "%", estimate(added.percent),
                       targeted && mode == Mode::kForked ? "target 0.07" : "");
            add_calls(report, group, name_of(mode), p, added.calls);
        }
    };
    add(Mode::kNone, modes);
    if (record) add(Mode::kOwnBuffers, {Mode::kRecord});
}

// What was used over its limit, of two samples each: the limits are taken one after another, and
// whoever is second in one sample, which finds lines in its caches, is first in the next.
std::vector<double> over(const std::vector<double> &used, const std::vector<double> &limit) {
    std::vector<double> ratios;
    for (size_t i = 0; i + 1 < used.size(); i += 2)
        ratios.push_back((used[i] + used[i + 1]) / (limit[i] + limit[i + 1]));
    return ratios;
}

// Calls of a step of one row per request, with the step before it in flight, as in an engine's
// loop. Drafts: one row that is accepted, while the step is in flight or once it has landed.
// Between them the limit: the driver's calls, and what passes to another thread.
// Every second step is timed in CPU time instead of wall time, which the library's own thread may
// lengthen.
void engine_thread(Report &report, const Workload &workload) {
    const struct {
        const char *name;
        bool draft, landed;
    } kinds[] = {{"certain rows", false, false},
                 {"drafts, accepted in flight", true, false},
                 {"drafts, accepted when landed", true, true}};
    for (const uint32_t n : {64u, 256u, 1024u}) {
        Engine engine(workload, Shape{}, decode_batch(n), kDecode);
        for (const Mode mode : {Mode::kForked, Mode::kProtocol}) engine.prepare(mode);
        std::vector<routecap_accept_item> accepts(n);
        std::vector<routecap_finish_item> finishes(n);
        struct Samples {
            std::vector<double> calls, issue, accept, finish, all, all_cpu;
        } samples[std::size(kinds)], least, least_drafts;
        Handover handover(n);
        for (int i = -4; i < repetitions * 4; i++) {
            const bool cpu = i % 2 != 0;
            const auto clock = cpu ? thread_cpu_us : wall_us;
            double used[std::size(kinds)];
            for (size_t kind = 0; kind < std::size(kinds); kind++) {
                const bool draft = kinds[kind].draft;
                engine.open();
                engine.arrange(0);
                engine.forward(Mode::kForked);
                engine.issue();
                engine.arrange(1, draft ? ROUTECAP_SPAN_SPECULATIVE : 0);
                engine.forward(Mode::kForked);
                routecap_step step = 0;
                const double issue = timed([&] { step = engine.issue(); }, clock);
                for (uint32_t r = 0; r < n; r++) {
                    const routecap_request request = engine.requests()[r];
                    accepts[r] = {request, step, nullptr, 1, 0, 0};
                    finishes[r] = {request, 2, nullptr, 0, 0};
                }
                if (kinds[kind].landed) engine.land(step);
                double accept = 0;
                if (draft)
                    accept = timed(
                        [&] {
                            CHECK(routecap_request_accept_batch(engine.capturer(), accepts.data(),
                                                                sizeof accepts[0], n));
                        },
                        clock);
                const double finish = timed(
                    [&] {
                        CHECK(routecap_request_finish_batch(engine.capturer(), finishes.data(),
                                                            sizeof finishes[0], n));
                    },
                    clock);
                engine.land(step);
                for (const auto &item : finishes)
                    CHECK(routecap_routing_wait(item.routing, -1)),
                        routecap_routing_free(item.routing);
                used[kind] = issue + accept + finish;
                if (i < 0) continue;
                auto &kept = samples[kind];
                (cpu ? kept.all_cpu : kept.all).push_back(used[kind]);
                if (cpu) continue;
                kept.issue.push_back(issue);
                kept.accept.push_back(accept);
                kept.finish.push_back(finish);
            }
            engine.forward(Mode::kSameMemory);
            engine.bring_rows();
            engine.forward(Mode::kSameMemory);
            const double calls = timed([&] { engine.bring_rows(); }, clock);
            for (const int turn : {0, 1}) {
                const bool draft = ((i >> 1) + turn) % 2 != 0;
                const double issue = timed([&] { handover.issue(engine.spans(), draft); }, clock);
                handover.wait();
                double accept = 0;
                if (draft) {
                    accept = timed([&] { handover.accept(accepts); }, clock);
                    handover.wait();
                }
                const double finish = timed([&] { handover.finish(finishes); }, clock);
                handover.wait();
                if (i < 0) continue;
                const double all = calls + issue + accept + finish;
                auto &kept = draft ? least_drafts : least;
                (cpu ? kept.all_cpu : kept.all).push_back(all);
                if (cpu) continue;
                kept.calls.push_back(calls);
                kept.issue.push_back(issue);
                kept.accept.push_back(accept);
                kept.finish.push_back(finish);
            }
            engine.synchronize();
        }
        const std::string group = "Engine's thread, " + std::to_string(n) +
                                  " requests of one row, begin and snapshot in the graph";
        const std::string p = parameters(Shape{}, n), target = n == 64    ? "target 8"
                                                               : n == 256 ? "target 12"
                                                                          : "target 30";
        for (size_t kind = 0; kind < std::size(kinds); kind++) {
            const std::string name = kinds[kind].name;
            report.add(group, name + ": issue", p, "us", estimate(samples[kind].issue));
            if (kinds[kind].draft)
                report.add(group, name + ": accept", p, "us", estimate(samples[kind].accept));
            report.add(group, name + ": finish", p, "us", estimate(samples[kind].finish));
            report.add(group, name + ": all", p, "us", estimate(samples[kind].all), target);
            report.add(group, name + ": all, CPU time", p, "us", estimate(samples[kind].all_cpu),
                       target);
            report.add(
                group, name + ": all over the limit", p, "ratio",
                estimate(over(samples[kind].all, (kinds[kind].draft ? least_drafts : least).all)),
                kinds[kind].draft ? "target 1.5" : "target 1.2");
        }
        report.add(group,
                   engine.brings_by_launch() ? "limit: one launch" : "limit: calls of one copy", p,
                   "us", estimate(least.calls));
        for (const bool draft : {false, true}) {
            const Samples &kept = draft ? least_drafts : least;
            const std::string name = draft ? "limit of drafts: " : "limit of certain rows: ";
            report.add(group, name + "lines of issue", p, "us", estimate(kept.issue));
            if (draft) report.add(group, name + "lines of accept", p, "us", estimate(kept.accept));
            report.add(group, name + "lines of finish", p, "us", estimate(kept.finish));
            report.add(group, name + "all", p, "us", estimate(kept.all));
            report.add(group, name + "all, CPU time", p, "us", estimate(kept.all_cpu));
        }
    }
}

void prefill_step(Report &report, const Workload &workload, uint32_t rows, const Work &work,
                  int steps, const std::vector<Mode> &modes, const char *target) {
    Engine engine(workload, Shape{}, {rows, 4}, work);
    const Comparison c = compare(engine, Mode::kNone, modes, steps);
    const std::string group =
        "Device time added to a prefill step, n=" + std::to_string(rows) + ", 4 requests";
    const std::string p = parameters(Shape{}, rows);
    report.add(group, "step without capture", p, "us", estimate(c.base));
    for (const Mode mode : modes) {
        const Added &added = c.added.at(mode);
        report.add(group, name_of(mode), p, "us", estimate(added.us));
        report.add(group, name_of(mode), p, "%", estimate(added.percent), target);
        add_calls(report, group, name_of(mode), p, added.calls);
    }
}

void await(const Event &event) {
    for (cudaError_t e = cudaErrorNotReady; e == cudaErrorNotReady;)
        if (e = cudaEventQuery(event); e != cudaErrorNotReady) CUDA(e);
}

// A step, from the end of its forward to rows that can be read: the engine's thread polls the one,
// then the other.
double polled_landing(Engine &engine, const Event &end) {
    engine.forward(Mode::kForked);
    CUDA(cudaEventRecord(end, engine.stream()));
    const routecap_step step = engine.issue();
    await(end);
    const double start = wall_us();
    int32_t status = ROUTECAP_PENDING;
    while (status == ROUTECAP_PENDING) status = routecap_step_poll(engine.capturer(), step);
    const double used = wall_us() - start;
    check(status, "routecap_step_poll");
    return used;
}

void add_landing(Report &report, const std::string &group, const std::string &name,
                 const std::string &parameters, const std::vector<double> &samples,
                 const std::string &target) {
    const double most = *std::max_element(samples.begin(), samples.end());
    report.add(group, name + ": median", parameters, "us", estimate(samples), target);
    report.add(group, name + ": 5 %", parameters, "us", quantile(samples, 0.05));
    report.add(group, name + ": 95 %", parameters, "us", quantile(samples, 0.95));
    report.add(group, name + ": largest", parameters, "us", {most, most, most});
}

// From the end of the forward, as the host sees it, to rows that can be read.
void landing(Report &report, const Workload &workload) {
    for (const uint32_t n : {256u, 8192u}) {
        const bool decode = n == 256;
        Engine engine(workload, Shape{}, decode ? decode_batch(n) : Batch{n, 4}, kDecode);
        engine.prepare(Mode::kForked);
        const int steps = repetitions * 8;
        const Event end;
        std::vector<double> polled, waited;

        // The engine's thread is busy and calls nothing; another waits in finalize. The forward's
        // end is a word that the device writes.
        PinnedArray<uint32_t> word(1);
        uint32_t stamps = 0;
        const auto wait = [&] {
            engine.forward(Mode::kForked);
            stamp<<<1, 1, 0, engine.stream()>>>(word, ++stamps);
            CUDA(cudaGetLastError());
            const routecap_step step = engine.issue();
            double landed = 0;
            std::thread waiter([&] {
                CHECK(routecap_step_finalize(engine.capturer(), step, -1, nullptr));
                landed = wall_us();
            });
            double start = wall_us();
            for (const double begin = start;
                 *static_cast<volatile uint32_t *>(word.value) != stamps; start = wall_us())
                if (start - begin > 10e6) fail("the end of a forward did not arrive");
            waiter.join();
            return landed - start;
        };
        // Rows of a decode step follow the requests' earlier ones; those of a prefill step are of
        // new requests.
        const auto sample = [&](std::vector<double> &samples, auto f) {
            engine.open();
            for (int i = -8; i < steps; i++) {
                engine.arrange(decode ? static_cast<uint64_t>(i + 8) : 0);
                const double used = f();
                if (i >= 0) samples.push_back(used);
                if (!decode) engine.close(), engine.open();
            }
            engine.close();
        };
        sample(polled, [&] { return polled_landing(engine, end); });
        sample(waited, wait);

        // The limits: from the same moment to rows in the host's memory, and to rows that another
        // thread has found and copied.
        std::vector<double> arrived, copied;
        const auto limit = [&](std::vector<double> &samples, auto done) {
            for (int i = -8; i < steps; i++) {
                engine.forward(Mode::kProtocol);
                CUDA(cudaEventRecord(end, engine.stream()));
                await(end);
                const double used = timed([&] {
                    while (!done(engine.copies())) {}
                });
                if (i >= 0) samples.push_back(used);
            }
        };
        engine.prepare(Mode::kProtocol);
        limit(arrived, [&](uint64_t copy) {
            return __atomic_load_n(engine.arrived(), __ATOMIC_ACQUIRE) == copy;
        });
        {
            const Filer filer(engine.arrived(), engine.landed_rows(), engine.row_bytes(), n,
                              decode ? n : 4);
            limit(copied, [&](uint64_t copy) { return filer.filed(copy); });
        }
        const std::string group =
            "Landing: from the end of the forward to readable rows, n=" + std::to_string(n) + ", " +
            std::to_string(steps) + " steps";
        const std::string p = parameters(Shape{}, n);
        const auto add = [&](const std::string &name, const std::vector<double> &samples,
                             const std::string &target) {
            add_landing(report, group, name, p, samples, target);
        };
        add("the engine's thread polls", polled, decode ? "target 60" : "target 800");
        add("another thread waits", waited, "");
        add("limit: rows have come", arrived, "");
        add("limit: found and copied by another thread", copied, "");
    }
}

// Reading rows out, beside what memory allows.
void extraction_of_32768(Report &report, const Workload &workload) {
    constexpr uint64_t kRows = 32768;
    const Shape shape;
    Engine engine(workload, shape, {kSinkRows, 1}, kNoWork);
    engine.prepare(Mode::kForked);
    engine.open();
    for (uint64_t step = 0; step < kRows / kSinkRows; step++) {
        engine.forward(Mode::kForked);
        engine.arrange(step);
        engine.land(engine.issue());
    }
    extraction(report, engine.capturer(), engine.requests()[0], kRows,
               size_t{shape.layers} * shape.k, repetitions, parameters(shape, kRows), true);
}

struct Group {
    const char *name;
    std::function<void(Report &, Workload &)> measure;
};

std::vector<Group> groups() {
    const std::vector<Mode> two{Mode::kEager, Mode::kForked};
    const std::vector<Mode> all{Mode::kEager, Mode::kInLine, Mode::kGraph, Mode::kForked};
    std::vector<Mode> limits_too = all;
    limits_too.insert(limits_too.end(), {Mode::kAgain, Mode::kTwoKernels, Mode::kSameMemory,
                                         Mode::kProtocol, Mode::kOneLaunch});
    const auto decode = [](Shape shape, uint32_t rows, std::vector<Mode> modes, bool record) {
        return [=](Report &report, Workload &workload) {
            decode_step(report, workload, shape, rows, modes, record);
        };
    };
    const auto prefill = [](uint32_t rows, Work work, int steps, std::vector<Mode> modes,
                            const char *target) {
        return [=](Report &report, Workload &workload) {
            prefill_step(report, workload, rows, work, steps, modes, target);
        };
    };
    return {
        {"decode step n=64", decode({}, 64, all, true)},
        {"decode step n=256", decode({}, 256, limits_too, true)},
        {"decode step n=1024", decode({}, 1024, all, true)},
        {"decode step I64", decode({58, 8, 256, ROUTECAP_DTYPE_I64}, 256, two, false)},
        {"decode step K=22", decode({40, 22, 512, ROUTECAP_DTYPE_I16}, 256, two, false)},
        {"decode step K=1", decode({24, 1, 128, ROUTECAP_DTYPE_I16}, 256, two, false)},
        {"engine thread", engine_thread},
        {"prefill n=8192", prefill(8192, kPrefill, 6, two, "target 0.1")},
        {"realistic prefill n=2048", prefill(2048, kSmallPrefill, 20, {Mode::kForked}, "")},
        {"landing", landing},
        {"extraction", extraction_of_32768},
    };
}

// The driver's release, where the system tells it, and the CUDA version that it supports.
std::string driver() {
    int version = 0;
    CUDA(cudaDriverGetVersion(&version));
    std::string cuda = "CUDA " + std::to_string(version / 1000) + "." +
                       std::to_string(version % 1000 / 10),
                line, word;
    std::ifstream file("/proc/driver/nvidia/version");
    if (std::getline(file, line))
        for (std::istringstream words(line); words >> word;)
            if (word.find_first_not_of("0123456789.") == std::string::npos &&
                word.find('.') != std::string::npos)
                return "driver " + word + ", " + cuda;
    return "driver of " + cuda;
}

}  // namespace

int main(int argc, char **argv) {
    std::string json;
    std::vector<std::string> only;
    int device = 0;
    bool list = false;
    for (int i = 1; i < argc; i++) {
        const std::string option = argv[i];
        const bool value = i + 1 < argc;
        if (option == "--quick")
            repetitions = 5;
        else if (option == "--list")
            list = true;
        else if (option == "--json" && value)
            json = argv[++i];
        else if (option == "--only" && value)
            only.push_back(argv[++i]);
        else if (option == "--device" && value)
            device = std::atoi(argv[++i]);
        else
            fail(
                "options: [--quick] [--json FILE] [--only SUBSTRING]... [--list] [--device ORDINAL]");
    }
    std::vector<Group> chosen;
    for (const Group &group : groups()) {
        const auto named = [&](const std::string &part) {
            return std::string(group.name).find(part) != std::string::npos;
        };
        if (only.empty() || std::any_of(only.begin(), only.end(), named)) chosen.push_back(group);
    }
    if (chosen.empty()) fail("no group has such a name; --list names them");
    if (list) {
        for (const Group &group : chosen) std::printf("%s\n", group.name);
        return 0;
    }

    routecap_backend backend{};
    backend.struct_size = sizeof backend;
    CHECK(routecap_backend_info(ROUTECAP_BACKEND_CUDA, &backend));
    if (backend.available == 0) fail(std::string("no CUDA backend: ") + backend.detail);
    CUDA(cudaSetDevice(device));
    cudaDeviceProp properties;
    CUDA(cudaGetDeviceProperties(&properties, device));
    Report report("routecap " + std::to_string(routecap_version()) + ", CUDA backend, " +
                      properties.name + ", " + std::to_string(properties.multiProcessorCount) +
                      " SMs, " + driver() + ", " + name_of(Shape{}),
                  argc, argv);
    Workload workload(device);
    for (const Group &group : chosen) group.measure(report, workload);
    if (!json.empty()) report.write_json(json);
    return 0;
}

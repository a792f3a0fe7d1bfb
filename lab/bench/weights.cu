// What weights beside the ids cost on a GPU: bench_weights [--turns N]
//
// A step is one routecap_layers_record with ROUTECAP_SOURCE_WHOLE_STEP, from ids (and weights) of 48
// layers that lie in the device's memory, and its issue. Three kinds of step take turns on one
// stream: ids alone, ids with bfloat16 weights, and a plain copy of as many bytes as the second
// brings to the host, by cudaMemcpyAsync into page-locked memory. Each is timed on the device, by
// events around 20 steps that wait behind a kernel until all have been enqueued, so that the calls
// take no part; a row is the median over all turns. Every weight of a step is compared with what
// was recorded before anything is timed.
#include <cuda_runtime.h>
#include <routecap.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

constexpr uint32_t kLayers = 48, kColumns = 8, kExperts = 128, kMost = 1024, kSteps = 20;

void check(bool good, const char *what) {
    if (good) return;
    std::fprintf(stderr, "%s: %s\n", what, routecap_last_error());
    std::exit(1);
}
#define CUDA(call) check((call) == cudaSuccess, #call)
#define OK(call) check((call) == ROUTECAP_OK, #call)

struct Capture {
    routecap_capturer *capturer = nullptr;
    routecap_request request = 0;
    routecap_step last = 0;
    bool weighted;
    uint64_t position = 0;

    explicit Capture(bool weighted_) : weighted(weighted_) {
        routecap_config c;
        OK(routecap_config_init(&c, sizeof c));
        c.backend = ROUTECAP_BACKEND_CUDA, c.layers = kLayers, c.k = kColumns;
        c.experts = kExperts, c.rows = kMost, c.slots = 2 * kSteps;
        c.weights_dtype = weighted ? ROUTECAP_DTYPE_BF16 : 0;
        OK(routecap_capturer_create(&c, &capturer));
        OK(routecap_request_open(capturer, nullptr, &request, 1));
    }
    ~Capture() { routecap_capturer_destroy(capturer); }
};

struct Memory {
    std::vector<int32_t *> ids;
    std::vector<uint16_t *> weights;
    std::vector<uint16_t> host;  // of layer 0

    Memory() {
        std::vector<int32_t> chosen(kMost * kColumns);
        host.resize(kMost * kColumns);
        for (uint32_t l = 0; l < kLayers; l++) {
            for (uint32_t i = 0; i < kMost * kColumns; i++) {
                chosen[i] =
                    static_cast<int32_t>((i / kColumns * 7 + l + i % kColumns * 16) % kExperts);
                host[i] = static_cast<uint16_t>(0x3c00 + (i * 31 + l) % 256);
            }
            int32_t *to = nullptr;
            uint16_t *of = nullptr;
            CUDA(cudaMalloc(&to, chosen.size() * 4));
            CUDA(cudaMalloc(&of, host.size() * 2));
            CUDA(cudaMemcpy(to, chosen.data(), chosen.size() * 4, cudaMemcpyHostToDevice));
            CUDA(cudaMemcpy(of, host.data(), host.size() * 2, cudaMemcpyHostToDevice));
            ids.push_back(to), weights.push_back(of);
        }
    }
};

routecap_step step(Capture &c, const Memory &memory, uint32_t rows, cudaStream_t stream) {
    routecap_layer_source layers[kLayers] = {};
    for (uint32_t l = 0; l < kLayers; l++) {
        layers[l].layer = l, layers[l].ids = memory.ids[l];
        layers[l].weights = c.weighted ? memory.weights[l] : nullptr;
    }
    routecap_source source{};
    source.struct_size = sizeof source, source.dtype = ROUTECAP_DTYPE_I32, source.rows = rows;
    source.flags = ROUTECAP_SOURCE_WHOLE_STEP;
    source.weights_dtype = c.weighted ? ROUTECAP_DTYPE_BF16 : 0;
    OK(routecap_layers_record(c.capturer, &source, layers, sizeof layers[0], kLayers, stream));
    routecap_span span{};
    span.request = c.request, span.position = c.position, span.rows = rows;
    c.position += rows;
    OK(routecap_step_issue(c.capturer, &span, sizeof span, 1, nullptr, nullptr, &c.last, stream));
    return c.last;
}

// Waits until the rows are filed and forgets them, so that slots and budget last.
void forget(Capture &c) {
    OK(routecap_step_finalize(c.capturer, c.last, -1, nullptr));
    OK(routecap_request_close(c.capturer, c.request));
    OK(routecap_request_open(c.capturer, nullptr, &c.request, 1));
    c.position = 0;
}

void expect_weights(Capture &c, const Memory &memory, cudaStream_t stream) {
    OK(routecap_step_finalize(c.capturer, step(c, memory, 16, stream), -1, nullptr));
    routecap_routing *routing = nullptr;
    OK(routecap_request_extract(c.capturer, c.request, 0, 16, ROUTECAP_EXTRACT_SHARE, 0, &routing));
    routecap_copy_options options;
    OK(routecap_copy_options_init(&options, sizeof options));
    options.dtype = ROUTECAP_DTYPE_BF16, options.layers = kLayers;
    options.order = ROUTECAP_ORDER_LAYER_MAJOR;
    std::vector<uint16_t> all(kLayers * 16 * kColumns);
    OK(routecap_routing_copy_weights(routing, &options, all.data(), all.size() * 2, nullptr, 0,
                                     nullptr));
    std::vector<uint16_t> wanted(16 * kColumns);
    for (uint32_t l = 0; l < kLayers; l++) {
        CUDA(cudaMemcpy(wanted.data(), memory.weights[l], wanted.size() * 2,
                        cudaMemcpyDeviceToHost));
        check(std::memcmp(wanted.data(), &all[l * wanted.size()], wanted.size() * 2) == 0,
              "weights differ from those that were recorded");
    }
    routecap_routing_free(routing);
    forget(c);
}

// Long enough for the host to enqueue kSteps steps.
__global__ void hold() {
    const long long begin = clock64();
    while (clock64() - begin < 2'000'000) {
    }
}

template <class F>
float timed(cudaStream_t stream, F f) {
    cudaEvent_t begin, end;
    CUDA(cudaEventCreate(&begin));
    CUDA(cudaEventCreate(&end));
    hold<<<1, 1, 0, stream>>>();
    CUDA(cudaEventRecord(begin, stream));
    for (uint32_t i = 0; i < kSteps; i++) f();
    CUDA(cudaEventRecord(end, stream));
    CUDA(cudaStreamSynchronize(stream));
    float ms = 0;
    CUDA(cudaEventElapsedTime(&ms, begin, end));
    CUDA(cudaEventDestroy(begin));
    CUDA(cudaEventDestroy(end));
    return ms * 1000 / kSteps;
}

float median(std::vector<float> v) {
    std::sort(v.begin(), v.end());
    return v[v.size() / 2];
}

}  // namespace

int main(int argc, char **argv) {
    const int turns = argc == 3 && std::strcmp(argv[1], "--turns") == 0 ? std::atoi(argv[2]) : 60;
    cudaStream_t stream;
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    cudaDeviceProp of{};
    CUDA(cudaGetDeviceProperties(&of, 0));
    const Memory memory;
    Capture ids(false), both(true);
    expect_weights(both, memory, stream);
    void *device = nullptr, *host = nullptr;
    const size_t row_bytes = kLayers * kColumns * 3 + 2 * kLayers / 8;
    CUDA(cudaMalloc(&device, kMost * row_bytes));
    CUDA(cudaMallocHost(&host, kMost * row_bytes));
    std::printf("%s, %d turns: microseconds of the stream a step of 48 x 8 of 128\n", of.name,
                turns);
    std::printf("rows  ids alone  with bf16 weights  more  a plain copy of as many bytes\n");
    for (const uint32_t rows : {1u, 64u, 256u, 1024u}) {
        std::vector<float> alone, weighted, copied;
        for (int t = 0; t < turns + 3; t++) {
            const float a = timed(stream, [&] { step(ids, memory, rows, stream); });
            const float w = timed(stream, [&] { step(both, memory, rows, stream); });
            const float c = timed(stream, [&] {
                CUDA(cudaMemcpyAsync(host, device, rows * row_bytes, cudaMemcpyDeviceToHost,
                                     stream));
            });
            forget(ids), forget(both);
            if (t >= 3) alone.push_back(a), weighted.push_back(w), copied.push_back(c);
        }
        std::vector<float> more;
        for (size_t i = 0; i < alone.size(); i++) more.push_back(weighted[i] - alone[i]);
        std::printf("%4u  %9.2f  %17.2f  %4.2f  %29.2f\n", rows, median(alone), median(weighted),
                    median(more), median(copied));
    }
    return 0;
}

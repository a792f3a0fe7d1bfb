// A rank's ids in its layout on a device, beside what moving the bytes takes: bench_plan_cuda
// [--quick] [--json FILE].
//
// The target is 1.3 of uploading the narrow bytes from pinned memory and writing the wide ones, at
// the speeds measured here, for a packed micro-batch of 262,144 rows x 48 layers x 8 to int64. Times
// are of the device, between two events of one stream. Everything is repeated 15 times (3 with
// --quick, with 8,192 rows), interleaved. The result is compared with that of the host.
#include <cuda_runtime.h>
#include <routecap.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "check.h"
#include "measure.h"
#include "plan_samples.h"

namespace {

using namespace bench;

void cuda(cudaError_t result, const char *call) {
    if (result != cudaSuccess) fail(std::string(call) + ": " + cudaGetErrorString(result));
}
#define CUDA(call) cuda(call, #call)

class Stream {
public:
    Stream() {
        CUDA(cudaStreamCreate(&stream_));
        CUDA(cudaEventCreate(&start_));
        CUDA(cudaEventCreate(&end_));
    }
    cudaStream_t get() const { return stream_; }
    // Device time of what `work` enqueues, in us.
    template <class Work>
    double time(Work work) {
        float ms = 0;
        CUDA(cudaEventRecord(start_, stream_));
        work();
        CUDA(cudaEventRecord(end_, stream_));
        CUDA(cudaEventSynchronize(end_));
        CUDA(cudaEventElapsedTime(&ms, start_, end_));
        return ms * 1e3;
    }

private:
    cudaStream_t stream_ = nullptr;
    cudaEvent_t start_ = nullptr, end_ = nullptr;
};

void measure(Report &report, const PlanSamples &samples, const char *name, int32_t order,
             int repetitions) {
    const routecap_plan_config config = samples.config(order, ROUTECAP_PLAN_CONTEXT_NONE, 1);
    routecap_plan *plan = nullptr;
    CHECK(routecap_plan_create(&config, &plan));
    routecap_plan_shape shape{};
    shape.struct_size = sizeof shape;
    CHECK(routecap_plan_describe(plan, &shape));
    void *packed = nullptr;
    CUDA(cudaMallocHost(&packed, shape.packed_bytes));
    routecap_plan_target target{};
    target.struct_size = sizeof target, target.backend = ROUTECAP_BACKEND_CUDA;
    target.scratch_bytes = shape.packed_bytes, target.dst_bytes = shape.ids_bytes;
    target.classes_bytes = shape.classes_bytes;
    CUDA(cudaMalloc(&target.scratch, shape.packed_bytes));
    CUDA(cudaMalloc(&target.dst, shape.ids_bytes));
    CUDA(cudaMalloc(reinterpret_cast<void **>(&target.classes), shape.classes_bytes));

    Stream stream;
    const auto pack = [&] {
        CHECK(routecap_plan_pack(plan, samples.sources().data(), sizeof(routecap_plan_source),
                                 samples.sources().size(), packed, shape.packed_bytes, nullptr));
    };
    const auto unpack = [&] {
        CHECK(routecap_plan_unpack(plan, packed, shape.packed_bytes, &target,
                                   reinterpret_cast<routecap_stream>(stream.get())));
    };
    pack();
    const uint64_t narrow = shape.rows_needed * kPlanLayers * kPlanK;
    std::vector<double> upload, write, whole, replay, ratio, packing, calling;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t captured = nullptr;
    unpack();  // loads the kernels
    CUDA(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal));
    unpack();
    CUDA(cudaStreamEndCapture(stream.get(), &graph));
    CUDA(cudaGraphInstantiate(&captured, graph, 0));
    for (int i = -1; i < repetitions; i++) {
        double start = wall_us();
        pack();
        const double packed_in = wall_us() - start;
        const double bus = stream.time([&] {
            CUDA(cudaMemcpyAsync(target.scratch, packed, narrow, cudaMemcpyHostToDevice,
                                 stream.get()));
        });
        const double memory = stream.time(
            [&] { CUDA(cudaMemsetAsync(target.dst, 1, shape.ids_bytes, stream.get())); });
        start = wall_us();
        double called = 0;
        const double both = stream.time([&] { unpack(), called = wall_us() - start; });
        const double replayed = stream.time([&] { CUDA(cudaGraphLaunch(captured, stream.get())); });
        if (i < 0) continue;
        packing.push_back(packed_in / 1e3), upload.push_back(bus), write.push_back(memory);
        whole.push_back(both), ratio.push_back(both / (bus + memory)), calling.push_back(called);
        replay.push_back(replayed);
    }

    std::vector<uint8_t> expected(shape.ids_bytes), found(shape.ids_bytes);
    std::vector<uint8_t> classes(shape.classes_bytes), found_classes(shape.classes_bytes);
    CHECK(routecap_plan_gather(plan, samples.sources().data(), sizeof(routecap_plan_source),
                               samples.sources().size(), expected.data(), expected.size(),
                               classes.data(), classes.size(), nullptr));
    CUDA(cudaMemcpy(found.data(), target.dst, found.size(), cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(found_classes.data(), target.classes, classes.size(), cudaMemcpyDeviceToHost));
    if (expected != found || classes != found_classes)
        fail("the device has other ids than the host");

    const std::string parameters = "\"rows\": " + std::to_string(shape.rows) +
                                   ", \"narrow_bytes\": " + std::to_string(narrow) +
                                   ", \"written_bytes\": " + std::to_string(shape.ids_bytes);
    report.add(name, "upload of the narrow bytes", parameters, "us", estimate(upload));
    report.add(name, "memset of the wide bytes", parameters, "us", estimate(write));
    report.add(name, "plan_unpack", parameters, "us", estimate(whole));
    report.add(name, "plan_unpack over upload and memset", parameters, "ratio", estimate(ratio),
               "target 1.3");
    report.add(name, "replay of a graph with plan_unpack", parameters, "us", estimate(replay));
    report.add(name, "plan_unpack, the call on the host", parameters, "us", estimate(calling));
    report.add(name, "plan_pack, on the host", parameters, "ms", estimate(packing));
    CUDA(cudaGraphExecDestroy(captured));
    CUDA(cudaGraphDestroy(graph));
    for (void *each : {target.scratch, target.dst, static_cast<void *>(target.classes)})
        CUDA(cudaFree(each));
    CUDA(cudaFreeHost(packed));
    routecap_plan_free(plan);
}

}  // namespace

int main(int argc, char **argv) {
    bool quick = false;
    std::string json;
    for (int i = 1; i < argc; i++) {
        if (std::strcmp(argv[i], "--quick") == 0) quick = true;
        if (std::strcmp(argv[i], "--json") == 0 && i + 1 < argc) json = argv[i + 1];
    }
    Report report("A trainer's rank on a device: 48 layers x 8 of 128 experts to int64", argc,
                  argv);
    const PlanSamples samples(quick ? 8192 : 262144);
    measure(report, samples, "[layers, rows, k]", ROUTECAP_ORDER_LAYER_MAJOR, quick ? 3 : 15);
    measure(report, samples, "[rows, layers, k]", ROUTECAP_ORDER_ROW_MAJOR, quick ? 3 : 15);
    if (!json.empty()) report.write_json(json);
}

// A rank's ids in its layout on the host, beside memcpy of as many bytes as are written, on the
// same thread: bench_plan [--quick] [--json FILE].
//
// The target is 1.3 of memcpy for a packed micro-batch of 262,144 rows x 48 layers x 8 to int64.
// All memory has been touched before. Everything is repeated 9 times (3 with --quick, with 8,192
// rows), interleaved.
#include <routecap.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "measure.h"
#include "plan_samples.h"

namespace {

using namespace bench;

void measure(Report &report, const PlanSamples &samples, const char *name, int32_t order,
             int32_t context, int repetitions) {
    const routecap_plan_config config =
        samples.config(order, context, context == ROUTECAP_PLAN_CONTEXT_NONE ? 1 : 2);
    std::vector<double> making;
    routecap_plan *plan = nullptr;
    for (int i = 0; i < repetitions; i++) {
        routecap_plan_free(plan);
        const double start = wall_us();
        CHECK(routecap_plan_create(&config, &plan));
        making.push_back(wall_us() - start);
    }
    routecap_plan_shape shape{};
    shape.struct_size = sizeof shape;
    CHECK(routecap_plan_describe(plan, &shape));
    const auto memory = [](uint64_t bytes, int byte) {
        std::unique_ptr<uint8_t[]> made(new uint8_t[bytes]);
        std::memset(made.get(), byte, bytes);
        return made;
    };
    const auto from = memory(shape.ids_bytes, 1), to = memory(shape.ids_bytes, 2),
               classes = memory(shape.classes_bytes, 3), packed = memory(shape.packed_bytes, 4);
    std::vector<double> copy, gather, with_classes, ratio, pack;
    for (int i = -1; i < repetitions; i++) {
        const auto sample = [&](std::vector<double> &times, auto call) {
            const double start = wall_us();
            call();
            if (i >= 0) times.push_back((wall_us() - start) / 1e3);
        };
        const auto run = [&](uint8_t *cells) {
            CHECK(routecap_plan_gather(plan, samples.sources().data(), sizeof(routecap_plan_source),
                                       samples.sources().size(), to.get(), shape.ids_bytes, cells,
                                       shape.classes_bytes, nullptr));
        };
        sample(copy, [&] { std::memcpy(to.get(), from.get(), shape.ids_bytes); });
        sample(gather, [&] { run(nullptr); });
        sample(with_classes, [&] { run(classes.get()); });
        sample(pack, [&] {
            CHECK(routecap_plan_pack(plan, samples.sources().data(), sizeof(routecap_plan_source),
                                     samples.sources().size(), packed.get(), shape.packed_bytes,
                                     nullptr));
        });
        if (i >= 0) ratio.push_back(gather.back() / copy.back());
    }
    const std::string parameters = "\"rows\": " + std::to_string(shape.rows) +
                                   ", \"written_bytes\": " + std::to_string(shape.ids_bytes);
    report.add(name, "plan_create", parameters, "us", estimate(making));
    report.add(name, "memcpy of the written bytes", parameters, "ms", estimate(copy));
    report.add(name, "plan_gather", parameters, "ms", estimate(gather));
    report.add(name, "plan_gather with classes", parameters, "ms", estimate(with_classes));
    report.add(name, "plan_gather over memcpy", parameters, "ratio", estimate(ratio), "target 1.3");
    report.add(name, "plan_pack", parameters, "ms", estimate(pack));
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
    Report report("A trainer's rank on the host: 48 layers x 8 of 128 experts to int64", argc,
                  argv);
    const PlanSamples samples(quick ? 8192 : 262144);
    const int repetitions = quick ? 3 : 9;
    measure(report, samples, "packed, [layers, rows, k]", ROUTECAP_ORDER_LAYER_MAJOR,
            ROUTECAP_PLAN_CONTEXT_NONE, repetitions);
    measure(report, samples, "packed, [rows, layers, k]", ROUTECAP_ORDER_ROW_MAJOR,
            ROUTECAP_PLAN_CONTEXT_NONE, repetitions);
    measure(report, samples, "zigzag, rank 0 of 2, [layers, rows, k]", ROUTECAP_ORDER_LAYER_MAJOR,
            ROUTECAP_PLAN_CONTEXT_ZIGZAG, repetitions);
    if (!json.empty()) report.write_json(json);
}

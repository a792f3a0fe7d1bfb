// Many long requests live at once in one process: bench_scale [--quick] [--json FILE]
//
// 10,000 requests of 131,072 rows each, of one layer and one expert per token, so that they fit
// into the memory of a small machine. What is shown holds for larger rows as well: pages, tables of
// pages and requests are the same, and only the bytes of a row differ. That one row has another
// size is what the last table computes, from routecap_config_memory alone.
//
// With as many requests alive as each group says: what a decode step of 256 rows costs the engine's
// thread, and what filing it costs the worker. The batch stays the same, or is another at each
// step. Times are CPU time of one thread, on which the steps land too (manual progress). The memory
// that is in use is compared with what routecap_config_memory promises: a difference ends the
// program.
#include <routecap.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "check.h"
#include "measure.h"

namespace {

using namespace bench;

constexpr uint32_t kBatch = 256;
uint64_t rows_each = 131072;  // of a request
uint32_t sink_rows = 131072;
int steps = 2000;

uint64_t resident_bytes() {
    uint64_t whole = 0, resident = 0;
    std::ifstream("/proc/self/statm") >> whole >> resident;
    return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

routecap_config config_of(uint32_t layers, uint32_t k, uint32_t experts) {
    routecap_config config;
    CHECK(routecap_config_init(&config, sizeof config));
    config.backend = ROUTECAP_BACKEND_HOST;
    config.flags = ROUTECAP_CONFIG_MANUAL_PROGRESS;
    config.layers = layers, config.k = k, config.experts = experts;
    config.rows = sink_rows;
    config.budget_bytes = uint64_t{1} << 40;
    return config;
}

routecap_memory memory_of(const routecap_config &config) {
    routecap_memory memory{};
    memory.struct_size = sizeof memory;
    CHECK(routecap_config_memory(&config, &memory));
    return memory;
}

// An engine without a model, and its requests.
class Engine {
public:
    Engine() : config_(config_of(1, 1, 256)), ids_(sink_rows) {
        CHECK(routecap_capturer_create(&config_, &capturer_));
        for (uint32_t i = 0; i < sink_rows; i++) ids_[i] = static_cast<int32_t>(i * 31 % 256);
    }
    ~Engine() { routecap_capturer_destroy(capturer_); }

    size_t live() const { return requests_.size(); }

    // Opens requests until there are so many, and fills each.
    void grow(size_t live) {
        while (requests_.size() < live) {
            routecap_request request = 0;
            CHECK(routecap_request_open(capturer_, nullptr, &request, 1));
            requests_.push_back(request);
            lengths_.push_back(0);
            while (lengths_.back() < rows_each) {
                const auto rows = static_cast<uint32_t>(
                    std::min<uint64_t>(rows_each - lengths_.back(), sink_rows));
                forward(rows);
                land(issue({span(requests_.size() - 1, 0, rows)}));
            }
        }
    }

    // Decode steps of a batch: CPU time in us of the engine's thread and of filing.
    void decode(bool changing, std::vector<double> &engine, std::vector<double> &filing) {
        std::vector<routecap_span> spans(kBatch);
        for (int step = -20; step < steps; step++) {
            const size_t first = changing ? static_cast<size_t>(step + 20) * kBatch : 0;
            const double start = thread_cpu_us();
            forward(kBatch);
            for (uint32_t i = 0; i < kBatch; i++)
                spans[i] = span((first + i) * 7919 % live(), i, 1);  // far from one another
            const routecap_step issued = issue(spans);
            const double between = thread_cpu_us();
            land(issued);
            const double end = thread_cpu_us();
            if (step < 0) continue;
            engine.push_back(between - start);
            filing.push_back(end - between);
        }
    }

    // What all requests take of the budget, as routecap_config_memory lets one compute it.
    uint64_t promised_bytes() const {
        const routecap_memory memory = memory_of(config_);
        uint64_t bytes = 0;
        for (uint64_t length : lengths_)
            bytes += (length + memory.page_rows - 1) / memory.page_rows * memory.page_bytes;
        return bytes;
    }
    uint64_t bytes_in_use() const {
        routecap_stats stats{};
        stats.struct_size = sizeof stats;
        CHECK(routecap_capturer_stats(capturer_, &stats));
        if (stats.rows_missing || stats.rows_lost || stats.rows_refused) fail("rows are missing");
        return stats.bytes_in_use;
    }
    routecap_memory memory() const { return memory_of(config_); }

private:
    void forward(uint32_t rows) {
        CHECK(routecap_step_begin(capturer_, rows, nullptr));
        routecap_source source{};
        source.struct_size = sizeof source;
        source.dtype = ROUTECAP_DTYPE_I32;
        source.ids = ids_.data();
        source.rows = rows;
        CHECK(routecap_layer_record(capturer_, 0, &source, nullptr));
        CHECK(routecap_step_snapshot(capturer_, nullptr));
    }
    routecap_span span(size_t request, uint32_t sink_row, uint32_t rows) {
        routecap_span span{};
        span.request = requests_[request];
        span.position = lengths_[request];
        span.sink_row = sink_row;
        span.rows = rows;
        lengths_[request] += rows;
        return span;
    }
    routecap_step issue(const std::vector<routecap_span> &spans) {
        routecap_step step = 0;
        CHECK(routecap_step_issue(capturer_, spans.data(), sizeof(routecap_span), spans.size(),
                                  nullptr, nullptr, &step, nullptr));
        return step;
    }
    void land(routecap_step step) { CHECK(routecap_step_finalize(capturer_, step, -1, nullptr)); }

    routecap_config config_;
    std::vector<int32_t> ids_;
    routecap_capturer *capturer_ = nullptr;
    std::vector<routecap_request> requests_;
    std::vector<uint64_t> lengths_;
};

Estimate exactly(uint64_t value) {
    const auto number = static_cast<double>(value);
    return {number, number, number};
}

// What so many requests of this length need in the shape of a model.
void model(Report &report, const std::string &name, uint32_t layers, uint32_t k, uint32_t experts,
           size_t requests) {
    const routecap_memory memory = memory_of(config_of(layers, k, experts));
    const uint64_t pages = (rows_each + memory.page_rows - 1) / memory.page_rows;
    const std::string group =
        std::to_string(requests) + " requests of " + std::to_string(rows_each) + " rows, " + name;
    report.add(group, "bytes of a row", "", "bytes", exactly(memory.row_bytes));
    report.add(group, "pages of a request", "", "pages", exactly(pages));
    report.add(group, "of the budget", "", "bytes", exactly(requests * pages * memory.page_bytes));
    report.add(group, "of that more than rows have", "", "bytes",
               exactly(requests * (pages * memory.page_bytes - rows_each * memory.row_bytes)));
    report.add(group, "requests besides", "", "bytes", exactly(requests * memory.request_bytes));
}

}  // namespace

int main(int argc, char **argv) {
    std::string json;
    std::vector<size_t> levels{256, 1000, 10000};
    for (int i = 1; i < argc; i++) {
        if (!std::strcmp(argv[i], "--quick"))
            rows_each = 4096, sink_rows = 4096, levels = {256, 1000}, steps = 100;
        else if (!std::strcmp(argv[i], "--json") && i + 1 < argc)
            json = argv[++i];
        else
            fail("usage: bench_scale [--quick] [--json FILE]");
    }
    Report report("Many long requests live at once", argc, argv);
    const uint64_t empty = resident_bytes();
    Engine engine;
    for (size_t level : levels) {
        const double start = wall_us();
        engine.grow(level);
        const double filled = wall_us() - start;
        const std::string group =
            std::to_string(level) + " requests of " + std::to_string(rows_each) + " rows live";
        const auto measured = [&](const char *batch, bool changing) {
            std::vector<double> thread, filing;
            engine.decode(changing, thread, filing);
            report.add(group, std::string("engine's thread, ") + batch, "", "us", estimate(thread));
            report.add(group, std::string("filing, ") + batch, "", "us", estimate(filing));
        };
        measured("the same batch each step", false);
        measured("another batch each step", true);
        const routecap_memory memory = engine.memory();
        const uint64_t promised = engine.promised_bytes(), in_use = engine.bytes_in_use();
        report.add(group, "in use of the budget", "", "bytes", exactly(in_use));
        report.add(group, "promised", "", "bytes", exactly(promised));
        const uint64_t all = promised + memory.host_bytes + level * memory.request_bytes;
        report.add(group, "with what create and requests take", "", "bytes", exactly(all));
        const uint64_t resident = resident_bytes() - empty, pages = promised / memory.page_bytes;
        report.add(group, "resident", "", "bytes", exactly(resident));
        report.add(group, "resident beyond that, for each page", "", "bytes",
                   exactly((std::max(resident, all) - all) / pages));
        report.add(group, "filled in", "", "s", {filled / 1e6, filled / 1e6, filled / 1e6});
        if (in_use != promised) fail("what is in use is not what was promised");
    }
    model(report, "48 layers of 8 of 128 experts", 48, 8, 128, levels.back());
    model(report, "58 layers of 8 of 256 experts", 58, 8, 256, levels.back());
    if (!json.empty()) report.write_json(json);
}

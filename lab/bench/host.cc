// The host backend's costs: bench [--quick] [--json FILE]
//
// L = 58 layers, K = 8, E = 256: one row is 472 bytes. Everything is repeated 30 times (5 with
// --quick), alternatives interleaved.
#include <routecap.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "extraction.h"
#include "measure.h"

namespace {

using namespace bench;

constexpr uint32_t kLayers = 58, kK = 8, kExperts = 256, kRowBytes = kLayers * kK;

std::string parameter(const char *name, uint64_t value) {
    return "\"" + std::string(name) + "\": " + std::to_string(value);
}

// An engine without a model: its routers' ids lie ready.
struct Engine {
    explicit Engine(uint32_t rows, uint64_t budget = uint64_t{4} << 30, uint32_t flags = 0)
        : ids(static_cast<size_t>(rows) * kK) {
        routecap_config config;
        CHECK(routecap_config_init(&config, sizeof config));
        config.backend = ROUTECAP_BACKEND_HOST;
        config.layers = kLayers;
        config.k = kK;
        config.experts = kExperts;
        config.rows = rows;
        config.budget_bytes = budget;
        config.flags = flags;
        CHECK(routecap_capturer_create(&config, &capturer));
        for (size_t i = 0; i < ids.size(); i++)
            ids[i] = static_cast<int32_t>((i / kK * 13 + i % kK * 31) % kExperts);
    }
    ~Engine() { routecap_capturer_destroy(capturer); }

    void begin(uint32_t rows) { CHECK(routecap_step_begin(capturer, rows, nullptr)); }
    void record(uint32_t rows) {
        routecap_source source{};
        source.struct_size = sizeof source;
        source.dtype = ROUTECAP_DTYPE_I32;
        source.ids = ids.data();
        source.rows = rows;
        for (uint32_t l = 0; l < kLayers; l++)
            CHECK(routecap_layer_record(capturer, l, &source, nullptr));
    }
    void snapshot() { CHECK(routecap_step_snapshot(capturer, nullptr)); }
    routecap_step issue(const std::vector<routecap_span> &spans) {
        routecap_step step = 0;
        CHECK(routecap_step_issue(capturer, spans.data(), sizeof(routecap_span), spans.size(),
                                  nullptr, nullptr, &step, nullptr));
        return step;
    }
    void land(routecap_step step) { CHECK(routecap_step_finalize(capturer, step, -1, nullptr)); }
    routecap_request open() {
        routecap_request r = 0;
        CHECK(routecap_request_open(capturer, nullptr, &r, 1));
        return r;
    }
    // A request with so many rows.
    routecap_request fill(uint64_t rows) {
        const routecap_request r = open();
        for (uint64_t p = 0; p < rows;) {
            const auto n = static_cast<uint32_t>(std::min<uint64_t>(rows - p, ids.size() / kK));
            begin(n);
            record(n);
            snapshot();
            land(issue({span(r, p, 0, n)}));
            p += n;
        }
        return r;
    }
    static routecap_span span(routecap_request r, uint64_t position, uint32_t sink_row,
                              uint32_t rows) {
        routecap_span s{};
        s.request = r;
        s.position = position;
        s.sink_row = sink_row;
        s.rows = rows;
        return s;
    }
    routecap_stats stats() const {
        routecap_stats s{};
        s.struct_size = sizeof s;
        CHECK(routecap_capturer_stats(capturer, &s));
        return s;
    }

    routecap_capturer *capturer = nullptr;
    std::vector<int32_t> ids;
};

int repetitions = 30;

// CPU of the engine's thread in a decode step of one row per request, each call apart.
void step_cost(Report &report) {
    for (uint32_t n : {1u, 64u, 256u, 1024u, 4096u}) {
        Engine engine(std::max(n, 64u));
        std::vector<double> begin, record, snapshot, issue, finish, total;
        std::vector<routecap_request> requests(n);
        std::vector<routecap_finish_item> items(n);
        for (int i = -3; i < repetitions * 2; i++) {
            CHECK(routecap_request_open(engine.capturer, nullptr, requests.data(), n));
            std::vector<routecap_span> spans;
            for (uint32_t r = 0; r < n; r++)
                spans.push_back(Engine::span(requests[r], 0, r, 1)),
                    items[r] = {requests[r], 1, nullptr, 0, 0};
            double t[6];
            t[0] = thread_cpu_us();
            engine.begin(n);
            t[1] = thread_cpu_us();
            engine.record(n);
            t[2] = thread_cpu_us();
            engine.snapshot();
            t[3] = thread_cpu_us();
            const routecap_step step = engine.issue(spans);
            t[4] = thread_cpu_us();
            CHECK(routecap_request_finish_batch(engine.capturer, items.data(), sizeof items[0], n));
            t[5] = thread_cpu_us();
            engine.land(step);
            for (auto &item : items)
                CHECK(routecap_routing_wait(item.routing, -1)), routecap_routing_free(item.routing);
            if (i < 0) continue;
            begin.push_back(t[1] - t[0]);
            record.push_back(t[2] - t[1]);
            snapshot.push_back(t[3] - t[2]);
            issue.push_back(t[4] - t[3]);
            finish.push_back(t[5] - t[4]);
            total.push_back(t[5] - t[0]);
        }
        const std::string group = "CPU of the engine's thread, a step of " + std::to_string(n) +
                                  " requests of one row",
                          p = parameter("requests", n);
        report.add(group, "begin", p, "us", estimate(begin), "work on rows, only on the host");
        report.add(group, "record, 58 layers", p, "us", estimate(record),
                   "work on rows, only on the host");
        report.add(group, "snapshot", p, "us", estimate(snapshot),
                   "work on rows, only on the host");
        report.add(group, "issue", p, "us", estimate(issue));
        report.add(group, "finish", p, "us", estimate(finish));
        report.add(group, "all", p, "us", estimate(total));
    }
}

// Issue alone: 256 rows, while 256 or 4096 requests live, and while other threads read.
void issue_among_others(Report &report) {
    Engine few(256), many(256);
    std::vector<routecap_request> a(256), b(4096);
    CHECK(routecap_request_open(few.capturer, nullptr, a.data(), a.size()));
    CHECK(routecap_request_open(many.capturer, nullptr, b.data(), b.size()));
    std::vector<double> with_few, with_many, with_readers, ratio;
    uint64_t position = 0;
    const auto step = [&position](Engine &engine, const std::vector<routecap_request> &requests) {
        std::vector<routecap_span> spans;
        for (uint32_t r = 0; r < 256; r++)
            spans.push_back(Engine::span(requests[r * (requests.size() / 256)], position, r, 1));
        engine.begin(256);
        engine.snapshot();
        const double start = thread_cpu_us();
        const routecap_step s = engine.issue(spans);
        const double used = thread_cpu_us() - start;
        engine.land(s);
        return used;
    };
    for (int i = -3; i < repetitions * 4; i++, position++) {
        const double x = step(few, a), y = step(many, b);
        if (i < 0) continue;
        with_few.push_back(x);
        with_many.push_back(y);
        ratio.push_back(y / x);
    }
    std::atomic<bool> stop{false};
    std::thread reader([&] {
        for (uint64_t i = 0; !stop; i++) {
            routecap_routing *routing = nullptr;
            if (routecap_request_extract(few.capturer, a[i % 256], 0, ROUTECAP_ROWS_LANDED,
                                         ROUTECAP_EXTRACT_SHARE, 0, &routing) < 0)
                std::abort();
            routecap_routing_free(routing);
        }
    });
    for (int i = 0; i < repetitions * 4; i++, position++) with_readers.push_back(step(few, a));
    stop = true;
    reader.join();
    const std::string group = "CPU of issue, 256 spans";
    report.add(group, "256 requests live", parameter("live", 256), "us", estimate(with_few));
    report.add(group, "4096 requests live", parameter("live", 4096), "us", estimate(with_many));
    report.add(group, "4096 live over 256 live", "", "ratio", estimate(ratio), "target 1.1");
    report.add(group, "256 live, a thread reading without pause", parameter("live", 256), "us",
               estimate(with_readers));
}

// The load of the experts: what it costs whoever waits for a step, and what it takes afterwards.
void load(Report &report) {
    constexpr int kSteps = 20;
    const std::string group = "Load of the experts, a row of each of as many requests";
    for (uint32_t n : {1u, 256u, 4096u}) {
        const uint64_t budget = uint64_t{4} << 30;
        Engine plain(n, budget), counting(n, budget, ROUTECAP_CONFIG_LOAD);
        Engine *const engines[] = {&plain, &counting};
        std::vector<double> landed[2], begun[2], counted, landing_ratio;
        std::vector<routecap_span> spans[2];
        for (int k = 0; k < 2; k++) {
            std::vector<routecap_request> requests(n);
            CHECK(routecap_request_open(engines[k]->capturer, nullptr, requests.data(), n));
            for (uint32_t i = 0; i < n; i++) spans[k].push_back(Engine::span(requests[i], 0, i, 1));
        }
        std::vector<uint64_t> counts(size_t{ROUTECAP_LOAD_PHASES} * kLayers * kExperts);
        routecap_load load{};
        load.struct_size = sizeof load;
        std::vector<double> reading;
        for (int i = -1; i < repetitions; i++) {
            std::vector<double> waits[2], begins[2], rest;
            for (int s = 0; s < kSteps; s++)
                for (int k = 0; k < 2; k++) {
                    Engine &engine = *engines[k];
                    const double start = wall_us();
                    engine.begin(n);
                    begins[k].push_back(wall_us() - start);
                    engine.record(n);
                    engine.snapshot();
                    const double issued = wall_us();
                    const routecap_step step = engine.issue(spans[k]);
                    engine.land(step);
                    const double seen = wall_us();
                    waits[k].push_back(seen - issued);
                    for (routecap_span &span : spans[k]) span.position++;
                    if (k == 0) continue;
                    // It waits until the step is counted.
                    CHECK(routecap_capturer_load(engine.capturer, &load, nullptr, 0));
                    rest.push_back(wall_us() - seen);
                }
            const double start = wall_us();
            CHECK(routecap_capturer_load(counting.capturer, &load, counts.data(), counts.size()));
            const double read = wall_us() - start;
            if (i < 0) continue;
            for (int k = 0; k < 2; k++) {
                landed[k].push_back(estimate(waits[k]).median);
                begun[k].push_back(estimate(begins[k]).median);
            }
            landing_ratio.push_back(landed[1].back() / landed[0].back());
            counted.push_back(estimate(rest).median);
            reading.push_back(read);
        }
        const std::string rows = std::to_string(n) + " rows", p = parameter("rows", n);
        report.add(group, rows + ", from issue to readable rows, off", p, "us",
                   estimate(landed[0]));
        report.add(group, rows + ", from issue to readable rows, on", p, "us", estimate(landed[1]));
        report.add(group, rows + ", on over off", p, "ratio", estimate(landing_ratio),
                   "target 1.0");
        report.add(group, rows + ", from readable to counted", p, "us", estimate(counted),
                   "by the worker");
        report.add(group, rows + ", begin, off", p, "us", estimate(begun[0]));
        report.add(group, rows + ", begin, on", p, "us", estimate(begun[1]));
        report.add(group, rows + ", reading the counts", p, "us", estimate(reading),
                   "by whoever reads");
    }
}

void extractions(Report &report) {
    for (uint64_t rows : {uint64_t{1024}, uint64_t{4096}, uint64_t{32768}, uint64_t{131072}}) {
        Engine engine(8192);
        const routecap_request r = engine.fill(rows);
        extraction(report, engine.capturer, r, rows, kRowBytes, repetitions,
                   parameter("rows", rows), rows == 32768);
    }
}

}  // namespace

int main(int argc, char **argv) {
    std::string json;
    for (int i = 1; i < argc; i++) {
        if (std::string(argv[i]) == "--quick") repetitions = 5;
        if (std::string(argv[i]) == "--json" && i + 1 < argc) json = argv[++i];
    }
    Report report(
        "routecap " + std::to_string(routecap_version()) + ", host backend, L=58 K=8 E=256", argc,
        argv);
    step_cost(report);
    issue_among_others(report);
    load(report);
    extractions(report);
    if (!json.empty()) report.write_json(json);
    return 0;
}

// The CUDA backend beside a driver whose calls stall and a device that takes its time, both played
// by the driver of tests/fault: bench_driver [--quick] [--json FILE], with that in LD_LIBRARY_PATH.
//
// bench_cuda has the same on a GPU. Everything is repeated 30 times (5 with --quick).
#include <dlfcn.h>
#include <routecap.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "beside.h"
#include "check.h"
#include "fake_cuda.h"
#include "measure.h"

namespace {

using namespace bench;

int repetitions = 30;

const fake_cuda *driver() {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    const auto control =
        library != nullptr
            ? reinterpret_cast<decltype(&fake_cuda_control)>(dlsym(library, "fake_cuda_control"))
            : nullptr;
    if (control == nullptr) fail("there is no driver without a device in LD_LIBRARY_PATH");
    return control();
}

// One request whose rows are drafts. Nothing is recorded: waiting does not depend on ids.
class Engine {
public:
    static constexpr uint32_t kRows = 64;

    Engine() {
        routecap_config config;
        CHECK(routecap_config_init(&config, sizeof config));
        config.backend = ROUTECAP_BACKEND_CUDA;
        config.layers = 58, config.k = 8, config.experts = 256, config.rows = kRows,
        config.slots = 8;
        CHECK(routecap_capturer_create(&config, &capturer));
        CHECK(routecap_request_open(capturer, nullptr, &drafts, 1));
    }
    ~Engine() { routecap_capturer_destroy(capturer); }
    void begin() { CHECK(routecap_step_begin(capturer, kRows, nullptr)); }
    void snapshot() { CHECK(routecap_step_snapshot(capturer, nullptr)); }
    void issue() {
        routecap_span span{};
        span.request = drafts, span.rows = kRows, span.flags = ROUTECAP_SPAN_SPECULATIVE;
        routecap_step issued = 0;
        CHECK(routecap_step_issue(capturer, &span, sizeof span, 1, nullptr, nullptr, &issued,
                                  nullptr));
        step.store(issued);
    }
    void land() { CHECK(routecap_step_finalize(capturer, step.load(), -1, nullptr)); }

    routecap_capturer *capturer = nullptr;
    routecap_request drafts = 0;
    std::atomic<routecap_step> step{0};
};

// Each driver call of begin, snapshot and issue stalls in its turn.
void stalls(Report &report, const fake_cuda *fake) {
    constexpr std::chrono::milliseconds kStall{20};
    struct Call {
        const char *name;
        std::function<void(Engine &)> before, call, after;
    };
    const Call calls[] = {
        {"begin", [](Engine &) {}, &Engine::begin,
         [](Engine &e) { e.snapshot(), e.issue(), e.land(); }},
        {"snapshot", &Engine::begin, &Engine::snapshot, [](Engine &e) { e.issue(), e.land(); }},
        {"issue", [](Engine &e) { e.begin(), e.snapshot(); }, &Engine::issue, &Engine::land},
    };
    for (const Call &call : calls) {
        std::vector<double> itself, others[Bystander::kCalls.size()];
        uint64_t stalled = 0;
        for (int i = 0; i < repetitions; i++) {
            double longest = 0;
            Bystander::Longest waits{};
            Engine engine;
            for (uint64_t nth = 1;; nth++) {
                call.before(engine);
                Bystander bystander(engine.capturer, engine.drafts, engine.step);
                std::atomic<bool> returned{false};
                bool came = false;
                std::thread gate([&] {
                    while (!(came = fake->at_gate() != 0) && !returned) std::this_thread::yield();
                    if (came) std::this_thread::sleep_for(kStall);
                    fake->open_gate();
                });
                fake->close_gate(nth);
                const double start = wall_us();
                call.call(engine);
                const double used = wall_us() - start;
                returned = true;
                gate.join();
                const Bystander::Longest each = bystander.stop();
                call.after(engine);
                if (!came) break;
                longest = std::max(longest, used);
                for (size_t k = 0; k < waits.size(); k++) waits[k] = std::max(waits[k], each[k]);
                stalled = std::max(stalled, nth);
            }
            itself.push_back(longest);
            for (size_t k = 0; k < waits.size(); k++) others[k].push_back(waits[k]);
        }
        if (stalled == 0) fail(std::string(call.name) + " calls no driver");
        const std::string group = std::string("Longest wait while a driver call of ") + call.name +
                                  " stalls for 20 ms, each of " + std::to_string(stalled) +
                                  " in turn";
        report.add(group, call.name + std::string(" itself"), "", "us", estimate(itself));
        for (size_t k = 0; k < Bystander::kCalls.size(); k++)
            report.add(group, Bystander::kCalls[k] + std::string(" on another thread"), "", "us",
                       estimate(others[k]));
    }
}

// A device that ends a step every 5 ms: what the worker takes to see it, and how soon.
void worker(Report &report, const fake_cuda *fake) {
    constexpr std::chrono::milliseconds kStep{5};
    constexpr int kSteps = 10;
    const std::set<int> before = Worker::threads();
    Engine engine;
    const Worker worker(before);
    std::vector<double> share, landing;
    fake->hold();
    for (int i = -1; i < repetitions; i++) {
        const double cpu = worker.cpu_us(), start = wall_us();
        std::vector<double> delays;
        for (int s = 0; s < kSteps; s++) {
            engine.begin(), engine.snapshot(), engine.issue();
            std::this_thread::sleep_for(kStep);
            fake->step(SIZE_MAX);
            const double ended = wall_us();
            while (routecap_step_poll(engine.capturer, engine.step.load()) == ROUTECAP_PENDING)
                std::this_thread::yield();
            delays.push_back(wall_us() - ended);
            CHECK(routecap_request_truncate(engine.capturer, engine.drafts, 0));
        }
        if (i < 0) continue;
        share.push_back(100 * (worker.cpu_us() - cpu) / (wall_us() - start));
        landing.push_back(estimate(delays).median);
    }
    fake->release();
    const std::string group =
        "The worker beside a device that ends a step of 64 rows every 5 ms, " +
        std::to_string(kSteps) + " steps at a time";
    report.add(group, "share of a core", "", "percent", estimate(share));
    report.add(group, "from the step's end to readable rows", "", "us", estimate(landing));
}

}  // namespace

int main(int argc, char **argv) {
    std::string json;
    for (int i = 1; i < argc; i++) {
        if (std::string(argv[i]) == "--quick") repetitions = 5;
        if (std::string(argv[i]) == "--json" && i + 1 < argc) json = argv[++i];
    }
    const fake_cuda *const fake = driver();
    Report report("routecap " + std::to_string(routecap_version()) +
                      ", CUDA backend on a driver without a device, L=58 K=8 E=256",
                  argc, argv);
    stalls(report, fake);
    worker(report, fake);
    if (fake->violations() != 0) fail(fake->violation_text());
    if (!json.empty()) report.write_json(json);
    return 0;
}

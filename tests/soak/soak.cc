// Random traffic of an engine against the model, for a time: prints one line of JSON, and ends with
// 0 if nothing differed.
//
//     soak [--seconds N] [--rounds N] [--steps N] [--seed S] [--round R] [--readers N]
//          [--store 0|1] [--json FILE]
//
// It ends with the time, the rounds or the steps, whichever is first. --store 1: in every round
// sequences share a store (in one of three, one that other processes could open); nothing is lost
// or cut then.
//
// A round is a capturer of its own shape with up to a thousand steps. --round begins with that one:
// with --rounds 1 it makes what a failure names again. Some rounds have a budget that is too small.
// On CUDA (see ../support/device.h) some capture their passes into graphs if ROUTECAP_TEST_GRAPH=1.
#include <sys/resource.h>

#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "../fuzz/check.h"
#include "engine.h"

namespace {

using Clock = std::chrono::steady_clock;

uint64_t seed = 1, rounds = UINT64_MAX, first_round = 0, seconds = 30, readers = 2;
uint64_t steps_wanted = UINT64_MAX, with_store = 0;
uint64_t round_now = 0;
const soak::Totals *totals_now = nullptr;

soak::Shape shape_of(std::mt19937_64 &random) {
    const auto pick = [&random](std::initializer_list<uint32_t> list) {
        return list.begin()[random() % list.size()];
    };
    soak::Shape shape{};
    shape.layers = pick({1, 3, 12, 12, 27, 58});
    shape.k = pick({1, 2, 4, 8, 6});
    shape.experts = std::max(shape.k, pick({8, 64, 128, 256, 257, 512}));
    shape.rows = pick({16, 64, 256, 256, 100});
    shape.slots = pick({2, 4, 4, 8});
    shape.dtype = static_cast<int32_t>(
        pick({ROUTECAP_DTYPE_I16, ROUTECAP_DTYPE_I32, ROUTECAP_DTYPE_I32, ROUTECAP_DTYPE_U32,
              ROUTECAP_DTYPE_I64, ROUTECAP_DTYPE_ID16_BF16}));
    shape.tap = static_cast<int>(pick({0, 1, 1, 2, 3}));
    if (shape.tap == 2 && shape.dtype != ROUTECAP_DTYPE_I16 && shape.dtype != ROUTECAP_DTYPE_I64)
        shape.dtype = ROUTECAP_DTYPE_I32;
    shape.policy = static_cast<int32_t>(
        pick({ROUTECAP_POLICY_KEEP, ROUTECAP_POLICY_KEEP, ROUTECAP_POLICY_REPLACE}));
    shape.sequences = pick({4, 16, 48});
    shape.pages = random() % 4 == 0 ? 4 + random() % (3 * shape.sequences) : 0;
    shape.attaches = shape.pages == 0 || random() % 4 == 0;
    shape.may_lose = random() % 4 == 0;
    shape.fewer = random() % 3 == 0;
    shape.weights = static_cast<int32_t>(
        pick({0, 0, 0, ROUTECAP_DTYPE_F32, ROUTECAP_DTYPE_F16, ROUTECAP_DTYPE_BF16}));
    if (with_store == 0) return shape;
    shape.pages = 0;
    shape.may_lose = false;
    shape.block_rows = pick({1, 3, 16, 16, 64});
    shape.store = true;
    return shape;
}

void tell_where() {
    std::fprintf(stderr,
                 "make it again with --seed %" PRIu64 " --round %" PRIu64 " --store %" PRIu64
                 " --rounds 1 (after %" PRIu64 " steps of this run)\n",
                 seed, round_now, with_store, totals_now != nullptr ? totals_now->steps : 0);
    if (soak::examined == nullptr) return;
    std::fprintf(stderr, "history of sequence %" PRIu64 ":\n", soak::examined->number);
    for (const std::string &line : soak::examined->history)
        std::fprintf(stderr, "  %s\n", line.c_str());
}

void run_round(uint64_t steps, Clock::time_point end, soak::Totals &totals) {
    std::mt19937_64 random(seed * 1000003 + round_now);
    soak::Shape shape = shape_of(random);
    const bool graphs = rig::in_graphs() && random() % 2 == 0;
    if (graphs) shape.tap %= 2;
    if (graphs && shape.tap == 0 && shape.dtype == ROUTECAP_DTYPE_I16) shape.tap = 1;
    std::fprintf(stderr, "round %" PRIu64 ": %s%s\n", round_now, shape.text().c_str(),
                 graphs ? ", graphs" : "");
    soak::Engine engine(shape, random(), graphs, totals);
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (uint64_t r = 0; r < readers; r++)
        threads.emplace_back([&engine, &stop, r] {
            std::mt19937_64 choices(r);
            while (!stop) {
                if (engine.compare_next()) continue;
                engine.compare_running(choices());
                std::this_thread::sleep_for(std::chrono::microseconds(300));
            }
        });
    for (uint64_t i = 0; i < steps && Clock::now() < end; i++) engine.step();
    stop = true;
    for (std::thread &thread : threads) thread.join();
    engine.finish_all();
    while (engine.compare_next()) {}
    engine.compare_counters();
}

}  // namespace

int main(int argc, char **argv) {
    const char *json = nullptr;
    for (int i = 1; i + 1 < argc; i += 2) {
        const auto number = [&] { return std::strtoull(argv[i + 1], nullptr, 10); };
        const auto is = [&](const char *option) { return std::strcmp(argv[i], option) == 0; };
        if (is("--seconds"))
            seconds = number();
        else if (is("--rounds"))
            rounds = number();
        else if (is("--seed"))
            seed = number();
        else if (is("--round"))
            first_round = number();
        else if (is("--readers"))
            readers = number();
        else if (is("--steps"))
            steps_wanted = number();
        else if (is("--store"))
            with_store = number();
        else if (is("--json"))
            json = argv[i + 1];
        else
            return std::fprintf(stderr, "unknown option %s\n", argv[i]), 2;
    }
    check::on_failure = tell_where;
    soak::Totals totals;
    totals_now = &totals;
    const auto begin = Clock::now(), end = begin + std::chrono::seconds(seconds);
    uint64_t done = 0;
    for (; done < rounds && totals.steps < steps_wanted && Clock::now() < end; done++) {
        round_now = first_round + done;
        run_round(1000, end, totals);
    }
    const double took = std::chrono::duration<double>(Clock::now() - begin).count();
    rusage used{};
    getrusage(RUSAGE_SELF, &used);
    const std::pair<const char *, uint64_t> counts[] = {
        {"seed", seed},
        {"rounds", done},
        {"steps", totals.steps},
        {"steps_lost", totals.steps_lost},
        {"rows", totals.rows},
        {"rows_lost", totals.rows_lost},
        {"rows_refused_for_memory", totals.rows_refused},
        {"requests", totals.requests},
        {"forks", totals.forks},
        {"prefixes_attached", totals.attached},
        {"preempted", totals.preempted},
        {"aborted", totals.aborted},
        {"blocks_published", totals.published},
        {"blocks_adopted", totals.adopted},
        {"blocks_evicted", totals.evicted},
        {"advances", totals.advanced},
        {"drafts_accepted", totals.accepted},
        {"routings", totals.routings},
        {"cells", totals.cells},
        {"cells_compared", totals.cells_compared},
        {"cells_compared_while_running", totals.live_cells_compared},
        {"cells_refused_for_memory", totals.cells_refused},
        {"cells_wrong", 0},  // else it had ended
        {"cells_unexpectedly_missing", 0},
        {"budget_peak_bytes", totals.bytes_peak},
        {"resident_peak_bytes", static_cast<uint64_t>(used.ru_maxrss) * 1024},
    };
    std::string text = rig::on_cuda() ? "{\"backend\": \"cuda\"" : "{\"backend\": \"host\"";
    text += rig::in_graphs() ? ", \"graphs\": true" : ", \"graphs\": false";
    for (const auto &[name, count] : counts)
        text += std::string(", \"") + name + "\": " + std::to_string(count);
    // Of the rounds with memory enough; the rest is lost, dropped, cut, or guessed in vain.
    const double share = static_cast<double>(totals.rows_delivered) /
                         static_cast<double>(std::max<uint64_t>(1, totals.rows_issued));
    text += ", \"delivered_share\": " + std::to_string(share) +
            ", \"seconds\": " + std::to_string(took) + "}\n";
    std::fputs(text.c_str(), stdout);
    if (json != nullptr) {
        std::FILE *file = std::fopen(json, "w");
        if (file == nullptr || std::fputs(text.c_str(), file) < 0 || std::fclose(file) != 0)
            return 2;
    }
    return totals.cells_compared > 0 ? 0 : 3;
}

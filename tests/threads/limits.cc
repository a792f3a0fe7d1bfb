// Every function that any thread may call, called by several at once while one issues; and what a
// process may do to them meanwhile: hold steps back, fork, interrupt every system call. All rows
// that come out are checked.
#include "crowd.h"

#include <rig.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <thread>

using namespace rig;

namespace {

constexpr Shape kShape{.layers = 3, .k = 2, .experts = 64, .rows = 64};
constexpr int kSteps = 600;
constexpr size_t kLoad = size_t{ROUTECAP_LOAD_PHASES} * kShape.layers * kShape.experts;

// Of the load of a capturer: whole steps and accepts, and more than this thread read before.
void read_load(const Rig &rig) {
    thread_local std::vector<uint64_t> before(kLoad);
    std::vector<uint64_t> counts(kLoad);
    routecap_load load{};
    load.struct_size = sizeof load;
    ASSERT_STATUS(ROUTECAP_OK, routecap_capturer_load(rig.capturer(), &load, counts.data(), kLoad));
    const uint64_t rows[] = {load.rows_prefill, load.rows_decode};
    for (size_t i = 0; i < kLoad; i += kShape.experts) {
        const auto layer = counts.begin() + static_cast<ptrdiff_t>(i);
        ASSERT_EQ(std::accumulate(layer, layer + kShape.experts, uint64_t{0}),
                  kShape.k * rows[i / (kLoad / ROUTECAP_LOAD_PHASES)]);
    }
    ASSERT_TRUE(std::equal(counts.begin(), counts.end(), before.begin(), std::greater_equal<>()));
    before = counts;
}

// Rows of a routing are those of `seed`, or missing.
void expect_right_or_missing(const routecap_routing *routing, uint64_t seed) {
    const uint64_t first = view_of(routing).first;
    const Rows rows = contents(routing, kShape);
    for (uint64_t r = 0; r < rows.size(); r++)
        for (uint32_t l = 0; l < kShape.layers; l++)
            if (rows[r][l]) {
                ASSERT_EQ(*rows[r][l], routed(kShape, seed, first + r, l));
            }
}

std::vector<uint8_t> serialized(const routecap_routing *routing) {
    uint64_t needed = 0;
    EXPECT_STATUS(ROUTECAP_ERR_BUFFER_TOO_SMALL,
                  routecap_routing_serialize(routing, nullptr, 0, &needed));
    std::vector<uint8_t> bytes(needed);
    EXPECT_STATUS(ROUTECAP_OK,
                  routecap_routing_serialize(routing, bytes.data(), bytes.size(), nullptr));
    return bytes;
}

// Sequences that come and go: who takes one out is the only one that ends it, and everybody may
// read those that are in.
class Sequences {
public:
    struct One {
        routecap_request request;
        uint64_t seed, position;
    };
    Sequences(Rig &rig, size_t count) : rig_(rig) {
        for (size_t i = 0; i < count; i++) all_.push_back({rig.open(), next_++, 0});
    }
    One any(std::mt19937_64 &random) {
        const std::lock_guard lock(mutex_);
        return all_[random() % all_.size()];
    }
    // Another takes its place.
    One replace(std::mt19937_64 &random) {
        const std::lock_guard lock(mutex_);
        One &one = all_[random() % all_.size()];
        return std::exchange(one, One{rig_.open(), next_++, 0});
    }
    // What the next step is to record, `rows` of each.
    std::vector<One> advance(uint32_t rows) {
        const std::lock_guard lock(mutex_);
        std::vector<One> now = all_;
        for (One &one : all_) one.position += rows;
        return now;
    }

private:
    Rig &rig_;
    std::mutex mutex_;
    std::vector<One> all_;
    uint64_t next_ = 1;
};

// One call, chosen at random, of those that any thread may make.
void call_anything(Rig &rig, Sequences &sequences, std::mt19937_64 &random) {
    const Sequences::One one = sequences.any(random);
    routecap_capturer *const c = rig.capturer();
    routecap_routing *routing = nullptr;
    const auto gone_or = [](int32_t status) {
        return status >= 0 || status == ROUTECAP_ERR_UNKNOWN_REQUEST ||
               status == ROUTECAP_ERR_NOT_READY;
    };
    switch (random() % 10) {
        case 0: {
            const Sequences::One ended = sequences.replace(random);
            ASSERT_STATUS(ROUTECAP_OK,
                          routecap_request_finish(c, ended.request, ROUTECAP_ROWS_ALL, &routing));
            const RoutingPtr owner(routing);
            ASSERT_GE(routecap_routing_wait(routing, -1), 0);
            expect_right_or_missing(routing, ended.seed);
            ASSERT_STATUS(ROUTECAP_ERR_UNKNOWN_REQUEST, routecap_request_close(c, ended.request));
            break;
        }
        case 1: {
            routecap_finish_item items[2]{};
            const Sequences::One ended[2] = {sequences.replace(random), sequences.replace(random)};
            for (int i = 0; i < 2; i++) items[i].request = ended[i].request, items[i].rows = 40;
            ASSERT_STATUS(ROUTECAP_OK, routecap_request_finish_batch(c, items, sizeof items[0], 2));
            for (int i = 0; i < 2; i++) {
                const RoutingPtr owner(items[i].routing);
                ASSERT_GE(routecap_routing_wait(items[i].routing, -1), 0);
                expect_right_or_missing(items[i].routing, ended[i].seed);
            }
            break;
        }
        case 2: {
            routecap_request child[2] = {};
            const int32_t status =
                routecap_request_fork(c, one.request, ROUTECAP_ROWS_ALL, &child[0]);
            ASSERT_TRUE(gone_or(status)) << routecap_last_error();
            if (status != ROUTECAP_OK) break;
            ASSERT_TRUE(gone_or(routecap_request_extract(c, child[0], 0, ROUTECAP_ROWS_LANDED,
                                                         ROUTECAP_EXTRACT_TAKE, 0, &routing)));
            if (routing != nullptr) expect_right_or_missing(RoutingPtr(routing).get(), one.seed);
            int32_t closed[2];
            ASSERT_STATUS(ROUTECAP_OK, routecap_request_close_batch(c, child, closed, 2));
            break;
        }
        case 3: {
            routecap_extract_item item{
                one.request, 0, ROUTECAP_ROWS_LANDED, ROUTECAP_EXTRACT_COPY, 0, nullptr, 0, 0};
            ASSERT_GE(routecap_request_extract_batch(c, &item, sizeof item, 1), 0);
            ASSERT_TRUE(gone_or(item.status));
            if (item.routing != nullptr)
                expect_right_or_missing(RoutingPtr(item.routing).get(), one.seed);
            break;
        }
        case 4: {
            routecap_copy_options options;
            ASSERT_STATUS(ROUTECAP_OK, routecap_copy_options_init(&options, sizeof options));
            options.dtype = ROUTECAP_DTYPE_I16;
            std::vector<int16_t> ids(2000 * kShape.layers * kShape.k);
            const int32_t status =
                routecap_request_extract_into(c, one.request, 0, ROUTECAP_ROWS_LANDED, &options,
                                              ids.data(), ids.size() * 2, nullptr, 0, nullptr);
            ASSERT_TRUE(gone_or(status) || status == ROUTECAP_ERR_BUFFER_TOO_SMALL)
                << routecap_last_error();
            break;
        }
        case 5: {  // rows of one sequence attached to another of the same seed, by way of bytes
            ASSERT_TRUE(gone_or(routecap_request_extract(c, one.request, 0, ROUTECAP_ROWS_LANDED,
                                                         ROUTECAP_EXTRACT_SHARE, 0, &routing)));
            const RoutingPtr owner(routing);
            if (routing == nullptr) break;
            const std::vector<uint8_t> bytes = serialized(routing);
            routecap_routing *same = nullptr;
            ASSERT_GE(routecap_routing_deserialize(bytes.data(), bytes.size(), 0, nullptr, nullptr,
                                                   &same),
                      0);
            const RoutingPtr second(same);
            const routecap_request request = rig.open();
            ASSERT_STATUS(ROUTECAP_OK,
                          routecap_request_attach(c, request, random() % 2 == 0 ? routing : same,
                                                  ROUTECAP_ROWS_ALL));
            routecap_routing *all = nullptr;
            ASSERT_STATUS(ROUTECAP_OK,
                          routecap_request_finish(c, request, ROUTECAP_ROWS_ALL, &all));
            const RoutingPtr third(all);
            ASSERT_GE(routecap_routing_wait(all, -1), 0);
            ASSERT_EQ(contents(all, kShape), contents(routing, kShape));
            break;
        }
        case 6: {
            routecap_coverage coverage{};
            coverage.struct_size = sizeof coverage;
            routecap_missing missing[2];
            ASSERT_TRUE(
                gone_or(routecap_request_coverage(c, one.request, 0, ROUTECAP_ROWS_LANDED,
                                                  &coverage, missing, sizeof missing[0], 2)));
            break;
        }
        case 7: {
            const routecap_stats stats = rig.stats();
            EXPECT_LE(stats.rows_delivered, stats.rows_issued);
            rig.layer_stats();
            if (stats.steps_issued > 0) {
                ASSERT_GE(
                    routecap_step_finalize(c, 1 + random() % stats.steps_issued, 100'000, nullptr),
                    0);
            }
            ASSERT_STATUS(ROUTECAP_OK, routecap_capturer_progress(c));
            break;
        }
        case 8: read_load(rig); break;
        default: {  // an error, and its text on this thread
            const uint64_t nobody = random() | 1;
            ASSERT_STATUS(ROUTECAP_ERR_UNKNOWN_STEP,
                          routecap_step_poll(c, uint64_t{1} << 40 | nobody));
            ASSERT_NE(
                std::string(routecap_last_error()).find(std::to_string(uint64_t{1} << 40 | nobody)),
                std::string::npos);
            break;
        }
    }
}

// Issues steps of all sequences, drafts among them which some other thread settles, until there
// were so many of them and `others` had ten turns for each.
void issue_steps(Rig &rig, Sequences &sequences, const Threads &others, uint64_t steps) {
    routecap_step last = 0;
    std::mutex mutex;
    std::vector<std::pair<routecap_request, routecap_step>> drafts;
    Threads settling;
    settling.repeat([&](std::mt19937_64 &random) {
        std::unique_lock lock(mutex);
        if (drafts.empty()) {
            lock.unlock();
            std::this_thread::yield();
            return;
        }
        const auto [request, step] = drafts.back();
        drafts.pop_back();
        lock.unlock();
        routecap_accept_item item{request, step, nullptr, random() % 3, 0, 0};
        int32_t status = ROUTECAP_OK;
        if (random() % 2 == 0) {
            status = routecap_request_accept(rig.capturer(), request, step, nullptr, item.count);
        } else {
            EXPECT_GE(routecap_request_accept_batch(rig.capturer(), &item, sizeof item, 1), 0);
            status = item.status;
        }
        ASSERT_TRUE(status == ROUTECAP_OK || status == ROUTECAP_ERR_UNKNOWN_REQUEST ||
                    status == ROUTECAP_ERR_UNKNOWN_STEP)
            << routecap_last_error();
    });
    for (uint64_t i = 0; (i < steps || others.turns() < 10 * steps || settling.turns() < steps) &&
                         !testing::Test::HasFailure();
         i++) {
        const bool speculative = i % 3 == 0;
        const std::vector<Sequences::One> now = sequences.advance(speculative ? 0 : 2);
        std::vector<Tokens> tokens;
        std::vector<routecap_span> spans;
        for (const Sequences::One &one : now) {
            const auto row = static_cast<uint32_t>(2 * tokens.size());
            spans.push_back(Rig::span(one.request, one.position, row, 2,
                                      speculative ? ROUTECAP_SPAN_SPECULATIVE : 0));
            tokens.push_back({one.seed, one.position, 2});
        }
        rig.run(tokens);
        if (last > 6) rig.land(last - 6);
        ASSERT_GE(routecap_step_issue(rig.capturer(), spans.data(), sizeof spans[0], spans.size(),
                                      nullptr, nullptr, &last, rig.stream()),
                  0);
        if (!speculative) continue;
        const std::lock_guard lock(mutex);
        for (const Sequences::One &one : now) drafts.emplace_back(one.request, last);
    }
    settling.stop();
    rig.land(last);
}

void everything_at_once(bool held, uint64_t steps) {
    Rig rig({.shape = kShape, .slots = 8, .flags = ROUTECAP_CONFIG_LOAD, .held = held});
    Sequences sequences(rig, 6);
    Threads threads;
    for (int i = 0; i < 3; i++)
        threads.repeat([&](std::mt19937_64 &random) { call_anything(rig, sequences, random); });
    issue_steps(rig, sequences, threads, steps);
    threads.stop();
    rig.open_gate();
    const routecap_stats s = rig.stats();
    EXPECT_EQ(s.rows_issued, s.rows_in_flight + s.rows_provisional + s.rows_delivered +
                                 s.rows_missing + s.rows_lost + s.rows_late + s.rows_rejected +
                                 s.rows_unplaced + s.rows_refused);
    EXPECT_EQ(s.rows_missing + s.rows_refused + s.rows_lost, 0u);
    routecap_load load{};
    load.struct_size = sizeof load;
    EXPECT_STATUS(ROUTECAP_OK, routecap_capturer_load(rig.capturer(), &load, nullptr, 0));
    EXPECT_EQ(load.rows_prefill + load.rows_decode, s.rows_delivered - s.rows_overlapped);
}

}  // namespace

TEST(Limits, every_call_at_once) { everything_at_once(false, draws(kSteps)); }

// Without a worker thread, whoever waits or asks for progress does its work.
TEST(Limits, every_call_at_once_and_no_worker) { everything_at_once(true, draws(kSteps / 4)); }

// Of all that end one request at once, one does; nobody gets its rows twice.
TEST(Limits, one_of_many_ends_a_request) {
    Rig rig({.shape = kShape, .slots = 8});
    for (int round = 0; round < draws(200); round++) {
        const routecap_request request = rig.open();
        rig.step({{request, {1, 0, 3}}});
        std::atomic<int> ready{0}, ended{0}, gone{0};
        std::vector<std::thread> threads;
        for (int t = 0; t < 3; t++)
            threads.emplace_back([&, t] {
                ready++;
                while (ready < 3) std::this_thread::yield();
                routecap_routing *routing = nullptr;
                const int32_t status =
                    t == 0 ? routecap_request_close(rig.capturer(), request)
                           : routecap_request_finish(rig.capturer(), request, 3, &routing);
                EXPECT_TRUE(status == ROUTECAP_OK || status == ROUTECAP_ERR_UNKNOWN_REQUEST);
                (status == ROUTECAP_OK ? ended : gone)++;
                EXPECT_EQ(routing != nullptr, status == ROUTECAP_OK && t != 0);
                if (routing == nullptr) return;
                const RoutingPtr owner(routing);
                EXPECT_STATUS(ROUTECAP_OK, routecap_routing_wait(routing, -1));
                expect_routing(routing, kShape, 0, routed_rows(kShape, 1, 0, 3));
            });
        for (std::thread &t : threads) t.join();
        ASSERT_EQ(ended, 1);
        ASSERT_EQ(gone, 2);
    }
}

// Many threads wait for one routing and let go of it: the last frees it, whichever it is.
TEST(Limits, references_go_on_many_threads) {
    Rig rig({.shape = kShape, .slots = 8});
    for (int round = 0; round < draws(100); round++) {
        const routecap_request request = rig.open();
        rig.step({{request, {1, 0, 4}}});
        routecap_routing *routing = rig.finish(request, 4);
        std::vector<std::thread> threads;
        for (int t = 0; t < 3; t++) {
            ASSERT_STATUS(ROUTECAP_OK, routecap_routing_retain(routing));
            threads.emplace_back([routing] {
                const RoutingPtr mine(routing);
                EXPECT_STATUS(ROUTECAP_OK, routecap_routing_wait(routing, -1));
                EXPECT_EQ(contents(routing, kShape), routed_rows(kShape, 1, 0, 4));
            });
        }
        routecap_routing_free(routing);
        for (std::thread &t : threads) t.join();
    }
    EXPECT_EQ(rig.bytes_in_use(), 0u);
}

// With a step in flight that does not land, everything that does not wait by its contract returns,
// on other threads and on this one: who waited for the step would wait for ever. Only its own rows
// cannot be read.
TEST(Limits, no_call_waits_for_anothers_step) {
    Rig rig({.shape = kShape, .slots = 8, .held = !on_cuda()});
    const routecap_request landed = rig.open(), held = rig.open(), source = rig.open();
    rig.land(rig.step({{landed, {1, 0, 10}}, {held, {2, 0, 5}}, {source, {3, 0, 4}}}));
    if (on_cuda()) rig.device().close_gate();
    const routecap_step step = rig.step({{held, {2, 5, 5}}});
    EXPECT_STATUS(ROUTECAP_PENDING, routecap_step_poll(rig.capturer(), step));
    std::vector<std::thread> readers;
    for (int t = 0; t < 3; t++)
        readers.emplace_back([&] {
            for (int i = 0; i < 50; i++) {
                rig.expect(landed, 0, routed_rows(kShape, 1, 0, 10),
                           i % 2 == 0 ? ROUTECAP_EXTRACT_SHARE : ROUTECAP_EXTRACT_COPY);
                rig.expect(held, 0, routed_rows(kShape, 2, 0, 5));  // what of it has landed
                const routecap_request mine = rig.open();
                rig.stats();
                rig.close(mine);
            }
        });
    for (std::thread &t : readers) t.join();
    if (on_cuda()) rig.device().open_gate();
    rig.land(step);
    rig.expect(held, 0, routed_rows(kShape, 2, 0, 10));
}

// A process that forks while its threads are in the middle of everything: the child's calls are
// refused and hang nowhere, its frees do nothing, and the parent goes on.
TEST(Limits, fork_in_the_middle_of_everything) {
    Rig rig({.shape = kShape, .slots = 8, .flags = ROUTECAP_CONFIG_LOAD});
    Sequences sequences(rig, 4);
    const routecap_request kept = rig.open();
    rig.land(rig.step({{kept, {1000, 0, 4}}}));
    const RoutingPtr routing(rig.extract(kept, 0, 4, ROUTECAP_OK));
    Threads threads;
    for (int i = 0; i < 2; i++)
        threads.repeat([&](std::mt19937_64 &random) { call_anything(rig, sequences, random); });
    std::thread engine([&] { issue_steps(rig, sequences, threads, kSteps / 4); });
    for (int i = 0; i < 20; i++) {
        const pid_t child = fork();
        ASSERT_GE(child, 0);
        if (child == 0) {
            alarm(60);
            routecap_request request = 0;
            routecap_stats stats{};
            stats.struct_size = sizeof stats;
            routecap_view view{};
            view.struct_size = sizeof view;
            routecap_routing *none = nullptr;
            bool refused =
                routecap_request_open(rig.capturer(), nullptr, &request, 1) == ROUTECAP_ERR_FORKED;
            refused &= routecap_capturer_stats(rig.capturer(), &stats) == ROUTECAP_ERR_FORKED;
            refused &= routecap_capturer_progress(rig.capturer()) == ROUTECAP_ERR_FORKED;
            refused &=
                routecap_step_finalize(rig.capturer(), 1, -1, nullptr) == ROUTECAP_ERR_FORKED;
            refused &=
                routecap_request_finish(rig.capturer(), kept, 4, &none) == ROUTECAP_ERR_FORKED &&
                none == nullptr;
            refused &= routecap_routing_wait(routing.get(), -1) == ROUTECAP_ERR_FORKED;
            refused &= routecap_routing_view(routing.get(), &view) == ROUTECAP_ERR_FORKED;
            routecap_routing_free(routing.get());
            routecap_capturer_destroy(rig.capturer());
            _exit(refused ? 0 : 1);
        }
        int status = -1;
        ASSERT_EQ(waitpid(child, &status, 0), child);
        ASSERT_EQ(status, 0);
    }
    engine.join();
    threads.stop();
    expect_routing(routing.get(), kShape, 0, routed_rows(kShape, 1000, 0, 4));
}

// Signals that interrupt whatever a thread is in, several thousand a second, without restarting
// system calls.
TEST(Limits, signals_interrupt_nothing) {
    static std::atomic<uint64_t> signals{0};
    struct sigaction action {
    }, before{};
    action.sa_handler = [](int) { signals++; };
    ASSERT_EQ(sigaction(SIGALRM, &action, &before), 0);
    const itimerval often{{0, 200}, {0, 200}}, never{};
    ASSERT_EQ(setitimer(ITIMER_REAL, &often, nullptr), 0);
    everything_at_once(false, kSteps / 4);
    {
        // Who waits without limit is woken by nothing but what it waits for.
        Rig rig({.shape = kShape, .held = true});
        const routecap_request request = rig.open();
        rig.step({{request, {1, 0, 4}}});
        const RoutingPtr routing(rig.finish(request, 4));
        EXPECT_STATUS(ROUTECAP_OK, routecap_routing_wait(routing.get(), -1));
    }
    setitimer(ITIMER_REAL, &never, nullptr);
    sigaction(SIGALRM, &before, nullptr);
    EXPECT_GT(signals, 10u);
}

// Two capturers share nothing: one goes while the other is in the middle of everything.
TEST(Limits, capturers_come_and_go_beside_one_that_stays) {
    Rig rig({.shape = kShape, .slots = 8, .flags = ROUTECAP_CONFIG_LOAD});
    Sequences sequences(rig, 4);
    Threads threads;
    threads.repeat([&](std::mt19937_64 &random) { call_anything(rig, sequences, random); });
    threads.repeat([&](std::mt19937_64 &) {
        Rig other({.shape = kShape});
        const routecap_request request = other.open();
        other.land(other.step({{request, {7, 0, 5}}}));
        other.expect(request, 0, routed_rows(kShape, 7, 0, 5));
    });
    issue_steps(rig, sequences, threads, kSteps / 4);
}

// The documented thread rules at their limits: one thread issues, all others do whatever they like
// meanwhile. Meant for ThreadSanitizer, and checked for every id without it.
#include "crowd.h"

#include <rig.h>

#include <atomic>
#include <mutex>
#include <random>
#include <thread>

using namespace rig;

namespace {

const Shape kShape{.layers = 5, .k = 2, .experts = 64, .rows = 64};

// Reads what has landed of a request of sequence `seed`, in a random way; every row must be there
// and right.
void read_landed(const Rig &rig, routecap_request request, uint64_t seed, std::mt19937_64 &random) {
    const uint64_t first = random() % 40;
    const int32_t mode = random() % 2 == 0 ? ROUTECAP_EXTRACT_SHARE : ROUTECAP_EXTRACT_COPY;
    routecap_routing *routing = nullptr;
    const int32_t status = routecap_request_extract(rig.capturer(), request, first,
                                                    ROUTECAP_ROWS_LANDED, mode, 0, &routing);
    if (status == ROUTECAP_ERR_OUT_OF_RANGE) return;
    ASSERT_STATUS(ROUTECAP_OK, status);
    const RoutingPtr owner(routing);
    const Rows rows = contents(routing, kShape);
    ASSERT_EQ(rows, routed_rows(kShape, seed, first, first + rows.size()));

    routecap_coverage coverage{};
    coverage.struct_size = sizeof coverage;
    ASSERT_STATUS(ROUTECAP_OK,
                  routecap_request_coverage(rig.capturer(), request, 0, ROUTECAP_ROWS_LANDED,
                                            &coverage, nullptr, 0, 0));
    if (!rows.empty()) {
        ASSERT_GE(coverage.rows, first + rows.size());  // what has landed stays landed
    }
}

const auto kSteps = static_cast<uint64_t>(draws(2000));

}  // namespace

TEST(Threads, readers_while_steps_are_in_flight) {
    Rig rig({.shape = kShape, .slots = 8});
    std::vector<routecap_request> requests;
    for (int i = 0; i < 6; i++) requests.push_back(rig.open());
    Threads threads;
    for (int i = 0; i < 2; i++)
        threads.repeat([&](std::mt19937_64 &random) {
            const uint64_t which = random() % requests.size();
            read_landed(rig, requests[which], which, random);
        });
    threads.repeat([&](std::mt19937_64 &) {
        const routecap_stats s = rig.stats();
        EXPECT_LE(s.rows_delivered, s.rows_issued);
        rig.layer_stats();
        if (s.steps_issued > 0) {
            EXPECT_GE(routecap_step_poll(rig.capturer(), s.steps_issued), 0);
        }
    });
    routecap_step last = 0;
    for (uint64_t p = 0; p < kSteps && !testing::Test::HasFailure(); p++) {
        std::vector<std::pair<routecap_request, Tokens>> batch;
        for (uint64_t i = 0; i < requests.size(); i++) batch.push_back({requests[i], {i, p, 1}});
        last = rig.step(batch);
        if (last > 6) rig.land(last - 6);
    }
    rig.land(last);
    threads.stop();
    for (uint64_t i = 0; i < requests.size(); i++)
        rig.expect(requests[i], 0, routed_rows(kShape, i, 0, kSteps));
}

// Every row comes out exactly once: taken by some thread, or left for the end.
TEST(Threads, takers_share_a_request) {
    Rig rig({.shape = kShape, .slots = 8});
    const routecap_request request = rig.open();
    std::mutex mutex;
    std::vector<Row> taken(kSteps * 3);
    const auto note = [&](const routecap_routing *routing) {
        const routecap_view view = view_of(routing);
        const Rows rows = contents(routing, kShape);
        std::lock_guard lock(mutex);
        for (uint64_t r = 0; r < view.rows; r++) {
            if (!rows[r][0]) continue;
            ASSERT_TRUE(taken[view.first + r].empty())
                << "row " << view.first + r << " came out twice";
            taken[view.first + r] = rows[r];
        }
    };
    Threads threads;
    for (int i = 0; i < 3; i++)
        threads.repeat([&](std::mt19937_64 &random) {
            const uint64_t first = random() % (kSteps * 3), rows = random() % 20;
            routecap_routing *routing = nullptr;
            const int32_t status = routecap_request_extract(rig.capturer(), request, first, rows,
                                                            ROUTECAP_EXTRACT_TAKE, 0, &routing);
            if (status < 0) {
                ASSERT_TRUE(status == ROUTECAP_ERR_NOT_READY || status == ROUTECAP_ERR_OUT_OF_RANGE)
                    << routecap_last_error();
                return;
            }
            note(RoutingPtr(routing).get());
        });
    routecap_step last = 0;
    for (uint64_t p = 0; p < kSteps; p++) {
        last = rig.step({{request, {1, p * 3, 3}}});
        if (last > 6) rig.land(last - 6);
    }
    rig.land(last);
    threads.stop();
    const RoutingPtr rest(rig.finish(request, kSteps * 3));
    EXPECT_GE(routecap_routing_wait(rest.get(), -1), 0);
    note(rest.get());
    EXPECT_EQ(taken, routed_rows(kShape, 1, 0, kSteps * 3));
}

// Requests begin, fork, are cut and end on other threads than the one that issues. Whatever is read
// is right, and no row is missing, lost or refused.
TEST(Threads, requests_come_and_go) {
    Rig rig({.shape = kShape, .slots = 8, .budget_bytes = 8 << 20});
    struct Sequence {
        std::mutex mutex;  // makes handle and seed one
        routecap_request request = 0;
        uint64_t seed = 0;
        uint64_t position = 0;
    };
    std::vector<std::unique_ptr<Sequence>> sequences;
    for (uint64_t i = 0; i < 6; i++) {
        sequences.push_back(std::make_unique<Sequence>());
        sequences.back()->request = rig.open();
        sequences.back()->seed = i;
    }
    std::atomic<uint64_t> seeds{100};
    Threads threads;
    for (int i = 0; i < 2; i++)
        threads.repeat([&](std::mt19937_64 &random) {
            Sequence &s = *sequences[random() % sequences.size()];
            std::unique_lock lock(s.mutex);
            const routecap_request request = s.request;
            const uint64_t seed = s.seed;
            switch (random() % 5) {
                case 0: {  // ends; another sequence takes its place
                    s.request = rig.open();
                    s.seed = seeds++;
                    s.position = 0;
                    lock.unlock();
                    if (random() % 2 == 0) {
                        rig.close(request);
                        return;
                    }
                    const RoutingPtr routing(rig.finish(request, ROUTECAP_ROWS_ALL));
                    ASSERT_GE(routecap_routing_wait(routing.get(), -1), 0);
                    const Rows rows = contents(routing.get(), kShape);
                    for (uint64_t p = 0; p < rows.size(); p++)
                        if (rows[p][0]) {
                            ASSERT_EQ(rows[p], routed_row(kShape, seed, p));
                        }
                    break;
                }
                case 1:
                    s.position = std::min<uint64_t>(s.position, random() % 30);
                    ASSERT_STATUS(ROUTECAP_OK,
                                  routecap_request_truncate(rig.capturer(), request, s.position));
                    break;
                case 2: {
                    lock.unlock();
                    routecap_request child = 0;
                    const int32_t status =
                        routecap_request_fork(rig.capturer(), request, ROUTECAP_ROWS_ALL, &child);
                    if (status == ROUTECAP_OK) rig.close(child);
                    break;
                }
                default: {
                    lock.unlock();
                    routecap_routing *routing = nullptr;
                    const int32_t status =
                        routecap_request_extract(rig.capturer(), request, 0, ROUTECAP_ROWS_LANDED,
                                                 ROUTECAP_EXTRACT_SHARE, 0, &routing);
                    if (status < 0) {
                        ASSERT_TRUE(status == ROUTECAP_ERR_UNKNOWN_REQUEST)
                            << routecap_last_error();
                        return;
                    }
                    const RoutingPtr owner(routing);
                    const Rows rows = contents(routing, kShape);
                    for (uint64_t p = 0; p < rows.size(); p++)
                        if (rows[p][0]) {
                            ASSERT_EQ(rows[p], routed_row(kShape, seed, p));
                        }
                    break;
                }
            }
        });
    routecap_step last = 0;
    for (uint64_t step = 0; step < kSteps && !testing::Test::HasFailure(); step++) {
        std::vector<std::pair<routecap_request, Tokens>> batch;
        // The engine and the scheduler agree on who is running.
        std::vector<std::unique_lock<std::mutex>> locks;
        for (auto &s : sequences) {
            locks.emplace_back(s->mutex);
            batch.push_back({s->request, {s->seed, s->position, 2}});
            s->position += 2;
        }
        last = rig.step(batch);
        locks.clear();
        if (last > 6) rig.land(last - 6);
    }
    rig.land(last);
    threads.stop();
    for (auto &s : sequences) rig.close(s->request);
    EXPECT_EQ(rig.bytes_in_use(), 0u);
    const routecap_stats s = rig.stats();
    EXPECT_EQ(s.rows_issued, kSteps * 12);
    EXPECT_EQ(s.rows_missing + s.rows_lost + s.rows_refused + s.rows_skipped, 0u);
}

// Issue and close race: a span of a request that is closed meanwhile is filed or skipped, never
// another's.
TEST(Threads, close_without_telling_the_engine) {
    Rig rig({.shape = kShape, .slots = 8});
    std::vector<std::atomic<routecap_request>> handles(8);
    for (auto &h : handles) h = rig.open();
    Threads threads;
    threads.repeat([&](std::mt19937_64 &random) {
        auto &h = handles[random() % handles.size()];
        const routecap_request old = h.exchange(rig.open());
        rig.close(old);
        std::this_thread::sleep_for(std::chrono::microseconds(20));
    });
    routecap_step last = 0;
    for (uint64_t step = 0; step < kSteps; step++) {
        std::vector<routecap_span> spans;
        for (uint32_t i = 0; i < handles.size(); i++)
            spans.push_back(Rig::span(handles[i], step, i, 1));
        rig.run({{1, 0, 8}});
        ASSERT_GE(routecap_step_issue(rig.capturer(), spans.data(), sizeof spans[0], spans.size(),
                                      nullptr, nullptr, &last, rig.stream()),
                  0);
        if (last > 6) rig.land(last - 6);
    }
    threads.stop();
    for (auto &h : handles) rig.close(h);
    rig.land(last);
    EXPECT_EQ(rig.bytes_in_use(), 0u);
    const routecap_stats s = rig.stats();
    EXPECT_EQ(s.rows_issued + s.rows_skipped, kSteps * handles.size());
}

TEST(Threads, a_routing_on_many_threads) {
    auto rig = std::make_unique<Rig>(Options{.shape = kShape});
    const routecap_request request = rig->open();
    for (uint64_t p = 0; p < 640; p += 64) rig->land(rig->step({{request, {1, p, 64}}}));
    routecap_routing *shared = rig->finish(request, 640);
    std::atomic<int> rounds = 0;
    const auto wait_for_rounds = [&](int more) {
        for (const int from = rounds; rounds < from + more;) std::this_thread::yield();
    };
    Threads threads;
    for (int i = 0; i < 3; i++)
        threads.repeat([&](std::mt19937_64 &random) {
            rounds++;
            ASSERT_STATUS(ROUTECAP_OK, routecap_routing_wait(shared, -1));
            ASSERT_STATUS(ROUTECAP_OK, routecap_routing_retain(shared));
            const RoutingPtr mine(shared);
            const uint64_t first = random() % 600, rows = random() % 40;
            routecap_routing *slice = nullptr;
            ASSERT_STATUS(ROUTECAP_OK, routecap_routing_slice(shared, first, rows, &slice));
            ASSERT_EQ(contents(RoutingPtr(slice).get(), kShape),
                      routed_rows(kShape, 1, first, first + rows));
            view_of(shared);
            routecap_routing *merged = nullptr;
            ASSERT_STATUS(ROUTECAP_OK, routecap_routing_merge(&shared, 1, 0, &merged));
            routecap_routing_free(merged);
        });
    wait_for_rounds(30);
    rig.reset();  // it outlives its capturer
    wait_for_rounds(30);
    threads.stop();
    expect_routing(shared, kShape, 0, routed_rows(kShape, 1, 0, 640));
    routecap_routing_free(shared);
}

// Steps are issued before their rows are there. Two threads hand them over, in any order, and a
// third reads; requests are truncated and finished meanwhile.
TEST(Threads, rows_arrive_on_other_threads) {
    Rig rig({.shape = kShape, .slots = 8, .flags = ROUTECAP_CONFIG_EXTERNAL_SINK});
    if (on_cuda()) GTEST_SKIP() << "rows arrive later on the host backend alone";
    struct Coming {
        routecap_step step;
        std::vector<int16_t> ids;  // [rows, layers, k]
    };
    std::mutex mutex;
    std::vector<Coming> coming;
    const auto hand_over = [&](std::mt19937_64 &random) {
        Coming one;
        {
            const std::lock_guard lock(mutex);
            if (coming.empty()) return std::this_thread::yield();
            std::swap(coming[random() % coming.size()], coming.back());
            one = std::move(coming.back());
            coming.pop_back();
        }
        routecap_sink rows{};
        rows.struct_size = sizeof rows;
        rows.dtype = ROUTECAP_DTYPE_I16;
        rows.ids = one.ids.data();
        rows.k = kShape.k;
        rows.row_stride = kShape.layers * kShape.k;
        rows.layer_stride = kShape.k;
        rows.rows = static_cast<uint32_t>(one.ids.size()) / (kShape.layers * kShape.k);
        ASSERT_STATUS(ROUTECAP_OK, routecap_step_arrive(rig.capturer(), one.step, &rows));
    };
    const routecap_request stays = rig.open();
    Threads threads;
    for (int i = 0; i < 2; i++) threads.repeat(hand_over);
    threads.repeat([&](std::mt19937_64 &random) { read_landed(rig, stays, 0, random); });

    routecap_issue_options options{};
    options.struct_size = sizeof options;
    options.snapshot = ROUTECAP_SNAPSHOT_LATER;
    routecap_request ends = 0;
    std::vector<std::pair<RoutingPtr, uint64_t>> finished;  // with the request's seed
    for (uint64_t p = 0; p < kSteps && !testing::Test::HasFailure(); p++) {
        const uint64_t seed = 1 + p / 20, at = p % 20;
        if (at == 0) ends = rig.open();
        if (at == 12) {
            ASSERT_STATUS(ROUTECAP_OK, routecap_request_truncate(rig.capturer(), ends, 10));
        }
        // The two that were cut are computed again, and are others.
        const uint64_t position = at < 12 ? at : at - 2, twin = at < 12 ? seed : kSteps + seed;
        Coming one;
        for (const auto &[s, q] : {std::pair<uint64_t, uint64_t>(0, p), {twin, position}})
            for (uint32_t layer = 0; layer < kShape.layers; layer++)
                for (const int64_t id : routed(kShape, s, q, layer))
                    one.ids.push_back(static_cast<int16_t>(id));
        if (p >= 8) rig.land(p - 7);  // which are tickets, too: so none is lost
        one.step = rig.issue({rig.span(stays, p, 0, 1), rig.span(ends, position, 1, 1)},
                             ROUTECAP_OK, nullptr, &options);
        ASSERT_EQ(p + 1, one.step);
        {
            const std::lock_guard lock(mutex);
            coming.push_back(std::move(one));
        }
        if (at == 19) {
            routecap_routing *routing = nullptr;
            ASSERT_STATUS(ROUTECAP_OK, routecap_request_finish(rig.capturer(), ends, 18, &routing));
            finished.emplace_back(RoutingPtr(routing), seed);
        }
    }
    rig.land(kSteps);
    threads.stop();
    rig.expect(stays, 0, routed_rows(kShape, 0, 0, kSteps));
    for (const auto &[routing, seed] : finished)
        ASSERT_EQ(routed_rows(kShape, seed, 0, 10) + routed_rows(kShape, kSteps + seed, 10, 18),
                  contents(routing.get(), kShape));
}

// With two passes in flight behind the one that is settled, some accept always waits for a step,
// and no row could be read. Rows can be as soon as the step has landed that their accept waited
// for, whatever waits behind it.
TEST(Threads, rows_that_are_settled_are_read_at_once_while_later_accepts_wait) {
    Rig rig({.shape = kShape, .slots = 6});
    const routecap_request r = rig.open();
    std::vector<routecap_step> steps;
    for (uint64_t p = 0; p < 200; p++) {
        steps.push_back(rig.step({{r, {1, 2 * p, 2}}}, ROUTECAP_SPAN_SPECULATIVE));
        if (p < 2) continue;
        ASSERT_STATUS(ROUTECAP_OK,
                      routecap_request_accept(rig.capturer(), r, steps[p - 2], nullptr, 2));
        rig.land(steps[p - 1]);  // for which the accept before waited
        const uint64_t settled = 2 * (p - 2);
        const RoutingPtr routing(rig.extract(r, 0, settled, ROUTECAP_OK));
        ASSERT_EQ(routed_rows(kShape, 1, 0, settled), contents(routing.get(), kShape));
    }
}

// Somebody waits for a routing while its capturer is destroyed.
TEST(Threads, wait_during_destroy) {
    for (int i = 0; i < 50; i++) {
        auto rig = std::make_unique<Rig>(Options{.shape = kShape, .held = i % 2 == 0});
        const routecap_request request = rig->open();
        rig->step({{request, {1, 0, 4}}});
        const RoutingPtr routing(rig->finish(request, 4));
        std::thread waiter(
            [&] { EXPECT_STATUS(ROUTECAP_OK, routecap_routing_wait(routing.get(), -1)); });
        rig.reset();
        waiter.join();
    }
}

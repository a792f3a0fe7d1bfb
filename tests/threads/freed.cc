// What is freed can be used at once: a budget of exactly what is needed, over and over. Whoever
// frees may be the engine's thread or another, the worker may have had time for it or not, and the
// machine may be busy.
#include "crowd.h"

#include <rig.h>

#include <algorithm>
#include <memory>
#include <ostream>
#include <thread>
#include <vector>

using namespace rig;

namespace {

const Shape kSmall{.layers = 2, .k = 2, .experts = 64, .rows = 1024};
const int kTurns = draws(300);

struct Case {
    bool manual, other_thread, busy;
    friend std::ostream &operator<<(std::ostream &out, const Case &c) {
        return out << (c.manual ? "manual_progress" : "a_worker")
                   << (c.other_thread ? "_another_thread" : "_the_same_thread")
                   << (c.busy ? "_a_busy_machine" : "_an_idle_machine");
    }
};

class Freed : public testing::TestWithParam<Case> {
protected:
    // Of a budget of so many pages; each turn issues two.
    void start(uint64_t pages) {
        routecap_config config;
        ASSERT_STATUS(ROUTECAP_OK, routecap_config_init(&config, sizeof config));
        config.backend = backend();
        config.layers = kSmall.layers, config.k = kSmall.k, config.experts = kSmall.experts,
        config.rows = kSmall.rows;
        memory.struct_size = sizeof memory;
        ASSERT_STATUS(ROUTECAP_OK, routecap_config_memory(&config, &memory));
        rows = 2 * memory.page_rows;
        ASSERT_LE(rows, kSmall.rows);
        rig = std::make_unique<Rig>(Options{
            .shape = kSmall, .budget_bytes = pages * memory.page_bytes, .held = GetParam().manual});
        if (GetParam().busy)
            for (unsigned t = 0; t < 2 * std::max(2u, std::thread::hardware_concurrency()); t++)
                crowd.repeat([](std::mt19937_64 &random) {
                    for (int i = 0; i < 10000; i++) random();
                });
    }
    // Two pages of rows of a request, which land.
    void fill(routecap_request r, int turn) {
        if (turn == 0)
            rig->run({{1, 0, rows}});
        else
            rig->forward([&] {  // which rows they are is nothing to the budget
                EXPECT_STATUS(ROUTECAP_OK, rig->begin(rows));
                EXPECT_STATUS(ROUTECAP_OK, rig->snapshot());
            });
        std::vector<int32_t> status;
        const routecap_step step = rig->issue({Rig::span(r, 0, 0, rows)}, ROUTECAP_OK, &status);
        ASSERT_STATUS(ROUTECAP_OK, status[0]) << "in turn " << turn;
        ASSERT_STATUS(ROUTECAP_OK, routecap_step_finalize(rig->capturer(), step, -1, nullptr));
    }
    template <class F>
    void on_a_thread(F f) {
        if (GetParam().other_thread)
            std::thread(f).join();
        else
            f();
    }
    template <class Turn>
    void turns(Turn turn) {
        for (int i = 0; i < kTurns && !HasFailure(); i++) turn(i);
        EXPECT_EQ(rig->stats().rows_refused, 0u);
        EXPECT_EQ(rig->stats().rows_issued, static_cast<uint64_t>(kTurns) * rows);
    }

    routecap_memory memory{};
    uint32_t rows = 0;
    std::unique_ptr<Rig> rig;
    Threads crowd;
};

}  // namespace

TEST_P(Freed, by_close) {
    start(2);
    turns([&](int turn) {
        const routecap_request r = rig->open();
        fill(r, turn);
        on_a_thread([&] { rig->close(r); });
    });
}

TEST_P(Freed, by_truncate) {
    start(2);
    const routecap_request r = rig->open();
    turns([&](int turn) {
        fill(r, turn);
        on_a_thread(
            [&] { EXPECT_STATUS(ROUTECAP_OK, routecap_request_truncate(rig->capturer(), r, 0)); });
    });
}

TEST_P(Freed, by_take_and_free) {
    start(2);
    const routecap_request r = rig->open();
    turns([&](int turn) {
        fill(r, turn);
        on_a_thread([&] {
            RoutingPtr(rig->extract(r, 0, rows, turn == 0 ? ROUTECAP_OK : ROUTECAP_NOT_CAPTURED,
                                    ROUTECAP_EXTRACT_TAKE));
        });
    });
}

TEST_P(Freed, by_finish_and_free) {
    start(2);
    turns([&](int turn) {
        const routecap_request r = rig->open();
        fill(r, turn);
        on_a_thread([&] { RoutingPtr(rig->finish(r, rows)); });
    });
}

// The routing keeps one page of two until the next step was issued.
TEST_P(Freed, by_finish_with_fewer_rows) {
    start(3);
    RoutingPtr kept;
    turns([&](int turn) {
        const routecap_request r = rig->open();
        fill(r, turn);
        kept.reset();
        on_a_thread([&] { kept.reset(rig->finish(r, rows / 2)); });
    });
}

// Of drafts too, and of rows that were cut while they were in flight.
TEST_P(Freed, by_close_of_drafts) {
    start(3);  // what drafts take besides is less than a page
    turns([&](int turn) {
        const routecap_request r = rig->open();
        std::vector<int32_t> status;
        rig->forward([&] {
            EXPECT_STATUS(ROUTECAP_OK, rig->begin(rows));
            EXPECT_STATUS(ROUTECAP_OK, rig->snapshot());
        });
        const routecap_step step =
            rig->issue({Rig::span(r, 0, 0, rows - 64),
                        Rig::span(r, rows - 64, rows - 64, 64, ROUTECAP_SPAN_SPECULATIVE)},
                       ROUTECAP_OK, &status);
        ASSERT_EQ(status, (std::vector<int32_t>{ROUTECAP_OK, ROUTECAP_OK})) << "in turn " << turn;
        if (turn % 2 == 0)
            on_a_thread([&] {
                EXPECT_STATUS(ROUTECAP_OK, routecap_request_truncate(rig->capturer(), r, 0));
            });
        ASSERT_STATUS(ROUTECAP_OK, routecap_step_finalize(rig->capturer(), step, -1, nullptr));
        on_a_thread([&] { rig->close(r); });
    });
}

INSTANTIATE_TEST_SUITE_P(With, Freed,
                         testing::Values(Case{false, false, false}, Case{false, false, true},
                                         Case{false, true, false}, Case{false, true, true},
                                         Case{true, false, false}, Case{true, false, true},
                                         Case{true, true, false}, Case{true, true, true}),
                         testing::PrintToStringParamName());

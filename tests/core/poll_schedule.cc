// When the worker looks for a step: seldom, and never much later than the step has landed.
#include "capture/poll_schedule.h"

#include <gtest/gtest.h>

#include <chrono>

namespace {

using routecap::PollSchedule;
using std::chrono::microseconds;
using Time = PollSchedule::Clock::time_point;

// A schedule that has seen eight steps of so long, each issued when the one before had landed.
struct Steady {
    PollSchedule schedule;
    Time now = Time{} + std::chrono::seconds(1);

    explicit Steady(microseconds step) {
        schedule.landed(now, now, false);
        for (int i = 0; i < 8; i++) schedule.landed(now, now + step, false), now += step;
    }
    // Looks at a step that is issued now and lands after `took`, until it is due: how often, and
    // how long after it landed, or before.
    struct Looks {
        int number;
        PollSchedule::Clock::duration late;
    };
    Looks look(microseconds took, bool awaited) const {
        Looks looks{0, {}};
        for (Time at = now; at < now + took; looks.number++) {
            const Time next = schedule.next_poll(now, at, awaited);
            if (next <= at) break;  // due: from here on it looks again and again
            at = next;
            looks.late = at - (now + took);
        }
        return looks;
    }
};

TEST(poll_schedule, a_step_like_those_before_is_looked_for_a_few_times_on_its_way) {
    const Steady::Looks looks = Steady(microseconds(5000)).look(microseconds(5000), false);
    EXPECT_LE(looks.number, 4);
    EXPECT_EQ(looks.late, microseconds(-100)) << "the last look is shortly before";
}

TEST(poll_schedule, a_shorter_step_is_found_within_its_time_again) {
    const Steady steady(microseconds(50000));
    for (int took = 100; took < 49000; took += 37) {
        const auto late = steady.look(microseconds(took), false).late;
        EXPECT_LE(late, std::max(microseconds(1000), microseconds(took))) << took << " us";
    }
}

TEST(poll_schedule, a_shorter_step_that_somebody_waits_for_is_found_within_an_eighth) {
    const Steady steady(microseconds(50000));
    for (int took = 100; took < 49000; took += 37) {
        const auto late = steady.look(microseconds(took), true).late;
        EXPECT_LE(late, std::max(microseconds(200), microseconds(took / 8))) << took << " us";
    }
}

TEST(poll_schedule, nothing_is_known_of_the_first_steps) {
    const Time now{};
    EXPECT_LE(PollSchedule().next_poll(now, now, false), now) << "so they are looked for at once";
}

}  // namespace

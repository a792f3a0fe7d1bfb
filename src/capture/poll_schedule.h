// When the worker polls for the next step to have landed: learned from the steps before, so that it
// sleeps until shortly before and does not poll in vain.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>

namespace routecap {

class PollSchedule {
public:
    using Clock = std::chrono::steady_clock;

    // A step that was issued then was found to have landed. `late` if nobody had looked at it
    // before: it may have landed earlier.
    void landed(Clock::time_point issued, Clock::time_point now, bool late) {
        Clock::duration took = now - std::max(issued, last_);
        if (late) took -= took / 2;
        last_ = now;
        took_[steps_++ % took_.size()] = took;
    }
    // When to poll next for a step that was issued then: 1/64 before the shortest that any of the
    // last steps took, and 100 us at least, because a thread that has slept does not wake in no
    // time. The step may be of a shorter kind than those. It is then found late by 200 us, or by an
    // eighth of its time, at most; where nobody waits, by 1 ms or by all of its time.
    Clock::time_point next_poll(Clock::time_point issued, Clock::time_point now,
                                bool awaited) const {
        using std::chrono::microseconds;
        constexpr microseconds kEarly{100};
        const Clock::time_point began = std::max(issued, last_);
        if (steps_ < took_.size()) return began;
        const Clock::duration shortest = *std::min_element(took_.begin(), took_.end());
        const Clock::time_point expected =
            began + shortest - std::max<Clock::duration>(shortest / 64, kEarly);
        const Clock::duration age = now - began;
        const Clock::duration pause = awaited
                                          ? std::max<Clock::duration>(age / 8, microseconds(200))
                                          : std::max<Clock::duration>(age, microseconds(1000));
        return std::min(expected, now + pause);
    }

private:
    // Since the step was issued, or since the one before had landed.
    std::array<Clock::duration, 8> took_{};
    uint64_t steps_ = 0;
    Clock::time_point last_{};
};

}  // namespace routecap

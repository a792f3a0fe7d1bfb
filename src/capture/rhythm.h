// When steps land: learned from those before, so that the worker sleeps until shortly before the
// next and does not look in vain.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>

namespace routecap {

class Rhythm {
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
    // When to look next for a step that was issued then: 1/32 before the shortest that any of the
    // last steps took, and 150 us at least, because a thread that has slept does not wake in no
    // time. The step may be of a shorter kind than those: it is found late by 200 us, or by an
    // eighth of its time, at most.
    Clock::time_point next_look(Clock::time_point issued, Clock::time_point now) const {
        constexpr std::chrono::microseconds kEarly{150}, kShortest{200};
        const Clock::time_point began = std::max(issued, last_);
        if (steps_ < took_.size()) return began;
        const Clock::duration shortest = *std::min_element(took_.begin(), took_.end());
        const Clock::time_point expected =
            began + shortest - std::max<Clock::duration>(shortest / 32, kEarly);
        return std::min(expected, now + std::max<Clock::duration>((now - began) / 8, kShortest));
    }

private:
    // Since the step was issued, or since the one before had landed.
    std::array<Clock::duration, 8> took_{};
    uint64_t steps_ = 0;
    Clock::time_point last_{};
};

}  // namespace routecap

// When steps land: learned from those before, so that the worker sleeps until shortly before the next and does not look in vain.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>

namespace routecap {

class Rhythm {
public:
    using Clock = std::chrono::steady_clock;

    // A step that was issued then was found to have landed. `late` if nobody had looked at it before: it may have landed earlier.
    void landed(Clock::time_point issued, Clock::time_point now, bool late) {
        Clock::duration took = now - std::max(issued, last_);
        if (late) took -= took / 2;
        last_ = now;
        took_[steps_++ % took_.size()] = took;
    }
    // When to look first for a step that was issued then: an eighth before the shortest that any of the last steps took, and 300 us at least, because
    // a thread that has slept does not wake in no time.
    Clock::time_point first_look(Clock::time_point issued) const {
        if (steps_ < took_.size()) return std::max(issued, last_);
        const Clock::duration shortest = *std::min_element(took_.begin(), took_.end());
        return std::max(issued, last_) + shortest - std::max<Clock::duration>(shortest / 8, std::chrono::microseconds(300));
    }

private:
    std::array<Clock::duration, 8> took_{};  // since the step was issued, or since the one before had landed
    uint64_t steps_ = 0;
    Clock::time_point last_{};
};

}  // namespace routecap

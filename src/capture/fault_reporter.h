// What an operator should hear of a capturer while it runs. Whoever files looks at the counters
// after each round, so that the engine's thread does nothing for it; of each kind of fault there is
// one line a second at most, with how often it happened since the last.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>

#include "base/counters.h"
#include "base/log.h"
#include "base/shape.h"
#include "rows/pages.h"

namespace routecap {

// All of it belongs to whoever has the filing lock.
class FaultReporter {
public:
    using Clock = std::chrono::steady_clock;

    FaultReporter(uint64_t number, uint32_t most_in_flight, const Shape &shape,
                  const Counters &counters, const PagePool &pool)
        : number_(number),
          slots_(most_in_flight),
          shape_(shape),
          counters_(counters),
          pool_(pool) {}

    // Of the step that was filed: its copy failed; or the device saw a slip of checked mode in it;
    // or none of its rows has a valid cell in so many layers, of which this is the first, because
    // of this slip or, with ROUTECAP_OK, because these were not written; or so many of its cells
    // have ids that cannot be, in this layer among others.
    void failed(const char *why);
    void slipped(uint64_t step, int32_t slip);
    void silent(uint64_t step, uint32_t layers, uint32_t first, int32_t slip);
    void bad_ids(uint64_t out_of_range, uint64_t duplicate, uint32_t layer);
    // A round was made that filed so many steps.
    void round(uint32_t filed);

    // Adds lines about what has happened since they were told last. What comes less than a second
    // after a line of its kind waits for a later call. `oldest` is the oldest step in flight (0:
    // there is none). At the capturer's end everything is told.
    void report(Clock::time_point now, uint64_t oldest, Clock::time_point issued, Lines &lines,
                bool end = false);

private:
    enum Kind {
        kLost,
        kFailed,
        kSlipped,
        kSilent,
        kOutOfRange,
        kDuplicate,
        kConflicting,
        kDropped,
        kMismatched,
        kRefused,
        kUnplaced,
        kSkipped,
        kBehind,
        kKinds
    };
    // What has happened in all, what was told of it, and when.
    struct Event {
        uint64_t times = 0, told = 0;
        Clock::time_point when{};
        char detail[200] = "";  // of the last
    };
    [[gnu::format(printf, 4, 5)]] void note(Kind kind, uint64_t times, const char *detail, ...);

    const uint64_t number_;
    const uint32_t slots_;  // of the configuration
    const Shape &shape_;
    const Counters &counters_;
    const PagePool &pool_;
    std::array<Event, kKinds> events_{};
    // The oldest step in flight that was told to be late, and how late.
    uint64_t late_step_ = 0;
    Clock::duration late_{};
};

}  // namespace routecap

// What an operator should hear of a capturer while it runs. Whoever files looks at the counters
// after each round, so that the engine's thread does nothing for it; of each kind of fault there is
// one line a second at most, with how often it happened since the last.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>

#include "base/counters.h"
#include "base/log.h"
#include "rows/pages.h"

namespace routecap {

// All of it belongs to whoever has the turn to file.
class Watch {
public:
    using Clock = std::chrono::steady_clock;

    Watch(uint64_t number, uint32_t slots, const Counters &counters, const PagePool &pool)
        : number_(number), slots_(slots), counters_(counters), pool_(pool) {}

    // A step was filed. Its copy failed.
    void failed(const char *why);
    // The device saw a slip of checked mode in it.
    void slipped(uint64_t step, int32_t slip);
    // None of its rows has a valid cell in so many layers, of which this is the first, because of
    // this slip or, with ROUTECAP_OK, because these were not written; or so many of its cells have
    // ids that cannot be, in this layer among others.
    void silent(uint64_t step, uint32_t layers, uint32_t first, int32_t slip);
    void bad_ids(uint64_t out_of_range, uint64_t duplicate, uint32_t layer);
    // A round was made that filed so many steps.
    void round(uint32_t filed);

    // Adds lines about what has happened since they were told last. What comes less than a second
    // after a line of its kind waits for a later look. `oldest` is the oldest step in flight (0:
    // there is none). At the capturer's end everything is told.
    void look(Clock::time_point now, uint64_t oldest, Clock::time_point issued, Lines &lines,
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
    struct Told {
        uint64_t times = 0;
        Clock::time_point when{};
    };
    uint64_t fresh(Kind kind, uint64_t times);

    const uint64_t number_;
    const uint32_t slots_;
    const Counters &counters_;
    const PagePool &pool_;
    std::array<Told, kKinds> told_{};
    Clock::time_point now_{};  // of the look that is being made
    bool end_ = false;

    // What the counters do not say.
    uint64_t failures_ = 0, slips_ = 0, silences_ = 0, out_of_range_ = 0, duplicates_ = 0,
             behind_ = 0;
    char failure_[200] = "";
    uint64_t slip_step_ = 0, silent_step_ = 0;
    int32_t slip_ = 0, silencing_slip_ = 0;
    uint32_t silent_layers_ = 0, first_silent_ = 0, bad_layer_ = 0;
    // The oldest step in flight that was told to be late, and how late.
    uint64_t late_step_ = 0;
    Clock::duration late_{};
};

}  // namespace routecap

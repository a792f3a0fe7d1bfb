#include "capture/fault_reporter.h"

#include <cstdarg>
#include <cstdio>

#include "base/status.h"
#include "capture/forward_check.h"

namespace routecap {
namespace {

constexpr std::chrono::seconds kPause{1};      // between two lines of one kind
constexpr std::chrono::seconds kPatience{10};  // with a step in flight

// What happened, by FaultReporter::Kind.
constexpr const char *kTexts[] = {
    "steps lost",
    "steps lost",
    "slips",
    "steps with silent layers",
    "cells with an id out of range",
    "cells with one id twice",
    "cells recorded twice in one step",
    "rows recorded outside the rows begun",
    "rows issued again with other ids",
    "rows refused for memory",
    "rows with positions outside the bounds of their spans",
    "rows of requests that are not open",
    "times the worker found as many steps landed as may be in flight"};

}  // namespace

// `times` is how often it has happened in all.
void FaultReporter::note(Kind kind, uint64_t times, const char *detail, ...) {
    Event &event = events_[kind];
    if (event.times == times) return;
    event.times = times;
    std::va_list arguments;
    va_start(arguments, detail);
    std::vsnprintf(event.detail, sizeof event.detail, detail, arguments);
    va_end(arguments);
}

void FaultReporter::failed(const char *why) {
    note(kFailed, events_[kFailed].times + 1, ": %s", why);
}

void FaultReporter::slipped(uint64_t step, int32_t slip) {
    note(kSlipped, events_[kSlipped].times + 1, ": in the last, step %llu: %s: %s", ull(step),
         status_name(slip), ForwardCheck::text_of(slip));
}

void FaultReporter::silent(uint64_t step, uint32_t layers, uint32_t first, int32_t slip) {
    note(kSilent, events_[kSilent].times + 1,
         ": in the last, step %llu, %u layers from layer %s on had no valid cell%s%s", ull(step),
         layers, shape_.layer_name(first).text, slip != ROUTECAP_OK ? ": " : "",
         slip != ROUTECAP_OK ? ForwardCheck::text_of(slip) : "");
}

void FaultReporter::bad_ids(uint64_t out_of_range, uint64_t duplicate, uint32_t layer) {
    const LayerName name = shape_.layer_name(layer);
    note(kOutOfRange, events_[kOutOfRange].times + out_of_range, ": in layer %s among others",
         name.text);
    note(kDuplicate, events_[kDuplicate].times + duplicate, ": in layer %s among others",
         name.text);
}

void FaultReporter::round(uint32_t filed) {
    if (slots_ > 1 && filed >= slots_)
        note(kBehind, events_[kBehind].times + 1, ": slots is %u", slots_);
}

void FaultReporter::report(Clock::time_point now, uint64_t oldest, Clock::time_point issued,
                           Lines &lines, bool end) {
    note(kLost, counters_.steps_lost - events_[kFailed].times,
         ": too many were in flight; slots is %u", slots_);
    note(kConflicting, counters_.cells_conflicting, "%s", "");
    note(kDropped, counters_.rows_dropped, "%s", "");
    note(kMismatched, counters_.rows_mismatched, "%s", "");
    note(kRefused, counters_.rows_refused, ": %llu bytes of budget_bytes %llu are in use",
         ull(pool_.used()), ull(pool_.budget()));
    note(kUnplaced, counters_.rows_unplaced, "%s", "");
    note(kSkipped, counters_.rows_skipped, "%s", "");
    for (uint32_t kind = 0; kind < kKinds; kind++) {
        Event &event = events_[kind];
        const bool first = event.when == Clock::time_point{};
        if (event.times == event.told || (!first && !end && now < event.when + kPause)) continue;
        lines.add(kind < kSkipped ? ROUTECAP_LOG_WARNING : ROUTECAP_LOG_INFO,
                  "capturer %llu: %llu %s, %llu in all%s", ull(number_),
                  ull(event.times - event.told), kTexts[kind], ull(event.times), event.detail);
        event.told = event.times, event.when = now;
    }

    if (oldest != late_step_) late_step_ = oldest, late_ = {};
    if (oldest == 0 || end) return;
    const Clock::duration age = now - issued;
    if (age < kPatience || age < 2 * late_) return;
    late_ = age;
    lines.add(
        ROUTECAP_LOG_WARNING,
        "capturer %llu: step %llu was issued %llu s ago and has not landed; %llu steps are in "
        "flight",
        ull(number_), ull(oldest),
        ull(static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(age).count())),
        ull(counters_.steps_issued - counters_.steps_landed));
}

}  // namespace routecap

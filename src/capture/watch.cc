#include "capture/watch.h"

#include <cstdio>

#include "base/status.h"
#include "capture/forward_check.h"

namespace routecap {
namespace {

constexpr std::chrono::seconds kPause{1};      // between two lines of one kind
constexpr std::chrono::seconds kPatience{10};  // with a step in flight

}  // namespace

void Watch::failed(const char *why) {
    failures_++;
    std::snprintf(failure_, sizeof failure_, "%s", why);
}

void Watch::slipped(uint64_t step, int32_t slip) {
    slips_++;
    slip_step_ = step, slip_ = slip;
}

void Watch::silent(uint64_t step, uint32_t layers, uint32_t first, int32_t slip) {
    silences_++;
    silencing_slip_ = slip;
    silent_step_ = step, silent_layers_ = layers, first_silent_ = first;
}

void Watch::bad_ids(uint64_t out_of_range, uint64_t duplicate, uint32_t layer) {
    out_of_range_ += out_of_range, duplicates_ += duplicate;
    bad_layer_ = layer;
}

void Watch::round(uint32_t filed) { behind_ += slots_ > 1 && filed >= slots_; }

// How often it has happened since that was told; 0 if it is not to be told now.
uint64_t Watch::fresh(Kind kind, uint64_t times) {
    Told &told = told_[kind];
    const uint64_t since = times - told.times;
    if (since == 0) return 0;
    const bool first = told.when == Clock::time_point{};
    if (!first && !end_ && now_ < told.when + kPause) return 0;
    told = {times, now_};
    return since;
}

void Watch::look(Clock::time_point now, uint64_t oldest, Clock::time_point issued, Lines &lines,
                 bool end) {
    now_ = now, end_ = end;
    const auto n = ull(number_);
    if (const uint64_t lost = fresh(kLost, counters_.steps_lost - failures_); lost > 0)
        lines.add(ROUTECAP_LOG_WARNING,
                  "capturer %llu: %llu steps lost, %llu in all: no slot was free; slots is %u", n,
                  ull(lost), ull(told_[kLost].times), slots_);
    if (const uint64_t lost = fresh(kFailed, failures_); lost > 0)
        lines.add(ROUTECAP_LOG_WARNING, "capturer %llu: %llu steps lost, %llu in all: %s", n,
                  ull(lost), ull(failures_), failure_);
    if (const uint64_t slips = fresh(kSlipped, slips_); slips > 0)
        lines.add(ROUTECAP_LOG_WARNING, "capturer %llu: %llu slips, the last in step %llu: %s: %s",
                  n, ull(slips), ull(slip_step_), status_name(slip_), ForwardCheck::text_of(slip_));
    if (const uint64_t steps = fresh(kSilent, silences_); steps > 0)
        lines.add(ROUTECAP_LOG_WARNING,
                  "capturer %llu: %llu steps with silent layers, in the last, step %llu, %u layers "
                  "from layer %u on had no valid cell%s%s",
                  n, ull(steps), ull(silent_step_), silent_layers_, first_silent_,
                  silencing_slip_ != ROUTECAP_OK ? ": " : "",
                  silencing_slip_ != ROUTECAP_OK ? ForwardCheck::text_of(silencing_slip_) : "");
    if (const uint64_t cells = fresh(kOutOfRange, out_of_range_); cells > 0)
        lines.add(ROUTECAP_LOG_WARNING,
                  "capturer %llu: %llu cells with an id out of range, in layer %u among others", n,
                  ull(cells), bad_layer_);
    if (const uint64_t cells = fresh(kDuplicate, duplicates_); cells > 0)
        lines.add(ROUTECAP_LOG_WARNING,
                  "capturer %llu: %llu cells with one id twice, in layer %u among others", n,
                  ull(cells), bad_layer_);
    if (const uint64_t cells = fresh(kConflicting, counters_.cells_conflicting); cells > 0)
        lines.add(ROUTECAP_LOG_WARNING, "capturer %llu: %llu cells were recorded twice in one step",
                  n, ull(cells));
    if (const uint64_t rows = fresh(kDropped, counters_.rows_dropped); rows > 0)
        lines.add(ROUTECAP_LOG_WARNING,
                  "capturer %llu: %llu rows were recorded outside the rows begun", n, ull(rows));
    if (const uint64_t rows = fresh(kMismatched, counters_.rows_mismatched); rows > 0)
        lines.add(ROUTECAP_LOG_WARNING, "capturer %llu: %llu rows were issued again with other ids",
                  n, ull(rows));
    if (const uint64_t rows = fresh(kRefused, counters_.rows_refused); rows > 0)
        lines.add(ROUTECAP_LOG_WARNING,
                  "capturer %llu: %llu rows refused for memory, %llu in all: %llu bytes of "
                  "budget_bytes %llu are in use",
                  n, ull(rows), ull(told_[kRefused].times), ull(pool_.used()), ull(pool_.budget()));
    if (const uint64_t rows = fresh(kUnplaced, counters_.rows_unplaced); rows > 0)
        lines.add(ROUTECAP_LOG_WARNING,
                  "capturer %llu: %llu rows had positions outside the bounds of their spans", n,
                  ull(rows));
    if (const uint64_t rows = fresh(kSkipped, counters_.rows_skipped); rows > 0)
        lines.add(ROUTECAP_LOG_INFO, "capturer %llu: %llu rows were of requests that are not open",
                  n, ull(rows));
    if (const uint64_t rounds = fresh(kBehind, behind_); rounds > 0)
        lines.add(ROUTECAP_LOG_INFO,
                  "capturer %llu: the worker fell behind %llu times: all %u slots held steps that "
                  "had landed",
                  n, ull(rounds), slots_);

    if (oldest != late_step_) late_step_ = oldest, late_ = {};
    if (oldest == 0 || end) return;
    const Clock::duration age = now - issued;
    if (age < kPatience || age < 2 * late_) return;
    late_ = age;
    lines.add(
        ROUTECAP_LOG_WARNING,
        "capturer %llu: step %llu was issued %llu s ago and has not landed; %llu steps are in "
        "flight",
        n, ull(oldest),
        ull(static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(age).count())),
        ull(counters_.steps_issued - counters_.steps_landed));
}

}  // namespace routecap

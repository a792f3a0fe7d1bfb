// What the two sides of a request see of each other without a common lock: the four numbers of
// these two classes, and which steps were filed (capture/steps.h).
//
// The engine's side is whoever calls on a request, with the registry's mutex; it reads `applied`
// without it, too. The filing side is whoever files, with the filing lock. A function's name begins
// with the side that may call it.
//
//   number             the engine's side                   the filing side
//   -----------------  ----------------------------------  -----------------------------------
//   SpanCut::cut       lowers it; reads what is in flight  reads it once a span has landed
//   SpanCut::ended     lowers it                           reads it once a span has landed
//   Progress::placed   reads it: the length                raises it; a truncate lowers it
//   Progress::applied  reads it: what still waits          adds one, last, for each operation
//
// Only `applied` orders what is read after it. The others are relaxed:
//
// - A cut that the filing side does not see yet comes later in the log, as a truncate, finish or
//   close. That removes the rows that were filed meanwhile.
// - The engine's side reads `placed` after `applied`, or after Steps::in_flight(), which acquires
//   too: so it sees what applied operations and filed steps placed. What the others may still place
//   is in its own notes (Request::length_now).
#pragma once

#include <atomic>
#include <cstdint>

namespace routecap {

// Where calls have cut a span in flight.
class SpanCut {
public:
    // Rows at and after `end` are late.
    void engine_cuts(uint64_t end) { lower(cut_, end); }
    // Drafts at and after `end` are beyond the end of their request.
    void engine_ends(uint64_t end) { lower(ended_, end); }
    uint64_t engine_cut() const { return cut_.load(std::memory_order_relaxed); }

    uint64_t filing_cut() const { return cut_.load(std::memory_order_relaxed); }
    uint64_t filing_ended() const { return ended_.load(std::memory_order_relaxed); }

private:
    static void lower(std::atomic<uint64_t> &number, uint64_t end) {
        if (end < number.load(std::memory_order_relaxed))
            number.store(end, std::memory_order_relaxed);
    }
    std::atomic<uint64_t> cut_{UINT64_MAX}, ended_{UINT64_MAX};
};

// How far the filing side has come with a request.
class Progress {
public:
    // One past the highest position of a row whose position the host did not know at issue, because
    // the device had it or the row was a draft.
    uint64_t engine_placed() const { return placed_.load(std::memory_order_relaxed); }
    uint64_t engine_applied() const { return applied_.load(std::memory_order_acquire); }
    void engine_prefetches() const { __builtin_prefetch(&applied_); }

    uint64_t filing_placed() const { return placed_.load(std::memory_order_relaxed); }
    void filing_places(uint64_t end) {
        if (end > filing_placed()) placed_.store(end, std::memory_order_relaxed);
    }
    void filing_truncates(uint64_t end) {
        if (end < filing_placed()) placed_.store(end, std::memory_order_relaxed);
    }
    void filing_applies() { applied_.fetch_add(1, std::memory_order_release); }

private:
    std::atomic<uint64_t> placed_{0}, applied_{0};
};

}  // namespace routecap

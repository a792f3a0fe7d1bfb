// What the engine's side must know of a request's operations until the worker has applied them.
// Guarded by the registry's mutex.
//
// A request's operations are numbered in the order of the log, in which they are applied. What is
// noted here of operation n holds while RowStore::applied is less than n. Callers pass that as
// `applied`.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/room.h"

namespace routecap {

class PendingOperations {
public:
    struct Range {
        uint64_t first = 0, end = 0;
    };

    // Notes an operation that adds or changes rows [first, end), and is applied once step `after`
    // was filed. Calls applied() only if another one may be pending.
    template <class Applied>
    void note(uint64_t first, uint64_t end, uint64_t after, Applied applied) {
        count_++;
        after_ = after;
        if (first >= end) return;
        const bool none = pending_until_ == 0 || applied() >= pending_until_;
        pending_rows_.first = none ? first : std::min(pending_rows_.first, first);
        pending_rows_.end = none ? end : std::max(pending_rows_.end, end);
        pending_until_ = count_;
    }
    // The operation noted last cuts rows at and after `rows`.
    void cut(uint64_t rows) { pending_rows_.end = std::min(pending_rows_.end, rows); }

    // How many were handed over, which is the number of the last one; and the step that must be
    // filed before it.
    uint64_t count() const { return count_; }
    uint64_t after() const { return after_; }
    // The rows that operations will add or change.
    Range pending_rows(uint64_t applied) const {
        return applied < pending_until_ ? pending_rows_ : Range{};
    }

private:
    uint64_t count_ = 0, after_ = 0;
    Range pending_rows_;
    uint64_t pending_until_ = 0;
};

// Where these operations cut rows of steps in flight.
class Cuts {
public:
    // Forgets cuts that were applied, and makes room for one more. Throws without memory.
    void make_room(uint64_t applied) {
        std::erase_if(cuts_, [applied](const Cut &cut) { return applied >= cut.until; });
        routecap::make_room(cuts_, cuts_.size() + 1);
    }
    // Operation `number` cuts rows at and after `rows`, of steps up to `step`. There must be room.
    void note(uint64_t rows, uint64_t number, uint64_t step) noexcept {
        cuts_.push_back({rows, number, step});
    }
    // The first row of which the RowStore may still have what was cut.
    uint64_t first(uint64_t applied) const {
        uint64_t first = UINT64_MAX;
        for (const Cut &cut : cuts_)
            if (applied < cut.until) first = std::min(first, cut.rows);
        return first;
    }
    // Where the rows of a step in flight are cut.
    uint64_t of(uint64_t step) const {
        uint64_t first = UINT64_MAX;
        for (const Cut &cut : cuts_)
            if (step <= cut.step) first = std::min(first, cut.rows);
        return first;
    }

private:
    struct Cut {
        uint64_t rows;
        uint64_t until;  // applied operations
        uint64_t step;
    };
    std::vector<Cut> cuts_;
};

// Rows that children or stores are still to get: those before `end`, of steps up to `step`.
struct Wanted {
    uint64_t end = 0, step = 0;
    uint64_t until = 0;  // applied operations

    uint64_t end_at(uint64_t of_step, uint64_t applied) const {
        return of_step <= step && applied < until ? end : 0;
    }
    // Operation `number` gives them rows before `e`, of steps up to `s`.
    void note(uint64_t e, uint64_t s, uint64_t number, uint64_t applied) {
        end = std::max(end_at(0, applied), e);
        step = s;
        until = number;
    }
};

}  // namespace routecap

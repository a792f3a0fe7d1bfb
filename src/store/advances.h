// The order of two kinds of events that know nothing of one another: advances of stores, and rows
// that capturers issue. Advances have numbers in a process.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>

namespace routecap {

class Advances {
public:
    static uint64_t count() { return count_.load(std::memory_order_acquire); }
    // The number of a new one: 1, 2, 3, ...
    static uint64_t take() { return count_.fetch_add(1, std::memory_order_acq_rel) + 1; }

private:
    inline static std::atomic<uint64_t> count_{0};
};

// Which rows of a request were there before which advance. Guarded by the capturer's mutex.
class RowAges {
public:
    RowAges() = default;
    // All rows are issued after the advance of this number.
    explicit RowAges(uint64_t advance) : last_{{{}, {advance, 0}}} {}
    // Rows before `end` were issued before the advance of this number, those after it later.
    void note(uint64_t advance, uint64_t end) {
        if (last_[1].end != end) last_[0] = last_[1];  // some came since
        last_[1] = {advance, end};
    }
    // Of these nobody knows the age.
    void note_unknown(uint64_t end) { unknown_end_ = std::max(unknown_end_, end); }
    void cut(uint64_t end) {
        unknown_end_ = std::min(unknown_end_, end);
        for (Age &age : last_) age.end = std::min(age.end, end);
    }
    // One past the last row that may be older than an advance; 0 for no advance at all.
    uint64_t older_end(uint64_t advance) const {
        if (advance == 0) return 0;
        uint64_t end = 0;
        if (last_[0].advance >= advance)
            end = last_[0].end;
        else if (last_[1].advance >= advance)
            end = last_[1].end;
        return std::max(end, unknown_end_);
    }

private:
    struct Age {
        uint64_t advance = 0, end = 0;
    };
    std::array<Age, 2> last_{};
    uint64_t unknown_end_ = 0;
};

}  // namespace routecap

// Why rows are not there, by position: LOST, TAKEN and the other reasons of whole rows, without
// memory for their cells.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/shape.h"

namespace routecap {

struct Segment;

// Disjoint runs of positions, ascending; neighbours with one reason are one run. What is in no run
// is ABSENT.
class MissingRows {
public:
    struct Run {
        uint64_t first, end;
        int32_t reason;  // is_row_reason, not ABSENT
    };

    bool empty() const { return runs_.empty(); }
    size_t runs() const { return runs_.size(); }

    // Makes room, so that the next `changes` calls of add and clear cannot fail.
    void reserve(size_t changes = 1);

    // Rows are missing for this reason; of two reasons of one row the one with the higher rank
    // stands.
    void add(uint64_t first, uint64_t end, int32_t reason);
    // Many at once, in time that grows with both.
    void add(const MissingRows &other);
    // Forgets what is known of rows.
    void clear(uint64_t first, uint64_t end);
    void cut(uint64_t end) noexcept;

    // Calls f(first, end, reason) for what is known of rows [first, end), in order.
    template <class F>
    void for_each(uint64_t first, uint64_t end, F f) const {
        for (size_t i = after(first); first < end && i < runs_.size() && runs_[i].first < end; i++)
            f(std::max(first, runs_[i].first), std::min(end, runs_[i].end), runs_[i].reason);
    }
    // What is known of rows [first, end).
    MissingRows part(uint64_t first, uint64_t end) const {
        MissingRows rows;
        for_each(first, end, [&](uint64_t from, uint64_t to, int32_t reason) {
            rows.append(from, to, reason);
        });
        return rows;
    }

private:
    // The first run that ends after a position.
    size_t after(uint64_t position) const {
        return static_cast<size_t>(
            std::upper_bound(runs_.begin(), runs_.end(), position,
                             [](uint64_t p, const Run &run) { return p < run.end; }) -
            runs_.begin());
    }
    void split(uint64_t position);
    void append(uint64_t first, uint64_t end, int32_t reason);

    std::vector<Run> runs_;
};

// Rows [first, end), of which `present` are there in pages, with segments for the rows that are
// known to be missing. In pages these are rows that say no more than one reason of the whole row,
// if it has the lower rank. Of `a` and `b` (which may be null) too the higher rank stands. Leaves
// `present` as it is if it throws.
std::vector<Segment> with_missing(const Shape &shape, std::vector<Segment> &&present,
                                  const MissingRows &a, const MissingRows *b, uint64_t first,
                                  uint64_t end);

}  // namespace routecap

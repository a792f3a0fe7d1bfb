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

    // Rows are missing for this reason; of two reasons of one row the one with the higher rank
    // stands. Throws without memory; nothing has changed then.
    void add(uint64_t first, uint64_t end, int32_t reason);
    void add(const MissingRows &other);
    // Forgets what is known of rows at and after `end`.
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
    void append(uint64_t first, uint64_t end, int32_t reason);

    std::vector<Run> runs_;
};

// Rows [first, end), of which `present` are there in pages, with segments for the rows that are
// known to be missing. In pages these are rows that say no more than one reason of the whole row,
// if it has the lower rank.
std::vector<Segment> with_missing(const Shape &shape, std::vector<Segment> present,
                                  const MissingRows &known, uint64_t first, uint64_t end);

}  // namespace routecap

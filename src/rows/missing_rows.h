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

// Runs of positions, each with one reason. Runs ascend and do not overlap, and neighbours differ in
// their reason. A position in no run is ABSENT.
class MissingRows {
public:
    struct Run {
        uint64_t first, end;
        int32_t reason;  // is_row_reason, not ABSENT
    };

    bool empty() const { return runs_.empty(); }

    // Adds a reason for rows. A row that has one already keeps the one of the higher rank. Throws
    // without memory, before anything has changed.
    void add(uint64_t first, uint64_t end, int32_t reason);
    void add(const MissingRows &other);
    // Forgets what is known of rows at and after `end`.
    void cut(uint64_t end) noexcept;

    // Calls f(first, end, reason) for the part of each run in [first, end), in order.
    template <class F>
    void for_each(uint64_t first, uint64_t end, F f) const {
        for (size_t i = after(first); first < end && i < runs_.size() && runs_[i].first < end; i++)
            f(std::max(first, runs_[i].first), std::min(end, runs_[i].end), runs_[i].reason);
    }
    // The runs of [first, end).
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

// Adds segments without a page to `present`, the rows of [first, end) that are in pages, wherever
// `known` has a reason. A row in a page that has only a reason itself (Shape::row_reason) is
// replaced if the known reason has the higher rank.
std::vector<Segment> with_missing(const Shape &shape, std::vector<Segment> present,
                                  const MissingRows &known, uint64_t first, uint64_t end);

}  // namespace routecap

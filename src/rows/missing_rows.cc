#include "rows/missing_rows.h"

#include <utility>

#include "rows/page_entry.h"

namespace routecap {

void MissingRows::append(uint64_t first, uint64_t end, int32_t reason) {
    if (first >= end || reason == ROUTECAP_MISSING_ABSENT) return;
    if (!runs_.empty() && runs_.back().end == first && runs_.back().reason == reason)
        runs_.back().end = end;
    else
        runs_.push_back({first, end, reason});
}

void MissingRows::add(uint64_t first, uint64_t end, int32_t reason) {
    if (runs_.empty() || runs_.back().end <= first)
        return append(first, end, reason);  // mostly rows are missing in order
    MissingRows one;
    one.append(first, end, reason);
    add(one);
}

void MissingRows::add(const MissingRows &other) {
    if (other.empty()) return;
    MissingRows both;
    both.runs_.reserve(2 * (runs_.size() + other.runs_.size()));
    auto a = runs_.begin();
    auto b = other.runs_.begin();
    // Between two ends of runs nothing changes.
    for (uint64_t position = 0; a != runs_.end() || b != other.runs_.end();) {
        uint64_t end = UINT64_MAX;
        int32_t reason = ROUTECAP_MISSING_ABSENT;
        const auto look = [&](auto &run, auto last) {
            while (run != last && run->end <= position) ++run;
            if (run == last) return;
            end = std::min(end, run->first > position ? run->first : run->end);
            if (run->first <= position) reason = higher_reason(reason, run->reason);
        };
        look(a, runs_.end());
        look(b, other.runs_.end());
        both.append(position, end, reason);
        position = end;
    }
    *this = std::move(both);
}

void MissingRows::cut(uint64_t end) noexcept {
    while (!runs_.empty() && runs_.back().first >= end) runs_.pop_back();
    if (!runs_.empty()) runs_.back().end = std::min(runs_.back().end, end);
}

std::vector<Segment> with_missing(const Shape &shape, std::vector<Segment> present,
                                  const MissingRows &known, uint64_t first, uint64_t end) {
    if (known.empty()) return present;
    std::vector<Segment> all;
    const auto hole = [&](uint64_t from, uint64_t to, int32_t reason) {
        if (!all.empty() && !all.back().page && all.back().end() == from &&
            all.back().reason == reason)
            all.back().rows += to - from;
        else
            all.push_back(Segment::not_there(from, to - from, reason));
    };
    uint64_t done = first;
    for (const Segment &segment : present) {
        known.for_each(done, segment.first, hole);
        done = segment.first;
        const auto keep = [&](uint64_t to) {
            if (done < to) all.push_back(segment.part(done, to));
            done = to;
        };
        known.for_each(segment.first, segment.complete ? segment.first : segment.end(),
                       [&](uint64_t from, uint64_t to, int32_t reason) {
                           for (; from < to; from++) {
                               const uint64_t row = from - segment.first;
                               const int32_t said = shape.row_reason(segment.row(row));
                               if (said == 0 || higher_reason(said, reason) == said) continue;
                               keep(from);
                               hole(from, from + 1, reason);
                               done = from + 1;
                           }
                       });
        keep(segment.end());
    }
    known.for_each(done, end, hole);
    return all;
}

}  // namespace routecap

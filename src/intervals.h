// A set of numbers kept as disjoint intervals. Most sets here are one interval, which lives inside the object.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace routecap {

class Intervals {
public:
    struct Interval {
        uint64_t begin, end;
    };

    // Whether [begin, end) is in the first interval: a quick look that may say no too often.
    bool contains(uint64_t begin, uint64_t end) const { return begin >= first_.begin && end <= first_.end; }

    // How many numbers of [begin, end) are not in the set.
    uint64_t absent(uint64_t begin, uint64_t end) const {
        uint64_t n = end - begin;
        for_each([&](const Interval &i) {
            const uint64_t b = std::max(begin, i.begin), e = std::min(end, i.end);
            if (b < e) n -= e - b;
        });
        return n;
    }

    void add(uint64_t begin, uint64_t end) {
        if (begin >= end) return;
        if (first_.begin == first_.end) {
            first_ = {begin, end};
        } else if (more_.empty() && begin <= first_.end && end >= first_.begin) {
            first_ = {std::min(begin, first_.begin), std::max(end, first_.end)};
        } else {
            rebuild([&](std::vector<Interval> &all) { all.push_back({begin, end}); });
        }
    }

    // Removes [begin, end) and returns how many of those numbers were in the set.
    uint64_t remove(uint64_t begin, uint64_t end) {
        if (begin >= end) return 0;
        const uint64_t present = end - begin - absent(begin, end);
        if (present == 0) return 0;
        if (more_.empty() && end >= first_.end) {
            first_.end = std::max(first_.begin, begin);
        } else {
            rebuild([&](std::vector<Interval> &all) {
                std::vector<Interval> kept;
                for (const Interval &i : all) {
                    if (i.begin < begin) kept.push_back({i.begin, std::min(i.end, begin)});
                    if (i.end > end) kept.push_back({std::max(i.begin, end), i.end});
                }
                all = std::move(kept);
            });
        }
        return present;
    }

    // Whether it is one interval at most. Then all of it is in the object's first bytes, and clear_first() empties it.
    bool simple() const { return more_.empty(); }
    void clear_first() { first_ = {0, 0}; }
    void clear() {
        clear_first();
        more_.clear();
    }

private:
    template <class F>
    void for_each(F f) const {
        if (first_.begin != first_.end) f(first_);
        for (const Interval &i : more_) f(i);
    }

    template <class F>
    void rebuild(F change) {
        std::vector<Interval> all;
        for_each([&](const Interval &i) { all.push_back(i); });
        change(all);
        std::sort(all.begin(), all.end(), [](const Interval &a, const Interval &b) { return a.begin < b.begin; });
        std::vector<Interval> joined;
        for (const Interval &i : all) {
            if (!joined.empty() && i.begin <= joined.back().end)
                joined.back().end = std::max(joined.back().end, i.end);
            else
                joined.push_back(i);
        }
        more_.reserve(joined.size());  // from here on nothing fails
        first_ = joined.empty() ? Interval{0, 0} : joined.front();
        more_.assign(joined.begin() + (joined.empty() ? 0 : 1), joined.end());
    }

    Interval first_{0, 0};
    std::vector<Interval> more_;  // after first_, ascending
};

}  // namespace routecap
